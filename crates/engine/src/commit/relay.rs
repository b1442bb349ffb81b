//! Implements the tree between the nodes and the lead: each node's parent, and the messages that a
//! relay forwards.
//!
//! ```text
//! node 0, the lead ◀─ nodes 1 … F ◀─ nodes F+1 … F+F² ◀─ …      F: option fan_out
//! ```
//!
//! How: a relay collects what the nodes below it report about a checkpoint until all have reported,
//! and forwards it as one message. It forwards a loss at once. Decisions of the lead travel down
//! the same way. If there are no more nodes than the fan-out, every node is directly below the lead
//! and there are no relays.
//!
//! Invariants:
//! 1. For each checkpoint, the lead receives one vote and one "recorded" from each node directly
//!    below it, however many nodes are below those.
//! 2. A relay decides nothing: it forwards each report under the name of the node that made it, and
//!    speaks for no other.
//! 3. Once a node below has left, failed or gone, nothing is held back any more: every report is
//!    forwarded at once.
//! 4. A relay that loses its connection upwards hangs up on the nodes below it: they must not wait
//!    for what cannot come.
//! 5. State is bounded: what is held for a checkpoint is dropped when it is decided; decisions
//!    older than `REMEMBERED` are forgotten.
//!
//! Survives: duplicated and reordered messages, as the machines at both ends do.
//!
//! Pure. Not here: what votes mean (`protocol.rs`), connections (`control.rs`).

#![cfg_attr(
    not(test),
    deny(
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::panic,
        clippy::string_slice,
        clippy::unreachable,
        clippy::unwrap_used
    )
)]

use orcheck_format::disk::ContainerRef;
use orcheck_format::sabotage::{Switch, off};
use orcheck_format::wire::Message;
use orcheck_format::{Error, Level, NodeId, Result, Step, TargetId};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Number of decisions that are remembered, to recognise late messages.
const REMEMBERED: usize = 4096;

/// The tree: each node's parent and children.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tree {
    nodes: u32,
    fan_out: u32,
}

impl Tree {
    /// A tree of this many nodes, with at most `fan_out` directly below each.
    #[must_use]
    pub fn new(nodes: u32, fan_out: u32) -> Self {
        let fan_out = fan_out.max(1);
        Self { nodes, fan_out }
    }

    /// The parent of a node; `None` for the lead.
    #[must_use]
    pub fn above(&self, node: NodeId) -> Option<NodeId> {
        Some(NodeId(node.0.checked_sub(1)? / self.fan_out))
    }

    /// The nodes directly below a node.
    #[must_use]
    pub fn below(&self, node: NodeId) -> Range<u32> {
        let first = u64::from(node) * u64::from(self.fan_out) + 1;
        let end = first + u64::from(self.fan_out);
        let within = |at: u64| at.min(u64::from(self.nodes)) as u32;
        within(first)..within(end)
    }

    /// The relays: the nodes between others and the lead.
    #[must_use]
    pub fn relays(&self) -> Range<u32> {
        let last = self
            .nodes
            .checked_sub(1)
            .and_then(|last| self.above(NodeId(last)));
        1..last.map_or(1, |last| last.0 + 1)
    }

    /// Number of nodes in the subtree of a node, including itself.
    #[must_use]
    pub fn size(&self, node: NodeId) -> u32 {
        let (mut size, mut level) = (0, node.0..node.0.saturating_add(1).min(self.nodes));
        while !level.is_empty() {
            size += level.end - level.start;
            level = self.below(NodeId(level.start)).start..self.below(NodeId(level.end - 1)).end;
        }
        size
    }

    /// Whether `node` is `top`, or below it.
    #[must_use]
    pub(crate) fn is_under(&self, top: NodeId, mut node: NodeId) -> bool {
        while node > top {
            node = NodeId((node.0 - 1) / self.fan_out);
        }
        node == top
    }

    /// Checks that `from`, a node directly below, may send this message.
    ///
    /// # Errors
    /// Corrupt if the message speaks for nodes that are not below `from`.
    pub fn allows(&self, from: NodeId, message: &Message) -> Result<()> {
        let own = [(from, 1)];
        let (by, message) = match message {
            Message::Said { by, message } => (&by[..], message.as_ref()),
            other => (&own[..], other),
        };
        let stranger = |node: NodeId| {
            Err(Error::corrupt(format!(
                "node {from} speaks for node {node}, which is not below it"
            )))
        };
        if off(Switch::SpokenFor) {
            return Ok(());
        }
        for node in each(by) {
            if node >= NodeId(self.nodes) || !self.is_under(from, node) {
                return stranger(node);
            }
        }
        let Message::Vote { containers, .. } = message else {
            return Ok(());
        };
        for container in containers {
            if !is_of(by, container.node) {
                return stranger(container.node);
            }
        }
        Ok(())
    }
}

/// Every node of these ranges.
pub(crate) fn each(by: &[(NodeId, u32)]) -> impl Iterator<Item = NodeId> {
    by.iter()
        .flat_map(|&(first, count)| first.0..first.0.saturating_add(count))
        .map(NodeId)
}

fn is_of(by: &[(NodeId, u32)], node: NodeId) -> bool {
    let after = by.partition_point(|(first, _)| *first <= node);
    let last = by.iter().take(after).next_back();
    last.is_some_and(|(first, count)| node.0 - first.0 < *count)
}

fn ranges(nodes: &BTreeSet<NodeId>) -> Vec<(NodeId, u32)> {
    let mut ranges: Vec<(NodeId, u32)> = Vec::new();
    for &node in nodes {
        match ranges.last_mut() {
            Some((first, count)) if first.0 + *count == node.0 => *count += 1,
            _ => ranges.push((node, 1)),
        }
    }
    ranges
}

/// An event for a relay.
#[derive(Debug, Clone)]
pub enum RelayEvent {
    /// A message of a node directly below, or of the relay's own node.
    FromBelow(NodeId, Message),
    /// The connection to a node directly below is gone.
    Gone(NodeId, Error),
    /// A message from above.
    FromAbove(Message),
    /// The connection to the node above is gone.
    AboveGone,
}

/// An action for a relay's driver.
#[derive(Debug, Clone, PartialEq)]
pub enum RelayAction {
    /// Send to the node above.
    Up(Message),
    /// Send to every node directly below.
    Down(Message),
    /// Hang up on every node directly below.
    HangUp,
}

/// The reports of nodes about a checkpoint, in their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    Vote,
    Recorded,
}

/// The reports collected about a checkpoint.
#[derive(Debug, Default)]
struct Collected {
    /// By whom.
    said: BTreeSet<NodeId>,
    /// The nodes among them whose reports are not forwarded yet, with their containers.
    waiting: BTreeSet<NodeId>,
    containers: Vec<ContainerRef>,
}

/// The directory that failed, if one did, and the kind of error.
type Loss = (Option<TargetId>, i32);

/// A relay's state machine.
#[derive(Debug)]
pub struct Relay {
    tree: Tree,
    node: NodeId,
    collected: BTreeMap<(Step, Level, Phase), Collected>,
    /// Losses of each checkpoint that were forwarded.
    lost: BTreeMap<(Step, Level), BTreeSet<Loss>>,
    decided: BTreeSet<(Step, Level)>,
    /// A node below has left, failed or gone.
    at_once: bool,
}

impl Relay {
    /// The relay at `node`.
    #[must_use]
    pub fn new(tree: Tree, node: NodeId) -> Self {
        Self {
            tree,
            node,
            collected: BTreeMap::new(),
            lost: BTreeMap::new(),
            decided: BTreeSet::new(),
            at_once: false,
        }
    }

    /// Takes one event in.
    pub fn step(&mut self, event: RelayEvent) -> Vec<RelayAction> {
        let actions = self.take(event);
        if cfg!(debug_assertions) {
            self.check_invariants();
        }
        actions
    }

    /// Panics if the state contradicts the invariants above, which is a defect, whatever the input.
    pub fn check_invariants(&self) {
        for (key, collected) in &self.collected {
            let (waiting, said) = (&collected.waiting, &collected.said);
            // 2. Only what was reported is forwarded.
            assert!(
                waiting.is_subset(said),
                "{key:?}: {waiting:?} wait of {said:?}"
            );
            let of_waiting = |container: &ContainerRef| waiting.contains(&container.node);
            assert!(collected.containers.iter().all(of_waiting), "{key:?}");
            // 3.
            assert!(!self.at_once || waiting.is_empty(), "{key:?} is held back");
            // 5.
            assert!(
                !self.decided.contains(&(key.0, key.1)),
                "{key:?} is decided, and kept"
            );
        }
        assert!(self.decided.len() <= REMEMBERED && self.lost.len() <= REMEMBERED);
    }

    fn take(&mut self, event: RelayEvent) -> Vec<RelayAction> {
        match event {
            RelayEvent::FromBelow(_, Message::Said { by, message }) => self.said(by, *message),
            RelayEvent::FromBelow(node, message) => self.said(vec![(node, 1)], message),
            RelayEvent::Gone(..) if off(Switch::RelayTells) => Vec::new(),
            RelayEvent::Gone(node, error) => {
                let error = error.at(format!("the connection to node {node}"));
                let message = Message::NotDurable {
                    step: Step(0),
                    level: None,
                    server: None,
                    kind: error.kind(),
                    text: error.message().to_owned(),
                };
                self.said(vec![(node, 1)], message)
            }
            RelayEvent::FromAbove(message) => {
                if let Message::Committed { step, level } | Message::Aborted { step, level, .. } =
                    message
                {
                    self.forget(step, level);
                    self.lost.remove(&(step, level));
                    self.decided.insert((step, level));
                    while self.decided.len() > REMEMBERED {
                        self.decided.pop_first();
                    }
                }
                vec![RelayAction::Down(message)]
            }
            RelayEvent::AboveGone if off(Switch::RelayHangsUp) => Vec::new(),
            RelayEvent::AboveGone => vec![RelayAction::HangUp],
        }
    }

    fn forget(&mut self, step: Step, level: Level) {
        for phase in [Phase::Vote, Phase::Recorded] {
            self.collected.remove(&(step, level, phase));
        }
    }

    /// Whether nothing more needs to be known about a checkpoint.
    fn is_over(&self, step: Step, level: Level) -> bool {
        self.decided.contains(&(step, level)) || self.lost.contains_key(&(step, level))
    }

    fn said(&mut self, by: Vec<(NodeId, u32)>, message: Message) -> Vec<RelayAction> {
        match message {
            Message::Vote {
                step,
                level,
                containers,
                ..
            } => self.hold((step, level, Phase::Vote), &by, containers),
            Message::Recorded {
                step,
                level,
                failed: None,
                ..
            } => self.hold((step, level, Phase::Recorded), &by, Vec::new()),
            Message::NotDurable {
                step,
                level: Some(level),
                server,
                kind,
                ..
            } => self.lose((step, level), (server, kind.code()), by, message),
            Message::Recorded {
                step,
                level,
                failed: Some(ref error),
                ..
            } => {
                let kind = error.kind().code();
                self.lose((step, level), (None, kind), by, message)
            }
            Message::NotDurable { level: None, .. } | Message::Goodbye { .. } => {
                // Their earlier reports count. Breaks if: they are held back; the lead hears of the
                // departure first and treats the steps they voted for as lost.
                let keys: Vec<_> = self.collected.keys().copied().collect();
                let mut actions: Vec<RelayAction> = keys
                    .into_iter()
                    .filter_map(|key| self.release(key))
                    .collect();
                self.at_once = true;
                actions.push(RelayAction::Up(Message::Said {
                    by,
                    message: Box::new(message),
                }));
                actions
            }
            _ => Vec::new(),
        }
    }

    fn hold(
        &mut self,
        key: (Step, Level, Phase),
        by: &[(NodeId, u32)],
        containers: Vec<ContainerRef>,
    ) -> Vec<RelayAction> {
        if self.is_over(key.0, key.1) {
            return Vec::new();
        }
        let collected = self.collected.entry(key).or_default();
        let new: BTreeSet<NodeId> = each(by)
            .filter(|node| !collected.said.contains(node))
            .collect();
        let of_new = |container: &ContainerRef| new.contains(&container.node);
        collected
            .containers
            .extend(containers.into_iter().filter(of_new));
        collected.said.extend(&new);
        collected.waiting.extend(&new);
        let whole =
            collected.said.len() as u32 >= self.tree.size(self.node) || off(Switch::RelayWaits);
        if !whole && !self.at_once {
            return Vec::new();
        }
        self.release(key).into_iter().collect()
    }

    /// Forwards what is held.
    fn release(&mut self, key: (Step, Level, Phase)) -> Option<RelayAction> {
        let (step, level, phase) = key;
        let collected = self.collected.get_mut(&key)?;
        if collected.waiting.is_empty() {
            return None;
        }
        let by = ranges(&std::mem::take(&mut collected.waiting));
        let node = self.node;
        let message = Box::new(match phase {
            Phase::Vote => Message::Vote {
                step,
                level,
                node,
                containers: std::mem::take(&mut collected.containers),
            },
            Phase::Recorded => Message::Recorded {
                step,
                level,
                node,
                failed: None,
            },
        });
        Some(RelayAction::Up(Message::Said { by, message }))
    }

    /// Forwards a loss once for each directory and kind. The first loss decides the checkpoint; the
    /// others say which directories are lost.
    fn lose(
        &mut self,
        key: (Step, Level),
        what: Loss,
        by: Vec<(NodeId, u32)>,
        message: Message,
    ) -> Vec<RelayAction> {
        if self.decided.contains(&key) && what.0.is_none() {
            return Vec::new();
        }
        let lost = self.lost.entry(key).or_default();
        if !lost.insert(what) {
            return Vec::new();
        }
        while self.lost.len() > REMEMBERED {
            self.lost.pop_first();
        }
        self.forget(key.0, key.1);
        vec![RelayAction::Up(Message::Said {
            by,
            message: Box::new(message),
        })]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Breaks if: a node has no path to the lead, or two, or more nodes below it than the fan-out.
    #[test]
    fn every_node_is_in_the_tree_once() {
        for fan_out in [1, 2, 3, 64] {
            for nodes in (1..70).chain([4160, 4161, 10_000]) {
                let tree = Tree::new(nodes, fan_out);
                let mut seen = vec![0];
                for node in 0..nodes {
                    let below = tree.below(NodeId(node));
                    assert!(below.len() as u32 <= fan_out);
                    assert!(
                        below
                            .clone()
                            .all(|one| tree.above(NodeId(one)) == Some(NodeId(node)))
                    );
                    assert_eq!(tree.relays().contains(&node), node > 0 && !below.is_empty());
                    seen.extend(below);
                }
                assert!(seen.into_iter().eq(0..nodes));
                assert_eq!(tree.size(NodeId(0)), nodes);
                let sum: u32 = tree
                    .below(NodeId(0))
                    .map(|node| tree.size(NodeId(node)))
                    .sum();
                assert_eq!(sum + 1, nodes);
            }
        }
        let tree = Tree::new(65, 64);
        assert!(tree.relays().is_empty());
        let under = |top, node| tree.is_under(NodeId(top), NodeId(node));
        assert!(under(0, 64) && !under(1, 64) && !under(2, 1));
    }
}
