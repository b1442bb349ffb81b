//! Holds what is known about the job's past: which checkpoint was found, which were skipped, and
//! what is decided.
//!
//! Not here: looking for it (`restart/resume.rs`).

use crate::open::Recalled;
use crate::regions::Lists;
use orcheck_engine::restart::{Candidate, RankView};
use orcheck_format::{Detail, Epoch, Error, Step};
use std::collections::BTreeMap;
use std::fmt;

/// Next step if a directory was not given whose name was truncated in a message.
pub(crate) const GIVE_ALL: &str = "give all directories that the job was written to";

/// Which checkpoint to look for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Which {
    /// The newest.
    Newest,
    /// The one of this step.
    Exactly(Step),
    /// The newest of those older than this step.
    OlderThan(Step),
}

impl Which {
    pub(crate) fn allows(self, step: Step) -> bool {
        match self {
            Self::Newest => true,
            Self::Exactly(wanted) => step == wanted,
            Self::OlderThan(limit) => step < limit,
        }
    }

    /// The choice as numbers that are the same on all ranks.
    pub(crate) fn words(self) -> (i64, u64) {
        match self {
            Self::Newest => (0, 0),
            Self::Exactly(step) => (1, step.0),
            Self::OlderThan(step) => (2, step.0),
        }
    }
}

impl fmt::Display for Which {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Newest => f.write_str("checkpoint"),
            Self::Exactly(step) => write!(f, "checkpoint of step {step}"),
            Self::OlderThan(step) => write!(f, "checkpoint older than step {step}"),
        }
    }
}

/// The outcome of a restart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Restarted {
    /// The regions hold this step.
    Step(Step),
    /// Newer checkpoints are damaged. This older step is now the found one, and does not fit the
    /// protected regions, or lacks an optional one that holds bytes of the damaged step: ask what
    /// it stores, protect that, and restart again.
    Again(Step),
}

/// What is known of the job's past.
#[derive(Default)]
pub(crate) struct Resume {
    pub(crate) state: Past,
    /// Candidates not yet tried, newest first.
    pub(crate) left: Vec<Candidate>,
    pub(crate) found: Option<(Candidate, RankView)>,
    /// The lists of the found checkpoint, and who gets which items.
    pub(crate) lists: Lists,
    /// Whether a certain step was requested: its absence decides nothing.
    pub(crate) chosen: bool,
    /// Why newer ones were skipped, unless that was reported.
    pub(crate) skipped: Vec<String>,
    /// How often a step was tried again that could not be read for a moment.
    pub(crate) tries: u32,
    /// The same since the last `find`, reported or not: the error contains it if no checkpoint is
    /// left.
    pub(crate) tried: Vec<String>,
    /// The same of a call that returned `Again`: it is reported once more with the call that
    /// succeeds, because programs look after that.
    pub(crate) again: Vec<String>,
    /// What to give so that a checkpoint in a directory that was not searched can be restored.
    pub(crate) not_given: Option<String>,
    /// Optional regions that were filled since they were protected, and from which checkpoint.
    pub(crate) touched: BTreeMap<String, Candidate>,
    /// Checkpoints that proved to be damaged while they were read.
    pub(crate) damaged: Vec<Candidate>,
    /// The newest epoch before this one that a node's directory remembers, and that node; the same
    /// on all ranks.
    pub(crate) remembered: Option<(u64, u32)>,
    /// Containers without a commit record, newer than all checkpoints. On rank 0.
    pub(crate) uncommitted: Option<String>,
    /// Why the job must not begin from nothing: this run has withdrawn its claim, and writes
    /// nothing any more.
    pub(crate) refused: Option<Error>,
    /// Checkpoints that are superseded according to this node's own directory.
    pub(crate) fenced: Vec<Candidate>,
    /// What this run resumed from, not yet recorded.
    pub(crate) from: Option<(Step, Epoch)>,
    /// What the agent of this node kept of an earlier run.
    pub(crate) memory: Recalled,
}

impl Resume {
    /// Notes why a checkpoint is not restored.
    pub(crate) fn skip(&mut self, text: String, error: &Error) {
        if error.is(Detail::NotGiven) && self.not_given.is_none() {
            let next = error.next_step().unwrap_or(GIVE_ALL);
            self.not_given = Some(next.to_owned());
        }
        self.tried.push(text.clone());
        self.skipped.push(text);
    }
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Past {
    #[default]
    Unknown,
    Found,
    /// Decided, but recorded only with the first checkpoint: until then, this run supersedes
    /// nothing.
    Decided,
    Settled,
}

impl Past {
    /// Whether it is known what this run continues from.
    pub(crate) fn is_decided(self) -> bool {
        matches!(self, Self::Decided | Self::Settled)
    }
}

/// The error of a call that comes too late.
pub(crate) fn found_too_late() -> Error {
    Error::invalid("find after restart or after the first checkpoint of this session")
        .next("close the session and open it again to restart")
}

/// The error of a call about the found checkpoint, if none was found.
pub(crate) fn nothing_found(call: &str) -> Error {
    Error::invalid(format!(
        "{call} needs a checkpoint that was found and not restored yet"
    ))
    .next("call find first; once the regions are restored, it is too late")
}
