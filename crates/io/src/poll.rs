//! Waits for several descriptors at once, with a waker for other threads.
//!
//! Invariants
//! 1. A wake that comes before the wait is not lost: the waker is an eventfd that stays readable
//!    until drained.
//! 2. Every wait has a deadline.
//!
//! Faults survived: signals during the wait. Not here: what to do with a readable descriptor. A
//! connection of `orcheck-net` may hold complete messages that its descriptor no longer announces,
//! so take messages until there are none.

use crate::clock::Deadline;
use crate::descriptor;
use crate::errno::rustix_error;
use orcheck_format::Result;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

/// Waits for descriptors; see the module.
pub struct Poller {
    wake: Arc<OwnedFd>,
}

/// Ends a wait of its [`Poller`] from any thread.
#[derive(Clone)]
pub struct Waker {
    wake: Arc<OwnedFd>,
}

impl Waker {
    /// Ends the present or the next wait.
    pub fn wake(&self) {
        // A full counter means that a wake is pending anyway.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }
}

impl Poller {
    /// A poller with its waker.
    pub fn new() -> Result<Self> {
        let wake = descriptor::event(EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|errno| rustix_error(errno, "create an eventfd"))?;
        Ok(Poller {
            wake: Arc::new(wake),
        })
    }

    /// A handle that ends waits.
    #[must_use]
    pub fn waker(&self) -> Waker {
        Waker {
            wake: Arc::clone(&self.wake),
        }
    }

    /// Waits until one of `fds` is readable (or its peer is gone), the waker is used, or `timeout`
    /// has passed. Returns the indices of the readable ones; the waker is drained.
    pub fn wait(&self, fds: &[BorrowedFd<'_>], timeout: Duration) -> Result<Vec<usize>> {
        let readable: Vec<_> = fds.iter().map(|fd| (*fd, false)).collect();
        self.wait_for(&readable, timeout)
    }

    /// As [`Self::wait`], but those with `true` are also ready when they can take more bytes.
    pub fn wait_for(
        &self,
        fds: &[(BorrowedFd<'_>, bool)],
        timeout: Duration,
    ) -> Result<Vec<usize>> {
        let events = |writable| match writable {
            true => PollFlags::IN | PollFlags::OUT,
            false => PollFlags::IN,
        };
        let mut entries: Vec<PollFd<'_>> = fds
            .iter()
            .map(|(fd, writable)| PollFd::from_borrowed_fd(*fd, events(*writable)))
            .collect();
        entries.push(PollFd::from_borrowed_fd(self.wake.as_fd(), PollFlags::IN));
        poll_until(&mut entries, Deadline::after(timeout)).map_err(|errno| {
            rustix_error(errno, format_args!("wait for {} descriptors", fds.len()))
        })?;
        if entries.pop().is_some_and(|wake| !wake.revents().is_empty()) {
            let mut drained = [0; 8];
            let _ = rustix::io::read(&self.wake, &mut drained);
        }
        let ready = entries
            .iter()
            .enumerate()
            .filter(|(_, entry)| !entry.revents().is_empty());
        Ok(ready.map(|(index, _)| index).collect())
    }
}

/// Polls until something is ready or the deadline has passed; `false`: nothing is ready.
pub fn poll_until(entries: &mut [PollFd<'_>], deadline: Deadline) -> rustix::io::Result<bool> {
    loop {
        let left = deadline.left();
        let limit = Timespec {
            tv_sec: i64::try_from(left.as_secs())
                .unwrap_or(i64::MAX)
                .min(1 << 40),
            tv_nsec: left.subsec_nanos().into(),
        };
        match poll(entries, Some(&limit)) {
            Ok(0) if left.is_zero() => return Ok(false),
            Ok(0) | Err(Errno::INTR) => {}
            Ok(_) => return Ok(true),
            Err(errno) => return Err(errno),
        }
    }
}

/// The same for one descriptor.
pub fn poll_one(
    fd: BorrowedFd<'_>,
    events: PollFlags,
    deadline: Deadline,
) -> rustix::io::Result<bool> {
    poll_until(&mut [PollFd::from_borrowed_fd(fd, events)], deadline)
}
