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

use crate::collective::{Collective, agree, agree_min, bcast_bytes};
use crate::open::agent::{Agent, dies_with_ranks};
use crate::open::connect::{NodeSide, Way, connect, node_address};
use crate::open::environment::Environment;
use crate::open::facts::exchange_facts;
use crate::open::peers::Peers;
use crate::open::reopen::Reopen;
use crate::open::start::{Start, prepare_start, server_roots};
use crate::open::threads::Threads;
use crate::options::{AgentKind, Numa, Options};
use crate::trigger::Trigger;
use orcheck_engine::commit::ControlShared;
use orcheck_engine::directory::Places;
use orcheck_engine::directory::epoch::{
    ClaimLock, Claimant, claim, highest_counter, wait_for_holder,
};
use orcheck_engine::encoding::{Recipe, Trust, fingerprint};
use orcheck_engine::host::{Host, HostPlan, server_names};
use orcheck_engine::node::{Index, IndexShape, Layout, pool_chunks};
use orcheck_engine::replicas::Room;
use orcheck_format::sabotage::{Switch, off};
use orcheck_format::{Epoch, Error, JobName, Result};
use orcheck_io::clock::Clock;
use orcheck_io::disk::Dir;
use orcheck_io::machine::{cpuset, effective_uid, group_id, memory, online_processors};
use orcheck_io::user::{SecretSource, env_var};
use orcheck_net::Listener;
use orcheck_pool::{Gates, HugePages, Pool, PoolShape, check_choice, own_nodes};
use std::sync::Arc;
use std::time::Duration;

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
    pub held: Option<ClaimLock>,
    pub notes: Vec<String>,
    pub gates: Arc<Gates>,
    pub trigger: Trigger,
    pub encoded: bool,
    pub peers: Option<Peers>,
    pub host: Host,
}

/// Names the job of a program that gives none; `orcheck run --job` sets it.
pub const JOB_VARIABLE: &str = "ORCHECK_JOB";
/// Longest wait for the other nodes when a session is opened again.
const AGAIN_TIMEOUT: Duration = Duration::from_secs(10);

/// The job's name and the options of this rank, when all ranks have some, and either all or none of them have checkpoints.
/// Collective; the first message of every session.
///
/// # Errors
/// Invalid for a name or an option; for a rank without checkpoints among others that have some.
pub(crate) fn agree_on_options(
    collective: &mut dyn Collective,
    job: &str,
    options: Result<Options>,
) -> Result<(JobName, Options)> {
    let rank = i64::from(collective.rank());
    let local = options.and_then(|options| Ok((name_of(job)?, options)));
    let without = (local.as_ref()).is_ok_and(|(_, options)| options.without.is_some());
    // The lowest rank of each sort, if there is one.
    let mut lowest = match without {
        true => [rank, i64::MAX],
        false => [i64::MAX, rank],
    };
    let local = agree_min(collective, local, &mut lowest)?;
    // Breaks if: this is left out; ranks with checkpoints would wait for others that never come.
    if !lowest.contains(&i64::MAX) && !off(Switch::SameEnabled) {
        return Err(Error::invalid(format!(
            "checkpoints are disabled on rank {} and enabled on rank {}",
            lowest[0], lowest[1]
        ))
        .next("give all ranks the same `enabled`, `global` and `node_dir`"));
    }
    Ok(local)
}

pub(crate) fn open(
    (job, mut options): (JobName, Options),
    collective: &mut dyn Collective,
    environment: &Environment,
    mut again: Option<&mut Reopen>,
) -> Result<(Opened, Options)> {
    let rank = collective.rank();
    let layout = exchange_facts(collective, &options)?;
    let (recipe, trust) = agree_on_recipe(collective, &job, &options)?;
    let node = layout.node_of(rank);
    let leads_node = layout.leads_node(rank);
    let leads_job = rank == 0;

    // Node leads make the directories, the others open what is there.
    let open_places = |create| {
        let group = options.group.as_deref().map(group_id).transpose();
        let group = group.map_err(|error| error.at("option group"))?;
        Places::open_shared(
            &job,
            &layout.nodes[node as usize].name,
            (options.node_dir.as_ref(), &options.global),
            &environment.failpoints,
            (create, group),
        )
    };
    let made = agree(
        collective,
        if leads_node {
            open_places(true).map(Some)
        } else {
            Ok(None)
        },
    )?;
    let mut places = agree(collective, made.map_or_else(|| open_places(false), Ok))?;
    places.trust = trust;
    let mut notes = places.notes.clone();

    // A run takes nothing over from itself, and waits for its own agents.
    let mut looking = options.clone();
    if again.is_some() {
        looking.take_over = false;
        looking.take_over_wait_s = options.timeout_s;
    }
    // Before it is asked who holds the job: an agent may still be flushing what an older run left with it.
    let found = if leads_node {
        let name = &layout.nodes[node as usize].name;
        let world = (&environment.failpoints, environment.clock.as_ref());
        let patience = again
            .as_ref()
            .map_or(Duration::ZERO, |again| again.patience);
        Agent::find(&job, name, &looking, world, patience)
    } else {
        Ok(None)
    };
    let agent = agree(collective, found)?;
    leave_out_global(collective, &mut places, &mut options, &mut notes)?;
    if let Some(again) = &mut again {
        again.take_over_pool(collective, &layout)?;
    }
    let kept_pool = again.as_ref().map(|again| Arc::clone(&again.pool));
    if leads_job && dies_with_ranks(&options) {
        notes.push("the agents were started by ranks of a Slurm step and end with it: level process is not offered; start `orcheck agent` in a step of its own and set agent = \"join\"".to_owned());
    }

    let claimed_in: Vec<Arc<dyn Dir>> = claim_dirs(&places, leads_node, leads_job);
    let clock = environment.clock.as_ref();
    let counter = agree_on_counter(
        collective,
        &claimed_in,
        &looking,
        (&job, &places.trust),
        clock,
    )?;
    if let Some(again) = again {
        // Breaks if: it goes on all the same; what another run committed meanwhile would be superseded.
        if counter != again.counter + 1 && !off(Switch::NobodyBetween) {
            let text = format!(
                "another run of the job began while this one was without an agent: epoch {} was given",
                counter - 1
            );
            return Err(Error::fenced(text).next("end this one; the other one continues the job"));
        }
        again.counter = counter;
    }

    let nodes = layout.node_names();
    // A directory that one node does not see takes no containers of any.
    let mut seen: Vec<i64> = places
        .servers
        .iter()
        .map(|dir| i64::from(dir.is_some()))
        .collect();
    agree_min(collective, Ok(()), &mut seen)?;
    let seen: Vec<bool> = seen.into_iter().map(|seen| seen != 0).collect();
    let (listeners, start) = {
        let prepared = if leads_job {
            prepare_start(&job, &options, &layout, (&places, &seen), &mut notes).map(Some)
        } else {
            Ok(None)
        };
        let prepared = agree(collective, prepared)?;
        let (listeners, bytes) =
            prepared.map_or_else(|| (Vec::new(), Vec::new()), |(l, s)| (l, s.encode(&nodes)));
        let bytes = bcast_bytes(collective, bytes, 0)?;
        let servers = server_names(&server_roots(&options));
        let mut start = agree(collective, Start::decode(&bytes, &nodes, &servers))?;
        start.key.encrypt = options.net_encrypt;
        (listeners, start)
    };
    let epoch = Epoch {
        counter,
        run: start.run,
    };

    let mut peers = Peers::meet(collective, &layout, &options, &start)?;
    places.losses = options.peers;

    let shape = IndexShape::of(&layout.nodes[node as usize]);
    let claim_here = || {
        let claimant = Claimant {
            job: job.clone(),
            run: start.run,
            host: start.host.clone(),
            pid: start.pid,
            uid: effective_uid(),
            world_size: layout.world_size(),
            nodes: nodes.clone(),
            trust: Arc::clone(&places.trust),
        };
        node_side(
            &claimed_in,
            &claimant,
            counter,
            &options,
            &layout,
            node,
            (shape, !recipe.is_plain() || options.checks_pool()),
            kept_pool.as_ref(),
            clock,
        )
        .map(Some)
    };
    // The lead first: of two runs at once one has its directories and thereby the job, and the other one has claimed
    // nothing elsewhere. Breaks if: all nodes claim at once; each run may then lose somewhere to the other.
    let first = leads_job || leads_node && off(Switch::LeadFirst);
    let led = if first { claim_here() } else { Ok(None) };
    let led = agree(collective, led)?;
    let others = leads_node && !first;
    let side = if others { claim_here() } else { Ok(led) };
    let mut side = agree(collective, side)?;
    if let Some(side) = &mut side {
        notes.append(&mut side.held.notes);
    }

    let recalled = match (&mut peers, &places.node) {
        (Some(peers), Some(dir)) if leads_node => {
            peers.recall(dir.as_ref(), (&job, epoch), &places.trust, &mut notes)
        }
        _ => Ok(()),
    };
    let mut way = Way::find(collective, &layout, &options, &start, listeners)?;
    if kept_pool.is_some() {
        // Nodes that all were there: who does not come now is cut off.
        way.patience = AGAIN_TIMEOUT;
    }
    let connected = connect(rank, &layout, side.as_mut(), way, &start, environment);
    let (pool, own, links) = agree(collective, recalled.and(connected))?;
    // It is the same memory, and the program's own lies in the mapping that it knows.
    let pool = kept_pool.unwrap_or(pool);

    let gates = agree(collective, Gates::open(&pool).map(Arc::new))?;
    notes.extend(prepare_memory(
        &pool,
        shape,
        layout.local_index(rank),
        &options,
    ));
    agree(collective, check_choice())?;
    let shared = Arc::new(ControlShared::default());
    let doors = peers
        .as_mut()
        .map_or_else(Vec::new, |peers| std::mem::take(&mut peers.doors));
    let host = Host {
        plan: HostPlan {
            job: job.clone(),
            epoch,
            layout: layout.clone(),
            node,
            servers: server_roots(&options),
            node_root: (options.node_dir.as_ref())
                .map_or_else(String::new, |dir| dir.display().to_string()),
            keep: options.keep,
            mode: options.mode,
            direct: options.direct,
            pin: options.pin,
            incremental: options.incremental_chain.is_some(),
            timeout: Duration::from_secs_f64(options.timeout_s),
            fan_out: options.fan_out,
            recipe: recipe.clone(),
            replication: peers
                .as_ref()
                .map(|peers| peers.replication(&options, layout.nodes_on_host_of(node))),
        },
        pool: Arc::clone(&pool),
        shape,
        places: places.clone(),
        room: (peers.is_some())
            .then(|| places.node.clone().map(Room::on_disk).map(Arc::new))
            .flatten(),
        gates: Arc::clone(&gates),
        shared: Arc::clone(&shared),
        clock: Arc::clone(&environment.clock),
        failpoints: environment.failpoints.clone(),
        outlives: false,
    };
    let threads = match (options.agent, side.as_mut().zip(links)) {
        (AgentKind::Off, side) => {
            let links = side.map(|(_, links)| links);
            Threads::start(&host, rank, own, links, doors, start.placement)
        }
        (_, None) => Ok(Threads::elsewhere(&host, rank, own, None)),
        (_, Some((side, links))) => {
            let placement = start.placement.as_ref();
            let agent = agent.ok_or_else(|| Error::internal("no agent was found"));
            agent.and_then(|mut agent| {
                agent.hand_over(&host, side, links, doors, placement, &mut notes)?;
                Ok(Threads::elsewhere(&host, rank, own, Some(agent)))
            })
        }
    };
    let rest = threads.and_then(|threads| {
        // Ranks that are bound compute on as many as all of them have together.
        let of_node = layout.nodes[layout.node_of(rank) as usize].ranks.len();
        let processors = (of_node * cpuset().len()).min(online_processors());
        let machine = (layout.nodes.len(), processors);
        let trigger = Trigger::new(&options, machine, Arc::clone(&environment.clock))?;
        Ok((threads, trigger))
    });
    let (threads, trigger) = agree(collective, rest)?;
    let mut held = side.map(|side| side.held);
    if let Some(held) = &mut held {
        held.confirm();
    }
    let opened = Opened {
        job,
        layout,
        epoch,
        places,
        pool,
        shape,
        shared,
        threads,
        held,
        notes,
        gates,
        trigger,
        encoded: !recipe.is_plain(),
        peers,
        host,
    };
    Ok((opened, options))
}

/// The job's name: the program's own, and only where it gives none that of the environment.
fn name_of(job: &str) -> Result<JobName> {
    // Breaks if: the environment wins; a program with two jobs would write both into one.
    if !job.is_empty() {
        return JobName::new(job);
    }
    match env_var(JOB_VARIABLE).filter(|name| !name.is_empty()) {
        Some(name) => JobName::new(&name).map_err(|error| error.at(JOB_VARIABLE)),
        None => Err(Error::invalid("the job has no name")
            .next("pass one to orc_open, or start the program with orcheck run --job NAME")),
    }
}

/// What the user should know when huge pages were asked for from the machine's reserve and are not there.
fn missing_reserve(pool: &Pool, options: &Options) -> Option<String> {
    let page_bytes = pool.page_bytes();
    (options.huge_pages == HugePages::Reserved && page_bytes < 1 << 20).then(|| {
        format!(
            "huge_pages = 'reserved': the pool of {} bytes got pages of {page_bytes} bytes, because the machine's reserve of 2 MiB pages does not hold it, or chunk is no multiple of 2 MiB; see HugePages_Free in /proc/meminfo",
            pool.shape().len_bytes()
        )
    })
}

/// Asks for this rank's part of the pool near its processors, and for large pages where wanted.
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

/// How containers are encoded, and what is believed with the user's keys, which must be the same on all ranks.
fn agree_on_recipe(
    collective: &mut dyn Collective,
    job: &JobName,
    options: &Options,
) -> Result<(Recipe, Arc<Trust>)> {
    let read = options.encrypt_key.iter().map(SecretSource::read);
    let read: Result<Vec<_>> = read.map(|secret| secret.map(Arc::new)).collect();
    let secrets = agree(collective, read)?;
    // The options are the same everywhere, so all ranks come here equally often.
    for secret in &secrets {
        let mine = fingerprint(secret, job.as_str().as_bytes());
        let mut values = [0; 2];
        if let Ok(mine) = mine {
            values = [mine, !mine];
        }
        agree_min(collective, mine.map(|_| ()), &mut values)?;
        // Breaks if: this is left out; a checkpoint that no single key can read would be committed.
        if values[0] != !values[1] && !off(Switch::SameKey) {
            return Err(
                Error::invalid("the ranks were given different keys (encrypt_key)")
                    .next("give all ranks the same keys in the same order"),
            );
        }
    }
    let trust = agree(
        collective,
        Trust::new(&secrets, options.encrypt, options.accept),
    )?;
    let recipe = Recipe {
        compression: options.compression,
        level: options.compress_level,
        secret: secrets.into_iter().next().filter(|_| options.encrypt),
    };
    Ok((recipe, trust))
}

/// A job whose nodes remember it continues without level `global` where no rank sees any of its directories. Collective.
fn leave_out_global(
    collective: &mut dyn Collective,
    places: &mut Places,
    options: &mut Options,
    notes: &mut Vec<String>,
) -> Result<()> {
    if options.global.is_empty() || options.node_dir.is_none() {
        return Ok(());
    }
    // A directory that some rank sees is a mount that others lack, which is for the user to repair.
    let mut lost = [i64::from(places.has_lost_global())];
    let refused = match lost[0] != 0 && options.strict {
        true => Err(Error::unavailable(format!(
            "none of the directories of level global is there: {}",
            places.notes.join("; ")
        ))
        .next("bring one back, or leave strict out to continue at the node's level")),
        false => Ok(()),
    };
    agree_min(collective, refused, &mut lost)?;
    if lost[0] != 0 {
        places.without_global();
        options.global.clear();
        notes.push(
            "none of the directories of level global is there: this run has the node's level only, and waiting for level global is refused"
                .to_owned(),
        );
    }
    Ok(())
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
    of: (&JobName, &Trust),
    clock: &dyn Clock,
) -> Result<u64> {
    let highest = counter_when_free(dirs, options, of, clock);
    let mut value = [-(highest.as_ref().map_or(0, |&counter| counter as i64))];
    agree_min(collective, highest, &mut value)?;
    Ok(value[0].unsigned_abs() + 1)
}

/// Most looks for a run that holds the job, each but the first because another one came and went meanwhile.
const MOST_LOOKS: u32 = 64;

/// The highest counter that was given, read before the look for a run that holds the job: whoever claims after that
/// look collides with this run, and whoever claimed before it is seen.
fn counter_when_free(
    dirs: &[Arc<dyn Dir>],
    options: &Options,
    of: (&JobName, &Trust),
    clock: &dyn Clock,
) -> Result<u64> {
    let mut highest = highest_counter(dirs)?;
    if options.take_over {
        return Ok(highest);
    }
    let until = clock.now() + Duration::from_secs_f64(options.take_over_wait_s);
    // Breaks if: there is no end to it; runs that come and go would keep this one here for ever.
    for _ in 0..MOST_LOOKS {
        wait_for_holder(dirs, until.saturating_sub(clock.now()), of, clock)?;
        // Breaks if: the counter is read after the look for a holder only; a run that claims between the
        // two would be fenced instead of refusing this one.
        let now = highest_counter(dirs)?;
        if now == highest || off(Switch::CounterFirst) {
            return Ok(now);
        }
        highest = now;
    }
    Err(Error::unavailable(format!(
        "other runs of the job came and went at each of {MOST_LOOKS} looks, up to epoch {highest}"
    ))
    .next("start it again when no other run of it is being started"))
}

#[allow(clippy::too_many_arguments)]
fn node_side(
    dirs: &[Arc<dyn Dir>],
    claimant: &Claimant,
    counter: u64,
    options: &Options,
    layout: &Layout,
    node: u32,
    (shape, pieces): (IndexShape, bool),
    again: Option<&Arc<Pool>>,
    clock: &dyn Clock,
) -> Result<NodeSide> {
    let listener = Listener::bind(&node_address(claimant.run, node))?;
    if let Some(pool) = again {
        return Ok(NodeSide {
            held: claim(dirs, claimant, counter, clock)?,
            pool: Arc::clone(pool),
            listener: Some(listener),
        });
    }
    let chunk_count = pool_chunks(
        options.pool_bytes,
        options.chunk_bytes,
        &memory()?,
        layout.nodes_on_host_of(node),
    )?;
    let pool_shape = PoolShape {
        chunk_bytes: options.chunk_bytes,
        chunk_count,
        words: shape.words(),
        rings: shape.ranks,
        // Where containers are encoded or the pool is checked, pieces are told besides segments.
        ring_entries: (if pieces { 4 } else { 2 } * chunk_count).clamp(64, 1 << 16),
    };
    let pool = Pool::create_of(pool_shape, options.huge_pages)?;
    let mut held = claim(dirs, claimant, counter, clock)?;
    held.notes.extend(missing_reserve(&pool, options));
    Ok(NodeSide {
        held,
        pool: Arc::new(pool),
        listener: Some(listener),
    })
}
