//! Tests the tree between the nodes and the lead: whole jobs with a small fan-out, in any order of
//! messages that connections can produce, with the loss of any node at any moment.
#![allow(clippy::unwrap_used)]

use orcheck_engine::commit::{
    JobFacts, LeadAction, LeadEvent, LeadState, NodeAction, NodeEvent, NodeState, Relay,
    RelayAction, RelayEvent, Tree,
};
use orcheck_engine::node::Outcome;
use orcheck_format::disk::{CommitRecord, ContainerRef, FileName};
use orcheck_format::wire::Message;
use orcheck_format::{
    Epoch, Error, ErrorKind, JobName, Level, NodeId, Rank, RunId, Step, TargetId, WriterId,
};
use proptest::prelude::*;
use proptest::test_runner::{TestCaseError, TestRunner};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

const LEVELS: [Level; 2] = [Level::Node, Level::Global];

fn container(step: u64, node: NodeId) -> ContainerRef {
    let name = FileName::Container {
        step: Step(step),
        epoch: 1,
        run: [3; 4],
        node,
        writer: WriterId(0),
    };
    ContainerRef {
        file: name.to_string(),
        server: TargetId(0),
        node,
        writer: WriterId(0),
        len_bytes: 8192,
        manifest_digest: [1; 32],
        ranks: vec![(Rank(node.0), 1)],
        refers_to: vec![],
        holders: vec![],
    }
}

fn durable(step: u64, level: Level, node: NodeId) -> NodeEvent {
    NodeEvent::FromRank(Message::Durable {
        step: Step(step),
        level,
        container: container(step, node),
    })
}

fn lost(step: u64, level: Level) -> NodeEvent {
    NodeEvent::FromRank(Message::NotDurable {
        step: Step(step),
        level: Some(level),
        server: None,
        kind: ErrorKind::NoSpace,
        text: "full".into(),
    })
}

fn vote(step: u64, by: &[u32]) -> Message {
    Message::Vote {
        step: Step(step),
        level: Level::Global,
        node: NodeId(by[0]),
        containers: by
            .iter()
            .map(|&node| container(step, NodeId(node)))
            .collect(),
    }
}

fn goodbye(node: NodeId) -> Message {
    Message::Goodbye { node }
}

fn said(by: &[(NodeId, u32)], message: Message) -> RelayAction {
    RelayAction::Up(Message::Said {
        by: by.to_vec(),
        message: Box::new(message),
    })
}

/// What is on its way between a node and the one above it, in order; `None`: it hung up.
type Way = VecDeque<Option<Message>>;

struct World {
    tree: Tree,
    nodes: Vec<Option<(NodeState, Relay)>>,
    lead: LeadState,
    up: BTreeMap<u32, Way>,
    down: BTreeMap<u32, Way>,
    records: BTreeMap<u32, VecDeque<NodeEvent>>,
    told: BTreeMap<(Step, Level), BTreeMap<u32, Outcome>>,
    /// Nodes that are known to hear no more of the lead.
    cut: BTreeSet<u32>,
    said: BTreeSet<(Step, Level, u32)>,
    /// Nodes whose ranks were told that nothing will be committed any more.
    gone: BTreeSet<u32>,
    to_lead: u64,
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
            world_size: nodes,
            nodes: (0..nodes).map(|node| format!("n{node}")).collect(),
            servers: vec!["/ost0".into()],
            node_root: "/local".into(),
            groups: vec![],
        };
        let node = |node| {
            let node = NodeId(node);
            let state = NodeState::new(node, 1, LEVELS.to_vec());
            Some((state, Relay::new(tree, node)))
        };
        Self {
            tree,
            nodes: (0..nodes).map(node).collect(),
            lead: LeadState::new(facts, None),
            up: BTreeMap::new(),
            down: BTreeMap::new(),
            records: BTreeMap::new(),
            told: BTreeMap::new(),
            cut: BTreeSet::new(),
            said: BTreeSet::new(),
            gone: BTreeSet::new(),
            to_lead: 0,
        }
    }

    fn send_up(&mut self, node: NodeId, what: Option<Message>) {
        if node > NodeId(0) && !self.cut.contains(&node.0) {
            self.up.entry(node.0).or_default().push_back(what);
        }
    }

    fn send_down(&mut self, node: NodeId, what: Option<Message>) {
        if !self.cut.contains(&node.0) {
            self.down.entry(node.0).or_default().push_back(what);
        }
    }

    /// A node and the one above it do not hear each other any more.
    fn hang_up(&mut self, node: NodeId) {
        self.send_up(node, None);
        self.send_down(node, None);
        self.cut.insert(node.0);
    }

    fn die(&mut self, node: NodeId) {
        self.nodes[node.index()] = None;
        self.up.remove(&node.0);
        self.hang_up(node);
        for below in self.tree.below(node) {
            self.hang_up(NodeId(below));
        }
    }

    fn node(&mut self, node: NodeId, event: NodeEvent) {
        if let NodeEvent::FromRank(Message::Durable { step, level, .. }) = event {
            self.said.insert((step, level, node.0));
        }
        let Some((state, _)) = &mut self.nodes[node.index()] else {
            return;
        };
        for action in state.step(event) {
            match action {
                NodeAction::ToLead(message) if node == NodeId(0) => {
                    self.lead(LeadEvent::FromNode(NodeId(0), message));
                }
                NodeAction::ToLead(message) if self.tree.relays().contains(&node.0) => {
                    self.relay(node, RelayEvent::FromBelow(node, message));
                }
                NodeAction::ToLead(message) => self.send_up(node, Some(message)),
                NodeAction::Publish(step, level, outcome) => {
                    let told = self.told.entry((step, level)).or_default();
                    let before = told.entry(node.0).or_insert(outcome.clone());
                    let committed = |outcome: &Outcome| *outcome == Outcome::Committed;
                    assert_eq!(
                        committed(before),
                        committed(&outcome),
                        "it changed its mind"
                    );
                }
                NodeAction::WriteRecord(step, level, bytes) => {
                    let record = CommitRecord::decode(&bytes).unwrap();
                    assert_eq!(record.containers.len(), self.nodes.len());
                    let written = NodeEvent::RecordWritten(step, level, Ok(()));
                    self.records.entry(node.0).or_default().push_back(written);
                }
                NodeAction::Gone(_) => drop(self.gone.insert(node.0)),
                NodeAction::Lanes(..) => {}
            }
        }
    }

    fn relay(&mut self, node: NodeId, event: RelayEvent) {
        let Some((_, relay)) = &mut self.nodes[node.index()] else {
            return;
        };
        for action in relay.step(event) {
            match action {
                RelayAction::Up(message) => self.send_up(node, Some(message)),
                RelayAction::Down(message) => {
                    for below in self.tree.below(node) {
                        self.send_down(NodeId(below), Some(message.clone()));
                    }
                }
                RelayAction::HangUp => {
                    for below in self.tree.below(node) {
                        self.hang_up(NodeId(below));
                    }
                }
            }
        }
    }

    fn lead(&mut self, event: LeadEvent) {
        if self.nodes[0].is_none() {
            return;
        }
        for action in self.lead.step(event, 1) {
            match action {
                LeadAction::ToAll(message) => {
                    if let Message::Committed { step, level } = message {
                        let all = 0..self.nodes.len() as u32;
                        // Breaks if: a relay says that all nodes below it voted when the first of
                        // them did.
                        assert!(
                            all.into_iter()
                                .all(|n| self.said.contains(&(step, level, n)))
                        );
                    }
                    for below in self.tree.below(NodeId(0)) {
                        self.send_down(NodeId(below), Some(message.clone()));
                    }
                    self.node(NodeId(0), NodeEvent::FromLead(message));
                }
                LeadAction::WriteRecord(record) => {
                    assert_eq!(record.containers.len(), self.nodes.len());
                    self.lead(LeadEvent::RecordWritten(record.step, Ok(())));
                }
            }
        }
    }

    /// One thing that can happen next; false when there is none.
    fn happen(&mut self, pick: u16) -> bool {
        self.up.retain(|_, way| !way.is_empty());
        self.down.retain(|_, way| !way.is_empty());
        self.records.retain(|_, work| !work.is_empty());
        let ups = self.up.keys().map(|&node| (0, node));
        let downs = self.down.keys().map(|&node| (1, node));
        let records = self.records.keys().map(|&node| (2, node));
        let can: Vec<(u32, u32)> = ups.chain(downs).chain(records).collect();
        let Some(&(what, node)) = can.get(usize::from(pick) % can.len().max(1)) else {
            return false;
        };
        match what {
            0 => {
                let above = self.tree.above(NodeId(node)).unwrap();
                let message = self.up.get_mut(&node).and_then(Way::pop_front).flatten();
                if let Some(message) = &message {
                    self.tree.allows(NodeId(node), message).unwrap();
                }
                let error = || Error::unavailable("hung up");
                if above == NodeId(0) {
                    self.to_lead += 1;
                    self.lead(match message {
                        Some(message) => LeadEvent::FromNode(NodeId(node), message),
                        None => LeadEvent::NodeGone(NodeId(node), error()),
                    });
                } else {
                    let event = match message {
                        Some(message) => RelayEvent::FromBelow(NodeId(node), message),
                        None => RelayEvent::Gone(NodeId(node), error()),
                    };
                    self.relay(above, event);
                }
            }
            1 => {
                let message = self.down.get_mut(&node).and_then(Way::pop_front).flatten();
                let relays = self.tree.relays().contains(&node);
                match message {
                    Some(message) => {
                        if relays {
                            self.relay(NodeId(node), RelayEvent::FromAbove(message.clone()));
                        }
                        self.node(NodeId(node), NodeEvent::FromLead(message));
                    }
                    None => {
                        if relays {
                            self.relay(NodeId(node), RelayEvent::AboveGone);
                        }
                        let error = Error::unavailable("hung up");
                        self.node(NodeId(node), NodeEvent::LeadGone(error));
                    }
                }
            }
            _ => {
                let event = self.records.get_mut(&node).and_then(VecDeque::pop_front);
                self.node(NodeId(node), event.unwrap());
            }
        }
        true
    }
}

/// Nodes, fan-out, steps; whether each part is durable; the order of what happens; who dies after
/// this many events.
type Play = (u32, u32, u64, Vec<u8>, Vec<u16>, Option<(u32, usize)>);

fn plays() -> impl Strategy<Value = Play> {
    (
        1u32..9,
        1u32..4,
        1u64..4,
        proptest::collection::vec(0u8..40, 9 * 3 * 2),
        proptest::collection::vec(any::<u16>(), 1..400),
        proptest::option::weighted(0.5, (0u32..9, 0usize..200)),
    )
}

#[test]
fn whole_jobs_with_a_small_fan_out() {
    let asked =
        orcheck_io::user::env_var("ORCHECK_TRIALS").and_then(|text| text.parse::<u32>().ok());
    let mut runner = TestRunner::new(ProptestConfig {
        cases: asked.unwrap_or(0).max(3000),
        ..ProptestConfig::default()
    });
    runner
        .run(&plays(), |drawn| play(&drawn))
        .unwrap_or_else(|error| panic!("{error}"));
}

fn play((nodes, fan_out, steps, fates, order, dies): &Play) -> Result<(), TestCaseError> {
    let mut world = World::new(*nodes, *fan_out);
    let mut fates = fates.iter().cycle();
    let mut reports: Vec<(u32, NodeEvent)> = Vec::new();
    let mut failed = BTreeSet::new();
    for step in 1..=*steps {
        for level in LEVELS {
            for node in 0..*nodes {
                // One part in forty fails.
                let event = if *fates.next().unwrap() == 0 {
                    failed.insert((step, level));
                    lost(step, level)
                } else {
                    durable(step, level, NodeId(node))
                };
                reports.push((node, event));
            }
        }
    }
    let mut order = order.iter().copied().cycle();
    let mut happened = 0;
    let mut struck = false;
    loop {
        if let Some((node, when)) = dies
            && happened == *when
            && !struck
        {
            struck = true;
            world.die(NodeId(node % nodes));
        }
        happened += 1;
        let pick = order.next().unwrap();
        // Ranks report while messages travel.
        if !reports.is_empty() && pick % 3 == 0 {
            let (node, event) = reports.remove(usize::from(pick) % reports.len());
            world.node(NodeId(node), event);
        } else if !world.happen(pick) {
            let Some((node, event)) = reports.pop() else {
                break;
            };
            world.node(NodeId(node), event);
        }
    }
    for step in 1..=*steps {
        for level in LEVELS {
            let told = world
                .told
                .get(&(Step(step), level))
                .cloned()
                .unwrap_or_default();
            let committed = told.values().any(|one| *one == Outcome::Committed);
            prop_assert!(!(committed && failed.contains(&(step, level))));
            // Breaks if: a relay keeps to itself that a node is gone, or that the lead is: nobody
            // may wait for ever.
            for node in (0..*nodes).filter(|node| world.nodes[*node as usize].is_some()) {
                prop_assert!(
                    told.contains_key(&node) || world.gone.contains(&node),
                    "node {} of {} (fan-out {}) was told nothing of step {} at {}",
                    node,
                    nodes,
                    fan_out,
                    step,
                    level
                );
            }
            if !struck && !failed.contains(&(step, level)) {
                prop_assert!(told.values().all(|one| *one == Outcome::Committed));
            }
        }
    }
    Ok(())
}

// Breaks if: votes are passed on one by one; the lead of a large job would be drowned in them.
#[test]
fn one_message_for_all_that_are_below() {
    let mut world = World::new(13, 3);
    for step in 1..=10 {
        for node in (0..13).rev() {
            world.node(NodeId(node), durable(step, Level::Global, NodeId(node)));
            world.node(NodeId(node), durable(step, Level::Node, NodeId(node)));
        }
        while world.happen(0) {}
    }
    assert!(world.told.len() == 20 && world.told.values().all(|told| told.len() == 13));
    // Of each step a vote for each level, and that the record is written: from each of the three
    // right below.
    assert_eq!(world.to_lead, 10 * 3 * 3);
}

// Breaks if: only what is at hand is told; a vote from below the relay would be waited for until
// the deadline.
#[test]
fn a_lost_relay_ends_the_waits_on_both_sides() {
    // 0 ─ 1 ─ 3, 4; 0 ─ 2 ─ 5, 6
    let mut world = World::new(7, 2);
    for node in [0, 2, 3, 5] {
        world.node(NodeId(node), durable(1, Level::Global, NodeId(node)));
    }
    while world.happen(0) {}
    world.die(NodeId(1));
    while world.happen(0) {}
    for node in [0, 2, 3, 5] {
        let told = &world.told[&(Step(1), Level::Global)];
        assert!(matches!(told[&node], Outcome::Lost(_)), "node {node}");
    }
    // Who had not voted yet hears that it is over, on either side.
    for step in [1, 2] {
        for node in [2, 5, 6] {
            world.node(NodeId(node), durable(step, Level::Global, NodeId(node)));
        }
        while world.happen(0) {}
        assert!(matches!(
            world.told[&(Step(step), Level::Global)][&6],
            Outcome::Lost(_)
        ));
    }
    assert!(world.gone.is_superset(&BTreeSet::from([3, 4])));
    // The lead hears of what is gone further down, too.
    let mut world = World::new(7, 2);
    world.node(NodeId(0), durable(1, Level::Global, NodeId(0)));
    world.die(NodeId(6));
    while world.happen(0) {}
    assert!(matches!(
        world.told[&(Step(1), Level::Global)][&0],
        Outcome::Lost(_)
    ));
    // And a relay without a way up keeps nobody.
    let mut relay = Relay::new(Tree::new(7, 2), NodeId(1));
    assert_eq!(relay.step(RelayEvent::AboveGone), [RelayAction::HangUp]);
}

// Breaks if: who leaves is told of before the votes that are held; what it voted for would be lost.
#[test]
fn who_leaves_below_a_relay_has_voted() {
    let mut relay = Relay::new(Tree::new(7, 2), NodeId(1));
    assert_eq!(
        relay.step(RelayEvent::FromBelow(NodeId(3), vote(1, &[3]))),
        []
    );
    assert_eq!(
        relay.step(RelayEvent::FromBelow(NodeId(3), vote(1, &[3]))),
        []
    );
    let left = relay.step(RelayEvent::FromBelow(NodeId(3), goodbye(NodeId(3))));
    let Message::Vote { containers, .. } = vote(1, &[3]) else {
        panic!("no vote")
    };
    let passed = |node: NodeId, containers: Vec<ContainerRef>| Message::Vote {
        step: Step(1),
        level: Level::Global,
        node,
        containers,
    };
    assert_eq!(
        left,
        [
            said(&[(NodeId(3), 1)], passed(NodeId(1), containers)),
            said(&[(NodeId(3), 1)], goodbye(NodeId(3)))
        ]
    );
    // From then on nothing is held.
    let next = relay.step(RelayEvent::FromBelow(NodeId(4), vote(1, &[4])));
    assert_eq!(
        next,
        [said(
            &[(NodeId(4), 1)],
            passed(NodeId(1), vec![container(1, NodeId(4))])
        )]
    );
}

// Breaks if: a loss is passed on once for each node; or of two directories that failed only the
// first is told.
#[test]
fn a_loss_is_passed_on_once_for_each_directory() {
    let mut relay = Relay::new(Tree::new(7, 2), NodeId(1));
    let mut lose = |node, server| {
        let message = Message::NotDurable {
            step: Step(1),
            level: Some(Level::Global),
            server,
            kind: ErrorKind::Unavailable,
            text: "gone".into(),
        };
        relay.step(RelayEvent::FromBelow(node, message)).len()
    };
    assert_eq!(
        (
            lose(NodeId(3), Some(TargetId(0))),
            lose(NodeId(4), Some(TargetId(0))),
            lose(NodeId(4), Some(TargetId(1)))
        ),
        (1, 0, 1)
    );
    assert_eq!(
        relay.step(RelayEvent::FromBelow(NodeId(1), vote(1, &[1]))),
        []
    );
    let level = Level::Global;
    let aborted = Message::Committed {
        step: Step(1),
        level,
    };
    let down = relay.step(RelayEvent::FromAbove(aborted.clone()));
    assert_eq!(down, [RelayAction::Down(aborted)]);
    assert_eq!(
        relay.step(RelayEvent::FromBelow(NodeId(4), vote(1, &[4]))),
        []
    );
}

// Breaks if: a node is believed that speaks for others than those below it.
#[test]
fn a_node_speaks_only_for_those_below_it() {
    let tree = Tree::new(15, 2);
    let speaks = |from, by: &[(NodeId, u32)], message: Message| {
        let message = Message::Said {
            by: by.to_vec(),
            message: Box::new(message),
        };
        tree.allows(from, &message).is_ok()
    };
    // Below 1 are 3, 4 and 7 … 10.
    assert!(speaks(
        NodeId(1),
        &[(NodeId(1), 1), (NodeId(3), 2), (NodeId(7), 4)],
        goodbye(NodeId(1))
    ));
    assert!(speaks(NodeId(1), &[(NodeId(7), 2)], vote(1, &[7, 8])));
    assert!(
        !speaks(NodeId(1), &[(NodeId(1), 2)], goodbye(NodeId(1))),
        "2 is beside it"
    );
    assert!(
        !speaks(NodeId(1), &[(NodeId(7), 5)], goodbye(NodeId(1))),
        "11 is below 2"
    );
    assert!(
        !speaks(NodeId(1), &[(NodeId(15), 1)], goodbye(NodeId(1))),
        "there is no 15"
    );
    assert!(
        !speaks(NodeId(1), &[(NodeId(7), 2)], vote(1, &[7, 9])),
        "9 has not voted"
    );
    assert!(tree.allows(NodeId(7), &vote(1, &[7])).is_ok());
    assert!(tree.allows(NodeId(7), &vote(1, &[8])).is_err());
}
