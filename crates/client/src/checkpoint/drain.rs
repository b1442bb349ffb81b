//! The end of a session: drained and closed, or abandoned.
//!
//! Invariants:
//! 1. `close` returns an error, the same on all ranks, that names what is not safe, or the last checkpoint is committed at every
//!    level; and it tells what became of every checkpoint that it had not told of yet.
//! 2. With `close = "copies"` it returns an error too, the same on all ranks, when what was resumed from lacks copies and no newer
//!    checkpoint has them.
//! 3. Afterwards no thread, socket, lock, pool page or routed file of the session is left.
//! 4. Threads are waited for at most 10 s, all of them together. Where the session could not be drained that is what is left of
//!    the program's timeout, or 2 s; one that hangs in a dead file system or server is left to the end of the process, and said.
//!
//! Not here: draining itself, which continues by itself all the time.

use crate::collective::{agree, agree_min};
use crate::options::Close;
use crate::report::{self, says};
use crate::session::Session;
use orcheck_engine::host::{JOIN_TIMEOUT, join};
use orcheck_engine::node::Index;
use orcheck_format::sabotage::{Switch, off};
use orcheck_format::{Level, Rank, Result, WriterId};
use orcheck_io::machine::thread::spawn;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// What threads get to end in, however late it is: all of them, and each.
const GRACE: Duration = Duration::from_secs(2);
const EACH: Duration = Duration::from_millis(500);
/// What to do when the time of a close is over.
const CLOSED: &str = "restart from the last committed checkpoint; give orc_close more time where a directory is only slow";

impl Session {
    /// As [`Self::close_telling`], for those who do not read warnings.
    ///
    /// # Errors
    /// As there.
    pub fn close(self, timeout: Duration) -> Result<()> {
        self.close_telling(timeout).0
    }

    /// Waits until something is decided of every checkpoint, and the last one is committed at every configured level, at most
    /// `timeout`, and with `close = "copies"` until what was resumed from has its lost copies again; ends the session, and
    /// gives all warnings back that were not taken. Collective.
    ///
    /// An error, the same on all ranks, says what is not safe, and why; with `on_loss = "error"` also what of the older
    /// ones is lost and was not returned. The session has ended all the same.
    pub fn close_telling(mut self, timeout: Duration) -> (Result<()>, Vec<String>) {
        let clock = Arc::clone(&self.environment.clock);
        let until = clock.now() + timeout;
        // Breaks if: copies are waited for although a checkpoint is not safe; all the time is over before another agent is sought.
        let mut drained = self.drain(timeout).and_then(|()| self.copied(until));
        // Breaks if: this comes after the agreement; the engine of a rank that was quicker has ended by then.
        self.poll_outcomes();
        let mut ended = [-i64::from(self.agent_ended())];
        let owed = self.progress.outcomes.owed();
        // No rank leaves before all have come to the agreement below.
        self.link.shared.closing.store(true, Ordering::Release);
        let mut agreed = agree_min(self.collective.as_mut(), drained.and(owed), &mut ended);
        // Breaks if: this is done although all is safe; an agent that nobody starts would make it an error.
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
        self.report_undecided(&format!(
            "the session was closed, and after {:.1} s nothing was decided of it",
            timeout.as_secs_f64()
        ));
        // Who could not agree may not be alone: the agent stays for the next run. What only this rank meets from here on is no
        // status: all is committed, and the others have returned.
        let left = match &agreed {
            // Breaks if: threads get longer than the program gave them; a server that stands still would hold up its end.
            Err(_) if !off(Switch::EndBound) => until.saturating_sub(clock.now()).max(GRACE),
            _ => JOIN_TIMEOUT,
        };
        if let Err(error) = self.end(agreed.is_ok(), left.min(JOIN_TIMEOUT)) {
            self.warnings.push(error.message().to_owned());
        }
        if self.rank == Rank(0) && self.trigger.should_stop() {
            report::stopped(&self.job);
        }
        let mut warnings: Vec<String> = std::iter::from_fn(|| self.take_warning()).collect();
        if let (Err(error), Some(last)) = (&agreed, self.progress.last_taken) {
            // The error says it already.
            let said = |warning: &String| {
                let lost = warning.strip_prefix(&format!("checkpoint {last} is lost"));
                let of = lost.and_then(|rest| rest.split(": ").next());
                let safe = of.is_some_and(|of| {
                    error
                        .message()
                        .contains(&format!("checkpoint {last} is not safe{of}"))
                });
                safe || says(error, warning)
            };
            warnings.retain(|warning| !said(warning));
        }
        (agreed, warnings)
    }

    /// Ends the session without waiting; what is not committed yet may be lost. Local.
    pub fn abandon(mut self) {
        // An error path: there is nobody to tell, and `Drop` would do the same.
        let _ = self.end(false, JOIN_TIMEOUT);
    }

    fn drain(&mut self, timeout: Duration) -> Result<()> {
        let Some(step) = self.progress.last_taken else {
            return Ok(());
        };
        let clock = &self.environment.clock;
        let until = clock.now() + timeout;
        // Breaks if: only the last one is waited for; what becomes of an older one would be told to nobody.
        for (step, level) in self.progress.outcomes.open() {
            let left = until.saturating_sub(clock.now());
            // What became of it is on the board, and told.
            let _ = (self.waiter_for(step, vec![level])).wait_or(left, CLOSED);
        }
        // A level that is lost must not end the session while another one is still being written.
        let mut all = Ok(());
        for level in self.link.places.levels() {
            let left = until.saturating_sub(clock.now());
            let safe = (self.waiter_for(step, vec![level])).wait_or(left, CLOSED);
            all = all.and(safe);
        }
        all
    }

    /// With `close = "copies"`, waits until the checkpoint that was resumed from has all its copies again, or a newer one has.
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
    fn newer_than(&self, step: u64) -> bool {
        let peers =
            (self.link.places.levels().into_iter()).find(|level| matches!(level, Level::Peers(_)));
        peers.is_some_and(|level| self.safe_step(level).is_ok_and(|safe| safe > step))
    }

    /// `in_order`: all ranks end now, and everything is decided. Threads get `limit` to end in.
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
            // It looks at the same flag, and what it did not get to is made again after the next restart.
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
            // One that ended has nothing to let go of.
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
            // Breaks if: it is dropped here; a claim on a server is given back by asking it, and one that stands still
            // does not answer.
            let leave = spawn("orcheck-leave", move || {
                drop(held);
                Ok(())
            });
            // Without a thread for it, it was dropped here.
            if let Ok(thread) = leave {
                result = result.and(join(thread, &*clock, left()));
            }
        }
        result
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // As abandon: an error has nowhere to go.
        let _ = self.end(false, JOIN_TIMEOUT);
    }
}
