//! Tests that nobody waits for the dead: a killed engine, or a rank whose process ended inside its
//! snapshot.
// It makes directories by itself.
#![allow(clippy::unwrap_used)]

use orcheck_engine::directory::Places;
use orcheck_engine::encoding::{EncodePiece, Recipe};
use orcheck_engine::flush::{FlushContext, Flusher};
use orcheck_engine::node::{Descriptor, ENGINE_ALIVE, Goes, Index, IndexShape, Mode, Patience};
use orcheck_format::disk::Compression;
use orcheck_format::wire::Message;
use orcheck_format::{Epoch, Error, ErrorKind, JobName, NodeId, Rank, RunId, Step, WriterId};
use orcheck_io::clock::SystemClock;
use orcheck_io::failpoints::Failpoints;
use orcheck_pool::{Gates, Pool, PoolShape};
use orcheck_testing::Scratch;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

const SHAPE: IndexShape = IndexShape {
    ranks: 1,
    writers: 1,
};
const LIMIT: Duration = Duration::from_secs(20);

fn pool() -> Arc<Pool> {
    pool_of(SHAPE)
}

fn pool_of(shape: IndexShape) -> Arc<Pool> {
    let shape = PoolShape {
        chunk_bytes: 4096,
        chunk_count: 2,
        words: shape.words(),
        rings: shape.ranks,
        ring_entries: 128,
    };
    Arc::new(Pool::create(shape).unwrap())
}

// Breaks if: `check` does not try the lock that the engine holds while it lives, or does not tell
// the others.
#[test]
fn an_engine_that_was_killed_is_noticed_and_told_to_the_node() {
    let pool = pool();
    let gates = Arc::new(Gates::open(&pool).unwrap());
    let patience = Patience {
        pool: Arc::clone(&pool),
        shape: SHAPE,
        gates: Arc::clone(&gates),
        stop: Arc::new(AtomicBool::new(false)),
    };
    let alive = gates.lock(ENGINE_ALIVE, LIMIT).unwrap();
    patience.check().unwrap();
    drop(alive);
    let error = patience.check().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.message().contains("ended"), "{error}");
    assert!(Index::new(&pool, SHAPE).is_gone());
}

// Breaks if: `wait` does not count the slices that it gave: whoever holds what is waited for would
// be waited for for ever.
#[test]
fn a_wait_ends_when_its_time_is_over() {
    let pool = pool();
    let gates = Arc::new(Gates::open(&pool).unwrap());
    let _alive = gates.lock(ENGINE_ALIVE, LIMIT).unwrap();
    let patience = Patience {
        pool: Arc::clone(&pool),
        shape: SHAPE,
        gates: Arc::clone(&gates),
        stop: Arc::new(AtomicBool::new(false)),
    };
    let timeout = Duration::from_millis(1100);
    let mut given = Duration::ZERO;
    let waited: Result<(), Error> = patience.wait(timeout, |slice| {
        given += slice;
        Err(Error::unavailable("not yet"))
    });
    assert_eq!(waited.unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(given, timeout);
}

/// The CP-thread of all ranks, and what it reports.
fn flusher(
    scratch: &Scratch,
    (pool, shape): (&Arc<Pool>, IndexShape),
    recipe: Recipe,
) -> (Flusher, Receiver<Message>, Arc<AtomicBool>) {
    let job = JobName::new("job").unwrap();
    let root = scratch.path().to_owned();
    let (said, heard) = channel();
    let stop = Arc::new(AtomicBool::new(false));
    let context = FlushContext {
        pool: Arc::clone(pool),
        shape,
        job: job.clone(),
        epoch: Epoch {
            counter: 1,
            run: RunId([1; 16]),
        },
        world_size: shape.ranks,
        node: (NodeId(0), "n0".into()),
        writer: WriterId(0),
        ranks: (0..shape.ranks).map(|rank| (rank, Rank(rank))).collect(),
        mode: Mode::Orchestrated,
        places: Places::open(&job, "n0", Some(&root), &[], &Failpoints::none(), true).unwrap(),
        direct: false,
        incremental: false,
        recipe,
        gate_timeout: LIMIT,
        clock: Arc::new(SystemClock::new()),
        failpoints: Failpoints::none(),
        remembered: None,
        replicas: None,
        stop: Arc::clone(&stop),
    };
    let report = move |message| {
        let _ = said.send(message);
        Ok(())
    };
    let flusher = Flusher::new(context, Box::new(report)).unwrap();
    (flusher, heard, stop)
}

const BEGIN: Descriptor = Descriptor::Begin {
    step: Step(7),
    stream_len_bytes: 4096,
    cut_bytes: 4096,
    pipelined: false,
    may_shrink: false,
    kept: false,
    goes: Goes::EVERYWHERE,
};

// Breaks if: `next` does not look whether the rank is gone: the flush waits for the rest of its
// snapshot for ever.
#[test]
fn a_rank_that_ended_inside_its_snapshot_loses_it() {
    let scratch = Scratch::in_memory("engine-gone");
    let pool = pool();
    let (mut flusher, heard, stop) = flusher(&scratch, (&pool, SHAPE), Recipe::default());
    let index = Index::new(&pool, SHAPE);
    index.push(0, WriterId(0), BEGIN, LIMIT).unwrap();
    index.set_rank_gone(0);
    let flushing = std::thread::spawn(move || flusher.run());
    let told = heard.recv_timeout(LIMIT);
    stop.store(true, Ordering::Release);
    index.nudge(WriterId(0));
    flushing.join().unwrap().unwrap();
    match told {
        Ok(Message::NotDurable { step: Step(7), .. }) => {}
        Err(RecvTimeoutError::Timeout) => panic!("the flush waits for a rank that is gone"),
        other => panic!("{other:?}"),
    }
}

// Breaks if: what a dead rank left in its ring stays there while another rank's snapshot is waited
// for: that one may wait for the very chunks.
#[test]
fn what_a_dead_rank_left_unfinished_is_given_back() {
    let scratch = Scratch::in_memory("engine-gone");
    let shape = IndexShape { ranks: 2, ..SHAPE };
    let pool = pool_of(shape);
    let all = pool.free_chunks();
    let (mut flusher, heard, stop) = flusher(&scratch, (&pool, shape), Recipe::default());
    let index = Index::new(&pool, shape);
    index.push(1, WriterId(0), BEGIN, LIMIT).unwrap();
    let chunk = pool.take(0, LIMIT).unwrap().into_index();
    let segment = Descriptor::Segment {
        pool_at_bytes: u64::from(chunk) * u64::from(pool.shape().chunk_bytes),
        len_bytes: 4096,
        chunk: Some(chunk),
    };
    index.push(1, WriterId(0), segment, LIMIT).unwrap();
    index.set_rank_gone(1);
    // Of the same step, and first in the order: its snapshot is waited for.
    index.push(0, WriterId(0), BEGIN, LIMIT).unwrap();
    let flushing = std::thread::spawn(move || flusher.run());
    let mut taken = Vec::new();
    while taken.len() < all as usize {
        match pool.take(0, LIMIT) {
            Ok(chunk) => taken.push(chunk),
            Err(_) => break,
        }
    }
    let found = taken.len();
    for chunk in taken {
        pool.give(chunk);
    }
    index.push(0, WriterId(0), Descriptor::Fail, LIMIT).unwrap();
    let told = heard.recv_timeout(LIMIT);
    stop.store(true, Ordering::Release);
    index.nudge(WriterId(0));
    flushing.join().unwrap().unwrap();
    assert!(matches!(
        told,
        Ok(Message::NotDurable { step: Step(7), .. })
    ));
    assert_eq!(
        found, all as usize,
        "chunks of a rank that is gone were kept"
    );
}

// Breaks if: `stream_snapshot` keeps any number of references, or `check_piece` lets a piece reach
// beyond its chunk: a rank whose memory was overwritten would take the memory, or the bytes, of the
// process that flushes it.
#[test]
fn nonsense_of_a_neighbour_ends_the_flush() {
    let piece = EncodePiece {
        segment_at_bytes: 0,
        len_bytes: 8192,
        region_at_bytes: 0,
        crc_plain: 0,
        element_log2: 0,
        region: [0; 16],
        checked: false,
    };
    let packed = Recipe {
        compression: Compression::Lz4,
        ..Recipe::default()
    };
    let references = (1..=65)
        .map(|step| Descriptor::Refers { step: Step(step) })
        .collect();
    let cases: [(Recipe, Vec<Descriptor>, &str); 2] = [
        (Recipe::default(), references, "more than 64 older"),
        (packed, vec![Descriptor::Piece(piece)], "cannot follow"),
    ];
    for (recipe, nonsense, part) in cases {
        let scratch = Scratch::in_memory("engine-gone");
        let pool = pool();
        let (mut flusher, heard, stop) = flusher(&scratch, (&pool, SHAPE), recipe);
        let index = Index::new(&pool, SHAPE);
        for descriptor in [vec![BEGIN], nonsense, vec![Descriptor::Fail]].concat() {
            index.push(0, WriterId(0), descriptor, LIMIT).unwrap();
        }
        let flushing = std::thread::spawn(move || flusher.run());
        // Hung up at once; a word about the snapshot would mean that the nonsense was taken.
        let told = heard.recv_timeout(LIMIT);
        stop.store(true, Ordering::Release);
        index.nudge(WriterId(0));
        let ended = flushing.join().unwrap();
        assert_eq!(told, Err(RecvTimeoutError::Disconnected), "{part}");
        let error = ended.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(error.message().contains(part), "{error}");
    }
}
