//! Represents a program's membership in a job: a session with checkpoints, or one without.
//!
//! | file | what |
//! | --- | --- |
//! | `member.rs` | opens the kind that the options request, and forwards each call to it |
//! | `disabled.rs` | the session without checkpoints |
//!
//! Not here: what the calls do.

mod disabled;
mod member;

pub use disabled::Disabled;
pub use member::Membership;
