//! Computes the expected time of one round of a pattern of checkpoints.
//!
//! How: what happens between two checkpoints is a state of a Markov chain, as in Moody et al.
//! (SC 2010). Either a segment of computing and the checkpoint after it end, or a failure strikes
//! that needs some level; then everything since the last checkpoint that had reached this level is
//! computed again, segment by segment. Here a level may be reached some time after the program
//! continues, as with asynchronous levels. Which checkpoint a failure goes back to therefore
//! depends on when it strikes within a segment. The expected times T_j of the segments depend on
//! each other, once round the pattern; they are iterated until they converge.
//!
//! A checkpoint reaches the weaker levels as soon as one of these alone would. What strikes after
//! that, while the stronger level is being written, goes back to this very checkpoint if a weaker
//! level survives it; the stronger level then gets the next checkpoint instead.
//!
//! Assumed: failures of each level are random and independent. Whatever failed, a checkpoint in
//! flight to a higher level arrives as if nothing had happened (Orcheck's agents continue without
//! the program), unless the failure goes back behind it; what the program waits for (a cost) ends
//! with it. A checkpoint that a stronger level got later than at its place counts as of its place;
//! what that saves in failures until the next one is counted on average, to first order.
//!
//! Not here: which pattern is best (`levels.rs`).

use super::{Level, Levels, Pattern, makes_no_progress};
use orcheck_format::Result;

/// The iteration ends when no time changes by more than this fraction of itself.
const SETTLED: f64 = 1e-10;
const ROUNDS_MAX: u32 = 10_000;
/// Number of rounds in which the times at which levels are reached are computed again; by then the
/// times have nearly converged.
const STRETCHED_ROUNDS: u32 = 30;

/// The states of a pattern.
pub(super) struct Chain<'a> {
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

/// From one checkpoint to the end of the next, by the state in which it begins. With N levels:
/// after the checkpoint just taken (0); after reading one from level n − 1, which has therefore
/// reached it (n, up to N); after reading one that has reached the weakest k levels only, because a
/// failure struck while it was on its way to others, which the next one goes to (N + k).
type Segment = Vec<Begun>;

/// A segment that began in one state.
struct Begun {
    /// Computing and checkpoint time.
    length_s: f64,
    parts: Vec<Part>,
    late: Option<Late>,
}

/// What is different where the checkpoint before did not reach some levels.
struct Late {
    /// The weakest of them.
    level: usize,
    /// How many more of its checkpoints in a row have not reached it either, on average.
    more: f64,
}

/// Part of a segment in which failures go back to the same checkpoints.
struct Part {
    /// The probability that a failure strikes in it, in one attempt of the segment.
    probability: f64,
    /// For each level, where a failure that needs it goes.
    goes: Vec<Goes>,
}

/// Where the program continues after a failure.
#[derive(Clone, Copy)]
enum Goes {
    /// This many segments are computed again before this one.
    Back(usize),
    /// The checkpoint at the end of this segment has reached this many levels, the weakest ones.
    On(usize),
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
    pub(super) fn new(levels: &'a Levels, pattern: &'a Pattern) -> Self {
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

    /// Number of states in which a segment may begin.
    fn states(&self) -> usize {
        2 * self.levels.len()
    }

    /// Sets when each level is reached in each segment, given when segments begin.
    fn begin_at(&mut self, begins_s: &[f64]) {
        let places = 0..self.pattern.period();
        let segment = |place| {
            let begun = (0..self.states()).map(|state| self.begun(place, state, begins_s));
            begun.collect()
        };
        self.segments = places.map(segment).collect();
    }

    /// A segment that begins in this state.
    fn begun(&self, place: u32, state: usize, begins_s: &[f64]) -> Begun {
        let count = self.levels.len();
        let (read, reached) = match state.checked_sub(count) {
            None | Some(0) => (state, count),
            Some(reached) => (reached, reached),
        };
        // The levels that the checkpoint before did not reach.
        let owed = reached..count.min(reached.max(self.pattern.level_of(place)) + 1);
        let mut level = self.pattern.level_of(place + 1);
        if !owed.is_empty() {
            level = level.max(owed.end - 1);
        }
        let last = (0..count).map(|at| {
            let every = self.pattern.every[at];
            if at < read {
                return Last::new(place % every, every, 0.0);
            }
            if owed.contains(&at) {
                return Last::new(place % every + every, every, 0.0);
            }
            let since = place % every;
            let since_s = begins_s[place as usize] - begins_s[(place - since) as usize];
            let after_s = self.after_s(at, self.pattern.level_of(place - since));
            Last::new(since, every, after_s - since_s)
        });
        let length_s = self.pattern.interval_s + self.levels[level].checkpoint_s;
        let on_s: Vec<f64> = (0..level)
            .map(|at| length_s + self.after_s(at, level))
            .scan(0.0, |below_s: &mut f64, at_s| {
                *below_s = below_s.max(at_s);
                Some(*below_s)
            })
            .filter(|at_s| *at_s < length_s)
            .collect();
        let last: Vec<Last> = last.collect();
        let parts = parts(&last, &on_s, length_s, self.rate);
        let late = (state > count).then(|| Late {
            level: reached,
            more: self.more(&parts, reached),
        });
        Begun {
            length_s,
            parts,
            late,
        }
    }

    /// How many more checkpoints of this level in a row have not reached it, on average, if one
    /// has not and the segment after it has these parts.
    fn more(&self, parts: &[Part], level: usize) -> f64 {
        let share = |of: fn(&Goes) -> bool| -> f64 {
            let in_part = |part: &Part| {
                let shares = part.goes.iter().zip(&self.shares);
                let these = shares.filter(|(goes, _)| of(goes)).map(|(_, share)| share);
                part.probability * these.sum::<f64>()
            };
            parts.iter().map(in_part).sum()
        };
        let again = share(|goes| matches!(goes, Goes::Back(0)));
        let on = share(|goes| matches!(goes, Goes::On(_))) / (1.0 - again);
        let all = on.powi(self.pattern.every[level].min(1 << 20) as i32);
        all / (1.0 - all)
    }

    /// What it saves that the checkpoint at the end of a segment reaches a level which should have
    /// been reached before: failures until its next one go back less far. To first order.
    fn saved_s(&self, place: usize, late: &Late, before: &Times) -> f64 {
        let every = self.pattern.every[late.level] as usize;
        let (since, mean_s) = (place % every, before.total_s() / before.of.len() as f64);
        let share: f64 = self.shares[late.level..].iter().sum();
        let until_s = mean_s * (every - 1 - since) as f64;
        -(-self.rate * share * until_s).exp_m1() * mean_s * (since + 1) as f64
    }

    /// Time from the end of the call of a checkpoint until it has reached a level; less than 0 if
    /// it has before, on the way to a stronger one.
    fn after_s(&self, level: usize, strongest: usize) -> f64 {
        let on_s = self.levels[strongest].checkpoint_s - self.levels[level].checkpoint_s;
        self.levels[level].safe_after_s - on_s.max(0.0)
    }

    /// Expected time of a whole pattern, seconds.
    pub(super) fn solve(&mut self) -> Result<f64> {
        let mut before = Times::new();
        for &length_s in &self.lengths_s {
            before.push(vec![length_s; self.states()]);
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
        let equation = |(state, begun): (usize, &Begun)| {
            // At full precision, even if failures are rare.
            let fails = -(-self.rate * begun.length_s).exp_m1();
            let mut sum = Linear::constant(fails / self.rate, self.states());
            if let Some(late) = &begun.late {
                sum.constant -= (1.0 - fails) * self.saved_s(place, late, before);
            }
            for part in &begun.parts {
                let late = begun.late.as_ref();
                let after = self.after_failure((place, state, late), part, now, before);
                for (share, after) in self.shares.iter().zip(&after) {
                    sum.add(part.probability * share, after);
                }
            }
            sum
        };
        solve(
            self.segments[place]
                .iter()
                .enumerate()
                .map(equation)
                .collect(),
        )
    }

    /// For each level, the time from a failure that needs it until the segment is complete, which
    /// began in this state.
    fn after_failure(
        &self,
        (place, state, late): (usize, usize, Option<&Late>),
        part: &Part,
        now: &Times,
        before: &Times,
    ) -> Vec<Linear> {
        let (m, count) = (1.0 / self.rate, self.levels.len());
        let mut after = vec![Linear::constant(0.0, self.states()); count];
        // The highest first: another failure may strike during the restart.
        for number in (0..count).rev() {
            // What was just read lies at the level that it was read from, and at no weaker one yet.
            let from = match part.goes[number] {
                Goes::Back(0) if state <= count => number.max(state.saturating_sub(1)),
                _ => number,
            };
            let restart_s = self.levels[from].restart_s;
            let done = (-restart_s / m).exp();
            let failed = -(-restart_s / m).exp_m1();
            let mut sum = Linear::constant(failed * m, self.states());
            match part.goes[number] {
                // What had not reached all its levels has not reached them now.
                Goes::Back(0) if state > count => sum.of[state] += done,
                Goes::Back(0) => sum.of[from + 1] += done,
                Goes::Back(back) => {
                    let mut again_s = again_s(place, back, number + 1, now, before);
                    if let Some(late) = late.filter(|late| number >= late.level) {
                        let every = f64::from(self.pattern.every[late.level]);
                        again_s += late.more * before.total_s() * every / before.of.len() as f64;
                    }
                    sum.constant += done * again_s;
                    sum.of[0] += done;
                }
                Goes::On(reached) => {
                    // This segment is complete, and the next one takes longer.
                    let next = &before.of[(place + 1) % before.of.len()];
                    sum.constant += done * (next[count + reached] - next[0]);
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

impl Last {
    fn new(since: u32, every: u32, safe_at_s: f64) -> Self {
        Self {
            since,
            every,
            safe_at_s,
        }
    }
}

/// The parts of a segment; `on_s`: when its own checkpoint reaches the weakest levels, one after
/// the other, as far as that is before its end.
fn parts(last: &[Last], on_s: &[f64], length_s: f64, rate: f64) -> Vec<Part> {
    let within = |at_s: &f64| *at_s > 0.0 && *at_s < length_s;
    let safe_at_s = last.iter().map(|last| last.safe_at_s);
    let mut cuts_s: Vec<f64> = safe_at_s
        .chain(on_s.iter().copied())
        .filter(within)
        .collect();
    cuts_s.push(length_s);
    cuts_s.sort_by(f64::total_cmp);
    let mut from_s = 0.0;
    let part = |to_s: f64| {
        let reached = on_s.iter().take_while(|at_s| **at_s <= from_s).count();
        let goes = |(number, last): (usize, &Last)| match last.safe_at_s <= from_s {
            _ if number < reached => Goes::On(reached),
            true => Goes::Back(last.since as usize),
            false => Goes::Back((last.since + last.every) as usize),
        };
        let part = Part {
            probability: (-rate * from_s).exp() * -(-rate * (to_s - from_s)).exp_m1(),
            goes: last.iter().enumerate().map(goes).collect(),
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
