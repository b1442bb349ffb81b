//! What `orcheck run` hands down to the program about its job, what the program tells of it, and what its directories hold.
//!
//! How: directories and name travel down in the environment. The program's rank 0 leaves a note in a mailbox (a small file)
//! when it opens a job; so the supervisor knows the directories although nobody named them. The same way come the warnings of
//! the library, which a program need not read.
//!
//! Invariants:
//! 1. What the program says of itself counts more than the command line: its own name of the job, its own directories.
//! 2. Nothing is called finished or without a checkpoint from directories that nobody named: neither the command line nor the
//!    program.
//!
//! Not here: restarts (`run.rs`).

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use orcheck_client::JOB_VARIABLE;
use orcheck_client::report::{self, Note};
use orcheck_engine::halt::{When, later_requests};
use orcheck_engine::trust::Trust;
use orcheck_format::{Epoch, Error, FileName, Level, Result};
use orcheck_io::environment::working_dir;
use orcheck_io::served::is_served;
use orcheck_io::{Clock, Mailbox, SystemClock};

use crate::args::Where;
use crate::commands::halt::told as told_when;
use crate::exit;
use crate::job::Job;
use crate::output::count;
use crate::search::Search;

/// Where jobs are, as far as anybody said.
pub struct Told {
    dirs: Vec<PathBuf>,
    node_dirs: Vec<PathBuf>,
    job: Option<String>,
    mailbox: Option<Mailbox>,
    /// The last note of each job that was opened.
    opened: BTreeMap<String, Note>,
}

/// What the last run told.
#[derive(Default)]
pub struct Heard {
    /// A job that it opened.
    pub job: Option<String>,
    /// Why it opened a job without checkpoints, and no other.
    pub without: Option<String>,
    /// The lowest epoch that it claimed.
    pub first_epoch: Option<u64>,
    /// Why it could not open a job.
    pub refused: Option<String>,
    /// Whether trying again cannot help.
    pub refused_for_good: bool,
    /// What the user should know.
    pub notes: Vec<String>,
    /// What the library warned of, each once.
    pub warnings: Vec<String>,
    /// Why checkpoints were lost, in their order.
    pub lost: Vec<String>,
    /// Why the job could not be restarted.
    pub failed: Option<String>,
}

/// Most warnings of a run that are shown.
const SHOWN_MOST: usize = 8;

impl Heard {
    /// What the library said, for a person: each warning, and of the losses their number and the last one.
    pub fn said(&self) -> Vec<String> {
        let new = self
            .warnings
            .iter()
            .filter(|text| !self.lost.contains(text));
        let new: Vec<&String> = new.collect();
        let mut said: Vec<String> = new
            .iter()
            .take(SHOWN_MOST)
            .map(|&text| text.clone())
            .collect();
        if new.len() > SHOWN_MOST {
            said.push(format!(
                "and {} more",
                count((new.len() - SHOWN_MOST) as u64, "warning")
            ));
        }
        if let Some(last) = self.lost.last() {
            let lost = count(self.lost.len() as u64, "checkpoint");
            said.push(format!("{lost} of this run lost, the last: {last}"));
        }
        said
    }
}

/// A commit: job, step, epoch and level.
type Committed = (String, u64, Epoch, Level);

/// What is in the directories of the jobs.
#[derive(Default)]
pub struct Seen {
    /// Everything committed so far.
    commits: BTreeSet<Committed>,
    /// The highest epoch that was claimed.
    pub epoch: u64,
    /// Epochs that were asked to halt.
    halts: BTreeSet<u64>,
    /// What the run of the highest epoch was asked for later on, and is not due.
    later: Option<When>,
}

impl Told {
    /// What the command line says.
    ///
    /// # Errors
    /// Invalid for a path that the program cannot be given.
    pub fn new(place: &Where) -> Result<Told> {
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
        Ok(Told {
            dirs: whole(&place.dirs),
            node_dirs: whole(&place.node_dirs),
            job: place.job.clone(),
            // Without it the command line is all that is known.
            mailbox: Mailbox::create("orcheck-run").ok(),
            opened: BTreeMap::new(),
        })
    }

    /// Puts the directories, the name of the job and the mailbox into the environment of the command.
    pub fn tell(&self, command: &mut Command) {
        if !self.dirs.is_empty() {
            let listed: Vec<_> = self
                .dirs
                .iter()
                .map(|path| path.to_string_lossy())
                .collect();
            command.env("ORCHECK_GLOBAL", listed.join(","));
        }
        // Of several the program has one; they are for looking at what nodes left.
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

    /// Takes in what the last run told.
    pub fn hear(&mut self) -> Heard {
        let text = self.mailbox.as_mut().map(|mailbox| mailbox.take());
        let mut heard = Heard::default();
        for note in report::read(&text.and_then(Result::ok).unwrap_or_default()) {
            if let Some(text) = note.warning {
                if !heard.warnings.contains(&text) {
                    heard.warnings.push(text);
                }
                continue;
            }
            if let Some(text) = note.lost {
                heard.lost.push(text);
                continue;
            }
            if note.failed.is_some() {
                heard.failed = note.failed;
                continue;
            }
            if let Some(why) = note.refused {
                heard.refused = Some(why);
                heard.refused_for_good = note.for_good;
                continue;
            }
            heard.refused = None;
            if let Some(why) = note.without {
                let text = format!("job {} runs without checkpoints: {why}", note.job);
                heard.without = Some(text).filter(|_| heard.job.is_none());
                continue;
            }
            heard.without = None;
            let lowest = heard.first_epoch.unwrap_or(u64::MAX).min(note.epoch);
            heard.first_epoch = Some(lowest);
            heard.job = Some(note.job.clone());
            let is_new = !self.opened.contains_key(&note.job);
            if let Some(given) = self.job.as_ref().filter(|&job| is_new && *job != note.job) {
                heard.notes.push(format!(
                    "the program calls its job {}, not {given}: its own name counts",
                    note.job
                ));
            }
            self.opened.insert(note.job.clone(), note);
        }
        heard
    }

    /// Whether somebody said which directories count; commits elsewhere would be overlooked.
    pub fn is_sure(&self) -> bool {
        !self.dirs.is_empty() || !self.node_dirs.is_empty() || !self.opened.is_empty()
    }

    /// What the directories tell, where they are known and can be read.
    pub fn look(&self) -> Option<Seen> {
        let mut seen = Seen::default();
        if self.opened.is_empty() {
            let place = Where {
                dirs: self.dirs.clone(),
                node_dirs: self.node_dirs.clone(),
                job: self.job.clone(),
                anywhere: Vec::new(),
            };
            return seen.add_any(&place).then_some(seen);
        }
        for note in self.opened.values() {
            let place = Where {
                dirs: union(&note.global, &self.dirs),
                node_dirs: union(note.node_dir.as_slice(), &self.node_dirs),
                job: Some(note.job.clone()),
                anywhere: Vec::new(),
            };
            if !seen.add(&place) {
                return None;
            }
        }
        Some(seen)
    }
}

impl Seen {
    /// Adds what the directories hold of the job, or of all jobs where it is not named; false when they cannot be read.
    fn add_any(&mut self, place: &Where) -> bool {
        let Ok(mut search) = Search::of(place, &Trust::default()) else {
            return self.add(place);
        };
        let names = search.names();
        if place.job.is_some() || names.len() < 2 {
            return self.add(place);
        }
        // Breaks if: such directories count as ones that cannot be read; a command that opens no job would be started again to the
        // last.
        for name in names {
            match search.take(&name, &Trust::default()) {
                Ok(job) => self.add_job(&job),
                Err(_) => return false,
            }
        }
        // Which of them the command meant is not known; another one's halt does not concern it.
        self.halts.clear();
        self.later = None;
        true
    }

    /// Adds what a job's directories hold; false when they cannot be read.
    fn add(&mut self, place: &Where) -> bool {
        match Job::open(place) {
            Ok(job) => self.add_job(&job),
            // Before the first run the job's directory need not be there.
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
        for (_, _, name) in job.catalog.files() {
            match name {
                Some(FileName::Claim { epoch } | FileName::Resumed { epoch }) => {
                    self.epoch = self.epoch.max(*epoch);
                }
                Some(FileName::Halt { epoch }) => {
                    self.halts.insert(*epoch);
                }
                _ => {}
            }
        }
        let now = SystemClock::new().unix_ms();
        for (epoch, when) in later_requests(job.catalog.places()).unwrap_or_default() {
            // A request for later counts once it is due: before that a failed run is started again.
            // Breaks if: it does not count; the job would be started again, and its time would not end.
            let due = match when {
                Some(When::At(at)) => at <= now,
                Some(When::After(count)) => self.steps_of(job.name.as_str(), epoch) as u64 >= count,
                None => false,
            };
            self.halts.extend(due.then_some(epoch));
            if epoch == self.epoch && !due {
                self.later = when;
            }
        }
    }

    /// What becomes of a request to halt later on when the run that it was for is followed by another one.
    pub fn halts_later(&self) -> Option<String> {
        let when = self.later?;
        let text = told_when(when, SystemClock::new().unix_ms()).0;
        Some(match when {
            When::At(_) => format!("it is to halt {text}"),
            // Breaks if: nothing is said; the operator waits for an end that nobody remembers.
            When::After(_) => {
                format!("the request to halt {text} was for that run: repeat it for the next one")
            }
        })
    }

    /// How many steps a run has committed.
    fn steps_of(&self, job: &str, epoch: u64) -> usize {
        let commits = self.commits.iter();
        let own = commits.filter(|(name, _, of, _)| name == job && of.counter == epoch);
        own.map(|(_, step, ..)| step).collect::<BTreeSet<_>>().len()
    }

    /// Whether some job has a newer step than it had: before, or before this epoch where nobody looked at it then.
    pub fn is_newer_than(&self, before: Option<&Seen>, first_epoch: Option<u64>) -> bool {
        let is_old = |commit: &Committed| {
            let looked = before.filter(|seen| seen.commits.iter().any(|old| old.0 == commit.0));
            match looked {
                Some(before) => before.commits.contains(commit),
                None => first_epoch.is_some_and(|epoch| commit.2.counter < epoch),
            }
        };
        self.commits.iter().any(|commit| {
            let mut others = self.commits.iter().filter(|other| other.0 == commit.0);
            !is_old(commit) && !others.any(|old| is_old(old) && old.1 >= commit.1)
        })
    }

    /// The newest step of all.
    pub fn newest_step(&self) -> Option<u64> {
        self.commits.iter().map(|(_, step, ..)| *step).max()
    }

    /// Whether nothing is committed.
    pub fn is_empty(&self) -> bool {
        self.commits.is_empty()
    }

    /// Whether a run after this epoch was asked to halt.
    pub fn halted_after(&self, epoch: u64) -> bool {
        self.halts.iter().any(|&asked| asked > epoch)
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
