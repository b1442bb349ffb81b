//! Opening a session: from separate ranks to nodes that share a pool and reach the lead.
//!
//! ```text
//! facts ─gather─▶ root ─bcast─▶ layout (same on all)      1 who is where
//! directories opened; older runs waited for               2 what is there
//! root: run id, key, addresses, placement ─bcast─▶ all    3 who leads
//! node leads claim the epoch, create the pool, listen     4 what a node owns
//! ranks connect to their node, get the pool;              5 the paths that need no collective
//! nodes connect to the lead; threads start
//! ```
//!
//! Invariants:
//! 1. Every stage ends in an agreement: an error anywhere is an error everywhere, nobody waits.
//! 2. The job key and the addresses travel through the collective only.
//! 3. What is created before an error is gone after it (sockets are abstract, the pool is
//!    anonymous memory, claims are withdrawn).
//!
//! Not here: the session afterwards (`session.rs`).

use crate::agree::{agree, agree_min, bcast_bytes};
use crate::collective::Collective;
use crate::options::{Balance, NetKind, Options};
use crate::session::Environment;
use crate::trigger::Trigger;
use orcheck_engine::budget::pool_chunks;
use orcheck_engine::catalog::Catalog;
use orcheck_engine::control::{Control, ControlContext, ControlShared, Links};
use orcheck_engine::epoch::{Claimant, Held, claim, highest_counter, wait_for_holder};
use orcheck_engine::flush::{FlushContext, Flusher};
use orcheck_engine::index::{Index, IndexShape, MAX_LANES};
use orcheck_engine::layout::{Layout, Mode, RankFacts};
use orcheck_engine::places::Places;
use orcheck_engine::protocol::JobFacts;
use orcheck_format::crc::crc64;
use orcheck_format::error::{Error, Result};
use orcheck_format::ids::{Epoch, JobName, RunId};
use orcheck_format::wire::Message;
use orcheck_io::clock::Clock;
use orcheck_io::conn::Conn;
use orcheck_io::dir::Dir;
use orcheck_io::gate::Gates;
use orcheck_io::environment::read_text;
use orcheck_io::machine::{cpu_socket, cpuset, memory, pin_current_thread, sibling_of};
use orcheck_io::net::{Address, Key, Listener, effective_uid, host_name, local_addresses, process_id};
use orcheck_io::poll::{Poller, Waker};
use orcheck_io::pool::{Pool, PoolShape};
use orcheck_io::rng::random_bytes;
use orcheck_io::thread::spawn;
use orcheck_plan::Placement;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Longest wait for a connection inside `open`.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(60);
/// Longest node and host name that travels.
const NAME_BYTES: usize = 64;
const FACT_BYTES: usize = 2 * NAME_BYTES + 16;
/// Largest mapping file.
const MAPPING_LIMIT_BYTES: u64 = 16 << 20;

/// The threads of this rank. Dropping it tells them to end, without waiting for them.
pub(crate) struct Threads {
    /// Control thread of the node, on its lowest rank.
    pub control: Option<(JoinHandle<Result<()>>, Waker)>,
    /// CP-thread of a writer, on its lowest rank.
    pub flusher: Option<JoinHandle<Result<()>>>,
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
        if let Some((_, waker)) = &self.control {
            waker.wake();
        }
    }
}

/// What a session is made of.
pub(crate) struct Opened {
    pub job: JobName,
    pub layout: Layout,
    pub epoch: Epoch,
    pub places: Places,
    pub pool: Arc<Pool>,
    pub shape: IndexShape,
    pub shared: Arc<ControlShared>,
    pub threads: Threads,
    pub held: Option<Held>,
    pub notes: Vec<String>,
    pub gates: Gates,
    pub trigger: Trigger,
}

/// What the root tells everybody.
struct Start {
    run: RunId,
    key: Key,
    addresses: Vec<Address>,
    placement: Option<Placement>,
    host: String,
    pid: u32,
}

/// What a node's lowest rank holds while the others connect.
struct NodeSide {
    held: Held,
    pool: Arc<Pool>,
    listener: Listener,
}

pub(crate) fn open(
    job: &str,
    collective: &mut dyn Collective,
    options: Result<Options>,
    environment: &Environment,
) -> Result<(Opened, Options)> {
    let rank = collective.rank();
    let local = options.and_then(|options| Ok((JobName::new(job)?, options)));
    let (job, options) = agree(collective, local)?;
    let layout = exchange_facts(collective, &options)?;
    let node = layout.node_of(rank);
    let leads_node = layout.leads_node(rank);
    let leads_job = rank == 0;

    // Node leads make the directories, the others open what is there.
    let open_places = |create| {
        Places::open(
            &job,
            &layout.nodes[node as usize].name,
            options.node_dir.as_ref(),
            &options.global,
            &environment.steps,
            create,
        )
    };
    let made = agree(collective, if leads_node { open_places(true).map(Some) } else { Ok(None) })?;
    let places = agree(collective, made.map_or_else(|| open_places(false), Ok))?;
    let mut notes = places.notes.clone();

    let claimed_in: Vec<Arc<dyn Dir>> = claim_dirs(&places, leads_node, leads_job);
    let clock = environment.clock.as_ref();
    let counter = agree_on_counter(collective, &claimed_in, &options, clock)?;

    let nodes = layout.node_names();
    let (listeners, start) = {
        let prepared = if leads_job {
            prepare_start(&job, &options, &layout, &places, &mut notes).map(Some)
        } else {
            Ok(None)
        };
        let prepared = agree(collective, prepared)?;
        let (listeners, bytes) = prepared.map_or_else(|| (Vec::new(), Vec::new()), |(l, s)| (l, s.encode(&nodes)));
        let bytes = bcast_bytes(collective, bytes, 0)?;
        let servers = server_names(&options);
        let start = agree(collective, Start::decode(&bytes, &nodes, &servers))?;
        (listeners, start)
    };
    let epoch = Epoch { counter, run: start.run };

    let shape = IndexShape {
        ranks: layout.nodes[node as usize].ranks.len() as u32,
        writers: layout.nodes[node as usize].writers.len() as u32,
    };
    let side = if leads_node {
        let claimant = Claimant {
            job: job.clone(),
            run: start.run,
            host: start.host.clone(),
            pid: start.pid,
            uid: effective_uid(),
            world_size: layout.world_size(),
            nodes: nodes.clone(),
        };
        node_side(&claimed_in, &claimant, counter, &options, &layout, node, shape, clock).map(Some)
    } else {
        Ok(None)
    };
    let mut side = agree(collective, side)?;
    if let Some(side) = &mut side {
        notes.append(&mut side.held.notes);
    }

    let connected = connect(rank, &layout, side.as_ref(), listeners, &start, environment);
    let (pool, own, links) = agree(collective, connected)?;

    let shared = Arc::new(ControlShared::default());
    let context = ThreadContext {
        job: &job,
        epoch,
        layout: &layout,
        rank,
        places: &places,
        pool: &pool,
        shape,
        options: &options,
        environment,
        shared: &shared,
        placement: start.placement,
    };
    let rest = context.start(own, links).and_then(|threads| {
        let trigger = Trigger::new(&options, Arc::clone(&environment.clock))?;
        Ok((threads, Gates::open(&pool)?, trigger))
    });
    let (threads, gates, trigger) = agree(collective, rest)?;
    let held = side.map(|side| side.held);
    let opened =
        Opened { job, layout, epoch, places, pool, shape, shared, threads, held, notes, gates, trigger };
    Ok((opened, options))
}

/// Everybody learns who is where; ranks with other options are found out.
fn exchange_facts(collective: &mut dyn Collective, options: &Options) -> Result<Layout> {
    let mut common = options.clone();
    common.node_name = None;
    common.given.clear();
    let digest = crc64(format!("{common:?}").as_bytes());
    let host = host_name();
    let fact = RankFacts {
        node: options.node_name.clone().unwrap_or_else(|| host.clone()),
        host,
        socket: cpuset().first().map_or(0, |&cpu| cpu_socket(cpu)),
    };
    let encoded = agree(collective, encode_fact(&fact, digest))?;
    let table = collective.gather(&encoded, 0)?;
    let table = bcast_bytes(collective, table.unwrap_or_default(), 0)?;
    let decoded = decode_facts(&table, collective.size());
    let (facts, digests) = agree(collective, decoded)?;
    if let Some(other) = digests.iter().position(|&d| d != digests[0]) {
        return Err(name_difference(collective, options, other as u32)?);
    }
    let layout = {
        let mut nodes: Vec<&str> = facts.iter().map(|fact| fact.node.as_str()).collect();
        nodes.sort_unstable();
        nodes.dedup();
        let lanes = lanes_per_node(options, nodes.len());
        Layout::new(&facts, options.mode, options.scheme, lanes)
    };
    agree(collective, layout)
}

/// The error, the same on all ranks, that says in what the options of rank `other` differ from
/// those of rank 0.
fn name_difference(collective: &mut dyn Collective, options: &Options, other: u32) -> Result<Error> {
    let mine = &options.given;
    let text = bcast_bytes(collective, mine.to_string().into_bytes(), 0)?;
    let first: toml::Table = String::from_utf8_lossy(&text).parse().unwrap_or_default();
    let shown = |value: Option<&toml::Value>| value.map_or_else(|| "not set".to_owned(), ToString::to_string);
    let names: BTreeSet<&String> = first.keys().chain(mine.keys()).filter(|name| *name != "node_name").collect();
    let differ: Vec<String> = names
        .into_iter()
        .filter(|name| first.get(*name) != mine.get(*name))
        .map(|name| format!("{name} is {} there and {} on rank 0", shown(mine.get(name)), shown(first.get(name))))
        .collect();
    let text = bcast_bytes(collective, differ.join(", ").into_bytes(), other)?;
    Ok(Error::invalid(format!(
        "rank {other} was opened with other options than rank 0: {}",
        String::from_utf8_lossy(&text)
    ))
    .next("pass the same options and ORCHECK_ variables to all ranks; only ORCHECK_NODE may differ"))
}

fn lanes_per_node(options: &Options, nodes: usize) -> u32 {
    let servers = options.global.len();
    options
        .lanes_per_node
        .unwrap_or((servers / nodes.max(1)).max(1) as u32)
        .min(servers.max(1) as u32)
        .min(MAX_LANES)
}

fn encode_fact(fact: &RankFacts, digest: u64) -> Result<Vec<u8>> {
    let mut bytes = vec![0; FACT_BYTES];
    for (name, at) in [(&fact.node, 0), (&fact.host, NAME_BYTES)] {
        let allowed = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        if name.is_empty() || name.len() >= NAME_BYTES || !name.chars().all(allowed) || name.starts_with('.') {
            return Err(Error::invalid(format!(
                "node name '{}': allowed are 1 to {} letters, digits, '.', '_' and '-', not beginning with '.'",
                name.escape_debug(),
                NAME_BYTES - 1
            ))
            .next("set ORCHECK_NODE"));
        }
        bytes[at..at + name.len()].copy_from_slice(name.as_bytes());
    }
    bytes[2 * NAME_BYTES..2 * NAME_BYTES + 8].copy_from_slice(&digest.to_le_bytes());
    bytes[2 * NAME_BYTES + 8..2 * NAME_BYTES + 12].copy_from_slice(&fact.socket.to_le_bytes());
    Ok(bytes)
}

fn decode_facts(table: &[u8], size: u32) -> Result<(Vec<RankFacts>, Vec<u64>)> {
    if table.len() != size as usize * FACT_BYTES {
        return Err(Error::internal(format!(
            "the collective gathered {} bytes from {size} ranks, expected {}",
            table.len(),
            size as usize * FACT_BYTES
        )));
    }
    let text = |bytes: &[u8]| {
        let len = bytes.iter().position(|&b| b == 0).unwrap_or(bytes.len());
        String::from_utf8_lossy(&bytes[..len]).into_owned()
    };
    let facts = table
        .chunks_exact(FACT_BYTES)
        .map(|fact| {
            let number = |at: usize| fact[at..at + 8].iter().rev().fold(0u64, |n, &b| n << 8 | u64::from(b));
            let facts = RankFacts {
                node: text(&fact[..NAME_BYTES]),
                host: text(&fact[NAME_BYTES..2 * NAME_BYTES]),
                socket: number(2 * NAME_BYTES + 8) as u32,
            };
            (facts, number(2 * NAME_BYTES))
        })
        .unzip();
    Ok(facts)
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

fn agree_on_counter(
    collective: &mut dyn Collective,
    dirs: &[Arc<dyn Dir>],
    options: &Options,
    clock: &dyn Clock,
) -> Result<u64> {
    let patience = Duration::from_secs_f64(options.take_over_wait_s);
    let free = if options.take_over { Ok(()) } else { wait_for_holder(dirs, patience, clock) };
    let highest = free.and_then(|()| highest_counter(dirs));
    let mut value = [-(highest.as_ref().map_or(0, |&counter| counter as i64))];
    agree_min(collective, highest, &mut value)?;
    Ok(value[0].unsigned_abs() + 1)
}

fn server_names(options: &Options) -> Vec<String> {
    options.global.iter().map(|root| root.display().to_string()).collect()
}

fn prepare_start(
    job: &JobName,
    options: &Options,
    layout: &Layout,
    places: &Places,
    notes: &mut Vec<String>,
) -> Result<(Vec<Listener>, Start)> {
    let run = RunId(random_bytes());
    let hosts: BTreeSet<&str> =
        layout.nodes.iter().map(|node| node.host.as_str()).collect();
    let mut listeners = Vec::new();
    let mut addresses = Vec::new();
    if layout.nodes.len() > 1 {
        if options.net == NetKind::Auto {
            let listener = Listener::bind(&Address::Abstract(format!("orcheck-{run}-lead")))?;
            addresses.push(listener.address());
            listeners.push(listener);
        }
        if hosts.len() > 1 || options.net == NetKind::Tcp {
            // One socket for all addresses when they are reached from elsewhere.
            let at = if hosts.len() > 1 { [0, 0, 0, 0] } else { [127, 0, 0, 1] };
            let listener = Listener::bind(&Address::Tcp(SocketAddr::from((at, 0))))?;
            if let Address::Tcp(bound) = listener.address() {
                if hosts.len() > 1 {
                    let all = local_addresses()?;
                    addresses.extend(all.into_iter().map(|ip| Address::Tcp(SocketAddr::new(ip, bound.port()))));
                } else {
                    addresses.push(Address::Tcp(bound));
                }
            }
            listeners.push(listener);
        }
    }
    let placement = first_placement(job, options, layout, places)?;
    if let (Some(path), Some(placement)) = (&options.mapping, &placement) {
        for (node, lanes) in layout.nodes.iter().zip(&placement.lanes) {
            if lanes.len() > node.writers.len() {
                notes.push(format!(
                    "mapping file {} gives node '{}' {} directories, but it has {} CP-threads and uses as many: set lanes_per_node or scheme to use all",
                    path.display(), node.name, lanes.len(), node.writers.len()
                ));
            }
        }
    }
    let start = Start {
        run,
        key: Key(random_bytes()),
        addresses,
        placement,
        host: host_name(),
        pid: process_id(),
    };
    Ok((listeners, start))
}

/// The map of this run: the user's file, or by the sizes of the newest checkpoint, or balanced;
/// directories that are gone are left out.
fn first_placement(
    job: &JobName,
    options: &Options,
    layout: &Layout,
    places: &Places,
) -> Result<Option<Placement>> {
    if options.global.is_empty() {
        return Ok(None);
    }
    let nodes = layout.node_names();
    let servers = server_names(options);
    let lanes = Some(lanes_per_node(options, nodes.len()));
    let mut placement = if let Some(path) = &options.mapping {
        let text = read_text(path, MAPPING_LIMIT_BYTES)?;
        Placement::from_toml(&text, &nodes, &servers)
            .map_err(|error| error.at(format!("mapping file {}", path.display())))?
    } else {
        match options.placement {
            Balance::Balanced => Placement::balanced(&nodes, &servers, lanes)?,
            Balance::Weighted => match last_sizes(job, &nodes, places)? {
                Some(sizes) => Placement::weighted(&nodes, &sizes, &servers, lanes)?,
                None => Placement::balanced(&nodes, &servers, lanes)?,
            },
        }
    };
    for (number, server) in places.servers.iter().enumerate() {
        if server.is_none() {
            placement = placement.without(number as u32, &nodes)?;
        }
    }
    Ok(Some(placement))
}

/// Bytes of each node's containers in the newest checkpoint.
fn last_sizes(job: &JobName, nodes: &[String], places: &Places) -> Result<Option<Vec<u64>>> {
    let catalog = Catalog::scan(job, &places.of_level(orcheck_format::ids::Level::Global))?;
    let Some(commit) = catalog.commits().first() else { return Ok(None) };
    let record = &commit.record;
    let sizes = nodes
        .iter()
        .map(|name| {
            let held = |node: u32| record.nodes.get(node as usize) == Some(name);
            record.containers.iter().filter(|c| held(c.node)).map(|c| c.len_bytes).sum::<u64>().max(1)
        })
        .collect();
    Ok(Some(sizes))
}

impl Start {
    fn encode(&self, nodes: &[String]) -> Vec<u8> {
        let addresses: Vec<String> = self.addresses.iter().map(ToString::to_string).collect();
        let placement = self.placement.as_ref().map(|p| p.to_toml(nodes)).unwrap_or_default();
        let text = format!("{}\n{}\n{}\n{placement}", self.host, self.pid, addresses.join(" "));
        let mut bytes = self.run.0.to_vec();
        bytes.extend_from_slice(&self.key.0);
        bytes.extend_from_slice(text.as_bytes());
        bytes
    }

    fn decode(bytes: &[u8], nodes: &[String], servers: &[String]) -> Result<Self> {
        let bad = || Error::internal("the start message of rank 0 is damaged");
        let (fixed, text) = bytes.split_at_checked(48).ok_or_else(bad)?;
        let text = std::str::from_utf8(text).map_err(|_| bad())?;
        let mut parts = text.splitn(4, '\n');
        let mut part = || parts.next().ok_or_else(bad);
        let (host, pid, addresses, placement) = (part()?, part()?, part()?, part()?);
        Ok(Self {
            run: RunId(fixed[..16].try_into().map_err(|_| bad())?),
            key: Key(fixed[16..].try_into().map_err(|_| bad())?),
            addresses: addresses.split_whitespace().map(str::parse).collect::<Result<_>>()?,
            placement: if placement.is_empty() {
                None
            } else {
                Some(Placement::from_toml(placement, nodes, servers)?)
            },
            host: host.to_owned(),
            pid: pid.parse().map_err(|_| bad())?,
        })
    }
}

#[allow(clippy::too_many_arguments)]
fn node_side(
    dirs: &[Arc<dyn Dir>],
    claimant: &Claimant,
    counter: u64,
    options: &Options,
    layout: &Layout,
    node: u32,
    shape: IndexShape,
    clock: &dyn Clock,
) -> Result<NodeSide> {
    let listener = Listener::bind(&node_address(claimant.run, node))?;
    let chunk_count = pool_chunks(
        options.pool_bytes,
        options.chunk_bytes,
        &memory()?,
        layout.nodes_on_host_of(node),
    )?;
    let pool = Pool::create(PoolShape {
        chunk_bytes: options.chunk_bytes,
        chunk_count,
        words: shape.words(),
        rings: shape.ranks,
        ring_entries: (2 * chunk_count).clamp(64, 1 << 16),
    })?;
    let held = claim(dirs, claimant, counter, clock)?;
    Ok(NodeSide { held, pool: Arc::new(pool), listener })
}

fn node_address(run: RunId, node: u32) -> Address {
    Address::Abstract(format!("orcheck-{run}-n{node}"))
}

/// This rank's pool, its connection to the node's control thread, and, on a node's lowest rank,
/// the connections of that thread.
fn connect(
    rank: u32,
    layout: &Layout,
    side: Option<&NodeSide>,
    listeners: Vec<Listener>,
    start: &Start,
    environment: &Environment,
) -> Result<(Arc<Pool>, Conn, Option<Links>)> {
    let node = layout.node_of(rank);
    let steps = &environment.steps;
    let join = || -> Result<(Option<Pool>, Conn)> {
        let mut conn = Conn::connect(&node_address(start.run, node), &start.key, steps, CONNECT_TIMEOUT)
            .map_err(|error| error.at(format!("rank {rank} and the lowest rank of node '{}'", layout.nodes[node as usize].name)))?;
        conn.send(&Message::Hello { rank, node }, CONNECT_TIMEOUT)?;
        let fd = conn.receive_fd(CONNECT_TIMEOUT)?;
        // The node's lowest rank has the pool already.
        let pool = if side.is_some() { None } else { Some(Pool::attach(fd)?) };
        Ok((pool, conn))
    };
    let Some(side) = side else {
        let (pool, conn) = join()?;
        let pool = pool.ok_or_else(|| Error::internal("no pool was received"))?;
        return Ok((Arc::new(pool), conn, None));
    };
    let clock = environment.clock.as_ref();
    let ranks = layout.nodes[node as usize].ranks.len();
    let nodes = layout.nodes.len();
    std::thread::scope(|scope| {
        let accept_ranks = scope.spawn(|| {
            let accepted = accept_all(std::slice::from_ref(&side.listener), ranks, &start.key, environment);
            accepted.and_then(|mut accepted| {
                for (_, _, conn) in &mut accepted {
                    conn.send_fd(side.pool.fd(), CONNECT_TIMEOUT)?;
                }
                Ok(accepted)
            })
        });
        let accept_nodes = (rank == 0 && nodes > 1)
            .then(|| scope.spawn(|| accept_all(&listeners, nodes - 1, &start.key, environment)));
        let own = join();
        let to_lead = if rank == 0 { Ok(None) } else { reach_lead(rank, node, start, steps, clock).map(Some) };
        let panicked = |_| Error::internal("a connecting thread panicked");
        let ranks = accept_ranks.join().map_err(panicked)??;
        let nodes = accept_nodes.map_or(Ok(Ok(Vec::new())), |thread| thread.join().map_err(panicked))??;
        let links = Links {
            ranks: ranks.into_iter().map(|(rank, _, conn)| (rank, conn)).collect(),
            lead: to_lead?,
            nodes: nodes.into_iter().map(|(_, node, conn)| (node, conn)).collect(),
        };
        Ok((Arc::clone(&side.pool), own?.1, Some(links)))
    })
}

/// Accepts `expected` authenticated connections, each with its hello.
fn accept_all(
    listeners: &[Listener],
    expected: usize,
    key: &Key,
    environment: &Environment,
) -> Result<Vec<(u32, u32, Conn)>> {
    let poller = Poller::new()?;
    let clock = environment.clock.as_ref();
    let until = clock.now() + CONNECT_TIMEOUT;
    let mut accepted = Vec::new();
    while accepted.len() < expected {
        let left = until.saturating_sub(clock.now());
        if left.is_zero() {
            return Err(Error::unavailable(format!(
                "{} of {expected} expected connections came within {:.0} s",
                accepted.len(),
                CONNECT_TIMEOUT.as_secs_f64()
            ))
            .next("look for ranks that did not start, or a firewall between the nodes"));
        }
        let fds: Vec<_> = listeners.iter().map(AsFd::as_fd).collect();
        for ready in poller.wait(&fds, left)? {
            if let Some(mut conn) = listeners[ready].accept(key, &environment.steps, left)?
                && let Message::Hello { rank, node } = conn.receive(left)?
            {
                accepted.push((rank, node, conn));
            }
        }
    }
    Ok(accepted)
}

fn reach_lead(
    rank: u32,
    node: u32,
    start: &Start,
    steps: &orcheck_io::steps::Steps,
    clock: &dyn Clock,
) -> Result<Conn> {
    let until = clock.now() + CONNECT_TIMEOUT;
    let mut errors = Vec::new();
    for address in &start.addresses {
        let left = until.saturating_sub(clock.now()).min(Duration::from_secs(10));
        match Conn::connect(address, &start.key, steps, left) {
            Ok(mut conn) => {
                conn.send(&Message::Hello { rank, node }, CONNECT_TIMEOUT)?;
                return Ok(conn);
            }
            Err(error) => errors.push(error.message().to_owned()),
        }
    }
    Err(Error::unavailable(format!("rank {rank} cannot reach the lead of the job: {}", errors.join("; ")))
        .next("check that nodes reach each other over TCP"))
}

struct ThreadContext<'a> {
    job: &'a JobName,
    epoch: Epoch,
    layout: &'a Layout,
    rank: u32,
    places: &'a Places,
    pool: &'a Arc<Pool>,
    shape: IndexShape,
    options: &'a Options,
    environment: &'a Environment,
    shared: &'a Arc<ControlShared>,
    placement: Option<Placement>,
}

impl ThreadContext<'_> {
    fn start(mut self, own: Conn, links: Option<Links>) -> Result<Threads> {
        let mut threads = Threads {
            control: links.map(|links| self.start_control(links)).transpose()?,
            flusher: None,
            flush_stop: Arc::new(AtomicBool::new(false)),
            idle: Some(own),
            shared: Arc::clone(self.shared),
        };
        if let Some(writer) = self.layout.hosted_writer(self.rank)
            && let Some(conn) = threads.idle.take()
        {
            threads.flusher = Some(self.start_flusher(writer, conn, Arc::clone(&threads.flush_stop))?);
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
                node_root: self.options.node_dir.as_ref().map(|dir| dir.display().to_string()).unwrap_or_default(),
            },
            writer_hosts: writers.iter().filter_map(|ranks| ranks.first().copied()).collect(),
            writers: writers.len() as u32,
            places: self.places.clone(),
            keep: self.options.keep,
            placement,
            is_lead: self.rank == 0,
            clock: Arc::clone(&self.environment.clock),
            steps: self.environment.steps.clone(),
            shared: Arc::clone(self.shared),
        };
        let poller = Poller::new()?;
        let waker = poller.waker();
        let control = Control::new(context, links, poller);
        Ok((spawn("orcheck-control", move || control.run())?, waker))
    }

    fn start_flusher(&self, writer: u32, mut conn: Conn, stop: Arc<AtomicBool>) -> Result<JoinHandle<Result<()>>> {
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
            gate_timeout: timeout,
            clock: Arc::clone(&self.environment.clock),
            steps: self.environment.steps.clone(),
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
