//! Says what a holder gets of a container: all of it, or the blocks that go into its parity.
//!
//! How: what a holder gets is a stream of its own. The blocks of a container that one holder gets
//! follow each other in it, in the order in which they lie in the container, so that both sides
//! know from an offset in the stream which block it belongs to, and where in that block.
//!
//! Invariants:
//! 1. Every byte of the stream is one byte of the container, and they are in the same order.
//!
//! Pure. Not here: which blocks those are (`orcheck_format::disk::ParityGroup`).

use orcheck_format::disk::{ParityGroup, Pick};

/// What a holder gets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    /// The container: a replica.
    Whole,
    /// Some of its blocks, for parity.
    Blocks(Picks),
}

/// The blocks that one member of a group sends to another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Picks {
    /// Those of each row, ascending.
    picks: Vec<Pick>,
    unit_bytes: u64,
    row_bytes: u64,
}

/// Where a byte of the stream is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct At {
    /// The row.
    pub row: u64,
    /// The block.
    pub pick: Pick,
    /// The byte in the block.
    pub byte: u64,
}

impl Picks {
    /// What `member` sends to `holder`: to itself nothing.
    #[must_use]
    pub fn of(group: &ParityGroup, member: u32, holder: u32) -> Self {
        Self {
            picks: group.picks(member, holder),
            unit_bytes: u64::from(group.unit_bytes),
            row_bytes: group.row_bytes(),
        }
    }

    /// Bytes of the stream in a whole row.
    #[must_use]
    pub fn row_bytes(&self) -> u64 {
        self.picks.len() as u64 * self.unit_bytes
    }

    /// Length of the stream of a container with `len_bytes`.
    #[must_use]
    pub fn bytes_of(&self, len_bytes: u64) -> u64 {
        let (rows, left) = (len_bytes / self.row_bytes, len_bytes % self.row_bytes);
        let of_last = |pick: &Pick| {
            let before = u64::from(pick.data) * self.unit_bytes;
            left.saturating_sub(before).min(self.unit_bytes)
        };
        rows * self.row_bytes() + self.picks.iter().map(of_last).sum::<u64>()
    }

    /// Where byte `at` of the stream is.
    #[must_use]
    pub fn at(&self, at: u64) -> Option<At> {
        let row = at.checked_div(self.row_bytes())?;
        let in_row = at % self.row_bytes();
        let pick = *self.picks.get((in_row / self.unit_bytes) as usize)?;
        Some(At {
            row,
            pick,
            byte: in_row % self.unit_bytes,
        })
    }

    /// The byte of the container that byte `at` of the stream is.
    fn offset(&self, at: u64) -> u64 {
        self.at(at).map_or(0, |found| {
            let block = u64::from(found.pick.data) * self.unit_bytes;
            found.row * self.row_bytes + block + found.byte
        })
    }
}

impl Part {
    /// How many bytes of the stream there are when the container has `ready_bytes`.
    #[must_use]
    pub fn bytes_of(&self, ready_bytes: u64) -> u64 {
        match self {
            Part::Whole => ready_bytes,
            Part::Blocks(picks) => picks.bytes_of(ready_bytes),
        }
    }

    /// The first byte of the container that is needed after `sent_bytes` of the stream: at most
    /// `ready_bytes`.
    #[must_use]
    pub fn needs_from(&self, sent_bytes: u64, ready_bytes: u64) -> u64 {
        match self {
            Part::Whole => sent_bytes,
            Part::Blocks(picks) if sent_bytes < picks.bytes_of(ready_bytes) => {
                picks.offset(sent_bytes)
            }
            Part::Blocks(_) => ready_bytes,
        }
    }

    /// Where bytes of the stream lie in the container: offsets and lengths, in order.
    #[must_use]
    pub fn ranges(&self, at: u64, len: u64) -> Vec<(u64, u64)> {
        let Part::Blocks(picks) = self else {
            return vec![(at, len)];
        };
        let (mut ranges, mut done) = (Vec::new(), 0);
        while done < len {
            let left_of_block = picks.unit_bytes - (at + done) % picks.unit_bytes;
            let piece = left_of_block.min(len - done);
            ranges.push((picks.offset(at + done), piece));
            done += piece;
        }
        ranges
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use orcheck_format::NodeId;

    // Breaks if: a byte is sent twice, not at all, or to the wrong place.
    #[test]
    fn the_streams_of_all_holders_are_every_byte_as_often_as_there_are_parities() {
        for (members, parity) in [(3, 1), (4, 2), (7, 3), (10, 2)] {
            let group = ParityGroup {
                nodes: (0..members).map(NodeId).collect(),
                parity,
                unit_bytes: 4096,
            };
            for len in [0, 1, 4095, 4097, 20_000, 100_000] {
                let mut seen = vec![0u8; len as usize];
                for holder in 1..members {
                    let part = Part::Blocks(Picks::of(&group, 0, holder));
                    let bytes = part.bytes_of(len);
                    let ranges = part.ranges(0, bytes);
                    assert_eq!(ranges.iter().map(|(_, len)| len).sum::<u64>(), bytes);
                    assert!(ranges.is_sorted_by(|a, b| a.0 + a.1 <= b.0));
                    for (at, len) in ranges {
                        let bytes = &mut seen[at as usize..(at + len) as usize];
                        bytes.iter_mut().for_each(|count| *count += 1);
                    }
                    assert_eq!(part.needs_from(bytes, len), len);
                }
                assert!(
                    seen.iter().all(|&count| count == parity),
                    "{members} {parity} {len}"
                );
            }
        }
    }
}
