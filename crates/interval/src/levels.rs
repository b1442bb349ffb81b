//! The interval of checkpoints of several levels, each of which survives more than the one below, and what they cost.
//!
//! How: every this many checkpoints one is of the next level too, in a pattern that repeats. What happens between two checkpoints is a
//! state of a Markov chain, as in Moody et al. (SC 2010): a segment of computing and the checkpoint behind it end, or a failure
//! strikes, which needs some level, and what was computed since the last checkpoint that has reached it is computed again,
//! segment by segment. Here levels may be reached some time after the program continues, as asynchronous ones are; so which
//! checkpoint a failure goes back to depends on when it strikes within a segment. The expected times T_j of the segments follow
//! from each other, once round the pattern; they are iterated until they stay.
//!
//! Invariants:
//! 1. With one level that is reached at once, the expected time is that of [`crate::single::Single`].
//! 2. What is recommended is no worse than its neighbours; it is found by climbing, not proven to be the best of all.
//!
//! Assumed: failures of each level come at random and independently; whoever failed, what is under way to a higher level arrives as
//! if nothing had happened (the agents of Orcheck continue without the program), unless the failure goes back behind it.
//!
//! Not here: failures that come in another way, a single run with its luck (`life.rs`).

use crate::single::TIMES_S;
use crate::within;
use orcheck_format::{Error, Result};
use std::collections::BTreeMap;

/// Most levels.
const LEVELS_MAX: usize = 8;
/// Most checkpoints of a pattern.
const PATTERN_MAX: u32 = 1 << 13;
/// The iteration ends when no time moves by more than this share of itself.
const SETTLED: f64 = 1e-10;
const ROUNDS_MAX: u32 = 10_000;
/// Rounds in which it is asked again when levels are reached; then times have nearly settled.
const STRETCHED_ROUNDS: u32 = 30;
/// How closely the logarithm of the interval is searched while climbing, and at the end.
const SEARCHED: (f64, f64) = (1e-3, 1e-6);

/// A level of checkpoints.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Level {
    /// What a checkpoint of this level, with the lower ones, costs the program, seconds.
    pub checkpoint_s: f64,
    /// From when the program continues until the checkpoint has reached this level, seconds.
    pub safe_after_s: f64,
    /// From a failure until the program computes again, read from this level, seconds.
    pub restart_s: f64,
    /// Mean time between failures that need this level and no higher one, seconds; infinite: there are none.
    pub mtbf_s: f64,
}

/// How often which level.
#[derive(Debug, Clone, PartialEq)]
pub struct Pattern {
    /// Computing between two checkpoints, seconds.
    pub interval_s: f64,
    /// For each level: every this many checkpoints one is of this level at least. 1 for the lowest; each is a multiple of the one before.
    pub every: Vec<u32>,
}

/// A pattern, and what it comes to.
#[derive(Debug, Clone, PartialEq)]
pub struct Recommended {
    /// The pattern.
    pub pattern: Pattern,
    /// The share of the time that computes what counts.
    pub efficiency: f64,
}

/// Levels from the weakest to the strongest.
#[derive(Debug, Clone, PartialEq)]
pub struct Levels(pub Vec<Level>);

impl Levels {
    /// # Errors
    /// Invalid: no level or too many, a time that is none, or failures that come before a checkpoint ends.
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
                "level {}: expected it to be reached no sooner than the one below, found after {} s and {} s",
                number + 2,
                self.0[number + 1].safe_after_s,
                self.0[number].safe_after_s
            )));
        }
        let mtbf_s = 1.0 / self.rate();
        let cost_s = self.0[0].checkpoint_s;
        if mtbf_s <= cost_s {
            return Err(Error::invalid(format!(
                "mean time between failures {mtbf_s} s, of all levels together: expected more than the {cost_s} s of a checkpoint, or the job never gets on"
            )));
        }
        Ok(())
    }

    /// Failures a second, of all levels.
    fn rate(&self) -> f64 {
        self.0.iter().map(|level| 1.0 / level.mtbf_s).sum()
    }

    /// The share of the time that computes what counts.
    ///
    /// # Errors
    /// As [`Self::check`]; Invalid for a pattern that is none, in which a level is reached later than its next checkpoint begins,
    /// or with which the job never gets on.
    pub fn efficiency(&self, pattern: &Pattern) -> Result<f64> {
        self.check()?;
        self.check_pattern(pattern, PATTERN_MAX)?;
        self.efficiency_of(pattern)
    }

    /// The same of a pattern that is known to be one.
    fn efficiency_of(&self, pattern: &Pattern) -> Result<f64> {
        let total_s = Chain::new(self, pattern).solve()?;
        Ok(f64::from(pattern.period()) * pattern.interval_s / total_s)
    }

    /// # Errors
    /// Invalid for a pattern that is none of these levels.
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
    /// As [`Self::check`]; Invalid where the job never gets on with any pattern that was tried.
    pub fn recommend(&self) -> Result<Recommended> {
        self.check()?;
        let mut known = BTreeMap::new();
        let mut best: Option<(Vec<u32>, f64)> = None;
        for start in [vec![1; self.0.len()], self.first_order()] {
            let found = self.climb(start, &mut known);
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

    /// The interval with the best efficiency where every checkpoint goes to all levels.
    ///
    /// # Errors
    /// As [`Self::recommend`].
    pub fn recommend_together(&self) -> Result<Recommended> {
        self.check()?;
        self.settle(&vec![1; self.0.len()])
    }

    /// The best interval for these ratios of levels, with which the job gets on.
    fn settle(&self, ratios: &[u32]) -> Result<Recommended> {
        let best = self.best_interval(ratios, SEARCHED.1);
        if best.efficiency > 0.0 {
            return Ok(best);
        }
        Err(never_gets_on())
    }

    /// From these ratios of levels to others as long as they are better, and their efficiency.
    fn climb(&self, mut ratios: Vec<u32>, known: &mut BTreeMap<Vec<u32>, f64>) -> (Vec<u32>, f64) {
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
                    if period > u64::from(PATTERN_MAX) {
                        continue;
                    }
                    let found = efficiency_of(&tried);
                    // Less is noise of the search.
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

    /// Ratios where each level is taken as often as Young's rule says for itself, and is reached before its next one.
    fn first_order(&self) -> Vec<u32> {
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
        ratios
    }

    /// The best interval for these ratios of levels: golden section search over its logarithm, as closely as this.
    fn best_interval(&self, ratios: &[u32], closely: f64) -> Recommended {
        let every: Vec<u32> = ratios
            .iter()
            .scan(1u32, |product, ratio| {
                *product *= ratio;
                Some(*product)
            })
            .collect();
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
            // A job that never gets on computes nothing.
            let efficiency = self.efficiency_of(&pattern).unwrap_or(0.0);
            Recommended {
                pattern,
                efficiency,
            }
        };
        let golden = (5f64.sqrt() - 1.0) / 2.0;
        // A hair above the least, which rounding must not go below.
        let (mut low, mut high) = (least_s.ln() + 1e-12, most_s.ln());
        let (mut a, mut b) = (
            of(high - golden * (high - low)),
            of(low + golden * (high - low)),
        );
        while high - low > closely {
            // Where both compute nothing, shorter intervals may.
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

fn never_gets_on() -> Error {
    Error::invalid("failures come so often that the job never gets on")
        .next("take checkpoints that cost less or are reached sooner, or those of the higher levels more often")
}

impl Pattern {
    /// Checkpoints until it repeats.
    #[must_use]
    pub fn period(&self) -> u32 {
        self.every.last().copied().unwrap_or(1)
    }

    /// The level, from 0, of a checkpoint by its place in the pattern; those at 0 are the highest.
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
    /// Failures a second.
    rate: f64,
    /// For each level the share of failures that need it.
    shares: Vec<f64>,
    /// Computing and checkpoint of each segment.
    lengths_s: Vec<f64>,
    segments: Vec<Segment>,
}

/// From one checkpoint to the end of the next, by what it begins with: the checkpoint just taken (0), or one that was just read
/// from level `n` − 1 and so has reached it.
type Segment = Vec<Vec<Part>>;

/// Part of a segment in which failures go back to the same checkpoints.
struct Part {
    /// That a failure strikes in it, in one try of the segment.
    probability: f64,
    /// For each level the segments that have to be computed again before this one.
    back: Vec<u32>,
}

/// Expected times, seconds, of one round of the pattern.
struct Times {
    /// For each segment, by what it begins with.
    of: Vec<Vec<f64>>,
    /// From the begin of the pattern until each segment begins, and to the end, where each begins with a checkpoint just taken.
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

    /// Says when in each segment which level is reached, given when segments begin.
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
            // Failures take time too, in which a level is reached: segments begin when they are expected to.
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
        Err(never_gets_on())
    }

    /// Expected times until a segment is behind the job, by what it begins with: each follows from all of them, linearly.
    fn times_s(&self, place: usize, now: &Times, before: &Times) -> Vec<f64> {
        let count = self.levels.len() + 1;
        // To full precision where failures are rare too.
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

    /// For each level, what passes from a failure that needs it until the segment is behind the job.
    fn after_failure(&self, place: usize, part: &Part, now: &Times, before: &Times) -> Vec<Linear> {
        let (m, count) = (1.0 / self.rate, self.levels.len());
        let mut after = vec![Linear::constant(0.0, count + 1); count];
        // The highest first: another failure may strike in the restart.
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

/// Time, seconds, of this many segments before `place`, the first of which begins with what was read (as in [`Segment`]).
fn again_s(place: usize, back: usize, read: usize, now: &Times, before: &Times) -> f64 {
    match back.checked_sub(place) {
        None | Some(0) => {
            let first = place - back;
            now.of[first][read] + now.sums[place] - now.sums[first + 1]
        }
        // Beyond the begin of the pattern, the last round counts.
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
    /// Segments since.
    since: u32,
    /// Segments between two of the level.
    every: u32,
    /// When it has reached its level, seconds from the begin of the segment.
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

/// The unknowns; each is one of these sums of all. Their factors are probabilities that add up to less than 1, so that
/// each one can be taken out of the others in turn.
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
    // The first one is of nothing else now, the second of the first, and so on.
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
