//! Manages routed files, which the program writes itself: where they are, how they enter a
//! checkpoint, and what a restart puts there.
//!
//! How: each rank has a directory (`engine/src/directory/routed.rs`): in `route_dir`, or else in
//! the directory of the job's node, or else in memory (`/dev/shm`). The region of a file is named
//! by its path below that directory. The program opens the path as it likes; everything here starts
//! from the directory's handle and takes one name at a time.
//!
//! Invariants:
//! 1. A name is a relative path of at most [`MAX_PARTS`] plain names. No link is followed below the
//!    directory.
//! 2. The directories in a file's path exist as long as it is routed.
//! 3. The directory is removed with the session. What a killed process left is removed by the next
//!    one that routes a file there.
//! 4. A file reaches a shared file system once, in the container: it never lies in a directory of
//!    level `global`.
//! 5. In memory, the files of a job may take `route_budget` bytes of a host: a checkpoint or
//!    restart that finds or makes more is refused. Each rank measures its own files; all of them
//!    are measured every [`STOCKS`] checkpoints, and twice in a restart.
//! 6. After a restart, the files are those of the checkpoint: a file that was absent then is
//!    absent.
//!
//! Faults survived: a link, a directory or nothing in place of a file or of a directory in its
//! path. Each is an error of the call that meets it, never a read or a write elsewhere.
//!
//! Not here: copying the contents of a file (`regions.rs`).

use crate::options::Options;
use crate::regions::region::{OPTIONAL, Region, Regions, RoutedFiles};
use crate::report::Warnings;
use orcheck_engine::directory::routed::{Routed, collect, taken_bytes};
use orcheck_engine::node::Index;
use orcheck_engine::restart::RankView;
use orcheck_format::disk::MAX_NAME_BYTES;
use orcheck_format::sabotage::{Switch, off};
use orcheck_format::{Error, ErrorKind, JobName, Rank, Result};
use orcheck_io::disk::{Create, Dir, File};
use orcheck_io::failpoints::Failpoints;
use orcheck_io::machine::memory;
use orcheck_io::user::{memory_dir, temp_dir};
use orcheck_staging::open_dir;
use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Maximum number of names in the path of a routed file.
const MAX_PARTS: usize = 8;
/// Maximum length of each of them.
const MAX_PART_BYTES: usize = 128;
/// Number of checkpoints from one measurement of all files of the job on this host to the next.
const STOCKS: u32 = 16;

/// Where this rank's routed files are.
pub(crate) struct Route {
    pub(crate) home: Routed,
    /// Limit for all files of the job on this host.
    pub(crate) budget: Option<Budget>,
}

pub(crate) struct Budget {
    place: Arc<dyn Dir>,
    job: JobName,
    /// Ranks of this node.
    ranks: Vec<Rank>,
    len_bytes: u64,
    /// Number of checkpoints that measured the files.
    stocks: Cell<u32>,
    /// What other nodes of the job, and earlier processes, took on this host at the last
    /// measurement.
    elsewhere_bytes: Cell<u64>,
}

impl Budget {
    /// Measures what all files of the job take on this host, by looking at each of them.
    fn look(&self) -> Result<u64> {
        let (of_node, elsewhere) = taken_bytes(self.place.as_ref(), &self.job, &self.ranks)?;
        self.elsewhere_bytes.set(elsewhere);
        Ok(of_node.saturating_add(elsewhere))
    }

    /// Returns what is taken, if it is within the budget.
    fn check(&self, taken: u64, more_bytes: u64) -> Result<u64> {
        // Breaks if: this is left out; the files would take the memory in which the program
        // computes.
        if taken.saturating_add(more_bytes) <= self.len_bytes || off(Switch::RouteBudget) {
            return Ok(taken);
        }
        let more = match more_bytes {
            0 => String::new(),
            more => format!(" and need {more} more"),
        };
        Err(Error::no_space(format!(
            "routed files of job '{}' take {taken} bytes of {}{more}, and may take {}",
            self.job.as_str(),
            self.place.path().display(),
            self.len_bytes
        ))
        .next("set `route_dir` or `node_dir` to a local disk, or raise `route_budget`"))
    }
}

impl RoutedFiles for Route {
    fn open(&self, name: &str) -> Result<Box<dyn File>> {
        let (dir, file) = self.walk(name, false)?;
        dir.open(file)
    }
}

impl Route {
    /// Without checkpoints: among the temporary files.
    ///
    /// # Errors
    /// The error of the directory.
    pub(crate) fn among_temporary_files(
        (job, rank): (&JobName, Rank),
        failpoints: &Failpoints,
        notes: &mut Warnings,
    ) -> Result<Self> {
        let (_, home) = among_others(&temp_dir(), (job, rank), failpoints, notes)?;
        Ok(Self { home, budget: None })
    }

    /// In memory, or in the directory that the options name instead.
    ///
    /// # Errors
    /// The error of the directory.
    pub(crate) fn of_host(
        (job, rank, ranks): (&JobName, Rank, &[Rank]),
        options: &Options,
        failpoints: &Failpoints,
        notes: &mut Warnings,
    ) -> Result<Self> {
        let path = options.route_dir.clone().unwrap_or_else(memory_dir);
        let found = among_others(&path, (job, rank), failpoints, notes);
        let (place, home) = found.map_err(|error| match options.route_dir {
            Some(_) => error.at("option route_dir"),
            None => error
                .at("memory for routed files")
                .next("set `route_dir` or `node_dir` to a directory of this machine"),
        })?;
        let len_bytes = match (options.route_budget_bytes, &options.route_dir) {
            (None, Some(_)) => None,
            (None, None) => Some(memory()?.usable_bytes() / 4),
            (set, _) => set,
        };
        let budget = len_bytes.map(|len_bytes| Budget {
            place,
            job: job.clone(),
            ranks: ranks.to_vec(),
            len_bytes,
            stocks: Cell::new(0),
            elsewhere_bytes: Cell::new(0),
        });
        Ok(Self { home, budget })
    }

    /// Whether other processes can tell that this one is alive.
    pub(crate) fn is_locked(&self) -> bool {
        self.home.is_locked()
    }

    /// Measures what the job's files take on this host at a checkpoint; 0 without a budget. Each
    /// rank measures its own files, and the ranks of a node add them up. Files elsewhere on the
    /// host are measured every [`STOCKS`] checkpoints.
    ///
    /// # Errors
    /// NoSpace if that exceeds the budget; otherwise the error of a directory.
    pub(crate) fn take_stock(&self, index: &Index<'_>, local: u32) -> Result<u64> {
        let Some(budget) = &self.budget else {
            return Ok(0);
        };
        let of_node = index.add_routed(local, self.home.taken_bytes()?);
        let stocks = budget.stocks.get();
        budget.stocks.set(stocks.wrapping_add(1));
        // Breaks if: everything is listed each time; each rank would look at the files of all
        // ranks.
        if !stocks.is_multiple_of(STOCKS) {
            let elsewhere_bytes = budget.elsewhere_bytes.get();
            return budget.check(of_node.saturating_add(elsewhere_bytes), 0);
        }
        budget.check(budget.look()?, 0)
    }

    /// Removes these files, and fails if there is no room for the given new lengths. A file without
    /// a length is only removed.
    ///
    /// # Errors
    /// NoSpace beyond the budget; otherwise the error of a directory.
    pub(crate) fn make_room(&self, files: &[(&str, u64)]) -> Result<()> {
        for (name, _) in files {
            self.remove_file(name)?;
        }
        self.check_room(files.iter().map(|(_, len_bytes)| len_bytes).sum())
    }

    /// Fails if all files of the job on this host, with `more_bytes`, exceed the budget.
    ///
    /// # Errors
    /// NoSpace; otherwise the error of a directory.
    pub(crate) fn check_room(&self, more_bytes: u64) -> Result<()> {
        if let Some(budget) = &self.budget {
            budget.check(budget.look()?, more_bytes)?;
        }
        Ok(())
    }

    /// Makes the directories of a file's path; returns the path.
    ///
    /// # Errors
    /// The error of a directory.
    pub(crate) fn path(&self, name: &str) -> Result<PathBuf> {
        self.walk(name, true)?;
        Ok(self.home.dir().path().join(name))
    }

    /// The directory of a file, and the file's own name.
    fn walk<'n>(&self, name: &'n str, make: bool) -> Result<(Arc<dyn Dir>, &'n str)> {
        let mut dir = Arc::clone(self.home.dir());
        let (parents, file) = name.rsplit_once('/').unwrap_or(("", name));
        for part in parents.split('/').filter(|part| !part.is_empty()) {
            dir = dir.child(part, make)?;
        }
        Ok((dir, file))
    }

    /// Creates a file, after [`Self::make_room`].
    ///
    /// # Errors
    /// The error of a directory.
    fn create(&self, name: &str) -> Result<Box<dyn File>> {
        let (dir, file) = self.walk(name, true)?;
        dir.create(file, Create::Buffered)
    }

    /// Removes a file, if it exists.
    fn remove_file(&self, name: &str) -> Result<()> {
        let removed = self
            .walk(name, false)
            .and_then(|(dir, file)| dir.remove(file));
        match removed {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Removes the directories of a path that are empty and not in the path of a routed file. What
    /// cannot be removed now is removed with the session.
    pub(crate) fn prune(&self, name: &str, regions: &Regions) {
        let mut path = name;
        while let Some((parent, _)) = path.rsplit_once('/') {
            let needed = regions.files().any(|other| is_in(other, parent));
            let removed = || {
                let (dir, last) = self.walk(parent, false)?;
                dir.remove_child(last)
            };
            if needed || removed().is_err() {
                return;
            }
            path = parent;
        }
    }

    /// Removes the directory with all files in it.
    ///
    /// # Errors
    /// The error of a directory.
    pub(crate) fn remove(self) -> Result<()> {
        self.home.remove()
    }
}

/// A directory in a place shared by many jobs, after removing what killed processes left there.
fn among_others(
    path: &Path,
    (job, rank): (&JobName, Rank),
    failpoints: &Failpoints,
    notes: &mut Warnings,
) -> Result<(Arc<dyn Dir>, Routed)> {
    let place = open_dir(path, failpoints.clone())?;
    // What cannot be removed is in nobody's way.
    if let Err(error) = collect(&place) {
        notes.push(format!(
            "routed files that a killed program left stay: {}",
            error.message()
        ));
    }
    let home = Routed::among_others(&place, job, rank)?;
    Ok((place, home))
}

/// Writes stored files to where the program finds them, and removes those that are not stored.
///
/// # Errors
/// NoSpace or Invalid if they cannot be written, which is not damage of the checkpoint; errors of
/// the checkpoint pass unchanged.
pub(crate) fn restore_files(
    route: Option<&Route>,
    files: &[(String, Region)],
    view: &mut RankView,
) -> Result<()> {
    let ours = |error: Error| match error.kind() {
        ErrorKind::NoSpace => error.at("routed file"),
        _ => Error::invalid(error.message()).at("routed file"),
    };
    if files.is_empty() {
        return Ok(());
    }
    let route = route.ok_or_else(|| Error::internal("no routed directory"))?;
    let stored = |name: &str| Some(view.region(name)?.len_bytes);
    let lens: Vec<Option<u64>> = files.iter().map(|(name, _)| stored(name)).collect();
    let wanted = files.iter().zip(&lens);
    let wanted: Vec<(&str, u64)> = wanted
        .map(|((name, _), len_bytes)| (name.as_str(), len_bytes.unwrap_or(0)))
        .collect();
    route.make_room(&wanted).map_err(ours)?;
    for ((name, region), _) in files.iter().zip(&lens).filter(|(_, len)| len.is_some()) {
        let file = route.create(name).map_err(ours)?;
        view.stream(name, &mut |at, bytes| {
            region
                .take_back(at, bytes, Some(file.as_ref()))
                .map_err(|error| ours(error).at(format!("region '{name}'")))
        })?;
        file.close().map_err(ours)?;
    }
    // Ranks that restart at the same time may all have found room; the last one finds what they
    // wrote.
    route.check_room(0).map_err(ours)
}

/// Whether a path leads through this directory.
fn is_in(path: &str, dir: &str) -> bool {
    let rest = path.strip_prefix(dir);
    rest.is_some_and(|rest| rest.starts_with('/'))
}

/// Checks that the name of a routed file is a path that means the same everywhere.
///
/// # Errors
/// Invalid, with what is allowed, or with the file that is in the way.
pub(crate) fn check_routed(name: &str, flags: u32, regions: &Regions) -> Result<()> {
    if flags & !OPTIONAL != 0 {
        return Err(Error::invalid(format!(
            "routed file '{}': flags {flags:#x}, allowed is OPTIONAL",
            name.escape_debug()
        )));
    }
    let allowed = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    let is_plain = |part: &str| {
        !part.is_empty()
            && part.len() <= MAX_PART_BYTES
            && !part.starts_with('.')
            && part.chars().all(allowed)
    };
    let fits = name.len() <= MAX_NAME_BYTES && name.split('/').count() <= MAX_PARTS;
    if !fits || !name.split('/').all(is_plain) {
        return Err(Error::invalid(format!(
            "file '{}': allowed is a relative path of 1 to {MAX_PARTS} names and {MAX_NAME_BYTES} bytes, each name 1 to {MAX_PART_BYTES} letters, digits, '.', '_' and '-', not beginning with '.'",
            name.escape_debug()
        )));
    }
    match regions
        .files()
        .find(|other| is_in(name, other) || is_in(other, name))
    {
        None => Ok(()),
        Some(other) => Err(Error::invalid(format!(
            "file '{name}': '{other}' is a file too, and one of them would have to be a directory"
        ))
        .next("give one of them another name")),
    }
}
