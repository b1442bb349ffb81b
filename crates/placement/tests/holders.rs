//! Tests which nodes hold whose replicas.
#![allow(clippy::unwrap_used)]

use orcheck_format::{Epoch, ErrorKind, JobName, NodeId, RunId, Step};
use orcheck_placement::{Domains, Draw};
use proptest::prelude::*;
use std::collections::BTreeSet;

fn epoch(counter: u64) -> Epoch {
    Epoch {
        counter,
        run: RunId([7; 16]),
    }
}

fn holders(domains: &Domains, step: u64, node: u32, replicas: u32) -> Vec<NodeId> {
    let job = JobName::new("cavity").unwrap();
    let draw = Draw {
        job: &job,
        epoch: epoch(3),
        step: Step(step),
    };
    draw.holders(domains, NodeId(node), replicas).unwrap()
}

/// `nodes` nodes in switches of `switch_nodes`, switches in racks of two.
fn tree(nodes: u32, switch_nodes: u32) -> Domains {
    let names: Vec<String> = (0..nodes).map(|node| format!("n{node}")).collect();
    let lines = (0..nodes).map(|node| {
        let switch = node / switch_nodes;
        format!("n{node} = ['switch {switch}', 'rack {}']\n", switch / 2)
    });
    Domains::from_toml(&lines.collect::<String>(), &names).unwrap()
}

/// Nodes in racks of these sizes.
fn racks(sizes: &[u32]) -> Domains {
    let of = (0..).zip(sizes);
    Domains::of(
        of.flat_map(|(rack, &size)| vec![vec![rack]; size as usize])
            .collect(),
    )
}

/// For each replica, how many parts each node holds.
fn loads(domains: &Domains, step: u64, replicas: u32) -> Vec<Vec<u32>> {
    let mut loads = vec![vec![0; domains.nodes() as usize]; replicas as usize];
    for node in 0..domains.nodes() {
        let holders = holders(domains, step, node, replicas);
        for (loads, holder) in loads.iter_mut().zip(holders) {
            loads[holder.index()] += 1;
        }
    }
    loads
}

fn even(domains: &Domains, step: u64, replicas: u32) -> bool {
    let loads = loads(domains, step, replicas);
    loads.iter().flatten().all(|&parts| parts == 1)
}

fn apart(domains: &Domains, owner: u32, holders: &[NodeId]) -> bool {
    let copies: Vec<NodeId> = holders.iter().copied().chain([NodeId(owner)]).collect();
    let pairs = (copies.iter().enumerate()).flat_map(|(at, a)| copies[..at].iter().zip([a; 99]));
    pairs
        .into_iter()
        .all(|(a, b)| a != b && !domains.together(*a, *b))
}

/// Far too many in about one of a thousand sets of draws; the draws are fixed.
fn chi_square(counts: &[f64]) -> f64 {
    let expected = counts.iter().sum::<f64>() / counts.len() as f64;
    let squares = counts.iter().map(|n| (n - expected).powi(2));
    squares.sum::<f64>() / expected
}

// Breaks if: the derivation changes in any way: nodes of one job that compute it differently would
// no longer hold as many parts.
#[test]
fn a_deal_is_for_ever() {
    let domains = Domains::none(16);
    let dealt: Vec<Vec<NodeId>> = (0..4).map(|node| holders(&domains, 40, node, 3)).collect();
    assert_eq!(dealt, DEALT.map(|nodes| nodes.map(NodeId)));
    let job = JobName::new("cavity").unwrap();
    let draw = Draw {
        job: &job,
        epoch: epoch(3),
        step: Step(40),
    };
    let drawn = (0..4).map(|node| draw.more(&domains, &[NodeId(node)], 3).unwrap());
    assert_eq!(
        drawn.collect::<Vec<_>>(),
        DRAWN_BY_THE_FIRST_RELEASE.map(|nodes| nodes.map(NodeId))
    );
}

const DEALT: [[u32; 3]; 4] = [[5, 14, 9], [15, 13, 0], [11, 1, 15], [7, 2, 11]];
const DRAWN_BY_THE_FIRST_RELEASE: [[u32; 3]; 4] = [[12, 3, 1], [8, 14, 4], [8, 9, 10], [7, 5, 14]];

// Breaks if: `random % limit` is taken of a number that is too small, the owner is left among the
// choices, or the order of the ring is not random.
#[test]
fn every_other_node_is_dealt_equally_often() {
    for (domains, permitted) in [(Domains::none(9), 8), (racks(&[3; 4]), 9)] {
        for place in 0..2 {
            let mut counts = vec![0.0; domains.nodes() as usize];
            for step in 0..40_000 {
                counts[holders(&domains, step, 4, 2)[place].index()] += 1.0;
            }
            let may = |node: &u32| *node != 4 && !domains.together(NodeId(4), NodeId(*node));
            let may: Vec<u32> = (0..domains.nodes()).filter(may).collect();
            let counts: Vec<f64> = may.iter().map(|&node| counts[node as usize]).collect();
            assert_eq!(counts.iter().sum::<f64>(), 40_000.0);
            assert_eq!(counts.len(), permitted);
            // Seven or eight degrees of freedom: 26.1 is passed once in a thousand sets of draws.
            let found = chi_square(&counts);
            assert!(found < 26.1, "{found}: {counts:?}");
        }
    }
}

// Breaks if: what one node gets depends on what another one gets in all steps, such as always the
// next but one, although each alone looks random.
#[test]
fn every_order_of_the_ring_is_dealt_equally_often() {
    let domains = Domains::none(4);
    let mut counts = std::collections::BTreeMap::new();
    for step in 0..12_000 {
        let ring: Vec<_> = (0..4)
            .map(|node| holders(&domains, step, node, 1)[0])
            .collect();
        *counts.entry(ring).or_insert(0.0) += 1.0;
    }
    let counts: Vec<f64> = counts.into_values().collect();
    assert_eq!(counts.len(), 6, "rings of four nodes");
    let found = chi_square(&counts);
    assert!(found < 20.5, "{found}: {counts:?}");
}

// Breaks if: racks of different sizes stand so that some pairs never meet, or the fair share is
// that of the smallest rack.
#[test]
fn racks_of_any_size_are_dealt_evenly_up_to_a_fair_share() {
    for sizes in [
        &[3, 3, 3, 3][..],
        &[4, 2, 1, 1],
        &[3, 2, 2, 1, 4],
        &[1, 5, 2, 2],
    ] {
        let domains = racks(sizes);
        let mut met = BTreeSet::new();
        for step in 0..300 {
            assert!(even(&domains, step, 1), "{sizes:?}, step {step}");
            let pairs =
                (0..domains.nodes()).map(|node| (node, holders(&domains, step, node, 1)[0]));
            met.extend(pairs);
        }
        let largest = *sizes.iter().max().unwrap();
        if largest * 2 < domains.nodes() {
            let others = |size: &u32| size * (domains.nodes() - size);
            assert_eq!(
                met.len() as u32,
                sizes.iter().map(others).sum::<u32>(),
                "{sizes:?}"
            );
        }
    }
    assert!(even(&racks(&[3, 2, 2, 1, 4]), 7, 2));
    assert!(even(&racks(&[2, 2, 2, 2]), 7, 3));
}

// Breaks if: a switch and a power line that cross are taken for one domain, in which everything is
// linked with everything.
#[test]
fn domains_that_cross_are_dealt_evenly_too() {
    let of = (0..25).map(|node| vec![node / 5, 100 + node % 5]);
    let domains = Domains::of(of.collect());
    for step in 0..50 {
        assert!(even(&domains, step, 2), "step {step}");
        for node in 0..25 {
            assert!(apart(&domains, node, &holders(&domains, step, node, 4)));
        }
    }
}

// Breaks if: dealing to many nodes takes hours where a rack is too large, or racks cross.
#[test]
fn ten_thousand_nodes_are_dealt() {
    let crossing = (0..10_000).map(|node| vec![node / 100, 1000 + node % 100]);
    for domains in [
        Domains::none(10_000),
        racks(&[40; 250]),
        racks(&[9_990, 10]),
        Domains::of(crossing.collect()),
    ] {
        assert!(apart(&domains, 77, &holders(&domains, 1, 77, 1)));
    }
}

#[test]
fn steps_epochs_jobs_and_nodes_draw_for_themselves() {
    let domains = Domains::none(64);
    let (a, b) = (JobName::new("a").unwrap(), JobName::new("b").unwrap());
    let mut all = BTreeSet::new();
    for job in [&a, &b] {
        for counter in [1, 2] {
            for step in [1, 2] {
                for node in [1, 2] {
                    let draw = Draw {
                        job,
                        epoch: epoch(counter),
                        step: Step(step),
                    };
                    all.insert(draw.holders(&domains, NodeId(node), 4).unwrap());
                }
            }
        }
    }
    assert_eq!(all.len(), 16);
}

#[test]
fn what_cannot_be_had_is_refused() {
    let job = JobName::new("cavity").unwrap();
    let draw = Draw {
        job: &job,
        epoch: epoch(1),
        step: Step(1),
    };
    for (domains, most) in [
        (Domains::none(1), 0),
        (Domains::none(4), 3),
        (tree(16, 4), 1),
        (tree(24, 4), 2),
    ] {
        draw.holders(&domains, NodeId(0), most).unwrap();
        let error = draw.holders(&domains, NodeId(0), most + 1).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.message().contains("replica"), "{error}");
    }
}

// Breaks if: one is counted as many, "1 replicas among the 1 nodes".
#[test]
fn more_replicas_than_other_nodes_are_refused() {
    let job = JobName::new("cavity").unwrap();
    let draw = Draw {
        job: &job,
        epoch: epoch(1),
        step: Step(1),
    };
    let error = draw.holders(&Domains::none(1), NodeId(0), 1).unwrap_err();
    let words =
        "1 replica of each part of a checkpoint: that takes 2 nodes, and the job has 1 node";
    assert!(error.message().starts_with(words), "{error}");
}

#[test]
fn a_topology_file_must_name_every_node() {
    let nodes = ["n1".to_owned(), "n2".to_owned()];
    let good = Domains::from_toml("n1 = 's'\nn2 = ['t', 's']\nspare = 't'", &nodes).unwrap();
    assert!(good.together(NodeId(0), NodeId(1)));
    for (text, part) in [
        ("n1 = 's'", "does not name node 'n2'"),
        ("n1 = 's'\nn2 = 5", "n2 = 5: expected a name"),
        ("n1 = 's'\nn2 = [5]", "n2 = [5]: expected a name"),
        ("n1 = ", "topology file"),
    ] {
        let error = Domains::from_toml(text, &nodes).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains(part), "{error}");
    }
    assert!(
        !Domains::from_toml("n1 = []\nn2 = []", &nodes)
            .unwrap()
            .together(NodeId(0), NodeId(1))
    );
}

proptest! {
    // Breaks if: only the owner's domain is avoided and not those of the holders before.
    #[test]
    fn holders_are_others_that_do_not_fail_together(
        switch_nodes in 1u32..5, racks in 2u32..6, step: u64, replicas in 0u32..5,
    ) {
        let domains = tree(racks * 2 * switch_nodes, switch_nodes);
        let replicas = replicas.min(racks - 1);
        prop_assert!(even(&domains, step, replicas));
        for node in 0..domains.nodes() {
            let dealt = holders(&domains, step, node, replicas);
            prop_assert!(apart(&domains, node, &dealt));
            let fewer = replicas / 2;
            prop_assert_eq!(&holders(&domains, step, node, fewer)[..], &dealt[..fewer as usize]);
        }
    }

    #[test]
    fn without_domains_every_replica_is_dealt_evenly(nodes in 1u32..40, step: u64, replicas in 0u32..6) {
        let replicas = replicas.min(nodes - 1);
        prop_assert!(even(&Domains::none(nodes), step, replicas));
    }

    // Breaks if: a rack that is larger than all others together overloads one of them. What such a
    // rack cannot keep, the others must take in equal parts.
    #[test]
    fn the_busiest_holder_has_as_few_parts_as_racks_permit(
        sizes in prop::collection::vec(1u32..9, 2..6), step: u64,
    ) {
        let domains = racks(&sizes);
        let largest = *sizes.iter().max().unwrap();
        let expected = largest.div_ceil(domains.nodes() - largest);
        let busiest = loads(&domains, step, 1)[0].iter().copied().max();
        prop_assert_eq!(busiest, Some(expected), "{:?}", sizes);
    }

    // Breaks if: what is dealt to others leaves nothing for a node that could have holders, or a
    // holder is not permitted.
    #[test]
    fn whatever_the_domains_holders_are_found_where_a_draw_finds_some(
        of in prop::collection::vec(prop::collection::vec(0u32..7, 0..3), 2..14),
        step: u64, replicas in 1u32..4,
    ) {
        let domains = Domains::of(of);
        let job = JobName::new("cavity").unwrap();
        let draw = Draw { job: &job, epoch: epoch(3), step: Step(step) };
        for node in 0..domains.nodes() {
            if draw.more(&domains, &[NodeId(node)], replicas).is_ok() {
                let dealt = draw.holders(&domains, NodeId(node), replicas).unwrap();
                prop_assert_eq!(dealt.len() as u32, replicas);
                prop_assert!(apart(&domains, node, &dealt));
            }
        }
    }

    #[test]
    fn any_text_is_refused_or_gives_domains(text in "[ -~\n]{0,200}") {
        let _ = Domains::from_toml(&text, &["n1".to_owned()]);
    }
}
