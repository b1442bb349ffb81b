//! A directory that cannot be read when a job starts.

use crate::session::disk;
use crate::session::mistakes::{LONG, refused, says};
use crate::support::{Job, State};
use crate::{Test, session_tests};
use orcheck_format::{ErrorKind, Level};
use orcheck_testing::Scratch;

/// What is tested here.
pub const TESTS: &[Test] = session_tests![nothing_begins_beside_a_directory_that_cannot_be_read,];

// Breaks if: a directory without a commit record speaks for all; what lies in the one that cannot
// be read would be superseded by a run from nothing.
fn nothing_begins_beside_a_directory_that_cannot_be_read() {
    let scratch = Scratch::new("unread");
    let job = Job::new(scratch.path(), 1, 2, false);
    let save = |job: &Job, step| {
        job.run(|session, rank| {
            let mut session = session.unwrap();
            let mut state = State::new(rank, step, 20);
            state.protect(&mut session).unwrap();
            session.checkpoint(step).unwrap();
            session.wait(step, Level::Global, LONG).unwrap();
            session.close(LONG).unwrap();
        });
    };
    save(&job, 1);
    // A directory that failed during the first checkpoint has its claims, and nothing else.
    let lacks = scratch.path().join("ost1/job");
    for name in disk::names(&lacks) {
        if name.starts_with('s') {
            disk::remove_file(&lacks.join(name));
        }
    }
    let (there, away) = (scratch.path().join("ost0"), scratch.path().join("away"));
    disk::rename(&there, &away);
    job.run(|session, _| {
        let error = refused(session.unwrap().find());
        says(
            &error,
            ErrorKind::Unavailable,
            &["ost0", "cannot be read", "Next: bring "],
        );
    });
    let fresh = job.clone().with("start = 'fresh'");
    fresh.run(|session, _| {
        let error = refused(session.unwrap().find());
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    });
    disk::rename(&away, &there);
    job.run(|session, rank| {
        let mut session = session.unwrap();
        let mut state = State::empty(rank, 20);
        state.protect(&mut session).unwrap();
        assert_eq!(session.find().unwrap(), 1);
        assert_eq!(session.restart().unwrap(), 1);
        assert!(state.is(rank, 1, 20));
        session.close(LONG).unwrap();
    });
}
