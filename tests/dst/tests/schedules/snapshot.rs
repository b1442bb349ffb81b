//! Two ranks stage snapshots that are larger than the pool, their CP-thread flushes them, and
//! anybody may die.

use crate::explore::explore;
use orcheck_engine::capture::{Entry, Parts, Plan, Source, StageContext, Staging};
use orcheck_engine::directory::Places;
use orcheck_engine::encoding::Recipe;
use orcheck_engine::flush::{FlushContext, Flusher, STAGE_SLOT};
use orcheck_engine::node::{ENGINE_ALIVE, Goes, Index, IndexShape, Mode, Patience};
use orcheck_format::disk::{RegionKind, RegionRecord};
use orcheck_format::wire::Message;
use orcheck_format::{Dtype, Epoch, JobName, Level, NodeId, Rank, RunId, Step, WriterId};
use orcheck_io::clock::SystemClock;
use orcheck_io::failpoints::Failpoints;
use orcheck_io::memory::Span;
use orcheck_io::sync::model::{allow_timeouts, mortal};
use orcheck_pool::{Chunk, Gate, Gates, Pool, PoolShape};
use orcheck_testing::Scratch;
use shuttle::rand::Rng;
use shuttle::sync::Barrier;
use shuttle::thread;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const SHAPE: IndexShape = IndexShape {
    ranks: 2,
    writers: 1,
};
const CHUNK: u32 = 4096;
const CHUNKS: u32 = 3;
/// This many that the flush takes two together.
const CHUNKS_IN_RUNS: u32 = 16;
const LEN_BYTES: u64 = 3 * 4096 + 100;
const STEPS: u64 = 2;
const HOUR: Duration = Duration::from_secs(3600);

/// One node of two ranks and one writer, with a directory in memory.
struct Node {
    pool: Arc<Pool>,
    gates: Arc<Gates>,
    /// Who waits in vain looks whether the engine holds this.
    _alive: Gate,
    stop: Arc<AtomicBool>,
    reports: Arc<Mutex<Vec<Message>>>,
    places: Places,
}

impl Node {
    fn new(scratch: &Scratch, chunk_count: u32) -> Arc<Self> {
        let pool = Arc::new(
            Pool::create(PoolShape {
                chunk_bytes: CHUNK,
                chunk_count,
                words: SHAPE.words(),
                rings: SHAPE.ranks,
                ring_entries: 4,
            })
            .unwrap(),
        );
        let root = scratch.path().to_owned();
        let job = JobName::new("job").unwrap();
        let places = Places::open(&job, "n0", Some(&root), &[], &Failpoints::none(), true).unwrap();
        let gates = Arc::new(Gates::open(&pool).unwrap());
        Arc::new(Self {
            _alive: gates.lock(ENGINE_ALIVE, HOUR).unwrap(),
            gates,
            stop: Arc::new(AtomicBool::new(false)),
            reports: Arc::default(),
            places,
            pool,
        })
    }

    fn flusher(&self) -> Flusher {
        let reports = Arc::clone(&self.reports);
        let context = FlushContext {
            recipe: Recipe::default(),
            pool: Arc::clone(&self.pool),
            shape: SHAPE,
            job: JobName::new("job").unwrap(),
            epoch: Epoch {
                counter: 1,
                run: RunId([1; 16]),
            },
            world_size: SHAPE.ranks,
            node: (NodeId(0), "n0".into()),
            writer: WriterId(0),
            ranks: vec![(0, Rank(0)), (1, Rank(1))],
            mode: Mode::Orchestrated,
            places: self.places.clone(),
            direct: false,
            incremental: false,
            gate_timeout: HOUR,
            clock: Arc::new(SystemClock::new()),
            failpoints: Failpoints::none(),
            remembered: None,
            replicas: None,
            stop: Arc::clone(&self.stop),
        };
        let report = move |message| {
            reports.lock().unwrap().push(message);
            Ok(())
        };
        Flusher::new(context, Box::new(report)).unwrap()
    }

    /// What a rank does at a checkpoint of a pool that does not hold all snapshots.
    fn checkpoint(&self, local: u32, step: u64, bytes: &mut [u8]) {
        let context = StageContext {
            encoded: false,
            checked: false,
            goes: Goes::EVERYWHERE,
            pool: Arc::clone(&self.pool),
            shape: SHAPE,
            local,
            rank: Rank(local),
            writer: WriterId(0),
            timeout: HOUR,
            patience: Patience {
                pool: Arc::clone(&self.pool),
                shape: SHAPE,
                gates: Arc::clone(&self.gates),
                stop: Arc::clone(&self.stop),
            },
            failpoints: Failpoints::none(),
            sealed: None,
            kept: None,
            quiet: false,
        };
        let slot = self.gates.lock(STAGE_SLOT, HOUR).unwrap();
        let len_bytes = bytes.len() as u64;
        let plan = Plan::new(&[Entry::Copied { len_bytes }], CHUNK.into(), CHUNK.into());
        let region = RegionRecord {
            name: "state".into(),
            kind: RegionKind::Bytes,
            dtype: Dtype::Bytes,
            flags: 0,
            len_bytes,
            local: vec![],
            global: vec![],
            offset: vec![],
            boxes: Vec::new(),
            same_as: None,
            extents: vec![],
        };
        let source = Source::Memory(Span::from_mut(bytes));
        let parts = Parts::new(plan, vec![region], vec![source]);
        let mut staging = Staging::new(context, Step(step), parts, (Some(slot), true), CHUNK, None);
        staging.begin().unwrap();
        staging.foreground(1).unwrap();
        staging.finish().unwrap();
    }

    fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        Index::new(&self.pool, SHAPE).nudge(WriterId(0));
    }

    fn durable(&self) -> Vec<u64> {
        let reports = self.reports.lock().unwrap();
        let durable = reports.iter().filter_map(|report| match report {
            Message::Durable {
                step,
                level: Level::Node,
                ..
            } => Some(step.0),
            _ => None,
        });
        durable.collect()
    }

    fn lost(&self) -> Vec<u64> {
        let reports = self.reports.lock().unwrap();
        let lost = reports.iter().filter_map(|report| match report {
            Message::NotDurable { step, .. } => Some(step.0),
            _ => None,
        });
        lost.collect()
    }
}

// Breaks if: `finish_rank` or `set_taken` does not wake; a chunk is given back twice
// (`Chunk::from_index` refuses) or not at all; the stage slot is kept until the flush is over
// (nobody could begin: the first rank of the next step waits for the second of this one).
#[test]
fn snapshots_larger_than_the_pool_all_become_durable() {
    explore("snapshots_larger_than_the_pool", 120, || {
        become_durable(CHUNKS)
    });
}

// Breaks if: `extend_run` takes what does not follow, loses what it took too much, or gives another
// number of chunks back.
#[test]
fn neighbouring_chunks_are_flushed_together() {
    explore("neighbouring_chunks", 80, || become_durable(CHUNKS_IN_RUNS));
}

fn become_durable(chunks: u32) {
    let scratch = Scratch::in_memory("schedules");
    let node = Node::new(&scratch, chunks);
    let mut flusher = node.flusher();
    let writer = thread::spawn(move || flusher.run().unwrap());
    // A checkpoint is a collective call: nobody begins the next one before all are through with
    // this one.
    let collective = Arc::new(Barrier::new(SHAPE.ranks as usize));
    let ranks: Vec<_> = (0..SHAPE.ranks)
        .map(|local| {
            let (node, collective) = (Arc::clone(&node), Arc::clone(&collective));
            thread::spawn(move || {
                let mut state = vec![local as u8; LEN_BYTES as usize];
                for step in 1..=STEPS {
                    collective.wait();
                    node.checkpoint(local, step, &mut state);
                }
                let index = Index::new(&node.pool, SHAPE);
                assert!(index.wait_done(local, Step(STEPS), HOUR), "never flushed");
            })
        })
        .collect();
    for rank in ranks {
        rank.join().unwrap();
    }
    node.stop();
    writer.join().unwrap();
    assert_eq!(node.durable(), vec![1, 2]);
    assert_eq!(node.lost(), Vec::<u64>::new());
    assert_eq!(node.pool.free_chunks(), chunks, "a chunk was lost");
}

// Breaks if: `next` does not look whether the rank is gone: the flush waits for ever, and with it
// the living rank, for its stage slot.
#[test]
fn a_rank_that_dies_loses_its_step_and_holds_nobody_up() {
    explore("a_rank_that_dies", 120, || {
        allow_timeouts();
        let scratch = Scratch::in_memory("schedules");
        let node = Node::new(&scratch, CHUNKS);
        let mut flusher = node.flusher();
        let writer = thread::spawn(move || flusher.run().unwrap());
        let at = shuttle::rand::thread_rng().gen_range(0..220);
        let dying = {
            let node = Arc::clone(&node);
            thread::spawn(move || {
                let mut state = vec![7; LEN_BYTES as usize];
                let died = mortal(at, || node.checkpoint(0, 1, &mut state)).is_none();
                if died {
                    // What the control thread does when the rank's connection breaks.
                    Index::new(&node.pool, SHAPE).set_rank_gone(0);
                }
                died
            })
        };
        let living = {
            let node = Arc::clone(&node);
            thread::spawn(move || {
                let mut state = vec![1; LEN_BYTES as usize];
                node.checkpoint(1, 1, &mut state);
                let index = Index::new(&node.pool, SHAPE);
                assert!(index.wait_done(1, Step(1), HOUR), "held up by the dead");
            })
        };
        let died = dying.join().unwrap();
        living.join().unwrap();
        if !died {
            let index = Index::new(&node.pool, SHAPE);
            assert!(index.wait_done(0, Step(1), HOUR), "never flushed");
        }
        // The report follows what the ranks wait for.
        while node.durable().is_empty() && node.lost().is_empty() {
            thread::yield_now();
        }
        node.stop();
        writer.join().unwrap();
        if node.durable().is_empty() {
            assert!(died, "lost although nobody died");
        } else {
            assert_eq!(node.lost(), Vec::<u64>::new());
        }
        let left = CHUNKS - node.pool.free_chunks();
        // One chunk in its hand, and what lay in the ring when the step had been given up.
        assert!(died || left == 0, "{left} chunks lost");
        for index in 0..CHUNKS {
            if let Ok(chunk) = Chunk::from_index(&node.pool, index) {
                node.pool.give(chunk);
            }
        }
    });
}
