//! What threads and processes synchronise through: atomics, the sleep on a word, and deadlines.
//!
//! How: everything that the pool, the gates and the engine use to wait for each other comes from here. A build
//! with `--cfg orcheck_shuttle` puts the scheduler of `shuttle` beneath it, so that the code that is shipped runs
//! there under thousands of chosen schedules; every other build gets the machine's own, at no cost.
//!
//! Invariants
//! 1. The types have the layout of the machine's atomics in both builds: they lie in memory that is shared.
//!
//! Not here: the threads that copy one snapshot together (they share nothing with other processes, and a mutex at
//! most with each other); weak memory orderings, which the scheduler does not model: the lock-free parts (`orcheck-pool` and
//! the bitmap of the pool) are checked by `loom` as they are, see `tests/orderings`.

pub use std::sync::atomic::Ordering;

#[cfg(not(orcheck_shuttle))]
pub use std::sync::atomic::{AtomicU32, AtomicU64};

#[cfg(not(orcheck_shuttle))]
mod futex;
#[cfg(orcheck_shuttle)]
pub mod model;
#[cfg(orcheck_shuttle)]
pub use model::{AtomicU32, AtomicU64};

#[cfg(orcheck_shuttle)]
pub use model::{now, point, wait, wake};

#[cfg(not(orcheck_shuttle))]
pub use futex::{wait, wake};

/// A place at which another thread may run first: before a system call that others can observe.
#[cfg(not(orcheck_shuttle))]
#[inline(always)]
pub fn point() {}

/// The monotonic clock that deadlines are measured by.
#[cfg(not(orcheck_shuttle))]
#[inline]
pub fn now() -> std::time::Instant {
    std::time::Instant::now()
}
