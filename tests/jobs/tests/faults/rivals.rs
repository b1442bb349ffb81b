//! Two and more runs of one job at the same moment, in processes of their own; and a wall clock
//! that lies to them.

use crate::kill_steps::after_a_good_run;
use orcheck_io::clock::{Clock, SystemClock};
use orcheck_jobs::ledger::Story;
use orcheck_jobs::life::{Life, NODES, PAIR, SOLO, STRIPED, View, Workload};
use orcheck_jobs::trial::{
    Failure, Outcome, PATIENCE, Random, Table, Verdict, check_promises, check_records, heal, seed,
    share_among, told, trials,
};
use orcheck_testing::{Child, Ended, Scratch};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The first of the runs that meet; run 1 came before them.
const FIRST: u64 = 2;

/// The runs of one trial: begin together, wait after opening until all others have opened or were
/// refused.
fn meet(life: &dyn Fn(u64) -> Life, count: u64) -> (Vec<Ended>, Vec<bool>) {
    let mut starts = Vec::new();
    let children: Vec<Child> = (0..count)
        .map(|number| {
            let (mine, theirs) = UnixStream::pair().unwrap();
            mine.set_read_timeout(Some(PATIENCE)).unwrap();
            theirs.set_read_timeout(Some(PATIENCE)).unwrap();
            let mut mine = Some(mine);
            let child = Child::run(|| {
                // The parent's ends belong to it alone: their closing is a message.
                starts.drain(..).for_each(drop);
                drop(mine.take());
                let mut stream = &theirs;
                let mut wait =
                    || assert_eq!(stream.read(&mut [0]).unwrap_or(0), 1, "told to continue");
                wait();
                let talk = std::sync::Mutex::new(wait);
                life(FIRST + number).live(&|moment| {
                    if moment == 0 {
                        let _ = (&theirs).write(b"o");
                        (talk.lock().unwrap())();
                    }
                });
                0
            });
            starts.extend(mine);
            // Nobody else keeps this end open: its closing says that the run is gone.
            drop(theirs);
            child
        })
        .collect();
    for mut start in &starts {
        start.write_all(b"g").unwrap();
    }
    // A byte: it opened; the end: it was refused and is gone.
    let opened: Vec<bool> = starts
        .iter()
        .map(|mut start| matches!(start.read(&mut [0]), Ok(1)))
        .collect();
    for (mut start, _) in starts.iter().zip(&opened).filter(|(_, opened)| **opened) {
        let _ = start.write(b"g");
    }
    let ended = children.into_iter().map(|child| child.wait(PATIENCE));
    (ended.collect(), opened)
}

fn trial(workload: &Workload, seed: u64, take_over: bool) -> Result<Verdict, Failure> {
    let mut random = Random::new(seed);
    let scratch = Scratch::in_memory("rivals");
    let root = scratch.path();
    let before = random.below(2) == 0;
    if before {
        after_a_good_run(*workload, root);
    }
    let count = 2 + random.below(3);
    let life = |run| {
        let life = Life::new(*workload, root, run, 1 + run % 2);
        if take_over {
            life.with("take_over = true")
        } else {
            life
        }
    };
    let (ended, opened) = meet(&life, count);
    let story = Story::read(root);
    let fail = |verdict, text: String| Err((verdict, format!("{text}; {}", told(&story))));
    if let Some(ended) = ended.iter().find(|ended| **ended != Ended::Exited(0)) {
        return fail(Verdict::HardFail, format!("{ended:?}"));
    }
    let runs: Vec<u64> = (FIRST..FIRST + count).collect();
    for (&run, opened) in runs.iter().zip(&opened) {
        let mine = story.run(run);
        if let Some(text) = mine.wrong.first() {
            return fail(Verdict::SilentWrong, text.clone());
        }
        let named = mine.errors.iter().any(|error| {
            error.contains("is held by another run")
                || error.contains("was claimed at the same moment")
        });
        if !opened && !named {
            return fail(
                Verdict::HardFail,
                format!("run {run} does not know who has the job"),
            );
        }
    }
    let winners: Vec<u64> = runs
        .iter()
        .zip(&opened)
        .filter(|(_, o)| **o)
        .map(|(r, _)| *r)
        .collect();
    if !take_over {
        if winners.len() != 1 {
            return fail(
                Verdict::HardFail,
                format!("runs {winners:?} have the job at once"),
            );
        }
        let winner = story.run(winners[0]);
        if !winner.errors.is_empty() || !winner.closed {
            return fail(
                Verdict::HardFail,
                "the winner did not come through".to_owned(),
            );
        }
        check_records(workload, root)?;
        return heal(workload, root, FIRST + count).map(|_| Verdict::Pass);
    }
    // All that opened have epochs of their own, and only the last may be believed.
    let mut epochs: Vec<(u64, u64)> = winners
        .iter()
        .map(|&run| (story.run(run).epoch.unwrap_or(0), run))
        .collect();
    epochs.sort_unstable();
    if epochs.windows(2).any(|pair| pair[0].0 == pair[1].0) {
        return fail(Verdict::HardFail, format!("one epoch twice: {epochs:?}"));
    }
    let Some(&(_, last)) = epochs.last() else {
        return fail(Verdict::HardFail, "nobody has the job".to_owned());
    };
    let last = story.run(last);
    if !last.errors.is_empty() || !last.closed {
        return fail(
            Verdict::HardFail,
            "the last run did not come through".to_owned(),
        );
    }
    let found = workload
        .readable(root, View::All)
        .map_err(|text| (Verdict::SilentWrong, text))?;
    let newest = last.acked.iter().map(|(step, _)| *step).max();
    if found.map(|origin| origin.step) != newest
        || found.map(|origin| origin.run) != epochs.last().map(|e| e.1)
    {
        return fail(
            Verdict::LostWork,
            format!("{found:?} is the newest, not that of {epochs:?}"),
        );
    }
    let resumed = last.resumed.flatten().map(|from| from.step);
    if before && resumed.is_none() {
        return fail(Verdict::LostWork, "begun from nothing".to_owned());
    }
    Ok(Verdict::Pass)
}

/// Two to four restarts of one job at the same moment: one has it, the others hear who; with
/// `take_over` the last has it.
// Breaks if: a claim replaces another one (`rename` for `rename_new`), or is not locked before it
// appears.
pub fn several_restarts_at_once() {
    let mut table = Table::default();
    let seed = seed();
    println!("  seed {seed} (ORCHECK_SEED)");
    for (take_over, row) in [(false, "refused"), (true, "taken over")] {
        for workload in [SOLO, PAIR, STRIPED] {
            let workload = Workload {
                overlapped: false,
                // A run that is superseded loses its routed directory, in which the test itself
                // writes.
                routed: false,
                ..workload
            };
            let count = trials(8);
            let outcomes = share_among(3, count, &|n| {
                let result = trial(&workload, seed.wrapping_add(n as u64), take_over);
                Outcome::of(true, result)
            });
            let names: Vec<String> = (0..count)
                .map(|n| format!("seed {}", seed.wrapping_add(n as u64)))
                .collect();
            let row = format!("{}: {row}", workload.name);
            table.add(&row, &names, &outcomes, &[Verdict::Pass]);
        }
    }
    table.finish("several restarts of one job at once");
}

/// A wall clock that is never right: off by an hour in either direction, jumping at every look or
/// once.
struct Liar {
    looks: AtomicU64,
    seed: u64,
    /// Off by this at first; the other way round after this many looks.
    first_ms: i64,
    turns_at: u64,
}

const HOUR_MS: i64 = 3_600_000;

impl Clock for Liar {
    fn now(&self) -> Duration {
        SystemClock.now()
    }

    fn unix_ms(&self) -> u64 {
        let look = self.looks.fetch_add(1, Ordering::SeqCst);
        let off = match self.turns_at {
            0 => HOUR_MS * (Random::new(self.seed ^ look).below(3) as i64 - 1),
            turn if look < turn => self.first_ms,
            _ => -self.first_ms,
        };
        SystemClock.unix_ms().saturating_add_signed(off)
    }

    fn sleep(&self, time: Duration) {
        std::thread::park_timeout(time);
    }
}

/// Runs one after the other, each with another wrong clock, some of them killed.
fn liars(workload: &Workload, seed: u64) -> Result<Verdict, Failure> {
    let mut random = Random::new(seed);
    let scratch = Scratch::in_memory("clock");
    let root = scratch.path();
    let runs = 2 + random.below(2);
    for run in 1..=runs {
        let clock = Arc::new(Liar {
            looks: AtomicU64::new(0),
            seed: random.next(),
            // The second run lives before the first.
            first_ms: HOUR_MS * (if run % 2 == 1 { 1 } else { -1 }),
            turns_at: random.below(4) * random.below(8),
        });
        let life = Life::new(*workload, root, run, 3).clock(clock);
        let child = Child::run(|| {
            life.live(&|_| {});
            0
        });
        let killed = run < runs && random.below(2) == 0;
        let moment = Duration::from_micros(random.below(30_000));
        match child.wait(if killed { moment } else { PATIENCE }) {
            Ended::Exited(0) => {}
            Ended::Hung if killed => {}
            Ended::Hung => return Err((Verdict::Hang, format!("run {run}"))),
            ended => return Err((Verdict::HardFail, format!("run {run}: {ended:?}"))),
        }
        check_records(workload, root)?;
        let story = check_promises(workload, root, run + 1)?;
        if !story.run(run).errors.is_empty() {
            return Err((Verdict::HardFail, told(&story)));
        }
    }
    heal(workload, root, runs + 1).map(|_| Verdict::Pass)
}

/// Clocks that are off by an hour, go backwards between runs and jump in the middle of them change
/// nothing.
// Breaks if: the newest checkpoint is chosen by the time in its record, or a deadline counts
// wall-clock time.
pub fn clocks_that_lie() {
    let mut table = Table::default();
    let seed = seed();
    println!("  seed {seed} (ORCHECK_SEED)");
    for workload in [SOLO, PAIR, NODES] {
        let count = trials(8);
        let outcomes = share_among(2, count, &|n| {
            Outcome::of(true, liars(&workload, seed.wrapping_add(n as u64)))
        });
        let names: Vec<String> = (0..count)
            .map(|n| format!("seed {}", seed.wrapping_add(n as u64)))
            .collect();
        table.add(workload.name, &names, &outcomes, &[Verdict::Pass]);
    }
    table.finish("clocks that lie");
}
