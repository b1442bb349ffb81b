//! Broadcasts from rank 0 what every rank must know: run id, key, addresses, and the first
//! placement.
//!
//! Invariants:
//! 1. Key and addresses travel only through the program's collective.
//! 2. Missing directories get no lane.
//!
//! Not here: how placements are computed (`plan::placement`).

use crate::open::doors;
use crate::open::facts::lanes_per_node;
use crate::options::{Balance, Options};
use orcheck_engine::directory::{Catalog, Places};
use orcheck_engine::host::server_names;
use orcheck_engine::node::Layout;
use orcheck_format::{Error, JobName, NodeId, Result, RunId, TargetId};
use orcheck_io::machine::{host_name, process_id};
use orcheck_io::rng::random_bytes;
use orcheck_io::user::read_text;
use orcheck_net::{Address, Key, Listener};
use orcheck_placement::Placement;

/// Largest mapping file.
const MAPPING_LIMIT_BYTES: u64 = 16 << 20;

/// The contents of the broadcast.
pub(crate) struct Start {
    pub(crate) run: RunId,
    pub(crate) key: Key,
    pub(crate) addresses: Vec<Address>,
    pub(crate) placement: Option<Placement>,
    pub(crate) host: String,
    pub(crate) pid: u32,
}

/// The configured targets, as the engine knows them.
pub(crate) fn server_roots(options: &Options) -> Vec<String> {
    let roots = options.global.iter();
    roots.map(|root| root.display().to_string()).collect()
}

pub(crate) fn prepare_start(
    job: &JobName,
    options: &Options,
    layout: &Layout,
    (places, seen_by_all): (&Places, &[bool]),
    notes: &mut Vec<String>,
) -> Result<(Vec<Listener>, Start)> {
    let run = RunId(random_bytes());
    let (listeners, addresses) = if layout.nodes.len() > 1 {
        doors::open(
            &format!("orcheck-{run}-lead"),
            layout.has_hosts(),
            options.net,
        )?
    } else {
        (Vec::new(), Vec::new())
    };
    let placement = first_placement(job, options, layout, places, seen_by_all)?;
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
        key: Key::new(random_bytes()),
        addresses,
        placement,
        host: host_name(),
        pid: process_id(),
    };
    Ok((listeners, start))
}

/// The placement of this run: from the user's file, by the sizes of the newest checkpoint, or
/// balanced; without missing directories.
fn first_placement(
    job: &JobName,
    options: &Options,
    layout: &Layout,
    places: &Places,
    seen_by_all: &[bool],
) -> Result<Option<Placement>> {
    if options.global.is_empty() {
        return Ok(None);
    }
    let nodes = layout.node_names();
    let servers = server_names(&server_roots(options));
    let lanes = Some(lanes_per_node(options, nodes.len()));
    let mut placement = if let Some(path) = &options.mapping {
        let text = read_text(path, MAPPING_LIMIT_BYTES)?;
        Placement::from_toml(&text, &nodes, &servers).map_err(|error| error.at(path.display()))?
    } else {
        match options.placement {
            Balance::Balanced => Placement::balanced(&nodes, &servers, lanes)?,
            Balance::Weighted => match last_sizes(job, &nodes, places)? {
                Some(sizes) => Placement::weighted(&nodes, &sizes, &servers, lanes)?,
                None => Placement::balanced(&nodes, &servers, lanes)?,
            },
        }
    };
    for (number, &seen) in seen_by_all.iter().enumerate() {
        if !seen {
            placement = placement.without(TargetId(number as u32), &nodes)?;
        }
    }
    Ok(Some(placement))
}

/// Bytes of each node's containers in the newest checkpoint.
fn last_sizes(job: &JobName, nodes: &[String], places: &Places) -> Result<Option<Vec<u64>>> {
    let catalog = Catalog::scan_trusting(
        job,
        &places.to_read(orcheck_format::Level::Global),
        &places.trust,
    )?;
    let Some(commit) = catalog.commits().first() else {
        return Ok(None);
    };
    let record = &commit.record;
    let sizes = nodes
        .iter()
        .map(|name| {
            let held = |node: NodeId| record.nodes.get(node.index()) == Some(name);
            record
                .containers
                .iter()
                .filter(|c| held(c.node))
                .map(|c| c.len_bytes)
                .sum::<u64>()
                .max(1)
        })
        .collect();
    Ok(Some(sizes))
}

impl Start {
    pub(crate) fn encode(&self, nodes: &[String]) -> Vec<u8> {
        let addresses: Vec<String> = self.addresses.iter().map(ToString::to_string).collect();
        let placement = self
            .placement
            .as_ref()
            .map(|p| p.to_toml(nodes))
            .unwrap_or_default();
        let text = format!(
            "{}\n{}\n{}\n{placement}",
            self.host,
            self.pid,
            addresses.join(" ")
        );
        let mut bytes = self.run.0.to_vec();
        bytes.extend_from_slice(&self.key.bytes);
        bytes.extend_from_slice(text.as_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: &[u8], nodes: &[String], servers: &[String]) -> Result<Self> {
        let bad = || Error::internal("the start message of rank 0 is damaged");
        let (fixed, text) = bytes.split_at_checked(48).ok_or_else(bad)?;
        let text = std::str::from_utf8(text).map_err(|_| bad())?;
        let mut parts = text.splitn(4, '\n');
        let mut part = || parts.next().ok_or_else(bad);
        let (host, pid, addresses, placement) = (part()?, part()?, part()?, part()?);
        Ok(Self {
            run: RunId(fixed[..16].try_into().map_err(|_| bad())?),
            key: Key::new(fixed[16..].try_into().map_err(|_| bad())?),
            addresses: addresses
                .split_whitespace()
                .map(str::parse)
                .collect::<Result<_>>()?,
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
