//! Reads containers back into memory, verified.
//!
//! | file | what |
//! | --- | --- |
//! | `reader.rs` | opens, checks and reads one container; copies, references and damaged ends |
//! | `restore.rs` | finds the checkpoints that a rank can resume from, and reads its bytes |
//!
//! Not here: agreement among ranks (the client).

pub mod reader;
mod restore;

pub use restore::{Candidate, NodeView, Offer, RankView, candidates, node_view};
