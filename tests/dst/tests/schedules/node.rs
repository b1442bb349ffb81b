//! The pool, its words and rings, and the gates.
//!
//! Sleeps do not time out here unless a test allows it: a wake-up that is lost is a deadlock, and
//! the scheduler reports it.

use crate::explore::explore;
use orcheck_io::sync::model::{allow_timeouts, mortal, slept};
use orcheck_io::sync::{AtomicU64, Ordering};
use orcheck_pool::{Chunk, Gates, Pool, PoolShape};
use shuttle::rand::Rng;
use shuttle::thread;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

const MINUTE: Duration = Duration::from_secs(60);

fn pool(chunk_count: u32) -> Arc<Pool> {
    let shape = PoolShape {
        chunk_bytes: 4096,
        chunk_count,
        words: 4,
        rings: 1,
        ring_entries: 2,
    };
    Arc::new(Pool::create(shape).unwrap())
}

/// Who holds what, by a plain flag that no scheduler sees: set twice means held twice.
struct Held([AtomicBool; 4]);

impl Held {
    fn new() -> Arc<Self> {
        Arc::new(Self([const { AtomicBool::new(false) }; 4]))
    }

    fn take(&self, index: u32) {
        let before = self.0[index as usize].swap(true, Ordering::SeqCst);
        assert!(!before, "{index} has two holders");
    }

    fn give(&self, index: u32) {
        let before = self.0[index as usize].swap(false, Ordering::SeqCst);
        assert!(before, "{index} had no holder");
    }
}

fn use_chunk(pool: &Pool, held: &Held, near: u32, mark: u8) {
    let chunk = pool.take(near, MINUTE).unwrap();
    let index = chunk.index();
    held.take(index);
    pool.put(&chunk, 0, &[mark; 8]);
    thread::yield_now();
    let found = pool.read_bytes(u64::from(index) * 4096, 8).unwrap();
    assert_eq!(found, [mark; 8], "somebody wrote into chunk {index}");
    held.give(index);
    pool.give(chunk);
}

// Breaks if: `release` does not wake, or wakes before it changes the counter; `take` reads the
// counter after it looked for a chunk, or announces itself after that: each is a lost wake-up.
// Breaks if: what `fetch_or` found is not looked at (two holders).
#[test]
fn a_chunk_has_one_holder_and_every_wait_for_one_ends() {
    explore("a_chunk_has_one_holder", 1500, || {
        let (pool, held) = (pool(1), Held::new());
        let takers: Vec<_> = (0..3)
            .map(|mark| {
                let (pool, held) = (Arc::clone(&pool), Arc::clone(&held));
                thread::spawn(move || {
                    for _ in 0..2 {
                        use_chunk(&pool, &held, 0, mark);
                    }
                })
            })
            .collect();
        for taker in takers {
            taker.join().unwrap();
        }
        assert_eq!(pool.free_chunks(), 1, "a chunk was lost");
    });
}

// Breaks if: a run that loses one of its chunks keeps the others; a run is given back without
// waking.
#[test]
fn runs_and_single_chunks_share_a_pool() {
    explore("runs_and_single_chunks", 1000, || {
        let (pool, held) = (pool(3), Held::new());
        let takers: Vec<_> = (0..2)
            .map(|mark| {
                let (pool, held) = (Arc::clone(&pool), Arc::clone(&held));
                thread::spawn(move || {
                    for near in 0..2 {
                        use_chunk(&pool, &held, near + 1, mark);
                    }
                })
            })
            .collect();
        for _ in 0..2 {
            if let Some(first) = pool.take_run(2) {
                (first..first + 2).for_each(|index| held.take(index));
                thread::yield_now();
                (first..first + 2).for_each(|index| held.give(index));
                pool.give_run(first, 2);
            }
        }
        for taker in takers {
            taker.join().unwrap();
        }
        assert_eq!(pool.free_chunks(), 3, "a chunk was lost");
    });
}

// Breaks if: `take` sleeps until its deadline instead of looking again: a wake-up that went to the
// dead is the only one there is, and the minute passes.
#[test]
fn the_death_of_a_taker_costs_one_chunk_at_most_and_one_look() {
    explore("the_death_of_a_taker", 1500, || {
        allow_timeouts();
        let (pool, held) = (pool(2), Held::new());
        let dying = {
            let (pool, at) = (
                Arc::clone(&pool),
                shuttle::rand::thread_rng().gen_range(0..40),
            );
            thread::spawn(move || {
                mortal(at, || {
                    for _ in 0..2 {
                        let chunk = pool.take(0, MINUTE).unwrap();
                        pool.give(chunk);
                    }
                })
                .is_none()
            })
        };
        let living: Vec<_> = (0..2)
            .map(|mark| {
                let (pool, held) = (Arc::clone(&pool), Arc::clone(&held));
                thread::spawn(move || {
                    for _ in 0..2 {
                        use_chunk(&pool, &held, 0, mark);
                    }
                })
            })
            .collect();
        let died = dying.join().unwrap();
        for taker in living {
            taker.join().unwrap();
        }
        let lost = 2 - pool.free_chunks();
        assert!(lost <= u32::from(died), "{lost} chunks lost, died: {died}");
        // What the dead held is still marked, for the engine to give back.
        for index in 0..2 {
            if let Ok(chunk) = Chunk::from_index(&pool, index) {
                pool.give(chunk);
            }
        }
        assert_eq!(pool.free_chunks(), 2);
        assert!(slept() < MINUTE, "slept for {:?}", slept());
    });
}

// Breaks if: `wait_while` sleeps without comparing, or `wake` wakes one waiter only.
#[test]
fn a_change_of_a_word_reaches_everybody_who_waits_for_it() {
    explore("a_change_of_a_word", 1500, || {
        let pool = pool(1);
        let waiters: Vec<_> = (0..2)
            .map(|_| {
                let pool = Arc::clone(&pool);
                thread::spawn(move || {
                    let mut seen = 0;
                    while seen < 2 {
                        assert!(pool.wait_while(1, seen, MINUTE), "time does not pass here");
                        let now = pool.word(1).load(Ordering::Acquire);
                        assert!(now > seen);
                        seen = now;
                    }
                })
            })
            .collect();
        for _ in 0..2 {
            pool.word(1).fetch_add(1, Ordering::AcqRel);
            pool.wake(1);
        }
        for waiter in waiters {
            waiter.join().unwrap();
        }
    });
}

/// Pushes 1, 2, … and wakes the consumer; waits for the consumer's news while the ring is full.
fn produce(pool: &Pool, entries: u64) {
    for number in 1..=entries {
        loop {
            let room = pool.word(1).load(Ordering::Acquire);
            if pool.ring(0).push(&[number; 8]) {
                break;
            }
            let _ = pool.wait_while(1, room, MINUTE);
        }
        pool.word(0).fetch_add(1, Ordering::AcqRel);
        pool.wake(0);
    }
}

// Breaks if: `push` counts an entry before it wrote it, `pop` frees it before it read it, either
// looks past the ring's length (`>` for `>=`), or takes the counters of the other side for its own.
#[test]
fn a_ring_keeps_order_and_bounds_also_when_its_producer_dies() {
    explore("a_ring_keeps_order", 1500, || {
        const ENTRIES: u64 = 5;
        let pool = pool(1);
        let at: u32 = shuttle::rand::thread_rng().gen_range(0..160);
        let ended = Arc::new(AtomicU64::new(0));
        let producer = {
            let (pool, ended) = (Arc::clone(&pool), Arc::clone(&ended));
            thread::spawn(move || {
                let whole = mortal(at, || produce(&pool, ENTRIES)).is_some();
                // What the control thread does when a rank's connection breaks.
                ended.store(1, Ordering::Release);
                pool.word(0).fetch_add(1, Ordering::AcqRel);
                pool.wake(0);
                whole
            })
        };
        let mut got = 0;
        loop {
            let news = pool.word(0).load(Ordering::Acquire);
            let gone = ended.load(Ordering::Acquire) == 1;
            if let Some(entry) = pool.ring(0).pop() {
                got += 1;
                assert_eq!(entry, [got; 8], "out of order, or half an entry");
                pool.word(1).fetch_add(1, Ordering::AcqRel);
                pool.wake(1);
            } else if gone {
                break;
            } else {
                let _ = pool.wait_while(0, news, MINUTE);
            }
        }
        let whole = producer.join().unwrap();
        assert!(
            got <= ENTRIES && (!whole || got == ENTRIES),
            "{got} entries"
        );
    });
}

// Breaks if: a gate that opens does not change the counter, or looks for waiters before it; a
// waiter announces itself after it tried the gate: each is a lost wake-up. Breaks if: two
// descriptions of the file do not exclude each other (lock through one and the same).
#[test]
fn a_gate_has_one_holder_and_is_handed_over() {
    explore("a_gate_has_one_holder", 1200, || {
        let (pool, held) = (pool(1), Held::new());
        let gates = Arc::new(Gates::open(&pool).unwrap());
        let others: Vec<_> = (0..3)
            .map(|_| {
                let (gates, held) = (Arc::clone(&gates), Arc::clone(&held));
                thread::spawn(move || {
                    for _ in 0..2 {
                        let gate = gates.lock(7, MINUTE).unwrap();
                        held.take(0);
                        thread::yield_now();
                        held.give(0);
                        drop(gate);
                    }
                })
            })
            .collect();
        // Another gate is not in the way.
        assert!(gates.try_lock(8).unwrap().is_some());
        for other in others {
            other.join().unwrap();
        }
        assert!(
            gates.try_lock(7).unwrap().is_some(),
            "somebody still holds it"
        );
    });
}

// Breaks if: a waiter sleeps until its deadline: the dead wake nobody, and the minute passes.
#[test]
fn a_gate_opens_when_its_holder_dies() {
    explore("a_gate_opens", 1200, || {
        allow_timeouts();
        let (pool, held) = (pool(1), Held::new());
        let gates = Arc::new(Gates::open(&pool).unwrap());
        let at = shuttle::rand::thread_rng().gen_range(0..12);
        let dying = {
            let gates = Arc::clone(&gates);
            thread::spawn(move || {
                mortal(at, || {
                    let gate = gates.lock(7, MINUTE).unwrap();
                    thread::yield_now();
                    drop(gate);
                });
            })
        };
        let living: Vec<_> = (0..2)
            .map(|_| {
                let (gates, held) = (Arc::clone(&gates), Arc::clone(&held));
                thread::spawn(move || {
                    let gate = gates.lock(7, MINUTE).unwrap();
                    held.take(0);
                    thread::yield_now();
                    held.give(0);
                    drop(gate);
                })
            })
            .collect();
        dying.join().unwrap();
        for other in living {
            other.join().unwrap();
        }
        assert!(slept() < MINUTE, "slept for {:?}", slept());
    });
}
