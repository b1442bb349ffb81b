//! One simulated job: nodes with their disks, the lead, and everything that is on its way between them.
//!
//! Whatever can happen next is a list; the seed chooses. Connections keep their order, as TCP does; nothing else does. A
//! node flushes one step after the other; checkpoints come as fast as they can.
//!
//! Checked whenever the lead says that a step is committed: each of its containers is durable with its owner and all its
//! holders and every node has the record (nodes that are dead by then are excused); no node changes its mind.

use crate::Random;
use crate::material::Material;
use orcheck_engine::index::Outcome;
use orcheck_engine::protect::{
    Keeper, KeeperAction, KeeperEvent, Owner, OwnerAction, OwnerEvent, PIECE_BYTES, Place,
};
use orcheck_engine::protocol::{
    JobFacts, LeadAction, LeadEvent, LeadState, NodeAction, NodeEvent, NodeState,
};
use orcheck_format::crc::crc64;
use orcheck_format::error::Error;
use orcheck_format::ids::{JobName, Level};
use orcheck_format::record::{CommitRecord, ContainerRef};
use orcheck_format::wire::Message;
use orcheck_io::testing::image::Content;
use orcheck_redundancy::{Domains, Draw};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// Files of a node that are durable, by name.
pub type Disk = BTreeMap<String, Arc<Content>>;

/// Something that goes wrong after so many events.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Fault {
    /// A node is gone, with its disk.
    Dies(u64, u32),
    /// Two nodes do not see each other for a moment: what is between their agents breaks.
    Cut(u64, u32, u32),
    /// A node and the lead do not see each other any more.
    LeadCut(u64, u32),
    /// The next thing that a node's disk should do fails.
    DiskFails(u64, u32),
    /// Nothing happens on a node for so many events.
    Stalls(u64, u32, u64),
}

impl Fault {
    pub fn draw(random: &mut Random, nodes: u32) -> Self {
        let mut node = || random.below(u64::from(nodes)) as u32;
        let (a, b) = (node(), node());
        let when = random.below(u64::from(nodes) * 70);
        match random.below(6) {
            0 | 1 => Fault::Dies(when, a),
            2 => Fault::Cut(when, a, b),
            3 => Fault::LeadCut(when, a),
            4 => Fault::DiskFails(when, a),
            _ => Fault::Stalls(when, a, 100 + random.below(2000)),
        }
    }

    fn when(self) -> u64 {
        match self {
            Fault::Dies(when, _)
            | Fault::Cut(when, ..)
            | Fault::LeadCut(when, _)
            | Fault::DiskFails(when, _)
            | Fault::Stalls(when, ..) => when,
        }
    }
}

enum Peer {
    Message(Message),
    Data(u32, u64, Vec<u8>),
    Closed,
}

enum Work {
    Write(Place, u64, Vec<u8>),
    Sync(Place),
    Record(u64, Level, Vec<u8>),
}

/// One container on its way, and how much of it there is.
struct Flush {
    step: u64,
    owner: Owner,
    container: ContainerRef,
    content: Arc<Content>,
    ready_bytes: u64,
    ended: bool,
}

struct Node {
    state: NodeState,
    keeper: Keeper,
    /// Incomplete files of others.
    incoming: BTreeMap<Place, (String, Vec<u8>)>,
    disk: Disk,
    work: VecDeque<Work>,
    disk_fails: bool,
    flush: Option<Flush>,
    next_step: u64,
    told: BTreeMap<u64, Outcome>,
    stalled_until: u64,
}

/// The job; see the module.
pub struct World<'a> {
    material: &'a Material,
    job: JobName,
    steps: u64,
    random: Random,
    nodes: Vec<Option<Node>>,
    lead: LeadState,
    /// To a keeper: owner, holder. To an owner: holder, owner.
    to_keeper: BTreeMap<(u32, u32), VecDeque<Peer>>,
    to_owner: BTreeMap<(u32, u32), VecDeque<Peer>>,
    to_lead: BTreeMap<u32, VecDeque<Option<Message>>>,
    from_lead: BTreeMap<u32, VecDeque<Option<Message>>>,
    /// Nodes whose connection to the lead is gone: it does not come again.
    without_lead: BTreeSet<u32>,
    dead: BTreeSet<u32>,
    happened: u64,
    struck: u64,
}

#[derive(Clone, Copy)]
enum Can {
    ToKeeper(u32, u32),
    ToOwner(u32, u32),
    ToLead(u32),
    FromLead(u32),
    Disk(u32),
    Flush(u32),
}

impl<'a> World<'a> {
    pub fn new(material: &'a Material, steps: u64, seed: u64) -> Self {
        let nodes = material.nodes;
        let job = JobName::new("job").unwrap();
        let facts = JobFacts {
            job: job.clone(),
            epoch: material.epoch,
            world_size: nodes,
            nodes: (0..nodes).map(|node| format!("n{node}")).collect(),
            servers: Vec::new(),
            node_root: "/local".into(),
        };
        let level = Level::Peers(material.replicas as u8);
        let node = |node: u32| {
            let mut keeper = Keeper::new(material.epoch, u64::MAX, 2 * PIECE_BYTES);
            // Each pair of nodes has one connection, known by the other's number.
            for other in 0..nodes {
                keeper.step(KeeperEvent::Came(other, other));
            }
            Some(Node {
                state: NodeState::new(node, 1, vec![level]),
                keeper,
                incoming: BTreeMap::new(),
                disk: material.small.clone(),
                work: VecDeque::new(),
                disk_fails: false,
                flush: None,
                next_step: 1,
                told: BTreeMap::new(),
                stalled_until: 0,
            })
        };
        Self {
            material,
            job,
            steps,
            random: Random::new(seed),
            nodes: (0..nodes).map(node).collect(),
            lead: LeadState::new(facts, None),
            to_keeper: BTreeMap::new(),
            to_owner: BTreeMap::new(),
            to_lead: BTreeMap::new(),
            from_lead: BTreeMap::new(),
            without_lead: BTreeSet::new(),
            dead: BTreeSet::new(),
            happened: 0,
            struck: 0,
        }
    }

    /// Lets everything happen that can, with these faults on the way.
    pub fn run(&mut self, faults: &[Fault]) {
        let mut faults = faults.to_vec();
        faults.sort_by_key(|fault| fault.when());
        let mut faults = VecDeque::from(faults);
        loop {
            while faults
                .front()
                .is_some_and(|fault| fault.when() <= self.happened)
            {
                if let Some(fault) = faults.pop_front() {
                    self.strike(fault);
                }
            }
            let can = self.can();
            if can.is_empty() {
                return;
            }
            let choice = can[self.random.below(can.len() as u64) as usize];
            self.happened += 1;
            self.happen(choice);
        }
    }

    pub fn events(&self) -> u64 {
        self.happened
    }

    pub fn struck(&self) -> u64 {
        self.struck
    }

    pub fn dead(&self) -> BTreeSet<u32> {
        self.dead.clone()
    }

    /// Steps that some node was told to be committed.
    pub fn acknowledged(&self) -> BTreeSet<u64> {
        let told = self.nodes.iter().flatten().flat_map(|node| &node.told);
        told.filter(|(_, outcome)| **outcome == Outcome::Committed)
            .map(|(&step, _)| step)
            .collect()
    }

    /// What every node that is left has on its disk.
    pub fn disks(&self) -> BTreeMap<u32, Disk> {
        let left = (0..).zip(&self.nodes);
        left.filter_map(|(node, one)| Some((node, one.as_ref()?.disk.clone())))
            .collect()
    }

    fn alive(&mut self, node: u32) -> Option<&mut Node> {
        self.nodes[node as usize].as_mut()
    }

    fn strike(&mut self, fault: Fault) {
        self.struck += 1;
        match fault {
            Fault::Dies(_, node) => self.die(node),
            Fault::Cut(_, a, b) if a != b => self.cut(a, b),
            Fault::Cut(..) => {}
            // The lead is on node 0.
            Fault::LeadCut(_, 0) => {}
            Fault::LeadCut(_, node) => self.cut_lead(node),
            Fault::DiskFails(_, node) => {
                if let Some(node) = self.alive(node) {
                    node.disk_fails = true;
                }
            }
            Fault::Stalls(_, node, events) => {
                let until = self.happened + events;
                if let Some(node) = self.alive(node) {
                    node.stalled_until = until;
                }
            }
        }
    }

    fn die(&mut self, node: u32) {
        if self.nodes[node as usize].take().is_none() {
            return;
        }
        self.dead.insert(node);
        for other in 0..self.nodes.len() as u32 {
            self.cut(node, other);
            if node == 0 {
                self.cut_lead(other);
            }
        }
        self.cut_lead(node);
    }

    /// What is on its way between two nodes is gone, and both notice.
    fn cut(&mut self, a: u32, b: u32) {
        for pair in [(a, b), (b, a)] {
            self.to_keeper.insert(pair, VecDeque::from([Peer::Closed]));
            self.to_owner.insert(pair, VecDeque::from([Peer::Closed]));
        }
    }

    fn cut_lead(&mut self, node: u32) {
        self.without_lead.insert(node);
        self.to_lead.insert(node, VecDeque::from([None]));
        self.from_lead.insert(node, VecDeque::from([None]));
    }

    /// Whether a node does anything now.
    fn awake(&self, node: u32) -> bool {
        self.nodes[node as usize]
            .as_ref()
            .is_some_and(|one| one.stalled_until <= self.happened)
    }

    fn can(&mut self) -> Vec<Can> {
        // Who is dead hears nothing.
        let dead = &self.dead;
        self.to_keeper
            .retain(|(_, at), way| !dead.contains(at) && !way.is_empty());
        self.to_owner
            .retain(|(_, at), way| !dead.contains(at) && !way.is_empty());
        self.from_lead
            .retain(|at, way| !dead.contains(at) && !way.is_empty());
        self.to_lead
            .retain(|_, way| !dead.contains(&0) && !way.is_empty());
        let mut can = Vec::new();
        let keepers = self.to_keeper.keys().filter(|(_, at)| self.awake(*at));
        can.extend(keepers.map(|&(owner, at)| Can::ToKeeper(owner, at)));
        let owners = self.to_owner.keys().filter(|(_, at)| self.awake(*at));
        can.extend(owners.map(|&(keeper, at)| Can::ToOwner(keeper, at)));
        if self.awake(0) {
            can.extend(self.to_lead.keys().map(|&node| Can::ToLead(node)));
        }
        let told = self.from_lead.keys().filter(|at| self.awake(**at));
        can.extend(told.map(|&node| Can::FromLead(node)));
        for (node, one) in (0..).zip(&self.nodes) {
            let Some(one) = one else { continue };
            if !self.awake(node) {
                continue;
            }
            if !one.work.is_empty() {
                can.push(Can::Disk(node));
            }
            let begins = one.flush.is_none() && one.next_step <= self.steps && self.dead.is_empty();
            let goes_on = one.flush.as_ref().is_some_and(|flush| !flush.ended);
            if begins || goes_on {
                can.push(Can::Flush(node));
            }
        }
        if can.is_empty()
            && self
                .nodes
                .iter()
                .flatten()
                .any(|one| one.stalled_until > self.happened)
        {
            // Only who is stalled could do anything: time goes on.
            for one in self.nodes.iter_mut().flatten() {
                one.stalled_until = 0;
            }
            return self.can();
        }
        can
    }

    fn happen(&mut self, what: Can) {
        match what {
            Can::ToKeeper(owner, at) => {
                let Some(one) = self
                    .to_keeper
                    .get_mut(&(owner, at))
                    .and_then(VecDeque::pop_front)
                else {
                    return;
                };
                let Some(node) = self.nodes[at as usize].as_mut() else {
                    return;
                };
                let actions = match one {
                    Peer::Message(message) => node.keeper.step(KeeperEvent::From(owner, message)),
                    Peer::Data(slot, from, bytes) => {
                        let event = KeeperEvent::Data(owner, slot, from, bytes.len() as u64);
                        let mut actions = node.keeper.step(event);
                        if let [KeeperAction::Write(place, from, _)] = actions[..] {
                            actions.clear();
                            node.work.push_back(Work::Write(place, from, bytes));
                        }
                        actions
                    }
                    Peer::Closed => {
                        let gone = node.keeper.step(KeeperEvent::Gone(owner));
                        // It comes again when it has something to say.
                        node.keeper.step(KeeperEvent::Came(owner, owner));
                        gone
                    }
                };
                self.of_keeper(at, actions);
            }
            Can::ToOwner(keeper, at) => {
                let Some(one) = self
                    .to_owner
                    .get_mut(&(keeper, at))
                    .and_then(VecDeque::pop_front)
                else {
                    return;
                };
                let event = match one {
                    Peer::Message(message) => {
                        let slot = match message {
                            Message::Granted { slot, .. }
                            | Message::Credit { slot, .. }
                            | Message::Held { slot }
                            | Message::Lost { slot, .. } => slot,
                            _ => u32::MAX,
                        };
                        let flush = self.alive(at).and_then(|node| node.flush.as_ref());
                        if flush.is_none_or(|flush| flush.step as u32 != slot) {
                            return;
                        }
                        OwnerEvent::From(keeper, message)
                    }
                    _ => OwnerEvent::Gone(
                        keeper,
                        Error::unavailable("the peer closed the connection"),
                    ),
                };
                self.owner(at, event);
            }
            Can::ToLead(node) => {
                let Some(one) = self.to_lead.get_mut(&node).and_then(VecDeque::pop_front) else {
                    return;
                };
                let event = match one {
                    Some(message) => LeadEvent::FromNode(node, message),
                    None => LeadEvent::NodeGone(
                        node,
                        Error::unavailable("the peer closed the connection"),
                    ),
                };
                self.tell_lead(event);
            }
            Can::FromLead(node) => {
                let Some(one) = self.from_lead.get_mut(&node).and_then(VecDeque::pop_front) else {
                    return;
                };
                let event = match one {
                    Some(message) => NodeEvent::FromLead(message),
                    None => {
                        NodeEvent::LeadGone(Error::unavailable("the peer closed the connection"))
                    }
                };
                self.tell_node(node, event);
            }
            Can::Disk(node) => self.at_disk(node),
            Can::Flush(node) => self.flush(node),
        }
    }

    fn flush(&mut self, at: u32) {
        let more = self.random.below(3);
        let (material, job) = (self.material, self.job.clone());
        let Some(node) = self.nodes[at as usize].as_mut() else {
            return;
        };
        let Some(flush) = &mut node.flush else {
            let step = node.next_step;
            node.next_step += 1;
            let (container, content) = &material.containers[&(step, at)];
            let draw = Draw {
                job: &job,
                epoch: material.epoch,
                step,
            };
            let holders = draw
                .holders(&Domains::none(material.nodes), at, material.replicas)
                .unwrap();
            let (owner, actions) =
                Owner::new(step as u32, &container.file, container.len_bytes, &holders);
            let mut container = container.clone();
            container.holders = holders;
            node.flush = Some(Flush {
                step,
                owner,
                container,
                content: Arc::clone(content),
                ready_bytes: 0,
                ended: false,
            });
            return self.of_owner(at, actions);
        };
        let len = flush.container.len_bytes;
        let event = if flush.ready_bytes == len {
            flush.ended = true;
            // The owner's own copy is durable, or the step is lost.
            if std::mem::take(&mut node.disk_fails) {
                OwnerEvent::GiveUp(Error::no_space("the disk is full"))
            } else {
                let content = Arc::clone(&flush.content);
                node.disk.insert(flush.container.file.clone(), content);
                OwnerEvent::End(crc64(&flush.content.bytes()))
            }
        } else {
            flush.ready_bytes = len.min(flush.ready_bytes + 4096 * (1 + more * 3));
            OwnerEvent::Ready(flush.ready_bytes)
        };
        self.owner(at, event);
    }

    fn owner(&mut self, at: u32, event: OwnerEvent) {
        let Some(flush) = self.alive(at).and_then(|node| node.flush.as_mut()) else {
            return;
        };
        let actions = flush.owner.step(event);
        self.of_owner(at, actions);
    }

    fn of_owner(&mut self, at: u32, actions: Vec<OwnerAction>) {
        for action in actions {
            let Some(flush) = self.nodes[at as usize]
                .as_mut()
                .and_then(|node| node.flush.as_mut())
            else {
                return;
            };
            let step = flush.step;
            let level = Level::Peers(self.material.replicas as u8);
            match action {
                OwnerAction::To(holder, message) => {
                    self.send_to_keeper(at, holder, Peer::Message(message));
                }
                OwnerAction::Send(holder, from, len) => {
                    let bytes = flush.content.bytes()[from as usize..][..len as usize].to_vec();
                    self.send_to_keeper(at, holder, Peer::Data(step as u32, from, bytes));
                }
                OwnerAction::Sent(_) => {}
                OwnerAction::Done => {
                    let container = flush.container.clone();
                    self.end_flush(at);
                    let durable = Message::Durable {
                        step,
                        level,
                        container,
                    };
                    self.tell_node(at, NodeEvent::FromRank(durable));
                }
                OwnerAction::Lost(error) => {
                    let file = flush.container.file.clone();
                    self.end_flush(at);
                    if let Some(node) = self.alive(at) {
                        node.disk.remove(&file);
                    }
                    let lost = Message::NotDurable {
                        step,
                        level: Some(level),
                        server: None,
                        kind: error.kind(),
                        text: error.message().to_owned(),
                    };
                    self.tell_node(at, NodeEvent::FromRank(lost));
                }
            }
        }
    }

    fn end_flush(&mut self, at: u32) {
        if let Some(node) = self.alive(at) {
            node.flush = None;
        }
    }

    fn send_to_keeper(&mut self, owner: u32, holder: u32, what: Peer) {
        if self.dead.contains(&holder) {
            // Nobody answers there: it is noticed as any end of a connection.
            self.to_owner
                .insert((holder, owner), VecDeque::from([Peer::Closed]));
        } else {
            self.to_keeper
                .entry((owner, holder))
                .or_default()
                .push_back(what);
        }
    }

    fn of_keeper(&mut self, at: u32, actions: Vec<KeeperAction>) {
        for action in actions {
            let Some(node) = self.nodes[at as usize].as_mut() else {
                return;
            };
            match action {
                KeeperAction::To(owner, message) => {
                    if !self.dead.contains(&owner) {
                        let way = self.to_owner.entry((at, owner)).or_default();
                        way.push_back(Peer::Message(message));
                    }
                }
                KeeperAction::Create(place, file, _) => {
                    node.incoming.insert(place, (file, Vec::new()));
                }
                KeeperAction::Write(..) => unreachable!("done where the bytes are"),
                KeeperAction::Sync(place, _) => node.work.push_back(Work::Sync(place)),
                KeeperAction::Remove(place, _) => {
                    node.incoming.remove(&place);
                }
                KeeperAction::HangUp(owner, error) => {
                    panic!("node {at} hung up on {owner}: {error}")
                }
            }
        }
    }

    fn at_disk(&mut self, at: u32) {
        let Some(node) = self.nodes[at as usize].as_mut() else {
            return;
        };
        let Some(work) = node.work.pop_front() else {
            return;
        };
        let fails = std::mem::take(&mut node.disk_fails);
        let failed = || Error::unavailable("the disk failed");
        let event = match work {
            Work::Record(step, level, bytes) => {
                let result = if fails {
                    Err(failed())
                } else {
                    let name = orcheck_engine::commit::name_of(step, self.material.epoch, level);
                    node.disk.insert(name, Content::new(bytes));
                    Ok(())
                };
                return self.tell_node(at, NodeEvent::RecordWritten(step, level, result));
            }
            Work::Write(place, _, _) | Work::Sync(place) if fails => {
                KeeperEvent::Failed(place, failed())
            }
            Work::Write(place, from, bytes) => {
                let Some((_, file)) = node.incoming.get_mut(&place) else {
                    return;
                };
                assert_eq!(file.len() as u64, from);
                file.extend(&bytes);
                KeeperEvent::Written(place, bytes.len() as u64)
            }
            Work::Sync(place) => {
                let Some((name, file)) = node.incoming.remove(&place) else {
                    return;
                };
                let crc = crc64(&file);
                node.disk.insert(name, Content::new(file));
                KeeperEvent::Synced(place, crc)
            }
        };
        let actions = node.keeper.step(event);
        self.of_keeper(at, actions);
    }

    fn tell_node(&mut self, at: u32, event: NodeEvent) {
        let Some(node) = self.alive(at) else { return };
        for action in node.state.step(event) {
            match action {
                NodeAction::ToLead(message) => {
                    if at == 0 && !self.without_lead.contains(&0) {
                        self.tell_lead(LeadEvent::FromNode(0, message));
                    } else if !self.without_lead.contains(&at) {
                        self.to_lead.entry(at).or_default().push_back(Some(message));
                    }
                }
                NodeAction::Publish(step, _, outcome) => {
                    let Some(node) = self.alive(at) else {
                        return;
                    };
                    // The first cause of a loss stays, on the board that ranks look at.
                    let committed = outcome == Outcome::Committed;
                    let before = node.told.entry(step).or_insert(outcome);
                    assert_eq!(
                        *before == Outcome::Committed,
                        committed,
                        "node {at} changed its mind of step {step}"
                    );
                }
                NodeAction::WriteRecord(step, level, bytes) => {
                    if let Some(node) = self.alive(at) {
                        node.work.push_back(Work::Record(step, level, bytes));
                    }
                }
                NodeAction::Lanes(..) | NodeAction::Gone(_) => {}
            }
        }
    }

    fn tell_lead(&mut self, event: LeadEvent) {
        for action in self.lead.step(event, 1) {
            match action {
                LeadAction::ToNode(node, message) => self.send_from_lead(node, message),
                LeadAction::ToAll(message) => {
                    if let Message::Committed { step, .. } = message {
                        self.check_committed(step);
                    }
                    for node in 0..self.nodes.len() as u32 {
                        self.send_from_lead(node, message.clone());
                    }
                }
                LeadAction::WriteRecord(_) => unreachable!("there is no level global"),
            }
        }
    }

    fn send_from_lead(&mut self, node: u32, message: Message) {
        if node == 0 {
            self.tell_node(0, NodeEvent::FromLead(message));
        } else if !self.without_lead.contains(&node) {
            self.from_lead
                .entry(node)
                .or_default()
                .push_back(Some(message));
        }
    }

    /// Every node that is left has its copy of the record, its container and the replicas that it holds.
    fn check_committed(&self, step: u64) {
        let level = Level::Peers(self.material.replicas as u8);
        let name = orcheck_engine::commit::name_of(step, self.material.epoch, level);
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
                if container.node == at || container.holders.contains(&at) {
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
