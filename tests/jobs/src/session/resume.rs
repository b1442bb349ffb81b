//! Find and restart beyond the plain case: older steps of another size, nodes that know more.

use crate::support::{Job, State};
use crate::{Test, session_tests};
use orcheck_format::{ErrorKind, Level};
use orcheck_testing::Scratch;
use std::path::Path;
use std::time::Duration;

/// What is tested here.
pub const TESTS: &[Test] = session_tests![
    after_damage_find_offers_the_older_step_with_its_own_sizes,
    a_damaged_copy_is_replaced_by_that_of_another_level,
    what_was_done_already_is_not_asked_for,
    a_new_first_node_does_not_make_the_others_start_afresh,
    a_run_that_resumed_from_an_older_step_and_died_supersedes_nothing,
];

pub const LONG: Duration = Duration::from_secs(30);

/// Takes checkpoints of `steps`, each with the size that goes with it.
pub fn save(job: &Job, steps: &[(u64, usize)]) {
    job.run(|session, rank| {
        let mut session = session.unwrap();
        session.find().unwrap_err();
        let mut states = Vec::new();
        for &(step, scale) in steps {
            let mut state = State::new(rank, step, scale);
            state.protect(&mut session).unwrap();
            session.checkpoint(step).unwrap();
            states.push(state);
        }
        session.close(LONG).unwrap();
    });
}

/// The name of the newest container in a directory.
fn newest_container(dir: &Path) -> String {
    let names = crate::session::disk::names(dir).into_iter();
    names.filter(|n| n.ends_with(".orc")).max().unwrap()
}

/// Flips a bit of data in the newest container; its name.
pub fn damage_newest(dir: &Path) -> String {
    let newest = newest_container(dir);
    let mut bytes = crate::session::disk::read(&dir.join(&newest));
    let middle = bytes.len() / 4;
    bytes[middle] ^= 1;
    crate::session::disk::write(&dir.join(&newest), &bytes);
    newest
}

// Breaks if: restart does not remember what it found damaged; find would offer it again for ever.
fn after_damage_find_offers_the_older_step_with_its_own_sizes() {
    let scratch = Scratch::new("sizes");
    let job = Job::new(scratch.path(), 2, 1, false);
    save(&job, &[(1, 50), (2, 90)]);
    damage_newest(&scratch.path().join("ost0/job"));
    job.run(|session, rank| {
        let mut session = session.unwrap();
        assert_eq!(session.find().unwrap(), 2);
        let mut state = State::empty(rank, 90);
        state.protect(&mut session).unwrap();
        let error = session.restart().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        assert!(error.message().contains("step 1 does not fit"), "{error}");
        assert_eq!(session.find().unwrap(), 1);
        let mut state = State::empty(rank, 50);
        assert_eq!(session.stored("u").unwrap().len_bytes, state.u.len() as u64);
        state.protect(&mut session).unwrap();
        assert_eq!(session.restart().unwrap(), 1);
        assert!(state.is(rank, 1, 50));
    });
}

// Breaks if: `any_copy` gives up after the first copy: bits of a node's disk would cost a step that
// is whole elsewhere.
fn a_damaged_copy_is_replaced_by_that_of_another_level() {
    let scratch = Scratch::new("copies");
    let job = Job::new(scratch.path(), 2, 1, true);
    save(&job, &[(1, 50), (2, 50)]);
    let newest = damage_newest(&scratch.path().join("local/job/n0"));
    let told = job.run(|session, rank| {
        let mut session = session.unwrap();
        assert_eq!(session.find().unwrap(), 2);
        State::restores(&mut session, rank, 2, 50);
        crate::support::warnings(&mut session)
    });
    let told = told.concat().join("; ");
    assert!(
        told.contains("another copy is used") && told.contains(&newest),
        "{told}"
    );
    assert!(!told.contains("Next: "), "{told}");
}

// Breaks if: what a damaged copy asks for stays in the warning although another copy, or an older
// step, was used.
fn what_was_done_already_is_not_asked_for() {
    let scratch = Scratch::new("asked");
    let job = Job::new(scratch.path(), 2, 1, true);
    save(&job, &[(1, 50), (2, 50)]);
    for dir in ["local/job/n0", "ost0/job"] {
        damage_newest(&scratch.path().join(dir));
    }
    // And of the older one, one copy of two.
    let local = scratch.path().join("local/job/n0");
    let older = crate::session::disk::names(&local);
    let older = older
        .iter()
        .filter(|name| name.ends_with(".orc"))
        .min()
        .unwrap();
    let mut bytes = crate::session::disk::read(&local.join(older));
    bytes[100] ^= 1;
    crate::session::disk::write(&local.join(older), &bytes);
    let told = job.run(|session, rank| {
        let mut session = session.unwrap();
        assert_eq!(session.find().unwrap(), 2);
        State::restores(&mut session, rank, 1, 50);
        crate::support::warnings(&mut session)
    });
    let told = told.concat();
    assert!(
        told.iter().any(|text| text.contains("step 2 skipped")),
        "{told:?}"
    );
    let asking = told.iter().filter(|text| text.contains("Next: ")).count();
    assert_eq!(asking, 0, "{told:?}");
}

// Breaks if: rank 0 alone decides that there is no checkpoint.
fn a_new_first_node_does_not_make_the_others_start_afresh() {
    let scratch = Scratch::new("newnode");
    let job = Job::new(scratch.path(), 2, 0, true).nodes(2);
    save(&job, &[(1, 40)]);
    // The disk of node n0 was replaced.
    crate::session::disk::remove_tree(&scratch.path().join("local/job/n0"));
    job.run(|session, _| {
        let error = session.unwrap().find().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        assert!(error.message().contains("step 1"), "{error}");
        assert!(error.message().contains("start = 'fresh'"), "{error}");
    });
    // With a level that the node's loss does not touch, the job continues, and says what it left.
    let scratch = Scratch::new("newnode-global");
    let job = Job::new(scratch.path(), 2, 1, true).nodes(2);
    save(&job, &[(1, 40), (2, 40)]);
    crate::session::disk::remove_tree(&scratch.path().join("local/job/n0"));
    job.run(|session, rank| {
        let mut session = session.unwrap();
        assert_eq!(session.find().unwrap(), 2);
        State::restores(&mut session, rank, 2, 40);
    });
}

// Breaks if: what a run resumed from is recorded before it has anything of its own.
fn a_run_that_resumed_from_an_older_step_and_died_supersedes_nothing() {
    let scratch = Scratch::new("hiccup");
    let job = Job::new(scratch.path(), 1, 1, false);
    save(&job, &[(1, 40), (2, 40)]);
    let dir = scratch.path().join("ost0/job");
    let newest = newest_container(&dir);
    let hidden = scratch.path().join("hidden");
    crate::session::disk::rename(&dir.join(&newest), &hidden);
    job.run(|session, rank| {
        let mut session = session.unwrap();
        assert_eq!(session.find().unwrap(), 1, "the directory had a bad moment");
        let mut state = State::empty(rank, 40);
        state.protect(&mut session).unwrap();
        assert_eq!(session.restart().unwrap(), 1);
        session.abandon();
    });
    crate::session::disk::rename(&hidden, &dir.join(&newest));
    job.run(|session, rank| {
        let mut session = session.unwrap();
        assert_eq!(session.find().unwrap(), 2);
        let mut state = State::empty(rank, 40);
        state.protect(&mut session).unwrap();
        assert_eq!(session.restart().unwrap(), 2);
        session.checkpoint(3).unwrap();
        session.wait(3, Level::Global, LONG).unwrap();
    });
}
