//! What is known of one file of the tree: who has it open, which route its bytes take, and whether
//! they are durable.
//!
//! How: a [`Node`] stands for an inode of the backing directory, under whatever name. Its
//! [`State`] is locked for reading while bytes move, and for writing when their place changes.
//!
//! Invariants:
//! 1. While a node is open, all its open files use the same way, through the kernel or through this
//!    process: the kernel refuses a mixture.
//! 2. A node with a stage has its newest bytes there and nowhere else, and its bytes come through
//!    this process; otherwise they are in the backing file.
//! 3. Whoever changes contents or times through this process calls [`Node::touch`] afterwards, with
//!    the state locked; so a copy that was taken between two equal versions lacks nothing.
//!
//! Faults survived: attributes that cannot be read (a file counts as having a name until the
//! backing directory says that it has none).
//!
//! Not here: the table of all nodes (`tree.rs`), stages (`stage.rs`), when bytes become durable
//! (`lane.rs`).

use crate::stage::{Stage, Staged};
use fuser::BackingId;
use orcheck_format::sabotage::{Switch, off};
use orcheck_io::disk::{Contents, Inode, Kernel};
use rustix::io::Errno;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// A file, directory or anything else of the tree.
pub struct Node {
    /// Its number in this mount.
    pub number: u64,
    /// Its device and inode number.
    pub key: (u64, u64),
    /// What it is in the backing directory.
    pub inode: Inode,
    /// Counts changes of contents and times.
    version: AtomicU64,
    /// A path that it has or had, relative to the root.
    path: Mutex<PathBuf>,
    state: RwLock<State>,
}

/// What changes when a file is opened, closed, staged or made durable.
#[derive(Default)]
pub struct State {
    /// Open files.
    pub opens: u32,
    /// Those of them that may write.
    pub writers: u32,
    /// The way of the open ones.
    pub way: Way,
    /// Whether writes bypass the kernel's cache, where it may keep them back: the same for all who
    /// write at a time.
    pub direct: bool,
    /// Where the bytes are, if not in the backing file.
    pub stage: Option<Arc<Staged>>,
    /// An open file through which something may have been written that is not durable yet.
    pub unsynced: Option<Arc<Handle>>,
    /// It waits for its turn in the lane, or to be tried again.
    pub queued: bool,
    /// Why it did not become durable.
    pub failure: Option<Failure>,
    /// Number of failures so far.
    failures: u64,
}

/// What is known of the bytes of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// They are durable.
    Durable,
    /// They may become durable.
    Later,
    /// They did not, and cannot.
    Lost,
}

/// A failure to make a file durable.
#[derive(Debug, Clone, Copy)]
pub struct Failure {
    /// What the kernel said.
    pub errno: Errno,
    /// Whether bytes are lost, which writing the file again mends; else they are in the stage.
    pub lost: bool,
    number: u64,
    reported: bool,
}

/// How the bytes of an open file go.
#[derive(Default, Clone)]
pub enum Way {
    /// Each read and write is a request to this process.
    #[default]
    Process,
    /// The kernel reads and writes the backing file itself.
    Kernel(Arc<BackingId>),
}

impl Node {
    /// A node that nobody has open.
    pub fn new(number: u64, key: (u64, u64), inode: Inode, path: PathBuf) -> Node {
        Node {
            number,
            key,
            inode,
            version: AtomicU64::new(0),
            path: Mutex::new(path),
            state: RwLock::new(State::default()),
        }
    }

    /// Its state, which stays as it is meanwhile.
    pub fn look(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it has to stay in the table although the kernel has forgotten it. A node that is
    /// locked for writing stays.
    pub fn is_kept(&self) -> bool {
        match self.state.try_read() {
            // Of a file that lost bytes, nothing else remembers that.
            Ok(state) => state.is_kept() || state.is_lost() && self.has_name() != Ok(false),
            Err(_) => true,
        }
    }

    /// Whether all is durable that was written, and nobody may write.
    pub fn durability(&self) -> Durability {
        match self.state.try_read() {
            Ok(state) if state.is_lost() => Durability::Lost,
            Ok(state) if state.writers == 0 && !state.queued && !state.is_unsafe() => {
                Durability::Durable
            }
            _ => Durability::Later,
        }
    }

    /// Its state, to be changed.
    pub fn change(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Something of the contents or their times has changed, or may have. Called after it, with the
    /// state locked.
    pub fn touch(&self) {
        self.version.fetch_add(1, Ordering::SeqCst);
    }

    /// The number of changes so far.
    pub fn version(&self) -> u64 {
        self.version.load(Ordering::SeqCst)
    }

    /// A path that it has or had.
    pub fn path(&self) -> PathBuf {
        self.locked_path().clone()
    }

    /// It got another path.
    pub fn set_path(&self, path: PathBuf) {
        *self.locked_path() = path;
    }

    fn locked_path(&self) -> MutexGuard<'_, PathBuf> {
        self.path.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it is a regular file.
    pub fn is_file(&self) -> bool {
        let kind = |stat: rustix::fs::Stat| rustix::fs::FileType::from_raw_mode(stat.st_mode);
        self.inode.stat().is_ok_and(|stat| kind(stat).is_file())
    }

    /// Whether it has a name left.
    ///
    /// # Errors
    /// Nobody can tell now: its bytes must be kept.
    pub fn has_name(&self) -> Kernel<bool> {
        Ok(self.inode.stat()?.st_nlink > 0)
    }
}

impl State {
    /// Whether the kernel moves the bytes by itself.
    pub fn by_kernel(&self) -> bool {
        matches!(self.way, Way::Kernel(_))
    }

    /// Whether something is not durable yet.
    pub fn is_unsafe(&self) -> bool {
        self.stage.is_some() || self.unsynced.is_some()
    }

    /// Whether bytes did not become durable, and cannot.
    pub fn is_lost(&self) -> bool {
        self.failure.is_some_and(|failure| failure.lost)
    }

    fn is_kept(&self) -> bool {
        let untold = self.failure.is_some_and(|failure| !failure.reported);
        self.opens > 0 || self.queued || self.is_unsafe() || untold
    }

    /// The backing file has all bytes, and they are durable; or the file has no name left.
    pub fn unstage(&mut self, stage: &Stage, staged: &Staged) {
        self.stage = None;
        self.failure = None;
        if self.writers == 0 {
            self.unsynced = None;
        }
        stage.end(staged);
    }

    /// It did not become durable. `true`: that is news.
    pub fn fail(&mut self, errno: Errno, lost: bool) -> bool {
        let known = self
            .failure
            .is_some_and(|failure| failure.errno == errno && !lost);
        if known {
            return false;
        }
        // Breaks if: nobody is told; the program would take the file for durable.
        if off(Switch::MountFailureTold) {
            return true;
        }
        self.failures += 1;
        self.failure = Some(Failure {
            errno,
            lost,
            number: self.failures,
            reported: false,
        });
        true
    }

    /// What an open file learns of as its first failure: one that nobody was told of, or the next.
    pub fn failures_known(&self) -> u64 {
        match self.failure {
            Some(failure) if !failure.reported => failure.number - 1,
            _ => self.failures,
        }
    }

    /// Reports a failure to an open file, once.
    pub fn report(&mut self, to: &Handle) -> Kernel<()> {
        match &mut self.failure {
            Some(failure) if to.known.load(Ordering::SeqCst) < failure.number => {
                to.known.store(failure.number, Ordering::SeqCst);
                failure.reported = true;
                Err(failure.errno)
            }
            _ => Ok(()),
        }
    }
}

/// An open file.
pub struct Handle {
    /// What is open.
    pub node: Arc<Node>,
    /// The backing file, open with the access that the program asked for.
    pub contents: Contents,
    /// Whether it may write.
    pub writes: bool,
    /// Number of the last failure that it was told of.
    pub known: AtomicU64,
    /// Whether a program closed one of its descriptors last, and not the end of one that failed.
    pub closed_well: AtomicBool,
}

impl Handle {
    /// Does something to the file that currently holds the bytes, which does not change during the
    /// call.
    pub fn with<T>(&self, act: impl FnOnce(&Contents) -> Kernel<T>) -> Kernel<T> {
        let state = self.node.look();
        match &state.stage {
            Some(stage) => act(&stage.contents),
            None => act(&self.contents),
        }
    }

    /// Changes the file that currently holds the bytes.
    pub fn change<T>(&self, act: impl FnOnce(&Contents) -> Kernel<T>) -> Kernel<T> {
        self.with(|contents| {
            let done = act(contents);
            self.node.touch();
            done
        })
    }
}
