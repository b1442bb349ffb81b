//! The end of an agent within a run: all ranks go on with agents anew.
//!
//! ```text
//! somebody's agent ended ─▶ all let go of their session, and agents that live finish with it
//! the pools are made as new, but for the memory of the program and snapshots that were whole
//! the session is opened again: a new epoch, the pool given to the successor
//! snapshots that no directory has yet are told to it again
//! ```
//!
//! Invariants:
//! 1. All ranks go this way in the same call, or none: that an agent ended travels in the agreement of the checkpoint.
//! 2. A step that was committed anywhere counts as committed; one that every rank still has whole is flushed again; any
//!    other one is lost, and every rank is told.
//! 3. The new epoch goes on from the newest committed step: nothing that was committed is superseded.
//!
//! Survives: an agent that is killed at any moment, also the lead's, also several. Not here: what stays in the pool
//! (`engine::kept`), the agent's side (`engine::agent`: it meets a new session like any other), ranks that end.

use crate::collective::{agree, agree_min};
use crate::open::{Mender, Opened, Reopen, open};
use crate::options::AgentKind;
use crate::session::{Lent, Session, engine_gone};
use orcheck_engine::node::{Outcome, Patience};
use orcheck_format::sabotage::{Switch, off};
use orcheck_format::{Error, Level, Result};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Agents that may end one after the other before a call gives up.
const MOST_IN_A_CALL: u32 = 3;

/// Longest wait for an agent that whoever started the one that ended starts in its place; once, not in each call.
const JOIN_TIMEOUT: Duration = Duration::from_secs(20);

impl Session {
    /// Whether the agent that has this node's engine ended, or the way to another one was not gone to its end.
    pub(crate) fn agent_ended(&self) -> bool {
        self.options.agent != AgentKind::Off
            && (self.between_agents || self.threads.is_some() && self.patience.check().is_err())
    }

    /// Before the first checkpoint, in which the agents take part before there is an agreement about it. Collective.
    pub(crate) fn meet_a_dead_agent(&mut self) -> Result<()> {
        if self.options.agent == AgentKind::Off || self.last_taken.is_some() {
            return Ok(());
        }
        let mut ended = [-i64::from(self.agent_ended())];
        agree_min(self.collective.as_mut(), Ok(()), &mut ended)?;
        if ended[0] == 0 {
            Ok(())
        } else {
            self.succeed()
        }
    }

    /// Opens the session again, with agents anew where they ended. Collective.
    pub(crate) fn succeed(&mut self) -> Result<()> {
        self.successions += 1;
        let mut local = Ok(());
        if off(Switch::Succession) {
            local = Err(engine_gone(&self.shared));
        } else if self.successions > MOST_IN_A_CALL {
            let text = format!("{MOST_IN_A_CALL} agents of the job ended one after the other");
            let next = "look at what ends them; the next checkpoint tries again";
            local = Err(Error::unavailable(text).next(next));
        } else if self.route.as_ref().is_some_and(|route| !route.is_locked()) {
            // Whoever tidies up goes by the epoch alone then, which would be an older one.
            let text = "an agent of the job ended, and no other one takes over: the routed files lie where there are no locks";
            let next = "restart the program from the last committed checkpoint";
            local = Err(Error::unavailable(text).next(next));
        }
        // What it was still staging nobody takes any more.
        self.stager = None;
        self.handed_over = None;
        agree(self.collective.as_mut(), local)?;
        // Breaks if: each checkpoint of a run that stays without an agent waits for one.
        let patience = if self.between_agents {
            Duration::ZERO
        } else {
            JOIN_TIMEOUT
        };
        self.between_agents = true;
        let mut mender = None;
        if let Some(mut threads) = self.threads.take() {
            threads.flush_stop.store(true, Ordering::Release);
            // Breaks if: what it did not get to is forgotten; a close that waits for copies would not miss them.
            mender = threads.mender.take().map(Mender::interrupted);
        }
        self.held = None;
        let mut levels = self.places.levels();
        levels.push(Level::Process);
        let mut again = Reopen {
            patience,
            pool: Arc::clone(&self.pool),
            shape: self.shape,
            local: self.local,
            own: self.allocations.values().copied().collect(),
            kept: Arc::clone(&self.kept),
            levels,
            history: self.history.iter().copied().collect(),
            told_again: Vec::new(),
            lost: Vec::new(),
            committed: Vec::new(),
            newest: None,
            counter: self.asked_for,
        };
        let before = self.epoch;
        let opened = open(
            (self.job.clone(), self.options.clone()),
            self.collective.as_mut(),
            &self.environment,
            Some(&mut again),
        );
        self.asked_for = again.counter;
        self.become_of(opened?.0);
        if let Some(threads) = &mut self.threads {
            threads.mender = mender;
        }
        self.go_on_from(again.newest.map(|step| (step, before)))?;
        let reported = self.take_back_losses(&again);
        let told = self.tell_again(&again);
        agree(self.collective.as_mut(), told)?;
        self.between_agents = false;
        let list = |steps: &[u64]| {
            let steps: Vec<String> = steps.iter().map(ToString::to_string).collect();
            if steps.is_empty() {
                "none".to_owned()
            } else {
                steps.join(", ")
            }
        };
        self.warnings.push(format!(
            "an agent of the job ended; it continues as epoch {} with other agents; checkpoints that are flushed again from memory: {}; lost: {}{}",
            self.epoch.counter,
            list(&again.told_again),
            list(&again.lost),
            if reported.is_empty() {
                String::new()
            } else {
                format!("; not lost after all, although that was reported: {}", list(&reported))
            }
        ));
        Ok(())
    }

    /// Takes back what was reported lost when the agent ended, and is committed elsewhere or flushed again; which steps.
    fn take_back_losses(&mut self, again: &Reopen) -> Vec<u64> {
        let levels = self.places.levels();
        let flushed = (again.told_again.iter())
            .flat_map(|&step| levels.iter().map(move |&level| (step, level)));
        let all: BTreeSet<(u64, Level)> = again.committed.iter().copied().chain(flushed).collect();
        let back: BTreeSet<u64> = (all.into_iter())
            .filter(|&(step, level)| self.told.take_back(step, level))
            .map(|(step, _)| step)
            .collect();
        back.into_iter().collect()
    }

    /// Takes what was opened in place of what was there.
    fn become_of(&mut self, opened: Opened) {
        self.patience = Patience {
            pool: Arc::clone(&opened.pool),
            shape: opened.shape,
            gates: Arc::clone(&opened.gates),
            stop: Arc::clone(&opened.threads.flush_stop),
        };
        self.layout = opened.layout;
        self.epoch = opened.epoch;
        self.places = opened.places;
        self.shared = opened.shared;
        self.threads = Some(opened.threads);
        self.held = opened.held;
        self.gates = opened.gates;
        self.peers = opened.peers;
        self.host = opened.host;
        self.warnings.extend(opened.notes);
        // What the successor has not written it cannot be referred to.
        self.baseline = self.options.incremental_chain.map(|_| Arc::default());
    }

    /// Tells the successor of the snapshots that are needed again.
    fn tell_again(&mut self, again: &Reopen) -> Result<()> {
        // Of others nobody will ever say that they are flushed, and nobody reads what was lent to them.
        self.taken.clear();
        self.lent.retain(|_, lent| matches!(lent, Lent::Announced));
        let Some(&first) = again.told_again.first() else {
            return Ok(());
        };
        let timeout = self.timeout();
        self.index().set_left(again.local, first);
        for &step in &again.told_again {
            self.taken.insert(step);
            for descriptor in self.kept.told(step) {
                self.patience.wait(timeout, |slice| {
                    self.index()
                        .push(self.local, self.writer, descriptor, slice)
                })?;
            }
            let threads = self.threads.as_ref();
            if let Some(tell) = threads.and_then(|threads| threads.sealed.as_ref()) {
                tell(step);
            }
        }
        Ok(())
    }

    /// Gives chunks of earlier snapshots back that are needed no more, and the oldest where more than `most` are left.
    pub(crate) fn give_snapshots_back(&self, most: usize) {
        let index = self.index();
        let levels = self.places.levels();
        // Breaks if: what was lost goes too; it may be lost because the agent of another node ended.
        let is_safe = |step| {
            levels
                .iter()
                .all(|&level| index.outcome(step, level) == Outcome::Committed)
        };
        let is_over = |step| index.is_done(self.local, step);
        self.kept.give_back(&self.pool, is_over, is_safe, most);
    }
}
