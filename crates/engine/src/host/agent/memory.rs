//! Keeps the memory of a run whose ranks are gone, so that the next run restarts from it.
//!
//! How: when a session ends because no rank is left, the agent attaches to the pool once more,
//! gives back the chunks that hold nothing of the last snapshots, and says in a sealed memory file
//! what lies where ([`KeptMap`]). A rank of the next run asks for both descriptors and copies out
//! what it needs. The memory is a cache that checksums verify: nothing in the pool is pinned or
//! locked, and no run ever stages into it again.
//!
//! Invariants:
//! 1. It is kept only if no rank of its run is left, no thread uses the pool, and the run did not
//!    end in order. The kernel says whether a rank is left: each shares a lock of the pool.
//! 2. It is given back when the next run needs it no more (its lowest rank says so: it has
//!    restarted, or begins without), when another job begins, when memory is short, and when the
//!    agent ends.
//! 3. Memory of an encrypted job is overwritten with zeros before it is given back.
//!
//! Survives: a run that dies before it has restarted (the memory stays for the next one), and
//! anybody who writes into the memory (a checksum disagrees). Not here: what is remembered
//! (`flush/remembered.rs`), reading it (`restart/memory.rs`).

use crate::host::threads::Host;
use crate::node::{Index, POOL_OF_RANK};
use orcheck_format::sabotage::{Switch, off};
use orcheck_format::wire::KeptMap;
use orcheck_format::{Error, JobName, Level, Result};
use orcheck_io::machine::memory;
use orcheck_pool::{Pool, seal_bytes};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Longest wait for the kernel to release what a killed rank held.
const ENDING: Duration = Duration::from_millis(100);

/// Memory of an ended run.
pub(super) struct KeptRun {
    job: JobName,
    pool: Pool,
    map: OwnedFd,
    /// What stays of the pool, in bytes.
    bytes: u64,
    /// Whether it is overwritten before it is given back.
    secret: bool,
}

/// What a session leaves that may be kept.
pub(super) struct Leavings {
    job: JobName,
    pool: OwnedFd,
    map: KeptMap,
    /// The chunks that hold some of it.
    chunks: std::collections::BTreeSet<u32>,
    secret: bool,
}

impl Leavings {
    /// Those of a session whose threads have ended; `None` if a rank is left that may still write
    /// into the pool, or nothing is worth keeping.
    pub(super) fn of(host: &Host, index: &Index<'_>) -> Option<Self> {
        let mut ranks = 0..host.shape.ranks;
        if !ranks.all(|local| index.is_rank_gone(local)) {
            return None;
        }
        // Breaks if: connections count alone; ranks that continue with another agent have closed
        // theirs, and what they have in the pool would be gone.
        if !off(Switch::KeptAlone) {
            drop(host.gates.lock(POOL_OF_RANK, ENDING).ok()?);
        }
        let levels = [Level::Node, Level::Global];
        let newest = levels
            .iter()
            .filter_map(|&level| index.committed_step(level));
        let chunk_bytes = u64::from(host.pool.shape().chunk_bytes);
        let (map, chunks) = host.remembered.as_ref()?.map(newest.max(), chunk_bytes);
        let pool = host.pool.fd().try_clone_to_owned().ok()?;
        (!chunks.is_empty()).then(|| Self {
            job: host.plan.job.clone(),
            pool,
            map,
            chunks,
            secret: host.plan.recipe.secret.is_some(),
        })
    }

    /// Keeps them. Call this once nobody else has the pool.
    ///
    /// # Errors
    /// The error of the kernel: nothing is kept.
    pub(super) fn keep(self) -> Result<Option<KeptRun>> {
        let bytes = self.map.encode();
        let pool = Pool::attach(self.pool)?;
        let is_too_long = bytes.len() > KeptMap::MAX_BYTES;
        // Made first: whatever fails from here on, it overwrites what is secret when it is dropped.
        let mut run = KeptRun {
            job: self.job,
            pool,
            map: seal_bytes(&bytes)?,
            bytes: 0,
            secret: self.secret,
        };
        let keeps = |chunk| !is_too_long && self.chunks.contains(&chunk);
        run.bytes = run.pool.keep_only(&keeps, run.secret)?;
        Ok((!is_too_long && !run.is_too_large(false)).then_some(run))
    }
}

impl KeptRun {
    /// The memory and the map of it.
    pub(super) fn descriptors(&self) -> [BorrowedFd<'_>; 2] {
        [self.pool.fd(), self.map.as_fd()]
    }

    /// Whether memory is too short to keep it.
    fn is_too_large(&self, runs: bool) -> bool {
        memory().is_ok_and(|facts| is_short(self.bytes, facts.usable_bytes(), runs))
    }
}

impl Drop for KeptRun {
    fn drop(&mut self) {
        // The next run may still have it mapped: it then finds zeros, which verify as nothing.
        let _ = self.pool.keep_only(&|_| false, self.secret);
    }
}

/// Whether so much memory is not to be kept where this much can be used. The next run needs as much
/// for its state and for its pool; once it `runs`, it has taken most of that.
fn is_short(kept_bytes: u64, usable_bytes: u64, runs: bool) -> bool {
    let times = if runs { 1 } else { 3 };
    usable_bytes < kept_bytes.saturating_mul(times)
}

/// The memory that an agent keeps, shared with its sessions.
#[derive(Default)]
pub(super) struct Kept(Mutex<Option<KeptRun>>);

impl Kept {
    fn with<T>(&self, work: impl FnOnce(&mut Option<KeptRun>) -> T) -> T {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Keeps this in the place of what was kept.
    pub(super) fn put(&self, run: KeptRun) {
        let before = self.with(|kept| kept.replace(run));
        drop(before);
    }

    /// Gives it back.
    pub(super) fn forget(&self) {
        // Breaks if: it stays; the next run would have to do with less memory as long as it lives.
        if !off(Switch::KeptForgotten) {
            drop(self.with(Option::take));
        }
    }

    /// Gives it back if another job begins.
    pub(super) fn begin(&self, job: &JobName) {
        drop(self.with(|kept| kept.take_if(|run| run.job != *job)));
    }

    /// Gives it back if memory is short; whether a session `runs`.
    pub(super) fn look(&self, runs: bool) {
        drop(self.with(|kept| kept.take_if(|run| run.is_too_large(runs))));
    }

    /// How many bytes are kept.
    pub(super) fn bytes(&self) -> u64 {
        self.with(|kept| kept.as_ref().map_or(0, |run| run.bytes))
    }

    /// Copies of the descriptors of this job's memory and of its map.
    ///
    /// # Errors
    /// Lack of descriptors.
    pub(super) fn recall(&self, job: &JobName) -> Result<Option<[OwnedFd; 2]>> {
        self.with(|kept| {
            let Some(run) = kept.as_ref().filter(|run| run.job == *job) else {
                return Ok(None);
            };
            let [pool, map] = run.descriptors();
            let copy = |fd: BorrowedFd<'_>| {
                fd.try_clone_to_owned()
                    .map_err(|error| Error::unavailable(format!("copy a descriptor: {error}")))
            };
            Ok(Some([copy(pool)?, copy(map)?]))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Breaks if: memory is kept that the next run needs for its state and its pool.
    #[test]
    fn memory_is_kept_only_where_the_next_run_has_room_too() {
        for (kept, usable, runs, short) in [
            (10, 30, false, false),
            (10, 29, false, true),
            (10, 10, true, false),
            (10, 9, true, true),
            (u64::MAX, u64::MAX - 1, false, true),
        ] {
            assert_eq!(is_short(kept, usable, runs), short, "{kept} of {usable}");
        }
    }
}
