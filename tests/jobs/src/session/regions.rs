//! What can be protected, and how it comes back: other sizes, optional regions, regions that are
//! the same everywhere, arrays, codecs.

use crate::session::disk;
use crate::session::mistakes::{LONG, refused, says};
use crate::support::{Job, State};
use crate::{Test, session_tests};
use orcheck_client::{ArrayLayout, Codec, OPTIONAL, SAME, Session, Which};
use orcheck_format::disk::BLOCK_BYTES;
use orcheck_format::{Dtype, Error, ErrorKind, Level, Result, Step};
use orcheck_io::memory::Span;
use orcheck_testing::Scratch;
use std::sync::{Arc, Mutex};

/// What is tested here.
pub const TESTS: &[Test] = session_tests![
    sizes_are_known_before_memory_is_allocated,
    a_region_protected_again_is_read_where_it_is_now_and_an_unprotected_one_not_at_all,
    a_region_declared_again_between_checkpoints_is_read_where_it_is_now,
    empty_regions_and_a_rank_without_bytes_come_back,
    optional_regions_may_be_absent_and_keep_their_content,
    what_is_the_same_everywhere_is_stored_once_a_node_and_restored_on_every_rank,
    regions_that_are_not_the_same_everywhere_are_refused,
    slices_of_a_global_array_keep_shape_and_offset_and_gaps_are_left_alone,
    a_codec_streams_any_size_and_its_errors_name_it_and_cost_one_checkpoint,
    many_small_regions_and_a_large_one_come_back_through_few_blocks,
];

fn pattern(seed: u64, len: usize) -> Vec<u8> {
    (0..len as u64)
        .map(|i| (i.wrapping_mul(seed * 2 + 1) >> 3) as u8 ^ seed as u8)
        .collect()
}

/// Protects flat bytes.
fn flat(session: &mut Session, name: &str, bytes: &mut [u8], flags: u32) {
    session
        .protect(name, Span::from_mut(bytes), Dtype::U8, flags)
        .unwrap();
}

// ---- sizes -----------------------------------------------------------------------------------

fn sizes_are_known_before_memory_is_allocated() {
    let scratch = Scratch::new("sizes");
    let job = Job::new(scratch.path(), 3, 1, false);
    // Every rank has another number of particles, and another one at each step.
    let count = |rank: u32, step: u64| 1000 + 700 * rank as usize + 13 * step as usize;
    job.run(|session, rank| {
        let mut session = session.unwrap();
        for step in [1, 2] {
            let mut p = pattern(u64::from(rank) + step, 8 * count(rank, step));
            session
                .protect("p", Span::from_mut(&mut p), Dtype::F64, 0)
                .unwrap();
            session.checkpoint(step).unwrap();
            session.wait(step, Level::Global, LONG).unwrap();
        }
        session.close(LONG).unwrap();
    });
    job.run(|session, rank| {
        let mut session = session.unwrap();
        assert_eq!(session.find().unwrap(), 2);
        let stored = session.stored("p").unwrap();
        let expected = count(rank, 2) as u64;
        assert_eq!(
            (stored.len_bytes, stored.dtype, &stored.local[..]),
            (8 * expected, Dtype::F64, &[expected][..])
        );
        let error = refused(session.stored("q"));
        says(
            &error,
            ErrorKind::NotFound,
            &["region 'q' is not in the checkpoint of step 2", "it has: p"],
        );
        let mut p = vec![0; stored.len_bytes as usize];
        session
            .protect("p", Span::from_mut(&mut p), Dtype::F64, 0)
            .unwrap();
        session.restart().unwrap();
        assert_eq!(p, pattern(u64::from(rank) + 2, 8 * count(rank, 2)));
        session.close(LONG).unwrap();
    });
}

/// Checkpoints of two regions: untouched, written, one of them moved, gone and back, lent. What the
/// last one was made of is taken over where nothing was declared, and only there.
// Breaks if: `parts_of_last` does not compare `changes`, or ignores announced regions.
fn a_region_declared_again_between_checkpoints_is_read_where_it_is_now() {
    let scratch = Scratch::new("declared-again");
    let job = Job::new(scratch.path(), 2, 1, false).with("keep = 10\n");
    let (a, b) = (
        |step: u64| pattern(step, 70_000),
        |step: u64| pattern(step + 50, 5000),
    );
    job.run(|session, rank| {
        let mut session = session.unwrap();
        let (mut here, mut there, mut small) = (a(1), a(4), b(1));
        flat(&mut session, "a", &mut here, 0);
        flat(&mut session, "b", &mut small, 0);
        for step in 1..=8 {
            small.copy_from_slice(&b(step));
            match step {
                2 | 3 => here.copy_from_slice(&a(step)),
                // The old place keeps the bytes of step 3.
                4 => flat(&mut session, "a", &mut there, 0),
                5 => there.copy_from_slice(&a(5)),
                6 => session.unprotect("a").unwrap(),
                7 => {
                    here.copy_from_slice(&a(7));
                    flat(&mut session, "a", &mut here, 0);
                }
                8 => {
                    here.copy_from_slice(&a(8));
                    session.lend("a").unwrap();
                }
                _ => {}
            }
            session.checkpoint(step).unwrap();
            session.wait(step, Level::Global, LONG).unwrap();
            if step == 8 {
                session.lent_done("a", LONG).unwrap();
            }
        }
        let stats = session.stats();
        assert_eq!((stats.step.0, stats.sum.checkpoints), (8, 8), "rank {rank}");
        assert!(stats.sum.blocked_s >= stats.blocked_s);
        assert!(stats.blocked_s >= stats.agree_s + stats.wait_s + stats.stage_s - 1e-6);
        session.close(LONG).unwrap();
    });
    for step in 1..=8 {
        job.run(|session, rank| {
            let mut session = session.unwrap();
            session.find_step(Which::Exactly(Step(step))).unwrap();
            let (mut found_a, mut found_b) = (vec![0; 70_000], vec![0; 5000]);
            flat(&mut session, "b", &mut found_b, 0);
            if step != 6 {
                flat(&mut session, "a", &mut found_a, 0);
            }
            session.restart().unwrap();
            assert!(found_b == b(step), "rank {rank}, b of step {step}");
            assert!(
                step == 6 || found_a == a(step),
                "rank {rank}, a of step {step}"
            );
            session.close(LONG).unwrap();
        });
    }
}

// Breaks if: `Regions::put` keeps the first address.
fn a_region_protected_again_is_read_where_it_is_now_and_an_unprotected_one_not_at_all() {
    let scratch = Scratch::new("again");
    let job = Job::new(scratch.path(), 1, 1, false);
    job.run(|session, _| {
        let mut session = session.unwrap();
        let (mut old, mut new, mut gone) = (pattern(1, 5000), pattern(2, 70_000), pattern(3, 100));
        flat(&mut session, "a", &mut old, 0);
        flat(&mut session, "gone", &mut gone, 0);
        flat(&mut session, "a", &mut new, 0);
        session.unprotect("gone").unwrap();
        session.checkpoint(1).unwrap();
        session.close(LONG).unwrap();
    });
    job.run(|session, _| {
        let mut session = session.unwrap();
        session.find().unwrap();
        assert_eq!(session.stored("a").unwrap().len_bytes, 70_000);
        says(
            &refused(session.stored("gone")),
            ErrorKind::NotFound,
            &["it has: a"],
        );
        let mut a = vec![0; 70_000];
        flat(&mut session, "a", &mut a, 0);
        session.restart().unwrap();
        assert_eq!(a, pattern(2, 70_000));
        session.close(LONG).unwrap();
    });
}

fn empty_regions_and_a_rank_without_bytes_come_back() {
    let scratch = Scratch::new("empty");
    let job = Job::new(scratch.path(), 2, 1, true);
    for step in [0, 1] {
        job.run(|session, rank| {
            let mut session = session.unwrap();
            assert_eq!(session.find().is_ok(), step == 1);
            let mut bytes = vec![7u8; 3 * rank as usize];
            flat(&mut session, "few", &mut bytes, 0);
            flat(&mut session, "none", &mut [], 0);
            if step == 1 {
                assert_eq!(session.restart().unwrap(), 0, "step 0 is a step");
            }
            session.checkpoint(step).unwrap();
            session.wait(step, Level::Global, LONG).unwrap();
            session.close(LONG).unwrap();
        });
    }
}

// Breaks if: `check_regions` does not look at the flag, or `read_regions` reads what is not stored.
fn optional_regions_may_be_absent_and_keep_their_content() {
    let scratch = Scratch::new("optional");
    let job = Job::new(scratch.path(), 2, 1, false);
    job.run(|session, rank| {
        let mut session = session.unwrap();
        let mut state = State::new(rank, 1, 10);
        state.protect(&mut session).unwrap();
        session.checkpoint(1).unwrap();
        session.close(LONG).unwrap();
    });
    job.run(|session, rank| {
        let mut session = session.unwrap();
        session.find().unwrap();
        let mut state = State::empty(rank, 10);
        state.protect(&mut session).unwrap();
        let mut tracer = pattern(9, 500);
        flat(&mut session, "tracer", &mut tracer, 0);
        let error = refused(session.restart());
        says(
            &error,
            ErrorKind::Invalid,
            &[
                "region 'tracer' is not in the checkpoint",
                "flag new ones ORC_OPTIONAL",
            ],
        );
        flat(&mut session, "tracer", &mut tracer, OPTIONAL);
        session.restart().unwrap();
        assert!(state.is(rank, 1, 10));
        assert_eq!(tracer, pattern(9, 500));
        session.checkpoint(2).unwrap();
        session.close(LONG).unwrap();
    });
    job.run(|session, rank| {
        let mut session = session.unwrap();
        session.find().unwrap();
        let (mut state, mut tracer) = (State::empty(rank, 10), vec![0; 500]);
        state.protect(&mut session).unwrap();
        flat(&mut session, "tracer", &mut tracer, OPTIONAL);
        session.restart().unwrap();
        assert_eq!(tracer, pattern(9, 500), "once stored it comes back");
        session.close(LONG).unwrap();
    });
}

// ---- the same everywhere ---------------------------------------------------------------------

/// Bytes of all containers below a directory.
fn container_bytes(dir: &std::path::Path) -> usize {
    let ours = disk::names(dir)
        .into_iter()
        .filter(|name| name.ends_with(".orc"));
    ours.map(|name| disk::read(&dir.join(name)).len()).sum()
}

// Breaks if: `prepare` stores a SAME region on every rank, or `with_owner` looks for its bytes in
// its own container only.
fn what_is_the_same_everywhere_is_stored_once_a_node_and_restored_on_every_rank() {
    for scheme in ["node", "core"] {
        let scratch = Scratch::new("same");
        let job = Job::new(scratch.path(), 6, 1, true)
            .nodes(2)
            .with(&format!("scheme = '{scheme}'"));
        let table = pattern(5, 300_000);
        job.run(|session, rank| {
            let mut session = session.unwrap();
            let (mut same, mut own) = (table.clone(), vec![rank as u8; 100]);
            flat(&mut session, "table", &mut same, SAME);
            flat(&mut session, "own", &mut own, 0);
            session.checkpoint(1).unwrap();
            for level in [Level::Node, Level::Global] {
                session.wait(1, level, LONG).unwrap();
            }
            session.close(LONG).unwrap();
        });
        let global = container_bytes(&scratch.path().join("ost0/job"));
        assert!(
            (2 * table.len()..3 * table.len()).contains(&global),
            "{global} bytes for two nodes"
        );
        for (node, levels) in [("n0", "node and global"), ("n1", "global alone")] {
            let local = scratch.path().join("local/job").join(node);
            let bytes = container_bytes(&local);
            assert!(
                (table.len()..2 * table.len()).contains(&bytes),
                "{bytes} bytes on {node}"
            );
            job.run(|session, rank| {
                let mut session = session.unwrap();
                session.find().unwrap();
                assert_eq!(
                    session.stored("table").unwrap().len_bytes,
                    table.len() as u64
                );
                let (mut same, mut own) = (vec![0; table.len()], vec![0; 100]);
                flat(&mut session, "table", &mut same, SAME);
                flat(&mut session, "own", &mut own, 0);
                session.restart().unwrap();
                assert_eq!(same, table, "rank {rank} from {levels}");
                assert_eq!(own, vec![rank as u8; 100]);
                session.close(LONG).unwrap();
            });
            disk::remove_tree(&local);
        }
    }
}

// Breaks if: `checkpoint` does not compare the CRCs of SAME regions.
fn regions_that_are_not_the_same_everywhere_are_refused() {
    let scratch = Scratch::new("notsame");
    Job::new(scratch.path(), 2, 1, false).run(|session, rank| {
        let mut session = session.unwrap();
        let mut bytes = vec![0; 100];
        bytes[99] = rank as u8;
        flat(&mut session, "table", &mut bytes, SAME);
        let error = refused(session.checkpoint(1));
        says(
            &error,
            ErrorKind::Invalid,
            &["regions flagged SAME differ between ranks", "drop the flag"],
        );
        // A flag on one rank only is a difference too.
        bytes[99] = 0;
        flat(
            &mut session,
            "table",
            &mut bytes,
            if rank == 0 { SAME } else { 0 },
        );
        says(
            &refused(session.checkpoint(1)),
            ErrorKind::Invalid,
            &["SAME differ"],
        );
        flat(&mut session, "table", &mut bytes, SAME);
        session.checkpoint(1).unwrap();
        session.close(LONG).unwrap();
    });
}

// ---- arrays ----------------------------------------------------------------------------------

fn slices_of_a_global_array_keep_shape_and_offset_and_gaps_are_left_alone() {
    let scratch = Scratch::new("arrays");
    let job = Job::new(scratch.path(), 2, 1, false);
    // A global 8 × 6 array of f32 by rows; every rank holds 4 rows inside a frame of ghost cells.
    let layout = |rank: u32| ArrayLayout {
        dtype: Dtype::F32,
        global: vec![8, 6],
        offset: vec![4 * u64::from(rank), 0],
        local: vec![4, 6],
        stride: vec![8, 1],
    };
    let extent_bytes = (3 * 8 + 6) * 4;
    job.run(|session, rank| {
        let mut session = session.unwrap();
        let mut memory = pattern(u64::from(rank), extent_bytes);
        let mut dense = pattern(40 + u64::from(rank), 4 * 6 * 4);
        session
            .protect_array("framed", Span::from_mut(&mut memory), layout(rank), 0)
            .unwrap();
        let contiguous = ArrayLayout {
            stride: vec![],
            ..layout(rank)
        };
        session
            .protect_array("dense", Span::from_mut(&mut dense), contiguous, 0)
            .unwrap();
        let error = refused(session.lend("framed"));
        says(
            &error,
            ErrorKind::Unsupported,
            &["region 'framed'", "only contiguous memory"],
        );
        session.lend("dense").unwrap();
        session.checkpoint(1).unwrap();
        session.lent_done("dense", LONG).unwrap();
        session.close(LONG).unwrap();
    });
    job.run(|session, rank| {
        let mut session = session.unwrap();
        session.find().unwrap();
        let stored = session.stored("framed").unwrap();
        assert_eq!(stored.len_bytes, 4 * 6 * 4, "gaps are not stored");
        assert_eq!(
            (stored.global, stored.offset, stored.local),
            (vec![8, 6], vec![4 * u64::from(rank), 0], vec![4, 6])
        );
        let (mut memory, mut dense) = (vec![0xabu8; extent_bytes], vec![0; 96]);
        session
            .protect_array("framed", Span::from_mut(&mut memory), layout(rank), 0)
            .unwrap();
        let contiguous = ArrayLayout {
            stride: vec![],
            ..layout(rank)
        };
        session
            .protect_array("dense", Span::from_mut(&mut dense), contiguous, 0)
            .unwrap();
        session.restart().unwrap();
        assert_eq!(dense, pattern(40 + u64::from(rank), 96));
        let was = pattern(u64::from(rank), extent_bytes);
        for (at, byte) in memory.iter().enumerate() {
            let in_row = at / 4 % 8 < 6;
            assert_eq!(*byte, if in_row { was[at] } else { 0xab }, "byte {at}");
        }
        session.close(LONG).unwrap();
    });
}

// ---- codecs ----------------------------------------------------------------------------------

/// Packs bytes that no flat memory holds, and can be told to fail.
struct Packed {
    bytes: Arc<Mutex<Vec<u8>>>,
    expected_at: u64,
    fails: Option<&'static str>,
}

impl Codec for Packed {
    fn size(&mut self) -> Result<u64> {
        self.expected_at = 0;
        match self.fails {
            Some("size") => Err(Error::unavailable("the device does not answer")),
            _ => Ok(self.bytes.lock().unwrap().len() as u64),
        }
    }

    fn pack(&mut self, at: u64, dst: &mut [u8]) -> Result<()> {
        if self.fails == Some("pack") && at > 0 {
            // The codec's word for it says nothing of the call that is told.
            return Err(Error::invalid("the device fell off the bus"));
        }
        assert_eq!(at, self.expected_at, "in ascending order");
        self.expected_at += dst.len() as u64;
        dst.copy_from_slice(&self.bytes.lock().unwrap()[at as usize..][..dst.len()]);
        Ok(())
    }

    fn unpack(&mut self, at: u64, src: &[u8]) -> Result<()> {
        if self.fails == Some("unpack") {
            return Err(Error::no_space("the device is full"));
        }
        let mut bytes = self.bytes.lock().unwrap();
        bytes.truncate(at as usize);
        assert_eq!(bytes.len() as u64, at, "in ascending order");
        bytes.extend_from_slice(src);
        Ok(())
    }
}

fn packed(bytes: &Arc<Mutex<Vec<u8>>>, fails: Option<&'static str>) -> Box<Packed> {
    Box::new(Packed {
        bytes: Arc::clone(bytes),
        expected_at: 0,
        fails,
    })
}

// Breaks if: a snapshot that was given up is sealed, or its directory is taken for lost.
fn a_codec_streams_any_size_and_its_errors_name_it_and_cost_one_checkpoint() {
    let scratch = Scratch::new("codec");
    let job = Job::new(scratch.path(), 2, 2, true);
    // Larger than a chunk, and no multiple of a block.
    let content = |rank: u32| pattern(u64::from(rank) + 3, 200_001 + rank as usize);
    job.run(|session, rank| {
        let mut session = session.unwrap();
        let bytes = Arc::new(Mutex::new(content(rank)));
        let mut other = pattern(8, 3000);
        flat(&mut session, "flat", &mut other, 0);
        session
            .protect_codec("gpu", packed(&bytes, None), 0)
            .unwrap();
        session.checkpoint(1).unwrap();
        session.wait(1, Level::Global, LONG).unwrap();

        let on_rank_1 = |what: &'static str| if rank == 1 { Some(what) } else { None };
        session
            .protect_codec("gpu", packed(&bytes, on_rank_1("size")), 0)
            .unwrap();
        let error = refused(session.checkpoint(2));
        says(
            &error,
            ErrorKind::Unavailable,
            &["region 'gpu'", "the device does not answer"],
        );

        session
            .protect_codec("gpu", packed(&bytes, on_rank_1("pack")), 0)
            .unwrap();
        // What only one rank met: the status is the same on all, and that rank has the warning at
        // once.
        session.checkpoint(3).unwrap();
        let told: Vec<String> = std::iter::from_fn(|| session.take_warning())
            .filter(|text| text.contains("will be lost at every level"))
            .collect();
        assert_eq!(told.len(), usize::from(rank == 1), "{told:?}");
        for text in told {
            for part in [
                "checkpoint 3",
                "region 'gpu'",
                "fell off the bus",
                ". Next: ",
            ] {
                assert!(text.contains(part), "{part}: {text}");
            }
        }
        for level in [Level::Node, Level::Global] {
            let error = refused(session.wait(3, level, LONG));
            says(
                &error,
                ErrorKind::Unavailable,
                &[
                    "checkpoint 3 is not safe",
                    "rank 1 gave its snapshot of step 3 up: region 'gpu'",
                    "fell off the bus",
                ],
            );
        }
        bytes.lock().unwrap().truncate(100_000);
        session
            .protect_codec("gpu", packed(&bytes, None), 0)
            .unwrap();
        session.checkpoint(4).unwrap();
        session.wait(4, Level::Global, LONG).unwrap();
        let told = crate::support::warnings(&mut session);
        assert!(
            told.iter().all(|text| text.contains("checkpoint 3 is lost")
                && text.contains("rank 1 gave its snapshot of step 3 up")),
            "no directory is to blame: {told:?}"
        );
        says(
            &refused(session.protect_codec("gpu", packed(&bytes, None), SAME)),
            ErrorKind::Invalid,
            &["region 'gpu'", "SAME needs contiguous memory"],
        );
        session.close(LONG).unwrap();
    });
    job.run(|session, rank| {
        let mut session = session.unwrap();
        assert_eq!(session.find().unwrap(), 4);
        assert_eq!(session.stored("gpu").unwrap().len_bytes, 100_000);
        let bytes = Arc::new(Mutex::new(vec![0xee; 17]));
        let mut other = vec![0; 3000];
        flat(&mut session, "flat", &mut other, 0);
        session
            .protect_codec("gpu", packed(&bytes, Some("unpack")), 0)
            .unwrap();
        let error = refused(session.restart());
        says(
            &error,
            ErrorKind::NoSpace,
            &["region 'gpu'", "the device is full"],
        );
        session
            .protect_codec("gpu", packed(&bytes, None), 0)
            .unwrap();
        session.restart().unwrap();
        assert_eq!(*bytes.lock().unwrap(), content(rank)[..100_000]);
        assert_eq!(other, pattern(8, 3000));
        session.close(LONG).unwrap();
    });
}

// ---- layout ----------------------------------------------------------------------------------

fn many_small_regions_and_a_large_one_come_back_through_few_blocks() {
    let scratch = Scratch::new("small");
    let job = Job::new(scratch.path(), 1, 1, false);
    let bytes = |i: usize| pattern(i as u64, 1 + i * 7 % 200);
    job.run(|session, _| {
        let mut session = session.unwrap();
        let mut all: Vec<Vec<u8>> = (0..300).map(bytes).collect();
        let mut large = pattern(77, 150_000);
        flat(&mut session, "large", &mut large, 0);
        for (i, bytes) in all.iter_mut().enumerate() {
            flat(&mut session, &format!("region {i}"), bytes, 0);
        }
        session.checkpoint(1).unwrap();
        session.close(LONG).unwrap();
    });
    let size = container_bytes(&scratch.path().join("ost0/job"));
    assert!(size < 150_000 + 64 * BLOCK_BYTES, "{size} bytes");
    job.run(|session, _| {
        let mut session = session.unwrap();
        session.find().unwrap();
        let mut all: Vec<Vec<u8>> = (0..300).map(|i| vec![0; bytes(i).len()]).collect();
        let mut large = vec![0; 150_000];
        flat(&mut session, "large", &mut large, 0);
        for (i, bytes) in all.iter_mut().enumerate() {
            flat(&mut session, &format!("region {i}"), bytes, 0);
        }
        session.restart().unwrap();
        assert_eq!(large, pattern(77, 150_000));
        assert!(all.iter().enumerate().all(|(i, got)| *got == bytes(i)));
        session.close(LONG).unwrap();
    });
}
