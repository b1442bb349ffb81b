//! Reads, writes, cuts and syncs open files.
//!
//! Invariants:
//! 1. A staged file is charged before it grows. Where the stage has no room, whoever writes waits
//!    for the flush of other files; where none is under way, the file itself is flushed and then
//!    written in its place.
//! 2. `fsync` returns 0 only if the bytes are durable and no failure is left to be reported.
//!
//! Faults survived: a full stage; failing syncs.
//!
//! Not here: which file has the bytes (`node.rs`).

use super::Stacked;
use crate::node::{Handle, Node};
use orcheck_format::sabotage::{Switch, off};
use orcheck_io::clock::{Clock, SystemClock};
use orcheck_io::disk::{Contents, Kernel};
use orcheck_io::machine::{Effect, Watched};
use rustix::io::Errno;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Attempts to get room in the stage before a file is unstaged, of a tenth of a second each.
const WAITS: u32 = 600;

impl Stacked {
    /// Reads; fewer bytes than asked for only at the end of the file.
    pub fn read(&self, handle: &Handle, offset: u64, into: &mut [u8]) -> Kernel<usize> {
        handle.with(|contents| contents.read(into, offset))
    }

    /// Tells the watch, if there is one, what a process did to a file.
    fn watched<T>(
        &self,
        (process, node): (u32, &Node),
        act: impl FnOnce() -> Kernel<T>,
        what: impl FnOnce(&T) -> Effect,
    ) -> Kernel<T> {
        let Some(watch) = &self.watch else {
            return act();
        };
        let at = SystemClock.now();
        let done = act()?;
        watch(Watched {
            process,
            at,
            took: SystemClock.now().saturating_sub(at),
            path: node.path(),
            what: what(&done),
        });
        Ok(done)
    }

    /// Writes, and returns how much.
    pub fn write(&self, handle: &Handle, offset: u64, bytes: &[u8], process: u32) -> Kernel<usize> {
        self.watched(
            (process, &handle.node),
            || self.write_now(handle, offset, bytes),
            |count| Effect::Wrote {
                offset,
                len_bytes: *count as u64,
            },
        )
    }

    fn write_now(&self, handle: &Handle, offset: u64, bytes: &[u8]) -> Kernel<usize> {
        let end = offset.checked_add(bytes.len() as u64).ok_or(Errno::FBIG)?;
        self.make_room(&handle.node, end)?;
        match handle.change(|contents| contents.write(bytes, offset)) {
            // Others use the stage's disk, too.
            Err(Errno::NOSPC | Errno::DQUOT) if handle.node.look().stage.is_some() => {
                self.lane.flush_now(&handle.node)?;
                handle.change(|contents| contents.write(bytes, offset))
            }
            other => other,
        }
    }

    /// Sees to it that a staged file may become this long: others are flushed, or it is
    /// unstaged.
    fn make_room(&self, node: &Arc<Node>, len: u64) -> Kernel<()> {
        let Some(stage) = &self.stage else {
            return Ok(());
        };
        for _ in 0..WAITS {
            match &node.look().stage {
                Some(staged) if !stage.charge(staged, len) => {}
                _ => return Ok(()),
            }
            if !self.lane.wait_for_room() {
                break;
            }
        }
        self.lane.flush_now(node)
    }

    /// Sets the length of a file, by an open one if there is one.
    pub fn set_len(
        &self,
        node: &Arc<Node>,
        handle: Option<&Handle>,
        len: u64,
        process: u32,
    ) -> Kernel<()> {
        let resized = |(): &()| Effect::Resized { len_bytes: len };
        let sets = self.sets.as_ref().filter(|_| handle.is_none());
        sets.iter().for_each(|sets| sets.opens(node));
        let done = self.watched(
            (process, node),
            || self.set_len_now(node, handle, len),
            resized,
        );
        if let Some(sets) = sets {
            match done {
                Ok(()) => {
                    sets.opened(node, len == 0);
                    sets.closed(node, true);
                }
                Err(_) => sets.not_opened(node),
            }
        }
        done
    }

    fn set_len_now(&self, node: &Arc<Node>, handle: Option<&Handle>, len: u64) -> Kernel<()> {
        self.make_room(node, len)?;
        let state = node.look();
        let done = match (&state.stage, handle) {
            (Some(staged), _) => staged.contents.set_len(len),
            (None, Some(handle)) => handle.contents.set_len(len),
            (None, None) => {
                drop(state);
                return self.set_len_by_name(node, len);
            }
        };
        node.touch();
        done
    }

    /// Sets the length of a file that the program has not opened; it becomes durable in its turn.
    fn set_len_by_name(&self, node: &Arc<Node>, len: u64) -> Kernel<()> {
        let fd = node.inode.open(rustix::fs::OFlags::WRONLY)?;
        let target = node.path();
        let handle = Arc::new(Handle {
            node: Arc::clone(node),
            contents: Contents::new(fd, &self.points, &target.to_string_lossy()),
            writes: true,
            known: 0.into(),
            closed_well: false.into(),
        });
        // It may have been staged meanwhile.
        handle.change(|contents| contents.set_len(len))?;
        let mut state = node.change();
        state.unsynced.get_or_insert(handle);
        let waits = state.writers == 0;
        drop(state);
        if waits {
            self.lane.add(node);
        }
        Ok(())
    }

    /// Reserves or frees space.
    pub fn allocate(&self, handle: &Handle, mode: u32, offset: u64, len: u64) -> Kernel<()> {
        let end = offset.checked_add(len).ok_or(Errno::FBIG)?;
        self.make_room(&handle.node, end)?;
        handle.change(|contents| contents.allocate(mode, offset, len))
    }

    /// Copies between open files without the program.
    pub fn copy(&self, from: (&Handle, u64), to: (&Handle, u64), len: u64) -> Kernel<usize> {
        let ((source, at), (target, into)) = (from, to);
        if Arc::ptr_eq(&source.node, &target.node) {
            // Both states would be one.
            return Err(Errno::XDEV);
        }
        let end = into.checked_add(len).ok_or(Errno::FBIG)?;
        self.make_room(&target.node, end)?;
        let len = usize::try_from(len).unwrap_or(usize::MAX).min(1 << 30);
        // Both states are locked, in one order: two copies in opposite directions would wait for
        // each other.
        if source.node.number < target.node.number {
            source.with(|source| target.change(|target| source.copy_to(at, target, into, len)))
        } else {
            target.change(|target| source.with(|source| source.copy_to(at, target, into, len)))
        }
    }

    /// A program closed one of its descriptors of the file: a failure is reported to who wrote.
    pub fn report_at_close(&self, handle: &Handle, process: u32) -> Kernel<()> {
        if self.sets.is_some() && handle.writes {
            // Breaks if: nobody asks; the half of a file that a killed program had written would
            // count as a file of its set.
            let fails = orcheck_io::machine::is_failing(process as i32);
            let well = !fails || off(Switch::SetBrokenOff);
            handle.closed_well.store(well, Ordering::SeqCst);
        }
        if !handle.writes || handle.node.look().failure.is_none() {
            return Ok(());
        }
        handle.node.change().report(handle)
    }

    /// Makes an open file durable.
    pub fn sync(&self, handle: &Handle, process: u32) -> Kernel<()> {
        let concerned = (process, &*handle.node);
        self.watched(concerned, || self.sync_now(handle), |()| Effect::Synced)
    }

    fn sync_now(&self, handle: &Handle) -> Kernel<()> {
        let node = &handle.node;
        let staged = node.look().stage.is_some();
        if staged && !node.has_name()? {
            // Nothing of it could be found after a crash.
            return Ok(());
        }
        let done = self.make_durable(node, Some(handle));
        // Breaks if: this is asked before; the lane, which syncs the same open file, may have been
        // told of the failure instead.
        match (done, staged) {
            // What failed before does not count: all of it was in the stage.
            (Ok(()), true) => Ok(()),
            (done, _) => node.change().report(handle).and(done),
        }
    }
}
