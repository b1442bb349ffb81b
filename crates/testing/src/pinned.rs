//! A write that no page table sees: the kernel fills pages that were pinned before.
//!
//! How: memory is registered with an io_uring (which pins its pages), and a fixed-buffer read from
//! a file then writes to the pages themselves, as a network card or a GPU would. Raw system calls,
//! one request at a time.
//!
//! Not here: anything that the product uses.
#![allow(unsafe_code)]

use orcheck_io::memory::Span;
use std::fs::File;
use std::io::{Error, ErrorKind, Result};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

const OFF_SQ_RING: i64 = 0;
const OFF_CQ_RING: i64 = 0x800_0000;
const OFF_SQES: i64 = 0x1000_0000;
const REGISTER_BUFFERS: u32 = 0;
const ENTER_GETEVENTS: u32 = 1;
const OP_READ_FIXED: u8 = 4;

/// Memory whose pages are pinned for the kernel to write.
pub struct Pinned {
    ring: OwnedFd,
    span: Span,
    submit: Mapped,
    complete: Mapped,
    entries: Mapped,
    offsets: Offsets,
    turn: Mutex<()>,
}

// SAFETY: the ring's memory belongs to it alone, and `read` takes turns.
unsafe impl Send for Pinned {}
// SAFETY: as above.
unsafe impl Sync for Pinned {}

/// Where the words of the rings are.
struct Offsets {
    sq_tail: u32,
    sq_mask: u32,
    sq_array: u32,
    cq_head: u32,
    cq_tail: u32,
    cq_mask: u32,
    cqes: u32,
}

struct Mapped {
    start: *mut u8,
    len: usize,
}

impl Mapped {
    fn new(ring: &OwnedFd, len: usize, offset: i64) -> Result<Mapped> {
        // SAFETY: a shared mapping of the ring at an address of the kernel's choice touches nothing
        // that exists.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_POPULATE,
                ring.as_raw_fd(),
                offset,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(Error::last_os_error());
        }
        Ok(Mapped {
            start: start.cast(),
            len,
        })
    }

    fn word(&self, at: u32) -> &AtomicU32 {
        assert!(at as usize + 4 <= self.len && at.is_multiple_of(4));
        // SAFETY: inside the mapping, aligned, and shared with the kernel as an atomic.
        unsafe { &*self.start.add(at as usize).cast::<AtomicU32>() }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, unmapped once, and no reference outlives `self`.
        unsafe { libc::munmap(self.start.cast(), self.len) };
    }
}

impl Pinned {
    /// Pins the pages of `span`.
    ///
    /// # Errors
    /// What the kernel says: it may have no io_uring, or forbid it.
    pub fn new(span: Span) -> Result<Pinned> {
        // struct io_uring_params: 10 words of 32 bits, then the offsets of both rings, 10 words
        // each.
        let mut params = [0u32; 30];
        // SAFETY: the call reads and writes `params` (120 bytes) only and returns a descriptor.
        let fd = unsafe { libc::syscall(libc::SYS_io_uring_setup, 1, params.as_mut_ptr()) };
        if fd < 0 {
            return Err(Error::last_os_error());
        }
        // SAFETY: the call has just returned this descriptor.
        let ring = unsafe { OwnedFd::from_raw_fd(fd as i32) };
        let (sq_entries, cq_entries) = (params[0], params[1]);
        let (sq, cq) = (&params[10..20], &params[20..30]);
        let offsets = Offsets {
            sq_tail: sq[1],
            sq_mask: sq[2],
            sq_array: sq[6],
            cq_head: cq[0],
            cq_tail: cq[1],
            cq_mask: cq[2],
            cqes: cq[5],
        };
        let submit = Mapped::new(
            &ring,
            (offsets.sq_array + sq_entries * 4) as usize,
            OFF_SQ_RING,
        )?;
        let complete = Mapped::new(
            &ring,
            (offsets.cqes + cq_entries * 16) as usize,
            OFF_CQ_RING,
        )?;
        let entries = Mapped::new(&ring, sq_entries as usize * 64, OFF_SQES)?;
        let buffer = libc::iovec {
            iov_base: span.pointer().cast(),
            iov_len: span.len_bytes(),
        };
        // SAFETY: one buffer, valid by the promise of `Span::new`; the kernel keeps its pages, not
        // the pointer.
        let registered = unsafe {
            libc::syscall(
                libc::SYS_io_uring_register,
                ring.as_raw_fd(),
                REGISTER_BUFFERS,
                &raw const buffer,
                1,
            )
        };
        if registered < 0 {
            return Err(Error::last_os_error());
        }
        Ok(Pinned {
            ring,
            span,
            submit,
            complete,
            entries,
            offsets,
            turn: Mutex::new(()),
        })
    }

    /// The kernel writes the first `len` bytes of `file` at offset `at` of the span.
    ///
    /// # Errors
    /// What the kernel says; a short read is one.
    pub fn read(&self, file: &File, at: usize, len: usize) -> Result<()> {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let target = self.span.sub(at, len).address() as u64;
        // struct io_uring_sqe: opcode, flags, ioprio (u16), fd (i32), offset, address (u64), length
        // (u32) …
        let mut entry = [0u64; 8];
        entry[0] = u64::from(OP_READ_FIXED) | (file.as_raw_fd() as u64) << 32;
        entry[2] = target;
        entry[3] = len as u64;
        // SAFETY: the first entry of the array, which nobody else writes: one request at a time.
        unsafe { self.entries.start.cast::<[u64; 8]>().write(entry) };
        let o = &self.offsets;
        let tail = self.submit.word(o.sq_tail).load(Ordering::Acquire);
        let slot = tail & self.submit.word(o.sq_mask).load(Ordering::Relaxed);
        self.submit
            .word(o.sq_array + slot * 4)
            .store(0, Ordering::Relaxed);
        self.submit
            .word(o.sq_tail)
            .store(tail + 1, Ordering::Release);
        // SAFETY: submits one entry and waits for its completion; no signal mask is passed.
        let entered = unsafe {
            libc::syscall(
                libc::SYS_io_uring_enter,
                self.ring.as_raw_fd(),
                1,
                1,
                ENTER_GETEVENTS,
                std::ptr::null::<u8>(),
                0,
            )
        };
        if entered < 0 {
            return Err(Error::last_os_error());
        }
        let head = self.complete.word(o.cq_head).load(Ordering::Acquire);
        if self.complete.word(o.cq_tail).load(Ordering::Acquire) == head {
            return Err(Error::new(ErrorKind::TimedOut, "no completion"));
        }
        let slot = head & self.complete.word(o.cq_mask).load(Ordering::Relaxed);
        let result = self
            .complete
            .word(o.cqes + slot * 16 + 8)
            .load(Ordering::Acquire) as i32;
        self.complete
            .word(o.cq_head)
            .store(head + 1, Ordering::Release);
        match result {
            negative if negative < 0 => Err(Error::from_raw_os_error(-negative)),
            read if read as usize == len => Ok(()),
            read => Err(Error::other(format!("{read} of {len} bytes"))),
        }
    }
}
