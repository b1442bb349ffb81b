//! The commit protocol as two pure state machines: what a node does, what the lead does.
//!
//! ```text
//! writer ──Durable──▶ node ──Vote──▶ lead      all nodes voted?
//!                                     ├─ level global: write the record into every directory
//!                                     ├─ level node, peers: Record ▶ every node writes its copy ▶ Recorded
//!                                     └─ level process (engines that outlive their ranks): nothing to write
//! ranks ◀──board── node ◀──Committed / Aborted── lead
//! ```
//!
//! Invariants:
//! 1. A commit record is asked for only after every writer of every node reported its container
//!    durable at that level.
//! 2. A (step, level) is decided once; whatever arrives later about it is ignored.
//! 3. A loss is final: no vote after it can commit the step at that level.
//! 4. Duplicated and reordered messages change nothing; a node that is gone aborts what waits for it.
//! 5. State is bounded: decisions older than `REMEMBERED` steps are forgotten, votes for them too.
//! 6. A loss whose cause does not begin with [`UNDECIDED`] is one of which no commit record was ever begun.
//!
//! Between many nodes and the lead there are others (`relay.rs`), which pass on what several of them say as one message.
//!
//! Pure: the driver (`control.rs`) brings messages in, carries actions out, and passes the time.
//! Not here: what a record contains on disk (`commit.rs`).

use crate::commit::relay::each;
use crate::directory::is_directory_loss;
use crate::node::Outcome;
use orcheck_format::disk::{CommitRecord, ContainerRef};
use orcheck_format::sabotage::{Switch, off};
use orcheck_format::wire::{AgentMessage, Message};
use orcheck_format::{Detail, Epoch, Error, ErrorKind, JobName, Level};
use orcheck_placement::Placement;
use std::collections::{BTreeMap, BTreeSet};

/// How the cause of a loss begins that was decided when a commit record may have been written already: any copy of it counts at
/// a restart. It is left where it is; a newer run may have found it.
pub const UNDECIDED: &str = "its commit record may nevertheless be there";

/// The same cause of a loss, of which a commit record may be there.
#[must_use]
pub fn undecided(error: Error) -> Error {
    // Breaks if: it is left out; a step counts as lost for good which the next run restarts from.
    if error.is(Detail::Undecided) || off(Switch::UndecidedSaid) {
        return error;
    }
    error.at(UNDECIDED).with(Detail::Undecided)
}

/// Decisions that are remembered, to recognise late messages.
const REMEMBERED: usize = 4096;

/// Steps of which it is remembered who sealed them.
const SEALED: usize = 64;

/// Committed steps of level `global` of which it is known in which directories they lie.
const PLACED: usize = 128;

/// Something that happened to a node.
#[derive(Debug, Clone)]
pub enum NodeEvent {
    /// A message from a rank of this node.
    FromRank(Message),
    /// A message from the lead.
    FromLead(Message),
    /// The rank that hosts a writer is gone.
    WriterGone(Error),
    /// A writer reports no more: no rank is left whose snapshots it could write.
    WriterDone(u32),
    /// No rank of this node is left, and all that they handed over was reported.
    RanksGone,
    /// The connection to the lead is gone.
    LeadGone(Error),
    /// This node's copy of the record of a step at a level is durable, or will never be.
    RecordWritten(u64, Level, Result<(), Error>),
}

/// Something a node has to do.
#[derive(Debug, Clone, PartialEq)]
pub enum NodeAction {
    /// Send to the lead.
    ToLead(Message),
    /// Tell the ranks.
    Publish(u64, Level, Outcome),
    /// Write this node's copy of the commit record of a step at a level.
    WriteRecord(u64, Level, Vec<u8>),
    /// The lanes lead elsewhere from now on (placement generation, TOML).
    Lanes(u64, String),
    /// Nothing will be committed any more.
    Gone(Error),
}

/// One node's part.
#[derive(Debug)]
pub struct NodeState {
    node: u32,
    writers: u32,
    levels: Vec<Level>,
    collected: BTreeMap<(u64, Level), BTreeMap<u32, ContainerRef>>,
    decided: BTreeSet<(u64, Level)>,
    broken: Option<Error>,
    /// Writers that report no more.
    done: BTreeSet<u32>,
    /// Where the engine outlives its ranks: how many there are, and which have sealed a step.
    ranks: u32,
    sealed: BTreeMap<u64, BTreeSet<u32>>,
}

impl NodeState {
    /// A node with `writers` writers and the given configured levels.
    #[must_use]
    pub fn new(node: u32, writers: u32, levels: Vec<Level>) -> Self {
        Self {
            node,
            writers,
            levels,
            collected: BTreeMap::new(),
            decided: BTreeSet::new(),
            broken: None,
            done: BTreeSet::new(),
            ranks: 0,
            sealed: BTreeMap::new(),
        }
    }

    /// The same with an engine that outlives its `ranks` ranks: what all of them sealed survives them (level `process`).
    #[must_use]
    pub fn outliving(mut self, ranks: u32) -> Self {
        self.ranks = ranks;
        self
    }

    /// Whether nothing that was reported here waits for a decision.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.collected.is_empty()
    }

    /// Takes one event in.
    pub fn step(&mut self, event: NodeEvent) -> Vec<NodeAction> {
        match event {
            NodeEvent::WriterDone(writer) => {
                self.done.insert(writer);
                let waiting: Vec<(u64, Level)> = (self.collected.iter())
                    .filter(|(_, containers)| !containers.contains_key(&writer))
                    .map(|(&key, _)| key)
                    .collect();
                let error = self.missing();
                waiting
                    .into_iter()
                    .map(|(step, level)| self.refuse(step, level, &error))
                    .collect()
            }
            NodeEvent::RanksGone => vec![NodeAction::ToLead(Message::Goodbye { node: self.node })],
            NodeEvent::FromRank(Message::Durable {
                step,
                level,
                container,
            }) => self.durable(step, level, container),
            NodeEvent::FromRank(Message::NotDurable {
                step,
                level,
                server,
                kind,
                text,
            }) => {
                let levels = level.map_or_else(|| self.levels.clone(), |level| vec![level]);
                levels
                    .into_iter()
                    .filter(|&level| self.decide(step, level))
                    .map(|level| {
                        let text = text.clone();
                        NodeAction::ToLead(Message::NotDurable {
                            step,
                            level: Some(level),
                            server,
                            kind,
                            text,
                        })
                    })
                    .collect()
            }
            NodeEvent::FromRank(Message::Agent(AgentMessage::Sealed { rank, step })) => {
                let sealed = self.sealed.entry(step).or_default();
                let whole = sealed.insert(rank) && sealed.len() == self.ranks as usize;
                while self.sealed.len() > SEALED {
                    self.sealed.pop_first();
                }
                let vote = Message::Vote {
                    step,
                    level: Level::Process,
                    node: self.node,
                    containers: Vec::new(),
                };
                whole
                    .then_some(NodeAction::ToLead(vote))
                    .into_iter()
                    .collect()
            }
            NodeEvent::FromLead(Message::Record { step, level, bytes }) => {
                vec![NodeAction::WriteRecord(step, level, bytes)]
            }
            NodeEvent::RecordWritten(step, level, result) => {
                let failed = result.err();
                let node = self.node;
                vec![NodeAction::ToLead(Message::Recorded {
                    step,
                    level,
                    node,
                    failed,
                })]
            }
            NodeEvent::FromLead(Message::Committed { step, level }) => {
                self.decide(step, level);
                vec![NodeAction::Publish(step, level, Outcome::Committed)]
            }
            NodeEvent::FromLead(Message::Aborted { step, level, error }) => {
                self.decide(step, level);
                vec![NodeAction::Publish(step, level, Outcome::Lost(error))]
            }
            NodeEvent::FromLead(Message::Placement { generation, text }) => {
                vec![NodeAction::Lanes(generation, text)]
            }
            NodeEvent::WriterGone(_) if off(Switch::WriterGone) => Vec::new(),
            NodeEvent::WriterGone(error) => {
                let waiting: Vec<(u64, Level)> = self.collected.keys().copied().collect();
                let mut actions: Vec<NodeAction> = waiting
                    .into_iter()
                    .map(|(step, level)| self.refuse(step, level, &error))
                    .collect();
                // Steps that no writer reported yet would be waited for until the deadline: the lead
                // must know that no vote of this node will come, its ranks that nothing will.
                actions.push(NodeAction::ToLead(Message::NotDurable {
                    step: 0,
                    level: None,
                    server: None,
                    kind: error.kind(),
                    text: error.message().to_owned(),
                }));
                actions.push(NodeAction::Gone(error.clone()));
                self.broken.get_or_insert(error);
                actions
            }
            NodeEvent::LeadGone(_) if off(Switch::LeadGone) => Vec::new(),
            NodeEvent::LeadGone(error) => {
                let waiting: Vec<((u64, Level), usize)> = (self.collected.iter())
                    .map(|(&key, containers)| (key, containers.len()))
                    .collect();
                let mut actions = Vec::new();
                for ((step, level), containers) in waiting {
                    self.decide(step, level);
                    // With this node's vote the lead may have committed it before it ended.
                    let error = match containers >= self.writers as usize {
                        true => undecided(error.clone()),
                        false => error.clone(),
                    };
                    actions.push(NodeAction::Publish(step, level, Outcome::Lost(error)));
                }
                actions.push(NodeAction::Gone(error.clone()));
                // What is reported later must not wait for a decision that cannot come.
                self.broken.get_or_insert(error);
                actions
            }
            NodeEvent::FromRank(_) | NodeEvent::FromLead(_) => Vec::new(),
        }
    }

    /// Marks a decision; false if there was one already.
    fn decide(&mut self, step: u64, level: Level) -> bool {
        self.collected.remove(&(step, level));
        remember(&mut self.decided, (step, level))
    }

    /// Why a step without the containers of all writers is lost.
    fn missing(&self) -> Error {
        Error::unavailable(format!(
            "ranks of node {} ended without a snapshot of this step",
            self.node
        ))
    }

    fn refuse(&mut self, step: u64, level: Level, error: &Error) -> NodeAction {
        self.decide(step, level);
        NodeAction::ToLead(Message::NotDurable {
            step,
            level: Some(level),
            server: None,
            kind: error.kind(),
            text: error.message().to_owned(),
        })
    }

    fn durable(&mut self, step: u64, level: Level, container: ContainerRef) -> Vec<NodeAction> {
        if self.decided.contains(&(step, level)) {
            return Vec::new();
        }
        if let Some(error) = self.broken.clone() {
            return vec![self.refuse(step, level, &error)];
        }
        let containers = self.collected.entry((step, level)).or_default();
        containers.insert(container.writer, container);
        if self
            .done
            .iter()
            .any(|writer| !containers.contains_key(writer))
        {
            let error = self.missing();
            return vec![self.refuse(step, level, &error)];
        }
        if containers.len() < self.writers as usize && !off(Switch::AllWriters) {
            return Vec::new();
        }
        let containers: Vec<ContainerRef> = containers.values().cloned().collect();
        vec![NodeAction::ToLead(Message::Vote {
            step,
            level,
            node: self.node,
            containers,
        })]
    }
}

/// Something that happened to the lead.
#[derive(Debug, Clone)]
pub enum LeadEvent {
    /// A message from a node.
    FromNode(u32, Message),
    /// A node's connection is gone.
    NodeGone(u32, Error),
    /// The record of level `global` is in every directory, or one failed (server, why).
    RecordWritten(u64, Result<(), (Option<u32>, Error)>),
}

/// Something the lead has to do.
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
    /// Directory of level `node` as configured, or empty.
    pub node_root: String,
}

#[derive(Debug, Default)]
struct Ballot {
    votes: BTreeMap<u32, Vec<ContainerRef>>,
    recorded: BTreeSet<u32>,
    writing: bool,
}

/// The lead's part.
#[derive(Debug)]
pub struct LeadState {
    facts: JobFacts,
    placement: Option<Placement>,
    ballots: BTreeMap<(u64, Level), Ballot>,
    decided: BTreeSet<(u64, Level)>,
    gone: BTreeMap<u32, Error>,
    /// Nodes whose ranks ended: they vote no more.
    left: BTreeSet<u32>,
    /// Directories that failed, other than by being full: what lies there may be gone.
    lost_servers: BTreeSet<u32>,
    /// Directories of the last steps of level `global`, for those that refer to them.
    placed: BTreeMap<u64, BTreeSet<u32>>,
}

impl LeadState {
    /// The lead of a job; `placement` is absent when no directories are placed.
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
            placed: BTreeMap::new(),
        }
    }

    /// Takes one event in; `now_unix_ms` goes into records.
    pub fn step(&mut self, event: LeadEvent, now_unix_ms: u64) -> Vec<LeadAction> {
        match event {
            LeadEvent::FromNode(
                node,
                Message::Vote {
                    step,
                    level,
                    containers,
                    ..
                },
            ) => self.vote(&[(node, 1)], step, level, containers, now_unix_ms),
            LeadEvent::FromNode(_, Message::Said { by, message }) => {
                self.said(&by, *message, now_unix_ms)
            }
            LeadEvent::FromNode(
                node,
                Message::NotDurable {
                    step,
                    level,
                    server,
                    kind,
                    text,
                },
            ) => {
                let error = Error::new(kind, text);
                let Some(level) = level else {
                    return self.lose_node(node, &error, "flushes no more");
                };
                // The new map first: who learns of the loss and goes on at once finds it in use.
                let mut actions: Vec<LeadAction> = self.replace(server, kind).into_iter().collect();
                if off(Switch::LossIsFinal) {
                    return actions;
                }
                actions.extend(self.abort(step, level, &error));
                actions
            }
            LeadEvent::FromNode(
                node,
                Message::Recorded {
                    step,
                    level,
                    failed,
                    ..
                },
            ) => {
                if let Some(error) = failed {
                    // What that node's record came to it said; others may have theirs already.
                    let aborted = match self.facts.nodes.len() {
                        1 => self.lose(step, level, &error),
                        _ => self.abort(step, level, &error),
                    };
                    return aborted.into_iter().collect();
                }
                self.recorded(&[(node, 1)], step, level)
            }
            LeadEvent::FromNode(node, Message::Goodbye { .. }) => {
                self.left.insert(node);
                let waiting: Vec<(u64, Level)> = (self.ballots.iter())
                    .filter(|(_, ballot)| !ballot.votes.contains_key(&node))
                    .map(|(&key, _)| key)
                    .collect();
                let error = self.ended(node);
                waiting
                    .into_iter()
                    .filter_map(|(step, level)| self.abort(step, level, &error))
                    .collect()
            }
            LeadEvent::FromNode(..) => Vec::new(),
            LeadEvent::RecordWritten(step, Ok(())) => self.commit(step, Level::Global),
            LeadEvent::RecordWritten(step, Err((server, error))) => {
                let mut actions: Vec<LeadAction> =
                    self.replace(server, error.kind()).into_iter().collect();
                actions.extend(self.lose(step, Level::Global, &error));
                actions
            }
            LeadEvent::NodeGone(..) if off(Switch::NodeGone) => Vec::new(),
            LeadEvent::NodeGone(node, error) => self.lose_node(node, &error, "is gone"),
        }
    }

    /// What several nodes say at once.
    fn said(&mut self, by: &[(u32, u32)], message: Message, now_unix_ms: u64) -> Vec<LeadAction> {
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
                .flat_map(|node| {
                    let event = LeadEvent::FromNode(node, other.clone());
                    self.step(event, now_unix_ms)
                })
                .collect(),
        }
    }

    fn recorded(&mut self, by: &[(u32, u32)], step: u64, level: Level) -> Vec<LeadAction> {
        let Some(ballot) = self.ballots.get_mut(&(step, level)) else {
            return Vec::new();
        };
        ballot.recorded.extend(each(by));
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

    /// Why a checkpoint without a vote of this node is lost.
    fn ended(&self, node: u32) -> Error {
        let name = self
            .facts
            .nodes
            .get(node as usize)
            .map_or("", String::as_str);
        Error::unavailable(format!(
            "the ranks of node {name} ended without a snapshot of this step"
        ))
    }

    /// Nothing that still waits for this node can be committed, nor anything later.
    fn lose_node(&mut self, node: u32, error: &Error, what: &str) -> Vec<LeadAction> {
        let name = self
            .facts
            .nodes
            .get(node as usize)
            .cloned()
            .unwrap_or_default();
        let error = error.clone().at(format!("node {name} {what}"));
        let waiting: Vec<(u64, Level)> = self
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
        by: &[(u32, u32)],
        step: u64,
        level: Level,
        containers: Vec<ContainerRef>,
        now_unix_ms: u64,
    ) -> Vec<LeadAction> {
        let nodes = self.facts.nodes.len();
        if self.decided.contains(&(step, level)) || each(by).any(|node| node as usize >= nodes) {
            return Vec::new();
        }
        if let Some(error) = self.gone.values().next().cloned() {
            return self.abort(step, level, &error).into_iter().collect();
        }
        let lost = |container: &&ContainerRef| {
            !off(Switch::LostServers)
                && level == Level::Global
                && self.lost_servers.contains(&container.server)
        };
        if let Some(container) = containers.iter().find(lost) {
            let server = self.facts.servers.get(container.server as usize);
            let error = Error::unavailable(format!(
                "container {} lies in {}, which failed since",
                container.file,
                server.map_or("a directory", String::as_str)
            ));
            return self.abort(step, level, &error).into_iter().collect();
        }
        let ballot = self.ballots.entry((step, level)).or_default();
        let mut votes: BTreeMap<u32, Vec<ContainerRef>> =
            each(by).map(|node| (node, Vec::new())).collect();
        for container in containers {
            if let Some(vote) = votes.get_mut(&container.node) {
                vote.push(container);
            }
        }
        ballot.votes.append(&mut votes);
        let missing = |node: &&u32| !ballot.votes.contains_key(node);
        if let Some(&node) = self.left.iter().find(missing) {
            let error = self.ended(node);
            return self.abort(step, level, &error).into_iter().collect();
        }
        let all = ballot.votes.len() >= self.facts.nodes.len() || off(Switch::AllVotes);
        if !all || ballot.writing {
            return Vec::new();
        }
        if level == Level::Process {
            // It is in the memory of all nodes: there is nothing to record.
            return self.commit(step, level);
        }
        ballot.writing = true;
        let record = CommitRecord {
            job: self.facts.job.clone(),
            step,
            epoch: self.facts.epoch,
            level,
            world_size: self.facts.world_size,
            nodes: self.facts.nodes.clone(),
            placement_generation: self
                .placement
                .as_ref()
                .map_or(0, |placement| placement.generation),
            servers: match level {
                Level::Global => self.facts.servers.clone(),
                _ => vec![self.facts.node_root.clone()],
            },
            containers: ballot.votes.values().flatten().cloned().collect(),
            created_unix_ms: now_unix_ms,
        };
        if level == Level::Global {
            if let Err(error) = self.check_referred(&record) {
                return self.abort(step, level, &error).into_iter().collect();
            }
            let servers = record.containers.iter().map(|container| container.server);
            self.placed.insert(step, servers.collect());
            while self.placed.len() > PLACED {
                self.placed.pop_first();
            }
        }
        match level {
            Level::Global => vec![LeadAction::WriteRecord(record)],
            _ => vec![LeadAction::ToAll(Message::Record {
                step,
                level,
                bytes: record.encode(),
            })],
        }
    }

    /// What a step refers to must lie in directories that did not fail since.
    // Breaks if: this returns Ok; a step would be committed whose bytes went with a directory.
    fn check_referred(&self, record: &CommitRecord) -> Result<(), Error> {
        for older in record.refers_to() {
            let sound = |servers: &BTreeSet<u32>| servers.is_disjoint(&self.lost_servers);
            if !self.placed.get(&older).is_some_and(sound) && !off(Switch::ReferredLost) {
                return Err(Error::unavailable(format!(
                    "it refers to step {older}, of which a container lies in a directory that failed since"
                )));
            }
        }
        Ok(())
    }

    fn commit(&mut self, step: u64, level: Level) -> Vec<LeadAction> {
        self.ballots.remove(&(step, level));
        if !remember(&mut self.decided, (step, level)) {
            return Vec::new();
        }
        vec![LeadAction::ToAll(Message::Committed { step, level })]
    }

    fn abort(&mut self, step: u64, level: Level, error: &Error) -> Option<LeadAction> {
        let ballot = self.ballots.get(&(step, level));
        match ballot.is_some_and(|ballot| ballot.writing) {
            true => self.lose(step, level, &undecided(error.clone())),
            false => self.lose(step, level, error),
        }
    }

    /// As [`Self::abort`], with an error that knows whether a commit record may be there.
    fn lose(&mut self, step: u64, level: Level, error: &Error) -> Option<LeadAction> {
        self.ballots.remove(&(step, level));
        remember(&mut self.decided, (step, level)).then(|| {
            LeadAction::ToAll(Message::Aborted {
                step,
                level,
                error: error.clone(),
            })
        })
    }

    /// A directory that is lost or full gets no more containers.
    fn replace(&mut self, server: Option<u32>, kind: ErrorKind) -> Option<LeadAction> {
        let (placement, server) = (self.placement.as_mut()?, server?);
        let active = placement
            .servers
            .get(server as usize)
            .is_some_and(|server| server.active);
        if !is_directory_loss(kind) || off(Switch::FailedDirectory) {
            return None;
        }
        if active {
            // The last one stays in use: what failed there once may work the next time.
            // Breaks if: it counts as lost all the same; no later step could then be committed.
            *placement = placement.without(server, &self.facts.nodes).ok()?;
        }
        if kind != ErrorKind::NoSpace {
            self.lost_servers.insert(server);
        }
        if !active {
            return None;
        }
        Some(LeadAction::ToAll(Message::Placement {
            generation: placement.generation,
            text: placement.to_toml(&self.facts.nodes),
        }))
    }
}

/// Remembers a decision; false if it was known (or so old that it counts as known).
fn remember(decided: &mut BTreeSet<(u64, Level)>, key: (u64, Level)) -> bool {
    if decided.len() >= REMEMBERED && decided.first().is_some_and(|first| key < *first) {
        return false;
    }
    let new = decided.insert(key) || off(Switch::DecidedOnce);
    while decided.len() > REMEMBERED {
        decided.pop_first();
    }
    new
}
