//! Implements what programs can do with the files of a mount.
//!
//! | file | what |
//! | --- | --- |
//! | `open.rs` | opening, creating and closing files; which way their bytes go |
//! | `bytes.rs` | reading, writing, lengths, durability |
//! | `names.rs` | names, attributes |
//!
//! How: everything is done to the backing directory at once, except the bytes of staged files.
//!
//! Invariants:
//! 1. A file is staged only if its content is new: it was created with `O_EXCL`, or opened with
//!    `O_TRUNC`. What else is written goes to the backing file, byte by byte as the program wrote
//!    it, so that programs on several nodes can share a file.
//! 2. A rename over another file waits until the bytes that replace it are durable.
//!
//! Faults survived: those of the backing directory, which are passed on.
//!
//! Not here: the kernel's requests (`fuse.rs`).

mod bytes;
mod names;
mod open;

use crate::lane::Lane;
use crate::node::{Handle, Node};
use crate::sets::Shared;
use crate::stage::Stage;
use crate::tree::Tree;
use orcheck_io::disk::Kernel;
use orcheck_io::failpoints::Failpoints;
use orcheck_io::machine::Watched;
use rustix::io::Errno;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use names::Renamed;
pub use names::{Change, Directory};
pub use open::Opened;

/// Learns of what programs write.
pub type Watch = Box<dyn Fn(Watched) + Send + Sync>;

/// How files are opened.
#[derive(Debug, Clone, Copy)]
pub struct How {
    /// The kernel may read and write backing files itself.
    pub passthrough: bool,
    /// The kernel may keep writes back.
    pub write_back: bool,
}

/// The files of a mount.
pub struct Stacked {
    /// All nodes.
    pub tree: Arc<Tree>,
    /// What becomes durable, in order.
    pub lane: Arc<Lane>,
    stage: Option<Arc<Stage>>,
    how: How,
    points: Failpoints,
    /// Told of files that are written, if they are grouped.
    sets: Option<Shared>,
    /// Told of writes that come by here.
    watch: Option<Watch>,
    /// The kernel refused to move bytes by itself.
    refused: AtomicBool,
    passed_through: AtomicU64,
    /// The mount is over.
    ending: AtomicBool,
    next: AtomicU64,
    renamed: Mutex<Renamed>,
    handles: Mutex<HashMap<u64, Arc<Handle>>>,
    directories: Mutex<HashMap<u64, Arc<Mutex<Directory>>>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Stacked {
    /// Files of this tree.
    pub fn new(
        tree: Arc<Tree>,
        lane: Arc<Lane>,
        stage: Option<Arc<Stage>>,
        how: How,
        points: Failpoints,
        watch: Option<Watch>,
        sets: Option<Shared>,
    ) -> Stacked {
        Stacked {
            tree,
            lane,
            stage,
            how,
            points,
            watch,
            sets,
            refused: AtomicBool::new(false),
            passed_through: AtomicU64::new(0),
            ending: AtomicBool::new(false),
            next: AtomicU64::new(1),
            renamed: Mutex::default(),
            handles: Mutex::default(),
            directories: Mutex::default(),
        }
    }

    /// The open file with this number.
    pub fn handle(&self, number: u64) -> Kernel<Arc<Handle>> {
        let handles = locked(&self.handles);
        handles.get(&number).cloned().ok_or(Errno::BADF)
    }

    fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Closes all that is still open, and stages nothing more.
    pub fn close_all(&self) {
        self.ending.store(true, Ordering::SeqCst);
        let open: Vec<u64> = locked(&self.handles).keys().copied().collect();
        for number in open {
            self.close(number);
        }
    }

    /// Makes a file durable before somebody continues who waits for it.
    pub fn make_durable(&self, node: &Arc<Node>, by: Option<&Handle>) -> Kernel<()> {
        let (staged, known) = {
            let state = node.look();
            (state.stage.is_some(), state.unsynced.clone())
        };
        if staged {
            return self.lane.flush_now(node);
        }
        match by.or(known.as_deref()) {
            // Breaks if: nobody remembers that it failed; the next sync of the same bytes succeeds.
            Some(handle) => handle.contents.sync(true).inspect_err(|errno| {
                node.change().fail(*errno, true);
            }),
            None => Ok(()),
        }
    }

    /// Makes everything durable that has been written so far, and its names.
    pub fn make_all_durable(&self) -> Kernel<()> {
        let mut done = Ok(());
        for node in self.tree.all() {
            if node.look().is_unsafe() && node.has_name() != Ok(false) {
                done = done.and(self.make_durable(&node, None));
            }
        }
        self.sync_names(&mut |_, errno| done = done.and(Err(errno)));
        done
    }

    /// Counts files whose bytes the kernel moves by itself.
    pub fn passed_through(&self) -> u64 {
        self.passed_through.load(Ordering::Relaxed)
    }
}
