//! SIGKILL from outside, at moments that nobody chose.

use crate::life::{Life, NODES, SOLO, STRIPED, Workload};
use crate::trial::{
    Failure, Outcome, Random, Table, Verdict, check_promises, check_records, heal, seed,
    share_among, told, trials,
};
use orcheck_io::clock::{Clock, SystemClock};
use orcheck_io::testing::{Child, Ended, Scratch};
use std::cell::Cell;
use std::time::Duration;

/// Checkpoints of a run that nobody kills.
const CHECKPOINTS: u64 = 6;

fn scratch(in_memory: bool) -> Scratch {
    if in_memory {
        Scratch::in_memory("random")
    } else {
        Scratch::new("random")
    }
}

/// How long a whole life takes here.
fn span(workload: Workload, in_memory: bool) -> Duration {
    let clock = SystemClock;
    let scratch = scratch(in_memory);
    let begun = clock.now();
    let ended = crate::trial::apart(&Life::new(workload, scratch.path(), 1, CHECKPOINTS));
    assert_eq!(ended, Ended::Exited(0));
    clock.now() - begun
}

/// One to three runs that are killed one after the other, and one that must come up.
fn trial(
    workload: &Workload,
    in_memory: bool,
    span: Duration,
    seed: u64,
    kills: &Cell<u64>,
) -> Result<(), Failure> {
    let mut random = Random::new(seed);
    let scratch = scratch(in_memory);
    let root = scratch.path();
    let runs = 1 + random.below(3);
    for run in 1..=runs {
        let life = Life::new(*workload, root, run, CHECKPOINTS);
        let child = Child::run(|| {
            life.live(&|_| {});
            0
        });
        let moment = Duration::from_micros(random.below(span.as_micros() as u64 * 11 / 10));
        match child.wait(moment) {
            // Killed by us, at the moment we meant.
            Ended::Hung => kills.set(kills.get() + 1),
            Ended::Exited(0) => {}
            ended => return Err((Verdict::HardFail, format!("run {run} ended with {ended:?}"))),
        }
        check_records(workload, root)?;
        let story = check_promises(workload, root, run + 1)?;
        if !story.run(run).errors.is_empty() {
            return Err((Verdict::HardFail, told(&story)));
        }
    }
    heal(workload, root, runs + 1).map(|_| ())
}

/// At least 500 kills on a disk and in memory, of one to three runs in a row.
// Breaks if: the lead commits before every node has voted.
pub fn killed_at_random_moments() {
    let seed = seed();
    println!("  seed {seed} (ORCHECK_SEED)");
    let workloads = [SOLO, NODES, STRIPED];
    let spans = [false, true].map(|in_memory| workloads.map(|workload| span(workload, in_memory)));
    let mut table = Table::default();
    let (mut begun, mut all_kills) = (0, 0);
    while all_kills < 500 {
        // Normally one round; more when many runs ended before their moment came.
        let count = if begun == 0 { trials(340) } else { 40 };
        for (in_memory, place) in [(false, "on disk"), (true, "in memory")] {
            // More processes than processors: they wait for the disk.
            let workers = if in_memory { 2 } else { 4 };
            let outcomes = share_among(workers, count / 2, &|n| {
                let (workload, span) = (workloads[n % 3], spans[usize::from(in_memory)][n % 3]);
                let kills = Cell::new(0);
                let seed = seed + (begun + n) as u64;
                let result = trial(&workload, in_memory, span, seed, &kills);
                let mut outcome = Outcome::of(kills.get() > 0, result.map(|()| Verdict::Pass));
                if outcome.verdict == Verdict::Pass {
                    outcome.text = kills.get().to_string();
                }
                outcome
            });
            let kills = outcomes
                .iter()
                .filter_map(|outcome| outcome.text.parse::<u64>().ok());
            all_kills += kills.sum::<u64>();
            let name = |n: usize| format!("seed {}", seed + (begun + n) as u64);
            let names: Vec<String> = (0..outcomes.len()).map(name).collect();
            let row = format!("killed at random, {place}");
            table.add(&row, &names, &outcomes, &[Verdict::Pass]);
        }
        begun += count;
    }
    table.finish(&format!("{all_kills} kills from outside"));
}
