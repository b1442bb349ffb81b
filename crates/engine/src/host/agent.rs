//! The agent of a node: a process of its own in which the node's engine outlives the ranks.
//!
//! How: the lowest rank of a node opens the session as always: it claims the epoch, makes the pool, takes the node's
//! connections in. Then it hands all of that to the agent ([`Adoption`](orcheck_format::wire::Adoption) and
//! descriptors), and the node's threads run there. The ranks stage into the same pool, and wait at the same board. When
//! ranks end, whether in order or not, what they had sealed is still flushed, replicated and committed; then the agent
//! lets go of claims and pool.
//!
//! ```text
//! rank ── Yield ─▶ agent: older runs of the job finished?        ◀── Done
//!      ── Adopt + pool, Lock…, Door…, Link… (each ◀── Done), Begin ─▶ threads started ◀── Done
//!      ── ResumedFrom ─▶        ◀── Note
//!      ── Leave, or its end ─▶ drained, everything let go of         ◀── hangs up
//! anybody ── Drain ─▶ nothing left of any session?               ◀── Note…, Done: it ends
//! ```
//!
//! Invariants:
//! 1. Only processes of the same user are let in: the kernel says who is at the other end.
//! 2. A session ends when no rank is left and all that was handed over is decided, at the latest the session's timeout
//!    after its last rank.
//! 3. The agent ends when a job was ended in order, or it was told to and no session is left, else a stated time after its
//!    last session.
//! 4. What it holds of other nodes can be read from it until it ends, or is in a new run.
//! 5. Another user who holds its name keeps it from nothing (`names.rs`).
//! 6. There is no file: the address is an abstract socket, the pool anonymous memory. When the agent is gone, so is
//!    everything of it.
//!
//! Faults survived: ranks that are killed at any moment, half-way through handing over too; callers that say nothing, a
//! half, or too much, or do not listen: nobody waits for them, and they cost themselves.
//!
//! Not here: how a rank finds or starts an agent (crate `client`), the process (crate `cli`).

mod names;
mod session;

pub use names::{Seen, is_of, list, look};

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

/// The key of conversations with an agent. It is no secret: who may come in is checked by user.
pub const KEY: Key = Key::new(*b"orcheck agent of one's own user\0");
/// Longest wait for the rest of something that a rank began to say, and for one of a session to listen.
const PATIENCE: Duration = Duration::from_secs(5);
/// Longest wait for a caller to take an answer, where its socket holds hundreds.
const WORD: Duration = Duration::from_millis(50);
/// Longest silence of a rank that is handing over.
const HANDING_OVER: Duration = Duration::from_secs(60);
/// Most words of one caller that are heard before the others have their turn.
const WORDS_MAX: usize = 64;
/// The end of a rank is noticed by then.
const NOTICED: Duration = Duration::from_secs(1);
/// Longest sleep before sessions are looked at.
const SLICE: Duration = Duration::from_millis(200);
/// Sessions whose end is remembered.
const ENDED_LIMIT: usize = 16;
/// Most conversations other than those of sessions; the oldest that is idle goes first.
const CALLERS_LIMIT: usize = 64;

/// Where the agent of this user for a job on a node is reached, unless another user holds that name: [`look`]. `root` is
/// the first placed directory of the job as configured, or else that of its nodes: two jobs of one name do not meet.
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

/// An agent that listens.
pub struct Agent {
    /// Job and node, as [`fields`].
    whose: String,
    /// Who holds names of this agent without being of this user.
    strangers: Option<String>,
    listener: Listener,
    poller: Poller,
    clock: Arc<dyn Clock>,
    failpoints: Failpoints,
    stop: Arc<AtomicBool>,
    sessions: Vec<Session>,
    /// What stays of the last one for runs on other nodes.
    shelf: Option<Shelf>,
    /// Replicas of other nodes that lie in memory, of all sessions.
    ram: Arc<Ram>,
    callers: Vec<Caller>,
    /// How the last sessions ended, as [`fields`].
    ended: Vec<String>,
    /// Somebody asked it to end once there is nothing left.
    drained: bool,
}

/// Somebody who came in and has no session yet.
struct Caller {
    conn: Conn,
    /// It waits for older runs to finish: from when, and until when.
    yields: Option<(Duration, Duration)>,
    /// It waits for all sessions to end: until when.
    drains: Option<Duration>,
    adopting: Option<Adopting>,
    /// What it said whose descriptor has not come yet.
    awaits: Option<AgentMessage>,
    /// When it was heard last.
    heard: Duration,
}

/// Ends an agent from another thread.
#[derive(Clone)]
pub struct Stop {
    stop: Arc<AtomicBool>,
    waker: Waker,
}

impl Stop {
    /// Ends it, with the sessions that it has.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.waker.wake();
    }
}

impl Agent {
    /// Begins to listen for ranks of this user and job on this node.
    ///
    /// # Errors
    /// Unavailable when there is one already; Invalid for a name that no node can have.
    pub fn bind(
        job: &JobName,
        node: &str,
        root: &Path,
        clock: Arc<dyn Clock>,
        failpoints: Failpoints,
    ) -> Result<Self> {
        if node.is_empty() || node.len() > MAX_FILE_NAME_BYTES {
            return Err(Error::invalid(format!("'{node}' is no name of a node")));
        }
        let first = address(job, node, root);
        let bound = names::bind(&first, &failpoints, clock.as_ref());
        let (listener, strangers) = bound.map_err(|error| {
            error
                .at(format!("agent of job '{}' on node '{node}'", job.as_str()))
                .next("use the agent that is there, or end it")
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
            ram: Arc::new(Ram::new(failpoints)),
            callers: Vec::new(),
            ended: Vec::new(),
            drained: false,
        })
    }

    /// Who holds names of this agent without being of this user, and where it listens; `None` where nobody does.
    #[must_use]
    pub fn strangers(&self) -> Option<String> {
        let who = self.strangers.as_ref()?;
        Some(format!(
            "{who}; this agent listens at {}",
            self.listener.address()
        ))
    }

    /// What ends it.
    #[must_use]
    pub fn stopper(&self) -> Stop {
        Stop {
            stop: Arc::clone(&self.stop),
            waker: self.poller.waker(),
        }
    }

    /// Serves until a job was ended in order, or nobody came for `linger`, or it is stopped.
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
                    // One that could not begin has nothing to tell.
                    self.ended
                        .extend(Some(session.summary()).filter(|told| !told.is_empty()));
                    ended_in_order |= session.ended_in_order();
                    left = session.take_shelf().or(left.take());
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
            // Breaks if: it is forgotten meanwhile; a caller who says a half at the end would keep the agent for its linger.
            ended_in_order &= self.sessions.is_empty();
            if !self.sessions.is_empty() || self.callers.iter().any(Caller::is_busy) {
                idle_since = now;
            }
            let stop = self.stop.load(Ordering::Acquire);
            if stop {
                self.sessions.iter().for_each(Session::stop);
            }
            let alone = self.sessions.is_empty() && !self.callers.iter().any(Caller::is_busy);
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

    /// Ends what stayed of the last session.
    fn clear_shelf(&mut self) {
        if let Some(shelf) = self.shelf.take() {
            shelf.end(self.clock.as_ref());
        }
    }

    /// Takes a caller in who has shaken hands.
    fn let_in(&mut self) {
        let conn = match self.listener.accept(&KEY, &self.failpoints, Duration::ZERO) {
            Ok(Some(conn)) => conn,
            Ok(None) => return,
            // Lack of descriptors passes; what the sessions have must not end for it.
            Err(_) => return self.clock.sleep(SLICE),
        };
        if self.callers.len() >= CALLERS_LIMIT {
            match self.callers.iter().position(|caller| !caller.is_busy()) {
                Some(idle) => drop(self.callers.remove(idle)),
                None => return,
            }
        }
        self.callers.push(Caller {
            conn,
            yields: None,
            drains: None,
            adopting: None,
            awaits: None,
            heard: self.clock.now(),
        });
    }

    /// Takes what a caller says; `None` when it is done with, or has a session now.
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

    /// A caller that waits until older runs are finished with.
    fn answer_yield(&mut self, mut caller: Caller) -> Stage {
        let Some((since, until)) = caller.yields else {
            return Continue(caller);
        };
        let now = self.clock.now();
        let busy = self.sessions.iter().any(Session::is_finishing);
        // Ranks that were killed a moment ago may not have been missed yet.
        let fresh = !self.sessions.is_empty() && now < since + NOTICED;
        if (busy || fresh) && now < until && !off(Switch::AgentYields) {
            return Break((!caller.conn.is_closed()).then_some(caller));
        }
        caller.yields = None;
        let answer = match busy && !off(Switch::AgentYields) {
            true => Err(
                Error::unavailable("an older run of the job is still being flushed")
                    .next("start again when it is done, or end the agent"),
            ),
            false => Ok(()),
        };
        reply_to(caller, answer)
    }

    /// A caller that sends a descriptor with what it said last.
    fn receive_awaited(&mut self, mut caller: Caller) -> Stage {
        // Breaks if: it is waited for here; a caller that says a half would keep all others waiting.
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

    /// A caller that waits until no session is left.
    fn answer_drain(&mut self, mut caller: Caller) -> Stage {
        let Some(until) = caller.drains else {
            return Continue(caller);
        };
        // Breaks if: a session is not waited for; the agent would end with what its ranks left behind.
        let busy = !self.sessions.is_empty() && !off(Switch::AgentDrained);
        if busy && self.clock.now() < until {
            return Break((!caller.conn.is_closed()).then_some(caller));
        }
        caller.drains = None;
        let answer = self.tell_ends(&mut caller.conn).and_then(|()| match busy {
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
                caller.drains = Some(self.clock.now() + Duration::from_millis(patience_ms));
                return Continue(caller);
            }
            AgentMessage::Begin => match caller.adopting.take() {
                Some(adopting) => {
                    // This node is in the new run, whose keeper has the directory now.
                    self.clear_shelf();
                    // The session's own thread continues the conversation, and answers this.
                    let world = (Arc::clone(&self.clock), self.failpoints.clone());
                    let (ram, waker) = (Arc::clone(&self.ram), self.poller.waker());
                    let session = Session::start(adopting, caller.conn, world, ram, waker);
                    self.sessions.extend(session.ok());
                    return Break(None);
                }
                None => Err(Error::invalid("nothing was handed over")),
            },
            AgentMessage::Status => self.tell_status(&mut caller.conn),
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

    /// A caller that has said everything for now; `None` when it is gone, or silent for too long in the middle of something.
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
    fn tell_status(&self, conn: &mut Conn) -> Result<()> {
        let notes = std::iter::once(self.whose.clone());
        for text in notes.chain(self.sessions.iter().map(Session::summary)) {
            conn.send(&Message::Agent(AgentMessage::Note { text }), WORD)?;
        }
        Ok(())
    }

    /// How sessions ended, and what those that are there are doing.
    fn tell_ends(&self, conn: &mut Conn) -> Result<()> {
        let there = self.sessions.iter().map(Session::summary);
        for text in self.ended.iter().cloned().chain(there) {
            conn.send(&Message::Agent(AgentMessage::Note { text }), WORD)?;
        }
        Ok(())
    }
}

/// What a status note is made of: names and values, each pair behind a tab, with an equals sign between the two.
pub(crate) fn fields(pairs: &[(&str, &str)]) -> String {
    let mut text = String::new();
    for (name, value) in pairs {
        text += &format!("\t{name}={}", value.replace('\t', " "));
    }
    text
}

/// What an agent says of itself, and then of each session: names and values.
pub type Told = Vec<BTreeMap<String, String>>;

/// What the agent at this address is doing.
///
/// # Errors
/// Unavailable when it is gone or does not answer.
pub fn status(at: &Address, timeout: Duration) -> Result<Told> {
    let mut conn = Conn::connect(at, &KEY, &Failpoints::none(), timeout)?;
    let mut told = Vec::new();
    ask(&mut conn, AgentMessage::Status, None, timeout, |text| {
        told.push(read_fields(&text));
    })?;
    Ok(told)
}

fn read_fields(text: &str) -> BTreeMap<String, String> {
    let pairs = text.split('\t').filter_map(|pair| pair.split_once('='));
    let own = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
    pairs.map(own).collect()
}

/// Has the agent at this address finish what ranks left behind, at most `patience`, and end; what it says of each
/// session, and whether all of them are over.
///
/// # Errors
/// Unavailable when it is gone or does not answer.
pub fn drain(at: &Address, patience: Duration, timeout: Duration) -> Result<(Told, bool)> {
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
            // It hangs up when it is gone.
            let _ = conn.receive(timeout);
            Ok((told, true))
        }
        // It says of each session that is there what it is doing.
        Err(error) if answered && error.kind() == ErrorKind::Unavailable => Ok((told, false)),
        Err(error) => Err(error),
    }
}

impl Caller {
    fn is_busy(&self) -> bool {
        let busy = [self.yields.is_some(), self.drains.is_some()];
        busy.contains(&true) || self.adopting.is_some() || self.awaits.is_some()
    }
}

/// Takes one thing that a rank hands over.
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

/// Says what became of something.
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

/// Says something to the agent and waits until it is done; what it has to tell the user meanwhile goes to `note`.
///
/// # Errors
/// What the agent answers; Unavailable when it does not within `timeout`, or is gone.
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

/// What becomes of a caller: it may say more, or it waits (`None`: it is done with).
type Stage = ControlFlow<Option<Caller>, Caller>;

fn reply_to(mut caller: Caller, answer: Result<()>) -> Stage {
    match reply_within(&mut caller.conn, answer, WORD) {
        Ok(()) => Continue(caller),
        Err(_) => Break(None),
    }
}
