//! What the ranks of a node share while they restart: which extents are in which chunks.
//!
//! Not here: who reads what when (`restart/shared.rs`).

use super::{Index, SHARED};
use std::sync::atomic::Ordering::AcqRel;

/// Maximum number of extents that the ranks of a node share at the same time while they restart.
pub(crate) const SHARED_EXTENTS: u32 = 32;
/// Maximum number of blocks of an extent, each of which has a CRC here.
pub(crate) const SHARED_BLOCKS: u32 = 512;
/// Words of an extent.
const OF_EXTENT: u32 = 5 + SHARED_BLOCKS;
/// All words: a counter, and those of each extent.
pub(super) const WORDS: u32 = 1 + OF_EXTENT * SHARED_EXTENTS;

/// An extent that one rank of the node has read and verified for all.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct SharedExtent {
    /// Which extent it is; zeros: none.
    pub key: [u64; 2],
    /// Whether it was read and verified.
    pub is_there: bool,
    /// The CRC-64/NVME of its bytes.
    pub crc: u64,
    /// The chunk that holds them.
    pub chunk: Option<u32>,
}

impl Index<'_> {
    /// The place for the next extent that is shared: all in turn.
    pub(crate) fn next_shared(&self) -> u32 {
        let given = self.pool.word(SHARED).fetch_add(1, AcqRel);
        (given % u64::from(SHARED_EXTENTS)) as u32
    }

    /// The CRC-64/NVME of a block of the extent at `place`.
    pub(crate) fn block_crc(&self, place: u32, block: u32) -> u64 {
        self.get(Self::shared_base(place) + 5 + block % SHARED_BLOCKS)
    }

    /// Says what the CRCs of the first blocks are. Call this only while holding the gate of `place`
    /// alone.
    pub(crate) fn set_block_crcs(&self, place: u32, crcs: &[u64]) {
        let base = Self::shared_base(place) + 5;
        for (word, crc) in (base..base + SHARED_BLOCKS).zip(crcs) {
            self.set(word, *crc);
        }
    }

    fn shared_base(place: u32) -> u32 {
        SHARED + 1 + place % SHARED_EXTENTS * OF_EXTENT
    }

    /// What is known of the extent at `place`.
    pub(crate) fn shared_extent(&self, place: u32) -> SharedExtent {
        let [key, more, is_there, crc, chunk] =
            [0, 1, 2, 3, 4].map(|word| self.get(Self::shared_base(place) + word));
        SharedExtent {
            key: [key, more],
            is_there: is_there != 0,
            crc,
            chunk: (chunk.checked_sub(1)).and_then(|chunk| u32::try_from(chunk).ok()),
        }
    }

    /// Says what is at `place`. Call this only while holding its gate, or while no rank restarts.
    pub(crate) fn set_shared_extent(&self, place: u32, extent: SharedExtent) {
        let [key, more] = extent.key;
        let chunk = extent.chunk.map_or(0, |chunk| u64::from(chunk) + 1);
        let there = u64::from(extent.is_there);
        // Breaks if: a new key is written while the extent of the old one still counts as there; a
        // rank that dies in between would leave it to the others as another one.
        let words = [
            (2, 0),
            (0, key),
            (1, more),
            (3, extent.crc),
            (4, chunk),
            (2, there),
        ];
        for (word, value) in words {
            self.set(Self::shared_base(place) + word, value);
        }
    }

    /// Forgets all shared extents, and the chunks in which they are.
    pub(super) fn forget_shared(&self) {
        let nothing = SharedExtent::default();
        (0..SHARED_EXTENTS).for_each(|place| self.set_shared_extent(place, nothing));
    }
}
