//! Computes what this many checkpoints cost a run without failures.
//!
//! Source: Shahzad et al. (IPDPS Workshops 2013), equations (1) and (2) and the bound of section
//! VI. The second is a lower bound: it counts the memory bandwidth that a checkpoint takes, and not
//! what else the program waits for.
//!
//! Invariants:
//! 1. Values that no machine has are refused, with the valid range.
//!
//! Not here: how often to checkpoint (`single.rs`, `levels.rs`), measuring B_M, m and B_IO
//! (`orcheck plan calibrate`).

use crate::within;
use orcheck_format::Result;

/// Checkpoints, and the machine on which they are taken.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Overhead {
    /// n, the number of checkpoints of the run.
    pub checkpoints: u64,
    /// S_CP, the bytes of a checkpoint of the whole job.
    pub bytes: f64,
    /// S_CP,node, the bytes of a node's part.
    pub node_bytes: f64,
    /// B_IO, the rate of the file system for the whole job, bytes/s.
    pub io_bytes_per_s: f64,
    /// B_M, the memory bandwidth of a node, bytes/s.
    pub memory_bytes_per_s: f64,
    /// m, the bytes that move between memory and processors for each byte written.
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

    /// Equation (2), seconds: a thread writes while the program computes, which then has less
    /// memory bandwidth.
    #[must_use]
    pub fn asynchronous_s(&self) -> f64 {
        self.memory_passes * self.node_bytes * self.checkpoints as f64 / self.memory_bytes_per_s
    }

    /// The maximum number of checkpoints of a run of this many seconds such that none waits for the
    /// previous one.
    #[must_use]
    pub fn checkpoints_max(&self, run_s: f64) -> u64 {
        (run_s / self.write_s()) as u64
    }
}
