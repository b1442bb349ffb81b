//! Gathers the blocks of a group's containers into this node's parity files: the holder's side of
//! protection by parity, as a pure state machine.
//!
//! ```text
//! every other member ──Reserve──▶ holder     names the parity file that it contributes to
//!                    ◀──Granted──            credit for 32 rows
//!                    ──data──▶ … ◀──Credit── whenever a row has all its blocks and is written
//!                    ──Finish──▶             length of the container, CRC of what was sent
//!                    ◀──Held──               to all, when the file is durable
//! ```
//!
//! Invariants:
//! 1. `Held` is sent only after all members have finished and the file is durable.
//! 2. One member that fails, vanishes or gives its container up costs the file: all other members
//!    are told, and nothing of it stays.
//! 3. Only the members of this node's group contribute, each once, in this run.
//! 4. Memory is bounded by [`ROWS_MAX`](super::parity_file::ROWS_MAX) rows and the checksums of
//!    each open file, and a member has no more than [`OPEN_MAX`] open.
//!
//! Survives: members that refuse, fail, vanish or violate the protocol. Not here: the computation
//! (`parity_file.rs`), files and connections (`keeper.rs`), the members' side (`protect.rs`).

use crate::replicas::parity_file::{ParityFile, protected_by};
use crate::replicas::protect::ConnSlot;
use orcheck_format::disk::{FileName, MAX_PARITY_CRCS_BYTES, ParityGroup};
use orcheck_format::sabotage::{Switch, off};
use orcheck_format::wire::Message;
use orcheck_format::{Epoch, Error, JobName, NodeId, Result, count};
use orcheck_placement::parity::Code;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// Maximum number of files to which one member contributes at once.
const OPEN_MAX: usize = 64;
/// Members that a message names.
const MOST_NAMED: usize = 4;
/// Number of lost files that are remembered, so that members who come later are told at once.
const LOST_MAX: usize = 64;

/// What a node must know to hold parity of its group.
#[derive(Clone)]
pub struct Gathering {
    /// The job.
    pub job: JobName,
    /// This run's epoch.
    pub epoch: Epoch,
    /// This node.
    pub node: NodeId,
    /// Its group.
    pub group: Arc<ParityGroup>,
    /// Number of writers of each member.
    pub writers: Vec<u32>,
    /// The group's code.
    pub code: Arc<Code>,
}

/// An action for the driver.
#[derive(Debug)]
pub enum GatherAction {
    /// Send to a member.
    To(u32, Message),
    /// Create a parity file with space for this many bytes.
    Create(String, u64),
    /// Set space aside for it to become this much longer: from, to.
    Grow(String, u64, u64),
    /// Write these bytes of it at this offset.
    Write(String, u64, Vec<u8>),
    /// Write the trailer at this offset, cut the file there, and make it durable.
    Complete(String, u64, Vec<u8>),
    /// Close and remove it.
    Remove(String),
    /// This member does not follow the protocol: end the connection.
    HangUp(u32, Error),
}

/// A node's state machine for the parity files that it holds.
pub struct Gatherer {
    of: Gathering,
    open: BTreeMap<String, Open>,
    places: BTreeMap<ConnSlot, (String, u32)>,
    /// Files that were lost, and why.
    lost: VecDeque<(String, Error)>,
}

struct Open {
    file: ParityFile,
    most_bytes: u64,
    /// By member: its connection and slot.
    members: BTreeMap<u32, ConnSlot>,
}

impl Open {
    fn new(file: ParityFile) -> Self {
        Self {
            file,
            most_bytes: 0,
            members: BTreeMap::new(),
        }
    }
}

impl Gatherer {
    /// One without files.
    #[must_use]
    pub fn new(of: Gathering) -> Self {
        Self {
            of,
            open: BTreeMap::new(),
            places: BTreeMap::new(),
            lost: VecDeque::new(),
        }
    }

    /// Whether it takes messages of this connection and slot.
    #[must_use]
    pub fn has(&self, place: ConnSlot) -> bool {
        self.places.contains_key(&place)
    }

    /// Space that open files may still take.
    #[must_use]
    pub fn reserved_bytes(&self) -> u64 {
        self.open.values().map(|open| open.most_bytes).sum()
    }

    /// Whether this file is being made.
    #[must_use]
    pub fn is_coming(&self, file: &str) -> bool {
        self.open.contains_key(file)
    }

    /// The node at the other end asks to contribute a container of at most `len_bytes` to a parity
    /// file, while `free_bytes` are free.
    pub fn reserve(
        &mut self,
        place: ConnSlot,
        from: Option<NodeId>,
        (name, len_bytes): (String, u64),
        free_bytes: u64,
    ) -> Vec<GatherAction> {
        let (conn, slot) = place;
        let refuse = |error: Error| vec![told(place, &error)];
        let (member, parsed) = match self.contributor(from, &name) {
            Ok(found) => found,
            Err(error) => {
                let mut actions = self.gone(conn);
                actions.push(GatherAction::HangUp(conn, error));
                return actions;
            }
        };
        if let Some((_, error)) = self.lost.iter().find(|(lost, _)| *lost == name) {
            return refuse(error.clone());
        }
        let mine = self.places.range((conn, 0)..=(conn, u32::MAX)).count();
        let again = |open: &Open| open.members.contains_key(&member);
        if self.places.contains_key(&place)
            || mine >= OPEN_MAX
            || self.open.get(&name).is_some_and(again)
        {
            return refuse(Error::corrupt(format!(
                "{name} is contributed to in slot {slot} while {mine} are open: twice, or too many"
            )));
        }
        let had_bytes = self.open.get(&name).map(|open| open.most_bytes);
        let room = self.room_for(&name, len_bytes, had_bytes.unwrap_or(0), free_bytes);
        let most_bytes = match room {
            Ok(most_bytes) => most_bytes,
            Err(error) => {
                // Without this member, the file would never be whole.
                let mut actions = self.lose(&name, &error);
                actions.push(told(place, &error));
                return actions;
            }
        };
        let mut actions = Vec::new();
        match had_bytes {
            None => {
                let Some(file) = self.begin(&parsed) else {
                    return refuse(Error::internal("a parity file without a checkpoint"));
                };
                actions.push(GatherAction::Create(name.clone(), most_bytes));
                self.open.insert(name.clone(), Open::new(file));
            }
            Some(had) if most_bytes > had => {
                actions.push(GatherAction::Grow(name.clone(), had, most_bytes));
            }
            Some(_) => {}
        }
        if let Some(open) = self.open.get_mut(&name) {
            open.most_bytes = open.most_bytes.max(most_bytes);
            open.members.insert(member, place);
            let credit_bytes = open.file.grant(member, len_bytes);
            let granted = Message::Granted { slot, credit_bytes };
            actions.push(GatherAction::To(conn, granted));
        }
        self.places.insert(place, (name, member));
        actions
    }

    /// The space that a file takes with a container of `len_bytes`, if that is free.
    fn room_for(&self, name: &str, len_bytes: u64, had_bytes: u64, free_bytes: u64) -> Result<u64> {
        let crcs = self.of.group.crcs(len_bytes);
        let crcs_bytes = crcs.and_then(|crcs| crcs.checked_mul(8));
        let fits = crcs_bytes.is_some_and(|bytes| bytes <= MAX_PARITY_CRCS_BYTES);
        if !fits && !off(Switch::ParityCrcs) {
            return Err(Error::unsupported(format!(
                "{name}: a container of {} has more blocks than a parity file of this group can describe",
                count(len_bytes, "byte")
            ))
            .next("use smaller groups or fewer parities"));
        }
        let most_bytes = ParityFile::file_bytes(&self.of.group, len_bytes);
        let more = most_bytes.saturating_sub(had_bytes);
        if more > free_bytes && !off(Switch::ParityBudget) {
            return Err(Error::no_space(format!(
                "{} more are needed for {name}, and {free_bytes} for parity are free",
                count(more, "byte")
            ))
            .next("raise replica_budget, keep fewer checkpoints, or use more nodes"));
        }
        Ok(most_bytes)
    }

    /// A new file of this name, for all members with such a writer; this node sends its length.
    fn begin(&self, name: &FileName) -> Option<ParityFile> {
        let of = &self.of;
        let protected = protected_by(&of.job, of.epoch, name)?;
        let writer = protected.writer;
        let sends = |member: u32| {
            let writers = of.writers.get(member as usize).copied();
            writer.0 < writers.unwrap_or(0)
        };
        let position = of.group.position(of.node)?;
        Some(ParityFile::new(
            protected,
            (&of.group, position),
            &of.code,
            sends,
        ))
    }

    /// The member of the group that this node is, if it may contribute to a file of this name.
    fn contributor(&self, from: Option<NodeId>, name: &str) -> Result<(u32, FileName)> {
        let (of, parsed) = (&self.of, FileName::parse(name));
        let member = from.and_then(|node| of.group.position(node));
        if let (
            Some(member),
            Some(
                parsed @ FileName::Parity {
                    epoch,
                    run,
                    node,
                    writer,
                    ..
                },
            ),
        ) = (member, parsed)
        {
            let ours = (epoch, run) == (of.epoch.counter, of.epoch.run.short_bytes());
            if !ours && !off(Switch::ParityEpoch) {
                return Err(Error::fenced(format!(
                    "{name} is not of epoch {}, which this node is in",
                    of.epoch
                )));
            }
            let writers = of.writers.get(member as usize).copied().unwrap_or(0);
            if node == of.node && writer.0 < writers {
                return Ok((member, parsed));
            }
        }
        Err(Error::corrupt(format!(
            "node {from:?} wants to contribute to {name:?}, which is not a parity file of this node for that one"
        )))
    }

    /// Bytes of a member's container arrived, from `at` of its blocks on.
    pub fn data(&mut self, place: ConnSlot, at: u64, bytes: &[u8]) -> Vec<GatherAction> {
        let Some((name, member)) = self.places.get(&place).cloned() else {
            return Vec::new();
        };
        let Some(open) = self.open.get_mut(&name) else {
            return Vec::new();
        };
        match open.file.take(member, at, bytes) {
            Ok(()) => self.pass_on(&name),
            Err(error) => self.hang_up(place.0, error.at(&name)),
        }
    }

    /// A member has sent everything of its container.
    pub fn finish(&mut self, place: ConnSlot, len_bytes: u64, crc: u64) -> Vec<GatherAction> {
        let Some((name, member)) = self.places.get(&place).cloned() else {
            return Vec::new();
        };
        let Some(open) = self.open.get_mut(&name) else {
            return Vec::new();
        };
        match open.file.end(member, len_bytes, crc) {
            Ok(()) => self.pass_on(&name),
            Err(error) => self.lose(&name, &error.at(&name)),
        }
    }

    /// What leaves a file now: rows, and its end.
    fn pass_on(&mut self, name: &str) -> Vec<GatherAction> {
        let Some(open) = self.open.get_mut(name) else {
            return Vec::new();
        };
        let mut actions = Vec::new();
        loop {
            match open.file.next_row() {
                Ok(Some((at, bytes))) => {
                    actions.push(GatherAction::Write(name.to_owned(), at, bytes));
                    // Also to those who have sent all: it shows them that others still do.
                    for (&member, &(conn, slot)) in &open.members {
                        let bytes = open.file.credit_of_row(member);
                        let credit = Message::Credit { slot, bytes };
                        actions.push(GatherAction::To(conn, credit));
                    }
                }
                Ok(None) => break,
                Err(error) => return self.lose(name, &error),
            }
        }
        if open.file.is_whole() {
            let (at, trailer) = open.file.trailer();
            actions.push(GatherAction::Complete(name.to_owned(), at, trailer));
        }
        actions
    }

    /// A file is durable.
    pub fn completed(&mut self, name: &str) -> Vec<GatherAction> {
        let members = self.forget(name);
        let held = |(conn, slot)| GatherAction::To(conn, Message::Held { slot });
        members.into_iter().map(held).collect()
    }

    /// A file cannot be written, or a member gave its container up.
    pub fn lose(&mut self, name: &str, error: &Error) -> Vec<GatherAction> {
        let members = self.forget(name);
        self.lost.push_back((name.to_owned(), error.clone()));
        while self.lost.len() > LOST_MAX {
            self.lost.pop_front();
        }
        let removed = std::iter::once(GatherAction::Remove(name.to_owned()));
        removed
            .chain(members.into_iter().map(|place| told(place, error)))
            .collect()
    }

    /// A member no longer wants to contribute.
    pub fn let_go(&mut self, place: ConnSlot) -> Vec<GatherAction> {
        let Some((name, member)) = self.places.remove(&place) else {
            return Vec::new();
        };
        if let Some(open) = self.open.get_mut(&name) {
            open.members.remove(&member);
        }
        let node = self.of.group.nodes.get(member as usize).copied();
        let waiting = self.open.get(&name).map(|open| self.waited_for(open));
        let error = Error::unavailable(format!(
            "node {} gave up its part of the parity group{}",
            node.unwrap_or_default(),
            waiting.unwrap_or_default()
        ));
        match off(Switch::ParityWhole) {
            true => Vec::new(),
            false => self.lose(&name, &error),
        }
    }

    /// Says which members have not begun.
    fn waited_for(&self, open: &Open) -> String {
        let members = (0..).zip(&self.of.group.nodes);
        let late = members
            .filter(|(member, _)| open.file.expects(*member) && !open.members.contains_key(member));
        let late: Vec<String> = late.map(|(_, node)| node.to_string()).collect();
        let named = late
            .iter()
            .take(MOST_NAMED)
            .cloned()
            .collect::<Vec<String>>();
        match late.len() {
            0 => String::new(),
            1..=MOST_NAMED => format!("; nothing had come from node {}", named.join(", ")),
            all => format!(
                "; nothing had come from node {} and {} more",
                named.join(", "),
                all - MOST_NAMED
            ),
        }
    }

    /// A connection is gone.
    pub fn gone(&mut self, conn: u32) -> Vec<GatherAction> {
        let places: Vec<ConnSlot> = (self.places.range((conn, 0)..=(conn, u32::MAX)))
            .map(|(&place, _)| place)
            .collect();
        let lost = places.into_iter();
        lost.flat_map(|place| self.let_go(place)).collect()
    }

    fn hang_up(&mut self, conn: u32, error: Error) -> Vec<GatherAction> {
        let mut actions = self.gone(conn);
        actions.push(GatherAction::HangUp(conn, error));
        actions
    }

    /// Forgets a file; returns the places of its members.
    fn forget(&mut self, name: &str) -> Vec<ConnSlot> {
        let open = self.open.remove(name);
        let members: Vec<ConnSlot> =
            open.map_or_else(Vec::new, |open| open.members.into_values().collect());
        for place in &members {
            self.places.remove(place);
        }
        members
    }
}

fn told((conn, slot): ConnSlot, error: &Error) -> GatherAction {
    let (kind, text) = (error.kind(), error.message().to_owned());
    GatherAction::To(conn, Message::Lost { slot, kind, text })
}
