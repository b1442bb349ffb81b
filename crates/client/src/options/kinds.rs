//! Defines the choices that options offer by name.
//!
//! Not here: their names in the text (`fields.rs`, or the lower-case name here), what they do.

use serde::Deserialize;

/// Whether to use the stage slot although the pool would hold all snapshots.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Marshal {
    /// Only if the pool cannot hold all snapshots.
    Auto,
    /// Always: at most two snapshots in memory, as in the checkpointing-orchestration paper.
    Paper,
}

/// What to do with a checkpoint that arrives while as many as allowed are being flushed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Overrun {
    /// The program waits.
    Wait,
    /// The checkpoint is skipped, and counted.
    Skip,
    /// The call fails.
    Error,
}

/// What to do when a checkpoint is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnLoss {
    /// The program is warned.
    Warn,
    /// The next checkpoint fails, on all ranks.
    Error,
    /// The program is warned, and asked to end.
    Stop,
}

/// What the end of a session waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Close {
    /// The last checkpoint is safe at every level.
    Safe,
    /// Also the copies on other nodes of what the run resumed from are complete again.
    Copies,
}

/// How nodes are mapped to directories.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Balance {
    /// The same number of nodes on each.
    Balanced,
    /// By the sizes of the newest checkpoint.
    Weighted,
}

/// Whether to place memory by NUMA node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Numa {
    /// If the machine has more than one.
    Auto,
    /// No memory is placed and no thread is pinned.
    Off,
}

/// How nodes communicate with the lead.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NetKind {
    /// Unix sockets within a host, TCP between hosts.
    Auto,
    /// TCP even within a host.
    Tcp,
}

/// Whether a checkpoint may refer to older ones for unchanged data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum IncrementalKind {
    /// Every checkpoint is full.
    Off,
    /// Full or incremental, depending on how much changed.
    Auto,
}

/// Whether the interval between checkpoints depends on their cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum IntervalKind {
    /// It does not.
    Off,
    /// It does, and also on how often something fails.
    Auto,
}

/// Whether the node's engine runs in a process of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AgentKind {
    /// It runs in the ranks, and ends with them.
    Off,
    /// In the running agent, or else in one that is started.
    Start,
    /// In the running agent; without one, the session does not open.
    Join,
}
