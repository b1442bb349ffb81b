//! What only agents can do: finish what their ranks began. And what they do not do.

use crate::hooks::Hold;
use crate::mistakes::{refused, says};
use crate::support::{Job, State};
use orcheck_client::Session;
use orcheck_engine::agent::{Agent, KEY, address, ask};
use orcheck_format::agent::{Adoption, AgentMessage, NodePart, RecipePart};
use orcheck_format::encoding::Compression;
use orcheck_format::error::{ErrorKind, Result};
use orcheck_format::ids::{Epoch, JobName, Level, RunId};
use orcheck_format::wire::Message;
use orcheck_io::clock::{Clock, SystemClock};
use orcheck_io::conn::Conn;
use orcheck_io::pool::{Pool, PoolShape};
use orcheck_io::steps::{StepHook, Steps, Verdict};
use orcheck_io::testing::{FaultPlan, Scratch};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

const LONG: Duration = Duration::from_secs(20);

fn save(session: Result<Session>, rank: u32, step: u64) -> Session {
    let mut session = session.unwrap();
    let mut state = State::new(rank, step, 100);
    state.protect(&mut session).unwrap();
    session.checkpoint(step).unwrap();
    session
}

fn restores(session: Result<Session>, rank: u32, step: u64) {
    let mut session = session.unwrap();
    assert_eq!(session.find().unwrap(), step);
    let mut state = State::empty(rank, 100);
    state.protect(&mut session).unwrap();
    assert_eq!(session.restart().unwrap(), step);
    assert!(state.is(rank, step, 100), "rank {rank}");
    session.close(LONG).unwrap();
}

// Breaks if: an agent gives up what its ranks left with it, or the next run does not wait for it.
#[test]
fn what_all_ranks_sealed_survives_them() {
    for (nodes, node_level) in [(1, false), (2, true)] {
        let scratch = Scratch::new("sealed");
        let hold = Hold::at("flush.taken", "");
        let job = Job::new(scratch.path(), 4, 1, node_level)
            .nodes(nodes)
            .steps(hold.steps());
        let agents = job.agents();
        job.run_ranks(|session, rank| {
            let session = save(session, rank, 1);
            session.wait(1, Level::Process, LONG).unwrap();
            let error = refused(session.wait(1, Level::Global, Duration::ZERO));
            says(
                &error,
                ErrorKind::Unavailable,
                &["not yet safe at level global"],
            );
            session.abandon();
        });
        std::thread::scope(|scope| {
            let next = scope.spawn(|| job.run_ranks(|session, rank| restores(session, rank, 1)));
            hold.wait_until_held();
            hold.release();
            next.join().unwrap();
        });
        for (stop, agent) in agents {
            stop.stop();
            agent.join().unwrap().unwrap();
        }
    }
}

// Breaks if: what is sealed stays safe at level process although no directory took it: it goes with the engine.
#[test]
fn what_no_directory_takes_is_not_safe_at_level_process_either() {
    let scratch = Scratch::new("untaken");
    let plan = Arc::new(FaultPlan::new());
    let steps = Steps::with(Arc::clone(&plan) as Arc<dyn StepHook>);
    let job = Job::new(scratch.path(), 2, 1, false).steps(steps);
    job.run(|session, rank| {
        let session = save(session, rank, 1);
        session.wait(1, Level::Global, LONG).unwrap();
        plan.fail_from_now("file.write", "ost0", Verdict::Fail(28));
        let session = save(Ok(session), rank, 2);
        for level in [Level::Global, Level::Process] {
            let error = refused(session.wait(2, level, LONG));
            says(&error, ErrorKind::NoSpace, &["checkpoint 2 is not safe"]);
        }
    });
}

#[test]
fn to_join_an_agent_that_is_not_there_is_refused() {
    let scratch = Scratch::new("join");
    let job = Job::new(scratch.path(), 2, 1, false);
    job.run_ranks(|session, _| {
        let error = refused(session.map(|_| ()));
        let words = [
            "the agent of node 'n0'",
            "orcheck agent --job job --node n0 --dir",
        ];
        says(&error, ErrorKind::Unavailable, &words);
    });
}

#[test]
fn an_agent_that_cannot_be_started_is_an_error() {
    let scratch = Scratch::new("start");
    let job = Job::new(scratch.path(), 1, 1, false).with("agent_program = '/nowhere/orcheck'");
    job.run_ranks_with(Some("start"), |session, _| {
        let error = refused(session.map(|_| ()));
        let words = [
            "starting the agent of node 'n0'",
            "/nowhere/orcheck",
            "set agent_program",
        ];
        says(&error, ErrorKind::NotFound, &words);
    });
}

// Breaks if: a caller's words are believed before it has handed a job over, or callers are kept without end.
#[test]
fn nonsense_costs_only_who_says_it() {
    let scratch = Scratch::new("nonsense");
    let job = Job::new(scratch.path(), 2, 1, false);
    let name = JobName::new("job").unwrap();
    let at = address(&name, "n0", &scratch.path().join("ost0"));
    let agents = job.agents();
    let steps = Steps::none();
    let call = || Conn::connect(&at, &KEY, &steps, LONG).unwrap();
    let say = |message, fd: bool| {
        let file = std::io::stdin();
        let fd = fd.then(|| file.as_fd());
        ask(&mut call(), message, fd, LONG, |_| ()).unwrap_err()
    };
    says(
        &say(AgentMessage::Begin, false),
        ErrorKind::Invalid,
        &["nothing was handed over"],
    );
    says(
        &say(AgentMessage::Lock, true),
        ErrorKind::Invalid,
        &["came before a job"],
    );
    let job_of_nobody = AgentMessage::Adopt {
        job: b"nonsense".to_vec(),
    };
    says(&say(job_of_nobody, true), ErrorKind::Corrupt, &["adoption"]);
    // A pool that is not of this node: the engine would look for its ranks beyond the end.
    let alien = Pool::create(PoolShape {
        chunk_bytes: 65536,
        chunk_count: 1,
        words: 1,
        rings: 0,
        ring_entries: 0,
    });
    let adopt = AgentMessage::Adopt {
        job: adoption(&name).encode(),
    };
    let alien = ask(&mut call(), adopt, Some(alien.unwrap().fd()), LONG, |_| ());
    says(
        &alien.unwrap_err(),
        ErrorKind::Corrupt,
        &["the pool is that of another node"],
    );
    let mut stranger = call();
    stranger.send(&Message::Goodbye { node: 0 }, LONG).unwrap();
    assert!(stranger.receive(LONG).is_err(), "it hangs up");
    // Callers that say nothing.
    let idle: Vec<Conn> = (0..200).map(|_| call()).collect();
    job.run_ranks(|session, rank| {
        let session = save(session, rank, 1);
        session.wait(1, Level::Global, LONG).unwrap();
        session.close(LONG).unwrap();
    });
    drop(idle);
    for (_, agent) in agents {
        agent.join().unwrap().unwrap();
    }
    let clock = Arc::new(SystemClock);
    let again = Agent::bind(
        &name,
        "n0",
        &scratch.path().join("ost0"),
        clock,
        steps.clone(),
    );
    assert!(again.is_ok(), "the agent ended with the job");
}

// Breaks if: the agent waits for the rest of what one caller says, or for one that does not listen, before it hears others.
#[test]
fn callers_that_say_a_half_or_do_not_listen_keep_nobody_waiting() {
    let scratch = Scratch::new("half");
    let job = Job::new(scratch.path(), 2, 1, false);
    let name = JobName::new("job").unwrap();
    let at = address(&name, "n0", &scratch.path().join("ost0"));
    let agents = job.agents();
    let bad: Vec<Conn> = (0..16)
        .map(|number| {
            let mut conn = Conn::connect(&at, &KEY, &Steps::none(), LONG).unwrap();
            let mut say = |message| conn.send(&Message::Agent(message), Duration::from_millis(20));
            if number % 2 == 0 {
                let job = adoption(&name).encode();
                say(AgentMessage::Adopt { job }).unwrap();
            } else {
                // Until the agent takes no more, because nobody takes its answers.
                while say(AgentMessage::Status).is_ok() {}
            }
            conn
        })
        .collect();
    let begun = SystemClock.now();
    job.run_ranks(|session, rank| {
        let session = save(session, rank, 1);
        session.wait(1, Level::Global, LONG).unwrap();
        session.close(LONG).unwrap();
    });
    assert!(SystemClock.now() - begun < LONG);
    // The job ended in order: so do they, whoever is still in the middle of something.
    let begun = SystemClock.now();
    for (_, agent) in agents {
        agent.join().unwrap().unwrap();
    }
    assert!(SystemClock.now() - begun < LONG);
    drop(bad);
}

/// A job of one rank, as it is handed over.
fn adoption(job: &JobName) -> Adoption {
    Adoption {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        job: job.clone(),
        epoch: Epoch {
            counter: 1,
            run: RunId([1; 16]),
        },
        nodes: vec![NodePart {
            name: "n0".to_owned(),
            host: "here".to_owned(),
            writers: vec![vec![0]],
            addresses: Vec::new(),
        }],
        node: 0,
        servers: Vec::new(),
        node_root: String::new(),
        keep: 2,
        mode: 2,
        direct: true,
        pin: false,
        incremental: false,
        timeout_ms: 1000,
        recipe: RecipePart {
            compression: Compression::None,
            level: 1,
            secret: None,
        },
        replication: None,
        placement: String::new(),
        working_dir: "/".to_owned(),
    }
}
