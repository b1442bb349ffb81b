//! Runs one job's session in the agent: takes over what the ranks handed over, runs the threads,
//! and ends them.
//!
//! Invariants:
//! 1. Threads are joined before claims, listeners and pool are released; only then does the agent
//!    hang up.
//! 2. What the ranks sealed is decided first, unless the session is stopped or its timeout passes.
//!
//! Not here: who calls (`agent.rs`), what the threads do (`threads.rs`).

use super::memory::{Kept, KeptRun, Leavings};
use super::{PATIENCE, fields, reply};
use crate::commit::{ControlShared, Links, Reported};
use crate::directory::Places;
use crate::host::adoption::{Unpacked, unpack};
use crate::host::threads::{Host, JOIN_TIMEOUT, Running, join};
use crate::node::{Index, IndexShape, Outcome, POOL_IN_USE};
use crate::replicas::KeptReplicas;
use orcheck_format::sabotage::{Switch, off};
use orcheck_format::wire::{Adoption, AgentMessage, Link, Message};
use orcheck_format::{Error, JobName, Level, Result, WriterId};
use orcheck_io::clock::Clock;
use orcheck_io::disk::{Dir, Lock, Ram};
use orcheck_io::failpoints::Failpoints;
use orcheck_io::machine::thread::spawn;
use orcheck_io::poll::{Poller, Waker};
use orcheck_net::{Conn, Listener};
use orcheck_placement::Placement;
use orcheck_pool::{Gates, Pool};
use orcheck_staging::client::is_served;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Longest wait for the threads of the previous session.
const IN_USE_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest sleep between two looks at threads and ranks.
const SLICE: Duration = Duration::from_millis(50);
/// The same once ranks have gone: the next run may be waiting for the end.
const ENDING_SLICE: Duration = Duration::from_millis(5);

/// What a rank has handed over so far.
pub(super) struct Adopting {
    what: Unpacked,
    pool: Pool,
    locks: Vec<Lock>,
    doors: Vec<Listener>,
    links: Links,
}

impl Adopting {
    /// The job that is handed over.
    pub(super) fn job(&self) -> &JobName {
        &self.what.plan.job
    }

    pub(super) fn new(job: &[u8], pool: OwnedFd) -> Result<Self> {
        let what = unpack(Adoption::decode(job, env!("CARGO_PKG_VERSION"))?)?;
        let pool = Pool::attach(pool)?;
        let wanted = IndexShape::of(&what.plan.layout.nodes[what.plan.node.index()]);
        let found = pool.shape();
        if (found.words, found.rings) != (wanted.words(), wanted.ranks) {
            return Err(Error::corrupt(format!(
                "the pool is that of another node: expected {} words and {} rings, found {} and {}",
                wanted.words(),
                wanted.ranks,
                found.words,
                found.rings
            )));
        }
        Ok(Self {
            what,
            pool,
            locks: Vec::new(),
            doors: Vec::new(),
            links: Links {
                ranks: Vec::new(),
                lead: None,
                nodes: Vec::new(),
            },
        })
    }

    pub(super) fn take(
        &mut self,
        what: AgentMessage,
        fd: OwnedFd,
        failpoints: &Failpoints,
    ) -> Result<()> {
        match what {
            AgentMessage::Lock => self.locks.push(Lock::attach(fd)),
            AgentMessage::Door { address } => {
                self.doors.push(Listener::attach(fd, address.parse()?)?);
            }
            AgentMessage::Link { to, state } => {
                let conn = Conn::attach(fd, state, failpoints)?;
                match to {
                    Link::Rank(rank) => self.links.ranks.push((rank, conn)),
                    Link::Node(node) => self.links.nodes.push((node, conn)),
                    Link::Lead => self.links.lead = Some(conn),
                }
            }
            other => return Err(Error::invalid(format!("{other:?} cannot be handed over"))),
        }
        Ok(())
    }
}

/// State shared by the session's thread and the agent.
#[derive(Default)]
struct State {
    stop: AtomicBool,
    /// No rank is left.
    finishing: AtomicBool,
    /// The lowest rank has said goodbye.
    in_order: AtomicBool,
    over: AtomicBool,
    /// What remains of the session when its ranks are gone.
    shelf: Mutex<Option<Shelf>>,
    /// Memory of it that is kept for the next run.
    leaves: Mutex<Option<KeptRun>>,
    /// What it is doing, as [`fields`].
    summary: Mutex<String>,
}

impl State {
    fn summarize(&self, text: String) {
        *self.summary.lock().unwrap_or_else(PoisonError::into_inner) = text;
    }
}

/// A session, as the agent sees it.
pub(super) struct Session {
    state: Arc<State>,
    thread: Option<JoinHandle<()>>,
}

impl Session {
    /// Starts the session's thread, which continues the conversation.
    pub(super) fn start(
        adopting: Adopting,
        conn: Conn,
        (clock, failpoints): (Arc<dyn Clock>, Failpoints),
        (ram, kept): (Arc<Ram>, Arc<Kept>),
        agent: Waker,
    ) -> Result<Self> {
        let state = Arc::new(State::default());
        let shared = Arc::clone(&state);
        let thread = spawn("orcheck-session", move || {
            let _over = Over(Arc::clone(&shared), agent);
            serve(adopting, conn, (&clock, &failpoints), (ram, &kept), &shared);
        })?;
        Ok(Self {
            state,
            thread: Some(thread),
        })
    }

    /// Ends it without waiting for decisions.
    pub(super) fn stop(&self) {
        self.state.stop.store(true, Ordering::Release);
    }

    pub(super) fn is_finishing(&self) -> bool {
        let state = &self.state;
        state.finishing.load(Ordering::Acquire) || state.stop.load(Ordering::Acquire)
    }

    pub(super) fn has_begun(&self) -> bool {
        !self.summary().is_empty()
    }

    /// What it does; empty if it could not begin.
    pub(super) fn summary(&self) -> String {
        let summary = self.state.summary.lock();
        summary.unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn ended_in_order(&self) -> bool {
        self.state.in_order.load(Ordering::Acquire)
    }

    /// What remains for runs elsewhere, once it is over.
    pub(super) fn take_shelf(&self) -> Option<Shelf> {
        let shelf = self.state.shelf.lock();
        shelf.unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Memory of it that is kept for the next run, once it is over.
    pub(super) fn take_leavings(&self) -> Option<KeptRun> {
        let leaves = self.state.leaves.lock();
        leaves.unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Whether nothing of it is left.
    pub(super) fn is_over(&mut self) -> bool {
        if !self.state.over.load(Ordering::Acquire) {
            return false;
        }
        if let Some(thread) = self.thread.take() {
            // It has reported its end; a panic in it is not the agent's.
            let _ = thread.join();
        }
        true
    }
}

/// Reports the end of a session when dropped, however its thread ends.
// Breaks if: the end is reported as the thread's last statement; after a panic the agent would wait
// for the session forever.
struct Over(Arc<State>, Waker);

impl Drop for Over {
    fn drop(&mut self) {
        self.0.over.store(true, Ordering::Release);
        self.1.wake();
    }
}

/// The keeper of a session that did not end in order. Runs on other nodes read from it what this
/// node holds, and nodes of the same run that are still bringing replicas continue.
pub(super) struct Shelf {
    keeper: Running,
    stop: Arc<AtomicBool>,
}

impl Shelf {
    /// Ends it, and waits until it has ended.
    pub(super) fn end(self, clock: &dyn Clock) {
        let (thread, waker) = self.keeper;
        self.stop.store(true, Ordering::Release);
        waker.wake();
        // A thread that hangs in a dead directory is left until the agent ends.
        let _ = join(thread, clock, JOIN_TIMEOUT);
    }
}

/// The threads of the node.
struct Threads {
    control: Option<Running>,
    keeper: Option<Running>,
    flushers: Vec<JoinHandle<Result<()>>>,
    stop: Arc<AtomicBool>,
    keeper_stop: Arc<AtomicBool>,
}

/// The path of a CP-thread's reports to the control thread; dropping it says that they are
/// complete.
struct Reporter {
    writer: WriterId,
    shared: Arc<ControlShared>,
    waker: Waker,
}

impl Reporter {
    fn tell(&self, reported: Reported) {
        let reports = self.shared.reports.lock();
        reports
            .unwrap_or_else(PoisonError::into_inner)
            .push_back(reported);
        self.waker.wake();
    }
}

impl Drop for Reporter {
    fn drop(&mut self) {
        self.tell(Reported::Done(self.writer));
        self.shared.reporters.fetch_sub(1, Ordering::AcqRel);
        self.waker.wake();
    }
}

fn serve(
    adopting: Adopting,
    mut conn: Conn,
    (clock, failpoints): (&Arc<dyn Clock>, &Failpoints),
    (ram, kept): (Arc<Ram>, &Kept),
    state: &Arc<State>,
) {
    let Adopting {
        mut what,
        pool,
        locks,
        doors,
        links,
    } = adopting;
    let placement = what.placement.take();
    let host = make_host(what, pool, ram, (clock, failpoints));
    let started = host.and_then(|host| {
        let poller = Poller::new()?;
        let in_use = host.gates.lock(POOL_IN_USE, IN_USE_TIMEOUT)?;
        let threads = start(&host, links, doors, placement)?;
        Ok((host, threads, poller, in_use))
    });
    let (host, threads, poller, in_use) = match started {
        Ok(started) => started,
        Err(error) => {
            // Before the answer: the rank's next claim must not find these locks.
            drop(locks);
            let _ = reply(&mut conn, Err(error));
            return;
        }
    };
    if reply(&mut conn, Ok(())).is_ok() {
        watch(&host, &threads, &mut conn, &poller, (state, kept));
    }
    let mut threads = threads;
    let shelf = (threads.keeper.take()).map(|keeper| Shelf {
        keeper,
        stop: Arc::clone(&threads.keeper_stop),
    });
    stop(&host, &threads);
    let all_ended = end(&host, threads);
    if all_ended {
        drop(in_use);
    } else {
        // Breaks if: it is released; a thread that was left behind would take from the rings of the
        // next session.
        Box::leak(Box::new(in_use));
    }
    let index = Index::new(&host.pool, host.shape);
    state.summarize(summary(&host, &index));
    // There may be nobody left to talk to. A goodbye was sent before the last rank hung up.
    // Breaks if: the last messages are not read once more; a job that ended in order would leave
    // its agent behind.
    let _ = talk(&host, &mut conn, (state, kept));
    let _ = send_notes(&host, &mut conn);
    let leaves = leave(&host, &index, (shelf, all_ended), state);
    // Breaks if: these are released after the connection; the next run would find the job held.
    drop(locks);
    drop(host);
    if let Some(Ok(Some(run))) = leaves.map(Leavings::keep) {
        *state.leaves.lock().unwrap_or_else(PoisonError::into_inner) = Some(run);
    }
}

/// Leaves the keeper for runs elsewhere, and returns what may be kept of the pool; nothing if the
/// job ended in order.
fn leave(
    host: &Host,
    index: &Index<'_>,
    (shelf, all_ended): (Option<Shelf>, bool),
    state: &State,
) -> Option<Leavings> {
    let flags = [&state.in_order, &state.stop];
    let all_over = flags.iter().any(|flag| flag.load(Ordering::Acquire));
    if let Some(shelf) = shelf {
        // Breaks if: it ends with the session; nodes without a rank in the next run would hold
        // replicas in vain.
        if all_over || off(Switch::AgentShelf) {
            shelf.end(host.clock.as_ref());
        } else {
            *state.shelf.lock().unwrap_or_else(PoisonError::into_inner) = Some(shelf);
        }
    }
    match all_ended && !all_over {
        true => Leavings::of(host, index),
        false => None,
    }
}

fn make_host(
    what: Unpacked,
    pool: Pool,
    ram: Arc<Ram>,
    (clock, failpoints): (&Arc<dyn Clock>, &Failpoints),
) -> Result<Host> {
    let plan = what.plan;
    let node = &plan.layout.nodes[plan.node.index()];
    let shape = IndexShape::of(node);
    let root = (!plan.node_root.is_empty()).then(|| what.working_dir.join(&plan.node_root));
    let servers: Vec<PathBuf> = (plan.servers.iter())
        .map(|server| match is_served(Path::new(server)) {
            true => PathBuf::from(server),
            false => what.working_dir.join(server),
        })
        .collect();
    let mut places = Places::open(
        &plan.job,
        &node.name,
        root.as_ref(),
        &servers,
        failpoints,
        false,
    )?;
    places.losses = what.losses;
    places.trust = plan.recipe.trust()?;
    let room = match (&plan.replication, &places.node) {
        (Some(replication), Some(disk)) => {
            let (store, memory) = (replication.store, replication.budget_bytes);
            Some(Arc::new(KeptReplicas::new(
                Arc::clone(disk),
                ram,
                store,
                memory,
            )))
        }
        _ => None,
    };
    if let Some(room) = &room {
        // Breaks if: the disk stays there; what prune removes would stay in memory.
        places.node = Some(Arc::clone(room) as Arc<dyn Dir>);
    }
    let pool = Arc::new(pool);
    Ok(Host {
        gates: Arc::new(Gates::open(&pool)?),
        plan,
        pool,
        shape,
        places,
        room,
        shared: Arc::default(),
        clock: Arc::clone(clock),
        failpoints: failpoints.clone(),
        outlives: true,
        remembered: Some(Arc::default()),
    })
}

fn start(
    host: &Host,
    links: Links,
    doors: Vec<Listener>,
    placement: Option<Placement>,
) -> Result<Threads> {
    let mut threads = Threads {
        control: None,
        keeper: None,
        flushers: Vec::new(),
        stop: Arc::default(),
        keeper_stop: Arc::default(),
    };
    let started = start_into(&mut threads, host, links, doors, placement);
    if let Err(error) = started {
        stop(host, &threads);
        end(host, threads);
        return Err(error);
    }
    Ok(threads)
}

fn start_into(
    threads: &mut Threads,
    host: &Host,
    links: Links,
    doors: Vec<Listener>,
    placement: Option<Placement>,
) -> Result<()> {
    let writers = host.shape.writers;
    host.shared.reporters.store(writers, Ordering::Release);
    threads.keeper = host.keeper(doors, &threads.keeper_stop)?;
    let control = host.control(links, placement)?;
    let waker = control.1.clone();
    threads.control = Some(control);
    let node = &host.plan.layout.nodes[host.plan.node.index()];
    for (writer, ranks) in node.writers.iter().enumerate() {
        let reporter = Reporter {
            writer: WriterId(writer as u32),
            shared: Arc::clone(&host.shared),
            waker: waker.clone(),
        };
        let report = Box::new(move |message: Message| {
            reporter.tell(Reported::Message(message));
            Ok(())
        });
        let rank = ranks.first().copied().unwrap_or_default();
        let flusher = host.flusher(WriterId(writer as u32), rank, report, &threads.stop)?;
        threads.flushers.push(flusher);
    }
    Ok(())
}

/// Continues the conversation until the node's part is decided or given up.
fn watch(
    host: &Host,
    threads: &Threads,
    conn: &mut Conn,
    poller: &Poller,
    (state, kept): (&State, &Kept),
) {
    let index = Index::new(&host.pool, host.shape);
    let mut alone_since = None;
    let mut talks = true;
    loop {
        let over = (threads.control.as_ref()).is_none_or(|(thread, _)| thread.is_finished());
        if over || state.stop.load(Ordering::Acquire) {
            return;
        }
        if (0..host.shape.ranks).all(|local| index.is_rank_gone(local)) {
            state.finishing.store(true, Ordering::Release);
            let now = host.clock.now();
            let since = *alone_since.get_or_insert(now);
            if now.saturating_sub(since) > host.plan.timeout || off(Switch::AgentDrains) {
                return;
            }
        }
        state.summarize(summary(host, &index));
        index.set_notes(host.shared.noted.load(Ordering::Acquire));
        if !talks {
            let ending = alone_since.is_some();
            host.clock.sleep(if ending { ENDING_SLICE } else { SLICE });
            continue;
        }
        talks = poller.wait(&[conn.as_fd()], SLICE).is_ok()
            && talk(host, conn, (state, kept)).is_ok()
            && !conn.is_closed();
    }
}

fn summary(host: &Host, index: &Index<'_>) -> String {
    let shape = host.shape;
    let alive = (0..shape.ranks)
        .filter(|&local| !index.is_rank_gone(local))
        .count();
    let newest = |level| {
        index
            .committed_step(level)
            .map_or("none".to_owned(), |step| step.to_string())
    };
    let node_level = host.places.node_level();
    let shared = &host.shared;
    let replication = host.plan.replication.as_ref();
    let of_replicas = |value: u64| replication.map_or("none".to_owned(), |_| value.to_string());
    let held = of_replicas(shared.replicas.load(Ordering::Acquire));
    let held_bytes = of_replicas(shared.replica_bytes.load(Ordering::Acquire));
    let budget = (replication.map(|replication| replication.budget_bytes))
        .filter(|budget| *budget < u64::MAX)
        .map_or("none".to_owned(), |budget| budget.to_string());
    let store = replication.map_or("none", |replication| replication.store.name());
    let kept = index.interval_us().map(|us| match us {
        0 => "none".to_owned(),
        us => us.to_string(),
    });
    let paces = index.paces_us().map(pace);
    fields(&[
        ("epoch", &host.plan.epoch.counter.to_string()),
        ("ranks", &shape.ranks.to_string()),
        ("ranks_alive", &alive.to_string()),
        ("pool_bytes", &host.pool.shape().len_bytes().to_string()),
        ("node_level", &node_level.to_string()),
        ("committed_process", &newest(Level::Process)),
        ("committed_node", &newest(node_level)),
        ("committed_global", &newest(Level::Global)),
        ("not_safe", &not_safe(host, index)),
        ("replicas", &held),
        ("replica_bytes", &held_bytes),
        ("replica_budget_bytes", &budget),
        ("replica_store", store),
        ("pace_node", &paces[0]),
        ("pace_global", &paces[1]),
        ("interval_us", &kept[0]),
        ("checkpoint_us", &kept[1]),
        ("safe_after_us", &kept[2]),
    ])
}

/// How often checkpoints go to a level, by time or by steps; or "none": as often as to all levels.
fn pace((us, steps): (u64, u64)) -> String {
    let parts = [
        (us > 0).then(|| format!("{} s", us as f64 / 1e6)),
        (steps > 0).then(|| orcheck_format::count(steps, "step")),
    ];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    match parts.is_empty() {
        true => "none".to_owned(),
        false => parts.join(" or "),
    }
}

/// The levels at which the newest step that goes there is not committed, and why; or "none".
fn not_safe(host: &Host, index: &Index<'_>) -> String {
    let open = host.places.levels().into_iter().filter_map(|level| {
        let newest = index.newest_step(level)?;
        (index.committed_step(level) < Some(newest)).then_some((newest, level))
    });
    let texts = open.map(|(newest, level)| match index.outcome(newest, level) {
        Outcome::Lost(error) => format!("step {newest} at level {level}: {error}"),
        _ => format!("step {newest} at level {level}"),
    });
    let texts: Vec<String> = texts.collect();
    if texts.is_empty() {
        return "none".to_owned();
    }
    texts.join("; ")
}

/// Handles the lowest rank's messages.
fn talk(host: &Host, conn: &mut Conn, (state, kept): (&State, &Kept)) -> Result<()> {
    while let Some(message) = conn.try_receive()? {
        match message {
            Message::Agent(AgentMessage::ResumedFrom { step, epoch }) => {
                let resumed = host.shared.resumed.lock();
                *resumed.unwrap_or_else(PoisonError::into_inner) = Some((step, epoch));
                reply(conn, Ok(()))?;
            }
            Message::Agent(AgentMessage::Ask) => {
                send_notes(host, conn)?;
                reply(conn, Ok(()))?;
            }
            Message::Agent(AgentMessage::Forget) => kept.forget(),
            Message::Agent(AgentMessage::Leave) => state.in_order.store(true, Ordering::Release),
            other => reply(
                conn,
                Err(Error::invalid(format!("{other:?} is not expected now"))),
            )?,
        }
    }
    Ok(())
}

fn send_notes(host: &Host, conn: &mut Conn) -> Result<()> {
    let mut notes = host
        .shared
        .notes
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    let notes = std::mem::take(&mut *notes);
    for text in notes {
        conn.send(&Message::Agent(AgentMessage::Note { text }), PATIENCE)?;
    }
    Ok(())
}

fn stop(host: &Host, threads: &Threads) {
    threads.stop.store(true, Ordering::Release);
    if threads.keeper.is_some() {
        threads.keeper_stop.store(true, Ordering::Release);
    }
    host.shared.stop.store(true, Ordering::Release);
    for (_, waker) in threads.control.iter().chain(&threads.keeper) {
        waker.wake();
    }
    let index = Index::new(&host.pool, host.shape);
    for writer in 0..host.shape.writers {
        index.nudge(WriterId(writer));
    }
}

/// Waits for the threads. One that hangs in a dead directory is left until the agent ends, and this
/// is reported. Returns whether all ended.
fn end(host: &Host, threads: Threads) -> bool {
    let clock = host.clock.as_ref();
    let others = threads.control.into_iter().chain(threads.keeper);
    let others = others.map(|(thread, _)| thread);
    let mut all = true;
    for thread in threads.flushers.into_iter().chain(others) {
        if let Err(error) = join(thread, clock, JOIN_TIMEOUT) {
            all = false;
            host.shared.note(error.message().to_owned());
        }
    }
    all
}
