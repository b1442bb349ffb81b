//! Builds the errors of a restart for which no checkpoint is left.
//!
//! Invariants:
//! 1. Every checkpoint that was tried is named, with its error.
//! 2. A start from nothing is offered only if every configured directory is readable, and no
//!    directory that was not given holds data of the job.
//! 3. All ranks return the same error.
//!
//! Not here: what is tried, and in which order (`resume.rs`).

use super::Which;
use crate::collective::agree;
use crate::report;
use crate::session::Session;
use orcheck_engine::directory::choose::listed;
use orcheck_engine::encoding::HOW_TO_ACCEPT;
use orcheck_format::{Detail, Error, ErrorKind, Rank, Result, Step};

/// Next step if everything was readable.
const OR_FRESH: &str = "run `orcheck verify`; set start = 'fresh' to begin from nothing";
/// Next step if something cannot be read now.
const OR_WAIT: &str =
    "bring back what cannot be read, then start the job again; nothing is known to be lost";

impl Session {
    /// The message that the job begins from nothing: what it lacks, where it was looked for, and
    /// what lies beside that.
    pub(super) fn nothing_there(&self, lacks: &str, beside: &[String]) -> Error {
        let job = self.job.as_str();
        // Breaks if: both messages are the same; a user would believe that the checkpoints of the
        // job are gone.
        let why = match self.options.fresh {
            true => {
                return Error::not_found(format!(
                    "job '{job}' begins from nothing, because start = 'fresh'"
                ));
            }
            false => format!(
                "job '{job}' begins from nothing: it has {lacks} in {}",
                self.looked_in()
            ),
        };
        let all: Vec<String> = std::iter::once(why).chain(beside.iter().cloned()).collect();
        Error::not_found(all.join("; ")).next(match self.options.node_dir {
            Some(_) => "if this is its first run, nothing; otherwise end it, correct the job's name, the directories or the names of nodes (ORCHECK_NODE), and start again",
            None => "if this is its first run, nothing; otherwise end it, correct the job's name or the directories, and start again",
        })
    }

    /// Tells `orcheck run`, on rank 0.
    pub(super) fn tell_run(&self, text: &str) {
        if self.rank == Rank(0) {
            report::told(&self.job, text);
        }
    }

    /// The error that no requested checkpoint is among those that exist.
    pub(super) fn none_of(&self, which: Which, there: &str) -> Error {
        let job = self.job.as_str();
        match self.options.fresh {
            true => Error::not_found(format!(
                "no {which} of job '{job}' is looked for: start = 'fresh' begins from nothing"
            ))
            .next("leave start = 'fresh' out to restart from one"),
            false => Error::not_found(format!("job '{job}' has no {which}; it has: {there}")),
        }
    }

    /// The error that all existing candidates have proved to be damaged. Collective.
    pub(super) fn all_damaged(&mut self) -> Error {
        let damaged = self.resume.damaged.iter().map(|candidate| candidate.step);
        let error = Error::corrupt(format!(
            "no checkpoint of job '{}' can be restored: all that are left are damaged (steps {})",
            self.job.as_str(),
            listed(damaged)
        ));
        let error = error.next(self.or_fresh());
        self.blame_away(error)
    }

    /// The error that the last candidate cannot be restored either. Collective.
    pub(super) fn none_left(&mut self, damaged: &Error) -> Error {
        let kind = match damaged.kind() {
            ErrorKind::NotFound => ErrorKind::Corrupt,
            kind => kind,
        };
        let why = [&self.resume.tried[..], &self.emptied()].concat();
        let error = Error::new(
            kind,
            format!(
                "no checkpoint of job '{}' can be restored: {}",
                self.job.as_str(),
                why.join("; ")
            ),
        );
        if damaged.is(Detail::Unauthenticated) {
            return error.next(HOW_TO_ACCEPT);
        }
        let next = match self.resume.chosen {
            true => "choose another step",
            // Breaks if: it is a start from nothing; what cannot be read now would be superseded.
            false if kind == ErrorKind::Unavailable && self.resume.not_given.is_none() => OR_WAIT,
            false => self.or_fresh(),
        };
        let error = error.next(next);
        self.blame_away(error)
    }

    /// Breaks if: it is a start from nothing all the same; that supersedes checkpoints that are
    /// intact.
    fn or_fresh(&self) -> &str {
        self.resume.not_given.as_deref().unwrap_or(OR_FRESH)
    }

    /// The error that a damaged checkpoint is not replaced by an older one, because of `strict`.
    /// Collective.
    pub(super) fn refuse_strictly(&mut self, step: Step, error: Error) -> Error {
        let mut error = error.at(format!("strict allows no step older than {step}"));
        if !error.is(Detail::NotGiven) {
            error =
                error.next("run `orcheck verify`; leave strict out to restart from an older step");
        }
        self.blame_away(error)
    }

    /// Reports the outcome of a search or restart to `orcheck run`: not every program reports it.
    pub(super) fn report_restart<T>(&mut self, came_to: Result<T>) -> Result<T> {
        self.pass_on_warnings();
        let from_nothing = self.resume.state.is_decided();
        if let Err(error) = &came_to
            && self.rank == Rank(0)
        {
            match from_nothing && error.kind() == ErrorKind::NotFound {
                true => self.tell_run(error.message()),
                false => report::failed(&self.job, error),
            }
        }
        came_to
    }

    /// While a rank cannot read a configured directory, names that directory. Collective.
    fn blame_away(&mut self, error: Error) -> Error {
        let here = match self.link.places.away.is_empty() {
            true => Ok(()),
            false => Err(self.link.places.blame_away(error.clone())),
        };
        agree(self.collective.as_mut(), here).err().unwrap_or(error)
    }
}
