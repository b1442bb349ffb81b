//! Each level at its own pace: where checkpoints go, are told, waited for, kept and found again.

use crate::session::disk;
use crate::session::hooks::{Hold, Holds, Meeting};
use crate::session::mistakes::{refused, says};
use crate::support::{Job, State, Threads, served, warnings};
use crate::{Test, session_tests};
use orcheck_client::{Collective, Event, EventKind, Options, Session, Solo, Trigger, Which};
use orcheck_engine::directory::{Catalog, Places};
use orcheck_engine::node::{Goes, HaltRequest};
use orcheck_format::{Dtype, ErrorKind, JobName, Level, Result, Step};
use orcheck_io::clock::{Clock, SystemClock};
use orcheck_io::failpoints::{FailpointHook, Failpoints, Verdict};
use orcheck_testing::Scratch;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// What is tested here.
pub const TESTS: &[Test] = session_tests![
    each_level_gets_the_steps_of_its_pace_and_keeps_its_own,
    all_ranks_agree_on_the_levels_whatever_their_clocks_say,
    a_step_is_waited_for_where_it_goes_and_refused_at_once_elsewhere,
    a_level_can_be_asked_for_with_paces_and_without,
    the_last_checkpoint_goes_to_the_strongest_level,
    a_level_that_one_rank_asks_for_is_the_level_of_all,
    a_restart_takes_the_newest_step_over_all_levels,
    a_superseded_step_that_is_newest_at_one_level_does_not_win,
    a_loss_is_told_only_where_the_step_goes,
    a_slow_level_holds_up_only_what_goes_there,
    a_cheap_checkpoint_passes_one_on_its_way_to_a_slow_level,
    a_pace_in_time_continues_from_the_run_before,
    a_level_that_a_run_did_not_reach_goes_with_the_next_checkpoint,
    a_session_measures_each_level_and_keeps_a_pattern,
];

pub const LONG: Duration = Duration::from_secs(20);
pub const PACES: &str = "level.node.every_steps = 2\nlevel.global.every_steps = 6";

pub fn take(session: &mut Session, rank: u32, step: u64, level: Option<Level>) {
    let mut state = State::new(rank, step, 20);
    state.protect(session).unwrap();
    session.checkpoint_at(step, level).unwrap();
}

/// The steps with a record at a level, in the directories of this level alone.
pub fn recorded(root: &Path, level: Level) -> Vec<u64> {
    let node = (level != Level::Global).then(|| root.join("local"));
    let servers: Vec<PathBuf> = (level == Level::Global)
        .then(|| root.join("ost0"))
        .into_iter()
        .collect();
    let job = JobName::new("job").unwrap();
    let none = Failpoints::none();
    let Ok(places) = Places::open(&job, "n0", node.as_ref(), &servers, &none, false) else {
        return Vec::new();
    };
    let catalog = Catalog::scan(&job, &places.all()).unwrap();
    let commits = catalog.commits().iter().map(|commit| commit.record.step.0);
    let steps: BTreeSet<u64> = commits.collect();
    steps.into_iter().collect()
}

fn settle(session: &mut Session) {
    while session.stats().committed_node_step == Step(0) {
        std::thread::yield_now();
        session.poll_outcomes();
    }
}

/// Restarts, and has the state of this step.
pub fn restores(session: Result<Session>, rank: u32, step: u64) -> Session {
    let mut session = session.unwrap();
    assert_eq!(session.find().unwrap(), step);
    State::restores(&mut session, rank, step, 20);
    session
}

fn wipe(dir: &Path) {
    disk::remove_tree(dir);
}

// Breaks if: a checkpoint goes to a level where it is not due, or to a strong level and not to the
// weak ones; steps count for the keep rule of a level where they are not.
fn each_level_gets_the_steps_of_its_pace_and_keeps_its_own() {
    let scratch = Scratch::new("paces");
    let events: Mutex<Vec<(u64, Level)>> = Mutex::default();
    let events = Arc::new(events);
    let job = Job::new(scratch.path(), 2, 1, true)
        .with(PACES)
        .with("keep = 2");
    job.run(|session, rank| {
        let mut session = session.unwrap();
        if rank == 0 {
            let events = Arc::clone(&events);
            session.watch(Some(Box::new(move |event: &Event| {
                assert_eq!(event.kind, EventKind::Safe, "{event:?}");
                events.lock().unwrap().push((event.step.0, event.level));
            })));
        }
        for step in 1..=20 {
            let due = session.due(step).unwrap();
            assert_eq!(due, step % 2 == 0, "step {step}");
            if due {
                take(&mut session, rank, step, None);
                session.wait(step, Level::Node, LONG).unwrap();
            }
        }
        session.close(LONG).unwrap();
    });
    let told = events.lock().unwrap().clone();
    let at = |level: Level| -> Vec<u64> {
        let here = told.iter().filter(|(_, at)| *at == level);
        here.map(|&(step, _)| step).collect()
    };
    assert_eq!(at(Level::Node), [2, 4, 6, 8, 10, 12, 14, 16, 18, 20]);
    assert_eq!(at(Level::Global), [6, 12, 18]);
    assert_eq!(recorded(scratch.path(), Level::Node), [18, 20]);
    assert_eq!(recorded(scratch.path(), Level::Global), [12, 18]);
}

/// A clock of one rank, which is fast or slow.
pub struct Uneven(pub Mutex<Duration>);

impl Clock for Uneven {
    fn now(&self) -> Duration {
        *self.0.lock().unwrap()
    }

    fn unix_ms(&self) -> u64 {
        self.now().as_millis() as u64
    }

    fn sleep(&self, time: Duration) {
        *self.0.lock().unwrap() += time;
    }
}

/// What happens on a rank in one step: time passes, and it may request a checkpoint.
type Happens = Vec<(u64, bool)>;

/// The steps and levels of the checkpoints that a rank takes.
fn decisions(mut collective: Threads, options: &str, happens: &[Happens]) -> Vec<(u64, Goes)> {
    let rank = collective.rank().0 as usize;
    let clock = Arc::new(Uneven(Mutex::new(Duration::from_secs(1))));
    let text = format!("global = '/g'\nnode_dir = '/n'\n{options}");
    let options = Options::from_text(&text).unwrap();
    let given = Arc::clone(&clock) as Arc<dyn Clock>;
    let mut trigger = Trigger::new(&options, (2, 4), given).unwrap();
    let mut taken = Vec::new();
    for (step, happens) in (1..).zip(happens) {
        let (ms, requests) = happens[rank];
        *clock.0.lock().unwrap() += Duration::from_millis(ms);
        if requests {
            trigger.request().request(false);
        }
        // Some programs never ask.
        let asks = step % 5 != 0;
        if asks && !trigger.due(&mut collective, Step(step)).unwrap() {
            continue;
        }
        let mut depth = [-(trigger.depth_wished(Step(step), None) as i64)];
        collective.allreduce_min(&mut depth).unwrap();
        let depth = depth[0].unsigned_abs() as usize;
        taken.push((step, trigger.levels_at(depth)));
        trigger.taken_at((Step(step), depth), 0.001, 0);
    }
    taken
}

// Breaks if: a rank decides by its own clock, or by a request of its own, where a checkpoint goes.
fn all_ranks_agree_on_the_levels_whatever_their_clocks_say() {
    let happens = prop::collection::vec((0u64..900, prop::bool::weighted(0.02)), 3);
    let happens = prop::collection::vec(happens, 1..60);
    let options = prop::sample::select(vec![
        "level.node.every_s = 1\nlevel.global.every_s = 4",
        "level.node.every_steps = 3\nlevel.global.every_steps = 7",
        "level.node.every_steps = 3\nlevel.global.every_s = 5",
        "level.node.every_s = 2\nlevel.global.every_steps = 9",
        "interval = 'auto'\nlevel.node.mtbf_s = 50\nlevel.global.mtbf_s = 900",
        "every_s = 3",
    ]);
    let mut runner = TestRunner::new(Config {
        cases: 64,
        failure_persistence: None,
        ..Config::default()
    });
    let tried = runner.run(&(happens, options), |(happens, options)| {
        let ranks: Vec<Vec<(u64, Goes)>> = std::thread::scope(|scope| {
            let work = |threads| {
                let happens = &happens;
                scope.spawn(move || decisions(threads, options, happens))
            };
            let ranks: Vec<_> = Threads::world(3).into_iter().map(work).collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        });
        prop_assert_eq!(&ranks[0], &ranks[1]);
        prop_assert_eq!(&ranks[0], &ranks[2]);
        if options == "every_s = 3" {
            prop_assert!(ranks[0].iter().all(|(_, goes)| *goes == Goes::EVERYWHERE));
        }
        // Every fifth step is taken without a question, and goes to the weakest level at least.
        prop_assert_eq!(
            ranks[0].iter().filter(|(step, _)| step % 5 == 0).count(),
            happens.len() / 5
        );
        prop_assert!(ranks[0].iter().all(|(_, goes)| goes.includes(Level::Node)));
        Ok(())
    });
    tried.unwrap();
}

// Breaks if: a wait for a level that the step does not go to lasts until its deadline.
fn a_step_is_waited_for_where_it_goes_and_refused_at_once_elsewhere() {
    let scratch = Scratch::new("waited");
    let job = Job::new(scratch.path(), 1, 1, true).with(PACES);
    job.run(|session, rank| {
        let mut session = session.unwrap();
        take(&mut session, rank, 1, None);
        session.wait(1, Level::Node, LONG).unwrap();
        session.wait(1, Level::Process, LONG).unwrap();
        let error = refused(session.wait(1, Level::Global, LONG));
        says(
            &error,
            ErrorKind::NotFound,
            &[
                "checkpoint 1 does not go to level global: it goes to level node",
                "ask for the level",
            ],
        );
        take(&mut session, rank, 6, None);
        session.wait(6, Level::Global, LONG).unwrap();
        take(&mut session, rank, 7, None);
        let error = refused(session.wait(7, Level::Global, Duration::ZERO));
        says(
            &error,
            ErrorKind::NotFound,
            &["wait for step 6, the last one that goes there"],
        );
        // A stronger level satisfies the wait.
        session.wait(6, Level::Node, LONG).unwrap();
        assert_eq!(session.safe_step(Level::Global).unwrap(), 6);
        session.close(LONG).unwrap();
    });
}

fn a_level_can_be_asked_for_with_paces_and_without() {
    for paces in [PACES, ""] {
        let scratch = Scratch::new("asked");
        let job = Job::new(scratch.path(), 2, 1, true)
            .with(paces)
            .with("keep = 9");
        job.run(|session, rank| {
            let mut session = session.unwrap();
            take(&mut session, rank, 1, Some(Level::Node));
            take(&mut session, rank, 3, Some(Level::Global));
            take(&mut session, rank, 5, Some(Level::Process));
            session.close(LONG).unwrap();
        });
        assert_eq!(recorded(scratch.path(), Level::Node), [1, 3, 5], "{paces}");
        assert_eq!(recorded(scratch.path(), Level::Global), [3], "{paces}");
    }
    let scratch = Scratch::new("unasked");
    Job::new(scratch.path(), 2, 0, true).run(|session, rank| {
        let mut session = session.unwrap();
        let mut state = State::new(rank, 1, 20);
        state.protect(&mut session).unwrap();
        let error = refused(session.checkpoint_at(1, Some(Level::Global)));
        says(
            &error,
            ErrorKind::Unsupported,
            &["level global is not configured"],
        );
        take(&mut session, rank, 1, None);
        session.close(LONG).unwrap();
    });
}

// Breaks if: the last checkpoint goes only where it is due.
fn the_last_checkpoint_goes_to_the_strongest_level() {
    let scratch = Scratch::new("last");
    let job = Job::new(scratch.path(), 2, 1, true).with(PACES);
    job.run(|session, rank| {
        let mut session = session.unwrap();
        take(&mut session, rank, 1, None);
        if rank == 1 {
            session.requester().request(true);
        }
        // Steps alone send no message: the wish travels with the checkpoint.
        assert!(session.due(2).unwrap());
        take(&mut session, rank, 2, None);
        assert!(session.should_stop());
        session.close(LONG).unwrap();
    });
    assert_eq!(recorded(scratch.path(), Level::Global), [2]);
    // A request without an end is for a checkpoint that survives everything, too.
    let job = Job::new(scratch.path(), 2, 1, true)
        .with("level.node.every_s = 1000\nlevel.global.every_s = 2000");
    job.run(|session, rank| {
        let mut session = restores(session, rank, 2);
        if rank == 1 {
            session.requester().request(false);
        }
        assert!(session.due(3).unwrap());
        take(&mut session, rank, 3, None);
        assert!(!session.due(4).unwrap());
        session.close(LONG).unwrap();
    });
    assert_eq!(recorded(scratch.path(), Level::Global), [2, 3]);
    // Whatever makes it the last one, also without a request.
    for (options, halts) in [("", true), ("end_time_unix_s = 1\nend_margin_s = 0", false)] {
        let text = format!("global = '/g'\nnode_dir = '/n'\n{options}\n{PACES}");
        let options = Options::from_text(&text).unwrap();
        let clock = Arc::new(Uneven(Mutex::new(Duration::from_secs(9))));
        let mut trigger = Trigger::new(&options, (1, 4), clock).unwrap();
        if halts {
            trigger.poll_halt(HaltRequest::Now);
        } else {
            assert!(trigger.due(&mut Solo, Step(1)).unwrap() && trigger.should_stop());
        }
        assert_eq!(trigger.depth_wished(Step(1), None), 2);
    }
}

// Breaks if: each rank goes where it wants; a container of level global would be missing, and the
// step never be decided.
fn a_level_that_one_rank_asks_for_is_the_level_of_all() {
    let scratch = Scratch::new("one");
    let job = Job::new(scratch.path(), 4, 1, true).with(PACES).nodes(2);
    job.run(|session, rank| {
        let mut session = session.unwrap();
        let level = if rank == 3 {
            Level::Global
        } else {
            Level::Node
        };
        take(&mut session, rank, 1, Some(level));
        session.wait(1, Level::Global, LONG).unwrap();
        session.close(LONG).unwrap();
    });
    assert_eq!(recorded(scratch.path(), Level::Global), [1]);
}

fn a_restart_takes_the_newest_step_over_all_levels() {
    for lost in [None, Some("local"), Some("ost0")] {
        let scratch = Scratch::new("newest");
        let job = Job::new(scratch.path(), 2, 1, true).with(PACES);
        job.run(|session, rank| {
            let mut session = session.unwrap();
            for (step, level) in [(1, Level::Node), (3, Level::Global), (5, Level::Node)] {
                take(&mut session, rank, step, Some(level));
                session.wait(step, level, LONG).unwrap();
            }
            session.close(LONG).unwrap();
        });
        let expected = match lost {
            Some("local") => 3,
            _ => 5,
        };
        if let Some(dir) = lost {
            wipe(&scratch.path().join(dir).join("job"));
        }
        job.run(|session, rank| {
            let session = restores(session, rank, expected);
            session.close(LONG).unwrap();
        });
    }
}

// Breaks if: the newest record of a level counts although a later run resumed from before it: two
// histories would be mixed.
fn a_superseded_step_that_is_newest_at_one_level_does_not_win() {
    let scratch = Scratch::new("superseded");
    let job = Job::new(scratch.path(), 2, 1, true)
        .with(PACES)
        .with("keep = 9");
    job.run(|session, rank| {
        let mut session = session.unwrap();
        for (step, level) in [(1, Level::Global), (3, Level::Node), (5, Level::Global)] {
            take(&mut session, rank, step, Some(level));
            session.wait(step, level, LONG).unwrap();
        }
        session.close(LONG).unwrap();
    });
    // The second run goes back, and has steps of its own at the weaker level alone.
    job.run(|session, rank| {
        let mut session = session.unwrap();
        assert_eq!(session.find_step(Which::Exactly(Step(3))).unwrap(), 3);
        State::restores(&mut session, rank, 3, 20);
        take(&mut session, rank, 4, Some(Level::Node));
        session.wait(4, Level::Node, LONG).unwrap();
        session.close(LONG).unwrap();
    });
    job.run(|session, rank| restores(session, rank, 4).close(LONG).unwrap());
    wipe(&scratch.path().join("local").join("job"));
    job.run(|session, rank| restores(session, rank, 1).close(LONG).unwrap());
}

fn a_loss_is_told_only_where_the_step_goes() {
    if served() {
        // The disk of level `global` is another process's.
        return;
    }
    let scratch = Scratch::new("lost");
    let plan = Arc::new(orcheck_testing::FaultPlan::new());
    let failpoints = Failpoints::with(Arc::clone(&plan) as Arc<dyn FailpointHook>);
    let job = Job::new(scratch.path(), 1, 1, true)
        .with(PACES)
        .failpoints(failpoints);
    job.run(|session, rank| {
        let mut session = session.unwrap();
        take(&mut session, rank, 1, Some(Level::Global));
        session.wait(1, Level::Global, LONG).unwrap();
        plan.fail_from_now("file.write", "ost0", Verdict::Fail(5));
        for step in [3, 5] {
            take(&mut session, rank, step, Some(Level::Node));
            session.wait(step, Level::Node, LONG).unwrap();
        }
        assert_eq!(warnings(&mut session), Vec::<String>::new());
        take(&mut session, rank, 7, Some(Level::Global));
        let error = refused(session.wait(7, Level::Global, LONG));
        assert!(
            error
                .message()
                .contains("checkpoint 7 is not safe at level global"),
            "{error}"
        );
        let told = warnings(&mut session);
        assert!(
            told.iter()
                .any(|text| text.contains("checkpoint 7 is lost at level global")),
            "{told:?}"
        );
        take(&mut session, rank, 9, Some(Level::Node));
        let error = refused(session.close(LONG));
        assert!(
            error.message().contains("is not safe at level global"),
            "{error}"
        );
    });
    assert_eq!(recorded(scratch.path(), Level::Node), [7, 9]);
}

// Breaks if: `uncommitted_steps` counts at one level for all checkpoints: with a slow file system,
// the cheap level would be as slow.
fn a_slow_level_holds_up_only_what_goes_there() {
    let scratch = Scratch::new("slow");
    // Its second container, that of level `global`: the thread that writes the record also commits
    // at the other level.
    let hold = Hold::after(1, "flush.durable", "");
    let job = Job::new(scratch.path(), 1, 1, true)
        .with(PACES)
        .with("overrun = 'error'\nheld_steps = 3\nuncommitted_steps = 1")
        .failpoints(hold.failpoints());
    let free = Meeting::of(2);
    let agents = job.agents();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            job.run_ranks(|session, rank| {
                let mut session = session.unwrap();
                take(&mut session, rank, 1, Some(Level::Global));
                session.wait(1, Level::Node, LONG).unwrap();
                hold.wait_until_held();
                take(&mut session, rank, 2, None);
                let mut state = State::new(rank, 3, 20);
                state.protect(&mut session).unwrap();
                let error = refused(session.checkpoint_at(3, Some(Level::Global)));
                says(
                    &error,
                    ErrorKind::Unavailable,
                    &["1 is not yet safe at level global"],
                );
                free.wait();
                session.wait(2, Level::Node, LONG).unwrap();
                session.close(LONG).unwrap();
            });
        });
        free.wait();
        hold.release();
    });
    for (stop, agent) in agents {
        stop.stop();
        agent.join().unwrap().unwrap();
    }
}

// Breaks if: snapshots are written strictly one after the other; a slow file system would make the
// cheap level as slow. Or if what is still to be written is given back with what passed it.
fn a_cheap_checkpoint_passes_one_on_its_way_to_a_slow_level() {
    if served() {
        // The container of level `global` is created by another process.
        return;
    }
    let scratch = Scratch::new("passes");
    let created = Hold::at("dir.create", "ost0/job/s000000000001");
    let second = Hold::after(1, "flush.durable", "");
    let third = Hold::after(2, "flush.durable", "");
    let job = Job::new(scratch.path(), 1, 1, true)
        .with("held_steps = 2")
        .failpoints(Holds::failpoints(&[&created, &second, &third]));
    job.run(|session, rank| {
        let mut session = session.unwrap();
        let memory = session.alloc(1 << 20).unwrap();
        session.protect("lent", memory, Dtype::U8, 0).unwrap();
        session.lend("lent").unwrap();
        take(&mut session, rank, 1, Some(Level::Global));
        session.wait(1, Level::Node, LONG).unwrap();
        created.wait_until_held();
        take(&mut session, rank, 2, Some(Level::Node));
        created.release();
        // The second one is written, and the first one is not.
        second.wait_until_held();
        refused(session.lent_done("lent", Duration::ZERO));
        second.release();
        third.wait_until_held();
        session.wait(2, Level::Node, LONG).unwrap();
        refused(session.wait(1, Level::Global, Duration::ZERO));
        session.lent_done("lent", LONG).unwrap();
        third.release();
        session.wait(1, Level::Global, LONG).unwrap();
        // Level global is not the only one that can be passed: the pool is whole again.
        for step in 3..9 {
            take(
                &mut session,
                rank,
                step,
                (step % 2 == 0).then_some(Level::Node),
            );
        }
        session.close(LONG).unwrap();
    });
    assert_eq!(recorded(scratch.path(), Level::Node), [7, 8]);
    assert_eq!(recorded(scratch.path(), Level::Global), [5, 7]);
}

// Breaks if: each run counts time from its own beginning.
fn a_pace_in_time_continues_from_the_run_before() {
    let scratch = Scratch::new("age");
    let job = Job::new(scratch.path(), 2, 1, true).with("keep = 9");
    job.run(|session, rank| {
        let mut session = session.unwrap();
        for (step, level) in [(1, Level::Global), (3, Level::Node)] {
            take(&mut session, rank, step, Some(level));
            session.wait(step, level, LONG).unwrap();
        }
        settle(&mut session);
        session.close(LONG).unwrap();
    });
    // Less than a millisecond is not measured: what is older than that is due.
    let job = job.with("level.node.every_s = 1000\nlevel.global.every_s = 1000");
    job.run(|session, rank| {
        let mut session = restores(session, rank, 3);
        assert!(!session.due(4).unwrap());
        session.close(LONG).unwrap();
    });
    wipe(&scratch.path().join("ost0").join("job"));
    // A level that has nothing is due at once, and so are the weaker ones.
    job.run(|session, rank| {
        let mut session = restores(session, rank, 3);
        assert!(session.due(4).unwrap());
        take(&mut session, rank, 4, None);
        session.wait(4, Level::Global, LONG).unwrap();
        assert!(!session.due(5).unwrap());
        session.close(LONG).unwrap();
    });
}

// Breaks if: a run that ends while a checkpoint is on its way to the slow level leaves that level
// out until its next multiple.
fn a_level_that_a_run_did_not_reach_goes_with_the_next_checkpoint() {
    let scratch = Scratch::new("owed");
    let job = Job::new(scratch.path(), 2, 1, true);
    job.run(|session, rank| {
        let mut session = session.unwrap();
        for (step, level) in [(1, Level::Global), (6, Level::Node)] {
            take(&mut session, rank, step, Some(level));
            session.wait(step, level, LONG).unwrap();
        }
        settle(&mut session);
        session.close(LONG).unwrap();
    });
    job.with(PACES).run(|session, rank| {
        let mut session = restores(session, rank, 6);
        for (step, level) in [(8, Level::Global), (10, Level::Node)] {
            assert!(!session.due(step - 1).unwrap() && session.due(step).unwrap());
            take(&mut session, rank, step, None);
            session.wait(step, level, LONG).unwrap();
        }
        session.close(LONG).unwrap();
    });
    assert_eq!(recorded(scratch.path(), Level::Global), [1, 8]);
}

// Breaks if: only checkpoints that go everywhere are measured; the pattern would never be found.
fn a_session_measures_each_level_and_keeps_a_pattern() {
    let scratch = Scratch::new("measures");
    let job = Job::new(scratch.path(), 2, 1, true)
        .with("interval = 'auto'\nheld_steps = 2")
        .with("level.node.mtbf_s = 1\nlevel.global.mtbf_s = 100000");
    let late = SystemClock.now() + LONG;
    job.run(|session, rank| {
        let mut session = session.unwrap();
        let (mut step, mut weak, mut strong) = (0, 0, 0);
        while weak < 3 {
            assert!(
                SystemClock.now() < late,
                "{weak} at the weaker level, {strong} at both"
            );
            step += 1;
            if !session.due(step).unwrap() {
                continue;
            }
            take(&mut session, rank, step, None);
            session.wait(step, Level::Node, LONG).unwrap();
            match session.wait(step, Level::Global, LONG) {
                Ok(()) => strong += 1,
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
                    weak += 1;
                }
            }
        }
        // The first one goes everywhere.
        assert!(strong > 0);
        assert!(session.stats().interval_s > 0.0);
        session.close(LONG).unwrap();
    });
}
