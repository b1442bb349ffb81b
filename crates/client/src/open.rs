//! From separate ranks to nodes that share a pool and reach the lead.
//!
//! | file | what |
//! | --- | --- |
//! | `stages.rs` | the stages of `open`, in order |
//! | `environment.rs` | what tests replace |
//! | `facts.rs` | who is where |
//! | `start.rs` | what rank 0 tells everybody |
//! | `connect.rs` | ranks to their node, nodes to the lead |
//! | `doors.rs` | where the threads of a node are reached |
//! | `agent.rs` | the agent of this node: found or started |
//! | `threads.rs` | the threads of a rank |
//! | `peers.rs` | the nodes of the job among themselves |
//! | `members.rs` | nodes of earlier runs |
//! | `reopen.rs` | what goes from one session of a run to the next |
//! | `mender.rs` | the thread that makes lost copies again |
//!
//! Not here: the state of an open session (`session`).

mod agent;
mod connect;
mod doors;
mod environment;
mod facts;
mod members;
mod mender;
mod peers;
mod reopen;
mod stages;
mod start;
mod threads;

pub(crate) use agent::dies_with_ranks;
pub use environment::Environment;
pub(crate) use members::{find_absent, forget, may_know_more};
pub(crate) use mender::Mender;
pub(crate) use peers::{Peers, exchange_holdings, tell_sources};
pub(crate) use reopen::Reopen;
pub use stages::JOB_VARIABLE;
pub(crate) use stages::{Opened, agree_on_options, open};
pub(crate) use threads::Threads;
