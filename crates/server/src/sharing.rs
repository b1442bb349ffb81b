//! Sharing the disk with ordinary traffic: the driver of [`Room`], for threads that write.
//!
//! Invariants:
//! 1. Bytes of others are counted while no write of the server's own is on the way, so that none is taken for another's.
//! 2. Pauses end early when the server ends.
//!
//! Not here: how long to pause (`room.rs`), where the disk's counters are ([`Device`]).

use crate::intake::guard;
use crate::room::{FIRST_PAUSE, Room, Seen};
use orcheck_format::Result;
use orcheck_io::{Clock, Device};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockWriteGuard};
use std::time::Duration;

/// How often a pause looks whether the server is about to end.
const NAP: Duration = Duration::from_millis(50);

/// Writes that leave room for others; see the module.
pub(crate) struct Sharing {
    device: Device,
    clock: Arc<dyn Clock>,
    /// Bytes that the server's own writes have begun to move.
    own_bytes: AtomicU64,
    /// Bytes that the server read for nobody.
    beside_bytes: Arc<AtomicU64>,
    /// Writes hold it together; whoever counts or pauses holds it alone.
    alone: RwLock<()>,
    room: Mutex<Room>,
}

/// A time, and what others had moved till then.
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
    ) -> Result<Self> {
        // A device without counters is an error now, not silence later.
        device.moved_bytes()?;
        Ok(Self {
            device,
            clock,
            own_bytes: AtomicU64::new(0),
            beside_bytes,
            alone: RwLock::new(()),
            room: Mutex::new(Room::new(share)),
        })
    }

    /// Whether there is ordinary traffic.
    pub(crate) fn is_shared(&self) -> bool {
        guard(&self.room).is_shared()
    }

    /// What others have moved; exact while nothing is being written.
    fn count(&self) -> Count {
        // A device that is gone fails the writes, too.
        let moved = self.device.moved_bytes().unwrap_or(0);
        Count {
            at: self.clock.now(),
            others_bytes: moved
                .saturating_sub(self.own_bytes.load(Ordering::Acquire))
                .saturating_sub(self.beside_bytes.load(Ordering::Acquire)),
        }
    }

    fn seen(&self, from: Count) -> (Count, Seen) {
        let to = self.count();
        let seen = Seen {
            took: to.at.saturating_sub(from.at),
            moved_bytes: to.others_bytes.saturating_sub(from.others_bytes),
        };
        (to, seen)
    }

    /// Writes so many bytes. What comes with it is to be waited for when the bytes are accounted for, and before others are
    /// written: meanwhile nobody writes.
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

    /// The pause that is due after a write that was seen alone, or to look whether others came.
    fn after<'a>(&'a self, wrote: Option<(RwLockWriteGuard<'a, ()>, Seen)>) -> Option<After<'a>> {
        let (alone, seen) = match wrote {
            Some((alone, seen)) => (alone, Some(seen)),
            None => {
                let alone = self.alone.write();
                (alone.unwrap_or_else(PoisonError::into_inner), None)
            }
        };
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

    fn sleep(&self, time: Duration, stopping: &dyn Fn() -> bool) {
        let end = self.clock.now() + time;
        while !stopping() {
            let left = end.saturating_sub(self.clock.now());
            if left.is_zero() {
                return;
            }
            self.clock.sleep(left.min(NAP));
        }
    }
}

/// A pause, during which the server writes nothing.
pub(crate) struct After<'a> {
    sharing: &'a Sharing,
    _alone: RwLockWriteGuard<'a, ()>,
    pause: Duration,
}

impl After<'_> {
    /// Waits for its end, or until the server is about to end.
    pub(crate) fn wait(self, stopping: &dyn Fn() -> bool) {
        let sharing = self.sharing;
        let begin = sharing.count();
        sharing.sleep(self.pause / 2, stopping);
        let (half, first) = sharing.seen(begin);
        sharing.sleep(self.pause / 2, stopping);
        let (end, rest) = sharing.seen(half);
        guard(&sharing.room).paused(end.at, first, rest);
    }
}
