//! Files that the program writes itself (`route`): where they are, how they enter a checkpoint, what a restart puts there.
//!
//! How: each rank has a directory (`engine/src/routed.rs`), and the region of a file is named by its path below that. The
//! program opens the path as it likes; everything here starts from the directory's handle and takes one name at a time.
//!
//! Invariants:
//! 1. A name is a relative path of at most [`MAX_PARTS`] plain names. No link is followed below the directory.
//! 2. The directories in a file's path are there as long as it is routed.
//! 3. The directory goes with the session; what a killed process left goes with the next one that routes a file there.
//!
//! Faults survived: a link, a directory or nothing in place of a file or of a directory in its path; each is an error of the
//! call that meets it, never a read or a write elsewhere.
//!
//! Not here: copying what a file holds (`regions.rs`).

use crate::regions::{Region, Regions};
use crate::session::Session;
use orcheck_engine::restore::RankView;
use orcheck_engine::routed::{Routed, collect};
use orcheck_format::error::{Error, ErrorKind, Result};
use orcheck_format::ids::{JobName, Level};
use orcheck_format::manifest::MAX_NAME_BYTES;
use orcheck_io::dir::{Create, Dir, open_dir};
use orcheck_io::environment::temp_dir;
use orcheck_io::file::File;
use orcheck_io::served::is_served;
use orcheck_io::steps::Steps;
use std::path::PathBuf;
use std::sync::Arc;

/// Names in the path of a routed file.
const MAX_PARTS: usize = 8;
/// Length of each of them.
const MAX_PART_BYTES: usize = 128;

/// Where this rank's routed files are.
pub(crate) struct Route {
    home: Routed,
}

impl Route {
    /// Without checkpoints: among the temporary files.
    ///
    /// # Errors
    /// What the directory says.
    pub(crate) fn among_temporary_files(job: &JobName, rank: u32, steps: &Steps) -> Result<Self> {
        let place = open_dir(&temp_dir(), steps.clone())?;
        collect(&place)?;
        let home = Routed::among_others(&place, job, rank)?;
        Ok(Self { home })
    }

    /// Makes the directories of a file's path; the path itself.
    ///
    /// # Errors
    /// What the directories say.
    pub(crate) fn path(&self, name: &str) -> Result<PathBuf> {
        self.walk(name, true)?;
        Ok(self.home.dir().path().join(name))
    }

    /// The directory that a file lies in, and the file's own name.
    fn walk<'n>(&self, name: &'n str, make: bool) -> Result<(Arc<dyn Dir>, &'n str)> {
        let mut dir = Arc::clone(self.home.dir());
        let (parents, file) = name.rsplit_once('/').unwrap_or(("", name));
        for part in parents.split('/').filter(|part| !part.is_empty()) {
            dir = dir.child(part, make)?;
        }
        Ok((dir, file))
    }

    /// Opens a file for reading.
    ///
    /// # Errors
    /// NotFound; whatever else is in its place.
    pub(crate) fn open(&self, name: &str) -> Result<Box<dyn File>> {
        let (dir, file) = self.walk(name, false)?;
        dir.open(file)
    }

    /// Creates a file in place of what is there.
    ///
    /// # Errors
    /// What the directories say.
    fn create(&self, name: &str) -> Result<Box<dyn File>> {
        let (dir, file) = self.walk(name, true)?;
        match dir.remove(file) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        dir.create(file, Create::Buffered)
    }

    /// Removes the directories of a path that are empty and in no path of a routed file. What cannot be removed now goes with
    /// the session.
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
    /// What the directories say.
    pub(crate) fn remove(self) -> Result<()> {
        self.home.remove()
    }
}

impl Session {
    /// A path at which the program writes a file that becomes region `name`: read at each
    /// checkpoint, written back by `restart`. The directories in it are there. Local.
    ///
    /// # Errors
    /// Invalid for a name that is no relative path of plain names, or leads through another routed file; what the directory
    /// says.
    pub fn route(&mut self, name: &str) -> Result<PathBuf> {
        check_routed(name, &self.regions)?;
        if self.route.is_none() {
            let writable = [Level::Node, Level::Global].map(|level| self.places.of_level(level));
            let here = |dir: &Arc<dyn Dir>| !is_served(dir.path());
            let parent = writable.into_iter().flatten().find(here).ok_or_else(|| {
                Error::unavailable("no directory of this machine is left for routed files")
                    .next("set `node_dir`: a program cannot write files on a staging I/O server")
            })?;
            let home = Routed::in_job(&parent, self.epoch, self.rank)?;
            self.route = Some(Route { home });
        }
        let path = match &self.route {
            Some(route) => route.path(name)?,
            None => return Err(Error::internal("the routed directory vanished")),
        };
        self.put(name, Region::file())?;
        Ok(path)
    }
}

/// Writes a stored file to where the program finds it.
///
/// # Errors
/// Invalid where it cannot be written: that is no damage of the checkpoint, whose errors pass as they are.
pub(crate) fn restore_file(
    route: Option<&Route>,
    name: &str,
    region: &Region,
    view: &mut RankView,
) -> Result<()> {
    let ours = |error: Error| Error::invalid(error.message()).at("routed file");
    let route = route.ok_or_else(|| Error::internal("no routed directory"))?;
    let file = route.create(name).map_err(ours)?;
    view.stream(name, &mut |at, bytes| {
        region
            .take_back(at, bytes, Some(file.as_ref()))
            .map_err(|error| ours(error).at(format!("region '{name}'")))
    })?;
    file.close().map_err(ours)
}

/// Whether a path leads through this directory.
fn is_in(path: &str, dir: &str) -> bool {
    let rest = path.strip_prefix(dir);
    rest.is_some_and(|rest| rest.starts_with('/'))
}

/// Names of routed files are paths that mean the same everywhere.
///
/// # Errors
/// Invalid, with what is allowed; with the file that is in the way.
pub(crate) fn check_routed(name: &str, regions: &Regions) -> Result<()> {
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
            "routed file '{}': allowed is a relative path of 1 to {MAX_PARTS} names and {MAX_NAME_BYTES} bytes, each name 1 to {MAX_PART_BYTES} letters, digits, '.', '_' and '-', not beginning with '.'",
            name.escape_debug()
        )));
    }
    match regions.files().find(|other| is_in(name, other) || is_in(other, name)) {
        None => Ok(()),
        Some(other) => Err(Error::invalid(format!(
            "routed file '{name}': '{other}' is a routed file too, and one of them would have to be a directory"
        ))
        .next("give one of them another name")),
    }
}
