//! Exchanges, among the nodes of a job, their addresses, their failure domains and their files, to
//! replicate containers and to make copies again after a restart.
//!
//! Invariants:
//! 1. All ranks end with the same table, or with the same error.
//! 2. None of this is done if no replicas are configured.
//! 3. A copy that cannot be rebuilt is a warning that names the file; the restart stands.
//!
//! Not here: what replicas are (`engine::replicas`, `engine::replicas`).

use crate::collective::{Collective, agree, bcast_bytes};
use crate::open::doors;
use crate::open::members::remember;
use crate::open::start::Start;
use crate::options::Options;
use orcheck_engine::encoding::Trust;
use orcheck_engine::host::Replication;
use orcheck_engine::node::Layout;
use orcheck_engine::replicas::{Holdings, NodeAt, ReplicaStore, remembered};
use orcheck_format::disk::{Member, ParityGroup};
use orcheck_format::sabotage::{Switch, off};
use orcheck_format::{Epoch, Error, JobName, Rank, Result};
use orcheck_io::disk::Dir;
use orcheck_io::machine::memory;
use orcheck_io::user::read_text;
use orcheck_net::{Key, Listener};
use orcheck_placement::Domains;
use orcheck_placement::parity::groups;

/// Largest topology file.
const TOPOLOGY_LIMIT_BYTES: u64 = 64 << 20;

/// Space for the name of the node from which a rank read.
const SOURCE_BYTES: usize = 64;
/// Maximum number of ranks whose source is reported.
const SOURCES_TOLD: usize = 16;

/// What a rank knows about the other nodes.
pub(crate) struct Peers {
    /// The addresses of the nodes' keepers.
    pub(crate) nodes: Vec<NodeAt>,
    /// Nodes of earlier runs that this node knows and that are not in this run.
    pub(crate) absent: Vec<Member>,
    pub(crate) domains: Domains,
    /// Groups with parity, if that is used instead of replicas.
    pub(crate) groups: Vec<ParityGroup>,
    pub(crate) key: Key,
    /// What each node holds, as of the last look.
    pub(crate) holdings: Holdings,
    /// On a node's lowest rank: where the others connect; taken by the keeper.
    pub(crate) doors: Vec<Listener>,
}

impl Peers {
    /// `None` if no replicas are configured. Collective.
    pub(crate) fn meet(
        collective: &mut dyn Collective,
        layout: &Layout,
        options: &Options,
        start: &Start,
    ) -> Result<Option<Self>> {
        if options.peers == 0 {
            return Ok(None);
        }
        let rank = collective.rank();
        let node = layout.node_of(rank);
        let opened = if layout.leads_node(rank) {
            let name = format!("orcheck-{}-k{node}", start.run);
            doors::open(&name, layout.has_hosts(), options.net)
        } else {
            Ok((Vec::new(), Vec::new()))
        };
        let (doors, addresses) = agree(collective, opened)?;
        let all = 0..layout.nodes.len() as u32;
        let addresses = doors::exchange(collective, layout, all, &addresses)?;
        let nodes = layout.node_names().into_iter().zip(addresses);
        let nodes = nodes.map(|(name, addresses)| NodeAt {
            name,
            addresses,
            key: start.key.clone(),
        });
        let text = match (&options.topology, rank) {
            (Some(path), Rank(0)) => {
                read_text(path, TOPOLOGY_LIMIT_BYTES).map_err(|error| error.at("topology"))
            }
            _ => Ok(String::new()),
        };
        let text = agree(collective, text)?.into_bytes();
        let text = String::from_utf8_lossy(&bcast_bytes(collective, text, 0)?).into_owned();
        let domains = if options.topology.is_some() {
            Domains::from_toml(&text, &layout.node_names())
        } else {
            Ok(Domains::none(layout.nodes.len() as u32))
        };
        let domains = agree(collective, domains)?;
        let groups = match options.protect {
            Some(scheme) => one_writer(layout).and_then(|()| groups(&domains, scheme)),
            None => Ok(Vec::new()),
        };
        let groups = agree(collective, groups)?;
        Ok(Some(Self {
            nodes: nodes.collect(),
            absent: Vec::new(),
            domains,
            groups,
            key: start.key.clone(),
            holdings: Holdings::new(),
            doors,
        }))
    }

    /// Reads what the node's directory knows about nodes of earlier runs, and writes the members of
    /// this run there.
    pub(crate) fn recall(
        &mut self,
        dir: &dyn Dir,
        (job, epoch): (&JobName, Epoch),
        trust: &Trust,
        notes: &mut Vec<String>,
    ) -> Result<()> {
        let mut known = remembered(dir, (job, epoch.counter), trust, notes)?;
        known.retain(|member| self.nodes.iter().all(|node| node.name != member.name));
        self.absent = known;
        remember(dir, (job, epoch), (&self.nodes, &self.absent), trust)
    }

    /// What the engine must know about replication.
    pub(crate) fn replication(&self, options: &Options, nodes_on_host: u32) -> Replication {
        let unset = || match options.replica_store {
            ReplicaStore::Disk => u64::MAX,
            // At most as much as the pool; none if the available memory is unknown.
            _ => {
                memory().map_or(0, |facts| facts.usable_bytes() / 4)
                    / u64::from(nodes_on_host.max(1))
            }
        };
        Replication {
            replicas: u32::from(options.replicas),
            groups: self.groups.clone(),
            budget_bytes: options.replica_budget_bytes.unwrap_or_else(unset),
            store: options.replica_store,
            domains: self.domains.clone(),
            nodes: self.nodes.clone(),
            key: self.key.clone(),
        }
    }
}

/// With parity, a writer waits for those of other nodes. If a node had two, ranks of different
/// writers could hold what the others' writers wait for.
fn one_writer(layout: &Layout) -> Result<()> {
    let several = layout.nodes.iter().find(|node| node.writers.len() > 1);
    match several.filter(|_| !off(Switch::ParityWriters)) {
        Some(node) => Err(Error::invalid(format!(
            "protect needs one writer on each node, and node '{}' has {}",
            node.name,
            node.writers.len()
        ))
        .next("set scheme = 'node', mode = 'orchestrated' and lanes_per_node = 1, which are the defaults with protect")),
        None => Ok(()),
    }
}

/// The ranks, at most the lowest few, that read their part from other nodes, on rank 0; `None` if
/// all had it on their own node. Collective; one small reduction if all had it.
pub(crate) fn describe_sources(
    collective: &mut dyn Collective,
    layout: &Layout,
    mine: Option<&str>,
) -> Result<Option<String>> {
    let rank = i64::from(collective.rank());
    // What the node's own agent has in memory counts as local.
    let home = &layout.nodes[layout.node_of(collective.rank()).index()].name;
    let mine = mine.filter(|node| *node != home.as_str());
    let mut told = Vec::new();
    let mut after = -1;
    loop {
        let mut next = [i64::MAX];
        if mine.is_some() && rank > after {
            next = [rank];
        }
        collective.allreduce_min(&mut next)?;
        after = next[0];
        if after == i64::MAX {
            break;
        }
        if told.len() == SOURCES_TOLD {
            told.push("and more".to_owned());
            break;
        }
        // One byte is left for the end of the name.
        let mut name = [0; SOURCE_BYTES];
        if let Some(node) = mine.filter(|_| after == rank) {
            let bytes = &node.as_bytes()[..node.len().min(SOURCE_BYTES - 1)];
            name[..bytes.len()].copy_from_slice(bytes);
        }
        collective.bcast(&mut name, after as u32)?;
        let name = name.split(|&byte| byte == 0).next().unwrap_or_default();
        let here = &layout.nodes[(layout.node_of(Rank(after as u32))).index()].name;
        let from = String::from_utf8_lossy(name);
        told.push(format!("rank {after} on {here} from {from}"));
    }
    let tells = rank == 0 && !told.is_empty();
    Ok(tells.then(|| format!("read from other nodes: {}", told.join(", "))))
}
