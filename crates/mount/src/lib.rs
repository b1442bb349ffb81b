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
//! Not here: checkpoints, which sets of files become (the engine's).

mod fuse;
mod lane;
mod node;
mod sets;
mod stacked;
mod stage;
mod tree;

pub use lane::{Counts, Tell};
pub use sets::{
    Back, Entry as SetFile, HOME as SETS, Pattern, RECORD as SET_RECORD, Record as SetRecord,
    SetCounts, SetOptions, parent_of,
};
pub use stacked::Watch;
pub use stage::Found;

use crate::fuse::Answers;
use crate::lane::Lane;
use crate::sets::{Sets, Shared};
use crate::stacked::{How, Stacked};
use crate::stage::Stage;
use crate::tree::Tree;
use fuser::{BackgroundSession, Config, MountOption, Session};
use orcheck_format::{Error, Result};
use orcheck_io::clock::{Clock, SystemClock};
use orcheck_io::disk::Inode;
use orcheck_io::errno::{os_error, rustix_error};
use orcheck_io::failpoints::Failpoints;
use orcheck_io::machine::is_dead_mount;
use rustix::io::Errno;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// What the source of each mount begins with, as the kernel lists it.
pub const SOURCE: &str = "orcheck:";
/// Between two looks at a thread that ends.
const POLL: Duration = Duration::from_millis(20);
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
    /// How files of one step are grouped; none: they are not.
    pub sets: Option<SetOptions>,
}

/// A mounted directory.
pub struct Mounted {
    session: BackgroundSession,
    stacked: Arc<Stacked>,
    lane: Arc<Lane>,
    worker: JoinHandle<()>,
    stage: Option<Arc<Stage>>,
    point: PathBuf,
    sets: Option<(Shared, JoinHandle<SetCounts>)>,
    /// What an earlier mount had left in the stage.
    pub found: Found,
    /// What was put back, if files are grouped.
    pub back: Option<Back>,
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
    /// What became of the sets.
    pub sets: Option<SetCounts>,
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
    // What is staged may be of a set.
    let sets = options.sets.as_ref();
    let sets = sets.map(|sets| Sets::open(sets, &options.backing, Arc::clone(&tell), &points));
    let (sets, back) = sets.transpose()?.unzip();
    let gathered = sets.as_ref().map(Sets::gathered);
    let tree = Arc::new(Tree::new(root).map_err(failed)?);
    let lane = Arc::new(Lane::new(Arc::clone(&tree), stage.clone(), tell));
    let how = How {
        passthrough: options.passthrough && watch.is_none(),
        write_back: options.write_back,
    };
    let (waiting, staged) = (Arc::clone(&lane), stage.clone());
    let known = gathered.clone();
    let shared = Arc::clone(&tree);
    let stacked = Stacked::new(shared, waiting, staged, how, points, watch, known);
    let stacked = Arc::new(stacked);
    let session = start(options, Answers::new(Arc::clone(&stacked), how));
    let session = session.inspect_err(|_| {
        gathered.iter().for_each(|gathered| gathered.marks().undo());
    })?;
    let working = Arc::clone(&lane);
    let worker = orcheck_io::machine::thread::spawn("orcheck-lane", move || working.run())?;
    let known = Arc::clone(&lane);
    let take = |sets: Sets| {
        orcheck_io::machine::thread::spawn("orcheck-sets", move || sets.run(&tree, &known))
    };
    let taking = sets.map(take);
    let sets = gathered.zip(taking.transpose()?);
    Ok(Mounted {
        session,
        stacked,
        lane,
        worker,
        stage,
        point: options.mount_point.clone(),
        sets,
        found,
        back,
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
    /// Where files are grouped, it also waits for the mounts of the other nodes, until `give_up`
    /// says otherwise.
    ///
    /// # Errors
    /// Internal if a thread ended early.
    pub fn end(self, cut: bool, give_up: &dyn Fn() -> bool) -> Result<Ended> {
        // What is staged is flushed also if this failed.
        let over = match !cut || self.is_over() {
            true => self.session.join().or_else(cut_while_reading),
            false => Ok(()),
        };
        // Something may have cut the connection: then programs still use it.
        let cut_off = cut || is_dead_mount(&self.point);
        let sets_end = || self.sets.iter().for_each(|(gathered, _)| gathered.end());
        if cut_off {
            sets_end();
        }
        // The kernel need not have said that the last files were closed.
        self.stacked.close_all();
        sets_end();
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
        let sets = self.sets.map(|(gathered, taking)| {
            let counts = end_sets(&gathered, taking, give_up)?;
            let marks = gathered.marks();
            // Sets may have lost names, too.
            let lost = self.lane.counts().lost_files > 0 || self.lane.has_lost();
            let ended = match (lost, left) {
                // Breaks if: they count as whole; the next mount would believe a sync.
                (true, _) => marks.all_lost(),
                (false, true) => Ok(()),
                (false, false) if !counts.gave_up && gathered.is_clean() => marks.end_mount(),
                (false, false) => marks.at_rest(),
            };
            ended.map_err(|errno| rustix_error(errno, marks.shown()))?;
            Ok::<_, Error>(counts)
        });
        let sets = sets.transpose()?;
        let left_in = self
            .stage
            .filter(|_| left)
            .map(|stage| stage.path().to_owned());
        over.map_err(|error| Error::unavailable(format!("the mount ended: {error}")))?;
        let passed_through = self.stacked.passed_through();
        Ok(Ended {
            counts: self.lane.counts(),
            passed_through,
            left_in,
            sets,
        })
    }
}

/// The kernel answers `ENODEV` after an unmount. A thread that was copying a request gets
/// `ECONNABORTED` instead.
fn cut_while_reading(error: io::Error) -> io::Result<()> {
    match error.raw_os_error() {
        Some(number) if number == Errno::CONNABORTED.raw_os_error() => Ok(()),
        _ => Err(error),
    }
}

/// Waits until the last sets are safe.
fn end_sets(
    gathered: &Shared,
    taking: JoinHandle<SetCounts>,
    give_up: &dyn Fn() -> bool,
) -> Result<SetCounts> {
    while !taking.is_finished() {
        if give_up() {
            gathered.cut();
        }
        SystemClock.sleep(POLL);
    }
    let ended = taking.join();
    ended.map_err(|_| Error::internal("the thread that takes sets ended early"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_cut_off_by_unmounting_is_the_end_and_not_a_failure() {
        let cut = |number: Errno| cut_while_reading(number.into());
        assert!(cut(Errno::CONNABORTED).is_ok());
        assert_eq!(
            cut(Errno::IO).map_err(|error| error.raw_os_error()),
            Err(Some(Errno::IO.raw_os_error()))
        );
    }
}
