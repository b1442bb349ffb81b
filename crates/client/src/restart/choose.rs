//! Rejects a checkpoint that the program found wrong, and reads one region alone.
//!
//! Invariants:
//! 1. A step for which `reject` returned `Ok` is never offered again to any run of the job: before
//!    that, the rejection is written durably into every directory of this run.
//! 2. Rejecting a step leaves the session as before `find`, if the program restarted from that step
//!    and has taken none since.
//! 3. Regions that are read one by one are of one step; if that step proves to be damaged, the
//!    program begins again.
//!
//! Not here: which checkpoint is found (`resume.rs`), what a rejection is on disk
//! (`engine::directory`).

use crate::collective::{agree, agree_min};
use crate::session::{Past, Restarted, Session};
use orcheck_engine::directory::choose::{decide, decision, listed};
use orcheck_engine::restart::Candidate;
use orcheck_format::{Decision, Error, Level, Rank, Result, Step, crc64};
use orcheck_io::disk::Dir;
use std::sync::Arc;

impl Session {
    /// Rejects the checkpoint of `step`, which the program found wrong: it is never offered again,
    /// and does not count for `keep`. Steps that were computed from it stay. Collective; the same
    /// step on all ranks.
    ///
    /// # Errors
    /// NotFound, listing the existing steps; otherwise the error of a directory.
    pub fn reject(&mut self, step: u64) -> Result<()> {
        self.require_no_failed_restart()?;
        let mut values = [step as i64, !(step as i64)];
        agree_min(self.collective.as_mut(), Ok(()), &mut values)?;
        if values[0] != !values[1] {
            return Err(Error::invalid("the ranks reject different steps")
                .next("give all ranks the same step"));
        }
        let candidate = self.checkpoint_of(Step(step))?;
        let mut dirs: Vec<Arc<dyn Dir>> = Vec::new();
        if self.rank == Rank(0) {
            dirs.extend(self.link.places.of_level(Level::Global));
        }
        if self.link.layout.leads_node(self.rank) {
            dirs.extend(self.link.places.of_level(Level::Node));
        }
        let about = (candidate.step, candidate.epoch);
        let clock = self.environment.clock.as_ref();
        let choice = decision(&self.job, about, Decision::Rejected, "", clock);
        agree(self.collective.as_mut(), decide(&dirs, &choice))?;
        let is = |other: &Candidate| *other == candidate;
        if (self.resume.found.as_ref()).is_some_and(|(found, _)| is(found)) {
            self.resume.found = None;
            self.resume.state = Past::Unknown;
        }
        if self.resume.from == Some(about) && self.progress.last_taken.is_none() {
            self.resume.from = None;
            self.resume.state = Past::Unknown;
            self.progress.last_step = None;
            self.trigger.count_from(None);
        }
        Ok(())
    }

    /// The checkpoint that the program means: the one that it found, restarted from or took, or
    /// else the one that would be found. Collective.
    fn checkpoint_of(&mut self, step: Step) -> Result<Candidate> {
        if let Some((found, _)) = &self.resume.found
            && found.step == step
        {
            return Ok(*found);
        }
        if let Some((from, epoch)) = self.resume.from
            && from == step
        {
            return Ok(Candidate { step, epoch });
        }
        if self.progress.history.contains_key(&step) {
            let epoch = self.link.epoch;
            return Ok(Candidate { step, epoch });
        }
        let (list, _) = self.share_candidates()?;
        let found = list.iter().find(|candidate| candidate.step == step);
        found.copied().ok_or_else(|| {
            Error::not_found(format!(
                "job '{}' has no checkpoint of step {step}; it has: {}",
                self.job.as_str(),
                listed(list.iter().map(|candidate| candidate.step))
            ))
        })
    }

    /// Fills one region from the found checkpoint; `restart` is still required. `Again`: the found
    /// checkpoint is damaged, and an older step is now the found one; what was read before is of
    /// another step. Collective; the same name on all ranks.
    ///
    /// # Errors
    /// NotFound for a region that is not protected or not stored; otherwise as
    /// [`Session::try_restart`].
    pub fn restart_region(&mut self, name: &str) -> Result<Restarted> {
        let step = self.found("restart_region").and_then(|(found, view)| {
            let region = self.memory.regions.get(name)?;
            let there = view.region(name).is_some() || view.elastic(name).is_some();
            // Other ranks may have stored it.
            match there || region.may_move() {
                true => Ok(found.step),
                false => Err(self.not_stored(name)),
            }
        });
        let which = crc64(name.as_bytes()) as i64;
        let mut names = [which, !which];
        let step = agree_min(self.collective.as_mut(), step, &mut names)?;
        if names[0] != !names[1] {
            return Err(Error::invalid("the ranks ask for different regions")
                .next("give all ranks the same name"));
        }
        let again = self.read_found(Some(name))?;
        Ok(again.unwrap_or(Restarted::Step(step)))
    }
}
