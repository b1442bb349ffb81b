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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capture::own_extent;
    use crate::flush::ledger::tests::record;
    use orcheck_format::disk::{Extent, encode_rank_record};

    const CHUNK_BYTES: u64 = 1 << 20;

    fn framed(extents: Vec<Extent>) -> Vec<u8> {
        encode_rank_record(&record(extents))
    }

    /// Region offset, length and place of each piece of each snapshot, newest snapshot first.
    fn found(remembered: &Remembered, from: Option<Step>) -> Vec<Vec<(u64, u64, u64)>> {
        let (map, chunks) = remembered.map(from, CHUNK_BYTES);
        let place = |piece: &KeptPiece| {
            assert!(chunks.contains(&((piece.pool_at_bytes / CHUNK_BYTES) as u32)));
            let at = (piece.region_at_bytes, piece.len_bytes);
            (at.0, at.1, piece.pool_at_bytes)
        };
        let places = |snapshot: &KeptSnapshot| snapshot.pieces.iter().map(place).collect();
        map.snapshots.iter().map(places).collect()
    }

    // Breaks if: a place in the stream is taken for one in the region, or in another part of the
    // pool; or what lies in older containers is looked for here.
    #[test]
    fn pieces_are_where_their_part_of_the_stream_lies() {
        let older = Extent {
            container: Some("older".into()),
            ..own_extent(0, 100, 1)
        };
        let extents = vec![
            own_extent(4096, 1000, 2),
            older,
            own_extent(0, 4096, 3),
            own_extent(8192, 4096, 4),
            own_extent(12_000, 1000, 5),
        ];
        let remembered = Remembered::default();
        let spans = [(5 * CHUNK_BYTES, 8192), (2 * CHUNK_BYTES, 4096)];
        let entered = framed(extents);
        remembered.enter((Rank(3), Step(7)), &entered, &spans, [1; 32]);
        let expected = [
            (0, 1000, 5 * CHUNK_BYTES + 4096),
            (1100, 4096, 5 * CHUNK_BYTES),
            (5196, 4096, 2 * CHUNK_BYTES),
        ];
        assert_eq!(found(&remembered, None), [expected.to_vec()]);
    }

    // Breaks if: everything stays; or what a newer snapshot has taken the place of is offered.
    #[test]
    fn the_last_two_snapshots_are_remembered_where_they_are_apart() {
        let remembered = Remembered::default();
        let enter = |step, chunks: &[u64], digest| {
            let extents = (0..chunks.len() as u64).map(|n| own_extent(n * 4096, 4096, n));
            let spans: Vec<_> = chunks
                .iter()
                .map(|chunk| (chunk * CHUNK_BYTES, 4096))
                .collect();
            let entered = framed(extents.collect());
            remembered.enter((Rank(3), Step(step)), &entered, &spans, digest);
        };
        enter(1, &[0, 1], [1; 32]);
        enter(2, &[2, 3], [2; 32]);
        enter(3, &[4, 3], [3; 32]);
        enter(3, &[4, 3], [4; 32]);
        let newest = vec![(0, 4096, 4 * CHUNK_BYTES), (4096, 4096, 3 * CHUNK_BYTES)];
        let before = vec![(0, 4096, 2 * CHUNK_BYTES)];
        assert_eq!(found(&remembered, None), [newest.clone(), before]);
        assert_eq!(found(&remembered, Some(Step(3))), [newest]);
        let (map, _) = remembered.map(Some(Step(3)), CHUNK_BYTES);
        assert_eq!(map.snapshots[0].digests, [[3; 32], [4; 32]]);
    }
}
