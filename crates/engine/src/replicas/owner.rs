//! Implements the owner's side of replication: a directory whose containers also appear on other
//! nodes.
//!
//! How: [`Replicas::wrap`] puts a [`Dir`] around the node's own directory. A container that is
//! created there is written to the node's directory and sent to its holders straight from the
//! caller's memory, large parts at the same time (a thread writes them). Its checksum is computed
//! as the bytes leave (`leaving.rs`). When it is made durable, it becomes durable everywhere. Each
//! step has other holders; with parity, they are the other members of the node's group, and each
//! gets only the blocks for its parity file. Connections to holders are made when first needed,
//! and again after a loss.
//!
//! Invariants:
//! 1. `sync` returns Ok only when every holder has the whole file durable (see `protect.rs`).
//! 2. A write returns when its memory may be reused: whole containers were sent from it, parts for
//!    parity were copied. All queues together then have at most [`QUEUED_BYTES`].
//! 3. Every wait for a holder ends after `timeout` without progress, and when the session ends.
//! 4. A container that does not become durable is dropped everywhere.
//! 5. One container is on its way at a time: what holders say of others is left over from those
//!    that were given up, and ignored.
//!
//! Survives: holders that are slow, refuse, vanish or violate the protocol: the container is lost,
//! and the error names them. Not here: the holder's side (`keeper.rs`), the protocol
//! (`protect.rs`).

use crate::directory::create_fitting;
use crate::replicas::leaving::{Left, Window, cut, locked, source};
use crate::replicas::part::{Part, Picks};
use crate::replicas::protect::{Owner, OwnerAction, OwnerEvent, PIECE_BYTES};
use crate::replicas::remote::{CONNECT_TIMEOUT, NodeAt};
use orcheck_format::disk::{FileName, ParityGroup};
use orcheck_format::sabotage::{Switch, off};
use orcheck_format::wire::Message;
use orcheck_format::{Crc64, Epoch, Error, JobName, NodeId, Rank, Result, Step};
use orcheck_io::clock::{Clock, Deadline};
use orcheck_io::disk::{Create, Dir, Entry as Listed, File, PinnedWrite};
use orcheck_io::failpoints::Failpoints;
use orcheck_io::machine::thread::spawn_scoped;
use orcheck_io::memory::zeroed;
use orcheck_io::poll::Poller;
use orcheck_net::{Conn, Place, Source};
use orcheck_placement::{Domains, Draw};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A write returns when at most this many copied bytes wait for slow links, in all queues together.
const QUEUED_BYTES: usize = 8 << 20;

/// For a shorter write, no thread is started.
const BESIDE_BYTES: usize = 1 << 20;

/// Longest wait for the links to take what tells holders that a container is lost.
const LET_GO_TIMEOUT: Duration = Duration::from_secs(1);

/// Longest sleep between two looks at the stop flag.
const SLICE: Duration = Duration::from_millis(200);

/// What is needed to bring replicas to other nodes.
pub struct ReplicasContext {
    /// The job.
    pub job: JobName,
    /// This run's epoch.
    pub epoch: Epoch,
    /// A rank of this node, and the node.
    pub own: (Rank, NodeId),
    /// Replicas of each container; 0 with parity.
    pub replicas: u32,
    /// This node's group, with parity.
    pub group: Option<Arc<ParityGroup>>,
    /// Which nodes fail together.
    pub domains: Domains,
    /// The addresses of their keepers.
    pub nodes: Vec<NodeAt>,
    /// Longest wait for a holder without any progress.
    pub timeout: Duration,
    /// Clock for waits.
    pub clock: Arc<dyn Clock>,
    /// Failpoints, for tests.
    pub failpoints: Failpoints,
    /// Set when the session ends.
    pub stop: Arc<AtomicBool>,
}

/// The replicas of the containers of one writer.
pub struct Replicas {
    context: ReplicasContext,
    poller: Poller,
    links: Mutex<Links>,
}

#[derive(Default)]
struct Links {
    conns: BTreeMap<NodeId, Conn>,
    next_slot: u32,
}

impl Replicas {
    /// Prepares replication without connecting yet.
    ///
    /// # Errors
    /// Invalid if there are not enough nodes; lack of descriptors.
    pub fn new(context: ReplicasContext) -> Result<Arc<Self>> {
        let this = Self {
            context,
            poller: Poller::new()?,
            links: Mutex::default(),
        };
        this.holders(Step(0))?;
        Ok(Arc::new(this))
    }

    /// The holders of this node's part of `step`.
    ///
    /// # Errors
    /// Invalid if there are not enough nodes.
    pub fn holders(&self, step: Step) -> Result<Vec<NodeId>> {
        let context = &self.context;
        let draw = Draw {
            job: &context.job,
            epoch: context.epoch,
            step,
        };
        draw.holders(&context.domains, context.own.1, context.replicas)
    }

    /// Draws nodes for more copies of a container that the nodes `held` already have.
    ///
    /// # Errors
    /// Invalid if there are not enough nodes.
    pub fn more(&self, step: Step, held: &[NodeId], count: u32) -> Result<Vec<NodeId>> {
        let context = &self.context;
        let draw = Draw {
            job: &context.job,
            epoch: context.epoch,
            step,
        };
        draw.more(&context.domains, held, count)
    }

    /// What each holder gets of a container: all of it, or with parity its blocks.
    fn parts(&self, name: &str, holders: &[NodeId]) -> Vec<(NodeId, String, Part)> {
        let whole = |&node: &NodeId| (node, name.to_owned(), Part::Whole);
        let Some(group) = &self.context.group else {
            return holders.iter().map(whole).collect();
        };
        let own = group.position(self.node()).unwrap_or(0);
        let parsed = FileName::parse(name);
        // Each begins with the next one: if all began with the same, only its link would be busy.
        // Its own keeper gets nothing but the length.
        let ring = (1..=group.members()).map(|distance| (own + distance) % group.members());
        let part = |holder: u32| {
            let node = *group.nodes.get(holder as usize)?;
            let file = parsed.as_ref()?.parity_on(node)?.to_string();
            let picks = Picks::of(group, own, holder);
            Some((node, file, Part::Blocks(picks)))
        };
        ring.filter_map(part).collect()
    }

    /// This node's group, with parity.
    #[must_use]
    pub fn group(&self) -> Option<&Arc<ParityGroup>> {
        self.context.group.as_ref()
    }

    /// The counter of this run's epoch.
    pub(crate) fn epoch(&self) -> u64 {
        self.context.epoch.counter
    }

    /// Which nodes of this run fail together.
    pub(crate) fn domains(&self) -> &Domains {
        &self.context.domains
    }

    /// The intended number of copies of each container, including the owner's.
    #[must_use]
    pub fn copies(&self) -> u32 {
        self.context.replicas + 1
    }

    /// This node.
    #[must_use]
    pub fn node(&self) -> NodeId {
        self.context.own.1
    }

    /// Its name.
    #[must_use]
    pub fn node_name(&self) -> &str {
        &self.context.nodes[self.context.own.1.index()].name
    }

    /// Wraps the node's own directory: containers of at most `most_bytes` in it go to these holders
    /// too.
    #[must_use]
    pub fn wrap(
        self: &Arc<Self>,
        own: Arc<dyn Dir>,
        holders: Vec<NodeId>,
        most_bytes: u64,
    ) -> Arc<dyn Dir> {
        Arc::new(ReplicatedDir {
            own,
            replicas: Arc::clone(self),
            holders,
            most_bytes,
        })
    }

    /// Brings a container that is complete in `dir` to more holders.
    ///
    /// # Errors
    /// The error of the directory or of a holder; none of it is then left at any holder.
    pub fn copy(self: &Arc<Self>, dir: &dyn Dir, name: &str, holders: &[NodeId]) -> Result<()> {
        let file = dir.open(name)?;
        let len = file.len_bytes()?;
        let whole = |&node: &NodeId| (node, name.to_owned(), Part::Whole);
        let transfer = self.begin(len, holders.iter().map(whole).collect());
        let mut at = 0;
        while at < len {
            let mut bytes = zeroed((len - at).min(PIECE_BYTES) as usize)?;
            file.read_at(&mut bytes, at)?;
            transfer.send(&bytes, at, None)?;
            at += bytes.len() as u64;
        }
        transfer.finish(|| Ok(()))
    }

    /// Asks the holders for space.
    fn begin(self: &Arc<Self>, most_bytes: u64, parts: Vec<(NodeId, String, Part)>) -> Transfer {
        let holders: Vec<NodeId> = parts.iter().map(|(node, ..)| *node).collect();
        let mut links = self.links();
        let slot = links.next_slot;
        links.next_slot = slot.wrapping_add(1);
        drop(links);
        let (owner, actions) = Owner::of_parts(slot, most_bytes, parts);
        let owner = owner.naming(|node| &self.context.nodes[node.index()].name);
        let mut sending = Sending {
            owner,
            slot,
            left: Arc::default(),
            most_bytes,
            sent: BTreeMap::new(),
            ready_bytes: 0,
            let_go_bytes: 0,
            outcome: None,
        };
        sending.carry_out(self, &holders, actions, None);
        Transfer {
            replicas: Arc::clone(self),
            holders,
            sending: Mutex::new(sending),
        }
    }

    fn links(&self) -> MutexGuard<'_, Links> {
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes that wait for the links to these holders.
    fn queued_bytes(&self, holders: &[NodeId]) -> usize {
        let links = self.links();
        let conns = holders.iter().filter_map(|node| links.conns.get(node));
        conns.map(Conn::queued_bytes).sum()
    }

    /// Bytes that are still to be sent to these holders from the memory of a write.
    fn borrowed_bytes(&self, holders: &[NodeId]) -> usize {
        let links = self.links();
        let conns = holders.iter().filter_map(|node| links.conns.get(node));
        conns.map(Conn::borrowed_bytes).sum()
    }

    /// Withdraws what was not sent yet of a container.
    fn withdraw(&self, slot: u32) {
        let is_of_it = |message: &Message| match message {
            Message::Reserve { slot: of, .. }
            | Message::Data { slot: of, .. }
            | Message::Finish { slot: of, .. } => *of == slot,
            _ => false,
        };
        let mut links = self.links();
        for conn in links.conns.values_mut() {
            conn.withdraw(slot, is_of_it);
        }
    }

    /// Sends what is queued for these holders, for a short time; ends the connections to those for
    /// whom something is left, who then know it too.
    fn drain(&self, holders: &[NodeId], source: Option<Source<'_>>) {
        let until = Deadline::after(LET_GO_TIMEOUT);
        // What they say meanwhile is about a container that is lost.
        while self.queued_bytes(holders) > 0 && !until.passed() {
            if listen(self, holders, source, until.left().min(SLICE)).is_err() {
                break;
            }
        }
        let is_slow =
            |node: &NodeId, conn: &Conn| holders.contains(node) && conn.queued_bytes() > 0;
        self.links().conns.retain(|node, conn| !is_slow(node, conn));
    }

    fn connect(&self, node: NodeId) -> Result<Conn> {
        let context = &self.context;
        context.nodes[node.index()].reach(context.own, &context.failpoints, CONNECT_TIMEOUT)
    }
}

struct ReplicatedDir {
    own: Arc<dyn Dir>,
    replicas: Arc<Replicas>,
    holders: Vec<NodeId>,
    most_bytes: u64,
}

impl Dir for ReplicatedDir {
    fn path(&self) -> &Path {
        self.own.path()
    }

    fn create(&self, name: &str, how: Create) -> Result<Box<dyn File>> {
        // The holders first: if the own directory fails, they are told, and do not wait for it.
        let parts = self.replicas.parts(name, &self.holders);
        let transfer = self.replicas.begin(self.most_bytes, parts);
        // Breaks if: it does not fit, and is created once more; the holders of parity would refuse
        // the second one of this name.
        let own = create_fitting(self.own.as_ref(), name, how)?;
        Ok(Box::new(ReplicatedFile { own, transfer }))
    }

    fn open(&self, name: &str) -> Result<Box<dyn File>> {
        self.own.open(name)
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        self.own.rename(from, to)
    }

    fn rename_new(&self, from: &str, to: &str) -> Result<()> {
        self.own.rename_new(from, to)
    }

    fn remove(&self, name: &str) -> Result<()> {
        self.own.remove(name)
    }

    fn list(&self) -> Result<Vec<Listed>> {
        self.own.list()
    }

    fn sync(&self) -> Result<()> {
        self.own.sync()
    }

    fn child(&self, name: &str, create: bool) -> Result<Arc<dyn Dir>> {
        self.own.child(name, create)
    }

    fn remove_child(&self, name: &str) -> Result<()> {
        self.own.remove_child(name)
    }

    fn free_bytes(&self) -> Result<u64> {
        self.own.free_bytes()
    }

    fn read_only(&self) -> Result<bool> {
        self.own.read_only()
    }

    fn check_path(&self) -> Result<()> {
        self.own.check_path()
    }
}

/// A container that is being written here and sent to its holders.
struct ReplicatedFile {
    own: Box<dyn File>,
    transfer: Transfer,
}

/// What is done with the same bytes at the same time.
type Work<'a> = &'a (dyn Fn() -> Result<()> + Sync);

/// The transfer to the holders; if it is dropped before the decision, they drop the container.
struct Transfer {
    replicas: Arc<Replicas>,
    holders: Vec<NodeId>,
    sending: Mutex<Sending>,
}

struct Sending {
    owner: Owner,
    slot: u32,
    /// What has left for holders of the whole container.
    left: Arc<Mutex<Left>>,
    /// What the holders set aside.
    most_bytes: u64,
    /// What was sent to each holder of parity.
    sent: BTreeMap<NodeId, Crc64>,
    ready_bytes: u64,
    let_go_bytes: u64,
    outcome: Option<Result<()>>,
}

impl Sending {
    fn take(&mut self, with: &Replicas, holders: &[NodeId], event: OwnerEvent, window: Window<'_>) {
        let actions = self.owner.step(event);
        self.carry_out(with, holders, actions, window);
    }

    /// Performs the protocol's actions, and reports their failures to it.
    fn carry_out(
        &mut self,
        with: &Replicas,
        holders: &[NodeId],
        actions: Vec<OwnerAction>,
        window: Window<'_>,
    ) {
        let left = Arc::clone(&self.left);
        let leaves = |at: u64, bytes: &[u8]| locked(&left).add(at, bytes);
        let source = source(self.slot, window, &leaves);
        let mut failed = Vec::new();
        let is_lost = (actions.iter()).any(|action| matches!(action, OwnerAction::Lost(_)));
        if is_lost {
            with.withdraw(self.slot);
        }
        for action in actions {
            let (node, queued) = match action {
                OwnerAction::To(node, message) => (node, Queued::Message(message)),
                OwnerAction::Send(node, at_bytes, len) => {
                    match self.part(node, at_bytes, len, window) {
                        Ok(queued) => (node, queued),
                        Err(error) => {
                            failed.push((node, error));
                            continue;
                        }
                    }
                }
                OwnerAction::Finish(node, len_bytes) => {
                    let crc = self.sent.entry(node).or_default().value();
                    let slot = self.slot;
                    let finish = Message::Finish {
                        slot,
                        len_bytes,
                        crc,
                    };
                    (node, Queued::Message(finish))
                }
                OwnerAction::Sent(bytes) => {
                    self.let_go_bytes = bytes;
                    continue;
                }
                OwnerAction::Done => {
                    self.outcome = Some(Ok(()));
                    continue;
                }
                OwnerAction::Lost(error) => {
                    self.outcome = Some(Err(error));
                    continue;
                }
            };
            if let Err(error) = send(with, node, queued, source) {
                failed.push((node, error));
            }
        }
        if is_lost {
            with.drain(holders, source);
        }
        for (node, error) in failed {
            self.take(with, holders, OwnerEvent::Gone(node, error), window);
        }
    }

    /// Bytes for a holder: a whole container is sent from where it is, parts for parity are copied.
    fn part(&mut self, node: NodeId, at: u64, len: u64, window: Window<'_>) -> Result<Queued> {
        let ranges = self.owner.ranges(node, at, len);
        let slot = self.slot;
        if self.owner.is_whole(node) {
            let at_bytes = at;
            return Ok(Queued::Piece(Place { slot, at_bytes }, len));
        }
        let Some(bytes) = cut(window, &ranges, len) else {
            return Err(Error::internal(format!(
                "{len} bytes at {at} of a container were let go too early"
            )));
        };
        self.sent.entry(node).or_default().update(&bytes);
        Ok(Queued::Message(Message::Data {
            slot,
            at_bytes: at,
            bytes,
        }))
    }

    /// Handles messages of the holders until `enough`, or until the container is lost.
    fn wait(
        &mut self,
        with: &Replicas,
        holders: &[NodeId],
        window: Window<'_>,
        enough: impl Fn(&Self) -> bool,
    ) -> Result<()> {
        let left = Arc::clone(&self.left);
        let leaves = |at: u64, bytes: &[u8]| locked(&left).add(at, bytes);
        let source = source(self.slot, window, &leaves);
        let context = &with.context;
        let mut until = context.clock.now() + context.timeout;
        while !enough(self) {
            if let Some(Err(error)) = &self.outcome {
                return Err(error.clone());
            }
            let queued_bytes = with.queued_bytes(holders);
            let mut news = listen(with, holders, source, SLICE)?;
            news.retain(|event| match event {
                OwnerEvent::From(_, message) => slot_of(message) == Some(self.slot),
                _ => true,
            });
            // Breaks if: messages about other containers count; a holder that repeats one would
            // keep the writer waiting.
            if !news.is_empty() || with.queued_bytes(holders) < queued_bytes {
                until = context.clock.now() + context.timeout;
            }
            for event in news {
                self.take(with, holders, event, window);
            }
            if context.stop.load(Ordering::Acquire) {
                let ended = Error::unavailable("the session ended before all holders had it");
                self.take(with, holders, OwnerEvent::GiveUp(ended), window);
            } else if context.clock.now() >= until {
                self.take(with, holders, OwnerEvent::Deadline, window);
            }
        }
        match &self.outcome {
            Some(Err(error)) => Err(error.clone()),
            _ => Ok(()),
        }
    }
}

fn slot_of(message: &Message) -> Option<u32> {
    match message {
        Message::Granted { slot, .. }
        | Message::Credit { slot, .. }
        | Message::Held { slot }
        | Message::Lost { slot, .. } => Some(*slot),
        _ => None,
    }
}

/// What is sent to a holder.
enum Queued {
    Message(Message),
    /// Bytes of the container that are in memory.
    Piece(Place, u64),
}

/// Sends what the link takes at once of this and of what was queued before it.
fn send(with: &Replicas, node: NodeId, what: Queued, source: Option<Source<'_>>) -> Result<()> {
    with.context
        .failpoints
        .at("replicas.send", &with.context.nodes[node.index()].name)?;
    let mut links = with.links();
    let conn = match links.conns.entry(node) {
        Entry::Occupied(there) => there.into_mut(),
        Entry::Vacant(none) => none.insert(with.connect(node)?),
    };
    let queued = match what {
        Queued::Message(message) => conn.queue(message),
        Queued::Piece(place, len) => conn.queue_piece(place, len as usize),
    };
    let pushed = queued.and_then(|()| conn.push_from(source, with.context.timeout));
    pushed.map(drop).inspect_err(|_| {
        links.conns.remove(&node);
    })
}

/// The messages of holders so far; waits a little for the first, or until a link takes more bytes
/// for a holder.
fn listen(
    with: &Replicas,
    holders: &[NodeId],
    source: Option<Source<'_>>,
    longest: Duration,
) -> Result<Vec<OwnerEvent>> {
    let mut links = with.links();
    let conns = holders.iter().filter_map(|node| links.conns.get(node));
    let fds: Vec<_> = conns
        .map(|conn| (conn.as_fd(), conn.can_push(source)))
        .collect();
    with.poller.wait_for(&fds, longest)?;
    drop(fds);
    let mut news = Vec::new();
    for &node in holders {
        let Some(conn) = links.conns.get_mut(&node) else {
            continue;
        };
        // What a holder said last comes before the end of the connection.
        let ended = loop {
            match conn.try_receive() {
                Ok(Some(message)) => news.push(OwnerEvent::From(node, message)),
                Ok(None) => break conn.push_from(source, with.context.timeout).err(),
                Err(error) => break Some(error),
            }
        };
        if let Some(error) = ended {
            links.conns.remove(&node);
            news.push(OwnerEvent::Gone(node, error));
        }
    }
    Ok(news)
}

impl Transfer {
    fn sending(&self) -> MutexGuard<'_, Sending> {
        self.sending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, sending: &mut Sending, event: OwnerEvent, window: Window<'_>) {
        sending.take(&self.replicas, &self.holders, event, window);
    }

    /// Sends the next bytes while `meanwhile` does other work on them; returns when their memory
    /// may be reused.
    fn send(&self, bytes: &[u8], at: u64, meanwhile: Option<Work<'_>>) -> Result<()> {
        let mut sending = self.sending();
        if at != sending.ready_bytes {
            return Err(Error::internal(format!(
                "{} bytes at {at} of a container do not follow the {} before",
                bytes.len(),
                sending.ready_bytes
            )));
        }
        let end = at + bytes.len() as u64;
        if end > sending.most_bytes {
            return Err(Error::internal(format!(
                "the container has {end} bytes, and its ranks declared at most {}",
                sending.most_bytes
            ))
            .next(
                "report this defect of Orcheck, with the options and the lengths of the regions",
            ));
        }
        sending.ready_bytes = end;
        let window = (at, bytes);
        let sent = match meanwhile {
            Some(work) if bytes.len() >= BESIDE_BYTES => {
                self.send_beside(&mut sending, window, work)
            }
            work => {
                let done = work.map_or(Ok(()), |work| work());
                done.and_then(|()| self.send_window(&mut sending, window, &|| false))
            }
        };
        // Breaks if: the memory is given back although a link still needs it; other bytes would
        // follow, under a proof that is right.
        let with = &self.replicas;
        if with.borrowed_bytes(&self.holders) > 0 && !off(Switch::LentBytes) {
            let error = Error::unavailable("the container was given up");
            let error = sent.as_ref().err().cloned().unwrap_or(error);
            self.take(&mut sending, OwnerEvent::GiveUp(error), Some(window));
        }
        sent
    }

    /// Sends bytes while a thread does other work on them.
    fn send_beside(
        &self,
        sending: &mut Sending,
        window: (u64, &[u8]),
        work: Work<'_>,
    ) -> Result<()> {
        let failed = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let work = || work().inspect_err(|_| failed.store(true, Ordering::Release));
            let beside = spawn_scoped(scope, "orcheck-beside", work)?;
            let gave_up = || failed.load(Ordering::Acquire);
            let sent = self.send_window(sending, window, &gave_up);
            let done = beside.join();
            let done = done.unwrap_or_else(|_| Err(Error::internal("a write panicked")));
            done.and(sent)
        })
    }

    /// Sends bytes until their memory may be reused, or `ended`.
    fn send_window(
        &self,
        sending: &mut Sending,
        window: (u64, &[u8]),
        ended: &dyn Fn() -> bool,
    ) -> Result<()> {
        let end = window.0 + window.1.len() as u64;
        let (with, holders, window) = (&self.replicas, &self.holders, Some(window));
        self.take(sending, OwnerEvent::Ready(end), window);
        sending.wait(with, holders, window, |sending| {
            let all = sending.let_go_bytes >= end && with.borrowed_bytes(holders) == 0;
            ended() || all && with.queued_bytes(holders) <= QUEUED_BYTES
        })
    }

    /// Ends it; returns when all holders have it durable.
    fn finish(&self, meanwhile: impl FnOnce() -> Result<()>) -> Result<()> {
        let mut sending = self.sending();
        let crc = locked(&sending.left).crc();
        self.take(&mut sending, OwnerEvent::End(crc), None);
        meanwhile()?;
        sending.wait(&self.replicas, &self.holders, None, |sending| {
            sending.outcome.is_some()
        })
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        let mut sending = self.sending();
        if sending.outcome.is_none() {
            let error = Error::unavailable("the container was given up");
            self.take(&mut sending, OwnerEvent::GiveUp(error), None);
        }
    }
}

impl File for ReplicatedFile {
    fn write_at(&self, buf: &[u8], at: u64) -> Result<()> {
        let write = || self.own.write_at(buf, at);
        self.transfer.send(buf, at, Some(&write))
    }

    fn write_pinned(&self, buf: &[u8], at: u64, way: &dyn PinnedWrite) -> Result<()> {
        let write = || self.own.write_pinned(buf, at, way);
        self.transfer.send(buf, at, Some(&write))
    }

    fn read_at(&self, buf: &mut [u8], at: u64) -> Result<()> {
        self.own.read_at(buf, at)
    }

    fn allocate(&self, len: u64) -> Result<()> {
        self.own.allocate(len)
    }

    fn truncate(&self, len: u64) -> Result<()> {
        self.own.truncate(len)
    }

    fn sync(&self) -> Result<()> {
        self.transfer.finish(|| self.own.sync())
    }

    fn len_bytes(&self) -> Result<u64> {
        self.own.len_bytes()
    }

    fn is_direct(&self) -> bool {
        self.own.is_direct()
    }

    fn alignment_bytes(&self) -> u32 {
        self.own.alignment_bytes()
    }

    fn try_lock(&self) -> Result<bool> {
        self.own.try_lock()
    }

    fn close(self: Box<Self>) -> Result<()> {
        let ReplicatedFile { own, transfer } = *self;
        drop(transfer);
        own.close()
    }

    fn name(&self) -> String {
        self.own.name()
    }
}
