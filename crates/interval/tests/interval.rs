//! Tests the rules for the interval against published values, against each other and against the
//! least expected time, and the overhead against the document.
#![allow(clippy::unwrap_used)]

use orcheck_interval::{Overhead, Single};
use proptest::prelude::*;

const MIN: f64 = 60.0;
const HOUR: f64 = 3600.0;

fn single(checkpoint_s: f64, restart_s: f64, mtbf_s: f64) -> Single {
    let single = Single {
        checkpoint_s,
        restart_s,
        mtbf_s,
    };
    single.check().unwrap();
    single
}

/// Daly (2006), figures 3 to 5: δ = 5 min, R = 10 min, and the interval that his rule predicts, in
/// minutes.
#[test]
fn the_higher_order_rule_gives_the_published_intervals() {
    for (mtbf_s, expected_min) in [(24.0 * HOUR, 117.0), (6.0 * HOUR, 57.0), (15.0 * MIN, 9.1)] {
        let found_min = single(5.0 * MIN, 10.0 * MIN, mtbf_s).daly_s() / MIN;
        let digits = if expected_min < 10.0 { 0.05 } else { 0.5 };
        assert!(
            (found_min - expected_min).abs() <= digits,
            "{mtbf_s}: {found_min}"
        );
    }
}

/// Low et al. (Distributed GraphLab, PVLDB 5(8), 2012): 64 machines, one failure a year each, 2
/// minutes: every 3 hours.
#[test]
fn the_first_order_rule_gives_the_published_interval() {
    let found_s = single(2.0 * MIN, 0.0, 365.25 * 24.0 * HOUR / 64.0).young_s();
    assert!((found_s / HOUR - 3.0).abs() < 0.05, "{found_s}");
}

/// Daly's rule is a series for the exact interval: the less a checkpoint costs, the closer.
#[test]
fn the_rules_come_together_where_checkpoints_cost_little() {
    for (share, daly_off, young_off) in [
        (1e-1, 1e-3, 0.2),
        (1e-2, 1e-4, 0.06),
        (1e-4, 1e-6, 6e-3),
        (1e-8, 1e-8, 6e-5),
    ] {
        let of = single(share * 1e6, 0.0, 1e6);
        let off = |interval_s: f64| (interval_s / of.best_s() - 1.0).abs();
        assert!(off(of.daly_s()) < daly_off, "{share}: {}", off(of.daly_s()));
        assert!(
            off(of.young_s()) < young_off,
            "{share}: {}",
            off(of.young_s())
        );
    }
}

/// With failures that almost never come, what is left of the overhead is √(2δ/M).
#[test]
fn the_waste_is_that_of_the_first_order() {
    let of = single(1.0, 0.0, 1e8);
    let waste = 1.0 / of.efficiency(of.best_s()) - 1.0;
    assert!(
        (waste / (2.0f64 / 1e8).sqrt() - 1.0).abs() < 1e-3,
        "{waste}"
    );
}

#[test]
fn nonsense_is_refused() {
    let refused = |checkpoint_s, restart_s, mtbf_s, text: &str| {
        let message = Single {
            checkpoint_s,
            restart_s,
            mtbf_s,
        }
        .check()
        .unwrap_err()
        .message()
        .to_owned();
        assert!(message.contains(text), "{message}");
    };
    refused(-1.0, 0.0, 10.0, "checkpoint, seconds: expected");
    refused(f64::NAN, 0.0, 10.0, "found NaN");
    refused(1.0, -0.5, 10.0, "restart, seconds: expected 0 to");
    refused(
        1.0,
        0.0,
        f64::INFINITY,
        "mean time between failures, seconds",
    );
    refused(
        10.0,
        0.0,
        9.0,
        "mean time between failures 9 s: expected more than the 10 s of a checkpoint",
    );
}

/// The worked example of the document about threads: 2 checkpoints of 6.25 GB a node, 40 GB/s, m =
/// 7.
const EXAMPLE: Overhead = Overhead {
    checkpoints: 2,
    bytes: 6.25e9,
    node_bytes: 6.25e9,
    io_bytes_per_s: 0.25e9,
    memory_bytes_per_s: 40e9,
    memory_passes: 7.0,
};

#[test]
fn the_overhead_of_the_worked_example() {
    EXAMPLE.check().unwrap();
    assert!((EXAMPLE.asynchronous_s() - 2.1875).abs() < 1e-12); // the document rounds to 2.2
    assert!((EXAMPLE.synchronous_s() - 50.0).abs() < 1e-12);
    assert_eq!(EXAMPLE.checkpoints_max(100.0), 4);
    assert_eq!(EXAMPLE.checkpoints_max(24.9), 0);
    for (wrong, text) in [
        (
            Overhead {
                bytes: 0.0,
                ..EXAMPLE
            },
            "bytes of a checkpoint",
        ),
        (
            Overhead {
                node_bytes: 7e9,
                ..EXAMPLE
            },
            "bytes of a node's part",
        ),
        (
            Overhead {
                io_bytes_per_s: -3.0,
                ..EXAMPLE
            },
            "bytes/s of the file system",
        ),
        (
            Overhead {
                memory_bytes_per_s: f64::NAN,
                ..EXAMPLE
            },
            "found NaN",
        ),
        (
            Overhead {
                memory_passes: 0.0,
                ..EXAMPLE
            },
            "passes over the memory",
        ),
    ] {
        let message = wrong.check().unwrap_err().message().to_owned();
        assert!(message.contains(text), "{message}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    // Breaks if: the best interval is not the best, shrinks with M or δ, or an efficiency leaves
    // its range.
    #[test]
    fn the_best_interval_is_the_best(ln_cost in -9.0f64..6.0, ln_share in -16.0f64..-0.05, restart in 0.0f64..3.0, other in 0.2f64..5.0) {
        let checkpoint_s = ln_cost.exp();
        let mtbf_s = checkpoint_s / ln_share.exp();
        let of = single(checkpoint_s, restart * checkpoint_s, mtbf_s);
        let best_s = of.best_s();
        prop_assert!(best_s > 0.0 && best_s < mtbf_s);
        let efficiency = of.efficiency(best_s);
        prop_assert!(efficiency > 0.0 && efficiency < 1.0);
        prop_assert!(of.efficiency(best_s * other) <= efficiency * (1.0 + 1e-12));
        prop_assert!(of.efficiency(of.daly_s()) <= efficiency * (1.0 + 1e-12));
        let longer = single(checkpoint_s, restart * checkpoint_s, mtbf_s * 1.01);
        prop_assert!(longer.best_s() > best_s && longer.young_s() > of.young_s() && longer.daly_s() > of.daly_s());
        prop_assert!(longer.efficiency(longer.best_s()) > efficiency);
        let dearer = Single { checkpoint_s: checkpoint_s * 1.01, ..of };
        prop_assert!(dearer.best_s() > best_s);
    }
}
