//! Writes of pool memory through io_uring, with its pages pinned once instead of anew for every write.
//!
//! How: a plain direct write looks up and pins each page that it sends, which takes a processor most of the time of
//! the write, and the processor is the program's. Here each chunk is registered with the kernel when it is first
//! written, and stays so as long as the pool. One write at a time, waited for at once. Where the kernel does not pin
//! (limit of locked memory, before Linux 5.19) the write goes through the ring unpinned; where there is no ring
//! (before Linux 5.6, or forbidden), `None` says that the caller must write by itself.
//!
//! Invariants
//! 1. A write that the kernel has taken is waited for: when `write` returns, nobody reads the memory any more.
//! 2. A refusal that may be the ring's own is never the answer for the file: the caller tries the same bytes again
//!    by a plain write, whose error counts.
//! 3. The pages behind a chunk stay the same as long as the pool: nothing here or in `pool.rs` takes memory away from
//!    a chunk, so what is pinned is what is mapped.
//!
//! Faults survived: no ring, no memory to pin, calls that fail or are interrupted. A process that is killed may leave
//! one write on its way to the disk: no later run writes to that file, and no record speaks of it.
//!
//! Not here: what is written where (see [`crate::file`]).
#![allow(unsafe_code)]

use crate::clock::Deadline;
use crate::file::backoff;
use io_uring::{IoUring, opcode, types};
use rustix::io::Errno;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Mutex, TryLockError};
use std::time::Duration;

/// Most buffers that the kernel lets a ring register; later chunks are written unpinned.
const MOST_PINNED: u32 = 1 << 14;
/// Longest single write; the caller continues a short one.
const MOST_BYTES: usize = 1 << 30;

/// The way for one area of memory, cut into pieces of equal length.
pub struct Uring {
    start: usize,
    piece_bytes: usize,
    pieces: u32,
    state: Mutex<State>,
}

enum State {
    /// Nobody has written yet.
    New,
    Ready(Ready),
    /// There is none, or it failed.
    Off,
}

struct Ready {
    ring: IoUring,
    /// By piece: whether its pages are pinned. Empty, where the kernel pins none.
    pinned: Vec<bool>,
}

impl Uring {
    /// For `pieces` pieces of memory from address `start` on, which the owner keeps mapped and never backs by other
    /// pages as long as this lives.
    pub(crate) fn new(start: usize, piece_bytes: usize, pieces: u32) -> Uring {
        Uring {
            start,
            piece_bytes,
            pieces,
            state: Mutex::new(State::New),
        }
    }

    /// Writes `bytes` at `offset` of a file that is open for direct I/O; what came of it as for `pwrite`. `None`: not
    /// possible this way, the file is as it was.
    pub(crate) fn write(
        &self,
        file: &OwnedFd,
        bytes: &[u8],
        offset: u64,
    ) -> Option<rustix::io::Result<usize>> {
        let mut state = match self.state.try_lock() {
            Ok(state) => state,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            // Two at once do not wait for each other.
            Err(TryLockError::WouldBlock) => return None,
        };
        if matches!(*state, State::New) {
            *state = Ready::new(self.pieces).map_or(State::Off, State::Ready);
        }
        let State::Ready(ready) = &mut *state else {
            return None;
        };
        let bytes = &bytes[..bytes.len().min(MOST_BYTES)];
        let piece = ready.pin(self, bytes);
        match ready.write(file, bytes, offset, piece) {
            Some(Err(Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS)) | None => {
                *state = State::Off;
                None
            }
            // Lack of something that a plain write does not need.
            Some(Err(Errno::AGAIN | Errno::CANCELED | Errno::FAULT | Errno::NOMEM)) => None,
            moved => moved,
        }
    }

    /// The piece in which these bytes lie, if it is one.
    fn piece_of(&self, bytes: &[u8]) -> Option<u32> {
        let at = (bytes.as_ptr() as usize).checked_sub(self.start)?;
        let piece = at / self.piece_bytes;
        let fits = at % self.piece_bytes + bytes.len() <= self.piece_bytes;
        (fits && piece < self.pieces as usize).then_some(piece as u32)
    }
}

impl Ready {
    fn new(pieces: u32) -> Option<Ready> {
        let ring = IoUring::new(1).ok()?;
        let most = pieces.min(MOST_PINNED);
        let pinned = match ring.submitter().register_buffers_sparse(most) {
            Ok(()) => vec![false; most as usize],
            Err(_) => Vec::new(),
        };
        Some(Ready { ring, pinned })
    }

    /// The number of the pinned piece in which these bytes lie; pins it if need be.
    fn pin(&mut self, way: &Uring, bytes: &[u8]) -> Option<u16> {
        let piece = way.piece_of(bytes)?;
        let pinned = *self.pinned.get(piece as usize)?;
        if !pinned {
            let memory = libc::iovec {
                iov_base: (way.start + piece as usize * way.piece_bytes) as *mut libc::c_void,
                iov_len: way.piece_bytes,
            };
            // SAFETY: mapped memory, which the owner leaves as it is as long as this ring lives.
            let done = unsafe {
                self.ring
                    .submitter()
                    .register_buffers_update(piece, &[memory], None)
            };
            if done.is_err() {
                // The limit of locked memory: what is pinned stays so, the others are written unpinned.
                self.pinned.truncate(piece as usize);
                return None;
            }
            self.pinned[piece as usize] = true;
        }
        u16::try_from(piece).ok()
    }

    /// `None`: the kernel took nothing.
    fn write(
        &mut self,
        file: &OwnedFd,
        bytes: &[u8],
        offset: u64,
        piece: Option<u16>,
    ) -> Option<rustix::io::Result<usize>> {
        let (file, from, len) = (
            types::Fd(file.as_raw_fd()),
            bytes.as_ptr(),
            bytes.len() as u32,
        );
        let entry = match piece {
            Some(piece) => opcode::WriteFixed::new(file, from, len, piece)
                .offset(offset)
                .build(),
            None => opcode::Write::new(file, from, len).offset(offset).build(),
        };
        // SAFETY: the memory and the file outlive the write, which is waited for below.
        unsafe { self.ring.submission().push(&entry) }.ok()?;
        let mut attempt = 0;
        loop {
            let entered = self.ring.submit_and_wait(1);
            if let Some(done) = self.ring.completion().next() {
                return Some(match u32::try_from(done.result()) {
                    Ok(count) => Ok(count as usize),
                    Err(_) => Err(Errno::from_raw_os_error(-done.result())),
                });
            }
            if entered.is_err() {
                if !self.ring.submission().is_empty() {
                    return None;
                }
                // Breaks if: it is not waited for; the chunk would be filled anew under the write.
                backoff(attempt, Deadline::after(Duration::from_secs(1)));
                attempt += 1;
            }
        }
    }
}
