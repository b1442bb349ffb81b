//! Shares the disk with ordinary traffic: drives [`Pauses`] for the threads that write.
//!
//! Invariants:
//! 1. Bytes of others are counted while none of the server's own writes is in flight, so that they
//!    are not confused. What the server's syncs and changes of names move cannot be distinguished:
//!    if a pause has seen any, a rate counts only if others are known to be there, or if it is
//!    zero.
//! 2. A server that is about to end does not pause, and cuts its current pauses short; nothing is
//!    learned from these.
//!
//! Not here: how long to pause (`pauses.rs`), where the disk's counters are ([`Device`]).

use crate::server::locked::guard;
use crate::server::pauses::{FIRST_PAUSE, Pauses, Seen};
use orcheck_format::Result;
use orcheck_io::clock::Clock;
use orcheck_io::disk::Device;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockWriteGuard};
use std::time::Duration;

/// How often a pause checks whether the server is about to end.
const NAP: Duration = Duration::from_millis(50);

/// Writes that leave room for others; see the module.
pub(crate) struct Sharing {
    device: Device,
    clock: Arc<dyn Clock>,
    /// Bytes that the server's own writes have begun to move.
    own_bytes: AtomicU64,
    /// Bytes that the server read without a request.
    beside_bytes: Arc<AtomicU64>,
    /// Number of other disk operations of the server in progress, and their total so far.
    else_now: AtomicU64,
    else_done: AtomicU64,
    ending: Arc<AtomicBool>,
    /// Shared by writes; held exclusively to count or pause.
    alone: RwLock<()>,
    room: Mutex<Pauses>,
}

/// A time, and what others had moved until then.
#[derive(Clone, Copy)]
struct Count {
    at: Duration,
    others_bytes: u64,
}

impl Sharing {
    pub(crate) fn new(
        device: Device,
        share: f64,
        clock: Arc<dyn Clock>,
        beside_bytes: Arc<AtomicU64>,
        ending: Arc<AtomicBool>,
    ) -> Result<Self> {
        // A device without counters is an error now, not silence later.
        device.moved_bytes()?;
        Ok(Self {
            device,
            clock,
            own_bytes: AtomicU64::new(0),
            beside_bytes,
            else_now: AtomicU64::new(0),
            else_done: AtomicU64::new(0),
            ending,
            alone: RwLock::new(()),
            room: Mutex::new(Pauses::new(share)),
        })
    }

    /// Whether there is ordinary traffic.
    pub(crate) fn is_shared(&self) -> bool {
        guard(&self.room).is_shared()
    }

    /// What others have moved; exact while nothing is being written.
    fn count(&self) -> Count {
        // If the device is gone, the writes fail too.
        let moved = self.device.moved_bytes().unwrap_or(0);
        Count {
            at: self.clock.now(),
            others_bytes: moved
                .saturating_sub(self.own_bytes.load(Ordering::Acquire))
                .saturating_sub(self.beside_bytes.load(Ordering::Acquire)),
        }
    }

    /// Does something to the disk other than writing a piece.
    pub(crate) fn other<T>(&self, work: impl FnOnce() -> T) -> T {
        self.else_now.fetch_add(1, Ordering::AcqRel);
        let done = work();
        self.else_done.fetch_add(1, Ordering::AcqRel);
        self.else_now.fetch_sub(1, Ordering::AcqRel);
        done
    }

    fn seen(&self, from: Count) -> (Count, Seen) {
        let to = self.count();
        let seen = Seen {
            took: to.at.saturating_sub(from.at),
            moved_bytes: to.others_bytes.saturating_sub(from.others_bytes),
        };
        (to, seen)
    }

    /// Writes this many bytes. The caller must wait for the returned pause once the bytes are
    /// accounted for, and before it writes others: meanwhile nobody writes.
    pub(crate) fn write<T>(&self, len: usize, write: impl FnOnce() -> T) -> (T, Option<After<'_>>) {
        if !guard(&self.room).is_shared() {
            let together = self.alone.read().unwrap_or_else(PoisonError::into_inner);
            self.own_bytes.fetch_add(len as u64, Ordering::AcqRel);
            let done = write();
            drop(together);
            let due = guard(&self.room).is_due(self.clock.now());
            return (done, due.then(|| self.after(None)).flatten());
        }
        let alone = self.alone.write().unwrap_or_else(PoisonError::into_inner);
        let before = self.count();
        self.own_bytes.fetch_add(len as u64, Ordering::AcqRel);
        let done = write();
        let seen = self.seen(before).1;
        (done, self.after(Some((alone, seen))))
    }

    /// The pause that is due after a write that was observed alone, or to look for other traffic.
    fn after<'a>(&'a self, wrote: Option<(RwLockWriteGuard<'a, ()>, Seen)>) -> Option<After<'a>> {
        let (alone, seen) = match wrote {
            Some((alone, seen)) => (alone, Some(seen)),
            None => {
                let alone = self.alone.write();
                (alone.unwrap_or_else(PoisonError::into_inner), None)
            }
        };
        if self.ending.load(Ordering::Acquire) {
            return None;
        }
        let pause = {
            let mut room = guard(&self.room);
            match seen {
                Some(seen) => room.wrote(seen),
                // Another thread may have looked meanwhile.
                None if room.is_due(self.clock.now()) => FIRST_PAUSE,
                None => Duration::ZERO,
            }
        };
        (!pause.is_zero()).then_some(After {
            sharing: self,
            _alone: alone,
            pause,
        })
    }

    /// Returns after this time, or if the server is about to end.
    fn sleep(&self, time: Duration) -> bool {
        let end = self.clock.now() + time;
        while !self.ending.load(Ordering::Acquire) {
            let left = end.saturating_sub(self.clock.now());
            if left.is_zero() {
                return true;
            }
            self.clock.sleep(left.min(NAP));
        }
        false
    }
}

/// A pause, during which the server writes nothing.
pub(crate) struct After<'a> {
    sharing: &'a Sharing,
    _alone: RwLockWriteGuard<'a, ()>,
    pause: Duration,
}

impl After<'_> {
    /// Waits for its end.
    pub(crate) fn wait(self) {
        let sharing = self.sharing;
        let done_before = sharing.else_done.load(Ordering::Acquire);
        let begin = sharing.count();
        if !sharing.sleep(self.pause / 2) {
            return;
        }
        let (half, first) = sharing.seen(begin);
        if !sharing.sleep(self.pause / 2) {
            return;
        }
        let (end, rest) = sharing.seen(half);
        let undisturbed = sharing.else_now.load(Ordering::Acquire) == 0
            && sharing.else_done.load(Ordering::Acquire) == done_before;
        guard(&sharing.room).paused(end.at, first, rest, undisturbed);
    }
}
