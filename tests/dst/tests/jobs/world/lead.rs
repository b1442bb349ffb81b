//! The way between the nodes and the lead, the nodes in between, and what must hold of what was
//! decided.

use super::World;
use orcheck_engine::commit::{LeadAction, LeadEvent, NodeEvent, RelayAction, RelayEvent};
use orcheck_engine::node::Outcome;
use orcheck_format::disk::{CommitRecord, FileName};
use orcheck_format::wire::Message;
use orcheck_format::{Level, NodeId, Step};
use std::collections::VecDeque;

fn send(way: &mut VecDeque<Option<Message>>, message: Message, twice: bool) {
    if twice {
        way.push_back(Some(message.clone()));
    }
    way.push_back(Some(message));
}

impl World<'_> {
    pub(super) fn tell_lead(&mut self, event: LeadEvent) {
        for action in self.lead.step(event, self.clock_unix_ms) {
            match action {
                LeadAction::ToAll(message) => {
                    if let Message::Committed { step, .. } = message {
                        self.check_committed(step.0);
                        self.committed.insert(step.0);
                    }
                    for node in self.tree.below(NodeId(0)) {
                        self.send_down(node, &message);
                    }
                    self.tell_node(0, NodeEvent::FromLead(message));
                }
                LeadAction::WriteRecord(_) => unreachable!("there is no level global"),
            }
        }
    }

    pub(super) fn tell_relay(&mut self, at: u32, event: RelayEvent) {
        if !self.tree.relays().contains(&at) {
            return;
        }
        let Some(node) = self.alive(at) else { return };
        for action in node.relay.step(event) {
            match action {
                RelayAction::Up(message) => self.send_up(at, message),
                RelayAction::Down(message) => {
                    for below in self.tree.below(NodeId(at)) {
                        self.send_down(below, &message);
                    }
                }
                RelayAction::HangUp => {
                    self.tree
                        .below(NodeId(at))
                        .for_each(|below| self.cut_lead(below));
                }
            }
        }
    }

    pub(super) fn send_up(&mut self, node: u32, message: Message) {
        if !self.without_lead.contains(&node) {
            let way = self.to_lead.entry(node).or_default();
            send(way, message, self.repeats.contains(&node));
        }
    }

    fn send_down(&mut self, node: u32, message: &Message) {
        if !self.without_lead.contains(&node) {
            let way = self.from_lead.entry(node).or_default();
            send(way, message.clone(), self.repeats.contains(&node));
        }
    }

    /// What comes next between a node and the one above it.
    pub(super) fn next_of(&mut self, node: u32, up: bool) -> Option<Option<Message>> {
        let ways = if up {
            &mut self.to_lead
        } else {
            &mut self.from_lead
        };
        let way = ways.get_mut(&node)?;
        if self.reorders.contains(&node) {
            let at = self.random.below(way.len() as u64);
            return way.remove(at as usize);
        }
        way.pop_front()
    }

    /// What a node was told to be committed is on its disk, whatever happens to it.
    pub(super) fn check_node(&self, at: u32) {
        let Some(node) = &self.nodes[at as usize] else {
            return;
        };
        let level = Level::Peers(self.material.replicas as u8);
        for (&step, outcome) in &node.told {
            let name = FileName::commit(Step(step), self.material.epoch, level).to_string();
            assert!(
                *outcome != Outcome::Committed || node.disk.contains_key(&name),
                "node {at} lost its record of step {step}"
            );
        }
    }

    /// Every node that is left has its copy of the record, its container and the replicas that it
    /// holds.
    fn check_committed(&self, step: u64) {
        let level = Level::Peers(self.material.replicas as u8);
        let name = FileName::commit(Step(step), self.material.epoch, level).to_string();
        let left = || {
            (0u32..)
                .zip(&self.nodes)
                .filter_map(|(at, node)| Some((at, node.as_ref()?)))
        };
        for (at, node) in left() {
            let Some(record) = node.disk.get(&name) else {
                panic!("step {step} is committed, and node {at} has no record of it");
            };
            let record = CommitRecord::decode(&record.bytes()).unwrap();
            assert_eq!(record.containers.len() as u32, self.material.nodes);
            for container in &record.containers {
                assert_eq!(container.holders.len() as u32, self.material.replicas);
                if container.node == NodeId(at) || container.holders.contains(&NodeId(at)) {
                    let (_, content) = &self.material.containers[&(step, container.node)];
                    let there = node.disk.get(&container.file);
                    assert!(
                        there.is_some_and(|found| found.bytes() == content.bytes()),
                        "{} at node {at}",
                        container.file
                    );
                }
            }
        }
    }
}
