//! Handles the memory of a pool whose run has ended: gives back what nobody needs any more, and
//! copies the rest out, verified.
//!
//! How: whoever keeps the memory attaches to it once more, and punches holes where it is not
//! needed; the seals of the file forbid other lengths, not holes. A run that comes later maps the
//! memory for reading and copies pieces of it with the kernel that staging uses, which computes the
//! checksum of what arrived.
//!
//! Invariants:
//! 1. Memory is taken only from a pool into which nobody stages: [`Pool::keep_only`] is for a pool
//!    that has no run.
//! 2. The checksum that [`KeptPool::copy_out`] returns is that of the copy. What another process
//!    writes meanwhile is in both or in none.
//!
//! Faults survived: places outside the memory, and a hole where something was expected (zeros).
//!
//! Not here: which pieces lie where, and what their checksums must be (the engine).

use super::{Mapping, Pool, attached};
use crate::head::{Layout, PoolShape};
use orcheck_format::sabotage::{Switch, off};
use orcheck_format::{Error, Result};
use orcheck_io::descriptor;
use orcheck_io::errno::{retry, rustix_error};
use orcheck_io::memory::{Span, zeroed};
use rustix::fs::{self, FallocateFlags, MemfdFlags, SealFlags};
use rustix::process::{Resource, getrlimit};
use std::os::fd::OwnedFd;

/// How much the kernel maps around a page that is read, unless its administrator chose otherwise.
const MAPPED_AT_ONCE_BYTES: usize = 64 << 10;

impl Pool {
    /// Gives back the memory of all chunks but those that `keeps`; with `wipe`, overwrites it with
    /// zeros before. Returns how many bytes stay.
    ///
    /// # Errors
    /// The error of the kernel; some memory may then stay that is not kept.
    pub fn keep_only(&self, keeps: &dyn Fn(u32) -> bool, wipe: bool) -> Result<u64> {
        let size = u64::from(self.shape.chunk_bytes);
        let mut kept = 0;
        let mut first = 0;
        while first < self.shape.chunk_count {
            let keep = keeps(first);
            let same = (first..self.shape.chunk_count).take_while(|chunk| keeps(*chunk) == keep);
            let count = same.count() as u32;
            match keep {
                true => kept += u64::from(count) * size,
                false => self.free(first, count, wipe)?,
            }
            first += count;
        }
        Ok(kept)
    }

    fn free(&self, first: u32, count: u32, wipe: bool) -> Result<()> {
        let backed = self.bitmap(self.layout.backed);
        // Breaks if: it is left to the kernel; who else has a page still reads what was there.
        let wipe = wipe && !off(Switch::KeptWiped);
        for chunk in (first..first + count).filter(|chunk| wipe && backed.has(*chunk)) {
            self.wipe(chunk);
        }
        let size = u64::from(self.shape.chunk_bytes);
        let (at, len) = (u64::from(first) * size, u64::from(count) * size);
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let done = retry(|| fs::fallocate(&self.map.file, hole, self.layout.area + at, len));
        done.map_err(|errno| {
            rustix_error(
                errno,
                format_args!("give back {len} bytes of a pool's memory"),
            )
        })
    }

    /// Overwrites a chunk with zeros.
    fn wipe(&self, chunk: u32) {
        let part = self.run_span(chunk, 1);
        // SAFETY: pool memory of that length; nobody stages into a pool that has no run.
        unsafe { std::ptr::write_bytes(part.pointer(), 0, part.len_bytes()) };
    }
}

/// The memory of a pool whose run has ended, to be copied out.
pub struct KeptPool {
    map: Mapping,
    shape: PoolShape,
    layout: Layout,
}

impl KeptPool {
    /// Maps the memory for reading.
    ///
    /// # Errors
    /// As [`Pool::attach`]; Unavailable where this process's address space is limited: it belongs
    /// to the program.
    pub fn attach(fd: OwnedFd) -> Result<Self> {
        let limit = getrlimit(Resource::As).current;
        if let Some(limit) = limit {
            let text = format!("the address space is limited to {limit} bytes");
            return Err(Error::unavailable(text).next("raise the limit (ulimit -v)"));
        }
        let (shape, layout) = attached(&fd)?;
        let map = Mapping::new(fd, layout, false)?;
        Ok(Self { map, shape, layout })
    }

    /// The shape of the pool.
    #[must_use]
    pub fn shape(&self) -> PoolShape {
        self.shape
    }

    /// Maps a part in this process, so that it is copied at full speed later; nothing if it reaches
    /// beyond the chunks.
    ///
    /// One read lets the kernel map the pages around it as well. A call that maps more at once
    /// holds a lock that every change of the process's mappings waits for.
    pub fn map_ahead(&self, at_bytes: u64, len: u64) {
        let end = at_bytes.checked_add(len);
        let Some(end) = end.filter(|end| *end <= self.shape.len_bytes()) else {
            return;
        };
        for at in (at_bytes..end).step_by(MAPPED_AT_ONCE_BYTES) {
            // SAFETY: inside the mapping (checked above), which lives as long as `self`; its file
            // cannot shrink. What is read is not used.
            let _ = unsafe {
                self.map
                    .start
                    .add((self.layout.area + at) as usize)
                    .read_volatile()
            };
        }
    }

    /// Copies as many bytes as `into` has from `at_bytes`, which counts from the start of chunk 0,
    /// and returns their CRC-64/NVME.
    ///
    /// # Errors
    /// Invalid if they reach beyond the chunks.
    pub fn copy_out(&self, at_bytes: u64, into: Span) -> Result<u64> {
        let len = into.len_bytes();
        let end = at_bytes.checked_add(len as u64);
        if end.is_none_or(|end| end > self.shape.len_bytes()) {
            return Err(Error::invalid(format!(
                "kept memory: expected a part of {} bytes, found {len} bytes at {at_bytes}",
                self.shape.len_bytes()
            )));
        }
        let at = (self.layout.area + at_bytes) as usize;
        // SAFETY: inside the mapping (checked above), which lives as long as `self`; `into` is
        // valid for writes by its promise and is memory of the program, no part of this mapping,
        // which is known to nobody else.
        let crc = unsafe { crate::copy::copy_crc(into.pointer(), self.map.start.add(at), len) };
        crate::copy::order_stores();
        Ok(crc)
    }
}

const BYTES_SEALS: SealFlags = SealFlags::SHRINK
    .union(SealFlags::GROW)
    .union(SealFlags::WRITE)
    .union(SealFlags::SEAL);

/// A memory file of these bytes that nobody can change.
///
/// # Errors
/// Lack of memory or descriptors.
pub fn seal_bytes(bytes: &[u8]) -> Result<OwnedFd> {
    let what = |errno| rustix_error(errno, "make a sealed memory file");
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = descriptor::memory_file("orcheck-kept", flags).map_err(what)?;
    let mut done = 0;
    while let Some(rest) = bytes.get(done..).filter(|rest| !rest.is_empty()) {
        done += retry(|| rustix::io::pwrite(&file, rest, done as u64)).map_err(what)?;
    }
    fs::fcntl_add_seals(&file, BYTES_SEALS).map_err(what)?;
    Ok(file)
}

/// The bytes of a memory file that [`seal_bytes`] made.
///
/// # Errors
/// Corrupt if it is not sealed, or longer than `most_bytes`.
pub fn read_sealed(file: &OwnedFd, most_bytes: usize) -> Result<Vec<u8>> {
    let what = |errno| rustix_error(errno, "read a sealed memory file");
    let seals = fs::fcntl_get_seals(file).map_err(what)?;
    let len = fs::fstat(file).map_err(what)?.st_size;
    let len = usize::try_from(len).unwrap_or(usize::MAX);
    if !seals.contains(BYTES_SEALS) || len > most_bytes {
        return Err(Error::corrupt(format!(
            "expected a sealed memory file of at most {most_bytes} bytes, found {len} bytes and seals {:#x}",
            seals.bits()
        )));
    }
    let mut bytes = zeroed(len)?;
    let mut done = 0;
    while let Some(rest) = bytes.get_mut(done..).filter(|rest| !rest.is_empty()) {
        match retry(|| rustix::io::pread(file, &mut *rest, done as u64)).map_err(what)? {
            0 => break,
            found => done += found,
        }
    }
    Ok(bytes)
}
