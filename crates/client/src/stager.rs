//! The rank's own CP-thread: stages lent regions while the program goes on.
//!
//! Invariants:
//! 1. One staging at a time, in the order of the checkpoints.
//! 2. A staging that fails is given up (`Fail` reaches the flushing CP-thread) and its error is
//!    kept for `lent_done`.
//!
//! Not here: staging itself (`engine::stage`).

use orcheck_engine::stage::Staging;
use orcheck_format::error::{Error, Result};
use orcheck_io::thread::spawn;
use std::collections::BTreeMap;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Handle to the thread; dropping it lets the thread end after what it has.
pub struct Stager {
    sender: Option<Sender<(u64, Staging)>>,
    state: Arc<State>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct State {
    /// Steps that finished, with their error if any; the last few.
    finished: Mutex<BTreeMap<u64, Option<Error>>>,
    changed: Condvar,
}

impl Stager {
    /// Starts the thread.
    ///
    /// # Errors
    /// When the system grants no thread.
    pub fn start() -> Result<Self> {
        let (sender, receiver) = channel::<(u64, Staging)>();
        let state = Arc::new(State::default());
        let shared = Arc::clone(&state);
        let thread = spawn("orcheck-stage", move || {
            while let Ok((step, staging)) = receiver.recv() {
                let error = staging.finish().err();
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

    /// Hands a snapshot over.
    ///
    /// # Errors
    /// Internal when the thread is gone.
    pub fn hand_over(&self, step: u64, staging: Staging) -> Result<()> {
        match &self.sender {
            Some(sender) => sender.send((step, staging)).map_err(|_| gone()),
            None => Err(gone()),
        }
    }

    /// Waits until the snapshot of `step` is staged; `Ok(false)` at the deadline.
    ///
    /// # Errors
    /// Why it was given up.
    pub fn wait(&self, step: u64, timeout: Duration) -> Result<bool> {
        let finished = lock(&self.state.finished);
        let (finished, _) = self
            .state
            .changed
            // In order: when a later step finished, this one did, even if it is forgotten.
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
            // It ends within the staging timeout; a panic there has been reported by `wait`.
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
