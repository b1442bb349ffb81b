//! Defines the head of the pool's memory: its shape, and the offset of each shared part.
//!
//! How: 64 bytes describe the shape; all offsets follow from it by checked arithmetic. A process
//! that attaches copies those bytes once, and from then on uses only its own copy.
//!
//! Invariants
//! 1. A layout is made only from a shape whose counts are all bounded and whose total fits.
//! 2. Parts never overlap; the chunk area starts at a multiple of 2 MiB.
//!
//! Faults survived: an invalid head (refused, with what was found).
//! Not here: the mapping itself (see [`crate::pool`]).

use orcheck_format::sabotage::{Switch, off};
use orcheck_format::{Error, Result};

/// The shape of a pool: how much memory it has, and how many shared words and rings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolShape {
    /// Size of a chunk in bytes; a multiple of 4096, at most 1 GiB.
    pub chunk_bytes: u32,
    /// Number of chunks; 1 to 16,777,216.
    pub chunk_count: u32,
    /// Number of shared 64-bit words; at most 1,048,576.
    pub words: u32,
    /// Number of rings; at most 65,536.
    pub rings: u32,
    /// Number of entries of each ring; 1 to 1,048,576 if there are rings.
    pub ring_entries: u32,
}

impl PoolShape {
    /// The default chunk size: 4 MiB.
    pub const CHUNK_BYTES: u32 = 4 << 20;

    /// A pool of chunks of the default size that holds at least `len_bytes`.
    pub fn of_len(len_bytes: u64, words: u32, rings: u32, ring_entries: u32) -> Result<PoolShape> {
        let chunks = len_bytes.div_ceil(u64::from(Self::CHUNK_BYTES)).max(1);
        let chunk_count = u32::try_from(chunks)
            .map_err(|_| Error::invalid(format!("pool of {len_bytes} bytes: too large")))?;
        let shape = PoolShape {
            chunk_bytes: Self::CHUNK_BYTES,
            chunk_count,
            words,
            rings,
            ring_entries,
        };
        Layout::of(shape).map(|_| shape)
    }

    /// Total length of all chunks.
    #[must_use]
    pub fn len_bytes(&self) -> u64 {
        u64::from(self.chunk_bytes) * u64::from(self.chunk_count)
    }
}

pub(crate) const HEAD_BYTES: usize = 64;
const MAGIC: [u8; 8] = *b"ORCKPOOL";
const VERSION: u32 = 2;
const AREA_ALIGNMENT: u64 = 2 << 20;
/// One cache line: words that different processes write do not share one.
pub(crate) const LINE_BYTES: u64 = 64;
/// Bytes of one ring entry.
pub(crate) const RING_ENTRY_BYTES: u64 = 64;

/// Offsets in bytes from the start of the mapping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Layout {
    pub freed: u64,
    pub freed_waiters: u64,
    pub gate: u64,
    pub gate_waiters: u64,
    pub words: u64,
    pub taken: u64,
    pub backed: u64,
    pub rings: u64,
    pub ring_stride: u64,
    pub area: u64,
    pub total: u64,
    pub bitmap_words: u32,
}

impl Layout {
    pub(crate) fn of(shape: PoolShape) -> Result<Layout> {
        let check = |name: &str, value: u32, least: u32, most: u32| {
            if (least..=most).contains(&value) {
                return Ok(());
            }
            Err(Error::invalid(format!(
                "pool: expected {name} of {least} to {most}, found {value}"
            )))
        };
        check("chunk_bytes", shape.chunk_bytes, 4096, 1 << 30)?;
        check("chunk_count", shape.chunk_count, 1, 1 << 24)?;
        check("words", shape.words, 0, 1 << 20)?;
        check("rings", shape.rings, 0, 1 << 16)?;
        check(
            "ring_entries",
            shape.ring_entries,
            u32::from(shape.rings > 0),
            1 << 20,
        )?;
        if !shape.chunk_bytes.is_multiple_of(4096) {
            return Err(Error::invalid(format!(
                "pool: expected chunk_bytes in multiples of 4096, found {}",
                shape.chunk_bytes
            )));
        }
        // The bounds above keep every sum below 2^63.
        let bitmap_words = shape.chunk_count.div_ceil(64);
        let bitmap_bytes = (u64::from(bitmap_words) * 8).next_multiple_of(LINE_BYTES);
        let words = 5 * LINE_BYTES;
        let taken = words + u64::from(shape.words) * LINE_BYTES;
        let backed = taken + bitmap_bytes;
        let rings = backed + bitmap_bytes;
        let ring_stride = 2 * LINE_BYTES + u64::from(shape.ring_entries) * RING_ENTRY_BYTES;
        let area = (rings + u64::from(shape.rings) * ring_stride).next_multiple_of(AREA_ALIGNMENT);
        Ok(Layout {
            freed: LINE_BYTES,
            freed_waiters: 2 * LINE_BYTES,
            gate: 3 * LINE_BYTES,
            gate_waiters: 4 * LINE_BYTES,
            words,
            taken,
            backed,
            rings,
            ring_stride,
            area,
            total: area + shape.len_bytes(),
            bitmap_words,
        })
    }
}

pub(crate) fn encode(shape: PoolShape, total: u64) -> [u8; HEAD_BYTES] {
    let mut head = [0; HEAD_BYTES];
    head[0..8].copy_from_slice(&MAGIC);
    let fields = [
        VERSION,
        shape.chunk_bytes,
        shape.chunk_count,
        shape.words,
        shape.rings,
        shape.ring_entries,
    ];
    for (i, field) in fields.iter().enumerate() {
        head[8 + 4 * i..12 + 4 * i].copy_from_slice(&field.to_le_bytes());
    }
    head[32..40].copy_from_slice(&total.to_le_bytes());
    head
}

/// The shape and layout of a head, checked against the size of the memory that holds it.
pub(crate) fn decode(head: &[u8; HEAD_BYTES], file_len: u64) -> Result<(PoolShape, Layout)> {
    if head[0..8] != MAGIC {
        return Err(Error::corrupt(format!(
            "pool: expected the magic {MAGIC:02x?}, found {:02x?}",
            &head[0..8]
        )));
    }
    let field = |i: usize| {
        let mut bytes = [0; 4];
        bytes.copy_from_slice(&head[8 + 4 * i..12 + 4 * i]);
        u32::from_le_bytes(bytes)
    };
    if field(0) != VERSION && !off(Switch::PoolVersion) {
        return Err(Error::unsupported(format!(
            "pool: expected version {VERSION}, found {}",
            field(0)
        ))
        .next("use the same version of Orcheck for all processes of a node"));
    }
    let shape = PoolShape {
        chunk_bytes: field(1),
        chunk_count: field(2),
        words: field(3),
        rings: field(4),
        ring_entries: field(5),
    };
    let layout = Layout::of(shape)?;
    let mut total = [0; 8];
    total.copy_from_slice(&head[32..40]);
    let total = u64::from_le_bytes(total);
    if (total != layout.total || file_len != layout.total) && !off(Switch::PoolSize) {
        return Err(Error::corrupt(format!(
            "pool: expected {} bytes for this shape, found {total} in the head and {file_len} of memory",
            layout.total
        )));
    }
    Ok((shape, layout))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: PoolShape = PoolShape {
        chunk_bytes: 8192,
        chunk_count: 70,
        words: 3,
        rings: 2,
        ring_entries: 5,
    };

    #[test]
    fn parts_do_not_overlap() {
        let layout = Layout::of(SHAPE).unwrap();
        assert!(layout.words >= layout.gate_waiters + 4);
        assert_eq!(layout.taken - layout.words, 3 * 64);
        assert!(layout.backed >= layout.taken + 16);
        assert!(layout.rings >= layout.backed + 16);
        assert!(layout.area >= layout.rings + 2 * layout.ring_stride);
        assert_eq!(layout.area % AREA_ALIGNMENT, 0);
        assert_eq!(layout.total, layout.area + 70 * 8192);
        assert_eq!(
            decode(&encode(SHAPE, layout.total), layout.total).unwrap(),
            (SHAPE, layout)
        );
    }

    #[test]
    fn nonsense_is_refused() {
        let total = Layout::of(SHAPE).unwrap().total;
        let good = encode(SHAPE, total);
        // Breaks if: `decode` does not compare the totals.
        assert!(decode(&good, total - 4096).is_err());
        for at in 0..40 {
            for bit in 0..8 {
                let mut bad = good;
                bad[at] ^= 1 << bit;
                assert!(
                    decode(&bad, total).is_err() || at >= 20,
                    "byte {at} bit {bit}"
                );
            }
        }
        for shape in [
            PoolShape {
                chunk_bytes: 4095,
                ..SHAPE
            },
            PoolShape {
                chunk_bytes: 4097,
                ..SHAPE
            },
            PoolShape {
                chunk_bytes: u32::MAX,
                ..SHAPE
            },
            PoolShape {
                chunk_count: 0,
                ..SHAPE
            },
            PoolShape {
                words: u32::MAX,
                ..SHAPE
            },
            PoolShape {
                rings: u32::MAX,
                ..SHAPE
            },
            PoolShape {
                ring_entries: 0,
                ..SHAPE
            },
        ] {
            assert!(Layout::of(shape).is_err(), "{shape:?}");
        }
    }
}
