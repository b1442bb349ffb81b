//! The power goes out before each step, and the disks hold whatever they may hold then.
//!
//! How: each workload is lived once over a journal of its effects. For every moment between two effects the images
//! that a power cut may leave are made (`orcheck_io::testing::outage` says which), and a restart looks at each. What
//! must be found is what had been acknowledged at that moment. Some images are written to a real file system, where
//! the next run has to come up, go on and leave nothing behind.
//!
//! `ORCHECK_TRIALS` is the number of states over all workloads, `ORCHECK_SEED` chooses among them.

use crate::ledger::Story;
use crate::life::{Life, NODES, PAIR, SOLO, SPREAD, STRIPED, View, Workload};
use crate::look::{Found, restart};
use crate::payload::Origin;
use crate::trial::{Failure, Outcome, Random, Verdict, apart, heal, seed, share, told, trials};
use orcheck_format::ids::Level;
use orcheck_io::clock::{Clock, SystemClock};
use orcheck_io::steps::Verdict as Do;
use orcheck_io::testing::image::Image;
use orcheck_io::testing::journal::{Journal, Log};
use orcheck_io::testing::outage::{Disk, Part, choice, choices};
use orcheck_io::testing::{FaultPlan, Scratch};
use std::collections::{BTreeSet, HashMap};

/// As [`SOLO`], with next to no state and no routed file.
const LONE: Workload = Workload {
    scale: 1,
    routed: false,
    ..SOLO
};

/// What lies in the directories when the recorded run begins.
#[derive(Clone, Copy)]
enum Past {
    /// Nothing.
    Empty,
    /// A run that ended well after three checkpoints.
    Run,
    /// A run that was killed before its nth step of this kind.
    Killed(&'static str, u64),
}

const fn named(name: &'static str, workload: Workload) -> Workload {
    Workload { name, ..workload }
}

/// One line is one workload.
#[rustfmt::skip]
const PLAN: &[(Workload, Past)] = &[
    (named("tiny", LONE), Past::Empty),
    (named("tiny, keep 1", Workload { keep: 1, ..LONE }), Past::Empty),
    (named("tiny, keep 3", Workload { keep: 3, ..LONE }), Past::Empty),
    (named("tiny, level node", Workload { dirs: 0, node_level: true, ..LONE }), Past::Empty),
    (named("tiny, both levels", Workload { node_level: true, ..LONE }), Past::Empty),
    (named("tiny, two nodes, both levels", Workload { ranks: 2, nodes: 2, dirs: 2, node_level: true, ..LONE }), Past::Empty),
    (named("several chunks", Workload { scale: 260, ..LONE }), Past::Empty),
    (named("buffered", Workload { options: "direct = false", scale: 30, ..LONE }), Past::Empty),
    (named("routed file", Workload { scale: 5, ..SOLO }), Past::Empty),
    (named("lent", Workload { lent: true, scale: 80, ..LONE }), Past::Empty),
    (named("pool smaller than snapshot", Workload { options: "pool = '256 KiB'", scale: 400, ..LONE }), Past::Empty),
    (named("two ranks, overlapped", Workload { ranks: 2, overlapped: true, ..LONE }), Past::Empty),
    (named("paper's marshal", Workload { ranks: 4, options: "marshal = 'paper'", ..LONE }), Past::Empty),
    (named("a writer per core", Workload { ranks: 4, dirs: 2, options: "scheme = 'core'", ..LONE }), Past::Empty),
    (named("two lanes", Workload { ranks: 2, dirs: 2, options: "lanes_per_node = 2", ..LONE }), Past::Empty),
    (named("vertical", Workload { ranks: 2, nodes: 2, dirs: 2, options: "mode = 'vertical'", ..LONE }), Past::Empty),
    (named("traditional", Workload { scale: 20, ..STRIPED }), Past::Empty),
    (named("traditional, both levels", Workload { node_level: true, keep: 2, scale: 5, ..STRIPED }), Past::Empty),
    (named("two nodes, global", Workload { scale: 4, ..SPREAD }), Past::Empty),
    (named("two nodes, keep 1, both levels", Workload { keep: 1, scale: 2, ..PAIR }), Past::Empty),
    (named("four ranks, small pool, lent", Workload { scale: 90, ..NODES }), Past::Empty),
    (named("tiny, second run", LONE), Past::Run),
    (named("keep 3, second run", Workload { keep: 3, node_level: true, ..LONE }), Past::Run),
    (named("two nodes, second run", Workload { scale: 3, ..PAIR }), Past::Run),
    (named("four ranks, second run", Workload { scale: 10, ..NODES }), Past::Run),
    (named("traditional, second run", Workload { scale: 10, ..STRIPED }), Past::Run),
    (named("after a killed commit", Workload { scale: 3, ..PAIR }), Past::Killed("dir.rename", 9)),
    (named("after a killed flush", Workload { scale: 3, ..PAIR }), Past::Killed("file.sync", 14)),
    (named("after a killed prune", Workload { scale: 3, ..SPREAD }), Past::Killed("dir.remove", 16)),
];

/// Checkpoints of the recorded run: enough that the keep rule makes the last ones prune.
fn checkpoints(workload: &Workload, past: Past) -> u64 {
    match past {
        Past::Empty => workload.keep as u64 + 1,
        _ => 2,
    }
}

/// What was recorded of one run.
struct Recorded {
    log: Log,
    /// What the runs told, whole; a mark of the log is a length of it.
    ledger: String,
    run: u64,
}

fn record(workload: &Workload, past: Past) -> Recorded {
    let scratch = Scratch::in_memory("recorded");
    let root = scratch.path();
    // The configured directories are the user's, and were there before.
    drop(workload.job(root, orcheck_io::steps::Steps::none()));
    let run = match past {
        Past::Empty => 1,
        Past::Run => {
            apart(&Life::new(*workload, root, 1, 3));
            assert!(Story::read(root).run(1).closed, "the first run");
            2
        }
        Past::Killed(site, nth) => {
            let plan = FaultPlan::new().at_site(site, nth, Do::Kill);
            let steps = std::sync::Arc::new(plan);
            let steps = orcheck_io::steps::Steps::with(steps);
            apart(&Life::new(*workload, root, 1, 4).steps(steps));
            assert!(!Story::read(root).run(1).closed, "{site} {nth} never came");
            2
        }
    };
    let ledger = root.join("ledger");
    let mark = {
        let ledger = ledger.clone();
        move || std::fs::metadata(&ledger).map_or(0, |found| found.len())
    };
    let journal = Journal::begin(root, Box::new(mark)).unwrap();
    let checkpoints = checkpoints(workload, past);
    Life::new(*workload, root, run, checkpoints)
        .steps(journal.steps())
        .live(&|_| {});
    let log = journal.end().unwrap();
    let ledger = std::fs::read_to_string(ledger).unwrap();
    let story = Story::parse(ledger.clone());
    let mine = story.run(run);
    assert!(
        mine.closed && mine.errors.is_empty(),
        "recording: {}",
        told(&story)
    );
    Recorded { log, ledger, run }
}

/// What a restart finds on one image, by level and over all.
type Looked = Result<(Vec<(Level, Found)>, Found), Failure>;

fn look(workload: &Workload, image: &Image) -> Looked {
    let mut levels = Vec::new();
    for level in workload.levels().into_iter().rev() {
        levels.push((level, restart(workload, image, View::Only(level))?));
    }
    Ok((levels, restart(workload, image, View::All)?))
}

/// Judges what was found by what had been told until then.
fn judge(looked: &Looked, story: &Story, run: u64) -> Result<(), Failure> {
    let (levels, all) = looked.as_ref().map_err(Clone::clone)?;
    let mut strongest = None;
    for (level, found) in levels {
        // What is acknowledged at a level is safe there or at one that survives more.
        strongest = strongest.max(found.origin.map(|origin| origin.step));
        let acked = story.newest_acked(run + 1, Some(*level));
        if strongest < acked {
            let text = format!("level {level} acknowledged {acked:?}, found is {strongest:?}");
            return Err((Verdict::LostWork, text));
        }
    }
    let begun = story.runs.values().flat_map(|told| &told.begun).max();
    let step = all.origin.map(|origin| origin.step);
    if step < story.floor(run + 1) || step.as_ref() > begun {
        let text = format!(
            "found {:?}, expected from {:?} to {begun:?}",
            all.origin,
            story.floor(run + 1)
        );
        return Err((Verdict::LostWork, text));
    }
    let origins = levels.iter().map(|(_, found)| found).chain([all]);
    for origin in origins.filter_map(|found| found.origin) {
        story
            .may_resume(run + 1, origin)
            .map_err(|text| (Verdict::SilentWrong, text))?;
    }
    // A power cut damages nothing that a record names.
    match levels
        .iter()
        .map(|(_, found)| found)
        .chain([all])
        .find(|found| !found.damage.is_empty())
    {
        Some(found) => Err((Verdict::FellBack, found.damage.join("; "))),
        None => Ok(()),
    }
}

/// The real thing: the next run in these directories.
fn go_on(
    workload: &Workload,
    image: &Image,
    ledger: &str,
    run: u64,
) -> Result<Option<Origin>, Failure> {
    let scratch = Scratch::in_memory("powered");
    image.write(scratch.path()).unwrap();
    std::fs::write(scratch.path().join("ledger"), ledger).unwrap();
    heal(workload, scratch.path(), run + 1)
}

/// Everything about one workload.
struct Trial<'a> {
    workload: &'a Workload,
    recorded: &'a Recorded,
    seed: u64,
    /// States to try, and how many of the images shall go through a real run.
    states: u64,
    sessions: u64,
    known: HashMap<[u8; 32], Looked>,
    stories: HashMap<u64, Story>,
    tried: u64,
    healed: u64,
}

impl Trial<'_> {
    fn run(&mut self) -> Result<(), Failure> {
        let recorded = self.recorded;
        let mut disk = Disk::new(&recorded.log);
        let mut random = Random::new(self.seed);
        loop {
            let mut seen: Option<usize> = None;
            let share = self.share(disk.at());
            for grain in [None, Some(4096), Some(512)] {
                let parts = disk.parts(grain);
                // Nothing to cut smaller.
                if seen.replace(parts.len()) == Some(parts.len()) {
                    continue;
                }
                let all = choices(parts.len());
                for number in chosen(all, parts.len() as u64, share, &mut random) {
                    self.one(&disk, &parts, number, grain)?;
                }
            }
            if !disk.advance() {
                return Ok(());
            }
        }
    }

    /// States for the moment before effect `at` at one grain: as many for each moment.
    fn share(&self, at: usize) -> u64 {
        let left = self.states.saturating_sub(self.tried);
        let moments = (self.recorded.log.count() + 1 - at) as u64;
        (left / moments).max(3)
    }

    fn one(
        &mut self,
        disk: &Disk,
        parts: &[Part],
        number: u64,
        grain: Option<u64>,
    ) -> Result<(), Failure> {
        let (workload, recorded) = (self.workload, self.recorded);
        let kept = choice(parts, number, self.seed);
        let image = disk.image(parts, &kept);
        self.tried += 1;
        let mark = recorded.log.mark(disk.at());
        let ledger = &recorded.ledger[..mark as usize];
        let story = self
            .stories
            .entry(mark)
            .or_insert_with(|| Story::parse(ledger.to_owned()));
        let digest = image.digest();
        let new = !self.known.contains_key(&digest);
        let looked = self
            .known
            .entry(digest)
            .or_insert_with(|| look(workload, &image));
        let judged = judge(looked, story, recorded.run).and_then(|()| {
            // An even share of the states, and no image twice.
            if !new || self.healed * self.states > self.tried * self.sessions {
                return Ok(());
            }
            self.healed += 1;
            go_on(workload, &image, ledger, recorded.run).map(|_| ())
        });
        judged.map_err(|(verdict, text)| {
            let lost: Vec<String> = parts
                .iter()
                .zip(&kept)
                .filter(|(_, kept)| !**kept)
                .map(|(part, _)| format!("{:?} of '{}'", part.what, recorded.log.name(part.entry)))
                .collect();
            let at = disk.at();
            let text = format!(
                "power lost before effect {at} ({}), grain {grain:?}, subset {number}, lost: {}; files: {}; {text}; {}",
                recorded.log.name(at),
                lost.join(", "),
                image.files().join(" "),
                told(story)
            );
            (verdict, text)
        })
    }
}

/// Which of `all` subsets: all of them, or nothing, everything, and a spread over the kinds of subsets.
fn chosen(all: u64, parts: u64, share: u64, random: &mut Random) -> BTreeSet<u64> {
    if all <= share {
        return (0..all).collect();
    }
    // Subset 0 keeps nothing, in every order of counting; the one that keeps everything differs.
    let whole = if all == 1 << parts.min(63) {
        all - 1
    } else {
        parts
    };
    let mut chosen = BTreeSet::from([0, whole]);
    while (chosen.len() as u64) < share {
        let few = (2 * parts + 1).min(all);
        let number = match random.below(3) {
            0 => random.below(few),
            1 => all - 1 - random.below(all.min(1000)),
            _ => random.below(all),
        };
        chosen.insert(number);
    }
    chosen
}

/// States at the size of every day.
const QUICK: usize = 30_000;

// Breaks if: any sync of a container, record, claim or directory is left out; a record is renamed before it is
// synced, or written in place; prune removes a container before its records are durably gone; or a directory is
// made without syncing the one above.
pub fn power_lost_at_every_step() {
    let seed = seed();
    let all = trials(QUICK) as u64;
    let states = all / PLAN.len() as u64;
    println!("  seed {seed} (ORCHECK_SEED), {states} states of each workload (ORCHECK_TRIALS)");
    let outcomes = share(PLAN.len(), &|number| {
        let (workload, past) = &PLAN[number];
        let begun = SystemClock.now();
        let recorded = record(workload, *past);
        let recorded_s = (SystemClock.now() - begun).as_secs_f64();
        let mut trial = Trial {
            workload,
            recorded: &recorded,
            seed: seed.wrapping_add(number as u64),
            states,
            sessions: states.div_ceil(60).min(2000),
            known: HashMap::new(),
            stories: HashMap::new(),
            tried: 0,
            healed: 0,
        };
        let result = trial.run();
        let spent_s = (SystemClock.now() - begun).as_secs_f64();
        let row = format!(
            "{:>7} {:>7} {:>7} {:>7} {:>6.1} {:>6.1}",
            recorded.log.count(),
            trial.tried,
            trial.known.len(),
            trial.healed,
            recorded_s,
            spent_s
        );
        match result {
            Ok(()) => Outcome {
                verdict: Verdict::Pass,
                struck: true,
                text: row,
            },
            failed => Outcome::of(true, failed.map(|()| Verdict::Pass)),
        }
    });
    println!("  power lost at every step");
    println!(
        "  {:<34} effects  states  images    runs  rec. s      s",
        ""
    );
    let mut failures = Vec::new();
    let (mut tried, mut images, mut runs) = (0, 0, 0);
    for ((workload, _), outcome) in PLAN.iter().zip(&outcomes) {
        if outcome.verdict == Verdict::Pass {
            println!("  {:<34} {}", workload.name, outcome.text);
            let numbers: Vec<u64> = outcome
                .text
                .split_whitespace()
                .filter_map(|word| word.parse().ok())
                .collect();
            tried += numbers[1];
            images += numbers[2];
            runs += numbers[3];
        } else {
            println!("  {:<34} {:?}", workload.name, outcome.verdict);
            failures.push(format!(
                "{}: {:?}: {}",
                workload.name, outcome.verdict, outcome.text
            ));
        }
    }
    println!("  {tried} states, {images} different images, {runs} of them through a real run");
    for failure in &failures {
        println!("  FAILED {failure}");
    }
    assert!(
        failures.is_empty(),
        "{} workloads failed; again: ORCHECK_SEED={seed} ORCHECK_TRIALS={all} cargo test -p orcheck-client --test power -- cuts",
        failures.len()
    );
}
