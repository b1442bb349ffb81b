//! Decides which other nodes hold the replicas of a node's part of a checkpoint.
//!
//! How: for each step, all parts are dealt together (`deal.rs`), so that no node receives two while
//! another one receives none, and the step waits for the link of the one. The deal is random: the
//! holders are random nodes rather than neighbours, because neighbours share a switch (Walters and
//! Chaudhary, HiPC 2007, section 4.2). What is dealt, and what is drawn later for copies that were
//! lost, comes from a BLAKE3 stream keyed by the purpose, so that each step has holders of its own
//! and everybody computes the same ones. Only those who write a checkpoint need them: its commit
//! record names the holders.
//!
//! Invariants:
//! 1. The holders are different nodes, none is the owner, and no two of owner and holders fail
//!    together.
//! 2. Each node holds exactly one k-th replica of each step, for every k such that no set of nodes
//!    that are linked by failure domains has more than its share, one (k+1)-th of all. Beyond that,
//!    the deal is as even as it can be (`deal.rs`).
//! 3. Where all these sets are equally large, every node outside the owner's set holds the k-th
//!    replica with the same probability. Where they are not, invariant 2 does not permit that.
//! 4. The holders of k replicas are the first k of the holders of more replicas, unless those of k
//!    leave nothing for the next one, which only overlapping or unequal domains can do. Then that
//!    node's holders are drawn independently of the deal.
//!
//! Not here: which nodes fail together (`domains.rs`).

use crate::deal::Deal;
use crate::domains::Domains;
use crate::random::Random;
use orcheck_format::{Epoch, Error, JobName, NodeId, Result, Step, count as counted};

/// Number of draws before it is reported that there are no holders: with unusually overlapping
/// domains, the first choice may leave nothing for the last.
const DRAWS_MAX: u64 = 64;

/// What holders are decided for: one checkpoint.
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
    /// The `replicas` nodes that hold copies of `node`'s part, in the order of the replicas. With
    /// the owner's own copy, any `replicas` nodes may be lost. Deals the whole step.
    ///
    /// # Errors
    /// Invalid if there are not this many nodes that do not fail together.
    pub fn holders(&self, domains: &Domains, node: NodeId, replicas: u32) -> Result<Vec<NodeId>> {
        let mut random = self.random("orcheck 1 deal of replicas", &[]);
        match Deal::new(domains, &mut random).holders(node, replicas) {
            Some(holders) => Ok(holders),
            None => self.more(domains, &[node], replicas),
        }
    }

    /// `count` more nodes for a part that the nodes `held` already have; the first of these stands
    /// for its owner. Each is drawn among the remaining nodes that do not fail together with those
    /// before.
    ///
    /// # Errors
    /// Invalid if there are not this many nodes that do not fail together.
    pub fn more(&self, domains: &Domains, held: &[NodeId], count: u32) -> Result<Vec<NodeId>> {
        for attempt in 0..DRAWS_MAX {
            if let Some(holders) = self.once(domains, held, count, attempt) {
                return Ok(holders);
            }
        }
        let (nodes, needed) = (domains.nodes(), held.len() as u64 + u64::from(count));
        if u64::from(nodes) < needed {
            return Err(Error::invalid(format!(
                "{} of each part of a checkpoint: that takes {needed} nodes, and the job has {}",
                counted(count.into(), "replica"),
                counted(nodes.into(), "node")
            ))
            .next("set smaller `peers` and `replicas`, or use more nodes"));
        }
        Err(Error::invalid(format!(
            "{} of node {}'s part of the checkpoint cannot be placed: the job has {}, and each replica needs another node, one that does not fail together with those that hold the part",
            counted(count.into(), "replica"),
            held.first().copied().unwrap_or_default(),
            counted(nodes.into(), "node")
        ))
        .next("set smaller `peers` and `replicas`, use more nodes, or correct the topology file"))
    }

    fn once(
        &self,
        domains: &Domains,
        held: &[NodeId],
        count: u32,
        attempt: u64,
    ) -> Option<Vec<NodeId>> {
        let owner = u64::from(*held.first()?);
        let mut random = self.random("orcheck 1 holders of replicas", &[owner, attempt]);
        let apart = |a: NodeId, b: NodeId| domains.apart(a, b);
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

    /// The random numbers for this purpose.
    fn random(&self, purpose: &str, more: &[u64]) -> Random {
        let mut hasher = blake3::Hasher::new_derive_key(purpose);
        hasher.update(&self.epoch.run.0);
        let before = [self.epoch.counter, self.step.0];
        let job = self.job.as_str();
        for number in before.iter().chain(more).chain([&(job.len() as u64)]) {
            hasher.update(&number.to_le_bytes());
        }
        hasher.update(job.as_bytes());
        Random::new(&hasher)
    }
}
