//! Finds extents in the memory that an agent kept.
//!
//! Not here: what is there, and verifying it (`restart/memory.rs`).

use super::Reader;
use super::source::Source;
use crate::restart::memory::{AgentMemory, Held};
use std::sync::Arc;

impl Reader {
    /// From now on, extents are taken from this memory if they are there.
    pub(crate) fn recall(&mut self, memory: Option<&Arc<AgentMemory>>) {
        self.memory = memory.cloned();
    }

    /// Where the bytes of an extent of this container are in the memory of the agent.
    pub(super) fn held(&self, source: &Source<'_>) -> Option<Held> {
        let (memory, extent) = (self.memory.as_ref()?, source.extent);
        if extent.container.is_some() {
            return None;
        }
        memory.find(
            &self.digest,
            (source.rank, &source.region.identity()),
            (source.at, extent.len_bytes),
            (!source.encrypted).then_some(extent.crc_plain),
        )
    }
}
