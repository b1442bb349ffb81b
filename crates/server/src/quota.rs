//! How much of the disk those who share a key may take.
//!
//! How: what lies in their directory is counted when the server starts, and from then on by what the server does there. A
//! file counts with the length that it was given or reached, whether it is full or not.
//!
//! Invariants:
//! 1. Nothing is counted where there is no limit.
//! 2. What was refused is not counted; what was removed is given back.
//!
//! Not here: what else fills the disk (it says so itself).

use orcheck_format::sabotage::{Switch, off};
use orcheck_format::store::MAX_DEPTH;
use orcheck_format::{Error, Result};
use orcheck_io::Dir;
use std::sync::atomic::{AtomicU64, Ordering};

/// What is taken of what may be taken, in bytes.
pub(crate) struct Quota {
    most: Option<u64>,
    used: AtomicU64,
}

impl Quota {
    /// With what a directory holds.
    pub(crate) fn of(root: &dyn Dir, most: Option<u64>) -> Result<Self> {
        let used = match most {
            Some(_) => bytes_below(root, 0)?,
            None => 0,
        };
        Ok(Self {
            most,
            used: AtomicU64::new(used),
        })
    }

    /// Whether anything is to be counted.
    pub(crate) fn counts(&self) -> bool {
        self.most.is_some()
    }

    /// Takes so much more.
    pub(crate) fn take(&self, bytes: u64) -> Result<()> {
        let Some(most) = self.most.filter(|_| bytes > 0) else {
            return Ok(());
        };
        let fits = |used: u64| {
            used.checked_add(bytes)
                .filter(|sum| *sum <= most || off(Switch::Quota))
        };
        let taken = self
            .used
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, fits);
        taken.map(drop).map_err(|used| {
            Error::no_space(format!(
                "{bytes} bytes more are beyond the quota: {used} of {most} bytes are taken"
            ))
            .next("remove older checkpoints (option keep), or ask for a larger quota")
        })
    }

    /// Gives so much back.
    pub(crate) fn give(&self, bytes: u64) {
        if self.counts() {
            let less = |used: u64| Some(used.saturating_sub(bytes));
            let _ = self
                .used
                .fetch_update(Ordering::AcqRel, Ordering::Acquire, less);
        }
    }

    /// Bytes that may still be taken.
    pub(crate) fn left(&self) -> u64 {
        self.most.map_or(u64::MAX, |most| {
            most.saturating_sub(self.used.load(Ordering::Acquire))
        })
    }
}

fn bytes_below(dir: &dyn Dir, depth: usize) -> Result<u64> {
    let mut sum = 0u64;
    for entry in dir.list()? {
        sum = sum.saturating_add(match entry.is_dir {
            // Deeper ones are nobody's who asks over the network.
            true if depth < MAX_DEPTH => bytes_below(&*dir.child(&entry.name, false)?, depth + 1)?,
            true => 0,
            false => entry.len_bytes,
        });
    }
    Ok(sum)
}
