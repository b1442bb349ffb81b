//! Reports losses of checkpoints to the program at its next call, and returns them from the next
//! checkpoint on all ranks.
//!
//! How and invariants: `session/outcomes.rs`.

use crate::collective::agree;
use crate::options::{AgentKind, OnLoss};
use crate::report;
use crate::session::{Event, EventKind, Loss, Session, Watcher, engine_gone, with_next_step};
use orcheck_engine::commit::undecided;
use orcheck_engine::node::{Index, Outcome};
use orcheck_format::sabotage::{Switch, off};
use orcheck_format::{Detail, Error, ErrorKind, Level, Rank, Result, Step};

impl Session {
    /// Calls `watcher` for every step that became safe or lost at a level, during later calls of
    /// `due`, `checkpoint`, `close` and [`Self::take_warning`]; `None` removes the watcher. Local.
    pub fn watch(&mut self, watcher: Option<Watcher>) {
        self.progress.outcomes.watcher = watcher;
    }

    /// The newest step that this session made safe at `level`, or at a configured level that
    /// survives more; does not wait. Local.
    ///
    /// # Errors
    /// Unsupported for a level that no configured one covers; NotFound if no step is safe there
    /// yet.
    pub fn safe_step(&self, level: Level) -> Result<u64> {
        let index = self.index();
        let enough = self.levels_that_cover(level)?;
        let safe = |level: &Level| index.committed_step(*level);
        let newest = enough.iter().filter_map(safe).max();
        newest.map(u64::from).ok_or_else(|| {
            Error::not_found(format!(
                "no checkpoint of this session is safe at level {level} yet"
            ))
        })
    }

    /// Takes outcomes that were decided since the last look. Local.
    pub fn poll_outcomes(&mut self) {
        if self.progress.outcomes.open.is_empty() || off(Switch::LossTold) {
            return;
        }
        let index = Index::new(&self.link.pool, self.link.shape);
        // Read the news first: the next look finds what is published after it.
        let seen = index.news();
        // Without agents, nothing is decided any more once the engine has ended; with them, the
        // next checkpoint finds others.
        let over = self.options.agent == AgentKind::Off && index.is_gone();
        if self.progress.outcomes.seen == Some(seen) && !over {
            return;
        }
        self.progress.outcomes.seen = Some(seen);
        let mut events = Vec::new();
        self.progress.outcomes.open.retain(|&(step, level)| {
            let error = match index.outcome(step, level) {
                Outcome::Committed => None,
                Outcome::Lost(error) => Some(error),
                Outcome::Pending if over => Some(undecided(engine_gone(&self.link.shared))),
                Outcome::Pending => return true,
            };
            events.push((step, level, error));
            false
        });
        for (step, level, error) in events {
            self.tell(step, level, error);
        }
    }

    /// At the end of the session, reports every undecided step that is no longer waited for.
    pub(crate) fn report_undecided(&mut self, why: &str) {
        if off(Switch::LossTold) {
            return;
        }
        for (step, level) in std::mem::take(&mut self.progress.outcomes.open) {
            self.tell(step, level, Some(undecided(Error::unavailable(why))));
        }
    }

    fn tell(&mut self, step: Step, level: Level, error: Option<Error>) {
        let kind = match error {
            None => EventKind::Safe,
            Some(_) => EventKind::Lost,
        };
        let error = error.map(|error| reportable_loss(step, level, error));
        if let Some(error) = &error {
            self.progress.outcomes.lost.count(level, error.kind());
            if self.progress.newest_at(level) == Some(step) {
                self.trigger.owe(level);
            }
            let reported = &mut self.progress.outcomes.reported;
            // A step can be lost at several levels.
            let is_first = !reported.keys().any(|&(other, _)| other == step);
            reported.insert((step, level), error.kind());
            let oldest = self.progress.history.first_key_value();
            let forgotten = oldest.map(|(&step, _)| step).unwrap_or_default();
            self.progress
                .outcomes
                .reported
                .retain(|&(step, _), _| step >= forgotten);
            if self.rank == Rank(0) {
                report::lost(&self.job, error.message(), is_first);
            }
            // Breaks if: it is passed on once more; each loss would count twice.
            self.warnings.push_known(error.message().to_owned());
            let fenced = error.kind() == ErrorKind::Fenced && !off(Switch::FencedTold);
            if fenced || self.options.on_loss == OnLoss::Error {
                self.progress.outcomes.owe(step, level, error);
            }
            if self.options.on_loss == OnLoss::Stop {
                self.trigger.hear_loss();
            }
        }
        if let Some(watcher) = &mut self.progress.outcomes.watcher {
            watcher(&Event {
                kind,
                step,
                level,
                error,
            });
        }
    }

    /// Returns, on all ranks, the losses that some of them owe; `owed` is the minimum of
    /// `Outcomes::owes`. Collective.
    pub(crate) fn return_loss(&mut self, owed: i64) -> Result<()> {
        if owed == 0 {
            return Ok(());
        }
        let losses = self.agree_on_losses()?;
        let local = self
            .progress
            .outcomes
            .owed()
            .map_err(|error| match losses.len() {
                0 | 1 => error,
                count => error.at(format!("one of {count} losses")),
            });
        let agreed = agree(self.collective.as_mut(), local);
        self.progress.outcomes.note_returned(losses);
        if let Err(error) = &agreed {
            // Breaks if: it stays; the next successful call would report the same loss again.
            self.warnings.drop_reported(error);
        }
        agreed
    }

    /// The losses that any rank owes, the same on all of them. Collective: one more reduction than
    /// there are steps at one level, which are no more than a rank keeps open.
    fn agree_on_losses(&mut self) -> Result<Vec<Loss>> {
        let mut losses = Vec::new();
        // By level: the newest step listed so far, plus one. Steps fit into 63 bits: `prepare`
        // refuses others.
        let mut listed = [0u64; 5];
        loop {
            let mut oldest = [i64::MAX; 5];
            for &(step, level) in self.progress.outcomes.owed.keys() {
                if step.0 >= listed[level] {
                    oldest[level] = oldest[level].min(step.0 as i64);
                }
            }
            self.collective.allreduce_min(&mut oldest)?;
            let before = losses.len();
            for (level, &step) in oldest.iter().enumerate() {
                if step < i64::MAX {
                    listed[level] = step as u64 + 1;
                    losses.push((Step(step as u64), level));
                }
            }
            if losses.len() == before {
                return Ok(losses);
            }
        }
    }
}

/// The loss in the words that a program reads: step, level, cause, one next step.
fn reportable_loss(step: Step, level: Level, error: Error) -> Error {
    let lost = match error.is(Detail::Undecided) {
        true => "not known to be safe",
        false => "lost",
    };
    with_next_step(error.at(format!("checkpoint {step} is {lost} at level {level}")))
}
