//! Reads containers back into memory, verified.
//!
//! | file | what |
//! | --- | --- |
//! | `candidates.rs` | finds the checkpoints that a run can resume from |
//! | `view.rs` | opens one for a rank, at every level, and reads its regions |
//! | `reader.rs` | opens, checks and reads one container; copies, references and damaged ends |
//! | `all_ranks.rs` | reads what other ranks stored, too |
//! | `shared.rs` | lets the ranks of a node read an extent once |
//! | `memory.rs` | takes extents from the memory that an agent kept |
//! | `array.rs` | pure: who stored which elements of a global array or list |
//! | `boxes.rs` | pure: what boxes of an array have in common |
//!
//! Not here: agreement among ranks (the client).

mod all_ranks;
mod array;
mod boxes;
mod candidates;
mod memory;
pub mod reader;
mod shared;
mod view;

pub use all_ranks::{AllRanks, Destination, Elastic, Unread};
pub use array::{ArrayPart, GlobalArray, ReadPlan};
pub use boxes::ArrayBox;
pub use candidates::{Candidate, NodeView, Offer, candidates, node_view};
pub use memory::AgentMemory;
pub use shared::SharedReads;
pub use view::{FoundRecord, RankView};
