//! Manages the directories of routed files: each rank whose program writes files itself has one,
//! which is removed with the session.
//!
//! How: the name of a directory says whose it is, and the file `.lock` in it is locked while its
//! process lives. A directory whose lock is free was left by a killed process; the next process
//! removes it.
//!
//! Invariants:
//! 1. Only a living process itself removes its directory.
//! 2. Only directories of this user are removed, and only if the whole name is one that this module
//!    gives.
//! 3. Nothing outside such a directory is touched: no link is followed, at any depth.
//!
//! Faults survived: a kill at any point, also halfway through making or removing a directory (the
//! next process continues with it); another process that collects at the same time. On a file
//! system without locks, only the directory of a job's node is used; its epoch says which runs are
//! over.
//!
//! Not here: where the directories lie and what is in them (`client/src/regions/route.rs`).

use orcheck_format::sabotage::{Switch, off};
use orcheck_format::{Epoch, Error, ErrorKind, JobName, Rank, Result};
use orcheck_io::disk::{Create, Dir, File};
use orcheck_io::machine::effective_uid;
use orcheck_io::rng::random_bytes;
use std::path::Path;
use std::sync::Arc;

/// Prefix of directories in the directory of a job's node; the epoch follows.
const IN_JOB: &str = "route-e";
/// Prefix of directories in a place shared by many jobs; the user follows.
const AMONG_OTHERS: &str = "orcheck-route-u";
/// Locked while the process lives. No routed file has this name: their names do not begin with a
/// dot.
const LOCK: &str = ".lock";
/// Depth of the deepest directory below a routed one that is removed with it.
const MAX_DEPTH: u32 = 64;
/// Another process may collect a directory before it is locked.
const ATTEMPTS: u32 = 8;

/// A directory of routed files, locked.
pub struct Routed {
    parent: Arc<dyn Dir>,
    dir: Arc<dyn Dir>,
    child: String,
    /// `None` if the file system has no locks.
    lock: Option<Box<dyn File>>,
}

impl Routed {
    /// Makes one in the directory of a job's node, for one rank of the run of this epoch.
    ///
    /// # Errors
    /// The error of the directory.
    pub fn in_job(parent: &Arc<dyn Dir>, epoch: Epoch, rank: Rank) -> Result<Self> {
        let child = format!("{IN_JOB}{:06}-{}-r{rank}", epoch.counter, epoch.run.short());
        match Self::make(parent, &child) {
            Ok(Some(routed)) => Ok(routed),
            Ok(None) => Err(parent.check_path().err().unwrap_or_else(|| {
                Error::internal(format!(
                    "directory {child}, which only this rank knows, is locked by another process"
                ))
            })),
            Err(error) if error.kind() == ErrorKind::Unsupported => Ok(Self {
                parent: Arc::clone(parent),
                dir: parent.child(&child, true)?,
                child,
                lock: None,
            }),
            Err(error) => Err(error),
        }
    }

    /// Makes one in a place that may hold directories of other jobs and users, under a name that
    /// nobody can guess.
    ///
    /// # Errors
    /// The error of the place; Unsupported if it has no locks.
    pub fn among_others(parent: &Arc<dyn Dir>, job: &JobName, rank: Rank) -> Result<Self> {
        for _ in 0..ATTEMPTS {
            let unique = u64::from_le_bytes(random_bytes());
            let uid = effective_uid();
            let child = format!("{AMONG_OTHERS}{uid}-{unique:016x}-r{rank}-{}", job.as_str());
            if let Some(routed) = Self::make(parent, &child)? {
                return Ok(routed);
            }
        }
        parent.check_path()?;
        Err(Error::unavailable(format!(
            "{}: {ATTEMPTS} directories for routed files were removed as soon as they were made",
            parent.path().display()
        ))
        .next("find out what removes directories there, or set `route_dir` to another directory"))
    }

    /// Makes a directory and locks it; `None` if another process collected it first.
    fn make(parent: &Arc<dyn Dir>, child: &str) -> Result<Option<Self>> {
        let dir = match parent.child(child, true) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            dir => dir?,
        };
        let lock = match dir.create(LOCK, Create::Buffered) {
            Err(error) if was_quicker(&error) => return Ok(None),
            lock => lock?,
        };
        match lock.try_lock() {
            // Between its creation and the lock, another process that held the lock may have
            // removed it.
            Ok(true) if dir.holds(LOCK)? => Ok(Some(Self {
                parent: Arc::clone(parent),
                dir,
                child: child.to_owned(),
                lock: Some(lock),
            })),
            Ok(_) => Ok(None),
            Err(error) => {
                // Otherwise nobody could tell later that it is abandoned.
                let _ = dir.remove(LOCK).and_then(|()| parent.remove_child(child));
                Err(error)
            }
        }
    }

    /// The directory.
    #[must_use]
    pub fn dir(&self) -> &Arc<dyn Dir> {
        &self.dir
    }

    /// Whether other processes can tell that this one is alive.
    #[must_use]
    pub fn is_locked(&self) -> bool {
        self.lock.is_some()
    }

    /// How much of its disk or memory it takes, in bytes; holes count as if they were filled.
    ///
    /// # Errors
    /// As [`taken_bytes`].
    pub fn taken_bytes(&self) -> Result<u64> {
        taken_in(self.parent.as_ref(), &self.child, 0)
    }

    /// Removes it and its contents.
    ///
    /// # Errors
    /// The error of a directory.
    pub fn remove(self) -> Result<()> {
        remove_all(self.parent.as_ref(), &self.child, self.dir.as_ref())
    }
}

/// Removes what killed processes of this user left in a place shared by many jobs.
///
/// # Errors
/// The error of the place; the first error of a directory that should have been removed, after all
/// others were tried.
pub fn collect(place: &Arc<dyn Dir>) -> Result<()> {
    let mut first = Ok(());
    for entry in place.list()? {
        if entry.is_dir && is_among_others(&entry.name, effective_uid()) {
            first = first.and(remove_left(place.as_ref(), &entry.name, false));
        }
    }
    first
}

/// How much of its disk or memory a job's directories in a shared place take, in bytes: those of
/// these ranks, and all others. Only this user's directories count.
///
/// # Errors
/// The error of a directory; Invalid for one that is too deep to be removed.
pub fn taken_bytes(place: &dyn Dir, job: &JobName, ranks: &[Rank]) -> Result<(u64, u64)> {
    let (mut theirs, mut others) = (0, 0);
    for entry in place.list()? {
        let of_job = entry.is_dir && is_among_others(&entry.name, effective_uid());
        // Breaks if: the end of the name alone counts; job "a-b" would pay for job "b".
        let mut parts = entry.name.splitn(6, '-').skip(4);
        let rank = parts.next().and_then(|part| part.get(1..)?.parse().ok());
        if of_job && parts.next() == Some(job.as_str()) {
            // Breaks if: another user's directory counts, or is an error; anybody who knows the
            // name of a job could keep it from its checkpoints.
            let is_ours = place.child(&entry.name, true);
            if is_ours.is_err_and(|error| error.kind() == ErrorKind::Unavailable) {
                continue;
            }
            let bytes = taken_in(place, &entry.name, 0)?;
            match rank.is_some_and(|rank| ranks.contains(&rank)) {
                true => theirs += bytes,
                false => others += bytes,
            }
        }
    }
    Ok((theirs, others))
}

fn taken_in(parent: &dyn Dir, name: &str, depth: u32) -> Result<u64> {
    if depth > MAX_DEPTH {
        return Err(too_deep(&parent.path().join(name)));
    }
    let dir = match parent.child(name, false) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(0),
        dir => dir?,
    };
    let mut bytes = 0;
    for entry in dir.list()? {
        bytes += match entry.is_dir {
            true => taken_in(dir.as_ref(), &entry.name, depth + 1)?,
            // Breaks if: holes do not count; a restart, which fills them, would not find the room
            // that the checkpoint did.
            false => {
                (dir.taken(&entry.name)?).map_or(0, |taken| taken.disk_bytes.max(taken.len_bytes))
            }
        };
    }
    Ok(bytes)
}

fn too_deep(path: &Path) -> Error {
    Error::invalid(format!(
        "{}: more than {MAX_DEPTH} directories deep",
        path.display()
    ))
    .next("remove it by hand")
}

/// Removes the directory `name` in that of a job's node, if a process of a run older than this
/// epoch (its counter) left it.
///
/// # Errors
/// The error of a directory.
pub(crate) fn collect_of_job(dir: &dyn Dir, name: &str, epoch: u64) -> Result<()> {
    if epoch_of(name).is_some_and(|older| older < epoch || off(Switch::OwnRoute)) {
        remove_left(dir, name, true)?;
    }
    Ok(())
}

/// Removes a directory whose process has ended. `known_over`: it has ended, although no lock can
/// tell.
fn remove_left(parent: &dyn Dir, name: &str, known_over: bool) -> Result<()> {
    // Makes it again if it has just been removed, and thereby refuses another user's directory.
    let dir = match parent.child(name, true) {
        Err(error) if matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::NotFound) => {
            return Ok(());
        }
        dir => dir?,
    };
    let lock = match dir.open(LOCK) {
        Ok(lock) => lock,
        // Its process was killed before it made the lock, or is about to make it; then it finds
        // this one and takes another name.
        Err(error) if error.kind() == ErrorKind::NotFound => {
            match dir.create(LOCK, Create::Buffered) {
                Err(error) if was_quicker(&error) => return Ok(()),
                lock => lock?,
            }
        }
        Err(error) => return Err(error),
    };
    match lock.try_lock() {
        // Somebody else may have removed it by now.
        Ok(true) if dir.holds(LOCK)? => {}
        Ok(false) if off(Switch::LivingRoute) => {}
        Ok(_) => return Ok(()),
        Err(error) if error.kind() == ErrorKind::Unsupported && known_over => {}
        Err(error) => return Err(error),
    }
    remove_all(parent, name, dir.as_ref())
}

/// Whether somebody else has made the lock, or removed the directory, in the meantime.
fn was_quicker(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Invalid)
}

/// Removes everything in it, the lock last, and then the directory.
fn remove_all(parent: &dyn Dir, name: &str, dir: &dyn Dir) -> Result<()> {
    empty(dir, 0)?;
    gone(dir.remove(LOCK))?;
    match gone(parent.remove_child(name)) {
        // Somebody who found no lock made one: the directory is theirs now.
        Err(error) if error.kind() == ErrorKind::Invalid && dir.holds(LOCK)? => Ok(()),
        removed => removed,
    }
}

fn empty(dir: &dyn Dir, depth: u32) -> Result<()> {
    if depth > MAX_DEPTH {
        return Err(too_deep(dir.path()));
    }
    for entry in dir.list()? {
        if !entry.is_dir {
            if depth > 0 || entry.name != LOCK {
                gone(dir.remove(&entry.name))?;
            }
            continue;
        }
        match dir.child(&entry.name, false) {
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            child => {
                empty(child?.as_ref(), depth + 1)?;
                gone(dir.remove_child(&entry.name))?;
            }
        }
    }
    Ok(())
}

/// Success if somebody else has removed it.
fn gone(removed: Result<()>) -> Result<()> {
    match removed {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit())
}

fn is_rank(text: &str) -> bool {
    text.strip_prefix('r').is_some_and(digits)
}

fn hex(text: &str, len: usize) -> bool {
    text.len() == len && text.bytes().all(|b| b.is_ascii_hexdigit())
}

/// Epoch counter of a directory in that of a job's node; `None` for any other name.
fn epoch_of(name: &str) -> Option<u64> {
    let mut parts = name.strip_prefix(IN_JOB)?.split('-');
    let (counter, run, rank) = (parts.next()?, parts.next()?, parts.next()?);
    let ours = digits(counter) && hex(run, 8) && is_rank(rank) && parts.next().is_none();
    counter.parse().ok().filter(|_| ours)
}

/// Whether a directory in a place of many jobs is one of this user's.
fn is_among_others(name: &str, uid: u32) -> bool {
    let ours = || {
        let mut parts = name.strip_prefix(AMONG_OTHERS)?.splitn(4, '-');
        let (user, unique) = (parts.next()?, parts.next()?);
        let (rank, job) = (parts.next()?, parts.next()?);
        Some(
            user == uid.to_string()
                && hex(unique, 16)
                && is_rank(rank)
                && JobName::new(job).is_ok(),
        )
    };
    ours() == Some(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use orcheck_format::RunId;
    use orcheck_io::failpoints::{Failpoint, FailpointHook, Failpoints, Verdict};
    use orcheck_staging::open_dir;
    use orcheck_testing::Scratch;
    use std::os::unix::fs::symlink;
    use std::sync::atomic::{AtomicU64, Ordering};

    fn place(scratch: &Scratch) -> Arc<dyn Dir> {
        open_dir(scratch.path(), Failpoints::none()).unwrap()
    }

    fn names(dir: &Arc<dyn Dir>) -> Vec<String> {
        let entries = dir.list().unwrap().into_iter();
        entries.map(|entry| entry.name).collect()
    }

    const EPOCH: Epoch = Epoch {
        counter: 5,
        run: RunId([0xab; 16]),
    };

    #[test]
    fn routed_directories_are_known_by_their_whole_name() {
        let scratch = Scratch::in_memory("routednames");
        let job = JobName::new("a-job").unwrap();
        let here = place(&scratch);
        let mine = Routed::in_job(&here, EPOCH, Rank(12)).unwrap();
        assert_eq!(names(&here), ["route-e000005-abababab-r12"]);
        assert_eq!(epoch_of(&names(&here)[0]), Some(5));
        mine.remove().unwrap();
        let mine = Routed::among_others(&here, &job, Rank(3)).unwrap();
        let name = &names(&here)[0];
        assert!(is_among_others(name, effective_uid()), "{name}");
        assert!(!is_among_others(name, effective_uid() + 1), "{name}");
        mine.remove().unwrap();
        assert!(names(&here).is_empty());
        for name in [
            "route-e5",
            "route-e000005-abababab-r",
            "route-e000005-notahex!-r1",
            "route-e000005-abababab-r1-x",
            "results",
        ] {
            assert_eq!(epoch_of(name), None, "{name}");
        }
        for name in [
            "orcheck-route-u7",
            "orcheck-route-u7-0123456789abcdef-r1",
            "orcheck-route-u7-0123456789abcdef-r1-",
            "orcheck-route-u7-0123456789abcdef-1-job",
            "orcheck-route-u7-0123456789abcde-r1-job",
            "orcheck-route-u07-0123456789abcdef-r1-job",
        ] {
            assert!(!is_among_others(name, 7), "{name}");
        }
        let longest = "j".repeat(orcheck_format::MAX_JOB_NAME_BYTES);
        let longest = JobName::new(&longest).unwrap();
        let mine = Routed::among_others(&here, &longest, Rank(u32::MAX)).unwrap();
        mine.remove().unwrap();
    }

    // Breaks if: a directory is removed whose lock is held, or is kept although its lock is free.
    #[test]
    fn what_a_living_process_has_stays_and_what_a_dead_one_left_goes() {
        let scratch = Scratch::in_memory("routedlocks");
        let here = place(&scratch);
        let job = JobName::new("job").unwrap();
        let mine = Routed::among_others(&here, &job, Rank(0)).unwrap();
        let in_job = Routed::in_job(&here, EPOCH, Rank(0)).unwrap();
        let living = names(&here);
        // A link that leads out of it, a tree, and one whose process was killed before it had a
        // lock.
        let left = Routed::among_others(&here, &job, Rank(1)).unwrap();
        let outside = here.child("outside", true).unwrap();
        outside.create("precious", Create::Buffered).unwrap();
        let deep = left
            .dir()
            .child("a", true)
            .unwrap()
            .child("b", true)
            .unwrap();
        deep.create("file", Create::Buffered).unwrap();
        symlink(outside.path(), deep.path().join("out")).unwrap();
        symlink(outside.path(), left.dir().path().join("out")).unwrap();
        drop(left);
        let uid = effective_uid();
        here.child(
            &format!("orcheck-route-u{uid}-0123456789abcdef-r1-job"),
            true,
        )
        .unwrap();
        here.child("orcheck-route-of-somebody", true).unwrap();
        collect(&here).unwrap();
        for name in names(&here) {
            collect_of_job(here.as_ref(), &name, 6).unwrap();
        }
        let mut stays = vec!["orcheck-route-of-somebody".to_owned(), "outside".to_owned()];
        stays.extend(living);
        stays.sort();
        assert_eq!(names(&here), stays);
        assert!(outside.holds("precious").unwrap());
        // The lock disappears with the process, for which these values stand.
        drop((mine, in_job));
        collect(&here).unwrap();
        for name in names(&here) {
            collect_of_job(here.as_ref(), &name, 5).unwrap();
        }
        let of_this_epoch = "route-e000005-abababab-r0";
        assert_eq!(
            names(&here),
            ["orcheck-route-of-somebody", "outside", of_this_epoch]
        );
        collect_of_job(here.as_ref(), of_this_epoch, 6).unwrap();
        assert_eq!(names(&here), ["orcheck-route-of-somebody", "outside"]);
    }

    /// Calls a competitor at a failpoint, once.
    struct Between {
        site: &'static str,
        nth: u64,
        seen: AtomicU64,
        call: Box<dyn Fn() + Send + Sync>,
    }

    impl FailpointHook for Between {
        fn at(&self, step: &Failpoint) -> Verdict {
            if step.site == self.site && self.seen.fetch_add(1, Ordering::SeqCst) + 1 == self.nth {
                (self.call)();
            }
            Verdict::Go
        }
    }

    // Breaks if: the lock is taken for granted once its file is made, or nobody checks that the
    // file still exists.
    #[test]
    fn a_directory_that_is_collected_while_it_is_made_is_made_again() {
        let scratch = Scratch::in_memory("routedmaking");
        let job = JobName::new("job").unwrap();
        let others = place(&scratch);
        // After it exists, after it is open, after it has a lock, and after the lock is held.
        for (site, nth) in [
            ("dir.open", 2),
            ("dir.create", 1),
            ("file.lock", 1),
            ("dir.open", 3),
        ] {
            let (path, seen) = (scratch.path().to_path_buf(), AtomicU64::new(0));
            let call =
                Box::new(move || collect(&open_dir(&path, Failpoints::none()).unwrap()).unwrap());
            let failpoints = Failpoints::with(Arc::new(Between {
                site,
                nth,
                seen,
                call,
            }));
            let here = open_dir(scratch.path(), failpoints).unwrap();
            let mine = Routed::among_others(&here, &job, Rank(0)).unwrap();
            assert!(mine.dir().check_path().is_ok(), "{site}");
            collect(&others).unwrap();
            assert!(mine.dir().check_path().is_ok(), "{site}: it is locked");
            assert_eq!(names(&others).len(), 1, "{site}");
            mine.remove().unwrap();
        }
    }

    // Breaks if: what one makes or collects meanwhile is an error for the other.
    #[test]
    fn several_that_make_and_collect_at_once_leave_nothing() {
        let scratch = Scratch::in_memory("routedrace");
        let here = place(&scratch);
        let job = JobName::new("job").unwrap();
        let over = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let here = place(&scratch);
                    while !over.load(Ordering::SeqCst) {
                        collect(&here).unwrap();
                    }
                });
            }
            for rank in 0..300 {
                // All attempts may fail here.
                if let Ok(mine) = Routed::among_others(&here, &job, Rank(rank)) {
                    let file = mine.dir().create("file", Create::Buffered);
                    assert!(file.is_ok() && mine.dir().check_path().is_ok(), "{rank}");
                    drop(mine);
                }
            }
            over.store(true, Ordering::SeqCst);
        });
        collect(&here).unwrap();
        assert!(names(&here).is_empty(), "{:?}", names(&here));
    }
}
