//! Runs the rank's own CP-thread, which stages lent regions while the program continues.
//!
//! It reads as fast as memory allows. On a node with as many ranks as cores, it would take turns
//! with ranks that are still inside the call, which would then take milliseconds instead of
//! microseconds. There it begins a moment after the last rank of the node has returned, or after
//! [`RETURN_WAIT`], and it never preempts a thread of the program merely because it was woken.
//!
//! Invariants:
//! 1. It does one staging at a time, in the order of the checkpoints; a staging counts as finished
//!    when all of it has been handed over.
//! 2. A staging that fails is given up (`Fail` reaches the flushing CP-thread), and its error is
//!    kept for `lent_done`.
//! 3. Its wait for other ranks is bounded: a rank that died in the call delays nobody for long.
//!
//! Not here: staging itself (`engine::capture`).

use orcheck_engine::capture::Staging;
use orcheck_format::sabotage::{Switch, off};
use orcheck_format::{Error, Result, Step};
use orcheck_io::machine::thread::{never_preempt, spawn};
use std::collections::BTreeMap;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Longest wait for the other ranks of the node to return from the call.
pub(crate) const RETURN_WAIT: Duration = Duration::from_millis(20);

/// Waits until the snapshot may be read, for a bounded time.
pub(crate) type Holdup = Box<dyn FnOnce() + Send>;

/// Handle to the thread; dropping it lets the thread end after its current work.
pub struct Stager {
    sender: Option<Sender<Work>>,
    state: Arc<State>,
    thread: Option<JoinHandle<()>>,
}

struct Work {
    step: Step,
    staging: Staging,
    what: What,
}

enum What {
    /// Read it once this returns.
    Read(Holdup),
    /// Announce it and give it up, for this reason.
    GiveUp(Error),
}

#[derive(Default)]
struct State {
    /// The last few steps that finished, with their errors if any.
    finished: Mutex<BTreeMap<Step, Option<Error>>>,
    changed: Condvar,
}

impl Stager {
    /// Starts the thread.
    ///
    /// # Errors
    /// When the system grants no thread.
    pub fn start() -> Result<Self> {
        let (sender, receiver) = channel::<Work>();
        let state = Arc::new(State::default());
        let shared = Arc::clone(&state);
        let thread = spawn("orcheck-stage", move || {
            never_preempt();
            while let Ok(work) = receiver.recv() {
                let (step, staging) = (work.step, work.staging);
                let mut late = None;
                let error = match work.what {
                    What::Read(holdup) => {
                        holdup();
                        staging.finish().map_or_else(Some, |(late, _)| late)
                    }
                    // Breaks if: the step counts as finished before `staging` has sent its `Fail`;
                    // the next one would begin inside it.
                    What::GiveUp(_) if off(Switch::ToldWhole) => late.insert(staging).begin().err(),
                    What::GiveUp(why) => staging.give_up(&why).err(),
                };
                let mut finished = lock(&shared.finished);
                finished.insert(step, error);
                while finished.len() > 64 {
                    finished.pop_first();
                }
                drop(finished);
                shared.changed.notify_all();
            }
        })?;
        Ok(Self {
            sender: Some(sender),
            state,
            thread: Some(thread),
        })
    }

    /// Hands a snapshot over, to be read once `holdup` returns.
    ///
    /// # Errors
    /// Internal if the thread is gone.
    pub fn hand_over(&self, step: Step, staging: Staging, holdup: Holdup) -> Result<()> {
        self.send(Work {
            step,
            staging,
            what: What::Read(holdup),
        })
    }

    /// Has a snapshot announced and given up, for this reason, once the earlier ones are sent.
    ///
    /// # Errors
    /// Internal if the thread is gone.
    pub fn give_up(&self, step: Step, staging: Staging, why: Error) -> Result<()> {
        self.send(Work {
            step,
            staging,
            what: What::GiveUp(why),
        })
    }

    fn send(&self, work: Work) -> Result<()> {
        match &self.sender {
            Some(sender) => sender.send(work).map_err(|refused| {
                let _ = refused.0.staging.give_up(&gone());
                gone()
            }),
            None => Err(gone()),
        }
    }

    /// Waits until the snapshot of `step` is staged; `Ok(false)` at the deadline.
    ///
    /// # Errors
    /// Why it was given up.
    pub fn wait(&self, step: Step, timeout: Duration) -> Result<bool> {
        let finished = lock(&self.state.finished);
        let (finished, _) = self
            .state
            .changed
            // In order: if a later step has finished, this one has too, even if it is forgotten.
            .wait_timeout_while(finished, timeout, |finished| {
                finished.range(step..).next().is_none()
            })
            .unwrap_or_else(PoisonError::into_inner);
        match (finished.get(&step), finished.range(step..).next()) {
            (Some(Some(error)), _) => Err(error.clone()),
            (_, Some(_)) => Ok(true),
            (_, None) => Ok(false),
        }
    }
}

impl Drop for Stager {
    fn drop(&mut self) {
        self.sender = None;
        if let Some(thread) = self.thread.take() {
            // It ends within the staging timeout; `wait` has reported a panic there.
            let _ = thread.join();
        }
    }
}

fn gone() -> Error {
    Error::internal("the staging thread of this rank ended")
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
