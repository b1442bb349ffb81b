//! Draws numbers that everybody draws alike.
//!
//! How: a BLAKE3 stream, keyed by the purpose and the subject of the draw.
//!
//! Invariant: each number below a limit, and each order, is equally likely.
//!
//! Not here: what is drawn, and from which key (`draw.rs`).

/// The stream of one draw.
pub(crate) struct Random(blake3::OutputReader);

impl Random {
    pub(crate) fn new(subject: &blake3::Hasher) -> Self {
        Self(subject.finalize_xof())
    }

    /// Uniform below `limit`, which is not 0.
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        // The last, incomplete range of `limit` numbers would make its members more likely.
        let whole = u64::MAX - u64::MAX % limit;
        loop {
            let mut bytes = [0; 8];
            self.0.fill(&mut bytes);
            let number = u64::from_le_bytes(bytes);
            if number < whole {
                return number % limit;
            }
        }
    }

    /// The numbers below `limit` in random order.
    pub(crate) fn order(&mut self, limit: u32) -> Vec<u32> {
        let mut order: Vec<u32> = (0..limit).collect();
        for at in (1..order.len()).rev() {
            let other = self.below(at as u64 + 1) as usize;
            order.swap(at, other);
        }
        order
    }
}
