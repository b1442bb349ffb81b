//! Waits for the agents of a job on this machine, and learns what they could not save.
//!
//! How: an agent is named after job, node and first directory, so those of this job are found by
//! the nodes and directories that are known here. Each is asked to finish with its ranks, as by a
//! next run; it stays, and still serves what its node holds.
//!
//! Invariants:
//! 1. An agent that does not answer, has not finished, or whose ranks are alive is an error at the
//!    deadline, never passed over. One that has ended is no error.
//!
//! Not here: agents of other machines.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use orcheck_engine::host::agent::{AgentStatus, address, finish, is_of, list, look, status};
use orcheck_format::sabotage::{Switch, off};
use orcheck_format::{Error, Result};
use orcheck_io::clock::{Clock, SystemClock};
use orcheck_io::failpoints::Failpoints;
use orcheck_io::machine::host_name;
use orcheck_net::{Address, Holder, holder};

use super::{ANSWER_LIMIT, LEAST_ANSWER, SLICE, continues};
use crate::args::Where;
use crate::job::{Job, roots};
use crate::output::Failure;
use crate::{exit, stop};

/// What the agents report.
#[derive(Default)]
pub(super) struct Agents {
    /// What they could not save, one line each.
    pub(super) not_safe: Vec<String>,
    /// Others who hold their names.
    pub(super) notes: Vec<String>,
}

impl Agents {
    /// Waits until they have finished what their ranks left behind.
    pub(super) fn wait(
        job: &Job,
        place: &Where,
        to: &[PathBuf],
        until: Duration,
        clock: &SystemClock,
    ) -> std::result::Result<Self, Failure> {
        let mut agents = Agents::default();
        let seen = list(clock)?;
        agents.notes.extend(seen.strangers());
        let firsts = first_names(job, place, to);
        for at in &seen.own {
            let mut of = firsts.iter().filter(|(_, first)| is_of(at, first));
            let Some((node, first)) = of.next() else {
                continue;
            };
            let told = finished((at, first), until, clock).map_err(|error| {
                let error = error.at(format!("the agent of node {node} has not finished"));
                let code = stop::requested().unwrap_or(exit::HELD);
                Failure::with(code, error.next(advice(at)))
            })?;
            let lost = told.last().and_then(|last| last.get("not_safe"));
            let lost = lost.filter(|text| *text != "none");
            let line = |text| format!("the agent of node {node} could not save {text}");
            agents.not_safe.extend(lost.map(line));
        }
        Ok(agents)
    }
}

/// What to do about an agent that has not finished.
fn advice(at: &Address) -> String {
    let told = status(at, LEAST_ANSWER);
    // Breaks if: it is given for any other reason; a run that is over cannot be halted.
    if told.is_ok_and(|told| alive(&told).is_some()) {
        return "wait for the run or end it, with `orcheck halt` in order".to_owned();
    }
    let pid = match holder(at, &Failpoints::none()) {
        Ok(Holder::Own(peer)) if peer.pid > 0 => peer.pid.to_string(),
        _ => "of the agent".to_owned(),
    };
    format!(
        "wait for it or, if it is stopped, continue process {pid} on host {}",
        host_name()
    )
}

/// Waits until this agent has finished; its report on each session, or none if it is gone.
fn finished(
    (at, first): (&Address, &Address),
    until: Duration,
    clock: &SystemClock,
) -> Result<AgentStatus> {
    loop {
        let left = until.saturating_sub(clock.now());
        let answer = left.clamp(LEAST_ANSWER, ANSWER_LIMIT);
        let told = finish(at, left.min(SLICE), answer).and_then(|told| match alive(&told) {
            Some(error) if !off(Switch::ScavengeWaits) => Err(error),
            _ => Ok(told),
        });
        let Err(error) = told else {
            return told;
        };
        if !look(first, &Failpoints::none(), clock)?.own.contains(at) {
            return Ok(AgentStatus::new());
        }
        if clock.now() >= until {
            return Err(error);
        }
        continues("nothing was written")?;
    }
}

/// The error that ranks of the newest of these sessions are alive.
fn alive(told: &AgentStatus) -> Option<Error> {
    let last = told.last()?;
    let field = |name: &str| last.get(name).map_or("", String::as_str);
    let (alive, ranks) = (field("ranks_alive"), field("ranks"));
    let is_over = matches!(alive, "" | "0");
    (!is_over).then(|| Error::unavailable(format!("{alive} of {ranks} ranks are alive")))
}

/// The names that agents of the job would have on this machine, each with its node. An agent is
/// named after the first placed directory of its job, or else that of the nodes.
fn first_names(job: &Job, place: &Where, to: &[PathBuf]) -> Vec<(String, Address)> {
    let mut known = [&place.dirs[..], &place.node_dirs, to].concat();
    if let (true, Ok((placed, per_node))) = (place.anywhere.is_empty(), roots(&[], &[])) {
        known.extend(placed.into_iter().chain(per_node));
    }
    let places = job.catalog.places().iter().zip(&job.place_kinds);
    let mut nodes: BTreeSet<&str> = BTreeSet::new();
    for (dir, kind) in places {
        let mut above = dir.path().ancestors().skip(1);
        if let Some(node) = kind.strip_prefix("node ") {
            nodes.insert(node);
            above.next();
        }
        known.extend(above.next().map(PathBuf::from));
    }
    let claims = job.catalog.claims().iter();
    nodes.extend(claims.flat_map(|(claim, _)| claim.nodes.iter().map(String::as_str)));
    let mut names = Vec::new();
    for root in &known {
        let name = |node: &&str| ((*node).to_owned(), address(&job.name, node, root));
        names.extend(nodes.iter().map(name));
    }
    names
}
