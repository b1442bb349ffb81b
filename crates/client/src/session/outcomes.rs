//! Collects the outcomes of checkpoints and reports them to the program at its next call.
//!
//! How: each rank keeps, level by level, the steps that it took and whose outcomes it has not seen
//! yet. Every `due`, `checkpoint` and `close`, and every call that takes warnings, looks for them
//! on the node's board; if nothing was published since the last look, that is one comparison. A
//! loss becomes a warning, an event for the program's watcher, and a count in the figures.
//!
//! Invariants:
//! 1. Each step that was taken is reported once at each configured level, as safe or as lost, at
//!    the latest by `close`. The only exception: after an agent has ended, a step that was reported
//!    lost may be flushed again from memory; the report is then taken back and the step is reported
//!    again.
//! 2. Statuses of collective calls are agreed: that a rank owes an error travels in the
//!    checkpoint's own message. Only if one does are there further messages, about the owed losses
//!    and with the text.
//! 3. A checkpoint that returns such an error was not staged on any rank. Every later checkpoint
//!    returns [`ErrorKind::Fenced`]; any other loss, of a step at a level, is returned once, by all
//!    ranks together.
//! 4. Pending reports are bounded: warnings by `warnings.rs`, open outcomes by the board's history
//!    (`backlog.rs` waits for one that would be forgotten).
//! 5. A step that is reported lost is not restartable at that level, unless the text says that it
//!    is not known to be safe (`Detail::Undecided`): its commit record may exist.
//!
//! Level `process` has no events: a snapshot there is on its way to the directories, and its
//! outcome is reported at their levels. `wait` and `safe_step` know this level.
//!
//! Not here: who decides what is lost (the engine's `protocol.rs`), the board (`index.rs`), the C
//! callback (crate `capi`).

use orcheck_format::{Error, ErrorKind, Level, Result, Step};
use std::collections::{BTreeMap, BTreeSet};

/// Number of checkpoints whose outcome can be waited for: as many as the board has places.
pub(crate) const HISTORY: usize = 64;
/// Number of losses that are remembered as returned: more than a rank can still learn of.
pub(crate) const MOST_RETURNED: usize = 8 * HISTORY;

/// The outcome of a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventKind {
    /// It is committed at this level.
    Safe,
    /// It will never be committed at this level.
    Lost,
}

/// The outcome of one step at one level.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// The outcome.
    pub kind: EventKind,
    /// The step.
    pub step: Step,
    /// The level.
    pub level: Level,
    /// Why it is lost, in the text of the warning. `None` for a safe step.
    pub error: Option<Error>,
}

/// Called for each event, on the thread that called the session.
pub type Watcher = Box<dyn FnMut(&Event) + Send>;

/// Lost steps, by level and cause.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LostSteps {
    pub(crate) counts: [[u64; 9]; 5],
}

impl LostSteps {
    /// Steps lost at a level, for one cause or for any.
    #[must_use]
    pub fn at(&self, level: Level, cause: Option<ErrorKind>) -> u64 {
        self.counts[level_number(level)][cause.map_or(0, |kind| kind.code() as usize)]
    }

    /// By number of the level (1 process, 2 node, 3 peers, 4 global), then by code of the cause; 0:
    /// any cause.
    #[must_use]
    pub fn table(&self) -> [[u64; 9]; 5] {
        self.counts
    }

    pub(crate) fn count(&mut self, level: Level, cause: ErrorKind) {
        let row = &mut self.counts[level_number(level)];
        row[0] += 1;
        row[cause.code() as usize] += 1;
    }

    pub(crate) fn take_back(&mut self, level: Level, cause: ErrorKind) {
        let row = &mut self.counts[level_number(level)];
        row[0] = row[0].saturating_sub(1);
        let of_cause = &mut row[cause.code() as usize];
        *of_cause = of_cause.saturating_sub(1);
    }
}

pub(crate) fn level_number(level: Level) -> usize {
    match level {
        Level::Process => 1,
        Level::Node => 2,
        Level::Peers(_) => 3,
        Level::Global => 4,
    }
}

/// The outcomes of its steps that a rank has seen, and what it still has to report.
#[derive(Default)]
pub(crate) struct Outcomes {
    /// News of the board as of the last look.
    pub(crate) seen: Option<u64>,
    pub(crate) open: BTreeSet<(Step, Level)>,
    /// Losses that were reported, with their causes: as far back as the successor of an agent may
    /// flush a step again.
    pub(crate) reported: BTreeMap<(Step, Level), ErrorKind>,
    pub(crate) lost: LostSteps,
    pub(crate) watcher: Option<Watcher>,
    /// Losses that the next checkpoint returns.
    pub(crate) owed: BTreeMap<Loss, Error>,
    /// What every later checkpoint returns.
    pub(crate) fence: Option<Error>,
    /// Losses that all ranks returned; the newest ones.
    pub(crate) returned: BTreeSet<Loss>,
}

/// A step, and the number of the level at which it is lost.
pub(crate) type Loss = (Step, usize);

impl Outcomes {
    /// Notes that a checkpoint of `step` was taken.
    pub(crate) fn took(&mut self, step: Step, levels: &[Level]) {
        // What is decided of it was published after the last look at the board, which was before
        // the ranks agreed to take it.
        self.open.extend(levels.iter().map(|&level| (step, level)));
    }

    /// Steps whose outcome at this level is not seen yet, oldest first.
    pub(crate) fn open_at(&self, level: Level) -> impl Iterator<Item = Step> + Clone {
        let open = self.open.iter().filter(move |(_, at)| *at == level);
        open.map(|&(step, _)| step)
    }

    /// Outcomes that are not seen yet, oldest first.
    pub(crate) fn open(&self) -> Vec<(Step, Level)> {
        self.open.iter().copied().collect()
    }

    /// Takes back the loss of a step that is, or is being made, safe after all: it is reported
    /// again. Returns whether it was reported.
    // Breaks if: it is left out; a step from which the next run restarts counts as lost.
    pub(crate) fn take_back(&mut self, step: Step, level: Level) -> bool {
        let Some(cause) = self.reported.remove(&(step, level)) else {
            return false;
        };
        self.lost.take_back(level, cause);
        self.open.insert((step, level));
        self.seen = None;
        let loss = (step, level_number(level));
        self.owed.remove(&loss);
        // Breaks if: it stays; the same step, lost again, would be only a warning.
        self.returned.remove(&loss);
        true
    }

    /// The loss that this rank wants returned: a fence, or the newest.
    pub(crate) fn owed(&self) -> Result<()> {
        let newest = self.owed.last_key_value().map(|(_, error)| error);
        (self.fence.as_ref().or(newest)).map_or(Ok(()), |error| Err(error.clone()))
    }

    /// For the checkpoint's own message, by minimum: 0, or negative if this rank wants a loss
    /// returned.
    pub(crate) fn owes(&self) -> i64 {
        -i64::from(self.fence.is_some() || !self.owed.is_empty())
    }

    pub(crate) fn owe(&mut self, step: Step, level: Level, error: &Error) {
        let loss = (step, level_number(level));
        if error.kind() == ErrorKind::Fenced {
            // Breaks if: a later loss replaces the fence, after which nothing is ever safe again.
            self.fence.get_or_insert_with(|| error.clone());
        } else if !self.returned.contains(&loss) {
            self.owed.insert(loss, error.clone());
        }
    }

    /// Notes that all ranks return these losses.
    pub(crate) fn note_returned(&mut self, losses: Vec<Loss>) {
        for loss in losses {
            self.owed.remove(&loss);
            self.returned.insert(loss);
        }
        while self.returned.len() > MOST_RETURNED {
            self.returned.pop_first();
        }
    }
}

/// The cause of a loss with its next step: the one of the rank that met it, or one by its kind.
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
        _ => "check whether that directory or node is reachable; the next checkpoint tries again",
    };
    error.next(next)
}
