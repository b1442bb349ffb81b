//! Tests the pool, its words, rings and gates, between threads and between processes.
#![allow(clippy::disallowed_methods, clippy::unwrap_used)] // tests look behind the door

use orcheck_format::{ErrorKind, crc64};
use orcheck_io::disk::{Create, open_local, read_small};
use orcheck_io::failpoints::Failpoints;
use orcheck_io::memory::{Buffer, Span};
use orcheck_pool::{Chunk, Gates, HugePages, MemoryNode, Pool, PoolShape};
use orcheck_testing::{Child, Ended, Scratch};
use proptest::prelude::*;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(20);
const SHAPE: PoolShape = PoolShape {
    chunk_bytes: 8192,
    chunk_count: 150,
    words: 8,
    rings: 2,
    ring_entries: 5,
};

fn pool(chunk_count: u32) -> Pool {
    Pool::create(PoolShape {
        chunk_count,
        ..SHAPE
    })
    .unwrap()
}

fn another(pool: &Pool) -> Pool {
    Pool::attach(pool.fd().try_clone_to_owned().unwrap()).unwrap()
}

#[test]
fn chunks_go_lowest_first_from_near_and_come_back() {
    let pool = pool(150);
    let first: Vec<Chunk> = (0..3).map(|_| pool.try_take(0).unwrap()).collect();
    assert_eq!(
        first.iter().map(Chunk::index).collect::<Vec<_>>(),
        [0, 1, 2]
    );
    let near = pool.try_take(100).unwrap();
    assert_eq!(near.index(), 100);
    let wild = pool.try_take(u32::MAX).unwrap();
    assert_eq!(wild.index(), 3);
    assert_eq!(pool.free_chunks(), 145);
    let mut rest = Vec::new();
    while let Some(chunk) = pool.try_take(149) {
        rest.push(chunk);
    }
    assert_eq!((rest.len(), pool.free_chunks()), (145, 0));
    assert_eq!((rest[0].index(), rest[1].index()), (149, 4));
    let error = pool.take(0, Duration::from_millis(30)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    for chunk in first.into_iter().chain(rest).chain([near, wild]) {
        pool.give(chunk);
    }
    assert_eq!(pool.free_chunks(), 150);
}

// Breaks if: `take` looks at its deadline only after another chunk was given back, or not at all.
#[test]
fn who_waits_for_no_chunk_is_told_so_in_time() {
    let pool = pool(1);
    let held = pool.try_take(0).unwrap();
    let before = Instant::now();
    let error = pool.take(0, Duration::from_millis(30)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    let waited = before.elapsed();
    assert!(waited >= Duration::from_millis(30) && waited < Duration::from_secs(5));
    pool.give(held);
}

#[test]
fn numbers_that_cross_are_checked() {
    let pool = pool(70);
    let index = pool.try_take(66).unwrap().into_index();
    let chunk = Chunk::from_index(&pool, index).unwrap();
    assert_eq!(
        Chunk::from_index(&pool, 70).unwrap_err().kind(),
        ErrorKind::Corrupt
    );
    assert_eq!(
        Chunk::from_index(&pool, u32::MAX).unwrap_err().kind(),
        ErrorKind::Corrupt
    );
    // Breaks if: `from_index` does not look whether the chunk is taken.
    assert_eq!(
        Chunk::from_index(&pool, 65).unwrap_err().kind(),
        ErrorKind::Corrupt
    );
    pool.give(chunk);
}

#[test]
fn runs_are_neighbours_from_the_top() {
    let pool = pool(150);
    assert_eq!(pool.take_run(10), Some(140));
    assert_eq!(pool.take_run(80), Some(60));
    let low = pool.try_take(30).unwrap();
    assert_eq!(pool.take_run(31), None);
    assert_eq!(pool.take_run(30), Some(0));
    assert_eq!(pool.take_run(29), Some(31));
    assert_eq!(
        (pool.take_run(1), pool.take_run(0), pool.take_run(151)),
        (None, None, None)
    );
    pool.give_run(60, 80);
    assert_eq!(pool.free_chunks(), 80);
    assert_eq!(pool.run_span(60, 80).len_bytes(), 80 * 8192);
    pool.give(low);
    assert!(std::panic::catch_unwind(|| pool.give_run(149, 2)).is_err());
}

#[test]
fn staging_copies_and_checks_in_one_pass() {
    let pool = pool(4);
    let mut source = Buffer::zeroed(8192, 64);
    source
        .iter_mut()
        .zip(0u32..)
        .for_each(|(b, i)| *b = (i * 7 + i / 256) as u8);
    let expected = source.to_vec();
    let span = source.span();
    let chunk = pool.take(0, LIMIT).unwrap();
    for (at, from, len) in [
        (0, 0, 8192),
        (0, 0, 0),
        (1, 3, 5000),
        (8191, 0, 1),
        (100, 7, 64),
    ] {
        let crc = pool.stage(&chunk, at as u32, span.sub(from, len));
        assert_eq!(crc, crc64(&expected[from..from + len]));
        assert_eq!(
            pool.read_bytes(at, len as u64).unwrap(),
            &expected[from..from + len]
        );
    }
    pool.put(&chunk, 8190, b"ab");
    pool.zero(&chunk, 0, 8190);
    let bytes = pool.read_bytes(0, 8192).unwrap();
    assert!(bytes[..8190].iter().all(|b| *b == 0) && &bytes[8190..] == b"ab");
    // Breaks if: the bounds of a chunk are not checked.
    let other = pool.take(0, LIMIT).unwrap();
    for (at, len) in [(1, 8192), (8192, 1), (u32::MAX, 1)] {
        assert!(std::panic::catch_unwind(|| pool.stage(&chunk, at, span.sub(0, len))).is_err());
        assert!(std::panic::catch_unwind(|| pool.zero(&chunk, at, len as u32)).is_err());
    }
    // Pool memory may be staged into another chunk, not onto itself.
    let inside = pool.span(0, 8192).unwrap();
    assert_eq!(pool.stage(&other, 0, inside), crc64(&bytes));
    assert!(std::panic::catch_unwind(|| pool.stage(&chunk, 0, inside)).is_err());
    pool.give(chunk);
    pool.give(other);
}

#[test]
fn spans_of_the_pool_are_checked_and_found_again() {
    let pool = pool(4);
    let len = pool.shape().len_bytes();
    assert_eq!(pool.span(0, len).unwrap().len_bytes() as u64, len);
    for (at, part) in [
        (0, len + 1),
        (len, 1),
        (1, len),
        (u64::MAX, 2),
        (2, u64::MAX),
    ] {
        assert_eq!(pool.span(at, part).unwrap_err().kind(), ErrorKind::Invalid);
        assert!(pool.read_bytes(at, part).is_err());
    }
    let span = pool.span(9000, 100).unwrap();
    assert_eq!(pool.offset_of(span), Some(9000));
    let mut outside = [0u8; 16];
    assert_eq!(pool.offset_of(Span::from_mut(&mut outside)), None);
    assert_eq!(
        pool.offset_of(another(&pool).span(9000, 100).unwrap()),
        None
    );
}

#[test]
fn pool_memory_goes_straight_to_a_file() {
    let scratch = Scratch::new("pool-file");
    let dir = open_local(scratch.path(), Failpoints::none()).unwrap();
    let pool = pool(4);
    pool.populate(0, 4).unwrap();
    let chunk = pool.take(1, LIMIT).unwrap();
    let bytes: Vec<u8> = (0..8192u32).map(|i| (i / 3) as u8).collect();
    pool.put(&chunk, 0, &bytes);
    let file = dir.create("p", Create::Direct).unwrap();
    pool.write_to(&*file, 8192, 8192, 4096).unwrap();
    pool.write_to(&*file, 0, 4096, 0).unwrap();
    file.sync().unwrap();
    let back = read_small(&*dir, "p", 1 << 20).unwrap();
    assert!(back[..4096].iter().all(|b| *b == 0) && back[4096..] == bytes[..]);
    assert!(pool.write_to(&*file, 4 * 8192, 1, 0).is_err());
    pool.give(chunk);
}

#[test]
fn populating_is_checked_and_repeatable() {
    let pool = pool(100);
    pool.populate(10, 60).unwrap();
    pool.populate(0, 100).unwrap();
    pool.populate(0, 0).unwrap();
    assert!(pool.populate(99, 2).is_err());
    assert!(pool.populate(u32::MAX, 2).is_err());
}

#[test]
fn shapes_and_foreign_memory_are_refused() {
    assert!(
        Pool::create(PoolShape {
            chunk_count: 0,
            ..SHAPE
        })
        .is_err()
    );
    assert!(
        Pool::create(PoolShape {
            chunk_bytes: 5000,
            ..SHAPE
        })
        .is_err()
    );
    let null = OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
    assert!(Pool::attach(null).is_err());
    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
    let make = || {
        let fd = memfd_create("x", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        let good = pool(4);
        let mut head = [0; 64];
        assert_eq!(rustix::io::pread(good.fd(), &mut head, 0).unwrap(), 64);
        assert_eq!(rustix::io::pwrite(&fd, &head, 0).unwrap(), 64);
        ftruncate(&fd, rustix::fs::fstat(good.fd()).unwrap().st_size as u64).unwrap();
        fd
    };
    // Breaks if: `attach` does not ask for the seals (the file could shrink under the mapping:
    // SIGBUS).
    assert_eq!(
        Pool::attach(make()).err().unwrap().kind(),
        ErrorKind::Corrupt
    );
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    let sealed = make();
    fcntl_add_seals(&sealed, seals).unwrap();
    assert!(Pool::attach(sealed).is_ok());
    let short = make();
    ftruncate(&short, 4096).unwrap();
    fcntl_add_seals(&short, seals).unwrap();
    // Breaks if: the size of the memory is not compared with the shape.
    assert_eq!(
        Pool::attach(short).err().unwrap().kind(),
        ErrorKind::Corrupt
    );
}

#[test]
fn threads_never_share_a_chunk() {
    let pool = pool(16);
    let owners: Vec<AtomicU64> = (0..16).map(|_| AtomicU64::new(0)).collect();
    std::thread::scope(|scope| {
        for thread in 1..=6u64 {
            let (pool, owners) = (&pool, &owners);
            scope.spawn(move || {
                for turn in 0..3000u32 {
                    if turn % 7 == 0 {
                        if let Some(first) = pool.take_run(3) {
                            for i in first..first + 3 {
                                assert_eq!(owners[i as usize].swap(thread, Ordering::SeqCst), 0);
                            }
                            for i in first..first + 3 {
                                assert_eq!(owners[i as usize].swap(0, Ordering::SeqCst), thread);
                            }
                            pool.give_run(first, 3);
                        }
                        continue;
                    }
                    let chunk = pool.take(turn % 16, LIMIT).unwrap();
                    let owner = &owners[chunk.index() as usize];
                    assert_eq!(owner.swap(thread, Ordering::SeqCst), 0);
                    assert_eq!(owner.swap(0, Ordering::SeqCst), thread);
                    pool.give(chunk);
                }
            });
        }
    });
    assert_eq!(pool.free_chunks(), 16);
}

#[test]
fn two_threads_that_race_for_one_chunk_never_both_get_it() {
    let pool = pool(1);
    let owner = AtomicU64::new(0);
    let start = std::sync::Barrier::new(2);
    std::thread::scope(|scope| {
        for thread in 1..=2u64 {
            let (pool, owner, start) = (&pool, &owner, &start);
            scope.spawn(move || {
                start.wait();
                for _ in 0..300_000 {
                    let Some(chunk) = pool.try_take(0) else {
                        continue;
                    };
                    assert_eq!(owner.swap(thread, Ordering::SeqCst), 0);
                    assert_eq!(owner.swap(0, Ordering::SeqCst), thread);
                    pool.give(chunk);
                }
            });
        }
    });
    assert_eq!(pool.free_chunks(), 1);
}

#[test]
fn a_waiter_gets_the_chunk_that_another_process_gives() {
    let pool = pool(1);
    let chunk = pool.take(0, LIMIT).unwrap();
    let children: Vec<Child> = (0..3)
        .map(|_| {
            Child::run(|| {
                let pool = another(&pool);
                for _ in 0..200 {
                    let Ok(chunk) = pool.take(0, LIMIT) else {
                        return 1;
                    };
                    let seen = pool.word(0).load(Ordering::SeqCst);
                    pool.word(0).store(seen + 1, Ordering::SeqCst);
                    pool.give(chunk);
                }
                0
            })
        })
        .collect();
    pool.give(chunk);
    for child in children {
        assert_eq!(child.wait(LIMIT), Ended::Exited(0));
    }
    // The single chunk was a lock: no increment was lost.
    assert_eq!(pool.word(0).load(Ordering::SeqCst), 600);
    assert_eq!(pool.free_chunks(), 1);
}

#[test]
fn a_forked_child_has_no_mapping_but_can_attach() {
    let pool = pool(2);
    let chunk = pool.take(0, LIMIT).unwrap();
    pool.put(&chunk, 0, b"from the parent");
    let child = Child::run(|| {
        let mine = another(&pool);
        if mine.read_bytes(0, 15).unwrap() != b"from the parent" {
            return 1;
        }
        drop(mine);
        // Breaks if: MADV_DONTFORK is left out (then this read succeeds).
        let _ = pool.read_bytes(0, 1);
        0
    });
    assert_eq!(child.wait(LIMIT), Ended::Signaled(libc::SIGSEGV));
    assert_eq!(pool.read_bytes(0, 4).unwrap(), b"from");
    pool.give(chunk);
}

#[test]
fn words_wake_other_processes() {
    let pool = pool(1);
    let child = Child::run(|| {
        let pool = another(&pool);
        for turn in 0..500 {
            if !pool.wait_while(1, turn, LIMIT) {
                return 1;
            }
            pool.word(2).store(turn + 1, Ordering::SeqCst);
            pool.wake(2);
        }
        0
    });
    for turn in 0..500 {
        pool.word(1).store(turn + 1, Ordering::SeqCst);
        pool.wake(1);
        assert!(pool.wait_while(2, turn, LIMIT));
    }
    assert_eq!(child.wait(LIMIT), Ended::Exited(0));
    let before = Instant::now();
    assert!(!pool.wait_while(3, 0, Duration::from_millis(20)));
    assert!(before.elapsed() >= Duration::from_millis(20));
    assert!(std::panic::catch_unwind(|| pool.word(8).load(Ordering::Relaxed)).is_err());
}

#[test]
fn a_ring_carries_every_entry_once_and_in_order_between_processes() {
    let pool = pool(1);
    const COUNT: u64 = 20_000;
    let child = Child::run(|| {
        let pool = another(&pool);
        let ring = pool.ring(1);
        let give_up = Instant::now() + LIMIT;
        for i in 0..COUNT {
            while !ring.push(&[i, !i, i * 3, 0, 1, 2, 3, i]) {
                if Instant::now() > give_up {
                    return 1;
                }
                std::thread::yield_now();
            }
        }
        0
    });
    let ring = pool.ring(1);
    let give_up = Instant::now() + LIMIT;
    for i in 0..COUNT {
        let entry = loop {
            if let Some(entry) = ring.pop() {
                break entry;
            }
            assert!(Instant::now() < give_up);
            std::thread::yield_now();
        };
        assert_eq!(entry, [i, !i, i * 3, 0, 1, 2, 3, i]);
    }
    assert_eq!(ring.pop(), None);
    assert_eq!(child.wait(LIMIT), Ended::Exited(0));
    assert!(pool.ring(0).pop().is_none());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_ring_behaves_like_a_queue(steps in proptest::collection::vec(any::<Option<u64>>(), 0..60)) {
        let pool = pool(1);
        let ring = pool.ring(0);
        let mut model = std::collections::VecDeque::new();
        for step in steps {
            match step {
                Some(value) => {
                    let fits = model.len() < 5;
                    prop_assert_eq!(ring.push(&[value; 8]), fits);
                    if fits {
                        model.push_back([value; 8]);
                    }
                }
                None => prop_assert_eq!(ring.pop(), model.pop_front()),
            }
        }
        ring.clear();
        prop_assert_eq!(ring.pop(), None);
    }
}

#[test]
fn nonsense_in_shared_memory_leads_nowhere() {
    let pool = pool(1);
    let _ = pool.ring(0).push(&[7; 8]);
    // A neighbour scribbles over everything behind the head's first 64 bytes.
    let mut state = 1u64;
    let mut noise = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    for turn in 0..8u64 {
        let words = (2 << 20) / 8 - 8;
        let junk: Vec<u8> = match turn {
            0 => vec![0xff; words * 8],
            1 => vec![0x01; words * 8],
            _ => (0..words).flat_map(|_| noise().to_le_bytes()).collect(),
        };
        let mut done = 0;
        while done < junk.len() {
            done += rustix::io::pwrite(pool.fd(), &junk[done..], 64 + done as u64).unwrap();
        }
        for ring in [pool.ring(0), pool.ring(1)] {
            let (popped, pushed) = (ring.pop(), ring.push(&[1; 8]));
            // Breaks if: the ring trusts the distance of its counters, which is nonsense here.
            assert!(turn < 2 || (popped.is_none() && !pushed));
        }
        let _ = pool.free_chunks();
        let _ = pool
            .take(0, Duration::from_millis(1))
            .map(|chunk| pool.give(chunk));
        let _ = pool.take_run(1).map(|first| pool.give_run(first, 1));
        let _ = pool.wait_while(0, 0, Duration::from_millis(1));
        assert_eq!(pool.shape().chunk_count, 1);
    }
}

#[test]
fn gates_exclude_processes_and_threads() {
    let pool = pool(1);
    let raise = |pool: &Pool, gates: &Gates| {
        for _ in 0..150 {
            let gate = gates.lock(7, LIMIT).unwrap();
            let seen = pool.word(4).load(Ordering::Relaxed);
            std::thread::yield_now();
            pool.word(4).store(seen + 1, Ordering::Relaxed);
            drop(gate);
        }
    };
    let child = Child::run(|| {
        let pool = another(&pool);
        raise(&pool, &Gates::open(&pool).unwrap());
        0
    });
    let gates = Gates::open(&pool).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| raise(&pool, &gates));
        }
    });
    assert_eq!(child.wait(LIMIT), Ended::Exited(0));
    // Breaks if: all locks share one file description (threads would not exclude each other).
    assert_eq!(pool.word(4).load(Ordering::Relaxed), 450);
}

#[test]
fn a_gate_is_held_alone_or_shared() {
    let pool = pool(1);
    let gates = Gates::open(&pool).unwrap();
    let soon = Duration::from_millis(40);
    let first = gates.share(5, LIMIT).unwrap();
    let second = gates.share(5, LIMIT).unwrap();
    // Breaks if: a share does not keep out who wants the gate alone.
    assert!(gates.try_lock(5).unwrap().is_none());
    drop(first);
    assert!(gates.lock(5, soon).is_err());
    drop(second);
    let alone = gates.lock(5, LIMIT).unwrap();
    assert!(gates.share(5, soon).is_err());
    assert!(gates.try_share(5).unwrap().is_none());
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| gates.share(5, LIMIT).map(drop));
        alone.let_in().unwrap();
        waiter.join().unwrap().unwrap();
    });
    // Who let others in still has its share.
    assert!(gates.try_lock(5).unwrap().is_none());
    drop(alone);
    assert!(gates.try_lock(5).unwrap().is_some());
}

#[test]
fn a_gate_waits_no_longer_than_its_deadline_and_bytes_are_independent() {
    let pool = pool(1);
    let gates = Gates::open(&pool).unwrap();
    let held = gates.lock(0, LIMIT).unwrap();
    assert!(gates.try_lock(0).unwrap().is_none());
    let far = gates.try_lock(i64::MAX as u64 - 1).unwrap();
    assert!(far.is_some());
    assert!(gates.try_lock(u64::MAX).is_err());
    let before = Instant::now();
    let error = gates.lock(0, Duration::from_millis(40)).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(
        before.elapsed() >= Duration::from_millis(40) && before.elapsed() < Duration::from_secs(5)
    );
    drop(held);
    assert!(gates.try_lock(0).unwrap().is_some());
    // Gates keep the memory they need after the pool is dropped.
    drop(pool);
    drop(gates.lock(0, LIMIT).unwrap());
}

#[test]
fn a_dead_holder_blocks_nobody() {
    let pool = pool(1);
    let holder = Child::run(|| {
        let pool = another(&pool);
        let gates = Gates::open(&pool).unwrap();
        let _gate = gates.lock(3, LIMIT).unwrap();
        pool.word(5).store(1, Ordering::SeqCst);
        pool.wake(5);
        loop {
            std::thread::park();
        }
    });
    assert!(pool.wait_while(5, 0, LIMIT));
    let gates = Gates::open(&pool).unwrap();
    assert!(gates.try_lock(3).unwrap().is_none());
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let gates = &gates;
        let waiter = scope.spawn(move || {
            tell.send(std::fs::read_link("/proc/thread-self").unwrap())
                .unwrap();
            gates.lock(3, LIMIT)
        });
        let before = Instant::now();
        // The kernel says when it sleeps: a holder that dies earlier proves nothing.
        let stat = std::path::Path::new("/proc")
            .join(told.recv().unwrap())
            .join("stat");
        while !std::fs::read_to_string(&stat).unwrap().contains(") S ") {
            assert!(before.elapsed() < LIMIT, "the waiter never sleeps");
            std::thread::yield_now();
        }
        let before = Instant::now();
        holder.kill();
        assert!(waiter.join().unwrap().is_ok());
        // Breaks if: a waiter only relies on being woken by the holder (it would wait to its
        // deadline).
        assert!(before.elapsed() < LIMIT / 2);
    });
    assert_eq!(holder.wait(LIMIT), Ended::Signaled(libc::SIGKILL));
}

#[test]
fn a_fork_while_a_gate_is_held_does_not_keep_it_closed() {
    let pool = pool(1);
    let gates = Gates::open(&pool).unwrap();
    let gate = gates.lock(1, LIMIT).unwrap();
    let child = Child::run(|| {
        loop {
            std::thread::park();
        }
    });
    drop(gate);
    // Breaks if: `Gate::drop` only closes its descriptor, which the child shares.
    assert!(gates.try_lock(1).unwrap().is_some());
    child.kill();
    child.wait(LIMIT);
}

/// Free huge pages of the machine's reserve.
fn reserve() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap();
    let line = text
        .lines()
        .find(|line| line.starts_with("HugePages_Free:"));
    line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok())
        .unwrap_or(0)
}

/// Takes, fills, checksums and gives chunks back, here and through a second mapping.
fn works(pool: &Pool) {
    let other = another(pool);
    other.prefer_huge(HugePages::Transparent);
    let count = pool.shape().chunk_count;
    pool.populate(0, count / 2).unwrap();
    let bytes: Vec<u8> = (0..pool.shape().chunk_bytes)
        .map(|i| (i / 3) as u8)
        .collect();
    for pool in [pool, &other] {
        let chunks: Vec<Chunk> = (0..count).map(|_| pool.try_take(0).unwrap()).collect();
        assert!(pool.try_take(0).is_none());
        for chunk in chunks {
            let mut source = bytes.clone();
            let crc = pool.stage(&chunk, 0, Span::from_mut(&mut source));
            assert_eq!(crc, crc64(&bytes));
            let at = u64::from(chunk.index()) * u64::from(pool.shape().chunk_bytes);
            assert!(other.read_bytes(at, bytes.len() as u64).unwrap() == bytes);
            pool.give(chunk);
        }
    }
    let gates = Gates::open(pool).unwrap();
    drop(gates.lock(3, LIMIT).unwrap());
}

const LARGE: PoolShape = PoolShape {
    chunk_bytes: 2 << 20,
    chunk_count: 5,
    words: 2,
    rings: 1,
    ring_entries: 4,
};

// Breaks if: a reserve that is too small makes `create_of` fail, or memory from it is written by a
// system call that it does not know.
#[test]
fn huge_pages_come_from_the_reserve_or_are_done_without() {
    let before = reserve();
    let pool = Pool::create_of(LARGE, HugePages::Reserved).unwrap();
    let huge = pool.page_bytes() == 2 << 20;
    assert!(huge || pool.page_bytes() == 4096, "{}", pool.page_bytes());
    if before > 12 {
        assert!(huge, "{before} huge pages were free");
    }
    works(&pool);
    // More than any reserve has.
    let shape = PoolShape {
        chunk_count: 1 << 20,
        ..LARGE
    };
    assert_eq!(
        Pool::create_of(shape, HugePages::Reserved)
            .unwrap()
            .page_bytes(),
        4096
    );
    // Chunks of this size do not consist of huge pages.
    let shape = PoolShape {
        chunk_bytes: 65536,
        ..LARGE
    };
    let pool = Pool::create_of(shape, HugePages::Reserved).unwrap();
    assert_eq!(pool.page_bytes(), 4096);
    works(&pool);
}

#[test]
fn transparent_huge_pages_are_asked_for_and_nothing_depends_on_them() {
    works(&Pool::create_of(LARGE, HugePages::Transparent).unwrap());
    let small = PoolShape {
        chunk_bytes: 12288,
        ..LARGE
    };
    works(&Pool::create_of(small, HugePages::Transparent).unwrap());
}

#[test]
fn memory_can_be_asked_from_a_node_and_a_node_that_is_not_there_is_refused() {
    let node = |id| MemoryNode { id, cpus: vec![0] };
    let pool = Pool::create(LARGE).unwrap();
    pool.place(1, 3, Vec::new()).unwrap();
    let policies = || {
        let maps = std::fs::read_to_string("/proc/self/numa_maps").unwrap_or_default();
        let ours = maps.lines().filter(|line| line.contains("orcheck-pool"));
        ours.map(str::to_owned).collect::<Vec<_>>().join("\n")
    };
    let start = format!("{:x} ", pool.run_span(1, 1).address());
    assert!(!policies().contains(&start), "{}", policies());
    let Ok(()) = pool.place(1, 3, vec![node(0)]) else {
        let _ = writeln!(
            std::io::stderr(),
            "SKIPPED: this kernel has no memory policies"
        );
        return;
    };
    // Breaks if: the policy is not set, or for other chunks than those named.
    let found = policies();
    let line = found.lines().find(|line| line.starts_with(&start));
    assert!(line.is_some_and(|line| line.contains("prefer")), "{found}");
    assert!(pool.place(0, 1, vec![node(1000)]).is_err());
    works(&pool);
    // The first nodes stay: helpers of one node run anywhere.
    let before = orcheck_io::machine::cpuset();
    pool.spread_helper(1);
    assert_eq!(orcheck_io::machine::cpuset(), before);
}
