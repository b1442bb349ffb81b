//! Implements a bitmap in shared memory that hands out its bits: a set bit is taken.
//!
//! How: a claim is one atomic OR, whose old value tells who won; a release is one atomic AND.
//!
//! Invariants
//! 1. A bit is given to one claimer at a time, and only bits below `count` are given.
//! 2. A claimer of a bit sees everything that its last holder did before releasing it.
//! 3. A claim looks at every bit at most once: it ends, whatever the neighbours write.
//!
//! Faults survived: holders that die (their bits stay taken), neighbours that overwrite the words.
//! Not here: waiting for a bit, the meaning of a bit (see [`crate::pool`]).

use crate::sync::{AtomicU64, Ordering};

/// The words of a bitmap, and the number of valid bits.
#[derive(Clone, Copy)]
pub(crate) struct Bitmap<'a> {
    pub(crate) words: &'a [AtomicU64],
    pub(crate) count: u32,
}

impl Bitmap<'_> {
    /// The valid bits of word `word`.
    fn valid_bits(&self, word: u32) -> u64 {
        let left = self.count.saturating_sub(word * 64);
        if left >= 64 {
            u64::MAX
        } else {
            (1u64 << left) - 1
        }
    }

    /// Whether a bit is set; it must be below `count`.
    pub(crate) fn has(&self, index: u32) -> bool {
        self.words[(index / 64) as usize].load(Ordering::Acquire) & (1 << (index % 64)) != 0
    }

    /// Sets the first clear bit, from `near` upwards and then from 0.
    pub(crate) fn claim(&self, near: u32) -> Option<u32> {
        let near = if near < self.count { near } else { 0 };
        let words = self.words.len() as u32;
        for turn in 0..=words {
            let word = (near / 64 + turn) % words;
            let mut candidates = self.valid_bits(word);
            if turn == 0 {
                candidates &= u64::MAX << (near % 64);
            }
            let cell = &self.words[word as usize];
            loop {
                let free = !cell.load(Ordering::Relaxed) & candidates;
                if free == 0 {
                    break;
                }
                let bit = free.trailing_zeros();
                if set_if_clear(cell, 1 << bit) {
                    return Some(word * 64 + bit);
                }
                candidates &= !(1 << bit);
            }
        }
        None
    }

    /// Sets the highest `length` neighbouring clear bits, and returns the first of them.
    pub(crate) fn claim_run(&self, length: u32) -> Option<u32> {
        if length == 0 || length > self.count {
            return None;
        }
        let mut found = 0;
        for index in (0..self.count).rev() {
            let cell = &self.words[(index / 64) as usize];
            let free = cell.load(Ordering::Relaxed) & (1 << (index % 64)) == 0;
            found = if free { found + 1 } else { 0 };
            if found == length {
                if self.claim_exactly(index, length) {
                    return Some(index);
                }
                found = 0; // somebody was faster: look for another place further down
            }
        }
        None
    }

    fn claim_exactly(&self, first: u32, length: u32) -> bool {
        for index in first..first + length {
            let cell = &self.words[(index / 64) as usize];
            if !set_if_clear(cell, 1u64 << (index % 64)) {
                self.release(first, index - first);
                return false;
            }
        }
        true
    }

    /// Sets bits, whether or not others set them too.
    pub(crate) fn mark(&self, first: u32, length: u32) {
        for index in first..first + length {
            self.words[(index / 64) as usize].fetch_or(1 << (index % 64), Ordering::AcqRel);
        }
    }

    /// Clears bits that the caller holds.
    pub(crate) fn release(&self, first: u32, length: u32) {
        for index in first..first + length {
            self.words[(index / 64) as usize].fetch_and(!(1u64 << (index % 64)), Ordering::AcqRel);
        }
    }

    /// The number of bits that are clear now.
    pub(crate) fn free(&self) -> u32 {
        (0u32..)
            .zip(self.words)
            .map(|(word, cell)| {
                (!cell.load(Ordering::Relaxed) & self.valid_bits(word)).count_ones()
            })
            .sum()
    }
}

/// Sets one bit; `false` if somebody else has set it. A caller that gets `true` owns what the bit
/// stands for.
fn set_if_clear(cell: &AtomicU64, bit: u64) -> bool {
    cell.fetch_or(bit, Ordering::AcqRel) & bit == 0
}
