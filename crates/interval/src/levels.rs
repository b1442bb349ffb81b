//! Computes the interval of checkpoints of several levels, each of which survives more than the one
//! below, and their cost.
//!
//! How: every nth checkpoint also goes to the next level, in a pattern that repeats. What happens
//! between two checkpoints is a state of a Markov chain, as in Moody et al. (SC 2010). Either a
//! segment of computing and the checkpoint after it end, or a failure strikes that needs some
//! level; then everything since the last checkpoint that had reached this level is computed again,
//! segment by segment. Here a level may be reached some time after the program continues, as with
//! asynchronous levels. Which checkpoint a failure goes back to therefore depends on when it
//! strikes within a segment. The expected times T_j of the segments depend on each other, once
//! round the pattern; they are iterated until they converge.
//!
//! Invariants:
//! 1. With one level that is reached at once, the expected time is that of
//!    [`crate::single::Single`].
//! 2. The recommendation is no worse than its neighbours; it is found by hill climbing, and not
//!    proven to be the global optimum.
//!
//! Assumed: failures of each level are random and independent. Whatever failed, a checkpoint in
//! flight to a higher level arrives as if nothing had happened (Orcheck's agents continue without
//! the program), unless the failure goes back behind it.
//!
//! Not here: failures with other distributions, a single run with its luck (`life.rs`).

use crate::single::TIMES_S;
use crate::within;
use orcheck_format::{Error, Result};
use std::collections::BTreeMap;

/// Maximum number of levels.
const LEVELS_MAX: usize = 8;
/// Maximum number of checkpoints in a pattern.
const PATTERN_MAX: u32 = 1 << 13;
/// The same where a job waits for the answer: the time to compute grows with it.
const SOON_MAX: u32 = 1 << 5;
/// The iteration ends when no time changes by more than this fraction of itself.
const SETTLED: f64 = 1e-10;
const ROUNDS_MAX: u32 = 10_000;
/// Number of rounds in which the times at which levels are reached are computed again; by then the
/// times have nearly converged.
const STRETCHED_ROUNDS: u32 = 30;
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
        if best.efficiency > 0.0 {
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
            .map(|(level, &every)| level.safe_after_s / f64::from(every))
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

/// The states of a pattern.
struct Chain<'a> {
    levels: &'a [Level],
    pattern: &'a Pattern,
    /// Failures per second.
    rate: f64,
    /// For each level, the share of failures that need it.
    shares: Vec<f64>,
    /// Computing and checkpoint time of each segment.
    lengths_s: Vec<f64>,
    segments: Vec<Segment>,
}

/// From one checkpoint to the end of the next, by the state in which it begins: after the
/// checkpoint just taken (0), or after reading one from level `n` − 1, which has therefore reached
/// it.
type Segment = Vec<Vec<Part>>;

/// Part of a segment in which failures go back to the same checkpoints.
struct Part {
    /// The probability that a failure strikes in it, in one attempt of the segment.
    probability: f64,
    /// For each level, the number of segments to compute again before this one.
    back: Vec<u32>,
}

/// Expected times, seconds, of one round of the pattern.
struct Times {
    /// For each segment, by the state in which it begins.
    of: Vec<Vec<f64>>,
    /// From the beginning of the pattern until each segment begins, and to the end, if each begins
    /// after a checkpoint just taken.
    sums: Vec<f64>,
}

impl Times {
    fn new() -> Self {
        Self {
            of: Vec::new(),
            sums: vec![0.0],
        }
    }

    fn push(&mut self, of: Vec<f64>) {
        self.sums.push(self.total_s() + of[0]);
        self.of.push(of);
    }

    fn total_s(&self) -> f64 {
        self.sums[self.sums.len() - 1]
    }
}

impl<'a> Chain<'a> {
    fn new(levels: &'a Levels, pattern: &'a Pattern) -> Self {
        let (rate, levels) = (levels.rate(), &levels.0);
        let share = |level: &Level| {
            if rate > 0.0 {
                1.0 / level.mtbf_s / rate
            } else {
                0.0
            }
        };
        let length_s =
            |place: u32| pattern.interval_s + levels[pattern.level_of(place)].checkpoint_s;
        Self {
            levels,
            pattern,
            rate,
            shares: levels.iter().map(share).collect(),
            lengths_s: (1..=pattern.period()).map(length_s).collect(),
            segments: Vec::new(),
        }
    }

    /// Sets when each level is reached in each segment, given when segments begin.
    fn begin_at(&mut self, begins_s: &[f64]) {
        let segment = |(place, &length_s): (usize, &f64)| {
            let of_level = |(level, &every): (&Level, &u32)| {
                let since = place as u32 % every;
                let since_s = begins_s[place] - begins_s[place - since as usize];
                Last {
                    since,
                    every,
                    safe_at_s: level.safe_after_s - since_s,
                }
            };
            let last: Vec<Last> = self
                .levels
                .iter()
                .zip(&self.pattern.every)
                .map(of_level)
                .collect();
            let begun = (0..=self.levels.len()).map(|read| {
                let mut last = last.clone();
                last.iter_mut()
                    .take(read)
                    .for_each(|last| last.safe_at_s = 0.0);
                parts(&last, length_s, self.rate)
            });
            begun.collect()
        };
        self.segments = self.lengths_s.iter().enumerate().map(segment).collect();
    }

    /// Expected time of a whole pattern, seconds.
    fn solve(&mut self) -> Result<f64> {
        let mut before = Times::new();
        for &length_s in &self.lengths_s {
            before.push(vec![length_s; self.levels.len() + 1]);
        }
        if self.rate == 0.0 {
            return Ok(before.total_s());
        }
        let later = self.levels.iter().any(|level| level.safe_after_s > 0.0);
        for round in 0..ROUNDS_MAX {
            // Failures take time too, during which a level may be reached: segments begin at their
            // expected times.
            if round == 0 || later && round < STRETCHED_ROUNDS {
                self.begin_at(&before.sums);
            }
            let mut now = Times::new();
            for place in 0..self.lengths_s.len() {
                now.push(self.times_s(place, &now, &before));
            }
            if !now.total_s().is_finite() {
                break;
            }
            let near = |(a, b): (&f64, &f64)| (a - b).abs() <= SETTLED * a.abs();
            let settled = now.sums.iter().zip(&before.sums).all(near);
            before = now;
            if settled {
                return Ok(before.total_s());
            }
        }
        Err(makes_no_progress())
    }

    /// Expected times until a segment is complete, by the state in which it begins: each depends
    /// linearly on all of them.
    fn times_s(&self, place: usize, now: &Times, before: &Times) -> Vec<f64> {
        let count = self.levels.len() + 1;
        // At full precision, even if failures are rare.
        let fails = -(-self.rate * self.lengths_s[place]).exp_m1();
        let equation = |parts: &Vec<Part>| {
            let mut sum = Linear::constant(fails / self.rate, count);
            for part in parts {
                let after = self.after_failure(place, part, now, before);
                for (share, after) in self.shares.iter().zip(&after) {
                    sum.add(part.probability * share, after);
                }
            }
            sum
        };
        solve(self.segments[place].iter().map(equation).collect())
    }

    /// For each level, the time from a failure that needs it until the segment is complete.
    fn after_failure(&self, place: usize, part: &Part, now: &Times, before: &Times) -> Vec<Linear> {
        let (m, count) = (1.0 / self.rate, self.levels.len());
        let mut after = vec![Linear::constant(0.0, count + 1); count];
        // The highest first: another failure may strike during the restart.
        for (number, level) in self.levels.iter().enumerate().rev() {
            let done = (-level.restart_s / m).exp();
            let failed = -(-level.restart_s / m).exp_m1();
            let mut sum = Linear::constant(failed * m, count + 1);
            match part.back[number] as usize {
                0 => sum.of[number + 1] += done,
                back => {
                    sum.constant += done * again_s(place, back, number + 1, now, before);
                    sum.of[0] += done;
                }
            }
            for (share, other) in self.shares.iter().zip(&after).skip(number + 1) {
                sum.add(failed * share, other);
            }
            let same: f64 = self.shares[..=number].iter().sum();
            sum.times(1.0 / (1.0 - failed * same));
            after[number] = sum;
        }
        after
    }
}

/// Time, in seconds, of this many segments before `place`; the first of them begins with what was
/// read (as in [`Segment`]).
fn again_s(place: usize, back: usize, read: usize, now: &Times, before: &Times) -> f64 {
    match back.checked_sub(place) {
        None | Some(0) => {
            let first = place - back;
            now.of[first][read] + now.sums[place] - now.sums[first + 1]
        }
        // Before the beginning of the pattern, the last round counts.
        Some(earlier) => {
            let count = before.of.len();
            let first = (count - earlier % count) % count;
            let rounds = (earlier - 1) / count;
            let rest_s = before.total_s() - before.sums[first + 1];
            before.of[first][read] + rest_s + before.total_s() * rounds as f64 + now.sums[place]
        }
    }
}

/// The last checkpoint of a level before a segment.
#[derive(Clone)]
struct Last {
    /// Segments since then.
    since: u32,
    /// Number of segments between two checkpoints of the level.
    every: u32,
    /// When it has reached its level, in seconds from the beginning of the segment.
    safe_at_s: f64,
}

fn parts(last: &[Last], length_s: f64, rate: f64) -> Vec<Part> {
    let within = |at_s: &f64| *at_s > 0.0 && *at_s < length_s;
    let mut cuts_s: Vec<f64> = last
        .iter()
        .map(|last| last.safe_at_s)
        .filter(within)
        .collect();
    cuts_s.push(length_s);
    cuts_s.sort_by(f64::total_cmp);
    let mut from_s = 0.0;
    let part = |to_s: f64| {
        let back = |last: &Last| match last.safe_at_s <= from_s {
            true => last.since,
            false => last.since + last.every,
        };
        let part = Part {
            probability: (-rate * from_s).exp() * -(-rate * (to_s - from_s)).exp_m1(),
            back: last.iter().map(back).collect(),
        };
        from_s = to_s;
        part
    };
    cuts_s.into_iter().map(part).collect()
}

/// A sum of unknowns, each with a factor, and a constant.
#[derive(Clone)]
struct Linear {
    constant: f64,
    of: Vec<f64>,
}

impl Linear {
    fn constant(constant: f64, count: usize) -> Self {
        Self {
            constant,
            of: vec![0.0; count],
        }
    }

    fn add(&mut self, factor: f64, other: &Self) {
        self.constant += factor * other.constant;
        self.of
            .iter_mut()
            .zip(&other.of)
            .for_each(|(sum, of)| *sum += factor * of);
    }

    fn times(&mut self, factor: f64) {
        self.constant *= factor;
        self.of.iter_mut().for_each(|of| *of *= factor);
    }
}

/// Solves for the unknowns, each of which is one of these sums of all. Their factors are
/// probabilities that add up to less than 1, so that each unknown can be eliminated from the others
/// in turn.
fn solve(mut equations: Vec<Linear>) -> Vec<f64> {
    for at in (0..equations.len()).rev() {
        let own = std::mem::take(&mut equations[at].of[at]);
        equations[at].times(1.0 / (1.0 - own));
        let (before, rest) = equations.split_at_mut(at);
        for other in before {
            let factor = std::mem::take(&mut other.of[at]);
            other.add(factor, &rest[0]);
        }
    }
    // The first one no longer depends on any other, the second only on the first, and so on.
    let mut found = Vec::with_capacity(equations.len());
    for equation in &equations {
        let of_others: f64 = equation
            .of
            .iter()
            .zip(&found)
            .map(|(of, found)| of * found)
            .sum();
        found.push(equation.constant + of_others);
    }
    found
}
