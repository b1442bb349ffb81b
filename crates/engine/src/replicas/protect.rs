//! Implements replication of a node's containers on other nodes as two pure state machines.
//!
//! ```text
//! owner ──Reserve──▶ holder      room is set aside before a byte travels
//!       ◀──Granted── (credit)
//!       ──data──▶ … ◀──Credit──  never more on the way than the credit
//!       ──Finish──▶              the whole is checked and made durable
//!       ◀──Held──
//! ```
//!
//! An [`Owner`] brings one container to all its holders while it is being written. It sends bytes
//! as they become ready, to each holder as far as its credit allows, and releases them when the
//! slowest holder has them. A [`Keeper`] is a holder's side, for all owners.
//!
//! Invariants:
//! 1. `Done` comes only after every holder has reported the whole container durable, with the
//!    checksum of what was sent.
//! 2. A loss at one holder is final for the container, and the other holders are told to drop it.
//! 3. A keeper accepts bytes only into space that it granted, in order. It takes containers of this
//!    run only from the node that owns them, containers of older runs from any node, and none of a
//!    newer run.
//! 4. A keeper never grants more than its budget, and bytes in flight never exceed the credit that
//!    it gave.
//! 5. Whatever a peer sends, in whatever order, costs at most that peer's containers.
//!
//! Survives: holders that refuse, fail, vanish or violate the protocol; owners that vanish. Pure:
//! the drivers deliver messages, move the bytes, and watch the clock. Not here: who holds what
//! (`orcheck-placement`), when a step is committed (`protocol.rs`), the connection (`net::conn`).

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

use crate::replicas::part::Part;
use orcheck_format::disk::FileName;
use orcheck_format::sabotage::{Switch, off};
use orcheck_format::wire::Message;
use orcheck_format::{Epoch, Error, ErrorKind, NodeId};
use std::collections::{BTreeMap, BTreeSet};

/// Length of the longest piece that one frame carries.
pub const PIECE_BYTES: u64 = 4 << 20;
/// Maximum number of containers that one owner may bring at once.
const OPEN_MAX: usize = 64;

/// An event for an owner.
#[derive(Debug, Clone)]
pub enum OwnerEvent {
    /// A message of a holder about this container.
    From(NodeId, Message),
    /// The connection to a holder is gone.
    Gone(NodeId, Error),
    /// The container has this many bytes now.
    Ready(u64),
    /// It is complete; the checksum of what was sent to holders of the whole container.
    End(u64),
    /// It will not be completed.
    GiveUp(Error),
    /// Nothing has moved for too long.
    Deadline,
}

/// An action for an owner's driver.
#[derive(Debug, Clone, PartialEq)]
pub enum OwnerAction {
    /// Send to a holder.
    To(NodeId, Message),
    /// Send bytes of the container to a holder: offset in what it gets, length.
    Send(NodeId, u64, u64),
    /// Tell a holder of parity that it has all its bytes of a container of this length.
    Finish(NodeId, u64),
    /// Every holder has the bytes up to here; their memory may be reused.
    Sent(u64),
    /// Durable at every holder.
    Done,
    /// It never will be.
    Lost(Error),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Asked,
    Open,
    Finishing,
    Held,
}

#[derive(Debug)]
struct Holder {
    /// For messages.
    name: String,
    part: Part,
    phase: Phase,
    credit_bytes: u64,
    sent_bytes: u64,
}

/// One container on its way to its holders.
#[derive(Debug)]
pub struct Owner {
    slot: u32,
    /// The holders in the order of the draw.
    order: Vec<NodeId>,
    holders: BTreeMap<NodeId, Holder>,
    ready_bytes: u64,
    let_go_bytes: u64,
    end_crc: Option<u64>,
    decided: bool,
}

impl Owner {
    /// The transfer of container `file`, at most `most_bytes` long, to these holders; `slot`
    /// identifies it on the connections.
    #[must_use]
    pub fn new(
        slot: u32,
        file: &str,
        most_bytes: u64,
        holders: &[NodeId],
    ) -> (Self, Vec<OwnerAction>) {
        let whole = |&node: &NodeId| (node, file.to_owned(), Part::Whole);
        Self::of_parts(slot, most_bytes, holders.iter().map(whole).collect())
    }

    /// The transfer of parts of a container: to whom, for which file there, and what.
    #[must_use]
    pub fn of_parts(
        slot: u32,
        most_bytes: u64,
        parts: Vec<(NodeId, String, Part)>,
    ) -> (Self, Vec<OwnerAction>) {
        let reserve = |(node, file, _): &(NodeId, String, Part)| {
            let (file, len_bytes) = (file.clone(), most_bytes);
            let reserve = Message::Reserve {
                slot,
                file,
                len_bytes,
            };
            OwnerAction::To(*node, reserve)
        };
        let actions = parts.iter().map(reserve).collect();
        let asked = |(node, _, part): (NodeId, String, Part)| {
            let holder = Holder {
                name: node.to_string(),
                part,
                phase: Phase::Asked,
                credit_bytes: 0,
                sent_bytes: 0,
            };
            (node, holder)
        };
        let this = Self {
            slot,
            order: parts.iter().map(|(node, ..)| *node).collect(),
            holders: parts.into_iter().map(asked).collect(),
            ready_bytes: 0,
            let_go_bytes: 0,
            end_crc: None,
            decided: false,
        };
        (this, actions)
    }

    /// Where bytes of what a holder gets lie in the container: offsets and lengths, in order.
    #[must_use]
    pub fn ranges(&self, node: NodeId, at: u64, len: u64) -> Vec<(u64, u64)> {
        let part = self.holders.get(&node).map(|holder| &holder.part);
        part.map_or_else(Vec::new, |part| part.ranges(at, len))
    }

    /// Whether a holder gets the whole container, as it is.
    #[must_use]
    pub fn is_whole(&self, node: NodeId) -> bool {
        let holder = self.holders.get(&node);
        holder.is_some_and(|holder| matches!(holder.part, Part::Whole))
    }

    /// Sets the names of the holders in messages; otherwise they are numbers.
    #[must_use]
    pub fn naming<'a>(mut self, name: impl Fn(NodeId) -> &'a str) -> Self {
        for (&node, holder) in &mut self.holders {
            holder.name = format!("'{}'", name(node));
        }
        self
    }

    /// Takes one event in. After `Done` or `Lost` there are no more actions.
    pub fn step(&mut self, event: OwnerEvent) -> Vec<OwnerAction> {
        let actions = self.take(event);
        if cfg!(debug_assertions) {
            self.check_invariants();
        }
        actions
    }

    /// Panics if the state contradicts the invariants above, which is a defect, whatever the input.
    pub fn check_invariants(&self) {
        for (node, holder) in &self.holders {
            let sent = holder.sent_bytes;
            let ready = holder.part.bytes_of(self.ready_bytes);
            assert!(
                self.let_go_bytes <= holder.needs_from(self.ready_bytes),
                "node {node}: bytes are let go before they are sent"
            );
            assert!(sent <= ready, "node {node}: {sent} of {ready} bytes sent");
            // 1.
            let whole = sent == ready && self.end_crc.is_some();
            let ends = matches!(holder.phase, Phase::Finishing | Phase::Held);
            assert!(whole || !ends, "node {node} finishes what is not whole");
        }
    }

    fn take(&mut self, event: OwnerEvent) -> Vec<OwnerAction> {
        if self.decided {
            return Vec::new();
        }
        match event {
            OwnerEvent::From(node, message) => {
                if let Err(error) = self.hear(node, message) {
                    return self.lose(Some(node), error);
                }
            }
            OwnerEvent::Gone(node, error) => {
                if self
                    .holders
                    .get(&node)
                    .is_some_and(|h| h.phase != Phase::Held)
                    && !off(Switch::HolderGone)
                {
                    return self.lose(Some(node), error);
                }
            }
            OwnerEvent::Ready(bytes) => self.ready_bytes = self.ready_bytes.max(bytes),
            OwnerEvent::End(crc) => self.end_crc = Some(crc),
            OwnerEvent::GiveUp(error) => return self.lose(None, error),
            OwnerEvent::Deadline => {
                let slow: Vec<String> = self
                    .holders
                    .values()
                    .filter(|holder| holder.phase != Phase::Held)
                    .map(|holder| format!("node {} ({})", holder.name, holder.doing()))
                    .collect();
                let text = format!(
                    "holders of its replicas did not answer in time: {}",
                    slow.join(", ")
                );
                return self.lose(None, Error::unavailable(text));
            }
        }
        self.go_on()
    }

    fn hear(&mut self, node: NodeId, message: Message) -> Result<(), Error> {
        let Some(holder) = self.holders.get_mut(&node) else {
            return Ok(());
        };
        match (message, holder.phase) {
            (Message::Granted { credit_bytes, .. }, Phase::Asked) => {
                holder.phase = Phase::Open;
                holder.credit_bytes = credit_bytes;
            }
            (Message::Credit { bytes, .. }, Phase::Open | Phase::Finishing) => {
                holder.credit_bytes = holder.credit_bytes.saturating_add(bytes);
            }
            (Message::Held { .. }, Phase::Finishing) => holder.phase = Phase::Held,
            (Message::Lost { kind, text, .. }, phase) if phase != Phase::Held => {
                return Err(Error::new(kind, text));
            }
            (message, phase) => {
                return Err(Error::corrupt(format!(
                    "it said {message:?} while {phase:?}, which no holder of this version does"
                )));
            }
        }
        Ok(())
    }

    /// Sends what can be sent now, and finishes if everything is done.
    fn go_on(&mut self) -> Vec<OwnerAction> {
        let mut actions = Vec::new();
        // One piece to each in turn, in the order of the draw: all links are busy, and no node is
        // first for everybody.
        let mut more = true;
        while more {
            more = false;
            for &node in &self.order {
                let Some(holder) = self.holders.get_mut(&node) else {
                    continue;
                };
                if holder.phase != Phase::Open {
                    continue;
                }
                let left = holder.part.bytes_of(self.ready_bytes) - holder.sent_bytes;
                let piece = left.min(holder.credit_bytes).min(PIECE_BYTES);
                if piece > 0 {
                    actions.push(OwnerAction::Send(node, holder.sent_bytes, piece));
                    holder.sent_bytes += piece;
                    holder.credit_bytes -= piece;
                    more = true;
                } else if left == 0
                    && let Some(crc) = self.end_crc
                {
                    holder.phase = Phase::Finishing;
                    if !matches!(holder.part, Part::Whole) {
                        actions.push(OwnerAction::Finish(node, self.ready_bytes));
                        continue;
                    }
                    let finish = Message::Finish {
                        slot: self.slot,
                        len_bytes: self.ready_bytes,
                        crc,
                    };
                    actions.push(OwnerAction::To(node, finish));
                }
            }
        }
        let ready = self.ready_bytes;
        let slowest = (self.holders.values().map(|holder| holder.needs_from(ready))).min();
        let slowest = slowest.unwrap_or(ready);
        if slowest > self.let_go_bytes {
            self.let_go_bytes = slowest;
            actions.push(OwnerAction::Sent(slowest));
        }
        let held = |holder: &Holder| {
            holder.phase == Phase::Held || holder.phase == Phase::Finishing && off(Switch::AllHeld)
        };
        if self.end_crc.is_some() && self.holders.values().all(held) {
            self.decided = true;
            actions.push(OwnerAction::Done);
        }
        actions
    }

    fn lose(&mut self, at: Option<NodeId>, error: Error) -> Vec<OwnerAction> {
        self.decided = true;
        let error = match at.and_then(|node| self.holders.get(&node)) {
            Some(holder) => error.at(format!("replica on node {}", holder.name)),
            None => error,
        };
        let others = self.holders.keys().filter(|&&node| Some(node) != at);
        let mut actions: Vec<OwnerAction> = others
            .map(|&node| OwnerAction::To(node, Message::LetGo { slot: self.slot }))
            .collect();
        actions.push(OwnerAction::Lost(error));
        actions
    }
}

impl Holder {
    /// The first byte of the container that it still needs.
    fn needs_from(&self, ready_bytes: u64) -> u64 {
        self.part.needs_from(self.sent_bytes, ready_bytes)
    }

    fn doing(&self) -> String {
        match self.phase {
            Phase::Asked => "asked for room".to_owned(),
            Phase::Open => format!("{} bytes sent", self.sent_bytes),
            Phase::Finishing => "making it durable".to_owned(),
            Phase::Held => "has it".to_owned(),
        }
    }
}

/// Identifies a container: the connection that it came by, and the slot that the owner chose.
pub type ConnSlot = (u32, u32);

/// An event for a keeper. Owners are known by the numbers of their connections.
#[derive(Debug, Clone)]
pub enum KeeperEvent {
    /// The owner at the other end of a connection is this node.
    Came(u32, NodeId),
    /// A message of an owner.
    From(u32, Message),
    /// Bytes of an owner's container arrived: slot, offset, length.
    Data(u32, u32, u64, u64),
    /// Bytes are written.
    Written(ConnSlot, u64),
    /// The container is durable; the checksum of what was received.
    Synced(ConnSlot, u64),
    /// Its directory failed.
    Failed(ConnSlot, Error),
    /// The connection of an owner is gone.
    Gone(u32),
    /// Complete replicas here take this many bytes.
    Holding(u64),
}

/// An action for a keeper's driver.
#[derive(Debug, Clone, PartialEq)]
pub enum KeeperAction {
    /// Send to an owner.
    To(u32, Message),
    /// Create a file with space for this many bytes.
    Create(ConnSlot, String, u64),
    /// Write the bytes that arrived: offset, length.
    Write(ConnSlot, u64, u64),
    /// Cut the file to its length and make it durable.
    Sync(ConnSlot, u64),
    /// Close and remove an incomplete file.
    Remove(ConnSlot, String),
    /// This owner does not follow the protocol: end the connection.
    HangUp(u32, Error),
}

#[derive(Debug)]
struct Incoming {
    file: String,
    len_bytes: u64,
    received_bytes: u64,
    written_bytes: u64,
    finish: Option<(u64, u64)>,
}

/// A node's state machine for the replicas that it holds.
#[derive(Debug)]
pub struct Keeper {
    epoch: Epoch,
    /// The node of each connection.
    nodes: BTreeMap<u32, NodeId>,
    budget_bytes: u64,
    credit_bytes: u64,
    incoming: BTreeMap<ConnSlot, Incoming>,
    /// Bytes of complete replicas here.
    held_bytes: u64,
}

impl Keeper {
    /// A keeper of this epoch that grants at most `budget_bytes` of space in all, and lets each
    /// owner have `credit_bytes` in flight.
    #[must_use]
    pub fn new(epoch: Epoch, budget_bytes: u64, credit_bytes: u64) -> Self {
        Self {
            epoch,
            nodes: BTreeMap::new(),
            budget_bytes,
            credit_bytes,
            incoming: BTreeMap::new(),
            held_bytes: 0,
        }
    }

    /// Granted space.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        let coming: u64 = self.incoming.values().map(|one| one.len_bytes).sum();
        coming.saturating_add(self.held_bytes)
    }

    /// Whether a container is on its way here.
    #[must_use]
    pub(crate) fn is_coming(&self, file: &str) -> bool {
        self.incoming.values().any(|one| one.file == file)
    }

    /// Takes one event in.
    pub fn step(&mut self, event: KeeperEvent) -> Vec<KeeperAction> {
        let actions = self.take(event);
        if cfg!(debug_assertions) {
            self.check_invariants();
        }
        actions
    }

    /// Panics if the state contradicts the invariants above, which is a defect, whatever the input.
    pub fn check_invariants(&self) {
        let mut files = BTreeSet::new();
        let mut open: BTreeMap<u32, usize> = BTreeMap::new();
        for (place, one) in &self.incoming {
            let (written, received) = (one.written_bytes, one.received_bytes);
            // 3. and 4.
            assert!(
                written <= received && received - written <= self.credit_bytes,
                "{place:?}: {written} written of {received} bytes, beyond the credit"
            );
            assert!(received <= one.len_bytes || off(Switch::ReplicaRoom));
            assert!(one.finish.is_none_or(|(len, _)| len == received));
            assert!(files.insert(&one.file), "{} comes twice", one.file);
            *open.entry(place.0).or_default() += 1;
        }
        assert!(open.values().all(|&count| count <= OPEN_MAX));
        let coming: u64 = self.incoming.values().map(|one| one.len_bytes).sum();
        assert!(
            coming <= self.budget_bytes || off(Switch::ReplicaBudget),
            "{coming} bytes granted of {}",
            self.budget_bytes
        );
    }

    fn take(&mut self, event: KeeperEvent) -> Vec<KeeperAction> {
        match event {
            KeeperEvent::Came(owner, node) => {
                self.nodes.insert(owner, node);
                Vec::new()
            }
            KeeperEvent::From(owner, message) => self.hear(owner, message),
            KeeperEvent::Data(owner, slot, at, len) => self.data((owner, slot), at, len),
            KeeperEvent::Written(place, bytes) => {
                let Some(one) = self.incoming.get_mut(&place) else {
                    return Vec::new();
                };
                one.written_bytes += bytes;
                let slot = place.1;
                let mut actions = vec![KeeperAction::To(place.0, Message::Credit { slot, bytes })];
                actions.extend(self.sync_if_whole(place));
                actions
            }
            KeeperEvent::Synced(place, crc) => self.synced(place, crc),
            KeeperEvent::Failed(place, error) => self.drop_one(place, Some(error)),
            KeeperEvent::Gone(owner) => {
                self.nodes.remove(&owner);
                let theirs: BTreeSet<ConnSlot> = self
                    .incoming
                    .range((owner, 0)..=(owner, u32::MAX))
                    .map(|(&p, _)| p)
                    .collect();
                theirs
                    .into_iter()
                    .flat_map(|place| self.drop_one(place, None))
                    .collect()
            }
            KeeperEvent::Holding(bytes) => {
                self.held_bytes = bytes;
                Vec::new()
            }
        }
    }

    fn hear(&mut self, owner: u32, message: Message) -> Vec<KeeperAction> {
        match message {
            Message::Reserve {
                slot,
                file,
                len_bytes,
            } => self.reserve((owner, slot), file, len_bytes),
            Message::Finish {
                slot,
                len_bytes,
                crc,
            } => {
                let place = (owner, slot);
                let Some(one) = self.incoming.get_mut(&place) else {
                    // It was lost here meanwhile, and the owner was told.
                    return Vec::new();
                };
                if one.finish.is_some() || one.received_bytes != len_bytes {
                    let text = format!(
                        "{}: expected the end at {} bytes, once; found it at {len_bytes}",
                        one.file, one.received_bytes
                    );
                    return self.hang_up(owner, Error::corrupt(text));
                }
                one.finish = Some((len_bytes, crc));
                self.sync_if_whole(place)
            }
            Message::LetGo { slot } => self.drop_one((owner, slot), None),
            other => {
                let text = format!("{other:?} was said to a holder of replicas");
                self.hang_up(owner, Error::corrupt(text))
            }
        }
    }

    fn reserve(&mut self, place: ConnSlot, file: String, len_bytes: u64) -> Vec<KeeperAction> {
        let (owner, slot) = place;
        let own = match FileName::parse(&file) {
            Some(FileName::Container {
                epoch, run, node, ..
            }) => {
                let ours = (epoch, run) == (self.epoch.counter, self.epoch.run.short_bytes());
                // When copies were lost, a node that has a container of an older run brings it.
                let older = epoch < self.epoch.counter;
                if !ours && !older && !off(Switch::ReplicaEpoch) {
                    return vec![refuse(
                        owner,
                        slot,
                        &Error::fenced(format!(
                            "{file} is not of epoch {}, which this node is in",
                            self.epoch
                        )),
                    )];
                }
                older || self.nodes.get(&owner) == Some(&node) || off(Switch::ReplicaOwner)
            }
            _ => false,
        };
        let open = self.incoming.range((owner, 0)..=(owner, u32::MAX)).count();
        if !own || self.incoming.contains_key(&place) || open >= OPEN_MAX {
            let text = format!(
                "room was asked for {file:?} in slot {slot} while {open} are open: not a container of that node, or a slot in use"
            );
            return self.hang_up(owner, Error::corrupt(text));
        }
        if self.is_coming(&file) {
            let text = format!("{file} is on its way to here already");
            return vec![refuse(owner, slot, &Error::invalid(text))];
        }
        let free = self.budget_bytes.saturating_sub(self.used_bytes());
        if len_bytes > free && !off(Switch::ReplicaBudget) {
            return vec![refuse(owner, slot, &Error::no_space(format!(
                "{len_bytes} bytes were asked for {file}, and {free} of {} for replicas are free",
                self.budget_bytes
            ))
            .next("raise replica_budget, keep fewer checkpoints, or use more nodes"))];
        }
        self.incoming.insert(
            place,
            Incoming {
                file: file.clone(),
                len_bytes,
                received_bytes: 0,
                written_bytes: 0,
                finish: None,
            },
        );
        let credit_bytes = self.credit_bytes;
        vec![
            KeeperAction::Create(place, file, len_bytes),
            KeeperAction::To(owner, Message::Granted { slot, credit_bytes }),
        ]
    }

    fn data(&mut self, place: ConnSlot, at: u64, len: u64) -> Vec<KeeperAction> {
        let credit_bytes = self.credit_bytes;
        let Some(one) = self.incoming.get_mut(&place) else {
            // In flight when it was lost here.
            return Vec::new();
        };
        let end = at.saturating_add(len);
        let on_the_way = end.saturating_sub(one.written_bytes);
        let wrong = at != one.received_bytes
            || len == 0
            || end > one.len_bytes && !off(Switch::ReplicaRoom)
            || on_the_way > credit_bytes
            || one.finish.is_some();
        if wrong {
            let text = format!(
                "{}: {len} bytes at {at} of {} were sent, with {} written of {} received and {credit_bytes} bytes of credit",
                one.file, one.len_bytes, one.written_bytes, one.received_bytes
            );
            return self.hang_up(place.0, Error::corrupt(text));
        }
        one.received_bytes = end;
        vec![KeeperAction::Write(place, at, len)]
    }

    fn sync_if_whole(&self, place: ConnSlot) -> Vec<KeeperAction> {
        match self.incoming.get(&place) {
            Some(Incoming {
                finish: Some((len, _)),
                written_bytes,
                ..
            }) if written_bytes == len => {
                vec![KeeperAction::Sync(place, *len)]
            }
            _ => Vec::new(),
        }
    }

    fn synced(&mut self, place: ConnSlot, crc: u64) -> Vec<KeeperAction> {
        let Some(one) = self.incoming.get(&place) else {
            return Vec::new();
        };
        let Some((len, expected)) = one.finish else {
            return Vec::new();
        };
        if crc != expected && !off(Switch::ReplicaCrc) {
            let error = Error::corrupt(format!(
                "{}: expected CRC-64 {expected:016x} over {len} bytes, received {crc:016x}",
                one.file
            ));
            return self.drop_one(place, Some(error));
        }
        self.incoming.remove(&place);
        self.held_bytes = self.held_bytes.saturating_add(len);
        let (owner, slot) = place;
        vec![KeeperAction::To(owner, Message::Held { slot })]
    }

    fn drop_one(&mut self, place: ConnSlot, error: Option<Error>) -> Vec<KeeperAction> {
        let Some(one) = self.incoming.remove(&place) else {
            return Vec::new();
        };
        let (owner, slot) = place;
        let told = error.map(|error| refuse(owner, slot, &error));
        let removed = KeeperAction::Remove(place, one.file);
        [removed].into_iter().chain(told).collect()
    }

    fn hang_up(&mut self, owner: u32, error: Error) -> Vec<KeeperAction> {
        let mut actions = self.take(KeeperEvent::Gone(owner));
        actions.push(KeeperAction::HangUp(owner, error));
        actions
    }
}

fn refuse(owner: u32, slot: u32, error: &Error) -> KeeperAction {
    let (kind, text): (ErrorKind, String) = (error.kind(), error.message().to_owned());
    KeeperAction::To(owner, Message::Lost { slot, kind, text })
}
