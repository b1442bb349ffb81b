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

use orcheck_format::{Error, ErrorKind, Level, Result};
use std::collections::{BTreeMap, BTreeSet};

/// Checkpoints whose outcome can be waited for.
pub(crate) const HISTORY: usize = 64;
/// Losses that are known to have been returned: more than a rank can still learn of.
pub(crate) const MOST_RETURNED: usize = 8 * HISTORY;

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
    pub(crate) counts: [[u64; 9]; 5],
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

/// What a rank has seen of the outcomes of its steps, and what it still has to say.
#[derive(Default)]
pub(crate) struct Outcomes {
    /// News of the board as of the last look.
    pub(crate) seen: Option<u64>,
    pub(crate) open: BTreeSet<(u64, Level)>,
    /// What was reported lost, with its cause: as far back as an agent that follows another one may flush it again.
    pub(crate) reported: BTreeMap<(u64, Level), ErrorKind>,
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
pub(crate) type Loss = (u64, usize);

impl Outcomes {
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

    pub(crate) fn owe(&mut self, step: u64, level: Level, error: &Error) {
        let loss = (step, level_number(level));
        if error.kind() == ErrorKind::Fenced {
            // Breaks if: a later loss takes the place of the fence, after which nothing is ever safe again.
            self.fence.get_or_insert_with(|| error.clone());
        } else if !self.returned.contains(&loss) {
            self.owed.insert(loss, error.clone());
        }
    }

    /// All ranks return these losses.
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
