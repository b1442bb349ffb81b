//! Tests the multilevel model against one level and against first-order theory (against random
//! failures: `life.rs`).
#![allow(clippy::unwrap_used)]

use orcheck_interval::{Level, Levels, Pattern, Single};
use proptest::prelude::*;

fn level(checkpoint_s: f64, safe_after_s: f64, restart_s: f64, mtbf_s: f64) -> Level {
    Level {
        checkpoint_s,
        safe_after_s,
        restart_s,
        mtbf_s,
    }
}

// Breaks if: the chain counts a restart twice, or begins a segment again without its checkpoint.
#[test]
fn one_level_is_the_closed_form() {
    for (checkpoint_s, restart_s, mtbf_s) in [
        (1.0, 0.0, 100.0),
        (5.0, 10.0, 900.0),
        (300.0, 600.0, 86_400.0),
        (1.0, 50.0, 60.0),
    ] {
        let single = Single {
            checkpoint_s,
            restart_s,
            mtbf_s,
        };
        let levels = Levels(vec![level(checkpoint_s, 0.0, restart_s, mtbf_s)]);
        for interval_s in [
            single.best_s() / 3.0,
            single.best_s(),
            single.best_s() * 3.0,
        ] {
            let pattern = Pattern {
                interval_s,
                every: vec![1],
            };
            let (found, expected) = (
                levels.efficiency(&pattern).unwrap(),
                single.efficiency(interval_s),
            );
            assert!((found / expected - 1.0).abs() < 1e-9, "{found} {expected}");
        }
        let best = levels.recommend().unwrap();
        assert!(
            (best.pattern.interval_s / single.best_s() - 1.0).abs() < 1e-3,
            "{best:?}"
        );
    }
}

/// Benoit et al. (IEEE Transactions on Computers 66(7), 2017): with failures that almost never
/// come, the least overhead of nested levels is the sum of √(2 λ C) over the levels, where C is
/// what the level costs beside the lower ones.
// Breaks if: digits are lost where a failure in a segment is next to impossible; jobs then compute
// more than all the time.
#[test]
fn failures_that_all_but_never_come_cost_nothing() {
    for mtbf_s in [1e15, 1e30, 1e250] {
        let levels = Levels(vec![level(1.0, 11.0, 1e7, mtbf_s)]);
        let pattern = Pattern {
            interval_s: 100.0,
            every: vec![1],
        };
        let efficiency = levels.efficiency(&pattern).unwrap();
        assert!(
            (efficiency - 100.0 / 101.0).abs() < 1e-7,
            "{mtbf_s}: {efficiency}"
        );
        assert!(levels.recommend().unwrap().efficiency <= 1.0);
    }
}

#[test]
fn the_overhead_is_that_of_the_first_order() {
    let (costs, mtbfs): ([f64; 3], [f64; 3]) = ([1.0, 16.0, 100.0], [1e8, 1e9, 1e10]);
    let mut cost_s = 0.0;
    let levels = costs.iter().zip(mtbfs).map(|(own_s, mtbf_s)| {
        cost_s += own_s;
        level(cost_s, 0.0, 0.0, mtbf_s)
    });
    let best = Levels(levels.collect()).recommend().unwrap();
    let expected: f64 = costs
        .iter()
        .zip(mtbfs)
        .map(|(own_s, mtbf_s)| (2.0 * own_s / mtbf_s).sqrt())
        .sum();
    let found = 1.0 / best.efficiency - 1.0;
    assert!(
        (found / expected - 1.0).abs() < 0.02,
        "{found} {expected} {best:?}"
    );
}

#[test]
fn nonsense_is_refused() {
    let fine = level(1.0, 0.0, 1.0, 100.0);
    let refused = |levels: Vec<Level>, every: Vec<u32>, interval_s: f64, text: &str| {
        let error = Levels(levels)
            .efficiency(&Pattern { interval_s, every })
            .unwrap_err();
        assert!(error.message().contains(text), "{error}");
    };
    refused(vec![], vec![], 1.0, "0 levels: expected 1 to 8");
    refused(
        vec![level(0.0, 0.0, 1.0, 100.0)],
        vec![1],
        1.0,
        "checkpoint, seconds",
    );
    refused(
        vec![fine, level(1.0, f64::NAN, 1.0, 100.0)],
        vec![1, 1],
        1.0,
        "level 2",
    );
    refused(
        vec![level(5.0, 0.0, 1.0, 4.0)],
        vec![1],
        1.0,
        "expected more than the 5 s of a checkpoint",
    );
    refused(vec![fine, fine], vec![1, 0], 1.0, "pattern [1, 0]");
    refused(
        vec![fine],
        vec![2],
        1.0,
        "pattern [2]: expected a number for each of 1 levels",
    );
    refused(
        vec![fine, fine, fine],
        vec![1, 4, 6],
        1.0,
        "each a multiple of the one before",
    );
    refused(vec![fine], vec![1], 0.0, "interval, seconds");
    refused(
        vec![fine, level(2.0, 9.0, 1.0, 100.0)],
        vec![1, 4],
        2.0,
        "level 2: expected it to be reached within the 8 s",
    );
    refused(
        vec![fine, level(2.0, 0.0, 1e4, 100.0)],
        vec![1, 1],
        1e6,
        "never makes progress",
    );
    assert_eq!(
        Levels(vec![level(1.0, 0.0, 1.0, f64::INFINITY)])
            .efficiency(&Pattern {
                interval_s: 9.0,
                every: vec![1]
            })
            .unwrap(),
        0.9
    );
}

// Breaks if: a level that is reached late keeps the lower ones from being taken often, or more of
// them pass one on its way than a job remembers, or no pattern passes for one.
#[test]
fn a_level_that_is_reached_late_is_taken_rarely() {
    let late = Levels(vec![
        level(1.0, 0.0, 30.0, 3600.0),
        level(2.0, 43_200.0, 300.0, 864_000.0),
    ]);
    let found = late.recommend().unwrap();
    assert!(
        found.efficiency > 0.83 && (685.0..687.0).contains(&found.pattern.interval_s),
        "{found:?}"
    );
    let never = Levels(vec![
        level(1.0, 0.0, 1.0, 86_400.0),
        level(2.0, 6e11, 1.0, 864_000.0),
    ]);
    assert!(
        never
            .recommend()
            .unwrap_err()
            .message()
            .contains("never makes progress")
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 15, ..ProptestConfig::default() })]

    // Breaks if: rarer failures, cheaper checkpoints or faster restarts ever make it worse.
    #[test]
    fn it_gets_better_with_what_gets_better(
        costs in (0.1f64..5.0, 0.1f64..50.0), after in 0.0f64..30.0, restarts in (0.0f64..20.0, 0.0f64..200.0), mtbf in (200.0f64..1e5, 1e3f64..1e6), which in 0..4,
    ) {
        let levels = vec![level(costs.0, 0.0, restarts.0, mtbf.0), level(costs.0 + costs.1, after, restarts.0 + restarts.1, mtbf.1)];
        let mut better = levels.clone();
        match which {
            0 => better[1].mtbf_s *= 1.1,
            1 => better[1].checkpoint_s -= costs.1 * 0.1,
            2 => better[0].restart_s *= 0.9,
            _ => better[1].safe_after_s *= 0.9,
        }
        let found = Levels(levels).recommend().unwrap();
        prop_assert!(found.efficiency > 0.0 && found.efficiency < 1.0);
        // What was recommended does better there too; climbing may end elsewhere.
        prop_assert!(Levels(better).efficiency(&found.pattern).unwrap() >= found.efficiency * (1.0 - 1e-9));
    }
}

// Breaks if: the answer that a job waits for is another one where there is time for the best, or a
// pattern is given out in which a level is not reached.
#[test]
fn the_answer_that_a_job_waits_for_is_nearly_the_best() {
    let node = |cost_s, mtbf_s| level(cost_s, cost_s, cost_s, mtbf_s);
    for levels in [
        vec![node(1.0, 21_600.0), level(2.0, 300.0, 300.0, 864_000.0)],
        vec![node(0.5, 2_000.0), level(4.0, 9.0, 9.0, 40_000.0)],
        vec![node(2.0, 5_000.0)],
    ] {
        let levels = Levels(levels);
        let soon = levels.recommend_soon().unwrap();
        let best = levels.recommend().unwrap();
        let found = levels.efficiency(&soon).unwrap();
        assert!(found > best.efficiency - 1e-3, "{soon:?} {found} {best:?}");
    }
    // Levels that lie far apart: nearly what first-order theory says of them.
    let far = Levels(vec![node(0.1, 3_600.0), level(5.0, 200.0, 600.0, 2e6)]);
    let found = far.efficiency(&far.recommend_soon().unwrap()).unwrap();
    let overhead = (2.0f64 * 0.1 / 3_600.0).sqrt() + (2.0f64 * 4.9 / 2e6).sqrt();
    assert!(found > 1.0 - 1.2 * overhead, "{found} {overhead}");
    let hopeless = Levels(vec![level(40.0, 1.0, 1.0, 30.0)]);
    assert!(hopeless.recommend_soon().is_err());
}
