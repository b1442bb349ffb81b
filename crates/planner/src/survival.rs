//! Computes how likely a job can be restarted after several nodes are lost at the same time.
//!
//! What it does: it gives the probability that every node's part of a checkpoint still exists, or
//! can be computed from what exists, after this many random failures; exactly if there is a formula
//! or a count, and otherwise by trials.
//! How: exact counts of losses in groups and rings are coefficients of powers of small polynomials
//! (`count.rs`). Trials draw what fails, and then whatever the redundancy draws (`trials.rs`).
//!
//! | redundancy | a node's part is gone if it is lost and | exact |
//! | --- | --- | --- |
//! | peers | the next k nodes of a random ring are | rings without k+1 adjacent lost nodes |
//! | random | all its k holders are, drawn per node | (1 − C(f−1, k)/C(n−1, k))^f |
//! | partner | the next k nodes of a ring are | rings without k+1 adjacent lost nodes |
//! | group | more than m of its group of g nodes are | products of what the groups may lose |
//!
//! The formula for random holders gives Table 1 of Walters and Chaudhary (HiPC 2007). Peers are
//! what Orcheck deals (ADR 49). Groups use XOR (m = 1) or Reed-Solomon codes.
//!
//! Nodes on one switch fail together: node i is on switch ⌊i / `together`⌋. With `apart`, the
//! redundancy draws holders on other switches, uses as partners the nodes whole switches further
//! on, and assigns nodes to groups in turn. On the ring of peers, switches are then in random
//! order, each with its nodes side by side, and holders are whole switches further on. As what
//! fails is random too, it does not matter which switch is where: peers are partners. Otherwise,
//! what is lost with a switch is anywhere on the ring.
//!
//! Invariants:
//! 1. A result is a probability; it is 1 if nothing can be gone, and does not grow with the number
//!    of losses.
//! 2. Exact means exact for this description, up to rounding: by [`Setup::rounding`] at most. It is
//!    1 only if that is certain.
//! 3. The same seed gives the same trials, no matter who runs which of them.
//!
//! Not here: who holds what in a job (`orcheck-placement`), how often nodes fail, losses one after
//! the other with repair between them.

mod count;
mod trials;

use orcheck_format::{Error, Result};

pub use trials::{BLOCK_TRIALS, Found, Trials, agreement};

/// Maximum number of nodes; a larger number is a mistake.
pub const NODES_MAX: u32 = 1 << 24;
/// Maximum number of nodes of a group, and maximum number of replicas plus one.
pub(crate) const GROUP_MAX: u32 = 4096;
/// The maximum probability of an uncertain event.
const ALMOST: f64 = 1.0 - f64::EPSILON / 2.0;

/// Table 1 of Walters and Chaudhary (HiPC 2007): nodes, and the losses that are survived with each
/// of [`TABLE_1_PERCENT`], with one replica, two, three and four.
pub const TABLE_1: [(u32, [u32; 12]); 9] = [
    (8, [1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4]),
    (16, [1, 1, 1, 2, 2, 2, 5, 4, 3, 7, 5, 4]),
    (32, [2, 1, 1, 5, 3, 2, 8, 5, 4, 11, 8, 6]),
    (64, [3, 1, 1, 8, 4, 2, 14, 8, 4, 19, 12, 8]),
    (128, [4, 1, 1, 12, 6, 3, 22, 13, 8, 32, 21, 14]),
    (256, [5, 2, 1, 19, 9, 5, 37, 21, 13, 55, 35, 23]),
    (512, [7, 2, 1, 31, 14, 7, 62, 35, 20, 95, 60, 38]),
    (1024, [10, 3, 1, 48, 22, 11, 104, 58, 33, 165, 103, 67]),
    (2048, [15, 5, 2, 76, 35, 17, 174, 97, 55, 285, 178, 111]),
];
/// The probabilities of [`TABLE_1`], in percent.
pub const TABLE_1_PERCENT: [f64; 3] = [90.0, 99.0, 99.9];

/// How other nodes protect a node's part of a checkpoint, in addition to the node's own copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Redundancy {
    /// This many other nodes hold it, dealt evenly in random order, as Orcheck does.
    Peers {
        /// Copies beyond the node's own.
        replicas: u32,
    },
    /// This many other nodes hold it, drawn at random for each node.
    Random {
        /// Copies beyond the node's own.
        replicas: u32,
    },
    /// The next this many nodes of a ring hold it.
    Partner {
        /// Copies beyond the node's own.
        replicas: u32,
    },
    /// Nodes are in groups, and any `parity` nodes of a group may be lost.
    Group {
        /// Minimum number of nodes of a group; the remainder is distributed over the groups.
        size: u32,
        /// Number of nodes that it may lose: 1 for XOR.
        parity: u32,
    },
}

/// The nodes, what fails together, and the redundancy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Setup {
    /// Nodes.
    pub nodes: u32,
    /// Number of nodes that fail together, such as those on a switch; 1: each alone.
    pub together: u32,
    /// Whether the redundancy of a node avoids nodes that fail together with it.
    pub apart: bool,
    /// Who holds what.
    pub redundancy: Redundancy,
}

impl Setup {
    /// Nodes that fail one by one.
    #[must_use]
    pub fn alone(nodes: u32, redundancy: Redundancy) -> Self {
        Self {
            nodes,
            together: 1,
            apart: true,
            redundancy,
        }
    }

    /// The number of units that fail as one: switches, or nodes.
    #[must_use]
    pub fn units(&self) -> u32 {
        self.nodes.div_ceil(self.together.max(1))
    }

    /// The maximum rounding error of an exact probability.
    #[must_use]
    pub fn rounding(&self) -> f64 {
        let counted = if self.scattered() {
            self.nodes
        } else {
            self.units()
        };
        1e-14 * f64::from(counted.max(100))
    }

    /// Whether nodes that fail together are anywhere on a ring.
    fn scattered(&self) -> bool {
        !self.apart && matches!(self.redundancy, Redundancy::Peers { .. })
    }

    /// Number of groups of the redundancy.
    fn groups(&self, size: u32) -> u32 {
        (self.nodes / size.max(1)).max(1)
    }

    /// # Errors
    /// Invalid: no nodes, or fewer than the redundancy needs.
    pub fn check(&self) -> Result<()> {
        let refused = |found: String, expected: String| {
            Err(Error::invalid(format!("{found}: expected {expected}")))
        };
        if self.nodes == 0 || self.nodes > NODES_MAX {
            return refused(format!("{} nodes", self.nodes), format!("1 to {NODES_MAX}"));
        }
        if self.together == 0 || self.together > self.nodes {
            return refused(
                format!("{} nodes that fail together", self.together),
                format!("1 to {}, which is all nodes", self.nodes),
            );
        }
        let apart = if self.apart { self.together } else { 1 };
        match self.redundancy {
            Redundancy::Peers { replicas }
            | Redundancy::Random { replicas }
            | Redundancy::Partner { replicas } => {
                // As many as there are others: with `apart`, one on each whole switch.
                let most = (self.nodes / apart).saturating_sub(1).min(GROUP_MAX - 1);
                if replicas > most {
                    let others = if apart > 1 {
                        "whole switches other than its own"
                    } else {
                        "other nodes"
                    };
                    let why = match most == GROUP_MAX - 1 {
                        true => String::new(),
                        false => format!(", as many as there are {others}"),
                    };
                    return refused(
                        format!("{replicas} replicas"),
                        format!("at most {most}{why}"),
                    );
                }
            }
            Redundancy::Group { size, parity } => {
                let most = self.nodes.min(GROUP_MAX);
                if size < 2 || size > most {
                    return refused(format!("groups of {size}"), format!("2 to {most} nodes"));
                }
                if parity == 0 || parity >= size {
                    return refused(
                        format!("{parity} lost nodes of a group of {size}"),
                        format!("1 to {}", size - 1),
                    );
                }
                let most = self.nodes / apart;
                if size > most {
                    return refused(
                        format!("groups of {size} at as many switches"),
                        format!("at most {most}, as many as there are whole switches"),
                    );
                }
            }
        }
        Ok(())
    }

    fn check_loss(&self, lost: u32) -> Result<()> {
        self.check()?;
        let units = self.units();
        if lost <= units {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "{lost} lost: expected 0 to {units}, which is all"
        )))
    }

    /// Probability that nothing is gone if this many units are lost; `None` if only trials can
    /// tell.
    ///
    /// # Errors
    /// As [`Self::check`]; Invalid for more lost units than exist.
    pub fn exact(&self, lost: u32) -> Result<Option<f64>> {
        self.check_loss(lost)?;
        let units = self.units();
        if lost == 0 {
            return Ok(Some(1.0));
        }
        let (nodes, together) = (self.nodes, self.together);
        if !nodes.is_multiple_of(together) {
            return Ok(None);
        }
        Ok(match self.redundancy {
            Redundancy::Peers { replicas } if !self.apart => {
                Some(count::ring(nodes, replicas + 1, lost * together))
            }
            Redundancy::Random { replicas } => {
                // With `apart`, holders are on a random set of other switches, which are then what
                // is counted.
                let (gone, all) = match self.apart {
                    true => (lost - 1, units - 1),
                    false => (lost * together - 1, nodes - 1),
                };
                let held: f64 = (0..replicas)
                    .map(|i| f64::from(gone.saturating_sub(i)) / f64::from(all - i))
                    .product();
                let survived = (f64::from(lost) * f64::from(together) * (-held).ln_1p()).exp();
                Some(if gone < replicas {
                    1.0
                } else {
                    survived.min(ALMOST)
                })
            }
            Redundancy::Peers { replicas } | Redundancy::Partner { replicas } => {
                // Of neighbours that fail together, those count whose holders are on the fewest
                // switches.
                let row = match self.apart {
                    true => replicas + 1,
                    false => (replicas + 1).div_ceil(together),
                };
                Some(count::ring(units, row, lost))
            }
            Redundancy::Group { size, parity } => {
                let groups = self.groups(size);
                match self.apart {
                    true if groups.is_multiple_of(together) => {
                        Some(count::groups(units, groups / together, parity, lost))
                    }
                    false if together == 1 => Some(count::groups(units, groups, parity, lost)),
                    false if nodes.is_multiple_of(size) && together.is_multiple_of(size) => {
                        Some(0.0)
                    }
                    false if nodes.is_multiple_of(size) && size.is_multiple_of(together) => {
                        Some(count::groups(units, groups, parity / together, lost))
                    }
                    _ => None,
                }
            }
        })
    }

    /// The maximum number of lost units such that nothing is gone with at least this exact
    /// probability; `None` if only trials can tell.
    ///
    /// # Errors
    /// As [`Self::check`]; Invalid if this is not a probability above 0.
    pub fn allowed(&self, probability: f64) -> Result<Option<u32>> {
        self.check()?;
        if !(probability > 0.0 && probability <= 1.0) {
            return Err(Error::invalid(format!(
                "a probability of {probability}: expected more than 0 and at most 1"
            )));
        }
        let (mut enough, mut too_many) = (0, self.units() + 1);
        while too_many - enough > 1 {
            let lost = enough + (too_many - enough) / 2;
            match self.exact(lost)? {
                None => return Ok(None),
                Some(found) if found >= probability => enough = lost,
                Some(_) => too_many = lost,
            }
        }
        Ok(Some(enough))
    }
}
