//! Provides what threads and processes synchronise with: atomics, sleeping on a word, and
//! deadlines.
//!
//! How: the pool, the gates and the engine wait for each other only through this module. A build
//! with `--cfg orcheck_shuttle` puts the scheduler of `shuttle` beneath it, so that the shipped
//! code runs there under thousands of chosen schedules; every other build uses the machine's own
//! primitives, at no cost.
//!
//! Invariants
//! 1. The types have the layout of the machine's atomics in both builds, because they lie in shared
//!    memory.
//!
//! Not here: the threads that copy one snapshot together (they share nothing with other processes,
//! and at most a mutex with each other); weak memory orderings, which the scheduler does not model:
//! `loom` checks the lock-free parts (`orcheck-pool` and the bitmap of the pool) unchanged, see
//! `tests/orderings`.

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

/// The monotonic clock for deadlines.
#[cfg(not(orcheck_shuttle))]
#[inline]
pub fn now() -> std::time::Instant {
    std::time::Instant::now()
}
