//! Find and restart: all ranks agree on the newest checkpoint that every rank can prove.
//!
//! Invariants:
//! 1. All ranks restore the same (step, epoch); one rank that cannot sends all to the next older.
//! 2. What this run resumed from is recorded before its first checkpoint can commit.
//! 3. "Not found" means that no checkpoint was ever completely committed; checkpoints that were but
//!    cannot be restored are an error, never a fresh start.
//! 4. After an error region contents are undefined.
//!
//! Not here: reading and proving (`engine::restore`, `engine::reader`).

use crate::agree::{agree, agree_min, bcast_bytes};
use crate::regions::{OPTIONAL, Region, Stored, Target, create_file};
use crate::session::{Session, is_damage};
use orcheck_engine::epoch::record_resumed;
use orcheck_engine::restore::{Candidate, Offer, RankView, candidates};
use orcheck_format::error::{Error, ErrorKind, Result};
use orcheck_format::ids::{Epoch, Level, RunId};
use orcheck_io::dir::Dir;
use std::sync::Arc;

/// Candidates that travel to all ranks.
const MAX_CANDIDATES: usize = 32;
const CANDIDATE_BYTES: usize = 32;

/// What is known of the job's past.
#[derive(Default)]
pub(crate) struct Resume {
    state: Past,
    /// Candidates not yet tried, newest first.
    left: Vec<Candidate>,
    found: Option<(Candidate, RankView)>,
    /// Why newer ones were skipped.
    skipped: Vec<String>,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Past {
    #[default]
    Unknown,
    Found,
    Settled,
}

impl Session {
    /// The newest checkpoint that all ranks can open. Collective.
    ///
    /// # Errors
    /// NotFound: there is none, start afresh. Corrupt (or what the files say): there are some, but
    /// none can be restored. Unsupported: written by another number of ranks.
    pub fn find(&mut self) -> Result<u64> {
        if self.last_step.is_some() {
            return Err(Error::invalid(
                "find after restart or after the first checkpoint of this session",
            )
            .next("close the session and open it again to restart"));
        }
        let (list, notes) = self.share_candidates()?;
        self.warnings.extend(notes);
        self.resume.skipped.clear();
        self.resume.left = list;
        if self.resume.left.is_empty() {
            self.settle(None)?;
            return Err(
                Error::not_found(format!("job '{}' has no checkpoint", self.job.as_str()))
                    .next("start afresh"),
            );
        }
        self.open_next(None)
    }

    /// Rank 0 looks, everybody learns.
    fn share_candidates(&mut self) -> Result<(Vec<Candidate>, Vec<String>)> {
        let looked = if self.rank == 0 && !self.options.fresh {
            candidates(&self.job, &self.places).and_then(|mut offer| match offer.hidden.take() {
                // Breaks if: strict looks at the candidates only.
                Some(error) if self.options.strict => Err(error),
                _ => Ok(offer),
            })
        } else {
            Ok(Offer::default())
        };
        let Offer {
            candidates: mut list,
            notes,
            ..
        } = agree(self.collective.as_mut(), looked)?;
        list.truncate(MAX_CANDIDATES);
        let mut bytes = Vec::new();
        for Candidate { step, epoch } in &list {
            bytes.extend_from_slice(&step.to_le_bytes());
            bytes.extend_from_slice(&epoch.counter.to_le_bytes());
            bytes.extend_from_slice(&epoch.run.0);
        }
        let bytes = bcast_bytes(self.collective.as_mut(), bytes, 0)?;
        let number = |bytes: &[u8]| bytes.iter().rev().fold(0u64, |n, &b| n << 8 | u64::from(b));
        let list = bytes
            .chunks_exact(CANDIDATE_BYTES)
            .map(|one| {
                let mut run = [0; 16];
                run.copy_from_slice(&one[16..]);
                let epoch = Epoch {
                    counter: number(&one[8..16]),
                    run: RunId(run),
                };
                Candidate {
                    step: number(&one[..8]),
                    epoch,
                }
            })
            .collect();
        Ok((list, notes))
    }

    /// Opens the next candidate on all ranks, skipping those that a rank cannot open. `damaged` is
    /// what was wrong with the one before.
    fn open_next(&mut self, mut damaged: Option<Error>) -> Result<u64> {
        self.resume.found = None;
        while !self.resume.left.is_empty() {
            let candidate = self.resume.left.remove(0);
            let world_size = self.layout.world_size();
            let view = RankView::open(&self.places, candidate, self.rank, world_size);
            match agree(self.collective.as_mut(), view) {
                Ok(mut view) => {
                    self.warnings.append(&mut self.resume.skipped);
                    self.warnings.extend(view.take_notes());
                    self.resume.found = Some((candidate, view));
                    self.resume.state = Past::Found;
                    return Ok(candidate.step);
                }
                // Its run ended during the commit: nobody was told that it is safe.
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    let text = format!(
                        "step {} was not completely committed: {error}",
                        candidate.step
                    );
                    self.resume.skipped.push(text);
                }
                Err(error) => {
                    if !is_damage(error.kind()) || self.options.strict {
                        return Err(error);
                    }
                    self.resume
                        .skipped
                        .push(format!("step {} skipped: {error}", candidate.step));
                    damaged = Some(error);
                }
            }
        }
        let Some(damaged) = damaged else {
            self.warnings.append(&mut self.resume.skipped);
            self.settle(None)?;
            return Err(Error::not_found(format!(
                "job '{}' has no completely committed checkpoint",
                self.job.as_str()
            ))
            .next("start afresh"));
        };
        let kind = match damaged.kind() {
            ErrorKind::NotFound => ErrorKind::Corrupt,
            kind => kind,
        };
        Err(Error::new(
            kind,
            format!(
                "no checkpoint of job '{}' can be restored: {}",
                self.job.as_str(),
                self.resume.skipped.join("; ")
            ),
        )
        .next("run `orcheck verify`; set fresh = true to begin anew"))
    }

    /// How a region was stored in the found checkpoint. Local.
    ///
    /// # Errors
    /// Invalid before `find`; NotFound, listing what there is.
    pub fn stored(&self, name: &str) -> Result<Stored> {
        let (candidate, view) = self.found("stored")?;
        view.region(name).map(Stored::of).ok_or_else(|| {
            Error::not_found(format!(
                "region '{name}' is not in the checkpoint of step {}; it has: {}",
                candidate.step,
                view.region_names().join(", ")
            ))
        })
    }

    fn found(&self, call: &str) -> Result<&(Candidate, RankView)> {
        self.resume.found.as_ref().ok_or_else(|| {
            Error::invalid(format!("{call} without a found checkpoint")).next("call find first")
        })
    }

    /// Fills all regions from the found checkpoint; returns the step really restored, an older one
    /// when the found one turned out damaged. Collective.
    ///
    /// # Errors
    /// Invalid when regions do not fit what is stored; Corrupt when nothing could be restored.
    /// Region contents are then undefined.
    pub fn restart(&mut self) -> Result<u64> {
        let ready = self.found("restart").map(|_| ());
        agree(self.collective.as_mut(), ready)?;
        loop {
            let fits = self.check_regions();
            agree(self.collective.as_mut(), fits)?;
            let read = self.read_regions();
            let Err(error) = agree(self.collective.as_mut(), read) else {
                break;
            };
            let damaged = self
                .resume
                .found
                .as_ref()
                .map_or(0, |(candidate, _)| candidate.step);
            if !is_damage(error.kind()) || self.options.strict {
                return Err(error);
            }
            self.resume
                .skipped
                .push(format!("step {damaged} skipped: {error}"));
            self.open_next(Some(error))?;
        }
        let Some((candidate, mut view)) = self.resume.found.take() else {
            return Err(Error::internal("the restored checkpoint vanished"));
        };
        self.warnings.extend(view.take_notes());
        self.settle(Some((candidate.step, candidate.epoch)))?;
        self.last_step = Some(candidate.step);
        Ok(candidate.step)
    }

    /// Everything that does not fit, in one message.
    fn check_regions(&mut self) -> Result<()> {
        let (candidate, view) = self.found("restart")?;
        let mut wrong = Vec::new();
        for (name, region) in self.regions.iter() {
            match view.region(name) {
                Some(stored) => {
                    if let Err(error) = region.check_fits(name, stored) {
                        wrong.push(error.message().to_owned());
                    }
                }
                None if region.flags & OPTIONAL != 0 => {}
                None => wrong.push(format!("region '{name}' is not in the checkpoint")),
            }
        }
        let stored = view.region_names();
        if wrong.is_empty() {
            let unused: Vec<String> = stored
                .into_iter()
                .filter(|name| self.regions.get(name).is_err())
                .collect();
            if !unused.is_empty() {
                let text = format!(
                    "step {}: stored but not protected, left out: {}",
                    candidate.step,
                    unused.join(", ")
                );
                self.warnings.push(text);
            }
            return Ok(());
        }
        Err(Error::invalid(format!(
            "step {} does not fit the program: {} (the checkpoint has: {})",
            candidate.step,
            wrong.join("; "),
            stored.join(", ")
        ))
        .next("protect the regions as they were stored (see stored), or flag new ones OPTIONAL"))
    }

    fn read_regions(&mut self) -> Result<()> {
        let regions: Vec<(String, Region)> = self
            .regions
            .iter()
            .map(|(name, region)| (name.clone(), region.clone()))
            .collect();
        let route = self.route.as_ref().map(|route| Arc::clone(&route.dir));
        let Some((_, view)) = &mut self.resume.found else {
            return Err(Error::internal("no checkpoint is open"));
        };
        for (name, region) in regions {
            if view.region(&name).is_none() {
                continue;
            }
            self.environment.steps.at("restart.region", &name)?;
            let of_region = |error: Error| error.at(format!("region '{name}'"));
            match &region.target {
                Target::Memory(span) => view.read(&name, *span)?,
                Target::File(file) => {
                    let dir = route
                        .as_ref()
                        .ok_or_else(|| Error::internal("no routed directory"))?;
                    let file = create_file(dir.as_ref(), file)?;
                    view.stream(&name, &mut |at, bytes| {
                        region.take_back(at, bytes, Some(file.as_ref())).map_err(of_region)
                    })?;
                    file.close()?;
                }
                _ => view.stream(&name, &mut |at, bytes| {
                    region.take_back(at, bytes, None).map_err(of_region)
                })?,
            }
        }
        Ok(())
    }

    /// Before the first checkpoint: what is there must have been looked for.
    pub(crate) fn make_sure_of_the_past(&mut self) -> Result<()> {
        match self.resume.state {
            Past::Settled => return Ok(()),
            Past::Found if !self.options.fresh => {
                let local = Err(Error::invalid(format!(
                    "checkpoint {} was found but not restarted",
                    self.resume
                        .found
                        .as_ref()
                        .map_or(0, |(candidate, _)| candidate.step)
                ))
                .next("call restart, or set fresh = true to begin anew"));
                return agree(self.collective.as_mut(), local);
            }
            _ => {}
        }
        let (list, _) = self.share_candidates()?;
        if let Some(newest) = list.first() {
            return Err(Error::invalid(format!(
                "job '{}' has checkpoints up to step {}",
                self.job.as_str(),
                newest.step
            ))
            .next("call find and restart, or set fresh = true to begin anew"));
        }
        self.settle(None)
    }

    /// Records what this run resumed from, in every directory.
    fn settle(&mut self, from: Option<(u64, Epoch)>) -> Result<()> {
        let mut dirs: Vec<Arc<dyn Dir>> = Vec::new();
        if self.rank == 0 {
            dirs.extend(self.places.of_level(Level::Global));
        }
        if self.layout.leads_node(self.rank) {
            dirs.extend(self.places.of_level(Level::Node));
        }
        let recorded = record_resumed(&dirs, &self.job, self.epoch, from);
        *self
            .shared
            .resumed
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner) =
            from.map(|(step, epoch)| (step, epoch.counter));
        agree_min(self.collective.as_mut(), recorded, &mut [])?;
        self.resume.state = Past::Settled;
        Ok(())
    }
}
