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
use orcheck_net::Address;
use serde_json::{Value, json};

use crate::args::DrainArgs;
use crate::commands::status::{SilentAgent, typed};
use crate::exit;
use crate::output::{Failure, Outcome, count, size};

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
    let mut all = Drained::default();
    let seen = list(&clock)?;
    all.warnings.extend(seen.strangers());
    let is_other = |at: &Address, node: &str| {
        let other = |root: &PathBuf| !is_of(at, &address(&job, node, root));
        args.dir.as_ref().is_some_and(other)
    };
    for at in seen.own {
        let own = match status(&at, ANSWER_LIMIT) {
            Ok(told) => told.into_iter().next().unwrap_or_default(),
            Err(error) => {
                all.warnings
                    .push(format!("{at} is silent: {}", error.message()));
                // Of an agent that was started without --node, the address cannot be told.
                let is_ours = |node: &str| node == SilentAgent::UNKNOWN || !is_other(&at, node);
                let silent = SilentAgent::at(&at);
                let silent = silent.filter(|one| one.job == args.job && is_ours(&one.node));
                if let Some(SilentAgent { node, pid, .. }) = silent {
                    all.silent(&node, pid);
                }
                continue;
            }
        };
        let node = own.get("node").cloned().unwrap_or_default();
        if own.get("job") == Some(&args.job) && !is_other(&at, &node) {
            let held = own.get("replica_bytes").and_then(|text| text.parse().ok());
            // An agent that cannot count them says so by the largest number.
            let held = held.filter(|bytes| *bytes < u64::MAX);
            let left = until.saturating_sub(clock.now());
            all.drain(&at, (&node, held.unwrap_or(0)), left);
        } else if let Some(other) = own.get("job").filter(|other| looks_like(other, &args.job)) {
            all.similar = Some(other.clone());
        }
    }
    // Breaks if: it is not reported; a script with a mistyped name would continue as if all were
    // safe.
    if let (true, Some(other)) = (all.agents.is_empty(), all.similar.take()) {
        all.warnings.push(format!(
            "agents of job {other} are here: the name {} may be mistyped",
            args.job
        ));
    }
    Ok(all.outcome(job.as_str()))
}

/// What happened to the agents so far.
#[derive(Default)]
struct Drained {
    agents: Vec<Value>,
    text: String,
    there: u64,
    not_safe: usize,
    warnings: Vec<String>,
    /// Another job with agents here, whose name differs in a letter.
    similar: Option<String>,
}

impl Drained {
    /// An agent that does not answer. Breaks if: it is left out; one that was stopped would count
    /// as ended.
    fn silent(&mut self, node: &str, pid: i32) {
        self.there += 1;
        self.text += &format!(
            "node {node}: the agent (process {pid}) does not answer, and is still there\n"
        );
        let sessions: [Value; 0] = [];
        self.agents
            .push(json!({ "node": node, "ended": false, "sessions": sessions }));
    }

    /// Drains the agent of this node, which has this many bytes of replicas in memory, within the
    /// time that is left.
    fn drain(&mut self, at: &Address, (node, held_bytes): (&str, u64), left: Duration) {
        let (sessions, ended) = match drain(at, left, ANSWER_LIMIT) {
            Ok(answer) => answer,
            Err(error) => {
                self.warnings
                    .push(format!("the agent of node {node}: {}", error.message()));
                (Vec::new(), false)
            }
        };
        for session in &sessions {
            self.text += &format!("node {node}, {}\n", describe(session));
        }
        self.not_safe += sessions.iter().filter(|one| is_not_safe(one)).count();
        let nowhere_else = sessions.iter().any(|session| {
            let store = session.get("replica_store").map(String::as_str);
            matches!(store, Some("memory" | "spill"))
        });
        if !ended {
            self.there += 1;
            self.text += &format!("node {node}: the agent is still there\n");
        } else if nowhere_else && held_bytes > 0 {
            // Breaks if: it is not reported; the next loss of a node would take a checkpoint that
            // was called safe.
            self.text += &format!(
                "node {node}: {} of replicas of other nodes, which were in its memory, are gone: to \
                 survive the loss of a node, copy the newest checkpoint to another place (`orcheck \
                 copy`)\n",
                size(held_bytes)
            );
        }
        let sessions: Vec<Value> = sessions.into_iter().map(typed).collect();
        self.agents
            .push(json!({ "node": node, "ended": ended, "sessions": sessions }));
    }

    fn outcome(self, job: &str) -> Outcome {
        let Drained {
            agents,
            mut text,
            there,
            warnings,
            ..
        } = self;
        let ended = agents.len() as u64 - there;
        text += &match agents.len() {
            0 => format!("no agents of job {job} are on this machine\n"),
            _ => format!(
                "job {job}: {} ended, {there} still there\n",
                count(ended, "agent")
            ),
        };
        Outcome {
            code: match (there, self.not_safe) {
                (0, 0) => exit::OK,
                (0, _) => exit::PARTIAL,
                _ => exit::TIMEOUT,
            },
            text,
            document: json!({ "job": job, "agents": agents, "notes": warnings }),
            warnings,
        }
    }
}

/// Whether two different names differ in one letter only.
fn looks_like(one: &str, other: &str) -> bool {
    let (one, other): (Vec<char>, Vec<char>) = (one.chars().collect(), other.chars().collect());
    let same = one.iter().zip(&other).take_while(|(a, b)| a == b).count();
    let (long, short) = match one.len() >= other.len() {
        true => (&one, &other),
        false => (&other, &one),
    };
    match long.len() - short.len() {
        0 => one != other && one[same + 1..] == other[same + 1..],
        1 => long[same + 1..] == short[same..],
        _ => false,
    }
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

#[cfg(test)]
mod tests {
    use super::looks_like;

    #[test]
    fn names_that_differ_in_a_letter_look_alike() {
        for other in ["stencl", "stencill", "stencjl", "tencil", "xstencil"] {
            assert!(
                looks_like("stencil", other) && looks_like(other, "stencil"),
                "{other}"
            );
        }
        for other in ["stencil", "sten", "cavity", "stenicl"] {
            assert!(!looks_like("stencil", other), "{other}");
        }
    }
}
