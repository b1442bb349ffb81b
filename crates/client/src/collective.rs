//! The program's collective operations, and agreement by them.
//!
//! | file | what |
//! | --- | --- |
//! | `operations.rs` | what a program hands in: [`Collective`], and the one-rank case |
//! | `agree.rs` | an error on one rank becomes the same error on all |
//!
//! Not here: when they are called (each collective call of the session).

mod agree;
mod operations;

pub(crate) use agree::{agree, agree_min, bcast_bytes, number, rows};
pub use operations::{Collective, Solo};
