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

// Breaks if: the derivation changes in any way: replicas of older checkpoints are then looked for
// where they are not.
#[test]
fn a_draw_is_for_ever() {
    let domains = Domains::none(16);
    let drawn: Vec<Vec<NodeId>> = (0..4).map(|node| holders(&domains, 40, node, 3)).collect();
    assert_eq!(
        drawn,
        DRAWN_BY_THE_FIRST_RELEASE.map(|nodes| nodes.map(NodeId))
    );
}

const DRAWN_BY_THE_FIRST_RELEASE: [[u32; 3]; 4] = [[12, 3, 1], [8, 14, 4], [8, 9, 10], [7, 5, 14]];

// Breaks if: `random % limit` is taken of a number that is too small, or the owner is left among
// the choices.
#[test]
fn every_other_node_is_drawn_equally_often() {
    let (nodes, draws) = (9, 40_000);
    for place in 0..2 {
        let mut counts = vec![0.0; nodes as usize];
        for step in 0..draws {
            counts[(holders(&Domains::none(nodes), step, 4, 2)[place]).index()] += 1.0;
        }
        assert_eq!(counts.remove(4), 0.0, "the owner");
        let expected = draws as f64 / f64::from(nodes - 1);
        let chi_square: f64 = counts
            .iter()
            .map(|n| (n - expected).powi(2) / expected)
            .sum();
        // Seven degrees of freedom: 24.3 is passed once in a thousand sets of draws, and the draws
        // are fixed.
        assert!(chi_square < 24.3, "{chi_square}: {counts:?}");
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
fn a_replica_on_a_job_of_one_node_is_refused_in_the_singular() {
    let job = JobName::new("cavity").unwrap();
    let draw = Draw {
        job: &job,
        epoch: epoch(1),
        step: Step(1),
    };
    let error = draw.holders(&Domains::none(1), NodeId(0), 1).unwrap_err();
    let words = "1 replica of node 0's part of the checkpoint cannot be placed: the job has 1 node, and each replica needs another node";
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
        switch_nodes in 1u32..5, racks in 2u32..6, step: u64, node: u32, replicas in 0u32..5,
    ) {
        let domains = tree(racks * 2 * switch_nodes, switch_nodes);
        let node = node % domains.nodes();
        let replicas = replicas.min(racks - 1);
        let drawn = holders(&domains, step, node, replicas);
        prop_assert_eq!(drawn.len() as u32, replicas);
        let copies: Vec<NodeId> = drawn.iter().copied().chain([NodeId(node)]).collect();
        for (at, &a) in copies.iter().enumerate() {
            for &b in &copies[..at] {
                prop_assert!(a != b && !domains.together(a, b));
            }
        }
        prop_assert_eq!(&holders(&domains, step, node, replicas / 2)[..], &drawn[..replicas as usize / 2]);
    }

    #[test]
    fn any_text_is_refused_or_gives_domains(text in "[ -~\n]{0,200}") {
        let _ = Domains::from_toml(&text, &["n1".to_owned()]);
    }
}
