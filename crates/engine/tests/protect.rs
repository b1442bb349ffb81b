//! Tests replicas under every order of events that a seed can produce: each connection is in order,
//! everything else is not.
#![allow(clippy::unwrap_used)]

use orcheck_engine::replicas::{
    ConnSlot, Keeper, KeeperAction, KeeperEvent, Owner, OwnerAction, OwnerEvent, PIECE_BYTES,
};
use orcheck_format::disk::FileName;
use orcheck_format::wire::Message;
use orcheck_format::{Epoch, Error, ErrorKind, NodeId, RunId, Step, WriterId, crc64};
use proptest::prelude::*;
use std::collections::{BTreeMap, VecDeque};

const EPOCH: Epoch = Epoch {
    counter: 5,
    run: RunId([9; 16]),
};
const CREDIT_BYTES: u64 = 3 * PIECE_BYTES / 2;

fn container(step: u64, node: NodeId) -> String {
    container_of(EPOCH, step, node)
}

fn container_of(epoch: Epoch, step: u64, node: NodeId) -> String {
    let name = FileName::Container {
        step: Step(step),
        epoch: epoch.counter,
        run: epoch.run.short_bytes(),
        node,
        writer: WriterId(0),
    };
    name.to_string()
}

/// A keeper to which nodes 0 … 7 are connected, each by the connection of its number.
fn keeper(budget_bytes: u64, credit_bytes: u64) -> Keeper {
    let mut keeper = Keeper::new(EPOCH, budget_bytes, credit_bytes);
    for node in 0..8 {
        assert!(
            keeper
                .step(KeeperEvent::Came(node, NodeId(node)))
                .is_empty()
        );
    }
    keeper
}

/// A piece of a container stands for its bytes: their checksum is what has to arrive.
fn content(node: NodeId, bytes: u64) -> Vec<u8> {
    let words = (0..bytes / 8).flat_map(|i| (i ^ u64::from(node) << 40).to_le_bytes());
    words.collect()
}

enum OnTheWay {
    Message(Message),
    Data(u32, u64, Vec<u8>),
    Closed,
}

/// Something that a disk has yet to do.
enum Work {
    Write(ConnSlot, u64, Vec<u8>),
    Sync(ConnSlot),
}

#[derive(Default)]
struct Disk {
    files: BTreeMap<ConnSlot, (String, Vec<u8>, bool)>,
    work: VecDeque<Work>,
}

/// Nodes that each bring one container to all the others they chose.
struct World {
    owners: Vec<(Owner, Vec<u8>, u64)>,
    keepers: Vec<Keeper>,
    disks: Vec<Disk>,
    /// By sender and receiver; owners and keepers of two nodes talk over one connection each way.
    to_keeper: BTreeMap<(u32, u32), VecDeque<OnTheWay>>,
    to_owner: BTreeMap<(u32, u32), VecDeque<OnTheWay>>,
    outcome: Vec<Option<Result<(), Error>>>,
    budget_bytes: u64,
}

impl World {
    fn new(holders: &[Vec<u32>], bytes: u64, budget_bytes: u64) -> Self {
        let mut this = Self {
            owners: Vec::new(),
            keepers: holders
                .iter()
                .map(|_| keeper(budget_bytes, CREDIT_BYTES))
                .collect(),
            disks: holders.iter().map(|_| Disk::default()).collect(),
            to_keeper: BTreeMap::new(),
            to_owner: BTreeMap::new(),
            outcome: vec![None; holders.len()],
            budget_bytes,
        };
        for (node, holders) in (0..).zip(holders) {
            let holders: Vec<NodeId> = holders.iter().copied().map(NodeId).collect();
            let (owner, actions) = Owner::new(node, &container(1, NodeId(node)), bytes, &holders);
            this.owners.push((owner, content(NodeId(node), bytes), 0));
            this.of_owner(NodeId(node), actions);
        }
        this
    }

    fn of_owner(&mut self, node: NodeId, actions: Vec<OwnerAction>) {
        for action in actions {
            match action {
                OwnerAction::To(holder, message) => {
                    let way = self.to_keeper.entry((node.0, holder.0)).or_default();
                    way.push_back(OnTheWay::Message(message));
                }
                OwnerAction::Send(holder, at, len) => {
                    assert!(len <= PIECE_BYTES);
                    let bytes = self.owners[node.index()].1[at as usize..][..len as usize].to_vec();
                    let way = self.to_keeper.entry((node.0, holder.0)).or_default();
                    way.push_back(OnTheWay::Data(node.0, at, bytes));
                }
                OwnerAction::Sent(_) => {}
                OwnerAction::Finish(..) => panic!("these are replicas"),
                OwnerAction::Done => self.decide(node, Ok(())),
                OwnerAction::Lost(error) => self.decide(node, Err(error)),
            }
        }
    }

    fn decide(&mut self, node: NodeId, outcome: Result<(), Error>) {
        assert!(self.outcome[node.index()].is_none(), "decided twice");
        self.outcome[node.index()] = Some(outcome);
    }

    fn of_keeper(&mut self, node: NodeId, actions: Vec<KeeperAction>) {
        for action in actions {
            let disk = &mut self.disks[node.index()];
            match action {
                KeeperAction::To(owner, message) => {
                    let way = self.to_owner.entry((node.0, owner)).or_default();
                    way.push_back(OnTheWay::Message(message));
                }
                KeeperAction::Create(place, file, _) => {
                    disk.files.insert(place, (file, Vec::new(), false));
                }
                KeeperAction::Write(..) => unreachable!("done where the bytes are"),
                KeeperAction::Sync(place, _) => disk.work.push_back(Work::Sync(place)),
                KeeperAction::Remove(place, file) => {
                    assert_eq!(disk.files.remove(&place).unwrap().0, file);
                }
                KeeperAction::HangUp(owner, _) => {
                    self.to_keeper.remove(&(owner, node.0));
                    let way = self.to_owner.entry((node.0, owner)).or_default();
                    way.push_back(OnTheWay::Closed);
                }
            }
        }
        let used = self.keepers[node.index()].used_bytes();
        // Breaks if: a reservation is not checked against what is left.
        assert!(used <= self.budget_bytes, "{used} of {}", self.budget_bytes);
    }

    /// One thing that can happen, chosen by `choice`; false when nothing can.
    fn happen(&mut self, choice: u64) -> bool {
        let keepers = self.to_keeper.iter().filter(|(_, way)| !way.is_empty());
        let owners = self.to_owner.iter().filter(|(_, way)| !way.is_empty());
        let mut can: Vec<(u8, u32, u32)> = keepers.map(|(&(a, b), _)| (0, a, b)).collect();
        can.extend(owners.map(|(&(a, b), _)| (1, a, b)));
        for (node, disk) in (0..).zip(&self.disks) {
            can.extend((!disk.work.is_empty()).then_some((2, node, 0)));
        }
        for (node, (_, bytes, ready)) in (0..).zip(&self.owners) {
            can.extend((*ready <= bytes.len() as u64).then_some((3, node, 0)));
        }
        if can.is_empty() {
            return false;
        }
        match can[(choice % can.len() as u64) as usize] {
            (0, owner, keeper) => self.at_keeper(owner, NodeId(keeper)),
            (1, keeper, owner) => {
                let event = match self
                    .to_owner
                    .get_mut(&(keeper, owner))
                    .unwrap()
                    .pop_front()
                    .unwrap()
                {
                    OnTheWay::Message(message) => OwnerEvent::From(NodeId(keeper), message),
                    _ => OwnerEvent::Gone(
                        NodeId(keeper),
                        Error::unavailable("the peer closed the connection"),
                    ),
                };
                let actions = self.owners[owner as usize].0.step(event);
                self.of_owner(NodeId(owner), actions);
            }
            (2, node, _) => self.at_disk(NodeId(node)),
            (_, node, _) => {
                let (owner, bytes, ready) = &mut self.owners[node as usize];
                let len = bytes.len() as u64;
                let event = if *ready == len {
                    *ready += 1;
                    OwnerEvent::End(crc64(bytes))
                } else {
                    *ready = len.min(*ready + 1 + choice % (2 * PIECE_BYTES));
                    OwnerEvent::Ready(*ready)
                };
                let actions = owner.step(event);
                self.of_owner(NodeId(node), actions);
            }
        }
        true
    }

    fn at_keeper(&mut self, owner: u32, node: NodeId) {
        let way = self.to_keeper.get_mut(&(owner, node.0)).unwrap();
        let keeper = &mut self.keepers[node.index()];
        let actions = match way.pop_front().unwrap() {
            OnTheWay::Message(message) => keeper.step(KeeperEvent::From(owner, message)),
            OnTheWay::Data(slot, at, bytes) => {
                let event = KeeperEvent::Data(owner, slot, at, bytes.len() as u64);
                let mut actions = keeper.step(event);
                if let [KeeperAction::Write(place, at, _)] = actions[..] {
                    actions.clear();
                    self.disks[node.index()]
                        .work
                        .push_back(Work::Write(place, at, bytes));
                }
                actions
            }
            OnTheWay::Closed => keeper.step(KeeperEvent::Gone(owner)),
        };
        self.of_keeper(node, actions);
    }

    fn at_disk(&mut self, node: NodeId) {
        let disk = &mut self.disks[node.index()];
        let event = match disk.work.pop_front().unwrap() {
            Work::Write(place, at, bytes) => {
                let Some((_, file, _)) = disk.files.get_mut(&place) else {
                    return;
                };
                assert_eq!(file.len() as u64, at, "not in order");
                file.extend(&bytes);
                KeeperEvent::Written(place, bytes.len() as u64)
            }
            Work::Sync(place) => {
                let Some((_, file, durable)) = disk.files.get_mut(&place) else {
                    return;
                };
                *durable = true;
                KeeperEvent::Synced(place, crc64(file))
            }
        };
        let actions = self.keepers[node.index()].step(event);
        self.of_keeper(node, actions);
    }

    /// Every container that was called done is at all its holders, whole and durable.
    fn check(&self, holders: &[Vec<u32>]) {
        for (node, outcome) in (0..).zip(&self.outcome) {
            if !matches!(outcome, Some(Ok(()))) {
                continue;
            }
            for &holder in &holders[node as usize] {
                let name = container(1, NodeId(node));
                let found = self.disks[holder as usize]
                    .files
                    .values()
                    .find(|file| file.0 == name);
                let bytes = &self.owners[node as usize].1;
                // Breaks if: Done follows the first Held, or Finish.
                assert!(
                    found.is_some_and(|(_, file, durable)| file == bytes && *durable),
                    "{name} at {holder}"
                );
            }
        }
    }

    /// Lets everything happen that can.
    fn settle(&mut self, holders: &[Vec<u32>], choices: &mut dyn FnMut() -> u64) {
        while self.happen(choices()) {
            self.check(holders);
        }
    }
}

/// Every node's holders: the next `replicas` nodes.
fn ring(nodes: u32, replicas: u32) -> Vec<Vec<u32>> {
    let of = |node| (1..=replicas).map(|i| (node + i) % nodes).collect();
    (0..nodes).map(of).collect()
}

fn choices(seed: u64) -> impl FnMut() -> u64 {
    let mut state = seed | 1;
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state >> 8
    }
}

const BYTES: u64 = 2 * PIECE_BYTES + 4096;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn everything_arrives_in_any_order(nodes in 2u32..5, replicas in 1u32..4, seed: u64) {
        let holders = ring(nodes, replicas.min(nodes - 1));
        let mut world = World::new(&holders, BYTES, 4 * BYTES);
        world.settle(&holders, &mut choices(seed));
        prop_assert!(world.outcome.iter().all(|outcome| *outcome == Some(Ok(()))), "{:?}", world.outcome);
    }

    // Breaks if: a holder that is gone is not noticed, or the others are not told to let go: their
    // room stays taken.
    #[test]
    fn a_lost_connection_loses_what_was_on_it_and_frees_the_room(seed: u64, before in 0usize..40) {
        let holders = ring(3, 2);
        let mut world = World::new(&holders, BYTES, 4 * BYTES);
        let mut choose = choices(seed);
        for _ in 0..before {
            world.happen(choose());
        }
        // Node 0 and node 1 do not see each other any more.
        for (a, b) in [(0, 1), (1, 0)] {
            world.to_keeper.insert((a, b), VecDeque::from([OnTheWay::Closed]));
            world.to_owner.insert((a, b), VecDeque::from([OnTheWay::Closed]));
        }
        world.settle(&holders, &mut choose);
        for (node, outcome) in world.outcome.iter().enumerate() {
            let done = matches!(outcome, Some(Ok(())));
            prop_assert!(outcome.is_some() && (done || node < 2), "node {node}: {outcome:?}");
        }
        for (node, disk) in (0..).zip(&world.disks) {
            let incomplete = disk.files.values().filter(|(_, _, durable)| !durable).count();
            prop_assert_eq!(incomplete, 0, "node {}", node);
            let used: u64 = disk.files.values().map(|(_, bytes, _)| bytes.len() as u64).sum();
            prop_assert_eq!(world.keepers[node as usize].used_bytes(), used);
        }
    }

    // Breaks if: what one owner asks for counts for another one's room, or a slot is found by its
    // number alone.
    #[test]
    fn nonsense_costs_only_who_says_it(seed: u64, nonsense in prop::collection::vec(nonsense(), 1..12)) {
        let holders = vec![vec![1], vec![0], Vec::new()];
        let mut world = World::new(&holders, BYTES, 3 * BYTES);
        let mut choose = choices(seed);
        let way = world.to_keeper.entry((2, 1)).or_default();
        for (message, data) in nonsense {
            way.push_back(OnTheWay::Message(message));
            way.push_back(OnTheWay::Data(data.0, data.1, vec![7; data.2]));
        }
        world.settle(&holders, &mut choose);
        for node in [0, 1] {
            prop_assert_eq!(&world.outcome[node], &Some(Ok(())));
        }
    }
}

/// What another version, or somebody who has the key, might say to a keeper.
fn nonsense() -> impl Strategy<Value = (Message, (u32, u64, usize))> {
    let slot = 0u32..3;
    let message = prop_oneof![
        (slot.clone(), 0u32..4, 0u64..3 * BYTES).prop_map(|(slot, node, len_bytes)| {
            Message::Reserve {
                slot,
                file: container(7, NodeId(node)),
                len_bytes: len_bytes.min(BYTES),
            }
        }),
        (slot.clone(), any::<u64>()).prop_map(|(slot, len_bytes)| Message::Finish {
            slot,
            len_bytes,
            crc: 3
        }),
        slot.clone().prop_map(|slot| Message::LetGo { slot }),
        slot.clone().prop_map(|slot| Message::Held { slot }),
        Just(Message::Goodbye { node: NodeId(0) }),
    ];
    (
        message,
        (slot, prop_oneof![Just(0), any::<u64>()], 0usize..5000),
    )
}

fn reserved(
    keeper: &mut Keeper,
    node: NodeId,
    slot: u32,
    file: String,
    len_bytes: u64,
) -> Result<(), ErrorKind> {
    let reserve = Message::Reserve {
        slot,
        file,
        len_bytes,
    };
    keeper.step(KeeperEvent::Came(node.0, node));
    match &keeper.step(KeeperEvent::From(node.0, reserve))[..] {
        [
            KeeperAction::Create(..),
            KeeperAction::To(_, Message::Granted { .. }),
        ] => Ok(()),
        [KeeperAction::To(_, Message::Lost { kind, .. })] => Err(*kind),
        [.., KeeperAction::HangUp(_, error)] => Err(error.kind()),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_keeper_refuses_what_is_not_its_business() {
    let mut keeper = keeper(100, 50);
    let newer = Epoch {
        counter: 6,
        ..EPOCH
    };
    let other = Epoch {
        run: RunId([8; 16]),
        ..EPOCH
    };
    // Breaks if: the epoch of a container is not looked at; a run that this one does not know would
    // take the room.
    for epoch in [newer, other] {
        let refused = reserved(
            &mut keeper,
            NodeId(1),
            0,
            container_of(epoch, 1, NodeId(1)),
            10,
        );
        assert_eq!(refused, Err(ErrorKind::Fenced));
    }
    // What an older run left may come from anybody.
    let older = Epoch {
        counter: 4,
        ..EPOCH
    };
    let mut roomy = self::keeper(100, 50);
    assert_eq!(
        reserved(
            &mut roomy,
            NodeId(1),
            0,
            container_of(older, 1, NodeId(3)),
            10
        ),
        Ok(())
    );
    // Breaks if: the node in the name is not that of the connection.
    assert_eq!(
        reserved(&mut keeper, NodeId(1), 0, container(1, NodeId(2)), 10),
        Err(ErrorKind::Corrupt)
    );
    assert_eq!(
        reserved(&mut keeper, NodeId(1), 0, "../x".into(), 10),
        Err(ErrorKind::Corrupt)
    );
    assert_eq!(
        reserved(&mut keeper, NodeId(1), 0, container(1, NodeId(1)), 101),
        Err(ErrorKind::NoSpace)
    );
    assert_eq!(
        reserved(&mut keeper, NodeId(1), 0, container(1, NodeId(1)), 60),
        Ok(())
    );
    assert_eq!(
        reserved(&mut keeper, NodeId(2), 0, container(1, NodeId(2)), 41),
        Err(ErrorKind::NoSpace)
    );
    assert_eq!(
        reserved(&mut keeper, NodeId(2), 0, container(1, NodeId(2)), 40),
        Ok(())
    );
    assert_eq!(
        reserved(&mut keeper, NodeId(2), 0, container(2, NodeId(2)), 0),
        Err(ErrorKind::Corrupt),
        "slot in use"
    );
    assert_eq!(
        keeper.used_bytes(),
        60,
        "who broke the protocol lost its room"
    );
}

/// What comes of bytes in slot 0 of node 1, which asked for room for 100.
fn sent(
    pieces: &[(u64, u64)],
    finish: Option<(u64, u64)>,
    received_crc: u64,
) -> Result<(), ErrorKind> {
    let mut keeper = keeper(1000, 60);
    reserved(&mut keeper, NodeId(1), 0, container(1, NodeId(1)), 100).unwrap();
    let mut last = Vec::new();
    for &(at, len) in pieces {
        last = keeper.step(KeeperEvent::Data(1, 0, at, len));
        if let [KeeperAction::Write(place, ..)] = last[..] {
            last = keeper.step(KeeperEvent::Written(place, len));
        }
    }
    if let Some((len_bytes, crc)) = finish {
        last = keeper.step(KeeperEvent::From(
            1,
            Message::Finish {
                slot: 0,
                len_bytes,
                crc,
            },
        ));
        if let [KeeperAction::Sync(place, _)] = last[..] {
            last = keeper.step(KeeperEvent::Synced(place, received_crc));
        }
    }
    match &last[..] {
        [.., KeeperAction::HangUp(_, error)] => Err(error.kind()),
        [.., KeeperAction::To(_, Message::Lost { kind, .. })] => Err(*kind),
        _ => Ok(()),
    }
}

#[test]
fn bytes_come_in_order_within_their_room_and_whole() {
    assert_eq!(sent(&[(0, 50), (50, 50)], Some((100, 7)), 7), Ok(()));
    assert_eq!(
        sent(&[(0, 50)], Some((50, 7)), 7),
        Ok(()),
        "shorter than asked for"
    );
    let corrupt = Err(ErrorKind::Corrupt);
    assert_eq!(sent(&[(0, 50), (51, 10)], None, 0), corrupt, "a gap");
    assert_eq!(
        sent(&[(0, 50), (0, 50)], None, 0),
        corrupt,
        "the same again"
    );
    // Breaks if: the end is not compared with what was asked for.
    assert_eq!(
        sent(&[(0, 50), (50, 51)], None, 0),
        corrupt,
        "more than asked for"
    );
    assert_eq!(sent(&[(0, 61)], None, 0), corrupt, "more than the credit");
    assert_eq!(
        sent(&[(0, 50)], Some((51, 7)), 7),
        corrupt,
        "an end elsewhere"
    );
    // Breaks if: the checksum of the whole is not compared; a replica would be called good that is
    // not.
    assert_eq!(sent(&[(0, 50)], Some((50, 7)), 8), corrupt, "other bytes");
}

#[test]
fn an_owner_that_hears_nothing_names_who_is_slow() {
    let (mut owner, _) = Owner::new(0, &container(1, NodeId(0)), 100, &[NodeId(3), NodeId(4)]);
    let granted = Message::Granted {
        slot: 0,
        credit_bytes: 100,
    };
    owner.step(OwnerEvent::From(NodeId(3), granted));
    owner.step(OwnerEvent::Ready(60));
    let actions = owner.step(OwnerEvent::Deadline);
    let Some(OwnerAction::Lost(error)) = actions.last() else {
        panic!("{actions:?}")
    };
    assert!(
        error
            .message()
            .contains("node 3 (60 bytes sent), node 4 (asked for room)"),
        "{error}"
    );
    assert_eq!(actions.len(), 3, "both are told to let go");
    assert!(owner.step(OwnerEvent::End(1)).is_empty(), "decided once");
}

#[test]
fn pieces_go_to_all_holders_in_turn_as_they_were_drawn() {
    let (mut owner, _) = Owner::new(
        3,
        &container(1, NodeId(0)),
        3 * PIECE_BYTES,
        &[NodeId(5), NodeId(2)],
    );
    for node in [2, 5] {
        let granted = Message::Granted {
            slot: 3,
            credit_bytes: 2 * PIECE_BYTES,
        };
        assert!(
            owner
                .step(OwnerEvent::From(NodeId(node), granted))
                .is_empty()
        );
    }
    let actions = owner.step(OwnerEvent::Ready(3 * PIECE_BYTES));
    // Breaks if: one holder gets all that its credit allows before the next: of the links of k
    // holders one is busy, and the nodes with low numbers are everybody's first.
    let piece = |node, nth| OwnerAction::Send(node, nth * PIECE_BYTES, PIECE_BYTES);
    let mut expected: Vec<OwnerAction> = [0, 1]
        .iter()
        .flat_map(|&nth| [piece(NodeId(5), nth), piece(NodeId(2), nth)])
        .collect();
    expected.push(OwnerAction::Sent(2 * PIECE_BYTES));
    assert_eq!(actions, expected);
}

#[test]
fn without_holders_there_is_nothing_to_wait_for() {
    let (mut owner, actions) = Owner::new(0, &container(1, NodeId(0)), 100, &[]);
    assert!(actions.is_empty());
    assert_eq!(owner.step(OwnerEvent::Ready(60)), [OwnerAction::Sent(60)]);
    assert_eq!(owner.step(OwnerEvent::End(1)), [OwnerAction::Done]);
}
