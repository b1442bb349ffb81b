//! Has a restart read from memory that the agent of this node kept of an earlier run.
//!
//! Invariants:
//! 1. The agent is asked once, by each rank that reads something. No answer, or another one than
//!    expected, means that files are read.
//! 2. Once the run has restarted, or begins without, the memory is given back.
//!
//! Not here: what is taken and verified (`engine::restart`).

use crate::open::recall;
use crate::session::Session;
use std::sync::Arc;

impl Session {
    /// Has the found checkpoint read from the memory that the agent of this node kept, if any.
    pub(super) fn recall_memory(&mut self) {
        let memory = self.resume.memory.get_or_insert_with(|| {
            let link = &self.link;
            let node = &link.layout.nodes[link.layout.node_of(self.rank).index()].name;
            let world = (
                &self.environment.failpoints,
                self.environment.clock.as_ref(),
            );
            recall(&self.job, node, &self.options, world).map(Arc::new)
        });
        if let (Some(memory), Some((_, view))) = (memory, &mut self.resume.found) {
            view.recall(memory);
        }
    }

    /// Gives back the memory that the agent of this node kept: nothing more is read from it.
    pub(super) fn forget_memory(&mut self) {
        if let Some(Some(memory)) = self.resume.memory.take() {
            self.progress.stats.memory_bytes = memory.taken_bytes();
        }
        let agent = self.link.threads.as_mut();
        if let Some(agent) = agent.and_then(|threads| threads.agent.as_mut()) {
            agent.forget();
        }
    }
}
