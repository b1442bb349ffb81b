//! Keeps snapshots in the pool until they are safe, so that the successor of an engine can flush
//! them again.
//!
//! This is used only with agents, because an engine in a rank ends with it. The CP-thread returns
//! no chunk of such a snapshot; the rank does, at its next checkpoints.
//!
//! Invariants:
//! 1. A snapshot whose flush is not over keeps its chunks.
//! 2. At most `held_steps` snapshots of a rank are in the pool; the pool has room for that many.
//!
//! Survives: an engine that ends at any moment. Not here: a pool that does not hold all snapshots
//! (its chunks are returned as they are written, and sealed data is lost with the engine); the
//! succession itself (`client/src/succession.rs`).

use crate::node::descriptor::Descriptor;
use orcheck_format::Step;
use orcheck_pool::{Chunk, Pool};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What a rank told its CP-thread about one snapshot.
#[derive(Debug, Clone)]
struct Snapshot {
    step: Step,
    told: Vec<Descriptor>,
}

impl Snapshot {
    fn chunks(&self) -> impl Iterator<Item = u32> {
        self.told.iter().filter_map(|descriptor| match *descriptor {
            Descriptor::Segment { chunk, .. } => chunk,
            Descriptor::Record { chunk, .. } => Some(chunk),
            _ => None,
        })
    }

    /// Whether another engine can flush it. It must be whole. None of it may lie in memory of the
    /// program, which may have been written since. It must not refer to anything that only the
    /// ended engine can find.
    fn can_be_resubmitted(&self) -> bool {
        self.told.last() == Some(&Descriptor::Seal)
            && !self.told.iter().any(|descriptor| {
                matches!(
                    descriptor,
                    Descriptor::Segment { chunk: None, .. } | Descriptor::Refers { .. }
                )
            })
    }
}

/// The snapshots of one rank that are in the pool.
#[derive(Debug, Default)]
pub struct Kept {
    snapshots: Mutex<Vec<Snapshot>>,
}

impl Kept {
    fn lock(&self) -> MutexGuard<'_, Vec<Snapshot>> {
        self.snapshots
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes what the CP-thread was told.
    pub fn note(&self, descriptor: Descriptor) {
        let mut snapshots = self.lock();
        if let Descriptor::Begin { step, .. } = descriptor {
            snapshots.push(Snapshot {
                step,
                told: Vec::new(),
            });
        }
        if let Some(snapshot) = snapshots.last_mut() {
            snapshot.told.push(descriptor);
        }
    }

    /// Returns the chunks of snapshots whose flush is over: those that are safe, and the oldest
    /// ones while more than `most` are left.
    pub fn give_back(
        &self,
        pool: &Pool,
        is_over: impl Fn(Step) -> bool,
        is_safe: impl Fn(Step) -> bool,
        most: usize,
    ) {
        let mut snapshots = self.lock();
        let mut surplus = snapshots.len().saturating_sub(most);
        let mut left = Vec::new();
        for snapshot in std::mem::take(&mut *snapshots) {
            let goes = is_over(snapshot.step) && (surplus > 0 || is_safe(snapshot.step));
            // Breaks if: one that cannot go counts; behind a snapshot on its way to a slow level,
            // lost ones would fill the pool.
            surplus = surplus.saturating_sub(usize::from(goes));
            if !goes {
                left.push(snapshot);
                continue;
            }
            // An engine that gave up the snapshot has already returned the chunk.
            for index in snapshot.chunks() {
                if let Ok(chunk) = Chunk::from_index(pool, index) {
                    pool.give(chunk);
                }
            }
        }
        *snapshots = left;
    }

    /// Whether the snapshot of `step` can be flushed by another engine.
    #[must_use]
    pub fn has(&self, step: Step) -> bool {
        self.lock()
            .iter()
            .any(|snapshot| snapshot.step == step && snapshot.can_be_resubmitted())
    }

    /// After [`Pool::renew`]: keeps the snapshots of `steps`, takes their chunks again, and forgets
    /// all others.
    pub fn keep_only(&self, steps: &[Step], pool: &Pool) {
        let mut snapshots = self.lock();
        snapshots.retain(|snapshot| steps.contains(&snapshot.step));
        for snapshot in snapshots.iter() {
            snapshot
                .chunks()
                .for_each(|chunk| pool.take_again(chunk, 1));
        }
    }

    /// What the CP-thread was told about `step`.
    #[must_use]
    pub fn told(&self, step: Step) -> Vec<Descriptor> {
        let snapshots = self.lock();
        let snapshot = snapshots.iter().find(|snapshot| snapshot.step == step);
        snapshot.map_or_else(Vec::new, |snapshot| snapshot.told.clone())
    }
}
