//! Plans what is rebuilt of a checkpoint with parity: each member's files, wherever they are
//! now, belong on one node of this run that has nothing of another member.
//!
//! Invariants: those of `mend.rs`. Pure. Not here: how a file is computed (`rebuilt.rs`).

use super::Copy;
use crate::replicas::owner::Replicas;
use crate::replicas::remote::{Files, Holdings};
use orcheck_format::disk::{CommitRecord, ContainerRef, FileName, ParityGroup};
use orcheck_format::{Error, NodeId, Step, WriterId};
use std::collections::BTreeSet;

/// A file that a member of a group is to have.
struct Due {
    file: String,
    len_bytes: Option<u64>,
    /// A node of this run that has it.
    at: Option<NodeId>,
}

/// As [`super::plan`], for a record with groups.
pub(super) fn plan(
    record: &CommitRecord,
    holdings: &Holdings,
    members: u32,
    replicas: &Replicas,
) -> (Vec<Copy>, Vec<(String, Error)>) {
    let everywhere = holdings;
    let holdings = &everywhere[..everywhere.len().min(members as usize)];
    let (mut copies, mut impossible) = (Vec::new(), Vec::new());
    let mut load: Vec<usize> = holdings.iter().map(Vec::len).collect();
    for (step, writer, group) in parts_of(record) {
        let group = &record.groups[group];
        let all = (holdings, &everywhere[..]);
        let of_member = |&node: &NodeId| due(record, (step, writer), (group, node), all);
        let files: Vec<Vec<Due>> = group.nodes.iter().map(of_member).collect();
        let there = files.iter().flatten().filter_map(|due| due.at);
        let mut occupied: BTreeSet<NodeId> = there.collect();
        for of_member in files {
            let home = of_member.iter().find_map(|due| due.at);
            let missing = of_member.into_iter().filter(|due| due.at.is_none());
            let missing: Vec<Due> = missing.collect();
            if missing.is_empty() {
                continue;
            }
            let Some(node) = home.or_else(|| free_node(replicas, &load, &occupied)) else {
                impossible.extend(missing.into_iter().map(|due| {
                    let error = no_node().at(&due.file);
                    (due.file, error)
                }));
                continue;
            };
            occupied.insert(node);
            load[node.index()] += missing.len();
            if node == replicas.node() {
                copies.extend(missing.into_iter().map(|due| Copy {
                    file: due.file,
                    fetch: true,
                    len_bytes: due.len_bytes,
                    to: Vec::new(),
                }));
            }
        }
    }
    // One node tells of what nobody can do.
    if replicas.node() != NodeId(0) {
        impossible.clear();
    }
    (copies, impossible)
}

fn no_node() -> Error {
    Error::unavailable(
        "no node is free for it: each has a part of its parity group, or fails together with one that has",
    )
    .next("wait for the next checkpoint, which is protected as configured")
}

/// Steps, writers and groups whose files a restart from this record may need.
fn parts_of(record: &CommitRecord) -> BTreeSet<(Step, WriterId, usize)> {
    let mut parts = BTreeSet::new();
    for container in &record.containers {
        let mut groups = record.groups.iter();
        if let Some(group) = groups.position(|one| one.position(container.node).is_some()) {
            let steps = container.refers_to.iter().chain([&record.step]);
            parts.extend(steps.map(|&step| (step, container.writer, group)));
        }
    }
    parts
}

/// Container and parity file of a member, where it is to have them.
fn due(
    record: &CommitRecord,
    (step, writer): (Step, WriterId),
    (group, node): (&ParityGroup, NodeId),
    (holdings, everywhere): (&[Files], &[Files]),
) -> Vec<Due> {
    let container = |node: NodeId| {
        let of_writer = |one: &&ContainerRef| one.node == node && one.writer == writer;
        record.containers.iter().find(of_writer)
    };
    let own = container(node).and_then(|one| {
        let name = FileName::parse(&one.file)?.at_step(step).to_string();
        Some((name, Some(one.len_bytes).filter(|_| step == record.step)))
    });
    let mut others = group.nodes.iter().filter(|&&other| other != node);
    let parity = others.find_map(|&other| container(other)).and_then(|one| {
        let name = FileName::parse(&one.file)?.at_step(step).parity_on(node)?;
        Some((name.to_string(), None))
    });
    let due = |(file, known): (String, Option<u64>)| {
        // A truncated file is not there.
        let len = |node: &Files| {
            let mut files = node.iter();
            files.find_map(|(name, len)| (*name == file).then_some(*len))
        };
        let len_bytes = known.or_else(|| everywhere.iter().filter_map(len).max());
        let is_it = |(name, found): &(String, u64)| {
            *name == file && len_bytes.is_none_or(|expected| expected == *found)
        };
        let at = holdings.iter().position(|node| node.iter().any(is_it));
        Due {
            at: at.map(|at| NodeId(at as u32)),
            file,
            len_bytes,
        }
    };
    own.into_iter().chain(parity).map(due).collect()
}

/// A node of this run that has nothing of a group and fails together with none that has: one with
/// as few files as possible; the same on all nodes.
fn free_node(replicas: &Replicas, load: &[usize], occupied: &BTreeSet<NodeId>) -> Option<NodeId> {
    let domains = replicas.domains();
    let free = |node: &NodeId| {
        let mut others = occupied.iter();
        !others.any(|other| other == node || domains.together(*other, *node))
    };
    let nodes = (0..).map(NodeId).zip(load);
    let free = nodes.filter(|(node, _)| free(node));
    let best = free.min_by_key(|&(node, files)| (*files, node));
    best.map(|(node, _)| node)
}
