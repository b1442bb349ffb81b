//! Cuts an extent into blocks, each of which can be verified by itself.
//!
//! How: the CRCs of the blocks add up to that of the extent, so whoever verified the extent has
//! verified them too. Who then takes a few bytes of it verifies only the blocks that hold them.
//!
//! Pure. Not here: where the CRCs are kept (`node/index/shared.rs`).

use orcheck_format::{CrcShift, crc64, crc64_combine};
use orcheck_io::memory::{Span, crc_span};
use std::ops::Range;
use std::sync::Arc;

/// The CRCs of the blocks of an extent.
pub(crate) struct Blocks {
    shift: Arc<CrcShift>,
    block_bytes: usize,
    crcs: Vec<u64>,
}

impl Blocks {
    /// Of blocks of this length, for which `shift` is.
    pub(super) fn new(block_bytes: usize, shift: &Arc<CrcShift>) -> Self {
        Self {
            shift: Arc::clone(shift),
            block_bytes,
            crcs: Vec::new(),
        }
    }

    /// Length of each block but the last one of an extent.
    pub(crate) fn block_bytes(&self) -> usize {
        self.block_bytes
    }

    /// Forgets all blocks.
    pub(crate) fn clear(&mut self) {
        self.crcs.clear();
    }

    /// Adds the next bytes, in which all blocks but the last one of the extent are whole; returns
    /// their CRC.
    pub(crate) fn append(&mut self, bytes: Span) -> u64 {
        self.add(bytes.len_bytes(), |at, len| crc_span(bytes.sub(at, len)))
    }

    /// The same of bytes that nobody else can write.
    pub(crate) fn append_own(&mut self, bytes: &[u8]) -> u64 {
        let part = |at, len| bytes.get(at..).and_then(|rest| rest.get(..len));
        self.add(bytes.len(), |at, len| {
            crc64(part(at, len).unwrap_or_default())
        })
    }

    fn add(&mut self, len_bytes: usize, crc_of: impl Fn(usize, usize) -> u64) -> u64 {
        let mut all = 0;
        for at in (0..len_bytes).step_by(self.block_bytes) {
            let len = self.block_bytes.min(len_bytes - at);
            let crc = crc_of(at, len);
            self.crcs.push(crc);
            all = match len == self.block_bytes {
                true => self.shift.append(all, crc),
                false => crc64_combine(all, crc, len as u64),
            };
        }
        all
    }

    /// The CRCs, in order.
    pub(super) fn crcs(&self) -> &[u64] {
        &self.crcs
    }

    /// The CRC of an extent of `len_bytes` whose blocks have these CRCs.
    pub(super) fn sum(&self, crcs: impl Iterator<Item = u64>, len_bytes: usize) -> u64 {
        let (whole, rest) = (len_bytes / self.block_bytes, len_bytes % self.block_bytes);
        (0..)
            .zip(crcs)
            .fold(0, |sum, (block, crc)| match block < whole {
                true => self.shift.append(sum, crc),
                false => crc64_combine(sum, crc, rest as u64),
            })
    }
}

/// All bytes of an extent of this length.
pub(crate) fn all(len_bytes: u64) -> Vec<Range<u64>> {
    std::iter::once(0..len_bytes).collect()
}

/// The blocks in which these bytes lie, from where to where, ascending.
pub(super) fn of(
    wanted: impl Iterator<Item = Range<u64>>,
    block_bytes: usize,
    len_bytes: usize,
) -> Vec<Range<usize>> {
    let mut ranges: Vec<Range<usize>> = Vec::new();
    let mut sorted = true;
    for wanted in wanted.filter(|wanted| !wanted.is_empty()) {
        let start = wanted.start as usize / block_bytes * block_bytes;
        let end = (wanted.end as usize)
            .next_multiple_of(block_bytes)
            .min(len_bytes);
        match ranges.last_mut() {
            Some(last) if (last.start..=last.end).contains(&start) => last.end = last.end.max(end),
            last => {
                sorted &= last.is_none_or(|last| last.end < start);
                ranges.push(start..end);
            }
        }
    }
    if !sorted {
        ranges.sort_by_key(|range| range.start);
        ranges.dedup_by(|next, range| {
            let touches = next.start <= range.end;
            if touches {
                range.end = range.end.max(next.end);
            }
            touches
        });
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_blocks_add_up_to_the_extent() {
        let mut bytes: Vec<u8> = (0..10_000u32).map(|at| ((at * 7) >> 3) as u8).collect();
        for (block_bytes, len) in [(128, 10_000), (4096, 8192), (4096, 10_000), (4096, 100)] {
            let shift = Arc::new(CrcShift::by(block_bytes as u64));
            let mut blocks = Blocks::new(block_bytes, &shift);
            let expected = crc64(&bytes[..len]);
            assert_eq!(blocks.append_own(&bytes[..len]), expected);
            let own = std::mem::take(&mut blocks.crcs);
            let all = Span::from_mut(&mut bytes[..len]);
            assert_eq!(blocks.append(all), expected);
            assert_eq!(blocks.crcs(), own);
            assert_eq!(blocks.crcs().len(), len.div_ceil(block_bytes));
            assert_eq!(blocks.sum(blocks.crcs().iter().copied(), len), expected);
        }
    }

    // Breaks if: a wanted byte lies in no block, or a block is taken twice.
    #[test]
    fn blocks_hold_everything_wanted_once() {
        let blocks = |wanted: &[(u64, u64)]| -> Vec<(usize, usize)> {
            let wanted = wanted.iter().map(|(from, to)| *from..*to);
            let found = of(wanted, 10, 95);
            found.iter().map(|range| (range.start, range.end)).collect()
        };
        assert_eq!(blocks(&[]), []);
        assert_eq!(blocks(&[(3, 4), (5, 9), (12, 13)]), [(0, 20)]);
        let apart = [(0, 10), (10, 11), (40, 41), (90, 95)];
        assert_eq!(blocks(&apart), [(0, 20), (40, 50), (90, 95)]);
        let unsorted = [(90, 95), (0, 1), (5, 31), (20, 25)];
        assert_eq!(blocks(&unsorted), [(0, 40), (90, 95)]);
        assert_eq!(blocks(&[(7, 7), (30, 31)]), [(30, 40)]);
    }
}
