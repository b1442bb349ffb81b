//! Lets the ranks of a node read and verify an extent once.
//!
//! How: an extent that more than one rank may need goes through a chunk of the node's pool. The
//! last few extents that were read have a place there, each with a gate. Whoever wants an extent
//! looks for its key; if it is nowhere, it takes the oldest place that nobody uses, and reads and
//! verifies the extent there while it holds the gate alone. Then it shares the gate, and with it
//! all who want the extent copy what they need of it out, and verify it block by block
//! (`shared/blocks.rs`). The ranks read different extents at the same time (`shared/order.rs`). As
//! they want extents in about the same order, a few places are enough.
//!
//! Invariants:
//! 1. A rank takes a block only if its CRC, computed over the rank's own copy, is the one that the
//!    reader computed when it verified the extent. The CRCs of all blocks add up to that in the
//!    manifest or, of encrypted extents, to that of the bytes that were verified.
//! 2. Two ranks never read the same extent while it has a place, unless the first one fails. A
//!    place is given to another extent only while nobody uses it.
//! 3. Sharing is never needed: what cannot be shared (no free chunk, a gate that does not open, an
//!    extent longer than a chunk) each rank reads itself.
//! 4. At most [`SHARED_EXTENTS`] chunks are taken, and all are returned after the restart.
//! 5. The gate of the places is taken before that of a place, and never after it.
//!
//! Survives: a rank that dies or hangs at any point (its gate opens, or the others stop sharing),
//! and a process that overwrites the pool (a CRC disagrees, and the rank reads the extent itself).
//!
//! Not here: what a rank wants of an extent (`all_ranks.rs`), reading it (`reader.rs`).

use crate::node::{Index, IndexShape, SHARED_BLOCKS, SHARED_EXTENTS, SharedExtent};
use orcheck_format::sabotage::{Switch, off};
use orcheck_format::{CrcShift, Rank, Result, crc64};
use orcheck_io::memory::{Span, copy_into};
use orcheck_pool::{Chunk, Gate, Gates, Pool};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

mod blocks;
mod order;
#[cfg(test)]
mod tests;

pub(crate) use blocks::{Blocks, all};
pub(crate) use order::Order;

/// The gate of the places, followed by that of each.
const PLACES_GATE: u64 = 1 << 32;

/// Longest wait for a rank that reads an extent.
const PATIENCE: Duration = Duration::from_secs(10);

/// Extents shorter than this are not shared: the gate costs more than to read them, many at once.
pub(crate) const LEAST_BYTES: usize = 16 << 10;

/// Number of blocks that are copied out at once: they stay in the processor's cache.
const WINDOW_BLOCKS: usize = 32;

/// What names an extent: the manifest that it is from, rank, region and offset.
pub(crate) type Key = [u64; 2];

/// The pool of a node, as a place for extents that several of its ranks need.
pub struct SharedReads {
    pool: Arc<Pool>,
    gates: Arc<Gates>,
    shape: IndexShape,
    node: usize,
    block_bytes: usize,
    shift: Arc<CrcShift>,
    /// Whether a gate once did not open in time.
    given_up: AtomicBool,
    window: Mutex<Vec<u8>>,
}

/// An extent that a rank wants.
#[derive(Clone, Copy)]
pub(crate) struct Extent<'e> {
    pub key: Key,
    /// The CRC-64/NVME of its bytes; `None` if no manifest has it.
    pub crc: Option<u64>,
    pub len_bytes: usize,
    /// Which of its bytes are wanted.
    pub wanted: &'e dyn Fn() -> Vec<Range<u64>>,
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
        let chunk_bytes = pool.shape().chunk_bytes;
        let block_bytes = chunk_bytes.div_ceil(SHARED_BLOCKS) as usize;
        (shape.ranks > 1).then(|| Self {
            pool,
            gates,
            shape,
            node,
            block_bytes,
            shift: Arc::new(CrcShift::by(block_bytes as u64)),
            given_up: AtomicBool::new(false),
            window: Mutex::default(),
        })
    }

    /// The number of the node.
    pub(crate) fn node(&self) -> usize {
        self.node
    }

    /// Whether extents of this length are shared.
    pub(crate) fn takes(&self, len_bytes: u64) -> bool {
        (LEAST_BYTES as u64..=u64::from(self.pool.shape().chunk_bytes)).contains(&len_bytes)
    }

    /// Takes of an extent the blocks that hold what `wanted` says, from where to where; `crc`: that
    /// of all its bytes, if a manifest has it. Unless another rank has done so, `read` reads and
    /// verifies the extent into the given memory, and says what the CRCs of its blocks are. `put`
    /// is called with verified bytes and where they begin; unless this returns `Taken`, others are
    /// missing. `Busy` only if it may not wait.
    ///
    /// # Errors
    /// Those of `put`.
    pub(crate) fn take(
        &self,
        of: Extent<'_>,
        may_wait: bool,
        read: &mut dyn FnMut(Span, &mut Blocks) -> Result<()>,
        put: &mut dyn FnMut(usize, &[u8]) -> Result<()>,
    ) -> Result<Shared> {
        if !self.takes(of.len_bytes as u64) || self.given_up.load(Ordering::Relaxed) {
            return Ok(Shared::No);
        }
        let index = Index::new(&self.pool, self.shape);
        let (place, gate, is_alone) = match self.place_of(&index, of.key, may_wait) {
            Ok(Found::At(place, gate, is_alone)) => (place, gate, is_alone),
            Ok(Found::Busy) => return Ok(Shared::Busy),
            Ok(Found::Lost) => return Ok(Shared::No),
            Err(_) => {
                self.given_up.store(true, Ordering::Relaxed);
                return Ok(Shared::No);
            }
        };
        if is_alone
            && !(self.read_for_all(&index, place, of.len_bytes, read) && gate.let_in().is_ok())
        {
            return Ok(Shared::No);
        }
        match self.copy_out(&index, place, of, put)? {
            true => Ok(Shared::Taken),
            false => {
                drop(gate);
                self.forget(&index, place, of.key);
                Ok(Shared::No)
            }
        }
    }

    /// Reads the extent at `place`, whose gate is held alone, unless that was done meanwhile. What
    /// is wrong with it, the rank finds out by itself: it may have been the pool.
    fn read_for_all(
        &self,
        index: &Index<'_>,
        place: u32,
        len_bytes: usize,
        read: &mut dyn FnMut(Span, &mut Blocks) -> Result<()>,
    ) -> bool {
        let mut extent = index.shared_extent(place);
        if extent.is_there {
            return true;
        }
        let Some(chunk) = self.chunk_of(index, place, &mut extent) else {
            return false;
        };
        let memory = self.pool.run_span(chunk.index(), 1).sub(0, len_bytes);
        let mut blocks = self.blocks();
        if read(memory, &mut blocks).is_err() {
            return false;
        }
        extent.crc = blocks.sum(blocks.crcs().iter().copied(), len_bytes);
        extent.is_there = true;
        index.set_block_crcs(place, blocks.crcs());
        index.set_shared_extent(place, extent);
        true
    }

    /// No blocks yet.
    fn blocks(&self) -> Blocks {
        Blocks::new(self.block_bytes, &self.shift)
    }

    /// Passes on the wanted blocks, window by window; `false` if one is not what was verified.
    fn copy_out(
        &self,
        index: &Index<'_>,
        place: u32,
        of: Extent<'_>,
        put: &mut dyn FnMut(usize, &[u8]) -> Result<()>,
    ) -> Result<bool> {
        let extent = index.shared_extent(place);
        let chunk = (extent.chunk).map(|chunk| Chunk::from_index(&self.pool, chunk));
        let Some(Ok(chunk)) = chunk else {
            return Ok(false);
        };
        let from = self.pool.run_span(chunk.index(), 1).sub(0, of.len_bytes);
        let all = 0..of.len_bytes.div_ceil(self.block_bytes) as u32;
        let crcs: Vec<u64> = all.map(|block| index.block_crc(place, block)).collect();
        // Breaks if: it is not compared; another extent under this key would be taken.
        let sum = self.blocks().sum(crcs.iter().copied(), of.len_bytes);
        if sum != of.crc.unwrap_or(extent.crc) && !off(Switch::SharedVerified) {
            return Ok(false);
        }
        let mut window = self.window.lock().unwrap_or_else(PoisonError::into_inner);
        window.resize(WINDOW_BLOCKS * self.block_bytes, 0);
        for range in blocks::of((of.wanted)().into_iter(), self.block_bytes, of.len_bytes) {
            for at in range.clone().step_by(window.len()) {
                let len = window.len().min(range.end - at);
                let part = window.get_mut(..len).unwrap_or_default();
                copy_into(from.sub(at, len), part);
                let known = crcs.iter().skip(at / self.block_bytes);
                let good = (part.chunks(self.block_bytes).zip(known))
                    .all(|(block, crc)| crc64(block) == *crc);
                // Breaks if: this is not compared; bytes that a stray write of another process
                // changed in the pool would reach the program.
                if !good && !off(Switch::SharedVerified) {
                    return Ok(false);
                }
                put(at, part)?;
            }
        }
        Ok(true)
    }

    /// The place of an extent: that which it has, or the oldest one that nobody uses.
    fn place_of(&self, index: &Index<'_>, key: Key, may_wait: bool) -> Result<Found> {
        if let Some(found) = self.known(index, key, may_wait)? {
            return Ok(found);
        }
        let places = self.gates.lock(PLACES_GATE, PATIENCE)?;
        if self.find(index, key).is_some() {
            // Another rank came first.
            drop(places);
            return Ok(self.known(index, key, may_wait)?.unwrap_or(Found::Lost));
        }
        // Nobody waits while it holds this gate: all others would.
        for _ in 0..SHARED_EXTENTS {
            let place = index.next_shared();
            // Breaks if: it is given away while others use it; they would read it again.
            let gate = match off(Switch::PlaceInUse) {
                false => self.gates.try_lock(gate_of(place))?,
                true => self.gates.try_share(gate_of(place))?,
            };
            if let Some(gate) = gate {
                let chunk = index.shared_extent(place).chunk;
                let nothing = SharedExtent::default();
                index.set_shared_extent(
                    place,
                    SharedExtent {
                        key,
                        chunk,
                        ..nothing
                    },
                );
                return Ok(Found::At(place, gate, true));
            }
        }
        Ok(Found::Lost)
    }

    fn find(&self, index: &Index<'_>, key: Key) -> Option<u32> {
        (0..SHARED_EXTENTS).find(|place| index.shared_extent(*place).key == key)
    }

    /// The place that an extent has: with a share in its gate or, if it is not there yet, with its
    /// gate held alone.
    fn known(&self, index: &Index<'_>, key: Key, may_wait: bool) -> Result<Option<Found>> {
        let Some(place) = self.find(index, key) else {
            return Ok(None);
        };
        let byte = gate_of(place);
        let gate = match may_wait {
            true => Some(self.gates.share(byte, PATIENCE)?),
            false => self.gates.try_share(byte)?,
        };
        let Some(mut gate) = gate else {
            return Ok(Some(Found::Busy));
        };
        // If it is not there, who began to read it failed or died.
        let is_alone = !index.shared_extent(place).is_there;
        if is_alone {
            drop(gate);
            gate = match may_wait {
                true => self.gates.lock(byte, PATIENCE)?,
                false => match self.gates.try_lock(byte)? {
                    Some(gate) => gate,
                    None => return Ok(Some(Found::Busy)),
                },
            };
        }
        // Others may have wanted many extents meanwhile.
        let has = index.shared_extent(place).key == key;
        Ok(has.then_some(Found::At(place, gate, is_alone)))
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
    /// Also whether the gate is held alone.
    At(u32, Gate, bool),
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
