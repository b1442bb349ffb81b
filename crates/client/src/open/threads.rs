//! Owns the threads of a rank: the node's control thread and the writer's CP-thread.
//!
//! Invariant: threads whose owner is dropped end by themselves.
//!
//! Not here: how they are started (`engine::host`), waiting for them (`drain.rs`).

use crate::open::agent::Agent;
use crate::open::mender::Mender;
use orcheck_engine::commit::{ControlShared, Links};
use orcheck_engine::host::Host;
use orcheck_format::wire::{AgentMessage, Message};
use orcheck_format::{Rank, Result, Step};
use orcheck_io::poll::Waker;
use orcheck_net::{Conn, Listener};
use orcheck_placement::Placement;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

/// The threads of this rank. Dropping it tells them to end, without waiting for them.
pub(crate) struct Threads {
    /// Control thread of the node, on its lowest rank.
    pub control: Option<(JoinHandle<Result<()>>, Waker)>,
    /// CP-thread of a writer, on its lowest rank.
    pub flusher: Option<JoinHandle<Result<()>>>,
    /// Keeper of replicas of other nodes, on the lowest rank of a node.
    pub keeper: Option<(JoinHandle<Result<()>>, Waker)>,
    /// Tells the keeper to end.
    pub keeper_stop: Arc<AtomicBool>,
    /// Makes lost copies again after a restart, on the lowest rank of a node.
    pub mender: Option<Mender>,
    /// Tells the CP-thread to end.
    pub flush_stop: Arc<AtomicBool>,
    /// The connection of a rank without a writer; its end means that the rank is gone.
    pub idle: Option<Conn>,
    /// If the node's threads are in its agent: tells them that a snapshot is whole. It holds this
    /// rank's connection, whose end means that the rank is gone.
    pub sealed: Option<Arc<dyn Fn(Step) + Send + Sync>>,
    /// On a node's lowest rank: the agent that has the node's threads.
    pub agent: Option<Agent>,
    shared: Arc<ControlShared>,
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.flush_stop.store(true, Ordering::Release);
        self.shared.stop.store(true, Ordering::Release);
        self.keeper_stop.store(true, Ordering::Release);
        for (_, waker) in self.control.iter().chain(&self.keeper) {
            waker.wake();
        }
    }
}

impl Threads {
    /// No threads in this process: those of the node are in its agent.
    pub(crate) fn elsewhere(host: &Host, rank: Rank, own: Conn, agent: Option<Agent>) -> Self {
        let (own, timeout) = (Mutex::new(own), host.plan.timeout);
        let sealed = move |step| {
            let message = Message::Agent(AgentMessage::Sealed { rank, step });
            let mut own = own.lock().unwrap_or_else(PoisonError::into_inner);
            // Whoever waits for the agent notices when it is gone.
            let _ = own.send(&message, timeout);
        };
        Threads {
            sealed: Some(Arc::new(sealed)),
            control: None,
            flusher: None,
            keeper: None,
            keeper_stop: Arc::default(),
            mender: None,
            flush_stop: Arc::default(),
            idle: None,
            agent,
            shared: Arc::clone(&host.shared),
        }
    }

    /// Starts the threads of this rank; on a node's lowest rank (`links`) also those of the node,
    /// with `doors` for the keeper.
    pub(crate) fn start(
        host: &Host,
        rank: Rank,
        mut own: Conn,
        links: Option<Links>,
        doors: Vec<Listener>,
        placement: Option<Placement>,
    ) -> Result<Self> {
        let (keeper_stop, flush_stop) = (Arc::default(), Arc::default());
        let (mut control, mut keeper) = (None, None);
        if let Some(links) = links {
            keeper = host.keeper(doors, &keeper_stop)?;
            control = Some(host.control(links, placement)?);
        }
        let mut threads = Threads {
            keeper,
            keeper_stop,
            mender: None,
            control,
            flusher: None,
            flush_stop,
            idle: None,
            sealed: None,
            agent: None,
            shared: Arc::clone(&host.shared),
        };
        match host.plan.layout.hosted_writer(rank) {
            Some(writer) => {
                let timeout = host.plan.timeout;
                let report = Box::new(move |message: Message| own.send(&message, timeout));
                let flusher = host.flusher(writer, rank, report, &threads.flush_stop)?;
                threads.flusher = Some(flusher);
            }
            None => threads.idle = Some(own),
        }
        Ok(threads)
    }
}
