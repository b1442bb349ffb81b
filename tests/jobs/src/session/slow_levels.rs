//! A level that is slow, loses a checkpoint or was cut off: what is told, waited for and owed.

use crate::session::hooks::{Hold, Holds, Single};
use crate::session::levels::{LONG, PACES, Uneven, recorded, restores, take};
use crate::session::mistakes::{refused, says};
use crate::session::told::{lost, safe, watch};
use crate::support::{Job, State, served, warnings};
use crate::{Test, session_tests};
use orcheck_client::{Options, Session, Solo, Trigger};
use orcheck_format::{Dtype, ErrorKind, Level, Step};
use orcheck_io::clock::{Clock, SystemClock};
use orcheck_io::failpoints::{FailpointHook, Failpoints, Verdict};
use orcheck_io::memory::Span;
use orcheck_testing::{FaultPlan, Scratch};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// What is tested here.
pub const TESTS: &[Test] = session_tests![
    no_more_checkpoints_pass_a_slow_one_than_are_remembered,
    a_close_waits_for_the_newest_step_of_each_level,
    a_level_that_lost_its_checkpoint_gets_the_next_one,
    a_level_whose_checkpoint_was_cut_off_gets_the_first_one_of_the_next_run,
    a_checkpoint_of_a_weaker_level_puts_off_nothing_that_goes_to_all,
    with_one_level_the_last_checkpoint_refers_to_those_before,
    a_level_whose_newest_checkpoint_is_from_the_future_is_due,
];

// Breaks if: a step is forgotten before it is decided; nobody would learn that it is safe, and the
// program would hear of a loss that is none.
fn no_more_checkpoints_pass_a_slow_one_than_are_remembered() {
    let scratch = Scratch::new("forgotten");
    let durable = Single::at("flush.durable");
    // With an encoding, each chunk of step 1 is written by itself, and a checkpoint passes before
    // each.
    let job = Job::new(scratch.path(), 1, 1, true)
        .pool("16 MiB")
        .with("held_steps = 2\nuncommitted_steps = 2\noverrun = 'error'\ncompress = 'lz4'")
        .failpoints(durable.failpoints());
    job.run(|session, rank| {
        let mut session = session.unwrap();
        let seen = watch(&mut session);
        let mut state = State::new(rank, 1, 4000);
        state.protect(&mut session).unwrap();
        session.checkpoint(1).unwrap();
        for step in 2..=64 {
            durable.wait_for(step - 1);
            take(&mut session, rank, step.into(), Some(Level::Node));
            durable.allow(step - 1);
            session.wait((step - 1).into(), Level::Node, LONG).unwrap();
        }
        durable.wait_for(64);
        let error = refused(session.checkpoint_at(65, Some(Level::Node)));
        says(
            &error,
            ErrorKind::Unavailable,
            &["it comes while 1 is not yet safe at level global"],
        );
        assert_eq!(warnings(&mut session), Vec::<String>::new());
        durable.allow(u32::MAX);
        session.wait(1, Level::Global, LONG).unwrap();
        for step in 65..70 {
            take(&mut session, rank, step, Some(Level::Node));
            session.wait(step, Level::Node, LONG).unwrap();
        }
        session.close(LONG).unwrap();
        assert_eq!(lost(&seen), []);
        assert!(safe(&seen).contains(&(1, Level::Global)));
    });
    assert_eq!(recorded(scratch.path(), Level::Global), [1]);
}

// Breaks if: the last checkpoint speaks for all levels; a program that ends would be told that all
// is safe, although the only checkpoint of a level never got there.
fn a_close_waits_for_the_newest_step_of_each_level() {
    if served() {
        // The container of level `global` is created by another process.
        return;
    }
    let scratch = Scratch::new("newest-of-each");
    let created = Hold::at("dir.create", "ost0/job/s000000000001");
    let third = Hold::after(2, "flush.durable", "");
    let job = Job::new(scratch.path(), 1, 1, true)
        .with("held_steps = 2")
        .failpoints(Holds::failpoints(&[&created, &third]));
    job.run(|session, rank| {
        let mut session = session.unwrap();
        take(&mut session, rank, 1, Some(Level::Global));
        session.wait(1, Level::Node, LONG).unwrap();
        created.wait_until_held();
        take(&mut session, rank, 2, Some(Level::Node));
        created.release();
        session.wait(2, Level::Node, LONG).unwrap();
        third.wait_until_held();
        let began = SystemClock.now();
        let (closed, told) = session.close_telling(Duration::from_millis(100));
        let took = SystemClock.now() - began;
        third.release();
        says(
            &closed.unwrap_err(),
            ErrorKind::Unavailable,
            &["checkpoint 1 is not yet safe at level global"],
        );
        let undecided = |text: &&String| text.contains("not known to be safe");
        assert_eq!(told.iter().filter(undecided).count(), 1, "{told:?}");
        assert!(took < Duration::from_secs(8), "{took:?}");
    });
}

/// A job whose level `global` fails from now on, until the plan heals.
fn failing(scratch: &Scratch) -> (Arc<FaultPlan>, Job) {
    let plan = Arc::new(FaultPlan::new());
    let failpoints = Failpoints::with(Arc::clone(&plan) as Arc<dyn FailpointHook>);
    let job = Job::new(scratch.path(), 1, 1, true)
        .with(PACES)
        .with("keep = 20")
        .failpoints(failpoints);
    (plan, job)
}

/// Takes the checkpoints that are due at these steps.
fn follow(session: &mut Session, rank: u32, steps: std::ops::RangeInclusive<u64>) {
    for step in steps {
        if session.due(step).unwrap() {
            take(session, rank, step, None);
            session.wait(step, Level::Node, LONG).unwrap();
        }
    }
}

// Breaks if: a checkpoint that did not get there counts as one that did; with a loss at every
// multiple the level would have none.
fn a_level_that_lost_its_checkpoint_gets_the_next_one() {
    if served() {
        return;
    }
    let scratch = Scratch::new("lost-owed");
    let (plan, job) = failing(&scratch);
    job.run(|session, rank| {
        let mut session = session.unwrap();
        plan.fail_from_now("file.write", "ost0/job/s", Verdict::Fail(5));
        follow(&mut session, rank, 1..=6);
        refused(session.wait(6, Level::Global, LONG));
        plan.heal();
        // It makes nothing due by itself, and holds for one checkpoint.
        assert!(!session.due(7).unwrap());
        follow(&mut session, rank, 8..=8);
        session.wait(8, Level::Global, LONG).unwrap();
        follow(&mut session, rank, 9..=11);
        session.close(LONG).unwrap();
    });
    assert_eq!(recorded(scratch.path(), Level::Global), [8]);
}

// Breaks if: steps are counted from where the run continues; a level whose every checkpoint is cut
// off by the end of a run would have none in any run.
fn a_level_whose_checkpoint_was_cut_off_gets_the_first_one_of_the_next_run() {
    if served() {
        return;
    }
    for (last, expected) in [(8, &[6, 12][..]), (14, &[6, 16, 18])] {
        let scratch = Scratch::new("cut-off");
        let (plan, job) = failing(&scratch);
        job.run(|session, rank| {
            let mut session = session.unwrap();
            follow(&mut session, rank, 1..=8);
            session.wait(6, Level::Global, LONG).unwrap();
            plan.fail_from_now("file.write", "ost0/job/s", Verdict::Fail(5));
            // It is reported only after the next checkpoint was taken.
            follow(&mut session, rank, 9..=12.min(last));
            if last > 12 {
                refused(session.wait(12, Level::Global, LONG));
                take(&mut session, rank, last, None);
                session.wait(last, Level::Node, LONG).unwrap();
            }
            session.abandon();
        });
        plan.heal();
        job.run(|session, rank| {
            let mut session = restores(session, rank, last);
            follow(&mut session, rank, last + 1..=18.min(last + 4));
            session.close(LONG).unwrap();
        });
        assert_eq!(recorded(scratch.path(), Level::Global), expected);
    }
}

/// The step at which a checkpoint is first due in steps of a second, with one of level `node` every
/// third, and what a checkpoint is then said to cost.
fn first_due(options: &str) -> (Option<u64>, f64) {
    let clock = Arc::new(Uneven(Mutex::new(Duration::from_secs(1))));
    let text = format!("global = '/g'\nnode_dir = '/n'\n{options}");
    let options = Options::from_text(&text).unwrap();
    let given = Arc::clone(&clock) as Arc<dyn Clock>;
    let mut trigger = Trigger::new(&options, (1, 4), given).unwrap();
    trigger.taken(Step(1), 1.0, 0);
    trigger.flushed(true, 0);
    let mut due = None;
    for step in 2..60 {
        *clock.0.lock().unwrap() += Duration::from_secs(1);
        if trigger.due(&mut Solo, Step(step)).unwrap() {
            due = due.or(Some(step));
        }
        if step % 3 == 0 {
            trigger.taken_at((Step(step), 1), 0.001, 0);
        }
    }
    (due, trigger.kept().map_or(0.0, |kept| kept.cost_s))
}

// Breaks if: a checkpoint of a weaker level counts as one of all; a program that takes them often
// would never have another.
fn a_checkpoint_of_a_weaker_level_puts_off_nothing_that_goes_to_all() {
    assert_eq!(first_due("every_s = 10").0, Some(11));
    assert_eq!(first_due("every_steps = 7").0, Some(7));
    // Young: the root of 2 * 1 s * 50 s is 10 s.
    let (due, cost_s) = first_due("interval = 'auto'\nmtbf_s = 50");
    assert!(due.is_some_and(|step| (8..14).contains(&step)), "{due:?}");
    assert!((cost_s - 1.0).abs() < 1e-3, "{cost_s}");
}

// Breaks if: a checkpoint to all levels is not known for one; nothing may then refer to what was
// stored before, and the last one, for which time is short, stores everything.
fn with_one_level_the_last_checkpoint_refers_to_those_before() {
    let scratch = Scratch::new("one-level");
    let job = Job::new(scratch.path(), 1, 1, false)
        .with("incremental = 'auto'\nlevel.global.every_steps = 1");
    job.run(|session, _| {
        let mut session = session.unwrap();
        let mut bytes: Vec<u8> = (0..2u32 << 20).map(|at| (at / 7) as u8).collect();
        let span = Span::from_mut(&mut bytes);
        session.protect("big", span, Dtype::U8, 0).unwrap();
        for step in 1..=3 {
            if step == 3 {
                session.requester().request(true);
            }
            session.checkpoint(step).unwrap();
            session.wait(step, Level::Global, LONG).unwrap();
        }
        assert!(session.should_stop());
        let captured = session.stats().captured;
        assert_eq!(
            (captured.stored_bytes, captured.referred_bytes),
            (0, 2 << 20)
        );
        session.close(LONG).unwrap();
    });
}

/// A clock that is an hour behind.
struct Behind;

impl Clock for Behind {
    fn now(&self) -> Duration {
        SystemClock.now()
    }

    fn unix_ms(&self) -> u64 {
        SystemClock.unix_ms() - 3_600_000
    }

    fn sleep(&self, time: Duration) {
        std::thread::park_timeout(time);
    }
}

// Breaks if: it counts as taken just now; on a host whose clock is behind, the level would wait for
// a whole interval in every run.
fn a_level_whose_newest_checkpoint_is_from_the_future_is_due() {
    let scratch = Scratch::new("future");
    let mut job = Job::new(scratch.path(), 2, 1, true)
        .with("level.node.every_s = 1000\nlevel.global.every_s = 1000");
    job.run(|session, rank| {
        let mut session = session.unwrap();
        take(&mut session, rank, 1, Some(Level::Global));
        session.close(LONG).unwrap();
    });
    job.clock = Arc::new(Behind);
    job.run(|session, rank| {
        let mut session = restores(session, rank, 1);
        assert!(session.due(2).unwrap());
        take(&mut session, rank, 2, None);
        session.wait(2, Level::Global, LONG).unwrap();
        assert!(!session.due(3).unwrap());
        session.close(LONG).unwrap();
    });
}
