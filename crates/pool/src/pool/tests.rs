//! What of the memory only the pool itself sees. Not here: the pool (`tests/pool.rs`).

use super::*;

// Breaks if: touching changes what a chunk holds, or the compiler removes it and no page is
// mapped.
#[test]
fn touching_by_hand_maps_every_page_and_keeps_the_contents() {
    const CHUNK_BYTES: u32 = 1 << 20;
    let shape = PoolShape {
        chunk_bytes: CHUNK_BYTES,
        chunk_count: 2,
        words: 0,
        rings: 0,
        ring_entries: 0,
    };
    let pool = Pool::create(shape).unwrap();
    let chunk = pool.try_take(1).unwrap();
    pool.put(&chunk, 0, b"kept");
    pages::touch(pool.run_span(0, 2));
    let bytes = u64::from(CHUNK_BYTES);
    assert_eq!(pool.read_bytes(bytes, 5).unwrap(), b"kept\0");
    let before = orcheck_testing::page_faults();
    pool.zero(&chunk, 0, CHUNK_BYTES);
    let faults = orcheck_testing::page_faults() - before;
    assert!(faults < bytes / 4096 / 4, "{faults} faults");
    pool.give(chunk);
}
