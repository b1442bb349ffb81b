//! From containers back to memory, proven.
//!
//! | file | what |
//! | --- | --- |
//! | `reader.rs` | one container: opened, checked, read; copies, references and damaged ends |
//! | `restore.rs` | which checkpoints a rank can resume from, and its bytes |
//!
//! Not here: agreement among ranks (the client).

pub mod reader;
mod restore;

pub use restore::{Candidate, NodeView, Offer, RankView, candidates, node_view};
