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

/// Takes an extent; also returns whether this rank read it. `None`: not shared.
fn take(shared: &SharedReads, extent: u64) -> Option<(Vec<u8>, bool)> {
    let mut found = vec![0; bytes(extent).len()];
    let len = found.len();
    let mut has_read = false;
    let mut read = |memory| {
        has_read = true;
        fill_span(memory, &bytes(extent));
        Ok(crc64(&bytes(extent)))
    };
    let mut put = |at: usize, bytes: &[u8]| {
        found[at..at + bytes.len()].copy_from_slice(bytes);
        Ok(())
    };
    let key = (key_of(extent), None);
    let taken = shared.take(key, len, true, &mut read, &mut put).unwrap();
    (taken == Shared::Taken).then_some((found, has_read))
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
    for first in (0..200).step_by(SHARED_EXTENTS as usize) {
        std::thread::scope(|scope| {
            for _ in 0..SHAPE.ranks {
                scope.spawn(|| {
                    let shared = rank(&pool);
                    for extent in first..(first + u64::from(SHARED_EXTENTS)).min(200) {
                        let (found, has_read) = take(&shared, extent).unwrap();
                        assert!(found == bytes(extent));
                        reads[extent as usize].fetch_add(has_read.into(), Ordering::SeqCst);
                    }
                });
            }
        });
    }
    assert!(reads.iter().all(|reads| reads.load(Ordering::SeqCst) == 1));
    assert_eq!(pool.free_chunks(), 64 - SHARED_EXTENTS);
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
    let len = bytes(1).len();
    let crc = Some(crc64(&bytes(8)));
    let mut read = |_: Span| -> Result<u64> { panic!("it is there") };
    let taken = shared.take((key, crc), len, true, &mut read, &mut put_nowhere);
    assert_eq!(taken.unwrap(), Shared::No);
}

// Breaks if: a rank waits although it may read another extent meanwhile, or takes an extent of
// which only a part is there.
#[test]
fn who_may_not_wait_is_told_that_another_rank_is_reading() {
    let pool = pool(64);
    let (one, other) = (rank(&pool), rank(&pool));
    let len = bytes(1).len();
    let mut never = |_: Span| -> Result<u64> { panic!("it is read once") };
    let mut read = |memory: Span| {
        fill_span(memory, &bytes(1));
        let key = (key_of(1), None);
        let taken = other.take(key, len, false, &mut never, &mut put_nowhere);
        assert_eq!(taken.unwrap(), Shared::Busy);
        // Another one can be read at the same time.
        assert_eq!(take(&other, 2), Some((bytes(2), true)));
        Ok(crc64(&bytes(1)))
    };
    let key = (key_of(1), None);
    let taken = one.take(key, len, true, &mut read, &mut |_, _| {
        // All take it at the same time.
        assert_eq!(take(&other, 1), Some((bytes(1), false)));
        Ok(())
    });
    assert_eq!(taken.unwrap(), Shared::Taken);
}

// Breaks if: a rank reads or waits while it could take what is there.
#[test]
fn what_others_have_read_comes_first_and_what_they_are_reading_last() {
    let pool = pool(64);
    let shared = rank(&pool);
    let keys: Vec<Key> = (0..100).map(key_of).collect();
    let best = |wanted: &[u64]| shared.best(wanted.iter().map(|&extent| &keys[extent as usize]));
    assert_eq!(best(&[5, 6, 7]), (0, false), "nothing is there");
    take(&shared, 7).unwrap();
    assert_eq!(best(&[5, 6, 7]), (2, false));
    let index = Index::new(&pool, SHAPE);
    let reading = |place: u32, extent| {
        let key = key_of(extent);
        let nothing = SharedExtent::default();
        index.set_shared_extent(place, SharedExtent { key, ..nothing });
    };
    reading(1, 5);
    assert_eq!(best(&[5, 6, 8]), (1, false));
    reading(2, 6);
    assert_eq!(best(&[5, 6]), (0, true), "all are being read");
    // Looking far ahead would cost more than it saves.
    let far: Vec<u64> = (10..10 + AHEAD_EXTENTS as u64).chain([7]).collect();
    assert_eq!(best(&far), (0, false));
}

// Breaks if: a place is given to another extent while a rank takes what is there.
#[test]
fn a_place_in_use_is_not_given_away() {
    let pool = pool(64);
    let (one, other) = (rank(&pool), rank(&pool));
    let (key, len) = ((key_of(0), None), bytes(0).len());
    let mut read = |memory| {
        fill_span(memory, &bytes(0));
        Ok(crc64(&bytes(0)))
    };
    let mut found = Vec::new();
    let taken = one.take(key, len, true, &mut read, &mut |_, bytes| {
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
    let mut read = |memory: Span| {
        fill_span(memory, &vec![1; memory.len_bytes()]);
        Err(Error::corrupt("damaged"))
    };
    let key = (key_of(1), None);
    let failed = one.take(key, bytes(1).len(), true, &mut read, &mut put_nowhere);
    assert_eq!(failed.unwrap_err().what(), "damaged");
    assert_eq!(take(&other, 1), Some((bytes(1), true)));
    assert_eq!(take(&one, 1), Some((bytes(1), false)));
}

#[test]
fn what_cannot_be_shared_is_not() {
    let pool = pool(2);
    let shared = rank(&pool);
    for len in [LEAST_BYTES - 1, CHUNK_BYTES as usize + 1] {
        let mut read = |_: Span| -> Result<u64> { panic!("it is read") };
        let key = (key_of(1), None);
        let taken = shared.take(key, len, true, &mut read, &mut put_nowhere);
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
