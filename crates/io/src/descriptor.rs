//! Creates descriptors above the standard streams, and keeps forked children from holding them
//! open.
//!
//! How: a program may run with its standard streams closed, and still print. The kernel assigns the
//! lowest free number, so a new descriptor that got one of 0 to 2 is moved above them at once. A
//! descriptor whose being open tells others that this process is alive (a lock, a connection, a
//! listener) is a [`Living`]. It has a bit in a table; before `fork` returns in a child, the child
//! replaces each of them by one of `/dev/null`. Its number stays taken, so that nothing in the
//! child's copy of our memory can close a descriptor of the program.
//!
//! Invariants:
//! 1. No other module creates a descriptor that it keeps (a test, `tidy/tests/descriptors.rs`,
//!    looks for the calls).
//! 2. The code in the child takes no lock and allocates nothing. If not even `/dev/null` can be
//!    opened, it closes the descriptor.
//! 3. A bit is set only while its descriptor is open: a descriptor of the program is never
//!    replaced.
//!
//! Faults survived: standard streams that are closed before or after the session is opened; a child
//! that outlives the program. A child that is forked between the kernel's call and the bit, or
//! without `fork` (`clone`, `vfork`), still shares the descriptors; `exec` closes them.
//!
//! Not here: descriptors that one function of the standard library opens, reads and closes.
#![allow(unsafe_code)]

use orcheck_format::sabotage::{Switch, off};
use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::fs::{self, MemfdFlags, Mode, OFlags};
use rustix::io::{Result, fcntl_dupfd_cloexec};
use rustix::net::{self, AddressFamily, SocketFlags, SocketType};
use rustix::path::Arg;
use rustix::pipe::{PipeFlags, pipe_with};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// The lowest number that does not belong to a standard stream.
const FIRST: i32 = 3;

/// The same open file under a number above the standard streams.
pub fn above_streams(fd: OwnedFd) -> Result<OwnedFd> {
    // Breaks if: it stays where it is; what the program prints would be written into the pool, or
    // sent to a peer.
    if fd.as_raw_fd() >= FIRST || off(Switch::StandardStreams) {
        return Ok(fd);
    }
    fcntl_dupfd_cloexec(&fd, FIRST)
}

/// Runs `make` while the numbers of the standard streams are occupied, for descriptors that cannot
/// be moved once they exist.
pub fn away_from_streams<T>(make: impl FnOnce() -> T) -> T {
    let mut taken = Vec::new();
    while taken.len() < FIRST as usize && !off(Switch::StandardStreams) {
        match fs::open("/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) {
            Ok(fd) if fd.as_raw_fd() < FIRST => taken.push(fd),
            _ => break,
        }
    }
    make()
}

/// Opens a file by its path.
pub fn open(path: impl Arg, flags: OFlags, mode: Mode) -> Result<OwnedFd> {
    above_streams(fs::open(path, flags, mode)?)
}

/// Opens a file beneath a directory.
pub fn openat(dir: impl AsFd, path: impl Arg, flags: OFlags, mode: Mode) -> Result<OwnedFd> {
    above_streams(fs::openat(dir, path, flags, mode)?)
}

/// A file in memory.
pub fn memory_file(name: &str, flags: MemfdFlags) -> Result<OwnedFd> {
    above_streams(fs::memfd_create(name, flags)?)
}

/// A stream socket.
pub fn socket(family: AddressFamily, flags: SocketFlags) -> Result<OwnedFd> {
    above_streams(net::socket_with(family, SocketType::STREAM, flags, None)?)
}

/// Accepts the next caller of a listening socket.
pub fn accept(listener: impl AsFd, flags: SocketFlags) -> Result<OwnedFd> {
    above_streams(net::accept_with(listener, flags)?)
}

/// A counter that can be polled.
pub fn event(flags: EventfdFlags) -> Result<OwnedFd> {
    above_streams(eventfd(0, flags)?)
}

/// A pipe: the end to read from, and the end to write to.
pub fn one_way() -> Result<(OwnedFd, OwnedFd)> {
    let (out, into) = pipe_with(PipeFlags::CLOEXEC)?;
    Ok((above_streams(out)?, above_streams(into)?))
}

/// A set of descriptors to poll together.
pub fn watched() -> Result<OwnedFd> {
    above_streams(epoll::create(epoll::CreateFlags::CLOEXEC)?)
}

const WORDS: usize = 1 << 14;
/// One bit for each descriptor of a [`Living`]; the kernel assigns numbers up to 2^20 unless its
/// administrator raises that.
static LIVING: [AtomicU64; WORDS] = [const { AtomicU64::new(0) }; WORDS];
/// Number of its words that were ever used.
static USED: AtomicUsize = AtomicUsize::new(0);

/// A descriptor whose being open tells others that this process is alive.
pub struct Living {
    // Dropped before the descriptor: its number may belong to another one as soon as it is closed.
    mark: Mark,
    fd: OwnedFd,
}

struct Mark(usize);

impl Living {
    /// Takes over the descriptor.
    pub fn new(fd: OwnedFd) -> Living {
        // Breaks if: it waits, as with a `Once`; a child that is forked meanwhile would wait
        // forever.
        static CHILDREN: AtomicBool = AtomicBool::new(false);
        if !CHILDREN.swap(true, Ordering::SeqCst) {
            // SAFETY: registers a function that may run in the child of a program with threads.
            // Without memory for it children are as before.
            unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        }
        let number = fd.as_raw_fd() as usize;
        if let Some(word) = LIVING.get(number / 64) {
            word.fetch_or(1 << (number % 64), Ordering::SeqCst);
            USED.fetch_max(number / 64 + 1, Ordering::SeqCst);
        }
        let mark = Mark(number);
        Living { mark, fd }
    }

    /// Gives away the descriptor, to be handed to another process.
    pub fn give(self) -> OwnedFd {
        let Living { mark, fd } = self;
        drop(mark);
        fd
    }
}

impl AsFd for Living {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl AsRawFd for Living {
    fn as_raw_fd(&self) -> i32 {
        self.fd.as_raw_fd()
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        if let Some(word) = LIVING.get(self.0 / 64) {
            word.fetch_and(!(1 << (self.0 % 64)), Ordering::SeqCst);
        }
    }
}

/// In a forked child, before `fork` returns: releases what tells others that the parent is alive.
extern "C" fn in_child() {
    if off(Switch::ForkedLocks) {
        return;
    }
    // SAFETY: only system calls that a child may make, on descriptors that are ours (invariant 3);
    // `fork` has not returned, so nothing else runs in this process. The number of the last error
    // is put back.
    unsafe {
        let errno = *libc::__errno_location();
        let nothing = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC);
        for (at, word) in LIVING[..USED.load(Ordering::SeqCst)].iter().enumerate() {
            let mut bits = word.swap(0, Ordering::SeqCst);
            while bits != 0 {
                let number = (at * 64) as i32 + bits.trailing_zeros() as i32;
                bits &= bits - 1;
                if libc::dup3(nothing, number, libc::O_CLOEXEC) < 0 {
                    libc::close(number);
                }
            }
        }
        if nothing >= 0 {
            libc::close(nothing);
        }
        *libc::__errno_location() = errno;
    }
}
