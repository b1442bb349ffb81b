//! Opens, creates and closes files.
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
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

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
    /// Opens a file that is there.
    pub fn open(&self, number: u64, flags: OFlags, register: Register) -> Kernel<Opened> {
        let node = self.tree.node(number)?;
        let mut state = node.change();
        let new = flags.contains(OFlags::TRUNC) && writes(flags);
        let mut wanted = flags & (OFlags::RDONLY | OFlags::WRONLY | OFlags::RDWR);
        if self.how.write_back && wanted.contains(OFlags::WRONLY) {
            // The kernel reads what surrounds a piece that is written.
            wanted = match node.inode.open(OFlags::RDWR) {
                Ok(_) => OFlags::RDWR,
                Err(_) => wanted,
            };
        }
        if new {
            wanted |= OFlags::TRUNC;
            node.touch();
        }
        let fd = node.inode.open(wanted)?;
        if new && let Some(staged) = &state.stage {
            staged.contents.set_len(0)?;
        } else if new && !state.by_kernel() {
            self.begin_stage(&node, &mut state);
        }
        self.enter(&node, state, fd, (flags, new), register)
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
        let mut wanted = flags;
        if self.how.write_back && wanted.contains(OFlags::WRONLY) {
            wanted = wanted.difference(OFlags::WRONLY) | OFlags::RDWR;
        }
        let fd = parent.inode.create(name, wanted, mode)?;
        let node = self.tree.look_up(&parent, name)?;
        let mut state = node.change();
        node.touch();
        // Breaks if: files are staged that another node may have opened just as well; what it
        // writes would be hidden, and then overwritten.
        let new = (flags.intersects(OFlags::EXCL | OFlags::TRUNC) || off(Switch::StagedNew))
            && writes(flags);
        if new && !state.by_kernel() && state.stage.is_none() {
            self.begin_stage(&node, &mut state);
        }
        self.enter(&node, state, fd, (flags, new), register)
    }

    /// Stages a file that is empty, if there is a stage with room for it.
    fn begin_stage(&self, node: &Node, state: &mut State) {
        let Some(stage) = self.stage.as_ref().filter(|stage| stage.has_room()) else {
            return;
        };
        // What cannot be staged is written to its place.
        let Ok(backing) = node
            .inode
            .open(OFlags::RDWR)
            .or_else(|_| node.inode.open(OFlags::WRONLY))
        else {
            return;
        };
        if let Ok(staged) = stage.begin(&node.inode, &node.path(), backing) {
            state.stage = Some(Arc::new(staged));
        }
    }

    fn enter(
        &self,
        node: &Arc<Node>,
        mut state: std::sync::RwLockWriteGuard<'_, State>,
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
        });
        if state.opens == 0 {
            state.way = self.way(&state, &handle, register);
        }
        state.opens += 1;
        if writes {
            state.writers += 1;
            node.touch();
            state.unsafe_since = Some(Arc::clone(&handle));
            if let (Some(staged), Some(stage)) = (&state.stage, &self.stage) {
                staged.changed.store(true, Ordering::SeqCst);
                // Only what is reported of it depends on that.
                let _ = stage.mark_closed(staged, false);
            }
        }
        let opened = Opened {
            handle: self.number(),
            node: Arc::clone(node),
            way: state.way.clone(),
            // Kept back, whole pages would be written, and others may write parts of them.
            direct: self.watch.is_some()
                || self.how.write_back && writes && !new && state.stage.is_none(),
        };
        drop(state);
        locked(&self.handles).insert(opened.handle, handle);
        Ok(opened)
    }

    /// The way for the bytes of a file that nobody had open.
    fn way(&self, state: &State, handle: &Handle, register: Register) -> Way {
        let in_memory = self.stage.as_ref().is_some_and(|stage| stage.in_memory);
        // A stage in memory has a limit that has to be kept, which the kernel would not.
        let may = self.how.by_kernel && !(in_memory && state.stage.is_some());
        if !may || self.refused.load(Ordering::Relaxed) {
            return Way::Process;
        }
        let contents = state
            .stage
            .as_ref()
            .map_or(&handle.contents, |staged| &staged.contents);
        match register(std::os::fd::AsFd::as_fd(contents.descriptor())) {
            Ok(id) => Way::Kernel(Arc::new(id)),
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
            // What the kernel wrote by itself until now counts as changed for whoever is copying.
            node.touch();
        }
        if state.opens == 0 {
            state.way = Way::Process;
        }
        let mut waits = false;
        if let (Some(staged), Some(stage)) = (state.stage.clone(), &self.stage) {
            stage.charge_present(&staged);
            let changed = staged.changed.load(Ordering::SeqCst);
            if state.opens == 0 && (!changed || !node.has_name()) {
                (state.stage, state.unsafe_since) = (None, None);
                stage.end(&staged);
            } else if state.writers == 0 && changed {
                waits = true;
                if handle.writes {
                    // A name that stays as it was is only reported differently.
                    let _ = stage.mark_closed(&staged, true);
                }
            }
        } else if state.writers == 0 && state.unsafe_since.is_some() {
            waits = true;
        }
        drop(state);
        drop(handle);
        if waits {
            self.lane.add(&node);
        }
        self.tree.settle(&node);
    }
}
