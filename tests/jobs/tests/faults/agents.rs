//! The engine in agents: ranks die and what they took is made safe all the same; agents die and
//! nothing safe is lost.

use crate::hooks::{Key, Named};
use crate::processes::{CORES, HOSTS, TREE, each_rank, ends};
use crate::signals::moment;
use orcheck_engine::host::agent::Agent;
use orcheck_format::JobName;
use orcheck_io::clock::{Clock, SystemClock};
use orcheck_io::failpoints::{Failpoints, Verdict as Do};
use orcheck_jobs::ledger::{Story, published};
use orcheck_jobs::life::{Life, Workload};
use orcheck_jobs::trial::{
    Failure, Outcome, PATIENCE, Random, Table, Verdict, heal, seed, share_among, told, trials,
};
use orcheck_testing::{Child, Ended, Scratch};
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How long an agent stays without a session: longer than a trial takes between two runs.
const LINGER: Duration = Duration::from_secs(60);
/// Longest time from the last rank's end to the end of what the agents do.
const PROMPTLY: Duration = Duration::from_secs(6);

/// Each rank its own CP-thread, as [`CORES`].
pub const AGENT_CORES: Workload = Workload {
    name: "3 processes, an agent, a CP-thread each",
    options: "scheme = 'core'\npool = '256 KiB'\nagent = 'join'",
    ..CORES
};

/// Two nodes, both levels, as [`HOSTS`].
pub const AGENT_HOSTS: Workload = Workload {
    name: "4 processes on 2 nodes, agents, node + global",
    options: "agent = 'join'",
    ..HOSTS
};

/// With a pool that holds all, and nothing lent: whatever was whole when an agent ended is there in
/// the end.
pub const AGENT_ROOM: Workload = Workload {
    name: "4 processes on 2 nodes, agents, room for all",
    lent: false,
    overlapped: false,
    ..AGENT_HOSTS
};

/// Two nodes, each of which holds the other's replicas.
pub const AGENT_PEERS: Workload = Workload {
    name: "4 processes on 2 nodes, agents, peers(1)",
    losses: 1,
    dirs: 0,
    ..AGENT_HOSTS
};

/// The agents of some nodes pass on what others say.
const AGENT_TREE: Workload = Workload {
    name: "6 processes on 6 nodes, agents, fan-out 2",
    options: "agent = 'join'\nfan_out = 2\npool = '512 KiB'",
    ..TREE
};

/// The same with all that nodes say going over TCP.
const AGENT_TCP: Workload = Workload {
    name: "4 processes on 2 nodes, agents, peers(1) over TCP",
    options: "agent = 'join'\nnet = 'tcp'",
    ..AGENT_PEERS
};

/// Silence of so long may cost steps.
const LOST_AFTER: Duration = Duration::from_secs(15);

const CHECKPOINTS: u64 = 3;
/// Where a victim writes the names of its steps.
const KEYS: &str = "keys";

/// Who is hit.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Victim {
    Rank(u32),
    Agent(u32),
}

/// The agent of a node, in a process of its own.
pub fn agent(
    workload: Workload,
    root: &Path,
    node: u32,
    hook: Option<(Arc<Named>, &Path)>,
) -> Child {
    lingering(workload, root, node, hook, LINGER)
}

/// The same, with another time after which it ends by itself.
pub fn lingering(
    workload: Workload,
    root: &Path,
    node: u32,
    hook: Option<(Arc<Named>, &Path)>,
    linger: Duration,
) -> Child {
    let place = if workload.dirs > 0 { "ost0" } else { "local" };
    let failpoints = || match &hook {
        None => published(root),
        Some((hook, _)) => {
            hook.arm();
            hook.failpoints()
        }
    };
    let ended = || {
        if let Some((hook, keys)) = &hook {
            hook.write(keys);
        }
    };
    agent_at(
        &root.join(place),
        &format!("n{node}"),
        linger,
        failpoints,
        ended,
    )
}

/// An agent in a process of its own; what it does once it has ended in order.
pub fn agent_at(
    place: &Path,
    node: &str,
    linger: Duration,
    failpoints: impl FnOnce() -> Failpoints,
    ended: impl FnOnce(),
) -> Child {
    let (mut here, mut there) = UnixStream::pair().unwrap();
    let child = Child::run(|| {
        let job = JobName::new("job").unwrap();
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let agent = Agent::bind(&job, node, place, clock, failpoints()).unwrap();
        there.write_all(b"!").unwrap();
        agent.run(linger).unwrap();
        ended();
        0
    });
    // It can be reached, or has ended.
    drop(there);
    let _ = here.read(&mut [0]);
    child
}

/// The agents of all nodes; `hit` has the hook.
pub fn agents(
    workload: Workload,
    root: &Path,
    hit: Option<(u32, &Arc<Named>, &Path)>,
) -> Vec<Child> {
    // It makes the directories.
    let _ = workload.job(root, Failpoints::none());
    let hook = |node| {
        hit.filter(|(who, ..)| *who == node)
            .map(|(_, hook, keys)| (Arc::clone(hook), keys))
    };
    (0..workload.nodes)
        .map(|node| agent(workload, root, node, hook(node)))
        .collect()
}

/// After a job that ended in order nothing of an agent may be left.
pub fn all_ended(agents: Vec<Child>) -> Result<Verdict, Failure> {
    for agent in agents {
        match agent.wait(PROMPTLY) {
            Ended::Exited(0) => {}
            ended => return Err((Verdict::Leak, format!("an agent ended with {ended:?}"))),
        }
    }
    Ok(Verdict::Pass)
}

/// Runs the job once, its agents among the processes; how the ranks ended, and the agents, which
/// may serve the next run.
fn run(
    workload: Workload,
    root: &Path,
    victim: Victim,
    hook: &Arc<Named>,
    keys: &Path,
) -> (Vec<Ended>, Vec<Child>, bool) {
    let hit = match victim {
        Victim::Agent(node) => Some((node, hook, keys)),
        Victim::Rank(_) => None,
    };
    let mut agents = agents(workload, root, hit);
    let children = each_rank(workload.ranks, |rank, mine| {
        let life = Life::new(workload, root, 1, CHECKPOINTS);
        let hit = victim == Victim::Rank(rank);
        // Level process outlives the ranks, and not the agents.
        let life = match victim {
            Victim::Rank(_) => life.sealed(),
            Victim::Agent(_) => life,
        };
        let life = if hit {
            life.failpoints(hook.failpoints())
        } else {
            life
        };
        let arm = |number| {
            if hit && number == 2 {
                hook.arm();
            }
        };
        life.live_one(mine, &arm);
        if hit {
            hook.write(keys);
        }
    });
    let Victim::Agent(node) = victim else {
        return (ends(children), agents, false);
    };
    // Another one takes the place of the one that is killed.
    let over = AtomicBool::new(false);
    let hit = agents.remove(node as usize);
    let (ended, hit, struck) = std::thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            while !over.load(Ordering::Acquire) {
                if hit.has_ended() {
                    return match hit.wait(PROMPTLY) {
                        Ended::Signaled(9) => (agent(workload, root, node, None), true),
                        // It ended in order, and so did the job.
                        _ => (Child::run(|| 0), false),
                    };
                }
                std::thread::park_timeout(Duration::from_millis(2));
            }
            (hit, false)
        });
        let ended = ends(children);
        over.store(true, Ordering::Release);
        let (hit, struck) = watcher.join().unwrap();
        (ended, hit, struck)
    });
    agents.insert(node as usize, hit);
    (ended, agents, struck)
}

fn keys_of(workload: Workload, victim: Victim) -> Vec<Key> {
    let mut known = BTreeSet::new();
    let mut keys = Vec::new();
    for _ in 0..2 {
        let scratch = Scratch::in_memory("agents");
        let path = scratch.path().join(KEYS);
        let hook = Named::recorder(scratch.path());
        let (ended, agents, _) = run(workload, scratch.path(), victim, &hook, &path);
        let story = Story::read(scratch.path());
        assert!(
            ended.iter().all(|end| *end == Ended::Exited(0)) && story.run(1).closed,
            "{ended:?} {}",
            told(&story)
        );
        all_ended(agents).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        let fresh = text
            .lines()
            .map(Key::parse)
            .filter(|key| known.insert(key.clone()));
        keys.extend(fresh);
    }
    keys
}

/// What agents say to each other and to ranks in a job without faults, and its restart: each word
/// is a step at which the one is killed who says it, and one at which the one is killed who has
/// heard it.
const SAID: [&str; 13] = [
    "vote",
    "record",
    "recorded",
    "committed",
    "goodbye",
    "reserve",
    "granted",
    "piece",
    "data",
    "credit",
    "finish",
    "held",
    "done",
];
const HEARD: [&str; 9] = [
    "yield", "adopt", "lock", "door", "link", "begin", "leave", "sealed", "hello",
];

/// The name of the message that a step is about.
fn message(key: &Key) -> Option<(&str, &str)> {
    let (_, rest) = key.target.split_once("unix:@")?;
    let (_, name) = rest.split_once(' ')?;
    key.site
        .starts_with("net.")
        .then_some((key.site.as_str(), name))
}

fn trial(workload: Workload, victim: Victim, key: &Key) -> Outcome {
    let scratch = Scratch::in_memory("agents");
    let root = scratch.path();
    let hook = Named::at(root, key.clone(), Do::Kill);
    hit(workload, root, victim, &hook)
}

/// One trial in these directories, with a hook that kills the victim.
pub fn hit(workload: Workload, root: &Path, victim: Victim, hook: &Arc<Named>) -> Outcome {
    let keys = root.join(KEYS);
    let (ended, mut agents, replaced) = run(workload, root, victim, hook, &keys);
    let mut struck = replaced
        || matches!(victim, Victim::Rank(rank) if ended[rank as usize] == Ended::Signaled(9));
    let story = Story::read(root);
    let closed = story.run(1).closed;
    // The last one was safe: some agents may have ended in order, whatever became of the others.
    let closing = !closed && story.newest_acked(u64::MAX, None) == Some(CHECKPOINTS);
    for node in 0..workload.nodes {
        let hit = victim == Victim::Agent(node);
        // A job that was ended in order needs no agent any more; the next run gets new ones.
        if !closed && !closing && (!hit || replaced) {
            continue;
        }
        let was = agents.remove(node as usize).wait(PROMPTLY);
        struck |= hit && was == Ended::Signaled(9);
        agents.insert(node as usize, agent(workload, root, node, None));
    }
    let result = judge(&workload, root, victim, &ended);
    let result = result.and_then(|()| goes_on(&workload, &story, replaced && !closed));
    let result = result.and_then(|()| all_ended(agents));
    Outcome::of(struck, result)
}

/// Whether a run with room for all continued although an agent ended.
fn goes_on(workload: &Workload, story: &Story, ended_early: bool) -> Result<(), Failure> {
    let while_opening = |error: &String| error.starts_with("open ");
    if workload.name != AGENT_ROOM.name
        || !ended_early
        || story.run(1).errors.iter().any(while_opening)
        // Safe at one level, and lost at the other: it is reported, and nothing is gone.
        || story.newest_acked(u64::MAX, None) == Some(CHECKPOINTS)
    {
        return Ok(());
    }
    Err((
        Verdict::LostWork,
        format!("it did not continue; {}", told(story)),
    ))
}

fn judge(workload: &Workload, root: &Path, victim: Victim, ended: &[Ended]) -> Result<(), Failure> {
    let story = Story::read(root);
    for (rank, ended) in (0u32..).zip(ended) {
        let verdict = match ended {
            Ended::Exited(0) => continue,
            Ended::Signaled(9) if victim == Victim::Rank(rank) => continue,
            Ended::Hung => Verdict::Hang,
            _ => Verdict::HardFail,
        };
        return Err((
            verdict,
            format!("rank {rank} ended with {ended:?}; {}", told(&story)),
        ));
    }
    heal(workload, root, 2).map(|_| ())
}

// Breaks if: an agent does not give the locks of a killed run back, or its threads wait for a rank
// that is gone.
pub fn ranks_and_agents_are_killed_at_each_of_their_steps() {
    let mut table = Table::default();
    let mut words_of_agents = BTreeSet::new();
    let (part, third) = if trials(0) > 0 { (1, 1) } else { (48, 3) };
    for (workload, victim, every) in [
        (AGENT_CORES, Victim::Rank(0), third),
        (AGENT_CORES, Victim::Agent(0), part),
        (AGENT_HOSTS, Victim::Rank(2), third),
        (AGENT_HOSTS, Victim::Rank(0), third),
        (AGENT_HOSTS, Victim::Agent(0), part),
        (AGENT_HOSTS, Victim::Agent(1), part),
        (AGENT_ROOM, Victim::Agent(0), (part / 2).max(1)),
        (AGENT_ROOM, Victim::Agent(1), (part / 2).max(1)),
        (AGENT_PEERS, Victim::Agent(0), part),
        (AGENT_PEERS, Victim::Agent(1), part),
        (AGENT_TREE, Victim::Agent(1), 4 * part),
    ] {
        let keys = keys_of(workload, victim);
        if matches!(victim, Victim::Agent(_)) {
            let words = keys.iter().filter_map(message);
            words_of_agents.extend(words.map(|(site, name)| format!("{site} {name}")));
        }
        let from = seed() as usize % every;
        let keys: Vec<&Key> = keys.iter().skip(from).step_by(every).collect();
        // They wait for each other more than they compute.
        let outcomes = share_among(10, keys.len(), &|n| {
            let outcome = trial(workload, victim, keys[n]);
            // Threads make a step come in one run and not in the next.
            if outcome.struck || outcome.verdict != Verdict::Pass {
                return outcome;
            }
            trial(workload, victim, keys[n])
        });
        let names = keys.iter().map(|key| key.to_string().replace('\t', " "));
        let who = match victim {
            Victim::Rank(rank) => format!("rank {rank}"),
            Victim::Agent(node) => format!("agent {node}"),
        };
        let names: Vec<String> = names.collect();
        let row = format!("{}: {who}", workload.name);
        table.add(&row, &names, &outcomes, &[Verdict::Pass]);
    }
    // Breaks if: a message is sent or handed out without a step of its own.
    let to_ranks = ["done", "data"];
    let heard = HEARD.iter().chain(&SAID);
    let heard = heard.filter(|name| !to_ranks.contains(name));
    let steps = SAID.iter().map(|name| format!("net.send {name}"));
    for step in steps.chain(heard.map(|name| format!("net.receive {name}"))) {
        assert!(
            words_of_agents.contains(&step),
            "no agent is killed at: {step}"
        );
    }
    table.finish("a rank or an agent is killed at each of its steps");
}

/// All ranks are killed at once at a random moment; what all of them had staged must be committed
/// by the agents.
fn killed_together(workload: Workload, random: &mut Random) -> Result<Verdict, Failure> {
    let scratch = Scratch::in_memory("agents");
    let root = scratch.path();
    let agents = agents(workload, root, None);
    let mut children = each_rank(workload.ranks, |_, mine| {
        // The next run must resume from what was acknowledged at level process, or from something
        // newer.
        let life = Life::new(workload, root, 1, 200).sealed();
        life.live_one(mine, &|_| {});
    });
    let first = children.remove(0);
    // Killed when that time is over; the others at once after it.
    let ended = first.wait(Duration::from_micros(20_000 + random.below(150_000)));
    children.iter().for_each(Child::kill);
    ends(children);
    if ended != Ended::Hung {
        return Err((
            Verdict::HardFail,
            format!("rank 0 ended with {ended:?} before it was killed"),
        ));
    }
    heal(&workload, root, 2)?;
    all_ended(agents)
}

pub fn all_ranks_are_killed_at_random_moments() {
    let mut table = Table::default();
    let seed = seed();
    for workload in [AGENT_CORES, AGENT_HOSTS, AGENT_PEERS] {
        let count = trials(20);
        let outcomes = share_among(4, count, &|n| {
            let mut random = Random::new(seed ^ n as u64);
            Outcome::of(true, killed_together(workload, &mut random))
        });
        let names: Vec<String> = (0..count)
            .map(|n| format!("seed {seed}, trial {n}"))
            .collect();
        table.add(workload.name, &names, &outcomes, &[Verdict::Pass]);
    }
    table.finish("all ranks are killed at once, their agents live on");
}

/// An agent that is stopped for `length`, at a moment that nobody chose.
fn stands_still(
    workload: Workload,
    random: &mut Random,
    length: Duration,
) -> Result<Verdict, Failure> {
    let scratch = Scratch::in_memory("agents");
    let root = scratch.path();
    let agents = agents(workload, root, None);
    let victim = &agents[random.below(u64::from(workload.nodes)) as usize];
    let (mut here, there) = UnixStream::pair().unwrap();
    here.set_read_timeout(Some(PATIENCE)).unwrap();
    let children = each_rank(workload.ranks, |rank, mine| {
        Life::new(workload, root, 1, 40).live_one(mine, &|number| {
            if (rank, number) == (0, 2) {
                (&there).write_all(b"!").unwrap();
            }
        });
    });
    here.read_exact(&mut [0]).unwrap();
    moment(Duration::from_micros(random.below(30_000)));
    victim.signal(libc::SIGSTOP);
    moment(length);
    victim.signal(libc::SIGCONT);
    for (rank, ended) in ends(children).into_iter().enumerate() {
        let verdict = match ended {
            Ended::Exited(0) => continue,
            Ended::Hung => Verdict::Hang,
            _ => Verdict::HardFail,
        };
        return Err((verdict, format!("rank {rank} ended with {ended:?}")));
    }
    let story = Story::read(root);
    let run = story.run(1);
    if length >= LOST_AFTER && !run.errors.is_empty() {
        // Steps may be lost, and are reported; what was safe before is there, and the next run
        // continues from it.
        if run.closed {
            all_ended(agents)?;
        } else {
            drop(agents);
        }
        let next = self::agents(workload, root, None);
        heal(&workload, root, 2)?;
        return all_ended(next);
    }
    if !run.closed || !run.errors.is_empty() || story.newest_acked(u64::MAX, None) != Some(40) {
        return Err((Verdict::LostWork, told(&story)));
    }
    all_ended(agents)
}

/// Trials with agents that stand still for `length`.
fn stand_still(table: &mut Table, count: usize, length: Duration) {
    let seed = seed();
    for workload in [AGENT_CORES, AGENT_HOSTS, AGENT_PEERS, AGENT_TCP] {
        let outcomes = share_among(4, count, &|n| {
            let mut random = Random::new(seed ^ n as u64);
            Outcome::of(true, stands_still(workload, &mut random, length))
        });
        let names: Vec<String> = (0..count)
            .map(|n| format!("seed {seed}, trial {n}"))
            .collect();
        let row = format!("{}: {:.1} s", workload.name, length.as_secs_f64());
        table.add(&row, &names, &outcomes, &[Verdict::Pass]);
    }
}

// Breaks if: a silent agent counts as a dead one, or something waits for it without looking again.
pub fn one_agent_stands_still_for_a_while() {
    let mut table = Table::default();
    stand_still(&mut table, trials(4), Duration::from_millis(1500));
    // Longer than any connection and any wait has patience: in the long runs alone.
    if trials(0) > 0 {
        stand_still(&mut table, trials(0).min(8), Duration::from_secs(30));
    }
    table.finish("an agent is stopped");
}
