//! Wraps the program's collective operations, and agrees by means of them.
//!
//! | file | what |
//! | --- | --- |
//! | `meeting.rs` | processes that act as ranks without a parallel environment ([`Meeting`]) |
//! | `operations.rs` | what a program supplies ([`Collective`]), and the one-rank case |
//! | `agree.rs` | turns an error on one rank into the same error on all |
//!
//! Not here: when they are called (each collective call of the session).

mod agree;
mod meeting;
mod operations;

pub(crate) use agree::{agree, agree_min, bcast_bytes, number, rows};
pub use meeting::Meeting;
pub use operations::{Collective, Solo};
