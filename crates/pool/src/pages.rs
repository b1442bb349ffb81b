//! Provides the pool's memory: a memory file with normal or huge pages, and its mapping.
//!
//! How: the memory is a memfd. It comes from the machine's reserve of huge pages (hugetlb) if that
//! is requested and the reserve is large enough. Otherwise it has normal pages, for which advice
//! may request transparent huge pages; the kernel follows the advice if its administrator permits
//! (`/sys/kernel/mm/transparent_hugepage/shmem_enabled`). The mapping is aligned for both. See
//! `docs/adr/0009-huge-pages-only-when-asked.md` for measurements.
//!
//! Invariants
//! 1. Unavailable huge pages are not an error: normal pages replace them.
//! 2. Memory from the reserve is reserved as a whole when it is created; no later access can fail.
//!
//! Faults survived: an empty reserve, kernels and containers without either kind.
//! Not here: the use of each part (see [`crate::pool`]), memory nodes (see [`crate::numa`]).
#![allow(unsafe_code)]

use orcheck_format::{Error, Result};
use orcheck_io::descriptor;
use orcheck_io::errno::rustix_error;
use orcheck_io::memory::Span;
use rustix::fs::{self, MemfdFlags};
use rustix::io::Errno;
use rustix::mm::{self, Advice, MapFlags, ProtFlags};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

/// The size of the pool's pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum HugePages {
    /// Whatever the kernel gives without a request.
    #[default]
    Off,
    /// Transparent huge pages, requested by advice.
    Transparent,
    /// From the machine's reserve, if it holds the whole pool.
    Reserved,
}

/// The size of a huge page where Orcheck uses them.
pub(crate) const HUGE_BYTES: usize = 2 << 20;

/// The error that a pool of `len` bytes cannot be made.
pub(crate) fn cannot_create(len: u64, errno: Errno) -> Error {
    let error = rustix_error(errno, format_args!("create a pool of {len} bytes"));
    match errno {
        Errno::NOSPC | Errno::NOMEM | Errno::FBIG => error.next("make the pool smaller"),
        Errno::MFILE | Errno::NFILE => error.next("raise the limit of open files (ulimit -n)"),
        _ => error,
    }
}

/// Makes a memory file of `len` bytes whose parts are multiples of `part`.
pub(crate) fn memory_file(len: u64, part: u64, huge: HugePages) -> Result<OwnedFd> {
    let what = |errno| cannot_create(len, errno);
    let fits = len.is_multiple_of(HUGE_BYTES as u64) && part.is_multiple_of(HUGE_BYTES as u64);
    if huge == HugePages::Reserved
        && fits
        && let Some(file) = reserved_file(len)
    {
        return Ok(file);
    }
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = descriptor::memory_file("orcheck-pool", flags).map_err(what)?;
    fs::ftruncate(&file, len).map_err(what)?;
    Ok(file)
}

/// The same with huge pages; `None` if the reserve is too small.
fn reserved_file(len: u64) -> Option<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC
        | MemfdFlags::ALLOW_SEALING
        | MemfdFlags::HUGETLB
        | MemfdFlags::HUGE_2MB;
    let file = descriptor::memory_file("orcheck-pool", flags).ok()?;
    fs::ftruncate(&file, len).ok()?;
    // Mapping it reserves its pages, and they stay reserved for the file.
    let start = map(&file, len as usize, true).ok()?;
    // SAFETY: exactly the mapping just made, which nobody knows.
    unsafe { mm::munmap(start.cast(), len as usize) }.ok()?;
    Some(file)
}

/// Maps all of a memory file of `len` bytes, aligned for huge pages; unless it is `writable`, for
/// reading.
pub(crate) fn map(file: impl AsFd, len: usize, writable: bool) -> Result<*mut u8> {
    let what = |errno| {
        rustix_error(errno, format_args!("map {len} bytes of pool memory"))
            .next("make the pool smaller, or raise the address space limit (ulimit -v)")
    };
    let room = len
        .checked_add(HUGE_BYTES)
        .ok_or_else(|| Error::invalid(format!("a pool of {len} bytes: too large")))?;
    let nothing = ProtFlags::empty();
    let private = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: fresh addresses of the kernel's choice, then a part of them replaced by the file and
    // the rest given back; nobody else knows of them.
    unsafe {
        let found =
            mm::mmap_anonymous(std::ptr::null_mut(), room, nothing, private).map_err(what)?;
        let before = found.cast::<u8>().align_offset(HUGE_BYTES);
        let start = found.cast::<u8>().add(before);
        let access = match writable {
            true => ProtFlags::READ | ProtFlags::WRITE,
            false => ProtFlags::READ,
        };
        let shared = MapFlags::SHARED | MapFlags::FIXED;
        if let Err(errno) = mm::mmap(start.cast(), len, access, shared, file, 0) {
            let _ = mm::munmap(found, room);
            return Err(what(errno));
        }
        if before > 0 {
            let _ = mm::munmap(found, before);
        }
        let end = len.next_multiple_of(4096);
        if before + end < room {
            let _ = mm::munmap(start.add(end).cast(), room - before - end);
        }
        Ok(start)
    }
}

/// Requests transparent huge pages; `false` if the kernel does not have them.
pub(crate) fn prefer_huge(span: Span) -> bool {
    // SAFETY: a part of our own mapping; the advice changes no contents.
    unsafe {
        mm::madvise(
            span.pointer().cast(),
            span.len_bytes(),
            Advice::LinuxHugepage,
        )
    }
    .is_ok()
}

/// Allocates pages for a part of the mapping and maps them in this process, as a write would.
/// `Ok(false)`: kernels before 5.14 do not have this call.
pub(crate) fn populate(span: Span) -> std::result::Result<bool, Errno> {
    // SAFETY: a part of our own mapping; populating changes no contents.
    let done = unsafe {
        mm::madvise(
            span.pointer().cast(),
            span.len_bytes(),
            Advice::LinuxPopulateWrite,
        )
    };
    match done {
        Ok(()) => Ok(true),
        Err(Errno::INVAL | Errno::NOSYS) => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// Faults in every page without changing its contents, even while others write it.
pub(crate) fn touch(span: Span) {
    for at in (0..span.len_bytes()).step_by(4096) {
        // SAFETY: inside the span, a multiple of 4096 from its page-aligned start; adding nothing
        // atomically is invisible to everybody else.
        let cell = unsafe { &*span.pointer().add(at).cast::<AtomicU64>() };
        // An addition of zero that the compiler recognises is no write: it removed the whole loop.
        cell.fetch_add(std::hint::black_box(0), Ordering::Relaxed);
    }
}
