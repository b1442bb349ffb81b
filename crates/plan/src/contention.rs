//! Contention: how long a burst of checkpoints takes on a few I/O servers.
//!
//! Not here: I/O, clocks.

mod parameters;

use serde::{Deserialize, Serialize};

pub use parameters::{Calibration, Case, Client, Disk, Network, Parameters, Server};

/// How a burst is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Every rank in stripes over all servers.
    Traditional,
    /// Every rank whole on the server of its node.
    Vertical,
    /// One stream a node, pulled by its server.
    Orchestrated,
}

/// What is written: every rank its bytes, at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Burst {
    /// How it is written.
    pub mode: Mode,
    /// Compute nodes.
    pub nodes: u32,
    /// Ranks on each.
    pub ranks_per_node: u32,
    /// I/O servers.
    pub servers: u32,
    /// Bytes that each rank writes.
    pub bytes_per_rank: u64,
    /// Whether servers have a page cache.
    pub cached: bool,
}
