//! Fetches what a process is about to touch of a pool.
//!
//! Invariant: nothing is changed, and nothing waits.
//!
//! Not here: when this is of use (the engine).

use super::Pool;
use orcheck_io::memory::{fetch_ahead, fetch_code_ahead};
use orcheck_io::sync::Ordering;

impl Pool {
    /// Has the processor fetch what taking a chunk from `near` on and handing it over by ring `i`
    /// touches, all at once: after a pause, each page that is touched by itself costs a
    /// microsecond.
    pub fn fetch_ahead(&self, near: u32, i: u32) {
        fetch_code_ahead(Self::take as *const (), 1, 3);
        fetch_code_ahead(crate::copy::copy_crc as *const (), 0, 2);
        let (map, start) = (&self.layout, self.map.start as usize);
        let bit = u64::from(near / 64) * 8;
        for at in [map.freed, map.taken + bit, map.backed + bit] {
            fetch_ahead(start + at as usize);
        }
        let chunk = map.area + u64::from(near) * u64::from(self.shape.chunk_bytes);
        fetch_ahead(start + chunk as usize);
        if i < self.shape.rings {
            let ring = self.ring(i);
            let written = ring.written.load(Ordering::Relaxed);
            fetch_ahead(std::ptr::from_ref(ring.read) as usize);
            let entries = ring.entries.len() as u64;
            for number in 0..entries.min(4) {
                let slot = &ring.entries[((written + number) % entries) as usize];
                fetch_ahead(std::ptr::from_ref(slot) as usize);
            }
        }
    }

    /// The same for word `i`.
    pub fn fetch_word_ahead(&self, i: u32) {
        fetch_ahead(std::ptr::from_ref(self.word(i)) as usize);
    }
}
