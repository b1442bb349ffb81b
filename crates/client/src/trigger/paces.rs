//! Decides which levels a checkpoint goes to, where each has a pace of its own.
//!
//! Levels are counted from the weakest: a checkpoint of depth 1 goes to the weakest level of the
//! session, one of depth 2 also to the next, and so on. What is due is a depth, so that the ranks
//! agree on one number, the largest of all.
//!
//! Invariants:
//! 1. A checkpoint that goes to a level goes to all weaker ones, and restarts the pace of each.
//! 2. A level whose checkpoint was left out, lost or cut off with its run is due at the next one.
//! 3. Without paces, every checkpoint goes to all levels, unless the program asks for a level.
//!
//! Not here: who asks and who agrees (`triggers.rs`), paces that follow from measurements
//! (`pattern.rs`).

use crate::options::Pace;
use orcheck_engine::node::Goes;
use orcheck_format::sabotage::{Switch, off};
use orcheck_format::{Level, Step};
use std::time::Duration;

/// The levels of a session, and when each is due.
#[derive(Debug)]
pub(crate) struct Paces {
    levels: Vec<Level>,
    /// One for each level, or none at all.
    paces: Vec<Paced>,
    /// The depth of a checkpoint that was due and did not get there.
    owed: usize,
}

#[derive(Debug)]
struct Paced {
    every: Option<Duration>,
    every_steps: u64,
    /// The step from which multiples of `every_steps` are counted.
    counted_from: Option<Step>,
    last: Duration,
    /// Age of the newest checkpoint of this level when the session began.
    before: Duration,
}

impl Paces {
    /// Of a session with these levels, which begins now.
    pub(crate) fn new(levels: Vec<Level>, paces: &[Pace], now: Duration) -> Self {
        let paced = |pace: &Pace| Paced {
            every: (pace.every_s > 0.0).then(|| Duration::from_secs_f64(pace.every_s)),
            every_steps: pace.every_steps,
            counted_from: None,
            last: now,
            before: Duration::ZERO,
        };
        Self {
            levels,
            paces: paces.iter().map(paced).collect(),
            owed: 0,
        }
    }

    /// Whether levels have paces of their own.
    pub(crate) fn is_paced(&self) -> bool {
        !self.paces.is_empty()
    }

    /// Whether time makes any level due.
    pub(crate) fn by_clock(&self) -> bool {
        self.paces.iter().any(|paced| paced.every.is_some())
    }

    /// The depth of a checkpoint that goes to all levels.
    pub(crate) fn deepest(&self) -> usize {
        self.levels.len().max(1)
    }

    /// The smallest depth that reaches what `level` survives.
    pub(crate) fn depth_of(&self, level: Level) -> usize {
        let at = self.levels.iter().position(|&other| other >= level);
        at.map_or(self.deepest(), |at| at + 1)
    }

    /// The levels at this depth.
    pub(crate) fn at_depth(&self, depth: usize) -> Goes {
        // Breaks if: all levels are named one by one; with one level, no checkpoint to it would be
        // one that goes everywhere, which may refer to it.
        if depth >= self.deepest() {
            return Goes::EVERYWHERE;
        }
        let levels = self.levels.get(..depth.max(1)).unwrap_or_default();
        Goes::to(levels).unwrap_or(Goes::EVERYWHERE)
    }

    /// The depth of what is due at `step` because a multiple was reached or passed.
    pub(crate) fn due_by_steps(&mut self, step: Step) -> usize {
        let mut depth = 0;
        for (at, paced) in self.paces.iter_mut().enumerate() {
            if passed(paced.every_steps, &mut paced.counted_from, step) {
                depth = at + 1;
            }
        }
        depth
    }

    /// The depth of what is due at this time.
    pub(crate) fn due_by_time(&self, now: Duration) -> usize {
        let due = |paced: &Paced| paced.every.is_some_and(|every| paced.since(now) >= every);
        self.paces.iter().rposition(due).map_or(0, |at| at + 1)
    }

    /// Time since the last checkpoint that went to each level.
    pub(crate) fn since(&self, now: Duration) -> Vec<Duration> {
        self.paces.iter().map(|paced| paced.since(now)).collect()
    }

    /// The depth of what did not get where it was due.
    pub(crate) fn owed(&self) -> usize {
        self.owed
    }

    /// Notes that the program continues from `from`, when the newest checkpoint of a level was of
    /// step `newest` and this old.
    pub(crate) fn continue_from(
        &mut self,
        level: Level,
        (newest, age): (Step, Duration),
        from: Step,
    ) {
        let depth = self.depth_of(level);
        let Some(paced) = self.paces.get_mut(depth - 1) else {
            return;
        };
        paced.before = age;
        if passed(paced.every_steps, &mut Some(newest), from) {
            self.owe(depth);
        }
    }

    /// Notes that the newest checkpoint of this depth did not get there.
    pub(crate) fn owe(&mut self, depth: usize) {
        // Breaks if: it is forgotten; a level whose every tenth checkpoint is left out would wait
        // for the twentieth, and one that loses each would have none.
        if !off(Switch::LevelOwed) {
            self.owed = self.owed.max(depth);
        }
    }

    /// Notes that the program continues from this step; `None`: where it begins is open again.
    pub(crate) fn count_from(&mut self, step: Option<Step>) {
        for paced in &mut self.paces {
            paced.counted_from = step;
        }
    }

    /// Notes that a checkpoint of this depth, due at `step`, was left out.
    pub(crate) fn left_out(&mut self, step: Step, depth: usize) {
        for paced in self.paces.iter_mut().take(depth) {
            paced.counted_from = Some(step);
        }
        self.owe(depth);
    }

    /// Notes that a checkpoint of `step` and this depth was taken.
    pub(crate) fn taken(&mut self, step: Step, depth: usize, now: Duration) {
        for paced in self.paces.iter_mut().take(depth) {
            paced.counted_from = Some(step);
            paced.last = now;
            paced.before = Duration::ZERO;
        }
        if depth >= self.owed {
            self.owed = 0;
        }
    }

    /// For each level, seconds and steps between two of its checkpoints; `kept_s`: the measured
    /// intervals, if there are any.
    pub(crate) fn in_force(&self, kept_s: Option<&[f64]>) -> Vec<(Level, f64, u64)> {
        let paces = self.levels.iter().zip(&self.paces).enumerate();
        paces
            .map(|(at, (&level, paced))| {
                let kept_s = kept_s.and_then(|kept_s| kept_s.get(at)).copied();
                let every_s = paced.every.map(|every| every.as_secs_f64());
                (level, kept_s.or(every_s).unwrap_or(0.0), paced.every_steps)
            })
            .collect()
    }
}

impl Paced {
    fn since(&self, now: Duration) -> Duration {
        now.saturating_sub(self.last).saturating_add(self.before)
    }
}

/// Whether a multiple of `every` was reached or passed since `from`, which becomes the step before
/// this one if nothing was counted yet: a program may begin at any step.
pub(super) fn passed(every: u64, from: &mut Option<Step>, step: Step) -> bool {
    if every == 0 || step == Step(0) {
        return false;
    }
    if off(Switch::PassedMultiple) {
        return step.0.is_multiple_of(every);
    }
    let from = *from.get_or_insert(Step(step.0 - 1));
    step.0 / every > from.0 / every
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TWO: [Level; 2] = [Level::Node, Level::Global];

    fn pace(level: Level, every_s: f64, every_steps: u64) -> Pace {
        Pace {
            level,
            every_s,
            every_steps,
            mtbf_s: 0.0,
            node_mtbf_s: 0.0,
        }
    }

    fn steps(node: u64, global: u64) -> Paces {
        let paces = [
            pace(Level::Node, 0.0, node),
            pace(Level::Global, 0.0, global),
        ];
        Paces::new(TWO.to_vec(), &paces, Duration::ZERO)
    }

    #[test]
    fn a_stronger_level_restarts_the_pace_of_the_weaker_ones() {
        let at = Duration::from_secs;
        let paces = [pace(Level::Node, 10.0, 0), pace(Level::Global, 35.0, 0)];
        let mut paces = Paces::new(TWO.to_vec(), &paces, at(0));
        assert_eq!(paces.due_by_time(at(9)), 0);
        assert_eq!(paces.due_by_time(at(10)), 1);
        paces.taken(Step(1), 1, at(10));
        assert_eq!(paces.due_by_time(at(19)), 0);
        assert_eq!(paces.due_by_time(at(35)), 2);
        paces.taken(Step(2), 2, at(35));
        assert_eq!(paces.due_by_time(at(44)), 0);
        assert_eq!(paces.due_by_time(at(45)), 1);
        assert_eq!(paces.at_depth(1), Goes::to(&[Level::Node]).unwrap());
        assert_eq!(paces.at_depth(2), Goes::EVERYWHERE);
    }

    // Breaks if: each run counts from its own beginning; a level whose interval is longer than runs
    // live would never get a checkpoint.
    #[test]
    fn the_pace_of_a_level_continues_from_the_run_before() {
        let paces = [pace(Level::Node, 10.0, 0), pace(Level::Global, 100.0, 0)];
        let mut paces = Paces::new(TWO.to_vec(), &paces, Duration::ZERO);
        paces.continue_from(Level::Global, (Step(7), Duration::from_secs(95)), Step(9));
        assert_eq!(paces.due_by_time(Duration::from_secs(4)), 0);
        assert_eq!(paces.due_by_time(Duration::from_secs(5)), 2);
        paces.taken(Step(1), 2, Duration::from_secs(5));
        assert_eq!(paces.due_by_time(Duration::from_secs(14)), 0);
    }

    #[test]
    fn a_level_that_was_left_out_goes_with_the_next_checkpoint() {
        let mut paces = steps(10, 100);
        assert_eq!(paces.due_by_steps(Step(99)), 0);
        assert_eq!(paces.due_by_steps(Step(100)), 2);
        paces.left_out(Step(100), 2);
        assert_eq!(paces.due_by_steps(Step(101)), 0);
        assert_eq!((paces.due_by_steps(Step(110)), paces.owed()), (1, 2));
        paces.taken(Step(110), 2, Duration::ZERO);
        assert_eq!((paces.due_by_steps(Step(120)), paces.owed()), (1, 0));
    }

    // Breaks if: each run counts from the step that it continues from; a level whose every
    // checkpoint is cut off would have none.
    #[test]
    fn a_multiple_between_the_newest_checkpoint_of_a_level_and_a_restart_is_owed() {
        for (newest, from, owed) in [(100, 199, 0), (100, 200, 2), (100, 205, 2), (0, 105, 2)] {
            let mut paces = steps(10, 100);
            paces.count_from(Some(Step(from)));
            for (level, newest) in [(Level::Node, from), (Level::Global, newest)] {
                paces.continue_from(level, (Step(newest), Duration::ZERO), Step(from));
            }
            assert_eq!(paces.owed(), owed, "{newest} {from}");
            paces.taken(Step(210), 2, Duration::ZERO);
            assert_eq!(paces.owed(), 0);
        }
    }

    #[test]
    fn a_level_that_is_asked_for_is_reached_by_the_next_stronger_one() {
        let paces = Paces::new(vec![Level::Peers(1), Level::Global], &[], Duration::ZERO);
        let depths = [
            Level::Process,
            Level::Node,
            Level::Peers(1),
            Level::Peers(2),
            Level::Global,
        ]
        .map(|level| paces.depth_of(level));
        assert_eq!(depths, [1, 1, 1, 2, 2]);
    }

    proptest! {
        // Breaks if: a multiple of a level that was stepped over, skipped or taken for another
        // reason is counted twice or not at all.
        #[test]
        fn no_level_waits_longer_than_its_pace(
            node in 1u64..20, times in 1u64..20, calls in prop::collection::vec((1u64..7, 0u8..8), 1..300),
        ) {
            let global = node * times;
            let mut paces = steps(node, global);
            let (mut step, mut last) = (Step(0), [Step(0); 2]);
            for (ahead, what) in calls {
                if step == Step(0) {
                    // A program may begin at any step.
                    last = [Step(ahead - 1); 2];
                }
                step = Step(step.0 + ahead);
                let depth = paces.due_by_steps(step);
                let passed = |every: u64, last: Step| step.0 / every > last.0 / every;
                if what == 0 && depth > 0 {
                    paces.left_out(step, depth);
                    continue;
                }
                let depth = depth.max(if depth > 0 { paces.owed() } else { 0 });
                prop_assert!(depth > 0 || paces.owed() > 0 || !passed(node, last[0]));
                prop_assert!(depth == 2 || paces.owed() == 2 || !passed(global, last[1]));
                if depth > 0 {
                    paces.taken(step, depth, Duration::ZERO);
                    last[..depth].fill(step);
                }
            }
        }
    }
}
