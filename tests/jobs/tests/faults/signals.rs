//! Signals from outside: the end of a job with a grace time, and ranks that stand still for a
//! while.

use crate::processes::{CORES, HOSTS, each_rank, ends};
use orcheck_format::ErrorKind;
use orcheck_io::failpoints::Failpoints;
use orcheck_jobs::ledger::Story;
use orcheck_jobs::life::{Life, PAIR, SOLO, Workload};
use orcheck_jobs::payload::{Origin, Payload};
use orcheck_jobs::trial::{
    Failure, Outcome, PATIENCE, Random, Table, Verdict, heal, seed, share_among, told, trials,
};
use orcheck_testing::{Child, Ended, Scratch};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// Steps after which a run ends although nobody asked it to.
const STEPS: u64 = 100_000;

/// A moment that nobody chose: it is the fault, and nothing is waited for by it.
pub fn moment(length: Duration) {
    let (mine, _silent) = UnixStream::pair().unwrap();
    mine.set_read_timeout(Some(length.max(Duration::from_micros(1))))
        .unwrap();
    let _ = (&mine).read(&mut [0]);
}

/// A solver's loop: computes, asks whether a checkpoint is due, and ends after the one that the
/// signal asked for.
fn solve(workload: &Workload, root: &Path, run: u64, started: &UnixStream) {
    let ledger = Life::new(*workload, root, run, 0).ledger();
    let job = workload
        .job(root, Failpoints::none())
        .with("signal = 'TERM'");
    job.run(|session, rank| {
        let lead = rank == 0;
        let complain = |call: &str, error: &orcheck_format::Error| {
            if lead {
                ledger.error(call, error);
            }
        };
        let mut session = match session {
            Ok(session) => session,
            Err(error) => return complain("open", &error),
        };
        match session.find() {
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return complain("find", &error),
            Ok(_) => return complain("find", &orcheck_format::Error::internal("not empty")),
        }
        if lead {
            ledger.epoch(session.epoch().counter);
            ledger.resumed(None);
            let mut started = started;
            started.write_all(b"s").unwrap();
        }
        let mut last = 0;
        for step in 1..=STEPS {
            let mut state = Payload::new(rank, Origin { run, step }, workload.scale);
            let due = match session.due(step) {
                Ok(due) => due,
                Err(error) => return complain("due", &error),
            };
            // Every fifth step as well, so that there is something to lose.
            if due || step.is_multiple_of(5) {
                if let Err(error) = state.protect(&mut session, false) {
                    complain("protect", &error);
                }
                if lead {
                    ledger.begun(step);
                }
                if let Err(error) = session.checkpoint(step) {
                    complain("checkpoint", &error);
                }
                last = step;
            }
            // The wish to stop may also have been heard by a checkpoint that was not due.
            if due || session.should_stop() {
                break;
            }
        }
        match session.close(Duration::from_secs(30)) {
            Ok(()) if lead => {
                // Closed means safe at every level.
                for level in workload.levels() {
                    ledger.acked(last, level);
                }
                ledger.closed();
            }
            Ok(()) => {}
            Err(error) => complain("close", &error),
        }
    });
}

fn told_to_end(workload: &Workload, seed: u64) -> Result<Verdict, Failure> {
    let mut random = Random::new(seed);
    let scratch = Scratch::in_memory("grace");
    let root = scratch.path();
    let (mut mine, theirs) = UnixStream::pair().unwrap();
    mine.set_read_timeout(Some(PATIENCE)).unwrap();
    let child = Child::run(|| {
        solve(workload, root, 1, &theirs);
        0
    });
    drop(theirs);
    let began = matches!(mine.read(&mut [0]), Ok(1));
    moment(Duration::from_micros(random.below(20_000)));
    child.signal(libc::SIGTERM);
    // Half of the jobs get all the time they need.
    let grace = if random.below(2) == 0 {
        PATIENCE
    } else {
        Duration::from_micros(random.below(30_000))
    };
    let ended = child.wait(grace);
    let story = Story::read(root);
    let told_all = story.run(1);
    let fail = |verdict, text: &str| Err((verdict, format!("{text} {ended:?}; {}", told(&story))));
    if !began {
        return fail(Verdict::HardFail, "never began");
    }
    match ended {
        Ended::Exited(0) if told_all.closed && told_all.errors.is_empty() => {}
        Ended::Exited(_) | Ended::Signaled(_) => return fail(Verdict::HardFail, "no good end"),
        Ended::Hung if grace == PATIENCE => return fail(Verdict::Hang, ""),
        Ended::Hung => {}
    }
    if ended == Ended::Exited(0) && told_all.acked.is_empty() {
        return fail(Verdict::LostWork, "ended without its last checkpoint");
    }
    heal(workload, root, 2).map(|_| Verdict::Pass)
}

/// SIGTERM at a random moment, SIGKILL at the end of a random grace time: the last checkpoint is
/// whole or not there.
// Breaks if: `close` does not wait for the flush, or the signal makes no checkpoint due.
pub fn told_to_end_with_a_grace_time() {
    let mut table = Table::default();
    let seed = seed();
    println!("  seed {seed} (ORCHECK_SEED)");
    for workload in [SOLO, PAIR] {
        let workload = Workload {
            routed: false,
            ..workload
        };
        let count = trials(12);
        let outcomes = share_among(2, count, &|n| {
            Outcome::of(true, told_to_end(&workload, seed.wrapping_add(n as u64)))
        });
        let names: Vec<String> = (0..count)
            .map(|n| format!("seed {}", seed.wrapping_add(n as u64)))
            .collect();
        table.add(workload.name, &names, &outcomes, &[Verdict::Pass]);
    }
    table.finish("told to end, with a grace time");
}

/// Ranks as processes; one of them stands still for a while, again and again.
fn stopped(workload: &Workload, seed: u64) -> Result<Verdict, Failure> {
    let mut random = Random::new(seed);
    let scratch = Scratch::in_memory("stopped");
    let root = scratch.path();
    let children = each_rank(workload.ranks, |_, mine| {
        Life::new(*workload, root, 1, 4).live_one(mine, &|_| {});
    });
    let victim = &children[random.below(u64::from(workload.ranks)) as usize];
    for _ in 0..4 {
        moment(Duration::from_micros(random.below(12_000)));
        victim.signal(libc::SIGSTOP);
        moment(Duration::from_millis(1 + random.below(60)));
        victim.signal(libc::SIGCONT);
    }
    let ended = ends(children);
    let story = Story::read(root);
    let mine = story.run(1);
    let fail = |verdict| Err((verdict, format!("{ended:?}; {}", told(&story))));
    if ended.contains(&Ended::Hung) {
        return fail(Verdict::Hang);
    }
    if ended.iter().any(|end| *end != Ended::Exited(0)) || !mine.errors.is_empty() || !mine.closed {
        return fail(Verdict::HardFail);
    }
    heal(workload, root, 2).map(|_| Verdict::Pass)
}

/// SIGSTOP and SIGCONT of one rank of several: the others wait, and afterwards all continues.
// Breaks if: a rank that is silent counts as gone.
pub fn one_rank_stands_still_for_a_while() {
    let mut table = Table::default();
    let seed = seed();
    println!("  seed {seed} (ORCHECK_SEED)");
    for workload in [CORES, HOSTS] {
        let count = trials(4);
        let outcomes = share_among(2, count, &|n| {
            Outcome::of(true, stopped(&workload, seed.wrapping_add(n as u64)))
        });
        let names: Vec<String> = (0..count)
            .map(|n| format!("seed {}", seed.wrapping_add(n as u64)))
            .collect();
        table.add(workload.name, &names, &outcomes, &[Verdict::Pass]);
    }
    table.finish("one rank stands still for a while");
}
