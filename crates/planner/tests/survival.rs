//! Tests the survival of a job against the document, against counting, and against trials.
#![allow(clippy::unwrap_used)]

use orcheck_format::{Epoch, JobName, NodeId, RunId, Step};
use orcheck_placement::{Domains, Draw};
use orcheck_planner::survival::{
    BLOCK_TRIALS, Found, Redundancy, Setup, TABLE_1, TABLE_1_PERCENT, Trials, agreement,
};
use proptest::prelude::*;

use Redundancy::{Group, Partner, Peers, Random};

/// The document counted in some other way: eight of its 108 entries are off by one or two.
#[test]
fn table_1_of_the_document() {
    let (mut alike, mut all) = (0, 0);
    for (nodes, row) in TABLE_1 {
        for (at, expected) in row.into_iter().enumerate() {
            let setup = Setup::alone(
                nodes,
                Random {
                    replicas: 1 + at as u32 / 3,
                },
            );
            let found = setup
                .allowed(TABLE_1_PERCENT[at % 3] / 100.0)
                .unwrap()
                .unwrap();
            assert!(
                found.abs_diff(expected) <= 2,
                "{nodes} nodes, entry {at}: {found}"
            );
            alike += u32::from(found == expected);
            all += 1;
        }
    }
    assert_eq!((alike, all), (100, 108));
}

/// Which nodes have what of node `node`, as the module says, for redundancy without chance: losing
/// all of these, or more than `parity` of them.
fn holders(setup: &Setup, node: u32) -> (Vec<u32>, usize) {
    let Setup {
        nodes,
        together,
        apart,
        redundancy,
    } = *setup;
    match redundancy {
        Partner { replicas } => {
            let step = if apart { together } else { 1 };
            (
                (0..=replicas).map(|i| (node + i * step) % nodes).collect(),
                replicas as usize,
            )
        }
        Group { size, parity } => {
            let groups = nodes / size;
            let of = |node: u32| {
                if apart {
                    return node % groups;
                }
                let mut end = 0;
                (0..groups)
                    .find(|group| {
                        end += nodes / groups + u32::from(*group < nodes % groups);
                        node < end
                    })
                    .unwrap()
            };
            (
                (0..nodes).filter(|&other| of(other) == of(node)).collect(),
                parity as usize,
            )
        }
        Peers { .. } | Random { .. } => panic!("by chance"),
    }
}

/// The share of all losses of this many units that leave everything, by trying each.
fn by_counting(setup: &Setup, lost: u32) -> f64 {
    let units = setup.units();
    let (mut all, mut survived) = (0u32, 0u32);
    for set in (0u32..1 << units).filter(|set| set.count_ones() == lost) {
        let is_lost = |node: u32| set >> (node / setup.together) & 1 == 1;
        let safe = (0..setup.nodes).filter(|&node| is_lost(node)).all(|node| {
            let (nodes, most) = holders(setup, node);
            nodes.iter().filter(|&&other| is_lost(other)).count() <= most
        });
        all += 1;
        survived += u32::from(safe);
    }
    f64::from(survived) / f64::from(all)
}

fn setup(nodes: u32, together: u32, apart: bool, redundancy: Redundancy) -> Setup {
    Setup {
        nodes,
        together,
        apart,
        redundancy,
    }
}

/// Layouts of all kinds that are small enough to be counted.
fn small_layouts() -> Vec<Setup> {
    let mut all = Vec::new();
    for nodes in [6, 7, 8, 12, 13] {
        for together in [1, 2, 3, 4] {
            for apart in [false, true] {
                for replicas in 1..=4 {
                    all.push(setup(nodes, together, apart, Partner { replicas }));
                }
                for (size, parity) in [
                    (2, 1),
                    (3, 1),
                    (3, 2),
                    (4, 1),
                    (4, 2),
                    (4, 3),
                    (6, 2),
                    (6, 4),
                ] {
                    all.push(setup(nodes, together, apart, Group { size, parity }));
                }
            }
        }
    }
    all.retain(|setup| setup.check().is_ok());
    all
}

// Breaks if: a group that is larger than others counts like them, the ring is cut open, or what is
// at one switch is lost by halves.
#[test]
fn partners_and_groups_by_counting() {
    let mut exact = 0;
    for setup in small_layouts() {
        for lost in 0..=setup.units() {
            if let Some(found) = setup.exact(lost).unwrap() {
                let expected = by_counting(&setup, lost);
                assert!(
                    (found - expected).abs() < 1e-12,
                    "{setup:?} {lost}: {found} {expected}"
                );
                exact += 1;
            }
        }
    }
    assert!(exact > 500, "{exact}");
}

/// Every loss of f of n nodes, when each of the lost ones draws its k holders again: the formula by
/// counting.
#[test]
fn holders_at_random_by_counting() {
    for (nodes, replicas, lost) in [(5u32, 1u32, 2u32), (6, 2, 3), (7, 2, 5), (8, 3, 4)] {
        let (mut all, mut gone) = (0u32, 0u32);
        // Node 0 is lost with 1 … lost-1; its holders are a set of `replicas` among 1 … nodes-1.
        for set in 0u32..1 << (nodes - 1) {
            if set.count_ones() == replicas {
                all += 1;
                gone += u32::from(set >> (lost - 1) == 0);
            }
        }
        let one = 1.0 - f64::from(gone) / f64::from(all);
        let found = Setup::alone(nodes, Random { replicas })
            .exact(lost)
            .unwrap()
            .unwrap();
        assert!(
            (found - one.powi(lost as i32)).abs() < 1e-12,
            "{nodes} {replicas} {lost}: {found}"
        );
    }
}

/// The deals of [`ring`] that are tried for a probability.
const RINGS: u64 = 4000;

/// What `orcheck-placement` deals for one step, on switches as in `setup`.
fn ring(setup: &Setup, step: u64) -> Vec<Vec<NodeId>> {
    let Peers { replicas } = setup.redundancy else {
        panic!("{setup:?}")
    };
    let domains = match setup.apart {
        true => Domains::of(
            (0..setup.nodes)
                .map(|node| vec![node / setup.together])
                .collect(),
        ),
        false => Domains::none(setup.nodes),
    };
    let (job, epoch) = (
        JobName::new("cavity").unwrap(),
        Epoch {
            counter: 1,
            run: RunId([7; 16]),
        },
    );
    let draw = Draw {
        job: &job,
        epoch,
        step: Step(step),
    };
    let nodes = (0..setup.nodes).map(NodeId);
    nodes
        .map(|node| draw.holders(&domains, node, replicas).unwrap())
        .collect()
}

// Breaks if: peers are counted as if each node drew its own, or the deal is another one than the
// one that is planned with.
#[test]
fn peers_survive_what_the_deals_of_a_job_survive() {
    let mut counted = 0;
    for (nodes, together, apart, replicas) in [
        (8, 1, true, 1),
        (8, 1, true, 2),
        (7, 1, false, 1),
        (12, 3, true, 1),
        (12, 3, true, 2),
        (12, 3, false, 2),
        (13, 3, false, 1),
        (13, 3, true, 1),
    ] {
        let setup = setup(nodes, together, apart, Peers { replicas });
        let lost = replicas + 1;
        // The first units: which ones does not matter, unless one is smaller.
        let sets: Vec<u32> = (0u32..1 << setup.units())
            .filter(|set| set.count_ones() == lost)
            .collect();
        let survives = |step: u64| {
            let set = sets[step as usize % sets.len()];
            let is_lost = |node: u32| set >> (node / together) & 1 == 1;
            let holders = ring(&setup, step);
            (0..nodes).filter(|&node| is_lost(node)).all(|node| {
                holders[node as usize]
                    .iter()
                    .any(|holder| !is_lost(holder.0))
            })
        };
        let survived = (0..RINGS).filter(|&step| survives(step)).count() as u64;
        let dealt = Found {
            trials: RINGS,
            survived,
        };
        let exact = setup.exact(lost).unwrap();
        assert_eq!(exact.is_some(), nodes % together == 0, "{setup:?}");
        if let Some(exact) = exact {
            assert!(
                agreement(dealt, exact) > 1e-4,
                "{setup:?}: {exact}, {dealt:?}"
            );
            counted += 1;
        }
        let tried = try_out(setup, lost, 20_000);
        let deviation = (tried.share() * (1.0 - tried.share()) / RINGS as f64).sqrt();
        let off = (tried.share() - dealt.share()).abs();
        assert!(
            off < 5.0 * deviation + 1e-3,
            "{setup:?}: {tried:?}, {dealt:?}"
        );
    }
    assert_eq!(counted, 6);
}

fn try_out(setup: Setup, lost: u32, trials: u64) -> Found {
    let run = Trials::new(setup, lost, 1).unwrap();
    let blocks = trials.div_ceil(BLOCK_TRIALS.into());
    (0..blocks)
        .map(|block| run.block(block, BLOCK_TRIALS))
        .fold(Found::default(), Found::and)
}

// Breaks if: trials draw too few, their own, or the same holders twice, or count what earlier
// trials lost.
#[test]
fn trials_agree_with_counts_and_formulas() {
    let mut cases: Vec<(Setup, u32, f64)> = Vec::new();
    for setup in small_layouts() {
        let lost = setup.units() / 2;
        cases.push((setup, lost, by_counting(&setup, lost)));
    }
    for (nodes, together, apart, replicas) in [
        (64, 1, true, 1),
        (64, 1, false, 2),
        (64, 4, true, 2),
        (64, 4, false, 2),
        (60, 5, true, 3),
        (60, 5, false, 1),
    ] {
        for redundancy in [Random { replicas }, Peers { replicas }] {
            let setup = setup(nodes, together, apart, redundancy);
            for lost in [2, setup.units() / 4, setup.units() / 2] {
                cases.push((setup, lost, setup.exact(lost).unwrap().unwrap()));
            }
        }
    }
    let doubtful = 1e-3 / cases.len() as f64;
    for (setup, lost, exact) in cases {
        let found = try_out(setup, lost, 20_000);
        assert!(
            agreement(found, exact) > doubtful,
            "{setup:?} {lost}: {exact}, {found:?}"
        );
        let (low, high) = found.interval(1.0 - doubtful);
        assert!(
            low <= exact && exact <= high,
            "{setup:?} {lost}: {exact}, {low} to {high}"
        );
    }
    // One that is wrong by a hundredth is noticed.
    let one = Setup::alone(64, Random { replicas: 1 });
    let found = try_out(one, 5, 100_000);
    let exact = one.exact(5).unwrap().unwrap();
    assert!(agreement(found, exact - 0.01) < 1e-6 && agreement(found, exact + 0.01) < 1e-6);
}

// Breaks if: blocks share random numbers, or do not depend on the seed.
#[test]
fn a_block_is_the_same_again_and_no_other_is() {
    let setup = Setup::alone(64, Random { replicas: 1 });
    let block = |seed, block| {
        Trials::new(setup, 6, seed)
            .unwrap()
            .block(block, 4096)
            .survived
    };
    let some: Vec<u64> = (0..20).flat_map(|n| [block(1, n), block(2, n)]).collect();
    let again: Vec<u64> = (0..20).flat_map(|n| [block(1, n), block(2, n)]).collect();
    assert_eq!(some, again);
    let mut different = some.clone();
    different.sort_unstable();
    different.dedup();
    assert!(different.len() > 15, "{some:?}");
}

#[test]
fn large_machines_are_computed_too() {
    for redundancy in [
        Peers { replicas: 2 },
        Random { replicas: 2 },
        Partner { replicas: 2 },
        Group {
            size: 10,
            parity: 1,
        },
        Group {
            size: 18,
            parity: 2,
        },
    ] {
        let setup = Setup::alone(100_000, redundancy);
        let allowed = setup.allowed(0.9).unwrap().unwrap();
        let (there, beyond) = (
            setup.exact(allowed).unwrap().unwrap(),
            setup.exact(allowed + 1).unwrap().unwrap(),
        );
        assert!(
            there >= 0.9 && beyond < 0.9,
            "{setup:?} {allowed}: {there} {beyond}"
        );
        assert!(setup.exact(100_000).unwrap().unwrap() < 1e-300);
    }
}

// Breaks if: nonsense gives a number, or the message does not tell the range.
#[test]
fn nonsense_is_refused() {
    let refused = |setup: Setup, text: &str| {
        let message = setup.exact(0).unwrap_err().message().to_owned();
        assert!(message.contains(text), "{message}");
    };
    refused(
        Setup::alone(0, Random { replicas: 0 }),
        "0 nodes: expected 1 to",
    );
    refused(
        Setup::alone(4, Random { replicas: 4 }),
        "4 replicas: expected at most 3",
    );
    refused(
        Setup::alone(4, Partner { replicas: 4 }),
        "at most 3, as many as there are other nodes",
    );
    refused(
        Setup::alone(4, Group { size: 5, parity: 1 }),
        "groups of 5: expected 2 to 4 nodes",
    );
    refused(
        Setup::alone(4, Group { size: 2, parity: 2 }),
        "expected 1 to 1",
    );
    refused(
        setup(12, 4, true, Random { replicas: 3 }),
        "at most 2, as many as there are whole switches",
    );
    refused(
        setup(12, 4, true, Group { size: 4, parity: 1 }),
        "at most 3, as many as there are whole switches",
    );
    refused(
        setup(12, 13, true, Random { replicas: 1 }),
        "13 nodes that fail together: expected 1 to 12",
    );
    refused(
        Setup::alone(
            1 << 20,
            Group {
                size: 5000,
                parity: 1,
            },
        ),
        "groups of 5000: expected 2 to 4096 nodes",
    );
    refused(
        Setup::alone(1 << 20, Partner { replicas: 5000 }),
        "5000 replicas: expected at most 4095",
    );
    // Only what is certain is 1.
    for redundancy in [
        Peers { replicas: 4 },
        Random { replicas: 4 },
        Partner { replicas: 4 },
        Group { size: 8, parity: 4 },
    ] {
        let large = Setup::alone(1_000_000, redundancy);
        assert_eq!(
            (large.allowed(1.0).unwrap(), large.exact(4).unwrap()),
            (Some(4), Some(1.0)),
            "{redundancy:?}"
        );
    }
    let fine = Setup::alone(8, Random { replicas: 1 });
    assert!(fine.exact(9).is_err() && Trials::new(fine, 9, 1).is_err());
    for probability in [0.0, -0.5, 1.5, f64::NAN] {
        assert!(fine.allowed(probability).is_err());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    // Breaks if: more losses, fewer copies or less parity ever survive more.
    #[test]
    fn it_never_grows_with_what_is_lost_and_never_falls_with_what_protects(
        nodes in 2u32..200, together in 1u32..6, apart in any::<bool>(), k in 1u32..6, size in 2u32..12, kind in 0..4,
    ) {
        let of = |k: u32| setup(nodes, together, apart, match kind {
            0 => Random { replicas: k },
            1 => Partner { replicas: k },
            2 => Peers { replicas: k },
            _ => Group { size, parity: k },
        });
        prop_assume!(of(k).check().is_ok());
        let mut before = 1.0;
        for lost in 0..=of(k).units() {
            let Some(found) = of(k).exact(lost).unwrap() else { return Ok(()) };
            prop_assert!((0.0..=1.0).contains(&found));
            prop_assert!(found <= before * (1.0 + 1e-9), "{lost}: {found} after {before}");
            before = found;
            if of(k + 1).check().is_ok() && let Some(more) = of(k + 1).exact(lost).unwrap() {
                prop_assert!(more >= found * (1.0 - 1e-9), "{lost}: {found}, one more {more}");
            }
        }
    }
}
