//! Tests the baseline of incremental capture when snapshots do not end in the order in which they
//! begin.
#![allow(clippy::unwrap_used)]

use orcheck_engine::capture::{Baseline, Beginning, Capture, Fate, Piece, Segment};
use orcheck_engine::node::Goes;
use orcheck_format::disk::FileName;
use orcheck_format::{Level, NodeId, Step, WriterId};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::Arc;

const CHAIN: u32 = 4;
const LEVELS: [Level; 2] = [Level::Node, Level::Global];

fn begin(baseline: &Arc<Baseline>, step: u64) -> Capture {
    begin_at(baseline, step, &LEVELS, (step, 0), &|_, _| {
        (Fate::Committed, false)
    })
}

fn begin_at(
    baseline: &Arc<Baseline>,
    step: u64,
    goes_to: &[Level],
    turn: (u64, u64),
    fate: &dyn Fn(Step, Level) -> (Fate, bool),
) -> Capture {
    let container = FileName::Container {
        step: Step(step),
        epoch: 1,
        run: [1; 4],
        node: NodeId(0),
        writer: WriterId(0),
    };
    let beginning = Beginning {
        step: Step(step),
        levels: (LEVELS.to_vec(), Goes::to(goes_to).unwrap()),
        turn,
        chain: CHAIN,
        generation: 1,
        container,
        fate,
    };
    baseline.begin(vec![("u".to_owned(), false)], &beginning)
}

/// A piece of the region, and the segment that consists of it.
fn unit(number: u64) -> (Piece, Segment) {
    let piece = Piece {
        region: 0,
        region_at_bytes: number * 4096,
        segment_at_bytes: 0,
        len_bytes: 4096,
    };
    let segment = Segment {
        stream_at_bytes: 0,
        len_bytes: 4096,
        borrowed_at_bytes: None,
        pieces: vec![piece],
    };
    (piece, segment)
}

/// Stages `crcs`, one for each unit, as a rank does; returns the steps that the extents refer to, 0
/// for none, and those that are named.
fn take(mut capture: Capture, crcs: &[u64]) -> (Vec<u64>, Vec<Step>) {
    let (mut refers, mut stream_at) = (Vec::new(), 0);
    for (number, &crc) in crcs.iter().enumerate() {
        let (piece, segment) = unit(number as u64);
        let stored = capture.is_stored(&segment, &[crc]);
        let extent = capture.enter(&piece, crc, (!stored).then_some(stream_at));
        stream_at += if stored { 0 } else { 4096 };
        refers.push(extent.container.map_or(0, |name| {
            let Some(FileName::Container { step, .. }) = FileName::parse(&name) else {
                panic!("{name}");
            };
            step.0
        }));
    }
    let named = capture.refers_to();
    capture.finish();
    (refers, named)
}

// Breaks if: a home is only asked whether it is committed, and not where: the container of level
// `global` would refer to one that is not there.
#[test]
fn what_went_to_a_weaker_level_is_stored_again_at_the_stronger_one() {
    let committed = |_, _| (Fate::Committed, false);
    let baseline = Arc::new(Baseline::default());
    let at = |step, levels: &[Level], turn, crcs: &[u64]| {
        take(begin_at(&baseline, step, levels, turn, &committed), crcs)
    };
    let steps = |steps: &[u64]| steps.iter().copied().map(Step).collect::<Vec<_>>();
    assert_eq!(at(1, &LEVELS, (0, 0), &[7, 7, 7]).0, [0, 0, 0]);
    // The second unit changes, and is stored at the weaker level alone.
    let found = at(2, &LEVELS[..1], (1, 0), &[7, 8, 7]);
    assert_eq!(found, (vec![1, 0, 1], steps(&[1])));
    let found = at(3, &LEVELS[..1], (1, 1), &[7, 8, 9]);
    assert_eq!(found, (vec![1, 2, 0], steps(&[1, 2])));
    // Stored again: all that changed since the last step of the stronger level, and nothing else.
    let found = at(4, &LEVELS, (1, 2), &[7, 8, 9]);
    assert_eq!(found, (vec![1, 0, 0], steps(&[1])));
    let found = at(5, &LEVELS[..1], (2, 0), &[7, 8, 9]);
    assert_eq!(found, (vec![1, 4, 4], steps(&[1, 4])));
}

// Breaks if: a loss at one level makes checkpoints full that do not go there, or is forgotten by
// them.
#[test]
fn a_loss_at_one_level_makes_the_next_checkpoint_there_full() {
    let fate = |step, level| match (step, level) {
        (Step(2), Level::Global) => (Fate::Lost, true),
        _ => (Fate::Committed, false),
    };
    let baseline = Arc::new(Baseline::default());
    let at = |step, levels: &[Level], turn| {
        take(begin_at(&baseline, step, levels, turn, &fate), &[7, 7]).0
    };
    assert_eq!(at(1, &LEVELS, (0, 0)), [0, 0]);
    assert_eq!(at(2, &LEVELS, (1, 0)), [1, 1]);
    assert_eq!(at(3, &LEVELS[..1], (2, 0)), [1, 1]);
    assert_eq!(at(4, &LEVELS, (2, 1)), [0, 0]);
    assert_eq!(at(5, &LEVELS, (3, 0)), [4, 4]);
}

/// What a simulated session knows of a step.
struct Taken {
    goes: Goes,
    named: Vec<Step>,
    /// By level: decided, and how.
    fates: BTreeMap<Level, Fate>,
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    // Breaks if: a reference leaves its level, or something is referred to that the last committed
    // snapshot of a level does not pin; prune would remove it there.
    #[test]
    fn references_stay_within_what_is_committed_and_pinned_at_each_level(
        rounds in prop::collection::vec((1u8..4, 0u8..8, prop::collection::vec(any::<bool>(), 6), 0usize..4), 1..60),
    ) {
        let baseline = Arc::new(Baseline::default());
        let mut taken: BTreeMap<Step, Taken> = BTreeMap::new();
        let (mut crcs, mut turn) = ([0u64; 6], (0, 0));
        for (number, (to, decide, changed, behind)) in rounds.into_iter().enumerate() {
            let step = Step(number as u64 + 1);
            for (crc, _) in crcs.iter_mut().zip(changed).filter(|(_, changed)| *changed) {
                *crc += 1;
            }
            let levels: Vec<Level> = (0..2).filter(|at| to & 1 << at != 0).map(|at| LEVELS[at]).collect();
            let goes = Goes::to(&levels).unwrap();
            let fate = |step: Step, level: Level| {
                let known = taken.get(&step).and_then(|taken| taken.fates.get(&level));
                let fate = known.copied().unwrap_or(Fate::Pending);
                (fate, fate == Fate::Lost && decide & 4 != 0)
            };
            let (refers, named) = take(begin_at(&baseline, step.0, &levels, turn, &fate), &crcs);
            prop_assert!(named.len() <= 2 * CHAIN as usize, "{named:?}");
            for &level in &levels {
                // The newest that is committed here keeps what it names from being removed.
                let newest = taken.iter().rev().find(|(_, taken)| taken.fates.get(&level) == Some(&Fate::Committed));
                for &older in refers.iter().filter(|&&older| older != 0) {
                    let older = Step(older);
                    prop_assert!(named.contains(&older));
                    prop_assert_eq!(taken[&older].fates.get(&level), Some(&Fate::Committed));
                    let (kept, by) = newest.expect("nothing is committed at this level");
                    prop_assert!(*kept == older || by.named.contains(&older), "{} is not pinned at {}", older, level);
                }
            }
            for older in &named {
                prop_assert!(taken[older].goes.covers(goes), "{} did not go where {} goes", older, step);
            }
            turn = match goes.includes(Level::Global) {
                true => (turn.0 + 1, 0),
                false => (turn.0, turn.1 + 1),
            };
            taken.insert(step, Taken { goes, named, fates: BTreeMap::new() });
            // Levels decide in the order of steps, some steps behind.
            let decided = taken.keys().rev().nth(behind).copied();
            for (step, taken) in taken.iter_mut().filter(|(step, _)| Some(**step) <= decided) {
                for level in taken.goes.of(LEVELS.to_vec()) {
                    let lost = (step.0 + u64::from(decide)) % 7 == 0;
                    let fate = if lost { Fate::Lost } else { Fate::Committed };
                    taken.fates.entry(level).or_insert(fate);
                }
            }
        }
    }
}

// Breaks if: `Capture::finish` does not ask whether it is still the newest: later snapshots would
// be compared with, and refer to, what a later one has replaced and no committed one needs to name.
#[test]
fn a_snapshot_that_ends_late_is_no_baseline() {
    let (piece, segment) = unit(0);
    let baseline = Arc::new(Baseline::default());
    let (mut late, mut newest) = (begin(&baseline, 1), begin(&baseline, 2));
    let _ = newest.enter(&piece, 22, Some(0));
    newest.finish();
    let _ = late.enter(&piece, 11, Some(0));
    late.finish();
    let next = begin(&baseline, 3);
    assert!(next.is_stored(&segment, &[22]));
    assert!(!next.is_stored(&segment, &[11]));
}
