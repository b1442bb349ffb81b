//! Starts the threads that do a node's work, in whichever process hosts its engine.
//!
//! | thread | what it does |
//! | --- | --- |
//! | control | votes, placement, commit records of the node; on node 0 the lead (`control.rs`) |
//! | CP-thread, one per writer | containers (`flush.rs`) |
//! | keeper | replicas of other nodes (`keeper.rs`) |
//!
//! Invariants:
//! 1. A node's lanes are known before any rank can ask for them.
//! 2. What the threads must know is data ([`HostPlan`]), the same for every host.
//!
//! Not here: who is in the job and where (crate `client`), when the threads end.

use crate::commit::{Control, ControlContext, ControlShared, JobFacts, Links, Tree};
use crate::directory::Places;
use crate::encoding::Recipe;
use crate::flush::{FlushContext, Flusher, Remembered, Report};
use crate::node::{ENGINE_ALIVE, Index, IndexShape, Layout, Mode, Node, Outcome};
use crate::replicas::{
    Gathering, KeeperContext, KeeperThread, KeptReplicas, NodeAt, ReplicaStore, Replicas,
    ReplicasContext,
};
use orcheck_format::disk::ParityGroup;
use orcheck_format::{Epoch, Error, JobName, Level, NodeId, Rank, Result, Step, WriterId};
use orcheck_io::clock::Clock;
use orcheck_io::failpoints::Failpoints;
use orcheck_io::machine::thread::{never_preempt, spawn};
use orcheck_io::machine::{cpuset, pin_current_thread, sibling_of};
use orcheck_io::poll::{Poller, Waker};
use orcheck_net::{Key, Listener};
use orcheck_placement::parity::Code;
use orcheck_placement::{Domains, Placement};
use orcheck_pool::{Gates, Pool};
use orcheck_staging::client::shown;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread::JoinHandle;
use std::time::Duration;

/// Longest wait for a thread to end.
pub const JOIN_TIMEOUT: Duration = Duration::from_secs(10);

/// A thread that waits for descriptors, and the waker that ends its wait.
pub type Running = (JoinHandle<Result<()>>, Waker);

/// The names of the targets configured as `roots`, in placements and records. Several places on one
/// staging server, which differ in their keys, have a name each.
#[must_use]
pub fn server_names(roots: &[String]) -> Vec<String> {
    let name = |(at, root): (usize, &String)| {
        let shown_before = |one: &&String| **one != *root && shown(one) == shown(root);
        match roots[..at].iter().filter(shown_before).count() {
            0 => shown(root).to_owned(),
            before => format!("{}#{}", shown(root), before + 1),
        }
    };
    roots.iter().enumerate().map(name).collect()
}

/// What the threads of a node must know.
#[derive(Clone)]
pub struct HostPlan {
    /// The job.
    pub job: JobName,
    /// This run's epoch.
    pub epoch: Epoch,
    /// Which ranks and nodes there are.
    pub layout: Layout,
    /// This node.
    pub node: NodeId,
    /// Placed directories as configured.
    pub servers: Vec<String>,
    /// Directory of the nodes as configured, or empty.
    pub node_root: String,
    /// Checkpoints to keep.
    pub keep: usize,
    /// How streams travel.
    pub mode: Mode,
    /// Whether to use direct I/O if the file system supports it.
    pub direct: bool,
    /// Whether CP-threads run on the SMT sibling, if there is one.
    pub pin: bool,
    /// Whether snapshots may refer to older containers.
    pub incremental: bool,
    /// Longest wait inside the engine.
    pub timeout: Duration,
    /// Maximum number of nodes directly below one in the tree to the lead.
    pub fan_out: u32,
    /// How containers are encoded.
    pub recipe: Recipe,
    /// Replicas on other nodes, if requested.
    pub replication: Option<Replication>,
}

/// What replicas require.
#[derive(Clone)]
pub struct Replication {
    /// Number of replicas of each container; 0 with parity.
    pub replicas: u32,
    /// Groups with parity, if that is used instead of replicas.
    pub groups: Vec<ParityGroup>,
    /// Space for replicas of other nodes.
    pub budget_bytes: u64,
    /// Where those replicas are kept.
    pub store: ReplicaStore,
    /// Which nodes fail together.
    pub domains: Domains,
    /// The addresses of the nodes' keepers.
    pub nodes: Vec<NodeAt>,
    /// The job's key.
    pub key: Key,
}

/// Starts a node's threads.
#[derive(Clone)]
pub struct Host {
    /// What the threads must know.
    pub plan: HostPlan,
    /// The node's pool.
    pub pool: Arc<Pool>,
    /// Shape of the index in it.
    pub shape: IndexShape,
    /// The job's directories.
    pub places: Places,
    /// Where replicas of other nodes are kept, if requested.
    pub room: Option<Arc<KeptReplicas>>,
    /// Locks between processes.
    pub gates: Arc<Gates>,
    /// Shared with the control thread.
    pub shared: Arc<ControlShared>,
    /// Clock.
    pub clock: Arc<dyn Clock>,
    /// Failpoints, for tests.
    pub failpoints: Failpoints,
    /// Whether the threads outlive the ranks, because they are in an agent.
    pub outlives: bool,
    /// What lies where in the pool, if it is kept when the ranks are gone.
    pub remembered: Option<Arc<Remembered>>,
}

impl Host {
    fn node(&self) -> &Node {
        &self.plan.layout.nodes[self.plan.node.index()]
    }

    /// Starts the control thread; with `placement`, the lanes lead there at first.
    ///
    /// # Errors
    /// Lack of threads or descriptors; another control thread that is alive.
    pub fn control(&self, links: Links, placement: Option<Placement>) -> Result<Running> {
        let plan = &self.plan;
        if let Some(placement) = &placement
            && let Some(lanes) = placement.lanes.get(plan.node.index())
        {
            // Before any rank can ask, because the control thread starts later.
            Index::new(&self.pool, self.shape).set_lanes(placement.generation, lanes);
        }
        let writers = &self.node().writers;
        let context = ControlContext {
            pool: Arc::clone(&self.pool),
            shape: self.shape,
            node: plan.node,
            facts: JobFacts {
                job: plan.job.clone(),
                epoch: plan.epoch,
                world_size: plan.layout.world_size(),
                nodes: plan.layout.node_names(),
                servers: server_names(&plan.servers),
                node_root: plan.node_root.clone(),
                groups: (plan.replication.as_ref())
                    .map_or_else(Vec::new, |replication| replication.groups.clone()),
            },
            ranks: self.node().ranks.clone(),
            writer_hosts: (writers.iter())
                .filter(|_| !self.outlives)
                .filter_map(|ranks| ranks.first().copied())
                .collect(),
            writers: writers.len() as u32,
            places: self.places.clone(),
            keep: plan.keep,
            placement,
            tree: Tree::new(plan.layout.nodes.len() as u32, plan.fan_out),
            outlives: self.outlives,
            clock: Arc::clone(&self.clock),
            failpoints: self.failpoints.clone(),
            shared: Arc::clone(&self.shared),
            alive: self.gates.lock(ENGINE_ALIVE, Duration::from_secs(1))?,
        };
        let poller = Poller::new()?;
        let waker = poller.waker();
        let control = Control::new(context, links, poller);
        Ok((spawn("orcheck-control", move || control.run())?, waker))
    }

    /// Starts the keeper, if replicas are requested; other nodes connect through `doors`.
    ///
    /// # Errors
    /// Lack of threads or descriptors.
    pub fn keeper(&self, doors: Vec<Listener>, stop: &Arc<AtomicBool>) -> Result<Option<Running>> {
        let (Some(replication), Some(room)) = (&self.plan.replication, &self.room) else {
            return Ok(None);
        };
        let context = KeeperContext {
            epoch: self.plan.epoch,
            node: self.plan.node,
            room: Arc::clone(room),
            budget_bytes: replication.store.granted_bytes(replication.budget_bytes),
            direct: self.plan.direct,
            gathering: self.gathering()?,
            outcome: self.outcome_at_peers(),
            key: replication.key.clone(),
            failpoints: self.failpoints.clone(),
            stop: Arc::clone(stop),
        };
        let poller = Poller::new()?;
        let waker = poller.waker();
        let keeper = KeeperThread::new(context, doors, poller);
        let shared = Arc::clone(&self.shared);
        let thread = spawn("orcheck-keeper", move || {
            keeper.run().inspect_err(|error| {
                shared.note(format!("the keeper of replicas ended: {error}"));
            })
        })?;
        Ok(Some((thread, waker)))
    }

    /// What became of a step at level `peers`, as long as the session has its pool.
    fn outcome_at_peers(&self) -> Box<dyn Fn(Step) -> Outcome + Send> {
        let mut levels = self.places.levels().into_iter();
        let level = levels.find(|level| matches!(level, Level::Peers(_)));
        // Breaks if: it keeps the pool; a keeper stays for as long as its agent, and the next run
        // would find no memory for a pool of its own.
        let (pool, shape) = (Arc::downgrade(&self.pool), self.shape);
        Box::new(move |step| match (level, pool.upgrade()) {
            (Some(level), Some(pool)) => Index::new(&pool, shape).outcome(step, level),
            _ => Outcome::Pending,
        })
    }

    /// This node's group, with parity.
    fn group(&self) -> Option<Arc<ParityGroup>> {
        let mut groups = self.plan.replication.iter().flat_map(|one| &one.groups);
        let own = groups.find(|group| group.position(self.plan.node).is_some());
        own.cloned().map(Arc::new)
    }

    /// What the keeper must know to hold parity.
    fn gathering(&self) -> Result<Option<Gathering>> {
        let Some(group) = self.group() else {
            return Ok(None);
        };
        let writers = |node: &NodeId| {
            let node = self.plan.layout.nodes.get(node.index());
            node.map_or(0, |node| node.writers.len() as u32)
        };
        Ok(Some(Gathering {
            job: self.plan.job.clone(),
            epoch: self.plan.epoch,
            node: self.plan.node,
            writers: group.nodes.iter().map(writers).collect(),
            code: Arc::new(Code::new(group.data(), group.parity.into())?),
            group,
        }))
    }

    /// What brings containers to other nodes, if replicas are requested, on behalf of `rank`.
    ///
    /// # Errors
    /// Invalid if there are not enough nodes; lack of descriptors.
    pub fn replicas(&self, rank: Rank, stop: &Arc<AtomicBool>) -> Result<Option<Arc<Replicas>>> {
        let Some(replication) = &self.plan.replication else {
            return Ok(None);
        };
        let context = ReplicasContext {
            job: self.plan.job.clone(),
            epoch: self.plan.epoch,
            own: (rank, self.plan.node),
            replicas: replication.replicas,
            group: self.group(),
            domains: replication.domains.clone(),
            nodes: replication.nodes.clone(),
            timeout: self.plan.timeout,
            clock: Arc::clone(&self.clock),
            failpoints: self.failpoints.clone(),
            stop: Arc::clone(stop),
        };
        Replicas::new(context).map(Some)
    }

    /// Starts the CP-thread of a writer in the process of `rank`; `report` reaches the control
    /// thread.
    ///
    /// # Errors
    /// Lack of threads or descriptors.
    pub fn flusher(
        &self,
        writer: WriterId,
        rank: Rank,
        report: Report,
        stop: &Arc<AtomicBool>,
    ) -> Result<JoinHandle<Result<()>>> {
        let (plan, node) = (&self.plan, self.node());
        let context = FlushContext {
            pool: Arc::clone(&self.pool),
            shape: self.shape,
            job: plan.job.clone(),
            epoch: plan.epoch,
            world_size: plan.layout.world_size(),
            node: (plan.node, node.name.clone()),
            writer,
            ranks: node.writers[writer.index()]
                .iter()
                .map(|&rank| (plan.layout.local_index(rank), rank))
                .collect(),
            mode: plan.mode,
            places: self.places.clone(),
            direct: plan.direct,
            incremental: plan.incremental,
            recipe: plan.recipe.clone(),
            gate_timeout: plan.timeout,
            clock: Arc::clone(&self.clock),
            failpoints: self.failpoints.clone(),
            replicas: self.replicas(rank, stop)?,
            remembered: self.remembered.clone(),
            stop: Arc::clone(stop),
        };
        let mut flusher = Flusher::new(context, report)?;
        let shared = Arc::clone(&self.shared);
        // The CP-thread shares a core with the worker: its SMT sibling, if our CPU set has one.
        let cpus = cpuset();
        let sibling = if plan.pin && plan.mode == Mode::Orchestrated {
            cpus.first().and_then(|&cpu| sibling_of(cpu))
        } else {
            None
        };
        spawn("orcheck-flush", move || {
            // A rank that wakes it is still in its checkpoint call, and others may be too.
            never_preempt();
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

/// Waits at most `timeout` for a thread that was told to end.
///
/// # Errors
/// The thread's error; Unavailable if it hangs, Internal if it panicked.
pub fn join(thread: JoinHandle<Result<()>>, clock: &dyn Clock, timeout: Duration) -> Result<()> {
    let until = clock.now() + timeout;
    while !thread.is_finished() {
        if clock.now() >= until {
            return Err(Error::unavailable(format!(
                "thread {} still hangs in a directory after {:.1} s and is left behind",
                thread.thread().name().unwrap_or("of the session"),
                timeout.as_secs_f64()
            )));
        }
        clock.sleep(Duration::from_millis(1));
    }
    thread
        .join()
        .unwrap_or_else(|_| Err(Error::internal("a thread of the session panicked")))
}
