//! Asks the agent of this node for memory that it kept of an earlier run, and maps it while the
//! session opens and the program gets ready to restart.
//!
//! To map memory costs as much as to copy it. A thread of the rank therefore asks and maps as soon
//! as the agent has finished with older runs, and unmaps when the restart is over. It never
//! preempts the program.
//!
//! Invariants:
//! 1. Nobody depends on it: no answer in time, or another one than expected, means that files are
//!    read.
//! 2. The thread ends with the session at the latest.
//!
//! Not here: the conversation (`agent.rs`), what is taken and verified (`engine::restart`).

use orcheck_engine::restart::AgentMemory;
use orcheck_format::Rank;
use orcheck_io::machine::thread::{never_preempt, spawn};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Longest wait for the agent's answer when the restart begins.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long the memory stays mapped after the restart: other ranks may still be in that call.
const PAUSE: Duration = Duration::from_millis(20);

/// The thread, and what it learned.
#[derive(Default)]
pub(crate) struct Recalled {
    known: Arc<Known>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Known {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    answered: bool,
    memory: Option<Arc<AgentMemory>>,
    released: bool,
    ends: bool,
}

impl Known {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_for_answer(&self) -> MutexGuard<'_, State> {
        let asked = |state: &mut State| !state.answered;
        let waited = (self.changed).wait_timeout_while(self.state(), PATIENCE, asked);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    fn wait_for_release(&self) {
        let held = |state: &mut State| !state.released;
        let waited = self.changed.wait_while(self.state(), held);
        let state = waited.unwrap_or_else(PoisonError::into_inner);
        let waits = |state: &mut State| !state.ends;
        let waited = self.changed.wait_timeout_while(state, PAUSE, waits);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }
}

/// Answers when dropped, however the question ends.
struct Answer<'a>(&'a Known, Option<Arc<AgentMemory>>);

impl Drop for Answer<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.answered = true;
        state.memory = self.1.take();
        self.0.changed.notify_all();
    }
}

impl Recalled {
    /// Asks in the background; maps what is there of this rank.
    pub(crate) fn start(
        rank: Rank,
        ask: impl FnOnce() -> Option<AgentMemory> + Send + 'static,
    ) -> Self {
        let known = Arc::<Known>::default();
        let of_thread = Arc::clone(&known);
        let thread = spawn("orcheck-recall", move || {
            let known = of_thread;
            let mut answer = Answer(&known, None);
            let memory = ask().map(Arc::new);
            answer.1 = memory.clone();
            drop(answer);
            let Some(memory) = memory else { return };
            never_preempt();
            memory.map_ahead(rank, &|| known.state().released);
            known.wait_for_release();
            // This may unmap it, which takes a while.
            drop(memory);
        });
        Self {
            known,
            thread: thread.ok(),
        }
    }

    /// The memory that the agent kept; waits for the agent's answer.
    pub(crate) fn memory(&self) -> Option<Arc<AgentMemory>> {
        self.thread.as_ref()?;
        self.known.wait_for_answer().memory.clone()
    }

    /// Lets go of the memory; returns how many bytes were taken from it.
    pub(crate) fn release(&self) -> Option<u64> {
        let mut state = self.known.state();
        state.released = true;
        self.known.changed.notify_all();
        Some(state.memory.take()?.taken_bytes())
    }
}

impl Drop for Recalled {
    fn drop(&mut self) {
        self.known.state().ends = true;
        self.release();
        if let Some(thread) = self.thread.take() {
            // A panic there has been reported; files are read.
            let _ = thread.join();
        }
    }
}
