//! Writes pool memory through io_uring, with its pages pinned once instead of for every write.
//!
//! How: an ordinary direct write looks up and pins each page that it sends. That takes a processor
//! most of the time of the write, and the processor belongs to the program. Here, pieces of the
//! pool are registered with the kernel when they are first written, and stay registered as long as
//! the pool exists. A piece is several adjacent chunks, because the fixed cost of a write is paid
//! less often if it is long. There is one write at a time, and it is waited for at once. Locked
//! memory belongs to the program too (RDMA uses the same limit, which applies to all processes of a
//! user). If it is limited, the processes that share the pool pin at most a quarter of the limit,
//! each an equal part. What is not pinned still goes through the ring, as everything does before
//! Linux 5.19. If there is no ring (before Linux 5.6, or forbidden), `None` tells the caller to
//! write by itself.
//!
//! Invariants
//! 1. A write that the kernel has accepted is waited for: when `write` returns, nobody reads the
//!    memory any more. The wait ends at the deadline: then the write is an error, its file is lost,
//!    and what the device may still read of the memory can only reach that file.
//! 2. A refusal that the ring itself may have caused is never an error of the file: the caller
//!    tries the same bytes again by an ordinary write, whose error counts.
//! 3. A ring whose pinning was refused in part leaves no memory pinned: all of it is released.
//! 4. The pages of a chunk stay the same as long as the pool exists: nothing here or in `pool.rs`
//!    takes memory away from a chunk, so the pinned pages are the mapped ones.
//!
//! Faults survived: no ring, no memory to pin, calls that fail or are interrupted. A killed process
//! may leave one write in flight to the disk: no later run writes to that file, and no record names
//! it.
//!
//! Not here: what is written where (see [`orcheck_io::disk`]).
#![allow(unsafe_code)]

use io_uring::{IoUring, opcode, types};
use orcheck_format::sabotage::{Switch, off};
use orcheck_io::clock::Deadline;
use orcheck_io::descriptor::away_from_streams;
use orcheck_io::disk::PinnedWrite;
use orcheck_io::errno::backoff;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use rustix::thread::CapabilitySet;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, TryLockError};
use std::time::Duration;

/// Maximum number of buffers that the kernel lets a ring register; later pieces are written
/// unpinned.
const MOST_PINNED: usize = 1 << 14;
const BLOCK_BYTES: usize = 4096;
/// Longest single write; the caller continues a short one.
const MOST_BYTES: usize = 1 << 30;

/// Longest wait for one write: longer than the servers of a parallel file system take to fail over.
const WRITE_DEADLINE: Duration = Duration::from_secs(300);

/// The ring for one area of memory, divided into pieces of equal length except the last.
pub struct Uring {
    start: usize,
    len: usize,
    piece_bytes: usize,
    sharers: u32,
    deadline: Duration,
    state: Mutex<State>,
}

enum State {
    /// Nobody has written yet.
    New,
    Ready(Box<Ready>),
    /// There is no ring, or it failed.
    Off,
}

struct Ready {
    ring: IoUring,
    /// For each piece, whether its pages are pinned; as long as any may be.
    pinned: Vec<bool>,
    /// Bytes that may still be pinned.
    budget: u64,
    /// A write that the kernel took did not end in time.
    stuck: bool,
    /// The kernel accepts a timeout with the wait itself.
    timed: bool,
}

impl Uring {
    /// For `len` bytes of memory from address `start` on, which the owner keeps mapped with the
    /// same pages as long as this exists; at most `sharers` processes write from it.
    pub(crate) fn new(start: usize, len: usize, piece_bytes: usize, sharers: u32) -> Uring {
        Uring {
            start,
            len,
            piece_bytes,
            sharers,
            deadline: WRITE_DEADLINE,
            state: Mutex::new(State::New),
        }
    }

    /// Pins a piece whose memory is all allocated, unless it is pinned or cannot be.
    pub(crate) fn pin(&self, piece: usize) {
        let Some(mut state) = self.state() else {
            return;
        };
        let State::Ready(ready) = &mut *state else {
            return;
        };
        let at = piece * self.piece_bytes;
        let len = self.piece_bytes.min(self.len.saturating_sub(at));
        if ready.pinned.get(piece) != Some(&false) || len as u64 > ready.budget {
            return;
        }
        let memory = libc::iovec {
            iov_base: (self.start + at) as *mut libc::c_void,
            iov_len: len,
        };
        let submitter = ready.ring.submitter();
        // SAFETY: mapped memory, which the owner leaves as it is as long as this ring lives.
        let done = unsafe { submitter.register_buffers_update(piece as u32, &[memory], None) };
        if done.is_ok() {
            ready.pinned[piece] = true;
            ready.budget -= len as u64;
        } else {
            // Other processes of this user were first: the memory taken is returned to them with
            // the ring.
            *state = Ready::new(0, 0).map_or(State::Off, |ready| State::Ready(Box::new(ready)));
        }
    }

    /// The ring, created on first use. `None` while another thread uses it: threads do not wait for
    /// each other.
    fn state(&self) -> Option<MutexGuard<'_, State>> {
        let mut state = match self.state.try_lock() {
            Ok(state) => state,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        if matches!(*state, State::New) {
            let pieces = self.len.div_ceil(self.piece_bytes);
            *state = Ready::new(pieces, pin_budget(self.sharers))
                .map_or(State::Off, |ready| State::Ready(Box::new(ready)));
        }
        Some(state)
    }
}

impl PinnedWrite for Uring {
    /// Writes at most up to the end of the piece that holds the first byte.
    fn write(
        &self,
        file: &OwnedFd,
        bytes: &[u8],
        offset: u64,
    ) -> Option<rustix::io::Result<usize>> {
        let mut state = self.state()?;
        let State::Ready(ready) = &mut *state else {
            return None;
        };
        let at = (bytes.as_ptr() as usize).checked_sub(self.start)?;
        let (piece, within) = (at / self.piece_bytes, at % self.piece_bytes);
        if !within.is_multiple_of(BLOCK_BYTES) {
            // The end of the piece would cut a block.
            return None;
        }
        let most = MOST_BYTES.min(self.piece_bytes - within);
        let bytes = &bytes[..bytes.len().min(most)];
        let moved = ready.write(file, bytes, offset, piece, Deadline::after(self.deadline));
        if ready.stuck {
            // The kernel keeps the pages until the device releases them. This ring is not used
            // again.
            *state = State::Off;
            return moved;
        }
        match moved {
            Some(Err(Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS)) | None => {
                *state = State::Off;
                off(Switch::RingRefusal).then_some(Err(Errno::AGAIN))
            }
            // A lack of something that an ordinary write does not need.
            Some(Err(
                Errno::AGAIN | Errno::CANCELED | Errno::FAULT | Errno::INTR | Errno::NOMEM,
            )) => None,
            moved => moved,
        }
    }
}

impl Ready {
    /// For this many pieces; as many are pinned as fit the budget.
    fn new(pieces: usize, budget: u64) -> Option<Ready> {
        let ring = away_from_streams(|| IoUring::new(1)).ok()?;
        let timed = ring.params().is_feature_ext_arg();
        let most = pieces.min(MOST_PINNED);
        let sparse = most > 0
            && ring
                .submitter()
                .register_buffers_sparse(most as u32)
                .is_ok();
        let pinned = if sparse {
            vec![false; most]
        } else {
            Vec::new()
        };
        Some(Ready {
            ring,
            pinned,
            budget,
            stuck: false,
            timed,
        })
    }

    /// Submits what is queued and waits until something has ended, or the deadline has passed.
    fn enter(&mut self, deadline: Deadline) -> std::io::Result<()> {
        if off(Switch::UringDeadline) {
            return self.ring.submit_and_wait(1).map(drop);
        }
        let left = deadline.left();
        if self.timed {
            let time = types::Timespec::from(left);
            let wait = types::SubmitArgs::new().timespec(&time);
            return self.ring.submitter().submit_with_args(1, &wait).map(drop);
        }
        // Before Linux 5.11, only the queue itself can be waited for with a timeout.
        self.ring.submit()?;
        // SAFETY: the ring is open for as long as this borrow lives.
        let ring = unsafe { BorrowedFd::borrow_raw(self.ring.as_raw_fd()) };
        let mut fds = [PollFd::new(&ring, PollFlags::IN)];
        let time = Timespec::try_from(left).map_err(std::io::Error::other)?;
        poll(&mut fds, Some(&time))?;
        Ok(())
    }

    /// `None`: the kernel accepted nothing.
    fn write(
        &mut self,
        file: &OwnedFd,
        bytes: &[u8],
        offset: u64,
        piece: usize,
        deadline: Deadline,
    ) -> Option<rustix::io::Result<usize>> {
        let (file, from, len) = (
            types::Fd(file.as_raw_fd()),
            bytes.as_ptr(),
            bytes.len() as u32,
        );
        let entry = if self.pinned.get(piece) == Some(&true) {
            opcode::WriteFixed::new(file, from, len, piece as u16)
                .offset(offset)
                .build()
        } else {
            opcode::Write::new(file, from, len).offset(offset).build()
        };
        // SAFETY: the write is waited for below; where it is not, the kernel holds on to the file
        // and to the pages, which the owner leaves as they are.
        unsafe { self.ring.submission().push(&entry) }.ok()?;
        let mut attempt = 0;
        loop {
            let entered = self.enter(deadline);
            if let Some(done) = self.ring.completion().next() {
                return Some(match u32::try_from(done.result()) {
                    Ok(count) => Ok(count as usize),
                    Err(_) => Err(Errno::from_raw_os_error(-done.result())),
                });
            }
            if deadline.passed() && self.ring.submission().is_empty() {
                self.stuck = true;
                return Some(Err(Errno::TIMEDOUT));
            }
            if let Err(error) = entered {
                if !self.ring.submission().is_empty() {
                    return None;
                }
                // Breaks if: it is not waited for; the chunk would be filled again during the
                // write.
                let waited = [libc::EINTR, libc::ETIME];
                if !waited
                    .iter()
                    .any(|&errno| error.raw_os_error() == Some(errno))
                {
                    backoff(attempt, Deadline::after(Duration::from_secs(1)));
                    attempt += 1;
                }
            }
        }
    }
}

/// The number of bytes that each of `sharers` processes may pin without taking what the program may
/// need.
fn pin_budget(sharers: u32) -> u64 {
    let unlimited = rustix::thread::capabilities(None)
        .is_ok_and(|sets| sets.effective.contains(CapabilitySet::IPC_LOCK));
    match getrlimit(Resource::Memlock).current {
        Some(limit) if !unlimited && !off(Switch::PinBudget) => limit / 4 / u64::from(sharers),
        _ => u64::MAX,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use orcheck_io::memory::Buffer;

    /// A full pipe accepts no byte, like a device that hangs.
    fn full_pipe() -> (OwnedFd, OwnedFd) {
        let (read, write) = rustix::pipe::pipe().unwrap();
        let room = rustix::pipe::fcntl_getpipe_size(&write).unwrap();
        let written = rustix::io::write(&write, &vec![0; room]).unwrap();
        assert_eq!(written, room);
        (read, write)
    }

    // Breaks if: the ring is entered without a timeout; the thread that flushes would wait for a
    // dead device forever.
    #[test]
    #[allow(clippy::print_stderr)]
    fn a_write_that_never_ends_is_an_error_after_the_deadline() {
        // In a thread of its own: without a timeout it would wait forever.
        let (tell, told) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let met = [true, false].map(write_to_a_full_pipe);
            tell.send(met)
        });
        let met = told.recv_timeout(Duration::from_secs(30));
        for met in met.expect("the wait ends, and nothing panics") {
            let Some((first, second)) = met else {
                return eprintln!("SKIPPED: this system has no io_uring");
            };
            assert_eq!(first, Some(Err(Errno::TIMEDOUT)));
            // From now on the caller writes by itself.
            assert!(second.is_none());
        }
    }

    type Written = Option<rustix::io::Result<usize>>;

    /// What two writes in turn return; `None` without io_uring.
    fn write_to_a_full_pipe(timed: bool) -> Option<(Written, Written)> {
        let memory = Buffer::zeroed(BLOCK_BYTES, BLOCK_BYTES);
        let mut way = Uring::new(memory.as_ptr() as usize, BLOCK_BYTES, BLOCK_BYTES, 1);
        way.deadline = Duration::from_millis(50);
        let (_read, write) = full_pipe();
        match &mut *way.state().expect("nobody else has the ring") {
            State::Ready(ready) => ready.timed &= timed,
            _ => return None,
        }
        let first = way.write(&write, &memory, 0);
        Some((first, way.write(&write, &memory, 0)))
    }
}
