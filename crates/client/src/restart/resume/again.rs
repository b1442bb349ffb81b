//! Tries a checkpoint once more that could not be read for a moment.
//!
//! How: a server that was ended and started again ends all connections. That says nothing about its
//! files, so all ranks wait until the directories of level `global` answer, and open the same
//! checkpoint again. If they do not, the restart is an error: an older step would supersede a
//! checkpoint that is whole.
//!
//! Not here: what is damaged, or on nodes that are gone (`resume.rs`).

use crate::collective::agree;
use crate::session::Session;
use orcheck_format::sabotage::{Switch, off};
use orcheck_format::{Error, ErrorKind, Result, Step};
use std::time::Duration;

/// Seconds from one look at the directories to the next.
const PAUSES_S: [u64; 5] = [0, 1, 2, 4, 8];
/// How often the checkpoints of one search are tried again. Then, what cannot be read counts as
/// damaged: its directory answers.
const TRIES_MOST: u32 = 2;

impl Session {
    /// Whether a checkpoint that could not be read is to be tried once more. Collective.
    ///
    /// # Errors
    /// Unavailable if a directory of level `global` does not answer.
    pub(super) fn tries_again(&mut self, step: Step, error: &Error) -> Result<bool> {
        let may = error.kind() == ErrorKind::Unavailable && self.resume.tries < TRIES_MOST;
        if !may || off(Switch::TriedAgain) {
            return Ok(false);
        }
        self.resume.tries += 1;
        let mut silent = None;
        for pause_s in PAUSES_S {
            self.environment.clock.sleep(Duration::from_secs(pause_s));
            match agree(self.collective.as_mut(), self.link.places.answer()) {
                Ok(()) => return Ok(true),
                Err(error) if error.kind() == ErrorKind::Unavailable => silent = Some(error),
                // What is wrong there is for whoever reads.
                Err(_) => return Ok(false),
            }
        }
        let silent = silent.as_ref().unwrap_or(error);
        let text = format!("step {step} cannot be read now: {}", silent.what());
        Err(Error::unavailable(text).next(
            "bring the directory or server back, then start the job again; nothing is known to be lost",
        ))
    }
}
