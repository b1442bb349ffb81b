//! Wraps the program's collective operations, and agrees by means of them.
//!
//! | file | what |
//! | --- | --- |
//! | `operations.rs` | what a program supplies ([`Collective`]), and the one-rank case |
//! | `agree.rs` | turns an error on one rank into the same error on all |
//!
//! Not here: when they are called (each collective call of the session).

mod agree;
mod operations;

pub(crate) use agree::{agree, agree_min, bcast_bytes, number, rows};
pub use operations::{Collective, Solo};
