//! Runs trials: draws what fails and who holds what, and checks whether anything is gone.
//!
//! How: each block of trials has its own random numbers, derived from the seed and its number, so
//! that blocks can be divided among threads with the same result. A unit lost in a trial is marked
//! with the trial's number, so that nothing has to be cleared for the next one. Holders are drawn
//! only for lost nodes, one after the other until one is not lost. Instead of an order of the ring
//! of peers, it is drawn which of its places are lost.
//!
//! Invariants:
//! 1. A trial does not use the exact counts: it is an independent check of them.
//! 2. What fails is a uniformly random set of units; holders are drawn uniformly, and again if they
//!    are not allowed.
//!
//! Not here: threads (which the caller provides).

use super::{Redundancy, Setup};
use orcheck_format::Result;
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};
use statrs::distribution::{Beta, Binomial, ContinuousCDF, DiscreteCDF};

/// Maximum number of trials of a block; the last one of a run may have fewer.
pub const BLOCK_TRIALS: u32 = 4096;

/// A set-up that loses this many units, again and again.
#[derive(Debug, Clone)]
pub struct Trials {
    setup: Setup,
    lost: u32,
    seed: u64,
}

/// The result of trials.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Found {
    /// Trials.
    pub trials: u64,
    /// Those in which nothing was gone.
    pub survived: u64,
}

impl Trials {
    /// # Errors
    /// As [`Setup::check`]; Invalid for more lost units than exist.
    pub fn new(setup: Setup, lost: u32, seed: u64) -> Result<Self> {
        setup.check_loss(lost)?;
        Ok(Self { setup, lost, seed })
    }

    /// Runs block number `block` of this many trials.
    #[must_use]
    pub fn block(&self, block: u64, trials: u32) -> Found {
        let trials = trials.min(BLOCK_TRIALS);
        let mut bench = Bench::new(self, block);
        let survived = (1..=trials)
            .filter(|&number| bench.survives(number))
            .count();
        Found {
            trials: trials.into(),
            survived: survived as u64,
        }
    }
}

impl Found {
    /// Both results together.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            trials: self.trials + other.trials,
            survived: self.survived + other.survived,
        }
    }

    /// The share that survived.
    #[must_use]
    pub fn share(&self) -> f64 {
        self.survived as f64 / self.trials.max(1) as f64
    }

    /// The confidence interval of the true probability (Clopper and Pearson, Biometrika 26, 1934):
    /// too wide rather than too narrow, also if none or all survived.
    #[must_use]
    pub fn interval(&self, confidence: f64) -> (f64, f64) {
        let (survived, gone) = (self.survived as f64, (self.trials - self.survived) as f64);
        let tail = (1.0 - confidence) / 2.0;
        let at = |a: f64, b: f64, p: f64| Beta::new(a, b).map(|beta| beta.inverse_cdf(p));
        // A Beta distribution needs both numbers positive; if one is not, the bound is the end of
        // the range.
        let low = at(survived, gone + 1.0, tail).unwrap_or(0.0);
        let high = at(survived + 1.0, gone, 1.0 - tail).unwrap_or(1.0);
        (low, high)
    }
}

/// The probability that trials differ from an exact probability at least as much as these, in their
/// direction, if it is right; twice the smaller tail.
#[must_use]
pub fn agreement(found: Found, exact: f64) -> f64 {
    match Binomial::new(exact.clamp(0.0, 1.0), found.trials) {
        Ok(binomial) => {
            let up_to = binomial.cdf(found.survived);
            let from = match found.survived.checked_sub(1) {
                Some(fewer) => binomial.sf(fewer),
                None => 1.0,
            };
            (2.0 * up_to.min(from)).min(1.0)
        }
        Err(_) => 0.0,
    }
}

/// The state with which a block works.
struct Bench<'a> {
    setup: &'a Setup,
    /// Number of nodes of each of `units`.
    together: u32,
    lost: u32,
    random: Random,
    /// All units, or places on the ring of scattered nodes; the lost ones come first.
    units: Vec<u32>,
    /// For each unit, the last trial in which it was lost.
    lost_in: Vec<u32>,
    /// For each group, the last trial in which it lost anything, and how much.
    of_groups: Vec<(u32, u32)>,
    holders: Vec<u32>,
}

impl<'a> Bench<'a> {
    fn new(of: &'a Trials, block: u64) -> Self {
        let setup = &of.setup;
        let groups = match setup.redundancy {
            Redundancy::Group { size, .. } => setup.groups(size) as usize,
            _ => 0,
        };
        let (units, together) = match setup.scattered() {
            true => (setup.nodes, 1),
            false => (setup.units(), setup.together),
        };
        Self {
            setup,
            together,
            lost: of.lost,
            random: Random::new(of.seed, block),
            units: (0..units).collect(),
            lost_in: vec![0; units as usize],
            of_groups: vec![(0, 0); groups],
            holders: Vec::new(),
        }
    }

    fn survives(&mut self, trial: u32) -> bool {
        let lost = match self.setup.scattered() {
            true => self.lost_nodes(),
            false => self.lost,
        };
        for at in 0..lost {
            let other = at + self.random.below(self.units.len() as u32 - at);
            self.units.swap(at as usize, other as usize);
            self.lost_in[self.units[at as usize] as usize] = trial;
        }
        let together = self.together;
        for at in 0..lost {
            let unit = self.units[at as usize];
            let end = self.setup.nodes.min((unit + 1) * together);
            for node in unit * together..end {
                if self.is_gone(node, trial) {
                    return false;
                }
            }
        }
        true
    }

    /// How many nodes are lost with these units, whose last one may be smaller.
    fn lost_nodes(&mut self) -> u32 {
        let Setup {
            nodes, together, ..
        } = *self.setup;
        let units = self.setup.units();
        let fewer = match self.random.below(units) < self.lost {
            true => units * together - nodes,
            false => 0,
        };
        self.lost * together - fewer
    }

    fn is_lost(&self, node: u32, trial: u32) -> bool {
        self.lost_in[(node / self.together) as usize] == trial
    }

    /// Whether nobody holds the part of a lost node any more.
    fn is_gone(&mut self, node: u32, trial: u32) -> bool {
        let Setup {
            nodes,
            together,
            apart,
            redundancy,
        } = *self.setup;
        match redundancy {
            Redundancy::Random { replicas } => {
                self.holders.clear();
                for _ in 0..replicas {
                    let holder = self.another(node);
                    if !self.is_lost(holder, trial) {
                        return false;
                    }
                    self.holders.push(holder);
                }
                true
            }
            Redundancy::Peers { replicas } | Redundancy::Partner { replicas } => {
                let step = if apart { together } else { 1 };
                let next = |i: u32| {
                    ((u64::from(node) + u64::from(i) * u64::from(step)) % u64::from(nodes)) as u32
                };
                (1..=replicas).all(|i| self.is_lost(next(i), trial))
            }
            Redundancy::Group { size, parity } => {
                let group = group_of(node, nodes, self.setup.groups(size), apart);
                let (last, count) = self.of_groups[group as usize];
                let count = if last == trial { count + 1 } else { 1 };
                self.of_groups[group as usize] = (trial, count);
                count > parity
            }
        }
    }

    /// A permitted holder for a node's part that is not one of the earlier ones.
    fn another(&mut self, node: u32) -> u32 {
        let Setup {
            nodes,
            together,
            apart,
            ..
        } = *self.setup;
        let alike = |a: u32, b: u32| {
            if apart {
                a / together == b / together
            } else {
                a == b
            }
        };
        loop {
            let holder = self.random.below(nodes);
            if !alike(holder, node) && !self.holders.iter().any(|&other| alike(holder, other)) {
                return holder;
            }
        }
    }
}

/// The group of a node: with `apart`, nodes are assigned in turn; otherwise neighbours are
/// together, in groups as equal as possible.
fn group_of(node: u32, nodes: u32, groups: u32, apart: bool) -> u32 {
    let (size, larger) = (nodes / groups, nodes % groups);
    if apart {
        node % groups
    } else if node < larger * (size + 1) {
        node / (size + 1)
    } else {
        larger + (node - larger * (size + 1)) / size
    }
}

struct Random(Xoshiro256PlusPlus);

impl Random {
    fn new(seed: u64, block: u64) -> Self {
        let mut hasher = blake3::Hasher::new_derive_key("orcheck 1 trials of survival");
        hasher
            .update(&seed.to_le_bytes())
            .update(&block.to_le_bytes());
        Self(Xoshiro256PlusPlus::from_seed(hasher.finalize().into()))
    }

    /// Uniform below `limit`, which is not 0 (Lemire, Fast Random Integer Generation in an
    /// Interval, 2019).
    fn below(&mut self, limit: u32) -> u32 {
        let mut product = u64::from(self.0.next_u32()) * u64::from(limit);
        if (product as u32) < limit {
            let least = limit.wrapping_neg() % limit;
            while (product as u32) < least {
                product = u64::from(self.0.next_u32()) * u64::from(limit);
            }
        }
        (product >> 32) as u32
    }
}
