//! Hosts the threads of a node's engine, in a rank or in an agent.
//!
//! | file | what |
//! | --- | --- |
//! | `threads.rs` | starts and ends them |
//! | `adoption.rs` | encodes a node's plan for the agent |
//! | `agent.rs` | the process that outlives the ranks |
//!
//! Not here: the rank's side (the client).

mod adoption;
pub mod agent;
mod threads;

pub use adoption::pack;
pub use threads::{Host, HostPlan, JOIN_TIMEOUT, Replication, join, server_names};
