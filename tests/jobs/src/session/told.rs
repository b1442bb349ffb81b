//! What became of checkpoints reaches the program at its next call, on every rank.

use crate::session::disk::{Mounted, skip};
use crate::session::hooks::{Hold, Meeting};
use crate::session::mistakes::{LONG, refused, says};
use crate::support::{Job, State, needs_own_disks, warnings};
use crate::{Test, session_tests};
use orcheck_client::{Environment, Event, EventKind, Options, Session, Solo};
use orcheck_format::{ErrorKind, Level, Result, Step};
use orcheck_io::clock::{Clock, SystemClock};
use orcheck_io::failpoints::{Failpoint, FailpointHook, Failpoints, Verdict};
use orcheck_testing::{FaultPlan, Scratch};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

/// What is tested here.
pub const TESTS: &[Test] = session_tests![
    every_loss_on_a_full_disk_is_told_by_the_next_due_on_every_rank,
    a_close_on_a_full_disk_says_where_to_free_space,
    with_on_loss_error_the_next_checkpoint_fails_once_on_all_ranks_and_stages_nothing,
    a_loss_that_was_returned_is_no_warning_of_the_next_checkpoint,
    with_on_loss_stop_all_ranks_are_asked_to_end_with_the_next_checkpoint,
    a_superseded_run_gets_fenced_from_every_later_checkpoint_and_stages_none,
    a_failed_fsync_is_told_by_the_next_due_on_every_rank,
    a_lost_directory_is_told_by_the_next_due_on_every_rank,
    a_lost_replica_is_told_by_the_next_due_on_every_rank,
    a_loss_that_is_first_seen_at_close_is_told_there,
    a_step_that_is_lost_at_one_level_after_the_other_is_returned_for_each,
    a_loss_whose_record_is_in_a_directory_is_not_called_final,
    a_close_without_a_fault_warns_of_nothing,
    a_close_does_not_wait_for_a_thread_that_hangs_in_a_directory,
];

pub type Seen = Arc<Mutex<Vec<Event>>>;

pub fn watch(session: &mut Session) -> Seen {
    let seen = Seen::default();
    let events = Arc::clone(&seen);
    session.watch(Some(Box::new(move |event| {
        events.lock().unwrap().push(event.clone());
    })));
    seen
}

pub fn lost(seen: &Seen) -> Vec<(u64, Level)> {
    let seen = seen.lock().unwrap();
    let lost = seen.iter().filter(|event| event.kind == EventKind::Lost);
    lost.map(|event| (event.step.0, event.level)).collect()
}

pub fn safe(seen: &Seen) -> Vec<(u64, Level)> {
    let seen = seen.lock().unwrap();
    let safe = seen.iter().filter(|event| event.kind == EventKind::Safe);
    safe.map(|event| (event.step.0, event.level)).collect()
}

fn take(session: &mut Session, rank: u32, step: u64, scale: usize) -> Result<()> {
    let mut state = State::new(rank, step, scale);
    state.protect(session).unwrap();
    session.checkpoint(step)
}

/// Until this node knows what became of the step.
fn settle(session: &Session, step: u64, level: Level) {
    let _ = session.wait(step, level, LONG);
}

/// A job of two nodes whose only directory holds small checkpoints and no large one.
fn full(scratch: &Scratch, more: &str) -> Option<(Mounted, Job)> {
    let mounted = Mounted::new(&scratch.path().join("ost0"), "size=2m,mode=700")?;
    let job = Job::new(scratch.path(), 2, 1, false).nodes(2).with(more);
    Some((mounted, job))
}

const SMALL: usize = 20;
const LARGE: usize = 2000;

// Breaks if: `due` does not look at the board, or a loss that was seen becomes no warning.
fn every_loss_on_a_full_disk_is_told_by_the_next_due_on_every_rank() {
    let scratch = Scratch::new("told-full");
    let Some((_mounted, job)) = full(&scratch, "every_steps = 1") else {
        return skip("every_loss_on_a_full_disk", "mounting needs the superuser");
    };
    job.run(|session, rank| {
        let mut session = session.unwrap();
        let seen = watch(&mut session);
        assert_eq!(
            refused(session.safe_step(Level::Global)).kind(),
            ErrorKind::NotFound
        );
        take(&mut session, rank, 1, SMALL).unwrap();
        settle(&session, 1, Level::Global);
        for step in 2..5 {
            take(&mut session, rank, step, LARGE).unwrap();
            settle(&session, step, Level::Global);
            // Without a message between ranks.
            assert!(session.due(step + 1).unwrap());
            assert_eq!(lost(&seen).last(), Some(&(step, Level::Global)));
            let told = warnings(&mut session);
            let text = told
                .iter()
                .find(|text| text.contains(&format!("checkpoint {step} is lost at level global")));
            let text = text.unwrap_or_else(|| panic!("{told:?}"));
            assert!(text.contains("No space left on device"), "{text}");
            assert_eq!(text.matches("Next: ").count(), 1, "{text}");
            assert_eq!(session.safe_step(Level::Global).unwrap(), 1);
        }
        assert_eq!(safe(&seen), [(1, Level::Global)]);
        assert_eq!(lost(&seen).len(), 3, "each loss once");
        let figures = session.stats().lost;
        assert_eq!(figures.at(Level::Global, Some(ErrorKind::NoSpace)), 3);
        assert_eq!(figures.at(Level::Global, None), 3);
        assert_eq!(figures.at(Level::Node, None), 0);
        take(&mut session, rank, 5, SMALL).unwrap();
        session.close(LONG).unwrap();
        assert_eq!(
            safe(&seen).last(),
            Some(&(5, Level::Global)),
            "told at close"
        );
    });
}

// Breaks if: the wait for the last checkpoint gives its cause as it is; nothing says what to do.
fn a_close_on_a_full_disk_says_where_to_free_space() {
    if needs_own_disks() {
        return;
    }
    let scratch = Scratch::new("told-close-full");
    let (_, failpoints) = FaultPlan::new()
        .always("file.write", Verdict::Fail(28))
        .only_where("s000000000001-")
        .failpoints();
    let job = Job::new(scratch.path(), 2, 1, false).failpoints(failpoints);
    let directory = scratch.path().join("ost0").display().to_string();
    job.run(|session, rank| {
        let mut session = session.unwrap();
        take(&mut session, rank, 1, SMALL).unwrap();
        let error = refused(session.close(LONG));
        says(
            &error,
            ErrorKind::NoSpace,
            &[
                "checkpoint 1 is not safe at level global",
                &directory,
                "No space left on device (ENOSPC)",
            ],
        );
        let next = error.next_step().unwrap_or_else(|| panic!("{error}"));
        assert!(next.starts_with("free space there"), "{error}");
        assert_eq!(error.message().matches("Next: ").count(), 1, "{error}");
    });
}

// Breaks if: the loss is returned by the ranks that know of it alone, or again and again.
fn with_on_loss_error_the_next_checkpoint_fails_once_on_all_ranks_and_stages_nothing() {
    let scratch = Scratch::new("told-error");
    let Some((_mounted, job)) = full(&scratch, "on_loss = 'error'") else {
        return skip("with_on_loss_error", "mounting needs the superuser");
    };
    job.run(|session, rank| {
        let mut session = session.unwrap();
        take(&mut session, rank, 1, LARGE).unwrap();
        // The other rank need not know it yet.
        if rank == 1 {
            settle(&session, 1, Level::Global);
        }
        let error = refused(take(&mut session, rank, 2, SMALL));
        says(
            &error,
            ErrorKind::NoSpace,
            &[
                "checkpoint 2 was not staged",
                "checkpoint 1 is lost at level global",
            ],
        );
        assert_eq!(session.stats().step, Step(1));
        take(&mut session, rank, 2, SMALL).unwrap();
        session.wait(2, Level::Global, LONG).unwrap();
        session.close(LONG).unwrap();
    });
}

// Breaks if: the warning of a loss stays when the error of the next checkpoint has told it.
fn a_loss_that_was_returned_is_no_warning_of_the_next_checkpoint() {
    if needs_own_disks() {
        return;
    }
    let scratch = Scratch::new("told-once");
    let (_, failpoints) = FaultPlan::new()
        .always("file.write", Verdict::Fail(28))
        .only_where("s000000000001-")
        .failpoints();
    let job = Job::new(scratch.path(), 2, 1, false)
        .with("on_loss = 'error'")
        .failpoints(failpoints);
    job.run(|session, rank| {
        let mut session = session.unwrap();
        take(&mut session, rank, 1, SMALL).unwrap();
        settle(&session, 1, Level::Global);
        let error = refused(take(&mut session, rank, 2, SMALL));
        says(
            &error,
            ErrorKind::NoSpace,
            &["checkpoint 1 is lost at level global"],
        );
        take(&mut session, rank, 2, SMALL).unwrap();
        let told = warnings(&mut session);
        assert!(!told.iter().any(|text| text.contains("lost")), "{told:?}");
        session.close(LONG).unwrap();
    });
}

// Breaks if: the wish to stop of the rank that saw the loss does not travel with the next
// checkpoint.
fn with_on_loss_stop_all_ranks_are_asked_to_end_with_the_next_checkpoint() {
    let scratch = Scratch::new("told-stop");
    let Some((_mounted, job)) = full(&scratch, "on_loss = 'stop'\nevery_steps = 1") else {
        return skip("with_on_loss_stop", "mounting needs the superuser");
    };
    job.run(|session, rank| {
        let mut session = session.unwrap();
        take(&mut session, rank, 1, LARGE).unwrap();
        if rank == 1 {
            settle(&session, 1, Level::Global);
        }
        assert!(!session.should_stop());
        take(&mut session, rank, 2, SMALL).unwrap();
        assert!(session.should_stop());
        session.close(LONG).unwrap();
    });
}

/// Another run of the job, of one rank, with these options.
fn run_of(job: &Job, more: &str) -> Session {
    let options = Options::from_text(&format!("{}{more}", job.options));
    Session::open_with("job", Box::new(Solo), options, Environment::default()).unwrap()
}

// Breaks if: the fence is returned only with `on_loss = "error"`, or only once.
fn a_superseded_run_gets_fenced_from_every_later_checkpoint_and_stages_none() {
    if needs_own_disks() {
        return;
    }
    for on_loss in ["warn", "error", "stop"] {
        let scratch = Scratch::new("told-fenced");
        let job = Job::new(scratch.path(), 1, 1, true).with("node_name = 'n'");
        let mut old = run_of(&job, &format!("on_loss = '{on_loss}'\n"));
        let seen = watch(&mut old);
        take(&mut old, 0, 1, SMALL).unwrap();
        settle(&old, 1, Level::Global);
        settle(&old, 1, Level::Node);
        let new = run_of(&job, "take_over = true\n");
        take(&mut old, 0, 2, SMALL).unwrap();
        settle(&old, 2, Level::Global);
        let told = warnings(&mut old);
        assert!(
            told.iter().any(|text| text.contains("superseded")),
            "{told:?}"
        );
        for step in [3, 4, 5] {
            let error = refused(take(&mut old, 0, step, SMALL));
            let unstaged = format!("checkpoint {step} was not staged");
            says(&error, ErrorKind::Fenced, &[&unstaged, "superseded"]);
        }
        assert_eq!(old.stats().step, Step(2));
        assert!(lost(&seen).contains(&(2, Level::Global)));
        assert_eq!(old.safe_step(Level::Global).unwrap(), 1);
        old.abandon();
        new.close(LONG).unwrap();
    }
}

/// Fails one kind of step on one kind of target from some moment on.
fn failing(site: &'static str, part: &'static str, errno: i32) -> (Arc<FaultPlan>, Failpoints) {
    let plan = Arc::new(FaultPlan::new());
    plan.fail_from_now(site, part, Verdict::Fail(errno));
    let failpoints = Failpoints::with(Arc::clone(&plan) as Arc<dyn FailpointHook>);
    (plan, failpoints)
}

/// Takes a checkpoint that is lost, and requires that the next `due` says so on this rank.
fn told_by_the_next_due(session: &mut Session, rank: u32, step: u64, level: Level, cause: &str) {
    let seen = watch(session);
    take(session, rank, step, SMALL).unwrap();
    settle(session, step, level);
    session.due(step + 1).unwrap();
    assert!(
        lost(&seen).contains(&(step, level)),
        "{:?}",
        seen.lock().unwrap()
    );
    let told = warnings(session);
    let text = format!("checkpoint {step} is lost at level {level}");
    let text = told.iter().find(|told| told.starts_with(&text));
    let text = text.unwrap_or_else(|| panic!("{told:?}"));
    assert!(
        text.contains(cause) && text.matches("Next: ").count() == 1,
        "{text}"
    );
}

// Breaks if: a failed fsync loses the step and nobody looks at the board before the program waits
// for it.
fn a_failed_fsync_is_told_by_the_next_due_on_every_rank() {
    if needs_own_disks() {
        return;
    }
    let scratch = Scratch::new("told-fsync");
    let (plan, failpoints) = failing("file.sync", ".orc", 5);
    let job = Job::new(scratch.path(), 2, 1, false)
        .nodes(2)
        .failpoints(failpoints);
    let all = Meeting::of(2);
    job.run(|session, rank| {
        let mut session = session.unwrap();
        let io = "Input/output error";
        told_by_the_next_due(&mut session, rank, 1, Level::Global, io);
        all.wait();
        plan.heal();
        all.wait();
        take(&mut session, rank, 2, SMALL).unwrap();
        session.close(LONG).unwrap();
    });
}

// Breaks if: as above, for a directory that is not where it was.
fn a_lost_directory_is_told_by_the_next_due_on_every_rank() {
    if needs_own_disks() {
        return;
    }
    let scratch = Scratch::new("told-moved");
    let (here, there) = (scratch.path().join("ost0"), scratch.path().join("away"));
    let job = Job::new(scratch.path(), 2, 1, false).nodes(2);
    let all = Meeting::of(2);
    job.run(|session, rank| {
        let mut session = session.unwrap();
        take(&mut session, rank, 1, SMALL).unwrap();
        session.wait(1, Level::Global, LONG).unwrap();
        if all.wait() {
            crate::session::disk::rename(&here, &there);
            crate::support::make_dir(&here);
        }
        all.wait();
        let moved = "moved away, replaced or unmounted";
        told_by_the_next_due(&mut session, rank, 2, Level::Global, moved);
        session.abandon();
    });
}

// Breaks if: as above, for a copy that another node does not take.
fn a_lost_replica_is_told_by_the_next_due_on_every_rank() {
    let scratch = Scratch::new("told-replica");
    // Node 0 has no room for what node 1 sends it.
    let (_, failpoints) = failing("file.write", "-n0001-w00.orc.", 28);
    let job = Job::new(scratch.path(), 2, 0, true)
        .nodes(2)
        .with("peers = 1")
        .failpoints(failpoints);
    job.run(|session, rank| {
        let mut session = session.unwrap();
        told_by_the_next_due(&mut session, rank, 1, Level::Peers(1), "No space left");
        session.abandon();
    });
}

/// Lets nothing of the first step at level `global` through until told, and then fails it.
struct Late {
    let_go: Mutex<bool>,
    changed: Condvar,
}

impl FailpointHook for Late {
    fn at(&self, step: &Failpoint) -> Verdict {
        if step.site != "file.write" || !step.target.contains("ost0/job/s000000000001-") {
            return Verdict::Go;
        }
        let waiting = |gone: &mut bool| !*gone;
        let gone = self.let_go.lock().unwrap();
        let _ = self
            .changed
            .wait_timeout_while(gone, LONG, waiting)
            .unwrap();
        Verdict::Fail(28)
    }
}

// Breaks if: `close` waits for the last checkpoint only, or its warnings are dropped with the
// session.
fn a_loss_that_is_first_seen_at_close_is_told_there() {
    if needs_own_disks() {
        return;
    }
    for on_loss in ["warn", "error"] {
        let scratch = Scratch::new("told-close");
        let late = Arc::new(Late {
            let_go: Mutex::new(false),
            changed: Condvar::new(),
        });
        let job = Job::new(scratch.path(), 2, 1, false)
            .with(&format!("held_steps = 2\non_loss = '{on_loss}'"))
            .failpoints(Failpoints::with(Arc::clone(&late) as Arc<dyn FailpointHook>));
        let both = Meeting::of(2);
        job.run(|session, rank| {
            let mut session = session.unwrap();
            let seen = watch(&mut session);
            take(&mut session, rank, 1, SMALL).unwrap();
            take(&mut session, rank, 2, SMALL).unwrap();
            both.wait();
            *late.let_go.lock().unwrap() = true;
            late.changed.notify_all();
            let (closed, told) = session.close_telling(LONG);
            let text = "checkpoint 1 is lost at level global";
            match on_loss {
                "warn" => closed.unwrap(),
                _ => says(&refused(closed), ErrorKind::NoSpace, &[text]),
            }
            // Once: a program that prints the error and the warnings would show it twice.
            let warned = told.iter().any(|told| told.starts_with(text));
            assert_eq!(warned, on_loss == "warn", "{told:?}");
            assert_eq!(lost(&seen), [(1, Level::Global)]);
            assert_eq!(safe(&seen), [(2, Level::Global)]);
        });
    }
}

/// As [`Late`], and the first step has no file at level `node`.
struct NodeFirst(Arc<Late>);

impl FailpointHook for NodeFirst {
    fn at(&self, step: &Failpoint) -> Verdict {
        let of_first =
            step.target.contains("/local/job/") && step.target.contains("s000000000001-");
        match step.site == "dir.create" && of_first {
            true => Verdict::Fail(28),
            false => self.0.at(step),
        }
    }
}

// Breaks if: what was returned is remembered by its step alone; the loss at the other level would
// be a warning.
fn a_step_that_is_lost_at_one_level_after_the_other_is_returned_for_each() {
    if needs_own_disks() {
        return;
    }
    let scratch = Scratch::new("told-levels");
    let late = Arc::new(Late {
        let_go: Mutex::new(false),
        changed: Condvar::new(),
    });
    let hook = NodeFirst(Arc::clone(&late));
    let job = Job::new(scratch.path(), 2, 1, true)
        .with("held_steps = 2\non_loss = 'error'")
        .failpoints(Failpoints::with(Arc::new(hook) as Arc<dyn FailpointHook>));
    let both = Meeting::of(2);
    job.run(|session, rank| {
        let mut session = session.unwrap();
        let seen = watch(&mut session);
        take(&mut session, rank, 1, SMALL).unwrap();
        // A wait for level `node` would also wait for `global`, which covers it.
        let until = SystemClock.now() + LONG;
        while !lost(&seen).contains(&(1, Level::Node)) {
            assert!(SystemClock.now() < until, "nothing is lost at level node");
            let _ = session.take_warning();
            std::thread::yield_now();
        }
        let lost_at_node = ["checkpoint 2 was not staged", "1 is lost at level node"];
        let error = refused(take(&mut session, rank, 2, SMALL));
        says(&error, ErrorKind::NoSpace, &lost_at_node);
        take(&mut session, rank, 2, SMALL).unwrap();
        both.wait();
        *late.let_go.lock().unwrap() = true;
        late.changed.notify_all();
        // The other rank need not know it yet.
        if rank == 1 {
            settle(&session, 1, Level::Global);
        }
        both.wait();
        let lost_at_global = ["checkpoint 3 was not staged", "1 is lost at level global"];
        let error = refused(take(&mut session, rank, 3, SMALL));
        says(&error, ErrorKind::NoSpace, &lost_at_global);
        take(&mut session, rank, 3, SMALL).unwrap();
        session.close(LONG).unwrap();
        let both = [(1, Level::Node), (1, Level::Global)];
        assert_eq!(lost(&seen), both);
    });
}

// Breaks if: every loss is called final, also where a record of the step is in a directory.
fn a_loss_whose_record_is_in_a_directory_is_not_called_final() {
    if needs_own_disks() {
        return;
    }
    let scratch = Scratch::new("told-half");
    let (_, failpoints) = failing("dir.rename", "ost1/job/s", 5);
    let job = Job::new(scratch.path(), 2, 2, false)
        .nodes(2)
        .failpoints(failpoints);
    job.run(|session, rank| {
        let mut session = session.unwrap();
        take(&mut session, rank, 1, SMALL).unwrap();
        settle(&session, 1, Level::Global);
        session.due(2).unwrap();
        let told = warnings(&mut session);
        let text = "checkpoint 1 is not known to be safe at level global";
        assert!(told.iter().any(|told| told.starts_with(text)), "{told:?}");
        session.abandon();
    });
    // And so it is.
    let job = Job::new(scratch.path(), 2, 2, false).nodes(2);
    job.run(|session, _| {
        let mut session = session.unwrap();
        assert_eq!(session.find().unwrap(), 1);
        session.abandon();
    });
}

/// Holds the end of a session, once its CP-thread has ended, until the control thread has noticed
/// that.
#[derive(Default)]
struct NoticedLate {
    noticed: Mutex<bool>,
    changed: Condvar,
}

impl FailpointHook for NoticedLate {
    fn at(&self, step: &Failpoint) -> Verdict {
        let mut noticed = self.noticed.lock().unwrap();
        match step.site {
            "control.gone" => {
                *noticed = true;
                self.changed.notify_all();
            }
            "session.flusher_ended" => {
                let waited = self
                    .changed
                    .wait_timeout_while(noticed, LONG, |seen| !*seen);
                assert!(!waited.unwrap().1.timed_out(), "the end went unnoticed");
            }
            _ => {}
        }
        Verdict::Go
    }
}

fn alone(scratch: &Scratch, environment: Environment) -> Session {
    let options = format!(
        "global = '{}'\npool = '4 MiB'\nchunk = '64 KiB'\nevery_steps = 1\n",
        scratch.path().display()
    );
    let options = Options::load(Some(&options));
    Session::open_with("closed", Box::new(Solo), options, environment).unwrap()
}

// Breaks if: the control thread notes every rank that hangs up, also one that closes the session.
fn a_close_without_a_fault_warns_of_nothing() {
    let scratch = Scratch::new("told-closed");
    let hook = Arc::new(NoticedLate::default());
    let environment = Environment {
        failpoints: Failpoints::with(Arc::clone(&hook) as Arc<dyn FailpointHook>),
        ..Environment::default()
    };
    let mut session = alone(&scratch, environment);
    session.find().unwrap_err();
    take(&mut session, 0, 1, SMALL).unwrap();
    let (closed, warnings) = session.close_telling(LONG);
    closed.unwrap();
    assert!(*hook.noticed.lock().unwrap());
    assert_eq!(warnings, Vec::<String>::new());
}

// Breaks if: threads get their 10 s however short the time is that the program gave.
fn a_close_does_not_wait_for_a_thread_that_hangs_in_a_directory() {
    let scratch = Scratch::new("told-hangs");
    let hold = Hold::at("file.write", ".orc");
    let environment = Environment {
        failpoints: hold.failpoints(),
        ..Environment::default()
    };
    let mut session = alone(&scratch, environment);
    session.find().unwrap_err();
    take(&mut session, 0, 1, SMALL).unwrap();
    hold.wait_until_held();
    let began = SystemClock.now();
    let (closed, warnings) = session.close_telling(Duration::from_millis(100));
    let took = SystemClock.now() - began;
    hold.release();
    let error = closed.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(!error.message().contains("in the background"), "{error}");
    let behind = |text: &String| text.contains("is left behind");
    assert!(warnings.iter().any(behind), "{warnings:?}");
    assert!(took < Duration::from_secs(8), "{took:?}");
}
