//! Observes the jobs of the program that `orcheck run` supervises: what it passes down, what the
//! program reports, and what its directories hold.
//!
//! How: directories and name are passed down in the environment. The program's rank 0 leaves a note
//! in a mailbox (a small file) when it opens a job, so that the supervisor knows the directories
//! even if nobody named them. The warnings of the library, which a program need not read, come in
//! the same way.
//!
//! Invariants:
//! 1. The program's own statements (its name of the job, its directories) take precedence over the
//!    command line.
//! 2. Nothing is called finished or without a checkpoint because of directories that neither the
//!    command line nor the program named.
//!
//! Not here: restarts (`run.rs`).

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use orcheck_client::JOB_VARIABLE;
use orcheck_client::report::{self, Note};
use orcheck_engine::directory::halt::{NewestRun, When, later_requests};
use orcheck_engine::encoding::Trust;
use orcheck_format::disk::FileName;
use orcheck_format::{Epoch, Error, Level, Result, Step};
use orcheck_io::clock::{Clock, SystemClock};
use orcheck_io::user::{Mailbox, working_dir};
use orcheck_staging::client::is_served;

use crate::args::Where;
use crate::commands::halt::described;
use crate::exit;
use crate::job::Job;
use crate::job::Search;
use crate::output::count;

/// Where jobs are, as far as it is known.
pub struct Observer {
    dirs: Vec<PathBuf>,
    node_dirs: Vec<PathBuf>,
    job: Option<String>,
    mailbox: Option<Mailbox>,
    /// The end of what came into the mailbox, which may be an incomplete note.
    unread: Vec<u8>,
    /// What the run that is alive has reported so far.
    report: RunReport,
    /// The last note of each job that was opened.
    opened: BTreeMap<String, Note>,
}

/// What the last run reported.
#[derive(Default)]
pub struct RunReport {
    /// A job that it opened.
    pub job: Option<String>,
    /// Whether a trigger makes checkpoints of that job due.
    pub is_triggered: Option<bool>,
    /// Why it opened a job without checkpoints, and no other.
    pub without: Option<String>,
    /// The lowest epoch that it claimed, for each job that it opened.
    pub first_epochs: BTreeMap<String, u64>,
    /// Why it could not open a job.
    pub refused: Option<String>,
    /// Whether trying again cannot help.
    pub refused_for_good: bool,
    /// Notes for the user.
    pub notes: Vec<String>,
    /// What was printed while it ran.
    said: BTreeSet<String>,
    /// The library's warnings that were not printed, each once, in order.
    warnings: Vec<String>,
    /// Number of warnings beyond those.
    more_warnings: u64,
    /// Number of messages about what the library did, beyond those in `notes`.
    more_told: u64,
    /// Some of those beyond, which are counted once.
    beyond: BTreeSet<String>,
    /// Whether a process stopped passing messages of some kind on.
    is_cut: bool,
    /// Number of steps that each process has lost.
    lost_steps: BTreeMap<u32, u64>,
    /// Why the last of them was lost.
    pub last_lost: Option<String>,
    /// Each job that could not be restarted and was not opened again: why, and whether the next run
    /// will lack the same thing.
    pub failed: BTreeMap<String, (String, bool)>,
    /// Jobs that were closed because their program was told to stop, and not opened again.
    stopped: BTreeSet<String>,
}

/// Maximum number of messages of a run that are printed while it runs, and of others after it.
const SHOWN_MOST: usize = 8;
/// Maximum number of further ones that are remembered.
const BEYOND_MOST: usize = 256;
/// Of a process's losses the library tells each until there are this many, then whenever their
/// number has doubled (`Losses` of crate `client`).
const ALL_TOLD: u64 = 32;

impl RunReport {
    /// The library's messages that nobody has seen, for a person: warnings, and for losses their
    /// number and the last one.
    pub fn said(&self) -> Vec<String> {
        let mut said = self.warnings.clone();
        if self.more_warnings > 0 {
            let more = count(self.more_warnings, "further warning");
            said.push(format!("not shown: {more}"));
        }
        if self.more_told > 0 {
            let more = count(self.more_told, "further message");
            said.push(format!("not shown: {more} about what the library did"));
        }
        if self.is_cut {
            said.push(
                "there may be further messages, which the library did not pass on. Next: print \
                 orc_message() in the program"
                    .to_owned(),
            );
        }
        if let Some(last) = &self.last_lost {
            let steps = self.lost_steps.values().sum();
            let lost = count(steps, "checkpoint");
            // Breaks if: it is taken for all; of a process that is killed nobody hears how many
            // came after the last doubling.
            let told_by_doubling = |steps: &u64| *steps >= ALL_TOLD && steps.is_power_of_two();
            said.push(match self.lost_steps.values().any(told_by_doubling) {
                true => format!("at least {lost} of this run lost, the last known: {last}"),
                false => format!("{lost} of this run lost, the last: {last}"),
            });
        }
        said
    }

    /// Whether a job was closed because its program was told to stop, and not opened again.
    pub fn is_stopped(&self) -> bool {
        !self.stopped.is_empty()
    }

    /// The message in a note, if it has one and is to be printed now, while the run is alive: each
    /// once, the first [`SHOWN_MOST`], and losses whenever their number has doubled.
    fn printed_now(&mut self, note: &Note) -> Option<(&'static str, String)> {
        let told = note.told.as_ref().map(|text| ("job", text));
        let warned = note.warning.as_ref().or(note.lost.as_ref());
        let (event, text) = told.or(warned.map(|text| ("warning", text)))?;
        let steps = note.lost_steps;
        // Breaks if: they count as warnings; after eight of those, losses would be silent.
        let has_room = steps.is_power_of_two() || self.said.len() < SHOWN_MOST;
        let is_printed = has_room && self.said.insert(text.clone());
        is_printed.then(|| {
            let text = match steps {
                0 | 1 => text.clone(),
                _ => format!(
                    "{} lost so far, the last: {text}",
                    count(steps, "checkpoint")
                ),
            };
            (event, text)
        })
    }

    fn take_told(&mut self, text: &String) {
        if self.said.contains(text) || self.notes.contains(text) {
            return;
        }
        match self.notes.len() < SHOWN_MOST {
            true => self.notes.push(text.clone()),
            // Breaks if: they are not counted; the list would look complete.
            false => self.more_told += u64::from(self.is_further(text)),
        }
    }

    /// Whether a message beyond those shown is another one: every rank may send the same.
    fn is_further(&mut self, text: &str) -> bool {
        self.beyond.len() >= BEYOND_MOST || self.beyond.insert(text.to_owned())
    }

    fn take_warning(&mut self, text: &String) {
        if self.said.contains(text) || self.warnings.contains(text) {
            return;
        }
        match self.warnings.len() < SHOWN_MOST {
            true => self.warnings.push(text.clone()),
            false => self.more_warnings += u64::from(self.is_further(text)),
        }
    }

    fn take_loss(&mut self, text: &str, note: &Note) {
        self.last_lost = Some(text.to_owned());
        let steps = self.lost_steps.entry(note.process).or_default();
        *steps = match note.lost_steps {
            // An older version.
            0 => *steps + 1,
            so_far => so_far,
        };
    }

    /// Takes in what became of a job; whether it was opened.
    fn take_outcome(&mut self, note: &Note) -> bool {
        if let Some(why) = &note.failed {
            self.failed
                .insert(note.job.clone(), (why.clone(), note.for_good));
        } else if note.stopped {
            self.stopped.insert(note.job.clone());
        } else if let Some(why) = &note.refused {
            self.refused = Some(why.clone());
            self.refused_for_good = note.for_good;
        } else if let Some(why) = &note.without {
            self.refused = None;
            let text = format!("job {} runs without checkpoints: {why}", note.job);
            self.without = Some(text).filter(|_| self.job.is_none());
        } else {
            self.refused = None;
            self.without = None;
            self.stopped.remove(&note.job);
            self.failed.remove(&note.job);
            let first = self.first_epochs.entry(note.job.clone());
            let first = first.or_insert(note.epoch);
            *first = note.epoch.min(*first);
            self.job = Some(note.job.clone());
            self.is_triggered = note.is_triggered;
            return true;
        }
        false
    }
}

/// A commit: job, step, epoch and level.
type Committed = (String, Step, Epoch, Level);

/// The contents of the jobs' directories.
#[derive(Default)]
pub struct JobState {
    /// Everything committed so far.
    commits: BTreeSet<Committed>,
    /// The highest epoch of each job that was claimed.
    pub epochs: BTreeMap<String, u64>,
    /// Jobs and their epochs that were asked to halt.
    halts: BTreeSet<(String, u64)>,
    /// The newest run of each job (its epoch) and its request for later, if that is not due yet.
    later: BTreeMap<String, (u64, When)>,
    /// Whether there are other jobs, and it is unknown which of them the command opens.
    with_others: bool,
}

/// A time at which to halt, for a job and its run of an epoch.
pub struct HaltAt {
    job: String,
    epoch: u64,
    unix_ms: u64,
}

impl Observer {
    /// From the command line.
    ///
    /// # Errors
    /// Invalid for a path that cannot be passed to the program.
    pub fn new(place: &Where) -> Result<Observer> {
        for path in &place.dirs {
            if path.to_str().is_none_or(|text| text.contains(',')) {
                return Err(Error::invalid(format!(
                    "--dir {}: expected a path without commas, of UTF-8 text",
                    path.display()
                ))
                .next("rename the directory"));
            }
        }
        let whole = |paths: &[PathBuf]| paths.iter().map(|path| whole(path)).collect();
        Ok(Observer {
            dirs: whole(&place.dirs),
            node_dirs: whole(&place.node_dirs),
            job: place.job.clone(),
            // Without it, only the command line is known.
            mailbox: Mailbox::create("orcheck-run").ok(),
            unread: Vec::new(),
            report: RunReport::default(),
            opened: BTreeMap::new(),
        })
    }

    /// Puts the directories, the name of the job and the mailbox into the environment of the
    /// command.
    pub fn tell(&self, command: &mut Command) {
        if !self.dirs.is_empty() {
            let listed: Vec<_> = self
                .dirs
                .iter()
                .map(|path| path.to_string_lossy())
                .collect();
            command.env("ORCHECK_GLOBAL", listed.join(","));
        }
        // With several, the program has one; they are for looking at what nodes left.
        if let [dir] = &self.node_dirs[..] {
            command.env("ORCHECK_NODE_DIR", dir);
        }
        if let Some(job) = &self.job {
            command.env(JOB_VARIABLE, job);
        }
        match &self.mailbox {
            Some(mailbox) => command.env(report::VARIABLE, mailbox.path()),
            None => command.env_remove(report::VARIABLE),
        };
    }

    /// What the run that is alive has told since the last call, for a person: what it did, and its
    /// warnings, at most [`SHOWN_MOST`] of both in a run.
    pub fn overhear(&mut self) -> Vec<(&'static str, String)> {
        let notes = self.new_notes(false);
        let mut news = Vec::new();
        for note in notes {
            news.extend(self.report.printed_now(&note));
            self.take(note);
        }
        news
    }

    /// What the last run told.
    pub fn hear(&mut self) -> RunReport {
        for note in self.new_notes(true) {
            self.take(note);
        }
        std::mem::take(&mut self.report)
    }

    /// The notes that came into the mailbox since the last call; incomplete ones stay, unless the
    /// run has ended.
    fn new_notes(&mut self, ended: bool) -> Vec<Note> {
        let new = self.mailbox.as_mut().map(|mailbox| mailbox.take());
        self.unread
            .extend(new.and_then(Result::ok).unwrap_or_default());
        let whole_bytes = match ended {
            true => self.unread.len(),
            false => report::whole_bytes(&self.unread),
        };
        let rest = self.unread.split_off(whole_bytes);
        let whole = std::mem::replace(&mut self.unread, rest);
        report::read(&String::from_utf8_lossy(&whole))
    }

    fn take(&mut self, note: Note) {
        self.report.is_cut |= note.is_last;
        if let Some(text) = &note.told {
            return self.report.take_told(text);
        }
        if let Some(text) = &note.warning {
            return self.report.take_warning(text);
        }
        if let Some(text) = &note.lost {
            return self.report.take_loss(text, &note);
        }
        if !self.report.take_outcome(&note) {
            return;
        }
        let is_new = !self.opened.contains_key(&note.job);
        if let Some(given) = self.job.as_ref().filter(|&job| is_new && *job != note.job) {
            self.report.notes.push(format!(
                "the program calls its job {}, not {given}: its own name counts",
                note.job
            ));
        }
        self.opened.insert(note.job.clone(), note);
    }

    /// Whether it is known which directories count; commits elsewhere would be overlooked.
    pub fn is_sure(&self) -> bool {
        !self.dirs.is_empty() || !self.node_dirs.is_empty() || !self.opened.is_empty()
    }

    /// The state of the directories, if they are known and readable.
    pub fn look(&self) -> Option<JobState> {
        let mut seen = JobState::default();
        if self.opened.is_empty() {
            let place = Where {
                dirs: self.dirs.clone(),
                node_dirs: self.node_dirs.clone(),
                job: self.job.clone(),
                anywhere: Vec::new(),
            };
            return seen.add_any(&place).then_some(seen);
        }
        for job in self.opened.keys() {
            if !seen.add(&self.place_of(job)) {
                return None;
            }
        }
        Some(seen)
    }

    /// Where a job is.
    fn place_of(&self, job: &str) -> Where {
        let note = self.opened.get(job);
        let (global, node_dir) = note.map_or((&[][..], &[][..]), |note| {
            (&note.global[..], note.node_dir.as_slice())
        });
        Where {
            dirs: union(global, &self.dirs),
            node_dirs: union(node_dir, &self.node_dirs),
            job: Some(job.to_owned()),
            anywhere: Vec::new(),
        }
    }

    /// Asks the next run to halt if the requested time passed before it began, because the run
    /// would ignore a past time. Returns whether nothing more has to be done.
    pub fn remind(&self, of: &HaltAt) -> bool {
        if SystemClock::new().unix_ms() < of.unix_ms {
            return false;
        }
        let Ok(job) = Job::open(&self.place_of(&of.job)) else {
            return false;
        };
        let dirs = job.catalog.places();
        let Ok(requests) = later_requests(dirs) else {
            return false;
        };
        // Withdrawn, or taken over by the next run itself.
        if !requests.contains(&(of.epoch, Some(When::At(of.unix_ms)))) {
            return true;
        }
        let run = NewestRun::newest(dirs, &Trust::default()).ok().flatten();
        let run = run.filter(|run| run.lives && run.claim.epoch.counter > of.epoch);
        run.is_some_and(|run| {
            run.ask("asked by orcheck run, for the run before\n")
                .is_ok()
        })
    }
}

impl JobState {
    /// Adds what the directories hold of the job, or of all jobs if it is not named; false if they
    /// cannot be read.
    fn add_any(&mut self, place: &Where) -> bool {
        let Ok(mut search) = Search::of(place, &Trust::default()) else {
            return self.add(place);
        };
        let names = search.names();
        if place.job.is_some() || names.len() < 2 {
            return self.add(place);
        }
        // Breaks if: such directories count as unreadable; a command that opens no job would be
        // restarted to the last.
        self.with_others = true;
        for name in names {
            // An unreadable one does not hide the others.
            if let Ok(job) = search.take(&name, &Trust::default()) {
                self.add_job(&job);
            }
        }
        // It is unknown which of them the command meant; a halt of another one does not concern it.
        self.halts.clear();
        self.later.clear();
        true
    }

    /// Adds what a job's directories hold; false when they cannot be read.
    fn add(&mut self, place: &Where) -> bool {
        match Job::open(place) {
            Ok(job) => self.add_job(&job),
            // Before the first run, the job's directory need not exist.
            Err(failure) => return failure.code == exit::NOT_FOUND,
        }
        true
    }

    fn add_job(&mut self, job: &Job) {
        let commits = job.catalog.commits().iter().map(|commit| &commit.record);
        self.commits.extend(commits.map(|record| {
            let name = job.name.as_str().to_owned();
            (name, record.step, record.epoch, record.level)
        }));
        let name = job.name.as_str();
        let newest = self.epochs.entry(name.to_owned()).or_default();
        for (_, _, file) in job.catalog.files() {
            match file {
                Some(FileName::Claim { epoch } | FileName::Resumed { epoch }) => {
                    *newest = (*newest).max(*epoch);
                }
                Some(FileName::Halt { epoch }) => {
                    self.halts.insert((name.to_owned(), *epoch));
                }
                _ => {}
            }
        }
        let newest = *newest;
        let now = SystemClock::new().unix_ms();
        for (epoch, when) in later_requests(job.catalog.places()).unwrap_or_default() {
            // A request for later counts once it is due: before that, a failed run is started
            // again.
            // Breaks if: it does not count; the job would be started again after its time.
            match when {
                Some(When::At(at)) if at > now => {}
                // Only the program knows how many checkpoints it has taken since; it reports when
                // it was told to stop.
                Some(When::After(_)) => {}
                None => continue,
                Some(_) => {
                    self.halts.insert((name.to_owned(), epoch));
                    continue;
                }
            }
            if let Some(when) = when.filter(|_| epoch == newest) {
                self.later.insert(name.to_owned(), (epoch, when));
            }
        }
    }

    /// The times to halt that are still to come.
    pub fn times(&self) -> Vec<HaltAt> {
        let times = self.later.iter();
        let times = times.filter_map(|(job, (epoch, when))| match when {
            When::At(unix_ms) => Some(HaltAt {
                job: job.clone(),
                epoch: *epoch,
                unix_ms: *unix_ms,
            }),
            When::After(_) => None,
        });
        times.collect()
    }

    /// What becomes of a request to halt later if another run follows the one that was asked.
    pub fn halts_later(&self) -> Option<String> {
        let (_, when) = *self.later.values().next()?;
        let text = described(when, SystemClock::new().unix_ms()).0;
        Some(match when {
            When::At(_) => format!("it is to halt {text}"),
            // Breaks if: nothing is reported; the operator waits for an end that nobody remembers.
            When::After(_) => {
                format!(
                    "the request to halt {text} applied to that run only; repeat it for the next \
                     one"
                )
            }
        })
    }

    /// Whether the newest run of a job was asked to halt after some checkpoints.
    pub fn halts_after(&self) -> bool {
        let mut later = self.later.values();
        later.any(|(_, when)| matches!(when, When::After(_)))
    }

    /// Whether some job has a newer step than before, or, if nobody looked then, than before its
    /// first epoch of this run.
    pub fn is_newer_than(
        &self,
        before: Option<&JobState>,
        first_epochs: &BTreeMap<String, u64>,
    ) -> bool {
        let is_old = |commit: &Committed| {
            let looked = before.filter(|seen| seen.commits.iter().any(|old| old.0 == commit.0));
            match looked {
                Some(before) => before.commits.contains(commit),
                None => {
                    (first_epochs.get(&commit.0)).is_some_and(|first| commit.2.counter < *first)
                }
            }
        };
        self.commits.iter().any(|commit| {
            let mut others = self.commits.iter().filter(|other| other.0 == commit.0);
            !is_old(commit) && !others.any(|old| is_old(old) && old.1 >= commit.1)
        })
    }

    /// The newest step of all.
    pub fn newest_step(&self) -> Option<Step> {
        self.commits.iter().map(|(_, step, ..)| *step).max()
    }

    /// Whether nothing is committed.
    pub fn is_empty(&self) -> bool {
        self.commits.is_empty()
    }

    /// Whether a run of a job after these epochs was asked to halt.
    pub fn halted_after(&self, epochs: &BTreeMap<String, u64>) -> bool {
        let is_later = |job, epoch| epochs.get(job).is_none_or(|before| epoch > *before);
        (self.halts.iter()).any(|(job, epoch)| is_later(job, *epoch))
    }

    /// Whether other jobs are there, and which of them the command opens is not known.
    pub fn is_with_others(&self) -> bool {
        self.with_others
    }
}

fn whole(path: &Path) -> PathBuf {
    match is_served(path) {
        true => path.to_owned(),
        false => working_dir().join(path),
    }
}

fn union(first: &[PathBuf], more: &[PathBuf]) -> Vec<PathBuf> {
    let mut all = first.to_vec();
    all.extend(more.iter().filter(|path| !first.contains(path)).cloned());
    all
}
