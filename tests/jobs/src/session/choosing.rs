//! Choosing the checkpoint: a certain step, none that was rejected, one region alone.

use crate::session::resume::{LONG, damage_newest, save};
use crate::support::{Job, State, needs_own_disks};
use crate::{Test, session_tests};
use orcheck_client::{Restarted, Session, Which};
use orcheck_format::{ErrorKind, Level, Step};
use orcheck_io::failpoints::Verdict;
use orcheck_testing::{FaultPlan, Scratch};

/// What is tested here.
pub const TESTS: &[Test] = session_tests![
    a_step_that_was_asked_for_is_found_or_nothing_is,
    a_step_that_was_asked_for_is_not_replaced,
    a_program_of_another_size_is_asked_again_and_reads_the_older_step,
    a_rejected_step_is_never_offered_again,
    a_job_whose_checkpoints_were_all_rejected_does_not_begin_afresh,
    what_any_node_knows_to_be_rejected_is_rejected,
    one_region_is_read_alone,
    a_rejection_that_could_not_be_written_is_an_error_and_can_be_repeated,
];

fn told(session: &mut Session) -> String {
    let told = crate::support::warnings(session);
    told.join("; ")
}

/// Restarts from what was found, with the sizes that belong to it.
fn restarts(session: &mut Session, rank: u32, step: u64, scale: usize) {
    let mut state = State::empty(rank, scale);
    state.protect(session).unwrap();
    assert_eq!(session.try_restart().unwrap(), Restarted::Step(Step(step)));
    assert!(state.is(rank, step, scale));
}

// Breaks if: `find_step` offers the newest, or a step that is not there counts as a fresh start.
fn a_step_that_was_asked_for_is_found_or_nothing_is() {
    let scratch = Scratch::new("chosen");
    let job = Job::new(scratch.path(), 2, 1, false).with("keep = 4");
    save(&job, &[(1, 10), (3, 30), (5, 50), (7, 70)]);
    job.run(|session, rank| {
        let mut session = session.unwrap();
        for (which, found) in [
            (Which::Exactly(Step(3)), Some(3)),
            (Which::OlderThan(Step(7)), Some(5)),
            (Which::OlderThan(Step(6)), Some(5)),
            (Which::Exactly(Step(7)), Some(7)),
            (Which::Exactly(Step(4)), None),
            (Which::OlderThan(Step(1)), None),
        ] {
            let answer = session.find_step(which);
            assert_eq!(answer.as_ref().ok().copied(), found, "{which:?}");
            if let Err(error) = answer {
                assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
                assert!(error.message().contains("7, 5, 3, 1"), "{error}");
                // It is no fresh start.
                let mut state = State::new(rank, 9, 10);
                state.protect(&mut session).unwrap();
                let error = session.checkpoint(9).unwrap_err();
                assert!(error.message().contains("up to step 7"), "{error}");
            }
        }
        assert_eq!(session.find_step(Which::Exactly(Step(3))).unwrap(), 3);
        restarts(&mut session, rank, 3, 30);
        session.checkpoint(4).unwrap();
        session.close(LONG).unwrap();
    });
    // What was newer is superseded, as after any restart from an older step.
    job.run(|session, _| assert_eq!(session.unwrap().find().unwrap(), 4));
}

// Breaks if: a damaged step that was asked for by its number is replaced by an older one.
fn a_step_that_was_asked_for_is_not_replaced() {
    let scratch = Scratch::new("exactly");
    let job = Job::new(scratch.path(), 2, 1, false);
    save(&job, &[(1, 20), (2, 20)]);
    damage_newest(&scratch.path().join("ost0/job"));
    job.run(|session, rank| {
        let mut session = session.unwrap();
        assert_eq!(session.find_step(Which::Exactly(Step(2))).unwrap(), 2);
        let mut state = State::empty(rank, 20);
        state.protect(&mut session).unwrap();
        let error = session.try_restart().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        assert!(error.message().contains("choose another step"), "{error}");
        assert_eq!(session.find_step(Which::OlderThan(Step(2))).unwrap(), 1);
        restarts(&mut session, rank, 1, 20);
    });
}

// Breaks if: the sizes of the damaged step are held against the program, or its loop does not end.
fn a_program_of_another_size_is_asked_again_and_reads_the_older_step() {
    let scratch = Scratch::new("again");
    let job = Job::new(scratch.path(), 2, 1, false).with("keep = 3");
    save(&job, &[(1, 30), (2, 60)]);
    damage_newest(&scratch.path().join("ost0/job"));
    // The next run finds step 1, and takes two more of other sizes.
    let own_loop = |session: &mut Session, rank: u32| {
        let mut sizes = Vec::new();
        let mut found = Restarted::Again(Step(session.find().unwrap()));
        while let Restarted::Again(step) = found {
            let len = session.stored("u").unwrap().len_bytes;
            sizes.push((step.0, len));
            let mut state = State::empty(rank, (len / 1000) as usize);
            state.protect(session).unwrap();
            found = session.try_restart().unwrap();
            if found == Restarted::Step(step) {
                assert!(state.is(rank, step.0, (len / 1000) as usize));
            }
        }
        sizes
    };
    let sizes = job.run(|session, rank| {
        let mut session = session.unwrap();
        let sizes = own_loop(&mut session, rank);
        let told = told(&mut session);
        assert!(told.contains("step 2 skipped"), "{told}");
        assert!(told.contains("step 1 does not fit"), "{told}");
        let mut states = Vec::new();
        for (step, scale) in [(3, 45), (4, 90)] {
            let mut state = State::new(rank, step, scale);
            state.protect(&mut session).unwrap();
            session.checkpoint(step).unwrap();
            states.push(state);
        }
        session.close(LONG).unwrap();
        sizes
    });
    assert_eq!(
        sizes,
        [[(2, 60_000), (1, 30_000)], [(2, 60_017), (1, 30_017)]]
    );
    // At every later start alike.
    damage_newest(&scratch.path().join("ost0/job"));
    for _ in 0..2 {
        let sizes = job.run(|session, rank| own_loop(&mut session.unwrap(), rank));
        assert_eq!(sizes[0], [(4, 90_000), (3, 45_000)]);
    }
    // Who does not ask again gets an error that says so, not the same answer for ever.
    job.run(|session, rank| {
        let mut session = session.unwrap();
        assert_eq!(session.find().unwrap(), 4);
        let mut state = State::empty(rank, 90);
        state.protect(&mut session).unwrap();
        assert_eq!(session.try_restart().unwrap(), Restarted::Again(Step(3)));
        let error = session.try_restart().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    });
}

// Breaks if: the rejection is not durable, is not looked at, or the session does not offer the
// older one.
fn a_rejected_step_is_never_offered_again() {
    let scratch = Scratch::new("rejected");
    let job = Job::new(scratch.path(), 2, 1, true).with("keep = 3");
    save(&job, &[(1, 10), (2, 20), (3, 30)]);
    job.run(|session, rank| {
        let mut session = session.unwrap();
        // As soon as it is found, by looking at one region of it.
        assert_eq!(session.find().unwrap(), 3);
        session.reject(3).unwrap();
        let error = session.try_restart().unwrap_err();
        assert!(error.message().contains("call find first"), "{error}");
        // After the program has restarted from it.
        assert_eq!(session.find().unwrap(), 2);
        restarts(&mut session, rank, 2, 20);
        session.reject(2).unwrap();
        assert_eq!(session.find().unwrap(), 1);
        restarts(&mut session, rank, 1, 10);
        let error = session.reject(2).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
        // One that the run took itself, and one that it may not have committed yet.
        for step in [4, 5] {
            let mut state = State::new(rank, step, 10);
            state.protect(&mut session).unwrap();
            session.checkpoint(step).unwrap();
            session.wait(step, Level::Global, LONG).unwrap();
        }
        session.reject(5).unwrap();
        session.close(LONG).unwrap();
    });
    job.run(|session, rank| {
        let mut session = session.unwrap();
        assert_eq!(session.find().unwrap(), 4);
        let told = told(&mut session);
        assert!(rank != 0 || told.contains("step 5 of epoch 2"), "{told}");
        restarts(&mut session, rank, 4, 10);
    });
}

// Breaks if: no checkpoint is left and the program is told that there never was one.
fn a_job_whose_checkpoints_were_all_rejected_does_not_begin_afresh() {
    let scratch = Scratch::new("allrejected");
    let job = Job::new(scratch.path(), 2, 1, false);
    save(&job, &[(1, 10)]);
    job.run(|session, rank| {
        let mut session = session.unwrap();
        assert_eq!(session.find().unwrap(), 1);
        session.reject(1).unwrap();
        let error = session.find().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        assert!(error.message().contains("were rejected"), "{error}");
        let mut state = State::new(rank, 2, 10);
        state.protect(&mut session).unwrap();
        session.checkpoint(2).unwrap_err();
    });
    job.clone().with("fresh = true").run(|session, rank| {
        let mut session = session.unwrap();
        assert_eq!(session.find().unwrap_err().kind(), ErrorKind::NotFound);
        let mut state = State::new(rank, 2, 10);
        state.protect(&mut session).unwrap();
        session.checkpoint(2).unwrap();
        session.close(LONG).unwrap();
    });
    job.run(|session, _| assert_eq!(session.unwrap().find().unwrap(), 2));
}

// Breaks if: rank 0's node alone decides: it was replaced, and the others know what was rejected.
fn what_any_node_knows_to_be_rejected_is_rejected() {
    let scratch = Scratch::new("rejected-node");
    let job = Job::new(scratch.path(), 2, 0, true).nodes(2);
    save(&job, &[(1, 10), (2, 10)]);
    job.run(|session, _| {
        let mut session = session.unwrap();
        assert_eq!(session.find().unwrap(), 2);
        session.reject(2).unwrap();
    });
    let first = scratch.path().join("local/job/n0");
    let mark = crate::session::disk::names(&first).into_iter();
    let mark = mark
        .filter(|name| name.ends_with(".rejected"))
        .max()
        .unwrap();
    crate::session::disk::rename(&first.join(&mark), &scratch.path().join("lost"));
    job.run(|session, rank| {
        let mut session = session.unwrap();
        assert_eq!(session.find().unwrap(), 1);
        restarts(&mut session, rank, 1, 10);
    });
}

// Breaks if: other regions are touched, or parts of two steps come together after damage.
fn one_region_is_read_alone() {
    let scratch = Scratch::new("region");
    let job = Job::new(scratch.path(), 2, 1, false);
    save(&job, &[(1, 40), (2, 40)]);
    job.run(|session, rank| {
        let mut session = session.unwrap();
        let error = session.restart_region("small").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        assert_eq!(session.find().unwrap(), 2);
        let mut state = State::empty(rank, 40);
        let error = session.restart_region("small").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
        state.protect(&mut session).unwrap();
        assert_eq!(
            session.restart_region("small").unwrap(),
            Restarted::Step(Step(2))
        );
        let (good, empty) = (State::new(rank, 2, 40), State::empty(rank, 40));
        assert_eq!((&state.small, &state.u), (&good.small, &empty.u));
        // It is no restart yet.
        let error = session.checkpoint(3).unwrap_err();
        assert!(error.message().contains("not restarted"), "{error}");
        assert_eq!(session.try_restart().unwrap(), Restarted::Step(Step(2)));
        assert!(state.is(rank, 2, 40));
    });
    // The damage is in region u of one rank; both begin again.
    damage_newest(&scratch.path().join("ost0/job"));
    job.run(|session, rank| {
        let mut session = session.unwrap();
        assert_eq!(session.find().unwrap(), 2);
        let mut state = State::empty(rank, 40);
        state.protect(&mut session).unwrap();
        assert_eq!(
            session.restart_region("small").unwrap(),
            Restarted::Step(Step(2))
        );
        assert_eq!(
            session.restart_region("u").unwrap(),
            Restarted::Again(Step(1))
        );
        assert_eq!(
            session.restart_region("small").unwrap(),
            Restarted::Step(Step(1))
        );
        assert_eq!(session.try_restart().unwrap(), Restarted::Step(Step(1)));
        assert!(state.is(rank, 1, 40));
    });
}

// Breaks if: an error on the way is swallowed, or what is half written keeps the next try from
// being whole.
fn a_rejection_that_could_not_be_written_is_an_error_and_can_be_repeated() {
    if needs_own_disks() {
        return;
    }
    let mut failed = 0;
    for nth in 1..=12 {
        let scratch = Scratch::new("unwritten");
        let job = Job::new(scratch.path(), 1, 2, false);
        save(&job, &[(1, 10), (2, 10)]);
        let (_, failpoints) = FaultPlan::new()
            .at_site("", nth, Verdict::Fail(5))
            .only_where(".rejected")
            .failpoints();
        job.clone().failpoints(failpoints).run(|session, _| {
            let mut session = session.unwrap();
            assert_eq!(session.find().unwrap(), 2);
            let first = session.reject(2);
            if first.is_err() {
                session.reject(2).unwrap();
            }
            assert_eq!(session.find().unwrap(), 1);
            first.is_err()
        })[0]
            .then(|| failed += 1);
        job.run(|session, _| assert_eq!(session.unwrap().find().unwrap(), 1));
    }
    assert!(failed >= 4, "{failed} steps failed");
}
