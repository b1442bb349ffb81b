//! Defines the figures of a session.

use crate::session::outcomes::LostSteps;
use orcheck_engine::capture::Captured;
use orcheck_format::Step;

/// Figures of the last checkpoint on this rank.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Stats {
    /// Its step.
    pub step: Step,
    /// Time inside `checkpoint`, seconds.
    pub blocked_s: f64,
    /// Of these: copying.
    pub stage_s: f64,
    /// Of these: waiting for an earlier flush or the stage slot.
    pub wait_s: f64,
    /// Bytes of this rank's snapshot.
    pub staged_bytes: u64,
    /// Size of the node's pool.
    pub pool_bytes: u64,
    /// Of these: in use when the checkpoint returned.
    pub pool_used_bytes: u64,
    /// Newest step committed at level `node` in this session; 0 if none.
    pub committed_node_step: Step,
    /// Newest step committed at level `global` in this session; 0 if none.
    pub committed_global_step: Step,
    /// Processor time of the CP-thread that flushes this rank, since the session opened, seconds.
    /// Kernel threads do not count, although some file systems use them to begin a write without
    /// waiting.
    pub flush_cpu_s: f64,
    /// Checkpoints that `overrun = skip` skipped.
    pub skipped: u64,
    /// How the last completely staged snapshot was captured, with `incremental = auto`.
    pub captured: Captured,
    /// Bytes of snapshots that this CP-thread wrote into containers since the session opened; every
    /// level counts.
    pub flushed_bytes: u64,
    /// Bytes that they take in files, which are fewer with compression.
    pub file_bytes: u64,
    /// Interval that `interval = auto` keeps, in seconds; 0: none yet.
    pub interval_s: f64,
    /// Steps of this session that are known to be lost.
    pub lost: LostSteps,
    /// What routed files of this job take on this host, if they have a budget there, that is, in
    /// memory.
    pub routed_bytes: u64,
    /// Bytes that the restart of this session took from the memory of this node's agent; everything
    /// else came from files.
    pub memory_bytes: u64,
    /// The session has no checkpoints (`enabled`): everything else is 0.
    pub disabled: bool,
}
