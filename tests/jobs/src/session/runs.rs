//! Two runs of one job: held, taken over, fenced.

use crate::session::disk::names;
use crate::session::hooks::Hold;
use crate::session::mistakes::{LONG, refused, says};
use crate::support::{Job, State, needs_own_disks};
use crate::{Test, session_tests};
use orcheck_client::{Environment, Options, Session, Solo};
use orcheck_format::disk::FileName;
use orcheck_format::{ErrorKind, Level, Result};
use orcheck_testing::Scratch;

/// What is tested here.
pub const TESTS: &[Test] = session_tests![
    a_second_run_is_refused_while_the_first_lives_and_let_in_when_it_ended,
    a_run_that_claims_while_another_one_looks_is_seen,
    an_epoch_whose_claim_was_lost_is_not_given_again,
    the_lead_claims_before_all_other_nodes,
    a_run_that_is_just_ending_is_waited_for,
    a_run_that_was_taken_over_commits_nothing_any_more,
    two_jobs_in_one_program_do_not_meet,
    a_file_of_an_epoch_beyond_all_runs_is_refused_by_name,
];

/// Another run of the job, of one rank, with these options.
fn second(job: &Job, more: &str) -> Result<Session> {
    let options = Options::from_text(&format!("{}{more}", job.options));
    Session::open_with("job", Box::new(Solo), options, Environment::default())
}

// Breaks if: `claim_one` does not lock its file, or `wait_for_holder` is not called.
fn a_second_run_is_refused_while_the_first_lives_and_let_in_when_it_ended() {
    let scratch = Scratch::new("held");
    for levels in [(1, false), (0, true)] {
        let job = Job::new(scratch.path(), 1, levels.0, levels.1).with("node_name = 'n'");
        let first = second(&job, "").unwrap();
        let error = refused(second(&job, ""));
        says(
            &error,
            ErrorKind::Unavailable,
            &[
                "job 'job' is held by another run",
                &format!(
                    "process {} of user {}",
                    std::process::id(),
                    orcheck_io::machine::effective_uid()
                ),
                "on host",
                "wait for it or end it; set take_over = true",
            ],
        );
        let counter = first.epoch().counter;
        first.abandon();
        let next = second(&job, "").unwrap();
        assert_eq!(
            next.epoch().counter,
            counter + 1,
            "the refused run claimed nothing"
        );
        next.close(LONG).unwrap();
    }
}

// Breaks if: `counter_when_free` reads the counter after its look for a holder only: the run that
// looks would fence off the one that claimed meanwhile, instead of being refused.
fn a_run_that_claims_while_another_one_looks_is_seen() {
    if needs_own_disks() {
        return;
    }
    let scratch = Scratch::new("looks");
    let job = Job::new(scratch.path(), 1, 1, false);
    second(&job, "").unwrap().abandon();
    let hold = Hold::at("file.lock", "epoch-000001.claim");
    std::thread::scope(|scope| {
        let looking = scope.spawn(|| {
            let environment = Environment {
                failpoints: hold.failpoints(),
                ..Environment::default()
            };
            let options = Options::from_text(&job.options);
            Session::open_with("job", Box::new(Solo), options, environment)
        });
        hold.wait_until_held();
        let claimed = second(&job, "").unwrap();
        hold.release();
        let error = refused(looking.join().unwrap());
        says(&error, ErrorKind::Unavailable, &["is held by another run"]);
        claimed.close(LONG).unwrap();
    });
}

// Breaks if: `highest_counter` looks at claims only; two runs would then write under one epoch.
fn an_epoch_whose_claim_was_lost_is_not_given_again() {
    let scratch = Scratch::new("lost-claim");
    let job = Job::new(scratch.path(), 1, 1, false);
    let mut first = second(&job, "").unwrap();
    let mut state = State::new(0, 1, 20);
    state.protect(&mut first).unwrap();
    first.checkpoint(1).unwrap();
    first.wait(1, Level::Global, LONG).unwrap();
    assert_eq!(first.epoch().counter, 1);
    first.close(LONG).unwrap();
    let dir = scratch.path().join("ost0/job");
    for name in names(&dir).iter().filter(|name| name.starts_with("epoch-")) {
        crate::session::disk::remove_file(&dir.join(name));
    }
    let next = second(&job, "").unwrap();
    assert_eq!(next.epoch().counter, 2);
    next.close(LONG).unwrap();
}

// Breaks if: all nodes claim at once: of two runs at the same moment each may lose somewhere to the
// other.
fn the_lead_claims_before_all_other_nodes() {
    if needs_own_disks() {
        return;
    }
    let scratch = Scratch::new("lead");
    let job = Job::new(scratch.path(), 2, 1, true).nodes(2);
    let hold = Hold::at("dir.create", "/ost0/job/epoch-000001");
    std::thread::scope(|scope| {
        let held = job.clone().failpoints(hold.failpoints());
        let slow = scope.spawn(move || held.run(|session, _| refused(session)));
        hold.wait_until_held();
        // Nobody else puts a claim in place meanwhile, so the whole job is there for another run.
        assert!(!hold.sees("dir.rename", 1));
        job.run(|session, _| session.unwrap().close(LONG).unwrap());
        hold.release();
        for error in slow.join().unwrap() {
            says(&error, ErrorKind::Fenced, &["at the same moment"]);
        }
    });
}

// Breaks if: `take_over_wait_s` is not waited for.
fn a_run_that_is_just_ending_is_waited_for() {
    if needs_own_disks() {
        return;
    }
    let scratch = Scratch::new("ending");
    let job = Job::new(scratch.path(), 1, 1, false).waits_for_others();
    // The second run lists the directory before it looks at the holder: then the first one ends.
    let hold = Hold::at("file.lock", "epoch-000001.claim");
    hold.release();
    let first = second(&job, "").unwrap();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            let environment = Environment {
                failpoints: hold.failpoints(),
                ..Environment::default()
            };
            Session::open_with(
                "job",
                Box::new(Solo),
                Options::from_text(&job.options),
                environment,
            )
            .map(|s| s.epoch())
        });
        hold.wait_until_held();
        first.abandon();
        assert_eq!(waiting.join().unwrap().unwrap().counter, 2);
    });
}

// Breaks if: `make_visible` does not look at the claims, or readers do not apply the resume rule.
fn a_run_that_was_taken_over_commits_nothing_any_more() {
    let scratch = Scratch::new("fenced");
    let job = Job::new(scratch.path(), 1, 1, true).with("node_name = 'n'");
    let mut old = second(&job, "").unwrap();
    let mut state = State::new(0, 1, 20);
    state.protect(&mut old).unwrap();
    old.checkpoint(1).unwrap();
    for level in [Level::Node, Level::Global] {
        old.wait(1, level, LONG).unwrap();
    }
    let mut new = second(&job, "take_over = true\n").unwrap();
    assert_eq!(new.find().unwrap(), 1);
    let mut restored = State::empty(0, 20);
    restored.protect(&mut new).unwrap();
    assert_eq!(new.restart().unwrap(), 1);

    // The old run does not know it yet.
    let mut stale = State::new(0, 2, 20);
    stale.protect(&mut old).unwrap();
    old.checkpoint(2).unwrap();
    for level in [Level::Node, Level::Global] {
        let error = refused(old.wait(2, level, LONG));
        says(
            &error,
            ErrorKind::Fenced,
            &[
                "checkpoint 2 is not safe",
                "is superseded",
                "epoch 2 was claimed",
                "must end",
            ],
        );
    }
    says(
        &refused(old.close(LONG)),
        ErrorKind::Fenced,
        &["superseded"],
    );
    new.close(LONG).unwrap();

    let mut third = second(&job, "").unwrap();
    assert_eq!(third.find().unwrap(), 1);
    third.close(LONG).unwrap();
    let records = names(&scratch.path().join("ost0/job"));
    assert!(
        !records
            .iter()
            .any(|name| name.contains("s000000000002") && name.ends_with(".commit")),
        "{records:?}"
    );
}

fn two_jobs_in_one_program_do_not_meet() {
    let scratch = Scratch::new("two");
    let job = Job::new(scratch.path(), 1, 1, false);
    let open = |name: &str| {
        Session::open_with(
            name,
            Box::new(Solo),
            Options::from_text(&job.options),
            Environment::default(),
        )
        .unwrap()
    };
    let (mut a, mut b) = (open("a"), open("b"));
    let (mut x, mut y) = (State::new(0, 1, 10), State::new(7, 1, 10));
    x.protect(&mut a).unwrap();
    y.protect(&mut b).unwrap();
    a.checkpoint(1).unwrap();
    b.checkpoint(1).unwrap();
    a.close(LONG).unwrap();
    b.close(LONG).unwrap();
    let mut b = open("b");
    assert_eq!(b.find().unwrap(), 1);
    let mut got = State::empty(7, 10);
    got.protect(&mut b).unwrap();
    b.restart().unwrap();
    assert!(got.is(7, 1, 10));
    b.close(LONG).unwrap();
}

// Breaks if: the largest counter wraps; the run would claim an epoch that is older than those of
// the runs before it.
fn a_file_of_an_epoch_beyond_all_runs_is_refused_by_name() {
    let scratch = Scratch::new("beyond");
    let job = Job::new(scratch.path(), 1, 1, false);
    second(&job, "").unwrap().close(LONG).unwrap();
    let dir = scratch.path().join("ost0/job");
    for (epoch, refuses) in [
        (u64::MAX, true),
        (i64::MAX as u64, true),
        (i64::MAX as u64 - 1, false),
    ] {
        let name = FileName::Claim { epoch }.to_string();
        crate::session::disk::write(&dir.join(&name), b"");
        if refuses {
            let error = refused(second(&job, ""));
            says(&error, ErrorKind::Corrupt, &[&name, "remove it"]);
        } else {
            // The last one of all.
            let last = second(&job, "").unwrap();
            assert_eq!(last.epoch().counter, i64::MAX as u64);
            last.abandon();
        }
        crate::session::disk::remove_file(&dir.join(&name));
    }
}
