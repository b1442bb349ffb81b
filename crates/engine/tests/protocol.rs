//! Tests the commit protocol under every order, duplication and loss of messages that a seed can
//! produce.
#![allow(clippy::unwrap_used)]

use orcheck_engine::commit::{
    JobFacts, LeadAction, LeadEvent, LeadState, NodeAction, NodeEvent, NodeState, UNDECIDED,
};
use orcheck_engine::directory::TargetFailure;
use orcheck_engine::node::Outcome;
use orcheck_format::disk::{ContainerRef, FileName};
use orcheck_format::wire::{AgentMessage, Message};
use orcheck_format::{
    Detail, Epoch, Error, ErrorKind, JobName, Level, NodeId, Rank, RunId, Step, TargetId, WriterId,
};
use orcheck_placement::Placement;
use proptest::prelude::*;
use proptest::test_runner::{TestCaseError, TestRunner};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};

const RUN: RunId = RunId([3; 16]);
const LEVELS: [Level; 3] = [Level::Node, Level::Peers(1), Level::Global];

fn container(step: u64, node: u32, writer: u32, rank: u32) -> ContainerRef {
    let (node, writer, rank) = (NodeId(node), WriterId(writer), Rank(rank));
    let name = FileName::Container {
        step: Step(step),
        epoch: 1,
        run: [3; 4],
        node,
        writer,
    };
    ContainerRef {
        file: name.to_string(),
        server: TargetId(0),
        node,
        writer,
        len_bytes: 8192,
        manifest_digest: [1; 32],
        ranks: vec![(rank, 1)],
        refers_to: vec![],
        holders: vec![],
    }
}

#[derive(Debug, Clone)]
enum Packet {
    ToNode(u32, NodeEvent),
    ToLead(LeadEvent),
}

/// A whole job: nodes, lead, and a bag of packets delivered in any order.
struct World {
    nodes: Vec<NodeState>,
    lead: LeadState,
    bag: Vec<Packet>,
    durable: BTreeMap<(Step, Level), BTreeSet<(u32, u32)>>,
    lost: BTreeSet<(Step, Level)>,
    visible: BTreeMap<(Step, Level), u32>,
    /// Nodes that wrote their copy of a record.
    wrote: BTreeMap<(Step, Level), BTreeSet<u32>>,
    outcomes: BTreeMap<(Step, Level), BTreeMap<u32, Outcome>>,
    writers: u32,
    generations: Vec<u64>,
}

impl World {
    fn new(nodes: u32, writers: u32) -> Self {
        let names: Vec<String> = (0..nodes).map(|n| format!("n{n}")).collect();
        let servers: Vec<String> = (0..3).map(|s| format!("/ost{s}")).collect();
        let facts = JobFacts {
            job: JobName::new("job").unwrap(),
            epoch: Epoch {
                counter: 1,
                run: RUN,
            },
            world_size: nodes * writers,
            nodes: names.clone(),
            servers: servers.clone(),
            node_root: "/local".into(),
            groups: vec![],
        };
        let placement = Placement::balanced(&names, &servers, None).unwrap();
        Self {
            nodes: (0..nodes)
                .map(|n| NodeState::new(NodeId(n), writers, LEVELS.to_vec()))
                .collect(),
            lead: LeadState::new(facts, Some(placement)),
            bag: Vec::new(),
            durable: BTreeMap::new(),
            lost: BTreeSet::new(),
            visible: BTreeMap::new(),
            wrote: BTreeMap::new(),
            outcomes: BTreeMap::new(),
            writers,
            generations: Vec::new(),
        }
    }

    fn everybody_durable(&self, key: (Step, Level)) -> bool {
        self.durable
            .get(&key)
            .is_some_and(|d| d.len() == self.nodes.len() * self.writers as usize)
    }

    fn deliver(&mut self, packet: Packet) {
        match packet {
            Packet::ToNode(node, event) => {
                for action in self.nodes[node as usize].step(event) {
                    match action {
                        NodeAction::ToLead(message) => {
                            self.bag
                                .push(Packet::ToLead(LeadEvent::FromNode(NodeId(node), message)));
                        }
                        NodeAction::Publish(step, level, outcome) => {
                            let told = self.outcomes.entry((step, level)).or_default();
                            if let Some(before) = told.insert(node, outcome.clone()) {
                                assert_eq!(before, outcome, "a node changed its mind");
                            }
                        }
                        NodeAction::WriteRecord(step, level, _) => {
                            // Breaks if: the lead sends Record before all votes (drop the length
                            // check in vote).
                            assert!(self.everybody_durable((step, level)), "a record too early");
                            *self.visible.entry((step, level)).or_default() += 1;
                            self.wrote.entry((step, level)).or_default().insert(node);
                            self.bag.push(Packet::ToNode(
                                node,
                                NodeEvent::RecordWritten(step, level, Ok(())),
                            ));
                        }
                        NodeAction::Lanes(generation, _) => self.generations.push(generation),
                        NodeAction::Gone(_) => {}
                    }
                }
            }
            Packet::ToLead(event) => {
                for action in self.lead.step(event, 1) {
                    match action {
                        LeadAction::ToAll(message) => {
                            if let Message::Committed { step, level } = message {
                                assert!(self.everybody_durable((step, level)));
                                assert!(
                                    self.visible.contains_key(&(step, level)),
                                    "committed without a record"
                                );
                                // Breaks if: the first copy of a record of level node counts for
                                // all.
                                let wrote = self.wrote.get(&(step, level)).map_or(0, BTreeSet::len);
                                assert!(level == Level::Global || wrote == self.nodes.len());
                            }
                            for node in 0..self.nodes.len() as u32 {
                                self.bag.push(Packet::ToNode(
                                    node,
                                    NodeEvent::FromLead(message.clone()),
                                ));
                            }
                        }
                        LeadAction::WriteRecord(record) => {
                            let key = (record.step, record.level);
                            assert!(self.everybody_durable(key), "a record too early");
                            assert_eq!(
                                record.containers.len(),
                                self.nodes.len() * self.writers as usize
                            );
                            let before = self.visible.insert(key, 1);
                            assert_eq!(before, None, "a record asked for twice");
                            self.bag.push(Packet::ToLead(LeadEvent::RecordWritten(
                                record.step,
                                Ok(()),
                            )));
                        }
                    }
                }
            }
        }
    }
}

/// What happens to one container.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Fate {
    Durable,
    Lost,
    Silent,
}

fn fate() -> impl Strategy<Value = Fate> {
    prop_oneof![12 => Just(Fate::Durable), 1 => Just(Fate::Lost), 1 => Just(Fate::Silent)]
}

/// One job, drawn: nodes, writers of each, steps, what happens to each container, the order of
/// delivery with its duplicates, and a node that is gone after this many deliveries.
type Play = (
    u32,
    u32,
    u64,
    Vec<Fate>,
    Vec<(u16, u8)>,
    Option<(u32, usize)>,
);

fn plays() -> impl Strategy<Value = Play> {
    (
        1u32..5,
        1u32..4,
        1u64..4,
        proptest::collection::vec(fate(), 4 * 3 * 3 * 3),
        proptest::collection::vec((any::<u16>(), 0u8..8), 1..600),
        proptest::option::weighted(0.2, (0u32..4, 0usize..300)),
    )
}

/// States of whole jobs (all machines and what is under way) that were seen, by their hash.
#[derive(Default)]
struct Seen {
    distinct: BTreeSet<u64>,
    deliveries: u64,
    /// Telling states apart takes longer than stepping through them.
    distinguish: bool,
}

impl Seen {
    fn note(&mut self, world: &World) {
        self.deliveries += 1;
        if self.distinguish {
            let mut hasher = DefaultHasher::new();
            format!("{:?} {:?} {:?}", world.nodes, world.lead, world.bag).hash(&mut hasher);
            self.distinct.insert(hasher.finish());
        }
    }
}

#[test]
fn any_order_any_duplicate_any_loss() {
    let asked =
        orcheck_io::user::env_var("ORCHECK_TRIALS").and_then(|text| text.parse::<u32>().ok());
    let cases = asked.unwrap_or(0).max(2000);
    let seen = RefCell::new(Seen {
        distinguish: asked.is_some(),
        ..Seen::default()
    });
    let mut runner = TestRunner::new(ProptestConfig {
        cases,
        ..ProptestConfig::default()
    });
    runner
        .run(&plays(), |drawn| play(drawn, &mut seen.borrow_mut()))
        .unwrap_or_else(|error| panic!("{error}"));
    let seen = seen.into_inner();
    println!(
        "{cases} jobs, {} deliveries, {} states told apart",
        seen.deliveries,
        seen.distinct.len()
    );
}

fn play(
    (nodes, writers, steps, fates, order, node_gone): Play,
    seen: &mut Seen,
) -> std::result::Result<(), TestCaseError> {
    let mut world = World::new(nodes, writers);
    let mut fates = fates.into_iter().cycle();
    let mut expected: BTreeMap<(Step, Level), bool> = BTreeMap::new();
    for step in 1..=steps {
        for level in LEVELS {
            let mut all = true;
            for node in 0..nodes {
                for writer in 0..writers {
                    let message = match fates.next().unwrap() {
                        Fate::Durable => Message::Durable {
                            step: Step(step),
                            level,
                            container: container(step, node, writer, node * writers + writer),
                        },
                        Fate::Lost => {
                            all = false;
                            world.lost.insert((Step(step), level));
                            Message::NotDurable {
                                step: Step(step),
                                level: Some(level),
                                server: Some(TargetId(node % 3)),
                                kind: ErrorKind::NoSpace,
                                text: "full".into(),
                            }
                        }
                        Fate::Silent => {
                            all = false;
                            continue;
                        }
                    };
                    world
                        .bag
                        .push(Packet::ToNode(node, NodeEvent::FromRank(message)));
                }
            }
            expected.insert((Step(step), level), all);
        }
    }
    let mut order = order.into_iter().cycle();
    let mut delivered = 0;
    let mut anybody_gone = false;
    while !world.bag.is_empty() {
        let (pick, twist) = order.next().unwrap();
        let at = pick as usize % world.bag.len();
        // One in eight packets comes twice.
        let packet = if twist == 0 && delivered < 2000 {
            world.bag[at].clone()
        } else {
            world.bag.swap_remove(at)
        };
        if let Packet::ToNode(
            node,
            NodeEvent::FromRank(Message::Durable {
                step,
                level,
                container,
            }),
        ) = &packet
        {
            world
                .durable
                .entry((*step, *level))
                .or_default()
                .insert((*node, container.writer.0));
        }
        delivered += 1;
        seen.note(&world);
        if let Some((node, when)) = node_gone
            && delivered == when
        {
            anybody_gone = true;
            world.deliver(Packet::ToLead(LeadEvent::NodeGone(
                NodeId(node % nodes),
                Error::unavailable("hung up"),
            )));
        }
        world.deliver(packet);
    }
    for (key, all) in expected {
        let told = world.outcomes.get(&key).cloned().unwrap_or_default();
        let distinct: BTreeSet<bool> = told.values().map(|o| *o == Outcome::Committed).collect();
        prop_assert!(
            distinct.len() <= 1,
            "nodes disagree about {:?}: {:?}",
            key,
            told
        );
        let lost_for_good = |outcome: &Outcome| matches!(outcome, Outcome::Lost(error) if !error.is(Detail::Undecided));
        // Breaks if: `abort` does not look whether the record is being written.
        prop_assert!(
            !(told.values().any(lost_for_good) && world.visible.contains_key(&key)),
            "lost for good, and its record was asked for: {:?}: {:?}",
            key,
            told
        );
        if all && !anybody_gone {
            prop_assert_eq!(
                told.len(),
                nodes as usize,
                "everybody durable, not everybody told: {:?}",
                key
            );
            prop_assert!(distinct.contains(&true));
        }
        // Breaks if: a NotDurable does not abort (return early in LeadState::step).
        if world.lost.contains(&key) {
            prop_assert!(
                !distinct.contains(&true),
                "a lost step was committed: {:?}",
                key
            );
            prop_assert!(
                told.len() == nodes as usize,
                "a loss was not told: {:?}",
                key
            );
        }
    }
    let ascending = world.generations.iter().all(|&g| g > 0);
    prop_assert!(ascending);
    Ok(())
}

#[test]
fn the_lead_gone_is_told_to_everybody_who_waits() {
    let mut node = NodeState::new(NodeId(0), 2, LEVELS.to_vec());
    let durable = Message::Durable {
        step: Step(7),
        level: Level::Global,
        container: container(7, 0, 0, 0),
    };
    assert_eq!(node.step(NodeEvent::FromRank(durable)), Vec::new());
    let actions = node.step(NodeEvent::LeadGone(Error::unavailable("hung up")));
    assert!(matches!(
        &actions[0],
        NodeAction::Publish(Step(7), Level::Global, Outcome::Lost(_))
    ));
    assert!(matches!(&actions[1], NodeAction::Gone(_)));
}

#[test]
fn a_writer_gone_refuses_what_was_collected_and_what_comes() {
    let mut node = NodeState::new(NodeId(0), 2, LEVELS.to_vec());
    let durable = |step, writer| {
        NodeEvent::FromRank(Message::Durable {
            step,
            level: Level::Global,
            container: container(step.0, 0, writer, writer),
        })
    };
    node.step(durable(Step(7), WriterId(0).0));
    let refused = node.step(NodeEvent::WriterGone(Error::unavailable("rank 1 is gone")));
    // Breaks if: only what was collected is refused; steps that no writer reported yet would be
    // waited for.
    assert!(matches!(
        &refused[..],
        [
            NodeAction::ToLead(Message::NotDurable { step: Step(7), .. }),
            NodeAction::ToLead(Message::NotDurable { level: None, .. }),
            NodeAction::Gone(_),
        ]
    ));
    let later = node.step(durable(Step(8), WriterId(0).0));
    assert!(matches!(
        &later[..],
        [NodeAction::ToLead(Message::NotDurable {
            step: Step(8),
            ..
        })]
    ));
}

// Breaks if: a writer whose ranks ended is waited for; the agent would be in the way of the next
// run until its deadline.
#[test]
fn a_writer_that_is_done_holds_nothing_up() {
    let mut node = NodeState::new(NodeId(0), 2, LEVELS.to_vec());
    let durable = |step, writer| {
        NodeEvent::FromRank(Message::Durable {
            step,
            level: Level::Global,
            container: container(step.0, 0, writer, writer),
        })
    };
    node.step(durable(Step(7), WriterId(0).0));
    node.step(durable(Step(8), WriterId(1).0));
    let refused = node.step(NodeEvent::WriterDone(WriterId(1)));
    assert!(matches!(
        &refused[..],
        [NodeAction::ToLead(Message::NotDurable {
            step: Step(7),
            ..
        })]
    ));
    // What it had written still counts.
    let voted = node.step(durable(Step(8), WriterId(0).0));
    assert!(matches!(
        &voted[..],
        [NodeAction::ToLead(Message::Vote { step: Step(8), .. })]
    ));
    assert!(!node.is_idle(), "the lead has not decided");
    let level = Level::Global;
    node.step(NodeEvent::FromLead(Message::Committed {
        step: Step(8),
        level,
    }));
    assert!(node.is_idle());
    let later = node.step(durable(Step(9), WriterId(0).0));
    assert!(matches!(
        &later[..],
        [NodeAction::ToLead(Message::NotDurable {
            step: Step(9),
            ..
        })]
    ));
    assert!(node.is_idle());
}

// Breaks if: a node that leaves counts as lost; what it voted for before could then not be
// committed.
#[test]
fn who_leaves_has_voted_for_what_it_voted_for() {
    let mut world = World::new(2, 1);
    let vote = |step, node| {
        let message = Message::Vote {
            step,
            level: Level::Global,
            node,
            containers: vec![container(step.0, node.0, 0, node.0)],
        };
        LeadEvent::FromNode(node, message)
    };
    world.lead.step(vote(Step(1), NodeId(1)), 1);
    world.lead.step(vote(Step(2), NodeId(0)), 1);
    let goodbye = Message::Goodbye { node: NodeId(1) };
    let told = world.lead.step(LeadEvent::FromNode(NodeId(1), goodbye), 1);
    let lost = |actions: &[LeadAction], wanted: u64| matches!(actions, [LeadAction::ToAll(Message::Aborted { step, .. })] if *step == Step(wanted));
    assert!(lost(&told, 2), "{told:?}");
    let whole = world.lead.step(vote(Step(1), NodeId(0)), 1);
    assert!(
        matches!(&whole[..], [LeadAction::WriteRecord(_)]),
        "{whole:?}"
    );
    let later = world.lead.step(vote(Step(3), NodeId(0)), 1);
    assert!(lost(&later, 3), "{later:?}");
    assert!(!world.lead.is_idle());
    world
        .lead
        .step(LeadEvent::RecordWritten(Step(1), Ok(())), 1);
    assert!(world.lead.is_idle());
}

// Breaks if: `recorded` counts any number; a node that wrote nothing would be replaced by one that
// is not there.
#[test]
fn a_node_that_is_not_there_has_recorded_nothing() {
    let mut world = World::new(2, 1);
    let (step, level) = (1, Level::Node);
    for node in 0..2 {
        let vote = Message::Vote {
            step: Step(step),
            level,
            node: NodeId(node),
            containers: vec![container(step, node, 0, 0)],
        };
        world.lead.step(LeadEvent::FromNode(NodeId(node), vote), 1);
    }
    let recorded = |node| {
        let message = Message::Recorded {
            step: Step(step),
            level,
            node,
            failed: None,
        };
        LeadEvent::FromNode(node, message)
    };
    assert_eq!(world.lead.step(recorded(NodeId(0)), 1), []);
    assert_eq!(world.lead.step(recorded(NodeId(7)), 1), []);
    let committed = LeadAction::ToAll(Message::Committed {
        step: Step(step),
        level,
    });
    assert_eq!(world.lead.step(recorded(NodeId(1)), 1), [committed]);
}

// Breaks if: the seal of some ranks is enough, or one is counted twice.
#[test]
fn level_process_needs_all_ranks_of_all_nodes_and_no_record() {
    let mut world = World::new(2, 1);
    let mut node = NodeState::new(NodeId(0), 1, LEVELS.to_vec()).outliving(2);
    let sealed =
        |rank, step| NodeEvent::FromRank(Message::Agent(AgentMessage::Sealed { rank, step }));
    assert_eq!(node.step(sealed(Rank(0), Step(5))), Vec::new());
    assert_eq!(node.step(sealed(Rank(0), Step(5))), Vec::new());
    let voted = node.step(sealed(Rank(1), Step(5)));
    let [NodeAction::ToLead(vote)] = &voted[..] else {
        panic!("{voted:?}")
    };
    assert_eq!(
        world
            .lead
            .step(LeadEvent::FromNode(NodeId(0), vote.clone()), 1),
        []
    );
    let told = world
        .lead
        .step(LeadEvent::FromNode(NodeId(1), vote.clone()), 1);
    let level = Level::Process;
    assert_eq!(
        told,
        [LeadAction::ToAll(Message::Committed {
            step: Step(5),
            level
        })]
    );
    // Where the engine ends with its ranks there is no such level.
    let mut inside = NodeState::new(NodeId(0), 1, LEVELS.to_vec());
    assert_eq!(inside.step(sealed(Rank(0), Step(5))), Vec::new());
}

#[test]
fn what_lies_in_a_failed_directory_is_not_committed() {
    let mut world = World::new(1, 1);
    let failed = Error::unavailable("gone");
    world.lead.step(
        LeadEvent::RecordWritten(Step(1), Err(TargetFailure::of(TargetId(0), failed))),
        1,
    );
    let vote = |step| Message::Vote {
        step,
        level: Level::Global,
        node: NodeId(0),
        containers: vec![container(step.0, 0, 0, 0)],
    };
    // Breaks if: vote() does not look at lost_servers.
    let actions = world
        .lead
        .step(LeadEvent::FromNode(NodeId(0), vote(Step(2))), 1);
    assert!(matches!(
        &actions[..],
        [LeadAction::ToAll(Message::Aborted { step: Step(2), .. })]
    ));
}

// Breaks if: `check_referred` returns Ok: what a step needs of an older one may be gone with its
// directory.
#[test]
fn what_refers_to_a_failed_directory_is_not_committed() {
    let mut world = World::new(1, 1);
    let mut vote = |step, server, refers_to: &[u64]| {
        let container = ContainerRef {
            server,
            refers_to: refers_to.iter().copied().map(Step).collect(),
            holders: vec![],
            ..container(step, 0, 0, 0)
        };
        let vote = Message::Vote {
            step: Step(step),
            level: Level::Global,
            node: NodeId(0),
            containers: vec![container],
        };
        let actions = world.lead.step(LeadEvent::FromNode(NodeId(0), vote), 1);
        let written = matches!(&actions[..], [LeadAction::WriteRecord(_)]);
        let end = if written {
            Ok(())
        } else {
            Err(TargetFailure::of(TargetId(0), Error::unavailable("gone")))
        };
        world
            .lead
            .step(LeadEvent::RecordWritten(Step(step), end), 1);
        written
    };
    assert!(vote(1, TargetId(0), &[]) && vote(2, TargetId(1), &[]));
    assert!(vote(3, TargetId(1), &[1, 2]), "both are there");
    assert!(!vote(4, TargetId(1), &[0]), "nobody knows where it lies");
    // With that, directory 0 failed.
    assert!(!vote(5, TargetId(1), &[1, 2]));
    assert!(vote(6, TargetId(1), &[2]) && vote(7, TargetId(2), &[]));
}

// Breaks if: `lose_node` gives nothing up: the ranks of the other nodes wait for a vote that will
// not come.
#[test]
fn a_node_gone_ends_every_step_that_waits_for_it() {
    let mut world = World::new(2, 1);
    for (step, level) in [(1, Level::Global), (2, Level::Node)] {
        let vote = Message::Vote {
            step: Step(step),
            level,
            node: NodeId(0),
            containers: vec![container(step, 0, 0, 0)],
        };
        assert_eq!(world.lead.step(LeadEvent::FromNode(NodeId(0), vote), 1), []);
    }
    let gone = LeadEvent::NodeGone(NodeId(1), Error::unavailable("hung up"));
    let aborted: Vec<u64> = (world.lead.step(gone, 1).iter())
        .filter_map(|action| match action {
            LeadAction::ToAll(Message::Aborted { step, .. }) => Some(step.0),
            _ => None,
        })
        .collect();
    assert_eq!(aborted, [1, 2]);
}

fn lost_text(actions: &[LeadAction]) -> Option<&str> {
    actions.iter().find_map(|action| match action {
        LeadAction::ToAll(Message::Aborted { error, .. }) => Some(error.message()),
        _ => None,
    })
}

// Breaks if: a loss is called final although nodes were asked for their records, or the lead has
// this node's vote.
#[test]
fn a_step_whose_record_may_be_there_is_not_lost_for_good() {
    let level = Level::Peers(1);
    let vote = |step, node| {
        let containers = vec![container(step, node, 0, node)];
        LeadEvent::FromNode(
            NodeId(node),
            Message::Vote {
                step: Step(step),
                level,
                node: NodeId(node),
                containers,
            },
        )
    };
    let mut world = World::new(2, 1);
    world.lead.step(vote(1, NodeId(0).0), 1);
    assert!(
        !world
            .lead
            .step(vote(2, NodeId(0).0), 1)
            .iter()
            .any(|_| true)
    );
    // Of step 1 the records are asked for, of step 2 not.
    assert_eq!(world.lead.step(vote(1, NodeId(1).0), 1).len(), 1);
    let failed = Some(Error::no_space("full"));
    let recorded = Message::Recorded {
        step: Step(1),
        level,
        node: NodeId(1),
        failed,
    };
    let actions = world.lead.step(LeadEvent::FromNode(NodeId(1), recorded), 1);
    assert!(lost_text(&actions).unwrap().starts_with(UNDECIDED));
    let gone = LeadEvent::NodeGone(NodeId(1), Error::unavailable("hung up"));
    let actions = world.lead.step(gone, 1);
    assert!(
        !lost_text(&actions).unwrap().contains(UNDECIDED),
        "{actions:?}"
    );

    // Of a job on one node, what its record came to.
    for known in [true, false] {
        let mut world = World::new(1, 1);
        world.lead.step(vote(1, NodeId(0).0), 1);
        let error = Error::unavailable("the fsync failed");
        let error = match known {
            true => error.with(Detail::Undecided),
            false => error,
        };
        let result = NodeEvent::RecordWritten(Step(1), level, Err(error));
        let actions = world.nodes[0].step(result);
        let [NodeAction::ToLead(recorded)] = &actions[..] else {
            panic!("{actions:?}")
        };
        let sent = Message::decode(recorded.kind(), &recorded.encode()).unwrap();
        let actions = world.lead.step(LeadEvent::FromNode(NodeId(0), sent), 1);
        let aborted = actions.iter().find_map(|action| match action {
            LeadAction::ToAll(Message::Aborted { error, .. }) => Some(error),
            _ => None,
        });
        assert_eq!(aborted.unwrap().is(Detail::Undecided), known);
    }

    // The same when it is the lead that is gone.
    let mut node = NodeState::new(NodeId(0), 2, LEVELS.to_vec());
    for (step, writer) in [(1, 0), (1, 1), (2, 0)] {
        let container = container(step, 0, writer, writer);
        node.step(NodeEvent::FromRank(Message::Durable {
            step: Step(step),
            level,
            container,
        }));
    }
    let actions = node.step(NodeEvent::LeadGone(Error::unavailable("hung up")));
    let lost: Vec<(u64, bool)> = (actions.iter())
        .filter_map(|action| match action {
            NodeAction::Publish(step, _, Outcome::Lost(error)) => {
                Some((step.0, error.is(Detail::Undecided)))
            }
            _ => None,
        })
        .collect();
    assert_eq!(lost, [(1, true), (2, false)]);
}

#[test]
fn a_full_directory_gets_no_more_containers_and_the_last_one_stays() {
    let mut world = World::new(2, 1);
    for (step, server) in [(1, 0), (2, 1), (3, 2)] {
        let message = Message::NotDurable {
            step: Step(step),
            level: Some(Level::Global),
            server: Some(TargetId(server)),
            kind: ErrorKind::NoSpace,
            text: "full".into(),
        };
        let actions = world.lead.step(LeadEvent::FromNode(NodeId(0), message), 1);
        let placed = actions
            .iter()
            .any(|a| matches!(a, LeadAction::ToAll(Message::Placement { .. })));
        // Breaks if: replace() drops the last directory (unwrap the error of `without`).
        assert_eq!(placed, step < 3, "step {step}");
    }
}
