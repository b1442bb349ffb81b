//! An allocator that counts, for tests of what a piece of code allocates.
//!
//! How: the system's allocator with two counters for each thread. A test program makes it its
//! global allocator and runs the code inside [`Counting::peak_of`].
//!
//! Not here: allocations that fail.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// The system's allocator, counting.
pub struct Counting;

thread_local! {
    static LIVE: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

impl Counting {
    /// Runs `work` and returns with its result how many bytes more than before it had allocated on
    /// this thread at its peak.
    pub fn peak_of<T>(work: impl FnOnce() -> T) -> (T, usize) {
        let before = LIVE.get();
        PEAK.set(before);
        let value = work();
        (value, (PEAK.get() - before).max(0) as usize)
    }

    fn count(change: isize) {
        // A thread that ends may free after its counters are gone.
        let _ = LIVE.try_with(|live| {
            live.set(live.get() + change);
            let _ = PEAK.try_with(|peak| peak.set(peak.get().max(live.get())));
        });
    }
}

// SAFETY: every call is passed on unchanged to the system's allocator, which keeps the promises of
// the trait; the counters neither allocate nor panic.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        Self::count(layout.size() as isize);
        // SAFETY: the caller's promise, passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        Self::count(-(layout.size() as isize));
        // SAFETY: the caller's promise, passed on.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        Self::count(layout.size() as isize);
        // SAFETY: the caller's promise, passed on.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // While it moves, old and new exist together.
        Self::count(size as isize);
        Self::count(-(layout.size() as isize));
        // SAFETY: the caller's promise, passed on.
        unsafe { System.realloc(at, layout, size) }
    }
}
