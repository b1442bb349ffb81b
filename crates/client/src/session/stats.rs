//! Figures of a session.

use crate::session::outcomes::LostSteps;
use orcheck_engine::capture::Captured;

/// Figures of the last checkpoint on this rank.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Stats {
    /// Its step.
    pub step: u64,
    /// Time inside `checkpoint`, seconds.
    pub blocked_s: f64,
    /// Of that: copying.
    pub stage_s: f64,
    /// Of that: waiting for an earlier flush or the stage slot.
    pub wait_s: f64,
    /// Bytes of this rank's snapshot.
    pub staged_bytes: u64,
    /// Size of the node's pool.
    pub pool_bytes: u64,
    /// Of that: in use when the checkpoint returned.
    pub pool_used_bytes: u64,
    /// Newest step committed at level `node` in this session; 0 if none.
    pub committed_node_step: u64,
    /// Newest step committed at level `global` in this session; 0 if none.
    pub committed_global_step: u64,
    /// Processor time of the CP-thread that flushes this rank, since the session opened, seconds. Without threads of the
    /// kernel: a file system that cannot begin a write without waiting has it done by one of those.
    pub flush_cpu_s: f64,
    /// Checkpoints left out by `overrun = skip`.
    pub skipped: u64,
    /// How the last snapshot that is staged completely was captured, with `incremental = auto`.
    pub captured: Captured,
    /// Bytes of snapshots that this CP-thread wrote in containers, since the session opened; every level counts.
    pub flushed_bytes: u64,
    /// The bytes that they take in files; less where they are compressed.
    pub file_bytes: u64,
    /// Computing between two checkpoints that `interval = auto` keeps, seconds; 0: none is kept yet.
    pub interval_s: f64,
    /// Steps of this session that are lost, as far as it was seen.
    pub lost: LostSteps,
    /// What routed files of this job take of the place they lie in on this host, where they have a budget there: in memory.
    pub routed_bytes: u64,
    /// The session has no checkpoints (`enabled`): everything else is 0.
    pub disabled: bool,
}
