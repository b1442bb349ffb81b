//! Restarts from memory that an agent keeps of a run whose ranks are gone.

use crate::session::disk;
use crate::session::elastic::parts::{Field, cut};
use crate::session::hooks::{Meeting, Reads};
use crate::session::mistakes::refused;
use crate::support::{Job, State, wait_for_both_levels};
use crate::trial::{Random, seed};
use crate::{Test, session_tests};
use orcheck_client::Session;
use orcheck_engine::host::agent::{KEY, Stop, address, status};
use orcheck_format::wire::{AgentMessage, KeptMap, Message};
use orcheck_format::{JobName, Level, Result};
use orcheck_io::failpoints::{FailpointHook, Failpoints, Verdict};
use orcheck_net::{Address, Conn};
use orcheck_pool::{Pool, read_sealed};
use orcheck_testing::{FaultPlan, Scratch};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

/// What is tested here.
pub const TESTS: &[Test] = session_tests![
    a_restart_takes_all_data_from_memory,
    memory_that_was_overwritten_is_not_taken,
    a_checkpoint_that_was_begun_in_the_same_memory_costs_no_byte,
    a_checkpoint_that_was_never_committed_is_not_taken_from_memory,
    other_ranks_take_their_parts_from_memory,
    a_run_that_dies_before_it_restarts_leaves_the_memory,
    memory_is_given_back_when_the_next_run_needs_it_no_more,
    a_pool_that_has_room_only_without_the_memory_gets_it,
    without_the_agent_everything_comes_from_files,
    ranks_that_continue_with_another_agent_keep_their_memory,
];

const LONG: Duration = Duration::from_secs(20);
/// About 2.6 MB for each rank.
const SCALE: usize = 2000;

type Agents = Vec<(Stop, JoinHandle<Result<()>>)>;

fn end(agents: Agents) {
    for (stop, agent) in agents {
        stop.stop();
        agent.join().unwrap().unwrap();
    }
}

/// Two ranks on one node, with both levels and room for two snapshots.
fn job(root: &Path) -> Job {
    Job::new(root, 2, 1, true).pool("16 MiB")
}

#[allow(clippy::disallowed_methods)]
fn encrypted(job: Job, root: &Path) -> Job {
    let path = root.join("key");
    std::fs::write(&path, "6".repeat(64)).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    job.with("encrypt = 'aes-256-gcm'")
        .with(&format!("encrypt_key = 'file:{}'", path.display()))
}

fn save(session: &mut Session, rank: u32, step: u64) {
    let mut state = State::new(rank, step, SCALE);
    state.protect(session).unwrap();
    session.checkpoint(step).unwrap();
    wait_for_both_levels(session, step);
}

/// Takes these steps, each safe at both levels, and ends without a word.
fn run_and_die(job: &Job, steps: &[u64]) {
    job.run_ranks(|session, rank| {
        let mut session = session.unwrap();
        for &step in steps {
            save(&mut session, rank, step);
        }
        session.abandon();
    });
}

fn state_bytes(rank: u32) -> u64 {
    let state = State::new(rank, 0, SCALE);
    (state.u.len() + state.v.len() + state.small.len()) as u64
}

/// Restarts from this step; returns how many bytes of each rank came from memory.
fn restart(job: &Job, step: u64) -> Vec<u64> {
    job.run_ranks(|session, rank| {
        let mut session = session.unwrap();
        assert_eq!(session.find().unwrap(), step);
        State::restores(&mut session, rank, step, SCALE);
        let taken = session.stats().memory_bytes;
        session.abandon();
        taken
    })
}

fn agent_of(root: &Path) -> Address {
    address(&JobName::new("job").unwrap(), "n0", &root.join("ost0"))
}

/// The memory that the agent keeps, and what it says about it.
fn recall(root: &Path) -> Option<(OwnedFd, KeptMap)> {
    let at = agent_of(root);
    let mut conn = Conn::connect(&at, &KEY, &Failpoints::none(), LONG).unwrap();
    let job = JobName::new("job").unwrap();
    let ask = Message::Agent(AgentMessage::Recall { job });
    conn.send(&ask, LONG).unwrap();
    match conn.receive(LONG).unwrap() {
        Message::Agent(AgentMessage::Kept) => {}
        Message::Agent(AgentMessage::Done) => return None,
        other => panic!("{other:?}"),
    }
    let memory = conn.receive_fd(LONG).unwrap();
    let map = read_sealed(&conn.receive_fd(LONG).unwrap(), KeptMap::MAX_BYTES).unwrap();
    let map = KeptMap::decode(&map, env!("CARGO_PKG_VERSION")).unwrap();
    Some((memory, map))
}

/// Waits until the agent has noticed that no rank is left.
fn until_over(root: &Path) {
    orcheck_engine::host::agent::finish(&agent_of(root), LONG, LONG).unwrap();
}

fn kept_bytes(root: &Path) -> u64 {
    let told = status(&agent_of(root), LONG).unwrap();
    told[0]["kept_bytes"].parse().unwrap()
}

// Breaks if: nothing is kept, or what is kept cannot be found by what the manifest says.
fn a_restart_takes_all_data_from_memory() {
    for (number, lines) in [
        "",
        "compress = 'zstd'",
        "encrypt",
        "incremental = 'auto'",
        "mode = 'traditional'",
        "scheme = 'core'",
    ]
    .into_iter()
    .enumerate()
    {
        let scratch = Scratch::new(&format!("kept-{number}"));
        let root = scratch.path();
        let plain = match lines {
            "encrypt" => encrypted(job(root), root),
            lines => job(root).with(lines),
        };
        let agents = plain.agents();
        run_and_die(&plain, &[1, 2]);
        let reads = Arc::new(Reads::default());
        let next = plain.clone().failpoints(reads.failpoints());
        let taken = restart(&next, 2);
        assert_eq!(taken, [state_bytes(0), state_bytes(1)], "{lines}");
        assert_eq!(reads.of_each_byte_once(), 0, "{lines}");
        end(agents);
    }
}

// Breaks if: bytes are taken without a look at what arrived.
fn memory_that_was_overwritten_is_not_taken() {
    for secret in [false, true] {
        let scratch = Scratch::new("overwritten");
        let root = scratch.path();
        let job = match secret {
            true => encrypted(job(root), root),
            false => job(root),
        };
        let agents = job.agents();
        run_and_die(&job, &[1]);
        until_over(root);
        let (memory, map) = recall(root).unwrap();
        let pool = Pool::attach(memory).unwrap();
        let pieces: Vec<_> = map.snapshots.iter().flat_map(|one| &one.pieces).collect();
        assert!(pieces.len() > 20);
        let mut flipped = 0;
        for piece in pieces.iter().step_by(3) {
            let span = pool.span(piece.pool_at_bytes, piece.len_bytes).unwrap();
            let at = span.sub(span.len_bytes() / 2, 1);
            let byte = orcheck_io::memory::copy_out(at)[0];
            orcheck_io::memory::fill_span(at, &[byte ^ 1]);
            flipped += piece.len_bytes;
        }
        let taken: u64 = restart(&job, 1).into_iter().sum();
        assert_eq!(taken + flipped, state_bytes(0) + state_bytes(1));
        end(agents);
    }
}

// Breaks if: what a later checkpoint staged in the same chunks passes for the earlier one.
fn a_checkpoint_that_was_begun_in_the_same_memory_costs_no_byte() {
    let scratch = Scratch::new("begun");
    let plan = Arc::new(FaultPlan::new());
    let failpoints = Failpoints::with(Arc::clone(&plan) as Arc<dyn FailpointHook>);
    let job = job(scratch.path()).failpoints(failpoints);
    let agents = job.agents();
    job.run_ranks(|session, rank| {
        let mut session = session.unwrap();
        save(&mut session, rank, 1);
        // As if it were killed when all is staged, and not sealed yet.
        plan.fail_from_now("stage.seal", "", Verdict::Fail(5));
        let mut state = State::new(rank, 2, SCALE);
        state.protect(&mut session).unwrap();
        session.checkpoint(2).unwrap();
        refused(session.wait(2, Level::Global, LONG));
        session.abandon();
    });
    plan.heal();
    let taken: u64 = restart(&job, 1).into_iter().sum();
    assert!(taken < state_bytes(0), "the second one lay elsewhere");
    end(agents);
}

// Breaks if: a snapshot counts whose step was never committed: where the manifest has no checksum,
// nothing else would notice.
fn a_checkpoint_that_was_never_committed_is_not_taken_from_memory() {
    let scratch = Scratch::new("uncommitted");
    let plan = Arc::new(FaultPlan::new());
    let failpoints = Failpoints::with(Arc::clone(&plan) as Arc<dyn FailpointHook>);
    let job = encrypted(job(scratch.path()), scratch.path()).failpoints(failpoints);
    let agents = job.agents();
    job.run_ranks(|session, rank| {
        let mut session = session.unwrap();
        save(&mut session, rank, 1);
        plan.fail_from_now("", ".commit", Verdict::Fail(5));
        let mut state = State::new(rank, 2, SCALE);
        state.protect(&mut session).unwrap();
        session.checkpoint(2).unwrap();
        refused(session.wait(2, Level::Global, LONG));
        session.abandon();
    });
    until_over(scratch.path());
    let (_, map) = recall(scratch.path()).unwrap();
    // Step 2 is there, whole, and no record names it.
    assert!(map.snapshots.iter().any(|one| one.rank.0 == 0));
    plan.heal();
    restart(&job, 1);
    end(agents);
}

// Breaks if: only a rank's own snapshot is looked for in memory.
fn other_ranks_take_their_parts_from_memory() {
    let mut random = Random::new(seed() ^ 0x23);
    let global = &[400, 300][..];
    let scratch = Scratch::new("kept-parts");
    let first = Job::new(scratch.path(), 4, 1, false);
    let agents = first.agents();
    let parts = cut(global, 4, &mut random);
    first.run_ranks(|session, rank| {
        let mut session = session.unwrap();
        let mut field = Field::new(global, &parts[rank as usize], 0).fill(1);
        field.protect(&mut session, 0);
        session.checkpoint(1).unwrap();
        session.wait(1, Level::Global, LONG).unwrap();
        session.abandon();
    });
    let reads = Arc::new(Reads::default());
    let second = Job::new(scratch.path(), 3, 1, false).failpoints(reads.failpoints());
    let parts = cut(global, 3, &mut random);
    let taken = second.run_ranks(|session, rank| {
        let mut session = session.unwrap();
        assert_eq!(session.find().unwrap(), 1);
        let mut field = Field::new(global, &parts[rank as usize], 0);
        field.protect(&mut session, 0);
        assert_eq!(session.restart().unwrap(), 1);
        assert!(field.is(1), "rank {rank}");
        let taken = session.stats().memory_bytes;
        session.abandon();
        taken
    });
    assert!(taken.iter().sum::<u64>() >= 400 * 300 * 8, "{taken:?}");
    assert_eq!(reads.of_each_byte_once(), 0);
    end(agents);
}

// Breaks if: the memory goes with the first run that asks for it, or that opens a session.
fn a_run_that_dies_before_it_restarts_leaves_the_memory() {
    let scratch = Scratch::new("again");
    let job = job(scratch.path());
    let agents = job.agents();
    run_and_die(&job, &[1]);
    job.run_ranks(|session, _| {
        let mut session = session.unwrap();
        assert_eq!(session.find().unwrap(), 1);
        session.abandon();
    });
    assert_eq!(restart(&job, 1), [state_bytes(0), state_bytes(1)]);
    // It has restarted, and left nothing itself.
    assert_eq!(restart(&job, 1), [0, 0]);
    end(agents);
}

// Breaks if: the memory stays while the next run computes, or the whole pool is kept.
fn memory_is_given_back_when_the_next_run_needs_it_no_more() {
    let scratch = Scratch::new("given-back");
    let root = scratch.path();
    for begins_afresh in [false, true] {
        let job = job(root).pool("64 MiB");
        let agents = job.agents();
        run_and_die(&job.clone().with("start = 'fresh'"), &[1]);
        until_over(root);
        let all = state_bytes(0) + state_bytes(1);
        let kept = kept_bytes(root);
        assert!((all..all + (1 << 20)).contains(&kept), "{kept} of {all}");
        let (memory, _) = recall(root).unwrap();
        assert!(disk::taken_bytes(&memory) < kept + (3 << 20));
        let line = if begins_afresh { "start = 'fresh'" } else { "" };
        job.clone().with(line).run_ranks(|session, rank| {
            let mut session = session.unwrap();
            if begins_afresh {
                session.find().unwrap_err();
            } else {
                assert_eq!(session.find().unwrap(), 1);
                State::restores(&mut session, rank, 1, SCALE);
            }
            // The lowest rank says so, after all have what they need.
            crate::session::outlive::until(|| kept_bytes(root) == 0);
            session.abandon();
        });
        assert!(recall(root).is_none());
        // It counts as given back a moment before the kernel has it; the head of the pool is left.
        crate::session::outlive::until(|| disk::taken_bytes(&memory) < 3 << 20);
        end(agents);
    }
}

// Breaks if: a pool is refused because of memory that nobody needs to keep.
fn a_pool_that_has_room_only_without_the_memory_gets_it() {
    let scratch = Scratch::new("no-room");
    let root = scratch.path();
    let first = job(root);
    let agents = first.agents();
    run_and_die(&first, &[1]);
    until_over(root);
    assert!(kept_bytes(root) > 0);
    let most = Job::new(root, 2, 1, true).pool("900 TiB");
    most.run_ranks(|session, _| refused(session.map(|_| ())));
    assert_eq!(
        kept_bytes(root),
        0,
        "it was given back before the pool was refused"
    );
    end(agents);
}

fn without_the_agent_everything_comes_from_files() {
    let scratch = Scratch::new("no-agent");
    let job = job(scratch.path());
    let agents = job.agents();
    run_and_die(&job, &[1]);
    end(agents);
    let agents = job.agents();
    assert_eq!(restart(&job, 1), [0, 0]);
    end(agents);
}

// Breaks if: ranks that have closed their connections to the agent count as dead.
fn ranks_that_continue_with_another_agent_keep_their_memory() {
    let scratch = Scratch::new("live-on");
    let plan = Arc::new(FaultPlan::new());
    let failpoints = Failpoints::with(Arc::clone(&plan) as Arc<dyn FailpointHook>);
    let job = Job::new(scratch.path(), 4, 1, true)
        .nodes(2)
        .failpoints(failpoints);
    let agents = Mutex::new(job.agents());
    let met = Meeting::of(4);
    job.run_ranks(|session, rank| {
        let mut session = session.unwrap();
        // Something that an agent would keep.
        save_small(&mut session, rank, 1);
        wait_for_both_levels(&mut session, 1);
        met.wait();
        if rank == 0 {
            plan.fail_from_now("file.write", ".orc", Verdict::Fail(28));
        }
        met.wait();
        save_small(&mut session, rank, 2);
        refused(session.wait(2, Level::Global, LONG));
        met.wait();
        if rank == 0 {
            plan.heal();
            // That of the other node lives, and its session ends all the same.
            let (stop, agent) = agents.lock().unwrap().remove(0);
            stop.stop();
            agent.join().unwrap().unwrap();
            agents.lock().unwrap().extend(job.agents());
        }
        met.wait();
        session.close(LONG).unwrap();
    });
    for (_, agent) in agents.into_inner().unwrap() {
        agent.join().unwrap().unwrap();
    }
    job.run(|session, rank| {
        let mut session = session.unwrap();
        assert_eq!(session.find().unwrap(), 2);
        State::restores(&mut session, rank, 2, 100);
        session.close(LONG).unwrap();
    });
}

fn save_small(session: &mut Session, rank: u32, step: u64) {
    let mut state = State::new(rank, step, 100);
    state.protect(session).unwrap();
    session.checkpoint(step).unwrap();
}
