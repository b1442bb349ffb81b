//! Simulates lives of a job, event by event: runs with drawn or recorded failures, until the work
//! is done.
//!
//! What it does: it reports how one run spent its time and what happened when, and for many runs
//! the mean and the spread.
//! How: time advances from event to event: the end of a segment with its checkpoint, a checkpoint
//! that reaches its level, a failure, the end of a restart. A failure needs some level; the job
//! continues from the newest checkpoint that had reached it.
//!
//! Invariants:
//! 1. The parts of a run's time add up to it: work, checkpoints that counted, restarts, and lost
//!    time.
//! 2. The same seed and number give the same run.
//! 3. A run without progress ends too, and reports that.
//!
//! Assumed, as in `levels.rs`: the beginning is safe at every level, the end is a checkpoint; a
//! checkpoint in flight to a higher level arrives unless the job goes back behind it, or unless the
//! program was waiting for that: then the next one goes there instead.
//!
//! Not here: the expected time by formula (`levels.rs`), which interval is best.

use orcheck_format::{Error, Result};
use orcheck_interval::{Levels, Pattern, within};
use rand_distr::{Distribution, Gamma};
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};
use statrs::function::gamma::gamma;
use std::collections::BTreeMap;

/// A run that takes this many times its work is given up.
const GIVEN_UP: f64 = 1e4;
/// Maximum number of failures of a run; beyond it, the run is given up too.
const FAILURES_MAX: u64 = 1_000_000;
/// Maximum number of checkpoints of a run.
const CHECKPOINTS_MAX: f64 = 1e8;
/// Maximum number of failures that are recorded individually.
const EVENTS_MAX: usize = 100_000;

/// When failures come.
#[derive(Debug, Clone, PartialEq)]
pub enum Failures {
    /// At random, for each level with its mean time between failures.
    Exponential,
    /// For each level with its mean, and this shape; below 1, as is usual, failures come in bursts.
    /// A run begins at a random time.
    Weibull {
        /// The shape.
        shape: f64,
    },
    /// As recorded somewhere: times in seconds, ascending, each with the level that it needs, from
    /// 0. A run begins at a random time of the trace, which begins again at its end.
    Trace(Vec<(f64, usize)>),
}

/// A job, and how it takes checkpoints.
#[derive(Debug, Clone, PartialEq)]
pub struct Job {
    /// Computing time of the whole job, seconds.
    pub work_s: f64,
    /// Levels of its checkpoints.
    pub levels: Levels,
    /// How often each level is used.
    pub pattern: Pattern,
    /// The failures that strike it.
    pub failures: Failures,
}

/// The outcome of one run. All times are in seconds.
#[derive(Debug, Clone, PartialEq)]
pub struct Life {
    /// From the beginning to the end.
    pub total_s: f64,
    /// Of this: checkpoints that counted.
    pub checkpoints_s: f64,
    /// Restarts.
    pub restarts_s: f64,
    /// Computing and checkpoints that had to be repeated.
    pub lost_s: f64,
    /// Number of failures, by the level that they needed.
    pub failures: Vec<u64>,
    /// Whether the work was done.
    pub done: bool,
    /// The first failures, in order.
    pub events: Vec<Event>,
}

/// A failure, and its cost.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Event {
    /// When it struck.
    pub at_s: f64,
    /// The level that it needed, from 0.
    pub level: usize,
    /// Computing done when it struck, in seconds from the beginning of the work.
    pub reached_s: f64,
    /// Computing from which the job continued.
    pub back_to_s: f64,
    /// When the job computed again.
    pub again_s: f64,
}

impl Job {
    /// # Errors
    /// The errors of the levels and the pattern; Invalid for an invalid work time, shape or trace.
    pub fn check(&self) -> Result<()> {
        within("work, seconds", self.work_s, 1e-6, 1e12)?;
        self.levels.check()?;
        // No chain is built from it: the interval may be as long as the work, so that there is no
        // checkpoint of a level.
        self.levels.check_pattern(&self.pattern, u32::MAX)?;
        if self.work_s / self.pattern.interval_s > CHECKPOINTS_MAX {
            return Err(Error::invalid(format!(
                "interval {} s: expected at most {CHECKPOINTS_MAX:e} checkpoints in {} s of work",
                self.pattern.interval_s, self.work_s
            )));
        }
        match &self.failures {
            Failures::Exponential => Ok(()),
            Failures::Weibull { shape } => {
                within("shape of the Weibull distribution", *shape, 0.1, 10.0)
            }
            Failures::Trace(trace) => check_trace(trace, self.levels.0.len()),
        }
    }

    /// Simulates run number `number`.
    ///
    /// # Errors
    /// As [`Self::check`].
    pub fn live(&self, seed: u64, number: u64) -> Result<Life> {
        self.check()?;
        let mut fate = Fate::new(self, seed, number);
        let levels = &self.levels.0;
        let mut life = Life {
            total_s: 0.0,
            checkpoints_s: 0.0,
            restarts_s: 0.0,
            lost_s: 0.0,
            failures: vec![0; levels.len()],
            done: false,
            events: Vec::new(),
        };
        let mut taken = Taken::new(levels.len());
        let (mut now_s, mut segments) = (0.0, 0u64);
        let all = (self.work_s / self.pattern.interval_s).ceil().max(1.0) as u64;
        let failed = |life: &Life| life.failures.iter().sum::<u64>();
        while segments < all && now_s < self.work_s * GIVEN_UP && failed(&life) < FAILURES_MAX {
            let computed_s = now_s + self.computing_s(segments, all);
            let depth = taken
                .owed(&self.pattern, segments)
                .max(self.depth(segments + 1));
            let end_s = computed_s + levels[depth].checkpoint_s;
            let (failed_s, level) = fate.next();
            self.reach(
                &mut taken,
                segments + 1,
                depth,
                computed_s,
                failed_s.min(end_s),
            );
            if failed_s >= end_s {
                (now_s, segments) = (end_s, segments + 1);
                taken.costs(segments, end_s - computed_s - self.cost_s(segments));
                continue;
            }
            fate.strikes();
            let reached_s = self.computed_s(segments) + failed_s.min(computed_s) - now_s;
            life.failures[level] += 1;
            let (needs, again_s) = self.restart((&mut fate, &mut life), &taken, failed_s, level);
            let back = newest(&taken.safe[needs], failed_s);
            if back > segments {
                // It had reached a level that survives this.
                taken.costs(back, failed_s - computed_s - self.cost_s(back));
            } else {
                life.lost_s += failed_s - now_s;
            }
            let undone = (back..segments)
                .map(|segment| self.computing_s(segment, all) + self.cost_s(segment + 1));
            life.lost_s += undone.sum::<f64>() + taken.go_back(needs, back);
            life.restarts_s += again_s - failed_s;
            (now_s, segments) = (again_s, back);
            if life.events.len() < EVENTS_MAX {
                life.events.push(Event {
                    at_s: failed_s,
                    level: needs,
                    reached_s,
                    back_to_s: self.computed_s(back),
                    again_s,
                });
            }
        }
        life.done = segments == all;
        life.total_s = now_s;
        life.checkpoints_s = (1..=segments).map(|place| self.cost_s(place)).sum();
        life.checkpoints_s += taken.beside_s.values().sum::<f64>();
        Ok(life)
    }

    /// Notes which levels a checkpoint of this depth has reached, or will reach by itself: it began
    /// at `from_s`, and the program waited for it until `until_s`.
    fn reach(&self, taken: &mut Taken, segments: u64, depth: usize, from_s: f64, until_s: f64) {
        for (number, level) in self.levels.0.iter().enumerate().take(depth + 1) {
            if from_s + level.checkpoint_s <= until_s {
                let safe_s = from_s + level.checkpoint_s + level.safe_after_s;
                taken.push(number, (segments, safe_s), until_s);
            }
        }
    }

    /// From a failure until the job computes again; another failure may strike meanwhile, and need
    /// a higher level.
    fn restart(
        &self,
        (fate, life): (&mut Fate, &mut Life),
        taken: &Taken,
        failed_s: f64,
        level: usize,
    ) -> (usize, f64) {
        let (mut needs, mut begun_s) = (taken.lies(level, failed_s), failed_s);
        loop {
            let end_s = begun_s + self.levels.0[needs].restart_s;
            let (next_s, level) = fate.next();
            let struck: u64 = life.failures.iter().sum();
            if next_s >= end_s || begun_s > self.work_s * GIVEN_UP || struck >= FAILURES_MAX {
                return (needs, end_s);
            }
            fate.strikes();
            life.failures[level] += 1;
            (needs, begun_s) = (needs.max(taken.lies(level, failed_s)), next_s);
        }
    }

    /// Computing done with this many segments.
    fn computed_s(&self, segments: u64) -> f64 {
        (segments as f64 * self.pattern.interval_s).min(self.work_s)
    }

    /// Cost of the checkpoint after this many segments.
    fn cost_s(&self, segments: u64) -> f64 {
        self.levels.0[self.depth(segments)].checkpoint_s
    }

    /// The level of the checkpoint after this many segments.
    fn depth(&self, segments: u64) -> usize {
        let place = (segments % u64::from(self.pattern.period())) as u32;
        self.pattern.level_of(place)
    }

    /// Computing in a segment; the last one is the remainder.
    fn computing_s(&self, segment: u64, all: u64) -> f64 {
        match segment + 1 == all {
            true => self.work_s - segment as f64 * self.pattern.interval_s,
            false => self.pattern.interval_s,
        }
    }
}

/// The checkpoints that still count.
struct Taken {
    /// Per level: segments done, and when the level is reached.
    safe: Vec<Vec<(u64, f64)>>,
    /// By segments done, what a checkpoint cost beside what the pattern says, where it differs.
    beside_s: BTreeMap<u64, f64>,
    /// What was read last: segments done, and the level where it lies.
    read: (u64, usize),
}

impl Taken {
    fn new(levels: usize) -> Self {
        Self {
            safe: vec![vec![(0, f64::NEG_INFINITY)]; levels],
            beside_s: BTreeMap::new(),
            read: (0, 0),
        }
    }

    fn push(&mut self, level: usize, (segments, safe_s): (u64, f64), now_s: f64) {
        let of_level = &mut self.safe[level];
        // Older ones than the newest that has reached its level are of no use.
        let reached = of_level.iter().rposition(|&(_, safe_s)| safe_s <= now_s);
        of_level.drain(..reached.unwrap_or(0));
        of_level.push((segments, safe_s));
    }

    fn costs(&mut self, segments: u64, beside_s: f64) {
        if beside_s.abs() > 1e-12 {
            self.beside_s.insert(segments, beside_s);
        }
    }

    /// The strongest level whose last checkpoint was struck on its way there.
    fn owed(&self, pattern: &Pattern, segments: u64) -> usize {
        let due = |every: &u32| segments - segments % u64::from(*every);
        let owed = |(of_level, every): (&Vec<(u64, f64)>, &u32)| {
            of_level
                .last()
                .is_none_or(|(newest, _)| *newest < due(every))
        };
        let mut levels = self.safe.iter().zip(&pattern.every);
        levels.rposition(owed).unwrap_or(0)
    }

    /// The level from which the newest checkpoint is read after a failure that needs this one: what
    /// was read from a stronger level lies there, and at no weaker one yet.
    fn lies(&self, needs: usize, failed_s: f64) -> usize {
        match newest(&self.safe[needs], failed_s) == self.read.0 {
            true => needs.max(self.read.1),
            false => needs,
        }
    }

    /// Continues from the checkpoint after this many segments, read from level `needs`; returns
    /// what later ones cost beside what the pattern says.
    fn go_back(&mut self, needs: usize, back: u64) -> f64 {
        self.read = (back, needs);
        for (number, of_level) in self.safe.iter_mut().enumerate() {
            if number <= needs {
                // What was just read can be read again, also after failures that need a lower
                // level.
                *of_level = vec![(back, f64::NEG_INFINITY)];
            } else {
                of_level.retain(|&(done, _)| done <= back);
            }
        }
        self.beside_s.split_off(&(back + 1)).values().sum()
    }
}

/// The newest checkpoint that had reached its level.
fn newest(of_level: &[(u64, f64)], at_s: f64) -> u64 {
    let reached = of_level.iter().rev().find(|(_, safe_s)| *safe_s <= at_s);
    reached.map_or(0, |&(segments, _)| segments)
}

fn check_trace(trace: &[(f64, usize)], levels: usize) -> Result<()> {
    if trace.is_empty() {
        return Err(Error::invalid(
            "the trace of failures is empty: expected at least one failure",
        ));
    }
    let mut before_s = 0.0;
    for (number, &(at_s, level)) in trace.iter().enumerate() {
        let of = |text: String| {
            Err(Error::invalid(format!(
                "failure {} of the trace: {text}",
                number + 1
            )))
        };
        if !(at_s > 0.0 && at_s <= 1e12 && at_s >= before_s) {
            return of(format!(
                "expected a time above 0 and not before {before_s} s, found {at_s} s"
            ));
        }
        if level >= levels {
            return of(format!(
                "expected one of {levels} levels, found number {}",
                level + 1
            ));
        }
        before_s = at_s;
    }
    Ok(())
}

/// The failures that strike a run.
enum Fate<'a> {
    /// For each level, the next failure; how to draw the one after it.
    Drawn {
        random: Xoshiro256PlusPlus,
        next_s: Vec<f64>,
        /// The scale for each level, and the shape.
        scales_s: Vec<f64>,
        shape: f64,
    },
    Recorded {
        trace: &'a [(f64, usize)],
        /// The next one, and the offset to add to its time.
        at: usize,
        shift_s: f64,
    },
}

impl<'a> Fate<'a> {
    fn new(job: &'a Job, seed: u64, number: u64) -> Self {
        let mut hasher = blake3::Hasher::new_derive_key("orcheck 1 lives of a job");
        hasher
            .update(&seed.to_le_bytes())
            .update(&number.to_le_bytes());
        let mut random = Xoshiro256PlusPlus::from_seed(hasher.finalize().into());
        let shape = match &job.failures {
            Failures::Exponential => 1.0,
            Failures::Weibull { shape } => *shape,
            Failures::Trace(trace) => {
                let span_s = trace.last().map_or(0.0, |&(at_s, _)| at_s);
                let begin_s = uniform(&mut random) * span_s;
                let at = trace.partition_point(|&(at_s, _)| at_s <= begin_s);
                let mut fate = Fate::Recorded {
                    trace,
                    at,
                    shift_s: -begin_s,
                };
                fate.turn();
                return fate;
            }
        };
        let scale_s = |level: &orcheck_interval::Level| level.mtbf_s / gamma(1.0 + 1.0 / shape);
        let scales_s: Vec<f64> = job.levels.0.iter().map(scale_s).collect();
        let next_s = scales_s
            .iter()
            .map(|&scale_s| draw_first(&mut random, scale_s, shape))
            .collect();
        Fate::Drawn {
            random,
            next_s,
            scales_s,
            shape,
        }
    }

    /// When the next failure strikes, and the level that it needs.
    fn next(&self) -> (f64, usize) {
        match self {
            Fate::Drawn { next_s, .. } => {
                let numbered = next_s
                    .iter()
                    .enumerate()
                    .map(|(level, &at_s)| (at_s, level));
                numbered
                    .min_by(|a, b| a.0.total_cmp(&b.0))
                    .unwrap_or((f64::INFINITY, 0))
            }
            Fate::Recorded { trace, at, shift_s } => {
                let (at_s, level) = trace[*at];
                (at_s + shift_s, level)
            }
        }
    }

    /// The next failure has struck.
    fn strikes(&mut self) {
        let (at_s, level) = self.next();
        match self {
            Fate::Drawn {
                random,
                next_s,
                scales_s,
                shape,
            } => {
                next_s[level] = at_s + draw(random, scales_s[level], *shape);
            }
            Fate::Recorded { at, .. } => *at += 1,
        }
        self.turn();
    }

    /// Begins a trace again at its end.
    fn turn(&mut self) {
        if let Fate::Recorded { trace, at, shift_s } = self
            && *at == trace.len()
        {
            *at = 0;
            *shift_s += trace[trace.len() - 1].0;
        }
    }
}

/// Above 0 and at most 1.
fn uniform(random: &mut Xoshiro256PlusPlus) -> f64 {
    ((random.next_u64() >> 11) + 1) as f64 / (1u64 << 53) as f64
}

/// Time from a random moment until a failure. The moment falls into a longer gap between two
/// failures with a probability proportional to its length, uniformly within it. For the time to the
/// power of the shape, that gives a Gamma distribution.
fn draw_first(random: &mut Xoshiro256PlusPlus, scale_s: f64, shape: f64) -> f64 {
    let share = uniform(random);
    match Gamma::new(1.0 + 1.0 / shape, 1.0) {
        Ok(powered) => share * scale_s * powered.sample(random).powf(1.0 / shape),
        // Never for a checked shape.
        Err(_) => draw(random, scale_s, shape),
    }
}

/// Time from one failure to the next, with a Weibull distribution.
fn draw(random: &mut Xoshiro256PlusPlus, scale_s: f64, shape: f64) -> f64 {
    scale_s * (-uniform(random).ln()).powf(1.0 / shape)
}
