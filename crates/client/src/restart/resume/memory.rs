//! Has a restart read from memory that the agent of this node kept of an earlier run.
//!
//! Invariants:
//! 1. Once the run has restarted, or begins without, the memory is given back.
//!
//! Not here: asking for it and mapping it (`open/recalled.rs`), what is taken and verified
//! (`engine::restart`).

use crate::session::Session;

impl Session {
    /// Has the found checkpoint read from the memory that the agent of this node kept, if any.
    pub(super) fn recall_memory(&mut self) {
        let Some((_, view)) = &mut self.resume.found else {
            return;
        };
        if let Some(memory) = self.resume.memory.memory() {
            view.recall(&memory);
        }
    }

    /// Gives back the memory that the agent of this node kept: nothing more is read from it.
    pub(super) fn forget_memory(&mut self) {
        if let Some(taken_bytes) = self.resume.memory.release() {
            self.progress.stats.memory_bytes = taken_bytes;
            if let (Some((step, _)), true) = (self.resume.from, taken_bytes > 0) {
                let node = self.link.layout.node_of(self.rank);
                self.tell_run(&format!(
                    "job '{}' restarted from step {step}; rank 0 took {taken_bytes} bytes of it from memory that the agent of node '{}' had kept",
                    self.job.as_str(),
                    self.link.layout.nodes[node.index()].name
                ));
            }
        }
        let agent = self.link.threads.as_mut();
        if let Some(agent) = agent.and_then(|threads| threads.agent.as_mut()) {
            agent.forget();
        }
    }
}
