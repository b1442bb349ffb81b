//! Computes vertical placement: every node writes whole containers to its own few targets.
//!
//! What it does: it maps each node to its lanes, one ordered flush stream per target, so that a
//! server sees a few long sequential streams instead of a stripe of every rank's state.
//! How: [`Placement::balanced`] assigns servers in turn. [`Placement::weighted`] gives the largest
//! node to the least loaded servers, then the next (longest processing time first).
//! [`Placement::from_toml`] parses the user's mapping file. [`Placement::without`] removes a lost
//! or full server and moves only the lanes that were on it.
//!
//! Invariants:
//! 1. Every node has at least one lane, and every lane leads to an active server.
//! 2. The lanes of one node lead to different servers.
//! 3. In a balanced placement, the numbers of lanes of any two servers differ by at most one.
//! 4. Equal input gives an equal placement on every machine.
//! 5. A placement never changes; a new one has a higher generation.
//! 6. With one lane per node, a weighted placement loads its fullest server with at most 4/3 of the
//!    load in the best possible placement.
//!
//! Faults survived: the loss of any server while another active one is left.
//! Not here: detecting the loss, the commit record that keeps the generation, striping (mode
//! `traditional` uses every server and needs no map).

use std::collections::{BTreeMap, BTreeSet};

use orcheck_format::{Error, Result, TargetId};
use serde::{Deserialize, Serialize};

/// Maximum number of lanes of a node if the caller gives no number.
pub const DEFAULT_LANES_MAX: u32 = 8;

/// Maximum number of lanes that a node can have. Each lane is a stream with its own container and
/// lock.
pub(crate) const LANES_MAX: u32 = 64;

/// One target: a directory on a separate disk, an object storage target, a staging server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// What the user configured, such as a path; unique in a placement.
    pub name: String,
    /// False once the server was lost, full or removed; it then has no lanes.
    pub active: bool,
}

/// The targets that each node writes to. See the module for the invariants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    /// Counts the placements of one run of a job, from 0; recorded in every commit record.
    pub generation: u64,
    /// All servers as configured, inactive ones included, so that an index keeps its meaning.
    pub servers: Vec<Target>,
    /// For each node, in the caller's order, the indices of its servers.
    pub lanes: Vec<Vec<TargetId>>,
}

/// The mapping file. Separate from [`Placement`] because it uses names.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct MappingFile {
    #[serde(default)]
    generation: u64,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    inactive: Vec<String>,
    nodes: BTreeMap<String, NodeServers>,
}

/// The servers of one node: a single string is the common case and stays readable.
#[derive(Debug, Serialize, Deserialize)]
#[serde(untagged)]
enum NodeServers {
    One(String),
    Many(Vec<String>),
}

impl Placement {
    /// Assigns the servers to the nodes in turn.
    ///
    /// `lanes_per_node` defaults to servers divided by nodes, at least 1, at most
    /// [`DEFAULT_LANES_MAX`].
    ///
    /// # Errors
    /// `Invalid`: no node, no server, a name given twice, or more lanes than servers.
    pub fn balanced(
        nodes: &[String],
        servers: &[String],
        lanes_per_node: Option<u32>,
    ) -> Result<Self> {
        let lanes_per_node = check_input(nodes, servers, lanes_per_node)?;
        let mut turn = (0..servers.len() as u32).map(TargetId).cycle();
        let lanes = nodes
            .iter()
            .map(|_| turn.by_ref().take(lanes_per_node).collect())
            .collect();
        Ok(Self {
            generation: 0,
            servers: all_active(servers),
            lanes,
        }
        .checked())
    }

    /// Gives the largest node the least loaded servers, then the next largest.
    ///
    /// `sizes_bytes` holds the size of each node's part of a checkpoint, for example of the
    /// previous one. A node with several lanes is assumed to split its bytes evenly.
    ///
    /// # Errors
    /// `Invalid`: as for [`Placement::balanced`], or not one size per node.
    pub fn weighted(
        nodes: &[String],
        sizes_bytes: &[u64],
        servers: &[String],
        lanes_per_node: Option<u32>,
    ) -> Result<Self> {
        let lanes_per_node = check_input(nodes, servers, lanes_per_node)?;
        if sizes_bytes.len() != nodes.len() {
            return Err(Error::invalid(format!(
                "weighted placement: {} sizes for {} nodes, expected one size per node",
                sizes_bytes.len(),
                nodes.len()
            )));
        }
        let mut largest_first: Vec<usize> = (0..nodes.len()).collect();
        largest_first.sort_by_key(|&node| (std::cmp::Reverse(sizes_bytes[node]), node));

        // u128: the sum of u64 sizes must not wrap, whatever sizes a caller passes.
        let mut load = vec![(0_u128, 0_u32); servers.len()];
        let mut lanes = vec![Vec::new(); nodes.len()];
        for node in largest_first {
            let mut emptiest_first: Vec<TargetId> =
                (0..servers.len() as u32).map(TargetId).collect();
            emptiest_first.sort_by_key(|&server| (load[server.index()], server));
            for server in emptiest_first.into_iter().take(lanes_per_node) {
                let (bytes, streams) = &mut load[server.index()];
                *bytes += u128::from(sizes_bytes[node]);
                *streams += 1;
                lanes[node].push(server);
            }
        }
        Ok(Self {
            generation: 0,
            servers: all_active(servers),
            lanes,
        }
        .checked())
    }

    /// Reads a mapping file.
    ///
    /// ```toml
    /// inactive = ["/pfs/ost3"]        # optional
    /// [nodes]
    /// n000 = "/pfs/ost0"
    /// n001 = ["/pfs/ost1", "/pfs/ost2"]
    /// ```
    /// Entries for nodes that this run does not have are allowed: one file can serve every
    /// allocation on a machine.
    ///
    /// # Errors
    /// `Invalid`: not TOML, an unknown key, a node without an entry or without a server, a server
    /// that is not among `servers`, is inactive, or is named twice for one node, more than
    /// [`LANES_MAX`] servers for one node.
    pub fn from_toml(text: &str, nodes: &[String], servers: &[String]) -> Result<Self> {
        check_input(nodes, servers, Some(1))?;
        let file: MappingFile = toml::from_str(text).map_err(|e| {
            Error::invalid(format!("mapping file: {}", e.to_string().trim_end()))
                .next("correct the file; docs/options.md shows one that works")
        })?;
        let index_of = |name: &str, said_by: &str| {
            servers
                .iter()
                .position(|server| server == name)
                .ok_or_else(|| {
                    Error::invalid(format!(
                        "mapping file: {said_by} names server \"{name}\", which is not configured; \
                     configured are: {}",
                        servers.join(", ")
                    ))
                    .next("correct the name, or add the server to the configuration")
                })
        };
        let mut all = all_active(servers);
        for name in &file.inactive {
            all[index_of(name, "inactive")?].active = false;
        }
        let mut lanes = Vec::with_capacity(nodes.len());
        for node in nodes {
            let names = match file.nodes.get(node) {
                Some(NodeServers::One(name)) => std::slice::from_ref(name),
                Some(NodeServers::Many(names)) => names.as_slice(),
                None => {
                    return Err(Error::invalid(format!(
                        "mapping file: node \"{node}\" has no entry under [nodes]"
                    ))
                    .next(format!(
                        "add a line such as \"{node}\" = \"{}\"",
                        servers[0]
                    )));
                }
            };
            if names.is_empty() || names.len() > LANES_MAX as usize {
                return Err(Error::invalid(format!(
                    "mapping file: node \"{node}\" has {} servers, expected 1 to {LANES_MAX}",
                    names.len()
                )));
            }
            let mut of_node = Vec::with_capacity(names.len());
            for name in names {
                let server = index_of(name, &format!("node \"{node}\""))?;
                if !all[server].active {
                    return Err(Error::invalid(format!(
                        "mapping file: node \"{node}\" writes to \"{name}\", which is inactive"
                    ))
                    .next("give the node another server, or take this one off `inactive`"));
                }
                if of_node.contains(&TargetId(server as u32)) {
                    return Err(Error::invalid(format!(
                        "mapping file: node \"{node}\" names server \"{name}\" twice"
                    ))
                    .next("name each server of a node once; a lane is one stream to one server"));
                }
                of_node.push(TargetId(server as u32));
            }
            lanes.push(of_node);
        }
        Ok(Self {
            generation: file.generation,
            servers: all,
            lanes,
        }
        .checked())
    }

    /// Writes a mapping file that [`Placement::from_toml`] reads back to an equal placement.
    ///
    /// `nodes` are those that the placement was made for, in the same order.
    pub fn to_toml(&self, nodes: &[String]) -> String {
        let name = |server: &TargetId| self.servers[server.index()].name.clone();
        let file = MappingFile {
            generation: self.generation,
            inactive: self
                .servers
                .iter()
                .filter(|s| !s.active)
                .map(|s| s.name.clone())
                .collect(),
            nodes: nodes
                .iter()
                .zip(&self.lanes)
                .map(|(node, lanes)| {
                    let servers = match lanes.as_slice() {
                        [only] => NodeServers::One(name(only)),
                        many => NodeServers::Many(many.iter().map(name).collect()),
                    };
                    (node.clone(), servers)
                })
                .collect(),
        };
        // Strings, a list and one integer always have a TOML form, unless the generation is
        // beyond 2^63, which one new generation per lost server cannot reach.
        toml::to_string(&file).unwrap_or_default()
    }

    /// The next generation, with `server` inactive and its lanes spread over the others.
    ///
    /// A lane moves to the server with the fewest lanes among those that its node does not use yet;
    /// it is dropped if the node already uses them all. Lanes on other servers stay where they are.
    /// Removing an inactive server changes nothing, so that several nodes can report one loss.
    ///
    /// # Errors
    /// `Invalid`: no such server, or not the nodes of this placement. `Unavailable`: `server` is
    /// the last active one.
    pub fn without(&self, server: TargetId, nodes: &[String]) -> Result<Self> {
        if nodes.len() != self.lanes.len() {
            return Err(Error::invalid(format!(
                "placement of {} nodes, asked to change with {} nodes",
                self.lanes.len(),
                nodes.len()
            )));
        }
        let Some(lost) = self.servers.get(server.index()) else {
            return Err(Error::invalid(format!(
                "placement has {} servers, asked to take out number {server}",
                self.servers.len()
            )));
        };
        if !lost.active {
            return Ok(self.clone());
        }
        let mut next = self.clone();
        next.generation += 1;
        next.servers[server.index()].active = false;
        if next.servers.iter().all(|s| !s.active) {
            return Err(Error::unavailable(format!(
                "target \"{}\" is out of use and it was the last active one of {}",
                lost.name,
                self.servers.len()
            ))
            .next("free space on a server or bring one back, then start the job again"));
        }
        let mut streams = vec![0_u64; next.servers.len()];
        for lane in next.lanes.iter().flatten() {
            streams[lane.index()] += 1;
        }
        for of_node in &mut next.lanes {
            let Some(at) = of_node.iter().position(|&lane| lane == server) else {
                continue;
            };
            let to = (0..next.servers.len() as u32)
                .map(TargetId)
                .filter(|to| next.servers[to.index()].active && !of_node.contains(to))
                .min_by_key(|to| (streams[to.index()], *to));
            match to {
                Some(to) => {
                    of_node[at] = to;
                    streams[to.index()] += 1;
                }
                None => {
                    of_node.remove(at);
                }
            }
        }
        Ok(next.checked())
    }

    /// Panics if the placement contradicts the invariants above, which is a defect whatever the
    /// input.
    pub fn check_invariants(&self) {
        let names: BTreeSet<&str> = self.servers.iter().map(|one| one.name.as_str()).collect();
        assert_eq!(names.len(), self.servers.len(), "a target is named twice");
        for (node, lanes) in self.lanes.iter().enumerate() {
            // 1.
            assert!(!lanes.is_empty(), "node {node} has no lane");
            let active = |&lane: &TargetId| {
                let target = self.servers.get(lane.index());
                target.is_some_and(|target| target.active)
            };
            assert!(
                lanes.iter().all(active),
                "node {node}: {lanes:?} are not all in use"
            );
            // 2.
            let different: BTreeSet<TargetId> = lanes.iter().copied().collect();
            assert_eq!(different.len(), lanes.len(), "node {node}: {lanes:?}");
        }
    }

    fn checked(self) -> Self {
        if cfg!(debug_assertions) {
            self.check_invariants();
        }
        self
    }
}

fn all_active(servers: &[String]) -> Vec<Target> {
    servers
        .iter()
        .map(|name| Target {
            name: name.clone(),
            active: true,
        })
        .collect()
}

/// Refuses input from which no placement can be made; returns the number of lanes of each node.
fn check_input(nodes: &[String], servers: &[String], lanes_per_node: Option<u32>) -> Result<usize> {
    for (what, names) in [("node", nodes), ("target", servers)] {
        if names.is_empty() {
            return Err(Error::invalid(format!(
                "placement: no {what} given, expected at least 1"
            )));
        }
        let mut seen = BTreeSet::new();
        if let Some(twice) = names.iter().find(|name| !seen.insert(name.as_str())) {
            return Err(
                Error::invalid(format!("placement: {what} \"{twice}\" is given twice"))
                    .next("give every node and every target a name of its own"),
            );
        }
    }
    // A list longer than this cannot come from a real machine, and indices are u32.
    if servers.len() > u32::MAX as usize {
        return Err(Error::invalid(format!(
            "placement: {} targets",
            servers.len()
        )));
    }
    match lanes_per_node {
        None => Ok((servers.len() / nodes.len()).clamp(1, DEFAULT_LANES_MAX as usize)),
        Some(lanes) if lanes == 0 || lanes > LANES_MAX || lanes as usize > servers.len() => {
            Err(Error::invalid(format!(
                "placement: {lanes} lanes per node, expected 1 to {}",
                servers.len().min(LANES_MAX as usize)
            ))
            .next("each lane of a node leads to a server of its own: lower lanes_per_node"))
        }
        Some(lanes) => Ok(lanes as usize),
    }
}
