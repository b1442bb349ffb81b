//! Runs the holder's side of replication: one thread takes in what other nodes bring, and other
//! threads serve readers.
//!
//! How: the keeper listens for other nodes, each of which proves that it knows the job's key. It
//! receives their containers into aligned memory and writes them from there (`taken.rs`) into this
//! node's own directory, beside its own containers and under the same names as everywhere; prune
//! treats them alike. With parity, it writes parity files there instead. A peer that asks for bytes
//! gets a thread of its own, so that a slow reader keeps nobody waiting. The number of these
//! threads is limited; further readers wait for their turn.
//!
//! Invariants:
//! 1. `protect.rs` and `gather.rs` decide what is taken in; this module only moves bytes.
//! 2. A replica gets its final name when it is whole and durable.
//! 3. No name leads outside the directory, and only names of this job's files are read or written.
//! 4. A peer that sends rubbish, stalls or vanishes costs only its own containers. Messages to an
//!    owner are short: only an owner that never reads delays the keeper, which then drops it.
//!
//! Survives: any peer; a directory that fails (the owner is told). Not here: the owner's side
//! (`owner.rs`), readers (`remote.rs`).

use crate::directory::prune::coming_name;
use crate::directory::prune::lost::NotDecided;
use crate::node::Outcome;
use crate::replicas::gather::{GatherAction, Gatherer, Gathering};
use crate::replicas::protect::{ConnSlot, Keeper, KeeperAction, KeeperEvent};
use crate::replicas::remote::files_of;
use crate::replicas::store::KeptReplicas;
use crate::replicas::taken::{Incoming, Piece, Spare, Writer};
use orcheck_format::disk::{BLOCK_BYTES, FileName};
use orcheck_format::sabotage::{Switch, off};
use orcheck_format::wire::{MAX_DATA_BYTES, Message};
use orcheck_format::{Epoch, Error, NodeId, Result, Step};
use orcheck_io::disk::{Create, Dir, Entry, File};
use orcheck_io::failpoints::Failpoints;
use orcheck_io::machine::thread::spawn;
use orcheck_io::memory::zeroed;
use orcheck_io::poll::{Poller, Waker};
use orcheck_net::{Conn, Key, Listener, Place, Received};
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Longest time that sending one message to an owner may take; it has a few bytes, and a socket
/// buffers thousands.
const SEND_TIMEOUT: Duration = Duration::from_secs(1);
/// Longest time that a reader may take to receive one piece.
const READ_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum number of peers that are served at once.
const READERS_MAX: usize = 64;
/// Longest sleep between two looks at the stop flag.
const SLICE: Duration = Duration::from_millis(500);
/// Maximum number of pieces that one peer brings before the others have their turn.
const TURN_PIECES: usize = 4;
/// Maximum number of connections at once.
const CONNS_MAX: usize = 4096;
/// Number of bytes of one container that may be in flight.
pub const CREDIT_BYTES: u64 = 32 << 20;

/// What a keeper needs to know.
pub struct KeeperContext {
    /// This run's epoch.
    pub epoch: Epoch,
    /// This node.
    pub node: NodeId,
    /// Where replicas are kept, and the node's own files.
    pub room: Arc<KeptReplicas>,
    /// Maximum number of bytes of other nodes' replicas.
    pub budget_bytes: u64,
    /// Whether to use direct I/O if the file system supports it.
    pub direct: bool,
    /// What must be known to hold parity of this node's group, if it has one.
    pub gathering: Option<Gathering>,
    /// The job's key.
    pub key: Key,
    /// What became of a step at level `peers`.
    pub outcome: Box<dyn Fn(Step) -> Outcome + Send>,
    /// Failpoints, for tests.
    pub failpoints: Failpoints,
    /// Set when the session ends.
    pub stop: Arc<AtomicBool>,
}

/// A holder's thread.
pub struct KeeperThread {
    context: KeeperContext,
    listeners: Vec<Listener>,
    poller: Poller,
    keeper: Keeper,
    /// By a number of our own, by which the protocol knows connections.
    peers: BTreeMap<u32, Peer>,
    next_peer: u32,
    files: BTreeMap<ConnSlot, Incoming>,
    writer: Writer,
    spare: Spare,
    gatherer: Option<Gatherer>,
    /// Parity files that are being written.
    parity: BTreeMap<String, Box<dyn File>>,
    /// Whole files of others whose step is not decided.
    not_decided: NotDecided<()>,
    readers: Vec<(JoinHandle<()>, Waker)>,
    /// Peers that wait to be served, with their requests.
    waiting: VecDeque<(Conn, Message)>,
}

struct Peer {
    conn: Conn,
    /// Its node, once it has named it.
    node: Option<NodeId>,
    /// Bytes of a replica that have arrived in part.
    coming: Option<Piece>,
}

impl KeeperThread {
    /// Prepares the thread; the session holds the waker of `poller`.
    #[must_use]
    pub fn new(context: KeeperContext, listeners: Vec<Listener>, poller: Poller) -> Self {
        let keeper = Keeper::new(context.epoch, context.budget_bytes, CREDIT_BYTES);
        Self {
            gatherer: context.gathering.clone().map(Gatherer::new),
            parity: BTreeMap::new(),
            not_decided: NotDecided::default(),
            context,
            listeners,
            writer: Writer::new(poller.waker()),
            spare: Spare::default(),
            poller,
            keeper,
            peers: BTreeMap::new(),
            next_peer: 0,
            files: BTreeMap::new(),
            readers: Vec::new(),
            waiting: VecDeque::new(),
        }
    }

    /// Runs until the session ends.
    ///
    /// # Errors
    /// A defect, lack of descriptors, or a failure that a test injects.
    pub fn run(mut self) -> Result<()> {
        let mut more = false;
        while !self.context.stop.load(Ordering::Acquire) {
            let doors = self.listeners.len();
            let fds: Vec<_> = (self.listeners.iter().map(AsFd::as_fd))
                .chain(self.peers.values().map(|peer| peer.conn.as_fd()))
                .collect();
            let longest = if more { Duration::ZERO } else { SLICE };
            let ready = self.poller.wait(&fds, longest)?;
            drop(fds);
            if ready.is_empty() && self.files.is_empty() {
                // Nobody has brought anything for a while, or somebody woke us: give it back.
                self.spare.release();
            }
            for door in ready.into_iter().filter(|&at| at < doors) {
                let (key, failpoints) = (&self.context.key, &self.context.failpoints);
                // Breaks if: it accepts one connection at a time; with strangers always waiting,
                // replicas would trickle in.
                if let Some(conn) = self.listeners[door].accept(key, failpoints, Duration::ZERO)?
                    && self.peers.len() < CONNS_MAX
                {
                    let (node, coming) = (None, None);
                    self.peers
                        .insert(self.next_peer, Peer { conn, node, coming });
                    self.next_peer = self.next_peer.wrapping_add(1);
                }
            }
            let peers: Vec<u32> = self.peers.keys().copied().collect();
            more = false;
            for peer in peers {
                more |= self.hear(peer)?;
            }
            self.settle()?;
            self.begin_to_read()?;
        }
        // They check the same flag.
        for (_, waker) in &self.readers {
            waker.wake();
        }
        for (reader, _) in self.readers.drain(..) {
            let _ = reader.join();
        }
        Ok(())
    }

    /// Serves waiting readers, as far as there is room for more.
    fn begin_to_read(&mut self) -> Result<()> {
        self.readers.retain(|(reader, _)| !reader.is_finished());
        while self.readers.len() < READERS_MAX
            && let Some((conn, first)) = self.waiting.pop_front()
        {
            let (room, stop) = (
                Arc::clone(&self.context.room),
                Arc::clone(&self.context.stop),
            );
            let poller = Poller::new()?;
            let waker = poller.waker();
            let read = move || read_to(conn, first, room.as_ref(), &poller, &stop);
            self.readers.push((spawn("orcheck-reader", read)?, waker));
        }
        Ok(())
    }

    /// Handles what a peer has sent; returns whether there may be more.
    fn hear(&mut self, number: u32) -> Result<bool> {
        let mut pieces = 0;
        while pieces < TURN_PIECES {
            let Some(peer) = self.peers.get_mut(&number) else {
                return Ok(false);
            };
            let came = match &mut peer.coming {
                Some(piece) => peer.conn.take_piece(piece.room()).map(Came::of_piece),
                None => peer.conn.try_receive_any().map(Came::of_frame),
            };
            match came {
                Ok(Came::Nothing) => return Ok(false),
                Ok(Came::Frame(Received::Message(message))) => self.take(number, message)?,
                Ok(Came::Frame(Received::Bytes(len))) => match self.spare.take(len) {
                    Ok(piece) => peer.coming = Some(piece),
                    Err(_) => self.forget(number)?,
                },
                Ok(Came::Piece(place)) => {
                    pieces += 1;
                    if let Some(piece) = peer.coming.take() {
                        self.take_piece(number, place, piece)?;
                    }
                }
                Err(_) => self.forget(number)?,
            }
        }
        Ok(true)
    }

    /// Takes bytes of a replica. Then handles finished writes, so that owners get their credit
    /// early.
    fn take_piece(&mut self, number: u32, place: Place, piece: Piece) -> Result<()> {
        let len = piece.bytes().len() as u64;
        let event = KeeperEvent::Data(number, place.slot, place.at_bytes, len);
        self.step(event, Some(piece))?;
        self.settle()
    }

    /// Takes note of what was written.
    fn settle(&mut self) -> Result<()> {
        while let Some(written) = self.writer.written(&mut self.spare)? {
            let place = written.place;
            let one = self.files.get_mut(&place);
            match self.writer.return_to(one, written) {
                Ok(None) => {}
                Ok(Some(bytes)) => self.step(KeeperEvent::Written(place, bytes), None)?,
                Err(error) => self.step(KeeperEvent::Failed(place, error), None)?,
            }
        }
        Ok(())
    }

    fn forget(&mut self, number: u32) -> Result<()> {
        self.peers.remove(&number);
        self.gather(|gatherer| gatherer.gone(number))?;
        self.step(KeeperEvent::Gone(number), None)
    }

    fn take(&mut self, number: u32, message: Message) -> Result<()> {
        if matches!(message, Message::Reserve { .. }) {
            let (room, outcome) = (self.context.room.as_ref(), &self.context.outcome);
            self.not_decided.remove_lost(&(), room, outcome);
        }
        let Some(message) = self.take_for_parity(number, message)? else {
            return Ok(());
        };
        match message {
            Message::Hello { node, .. } => {
                if let Some(peer) = self.peers.get_mut(&number) {
                    peer.node = Some(node);
                }
                self.step(KeeperEvent::Came(number, node), None)
            }
            Message::Fetch { .. } | Message::List => {
                // A reader brings nothing.
                if let Some(peer) = self.peers.remove(&number) {
                    self.waiting.push_back((peer.conn, message));
                }
                self.step(KeeperEvent::Gone(number), None)
            }
            other => {
                if matches!(other, Message::Reserve { .. }) && self.context.budget_bytes < u64::MAX
                {
                    let held_bytes = self.held_bytes();
                    self.step(KeeperEvent::Holding(held_bytes), None)?;
                }
                self.step(KeeperEvent::From(number, other), None)
            }
        }
    }

    /// Takes what concerns parity; returns any other message.
    fn take_for_parity(&mut self, number: u32, message: Message) -> Result<Option<Message>> {
        let of_parity = |slot: u32| {
            let gatherer = self.gatherer.as_ref();
            gatherer.is_some_and(|gatherer| gatherer.has((number, slot)))
        };
        match message {
            Message::Reserve {
                slot,
                file,
                len_bytes,
            } if self.gatherer.is_some()
                && matches!(FileName::parse(&file), Some(FileName::Parity { .. })) =>
            {
                let budget_bytes = self.context.budget_bytes;
                if budget_bytes < u64::MAX {
                    let held_bytes = self.held_bytes();
                    self.step(KeeperEvent::Holding(held_bytes), None)?;
                }
                let from = self.peers.get(&number).and_then(|peer| peer.node);
                let used_bytes = self.keeper.used_bytes();
                self.gather(|gatherer| {
                    let used_bytes = used_bytes.saturating_add(gatherer.reserved_bytes());
                    let free_bytes = budget_bytes.saturating_sub(used_bytes);
                    gatherer.reserve((number, slot), from, (file, len_bytes), free_bytes)
                })?;
            }
            Message::Data {
                slot,
                at_bytes,
                bytes,
            } if of_parity(slot) => {
                self.gather(|gatherer| gatherer.data((number, slot), at_bytes, &bytes))?;
            }
            Message::Finish {
                slot,
                len_bytes,
                crc,
            } if of_parity(slot) => {
                self.gather(|gatherer| gatherer.finish((number, slot), len_bytes, crc))?;
            }
            Message::LetGo { slot } if of_parity(slot) => {
                self.gather(|gatherer| gatherer.let_go((number, slot)))?;
            }
            other => return Ok(Some(other)),
        }
        Ok(None)
    }

    /// Lets the gatherer decide, and performs its actions.
    fn gather(&mut self, work: impl FnOnce(&mut Gatherer) -> Vec<GatherAction>) -> Result<()> {
        let Some(gatherer) = &mut self.gatherer else {
            return Ok(());
        };
        let mut actions: VecDeque<GatherAction> = work(gatherer).into();
        while let Some(action) = actions.pop_front() {
            let done = match action {
                GatherAction::To(number, message) => {
                    self.context.failpoints.at("keeper.send", "")?;
                    self.tell(number, &message)?;
                    continue;
                }
                GatherAction::HangUp(number, _) => {
                    self.peers.remove(&number);
                    continue;
                }
                GatherAction::Remove(name) => {
                    self.parity.remove(&name);
                    // Best effort: prune collects what cannot be removed now.
                    let _ = self.context.room.remove(&self.coming_name(&name));
                    continue;
                }
                GatherAction::Create(name, len) => {
                    let created = self.create(&self.coming_name(&name), len);
                    let kept = created.map(|file| {
                        self.parity.insert(name.clone(), file);
                    });
                    kept.map_err(|error| (name, error))
                }
                GatherAction::Grow(name, from, to) => {
                    let room = &self.context.room;
                    let grown = room.grow(&self.coming_name(&name), from, to);
                    grown.map_err(|error| (name, error))
                }
                GatherAction::Write(name, at, bytes) => {
                    let written = match self.parity.get(&name) {
                        Some(file) => file.write_at(&bytes, at),
                        None => continue,
                    };
                    written.map_err(|error| (name, error))
                }
                GatherAction::Complete(name, at, trailer) => {
                    let Some(file) = self.parity.remove(&name) else {
                        continue;
                    };
                    let completed = self.complete(file, &name, at, trailer);
                    if completed.is_ok() {
                        self.is_whole(&name);
                    }
                    if completed.is_ok()
                        && let Some(gatherer) = &mut self.gatherer
                    {
                        actions.extend(gatherer.completed(&name));
                    }
                    completed.map_err(|error| (name, error))
                }
            };
            if let (Err((name, error)), Some(gatherer)) = (done, &mut self.gatherer) {
                // Breaks if: it comes last; what is still to be written would complete the file.
                for action in gatherer.lose(&name, &error.at(&name)).into_iter().rev() {
                    actions.push_front(action);
                }
            }
        }
        Ok(())
    }

    /// Ends a parity file and makes it durable.
    fn complete(
        &self,
        file: Box<dyn File>,
        name: &str,
        at: u64,
        mut trailer: Vec<u8>,
    ) -> Result<()> {
        let len_bytes = at + trailer.len() as u64;
        // Direct I/O writes whole blocks; what is too much is cut off.
        let block = (file.alignment_bytes() as usize).max(BLOCK_BYTES);
        trailer.resize(trailer.len().next_multiple_of(block), 0);
        file.write_at(&trailer, at)?;
        file.truncate(len_bytes)?;
        file.sync()?;
        file.close()?;
        let room = &self.context.room;
        room.name_replica(&self.coming_name(name), name)?;
        room.sync()?;
        room.check_path()
    }

    /// Bytes of containers and parity here that are not this node's own of this run, or of this run
    /// and on their way. A directory that cannot be listed counts as full.
    fn held_bytes(&self) -> u64 {
        let Ok(entries) = self.context.room.held() else {
            return u64::MAX;
        };
        let (epoch, own) = (self.context.epoch, self.context.node);
        let held = |entry: &&Entry| match FileName::parse(&entry.name) {
            Some(FileName::Container {
                epoch: counter,
                run,
                node,
                ..
            }) => {
                let of_run = (counter, run) == (epoch.counter, epoch.run.short_bytes());
                let ours = of_run && node == own;
                !ours && !self.keeper.is_coming(&entry.name)
            }
            Some(FileName::Parity { .. }) => true,
            _ => false,
        };
        entries
            .iter()
            .filter(held)
            .map(|entry| entry.len_bytes)
            .sum()
    }

    fn tell(&mut self, number: u32, message: &Message) -> Result<()> {
        let Some(peer) = self.peers.get_mut(&number) else {
            return Ok(());
        };
        match peer.conn.send(message, SEND_TIMEOUT) {
            Ok(()) => Ok(()),
            Err(_) => self.forget(number),
        }
    }

    /// Lets the protocol decide, and performs its actions.
    fn step(&mut self, event: KeeperEvent, mut piece: Option<Piece>) -> Result<()> {
        let mut actions: VecDeque<KeeperAction> = self.keeper.step(event).into();
        while let Some(action) = actions.pop_front() {
            let news = match action {
                KeeperAction::To(number, message) => {
                    self.context.failpoints.at("keeper.send", "")?;
                    self.tell(number, &message)?;
                    continue;
                }
                KeeperAction::Create(place, name, len) => {
                    let names = (self.coming_name(&name), name);
                    let created = self.create(&names.0, len);
                    match created {
                        Ok(file) => {
                            let incoming = self.writer.begin(file, names);
                            self.files.insert(place, incoming);
                            continue;
                        }
                        Err(error) => KeeperEvent::Failed(place, error),
                    }
                }
                KeeperAction::Write(place, at, _) => {
                    let (Some(one), Some(piece)) = (self.files.get_mut(&place), piece.take())
                    else {
                        return Err(Error::internal("bytes of a replica without a file"));
                    };
                    match self.writer.write(place, one, at, piece) {
                        Ok(()) => continue,
                        Err(error) => KeeperEvent::Failed(place, error),
                    }
                }
                KeeperAction::Sync(place, len) => match self.make_durable(place, len) {
                    Ok(crc) => KeeperEvent::Synced(place, crc),
                    Err(error) => KeeperEvent::Failed(place, error),
                },
                KeeperAction::Remove(place, name) => {
                    let coming = self.files.remove(&place).map(|one| one.names.0);
                    // Best effort: prune collects what cannot be removed now.
                    let _ = self.context.room.remove(coming.as_ref().unwrap_or(&name));
                    continue;
                }
                KeeperAction::HangUp(number, _) => {
                    self.peers.remove(&number);
                    continue;
                }
            };
            actions.extend(self.keeper.step(news));
        }
        if let Some(piece) = piece {
            self.spare.give(piece);
        }
        Ok(())
    }

    fn create(&self, name: &str, len: u64) -> Result<Box<dyn File>> {
        let how = if self.context.direct {
            Create::Direct
        } else {
            Create::Buffered
        };
        self.context.room.create_replica(name, how, len)
    }

    /// Makes a replica durable; returns its checksum.
    fn make_durable(&mut self, place: ConnSlot, len: u64) -> Result<u64> {
        let one = self.files.remove(&place);
        let Some((file, one)) = one.and_then(|mut one| Some((one.file.take()?, one))) else {
            return Err(Error::internal("the end of a replica without a file"));
        };
        let (crc, (coming, name)) = (one.crc, one.names);
        let room = &self.context.room;
        let written = file
            .truncate(len)
            .and_then(|()| file.sync())
            .and_then(|()| file.close())
            .and_then(|()| room.name_replica(&coming, &name));
        if let Err(error) = written {
            let _ = room.remove(&coming);
            return Err(error);
        }
        room.sync()?;
        room.check_path()?;
        self.is_whole(&name);
        Ok(crc.value())
    }

    fn is_whole(&mut self, name: &str) {
        if let Some(FileName::Container { step, epoch, .. } | FileName::Parity { step, epoch, .. }) =
            FileName::parse(name)
            && epoch == self.context.epoch.counter
        {
            self.not_decided.add((), step, name.to_owned());
        }
    }

    /// The name of an incomplete replica.
    // Breaks if: it has its final name from the beginning; after a crash an incomplete one would
    // count as a copy.
    fn coming_name(&self, name: &str) -> String {
        if off(Switch::ReplicaWhole) {
            return name.to_owned();
        }
        coming_name(name, self.context.epoch.counter)
    }
}

/// What a peer has sent.
enum Came {
    Nothing,
    Frame(Received),
    /// The announced bytes, whole and proven.
    Piece(Place),
}

impl Came {
    fn of_frame(frame: Option<Received>) -> Self {
        frame.map_or(Self::Nothing, Self::Frame)
    }

    fn of_piece(place: Option<Place>) -> Self {
        place.map_or(Self::Nothing, Self::Piece)
    }
}

/// Serves one peer until it leaves, takes too long, or the session ends.
fn read_to(mut conn: Conn, first: Message, dir: &dyn Dir, poller: &Poller, stop: &AtomicBool) {
    let mut open = None;
    let mut next = Some(first);
    while !stop.load(Ordering::Acquire) {
        let asked = match next.take() {
            Some(message) => Ok(Some(message)),
            None => conn.try_receive(),
        };
        let (slot, file, at_bytes, len_bytes) = match asked {
            Ok(Some(Message::List)) => {
                if conn.send(&listing(dir), READ_TIMEOUT).is_err() {
                    return;
                }
                continue;
            }
            Ok(Some(Message::Fetch {
                slot,
                file,
                at_bytes,
                len_bytes,
            })) => (slot, file, at_bytes, len_bytes),
            Ok(None) if !conn.is_closed() => {
                if poller.wait(&[conn.as_fd()], SLICE).is_err() {
                    return;
                }
                continue;
            }
            // Gone, or a peer that sends what no reader sends.
            _ => return,
        };
        let answer = match fetch(dir, &mut open, &file, at_bytes, len_bytes) {
            Ok(bytes) => Message::Data {
                slot,
                at_bytes,
                bytes,
            },
            Err(error) => {
                let (kind, text) = (error.kind(), error.message().to_owned());
                Message::Lost { slot, kind, text }
            }
        };
        if conn.send(&answer, READ_TIMEOUT).is_err() {
            return;
        }
    }
}

/// Lists the files that are here.
fn listing(dir: &dyn Dir) -> Message {
    match files_of(dir) {
        Ok(files) => Message::Listing { files },
        Err(error) => {
            let (kind, text) = (error.kind(), error.message().to_owned());
            Message::Lost {
                slot: 0,
                kind,
                text,
            }
        }
    }
}

/// Reads bytes of a file, which stays open for the next piece.
fn fetch(
    dir: &dyn Dir,
    open: &mut Option<(String, Box<dyn File>)>,
    name: &str,
    at_bytes: u64,
    len_bytes: u64,
) -> Result<Vec<u8>> {
    // A list of members contains keys, and is of no use elsewhere.
    let wanted = !matches!(FileName::parse(name), None | Some(FileName::Members { .. }));
    if !wanted && !off(Switch::FetchedName) || len_bytes > MAX_DATA_BYTES as u64 {
        return Err(Error::invalid(format!(
            "{len_bytes} bytes of {name:?} were asked for: expected at most {MAX_DATA_BYTES} of a file of the job"
        )));
    }
    let file = match open {
        Some((known, file)) if known == name => file,
        other => &other.insert((name.to_owned(), dir.open(name)?)).1,
    };
    let mut bytes = zeroed(len_bytes as usize)?;
    file.read_at(&mut bytes, at_bytes)?;
    Ok(bytes)
}
