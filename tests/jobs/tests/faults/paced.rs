//! Jobs whose levels have paces of their own, killed at moments that nobody chose, with incremental
//! checkpoints; then their weaker level is lost as a whole.
//!
//! How: each run writes into a ledger what was acknowledged at which level. After every kill, the
//! next run must find a step at least as new, with its bytes. At the end, the directories of the
//! node are wiped: what level `global` acknowledged must be there alone.

use orcheck_client::Session;
use orcheck_format::{Dtype, Level, Result};
use orcheck_io::memory::Span;
use orcheck_jobs::support::{Job, State};
use orcheck_jobs::trial::{Random, seed, trials};
use orcheck_testing::{Child, Ended, Scratch};
use std::io::Write;
use std::path::Path;
use std::time::Duration;

const LONG: Duration = Duration::from_secs(30);
/// Checkpoints of a run that nobody kills.
const CHECKPOINTS: u64 = 12;
/// Longest life before the kill.
const LIFE: Duration = Duration::from_millis(400);

fn job(root: &Path) -> Job {
    Job::new(root, 2, 1, true)
        .with("level.node.every_steps = 1\nlevel.global.every_steps = 4")
        .with("incremental = 'auto'\nincremental_chain = 3\nheld_steps = 2\nkeep = 2")
}

/// The step at which a rank's part of the state that seldom changes was written last.
fn steady(rank: u32, step: u64) -> Vec<u8> {
    let mut bytes = vec![rank as u8; 300_000];
    // One chunk in each of them changes with every step, another one with every fourth.
    for (at, stamp) in [(70_000, step), (200_000, step / 4)] {
        bytes[at..at + 8].copy_from_slice(&stamp.to_le_bytes());
    }
    bytes
}

/// Restarts from a step with its bytes, or begins; returns the step.
fn begin(session: &mut Session, rank: u32, bytes: &mut [u8]) -> u64 {
    let Ok(found) = session.find() else {
        return 0;
    };
    let mut state = State::empty(rank, 20);
    state.protect(session).unwrap();
    session
        .protect("steady", Span::from_mut(bytes), Dtype::U8, 0)
        .unwrap();
    assert_eq!(session.restart().unwrap(), found);
    assert!(
        state.is(rank, found, 20),
        "other bytes than those of step {found}"
    );
    assert!(
        bytes == steady(rank, found),
        "other bytes than those of step {found}"
    );
    found
}

fn ack(root: &Path, step: u64, level: Level) {
    let path = root.join("ledger");
    let mut file = std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(path)
        .unwrap();
    file.write_all(format!("{step} {level}\n").as_bytes())
        .unwrap();
}

/// The newest step that was acknowledged at this level or a stronger one.
fn acked(root: &Path, level: Level) -> u64 {
    let ledger = std::fs::read_to_string(root.join("ledger")).unwrap_or_default();
    let of = |line: &str| {
        let (step, at) = line.split_once(' ')?;
        let at: Level = at.parse().ok()?;
        (at >= level).then(|| step.parse().ok())?
    };
    ledger.lines().filter_map(of).max().unwrap_or(0)
}

fn live(root: &Path) {
    job(root).run(|session: Result<Session>, rank| {
        let mut session = session.unwrap();
        let mut bytes = vec![0; 300_000];
        let found = begin(&mut session, rank, &mut bytes);
        for step in found + 1..=found + CHECKPOINTS {
            bytes.copy_from_slice(&steady(rank, step));
            let mut state = State::new(rank, step, 20);
            state.protect(&mut session).unwrap();
            session
                .protect("steady", Span::from_mut(&mut bytes), Dtype::U8, 0)
                .unwrap();
            assert!(session.due(step).unwrap());
            session.checkpoint(step).unwrap();
            session.wait(step, Level::Node, LONG).unwrap();
            if rank == 0 {
                ack(root, step, Level::Node);
            }
            if step % 4 == 0 {
                session.wait(step, Level::Global, LONG).unwrap();
                if rank == 0 {
                    ack(root, step, Level::Global);
                }
            }
        }
        session.close(LONG).unwrap();
    });
}

/// A run that only restarts, from something as new as this.
fn check(root: &Path, at_least: u64) -> Ended {
    let child = Child::run(|| {
        job(root).run(|session, rank| {
            let mut session = session.unwrap();
            let mut bytes = vec![0; 300_000];
            let found = begin(&mut session, rank, &mut bytes);
            assert!(
                found >= at_least,
                "found step {found}, acknowledged was {at_least}"
            );
            session.close(LONG).unwrap();
        });
        0
    });
    child.wait(LONG)
}

fn trial(seed: u64) {
    let mut random = Random::new(seed);
    let scratch = Scratch::new("paced");
    let root = scratch.path();
    for run in 1..=1 + random.below(4) {
        let child = Child::run(|| {
            live(root);
            0
        });
        let moment = Duration::from_micros(random.below(LIFE.as_micros() as u64));
        let ended = child.wait(moment);
        assert!(
            matches!(ended, Ended::Hung | Ended::Exited(0)),
            "seed {seed}, run {run} ended with {ended:?}"
        );
        let found = check(root, acked(root, Level::Node));
        assert_eq!(found, Ended::Exited(0), "seed {seed}, after run {run}");
    }
    let global = acked(root, Level::Global);
    let _ = std::fs::remove_dir_all(root.join("local").join("job"));
    let found = check(root, global);
    assert_eq!(
        found,
        Ended::Exited(0),
        "seed {seed}, without the node's directory"
    );
}

// Breaks if: a step is told to be safe at a level where it is not; a container of level global
// refers to one of the node; prune removes what is referred to at the other level.
pub fn every_level_holds_what_it_acknowledged() {
    let first = seed();
    println!("seed {first}");
    for number in 0..trials(8) as u64 {
        trial(first.wrapping_add(number));
    }
}
