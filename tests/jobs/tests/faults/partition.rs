//! A node is cut off: its link goes down in the middle of a replication, on hosts with networks of
//! their own.
//!
//! How: the trial's process is the switch. Each node is a process with a network and a host name of
//! its own, from which its agent and its ranks come; a pair of links leads from it to the switch.
//! The agent of one node stops at the bytes of a replica, tells to whom they go, and continues when
//! that node's link is down.
//!
//! Needs root and `ip`; without them it says so. Nothing is left: the networks are gone with their
//! processes.

use crate::agents::{AGENT_PEERS, agent, agents, all_ended};
use crate::hooks::Named;
use crate::processes::Hub;
use orcheck_io::clock::{Clock, SystemClock};
use orcheck_io::failpoints::Verdict as Do;
use orcheck_jobs::ledger::Story;
use orcheck_jobs::life::{Life, Workload};
use orcheck_jobs::trial::{
    Failure, Outcome, PATIENCE, Table, Verdict, heal, share_among, told, trials,
};
use orcheck_testing::hosts::{hosts_refused, own_host, own_network};
use orcheck_testing::{Child, Ended, Scratch};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Three hosts, a rank on each; an owner waits five seconds for a holder.
const HOSTS: Workload = Workload {
    name: "3 hosts, agents, peers(1)",
    ranks: 3,
    nodes: 3,
    overlapped: false,
    lent: false,
    options: "agent = 'join'\ntimeout_s = 5.0",
    ..AGENT_PEERS
};

const CHECKPOINTS: u64 = 4;
/// The node whose agent tells when it sends.
const OWNER: u32 = 1;
/// Longest time from the cut to the word that the step is lost: a holder's deadline, or that of a
/// silent connection, and some for a busy machine.
const DEADLINE: Duration = Duration::from_secs(45);
/// A step is wanted from now on: the file that rank 0 makes.
const WANTED: &str = "wanted";

fn ip(words: &str) {
    let done = Command::new("ip").args(words.split_whitespace()).output();
    let done = done.unwrap();
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(done.status.success(), "ip {words}: {said}");
}

/// A host with its agent and its rank; it ends when the rank has, with the rank's end.
fn host(
    root: &Path,
    node: u32,
    hub: Hub,
    mut line: UnixStream,
    hook: Option<(Arc<Named>, &Path)>,
) -> i32 {
    own_network().unwrap();
    own_host(&format!("host{node}")).unwrap();
    // The switch connects us meanwhile.
    line.write_all(b"!").unwrap();
    line.read_exact(&mut [0]).unwrap();
    ip("link set lo up");
    ip(&format!("addr add 198.18.7.{}/24 dev v{node}", node + 1));
    ip(&format!("link set v{node} up"));
    let agent = agent(HOSTS, root, node, hook);
    line.write_all(b"!").unwrap();
    line.read_exact(&mut [0]).unwrap();
    let rank = Child::run(|| {
        Life::new(HOSTS, root, 1, CHECKPOINTS).live_one(Box::new(hub), &|number| {
            if node == 0 && number == 2 {
                std::fs::write(root.join(WANTED), b"").unwrap();
            }
        });
        0
    });
    let ended = rank.wait(PATIENCE);
    drop(agent);
    match ended {
        Ended::Exited(code) => code,
        Ended::Signaled(_) => 100,
        Ended::Hung => 99,
    }
}

/// Whether something is so by then.
fn comes(limit: Duration, so: impl Fn() -> bool) -> bool {
    let until = SystemClock.now() + limit;
    while !so() {
        if SystemClock.now() >= until {
            return false;
        }
        std::thread::yield_now();
    }
    true
}

/// Cuts a holder off while it gets a replica; with `again` its link comes up when the step is lost.
fn cut_off(again: bool) -> Result<Verdict, Failure> {
    let scratch = Scratch::in_memory("partition");
    let root = scratch.path();
    let _ = HOSTS.job(root, orcheck_io::failpoints::Failpoints::none());
    own_network().unwrap();
    ip("link set lo up");
    ip("link add br0 type bridge");
    ip("link set br0 up");
    let (mut cut, there) = UnixStream::pair().unwrap();
    cut.set_read_timeout(Some(PATIENCE)).unwrap();
    let hook = {
        let (there, root, count) = (there, root.to_owned(), AtomicU32::new(0));
        let decide = move |key: &crate::hooks::Key, _: &orcheck_io::failpoints::Failpoint| {
            let wanted = key.site == "replicas.send" && root.join(WANTED).exists();
            // The first one asks for room.
            if wanted && count.fetch_add(1, Ordering::SeqCst) == 1 {
                let node: u8 = key.target.strip_prefix('n').unwrap().parse().unwrap();
                (&there).write_all(&[node]).unwrap();
                (&there).read_exact(&mut [0]).unwrap();
            }
            Do::Go
        };
        Named::new(scratch.path(), Box::new(decide))
    };
    let keys = root.join("keys");
    let mut world: Vec<Option<Hub>> = Hub::world(HOSTS.ranks).into_iter().map(Some).collect();
    let mut hosts = Vec::new();
    for node in 0..HOSTS.nodes {
        let (mut line, theirs) = UnixStream::pair().unwrap();
        line.set_read_timeout(Some(PATIENCE)).unwrap();
        let child = Child::run(|| {
            let hub = world[node as usize].take().unwrap();
            world.iter_mut().for_each(|hub| drop(hub.take()));
            let hook = (node == OWNER).then(|| (Arc::clone(&hook), keys.as_path()));
            host(root, node, hub, theirs, hook)
        });
        world[node as usize] = None;
        line.read_exact(&mut [0]).unwrap();
        ip(&format!("link add v{node} type veth peer name p{node}"));
        ip(&format!("link set v{node} netns {}", child.id()));
        ip(&format!("link set p{node} master br0 up"));
        line.write_all(b"!").unwrap();
        line.read_exact(&mut [0]).unwrap();
        hosts.push((child, line));
    }
    for (_, line) in &mut hosts {
        line.write_all(b"!").unwrap();
    }
    let mut holder = [0];
    cut.read_exact(&mut holder).unwrap();
    let [holder] = holder;
    ip(&format!("link set p{holder} down"));
    cut.write_all(b"!").unwrap();
    // Both sides are told, by whom they wait for or by their deadline.
    let begun = SystemClock.now();
    let lost = || !Story::read(root).run(1).errors.is_empty();
    let said = comes(DEADLINE, lost);
    let took = SystemClock.now() - begun;
    if again {
        ip(&format!("link set p{holder} up"));
    }
    let ended: Vec<Ended> = hosts
        .into_iter()
        .map(|(child, _)| child.wait(2 * PATIENCE))
        .collect();
    let story = Story::read(root);
    let fail = |verdict, text: &str| {
        let text = format!("{text}: n{holder} was cut off; {ended:?}; {}", told(&story));
        Err((verdict, text))
    };
    println!(
        "  n{holder} cut off, told after {:.1} s",
        took.as_secs_f64()
    );
    if !said {
        return fail(Verdict::Hang, "nothing was said by the deadline");
    }
    if ended.iter().any(|ended| *ended != Ended::Exited(0)) {
        return fail(Verdict::HardFail, "a rank");
    }
    // From the node that was cut off it is the others that are gone.
    let beyond = |node: &u32| (*node == u32::from(holder)) != (holder == 0);
    // Who waits for a node names it so, and who lost the connection to it otherwise.
    let names: Vec<String> = (0..HOSTS.nodes)
        .filter(beyond)
        .flat_map(|node| [format!("node 'n{node}'"), format!("node n{node} is gone")])
        .collect();
    let named = |text: &String| names.iter().any(|name| text.contains(name));
    let run = story.run(1);
    if !run.errors.iter().chain(&run.warnings).any(named) {
        return fail(Verdict::HardFail, "the node is not named");
    }
    if again {
        let next = agents(HOSTS, root, None);
        heal(&HOSTS, root, 2)?;
        return all_ended(next);
    }
    on_what_is_left(root, holder.into())
}

/// A new run on the other nodes, without the directory of the one that was cut off.
fn on_what_is_left(root: &Path, lost: u32) -> Result<Verdict, Failure> {
    std::fs::remove_dir_all(root.join(format!("local/job/n{lost}"))).unwrap();
    let story = Story::read(root);
    let floor = story.floor(2);
    let left: Vec<u32> = (0..HOSTS.nodes).filter(|&node| node != lost).collect();
    let agents: Vec<Child> = left
        .iter()
        .map(|&node| agent(HOSTS, root, node, None))
        .collect();
    let ended = crate::processes::ends(crate::processes::each_rank(HOSTS.ranks, |rank, mine| {
        let node = left[rank as usize % left.len()];
        Life::new(HOSTS, root, 2, 1).live_on(&format!("n{node}"), mine, &|_| {});
    }));
    let story = Story::read(root);
    let run = story.run(2);
    let fail = |verdict| {
        Err((
            verdict,
            format!("without n{lost}: {ended:?}; {}", told(&story)),
        ))
    };
    if !run.wrong.is_empty() {
        return fail(Verdict::SilentWrong);
    }
    if ended.iter().any(|ended| *ended != Ended::Exited(0)) || !run.errors.is_empty() || !run.closed
    {
        return fail(Verdict::HardFail);
    }
    if floor.is_none() || run.resumed.flatten().map(|origin| origin.step) < floor {
        return fail(Verdict::LostWork);
    }
    all_ended(agents)
}

// Breaks if: an owner waits for a silent holder without a deadline, or the lead for a node that
// says nothing.
pub fn one_node_is_cut_off_in_the_middle_of_a_replication() {
    if let Some(reason) = hosts_refused() {
        println!("  SKIPPED: a node that is cut off ({reason})");
        return;
    }
    let mut table = Table::default();
    let count = trials(2).min(40);
    let outcomes = share_among(2, count, &|n| {
        // Each in a process of its own, whose network goes with it.
        let scratch = Scratch::in_memory("outcome");
        let path = scratch.path().join("outcome");
        let child = Child::run(|| {
            let outcome = Outcome::of(true, cut_off(n.is_multiple_of(2)));
            std::fs::write(&path, outcome.line()).unwrap();
            0
        });
        let ended = child.wait(4 * PATIENCE);
        std::fs::read_to_string(&path).map_or_else(
            |_| Outcome::of(true, Err((Verdict::HardFail, format!("{ended:?}")))),
            |line| Outcome::parse(&line),
        )
    });
    let name = |n: usize| {
        format!(
            "trial {n}, the link {}",
            if n.is_multiple_of(2) {
                "comes back"
            } else {
                "stays down"
            }
        )
    };
    let names: Vec<String> = (0..count).map(name).collect();
    table.add(HOSTS.name, &names, &outcomes, &[Verdict::Pass]);
    table.finish("a node is cut off while it gets a replica");
}
