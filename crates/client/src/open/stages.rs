//! Opens a session in stages: from separate ranks to nodes that share a pool and reach the lead.
//!
//! ```text
//! Ranks    facts ─gather─▶ root ─bcast─▶ layout (same on all)    1 where the ranks are
//! Found    directories opened; older runs waited for             2 what exists
//! Led      root: run id, key, addresses, placement ─bcast─▶ all  3 the lead
//! Owned    node leads claim the epoch, create the pool, listen   4 what a node owns
//! Joined   ranks connect to their node, get the pool; nodes      5 connections without
//!          connect to the lead                                     the collective
//! Link     threads start, claims are confirmed
//! ```
//!
//! Invariants:
//! 1. Every stage ends in an agreement: an error on any rank is an error on all, and nobody waits.
//! 2. The job key and the addresses travel only through the collective.
//! 3. An error leaves nothing behind that was created before it (sockets are abstract, the pool is
//!    anonymous memory, claims are withdrawn).
//!
//! Not here: what must be the same on all ranks (`agreements.rs`), the session afterwards
//! (`session`).

use crate::collective::{Collective, agree, agree_min, bcast_bytes};
use crate::open::agent::{Agent, dies_with_ranks, recall};
use crate::open::agreements::{agree_on_counter, agree_on_recipe, leave_out_global};
use crate::open::connect::{LeadRoute, NodeSide, connect, node_address};
use crate::open::environment::Environment;
use crate::open::facts::exchange_facts;
use crate::open::link::Link;
use crate::open::peers::Peers;
use crate::open::recalled::Recalled;
use crate::open::reopen::Reopen;
use crate::open::start::{Start, prepare_start, server_roots};
use crate::open::threads::Threads;
use crate::options::{AgentKind, Numa, Options};
use crate::trigger::Trigger;
use orcheck_engine::commit::{ControlShared, Links};
use orcheck_engine::directory::Places;
use orcheck_engine::directory::epoch::{Claimant, claim};
use orcheck_engine::encoding::{Recipe, Trust};
use orcheck_engine::host::{Host, HostPlan, server_names};
use orcheck_engine::node::{Index, IndexShape, Layout, POOL_OF_RANK, Patience, pool_chunks};
use orcheck_engine::replicas::KeptReplicas;
use orcheck_format::sabotage::{Switch, off};
use orcheck_format::{Epoch, Error, JobName, NodeId, Rank, Result, count};
use orcheck_io::disk::Dir;
use orcheck_io::machine::{cpuset, effective_uid, group_id, memory, online_processors};
use orcheck_net::{Conn, Listener};
use orcheck_pool::{Gate, Gates, HugePages, Pool, PoolShape, check_choice, own_nodes};
use std::sync::Arc;
use std::time::Duration;

/// Longest wait for the other nodes when a session is opened again.
const REOPEN_TIMEOUT: Duration = Duration::from_secs(10);

/// An open session, before the program has protected anything.
pub(crate) struct Opened {
    pub job: JobName,
    /// The options of the program, without the directories that are gone.
    pub options: Options,
    pub link: Link,
    pub trigger: Trigger,
    /// What the agent of this node kept of an earlier run.
    pub memory: Recalled,
    pub notes: Vec<String>,
}

/// Opens a session, or opens it again after an agent has ended. Collective.
pub(crate) fn open(
    agreed: (JobName, Options),
    collective: &mut dyn Collective,
    environment: &Environment,
    mut again: Option<&mut Reopen>,
) -> Result<Opened> {
    let mut ranks = Ranks::meet(agreed, collective, environment)?;
    let mut found = Found::look(&mut ranks, collective, again.as_deref_mut())?;
    let memory = match &again {
        None => ranks.recall(),
        // It continues from what it has itself.
        Some(_) => Recalled::default(),
    };
    let mut led = Led::by_root(&ranks, &mut found, collective, again)?;
    let mut owned = Owned::claim(&ranks, &mut found, &led, collective)?;
    let joined = Joined::join(&ranks, &mut found, &mut led, &mut owned, collective)?;
    start(ranks, found, led, owned, (joined, memory), collective)
}

/// Stage 1: where the ranks are, and with which keys.
struct Ranks<'a> {
    environment: &'a Environment,
    job: JobName,
    options: Options,
    layout: Layout,
    rank: Rank,
    node: NodeId,
    leads_node: bool,
    leads_job: bool,
    recipe: Recipe,
    trust: Arc<Trust>,
}

impl<'a> Ranks<'a> {
    fn meet(
        (job, options): (JobName, Options),
        collective: &mut dyn Collective,
        environment: &'a Environment,
    ) -> Result<Self> {
        let rank = collective.rank();
        let layout = exchange_facts(collective, &options)?;
        let (recipe, trust) = agree_on_recipe(collective, &job, &options)?;
        Ok(Self {
            environment,
            node: layout.node_of(rank),
            leads_node: layout.leads_node(rank),
            leads_job: rank == Rank(0),
            job,
            options,
            layout,
            rank,
            recipe,
            trust,
        })
    }

    fn node_name(&self) -> &str {
        &self.layout.nodes[self.node.index()].name
    }

    /// The result of `work` on the lowest rank of each node, `None` on the others. Collective.
    fn on_node_leads<T>(
        &self,
        collective: &mut dyn Collective,
        work: impl FnOnce() -> Result<T>,
    ) -> Result<Option<T>> {
        let local = self.leads_node.then(work).transpose();
        agree(collective, local)
    }

    /// Asks for memory of an earlier run, unless this one begins from nothing. Call this once the
    /// agents have finished with older runs.
    fn recall(&self) -> Recalled {
        let options = &self.options;
        if options.agent == AgentKind::Off || options.fresh {
            return Recalled::default();
        }
        let ask = recall(&self.job, self.node_name(), options, self.environment);
        Recalled::start(self.rank, ask)
    }

    /// Opens the directories; with `create`, also creates those of the job.
    fn open_places(&self, create: bool) -> Result<Places> {
        let group = self.options.group.as_deref().map(group_id).transpose();
        let group = group.map_err(|error| error.at("option group"))?;
        Places::open_shared(
            &self.job,
            self.node_name(),
            (self.options.node_dir.as_ref(), &self.options.global),
            &self.environment.failpoints,
            (create, group),
        )
    }
}

/// Stage 2: what exists.
struct Found {
    places: Places,
    agent: Option<Agent>,
    /// The pool of the previous session, after an agent has ended.
    kept_pool: Option<Arc<Pool>>,
    /// Directories in which this rank claims the epoch.
    claim_dirs: Vec<Arc<dyn Dir>>,
    /// The counter that this run may claim.
    counter: u64,
    notes: Vec<String>,
}

impl Found {
    fn look(
        ranks: &mut Ranks<'_>,
        collective: &mut dyn Collective,
        mut again: Option<&mut Reopen>,
    ) -> Result<Self> {
        // Node leads create the directories; the others open existing ones.
        let made = ranks.on_node_leads(collective, || ranks.open_places(true))?;
        let places = made.map_or_else(|| ranks.open_places(false), Ok);
        let mut places = agree(collective, places)?;
        places.trust = Arc::clone(&ranks.trust);
        let mut notes = places.notes.clone();

        // A run takes over nothing from itself, and waits for its own agents.
        let mut looking = ranks.options.clone();
        if again.is_some() {
            looking.take_over = false;
            looking.take_over_wait_s = ranks.options.timeout_s;
        }
        // Before looking for a holder of the job: an agent may still be flushing what an older run
        // left.
        let patience = (again.as_ref()).map_or(Duration::ZERO, |again| again.patience);
        let environment = ranks.environment;
        let world = (&environment.failpoints, environment.clock.as_ref());
        if looking.agent != AgentKind::Off {
            // Breaks if: it is left out; agents whose runs need one that does not answer would let
            // their ranks wait as long as for one that is slow.
            ranks.on_node_leads(collective, || {
                Agent::answers(&ranks.job, ranks.node_name(), &looking, world)
            })?;
        }
        let agent = ranks.on_node_leads(collective, || {
            Agent::find(&ranks.job, ranks.node_name(), &looking, world, patience)
        })?;
        leave_out_global(collective, &mut places, &mut ranks.options, &mut notes)?;
        if let Some(again) = &mut again {
            again.take_over_pool(collective, &ranks.layout)?;
        }
        if ranks.leads_job && dies_with_ranks(&ranks.options) {
            notes.push("the agents were started by ranks of a Slurm step and end with it: level process is not offered; start `orcheck agent` in a step of its own and set agent = \"join\"".to_owned());
        }
        let claim_dirs = claim_dirs(&places, ranks.leads_node, ranks.leads_job);
        let job = (&ranks.job, &*places.trust);
        let clock = ranks.environment.clock.as_ref();
        let counter = agree_on_counter(collective, &claim_dirs, &looking, job, clock)?;
        Ok(Self {
            places,
            agent: agent.flatten(),
            kept_pool: again.map(|again| Arc::clone(&again.pool)),
            claim_dirs,
            counter,
            notes,
        })
    }
}

/// Stage 3: the lead, and how to reach it.
struct Led {
    start: Start,
    epoch: Epoch,
    /// On rank 0: where the other nodes connect.
    listeners: Vec<Listener>,
    /// The other nodes, at level `peers`.
    peers: Option<Peers>,
}

impl Led {
    fn by_root(
        ranks: &Ranks<'_>,
        found: &mut Found,
        collective: &mut dyn Collective,
        again: Option<&mut Reopen>,
    ) -> Result<Self> {
        let counter = found.counter;
        if let Some(again) = again {
            // Breaks if: it continues all the same; what another run committed meanwhile would be
            // superseded.
            if counter != again.counter + 1 && !off(Switch::NobodyBetween) {
                let text = format!(
                    "another run of the job began while this one was without an agent: epoch {} was given",
                    counter - 1
                );
                let next = "end this one; the other one continues the job";
                return Err(Error::fenced(text).next(next));
            }
            again.counter = counter;
        }
        let (options, layout) = (&ranks.options, &ranks.layout);
        let nodes = layout.node_names();
        // A directory that one node does not see takes no containers from any.
        let places = found.places.servers.iter();
        let mut seen: Vec<i64> = places.map(|dir| i64::from(dir.is_some())).collect();
        agree_min(collective, Ok(()), &mut seen)?;
        let seen: Vec<bool> = seen.into_iter().map(|seen| seen != 0).collect();
        let prepared = ranks.leads_job.then(|| {
            let places = (&found.places, &seen[..]);
            prepare_start(&ranks.job, options, layout, places, &mut found.notes)
        });
        let prepared = agree(collective, prepared.transpose())?;
        let (listeners, bytes) =
            prepared.map_or_else(Default::default, |(l, s)| (l, s.encode(&nodes)));
        let bytes = bcast_bytes(collective, bytes, 0)?;
        let servers = server_names(&server_roots(options));
        let mut start = agree(collective, Start::decode(&bytes, &nodes, &servers))?;
        start.key.encrypt = options.net_encrypt;
        let epoch = Epoch {
            counter,
            run: start.run,
        };
        let peers = Peers::meet(collective, layout, options, &start)?;
        let nodes = layout.nodes.len();
        if let Some(scheme) = options.protect
            && nodes < usize::from(scheme.members)
            && ranks.leads_job
        {
            found.notes.push(format!(
                "protect = '{scheme}', and the job has {}: they form one group, which survives as many losses and stores more",
                count(nodes as u64, "node")
            ));
        }
        found.places.losses = options.peers;
        Ok(Self {
            start,
            epoch,
            listeners,
            peers,
        })
    }
}

/// Stage 4: what a node owns, on its lowest rank: its claims and its pool.
struct Owned {
    shape: IndexShape,
    side: Option<NodeSide>,
}

impl Owned {
    fn claim(
        ranks: &Ranks<'_>,
        found: &mut Found,
        led: &Led,
        collective: &mut dyn Collective,
    ) -> Result<Self> {
        let shape = IndexShape::of(&ranks.layout.nodes[ranks.node.index()]);
        let mut claim_here = || node_side(ranks, found, &led.start, shape).map(Some);
        // The lead first: of two simultaneous runs, one gets its directories and thereby the job,
        // and the other has claimed nothing elsewhere. Breaks if: all nodes claim at once; each run
        // may lose somewhere to the other.
        let first = ranks.leads_job || ranks.leads_node && off(Switch::LeadFirst);
        let claimed = if first { claim_here() } else { Ok(None) };
        let claimed = agree(collective, claimed)?;
        let others = ranks.leads_node && !first;
        let side = if others { claim_here() } else { Ok(claimed) };
        let mut side = agree(collective, side)?;
        if let Some(side) = &mut side {
            found.notes.append(&mut side.held.notes);
        }
        Ok(Self { shape, side })
    }
}

/// Stage 5: the connections that need no collective.
struct Joined {
    pool: Arc<Pool>,
    gates: Arc<Gates>,
    pool_of_rank: Option<Gate>,
    /// This rank's connection to its node's control thread.
    own: Conn,
    /// On a node's lowest rank: the connections of that thread.
    links: Option<Links>,
}

impl Joined {
    fn join(
        ranks: &Ranks<'_>,
        found: &mut Found,
        led: &mut Led,
        owned: &mut Owned,
        collective: &mut dyn Collective,
    ) -> Result<Self> {
        let (rank, layout, options) = (ranks.rank, &ranks.layout, &ranks.options);
        let recalled = match (&mut led.peers, &found.places.node) {
            (Some(peers), Some(dir)) if ranks.leads_node => {
                let run = (&ranks.job, led.epoch);
                peers.recall(dir.as_ref(), run, &found.places.trust, &mut found.notes)
            }
            _ => Ok(()),
        };
        let listeners = std::mem::take(&mut led.listeners);
        let mut way = LeadRoute::find(collective, layout, options, &led.start, listeners)?;
        if found.kept_pool.is_some() {
            // All of these nodes existed before: one that does not come now is cut off.
            way.patience = REOPEN_TIMEOUT;
        }
        let side = owned.side.as_mut();
        let connected = connect(rank, layout, side, way, &led.start, ranks.environment);
        let (pool, own, links) = agree(collective, recalled.and(connected))?;
        // It is the same memory, and the program's own part lies in the mapping that it knows.
        let pool = found.kept_pool.take().unwrap_or(pool);
        let gates = agree(collective, open_gates(&pool, options))?;
        let (gates, pool_of_rank) = gates;
        let local = layout.local_index(rank);
        let placed = prepare_memory(&pool, owned.shape, local, options);
        found.notes.extend(placed);
        agree(collective, check_choice())?;
        Ok(Self {
            pool,
            gates,
            pool_of_rank,
            own,
            links,
        })
    }
}

/// The last stage: threads are started, and the claims are confirmed.
fn start(
    ranks: Ranks<'_>,
    mut found: Found,
    mut led: Led,
    mut owned: Owned,
    (joined, memory): (Joined, Recalled),
    collective: &mut dyn Collective,
) -> Result<Opened> {
    let places = &found.places;
    let holds_replicas = led.peers.is_some();
    let host = Host {
        plan: host_plan(&ranks, led.epoch, led.peers.as_ref()),
        pool: Arc::clone(&joined.pool),
        shape: owned.shape,
        places: places.clone(),
        room: (places.node.clone().filter(|_| holds_replicas))
            .map(|dir| Arc::new(KeptReplicas::on_disk(dir))),
        gates: Arc::clone(&joined.gates),
        shared: Arc::new(ControlShared::default()),
        clock: Arc::clone(&ranks.environment.clock),
        failpoints: ranks.environment.failpoints.clone(),
        outlives: false,
        remembered: None,
    };
    let ways = (joined.own, joined.links);
    let threads = start_threads(&ranks, &mut found, &mut led, &mut owned, ways, &host);
    let started = threads.and_then(|threads| Ok((threads, new_trigger(&ranks)?)));
    let (threads, trigger) = agree(collective, started)?;
    let mut claim = owned.side.map(|side| side.held);
    if let Some(claim) = &mut claim {
        claim.confirm();
    }
    let patience = Patience {
        pool: Arc::clone(&joined.pool),
        shape: owned.shape,
        gates: Arc::clone(&joined.gates),
        stop: Arc::clone(&threads.flush_stop),
    };
    let link = Link {
        layout: ranks.layout,
        epoch: led.epoch,
        places: found.places,
        pool: joined.pool,
        shape: owned.shape,
        shared: Arc::clone(&host.shared),
        threads: Some(threads),
        claim,
        gates: joined.gates,
        _pool_of_rank: joined.pool_of_rank,
        encoded: !ranks.recipe.is_plain(),
        peers: led.peers,
        host,
        patience,
    };
    Ok(Opened {
        job: ranks.job,
        options: ranks.options,
        link,
        trigger,
        memory,
        notes: found.notes,
    })
}

/// Starts the threads of this rank or, on a node whose agent has them, what remains here.
fn start_threads(
    ranks: &Ranks<'_>,
    found: &mut Found,
    led: &mut Led,
    owned: &mut Owned,
    (own, links): (Conn, Option<Links>),
    host: &Host,
) -> Result<Threads> {
    let peers = led.peers.as_mut();
    let doors = peers.map_or_else(Vec::new, |peers| std::mem::take(&mut peers.doors));
    if ranks.options.agent == AgentKind::Off {
        let placement = led.start.placement.take();
        let links = links.filter(|_| owned.side.is_some());
        return Threads::start(host, ranks.rank, own, links, doors, placement);
    }
    let Some((side, links)) = owned.side.as_mut().zip(links) else {
        return Ok(Threads::elsewhere(host, ranks.rank, own, None));
    };
    let agent = found.agent.take();
    let mut agent = agent.ok_or_else(|| Error::internal("no agent was found"))?;
    let placement = led.start.placement.as_ref();
    agent.hand_over(host, side, links, doors, placement, &mut found.notes)?;
    Ok(Threads::elsewhere(host, ranks.rank, own, Some(agent)))
}

/// What the threads of a node must know, wherever they run.
fn host_plan(ranks: &Ranks<'_>, epoch: Epoch, peers: Option<&Peers>) -> HostPlan {
    let (options, layout, node) = (&ranks.options, &ranks.layout, ranks.node);
    HostPlan {
        job: ranks.job.clone(),
        epoch,
        layout: layout.clone(),
        node,
        servers: server_roots(options),
        node_root: (options.node_dir.as_ref())
            .map_or_else(String::new, |dir| dir.display().to_string()),
        keep: options.keep,
        mode: options.mode,
        direct: options.direct,
        pin: options.pin,
        incremental: options.incremental_chain.is_some(),
        timeout: Duration::from_secs_f64(options.timeout_s),
        fan_out: options.fan_out,
        recipe: ranks.recipe.clone(),
        replication: peers.map(|peers| peers.replication(options, layout.nodes_on_host_of(node))),
    }
}

/// Creates the triggers. Ranks that are bound to processors compute on as many as all of them have
/// together.
fn new_trigger(ranks: &Ranks<'_>) -> Result<Trigger> {
    let of_node = ranks.layout.nodes[ranks.node.index()].ranks.len();
    let processors = (of_node * cpuset().len()).min(online_processors());
    let machine = (ranks.layout.nodes.len(), processors);
    let clock = Arc::clone(&ranks.environment.clock);
    Trigger::new(&ranks.options, machine, clock)
}

/// Directories in which this rank claims the epoch.
fn claim_dirs(places: &Places, leads_node: bool, leads_job: bool) -> Vec<Arc<dyn Dir>> {
    let mut dirs = Vec::new();
    if leads_job {
        dirs.extend(places.servers.iter().flatten().cloned());
    }
    if leads_node {
        dirs.extend(places.node.clone());
    }
    dirs
}

/// Claims the epoch in this rank's directories, and creates the node's pool unless it exists.
fn node_side(
    ranks: &Ranks<'_>,
    found: &mut Found,
    start: &Start,
    shape: IndexShape,
) -> Result<NodeSide> {
    let (options, layout, node) = (&ranks.options, &ranks.layout, ranks.node);
    let claimant = Claimant {
        job: ranks.job.clone(),
        run: start.run,
        host: start.host.clone(),
        pid: start.pid,
        uid: effective_uid(),
        world_size: layout.world_size(),
        nodes: layout.node_names(),
        trust: Arc::clone(&found.places.trust),
    };
    let clock = ranks.environment.clock.as_ref();
    let (claim_dirs, counter) = (&found.claim_dirs, found.counter);
    let claim = || claim(claim_dirs, &claimant, counter, clock);
    let listener = Listener::bind(&node_address(start.run, node))?;
    if let Some(pool) = &found.kept_pool {
        return Ok(NodeSide {
            held: claim()?,
            pool: Arc::clone(pool),
            listener: Some(listener),
        });
    }
    let nodes_here = layout.nodes_on_host_of(node);
    let chunks = || {
        let (pool_bytes, chunk_bytes) = (options.pool_bytes, options.chunk_bytes);
        pool_chunks(pool_bytes, chunk_bytes, &memory()?, nodes_here)
    };
    let chunk_count = match (chunks(), &mut found.agent) {
        // Breaks if: the agent is not asked; memory of an earlier run would be in the way of a pool
        // that had room before.
        (Err(_), Some(agent)) => {
            agent.make_room();
            chunks()?
        }
        (chunks, _) => chunks?,
    };
    // If containers are encoded or the pool is checked, pieces are announced as well as segments.
    let announces_pieces = !ranks.recipe.is_plain() || options.checks_pool();
    let entries_per_chunk = if announces_pieces { 4 } else { 2 };
    let pool_shape = PoolShape {
        chunk_bytes: options.chunk_bytes,
        chunk_count,
        words: shape.words(),
        rings: shape.ranks,
        ring_entries: (entries_per_chunk * chunk_count).clamp(64, 1 << 16),
    };
    let pool = Pool::create_of(pool_shape, options.huge_pages)?;
    let mut held = claim()?;
    held.notes.extend(missing_reserve(&pool, options));
    Ok(NodeSide {
        held,
        pool: Arc::new(pool),
        listener: Some(listener),
    })
}

/// The note for the case that the machine's reserve does not provide the requested huge pages.
fn missing_reserve(pool: &Pool, options: &Options) -> Option<String> {
    let page_bytes = pool.page_bytes();
    (options.huge_pages == HugePages::Reserved && page_bytes < 1 << 20).then(|| {
        format!(
            "huge_pages = 'reserved': the pool of {} bytes got pages of {page_bytes} bytes, because the machine's reserve of 2 MiB pages does not hold it, or chunk is not a multiple of 2 MiB; see HugePages_Free in /proc/meminfo",
            pool.shape().len_bytes()
        )
    })
}

/// Opens the gates of the pool; with agents, also shares the one that says that this rank may write
/// into the pool.
fn open_gates(pool: &Pool, options: &Options) -> Result<(Arc<Gates>, Option<Gate>)> {
    let gates = Arc::new(Gates::open(pool)?);
    let shared = (options.agent != AgentKind::Off)
        .then(|| gates.share(POOL_OF_RANK, REOPEN_TIMEOUT))
        .transpose()?;
    Ok((gates, shared))
}

/// Requests this rank's part of the pool near its processors, with large pages if configured.
fn prepare_memory(pool: &Pool, shape: IndexShape, local: u32, options: &Options) -> Option<String> {
    pool.prefer_huge(options.huge_pages);
    let nodes = match options.numa {
        Numa::Auto => own_nodes(),
        Numa::Off => return None,
    };
    let (index, chunk_count) = (Index::new(pool, shape), pool.shape().chunk_count);
    let first = index.first_chunk(local, chunk_count);
    let end = index.first_chunk(local + 1, chunk_count);
    let placed = pool.place(first, end.saturating_sub(first), nodes);
    placed.err().map(|error| {
        format!("the pool is not placed near this rank ({error}); only speed can suffer")
    })
}
