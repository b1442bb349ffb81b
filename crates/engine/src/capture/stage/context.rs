//! What a rank needs to stage, and its way to the CP-thread.
//!
//! Invariant: what the CP-thread was told of a snapshot that is kept is noted. Not here: staging (`stage.rs`).

use crate::node::{Descriptor, Index, IndexShape, Kept, Patience};
use orcheck_format::{Rank, Result, WriterId};
use orcheck_io::failpoints::Failpoints;
use orcheck_pool::{Chunk, Pool};
use std::sync::Arc;
use std::time::Duration;

/// What a rank needs to stage: its place in the node.
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
    /// Whether the CP-thread must know the pieces of each segment, because it encodes them.
    pub encoded: bool,
    /// Whether the pool is compared with what was staged before it is written.
    pub checked: bool,
    /// Longest wait for a chunk or the CP-thread without any progress.
    pub timeout: Duration,
    /// How it waits.
    pub patience: Patience,
    /// Numbered steps, for tests.
    pub failpoints: Failpoints,
    /// Told of the step when the snapshot is whole in the pool, where the engine outlives this rank.
    pub sealed: Option<Arc<dyn Fn(u64) + Send + Sync>>,
    /// Where the snapshot stays until it is decided, should it be needed again.
    pub kept: Option<Arc<Kept>>,
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
        // First: what is flushed at once may be given back at once.
        self.kept.iter().for_each(|kept| kept.note(descriptor));
        self.patience.wait(self.timeout, |slice| {
            self.index()
                .push(self.local, self.writer, descriptor, slice)
        })
    }
}
