//! What is left of a job with agents when their time is over, however the job ended: no process, no
//! socket, no memory, no temporary file.
//!
//! How: the agents are processes with a short time to linger. A process with anything of the job
//! has descriptors below its directory: the locks, the directories themselves, the files that are
//! written. All processes of the machine are looked at.

use crate::agents::{AGENT_CORES, AGENT_HOSTS, AGENT_PEERS, lingering};
use crate::processes::{each_rank, ends};
use crate::signals::moment;
use orcheck_engine::host::agent::address;
use orcheck_format::JobName;
use orcheck_format::disk::FileName;
use orcheck_io::failpoints::Failpoints;
use orcheck_jobs::ledger::Story;
use orcheck_jobs::life::{Life, Workload, names};
use orcheck_jobs::records::sockets_of;
use orcheck_jobs::trial::{
    Failure, Outcome, PATIENCE, Random, Table, Verdict, heal, seed, share_among, told, trials,
};
use orcheck_testing::{Child, Ended, Scratch};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// How long an agent stays without a session: longer than the ranks take to come.
const LINGER: Duration = Duration::from_secs(2);
/// Longest time from the last rank's end to that of the agents: they finish what was left with
/// them, and linger.
const OVER: Duration = Duration::from_secs(8);
/// A round takes a quarter of a minute, whatever the machine does.
const MOST_ROUNDS: usize = 40;
/// Checkpoints of a run that does not come to its end.
const LONG_RUN: u64 = 200;
const KILL: i32 = 9;
const STOP: i32 = 19;
const CONTINUE: i32 = 18;

/// How a job ends.
#[derive(Debug, Clone, Copy, PartialEq)]
enum End {
    InOrder,
    NeverBegun,
    AllRanksKilled,
    OneRankKilled,
    OneAgentKilled,
    OneAgentStopped,
    OneRankStoppedAndKilled,
}

const ENDS: [End; 7] = [
    End::InOrder,
    End::NeverBegun,
    End::AllRanksKilled,
    End::OneRankKilled,
    End::OneAgentKilled,
    End::OneAgentStopped,
    End::OneRankStoppedAndKilled,
];

fn one(workload: Workload, end: End, random: &mut Random) -> Result<Verdict, Failure> {
    let scratch = Scratch::in_memory("leftover");
    let root = scratch.path();
    // It makes the directories.
    let _ = workload.job(root, Failpoints::none());
    let agents: Vec<Child> = (0..workload.nodes)
        .map(|node| lingering(workload, root, node, None, LINGER))
        .collect();
    let mut killed_agent = None;
    if end != End::NeverBegun {
        let (mut here, there) = UnixStream::pair().unwrap();
        here.set_read_timeout(Some(PATIENCE)).unwrap();
        // Those that are not hit take a few and end in order.
        let many = match end {
            End::InOrder | End::OneAgentStopped => 5,
            // The ranks live on, and each checkpoint is an error; only the first one waits for
            // another agent.
            End::OneAgentKilled => 30,
            _ => LONG_RUN,
        };
        let ranks = each_rank(workload.ranks, |rank, mine| {
            Life::new(workload, root, 1, many).live_one(mine, &|number| {
                if (rank, number) == (0, 2) {
                    (&there).write_all(b"!").unwrap();
                }
            });
        });
        here.read_exact(&mut [0]).unwrap();
        // What is looked for below can be seen. Breaks if: the look finds nothing at all.
        let seen = users_of(root).len() >= 2 && !sockets_of_agents(&workload, root).is_empty();
        if many == LONG_RUN && !seen {
            let text = "nothing of a job that runs is found".to_owned();
            return Err((Verdict::HardFail, text));
        }
        moment(Duration::from_micros(random.below(30_000)));
        let rank = &ranks[random.below(u64::from(workload.ranks)) as usize];
        let node = random.below(u64::from(workload.nodes)) as usize;
        match end {
            End::AllRanksKilled => ranks.iter().for_each(Child::kill),
            End::OneRankKilled => rank.kill(),
            End::OneRankStoppedAndKilled => {
                rank.signal(STOP);
                moment(Duration::from_millis(100));
                rank.signal(KILL);
            }
            End::OneAgentKilled => {
                agents[node].kill();
                killed_agent = Some(node);
            }
            End::OneAgentStopped => {
                agents[node].signal(STOP);
                moment(Duration::from_millis(500));
                agents[node].signal(CONTINUE);
            }
            End::InOrder | End::NeverBegun => {}
        }
        if ends(ranks).contains(&Ended::Hung) {
            return Err((Verdict::Hang, told(&Story::read(root))));
        }
    }
    for (node, agent) in agents.into_iter().enumerate() {
        match agent.wait(OVER) {
            Ended::Exited(0) => {}
            Ended::Signaled(9) if killed_agent == Some(node) => {}
            ended => {
                let text = format!("agent {node} ended with {ended:?}");
                return Err((
                    Verdict::Leak,
                    format!("{text}; {}", told(&Story::read(root))),
                ));
            }
        }
    }
    let mut left = users_of(root);
    left.extend(sockets_of(&workload, root));
    left.extend(sockets_of_agents(&workload, root));
    if killed_agent.is_none() {
        // Who is killed cannot clear up; what its files are is for the next run.
        left.extend(temporaries(&workload, root));
    }
    if !left.is_empty() {
        let text = format!("{}; {}", left.join(", "), told(&Story::read(root)));
        return Err((Verdict::Leak, text));
    }
    if end == End::NeverBegun {
        return Ok(Verdict::Pass);
    }
    let agents: Vec<Child> = (0..workload.nodes)
        .map(|node| lingering(workload, root, node, None, LINGER))
        .collect();
    // It looks for everything that should not be there.
    heal(&workload, root, 2)?;
    for agent in agents {
        let ended = agent.wait(OVER);
        if ended != Ended::Exited(0) {
            return Err((Verdict::Leak, format!("a later agent ended with {ended:?}")));
        }
    }
    let left = [users_of(root), sockets_of_agents(&workload, root)].concat();
    if left.is_empty() {
        Ok(Verdict::Pass)
    } else {
        Err((Verdict::Leak, left.join(", ")))
    }
}

/// Processes with something below this directory, other than this one and who made it.
fn users_of(root: &Path) -> Vec<String> {
    let pids = names(Path::new("/proc"));
    let pids = pids.iter().filter_map(|name| name.parse::<u32>().ok());
    let others = pids.filter(|&pid| pid != std::process::id());
    let uses = |pid: &u32| {
        let folder = format!("/proc/{pid}/fd");
        // One that ended meanwhile has nothing.
        let entries = std::fs::read_dir(&folder).into_iter().flatten().flatten();
        let mut links = entries.filter_map(|entry| std::fs::read_link(entry.path()).ok());
        links.any(|to| to.starts_with(root))
    };
    others
        .filter(uses)
        .map(|pid| format!("process {pid} has something open"))
        .collect()
}

/// Sockets at which the agents of the job are reached.
fn sockets_of_agents(workload: &Workload, root: &Path) -> Vec<String> {
    let table = std::fs::read_to_string("/proc/net/unix").unwrap();
    let job = JobName::new("job").unwrap();
    let place = if workload.dirs > 0 { "ost0" } else { "local" };
    (0..workload.nodes)
        .map(|node| address(&job, &format!("n{node}"), &root.join(place)).to_string())
        .filter(|at| table.contains(at.trim_start_matches("unix:")))
        .map(|at| format!("socket {at}"))
        .collect()
}

fn temporaries(workload: &Workload, root: &Path) -> Vec<String> {
    let dirs = workload.job_dirs(root);
    let files = dirs.iter().flat_map(|dir| names(dir));
    files
        .filter(|name| matches!(FileName::parse(name), Some(FileName::Temporary(_))))
        .map(|name| format!("file {name}"))
        .collect()
}

// Breaks if: an agent waits for ranks that are gone, stays after its time, or leaves a file that it
// was writing.
pub fn nothing_is_left_after_the_agents_time() {
    let mut table = Table::default();
    let seed = seed();
    let rows: Vec<(Workload, End)> = [AGENT_CORES, AGENT_HOSTS, AGENT_PEERS]
        .into_iter()
        .flat_map(|workload| ENDS.map(|end| (workload, end)))
        .collect();
    // They wait more than they work: many at once, and those that wait longest not one after the
    // other.
    for round in 0..trials(1).min(MOST_ROUNDS) {
        let outcomes = share_among(10, rows.len(), &|n| {
            let (workload, end) = rows[n];
            let mut random = Random::new(seed ^ (round as u64) << 16 ^ n as u64);
            Outcome::of(true, one(workload, end, &mut random))
        });
        for ((workload, end), outcome) in rows.iter().zip(outcomes) {
            let row = format!("{} nodes, {end:?}", workload.nodes);
            let name = format!("{}, seed {seed}, round {round}", workload.name);
            table.add(&row, &[name], &[outcome], &[Verdict::Pass]);
        }
    }
    table.finish("what is left when the time of the agents is over");
}
