//! Recognises the directories of nodes that were renamed.
//!
//! How: a commit record says on which nodes each container is. A directory whose name is none of
//! the nodes' is that of a node if it holds the node's own container, and nothing that the record
//! has elsewhere.
//!
//! Invariants:
//! 1. A directory that has the name of a node is that node's.
//! 2. No two directories become that of one node.
//!
//! Not here: which job a directory belongs to (`search.rs`).

use std::collections::BTreeSet;

use orcheck_engine::directory::{Catalog, Commit};
use orcheck_format::disk::{CommitRecord, FileName};
use orcheck_format::sabotage::{Switch, off};
use orcheck_format::{Level, NodeId};

const NODE: &str = "node ";

/// Corrects the kinds of places: `node NAME` by what is there, if NAME is none of the nodes.
pub(super) fn recognise_nodes(catalog: &Catalog, kinds: &mut [String]) {
    // Breaks if: it is left out; a node whose directory was read would be called unseen.
    if off(Switch::NodeRecognised) {
        return;
    }
    let commits = || {
        catalog
            .commits()
            .iter()
            .filter(|one| one.record.level != Level::Global)
    };
    let all: BTreeSet<&str> = commits()
        .flat_map(|commit| commit.record.nodes.iter().map(String::as_str))
        .collect();
    let mut taken: BTreeSet<String> = kinds.iter().filter_map(|kind| name_of(kind)).collect();
    for (place, kind) in kinds.iter_mut().enumerate() {
        let Some(name) = name_of(kind) else { continue };
        if all.contains(name.as_str()) {
            continue;
        }
        let mut nodes = commits().filter_map(|commit| node_of(catalog, commit, place, &taken));
        if let Some(node) = nodes.next() {
            *kind = format!("{NODE}{node}");
            taken.insert(node.to_owned());
        }
    }
}

fn name_of(kind: &str) -> Option<String> {
    kind.strip_prefix(NODE).map(str::to_owned)
}

/// The node whose directory this is, by what it holds of one checkpoint.
fn node_of<'a>(
    catalog: &Catalog,
    commit: &'a Commit,
    place: usize,
    taken: &BTreeSet<String>,
) -> Option<&'a str> {
    let record = &commit.record;
    let of = (
        record.step,
        record.epoch.counter,
        record.epoch.run.short_bytes(),
    );
    let files = catalog.files().iter().filter(|(at, ..)| *at == place);
    let names = files.filter_map(|(_, _, name)| name.as_ref());
    let held = names.filter(|name| {
        let is_data = matches!(name, FileName::Container { .. } | FileName::Parity { .. });
        is_data && name.checkpoint() == Some(of)
    });
    let held: BTreeSet<FileName> = held.cloned().collect();
    let mut nodes = (0u32..).map(NodeId).zip(&record.nodes);
    let fits = |(node, name): &(NodeId, &String)| {
        let (own, all) = files_of(record, *node);
        !taken.contains(*name) && !own.is_disjoint(&held) && held.is_subset(&all)
    };
    nodes.find(fits).map(|(_, name)| name.as_str())
}

/// The containers of a node itself, and all that its directory may hold of a checkpoint.
fn files_of(record: &CommitRecord, node: NodeId) -> (BTreeSet<FileName>, BTreeSet<FileName>) {
    let (mut own, mut all) = (BTreeSet::new(), BTreeSet::new());
    for container in &record.containers {
        let Some(name) = FileName::parse(&container.file) else {
            continue;
        };
        if container.node == node {
            own.insert(name.clone());
            all.insert(name);
        } else if container.holders.contains(&node) {
            all.insert(name);
        } else if record
            .group_of(node)
            .is_some_and(|of| of.position(container.node).is_some())
        {
            all.extend(name.parity_on(node));
        }
    }
    (own, all)
}
