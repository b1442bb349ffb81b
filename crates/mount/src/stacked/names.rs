//! Changes names and attributes.
//!
//! Invariants:
//! 1. A file replaces another one only when its bytes are durable; one that lost bytes replaces
//!    nothing.
//! 2. The stage of a file without a name and without open files ends.
//! 3. A directory whose names have changed is synced before the mount ends, or its loss is
//!    reported.
//!
//! Faults survived: a failing or full backing directory, which keeps the file that was there.
//!
//! Not here: bytes and lengths (`bytes.rs`).

use super::{Stacked, locked};
use crate::node::{Handle, Node};
use crate::tree::ROOT;
use orcheck_format::sabotage::{Switch, off};
use orcheck_io::disk::{Inode, Kernel};
use rustix::fs::{Dir, Timestamps};
use rustix::io::Errno;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Arc, Mutex};

/// RENAME_EXCHANGE
const EXCHANGE: u32 = 2;
/// RENAME_NOREPLACE
const NO_REPLACE: u32 = 1;
/// The bits that run a program as another user, or group.
const SET_USER: u32 = 0o4000;
const SET_GROUP: u32 = 0o2000;
/// Of a group that may run it.
const GROUP_RUNS: u32 = 0o010;

/// Most directories that are remembered, each with a descriptor.
const MOST_RENAMED: usize = 1024;

/// Directories with names that are not durable yet.
#[derive(Default)]
pub struct Renamed {
    dirs: HashMap<u64, Arc<Node>>,
    /// There were too many: their file system is synced as a whole.
    more: bool,
}

/// What is to change about a file.
#[derive(Default)]
pub struct Change {
    /// Permissions.
    pub mode: Option<u32>,
    /// Owner.
    pub owner: Option<u32>,
    /// Group.
    pub group: Option<u32>,
    /// Length.
    pub len: Option<u64>,
    /// Times.
    pub times: Option<Timestamps>,
    /// The process that wants it.
    pub process: u32,
}

/// A directory that is being listed.
pub struct Directory {
    entries: Dir,
    /// Where the next entry is; `None` where that is not known.
    at: Option<u64>,
}

/// An entry of a directory.
pub struct Entry<'a> {
    /// Its inode number.
    pub number: u64,
    /// Where the next one is.
    pub next: u64,
    /// What it is.
    pub kind: rustix::fs::FileType,
    /// Its name.
    pub name: &'a OsStr,
}

impl Directory {
    /// Gives entries from a place on until `take` returns `true`.
    pub fn read(&mut self, from: u64, take: &mut dyn FnMut(&Entry) -> bool) -> Kernel<()> {
        if self.at != Some(from) {
            self.entries.seek(from as i64)?;
        }
        self.at = None;
        let mut at = from;
        while let Some(entry) = self.entries.read() {
            let entry = entry?;
            let full = take(&Entry {
                number: entry.ino(),
                next: entry.offset() as u64,
                kind: entry.file_type(),
                name: OsStr::from_bytes(entry.file_name().to_bytes()),
            });
            if full {
                return Ok(());
            }
            at = entry.offset() as u64;
        }
        self.at = Some(at);
        Ok(())
    }
}

impl Stacked {
    /// Names in this directory have changed.
    pub fn note_names(&self, dir: &Arc<Node>) {
        let mut renamed = locked(&self.renamed);
        renamed.dirs.insert(dir.number, Arc::clone(dir));
        if renamed.dirs.len() > MOST_RENAMED {
            *renamed = Renamed {
                dirs: HashMap::new(),
                more: true,
            };
        }
    }

    /// Makes the names in a directory durable.
    pub fn sync_dir(&self, number: u64) -> Kernel<()> {
        let dir = self.tree.node(number)?;
        // What changes during the sync is noted again.
        locked(&self.renamed).dirs.remove(&number);
        dir.inode
            .sync_names()
            .inspect_err(|_| self.note_names(&dir))
    }

    /// Makes all names durable; `failed` learns of the directories for which that failed.
    pub fn sync_names(&self, failed: &mut dyn FnMut(&Node, Errno)) {
        let renamed = std::mem::take(&mut *locked(&self.renamed));
        if renamed.more
            && let Ok(root) = self.tree.node(ROOT)
            && let Err(errno) = root.inode.sync_file_system()
        {
            failed(&root, errno);
            locked(&self.renamed).more = true;
        }
        for dir in renamed.dirs.into_values() {
            // One that was removed has none.
            if let (Ok(true), Err(errno)) = (dir.has_name(), dir.inode.sync_names()) {
                failed(&dir, errno);
                self.note_names(&dir);
            }
        }
    }

    /// The same at the end of the mount: what is not durable is reported.
    pub fn sync_names_at_end(&self) {
        self.sync_names(&mut |dir, errno| {
            let path = dir.path();
            let named = if dir.number == ROOT {
                Path::new(".")
            } else {
                &path
            };
            self.lane.lose(&format!(
                "{}: names in this directory may not be durable ({errno})",
                named.display()
            ));
        });
    }

    /// Makes something in a directory.
    fn make(&self, parent: u64, make: impl FnOnce(&Inode) -> Kernel<()>) -> Kernel<Arc<Node>> {
        let dir = self.tree.node(parent)?;
        make(&dir.inode)?;
        self.note_names(&dir);
        Ok(dir)
    }

    /// Makes a directory, and finds it.
    pub fn make_dir(&self, parent: u64, name: &OsStr, mode: u32) -> Kernel<Arc<Node>> {
        let dir = self.make(parent, |dir| dir.make_dir(name, mode))?;
        self.tree.look_up(&dir, name)
    }

    /// Makes a file, a pipe or a socket, and finds it.
    pub fn make_node(
        &self,
        parent: u64,
        name: &OsStr,
        mode: u32,
        device: u64,
    ) -> Kernel<Arc<Node>> {
        let dir = self.make(parent, |dir| dir.make_node(name, mode, device))?;
        self.tree.look_up(&dir, name)
    }

    /// Makes a symbolic link, and finds it.
    pub fn make_link(&self, parent: u64, name: &OsStr, to: &Path) -> Kernel<Arc<Node>> {
        let dir = self.make(parent, |dir| dir.make_link(name, to))?;
        self.tree.look_up(&dir, name)
    }

    /// Gives a file another name, beside those that it has, and finds it.
    pub fn link(&self, number: u64, parent: u64, name: &OsStr) -> Kernel<Arc<Node>> {
        let node = self.tree.node(number)?;
        if let Some(sets) = &self.sets {
            sets.will_have(&self.tree.node(parent)?.path().join(name));
        }
        let dir = self.make(parent, |dir| node.inode.link(dir, name))?;
        if let Some(sets) = &self.sets {
            sets.linked(&node, &dir.path().join(name));
        }
        self.tree.look_up(&dir, name)
    }

    /// Opens a directory to list it.
    pub fn open_dir(&self, number: u64) -> Kernel<u64> {
        let entries = self.tree.node(number)?.inode.list()?;
        let handle = self.number();
        let directory = Directory {
            entries,
            at: Some(0),
        };
        locked(&self.directories).insert(handle, Arc::new(Mutex::new(directory)));
        Ok(handle)
    }

    /// An open directory.
    pub fn directory(&self, handle: u64) -> Kernel<Arc<Mutex<Directory>>> {
        let directories = locked(&self.directories);
        directories.get(&handle).cloned().ok_or(Errno::BADF)
    }

    /// Closes a directory.
    pub fn close_dir(&self, handle: u64) {
        locked(&self.directories).remove(&handle);
    }

    /// Removes a name. The bytes of a staged file without any name go.
    pub fn remove(&self, parent: u64, name: &OsStr, directory: bool) -> Kernel<()> {
        let parent = self.tree.node(parent)?;
        let node = match directory {
            true => None,
            false => parent
                .inode
                .child(name)
                .ok()
                .and_then(|inode| self.tree.known(&inode)),
        };
        parent.inode.remove(name, directory)?;
        self.note_names(&parent);
        if let Some(sets) = &self.sets {
            sets.removed(&parent.path().join(name));
        }
        if let Some(node) = node {
            self.forget_bytes(&node);
        }
        Ok(())
    }

    /// Ends the stage of a file that has no name and is not open.
    fn forget_bytes(&self, node: &Node) {
        let mut state = node.change();
        if state.opens == 0
            && node.has_name() == Ok(false)
            && let (Some(staged), Some(stage)) = (state.stage.clone(), &self.stage)
        {
            state.unstage(stage, &staged);
        }
        drop(state);
        self.tree.settle(node);
    }

    /// Makes a file durable that is about to replace another one.
    fn make_worthy(&self, node: &Arc<Node>) -> Kernel<()> {
        self.make_durable(node, None)?;
        match node.look().failure {
            Some(failure) if failure.lost => Err(failure.errno),
            _ => Ok(()),
        }
    }

    /// Gives a file another name. If that replaces a file, the new bytes are durable before.
    pub fn rename(&self, from: (u64, &OsStr), to: (u64, &OsStr), flags: u32) -> Kernel<()> {
        let (dir, other) = (self.tree.node(from.0)?, self.tree.node(to.0)?);
        let node = dir
            .inode
            .child(from.1)
            .ok()
            .and_then(|inode| self.tree.known(&inode));
        let replaced = other.inode.child(to.1).ok();
        if let (Some(node), Some(replaced)) = (&node, &replaced)
            && flags & NO_REPLACE == 0
            // Breaks if: nobody waits; after a crash the name would lead to half of a file.
            && !off(Switch::ReplaceDurable)
        {
            self.make_worthy(node)?;
            if flags & EXCHANGE != 0
                && let Some(node) = self.tree.known(replaced)
            {
                self.make_worthy(&node)?;
            }
        }
        if let Some(sets) = &self.sets {
            let is_file = node.as_ref().is_some_and(|node| node.is_file());
            let (from, to) = (dir.path().join(from.1), other.path().join(to.1));
            // Breaks if: it comes after the rename; a kill in between leaves half of a step.
            sets.will_be_renamed(&from, &to, is_file);
            if flags & EXCHANGE != 0 {
                sets.will_be_renamed(&to, &from, true);
            }
        }
        dir.inode.rename(from.1, &other.inode, to.1, flags)?;
        self.note_names(&dir);
        self.note_names(&other);
        let exchanged = replaced.as_ref().filter(|_| flags & EXCHANGE != 0);
        if let Some(other) = exchanged.and_then(|inode| self.tree.known(inode)) {
            let path = dir.path().join(from.1);
            self.note_path(&other, &path);
            other.set_path(path);
        }
        let path = other.path().join(to.1);
        if let Some(node) = &node {
            self.note_path(node, &path);
            node.set_path(path.clone());
        }
        if let Some(sets) = &self.sets {
            let moved = node.as_ref().map(|node| (&**node, node.is_file()));
            let from = dir.path().join(from.1);
            if let Some(other) = exchanged.and_then(|inode| self.tree.known(inode)) {
                // By way of a name that no file has.
                let aside = Path::new("\0");
                sets.renamed(&path, aside, None);
                sets.renamed(&from, &path, moved);
                sets.renamed(aside, &from, Some((&other, other.is_file())));
            } else {
                sets.renamed(&from, &path, moved);
            }
        }
        if let Some(replaced) = replaced.and_then(|inode| self.tree.known(&inode)) {
            self.forget_bytes(&replaced);
        }
        Ok(())
    }

    fn note_path(&self, node: &Node, path: &Path) {
        let state = node.look();
        if let (Some(staged), Some(stage)) = (&state.stage, &self.stage) {
            // The next mount would look for the file by its number.
            let _ = stage.note_path(staged, path);
        }
    }

    /// Changes attributes.
    pub fn change(&self, number: u64, handle: Option<&Handle>, change: &Change) -> Kernel<()> {
        let node = self.tree.node(number)?;
        if let Some(mode) = change.mode {
            node.inode.set_mode(mode)?;
        }
        if change.owner.is_some() || change.group.is_some() {
            node.inode.set_owner(change.owner, change.group)?;
        }
        if let Some(len) = change.len {
            self.set_len(&node, handle, len, change.process)?;
        }
        if let Some(times) = &change.times {
            let state = node.look();
            let mut done = node.inode.set_times(times);
            if let Some(staged) = &state.stage {
                done = done.and_then(|()| staged.contents.set_times(times));
            }
            // Breaks if: this does not count as a change; whoever flushes the file at the
            // moment would set the times that it had before.
            node.touch();
            done?;
            let waits = state.stage.is_some() && state.opens == 0;
            drop(state);
            if waits {
                self.lane.add(&node);
            }
        }
        Ok(())
    }

    /// Takes the bits from a file that would run it as somebody else, because it was changed.
    pub fn drop_set_id(&self, node: &Node) -> Kernel<()> {
        let mode = node.inode.stat()?.st_mode;
        if !rustix::fs::FileType::from_raw_mode(mode).is_file() {
            return Ok(());
        }
        let mode = mode & 0o7777;
        let group = if mode & GROUP_RUNS != 0 { SET_GROUP } else { 0 };
        let kept = mode & !(SET_USER | group);
        if kept == mode {
            Ok(())
        } else {
            node.inode.set_mode(kept)
        }
    }
}
