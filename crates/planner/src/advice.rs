//! Recommends which levels of checkpoints serve a job on a machine best, and how often to take
//! them.
//!
//! How: each way to keep checkpoints ([`Way`]) is turned into levels: what a checkpoint costs the
//! program, when it has reached each level, how long a restart from there takes, and how often
//! failures need it. [`Levels`] computes how often to take checkpoints, and which fraction of the
//! time is left for computing. A checkpoint goes to all levels of its way, as in Orcheck. A failure
//! that no level survives restarts the work from the beginning, like one segment of Daly's model
//! ([`Single::expected_s`]).
//!
//! | quantity | value |
//! | --- | --- |
//! | cost, written by the program | S / shared rate, equation (1) of Shahzad et al.: it waits |
//! | cost, written by threads | the longer of the copy and m S_node / B_M per place, equation (2) |
//! | reached | one after the other: own disk, each replica (network), file system |
//! | restart | start the program and read: from own disk, another node or the file system |
//!
//! Invariants:
//! 1. Every failure belongs to exactly one level, the lowest that survives it, or to none; together
//!    they are all failures.
//!
//! Assumed: replicas of nodes that fail together are elsewhere (option `topology`), or, if the job
//! has too few nodes for that, their loss needs the file system; a shared rate is the job's, except
//! as limited by its links.
//!
//! Not here: the model of levels (`levels.rs`), the properties of machines (presets of
//! the command line).

use crate::survival::{Redundancy, Setup};
use orcheck_format::{Error, Result};
use orcheck_interval::{Level, Levels, Pattern, Recommended, Single, TIMES_S, within};

/// Maximum number of replicas that are tried.
pub const REPLICAS_MAX: u32 = 3;
/// Maximum number of further losses that are considered after the first; if more are expected, the
/// replicas count as lost.
const FURTHER_LOSSES: u32 = 500;
/// A smaller gain, as a fraction of all the time, does not justify a way with more parts: of two
/// equally good ways, the simpler one.
const WORTH: f64 = 1e-4;

/// Rates of a place that keeps checkpoints, bytes/s.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rates {
    /// Of writes.
    pub write_bytes_per_s: f64,
    /// Of reads.
    pub read_bytes_per_s: f64,
}

/// How often things fail: mean times between failures, seconds; infinite: never.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Failing {
    /// Of the processes of one node, which then keeps its data.
    pub process_mtbf_s: f64,
    /// Of one node, with its data.
    pub node_mtbf_s: f64,
    /// Number of nodes that fail together, such as those on a switch, and the mean time between
    /// such failures of one switch.
    pub together: (u32, f64),
    /// Of the whole machine at once.
    pub system_mtbf_s: f64,
}

/// A machine; figures are per node unless stated otherwise.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Machine {
    /// B_M, memory bandwidth, bytes/s.
    pub memory_bytes_per_s: f64,
    /// Rate of a copy in memory, bytes/s.
    pub copy_bytes_per_s: f64,
    /// m, the bytes that move between memory and processors for each byte written somewhere.
    pub memory_passes: f64,
    /// The node's own disk, if there is one.
    pub disk: Option<Rates>,
    /// Rate of the network, each way, bytes/s.
    pub network_bytes_per_s: f64,
    /// The shared file system, as much of it as the job gets.
    pub shared: Rates,
    /// How often things fail.
    pub failing: Failing,
}

/// A job.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Task {
    /// Nodes.
    pub nodes: u32,
    /// Bytes of a node's part of a checkpoint.
    pub node_bytes: f64,
    /// Time from a failure until the program runs again and can read, seconds.
    pub relaunch_s: f64,
    /// Computing time of the whole job, seconds.
    pub work_s: f64,
}

/// A way to keep checkpoints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// The program writes to the file system, and waits.
    Program,
    /// Level `global` alone.
    Global,
    /// Levels `node` and `global`.
    Node,
    /// Levels `peers` and `global`.
    Peers {
        /// Number of copies on other nodes.
        replicas: u32,
    },
    /// Level `peers` alone: a failure that it does not survive restarts the work from the
    /// beginning.
    PeersAlone {
        /// Number of copies on other nodes.
        replicas: u32,
    },
}

/// A way for a job, and its result.
#[derive(Debug, Clone)]
pub struct Choice {
    /// The way.
    pub way: Way,
    /// Its levels, without those that no failure needs.
    pub levels: Levels,
    /// Their names.
    pub names: Vec<&'static str>,
    /// How often to take checkpoints, and the fraction of the time that is left, if some level
    /// survives; an error if the job makes no progress.
    pub found: std::result::Result<Recommended, Error>,
    /// For two levels: the same if each has a pace of its own, and a checkpoint of the lower one
    /// costs less; `None` if that is not better.
    pub paced: Option<(Levels, Recommended)>,
    /// Mean time between failures that restart the work from the beginning, seconds; infinite: none
    /// do.
    pub from_nothing_mtbf_s: f64,
    task: Task,
}

impl Choice {
    /// The fraction of the time that is useful computing: with checkpoints, or without if that is
    /// better.
    #[must_use]
    pub fn efficiency(&self) -> f64 {
        let found = self.found.as_ref().ok();
        let with = found.and_then(|found| self.efficiency_at(found.pattern.interval_s));
        with.unwrap_or(0.0).max(self.efficiency_without())
    }

    /// The same with checkpoints after this much computing; `None` for an interval in which a level
    /// is not reached.
    #[must_use]
    pub fn efficiency_at(&self, interval_s: f64) -> Option<f64> {
        let pattern = Pattern {
            interval_s,
            every: vec![1; self.levels.0.len()],
        };
        let of_levels = self.levels.efficiency(&pattern).ok()?;
        match self.from_nothing_mtbf_s.is_finite() {
            true => Some(
                self.begun_from_nothing(self.task.work_s / of_levels, self.from_nothing_mtbf_s),
            ),
            false => Some(of_levels),
        }
    }

    /// The same without checkpoints.
    fn efficiency_without(&self) -> f64 {
        self.begun_from_nothing(self.task.work_s, self.mtbf_s())
    }

    /// The fraction of the time that is useful if `undisturbed_s` of work begins again with each
    /// failure.
    fn begun_from_nothing(&self, undisturbed_s: f64, mtbf_s: f64) -> f64 {
        let segment = Single {
            checkpoint_s: 0.0,
            restart_s: self.task.relaunch_s,
            mtbf_s,
        };
        self.task.work_s / segment.expected_s(undisturbed_s, undisturbed_s)
    }

    /// Whether the work is done sooner without checkpoints.
    #[must_use]
    pub fn is_without(&self) -> bool {
        self.efficiency() <= self.efficiency_without()
    }

    /// Mean time between failures of the job, seconds.
    #[must_use]
    pub fn mtbf_s(&self) -> f64 {
        let of_levels: f64 = self.levels.0.iter().map(|level| 1.0 / level.mtbf_s).sum();
        1.0 / (of_levels + 1.0 / self.from_nothing_mtbf_s)
    }
}

impl Machine {
    /// # Errors
    /// Invalid, naming the number, its value and the range.
    pub fn check(&self) -> Result<()> {
        let rate = |what: &str, found: f64| within(what, found, 1.0, 1e18);
        rate("bytes/s of a node's memory", self.memory_bytes_per_s)?;
        rate("bytes/s of a copy in memory", self.copy_bytes_per_s)?;
        within("passes over the memory", self.memory_passes, 0.01, 1000.0)?;
        if let Some(disk) = self.disk {
            rate("bytes/s written to a node's disk", disk.write_bytes_per_s)?;
            rate("bytes/s read from a node's disk", disk.read_bytes_per_s)?;
        }
        rate("bytes/s of a node's network", self.network_bytes_per_s)?;
        rate(
            "bytes/s written to the file system",
            self.shared.write_bytes_per_s,
        )?;
        rate(
            "bytes/s read from the file system",
            self.shared.read_bytes_per_s,
        )?;
        let failing = &self.failing;
        for (what, mtbf_s) in [
            ("of a node's processes", failing.process_mtbf_s),
            ("of a node", failing.node_mtbf_s),
            ("of nodes together", failing.together.1),
            ("of the system", failing.system_mtbf_s),
        ] {
            let what = format!("mean time between failures {what}, seconds");
            within(&what, mtbf_s, TIMES_S.0, f64::INFINITY)?;
        }
        within(
            "nodes that fail together",
            f64::from(failing.together.0),
            1.0,
            1e9,
        )
    }

    /// Every way for which this machine has the parts, by increasing requirements.
    ///
    /// # Errors
    /// As [`Self::check`]; Invalid for a job without nodes or data, or without failures.
    pub fn choices(&self, task: &Task) -> Result<Vec<Choice>> {
        self.check()?;
        within("nodes of the job", f64::from(task.nodes), 1.0, 1e7)?;
        within("bytes of a node's part", task.node_bytes, 1.0, 1e18)?;
        within(
            "time to start the program, seconds",
            task.relaunch_s,
            0.0,
            TIMES_S.1,
        )?;
        within("work, seconds", task.work_s, 1e-6, TIMES_S.1)?;
        if self.rates(task).iter().sum::<f64>() <= 0.0 {
            return Err(Error::invalid(
                "nothing ever fails: expected a mean time between failures",
            ));
        }
        let mut ways = vec![Way::Program, Way::Global];
        if self.disk.is_some() {
            // Data on the node alone helps if processes fail and nodes do not.
            if self.failing.process_mtbf_s.is_finite() {
                ways.push(Way::Node);
            }
            for replicas in 1..=REPLICAS_MAX {
                if self.setups(task, replicas).0.check().is_err() {
                    continue;
                }
                // Without knowing how often the system fails, nobody knows what would be lost
                // without the file system.
                if self.failing.system_mtbf_s.is_finite() {
                    ways.push(Way::PeersAlone { replicas });
                }
                ways.push(Way::Peers { replicas });
            }
        }
        ways.into_iter().map(|way| self.choice(task, way)).collect()
    }

    /// Failures per second of the job's processes, its nodes, nodes that fail together, and the
    /// system.
    fn rates(&self, task: &Task) -> [f64; 4] {
        let (failing, nodes) = (&self.failing, f64::from(task.nodes));
        let (of_unit, unit_mtbf_s) = failing.together;
        [
            nodes / failing.process_mtbf_s,
            nodes / failing.node_mtbf_s,
            f64::from(task.nodes.div_ceil(of_unit.max(1))) / unit_mtbf_s,
            1.0 / failing.system_mtbf_s,
        ]
    }

    /// How replicas are placed and what is lost with them: for single nodes, and for those that
    /// fail together, if replicas can be kept away from these.
    fn setups(&self, task: &Task, replicas: u32) -> (Setup, Option<Setup>) {
        let redundancy = Redundancy::Peers { replicas };
        let alone = Setup::alone(task.nodes, redundancy);
        let (of_unit, unit_mtbf_s) = self.failing.together;
        let together = Setup {
            together: of_unit.clamp(1, task.nodes),
            ..alone
        };
        let apart = unit_mtbf_s.is_finite() && together.check().is_ok();
        // A partial group of nodes counts as a whole one.
        let whole = Setup {
            nodes: together.units() * together.together,
            ..together
        };
        (alone, apart.then_some(whole))
    }

    /// Failures per second that replicas survive, of single nodes and of nodes that fail together,
    /// if lost replicas are rebuilt within `open_s`.
    fn survived(&self, task: &Task, replicas: u32, open_s: f64) -> Result<f64> {
        let [_, node, together, _] = self.rates(task);
        let (alone, apart) = self.setups(task, replicas);
        let of_nodes = node * survived(&alone, node * open_s)?;
        let Some(apart) = apart else {
            return Ok(of_nodes);
        };
        // A node, and a switch that is not its own: with one replica, the node's replica may be on
        // that switch, or replicas of that switch's nodes on the node.
        let (unit, nodes) = (f64::from(apart.together), f64::from(apart.nodes));
        let both = match replicas {
            1 => (2.0 * unit / (nodes - unit)).min(1.0),
            _ => 0.0,
        };
        let of_units = together * survived(&apart, together * open_s)?;
        Ok(of_nodes * (-together * open_s * both).exp() + of_units * (-node * open_s * both).exp())
    }

    // tidy: long because it is one derivation, from rates to the levels of one way
    fn choice(&self, task: &Task, way: Way) -> Result<Choice> {
        let [process, node, together, system] = self.rates(task);
        let bytes = task.node_bytes;
        let (nodes, total) = (
            f64::from(task.nodes),
            f64::from(task.nodes) * task.node_bytes,
        );
        let links = nodes * self.network_bytes_per_s;
        let written_s = total / self.shared.write_bytes_per_s.min(links);
        let from_shared_s = task.relaunch_s + total / self.shared.read_bytes_per_s.min(links);
        // The number of places that receive a node's part, the time until it has reached the lower
        // level, and the restart from there.
        let (places, below) = match (way, self.disk) {
            (Way::Node, Some(disk)) => {
                let restart_s = task.relaunch_s + bytes / disk.read_bytes_per_s;
                (2, Some((bytes / disk.write_bytes_per_s, restart_s)))
            }
            (Way::Peers { replicas } | Way::PeersAlone { replicas }, Some(disk)) => {
                let copies = f64::from(replicas);
                // Every node stores its own part, and as many bytes of others as it sends.
                let after_s = bytes * (1.0 + copies) / disk.write_bytes_per_s
                    + bytes * copies / self.network_bytes_per_s;
                let from_another = disk.read_bytes_per_s.min(self.network_bytes_per_s);
                let restart_s = task.relaunch_s + bytes / from_another;
                let alone = matches!(way, Way::PeersAlone { .. });
                let places = 1 + replicas + u32::from(!alone);
                (places, Some((after_s, restart_s)))
            }
            _ => (1, None),
        };
        let copy_s = bytes / self.copy_bytes_per_s;
        let moved_s = self.memory_passes * bytes / self.memory_bytes_per_s;
        let beside_s = copy_s.max(f64::from(places) * moved_s);
        let mut levels = Vec::new();
        let mut names = Vec::new();
        let mut above = process + node + together + system;
        if let Some((after_s, restart_s)) = below {
            let (name, kept) = match way {
                Way::Peers { replicas } | Way::PeersAlone { replicas } => {
                    let open_s = restart_s + 2.0 * after_s + beside_s;
                    ("peers", process + self.survived(task, replicas, open_s)?)
                }
                _ => ("node", process),
            };
            names.push(name);
            levels.push(Level {
                checkpoint_s: beside_s,
                safe_after_s: after_s,
                restart_s,
                mtbf_s: 1.0 / kept,
            });
            above -= kept;
        }
        // Differences of sums leave rounding errors.
        let all = process + node + together + system;
        let above_mtbf_s = 1.0 / if above > 1e-12 * all { above } else { 0.0 };
        let alone = matches!(way, Way::PeersAlone { .. });
        if !alone {
            let (checkpoint_s, after_s) = match way {
                Way::Program => (written_s, 0.0),
                _ => (beside_s, written_s),
            };
            let below_s = levels
                .first()
                .map_or(0.0, |level: &Level| level.safe_after_s);
            names.push("global");
            levels.push(Level {
                checkpoint_s,
                safe_after_s: after_s + below_s,
                restart_s: from_shared_s,
                mtbf_s: above_mtbf_s,
            });
        }
        let levels = Levels(levels);
        let found = match levels.0.iter().all(|level| level.mtbf_s.is_infinite()) {
            true => Err(Error::invalid("no failure is survived by these levels")),
            false => levels.recommend_together(),
        };
        let seldom_s = copy_s.max(f64::from(places.saturating_sub(1)) * moved_s);
        let paced = paced(&levels, seldom_s, found.as_ref().ok());
        Ok(Choice {
            way,
            paced,
            levels,
            names,
            found,
            from_nothing_mtbf_s: if alone { above_mtbf_s } else { f64::INFINITY },
            task: *task,
        })
    }
}

/// The best pattern if a checkpoint that leaves the upper level out costs only `lower_s`, unless
/// everything to all levels is as good.
fn paced(
    levels: &Levels,
    lower_s: f64,
    together: Option<&Recommended>,
) -> Option<(Levels, Recommended)> {
    let &[lower, upper] = &levels.0[..] else {
        return None;
    };
    let lower = Level {
        checkpoint_s: lower_s,
        ..lower
    };
    let levels = Levels(vec![lower, upper]);
    let best = levels.recommend().ok()?;
    let better = best.efficiency > together.map_or(0.0, |found| found.efficiency) + WORTH;
    better.then_some((levels, best))
}

/// The share of losses that replicas survive if `expected` further losses occur on average before
/// copies are rebuilt.
fn survived(setup: &Setup, expected: f64) -> Result<f64> {
    if expected > f64::from(FURTHER_LOSSES) / 2.0 {
        return Ok(0.0);
    }
    let (mut chance, mut survived) = ((-expected).exp(), 0.0);
    for further in 0..=FURTHER_LOSSES {
        if further > 0 {
            chance *= expected / f64::from(further);
        }
        let lost = (1 + further).min(setup.units());
        survived += chance * setup.exact(lost)?.unwrap_or(0.0);
    }
    Ok(survived)
}

/// The index of the recommended choice: the simplest with Orcheck among those as good as the best;
/// without Orcheck only if that is better.
#[must_use]
pub fn best(choices: &[Choice]) -> Option<usize> {
    let most = choices.iter().map(Choice::efficiency).fold(0.0, f64::max);
    let good = |choice: &Choice| most > WORTH && choice.efficiency() >= most - WORTH;
    let with = |choice: &Choice| choice.way != Way::Program && good(choice);
    (choices.iter().position(with)).or_else(|| choices.iter().position(good))
}
