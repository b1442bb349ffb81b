//! Opens a session: turns separate ranks into nodes that share a pool and reach the lead.
//!
//! | file | what |
//! | --- | --- |
//! | `stages.rs` | the stages of `open`, in order |
//! | `agreements.rs` | what must be the same on all ranks |
//! | `link.rs` | what opening gives a session |
//! | `environment.rs` | what tests replace |
//! | `facts.rs` | the node of each rank |
//! | `start.rs` | what rank 0 broadcasts |
//! | `connect.rs` | connects ranks to their node, and nodes to the lead |
//! | `doors.rs` | the addresses of a node's threads |
//! | `agent.rs` | finds or starts the agent of this node, and asks for memory of an earlier run |
//! | `recalled.rs` | maps that memory while the session opens |
//! | `threads.rs` | the threads of a rank |
//! | `peers.rs` | addresses and replicas of the job's nodes |
//! | `holdings.rs` | which files each node holds |
//! | `members.rs` | nodes of earlier runs |
//! | `reopen.rs` | what one session of a run passes to the next |
//! | `mender.rs` | the thread that makes lost copies again |
//!
//! Not here: the state of an open session (`session`).

mod agent;
mod agreements;
mod connect;
mod doors;
mod environment;
mod facts;
mod holdings;
mod link;
mod members;
mod mender;
mod peers;
mod recalled;
mod reopen;
mod stages;
mod start;
mod threads;

pub(crate) use agent::dies_with_ranks;
pub use agreements::JOB_VARIABLE;
pub(crate) use agreements::agree_on_options;
pub use environment::Environment;
pub(crate) use holdings::exchange_holdings;
pub(crate) use link::Link;
pub(crate) use members::{find_absent, forget, may_know_more};
pub(crate) use mender::Mender;
pub(crate) use peers::describe_sources;
pub(crate) use recalled::Recalled;
pub(crate) use reopen::Reopen;
pub(crate) use stages::{Opened, open};
