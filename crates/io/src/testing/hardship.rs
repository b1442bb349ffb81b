//! Hard times for a process: resource limits, file systems that are small or simple, signals in every call.
//!
//! Invariants
//! 1. Everything here changes the calling process for good: call it in a forked child.
//! 2. What the machine does not allow is an error number, for the test to say so and skip.
//!
//! Not here: system calls that fail (`kernel`).
#![allow(unsafe_code)]

use crate::error::last_errno;
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::null;

/// A resource that the kernel limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resource {
    /// Addresses, in bytes (ulimit -v).
    Addresses,
    /// Length of a file, in bytes (ulimit -f).
    FileLength,
    /// Highest descriptor number plus one (ulimit -n).
    Descriptors,
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

/// Keeps `spare_bytes` of heap at hand and makes all threads use it, so that a limit of addresses meets what asks the
/// kernel for memory (mappings, stacks) and not the small allocations of the test itself.
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

/// From now on mounts of this process are its own; they vanish with it. Needs root.
///
/// # Errors
/// The error number.
pub fn own_mounts() -> Result<(), i32> {
    // SAFETY: takes an integer only.
    if unsafe { libc::unshare(libc::CLONE_NEWNS) } != 0 {
        return Err(last_errno());
    }
    let root = CString::new("/").unwrap_or_default();
    // SAFETY: a live path, and nothing else; makes later mounts invisible outside.
    let done = unsafe {
        libc::mount(
            null(),
            root.as_ptr(),
            null(),
            libc::MS_REC | libc::MS_PRIVATE,
            null(),
        )
    };
    if done == 0 { Ok(()) } else { Err(last_errno()) }
}

/// How something is mounted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mount {
    /// Memory of at most this many bytes.
    Small(u64),
    /// The same mount with another size.
    Resized(u64),
    /// A file system without direct I/O and without reserving space.
    Simple,
    /// What is there, but nobody may write.
    ReadOnly,
}

/// Mounts over an existing directory; after [`own_mounts`].
///
/// # Errors
/// The error number.
pub fn mount(at: &Path, how: Mount) -> Result<(), i32> {
    let text = |bytes: &[u8]| CString::new(bytes).map_err(|_| libc::EINVAL);
    let place = text(at.as_os_str().as_bytes())?;
    let mut calls: Vec<(&str, libc::c_ulong, String)> = Vec::new();
    match how {
        Mount::Small(len) => calls.push(("tmpfs", 0, format!("size={len}"))),
        Mount::Resized(len) => calls.push(("tmpfs", libc::MS_REMOUNT, format!("size={len}"))),
        Mount::Simple => calls.push(("ramfs", 0, String::new())),
        Mount::ReadOnly => {
            calls.push(("", libc::MS_BIND, String::new()));
            let flags = libc::MS_BIND | libc::MS_REMOUNT | libc::MS_RDONLY;
            calls.push(("", flags, String::new()));
        }
    }
    for (kind, flags, options) in calls {
        let (kind, options) = (text(kind.as_bytes())?, text(options.as_bytes())?);
        // SAFETY: all texts are live and end with zero.
        let done = unsafe {
            libc::mount(
                place.as_ptr(),
                place.as_ptr(),
                kind.as_ptr(),
                flags,
                options.as_ptr().cast(),
            )
        };
        if done != 0 {
            return Err(last_errno());
        }
    }
    Ok(())
}

extern "C" fn nothing(_: i32) {}

/// Interrupts this process every so many microseconds by a signal whose handler does nothing and after which the
/// kernel does not repeat the interrupted call by itself.
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
    // SAFETY: an all-zero `sigaction` with a handler of the plain signature is valid, and both structures live.
    let done = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = nothing as extern "C" fn(i32) as usize;
        let handled = libc::sigaction(libc::SIGALRM, &raw const action, std::ptr::null_mut());
        let armed = libc::setitimer(libc::ITIMER_REAL, &raw const timer, std::ptr::null_mut());
        handled == 0 && armed == 0
    };
    if done { Ok(()) } else { Err(last_errno()) }
}

/// Ends a mount of [`mount`].
///
/// # Errors
/// The error number.
pub fn unmount(at: &Path) -> Result<(), i32> {
    let place = CString::new(at.as_os_str().as_bytes()).map_err(|_| libc::EINVAL)?;
    // SAFETY: a live path that ends with zero.
    if unsafe { libc::umount2(place.as_ptr(), libc::MNT_DETACH) } == 0 {
        Ok(())
    } else {
        Err(last_errno())
    }
}
