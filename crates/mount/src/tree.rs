//! Finds the nodes of the mounted tree by their numbers and by what they are.
//!
//! How: one table, from a number to its node, and from device and inode number to the node's
//! number. A node is in it as long as the kernel remembers it, or its bytes are not durable. The
//! numbers are the inode numbers of the backing directory's file system, so that programs see the
//! same ones with and without the mount; files of other file systems below get numbers of ours.
//!
//! Invariants:
//! 1. Two names of one file lead to one node.
//! 2. A number belongs to one node at a time, and 1 to the root.
//!
//! Faults survived: changes that others make in the backing directory.
//!
//! Not here: what is known of a file (`node.rs`); the kernel's requests (`fuse.rs`).

use crate::node::{Durability, Node};
use crate::stage::Staged;
use fuser::{FileAttr, FileType, INodeNo};
use orcheck_io::disk::{Inode, Kernel};
use rustix::fs::Stat;
use rustix::io::Errno;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The number of the root.
pub const ROOT: u64 = 1;
/// Numbers of files whose own number cannot be used.
const OURS: u64 = 1 << 63;

/// All nodes.
pub struct Tree {
    device: u64,
    /// Most nodes: some descriptors are left for open files.
    most: usize,
    table: Mutex<Table>,
}

struct Table {
    nodes: HashMap<u64, (Arc<Node>, u64)>,
    numbers: HashMap<(u64, u64), u64>,
    next: u64,
}

impl Tree {
    /// A tree that has only its root.
    pub fn new(root: Inode) -> Kernel<Tree> {
        let stat = root.stat()?;
        let key = (stat.st_dev, stat.st_ino);
        let node = Node::new(ROOT, key, root, PathBuf::new());
        Ok(Tree {
            device: stat.st_dev,
            most: orcheck_io::machine::most_descriptors() / 2,
            table: Mutex::new(Table {
                nodes: HashMap::from([(ROOT, (Arc::new(node), 1))]),
                numbers: HashMap::from([(key, ROOT)]),
                next: OURS,
            }),
        })
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The node with this number.
    pub fn node(&self, number: u64) -> Kernel<Arc<Node>> {
        let table = self.table();
        let (node, _) = table.nodes.get(&number).ok_or(Errno::STALE)?;
        Ok(Arc::clone(node))
    }

    /// All nodes.
    pub fn all(&self) -> Vec<Arc<Node>> {
        let table = self.table();
        table
            .nodes
            .values()
            .map(|(node, _)| Arc::clone(node))
            .collect()
    }

    /// The node of this inode, if it is in the table.
    pub fn known(&self, inode: &Inode) -> Option<Arc<Node>> {
        let stat = inode.stat().ok()?;
        let table = self.table();
        let number = table.numbers.get(&(stat.st_dev, stat.st_ino))?;
        Some(Arc::clone(&table.nodes.get(number)?.0))
    }

    /// What is known of the bytes of this inode; what is not in the table is durable.
    pub fn durability(&self, key: (u64, u64)) -> Durability {
        let node = {
            let table = self.table();
            let number = table.numbers.get(&key);
            let found = number.and_then(|number| table.nodes.get(number));
            found.map(|(node, _)| Arc::clone(node))
        };
        node.map_or(Durability::Durable, |node| node.durability())
    }

    /// Finds a name in a directory; the kernel will remember the node until it forgets it.
    pub fn look_up(&self, parent: &Node, name: &OsStr) -> Kernel<Arc<Node>> {
        let inode = parent.inode.child(name)?;
        let stat = inode.stat()?;
        let key = (stat.st_dev, stat.st_ino);
        let path = parent.path().join(name);
        let mut table = self.table();
        if let Some(number) = table.numbers.get(&key).copied()
            && let Some((node, lookups)) = table.nodes.get_mut(&number)
        {
            *lookups += 1;
            node.set_path(path);
            return Ok(Arc::clone(node));
        }
        if table.nodes.len() >= self.most {
            return Err(Errno::NFILE);
        }
        let own = stat.st_dev == self.device && stat.st_ino != ROOT && stat.st_ino < OURS;
        let number = if own {
            stat.st_ino
        } else {
            table.next += 1;
            table.next
        };
        let node = Arc::new(Node::new(number, key, inode, path));
        table.numbers.insert(key, number);
        table.nodes.insert(number, (Arc::clone(&node), 1));
        Ok(node)
    }

    /// The kernel forgets that it was given the node this many times.
    pub fn forget(&self, number: u64, times: u64) {
        let mut table = self.table();
        if let Some((_, lookups)) = table.nodes.get_mut(&number) {
            *lookups = lookups.saturating_sub(times);
        }
        table.drop_if_unused(number);
    }

    /// Drops a node that nothing keeps any more.
    pub fn settle(&self, node: &Node) {
        self.table().drop_if_unused(node.number);
    }
}

impl Table {
    fn drop_if_unused(&mut self, number: u64) {
        let Some((node, 0)) = self.nodes.get(&number) else {
            return;
        };
        if number == ROOT || node.is_kept() {
            return;
        }
        let key = node.key;
        self.nodes.remove(&number);
        self.numbers.remove(&key);
    }
}

/// Attributes as the kernel wants them; contents and their times are those of the stage.
pub fn attributes(node: &Node) -> Kernel<FileAttr> {
    // Breaks if: the file is unstaged in between; those of the backing file, which is being
    // written, would be believed.
    let state = node.look();
    let mut attributes = plain(node.number, &node.inode.stat()?);
    if let Some(stage) = &state.stage {
        staged(&mut attributes, stage)?;
    }
    Ok(attributes)
}

fn plain(number: u64, stat: &Stat) -> FileAttr {
    FileAttr {
        ino: INodeNo(number),
        size: stat.st_size as u64,
        blocks: stat.st_blocks as u64,
        atime: time(stat.st_atime, stat.st_atime_nsec),
        mtime: time(stat.st_mtime, stat.st_mtime_nsec),
        ctime: time(stat.st_ctime, stat.st_ctime_nsec),
        crtime: UNIX_EPOCH,
        kind: kind(rustix::fs::FileType::from_raw_mode(stat.st_mode)),
        perm: (stat.st_mode & 0o7777) as u16,
        nlink: stat.st_nlink as u32,
        uid: stat.st_uid,
        gid: stat.st_gid,
        rdev: stat.st_rdev as u32,
        blksize: stat.st_blksize as u32,
        flags: 0,
    }
}

fn staged(attributes: &mut FileAttr, stage: &Staged) -> Kernel<()> {
    let own = plain(0, &stage.contents.stat()?);
    attributes.size = own.size;
    attributes.blocks = own.blocks;
    attributes.atime = own.atime;
    attributes.mtime = own.mtime;
    attributes.ctime = attributes.ctime.max(own.ctime);
    Ok(())
}

/// A kind as the kernel's requests name it.
pub fn kind(kind: rustix::fs::FileType) -> FileType {
    use rustix::fs::FileType as Kind;
    match kind {
        Kind::Directory => FileType::Directory,
        Kind::Symlink => FileType::Symlink,
        Kind::Fifo => FileType::NamedPipe,
        Kind::Socket => FileType::Socket,
        Kind::CharacterDevice => FileType::CharDevice,
        Kind::BlockDevice => FileType::BlockDevice,
        Kind::RegularFile | Kind::Unknown => FileType::RegularFile,
    }
}

fn time(seconds: i64, nanoseconds: u64) -> SystemTime {
    let within = Duration::from_nanos(nanoseconds);
    match u64::try_from(seconds) {
        Ok(after) => UNIX_EPOCH + Duration::from_secs(after) + within,
        Err(_) => UNIX_EPOCH - Duration::from_secs(seconds.unsigned_abs()) + within,
    }
}
