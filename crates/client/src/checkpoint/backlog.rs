//! Bounds the checkpoints in flight: by room for another one in the pool, and by the number of
//! those that are not safe yet.
//!
//! How: a checkpoint waits until fewer than `held_steps` snapshots of this rank are in the pool,
//! and fewer than `uncommitted_steps` steps are undecided at the level that counts, which is the
//! weakest one that survives a node, of the levels that the checkpoint goes to. It also waits for a
//! step at any level whose outcome would be forgotten. If `overrun` is not `wait`, all ranks
//! instead agree to skip the checkpoint, or to refuse it.
//!
//! Invariants:
//! 1. When a checkpoint returns, at most `uncommitted_steps` steps are neither committed nor lost
//!    at the level that counts.
//! 2. While flushes are faster than the program, nothing waits: a check takes a few atomic loads.
//! 3. Every wait ends at `timeout_s`, or when the engine of the node is gone.
//! 4. A step that is not decided at all its levels is one of the last [`HISTORY`] that were staged:
//!    the board has a place for its outcome.
//!
//! Survives: a flush that hangs, an engine that ends meanwhile. Not here: who decides (the engine's
//! `protocol.rs`).

use crate::options::{AgentKind, Overrun};
use crate::session::{HISTORY, Session, engine_gone};
use orcheck_engine::node::{Index, Outcome};
use orcheck_format::sabotage::{Switch, off};
use orcheck_format::{Error, Level, Result, Step};
use std::time::Duration;

/// Longest time between two looks at a node's board.
const SLICE: Duration = Duration::from_millis(200);

/// What another checkpoint has to wait for.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Blocker {
    /// The snapshot of this step is still in the pool.
    Flushed(Step),
    /// This step is undecided at this level.
    Undecided(Step, Level),
}

impl std::fmt::Display for Blocker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Flushed(step) => write!(f, "{step} is still being flushed"),
            Self::Undecided(step, level) => write!(f, "{step} is not yet safe at level {level}"),
        }
    }
}

impl Session {
    /// The level whose steps `uncommitted_steps` counts: of those that the checkpoint at hand goes
    /// to, the weakest that survives a node, or else the strongest.
    fn level_that_counts(&self) -> Option<Level> {
        let levels = self.progress.heading.of(self.link.places.levels());
        let survives = |level: &&Level| **level > Level::Node;
        levels.iter().find(survives).or(levels.last()).copied()
    }

    /// What prevents another checkpoint from being staged now.
    pub(crate) fn blocker(&mut self) -> Option<Blocker> {
        self.blocker_beside(None)
    }

    /// The same, without the step that is being staged.
    fn blocker_beside(&mut self, staging: Option<Step>) -> Option<Blocker> {
        let forgotten = self.about_to_be_forgotten(staging);
        let index = Index::new(&self.link.pool, self.link.shape);
        let local = self.local;
        self.progress
            .taken
            .retain(|&step| !index.is_done(local, step));
        let others = |&step: &Step| Some(step) != staging;
        // The oldest snapshot that has to leave.
        let held = self.progress.taken.iter().copied().filter(others);
        let most = self.options.held_steps as usize;
        let surplus = held.clone().count().checked_sub(most);
        if let Some(step) = surplus.and_then(|at| held.clone().nth(at)) {
            return Some(Blocker::Flushed(step));
        }
        if let Some((step, level)) = forgotten {
            return Some(Blocker::Undecided(step, level));
        }
        let level = self.level_that_counts()?;
        let most = self.options.uncommitted_steps as usize;
        let undecided = self.progress.outcomes.open_at(level).filter(others);
        let undecided = undecided.filter(|&step| index.outcome(step, level) == Outcome::Pending);
        let surplus = undecided.clone().count().checked_sub(most);
        surplus
            .and_then(|at| undecided.clone().nth(at))
            .filter(|_| !off(Switch::UncommittedBound))
            .map(|step| Blocker::Undecided(step, level))
    }

    /// What is not decided of the oldest step that is remembered, if one more step would take its
    /// place. Cheap checkpoints may pass it for as long as a slow level takes.
    fn about_to_be_forgotten(&mut self, staging: Option<Step>) -> Option<(Step, Level)> {
        let steps = self.progress.history.keys();
        let count = steps.filter(|&&step| Some(step) != staging).count();
        if count < HISTORY || off(Switch::OutcomeKept) {
            return None;
        }
        // Breaks if: what is decided stays unseen until the board needs its place.
        self.poll_outcomes();
        let (&oldest, _) = self.progress.history.first_key_value()?;
        let undecided = self.progress.outcomes.open.first();
        undecided.copied().filter(|(step, _)| *step <= oldest)
    }

    /// Waits for room, unless checkpoints without room are skipped or refused; returns for how
    /// long.
    pub(crate) fn wait_for_room_here(&mut self) -> Result<Duration> {
        let waits = self.options.overrun == Overrun::Wait || self.trigger.should_stop();
        match waits {
            true => self.wait_for_room(None),
            false => Ok(Duration::ZERO),
        }
    }

    /// Waits for room for one step in addition to the one that is being staged; returns for how
    /// long. Where there is room, no clock is read.
    pub(crate) fn wait_for_room(&mut self, staging: Option<Step>) -> Result<Duration> {
        let clock = std::sync::Arc::clone(&self.environment.clock);
        let timeout = self.timeout();
        let mut begun = None;
        let waited = |begun: Option<Duration>| {
            begun.map_or(Duration::ZERO, |begun| clock.now().saturating_sub(begun))
        };
        loop {
            let news = self.index().news();
            let Some(what) = self.blocker_beside(staging) else {
                return Ok(waited(begun));
            };
            let until = *begun.get_or_insert_with(|| clock.now()) + timeout;
            // Breaks if: only the deadline ends this wait; a checkpoint would wait the full time
            // for a killed engine.
            if self.link.patience.check().is_err() {
                // With agents, the other ranks are told, and another agent is found.
                return match self.options.agent {
                    AgentKind::Off => Err(engine_gone(&self.link.shared)),
                    _ if staging.is_none() => Ok(waited(begun)),
                    _ => Err(engine_gone(&self.link.shared)),
                };
            }
            let left = until.saturating_sub(clock.now());
            if left.is_zero() {
                return Err(late(what, timeout));
            }
            match what {
                Blocker::Flushed(step) => {
                    let _ = self.index().wait_done(self.local, step, left.min(SLICE));
                }
                Blocker::Undecided(..) => self.index().wait_news(news, left.min(SLICE)),
            }
        }
    }

    /// Handles a blocker of this rank or, if `None`, of another one; returns false if the
    /// checkpoint is to be skipped.
    pub(crate) fn overrun(&mut self, step: Step, blocker: Option<Blocker>) -> Result<bool> {
        let what = blocker.map_or_else(
            || {
                let last = self.progress.last_step.unwrap_or(Step(0));
                format!("{last} is still being flushed for another rank")
            },
            |what| what.to_string(),
        );
        match self.options.overrun {
            Overrun::Wait => Ok(true),
            Overrun::Skip => {
                self.progress.stats.skipped += 1;
                let skipped = self.progress.stats.skipped;
                let text = format!("checkpoint {step} was left out: {what}");
                // Breaks if: all are passed on; a supervisor would hear of nothing else.
                match skipped {
                    1 => self.warnings.push(text),
                    _ if skipped.is_power_of_two() => {
                        self.warnings.push(format!("{text} ({skipped} so far)"));
                    }
                    _ => self.warnings.push_known(text),
                }
                Ok(false)
            }
            Overrun::Error => Err(Error::unavailable(format!("it comes while {what}"))
                .next("checkpoint less often, or set overrun = \"wait\"")),
        }
    }
}

fn late(what: Blocker, timeout: Duration) -> Error {
    let timeout_s = timeout.as_secs_f64();
    match what {
        Blocker::Flushed(step) => Error::unavailable(format!(
            "it waited {timeout_s:.1} s for the flush of {step}"
        )),
        Blocker::Undecided(step, level) => Error::unavailable(format!(
            "it waited {timeout_s:.1} s for checkpoint {step} to be safe at level {level}"
        )),
    }
    .next("look for a stalled directory; raise timeout_s if it is only slow")
}
