//! Lets the ranks of a node read and verify an extent once.
//!
//! How: an extent that more than one rank may need goes through a chunk of the node's pool. The
//! last few extents that were read have a place there, each with a gate. Whoever wants an extent
//! looks for its key; if it is nowhere, it takes the oldest place that nobody uses, and reads and
//! verifies the extent there while it holds the gate alone. Then it shares the gate, and with it
//! all who want the extent copy its bytes out, window by window. A rank first takes the extents
//! that others have read, then reads one that nobody is reading, and waits only if there is none:
//! so the ranks read different extents at the same time, and one that is late catches up. As they
//! want extents in about the same order, a few places are enough.
//!
//! Invariants:
//! 1. What a rank took counts only if its CRC, computed over what arrived in the rank's own window,
//!    is the one in its manifest or, of encrypted extents, that of the bytes that were verified.
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
use orcheck_format::{Crc64, Rank, Result};
use orcheck_io::memory::{Span, copy_into};
use orcheck_pool::{Chunk, Gate, Gates, Pool};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

#[cfg(test)]
mod tests;

/// The gate of the places, followed by that of each.
const PLACES_GATE: u64 = 1 << 32;

/// Longest wait for a rank that reads an extent.
const PATIENCE: Duration = Duration::from_secs(10);

/// Extents shorter than this are not shared: the gate costs more than to read them, many at once.
pub(crate) const LEAST_BYTES: usize = 16 << 10;

/// Bytes are copied out in windows of this length, which stay in the processor's cache.
const WINDOW_BYTES: usize = 256 << 10;

/// How far ahead of the first extent that it wants a rank looks for a better one.
const AHEAD_EXTENTS: usize = 2 * SHARED_EXTENTS as usize;

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
    window: Mutex<Vec<u8>>,
}

/// What became of an extent that a rank wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shared {
    /// Taken.
    Taken,
    /// Another rank is reading it.
    Busy,
    /// It cannot be shared now.
    No,
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
            window: Mutex::default(),
        })
    }

    /// The number of the node.
    pub(crate) fn node(&self) -> usize {
        self.node
    }

    /// Which of these extents a rank that wants all of them best takes next, and whether it may wait
    /// for the rank that is reading it.
    pub(crate) fn best<'k>(&self, left: impl Iterator<Item = &'k Key>) -> (usize, bool) {
        let index = Index::new(&self.pool, self.shape);
        let places = (0..SHARED_EXTENTS).map(|place| index.shared_extent(place));
        let there: HashMap<Key, bool> = places.map(|one| (one.key, one.is_there)).collect();
        let mut unread = None;
        for (at, key) in left.take(AHEAD_EXTENTS).enumerate() {
            match there.get(key) {
                Some(true) => return (at, false),
                None if unread.is_none() => unread = Some(at),
                _ => {}
            }
        }
        (unread.unwrap_or(0), unread.is_none())
    }

    /// Takes an extent of `len` bytes; `crc`: that of its bytes, if a manifest has it. Unless
    /// another rank has done so, `read` reads and verifies it into the given memory, and returns
    /// the CRC. `put` is called with pieces of it and where they begin. It counts only if this
    /// returns `Taken`: bytes that came before may be wrong. `Busy` only if it may not wait.
    ///
    /// # Errors
    /// Those of `read` and `put`.
    pub(crate) fn take(
        &self,
        (key, crc): (Key, Option<u64>),
        len: usize,
        may_wait: bool,
        read: &mut dyn FnMut(Span) -> Result<u64>,
        put: &mut dyn FnMut(usize, &[u8]) -> Result<()>,
    ) -> Result<Shared> {
        let fits = (LEAST_BYTES..=self.pool.shape().chunk_bytes as usize).contains(&len);
        if !fits || self.given_up.load(Ordering::Relaxed) {
            return Ok(Shared::No);
        }
        let index = Index::new(&self.pool, self.shape);
        let (place, gate) = match self.place_of(&index, key, may_wait) {
            Ok(Found::At(place, gate)) => (place, gate),
            Ok(Found::Busy) => return Ok(Shared::Busy),
            Ok(Found::Lost) => return Ok(Shared::No),
            Err(_) => {
                self.given_up.store(true, Ordering::Relaxed);
                return Ok(Shared::No);
            }
        };
        let mut extent = index.shared_extent(place);
        if !extent.is_there {
            let Some(chunk) = self.chunk_of(&index, place, &mut extent) else {
                return Ok(Shared::No);
            };
            extent.crc = read(self.pool.run_span(chunk.index(), 1).sub(0, len))?;
            extent.is_there = true;
            index.set_shared_extent(place, extent);
            if gate.let_in().is_err() {
                return Ok(Shared::No);
            }
        }
        let chunk = extent
            .chunk
            .map(|chunk| Chunk::from_index(&self.pool, chunk));
        let Some(Ok(chunk)) = chunk else {
            return Ok(Shared::No);
        };
        let found = self.copy_out(self.pool.run_span(chunk.index(), 1).sub(0, len), put)?;
        // Breaks if: this is not compared; bytes that a stray write of another process changed in
        // the pool would reach the program.
        if found == crc.unwrap_or(extent.crc) || off(Switch::SharedVerified) {
            return Ok(Shared::Taken);
        }
        drop(gate);
        self.forget(&index, place, key);
        Ok(Shared::No)
    }

    /// Passes on the bytes window by window, and returns their CRC.
    fn copy_out(&self, from: Span, put: &mut dyn FnMut(usize, &[u8]) -> Result<()>) -> Result<u64> {
        let mut window = self.window.lock().unwrap_or_else(PoisonError::into_inner);
        window.resize(WINDOW_BYTES, 0);
        let mut crc = Crc64::new();
        for at in (0..from.len_bytes()).step_by(WINDOW_BYTES) {
            let len = WINDOW_BYTES.min(from.len_bytes() - at);
            let Some(part) = window.get_mut(..len) else {
                break;
            };
            copy_into(from.sub(at, len), part);
            crc.update(part);
            put(at, part)?;
        }
        Ok(crc.value())
    }

    /// The place of an extent: that which it has, with a share in its gate, or, with its gate held
    /// alone, where it is to be read.
    fn place_of(&self, index: &Index<'_>, key: Key, may_wait: bool) -> Result<Found> {
        let has = |place: &u32| index.shared_extent(*place).key == key;
        let places = self.gates.lock(PLACES_GATE, PATIENCE)?;
        let Some(place) = (0..SHARED_EXTENTS).find(has) else {
            let (place, gate) = self.free_place(index)?;
            let new = SharedExtent {
                key,
                chunk: index.shared_extent(place).chunk,
                ..SharedExtent::default()
            };
            index.set_shared_extent(place, new);
            return Ok(Found::At(place, gate));
        };
        drop(places);
        let share = match may_wait {
            true => Some(self.gates.share(gate_of(place), PATIENCE)?),
            false => self.gates.try_share(gate_of(place))?,
        };
        let Some(gate) = share else {
            return Ok(Found::Busy);
        };
        if index.shared_extent(place).is_there {
            // Others may have wanted many extents meanwhile.
            return Ok(has(&place)
                .then_some(Found::At(place, gate))
                .unwrap_or(Found::Lost));
        }
        // Who began to read it failed or died.
        drop(gate);
        let gate = self.gates.lock(gate_of(place), PATIENCE)?;
        Ok(has(&place)
            .then_some(Found::At(place, gate))
            .unwrap_or(Found::Lost))
    }

    /// The oldest place that nobody uses, or else the oldest one, with its gate held.
    fn free_place(&self, index: &Index<'_>) -> Result<(u32, Gate)> {
        for _ in 0..SHARED_EXTENTS {
            let place = index.next_shared();
            if let Some(gate) = self.gates.try_lock(gate_of(place))? {
                return Ok((place, gate));
            }
        }
        let place = index.next_shared();
        Ok((place, self.gates.lock(gate_of(place), PATIENCE)?))
    }

    /// Lets the next rank that wants this extent read it.
    fn forget(&self, index: &Index<'_>, place: u32, key: Key) {
        if let Ok(_gate) = self.gates.lock(gate_of(place), PATIENCE)
            && index.shared_extent(place).key == key
        {
            index.set_shared_extent(
                place,
                SharedExtent {
                    is_there: false,
                    ..index.shared_extent(place)
                },
            );
        }
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

/// Where an extent is.
enum Found {
    At(u32, Gate),
    /// Another rank holds the gate alone.
    Busy,
    /// Nowhere any more.
    Lost,
}

fn gate_of(place: u32) -> u64 {
    PLACES_GATE + 1 + u64::from(place)
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
