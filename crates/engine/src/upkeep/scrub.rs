//! Scrubs disks: reads their files again and again, so that damage is known before a restart needs
//! the bytes.
//!
//! How: a pass goes through the directories of all tenants of a staging server: `TENANT/JOB`, and
//! `TENANT/JOB/NODE` if a job keeps its files per node. Each container that a commit record there
//! names is verified as by `orcheck verify` (`verify.rs`), but only with the files of that
//! directory: data to which it refers in other containers is verified where those are. A container
//! is read at most once in a stated time. The directories are read at a limited rate
//! (`orcheck_io::disk::paced`).
//!
//! Invariants:
//! 1. A damaged file is reported once as long as it exists. So is a file that the disk does not
//!    deliver, which is read again in the next pass.
//! 2. Files that were pruned or superseded while they were read are not reported as damaged.
//! 3. Nothing is written and nothing is locked; a file that is removed while it is read is closed
//!    within one piece.
//! 4. What is remembered is bounded by the number of existing files.
//!
//! Faults survived: any damage, files and directories that vanish, disks that fail (reported, and
//! tried again).
//!
//! Not here: containers without a commit record (being written, or left over), stripes that lie on
//! a different server from their container, repair.

use crate::directory::{Catalog, Commit};
use crate::encoding::Proof;
use crate::upkeep::verify::{ContainerVerdict, verify_here};
use orcheck_format::disk::{ContainerRef, FileName};
use orcheck_format::sabotage::{Switch, off};
use orcheck_format::{Error, ErrorKind, JobName, Step, count};
use orcheck_io::clock::Clock;
use orcheck_io::disk::{Dir, Entry, Pace, paced};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// What is remembered of a file that was read.
struct Known {
    /// When it was read; `None` if the disk did not deliver it.
    at: Option<Duration>,
    damaged: bool,
}

/// Damage that was found; its text is one line with the next step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damage {
    /// The tenant whose directory it is in.
    pub tenant: String,
    /// The job's name.
    pub job: String,
    /// The container's place in the job: step, epoch and level, number and name of the node; `None`
    /// for a damaged record.
    pub container: Option<String>,
    /// The step, if it is known.
    pub step: Option<Step>,
    /// The kind of fault.
    pub kind: ErrorKind,
    /// Whether a restore needs the damaged bytes.
    pub fatal: bool,
    /// File, byte range, what was expected and what was found.
    pub message: String,
    /// Other findings in the same file.
    pub more: u64,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: tenant {}, job {}",
            self.kind.name(),
            self.tenant,
            self.job
        )?;
        if let Some(container) = &self.container {
            write!(f, ", {container}")?;
        }
        let weight = match (self.kind, self.fatal) {
            (ErrorKind::Unavailable, _) => "the disk does not deliver it now",
            (_, true) => "this copy cannot be restored whole",
            (_, false) => "no data is lost",
        };
        write!(f, " ({weight}): {}", self.message)?;
        if self.more > 0 {
            write!(f, "; and {} more in this file", self.more)?;
        }
        let step = self.step.map_or(String::new(), |step| format!(" {step}"));
        write!(
            f,
            ". Next: run `orcheck verify --job {}{step}` with all directories of the job, which says what is good \
             elsewhere, and have this disk checked",
            self.job
        )
    }
}

/// Work done so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Completed passes.
    pub passes: u64,
    /// Containers read to their end, counted each time.
    pub containers: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Damaged files that were reported.
    pub damaged: u64,
    /// Sealed containers that were read; nobody can check a seal without the user's key.
    pub unproven: u64,
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} read, {:.1} MiB, {}",
            count(self.containers, "container"),
            self.read_bytes as f64 / f64::from(1 << 20),
            count(self.damaged, "damaged file")
        )?;
        match self.unproven {
            0 => Ok(()),
            1 => f.write_str("; 1 container was encrypted and is not authenticated"),
            some => write!(
                f,
                "; {some} containers were encrypted and are not authenticated"
            ),
        }
    }
}

/// What a [`Scrub`] has done so far; readable at any time and from any thread.
#[derive(Clone)]
pub struct Progress {
    pace: Arc<Pace>,
    counts: Arc<Mutex<Counts>>,
}

impl Progress {
    /// Work done so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        Counts {
            read_bytes: self.pace.read_bytes(),
            ..*self.lock()
        }
    }

    fn lock(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Scrubs the files below some directories; see the module.
pub struct Scrub {
    tenants: Vec<(String, Arc<dyn Dir>)>,
    pace: Arc<Pace>,
    clock: Arc<dyn Clock>,
    every: Duration,
    known: BTreeMap<PathBuf, Known>,
    /// Messages about records and directories that were reported.
    told: BTreeSet<String>,
    progress: Progress,
}

/// The directory being read, and who receives reports about it.
struct About<'a> {
    tenant: &'a str,
    job: String,
    report: &'a mut dyn FnMut(&Damage),
}

/// The findings of a pass so far.
#[derive(Default)]
struct Pass {
    seen: BTreeSet<PathBuf>,
    /// Directories that could not be listed: what was known of them stays known.
    unlisted: Vec<PathBuf>,
    told: BTreeSet<String>,
}

impl Scrub {
    /// Scrubs the directories of these tenants (name and directory) at this rate, and no container
    /// twice within `every`.
    #[must_use]
    pub fn new(
        tenants: Vec<(String, Arc<dyn Dir>)>,
        pace: &Arc<Pace>,
        clock: Arc<dyn Clock>,
        every: Duration,
    ) -> Self {
        let at_pace = |(name, dir)| (name, paced(dir, pace));
        Self {
            tenants: tenants.into_iter().map(at_pace).collect(),
            pace: Arc::clone(pace),
            clock,
            every,
            known: BTreeMap::new(),
            told: BTreeSet::new(),
            progress: Progress {
                pace: Arc::clone(pace),
                counts: Arc::default(),
            },
        }
    }

    /// Also scrubs the directory of one more tenant, from the next pass on.
    pub fn watch(&mut self, tenant: String, dir: Arc<dyn Dir>) {
        let dir = paced(dir, &self.pace);
        self.tenants.push((tenant, dir));
    }

    /// The work done so far, for others to read.
    #[must_use]
    pub fn progress(&self) -> Progress {
        self.progress.clone()
    }

    /// Reads everything that is due, once. `report` is called with new damage.
    pub fn pass(&mut self, report: &mut dyn FnMut(&Damage)) {
        let mut pass = Pass::default();
        for (tenant, dir) in self.tenants.clone() {
            let mut about = About {
                tenant: &tenant,
                job: String::new(),
                report,
            };
            for entry in self.entries(&dir, &mut pass, &mut about) {
                let Ok(job) = JobName::new(&entry.name) else {
                    continue;
                };
                about.job = job.as_str().to_owned();
                if let Some(dir) = self.child(&dir, &entry.name, &mut pass, &mut about) {
                    self.job(&job, &dir, &mut pass, &mut about);
                }
            }
        }
        if self.pace.is_stopped() {
            return;
        }
        self.known.retain(|path, _| {
            let unlisted = || pass.unlisted.iter().any(|dir| path.starts_with(dir));
            pass.seen.contains(path) || unlisted()
        });
        match pass.unlisted.is_empty() {
            true => self.told = pass.told,
            // What was reported of an unreadable place counts as reported.
            false => self.told.extend(pass.told),
        }
        self.progress.lock().passes += 1;
    }

    /// The directories in a directory; an error of listing it is reported once.
    fn entries(
        &mut self,
        dir: &Arc<dyn Dir>,
        pass: &mut Pass,
        about: &mut About<'_>,
    ) -> Vec<Entry> {
        match dir.list() {
            Ok(mut entries) => {
                entries.retain(|entry| entry.is_dir);
                entries
            }
            Err(error) => {
                self.unlisted(dir.path().to_path_buf(), &error, pass, about);
                Vec::new()
            }
        }
    }

    fn child(
        &mut self,
        dir: &Arc<dyn Dir>,
        name: &str,
        pass: &mut Pass,
        about: &mut About<'_>,
    ) -> Option<Arc<dyn Dir>> {
        let child = dir.child(name, false);
        child
            .inspect_err(|error| self.unlisted(dir.path().join(name), error, pass, about))
            .ok()
    }

    fn unlisted(&mut self, path: PathBuf, error: &Error, pass: &mut Pass, about: &mut About<'_>) {
        pass.unlisted.push(path);
        // A directory that was removed meanwhile is not damaged.
        if error.kind() != ErrorKind::NotFound {
            self.tell(error.kind(), error.message(), pass, about);
        }
    }

    /// Reports something that is not a container, once.
    fn tell(&mut self, kind: ErrorKind, message: &str, pass: &mut Pass, about: &mut About<'_>) {
        if self.pace.is_stopped() {
            return;
        }
        pass.told.insert(message.to_owned());
        if !self.told.insert(message.to_owned()) {
            return;
        }
        self.progress.lock().damaged += 1;
        (about.report)(&Damage {
            tenant: about.tenant.to_owned(),
            job: about.job.clone(),
            container: None,
            step: None,
            kind,
            fatal: false,
            message: message.to_owned(),
            more: 0,
        });
    }

    fn job(&mut self, job: &JobName, dir: &Arc<dyn Dir>, pass: &mut Pass, about: &mut About<'_>) {
        let mut places = vec![Arc::clone(dir)];
        for entry in self.entries(dir, pass, about) {
            places.extend(self.child(dir, &entry.name, pass, about));
        }
        let catalog = match Catalog::scan(job, &places) {
            Ok(catalog) => catalog,
            Err(error) => return self.unlisted(dir.path().to_path_buf(), &error, pass, about),
        };
        for problem in catalog.problems() {
            let kind = problem.kind();
            if matches!(kind, ErrorKind::Corrupt | ErrorKind::Unavailable) {
                self.tell(kind, problem.message(), pass, about);
            }
        }
        let mut holders: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        for (place, entry, _) in catalog.files() {
            holders.entry(&entry.name).or_default().push(*place);
        }
        for commit in catalog.commits() {
            for container in &commit.record.containers {
                for &place in holders.get(container.file.as_str()).into_iter().flatten() {
                    if self.pace.is_stopped() {
                        return;
                    }
                    let place = &places[place];
                    let path = place.path().join(&container.file);
                    pass.seen.insert(path.clone());
                    if let Some(damage) = self.container(path, place, &places, commit, container) {
                        self.progress.lock().damaged += 1;
                        (about.report)(&Damage {
                            tenant: about.tenant.to_owned(),
                            ..damage
                        });
                    }
                }
            }
        }
    }

    /// Reads one container if it is due; returns new damage.
    fn container(
        &mut self,
        path: PathBuf,
        place: &Arc<dyn Dir>,
        places: &[Arc<dyn Dir>],
        commit: &Commit,
        container: &ContainerRef,
    ) -> Option<Damage> {
        let now = self.clock.now();
        let known = self.known.get(&path);
        let recent = |known: &Known| {
            let since = known.at.map(|at| now.saturating_sub(at));
            since.is_some_and(|since| since < self.every)
        };
        // Breaks if: a container is never read a second time; a disk loses bytes later, too.
        if known.is_some_and(|known| recent(known) || off(Switch::ScrubDue)) {
            return None;
        }
        let told = known.is_some_and(|known| known.damaged);
        let verdict = verify_here(place.as_ref(), places, &commit.record, container)?;
        if self.pace.is_stopped() {
            return None;
        }
        let damage = damage_of(&verdict, commit, container);
        // Breaks if: this second look is left out; every checkpoint that is pruned meanwhile would
        // raise an alarm.
        if damage.is_some() && !is_committed(places, place, commit, container) {
            return None;
        }
        let mut counts = self.progress.lock();
        counts.containers += 1;
        counts.unproven += u64::from(commit.proof == Proof::Unchecked);
        drop(counts);
        // Breaks if: undelivered bytes count as read; the disk may well deliver them next time.
        let read = |damage: &Damage| damage.kind != ErrorKind::Unavailable;
        let at = damage.as_ref().is_none_or(read).then_some(now);
        let damaged = damage.is_some();
        self.known.insert(path, Known { at, damaged });
        damage.filter(|_| !told)
    }
}

/// Whether the container still exists and a commit record still names it.
fn is_committed(
    places: &[Arc<dyn Dir>],
    place: &Arc<dyn Dir>,
    commit: &Commit,
    container: &ContainerRef,
) -> bool {
    if off(Switch::ScrubPruned) {
        return true;
    }
    let record = &commit.record;
    let name = FileName::commit(record.step, record.epoch, record.level).to_string();
    // A file that cannot be looked up is not known to be gone.
    let holds = |dir: &Arc<dyn Dir>, name: &str| dir.holds(name).unwrap_or(true);
    let mut copies = commit.copies.iter().filter_map(|&at| places.get(at));
    holds(place, &container.file) && copies.any(|dir| holds(dir, &name))
}

fn damage_of(
    verdict: &ContainerVerdict,
    commit: &Commit,
    container: &ContainerRef,
) -> Option<Damage> {
    let findings = verdict.findings.iter();
    let first = findings.min_by_key(|finding| !finding.fatal)?;
    let record = &commit.record;
    let node = record.nodes.get(container.node.index());
    Some(Damage {
        tenant: String::new(),
        job: record.job.as_str().to_owned(),
        container: Some(format!(
            "step {}, epoch {}, level {}, node {} ({}), container {}",
            record.step,
            record.epoch,
            record.level,
            container.node,
            node.map_or("", String::as_str),
            verdict.path.as_deref().unwrap_or(&container.file),
        )),
        step: Some(record.step),
        kind: first.kind,
        fatal: first.fatal,
        message: first.message.clone(),
        more: verdict.findings.len() as u64 - 1 + verdict.more_findings,
    })
}
