//! Probes what the kernel can do, by trying each feature once on memory and descriptors of its own.
//!
//! How: version numbers are unreliable (vendors port features back, containers and security modules
//! remove them), so each feature is used for one page or one descriptor, and undone.
//!
//! Invariants
//! 1. A probe leaves nothing behind: no mapping, no descriptor, no file.
//! 2. A refusal is a result, never an error.
//! 3. `unsafe` is used for system calls on memory that the probe itself maps or owns.
//!
//! Faults survived: kernels without the call (ENOSYS), filters that refuse it (EPERM, EACCES).
//!
//! Not here: which fallback is used without a feature, and advice; files and directories (see
//! [`crate::disk`]).
#![allow(unsafe_code)]

use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

/// One feature of the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Probe {
    /// The feature's name.
    pub name: &'static str,
    /// Whether this process can use it.
    pub available: bool,
    /// The kernel's answer if it refused; otherwise empty.
    pub refusal: String,
}

/// Tries every feature that has a fallback.
#[must_use]
pub fn kernel_features() -> Vec<Probe> {
    vec![
        result("userfaultfd", userfaultfd()),
        result("PAGEMAP_SCAN", pagemap_scan()),
        result("MADV_POPULATE_WRITE", populate_write()),
        result("openat2", openat2()),
        result("close_range", close_range()),
        result("io_uring", io_uring()),
        result("sealed memfd", sealed_memfd()),
    ]
}

fn result(name: &'static str, tried: Result<(), Errno>) -> Probe {
    match tried {
        Ok(()) => Probe {
            name,
            available: true,
            refusal: String::new(),
        },
        Err(errno) => Probe {
            name,
            available: false,
            refusal: errno.to_string(),
        },
    }
}

fn last_errno() -> Errno {
    Errno::from_raw_os_error(
        std::io::Error::last_os_error()
            .raw_os_error()
            .unwrap_or(libc::EINVAL),
    )
}

/// Takes over the descriptor that a system call returned.
fn descriptor(returned: libc::c_long) -> Result<OwnedFd, Errno> {
    match i32::try_from(returned) {
        // SAFETY: the call has just returned this descriptor, so it is open and nobody else owns
        // it.
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(last_errno()),
    }
}

/// A whole number of pages, whatever their size.
const PAGES_BYTES: usize = 64 << 10;

/// Pages of private memory, unmapped on drop.
struct Page {
    start: *mut libc::c_void,
    len: usize,
}

impl Page {
    fn map() -> Result<Page, Errno> {
        let len = PAGES_BYTES;
        // SAFETY: a new anonymous mapping at an address of the kernel's choice touches nothing that
        // exists.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if start == libc::MAP_FAILED {
            Err(last_errno())
        } else {
            Ok(Page { start, len })
        }
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours alone and no reference into it exists.
        unsafe { libc::munmap(self.start, self.len) };
    }
}

/// Asynchronous write protection of anonymous memory, faults in user mode only.
fn userfaultfd() -> Result<(), Errno> {
    const USER_MODE_ONLY: libc::c_int = 1;
    const API: u64 = 0xaa;
    const WP_UNPOPULATED: u64 = 1 << 13;
    const WP_ASYNC: u64 = 1 << 15;
    const UFFDIO_API: libc::c_ulong = 0xc018_aa3f;
    let flags = libc::O_CLOEXEC | libc::O_NONBLOCK | USER_MODE_ONLY;
    // SAFETY: the call takes one integer and returns a descriptor.
    let fd = descriptor(unsafe { libc::syscall(libc::SYS_userfaultfd, flags) })?;
    let mut request: [u64; 3] = [API, WP_UNPOPULATED | WP_ASYNC, 0];
    // SAFETY: UFFDIO_API reads and writes exactly three 64-bit words, which `request` has.
    if unsafe { libc::ioctl(fd.as_raw_fd(), UFFDIO_API as _, request.as_mut_ptr()) } < 0 {
        return Err(last_errno());
    }
    Ok(())
}

/// The call that finds written pages without reading the whole page map.
fn pagemap_scan() -> Result<(), Errno> {
    const REQUEST: libc::c_ulong = 0xc060_6610;
    const IS_PRESENT: u64 = 1 << 3;
    let page = Page::map()?;
    let pagemap = File::open("/proc/self/pagemap")
        .map_err(|error| Errno::from_raw_os_error(error.raw_os_error().unwrap_or(libc::EACCES)))?;
    let start = page.start as u64;
    let mut regions = [0u64; 3];
    // struct pm_scan_arg: size, flags, start, end, walk_end, vec, vec_len, max_pages,
    // category_inverted, category_mask, category_anyof_mask, return_mask.
    let mut arguments: [u64; 12] = [
        96,
        0,
        start,
        start + page.len as u64,
        0,
        regions.as_mut_ptr() as u64,
        1,
        0,
        0,
        IS_PRESENT,
        0,
        IS_PRESENT,
    ];
    // SAFETY: the call reads and writes the twelve words of `arguments` and at most one region of
    // three words, which `regions` has; both outlive it.
    if unsafe { libc::ioctl(pagemap.as_raw_fd(), REQUEST as _, arguments.as_mut_ptr()) } < 0 {
        return Err(last_errno());
    }
    Ok(())
}

/// Filling page tables before the first write.
fn populate_write() -> Result<(), Errno> {
    const MADV_POPULATE_WRITE: libc::c_int = 23;
    let page = Page::map()?;
    // SAFETY: the page is mapped, writable and ours.
    if unsafe { libc::madvise(page.start, page.len, MADV_POPULATE_WRITE) } < 0 {
        return Err(last_errno());
    }
    Ok(())
}

/// Opening beneath a directory, decided by the kernel.
fn openat2() -> Result<(), Errno> {
    let root = rustix::fs::open(
        "/",
        OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::openat2(
        &root,
        ".",
        flags,
        Mode::empty(),
        ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS,
    )
    .map(drop)
}

fn close_range() -> Result<(), Errno> {
    let first: libc::c_uint = libc::c_uint::MAX;
    // SAFETY: no descriptor can have the highest number, so nothing is closed.
    if unsafe { libc::syscall(libc::SYS_close_range, first, first, 0) } < 0 {
        return Err(last_errno());
    }
    Ok(())
}

fn io_uring() -> Result<(), Errno> {
    // struct io_uring_params has 120 bytes; zeros ask for nothing special.
    let mut parameters = [0u64; 15];
    // SAFETY: the call reads and writes `parameters` only and returns a descriptor.
    descriptor(unsafe { libc::syscall(libc::SYS_io_uring_setup, 1, parameters.as_mut_ptr()) })
        .map(drop)
}

fn sealed_memfd() -> Result<(), Errno> {
    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
    let fd = memfd_create(
        "orcheck-probe",
        MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING,
    )?;
    ftruncate(&fd, 4096)?;
    fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_feature_is_tried_and_nothing_stays_open() {
        let open = || {
            std::fs::read_dir("/proc/self/fd")
                .map(Iterator::count)
                .unwrap_or(0)
        };
        let before = open();
        let probes = kernel_features();
        // Other tests of this process open and close files meanwhile, so only a large growth would
        // be a leak: a hundred rounds leave a hundred descriptors if each round left one.
        for _ in 0..100 {
            assert_eq!(kernel_features().len(), probes.len());
        }
        assert!(open() < before + 100);
        for probe in probes {
            assert_eq!(probe.available, probe.refusal.is_empty(), "{probe:?}");
        }
    }
}
