//! Protects containers by parity instead of copies: which nodes form a group, and the arithmetic of
//! the code.
//!
//! | file | what |
//! | --- | --- |
//! | `code.rs` | data blocks → parity blocks, and lost blocks from the others |
//! | `groups.rs` | nodes → groups that survive the loss of a failure domain |
//!
//! Not here: where each block lies (`orcheck_format::disk::ParityGroup`), moving and keeping them
//! (the engine).

mod code;
mod groups;

pub use code::Code;
pub use groups::{Scheme, groups};
