//! Tracks which pages of the program's memory were written, by asking the kernel instead of reading
//! the memory.
//!
//! How: the pages are write-protected asynchronously (`userfaultfd`; the kernel itself lifts the
//! protection on the first write). One call lists the pages whose protection is gone and protects
//! them again (`PAGEMAP_SCAN`). Both calls are probed at run time; a refusal is an error, and the
//! caller then reads all of the memory.
//!
//! What it does **not** see: writes that bypass this process's page tables, that is, DMA and the
//! kernel writing to pages that were pinned before (RDMA, io_uring's registered buffers, GPUs). The
//! caller tracks only memory that, according to the program, is written only by the processors of
//! this process.
//!
//! Invariants
//! 1. Only whole pages of private anonymous memory are tracked, as verified in `/proc/self/maps`:
//!    nobody else can write them through another mapping.
//! 2. A page counts as written until a scan has protected it: the first scan reports all pages, and
//!    the next one reports pages that were unmapped or discarded meanwhile. The kernel does not
//!    document the latter, so it is tried once on a page of our own. If it does not hold, scans
//!    also ask for absent pages, which takes a longer path through the kernel.
//! 3. Memory that was mapped again is an error of the next scan, never a clean page.
//! 4. Nobody else tracks the same pages: the kernel refuses a second tracker (whose scans would
//!    take writes away from the first).
//! 5. Pages that the caller leaves open, because they change all the time, count as written; the
//!    first scan that asks about them again reports them.
//! 6. Dropping a tracker lifts all protection and closes what it opened.
//!
//! Faults survived: a kernel without one of the calls, a policy that forbids them, memory that
//! vanishes. Failpoints: `track.arm`, `track.scan`. Not here: what to do with written pages (the
//! engine).
#![allow(unsafe_code)]

use orcheck_format::sabotage::{Switch, off};
use orcheck_format::{Error, Result};
use orcheck_io::descriptor::{above_streams, away_from_streams};
use orcheck_io::errno::os_error;
use orcheck_io::failpoints::Failpoints;
use orcheck_io::memory::Span;
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::OnceLock;

/// Maximum number of ranges that one call of the kernel returns.
const BATCH: usize = 4096;

const UFFD_USER_MODE_ONLY: libc::c_int = 1;
const UFFD_API: u64 = 0xaa;
const FEATURE_PAGEFAULT_FLAG_WP: u64 = 1;
const FEATURE_WP_UNPOPULATED: u64 = 1 << 13;
const FEATURE_WP_ASYNC: u64 = 1 << 15;
const UFFDIO_API: libc::c_ulong = 0xc018_aa3f;
const UFFDIO_REGISTER: libc::c_ulong = 0xc020_aa00;
const REGISTER_MODE_WP: u64 = 2;

const PAGEMAP_SCAN: libc::c_ulong = 0xc060_6610;
const SCAN_WP_MATCHING: u64 = 1;
const SCAN_CHECK_WPASYNC: u64 = 2;
const PAGE_IS_WRITTEN: u64 = 1 << 1;
const PAGE_IS_PRESENT: u64 = 1 << 3;
/// Categories of a scan: inverted, all of, any of. Written; the kernel has a shorter path for just
/// this one.
const WRITTEN: [u64; 3] = [0, PAGE_IS_WRITTEN, 0];
/// Written, or absent: a discarded page has other bytes now although nobody wrote it.
const WRITTEN_OR_GONE: [u64; 3] = [PAGE_IS_PRESENT, 0, PAGE_IS_WRITTEN | PAGE_IS_PRESENT];

/// Size of the kernel's pages.
#[must_use]
pub fn page_bytes() -> usize {
    rustix::param::page_size()
}

/// The pages of a piece of memory whose writes the kernel records.
pub struct Tracker {
    first: usize,
    pages: usize,
    pagemap: File,
    /// The categories that a scan requests.
    wanted: [u64; 3],
    failpoints: Failpoints,
    /// Closing it lifts the protection.
    _fault: OwnedFd,
}

impl Tracker {
    /// Starts to track the whole pages inside `span`.
    ///
    /// # Errors
    /// Unsupported for memory that is not private and anonymous, holds no whole page or is already
    /// tracked, and for a kernel that lacks or forbids the calls.
    pub fn arm(span: Span, failpoints: &Failpoints) -> Result<Tracker> {
        let page = page_bytes();
        let first = span.address().next_multiple_of(page);
        let end = (span.address() + span.len_bytes()) / page * page;
        if first >= end {
            return Err(Error::unsupported("no whole page lies in the region"));
        }
        refused(failpoints, "track.arm", (end - first) / page)?;
        if !off(Switch::PrivatePages) {
            check_private(first, end)?;
        }
        Tracker::watch(first, (end - first) / page, wanted(), failpoints)
    }

    /// Registers private memory with the kernel.
    fn watch(
        first: usize,
        pages: usize,
        wanted: [u64; 3],
        failpoints: &Failpoints,
    ) -> Result<Tracker> {
        let flags = libc::O_CLOEXEC | libc::O_NONBLOCK | UFFD_USER_MODE_ONLY;
        // SAFETY: the call takes one integer and returns a descriptor.
        let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, flags) };
        let fd = i32::try_from(fd).unwrap_or(-1);
        if fd < 0 {
            return Err(unsupported("userfaultfd"));
        }
        // SAFETY: the call has just returned this descriptor: it is open and nobody else owns it.
        let fault = unsafe { OwnedFd::from_raw_fd(fd) };
        let fault = above_streams(fault).map_err(|_| unsupported("userfaultfd"))?;
        let fd = fault.as_raw_fd();
        let features = FEATURE_PAGEFAULT_FLAG_WP | FEATURE_WP_UNPOPULATED | FEATURE_WP_ASYNC;
        let mut api = [UFFD_API, features, 0];
        // SAFETY: UFFDIO_API reads and writes exactly three 64-bit words, which `api` has.
        if unsafe { libc::ioctl(fd, UFFDIO_API as _, api.as_mut_ptr()) } < 0 {
            return Err(unsupported("asynchronous write protection"));
        }
        let len = (pages * page_bytes()) as u64;
        let mut register = [first as u64, len, REGISTER_MODE_WP, 0];
        // SAFETY: UFFDIO_REGISTER reads and writes exactly four 64-bit words. With asynchronous
        // write protection no fault is ever left to this process to resolve, so the program cannot
        // be stopped.
        if unsafe { libc::ioctl(fd, UFFDIO_REGISTER as _, register.as_mut_ptr()) } < 0 {
            return Err(unsupported("registering memory for write protection"));
        }
        let pagemap = away_from_streams(|| File::open("/proc/self/pagemap"))
            .map_err(|error| Error::unsupported(format!("/proc/self/pagemap: {error}")))?;
        Ok(Tracker {
            first,
            pages,
            pagemap,
            wanted,
            failpoints: failpoints.clone(),
            _fault: fault,
        })
    }

    /// Address of the first tracked page.
    #[must_use]
    pub fn address(&self) -> usize {
        self.first
    }

    /// Tracked pages.
    #[must_use]
    pub fn pages(&self) -> usize {
        self.pages
    }

    /// The pages written since the last scan, as ascending ranges (first, count) of page numbers
    /// from [`Self::address`] on, which do not touch each other; they are protected again. A write
    /// after this call is in the next scan. After an error, nothing is known about any page.
    ///
    /// `open`: ranges of the same form that stay without protection, and count as written.
    ///
    /// # Errors
    /// Unsupported if the memory is no longer the one that was armed, or the kernel refuses.
    pub fn scan(&mut self, open: &[(usize, usize)]) -> Result<Vec<(usize, usize)>> {
        refused(&self.failpoints, "track.scan", self.pages)?;
        let mut written = Vec::new();
        let mut found = vec![[0u64; 3]; BATCH];
        let mut from = 0;
        for &(first, count) in open {
            self.scan_part(from, first, &mut found, &mut written)?;
            if !off(Switch::OpenPages) {
                add(&mut written, first, count);
            }
            from = first + count;
        }
        self.scan_part(from, self.pages, &mut found, &mut written)?;
        Ok(written)
    }

    /// Adds the written ones of the pages `from..to` to `written`, and protects them again.
    fn scan_part(
        &self,
        from: usize,
        to: usize,
        found: &mut [[u64; 3]],
        written: &mut Vec<(usize, usize)>,
    ) -> Result<()> {
        let page = page_bytes();
        let end = self.first + to * page;
        let armed = if off(Switch::ScanArmed) {
            0
        } else {
            SCAN_CHECK_WPASYNC
        };
        let mut at = self.first + from * page;
        while at < end {
            // struct pm_scan_arg: size, flags, start, end, walk_end, vec, vec_len, max_pages,
            // category_inverted, category_mask, category_anyof_mask, return_mask.
            let [inverted, all_of, any_of] = self.wanted;
            let mut arguments: [u64; 12] = [
                96,
                SCAN_WP_MATCHING | armed,
                at as u64,
                end as u64,
                0,
                found.as_mut_ptr() as u64,
                found.len() as u64,
                0,
                inverted,
                all_of,
                any_of,
                PAGE_IS_WRITTEN,
            ];
            // SAFETY: the call reads and writes the twelve words of `arguments` and at most as many
            // ranges of three words as `found` has; both outlive it. Protecting pages changes no
            // byte of them.
            let count = unsafe {
                libc::ioctl(
                    self.pagemap.as_raw_fd(),
                    PAGEMAP_SCAN as _,
                    arguments.as_mut_ptr(),
                )
            };
            let count = usize::try_from(count).map_err(|_| unsupported("scanning the page map"))?;
            for range in found.iter().take(count) {
                let (from, to) = (range[0] as usize, range[1] as usize);
                add(written, (from - self.first) / page, (to - from) / page);
            }
            let walked = arguments[4] as usize;
            if walked <= at && count == 0 {
                return Err(Error::unsupported(format!(
                    "scanning the page map stopped at {at:#x} of {end:#x}"
                )));
            }
            at = walked;
        }
        Ok(())
    }
}

/// Appends a range to ascending ones that do not touch each other.
fn add(ranges: &mut Vec<(usize, usize)>, first: usize, count: usize) {
    match ranges.last_mut() {
        Some((last, before)) if *last + *before == first => *before += count,
        _ => ranges.push((first, count)),
    }
}

/// The categories that a scan must request on this kernel, determined once.
fn wanted() -> [u64; 3] {
    static WANTED: OnceLock<[u64; 3]> = OnceLock::new();
    *WANTED.get_or_init(|| {
        if discarded_counts_as_written().unwrap_or(false) {
            WRITTEN
        } else {
            WRITTEN_OR_GONE
        }
    })
}

/// Whether a scan for written pages finds one that was discarded after it had been protected.
fn discarded_counts_as_written() -> Result<bool> {
    let page = page_bytes();
    // SAFETY: a new private mapping of one page; nothing else is where the kernel puts it.
    let memory = unsafe {
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        libc::mmap(std::ptr::null_mut(), page, rights, flags, -1, 0)
    };
    if memory == libc::MAP_FAILED {
        return Err(unsupported("a page of memory"));
    }
    let found =
        Tracker::watch(memory as usize, 1, WRITTEN, &Failpoints::none()).and_then(|mut tracker| {
            // SAFETY: the page is mapped for writing and known to nobody else.
            unsafe { memory.cast::<u8>().write_volatile(1) };
            let written = tracker.scan(&[])? == [(0, 1)];
            let protected = tracker.scan(&[])?.is_empty();
            // SAFETY: as above; its byte is not needed any more.
            let discarded = unsafe { libc::madvise(memory, page, libc::MADV_DONTNEED) } == 0;
            Ok(written && protected && discarded && tracker.scan(&[])? == [(0, 1)])
        });
    // SAFETY: it was mapped above with this length; the tracker is gone, and nothing points into
    // it.
    unsafe { libc::munmap(memory, page) };
    found
}

/// The outcome of a failpoint.
fn refused(failpoints: &Failpoints, site: &'static str, pages: usize) -> Result<()> {
    let target = format!("{pages} pages");
    match failpoints.refuse(site, &target) {
        Some(errno) => Err(os_error(errno, format_args!("{site} of {target}"))),
        None => Ok(()),
    }
}

fn unsupported(what: &str) -> Error {
    let why = std::io::Error::last_os_error();
    Error::unsupported(format!("{what}: {why}"))
}

/// Fails unless every page of `first..end` is private, anonymous and writable.
fn check_private(first: usize, end: usize) -> Result<()> {
    let maps = std::fs::read_to_string("/proc/self/maps")
        .map_err(|error| Error::unsupported(format!("/proc/self/maps: {error}")))?;
    let mut at = first;
    for line in maps.lines() {
        let Some(map) = Map::parse(line) else {
            continue;
        };
        if map.end <= at || map.start >= end {
            continue;
        }
        if map.start > at {
            break;
        }
        if !map.is_private_memory() {
            return Err(Error::unsupported(format!(
                "{at:#x} is not private anonymous memory: {line}"
            )));
        }
        at = map.end;
        if at >= end {
            return Ok(());
        }
    }
    Err(Error::unsupported(format!("{at:#x} is not mapped")))
}

/// One line of `/proc/self/maps`.
struct Map<'l> {
    start: usize,
    end: usize,
    rights: &'l str,
    inode: &'l str,
    name: &'l str,
}

impl<'l> Map<'l> {
    fn parse(line: &'l str) -> Option<Map<'l>> {
        let mut words = line.split_ascii_whitespace();
        let (start, end) = words.next()?.split_once('-')?;
        let rights = words.next()?;
        let (_offset, _device, inode) = (words.next()?, words.next()?, words.next()?);
        Some(Map {
            start: usize::from_str_radix(start, 16).ok()?,
            end: usize::from_str_radix(end, 16).ok()?,
            rights,
            inode,
            name: words.next().unwrap_or_default(),
        })
    }

    fn is_private_memory(&self) -> bool {
        // Breaks if: the last permission is ignored; shared memory would be tracked for this
        // process only.
        self.rights.starts_with("rw")
            && self.rights.ends_with('p')
            && self.inode == "0"
            && (self.name.is_empty() || self.name == "[heap]" || self.name.starts_with("[anon:"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Breaks if: one of the two categories also returns unwritten pages, or does not protect what
    // it found.
    #[test]
    fn both_ways_of_asking_find_the_same_pages() {
        let page = page_bytes();
        for asked in [WRITTEN, WRITTEN_OR_GONE] {
            let mut memory = orcheck_io::memory::Buffer::zeroed(64 * page, page);
            let first = memory.span().address();
            let mut tracker = match Tracker::watch(first, 64, asked, &Failpoints::none()) {
                Ok(tracker) => tracker,
                Err(error) => return eprintln!("SKIPPED: tracking pages ({error})"),
            };
            assert_eq!(tracker.scan(&[]).unwrap(), [(0, 64)]);
            assert_eq!(tracker.scan(&[]).unwrap(), []);
            for written in [3, 4, 9] {
                let part = memory.span().sub(written * page + 17, 1);
                orcheck_io::memory::fill_span(part, &[1]);
            }
            assert_eq!(tracker.scan(&[]).unwrap(), [(3, 2), (9, 1)]);
        }
    }

    #[test]
    fn maps_are_read_as_the_kernel_prints_them() {
        for (line, private) in [
            ("7f00-7f10 rw-p 00000000 00:00 0", true),
            (
                "7f00-7f10 rw-p 00000000 00:00 0                   [heap]",
                true,
            ),
            (
                "7f00-7f10 rw-p 00000000 00:00 0  [anon:glibc: malloc]",
                true,
            ),
            ("7f00-7f10 rw-s 00000000 00:01 0", false),
            ("7f00-7f10 r--p 00000000 00:00 0", false),
            ("7f00-7f10 rw-p 00000000 08:01 77 /lib/x.so", false),
            ("7f00-7f10 rw-p 00000000 00:01 9 /memfd:x (deleted)", false),
            ("7f00-7f10 rw-p 00000000 00:00 0 [stack]", false),
        ] {
            let map = Map::parse(line).unwrap();
            assert_eq!((map.start, map.end), (0x7f00, 0x7f10));
            assert_eq!(map.is_private_memory(), private, "{line}");
        }
        assert!(Map::parse("nonsense").is_none());
    }
}
