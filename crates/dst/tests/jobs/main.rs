//! Whole jobs of up to 64 nodes in one thread: the commit protocol and that of replicas, on a network and disks that a seed
//! makes slow, broken and dead; then the restart, from the real bytes that the nodes which are left have on their disks.
//!
//! How: a real job is run once for each number of nodes and replicas; its containers are what the simulated nodes write and
//! bring to each other. The state machines are those of the engine, and so is everything that reads.
//!
//! A failure prints the seed; `ORCHECK_SEED=<seed> ORCHECK_TRIALS=1` runs that job alone.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod left;
mod material;
#[allow(dead_code)]
#[path = "../../../client/tests/session/support.rs"]
mod support;
mod world;

use crate::left::Left;
use crate::material::Material;
use crate::world::{Fault, World};
use orcheck_io::env_var;
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

/// Every subset of the nodes: any k of them may be lost; of more it is said what is missing, and an older step is used
/// where there is one.
// Breaks if: a restart does not ask all nodes that are left, or believes a record whose containers are gone.
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

/// Jobs with faults at any moment of the protocols.
#[test]
fn jobs_with_faults() {
    let asked = env_var("ORCHECK_TRIALS").and_then(|text| text.parse().ok());
    let trials: u64 = asked.unwrap_or(5000);
    let first = env_var("ORCHECK_SEED")
        .and_then(|text| text.parse().ok())
        .unwrap_or_else(|| u64::from(u32::from_le_bytes(orcheck_io::rng::random_bytes())));
    println!("seeds {first} … {} (ORCHECK_SEED)", first + trials - 1);
    let mut materials = BTreeMap::new();
    let (mut events, mut committed, mut struck) = (0, 0, 0);
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
        let faults: Vec<Fault> = (0..random.below(4))
            .map(|_| Fault::draw(&mut random, nodes))
            .collect();
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let mut world = World::new(material, 3, seed);
            world.run(&faults);
            let (acknowledged, dead, disks) = (world.acknowledged(), world.dead(), world.disks());
            // Some of those that are left are lost as well.
            let mut lost = dead.clone();
            for _ in 0..random.below(3) {
                lost.insert(random.below(u64::from(nodes)) as u32);
            }
            let found = Left::new(material, &disks, &lost).restart();
            if lost.len() as u32 <= replicas {
                assert!(
                    found >= acknowledged.last().copied(),
                    "acknowledged {acknowledged:?}, found {found:?} without {lost:?}"
                );
            }
            (world.events(), acknowledged.len() as u64, world.struck())
        }));
        match outcome {
            Ok(one) => {
                events += one.0;
                committed += one.1;
                struck += one.2;
            }
            Err(panic) => {
                let smaller = smaller(material, seed, &faults);
                println!(
                    "seed {seed}: {nodes} nodes, {replicas} replicas, faults {smaller:?}; again: ORCHECK_SEED={seed} ORCHECK_TRIALS=1 cargo test -p orcheck-dst --test jobs jobs_with_faults"
                );
                std::panic::resume_unwind(panic);
            }
        }
    }
    println!(
        "{trials} jobs, {events} events, {struck} faults struck, {committed} checkpoints committed"
    );
    assert!(trials < 1000 || struck > trials / 2 && committed > trials);
}

/// The faults without those that are not needed for the failure.
fn smaller(material: &Material, seed: u64, faults: &[Fault]) -> Vec<Fault> {
    let mut faults = faults.to_vec();
    let mut at = 0;
    while at < faults.len() {
        let mut fewer = faults.clone();
        fewer.remove(at);
        let fails = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let mut world = World::new(material, 3, seed);
            world.run(&fewer);
            let found = Left::new(material, &world.disks(), &world.dead()).restart();
            assert!(
                world.dead().len() as u32 > material.replicas
                    || found >= world.acknowledged().last().copied()
            );
        }));
        if fails.is_err() {
            faults = fewer;
        } else {
            at += 1;
        }
    }
    faults
}
