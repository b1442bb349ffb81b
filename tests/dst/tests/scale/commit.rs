//! The commit protocol of jobs of up to 10,000 nodes: what each node sends and takes in for one
//! checkpoint.

use orcheck_engine::commit::{
    JobFacts, LeadAction, LeadEvent, LeadState, NodeAction, NodeEvent, NodeState, Relay,
    RelayAction, RelayEvent, Tree,
};
use orcheck_engine::node::{Layout, Mode, Scheme};
use orcheck_format::disk::{CommitRecord, ContainerRef, FileName};
use orcheck_format::wire::{FRAME_HEADER_BYTES, Message};
use orcheck_format::{Epoch, JobName, Level, NodeId, Rank, RunId, Step, TargetId, WriterId};
use std::collections::VecDeque;
use std::sync::Arc;

const RANKS_PER_NODE: u32 = 64;
const LEVEL: Level = Level::Peers(1);
/// Bytes around a payload: the header and the authentication.
const FRAME_BYTES: u64 = FRAME_HEADER_BYTES as u64 + 16;

/// What one node had to do with others for one checkpoint.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Traffic {
    taken: u64,
    taken_bytes: u64,
    sent: u64,
    sent_bytes: u64,
}

/// How ranks are dealt to the nodes.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Dealt {
    Blocks,
    Turns,
}

struct World {
    tree: Tree,
    nodes: Vec<(NodeState, Relay)>,
    lead: LeadState,
    traffic: Vec<Traffic>,
    /// On their way: from, to, what, its length.
    ways: VecDeque<(u32, u32, Arc<Message>, u64)>,
    record_bytes: u64,
    committed: usize,
}

fn container(step: u64, node: u32, nodes: u32, dealt: Dealt) -> ContainerRef {
    let name = FileName::Container {
        step: Step(step),
        epoch: 1,
        run: [3; 4],
        node: NodeId(node),
        writer: WriterId(0),
    };
    let ranks = match dealt {
        Dealt::Blocks => vec![(node * RANKS_PER_NODE, RANKS_PER_NODE)],
        Dealt::Turns => (0..RANKS_PER_NODE)
            .map(|at| (at * nodes + node, 1))
            .collect(),
    };
    ContainerRef {
        file: name.to_string(),
        server: TargetId(0),
        node: NodeId(node),
        writer: WriterId(0),
        len_bytes: 64 << 30,
        manifest_digest: [1; 32],
        ranks: (ranks.into_iter())
            .map(|(first, count)| (Rank(first), count))
            .collect(),
        refers_to: vec![],
        holders: vec![NodeId((node + 1) % nodes)],
    }
}

impl World {
    fn new(nodes: u32, fan_out: u32) -> Self {
        let tree = Tree::new(nodes, fan_out);
        let facts = JobFacts {
            job: JobName::new("job").unwrap(),
            epoch: Epoch {
                counter: 1,
                run: RunId([3; 16]),
            },
            world_size: nodes * RANKS_PER_NODE,
            nodes: (0..nodes).map(|node| format!("node{node:05}")).collect(),
            servers: Vec::new(),
            node_root: "/local".into(),
            groups: vec![],
        };
        let machines = |node| (NodeState::new(node, 1, vec![LEVEL]), Relay::new(tree, node));
        Self {
            tree,
            nodes: (0..nodes).map(NodeId).map(machines).collect(),
            lead: LeadState::new(facts, None),
            traffic: vec![Traffic::default(); nodes as usize],
            ways: VecDeque::new(),
            record_bytes: 0,
            committed: 0,
        }
    }

    fn send(&mut self, from: u32, to: impl Iterator<Item = u32>, message: Message) {
        let bytes = message.encode().len() as u64 + FRAME_BYTES;
        let message = Arc::new(message);
        for to in to {
            let traffic = &mut self.traffic[from as usize];
            traffic.sent += 1;
            traffic.sent_bytes += bytes;
            self.ways.push_back((from, to, Arc::clone(&message), bytes));
        }
    }

    fn node(&mut self, at: u32, event: NodeEvent) {
        for action in self.nodes[at as usize].0.step(event) {
            match action {
                NodeAction::ToLead(message) if at == 0 => {
                    self.lead(LeadEvent::FromNode(NodeId(0), message));
                }
                NodeAction::ToLead(message) if self.tree.relays().contains(&at) => {
                    self.relay(at, RelayEvent::FromBelow(NodeId(at), message));
                }
                NodeAction::ToLead(message) => {
                    self.send(
                        at,
                        self.tree.above(NodeId(at)).map(|node| node.0).into_iter(),
                        message,
                    );
                }
                NodeAction::WriteRecord(step, level, bytes) => {
                    if at == 0 {
                        self.record_bytes = bytes.len() as u64;
                        // What readers would refuse is not written.
                        CommitRecord::decode(&bytes).unwrap();
                    }
                    self.node(at, NodeEvent::RecordWritten(step, level, Ok(())));
                }
                NodeAction::Publish(..) => self.committed += 1,
                NodeAction::Lanes(..) | NodeAction::Gone(_) => {}
            }
        }
    }

    fn relay(&mut self, at: u32, event: RelayEvent) {
        for action in self.nodes[at as usize].1.step(event) {
            match action {
                RelayAction::Up(message) => {
                    self.send(
                        at,
                        self.tree.above(NodeId(at)).map(|node| node.0).into_iter(),
                        message,
                    );
                }
                RelayAction::Down(message) => self.send(at, self.tree.below(NodeId(at)), message),
                RelayAction::HangUp => unreachable!("nobody is gone"),
            }
        }
    }

    fn lead(&mut self, event: LeadEvent) {
        for action in self.lead.step(event, 1) {
            match action {
                LeadAction::ToAll(message) => {
                    self.send(0, self.tree.below(NodeId(0)), message.clone());
                    self.node(0, NodeEvent::FromLead(message));
                }
                LeadAction::WriteRecord(_) => unreachable!("there is no level global"),
            }
        }
    }

    /// One checkpoint; what each node had to do for it.
    fn checkpoint(&mut self, step: u64, dealt: Dealt) -> Vec<Traffic> {
        self.traffic.fill(Traffic::default());
        self.committed = 0;
        let nodes = self.nodes.len() as u32;
        for node in (0..nodes).rev() {
            let durable = Message::Durable {
                step: Step(step),
                level: LEVEL,
                container: container(step, node, nodes, dealt),
            };
            self.node(node, NodeEvent::FromRank(durable));
        }
        while let Some((from, to, message, bytes)) = self.ways.pop_front() {
            let traffic = &mut self.traffic[to as usize];
            traffic.taken += 1;
            traffic.taken_bytes += bytes;
            let message = message.as_ref().clone();
            if Some(from) == (self.tree.above(NodeId(to))).map(|number| number.0) {
                if self.tree.relays().contains(&to) {
                    self.relay(to, RelayEvent::FromAbove(message.clone()));
                }
                self.node(to, NodeEvent::FromLead(message));
                continue;
            }
            self.tree.allows(NodeId(from), &message).unwrap();
            if to == 0 {
                self.lead(LeadEvent::FromNode(NodeId(from), message));
            } else {
                self.relay(to, RelayEvent::FromBelow(NodeId(from), message));
            }
        }
        assert_eq!(self.committed, self.nodes.len());
        self.traffic.clone()
    }
}

fn largest(traffic: &[Traffic]) -> Traffic {
    let most = |of: fn(&Traffic) -> u64| traffic.iter().map(of).max().unwrap_or(0);
    Traffic {
        taken: most(|one| one.taken),
        taken_bytes: most(|one| one.taken_bytes),
        sent: most(|one| one.sent),
        sent_bytes: most(|one| one.sent_bytes),
    }
}

// Breaks if: votes are passed on one by one, or a container tells all its ranks where they are
// consecutive: what the lead takes in would grow with the number of nodes, or the record with that
// of ranks.
#[test]
fn a_commit_with_ten_thousand_nodes() {
    println!(
        "nodes  ranks    fan-out dealt  | lead takes in, sends (bytes)        | most of another node: takes in, sends (bytes)  | record"
    );
    let mut record_bytes = Vec::new();
    for (nodes, fan_out, dealt) in [
        (64, 64, Dealt::Blocks),
        (640, 64, Dealt::Blocks),
        (1_000, 64, Dealt::Blocks),
        (10_000, 64, Dealt::Blocks),
        (10_000, 16, Dealt::Blocks),
        (1_000, 1_024, Dealt::Blocks),
        (1_000, 64, Dealt::Turns),
    ] {
        let mut world = World::new(nodes, fan_out);
        let traffic = world.checkpoint(1, dealt);
        let (lead, most) = (traffic[0], largest(&traffic[1..]));
        println!(
            "{nodes:>6} {:>7} {fan_out:>7} {dealt:<7?} | {:>5} {:>10} {:>6} {:>10} | {:>5} {:>10} {:>6} {:>10} | {:>9}",
            nodes * RANKS_PER_NODE,
            lead.taken,
            lead.taken_bytes,
            lead.sent,
            lead.sent_bytes,
            most.taken,
            most.taken_bytes,
            most.sent,
            most.sent_bytes,
            world.record_bytes,
        );
        let below = u64::from((nodes - 1).min(fan_out));
        // A vote and a "recorded" of each node right below; the record and the decision to each.
        assert_eq!((lead.taken, lead.sent), (2 * below, 2 * below));
        // Another node also has one above it.
        assert!(
            most.taken <= 2 * u64::from(fan_out) + 2 && most.sent <= 2 * u64::from(fan_out) + 2
        );
        // Of every node the lead takes in one container, wherever it is.
        let each = container(1, nodes - 1, nodes, dealt);
        let mut record = 0;
        if dealt == Dealt::Blocks {
            record = world.record_bytes / u64::from(nodes);
            assert!(record < 200, "{record} bytes of each node in the record");
            assert!(lead.taken_bytes < u64::from(nodes) * 200 + below * 500);
            record_bytes.push(record);
        }
        assert_eq!(
            each.ranks.len(),
            if record > 0 {
                1
            } else {
                RANKS_PER_NODE as usize
            }
        );
    }
    // It grows with the nodes, and no more than that.
    let (least, most) = (record_bytes.iter().min(), record_bytes.iter().max());
    assert!(most.unwrap() - least.unwrap() < 60, "{record_bytes:?}");
}

// Breaks if: the layout of a job keeps a text for each rank.
#[test]
fn what_every_rank_keeps_of_the_others() {
    let (nodes, ranks) = (10_000u32, 640_000u32);
    let names = (0..nodes).map(|node| (format!("node{node:05}"), format!("node{node:05}")));
    let node_of = (0..ranks)
        .map(|rank| NodeId(rank / RANKS_PER_NODE))
        .collect();
    let modes = (Mode::Orchestrated, Scheme::Node);
    let layout = Layout::new(names.collect(), node_of, &[], modes, 1).unwrap();
    assert_eq!(layout.world_size(), ranks);
    let each = layout.nodes.iter().map(|node| {
        let writers: usize = node.writers.iter().map(Vec::capacity).sum();
        let lists = size_of::<Vec<u32>>() * node.writers.capacity();
        let numbers = size_of::<u32>() * (node.ranks.capacity() + writers);
        size_of_val(node) + lists + numbers + node.name.capacity() + node.host.capacity()
    });
    let bytes = each.sum::<usize>() + size_of::<u32>() * ranks as usize;
    println!("layout of {nodes} nodes with {ranks} ranks: {bytes} bytes on each rank");
    assert!(bytes < 16 << 20, "{bytes} bytes");
}
