//! Hard times for a process: resource limits, signals in every call.
//!
//! Invariants
//! 1. Everything here changes the calling process for good: call it in a forked child.
//! 2. What the machine does not allow is an error number, for the test to say so and skip.
//!
//! Not here: system calls that fail (`kernel`), file systems that are small or simple (`mount`).
#![allow(unsafe_code)]

use orcheck_io::errno::last_errno;

/// A resource that the kernel limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resource {
    /// Addresses, in bytes (ulimit -v).
    Addresses,
    /// Length of a file, in bytes (ulimit -f).
    FileLength,
    /// Highest descriptor number plus one (ulimit -n).
    Descriptors,
    /// Memory that is locked or pinned, in bytes (ulimit -l).
    LockedMemory,
}

/// Sets the soft limit of this process.
///
/// # Errors
/// The error number.
pub fn limit(resource: Resource, value: u64) -> Result<(), i32> {
    let which = match resource {
        Resource::Addresses => libc::RLIMIT_AS,
        Resource::FileLength => libc::RLIMIT_FSIZE,
        Resource::Descriptors => libc::RLIMIT_NOFILE,
        Resource::LockedMemory => libc::RLIMIT_MEMLOCK,
    };
    let mut now = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: fills a live structure.
    if unsafe { libc::getrlimit(which, &raw mut now) } != 0 {
        return Err(last_errno());
    }
    now.rlim_cur = value.min(now.rlim_max);
    // SAFETY: reads a live structure.
    if unsafe { libc::setrlimit(which, &raw const now) } != 0 {
        return Err(last_errno());
    }
    Ok(())
}

/// Keeps `spare_bytes` of heap at hand and makes all threads use it, so that a limit of addresses
/// meets what asks the kernel for memory (mappings, stacks) and not the small allocations of the
/// test itself.
///
/// # Panics
/// When the memory cannot be had.
pub fn keep_spare_heap(spare_bytes: usize) {
    // SAFETY: these calls only set parameters of the allocator.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
        libc::mallopt(libc::M_TRIM_THRESHOLD, i32::MAX);
        libc::mallopt(libc::M_MMAP_THRESHOLD, i32::MAX);
    }
    let spare: Vec<Vec<u8>> = (0..spare_bytes >> 16).map(|_| vec![1u8; 1 << 16]).collect();
    assert!(spare.iter().all(|block| block[7] == 1));
}

/// Touches a mebibyte of this thread's stack, so that it need not grow later: where there are no
/// addresses to grow into, the kernel ends the process, whatever it was doing.
pub fn keep_spare_stack() {
    #[inline(never)]
    fn touch(deeper: u32) -> u8 {
        let block = std::hint::black_box([1u8; 1 << 16]);
        match deeper {
            0 => block[7],
            _ => touch(deeper - 1) ^ std::hint::black_box(block)[7],
        }
    }
    std::hint::black_box(touch(16));
}

/// Becomes another user, for good. Needs root.
///
/// # Errors
/// The error number.
pub fn become_user(user: u32) -> Result<(), i32> {
    // SAFETY: takes integers only; the system call changes this thread, and the caller has no
    // other.
    match unsafe { libc::syscall(libc::SYS_setresuid, user, user, user) } {
        0 => Ok(()),
        _ => Err(last_errno()),
    }
}

/// The same with one group, and no other one.
///
/// # Errors
/// The error number.
pub fn become_member(user: u32, group: u32) -> Result<(), i32> {
    // SAFETY: the list has one entry, and lives; otherwise as above.
    let done = unsafe {
        libc::syscall(libc::SYS_setgroups, 1, &raw const group) == 0
            && libc::syscall(libc::SYS_setresgid, group, group, group) == 0
    };
    if done {
        become_user(user)
    } else {
        Err(last_errno())
    }
}

extern "C" fn nothing(_: i32) {}

/// Interrupts this process every this many microseconds by a signal whose handler does nothing and
/// after which the kernel does not repeat the interrupted call by itself.
///
/// # Errors
/// The error number.
pub fn interrupt_every(microseconds: u32) -> Result<(), i32> {
    let pause = libc::timeval {
        tv_sec: (microseconds / 1_000_000).into(),
        tv_usec: (microseconds % 1_000_000).into(),
    };
    let timer = libc::itimerval {
        it_interval: pause,
        it_value: pause,
    };
    // SAFETY: an all-zero `sigaction` with a handler of the plain signature is valid, and both
    // structures live.
    let done = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = nothing as extern "C" fn(i32) as usize;
        let handled = libc::sigaction(libc::SIGALRM, &raw const action, std::ptr::null_mut());
        let armed = libc::setitimer(libc::ITIMER_REAL, &raw const timer, std::ptr::null_mut());
        handled == 0 && armed == 0
    };
    if done { Ok(()) } else { Err(last_errno()) }
}
