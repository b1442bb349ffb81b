//! Lays out a snapshot: cuts regions into pieces and packs pieces into segments.
//!
//! A rank's snapshot is one **stream**: a sequence of segments, each a multiple of a block long. A
//! packed segment fills at most one pool chunk with pieces of regions. A borrowed segment is a
//! piece of lent pool memory and is written in place.
//!
//! ```text
//! stream  |  packed (≤ chunk)         |  packed          |  borrowed (lent pool memory)   | …
//! pieces  |a|b|....c.............0000 |....c........0000 |...........d....................|
//! ```
//!
//! Invariants:
//! 1. The pieces of a region, in order, cover it without gap or overlap.
//! 2. No piece crosses a multiple of `cut_bytes` in the stream (a stripe unit in mode
//!    `traditional`).
//! 3. Segment lengths are multiples of `BLOCK_BYTES`; bytes outside all pieces are zero.
//! 4. Regions of at least `ALIGN_FROM_BYTES` start on a block boundary.
//!
//! Pure. Not here: copying (`stage.rs`) and checksums.

use orcheck_format::disk::BLOCK_BYTES;

/// Regions of at least this length start on a block boundary, so that they can be read with direct
/// I/O and mapped.
pub const ALIGN_FROM_BYTES: u64 = 64 * 1024;
/// Alignment of smaller regions inside a segment.
const SMALL_ALIGN_BYTES: u64 = 64;

/// How one region enters the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Entry {
    /// Copied into the pool while the program waits.
    Copied {
        /// Length of the region.
        len_bytes: u64,
    },
    /// Lent: copied into the pool by the rank's own CP-thread while the program continues.
    Streamed {
        /// Length of the region.
        len_bytes: u64,
    },
    /// Written from pool memory that the program lends; the offset is a multiple of a block.
    Borrowed {
        /// Length of the region.
        len_bytes: u64,
        /// Where it lies in the pool.
        pool_at_bytes: u64,
    },
}

/// Part of one region inside a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// Index of the region in the order given to [`Plan::new`].
    pub region: usize,
    /// Where the piece begins in the region.
    pub region_at_bytes: u64,
    /// Where it begins in the segment.
    pub segment_at_bytes: u64,
    /// Its length.
    pub len_bytes: u64,
}

/// The unit of transfer from a rank to its CP-thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segment {
    /// Where it begins in the stream.
    pub stream_at_bytes: u64,
    /// Its length, a multiple of `BLOCK_BYTES`.
    pub len_bytes: u64,
    /// Pool offset when borrowed; `None` when packed into a chunk.
    pub borrowed_at_bytes: Option<u64>,
    /// What it holds, in order.
    pub pieces: Vec<Piece>,
}

/// The whole stream of one snapshot.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    /// Segments in stream order.
    pub segments: Vec<Segment>,
    /// Length of the stream.
    pub stream_len_bytes: u64,
    /// Number of leading segments that are copied while the program waits.
    pub foreground: usize,
}

struct Packer {
    plan: Plan,
    chunk_bytes: u64,
    cut_bytes: u64,
    /// The next piece begins a new segment.
    fresh: bool,
}

impl Plan {
    /// Lays out `entries`: the copied ones first, then the streamed, then the borrowed ones. Each
    /// kind keeps the given order and begins a new segment. `chunk_bytes` and `cut_bytes` must be
    /// multiples of a block.
    #[must_use]
    pub fn new(entries: &[Entry], chunk_bytes: u64, cut_bytes: u64) -> Self {
        let mut packer = Packer {
            plan: Plan {
                segments: Vec::new(),
                stream_len_bytes: 0,
                foreground: 0,
            },
            chunk_bytes,
            cut_bytes,
            fresh: true,
        };
        for (region, entry) in entries.iter().enumerate() {
            if let Entry::Copied { len_bytes } = *entry {
                packer.pack(region, 0, len_bytes, true);
            }
        }
        packer.close();
        let foreground = packer.plan.segments.len();
        packer.plan.foreground = foreground;
        packer.fresh = true;
        for (region, entry) in entries.iter().enumerate() {
            if let Entry::Streamed { len_bytes } = *entry {
                packer.pack(region, 0, len_bytes, true);
            }
        }
        for (region, entry) in entries.iter().enumerate() {
            if let Entry::Borrowed {
                len_bytes,
                pool_at_bytes,
            } = *entry
            {
                packer.borrow(region, len_bytes, pool_at_bytes);
            }
        }
        packer.close();
        if cfg!(debug_assertions) {
            packer
                .plan
                .check_invariants(entries, chunk_bytes, cut_bytes);
        }
        packer.plan
    }

    /// Panics if the plan does not hold what the module promises.
    fn check_invariants(&self, entries: &[Entry], chunk_bytes: u64, cut_bytes: u64) {
        let mut covered = vec![0; entries.len()];
        let mut end = 0;
        for segment in &self.segments {
            assert_eq!(segment.stream_at_bytes, end, "{segment:?}");
            // 3.
            assert!(segment.len_bytes.is_multiple_of(BLOCK_BYTES as u64));
            end += segment.len_bytes;
            let packed = segment.borrowed_at_bytes.is_none();
            assert!(!packed || segment.len_bytes <= chunk_bytes, "{segment:?}");
            for piece in &segment.pieces {
                // 1.
                let done: &mut u64 = &mut covered[piece.region];
                assert_eq!(piece.region_at_bytes, *done, "{piece:?}");
                *done += piece.len_bytes;
                // 2.
                let from = segment.stream_at_bytes + piece.segment_at_bytes;
                assert!(piece.len_bytes > 0, "{piece:?}");
                assert_eq!(from / cut_bytes, (from + piece.len_bytes - 1) / cut_bytes);
            }
        }
        assert_eq!(end, self.stream_len_bytes);
        let lens = entries.iter().map(|entry| match *entry {
            Entry::Copied { len_bytes }
            | Entry::Streamed { len_bytes }
            | Entry::Borrowed { len_bytes, .. } => len_bytes,
        });
        assert!(lens.eq(covered), "a region is not covered");
    }

    /// Number of pool chunks that the packed segments take.
    #[must_use]
    pub fn packed_chunks(&self) -> u64 {
        self.segments
            .iter()
            .filter(|segment| segment.borrowed_at_bytes.is_none())
            .count() as u64
    }
}

impl Packer {
    /// Rounds the open segment up to a block and fixes the stream length.
    fn close(&mut self) {
        if let Some(last) = self.plan.segments.last_mut() {
            last.len_bytes = last.len_bytes.next_multiple_of(BLOCK_BYTES as u64);
            self.plan.stream_len_bytes = last.stream_at_bytes + last.len_bytes;
        }
    }

    fn open(&mut self, borrowed_at_bytes: Option<u64>) {
        self.close();
        self.fresh = false;
        self.plan.segments.push(Segment {
            stream_at_bytes: self.plan.stream_len_bytes,
            len_bytes: 0,
            borrowed_at_bytes,
            pieces: Vec::new(),
        });
    }

    fn pack(&mut self, region: usize, mut region_at_bytes: u64, len_bytes: u64, align: bool) {
        let mut left = len_bytes;
        let align_bytes = if align && len_bytes >= ALIGN_FROM_BYTES {
            BLOCK_BYTES as u64
        } else {
            SMALL_ALIGN_BYTES
        };
        let mut first = true;
        while left > 0 {
            let fits = matches!(self.plan.segments.last(),
                Some(last) if last.borrowed_at_bytes.is_none()
                    && last.len_bytes.next_multiple_of(align_bytes) < self.chunk_bytes);
            if self.fresh || !fits {
                self.open(None);
            }
            let (chunk_bytes, cut_bytes) = (self.chunk_bytes, self.cut_bytes);
            let Some(segment) = self.plan.segments.last_mut() else {
                return;
            };
            if first {
                segment.len_bytes = segment.len_bytes.next_multiple_of(align_bytes);
                first = false;
            }
            let at = segment.len_bytes;
            let stream_at = segment.stream_at_bytes + at;
            let to_cut = cut_bytes - stream_at % cut_bytes;
            let take = left.min(chunk_bytes - at).min(to_cut);
            segment.pieces.push(Piece {
                region,
                region_at_bytes,
                segment_at_bytes: at,
                len_bytes: take,
            });
            segment.len_bytes += take;
            region_at_bytes += take;
            left -= take;
        }
    }

    fn borrow(&mut self, region: usize, len_bytes: u64, pool_at_bytes: u64) {
        let whole = len_bytes / BLOCK_BYTES as u64 * BLOCK_BYTES as u64;
        let mut at = 0;
        while at < whole {
            self.open(Some(pool_at_bytes + at));
            let to_cut = self.cut_bytes - self.plan.stream_len_bytes % self.cut_bytes;
            let take = (whole - at).min(to_cut);
            let Some(segment) = self.plan.segments.last_mut() else {
                return;
            };
            segment.len_bytes = take;
            segment.pieces.push(Piece {
                region,
                region_at_bytes: at,
                segment_at_bytes: 0,
                len_bytes: take,
            });
            at += take;
        }
        // The tail is shorter than a block. The bytes behind it may be other data of the program,
        // so the tail goes through the pool, where its padding is known to be zero.
        self.pack(region, whole, len_bytes - whole, false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const CHUNK: u64 = 64 * 1024;

    fn check(entries: &[Entry], cut: u64) {
        let plan = Plan::new(entries, CHUNK, cut);
        let mut covered: Vec<u64> = vec![0; entries.len()];
        let mut stream_at = 0;
        for (number, segment) in plan.segments.iter().enumerate() {
            for piece in &segment.pieces {
                let copied = matches!(entries[piece.region], Entry::Copied { .. });
                assert_eq!(copied, number < plan.foreground);
            }
            assert_eq!(segment.stream_at_bytes, stream_at);
            assert!(segment.len_bytes > 0 && segment.len_bytes.is_multiple_of(BLOCK_BYTES as u64));
            if segment.borrowed_at_bytes.is_none() {
                assert!(segment.len_bytes <= CHUNK);
            }
            let mut end = 0;
            for piece in &segment.pieces {
                assert!(piece.segment_at_bytes >= end && piece.len_bytes > 0);
                end = piece.segment_at_bytes + piece.len_bytes;
                assert_eq!(piece.region_at_bytes, covered[piece.region]);
                covered[piece.region] += piece.len_bytes;
                let from = segment.stream_at_bytes + piece.segment_at_bytes;
                assert_eq!(from / cut, (from + piece.len_bytes - 1) / cut);
                let len = match entries[piece.region] {
                    Entry::Copied { len_bytes }
                    | Entry::Streamed { len_bytes }
                    | Entry::Borrowed { len_bytes, .. } => len_bytes,
                };
                if piece.region_at_bytes == 0 && len >= ALIGN_FROM_BYTES {
                    assert!(from.is_multiple_of(BLOCK_BYTES as u64));
                }
                if let (Some(at), Entry::Borrowed { pool_at_bytes, .. }) =
                    (segment.borrowed_at_bytes, entries[piece.region])
                {
                    assert_eq!(at, pool_at_bytes + piece.region_at_bytes);
                }
            }
            assert!(end <= segment.len_bytes);
            stream_at += segment.len_bytes;
        }
        assert_eq!(plan.stream_len_bytes, stream_at);
        for (entry, covered) in entries.iter().zip(covered) {
            let (Entry::Copied { len_bytes }
            | Entry::Streamed { len_bytes }
            | Entry::Borrowed { len_bytes, .. }) = *entry;
            assert_eq!(len_bytes, covered);
        }
    }

    proptest! {
        #[test]
        fn every_byte_lies_exactly_once(
            lens in proptest::collection::vec((0u64..300_000, 0u8..3), 0..12),
            cut in prop_oneof![Just(CHUNK), Just(16 * 1024), Just(40 * 1024)],
        ) {
            let entries: Vec<Entry> = lens.iter().enumerate().map(|(i, &(len_bytes, kind))| {
                match kind {
                    0 => Entry::Copied { len_bytes },
                    1 => Entry::Streamed { len_bytes },
                    _ => Entry::Borrowed { len_bytes, pool_at_bytes: i as u64 * 1_048_576 },
                }
            }).collect();
            // Breaks if: pieces rely on the chunk being a multiple of the longest piece.
            check(&entries, cut);
        }
    }

    #[test]
    fn small_regions_share_a_segment() {
        let plan = Plan::new(&[Entry::Copied { len_bytes: 8 }; 10], CHUNK, CHUNK);
        assert_eq!(plan.segments.len(), 1);
        assert_eq!(plan.stream_len_bytes, BLOCK_BYTES as u64);
        assert_eq!(Plan::new(&[], CHUNK, CHUNK).stream_len_bytes, 0);
    }
}
