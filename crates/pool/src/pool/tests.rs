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

/// A pool of two chunks of a page, and a pipe that holds the page of the second one.
fn with_a_page_in_a_pipe(contents: &[u8; 4096]) -> (Pool, OwnedFd) {
    let shape = PoolShape {
        chunk_bytes: 4096,
        chunk_count: 2,
        words: 0,
        rings: 0,
        ring_entries: 0,
    };
    let pool = Pool::create(shape).unwrap();
    let chunk = pool.try_take(1).unwrap();
    pool.put(&chunk, 0, contents);
    let (out, into) = rustix::pipe::pipe().unwrap();
    let page = pool.run_span(chunk.into_index(), 1);
    let part = libc::iovec {
        iov_base: page.pointer().cast(),
        iov_len: page.len_bytes(),
    };
    // SAFETY: one piece of our own mapping, which the pipe only reads.
    let sent = unsafe {
        libc::vmsplice(
            std::os::fd::AsRawFd::as_raw_fd(&into),
            &raw const part,
            1,
            0,
        )
    };
    assert_eq!(sent, 4096);
    (pool, out)
}

// Breaks if: memory is given back as it is; whoever still has a page of it could read it.
#[test]
fn secret_memory_is_overwritten_before_it_is_given_back() {
    for wipe in [true, false] {
        let (pool, pipe) = with_a_page_in_a_pipe(&[7; 4096]);
        assert_eq!(pool.keep_only(&|_| true, wipe).unwrap(), 8192);
        assert_eq!(pool.read_bytes(4096, 1).unwrap(), [7]);
        assert_eq!(pool.keep_only(&|chunk| chunk == 0, wipe).unwrap(), 4096);
        assert_eq!(pool.read_bytes(4096, 1).unwrap(), [0], "a hole");
        let mut found = [1; 4096];
        assert_eq!(rustix::io::read(&pipe, &mut found).unwrap(), 4096);
        let expected = if wipe { 0 } else { 7 };
        assert!(found.iter().all(|byte| *byte == expected), "wiped: {wipe}");
    }
}
