//! Extents that several ranks of a node need: one of them reads and verifies each.
//!
//! Not here: what is redistributed to which ranks (`elastic.rs`).

use crate::session::elastic::key;
use crate::session::elastic::parts::{Part, restores, store_at};
use crate::session::hooks::Reads;
use crate::support::Job;
use crate::{Test, session_tests};
use orcheck_client::SAME;
use orcheck_format::Level;
use orcheck_testing::Scratch;
use std::sync::Arc;

/// What is tested here.
pub const TESTS: &[Test] = session_tests![
    what_several_ranks_of_a_node_need_is_read_once,
    extents_of_any_length_are_shared,
];

/// How four ranks cut an array of `rows` times `columns` elements into rows, and into columns.
fn rows_and_columns(rows: u64, columns: u64) -> [Vec<Part>; 2] {
    let part = |offset: [u64; 2], local: [u64; 2]| Part {
        offset: offset.to_vec(),
        local: local.to_vec(),
    };
    [
        (0..4)
            .map(|rank| part([rows / 4 * rank, 0], [rows / 4, columns]))
            .collect(),
        (0..4)
            .map(|rank| part([0, columns / 4 * rank], [rows, columns / 4]))
            .collect(),
    ]
}

/// Parts as short as metadata are not counted, and what is encrypted is longer by its tags.
fn is_nearly(found: u64, expected: u64) {
    let few = expected / 16;
    assert!(
        (expected - few..=expected + few).contains(&found),
        "expected about {expected} bytes, found {found}"
    );
}

// Breaks if: each rank reads and verifies what another one of its node has.
fn what_several_ranks_of_a_node_need_is_read_once() {
    let global = &[64, 4096][..];
    let [rows, columns] = rows_and_columns(64, 4096);
    let whole = Part {
        offset: vec![0, 0],
        local: global.to_vec(),
    };
    for (stored, wanted, flags) in [(&rows, &columns, 0), (&vec![whole; 4], &vec![], SAME)] {
        for encrypted in [false, true] {
            let scratch = Scratch::new("once");
            let reads = Arc::new(Reads::default());
            let mut job = Job::new(scratch.path(), 4, 0, true);
            if encrypted {
                job = job.with(&key(scratch.path()));
            }
            store_at(&job, Level::Node, (global, stored), &[1], flags);
            let job = job.failpoints(reads.failpoints());
            let parts = if wanted.is_empty() { stored } else { wanted };
            restores(&job, global, parts, 1, flags);
            is_nearly(reads.of_each_byte_once(), 64 * 4096 * 8);
        }
    }
}

// Breaks if: what is read at once ends within one of the blocks into which an extent is divided,
// here of 896 bytes.
fn extents_of_any_length_are_shared() {
    let global = &[64, 8192][..];
    let [rows, columns] = rows_and_columns(64, 8192);
    let scratch = Scratch::new("lengths");
    let mut job = Job::new(scratch.path(), 4, 0, true);
    job.options = job.options.replace("chunk = '64 KiB'", "chunk = '448 KiB'");
    store_at(&job, Level::Node, (global, &rows), &[1], 0);
    let reads = Arc::new(Reads::default());
    let job = job.failpoints(reads.failpoints());
    restores(&job, global, &columns, 1, 0);
    is_nearly(reads.of_each_byte_once(), 64 * 8192 * 8);
}
