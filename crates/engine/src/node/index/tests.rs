//! Tests the index: descriptors, reasons and the board.

use super::reasons::MOST_HELD;
use super::*;
use orcheck_format::{Detail, Step, WriterId};
use orcheck_pool::PoolShape;

fn pool(shape: IndexShape) -> Pool {
    Pool::create(PoolShape {
        chunk_bytes: 65536,
        chunk_count: 4,
        words: shape.words(),
        rings: shape.ranks,
        ring_entries: 16,
    })
    .unwrap()
}

#[test]
fn descriptors_cross_unchanged_and_a_full_ring_has_a_deadline() {
    let shape = IndexShape {
        ranks: 2,
        writers: 1,
    };
    let pool = pool(shape);
    let index = Index::new(&pool, shape);
    let all = [
        Descriptor::Begin {
            step: Step(7),
            stream_len_bytes: 4096,
            cut_bytes: 65536,
            pipelined: true,
            may_shrink: false,
            kept: false,
            goes: Goes::EVERYWHERE,
        },
        Descriptor::Begin {
            step: Step(8),
            stream_len_bytes: 8192,
            cut_bytes: 65536,
            pipelined: false,
            may_shrink: true,
            kept: true,
            goes: Goes::to(&[Level::Node]).unwrap(),
        },
        Descriptor::Refers { step: Step(5) },
        Descriptor::Segment {
            pool_at_bytes: 0,
            len_bytes: 4096,
            chunk: Some(0),
        },
        Descriptor::Segment {
            pool_at_bytes: 65536,
            len_bytes: 4096,
            chunk: None,
        },
        Descriptor::Record {
            pool_at_bytes: 4096,
            len_bytes: 77,
            chunk: 3,
        },
        Descriptor::Seal,
        Descriptor::Fail,
    ];
    for descriptor in all {
        index
            .push(1, WriterId(0), descriptor, Duration::ZERO)
            .unwrap();
    }
    for descriptor in all {
        assert_eq!(index.pop(1).unwrap(), Some(descriptor));
    }
    assert_eq!(index.pop(1).unwrap(), None);
    assert_eq!(index.pop(0).unwrap(), None);
    let full = (0..100).find_map(|_| {
        index
            .push(0, WriterId(0), Descriptor::Seal, Duration::from_millis(1))
            .err()
    });
    assert_eq!(full.unwrap().kind(), ErrorKind::Unavailable);
}

// Breaks if: each descriptor wakes the CP-thread, or a ring that is full does not.
#[test]
fn quiet_descriptors_wake_nobody_unless_the_ring_is_full() {
    let shape = IndexShape {
        ranks: 1,
        writers: 1,
    };
    let pool = pool(shape);
    let index = Index::new(&pool, shape);
    let before = index.writer_news(WriterId(0));
    let push = || {
        let descriptor = Descriptor::Refers { step: Step(5) };
        index.push_quietly(0, WriterId(0), descriptor, Duration::ZERO)
    };
    for _ in 0..16 {
        push().unwrap();
    }
    assert_eq!(index.writer_news(WriterId(0)), before);
    assert_eq!(push().unwrap_err().kind(), ErrorKind::Unavailable);
    assert_ne!(index.writer_news(WriterId(0)), before);
}

// Breaks if: CP-threads are woken while ranks of the node are still in their calls, or never.
#[test]
fn the_last_rank_that_returns_wakes_the_cp_threads() {
    let shape = IndexShape {
        ranks: 3,
        writers: 2,
    };
    let pool = pool(shape);
    let index = Index::new(&pool, shape);
    let news = || [0, 1].map(|writer| index.writer_news(WriterId(writer)));
    for _turn in 0..2 {
        let before = news();
        index.note_return();
        index.note_return();
        assert_eq!(news(), before);
        index.note_return();
        assert!(news()[0] != before[0] && news()[1] != before[1]);
    }
}

#[test]
fn the_board_keeps_the_first_loss_and_forgets_old_steps() {
    let shape = IndexShape {
        ranks: 1,
        writers: 1,
    };
    let pool = pool(shape);
    let index = Index::new(&pool, shape);
    assert_eq!(index.outcome(Step(3), Level::Global), Outcome::Pending);
    let cause = Error::no_space("x".repeat(1000));
    index.publish(Step(3), Level::Global, &Outcome::Lost(cause));
    index.publish(
        Step(3),
        Level::Global,
        &Outcome::Lost(Error::internal("later")),
    );
    let Outcome::Lost(error) = index.outcome(Step(3), Level::Global) else {
        panic!("lost")
    };
    assert_eq!(error.kind(), ErrorKind::NoSpace);
    assert_eq!(error.message().len(), MAX_TEXT_BYTES);
    assert_eq!(index.outcome(Step(3), Level::Node), Outcome::Pending);
    for step in 4..4 + u64::from(BOARD_STEPS) {
        index.publish(Step(step), Level::Node, &Outcome::Committed);
    }
    assert_eq!(index.outcome(Step(3), Level::Global), Outcome::Pending);
    index.publish(Step(3), Level::Node, &Outcome::Committed);
    assert_eq!(
        index.outcome(Step(3), Level::Node),
        Outcome::Pending,
        "a forgotten step takes no newer one's place"
    );
    assert_eq!(index.outcome(Step(4), Level::Node), Outcome::Committed);
    assert_eq!(index.committed_step(Level::Node), Some(Step(67)));
    assert_eq!(index.committed_step(Level::Global), None);
}

// Breaks if: the place is computed as `step % BOARD_STEPS`.
#[test]
fn steps_that_are_multiples_of_the_boards_length_do_not_push_each_other_out() {
    let shape = IndexShape {
        ranks: 1,
        writers: 1,
    };
    let pool = pool(shape);
    let index = Index::new(&pool, shape);
    for step in [128, 64, 192] {
        index.publish(Step(step), Level::Global, &Outcome::Committed);
    }
    for step in [64, 128, 192] {
        assert_eq!(index.outcome(Step(step), Level::Global), Outcome::Committed);
    }
}

// Breaks if: a rank has one place for all its reasons, or the place is computed from the step.
#[test]
fn each_snapshot_that_is_given_up_keeps_its_reason_until_it_is_read() {
    let shape = IndexShape {
        ranks: 2,
        writers: 1,
    };
    let pool = pool(shape);
    let index = Index::new(&pool, shape);
    // As many as can be in flight, at the steps of `every_steps = 16`.
    let steps = (1..=MOST_HELD).map(|n| 16 * u64::from(n));
    for step in steps.clone() {
        let why = Error::no_space(format!("why {step}"));
        index.set_reason(1, Step(step), &why);
    }
    index.set_reason(1, Step(32), &Error::no_space("why 32 again"));
    for step in steps {
        let why = index
            .reason(1, Step(step))
            .map(|why| why.message().to_owned());
        let again = if step == 32 { " again" } else { "" };
        assert_eq!(why, Some(format!("why {step}{again}")));
        assert_eq!(index.reason(0, Step(step)), None);
    }
    // The oldest one makes room.
    index.set_reason(1, Step(1000), &Error::no_space("newest"));
    assert!(index.reason(1, Step(1000)).is_some());
    assert_eq!(index.reason(1, Step(16)), None);
}

// Breaks if: a loss keeps the kind of its cause; a wait would report that the call, or its step, is
// wrong.
#[test]
fn a_loss_is_never_of_the_kind_of_a_wrong_call() {
    let shape = IndexShape {
        ranks: 1,
        writers: 1,
    };
    let pool = pool(shape);
    let index = Index::new(&pool, shape);
    for (step, kind) in (1..).zip(ErrorKind::ALL) {
        let lost = Outcome::Lost(Error::new(kind, "cause").with(Detail::Undecided));
        index.publish(Step(step), Level::Global, &lost);
        let Outcome::Lost(error) = index.outcome(Step(step), Level::Global) else {
            panic!("lost")
        };
        let expected = match kind {
            ErrorKind::Invalid | ErrorKind::NotFound => ErrorKind::Unavailable,
            other => other,
        };
        assert_eq!(error.kind(), expected);
        assert!(error.is(Detail::Undecided), "{kind}");
    }
}

#[test]
fn every_level_keeps_its_own_cause() {
    let shape = IndexShape {
        ranks: 1,
        writers: 1,
    };
    let pool = pool(shape);
    let index = Index::new(&pool, shape);
    index.publish(
        Step(1),
        Level::Node,
        &Outcome::Lost(Error::no_space("the local disk is full")),
    );
    index.publish(
        Step(1),
        Level::Global,
        &Outcome::Lost(Error::unavailable("ost3 is gone")),
    );
    for (level, text) in [
        (Level::Node, "the local disk is full"),
        (Level::Global, "ost3 is gone"),
    ] {
        let Outcome::Lost(error) = index.outcome(Step(1), level) else {
            panic!("lost")
        };
        assert_eq!(error.message(), text);
    }
}

// Breaks if: what is declared of a snapshot replaces what was declared of one that is still in the
// pool; holders would set too little aside for that one.
#[test]
fn each_snapshot_keeps_what_was_declared_of_it() {
    let shape = IndexShape {
        ranks: 2,
        writers: 1,
    };
    let pool = pool(shape);
    let index = Index::new(&pool, shape);
    // As many as can be in flight, and one that is then skipped.
    let turns = 40..=40 + u64::from(MOST_HELD);
    let of = |turn: u64| (Step(turn * 16), 1000 * (100 - turn));
    for turn in turns.clone() {
        let (step, bytes) = of(turn);
        index.declare_bytes(1, (turn, step), bytes);
    }
    for turn in turns {
        let (step, bytes) = of(turn);
        assert_eq!(index.declared_bytes(1, step), bytes);
        assert_eq!(index.declared_bytes(0, step), 0);
    }
    // The next one has the turn of the skipped one.
    let (step, turn) = (Step(900), 40 + u64::from(MOST_HELD));
    index.declare_bytes(1, (turn, step), 7);
    assert_eq!(index.declared_bytes(1, step), 7);
    assert_eq!(index.declared_bytes(1, of(turn).0), 0);
}
