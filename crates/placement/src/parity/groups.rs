//! Divides the nodes of a job into groups that protect each other by parity.
//!
//! How: there are as many groups as the nodes fill with the size that was asked for; what is left
//! makes groups larger, with the same number of parities. Fewer nodes than that form one group,
//! which survives as many losses and stores more. Nodes that fail together go to different
//! groups: those with the most companions are placed first, each into the smallest group where it
//! has none, beginning with another group in each of a few attempts.
//!
//! Invariants:
//! 1. Every node is in exactly one group, and no group is smaller than asked for unless there are
//!    fewer nodes.
//! 2. No two nodes of a group fail together. Where that is impossible, it is an error.
//! 3. Equal input gives equal groups.
//!
//! Not here: which nodes fail together (`domains.rs`), where blocks lie in a group
//! (`orcheck_format::disk::ParityGroup`).

use crate::domains::Domains;
use orcheck_format::disk::{MAX_MEMBERS, ParityGroup};
use orcheck_format::sabotage::{Switch, off};
use orcheck_format::{Error, NodeId, Result, count};
use std::fmt;
use std::str::FromStr;

/// Longest block: what the last row stores too much is less than one for each parity.
const UNIT_BYTES_MAX: u32 = 256 << 10;
/// Shortest block.
const UNIT_BYTES_MIN: u32 = 16 << 10;
/// Bytes of a container in a row, about: a rebuild has a row of each member in memory.
const ROW_BYTES: u32 = 2 << 20;
/// Nodes of the smallest group: of two, each would keep a copy.
const LEAST_MEMBERS: u8 = 3;
/// Number of attempts before it is reported that there are no such groups.
const ATTEMPTS: usize = 64;

/// A code as users name it: `xor=8` for groups of 8 nodes with one parity, `rs=8+2` for groups of
/// 8 + 2 nodes with two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scheme {
    /// Nodes of a group, at least, in a job that has as many.
    pub members: u8,
    /// Losses that a group survives.
    pub parity: u8,
}

impl FromStr for Scheme {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let scheme = match text.split_once('=') {
            Some(("xor", members)) => members.parse().ok().map(|members| (members, 1u8)),
            Some(("rs", numbers)) => numbers.split_once('+').and_then(|(data, parity)| {
                let (data, parity): (u8, u8) = (data.parse().ok()?, parity.parse().ok()?);
                Some((data.checked_add(parity)?, parity))
            }),
            _ => None,
        };
        match scheme {
            Some((members, parity))
                if parity > 0 && members > parity && (LEAST_MEMBERS..=64).contains(&members) =>
            {
                Ok(Self { members, parity })
            }
            Some((members, parity)) => Err(Error::invalid(format!(
                "protect = '{text}': expected groups of {LEAST_MEMBERS} to 64 nodes that survive 1 loss or more, found {members} that survive {parity}"
            ))
            .next("set 'xor=N' with N from 3 to 64, or 'rs=K+M' with K + M from 3 to 64; for two nodes set peers = 1, which keeps copies")),
            None => Err(Error::invalid(format!(
                "protect = '{text}': expected 'xor=N' or 'rs=K+M'"
            ))
            .next("set 'xor=N' for groups of N nodes that survive one loss, or 'rs=K+M' for groups of K + M nodes that survive M losses")),
        }
    }
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.parity {
            1 => write!(f, "xor={}", self.members),
            parity => write!(f, "rs={}+{parity}", self.members - parity),
        }
    }
}

/// The groups of a job.
///
/// # Errors
/// Invalid if there are too few nodes, or nodes that fail together cannot be kept apart.
pub fn groups(domains: &Domains, scheme: Scheme) -> Result<Vec<ParityGroup>> {
    let nodes = domains.nodes() as usize;
    let least = LEAST_MEMBERS.max(scheme.parity.saturating_add(1));
    if nodes < usize::from(least) {
        return Err(Error::invalid(format!(
            "protect = '{scheme}' needs {least} nodes or more, and the job has {}",
            count(nodes as u64, "node")
        ))
        .next("start the job on more nodes, or set peers instead of protect, which keeps copies"));
    }
    let number = (nodes / usize::from(scheme.members)).max(1);
    let most = nodes.div_ceil(number).min(MAX_MEMBERS);
    let companions = |node: NodeId| {
        let others = (0..nodes as u32).map(NodeId);
        others
            .filter(|&other| domains.together(node, other))
            .count()
    };
    let mut order: Vec<(usize, NodeId)> = (0..nodes as u32)
        .map(|node| (companions(NodeId(node)), NodeId(node)))
        .collect();
    order.sort_by_key(|&(companions, node)| (std::cmp::Reverse(companions), node));
    let found = (0..ATTEMPTS).find_map(|attempt| divide(domains, &order, (number, most), attempt));
    let groups = found.ok_or_else(|| {
        Error::invalid(format!(
            "protect = '{scheme}': {} cannot be divided into groups of {} nodes without two that fail together, by the topology file",
            count(nodes as u64, "node"),
            nodes.min(scheme.members.into())
        ))
        .next("use more failure domains or smaller groups, or correct the topology file")
    })?;
    let group = |mut nodes: Vec<NodeId>| {
        nodes.sort_unstable();
        let data = (nodes.len() as u32).saturating_sub(scheme.parity.into());
        let unit_bytes = ROW_BYTES / data.max(1) / 4096 * 4096;
        ParityGroup {
            nodes,
            parity: scheme.parity,
            unit_bytes: unit_bytes.clamp(UNIT_BYTES_MIN, UNIT_BYTES_MAX),
        }
    };
    Ok(groups.into_iter().map(group).collect())
}

fn divide(
    domains: &Domains,
    order: &[(usize, NodeId)],
    (number, most): (usize, usize),
    attempt: usize,
) -> Option<Vec<Vec<NodeId>>> {
    let mut groups: Vec<Vec<NodeId>> = vec![Vec::new(); number];
    for (nth, &(_, node)) in order.iter().enumerate() {
        let apart = |group: &[NodeId]| {
            let together = |&member: &NodeId| domains.together(node, member);
            !group.iter().any(together) || off(Switch::ParityDomain)
        };
        let turned = |group: usize| (group + nth * attempt) % number;
        let fits = |&group: &usize| groups[group].len() < most && apart(&groups[group]);
        let best = (0..number).filter(fits);
        let best = best.min_by_key(|&group| (groups[group].len(), turned(group)))?;
        groups[best].push(node);
    }
    let least = order.len() / number;
    groups
        .iter()
        .all(|group| group.len() >= least)
        .then_some(groups)
}
