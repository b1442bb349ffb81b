//! Tests the baseline of incremental capture when snapshots do not end in the order in which they
//! begin.
#![allow(clippy::unwrap_used)]

use orcheck_engine::capture::{Baseline, Beginning, Capture, Fate, Piece, Segment};
use orcheck_format::disk::FileName;
use orcheck_format::{NodeId, Step, WriterId};
use std::sync::Arc;

fn begin(baseline: &Arc<Baseline>, step: u64) -> Capture {
    let container = FileName::Container {
        step: Step(step),
        epoch: 1,
        run: [1; 4],
        node: NodeId(0),
        writer: WriterId(0),
    };
    let beginning = Beginning {
        step: Step(step),
        turn: step,
        chain: 8,
        generation: 1,
        container,
        fate: &|_| (Fate::Committed, false),
    };
    baseline.begin(vec![("u".to_owned(), false)], &beginning)
}

// Breaks if: `Capture::finish` does not ask whether it is still the newest: later snapshots would
// be compared with, and refer to, what a later one has replaced and no committed one needs to name.
#[test]
fn a_snapshot_that_ends_late_is_no_baseline() {
    let piece = Piece {
        region: 0,
        region_at_bytes: 0,
        segment_at_bytes: 0,
        len_bytes: 4096,
    };
    let segment = Segment {
        stream_at_bytes: 0,
        len_bytes: 4096,
        borrowed_at_bytes: None,
        pieces: vec![piece],
    };
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
