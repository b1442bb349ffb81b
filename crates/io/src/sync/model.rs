//! Implements the synchronisation of [`crate::sync`] on top of the scheduler of `shuttle`. For
//! tests only.
//!
//! How: the atomics are the machine's, with a decision of the scheduler before every access; all
//! threads of an execution share one thread of the machine, so nothing else happens in between.
//! Sleeping on a word parks the thread until it is woken. Time stands still: only sleeps that reach
//! their timeout advance it; the scheduler draws these, and only after [`allow_timeouts`]. Without
//! that, a lost wake-up shows as a deadlock, which the scheduler reports with the schedule that
//! leads to it.
//!
//! A thread can die like a killed process ([`mortal`]): from one access on, nothing that it does
//! has an effect, except that the kernel closes its descriptors.
//!
//! Invariants
//! 1. The order of all accesses, every timeout and every death depend only on the seed of the
//!    schedule.
//!
//! Not here: weak memory (see `tests/orderings`), spurious wake-ups without [`allow_timeouts`].

use shuttle::rand::Rng;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{self, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// The state of one execution: sleepers by the address of their word, the time, and whether sleeps
/// may time out.
#[derive(Default)]
struct World {
    sleepers: RefCell<BTreeMap<usize, Vec<Sleeper>>>,
    time: Cell<Duration>,
    timeouts: Cell<bool>,
}

struct Sleeper {
    number: u64,
    woken: Arc<atomic::AtomicBool>,
    thread: shuttle::thread::Thread,
}

/// All threads of an execution are continuations on one thread of the machine; no borrow lives
/// across a switch.
struct OneThread(World);
// SAFETY: see above: there is never a second thread of the machine in an execution.
#[allow(unsafe_code)]
unsafe impl Send for OneThread {}
// SAFETY: as above.
#[allow(unsafe_code)]
unsafe impl Sync for OneThread {}

shuttle::lazy_static! {
    static ref WORLD: OneThread = OneThread(World::default());
}

shuttle::thread_local! {
    /// Accesses left to this thread; `None` for a thread that does not die.
    static LEFT: Cell<Option<u32>> = Cell::new(None);
    static DEAD: Cell<bool> = Cell::new(false);
}

fn world() -> &'static World {
    &WORLD.0
}

fn dead() -> bool {
    DEAD.with(Cell::get)
}

/// Lets sleeps reach their timeouts in this execution, at moments drawn by the scheduler.
pub fn allow_timeouts() {
    world().timeouts.set(true);
}

/// The total time of sleeps that reached their timeouts in this execution.
#[must_use]
pub fn slept() -> Duration {
    world().time.get()
}

/// Runs `work` on this thread and lets it die before its access number `accesses` (from 0), as by
/// SIGKILL. `None`: it died.
pub fn mortal<T>(accesses: u32, work: impl FnOnce() -> T) -> Option<T> {
    LEFT.with(|left| left.set(Some(accesses)));
    let ended = catch_unwind(AssertUnwindSafe(work));
    LEFT.with(|left| left.set(None));
    let died = DEAD.with(|dead| dead.replace(false));
    match ended {
        Ok(_) if died => None,
        Ok(value) => Some(value),
        Err(_) if died => None,
        Err(panic) => resume_unwind(panic),
    }
}

/// A decision of the scheduler, or the end of a mortal thread.
pub fn point() {
    if dead() {
        return;
    }
    match LEFT.with(Cell::get) {
        Some(0) => {
            DEAD.with(|dead| dead.set(true));
            // No panic hook: this is an end, not a failure.
            resume_unwind(Box::new("killed"));
        }
        Some(left) => LEFT.with(|cell| cell.set(Some(left - 1))),
        None => {}
    }
    // The scheduler decides at its accesses; the value means nothing.
    let _ = shuttle::sync::atomic::AtomicBool::new(false).load(Ordering::SeqCst);
}

/// The monotonic clock of the execution.
pub fn now() -> Instant {
    static START: OnceLock<Instant> = OnceLock::new();
    *START.get_or_init(Instant::now) + world().time.get()
}

fn pass(time: Duration) {
    world().time.set(world().time.get() + time);
}

/// Sleeps while the word holds `value`, until woken; see the module about `timeout`.
pub fn wait(word: &AtomicU32, value: u32, timeout: Duration) {
    point();
    if dead() {
        pass(timeout);
        return;
    }
    if word.0.load(Ordering::SeqCst) != value {
        return;
    }
    let at = std::ptr::from_ref(word) as usize;
    let woken = Arc::new(atomic::AtomicBool::new(false));
    static NUMBERS: atomic::AtomicU64 = atomic::AtomicU64::new(0);
    let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
    world()
        .sleepers
        .borrow_mut()
        .entry(at)
        .or_default()
        .push(Sleeper {
            number,
            woken: Arc::clone(&woken),
            thread: shuttle::thread::current(),
        });
    while !woken.load(Ordering::SeqCst) {
        if !world().timeouts.get() {
            shuttle::thread::park();
        } else if shuttle::rand::thread_rng().gen_ratio(1, 8) {
            if let Some(list) = world().sleepers.borrow_mut().get_mut(&at) {
                list.retain(|sleeper| sleeper.number != number);
            }
            pass(timeout);
            return;
        } else {
            shuttle::thread::yield_now();
        }
    }
}

/// Wakes up to `count` sleepers, the oldest first.
pub fn wake(word: &AtomicU32, count: u32) {
    point();
    if dead() {
        return;
    }
    let at = std::ptr::from_ref(word) as usize;
    let mut chosen = Vec::new();
    if let Some(list) = world().sleepers.borrow_mut().get_mut(&at) {
        let count = list.len().min(count as usize);
        chosen.extend(list.drain(..count));
    }
    for sleeper in chosen {
        sleeper.woken.store(true, Ordering::SeqCst);
        sleeper.thread.unpark();
    }
}

macro_rules! atomic {
    ($name:ident, $inner:ident, $value:ty) => {
        /// The machine's atomic of the same name, with a decision of the scheduler before every
        /// access.
        #[derive(Debug)]
        #[repr(transparent)]
        pub struct $name(atomic::$inner);

        #[allow(missing_docs)]
        impl $name {
            #[must_use]
            pub const fn new(value: $value) -> Self {
                Self(atomic::$inner::new(value))
            }

            pub fn load(&self, _: Ordering) -> $value {
                point();
                self.0.load(Ordering::SeqCst)
            }

            pub fn store(&self, value: $value, _: Ordering) {
                point();
                if !dead() {
                    self.0.store(value, Ordering::SeqCst);
                }
            }

            pub fn fetch_add(&self, value: $value, order: Ordering) -> $value {
                self.update(order, |old| old.wrapping_add(value))
            }

            pub fn fetch_sub(&self, value: $value, order: Ordering) -> $value {
                self.update(order, |old| old.wrapping_sub(value))
            }

            pub fn fetch_or(&self, value: $value, order: Ordering) -> $value {
                self.update(order, |old| old | value)
            }

            pub fn fetch_and(&self, value: $value, order: Ordering) -> $value {
                self.update(order, |old| old & value)
            }

            pub fn compare_exchange(
                &self,
                current: $value,
                new: $value,
                _: Ordering,
                _: Ordering,
            ) -> Result<$value, $value> {
                point();
                let old = self.0.load(Ordering::SeqCst);
                if old != current {
                    return Err(old);
                }
                if !dead() {
                    self.0.store(new, Ordering::SeqCst);
                }
                Ok(old)
            }

            pub fn into_inner(self) -> $value {
                self.0.into_inner()
            }

            fn update(&self, _: Ordering, change: impl Fn($value) -> $value) -> $value {
                point();
                let old = self.0.load(Ordering::SeqCst);
                if !dead() {
                    self.0.store(change(old), Ordering::SeqCst);
                }
                old
            }
        }
    };
}

atomic!(AtomicU32, AtomicU32, u32);
atomic!(AtomicU64, AtomicU64, u64);
