//! Finds how often checkpoints go to each level, for `interval = "auto"` with `[level.NAME]`.
//!
//! How: as in `auto.rs`, each checkpoint is measured: what it cost the program, and when it was
//! safe at each level that it went to. Costs are kept by depth, the number of levels. The largest
//! median over all ranks of each goes into the multilevel model ([`Levels::recommend_soon`]),
//! together with the configured failures of each level. A restart from a level counts as long as
//! the way there.
//!
//! Invariants:
//! 1. All ranks compute the pattern from the same agreed numbers. What is due is agreed on all the
//!    same (`triggers.rs`), so a difference in the last digit has no consequence.
//! 2. The first checkpoint is due at once and goes to all levels; the next ones go to weaker levels
//!    alone, until each was measured [`LEAST_COUNT`] times, and so again after [`AGAIN`] that went
//!    deeper. No other is due while the last one of a
//!    level that it goes to is not decided there; and if the pool holds one snapshot of a rank
//!    only, while any is not decided: the program would wait for it.
//! 3. The pattern is computed again only if a figure has changed by more than [`NOTABLE`].
//!
//! Not here: the paces themselves (`paces.rs`), the model (`orcheck_interval::levels`).

use crate::trigger::auto::{LEAST_S, Recent};
use orcheck_format::Step;
use orcheck_interval::{Level, Levels};
use std::time::Duration;

/// Smaller changes of a figure, as a share of it, are not followed: near the best pattern, what is
/// lost hardly depends on it.
const NOTABLE: f64 = 0.2;

/// Measurements of a weaker level, at least: after a single one that was unusually long, all
/// checkpoints could go everywhere, and that level would never be measured again.
const LEAST_COUNT: usize = 2;

/// A weaker level is measured again after this many checkpoints that went to stronger ones: those
/// that it was last judged by may all have been unusually long.
const AGAIN: u32 = 32;

/// What the triggers of one rank know about checkpoints of each level, and the agreed pattern.
#[derive(Debug)]
pub(crate) struct Pattern {
    levels: Vec<Measured>,
    /// Processors on which the ranks of this node compute.
    processors: f64,
    /// The pool of this node holds all snapshots, more than one of each rank.
    has_room: bool,
    /// The pools of all nodes do, as agreed: a checkpoint can be taken while another one is on its
    /// way to a stronger level.
    passes: bool,
    /// The figures that the pattern was computed from.
    figures: Vec<[f64; 2]>,
    /// For each level, seconds from one of its checkpoints to the next.
    kept_s: Option<Vec<f64>>,
    complaint: Option<String>,
    complained: bool,
    begun: bool,
}

#[derive(Debug, Default)]
struct Measured {
    mtbf_s: f64,
    /// Of checkpoints whose strongest level is this one.
    blocked_s: Recent,
    flush_cpu_s: Recent,
    /// Of all checkpoints that go here.
    safe_after_s: Recent,
    flushing: Option<Flushing>,
    /// Checkpoints since the last one whose strongest level is this one.
    deeper: u32,
}

#[derive(Debug, Clone, Copy)]
struct Flushing {
    step: Step,
    returned: Duration,
    cpu_ns: u64,
    strongest: bool,
}

impl Pattern {
    /// For a mean time between failures of each level, weakest first, and this many processors for
    /// the ranks of this node.
    pub(crate) fn new(mtbf_s: Vec<f64>, processors: usize) -> Self {
        let measured = |mtbf_s| Measured {
            mtbf_s,
            ..Measured::default()
        };
        Self {
            levels: mtbf_s.into_iter().map(measured).collect(),
            processors: processors.max(1) as f64,
            has_room: false,
            passes: false,
            figures: Vec::new(),
            kept_s: None,
            complaint: None,
            complained: false,
            begun: false,
        }
    }

    /// Notes that a checkpoint of `step` and this depth returned after `blocked_s`; `cpu_ns`:
    /// processor time of flushes until now.
    pub(crate) fn taken(
        &mut self,
        (step, depth): (Step, usize),
        blocked_s: f64,
        now: Duration,
        cpu_ns: u64,
    ) {
        self.begun = true;
        let depth = depth.clamp(1, self.levels.len());
        for (at, level) in self.levels.iter_mut().take(depth).enumerate() {
            let strongest = at + 1 == depth;
            if strongest {
                // Breaks if: they stay; against seven that were slow, one that is not changes
                // nothing.
                if level.deeper >= AGAIN {
                    level.blocked_s = Recent::default();
                    level.flush_cpu_s = Recent::default();
                }
                level.blocked_s.push(blocked_s);
                level.deeper = 0;
            } else {
                level.deeper += 1;
            }
            level.flushing = Some(Flushing {
                step,
                returned: now,
                cpu_ns,
                strongest,
            });
        }
    }

    /// The steps whose flush is being measured, with the number of the level.
    pub(crate) fn awaited(&self) -> Vec<(usize, Step)> {
        let levels = self.levels.iter().enumerate();
        levels
            .filter_map(|(at, level)| Some((at, level.flushing?.step)))
            .collect()
    }

    /// Notes that the awaited step is safe at this level, or never will be.
    pub(crate) fn flushed(&mut self, at: usize, safe: bool, now: Duration, cpu_ns: u64) {
        let Some(level) = self.levels.get_mut(at) else {
            return;
        };
        if let Some(flushing) = level.flushing.take()
            && safe
        {
            let after = now.saturating_sub(flushing.returned);
            level.safe_after_s.push(after.as_secs_f64());
            if flushing.strongest {
                let cpu_s = cpu_ns.saturating_sub(flushing.cpu_ns) as f64 / 1e9;
                level.flush_cpu_s.push(cpu_s);
            }
        }
    }

    /// Notes whether the pool of this node holds all snapshots, more than one of each rank.
    pub(crate) fn note_room(&mut self, has_room: bool) {
        self.has_room = has_room;
    }

    /// This rank's contribution to the agreement, which takes the minimum: for each level, negative
    /// microseconds of the cost and of the time until safe (0: not measured yet), and whether the
    /// pool has room.
    pub(crate) fn measured(&self) -> Vec<i64> {
        let numbers = self.levels.iter().flat_map(|level| {
            let cpu_s = level.flush_cpu_s.median().unwrap_or(0.0);
            let blocked_s = level.blocked_s.median();
            let cost_s = blocked_s.map(|s| (s + cpu_s / self.processors).max(LEAST_S));
            [cost_s, level.safe_after_s.median()]
        });
        numbers
            .map(|seconds| -((seconds.unwrap_or(0.0) * 1e6).ceil() as i64))
            .chain([i64::from(self.has_room)])
            .collect()
    }

    /// Takes the agreed figures.
    pub(crate) fn agree(&mut self, measured: &[i64]) {
        let Some((&room, measured)) = measured.split_last() else {
            return;
        };
        // Breaks if: each node goes by its own pool; one that has room would make checkpoints due
        // for which the others wait.
        self.passes = room != 0;
        let seconds = |value: &i64| value.unsigned_abs() as f64 / 1e6;
        let figures = measured.chunks_exact(2);
        let mut figures: Vec<[f64; 2]> = figures
            .map(|pair| [seconds(&pair[0]), seconds(&pair[1])])
            .collect();
        // A checkpoint of less depth that was not measured yet costs at most what a deeper one
        // does.
        let mut deeper = 0.0;
        for figure in figures.iter_mut().rev() {
            if figure[0] <= 0.0 {
                figure[0] = deeper;
            }
            deeper = figure[0];
        }
        // What goes to a level goes to the weaker ones before.
        let mut weaker = [LEAST_S, 0.0];
        for figure in &mut figures {
            weaker = [figure[0].max(weaker[0]), figure[1].max(weaker[1])];
            *figure = weaker;
        }
        if deeper <= 0.0 || figures.len() != self.levels.len() || !self.is_notable(&figures) {
            return;
        }
        self.compute(figures);
    }

    fn is_notable(&self, figures: &[[f64; 2]]) -> bool {
        let changed = |(new, old): (&[f64; 2], &[f64; 2])| {
            let pairs = new.iter().zip(old);
            pairs
                .into_iter()
                .any(|(new, old)| (new - old).abs() > NOTABLE * old.max(LEAST_S))
        };
        self.figures.is_empty() || figures.iter().zip(&self.figures).any(changed)
    }

    fn compute(&mut self, figures: Vec<[f64; 2]>) {
        let levels = self.levels.iter().zip(&figures);
        let levels = levels.map(|(level, &[checkpoint_s, safe_after_s])| Level {
            checkpoint_s,
            safe_after_s,
            restart_s: checkpoint_s.max(safe_after_s),
            mtbf_s: level.mtbf_s,
        });
        match Levels(levels.collect()).recommend_soon() {
            Ok(best) => {
                let every = best.every.iter();
                let apart_s = every.map(|&every| f64::from(every) * best.interval_s);
                self.kept_s = Some(apart_s.collect());
            }
            // As often as is of any use; the user is told.
            Err(error) => {
                let cost_s = figures.last().map_or(LEAST_S, |figure| figure[0]);
                self.kept_s = Some(vec![cost_s; figures.len()]);
                self.complaint = Some(format!(
                    "interval = \"auto\" finds no pattern of levels, and takes checkpoints as often as it can: {}. Next: check the mean times between failures, or set every_s in their place",
                    error.message()
                ));
            }
        }
        self.figures = figures;
    }

    /// A warning, given once, if no pattern serves the job.
    pub(crate) fn complaint(&mut self) -> Option<String> {
        let text = self.complaint.take()?;
        (!std::mem::replace(&mut self.complained, true)).then_some(text)
    }

    /// For each level, seconds from one of its checkpoints to the next, once there was a
    /// checkpoint.
    pub(crate) fn kept_s(&self) -> Option<&[f64]> {
        self.kept_s.as_deref()
    }

    /// Cost of a checkpoint of the weakest level, and time until it is safe, as agreed.
    pub(crate) fn of_weakest(&self) -> Option<[f64; 2]> {
        self.figures.first().copied()
    }

    /// Whether a checkpoint waits only for an awaited step.
    pub(crate) fn is_overdue(&self, since: &[Duration]) -> bool {
        let flushing = self.levels.iter().any(|level| level.flushing.is_some());
        flushing && self.depth(since) > 0
    }

    /// The depth of what is due this long after the last checkpoint of each level.
    pub(crate) fn due(&self, since: &[Duration]) -> usize {
        if !self.begun {
            return self.levels.len();
        }
        // Levels are decided one after the other, so the weakest one on its way stands for those
        // above.
        let on_its_way = (self.levels.iter()).position(|level| level.flushing.is_some());
        match on_its_way {
            None => self.depth(since),
            Some(at) if self.passes => self.depth(&since[..at.min(since.len())]),
            Some(_) => 0,
        }
    }

    fn depth(&self, since: &[Duration]) -> usize {
        let kept_s = self.kept_s.iter().flatten();
        let mut due = kept_s
            .zip(since)
            .map(|(kept_s, since)| since.as_secs_f64() >= *kept_s);
        // Breaks if: the weakest level alone is asked; the stronger ones would never be due.
        let count = self.levels.len();
        let due: Vec<bool> = (0..count).map(|_| due.next().unwrap_or(false)).collect();
        let depth = due.iter().rposition(|due| *due).map_or(0, |at| at + 1);
        // Breaks if: what was hardly measured is left out; as long as all checkpoints seem to cost
        // the same, all of them would go everywhere.
        let to_measure =
            |level: &Measured| level.blocked_s.count() < LEAST_COUNT || level.deeper >= AGAIN;
        let mut weaker = self.levels.iter().take(depth.min(count.saturating_sub(1)));
        let first = weaker.position(to_measure);
        first.map_or(depth, |at| at + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes a checkpoint that is safe at once, at second `now`.
    fn take(pattern: &mut Pattern, depth: usize, now: u64, costs_s: f64, safe_after_s: [f64; 2]) {
        let now = Duration::from_secs(now);
        pattern.taken((Step(1), depth), costs_s, now, 0);
        for (at, _) in pattern.awaited() {
            let safe = now + Duration::from_secs_f64(safe_after_s[at]);
            pattern.flushed(at, true, safe, 0);
        }
        let measured = pattern.measured();
        pattern.agree(&measured);
    }

    #[test]
    fn the_pattern_is_the_one_that_the_planner_recommends() {
        let mut pattern = Pattern::new(vec![2000.0, 40_000.0], 4);
        assert_eq!(pattern.due(&[Duration::ZERO; 2]), 2);
        take(&mut pattern, 2, 1, 4.0, [1.0, 9.0]);
        // Before a cheap one was measured, all cost the same, and all go everywhere.
        let kept_s = pattern.kept_s().unwrap().to_vec();
        assert!((kept_s[0] - kept_s[1]).abs() < 1e-6, "{kept_s:?}");
        // The first one takes unusually long.
        take(&mut pattern, 1, 100, 5.0, [1.0, 0.0]);
        assert_eq!(pattern.due(&[Duration::from_secs(100_000); 2]), 1);
        take(&mut pattern, 1, 110, 0.5, [1.0, 0.0]);
        let level = |checkpoint_s, safe_after_s: f64, mtbf_s| Level {
            checkpoint_s,
            safe_after_s,
            restart_s: safe_after_s.max(checkpoint_s),
            mtbf_s,
        };
        let levels = Levels(vec![level(0.5, 1.0, 2000.0), level(4.0, 9.0, 40_000.0)]);
        let best = levels.recommend_soon().unwrap();
        let kept_s = pattern.kept_s().unwrap();
        assert!(
            (kept_s[0] - best.interval_s).abs() < 1e-6,
            "{kept_s:?} {best:?}"
        );
        assert!((kept_s[1] - best.interval_s * f64::from(best.every[1])).abs() < 1e-6);
        assert!(best.every[1] > 1, "{best:?}");
        let since = |s: f64| Duration::from_secs_f64(s);
        let (weak, strong) = (kept_s[0] + 1e-3, kept_s[1] + 1e-3);
        assert_eq!(pattern.due(&[since(weak - 0.1), since(weak)]), 0);
        assert_eq!(pattern.due(&[since(weak), since(weak)]), 1);
        assert_eq!(pattern.due(&[since(1.0), since(strong)]), 2);
    }

    // Breaks if: a level that was slow while it was measured is never measured again; all
    // checkpoints would go everywhere until the end of the run.
    #[test]
    fn a_level_that_was_slow_for_a_while_is_measured_again() {
        let mut pattern = Pattern::new(vec![2000.0, 40_000.0], 4);
        take(&mut pattern, 2, 1, 4.0, [1.0, 9.0]);
        take(&mut pattern, 1, 20, 4.0, [1.0, 0.0]);
        take(&mut pattern, 1, 30, 4.0, [1.0, 0.0]);
        let long = [Duration::from_secs(100_000); 2];
        for now in 0..u64::from(AGAIN) {
            assert_eq!(pattern.due(&long), 2);
            take(&mut pattern, 2, 40 + now, 4.0, [1.0, 9.0]);
        }
        let slow_s = pattern.kept_s().unwrap().to_vec();
        for now in 100..100 + LEAST_COUNT as u64 {
            assert_eq!(pattern.due(&long), 1);
            take(&mut pattern, 1, now, 0.5, [1.0, 0.0]);
        }
        assert_eq!(pattern.due(&long), 2);
        let kept_s = pattern.kept_s().unwrap();
        assert!(
            kept_s[0] < slow_s[0] && kept_s[1] > slow_s[1],
            "{slow_s:?} {kept_s:?}"
        );
    }

    // Breaks if: a checkpoint is due while another one is on its way; the program would wait.
    #[test]
    fn nothing_is_due_while_a_checkpoint_is_on_its_way_to_any_level() {
        let mut pattern = Pattern::new(vec![2000.0, 40_000.0], 4);
        take(&mut pattern, 2, 1, 4.0, [1.0, 9.0]);
        let long = [Duration::from_secs(100_000); 2];
        // The weaker level alone is measured first.
        assert_eq!(pattern.due(&long), 1);
        take(&mut pattern, 1, 20, 0.5, [1.0, 0.0]);
        take(&mut pattern, 1, 30, 0.5, [1.0, 0.0]);
        assert_eq!(pattern.due(&long), 2);
        pattern.taken((Step(2), 2), 4.0, Duration::from_secs(50), 0);
        pattern.flushed(0, true, Duration::from_secs(51), 0);
        assert_eq!(pattern.due(&long), 0);
        assert!(pattern.is_overdue(&long));
        pattern.flushed(1, false, Duration::from_secs(60), 0);
        assert_eq!(pattern.due(&long), 2);
    }

    // Breaks if: a slow level holds up the cheap one although the pool has room.
    #[test]
    fn with_room_in_the_pool_a_cheap_checkpoint_does_not_wait_for_a_slow_level() {
        let mut pattern = Pattern::new(vec![2000.0, 40_000.0], 4);
        pattern.note_room(true);
        take(&mut pattern, 2, 1, 4.0, [1.0, 9.0]);
        take(&mut pattern, 1, 20, 0.5, [1.0, 0.0]);
        take(&mut pattern, 1, 30, 0.5, [1.0, 0.0]);
        let long = [Duration::from_secs(100_000); 2];
        pattern.taken((Step(2), 2), 4.0, Duration::from_secs(50), 0);
        assert_eq!(pattern.due(&long), 0);
        pattern.flushed(0, true, Duration::from_secs(51), 0);
        assert_eq!(pattern.due(&long), 1);
        pattern.flushed(1, true, Duration::from_secs(60), 0);
        assert_eq!(pattern.due(&long), 2);
    }

    // Breaks if: each node goes by its own pool.
    #[test]
    fn where_one_pool_has_no_room_no_checkpoint_passes() {
        let mut pattern = Pattern::new(vec![2000.0, 40_000.0], 4);
        pattern.note_room(true);
        take(&mut pattern, 2, 1, 4.0, [1.0, 9.0]);
        take(&mut pattern, 1, 20, 0.5, [1.0, 0.0]);
        take(&mut pattern, 1, 30, 0.5, [1.0, 0.0]);
        let mut agreed = pattern.measured();
        *agreed.last_mut().unwrap() = 0;
        pattern.agree(&agreed);
        pattern.taken((Step(2), 2), 4.0, Duration::from_secs(50), 0);
        pattern.flushed(0, true, Duration::from_secs(51), 0);
        let long = [Duration::from_secs(100_000); 2];
        assert_eq!(pattern.due(&long), 0);
    }

    #[test]
    fn a_small_change_is_not_followed() {
        let mut pattern = Pattern::new(vec![2000.0, 40_000.0], 4);
        take(&mut pattern, 2, 1, 4.0, [1.0, 9.0]);
        let before = pattern.kept_s().unwrap().to_vec();
        pattern.agree(&[0, -1_000_000, -4_500_000, -9_000_000, 0]);
        assert_eq!(pattern.kept_s().unwrap(), before);
        pattern.agree(&[0, -1_000_000, -8_000_000, -9_000_000, 0]);
        assert!(pattern.kept_s().unwrap()[0] > before[0]);
    }

    #[test]
    fn failures_that_leave_no_time_are_named_once() {
        let mut pattern = Pattern::new(vec![2.0, 3.0], 4);
        take(&mut pattern, 2, 1, 40.0, [1.0, 9.0]);
        assert!(
            pattern
                .complaint()
                .unwrap()
                .contains("no pattern of levels")
        );
        take(&mut pattern, 2, 1, 80.0, [1.0, 9.0]);
        assert_eq!(pattern.complaint(), None);
        assert!(pattern.kept_s().is_some());
    }
}
