//! The choices that options offer by name.
//!
//! Not here: what they are called in the text (`raw.rs`, or the lower-case name here), what they do.

use serde::Deserialize;

/// Whether the stage slot is used although the pool would hold all snapshots.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Marshal {
    /// Only when the pool does not hold all snapshots.
    Auto,
    /// Always: at most two snapshots in memory, as in the checkpointing-orchestration paper.
    Paper,
}

/// What happens when a checkpoint arrives while as many as allowed are being flushed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Overrun {
    /// The program waits.
    Wait,
    /// The checkpoint is left out, and counted.
    Skip,
    /// The call fails.
    Error,
}

/// What follows from a checkpoint that is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnLoss {
    /// The program is told.
    Warn,
    /// The next checkpoint fails, on all ranks.
    Error,
    /// The program is told, and asked to end.
    Stop,
}

/// What the end of a session waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Close {
    /// The last checkpoint is safe at every level.
    Safe,
    /// Also that what the run resumed from has its copies on other nodes again.
    Copies,
}

/// How nodes are mapped to directories.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Balance {
    /// As many nodes on each.
    Balanced,
    /// By the sizes of the newest checkpoint.
    Weighted,
}

/// Whether memory nodes are taken into account.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Numa {
    /// Where the machine has more than one.
    Auto,
    /// Nothing is asked for and nothing is pinned.
    Off,
}

/// How nodes talk to the lead.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NetKind {
    /// Unix sockets within a host, TCP between hosts.
    Auto,
    /// TCP even within a host.
    Tcp,
}

/// Whether a checkpoint may refer to older ones for what did not change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum IncrementalKind {
    /// Every checkpoint is whole by itself.
    Off,
    /// Full or incremental, by how much changed.
    Auto,
}

/// Whether the interval between checkpoints follows from what they cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum IntervalKind {
    /// It does not.
    Off,
    /// It does, and from how often something fails.
    Auto,
}

/// Whether the node's engine runs in a process of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AgentKind {
    /// It runs in the ranks, and ends with them.
    Off,
    /// In the agent that is there, else in one that is started.
    Start,
    /// In the agent that is there; without one the session does not open.
    Join,
}
