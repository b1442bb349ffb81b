//! Runs the control thread of a node, which carries the messages and actions of the commit
//! protocol.
//!
//! Each node has one control thread, on its lowest rank. It receives messages from the node's
//! writers over Unix sockets, and from the nodes directly above and below it in the tree over one
//! authenticated connection each. It runs the pure state machines of `protocol.rs` and `relay.rs`
//! and performs their actions: it writes commit records, updates the board that the ranks wait on,
//! changes lanes, and prunes.
//!
//! Invariants:
//! 1. `protocol.rs` makes all decisions and `relay.rs` does all forwarding; nothing here depends on
//!    the order in which sockets become readable.
//! 2. A peer that hangs up, sends rubbish or stalls costs at most the steps in flight; it never
//!    blocks this thread longer than `SEND_TIMEOUT`.
//! 3. However this thread ends, it tells the waiting ranks (`set_gone`).
//!
//! Not here: how connections are made (crate `client`), the disk (`record.rs`, `prune.rs`).

use crate::commit::protocol::{
    JobFacts, LeadAction, LeadEvent, LeadState, NodeAction, NodeEvent, NodeState,
};
use crate::commit::record as commit;
use crate::commit::relay::{Relay, RelayAction, RelayEvent, Tree};
use crate::directory::Places;
use crate::directory::TargetFailure;
use crate::directory::halt::Watch;
use crate::directory::prune::{KeepRule, Referred, prune};
use crate::node::{HaltRequest, Index, IndexShape, Outcome};
use orcheck_format::disk::{CommitRecord, FileName};
use orcheck_format::sabotage::{Switch, off};
use orcheck_format::wire::Message;
use orcheck_format::{Error, Level, NodeId, Rank, Result, Step, TargetId, WriterId};
use orcheck_io::clock::Clock;
use orcheck_io::disk::Dir;
use orcheck_io::failpoints::Failpoints;
use orcheck_io::poll::Poller;
use orcheck_net::Conn;
use orcheck_placement::Placement;
use orcheck_pool::{Gate, Pool};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Longest time that sending one message may take.
const SEND_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest sleep between two looks at the stop flag.
const SLICE: Duration = Duration::from_millis(500);

/// What a CP-thread of the same process reports to the control thread.
pub enum Reported {
    /// The message that it would send from another process.
    Message(Message),
    /// This writer has no ranks left and will report nothing more.
    Done(WriterId),
}

/// State that a node's session and its control thread share.
#[derive(Default)]
pub struct ControlShared {
    /// The session is ending.
    pub stop: AtomicBool,
    /// All ranks are closing the session and have sent everything; a peer that hangs up from now on
    /// has merely closed.
    pub closing: AtomicBool,
    /// The checkpoint this run resumed from (step, epoch counter), once known.
    pub resumed: Mutex<Option<(Step, u64)>>,
    /// Notes for the user, oldest first; bounded.
    pub notes: Mutex<Vec<String>>,
    /// Number of notes so far.
    pub noted: AtomicU64,
    /// Reports of CP-threads in this process, which have no connection to the control thread; at
    /// most a few for each snapshot in the pool.
    pub reports: Mutex<VecDeque<Reported>>,
    /// Number of containers of this run's other nodes in the node's directory, as of its last
    /// commit there. Counted only in agents, which report it.
    pub replicas: AtomicU64,
    /// Their bytes.
    pub replica_bytes: AtomicU64,
    /// Number of CP-threads in this process that may still add to `reports`.
    pub reporters: AtomicU32,
}

impl ControlShared {
    /// Adds a note; once there are 64, further notes are dropped.
    pub fn note(&self, text: String) {
        let mut notes = self
            .notes
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        if notes.len() < 64 {
            notes.push(text);
            self.noted.fetch_add(1, Ordering::AcqRel);
        }
    }
}

/// What a control thread needs to know.
pub struct ControlContext {
    /// The node's pool.
    pub pool: Arc<Pool>,
    /// Shape of the index in it.
    pub shape: IndexShape,
    /// This node.
    pub node: NodeId,
    /// The job.
    pub facts: JobFacts,
    /// The ranks of this node, in order.
    pub ranks: Vec<Rank>,
    /// Ranks of this node that host a writer.
    pub writer_hosts: BTreeSet<Rank>,
    /// Writers of this node.
    pub writers: u32,
    /// The job's directories.
    pub places: Places,
    /// Number of checkpoints to keep.
    pub keep: usize,
    /// Where the lanes lead at first; `None` without placed directories.
    pub placement: Option<Placement>,
    /// The tree of nodes; its top is the lead, node 0.
    pub tree: Tree,
    /// Whether this thread outlives the ranks. It then ends by itself once no rank is left and
    /// everything that they handed over is decided.
    pub outlives: bool,
    /// Clock for records.
    pub clock: Arc<dyn Clock>,
    /// Failpoints, for tests.
    pub failpoints: Failpoints,
    /// Shared with the session.
    pub shared: Arc<ControlShared>,
    /// Locked as long as this thread lives. A thread that can lock it knows that the control thread
    /// is gone, however it ended.
    #[allow(dead_code)] // it only has to exist
    pub alive: Gate,
}

/// The connections of a control thread.
pub struct Links {
    /// One for each rank of this node.
    pub ranks: Vec<(Rank, Conn)>,
    /// To the lead, or to the relay in between; `None` on the lead.
    pub lead: Option<Conn>,
    /// One for each node directly below this one in the tree.
    pub nodes: Vec<(NodeId, Conn)>,
}

enum Work {
    Node(NodeEvent),
    Lead(LeadEvent),
    Relay(RelayEvent),
}

/// Tells the ranks of the node, when dropped, that the engine has ended.
// Breaks if: it is told as the last statement; after a panic, ranks that skip checkpoints without
// room would compute on without any.
struct Gone(Arc<Pool>, IndexShape);

impl Drop for Gone {
    fn drop(&mut self) {
        Index::new(&self.0, self.1).set_gone();
    }
}

/// A control thread's state.
pub struct Control {
    context: ControlContext,
    links: Links,
    poller: Poller,
    node: NodeState,
    lead: Option<LeadState>,
    /// Present on a relay.
    relay: Option<Relay>,
    work: VecDeque<Work>,
    /// The newest steps of this run that are committed at each level.
    committed: BTreeMap<Level, BTreeSet<Step>>,
    referred: BTreeMap<Level, Referred>,
    inactive: BTreeSet<TargetId>,
    /// On the lead: the newest record at level `global`, as it is in the directories.
    recorded: Option<CommitRecord>,
    /// Full directories that failed when older checkpoints were to be removed: left alone.
    left_alone: BTreeSet<TargetId>,
    halt: Watch,
    /// The lead knows that this node has no ranks left.
    left: bool,
}

impl Control {
    /// Prepares the control thread; the session holds the waker of `poller`.
    #[must_use]
    pub fn new(context: ControlContext, links: Links, poller: Poller) -> Self {
        let levels = context.places.levels();
        let outlived = if context.outlives {
            context.ranks.len()
        } else {
            0
        };
        let node = NodeState::new(context.node, context.writers, levels).outliving(outlived as u32);
        let lead = (context.node == NodeId(0))
            .then(|| LeadState::new(context.facts.clone(), context.placement.clone()));
        let relay = (context.tree.relays().contains(&context.node.0))
            .then(|| Relay::new(context.tree, context.node));
        let placed = context.places.servers.iter().flatten();
        let mut claimed: Vec<Arc<dyn Dir>> = placed
            .filter(|_| context.node == NodeId(0))
            .cloned()
            .collect();
        claimed.extend(context.places.node.clone());
        let clock = &context.clock;
        let halt = Watch::new(
            claimed,
            context.facts.epoch.counter,
            clock.now(),
            clock.unix_ms(),
        );
        let mut this = Self {
            halt,
            context,
            links,
            poller,
            node,
            lead,
            relay,
            work: VecDeque::new(),
            committed: BTreeMap::new(),
            referred: BTreeMap::new(),
            inactive: BTreeSet::new(),
            recorded: None,
            left_alone: BTreeSet::new(),
            left: false,
        };
        if let Some(placement) = this.context.placement.clone() {
            this.take_placement(&placement, false);
        }
        this
    }

    /// Runs until the session ends. If it ends early, waiting ranks are told.
    ///
    /// # Errors
    /// A defect, or a failure that a test injects; the node then commits nothing more.
    pub fn run(mut self) -> Result<()> {
        let _gone = Gone(Arc::clone(&self.context.pool), self.context.shape);
        self.serve()
    }

    fn serve(&mut self) -> Result<()> {
        while !self.context.shared.stop.load(Ordering::Acquire) && !self.is_over() {
            let fds: Vec<_> = self
                .links
                .ranks
                .iter()
                .map(|(_, conn)| conn.as_fd())
                .chain(self.links.lead.iter().map(AsFd::as_fd))
                .chain(self.links.nodes.iter().map(|(_, conn)| conn.as_fd()))
                .collect();
            self.poller.wait(&fds, SLICE)?;
            drop(fds);
            self.receive();
            self.say_goodbye();
            self.poll_halt_request();
            while let Some(work) = self.work.pop_front() {
                match work {
                    Work::Node(event) => {
                        for action in self.node.step(event) {
                            self.do_for_node(action)?;
                        }
                    }
                    Work::Lead(event) => {
                        let now = self.context.clock.unix_ms();
                        let Some(lead) = &mut self.lead else { continue };
                        for action in lead.step(event, now) {
                            self.do_for_lead(action)?;
                        }
                    }
                    Work::Relay(event) => {
                        let Some(relay) = &mut self.relay else {
                            continue;
                        };
                        for action in relay.step(event) {
                            self.do_for_relay(action)?;
                        }
                    }
                }
            }
        }
        Ok(())
    }

    fn poll_halt_request(&mut self) {
        let Some(asked) = self
            .halt
            .look(self.context.clock.now(), self.context.clock.unix_ms())
        else {
            return;
        };
        Index::new(&self.context.pool, self.context.shape).set_halt(asked);
        self.context.shared.note(match asked {
            HaltRequest::Now => {
                "the run is asked to halt: it takes a checkpoint and ends".to_owned()
            }
            HaltRequest::After(count) => {
                let count = orcheck_format::count(count, "more checkpoint");
                format!("the run is asked to halt after {count}")
            }
            HaltRequest::None => "the request to halt was withdrawn".to_owned(),
        });
    }

    /// Whether all ranks are gone and everything that they handed over is decided.
    fn is_over(&self) -> bool {
        // Breaks if: only the lead waits for others; decisions would not reach the nodes below.
        let others = !self.links.nodes.is_empty();
        let decides = self.lead.as_ref().is_some_and(|lead| !lead.is_idle());
        self.left && self.work.is_empty() && self.node.is_idle() && !others && !decides
    }

    /// Tells the lead when no rank is left and all CP-threads have reported everything.
    fn say_goodbye(&mut self) {
        let shared = &self.context.shared;
        // Read the count first: the last report is then either found below or already taken.
        let over = self.links.ranks.is_empty() && shared.reporters.load(Ordering::Acquire) == 0;
        let reported = self.take_reports();
        if !self.context.outlives || !over || self.left {
            return;
        }
        if reported {
            // Once more, after what follows from these.
            self.poller.waker().wake();
        } else {
            self.left = true;
            self.work.push_back(Work::Node(NodeEvent::RanksGone));
        }
    }

    /// Takes the reports of CP-threads in this process; returns whether there were any.
    fn take_reports(&mut self) -> bool {
        let reports = self.context.shared.reports.lock();
        let mut reports = reports.unwrap_or_else(PoisonError::into_inner);
        let any = !reports.is_empty();
        let reports = reports.drain(..);
        self.work.extend(reports.map(|reported| {
            Work::Node(match reported {
                Reported::Message(message) => NodeEvent::FromRank(message),
                Reported::Done(writer) => NodeEvent::WriterDone(writer),
            })
        }));
        any
    }

    /// Moves every message that has arrived into the queue; drops broken connections.
    fn receive(&mut self) {
        let work = &mut self.work;
        let hosts = &self.context.writer_hosts;
        self.links.ranks.retain_mut(|(rank, conn)| {
            match drain(conn, |message| {
                work.push_back(Work::Node(NodeEvent::FromRank(message)));
                Ok(())
            }) {
                Ok(()) => true,
                Err(error) => {
                    // Its CP-thread must not wait for the rest of a snapshot that will not come.
                    if let Some(local) = self.context.ranks.iter().position(|r| r == rank) {
                        Index::new(&self.context.pool, self.context.shape)
                            .set_rank_gone(local as u32);
                    }
                    if hosts.contains(rank) {
                        let error =
                            error.at(format!("rank {rank}, which flushes for its node, is gone"));
                        work.push_back(Work::Node(NodeEvent::WriterGone(error)));
                    }
                    false
                }
            }
        });
        let mut drained = Ok(());
        if let Some(conn) = &mut self.links.lead {
            let relays = self.relay.is_some();
            drained = drain(conn, |message| {
                if relays {
                    work.push_back(Work::Relay(RelayEvent::FromAbove(message.clone())));
                }
                work.push_back(Work::Node(NodeEvent::FromLead(message)));
                Ok(())
            });
        }
        let (tree, leads) = (self.context.tree, self.lead.is_some());
        self.links.nodes.retain_mut(|(node, conn)| {
            let node = *node;
            let drained = drain(conn, |message| {
                tree.allows(node, &message)?;
                work.push_back(if leads {
                    Work::Lead(LeadEvent::FromNode(node, message))
                } else {
                    Work::Relay(RelayEvent::FromBelow(node, message))
                });
                Ok(())
            });
            if let Err(error) = drained {
                work.push_back(gone(leads, node, error));
                return false;
            }
            true
        });
        if let Err(error) = drained {
            self.lead_gone(error);
        }
    }

    /// Handles the loss of the connection towards the lead.
    fn lead_gone(&mut self, error: Error) {
        self.links.lead = None;
        let error = error.at("the lead of the job is gone");
        self.work.push_back(Work::Relay(RelayEvent::AboveGone));
        self.work.push_back(Work::Node(NodeEvent::LeadGone(error)));
    }

    fn send_up(&mut self, message: &Message) {
        if let Some(conn) = &mut self.links.lead
            && let Err(error) = conn.send(message, SEND_TIMEOUT)
        {
            self.lead_gone(error);
        }
    }

    fn send_down(&mut self, message: &Message) {
        let (work, leads) = (&mut self.work, self.lead.is_some());
        self.links.nodes.retain_mut(|(node, conn)| {
            let sent = conn.send(message, SEND_TIMEOUT);
            sent.map_err(|error| work.push_back(gone(leads, *node, error)))
                .is_ok()
        });
    }

    fn do_for_node(&mut self, action: NodeAction) -> Result<()> {
        match action {
            NodeAction::ToLead(message) => {
                self.context
                    .failpoints
                    .at("control.to_lead", name_of(&message))?;
                let node = self.context.node;
                if self.lead.is_some() {
                    let event = LeadEvent::FromNode(node, message);
                    self.work.push_back(Work::Lead(event));
                } else if self.relay.is_some() {
                    let event = RelayEvent::FromBelow(node, message);
                    self.work.push_back(Work::Relay(event));
                } else {
                    self.send_up(&message);
                }
            }
            NodeAction::Publish(step, level, outcome) => {
                self.publish(step, level, &outcome)?;
            }
            NodeAction::WriteRecord(step, level, bytes) => {
                let written = match &self.context.places.node {
                    Some(dir) => commit::make_visible_here(dir, &bytes, &self.context.places.trust)
                        .map(|record| {
                            let referred = self.referred.entry(level).or_default();
                            referred.learn(&record);
                        }),
                    None => Err(Error::internal(format!("level {level} has no directory"))),
                };
                let event = NodeEvent::RecordWritten(step, level, written);
                self.work.push_back(Work::Node(event));
            }
            NodeAction::Lanes(_, text) => {
                let roots: Vec<String> = self.context.facts.servers.clone();
                match Placement::from_toml(&text, &self.context.facts.nodes, &roots) {
                    Ok(placement) => self.take_placement(&placement, true),
                    Err(error) => self
                        .context
                        .shared
                        .note(format!("placement not taken: {error}")),
                }
            }
            NodeAction::Gone(error) => {
                self.context
                    .failpoints
                    .at("control.gone", error.message())?;
                // Breaks if: it is always noted; a session that closes well would warn of its end.
                if !self.context.shared.closing.load(Ordering::Acquire) {
                    self.context.shared.note(error.message().to_owned());
                }
                Index::new(&self.context.pool, self.context.shape).set_gone();
            }
        }
        Ok(())
    }

    fn publish(&mut self, step: Step, level: Level, outcome: &Outcome) -> Result<()> {
        self.context.failpoints.at("control.publish", "")?;
        let index = Index::new(&self.context.pool, self.context.shape);
        let committed = *outcome == Outcome::Committed;
        // First: a rank that sees the outcome at once must find the notes that explain it.
        index.set_notes(self.context.shared.noted.load(Ordering::Acquire));
        if committed {
            index.set_pruning(true);
        }
        index.publish(step, level, outcome);
        let word = if committed { "committed" } else { "lost" };
        let facts = &self.context.facts;
        let node = &facts.nodes[self.context.node.index()];
        let what = format!("{node} {} {step} {level} {word}", facts.epoch.counter);
        self.context.failpoints.at("control.published", &what)?;
        if committed {
            self.after_commit(step, level);
            Index::new(&self.context.pool, self.context.shape).set_pruning(false);
        }
        Ok(())
    }

    fn do_for_lead(&mut self, action: LeadAction) -> Result<()> {
        match action {
            LeadAction::ToAll(message) => {
                self.context
                    .failpoints
                    .at("control.to_all", name_of(&message))?;
                self.send_down(&message);
                self.work
                    .push_back(Work::Node(NodeEvent::FromLead(message)));
            }
            LeadAction::WriteRecord(record) => {
                self.context.failpoints.at("control.write_record", "")?;
                let written = self.write_global(&record);
                let referred = self.referred.entry(Level::Global).or_default();
                referred.learn(&record);
                self.work
                    .push_back(Work::Lead(LeadEvent::RecordWritten(record.step, written)));
            }
        }
        Ok(())
    }

    fn do_for_relay(&mut self, action: RelayAction) -> Result<()> {
        match action {
            RelayAction::Up(message) => {
                self.context
                    .failpoints
                    .at("control.relay", name_of(&message))?;
                self.send_up(&message);
            }
            RelayAction::Down(message) => {
                self.context
                    .failpoints
                    .at("control.spread", name_of(&message))?;
                self.send_down(&message);
            }
            RelayAction::HangUp => self.links.nodes.clear(),
        }
        Ok(())
    }

    /// Writes the record into every placed directory that still takes part.
    fn write_global(&mut self, record: &CommitRecord) -> std::result::Result<(), TargetFailure> {
        let (numbers, dirs) = self.active_servers();
        commit::make_visible(&dirs, record, &self.context.places.trust).map_err(|failure| {
            TargetFailure {
                target: failure.target.map(|at| numbers[at.index()]),
                ..failure
            }
        })?;
        self.recorded = Some(record.clone());
        Ok(())
    }

    /// Adopts a placement; with `tell`, notes for the user which directories are no longer used.
    fn take_placement(&mut self, placement: &Placement, tell: bool) {
        let index = Index::new(&self.context.pool, self.context.shape);
        if placement.generation < index.generation() {
            return;
        }
        if let Some(lanes) = placement.lanes.get(self.context.node.index()) {
            index.set_lanes(placement.generation, lanes);
        }
        for (number, server) in placement.servers.iter().enumerate() {
            if !server.active {
                index.set_inactive(TargetId(number as u32));
            }
            if !server.active && self.inactive.insert(TargetId(number as u32)) && tell {
                self.context.shared.note(format!(
                    "directory {} failed and takes no more containers of this run; the others get its part. Next: mend it; the next run uses it again",
                    server.name
                ));
            }
        }
    }

    /// Counts a commit, and prunes the level.
    fn after_commit(&mut self, step: Step, level: Level) {
        let dirs = match level {
            Level::Process => return,
            Level::Global if self.lead.is_none() => return,
            Level::Global => self.active_servers().1,
            _ => self.context.places.of_level(level),
        };
        let committed = self.committed.entry(level).or_default();
        committed.insert(step);
        while committed.len() > self.context.keep.max(1) {
            committed.pop_first();
        }
        let resumed = self.context.shared.resumed.lock();
        let rule = KeepRule {
            keep: self.context.keep,
            epoch: self.context.facts.epoch,
            resumed: *resumed.unwrap_or_else(std::sync::PoisonError::into_inner),
            committed: committed.clone(),
        };
        let referred = self.referred.entry(level).or_default();
        if let Err(error) = prune(&dirs, level, &rule, referred) {
            // Keeping too much loses nothing; the next commit tries again.
            self.context.shared.note(format!("prune: {error}"));
        } else if level == Level::Global {
            self.empty_full_servers(&dirs, &rule);
        }
        if matches!(level, Level::Peers(_)) && self.context.outlives {
            dirs.iter()
                .for_each(|dir| self.count_replicas(dir.as_ref()));
        }
    }

    /// Counts the replicas that this node holds for others.
    fn count_replicas(&self, dir: &dyn Dir) {
        // Whoever needs a directory that cannot be listed will notice.
        let Ok(entries) = dir.list() else { return };
        let epoch = self.context.facts.epoch;
        let of_others = entries.iter().filter(|entry| {
            let of_run = |counter, run| (counter, run) == (epoch.counter, epoch.run.short_bytes());
            match FileName::parse(&entry.name) {
                Some(FileName::Container {
                    epoch, run, node, ..
                }) => of_run(epoch, run) && node != self.context.node,
                Some(FileName::Parity { epoch, run, .. }) => of_run(epoch, run),
                _ => false,
            }
        });
        let (count, bytes) = of_others.fold((0, 0), |(count, bytes), entry| {
            (count + 1, bytes + entry.len_bytes)
        });
        self.context.shared.replicas.store(count, Ordering::Release);
        self.context
            .shared
            .replica_bytes
            .store(bytes, Ordering::Release);
    }

    /// Removes older checkpoints also from directories that take part no more because they are
    /// full, and writes the newest record there.
    fn empty_full_servers(&mut self, active: &[Arc<dyn Dir>], rule: &KeepRule) {
        let servers = self.context.places.servers.iter().enumerate();
        for (number, dir) in servers {
            let server = TargetId(number as u32);
            let is_full = self.lead.as_ref().is_some_and(|lead| lead.is_full(server));
            let Some(dir) = dir.as_ref().filter(|_| is_full) else {
                continue;
            };
            // Breaks if: they are left out; what fills them would stay, and each run would lose its
            // first checkpoint to it.
            if self.left_alone.contains(&server) || off(Switch::FullPruned) {
                continue;
            }
            let all = [active, std::slice::from_ref(dir)].concat();
            let referred = self.referred.entry(Level::Global).or_default();
            let emptied = prune(&all, Level::Global, rule, referred).and_then(|_| {
                // Breaks if: it is not written; without the others, it would look as if the job
                // had never committed anything, and the next run would begin from nothing.
                self.recorded.as_ref().map_or(Ok(()), |record| {
                    let own = std::slice::from_ref(dir);
                    let written = commit::make_visible(own, record, &self.context.places.trust);
                    written.map_err(|failure| failure.error)
                })
            });
            if let Err(error) = emptied {
                // It takes part no more: a server that hangs must not delay every commit.
                self.left_alone.insert(server);
                self.context.shared.note(format!(
                    "older checkpoints stay in the full directory {}: {error}",
                    dir.path().display()
                ));
            }
        }
    }

    /// The placed directories that still take part, and their numbers.
    fn active_servers(&self) -> (Vec<TargetId>, Vec<Arc<dyn Dir>>) {
        let servers = self.context.places.servers.iter().enumerate();
        servers
            .map(|(server, dir)| (TargetId(server as u32), dir))
            .filter(|(server, _)| !self.inactive.contains(server))
            .filter_map(|(server, dir)| dir.clone().map(|dir| (server, dir)))
            .unzip()
    }
}

fn drain(conn: &mut Conn, mut take: impl FnMut(Message) -> Result<()>) -> Result<()> {
    while let Some(message) = conn.try_receive()? {
        take(message)?;
    }
    Ok(())
}

/// A node directly below is gone.
fn gone(leads: bool, node: NodeId, error: Error) -> Work {
    if leads {
        Work::Lead(LeadEvent::NodeGone(node, error))
    } else {
        Work::Relay(RelayEvent::Gone(node, error))
    }
}

/// Short name of a message, as failpoints show it.
fn name_of(message: &Message) -> &'static str {
    match message {
        Message::Vote { .. } => "vote",
        Message::NotDurable { .. } => "not durable",
        Message::Recorded { .. } => "recorded",
        Message::Committed { .. } => "committed",
        Message::Aborted { .. } => "aborted",
        Message::Record { .. } => "record",
        Message::Said { message, .. } => name_of(message),
        _ => "other",
    }
}
