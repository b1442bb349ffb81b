//! Implements `orcheck agent`, which runs the engine of one node in a process of its own.
//!
//! How: with `--detach`, the program starts itself again and waits until the new process listens,
//! so that its starter knows that ranks can connect. The process that stays leaves the terminal,
//! process group, descriptors and processor binding of its starter.
//!
//! Invariants:
//! 1. It ends at its stated time at the latest: at the orderly end of a job, after `--linger`, or
//!    at a signal.
//! 2. It leaves nothing in any directory.
//!
//! Not here: what an agent does (`orcheck_engine::host::agent`).

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use orcheck_engine::host::agent::Agent;
use orcheck_format::{Error, JobName, Result};
use orcheck_io::clock::{Clock, SystemClock};
use orcheck_io::failpoints::Failpoints;
use orcheck_io::machine::{close_inherited, leave_starter, raise_limits, silence, start_self};
use serde_json::json;

use crate::args::AgentArgs;
use crate::job::roots;
use crate::output::{Failure, Outcome};
use crate::{exit, stop};

/// Beginning of an agent's first line, once it can be reached.
const READY: &str = "agent of job";
/// Longest wait for the background process to listen.
const START_LIMIT: Duration = Duration::from_secs(10);

/// Runs the agent, or makes sure that one runs.
pub fn run(args: &AgentArgs) -> std::result::Result<Outcome, Failure> {
    close_inherited();
    raise_limits();
    let job = JobName::new(&args.job)?;
    let linger = Duration::try_from_secs_f64(args.linger).map_err(|_| {
        Error::invalid(format!("--linger {}: expected seconds from 0", args.linger))
    })?;
    let node = args
        .node
        .clone()
        .or_else(|| orcheck_io::user::env_var("ORCHECK_NODE").filter(|name| !name.is_empty()))
        .unwrap_or_else(orcheck_io::machine::host_name);
    // A list is dealt out to ranks, and an agent is no rank.
    if node.contains(',') {
        return Err(Error::invalid(format!(
            "'{node}' names several nodes, and an agent serves one"
        ))
        .next("name one of them with --node")
        .into());
    }
    let root = root(args)?;
    if args.detach {
        let told = start_self(&again(args, &node, &root), READY, START_LIMIT)?;
        return Ok(outcome(told, &job, &node));
    }
    if args.detached {
        leave_starter();
    }
    stop::install()?;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let agent = Agent::bind(&job, &node, &root, Arc::clone(&clock), Failpoints::none())?;
    let stopper = agent.stopper();
    let told = format!("{READY} {} on node {node}: ready", job.as_str());
    match agent.strangers() {
        None => println!("{told}"),
        Some(strangers) => println!("{told} ({strangers})"),
    }
    if args.detached {
        silence();
    }
    let thread = orcheck_io::machine::thread::spawn("orcheck-agent", move || agent.run(linger))?;
    let late = "the agent did not end";
    stop::wait_for(
        thread,
        &*clock,
        Duration::MAX,
        || (),
        || stopper.stop(),
        late,
    )??;
    Ok(Outcome {
        code: stop::requested().unwrap_or(exit::OK),
        ..outcome(String::new(), &job, &node)
    })
}

fn outcome(text: String, job: &JobName, node: &str) -> Outcome {
    Outcome {
        code: exit::OK,
        text: if text.is_empty() { text } else { text + "\n" },
        document: json!({ "job": job.as_str(), "node": node }),
        warnings: Vec::new(),
    }
}

/// The directory that distinguishes jobs of the same name.
fn root(args: &AgentArgs) -> Result<PathBuf> {
    let given = |path: &Option<PathBuf>| path.iter().cloned().collect::<Vec<_>>();
    let (placed, per_node) = roots(&given(&args.dir), &given(&args.node_dir))?;
    placed.into_iter().chain(per_node).next().ok_or_else(|| {
        Error::invalid("no directory given").next(
            "give --dir ROOT or --node-dir ROOT, or set ORCHECK_GLOBAL or ORCHECK_NODE_DIR, as for the ranks",
        )
    })
}

/// The arguments of the process that stays.
fn again(args: &AgentArgs, node: &str, root: &std::path::Path) -> Vec<String> {
    let linger = args.linger.to_string();
    let root = root.display().to_string();
    let arguments = [
        "agent",
        "--detached",
        "--job",
        &args.job,
        "--node",
        node,
        "--dir",
        &root,
        "--linger",
        &linger,
    ];
    arguments.map(str::to_owned).to_vec()
}
