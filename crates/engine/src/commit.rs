//! Decides when a checkpoint becomes visible, and makes it visible.
//!
//! | file | what |
//! | --- | --- |
//! | `protocol.rs` | what a node votes (`node.rs`) and what the lead decides (`lead.rs`); pure |
//! | `relay.rs` | the tree between the nodes and the lead, in jobs of more than `fan_out` nodes; pure |
//! | `control.rs` | the thread that drives both |
//! | `record.rs` | the only place that writes a commit record |
//!
//! Not here: containers (`flush`).

mod control;
mod protocol;
mod record;
mod relay;

pub(crate) use control::{Control, ControlContext, Reported};
pub use control::{ControlShared, Links};
pub use protocol::{
    JobFacts, LeadAction, LeadEvent, LeadState, NodeAction, NodeEvent, NodeState, UNDECIDED,
    undecided,
};
pub use record::{copy_here, make_visible};
pub(crate) use record::{make_copy_visible, record_of_copy};
pub use relay::{Relay, RelayAction, RelayEvent, Tree};
