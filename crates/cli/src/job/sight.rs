//! Interprets a failure to read a part of a checkpoint: the part is lost or damaged, or merely out
//! of sight.
//!
//! Invariants:
//! 1. If data cannot be read for lack of permission, a server or a disk, or may be where that is
//!    so, the command ends with [`exit::UNREACHABLE`] and names the directory and what to do about
//!    it.
//!
//! Not here: which directories cannot be read (`search.rs`).

use std::path::Path;

use orcheck_engine::directory::{Commit, Unread, UnreadStep};
use orcheck_format::{Error, ErrorKind, Level, Step};

use crate::args::Which;
use crate::exit;
use crate::job::Job;
use crate::job::search::cannot_open;
use crate::output::Failure;

impl Job {
    /// The failure of a command that cannot read this container of a commit.
    pub fn unread(&self, commit: &Commit, container: &str, error: Error) -> Failure {
        match error.kind() {
            // Breaks if: it counts as absent; a user would throw away a checkpoint whose server is
            // down.
            ErrorKind::NotFound => match self.out_of_sight() {
                Some(hidden) => {
                    let both = format!("{}; {}", error.what(), hidden.error.what());
                    let error = hidden.advise(Error::unavailable(both));
                    Failure::with(exit::UNREACHABLE, error)
                }
                None => error.into(),
            },
            ErrorKind::Unavailable => {
                let place = self.find_file(commit, container);
                let place = place.map_or_else(String::new, |place| self.place_path(place));
                cannot_open(&Path::new(&place).join(container), error)
            }
            _ => error.into(),
        }
    }

    /// The failure of a command that cannot read a file of this job, or cannot tell whether it is
    /// locked.
    pub fn unread_file(&self, error: Error) -> Failure {
        let mut paths = (0..self.catalog.places().len()).map(|place| self.place_path(place));
        // The destination of a copy is not a place of the job.
        let named = paths.find(|path| error.message().contains(&format!("{path}/")));
        match (error.kind(), named) {
            (ErrorKind::Unavailable, Some(path)) => cannot_open(Path::new(&path), error),
            _ => error.into(),
        }
    }

    /// The newest step that was passed over for this one, because its commit record is here and
    /// cannot be used; `None` if a step was asked for.
    pub fn passed_over(&self, commit: &Commit, which: &Which) -> Option<UnreadStep> {
        if which.step().is_some() {
            return None;
        }
        let of_level = |level: Level| which.level.is_none_or(|wanted| wanted == level);
        let counts =
            |one: &Unread| of_level(one.level) && (which.level.is_some() || !one.elsewhere);
        let unread = (self.catalog).unread_steps(Some(commit.record.step), counts);
        unread.into_iter().next()
    }

    /// The newest of these steps whose commit record is here and cannot be read, and the failure.
    pub fn unread_record(&self, wanted: impl Fn(Step) -> bool) -> Option<(Step, Failure)> {
        let catalog = &self.catalog;
        let unread = catalog.unread().iter().filter(|one| {
            !one.elsewhere && one.why.kind() == ErrorKind::Unavailable && wanted(one.step)
        });
        let one = unread.max_by_key(|one| one.step)?;
        let path = Path::new(&self.place_path(one.place)).join(&one.file);
        Some((one.step, cannot_open(&path, one.why.clone())))
    }
}

/// The failure of a command that cannot read what it needs.
pub fn not_read(error: Error) -> Failure {
    match error.kind() {
        ErrorKind::Unavailable => Failure::with(exit::UNREACHABLE, error),
        _ => error.into(),
    }
}

/// Whether nothing is known to be lost.
pub fn is_out_of_sight(failure: &Failure) -> bool {
    failure.code == exit::UNREACHABLE
}
