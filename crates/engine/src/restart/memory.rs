//! Takes extents from the memory that an agent kept of an earlier run, instead of from files.
//!
//! How: the agent's map says where the pieces of its snapshots lie. A snapshot is that of the
//! container being read if it names the digest of its manifest, which is the one in the commit
//! record. An extent that is a piece of it is copied to its destination, and the checksum of the
//! copy is compared, all in one pass. If there is no such piece, or the checksum disagrees, the
//! extent is read from its file, as if there were no memory.
//!
//! Invariants:
//! 1. An extent is taken only if the copy has the checksum in the manifest or, where that has none
//!    because extents are encrypted, the one that the agent noted when the rank staged it.
//! 2. Only snapshots count whose manifest is the one being read: step, epoch, job and level are
//!    bound with it.
//! 3. What is encrypted in the file is taken only by who has the key.
//!
//! Survives: memory that was overwritten, given back or never complete. Not here: keeping it
//! (`host/agent/memory.rs`), files (`reader.rs`).

use orcheck_format::sabotage::{Switch, off};
use orcheck_format::wire::{KeptMap, KeptSnapshot, RegionIdentity};
use orcheck_format::{Rank, Result};
use orcheck_io::memory::Span;
use orcheck_pool::{KeptPool, read_sealed};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The memory that an agent kept.
pub struct AgentMemory {
    pool: KeptPool,
    map: KeptMap,
    taken_bytes: AtomicU64,
}

/// A piece in the memory of an agent.
#[derive(Clone)]
pub(crate) struct Held {
    memory: Arc<AgentMemory>,
    at_bytes: u64,
    crc: u64,
}

impl AgentMemory {
    /// Maps the memory behind the first descriptor, which the second one describes.
    ///
    /// # Errors
    /// Corrupt or Unsupported if they are not what an agent of this version gives out.
    pub fn attach([memory, map]: [OwnedFd; 2]) -> Result<Self> {
        let bytes = read_sealed(&map, KeptMap::MAX_BYTES)?;
        Ok(Self {
            map: KeptMap::decode(&bytes, env!("CARGO_PKG_VERSION"))?,
            pool: KeptPool::attach(memory)?,
            taken_bytes: AtomicU64::new(0),
        })
    }

    /// Maps what a rank stored, unless `ends`, so that it is copied at full speed later.
    pub fn map_ahead(&self, rank: Rank, ends: &dyn Fn() -> bool) {
        let own = self.map.snapshots.iter().filter(|one| one.rank == rank);
        for piece in own.flat_map(|snapshot| &snapshot.pieces) {
            if ends() {
                return;
            }
            self.pool.map_ahead(piece.pool_at_bytes, piece.len_bytes);
        }
    }

    /// How many bytes were taken from it.
    #[must_use]
    pub fn taken_bytes(&self) -> u64 {
        self.taken_bytes.load(Ordering::Relaxed)
    }

    /// The piece that is these bytes of a region, as the manifest of this digest describes them;
    /// `crc`: their checksum, if the manifest has it.
    pub(crate) fn find(
        self: &Arc<Self>,
        digest: &[u8; 32],
        (rank, region): (Rank, &RegionIdentity),
        (at, len_bytes): (u64, u64),
        crc: Option<u64>,
    ) -> Option<Held> {
        // Breaks if: any snapshot of the rank counts; where the manifest has no checksum, bytes of
        // a step that was never committed would be taken.
        let describes = |snapshot: &&KeptSnapshot| {
            snapshot.digests.contains(digest) || off(Switch::KeptOfCommit)
        };
        let mut own = self.map.snapshots.iter().filter(|one| one.rank == rank);
        let snapshot = own.find(describes)?;
        let piece = snapshot.piece(region, at, len_bytes)?;
        Some(Held {
            memory: Arc::clone(self),
            at_bytes: piece.pool_at_bytes,
            crc: crc.unwrap_or(piece.crc_plain),
        })
    }
}

impl Held {
    /// Copies the piece; false if it is not what was stored. The contents of `into` are then
    /// undefined.
    pub(crate) fn copy_to(&self, into: Span) -> bool {
        let Ok(found) = self.memory.pool.copy_out(self.at_bytes, into) else {
            return false;
        };
        // Breaks if: it is not compared; what was staged there since would reach the program.
        let good = found == self.crc || off(Switch::KeptVerified);
        if good {
            let len = into.len_bytes() as u64;
            self.memory.taken_bytes.fetch_add(len, Ordering::Relaxed);
        }
        good
    }
}
