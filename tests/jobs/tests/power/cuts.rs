//! The power goes out before each step, and the disks hold whatever they may hold then.
//!
//! How: each workload is lived once over a journal of its effects. For every moment between two
//! effects the images that a power cut may leave are made (`orcheck_testing::power::outage` says
//! which), and a restart looks at each. What must be found is what had been acknowledged at that
//! moment. Some images are written to a real file system, where the next run has to come up,
//! continue and leave nothing behind.
//!
//! `ORCHECK_SEED` chooses among the states; in a campaign 50 times `ORCHECK_TRIALS` are tried over
//! all workloads.

use crate::look::{Found, restart};
use orcheck_format::Level;
use orcheck_io::clock::{Clock, SystemClock};
use orcheck_io::failpoints::{Effect, Failpoint, FailpointHook, Failpoints, Verdict as Do};
use orcheck_jobs::ledger::Story;
use orcheck_jobs::life::{Life, NODES, PAIR, SEALED, SOLO, SPREAD, STRIPED, View, Workload};
use orcheck_jobs::payload::{Origin, RARELY};
use orcheck_jobs::records::{Kinds, records};
use orcheck_jobs::trial::{
    Failure, Outcome, Random, Verdict, apart, heal, seed, share, told, trials,
};
use orcheck_testing::power::{Disk, Image, Journal, Log, Part, choice, choices};
use orcheck_testing::{FaultPlan, Scratch};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

/// The error number of a device that fails.
const EIO: i32 = 5;

/// As [`SOLO`], with next to no state and no routed file.
const LONE: Workload = Workload {
    scale: 1,
    routed: false,
    ..SOLO
};

/// As [`LONE`], with checkpoints that refer to older ones.
const GROWING: Workload = Workload {
    scale: 400 | RARELY,
    options: "incremental = 'auto'\nincremental_chain = 3",
    ..LONE
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
    /// A run during which power was lost, after this many thousandths of its effects.
    Cut(usize),
    /// Nothing, but the recorded run fails with EIO at its nth step of this kind.
    Failing(&'static str, u64),
}

/// Notes what is done, and lets the steps fail that a plan names.
struct Both(Arc<Journal>, FaultPlan);

impl FailpointHook for Both {
    fn at(&self, step: &Failpoint) -> Do {
        self.0.at(step);
        self.1.at(step)
    }

    fn done(&self, effect: &Effect) {
        self.0.done(effect);
    }
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
    (named("after lost power, early", Workload { scale: 3, ..PAIR }), Past::Cut(400)),
    (named("after lost power, late", Workload { scale: 3, ..PAIR }), Past::Cut(900)),
    (named("after lost power, striped", Workload { scale: 10, ..STRIPED }), Past::Cut(700)),
    (named("a container's fsync fails", Workload { node_level: true, ..LONE }), Past::Failing("file.sync", 5)),
    (named("a directory's fsync fails", Workload { ranks: 2, nodes: 2, dirs: 2, ..LONE }), Past::Failing("dir.sync", 14)),
    (named("a fsync of prune fails", LONE), Past::Failing("dir.sync", 10)),
    (named("after a killed prune", Workload { scale: 3, ..SPREAD }), Past::Killed("dir.remove", 16)),
    (named("incremental", GROWING), Past::Empty),
    (named("incremental, keep 1", Workload { keep: 1, ..GROWING }), Past::Empty),
    (named("incremental, both levels, lent", Workload { lent: true, node_level: true, ..GROWING }), Past::Empty),
    (named("incremental, overlapped, small pool", Workload { overlapped: true, options: "incremental = 'auto'\npool = '256 KiB'", ..GROWING }), Past::Empty),
    (named("incremental, second run", Workload { keep: 3, ..GROWING }), Past::Run),
    (named("incremental, after a killed prune", Workload { keep: 1, ..GROWING }), Past::Killed("dir.remove", 6)),
    (named("incremental, a container's fsync fails", GROWING), Past::Failing("file.sync", 7)),
    (named("zstd", Workload { options: "compress = 'zstd'", scale: 100, ..LONE }), Past::Empty),
    (named("lz4, two nodes, both levels", Workload { options: "compress = 'lz4'", scale: 60, ..PAIR }), Past::Empty),
    (named("encrypted", Workload { options: "encrypt = 'aes-256-gcm'", scale: 40, ..LONE }), Past::Empty),
    (named("incremental, lz4", Workload { options: "incremental = 'auto'\ncompress = 'lz4'", ..GROWING }), Past::Empty),
    (named("incremental, zstd, encrypted", SEALED), Past::Empty),
    (named("the same on one node after lost power", Workload { ranks: 1, nodes: 1, dirs: 1, ..SEALED }), Past::Cut(600)),
];

/// Checkpoints of the recorded run: enough that the keep rule makes the last ones prune, and that
/// checkpoints which refer to older ones reach the bound of their chain, twice if nothing was
/// before.
fn checkpoints(workload: &Workload, past: Past) -> u64 {
    match past {
        Past::Empty if workload.options.contains("incremental") => 9,
        _ if workload.options.contains("incremental") => 5,
        Past::Empty => workload.keep as u64 + 1,
        Past::Failing(..) => workload.keep as u64 + 2,
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

fn record(workload: &Workload, past: Past, seed: u64) -> Recorded {
    let scratch = Scratch::in_memory("recorded");
    let root = scratch.path();
    // The configured directories are the user's, and were there before.
    drop(workload.job(root, Failpoints::none()));
    let run = match past {
        Past::Empty | Past::Failing(..) => 1,
        Past::Cut(thousandths) => {
            let first = record(workload, Past::Empty, seed);
            let mut disk = Disk::new(&first.log);
            while disk.at() < first.log.count() * thousandths / 1000 {
                disk.advance();
            }
            let parts = disk.parts(Some(512));
            let number = seed % choices(parts.len());
            let image = disk.image(&parts, &choice(&parts, number, seed));
            image.write(root).unwrap();
            let told = &first.ledger[..first.log.mark(disk.at()) as usize];
            std::fs::write(root.join("ledger"), told).unwrap();
            2
        }
        Past::Run => {
            apart(&Life::new(*workload, root, 1, 3));
            assert!(Story::read(root).run(1).closed, "the first run");
            2
        }
        Past::Killed(site, nth) => {
            let plan = FaultPlan::new().at_site(site, nth, Do::Kill);
            let failpoints = Failpoints::with(Arc::new(plan));
            apart(&Life::new(*workload, root, 1, 4).failpoints(failpoints));
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
    let plan = match past {
        Past::Failing(site, nth) => FaultPlan::new().at_site(site, nth, Do::Fail(EIO)),
        _ => FaultPlan::new(),
    };
    let checkpoints = checkpoints(workload, past);
    Life::new(*workload, root, run, checkpoints)
        .failpoints(Failpoints::with(Arc::new(Both(Arc::clone(&journal), plan))))
        .live(&|_| {});
    let log = journal.end().unwrap();
    let ledger = std::fs::read_to_string(ledger).unwrap();
    let story = Story::parse(ledger.clone());
    let mine = story.run(run);
    // A failure may cost any step, also the last one, or none.
    assert!(
        matches!(past, Past::Failing(..)) || mine.closed && mine.errors.is_empty(),
        "recording: {}",
        told(&story)
    );
    Recorded { log, ledger, run }
}

/// What a restart finds on one image, by level and over all, which records promise too much, and
/// how what they promise is stored.
type Looked = Result<(Vec<(Level, Found)>, Found, Vec<String>, Kinds), Failure>;

fn look(workload: &Workload, image: &Image, past: Past) -> Looked {
    let mut levels = Vec::new();
    for level in workload.levels().into_iter().rev() {
        levels.push((level, restart(workload, image, View::Only(level))?));
    }
    let all = restart(workload, image, View::All)?;
    let mut records = records(workload, &|path| image.dir(path.to_str()?));
    // One of several directories that failed is given up: what lies there stays, and gets old.
    if workload.dirs > 1 && matches!(past, Past::Failing(..)) {
        records.broken.clear();
    }
    Ok((levels, all, records.broken, records.kinds))
}

/// Judges what was found by what had been told until then.
fn judge(looked: &Looked, story: &Story, run: u64) -> Result<(), Failure> {
    let (levels, all, broken, _) = looked.as_ref().map_err(Clone::clone)?;
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
    let all_found = levels.iter().map(|(_, found)| found).chain([all]);
    let damaged: Vec<&str> = all_found
        .flat_map(|found| &found.damage)
        .chain(broken)
        .map(String::as_str)
        .collect();
    if damaged.is_empty() {
        return Ok(());
    }
    Err((Verdict::FellBack, damaged.join("; ")))
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
    past: Past,
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

    /// A workload whose checkpoints are not stored as its options say tries something else.
    fn as_named(&self) -> Result<(), Failure> {
        let mut all = Kinds::default();
        for (_, _, _, kinds) in self.known.values().flatten() {
            all += *kinds;
        }
        let asked = ["incremental", "compress", "encrypt"]
            .map(|option| self.workload.options.contains(option));
        let met = [all.referred, all.compressed, all.encrypted].map(|count| count > 0);
        if asked == met {
            return Ok(());
        }
        let text = format!("{:?}, and that gives {all:?}", self.workload.options);
        Err((Verdict::HardFail, text))
    }

    /// How many images have a checkpoint that refers to older ones.
    fn referring(&self) -> usize {
        let looked = self.known.values().flatten();
        looked.filter(|(.., kinds)| kinds.referred > 0).count()
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
        let (workload, past, recorded) = (self.workload, self.past, self.recorded);
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
            .or_insert_with(|| look(workload, &image, past));
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

/// Which of `all` subsets: all of them, or nothing, everything, and a spread over the kinds of
/// subsets.
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
const QUICK: u64 = 30_000;

// Breaks if: a container, record or claim is not synced, or the directory of a container or record;
// a record is written in place; prune removes a container before its records are durably gone, also
// those that a prune before removed; or a directory is made without syncing the one above. (A
// claim's directory is synced again with the resumed record.) Or if what checkpoints refer to is
// not pinned, see `records`.
pub fn power_lost_at_every_step() {
    let seed = seed();
    // States cost little: a trial of a campaign stands for many.
    let asked = trials(0) as u64;
    let all = QUICK.max(asked * 50);
    let states = all / PLAN.len() as u64;
    println!("  seed {seed} (ORCHECK_SEED), {states} states of each workload (ORCHECK_TRIALS)");
    let begun = SystemClock.now();
    let outcomes = share(PLAN.len(), &|number| {
        let (workload, past) = &PLAN[number];
        let begun = SystemClock.now();
        let recorded = record(workload, *past, seed.wrapping_add(number as u64));
        let recorded_s = (SystemClock.now() - begun).as_secs_f64();
        let mut trial = Trial {
            workload,
            past: *past,
            recorded: &recorded,
            seed: seed.wrapping_add(number as u64),
            states,
            sessions: states.div_ceil(60).min(2000),
            known: HashMap::new(),
            stories: HashMap::new(),
            tried: 0,
            healed: 0,
        };
        let result = trial.run().and_then(|()| trial.as_named());
        let spent_s = (SystemClock.now() - begun).as_secs_f64();
        let row = format!(
            "{:>7} {:>7} {:>7} {:>9} {:>7} {:>6.1} {:>6.1}",
            recorded.log.count(),
            trial.tried,
            trial.known.len(),
            trial.referring(),
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
        "  {:<38} effects  states  images referring    runs  rec. s      s",
        ""
    );
    let mut failures = Vec::new();
    let (mut tried, mut images, mut referring, mut runs) = (0, 0, 0, 0);
    for ((workload, _), outcome) in PLAN.iter().zip(&outcomes) {
        if outcome.verdict == Verdict::Pass {
            println!("  {:<38} {}", workload.name, outcome.text);
            let numbers: Vec<u64> = outcome
                .text
                .split_whitespace()
                .filter_map(|word| word.parse().ok())
                .collect();
            tried += numbers[1];
            images += numbers[2];
            referring += numbers[3];
            runs += numbers[4];
        } else {
            println!("  {:<38} {:?}", workload.name, outcome.verdict);
            failures.push(format!(
                "{}: {:?}: {}",
                workload.name, outcome.verdict, outcome.text
            ));
        }
    }
    let rate = tried as f64 / (SystemClock.now() - begun).as_secs_f64();
    println!(
        "  {tried} states, {rate:.0} a second, {images} different images, in {referring} of them a checkpoint that refers to older ones, {runs} through a real run"
    );
    for failure in &failures {
        println!("  FAILED {failure}");
    }
    assert!(
        failures.is_empty(),
        "{} workloads failed; again: ORCHECK_SEED={seed} ORCHECK_TRIALS={asked} cargo test -p orcheck-jobs --test power -- cuts",
        failures.len()
    );
}
