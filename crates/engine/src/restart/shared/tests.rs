//! Ranks that want the same extents, in one pool.
//!
//! Not here: that a restart reads an extent once (`tests/jobs`).

use super::*;
use orcheck_format::{Error, crc64};
use orcheck_io::memory::fill_span;
use orcheck_pool::PoolShape;
use std::sync::atomic::AtomicU32;

const CHUNK_BYTES: u32 = 64 << 10;
const SHAPE: IndexShape = IndexShape {
    ranks: 4,
    writers: 1,
};

fn pool(chunk_count: u32) -> Arc<Pool> {
    let shape = PoolShape {
        chunk_bytes: CHUNK_BYTES,
        chunk_count,
        words: SHAPE.words(),
        rings: SHAPE.ranks,
        ring_entries: 4,
    };
    Arc::new(Pool::create(shape).unwrap())
}

/// What one rank has of the pool.
fn rank(pool: &Arc<Pool>) -> SharedReads {
    let gates = Arc::new(Gates::open(pool).unwrap());
    SharedReads::new(Arc::clone(pool), gates, SHAPE, 0).unwrap()
}

fn bytes(extent: u64) -> Vec<u8> {
    let len = 20_000 + extent as usize % 7;
    let byte = |at: usize| ((extent as usize * 31 + at * 7) >> 2) as u8;
    (0..len).map(byte).collect()
}

/// An extent whose bytes are all wanted.
fn whole(extent: u64) -> Extent<'static> {
    Extent {
        key: key_of(extent),
        crc: None,
        len_bytes: bytes(extent).len(),
        wanted: &|| all(1 << 20),
    }
}

/// Reads an extent as a rank does.
fn fill(memory: Span, blocks: &mut Blocks, extent: u64) -> Result<()> {
    fill_span(memory, &bytes(extent));
    blocks.append(Span::from_mut(&mut bytes(extent)));
    Ok(())
}

/// Takes an extent; also returns whether this rank read it. `None`: not shared.
fn take(shared: &SharedReads, extent: u64) -> Option<(Vec<u8>, bool)> {
    let mut found = vec![0; bytes(extent).len()];
    let mut has_read = false;
    let mut read = |memory: Span, blocks: &mut Blocks| {
        has_read = true;
        fill(memory, blocks, extent)
    };
    let mut put = |at: usize, bytes: &[u8]| {
        found[at..at + bytes.len()].copy_from_slice(bytes);
        Ok(())
    };
    let taken = shared
        .take(whole(extent), true, &mut read, &mut put)
        .unwrap();
    (taken == Shared::Taken).then_some((found, has_read))
}

fn never(_memory: Span, _blocks: &mut Blocks) -> Result<()> {
    panic!("it is not read by this rank")
}

fn put_nowhere(_at: usize, _bytes: &[u8]) -> Result<()> {
    Ok(())
}

fn key_of(extent: u64) -> Key {
    key(&[7; 32], Rank(3), "u", extent)
}

// Breaks if: two ranks read an extent, or one takes it before it is all there.
#[test]
fn each_extent_is_read_once() {
    let pool = pool(64);
    let reads: Vec<AtomicU32> = (0..200).map(|_| AtomicU32::new(0)).collect();
    let places = SHARED_EXTENTS;
    for first in (0..200).step_by(places as usize) {
        std::thread::scope(|scope| {
            for _ in 0..SHAPE.ranks {
                scope.spawn(|| {
                    let shared = rank(&pool);
                    for extent in first..(first + u64::from(places)).min(200) {
                        let (found, has_read) = take(&shared, extent).unwrap();
                        assert!(found == bytes(extent));
                        reads[extent as usize].fetch_add(has_read.into(), Ordering::SeqCst);
                    }
                });
            }
        });
    }
    assert!(reads.iter().all(|reads| reads.load(Ordering::SeqCst) == 1));
    assert_eq!(pool.free_chunks(), 64 - places);
    rank(&pool).clear();
    assert_eq!(pool.free_chunks(), 64);
    assert!(
        take(&rank(&pool), 3).unwrap().1,
        "nothing is there any more"
    );
}

// Breaks if: bytes that changed in the pool come out.
#[test]
fn what_changed_in_the_pool_is_not_taken() {
    let pool = pool(4);
    let shared = rank(&pool);
    take(&shared, 1).unwrap();
    let chunk = Index::new(&pool, SHAPE).shared_extent(0).chunk.unwrap();
    fill_span(pool.run_span(chunk, 1).sub(11_000, 1), &[0x55]);
    assert!(take(&shared, 1).is_none(), "it is read by this rank itself");
    assert_eq!(take(&shared, 1), Some((bytes(1), true)));
    assert_eq!(take(&shared, 1), Some((bytes(1), false)));
}

// Breaks if: a rank trusts what it has just read; a stray write may come before its checksum.
#[test]
fn what_changed_before_it_was_copied_out_is_not_taken() {
    let pool = pool(4);
    let mut read = |memory: Span, blocks: &mut Blocks| {
        fill(memory, blocks, 1)?;
        fill_span(memory.sub(300, 1), &[0x55]);
        Ok(())
    };
    let taken = rank(&pool).take(whole(1), true, &mut read, &mut put_nowhere);
    assert_eq!(taken.unwrap(), Shared::No);
}

// Breaks if: what a killed rank or a stray write left in the index is believed.
#[test]
fn another_extent_under_this_key_is_not_taken() {
    let pool = pool(4);
    let shared = rank(&pool);
    take(&shared, 1).unwrap();
    let index = Index::new(&pool, SHAPE);
    let extent = index.shared_extent(0);
    let key = key_of(8);
    index.set_shared_extent(0, SharedExtent { key, ..extent });
    // The manifest has the CRC of extent 8, whose length is the same.
    let extent = Extent {
        crc: Some(crc64(&bytes(8))),
        ..whole(8)
    };
    let taken = shared.take(extent, true, &mut never, &mut put_nowhere);
    assert_eq!(taken.unwrap(), Shared::No);
}

// Breaks if: more or less than the blocks with wanted bytes is taken, or blocks without any are
// verified.
#[test]
fn only_wanted_blocks_are_taken_and_verified() {
    let pool = pool(4);
    let shared = rank(&pool);
    take(&shared, 1).unwrap();
    let chunk = Index::new(&pool, SHAPE).shared_extent(0).chunk.unwrap();
    let stray = 7 * shared.block_bytes;
    fill_span(pool.run_span(chunk, 1).sub(stray, 1), &[0x55]);
    let block = shared.block_bytes;
    let wanted = || vec![5..6, 10..11, 6 * block as u64 + 1..7 * block as u64];
    let mut found = Vec::new();
    let extent = Extent {
        wanted: &wanted,
        ..whole(1)
    };
    let mut put = |at: usize, part: &[u8]| {
        assert!(part == &bytes(1)[at..at + part.len()]);
        found.push(at..at + part.len());
        Ok(())
    };
    let taken = shared.take(extent, true, &mut never, &mut put).unwrap();
    assert_eq!(taken, Shared::Taken);
    assert_eq!(found, [0..block, 6 * block..7 * block]);
}

// Breaks if: a rank waits although it may read another extent meanwhile, or takes an extent of
// which only a part is there.
#[test]
fn who_may_not_wait_is_told_that_another_rank_is_reading() {
    let pool = pool(64);
    let (one, other) = (rank(&pool), rank(&pool));
    let mut read = |memory: Span, blocks: &mut Blocks| {
        let taken = other.take(whole(1), false, &mut never, &mut put_nowhere);
        assert_eq!(taken.unwrap(), Shared::Busy);
        // Another one can be read at the same time.
        assert_eq!(take(&other, 2), Some((bytes(2), true)));
        fill(memory, blocks, 1)
    };
    let taken = one.take(whole(1), true, &mut read, &mut |_, _| {
        // All take it at the same time.
        assert_eq!(take(&other, 1), Some((bytes(1), false)));
        Ok(())
    });
    assert_eq!(taken.unwrap(), Shared::Taken);
}

/// The extents that a rank takes next, as long as none of them is taken.
fn first_of(shared: &SharedReads, wanted: &[u64]) -> (u64, bool) {
    let keys = wanted.iter().map(|extent| Some(key_of(*extent)));
    let mut order = Order::new(Some(shared), keys.collect());
    let (next, must_wait) = order.next().unwrap();
    (wanted[next], must_wait)
}

// Breaks if: a rank reads or waits while it could take what is there.
#[test]
fn what_others_have_read_comes_first_and_what_they_are_reading_last() {
    let pool = pool(64);
    let shared = rank(&pool);
    assert_eq!(
        first_of(&shared, &[5, 6, 7]),
        (5, false),
        "nothing is there"
    );
    take(&shared, 7).unwrap();
    assert_eq!(first_of(&shared, &[5, 6, 7]), (7, false));
    let index = Index::new(&pool, SHAPE);
    let reading = |place: u32, extent| {
        let key = key_of(extent);
        let nothing = SharedExtent::default();
        index.set_shared_extent(place, SharedExtent { key, ..nothing });
    };
    reading(1, 5);
    assert_eq!(first_of(&shared, &[5, 6, 8]), (6, false));
    reading(2, 6);
    assert_eq!(first_of(&shared, &[5, 6]), (5, true), "all are being read");
    // One more would take the place of another.
    (3..3 + SHARED_EXTENTS / 4).for_each(|place| reading(place, 100 + u64::from(place)));
    assert_eq!(first_of(&shared, &[8, 5, 6]), (5, true));
    assert_eq!(
        first_of(&shared, &[8]),
        (8, false),
        "none of them is wanted"
    );
    // Extents that are not shared stay in order.
    let mut order = Order::new(Some(&shared), vec![None, Some(key_of(7)), None]);
    let mut taken = Vec::new();
    while let Some((next, _)) = order.next() {
        taken.push(next);
        order.taken();
    }
    assert_eq!(taken, [1, 0, 2]);
}

// Breaks if: a rank asks again and again for an extent whose reader was stopped.
#[test]
fn who_was_refused_waits() {
    let pool = pool(64);
    let (one, other) = (rank(&pool), rank(&pool));
    let mut order = Order::new(Some(&one), vec![Some(key_of(1)), Some(key_of(2))]);
    take(&other, 1).unwrap();
    assert_eq!(order.next(), Some((0, false)));
    order.is_busy();
    assert_eq!(order.next(), Some((1, false)), "another one first");
    order.taken();
    assert_eq!(order.next(), Some((0, false)));
    order.is_busy();
    assert_eq!(order.next(), Some((0, true)));
}

// Breaks if: ranks wait for each other, or read almost everything by themselves, because there are
// more of them than places and more extents.
#[test]
fn many_ranks_take_many_extents() {
    const RANKS: u32 = 40;
    const EXTENTS: u64 = 120;
    let shape = IndexShape {
        ranks: RANKS,
        writers: 1,
    };
    let pool = Arc::new(
        Pool::create(PoolShape {
            chunk_bytes: CHUNK_BYTES,
            chunk_count: 64,
            words: shape.words(),
            rings: RANKS,
            ring_entries: 4,
        })
        .unwrap(),
    );
    let reads = AtomicU32::new(0);
    std::thread::scope(|scope| {
        for _ in 0..RANKS {
            scope.spawn(|| {
                let gates = Arc::new(Gates::open(&pool).unwrap());
                let shared = SharedReads::new(Arc::clone(&pool), gates, shape, 0).unwrap();
                let keys = (0..EXTENTS).map(|extent| Some(key_of(extent)));
                let mut order = Order::new(Some(&shared), keys.collect());
                while let Some((next, must_wait)) = order.next() {
                    let extent = next as u64;
                    let mut read = |memory: Span, blocks: &mut Blocks| {
                        reads.fetch_add(1, Ordering::SeqCst);
                        fill(memory, blocks, extent)
                    };
                    let mut put = |at: usize, part: &[u8]| {
                        assert!(part == &bytes(extent)[at..at + part.len()]);
                        Ok(())
                    };
                    let taken = shared.take(whole(extent), must_wait, &mut read, &mut put);
                    match taken.unwrap() {
                        Shared::Busy => order.is_busy(),
                        _ => order.taken(),
                    }
                }
            });
        }
    });
    let reads = reads.load(Ordering::SeqCst);
    assert!(
        reads < 10 * EXTENTS as u32,
        "{reads} reads of {EXTENTS} extents by {RANKS} ranks"
    );
}

// Breaks if: a place is given to another extent while a rank takes what is there.
#[test]
fn a_place_in_use_is_not_given_away() {
    let pool = pool(64);
    let (one, other) = (rank(&pool), rank(&pool));
    let mut read = |memory: Span, blocks: &mut Blocks| fill(memory, blocks, 0);
    let mut found = Vec::new();
    let taken = one.take(whole(0), true, &mut read, &mut |_, bytes| {
        for extent in 1..=2 * u64::from(SHARED_EXTENTS) {
            assert!(take(&other, extent).unwrap().1);
        }
        found.extend_from_slice(bytes);
        Ok(())
    });
    assert_eq!(taken.unwrap(), Shared::Taken);
    assert!(found == bytes(0));
    assert_eq!(take(&other, 0), Some((bytes(0), false)));
}

#[test]
fn a_rank_whose_read_fails_leaves_it_to_the_next_one() {
    let pool = pool(4);
    let (one, other) = (rank(&pool), rank(&pool));
    let mut read = |memory: Span, _: &mut Blocks| {
        fill_span(memory, &vec![1; memory.len_bytes()]);
        Err(Error::corrupt("damaged"))
    };
    // It may have been the pool: the rank reads it by itself, and finds out.
    let failed = one.take(whole(1), true, &mut read, &mut put_nowhere);
    assert_eq!(failed.unwrap(), Shared::No);
    assert_eq!(take(&other, 1), Some((bytes(1), true)));
    assert_eq!(take(&one, 1), Some((bytes(1), false)));
}

#[test]
fn what_cannot_be_shared_is_not() {
    let pool = pool(2);
    let shared = rank(&pool);
    for len in [LEAST_BYTES - 1, CHUNK_BYTES as usize + 1] {
        let extent = Extent {
            len_bytes: len,
            ..whole(1)
        };
        let taken = shared.take(extent, true, &mut never, &mut put_nowhere);
        assert_eq!(taken.unwrap(), Shared::No);
    }
    // A snapshot has all chunks.
    let all = pool.take_run(2).unwrap();
    assert!(take(&shared, 1).is_none());
    pool.give_run(all, 2);
    assert_eq!(take(&shared, 1), Some((bytes(1), true)));
    let one = IndexShape { ranks: 1, ..SHAPE };
    let gates = Arc::new(Gates::open(&pool).unwrap());
    assert!(SharedReads::new(pool, gates, one, 0).is_none());
}

#[test]
fn keys_differ_by_everything_that_names_an_extent() {
    let mut keys = vec![
        key(&[7; 32], Rank(3), "u", 1),
        key(&[8; 32], Rank(3), "u", 1),
        key(&[7; 32], Rank(4), "u", 1),
        key(&[7; 32], Rank(3), "v", 1),
        key(&[7; 32], Rank(3), "u", 2),
    ];
    keys.sort();
    keys.dedup();
    assert_eq!(keys.len(), 5);
}
