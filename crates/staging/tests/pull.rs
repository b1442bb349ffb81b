//! Tests who may send when, against every order of offers, arrivals, silences and departures.
#![allow(clippy::unwrap_used)]

use orcheck_staging::server::pull::{Begins, Limits, Pull};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::time::Duration;

const PIECE: u64 = 4 << 20;
const LIMITS: Limits = Limits {
    pieces: 6,
    at_once: 2,
    window: 2,
    idle: Duration::from_millis(50),
    stall: Duration::from_secs(1),
    turn_bytes: 4 * PIECE,
    turn: Duration::from_secs(5),
};

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn job(id: u64) -> u64 {
    id % 3
}

/// What a sender and the disk know by themselves.
#[derive(Default)]
struct Model {
    /// By stream: bytes that it has left, pieces that it may send, whether one is coming.
    streams: BTreeMap<u64, (u64, u32, bool)>,
    /// The job of each piece that came and is not written yet.
    in_memory: Vec<u64>,
}

impl Model {
    fn take(&mut self, grants: Vec<(u64, u32)>) {
        for (id, pieces) in grants {
            let (_, granted, _) = self.streams.get_mut(&id).expect("a grant to nobody");
            *granted += pieces;
        }
    }

    fn coming(&self) -> u32 {
        self.streams.values().filter(|one| one.2).count() as u32
    }
}

#[derive(Debug, Clone)]
enum Event {
    Offer(u64, u64),
    Begins(u64),
    Arrives(u64),
    Written,
    Pauses(u64),
    Ends(u64),
    Passes(u64),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        3 => (0..6u64, 1..9u64).prop_map(|(id, pieces)| Event::Offer(id, pieces * PIECE)),
        5 => (0..6u64).prop_map(Event::Begins),
        5 => (0..6u64).prop_map(Event::Arrives),
        3 => Just(Event::Written),
        1 => (0..6u64).prop_map(Event::Pauses),
        1 => (0..6u64).prop_map(Event::Ends),
        2 => (1..400u64).prop_map(Event::Passes),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases.max(1000), failure_persistence: None, ..ProptestConfig::default() })]

    // Breaks if: what is promised is not counted, or what is in memory.
    #[test]
    fn in_any_order_no_more_is_taken_in_than_there_is_memory_for(
        events in proptest::collection::vec(event(), 1..200)
    ) {
        let mut pull = Pull::new(LIMITS);
        let mut model = Model::default();
        let mut now = Duration::ZERO;
        for event in events {
            now += ms(1);
            let grants = match event {
                Event::Offer(id, bytes) => {
                    let entry = model.streams.entry(id).or_default();
                    entry.0 = entry.0.max(bytes);
                    pull.offer(now, id, job(id), bytes)
                }
                Event::Begins(id) => {
                    match model.streams.get_mut(&id) {
                        Some((_, _, true)) => continue,
                        Some((_, granted, coming)) if *granted > 0 => {
                            match pull.begins(now, id, job(id)) {
                                Begins::Now => {
                                    *granted -= 1;
                                    *coming = true;
                                }
                                // What it may send stays.
                                other => prop_assert_eq!(other, Begins::Waits),
                            }
                        }
                        _ => prop_assert_eq!(pull.begins(now, id, job(id)), Begins::Unwanted),
                    }
                    pull.tick(now)
                }
                Event::Arrives(id) => match model.streams.get_mut(&id) {
                    Some((left, _, coming)) if *coming => {
                        *coming = false;
                        *left = left.saturating_sub(PIECE);
                        model.in_memory.push(job(id));
                        pull.arrived(now, id)
                    }
                    _ => continue,
                },
                Event::Written => match model.in_memory.pop() {
                    Some(job) => pull.freed(now, job),
                    None => continue,
                },
                Event::Pauses(id) => {
                    if let Some((left, ..)) = model.streams.get_mut(&id) {
                        *left = 0;
                    }
                    pull.pauses(now, id)
                }
                Event::Ends(id) => {
                    if model.streams.get(&id).is_none_or(|one| one.2) {
                        continue;
                    }
                    model.streams.remove(&id);
                    pull.ended(now, id)
                }
                Event::Passes(time) => {
                    now += ms(time);
                    pull.tick(now)
                }
            };
            model.take(grants);
            for (_, granted, coming) in model.streams.values() {
                prop_assert!(granted + u32::from(*coming) <= LIMITS.window);
            }
            prop_assert!(model.in_memory.len() as u32 + model.coming() <= LIMITS.pieces);
        }
        // Whoever offers gets its turn when those before it have had theirs.
        for _ in 0..4000 {
            now += ms(7);
            let ids: Vec<u64> = model.streams.keys().copied().collect();
            for id in ids {
                let (left, granted, coming) = model.streams[&id];
                if coming {
                    *model.streams.get_mut(&id).unwrap() = (left.saturating_sub(PIECE), granted, false);
                    model.in_memory.push(job(id));
                    let grants = pull.arrived(now, id);
                    model.take(grants);
                } else if granted > 0 {
                    if pull.begins(now, id, job(id)) == Begins::Now {
                        *model.streams.get_mut(&id).unwrap() = (left, granted - 1, true);
                    }
                } else if left > 0 {
                    let grants = pull.offer(now, id, job(id), left);
                    model.take(grants);
                }
            }
            while let Some(job) = model.in_memory.pop() {
                let grants = pull.freed(now, job);
                model.take(grants);
            }
            let grants = pull.tick(now);
            model.take(grants);
        }
        for (id, (left, ..)) in &model.streams {
            prop_assert_eq!(*left, 0, "stream {} still waits", id);
        }
    }
}

// Breaks if: who is granted something is waited for without end.
#[test]
fn a_stream_that_stops_delays_nobody_for_long() {
    let mut pull = Pull::new(LIMITS);
    // Two that were granted pieces and send nothing.
    assert_eq!(pull.offer(ms(0), 1, 0, 100 * PIECE), [(1, 2)]);
    assert_eq!(pull.offer(ms(0), 2, 0, 100 * PIECE), [(2, 2)]);
    assert_eq!(pull.offer(ms(10), 3, 0, 100 * PIECE), []);
    assert!(pull.waits(3));
    assert_eq!(pull.tick(ms(49)), []);
    assert_eq!(pull.due(), Some(ms(50)));
    assert_eq!(pull.tick(ms(50)), [(3, 2)]);
    // The third continues alone, past both that say nothing.
    for round in 0..20 {
        let now = ms(60 + 10 * round);
        assert_eq!(pull.begins(now, 3, 0), Begins::Now);
        assert_eq!(pull.arrived(now, 3), [(3, 1)]);
        assert_eq!(pull.freed(now, 0), []);
    }
    // One of them is heard of again, and has its turn; the other one as well, where a turn is free.
    assert_eq!(pull.begins(ms(262), 1, 0), Begins::Waits);
    assert_eq!(pull.tick(ms(262)), [(1, 0)]);
    assert_eq!(pull.begins(ms(263), 1, 0), Begins::Now);
    assert_eq!(pull.begins(ms(263), 2, 0), Begins::Waits);
    assert_eq!(pull.tick(ms(263)), []);
    assert_eq!(pull.arrived(ms(264), 1), [(1, 1)]);
    // One that stops in the middle of a piece is given more time: it may have a slow link.
    let mut pull = Pull::new(Limits {
        at_once: 1,
        ..LIMITS
    });
    pull.offer(ms(0), 1, 0, 100 * PIECE);
    assert_eq!(pull.begins(ms(10), 1, 0), Begins::Now);
    assert_eq!(pull.offer(ms(20), 2, 0, PIECE), []);
    assert_eq!(pull.tick(ms(1009)), []);
    assert_eq!(pull.due(), Some(ms(1010)));
    assert_eq!(pull.tick(ms(1010)), [(2, 1)]);
}

// Breaks if: a stream has a turn although memory for what it was granted before went to others
// meanwhile.
#[test]
fn what_was_granted_before_waits_for_memory_too() {
    let mut pull = Pull::new(LIMITS);
    assert_eq!(pull.offer(ms(0), 0, 0, 2 * PIECE), [(0, 2)]);
    assert_eq!(pull.tick(ms(50)), []);
    assert_eq!(pull.offer(ms(51), 1, 0, 6 * PIECE), [(1, 2)]);
    for came in 1..=6 {
        assert_eq!(pull.begins(ms(51 + came), 1, 0), Begins::Now);
        pull.arrived(ms(51 + came), 1);
    }
    // All memory holds something.
    for written in 0..2 {
        assert_eq!(pull.begins(ms(60), 0, 0), Begins::Waits);
        assert_eq!(pull.tick(ms(60)), []);
        let grants = pull.freed(ms(61 + written), 0);
        assert_eq!(grants, [(0, 0)][..written as usize]);
    }
    assert_eq!(pull.begins(ms(63), 0, 0), Begins::Now);
}

/// Lets streams with a turn send; the pieces that came until the stream `id` may send one.
fn pieces_before(pull: &mut Pull, id: u64, others: std::ops::Range<u64>, every: Duration) -> u64 {
    let (mut came, mut now) = (0, ms(1));
    while pull.begins(now, id, 8) != Begins::Now {
        now += every;
        let sends = |other: &u64| pull.begins(now, *other, 7) == Begins::Now;
        let other = others.clone().find(sends).expect("nobody may send");
        pull.arrived(now, other);
        pull.freed(now, 7);
        came += 1;
        assert!(came < 10_000, "it never has its turn");
    }
    came
}

// Breaks if: turns go in the order of the offers alone; a job of many files would keep a small one
// waiting.
#[test]
fn a_job_of_one_file_does_not_wait_behind_a_job_of_many() {
    let limits = Limits {
        at_once: 1,
        ..LIMITS
    };
    let many = || {
        let mut pull = Pull::new(limits);
        for id in 0..50 {
            pull.offer(ms(0), id, 7, u64::MAX);
        }
        assert_eq!(pull.offer(ms(0), 99, 8, 2 * PIECE), []);
        pull
    };
    let came = pieces_before(&mut many(), 99, 0..50, ms(1));
    assert!(came * PIECE <= LIMITS.turn_bytes + 3 * PIECE, "{came}");
    // Breaks if: a turn has no end in time; tiny pieces that keep coming would last for ever.
    let slow = Limits {
        turn_bytes: u64::MAX,
        ..limits
    };
    let mut pull = Pull::new(slow);
    pull.offer(ms(0), 0, 7, u64::MAX);
    pull.offer(ms(0), 99, 8, 2 * PIECE);
    let came = pieces_before(&mut pull, 99, 0..1, ms(40));
    assert!(came <= 5000 / 40 + 3, "{came}");
}

// Breaks if: all memory may go to one job; one that stops in the middle of pieces would keep it
// from all others.
#[test]
fn a_job_has_no_more_than_half_of_the_memory_while_others_wait() {
    let mut pull = Pull::new(Limits {
        at_once: 6,
        ..LIMITS
    });
    for id in 0..3 {
        assert_eq!(pull.offer(ms(0), id, 7, 100 * PIECE), [(id, 2)]);
    }
    // It has all while it is alone.
    for id in 0..3 {
        assert_eq!(pull.begins(ms(1), id, 7), Begins::Now);
    }
    assert_eq!(pull.offer(ms(2), 99, 8, 100 * PIECE), []);
    assert!(pull.waits(99));
    // What becomes free is the other's, until it has half.
    for written in 1..=3 {
        assert_eq!(pull.arrived(ms(2 + written), written - 1), []);
        let grants = pull.freed(ms(2 + written), 7);
        assert_eq!(
            grants,
            if written <= 2 {
                vec![(99, 1)]
            } else {
                vec![(0, 1)]
            }
        );
    }
}
