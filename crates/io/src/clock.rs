//! Time, behind a trait so that a simulation can own it.
//!
//! Invariants
//! 1. Durations, deadlines and order come from the monotonic clock only; the wall clock is for people to read.
//!
//! Faults survived: jumps of the wall clock. Not here: CPU time (see [`crate::machine`]).

use crate::sync::now;
use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A source of time.
pub trait Clock: Send + Sync {
    /// Monotonic time since an arbitrary start that is the same for the whole process.
    fn now(&self) -> Duration;
    /// Wall-clock time in milliseconds since 1970; informative only, may jump.
    fn unix_ms(&self) -> u64;
    /// Blocks the calling thread for at least this long.
    fn sleep(&self, time: Duration);
}

/// The machine's clock.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl SystemClock {
    /// The machine's clock.
    #[must_use]
    pub fn new() -> Self {
        SystemClock
    }
}

fn start() -> Instant {
    static START: OnceLock<Instant> = OnceLock::new();
    *START.get_or_init(Instant::now)
}

impl Clock for SystemClock {
    fn now(&self) -> Duration {
        let start = start();
        Instant::now().saturating_duration_since(start)
    }

    fn unix_ms(&self) -> u64 {
        let since = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    }

    fn sleep(&self, time: Duration) {
        std::thread::sleep(time);
    }
}

/// A point in time after which a wait gives up. Durations too long to represent mean a wait of a century.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Deadline(Instant);

impl Deadline {
    pub(crate) fn after(timeout: Duration) -> Self {
        const CENTURY: Duration = Duration::from_secs(3_155_760_000);
        Deadline(now() + timeout.min(CENTURY))
    }

    /// Time left; zero when passed.
    pub(crate) fn left(self) -> Duration {
        self.0.saturating_duration_since(now())
    }

    pub(crate) fn passed(self) -> bool {
        self.left().is_zero()
    }

    pub(crate) fn earlier(self, other: Self) -> Self {
        Deadline(self.0.min(other.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn monotonic_and_plausible() {
        let clock = SystemClock::new();
        let before = clock.now();
        clock.sleep(Duration::from_millis(2));
        assert!(clock.now() >= before + Duration::from_millis(2));
        assert!(clock.unix_ms() > 1_600_000_000_000);
    }

    #[test]
    fn deadlines_do_not_overflow() {
        assert!(!Deadline::after(Duration::MAX).passed());
        assert!(Deadline::after(Duration::ZERO).passed());
    }
}
