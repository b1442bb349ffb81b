//! Tracks the nodes of a supervised job: which exist, which are lost, and which spares replace
//! them.
//!
//! How: a command of the user tells whether a node is alive. It is run for every node, all at once,
//! before a restart and now and then while the job runs. A node for which it fails, or does not end
//! in time, counts as lost. The job gets the remaining nodes in the variable ORCHECK_NODES, and in
//! place of `{nodes}` and `{count}` in its command.
//!
//! Invariants:
//! 1. A lost node is never used again by this supervisor, whatever is reported later.
//! 2. Every query has a deadline, and its process is gone when the answer counts.
//!
//! Not here: when nodes are queried (`run.rs`); starting processes on nodes, which mpirun, srun or
//! torchrun does.

use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use orcheck_format::{Error, Result};
use orcheck_io::clock::{Clock, SystemClock};
use rustix::process::{Pid, Signal, kill_process_group};

use crate::args::NodeArgs;

/// Variable with the nodes of the run, comma separated.
const NODES_VARIABLE: &str = "ORCHECK_NODES";
/// Variable of the library: the node of a rank; here a list over which the ranks are distributed.
const NODE_VARIABLE: &str = "ORCHECK_NODE";
/// Longest wait for the answer of a node.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(5);

/// The nodes; none if the user named none.
pub struct Nodes {
    used: Vec<String>,
    spares: Vec<String>,
    alive: Option<String>,
    least: usize,
    are_virtual: bool,
    round: Option<Round>,
}

/// Queries in progress.
struct Round {
    begun: Duration,
    asked: Vec<(String, Child)>,
    lost: Vec<String>,
}

impl Nodes {
    pub fn new(args: &NodeArgs) -> Result<Nodes> {
        let list = |text: &Option<String>| -> Vec<String> {
            let names = text.iter().flat_map(|text| text.split([',', ' ']));
            names
                .filter(|name| !name.is_empty())
                .map(str::to_owned)
                .collect()
        };
        let (used, spares) = (list(&args.nodes), list(&args.spares));
        let mut all: Vec<&String> = used.iter().chain(&spares).collect();
        all.sort();
        if let Some(pair) = all.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(Error::invalid(format!("node '{}' is named twice", pair[0])));
        }
        if used.is_empty() && (!spares.is_empty() || args.alive.is_some() || args.virtual_nodes) {
            return Err(Error::invalid(
                "--spares, --alive and --virtual go with --nodes",
            ));
        }
        if args.alive.is_none() && !spares.is_empty() {
            return Err(Error::invalid(
                "--spares without --alive: nothing would say that a node is lost",
            )
            .next(
                "add --alive 'ssh {node} true', or another command that fails when {node} is gone",
            ));
        }
        Ok(Nodes {
            least: args.min_nodes.unwrap_or(1).max(1),
            used,
            spares,
            alive: args.alive.clone(),
            are_virtual: args.virtual_nodes,
            round: None,
        })
    }

    /// Puts the nodes into the environment, and one of the command's arguments.
    pub fn tell(&self, command: &mut Command) {
        if self.used.is_empty() {
            return;
        }
        command.env(NODES_VARIABLE, self.used.join(","));
        if self.are_virtual {
            command.env(NODE_VARIABLE, self.used.join(","));
        }
    }

    /// An argument with the nodes in place of `{nodes}` and their number in place of `{count}`.
    pub fn fill(&self, argument: &str) -> String {
        if self.used.is_empty() {
            return argument.to_owned();
        }
        let nodes = self.used.join(",");
        argument
            .replace("{nodes}", &nodes)
            .replace("{count}", &self.used.len().to_string())
    }

    /// Continues to query the nodes in use, every `every`; returns those that are lost.
    pub fn watch(
        &mut self,
        clock: &SystemClock,
        last: &mut Duration,
        every: Duration,
    ) -> Vec<String> {
        let now = clock.now();
        if self.round.is_none() && self.alive.is_some() && now.saturating_sub(*last) >= every {
            self.round = Some(self.ask(&self.used, now));
            *last = now;
        }
        let Some(mut round) = self.round.take() else {
            return Vec::new();
        };
        if round.go_on(now) {
            self.forget(&round.lost);
            return round.lost;
        }
        self.round = Some(round);
        Vec::new()
    }

    /// Ends the open queries.
    pub fn stop_asking(&mut self) {
        if let Some(round) = self.round.take() {
            round.end();
        }
    }

    /// Queries every node, and replaces lost ones by spares; returns what was lost and what
    /// replaced it.
    ///
    /// # Errors
    /// Unavailable if too few are left.
    pub fn replace_lost(
        &mut self,
        before: usize,
        clock: &SystemClock,
    ) -> Result<(Vec<String>, Vec<String>)> {
        self.stop_asking();
        let lost = self.lost_of(self.used.clone(), clock);
        self.forget(&lost);
        let mut came = Vec::new();
        while self.used.len() < before && !self.spares.is_empty() {
            let missing = (before - self.used.len()).min(self.spares.len());
            let candidates: Vec<String> = self.spares.drain(..missing).collect();
            let gone = self.lost_of(candidates.clone(), clock);
            for node in candidates.into_iter().filter(|node| !gone.contains(node)) {
                self.used.push(node.clone());
                came.push(node);
            }
        }
        if before > 0 && self.used.len() < self.least {
            return Err(Error::unavailable(format!(
                "{} of {before} nodes are left, fewer than --min-nodes {}",
                self.used.len(),
                self.least
            ))
            .next("give --spares, or start again when nodes are available; the checkpoints stay"));
        }
        Ok((lost, came))
    }

    /// The number of nodes.
    pub fn count(&self) -> usize {
        self.used.len()
    }

    fn forget(&mut self, lost: &[String]) {
        self.used.retain(|node| !lost.contains(node));
    }

    fn lost_of(&self, nodes: Vec<String>, clock: &SystemClock) -> Vec<String> {
        let mut round = self.ask(&nodes, clock.now());
        while !round.go_on(clock.now()) {
            clock.sleep(POLL);
        }
        round.lost
    }

    fn ask(&self, nodes: &[String], now: Duration) -> Round {
        let mut round = Round {
            begun: now,
            asked: Vec::new(),
            lost: Vec::new(),
        };
        let Some(alive) = &self.alive else {
            return round;
        };
        for node in nodes {
            let mut command = Command::new("sh");
            command.args(["-c", &alive.replace("{node}", node)]);
            command
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null());
            match command.process_group(0).spawn() {
                Ok(child) => round.asked.push((node.clone(), child)),
                // A shortage of our own says nothing about the node.
                Err(_) => continue,
            }
        }
        round
    }
}

impl Round {
    /// Whether all have answered.
    fn go_on(&mut self, now: Duration) -> bool {
        let late = now.saturating_sub(self.begun) >= ANSWER_LIMIT;
        let lost = &mut self.lost;
        self.asked.retain_mut(|(node, child)| {
            match child.try_wait() {
                Ok(Some(status)) if status.success() => {}
                Ok(None) if !late => return true,
                Ok(None) => {
                    end(child);
                    lost.push(node.clone());
                }
                // Somebody else collected it, or it failed.
                _ => lost.push(node.clone()),
            }
            false
        });
        self.asked.is_empty()
    }

    fn end(self) {
        for (_, mut child) in self.asked {
            end(&mut child);
        }
    }
}

fn end(child: &mut Child) {
    if let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        let _ = kill_process_group(group, Signal::KILL);
    }
    let _ = child.wait();
}
