//! A run that is asked from outside to take a checkpoint and end.

use crate::session::mistakes::LONG;
use crate::support::{Job, State};
use crate::{Test, session_tests};
use orcheck_client::Session;
use orcheck_engine::directory::halt::{NewestRun, When, requests, withdraw};
use orcheck_engine::encoding::Trust;
use orcheck_format::{Level, Result};
use orcheck_io::clock::{Clock, SystemClock};
use orcheck_io::disk::Dir;
use orcheck_io::failpoints::Failpoints;
use orcheck_staging::open_dir;
use orcheck_testing::Scratch;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// What is tested here.
pub const TESTS: &[Test] = session_tests![
    a_run_that_is_asked_to_halt_takes_one_checkpoint_and_ends,
    with_steps_alone_it_is_heard_at_the_next_checkpoint,
    a_run_that_is_asked_to_halt_after_some_checkpoints_ends_with_the_last_of_them,
    a_signal_stops_all_ranks_after_the_checkpoint_it_asked_for_where_it_is_to,
];

fn dirs(root: &Path, names: &[&str]) -> Vec<Arc<dyn Dir>> {
    let open = |name: &&str| open_dir(&root.join(name), Failpoints::none()).unwrap();
    names.iter().map(open).collect()
}

/// Computes until it is asked to end; the steps that were due, and the last one.
fn computes(session: Result<Session>, rank: u32, level: Level) -> (Vec<u64>, u64) {
    let mut session = session.unwrap();
    session.find().unwrap_err();
    // The ranks agree at each step: beside other tests, thousands of steps take a while.
    let until = SystemClock.now() + 8 * LONG;
    let (mut due, mut step) = (Vec::new(), 0);
    // Only the agreement ends it: a rank that gave up by its own clock would leave the others
    // alone.
    while !session.should_stop() && step < u64::from(u32::MAX) {
        step += 1;
        if session.due(step).unwrap() {
            let mut state = State::new(rank, step, 10);
            state.protect(&mut session).unwrap();
            session.checkpoint(step).unwrap();
            session.wait(step, level, LONG).unwrap();
            due.push(step);
        }
        assert!(SystemClock.now() < until, "nobody was asked to halt");
        std::thread::yield_now();
    }
    session.close(LONG).unwrap();
    (due, step)
}

/// Asks the run of the job whose claim is in `names` to halt, once it is there.
fn ask_once_there(root: &Path, names: &[&str], over: &AtomicBool) -> Vec<Arc<dyn Dir>> {
    once_there(root, names, over, &|run| run.ask("a test\n"))
}

fn once_there(
    root: &Path,
    names: &[&str],
    over: &AtomicBool,
    ask: &dyn Fn(&NewestRun) -> Result<Vec<String>>,
) -> Vec<Arc<dyn Dir>> {
    let dirs = dirs(root, names);
    let until = SystemClock.now() + LONG;
    loop {
        if let Some(run) = NewestRun::newest(&dirs, &Trust::default())
            .unwrap()
            .filter(|run| run.lives)
        {
            assert_eq!(ask(&run).unwrap(), Vec::<String>::new());
            return dirs;
        }
        assert!(SystemClock.now() < until && !over.load(Ordering::Acquire));
        std::thread::yield_now();
    }
}

// Breaks if: the control thread does not look, or only the lead's does, or the ranks do not ask it.
fn a_run_that_is_asked_to_halt_takes_one_checkpoint_and_ends() {
    // In the placed directory; and, without any, in that of a node that does not lead.
    for (placed, level, at) in [
        (1, Level::Global, "ost0/job"),
        (0, Level::Node, "local/job/n1"),
    ] {
        let scratch = Scratch::new("halting");
        let mut job = Job::new(scratch.path(), 4, placed, placed == 0).nodes(2);
        job = job.with("every_s = 1e6");
        crate::support::make_dir(&scratch.path().join(at));
        let over = AtomicBool::new(false);
        let results = std::thread::scope(|scope| {
            let asking = scope.spawn(|| ask_once_there(scratch.path(), &[at], &over));
            let results = job.run(|session, rank| computes(session, rank, level));
            over.store(true, Ordering::Release);
            let dirs = asking.join().unwrap();
            assert_eq!(requests(&dirs).unwrap(), [(1, "a test".to_owned())]);
            assert!(
                !NewestRun::newest(&dirs, &Trust::default())
                    .unwrap()
                    .unwrap()
                    .lives
            );
            results
        });
        assert!(
            results.windows(2).all(|pair| pair[0] == pair[1]),
            "{results:?}"
        );
        let (due, last) = &results[0];
        assert_eq!(due, &[*last], "{level}");
    }
}

// Breaks if: the wish is asked for in `due` alone, or taking a request back does not reach the
// ranks.
fn with_steps_alone_it_is_heard_at_the_next_checkpoint() {
    let scratch = Scratch::new("halting");
    let job = Job::new(scratch.path(), 2, 1, false).with("every_steps = 50000");
    crate::support::make_dir(&scratch.path().join("ost0/job"));
    let over = AtomicBool::new(false);
    let results = std::thread::scope(|scope| {
        scope.spawn(|| {
            let dirs = ask_once_there(scratch.path(), &["ost0/job"], &over);
            // Nobody has seen it yet, or has and forgets it: asked again, it counts again.
            assert_eq!(withdraw(&dirs).unwrap(), [1]);
            ask_once_there(scratch.path(), &["ost0/job"], &over);
        });
        let results = job.run(|session, rank| computes(session, rank, Level::Global));
        over.store(true, Ordering::Release);
        results
    });
    assert_eq!(results[0], results[1]);
    let (due, last) = &results[0];
    assert_eq!(due.last(), Some(last));
    assert!(due.iter().all(|step| step % 50000 == 0), "{due:?}");
}

// Breaks if: the number does not reach the ranks, makes a checkpoint due by itself, or is not
// counted down.
fn a_run_that_is_asked_to_halt_after_some_checkpoints_ends_with_the_last_of_them() {
    let scratch = Scratch::new("halting");
    let job = Job::new(scratch.path(), 2, 1, false).with("every_steps = 2000");
    crate::support::make_dir(&scratch.path().join("ost0/job"));
    let over = AtomicBool::new(false);
    let results = std::thread::scope(|scope| {
        scope.spawn(|| {
            let later = |run: &NewestRun| run.ask_later(When::After(3), "a test\n");
            once_there(scratch.path(), &["ost0/job"], &over, &later);
        });
        let results = job.run(|session, rank| computes(session, rank, Level::Global));
        over.store(true, Ordering::Release);
        results
    });
    assert_eq!(results[0], results[1]);
    let (due, last) = &results[0];
    assert_eq!(due.last(), Some(last));
    assert!(due.len() >= 3, "{due:?}");
    assert!(due.iter().all(|step| step % 2000 == 0), "{due:?}");
}

/// A signal comes to rank 1 alone: when each rank took its last checkpoint before it stopped, if it
/// did.
fn signalled(options: &str) -> Vec<Option<u64>> {
    let scratch = Scratch::new("signal-stop");
    let job = Job::new(scratch.path(), 2, 1, false).with(options);
    let until = SystemClock.now() + LONG;
    job.run(|session, rank| {
        let mut session = session.unwrap();
        let mut state = State::new(rank, 0, 20);
        state.protect(&mut session).unwrap();
        assert!(!session.due(1).unwrap());
        if rank == 1 {
            let mut kill = Command::new("kill");
            kill.arg("-XCPU").arg(std::process::id().to_string());
            assert!(kill.status().unwrap().success());
        }
        let mut taken = None;
        for step in 2.. {
            if session.due(step).unwrap() {
                assert!(taken.is_none(), "one signal, one checkpoint");
                session.checkpoint(step).unwrap();
                taken = Some(step);
            }
            if session.should_stop() || taken.is_some_and(|at| step > at + 100) {
                break;
            }
            assert!(SystemClock.now() < until, "the signal did not come");
        }
        let step = taken.filter(|_| session.should_stop());
        session.close(LONG).unwrap();
        step
    })
}

// Breaks if: `wishes` does not take the signal for an ending, or one rank stops by itself.
fn a_signal_stops_all_ranks_after_the_checkpoint_it_asked_for_where_it_is_to() {
    let stopped = signalled("signal = 'XCPU'\nsignal_stop = true");
    assert!(
        stopped[0].is_some() && stopped[0] == stopped[1],
        "{stopped:?}"
    );
    assert_eq!(signalled("signal = 'XCPU'"), [None, None]);
}
