//! Turns signals that ask this process to stop, or to read its configuration again, into flags that
//! a loop checks.
//!
//! How: the handlers only set a flag, so a command that is writing a file ends at its next piece
//! and removes unfinished files. A separate thread does what SIGHUP asks for.
//!
//! Not here: forwarding signals to a program (command `run`).

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use orcheck_format::{Error, Result};
use orcheck_io::clock::Clock;

use crate::exit;

/// Signal numbers of Linux on every architecture that Orcheck runs on.
pub const SIGHUP: i32 = 1;
/// Interrupt from the keyboard.
pub const SIGINT: i32 = 2;
/// "Checkpoint soon" in many batch systems.
pub const SIGUSR1: i32 = 10;
/// Asks to end.
pub const SIGTERM: i32 = 15;

/// Time between two looks at the signals.
const POLL: Duration = Duration::from_millis(50);

static INTERRUPTED: AtomicBool = AtomicBool::new(false);
static TERMINATED: AtomicBool = AtomicBool::new(false);
static HUNG_UP: AtomicBool = AtomicBool::new(false);

/// From now on, SIGINT and SIGTERM only set a flag.
pub fn install() -> Result<()> {
    orcheck_io::machine::install_signal(SIGINT, &INTERRUPTED)?;
    orcheck_io::machine::install_signal(SIGTERM, &TERMINATED)
}

/// The work that SIGHUP requests, done by one thread at a time; requests that arrive meanwhile are
/// served afterwards.
pub struct OnHangup {
    work: Arc<dyn Fn() + Send + Sync>,
    at_work: RefCell<Option<JoinHandle<()>>>,
}

impl OnHangup {
    /// From now on, SIGHUP only requests this work.
    pub fn install(work: impl Fn() + Send + Sync + 'static) -> Result<Self> {
        orcheck_io::machine::install_signal(SIGHUP, &HUNG_UP)?;
        Ok(Self {
            work: Arc::new(work),
            at_work: RefCell::default(),
        })
    }

    /// Begins the work if SIGHUP has arrived. Does not wait for it: a disk that hangs must not keep
    /// SIGTERM waiting.
    ///
    /// # Errors
    /// No thread is available; the next look tries again.
    pub fn look(&self) -> Result<()> {
        let mut at_work = self.at_work.borrow_mut();
        let busy = at_work.as_ref().is_some_and(|one| !one.is_finished());
        if busy || !HUNG_UP.swap(false, Ordering::Relaxed) {
            return Ok(());
        }
        let work = Arc::clone(&self.work);
        let begun = orcheck_io::machine::thread::spawn("orcheck-reread", move || work());
        let begun = begun.inspect_err(|_| HUNG_UP.store(true, Ordering::Relaxed))?;
        *at_work = Some(begun);
        Ok(())
    }
}

/// The exit code for the signal that arrived, if one did.
pub fn requested() -> Option<u8> {
    if INTERRUPTED.load(Ordering::Relaxed) {
        Some(exit::INTERRUPTED)
    } else if TERMINATED.load(Ordering::Relaxed) {
        Some(exit::TERMINATED)
    } else {
        None
    }
}

/// The same, for those who want to notice the next signal too.
pub fn take() -> Option<u8> {
    let code = requested();
    INTERRUPTED.store(false, Ordering::Relaxed);
    TERMINATED.store(false, Ordering::Relaxed);
    code
}

/// Waits for the thread that does the work of this process, and calls `meanwhile` now and then.
/// When a signal asks to end, `stop` tells the thread, which then has `limit` left.
///
/// # Errors
/// Internal if the thread panicked; Unavailable, with the text `late`, if it has not ended in time.
pub fn wait_for<T>(
    thread: JoinHandle<T>,
    clock: &dyn Clock,
    limit: Duration,
    meanwhile: impl Fn(),
    stop: impl Fn(),
    late: &str,
) -> Result<T> {
    let asked = || {
        let asked = requested().is_some();
        if !asked {
            meanwhile();
        }
        asked
    };
    wait_until(thread, clock, limit, asked, stop, late)
}

fn wait_until<T>(
    thread: JoinHandle<T>,
    clock: &dyn Clock,
    limit: Duration,
    asked: impl Fn() -> bool,
    stop: impl Fn(),
    late: &str,
) -> Result<T> {
    let mut until = None;
    while !thread.is_finished() {
        if asked() {
            stop();
            let until = *until.get_or_insert(clock.now().saturating_add(limit));
            // Breaks if: the wait continues; a disk that hangs would keep the process for as long
            // as it hangs.
            if clock.now() >= until {
                return Err(Error::unavailable(format!(
                    "{late} within {} s after the signal to end",
                    limit.as_secs_f64()
                )));
            }
        }
        clock.sleep(POLL);
    }
    let panicked = |_| Error::internal("the thread that does the work panicked");
    thread.join().map_err(panicked)
}

#[cfg(test)]
mod tests {
    use super::*;
    use orcheck_format::ErrorKind;
    use std::cell::Cell;
    use std::sync::{Mutex, mpsc};

    /// A clock that only sleeping advances.
    #[derive(Default)]
    struct Hand(Mutex<Duration>);

    impl Clock for Hand {
        fn now(&self) -> Duration {
            *self.0.lock().unwrap()
        }

        fn unix_ms(&self) -> u64 {
            0
        }

        fn sleep(&self, time: Duration) {
            *self.0.lock().unwrap() += time;
        }
    }

    #[test]
    fn what_hangs_is_not_waited_for_longer_than_said() {
        let (end, ended) = mpsc::channel::<()>();
        let hangs = move || ended.recv().is_err();
        let thread = orcheck_io::machine::thread::spawn("hangs", hangs).unwrap();
        let clock = Hand::default();
        let (limit, told) = (Duration::from_secs(7), Cell::new(0));
        // The signal comes after 10 s.
        let asked = || clock.now() >= Duration::from_secs(10);
        let stop = || told.set(told.get() + 1);
        let late = wait_until(thread, &clock, limit, asked, stop, "it did not end").unwrap_err();
        assert_eq!(late.kind(), ErrorKind::Unavailable);
        assert!(
            late.to_string().contains("did not end within 7 s"),
            "{late}"
        );
        assert!(told.get() > 0);
        assert!(clock.now() >= Duration::from_secs(17));
        assert!(clock.now() < Duration::from_secs(18));
        drop(end);
    }

    // Breaks if: the look waits for the work; SIGTERM would have to wait for a disk that hangs.
    #[test]
    fn what_sighup_asks_for_is_not_waited_for_and_is_done_again_when_it_arrives_meanwhile() {
        let (begin, begun) = mpsc::channel();
        let (release, released) = mpsc::channel::<()>();
        let released = Mutex::new(released);
        let hangup = OnHangup::install(move || {
            begin.send(()).unwrap();
            released.lock().unwrap().recv().unwrap();
        })
        .unwrap();
        let (limit, clock) = (
            Duration::from_secs(30),
            orcheck_io::clock::SystemClock::new(),
        );
        hangup.look().unwrap();
        assert!(begun.try_recv().is_err());
        for _ in 0..2 {
            HUNG_UP.store(true, Ordering::Relaxed); // as the handler does
            hangup.look().unwrap();
            begun.recv_timeout(limit).unwrap();
            // Two more come while it is at work, and count as one.
            HUNG_UP.store(true, Ordering::Relaxed);
            HUNG_UP.store(true, Ordering::Relaxed);
            hangup.look().unwrap();
            assert!(begun.try_recv().is_err());
            release.send(()).unwrap();
            let until = clock.now() + limit;
            while begun.try_recv().is_err() {
                assert!(clock.now() < until);
                hangup.look().unwrap();
                std::thread::yield_now();
            }
            release.send(()).unwrap();
            while !hangup.at_work.borrow().as_ref().unwrap().is_finished() {
                assert!(clock.now() < until);
                std::thread::yield_now();
            }
        }
    }

    #[test]
    fn what_ends_in_time_gives_its_result() {
        let thread = orcheck_io::machine::thread::spawn("ends", || 5).unwrap();
        let clock = orcheck_io::clock::SystemClock::new();
        let result = wait_until(thread, &clock, Duration::MAX, || true, || {}, "late");
        assert_eq!(result.unwrap(), 5);
    }
}
