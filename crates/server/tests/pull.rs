//! Who may send when: against every order of offers, arrivals, silences and departures.
#![allow(clippy::unwrap_used)]

use orcheck_server::pull::{Limits, Pull};
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
};

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// What a sender and the disk know by themselves.
#[derive(Default)]
struct Model {
    /// By stream: bytes that it has left, pieces that it may send, whether one is coming.
    streams: BTreeMap<u64, (u64, u32, bool)>,
    in_memory: u32,
}

impl Model {
    fn take(&mut self, grants: Vec<(u64, u32)>) {
        for (id, pieces) in grants {
            let (_, granted, _) = self.streams.get_mut(&id).expect("a grant to nobody");
            *granted += pieces;
        }
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
        5 => Just(Event::Written),
        1 => (0..6u64).prop_map(Event::Pauses),
        1 => (0..6u64).prop_map(Event::Ends),
        2 => (1..400u64).prop_map(Event::Passes),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    // Breaks if: what is promised is not counted, or what is in memory.
    #[test]
    fn in_any_order_no_more_is_wanted_than_there_is_memory_for(
        events in proptest::collection::vec(event(), 1..200)
    ) {
        let mut pull = Pull::new(LIMITS);
        let mut model = Model::default();
        let mut now = Duration::ZERO;
        // Streams that were silent may send late what they were granted: memory beyond the bound.
        let mut late = 0;
        for event in events {
            now += ms(1);
            let grants = match event {
                Event::Offer(id, bytes) => {
                    let entry = model.streams.entry(id).or_default();
                    entry.0 = entry.0.max(bytes);
                    pull.offer(now, id, id % 3, bytes)
                }
                Event::Begins(id) => {
                    let may = match model.streams.get_mut(&id) {
                        Some((_, granted, coming)) if *granted > 0 && !*coming => {
                            *granted -= 1;
                            *coming = true;
                            model.in_memory += 1;
                            true
                        }
                        Some((_, _, true)) => continue,
                        _ => false,
                    };
                    prop_assert_eq!(pull.begins(now, id), may);
                    Vec::new()
                }
                Event::Arrives(id) => match model.streams.get_mut(&id) {
                    Some((left, _, coming)) if *coming => {
                        *coming = false;
                        *left = left.saturating_sub(PIECE);
                        pull.arrived(now, id, PIECE)
                    }
                    _ => continue,
                },
                Event::Written => {
                    let coming = model.streams.values().filter(|one| one.2).count() as u32;
                    if model.in_memory <= coming {
                        continue;
                    }
                    model.in_memory -= 1;
                    pull.freed(now)
                }
                Event::Pauses(id) => {
                    late = late.max(2 * model.streams.len() as u32);
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
                    late = late.max(2 * model.streams.len() as u32);
                    pull.tick(now)
                }
            };
            model.take(grants);
            let promised: u32 = model.streams.values().map(|one| one.1).sum();
            for (_, granted, coming) in model.streams.values() {
                prop_assert!(granted + u32::from(*coming) <= LIMITS.window);
            }
            prop_assert!(model.in_memory + promised <= LIMITS.pieces + late);
        }
        // Whoever offers gets its turn when those before it have had theirs.
        for _ in 0..2000 {
            now += ms(7);
            let ids: Vec<u64> = model.streams.keys().copied().collect();
            for id in ids {
                let (left, granted, coming) = model.streams[&id];
                if coming {
                    let entry = model.streams.get_mut(&id).unwrap();
                    *entry = (left.saturating_sub(PIECE), granted, false);
                    let grants = pull.arrived(now, id, PIECE);
                    model.take(grants);
                } else if granted > 0 {
                    prop_assert!(pull.begins(now, id));
                    model.in_memory += 1;
                    *model.streams.get_mut(&id).unwrap() = (left, granted - 1, true);
                } else if left > 0 {
                    let grants = pull.offer(now, id, id % 3, left);
                    model.take(grants);
                }
            }
            let coming = model.streams.values().filter(|one| one.2).count() as u32;
            while model.in_memory > coming {
                model.in_memory -= 1;
                let grants = pull.freed(now);
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
    // The third goes on alone, past both that say nothing.
    for round in 0..20 {
        let now = ms(60 + 10 * round);
        assert!(pull.begins(now, 3));
        assert_eq!(pull.arrived(now, 3, PIECE), [(3, 1)]);
        assert_eq!(pull.freed(now), []);
    }
    // One of them is heard of again: what it was granted is taken, and it waits for its turn like any other.
    assert!(pull.begins(ms(1300), 1));
    assert_eq!(pull.arrived(ms(1301), 1, PIECE), [(1, 1)]);
    // One that stops in the middle of a piece is given more time: it may have a slow link.
    let mut pull = Pull::new(Limits {
        at_once: 1,
        ..LIMITS
    });
    pull.offer(ms(0), 1, 0, 100 * PIECE);
    assert!(pull.begins(ms(10), 1));
    assert_eq!(pull.offer(ms(20), 2, 0, PIECE), []);
    assert_eq!(pull.tick(ms(1009)), []);
    assert_eq!(pull.due(), Some(ms(1010)));
    assert_eq!(pull.tick(ms(1010)), [(2, 1)]);
}

// Breaks if: turns go in the order of the offers alone; a job of many files would keep a small one waiting.
#[test]
fn a_job_of_one_file_does_not_wait_behind_a_job_of_many() {
    let mut pull = Pull::new(Limits {
        at_once: 1,
        ..LIMITS
    });
    for id in 0..50 {
        pull.offer(ms(0), id, 7, 100 * PIECE);
    }
    assert_eq!(pull.offer(ms(0), 99, 8, 2 * PIECE), []);
    let mut came = 0;
    let mut now = ms(0);
    while !pull.begins(now, 99) {
        now += ms(1);
        let active = (0..50).find(|&id| pull.begins(now, id));
        let active = active.expect("nobody may send");
        pull.arrived(now, active, PIECE);
        pull.freed(now);
        came += PIECE;
        assert!(came <= LIMITS.turn_bytes + 3 * PIECE, "{came}");
    }
}
