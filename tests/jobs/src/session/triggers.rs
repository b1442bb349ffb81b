//! When checkpoints are due, that all ranks agree on it, and what agreeing costs.

use crate::session::mistakes::LONG;
use crate::support::{Job, State, Threads};
use crate::{Test, session_tests};
use orcheck_client::{Collective, Environment, Options, Session, Solo, Trigger};
use orcheck_engine::node::HaltRequest;
use orcheck_format::{Level, Rank, Result, Step};
use orcheck_io::clock::{Clock, SystemClock};
use orcheck_testing::Scratch;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// What is tested here.
pub const TESTS: &[Test] = session_tests![
    a_step_trigger_sends_no_message,
    a_checkpoint_costs_one_message_which_also_carries_the_wish_to_stop,
    a_time_trigger_fires_at_the_same_steps_on_all_ranks_and_on_time,
    before_the_jobs_end_one_checkpoint_is_due_and_all_ranks_stop,
    the_overhead_budget_is_used_and_kept,
    the_interval_follows_from_what_checkpoints_cost,
    no_checkpoint_is_due_before_the_last_one_is_safe,
    with_long_steps_every_one_is_followed_by_a_checkpoint,
    checkpoints_that_cost_more_than_the_time_between_failures_are_named_once,
    all_ranks_keep_the_same_interval_which_is_that_of_the_slowest,
    a_session_measures_its_checkpoints,
    a_request_on_one_rank_is_one_checkpoint_on_all,
    a_request_to_stop_reaches_all_ranks_at_the_same_step,
    a_signal_is_one_checkpoint_on_all_ranks_of_every_session_that_watches_it,
    two_sessions_of_one_program_both_hear_a_signal,
    agreeing_costs_less_than_a_thousandth_of_the_run_time,
    ranks_with_different_ideas_of_the_cost_agree_on_one_stride,
    the_last_of_some_checkpoints_is_the_one_to_stop_with,
    a_multiple_that_was_stepped_over_counts,
    the_end_that_a_batch_system_tells_is_no_trigger_that_somebody_chose,
    a_session_without_a_trigger_says_so_once_when_it_is_asked,
];

/// A clock that moves when told to.
#[derive(Default)]
struct Hand(Mutex<Duration>);

/// Wall-clock time at the start of every such clock.
const START_UNIX_S: u64 = 1_800_000_000;

impl Hand {
    fn at(start_s: f64) -> Arc<Self> {
        Arc::new(Self(Mutex::new(Duration::from_secs_f64(start_s))))
    }

    fn forward(&self, seconds: f64) {
        *self.0.lock().unwrap() += Duration::from_secs_f64(seconds);
    }
}

impl Clock for Hand {
    fn now(&self) -> Duration {
        *self.0.lock().unwrap()
    }

    fn unix_ms(&self) -> u64 {
        START_UNIX_S * 1000 + self.now().as_millis() as u64
    }

    fn sleep(&self, time: Duration) {
        *self.0.lock().unwrap() += time;
    }
}

/// Counts the calls of another collective; each takes some time on a clock.
struct Counted<C> {
    inner: C,
    calls: Arc<AtomicU64>,
    clock: Arc<Hand>,
    cost_s: f64,
}

impl<C: Collective> Counted<C> {
    fn new(inner: C, clock: &Arc<Hand>, cost_s: f64) -> Self {
        Self {
            inner,
            calls: Arc::default(),
            clock: Arc::clone(clock),
            cost_s,
        }
    }

    fn count(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    fn note(&self) {
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.clock.forward(self.cost_s);
    }
}

impl<C: Collective> Collective for Counted<C> {
    fn rank(&self) -> Rank {
        self.inner.rank()
    }

    fn size(&self) -> u32 {
        self.inner.size()
    }

    fn bcast(&mut self, buf: &mut [u8], root: u32) -> Result<()> {
        self.note();
        self.inner.bcast(buf, root)
    }

    fn gather(&mut self, mine: &[u8], root: u32) -> Result<Option<Vec<u8>>> {
        self.note();
        self.inner.gather(mine, root)
    }

    fn allreduce_min(&mut self, values: &mut [i64]) -> Result<()> {
        self.note();
        self.inner.allreduce_min(values)
    }
}

fn trigger(options: &str, clock: &Arc<Hand>) -> Trigger {
    let options = Options::from_text(&format!("global = '/unused'\n{options}")).unwrap();
    Trigger::new(&options, (2, 4), Arc::clone(clock) as Arc<dyn Clock>).unwrap()
}

/// Runs `work` on the ranks of a world, each with a clock of its own; results in rank order.
fn world<T: Send>(
    ranks: u32,
    work: impl Fn(Counted<Threads>, Arc<Hand>, u32) -> T + Sync,
) -> Vec<T> {
    std::thread::scope(|scope| {
        let handles: Vec<_> = Threads::world(ranks)
            .into_iter()
            .map(|threads| {
                let work = &work;
                scope.spawn(move || {
                    let rank = threads.rank().0;
                    let clock = Hand::at(1000.0 + f64::from(rank) * 0.37);
                    work(Counted::new(threads, &clock, 1e-5), clock, rank)
                })
            })
            .collect();
        handles
            .into_iter()
            .map(|handle| handle.join().unwrap())
            .collect()
    })
}

#[track_caller]
fn all_equal<T: PartialEq + std::fmt::Debug>(results: &[T]) {
    assert!(
        results.windows(2).all(|pair| pair[0] == pair[1]),
        "{results:?}"
    );
}

// ---- steps -----------------------------------------------------------------------------------

// Breaks if: `agreed` is true although only `every_steps` is set.
fn a_step_trigger_sends_no_message() {
    let sent = world(3, |mut collective, clock, _| {
        let mut trigger = trigger("every_steps = 7", &clock);
        let due: Vec<u64> = (0..30)
            .filter(|&step| {
                let due = trigger.due(&mut collective, Step(step)).unwrap();
                if due {
                    trigger.taken(Step(step), 0.0, 0);
                }
                due
            })
            .collect();
        assert_eq!(due, [7, 14, 21, 28]);
        collective.count()
    });
    assert_eq!(sent, [0, 0, 0]);
}

// Breaks if: `checkpoint` agrees twice, or the wish to stop does not travel in its message.
fn a_checkpoint_costs_one_message_which_also_carries_the_wish_to_stop() {
    let scratch = Scratch::new("message");
    let job = Job::new(scratch.path(), 2, 1, false).with("every_steps = 5");
    world(2, |collective, _, rank| {
        let calls = Arc::clone(&collective.calls);
        let mut session = Session::open_with(
            "job",
            Box::new(collective),
            Options::from_text(&job.options),
            Environment::default(),
        )
        .unwrap();
        let mut state = State::new(rank, 1, 10);
        state.protect(&mut session).unwrap();
        session.find().unwrap_err();
        for step in 1..=20 {
            let before = calls.load(Ordering::Relaxed);
            let due = session.due(step).unwrap();
            assert_eq!(calls.load(Ordering::Relaxed), before, "due sends nothing");
            assert_eq!(due, step % 5 == 0);
            if step == 12 && rank == 1 {
                session.requester().request(true);
            }
            if due {
                session.checkpoint(step).unwrap();
                // The first one also records what the run began from.
                let messages = if step == 5 { 2 } else { 1 };
                assert_eq!(calls.load(Ordering::Relaxed), before + messages);
            }
            assert_eq!(
                session.should_stop(),
                step >= 15,
                "rank {rank} at step {step}"
            );
        }
        session.close(LONG).unwrap();
    });
}

// ---- time ------------------------------------------------------------------------------------

// Breaks if: a rank decides by its own clock.
fn a_time_trigger_fires_at_the_same_steps_on_all_ranks_and_on_time() {
    let due = world(3, |mut collective, clock, rank| {
        let mut trigger = trigger("every_s = 10.0", &clock);
        let mut due = Vec::new();
        for step in 1..=3000 {
            // Steps of about 20 ms, of another length on each rank.
            clock.forward(0.02 + 0.001 * f64::from(rank));
            if trigger.due(&mut collective, Step(step)).unwrap() {
                due.push(step);
                clock.forward(0.1);
                trigger.taken(Step(step), 0.1, 0);
            }
        }
        due
    });
    all_equal(&due);
    // The fastest clock sees 10 s after 455 steps of 22 ms; lateness is bounded by 5 %.
    let gaps: Vec<u64> = due[0].windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(gaps.iter().all(|gap| (440..=490).contains(gap)), "{gaps:?}");
}

// Breaks if: the end time makes every later step due, or no rank is told to stop.
fn before_the_jobs_end_one_checkpoint_is_due_and_all_ranks_stop() {
    let end_s = START_UNIX_S + 1000 + 60;
    let seen = world(3, |mut collective, clock, rank| {
        let mut trigger = trigger(
            &format!("end_time_unix_s = {end_s}\nend_margin_s = 20.0"),
            &clock,
        );
        let mut seen = (Vec::new(), None);
        for step in 1..=100 {
            clock.forward(if rank == 2 { 1.0 } else { 0.9 });
            if trigger.due(&mut collective, Step(step)).unwrap() {
                seen.0.push(step);
                trigger.taken(Step(step), 0.0, 0);
            }
            if trigger.should_stop() && seen.1.is_none() {
                seen.1 = Some(step);
            }
        }
        seen
    });
    all_equal(&seen);
    // Rank 2's clock began at 1000.74: 20 s before the end come after 40 of its steps.
    assert_eq!(seen[0], (vec![40], Some(40)));
}

// Breaks if: `taken` does not count what the program was blocked.
fn the_overhead_budget_is_used_and_kept() {
    for percent in [2.0, 10.0] {
        let clock = Hand::at(0.0);
        let mut collective = Counted::new(orcheck_client::Solo, &clock, 1e-6);
        let mut trigger = trigger(&format!("overhead_percent = {percent}"), &clock);
        let mut blocked_s = 0.0;
        for step in 1..=5000 {
            clock.forward(0.5);
            if trigger.due(&mut collective, Step(step)).unwrap() {
                clock.forward(0.8);
                trigger.taken(Step(step), 0.8, 0);
                blocked_s += 0.8;
            }
        }
        let share = 100.0 * blocked_s / clock.now().as_secs_f64();
        assert!(
            share <= percent * 1.01 && share > percent * 0.95,
            "{share} % of {percent} %"
        );
    }
}

/// Runs `steps` of one second with checkpoints that cost what `cost_s` says and are safe
/// `safe_after_s` later, each taking `flush_cpu_s` of a processor; the times of computing between
/// them, and the interval that was kept at the end.
fn kept_by(
    options: &str,
    steps: u64,
    (cost_s, safe_after_s, flush_cpu_s): (impl Fn(u64) -> f64, f64, f64),
) -> (Vec<f64>, f64) {
    let clock = Hand::at(0.0);
    let mut collective = Counted::new(orcheck_client::Solo, &clock, 1e-6);
    let mut trigger = trigger(options, &clock);
    let (mut apart, mut since, mut safe_at, mut cpu_ns) = (Vec::new(), 0.0, None, 0);
    for step in 1..=steps {
        clock.forward(1.0);
        since += 1.0;
        if safe_at.is_some_and(|at_s| clock.now().as_secs_f64() >= at_s) {
            assert_eq!(trigger.awaited().is_some(), safe_at.take().is_some());
            cpu_ns += (flush_cpu_s * 1e9) as u64;
            trigger.flushed(true, cpu_ns);
        }
        if trigger.due(&mut collective, Step(step)).unwrap() {
            let cost_s = cost_s(apart.len() as u64);
            clock.forward(cost_s);
            trigger.taken(Step(step), cost_s, cpu_ns);
            apart.push(since);
            (since, safe_at) = (0.0, Some(clock.now().as_secs_f64() + safe_after_s));
        }
    }
    (apart, trigger.kept().unwrap().interval_s)
}

// Breaks if: the interval does not follow from what was measured, or the first checkpoint is not
// taken at once.
fn the_interval_follows_from_what_checkpoints_cost() {
    let auto = "interval = 'auto'\nmtbf_s = 20000.0";
    let best_s = |checkpoint_s| {
        let single = orcheck_interval::Single {
            checkpoint_s,
            restart_s: 0.0,
            mtbf_s: 20_000.0,
        };
        single.best_s()
    };
    let close = |found: f64, expected: f64| (found - expected).abs() < 0.02 * expected + 1.5;
    let (apart, kept_s) = kept_by(auto, 5000, (|_| 2.0, 10.0, 0.0));
    assert_eq!(apart[0], 1.0, "the first measures");
    assert!(close(kept_s, best_s(2.0)), "{kept_s}");
    assert!(
        apart[1..].iter().all(|&s| close(s, best_s(2.0))),
        "{apart:?}"
    );
    // Two nodes that fail every 40,000 s each are a failure every 20,000 s.
    let nodes = kept_by(
        "interval = 'auto'\nnode_mtbf_s = 40000",
        5000,
        (|_| 2.0, 10.0, 0.0),
    );
    assert_eq!((nodes.0, nodes.1), (apart, kept_s));
    // Four processors share what a flush takes of one.
    let (_, with_cpu_s) = kept_by(auto, 5000, (|_| 2.0, 10.0, 8.0));
    assert!(close(with_cpu_s, best_s(4.0)), "{with_cpu_s}");
    // The first one takes longer, and one in between: neither counts for long.
    let odd = |number| {
        if number == 0 || number == 5 {
            30.0
        } else {
            2.0
        }
    };
    let (apart, kept_s) = kept_by(auto, 5000, (odd, 10.0, 0.0));
    assert!(close(kept_s, best_s(2.0)), "{kept_s}");
    assert!(
        apart[2..].iter().all(|&s| close(s, best_s(2.0))),
        "{apart:?}"
    );
    // It follows when checkpoints come to cost more.
    let (_, kept_s) = kept_by(
        auto,
        20_000,
        (|n| if n < 10 { 2.0 } else { 20.0 }, 10.0, 0.0),
    );
    assert!(close(kept_s, best_s(20.0)), "{kept_s}");
}

// Breaks if: checkpoints begin before the last one is safe, and the program waits for it.
fn no_checkpoint_is_due_before_the_last_one_is_safe() {
    let options = "interval = 'auto'\nmtbf_s = 1000.0";
    let (apart, kept_s) = kept_by(options, 5000, (|_| 0.1, 300.0, 0.0));
    assert!(kept_s < 20.0, "{kept_s}");
    assert!(
        apart[1..].iter().all(|&s| (300.0..=302.0).contains(&s)),
        "{apart:?}"
    );
}

// Breaks if: what takes until a step ends is taken for the time of a flush, and steps are left out.
fn with_long_steps_every_one_is_followed_by_a_checkpoint() {
    let clock = Hand::at(0.0);
    let mut collective = Counted::new(orcheck_client::Solo, &clock, 1e-6);
    let mut trigger = trigger("interval = 'auto'\nmtbf_s = 3000.0", &clock);
    let mut taken = 0;
    for step in 1..=50 {
        // Ten minutes, now a little more and now a little less; a flush takes seconds of that.
        clock.forward(600.0 + 30.0 * f64::from(step % 5) - 60.0);
        trigger.flushed(true, 0);
        if trigger
            .due(&mut collective, Step(u64::from(step as u32)))
            .unwrap()
        {
            clock.forward(2.0);
            trigger.taken(Step(step as u64), 2.0, 0);
            taken += 1;
        }
    }
    assert!(taken >= 49, "{taken} of 50");
}

// Breaks if: a job that cannot get on is not told so, or with every step.
fn checkpoints_that_cost_more_than_the_time_between_failures_are_named_once() {
    let clock = Hand::at(0.0);
    let mut collective = Counted::new(orcheck_client::Solo, &clock, 1e-6);
    let mut trigger = trigger("interval = 'auto'\nmtbf_s = 10.0", &clock);
    let mut said = Vec::new();
    for step in 1..=50 {
        clock.forward(1.0);
        if trigger.due(&mut collective, Step(step)).unwrap() {
            trigger.taken(Step(step), 20.0, 0);
        }
        said.extend(trigger.complaint());
    }
    assert_eq!(said.len(), 1, "{said:?}");
    assert!(
        said[0].contains("20.000 s") && said[0].contains("every 10 s"),
        "{said:?}"
    );
}

// Breaks if: a rank keeps an interval of its own.
fn all_ranks_keep_the_same_interval_which_is_that_of_the_slowest() {
    let seen = world(3, |mut collective, clock, rank| {
        let mut trigger = trigger("interval = 'auto'\nmtbf_s = 20000.0", &clock);
        let mut due = Vec::new();
        for step in 1..=2000 {
            clock.forward(1.0);
            if trigger.due(&mut collective, Step(step)).unwrap() {
                due.push(step);
                clock.forward(2.0);
                trigger.taken(Step(step), 0.5 + 0.5 * f64::from(rank), 0);
            }
        }
        (
            due,
            trigger.kept().map(|kept| (kept.interval_s, kept.cost_s)),
        )
    });
    all_equal(&seen);
    assert_eq!(seen[0].1.unwrap().1, 1.5);
}

// Breaks if: a session does not measure its checkpoints, or says nothing of what follows.
fn a_session_measures_its_checkpoints() {
    let scratch = Scratch::new("auto");
    let job = Job::new(scratch.path(), 2, 1, false).with("interval = 'auto'\nmtbf_s = 1.0");
    world(2, |collective, _, rank| {
        let mut session = Session::open_with(
            "job",
            Box::new(collective),
            Options::from_text(&job.options),
            Environment::default(),
        )
        .unwrap();
        let mut state = State::new(rank, 1, 10);
        state.protect(&mut session).unwrap();
        session.find().unwrap_err();
        assert_eq!(session.stats().interval_s, 0.0);
        let mut taken = 0;
        for step in 1.. {
            // Two for the interval, one more because of it.
            if taken == 3 {
                break;
            }
            if session.due(step).unwrap() {
                session.checkpoint(step).unwrap();
                session.wait(step, Level::Global, LONG).unwrap();
                taken += 1;
            }
        }
        let stats = session.stats();
        assert!(
            stats.interval_s > 0.0 && stats.interval_s < 1.0,
            "{}",
            stats.interval_s
        );
        session.close(LONG).unwrap();
    });
}

// ---- requests --------------------------------------------------------------------------------

// Breaks if: `due` asks only its own rank, or forgets to clear what was heard.
fn a_request_on_one_rank_is_one_checkpoint_on_all() {
    let seen = world(4, |mut collective, clock, rank| {
        let mut trigger = trigger("", &clock);
        let mut due = Vec::new();
        for step in 1..=200 {
            clock.forward(1.0);
            if (step == 50 && rank == 3) || (step == 120 && rank < 2) {
                trigger.request().request(false);
            }
            if trigger.due(&mut collective, Step(step)).unwrap() {
                due.push(step);
                trigger.taken(Step(step), 0.0, 0);
            }
            assert!(!trigger.should_stop());
        }
        due
    });
    all_equal(&seen);
    assert_eq!(seen[0], [50, 120]);
}

// Breaks if: `should_stop` shows this rank's own wish before it is agreed.
fn a_request_to_stop_reaches_all_ranks_at_the_same_step() {
    let seen = world(4, |mut collective, clock, rank| {
        let mut trigger = trigger("every_steps = 1000", &clock);
        assert!(!trigger.due(&mut collective, Step(1)).unwrap());
        let mut agreed = self::trigger("every_s = 1e6", &clock);
        let mut stopped = None;
        let mut due = Vec::new();
        for step in 1..=100 {
            clock.forward(1.0);
            if step == 33 && rank == 2 {
                agreed.request().request(true);
                assert!(!agreed.should_stop(), "not before all ranks know");
            }
            if agreed.due(&mut collective, Step(step)).unwrap() {
                due.push(step);
                agreed.taken(Step(step), 0.0, 0);
            }
            if agreed.should_stop() && stopped.is_none() {
                stopped = Some(step);
            }
        }
        (due, stopped)
    });
    all_equal(&seen);
    assert_eq!(seen[0], (vec![33], Some(33)));
}

/// Sends the signal that the tests watch to this process.
fn raise_user_signal() {
    let sent = Command::new("kill")
        .arg("-USR1")
        .arg(std::process::id().to_string())
        .status()
        .unwrap();
    assert!(sent.success());
}

// Breaks if: every session asks for a handler of its own (the second is refused), or a signal is
// heard twice.
fn a_signal_is_one_checkpoint_on_all_ranks_of_every_session_that_watches_it() {
    let scratch = Scratch::new("signal");
    let job = Job::new(scratch.path(), 2, 1, false).with("signal = 'SIGUSR1'");
    let until = SystemClock.now() + LONG;
    for round in 0..2 {
        let all_open = crate::session::hooks::Meeting::of(2);
        let due = job.run(|session, rank| {
            let mut session = session.unwrap();
            let mut due = Vec::new();
            assert!(
                !session.due(1).unwrap(),
                "what came before the session opened is not its"
            );
            all_open.wait();
            if rank == 0 {
                raise_user_signal();
            }
            let mut step = 1;
            // The agreement keeps both ranks in step; the signal is delivered when the system
            // likes.
            while due.is_empty() && SystemClock.now() < until {
                step += 1;
                if session.due(step).unwrap() {
                    due.push(step);
                }
            }
            for step in step + 1..step + 2000 {
                if session.due(step).unwrap() {
                    due.push(step);
                }
            }
            assert!(!session.should_stop());
            session.close(LONG).unwrap();
            due
        });
        all_equal(&due);
        assert_eq!(due[0].len(), 1, "round {round}: {due:?}");
    }
}

fn two_sessions_of_one_program_both_hear_a_signal() {
    let clock = Hand::at(0.0);
    let mut solo = orcheck_client::Solo;
    let mut all: Vec<Trigger> = (0..3).map(|_| trigger("signal = 'USR2'", &clock)).collect();
    let sent = Command::new("kill")
        .arg("-USR2")
        .arg(std::process::id().to_string())
        .status()
        .unwrap();
    assert!(sent.success());
    let until = SystemClock.now() + LONG;
    for trigger in &mut all {
        let mut step = 1;
        clock.forward(1.0);
        while !trigger.due(&mut solo, Step(step)).unwrap() {
            assert!(SystemClock.now() < until, "the signal did not come");
            step += 1;
            clock.forward(1.0);
        }
        assert!(
            !trigger.due(&mut solo, Step(step + 1)).unwrap(),
            "heard once"
        );
    }
}

// ---- what agreeing costs ---------------------------------------------------------------------

// Breaks if: `stride_wish` returns 1.
fn agreeing_costs_less_than_a_thousandth_of_the_run_time() {
    let clock = Hand::at(0.0);
    let cost_s = 20e-6;
    let mut collective = Counted::new(orcheck_client::Solo, &clock, cost_s);
    let mut trigger = trigger("every_s = 3600.0", &clock);
    for (step_s, steps) in [(1e-3, 100_000), (1e-4, 200_000), (10.0, 1000)] {
        // A while to learn the new step time.
        let learn = steps / 4;
        let mut step = 0;
        let mut run = |steps: u64, collective: &mut Counted<orcheck_client::Solo>| {
            for _ in 0..steps {
                step += 1;
                clock.forward(step_s);
                if trigger.due(collective, Step(step)).unwrap() {
                    trigger.taken(Step(step), 0.0, 0);
                }
            }
        };
        run(learn, &mut collective);
        let (calls, begun) = (collective.count(), clock.now());
        run(steps, &mut collective);
        let calls = collective.count() - calls;
        let share = calls as f64 * cost_s / (clock.now() - begun).as_secs_f64();
        assert!(
            share < 0.001,
            "{step_s} s a step: {calls} messages, {share} of the time"
        );
        assert!(calls > 0);
        if step_s > 1.0 {
            assert_eq!(calls, steps, "long steps agree at each one");
        }
    }
}

// Breaks if: the strides of the ranks are not agreed with the wishes.
fn ranks_with_different_ideas_of_the_cost_agree_on_one_stride() {
    let stopped = AtomicBool::new(false);
    let calls = world(3, |mut collective, clock, rank| {
        let mut trigger = trigger("every_s = 3600.0", &clock);
        collective.cost_s = [1e-5, 1e-4, 1e-6][rank as usize];
        for step in 1..=20_000 {
            clock.forward([1e-3, 2e-3, 5e-4][rank as usize]);
            trigger.due(&mut collective, Step(step)).unwrap();
        }
        stopped.store(true, Ordering::Relaxed);
        collective.count()
    });
    all_equal(&calls);
    assert!(
        (100..=500).contains(&calls[0]),
        "{calls:?} messages in 20000 steps"
    );
}

// Breaks if: it is counted by calls instead of checkpoints, or ends the run one too early or too
// late.
fn the_last_of_some_checkpoints_is_the_one_to_stop_with() {
    let clock = Hand::at(1000.0);
    let mut trigger = trigger("every_steps = 10", &clock);
    let mut stops = Vec::new();
    for step in (10..=50).step_by(10) {
        if step >= 20 {
            trigger.poll_halt(HaltRequest::After(3));
        }
        assert!(!trigger.due(&mut Solo, Step(step - 1)).unwrap());
        assert!(trigger.due(&mut Solo, Step(step)).unwrap());
        stops.push(trigger.stops_with_this());
        trigger.taken(Step(step), 0.0, 0);
    }
    assert_eq!(stops, [false, false, false, true, true]);
    trigger.poll_halt(HaltRequest::None);
    assert!(!trigger.stops_with_this());
}

// Breaks if: only exact multiples count: a program that advances by 999 would never take a
// checkpoint.
fn a_multiple_that_was_stepped_over_counts() {
    let clock = Hand::at(1000.0);
    let due = |trigger: &mut Trigger, steps: &[u64]| {
        let due = steps.iter().copied().filter(|&step| {
            let due = trigger.due(&mut Solo, Step(step)).unwrap();
            if due {
                trigger.taken(Step(step), 0.0, 0);
            }
            due
        });
        due.collect::<Vec<u64>>()
    };
    let mut fresh = trigger("every_steps = 1000", &clock);
    let by_999: Vec<u64> = (1..=8).map(|turn| turn * 999).collect();
    // Each is beyond a multiple that the one before it had not reached.
    assert_eq!(due(&mut fresh, &by_999), by_999[1..]);
    let mut fresh = trigger("every_steps = 1000", &clock);
    assert_eq!(
        due(&mut fresh, &[1, 400, 1100, 1999, 2000, 2001, 5500, 5999]),
        [1100, 2000, 5500]
    );
    // A step that was restarted from counts like a checkpoint.
    let mut resumed = trigger("every_steps = 1000", &clock);
    resumed.count_from(Some(Step(1500)));
    assert_eq!(
        due(&mut resumed, &[1501, 1999, 2001, 2500, 3000]),
        [2001, 3000]
    );
    // One that is not taken stays due; one that is left out waits for the next multiple.
    let mut waiting = trigger("every_steps = 10", &clock);
    waiting.count_from(Some(Step(0)));
    assert!(waiting.due(&mut Solo, Step(10)).unwrap() && waiting.due(&mut Solo, Step(11)).unwrap());
    waiting.left_out();
    assert!(
        !waiting.due(&mut Solo, Step(12)).unwrap() && waiting.due(&mut Solo, Step(21)).unwrap()
    );
}

// Breaks if: the end that a batch system tells counts as a choice: a job that is killed before has
// no checkpoint.
fn the_end_that_a_batch_system_tells_is_no_trigger_that_somebody_chose() {
    let clock = Hand::at(1000.0);
    let text = |more: &str| format!("global = '/unused'\nend_time_unix_s = 1.9e9\n{more}");
    for (more, given, chosen) in [
        ("", true, false),
        ("", false, true),
        ("every_s = 9", true, true),
    ] {
        let mut options = Options::from_text(&text(more)).unwrap();
        options.end_is_given = given;
        let clock = Arc::clone(&clock) as Arc<dyn Clock>;
        let trigger = Trigger::new(&options, (1, 1), clock).unwrap();
        assert_eq!(trigger.is_configured(), chosen, "{more} {given}");
    }
}

// Breaks if: nobody says so, or it is reported again and again; the job would silently end without
// a checkpoint.
fn a_session_without_a_trigger_says_so_once_when_it_is_asked() {
    for (option, expected, next) in [
        ("keep = 2", 1, "every_s = 600"),
        ("mtbf_s = 1e5", 1, "interval = 'auto'"),
        ("every_s = 1e6", 0, ""),
        ("signal = 'USR2'", 0, ""),
    ] {
        let scratch = Scratch::new("triggers");
        let job = Job::new(scratch.path(), 2, 1, false).with(option);
        let said = job.run(|session, _| {
            let mut session = session.unwrap();
            let mut said = Vec::new();
            let mut hear = |session: &mut Session| {
                said.extend(std::iter::from_fn(|| session.take_warning()));
            };
            hear(&mut session);
            for step in 1..=3 {
                assert!(!session.due(step).unwrap());
                hear(&mut session);
            }
            session.close(LONG).unwrap();
            said.retain(|text| text.contains("no trigger is configured"));
            said
        });
        assert_eq!(
            [said[0].len(), said[1].len()],
            [expected, 0],
            "{option}: {said:?}"
        );
        assert!(said[0].iter().all(|text| text.contains(next)), "{said:?}");
    }
}
