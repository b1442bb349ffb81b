//! Defines failure domains: which nodes fail together.
//!
//! What it does: it knows each node's switch, rack and power line from the user's **topology
//! file**; without one, every node fails alone. The file may describe a whole machine; nodes that
//! are not in the job are ignored.
//!
//! ```toml
//! # node = what it fails together with
//! n1 = "switch 1"
//! n2 = ["switch 1", "rack A"]
//! ```
//!
//! Invariants:
//! 1. Every node of the job has an entry, or there is no file: a forgotten node is an error,
//!    because its replicas could be anywhere.
//! 2. Two nodes fail together if they share at least one domain.
//!
//! Not here: who holds what (`draw.rs`).

use orcheck_format::sabotage::{Switch, off};
use orcheck_format::{Error, NodeId, Result};
use std::collections::BTreeMap;

/// Maximum number of domains of one node.
const DOMAINS_MAX: usize = 16;

/// Which nodes fail together; see the module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Domains {
    /// For each node, the numbers of its domains, ascending; if empty, the node fails alone.
    of: Vec<Vec<u32>>,
}

impl Domains {
    /// Every node fails alone.
    #[must_use]
    pub fn none(nodes: u32) -> Self {
        Self {
            of: vec![Vec::new(); nodes as usize],
        }
    }

    /// From the numbers of each node's domains.
    #[must_use]
    pub fn of(mut of: Vec<Vec<u32>>) -> Self {
        of.iter_mut().for_each(|numbers| numbers.sort_unstable());
        Self { of }
    }

    /// For each node, the numbers of its domains, ascending.
    #[must_use]
    pub fn of_each(&self) -> &[Vec<u32>] {
        &self.of
    }

    /// Parses a topology file; `nodes` are those of the job, in the order of their numbers.
    ///
    /// # Errors
    /// Invalid: not TOML, a value that is neither a name nor a list of names, or a node of the job
    /// without an entry.
    pub fn from_toml(text: &str, nodes: &[String]) -> Result<Self> {
        let file: toml::Table = text.parse().map_err(|error: toml::de::Error| {
            wrong(error.message()).next("write a line NODE = [\"DOMAIN\", …] for each node")
        })?;
        let mut numbers = BTreeMap::new();
        let mut of = Vec::with_capacity(nodes.len());
        for node in nodes {
            let value = file.get(node).ok_or_else(|| {
                wrong(format!("it does not name node '{node}'")).next(format!(
                    "add a line {node} = [\"DOMAIN\", …], or {node} = [] if it fails alone"
                ))
            })?;
            let names = names_in(value).ok_or_else(|| {
                wrong(format!(
                    "{node} = {value}: expected a name or a list of names"
                ))
            })?;
            if names.len() > DOMAINS_MAX {
                return Err(wrong(format!(
                    "node '{node}' is in {} domains; at most {DOMAINS_MAX} are possible",
                    names.len()
                )));
            }
            let mut mine: Vec<u32> = names
                .iter()
                .map(|name| {
                    let next = numbers.len() as u32;
                    *numbers.entry(*name).or_insert(next)
                })
                .collect();
            mine.sort_unstable();
            mine.dedup();
            of.push(mine);
        }
        Ok(Self { of })
    }

    /// Number of nodes in the job.
    #[must_use]
    pub fn nodes(&self) -> u32 {
        self.of.len() as u32
    }

    /// Whether two different nodes fail together.
    #[must_use]
    pub fn together(&self, a: NodeId, b: NodeId) -> bool {
        let (a, b) = (&self.of[a.index()], &self.of[b.index()]);
        a.iter().any(|domain| b.contains(domain))
    }

    /// Whether what one of two different nodes has may be replicated on the other one.
    pub(crate) fn apart(&self, a: NodeId, b: NodeId) -> bool {
        !self.together(a, b) || off(Switch::ReplicaDomain)
    }

    /// For each node, the first one of those that it is linked with: it fails together with them,
    /// or with one that is linked with them.
    pub(crate) fn linked(&self) -> Vec<NodeId> {
        let mut first: Vec<usize> = (0..self.of.len()).collect();
        let mut of_domain = BTreeMap::new();
        let domains = self.of.iter().enumerate();
        let pairs = domains.flat_map(|(node, of)| of.iter().map(move |&domain| (node, domain)));
        for (node, domain) in pairs.filter(|_| !off(Switch::ReplicaDomain)) {
            let other = *of_domain.entry(domain).or_insert(node);
            let (a, b) = (first_of(&mut first, other), first_of(&mut first, node));
            first[a.max(b)] = a.min(b);
        }
        let all = 0..self.of.len();
        all.map(|node| NodeId(first_of(&mut first, node) as u32))
            .collect()
    }
}

/// Follows the links from a node, each of which leads to a smaller number, and shortens them.
fn first_of(first: &mut [usize], mut node: usize) -> usize {
    while first[node] != node {
        first[node] = first[first[node]];
        node = first[node];
    }
    node
}

fn wrong(what: impl std::fmt::Display) -> Error {
    Error::invalid(format!("topology file: {what}"))
}

/// A name, or a list of them.
fn names_in(value: &toml::Value) -> Option<Vec<&str>> {
    match value {
        toml::Value::String(name) => Some(vec![name]),
        toml::Value::Array(names) => names.iter().map(toml::Value::as_str).collect(),
        _ => None,
    }
}
