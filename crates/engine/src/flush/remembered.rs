//! Remembers where in the pool the last snapshots lie that were completely written, for an agent
//! that keeps the pool's memory when its ranks are gone.
//!
//! How: a CP-thread enters each snapshot of a container that is durable: the rank's record, which
//! says what lies where in the rank's stream, where the parts of this stream lie in the pool, and
//! the digest of the manifest. Nothing is computed before the run has ended; then the records are
//! turned into a list of pieces and their places.
//!
//! Invariants:
//! 1. For each rank it holds the last two snapshots, whatever was staged since: a chunk that holds
//!    something else by now has another checksum.
//! 2. A piece of an older snapshot is left out if a newer one lies in the same chunk.
//!
//! Survives: a record that cannot be decoded (nothing of it is remembered). Not here: the memory
//! and who gets it (`host/agent/memory.rs`), reading it (`restart/memory.rs`).

use orcheck_format::disk::{RankRecord, decode_rank_record};
use orcheck_format::wire::{KeptMap, KeptPiece, KeptSnapshot};
use orcheck_format::{Rank, Step};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};

/// Number of snapshots of each rank.
const SNAPSHOTS: usize = 2;

/// What the CP-threads of a node remember.
#[derive(Default)]
pub struct Remembered {
    ranks: Mutex<BTreeMap<Rank, BTreeMap<Step, Entry>>>,
}

struct Entry {
    record: Vec<u8>,
    spans: Vec<(u64, u64)>,
    digests: Vec<[u8; 32]>,
}

impl Remembered {
    /// Enters a rank's snapshot whose container is durable: its framed record, where the parts of
    /// its stream lie in the pool, and how long they are; and the digest of the manifest.
    pub(super) fn enter(
        &self,
        (rank, step): (Rank, Step),
        record: &[u8],
        spans: &[(u64, u64)],
        digest: [u8; 32],
    ) {
        let mut ranks = self.ranks.lock().unwrap_or_else(PoisonError::into_inner);
        let steps = ranks.entry(rank).or_default();
        let entry = steps.entry(step).or_insert_with(|| Entry {
            record: record.to_vec(),
            spans: spans.to_vec(),
            digests: Vec::new(),
        });
        entry.digests.push(digest);
        while steps.len() > SNAPSHOTS {
            steps.pop_first();
        }
    }

    /// What lies where, of snapshots of this step and of later ones; also which chunks, of this
    /// length, hold some of it.
    pub(crate) fn map(&self, from: Option<Step>, chunk_bytes: u64) -> (KeptMap, BTreeSet<u32>) {
        let ranks = self.ranks.lock().unwrap_or_else(PoisonError::into_inner);
        let all = ranks.iter().flat_map(|(rank, steps)| {
            let wanted = steps.iter().filter(|(step, _)| Some(**step) >= from);
            wanted.map(move |(step, entry)| (*step, *rank, entry))
        });
        let mut by_step: BTreeMap<Step, Vec<(Rank, &Entry)>> = BTreeMap::new();
        for (step, rank, entry) in all {
            by_step.entry(step).or_default().push((rank, entry));
        }
        let (mut snapshots, mut newer) = (Vec::new(), BTreeSet::new());
        for (_, entries) in by_step.into_iter().rev() {
            let mut own = BTreeSet::new();
            for (rank, entry) in entries {
                let Ok((record, _)) = decode_rank_record(&entry.record) else {
                    continue;
                };
                let mut pieces = pieces(&record, &entry.spans);
                let chunks = |piece: &KeptPiece| {
                    let last = piece.pool_at_bytes + piece.len_bytes.saturating_sub(1);
                    (piece.pool_at_bytes / chunk_bytes) as u32..=(last / chunk_bytes) as u32
                };
                pieces.retain(|piece| chunks(piece).all(|chunk| !newer.contains(&chunk)));
                own.extend(pieces.iter().flat_map(chunks));
                snapshots.push(KeptSnapshot {
                    rank,
                    digests: entry.digests.clone(),
                    pieces,
                });
            }
            newer.append(&mut own);
        }
        snapshots.retain(|snapshot| !snapshot.pieces.is_empty());
        let version = env!("CARGO_PKG_VERSION").to_owned();
        (KeptMap { version, snapshots }, newer)
    }
}

/// The places in the pool of what a rank stored with this snapshot.
fn pieces(record: &RankRecord, spans: &[(u64, u64)]) -> Vec<KeptPiece> {
    let mut stream = Vec::with_capacity(spans.len());
    let mut end = 0;
    for &(pool_at, len) in spans {
        stream.push((end, pool_at, len));
        end += len;
    }
    let place = |at: u64, len: u64| {
        let behind = stream.partition_point(|(from, ..)| *from <= at);
        let (from, pool_at, span_len) = *stream.get(behind.checked_sub(1)?)?;
        let into = at - from;
        (into.checked_add(len)? <= span_len).then_some(pool_at + into)
    };
    let mut found = Vec::new();
    for region in &record.regions {
        let (identity, mut at) = (region.identity(), 0u64);
        for extent in &region.extents {
            let own = extent.container.is_none() && extent.len_bytes > 0;
            let placed = own.then(|| place(extent.physical, extent.len_bytes));
            found.extend(placed.flatten().map(|pool_at_bytes| KeptPiece {
                region: identity,
                region_at_bytes: at,
                len_bytes: extent.len_bytes,
                crc_plain: extent.crc_plain,
                pool_at_bytes,
            }));
            at = at.saturating_add(extent.len_bytes);
        }
    }
    found.sort_unstable_by_key(|piece| (piece.region, piece.region_at_bytes));
    found.dedup_by_key(|piece| (piece.region, piece.region_at_bytes));
    found
}
