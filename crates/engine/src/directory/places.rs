//! Opens the directories of one job: where level `node` (or `peers`) and level `global` keep their
//! files.
//!
//! The directories are `<node root>/<job>/<node name>/` and `<placed root>/<job>/`. All are opened
//! once, beneath their roots, without following symbolic links.
//!
//! Invariants:
//! 1. A root is never created: a mistyped path is an error, not a new directory.
//! 2. A placed root that is missing or not writable is left out, with a note, only if another
//!    directory remembers the job (it holds a claim). If it is readable, it is still read. All
//!    placed roots are left out only if the node's own directory remembers the job.
//! 3. While some roots are inaccessible, an error about a checkpoint that cannot be restored names
//!    them and asks to bring them back.
//!
//! Not here: what the files mean (`catalog.rs`), which server a node uses (`plan::placement`).

use crate::encoding::Trust;
use orcheck_format::disk::FileName;
use orcheck_format::sabotage::{Switch, off};
use orcheck_format::{Detail, Error, ErrorKind, JobName, Level, Result, TargetId};
use orcheck_io::disk::Dir;
use orcheck_io::failpoints::Failpoints;
use orcheck_staging::client::shown;
use orcheck_staging::{open_dir, open_shared};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The path of all directories of other nodes (it leads nowhere on this machine).
pub(crate) const OTHER_NODES: &str = "other nodes";

/// Directory handles of one job, as one node sees them.
#[derive(Clone)]
pub struct Places {
    /// The job.
    pub job: JobName,
    /// Level `node`, or `peers`: this node's own directory.
    pub node: Option<Arc<dyn Dir>>,
    /// Number of node losses that its checkpoints survive thanks to replicas on other nodes; 0
    /// means level `node`.
    pub losses: u8,
    /// Level `peers`: the files that other nodes hold. Each file appears once in each of these
    /// directories, as far as there are copies.
    pub others: Vec<Arc<dyn Dir>>,
    /// Level `global`: the placed directories by server index; `None` for one that accepts no
    /// files.
    pub servers: Vec<Option<Arc<dyn Dir>>>,
    /// The placed directories that accept no files but are readable: the newest checkpoint may be
    /// there.
    pub read_only: Vec<Arc<dyn Dir>>,
    /// Paths as configured, by server index.
    pub server_roots: Vec<PathBuf>,
    /// Placed directories of a known job that are neither writable nor readable: they may hold what
    /// is missing elsewhere.
    pub away: Vec<Away>,
    /// What was skipped and why.
    pub notes: Vec<String>,
    /// Which records are believed.
    pub trust: Arc<Trust>,
}

/// A placed directory that cannot be written, or cannot even be read.
#[derive(Debug, Clone)]
pub struct Away {
    /// The path as configured.
    pub root: String,
    /// Why.
    pub why: Error,
}

/// An error, and the directory that caused it, if one did.
#[derive(Debug, Clone, PartialEq)]
pub struct TargetFailure {
    /// Its number among the directories concerned.
    pub target: Option<TargetId>,
    /// Why.
    pub error: Error,
}

impl TargetFailure {
    /// A failure of this directory.
    #[must_use]
    pub fn of(target: TargetId, error: Error) -> Self {
        Self {
            target: Some(target),
            error,
        }
    }

    /// The same, without a directory if the level has no placed ones.
    #[must_use]
    pub(crate) fn where_placed(mut self, server: Option<TargetId>) -> Self {
        self.target = self.target.filter(|_| server.is_some());
        self
    }
}

/// A failure that no directory caused.
impl From<Error> for TargetFailure {
    fn from(error: Error) -> Self {
        Self {
            target: None,
            error,
        }
    }
}

impl From<TargetFailure> for Error {
    fn from(failure: TargetFailure) -> Self {
        failure.error
    }
}

impl Away {
    fn error(&self) -> Error {
        let place = format!("level global, directory {}", self.root);
        self.why.clone().at(place)
    }
}

impl Places {
    /// Opens the directories of `job`; with `create`, makes them below the roots.
    ///
    /// # Errors
    /// Invalid if a root is given twice; NotFound or Unavailable if a root is missing or not
    /// writable, unless another root knows the job.
    pub fn open(
        job: &JobName,
        node_name: &str,
        node_root: Option<&PathBuf>,
        server_roots: &[PathBuf],
        failpoints: &Failpoints,
        create: bool,
    ) -> Result<Self> {
        Self::open_shared(
            job,
            node_name,
            (node_root, server_roots),
            failpoints,
            (create, None),
        )
    }

    /// The same, for directories shared with the members of a group: new ones are made that way,
    /// and existing ones must be.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_shared(
        job: &JobName,
        node_name: &str,
        (node_root, server_roots): (Option<&PathBuf>, &[PathBuf]),
        failpoints: &Failpoints,
        create: (bool, Option<u32>),
    ) -> Result<Self> {
        require_different(server_roots.iter().chain(node_root))?;
        let node = node_root.map(|root| {
            let beneath = open_beneath(root, &[job.as_str(), node_name], failpoints, create);
            beneath.map_err(|error| error.at(format!("level node, directory {}", root.display())))
        });
        let node = node.transpose()?;
        let Global {
            servers,
            read_only,
            away,
            missing,
            notes,
        } = Global::open(job, server_roots, failpoints, create);
        let known = servers
            .iter()
            .flatten()
            .any(|dir| holds_claim(dir.as_ref()));
        let known_to_readers = read_only.iter().any(|dir| holds_claim(dir.as_ref()));
        // The node's own directory remembers the job, so the job is not new; it lacks one of its
        // levels.
        let none_there = servers.iter().all(Option::is_none) && read_only.is_empty();
        let known_to_node =
            none_there && node.as_ref().is_some_and(|dir| holds_claim(dir.as_ref()));
        let known = known || known_to_node && !off(Switch::NodeRemembers);
        match all_of(&missing) {
            Some(error) if !known && known_to_readers => Err(error),
            Some(error) if !known && !off(Switch::AllDirectories) => {
                let next = how_to_complete(&missing);
                Err(error.next(next).at(format!(
                    "no directory that can be read knows job '{}', and a new job needs all its directories",
                    job.as_str()
                )))
            }
            _ => Ok(Self {
                job: job.clone(),
                node,
                losses: 0,
                others: Vec::new(),
                servers,
                read_only,
                server_roots: server_roots.to_vec(),
                away,
                notes,
                trust: Trust::nobody(),
            }),
        }
    }

    /// Whether level `global` is configured and none of its directories is even readable.
    #[must_use]
    pub fn has_lost_global(&self) -> bool {
        !self.server_roots.is_empty()
            && self.servers.iter().all(Option::is_none)
            && self.read_only.is_empty()
    }

    /// Completes the error of a checkpoint that cannot be restored. While a configured directory is
    /// inaccessible, it is the most likely cause: the error becomes Unavailable, names the
    /// directory, and asks to bring it back.
    #[must_use]
    pub fn blame_away(&self, error: Error) -> Error {
        let [first, more @ ..] = &self.away[..] else {
            return error;
        };
        // Breaks if: the error names only the missing containers; the user would be advised to give
        // up good checkpoints.
        if off(Switch::AwayNamed) {
            return error;
        }
        let more: String = more
            .iter()
            .map(|other| format!(", nor can {}", other.root))
            .collect();
        let text = format!(
            "directory {} of level global cannot be read ({}){more}; without it: {}",
            first.root,
            first.why.what(),
            error.what()
        );
        Error::unavailable(text).next(how_to_bring_back(&self.away))
    }

    /// As [`Self::blame_away`], for the error of a search; an error that bringing a directory back
    /// would not change stays as it is.
    #[must_use]
    pub fn blame_for(&self, error: Error) -> Error {
        let may_be_there = matches!(
            error.kind(),
            ErrorKind::Corrupt | ErrorKind::NotFound | ErrorKind::Unavailable
        );
        match may_be_there && !error.is(Detail::Unauthenticated) {
            true => self.blame_away(error),
            false => error,
        }
    }

    /// Asks each directory of level `global` that could be read at first whether it still can.
    ///
    /// # Errors
    /// The error of one that cannot.
    pub fn answer(&self) -> Result<()> {
        let mut dirs = self.to_read(Level::Global).into_iter();
        dirs.try_for_each(|dir| {
            dir.check_path()?;
            dir.free_bytes().map(drop)
        })
    }

    /// Leaves level `global` out.
    pub fn without_global(&mut self) {
        self.servers.clear();
        self.server_roots.clear();
    }

    /// Directories that accept the files of `level`.
    #[must_use]
    pub fn of_level(&self, level: Level) -> Vec<Arc<dyn Dir>> {
        match level {
            Level::Global => self.servers.iter().flatten().cloned().collect(),
            _ => self.node.iter().cloned().collect(),
        }
    }

    /// Readable directories of `level`: those of [`Self::of_level`], followed by those that can
    /// only be read.
    #[must_use]
    pub fn to_read(&self, level: Level) -> Vec<Arc<dyn Dir>> {
        let mut dirs = self.of_level(level);
        match level {
            Level::Global => dirs.extend(self.read_only.iter().cloned()),
            // None if there are no replicas.
            _ => dirs.extend(self.others.iter().cloned()),
        }
        dirs
    }

    /// All directories that this node can read: the nearest first, writable ones before read-only
    /// ones.
    #[must_use]
    pub fn all(&self) -> Vec<Arc<dyn Dir>> {
        let mut dirs = self.to_read(self.node_level());
        dirs.extend(self.to_read(Level::Global));
        dirs
    }

    /// The level of the files in the node's own directory.
    #[must_use]
    pub fn node_level(&self) -> Level {
        match self.losses {
            0 => Level::Node,
            losses => Level::Peers(losses),
        }
    }

    /// Configured levels, weakest first.
    #[must_use]
    pub fn levels(&self) -> Vec<Level> {
        let mut levels = Vec::new();
        levels.extend(self.node.as_ref().map(|_| self.node_level()));
        if !self.server_roots.is_empty() {
            levels.push(Level::Global);
        }
        levels
    }
}

/// Their errors as one error, with the next step of the first.
fn all_of(away: &[Away]) -> Option<Error> {
    let (first, more) = away.split_first()?;
    if more.is_empty() {
        return Some(first.error());
    }
    let all: Vec<String> = away.iter().map(|one| one.error().what()).collect();
    let error = Error::new(first.why.kind(), all.join("; "));
    Some(match first.why.next_step() {
        Some(next) => error.next(next),
        None => error,
    })
}

fn roots_of(away: &[Away]) -> String {
    let roots: Vec<&str> = away.iter().map(|one| one.root.as_str()).collect();
    roots.join(" and ")
}

/// What to do about inaccessible directories of a job that has checkpoints.
fn how_to_bring_back(away: &[Away]) -> String {
    // A directory that is made again would be empty.
    if let [one] = away
        && one.why.kind() != ErrorKind::NotFound
        && let Some(next) = one.why.next_step()
    {
        return format!("{next}; then start the job again");
    }
    format!("bring {} back, then start the job again", roots_of(away))
}

/// What to do about directories that a new job lacks.
fn how_to_complete(away: &[Away]) -> String {
    if let [one] = away
        && let Some(next) = one.why.next_step()
    {
        return next.to_owned();
    }
    let roots = roots_of(away);
    let all = |kind| away.iter().all(|one| one.why.kind() == kind);
    if all(ErrorKind::NotFound) {
        return format!("create {roots}, or correct the paths");
    }
    if all(ErrorKind::NoSpace) {
        return format!("free space in {roots}, or configure other directories");
    }
    // Breaks if: what each of them asks for, such as a key, is not said; they would be left out.
    if let [first, more @ ..] = away
        && let Some(next) = first.why.next_step()
        && more.iter().all(|one| one.why.next_step().is_some())
    {
        return format!("{next}; the same for {}", roots_of(more));
    }
    let them = if away.len() == 1 { "it" } else { "them" };
    format!("make {roots} reachable and writable, or leave {them} out of `global`")
}

/// The name of a root in messages.
fn name_of(root: &Path) -> String {
    shown(&root.to_string_lossy()).to_owned()
}

fn open_beneath(
    root: &Path,
    names: &[&str],
    failpoints: &Failpoints,
    (create, group): (bool, Option<u32>),
) -> Result<Arc<dyn Dir>> {
    let mut dir = open_shared(root, group, failpoints.clone())?;
    if dir.read_only()? {
        // Breaks if: this check is left out; a user without permission would be told to mount the
        // directory again.
        dir.permits_writing()?;
        return Err(
            Error::unavailable(format!("{} is read-only", name_of(root)))
                .next("mount it writable, or configure another directory"),
        );
    }
    for name in names {
        let child = dir.child(name, create)?;
        if create {
            // The new entry must survive a power cut before anything below it can.
            dir.sync()?;
        }
        dir = child;
    }
    Ok(dir)
}

/// Opens a directory that accepts no new files, to read what it holds.
fn open_to_read(root: &Path, job: &JobName, failpoints: &Failpoints) -> Result<Arc<dyn Dir>> {
    let dir = open_dir(root, failpoints.clone())?.child(job.as_str(), false)?;
    dir.list().map(|_| dir)
}

fn holds_claim(dir: &dyn Dir) -> bool {
    match dir.list() {
        Ok(entries) => entries
            .iter()
            .any(|entry| matches!(FileName::parse(&entry.name), Some(FileName::Claim { .. }))),
        Err(_) => false,
    }
}

/// Whether an error means that a directory, not a file's content, is the problem.
#[must_use]
pub fn is_directory_loss(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::NoSpace | ErrorKind::Unavailable | ErrorKind::NotFound
    )
}

/// # Errors
/// Invalid if a directory is given twice.
fn require_different<'a>(roots: impl Iterator<Item = &'a PathBuf>) -> Result<()> {
    let mut seen: Vec<&PathBuf> = Vec::new();
    for root in roots {
        if seen.contains(&root) {
            return Err(
                Error::invalid(format!("directory {} is configured twice", name_of(root)))
                    .next("give every level and every target its own directory"),
            );
        }
        seen.push(root);
    }
    Ok(())
}

/// The directories of level `global`, by what they are good for.
#[derive(Default)]
struct Global {
    /// The writable ones, by number.
    servers: Vec<Option<Arc<dyn Dir>>>,
    /// Those that can only be read.
    read_only: Vec<Arc<dyn Dir>>,
    /// Those that cannot even be read.
    away: Vec<Away>,
    /// All that cannot be written.
    missing: Vec<Away>,
    notes: Vec<String>,
}

impl Global {
    fn open(
        job: &JobName,
        roots: &[PathBuf],
        failpoints: &Failpoints,
        create: (bool, Option<u32>),
    ) -> Self {
        let mut all = Self::default();
        let mut skipped = Vec::new();
        for root in roots {
            let why = match open_beneath(root, &[job.as_str()], failpoints, create) {
                Ok(dir) => {
                    all.servers.push(Some(dir));
                    continue;
                }
                Err(error) => error,
            };
            let one = Away {
                root: name_of(root),
                why,
            };
            match open_to_read(root, job, failpoints) {
                Ok(readable) => {
                    let note = format!("read, but not written: {}", one.error().message());
                    all.notes.push(note);
                    all.read_only.push(readable);
                }
                Err(unread) => {
                    // A readable directory that does not know the job holds nothing of it.
                    let is_there = || open_dir(root, failpoints.clone())?.list();
                    if unread.kind() != ErrorKind::NotFound || is_there().is_err() {
                        all.away.push(one.clone());
                    }
                    skipped.push(one.clone());
                }
            }
            all.servers.push(None);
            all.missing.push(one);
        }
        // Breaks if: each has a note of its own; a program reads only the last of several next
        // steps.
        if let Some(error) = all_of(&skipped) {
            let note = error.next(how_to_bring_back(&skipped));
            all.notes.push(format!("skipped: {}", note.message()));
        }
        all
    }
}
