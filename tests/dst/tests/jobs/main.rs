//! Whole jobs of up to 64 nodes in one thread: the commit protocol and that of replicas, on a
//! network and disks that a seed makes slow, broken and dead; then the restart, from the real bytes
//! that the nodes which are left have on their disks.
//!
//! How: a real job is run once for each number of nodes and replicas; its containers are what the
//! simulated nodes write and bring to each other. The state machines are those of the engine, and
//! so is everything that reads.
//!
//! A failure prints the command that runs that job alone, with no more faults than the failure
//! needs.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod fault;
mod left;
mod material;
mod world;

use crate::fault::Fault;
use crate::left::Left;
use crate::material::Material;
use crate::world::World;
use orcheck_io::user::env_var;
use std::collections::{BTreeMap, BTreeSet};

/// A small generator, the same everywhere.
#[derive(Clone)]
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        Self(seed ^ 0x9e37_79b9_7f4a_7c15)
    }

    fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.draw() % limit.max(1)
    }
}

/// Every subset of the nodes: any k of them may be lost; of more it is reported what is missing,
/// and an older step is used where there is one.
// Breaks if: a restart does not ask all nodes that are left, or believes a record whose containers
// are gone.
#[test]
fn every_subset_of_the_nodes_may_be_lost() {
    let (mut restored, mut older, mut refused) = (0, 0, 0);
    for nodes in 2..=8u32 {
        for replicas in 1..=4.min(nodes - 1) {
            let material = Material::of(nodes, replicas);
            let mut world = World::new(&material, 3, u64::from(nodes * 10 + replicas));
            world.run(&[]);
            assert_eq!(world.acknowledged(), BTreeSet::from([1, 2, 3]));
            let disks = world.disks();
            for subset in 1u32..1 << nodes {
                let lost: BTreeSet<u32> =
                    (0..nodes).filter(|node| subset >> node & 1 == 1).collect();
                let left = Left::new(&material, &disks, &lost);
                match left.restart() {
                    Some(3) => restored += 1,
                    Some(_) => older += 1,
                    None => refused += 1,
                }
                let promised = lost.len() as u32 <= replicas;
                assert!(
                    !promised || left.restart() == Some(3),
                    "{nodes} nodes, {replicas} replicas, without {lost:?}"
                );
            }
        }
    }
    println!(
        "{restored} restored, {older} from an older step, {refused} refused by what is missing"
    );
    assert!(older > 0 && refused > 0);
}

/// A node may be lost at every event of a job, and another one later: all bytes are there as long
/// as no more are lost than there are replicas, and nobody waits for ever.
// Breaks if: a replica counts before it is durable, or a record before every node has it.
#[test]
fn a_node_may_be_lost_at_every_step() {
    let mut jobs = 0;
    for (nodes, replicas) in [(2, 1), (3, 1), (4, 1), (4, 2), (5, 3)] {
        let material = Material::of(nodes, replicas);
        // Both with and without nodes between others and the lead.
        for seed in [0, 2] {
            let mut whole = World::new(&material, 3, seed);
            whole.run(&[]);
            for at in 0..whole.events() {
                for node in 0..nodes {
                    let mut faults = vec![Fault::Dies(at, node)];
                    if replicas > 1 {
                        faults.push(Fault::Dies(at + at % 40, (node + 1) % nodes));
                    }
                    one(&material, seed, &faults, &BTreeSet::new());
                    jobs += 1;
                }
            }
        }
    }
    println!("{jobs} jobs");
    assert!(jobs > 1000);
}

/// What became of one job.
struct Done {
    events: u64,
    committed: u64,
    struck: u64,
}

/// Runs a job with these faults and restarts it without the nodes that it lost and these; what was
/// acknowledged must be there as long as no more are lost than there are replicas.
fn one(material: &Material, seed: u64, faults: &[Fault], more: &BTreeSet<u32>) -> Done {
    let mut world = World::new(material, 3, seed);
    world.run(faults);
    let acknowledged = world.acknowledged();
    let lost: BTreeSet<u32> = world.lost().union(more).copied().collect();
    let found = Left::new(material, &world.disks(), &lost).restart();
    assert!(
        lost.len() as u32 > material.replicas || found >= acknowledged.last().copied(),
        "acknowledged {acknowledged:?}, found {found:?} without {lost:?}"
    );
    Done {
        events: world.events(),
        committed: acknowledged.len() as u64,
        struck: world.struck(),
    }
}

fn fails(work: impl FnOnce()) -> bool {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).is_err()
}

/// Jobs with faults at any moment of the protocols.
#[test]
fn jobs_with_faults() {
    let number = |name| env_var(name).and_then(|text| text.parse::<u64>().ok());
    let trials = number("ORCHECK_TRIALS").unwrap_or(3000);
    let first = number("ORCHECK_SEED")
        .unwrap_or_else(|| u64::from(u32::from_le_bytes(orcheck_io::rng::random_bytes())));
    // Of the faults that are drawn, only these.
    let only: Option<BTreeSet<usize>> =
        env_var("ORCHECK_FAULTS").map(|text| text.split(',').flat_map(str::parse).collect());
    println!("seeds {first} … {} (ORCHECK_SEED)", first + trials - 1);
    let mut materials = BTreeMap::new();
    let mut sum = Done {
        events: 0,
        committed: 0,
        struck: 0,
    };
    let mut kinds = BTreeSet::new();
    for seed in first..first + trials {
        let mut random = Random::new(seed);
        // Small ones find most; the large ones are for what only many nodes do.
        let nodes = if random.below(50) == 0 {
            64
        } else {
            2 + random.below(7) as u32
        };
        let replicas = 1 + random.below(4.min(u64::from(nodes) - 1)) as u32;
        let material = materials
            .entry((nodes, replicas))
            .or_insert_with(|| Material::of(nodes, replicas));
        let drawn: Vec<Fault> = (0..random.below(4))
            .map(|_| Fault::draw(&mut random, nodes))
            .collect();
        let asked = |at: &usize| only.as_ref().is_none_or(|only| only.contains(at));
        let chosen: Vec<usize> = (0..drawn.len()).filter(asked).collect();
        // Some of those that are left are lost as well.
        let more: BTreeSet<u32> = (0..random.below(3))
            .map(|_| random.below(u64::from(nodes)) as u32)
            .collect();
        let faults = |chosen: &[usize]| chosen.iter().map(|&at| drawn[at]).collect::<Vec<_>>();
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            one(material, seed, &faults(&chosen), &more)
        }));
        match outcome {
            Ok(done) => {
                sum.events += done.events;
                sum.committed += done.committed;
                sum.struck += done.struck;
                let names = drawn.iter().map(|fault| format!("{fault:?}"));
                kinds.extend(names.filter_map(|name| Some(name.split_once('(')?.0.to_owned())));
            }
            Err(panic) => {
                let fails = |chosen: &[usize]| {
                    fails(|| {
                        one(material, seed, &faults(chosen), &more);
                    })
                };
                let needed = smallest(chosen, &fails);
                let numbers: Vec<String> = needed.iter().map(ToString::to_string).collect();
                println!(
                    "seed {seed}: {nodes} nodes, {replicas} replicas, faults {:?}; again: ORCHECK_SEED={seed} ORCHECK_TRIALS=1 ORCHECK_FAULTS={} cargo test -p orcheck-dst --test jobs jobs_with_faults",
                    faults(&needed),
                    numbers.join(",")
                );
                std::panic::resume_unwind(panic);
            }
        }
    }
    println!(
        "{trials} jobs, {} events, {} faults struck, {} checkpoints committed",
        sum.events, sum.struck, sum.committed
    );
    assert!(trials < 1000 || sum.struck > trials / 2 && sum.committed > trials);
    // Breaks if: some kind of fault is never drawn.
    assert!(trials < 1000 || kinds.len() == 10, "{kinds:?}");
}

/// Those of `items` without which there is no failure.
fn smallest(mut items: Vec<usize>, fails: &dyn Fn(&[usize]) -> bool) -> Vec<usize> {
    let mut at = 0;
    while at < items.len() {
        let mut fewer = items.clone();
        fewer.remove(at);
        if fails(&fewer) {
            items = fewer;
        } else {
            at += 1;
        }
    }
    items
}

// Breaks if: a fault that is needed is left out, or one that is not needed stays.
#[test]
fn a_failure_is_made_smaller() {
    let needs_both = |items: &[usize]| items.contains(&1) && items.contains(&3);
    assert_eq!(smallest(vec![0, 1, 2, 3], &needs_both), [1, 3]);
    assert_eq!(smallest(vec![0, 2], &|_| true), []);
}
