//! The multilevel model, held against one level, against first-order theory, and against runs with drawn failures.
#![allow(clippy::unwrap_used)]

use orcheck_plan::interval::Single;
use orcheck_plan::levels::{Level, Levels, Pattern};
use proptest::prelude::*;
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

fn level(checkpoint_s: f64, safe_after_s: f64, restart_s: f64, mtbf_s: f64) -> Level {
    Level {
        checkpoint_s,
        safe_after_s,
        restart_s,
        mtbf_s,
    }
}

// Breaks if: the chain counts a restart twice, or begins a segment anew without its checkpoint.
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

/// Benoit et al. (IEEE Transactions on Computers 66(7), 2017): with failures that almost never come, the least overhead of nested
/// levels is the sum of √(2 λ C) over the levels, where C is what the level costs beside the lower ones.
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

/// A run with drawn failures, by the description of the model alone: time until so much is computed, as a share of it.
fn run(levels: &[Level], pattern: &Pattern, segments: u64, random: &mut Xoshiro256PlusPlus) -> f64 {
    let mut uniform = || (random.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
    let rate: f64 = levels.iter().map(|level| 1.0 / level.mtbf_s).sum();
    let until_failure =
        |uniform: &mut dyn FnMut() -> f64| (-(1.0 - uniform()).ln() / rate, uniform());
    let which = |drawn: f64| {
        let mut left = drawn * rate;
        levels
            .iter()
            .position(|level| {
                left -= 1.0 / level.mtbf_s;
                left < 0.0
            })
            .unwrap_or(levels.len() - 1)
    };
    let cost_s = |place: u64| {
        levels[pattern.level_of((place % u64::from(pattern.period())) as u32)].checkpoint_s
    };
    // For each level: places of its checkpoints, and when each has reached it.
    let mut there: Vec<Vec<(u64, f64)>> = vec![vec![(0, f64::NEG_INFINITY)]; levels.len()];
    let (mut now_s, mut place) = (0.0, 0u64);
    let (mut left_s, mut drawn) = until_failure(&mut uniform);
    while place < segments {
        let length_s = pattern.interval_s + cost_s(place + 1);
        if left_s >= length_s {
            (now_s, left_s, place) = (now_s + length_s, left_s - length_s, place + 1);
            for (number, level) in levels.iter().enumerate() {
                if place.is_multiple_of(pattern.every[number].into()) {
                    there[number].push((place, now_s + level.safe_after_s));
                }
            }
            continue;
        }
        now_s += left_s;
        let mut needs = which(drawn);
        let failed_s = now_s;
        loop {
            (left_s, drawn) = until_failure(&mut uniform);
            if left_s >= levels[needs].restart_s {
                left_s -= levels[needs].restart_s;
                now_s += levels[needs].restart_s;
                break;
            }
            now_s += left_s;
            needs = needs.max(which(drawn));
        }
        let back = there[needs]
            .iter()
            .rev()
            .find(|(_, at_s)| *at_s <= failed_s)
            .unwrap()
            .0;
        place = back;
        for of_level in &mut there {
            of_level.retain(|(at, _)| *at <= back);
        }
    }
    now_s / (segments as f64 * pattern.interval_s)
}

// Breaks if: a level counts before it is reached, a failure in a restart is forgotten, or work is counted that has to be done again.
#[test]
fn the_model_agrees_with_drawn_failures() {
    let mut random = Xoshiro256PlusPlus::seed_from_u64(6);
    for (levels, every) in [
        (
            vec![level(1.0, 0.0, 2.0, 300.0), level(10.0, 0.0, 20.0, 3000.0)],
            vec![1, 6],
        ),
        (
            vec![level(1.0, 0.0, 2.0, 300.0), level(1.5, 60.0, 20.0, 3000.0)],
            vec![1, 4],
        ),
        (
            vec![
                level(0.5, 0.0, 1.0, 200.0),
                level(0.6, 5.0, 5.0, 1000.0),
                level(1.0, 100.0, 60.0, 5000.0),
            ],
            vec![1, 2, 8],
        ),
        (vec![level(2.0, 15.0, 30.0, 150.0)], vec![1]),
        (
            vec![level(1.0, 0.0, 50.0, 100.0), level(4.0, 0.0, 100.0, 700.0)],
            vec![1, 3],
        ),
    ] {
        for interval_s in [18.0, 40.0] {
            let pattern = Pattern {
                interval_s,
                every: every.clone(),
            };
            let expected = 1.0 / Levels(levels.clone()).efficiency(&pattern).unwrap();
            let runs: Vec<f64> = (0..40)
                .map(|_| run(&levels, &pattern, 4000, &mut random))
                .collect();
            let found = runs.iter().sum::<f64>() / runs.len() as f64;
            assert!(
                (found / expected - 1.0).abs() < 0.02,
                "{pattern:?}: model {expected}, runs {found}"
            );
        }
    }
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
        "never gets on",
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

proptest! {
    #![proptest_config(ProptestConfig { cases: 30, ..ProptestConfig::default() })]

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
