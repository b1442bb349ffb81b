//! The snapshot index and patience.

use crate::explore::explore;
use orcheck_engine::node::{Descriptor, ENGINE_ALIVE, Goes, Index, IndexShape, Outcome, Patience};
use orcheck_format::{Error, ErrorKind, Level, Step, WriterId};
use orcheck_io::sync::model::{allow_timeouts, mortal, slept};
use orcheck_pool::{Gates, Pool, PoolShape};
use shuttle::rand::Rng;
use shuttle::thread;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

const MINUTE: Duration = Duration::from_secs(60);
const SHAPE: IndexShape = IndexShape {
    ranks: 2,
    writers: 1,
};

fn pool() -> Arc<Pool> {
    let shape = PoolShape {
        chunk_bytes: 4096,
        chunk_count: 2,
        words: SHAPE.words(),
        rings: SHAPE.ranks,
        ring_entries: 2,
    };
    Arc::new(Pool::create(shape).unwrap())
}

fn begin(step: u64) -> Descriptor {
    Descriptor::Begin {
        step: Step(step),
        stream_len_bytes: 0,
        cut_bytes: 4096,
        pipelined: false,
        may_shrink: false,
        kept: false,
        goes: Goes::EVERYWHERE,
    }
}

// Breaks if: `push` does not bump the writer's news, or before the entry is there; `pop` does not
// bump what a rank with a full ring waits for; a writer reads the news after it looked into the
// rings.
#[test]
fn descriptors_of_two_ranks_reach_their_writer_in_order() {
    explore("descriptors_of_two_ranks", 1000, || {
        const STEPS: u64 = 4;
        let pool = pool();
        let ranks: Vec<_> = (0..SHAPE.ranks)
            .map(|local| {
                let pool = Arc::clone(&pool);
                thread::spawn(move || {
                    let index = Index::new(&pool, SHAPE);
                    for step in 1..=STEPS {
                        index.push(local, WriterId(0), begin(step), MINUTE).unwrap();
                    }
                })
            })
            .collect();
        let index = Index::new(&pool, SHAPE);
        let mut got = [0; SHAPE.ranks as usize];
        while got.iter().any(|&step| step < STEPS) {
            let news = index.writer_news(WriterId(0));
            let mut none = true;
            for (local, last) in (0..).zip(&mut got) {
                if let Some(descriptor) = index.pop(local).unwrap() {
                    *last += 1;
                    assert_eq!(descriptor, begin(*last), "out of order");
                    none = false;
                }
            }
            if none {
                index.wait_for_entries(WriterId(0), news, MINUTE);
            }
        }
        for rank in ranks {
            rank.join().unwrap();
        }
    });
}

/// The cause of a loss on the board, checked to be that of this step.
fn text_of(index: &Index<'_>, step: u64) -> Option<String> {
    thread::yield_now();
    match index.outcome(Step(step), Level::Node) {
        Outcome::Pending => None,
        Outcome::Committed => panic!("step {step} was never committed"),
        Outcome::Lost(error) => {
            assert_eq!(error.message(), format!("cause {step}").repeat(6));
            Some(error.message().to_owned())
        }
    }
}

// Breaks if: `publish_at` sets the state before the text, `outcome` does not look at the step again
// after reading, or `board_place_for` leaves the old step standing while it clears the place.
#[test]
fn what_the_board_says_is_about_the_step_that_was_asked_for() {
    explore("what_the_board_says", 60, || {
        let pool = pool();
        let index = Index::new(&pool, SHAPE);
        let text = |step: u64| format!("cause {step}").repeat(6);
        let lost = |step| Outcome::Lost(Error::no_space(text(step)));
        // Full: the next ones push the oldest out.
        for step in 1..=64 {
            index.publish(Step(step), Level::Node, &lost(step));
        }
        let control = {
            let pool = Arc::clone(&pool);
            thread::spawn(move || {
                let index = Index::new(&pool, SHAPE);
                for step in 65..=67 {
                    let text = format!("cause {step}").repeat(6);
                    index.publish(
                        Step(step),
                        Level::Node,
                        &Outcome::Lost(Error::no_space(text)),
                    );
                }
            })
        };
        // One looks at the steps that are pushed out until they are gone, one at the new ones until
        // they are there.
        let old = {
            let pool = Arc::clone(&pool);
            thread::spawn(move || {
                let index = Index::new(&pool, SHAPE);
                (1..=3).for_each(|step| while text_of(&index, step).is_some() {});
            })
        };
        (65..=67).for_each(|step| while text_of(&index, step).is_none() {});
        old.join().unwrap();
        control.join().unwrap();
        for step in 65..=67 {
            assert_eq!(index.outcome(Step(step), Level::Node), lost(step));
        }
    });
}

// Breaks if: `publish` bumps the news before the board says it, or does not.
#[test]
fn a_published_outcome_wakes_who_waits_for_it() {
    explore("a_published_outcome", 600, || {
        let pool = pool();
        let control = {
            let pool = Arc::clone(&pool);
            thread::spawn(move || {
                let index = Index::new(&pool, SHAPE);
                index.publish(Step(1), Level::Node, &Outcome::Committed);
                index.publish(Step(1), Level::Global, &Outcome::Committed);
            })
        };
        let index = Index::new(&pool, SHAPE);
        loop {
            let news = index.news();
            if index.outcome(Step(1), Level::Global) == Outcome::Committed {
                break;
            }
            index.wait_news(news, MINUTE);
        }
        assert_eq!(index.committed_step(Level::Global), Some(Step(1)));
        control.join().unwrap();
    });
}

// Breaks if: `check` does not try the lock that the engine holds while it lives (the wait then
// lasts its minute), or takes a live engine for a dead one (`Unavailable` although nobody died).
#[test]
fn nobody_waits_for_an_engine_that_died() {
    explore("nobody_waits_for_an_engine", 600, || {
        allow_timeouts();
        let pool = pool();
        let gates = Arc::new(Gates::open(&pool).unwrap());
        let alive = gates.lock(ENGINE_ALIVE, MINUTE).unwrap();
        let at = shuttle::rand::thread_rng().gen_range(0..30);
        let engine = {
            let pool = Arc::clone(&pool);
            thread::spawn(move || {
                mortal(at, || {
                    let _alive = alive;
                    let index = Index::new(&pool, SHAPE);
                    for local in 0..SHAPE.ranks {
                        while index.pop(local).unwrap().is_none() {
                            let news = index.writer_news(WriterId(0));
                            index.wait_for_entries(WriterId(0), news, Duration::from_millis(200));
                        }
                        index.set_done(local, Step(1), 0);
                    }
                    // A rank that still waits finds its answer, not a lock that is free too early.
                    while index.declared_chunks(0) < u64::from(SHAPE.ranks) {
                        thread::yield_now();
                    }
                })
                .is_none()
            })
        };
        let ranks: Vec<_> = (0..SHAPE.ranks)
            .map(|local| {
                let pool = Arc::clone(&pool);
                let patience = Patience {
                    pool: Arc::clone(&pool),
                    shape: SHAPE,
                    gates: Arc::clone(&gates),
                    stop: Arc::new(AtomicBool::new(false)),
                };
                thread::spawn(move || {
                    let index = Index::new(&pool, SHAPE);
                    index.push(local, WriterId(0), begin(1), MINUTE).unwrap();
                    let waited = patience.wait(100 * MINUTE, |slice| {
                        if index.wait_done(local, Step(1), slice) {
                            Ok(())
                        } else {
                            Err(Error::unavailable("not yet"))
                        }
                    });
                    index.declare_chunks(local, 0, 1);
                    waited
                })
            })
            .collect();
        let ended: Vec<_> = ranks.into_iter().map(|rank| rank.join().unwrap()).collect();
        let died = engine.join().unwrap();
        for waited in ended {
            match waited {
                Ok(()) => {}
                Err(error) => {
                    assert!(died, "nobody died: {error}");
                    assert_eq!(error.kind(), ErrorKind::Unavailable);
                    assert!(error.message().contains("engine"), "{error}");
                }
            }
        }
        assert!(slept() < 50 * MINUTE, "slept for {:?}", slept());
    });
}
