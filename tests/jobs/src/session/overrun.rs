//! A checkpoint that comes before the last is flushed, and how many snapshots and streams there
//! are at once.

use crate::session::hooks::{Crowd, Hold, Meeting, Snapshots};
use crate::session::mistakes::{LONG, refused, says};
use crate::support::{Job, State};
use crate::{Test, session_tests};
use orcheck_client::Session;
use orcheck_format::{ErrorKind, Level, Result, Step};
use orcheck_io::clock::{Clock, SystemClock};
use orcheck_io::failpoints::Verdict as Do;
use orcheck_testing::{FaultPlan, Scratch};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// What is tested here.
pub const TESTS: &[Test] = session_tests![
    skip_leaves_the_checkpoint_out_and_counts_it,
    warnings_that_nobody_takes_are_kept_up_to_a_bound,
    error_refuses_the_checkpoint_on_all_ranks_and_changes_nothing,
    a_session_is_used_while_another_thread_waits_for_its_checkpoint,
    who_waits_for_a_session_that_ended_is_told,
    wait_begins_the_next_snapshot_when_the_last_has_left_the_pool,
    a_flush_that_hangs_refuses_the_waiting_checkpoint_on_all_ranks_and_costs_nothing_else,
    two_held_steps_let_a_checkpoint_overlap_the_flush_of_the_last,
    a_rank_with_room_says_that_another_one_has_none,
    one_checkpoint_at_most_is_not_safe_at_the_level_that_counts,
    a_slow_file_system_holds_no_checkpoint_up_that_is_safe_on_other_nodes,
    wait_begins_the_next_snapshot_when_enough_are_safe,
    a_lost_checkpoint_holds_none_up,
    the_papers_marshaling_keeps_two_snapshots_in_memory,
    one_stream_a_lane_when_orchestrated_and_several_otherwise,
];

fn checkpoint(session: &mut Session, rank: u32, step: u64) -> orcheck_format::Result<()> {
    let mut state = State::new(rank, step, 100);
    state.protect(session).unwrap();
    session.checkpoint(step)
}

/// A job of two ranks whose flush is held at the first write.
fn held(scratch: &Scratch, more: &str) -> (Job, Arc<Hold>) {
    let hold = Hold::at("file.write", ".orc");
    let job = Job::new(scratch.path(), 2, 1, false)
        .with(more)
        .failpoints(hold.failpoints());
    (job, hold)
}

/// A session whose first checkpoint is being flushed until that is released.
fn flushing(session: Result<Session>, rank: u32, hold: &Hold) -> Session {
    let mut session = session.unwrap();
    checkpoint(&mut session, rank, 1).unwrap();
    hold.wait_until_held();
    session
}

fn restores(scratch: &Scratch, step: u64) {
    Job::new(scratch.path(), 2, 1, false).run(|session, rank| {
        let mut session = session.unwrap();
        assert_eq!(session.find().unwrap(), step);
        let mut state = State::empty(rank, 100);
        state.protect(&mut session).unwrap();
        session.restart().unwrap();
        assert!(state.is(rank, step, 100));
        session.close(LONG).unwrap();
    });
}

fn skip_leaves_the_checkpoint_out_and_counts_it() {
    let scratch = Scratch::new("skip");
    let (job, hold) = held(&scratch, "overrun = 'skip'");
    job.run(|session, rank| {
        let mut session = flushing(session, rank, &hold);
        for step in [2, 3] {
            checkpoint(&mut session, rank, step).unwrap();
        }
        assert_eq!(session.stats().skipped, 2);
        assert_eq!(session.stats().step, Step(1));
        let told = crate::support::warnings(&mut session);
        assert_eq!(
            told[0],
            "checkpoint 2 was left out: 1 is still being flushed"
        );
        let error = refused(session.wait(3, Level::Global, LONG));
        says(
            &error,
            ErrorKind::NotFound,
            &[
                "took no checkpoint of step 3",
                "checkpointed and not skipped",
            ],
        );
        hold.release();
        session.wait(1, Level::Global, LONG).unwrap();
        checkpoint(&mut session, rank, 4).unwrap();
        session.close(LONG).unwrap();
    });
    restores(&scratch, 4);
}

// Breaks if: every warning is kept for a program that never takes one.
fn warnings_that_nobody_takes_are_kept_up_to_a_bound() {
    let scratch = Scratch::new("untaken");
    let (job, hold) = held(&scratch, "overrun = 'skip'");
    job.run(|session, rank| {
        let mut session = flushing(session, rank, &hold);
        for step in 2..602 {
            checkpoint(&mut session, rank, step).unwrap();
        }
        assert_eq!(session.stats().skipped, 600);
        let told = crate::support::warnings(&mut session);
        assert_eq!(told.len(), 257, "{:?}", told.first());
        let (dropped, rest) = told[0].split_once(' ').unwrap();
        assert!(dropped.parse::<u64>().unwrap() >= 344, "{}", told[0]);
        assert!(rest.starts_with("earlier warnings were dropped"), "{rest}");
        assert!(told[256].starts_with("checkpoint 601 was left out"));
        hold.release();
        session.close(LONG).unwrap();
    });
}

fn error_refuses_the_checkpoint_on_all_ranks_and_changes_nothing() {
    let scratch = Scratch::new("error");
    let (job, hold) = held(&scratch, "overrun = 'error'");
    job.run(|session, rank| {
        let mut session = flushing(session, rank, &hold);
        let error = refused(checkpoint(&mut session, rank, 2));
        says(
            &error,
            ErrorKind::Unavailable,
            &[
                "checkpoint 2 was not staged: it comes while 1 is still being flushed",
                "checkpoint less often, or set overrun = \"wait\"",
            ],
        );
        hold.release();
        session.wait(1, Level::Global, LONG).unwrap();
        checkpoint(&mut session, rank, 2).unwrap();
        session.close(LONG).unwrap();
    });
    restores(&scratch, 2);
}

// Breaks if: a waiter borrows the session.
fn a_session_is_used_while_another_thread_waits_for_its_checkpoint() {
    let scratch = Scratch::new("waiter");
    let (job, hold) = held(&scratch, "overrun = 'skip'");
    job.run(|session, rank| {
        let mut session = flushing(session, rank, &hold);
        let waiter = session.waiter(1, Level::Global).unwrap();
        let polled = refused(waiter.wait(Duration::ZERO));
        assert_eq!(polled.kind(), ErrorKind::Unavailable);
        std::thread::scope(|scope| {
            let waiting = scope.spawn(move || waiter.wait(LONG));
            checkpoint(&mut session, rank, 2).unwrap();
            assert_eq!(session.stats().skipped, 1);
            hold.release();
            waiting.join().unwrap().unwrap();
        });
        session.close(LONG).unwrap();
    });
    restores(&scratch, 1);
}

// Breaks if: a waiter does not look whether the session ended: it would wait to its deadline.
fn who_waits_for_a_session_that_ended_is_told() {
    let scratch = Scratch::new("ended");
    let (job, hold) = held(&scratch, "");
    let told = Meeting::of(2);
    job.run(|session, rank| {
        let session = flushing(session, rank, &hold);
        let waiter = session.waiter(1, Level::Global).unwrap();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(move || waiter.wait(LONG));
            scope.spawn(move || session.abandon());
            // Before the flush is let go: nothing decides the step any more.
            let error = refused(waiting.join().unwrap());
            // Its own session, or that of the rank in whose process the engine was.
            let words = ["the session ends", "engine of this node ended"];
            let named = words.iter().any(|word| error.message().contains(word));
            assert!(named && error.kind() == ErrorKind::Unavailable, "{error}");
            told.wait();
            hold.release();
        });
    });
}

// Breaks if: `take` does not call `wait_for_room_here`.
fn wait_begins_the_next_snapshot_when_the_last_has_left_the_pool() {
    let scratch = Scratch::new("wait");
    let (job, hold) = held(&scratch, "overrun = 'wait'");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            hold.wait_until_held();
            // Two snapshots of the first step; nobody else begins while its flush is held.
            assert!(
                !hold.sees("stage.begin", 3),
                "held_steps = 1 allows one step in the pool"
            );
            hold.release();
        });
        job.run(|session, rank| {
            let mut session = session.unwrap();
            checkpoint(&mut session, rank, 1).unwrap();
            checkpoint(&mut session, rank, 2).unwrap();
            session.wait(1, Level::Global, LONG).unwrap();
            session.close(LONG).unwrap();
        });
    });
    assert!(hold.seen_before_release("stage.begin") <= 2);
    restores(&scratch, 2);
}

// Breaks if: ranks wait after they agreed: one that waited in vain would be alone with its error.
fn a_flush_that_hangs_refuses_the_waiting_checkpoint_on_all_ranks_and_costs_nothing_else() {
    let scratch = Scratch::new("hangs");
    let (job, hold) = held(&scratch, "");
    let job = Job {
        options: job.options.replace("timeout_s = 20.0", "timeout_s = 0.3"),
        ..job
    };
    let both = Meeting::of(2);
    job.run(|session, rank| {
        let mut session = session.unwrap();
        checkpoint(&mut session, rank, 1).unwrap();
        hold.wait_until_held();
        let error = refused(checkpoint(&mut session, rank, 2));
        says(
            &error,
            ErrorKind::Unavailable,
            &[
                "checkpoint 2 was not staged",
                "it waited 0.3 s for the flush of 1",
                "look for a stalled directory; raise timeout_s",
            ],
        );
        // Both have given up before the flush continues.
        both.wait();
        hold.release();
        session.wait(1, Level::Global, LONG).unwrap();
        let error = refused(session.wait(2, Level::Global, LONG));
        says(
            &error,
            ErrorKind::NotFound,
            &["took no checkpoint of step 2"],
        );
        checkpoint(&mut session, rank, 2).unwrap();
        session.close(LONG).unwrap();
    });
    restores(&scratch, 2);
}

// Breaks if: `blocker` counts any snapshot in the pool as too many.
fn two_held_steps_let_a_checkpoint_overlap_the_flush_of_the_last() {
    let scratch = Scratch::new("overlap");
    let (job, hold) = held(&scratch, "held_steps = 2\noverrun = 'error'");
    job.run(|session, rank| {
        let mut session = flushing(session, rank, &hold);
        checkpoint(&mut session, rank, 2).unwrap();
        let error = refused(checkpoint(&mut session, rank, 3));
        says(
            &error,
            ErrorKind::Unavailable,
            &["checkpoint 3 was not staged: it comes while 1 is still being flushed"],
        );
        hold.release();
        session.close(LONG).unwrap();
    });
    assert_eq!(
        hold.seen_before_release("stage.seal"),
        4,
        "both ranks sealed both steps meanwhile"
    );
    restores(&scratch, 2);
}

// Breaks if: the reason is looked for after the ranks agreed; a rank with room then names what is
// not in its way.
fn a_rank_with_room_says_that_another_one_has_none() {
    let scratch = Scratch::new("another");
    let hold = Hold::at("file.write", "-n0000-");
    let job = Job::new(scratch.path(), 2, 1, false)
        .nodes(2)
        .with("held_steps = 1\nuncommitted_steps = 2\noverrun = 'error'")
        .failpoints(hold.failpoints());
    let (both, said) = (Meeting::of(2), AtomicBool::new(false));
    job.run(|session, rank| {
        let mut session = flushing(session, rank, &hold);
        let until = SystemClock.now() + LONG;
        // Until the snapshot of rank 1 has left the pool, it is in that rank's own way.
        while !said.load(Ordering::Acquire) {
            assert!(SystemClock.now() < until, "rank 1 never has room");
            let error = refused(checkpoint(&mut session, rank, 2));
            let flushed = "it comes while 1 is still being flushed";
            says(&error, ErrorKind::Unavailable, &[flushed]);
            let of_another = error.message().contains("flushed for another rank");
            assert!(!of_another || rank == 1, "{error}");
            both.wait();
            said.fetch_or(of_another, Ordering::AcqRel);
            both.wait();
        }
        hold.release();
        session.close(LONG).unwrap();
    });
    restores(&scratch, 1);
}

// ---- checkpoints that are not safe yet ---------------------------------------------------------

/// A job on two nodes whose lead, or nodes, cannot write commit records of this level.
fn unrecorded(scratch: &Scratch, levels: Levels, record: &str, more: &str) -> (Job, Arc<Hold>) {
    let hold = Hold::at("dir.rename", record);
    let (dirs, node, peers) = levels;
    let job = Job::new(scratch.path(), 2, dirs, node)
        .nodes(2)
        .with(&format!("peers = {peers}\n{more}"))
        .failpoints(hold.failpoints());
    (job, hold)
}

/// Directories of level `global`, whether there is a node's, and the losses that it survives.
type Levels = (u32, bool, u32);

/// Levels, the one of them that counts, and its commit records.
const COUNTED: [(Levels, &str, &str); 4] = [
    ((1, false, 0), "global", "-global.commit"),
    ((1, true, 0), "global", "-global.commit"),
    ((0, true, 0), "node", "-node.commit"),
    ((1, true, 1), "peers(1)", "-peers1.commit"),
];

// Breaks if: a snapshot that left the pool counts as safe; a lost node then costs as many intervals
// as there are checkpoints on their way.
fn one_checkpoint_at_most_is_not_safe_at_the_level_that_counts() {
    for (levels, level, record) in COUNTED {
        let scratch = Scratch::new("bound");
        let (job, hold) = unrecorded(&scratch, levels, record, "overrun = 'error'");
        job.run(|session, rank| {
            let mut session = session.unwrap();
            checkpoint(&mut session, rank, 1).unwrap();
            hold.wait_until_held();
            let error = refused(checkpoint(&mut session, rank, 2));
            let text = format!("it comes while 1 is not yet safe at level {level}");
            let texts = ["checkpoint 2 was not staged", &text];
            // The other rank may still have its snapshot in the pool.
            let flushed = "it comes while 1 is still being flushed";
            if !error.message().contains(flushed) {
                says(&error, ErrorKind::Unavailable, &texts);
            }
            hold.release();
            let level = level.parse().unwrap();
            session.wait(1, level, LONG).unwrap();
            session.close(LONG).unwrap();
        });
        assert_eq!(hold.seen_before_release("stage.begin"), 2, "{level}");
    }
}

// Breaks if: the strongest level counts although a weaker one survives a node.
fn a_slow_file_system_holds_no_checkpoint_up_that_is_safe_on_other_nodes() {
    let scratch = Scratch::new("uncounted");
    let (job, hold) = unrecorded(&scratch, (1, true, 1), "-global.commit", "");
    let both = Meeting::of(2);
    job.run(|session, rank| {
        let mut session = session.unwrap();
        checkpoint(&mut session, rank, 1).unwrap();
        hold.wait_until_held();
        session.wait(1, Level::Peers(1), LONG).unwrap();
        checkpoint(&mut session, rank, 2).unwrap();
        both.wait();
        hold.release();
        session.close(LONG).unwrap();
    });
    assert_eq!(hold.seen_before_release("stage.begin"), 4);
}

// Breaks if: `take` does not wait, or the wait ends at anything but the decision.
fn wait_begins_the_next_snapshot_when_enough_are_safe() {
    for (more, begun) in [
        ("", 2),
        ("held_steps = 2", 4),
        ("held_steps = 4\nuncommitted_steps = 3", 6),
    ] {
        let scratch = Scratch::new("enough");
        let (job, hold) = unrecorded(&scratch, (1, false, 0), "-global.commit", more);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                hold.wait_until_held();
                assert!(!hold.sees("stage.begin", begun + 1), "{more}");
                hold.release();
            });
            job.run(|session, rank| {
                let mut session = session.unwrap();
                for step in 1..=5 {
                    checkpoint(&mut session, rank, step).unwrap();
                }
                session.close(LONG).unwrap();
            });
        });
        assert!(hold.seen_before_release("stage.begin") <= begun, "{more}");
        restores(&scratch, 5);
    }
}

// Breaks if: a step that is lost counts as one that may still become safe.
fn a_lost_checkpoint_holds_none_up() {
    let scratch = Scratch::new("lost-bound");
    let job = Job::new(scratch.path(), 2, 1, false).nodes(2);
    let fails = FaultPlan::new()
        .at_site("file.sync", 1, Do::Fail(5))
        .only_where(".orc");
    let (_, failpoints) = fails.failpoints();
    job.failpoints(failpoints).run(|session, rank| {
        let mut session = session.unwrap();
        for step in [1, 2, 3] {
            checkpoint(&mut session, rank, step).unwrap();
        }
        refused(session.wait(1, Level::Global, LONG));
        session.wait(3, Level::Global, LONG).unwrap();
        session.close(LONG).unwrap();
    });
}

// ---- snapshots and streams at once -----------------------------------------------------------

/// The most snapshots in memory at once while `wanted` are looked for.
fn snapshots(options: &str, pool: &str, wanted: u32) -> u32 {
    let scratch = Scratch::new("snapshots");
    let count = Snapshots::of(wanted);
    let job = Job::new(scratch.path(), 4, 1, false)
        .with(options)
        .pool(pool)
        .failpoints(count.failpoints());
    job.run(|session, rank| {
        let mut session = session.unwrap();
        checkpoint(&mut session, rank, 1).unwrap();
        session.wait(1, Level::Global, LONG).unwrap();
        session.close(LONG).unwrap();
    });
    count.most()
}

// Breaks if: `stage` takes the slot only when the pool is too small, or `finish` does not wait for
// its turn before it gives the slot back.
fn the_papers_marshaling_keeps_two_snapshots_in_memory() {
    assert_eq!(snapshots("marshal = 'paper'", "8 MiB", 3), 2);
    assert_eq!(
        snapshots("marshal = 'paper'\nscheme = 'core'", "8 MiB", 3),
        2
    );
    assert_eq!(
        snapshots("", "8 MiB", 4),
        4,
        "with room for all, all stage at once"
    );
    assert!(
        snapshots("", "256 KiB", 3) <= 2,
        "too small a pool marshals by itself"
    );
}

/// The most streams at once in one directory while `wanted` are looked for.
fn streams(options: &str, dirs: u32, site: &'static str, wanted: u32) -> u32 {
    let scratch = Scratch::new("streams");
    let crowd = Crowd::of(site, wanted);
    let job = Job::new(scratch.path(), 4, dirs, false)
        .with(options)
        .failpoints(crowd.failpoints());
    job.run(|session, rank| {
        let mut session = session.unwrap();
        checkpoint(&mut session, rank, 1).unwrap();
        session.wait(1, Level::Global, LONG).unwrap();
        session.close(LONG).unwrap();
    });
    (0..dirs)
        .map(|dir| crowd.most(&format!("ost{dir}/")))
        .max()
        .unwrap_or(0)
}

// Breaks if: `lock_gates` takes no gate in mode `orchestrated`, or one in another mode.
fn one_stream_a_lane_when_orchestrated_and_several_otherwise() {
    let begin = "file.allocate";
    assert_eq!(
        streams("marshal = 'paper'\nscheme = 'core'", 1, begin, 2),
        1
    );
    assert_eq!(streams("scheme = 'core'", 1, begin, 2), 1);
    assert_eq!(
        streams("scheme = 'core'", 2, begin, 2),
        1,
        "one for each of two lanes"
    );
    assert_eq!(streams("mode = 'vertical'", 1, begin, 4), 4);
    assert_eq!(streams("mode = 'traditional'", 2, begin, 4), 4);
}
