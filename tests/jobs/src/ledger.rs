//! What the runs of a trial told the outside before they died, in a file that no fault touches.
//!
//! One line is one append, so that a run that is killed leaves whole lines behind.

use crate::payload::Origin;
use orcheck_client::Event;
use orcheck_format::Level;
use orcheck_io::failpoints::{Failpoint, FailpointHook, Failpoints, Verdict};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The writing side: used by the ranks of a run.
#[derive(Clone)]
pub struct Ledger {
    /// Open from the start: a run that is out of descriptors can still tell.
    file: Arc<File>,
    run: u64,
}

impl Ledger {
    /// The ledger of a trial, as run number `run` writes it.
    pub fn new(root: &Path, run: u64) -> Self {
        let file = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(root.join("ledger"))
            .unwrap();
        Self {
            file: Arc::new(file),
            run,
        }
    }

    /// What was acknowledged at a level up to a step counts no longer: the trial has taken a part
    /// of it away for good.
    pub fn give_up(root: &Path, level: Level, last: u64) {
        let path = root.join("ledger");
        let text = std::fs::read_to_string(&path).unwrap();
        let mut kept = String::new();
        for line in text.lines() {
            let words: Vec<&str> = line.splitn(5, ' ').collect();
            let of = |step: usize, at: usize| {
                let step = words.get(step).and_then(|step| step.parse().ok());
                step.is_some_and(|step: u64| step <= last)
                    && words.get(at) == Some(&level.to_string().as_str())
            };
            match words.get(1) {
                Some(&"acked") if of(2, 3) => continue,
                // It was told all the same.
                Some(&"safe") if of(3, 4) => kept += &line.replacen(" safe ", " gone ", 1),
                _ => kept += line,
            }
            kept.push('\n');
        }
        std::fs::write(&path, kept).unwrap();
    }

    fn line(&self, text: &str) {
        let mut line = String::new();
        let _ = writeln!(line, "{} {}", self.run, text.replace('\n', " "));
        (&*self.file).write_all(line.as_bytes()).unwrap();
    }

    /// The run's epoch counter.
    pub fn epoch(&self, counter: u64) {
        self.line(&format!("epoch {counter}"));
    }

    /// The run resumed from this state (`None`: it started from nothing).
    pub fn resumed(&self, from: Option<Origin>) {
        match from {
            Some(Origin { run, step }) => self.line(&format!("resumed {run} {step}")),
            None => self.line("fresh"),
        }
    }

    /// The run is about to take this checkpoint.
    pub fn begun(&self, step: u64) {
        self.line(&format!("begun {step}"));
    }

    /// `checkpoint` returned success.
    pub fn staged(&self, step: u64) {
        self.line(&format!("staged {step}"));
    }

    /// `wait` returned success.
    pub fn acked(&self, step: u64, level: Level) {
        self.line(&format!("acked {step} {level}"));
    }

    /// A rank on this node, in this epoch, begins a call in which it is told of losses.
    pub fn call(&self, rank: u32, node: &str, epoch: u64) {
        self.line(&format!("call {rank} {epoch} {node}"));
    }

    /// The call returned.
    pub fn done(&self, rank: u32) {
        self.line(&format!("done {rank}"));
    }

    /// A rank's call gave an error: for this rank the step was not staged, and the error has told
    /// it.
    pub fn refused(&self, rank: u32, step: u64) {
        self.line(&format!("refused {rank} {step}"));
    }

    /// A rank was told what became of a step.
    pub fn told(&self, rank: u32, event: &Event) {
        let Event { step, level, .. } = event;
        match &event.error {
            None => self.line(&format!("safe {rank} {step} {level}")),
            Some(error) => self.line(&format!("lost {rank} {step} {level} {error}")),
        }
    }

    /// A rank ended its session, and is told nothing any more; its levels.
    pub fn left(&self, rank: u32, levels: &[Level]) {
        let levels: Vec<String> = levels.iter().map(Level::to_string).collect();
        self.line(&format!("left {rank} {}", levels.join(" ")));
    }

    /// For hooks: notes what a node's control thread has published, "node epoch step level
    /// committed|lost". A hook knows no run. Nothing where the file cannot be opened: the run may
    /// be at a limit.
    pub fn look(root: &Path, step: &Failpoint) {
        if step.site != "control.published" {
            return;
        }
        let file = std::fs::OpenOptions::new()
            .append(true)
            .open(root.join("ledger"));
        if let Ok(mut file) = file {
            let _ = file.write_all(format!("0 decided {}\n", step.target).as_bytes());
        }
    }

    /// How many outcomes of a step a node has published, in any epoch.
    pub fn outcomes(root: &Path, node: &str, step: u64) -> usize {
        let text = std::fs::read_to_string(root.join("ledger")).unwrap_or_default();
        let of_node = text.lines().filter_map(|line| {
            let rest = line.strip_prefix("0 decided ")?.strip_prefix(node)?;
            rest.split(' ').nth(2)
        });
        of_node.filter(|found| found.parse() == Ok(step)).count()
    }

    /// Restored bytes were not those of one checkpoint.
    pub fn wrong(&self, text: &str) {
        self.line(&format!("wrong {text}"));
    }

    /// A call failed.
    pub fn error(&self, call: &str, error: &orcheck_format::Error) {
        self.line(&format!("error {call} {}: {error}", error.kind().name()));
    }

    /// A warning of the session.
    pub fn warning(&self, text: &str) {
        self.line(&format!("warning {text}"));
    }

    /// The run reached its end.
    pub fn closed(&self) {
        self.line("closed");
    }
}

/// A hook that only notes what is published.
struct Published(PathBuf);

impl FailpointHook for Published {
    fn at(&self, step: &Failpoint) -> Verdict {
        Ledger::look(&self.0, step);
        Verdict::Go
    }
}

/// Steps whose outcomes the ledger gets, and that all happen.
pub fn published(root: &Path) -> Failpoints {
    Failpoints::with(Arc::new(Published(root.to_owned())))
}

/// What one run told.
#[derive(Debug, Default, Clone)]
pub struct Told {
    pub epoch: Option<u64>,
    /// Outer `None`: it did not get that far.
    pub resumed: Option<Option<Origin>>,
    pub begun: BTreeSet<u64>,
    pub staged: BTreeSet<u64>,
    pub acked: BTreeSet<(u64, Level)>,
    /// What some rank was told to be safe.
    pub safe: BTreeSet<(u64, Level)>,
    pub wrong: Vec<String>,
    pub errors: Vec<String>,
    pub warnings: Vec<String>,
    pub closed: bool,
}

/// One of the moments that the oracle looks at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Moment {
    /// Rank, its epoch and node.
    Call(u32, u64, String),
    Done(u32),
    /// Rank, step, level; lost: with this text.
    Told(u32, u64, Level, Option<String>),
    Left(u32, Vec<Level>),
    /// Rank, step.
    Refused(u32, u64),
    /// By its node, epoch, step, level: lost.
    Decided(String, u64, u64, Level),
    Staged(u64),
}

/// What all runs of a trial told.
#[derive(Debug, Default)]
pub struct Story {
    pub runs: BTreeMap<u64, Told>,
    /// Without the moments.
    pub text: String,
    /// In the order in which they happened, each with its run.
    pub moments: Vec<(u64, Moment)>,
}

impl Story {
    /// Reads the ledger of a trial, which ranks may be writing: its last line counts once it is
    /// whole.
    pub fn read(root: &Path) -> Self {
        let mut all = std::fs::read_to_string(root.join("ledger")).unwrap_or_default();
        all.truncate(all.rfind('\n').map_or(0, |end| end + 1));
        Self::parse(all)
    }

    /// Reads what a ledger says.
    pub fn parse(all: String) -> Self {
        let mut runs: BTreeMap<u64, Told> = BTreeMap::new();
        let mut text = String::new();
        let mut moments = Vec::new();
        for line in all.lines() {
            let mut words = line.splitn(3, ' ');
            let run = words.next().and_then(|w| w.parse().ok()).unwrap();
            let (word, rest) = (
                words.next().unwrap_or_default(),
                words.next().unwrap_or_default(),
            );
            let moment = moment(word, rest);
            let shown = matches!(moment, None | Some(Moment::Staged(_)));
            moments.extend(moment.map(|moment| (run, moment)));
            if word == "decided" {
                continue;
            }
            let told = runs.entry(run).or_default();
            if shown {
                text += line;
                text.push('\n');
            }
            let numbers: Vec<u64> = rest.split(' ').map_while(|w| w.parse().ok()).collect();
            match word {
                "epoch" => told.epoch = Some(numbers[0]),
                "resumed" => {
                    told.resumed = Some(Some(Origin {
                        run: numbers[0],
                        step: numbers[1],
                    }))
                }
                "fresh" => told.resumed = Some(None),
                "begun" => {
                    told.begun.insert(numbers[0]);
                }
                "staged" => {
                    told.staged.insert(numbers[0]);
                }
                "acked" => {
                    let level = rest.split(' ').nth(1).unwrap().parse().unwrap();
                    told.acked.insert((numbers[0], level));
                }
                "safe" => {
                    let level = rest.split(' ').nth(2).unwrap().parse().unwrap();
                    told.safe.insert((numbers[1], level));
                }
                "call" | "done" | "gone" | "left" | "lost" | "refused" => {}
                "wrong" => told.wrong.push(rest.to_owned()),
                "error" => told.errors.push(rest.to_owned()),
                "warning" => told.warnings.push(rest.to_owned()),
                "closed" => told.closed = true,
                other => panic!("ledger line '{other}'"),
            }
        }
        Self {
            runs,
            text,
            moments,
        }
    }

    /// One run; empty if it told nothing.
    pub fn run(&self, run: u64) -> Told {
        self.runs.get(&run).cloned().unwrap_or_default()
    }

    /// Newest step acknowledged at a level (any level if `None`) by the runs before `before`, or
    /// told to be safe there.
    pub fn newest_acked(&self, before: u64, level: Option<Level>) -> Option<u64> {
        let told = self.runs.range(..before);
        let told = told.flat_map(|(_, told)| told.acked.iter().chain(&told.safe));
        told.filter(|(_, at)| level.is_none_or(|level| level == *at))
            .map(|(step, _)| *step)
            .max()
    }

    /// Whether a run before `before` may have left this state as the newest one; else why not.
    pub fn may_resume(&self, before: u64, found: Origin) -> Result<(), String> {
        let writer = self
            .runs
            .range(..before)
            .rev()
            .find(|(_, told)| told.begun.contains(&found.step));
        match writer {
            Some((&run, _)) if run == found.run => {}
            other => {
                return Err(format!(
                    "{found:?} was restored, but that step was begun last by run {:?}",
                    other.map(|w| w.0)
                ));
            }
        }
        for (later, told) in self.runs.range(found.run + 1..before) {
            // A run supersedes with its first checkpoint.
            if let Some(from) = told.resumed.filter(|_| !told.begun.is_empty())
                && from.is_none_or(|from| from.step < found.step)
            {
                return Err(format!(
                    "{found:?} was restored, but run {later} had resumed from {from:?} before"
                ));
            }
        }
        Ok(())
    }

    /// The newest step that must not be lost: acknowledged, or resumed from.
    pub fn floor(&self, before: u64) -> Option<u64> {
        let resumed = self
            .runs
            .range(..before)
            .filter_map(|(_, told)| told.resumed.flatten())
            .map(|from| from.step)
            .max();
        self.newest_acked(before, None).max(resumed)
    }
}

/// What the oracle reads of a line, if anything.
fn moment(word: &str, rest: &str) -> Option<Moment> {
    let mut words = rest.splitn(5, ' ');
    let mut next = || words.next().unwrap_or_default();
    Some(match word {
        "call" => {
            let (rank, epoch) = (next().parse().unwrap(), next().parse().unwrap());
            Moment::Call(rank, epoch, next().to_owned())
        }
        "done" => Moment::Done(next().parse().unwrap()),
        "refused" => Moment::Refused(next().parse().unwrap(), next().parse().unwrap()),
        "safe" | "gone" | "lost" => {
            let (rank, step) = (next().parse().unwrap(), next().parse().unwrap());
            let level = next().parse().unwrap();
            let text = rest.splitn(4, ' ').nth(3).map(str::to_owned);
            Moment::Told(rank, step, level, text.filter(|_| word == "lost"))
        }
        "left" => {
            let mut words = rest.split(' ').filter(|word| !word.is_empty());
            let rank = words.next().unwrap().parse().unwrap();
            Moment::Left(rank, words.map(|level| level.parse().unwrap()).collect())
        }
        "decided" => {
            let (node, epoch) = (next().to_owned(), next().parse().unwrap());
            let (step, level) = (next().parse().unwrap(), next().parse().unwrap());
            // Level process has no events.
            let told = level != Level::Process && next() == "lost";
            return told.then_some(Moment::Decided(node, epoch, step, level));
        }
        "staged" => Moment::Staged(next().parse().unwrap()),
        _ => return None,
    })
}
