//! Tests a tracked region against a model: the pieces that the capture reports make up the region
//! exactly.
#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::disallowed_methods)]

use orcheck_engine::capture::{Copied, Fate, Pages};
use orcheck_format::disk::BLOCK_BYTES;
use orcheck_format::{Step, crc64};
use orcheck_io::failpoints::Failpoints;
use orcheck_io::memory::{Buffer, fill_span};
use orcheck_pool::page_bytes;
use proptest::prelude::*;
use std::collections::BTreeMap;

/// What happens before one capture.
#[derive(Debug, Clone)]
struct Round {
    /// Bytes that are written: from where, how many, and their value.
    writes: Vec<(usize, usize, u8)>,
    full: bool,
    /// What becomes of its step.
    fate: Fate,
}

const PAGES: usize = 700;

fn round() -> impl Strategy<Value = Round> {
    let few = || (0..PAGES * 4096, 1..9000usize, any::<u8>());
    let many = (0..PAGES * 4096, 100_000..400_000usize, any::<u8>());
    let writes = prop_oneof![
        3 => prop::collection::vec(few(), 0..12),
        2 => prop::collection::vec(many, 0..2),
        // The same place again and again: what is busy, at its ends too.
        4 => (1..=u8::MAX, few()).prop_map(|(value, other)| {
            vec![(60 * 4096, 140 * 4096, value), other]
        }),
    ];
    let fate = prop_oneof![
        6 => Just(Fate::Committed),
        1 => Just(Fate::Pending),
        1 => Just(Fate::Lost),
    ];
    (writes, prop::bool::weighted(0.1), fate).prop_map(|(writes, full, fate)| Round {
        writes,
        full,
        fate,
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    // Breaks if: the sum of a group of pages is not made again when a page of it was copied, or is
    // used although a page of it was stored just now.
    #[test]
    fn every_run_holds_the_bytes_of_its_part(
        rounds in prop::collection::vec(round(), 1..14),
        offset in prop_oneof![Just(0usize), Just(64), Just(4032)],
        cut_bytes in prop_oneof![Just(64u64 << 10), Just(1 << 20), Just(4 << 20)],
    ) {
        let len = PAGES * page_bytes() - 100;
        let mut memory = Buffer::zeroed(len + offset, page_bytes());
        let span = memory.span().sub(offset, len);
        let mut pages = match Pages::arm(span, &Failpoints::none()) {
            Ok(pages) => pages,
            Err(error) => {
                println!("SKIPPED: tracked pages ({error})");
                return Ok(());
            }
        };
        let mut now = vec![0u8; len];
        let mut streams: BTreeMap<Step, Vec<u8>> = BTreeMap::new();
        let mut fates: BTreeMap<Step, Fate> = BTreeMap::new();
        for (step, round) in (1..).map(Step).zip(&rounds) {
            for &(at, count, value) in &round.writes {
                let at = at.min(len - 1);
                let count = count.min(len - at);
                now[at..at + count].fill(value);
                fill_span(span.sub(at, count), &now[at..at + count]);
            }
            let fate = |step: Step| fates.get(&step).copied().unwrap_or(Fate::Lost);
            let wanted = pages.want(round.full, 1 << 20, &fate).unwrap();
            let mut stream = Vec::new();
            let mut copied = Vec::new();
            for page in wanted.runs.iter().flat_map(|&(first, count)| first..first + count) {
                let (at, len) = pages.part(page);
                let bytes = &now[at..at + len];
                let crc = crc64(bytes);
                let stored = pages.is_stored(page, crc, &fate);
                copied.push(Copied {
                    page,
                    crc,
                    stream_at_bytes: (!stored).then_some(stream.len() as u64),
                });
                if !stored {
                    stream.extend_from_slice(bytes);
                    stream.resize(stream.len().next_multiple_of(BLOCK_BYTES), 0);
                }
            }
            let entered = pages.enter(step, &copied, cut_bytes, &fate);
            streams.insert(step, stream);
            let mut at = 0;
            for run in &entered.runs {
                let here = &now[at..at + run.len_bytes as usize];
                prop_assert!(run.len_bytes <= cut_bytes);
                prop_assert_eq!(run.crc, crc64(here), "step {}, at {}", step, at);
                let home = run.place.step;
                prop_assert!(home == step || fate(home) == Fate::Committed, "{} in {}", home, step);
                let from = run.place.stream_at_bytes as usize;
                prop_assert!(streams[&home][from..].starts_with(here), "step {}, at {}", step, at);
                at += here.len();
            }
            prop_assert_eq!(at, len);
            fates.insert(step, round.fate);
        }
    }
}

// Breaks if: what changes between any two captures is protected all the same, or stays open when it
// changes no more.
#[test]
fn pages_that_always_change_cost_no_faults() {
    let len = PAGES * page_bytes();
    let mut memory = Buffer::zeroed(len, page_bytes());
    let span = memory.span();
    let mut pages = match Pages::arm(span, &Failpoints::none()) {
        Ok(pages) => pages,
        Err(error) => return println!("SKIPPED: tracked pages ({error})"),
    };
    let committed = |_: Step| Fate::Committed;
    // Two groups of 64 pages change in steps 2 to 5, and not afterwards. `part` is copied and
    // entered: what the capture asks for.
    let mut faults = Vec::new();
    for step in 1..=8 {
        let before = minor_faults();
        if step <= 5 {
            let part = span.sub(64 * page_bytes(), 128 * page_bytes());
            fill_span(part, &vec![step as u8; part.len_bytes()]);
        }
        let written = minor_faults() - before;
        let wanted = pages.want(false, 1 << 20, &committed).unwrap();
        let copied: Vec<Copied> = (wanted.runs.iter())
            .flat_map(|&(first, count)| first..first + count)
            .zip(0..)
            .map(|(page, number)| {
                let changes = step <= 5 && (64..192).contains(&page);
                let crc = u64::from(changes) * step.min(5) + u64::from(!changes) * 5;
                let stored = pages.is_stored(page, crc, &committed);
                let stream_at_bytes = (!stored).then_some(number * page_bytes() as u64);
                Copied {
                    page,
                    crc,
                    stream_at_bytes,
                }
            })
            .collect();
        pages.enter(Step(step), &copied, 4 << 20, &committed);
        faults.push((written, copied.len()));
    }
    assert!(faults[2].0 >= 128, "protected at first: {faults:?}");
    assert!(faults[4].0 < 32, "open, as they always change: {faults:?}");
    assert_eq!(faults[7].1, 0, "protected again: {faults:?}");
}

/// Faults of this thread that read nothing from a disk.
fn minor_faults() -> u64 {
    let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
    let fields = stat.rsplit_once(')').unwrap().1;
    fields.split_whitespace().nth(7).unwrap().parse().unwrap()
}
