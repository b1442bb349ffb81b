//! Save and restart without faults, in every mode, scheme and memory size.

use crate::session::hooks::Hold;
use crate::support::{Job, State};
use crate::{Test, session_tests};
use orcheck_format::{Dtype, ErrorKind, Level};
use orcheck_io::memory::Span;
use orcheck_testing::Scratch;
use std::time::Duration;

/// What is tested here.
pub const TESTS: &[Test] = session_tests![
    one_rank_one_directory,
    both_levels_several_nodes_and_directories,
    level_node_alone,
    nodes_over_tcp,
    every_mode_and_scheme,
    a_pool_of_four_chunks_is_enough_for_any_snapshot,
    the_papers_marshaling_with_room_to_spare,
    copying_with_several_threads,
    more_lanes_than_ranks,
    neighbouring_chunks_are_written_by_one_call,
];

const LONG: Duration = Duration::from_secs(30);

/// Two checkpoints, then a new run that must get the second, bit for bit.
fn round_trip(job: &Job, scale: usize, levels: &[Level]) {
    job.run(|session, rank| {
        let mut session = session.unwrap();
        assert_eq!(session.find().unwrap_err().kind(), ErrorKind::NotFound);
        let mut state = State::new(rank, 1, scale);
        for step in [1, 2] {
            state = State::new(rank, step, scale);
            state.protect(&mut session).unwrap();
            session.checkpoint(step).unwrap();
        }
        // What the program does after the call must not reach the checkpoint.
        state.u.fill(0x11);
        for &level in levels {
            session.wait(2, level, LONG).unwrap();
        }
        session.close(LONG).unwrap();
    });
    job.run(|session, rank| {
        let mut session = session.unwrap();
        assert_eq!(session.find().unwrap(), 2);
        let mut state = State::empty(rank, scale);
        assert_eq!(session.stored("u").unwrap().len_bytes, state.u.len() as u64);
        state.protect(&mut session).unwrap();
        assert_eq!(session.restart().unwrap(), 2);
        assert!(state.is(rank, 2, scale), "rank {rank} got other bytes");
        assert_eq!(
            session.take_warning(),
            None,
            "a faultless checkpoint needs no repair"
        );
        session.close(LONG).unwrap();
    });
}

fn one_rank_one_directory() {
    let scratch = Scratch::new("one");
    round_trip(
        &Job::new(scratch.path(), 1, 1, false),
        300,
        &[Level::Global],
    );
}

fn both_levels_several_nodes_and_directories() {
    let scratch = Scratch::new("both");
    let job = Job::new(scratch.path(), 6, 2, true).nodes(3);
    round_trip(&job, 200, &[Level::Node, Level::Global]);
}

fn level_node_alone() {
    let scratch = Scratch::new("node");
    round_trip(
        &Job::new(scratch.path(), 4, 0, true).nodes(2),
        100,
        &[Level::Node],
    );
}

fn nodes_over_tcp() {
    let scratch = Scratch::new("tcp");
    let job = Job::new(scratch.path(), 4, 2, false)
        .nodes(4)
        .with("net = 'tcp'");
    round_trip(&job, 50, &[Level::Global]);
}

fn every_mode_and_scheme() {
    for mode in ["traditional", "vertical", "orchestrated"] {
        for scheme in ["node", "socket", "core"] {
            let scratch = Scratch::new("modes");
            let job = Job::new(scratch.path(), 4, 3, true)
                .nodes(2)
                .with(&format!("mode = '{mode}'\nscheme = '{scheme}'"));
            round_trip(&job, 150, &[Level::Node, Level::Global]);
        }
    }
}

fn a_pool_of_four_chunks_is_enough_for_any_snapshot() {
    for (mode, scheme, levels) in [
        ("orchestrated", "node", true),
        ("orchestrated", "core", false),
        ("traditional", "node", true),
    ] {
        let scratch = Scratch::new("small");
        let job = Job::new(scratch.path(), 4, 2, levels)
            .with(&format!("mode = '{mode}'\nscheme = '{scheme}'"))
            .with("");
        let job = Job {
            options: job.options.replace("pool = '8 MiB'", "pool = '256 KiB'"),
            ..job
        };
        round_trip(&job, 1500, &[Level::Global]);
    }
}

fn the_papers_marshaling_with_room_to_spare() {
    let scratch = Scratch::new("paper");
    let job = Job::new(scratch.path(), 4, 2, false).with("marshal = 'paper'\nscheme = 'core'");
    round_trip(&job, 300, &[Level::Global]);
}

fn copying_with_several_threads() {
    let scratch = Scratch::new("threads");
    round_trip(
        &Job::new(scratch.path(), 2, 1, false).with("copy_threads = 3"),
        1200,
        &[Level::Global],
    );
}

fn more_lanes_than_ranks() {
    let scratch = Scratch::new("lanes");
    round_trip(
        &Job::new(scratch.path(), 3, 8, false),
        200,
        &[Level::Global],
    );
}

// Breaks if: `extend_run` takes chunks together that do not lie side by side, or gives back another
// number than it took; or if it never takes any, and every chunk costs a call.
fn neighbouring_chunks_are_written_by_one_call() {
    const SIZE: usize = 4 << 20;
    let scratch = Scratch::new("run");
    for (pool, most_writes) in [("32 MiB", 24), ("8 MiB", 30), ("1 MiB", 150)] {
        let hold = Hold::at("flush.taken", "");
        let place = scratch.path().join(pool.replace(' ', ""));
        let job = Job::new(&place, 1, 1, true).pool(pool);
        let bytes = |step: u64| -> Vec<u8> {
            (0..SIZE)
                .map(|i| (i as u64 / 8 * 31 + step) as u8)
                .collect()
        };
        job.clone().failpoints(hold.failpoints()).run(|session, _| {
            let mut session = session.unwrap();
            for step in 1..=3 {
                let mut state = bytes(step);
                session
                    .protect("s", Span::from_mut(&mut state), Dtype::U8, 0)
                    .unwrap();
                let small = pool == "1 MiB";
                if small {
                    hold.release();
                } else {
                    hold.hold_again();
                }
                let before = hold.seen("file.write");
                session.checkpoint(step).unwrap();
                hold.release();
                session.wait(step, Level::Global, LONG).unwrap();
                let writes = hold.seen("file.write") - before;
                // Two levels, each of 64 chunks and a few blocks of metadata.
                assert!(writes <= most_writes, "{pool}: {writes} writes");
                session.unprotect("s").unwrap();
            }
            session.close(LONG).unwrap();
        });
        job.run(|session, _| {
            let mut session = session.unwrap();
            let mut state = vec![0; SIZE];
            session
                .protect("s", Span::from_mut(&mut state), Dtype::U8, 0)
                .unwrap();
            assert_eq!(session.find().unwrap(), 3);
            session.restart().unwrap();
            assert!(state == bytes(3), "{pool}: other bytes came back");
            session.close(LONG).unwrap();
        });
    }
}
