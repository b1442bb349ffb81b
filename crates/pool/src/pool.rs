//! Implements the staging pool: memory that the ranks of a node share, divided into chunks.
//!
//! How: the pool is a sealed memfd, mapped by every process that has its descriptor. The head holds
//! a bitmap of the taken chunks, a bitmap of the chunks that have memory, words and rings; the rest
//! is chunks. Taking and returning a chunk is lock-free; waiting is a futex on a counter of
//! returned chunks.
//!
//! Invariants
//! 1. The memfd can neither shrink nor grow (seals), so an access never runs past the end of the
//!    file.
//! 2. The shape is copied once from the head and checked. Indices read from shared memory are
//!    checked before every use, so that a neighbour's invalid data never leads outside the mapping.
//! 3. A chunk is given to one taker at a time. A [`Chunk`] is its token: it cannot be cloned, is
//!    returned explicitly, and is leaked (until the pool is gone) when dropped, because another
//!    process may hold its number.
//! 4. A chunk is given out only after the kernel has allocated its memory, so that a lack of memory
//!    is an error here and never a SIGBUS in the copy.
//! 5. A forked child does not inherit the mapping; it attaches again by the descriptor.
//!
//! Faults survived: a process that dies at any point while holding chunks (they stay taken: the
//! engine, which knows their purpose, returns them), dies while waiting, or overwrites the head.
//!
//! Not here: the memory itself (`pages`, `numa`), the meaning of words, rings and chunks (the
//! engine), locks between processes (see [`crate::gate`]).
#![allow(unsafe_code)]

use crate::bitmap::Bitmap;
use crate::head::{self, HEAD_BYTES, LINE_BYTES, Layout};
use crate::numa::{self, MemoryNode};
use crate::pages;
use crate::ring::Ring;
use crate::uring::Uring;
use orcheck_format::sabotage::{Switch, off};
use orcheck_format::{Error, ErrorKind, Result};
use orcheck_io::clock::Deadline;
use orcheck_io::disk::{File, check_length, write_pinned};
use orcheck_io::errno::{retry, rustix_error};
use orcheck_io::memory::{Span, copy_out};
use orcheck_io::sync::{AtomicU32, AtomicU64, Ordering, wait, wake};
use rustix::fs::{self, FallocateFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{self, Advice};
use rustix::process::Pid;
use std::ffi::c_void;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

pub use crate::head::PoolShape;
pub use crate::pages::HugePages;

mod ahead;
mod kept;
#[cfg(test)]
mod tests;

pub use kept::{KeptPool, read_sealed, seal_bytes};

const SEALS: SealFlags = SealFlags::SHRINK
    .union(SealFlags::GROW)
    .union(SealFlags::SEAL);
/// How long a waiter for a chunk sleeps before it looks again by itself: a wake-up may have gone to
/// a process that died before using it.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// Maximum length of adjacent chunks that one write covers.
const RUN_BYTES: u32 = 16 << 20;

/// The mapped memory; shared by the pool and the gates made from it.
pub(crate) struct Mapping {
    pub(crate) file: OwnedFd,
    start: *mut u8,
    layout: Layout,
    owner: Option<Pid>,
}

// SAFETY: the mapping is shared memory; all access is through atomics or through spans with their
// own promise.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(file: OwnedFd, layout: Layout, writable: bool) -> Result<Mapping> {
        let len = layout.total as usize;
        // The file's size is sealed and equals `len`, or nobody else has the file yet (see all
        // callers).
        let start = pages::map(&file, len, writable)?;
        let owner = Some(rustix::process::getpid());
        let mapping = Mapping {
            file,
            start,
            layout,
            owner,
        };
        if off(Switch::NoFork) {
            return Ok(mapping);
        }
        // SAFETY: exactly the mapping just made.
        unsafe { mm::madvise(start.cast(), len, Advice::LinuxDontFork) }
            .map_err(|errno| rustix_error(errno, "keep the pool out of forked processes"))?;
        Ok(mapping)
    }

    /// A counter in the head.
    fn short(&self, at: u64) -> &AtomicU32 {
        debug_assert!(at + 4 <= self.layout.area && at.is_multiple_of(4));
        // SAFETY: inside the head of the live mapping, aligned, and only ever accessed atomically.
        unsafe { &*self.start.add(at as usize).cast::<AtomicU32>() }
    }

    /// `count` words in the head.
    fn words(&self, at: u64, count: usize) -> &[AtomicU64] {
        debug_assert!(at + 8 * count as u64 <= self.layout.area && at.is_multiple_of(8));
        // SAFETY: inside the head of the live mapping (callers take `at` and `count` from the
        // layout), aligned, and only ever accessed atomically.
        unsafe { std::slice::from_raw_parts(self.start.add(at as usize).cast(), count) }
    }

    /// The counter that changes whenever a gate opens, and the number of its waiters.
    pub(crate) fn gate_words(&self) -> (&AtomicU32, &AtomicU32) {
        (
            self.short(self.layout.gate),
            self.short(self.layout.gate_waiters),
        )
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // In a forked child the mapping was never there, and its addresses may belong to something
        // else by now.
        if self.owner == Some(rustix::process::getpid()) {
            // SAFETY: our own mapping of exactly this length; no reference outlives `self`.
            let _ = unsafe { mm::munmap(self.start.cast::<c_void>(), self.layout.total as usize) };
        }
    }
}

/// The token of a taken chunk. Return it with [`Pool::give`].
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a chunk that is dropped stays taken"]
pub struct Chunk {
    index: u32,
}

impl Chunk {
    /// Its number, from 0.
    #[must_use]
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Turns the token into a number, to pass it to another process; [`Chunk::from_index`] turns it
    /// back.
    #[must_use]
    pub fn into_index(self) -> u32 {
        self.index
    }

    /// The token of a chunk whose number came from elsewhere; the chunk must exist and be taken.
    /// The sender must have given up its own token.
    pub fn from_index(pool: &Pool, index: u32) -> Result<Chunk> {
        let count = pool.shape.chunk_count;
        if index >= count && !off(Switch::TakenChunk) {
            return Err(Error::corrupt(format!(
                "pool: expected a chunk below {count}, found {index}"
            )));
        }
        if !off(Switch::TakenChunk) && !pool.taken().has(index) {
            return Err(Error::corrupt(format!(
                "pool: expected a taken chunk, found {index} free"
            )));
        }
        Ok(Chunk { index })
    }
}

/// Many copies into one chunk; dropping it orders them before whatever tells others about the
/// chunk.
pub struct Fill<'a> {
    pool: &'a Pool,
    chunk: &'a Chunk,
}

impl Fill<'_> {
    /// As [`Pool::stage`].
    ///
    /// # Panics
    /// If it does not fit into the chunk.
    pub fn stage(&mut self, at: u32, from: Span) -> u64 {
        self.pool.stage_unordered(self.chunk, at, from)
    }
}

impl Drop for Fill<'_> {
    fn drop(&mut self) {
        crate::copy::order_stores();
    }
}

/// The pool; see the module. Dropping it unmaps the memory once no [`crate::gate::Gates`] made from
/// it are left.
pub struct Pool {
    /// Writes chunks to the disk; dropped before the mapping.
    uring: Uring,
    pub(crate) map: Arc<Mapping>,
    shape: PoolShape,
    layout: Layout,
    /// Whether transparent huge pages are requested.
    huge: AtomicBool,
    /// The memory nodes that this process may use, if there are several.
    nodes: OnceLock<Vec<MemoryNode>>,
}

impl Pool {
    /// Creates the memory, empty and without pages for its chunks yet.
    pub fn create(shape: PoolShape) -> Result<Pool> {
        Self::create_of(shape, HugePages::Off)
    }

    /// The same with huge pages, if available.
    pub fn create_of(shape: PoolShape, huge: HugePages) -> Result<Pool> {
        let layout = Layout::of(shape)?;
        let what = |errno| pages::cannot_create(layout.total, errno);
        check_length(layout.total, || {
            format!("create a pool of {} bytes", layout.total)
        })?;
        let file = pages::memory_file(layout.total, u64::from(shape.chunk_bytes), huge)?;
        let used = layout.rings + u64::from(shape.rings) * layout.ring_stride;
        retry(|| fs::fallocate(&file, FallocateFlags::empty(), 0, used)).map_err(what)?;
        let map = Mapping::new(file, layout, true)?;
        // SAFETY: the head of our own mapping, which has memory behind it, and nobody else has the
        // file yet.
        let head = unsafe { Span::new(map.start, HEAD_BYTES) };
        orcheck_io::memory::fill_span(head, &head::encode(shape, layout.total));
        fs::fcntl_add_seals(&map.file, SEALS).map_err(what)?;
        let pool = Pool::of(map, shape, layout);
        pool.prefer_huge(huge);
        Ok(pool)
    }

    fn of(map: Mapping, shape: PoolShape, layout: Layout) -> Pool {
        let area = map.start as usize + layout.area as usize;
        Pool {
            uring: Uring::new(
                area,
                shape.len_bytes() as usize,
                run_chunks(shape) as usize * shape.chunk_bytes as usize,
                // A ring belongs to a rank, and at most every rank has a CP-thread.
                shape.rings.max(1),
            ),
            map: Arc::new(map),
            shape,
            layout,
            huge: AtomicBool::new(false),
            nodes: OnceLock::new(),
        }
    }

    /// Maps a pool that another process created.
    pub fn attach(fd: OwnedFd) -> Result<Pool> {
        let (shape, layout) = attached(&fd)?;
        Ok(Pool::of(Mapping::new(fd, layout, true)?, shape, layout))
    }

    /// From now on, this process requests transparent huge pages for new memory of the pool, if
    /// `huge` says so.
    pub fn prefer_huge(&self, huge: HugePages) {
        if huge == HugePages::Transparent && self.page_bytes() < pages::HUGE_BYTES as u64 {
            let all = self.run_span(0, self.shape.chunk_count);
            self.huge.store(pages::prefer_huge(all), Ordering::Relaxed);
        }
    }

    /// The size of the pages that the memory certainly consists of: huge ones if it comes from the
    /// machine's reserve.
    #[must_use]
    pub fn page_bytes(&self) -> u64 {
        fs::fstatfs(&self.map.file).map_or(4096, |stat| u64::try_from(stat.f_bsize).unwrap_or(4096))
    }

    /// Requests that new memory for these chunks comes from these memory nodes (see
    /// [`crate::numa`]), over which this process's copy helpers are then spread. With no nodes,
    /// nothing changes.
    ///
    /// # Errors
    /// The error of the kernel; the memory then comes from anywhere.
    pub fn place(&self, first_chunk: u32, chunks: u32, nodes: Vec<MemoryNode>) -> Result<()> {
        if nodes.is_empty() || chunks == 0 {
            return Ok(());
        }
        let ids: Vec<u32> = nodes.iter().map(|node| node.id).collect();
        let asked = numa::ask_for(self.run_span(first_chunk, chunks), &ids);
        let _ = self.nodes.set(nodes);
        asked
    }

    /// Called by helper thread number `which` that copies for this process; makes it run near the
    /// memory.
    pub fn spread_helper(&self, which: usize) {
        numa::spread_helper(self.nodes.get().map_or(&[], Vec::as_slice), which);
    }

    /// The descriptor to hand to other processes of the node.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.map.file.as_fd()
    }

    /// The shape.
    #[must_use]
    pub fn shape(&self) -> PoolShape {
        self.shape
    }

    fn bitmap(&self, at: u64) -> Bitmap<'_> {
        Bitmap {
            words: self.map.words(at, self.layout.bitmap_words as usize),
            count: self.shape.chunk_count,
        }
    }

    fn taken(&self) -> Bitmap<'_> {
        self.bitmap(self.layout.taken)
    }

    /// Allocates memory for chunks that have none yet.
    fn back(&self, first: u32, chunks: u32) -> Result<()> {
        let backed = self.bitmap(self.layout.backed);
        if (first..first + chunks).all(|index| backed.has(index)) {
            return Ok(());
        }
        // The kernel fills a hole in the file with huge pages only through a mapping that requests
        // them.
        let filled = self.huge.load(Ordering::Relaxed)
            && pages::populate(self.run_span(first, chunks)) == Ok(true);
        if !filled {
            self.allocate(first, chunks)?;
        }
        backed.mark(first, chunks);
        Ok(())
    }

    fn allocate(&self, first: u32, chunks: u32) -> Result<()> {
        let size = u64::from(self.shape.chunk_bytes);
        let at = self.layout.area + u64::from(first) * size;
        let len = u64::from(chunks) * size;
        retry(|| fs::fallocate(&self.map.file, FallocateFlags::empty(), at, len)).map_err(|errno| {
            let error = rustix_error(
                errno,
                format_args!("put {len} bytes of memory behind the pool"),
            );
            Error::new(
                if errno == Errno::NOMEM {
                    ErrorKind::NoSpace
                } else {
                    error.kind()
                },
                error.message(),
            )
            .next("make the pool smaller, or give the job more memory")
        })
    }

    fn take_backed(&self, near: u32) -> Result<Option<Chunk>> {
        let Some(index) = self.taken().claim(near) else {
            return Ok(None);
        };
        match self.back(index, 1) {
            Ok(()) => Ok(Some(Chunk { index })),
            Err(error) => {
                self.release(index, 1);
                Err(error)
            }
        }
    }

    /// Takes the lowest free chunk from `near` upwards, then from 0. `None` if all are taken, or if
    /// the kernel has no memory for it.
    pub fn try_take(&self, near: u32) -> Option<Chunk> {
        self.take_backed(near).unwrap_or_default()
    }

    /// Takes a chunk, waiting until one is returned. `Unavailable` at the deadline, `NoSpace` if
    /// the kernel has no memory for it.
    pub fn take(&self, near: u32, timeout: Duration) -> Result<Chunk> {
        if let Some(chunk) = self.take_backed(near)? {
            return Ok(chunk);
        }
        let longest = if off(Switch::ChunkDeadline) {
            timeout.saturating_mul(300)
        } else {
            timeout
        };
        let deadline = Deadline::after(longest);
        let freed = self.map.short(self.layout.freed);
        let waiters = self.map.short(self.layout.freed_waiters);
        loop {
            // Announce first, then look: a chunk that is returned in between changes the counter or
            // finds the waiter.
            waiters.fetch_add(1, Ordering::SeqCst);
            let seen = freed.load(Ordering::SeqCst);
            let found = self.take_backed(near);
            if matches!(found, Ok(None)) {
                wait(freed, seen, deadline.left().min(LOOK_AGAIN));
            }
            waiters.fetch_sub(1, Ordering::SeqCst);
            if let Some(chunk) = found? {
                return Ok(chunk);
            }
            if deadline.passed() {
                return self.take_backed(near)?.ok_or_else(|| {
                    Error::unavailable(format!(
                        "pool: no chunk of {} bytes became free within {} s; all {} are taken",
                        self.shape.chunk_bytes,
                        timeout.as_secs_f64(),
                        self.shape.chunk_count
                    ))
                    .next("make the pool larger, or wait for the flush to catch up")
                });
            }
        }
    }

    /// The number of chunks that are free now.
    #[must_use]
    pub fn free_chunks(&self) -> u32 {
        self.taken().free()
    }

    /// The number of chunks that have memory; the others are addresses only.
    #[must_use]
    pub fn backed_chunks(&self) -> u32 {
        self.shape.chunk_count - self.bitmap(self.layout.backed).free()
    }

    /// Returns a chunk and wakes a waiter.
    pub fn give(&self, chunk: Chunk) {
        self.release(chunk.index, 1);
    }

    /// Takes `chunks` adjacent chunks, the highest that are free, and returns the number of the
    /// first.
    #[must_use]
    pub fn take_run(&self, chunks: u32) -> Option<u32> {
        let first = self.taken().claim_run(chunks)?;
        if self.back(first, chunks).is_err() {
            self.release(first, chunks);
            return None;
        }
        Some(first)
    }

    /// Returns a run. The numbers must be those of [`Pool::take_run`].
    ///
    /// # Panics
    /// If the run reaches beyond the pool.
    pub fn give_run(&self, first: u32, chunks: u32) {
        self.check_run(first, chunks);
        self.release(first, chunks);
    }

    fn release(&self, first: u32, chunks: u32) {
        if chunks == 0 {
            return;
        }
        self.taken().release(first, chunks);
        self.map
            .short(self.layout.freed)
            .fetch_add(1, Ordering::SeqCst);
        if self
            .map
            .short(self.layout.freed_waiters)
            .load(Ordering::SeqCst)
            > 0
        {
            wake(self.map.short(self.layout.freed), chunks);
        }
    }

    /// Empties bitmap and rings for the successor of an engine. Call this only while nobody takes
    /// or returns chunks.
    pub fn renew(&self) {
        self.taken().release(0, self.shape.chunk_count);
        for number in 0..self.shape.rings {
            self.ring(number).clear();
        }
    }

    /// Marks chunks as taken that were taken before [`Self::renew`].
    ///
    /// # Panics
    /// If the run reaches beyond the pool.
    pub fn take_again(&self, first: u32, chunks: u32) {
        self.check_run(first, chunks);
        self.taken().mark(first, chunks);
    }

    fn check_run(&self, first: u32, chunks: u32) {
        let count = self.shape.chunk_count;
        assert!(
            first.checked_add(chunks).is_some_and(|end| end <= count),
            "chunks {first}+{chunks} of a pool of {count}"
        );
    }

    fn area(&self, at: u64, len: u64) -> Option<Span> {
        let end = at.checked_add(len)?;
        if end > self.shape.len_bytes() {
            return None;
        }
        // SAFETY: inside the chunk area of the mapping, which lives as long as `self`; whoever
        // keeps the span longer than the pool breaks the promise that every holder of spans has
        // given.
        Some(unsafe {
            Span::new(
                self.map.start.add((self.layout.area + at) as usize),
                len as usize,
            )
        })
    }

    /// The memory of a run of chunks.
    ///
    /// # Panics
    /// If the run reaches beyond the pool.
    #[must_use]
    pub fn run_span(&self, first: u32, chunks: u32) -> Span {
        self.check_run(first, chunks);
        let size = u64::from(self.shape.chunk_bytes);
        match self.area(u64::from(first) * size, u64::from(chunks) * size) {
            Some(span) => span,
            None => unreachable!("the run was checked"),
        }
    }

    /// A part of a chunk's memory; panics if it reaches beyond the chunk.
    fn part(&self, chunk: &Chunk, at: u32, len: usize) -> Span {
        self.run_span(chunk.index, 1).sub(at as usize, len)
    }

    /// Copies `from` into the chunk at `at` and returns the CRC-64/NVME of the bytes, in one pass.
    ///
    /// # Panics
    /// If it does not fit into the chunk.
    pub fn stage(&self, chunk: &Chunk, at: u32, from: Span) -> u64 {
        self.fill(chunk).stage(at, from)
    }

    /// Copies many pieces into the chunk; nobody may be told about them before the result is
    /// dropped.
    #[must_use]
    pub fn fill<'a>(&'a self, chunk: &'a Chunk) -> Fill<'a> {
        Fill { pool: self, chunk }
    }

    /// Copies without ordering the stores.
    fn stage_unordered(&self, chunk: &Chunk, at: u32, from: Span) -> u64 {
        let to = self.part(chunk, at, from.len_bytes());
        // SAFETY: `to` is pool memory of that length that the token's holder alone writes, `from`
        // is valid for reads by its promise. Pool memory staged into another chunk does not overlap
        // it; a chunk staged into itself would be refused by the assertion below.
        unsafe {
            let (start, end) = (from.address(), from.address() + from.len_bytes());
            assert!(
                end <= to.address() || to.address() + to.len_bytes() <= start,
                "staging memory onto itself"
            );
            crate::copy::copy_crc(to.pointer(), from.pointer(), from.len_bytes())
        }
    }

    /// Copies `bytes` into the chunk at `at`.
    ///
    /// # Panics
    /// If it does not fit into the chunk.
    pub fn put(&self, chunk: &Chunk, at: u32, bytes: &[u8]) {
        orcheck_io::memory::fill_span(self.part(chunk, at, bytes.len()), bytes);
    }

    /// Zeroes `len` bytes of the chunk from `at`.
    ///
    /// # Panics
    /// If it reaches beyond the chunk.
    pub fn zero(&self, chunk: &Chunk, at: u32, len: u32) {
        // Worth a check: glibc sets no bytes with a masked store, which was measured to take 330 ns
        // (AVX-512, shared memory), once for every page that is copied by itself.
        if len == 0 {
            return;
        }
        let part = self.part(chunk, at, len as usize);
        // SAFETY: pool memory of that length that the token's holder alone writes.
        unsafe { std::ptr::write_bytes(part.pointer(), 0, part.len_bytes()) };
    }

    /// Any part of the chunk area; `at_bytes` counts from the start of chunk 0. `Invalid` if it
    /// reaches beyond.
    pub fn span(&self, at_bytes: u64, len: u64) -> Result<Span> {
        self.area(at_bytes, len).ok_or_else(|| {
            Error::invalid(format!(
                "pool: expected a part of {} bytes, found {len} bytes at {at_bytes}",
                self.shape.len_bytes()
            ))
        })
    }

    /// Where a span lies in the chunk area, in bytes from the start of chunk 0; `None` unless it is
    /// wholly inside.
    #[must_use]
    pub fn offset_of(&self, span: Span) -> Option<u64> {
        let area = self.map.start as usize + self.layout.area as usize;
        let at = span.address().checked_sub(area)? as u64;
        let end = at.checked_add(span.len_bytes() as u64)?;
        (end <= self.shape.len_bytes()).then_some(at)
    }

    /// The number of chunks that are best written by one call, if they are adjacent and the first
    /// number is a multiple of this.
    #[must_use]
    pub fn run_chunks(&self) -> u32 {
        run_chunks(self.shape)
    }

    /// Writes pool memory to a file, straight from the mapping.
    ///
    /// # Errors
    /// As [`File::write_at`]; `Invalid` if it reaches beyond the chunks.
    pub fn write_to(
        &self,
        file: &dyn File,
        pool_at_bytes: u64,
        len: u64,
        file_at: u64,
    ) -> Result<()> {
        let span = self.span(pool_at_bytes, len)?;
        let chunks = u64::from(self.shape.chunk_bytes);
        if file.is_direct() && len > 0 {
            let run = u64::from(self.run_chunks());
            let last = (pool_at_bytes + len - 1) / chunks / run;
            for piece in pool_at_bytes / chunks / run..=last {
                let first = piece * run;
                let end = (first + run).min(u64::from(self.shape.chunk_count));
                // Breaks if: memory is pinned that does not exist yet; the kernel would silently
                // allocate it.
                let backed = self.bitmap(self.layout.backed);
                if (first..end).all(|index| backed.has(index as u32)) || off(Switch::PinThere) {
                    self.uring.pin(piece as usize);
                }
            }
        }
        write_pinned(file, span, file_at, &self.uring)
    }

    /// A copy of pool memory.
    pub fn read_bytes(&self, pool_at_bytes: u64, len: u64) -> Result<Vec<u8>> {
        Ok(copy_out(self.span(pool_at_bytes, len)?))
    }

    /// Allocates memory for chunks and maps it in this process, so that the first copy runs at full
    /// speed.
    pub fn populate(&self, first_chunk: u32, chunks: u32) -> Result<()> {
        if first_chunk
            .checked_add(chunks)
            .is_none_or(|end| end > self.shape.chunk_count)
        {
            return Err(Error::invalid(format!(
                "pool: expected chunks within {}, found {first_chunk}+{chunks}",
                self.shape.chunk_count
            )));
        }
        if chunks == 0 {
            return Ok(());
        }
        self.back(first_chunk, chunks)?;
        let span = self.run_span(first_chunk, chunks);
        match pages::populate(span) {
            Ok(true) => Ok(()),
            Ok(false) => {
                pages::touch(span);
                Ok(())
            }
            Err(errno) => Err(rustix_error(
                errno,
                format_args!("map {} bytes of pool memory", span.len_bytes()),
            )),
        }
    }

    /// A shared word, initially zero.
    ///
    /// # Panics
    /// If there is no such word.
    #[must_use]
    pub fn word(&self, i: u32) -> &AtomicU64 {
        assert!(i < self.shape.words, "word {i} of {}", self.shape.words);
        &self
            .map
            .words(self.layout.words + u64::from(i) * LINE_BYTES, 1)[0]
    }

    /// Waits while the low 32 bits of word `i` equal those of `value`, at most `timeout`; returns
    /// whether the word differs from `value`.
    #[must_use]
    pub fn wait_while(&self, i: u32, value: u64, timeout: Duration) -> bool {
        let word = self.word(i);
        let deadline = Deadline::after(timeout);
        loop {
            if word.load(Ordering::SeqCst) != value {
                return true;
            }
            let left = deadline.left();
            if left.is_zero() {
                return false;
            }
            wait(low_half(word), value as u32, left);
        }
    }

    /// Wakes everybody who waits on word `i`.
    pub fn wake(&self, i: u32) {
        wake(low_half(self.word(i)), u32::MAX);
    }

    /// Ring `i`.
    ///
    /// # Panics
    /// If there is no such ring.
    #[must_use]
    pub fn ring(&self, i: u32) -> Ring<'_> {
        assert!(i < self.shape.rings, "ring {i} of {}", self.shape.rings);
        let at = self.layout.rings + u64::from(i) * self.layout.ring_stride;
        let entries = self
            .map
            .words(at + 2 * LINE_BYTES, self.shape.ring_entries as usize * 8);
        // SAFETY: the same memory, regrouped: eight words are one entry, and the count is divided
        // accordingly.
        let entries = unsafe {
            std::slice::from_raw_parts(entries.as_ptr().cast(), self.shape.ring_entries as usize)
        };
        Ring {
            read: &self.map.words(at, 1)[0],
            written: &self.map.words(at + LINE_BYTES, 1)[0],
            entries,
        }
    }
}

/// The shape of the pool behind this descriptor, which another process created.
fn attached(fd: &OwnedFd) -> Result<(PoolShape, Layout)> {
    let what = |errno| rustix_error(errno, "attach to the pool");
    let seals = fs::fcntl_get_seals(fd).map_err(what)?;
    if !seals.contains(SEALS) && !off(Switch::PoolSeals) {
        return Err(Error::corrupt(format!(
            "pool: expected a sealed memfd (seals {:#x}), found seals {:#x}",
            SEALS.bits(),
            seals.bits()
        )));
    }
    let stat = fs::fstat(fd).map_err(what)?;
    let mut bytes = [0; HEAD_BYTES];
    let found = retry(|| rustix::io::pread(fd, &mut bytes, 0)).map_err(what)?;
    if found != HEAD_BYTES {
        return Err(Error::corrupt(format!(
            "pool: expected {HEAD_BYTES} head bytes, found {found}"
        )));
    }
    let len = u64::try_from(stat.st_size).unwrap_or(0);
    head::decode(&bytes, len)
}

/// A small pool has short runs: chunks that are being written cannot be filled.
fn run_chunks(shape: PoolShape) -> u32 {
    (RUN_BYTES / shape.chunk_bytes)
        .min(shape.chunk_count / 8)
        .max(1)
}

/// The low half of a 64-bit word, for waiting on it.
fn low_half(word: &AtomicU64) -> &AtomicU32 {
    // SAFETY: on a little-endian machine (checked when the crate is built) the low 32 bits come
    // first; the alignment of the larger word suffices; the view is only handed to the kernel,
    // which reads it atomically.
    unsafe { &*std::ptr::from_ref(word).cast::<AtomicU32>() }
}
