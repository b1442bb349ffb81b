//! Tracks which ranks of a node have returned from a checkpoint call, because work that may take
//! their processors waits for that.
//!
//! Invariant: every rank counts once in every turn, even if its part of the checkpoint failed.
//!
//! Survives: a rank that dies in the call (every wait has a bound). Not here: what waits (the
//! client).

use super::{Index, RETURNS};
use orcheck_format::WriterId;
use orcheck_io::clock::Clock;
use std::sync::atomic::Ordering::AcqRel;
use std::time::Duration;

/// Time between two looks at whether the other ranks of a node have returned from a call.
const RETURN_LOOK: Duration = Duration::from_millis(2);

impl Index<'_> {
    /// Counts that one rank is about to return from its call. Only the last rank of the node wakes
    /// the CP-threads, which it may have told nothing else: on a busy node, threads that are woken
    /// before keep the last rank from returning.
    pub fn note_return(&self) {
        let before = self.pool.word(RETURNS).fetch_add(1, AcqRel);
        if (before + 1).is_multiple_of(u64::from(self.shape.ranks)) {
            (0..self.shape.writers).for_each(|writer| self.nudge(WriterId(writer)));
        }
    }

    /// Waits until all ranks of the node have counted their return from turn `turn` (from 0), and a
    /// moment longer, in which they return. Returns false if one of them has not by the deadline.
    #[must_use]
    pub fn wait_returned(&self, turn: u64, clock: &dyn Clock, timeout: Duration) -> bool {
        let deadline = clock.now() + timeout;
        let mut before = false;
        loop {
            let returns = self.get(RETURNS);
            let all = returns >= self.returns_of(turn);
            if all && before {
                return true;
            }
            before = all;
            let left = deadline.saturating_sub(clock.now());
            if left.is_zero() {
                return all;
            }
            clock.sleep(left.min(RETURN_LOOK));
        }
    }

    fn returns_of(&self, turn: u64) -> u64 {
        u64::from(self.shape.ranks) * (turn + 1)
    }
}
