//! Leaves room for ordinary traffic: computes the pauses between writes, so that other users of the
//! disk keep a share of its rate.
//!
//! Everything that reaches a server is checkpoint traffic by definition, and may wait; everything
//! that reaches its disk in another way is ordinary. How: what others move while the server pauses
//! is their rate without the server. Their account is debited with their share of that rate at all
//! times, and credited with what they actually move; the server writes again when the account is
//! balanced. If the server's writes cost others nothing, it does not pause. Without ordinary
//! traffic it pauses briefly from time to time, to see whether there is any now: the traffic might
//! make no progress at all beside the writes.
//! Source: *Orchestrating checkpoints* (docs/sources.md), section III: ordinary requests are
//! distinguished and continue unaffected.
//!
//! Invariants:
//! 1. Others get at least their share of the rate that they have alone, if the disk serves them at
//!    that rate during the pauses.
//! 2. A pause is at most twice what the share of the time would be, and at most [`PAUSE_MAX`]: the
//!    server always makes progress.
//! 3. Without ordinary traffic it pauses for at most 3 % of the time, or 10 % while its
//!    observations are uncertain.
//!
//! Survives: counters that stand still (they mean no ordinary traffic). Not here: the counters,
//! waiting (`sharing.rs`).

use orcheck_format::sabotage::{Switch, off};
use std::time::Duration;

/// Traffic below this rate, in bytes per second, does not count: the file system itself writes now
/// and then.
const LEAST_BYTES_PER_S: f64 = 256e3;
/// How often, and for how long, to look for other traffic.
const LOOK: Duration = Duration::from_secs(2);
/// The same after an inconclusive look.
const LOOK_AGAIN: Duration = Duration::from_millis(500);
/// See [`LOOK`].
pub const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// Longest pause.
pub const PAUSE_MAX: Duration = Duration::from_secs(10);
/// Weight of a new observation of the rate of others.
const NEW: f64 = 0.3;

/// A time, and how many bytes others moved in it.
#[derive(Debug, Clone, Copy)]
pub struct Seen {
    /// The time.
    pub took: Duration,
    /// The bytes.
    pub moved_bytes: u64,
}

impl Seen {
    fn rate(self) -> f64 {
        self.moved_bytes as f64 / self.took.as_secs_f64().max(1e-6)
    }
}

/// When to write; see the module.
#[derive(Debug)]
pub struct Pauses {
    share: f64,
    /// Rate of others without the server, in bytes per second; 0: there are none.
    alone: f64,
    /// What others are owed, in bytes.
    owed: f64,
    /// When to look next for other traffic.
    look_at: Duration,
}

impl Pauses {
    /// Others keep `share` of their rate: from 0 to less than 1.
    #[must_use]
    pub fn new(share: f64) -> Self {
        Self {
            share: share.clamp(0.0, 0.99),
            alone: 0.0,
            owed: 0.0,
            look_at: Duration::ZERO,
        }
    }

    /// Whether there are others: there is then one write at a time, and [`Pauses::wrote`] is called
    /// after each.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.alone > 0.0
    }

    /// Whether it is time to pause for [`FIRST_PAUSE`] to look for other traffic.
    #[must_use]
    pub fn is_due(&self, now: Duration) -> bool {
        !self.is_shared() && now >= self.look_at
    }

    /// Takes what others moved during a write; returns how long to pause before the next one.
    pub fn wrote(&mut self, seen: Seen) -> Duration {
        self.charge(seen);
        let took = seen.took.as_secs_f64();
        let most = 2.0 * took * self.share / (1.0 - self.share);
        let gain = ((1.0 - self.share) * self.alone).max(1.0);
        let pause = Duration::from_secs_f64((self.owed / gain).min(most)).min(PAUSE_MAX);
        // What cannot be repaid in one pause is not saved up for later ones.
        self.owed = self.owed.min(pause.as_secs_f64() * gain);
        pause
    }

    /// Takes what others moved in the first half of a pause, when the disk may still be returning
    /// to them, and in the rest; `certain` unless some of it may have been the server's own.
    pub fn paused(&mut self, now: Duration, first: Seen, rest: Seen, certain: bool) {
        let rate = rest.rate();
        if rate >= LEAST_BYTES_PER_S && !certain {
            // Known others are kept, with their known rate.
            self.look_at = now + LOOK_AGAIN;
            self.charge(first);
            self.charge(rest);
            return;
        }
        if rate < LEAST_BYTES_PER_S {
            self.alone = 0.0;
            self.owed = 0.0;
            self.look_at = now + LOOK;
            return;
        }
        self.alone = if self.is_shared() {
            self.alone + NEW * (rate - self.alone)
        } else {
            rate
        };
        self.charge(first);
        self.charge(rest);
    }

    fn charge(&mut self, seen: Seen) {
        // Breaks if: nothing is owed; the server would write as if it were alone.
        let share = match off(Switch::OrdinaryShare) {
            true => 0.0,
            false => self.share,
        };
        let due = share * self.alone * seen.took.as_secs_f64();
        // What they got beyond their share counts against what they are owed now, not later.
        self.owed = (self.owed + due - seen.moved_bytes as f64).max(0.0);
    }
}
