//! Trials: verdicts, their table, the run that must come up again after a fault, and workers that
//! share the trials.

use crate::ledger::Story;
use crate::life::{Life, View, Workload};
use crate::oracle::{self, Counts};
use crate::payload::Origin;
use crate::records::records;
use orcheck_io::failpoints::Failpoints;
use orcheck_io::user::env_var;
use orcheck_staging::open_dir;
use orcheck_testing::{Child, Ended, Scratch};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::OnceLock;
use std::time::Duration;

/// Longest life of a run before it counts as hanging.
pub const PATIENCE: Duration = Duration::from_secs(90);

/// How a trial ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// The newest that could be expected, bit for bit.
    Pass,
    /// Nothing restorable was promised, and an error said what is wrong.
    ClearFail,
    /// The damaged newest was skipped with a warning, an older one restored bit for bit.
    FellBack,
    /// An acknowledged checkpoint is gone.
    LostWork,
    /// Nothing continues without a person.
    HardFail,
    /// Other bytes than those of one checkpoint.
    SilentWrong,
    /// Longer than the deadline.
    Hang,
    /// Something was left behind.
    Leak,
}

const ALL: [(Verdict, &str); 8] = [
    (Verdict::Pass, "PASS"),
    (Verdict::ClearFail, "CLEAR_FAIL"),
    (Verdict::FellBack, "FELL_BACK"),
    (Verdict::LostWork, "LOST_WORK"),
    (Verdict::HardFail, "HARD_FAIL"),
    (Verdict::SilentWrong, "SILENT_WRONG"),
    (Verdict::Hang, "HANG"),
    (Verdict::Leak, "LEAK"),
];

/// Why a trial is not a pass.
pub type Failure = (Verdict, String);

/// The result of one trial.
#[derive(Debug, Clone)]
pub struct Outcome {
    pub verdict: Verdict,
    /// Whether the fault happened at all.
    pub struck: bool,
    pub text: String,
}

impl Outcome {
    pub fn of(struck: bool, result: Result<Verdict, Failure>) -> Self {
        match result {
            Ok(verdict) => Self {
                verdict,
                struck,
                text: String::new(),
            },
            Err((verdict, text)) => Self {
                verdict,
                struck,
                text,
            },
        }
    }

    pub fn line(&self) -> String {
        let name = ALL
            .iter()
            .find(|(verdict, _)| *verdict == self.verdict)
            .map_or("", |(_, name)| name);
        format!(
            "{name}\t{}\t{}",
            u8::from(self.struck),
            self.text.replace('\n', " | ")
        )
    }

    pub fn parse(line: &str) -> Self {
        let mut parts = line.splitn(3, '\t');
        let name = parts.next().unwrap_or_default();
        let struck = parts.next() == Some("1");
        let text = parts.next().unwrap_or_default().to_owned();
        let verdict = ALL
            .iter()
            .find(|(_, known)| *known == name)
            .map(|(verdict, _)| *verdict);
        Self {
            verdict: verdict.unwrap_or(Verdict::HardFail),
            struck,
            text,
        }
    }
}

/// Counts outcomes by row and verdict.
#[derive(Default)]
pub struct Table {
    rows: Vec<(String, BTreeMap<Verdict, usize>, usize)>,
    failures: Vec<String>,
}

impl Table {
    /// Adds outcomes to one row; `allowed` are the verdicts that are no failure.
    pub fn add(&mut self, row: &str, names: &[String], outcomes: &[Outcome], allowed: &[Verdict]) {
        let number = self.rows.iter().position(|(known, ..)| known == row);
        let number = number.unwrap_or_else(|| {
            self.rows.push((row.to_owned(), BTreeMap::new(), 0));
            self.rows.len() - 1
        });
        let (_, counts, idle) = &mut self.rows[number];
        for (outcome, name) in outcomes.iter().zip(names) {
            *counts.entry(outcome.verdict).or_default() += 1;
            *idle += usize::from(!outcome.struck);
            if !allowed.contains(&outcome.verdict) {
                self.failures.push(format!(
                    "{row}: {:?} at [{name}]: {}",
                    outcome.verdict, outcome.text
                ));
            }
        }
    }

    /// Prints the table and fails when a trial ended otherwise than allowed.
    pub fn finish(self, title: &str) {
        let head: Vec<&str> = ALL.iter().map(|(_, name)| *name).collect();
        println!("  {title}");
        println!(
            "  {:<52} {:>6} {:>6}  {}",
            "",
            "trials",
            "idle",
            head.join(" ")
        );
        for (row, counts, idle) in &self.rows {
            let numbers: Vec<String> = ALL
                .iter()
                .map(|(verdict, name)| {
                    format!(
                        "{:>width$}",
                        counts.get(verdict).copied().unwrap_or(0),
                        width = name.len()
                    )
                })
                .collect();
            let all: usize = counts.values().sum();
            println!("  {row:<52} {all:>6} {idle:>6}  {}", numbers.join(" "));
        }
        for failure in self.failures.iter().take(8) {
            println!("  FAILED {failure}");
        }
        for (row, counts, idle) in &self.rows {
            // Threads make a few steps come or not; when many do not come, the trials try nothing.
            let all: usize = counts.values().sum();
            assert!(
                idle.saturating_sub(1) * 3 <= all && (*idle < all || all == 0),
                "{row}: {idle} of {all} faults never happened"
            );
        }
        assert!(
            self.failures.is_empty(),
            "{} trials of '{title}' failed",
            self.failures.len()
        );
    }
}

/// The number of trials of a campaign: `ORCHECK_TRIALS` raises it.
pub fn trials(quick: usize) -> usize {
    env_var("ORCHECK_TRIALS")
        .and_then(|text| text.parse().ok())
        .map_or(quick, |asked: usize| asked.max(quick))
}

/// The seed of this run: `ORCHECK_SEED`, or a fresh one. Printed by whoever uses it.
pub fn seed() -> u64 {
    // Chosen before the first test forks: one seed for all of them.
    static SEED: OnceLock<u64> = OnceLock::new();
    *SEED.get_or_init(|| {
        env_var("ORCHECK_SEED")
            .and_then(|text| text.parse().ok())
            .unwrap_or_else(|| u64::from(u32::from_le_bytes(orcheck_io::rng::random_bytes())))
    })
}

/// Of each class every `part`th, from another first one with each seed, and at least one: a quick
/// run leaves no class out, and many of them leave nothing out. In the order of the list.
pub fn spread<T>(list: Vec<T>, part: usize, class: impl Fn(&T) -> String) -> Vec<T> {
    let mut sizes: BTreeMap<String, usize> = BTreeMap::new();
    for item in &list {
        *sizes.entry(class(item)).or_default() += 1;
    }
    let from = Random::new(seed()).next() as usize;
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    let chosen = |item: &T| {
        let class = class(item);
        let part = part.clamp(1, sizes[&class]);
        let number = seen.entry(class).or_default();
        *number += 1;
        *number % part == from % part
    };
    list.into_iter().filter(chosen).collect()
}

/// A small generator, the same everywhere.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed ^ 0x9e37_79b9_7f4a_7c15)
    }

    #[allow(clippy::should_implement_trait)] // it never ends
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit.max(1)
    }
}

/// Runs trials 0 … `count` − 1 in as many processes as there are processors, one trial at a time in
/// each; outcomes in order. Must be called from a process with one thread.
pub fn share(count: usize, trial: &dyn Fn(usize) -> Outcome) -> Vec<Outcome> {
    let processors = std::thread::available_parallelism().map_or(2, std::num::NonZero::get);
    share_among(processors.clamp(2, 8), count, trial)
}

/// As [`share`], with this many processes.
pub fn share_among(workers: usize, count: usize, trial: &dyn Fn(usize) -> Outcome) -> Vec<Outcome> {
    let scratch = Scratch::in_memory("outcomes");
    let path = |worker: usize| scratch.path().join(worker.to_string());
    let children: Vec<Child> = (0..workers)
        .map(|worker| {
            let path = path(worker);
            Child::run(move || {
                use std::io::Write as _;
                let mut file = std::fs::File::create(&path).unwrap();
                for number in (worker..count).step_by(workers) {
                    let outcome = trial(number);
                    writeln!(file, "{number}\t{}", outcome.line()).unwrap();
                }
                0
            })
        })
        .collect();
    let limit = PATIENCE * u32::try_from(count.max(4)).unwrap_or(u32::MAX);
    for child in children {
        let _ = child.wait(limit);
    }
    let missing = Outcome {
        verdict: Verdict::HardFail,
        struck: false,
        text: "the worker died".to_owned(),
    };
    let mut outcomes = vec![missing; count];
    for worker in 0..workers {
        for line in std::fs::read_to_string(path(worker))
            .unwrap_or_default()
            .lines()
        {
            let (number, rest) = line.split_once('\t').unwrap();
            outcomes[number.parse::<usize>().unwrap()] = Outcome::parse(rest);
        }
    }
    outcomes
}

/// Lives a life in a process of its own.
pub fn apart(life: &Life) -> Ended {
    apart_with(life, &|_| {})
}

/// As [`apart`], with something to do on rank 0 before each checkpoint.
pub fn apart_with(life: &Life, between: &(dyn Fn(u64) + Sync)) -> Ended {
    Child::run(|| {
        life.live(between);
        0
    })
    .wait(PATIENCE)
}

/// What the ledger says before anything is tried again: no wrong bytes, and every level holds what
/// it acknowledged.
pub fn check_promises(workload: &Workload, root: &Path, before: u64) -> Result<Story, Failure> {
    let story = Story::read(root);
    for (run, told) in &story.runs {
        if let Some(text) = told.wrong.first() {
            return Err((Verdict::SilentWrong, format!("run {run}: {text}")));
        }
    }
    judged(workload, root, &story)?;
    let mut strongest = None;
    for level in workload.levels().into_iter().rev() {
        let found = workload
            .readable(root, View::Only(level))
            .map_err(|text| (Verdict::SilentWrong, text))?;
        // What is acknowledged at a level is safe there or at one that survives more.
        strongest = strongest.max(found.map(|origin| origin.step));
        let acked = story.newest_acked(before, Some(level));
        if strongest < acked {
            return Err((
                Verdict::LostWork,
                format!(
                    "level {level} acknowledged step {acked:?}, readable is {strongest:?}; {}",
                    told(&story)
                ),
            ));
        }
        if let Some(found) = found {
            story
                .may_resume(before, found)
                .map_err(|text| (Verdict::SilentWrong, text))?;
        }
    }
    Ok(story)
}

/// What the oracle says of all that was reported until now.
pub fn judged(workload: &Workload, root: &Path, story: &Story) -> Result<Counts, Failure> {
    oracle::judge(workload, root, story)
        .map_err(|text| (Verdict::SilentWrong, format!("{text}; {}", told(story))))
}

/// No record promises what is not there whole, and the newest acknowledged step, or a newer one, is
/// recorded in every directory.
pub fn check_records(workload: &Workload, root: &Path) -> Result<(), Failure> {
    let story = Story::read(root);
    oracle::kept(workload, root, &story)
        .map_err(|text| (Verdict::LostWork, format!("{text}; {}", told(&story))))?;
    let open = |path: &Path| open_dir(&root.join(path), Failpoints::none()).ok();
    let mut found = records(workload, &open);
    for level in workload.levels() {
        let Some(acked) = story.newest_acked(u64::MAX, Some(level)) else {
            continue;
        };
        // Committed at a stronger level is acknowledged at this one too; and older ones may be
        // going already.
        let whole = found.dirs.iter().any(|((held, step, _), dirs)| {
            *held >= level && *step >= acked && dirs.len() == workload.dirs_of(*held)
        });
        if !whole {
            let text = format!(
                "level {level} acknowledged step {acked}; recorded is {:?}",
                found.dirs
            );
            found.broken.push(text);
        }
    }
    if found.broken.is_empty() {
        return Ok(());
    }
    Err((
        Verdict::LostWork,
        format!("{}; {}", found.broken.join(", "), told(&story)),
    ))
}

/// A run without faults comes up after all that happened: it must resume from what was promised,
/// take enough checkpoints that the keep rule is met, close, and leave nothing behind.
pub fn heal(workload: &Workload, root: &Path, run: u64) -> Result<Option<Origin>, Failure> {
    let story = check_promises(workload, root, run)?;
    let floor = story.floor(run);
    let begun = story
        .runs
        .range(..run)
        .flat_map(|(_, told)| &told.begun)
        .max()
        .copied();
    // The keep rule counts what a level has: where one lacks the newest, this run has to fill it
    // alone.
    let mut newest = Vec::new();
    for level in workload.levels() {
        let found = workload.readable(root, View::Only(level));
        newest.push(found.map_err(|text| (Verdict::SilentWrong, text))?);
    }
    let alike = newest[0].is_some() && newest.iter().all(|found| *found == newest[0]);
    let checkpoints = if alike { 1 } else { workload.keep as u64 };
    let life = Life::new(*workload, root, run, checkpoints);
    match apart(&life) {
        Ended::Exited(0) => {}
        Ended::Hung => {
            return Err((
                Verdict::Hang,
                format!("the next run; {}", told(&Story::read(root))),
            ));
        }
        ended => {
            return Err((
                Verdict::HardFail,
                format!(
                    "the next run ended with {ended:?}; {}",
                    told(&Story::read(root))
                ),
            ));
        }
    }
    let story = Story::read(root);
    let mine = story.run(run);
    if let Some(text) = mine.wrong.first() {
        return Err((Verdict::SilentWrong, text.clone()));
    }
    if !mine.errors.is_empty() || !mine.closed {
        return Err((
            Verdict::HardFail,
            format!("the next run: {:?}; {}", mine.errors, told(&story)),
        ));
    }
    let resumed = mine.resumed.flatten();
    if resumed.map(|origin| origin.step) < floor || resumed.map(|origin| origin.step) > begun {
        return Err((
            Verdict::LostWork,
            format!(
                "resumed from {resumed:?}, expected between {floor:?} and {begun:?}; {}",
                told(&story)
            ),
        ));
    }
    if let Some(found) = resumed {
        story
            .may_resume(run, found)
            .map_err(|text| (Verdict::SilentWrong, text))?;
    }
    let remains = workload.remains(root, &story, run);
    if !remains.is_empty() {
        return Err((
            Verdict::Leak,
            format!("{}; {}", remains.join(", "), told(&story)),
        ));
    }
    check_promises(workload, root, run + 1)?;
    Ok(resumed)
}

/// The ledger on one line.
pub fn told(story: &Story) -> String {
    story.text.replace('\n', " / ")
}
