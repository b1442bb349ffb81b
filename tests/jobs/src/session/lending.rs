//! Memory lent to a checkpoint: private memory, pool memory, and what is refused meanwhile.

use crate::session::hooks::{Hold, Holds};
use crate::session::mistakes::{LONG, refused, says};
use crate::support::{Job, needs_own_disks};
use crate::{Test, session_tests};
use orcheck_client::{Codec, SAME, Session};
use orcheck_engine::node::{Index, IndexShape};
use orcheck_format::{Dtype, Error, ErrorKind, Level, Result};
use orcheck_io::clock::SystemClock;
use orcheck_io::memory::{Span, copy_out, fill_span};
use orcheck_pool::{Pool, PoolShape};
use orcheck_testing::Scratch;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// What is tested here.
pub const TESTS: &[Test] = session_tests![
    private_memory_is_streamed_in_the_background_and_given_back_when_read,
    private_memory_comes_back_although_nothing_reached_the_disk,
    pool_memory_is_lent_without_a_copy_until_its_flush_is_over,
    pool_memory_is_freed_only_when_no_region_lies_in_it,
    alloc_leaves_room_for_snapshots_to_pass,
    a_refused_alloc_takes_nothing_from_another_rank,
    lent_and_copied_regions_mix_in_every_mode,
    lent_regions_pass_through_a_pool_much_smaller_than_they,
    what_was_lent_long_ago_is_known_to_be_back,
    a_loan_is_for_one_checkpoint_and_same_regions_cannot_be_lent,
    snapshots_of_one_rank_follow_each_other_although_one_is_still_being_read,
    lent_memory_is_read_when_the_last_rank_of_the_node_returns,
];

const POLL: Duration = Duration::ZERO;

fn pattern(rank: u32, region: u8, len: usize) -> Vec<u8> {
    (0..len)
        .map(|i| (i / 7) as u8 ^ region ^ rank as u8 ^ (i >> 12) as u8)
        .collect()
}

fn protect(session: &mut Session, name: &str, span: Span) {
    session.protect(name, span, Dtype::U8, 0).unwrap();
}

/// What each region of a rank must be after a restart.
type Expected = Vec<(&'static str, Vec<u8>)>;

fn restores(job: &Job, step: u64, expected: impl Fn(u32) -> Expected + Sync) {
    job.run(|session, rank| {
        let mut session = session.unwrap();
        assert_eq!(session.find().unwrap(), step);
        let mut got: Expected = expected(rank)
            .into_iter()
            .map(|(name, bytes)| (name, vec![0; bytes.len()]))
            .collect();
        for (name, bytes) in &mut got {
            protect(&mut session, name, Span::from_mut(bytes));
        }
        assert_eq!(session.restart().unwrap(), step);
        for ((name, got), (_, expected)) in got.iter().zip(expected(rank)) {
            let at = got.iter().zip(&expected).position(|(a, b)| a != b);
            assert_eq!(at, None, "rank {rank}, region {name}");
        }
        session.close(LONG).unwrap();
    });
}

// Breaks if: `Stager::wait` says true for a step that is not finished, or lent regions are copied
// in the foreground.
fn private_memory_is_streamed_in_the_background_and_given_back_when_read() {
    let scratch = Scratch::new("private");
    let hold = Hold::at("stage.seal", "");
    let job = Job::new(scratch.path(), 1, 1, false);
    job.clone()
        .failpoints(hold.failpoints())
        .run(|session, rank| {
            let mut session = session.unwrap();
            let mut u = pattern(rank, 1, 200_000);
            let span = Span::from_mut(&mut u);
            protect(&mut session, "u", span);
            session.lend("u").unwrap();
            session.lent_done("u", POLL).unwrap();
            session.checkpoint(1).unwrap();
            // The staging thread has not come to its end: the memory is not the program's yet.
            hold.wait_until_held();
            says(
                &refused(session.lent_done("u", POLL)),
                ErrorKind::Unavailable,
                &["region 'u' is still lent", "do not write"],
            );
            says(
                &refused(session.lent_done("u", Duration::from_millis(30))),
                ErrorKind::Unavailable,
                &["after 0.030 s"],
            );
            says(
                &refused(session.lend("u")),
                ErrorKind::Unavailable,
                &["still lent to the last checkpoint", "lent_done"],
            );
            says(
                &refused(session.protect("u", span, Dtype::U8, 0)),
                ErrorKind::Unavailable,
                &["region 'u' is still lent", "before moving it"],
            );
            says(
                &refused(session.unprotect("u")),
                ErrorKind::Unavailable,
                &["still lent", "before unprotecting"],
            );
            says(
                &refused(session.lent_done("v", POLL)),
                ErrorKind::NotFound,
                &["no region 'v'"],
            );
            hold.release();
            session.lent_done("u", LONG).unwrap();
            fill_span(span, &vec![0xff; 200_000]);
            session.lent_done("u", POLL).unwrap();
            session.unprotect("u").unwrap();
            session.close(LONG).unwrap();
        });
    restores(&job, 1, |rank| vec![("u", pattern(rank, 1, 200_000))]);
}

// Breaks if: staging a lent region waits for its flush.
fn private_memory_comes_back_although_nothing_reached_the_disk() {
    let scratch = Scratch::new("notdisk");
    let hold = Hold::at("file.write", ".orc");
    let job = Job::new(scratch.path(), 1, 1, false);
    job.clone()
        .failpoints(hold.failpoints())
        .run(|session, rank| {
            let mut session = session.unwrap();
            let mut u = pattern(rank, 1, 300_000);
            let span = Span::from_mut(&mut u);
            protect(&mut session, "u", span);
            session.lend("u").unwrap();
            session.checkpoint(1).unwrap();
            session.lent_done("u", LONG).unwrap();
            fill_span(span, &vec![0xff; 300_000]);
            says(
                &refused(session.wait(1, Level::Global, POLL)),
                ErrorKind::Unavailable,
                &["not yet safe", "continues in the background"],
            );
            hold.release();
            session.close(LONG).unwrap();
        });
    restores(&job, 1, |rank| vec![("u", pattern(rank, 1, 300_000))]);
}

// Breaks if: pool memory is given back before its last byte is written.
fn pool_memory_is_lent_without_a_copy_until_its_flush_is_over() {
    let scratch = Scratch::new("pool");
    let hold = Hold::at("file.write", ".orc");
    let job = Job::new(scratch.path(), 1, 1, true);
    // More than half of the pool: a copy of it would not fit.
    let len = 6 << 20;
    job.clone()
        .failpoints(hold.failpoints())
        .run(|session, rank| {
            let mut session = session.unwrap();
            let span = session.alloc(len as u64).unwrap();
            assert!(span.address().is_multiple_of(4096));
            fill_span(span, &pattern(rank, 2, len));
            protect(&mut session, "p", span);
            session.lend("p").unwrap();
            session.checkpoint(1).unwrap();
            let stats = session.stats();
            assert_eq!(stats.staged_bytes, len as u64);
            assert!(
                stats.pool_used_bytes <= (len + (1 << 20)) as u64,
                "no copy: {stats:?}"
            );
            hold.wait_until_held();
            says(
                &refused(session.lent_done("p", POLL)),
                ErrorKind::Unavailable,
                &["still lent"],
            );
            says(
                &refused(session.free(span.address())),
                ErrorKind::Unavailable,
                &["region 'p' is still lent", "before freeing"],
            );
            says(
                &refused(session.unprotect("p")),
                ErrorKind::Unavailable,
                &["still lent"],
            );
            hold.release();
            session.lent_done("p", LONG).unwrap();
            fill_span(span, &vec![0xff; len]);
            session.close(LONG).unwrap();
        });
    restores(&job, 1, |rank| vec![("p", pattern(rank, 2, len))]);
}

// Breaks if: `free` does not look for regions in the memory: a later snapshot's chunks would be
// overwritten by a restart into that region.
fn pool_memory_is_freed_only_when_no_region_lies_in_it() {
    let scratch = Scratch::new("free");
    Job::new(scratch.path(), 1, 1, false).run(|session, _| {
        let mut session = session.unwrap();
        let span = session.alloc(100_000).unwrap();
        assert_eq!(span.len_bytes(), 100_000);
        protect(&mut session, "part", span.sub(99_999, 1));
        says(
            &refused(session.free(span.address())),
            ErrorKind::Invalid,
            &[
                "region 'part' lies in this pool memory",
                "unprotect it, or protect it elsewhere",
            ],
        );
        says(
            &refused(session.free(span.address() + 1)),
            ErrorKind::Invalid,
            &["was not given by alloc"],
        );
        session.unprotect("part").unwrap();
        session.free(span.address()).unwrap();
        says(
            &refused(session.free(span.address())),
            ErrorKind::Invalid,
            &["was freed already"],
        );
        let again = session.alloc(100_000).unwrap();
        assert_eq!(again.address(), span.address());
        session.close(LONG).unwrap();
    });
}

// Breaks if: `alloc` may take the last chunks: a checkpoint then waits for one until its timeout.
fn alloc_leaves_room_for_snapshots_to_pass() {
    let scratch = Scratch::new("room");
    let job = Job::new(scratch.path(), 2, 1, false);
    job.run(|session, rank| {
        let mut session = session.unwrap();
        let chunk = 65536;
        says(
            &refused(session.alloc(8 << 20)),
            ErrorKind::NoSpace,
            &[
                "128 chunks of 65536 bytes",
                "2 stay for snapshots",
                "raise `pool`",
            ],
        );
        says(
            &refused(session.alloc(u64::MAX)),
            ErrorKind::NoSpace,
            &["more than any pool holds"],
        );
        // Both ranks together take all but two chunks.
        let span = session.alloc(63 * chunk).unwrap();
        fill_span(span, &pattern(rank, 3, 63 * chunk as usize));
        protect(&mut session, "mine", span);
        let mut copied = pattern(rank, 4, 500_000);
        protect(&mut session, "copied", Span::from_mut(&mut copied));
        session.lend("mine").unwrap();
        session.checkpoint(1).unwrap();
        says(
            &refused(session.alloc(1)),
            ErrorKind::NoSpace,
            &["no 1 neighbouring ones"],
        );
        session.wait(1, Level::Global, LONG).unwrap();
        session.close(LONG).unwrap();
    });
    restores(&job, 1, |rank| {
        vec![
            ("mine", pattern(rank, 3, 63 * 65536)),
            ("copied", pattern(rank, 4, 500_000)),
        ]
    });
}

// Breaks if: the chunks of a refused request are counted while it is being checked: what fits
// beside it is refused, too.
fn a_refused_alloc_takes_nothing_from_another_rank() {
    let scratch = Scratch::new("beside");
    let (done, refusals) = (AtomicBool::new(false), AtomicU64::new(0));
    let all_chunks_but_two = 126 * 65536;
    Job::new(scratch.path(), 2, 1, false).run(|session, rank| {
        let mut session = session.unwrap();
        if rank == 0 {
            while !done.load(Ordering::Acquire) {
                assert_eq!(refused(session.alloc(8 << 20)).kind(), ErrorKind::NoSpace);
                refusals.fetch_add(1, Ordering::Relaxed);
            }
        } else {
            let mut failed = None;
            while failed.is_none() && refusals.load(Ordering::Relaxed) < 2_000 {
                let span = session.alloc(all_chunks_but_two);
                failed = span.and_then(|span| session.free(span.address())).err();
            }
            done.store(true, Ordering::Release);
            assert!(failed.is_none(), "{failed:?}");
        }
        session.close(LONG).unwrap();
    });
}

/// Lent private memory, lent pool memory and copied memory in one checkpoint, none a multiple of
/// a block; written over as soon as each may be.
fn mixed(job: &Job, scale: usize) {
    let sizes = [
        ("private", 1, 70 * scale + 13),
        ("pool", 2, 90 * scale + 4097),
        ("copied", 3, 50 * scale + 1),
        ("tiny", 4, 3),
    ];
    job.run(|session, rank| {
        let mut session = session.unwrap();
        for step in [1, 2] {
            let mut buffers: Vec<Vec<u8>> = sizes
                .iter()
                .map(|&(_, region, len)| pattern(rank, region + step as u8, len))
                .collect();
            let pool = session.alloc(sizes[1].2 as u64).unwrap();
            fill_span(pool, &buffers[1]);
            for ((name, ..), bytes) in sizes.iter().zip(&mut buffers) {
                protect(
                    &mut session,
                    name,
                    if *name == "pool" {
                        pool
                    } else {
                        Span::from_mut(bytes)
                    },
                );
            }
            for name in ["private", "pool", "tiny"] {
                session.lend(name).unwrap();
            }
            session.checkpoint(step).unwrap();
            buffers[2].fill(0x55);
            for (name, at) in [("tiny", 3), ("private", 0)] {
                session.lent_done(name, LONG).unwrap();
                buffers[at].fill(0x55);
            }
            session.lent_done("pool", LONG).unwrap();
            fill_span(pool, &vec![0x55; pool.len_bytes()]);
            session.unprotect("pool").unwrap();
            session.free(pool.address()).unwrap();
        }
        session.wait(2, Level::Global, LONG).unwrap();
        session.close(LONG).unwrap();
    });
    restores(job, 2, |rank| {
        sizes
            .iter()
            .map(|&(name, region, len)| (name, pattern(rank, region + 2, len)))
            .collect()
    });
}

// Breaks if: a borrowed tail is written as a whole block, or `lent_done` comes early.
fn lent_and_copied_regions_mix_in_every_mode() {
    for (mode, scheme, node_level) in [
        ("orchestrated", "node", true),
        ("orchestrated", "core", false),
        ("vertical", "node", true),
        ("traditional", "node", true),
    ] {
        let scratch = Scratch::new("mixed");
        let job = Job::new(scratch.path(), 3, 2, node_level);
        mixed(
            &job.with(&format!("mode = '{mode}'\nscheme = '{scheme}'")),
            3000,
        );
    }
}

// Breaks if: a pipelined lent snapshot keeps the stage slot while it waits for a chunk.
fn lent_regions_pass_through_a_pool_much_smaller_than_they() {
    for (mode, node_level) in [("orchestrated", true), ("traditional", false)] {
        let scratch = Scratch::new("smallpool");
        let job = Job::new(scratch.path(), 3, 2, node_level).with(&format!("mode = '{mode}'"));
        let job = job.pool("640 KiB");
        let len = |rank: u32| 1_000_003 + 4096 * rank as usize;
        job.run(|session, rank| {
            let mut session = session.unwrap();
            let pool = session.alloc(100_000).unwrap();
            for step in [1u64, 2, 3] {
                let mut u = pattern(rank, step as u8, len(rank));
                let mut v = pattern(rank, step as u8 + 40, 300_000);
                fill_span(pool, &pattern(rank, step as u8 + 80, 100_000));
                protect(&mut session, "u", Span::from_mut(&mut u));
                protect(&mut session, "v", Span::from_mut(&mut v));
                protect(&mut session, "pool", pool);
                session.lend("u").unwrap();
                session.lend("pool").unwrap();
                session.checkpoint(step).unwrap();
                session.lent_done("u", LONG).unwrap();
                session.lent_done("pool", LONG).unwrap();
            }
            assert_eq!(copy_out(pool), pattern(rank, 83, 100_000), "only read");
            session.close(LONG).unwrap();
        });
        restores(&job, 3, |rank| {
            vec![
                ("u", pattern(rank, 3, len(rank))),
                ("v", pattern(rank, 43, 300_000)),
                ("pool", pattern(rank, 83, 100_000)),
            ]
        });
    }
}

fn what_was_lent_long_ago_is_known_to_be_back() {
    let scratch = Scratch::new("longago");
    Job::new(scratch.path(), 1, 0, true).run(|session, rank| {
        let mut session = session.unwrap();
        let (mut a, mut b) = (pattern(rank, 1, 100), pattern(rank, 2, 100));
        protect(&mut session, "a", Span::from_mut(&mut a));
        protect(&mut session, "b", Span::from_mut(&mut b));
        session.lend("a").unwrap();
        for step in 1..80 {
            session.lend("b").unwrap();
            session.checkpoint(step).unwrap();
            session.lent_done("b", LONG).unwrap();
        }
        session.lent_done("a", POLL).unwrap();
        session.close(LONG).unwrap();
    });
}

// Breaks if: an announced loan survives the checkpoint it was for.
fn a_loan_is_for_one_checkpoint_and_same_regions_cannot_be_lent() {
    if needs_own_disks() {
        return;
    }
    let scratch = Scratch::new("once");
    let hold = Hold::at("file.write", ".orc");
    let job = Job::new(scratch.path(), 1, 1, false).with("held_steps = 2");
    job.failpoints(hold.failpoints()).run(|session, rank| {
        let mut session = session.unwrap();
        let pool = session.alloc(100_000).unwrap();
        fill_span(pool, &pattern(rank, 1, 100_000));
        session.protect("s", pool, Dtype::U8, SAME).unwrap();
        says(
            &refused(session.lend("s")),
            ErrorKind::Unsupported,
            &["region 's'", "drop the flag SAME"],
        );
        session.unprotect("s").unwrap();
        protect(&mut session, "p", pool);
        session.lend("p").unwrap();
        session.lend("p").unwrap();
        // Taken back before it was used.
        session.unprotect("p").unwrap();
        protect(&mut session, "p", pool);
        session.checkpoint(1).unwrap();
        hold.wait_until_held();
        session.lent_done("p", POLL).unwrap();
        session.lend("p").unwrap();
        session.checkpoint(2).unwrap();
        says(
            &refused(session.lent_done("p", POLL)),
            ErrorKind::Unavailable,
            &["still lent"],
        );
        hold.release();
        session.lent_done("p", LONG).unwrap();
        session.checkpoint(3).unwrap();
        session.lent_done("p", POLL).unwrap();
        session.wait(3, Level::Global, LONG).unwrap();
        // A checkpoint that is given up ends the loan as well.
        session
            .protect_codec("broken", Box::new(Broken), 0)
            .unwrap();
        session.lend("p").unwrap();
        session.checkpoint(4).unwrap();
        let told = std::iter::from_fn(|| session.take_warning());
        assert!(told.collect::<String>().contains("no answer"));
        session.unprotect("broken").unwrap();
        hold.hold_again();
        session.checkpoint(5).unwrap();
        hold.wait_until_held();
        session.lent_done("p", POLL).unwrap();
        hold.release();
        session.close(LONG).unwrap();
    });
}

/// A codec whose device is gone.
struct Broken;

impl Codec for Broken {
    fn size(&mut self) -> Result<u64> {
        Ok(100)
    }

    fn pack(&mut self, _at: u64, _dst: &mut [u8]) -> Result<()> {
        Err(Error::unavailable("no answer"))
    }

    fn unpack(&mut self, _at: u64, _src: &[u8]) -> Result<()> {
        Err(Error::unavailable("no answer"))
    }
}

// Breaks if: the next checkpoint begins while lent memory is still being sent, or before the
// CP-thread was told that the one between was given up (its begin would come in the middle of
// another snapshot, which the flush refuses).
fn snapshots_of_one_rank_follow_each_other_although_one_is_still_being_read() {
    let scratch = Scratch::new("follow");
    let (seal, fail) = (Hold::at("stage.seal", ""), Hold::at("stage.fail", ""));
    let mut job = Job::new(scratch.path(), 1, 1, false).with("held_steps = 3");
    job.options = job.options.replace("timeout_s = 20.0", "timeout_s = 1.0");
    let held = job.clone().failpoints(Holds::failpoints(&[&seal, &fail]));
    held.run(|session, rank| {
        let mut session = session.unwrap();
        let (mut u, mut v) = (pattern(rank, 1, 300_000), pattern(rank, 2, 200_000));
        protect(&mut session, "u", Span::from_mut(&mut u));
        session.lend("u").unwrap();
        session.checkpoint(1).unwrap();
        seal.wait_until_held();
        // Copied, and there is room for it; but its turn comes only after the one that is being
        // read.
        protect(&mut session, "v", Span::from_mut(&mut v));
        session.checkpoint(2).unwrap();
        let told = session.take_warning().unwrap();
        for part in [
            "checkpoint 2 will be lost at every level",
            "it waited 1.0 s for memory lent to checkpoint 1 to be read",
            "lent_done",
        ] {
            assert!(told.contains(part), "{told}");
        }
        seal.release();
        session.lent_done("u", LONG).unwrap();
        fail.wait_until_held();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let begun = fail.sees("stage.begin", 3);
                fail.release();
                assert!(!begun, "checkpoint 3 began inside checkpoint 2");
            });
            session.checkpoint(3).unwrap();
        });
        session.wait(1, Level::Global, LONG).unwrap();
        // Breaks if: what was refused is never announced; nobody would learn that it is lost.
        refused(session.wait(2, Level::Global, LONG));
        session.wait(3, Level::Global, LONG).unwrap();
        session.close(LONG).unwrap();
    });
    restores(&job, 3, |rank| {
        vec![
            ("u", pattern(rank, 1, 300_000)),
            ("v", pattern(rank, 2, 200_000)),
        ]
    });
}

// Breaks if: lent memory is read before the other ranks of the node have left the call.
fn lent_memory_is_read_when_the_last_rank_of_the_node_returns() {
    let clock = SystemClock::new();
    let shape = IndexShape {
        ranks: 3,
        writers: 1,
    };
    let pool = Pool::create(PoolShape {
        chunk_bytes: 65536,
        chunk_count: 4,
        words: shape.words(),
        rings: shape.ranks,
        ring_entries: 64,
    })
    .unwrap();
    let index = Index::new(&pool, shape);
    for turn in 0..3 {
        index.note_return();
        assert!(!index.wait_returned(turn, &clock, Duration::ZERO));
        index.note_return();
        assert!(!index.wait_returned(turn, &clock, Duration::from_millis(1)));
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| index.wait_returned(turn, &clock, LONG));
            index.note_return();
            assert!(waiting.join().unwrap());
        });
        assert!(!index.wait_returned(turn + 1, &clock, Duration::ZERO));
    }
}
