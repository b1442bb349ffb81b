//! Waits for a checkpoint to be safe; the program can use the session meanwhile.
//!
//! Invariants:
//! 1. A wait ends at its deadline, when the step is decided, or soon after the engine or the
//!    session has ended.
//! 2. It keeps the node's pool mapped, but no thread, claim or directory of the session.
//!
//! Not here: who decides (the engine's `control.rs`), whether such a step was taken
//! ([`crate::session::state::Session::waiter`]).

use crate::session::outcomes::with_next_step;
use orcheck_engine::commit::ControlShared;
use orcheck_engine::node::{Index, Outcome, Patience};
use orcheck_format::{Error, Level, Result, Step};
use orcheck_io::clock::Clock;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

/// Longest time between two looks.
const SLICE: Duration = Duration::from_millis(200);

/// Waits for one step; see [`crate::session::state::Session::waiter`].
pub struct Waiter {
    pub(crate) step: Step,
    /// Any one of them is enough.
    pub(crate) levels: Vec<Level>,
    pub(crate) patience: Patience,
    pub(crate) shared: Arc<ControlShared>,
    pub(crate) clock: Arc<dyn Clock>,
}

impl Waiter {
    /// Waits until the step is committed at one of the levels; a timeout of 0 polls.
    ///
    /// # Errors
    /// Why the step is lost, if it is lost at all of them; Unavailable at the deadline, or if the
    /// engine has ended.
    pub fn wait(&self, timeout: Duration) -> Result<()> {
        self.wait_or(timeout, "wait longer; it continues in the background")
    }

    /// The same; `next` is the next step at the deadline.
    pub(crate) fn wait_or(&self, timeout: Duration, next: &str) -> Result<()> {
        let step = self.step;
        let index = Index::new(&self.patience.pool, self.patience.shape);
        let until = self.clock.now() + timeout;
        loop {
            let news = index.news();
            let mut lost = None;
            let mut pending = None;
            let mut sealed = false;
            for &level in &self.levels {
                match index.outcome(step, level) {
                    Outcome::Committed if level == Level::Process => sealed = true,
                    Outcome::Committed => return Ok(()),
                    Outcome::Lost(error) => {
                        let what = format!("checkpoint {step} is not safe at level {level}");
                        // Breaks if: it is left unchanged; a program whose last checkpoint met a
                        // full disk is not told what to do.
                        lost = lost.or_else(|| Some(with_next_step(error.at(what))));
                    }
                    Outcome::Pending => pending = pending.or(Some(level)),
                }
            }
            // Breaks if: sealing alone is enough; if no directory accepts the step, it is lost with
            // the engine.
            if sealed && pending.is_some() {
                return Ok(());
            }
            // What no directory accepts stays in memory only until the engine gives it up.
            let never = pending == Some(Level::Process) && lost.is_some();
            let Some(pending) = pending.filter(|_| !never) else {
                return Err(lost.unwrap_or_else(|| Error::internal("no level to wait for")));
            };
            if let Err(error) = self.patience.check() {
                return Err(if self.patience.stop.load(Ordering::Acquire) {
                    error.at(format!(
                        "checkpoint {step} is not yet safe at level {pending}"
                    ))
                } else {
                    engine_gone(&self.shared)
                });
            }
            let left = until.saturating_sub(self.clock.now());
            if left.is_zero() {
                return Err(Error::unavailable(format!(
                    "checkpoint {step} is not yet safe at level {pending} after {:.3} s",
                    timeout.as_secs_f64()
                ))
                .next(next));
            }
            index.wait_news(news, left.min(SLICE));
        }
    }
}

/// The error that the engine of this node has ended, with its last note.
pub(crate) fn engine_gone(shared: &ControlShared) -> Error {
    let notes = shared.notes.lock().unwrap_or_else(PoisonError::into_inner);
    let why = notes
        .last()
        .map(|note| format!(": {note}"))
        .unwrap_or_default();
    Error::unavailable(format!("the checkpoint engine of this node ended{why}"))
        .next("with agents, take the next checkpoint, which continues with others; without, restart the program from the last committed checkpoint")
}
