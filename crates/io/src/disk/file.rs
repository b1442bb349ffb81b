//! Accesses files, the second half of all disk access.
//!
//! How: positioned reads and writes are exact or fail. A file that was created for direct I/O
//! transfers straight from aligned memory of the caller, and copies misaligned memory through a
//! bounded aligned buffer.
//!
//! Invariants
//! 1. `write_at` and `read_at` transfer all bytes or return an error. Short transfers are
//!    continued, interrupted ones repeated (at most 10,000 times in a row); a transfer of nothing
//!    is an error and never a loop.
//! 2. A failed sync poisons the file: the kernel may have dropped the pages and forgotten the
//!    error, so nothing written through this handle counts, and every later call reports that.
//! 3. If the length has changed since the last sync, `sync` is fsync, otherwise fdatasync.
//! 4. The lock belongs to a separate open file description: closing another descriptor of the same
//!    file does not release it (unlike a classic POSIX lock), but the holder's death does.
//!
//! Faults survived: short and interrupted transfers, full disks, limits on the length of files,
//! failing syncs and closes.
//!
//! Not here: names and directories (see [`crate::disk::dir`]), checksums (left to the
//! callers), whole small files (`small.rs`).

use crate::disk::lock::{Lock, ofd_lock, reopen};
use crate::disk::usage::DiskUsage;
use crate::errno::{last_errno, os_error, retry, rustix_error};
use crate::failpoints::{Effect, Failpoints, Outcome};
use crate::memory::{Buffer, Span};
use orcheck_format::sabotage::{Switch, off};
use orcheck_format::{Error, Result};
use rustix::fs::{self, Advice, AtFlags, FallocateFlags, OFlags, StatxFlags};
use rustix::io::{Errno, ReadWriteFlags};
use rustix::process::{Resource, getrlimit};
use std::io::IoSliceMut;
use std::num::NonZeroU64;
use std::os::fd::{IntoRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

const BLOCK_BYTES: u32 = 4096;
const BOUNCE_BYTES: usize = 1 << 20;
const INTERRUPTS_LIMIT: u32 = 10_000;

/// Writes memory whose pages may already be pinned, as those of the staging pool.
pub trait PinnedWrite: Sync {
    /// Writes `bytes`, or a prefix of it, at `offset` of a file that is open for direct I/O; the
    /// result is that of `pwrite`. `None`: not possible in this way; the file is unchanged.
    fn write(&self, file: &OwnedFd, bytes: &[u8], offset: u64)
    -> Option<rustix::io::Result<usize>>;
}

/// An open file. Offsets and lengths are in bytes.
pub trait File: Send + Sync {
    /// Writes all of `buf` at `at`. On a direct file, `at` and the length must be multiples of
    /// [`File::alignment_bytes`]; the memory may have any alignment (misaligned memory is copied
    /// first). If two writes overlap, the later one counts only if there was a sync in between.
    fn write_at(&self, buf: &[u8], at: u64) -> Result<()>;
    /// [`File::write_at`] for memory that `way` may have pinned.
    #[doc(hidden)]
    fn write_pinned(&self, buf: &[u8], at: u64, way: &dyn PinnedWrite) -> Result<()> {
        let _ = way;
        self.write_at(buf, at)
    }
    /// Reads exactly `buf.len()` bytes from `at`; if the file ends earlier, the error is `Corrupt`.
    fn read_at(&self, buf: &mut [u8], at: u64) -> Result<()>;
    /// Reads as many of these bytes as the page cache holds, from the first one on, and returns
    /// their number; `None` where nobody can tell, as for the files of other nodes.
    fn read_cached(&self, buf: &mut [u8], at: u64) -> Result<Option<usize>> {
        let _ = (buf, at);
        Ok(None)
    }
    /// Announces that this many bytes from `at` on will be read soon: reading them may begin.
    /// Nothing depends on it.
    fn will_need(&self, at: u64, len: u64) {
        let _ = (at, len);
    }
    /// Makes later reads bypass the page cache, if the file system supports that; returns whether
    /// it does.
    fn bypass_cache(&mut self) -> bool {
        false
    }
    /// Reserves space for `len` bytes from the start and makes the file at least that long. It is
    /// not an error if the file system cannot reserve: the length stays unchanged, and a lack of
    /// space shows up when writing.
    fn allocate(&self, len: u64) -> Result<()>;
    /// Sets the length.
    fn truncate(&self, len: u64) -> Result<()>;
    /// Makes contents and length durable. A failure poisons the file.
    fn sync(&self) -> Result<()>;
    /// The present length.
    fn len_bytes(&self) -> Result<u64>;
    /// Its disk space.
    ///
    /// # Errors
    /// Unsupported if the disk does not belong to this machine.
    fn taken(&self) -> Result<DiskUsage> {
        let name = self.name();
        Err(Error::unsupported(format!(
            "{name}: its disk usage is not known here"
        )))
    }
    /// Whether writes bypass the page cache.
    fn is_direct(&self) -> bool;
    /// Offsets and lengths of writes to a direct file must be multiples of this; at least 4096.
    fn alignment_bytes(&self) -> u32;
    /// Tries to lock the file against every other holder, in this process too; held until the file
    /// is dropped or its holder dies. `false`: somebody else holds it. Requires permission to write
    /// the file.
    fn try_lock(&self) -> Result<bool>;
    /// Gives away the lock, for another process to hold; `None` if there is none.
    fn give_lock(&self) -> Option<Lock> {
        None
    }
    /// Closes the file and reports errors that network file systems report only then.
    fn close(self: Box<Self>) -> Result<()>;
    /// The full path, for messages.
    fn name(&self) -> String;
    /// The node that holds the file, if it is another one.
    fn other_node(&self) -> Option<&str> {
        None
    }
}

/// Reads exactly the span's length from the file at `at` into the span.
pub fn read_span(file: &dyn File, span: Span, at: u64) -> Result<()> {
    if span.len_bytes() == 0 {
        return Ok(());
    }
    fill(span, |bytes| file.read_at(bytes, at))
}

/// [`File::read_cached`] into a span.
pub fn read_cached_span(file: &dyn File, span: Span, at: u64) -> Result<Option<usize>> {
    if span.len_bytes() == 0 {
        return Ok(Some(0));
    }
    fill(span, |bytes| file.read_cached(bytes, at))
}

#[allow(unsafe_code)]
fn fill<T>(span: Span, read: impl FnOnce(&mut [u8]) -> T) -> T {
    // SAFETY: the span's memory is valid for writes and used by nobody else meanwhile, by the
    // promise of `Span::new`; the slice ends with this call.
    read(unsafe { std::slice::from_raw_parts_mut(span.pointer(), span.len_bytes()) })
}

/// Writes the span's bytes to the file at `at` in place, from memory that `way` may have pinned.
#[allow(unsafe_code)]
pub fn write_pinned(file: &dyn File, span: Span, at: u64, way: &dyn PinnedWrite) -> Result<()> {
    // SAFETY: the slice lives for this call only.
    file.write_pinned(unsafe { span.bytes() }, at, way)
}

/// Numbers for [`Effect`]: two files of a process never share one, unlike inodes and paths.
static FILES: AtomicU64 = AtomicU64::new(1);

pub struct OsFile {
    handle: OwnedFd,
    path: String,
    number: u64,
    failpoints: Failpoints,
    direct: bool,
    alignment: u32,
    memory_alignment: u32,
    lost: AtomicBool,
    length_changed: AtomicBool,
    known_len: AtomicU64,
    lock: Mutex<Option<Lock>>,
}

impl OsFile {
    pub fn new(
        handle: OwnedFd,
        path: String,
        failpoints: Failpoints,
        direct: bool,
        new: bool,
    ) -> Self {
        let (alignment, memory_alignment) = if direct {
            direct_alignment(&handle)
        } else {
            (BLOCK_BYTES, 1)
        };
        OsFile {
            handle,
            path,
            number: FILES.fetch_add(1, Ordering::Relaxed),
            failpoints,
            direct,
            alignment,
            memory_alignment,
            lost: AtomicBool::new(false),
            length_changed: AtomicBool::new(new),
            known_len: AtomicU64::new(if new { 0 } else { u64::MAX }),
            lock: Mutex::new(None),
        }
    }

    /// Its number in [`Effect`]s.
    pub fn number(&self) -> u64 {
        self.number
    }

    fn check_lost(&self) -> Result<()> {
        if off(Switch::FailedSyncIsLoss) {
            return Ok(());
        }
        if self.lost.load(Ordering::Acquire) {
            return Err(Error::unavailable(format!(
                "{}: a sync of this file failed before, so what was written to it is lost",
                self.path
            ))
            .next("write the data to a new file; check the disk and the kernel's log"));
        }
        Ok(())
    }

    /// Passes the failpoint of a transfer of `len` bytes, and bounds it accordingly.
    fn transfer_limit(&self, site: &'static str, len: usize) -> std::result::Result<usize, Errno> {
        match self.failpoints.outcome(site, &self.path) {
            Outcome::Go | Outcome::Pretend => Ok(len),
            Outcome::Fail(errno) => Err(Errno::from_raw_os_error(errno)),
            Outcome::Short(0) => Ok(0),
            Outcome::Short(count) if self.direct => {
                let block = self.alignment as usize;
                Ok((count / block * block)
                    .clamp(block, len.max(block))
                    .min(len))
            }
            Outcome::Short(count) => Ok(count.min(len)),
        }
    }

    fn write_all(&self, buf: &[u8], at: u64, way: Option<&dyn PinnedWrite>) -> Result<()> {
        let end = at + buf.len() as u64;
        check_length(end, || {
            format!("write {} bytes at offset {at} of {}", buf.len(), self.path)
        })?;
        let mut done = 0usize;
        let mut interrupts = 0u32;
        while done < buf.len() {
            let rest = &buf[done..];
            let offset = at + done as u64;
            let moved = match self.transfer_limit("file.write", rest.len()) {
                Ok(0) => Ok(0),
                Ok(limit) => {
                    let part = &rest[..limit];
                    way.and_then(|way| way.write(&self.handle, part, offset))
                        .unwrap_or_else(|| rustix::io::pwrite(&self.handle, part, offset))
                }
                Err(errno) => Err(errno),
            };
            let what = || {
                format!(
                    "write {} bytes at offset {offset} of {}",
                    rest.len(),
                    self.path
                )
            };
            match moved {
                Err(Errno::INTR) if interrupts < INTERRUPTS_LIMIT => interrupts += 1,
                Err(errno) => return Err(rustix_error(errno, what())),
                Ok(count) => {
                    // A direct write that ended inside a block continues from that block's start.
                    let block = self.alignment as usize;
                    let whole = if self.direct {
                        count / block * block
                    } else {
                        count
                    };
                    if whole == 0 && off(Switch::EmptyWrite) {
                        return Ok(());
                    }
                    if whole == 0 {
                        return Err(Error::unavailable(format!(
                            "{} failed: the file system accepted {count} bytes",
                            what()
                        ))
                        .next("check the free space, quota and state of the file system"));
                    }
                    self.failpoints.done(Effect::Wrote {
                        file: self.number,
                        at_bytes: offset,
                        bytes: &rest[..count],
                    });
                    done += if off(Switch::ShortWrite) {
                        rest.len()
                    } else {
                        whole
                    };
                    interrupts = 0;
                }
            }
        }
        if end > self.known_len.fetch_max(end, Ordering::AcqRel) {
            self.length_changed.store(true, Ordering::Release);
        }
        Ok(())
    }

    fn write_by(&self, buf: &[u8], at: u64, way: Option<&dyn PinnedWrite>) -> Result<()> {
        self.check_lost()?;
        check_range("write", buf.len(), at, &self.path)?;
        if !self.direct {
            return self.write_all(buf, at, None);
        }
        check_aligned(buf.len(), at, self.alignment.into(), &self.path)?;
        if (buf.as_ptr() as usize).is_multiple_of(self.memory_alignment as usize) {
            return self.write_all(buf, at, way);
        }
        let mut bounce = Buffer::zeroed(BOUNCE_BYTES.min(buf.len()), self.alignment as usize);
        let mut offset = at;
        for piece in buf.chunks(BOUNCE_BYTES) {
            bounce[..piece.len()].copy_from_slice(piece);
            self.write_all(&bounce[..piece.len()], offset, None)?;
            offset += piece.len() as u64;
        }
        Ok(())
    }

    /// Reads as many bytes as there are, up to the length of `buf`.
    fn read_some(&self, buf: &mut [u8], at: u64) -> Result<usize> {
        let mut done = 0usize;
        let mut interrupts = 0u32;
        while done < buf.len() {
            let offset = at + done as u64;
            let rest = buf.len() - done;
            let moved = match self.transfer_limit("file.read", rest) {
                Ok(0) => Ok(0),
                Ok(limit) => rustix::io::pread(&self.handle, &mut buf[done..done + limit], offset),
                Err(errno) => Err(errno),
            };
            match moved {
                Ok(0) => break,
                Ok(count) => {
                    let moved = &mut buf[done..done + count];
                    self.failpoints.has_read(&self.path, offset, moved);
                    done += count;
                    interrupts = 0;
                    if self.direct && !count.is_multiple_of(self.alignment as usize) {
                        break; // the end of the file lies inside this block
                    }
                }
                Err(Errno::INTR) if interrupts < INTERRUPTS_LIMIT => interrupts += 1,
                Err(errno) => return Err(self.read_failed(errno, rest, offset)),
            }
        }
        Ok(done)
    }

    fn read_failed(&self, errno: Errno, len: usize, at: u64) -> Error {
        rustix_error(
            errno,
            format_args!("read {len} bytes at offset {at} of {}", self.path),
        )
    }

    fn read_ended(&self, at: u64, expected: usize, found: usize) -> Error {
        Error::corrupt(format!(
            "{}: expected {expected} bytes at offset {at}, found {found} before the end of the file",
            self.path
        ))
        .next("the file is truncated: use another copy or an older checkpoint")
    }

    /// Direct reads of any offset, length and memory, through aligned blocks.
    fn read_bounced(&self, buf: &mut [u8], at: u64) -> Result<()> {
        let block = u64::from(self.alignment);
        let mut bounce = Buffer::zeroed(BOUNCE_BYTES, self.alignment as usize);
        let mut done = 0usize;
        while done < buf.len() {
            let offset = at + done as u64;
            let start = offset / block * block;
            let skip = (offset - start) as usize;
            let wanted = (skip + buf.len() - done)
                .next_multiple_of(block as usize)
                .min(BOUNCE_BYTES);
            let found = self.read_some(&mut bounce[..wanted], start)?;
            let usable = found.saturating_sub(skip).min(buf.len() - done);
            if usable == 0 {
                return Err(self.read_ended(at, buf.len(), done));
            }
            buf[done..done + usable].copy_from_slice(&bounce[skip..skip + usable]);
            done += usable;
        }
        Ok(())
    }
}

impl File for OsFile {
    fn write_at(&self, buf: &[u8], at: u64) -> Result<()> {
        self.write_by(buf, at, None)
    }

    fn write_pinned(&self, buf: &[u8], at: u64, way: &dyn PinnedWrite) -> Result<()> {
        self.write_by(buf, at, Some(way))
    }

    fn read_at(&self, buf: &mut [u8], at: u64) -> Result<()> {
        self.check_lost()?;
        check_range("read", buf.len(), at, &self.path)?;
        let aligned = at.is_multiple_of(u64::from(self.alignment))
            && buf.len().is_multiple_of(self.alignment as usize)
            && (buf.as_ptr() as usize).is_multiple_of(self.memory_alignment as usize);
        if self.direct && !aligned {
            return self.read_bounced(buf, at);
        }
        let found = self.read_some(buf, at)?;
        if found < buf.len() && !off(Switch::ShortRead) {
            return Err(self.read_ended(at, buf.len(), found));
        }
        Ok(())
    }

    fn read_cached(&self, buf: &mut [u8], at: u64) -> Result<Option<usize>> {
        self.check_lost()?;
        check_range("read", buf.len(), at, &self.path)?;
        if self.direct {
            return Ok(None);
        }
        let found = self
            .transfer_limit("file.read", buf.len())
            .and_then(|limit| {
                let mut into = [IoSliceMut::new(&mut buf[..limit])];
                rustix::io::preadv2(&self.handle, &mut into, at, ReadWriteFlags::NOWAIT)
            });
        match found {
            Ok(count) => {
                self.failpoints.has_read(&self.path, at, &mut buf[..count]);
                Ok(Some(count))
            }
            Err(Errno::AGAIN | Errno::INTR) => Ok(Some(0)),
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => Ok(None),
            Err(errno) => Err(self.read_failed(errno, buf.len(), at)),
        }
    }

    fn bypass_cache(&mut self) -> bool {
        if !self.direct && self.failpoints.refuse("file.direct", &self.path).is_none() {
            let asked = fs::fcntl_getfl(&self.handle)
                .and_then(|flags| fs::fcntl_setfl(&self.handle, flags | OFlags::DIRECT));
            if asked.is_ok() {
                self.direct = true;
                (self.alignment, self.memory_alignment) = direct_alignment(&self.handle);
            }
        }
        self.direct
    }

    fn will_need(&self, at: u64, len: u64) {
        if !self.direct
            && let Some(len) = NonZeroU64::new(len)
        {
            // A hint: what it does not bring is read on request.
            let _ = fs::fadvise(&self.handle, at, Some(len), Advice::WillNeed);
        }
    }

    fn allocate(&self, len: u64) -> Result<()> {
        self.check_lost()?;
        if len == 0 {
            return Ok(());
        }
        let what = || format!("allocate {len} bytes for {}", self.path);
        if let Some(errno) = self.failpoints.refuse("file.allocate", &self.path) {
            return Err(os_error(errno, what()));
        }
        check_length(len, what)?;
        self.length_changed.store(true, Ordering::Release);
        match retry(|| fs::fallocate(&self.handle, FallocateFlags::empty(), 0, len)) {
            Ok(()) => {
                self.known_len.fetch_max(len, Ordering::AcqRel);
            }
            // Making the file longer would reserve nothing, and if its last bytes are on a lost
            // server it may wait for minutes (MooseFS: as long as the chunk is locked for a
            // writer).
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => return Ok(()),
            Err(errno) => return Err(rustix_error(errno, what())),
        }
        self.failpoints.done(Effect::Reserved {
            file: self.number,
            len_bytes: len,
        });
        Ok(())
    }

    fn truncate(&self, len: u64) -> Result<()> {
        self.check_lost()?;
        let what = || format!("truncate {} to {len} bytes", self.path);
        if let Some(errno) = self.failpoints.refuse("file.truncate", &self.path) {
            return Err(os_error(errno, what()));
        }
        if len > self.known_len.load(Ordering::Acquire) {
            check_length(len, what)?;
        }
        self.length_changed.store(true, Ordering::Release);
        retry(|| fs::ftruncate(&self.handle, len)).map_err(|errno| rustix_error(errno, what()))?;
        self.known_len.store(len, Ordering::Release);
        self.failpoints.done(Effect::SetLength {
            file: self.number,
            len_bytes: len,
        });
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        self.check_lost()?;
        let changed = self.length_changed.swap(false, Ordering::AcqRel);
        let done = match self.failpoints.sync("file.sync", &self.path) {
            Err(errno) => Err(Errno::from_raw_os_error(errno)),
            Ok(false) => return Ok(()),
            Ok(true) if changed => fs::fsync(&self.handle),
            Ok(true) => fs::fdatasync(&self.handle),
        };
        if off(Switch::FailedSync) {
            return Ok(());
        }
        done.map_err(|errno| {
            self.lost.store(true, Ordering::Release);
            rustix_error(errno, format_args!("sync {}", self.path))
                .next("what was written to it is lost; write it again, to another file")
        })?;
        self.failpoints.done(Effect::Synced { file: self.number });
        Ok(())
    }

    fn len_bytes(&self) -> Result<u64> {
        self.check_lost()?;
        let stat = fs::fstat(&self.handle).map_err(|errno| {
            rustix_error(errno, format_args!("ask for the length of {}", self.path))
        })?;
        Ok(u64::try_from(stat.st_size).unwrap_or(0))
    }

    fn taken(&self) -> Result<DiskUsage> {
        // Also for a file whose sync failed: its space is taken all the same.
        let failed = match self.failpoints.refuse("file.look", &self.path) {
            Some(errno) => Errno::from_raw_os_error(errno),
            None => match fs::fstat(&self.handle) {
                Ok(stat) => return Ok(DiskUsage::of(&stat)),
                Err(errno) => errno,
            },
        };
        Err(rustix_error(failed, format_args!("look at {}", self.path)))
    }

    fn is_direct(&self) -> bool {
        self.direct
    }

    fn alignment_bytes(&self) -> u32 {
        self.alignment
    }

    fn try_lock(&self) -> Result<bool> {
        self.check_lost()?;
        let what = || format!("lock {}", self.path);
        let mut held = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        if held.is_some() {
            return Ok(true);
        }
        if let Some(errno) = self.failpoints.refuse("file.lock", &self.path) {
            return Err(os_error(errno, what()));
        }
        let holder = reopen(&self.handle).map_err(|errno| rustix_error(errno, what()))?;
        if ofd_lock(&holder, 0).map_err(|errno| os_error(errno, what()))? {
            *held = Some(Lock::attach(holder));
            return Ok(true);
        }
        Ok(false)
    }

    fn give_lock(&self) -> Option<Lock> {
        self.lock
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
    }

    fn close(self: Box<Self>) -> Result<()> {
        let OsFile {
            handle,
            path,
            failpoints,
            lost,
            ..
        } = *self;
        if let Some(errno) = failpoints.refuse("file.close", &path)
            && !off(Switch::FailedClose)
        {
            return Err(os_error(errno, format_args!("close {path}")));
        }
        let number = handle.into_raw_fd();
        // SAFETY: the descriptor was owned by `handle`, which has just given it up; nobody else
        // closes it.
        #[allow(unsafe_code)]
        let closed = unsafe { libc::close(number) };
        if closed != 0 {
            return Err(os_error(last_errno(), format_args!("close {path}"))
                .next("what was written to it may be lost; write it again, to another file"));
        }
        if lost.into_inner() {
            return Err(Error::unavailable(format!(
                "{path}: a sync of this file failed before"
            )));
        }
        Ok(())
    }

    fn name(&self) -> String {
        self.path.clone()
    }
}

/// Refuses a range that no file can hold.
pub fn check_range(verb: &str, len: usize, at: u64, path: &str) -> Result<()> {
    let limit = i64::MAX as u64;
    match at.checked_add(len as u64) {
        Some(end) if end <= limit => Ok(()),
        _ => Err(Error::invalid(format!(
            "{verb} {len} bytes at offset {at} of {path}: expected an end of at most {limit}"
        ))),
    }
}

/// Refuses an unaligned write that bypasses the page cache.
pub fn check_aligned(len: usize, at: u64, block_bytes: u64, path: &str) -> Result<()> {
    if at.is_multiple_of(block_bytes) && (len as u64).is_multiple_of(block_bytes) {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "write {len} bytes at offset {at} of {path}: expected multiples of {block_bytes} bytes, as the file is \
         written past the page cache"
    )))
}

/// Refuses to make a file longer than this process may: the kernel would send SIGXFSZ, which ends a
/// program that does not expect it, and it is not for us to end the program.
pub fn check_length(end: u64, what: impl FnOnce() -> String) -> Result<()> {
    match getrlimit(Resource::Fsize).current {
        Some(limit) if end > limit && !off(Switch::FileLimit) => {
            Err(rustix_error(Errno::FBIG, what()).next(format!(
                "raise the limit of the length of files (ulimit -f), now {limit} bytes"
            )))
        }
        _ => Ok(()),
    }
}

/// The alignment that direct I/O on this file requires: (offsets and lengths, memory), in bytes.
fn direct_alignment(handle: &OwnedFd) -> (u32, u32) {
    let usable = |bytes: u32| bytes.is_power_of_two() && bytes <= BOUNCE_BYTES as u32;
    // statx exists from kernel 4.11, its alignment fields from 6.1; an older kernel leaves the bit
    // unset.
    match fs::statx(handle, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN) {
        Ok(stat)
            if stat.stx_mask & StatxFlags::DIOALIGN.bits() != 0
                && usable(stat.stx_dio_offset_align)
                && usable(stat.stx_dio_mem_align) =>
        {
            let memory = stat.stx_dio_mem_align;
            (
                BLOCK_BYTES.max(stat.stx_dio_offset_align).max(memory),
                memory.max(512),
            )
        }
        _ => (BLOCK_BYTES, BLOCK_BYTES),
    }
}
