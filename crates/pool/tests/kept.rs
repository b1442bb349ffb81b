//! Tests the memory of a pool whose run has ended.
#![allow(clippy::unwrap_used)] // tests fail by a panic
#![allow(unsafe_code)] // a page is shared with a pipe

use orcheck_format::{ErrorKind, crc64};
use orcheck_io::memory::Span;
use orcheck_pool::{KeptPool, Pool, PoolShape, read_sealed, seal_bytes};
use std::os::fd::{AsRawFd, OwnedFd};

fn pool(chunk_bytes: u32, chunk_count: u32) -> Pool {
    Pool::create(PoolShape {
        chunk_bytes,
        chunk_count,
        words: 0,
        rings: 0,
        ring_entries: 0,
    })
    .unwrap()
}

/// A pool of two chunks of a page, and a pipe that holds the page of the second one.
fn with_a_page_in_a_pipe(contents: &[u8; 4096]) -> (Pool, OwnedFd) {
    let pool = pool(4096, 2);
    let chunk = pool.try_take(1).unwrap();
    pool.put(&chunk, 0, contents);
    let (out, into) = rustix::pipe::pipe().unwrap();
    let page = pool.run_span(chunk.into_index(), 1);
    let part = libc::iovec {
        iov_base: page.pointer().cast(),
        iov_len: page.len_bytes(),
    };
    // SAFETY: one piece of our own mapping, which the pipe only reads.
    let sent = unsafe { libc::vmsplice(into.as_raw_fd(), &raw const part, 1, 0) };
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

// Breaks if: a place is not checked, a hole is an error, or the checksum is not that of the
// copy.
#[test]
fn kept_memory_is_copied_out_with_its_checksum() {
    let pool = pool(8192, 150);
    let bytes: Vec<u8> = (0..20_000u32).map(|n| (n * 7) as u8).collect();
    for (at, piece) in bytes.chunks(8192).enumerate() {
        let chunk = pool.try_take(at as u32).unwrap();
        pool.put(&chunk, 0, piece);
        let _ = chunk.into_index();
    }
    pool.keep_only(&|chunk| chunk < 3, false).unwrap();
    let kept = KeptPool::attach(pool.fd().try_clone_to_owned().unwrap()).unwrap();
    assert_eq!(kept.shape(), pool.shape());
    for (at, len) in [(0, 20_000), (1, 8191), (4095, 10_000), (8192, 1), (5, 0)] {
        let mut into = vec![1; len];
        let crc = kept.copy_out(at as u64, Span::from_mut(&mut into)).unwrap();
        assert_eq!(into, bytes[at..at + len]);
        assert_eq!(crc, crc64(&into));
    }
    let mut into = vec![1; 8192];
    let crc = kept.copy_out(3 * 8192, Span::from_mut(&mut into)).unwrap();
    assert!(into.iter().all(|byte| *byte == 0));
    assert_eq!(crc, crc64(&into));
    for at in [150 * 8192 - 8191, u64::MAX, u64::MAX - 8191] {
        let error = kept.copy_out(at, Span::from_mut(&mut into)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
    }
}

// Breaks if: memory is read that somebody may change, or any length of it.
#[test]
fn only_sealed_bytes_are_read() {
    let bytes = b"what lies where".repeat(1000);
    let file = seal_bytes(&bytes).unwrap();
    assert_eq!(read_sealed(&file, bytes.len()).unwrap(), bytes);
    let long = read_sealed(&file, bytes.len() - 1).unwrap_err();
    assert_eq!(long.kind(), ErrorKind::Corrupt);
    let open = pool(8192, 3).fd().try_clone_to_owned().unwrap();
    let open = read_sealed(&open, 1 << 30).unwrap_err();
    assert_eq!(open.kind(), ErrorKind::Corrupt);
}
