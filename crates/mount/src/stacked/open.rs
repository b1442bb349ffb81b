//! Opens, creates and closes files.
//!
//! Invariants:
//! 1. A file that the kernel reads and writes by itself is not staged, and a staged one's bytes
//!    come through this process until it is closed.
//! 2. A file that nobody writes and that is not durable is given to the lane.
//!
//! Faults survived: a full stage, which is bypassed; a kernel that refuses passthrough.
//!
//! Not here: what is done with an open file (`bytes.rs`).

use super::{Stacked, locked};
use crate::node::{Handle, Node, State, Way};
use fuser::BackingId;
use orcheck_format::sabotage::{Switch, off};
use orcheck_io::disk::{Contents, Kernel};
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, RwLockWriteGuard};

/// A file that was opened.
pub struct Opened {
    /// Its number.
    pub handle: u64,
    /// What is open.
    pub node: Arc<Node>,
    /// The way of its bytes.
    pub way: Way,
    /// Whether the kernel must not keep them back.
    pub direct: bool,
}

/// Registers a file with the kernel, which will read and write it by itself.
pub type Register<'a> = &'a dyn Fn(BorrowedFd) -> std::io::Result<BackingId>;

/// Whether these flags allow writing, or write.
fn writes(flags: OFlags) -> bool {
    flags.intersects(OFlags::WRONLY | OFlags::RDWR | OFlags::TRUNC)
}

impl Stacked {
    /// The access with which a backing file is opened.
    fn access(&self, flags: OFlags) -> OFlags {
        let access = flags & (OFlags::RDONLY | OFlags::WRONLY | OFlags::RDWR);
        if self.how.write_back && access.contains(OFlags::WRONLY) {
            // The kernel reads what surrounds a piece that is written.
            return OFlags::RDWR;
        }
        // Others may append, too. What the kernel keeps back has places already.
        let append = if self.how.write_back {
            OFlags::empty()
        } else {
            OFlags::APPEND
        };
        access | flags & append
    }

    /// Opens a file that is there.
    pub fn open(&self, number: u64, flags: OFlags, register: Register) -> Kernel<Opened> {
        self.open_node(&self.tree.node(number)?, flags, register)
    }

    fn open_node(&self, node: &Arc<Node>, flags: OFlags, register: Register) -> Kernel<Opened> {
        // Before it is open: nothing of a set may change unseen.
        let sets = self.sets.as_ref().filter(|_| writes(flags));
        sets.iter().for_each(|sets| sets.opens(node));
        let opened = self.open_known(node, flags, register);
        self.tell_sets(node, &opened, (flags, flags.contains(OFlags::TRUNC)));
        opened
    }

    /// Tells the sets whether a file could be opened, and whether its content begins from nothing.
    fn tell_sets(&self, node: &Node, opened: &Kernel<Opened>, (flags, new): (OFlags, bool)) {
        let Some(sets) = self.sets.as_ref().filter(|_| writes(flags)) else {
            return;
        };
        match opened {
            Ok(_) => sets.opened(node, new),
            Err(_) => sets.not_opened(node),
        }
    }

    fn open_known(&self, node: &Arc<Node>, flags: OFlags, register: Register) -> Kernel<Opened> {
        let mut state = node.change();
        let new = flags.contains(OFlags::TRUNC) && writes(flags);
        let wanted = self.access(flags);
        let open = |access: OFlags| match new && state.stage.is_none() {
            true => node.inode.open(access | OFlags::TRUNC),
            false => node.inode.open(access),
        };
        let fd = match open(wanted) {
            Err(Errno::ACCESS) if self.how.write_back => open(flags & OFlags::WRONLY)?,
            other => other?,
        };
        if new {
            self.empty(node, &mut state)?;
        } else {
            self.give_up_empty_stage(&mut state);
        }
        self.enter(node, state, fd, (flags, new), register)
    }

    /// A program wants a file without bytes, and its content is new.
    fn empty(&self, node: &Node, state: &mut State) -> Kernel<()> {
        let emptied = match (&state.stage, &self.stage) {
            (Some(staged), Some(stage)) => stage.empty(staged),
            _ if !state.by_kernel() => {
                self.begin_stage(node, state);
                Ok(())
            }
            _ => Ok(()),
        };
        node.touch();
        state.failure = None;
        emptied
    }

    /// Creates a file, if need be, and opens it.
    pub fn create(
        &self,
        parent: u64,
        name: &OsStr,
        flags: OFlags,
        mode: u32,
        register: Register,
    ) -> Kernel<Opened> {
        let parent = self.tree.node(parent)?;
        if let Some(sets) = self.sets.as_ref().filter(|_| writes(flags)) {
            sets.will_have(&parent.path().join(name));
        }
        let made = parent
            .inode
            .create(name, self.access(flags) | OFlags::EXCL, mode);
        let node = match &made {
            Err(Errno::EXIST) if !flags.contains(OFlags::EXCL) => {
                self.tree.look_up(&parent, name)?
            }
            Err(errno) => return Err(*errno),
            Ok(_) => {
                self.note_names(&parent);
                self.tree.look_up(&parent, name)?
            }
        };
        let opened = match made {
            // Somebody else made it just now.
            Err(_) => self.open_node(&node, flags, register),
            Ok(fd) => {
                let sets = self.sets.as_ref().filter(|_| writes(flags));
                sets.iter().for_each(|sets| sets.opens(&node));
                let opened = self.enter_new(&node, fd, flags, register);
                self.tell_sets(&node, &opened, (flags, true));
                opened
            }
        };
        opened.inspect_err(|_| self.tree.forget(node.number, 1))
    }

    fn enter_new(
        &self,
        node: &Arc<Node>,
        fd: OwnedFd,
        flags: OFlags,
        register: Register,
    ) -> Kernel<Opened> {
        let stat = rustix::fs::fstat(&fd)?;
        if (stat.st_dev, stat.st_ino) != node.key {
            // Somebody else has replaced it just now.
            return Err(Errno::STALE);
        }
        let mut state = node.change();
        // Breaks if: files are staged that another node may have opened just as well; what it
        // writes would be hidden, and then overwritten.
        let new = (flags.intersects(OFlags::EXCL | OFlags::TRUNC) || off(Switch::StagedNew))
            && writes(flags);
        if new && !state.by_kernel() && state.stage.is_none() {
            self.begin_stage(node, &mut state);
        }
        self.enter(node, state, fd, (flags, new), register)
    }

    /// Stages a file that is empty, if there is a stage with room for it.
    fn begin_stage(&self, node: &Node, state: &mut State) {
        let Some(stage) = self.stage.as_ref().filter(|stage| stage.has_room()) else {
            return;
        };
        if self.ending.load(Ordering::SeqCst) {
            return;
        }
        // What cannot be staged is written to its place.
        let both = node.inode.open(OFlags::RDWR);
        let Ok(backing) = both.or_else(|_| node.inode.open(OFlags::WRONLY)) else {
            return;
        };
        if let Ok(staged) = stage.begin(&node.inode, &node.path(), backing) {
            state.stage = Some(Arc::new(staged));
        }
    }

    /// A file that was created, closed without a byte and opened again may be one of several nodes,
    /// as MPI-IO makes them.
    fn give_up_empty_stage(&self, state: &mut State) {
        let (Some(staged), Some(stage), 0) = (state.stage.clone(), &self.stage, state.opens) else {
            return;
        };
        let empty = staged.contents.stat().is_ok_and(|stat| stat.st_size == 0);
        // Once its flush has begun, the backing file may not be empty.
        if empty && !staged.has_begun() && !off(Switch::StagedNew) {
            state.unstage(stage, &staged);
        }
    }

    fn enter(
        &self,
        node: &Arc<Node>,
        mut state: RwLockWriteGuard<'_, State>,
        fd: OwnedFd,
        (flags, new): (OFlags, bool),
        register: Register,
    ) -> Kernel<Opened> {
        let writes = writes(flags);
        let target = node.path();
        let handle = Arc::new(Handle {
            node: Arc::clone(node),
            contents: Contents::new(fd, &self.points, &target.to_string_lossy()),
            writes,
            known: AtomicU64::new(state.failures_known()),
            closed_well: AtomicBool::new(false),
        });
        if writes && state.writers == 0 {
            // Kept back, whole pages would be written, and others may write parts of them.
            // Breaks if: some who write bypass what others have left with the kernel; they would
            // not know how long the file is.
            state.direct = self.how.write_back && !new && state.stage.is_none();
        }
        if state.opens == 0 {
            state.way = self.way(&state, &handle, register);
        }
        state.opens += 1;
        if writes {
            state.writers += 1;
            node.touch();
            state.unsynced = Some(Arc::clone(&handle));
            if let (Some(staged), Some(stage)) = (&state.stage, &self.stage) {
                stage.mark_closed(staged, false);
            }
        }
        let opened = Opened {
            handle: self.number(),
            node: Arc::clone(node),
            way: state.way.clone(),
            // Whoever watches wants to see each write as the program made it.
            direct: self.watch.is_some() || writes && state.direct,
        };
        drop(state);
        locked(&self.handles).insert(opened.handle, handle);
        Ok(opened)
    }

    /// The way for the bytes of a file that nobody had open.
    fn way(&self, state: &State, handle: &Handle, register: Register) -> Way {
        // A staged file that the kernel writes by itself could still be written through a mapping
        // when it has been closed and flushed, and the stage's limit could not be kept.
        let may = self.how.passthrough && state.stage.is_none();
        if !may || self.refused.load(Ordering::Relaxed) {
            return Way::Process;
        }
        match register(handle.contents.descriptor().as_fd()) {
            Ok(id) => {
                self.passed_through.fetch_add(1, Ordering::Relaxed);
                Way::Kernel(Arc::new(id))
            }
            Err(error) => {
                if error.raw_os_error() == Some(Errno::PERM.raw_os_error()) {
                    self.refused.store(true, Ordering::Relaxed);
                }
                Way::Process
            }
        }
    }

    /// Closes an open file; if nobody else writes it, it becomes durable in its turn.
    pub fn close(&self, number: u64) {
        let Some(handle) = locked(&self.handles).remove(&number) else {
            return;
        };
        let node = Arc::clone(&handle.node);
        let mut state = node.change();
        state.opens -= 1;
        state.writers -= u32::from(handle.writes);
        if handle.writes {
            // What the kernel wrote by itself until now counts as changed.
            node.touch();
        }
        if state.opens == 0 {
            state.way = Way::Process;
        }
        if let (Some(staged), Some(stage)) = (state.stage.clone(), &self.stage) {
            let empty = staged.contents.stat().is_ok_and(|stat| stat.st_size == 0);
            if state.opens == 0 && (empty && !staged.has_begun() || node.has_name() == Ok(false)) {
                state.unstage(stage, &staged);
            } else if state.writers == 0 && handle.writes {
                stage.mark_closed(&staged, true);
            }
        }
        let waits = state.writers == 0 && state.is_unsafe();
        drop(state);
        if let Some(sets) = self.sets.as_ref().filter(|_| handle.writes) {
            // One that was never flushed was not closed by a program.
            sets.closed(&node, handle.closed_well.load(Ordering::SeqCst));
        }
        drop(handle);
        if waits {
            self.lane.add(&node);
        }
        self.tree.settle(&node);
    }
}
