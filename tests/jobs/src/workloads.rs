//! The jobs that most trials run.

use crate::life::Workload;
use crate::payload::RARELY;
use std::path::{Path, PathBuf};

impl Workload {
    /// Where files of the program lie, if not in a directory of the job.
    pub fn route_place(&self, root: &Path) -> Option<PathBuf> {
        (self.routed && !self.node_level).then(|| root.join("routed"))
    }
}

/// One rank, one directory, a routed file.
pub const SOLO: Workload = Workload {
    name: "1 rank, global",
    ranks: 1,
    nodes: 1,
    dirs: 1,
    node_level: false,
    losses: 0,
    keep: 2,
    scale: 100,
    options: "",
    routed: true,
    lent: false,
    overlapped: false,
};

/// The same with a directory of the node, in which the routed file lies then.
pub const HOME: Workload = Workload {
    name: "1 rank, node, routed file",
    dirs: 0,
    node_level: true,
    scale: 20,
    ..SOLO
};

/// Both levels, two nodes, a pool that holds one chunk a rank.
pub const NODES: Workload = Workload {
    name: "4 ranks, 2 nodes, node + global, 4 chunks",
    ranks: 4,
    nodes: 2,
    dirs: 2,
    node_level: true,
    losses: 0,
    keep: 2,
    scale: 150,
    options: "pool = '256 KiB'",
    routed: false,
    lent: true,
    overlapped: true,
};

/// Striped over two directories, only the newest is kept.
pub const STRIPED: Workload = Workload {
    name: "2 ranks, traditional, keep 1",
    ranks: 2,
    nodes: 1,
    dirs: 2,
    node_level: false,
    losses: 0,
    keep: 1,
    scale: 200,
    options: "mode = 'traditional'",
    routed: false,
    lent: false,
    overlapped: true,
};

/// Two ranks on two nodes, each with its own directory, and both levels.
pub const PAIR: Workload = Workload {
    name: "2 ranks, 2 nodes, node + global",
    ranks: 2,
    nodes: 2,
    dirs: 2,
    node_level: true,
    losses: 0,
    keep: 2,
    scale: 100,
    options: "",
    routed: false,
    lent: false,
    overlapped: false,
};

/// Compressed and encrypted at both levels, with a pool that holds a part; the key lies beside the
/// directories.
pub const ENCODED: Workload = Workload {
    name: "2 ranks, node + global, zstd + aes-256-gcm, 4 chunks",
    ranks: 2,
    nodes: 1,
    dirs: 1,
    node_level: true,
    losses: 0,
    keep: 2,
    scale: 120,
    options: "pool = '256 KiB'\ncompress = 'zstd'\nencrypt = 'aes-256-gcm'",
    routed: false,
    lent: true,
    overlapped: false,
};

/// Two nodes, each of which may be lost. With more of them other nodes would hold the replicas in
/// each run, and a step of one run would have no like in the next.
pub const PEERS: Workload = Workload {
    name: "2 ranks, 2 nodes, peers(1) + global",
    losses: 1,
    ..PAIR
};

/// Three nodes that protect each other by parity; each may be lost.
pub const PARITY: Workload = Workload {
    name: "3 ranks, 3 nodes, xor=3 + global",
    ranks: 3,
    nodes: 3,
    dirs: 1,
    scale: 60,
    options: "protect = 'xor=3'",
    ..PEERS
};

/// As [`PAIR`] without level node: every container is in one place only.
pub const SPREAD: Workload = Workload {
    name: "2 ranks, 2 nodes, global",
    node_level: false,
    ..PAIR
};

/// Both levels, and checkpoints that refer to older ones; every third one is full.
pub const INCREMENTAL: Workload = Workload {
    name: "1 rank, node + global, incremental",
    ranks: 1,
    nodes: 1,
    dirs: 1,
    scale: 200 | RARELY,
    options: "incremental = 'auto'\nincremental_chain = 2",
    ..PAIR
};

/// Everything at once: smaller, unreadable, at both levels of two nodes, and referring to older
/// ones.
///
/// Each run has salts of its own, so that another one with the same seed stores other bytes. What
/// is tried on one recording is not touched by that: its images are parts of what one run wrote.
pub const SEALED: Workload = Workload {
    name: "2 ranks, 2 nodes, incremental, zstd + aes-256-gcm",
    options: "incremental = 'auto'\nincremental_chain = 2\ncompress = 'zstd'\nencrypt = 'aes-256-gcm'",
    scale: 120 | RARELY,
    ..PAIR
};
