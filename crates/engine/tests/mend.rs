//! Tests which copies a run makes again, and which node makes them.
#![allow(clippy::unwrap_used)]

use orcheck_engine::replicas::mend::{Copy, plan};
use orcheck_engine::replicas::{Holdings, NodeAt, Replicas, ReplicasContext};
use orcheck_format::disk::{CommitRecord, ContainerRef, FileName};
use orcheck_format::{Epoch, JobName, Level, NodeId, Rank, RunId, Step, TargetId, WriterId};
use orcheck_io::clock::SystemClock;
use orcheck_io::failpoints::Failpoints;
use orcheck_net::Key;
use orcheck_placement::Domains;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// Nodes of the run that continues; behind them, others that answer.
const MEMBERS: u32 = 4;
const LEN_BYTES: u64 = 1000;
const OLD: Epoch = Epoch {
    counter: 1,
    run: RunId([7; 16]),
};

fn container(node: NodeId) -> String {
    let name = FileName::Container {
        step: Step(9),
        epoch: OLD.counter,
        run: OLD.run.short_bytes(),
        node,
        writer: WriterId(0),
    };
    name.to_string()
}

/// A checkpoint of two nodes, one container each.
fn record() -> CommitRecord {
    let containers = (0..2).map(|node| ContainerRef {
        file: container(NodeId(node)),
        server: TargetId(0),
        node: NodeId(node),
        writer: WriterId(0),
        len_bytes: LEN_BYTES,
        manifest_digest: [0; 32],
        ranks: vec![(Rank(node), 1)],
        refers_to: Vec::new(),
        holders: vec![NodeId(1 - node)],
    });
    CommitRecord {
        job: JobName::new("job").unwrap(),
        step: Step(9),
        epoch: OLD,
        level: Level::Peers(1),
        world_size: 2,
        nodes: vec!["a".into(), "b".into()],
        placement_generation: 0,
        servers: Vec::new(),
        containers: containers.collect(),
        created_unix_ms: 0,
        groups: vec![],
    }
}

/// What every member plans, by node.
fn plans(holdings: &Holdings) -> Vec<Vec<Copy>> {
    let of_node = |node: u32| {
        let at = |n: u32| NodeAt {
            name: format!("n{n}"),
            addresses: Vec::new(),
            key: Key::new([0; 32]),
        };
        let context = ReplicasContext {
            job: JobName::new("job").unwrap(),
            epoch: Epoch {
                counter: 2,
                run: RunId([8; 16]),
            },
            own: (Rank(node), NodeId(node)),
            replicas: 1,
            group: None,
            domains: Domains::none(MEMBERS),
            nodes: (0..MEMBERS).map(at).collect(),
            timeout: Duration::from_secs(1),
            clock: Arc::new(SystemClock),
            failpoints: Failpoints::none(),
            stop: Arc::default(),
        };
        let replicas = Replicas::new(context).unwrap();
        let (copies, impossible) = plan(&record(), holdings, MEMBERS, &replicas);
        assert!(impossible.is_empty(), "{impossible:?}");
        copies
    };
    (0..MEMBERS).map(of_node).collect()
}

/// Nodes that have a whole copy of a container when all plans are carried out.
fn holders_afterwards(holdings: &Holdings, file: &str) -> BTreeSet<u32> {
    let whole = |files: &Vec<(String, u64)>| files.contains(&(file.to_owned(), LEN_BYTES));
    let members = holdings.iter().take(MEMBERS as usize);
    let mut held: BTreeSet<u32> = (0..)
        .zip(members)
        .filter(|(_, f)| whole(f))
        .map(|(n, _)| n)
        .collect();
    for (node, copies) in (0..).zip(plans(holdings)) {
        for copy in copies.into_iter().filter(|copy| copy.file == file) {
            assert_eq!(
                !copy.fetch,
                held.contains(&node),
                "who has it fetches it not"
            );
            assert!(held.insert(node) == copy.fetch);
            for to in copy.to {
                assert!(held.insert(to.0), "node {to} gets it twice, or has it");
            }
        }
    }
    held
}

fn holds(files: &[(u32, u64)]) -> Vec<(String, u64)> {
    files
        .iter()
        .map(|&(node, len)| (container(NodeId(node)), len))
        .collect()
}

// Breaks if: a copy is made by nobody or by two, counted where it is not whole, or by its length
// alone.
#[test]
fn every_missing_copy_is_made_once() {
    let (cut, long) = (LEN_BYTES - 1, LEN_BYTES + 4096);
    let all = LEN_BYTES;
    for (case, holdings, fetched) in [
        (
            "nothing is missing",
            [
                holds(&[(0, all)]),
                holds(&[(0, all)]),
                vec![],
                vec![],
                vec![],
            ],
            false,
        ),
        (
            "one is left",
            [vec![], holds(&[(0, all)]), vec![], vec![], vec![]],
            false,
        ),
        (
            "one was cut off",
            [
                holds(&[(0, cut)]),
                holds(&[(0, all)]),
                vec![],
                vec![],
                vec![],
            ],
            false,
        ),
        // Room was set aside for it when its node was lost.
        (
            "one is too long",
            [
                holds(&[(0, long)]),
                vec![],
                vec![],
                holds(&[(0, all)]),
                vec![],
            ],
            false,
        ),
        (
            "a node without ranks has it",
            [vec![], vec![], vec![], vec![], holds(&[(0, all)])],
            true,
        ),
        (
            "a node without ranks has one of two",
            [
                vec![],
                vec![],
                holds(&[(0, all)]),
                vec![],
                holds(&[(0, all)]),
            ],
            false,
        ),
    ] {
        let holdings = holdings.to_vec();
        assert_eq!(
            holders_afterwards(&holdings, &container(NodeId(0))).len(),
            2,
            "{case}"
        );
        let copies = plans(&holdings).concat();
        let fetches = copies.iter().filter(|copy| copy.fetch).count();
        assert_eq!(fetches, usize::from(fetched), "{case}");
        // Nobody has the other container: nothing can be done for it.
        assert!(
            copies.iter().all(|copy| copy.file == container(NodeId(0))),
            "{case}"
        );
    }
}
