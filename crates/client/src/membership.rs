//! A program's membership in a job: a session with checkpoints, or one without.
//!
//! | file | what |
//! | --- | --- |
//! | `member.rs` | opens what the options ask for, and hands each call to it |
//! | `disabled.rs` | the session without |
//!
//! Not here: what the calls do.

mod disabled;
mod member;

pub use disabled::Disabled;
pub use member::Membership;
