//! Encodes what a rank tells its CP-thread as eight words on a ring in the pool.
//!
//! Invariant: a descriptor that this version did not write, or that was changed since, decodes to
//! nothing, because the first word holds the kind and a checksum of all words. Its contents are
//! checked by their users (`flush.rs`, the pool). Not here: the ring itself (`index.rs`).

#![cfg_attr(
    not(test),
    deny(
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::panic,
        clippy::string_slice,
        clippy::unreachable,
        clippy::unwrap_used
    )
)]

use crate::encoding::EncodePiece;
use crate::node::goes::Goes;
use orcheck_format::sabotage::{Switch, off};
use orcheck_format::{Crc64, Step};

/// A rank's messages to its CP-thread, in this order: `Begin`, segments, `Refers`, `Record`s,
/// `Seal` — or `Fail` at any point after `Begin`. If containers are encoded or the pool is checked,
/// the pieces of a segment precede it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Descriptor {
    /// A snapshot begins.
    Begin {
        /// Step of the checkpoint.
        step: Step,
        /// Length of the stream that follows, or its maximum.
        stream_len_bytes: u64,
        /// Longest extent.
        cut_bytes: u32,
        /// Chunks are freed as they are written, because the pool does not hold all snapshots.
        pipelined: bool,
        /// The stream may turn out shorter: bytes that are already stored are left out.
        may_shrink: bool,
        /// The rank itself returns its chunks (`kept.rs`).
        kept: bool,
        /// The levels that it goes to; the same for all ranks of a checkpoint.
        goes: Goes,
    },
    /// A piece of the segment that follows.
    Piece(EncodePiece),
    /// The next bytes of the stream.
    Segment {
        /// Where they lie in the pool.
        pool_at_bytes: u64,
        /// Their length, a multiple of a block.
        len_bytes: u64,
        /// Chunk to free once written; `None` for lent pool memory.
        chunk: Option<u32>,
    },
    /// The snapshot refers to what the checkpoint of an older step stored.
    Refers {
        /// That step.
        step: Step,
    },
    /// A part of the framed rank record.
    Record {
        /// Where it lies in the pool.
        pool_at_bytes: u64,
        /// Its length.
        len_bytes: u64,
        /// Chunk to free.
        chunk: u32,
    },
    /// The snapshot is complete.
    Seal,
    /// The snapshot will not be completed.
    Fail,
}

impl Descriptor {
    pub(crate) fn encode(self) -> [u64; 8] {
        let mut words = self.words();
        words[0] |= checksum(words);
        words
    }

    fn words(self) -> [u64; 8] {
        match self {
            Self::Begin {
                step,
                stream_len_bytes,
                cut_bytes,
                pipelined,
                may_shrink,
                kept,
                goes,
            } => [
                1,
                step.0,
                stream_len_bytes,
                u64::from(cut_bytes),
                u64::from(pipelined),
                u64::from(may_shrink),
                u64::from(kept),
                goes.bits(),
            ],
            Self::Segment {
                pool_at_bytes,
                len_bytes,
                chunk,
            } => [
                2,
                pool_at_bytes,
                len_bytes,
                chunk.map_or(0, |c| u64::from(c) + 1),
                0,
                0,
                0,
                0,
            ],
            Self::Record {
                pool_at_bytes,
                len_bytes,
                chunk,
            } => [
                3,
                pool_at_bytes,
                len_bytes,
                u64::from(chunk) + 1,
                0,
                0,
                0,
                0,
            ],
            Self::Piece(piece) => {
                let (low, high) = halves(piece.region);
                [
                    7,
                    u64::from(piece.segment_at_bytes) << 32 | u64::from(piece.len_bytes),
                    piece.region_at_bytes,
                    piece.crc_plain,
                    u64::from(piece.element_log2),
                    low,
                    high,
                    u64::from(piece.checked),
                ]
            }
            Self::Seal => [4, 0, 0, 0, 0, 0, 0, 0],
            Self::Fail => [5, 0, 0, 0, 0, 0, 0, 0],
            Self::Refers { step } => [6, step.0, 0, 0, 0, 0, 0, 0],
        }
    }

    pub(crate) fn decode(mut words: [u64; 8]) -> Option<Self> {
        let found = words[0] & !KIND;
        words[0] &= KIND;
        // Breaks if: it is not compared; a flipped bit would free a chunk that another rank is
        // staging into.
        if found != checksum(words) && !off(Switch::DescriptorCrc) {
            return None;
        }
        let chunk = words[3].checked_sub(1).and_then(|c| u32::try_from(c).ok());
        Some(match words[0] {
            1 => Self::Begin {
                step: Step(words[1]),
                stream_len_bytes: words[2],
                cut_bytes: u32::try_from(words[3]).ok()?,
                pipelined: words[4] != 0,
                may_shrink: words[5] != 0,
                kept: words[6] != 0,
                goes: Goes::from_bits(words[7])?,
            },
            2 => Self::Segment {
                pool_at_bytes: words[1],
                len_bytes: words[2],
                chunk,
            },
            3 => Self::Record {
                pool_at_bytes: words[1],
                len_bytes: words[2],
                chunk: chunk?,
            },
            4 => Self::Seal,
            5 => Self::Fail,
            6 => Self::Refers {
                step: Step(words[1]),
            },
            7 => Self::Piece(EncodePiece {
                segment_at_bytes: (words[1] >> 32) as u32,
                len_bytes: words[1] as u32,
                region_at_bytes: words[2],
                crc_plain: words[3],
                element_log2: u8::try_from(words[4]).ok()?,
                region: whole(words[5], words[6]),
                checked: words[7] != 0,
            }),
            _ => return None,
        })
    }
}

/// Bits of the first word that hold the kind of a descriptor.
const KIND: u64 = 0xff;

/// A checksum of a descriptor, without the bits that hold the kind.
fn checksum(words: [u64; 8]) -> u64 {
    let mut crc = Crc64::new();
    for word in words {
        crc.update(&word.to_le_bytes());
    }
    crc.value() & !KIND
}

fn halves(bytes: [u8; 16]) -> (u64, u64) {
    let number = u128::from_le_bytes(bytes);
    (number as u64, (number >> 64) as u64)
}

fn whole(low: u64, high: u64) -> [u8; 16] {
    (u128::from(high) << 64 | u128::from(low)).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_cross_unchanged() {
        let piece = EncodePiece {
            segment_at_bytes: 0x8000_0001,
            len_bytes: 0xffff_fffe,
            region_at_bytes: u64::MAX - 3,
            crc_plain: 0x0123_4567_89ab_cdef,
            element_log2: 4,
            region: std::array::from_fn(|i| i as u8 * 17),
            checked: true,
        };
        let (pool_at_bytes, len_bytes) = (1 << 40, 4096);
        for descriptor in [
            Descriptor::Begin {
                step: Step(9),
                stream_len_bytes: 1 << 50,
                cut_bytes: 65536,
                pipelined: true,
                may_shrink: true,
                kept: true,
                goes: Goes::EVERYWHERE,
            },
            Descriptor::Refers { step: Step(8) },
            Descriptor::Piece(piece),
            Descriptor::Segment {
                pool_at_bytes,
                len_bytes,
                chunk: None,
            },
            Descriptor::Segment {
                pool_at_bytes,
                len_bytes,
                chunk: Some(0),
            },
            Descriptor::Record {
                pool_at_bytes,
                len_bytes,
                chunk: 7,
            },
            Descriptor::Seal,
            Descriptor::Fail,
        ] {
            let words = descriptor.encode();
            assert_eq!(Descriptor::decode(words), Some(descriptor));
            for bit in 0..512 {
                let mut flipped = words;
                flipped[bit / 64] ^= 1 << (bit % 64);
                assert_eq!(Descriptor::decode(flipped), None, "bit {bit}");
            }
        }
        assert_eq!(Descriptor::decode([8; 8]), None);
    }
}
