//! Implements the agent of a node: a process of its own in which the node's engine outlives the
//! ranks.
//!
//! How: the lowest rank of a node opens the session as always: it claims the epoch, creates the
//! pool, and accepts the node's connections. It then hands all of this to the agent
//! ([`Adoption`](orcheck_format::wire::Adoption) and descriptors), and the node's threads run
//! there. The ranks stage into the same pool and wait at the same board. When ranks end, in order
//! or not, the agent still flushes, replicates and commits what they sealed; then it releases
//! claims and pool.
//!
//! ```text
//! rank ── Yield ─▶ agent: older runs of the job finished?   ◀── Note…, Done
//!      ── Adopt + pool, Lock…, Door…, Link… (each ◀── Done), Begin ─▶ threads started ◀── Done
//!      ── ResumedFrom ─▶        ◀── Note
//!      ── Leave, or its end ─▶ drained, everything released          ◀── hangs up
//! anybody ── Drain ─▶ nothing left of any session?               ◀── Note…, Done: it ends
//! ```
//!
//! Invariants:
//! 1. Only processes of the same user are let in; the kernel identifies the peer.
//! 2. A session ends when no rank is left and everything handed over is decided, and at the latest
//!    one session timeout after its last rank.
//! 3. The agent ends when a job has ended in order, or when it was told to end and no session is
//!    left, or else a stated time after its last session that began.
//! 4. Replicas that it holds for other nodes are readable until it ends, or until its node joins a
//!    new run.
//! 5. Another user who holds the agent's name cannot keep it from working (`names.rs`).
//! 6. There is no file: the address is an abstract socket, and the pool is anonymous memory.
//!    Nothing remains of an agent that has ended.
//!
//! Faults survived: ranks that are killed at any moment, also halfway through handing over; callers
//! that send nothing, half a message or too much, or that do not read. Nobody waits for such
//! callers; they harm only themselves.
//!
//! Not here: how a rank finds or starts an agent (crate `client`), the process (crate `cli`).

mod memory;
mod names;
mod session;

pub use names::{NameHolders, is_of, list, look};

use memory::Kept;
use orcheck_format::disk::MAX_FILE_NAME_BYTES;
use orcheck_format::sabotage::{Switch, off};
use orcheck_format::wire::{AgentMessage, Message};
use orcheck_format::{Error, ErrorKind, JobName, Result, crc64};
use orcheck_io::clock::Clock;
use orcheck_io::disk::Ram;
use orcheck_io::failpoints::Failpoints;
use orcheck_io::poll::{Poller, Waker};
use orcheck_io::user::working_dir;
use orcheck_net::{Address, Conn, Key, Listener};
use orcheck_staging::client::{is_served, shown};
use session::{Adopting, Session, Shelf};
use std::collections::BTreeMap;
use std::ops::ControlFlow::{self, Break, Continue};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The key of conversations with an agent. It is not secret: callers are admitted by their user.
pub const KEY: Key = Key::new(*b"orcheck agent of one's own user\0");
/// Longest wait for the rest of a message that a rank began, and for a session's peer to read.
const PATIENCE: Duration = Duration::from_secs(5);
/// Longest wait for a caller to accept an answer; its socket buffer holds hundreds.
const WORD: Duration = Duration::from_millis(50);
/// Longest silence of a rank that is handing over.
const HANDING_OVER: Duration = Duration::from_secs(60);
/// Maximum number of messages of one caller that are handled before the others have their turn.
const WORDS_MAX: usize = 64;
/// Time within which the end of a rank is noticed.
const NOTICED: Duration = Duration::from_secs(1);
/// Longest sleep between two looks at the sessions.
const SLICE: Duration = Duration::from_millis(200);
/// Number of ended sessions that are remembered.
const ENDED_LIMIT: usize = 16;
/// Maximum number of conversations other than those of sessions; beyond it the oldest one is
/// dropped that nobody needs.
const CALLERS_LIMIT: usize = 64;

/// The address of this user's agent for a job on a node, unless another user holds that name: see
/// [`look`]. `root` is the first placed directory of the job as configured, or else that of its
/// nodes, so that two jobs of one name do not share an agent.
#[must_use]
pub fn address(job: &JobName, node: &str, root: &Path) -> Address {
    let root = match is_served(root) {
        true => root.to_path_buf(),
        false => working_dir().join(root),
    };
    let root = root.display().to_string();
    let whose = format!("{}\0{node}\0{}", job.as_str(), shown(&root));
    names::first(crc64(whose.as_bytes()))
}

/// A listening agent.
pub struct Agent {
    /// Job and node, as [`fields`].
    whose: String,
    /// Another user who holds names of this agent.
    strangers: Option<String>,
    listener: Listener,
    poller: Poller,
    clock: Arc<dyn Clock>,
    failpoints: Failpoints,
    stop: Arc<AtomicBool>,
    sessions: Vec<Session>,
    /// What remains of the last session, for runs on other nodes.
    shelf: Option<Shelf>,
    /// Memory of the last session whose ranks are gone, for the next run.
    kept: Arc<Kept>,
    /// When it was last looked whether there is room for it.
    looked: Duration,
    /// Replicas of other nodes in memory, of all sessions.
    ram: Arc<Ram>,
    callers: Vec<Caller>,
    /// How the last sessions ended, as [`fields`].
    ended: Vec<String>,
    /// Somebody asked it to end once nothing is left.
    drained: bool,
}

/// A peer that has connected and has no session yet.
struct Caller {
    conn: Conn,
    /// It waits for older runs to finish: since when, and until when.
    yields: Option<(Duration, Duration)>,
    /// It was told that older runs have finished, and hands over before this time.
    expected: Option<Duration>,
    /// It waits until this time for all sessions to end.
    drains: Option<Duration>,
    adopting: Option<Adopting>,
    /// Its message whose descriptor has not arrived yet.
    awaits: Option<AgentMessage>,
    /// When its last message arrived.
    heard: Duration,
}

/// Ends an agent from another thread.
#[derive(Clone)]
pub struct Stop {
    stop: Arc<AtomicBool>,
    waker: Waker,
}

impl Stop {
    /// Ends the agent and its sessions.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.waker.wake();
    }
}

impl Agent {
    /// Starts to listen for ranks of this user and job on this node.
    ///
    /// # Errors
    /// Unavailable if there already is one; Invalid for a name that no node can have.
    pub fn bind(
        job: &JobName,
        node: &str,
        root: &Path,
        clock: Arc<dyn Clock>,
        failpoints: Failpoints,
    ) -> Result<Self> {
        if node.is_empty() || node.len() > MAX_FILE_NAME_BYTES {
            return Err(Error::invalid(format!("'{node}' is not a valid node name")));
        }
        let first = address(job, node, root);
        let bound = names::bind(&first, &failpoints, clock.as_ref());
        let (listener, strangers) = bound.map_err(|error| {
            error
                .at(format!("agent of job '{}' on node '{node}'", job.as_str()))
                .next("use the running agent, or end it")
        })?;
        Ok(Self {
            whose: fields(&[("job", job.as_str()), ("node", node)]),
            strangers,
            listener,
            poller: Poller::new()?,
            clock,
            failpoints: failpoints.clone(),
            stop: Arc::default(),
            sessions: Vec::new(),
            shelf: None,
            kept: Arc::default(),
            looked: Duration::ZERO,
            ram: Arc::new(Ram::new(failpoints)),
            callers: Vec::new(),
            ended: Vec::new(),
            drained: false,
        })
    }

    /// Describes the other users who hold names of this agent, and where it listens; `None` if
    /// there are none.
    #[must_use]
    pub fn strangers(&self) -> Option<String> {
        let who = self.strangers.as_ref()?;
        Some(format!(
            "{who}; this agent listens at {}",
            self.listener.address()
        ))
    }

    /// A handle that ends it.
    #[must_use]
    pub fn stopper(&self) -> Stop {
        Stop {
            stop: Arc::clone(&self.stop),
            waker: self.poller.waker(),
        }
    }

    /// Serves until a job has ended in order, nobody has come for `linger`, or it is stopped.
    ///
    /// # Errors
    /// Lack of descriptors.
    pub fn run(mut self, linger: Duration) -> Result<()> {
        let mut idle_since = self.clock.now();
        let mut ended_in_order = false;
        loop {
            let fds: Vec<_> = std::iter::once(self.listener.as_fd())
                .chain(self.callers.iter().map(|caller| caller.conn.as_fd()))
                .collect();
            let ready = self.poller.wait(&fds, SLICE)?;
            drop(fds);
            for caller in std::mem::take(&mut self.callers) {
                let stays = self.hear(caller);
                self.callers.extend(stays);
            }
            if ready.first() == Some(&0) {
                self.let_in();
            }
            let mut left = None;
            self.sessions.retain_mut(|session| {
                let over = session.is_over();
                if over {
                    // A session that could not begin has nothing to report.
                    self.ended
                        .extend(Some(session.summary()).filter(|told| !told.is_empty()));
                    ended_in_order |= session.ended_in_order();
                    left = session.take_shelf().or(left.take());
                    // What a session before it left stays if this one left nothing: it may not have
                    // got so far.
                    session
                        .take_leavings()
                        .into_iter()
                        .for_each(|run| self.kept.put(run));
                }
                !over
            });
            let surplus = self.ended.len().saturating_sub(ENDED_LIMIT);
            self.ended.drain(..surplus);
            if let Some(shelf) = left {
                self.clear_shelf();
                self.shelf = Some(shelf);
            }
            let now = self.clock.now();
            self.look_at_memory(now);
            // Breaks if: it is forgotten meanwhile; a caller that sends half a message at the end
            // would keep the agent for its linger time.
            ended_in_order &= self.sessions.is_empty();
            // Breaks if: those who only ask count, or sessions that never began; runs that fail to
            // open would keep an agent for ever.
            if self.sessions.iter().any(Session::has_begun) {
                idle_since = now;
            }
            let stop = self.stop.load(Ordering::Acquire);
            if stop {
                self.sessions.iter().for_each(Session::stop);
            }
            // Breaks if: those who are about to hand over do not count; the agent would leave in
            // the middle of an `orc_open`.
            let needed = |caller: &Caller| caller.is_busy() || caller.is_expected(now);
            let alone = self.sessions.is_empty() && !self.callers.iter().any(needed);
            if alone
                && (stop
                    || ended_in_order
                    || self.drained
                    || now.saturating_sub(idle_since) >= linger)
            {
                self.clear_shelf();
                return Ok(());
            }
        }
    }

    /// Gives the kept memory back if there is no room for it.
    fn look_at_memory(&mut self, now: Duration) {
        if now.saturating_sub(self.looked) >= SLICE {
            self.looked = now;
            self.kept.look(!self.sessions.is_empty());
        }
    }

    /// Ends what remains of the last session.
    fn clear_shelf(&mut self) {
        if let Some(shelf) = self.shelf.take() {
            shelf.end(self.clock.as_ref());
        }
    }

    /// Admits a caller that has completed the handshake.
    fn let_in(&mut self) {
        let conn = match self.listener.accept(&KEY, &self.failpoints, Duration::ZERO) {
            Ok(Some(conn)) => conn,
            Ok(None) => return,
            // A lack of descriptors passes; it must not end the sessions.
            Err(_) => return self.clock.sleep(SLICE),
        };
        if self.callers.len() >= CALLERS_LIMIT {
            let now = self.clock.now();
            // Breaks if: who is about to hand over counts as idle; on a node with many ranks, whose
            // threads all ask for memory then, the run could not begin.
            let is_idle = |caller: &Caller| !caller.is_busy() && !caller.is_expected(now);
            match self.callers.iter().position(is_idle) {
                Some(idle) => drop(self.callers.remove(idle)),
                None => return,
            }
        }
        self.callers.push(Caller {
            conn,
            yields: None,
            expected: None,
            drains: None,
            adopting: None,
            awaits: None,
            heard: self.clock.now(),
        });
    }

    /// Handles a caller's messages; `None` once the caller is done or has a session.
    fn hear(&mut self, mut caller: Caller) -> Option<Caller> {
        for _ in 0..WORDS_MAX {
            for stage in [
                Self::answer_yield,
                Self::receive_awaited,
                Self::answer_drain,
            ] {
                caller = match stage(self, caller) {
                    Continue(caller) => caller,
                    Break(outcome) => return outcome,
                };
            }
            let message = match caller.conn.try_receive() {
                Ok(Some(Message::Agent(message))) => message,
                Ok(None) => return self.stays(caller),
                Ok(Some(_)) | Err(_) => return None,
            };
            caller.heard = self.clock.now();
            caller = match self.answer(caller, message) {
                Continue(caller) => caller,
                Break(outcome) => return outcome,
            };
        }
        Some(caller)
    }

    /// Handles a caller that waits until older runs are finished.
    fn answer_yield(&mut self, mut caller: Caller) -> Stage {
        let Some((since, until)) = caller.yields else {
            return Continue(caller);
        };
        let now = self.clock.now();
        let busy = self.sessions.iter().any(Session::is_finishing);
        // Recently killed ranks may not have been missed yet.
        let fresh = !self.sessions.is_empty() && now < since + NOTICED;
        if (busy || fresh) && now < until && !off(Switch::AgentYields) {
            return Break((!caller.conn.is_closed()).then_some(caller));
        }
        caller.yields = None;
        // For whoever wants to know what became of them; ranks pass over it.
        if self.send_ends(&mut caller.conn).is_err() {
            return Break(None);
        }
        let answer = match busy && !off(Switch::AgentYields) {
            true => Err(
                Error::unavailable("an older run of the job is still being flushed")
                    .next("start again when it is done, or end the agent"),
            ),
            false => Ok(()),
        };
        // The other nodes of its run may wait as long for theirs.
        let handing_over = until.saturating_sub(since) + HANDING_OVER;
        caller.expected = answer.is_ok().then_some(now.saturating_add(handing_over));
        reply_to(caller, answer)
    }

    /// Handles a caller whose last message is followed by a descriptor.
    fn receive_awaited(&mut self, mut caller: Caller) -> Stage {
        // Breaks if: it waits here; a caller that sends half a message would keep all others
        // waiting.
        let Some(message) = caller.awaits.take() else {
            return Continue(caller);
        };
        let came = match off(Switch::AgentHears) {
            true => caller.conn.receive_fd(PATIENCE).map(Some),
            false => caller.conn.try_receive_fd(),
        };
        match came {
            Err(_) => Break(None),
            Ok(None) => {
                caller.awaits = Some(message);
                Break(self.stays(caller))
            }
            Ok(Some(fd)) => {
                let done = take(&mut caller.adopting, message, fd, &self.failpoints);
                caller.heard = self.clock.now();
                reply_to(caller, done)
            }
        }
    }

    /// Handles a caller that waits until no session is left.
    fn answer_drain(&mut self, mut caller: Caller) -> Stage {
        let Some(until) = caller.drains else {
            return Continue(caller);
        };
        // Breaks if: it does not wait for sessions; the agent would end with what its ranks left
        // behind.
        let busy = !self.sessions.is_empty() && !off(Switch::AgentDrained);
        if busy && self.clock.now() < until {
            return Break((!caller.conn.is_closed()).then_some(caller));
        }
        caller.drains = None;
        let answer = self.send_ends(&mut caller.conn).and_then(|()| match busy {
            true => Err(Error::unavailable("a session is still there")),
            false => Ok(()),
        });
        self.drained |= answer.is_ok();
        reply_to(caller, answer)
    }

    fn answer(&mut self, mut caller: Caller, message: AgentMessage) -> Stage {
        let done = match message {
            AgentMessage::Yield { force, patience_ms } => {
                if force {
                    self.sessions.iter().for_each(Session::stop);
                }
                let now = self.clock.now();
                caller.yields = Some((now, now + Duration::from_millis(patience_ms)));
                return Continue(caller);
            }
            AgentMessage::Drain { patience_ms } => {
                // Breaks if: it still counts as about to hand over; the agent would wait for it,
                // and it for the agent.
                caller.expected = None;
                caller.drains = Some(self.clock.now() + Duration::from_millis(patience_ms));
                return Continue(caller);
            }
            AgentMessage::Begin => match caller.adopting.take() {
                Some(adopting) => {
                    // This node is in the new run, whose keeper now has the directory.
                    self.clear_shelf();
                    self.kept.begin(adopting.job());
                    // The session's own thread continues the conversation and answers this message.
                    let world = (Arc::clone(&self.clock), self.failpoints.clone());
                    let memory = (Arc::clone(&self.ram), Arc::clone(&self.kept));
                    let waker = self.poller.waker();
                    let session = Session::start(adopting, caller.conn, world, memory, waker);
                    self.sessions.extend(session.ok());
                    return Break(None);
                }
                None => Err(Error::invalid("nothing was handed over")),
            },
            AgentMessage::Status => self.send_status(&mut caller.conn),
            AgentMessage::Recall { job } => match self.send_kept(&mut caller.conn, &job) {
                Ok(true) => return Continue(caller),
                Ok(false) => Ok(()),
                Err(_) => return Break(None),
            },
            AgentMessage::Forget => {
                self.kept.forget();
                Ok(())
            }
            message => match (&message, &caller.adopting) {
                (AgentMessage::Adopt { .. }, _) | (_, Some(_)) => {
                    caller.awaits = Some(message);
                    return Continue(caller);
                }
                _ => Err(Error::invalid(format!("{message:?} came before a job"))),
            },
        };
        reply_to(caller, done)
    }

    /// Keeps a caller that has sent everything for now; `None` if it is gone, or was silent for too
    /// long in the middle of a message.
    fn stays(&self, mut caller: Caller) -> Option<Caller> {
        let patience = match (&caller.awaits, &caller.adopting) {
            (Some(_), _) => PATIENCE,
            (None, Some(_)) => HANDING_OVER,
            (None, None) => Duration::MAX,
        };
        let silent = self.clock.now().saturating_sub(caller.heard);
        (silent < patience && !caller.conn.is_closed()).then_some(caller)
    }
}

impl Agent {
    /// Sends the memory that is kept of this job and the map of it; whether there is any.
    fn send_kept(&self, conn: &mut Conn, job: &JobName) -> Result<bool> {
        let Some(descriptors) = self.kept.recall(job)? else {
            return Ok(false);
        };
        conn.send(&Message::Agent(AgentMessage::Kept), WORD)?;
        for fd in &descriptors {
            conn.send_fd(fd.as_fd(), WORD)?;
        }
        Ok(true)
    }

    fn send_status(&self, conn: &mut Conn) -> Result<()> {
        // What cannot be counted may be there.
        let replicas = self.ram.used_bytes().unwrap_or(u64::MAX);
        let kept = fields(&[
            ("kept_bytes", &self.kept.bytes().to_string()),
            ("replica_bytes", &replicas.to_string()),
        ]);
        let notes = std::iter::once(self.whose.clone() + &kept);
        for text in notes.chain(self.sessions.iter().map(Session::summary)) {
            conn.send(&Message::Agent(AgentMessage::Note { text }), WORD)?;
        }
        Ok(())
    }

    /// Sends how sessions ended, and what the current ones are doing.
    fn send_ends(&self, conn: &mut Conn) -> Result<()> {
        let there = self.sessions.iter().map(Session::summary);
        for text in self.ended.iter().cloned().chain(there) {
            conn.send(&Message::Agent(AgentMessage::Note { text }), WORD)?;
        }
        Ok(())
    }
}

/// Builds the text of a status note: names and values, each pair preceded by a tab, with an equals
/// sign in between.
pub(crate) fn fields(pairs: &[(&str, &str)]) -> String {
    let mut text = String::new();
    for (name, value) in pairs {
        text += &format!("\t{name}={}", value.replace('\t', " "));
    }
    text
}

/// The status of an agent, followed by that of each session: names and values.
pub type AgentStatus = Vec<BTreeMap<String, String>>;

/// Asks the agent at this address for its status.
///
/// # Errors
/// Unavailable if it is gone or does not answer.
pub fn status(at: &Address, timeout: Duration) -> Result<AgentStatus> {
    read_status(
        &mut Conn::connect(at, &KEY, &Failpoints::none(), timeout)?,
        timeout,
    )
}

/// Asks the agent of this conversation for its status.
///
/// # Errors
/// Unavailable if it is gone or does not answer.
pub fn read_status(conn: &mut Conn, timeout: Duration) -> Result<AgentStatus> {
    let mut told = Vec::new();
    ask(conn, AgentMessage::Status, None, timeout, |text| {
        told.push(read_fields(&text));
    })?;
    Ok(told)
}

fn read_fields(text: &str) -> BTreeMap<String, String> {
    let pairs = text.split('\t').filter_map(|pair| pair.split_once('='));
    let own = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
    pairs.map(own).collect()
}

/// Has the agent at this address finish what ranks left behind, for at most `patience`, and end.
/// Returns its report on each session, and whether all of them are over.
///
/// # Errors
/// Unavailable if it is gone or does not answer.
pub fn drain(at: &Address, patience: Duration, timeout: Duration) -> Result<(AgentStatus, bool)> {
    let mut conn = Conn::connect(at, &KEY, &Failpoints::none(), timeout)?;
    let patience_ms = patience.as_millis().try_into().unwrap_or(u64::MAX);
    let (mut told, mut answered) = (Vec::new(), false);
    let message = AgentMessage::Drain { patience_ms };
    let done = ask(&mut conn, message, None, patience + timeout, |text| {
        answered = true;
        told.push(read_fields(&text));
    });
    match done {
        Ok(()) => {
            // It hangs up when it ends.
            let _ = conn.receive(timeout);
            Ok((told, true))
        }
        // It reports what each current session is doing.
        Err(error) if answered && error.kind() == ErrorKind::Unavailable => Ok((told, false)),
        Err(error) => Err(error),
    }
}

/// Waits, for at most `patience`, until the agent at this address has finished what ranks left
/// behind; the agent stays. Returns its report on each session, the newest last.
///
/// # Errors
/// Unavailable if it is gone, does not answer, or has not finished.
pub fn finish(at: &Address, patience: Duration, timeout: Duration) -> Result<AgentStatus> {
    let mut conn = Conn::connect(at, &KEY, &Failpoints::none(), timeout)?;
    let mut told = Vec::new();
    let message = AgentMessage::Yield {
        force: false,
        patience_ms: patience.as_millis().try_into().unwrap_or(u64::MAX),
    };
    ask(&mut conn, message, None, patience + timeout, |text| {
        told.push(read_fields(&text));
    })?;
    Ok(told)
}

impl Caller {
    fn is_expected(&self, now: Duration) -> bool {
        self.expected.is_some_and(|until| now < until)
    }

    fn is_busy(&self) -> bool {
        let busy = [self.yields.is_some(), self.drains.is_some()];
        busy.contains(&true) || self.adopting.is_some() || self.awaits.is_some()
    }
}

/// Accepts one item that a rank hands over.
fn take(
    adopting: &mut Option<Adopting>,
    message: AgentMessage,
    fd: OwnedFd,
    failpoints: &Failpoints,
) -> Result<()> {
    match (message, adopting) {
        (AgentMessage::Adopt { job }, adopting) => {
            *adopting = Some(Adopting::new(&job, fd)?);
            Ok(())
        }
        (other, Some(adopting)) => adopting.take(other, fd, failpoints),
        (other, None) => Err(Error::invalid(format!("{other:?} came before a job"))),
    }
}

/// Sends the outcome of a request.
pub(crate) fn reply(conn: &mut Conn, done: Result<()>) -> Result<()> {
    reply_within(conn, done, PATIENCE)
}

fn reply_within(conn: &mut Conn, done: Result<()>, patience: Duration) -> Result<()> {
    let answer = match done {
        Ok(()) => AgentMessage::Done,
        Err(error) => AgentMessage::Refused {
            kind: error.kind(),
            text: error.message().to_owned(),
        },
    };
    conn.send(&Message::Agent(answer), patience)
}

/// Sends a request to the agent and waits until it is done; notes for the user that arrive
/// meanwhile go to `note`.
///
/// # Errors
/// The agent's answer; Unavailable if it does not answer within `timeout`, or is gone.
pub fn ask(
    conn: &mut Conn,
    message: AgentMessage,
    fd: Option<std::os::fd::BorrowedFd<'_>>,
    timeout: Duration,
    mut note: impl FnMut(String),
) -> Result<()> {
    conn.send(&Message::Agent(message), timeout)?;
    if let Some(fd) = fd {
        conn.send_fd(fd, timeout)?;
    }
    loop {
        match conn
            .receive(timeout)
            .map_err(|error| error.at("the agent of this node"))?
        {
            Message::Agent(AgentMessage::Done) => return Ok(()),
            Message::Agent(AgentMessage::Refused { kind, text }) => {
                return Err(Error::new(kind, text).at("the agent of this node"));
            }
            Message::Agent(AgentMessage::Note { text }) => note(text),
            other => {
                return Err(Error::new(
                    ErrorKind::Internal,
                    format!("the agent of this node answered {other:?}"),
                ));
            }
        }
    }
}

/// The next state of a caller: it may send more, or it waits (`None`: it is done).
type Stage = ControlFlow<Option<Caller>, Caller>;

fn reply_to(mut caller: Caller, answer: Result<()>) -> Stage {
    match reply_within(&mut caller.conn, answer, WORD) {
        Ok(()) => Continue(caller),
        Err(_) => Break(None),
    }
}
