//! Jobs whose nodes vote through others: a fan-out of two.

use crate::support::{Job, State};
use crate::{Test, session_tests};
use orcheck_format::{ErrorKind, Level};
use orcheck_testing::Scratch;
use std::path::Path;
use std::time::Duration;

/// What is tested here.
pub const TESTS: &[Test] = session_tests![nodes_vote_through_others,];

const LONG: Duration = Duration::from_secs(30);

fn job(root: &Path) -> Job {
    // 0 ─ 1, 2; 1 ─ 3, 4; 2 ─ 5, 6; 3 ─ 7, 8
    Job::new(root, 18, 1, true)
        .nodes(9)
        .pool("512 KiB")
        .with("peers = 1\nfan_out = 2")
}

// Breaks if: a node looks for the lead where its relay is; a relay keeps a vote, a record or a
// decision to itself; or an agent ends while decisions for others still come through it.
fn nodes_vote_through_others() {
    let scratch = Scratch::new("tree");
    // Also where all nodes are reached by TCP.
    for (last, net) in [(0, "auto"), (3, "tcp")] {
        let job = job(scratch.path()).with(&format!("net = '{net}'"));
        job.run(|session, rank| {
            let mut session = session.unwrap();
            let mut state = State::empty(rank, 20);
            match session.find() {
                Ok(step) => {
                    assert_eq!(step, last);
                    state.protect(&mut session).unwrap();
                    assert_eq!(session.restart().unwrap(), last);
                    assert!(state.is(rank, last, 20), "rank {rank}");
                }
                Err(error) => assert_eq!((error.kind(), last), (ErrorKind::NotFound, 0)),
            }
            for step in last + 1..=last + 3 {
                state = State::new(rank, step, 20);
                state.protect(&mut session).unwrap();
                session.checkpoint(step).unwrap();
                for level in [Level::Peers(1), Level::Global] {
                    session.wait(step, level, LONG).unwrap();
                }
            }
            session.close(LONG).unwrap();
        });
    }
}
