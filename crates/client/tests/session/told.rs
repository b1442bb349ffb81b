//! What became of checkpoints reaches the program at its next call, on every rank.

use crate::disk::{Mounted, skip};
use crate::mistakes::{LONG, refused, says};
use crate::support::{Job, State, needs_own_disks};
use orcheck_client::{Environment, Event, EventKind, Options, Session, Solo};
use orcheck_format::error::{ErrorKind, Result};
use orcheck_format::ids::Level;
use orcheck_io::testing::Scratch;
use std::sync::{Arc, Mutex};

type Seen = Arc<Mutex<Vec<Event>>>;

fn watch(session: &mut Session) -> Seen {
    let seen = Seen::default();
    let events = Arc::clone(&seen);
    session.watch(Some(Box::new(move |event| {
        events.lock().unwrap().push(event.clone());
    })));
    seen
}

fn lost(seen: &Seen) -> Vec<(u64, Level)> {
    let seen = seen.lock().unwrap();
    let lost = seen.iter().filter(|event| event.kind == EventKind::Lost);
    lost.map(|event| (event.step, event.level)).collect()
}

fn safe(seen: &Seen) -> Vec<(u64, Level)> {
    let seen = seen.lock().unwrap();
    let safe = seen.iter().filter(|event| event.kind == EventKind::Safe);
    safe.map(|event| (event.step, event.level)).collect()
}

fn warnings(session: &mut Session) -> Vec<String> {
    std::iter::from_fn(|| session.take_warning()).collect()
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
#[test]
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

// Breaks if: the loss is returned by the ranks that know of it alone, or again and again.
#[test]
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
        assert_eq!(session.stats().step, 1);
        take(&mut session, rank, 2, SMALL).unwrap();
        session.wait(2, Level::Global, LONG).unwrap();
        session.close(LONG).unwrap();
    });
}

// Breaks if: the wish to stop of the rank that saw the loss does not travel with the next checkpoint.
#[test]
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
#[test]
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
        assert_eq!(old.stats().step, 2);
        assert!(lost(&seen).contains(&(2, Level::Global)));
        assert_eq!(old.safe_step(Level::Global).unwrap(), 1);
        old.abandon();
        new.close(LONG).unwrap();
    }
}
