//! The engine in an agent, and level global on servers: the agent opens them as the ranks name
//! them.

use crate::session::mistakes::LONG;
use crate::support::{Job, State};
use crate::{Test, session_tests};
use orcheck_client::Options;
use orcheck_engine::host::agent::Agent;
use orcheck_format::{JobName, Level};
use orcheck_io::clock::SystemClock;
use orcheck_io::failpoints::Failpoints;
use orcheck_testing::Scratch;
use std::sync::Arc;
use std::time::Duration;

/// What is tested here.
pub const TESTS: &[Test] = session_tests![an_agent_flushes_to_servers,];

// Breaks if: the agent takes the address for a path below its working directory.
fn an_agent_flushes_to_servers() {
    let scratch = Scratch::new("served-agent");
    let job = Job::new(scratch.path(), 2, 2, false);
    let options = Options::from_text(&job.options).unwrap();
    let name = JobName::new("job").unwrap();
    for resumed in [0, 3] {
        let clock = Arc::new(SystemClock);
        let agent =
            Agent::bind(&name, "n0", &options.global[0], clock, Failpoints::none()).unwrap();
        let agent = std::thread::spawn(move || agent.run(Duration::from_secs(60)));
        job.run_ranks_with(Some("join"), |session, rank| {
            let mut session = session.unwrap();
            let mut state = State::empty(rank, 300);
            if resumed > 0 {
                state.protect(&mut session).unwrap();
                assert_eq!(session.find().unwrap(), resumed);
                assert_eq!(session.restart().unwrap(), resumed);
                assert!(state.is(rank, resumed, 300));
            }
            for step in resumed + 1..=resumed + 3 {
                state = State::new(rank, step, 300);
                state.protect(&mut session).unwrap();
                session.checkpoint(step).unwrap();
                session.wait(step, Level::Global, LONG).unwrap();
            }
            session.close(LONG).unwrap();
        });
        // The job was ended in order, and so does its agent.
        agent.join().unwrap().unwrap();
    }
}
