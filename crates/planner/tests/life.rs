//! Tests simulated lives of a job against the closed form, against the multilevel model, and
//! against what each event reports.
#![allow(clippy::unwrap_used)]

use orcheck_interval::{Level, Levels, Pattern, Single};
use orcheck_planner::life::{Failures, Job, Life};
use proptest::prelude::*;

fn level(checkpoint_s: f64, safe_after_s: f64, restart_s: f64, mtbf_s: f64) -> Level {
    Level {
        checkpoint_s,
        safe_after_s,
        restart_s,
        mtbf_s,
    }
}

fn job(levels: Vec<Level>, every: Vec<u32>, interval_s: f64, work_s: f64) -> Job {
    Job {
        work_s,
        levels: Levels(levels),
        pattern: Pattern { interval_s, every },
        failures: Failures::Exponential,
    }
}

fn mean(job: &Job, runs: u64, of: impl Fn(&Life) -> f64) -> f64 {
    (0..runs)
        .map(|number| of(&job.live(1, number).unwrap()))
        .sum::<f64>()
        / runs as f64
}

// Breaks if: a failure in a checkpoint or a restart is left out, or a segment continues where it
// was.
#[test]
fn one_level_takes_as_long_as_the_closed_form_says() {
    for (checkpoint_s, restart_s, mtbf_s) in [
        (1.0, 2.0, 100.0),
        (5.0, 10.0, 900.0),
        (10.0, 40.0, 120.0),
        (0.1, 0.0, 1000.0),
    ] {
        let single = Single {
            checkpoint_s,
            restart_s,
            mtbf_s,
        };
        for factor in [0.3, 1.0, 3.0] {
            let interval_s = single.best_s() * factor;
            let job = job(
                vec![level(checkpoint_s, 0.0, restart_s, mtbf_s)],
                vec![1],
                interval_s,
                interval_s * 2000.0,
            );
            let found = mean(&job, 300, |life| life.total_s);
            let expected = single.expected_s(job.work_s, interval_s);
            assert!(
                (found / expected - 1.0).abs() < 0.01,
                "{single:?} {interval_s}: {found} {expected}"
            );
        }
    }
}

// Breaks if: a level counts before it is reached, a failure in a restart is forgotten, or work is
// counted that has to be done again.
#[test]
fn several_levels_take_as_long_as_the_model_says() {
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
            let job = job(
                levels.clone(),
                every.clone(),
                interval_s,
                interval_s * 4800.0,
            );
            let found = mean(&job, 60, |life| life.total_s);
            let expected = job.work_s / job.levels.efficiency(&job.pattern).unwrap();
            assert!(
                (found / expected - 1.0).abs() < 0.02,
                "{:?} {:?}: {found} {expected}",
                job.levels,
                job.pattern
            );
        }
    }
}

/// A program that waits for its checkpoints, with failures that often strike while it waits for the
/// stronger level.
// Breaks if: such a failure loses what the weaker level has already, or the stronger one never gets
// its checkpoint.
#[test]
fn a_stronger_level_that_is_waited_for_takes_as_long_as_the_model_says() {
    let levels = vec![level(0.1, 0.0, 0.3, 4.0), level(2.0, 0.0, 2.0, 60.0)];
    for (interval_s, ratio) in [(2.6, 1), (0.8, 4), (0.8, 11), (3.0, 2)] {
        let job = job(
            levels.clone(),
            vec![1, ratio],
            interval_s,
            interval_s * 5280.0,
        );
        let found = mean(&job, 40, |life| life.total_s);
        let expected = job.work_s / job.levels.efficiency(&job.pattern).unwrap();
        assert!(
            (found / expected - 1.0).abs() < 0.01,
            "{interval_s} {ratio}: {found} {expected}"
        );
    }
    let three = vec![
        level(0.1, 0.0, 0.2, 10.0),
        level(0.5, 0.0, 0.5, 40.0),
        level(2.0, 0.0, 2.0, 200.0),
    ];
    let job = job(three, vec![1, 3, 12], 1.0, 12000.0);
    let found = mean(&job, 40, |life| life.total_s);
    let expected = job.work_s / job.levels.efficiency(&job.pattern).unwrap();
    assert!((found / expected - 1.0).abs() < 0.01, "{found} {expected}");
}

#[test]
fn without_failures_nothing_is_lost() {
    // Two whole segments and a half one; the second checkpoint is of the higher level.
    let job = job(
        vec![
            level(1.0, 0.0, 9.0, f64::INFINITY),
            level(3.0, 0.0, 9.0, f64::INFINITY),
        ],
        vec![1, 2],
        10.0,
        25.0,
    );
    let life = job.live(1, 1).unwrap();
    assert_eq!(
        (
            life.total_s,
            life.checkpoints_s,
            life.lost_s,
            life.restarts_s
        ),
        (30.0, 5.0, 0.0, 0.0)
    );
    assert!(life.done && life.events.is_empty() && life.failures == [0, 0]);
}

// Breaks if: the mean of a distribution is not what was asked for, or a trace ends.
#[test]
fn failures_come_as_often_as_they_should() {
    let of = |failures: Failures| {
        let mut job = job(
            vec![
                level(0.01, 0.0, 0.01, 100.0),
                level(0.02, 0.0, 0.02, 1000.0),
            ],
            vec![1, 5],
            1.0,
            20_000.0,
        );
        job.failures = failures;
        [0, 1].map(|of_level| {
            mean(&job, 40, |life| {
                life.failures[of_level] as f64 / life.total_s
            })
        })
    };
    for failures in [
        Failures::Exponential,
        Failures::Weibull { shape: 0.7 },
        Failures::Weibull { shape: 2.0 },
    ] {
        let [low, high] = of(failures.clone());
        assert!(
            (low * 100.0 - 1.0).abs() < 0.05 && (high * 1000.0 - 1.0).abs() < 0.1,
            "{failures:?} {low} {high}"
        );
    }
    // A run that is shorter than the time between failures has as many as a long one, for its
    // length.
    for shape in [0.5, 1.0, 3.0] {
        let mut short = job(vec![level(0.01, 0.0, 0.01, 1000.0)], vec![1], 10.0, 200.0);
        short.failures = Failures::Weibull { shape };
        let failures = mean(&short, 4000, |life| life.failures[0] as f64 / life.total_s);
        assert!(
            (failures * 1000.0 - 1.0).abs() < 0.15,
            "{shape}: {failures}"
        );
    }
    // Five failures in 1000 s, one of which needs the higher level.
    let trace = vec![(10.0, 0), (200.0, 0), (300.0, 1), (310.0, 0), (1000.0, 0)];
    let [low, high] = of(Failures::Trace(trace));
    assert!(
        (low * 250.0 - 1.0).abs() < 0.03 && (high * 1000.0 - 1.0).abs() < 0.03,
        "{low} {high}"
    );
}

#[test]
fn a_run_that_never_gets_on_ends() {
    let job = job(vec![level(1.0, 0.0, 1.0, 2.0)], vec![1], 100.0, 200.0);
    let life = job.live(1, 1).unwrap();
    assert!(!life.done && life.total_s > 1e6);
    // This many failures that no time passes between them.
    let dense = Job {
        failures: Failures::Trace(vec![(1e-9, 0)]),
        ..job
    };
    assert!(!dense.live(1, 1).unwrap().done);
}

#[test]
fn nonsense_is_refused() {
    let fine = job(vec![level(1.0, 0.0, 1.0, 100.0)], vec![1], 10.0, 100.0);
    assert!(fine.check().is_ok());
    let with = |failures: Failures| Job {
        failures,
        ..fine.clone()
    };
    for (wrong, text) in [
        (
            with(Failures::Trace(vec![])),
            "the trace of failures is empty",
        ),
        (
            with(Failures::Trace(vec![(2.0, 0), (1.0, 0)])),
            "failure 2 of the trace: expected a time above 0 and not before 2 s, found 1 s",
        ),
        (
            with(Failures::Trace(vec![(f64::NAN, 0)])),
            "failure 1 of the trace",
        ),
        (
            with(Failures::Trace(vec![(1.0, 1)])),
            "expected one of 1 levels, found number 2",
        ),
        (
            with(Failures::Weibull { shape: 0.0 }),
            "shape of the Weibull distribution: expected 0.1 to",
        ),
        (
            Job {
                work_s: -1.0,
                ..fine.clone()
            },
            "work, seconds",
        ),
        (
            job(vec![level(9.0, 0.0, 1.0, 2.0)], vec![1], 10.0, 100.0),
            "expected more than the 9 s of a checkpoint",
        ),
        (
            job(vec![level(1.0, 0.0, 1.0, 100.0)], vec![3], 10.0, 100.0),
            "pattern [3]",
        ),
    ] {
        let message = wrong.live(1, 1).unwrap_err().message().to_owned();
        assert!(message.contains(text), "{message}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    // Breaks if: time is counted twice or not at all, or a job continues from where no checkpoint
    // of its level was.
    #[test]
    fn the_parts_add_up_and_every_failure_goes_back_to_a_checkpoint(
        number in any::<u64>(), interval_s in 1.0f64..50.0, segments in 1.0f64..60.0, mtbf_s in 200.0f64..1000.0,
        after_s in 0.0f64..1.0, restart_s in 0.0f64..40.0, ratio in 1u32..6, shape in 0.5f64..2.0,
    ) {
        let levels = vec![level(0.5, 0.0, restart_s, mtbf_s), level(2.0, after_s * interval_s * f64::from(ratio), restart_s * 2.0, mtbf_s * 4.0)];
        let mut job = job(levels, vec![1, ratio], interval_s, interval_s * segments);
        job.failures = Failures::Weibull { shape };
        let life = job.live(7, number).unwrap();
        prop_assert!(life.done);
        let parts_s = job.work_s + life.checkpoints_s + life.restarts_s + life.lost_s;
        prop_assert!((life.total_s / parts_s - 1.0).abs() < 1e-9, "{} {parts_s}", life.total_s);
        prop_assert_eq!(&life, &job.live(7, number).unwrap());
        for event in &life.events {
            let whole_s = (event.back_to_s / interval_s).round() * interval_s;
            let off = (whole_s - event.back_to_s).abs().min((job.work_s - event.back_to_s).abs());
            prop_assert!(off < 1e-6 && event.back_to_s <= event.reached_s + 1e-9, "{event:?}");
            prop_assert!(event.again_s >= event.at_s + job.levels.0[event.level].restart_s - 1e-9);
            // Of what is safe at once, only the segment under way is done again.
            if event.level == 0 {
                prop_assert!(event.reached_s - event.back_to_s <= interval_s * (1.0 + 1e-9), "{event:?}");
            }
        }
    }
}
