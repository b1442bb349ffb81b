//! Implements `orcheck drain`, which lets the agents of a job on this machine finish what they
//! hold, and ends them.
//!
//! How: every agent is told to end when nothing of its sessions is left. It then reports how each
//! session ended: what its ranks had sealed, and what of that is not safe.
//!
//! Invariants:
//! 1. An agent whose ranks are alive, or which is still writing, is left alone, and named.
//! 2. The whole wait ends at `--timeout`; an agent that does not answer is named, never left out.
//!
//! Not here: agents of other machines; drain there.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use orcheck_engine::host::agent::{address, drain, is_of, list, status};
use orcheck_format::{Error, JobName};
use orcheck_io::clock::{Clock, SystemClock};
use serde_json::{Value, json};

use crate::args::DrainArgs;
use crate::commands::status::typed;
use crate::exit;
use crate::output::{Failure, Outcome, count};

/// Longest possible wait, in seconds: no clock can count further.
const LONGEST_S: f64 = 1e9;
/// Longest wait for an agent to begin to answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);

/// Drains all of them.
pub fn run(args: &DrainArgs) -> Result<Outcome, Failure> {
    let timeout = Duration::try_from_secs_f64(args.timeout.min(LONGEST_S)).map_err(|_| {
        Error::invalid(format!(
            "--timeout {}: expected seconds from 0",
            args.timeout
        ))
    })?;
    let job = JobName::new(&args.job)?;
    let clock = SystemClock::new();
    let until = clock.now() + timeout;
    let mut agents: Vec<Value> = Vec::new();
    let mut text = String::new();
    let (mut there, mut not_safe) = (0u64, 0);
    let seen = list(&clock)?;
    let mut warnings: Vec<String> = seen.strangers().into_iter().collect();
    for at in seen.own {
        let own = status(&at, ANSWER_LIMIT).map(|told| told.into_iter().next());
        let own = own.unwrap_or_else(|error| {
            warnings.push(format!("{at} is silent: {}", error.message()));
            None
        });
        let own = own.unwrap_or_default();
        if own.get("job") != Some(&args.job) {
            continue;
        }
        let node = own.get("node").cloned().unwrap_or_default();
        let other = |root: &PathBuf| !is_of(&at, &address(&job, &node, root));
        if args.dir.as_ref().is_some_and(other) {
            continue;
        }
        let left = until.saturating_sub(clock.now());
        let (sessions, ended) = match drain(&at, left, ANSWER_LIMIT) {
            Ok(answer) => answer,
            Err(error) => {
                warnings.push(format!("the agent of node {node}: {}", error.message()));
                (Vec::new(), false)
            }
        };
        for session in &sessions {
            text += &format!("node {node}, {}\n", describe(session));
        }
        not_safe += sessions.iter().filter(|one| is_not_safe(one)).count();
        if !ended {
            there += 1;
            text += &format!("node {node}: the agent is still there\n");
        }
        let sessions: Vec<Value> = sessions.into_iter().map(typed).collect();
        agents.push(json!({ "node": node, "ended": ended, "sessions": sessions }));
    }
    let job = job.as_str();
    let ended = agents.len() as u64 - there;
    text += &match agents.len() {
        0 => format!("no agents of job {job} are on this machine\n"),
        _ => format!(
            "job {job}: {} ended, {there} still there\n",
            count(ended, "agent")
        ),
    };
    let code = match (there, not_safe) {
        (0, 0) => exit::OK,
        (0, _) => exit::PARTIAL,
        _ => exit::TIMEOUT,
    };
    Ok(Outcome {
        code,
        text,
        document: json!({ "job": job, "agents": agents, "notes": warnings }),
        warnings,
    })
}

fn is_not_safe(session: &BTreeMap<String, String>) -> bool {
    session.get("not_safe").is_some_and(|text| text != "none")
}

/// The outcome of a session, for the user.
fn describe(session: &BTreeMap<String, String>) -> String {
    let field = |name: &str| session.get(name).map_or("-", String::as_str);
    let sealed = match field("committed_process") {
        "none" => "nothing sealed by all ranks".to_owned(),
        step => format!("sealed up to step {step}"),
    };
    let alive = match field("ranks_alive") {
        "0" => String::new(),
        alive => format!(", {alive} of {} ranks live", field("ranks")),
    };
    let safe = match is_not_safe(session) {
        true => format!("not safe: {}", field("not_safe")),
        false => "all of it safe".to_owned(),
    };
    format!("epoch {}: {sealed}{alive}; {safe}", field("epoch"))
}
