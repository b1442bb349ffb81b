//! One simulated job: nodes with their disks, the lead, and everything that is on its way between
//! them.
//!
//! Whatever can happen next is a list; the seed chooses. Connections keep their order, as TCP does,
//! unless a fault says otherwise; nothing else does. A node flushes one step after the other;
//! checkpoints come as fast as they can.
//!
//! Checked whenever the lead says that a step is committed: each of its containers is durable with
//! its owner and all its holders and every node has the record (nodes that are dead by then are
//! excused). After every event: no node changes its mind, nor was told by nobody, nor loses the
//! record of what it was told to be committed.

mod lead;

use crate::Random;
use crate::fault::Fault;
use crate::material::Material;
use orcheck_engine::commit::{
    JobFacts, LeadEvent, LeadState, NodeAction, NodeEvent, NodeState, Relay, RelayEvent, Tree,
};
use orcheck_engine::node::Outcome;
use orcheck_engine::replicas::{
    ConnSlot, Keeper, KeeperAction, KeeperEvent, Owner, OwnerAction, OwnerEvent, PIECE_BYTES,
};
use orcheck_format::disk::{ContainerRef, FileName};
use orcheck_format::wire::Message;
use orcheck_format::{Error, JobName, Level, NodeId, Step, crc64};
use orcheck_placement::{Domains, Draw};
use orcheck_testing::power::Content;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// Files of a node that are durable, by name.
pub type Disk = BTreeMap<String, Arc<Content>>;

enum Peer {
    Message(Message),
    Data(u32, u64, Vec<u8>),
    Closed,
}

enum Work {
    Write(ConnSlot, u64, Vec<u8>),
    Sync(ConnSlot),
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
    relay: Relay,
    keeper: Keeper,
    /// Incomplete files of others.
    incoming: BTreeMap<ConnSlot, (String, Vec<u8>)>,
    disk: Disk,
    work: VecDeque<Work>,
    disk_fails: bool,
    flush: Option<Flush>,
    next_step: u64,
    told: BTreeMap<u64, Outcome>,
    stalled_until: u64,
    slow_until: u64,
}

/// The job; see the module.
pub struct World<'a> {
    material: &'a Material,
    job: JobName,
    steps: u64,
    random: Random,
    nodes: Vec<Option<Node>>,
    tree: Tree,
    lead: LeadState,
    clock_unix_ms: u64,
    /// Steps that the lead said to be committed.
    committed: BTreeSet<u64>,
    /// To a keeper: owner, holder. To an owner: holder, owner.
    to_keeper: BTreeMap<(u32, u32), VecDeque<Peer>>,
    to_owner: BTreeMap<(u32, u32), VecDeque<Peer>>,
    /// Between a node and the one above it in the tree to the lead.
    to_lead: BTreeMap<u32, VecDeque<Option<Message>>>,
    from_lead: BTreeMap<u32, VecDeque<Option<Message>>>,
    /// Nodes whose connection to the one above is gone: it does not come again.
    without_lead: BTreeSet<u32>,
    repeats: BTreeSet<u32>,
    reorders: BTreeSet<u32>,
    dead: BTreeSet<u32>,
    /// Of those that are dead, the disks that are there.
    kept: BTreeMap<u32, Disk>,
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

impl Can {
    /// Where it happens.
    fn at(self) -> u32 {
        match self {
            Can::ToKeeper(_, at) | Can::ToOwner(_, at) => at,
            Can::ToLead(_) => 0,
            Can::FromLead(at) | Can::Disk(at) | Can::Flush(at) => at,
        }
    }
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
            groups: vec![],
        };
        let level = Level::Peers(material.replicas as u8);
        // Half of the jobs have relays.
        let fan_out = [2, 3, 64, 64][seed as usize % 4];
        let tree = Tree::new(nodes, fan_out);
        let node = |node: u32| {
            let mut keeper = Keeper::new(material.epoch, u64::MAX, 2 * PIECE_BYTES);
            // Each pair of nodes has one connection, known by the other's number.
            for other in 0..nodes {
                keeper.step(KeeperEvent::Came(other, NodeId(other)));
            }
            Some(Node {
                state: NodeState::new(NodeId(node), 1, vec![level]),
                relay: Relay::new(tree, NodeId(node)),
                keeper,
                incoming: BTreeMap::new(),
                disk: material.small.clone(),
                work: VecDeque::new(),
                disk_fails: false,
                flush: None,
                next_step: 1,
                told: BTreeMap::new(),
                stalled_until: 0,
                slow_until: 0,
            })
        };
        Self {
            material,
            job,
            steps,
            random: Random::new(seed),
            nodes: (0..nodes).map(node).collect(),
            tree,
            lead: LeadState::new(facts, None),
            clock_unix_ms: 1,
            committed: BTreeSet::new(),
            to_keeper: BTreeMap::new(),
            to_owner: BTreeMap::new(),
            to_lead: BTreeMap::new(),
            from_lead: BTreeMap::new(),
            without_lead: BTreeSet::new(),
            repeats: BTreeSet::new(),
            reorders: BTreeSet::new(),
            dead: BTreeSet::new(),
            kept: BTreeMap::new(),
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
            self.check_node(choice.at());
        }
    }

    pub fn events(&self) -> u64 {
        self.happened
    }

    pub fn struck(&self) -> u64 {
        self.struck
    }

    /// Nodes that are gone with their disks.
    pub fn lost(&self) -> BTreeSet<u32> {
        let gone = self.dead.iter().copied();
        gone.filter(|node| !self.kept.contains_key(node)).collect()
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
            .chain(self.kept.clone())
            .collect()
    }

    fn alive(&mut self, node: u32) -> Option<&mut Node> {
        self.nodes[node as usize].as_mut()
    }

    fn strike(&mut self, fault: Fault) {
        self.struck += 1;
        match fault {
            Fault::Dies(_, node) => drop(self.die(node)),
            Fault::Crashes(_, node) => {
                if let Some(disk) = self.die(node) {
                    self.kept.insert(node, disk);
                }
            }
            Fault::Repeats(_, node) => drop(self.repeats.insert(node)),
            Fault::Reorders(_, node) => drop(self.reorders.insert(node)),
            Fault::Clock(_, unix_ms) => self.clock_unix_ms = unix_ms,
            Fault::Slow(_, node, events) => {
                let until = self.happened + events;
                if let Some(node) = self.alive(node) {
                    node.slow_until = until;
                }
            }
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

    fn die(&mut self, node: u32) -> Option<Disk> {
        let gone = self.nodes[node as usize].take()?;
        self.dead.insert(node);
        for other in 0..self.nodes.len() as u32 {
            self.cut(node, other);
        }
        self.tree
            .below(NodeId(node))
            .for_each(|below| self.cut_lead(below));
        self.cut_lead(node);
        Some(gone.disk)
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
        let (dead, tree) = (&self.dead, self.tree);
        self.to_keeper
            .retain(|(_, at), way| !dead.contains(at) && !way.is_empty());
        self.to_owner
            .retain(|(_, at), way| !dead.contains(at) && !way.is_empty());
        self.from_lead
            .retain(|at, way| !dead.contains(at) && !way.is_empty());
        self.to_lead.retain(|&node, way| {
            tree.above(NodeId(node))
                .is_some_and(|at| !dead.contains(&at.0))
                && !way.is_empty()
        });
        let mut can = Vec::new();
        let keepers = self.to_keeper.keys().filter(|(_, at)| self.awake(*at));
        can.extend(keepers.map(|&(owner, at)| Can::ToKeeper(owner, at)));
        let owners = self.to_owner.keys().filter(|(_, at)| self.awake(*at));
        can.extend(owners.map(|&(keeper, at)| Can::ToOwner(keeper, at)));
        let heard = self.to_lead.keys();
        let heard =
            heard.filter(|&&node| tree.above(NodeId(node)).is_some_and(|at| self.awake(at.0)));
        can.extend(heard.map(|&node| Can::ToLead(node)));
        let told = self.from_lead.keys().filter(|at| self.awake(**at));
        can.extend(told.map(|&node| Can::FromLead(node)));
        for (node, one) in (0..).zip(&self.nodes) {
            let Some(one) = one else { continue };
            if !self.awake(node) {
                continue;
            }
            if !one.work.is_empty() && one.slow_until <= self.happened {
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
                .any(|one| one.stalled_until.max(one.slow_until) > self.happened)
        {
            // Only who is stalled could do anything: time continues.
            for one in self.nodes.iter_mut().flatten() {
                one.stalled_until = 0;
                one.slow_until = 0;
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
                        node.keeper.step(KeeperEvent::Came(owner, NodeId(owner)));
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
                        OwnerEvent::From(NodeId(keeper), message)
                    }
                    _ => OwnerEvent::Gone(
                        NodeId(keeper),
                        Error::unavailable("the peer closed the connection"),
                    ),
                };
                self.owner(at, event);
            }
            Can::ToLead(node) => {
                let Some(one) = self.next_of(node, true) else {
                    return;
                };
                let gone = || Error::unavailable("the peer closed the connection");
                match self.tree.above(NodeId(node)) {
                    Some(NodeId(0)) => self.tell_lead(match one {
                        Some(message) => LeadEvent::FromNode(NodeId(node), message),
                        None => LeadEvent::NodeGone(NodeId(node), gone()),
                    }),
                    Some(at) => {
                        let event = match one {
                            Some(message) => RelayEvent::FromBelow(NodeId(node), message),
                            None => RelayEvent::Gone(NodeId(node), gone()),
                        };
                        self.tell_relay(at.0, event);
                    }
                    None => {}
                }
            }
            Can::FromLead(node) => {
                let Some(one) = self.next_of(node, false) else {
                    return;
                };
                let (of_relay, of_node) = match one {
                    Some(message) => (
                        RelayEvent::FromAbove(message.clone()),
                        NodeEvent::FromLead(message),
                    ),
                    None => (
                        RelayEvent::AboveGone,
                        NodeEvent::LeadGone(Error::unavailable("the peer closed the connection")),
                    ),
                };
                self.tell_relay(node, of_relay);
                self.tell_node(node, of_node);
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
            let (container, content) = &material.containers[&(step, NodeId(at))];
            let draw = Draw {
                job: &job,
                epoch: material.epoch,
                step: Step(step),
            };
            let holders = draw
                .holders(
                    &Domains::none(material.nodes),
                    NodeId(at),
                    material.replicas,
                )
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
                    self.send_to_keeper(at, holder.0, Peer::Message(message));
                }
                OwnerAction::Send(holder, from, len) => {
                    let bytes = flush.content.bytes()[from as usize..][..len as usize].to_vec();
                    self.send_to_keeper(at, holder.0, Peer::Data(step as u32, from, bytes));
                }
                OwnerAction::Sent(_) => {}
                OwnerAction::Finish(..) => panic!("these are replicas"),
                OwnerAction::Done => {
                    let container = flush.container.clone();
                    self.end_flush(at);
                    let durable = Message::Durable {
                        step: Step(step),
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
                        step: Step(step),
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
                    let name = FileName::commit(Step(step), self.material.epoch, level).to_string();
                    node.disk.insert(name, Content::new(bytes));
                    Ok(())
                };
                return self.tell_node(at, NodeEvent::RecordWritten(Step(step), level, result));
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
                    if at == 0 {
                        self.tell_lead(LeadEvent::FromNode(NodeId(0), message));
                    } else if self.tree.relays().contains(&at) {
                        self.tell_relay(at, RelayEvent::FromBelow(NodeId(at), message));
                    } else {
                        self.send_up(at, message);
                    }
                }
                NodeAction::Publish(step, _, outcome) => {
                    // The first cause of a loss stays, on the board that ranks look at.
                    let committed = outcome == Outcome::Committed;
                    assert!(
                        !committed || self.committed.contains(&step.0),
                        "node {at} was told that step {step} is committed, by nobody"
                    );
                    let Some(node) = self.nodes[at as usize].as_mut() else {
                        return;
                    };
                    let before = node.told.entry(step.0).or_insert(outcome);
                    assert_eq!(
                        *before == Outcome::Committed,
                        committed,
                        "node {at} changed its mind of step {step}"
                    );
                }
                NodeAction::WriteRecord(step, level, bytes) => {
                    if let Some(node) = self.alive(at) {
                        node.work.push_back(Work::Record(step.0, level, bytes));
                    }
                }
                NodeAction::Lanes(..) | NodeAction::Gone(_) => {}
            }
        }
    }
}
