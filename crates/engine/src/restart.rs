//! Reads containers back into memory, verified.
//!
//! | file | what |
//! | --- | --- |
//! | `reader.rs` | opens, checks and reads one container; copies, references and damaged ends |
//! | `array.rs` | puts a global array together from the parts of all ranks |
//! | `boxes.rs` | pure: what two boxes of an array have in common |
//! | `restore.rs` | finds the checkpoints that a rank can resume from, and reads its bytes |
//!
//! Not here: agreement among ranks (the client).

mod array;
mod boxes;
pub mod reader;
mod restore;

pub use array::{ArrayPart, ArrayWindow, GlobalArray, Unread};
pub use boxes::ArrayBox;
pub use restore::{Candidate, NodeView, Offer, RankView, candidates, node_view};
