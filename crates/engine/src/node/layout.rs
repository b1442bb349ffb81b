//! Lays out the job: nodes, ranks, and the writer that flushes each rank.
//!
//! A **writer** is one CP-thread with its own containers. The mode and the scheme determine how
//! many there are on a node (Shahzad et al. compare one CP-thread per node, socket and core):
//!
//! | mode | writers on a node | a writer's ranks |
//! | --- | --- | --- |
//! | orchestrated, scheme node | one, or one per lane | all, distributed over the lanes |
//! | orchestrated, scheme socket | one per socket in use | the ranks of that socket |
//! | orchestrated, scheme core | one per rank | one |
//! | vertical, traditional | one per rank | one |
//!
//! Invariants:
//! 1. Pure and deterministic: every rank computes the same layout from the same table.
//! 2. Every rank belongs to exactly one writer, and a writer to exactly one node. The lowest rank
//!    of a node hosts its control thread; the lowest rank of a writer hosts its CP-thread.
//!
//! Not here: which server a lane leads to (`orcheck_placement::placement`).

use orcheck_format::{Error, NodeId, Rank, Result, WriterId};

/// How checkpoints travel to the placed directories.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Every rank's stream is striped over all directories, without coordination.
    Traditional,
    /// Every rank's stream goes to the node's own directory.
    Vertical,
    /// As `Vertical`, with one stream at a time per lane.
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

/// One node of the job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// Name of the failure domain.
    pub name: String,
    /// Its host.
    pub host: String,
    /// Its ranks, ascending.
    pub ranks: Vec<Rank>,
    /// Its writers; `writers[w]` holds the ranks of writer `w`, ascending.
    pub writers: Vec<Vec<Rank>>,
}

/// The whole job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// Nodes in order of their lowest rank.
    pub nodes: Vec<Node>,
    node_of: Vec<NodeId>,
}

impl Layout {
    /// Groups ranks into nodes and writers. Takes the names and hosts of the nodes, in order of
    /// their lowest rank; the node of each rank; and, with scheme `socket`, the socket of each
    /// rank.
    ///
    /// # Errors
    /// Invalid for an empty world; Internal for nodes in another order.
    pub fn new(
        names: Vec<(String, String)>,
        node_of: Vec<NodeId>,
        sockets: &[u32],
        (mode, scheme): (Mode, Scheme),
        lanes_per_node: u32,
    ) -> Result<Self> {
        if node_of.is_empty() {
            return Err(Error::invalid("a job needs at least one rank"));
        }
        let node = |(name, host)| Node {
            name,
            host,
            ranks: Vec::new(),
            writers: Vec::new(),
        };
        let mut nodes: Vec<Node> = names.into_iter().map(node).collect();
        let mut met = 0;
        for (rank, &at) in (0..).zip(&node_of) {
            met = met.max(at.0 + u32::from(at.0 == met));
            if at.0 >= met || at.index() >= nodes.len() {
                return Err(Error::internal(format!(
                    "rank {rank} is on node {at} of {}, and {met} were met before",
                    nodes.len()
                )));
            }
            nodes[at.index()].ranks.push(Rank(rank));
        }
        let socket = |rank: Rank| sockets.get(rank.index()).copied().unwrap_or(0);
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
                    let mut sockets: std::collections::BTreeMap<u32, Vec<Rank>> =
                        std::collections::BTreeMap::new();
                    for &rank in &node.ranks {
                        sockets.entry(socket(rank)).or_default().push(rank);
                    }
                    let mut groups: Vec<Vec<Rank>> = sockets.into_values().collect();
                    groups.sort();
                    groups
                }
                _ => node.ranks.iter().map(|&rank| vec![rank]).collect(),
            };
        }
        let layout = Self { nodes, node_of };
        if cfg!(debug_assertions) {
            layout.check_invariants();
        }
        Ok(layout)
    }

    /// Panics if the layout does not hold what the module promises.
    fn check_invariants(&self) {
        let mut seen = vec![0; self.node_of.len()];
        for (at, node) in self.nodes.iter().enumerate() {
            assert!(node.ranks.is_sorted(), "{node:?}");
            // 2.
            for &rank in node.writers.iter().flatten() {
                assert_eq!(self.node_of[rank.index()].index(), at, "rank {rank}");
                seen[rank.index()] += 1;
            }
        }
        assert!(seen.iter().all(|&writers| writers == 1), "{seen:?}");
    }

    /// Makes the layout of nodes that hold all ranks, each once.
    #[must_use]
    pub fn of_nodes(nodes: Vec<Node>) -> Self {
        let mut node_of = vec![NodeId(0); nodes.iter().map(|node| node.ranks.len()).sum()];
        for (at, node) in nodes.iter().enumerate() {
            for &rank in &node.ranks {
                node_of[rank.index()] = NodeId(at as u32);
            }
        }
        let layout = Self { nodes, node_of };
        if cfg!(debug_assertions) {
            layout.check_invariants();
        }
        layout
    }

    /// Ranks in the job.
    #[must_use]
    pub fn world_size(&self) -> u32 {
        self.node_of.len() as u32
    }

    /// The node of a rank.
    #[must_use]
    pub fn node_of(&self, rank: Rank) -> NodeId {
        self.node_of[rank.index()]
    }

    /// Position of a rank among the ranks of its node.
    #[must_use]
    pub fn local_index(&self, rank: Rank) -> u32 {
        let node = &self.nodes[self.node_of(rank).index()];
        node.ranks.iter().position(|&r| r == rank).unwrap_or(0) as u32
    }

    /// The writer that flushes a rank.
    #[must_use]
    pub fn writer_of(&self, rank: Rank) -> WriterId {
        let node = &self.nodes[self.node_of(rank).index()];
        WriterId(
            node.writers
                .iter()
                .position(|w| w.contains(&rank))
                .unwrap_or(0) as u32,
        )
    }

    /// The writer whose CP-thread this rank hosts, if any.
    #[must_use]
    pub fn hosted_writer(&self, rank: Rank) -> Option<WriterId> {
        let node = &self.nodes[self.node_of(rank).index()];
        (node
            .writers
            .iter()
            .position(|w| w.first() == Some(&rank))
            .map(|w| w as u32))
        .map(WriterId)
    }

    /// Whether this rank hosts its node's control thread.
    #[must_use]
    pub fn leads_node(&self, rank: Rank) -> bool {
        self.nodes[self.node_of(rank).index()].ranks.first() == Some(&rank)
    }

    /// Names of the nodes, in order.
    #[must_use]
    pub fn node_names(&self) -> Vec<String> {
        self.nodes.iter().map(|node| node.name.clone()).collect()
    }

    /// Whether the nodes are on more than one host.
    #[must_use]
    pub fn has_hosts(&self) -> bool {
        self.nodes
            .iter()
            .any(|node| node.host != self.nodes[0].host)
    }

    /// How many of the job's nodes share the host of node `node`.
    #[must_use]
    pub fn nodes_on_host_of(&self, node: NodeId) -> u32 {
        let host = &self.nodes[node.index()].host;
        self.nodes
            .iter()
            .filter(|other| &other.host == host)
            .count() as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(spec: &[(&str, u32)], mode: Mode, scheme: Scheme, lanes: u32) -> Layout {
        let mut names: Vec<&str> = Vec::new();
        let mut node_of = Vec::new();
        for (name, _) in spec {
            let at = names.iter().position(|known| known == name);
            node_of.push(NodeId(at.unwrap_or(names.len()) as u32));
            if at.is_none() {
                names.push(name);
            }
        }
        let names = names.iter().map(|name| (name.to_string(), "h".to_owned()));
        let sockets: Vec<u32> = spec.iter().map(|(_, socket)| *socket).collect();
        Layout::new(names.collect(), node_of, &sockets, (mode, scheme), lanes).unwrap()
    }

    #[test]
    fn one_writer_a_node_by_default() {
        let table = [("a", 0), ("b", 0), ("a", 1), ("b", 1)];
        let layout = layout(&table, Mode::Orchestrated, Scheme::Node, 1);
        assert_eq!(layout.nodes[0].writers, [[Rank(0), Rank(2)]]);
        assert_eq!(layout.nodes[1].writers, [[Rank(1), Rank(3)]]);
        assert_eq!(layout.hosted_writer(Rank(0)), Some(WriterId(0)));
        assert_eq!(layout.hosted_writer(Rank(2)), None);
        assert!(layout.leads_node(Rank(1)) && !layout.leads_node(Rank(3)));
        assert_eq!(layout.local_index(Rank(3)), 1);
    }

    #[test]
    fn lanes_sockets_and_cores_split_the_ranks() {
        let table = [("a", 0), ("a", 0), ("a", 1), ("a", 1)];
        let lanes = layout(&table, Mode::Orchestrated, Scheme::Node, 2);
        assert_eq!(
            lanes.nodes[0].writers,
            [[Rank(0), Rank(1)], [Rank(2), Rank(3)]]
        );
        let sockets = layout(&table, Mode::Orchestrated, Scheme::Socket, 1);
        assert_eq!(
            sockets.nodes[0].writers,
            [[Rank(0), Rank(1)], [Rank(2), Rank(3)]]
        );
        let cores = layout(&table, Mode::Orchestrated, Scheme::Core, 1);
        assert_eq!(cores.nodes[0].writers.len(), 4);
        let vertical = layout(&table, Mode::Vertical, Scheme::Node, 1);
        assert_eq!(vertical.nodes[0].writers.len(), 4);
        let many_lanes = layout(&table, Mode::Orchestrated, Scheme::Node, 9);
        assert_eq!(many_lanes.nodes[0].writers.len(), 4);
    }

    // Breaks if: a node without a name is accepted, or one whose lowest rank comes before that of
    // an earlier node.
    #[test]
    fn nodes_in_another_order_are_refused() {
        let names = || vec![("a".to_owned(), "h".to_owned()); 2];
        for node_of in [vec![1, 0], vec![0, 2], vec![0, 1, 2]] {
            let node_of = node_of.into_iter().map(NodeId).collect();
            let modes = (Mode::Orchestrated, Scheme::Node);
            assert!(Layout::new(names(), node_of, &[], modes, 1).is_err());
        }
    }
}
