//! What only agents can do: finish what their ranks began. And what they do not do.

use crate::session::disk;
use crate::session::elastic::parts::{Field, cut};
use crate::session::hooks::{Hold, Meeting};
use crate::session::mistakes::{refused, says};
use crate::support::{Job, State};
use crate::trial::{Random, seed};
use crate::{Test, session_tests};
use orcheck_client::Session;
use orcheck_engine::host::agent::{Agent, KEY, Stop, address, ask};
use orcheck_format::disk::Compression;
use orcheck_format::wire::{Adoption, AgentMessage, Message, NodePart, RecipePart};
use orcheck_format::{Epoch, ErrorKind, JobName, Level, NodeId, Rank, Result, RunId};
use orcheck_io::clock::{Clock, SystemClock};
use orcheck_io::failpoints::{FailpointHook, Failpoints, Verdict};
use orcheck_net::Conn;
use orcheck_pool::{Pool, PoolShape};
use orcheck_testing::{FaultPlan, Scratch};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

/// What is tested here.
pub const TESTS: &[Test] = session_tests![
    what_all_ranks_sealed_survives_them,
    what_no_directory_takes_is_not_safe_at_level_process_either,
    to_join_an_agent_that_is_not_there_is_refused,
    an_agent_that_cannot_be_started_is_an_error,
    nonsense_costs_only_who_says_it,
    callers_that_say_a_half_or_do_not_listen_keep_nobody_waiting,
    nodes_that_run_no_rank_any_more_are_read_from,
    four_nodes_become_two_with_other_ranks_while_the_absent_one_answers,
    nodes_that_do_not_answer_are_said_when_they_may_know_more,
    replicas_in_memory_outlive_the_ranks_and_a_node,
    replicas_in_memory_without_agents_are_refused,
    memory_for_replicas_that_is_full_is_said,
    a_run_goes_on_when_an_agent_ends,
    files_of_the_program_stay_where_they_are_when_an_agent_ends,
    a_close_misses_copies_although_an_agent_ended_meanwhile,
    a_close_says_that_an_agent_ended_before_a_copy_was_made,
    what_was_whole_is_flushed_again,
    what_goes_to_one_level_is_flushed_again_there_alone,
    a_run_ends_when_another_one_began_meanwhile,
];

const LONG: Duration = Duration::from_secs(20);

/// Waits until that is so.
pub fn until(mut so: impl FnMut() -> bool) {
    let late = SystemClock.now() + LONG;
    while !so() {
        assert!(SystemClock.now() < late, "it did not become so");
        std::thread::yield_now();
    }
}

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
fn what_all_ranks_sealed_survives_them() {
    for (nodes, node_level) in [(1, false), (2, true)] {
        let scratch = Scratch::new("sealed");
        let hold = Hold::at("flush.taken", "");
        let job = Job::new(scratch.path(), 4, 1, node_level)
            .nodes(nodes)
            .failpoints(hold.failpoints());
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

// Breaks if: what is sealed stays safe at level process although no directory took it: it goes with
// the engine.
fn what_no_directory_takes_is_not_safe_at_level_process_either() {
    let scratch = Scratch::new("untaken");
    let plan = Arc::new(FaultPlan::new());
    let failpoints = Failpoints::with(Arc::clone(&plan) as Arc<dyn FailpointHook>);
    let job = Job::new(scratch.path(), 2, 1, false).failpoints(failpoints);
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

// Breaks if: a caller's words are believed before it has handed a job over, or callers are kept
// without end.
fn nonsense_costs_only_who_says_it() {
    let scratch = Scratch::new("nonsense");
    let job = Job::new(scratch.path(), 2, 1, false);
    let name = JobName::new("job").unwrap();
    let at = address(&name, "n0", &scratch.path().join("ost0"));
    let agents = job.agents();
    let failpoints = Failpoints::none();
    let call = || Conn::connect(&at, &KEY, &failpoints, LONG).unwrap();
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
    stranger
        .send(&Message::Goodbye { node: NodeId(0) }, LONG)
        .unwrap();
    assert!(stranger.receive(LONG).is_err(), "it hangs up");
    // Breaks if: who is about to hand over is dropped for those who only connect; on a node with
    // many ranks the run could not begin.
    let mut expected = call();
    let wanted = AgentMessage::Yield {
        force: false,
        patience_ms: 0,
    };
    ask(&mut expected, wanted, None, LONG, |_| ()).unwrap();
    let crowd: Vec<Conn> = (0..70).map(|_| call()).collect();
    ask(&mut expected, AgentMessage::Status, None, LONG, |_| ()).unwrap();
    drop((expected, crowd));
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
        failpoints.clone(),
    );
    assert!(again.is_ok(), "the agent ended with the job");
}

// Breaks if: the agent waits for the rest of what one caller says, or for one that does not listen,
// before it hears others.
fn callers_that_say_a_half_or_do_not_listen_keep_nobody_waiting() {
    let scratch = Scratch::new("half");
    let job = Job::new(scratch.path(), 2, 1, false);
    let name = JobName::new("job").unwrap();
    let at = address(&name, "n0", &scratch.path().join("ost0"));
    let agents = job.agents();
    let begun = SystemClock.now();
    let bad: Vec<Conn> = (0..16)
        .map(|number| {
            let mut conn = Conn::connect(&at, &KEY, &Failpoints::none(), LONG).unwrap();
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
    job.run_ranks(|session, rank| {
        let session = save(session, rank, 1);
        session.wait(1, Level::Global, LONG).unwrap();
        session.close(LONG).unwrap();
    });
    // The job ended in order: so do they, whoever is still in the middle of something.
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
            writers: vec![vec![Rank(0)]],
            addresses: Vec::new(),
        }],
        node: NodeId(0),
        servers: Vec::new(),
        node_root: String::new(),
        keep: 2,
        mode: 2,
        direct: true,
        pin: false,
        incremental: false,
        timeout_ms: 1000,
        fan_out: 64,
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

fn peers_job(root: &std::path::Path, nodes: &[&'static str]) -> Job {
    Job::new(root, nodes.len() as u32, 0, true)
        .placed(nodes)
        .with("peers = 1")
}

/// Copies that this rank was told of.
fn mended(session: &mut Session) -> u32 {
    let mut made = 0;
    while let Some(told) = session.take_warning() {
        let told = told.split_once(": files of step 1 rebuilt after the loss of nodes: ");
        made += told.map_or(0, |(_, count)| count.parse::<u32>().unwrap());
    }
    made
}

// Breaks if: agents stop giving out what their nodes hold when their ranks are gone, the next run
// does not find them, or continues from what only they hold without taking it over.
fn nodes_that_run_no_rank_any_more_are_read_from() {
    let scratch = Scratch::new("shelf");
    let first = peers_job(scratch.path(), &["a", "b", "c", "d", "f", "g"]);
    let agents = first.agents();
    first.run_ranks(|session, rank| {
        let session = save(session, rank, 1);
        session.wait(1, Level::Peers(1), LONG).unwrap();
        session.abandon();
    });
    // Each container is on two of six nodes, so that one node and a new one cannot have them all.
    let elsewhere = peers_job(scratch.path(), &["a", "a", "a", "a", "a", "e"]);
    let more = elsewhere.agents();
    let held = crate::session::disk::names(&scratch.path().join("local/job/a"));
    let held = held.iter().filter(|name| name.ends_with(".orc")).count() as u32;
    let (missing, made) = (2 * 6 - held, AtomicU32::new(0));
    elsewhere.run_ranks(|session, rank| {
        let mut session = session.unwrap();
        assert_eq!(session.find().unwrap(), 1);
        let mut state = State::empty(rank, 100);
        state.protect(&mut session).unwrap();
        assert_eq!(session.restart().unwrap(), 1);
        assert!(state.is(rank, 1, 100), "rank {rank}");
        // Two nodes, and six containers that both are to have a copy of.
        until(|| {
            made.fetch_add(mended(&mut session), Ordering::AcqRel);
            made.load(Ordering::Acquire) >= missing
        });
        session.abandon();
    });
    // The others go, with their disks; what the two took over is all there is.
    let stay = ["a"];
    for (node, (stop, agent)) in ["a", "b", "c", "d", "f", "g"].iter().zip(agents) {
        if !stay.contains(node) {
            crate::session::disk::remove_tree(&scratch.path().join("local/job").join(node));
        }
        stop.stop();
        agent.join().unwrap().unwrap();
    }
    for (stop, agent) in more {
        stop.stop();
        agent.join().unwrap().unwrap();
    }
    let alone = peers_job(scratch.path(), &["a", "a", "a", "e", "e", "e"]);
    alone.run(|session, rank| restores(session, rank, 1));
}

// Breaks if: other ranks look for parts of a field on their own nodes only: with one replica, both
// copies of a part may be on the lost disk and on a node without a rank.
fn four_nodes_become_two_with_other_ranks_while_the_absent_one_answers() {
    let mut random = Random::new(seed() ^ 0x4222);
    let global = &[200, 150][..];
    for lost in ["b", "c"] {
        let scratch = Scratch::new("absent");
        let first = peers_job(scratch.path(), &["a", "a", "b", "b", "c", "c", "d", "d"]);
        let agents = first.agents();
        let parts = cut(global, 8, &mut random);
        first.run_ranks(|session, rank| {
            let mut session = session.unwrap();
            let mut field = Field::new(global, &parts[rank as usize], 0).fill(1);
            field.protect(&mut session, 0);
            session.checkpoint(1).unwrap();
            session.wait(1, Level::Peers(1), LONG).unwrap();
            session.abandon();
        });
        disk::remove_tree(&scratch.path().join("local/job").join(lost));
        let (one, other) = if lost == "b" { ("a", "c") } else { ("a", "b") };
        let second = peers_job(scratch.path(), &[one, one, other]);
        let parts = cut(global, 3, &mut random);
        second.run_ranks(|session, rank| {
            let mut session = session.unwrap();
            assert_eq!(session.find().unwrap(), 1);
            let mut field = Field::new(global, &parts[rank as usize], 0);
            field.protect(&mut session, 0);
            assert_eq!(session.restart().unwrap(), 1);
            assert!(field.is(1), "rank {rank} without {lost}");
            session.abandon();
        });
        for (stop, agent) in agents {
            stop.stop();
            let _ = agent.join().unwrap();
        }
    }
}

// Breaks if: nodes that do not answer are passed over in silence although only they may know of
// something newer.
fn nodes_that_do_not_answer_are_said_when_they_may_know_more() {
    let scratch = Scratch::new("silent");
    let first = peers_job(scratch.path(), &["a", "b", "c", "d"]);
    first.run(|session, rank| {
        let session = save(session, rank, 1);
        session.wait(1, Level::Peers(1), LONG).unwrap();
        session.abandon();
    });
    for (nodes, silent) in [
        (["a", "b", "c", "c"], None),
        (
            ["a", "b", "a", "b"],
            Some("2 nodes of earlier runs, not in this one, do not answer (c, d)"),
        ),
    ] {
        let told = peers_job(scratch.path(), &nodes).run(|session, _| {
            let mut session = session.unwrap();
            let _ = session.find();
            let told = crate::support::warnings(&mut session);
            session.abandon();
            told
        });
        let found = told[0].iter().find(|text| text.contains("do not answer"));
        match silent {
            Some(silent) => assert!(found.unwrap().contains(silent), "{told:?}"),
            None => assert_eq!(found, None),
        }
        assert!(
            told[1..]
                .concat()
                .iter()
                .all(|text| !text.contains("do not answer"))
        );
    }
}

/// Containers of the step in a node's directory.
fn containers(root: &std::path::Path, node: &str, step: u64) -> usize {
    let names = crate::session::disk::names(&root.join("local/job").join(node));
    let of_step = format!("s{step:012}-");
    let ours = |name: &&String| name.starts_with(&of_step) && name.ends_with(".orc");
    names.iter().filter(ours).count()
}

// Breaks if: what agents have in memory ends with the ranks, or is not asked for after them; that
// it ends with the job is not told.
fn replicas_in_memory_outlive_the_ranks_and_a_node() {
    for (store, on_disk) in [("memory", 4), ("both", 8), ("spill", 4)] {
        let scratch = Scratch::new("ram");
        let root = scratch.path();
        let option = format!("replica_store = '{store}'\nreplica_budget = '1 MiB'");
        let first = peers_job(scratch.path(), &["a", "b", "c", "d"]).with(&option);
        let mut agents = first.agents();
        first.run_ranks(|session, rank| {
            let mut session = session;
            // More than are kept: what prune removes is gone from memory as well, or the budget
            // would not do.
            for step in 1..=30 {
                let saved = save(session, rank, step);
                saved.wait(step, Level::Peers(1), LONG).unwrap();
                session = Ok(saved);
            }
            session.unwrap().abandon();
        });
        let nodes = ["a", "b", "c", "d"].iter();
        let held: usize = nodes.map(|node| containers(root, node, 30)).sum();
        assert_eq!(held, on_disk, "{store}");
        let (stop, agent) = agents.pop().unwrap();
        stop.stop();
        agent.join().unwrap().unwrap();
        crate::session::disk::remove_tree(&root.join("local/job/d"));
        let rest = peers_job(root, &["a", "b", "c", "c"]).with(&option);
        rest.run_ranks(|session, rank| {
            let mut session = session.unwrap();
            assert_eq!(session.find().unwrap(), 30, "{store}");
            let mut state = State::empty(rank, 100);
            state.protect(&mut session).unwrap();
            assert_eq!(session.restart().unwrap(), 30);
            assert!(state.is(rank, 30, 100), "{store}, rank {rank}");
            let (closed, warnings) = session.close_telling(LONG);
            closed.unwrap();
            let told =
                (warnings.iter()).any(|warning| warning.contains("the replicas in their memory"));
            assert_eq!(told, rank == 0 && store != "both", "{store}: {warnings:?}");
        });
        for (stop, agent) in agents {
            stop.stop();
            agent.join().unwrap().unwrap();
        }
    }
}

fn replicas_in_memory_without_agents_are_refused() {
    let options = "node_dir = '/tmp'\npeers = 1\nreplica_store = 'memory'\n";
    let error = orcheck_client::Options::from_text(options).unwrap_err();
    says(
        &error,
        ErrorKind::Invalid,
        &["which is a rank", "agent = \"start\""],
    );
}

// Breaks if: what does not fit is taken in all the same, or refused without saying what to do.
fn memory_for_replicas_that_is_full_is_said() {
    let scratch = Scratch::new("full");
    let job = peers_job(scratch.path(), &["a", "b", "c", "d"])
        .with("replica_store = 'memory'\nreplica_budget = '16 KiB'");
    job.run(|session, rank| {
        let session = save(session, rank, 1);
        let error = refused(session.wait(1, Level::Peers(1), LONG));
        says(
            &error,
            ErrorKind::NoSpace,
            &["of 16384 for replicas are free", "replica_budget"],
        );
        session.abandon();
    });
}

/// Ends the agents as abruptly as within one process can be done, and starts others.
fn replace(job: &Job, agents: &Agents) {
    stop_all(agents);
    agents.lock().unwrap().extend(job.agents());
}

fn stop_all(agents: &Agents) {
    for (stop, agent) in agents.lock().unwrap().drain(..) {
        stop.stop();
        agent.join().unwrap().unwrap();
    }
}

type Agents = Mutex<Vec<(Stop, JoinHandle<Result<()>>)>>;

fn end(agents: Agents) {
    for (_, agent) in agents.into_inner().unwrap() {
        agent.join().unwrap().unwrap();
    }
}

// Breaks if: the ranks do not agree that an agent ended; or the new epoch supersedes what the one
// before committed.
fn a_run_goes_on_when_an_agent_ends() {
    let scratch = Scratch::new("goes-on");
    // A pool that holds a part of what a rank has: nothing can be flushed again.
    let job = Job::new(scratch.path(), 4, 1, true)
        .nodes(2)
        .pool("256 KiB");
    let agents = Mutex::new(job.agents());
    let met = Meeting::of(4);
    job.run_ranks(|session, rank| {
        let mut session = save(session, rank, 1);
        session.wait(1, Level::Global, LONG).unwrap();
        met.wait();
        if rank == 0 {
            replace(&job, &agents);
        }
        met.wait();
        session = save(Ok(session), rank, 2);
        assert_eq!(session.epoch().counter, 2);
        session.wait(2, Level::Global, LONG).unwrap();
        session.wait(1, Level::Global, LONG).unwrap();
        let warning = session.take_warning().unwrap();
        assert!(warning.contains("continues as epoch 2"), "{warning}");
        session.close(LONG).unwrap();
    });
    end(agents);
    job.run(|session, rank| restores(session, rank, 2));
}

// Breaks if: what a run leaves behind is removed when its successor takes over, and routed files
// with it.
fn files_of_the_program_stay_where_they_are_when_an_agent_ends() {
    let scratch = Scratch::new("routed-on");
    let job = Job::new(scratch.path(), 2, 1, true)
        .nodes(2)
        .with("keep = 1");
    let agents = Mutex::new(job.agents());
    let met = Meeting::of(2);
    let content = |rank: u32, step: u64| format!("rank {rank} in step {step}\n").repeat(999);
    job.run_ranks(|session, rank| {
        let mut session = session.unwrap();
        let path = session.route("mesh.h5").unwrap();
        let take = |session: &mut Session, step: u64| {
            disk::write(&path, content(rank, step).as_bytes());
            session.checkpoint(step).unwrap();
            session.wait(step, Level::Global, LONG).unwrap();
            assert_eq!(disk::read(&path), content(rank, step).as_bytes());
        };
        take(&mut session, 1);
        met.wait();
        if rank == 0 {
            replace(&job, &agents);
        }
        met.wait();
        for step in [2, 3] {
            take(&mut session, step);
        }
        assert_eq!(session.epoch().counter, 2);
        session.close(LONG).unwrap();
        assert!(!path.exists());
    });
    end(agents);
    job.run(|session, rank| {
        let mut session = session.unwrap();
        assert_eq!(session.find().unwrap(), 3);
        let path = session.route("mesh.h5").unwrap();
        assert_eq!(session.restart().unwrap(), 3);
        assert_eq!(disk::read(&path), content(rank, 3).as_bytes());
        session.close(LONG).unwrap();
    });
}

// Breaks if: what an ended agent leaves to be copied is forgotten by the session that continues; or
// a close that had to take another agent for that does not ask for copies again.
fn a_close_misses_copies_although_an_agent_ended_meanwhile() {
    let scratch = Scratch::new("copies-on");
    let job = crate::session::peers::without_a_node(scratch.path()).with("close = 'copies'");
    let agents = Mutex::new(job.agents());
    let met = Meeting::of(6);
    job.run_ranks(|session, rank| {
        let mut session = session.unwrap();
        assert_eq!(session.find().unwrap(), 1);
        State::restores(&mut session, rank, 1, 20);
        met.wait();
        if rank == 0 {
            replace(&job, &agents);
        }
        met.wait();
        let error = refused(session.close(LONG));
        let words = ["copies of checkpoint 1", "-n0000-"];
        says(&error, ErrorKind::Unavailable, &words);
    });
    stop_all(&agents);
}

// Breaks if: the time that a close had, or the end of the session, is blamed for what the end of an
// agent cut short.
fn a_close_says_that_an_agent_ended_before_a_copy_was_made() {
    let scratch = Scratch::new("copies-cut");
    let hold = Hold::at("replicas.send", "");
    let job = crate::session::peers::after_a_loss(scratch.path()).failpoints(hold.failpoints());
    let agents = Mutex::new(job.agents());
    let met = Meeting::of(5);
    job.run_ranks(|session, rank| {
        let mut session = session.unwrap();
        assert_eq!(session.find().unwrap(), 1);
        State::restores(&mut session, rank, 1, 20);
        hold.wait_until_held();
        met.wait();
        if rank == 0 {
            replace(&job, &agents);
        }
        met.wait();
        let error = refused(session.close(Duration::from_millis(300)));
        hold.release();
        let words = [
            "copies of checkpoint 1",
            "an agent of the job ended before it was made",
        ];
        says(&error, ErrorKind::Unavailable, &words);
        for wrong in ["there was no time", "the session ended"] {
            assert!(!error.message().contains(wrong), "{error}");
        }
    });
    stop_all(&agents);
}

// Breaks if: chunks are given back when they are flushed, or when their step is lost; the successor
// is not told of what is whole in the pool; or a loss that was reported stays one although the step
// is safe now.
fn what_was_whole_is_flushed_again() {
    let scratch = Scratch::new("flushed-again");
    let plan = Arc::new(FaultPlan::new());
    let failpoints = Failpoints::with(Arc::clone(&plan) as Arc<dyn FailpointHook>);
    let job = Job::new(scratch.path(), 2, 1, false).failpoints(failpoints);
    let agents = Mutex::new(job.agents());
    let met = Meeting::of(2);
    plan.fail_from_now("file.write", ".orc", Verdict::Fail(28));
    job.run_ranks(|session, rank| {
        let mut session = save(session, rank, 1);
        let seen = crate::session::told::watch(&mut session);
        let full = refused(session.wait(1, Level::Global, LONG));
        assert_eq!(full.kind(), ErrorKind::NoSpace);
        session.poll_outcomes();
        assert_eq!(crate::session::told::lost(&seen), [(1, Level::Global)]);
        assert_eq!(session.stats().lost.at(Level::Global, None), 1);
        met.wait();
        if rank == 0 {
            plan.heal();
            replace(&job, &agents);
        }
        met.wait();
        let (closed, told) = session.close_telling(LONG);
        closed.unwrap();
        assert_eq!(crate::session::told::safe(&seen), [(1, Level::Global)]);
        let told = told.concat();
        assert!(
            told.contains("not lost after all, although that was reported: 1"),
            "{told}"
        );
    });
    end(agents);
    job.run(|session, rank| restores(session, rank, 1));
}

// Breaks if: the successor of an agent expects a step at every level; one that goes to level node
// would be reported lost at level global.
fn what_goes_to_one_level_is_flushed_again_there_alone() {
    let scratch = Scratch::new("one-level-again");
    let plan = Arc::new(FaultPlan::new());
    let failpoints = Failpoints::with(Arc::clone(&plan) as Arc<dyn FailpointHook>);
    let job = Job::new(scratch.path(), 2, 1, true).failpoints(failpoints);
    let agents = Mutex::new(job.agents());
    let met = Meeting::of(2);
    plan.fail_from_now("file.write", ".orc", Verdict::Fail(28));
    job.run_ranks(|session, rank| {
        let mut session = session.unwrap();
        let mut state = State::new(rank, 1, 100);
        state.protect(&mut session).unwrap();
        session.checkpoint_at(1, Some(Level::Node)).unwrap();
        let seen = crate::session::told::watch(&mut session);
        refused(session.wait(1, Level::Node, LONG));
        session.poll_outcomes();
        assert_eq!(crate::session::told::lost(&seen), [(1, Level::Node)]);
        met.wait();
        if rank == 0 {
            plan.heal();
            replace(&job, &agents);
        }
        met.wait();
        let (closed, _) = session.close_telling(LONG);
        closed.unwrap();
        assert_eq!(crate::session::told::safe(&seen), [(1, Level::Node)]);
        assert_eq!(crate::session::told::lost(&seen), [(1, Level::Node)]);
    });
    end(agents);
    let containers = disk::names(&scratch.path().join("ost0/job"));
    let there = |name: &String| name.ends_with(".orc");
    assert!(!containers.iter().any(there), "{containers:?}");
    job.run(|session, rank| restores(session, rank, 1));
}

// Breaks if: a run that was without an agent continues from what it knows; what another one
// committed meanwhile, which nobody could tell it, would be superseded and removed.
fn a_run_ends_when_another_one_began_meanwhile() {
    let scratch = Scratch::new("meanwhile");
    let job = Job::new(scratch.path(), 2, 1, false);
    let agents = Mutex::new(job.agents());
    let met = Meeting::of(2);
    job.run_ranks(|session, rank| {
        let mut session = save(session, rank, 1);
        session.wait(1, Level::Global, LONG).unwrap();
        met.wait();
        if rank == 0 {
            replace(&job, &agents);
            job.run_ranks(|other, rank| {
                let mut other = other.unwrap();
                assert_eq!(other.find().unwrap(), 1);
                let mut state = State::empty(rank, 100);
                state.protect(&mut other).unwrap();
                other.restart().unwrap();
                let other = save(Ok(other), rank, 2);
                other.wait(2, Level::Global, LONG).unwrap();
                other.close(LONG).unwrap();
            });
            replace(&job, &agents);
        }
        met.wait();
        let mut state = State::new(rank, 3, 100);
        state.protect(&mut session).unwrap();
        let error = refused(session.checkpoint(3));
        says(&error, ErrorKind::Fenced, &["another run of the job began"]);
        session.abandon();
    });
    stop_all(&agents);
    job.run(|session, rank| restores(session, rank, 2));
}
