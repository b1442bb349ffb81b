//! Implements a node's part of the commit protocol: it collects the reports of its writers, votes,
//! and passes on what the lead decides.
//!
//! Invariants: those of `protocol.rs`, by number. Not here: what its votes lead to (`lead.rs`).

use super::{REMEMBERED, remember, undecided};
use crate::node::Outcome;
use orcheck_format::disk::ContainerRef;
use orcheck_format::sabotage::{Switch, off};
use orcheck_format::wire::{AgentMessage, Message};
use orcheck_format::{Error, Level, NodeId, Rank, Step, WriterId};
use std::collections::{BTreeMap, BTreeSet};

/// Number of steps whose sealing ranks are remembered.
const SEALED: usize = 64;

/// An event for a node.
#[derive(Debug, Clone)]
pub enum NodeEvent {
    /// A message from a rank of this node.
    FromRank(Message),
    /// A message from the lead.
    FromLead(Message),
    /// The rank that hosts a writer is gone.
    WriterGone(Error),
    /// A writer will report no more: no rank is left whose snapshots it could write.
    WriterDone(WriterId),
    /// No rank of this node is left, and everything that they handed over has been reported.
    RanksGone,
    /// The connection to the lead is gone.
    LeadGone(Error),
    /// This node's copy of the commit record of a step at a level is durable, or never will be.
    RecordWritten(Step, Level, Result<(), Error>),
}

/// An action for a node's driver.
#[derive(Debug, Clone, PartialEq)]
pub enum NodeAction {
    /// Send to the lead.
    ToLead(Message),
    /// Tell the ranks.
    Publish(Step, Level, Outcome),
    /// Write this node's copy of the commit record of a step at a level.
    WriteRecord(Step, Level, Vec<u8>),
    /// The lanes lead elsewhere from now on (placement generation, TOML).
    Lanes(u64, String),
    /// Nothing more will be committed.
    Gone(Error),
}

/// A node's state machine.
#[derive(Debug)]
pub struct NodeState {
    node: NodeId,
    writers: u32,
    levels: Vec<Level>,
    collected: BTreeMap<(Step, Level), BTreeMap<WriterId, ContainerRef>>,
    decided: BTreeSet<(Step, Level)>,
    broken: Option<Error>,
    /// Writers that will report no more.
    done: BTreeSet<WriterId>,
    /// If the engine outlives its ranks: how many there are, and which of them sealed a step.
    ranks: u32,
    sealed: BTreeMap<Step, BTreeSet<Rank>>,
}

impl NodeState {
    /// A node with `writers` writers and the given configured levels.
    #[must_use]
    pub fn new(node: NodeId, writers: u32, levels: Vec<Level>) -> Self {
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

    /// The same for an engine that outlives its `ranks` ranks: what all of them sealed survives
    /// them (level `process`).
    #[must_use]
    pub fn outliving(mut self, ranks: u32) -> Self {
        self.ranks = ranks;
        self
    }

    /// Whether nothing reported here waits for a decision.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.collected.is_empty()
    }

    /// Takes one event in.
    pub fn step(&mut self, event: NodeEvent) -> Vec<NodeAction> {
        let actions = self.take(event);
        if cfg!(debug_assertions) {
            self.check_invariants();
        }
        actions
    }

    fn take(&mut self, event: NodeEvent) -> Vec<NodeAction> {
        match event {
            NodeEvent::FromRank(message) => self.hear_rank(message),
            NodeEvent::FromLead(message) => self.hear_lead(message),
            NodeEvent::WriterDone(writer) => self.writer_done(writer),
            NodeEvent::RanksGone => vec![NodeAction::ToLead(Message::Goodbye { node: self.node })],
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
            NodeEvent::WriterGone(_) if off(Switch::WriterGone) => Vec::new(),
            NodeEvent::WriterGone(error) => self.writer_gone(error),
            NodeEvent::LeadGone(_) if off(Switch::LeadGone) => Vec::new(),
            NodeEvent::LeadGone(error) => self.lead_gone(error),
        }
    }

    /// Panics if the state contradicts the invariants above, which is a defect, whatever the input.
    pub fn check_invariants(&self) {
        for (key, containers) in &self.collected {
            // 2.
            assert!(
                !self.decided.contains(key),
                "{key:?} is decided and collected"
            );
            // 3. No step waits for a writer that reports no more.
            let waits_for = self.done.iter().find(|one| !containers.contains_key(one));
            assert!(waits_for.is_none(), "{key:?} waits for {waits_for:?}");
        }
        // 4. Where nothing can be decided any more, nothing waits.
        assert!(
            self.broken.is_none() || self.collected.is_empty(),
            "steps wait for a decision that cannot come: {:?}",
            self.collected.keys()
        );
        // 5.
        assert!(self.decided.len() <= REMEMBERED && self.sealed.len() <= SEALED);
    }

    fn hear_rank(&mut self, message: Message) -> Vec<NodeAction> {
        match message {
            Message::Durable {
                step,
                level,
                container,
            } => self.durable(step, level, container),
            Message::NotDurable {
                step,
                level,
                server,
                kind,
                text,
            } => {
                let levels = level.map_or_else(|| self.levels.clone(), |level| vec![level]);
                let undecided = levels.into_iter().filter(|&level| self.decide(step, level));
                let losses = undecided.map(|level| {
                    let text = text.clone();
                    NodeAction::ToLead(Message::NotDurable {
                        step,
                        level: Some(level),
                        server,
                        kind,
                        text,
                    })
                });
                losses.collect()
            }
            Message::Agent(AgentMessage::Sealed { rank, step }) => self.sealed(rank, step),
            _ => Vec::new(),
        }
    }

    fn hear_lead(&mut self, message: Message) -> Vec<NodeAction> {
        match message {
            Message::Record { step, level, bytes } => {
                vec![NodeAction::WriteRecord(step, level, bytes)]
            }
            Message::Committed { step, level } => {
                self.decide(step, level);
                vec![NodeAction::Publish(step, level, Outcome::Committed)]
            }
            Message::Aborted { step, level, error } => {
                self.decide(step, level);
                vec![NodeAction::Publish(step, level, Outcome::Lost(error))]
            }
            Message::Placement { generation, text } => vec![NodeAction::Lanes(generation, text)],
            _ => Vec::new(),
        }
    }

    fn writer_done(&mut self, writer: WriterId) -> Vec<NodeAction> {
        self.done.insert(writer);
        let error = self.missing();
        self.refuse_all(&error, |containers| !containers.contains_key(&writer))
    }

    fn writer_gone(&mut self, error: Error) -> Vec<NodeAction> {
        let mut actions = self.refuse_all(&error, |_| true);
        // Without this, everybody would wait until the deadline for steps that no writer has
        // reported yet. The lead must know that this node will not vote, and the ranks that nothing
        // will be decided.
        actions.push(NodeAction::ToLead(Message::NotDurable {
            step: Step(0),
            level: None,
            server: None,
            kind: error.kind(),
            text: error.message().to_owned(),
        }));
        actions.push(NodeAction::Gone(error.clone()));
        self.broken.get_or_insert(error);
        actions
    }

    fn lead_gone(&mut self, error: Error) -> Vec<NodeAction> {
        let waiting: Vec<((Step, Level), usize)> = (self.collected.iter())
            .map(|(&key, containers)| (key, containers.len()))
            .collect();
        let mut actions = Vec::new();
        for ((step, level), containers) in waiting {
            self.decide(step, level);
            // With this node's vote, the lead may have committed the step before it ended.
            let error = match containers >= self.writers as usize {
                true => undecided(error.clone()),
                false => error.clone(),
            };
            actions.push(NodeAction::Publish(step, level, Outcome::Lost(error)));
        }
        actions.push(NodeAction::Gone(error.clone()));
        // Later reports must not wait for a decision that cannot come.
        self.broken.get_or_insert(error);
        actions
    }

    fn sealed(&mut self, rank: Rank, step: Step) -> Vec<NodeAction> {
        let sealed = self.sealed.entry(step).or_default();
        let whole = sealed.insert(rank) && sealed.len() == self.ranks as usize;
        while self.sealed.len() > SEALED {
            self.sealed.pop_first();
        }
        if !whole {
            return Vec::new();
        }
        vec![NodeAction::ToLead(Message::Vote {
            step,
            level: Level::Process,
            node: self.node,
            containers: Vec::new(),
        })]
    }

    /// Refuses every waiting step whose containers satisfy `such`.
    fn refuse_all(
        &mut self,
        error: &Error,
        such: impl Fn(&BTreeMap<WriterId, ContainerRef>) -> bool,
    ) -> Vec<NodeAction> {
        let waiting = (self.collected.iter()).filter(|(_, containers)| such(containers));
        let waiting: Vec<(Step, Level)> = waiting.map(|(&key, _)| key).collect();
        let refused = waiting.into_iter();
        refused
            .map(|(step, level)| self.refuse(step, level, error))
            .collect()
    }

    /// Marks a step as decided; returns false if it already was.
    fn decide(&mut self, step: Step, level: Level) -> bool {
        self.collected.remove(&(step, level));
        remember(&mut self.decided, (step, level))
    }

    /// The loss of a step for which some writer reported no container.
    fn missing(&self) -> Error {
        Error::unavailable(format!(
            "ranks of node {} ended without a snapshot of this step",
            self.node
        ))
    }

    fn refuse(&mut self, step: Step, level: Level, error: &Error) -> NodeAction {
        self.decide(step, level);
        NodeAction::ToLead(Message::NotDurable {
            step,
            level: Some(level),
            server: None,
            kind: error.kind(),
            text: error.message().to_owned(),
        })
    }

    fn durable(&mut self, step: Step, level: Level, container: ContainerRef) -> Vec<NodeAction> {
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
