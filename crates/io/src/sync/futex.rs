//! Waits on a 32-bit word of memory that several processes share.
//!
//! Invariants
//! 1. It never uses the private variant, because the waiters may be in different processes.
//! 2. Every wait ends by its timeout; callers treat a return as "look again", never as "it
//!    happened".
//!
//! Faults survived: a waker that dies before waking (the timeout), spurious wake-ups.
//! Not here: what the words mean.

use rustix::thread::futex::{self, Flags};
use rustix::time::Timespec;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

/// Sleeps while the word holds `value`, at most `timeout`.
pub fn wait(word: &AtomicU32, value: u32, timeout: Duration) {
    let limit = Timespec {
        tv_sec: i64::try_from(timeout.as_secs())
            .unwrap_or(i64::MAX)
            .min(1 << 40),
        tv_nsec: timeout.subsec_nanos().into(),
    };
    // A change, a wake, a signal and the timeout are all the same to the caller: it looks again.
    let _ = futex::wait(word, Flags::empty(), value, Some(&limit));
}

/// Wakes up to `count` waiters.
pub fn wake(word: &AtomicU32, count: u32) {
    let _ = futex::wake(word, Flags::empty(), count.min(i32::MAX as u32));
}
