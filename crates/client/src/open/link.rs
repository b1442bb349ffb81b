//! Holds what opening gives a session: its place in the job, and its connections to the other
//! ranks. When an agent ends, the link is lost with it; the session then opens again and replaces
//! the link as a whole.
//!
//! Not here: how a link is made (`stages.rs`), what a program protects (`session`).

use crate::open::peers::Peers;
use crate::open::threads::Threads;
use orcheck_engine::commit::ControlShared;
use orcheck_engine::directory::Places;
use orcheck_engine::directory::epoch::ClaimLock;
use orcheck_engine::host::Host;
use orcheck_engine::node::{IndexShape, Layout, Patience};
use orcheck_format::Epoch;
use orcheck_pool::{Gate, Gates, Pool};
use std::sync::Arc;

/// The link between a session and its job.
pub(crate) struct Link {
    pub layout: Layout,
    pub epoch: Epoch,
    pub places: Places,
    pub pool: Arc<Pool>,
    pub shape: IndexShape,
    pub shared: Arc<ControlShared>,
    /// `None` once the session has ended.
    pub threads: Option<Threads>,
    pub claim: Option<ClaimLock>,
    pub gates: Arc<Gates>,
    /// With agents: tells them that this rank may write into the pool.
    pub _pool_of_rank: Option<Gate>,
    /// Whether CP-threads encode.
    pub encoded: bool,
    /// The other nodes, at level `peers`.
    pub peers: Option<Peers>,
    pub host: Host,
    /// How long this rank waits for the engine, and what ends the wait.
    pub patience: Patience,
}
