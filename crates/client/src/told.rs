//! What became of checkpoints, told to the program at its next call.
//!
//! How: each rank keeps the steps that it took whose outcome it has not yet seen, level by level. Every `due`, `checkpoint`
//! and `close` looks at the node's board for them, and so does whoever takes warnings; while nothing was published since the
//! last look, that is one comparison. A loss becomes a warning, an event for the program's watcher, and a count in the figures.
//!
//! Invariants:
//! 1. Each step that was taken is reported once at each configured level, as safe or as lost, at the latest by `close`. Only where
//!    an agent ended, and what was reported lost is flushed again from memory, it is taken back and reported again.
//! 2. Statuses of collective calls are agreed: that a rank owes an error travels in the checkpoint's own message, and only
//!    where one does so are there more, about which losses are owed, and with the text.
//! 3. A checkpoint that returns such an error was not staged on any rank. [`ErrorKind::Fenced`] is returned by every later
//!    checkpoint; every other loss, of a step at a level, once, by all ranks together.
//! 4. What waits to be told is bounded: warnings by `warnings.rs`, open outcomes by the board's history.
//!
//! 5. What is reported lost is not restartable at that level, but where the text says that it is not known to be safe
//!    (`Detail::Undecided`): its commit record may be there.
//!
//! Level `process` has no events: a snapshot there is on its way to the directories, and what becomes of it is told at their
//! levels. `wait` and `safe_step` know it.
//!
//! Not here: who decides what is lost (the engine's `protocol.rs`), the board (`index.rs`), the C callback (crate `capi`).

use crate::agree::agree;
use crate::checkpoint::HISTORY;
use crate::options::{AgentKind, OnLoss};
use crate::report;
use crate::session::Session;
use crate::waiter::engine_gone;
use orcheck_engine::node::{Index, Outcome};
use orcheck_engine::commit::undecided;
use orcheck_format::error::{Detail, Error, ErrorKind, Result};
use orcheck_format::ids::Level;
use orcheck_format::sabotage::{Switch, off};
use std::collections::{BTreeMap, BTreeSet};

/// Losses that are known to have been returned: more than a rank can still learn of.
const MOST_RETURNED: usize = 8 * HISTORY;

/// What happened to a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventKind {
    /// It is committed at this level.
    Safe,
    /// It will never be committed at this level.
    Lost,
}

/// What became of one step at one level.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// What happened.
    pub kind: EventKind,
    /// The step.
    pub step: u64,
    /// The level.
    pub level: Level,
    /// Why it is lost; its text is what a warning says. `None` for a step that is safe.
    pub error: Option<Error>,
}

/// Called for each event, on the thread that called the session.
pub type Watcher = Box<dyn FnMut(&Event) + Send>;

/// Steps that are lost, by level and cause.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LostSteps {
    counts: [[u64; 9]; 5],
}

impl LostSteps {
    /// Steps lost at a level, for one cause or for any.
    #[must_use]
    pub fn at(&self, level: Level, cause: Option<ErrorKind>) -> u64 {
        self.counts[level_number(level)][cause.map_or(0, |kind| kind.code() as usize)]
    }

    /// By number of the level (1 process, 2 node, 3 peers, 4 global), then by code of the cause; 0: whatever the cause.
    #[must_use]
    pub fn table(&self) -> [[u64; 9]; 5] {
        self.counts
    }

    fn count(&mut self, level: Level, cause: ErrorKind) {
        let row = &mut self.counts[level_number(level)];
        row[0] += 1;
        row[cause.code() as usize] += 1;
    }

    fn take_back(&mut self, level: Level, cause: ErrorKind) {
        let row = &mut self.counts[level_number(level)];
        row[0] = row[0].saturating_sub(1);
        let of_cause = &mut row[cause.code() as usize];
        *of_cause = of_cause.saturating_sub(1);
    }
}

fn level_number(level: Level) -> usize {
    match level {
        Level::Process => 1,
        Level::Node => 2,
        Level::Peers(_) => 3,
        Level::Global => 4,
    }
}

/// What a rank has seen of the outcomes of its steps, and what it still has to say.
#[derive(Default)]
pub(crate) struct Told {
    /// News of the board as of the last look.
    seen: Option<u64>,
    open: BTreeSet<(u64, Level)>,
    /// What was reported lost, with its cause: as far back as an agent that follows another one may flush it again.
    reported: BTreeMap<(u64, Level), ErrorKind>,
    pub(crate) lost: LostSteps,
    watcher: Option<Watcher>,
    /// Losses that the next checkpoint returns.
    owed: BTreeMap<Loss, Error>,
    /// What every later checkpoint returns.
    fence: Option<Error>,
    /// Losses that all ranks returned; the newest ones.
    returned: BTreeSet<Loss>,
}

/// A step, and the number of the level at which it is lost.
type Loss = (u64, usize);

impl Told {
    /// A checkpoint of `step` was taken.
    pub(crate) fn took(&mut self, step: u64, levels: &[Level]) {
        self.open.extend(levels.iter().map(|&level| (step, level)));
        self.seen = None;
    }

    /// Steps whose outcome at this level was not seen yet, oldest first.
    pub(crate) fn open_at(&self, level: Level) -> impl Iterator<Item = u64> + Clone {
        let open = self.open.iter().filter(move |(_, at)| *at == level);
        open.map(|&(step, _)| step)
    }

    /// What was not seen yet, oldest first.
    pub(crate) fn open(&self) -> Vec<(u64, Level)> {
        self.open.iter().copied().collect()
    }

    /// A step that was reported lost is, or is being made, safe after all: it is reported again. Whether it was.
    // Breaks if: it is left out; a step counts as lost that the next run restarts from.
    pub(crate) fn take_back(&mut self, step: u64, level: Level) -> bool {
        let Some(cause) = self.reported.remove(&(step, level)) else {
            return false;
        };
        self.lost.take_back(level, cause);
        self.open.insert((step, level));
        self.seen = None;
        let loss = (step, level_number(level));
        self.owed.remove(&loss);
        // Breaks if: it stays; the same step, lost again, would be a warning.
        self.returned.remove(&loss);
        true
    }

    /// The loss that this rank wants returned: a fence, or the newest.
    pub(crate) fn owed(&self) -> Result<()> {
        let newest = self.owed.last_key_value().map(|(_, error)| error);
        (self.fence.as_ref().or(newest)).map_or(Ok(()), |error| Err(error.clone()))
    }

    /// For the checkpoint's own message, by minimum: 0, or less where this rank wants a loss returned.
    pub(crate) fn owes(&self) -> i64 {
        -i64::from(self.fence.is_some() || !self.owed.is_empty())
    }

    fn owe(&mut self, step: u64, level: Level, error: &Error) {
        let loss = (step, level_number(level));
        if error.kind() == ErrorKind::Fenced {
            // Breaks if: a later loss takes the place of the fence, after which nothing is ever safe again.
            self.fence.get_or_insert_with(|| error.clone());
        } else if !self.returned.contains(&loss) {
            self.owed.insert(loss, error.clone());
        }
    }

    /// All ranks return these losses.
    fn note_returned(&mut self, losses: Vec<Loss>) {
        for loss in losses {
            self.owed.remove(&loss);
            self.returned.insert(loss);
        }
        while self.returned.len() > MOST_RETURNED {
            self.returned.pop_first();
        }
    }
}

impl Session {
    /// Calls `watcher` for every step that became safe or lost at a level, inside later `due`, `checkpoint`, `close` and
    /// [`Self::take_warning`]; `None`: nobody any more. Local.
    pub fn watch(&mut self, watcher: Option<Watcher>) {
        self.told.watcher = watcher;
    }

    /// The newest step that this session made safe at `level` or at a configured level that survives more, without waiting.
    /// Local.
    ///
    /// # Errors
    /// Unsupported for a level that no configured one covers; NotFound when no step is safe there yet.
    pub fn safe_step(&self, level: Level) -> Result<u64> {
        let index = self.index();
        let enough = self.levels_that_cover(level)?;
        let safe = |level: &Level| index.committed_step(*level);
        enough.iter().filter_map(safe).max().ok_or_else(|| {
            Error::not_found(format!(
                "no checkpoint of this session is safe at level {level} yet"
            ))
        })
    }

    /// Looks for outcomes that were decided since the last look. Local.
    pub fn look_for_losses(&mut self) {
        if self.told.open.is_empty() || off(Switch::LossTold) {
            return;
        }
        let index = Index::new(&self.pool, self.shape);
        // News first: what is published after it is found by the next look.
        let seen = index.news();
        if self.told.seen == Some(seen) {
            return;
        }
        self.told.seen = Some(seen);
        // Without agents nothing is decided any more once the engine ended; with them the next checkpoint finds others.
        let over = self.options.agent == AgentKind::Off && index.is_gone();
        let forgotten = self.history.first().copied().unwrap_or(0);
        let mut events = Vec::new();
        self.told.open.retain(|&(step, level)| {
            let error = match index.outcome(step, level) {
                Outcome::Committed => None,
                Outcome::Lost(error) => Some(error),
                Outcome::Pending if over => Some(undecided(engine_gone(&self.shared))),
                Outcome::Pending if self.history.len() == HISTORY && step < forgotten => {
                    Some(undecided(Error::unavailable(format!(
                        "nothing was decided of it within {HISTORY} checkpoints"
                    ))))
                }
                Outcome::Pending => return true,
            };
            events.push((step, level, error));
            false
        });
        for (step, level, error) in events {
            self.tell(step, level, error);
        }
    }

    /// At the end of the session: what nothing was decided of, and is not waited for any more.
    pub(crate) fn tell_the_rest(&mut self, why: &str) {
        if off(Switch::LossTold) {
            return;
        }
        for (step, level) in std::mem::take(&mut self.told.open) {
            self.tell(step, level, Some(undecided(Error::unavailable(why))));
        }
    }

    fn tell(&mut self, step: u64, level: Level, error: Option<Error>) {
        let kind = match error {
            None => EventKind::Safe,
            Some(_) => EventKind::Lost,
        };
        let error = error.map(|error| told_loss(step, level, error));
        if let Some(error) = &error {
            self.told.lost.count(level, error.kind());
            self.told.reported.insert((step, level), error.kind());
            let forgotten = self.history.first().copied().unwrap_or(0);
            self.told.reported.retain(|&(step, _), _| step >= forgotten);
            if self.rank == 0 {
                report::lost(&self.job, error.message());
            }
            self.warnings.push(error.message().to_owned());
            let fenced = error.kind() == ErrorKind::Fenced && !off(Switch::FencedTold);
            if fenced || self.options.on_loss == OnLoss::Error {
                self.told.owe(step, level, error);
            }
            if self.options.on_loss == OnLoss::Stop {
                self.trigger.hear_loss();
            }
        }
        if let Some(watcher) = &mut self.told.watcher {
            watcher(&Event {
                kind,
                step,
                level,
                error,
            });
        }
    }

    /// Returns, on all ranks, the losses that some of them owe: `owed` is the minimum of [`Told::owes`]. Collective.
    pub(crate) fn return_loss(&mut self, owed: i64) -> Result<()> {
        if owed == 0 {
            return Ok(());
        }
        let losses = self.agree_on_losses()?;
        let local = self.told.owed().map_err(|error| match losses.len() {
            0 | 1 => error,
            count => error.at(format!("one of {count} losses")),
        });
        let agreed = agree(self.collective.as_mut(), local);
        self.told.note_returned(losses);
        if let Err(error) = &agreed {
            // Breaks if: it stays; the next call that succeeds would tell the same loss again.
            self.warnings.drop_said(error);
        }
        agreed
    }

    /// What any rank owes, the same on all of them. Collective: one reduction more than there are steps at one level, and
    /// those are no more than a rank keeps open.
    fn agree_on_losses(&mut self) -> Result<Vec<Loss>> {
        let mut losses = Vec::new();
        // By level: the newest step that was listed, plus one. Steps fit 63 bits: `prepare` refuses others.
        let mut listed = [0u64; 5];
        loop {
            let mut oldest = [i64::MAX; 5];
            for &(step, level) in self.told.owed.keys() {
                if step >= listed[level] {
                    oldest[level] = oldest[level].min(step as i64);
                }
            }
            self.collective.allreduce_min(&mut oldest)?;
            let before = losses.len();
            for (level, &step) in oldest.iter().enumerate() {
                if step < i64::MAX {
                    listed[level] = step as u64 + 1;
                    losses.push((step as u64, level));
                }
            }
            if losses.len() == before {
                return Ok(losses);
            }
        }
    }
}

/// The loss as a program reads it: step, level, cause, one next step.
fn told_loss(step: u64, level: Level, error: Error) -> Error {
    let lost = match error.is(Detail::Undecided) {
        true => "not known to be safe",
        false => "lost",
    };
    with_next_step(error.at(format!("checkpoint {step} is {lost} at level {level}")))
}

/// The cause of a loss with its next step: that of whoever met it, or what its kind asks for.
pub(crate) fn with_next_step(error: Error) -> Error {
    if error.next_step().is_some() {
        return error;
    }
    let next = match error.kind() {
        ErrorKind::NoSpace => {
            "free space there (`orcheck ls` shows what checkpoints take, `orcheck rm` removes some), or configure another directory"
        }
        ErrorKind::Fenced => "end this run; the newer one continues the job",
        ErrorKind::Corrupt => "test the memory and disk of that node",
        ErrorKind::Internal => "report this text",
        _ => "see whether that directory or node is reachable; the next checkpoint tries again",
    };
    error.next(next)
}
