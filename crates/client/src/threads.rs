//! The threads of a rank: the node's control thread and the writer's CP-thread.
//!
//! Invariants:
//! 1. A node's lanes are known before any rank can ask for them.
//! 2. Threads whose owner is dropped end by themselves.
//!
//! Not here: what they do (`engine::control`, `engine::flush`), waiting for them (`drain.rs`).

use crate::options::Options;
use crate::peers::Peers;
use crate::session::Environment;
use crate::start::server_names;
use orcheck_engine::control::{Control, ControlContext, ControlShared, Links};
use orcheck_engine::encoding::Recipe;
use orcheck_engine::flush::{FlushContext, Flusher};
use orcheck_engine::index::{ENGINE_ALIVE, Index, IndexShape};
use orcheck_engine::keeper::{KeeperContext, KeeperThread};
use orcheck_engine::layout::{Layout, Mode};
use orcheck_engine::places::Places;
use orcheck_engine::protocol::JobFacts;
use orcheck_engine::replicas::{Replicas, ReplicasContext};
use orcheck_format::error::Result;
use orcheck_format::ids::{Epoch, JobName};
use orcheck_format::wire::Message;
use orcheck_io::conn::Conn;
use orcheck_io::gate::Gates;
use orcheck_io::machine::{cpuset, pin_current_thread, sibling_of};
use orcheck_io::poll::{Poller, Waker};
use orcheck_io::pool::Pool;
use orcheck_io::thread::spawn;
use orcheck_plan::Placement;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

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
    /// Makes lost copies anew after a restart, on the lowest rank of a node.
    pub mender: Option<JoinHandle<()>>,
    /// Tells the CP-thread to end.
    pub flush_stop: Arc<AtomicBool>,
    /// The connection of a rank without a writer; its end tells that the node's lead is gone.
    pub idle: Option<Conn>,
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

pub(crate) struct ThreadContext<'a> {
    pub(crate) job: &'a JobName,
    pub(crate) epoch: Epoch,
    pub(crate) layout: &'a Layout,
    pub(crate) rank: u32,
    pub(crate) places: &'a Places,
    pub(crate) pool: &'a Arc<Pool>,
    pub(crate) shape: IndexShape,
    pub(crate) options: &'a Options,
    pub(crate) environment: &'a Environment,
    pub(crate) shared: &'a Arc<ControlShared>,
    pub(crate) placement: Option<Placement>,
    pub(crate) gates: &'a Gates,
    pub(crate) recipe: Recipe,
    pub(crate) peers: Option<&'a mut Peers>,
}

impl ThreadContext<'_> {
    pub(crate) fn start(mut self, own: Conn, links: Option<Links>) -> Result<Threads> {
        let keeper_stop = Arc::new(AtomicBool::new(false));
        let keeper = self.start_keeper(&keeper_stop)?;
        let mut threads = Threads {
            keeper,
            keeper_stop,
            mender: None,
            control: links.map(|links| self.start_control(links)).transpose()?,
            flusher: None,
            flush_stop: Arc::new(AtomicBool::new(false)),
            idle: Some(own),
            shared: Arc::clone(self.shared),
        };
        if let Some(writer) = self.layout.hosted_writer(self.rank)
            && let Some(conn) = threads.idle.take()
        {
            threads.flusher =
                Some(self.start_flusher(writer, conn, Arc::clone(&threads.flush_stop))?);
        }
        Ok(threads)
    }

    fn start_control(&mut self, links: Links) -> Result<(JoinHandle<Result<()>>, Waker)> {
        let node = self.layout.node_of(self.rank);
        let writers = &self.layout.nodes[node as usize].writers;
        let placement = self.placement.take();
        if let Some(placement) = &placement
            && let Some(lanes) = placement.lanes.get(node as usize)
        {
            // Before any rank can ask: the control thread starts later.
            Index::new(self.pool, self.shape).set_lanes(placement.generation, lanes);
        }
        let context = ControlContext {
            pool: Arc::clone(self.pool),
            shape: self.shape,
            node,
            facts: JobFacts {
                job: self.job.clone(),
                epoch: self.epoch,
                world_size: self.layout.world_size(),
                nodes: self.layout.node_names(),
                servers: server_names(self.options),
                node_root: self
                    .options
                    .node_dir
                    .as_ref()
                    .map(|dir| dir.display().to_string())
                    .unwrap_or_default(),
            },
            ranks: self.layout.nodes[node as usize].ranks.clone(),
            writer_hosts: writers
                .iter()
                .filter_map(|ranks| ranks.first().copied())
                .collect(),
            writers: writers.len() as u32,
            places: self.places.clone(),
            keep: self.options.keep,
            placement,
            is_lead: self.rank == 0,
            clock: Arc::clone(&self.environment.clock),
            steps: self.environment.steps.clone(),
            shared: Arc::clone(self.shared),
            alive: self.gates.lock(ENGINE_ALIVE, Duration::from_secs(1))?,
        };
        let poller = Poller::new()?;
        let waker = poller.waker();
        let control = Control::new(context, links, poller);
        Ok((spawn("orcheck-control", move || control.run())?, waker))
    }

    /// The keeper of this node, where replicas are asked for and this rank is the lowest.
    fn start_keeper(
        &mut self,
        stop: &Arc<AtomicBool>,
    ) -> Result<Option<(JoinHandle<Result<()>>, Waker)>> {
        let (Some(peers), Some(dir)) = (&mut self.peers, &self.places.node) else {
            return Ok(None);
        };
        if peers.doors.is_empty() {
            return Ok(None);
        }
        let context = KeeperContext {
            epoch: self.epoch,
            node: self.layout.node_of(self.rank),
            dir: Arc::clone(dir),
            budget_bytes: self.options.replica_budget_bytes.unwrap_or(u64::MAX),
            direct: self.options.direct,
            key: peers.key.clone(),
            steps: self.environment.steps.clone(),
            stop: Arc::clone(stop),
        };
        let poller = Poller::new()?;
        let waker = poller.waker();
        let doors = std::mem::take(&mut peers.doors);
        let keeper = KeeperThread::new(context, doors, poller);
        let shared = Arc::clone(self.shared);
        let thread = spawn("orcheck-keeper", move || {
            keeper.run().inspect_err(|error| {
                shared.note(format!("the keeper of replicas ended: {error}"));
            })
        })?;
        Ok(Some((thread, waker)))
    }

    /// What brings replicas of what a writer writes to other nodes, where they are asked for.
    fn replicas(&self, stop: &Arc<AtomicBool>) -> Result<Option<Arc<Replicas>>> {
        let Some(peers) = &self.peers else {
            return Ok(None);
        };
        let context = ReplicasContext {
            job: self.job.clone(),
            epoch: self.epoch,
            own: (self.rank, self.layout.node_of(self.rank)),
            replicas: u32::from(self.options.replicas),
            domains: peers.domains.clone(),
            nodes: peers.nodes.clone(),
            key: peers.key.clone(),
            timeout: Duration::from_secs_f64(self.options.timeout_s),
            clock: Arc::clone(&self.environment.clock),
            steps: self.environment.steps.clone(),
            stop: Arc::clone(stop),
        };
        Replicas::new(context).map(Some)
    }

    fn start_flusher(
        &self,
        writer: u32,
        mut conn: Conn,
        stop: Arc<AtomicBool>,
    ) -> Result<JoinHandle<Result<()>>> {
        let node = self.layout.node_of(self.rank);
        let info = &self.layout.nodes[node as usize];
        let timeout = Duration::from_secs_f64(self.options.timeout_s);
        let context = FlushContext {
            pool: Arc::clone(self.pool),
            shape: self.shape,
            job: self.job.clone(),
            epoch: self.epoch,
            world_size: self.layout.world_size(),
            node: (node, info.name.clone()),
            writer,
            ranks: info.writers[writer as usize]
                .iter()
                .map(|&rank| (self.layout.local_index(rank), rank))
                .collect(),
            mode: self.options.mode,
            places: self.places.clone(),
            direct: self.options.direct,
            incremental: self.options.incremental_chain.is_some(),
            recipe: self.recipe.clone(),
            gate_timeout: timeout,
            clock: Arc::clone(&self.environment.clock),
            steps: self.environment.steps.clone(),
            replicas: self.replicas(&stop)?,
            stop,
        };
        let report = Box::new(move |message: Message| conn.send(&message, timeout));
        let mut flusher = Flusher::new(context, report)?;
        let shared = Arc::clone(self.shared);
        // The CP-thread shares a core with the worker: its SMT sibling where it has one in our set.
        let cpus = cpuset();
        let sibling = if self.options.pin && self.options.mode == Mode::Orchestrated {
            cpus.first().and_then(|&cpu| sibling_of(cpu))
        } else {
            None
        };
        spawn("orcheck-flush", move || {
            if let Some(cpu) = sibling
                && let Err(error) = pin_current_thread(&[cpu])
            {
                shared.note(format!("the CP-thread is not pinned: {error}"));
            }
            let result = flusher.run();
            if let Err(error) = &result {
                shared.note(format!("the CP-thread ended: {error}"));
            }
            result
        })
    }
}
