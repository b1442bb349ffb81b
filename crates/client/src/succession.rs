//! Handles the end of an agent within a run: all ranks continue with new agents.
//!
//! ```text
//! some agent ended ─▶ all ranks release their session, and living agents finish it
//! the pools are reset, except for the program's memory and whole snapshots
//! the session is opened again: a new epoch; the successor gets the pool
//! snapshots that no directory holds yet are handed to it again
//! ```
//!
//! Invariants:
//! 1. Either all ranks do this in the same call, or none does: that an agent has ended travels in
//!    the agreement of the checkpoint.
//! 2. A step that was committed anywhere counts as committed. One that every rank still holds whole
//!    is flushed again. Any other is lost, and every rank is told.
//! 3. The new epoch continues from the newest committed step: nothing that was committed is
//!    superseded.
//!
//! Survives: an agent that is killed at any moment, also the lead's, also several. Not here: what
//! stays in the pool (`engine::node`), the agent's side (`engine::host`, which sees an ordinary
//! new session), ranks that end.

use crate::collective::{agree, agree_min};
use crate::open::{Mender, Opened, Reopen, open};
use crate::options::AgentKind;
use crate::session::{Lent, Session, engine_gone};
use orcheck_engine::node::Outcome;
use orcheck_format::sabotage::{Switch, off};
use orcheck_format::{Error, Level, Result, Step};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Maximum number of agents that may end one after the other before a call gives up.
const MOST_IN_A_CALL: u32 = 3;

/// Longest wait for the replacement of an agent by whoever started it; once, not in each call.
const JOIN_TIMEOUT: Duration = Duration::from_secs(20);

impl Session {
    /// Whether the agent that has this node's engine has ended, or its replacement was not
    /// completed.
    pub(crate) fn agent_ended(&self) -> bool {
        self.options.agent != AgentKind::Off
            && (self.agents.being_replaced
                || self.link.threads.is_some() && self.link.patience.check().is_err())
    }

    /// Before the first checkpoint, in which the agents take part before there is an agreement
    /// about it. Collective.
    pub(crate) fn replace_dead_agent(&mut self) -> Result<()> {
        if self.options.agent == AgentKind::Off || self.progress.last_taken.is_some() {
            return Ok(());
        }
        let mut ended = [-i64::from(self.agent_ended())];
        agree_min(self.collective.as_mut(), Ok(()), &mut ended)?;
        if ended[0] == 0 {
            Ok(())
        } else {
            self.replace_agents()
        }
    }

    /// Opens the session again, with new agents in place of those that ended. Collective.
    pub(crate) fn replace_agents(&mut self) -> Result<()> {
        self.agents.replaced_in_call += 1;
        let can_go_on = self.can_replace_agents();
        // Nobody accepts what it was still staging.
        self.memory.stager = None;
        self.memory.handed_over = None;
        agree(self.collective.as_mut(), can_go_on)?;
        let mender = self.release_link();
        let mut again = self.reopening();
        self.agents.being_replaced = true;
        let before = self.link.epoch;
        let opened = open(
            (self.job.clone(), self.options.clone()),
            self.collective.as_mut(),
            &self.environment,
            Some(&mut again),
        );
        self.agents.newest_epoch = again.counter;
        self.adopt(opened?);
        if let Some(threads) = &mut self.link.threads {
            threads.mender = mender;
        }
        self.continue_from(again.newest.map(|step| (step, before)))?;
        let withdrawn = self.withdraw_losses(&again);
        let told = self.resubmit_snapshots(&again);
        agree(self.collective.as_mut(), told)?;
        self.agents.being_replaced = false;
        let mut text = format!(
            "an agent of the job ended; it continues as epoch {} with other agents; checkpoints that are flushed again from memory: {}; lost: {}",
            self.link.epoch.counter,
            list(&again.resubmitted),
            list(&again.lost),
        );
        if !withdrawn.is_empty() {
            text += "; not lost after all, although that was reported: ";
            text += &list(&withdrawn);
        }
        self.warnings.push(text);
        Ok(())
    }

    /// # Errors
    /// Unavailable: agents end one after the other, or an older epoch would be mistaken for this
    /// one.
    fn can_replace_agents(&self) -> Result<()> {
        if off(Switch::Succession) {
            return Err(engine_gone(&self.link.shared));
        }
        if self.agents.replaced_in_call > MOST_IN_A_CALL {
            let text = format!("{MOST_IN_A_CALL} agents of the job ended one after the other");
            let next = "find out what ends them; the next checkpoint tries again";
            return Err(Error::unavailable(text).next(next));
        }
        let route = self.memory.route.as_ref();
        if route.is_some_and(|route| !route.is_locked()) {
            // Runs that tidy up then only go by the epoch, which would be an older one.
            let text = "an agent of the job ended, and no other one takes over: the routed files lie where there are no locks";
            let next = "restart the program from the last committed checkpoint";
            return Err(Error::unavailable(text).next(next));
        }
        Ok(())
    }

    /// Releases this rank's part of the link; returns the lost copies that were still to be made.
    fn release_link(&mut self) -> Option<Mender> {
        let threads = self.link.threads.take();
        let mender = threads.and_then(|mut threads| {
            threads.flush_stop.store(true, Ordering::Release);
            // Breaks if: what it did not finish is forgotten; a close that waits for copies would
            // not miss them.
            threads.mender.take().map(Mender::interrupted)
        });
        self.link.claim = None;
        mender
    }

    fn reopening(&self) -> Reopen {
        let mut levels = self.link.places.levels();
        levels.push(Level::Process);
        Reopen {
            // Breaks if: each checkpoint of a run that stays without an agent waits for one.
            patience: match self.agents.being_replaced {
                true => Duration::ZERO,
                false => JOIN_TIMEOUT,
            },
            pool: Arc::clone(&self.link.pool),
            shape: self.link.shape,
            local: self.local,
            own: self.memory.allocations.values().copied().collect(),
            kept: Arc::clone(&self.memory.kept),
            levels,
            history: self.progress.history.clone().into_iter().collect(),
            resubmitted: Vec::new(),
            lost: Vec::new(),
            committed: Vec::new(),
            newest: None,
            counter: self.agents.newest_epoch,
        }
    }

    /// Takes back reported losses of steps that are committed elsewhere or flushed again; returns
    /// these steps.
    fn withdraw_losses(&mut self, again: &Reopen) -> Vec<Step> {
        let flushed = (again.resubmitted.iter()).flat_map(|&step| {
            self.levels_of(step)
                .into_iter()
                .map(move |level| (step, level))
        });
        let all: BTreeSet<(Step, Level)> = again.committed.iter().copied().chain(flushed).collect();
        let back: BTreeSet<Step> = (all.into_iter())
            .filter(|&(step, level)| self.progress.outcomes.take_back(step, level))
            .map(|(step, _)| step)
            .collect();
        back.into_iter().collect()
    }

    /// Replaces the old link by the new one.
    fn adopt(&mut self, opened: Opened) {
        self.link = opened.link;
        self.progress.outcomes.seen = None;
        self.memory.parts = None;
        self.warnings.extend(opened.notes);
        // A snapshot cannot refer to what the successor has not written.
        self.memory.baseline = self.options.incremental_chain.map(|_| Arc::default());
    }

    /// Hands the successor the snapshots that are needed again.
    fn resubmit_snapshots(&mut self, again: &Reopen) -> Result<()> {
        // Nobody will ever report that the others are flushed, and nobody reads what was lent to
        // them.
        self.progress.taken.clear();
        self.memory
            .lent
            .retain(|_, lent| matches!(lent, Lent::Announced));
        let Some(&first) = again.resubmitted.first() else {
            return Ok(());
        };
        let timeout = self.timeout();
        self.index().set_left(again.local, first);
        for &step in &again.resubmitted {
            self.progress.taken.insert(step);
            for descriptor in self.memory.kept.told(step) {
                self.link.patience.wait(timeout, |slice| {
                    self.index()
                        .push(self.local, self.writer, descriptor, slice)
                })?;
            }
            let threads = self.link.threads.as_ref();
            if let Some(tell) = threads.and_then(|threads| threads.sealed.as_ref()) {
                tell(step);
            }
        }
        Ok(())
    }

    /// Returns chunks of earlier snapshots that are no longer needed, and of the oldest ones while
    /// more than `most` are left.
    pub(crate) fn release_kept_snapshots(&self, most: usize) {
        let index = self.index();
        // Breaks if: lost ones are returned too; a step may be lost because the agent of another
        // node has ended.
        let is_safe = |step| {
            let mut levels = self.levels_of(step).into_iter();
            levels.all(|level| index.outcome(step, level) == Outcome::Committed)
        };
        let is_over = |step| index.is_done(self.local, step);
        self.memory
            .kept
            .give_back(&self.link.pool, is_over, is_safe, most);
    }
}

fn list(steps: &[Step]) -> String {
    if steps.is_empty() {
        return "none".to_owned();
    }
    let steps: Vec<String> = steps.iter().map(ToString::to_string).collect();
    steps.join(", ")
}
