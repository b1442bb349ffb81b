//! Mounts a directory so that unmodified programs checkpoint faster and more safely into it: a
//! stackable file system.
//!
//! How: programs see the backing directory under a mount point. Names and attributes are those of
//! the backing directory at any time. New files can be kept on fast storage of the node first (the
//! *stage*, `stage.rs`); they are flushed in order (`lane.rs`) and are ordinary files then.
//! `fsync` returns when the bytes are durable in the backing directory; `close` when this process,
//! or its stage, has them. A rename over another file waits until the new bytes are durable.
//!
//! Invariants:
//! 1. The backing directory can be read without us at any time, and needs no conversion after.
//! 2. If this process is killed, what it had received is not lost: it is in the backing file or in
//!    the stage, which the next mount flushes.
//! 3. A failure to make bytes durable is told to the program and to whoever runs the mount.
//!
//! Faults survived: full and failing disks, the death of this process, of programs, and of whoever
//! started both.
//!
//! Not here: sets of files that belong together, copies on other nodes (the engine's).

mod fuse;
mod lane;
mod node;
mod stacked;
mod stage;
mod tree;

pub use lane::{Counts, Tell};
pub use stacked::Watch;
pub use stage::Found;

use crate::fuse::Answers;
use crate::lane::Lane;
use crate::stacked::{How, Stacked};
use crate::stage::Stage;
use crate::tree::Tree;
use fuser::{BackgroundSession, Config, MountOption, Session};
use orcheck_format::{Error, Result};
use orcheck_io::disk::Inode;
use orcheck_io::errno::{os_error, rustix_error};
use orcheck_io::failpoints::Failpoints;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;

/// What the source of each mount begins with, as the kernel lists it.
pub const SOURCE: &str = "orcheck:";
/// Threads that answer requests.
const THREADS: usize = 16;

/// How a directory is mounted.
pub struct Options {
    /// The directory whose files programs see, by its real path: a stage is found by it.
    pub backing: PathBuf,
    /// Where they see them.
    pub mount_point: PathBuf,
    /// Fast storage for new files; none: they are written to the backing directory at once.
    pub stage: Option<PathBuf>,
    /// What the stage may hold, in bytes; by default half of what is free there.
    pub stage_limit_bytes: Option<u64>,
    /// Whether the kernel may read and write backing files itself, where it can and this process
    /// may allow it.
    pub passthrough: bool,
    /// Whether the kernel may collect small writes before it passes them on.
    pub write_back: bool,
    /// Whether nothing can be changed.
    pub read_only: bool,
}

/// A mounted directory.
pub struct Mounted {
    session: BackgroundSession,
    stacked: Arc<Stacked>,
    lane: Arc<Lane>,
    worker: JoinHandle<()>,
    stage: Option<Arc<Stage>>,
    /// What an earlier mount had left in the stage.
    pub found: Found,
}

/// How a mount ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    /// What it did.
    pub counts: Counts,
    /// Files that the kernel read and wrote by itself.
    pub passed_through: u64,
    /// The stage that still holds files.
    pub left_in: Option<PathBuf>,
}

/// Mounts a directory. What a killed mount has left at the mount point has to be unmounted before.
///
/// # Errors
/// Unavailable if the stage is in use, or the kernel does not mount; Invalid if the stage could be
/// anybody's.
pub fn mount(
    options: &Options,
    tell: Tell,
    watch: Option<Watch>,
    points: Failpoints,
) -> Result<Mounted> {
    let failed = |errno| rustix_error(errno, options.backing.display());
    let root = Inode::root(&options.backing, points.clone()).map_err(failed)?;
    let open = |place| Stage::open(place, options, &root, &points).map(Arc::new);
    let stage = options.stage.as_deref().map(open).transpose()?;
    let found = match &stage {
        Some(stage) => stage
            .recover(&root)
            .map_err(|errno| rustix_error(errno, stage.path().display()))?,
        None => Found::default(),
    };
    let tree = Arc::new(Tree::new(root).map_err(failed)?);
    let lane = Arc::new(Lane::new(Arc::clone(&tree), stage.clone(), tell));
    let how = How {
        passthrough: options.passthrough && watch.is_none(),
        write_back: options.write_back,
    };
    let (waiting, staged) = (Arc::clone(&lane), stage.clone());
    let stacked = Arc::new(Stacked::new(tree, waiting, staged, how, points, watch));
    let session = start(options, Answers::new(Arc::clone(&stacked), how))?;
    let working = Arc::clone(&lane);
    let worker = orcheck_io::machine::thread::spawn("orcheck-lane", move || working.run())?;
    Ok(Mounted {
        session,
        stacked,
        lane,
        worker,
        stage,
        found,
    })
}

fn start(options: &Options, answers: Answers) -> Result<BackgroundSession> {
    let mut config = Config::default();
    config.mount_options = vec![
        MountOption::FSName(format!("{SOURCE}{}", options.backing.display())),
        MountOption::Subtype("orcheck".to_owned()),
        MountOption::DefaultPermissions,
        MountOption::NoDev,
        MountOption::NoSuid,
        MountOption::NoAtime,
    ];
    if options.read_only {
        config.mount_options.push(MountOption::RO);
    }
    config.n_threads = Some(THREADS);
    config.clone_fd = true;
    let refused = |error: std::io::Error| {
        let at = format!("mounting at {}", options.mount_point.display());
        match error.raw_os_error() {
            Some(errno) => os_error(errno, at),
            None => Error::unavailable(format!("{at}: {}", error.to_string().trim_end())),
        }
        .next(
            "check that the mount point is a directory of yours, and that you may use /dev/fuse and \
             fusermount3",
        )
    };
    let session = Session::new(answers, &options.mount_point, &config).map_err(refused)?;
    session.spawn().map_err(refused)
}

impl Mounted {
    /// Whether the kernel has unmounted it.
    pub fn is_over(&self) -> bool {
        self.session.guard.is_finished()
    }

    /// Waits until all files are durable, or cannot become so. Nobody can use the mount meanwhile:
    /// either the kernel has unmounted it, or with `cut` programs that use it still get errors.
    ///
    /// # Errors
    /// Internal if a thread ended early.
    pub fn end(self, cut: bool) -> Result<Ended> {
        // What is staged is flushed also if this failed.
        let over = match !cut || self.is_over() {
            true => self.session.join(),
            false => Ok(()),
        };
        self.stacked.close_all();
        self.lane.end();
        self.stacked.sync_names_at_end();
        if self.worker.join().is_err() {
            return Err(Error::internal("the thread that flushes files ended early"));
        }
        let counts = self.lane.counts();
        let left = counts.left_files > 0;
        if let Some(stage) = &self.stage {
            stage.close();
        }
        let left_in = self
            .stage
            .filter(|_| left)
            .map(|stage| stage.path().to_owned());
        over.map_err(|error| Error::unavailable(format!("the mount ended: {error}")))?;
        let passed_through = self.stacked.passed_through();
        Ok(Ended {
            counts,
            passed_through,
            left_in,
        })
    }
}
