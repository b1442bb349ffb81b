//! Provides time: behind a trait, so that a simulation can supply it, and in the form that people
//! write. Contains `unsafe`.
//!
//! Invariants
//! 1. Durations, deadlines and order come only from the monotonic clock; the wall clock is for
//!    people to read.
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

/// A date and a time of day, in the time zone of this machine (`TZ`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LocalTime {
    /// Year.
    pub year: i32,
    /// Month, from 1.
    pub month: u32,
    /// Day of the month, from 1.
    pub day: u32,
    /// Hour, from 0.
    pub hour: u32,
    /// Minute.
    pub minute: u32,
    /// Second.
    pub second: u32,
}

#[allow(unsafe_code)]
impl LocalTime {
    /// The local time at this moment; `None` if the calendar does not reach that far.
    #[must_use]
    pub fn of_unix_ms(unix_ms: u64) -> Option<Self> {
        let seconds = libc::time_t::try_from(unix_ms / 1000).ok()?;
        // SAFETY: `tm` is plain numbers and one pointer that is not read here; zero is valid for
        // all of them.
        let mut tm: libc::tm = unsafe { std::mem::zeroed() };
        // SAFETY: both pointers are to live variables of the right types, and nothing keeps them.
        let found = unsafe { libc::localtime_r(&raw const seconds, &raw mut tm) };
        if found.is_null() {
            return None;
        }
        let field = |value: i32| u32::try_from(value).ok();
        Some(Self {
            year: tm.tm_year.checked_add(1900)?,
            month: field(tm.tm_mon)? + 1,
            day: field(tm.tm_mday)?,
            hour: field(tm.tm_hour)?,
            minute: field(tm.tm_min)?,
            second: field(tm.tm_sec)?,
        })
    }

    /// The moment of this local time, in milliseconds since 1970; `None` for a date or time that
    /// does not exist, such as 30 February, or an hour that the clocks skip in spring.
    #[must_use]
    pub fn unix_ms(self) -> Option<u64> {
        let field = |value: u32| i32::try_from(value).ok();
        // SAFETY: as in `of_unix_ms`.
        let mut tm: libc::tm = unsafe { std::mem::zeroed() };
        tm.tm_year = self.year.checked_sub(1900)?;
        tm.tm_mon = field(self.month)?.checked_sub(1)?;
        tm.tm_mday = field(self.day)?;
        tm.tm_hour = field(self.hour)?;
        tm.tm_min = field(self.minute)?;
        tm.tm_sec = field(self.second)?;
        tm.tm_isdst = -1;
        // SAFETY: the pointer is to a live variable of the right type, and nothing keeps it.
        let seconds = unsafe { libc::mktime(&raw mut tm) };
        let unix_ms = u64::try_from(seconds).ok()?.checked_mul(1000)?;
        // mktime turns 30 February into 2 March, which is not what was written.
        (Self::of_unix_ms(unix_ms) == Some(self)).then_some(unix_ms)
    }
}

impl std::fmt::Display for LocalTime {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{:04}-{:02}-{:02} {:02}:{:02}:{:02}",
            self.year, self.month, self.day, self.hour, self.minute, self.second
        )
    }
}

/// A span of time for people, from milliseconds: `3 min`.
#[must_use]
pub fn age(ms: u64) -> String {
    let seconds = ms / 1000;
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        7200..172_800 => format!("{} h", seconds / 3600),
        _ => format!("{} d", seconds / 86_400),
    }
}

/// A moment for people, in local time and with its distance from `now_unix_ms`:
/// `2026-11-24 11:20:31, 3 min ago`.
#[must_use]
pub fn moment(unix_ms: u64, now_unix_ms: u64) -> String {
    let at = LocalTime::of_unix_ms(unix_ms);
    let at = at.map_or_else(|| "a time without a date".to_owned(), |at| at.to_string());
    match now_unix_ms.checked_sub(unix_ms) {
        Some(passed) => format!("{at}, {} ago", age(passed)),
        // A request for later; or the clocks of two machines differ.
        None => format!("{at}, in {}", age(unix_ms - now_unix_ms)),
    }
}

/// A point in time after which a wait gives up. A duration that cannot be represented means a wait
/// of a century.
#[derive(Debug, Clone, Copy)]
pub struct Deadline(Instant);

impl Deadline {
    /// `timeout` from now.
    pub fn after(timeout: Duration) -> Self {
        const CENTURY: Duration = Duration::from_secs(3_155_760_000);
        Deadline(now() + timeout.min(CENTURY))
    }

    /// Time left; zero once it has passed.
    pub fn left(self) -> Duration {
        self.0.saturating_duration_since(now())
    }

    /// Whether it has passed.
    pub fn passed(self) -> bool {
        self.left().is_zero()
    }

    /// The earlier of two.
    pub fn earlier(self, other: Self) -> Self {
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

    // Breaks if: a time is shown as seconds since 1970, or in a form that cannot be read back.
    #[test]
    fn a_moment_is_a_local_time_with_its_age_and_is_read_back() {
        let now = 1_795_509_431_737;
        let local = LocalTime::of_unix_ms(now).unwrap();
        assert_eq!(local.unix_ms(), Some(now / 1000 * 1000));
        assert_eq!((local.year, local.minute, local.second), (2026, 37, 11));
        assert_eq!(moment(now, now + 200_000), format!("{local}, 3 min ago"));
        assert_eq!(
            moment(now + 7_200_000, now).split(", ").nth(1),
            Some("in 2 h")
        );
        let no_day = LocalTime {
            month: 2,
            day: 30,
            ..local
        };
        assert_eq!(no_day.unix_ms(), None);
    }

    #[test]
    fn ages() {
        assert_eq!(age(1_500), "1 s");
        assert_eq!(age(121_000), "2 min");
        assert_eq!(age(10_000_000), "2 h");
        assert_eq!(age(u64::MAX), format!("{} d", u64::MAX / 86_400_000));
    }

    #[test]
    fn deadlines_do_not_overflow() {
        assert!(!Deadline::after(Duration::MAX).passed());
        assert!(Deadline::after(Duration::ZERO).passed());
    }
}
