//! Holds what a rank needs to stage: its place in the node and its channel to the CP-thread.
//!
//! Invariant: everything the CP-thread is told about a kept snapshot is also noted in `kept`. Not
//! here: staging (`stage.rs`).

use crate::node::{Descriptor, Goes, Index, IndexShape, Kept, Patience};
use orcheck_format::{Rank, Result, Step, WriterId};
use orcheck_io::failpoints::Failpoints;
use orcheck_pool::{Chunk, Pool};
use std::sync::Arc;
use std::time::Duration;

/// What a rank needs to stage.
#[derive(Clone)]
pub struct StageContext {
    /// The node's pool.
    pub pool: Arc<Pool>,
    /// Shape of the index in it.
    pub shape: IndexShape,
    /// Position among the ranks of the node.
    pub local: u32,
    /// The rank.
    pub rank: Rank,
    /// The writer that flushes it.
    pub writer: WriterId,
    /// Whether the CP-thread must know the pieces of each segment in order to encode them.
    pub encoded: bool,
    /// Whether the CP-thread compares the pool with what was staged before it writes.
    pub checked: bool,
    /// The levels that the checkpoint goes to.
    pub goes: Goes,
    /// Longest wait for a chunk or for the CP-thread without any progress.
    pub timeout: Duration,
    /// How it waits.
    pub patience: Patience,
    /// Failpoints, for tests.
    pub failpoints: Failpoints,
    /// Called with the step when the whole snapshot is in the pool; set if the engine outlives this
    /// rank.
    pub sealed: Option<Arc<dyn Fn(Step) + Send + Sync>>,
    /// Keeps the snapshot until its step is decided, in case it is needed again.
    pub kept: Option<Arc<Kept>>,
    /// The CP-thread is not woken for this snapshot, but when all ranks of the node return.
    pub quiet: bool,
}

impl StageContext {
    /// The node's snapshot index.
    #[must_use]
    pub fn index(&self) -> Index<'_> {
        Index::new(&self.pool, self.shape)
    }

    pub(super) fn take(&self, near: u32) -> Result<Chunk> {
        self.patience
            .wait(self.timeout, |slice| self.pool.take(near, slice))
    }

    pub(super) fn push(&self, descriptor: Descriptor) -> Result<()> {
        // First: a segment may be flushed, and its chunk returned, at once.
        self.kept.iter().for_each(|kept| kept.note(descriptor));
        let index = self.index();
        self.patience.wait(self.timeout, |slice| match self.quiet {
            true => index.push_quietly(self.local, self.writer, descriptor, slice),
            false => index.push(self.local, self.writer, descriptor, slice),
        })
    }
}
