//! Who is where: nodes, ranks, and which writer flushes which rank.
//!
//! A **writer** is one CP-thread with its own containers. How many there are on a node follows
//! from the mode and the scheme (Shahzad et al. compare one CP-thread a node, a socket, a core):
//!
//! | mode | writers on a node | a writer's ranks |
//! | --- | --- | --- |
//! | orchestrated, scheme node | one, or one a lane where a node has several lanes | all, dealt over the lanes |
//! | orchestrated, scheme socket | one a socket in use | the ranks of that socket |
//! | orchestrated, scheme core | one a rank | one |
//! | vertical, traditional | one a rank | one |
//!
//! Invariants:
//! 1. Pure and deterministic: every rank computes the same layout from the same table.
//! 2. Every rank belongs to exactly one writer, a writer to exactly one node; the lowest rank of
//!    a node hosts the node's control thread, the lowest rank of a writer its CP-thread.
//!
//! Not here: which server a lane leads to (`orcheck_plan::placement`).

use orcheck_format::error::{Error, Result};

/// How checkpoints travel to the placed directories.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Striped over all directories, every rank its own stream, nobody waits for anybody.
    Traditional,
    /// Whole containers on the node's own directory, every rank its own stream.
    Vertical,
    /// Vertical, and one stream at a time per lane.
    Orchestrated,
}

/// How many CP-threads a node has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scheme {
    /// One for the node.
    Node,
    /// One for each socket that ranks run on.
    Socket,
    /// One for each rank.
    Core,
}

/// What one rank says of itself when the session opens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RankFacts {
    /// Failure domain: `ORCHECK_NODE`, or the host's name.
    pub node: String,
    /// Host name; several nodes may share one host.
    pub host: String,
    /// Socket of the processor it was on.
    pub socket: u32,
}

/// One node of the job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// Failure domain's name.
    pub name: String,
    /// Host it lives on.
    pub host: String,
    /// Its ranks, ascending.
    pub ranks: Vec<u32>,
    /// Its writers; `writers[w]` holds the ranks of writer `w`, ascending.
    pub writers: Vec<Vec<u32>>,
}

/// The whole job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// Nodes in order of their lowest rank.
    pub nodes: Vec<Node>,
    node_of: Vec<u32>,
}

impl Layout {
    /// Groups ranks into nodes and writers.
    ///
    /// # Errors
    /// Invalid for an empty world or a node name used on two hosts.
    pub fn new(
        facts: &[RankFacts],
        mode: Mode,
        scheme: Scheme,
        lanes_per_node: u32,
    ) -> Result<Self> {
        if facts.is_empty() {
            return Err(Error::invalid("a job needs at least one rank"));
        }
        let mut nodes: Vec<Node> = Vec::new();
        let mut index: std::collections::BTreeMap<&str, usize> = std::collections::BTreeMap::new();
        let mut node_of = Vec::with_capacity(facts.len());
        for (rank, fact) in facts.iter().enumerate() {
            let at = *index.entry(fact.node.as_str()).or_insert_with(|| {
                nodes.push(Node {
                    name: fact.node.clone(),
                    host: fact.host.clone(),
                    ranks: Vec::new(),
                    writers: Vec::new(),
                });
                nodes.len() - 1
            });
            if nodes[at].host != fact.host {
                return Err(Error::invalid(format!(
                    "node name '{}' is used on two hosts, '{}' and '{}' (rank {rank})",
                    fact.node, nodes[at].host, fact.host
                ))
                .next("give every host its own ORCHECK_NODE, or unset it"));
            }
            nodes[at].ranks.push(rank as u32);
            node_of.push(at as u32);
        }
        for node in &mut nodes {
            node.writers = match (mode, scheme) {
                (Mode::Orchestrated, Scheme::Node) => {
                    let writers = (lanes_per_node.max(1) as usize).min(node.ranks.len());
                    let mut groups = vec![Vec::new(); writers];
                    for (i, &rank) in node.ranks.iter().enumerate() {
                        groups[i * writers / node.ranks.len()].push(rank);
                    }
                    groups
                }
                (Mode::Orchestrated, Scheme::Socket) => {
                    let mut sockets: std::collections::BTreeMap<u32, Vec<u32>> =
                        std::collections::BTreeMap::new();
                    for &rank in &node.ranks {
                        sockets
                            .entry(facts[rank as usize].socket)
                            .or_default()
                            .push(rank);
                    }
                    let mut groups: Vec<Vec<u32>> = sockets.into_values().collect();
                    groups.sort();
                    groups
                }
                _ => node.ranks.iter().map(|&rank| vec![rank]).collect(),
            };
        }
        Ok(Self { nodes, node_of })
    }

    /// Of nodes that have all ranks, each once.
    #[must_use]
    pub fn of_nodes(nodes: Vec<Node>) -> Self {
        let mut node_of = vec![0; nodes.iter().map(|node| node.ranks.len()).sum()];
        for (at, node) in nodes.iter().enumerate() {
            for &rank in &node.ranks {
                node_of[rank as usize] = at as u32;
            }
        }
        Self { nodes, node_of }
    }

    /// Ranks in the job.
    #[must_use]
    pub fn world_size(&self) -> u32 {
        self.node_of.len() as u32
    }

    /// The node a rank lives on.
    #[must_use]
    pub fn node_of(&self, rank: u32) -> u32 {
        self.node_of[rank as usize]
    }

    /// Position of a rank among the ranks of its node.
    #[must_use]
    pub fn local_index(&self, rank: u32) -> u32 {
        let node = &self.nodes[self.node_of(rank) as usize];
        node.ranks.iter().position(|&r| r == rank).unwrap_or(0) as u32
    }

    /// The writer that flushes a rank.
    #[must_use]
    pub fn writer_of(&self, rank: u32) -> u32 {
        let node = &self.nodes[self.node_of(rank) as usize];
        node.writers
            .iter()
            .position(|w| w.contains(&rank))
            .unwrap_or(0) as u32
    }

    /// The writer whose CP-thread this rank hosts, if any.
    #[must_use]
    pub fn hosted_writer(&self, rank: u32) -> Option<u32> {
        let node = &self.nodes[self.node_of(rank) as usize];
        node.writers
            .iter()
            .position(|w| w.first() == Some(&rank))
            .map(|w| w as u32)
    }

    /// Whether this rank hosts its node's control thread.
    #[must_use]
    pub fn leads_node(&self, rank: u32) -> bool {
        self.nodes[self.node_of(rank) as usize].ranks.first() == Some(&rank)
    }

    /// Names of the nodes, in order.
    #[must_use]
    pub fn node_names(&self) -> Vec<String> {
        self.nodes.iter().map(|node| node.name.clone()).collect()
    }

    /// How many of the job's nodes share the host of node `node`.
    #[must_use]
    pub fn nodes_on_host_of(&self, node: u32) -> u32 {
        let host = &self.nodes[node as usize].host;
        self.nodes
            .iter()
            .filter(|other| &other.host == host)
            .count() as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(spec: &[(&str, u32)]) -> Vec<RankFacts> {
        spec.iter()
            .map(|&(node, socket)| RankFacts {
                node: node.into(),
                host: "h".into(),
                socket,
            })
            .collect()
    }

    #[test]
    fn one_writer_a_node_by_default() {
        let layout = Layout::new(
            &facts(&[("a", 0), ("b", 0), ("a", 1), ("b", 1)]),
            Mode::Orchestrated,
            Scheme::Node,
            1,
        )
        .unwrap();
        assert_eq!(layout.nodes[0].writers, vec![vec![0, 2]]);
        assert_eq!(layout.nodes[1].writers, vec![vec![1, 3]]);
        assert_eq!(layout.hosted_writer(0), Some(0));
        assert_eq!(layout.hosted_writer(2), None);
        assert!(layout.leads_node(1) && !layout.leads_node(3));
        assert_eq!(layout.local_index(3), 1);
    }

    #[test]
    fn lanes_sockets_and_cores_split_the_ranks() {
        let table = facts(&[("a", 0), ("a", 0), ("a", 1), ("a", 1)]);
        let lanes = Layout::new(&table, Mode::Orchestrated, Scheme::Node, 2).unwrap();
        assert_eq!(lanes.nodes[0].writers, vec![vec![0, 1], vec![2, 3]]);
        let sockets = Layout::new(&table, Mode::Orchestrated, Scheme::Socket, 1).unwrap();
        assert_eq!(sockets.nodes[0].writers, vec![vec![0, 1], vec![2, 3]]);
        let cores = Layout::new(&table, Mode::Orchestrated, Scheme::Core, 1).unwrap();
        assert_eq!(cores.nodes[0].writers.len(), 4);
        let vertical = Layout::new(&table, Mode::Vertical, Scheme::Node, 1).unwrap();
        assert_eq!(vertical.nodes[0].writers.len(), 4);
        let many_lanes = Layout::new(&table, Mode::Orchestrated, Scheme::Node, 9).unwrap();
        assert_eq!(many_lanes.nodes[0].writers.len(), 4);
    }

    #[test]
    fn a_node_name_on_two_hosts_is_refused() {
        let mut table = facts(&[("a", 0), ("a", 0)]);
        table[1].host = "other".into();
        let error = Layout::new(&table, Mode::Orchestrated, Scheme::Node, 1).unwrap_err();
        assert!(error.message().contains("two hosts"), "{error}");
    }
}
