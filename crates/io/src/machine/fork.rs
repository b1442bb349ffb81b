//! Identifies this process: a forked child has its parent's memory, but not its threads, pool or
//! promises.
//!
//! How: a page that the kernel wipes in a child (`MADV_WIPEONFORK`) holds a number. A child reads
//! zero there and draws another number when it needs one. The process id is compared too, for
//! kernels before 4.14 and for children that share the parent's memory (`vfork`, `clone` with
//! `CLONE_VM`), where nothing is wiped.
//!
//! Invariants:
//! 1. [`Owner::is_this_process`] takes no lock and allocates nothing: it may be called in a signal
//!    handler and in the child of a program with threads.
//! 2. An owner made before a fork is never that of the child, even if a process id is reused.
//!
//! Not here: what a child is refused.

#![allow(unsafe_code)]

use orcheck_format::sabotage::{Switch, off};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

/// The process that made it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner {
    pid: u32,
    mark: u64,
}

/// Keeps an [`Owner`] for readers that may not lock.
#[derive(Debug)]
pub struct OwnerCell {
    pid: AtomicU32,
    mark: AtomicU64,
}

impl OwnerCell {
    /// Nobody's.
    #[must_use]
    pub const fn new() -> OwnerCell {
        OwnerCell {
            pid: AtomicU32::new(0),
            mark: AtomicU64::new(0),
        }
    }

    /// Stores `owner`. Publish what is owned only afterwards.
    pub fn set(&self, owner: Owner) {
        self.pid.store(owner.pid, Ordering::SeqCst);
        self.mark.store(owner.mark, Ordering::SeqCst);
    }

    /// The value stored last.
    #[must_use]
    pub fn get(&self) -> Owner {
        Owner {
            pid: self.pid.load(Ordering::SeqCst),
            mark: self.mark.load(Ordering::SeqCst),
        }
    }
}

impl Default for OwnerCell {
    fn default() -> OwnerCell {
        OwnerCell::new()
    }
}

/// The page that a child finds wiped; NULL before the first use, and if the kernel cannot wipe.
static PAGE: AtomicPtr<AtomicU64> = AtomicPtr::new(null_mut());
/// The last mark drawn. A child has a copy of it and draws larger ones.
static MARKS: AtomicU64 = AtomicU64::new(0);

impl Owner {
    /// This process.
    #[must_use]
    pub fn this_process() -> Owner {
        let mark = page().map_or(0, |page| {
            let drawn = MARKS.fetch_add(1, Ordering::Relaxed) + 1;
            match page.compare_exchange(0, drawn, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => drawn,
                Err(present) => present,
            }
        });
        Owner {
            pid: std::process::id(),
            mark,
        }
    }

    /// The process id of the process that made it.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Whether this process made it, and not one from which this was forked.
    #[must_use]
    pub fn is_this_process(&self) -> bool {
        if off(Switch::ForkedChild) {
            return true;
        }
        let page = PAGE.load(Ordering::SeqCst);
        // SAFETY: what PAGE points to is never unmapped.
        let mark = unsafe { page.as_ref() }.map_or(0, |page| page.load(Ordering::SeqCst));
        self.mark == mark && self.pid == std::process::id()
    }
}

fn page() -> Option<&'static AtomicU64> {
    let present = PAGE.load(Ordering::SeqCst);
    // SAFETY: what PAGE points to is never unmapped.
    if let Some(page) = unsafe { present.as_ref() } {
        return Some(page);
    }
    let len_bytes = rustix::param::page_size();
    // SAFETY: a new private mapping, which nobody else knows.
    let fresh = unsafe {
        libc::mmap(
            null_mut(),
            len_bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    if fresh == libc::MAP_FAILED {
        return None;
    }
    // SAFETY: the mapping just made.
    let wiped = unsafe { libc::madvise(fresh, len_bytes, libc::MADV_WIPEONFORK) } == 0;
    if wiped
        && PAGE
            .compare_exchange(null_mut(), fresh.cast(), Ordering::SeqCst, Ordering::SeqCst)
            .is_ok()
    {
        // SAFETY: page-aligned, zeroed, and never unmapped.
        return Some(unsafe { &*fresh.cast::<AtomicU64>() });
    }
    // SAFETY: nobody else has seen this mapping.
    unsafe { libc::munmap(fresh, len_bytes) };
    // SAFETY: NULL, or another thread's page, which is never unmapped.
    unsafe { PAGE.load(Ordering::SeqCst).as_ref() }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Breaks if: only process ids are compared; they are reused, and are all 1 at the beginning of
    // a PID namespace.
    #[test]
    fn a_child_is_not_the_owner_even_with_the_same_process_id() {
        let owner = Owner::this_process();
        assert!(owner.is_this_process());
        assert_eq!(owner, Owner::this_process());
        // SAFETY: the child calls only what takes no lock, and ends without running destructors.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let same_id = Owner {
                pid: std::process::id(),
                mark: owner.mark,
            };
            let wrong = i32::from(owner.is_this_process() || same_id.is_this_process());
            // A session of the child's own belongs to the child.
            let own = Owner::this_process();
            let wrong = wrong + 2 * i32::from(!own.is_this_process() || own.mark == owner.mark);
            // SAFETY: ends the child.
            unsafe { libc::_exit(wrong) };
        }
        let mut status = -1;
        // SAFETY: waits for the child just made.
        let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!((waited, status), (child, 0));
        assert!(owner.is_this_process());
    }
}
