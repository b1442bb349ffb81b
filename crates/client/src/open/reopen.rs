//! Carries state from one session of a run to the next, after an agent has ended.
//!
//! Not here: when this happens (`succession.rs`).

use crate::collective::{Collective, agree, agree_min};
use orcheck_engine::commit::undecided;
use orcheck_engine::node::{Goes, Index, IndexShape, Kept, Layout, Outcome, POOL_IN_USE};
use orcheck_format::sabotage::{Switch, off};
use orcheck_format::{Error, Level, Result, Step};
use orcheck_pool::{Gates, Pool};
use std::sync::Arc;
use std::time::Duration;

/// Longest wait for the threads of an engine that is ending.
const POOL_TIMEOUT: Duration = Duration::from_secs(20);

/// The state that one session of a run passes to the next.
pub(crate) struct Reopen {
    /// How long to wait for an agent that somebody else starts.
    pub(crate) patience: Duration,
    pub(crate) pool: Arc<Pool>,
    pub(crate) shape: IndexShape,
    pub(crate) local: u32,
    /// Runs of chunks that belong to the program.
    pub(crate) own: Vec<(u32, u32)>,
    pub(crate) kept: Arc<Kept>,
    pub(crate) levels: Vec<Level>,
    /// Steps whose outcome can be queried, and the levels that each goes to.
    pub(crate) history: Vec<(Step, Goes)>,
    /// Those among them that are handed to the successor.
    pub(crate) resubmitted: Vec<Step>,
    /// Those among them that are lost.
    pub(crate) lost: Vec<Step>,
    /// The commits that some node knows.
    pub(crate) committed: Vec<(Step, Level)>,
    /// The newest step that was committed at any level.
    pub(crate) newest: Option<Step>,
    /// The highest epoch that this run requested.
    pub(crate) counter: u64,
}

impl Reopen {
    /// Once no engine uses the pools any more, agrees on the outcomes of the last steps, and resets
    /// the pools except for the program's memory and the snapshots that are needed again.
    /// Collective.
    pub(crate) fn take_over_pool(
        &mut self,
        collective: &mut dyn Collective,
        layout: &Layout,
    ) -> Result<()> {
        let index = Index::new(&self.pool, self.shape);
        let committed = [Level::Node, Level::Global].map(|level| index.committed_step(level));
        let newest = committed.into_iter().flatten().max();
        let mut values = vec![newest.map_or(0, |step| -(step.0 as i64) - 1)];
        for &(step, _) in &self.history {
            values.push(i64::from(self.kept.has(step)));
            for &level in &self.levels {
                let committed = index.outcome(step, level) == Outcome::Committed;
                values.push(-i64::from(committed));
            }
        }
        // Breaks if: a thread of an engine that is ending still takes from the rings.
        let free = if layout.leads_node(collective.rank()) {
            let gates = Gates::open(&self.pool);
            let gate = gates.and_then(|gates| gates.lock(POOL_IN_USE, POOL_TIMEOUT));
            gate.map(drop)
        } else {
            Ok(())
        };
        let free = free.map_err(|error| error.at("an engine that does not release the pool"));
        agree(collective, free)?;
        let same = if IndexShape::of(&layout.nodes[layout.node_of(collective.rank()).index()])
            == self.shape
        {
            Ok(())
        } else {
            Err(Error::internal("the ranks of a node changed"))
        };
        // Nobody continues before all have looked.
        agree_min(collective, same, &mut values)?;
        self.newest = ((-values[0] as u64).checked_sub(1)).map(Step);
        let leads_node = layout.leads_node(collective.rank());
        if leads_node {
            self.pool.renew();
            index.renew(self.history.last().map(|&(step, _)| step));
        }
        self.decide_fates(&values[1..]);
        if leads_node {
            let index = Index::new(&self.pool, self.shape);
            for &(step, goes) in &self.history {
                self.publish(&index, step, goes);
            }
        }
        agree(collective, Ok(()))?;
        for &(first, chunks) in &self.own {
            self.pool.take_again(first, chunks);
        }
        self.kept.keep_only(&self.resubmitted, &self.pool);
        // Breaks if: a rank takes chunks before another one has marked its own.
        agree(collective, Ok(()))
    }

    /// Decides the outcome of each of the last steps. `values` is what all ranks know about them,
    /// by minimum: whether every rank still has the snapshot, and the levels at which any rank
    /// knows it to be committed.
    fn decide_fates(&mut self, values: &[i64]) {
        let rows = values.chunks(1 + self.levels.len());
        for (&(step, _), row) in self.history.iter().zip(rows) {
            let (has, committed) = (row[0] != 0, &row[1..]);
            // Breaks if: a step that was committed at one level is also submitted again; a part of
            // it would supersede the whole of it, and what came after it.
            let newer = self.newest.is_none_or(|newest| step > newest);
            if newer && has && !off(Switch::ToldAgain) {
                self.resubmitted.push(step);
            } else if newer {
                self.lost.push(step);
            }
            let committed = self
                .levels
                .iter()
                .zip(committed)
                .filter(|(_, said)| **said != 0);
            self.committed
                .extend(committed.map(|(&level, _)| (step, level)));
        }
    }

    /// Publishes the outcome of `step` on this node's board, at the levels that it goes to.
    fn publish(&self, index: &Index<'_>, step: Step, goes: Goes) {
        for &level in self.levels.iter().filter(|&&level| goes.includes(level)) {
            if self.committed.contains(&(step, level)) {
                index.forget_loss(step, level);
                index.publish(step, level, &Outcome::Committed);
            } else if self.resubmitted.contains(&step) {
                index.forget_loss(step, level);
            } else {
                let error = Error::unavailable(format!(
                    "an agent of the job ended before checkpoint {step} was safe at level {level}, and not all of it is left in memory"
                ));
                // Steps newer than all committed ones are superseded; for an older one, the lead
                // may have begun to write the record.
                let error = match self.newest.is_none_or(|newest| step > newest) {
                    true => error,
                    false => undecided(error),
                };
                index.publish(step, level, &Outcome::Lost(error));
            }
        }
    }
}
