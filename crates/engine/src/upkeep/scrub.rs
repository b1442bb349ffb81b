//! Scrubbing: what lies on a disk is read again and again, so that damage is known before a restart needs the bytes.
//!
//! How: a pass goes through the directories of all tenants of a staging server: `TENANT/JOB`, and `TENANT/JOB/NODE` where a
//! job keeps its files per node. Each container that a commit record there names is proven as `orcheck verify` proves it
//! (`verify.rs`), from what lies in that directory alone: what it refers to in other containers is proven where that lies.
//! Each is read at most once in a stated time. The directories are read at a pace (`orcheck_io::disk::paced`).
//!
//! Invariants:
//! 1. A damaged file is told of once, as long as it is there; so is one that the disk does not give, which is asked for again
//!    in the next pass.
//! 2. What was pruned, or became superseded, while it was read is not called damaged.
//! 3. Nothing is written and nothing is locked; what is removed while it is read is let go within a piece.
//! 4. What is remembered is bounded by the files that are there.
//!
//! Faults survived: any damage, files and directories that vanish, disks that fail (told of, and tried again).
//!
//! Not here: containers without a commit record (being written, or left over), stripes that lie on another server than
//! their container, repair.

use crate::directory::{Catalog, Commit};
use crate::encoding::Proof;
use crate::upkeep::verify::{ContainerVerdict, verify_here};
use orcheck_format::disk::{ContainerRef, FileName};
use orcheck_format::sabotage::{Switch, off};
use orcheck_format::{Error, ErrorKind, JobName, count};
use orcheck_io::clock::Clock;
use orcheck_io::disk::{Dir, Entry, Pace, paced};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// What a file that was read looked like.
struct Known {
    /// When it was read; `None` if the disk did not give it.
    at: Option<Duration>,
    damaged: bool,
}

/// Damage that was found; as text one line, with what to do next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damage {
    /// Whose directory it is in.
    pub tenant: String,
    /// The job's name.
    pub job: String,
    /// The container's place in the job: step, epoch and level, index and name of the node; `None` for a damaged record.
    pub container: Option<String>,
    /// The step, where it is known.
    pub step: Option<u64>,
    /// The kind of fault.
    pub kind: ErrorKind,
    /// Whether a restore needs what is damaged.
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
            (ErrorKind::Unavailable, _) => "the disk does not give it now",
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

/// What was done so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Passes that were completed.
    pub passes: u64,
    /// Containers that were read to their end, each time counted.
    pub containers: u64,
    /// Bytes that were read.
    pub read_bytes: u64,
    /// Damaged files that were told of.
    pub damaged: u64,
    /// Containers read whose records have a seal, which nobody without the user's key can check.
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
            1 => f.write_str("; 1 container was encrypted, and is not authenticated"),
            some => write!(
                f,
                "; {some} containers were encrypted, and are not authenticated"
            ),
        }
    }
}

/// What a [`Scrub`] has done so far, at any time and from any thread.
#[derive(Clone)]
pub struct Progress {
    pace: Arc<Pace>,
    counts: Arc<Mutex<Counts>>,
}

impl Progress {
    /// What was done so far.
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

/// Reads what lies below some directories; see the module.
pub struct Scrub {
    tenants: Vec<(String, Arc<dyn Dir>)>,
    pace: Arc<Pace>,
    clock: Arc<dyn Clock>,
    every: Duration,
    known: BTreeMap<PathBuf, Known>,
    /// Messages about records and directories.
    told: BTreeSet<String>,
    progress: Progress,
}

/// Whose directory is being looked at, and who hears of it.
struct About<'a> {
    tenant: &'a str,
    job: String,
    report: &'a mut dyn FnMut(&Damage),
}

/// What a pass has come by so far.
#[derive(Default)]
struct Pass {
    seen: BTreeSet<PathBuf>,
    /// Directories that could not be listed: what was known of them stays known.
    unlisted: Vec<PathBuf>,
    told: BTreeSet<String>,
}

impl Scrub {
    /// Reads the directories of these tenants (name and directory) at this pace, and no container twice within `every`.
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

    /// Reads the directory of one more tenant from the next pass on.
    pub fn watch(&mut self, tenant: String, dir: Arc<dyn Dir>) {
        let dir = paced(dir, &self.pace);
        self.tenants.push((tenant, dir));
    }

    /// What was done so far, for others to look at.
    #[must_use]
    pub fn progress(&self) -> Progress {
        self.progress.clone()
    }

    /// Reads everything that is due, once. `report` hears of damage that it was not told of before.
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
            // What was told of a place that could not be looked at stays told.
            false => self.told.extend(pass.told),
        }
        self.progress.lock().passes += 1;
    }

    /// The directories in a directory; that it cannot be listed is told once.
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
        // One that was removed meanwhile is no damage.
        if error.kind() != ErrorKind::NotFound {
            self.tell(error.kind(), error.message(), pass, about);
        }
    }

    /// Tells of what is no container, once.
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

    /// Reads one container if it is due; gives back damage that is new.
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
        // Breaks if: what was read once is never read again; a disk loses bytes later, too.
        if known.is_some_and(|known| recent(known) || off(Switch::ScrubDue)) {
            return None;
        }
        let told = known.is_some_and(|known| known.damaged);
        let verdict = verify_here(place.as_ref(), places, &commit.record, container)?;
        if self.pace.is_stopped() {
            return None;
        }
        let damage = damage_of(&verdict, commit, container);
        // Breaks if: it is not looked for once more; every checkpoint that is pruned meanwhile would be an alarm.
        if damage.is_some() && !is_committed(places, place, commit, container) {
            return None;
        }
        let mut counts = self.progress.lock();
        counts.containers += 1;
        counts.unproven += u64::from(commit.proof == Proof::Unchecked);
        drop(counts);
        // Breaks if: what the disk did not give counts as read; it may well come the next time.
        let read = |damage: &Damage| damage.kind != ErrorKind::Unavailable;
        let at = damage.as_ref().is_none_or(read).then_some(now);
        let damaged = damage.is_some();
        self.known.insert(path, Known { at, damaged });
        damage.filter(|_| !told)
    }
}

/// Whether the container still is there and a commit record still names it.
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
    // What cannot be looked at is not known to be gone.
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
