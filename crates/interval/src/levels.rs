//! Computes the interval of checkpoints of several levels, each of which survives more than the one
//! below, and their cost.
//!
//! How: every nth checkpoint also goes to the next level, in a pattern that repeats. The expected
//! time of a pattern is that of a Markov chain (`levels/chain.rs`), which says what is assumed.
//!
//! Invariants:
//! 1. With one level that is reached at once, the expected time is that of
//!    [`crate::single::Single`].
//! 2. The recommendation is no worse than its neighbours; it is found by hill climbing, and not
//!    proven to be the global optimum.
//!
//! Not here: failures with other distributions, a single run with its luck (`life.rs`).

mod chain;

use crate::single::TIMES_S;
use crate::within;
use chain::Chain;
use orcheck_format::{Error, Result};
use std::collections::BTreeMap;

/// Maximum number of levels.
const LEVELS_MAX: usize = 8;
/// Maximum number of checkpoints in a pattern.
const PATTERN_MAX: u32 = 1 << 13;
/// At most this many checkpoints pass one on its way to a stronger level; the next one waits.
const PASSED_MAX: u32 = 63;
/// The same where a job waits for the answer: the time to compute grows with it.
const SOON_MAX: u32 = 1 << 5;
/// An efficiency that is no larger is that of a job without progress: digits are lost.
const NONE: f64 = 1e-12;
/// Precision of the search for the logarithm of the interval while climbing, and at the end.
const SEARCHED: (f64, f64) = (1e-3, 1e-6);

/// A level of checkpoints.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Level {
    /// Cost to the program of a checkpoint of this level, including the lower ones, seconds.
    pub checkpoint_s: f64,
    /// Time from the end of the call until the checkpoint has reached this level, seconds.
    pub safe_after_s: f64,
    /// Time from a failure until the program computes again, reading from this level, seconds.
    pub restart_s: f64,
    /// Mean time between failures that need this level and no higher one, seconds; infinite if
    /// there are none.
    pub mtbf_s: f64,
}

/// How often each level is used.
#[derive(Debug, Clone, PartialEq)]
pub struct Pattern {
    /// Computing time between two checkpoints, seconds.
    pub interval_s: f64,
    /// For each level, n if every nth checkpoint is of at least this level. 1 for the lowest; each
    /// is a multiple of the previous one.
    pub every: Vec<u32>,
}

/// A pattern and its efficiency.
#[derive(Debug, Clone, PartialEq)]
pub struct Recommended {
    /// The pattern.
    pub pattern: Pattern,
    /// The fraction of the time that is useful computing.
    pub efficiency: f64,
}

/// Levels from the weakest to the strongest.
#[derive(Debug, Clone, PartialEq)]
pub struct Levels(pub Vec<Level>);

impl Levels {
    /// # Errors
    /// Invalid: no level or too many, an invalid time, or failures that come before a checkpoint
    /// ends.
    pub fn check(&self) -> Result<()> {
        let count = self.0.len();
        if count == 0 || count > LEVELS_MAX {
            return Err(Error::invalid(format!(
                "{count} levels: expected 1 to {LEVELS_MAX}"
            )));
        }
        for (number, level) in self.0.iter().enumerate() {
            let at = |error: Error| error.at(format!("level {}", number + 1));
            within(
                "checkpoint, seconds",
                level.checkpoint_s,
                TIMES_S.0,
                TIMES_S.1,
            )
            .map_err(at)?;
            within("safe after, seconds", level.safe_after_s, 0.0, TIMES_S.1).map_err(at)?;
            within("restart, seconds", level.restart_s, 0.0, TIMES_S.1).map_err(at)?;
            within(
                "mean time between failures, seconds",
                level.mtbf_s,
                TIMES_S.0,
                f64::INFINITY,
            )
            .map_err(at)?;
        }
        if let Some(number) = self
            .0
            .windows(2)
            .position(|pair| pair[1].safe_after_s < pair[0].safe_after_s)
        {
            return Err(Error::invalid(format!(
                "level {}: expected it to be reached no sooner than the one below, found after {} \
                 s and {} s",
                number + 2,
                self.0[number + 1].safe_after_s,
                self.0[number].safe_after_s
            )));
        }
        let mtbf_s = 1.0 / self.rate();
        let cost_s = self.0[0].checkpoint_s;
        if mtbf_s <= cost_s {
            return Err(Error::invalid(format!(
                "mean time between failures {mtbf_s} s, of all levels together: expected more than the {cost_s} s of a checkpoint, or the job never makes progress"
            )));
        }
        Ok(())
    }

    /// Failures per second, over all levels.
    fn rate(&self) -> f64 {
        self.0.iter().map(|level| 1.0 / level.mtbf_s).sum()
    }

    /// The fraction of the time that is useful computing.
    ///
    /// # Errors
    /// As [`Self::check`]; Invalid for a pattern that is not valid, in which a level is reached
    /// later than its next checkpoint begins, or with which the job makes no progress.
    pub fn efficiency(&self, pattern: &Pattern) -> Result<f64> {
        self.check()?;
        self.check_pattern(pattern, PATTERN_MAX)?;
        self.efficiency_of(pattern)
    }

    /// The same for a pattern that is known to be valid.
    fn efficiency_of(&self, pattern: &Pattern) -> Result<f64> {
        let total_s = Chain::new(self, pattern).solve()?;
        let efficiency = f64::from(pattern.period()) * pattern.interval_s / total_s;
        debug_assert!((0.0..=1.0 + 1e-9).contains(&efficiency), "{efficiency}");
        Ok(efficiency)
    }

    /// # Errors
    /// Invalid for a pattern that does not fit these levels.
    pub fn check_pattern(&self, pattern: &Pattern, most: u32) -> Result<()> {
        within(
            "interval, seconds",
            pattern.interval_s,
            TIMES_S.0,
            TIMES_S.1,
        )?;
        let multiples = pattern
            .every
            .windows(2)
            .all(|pair| pair[0] > 0 && pair[1] > 0 && pair[1].is_multiple_of(pair[0]));
        if pattern.every.len() != self.0.len()
            || pattern.every.first() != Some(&1)
            || !multiples
            || pattern.period() > most
        {
            return Err(Error::invalid(format!(
                "pattern {:?}: expected a number for each of {} levels, from 1 on, each a multiple of the one before, at most {most}",
                pattern.every,
                self.0.len()
            )));
        }
        for (number, (level, &every)) in self.0.iter().zip(&pattern.every).enumerate() {
            let room_s = f64::from(every) * pattern.interval_s;
            if level.safe_after_s > room_s {
                return Err(Error::invalid(format!(
                    "level {}: expected it to be reached within the {room_s} s until its next checkpoint, found {} s",
                    number + 1,
                    level.safe_after_s
                ))
                .next("take checkpoints of this level less often"));
            }
        }
        Ok(())
    }

    /// The pattern with the best efficiency, as far as climbing finds it.
    ///
    /// # Errors
    /// As [`Self::check`]; Invalid if the job makes no progress with any pattern that was tried.
    pub fn recommend(&self) -> Result<Recommended> {
        self.check()?;
        let mut known = BTreeMap::new();
        let mut best: Option<(Vec<u32>, f64)> = None;
        for start in [vec![1; self.0.len()], self.first_order().1] {
            let found = self.climb(start, PATTERN_MAX, &mut known);
            if best
                .as_ref()
                .is_none_or(|(_, efficiency)| found.1 > *efficiency)
            {
                best = Some(found);
            }
        }
        let ratios = best.map_or_else(|| vec![1; self.0.len()], |(ratios, _)| ratios);
        self.settle(&ratios)
    }

    /// A good pattern within some 10 ms, for a job that waits for it: the best one if its period
    /// is short, otherwise the one of first-order theory, which is close where levels lie far
    /// apart.
    ///
    /// # Errors
    /// As [`Self::recommend`].
    pub fn recommend_soon(&self) -> Result<Pattern> {
        self.check()?;
        let (interval_s, ratios) = self.first_order();
        let period: u64 = ratios.iter().map(|&ratio| u64::from(ratio)).product();
        if period > u64::from(SOON_MAX) {
            let every = every_of(&ratios);
            return Ok(Pattern { interval_s, every });
        }
        let (ratios, _) = self.climb(ratios, SOON_MAX, &mut BTreeMap::new());
        self.settle(&ratios).map(|best| best.pattern)
    }

    /// The interval with the best efficiency if every checkpoint goes to all levels.
    ///
    /// # Errors
    /// As [`Self::recommend`].
    pub fn recommend_together(&self) -> Result<Recommended> {
        self.check()?;
        self.settle(&vec![1; self.0.len()])
    }

    /// The best interval for these ratios of levels, with which the job makes progress.
    fn settle(&self, ratios: &[u32]) -> Result<Recommended> {
        let best = self.best_interval(ratios, SEARCHED.1);
        if best.efficiency > NONE {
            return Ok(best);
        }
        Err(makes_no_progress())
    }

    /// Climbs from these ratios of levels to others as long as they are better and their period is
    /// at most `most`; returns the last ones and their efficiency.
    fn climb(
        &self,
        mut ratios: Vec<u32>,
        most: u32,
        known: &mut BTreeMap<Vec<u32>, f64>,
    ) -> (Vec<u32>, f64) {
        let mut efficiency_of = |ratios: &Vec<u32>| match known.get(ratios) {
            Some(&efficiency) => efficiency,
            None => {
                let efficiency = self.best_interval(ratios, SEARCHED.0).efficiency;
                known.insert(ratios.clone(), efficiency);
                efficiency
            }
        };
        let mut best = efficiency_of(&ratios);
        loop {
            let mut better: Option<(Vec<u32>, f64)> = None;
            for at in 1..ratios.len() {
                let ratio = ratios[at];
                for other in [
                    ratio + 1,
                    ratio - 1,
                    ratio * 2,
                    ratio / 2,
                    ratio + ratio / 4 + 1,
                    ratio - ratio / 4,
                ] {
                    let mut tried = ratios.clone();
                    tried[at] = other.max(1);
                    let period: u64 = tried.iter().map(|&r| u64::from(r)).product();
                    if period > u64::from(most) {
                        continue;
                    }
                    let found = efficiency_of(&tried);
                    // A smaller difference is noise of the search.
                    if found > better.as_ref().map_or(best, |(_, found)| *found) * (1.0 + 1e-6) {
                        better = Some((tried, found));
                    }
                }
            }
            match better {
                Some((tried, found)) => (ratios, best) = (tried, found),
                None => return (ratios, best),
            }
        }
    }

    /// An interval, and ratios for which each level is used as often as Young's rule says for it
    /// alone, and is reached before its next checkpoint.
    fn first_order(&self) -> (f64, Vec<u32>) {
        let (mut below_s, mut every, mut interval_s) = (0.0, 1u32, 1.0);
        let mut ratios = Vec::new();
        for (number, level) in self.0.iter().enumerate() {
            let rate: f64 = self.0[number..]
                .iter()
                .map(|level| 1.0 / level.mtbf_s)
                .sum();
            let own_s = (level.checkpoint_s - below_s).max(level.checkpoint_s * 1e-3);
            let young_s = (2.0 * own_s / rate)
                .sqrt()
                .min(TIMES_S.1)
                .max(level.safe_after_s);
            if number == 0 {
                interval_s = young_s;
            }
            let ratio = (young_s / (interval_s * f64::from(every))).ceil();
            let ratio = ratio.clamp(1.0, f64::from(PATTERN_MAX / every)) as u32;
            ratios.push(ratio);
            every *= ratio;
            below_s = level.checkpoint_s;
        }
        (interval_s, ratios)
    }

    /// The best interval for these ratios of levels: golden-section search over its logarithm, with
    /// this precision.
    fn best_interval(&self, ratios: &[u32], closely: f64) -> Recommended {
        let every = every_of(ratios);
        let least_s = self
            .0
            .iter()
            .zip(&every)
            .map(|(level, &every)| level.safe_after_s / f64::from(every.min(PASSED_MAX)))
            .fold(self.0[0].checkpoint_s * 1e-3, f64::max);
        let most_s = (4.0 / self.rate()).min(TIMES_S.1).max(least_s * 2.0);
        let of = |ln_s: f64| {
            let pattern = Pattern {
                interval_s: ln_s.exp(),
                every: every.clone(),
            };
            // A job that makes no progress computes nothing.
            let efficiency = self.efficiency_of(&pattern).unwrap_or(0.0);
            Recommended {
                pattern,
                efficiency,
            }
        };
        let golden = (5f64.sqrt() - 1.0) / 2.0;
        // Slightly above the minimum, which rounding must not fall below.
        let (mut low, mut high) = (least_s.ln() + 1e-12, most_s.ln());
        let (mut a, mut b) = (
            of(high - golden * (high - low)),
            of(low + golden * (high - low)),
        );
        while high - low > closely {
            // If both compute nothing, shorter intervals may.
            if a.efficiency >= b.efficiency {
                high = low + golden * (high - low);
                b = a;
                a = of(high - golden * (high - low));
            } else {
                low = high - golden * (high - low);
                a = b;
                b = of(low + golden * (high - low));
            }
        }
        if a.efficiency >= b.efficiency { a } else { b }
    }
}

/// For each level, n if every nth checkpoint is of at least this level, from how often each level
/// is used beside the one below.
fn every_of(ratios: &[u32]) -> Vec<u32> {
    let products = ratios.iter().scan(1u32, |product, ratio| {
        *product *= ratio;
        Some(*product)
    });
    products.collect()
}

fn makes_no_progress() -> Error {
    Error::invalid("failures come so often that the job never makes progress")
        .next("take checkpoints that cost less or are reached sooner, or those of the higher levels more often")
}

impl Pattern {
    /// Number of checkpoints until it repeats.
    #[must_use]
    pub fn period(&self) -> u32 {
        self.every.last().copied().unwrap_or(1)
    }

    /// The level, from 0, of a checkpoint at this position of the pattern; those at position 0 are
    /// the highest.
    #[must_use]
    pub fn level_of(&self, place: u32) -> usize {
        self.every
            .iter()
            .rposition(|&every| place.is_multiple_of(every))
            .unwrap_or(0)
    }
}
