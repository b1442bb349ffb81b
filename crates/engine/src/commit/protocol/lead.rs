//! Implements the lead's part of the commit protocol: it counts votes, decides, and moves nodes
//! away from directories that fail.
//!
//! Invariants: those of `protocol.rs`, by number. Not here: what makes a node vote (`node.rs`).

use super::{REMEMBERED, remember, undecided};
use crate::commit::relay::each;
use crate::directory::{TargetFailure, is_directory_loss};
use orcheck_format::disk::{CommitRecord, ContainerRef, ParityGroup};
use orcheck_format::sabotage::{Switch, off};
use orcheck_format::wire::Message;
use orcheck_format::{Epoch, Error, ErrorKind, JobName, Level, NodeId, Step, TargetId};
use orcheck_placement::Placement;
use std::collections::{BTreeMap, BTreeSet};

/// Number of committed steps of level `global` whose directories are remembered.
const PLACED: usize = 128;

/// An event for the lead.
#[derive(Debug, Clone)]
pub enum LeadEvent {
    /// A message from a node.
    FromNode(NodeId, Message),
    /// A node's connection is gone.
    NodeGone(NodeId, Error),
    /// The record of level `global` is in every directory, or one directory failed.
    RecordWritten(Step, Result<(), TargetFailure>),
}

/// An action for the lead's driver.
#[derive(Debug, Clone, PartialEq)]
pub enum LeadAction {
    /// Send to every node.
    ToAll(Message),
    /// Write this record into every placed directory.
    WriteRecord(CommitRecord),
}

/// What the lead knows about the job.
#[derive(Debug, Clone)]
pub struct JobFacts {
    /// The job.
    pub job: JobName,
    /// This run's epoch.
    pub epoch: Epoch,
    /// Ranks.
    pub world_size: u32,
    /// Node names.
    pub nodes: Vec<String>,
    /// Placed directories as configured.
    pub servers: Vec<String>,
    /// Directory of level `node` as configured; may be empty.
    pub node_root: String,
    /// Groups with parity, at level `peers`.
    pub groups: Vec<ParityGroup>,
}

#[derive(Debug, Default)]
struct Ballot {
    votes: BTreeMap<NodeId, Vec<ContainerRef>>,
    recorded: BTreeSet<NodeId>,
    writing: bool,
}

/// The lead's state machine.
#[derive(Debug)]
pub struct LeadState {
    facts: JobFacts,
    placement: Option<Placement>,
    ballots: BTreeMap<(Step, Level), Ballot>,
    decided: BTreeSet<(Step, Level)>,
    gone: BTreeMap<NodeId, Error>,
    /// Nodes whose ranks have ended: they vote no more.
    left: BTreeSet<NodeId>,
    /// Directories that failed for another reason than being full: their files may be gone.
    lost_servers: BTreeSet<TargetId>,
    /// Directories that became full and take no more containers.
    full_servers: BTreeSet<TargetId>,
    /// Directories of the last steps of level `global`, to check steps that refer to them.
    placed: BTreeMap<Step, BTreeSet<TargetId>>,
}

impl LeadState {
    /// The lead of a job; `placement` is absent if no directories are placed.
    #[must_use]
    pub fn new(facts: JobFacts, placement: Option<Placement>) -> Self {
        Self {
            facts,
            placement,
            ballots: BTreeMap::new(),
            decided: BTreeSet::new(),
            gone: BTreeMap::new(),
            left: BTreeSet::new(),
            lost_servers: BTreeSet::new(),
            full_servers: BTreeSet::new(),
            placed: BTreeMap::new(),
        }
    }

    /// Takes one event in; `now_unix_ms` goes into records.
    pub fn step(&mut self, event: LeadEvent, now_unix_ms: u64) -> Vec<LeadAction> {
        let actions = self.take(event, now_unix_ms);
        if cfg!(debug_assertions) {
            self.check_invariants();
        }
        actions
    }

    fn take(&mut self, event: LeadEvent, now_unix_ms: u64) -> Vec<LeadAction> {
        match event {
            LeadEvent::FromNode(node, message) => self.hear(node, message, now_unix_ms),
            LeadEvent::RecordWritten(step, Ok(())) => self.commit(step, Level::Global),
            LeadEvent::RecordWritten(step, Err(TargetFailure { target, error })) => {
                let replaced = self.replace(target, error.kind());
                let lost = self.lose(step, Level::Global, &error);
                replaced.into_iter().chain(lost).collect()
            }
            LeadEvent::NodeGone(..) if off(Switch::NodeGone) => Vec::new(),
            LeadEvent::NodeGone(node, error) => self.lose_node(node, &error, "is gone"),
        }
    }

    /// Panics if the state contradicts the invariants above, which is a defect, whatever the input.
    pub fn check_invariants(&self) {
        let nodes = self.facts.nodes.len();
        for (key, ballot) in &self.ballots {
            // 1.
            assert!(
                !ballot.writing || ballot.votes.len() == nodes,
                "a record of {key:?} is written after {} of {nodes} votes",
                ballot.votes.len()
            );
            assert!(ballot.votes.keys().all(|&node| node.index() < nodes));
            // 2. and 3.
            assert!(!self.decided.contains(key), "{key:?} is decided, and open");
            // 4.
            let waits_for = self.left.iter().find(|one| !ballot.votes.contains_key(one));
            assert!(waits_for.is_none(), "{key:?} waits for {waits_for:?}");
            // Only a record that is being written into directories can still appear.
            let comes = ballot.writing && key.1 == Level::Global;
            assert!(
                self.gone.is_empty() || comes,
                "{key:?} is open without nodes"
            );
        }
        // 5.
        assert!(self.decided.len() <= REMEMBERED && self.placed.len() <= PLACED);
        if let Some(placement) = &self.placement {
            let active = |&server: &TargetId| {
                let server = placement.servers.get(server.index());
                server.is_some_and(|server| server.active)
            };
            let used = self.lost_servers.iter().find(|server| active(server));
            assert!(used.is_none(), "directory {used:?} failed, and is in use");
        }
    }

    fn hear(&mut self, node: NodeId, message: Message, now_unix_ms: u64) -> Vec<LeadAction> {
        match message {
            Message::Vote {
                step,
                level,
                containers,
                ..
            } => self.vote(&[(node, 1)], step, level, containers, now_unix_ms),
            Message::Said { by, message } => self.said(&by, *message, now_unix_ms),
            Message::NotDurable {
                step,
                level,
                server,
                kind,
                text,
            } => {
                let error = Error::new(kind, text);
                let Some(level) = level else {
                    return self.lose_node(node, &error, "flushes no more");
                };
                // The new placement first: a rank that learns of the loss and continues must find
                // it in use.
                let mut actions: Vec<LeadAction> = self.replace(server, kind).into_iter().collect();
                if off(Switch::LossIsFinal) {
                    return actions;
                }
                actions.extend(self.abort(step, level, &error));
                actions
            }
            Message::Recorded {
                step,
                level,
                failed: None,
                ..
            } => self.recorded(&[(node, 1)], step, level),
            Message::Recorded {
                step,
                level,
                failed: Some(error),
                ..
            } => {
                // The node's error says what became of its record; other nodes may already have
                // theirs.
                let aborted = match self.facts.nodes.len() {
                    1 => self.lose(step, level, &error),
                    _ => self.abort(step, level, &error),
                };
                aborted.into_iter().collect()
            }
            Message::Goodbye { .. } => self.goodbye(node),
            _ => Vec::new(),
        }
    }

    /// Handles the end of a node's ranks: no step can commit any more without that node's vote.
    fn goodbye(&mut self, node: NodeId) -> Vec<LeadAction> {
        self.left.insert(node);
        let waiting: Vec<(Step, Level)> = (self.ballots.iter())
            .filter(|(_, ballot)| !ballot.votes.contains_key(&node))
            .map(|(&key, _)| key)
            .collect();
        let error = self.ended(node);
        let aborted = waiting.into_iter();
        aborted
            .filter_map(|(step, level)| self.abort(step, level, &error))
            .collect()
    }

    /// Handles a message that speaks for several nodes.
    fn said(
        &mut self,
        by: &[(NodeId, u32)],
        message: Message,
        now_unix_ms: u64,
    ) -> Vec<LeadAction> {
        match message {
            Message::Vote {
                step,
                level,
                containers,
                ..
            } => self.vote(by, step, level, containers, now_unix_ms),
            Message::Recorded {
                step,
                level,
                failed: None,
                ..
            } => self.recorded(by, step, level),
            Message::Said { .. } => Vec::new(),
            other => each(by)
                .flat_map(|node| self.hear(node, other.clone(), now_unix_ms))
                .collect(),
        }
    }

    fn recorded(&mut self, by: &[(NodeId, u32)], step: Step, level: Level) -> Vec<LeadAction> {
        let Some(ballot) = self.ballots.get_mut(&(step, level)) else {
            return Vec::new();
        };
        let nodes = self.facts.nodes.len();
        // Breaks if: any node number counts; a record would count as written on nodes that do not
        // exist.
        let known = each(by).filter(|&node| node.index() < nodes);
        ballot.recorded.extend(known);
        if ballot.recorded.len() < self.facts.nodes.len() && !off(Switch::AllRecorded) {
            return Vec::new();
        }
        self.commit(step, level)
    }

    /// Whether nothing waits for a decision.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.ballots.is_empty()
    }

    /// The loss of a checkpoint for which this node did not vote.
    fn ended(&self, node: NodeId) -> Error {
        let name = self
            .facts
            .nodes
            .get(node.index())
            .map_or("", String::as_str);
        Error::unavailable(format!(
            "the ranks of node {name} ended without a snapshot of this step"
        ))
    }

    /// Handles the loss of a node: neither a step that waits for it nor any later one can commit.
    fn lose_node(&mut self, node: NodeId, error: &Error, what: &str) -> Vec<LeadAction> {
        let name = self
            .facts
            .nodes
            .get(node.index())
            .cloned()
            .unwrap_or_default();
        let error = error.clone().at(format!("node {name} {what}"));
        let waiting: Vec<(Step, Level)> = self
            .ballots
            .iter()
            .filter(|(_, ballot)| !ballot.writing || ballot.recorded.len() < self.facts.nodes.len())
            .filter(|((_, level), ballot)| !(ballot.writing && *level == Level::Global))
            .map(|(&key, _)| key)
            .collect();
        self.gone.insert(node, error.clone());
        waiting
            .into_iter()
            .filter_map(|(step, level)| self.abort(step, level, &error))
            .collect()
    }

    fn vote(
        &mut self,
        by: &[(NodeId, u32)],
        step: Step,
        level: Level,
        containers: Vec<ContainerRef>,
        now_unix_ms: u64,
    ) -> Vec<LeadAction> {
        let nodes = self.facts.nodes.len();
        if self.decided.contains(&(step, level)) || each(by).any(|node| node.index() >= nodes) {
            return Vec::new();
        }
        if let Some(error) = self.cannot_count(level, &containers) {
            return self.abort(step, level, &error).into_iter().collect();
        }
        let ballot = self.ballots.entry((step, level)).or_default();
        let mut votes: BTreeMap<NodeId, Vec<ContainerRef>> =
            each(by).map(|node| (node, Vec::new())).collect();
        for container in containers {
            if let Some(vote) = votes.get_mut(&container.node) {
                vote.push(container);
            }
        }
        ballot.votes.append(&mut votes);
        let missing = |node: &&NodeId| !ballot.votes.contains_key(node);
        if let Some(&node) = self.left.iter().find(missing) {
            let error = self.ended(node);
            return self.abort(step, level, &error).into_iter().collect();
        }
        let all = ballot.votes.len() >= self.facts.nodes.len() || off(Switch::AllVotes);
        if !all || ballot.writing {
            return Vec::new();
        }
        if level == Level::Process {
            // The checkpoint is in the memory of all nodes: there is nothing to record.
            return self.commit(step, level);
        }
        ballot.writing = true;
        let containers = ballot.votes.values().flatten().cloned().collect();
        let record = self.record(step, level, containers, now_unix_ms);
        if level != Level::Global {
            return vec![LeadAction::ToAll(Message::Record {
                step,
                level,
                bytes: record.encode(),
            })];
        }
        if let Err(error) = self.check_referred(&record) {
            return self.abort(step, level, &error).into_iter().collect();
        }
        let servers = record.containers.iter().map(|container| container.server);
        self.placed.insert(step, servers.collect());
        while self.placed.len() > PLACED {
            self.placed.pop_first();
        }
        vec![LeadAction::WriteRecord(record)]
    }

    /// Why a step with these containers can never commit, whatever other nodes report.
    fn cannot_count(&self, level: Level, containers: &[ContainerRef]) -> Option<Error> {
        if let Some(error) = self.gone.values().next() {
            return Some(error.clone());
        }
        let lost = |container: &&ContainerRef| {
            !off(Switch::LostServers)
                && level == Level::Global
                && self.lost_servers.contains(&container.server)
        };
        let container = containers.iter().find(lost)?;
        let server = self.facts.servers.get(container.server.index());
        Some(Error::unavailable(format!(
            "container {} lies in {}, which has failed since",
            container.file,
            server.map_or("a directory", String::as_str)
        )))
    }

    fn record(
        &self,
        step: Step,
        level: Level,
        containers: Vec<ContainerRef>,
        created_unix_ms: u64,
    ) -> CommitRecord {
        let placement = self.placement.as_ref();
        CommitRecord {
            job: self.facts.job.clone(),
            step,
            epoch: self.facts.epoch,
            level,
            world_size: self.facts.world_size,
            nodes: self.facts.nodes.clone(),
            placement_generation: placement.map_or(0, |placement| placement.generation),
            servers: match level {
                Level::Global => self.facts.servers.clone(),
                _ => vec![self.facts.node_root.clone()],
            },
            containers,
            created_unix_ms,
            groups: match level {
                Level::Peers(_) => self.facts.groups.clone(),
                _ => Vec::new(),
            },
        }
    }

    /// Checks that no directory with a step that this one refers to has failed.
    // Breaks if: this returns Ok; a step would be committed whose bytes were lost with a directory.
    fn check_referred(&self, record: &CommitRecord) -> Result<(), Error> {
        for older in record.refers_to() {
            let sound = |servers: &BTreeSet<TargetId>| servers.is_disjoint(&self.lost_servers);
            if !self.placed.get(&older).is_some_and(sound) && !off(Switch::ReferredLost) {
                return Err(Error::unavailable(format!(
                    "it refers to step {older}, one of whose containers lies in a directory that \
                     has failed since"
                )));
            }
        }
        Ok(())
    }

    fn commit(&mut self, step: Step, level: Level) -> Vec<LeadAction> {
        self.ballots.remove(&(step, level));
        if !remember(&mut self.decided, (step, level)) {
            return Vec::new();
        }
        vec![LeadAction::ToAll(Message::Committed { step, level })]
    }

    /// Whether a directory takes no more containers for lack of room alone.
    pub(crate) fn is_full(&self, server: TargetId) -> bool {
        self.full_servers.contains(&server) && !self.lost_servers.contains(&server)
    }

    fn abort(&mut self, step: Step, level: Level, error: &Error) -> Option<LeadAction> {
        let ballot = self.ballots.get(&(step, level));
        match ballot.is_some_and(|ballot| ballot.writing) {
            true => self.lose(step, level, &undecided(error.clone())),
            false => self.lose(step, level, error),
        }
    }

    /// As [`Self::abort`], with an error that says whether a commit record may exist.
    fn lose(&mut self, step: Step, level: Level, error: &Error) -> Option<LeadAction> {
        self.ballots.remove(&(step, level));
        remember(&mut self.decided, (step, level)).then(|| {
            LeadAction::ToAll(Message::Aborted {
                step,
                level,
                error: error.clone(),
            })
        })
    }

    /// Gives a lost or full directory no more containers.
    fn replace(&mut self, server: Option<TargetId>, kind: ErrorKind) -> Option<LeadAction> {
        let (placement, server) = (self.placement.as_mut()?, server?);
        let active = placement
            .servers
            .get(server.index())
            .is_some_and(|server| server.active);
        if !is_directory_loss(kind) || off(Switch::FailedDirectory) {
            return None;
        }
        if active {
            // The last directory stays in use: what failed there once may work the next time.
            // Breaks if: it counts as lost all the same; no later step could commit.
            *placement = placement.without(server, &self.facts.nodes).ok()?;
        }
        match kind {
            ErrorKind::NoSpace => self.full_servers.insert(server),
            _ => self.lost_servers.insert(server),
        };
        if !active {
            return None;
        }
        Some(LeadAction::ToAll(Message::Placement {
            generation: placement.generation,
            text: placement.to_toml(&self.facts.nodes),
        }))
    }
}
