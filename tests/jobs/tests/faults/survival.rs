//! How often a job outlives lost nodes: killed for real, and compared with the formula, and with
//! what the commit record says of where the copies are.
//!
//! Source: peer-to-peer checkpoints, survival of f lost nodes of n with k replicas
//! (docs/sources.md).

use crate::processes::{each_rank, ends};
use orcheck_format::disk::{CommitRecord, FileName};
use orcheck_jobs::ledger::Story;
use orcheck_jobs::life::{Life, PEERS, Workload};
use orcheck_jobs::trial::{
    Failure, Outcome, PATIENCE, Random, Table, Verdict, seed, share_among, told, trials,
};
use orcheck_planner::survival::{Redundancy, Setup};
use orcheck_testing::{Child, Ended, Scratch};
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

/// Every node holds one rank.
const SIXTEEN_ONE: Workload = Workload {
    name: "16 nodes, 1 replica",
    ranks: 16,
    nodes: 16,
    dirs: 0,
    scale: 4,
    options: "replicas = 1\npool = '256 KiB'",
    ..PEERS
};

const SIXTEEN_TWO: Workload = Workload {
    name: "16 nodes, 2 replicas",
    options: "replicas = 2\npool = '256 KiB'",
    ..SIXTEEN_ONE
};

const THIRTY_TWO: Workload = Workload {
    name: "32 nodes, 1 replica",
    ranks: 32,
    nodes: 32,
    ..SIXTEEN_ONE
};

/// Standard deviations that the share may be off: a right one is further off in one of 15,000 runs.
const SIGMAS: f64 = 4.0;

/// Whether the job came back, and whether it should have, by where the record says that the copies
/// are.
fn one(workload: Workload, lost: u32, random: &mut Random) -> Result<bool, Failure> {
    let scratch = Scratch::in_memory("survival");
    let root = scratch.path();
    let (mut here, there) = UnixStream::pair().unwrap();
    here.set_read_timeout(Some(PATIENCE)).unwrap();
    let children = each_rank(workload.ranks, |rank, mine| {
        Life::new(workload, root, 1, 1000).live_one(mine, &|number| {
            // The first one is safe at all nodes: now they may be killed, in the middle of the
            // second.
            if (rank, number) == (0, 2) {
                (&there).write_all(b"!").unwrap();
            }
        });
    });
    let safe = here.read_exact(&mut [0]);
    children.iter().for_each(Child::kill);
    ends(children);
    let story = Story::read(root);
    if safe.is_err() {
        return Err((
            Verdict::HardFail,
            format!("no checkpoint; {}", told(&story)),
        ));
    }
    let mut gone = BTreeSet::new();
    while gone.len() < lost as usize {
        gone.insert(random.below(u64::from(workload.nodes)) as u32);
    }
    // What is safe at the nodes that are left, by the newest record that any of them has.
    let expected = restorable(workload.nodes, root, &gone).is_some();
    for node in &gone {
        std::fs::remove_dir_all(root.join(format!("local/job/n{node}"))).unwrap();
    }
    let ended = ends(each_rank(workload.ranks, |_, mine| {
        Life::new(workload, root, 2, 0).live_one(mine, &|_| {});
    }));
    let story = Story::read(root);
    let run = story.run(2);
    if let Some(text) = run.wrong.first() {
        return Err((Verdict::SilentWrong, text.clone()));
    }
    if let Some(ended) = ended.iter().find(|ended| **ended != Ended::Exited(0)) {
        return Err((
            Verdict::HardFail,
            format!("a rank ended with {ended:?}; {}", told(&story)),
        ));
    }
    let found = run.resumed.flatten().map(|origin| origin.step);
    if found.is_none() && run.errors.is_empty() {
        return Err((
            Verdict::LostWork,
            format!("began from nothing; {}", told(&story)),
        ));
    }
    if found.is_some() != expected {
        let text = format!(
            "lost {gone:?}: resumed from {found:?}, restorable {expected}; {}",
            told(&story)
        );
        return Err((Verdict::LostWork, text));
    }
    Ok(expected)
}

/// The newest recorded step whose containers all have a copy on a node that is left, where the
/// record says it is.
pub fn restorable(nodes: u32, root: &Path, gone: &BTreeSet<u32>) -> Option<u64> {
    let there = |node: u32, file: &str| {
        !gone.contains(&node) && root.join(format!("local/job/n{node}/{file}")).exists()
    };
    let of_node = |node: u32| -> Vec<CommitRecord> {
        let dir = root.join(format!("local/job/n{node}"));
        let names = std::fs::read_dir(dir)
            .unwrap()
            .flatten()
            .map(|entry| entry.path());
        let is_record = |path: &std::path::PathBuf| {
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            matches!(FileName::parse(&name), Some(FileName::Commit { .. }))
        };
        names
            .filter(is_record)
            .filter_map(|path| CommitRecord::decode(&std::fs::read(path).unwrap()).ok())
            .collect()
    };
    let whole = |record: &CommitRecord| {
        record.containers.iter().all(|container| {
            let mut holders = container.holders.iter().copied().chain([container.node]);
            let computed = record.group_of(container.node).is_some_and(|group| {
                let lost = group.nodes.iter().filter(|node| gone.contains(&node.0));
                lost.count() <= usize::from(group.parity)
            });
            computed || holders.any(|node| there(node.0, &container.file))
        })
    };
    (0..nodes)
        .filter(|node| !gone.contains(node))
        .flat_map(of_node)
        .filter(whole)
        .map(|record| record.step.0)
        .max()
}

// Breaks if: holders are not dealt evenly and at random, or a restart does not look at all nodes.
pub fn as_often_as_the_formula_says() {
    let mut table = Table::default();
    let seed = seed();
    println!("  seed {seed} (ORCHECK_SEED)");
    let count = trials(8);
    for (workload, replicas, lost) in [(SIXTEEN_ONE, 1, 3), (SIXTEEN_TWO, 2, 5), (THIRTY_TWO, 1, 4)]
    {
        let outcomes = share_among(3, count, &|n| {
            let mut random =
                Random::new(seed ^ (n as u64) << 8 ^ u64::from(workload.nodes + replicas));
            match one(workload, lost, &mut random) {
                Ok(true) => Outcome::of(true, Ok(Verdict::Pass)),
                Ok(false) => Outcome::of(true, Ok(Verdict::ClearFail)),
                Err(failure) => Outcome::of(true, Err(failure)),
            }
        });
        let names: Vec<String> = (0..count)
            .map(|n| format!("seed {seed}, trial {n}"))
            .collect();
        let row = format!("{}, {lost} nodes lost", workload.name);
        table.add(
            &row,
            &names,
            &outcomes,
            &[Verdict::Pass, Verdict::ClearFail],
        );
        let survived = outcomes
            .iter()
            .filter(|outcome| outcome.verdict == Verdict::Pass)
            .count();
        let share = survived as f64 / count as f64;
        let setup = Setup::alone(workload.nodes, Redundancy::Peers { replicas });
        let expected = setup.exact(lost).unwrap().unwrap();
        let deviation = (expected * (1.0 - expected) / count as f64).sqrt();
        println!(
            "  {row}: {share:.3} survived of {count}, expected {expected:.3} +- {deviation:.3}"
        );
        assert!(
            (share - expected).abs() <= SIGMAS * deviation,
            "{row}: {share} instead of {expected}"
        );
        // Half of the interval in which 19 of 20 shares lie. Breaks if: a campaign has too few
        // trials to tell anything.
        let half = 1.96 * deviation;
        println!("  {row}: half-width {half:.3}");
        assert!(count < 400 || half <= 0.05, "{row}: {half}");
    }
    table.finish("all ranks are killed, and nodes lost with their disks");
}
