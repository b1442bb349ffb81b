//! Defines the figures of a session.

use crate::session::outcomes::LostSteps;
use orcheck_engine::capture::Captured;
use orcheck_format::Step;
use std::time::Duration;

/// Where the time of all checkpoints of a session went, on this rank. What is left of `blocked_s`
/// went into preparing them.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Spent {
    /// Number of checkpoints.
    pub checkpoints: u64,
    /// See [`Stats`].
    pub blocked_s: f64,
    /// See [`Stats`].
    pub agree_s: f64,
    /// See [`Stats`].
    pub stage_s: f64,
    /// See [`Stats`].
    pub wait_s: f64,
}

/// Figures of the last checkpoint on this rank.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Stats {
    /// Its step.
    pub step: Step,
    /// Time inside `checkpoint`, seconds.
    pub blocked_s: f64,
    /// Of these: copying and handing over.
    pub stage_s: f64,
    /// Of these: waiting for an earlier flush or the stage slot.
    pub wait_s: f64,
    /// Of these: agreeing with the other ranks, which is mostly waiting until they call, too.
    pub agree_s: f64,
    /// The same of all checkpoints of this session together.
    pub sum: Spent,
    /// Bytes of this rank's snapshot.
    pub staged_bytes: u64,
    /// Size of the node's pool.
    pub pool_bytes: u64,
    /// Of these: bytes that have memory; the others are addresses only.
    pub pool_memory_bytes: u64,
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

impl Stats {
    /// Notes where the time of one checkpoint went: in all, agreeing, waiting for room, and from
    /// the agreement until the end.
    pub(crate) fn spent(
        &mut self,
        all: Duration,
        agree: Duration,
        wait: [Duration; 2],
        rest: Duration,
    ) {
        self.blocked_s = all.as_secs_f64();
        self.agree_s = agree.as_secs_f64();
        self.wait_s = (wait[0] + wait[1]).as_secs_f64();
        self.stage_s = rest.saturating_sub(wait[1]).as_secs_f64();
        self.sum.checkpoints += 1;
        self.sum.blocked_s += self.blocked_s;
        self.sum.agree_s += self.agree_s;
        self.sum.wait_s += self.wait_s;
        self.sum.stage_s += self.stage_s;
    }
}
