//! Converts a node's plan between [`HostPlan`] and the bytes of `format::wire`, in which it
//! travels to the agent.
//!
//! Invariant: the unpacked plan starts the same threads as the packed one.
//!
//! Not here: the conversation (`agent.rs`).

use crate::encoding::Recipe;
use crate::host::threads::{HostPlan, Replication, server_names};
use crate::node::{Layout, Mode, Node};
use crate::replicas::{NodeAt, ReplicaStore};
use orcheck_format::wire::{Adoption, NodePart, RecipePart, ReplicaPart};
use orcheck_format::{Rank, Result};
use orcheck_io::user::{Secret, working_dir};
use orcheck_net::Key;
use orcheck_placement::{Domains, Placement};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Modes by their number in an adoption.
const MODES: [Mode; 3] = [Mode::Traditional, Mode::Vertical, Mode::Orchestrated];

/// Packs what the agent of a node must know: the plan, the number of losses that checkpoints
/// survive, and where the lanes lead at first.
pub fn pack(plan: &HostPlan, losses: u8, placement: Option<&Placement>) -> Adoption {
    let replication = plan.replication.as_ref();
    let nodes = plan.layout.nodes.iter().enumerate().map(|(at, node)| {
        let addresses = replication.and_then(|replication| replication.nodes.get(at));
        NodePart {
            name: node.name.clone(),
            host: node.host.clone(),
            writers: node.writers.clone(),
            addresses: addresses.map_or_else(Vec::new, |at| {
                at.addresses.iter().map(ToString::to_string).collect()
            }),
        }
    });
    Adoption {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        job: plan.job.clone(),
        epoch: plan.epoch,
        nodes: nodes.collect(),
        node: plan.node,
        servers: plan.servers.clone(),
        node_root: plan.node_root.clone(),
        keep: plan.keep as u64,
        mode: MODES
            .iter()
            .position(|&mode| mode == plan.mode)
            .unwrap_or(0) as u8,
        direct: plan.direct,
        pin: plan.pin,
        incremental: plan.incremental,
        timeout_ms: plan.timeout.as_millis().try_into().unwrap_or(u64::MAX),
        fan_out: plan.fan_out,
        recipe: RecipePart {
            compression: plan.recipe.compression,
            level: plan.recipe.level,
            secret: plan.recipe.secret.as_ref().map(|secret| *secret.bytes()),
        },
        replication: replication.map(|replication| ReplicaPart {
            replicas: replication.replicas,
            groups: replication.groups.clone(),
            losses,
            budget_bytes: replication.budget_bytes,
            store: (ReplicaStore::ALL.iter())
                .position(|&store| store == replication.store)
                .unwrap_or(0) as u8,
            domains: replication.domains.of_each().to_vec(),
            key: replication.key.bytes,
            encrypt: replication.key.encrypt,
        }),
        placement: placement
            .map(|placement| placement.to_toml(&plan.layout.node_names()))
            .unwrap_or_default(),
        working_dir: working_dir().display().to_string(),
    }
}

/// The contents of an [`Adoption`].
pub struct Unpacked {
    /// The plan.
    pub plan: HostPlan,
    /// The number of losses that checkpoints survive.
    pub losses: u8,
    /// Where the lanes lead at first.
    pub placement: Option<Placement>,
    /// The directory that relative paths start from.
    pub working_dir: PathBuf,
}

/// Unpacks an adoption.
///
/// # Errors
/// Invalid for addresses or a placement that this version does not write.
pub fn unpack(adoption: Adoption) -> Result<Unpacked> {
    let nodes = adoption.nodes.iter().map(|part| {
        let mut ranks: Vec<Rank> = part.writers.iter().flatten().copied().collect();
        ranks.sort_unstable();
        Node {
            name: part.name.clone(),
            host: part.host.clone(),
            ranks,
            writers: part.writers.clone(),
        }
    });
    let layout = Layout::of_nodes(nodes.collect());
    let names = layout.node_names();
    let losses = (adoption.replication.as_ref()).map_or(0, |replication| replication.losses);
    let replication = adoption.replication;
    let replication = replication.map(|part| unpack_replication(part, &adoption.nodes));
    let replication = replication.transpose()?;
    let placement = if adoption.placement.is_empty() {
        None
    } else {
        let servers = server_names(&adoption.servers);
        Some(Placement::from_toml(&adoption.placement, &names, &servers)?)
    };
    let secret = adoption
        .recipe
        .secret
        .map(|bytes| Arc::new(Secret::new(bytes)));
    let plan = HostPlan {
        job: adoption.job,
        epoch: adoption.epoch,
        layout,
        node: adoption.node,
        servers: adoption.servers,
        node_root: adoption.node_root,
        keep: adoption.keep as usize,
        mode: MODES[usize::from(adoption.mode) % MODES.len()],
        direct: adoption.direct,
        pin: adoption.pin,
        incremental: adoption.incremental,
        timeout: Duration::from_millis(adoption.timeout_ms),
        fan_out: adoption.fan_out,
        recipe: Recipe {
            compression: adoption.recipe.compression,
            level: adoption.recipe.level,
            secret,
        },
        replication,
    };
    Ok(Unpacked {
        plan,
        losses,
        placement,
        working_dir: PathBuf::from(adoption.working_dir),
    })
}

fn unpack_replication(part: ReplicaPart, nodes: &[NodePart]) -> Result<Replication> {
    let key = Key {
        bytes: part.key,
        encrypt: part.encrypt,
    };
    let nodes = nodes.iter().map(|node| {
        let addresses = node.addresses.iter().map(|text| text.parse());
        Ok(NodeAt {
            name: node.name.clone(),
            addresses: addresses.collect::<Result<_>>()?,
            key: key.clone(),
        })
    });
    Ok(Replication {
        replicas: part.replicas,
        groups: part.groups,
        budget_bytes: part.budget_bytes,
        store: ReplicaStore::ALL[usize::from(part.store) % ReplicaStore::ALL.len()],
        domains: Domains::of(part.domains),
        nodes: nodes.collect::<Result<_>>()?,
        key,
    })
}
