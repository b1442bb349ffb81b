//! Represents a job whose directories are open: picks a commit, and reports what of it is here.
//!
//! Invariants:
//! 1. Nothing is created.
//! 2. While a directory cannot be read, or was not given although the checkpoint was written to it,
//!    data that is not here is not called lost.
//!
//! Not here: finding the directories (`search.rs`), reading containers.

mod asked;
mod renamed;
mod search;
mod sight;

pub use search::{Hidden, Search, cannot_open, holds_files, own_directory_of};
pub use sight::{is_out_of_sight, not_read};

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use orcheck_client::Options;
use orcheck_engine::directory::choose::checkpoint_of;
use orcheck_engine::directory::{Catalog, Commit};
use orcheck_engine::encoding::{Accept, Trust};
use orcheck_engine::replicas::Rebuilt;
use orcheck_engine::restart::reader::homes;
use orcheck_format::disk::{CommitRecord, ContainerRef, FileName};
use orcheck_format::{Error, ErrorKind, JobName, Level, NodeId, Result};
use orcheck_io::disk::Dir;
use orcheck_io::failpoints::Failpoints;
use orcheck_io::machine::group_id;
use orcheck_io::user::SecretSource;
use orcheck_staging::client::shown;
use orcheck_staging::open_dir;

use crate::args::{Unlock, Where, Which};
use crate::exit;
use crate::output::Failure;
use search::JobDir;

/// The kind of a placed directory.
pub(crate) const PLACED: &str = "global";

/// A job whose directories are open and whose catalog is read.
pub struct Job {
    /// Its name.
    pub name: JobName,
    /// For each place: `global`, or `node NAME`.
    pub place_kinds: Vec<String>,
    /// What the places hold.
    pub catalog: Catalog,
    /// Directories that could not be read.
    hidden: Vec<Hidden>,
    /// What is to be said of asking nodes for files that are missing here.
    asked: Vec<String>,
    /// Place and length in bytes of every copy of a file, by name.
    copies: BTreeMap<String, Vec<(usize, u64)>>,
}

/// The placed directories and the directories of level node: those given, or those of
/// ORCHECK_CONFIG, ORCHECK_GLOBAL and ORCHECK_NODE_DIR where no directory at all is given.
pub fn roots(dirs: &[PathBuf], node_dirs: &[PathBuf]) -> Result<(Vec<PathBuf>, Vec<PathBuf>)> {
    if !dirs.is_empty() || !node_dirs.is_empty() {
        return Ok((dirs.to_vec(), node_dirs.to_vec()));
    }
    let (placed, node) = Options::directories()?;
    Ok((placed, node.into_iter().collect()))
}

/// What is believed: with the given keys, or those of ORCHECK_ENCRYPT_KEY, only what they verify
/// and what is accepted; without a key everything, and nothing is verified.
pub fn trust(unlock: &Unlock) -> Result<Arc<Trust>> {
    let given = |given: &[String], variable: &str| {
        if given.is_empty() {
            list_of(&orcheck_io::user::env_var(variable).unwrap_or_default())
        } else {
            given.to_vec()
        }
    };
    let sources = given(&unlock.encrypt_key, "ORCHECK_ENCRYPT_KEY");
    let sources = sources.iter().filter(|source| !source.is_empty());
    let secrets = sources.map(|source| Ok(Arc::new(SecretSource::parse(source)?.read()?)));
    let accept = given(&unlock.accept, "ORCHECK_ACCEPT");
    let accept = Accept::parse(accept.iter().map(String::as_str))?;
    Trust::new(&secrets.collect::<Result<Vec<_>>>()?, true, accept)
}

/// The group that shares the files of a command: that of `--group`, or of ORCHECK_GROUP.
pub fn group(given: Option<&str>) -> Result<Option<u32>> {
    let set = orcheck_io::user::env_var("ORCHECK_GROUP").filter(|_| given.is_none());
    let name = given.or(set.as_deref()).filter(|name| !name.is_empty());
    let id = name.map(group_id).transpose();
    id.map_err(|error| error.at("--group"))
}

/// A list in the form of a variable: `a,b`, or TOML.
fn list_of(text: &str) -> Vec<String> {
    let entries = text.trim_matches(['[', ']', ' ']).split(',');
    let entries = entries.map(|entry| entry.trim().trim_matches(['\'', '"']));
    entries
        .filter(|entry| !entry.is_empty())
        .map(str::to_owned)
        .collect()
}

impl Job {
    /// Opens the directories and scans them, without a key.
    pub fn open(place: &Where) -> std::result::Result<Job, Failure> {
        Self::open_trusting(place, &Trust::default())
    }

    /// Opens the directories and scans them.
    pub fn open_trusting(place: &Where, trust: &Trust) -> std::result::Result<Job, Failure> {
        Search::of(place, trust)?.job(place.job.as_deref(), trust)
    }

    /// Opens these directories of a job and scans them.
    pub(crate) fn of(
        name: JobName,
        found: Vec<JobDir>,
        hidden: Vec<Hidden>,
        scan: impl FnOnce(&JobName, &[Arc<dyn Dir>]) -> Result<Catalog>,
    ) -> std::result::Result<Job, Failure> {
        let (mut places, mut place_kinds) = (Vec::new(), Vec::new());
        for JobDir { dir, kind, .. } in found {
            places.push(dir);
            place_kinds.push(kind);
        }
        let catalog = scan(&name, &places)?;
        renamed::recognise_nodes(&catalog, &mut place_kinds);
        let mut copies: BTreeMap<String, Vec<(usize, u64)>> = BTreeMap::new();
        for (place, entry, _) in catalog.files() {
            copies
                .entry(entry.name.clone())
                .or_default()
                .push((*place, entry.len_bytes));
        }
        Ok(Job {
            name,
            place_kinds,
            catalog,
            hidden,
            copies,
            asked: Vec::new(),
        })
    }

    /// Directories that could not be read.
    pub fn hidden(&self) -> &[Hidden] {
        &self.hidden
    }

    /// Where missing data may be: the first directory that exists and cannot be read.
    pub fn out_of_sight(&self) -> Option<&Hidden> {
        self.hidden.iter().find(|hidden| hidden.may_hold())
    }

    /// Roots that could not be used, and what the scan skipped.
    pub fn notes(&self) -> Vec<String> {
        let hidden = self.hidden.iter().map(Hidden::note);
        let notes = hidden.chain(self.catalog.notes().iter().cloned());
        notes.chain(self.asked.iter().cloned()).collect()
    }

    /// The requested commit: the newest, or that of the step.
    pub fn pick(&self, which: &Which) -> std::result::Result<&Commit, Failure> {
        which.check()?;
        let wanted = |commit: &&Commit| {
            which.step().is_none_or(|step| commit.record.step == step)
                && which.level.is_none_or(|level| commit.record.level == level)
        };
        if let Some(commit) = self.catalog.commits().iter().find(wanted) {
            return Ok(commit);
        }
        // Breaks if: it counts as none; nothing would be reported about a record that nobody may
        // read.
        if let Some((_, failure)) =
            self.unread_record(|step| which.step().is_none_or(|s| s == step))
        {
            return Err(failure);
        }
        let job = self.name.as_str();
        if let (Some(step), Some(fenced)) =
            (which.step(), self.catalog.fenced().iter().find(wanted))
        {
            return Err(Error::fenced(format!(
                "step {step} of job {job} was written by epoch {}, which a newer run has superseded",
                fenced.record.epoch
            ))
            .next("use a step that `orcheck ls` calls restartable")
            .into());
        }
        // Breaks if: a step is reported as absent although its record exists.
        let mut unread = self.catalog.unread().iter();
        if let Some(one) = unread.find(|one| Some(one.step) == which.step())
            && let Err(error) = checkpoint_of(&self.catalog, one.step)
        {
            let error = Error::new(one.why.kind(), error.message());
            return Err(error.at(format!("job {job}")).into());
        }
        if self.catalog.commits().is_empty() {
            if let Some(refused) = self.catalog.refused() {
                let place = format!("job {} has no authentic checkpoint", self.name.as_str());
                return Err(refused.clone().at(place).into());
            }
            return Err(self.nothing());
        }
        let mut found: Vec<String> = Vec::new();
        for commit in self.catalog.commits() {
            let text = format!("{} ({})", commit.record.step, commit.record.level);
            if !found.contains(&text) {
                found.push(text);
            }
        }
        let asked = match (which.step(), which.level) {
            (Some(step), Some(level)) => format!("step {step} at level {level}"),
            (Some(step), None) => format!("step {step}"),
            (None, Some(level)) => format!("a step at level {level}"),
            (None, None) => "a step".into(),
        };
        Err(Error::not_found(format!(
            "job {job} has not committed {asked}; committed: {}",
            found.join(", ")
        ))
        .into())
    }

    /// The failure of a job without any commit; names the obstacle, if there is one.
    fn nothing(&self) -> Failure {
        let job = self.name.as_str();
        let problems = self.catalog.problems();
        let said = problems
            .first()
            .map(|problem| format!(" ({})", problem))
            .unwrap_or_default();
        let error = Error::not_found(format!("job {job} has no committed checkpoint{said}"));
        if problems
            .iter()
            .any(|problem| problem.kind() == ErrorKind::Unsupported)
        {
            return Failure::with(
                exit::INCOMPATIBLE,
                error.next("use a newer version of Orcheck"),
            );
        }
        if problems
            .iter()
            .any(|problem| problem.kind() == ErrorKind::Corrupt)
        {
            return Failure::with(
                exit::CORRUPT,
                error.next("give all directories of the job; another may hold a good copy"),
            );
        }
        if let Some(hidden) = self.out_of_sight() {
            let error = Error::unavailable(format!(
                "job {job} has no committed checkpoint in the directories that can be read; {}",
                hidden.error.what()
            ));
            return Failure::with(exit::UNREACHABLE, hidden.advise(error));
        }
        Failure::with(
            exit::NOTHING,
            error.next("give all directories of the job, or start it from nothing"),
        )
    }

    /// The path of a place.
    pub fn place_path(&self, place: usize) -> String {
        self.catalog.places()[place].path().display().to_string()
    }

    /// Whether a place is of the kind that holds this commit's records. Containers of different
    /// levels have the same names, each in the directories of its level.
    fn belongs(&self, commit: &Commit, place: usize) -> bool {
        let per_node = |place: usize| self.place_kinds[place] != PLACED;
        commit
            .copies
            .iter()
            .any(|&copy| per_node(copy) == per_node(place))
    }

    /// The places in which a commit's containers are looked for.
    pub fn places_of(&self, commit: &Commit) -> Vec<Arc<dyn Dir>> {
        let places = self.catalog.places().iter().enumerate();
        places
            .filter(|(place, _)| self.belongs(commit, *place))
            .map(|(_, dir)| dir.clone())
            .collect()
    }

    /// The same, and what can be computed from parity.
    pub fn places_to_read(&self, commit: &Commit) -> Vec<Arc<dyn Dir>> {
        let mut places = self.places_of(commit);
        let computed =
            (!commit.record.groups.is_empty()).then(|| Rebuilt::of(&places, Some(&commit.record)));
        places.extend(computed.flatten());
        places
    }

    /// Place and length of the copies of a file that may belong to a commit.
    fn copies_for<'a>(
        &'a self,
        commit: &'a Commit,
        name: &str,
    ) -> impl Iterator<Item = (usize, u64)> + 'a {
        let copies = self.copies.get(name).into_iter().flatten().copied();
        copies.filter(|(place, _)| self.belongs(commit, *place))
    }

    /// The first place that holds a file of this commit.
    pub fn find_file(&self, commit: &Commit, name: &str) -> Option<usize> {
        self.copies_for(commit, name).next().map(|(place, _)| place)
    }

    /// The places that hold a file of this commit.
    pub fn places_with(&self, commit: &Commit, name: &str) -> Vec<usize> {
        self.copies_for(commit, name)
            .map(|(place, _)| place)
            .collect()
    }

    /// The newest commit that is not newer than this one and is complete here, as far as names and
    /// lengths tell.
    pub fn older_whole(&self, than: &Commit) -> Option<&CommitRecord> {
        let key = |commit: &Commit| (commit.record.step, commit.record.epoch);
        let commits = self.catalog.commits().iter();
        let mut others = commits
            .filter(|commit| key(commit) <= key(than) && commit.record != than.record)
            .filter(|commit| self.missing(commit).is_none());
        others.next().map(|commit| &commit.record)
    }

    /// Where a container that is in none of the places was written, if that directory is none of
    /// them, or holds nothing of that time: nobody has looked there.
    pub fn elsewhere(&self, record: &CommitRecord, container: &ContainerRef) -> Option<String> {
        // Breaks if: a directory that holds nothing of that time counts as the one that held the
        // container; with an unmounted disk, the checkpoint would be called lost as soon as another
        // run had claimed the mount point.
        let of_then = |wanted: &str| {
            let kinds = self.place_kinds.iter().enumerate();
            let places =
                kinds.filter(|(place, kind)| *kind == wanted && self.remembers(*place, record));
            places
                .map(|(place, _)| self.place_path(place))
                .collect::<Vec<_>>()
        };
        if record.level != Level::Global {
            let name = |&node: &NodeId| record.nodes.get(node.index()).map(String::as_str);
            let homes = std::iter::once(&container.node).chain(&container.holders);
            let given = |home: &&str| !of_then(&format!("node {home}")).is_empty();
            let away = homes.filter_map(name).find(|home| !given(home))?;
            return Some(format!("the directory of node {away}"));
        }
        let placed = of_then(PLACED);
        let server = record.servers.get(container.server.index())?;
        let root = Path::new(shown(server));
        let inside = root.join(self.name.as_str());
        // Paths may have changed since then; if as many are given as there were, these are all of
        // them.
        // Breaks if: the number is not compared; data lost in a directory that was moved would
        // never be called lost.
        let all = placed.len() >= record.servers.len();
        let here = (placed.iter().map(Path::new)).any(|place| place == inside || place == root);
        (!all && !here).then(|| shown(server).to_owned())
    }

    /// Whether a place holds anything of the job that is as old as this checkpoint, or older.
    fn remembers(&self, place: usize, record: &CommitRecord) -> bool {
        self.catalog.files().iter().any(|(at, _, name)| {
            let epoch = match name {
                Some(FileName::Claim { epoch } | FileName::Resumed { epoch }) => Some(*epoch),
                Some(name) => name.checkpoint().map(|(_, epoch, _)| epoch),
                None => None,
            };
            *at == place && epoch.is_some_and(|epoch| epoch <= record.epoch.counter)
        })
    }

    /// Whether missing data of a commit may be in a directory that cannot be read, or was not
    /// given.
    pub fn is_out_of_reach(&self, commit: &Commit) -> bool {
        self.missing(commit).is_some()
            && (self.out_of_sight().is_some() || self.not_given(commit).is_some())
    }

    /// Where the first container is that is in none of the places and may be elsewhere.
    pub fn not_given(&self, commit: &Commit) -> Option<String> {
        let record = &commit.record;
        let mut missing = (record.containers.iter())
            .filter(|container| self.find_file(commit, &container.file).is_none());
        missing.find_map(|container| self.elsewhere(record, container))
    }

    /// Why a commit cannot be restored from these places, as far as names and lengths tell; `None`
    /// if it can.
    pub fn missing(&self, commit: &Commit) -> Option<String> {
        let computed = (!commit.record.groups.is_empty())
            .then(|| Rebuilt::of(&self.places_of(commit), Some(&commit.record)));
        let computed = computed.flatten();
        let is_computed = |file: &str| computed.as_ref().is_some_and(|dir| dir.open(file).is_ok());
        let stored = |container: &ContainerRef| {
            let mut copies = self.copies_for(commit, &container.file);
            copies.any(|(_, len_bytes)| len_bytes == container.len_bytes)
        };
        let needed = (commit.record.containers.iter())
            .filter(|container| stored(container) || !is_computed(&container.file));
        let mut missing = needed.filter_map(|container| {
            let mut copies = self.copies_for(commit, &container.file).peekable();
            let Some((_, found)) = copies.peek().copied() else {
                let homes = homes(&commit.record, container);
                return Some(match self.out_of_sight() {
                    Some(hidden) => format!(
                        "container {} ({homes}) may be in {}, which cannot be read: {}",
                        container.file,
                        hidden.path,
                        hidden.state()
                    ),
                    None => match self.elsewhere(&commit.record, container) {
                        Some(home) => format!(
                            "container {} is not here ({homes}): it was written to {home}, which was not given, is not there, or holds nothing from then (is it mounted? if its disk was replaced, this is lost)",
                            container.file
                        ),
                        None => format!("container {} is not here ({homes})", container.file),
                    },
                });
            };
            let whole = copies.any(|(_, len_bytes)| len_bytes == container.len_bytes);
            (!whole).then(|| {
                format!(
                    "container {}: expected {} bytes, found {found}",
                    container.file, container.len_bytes
                )
            })
        });
        let first = missing.next()?;
        match missing.count() {
            0 => Some(first),
            more => Some(format!("{first}, and {more} more")),
        }
    }
}

/// A path split into an open parent directory and a last component.
pub fn parent_and_name(path: &Path) -> Result<(Arc<dyn Dir>, String)> {
    let name = path
        .file_name()
        .and_then(|name| name.to_str())
        .ok_or_else(|| {
            Error::invalid(format!("{} does not end in a file name", path.display()))
                .next("name the file to write")
        })?;
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    Ok((open_dir(parent, Failpoints::none())?, name.to_string()))
}
