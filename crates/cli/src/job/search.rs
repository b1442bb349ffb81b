//! Finds the directories of jobs.
//!
//! How: below a placed directory ROOT, a job's files are in ROOT/JOB; below a directory of level
//! `node`, in ROOT/JOB/NODE for every node that wrote there. A directory given without a flag may
//! be any of these, or one above them, even if it was moved or renamed. Its job is read from a
//! believed claim or commit record in it, and its level from the names.
//!
//! Invariants:
//! 1. Nothing is created.
//! 2. An unreadable directory is kept with the reason; absent, not permitted, not opened by the key
//!    and unreachable are distinguished. It counts for the job that its place names, or for every
//!    job if the place names none.
//! 3. The job's name may be omitted only if there is exactly one.
//! 4. No symbolic link to the directory of a job or node is followed; a link in the place of a
//!    requested directory is reported. A root may be a link. Other links in it are ignored as long
//!    as there is a job.
//! 5. At most [`LISTED_MOST`] directories are listed below one that is given without a flag.
//!
//! Not here: what the directories hold (`job.rs`).

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use orcheck_engine::directory::{Catalog, job_named_by};
use orcheck_engine::encoding::Trust;
use orcheck_format::disk::FileName;
use orcheck_format::sabotage::{Switch, off};
use orcheck_format::wire::identity_of;
use orcheck_format::{Detail, Error, ErrorKind, JobName, Level};
use orcheck_io::disk::{Dir, Entry, linked};
use orcheck_io::errno::is_denied;
use orcheck_io::failpoints::Failpoints;
use orcheck_staging::client::{is_served, shown};
use orcheck_staging::{open_dir, open_unlinked};

use crate::args::Where;
use crate::exit;
use crate::job::{Job, PLACED, roots};
use crate::output::Failure;

/// Maximum number of directories that are listed below one.
const LISTED_MOST: usize = 10_000;
/// Number of levels below a directory that may be a root of level `node`: ROOT/JOB/NODE.
const DEPTH: usize = 2;

/// A directory of a job.
pub struct JobDir {
    /// The job.
    pub job: JobName,
    /// The directory.
    pub dir: Arc<dyn Dir>,
    /// `global`, or `node NAME`.
    pub kind: String,
}

/// A directory that cannot be read.
#[derive(Debug, Clone)]
pub struct Hidden {
    /// Its path.
    pub path: String,
    /// Why.
    pub error: Error,
    whose: Whose,
}

/// The job of an unreadable directory.
#[derive(Debug, Clone)]
enum Whose {
    /// Of any.
    Any,
    /// This one, according to its place.
    Job(String),
    /// Its path, as long as the kind of the directory above it is unknown.
    Below(PathBuf),
}

impl Hidden {
    fn new(path: impl std::fmt::Display, error: Error, whose: Whose) -> Self {
        let path = path.to_string();
        let named = error.message().contains(shown(&path));
        let error = if named { error } else { error.at(&path) };
        Hidden { path, error, whose }
    }

    /// Whether a part of this job may be there.
    fn may_be_of(&self, job: &JobName) -> bool {
        match &self.whose {
            // Breaks if: it counts for every job; on a shared disk, another user's directory would
            // stop `rm` and `prune`.
            Whose::Job(name) => name == job.as_str(),
            Whose::Any | Whose::Below(_) => true,
        }
    }

    /// Whether it is in the place of a node of a job, or of the requested job.
    fn is_missed(&self, only: Option<&str>) -> bool {
        let Whose::Job(job) = &self.whose else {
            return false;
        };
        let mut names = Path::new(&self.path)
            .ancestors()
            .filter_map(Path::file_name);
        let mut is_job = || names.next().is_some_and(|name| name == job.as_str());
        let (own, above) = (is_job(), is_job());
        only == Some(job) || !own || above
    }

    /// Whether its path is that of a directory of this job, or of one of its nodes.
    fn is_named_after(&self, job: &JobName) -> bool {
        let path = Path::new(&self.path);
        let mut names = path.ancestors().take(2).filter_map(Path::file_name);
        names.any(|name| name == job.as_str())
    }

    /// `absent`, `permission denied`, `wrong key`, `not followed` or `unreachable`.
    pub fn state(&self) -> &'static str {
        match self.error.kind() {
            ErrorKind::NotFound => "absent",
            _ if is_denied(&self.error) => "permission denied",
            _ if self.error.is(Detail::UnknownKey) => "wrong key",
            _ if self.error.is(Detail::Link) => "not followed",
            _ => "unreachable",
        }
    }

    /// Whether what was asked for may be there.
    pub fn may_hold(&self) -> bool {
        self.error.kind() != ErrorKind::NotFound
    }

    /// What is wrong with it, and what to do about it.
    pub fn note(&self) -> String {
        self.advise(self.error.clone()).to_string()
    }

    /// An error about this directory, with what to do about it.
    pub fn advise(&self, error: Error) -> Error {
        // Whoever found the error knows best; but if the directory is made again in its place, it
        // would be empty.
        if let (Some(next), true) = (self.error.next_step(), self.may_hold()) {
            return error.next(next);
        }
        match self.state() {
            "permission denied" if is_served(Path::new(&self.path)) => error.next(format!(
                "ask the operator of {} to give the server's user access to its directory",
                self.path
            )),
            "permission denied" => error.next(format!(
                "run it as the user who owns {}, or as root",
                self.path
            )),
            "absent" => error.next(format!(
                "bring {} back (mount it, or move it back), or correct the path",
                self.path
            )),
            _ => error.next(format!(
                "bring back the server or disk of {}, then try again",
                self.path
            )),
        }
    }

    fn failure(&self) -> Failure {
        let error = self.advise(self.error.clone());
        match self.error.kind() {
            ErrorKind::Unavailable => Failure::with(exit::UNREACHABLE, error),
            ErrorKind::NotFound => self.error.clone().into(),
            _ => self.error.clone().into(),
        }
    }
}

/// The failure of a command that needs this directory and cannot open it.
pub fn cannot_open(path: &Path, error: Error) -> Failure {
    Hidden::new(path.display(), error, Whose::Any).failure()
}

/// The result of a search.
pub struct Search {
    found: Vec<JobDir>,
    hidden: Vec<Hidden>,
    /// The paths that were searched.
    paths: Vec<String>,
    /// Roots that were given, and whether as those of nodes.
    roots: Vec<(PathBuf, bool)>,
    /// Whether to keep directories that may hold the job by name although they contain nothing of
    /// Orcheck's.
    empty: Vec<JobDir>,
    /// Whether jobs are opened to list what there is, not to use it.
    lists: bool,
}

impl Search {
    /// Searches what the flags, or the environment, and the arguments name.
    pub fn of(place: &Where, trust: &Trust) -> Result<Search, Failure> {
        let (placed, per_node) = match place.anywhere.is_empty() {
            true => roots(&place.dirs, &place.node_dirs)?,
            false => (place.dirs.clone(), place.node_dirs.clone()),
        };
        if placed.is_empty() && per_node.is_empty() && place.anywhere.is_empty() {
            return Err(Error::invalid("no directory given")
                .next(
                    "give --dir ROOT or --node-dir ROOT, or set ORCHECK_GLOBAL or ORCHECK_NODE_DIR",
                )
                .into());
        }
        let mut search = Search {
            found: Vec::new(),
            hidden: Vec::new(),
            paths: Vec::new(),
            roots: Vec::new(),
            empty: Vec::new(),
            lists: false,
        };
        let only = place.job.as_deref();
        let placed = placed.into_iter().map(|path| (path, false));
        search.roots = placed
            .chain(per_node.into_iter().map(|path| (path, true)))
            .collect();
        for (path, per_node) in &search.roots.clone() {
            let per_node = *per_node;
            if let Some((dir, entries)) = search.listed(path, open_dir(path, Failpoints::none())) {
                search.below_root(dir.as_ref(), &entries, per_node, only);
            }
        }
        for path in &place.anywhere {
            let opened = open_unlinked(path, Failpoints::none());
            // A root may be a link; the directory of a job or node may not.
            let link = opened
                .as_ref()
                .err()
                .filter(|error| error.is(Detail::Link) && !off(Switch::LinkedJob))
                .cloned();
            let opened = match opened {
                Err(error) if error.is(Detail::Link) => open_dir(path, Failpoints::none()),
                opened => opened,
            };
            if let Some((dir, entries)) = search.listed(path, opened) {
                search.anywhere((dir, entries), link, trust)?;
            } else if let Some(hidden) = search.hidden.last()
                && hidden.error.kind() == ErrorKind::NotFound
            {
                // Breaks if: it is left out; with a mistyped step, another checkpoint would be
                // used.
                return Err(Error::not_found(format!(
                    "'{}' is neither a step nor an existing directory",
                    path.display()
                ))
                .next("correct it; `orcheck ls` lists the steps")
                .into());
            }
        }
        if let (true, Some(hidden)) = (search.paths.is_empty(), search.hidden.first()) {
            return Err(hidden.failure());
        }
        search.attribute(only);
        Ok(search)
    }

    /// Attributes unreadable directories to jobs by what was found beside them: below a root, each
    /// belongs to the job that it is named after; below a job's directory, all are nodes of that
    /// job.
    fn attribute(&mut self, only: Option<&str>) {
        let mut roots: BTreeSet<&Path> = BTreeSet::new();
        let mut jobs: BTreeMap<&Path, &JobName> = BTreeMap::new();
        for JobDir { job, dir, kind } in &self.found {
            let mut of_job = dir.path();
            if kind != PLACED {
                let Some(parent) = of_job.parent() else {
                    continue;
                };
                jobs.insert(parent, job);
                of_job = parent;
            }
            // A renamed directory says nothing about those beside it.
            let is_named = of_job.file_name().is_some_and(|name| name == job.as_str());
            roots.extend(of_job.parent().filter(|_| is_named));
        }
        for hidden in &mut self.hidden {
            let Whose::Below(path) = &hidden.whose else {
                continue;
            };
            let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
                continue;
            };
            if let Some(job) = jobs.get(parent) {
                hidden.whose = Whose::Job(job.as_str().to_owned());
            } else if roots.contains(parent) {
                hidden.whose = Whose::Job(name.to_string_lossy().into_owned());
            }
        }
        // Breaks if: all of them are reported; each `ls` would warn about `latest -> cavity`.
        if !self.found.is_empty() {
            self.hidden
                .retain(|hidden| !hidden.error.is(Detail::Link) || hidden.is_missed(only));
        }
    }

    /// Lists a given directory; an unreadable one is hidden.
    fn listed(
        &mut self,
        path: &Path,
        opened: orcheck_format::Result<Arc<dyn Dir>>,
    ) -> Option<(Arc<dyn Dir>, Vec<Entry>)> {
        match opened.and_then(|dir| Ok((dir.list()?, dir))) {
            Ok((entries, dir)) => {
                self.paths.push(path.display().to_string());
                Some((dir, entries))
            }
            Err(error) => {
                self.hidden
                    .push(Hidden::new(path.display(), error, Whose::Any));
                None
            }
        }
    }

    /// A child and its contents; an unreadable one is hidden, and belongs to this job if one is
    /// named.
    fn child(
        &mut self,
        dir: &dyn Dir,
        name: &str,
        job: Option<&JobName>,
    ) -> Option<(Arc<dyn Dir>, Vec<Entry>)> {
        let opened = dir.child(name, false);
        match opened.and_then(|child| Ok((child.list()?, child))) {
            Ok((entries, child)) => Some((child, entries)),
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => {
                let path = dir.path().join(name);
                let whose = match job {
                    Some(job) => Whose::Job(job.as_str().to_owned()),
                    None => Whose::Below(path.clone()),
                };
                self.hidden.push(Hidden::new(path.display(), error, whose));
                None
            }
        }
    }

    /// Reports links to directories, which are not followed.
    fn links(&mut self, dir: &dyn Dir, entries: &[Entry], whose: &dyn Fn(&str) -> Option<Whose>) {
        let others = entries.iter().filter(|entry| !entry.is_dir);
        // Breaks if: they are counted before they are looked up by name; among many files, the
        // job's link would be missed.
        let asked = others.filter_map(|entry| Some((&entry.name, whose(&entry.name)?)));
        for (name, whose) in asked.take(LISTED_MOST) {
            let path = dir.path().join(name);
            let error = match dir.link(name) {
                Ok(None) => continue,
                Ok(Some(target)) => linked(&path, &target),
                Err(error) => error,
            };
            self.hidden.push(Hidden::new(path.display(), error, whose));
        }
    }

    fn below_root(&mut self, dir: &dyn Dir, entries: &[Entry], per_node: bool, only: Option<&str>) {
        // Breaks if: a link in the place of a job counts as nothing; its checkpoints would be
        // called gone.
        self.links(dir, entries, &|name| {
            let is_wanted = only.is_none_or(|only| only == name);
            let job = JobName::new(name).ok().filter(|_| is_wanted)?;
            Some(Whose::Job(job.as_str().to_owned()))
        });
        for entry in entries.iter().filter(|entry| entry.is_dir) {
            let Ok(job) = JobName::new(&entry.name) else {
                continue;
            };
            if only.is_some_and(|only| only != entry.name) {
                continue;
            }
            let Some((child, inside)) = self.child(dir, &entry.name, Some(&job)) else {
                continue;
            };
            if !per_node {
                self.keep(job, child, PLACED.to_owned(), &inside);
                continue;
            }
            self.links(child.as_ref(), &inside, &|_| {
                Some(Whose::Job(job.as_str().to_owned()))
            });
            for node in inside.iter().filter(|entry| entry.is_dir) {
                if let Some((dir, inside)) = self.child(child.as_ref(), &node.name, Some(&job)) {
                    self.keep(job.clone(), dir, format!("node {}", node.name), &inside);
                }
            }
        }
    }

    fn keep(&mut self, job: JobName, dir: Arc<dyn Dir>, kind: String, inside: &[Entry]) {
        let list = match holds_files(inside) {
            true => &mut self.found,
            false => &mut self.empty,
        };
        list.push(JobDir { job, dir, kind });
    }

    /// Searches a directory of any kind, and those below it. `link`: its path is a link, so it must
    /// be a root, or is refused.
    fn anywhere(
        &mut self,
        (dir, entries): (Arc<dyn Dir>, Vec<Entry>),
        link: Option<Error>,
        trust: &Trust,
    ) -> Result<(), Failure> {
        let mut open = vec![(dir, entries, 0)];
        let mut listed = 0;
        while let Some((dir, entries, depth)) = open.pop() {
            if holds_files(&entries) {
                let Some(found) = recognise(dir, &entries, trust) else {
                    continue;
                };
                // The number of levels from the job's directory.
                let above = usize::from(found.kind != PLACED);
                // Breaks if: it is followed; anybody who can write in the root would lead `rm` into
                // another job.
                if let Some(error) = link.clone().filter(|_| depth <= above) {
                    return Err(error.into());
                }
                self.found.push(match above > depth {
                    true => beneath_unlinked(found)?,
                    false => found,
                });
                continue;
            }
            if depth < DEPTH {
                self.links(dir.as_ref(), &entries, &|name| {
                    Some(Whose::Below(dir.path().join(name)))
                });
            }
            for entry in entries.iter().filter(|entry| entry.is_dir) {
                listed += 1;
                if depth == DEPTH || listed > LISTED_MOST {
                    break;
                }
                if let Some((child, inside)) = self.child(dir.as_ref(), &entry.name, None) {
                    open.push((child, inside, depth + 1));
                }
            }
        }
        Ok(())
    }

    /// The names of the jobs found, in order.
    pub fn names(&self) -> Vec<JobName> {
        let names = self.found.iter().map(|found| found.job.as_str());
        let names: BTreeSet<&str> = names.collect();
        names
            .into_iter()
            .filter_map(|name| JobName::new(name).ok())
            .collect()
    }

    /// Directories that cannot be read.
    pub fn hidden(&self) -> &[Hidden] {
        &self.hidden
    }

    /// Takes out one job.
    pub fn take(&mut self, name: &JobName, trust: &Trust) -> Result<Job, Failure> {
        let found = std::mem::take(&mut self.found);
        let (mut own, others): (Vec<JobDir>, Vec<JobDir>) =
            found.into_iter().partition(|found| found.job == *name);
        self.found = others;
        own.extend(self.empty.extract_if(.., |found| found.job == *name));
        let hidden = self.hidden.iter();
        let hidden = hidden.filter(|hidden| hidden.may_be_of(name)).cloned();
        let scan = match self.lists {
            true => Catalog::scan_to_list,
            false => Catalog::scan_trusting,
        };
        Job::of(name.clone(), own, hidden.collect(), |name, places| {
            scan(name, places, trust)
        })
    }

    /// Jobs are opened to list what there is: two runs that do not know of each other are no error.
    #[must_use]
    pub fn listing(mut self) -> Self {
        self.lists = true;
        self
    }

    /// The job of this name, or the only one.
    pub fn job(mut self, name: Option<&str>, trust: &Trust) -> Result<Job, Failure> {
        let name = match name {
            Some(name) => JobName::new(name)?,
            None => self.only()?,
        };
        let is = |found: &JobDir| found.job == name;
        if !self.found.iter().any(is) && !self.empty.iter().any(is) {
            return Err(self.none(
                &format!("job {} has no directory", name.as_str()),
                Some(&name),
                "check --job and the directories; omit --job to list the names there",
            ));
        }
        self.take(&name, trust)
    }

    fn only(&self) -> Result<JobName, Failure> {
        let names = self.names();
        match &names[..] {
            [name] => Ok(name.clone()),
            [] => Err(self.none(
                "no job found",
                None,
                "give the directory that the program uses, or a job's own directory without a flag",
            )),
            _ => {
                let names: Vec<&str> = names.iter().map(JobName::as_str).collect();
                Err(Error::invalid(format!(
                    "there are {} jobs: {}",
                    names.len(),
                    names.join(", ")
                ))
                .next("choose one with --job")
                .into())
            }
        }
    }

    /// How to give a root that holds jobs, but was given as one of the other kind.
    fn as_other_kind(&self, job: Option<&JobName>) -> Option<String> {
        let holds = |(path, per_node): &&(PathBuf, bool)| {
            let (dirs, node_dirs) = match per_node {
                true => (vec![path.clone()], Vec::new()),
                false => (Vec::new(), vec![path.clone()]),
            };
            let place = Where {
                dirs,
                node_dirs,
                job: None,
                anywhere: Vec::new(),
            };
            let names = Search::of(&place, &Trust::default()).map(|search| search.names());
            let is_it = |name: &JobName| job.is_none_or(|job| job == name);
            names.is_ok_and(|names| names.iter().any(is_it))
        };
        let (path, per_node) = self.roots.iter().find(holds)?;
        // Breaks if: it passes for one with directories of nodes; what its tenants have would be
        // called misplaced.
        if let Some(tenant) = tenant_of(path) {
            return Some(format!(
                "{} is the directory of a staging server: give that of one of its keys, such as {}",
                path.display(),
                path.join(tenant).display()
            ));
        }
        let path = path.display();
        Some(match per_node {
            true => format!("{path} is a directory of level global: give it with --dir"),
            false => format!("{path} holds directories of nodes: give it with --node-dir"),
        })
    }

    /// The failure that nothing was found; if something of this job cannot be read, that it may be
    /// there.
    fn none(&self, what: &str, job: Option<&JobName>, next: &str) -> Failure {
        let searched = self.paths.join(", ");
        let may_be = |hidden: &&Hidden| job.is_none_or(|job| hidden.may_be_of(job));
        let hidden = self.hidden.iter().filter(may_be);
        let hidden: Vec<&Hidden> = hidden.filter(|hidden| hidden.may_hold()).collect();
        // Breaks if: the first one is named; another job's directory would be blamed.
        let named = |hidden: &&&Hidden| job.is_some_and(|job| hidden.is_named_after(job));
        match hidden.iter().find(named).or(hidden.first()) {
            // It is there, and was not asked for: there is nothing to wait for.
            Some(hidden) if hidden.error.is(Detail::Link) => hidden.failure(),
            Some(hidden) => {
                let error = Error::unavailable(format!(
                    "{what} below {searched} that can be read; {}",
                    hidden.error.what()
                ));
                Failure::with(exit::UNREACHABLE, hidden.advise(error))
            }
            None => Error::not_found(format!("{what} below {searched}"))
                .next(self.as_other_kind(job).unwrap_or_else(|| next.to_owned()))
                .into(),
        }
    }
}

/// The directory of a node, opened again by way of its job's directory, which must not be a link
/// either.
fn beneath_unlinked(found: JobDir) -> orcheck_format::Result<JobDir> {
    let given = found.dir.path();
    if is_served(given) || off(Switch::LinkedJob) {
        return Ok(found);
    }
    let path = std::path::absolute(given).unwrap_or_else(|_| given.to_path_buf());
    let (Some(job), Some(node)) = (path.parent(), path.file_name()) else {
        return Ok(found);
    };
    let job = open_unlinked(job, Failpoints::none())?;
    let dir = job.child(&node.to_string_lossy(), false)?;
    Ok(JobDir { dir, ..found })
}

/// The job whose own directory at level `global` this is: a job with this as its root would begin
/// from nothing.
pub fn own_directory_of(path: &Path) -> Option<JobName> {
    let dir = open_dir(path, Failpoints::none()).ok()?;
    let entries = dir.list().ok().filter(|entries| holds_files(entries))?;
    let found = recognise(dir, &entries, &Trust::default())?;
    let whole = std::path::absolute(path).ok()?;
    let is_named = whole.file_name()?.to_str() == Some(found.job.as_str());
    (is_named && found.kind == PLACED).then_some(found.job)
}

/// Whether there are files of Orcheck's.
pub fn holds_files(entries: &[Entry]) -> bool {
    entries.iter().any(|entry| {
        !entry.is_dir
            && !matches!(
                FileName::parse(&entry.name),
                None | Some(FileName::Temporary(_))
            )
    })
}

/// The job and level of a directory with Orcheck's files; `None` if neither a record nor its name
/// belongs to a job.
fn recognise(dir: Arc<dyn Dir>, entries: &[Entry], trust: &Trust) -> Option<JobDir> {
    // Only the absolute path of `.` contains the name.
    let path = std::path::absolute(dir.path()).unwrap_or_else(|_| dir.path().to_path_buf());
    let own_name = path.file_name()?.to_string_lossy().into_owned();
    let names = entries
        .iter()
        .filter_map(|entry| Some((&entry.name, FileName::parse(&entry.name)?)));
    let mut levels = BTreeSet::new();
    let mut job = None;
    for (name, parsed) in names {
        if let FileName::Commit { level, .. } = parsed {
            levels.insert(level == Level::Global);
        }
        job = job.or_else(|| job_named_by(dir.as_ref(), name, trust).ok()?);
    }
    let parent = path.parent().and_then(|parent| parent.file_name());
    let parent = parent.map(|name| name.to_string_lossy().into_owned());
    // Without a commit record: ROOT/JOB of level `global`, otherwise ROOT/JOB/NODE.
    let is_node = match levels.first() {
        Some(is_global) => !is_global && !levels.contains(&true),
        None => job
            .as_ref()
            .is_some_and(|job| job.as_str() != own_name && parent.as_deref() == Some(job.as_str())),
    };
    let named = || {
        JobName::new(if is_node {
            parent.as_deref()?
        } else {
            &own_name
        })
        .ok()
    };
    Some(JobDir {
        job: job.or_else(named)?,
        dir,
        kind: if is_node {
            format!("node {own_name}")
        } else {
            PLACED.to_owned()
        },
    })
}
/// The directory of a key in that of a staging server; `None` if it is not a server's.
fn tenant_of(path: &Path) -> Option<String> {
    let dir = open_dir(path, Failpoints::none()).ok()?;
    let names = dir.list().ok()?;
    let is_server = names.iter().any(|entry| identity_of(&entry.name).is_some());
    let mut tenants = names.into_iter().filter(|entry| entry.is_dir);
    is_server.then(|| tenants.next().map(|entry| entry.name))?
}
