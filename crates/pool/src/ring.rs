//! Implements a ring of small fixed-size entries in shared memory, with one producer and one
//! consumer, possibly in two processes.
//!
//! How: two counters that only grow, each written by one side; an entry's position is its number
//! modulo the size.
//!
//! Invariants
//! 1. Each side reads the other's counter once per operation and checks it. A distance beyond the
//!    ring's size can only be garbage from the neighbour; it counts as full for the producer, and
//!    as empty for the consumer.
//! 2. An index never reaches memory unchecked, whatever the counters say.
//! 3. An entry is published by the counter's release store and read after its acquire load.
//!
//! Faults survived: a neighbour that dies or writes garbage at any point: no entry is read twice or
//! partially.
//! Not here: waiting (which uses the shared words), the meaning of the entries.

use crate::sync::{AtomicU64, Ordering};
use orcheck_format::sabotage::{Switch, off};

/// One ring; see [`crate::pool::Pool::ring`].
#[derive(Clone, Copy)]
pub struct Ring<'a> {
    pub(crate) read: &'a AtomicU64,
    pub(crate) written: &'a AtomicU64,
    pub(crate) entries: &'a [[AtomicU64; 8]],
}

impl Ring<'_> {
    /// Appends an entry; `false` if the ring is full. Only one thread of all processes may push.
    #[must_use]
    pub fn push(&self, entry: &[u64; 8]) -> bool {
        let written = self.written.load(Ordering::Relaxed);
        let read = self.read.load(Ordering::Acquire);
        if written.wrapping_sub(read) >= self.entries.len() as u64 && !off(Switch::RingFull) {
            return false;
        }
        let Some(slot) = self.slot(written) else {
            return false;
        };
        for (to, from) in slot.iter().zip(entry) {
            to.store(*from, Ordering::Relaxed);
        }
        self.written
            .store(written.wrapping_add(1), Ordering::Release);
        true
    }

    /// Takes the oldest entry; `None` if there is none. Only one thread of all processes may pop.
    #[must_use]
    pub fn pop(&self) -> Option<[u64; 8]> {
        let read = self.read.load(Ordering::Relaxed);
        let written = self.written.load(Ordering::Acquire);
        let waiting = written.wrapping_sub(read);
        if waiting == 0 || (waiting > self.entries.len() as u64 && !off(Switch::RingDistance)) {
            return None;
        }
        let slot = self.slot(read)?;
        let mut entry = [0; 8];
        for (to, from) in entry.iter_mut().zip(slot) {
            *to = from.load(Ordering::Relaxed);
        }
        self.read.store(read.wrapping_add(1), Ordering::Release);
        Some(entry)
    }

    /// Empties the ring. Call this only while neither side uses it.
    pub fn clear(&self) {
        self.read.store(0, Ordering::Release);
        self.written.store(0, Ordering::Release);
    }

    fn slot(&self, number: u64) -> Option<&[AtomicU64; 8]> {
        self.entries
            .get((number % (self.entries.len() as u64).max(1)) as usize)
    }
}
