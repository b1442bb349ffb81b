//! Draws which other nodes hold the replicas of a node's part of a checkpoint.
//!
//! How: the holders are drawn one after the other, each uniformly among the remaining nodes that do
//! not fail together with the owner or with a holder drawn before. Random nodes are chosen rather
//! than neighbours, because neighbours share a switch (Walters and Chaudhary, HiPC 2007, section
//! 4.2). The random numbers are a BLAKE3 stream keyed by the purpose of the draw, so that each step
//! of each node has holders of its own and everybody computes the same ones.
//!
//! Invariants:
//! 1. The holders are different nodes, none is the owner, and no two of owner and holders fail
//!    together.
//! 2. Every node that may hold the first replica holds it with the same probability, and likewise
//!    for the next ones, given the previous ones.
//! 3. The holders of k replicas are the first k of the holders of more replicas.
//!
//! Not here: which nodes fail together (`domains.rs`).

use crate::domains::Domains;
use orcheck_format::sabotage::{Switch, off};
use orcheck_format::{Epoch, Error, JobName, NodeId, Result, Step, count as counted};

/// Number of draws before it is reported that there are no holders: with unusually overlapping
/// domains, the first choice may leave nothing for the last.
const DRAWS_MAX: u64 = 64;

/// The subject of a draw: one checkpoint.
#[derive(Debug, Clone, Copy)]
pub struct Draw<'a> {
    /// The job.
    pub job: &'a JobName,
    /// The run that takes the checkpoint.
    pub epoch: Epoch,
    /// Its step.
    pub step: Step,
}

impl Draw<'_> {
    /// The `replicas` nodes that hold copies of `node`'s part, in the order of the draw. With the
    /// owner's own copy, any `replicas` nodes may be lost.
    ///
    /// # Errors
    /// Invalid if there are not this many nodes that do not fail together.
    pub fn holders(&self, domains: &Domains, node: NodeId, replicas: u32) -> Result<Vec<NodeId>> {
        self.more(domains, &[node], replicas)
    }

    /// `count` more nodes for a part that the nodes `held` already have; the first of these stands
    /// for its owner.
    ///
    /// # Errors
    /// Invalid if there are not this many nodes that do not fail together.
    pub fn more(&self, domains: &Domains, held: &[NodeId], count: u32) -> Result<Vec<NodeId>> {
        for attempt in 0..DRAWS_MAX {
            if let Some(holders) = self.once(domains, held, count, attempt) {
                return Ok(holders);
            }
        }
        Err(Error::invalid(format!(
            "{} of node {}'s part of the checkpoint cannot be placed: the job has {}, and each replica needs another node, one that does not fail together with those that hold the part",
            counted(count.into(), "replica"),
            held.first().copied().unwrap_or_default(),
            counted(domains.nodes().into(), "node")
        ))
        .next("ask for fewer replicas, use more nodes, or correct the topology file"))
    }

    fn once(
        &self,
        domains: &Domains,
        held: &[NodeId],
        count: u32,
        attempt: u64,
    ) -> Option<Vec<NodeId>> {
        let mut random = self.random(*held.first()?, attempt);
        let apart = |a: NodeId, b: NodeId| !domains.together(a, b) || off(Switch::ReplicaDomain);
        let mut left: Vec<NodeId> = (0..domains.nodes())
            .map(NodeId)
            .filter(|n| held.iter().all(|&h| h != *n && apart(h, *n)))
            .collect();
        let mut holders: Vec<NodeId> = Vec::with_capacity(count as usize);
        while holders.len() < count as usize {
            if let Some(&last) = holders.last() {
                left.retain(|&other| apart(last, other));
            }
            if left.is_empty() {
                return None;
            }
            holders.push(left.swap_remove(random.below(left.len() as u64) as usize));
        }
        debug_assert!(
            (holders.iter().enumerate())
                .all(|(at, node)| !held.contains(node) && !holders[..at].contains(node)),
            "{holders:?} beside {held:?}"
        );
        Some(holders)
    }

    fn random(&self, node: NodeId, attempt: u64) -> Random {
        let mut hasher = blake3::Hasher::new_derive_key("orcheck 1 holders of replicas");
        hasher.update(&self.epoch.run.0);
        for number in [
            self.epoch.counter,
            self.step.0,
            u64::from(node),
            attempt,
            self.job.as_str().len() as u64,
        ] {
            hasher.update(&number.to_le_bytes());
        }
        hasher.update(self.job.as_str().as_bytes());
        Random(hasher.finalize_xof())
    }
}

struct Random(blake3::OutputReader);

impl Random {
    /// Uniform below `limit`, which is not 0.
    fn below(&mut self, limit: u64) -> u64 {
        // The last, incomplete range of `limit` numbers would make its members more likely.
        let whole = u64::MAX - u64::MAX % limit;
        loop {
            let mut bytes = [0; 8];
            self.0.fill(&mut bytes);
            let number = u64::from_le_bytes(bytes);
            if number < whole {
                return number % limit;
            }
        }
    }
}
