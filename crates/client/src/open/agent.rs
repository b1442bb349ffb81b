//! Finds or starts the agent of this rank's node, lets it finish with older runs, hands it the
//! node's engine, and asks it for memory of an earlier run.
//!
//! Invariants:
//! 1. If no agent takes over the engine, the session does not open: nothing weaker is used instead.
//! 2. If an error occurs after something was handed over, the end of the conversation makes the
//!    agent release it.
//! 3. A program that starts an agent passes it no descriptor, and need not wait for its end.
//! 4. An agent that a program with lower limits started (ulimit) is replaced.
//! 5. Another user who holds names of the agent cannot keep a job from running; a note tells the
//!    user.
//!
//! Not here: what the agent does (`engine::host`).

use crate::open::connect::NodeSide;
use crate::open::environment::Environment;
use crate::options::{AgentKind, Options};
use orcheck_engine::commit::Links;
use orcheck_engine::host::agent::{KEY, address, ask, look, read_status};
use orcheck_engine::host::{Host, pack};
use orcheck_engine::restart::AgentMemory;
use orcheck_format::sabotage::{Switch, off};
use orcheck_format::wire::{AgentMessage, Link, Message};
use orcheck_format::{Detail, Error, ErrorKind, JobName, Result, Step};
use orcheck_io::clock::Clock;
use orcheck_io::failpoints::Failpoints;
use orcheck_io::machine::{is_stopped, lower_limit, start_detached};
use orcheck_io::user::env_var;
use orcheck_net::{Address, Conn, Holder, Listener, Peer, holder};
use orcheck_placement::Placement;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Longest wait for an agent to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest wait for each answer about memory of an earlier run, without which files are read.
const RECALL_TIMEOUT: Duration = Duration::from_secs(2);
/// Longest wait until a started agent listens.
const START_TIMEOUT: Duration = Duration::from_secs(20);
/// Time between two looks for an agent that somebody else starts.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// Longest wait until the agent has released a session.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(10);

/// Whether the resource manager ends the agents of this job with its ranks: an agent that a rank of
/// a Slurm step starts belongs to the step.
pub(crate) fn dies_with_ranks(options: &Options) -> bool {
    ends_with(options.agent, env_var("SLURM_STEP_ID").as_deref())
}

fn ends_with(agent: AgentKind, slurm_step: Option<&str>) -> bool {
    agent == AgentKind::Start && slurm_step.is_some()
}

/// What was found where an agent listens.
enum Found {
    /// It has finished with older runs.
    Agent(Box<Agent>),
    /// There is none, in words.
    Absent(Error),
}

/// The process of this user that listens there now.
fn listens(at: &Address, failpoints: &Failpoints) -> Option<Peer> {
    match holder(at, failpoints) {
        Ok(Holder::Own(peer)) => Some(peer),
        _ => None,
    }
}

/// Connects to an agent, or returns why it is not there.
///
/// # Errors
/// Unavailable if it is there and does not answer: another agent would not help, because it could
/// not have this one's name.
fn connect(at: &Address, wait: Duration, failpoints: &Failpoints) -> Result<Result<Conn>> {
    Conn::connect(at, &KEY, failpoints, wait).map_or_else(
        |error| match listens(at, failpoints) {
            Some(peer) => Err(silent(peer, wait, &error)),
            None => Ok(Err(error)),
        },
        |conn| Ok(Ok(conn)),
    )
}

/// Why an agent that is there cannot be used: it does not answer.
fn silent(peer: Peer, waited: Duration, cause: &Error) -> Error {
    let (pid, stopped) = (peer.pid, is_stopped(peer.pid));
    let who = match pid {
        // Breaks if: its number is told; 0 stands for all processes of the caller's own group.
        0 => "a process in another PID namespace".to_owned(),
        pid => format!("process {pid}"),
    };
    let state = if stopped { " is stopped and" } else { "" };
    let error = Error::unavailable(format!(
        "the agent of this node, {who},{state} has not answered for {} s ({})",
        waited.as_secs_f64(),
        cause.what()
    ));
    error.next(match (pid, stopped) {
        (0, _) => "look for `orcheck agent` in the containers of this host".to_owned(),
        (_, true) => format!("let it continue with `kill -CONT {pid}`, then start again"),
        (_, false) => format!("end it with `kill -KILL {pid}`, then start again: the checkpoints that it has not made safe are lost"),
    })
}

/// The directory that distinguishes jobs of the same name.
fn root_of(options: &Options) -> &Path {
    let root = options.global.first().or(options.node_dir.as_ref());
    root.map_or(Path::new(""), PathBuf::as_path)
}

/// Where the agent of a node listens, by the options of its job.
fn address_of(job: &JobName, node: &str, options: &Options) -> Address {
    address(job, node, root_of(options))
}

/// Asks, when called, for the memory that the agent of this node kept of an earlier run of the job.
/// Any rank may ask, and nobody depends on the answer: what is not in memory is in files.
pub(crate) fn recall(
    job: &JobName,
    node: &str,
    options: &Options,
    environment: &Environment,
) -> impl FnOnce() -> Option<AgentMemory> + Send + use<> {
    let (at, job) = (address_of(job, node, options), job.clone());
    let failpoints = environment.failpoints.clone();
    let clock = Arc::clone(&environment.clock);
    move || {
        let seen = look(&at, &failpoints, clock.as_ref()).ok()?;
        let connect = |at: &Address| Conn::connect(at, &KEY, &failpoints, RECALL_TIMEOUT).ok();
        let mut conn = seen.own.iter().find_map(connect)?;
        let wanted = AgentMessage::Recall { job };
        conn.send(&Message::Agent(wanted), RECALL_TIMEOUT).ok()?;
        match conn.receive(RECALL_TIMEOUT).ok()? {
            Message::Agent(AgentMessage::Kept) => {
                let mut next = || conn.receive_fd(RECALL_TIMEOUT).ok();
                AgentMemory::attach([next()?, next()?]).ok()
            }
            _ => None,
        }
    }
}

/// The conversation of a node's lowest rank with the agent.
pub(crate) struct Agent {
    conn: Conn,
    /// Number of notes at the last request.
    noted: u64,
    /// What the user should know of it, until it is told.
    notes: Vec<String>,
}

impl Agent {
    /// The agent of this node, once it has finished with older runs of the job; `None` if none is
    /// configured. `patience`: how long to wait for one that somebody else starts.
    pub(crate) fn find(
        job: &JobName,
        node: &str,
        options: &Options,
        (failpoints, clock): (&Failpoints, &dyn Clock),
        patience: Duration,
    ) -> Result<Option<Self>> {
        if options.agent == AgentKind::Off {
            return Ok(None);
        }
        let root = root_of(options);
        let at = address_of(job, node, options);
        let reach = |replaces| Self::reach(&at, options, (failpoints, clock), replaces);
        if options.agent == AgentKind::Join {
            let found = await_agent(&|| reach(false), clock, patience);
            let found = found.map_err(|error| {
                error
                    .at(format!("the agent of node '{node}', which agent = \"join\" asks for"))
                    .next(format!(
                        "start it with `orcheck agent --job {} --node {node} --dir {}`, or set agent = \"start\"",
                        job.as_str(),
                        root.display()
                    ))
            });
            return found.map(Some);
        }
        if let Found::Agent(found) = reach(true)? {
            return Ok(Some(*found));
        }
        let linger = options.agent_linger_s.to_string();
        let dir = root.display().to_string();
        let arguments = [
            "agent",
            "--detach",
            "--job",
            job.as_str(),
            "--node",
            node,
            "--dir",
            &dir,
            "--linger",
            &linger,
        ];
        // It listens before its starter returns. If another one was started at the same time, that
        // one listens.
        let started = start_detached(&options.agent_program, &arguments, START_TIMEOUT);
        let error = match reach(false)? {
            Found::Agent(found) => return Ok(Some(*found)),
            Found::Absent(error) => error,
        };
        let failed = match started {
            // No other program would help.
            Err(failed) if failed.is(Detail::Limit) => failed,
            Err(failed) => {
                let text = format!("{} ({})", failed.what(), error.what());
                Error::new(failed.kind(), text)
            }
            Ok(()) => error,
        };
        Err(failed
            .at(format!("starting the agent of node '{node}'"))
            .next("set agent_program to the path of the program orcheck, or agent = \"off\""))
    }

    /// Returns an error if an agent of this node is there and does not answer.
    pub(crate) fn answers(
        job: &JobName,
        node: &str,
        options: &Options,
        (failpoints, clock): (&Failpoints, &dyn Clock),
    ) -> Result<()> {
        let wait = ANSWER_TIMEOUT.min(Duration::from_secs_f64(options.timeout_s));
        let seen = look(&address_of(job, node, options), failpoints, clock)?;
        for at in &seen.own {
            // One that has gone keeps nobody waiting.
            let _ = connect(at, wait, failpoints)?;
        }
        Ok(())
    }

    /// Reaches the agent of this user that listens there, once it has finished with older runs.
    /// `replaces`: one with lower limits than this process is told to end, and counts as absent.
    fn reach(
        first: &Address,
        options: &Options,
        (failpoints, clock): (&Failpoints, &dyn Clock),
        replaces: bool,
    ) -> Result<Found> {
        let patience = Duration::from_secs_f64(options.timeout_s);
        let wait = ANSWER_TIMEOUT.min(patience);
        let seen = look(first, failpoints, clock)?;
        let strangers = seen.strangers();
        let mut absent = Error::unavailable(match &strangers {
            None => format!("nobody listens at {first}"),
            Some(who) => format!("no agent of this user is there; {who}"),
        });
        for at in &seen.own {
            let conn = match connect(at, wait, failpoints)? {
                Ok(conn) => conn,
                Err(error) => {
                    absent = error;
                    continue;
                }
            };
            let mut agent = Self {
                conn,
                noted: 0,
                notes: strangers.into_iter().collect(),
            };
            let yields = agent.ask_to_yield(options.take_over, patience);
            return match (yields, listens(at, failpoints)) {
                (Ok(()), Some(peer)) if replaces => agent.unless_limited(peer, patience),
                (Ok(()), Some(peer)) if options.agent == AgentKind::Join => {
                    agent.note_limits(peer);
                    Ok(Found::Agent(Box::new(agent)))
                }
                (Ok(()), _) => Ok(Found::Agent(Box::new(agent))),
                // It ended meanwhile.
                (Err(error), None) => Ok(Found::Absent(error)),
                // For example, an older run is not finished: another agent would not help.
                (Err(error), Some(_)) => Err(error),
            };
        }
        Ok(Found::Absent(absent))
    }

    fn ask_to_yield(&mut self, force: bool, patience: Duration) -> Result<()> {
        let wanted = AgentMessage::Yield {
            force,
            patience_ms: patience.as_millis().try_into().unwrap_or(u64::MAX),
        };
        let patience = patience + ANSWER_TIMEOUT;
        ask(&mut self.conn, wanted, None, patience, |_| ())
    }

    /// Notes that the process of an agent that somebody else starts has a lower limit than ours.
    fn note_limits(&mut self, peer: Peer) {
        if let Some(lower) = lower_limit(peer.pid) {
            self.notes.push(format!(
                "the agent of this node, process {}, has a {lower}. Next: raise that limit where the agent is started, then start the agent again",
                peer.pid
            ));
        }
    }

    /// This agent, unless its process has a lower limit of anything than ours: it has those of the
    /// program that started it, which may have ended long ago. Then it is told to end, if it holds
    /// nothing that is nowhere else.
    fn unless_limited(mut self, peer: Peer, patience: Duration) -> Result<Found> {
        // Breaks if: it is kept; this run would lose checkpoints to a limit that it does not have.
        let Some(lower) = lower_limit(peer.pid).filter(|_| !off(Switch::AgentLimits)) else {
            return Ok(Found::Agent(Box::new(self)));
        };
        let status = read_status(&mut self.conn, patience)?;
        let (own, sessions) = status.split_first().unzip();
        let replicas = own.and_then(|own| own.get("replica_bytes"));
        let why = if sessions.is_some_and(|sessions| !sessions.is_empty()) {
            // Who lives there is told by the locks of the job, as without agents.
            Some("serves a run")
        } else if replicas.is_none_or(|bytes| bytes != "0") {
            // Breaks if: it ends; what it holds for nodes that are lost may be the only copy.
            Some("may hold replicas of other nodes in memory")
        } else {
            None
        };
        if let Some(why) = why {
            self.notes.push(format!(
                "the agent of this node, process {}, has a {lower}; it is used anyway, because it {why}",
                peer.pid
            ));
            return Ok(Found::Agent(Box::new(self)));
        }
        let drain = AgentMessage::Drain {
            patience_ms: patience.as_millis().try_into().unwrap_or(u64::MAX),
        };
        let patience = patience + ANSWER_TIMEOUT;
        let pid = peer.pid;
        ask(&mut self.conn, drain, None, patience, |_| ()).map_err(|error| {
            error
                .at(format!(
                    "the agent of this node, process {pid}, has a {lower}"
                ))
                .next(format!(
                    "end it with `kill -TERM {pid}` when its run is over, then start again"
                ))
        })?;
        // It hangs up when it ends.
        let _ = self.conn.receive(ANSWER_TIMEOUT);
        Ok(Found::Absent(Error::unavailable(format!(
            "the agent, process {pid}, had a {lower}; it was told to end"
        ))))
    }

    /// Hands over the node's engine.
    pub(crate) fn hand_over(
        &mut self,
        host: &Host,
        side: &mut NodeSide,
        links: Links,
        doors: Vec<Listener>,
        placement: Option<&Placement>,
        notes: &mut Vec<String>,
    ) -> Result<()> {
        notes.append(&mut self.notes);
        let adoption = pack(&host.plan, host.places.losses, placement);
        let job = adoption.encode();
        self.give(AgentMessage::Adopt { job }, side.pool.fd(), notes)?;
        for lock in side.held.give_locks() {
            let holder = lock
                .detach()
                .ok_or_else(|| Error::internal("a lock without a holder"))?;
            self.give(AgentMessage::Lock, holder.as_fd(), notes)?;
        }
        for door in doors {
            let (fd, address) = door.detach();
            let address = address.to_string();
            self.give(AgentMessage::Door { address }, fd.as_fd(), notes)?;
        }
        let ranks = links
            .ranks
            .into_iter()
            .map(|(rank, conn)| (Link::Rank(rank), conn));
        let nodes = links
            .nodes
            .into_iter()
            .map(|(node, conn)| (Link::Node(node), conn));
        let lead = links.lead.into_iter().map(|conn| (Link::Lead, conn));
        for (to, link) in ranks.chain(nodes).chain(lead) {
            let (fd, state) = link.detach();
            self.give(AgentMessage::Link { to, state }, fd.as_fd(), notes)?;
        }
        let note = |note| notes.push(note);
        ask(
            &mut self.conn,
            AgentMessage::Begin,
            None,
            ANSWER_TIMEOUT,
            note,
        )
    }

    fn give(
        &mut self,
        message: AgentMessage,
        fd: BorrowedFd<'_>,
        notes: &mut Vec<String>,
    ) -> Result<()> {
        let note = |note| notes.push(note);
        ask(&mut self.conn, message, Some(fd), ANSWER_TIMEOUT, note)
    }

    /// Has memory of an earlier run given back, before this one has handed anything over.
    pub(crate) fn make_room(&mut self) {
        let forget = AgentMessage::Forget;
        // Whoever needs the room sees whether it is there.
        let _ = ask(&mut self.conn, forget, None, ANSWER_TIMEOUT, |_| ());
    }

    /// Says that this run needs no memory of an earlier one any more; does not wait for it.
    pub(crate) fn forget(&mut self) {
        // Whoever waits for the engine notices the end of the conversation.
        let forget = Message::Agent(AgentMessage::Forget);
        let _ = self.conn.send(&forget, ANSWER_TIMEOUT);
    }

    /// Reports what the run resumed from.
    pub(crate) fn resumed_from(
        &mut self,
        from: (Step, u64),
        notes: &mut Vec<String>,
    ) -> Result<()> {
        let (step, epoch) = from;
        let message = AgentMessage::ResumedFrom { step, epoch };
        ask(&mut self.conn, message, None, ANSWER_TIMEOUT, |note| {
            notes.push(note)
        })
    }

    /// Takes the notes for the user since the last look; `noted`: the number of notes so far.
    pub(crate) fn take_notes(&mut self, noted: u64, notes: &mut Vec<String>) {
        if noted == self.noted {
            return;
        }
        self.noted = noted;
        let note = |note| notes.push(note);
        // Whoever waits for the engine notices the end of the conversation.
        let _ = ask(
            &mut self.conn,
            AgentMessage::Ask,
            None,
            ANSWER_TIMEOUT,
            note,
        );
    }

    /// Says goodbye because the session ends in order. This must precede the end of the rank's
    /// connections, so that the agent reads it while there still are ranks.
    pub(crate) fn take_leave(&mut self) -> Result<()> {
        let leave = Message::Agent(AgentMessage::Leave);
        self.conn.send(&leave, ANSWER_TIMEOUT)
    }

    /// Waits until the agent has released the session; returns its last notes.
    pub(crate) fn wait_for_end(mut self, clock: &dyn Clock) -> Result<Vec<String>> {
        let mut notes = Vec::new();
        let until = clock.now() + LEAVE_TIMEOUT;
        loop {
            let left = until.saturating_sub(clock.now());
            match self.conn.receive(left) {
                Ok(Message::Agent(AgentMessage::Note { text })) => notes.push(text),
                Ok(_) => {}
                Err(_) if self.conn.is_closed() => return Ok(notes),
                Err(error) if error.kind() == ErrorKind::Unavailable && !left.is_zero() => {}
                Err(error) => {
                    return Err(error.at("the agent did not release the session"));
                }
            }
        }
    }
}

/// Tries for `patience` to reach an agent that somebody else starts.
fn await_agent(
    reach: &dyn Fn() -> Result<Found>,
    clock: &dyn Clock,
    patience: Duration,
) -> Result<Agent> {
    let until = clock.now() + patience;
    loop {
        match reach()? {
            Found::Agent(found) => return Ok(*found),
            // Whoever started the agent that has ended starts another one, or nobody does.
            Found::Absent(_) if clock.now() < until => clock.sleep(LOOK_AGAIN),
            Found::Absent(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Breaks if: level `process` is promised with an agent that Slurm kills together with the
    // ranks.
    #[test]
    fn an_agent_of_a_slurm_step_ends_with_it() {
        assert!(ends_with(AgentKind::Start, Some("0")));
        assert!(!ends_with(AgentKind::Start, None));
        assert!(!ends_with(AgentKind::Join, Some("0")));
    }
}
