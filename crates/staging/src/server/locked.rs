//! A lock that a panicking thread cannot keep from the others.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// The value, also after a thread panicked with it: each user of a lock leaves it consistent.
pub(crate) fn guard<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
