//! The threads of a node's engine, in a rank or in an agent.
//!
//! | file | what |
//! | --- | --- |
//! | `threads.rs` | starts and ends them |
//! | `adoption.rs` | a node's plan on its way to the agent |
//! | `agent.rs` | the process that outlives the ranks |
//!
//! Not here: the rank's side of it (the client).

mod adoption;
pub mod agent;
mod threads;

pub use adoption::pack;
pub use threads::{Host, HostPlan, JOIN_TIMEOUT, Replication, join, server_names};
