//! Lets the ranks of a node read and verify an extent once.
//!
//! How: an extent that more than one rank may need goes through a chunk of the node's pool. The
//! last few extents that were read have a place there, each with a gate. Whoever wants an extent
//! looks for its key; if it is nowhere, it takes the oldest place, and reads and verifies the
//! extent there while it holds the gate. The others wait for the gate and copy the bytes out. The
//! ranks of a node want extents in the same order, so a few places are enough.
//!
//! Invariants:
//! 1. A rank takes bytes only if their CRC, computed over its own copy, is the one in its manifest
//!    or, of encrypted ones, that of the bytes that were verified.
//! 2. Two ranks never read the same extent while it has a place, unless the first one fails.
//! 3. Sharing is never needed: what cannot be shared (no free chunk, a gate that does not open, an
//!    extent longer than a chunk) each rank reads itself.
//! 4. At most [`SHARED_EXTENTS`] chunks are taken, and all are returned after the restart.
//! 5. The gate of the places is taken before that of a place, and never after it.
//!
//! Survives: a rank that dies or hangs at any point (its gate opens, or the others stop sharing),
//! and a process that overwrites the pool (the CRC disagrees).
//!
//! Not here: what a rank wants of an extent (`all_ranks.rs`), reading it (`reader.rs`).

use crate::node::{Index, IndexShape, SHARED_EXTENTS, SharedExtent};
use orcheck_format::sabotage::{Switch, off};
use orcheck_format::{Rank, Result};
use orcheck_io::memory::Span;
use orcheck_pool::{Chunk, Gate, Gates, Pool};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

#[cfg(test)]
mod tests;

/// The gate of the places, followed by that of each.
const PLACES_GATE: u64 = 1 << 32;

/// Longest wait for a rank that reads an extent.
const PATIENCE: Duration = Duration::from_secs(10);

/// Extents shorter than this are not shared: the gate costs more than to read them, many at once.
pub(crate) const LEAST_BYTES: usize = 16 << 10;

/// What names an extent: the manifest that it is from, rank, region and offset.
pub(crate) type Key = [u64; 2];

/// The pool of a node, as a place for extents that several of its ranks need.
pub struct SharedReads {
    pool: Arc<Pool>,
    gates: Arc<Gates>,
    shape: IndexShape,
    node: usize,
    /// Whether a gate once did not open in time.
    given_up: AtomicBool,
}

impl SharedReads {
    /// Of the node with this number; `None` if it has only one rank.
    #[must_use]
    pub fn new(pool: Arc<Pool>, gates: Arc<Gates>, shape: IndexShape, node: usize) -> Option<Self> {
        (shape.ranks > 1).then(|| Self {
            pool,
            gates,
            shape,
            node,
            given_up: AtomicBool::new(false),
        })
    }

    /// The number of the node.
    pub(crate) fn node(&self) -> usize {
        self.node
    }

    /// Takes the extent into `into`; `crc`: that of its bytes, if a manifest has it. Unless
    /// another rank has done so, `read` reads and verifies it into the given memory, and returns
    /// the CRC. Returns `false` if it cannot be shared now.
    ///
    /// # Errors
    /// Those of `read`.
    pub(crate) fn take(
        &self,
        (key, crc): (Key, Option<u64>),
        into: Span,
        read: &mut dyn FnMut(Span) -> Result<u64>,
    ) -> Result<bool> {
        let len = into.len_bytes();
        let fits = (LEAST_BYTES..=self.pool.shape().chunk_bytes as usize).contains(&len);
        // Memory that the program has from the pool is filled like any other by whoever reads.
        let fits = fits && self.pool.offset_of(into).is_none();
        if !fits || self.given_up.load(Ordering::Relaxed) {
            return Ok(false);
        }
        let index = Index::new(&self.pool, self.shape);
        let (place, _gate) = match self.place_of(&index, key) {
            Ok(Some(found)) => found,
            Ok(None) => return Ok(false),
            Err(_) => {
                self.given_up.store(true, Ordering::Relaxed);
                return Ok(false);
            }
        };
        let mut extent = index.shared_extent(place);
        let Some(chunk) = self.chunk_of(&index, place, &mut extent) else {
            return Ok(false);
        };
        if !extent.is_there {
            extent.crc = read(self.pool.run_span(chunk.index(), 1).sub(0, len))?;
            extent.is_there = true;
            index.set_shared_extent(place, extent);
        }
        // Breaks if: this is not compared; bytes that a stray write of another process changed in
        // the pool would reach the program.
        let expected = crc.unwrap_or(extent.crc);
        let good = self.pool.copy_out(&chunk, into) == expected || off(Switch::SharedVerified);
        extent.is_there = good;
        index.set_shared_extent(place, extent);
        Ok(good)
    }

    /// The place of an extent, whose gate is now held: that which it has, or the oldest one. `None`
    /// if it lost its place meanwhile, because others wanted many extents.
    fn place_of(&self, index: &Index<'_>, key: Key) -> Result<Option<(u32, Gate)>> {
        let gate = |place: u32| {
            self.gates
                .lock(PLACES_GATE + 1 + u64::from(place), PATIENCE)
        };
        let has = |place: &u32| index.shared_extent(*place).key == key;
        let places = self.gates.lock(PLACES_GATE, PATIENCE)?;
        if let Some(place) = (0..SHARED_EXTENTS).find(has) {
            drop(places);
            let held = gate(place)?;
            return Ok(has(&place).then_some((place, held)));
        }
        let place = index.next_shared();
        let held = gate(place)?;
        let new = SharedExtent {
            key,
            chunk: index.shared_extent(place).chunk,
            ..SharedExtent::default()
        };
        index.set_shared_extent(place, new);
        Ok(Some((place, held)))
    }

    /// The chunk of a place: that which it has, or a free one.
    fn chunk_of(&self, index: &Index<'_>, place: u32, extent: &mut SharedExtent) -> Option<Chunk> {
        if extent.chunk.is_none() {
            extent.chunk = Some(self.pool.take_run(1)?);
            index.set_shared_extent(place, *extent);
        }
        Chunk::from_index(&self.pool, extent.chunk?).ok()
    }

    /// Returns all chunks. Call this on one rank of the node, once no rank reads any more.
    pub fn clear(&self) {
        let index = Index::new(&self.pool, self.shape);
        for place in 0..SHARED_EXTENTS {
            let extent = index.shared_extent(place);
            index.set_shared_extent(place, SharedExtent::default());
            if let Some(Ok(chunk)) =
                (extent.chunk).map(|chunk| Chunk::from_index(&self.pool, chunk))
            {
                self.pool.give(chunk);
            }
        }
    }
}

/// The key of an extent: its place in the region of a rank, by a manifest of this digest.
pub(crate) fn key(manifest: &[u8; 32], rank: Rank, region: &str, at: u64) -> Key {
    let mut hash = blake3::Hasher::new();
    hash.update(manifest);
    hash.update(&rank.0.to_le_bytes());
    hash.update(&at.to_le_bytes());
    hash.update(region.as_bytes());
    let mut words = hash.finalize_xof();
    let mut word = || {
        let mut bytes = [0; 8];
        words.fill(&mut bytes);
        u64::from_le_bytes(bytes)
    };
    // Zeros are no key.
    [word(), word() | 1]
}
