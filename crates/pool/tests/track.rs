//! Tests which writes page tracking sees, and which it cannot.
//!
//! Skipped, with a message, where the kernel has no asynchronous write protection or forbids it.
#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    clippy::print_stderr,
    unsafe_code
)] // tests look behind the door

use orcheck_io::failpoints::{Failpoints, Verdict};
use orcheck_io::memory::Span;
use orcheck_pool::{Tracker, page_bytes};
use orcheck_testing::{Child, Ended, FaultPlan, Pinned, Scratch};
use std::io::Read;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(20);

/// Private anonymous pages of their own.
struct Memory {
    start: *mut u8,
    len: usize,
}

impl Memory {
    fn new(pages: usize) -> Memory {
        Memory::map(pages, libc::MAP_PRIVATE)
    }

    fn map(pages: usize, share: i32) -> Memory {
        let len = pages * page_bytes();
        // SAFETY: a new anonymous mapping touches nothing that exists.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                share | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        assert_ne!(start, libc::MAP_FAILED);
        let start: *mut u8 = start.cast();
        for page in 0..pages {
            // SAFETY: inside the mapping.
            unsafe { start.add(page * page_bytes()).write_volatile(1) };
        }
        Memory { start, len }
    }

    fn span(&self) -> Span {
        // SAFETY: the mapping outlives the test's use of the span.
        unsafe { Span::new(self.start, self.len) }
    }

    fn write(&self, page: usize) {
        // SAFETY: inside the mapping.
        unsafe { self.start.add(page * page_bytes() + 77).write_volatile(9) };
    }

    fn bytes(&mut self, page: usize) -> &mut [u8] {
        // SAFETY: inside the mapping, borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(page * page_bytes()), page_bytes()) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: mapped in `map`, unmapped once.
        unsafe { libc::munmap(self.start.cast(), self.len) };
    }
}

fn arm(memory: &Memory) -> Option<Tracker> {
    match Tracker::arm(memory.span(), &Failpoints::none()) {
        Ok(tracker) => Some(tracker),
        Err(error) => {
            eprintln!("SKIPPED: this system cannot track pages: {error}");
            None
        }
    }
}

fn pages_of(runs: &[(usize, usize)]) -> Vec<usize> {
    runs.iter()
        .flat_map(|&(first, count)| first..first + count)
        .collect()
}

// Breaks if: PM_SCAN_WP_MATCHING is left out of the scan; the second write would not be seen.
#[test]
fn every_write_is_seen_once() {
    let mut memory = Memory::new(10_000);
    let Some(mut tracker) = arm(&memory) else {
        return;
    };
    assert_eq!(
        tracker.scan(&[]).unwrap(),
        [(0, 10_000)],
        "at first everything counts as written"
    );
    assert_eq!(tracker.scan(&[]).unwrap(), []);
    memory.write(0);
    memory.write(4_500);
    memory.write(4_501);
    memory.write(9_999);
    assert_eq!(tracker.scan(&[]).unwrap(), [(0, 1), (4_500, 2), (9_999, 1)]);
    memory.write(4_500);
    assert_eq!(tracker.scan(&[]).unwrap(), [(4_500, 1)]);
    // The kernel's own writes through the page table: read(2).
    let mut zero = std::fs::File::open("/dev/zero").unwrap();
    zero.read_exact(memory.bytes(17)).unwrap();
    assert_eq!(tracker.scan(&[]).unwrap(), [(17, 1)]);
    // More runs than one call of the kernel returns.
    for page in (0..10_000).step_by(2) {
        memory.write(page);
    }
    let even: Vec<usize> = (0..10_000).step_by(2).collect();
    assert_eq!(pages_of(&tracker.scan(&[]).unwrap()), even);
}

// Breaks if: pages that are left open are protected, or do not count as written.
#[test]
fn pages_that_are_left_open_count_as_written() {
    let memory = Memory::new(1_000);
    let Some(mut tracker) = arm(&memory) else {
        return;
    };
    tracker.scan(&[]).unwrap();
    (10..15).for_each(|page| memory.write(page));
    memory.write(20);
    let open = [(0, 2), (10, 5), (998, 2)];
    assert_eq!(
        tracker.scan(&open).unwrap(),
        [(0, 2), (10, 5), (20, 1), (998, 2)]
    );
    assert_eq!(
        tracker.scan(&[]).unwrap(),
        [(10, 5)],
        "written, and nothing has protected them since"
    );
    assert_eq!(tracker.scan(&[]).unwrap(), []);
}

#[test]
fn huge_pages_are_tracked_page_by_page() {
    let huge = 2 << 20;
    let memory = Memory::new(4 * huge / page_bytes());
    let at = memory.start.align_offset(huge);
    // SAFETY: advice about a part of the mapping.
    unsafe { libc::madvise(memory.start.add(at).cast(), 2 * huge, libc::MADV_HUGEPAGE) };
    // SAFETY: as above; collapses into huge pages where the kernel can, and is refused elsewhere.
    unsafe { libc::madvise(memory.start.add(at).cast(), 2 * huge, 25) };
    let Some(mut tracker) = arm(&memory) else {
        return;
    };
    tracker.scan(&[]).unwrap();
    let page = at / page_bytes() + 100;
    memory.write(page);
    assert_eq!(tracker.scan(&[]).unwrap(), [(page, 1)]);
}

// Breaks if: the scan asks for pages that are present and written.
#[test]
fn discarded_pages_count_as_written() {
    let huge = 2 << 20;
    let memory = Memory::new(4 * huge / page_bytes());
    let Some(mut tracker) = arm(&memory) else {
        return;
    };
    tracker.scan(&[]).unwrap();
    // One page, and one whole page table.
    let at = memory.start.align_offset(huge);
    for (at, len) in [(3 * page_bytes(), page_bytes()), (at, huge)] {
        // SAFETY: a part of the mapping, without any reference to it.
        let discarded =
            unsafe { libc::madvise(memory.start.add(at).cast(), len, libc::MADV_DONTNEED) };
        assert_eq!(discarded, 0);
        let (first, count) = (at / page_bytes(), len / page_bytes());
        assert_eq!(tracker.scan(&[]).unwrap(), [(first, count)], "at {at}");
        // SAFETY: inside the mapping.
        unsafe { memory.start.add(at).write_volatile(1) };
        assert!(pages_of(&tracker.scan(&[]).unwrap()).contains(&first));
    }
}

#[test]
fn memory_that_was_mapped_anew_is_an_error() {
    let memory = Memory::new(64);
    let Some(mut tracker) = arm(&memory) else {
        return;
    };
    tracker.scan(&[]).unwrap();
    // SAFETY: replaces a part of the test's own mapping, without any reference to it.
    let again = unsafe {
        libc::mmap(
            memory.start.add(8 * page_bytes()).cast(),
            4 * page_bytes(),
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED,
            -1,
            0,
        )
    };
    assert_ne!(again, libc::MAP_FAILED);
    // Breaks if: PM_SCAN_CHECK_WPASYNC is left out; the new pages would never be seen again.
    assert!(tracker.scan(&[]).is_err());
    // A tracker armed again works.
    drop(tracker);
    let mut tracker = arm(&memory).unwrap();
    assert_eq!(tracker.scan(&[]).unwrap(), [(0, 64)]);
}

#[test]
fn a_fork_loses_no_write() {
    let memory = Memory::new(64);
    let Some(mut tracker) = arm(&memory) else {
        return;
    };
    tracker.scan(&[]).unwrap();
    memory.write(5);
    let child = Child::run(|| {
        memory.write(6);
        0
    });
    memory.write(7);
    assert_eq!(child.wait(LIMIT), Ended::Exited(0));
    memory.write(8);
    let seen = pages_of(&tracker.scan(&[]).unwrap());
    assert!([5, 7, 8].iter().all(|page| seen.contains(page)), "{seen:?}");
    memory.write(9);
    let seen = pages_of(&tracker.scan(&[]).unwrap());
    assert!(seen.contains(&9), "{seen:?}");
}

#[test]
fn only_private_memory_is_tracked_and_only_once() {
    let shared = Memory::map(16, libc::MAP_SHARED);
    let memory = Memory::new(64);
    let Some(tracker) = arm(&memory) else { return };
    let refused = |span: Span| {
        Tracker::arm(span, &Failpoints::none())
            .err()
            .unwrap()
            .to_string()
    };
    // Breaks if: `check_private` is not called; another process could write these pages unseen.
    assert!(
        refused(shared.span()).contains("not private"),
        "{}",
        refused(shared.span())
    );
    let part = memory.span().sub(page_bytes(), 4 * page_bytes());
    assert!(refused(part).contains("registering"), "{}", refused(part));
    assert!(refused(memory.span().sub(1, page_bytes())).contains("no whole page"));
    drop(tracker);
    assert!(Tracker::arm(part, &Failpoints::none()).is_ok());
}

#[test]
fn refusals_are_errors() {
    let memory = Memory::new(16);
    let (_, failpoints) = FaultPlan::new()
        .at_site("track.arm", 1, Verdict::Fail(libc::EPERM))
        .failpoints();
    assert!(Tracker::arm(memory.span(), &failpoints).is_err());
    let (_, failpoints) = FaultPlan::new()
        .at_site("track.scan", 2, Verdict::Fail(libc::EIO))
        .failpoints();
    let Ok(mut tracker) = Tracker::arm(memory.span(), &failpoints) else {
        return;
    };
    tracker.scan(&[]).unwrap();
    memory.write(3);
    assert!(tracker.scan(&[]).is_err());
    assert_eq!(tracker.scan(&[]).unwrap(), [(3, 1)]);
}

/// Why the flag is a promise of the program: pages that were pinned before are written behind the
/// page table.
#[test]
fn writes_to_pinned_pages_are_not_seen() {
    let mut memory = Memory::new(64);
    let pinned = match Pinned::new(memory.span()) {
        Ok(pinned) => pinned,
        Err(error) => return eprintln!("SKIPPED: this system has no io_uring: {error}"),
    };
    let Some(mut tracker) = arm(&memory) else {
        return;
    };
    tracker.scan(&[]).unwrap();
    let scratch = Scratch::new("pinned");
    let path = scratch.path().join("source");
    std::fs::write(&path, vec![0xab; page_bytes()]).unwrap();
    let file = std::fs::File::open(&path).unwrap();
    pinned.read(&file, 9 * page_bytes(), page_bytes()).unwrap();
    assert_eq!(memory.bytes(9)[0], 0xab, "the page was written");
    assert_eq!(
        tracker.scan(&[]).unwrap(),
        [],
        "and the page table knows nothing of it"
    );
}

/// Another process writes through this one's page table, so this kernel notes it; the promise is
/// not built on it.
#[test]
fn writes_of_another_process_leave_no_page_clean_and_changed_twice() {
    let mut memory = Memory::new(64);
    let Some(mut tracker) = arm(&memory) else {
        return;
    };
    tracker.scan(&[]).unwrap();
    let (parent, address) = (
        std::process::id() as i32,
        memory.start as usize + 11 * page_bytes(),
    );
    let child = Child::run(move || {
        let bytes = [0xcdu8; 64];
        let from = libc::iovec {
            iov_base: bytes.as_ptr().cast_mut().cast(),
            iov_len: bytes.len(),
        };
        let to = libc::iovec {
            iov_base: address as *mut libc::c_void,
            iov_len: bytes.len(),
        };
        // SAFETY: writes 64 bytes into a page of the parent that exists for as long as the child is
        // waited for.
        let wrote =
            unsafe { libc::process_vm_writev(parent, &raw const from, 1, &raw const to, 1, 0) };
        i32::from(wrote != 64)
    });
    match child.wait(LIMIT) {
        Ended::Exited(0) => {}
        ended => return eprintln!("SKIPPED: process_vm_writev is refused here: {ended:?}"),
    }
    assert_eq!(memory.bytes(11)[0], 0xcd);
    let seen = pages_of(&tracker.scan(&[]).unwrap());
    eprintln!(
        "a write by process_vm_writev was {}",
        if seen == [11] { "seen" } else { "not seen" }
    );
    assert!(seen.is_empty() || seen == [11], "{seen:?}");
}
