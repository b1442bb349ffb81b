//! What is known of one file of the tree: who has it open, by which way its bytes go, and whether
//! they are durable.
//!
//! How: a [`Node`] stands for an inode of the backing directory, under whatever name. Its
//! [`State`] is locked for reading while bytes move, and for writing when their place changes.
//!
//! Invariants:
//! 1. While a node is open, all its open files use the same way, through the kernel or through this
//!    process: the kernel refuses a mixture.
//! 2. A node with a stage has its newest bytes there and nowhere else; otherwise in the backing
//!    file.
//! 3. `version` differs whenever contents changed through this process since it was last read.
//!
//! Not here: the table of all nodes (`tree.rs`), stages (`stage.rs`), when bytes become durable
//! (`lane.rs`).

use crate::stage::{Stage, Staged};
use fuser::BackingId;
use orcheck_io::disk::{Contents, Inode, Kernel};
use rustix::io::Errno;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// A file, directory or anything else of the tree.
pub struct Node {
    /// Its number in this mount.
    pub number: u64,
    /// Its device and inode number.
    pub key: (u64, u64),
    /// What it is in the backing directory.
    pub inode: Inode,
    /// Counts changes of the contents.
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
    /// By which way the open ones go.
    pub way: Way,
    /// Where the bytes are, if not in the backing file.
    pub stage: Option<Arc<Staged>>,
    /// An open file through which something may have been written that is not durable yet.
    pub unsafe_since: Option<Arc<Handle>>,
    /// It waits for its turn in the lane.
    pub queued: bool,
    /// Why it did not become durable; told once.
    pub failed: Option<Errno>,
}

/// How the bytes of an open file go.
#[derive(Default, Clone)]
pub enum Way {
    /// Each read and write is a request to this process.
    #[default]
    Process,
    /// The kernel reads and writes the file behind the identifier itself.
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

    /// Whether it has to stay in the table although the kernel has forgotten it. It has to while
    /// somebody is changing it.
    pub fn is_kept(&self) -> bool {
        match self.state.try_read() {
            Ok(state) => state.is_kept(),
            Err(_) => true,
        }
    }

    /// Its state, to be changed.
    pub fn change(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Something of the contents or their times has changed, or may have. Called after it, with the
    /// state locked: whoever copies the file meanwhile then knows that the copy may lack it.
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

    /// Whether it has a name left.
    pub fn has_name(&self) -> bool {
        self.inode.stat().is_ok_and(|stat| stat.st_nlink > 0)
    }
}

impl State {
    /// Whether the kernel moves the bytes by itself.
    pub fn by_kernel(&self) -> bool {
        matches!(self.way, Way::Kernel(_))
    }

    fn is_kept(&self) -> bool {
        self.opens > 0 || self.queued || self.stage.is_some() || self.unsafe_since.is_some()
    }

    /// The backing file has all bytes, and they are durable.
    pub fn unstage(&mut self, stage: &Stage, staged: &Staged) {
        self.stage = None;
        if self.writers == 0 {
            self.unsafe_since = None;
        }
        stage.end(staged);
    }

    /// The last failure, for the program to be told.
    pub fn take_failure(&mut self) -> Kernel<()> {
        self.failed.take().map_or(Ok(()), Err)
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
}

impl Handle {
    /// Does something to the file that has the bytes now, which stays that one meanwhile.
    pub fn with<T>(&self, act: impl FnOnce(&Contents) -> Kernel<T>) -> Kernel<T> {
        let state = self.node.look();
        match &state.stage {
            Some(stage) => act(&stage.contents),
            None => act(&self.contents),
        }
    }

    /// Changes the file that has the bytes now.
    pub fn change<T>(&self, act: impl FnOnce(&Contents) -> Kernel<T>) -> Kernel<T> {
        self.with(|contents| {
            let done = act(contents);
            self.node.touch();
            done
        })
    }
}
