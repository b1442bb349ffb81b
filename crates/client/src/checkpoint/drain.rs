//! Ends a session: drains and closes it, or abandons it.
//!
//! Invariants:
//! 1. `close` returns Ok only if at each level the newest checkpoint that goes there is committed,
//!    of those that are remembered. Otherwise it returns an error, the same on all ranks, that
//!    names what is not safe. In both cases it reports the outcome of every checkpoint that was not
//!    reported before.
//! 2. With `close = "copies"` it also returns an error, the same on all ranks, if the checkpoint
//!    that was resumed from lacks copies and no newer checkpoint has them.
//! 3. Afterwards no thread, socket, lock, pool page or routed file of the session is left.
//! 4. It waits at most 10 s for all threads together. If anything is not safe or not decided, it
//!    waits for the rest of the program's timeout, or 2 s. A thread that hangs in a dead file
//!    system or server is left until the process ends, and this is reported.
//!
//! Not here: draining itself, which is always in progress.

use crate::collective::{agree, agree_min};
use crate::options::Close;
use crate::report::{self, says};
use crate::session::Session;
use orcheck_engine::host::{JOIN_TIMEOUT, join};
use orcheck_engine::node::Index;
use orcheck_engine::replicas::ReplicaStore;
use orcheck_format::sabotage::{Switch, off};
use orcheck_format::{Level, Rank, Result, Step, WriterId, count};
use orcheck_io::machine::thread::spawn;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Minimum time in which threads may end, however late it is: for all of them together, and for
/// each.
const GRACE: Duration = Duration::from_secs(2);
const EACH: Duration = Duration::from_millis(500);
/// Next step when the time of a close is over.
const CLOSED: &str = "restart from the last committed checkpoint; give orc_close more time if a \
                      directory is only slow";

impl Session {
    /// As [`Self::close_telling`], for callers that do not read warnings.
    ///
    /// # Errors
    /// As there.
    pub fn close(self, timeout: Duration) -> Result<()> {
        self.close_telling(timeout).0
    }

    /// Waits, at most `timeout`, until every checkpoint is decided and the newest one of each level
    /// is committed there; with `close = "copies"`, also until the checkpoint that was resumed
    /// from has its lost copies again. Then ends the session and returns all warnings that were not
    /// taken. Collective.
    ///
    /// An error, the same on all ranks, says what is not safe, and why; with `on_loss = "error"`
    /// also which older checkpoints are lost and were not returned. The session has ended all the
    /// same.
    pub fn close_telling(mut self, timeout: Duration) -> (Result<()>, Vec<String>) {
        let clock = Arc::clone(&self.environment.clock);
        let until = clock.now() + timeout;
        self.warn_of_open_files();
        // Breaks if: it waits for copies although a checkpoint is not safe; no time would be left
        // to find another agent.
        let mut drained = self.drain(timeout).and_then(|()| self.copied(until));
        // Breaks if: this comes after the agreement; the engine of a faster rank has ended by then.
        self.poll_outcomes();
        let mut ended = [-i64::from(self.agent_ended())];
        let owed = self.progress.outcomes.owed();
        // No rank leaves before all have reached the agreement below.
        self.link.shared.closing.store(true, Ordering::Release);
        let mut agreed = agree_min(self.collective.as_mut(), drained.and(owed), &mut ended);
        // Breaks if: this is done although all is safe; an agent that nobody starts would turn that
        // into an error.
        if ended[0] != 0 && agreed.is_err() {
            self.agents.replaced_in_call = 0;
            drained = self
                .replace_agents()
                .and_then(|()| self.drain(until.saturating_sub(clock.now())))
                .and_then(|()| self.copied(until));
            self.poll_outcomes();
            let owed = self.progress.outcomes.owed();
            agreed = agree(self.collective.as_mut(), drained.and(owed));
        }
        let undecided = !self.progress.outcomes.open.is_empty();
        self.report_undecided(&format!(
            "the session was closed, and after {:.1} s nothing was decided of it",
            timeout.as_secs_f64()
        ));
        // A rank that could not agree may not be alone, so the agent stays for the next run. An
        // error that only this rank meets from here on is not returned: everything is committed,
        // and the other ranks have returned.
        // Breaks if: threads get more time than the program gave them; a stalled server would delay
        // the program's end.
        let left = match (agreed.is_err() || undecided) && !off(Switch::EndBound) {
            true => until.saturating_sub(clock.now()).max(GRACE),
            false => JOIN_TIMEOUT,
        };
        if let Err(error) = self.end(agreed.is_ok(), left.min(JOIN_TIMEOUT)) {
            self.warnings.push(error.message().to_owned());
        }
        if self.rank == Rank(0) {
            report::all_lost();
            let skipped = self.progress.stats.skipped;
            if skipped > 1 && !skipped.is_power_of_two() {
                let left_out = count(skipped, "checkpoint");
                report::warned(&self.job, &format!("{left_out} were left out in all"));
            }
            if self.trigger.should_stop() {
                report::stopped(&self.job);
            }
        }
        self.warn_of_ending_replicas(agreed.is_ok());
        let mut warnings: Vec<String> = std::iter::from_fn(|| self.take_warning()).collect();
        if let Err(error) = &agreed {
            // The error already contains it.
            let said = |warning: &String| {
                let what = warning.split(": ").next().unwrap_or_default();
                let waited_for = what.replace(" is lost at level ", " is not safe at level ");
                waited_for != what && error.message().contains(&waited_for) || says(error, warning)
            };
            warnings.retain(|warning| !said(warning));
        }
        (agreed, warnings)
    }

    /// Warns, on rank 0, that replicas end with the agents of a job that has ended in order.
    fn warn_of_ending_replicas(&mut self, in_order: bool) {
        let store = self.options.replica_store;
        let in_memory = matches!(store, ReplicaStore::Memory | ReplicaStore::Spill);
        // Breaks if: it is not reported; the next loss of a node would take a checkpoint that was
        // committed as one that survives it.
        if in_order && in_memory && self.rank == Rank(0) && self.link.peers.is_some() {
            self.warnings.push(
                "the job has ended, and with its agents the replicas in their memory: from now on its checkpoints at level peers do not survive the loss of a node. Next: set replica_store = 'both', or copy the newest one to another place (`orcheck copy`)".to_owned(),
            );
        }
    }

    /// Ends the session without waiting; what is not committed yet may be lost. Local.
    pub fn abandon(mut self) {
        // This is an error path: there is nobody to report to, and `Drop` would do the same.
        let _ = self.end(false, JOIN_TIMEOUT);
    }

    fn drain(&mut self, timeout: Duration) -> Result<()> {
        let clock = &self.environment.clock;
        let until = clock.now() + timeout;
        // Breaks if: only the last one is waited for; nobody would learn the outcome of an older
        // one.
        for (step, level) in self.progress.outcomes.open() {
            let left = until.saturating_sub(clock.now());
            // Its outcome is on the board, and reported.
            let _ = (self.waiter_for(step, vec![level])).wait_or(left, CLOSED);
        }
        // A lost level must not end the session while another one is still being written.
        let mut all = Ok(());
        for level in self.link.places.levels() {
            let newest = self.progress.newest_at(level);
            // Breaks if: only the last checkpoint counts; it may go to the weakest level alone, and
            // the program would end without anything at the others.
            let last = |step: &Step| Some(*step) == self.progress.last_taken;
            let Some(step) = newest.filter(|step| last(step) || !off(Switch::NewestOfEach)) else {
                continue;
            };
            let left = until.saturating_sub(clock.now());
            let safe = (self.waiter_for(step, vec![level])).wait_or(left, CLOSED);
            all = all.and(safe);
        }
        all
    }

    /// With `close = "copies"`, waits until the checkpoint that was resumed from has all its copies
    /// again, or a newer one has.
    fn copied(&self, until: Duration) -> Result<()> {
        let mender = self
            .link
            .threads
            .as_ref()
            .and_then(|all| all.mender.as_ref());
        let Some(mender) = mender.filter(|_| self.options.close == Close::Copies) else {
            return Ok(());
        };
        let step = mender.step();
        mender.wait(&*self.environment.clock, until, || self.newer_than(step))
    }

    /// Whether a newer checkpoint has all its copies on other nodes.
    fn newer_than(&self, step: Step) -> bool {
        let peers =
            (self.link.places.levels().into_iter()).find(|level| matches!(level, Level::Peers(_)));
        peers.is_some_and(|level| self.safe_step(level).is_ok_and(|safe| Step(safe) > step))
    }

    /// Ends the session. `in_order`: all ranks are ending, and everything is decided. Threads get
    /// `limit` to end.
    fn end(&mut self, in_order: bool, limit: Duration) -> Result<()> {
        let Some(mut threads) = self.link.threads.take() else {
            return Ok(());
        };
        let mut result = Ok(());
        let clock = Arc::clone(&self.environment.clock);
        let until = clock.now() + limit;
        let left = || until.saturating_sub(clock.now()).max(EACH);
        threads.flush_stop.store(true, Ordering::Release);
        let index = Index::new(&self.link.pool, self.link.shape);
        for writer in 0..self.link.shape.writers {
            index.nudge(WriterId(writer));
        }
        if let Some(mender) = threads.mender.take() {
            // It checks the same flag, and what it did not finish is rebuilt after the next
            // restart.
            mender.join(&*clock, left());
        }
        if let Some(thread) = threads.flusher.take() {
            result = result.and(join(thread, &*clock, left()));
            let ended = self.environment.failpoints.at("session.flusher_ended", "");
            result = result.and(ended.map(drop));
        }
        self.memory.stager = None;
        if let Some((thread, waker)) = threads.control.take() {
            self.link.shared.stop.store(true, Ordering::Release);
            waker.wake();
            result = result.and(join(thread, &*clock, left()));
        }
        if let Some((thread, waker)) = threads.keeper.take() {
            threads.keeper_stop.store(true, Ordering::Release);
            waker.wake();
            result = result.and(join(thread, &*clock, left()));
        }
        let mut agent = threads.agent.take().filter(|_| in_order);
        if let Some(agent) = &mut agent {
            let left = agent.take_leave();
            // An engine that has ended has nothing to release.
            if !index.is_gone() {
                result = result.and(left);
            }
        }
        drop(threads);
        if let Some(agent) = agent {
            match agent.wait_for_end(&*self.environment.clock) {
                Ok(notes) => self.warnings.extend(notes),
                Err(error) => result = result.and(Err(error)),
            }
        }
        if let Some(route) = self.memory.route.take() {
            result = result.and(route.remove());
        }
        if let Some(held) = self.link.claim.take() {
            // Breaks if: it is dropped here; a claim on a server is released by a request, and a
            // stalled server does not answer.
            let leave = spawn("orcheck-leave", move || {
                drop(held);
                Ok(())
            });
            // If no thread could be started, it was dropped here.
            if let Ok(thread) = leave {
                result = result.and(join(thread, &*clock, left()));
            }
        }
        result
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // As in abandon: there is nobody to return an error to.
        let _ = self.end(false, JOIN_TIMEOUT);
    }
}
