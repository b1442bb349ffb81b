//! Deals the parts of one checkpoint: each node holds as many as every other one.
//!
//! How: the nodes are on a ring in random order. Nodes that share a failure domain, directly or
//! through others, are a set of linked nodes (`domains.rs`) and stand side by side. With m nodes in
//! the largest set, the k-th holder of a node is the node
//! k·m places further on, where another set has begun; without domains, it is the k-th next one.
//! Where the ring is too short for that, or everything is linked with everything, the remaining
//! replicas are dealt one after the other: each node in turn takes a permitted holder that still
//! has fewer than the others, or one that another node gives up for a third (augmenting paths), and
//! only if there is none may a holder have one more.
//!
//! Invariants:
//! 1. The invariants of [`Draw`](crate::Draw).
//! 2. The busiest holder of a replica has as few parts as the holders of the replicas before
//!    permit, as long as [`CHECKS_MAX`] suffices.
//!
//! Not here: the random numbers (`random.rs`); a node for which nothing is left (`draw.rs`).

use crate::domains::Domains;
use crate::random::Random;
use orcheck_format::NodeId;
use std::collections::VecDeque;

/// Maximum number of pairs of nodes that are looked at for one replica before nobody changes to
/// another holder any more, and each takes the least busy one.
const CHECKS_MAX: usize = 1 << 24;

/// Who is where on the ring of one checkpoint.
pub(crate) struct Deal<'a> {
    domains: &'a Domains,
    ring: Vec<NodeId>,
    /// Number of nodes in the largest set of linked ones.
    largest: usize,
}

/// The holders of one replica. Nodes are positions on the ring.
struct Round<'a> {
    deal: &'a Deal<'a>,
    /// For each node, the holders of its part so far.
    held: &'a [Vec<usize>],
    /// For each node, its holder in this round.
    chosen: Vec<Option<usize>>,
    /// For each holder, whose parts it has in this round.
    of: Vec<Vec<usize>>,
    /// Maximum number of them.
    most: usize,
    checks: usize,
}

impl<'a> Deal<'a> {
    pub(crate) fn new(domains: &'a Domains, random: &mut Random) -> Self {
        let linked = domains.linked();
        let (of_sets, within) = (random.order(domains.nodes()), random.order(domains.nodes()));
        let mut ring: Vec<NodeId> = within.into_iter().map(NodeId).collect();
        let set = |node: &NodeId| linked[node.index()].index();
        ring.sort_by_key(|node| of_sets[set(node)]);
        let sets = ring.chunk_by(|a, b| set(a) == set(b));
        Self {
            largest: sets.map(<[_]>::len).max().unwrap_or(1),
            domains,
            ring,
        }
    }

    /// The holders of a node's part; `None` if nothing is left for one of them.
    pub(crate) fn holders(&self, node: NodeId, replicas: u32) -> Option<Vec<NodeId>> {
        let nodes = self.ring.len();
        let own = self.ring.iter().position(|one| *one == node)?;
        let replicas = replicas as usize;
        if replicas >= nodes {
            return None;
        }
        // The last holder and the owner, which is behind it on the ring, must be a set's length
        // apart too.
        let by_ring = replicas.min(nodes / self.largest - 1);
        let along = |at: usize| (1..=by_ring).map(move |k| (at + k * self.largest) % nodes);
        let held = if by_ring == replicas {
            along(own).collect()
        } else {
            let mut held: Vec<Vec<usize>> = (0..nodes).map(|at| along(at).collect()).collect();
            for replica in by_ring..replicas {
                let chosen = Round::new(self, &held).dealt(replica);
                for (held, chosen) in held.iter_mut().zip(chosen) {
                    held.extend(chosen);
                }
            }
            held.swap_remove(own)
        };
        (held.len() == replicas).then(|| held.into_iter().map(|at| self.ring[at]).collect())
    }
}

impl<'a> Round<'a> {
    fn new(deal: &'a Deal<'a>, held: &'a [Vec<usize>]) -> Self {
        Self {
            deal,
            held,
            chosen: vec![None; held.len()],
            of: vec![Vec::new(); held.len()],
            most: 1,
            checks: 0,
        }
    }

    /// Whether this node may hold the part of that one.
    fn may(&self, owner: usize, holder: usize) -> bool {
        let ring = &self.deal.ring;
        let apart =
            |&other: &usize| other != holder && self.deal.domains.apart(ring[other], ring[holder]);
        apart(&owner) && self.held[owner].iter().all(apart)
    }

    /// For each node that has `replica` holders so far, one more, if any is permitted.
    fn dealt(mut self, replica: usize) -> Vec<Option<usize>> {
        let owners = (0..self.held.len()).filter(|&owner| self.held[owner].len() == replica);
        let owners: Vec<usize> = owners.collect();
        let mut free: Vec<usize> = (0..self.held.len()).collect();
        let mut left = Vec::new();
        for owner in owners {
            let most = CHECKS_MAX.saturating_sub(self.checks);
            let mut looked_at = free.iter().take(most);
            let found = looked_at.position(|&holder| self.may(owner, holder));
            self.checks += found.map_or(free.len().min(most), |at| at + 1);
            match found {
                Some(at) => {
                    self.give(owner, free.swap_remove(at));
                }
                None => left.push(owner),
            }
        }
        for owner in left {
            while !self.exchanged(owner) {
                let permitted = (0..self.held.len()).filter(|&holder| self.may(owner, holder));
                let Some(least) = permitted.min_by_key(|&holder| self.of[holder].len()) else {
                    break;
                };
                self.most = self.most.max(self.of[least].len() + 1);
                if self.checks >= CHECKS_MAX {
                    self.give(owner, least);
                    break;
                }
            }
        }
        self.chosen
    }

    /// Makes this the node's holder in this round; returns the one it had before.
    fn give(&mut self, owner: usize, holder: usize) -> Option<usize> {
        let before = self.chosen[owner].replace(holder);
        if let Some(before) = before {
            self.of[before].retain(|&other| other != owner);
        }
        self.of[holder].push(owner);
        before
    }

    /// Gives `owner` a holder along an augmenting path: each node on it gives its holder to the one
    /// before and takes the next. False if there is no path, or no checks are left.
    fn exchanged(&mut self, owner: usize) -> bool {
        let mut left: Vec<usize> = (0..self.held.len()).collect();
        let mut asked_by = vec![owner; self.held.len()];
        let mut asking = VecDeque::from([owner]);
        while let Some(asks) = asking.pop_front() {
            if self.checks >= CHECKS_MAX {
                return false;
            }
            self.checks += left.len();
            let mut found = None;
            left.retain(|&holder| {
                if found.is_some() || !self.may(asks, holder) {
                    return true;
                }
                asked_by[holder] = asks;
                match self.of[holder].len() < self.most {
                    true => found = Some(holder),
                    false => asking.extend(&self.of[holder]),
                }
                false
            });
            while let Some(holder) = found {
                found = self.give(asked_by[holder], holder);
                if found.is_none() {
                    return true;
                }
            }
        }
        false
    }
}
