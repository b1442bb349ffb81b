//! Overhead: what this many checkpoints cost a run in which nothing fails.
//!
//! Source: Shahzad et al. (IPDPS Workshops 2013), equations (1) and (2) and the bound of section VI. The second is a lower
//! bound: it counts what a checkpoint takes of the memory's bandwidth, and not what else the program waits for.
//!
//! Invariants:
//! 1. Numbers that no machine has are refused, with the range.
//!
//! Not here: how often to checkpoint (`interval.rs`), measuring B_M, m and B_IO (`orcheck plan calibrate`).

use crate::within;
use orcheck_format::Result;

/// Checkpoints, and the machine that they are taken on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Overhead {
    /// n, checkpoints of the run.
    pub checkpoints: u64,
    /// S_CP, bytes of a checkpoint of the whole job.
    pub bytes: f64,
    /// S_CP,node, bytes of a node's part.
    pub node_bytes: f64,
    /// B_IO, bytes/s of the file system, for the whole job.
    pub io_bytes_per_s: f64,
    /// B_M, bytes/s of a node's memory.
    pub memory_bytes_per_s: f64,
    /// m, bytes that move between memory and processors for each byte that is written.
    pub memory_passes: f64,
}

impl Overhead {
    /// # Errors
    /// Invalid, naming the number, its value and the range.
    pub fn check(&self) -> Result<()> {
        within("bytes of a checkpoint", self.bytes, 1.0, 1e30)?;
        within("bytes of a node's part", self.node_bytes, 1.0, self.bytes)?;
        within("bytes/s of the file system", self.io_bytes_per_s, 1.0, 1e18)?;
        within(
            "bytes/s of a node's memory",
            self.memory_bytes_per_s,
            1.0,
            1e18,
        )?;
        within("passes over the memory", self.memory_passes, 0.01, 1000.0)
    }

    /// Duration of one write of a checkpoint, seconds.
    #[must_use]
    pub fn write_s(&self) -> f64 {
        self.bytes / self.io_bytes_per_s
    }

    /// Equation (1), seconds: the program waits for every write.
    #[must_use]
    pub fn synchronous_s(&self) -> f64 {
        self.checkpoints as f64 * self.write_s()
    }

    /// Equation (2), seconds: a thread writes while the program computes, which has less of the memory meanwhile.
    #[must_use]
    pub fn asynchronous_s(&self) -> f64 {
        self.memory_passes * self.node_bytes * self.checkpoints as f64 / self.memory_bytes_per_s
    }

    /// The most checkpoints of a run of this many seconds without one that waits for the one before.
    #[must_use]
    pub fn checkpoints_max(&self, run_s: f64) -> u64 {
        (run_s / self.write_s()) as u64
    }
}
