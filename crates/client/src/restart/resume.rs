//! Finds the newest checkpoint that every rank can verify, by agreement of all ranks, and restarts
//! from it.
//!
//! Invariants:
//! 1. All ranks restore the same (step, epoch); if one rank cannot, all turn to the next older one.
//! 2. What this run resumed from is recorded before its first checkpoint can commit.
//! 3. "Not found" means that no checkpoint was ever completely committed. Committed checkpoints
//!    that cannot be restored are an error, never a fresh start.
//! 4. After an error, the contents of regions are undefined.
//! 5. A step that was requested by number is never replaced by another one, and its absence does
//!    not start the job from nothing.
//! 6. A directory that does not answer for a moment makes no step a damaged one: the same step is
//!    tried again, or the restart is an error.
//! 7. An older step that does not fit the protected regions is not an error of the program, which
//!    protected what the newer one stored: the program is told to ask again.
//!
//! Not here: errors if nothing can be restored (`resume/unrestored.rs`); what only another node
//! knows (`resume/elsewhere.rs`); memory that an agent kept (`resume/memory.rs`); rejecting, and
//! reading one region alone (`choose.rs`); regions that an older step may not have (`optional.rs`);
//! reading and verifying (`engine::restart`).

use crate::collective::{agree, agree_min, bcast_bytes};
use crate::open::{describe_sources, exchange_holdings, find_absent, may_know_more};
use crate::regions::{Region, Target, restore_files};
use crate::restart::beside::of_word;
use crate::restart::elastic::{Reading, Unfit, read_part};
use crate::restart::optional::{Readings, may_keep};
use crate::session::Session;
use orcheck_engine::commit::copy_here;
use orcheck_engine::directory::choose::listed;
use orcheck_engine::directory::epoch::record_resumed;
use orcheck_engine::replicas::{Others, OthersContext, Rebuilt, ReplicaStore, files_of};
use orcheck_engine::restart::{
    Candidate, NodeView, Offer, RankView, SharedReads, candidates, node_view,
};
use orcheck_format::sabotage::{Switch, off};
use orcheck_format::{Epoch, Error, ErrorKind, Level, Rank, Result, RunId, Step};
use orcheck_io::disk::Dir;
use std::sync::Arc;
use std::time::Duration;

use crate::session::{Past, Restarted, Which, found_too_late, nothing_found};

mod again;
mod elsewhere;
mod leftovers;
mod memory;
mod unrestored;

const CANDIDATE_BYTES: usize = 32;

impl Session {
    /// The newest checkpoint that all ranks can open. Collective.
    ///
    /// # Errors
    /// NotFound: there is none, start from nothing. Corrupt (or the error of the files): there are
    /// some, but none can be restored.
    pub fn find(&mut self) -> Result<u64> {
        self.find_step(Which::Newest)
    }

    /// As [`Self::find`], for a certain step, or for one older than a certain step. Collective; the
    /// same on all ranks.
    ///
    /// # Errors
    /// As [`Self::find`]; NotFound lists the existing steps, and is not a fresh start if a certain
    /// one was requested.
    pub fn find_step(&mut self, which: Which) -> Result<u64> {
        let found = self.look_for(which);
        self.report_restart(found).map(u64::from)
    }

    fn look_for(&mut self, which: Which) -> Result<Step> {
        self.require_no_failed_restart()?;
        if which != Which::Newest {
            self.agree_on(which)?;
        }
        if self.progress.last_step.is_some() {
            return Err(found_too_late());
        }
        let (list, notes) = self.share_candidates()?;
        self.warnings.extend(notes);
        self.resume.found = None;
        self.resume.state = Past::Unknown;
        self.resume.skipped.clear();
        self.resume.tried.clear();
        self.resume.again.clear();
        self.resume.tries = 0;
        self.resume.left = list;
        let damaged = &self.resume.damaged;
        self.resume
            .left
            .retain(|candidate| !damaged.contains(candidate));
        self.resume.chosen = which != Which::Newest;
        if self.resume.chosen {
            let there = listed(self.resume.left.iter().map(|candidate| candidate.step));
            self.resume
                .left
                .retain(|candidate| which.allows(candidate.step));
            if self.resume.left.is_empty() {
                return Err(self.none_of(which, &there));
            }
        }
        if self.resume.left.is_empty() && !damaged.is_empty() {
            return Err(self.all_damaged());
        }
        if self.resume.left.is_empty() {
            let told = self.begin_afresh()?;
            return Err(self.nothing_there("no checkpoint", &told));
        }
        self.open_next(None)
    }

    fn agree_on(&mut self, which: Which) -> Result<()> {
        let (kind, step) = which.words();
        let mut values = [kind, !kind, step as i64, !(step as i64)];
        agree_min(self.collective.as_mut(), Ok(()), &mut values)?;
        if values[0] != !values[1] || values[2] != !values[3] {
            return Err(Error::invalid("the ranks look for different steps")
                .next("give all ranks the same step"));
        }
        Ok(())
    }

    /// Rank 0 looks and broadcasts; every node then adds what only its own directory knows.
    pub(crate) fn share_candidates(&mut self) -> Result<(Vec<Candidate>, Vec<String>)> {
        let silent = self.learn_what_others_hold()?;
        let looked = if self.rank == Rank(0) && !self.options.fresh {
            let looked = candidates(&self.job, &self.link.places);
            let looked = looked.map_err(|error| self.link.places.blame_for(error));
            looked.and_then(|mut offer| match offer.hidden.take() {
                // Breaks if: strict considers only the candidates.
                Some(error)
                    if self.options.strict
                        || matches!(error.kind(), ErrorKind::Unsupported | ErrorKind::Invalid) =>
                {
                    Err(error)
                }
                _ => Ok(offer),
            })
        } else {
            Ok(Offer::default())
        };
        let saw_all = self.rank != Rank(0) || looked.as_ref().is_ok_and(|offer| offer.whole);
        let mut whole = [i64::from(saw_all)];
        let offer = agree_min(self.collective.as_mut(), looked, &mut whole)?;
        let mut notes = offer.notes;
        notes.extend(offer.uncommitted.clone());
        self.resume.uncommitted = offer.uncommitted;
        let bytes = encode(&offer.candidates);
        let mut list = decode(&bcast_bytes(self.collective.as_mut(), bytes, 0)?);

        if self.rank == Rank(0) && !self.options.fresh {
            let found = list.first().map_or(0, |newest| newest.epoch.counter);
            notes.extend(may_know_more(&silent, found, self.options.peers));
        }

        let own = if self.options.fresh {
            Ok(NodeView::default())
        } else {
            // Breaks if: nodes look into their own directories alone although rank 0 could not
            // read all others; nobody would know that a later run superseded what it lists.
            let dirs = match whole[0] {
                0 => self.link.places.to_read(Level::Node),
                _ => self.link.places.of_level(Level::Node),
            };
            node_view(&self.job, &dirs, &self.link.places.trust)
        };
        let own = agree(self.collective.as_mut(), own)?;
        self.leave_out_rejected(&mut list, &own, offer.rejected.len())?;
        let listed = list.first().map(|candidate| candidate.step);
        if let Some(text) = self.newest_known_elsewhere(&own, listed)?
            && !off(Switch::KnownElsewhere)
        {
            // Breaks if: an empty list is believed; what other nodes hold would be superseded.
            if list.is_empty() || self.options.strict {
                return Err(Error::corrupt(text).next(
                    "start the job on the nodes that wrote it, or set start = 'fresh' to begin from nothing",
                ));
            }
            notes.push(format!("skipped: {text}"));
        }
        self.resume.fenced = own.fenced;
        Ok((list, notes))
    }

    /// A rejection is known to the node that wrote it down, but not always to rank 0. So are
    /// earlier epochs, which travel in the same message.
    fn leave_out_rejected(
        &mut self,
        list: &mut Vec<Candidate>,
        own: &NodeView,
        known: usize,
    ) -> Result<()> {
        let flag = |candidate| -i64::from(own.rejected.contains(candidate));
        let mut values: Vec<i64> = list.iter().map(flag).collect();
        values.push(-((known + own.rejected.len()) as i64));
        values.push(-self.remembered_here());
        agree_min(self.collective.as_mut(), Ok(()), &mut values)?;
        self.resume.remembered = values.pop().and_then(|word| of_word(-word));
        let any = values.pop().is_some_and(|count| count != 0);
        let mut rejected = values.into_iter().map(|flag| flag != 0);
        list.retain(|_| !rejected.next().unwrap_or(false));
        if list.is_empty() && any && !off(Switch::RejectedStands) {
            // Breaks if: it counts as no checkpoint; the job would begin again although nobody
            // requested that.
            return Err(Error::corrupt(format!(
                "all checkpoints of job '{}' that could be restarted from were rejected",
                self.job.as_str()
            ))
            .next("set start = 'fresh' to begin again from the initial state"));
        }
        Ok(())
    }

    /// At level `peers`: learns which node holds which files; returns the nodes of earlier runs
    /// that do not answer.
    fn learn_what_others_hold(&mut self) -> Result<Vec<(String, u64)>> {
        if self.link.peers.is_none() {
            return Ok(Vec::new());
        }
        let leads = self.link.layout.leads_node(self.rank);
        let node = self.link.layout.node_of(self.rank);
        let timeout = Duration::from_secs_f64(self.options.timeout_s);
        let in_memory = self.options.replica_store != ReplicaStore::Disk;
        let at = self
            .link
            .peers
            .as_ref()
            .and_then(|peers| peers.nodes.get(node.index()));
        let own = match (&self.link.places.node, at) {
            _ if !leads || self.options.fresh => Ok(Vec::new()),
            // The agent knows what is on the disk too.
            (_, Some(at)) if in_memory => {
                at.list((self.rank, node), &self.environment.failpoints, timeout)
            }
            (Some(dir), _) => files_of(dir.as_ref()),
            _ => Ok(Vec::new()),
        };
        let mut holdings = exchange_holdings(self.collective.as_mut(), &self.link.layout, own)?;
        let known = self
            .link
            .peers
            .as_ref()
            .filter(|_| leads && !self.options.fresh);
        let absent = find_absent(
            self.collective.as_mut(),
            &self.link.layout,
            (&self.job, self.link.epoch),
            known.map_or(&[], |peers| &peers.absent),
            &self.environment.failpoints,
        )?;
        holdings.extend(absent.holdings);
        let Some(peers) = &mut self.link.peers else {
            return Ok(Vec::new());
        };
        let context = OthersContext {
            own: (self.rank, node),
            asks_own: in_memory,
            members: peers.nodes.len() as u32,
            nodes: peers.nodes.iter().cloned().chain(absent.there).collect(),
            timeout,
            failpoints: self.environment.failpoints.clone(),
        };
        self.link.places.others = Others::new(context, &holdings).dirs();
        let rebuilt = Rebuilt::of(&self.link.places.to_read(Level::Node), None);
        self.link.places.others.extend(rebuilt);
        peers.holdings = holdings;
        Ok(absent.silent)
    }

    /// Opens the next candidate on all ranks, skipping those that a rank cannot open. `damaged` is
    /// the error of the previous one.
    fn open_next(&mut self, mut damaged: Option<Error>) -> Result<Step> {
        self.resume.found = None;
        while !self.resume.left.is_empty() {
            let candidate = self.resume.left.remove(0);
            let world_size = self.link.layout.world_size();
            let view = if self.resume.fenced.contains(&candidate) {
                Err(Error::not_found(format!(
                    "node '{}' knows a later run that superseded it",
                    self.link.layout.nodes[self.link.layout.node_of(self.rank).index()].name
                )))
            } else {
                RankView::open(&self.link.places, candidate, self.rank, world_size)
            };
            let opened = agree(self.collective.as_mut(), view);
            match opened.and_then(|view| self.accept(candidate, view)) {
                Ok(()) => return Ok(candidate.step),
                // Its run ended during the commit: nobody was told that it is safe.
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    let text = format!(
                        "step {} was not completely committed: {}",
                        candidate.step,
                        error.what()
                    );
                    self.resume.skip(text, &error);
                }
                Err(error) => {
                    if !is_damage(error.kind()) {
                        return Err(error);
                    }
                    if self.tries_again(candidate.step, &error)? {
                        self.resume.left.insert(0, candidate);
                        continue;
                    }
                    if self.options.strict {
                        return Err(self.refuse_strictly(candidate.step, error));
                    }
                    // Its next step is to use an older step, which is what happens now.
                    let text = format!("step {} skipped: {}", candidate.step, error.what());
                    self.resume.skip(text, &error);
                    damaged = Some(error);
                }
            }
        }
        let Some(damaged) = damaged else {
            self.warnings.append(&mut self.resume.skipped);
            let none = "no completely committed checkpoint";
            if self.resume.chosen {
                let text = format!("job '{}' has {none}", self.job.as_str());
                return Err(Error::not_found(text).next("choose another step"));
            }
            let told = self.begin_afresh()?;
            return Err(self.nothing_there(none, &told));
        };
        Err(self.none_left(&damaged))
    }

    /// Takes a candidate that all ranks have opened as the found one. Collective.
    fn accept(&mut self, candidate: Candidate, mut view: RankView) -> Result<()> {
        let notes = view.take_notes();
        self.resume.found = Some((candidate, view));
        // Breaks if: it stays the found one after an error; a restart would read what the ranks do
        // not agree about.
        self.learn_lists()
            .inspect_err(|_| self.resume.found = None)?;
        self.warnings.append(&mut self.resume.skipped);
        self.warnings.extend(notes);
        self.resume.state = Past::Found;
        Ok(())
    }

    /// The error that a region is not in the found checkpoint, with those that are.
    pub(crate) fn not_stored(&self, name: &str) -> Error {
        let (step, there) = match &self.resume.found {
            Some((found, view)) => (found.step, view.region_names().join(", ")),
            None => (Step(0), String::new()),
        };
        Error::not_found(format!(
            "region '{name}' is not in the checkpoint of step {step}; it has: {there}"
        ))
    }

    pub(crate) fn found(&self, call: &str) -> Result<&(Candidate, RankView)> {
        self.resume
            .found
            .as_ref()
            .ok_or_else(|| nothing_found(call))
    }

    /// As [`Self::try_restart`], for programs whose regions always have the same shape.
    ///
    /// # Errors
    /// As there; Invalid for an older step that does not fit, which is the found one from then on.
    pub fn restart(&mut self) -> Result<u64> {
        match self.try_restart()? {
            Restarted::Step(step) => Ok(step.0),
            Restarted::Again(step) => Err(Error::invalid(format!(
                "newer checkpoints are damaged, and step {step} does not fit the regions that are protected"
            ))
            .next("ask stored again, protect what it says, and call restart again")),
        }
    }

    /// Fills all regions from the found checkpoint. Returns the step that was really restored,
    /// which is an older one if the found one proved to be damaged. Collective.
    ///
    /// # Errors
    /// Invalid if regions do not fit what is stored in the found checkpoint; Corrupt if nothing
    /// could be restored. The contents of regions are then undefined.
    pub fn try_restart(&mut self) -> Result<Restarted> {
        let ready = self.found("restart").map(|_| ());
        agree(self.collective.as_mut(), ready)?;
        let restarted = match self.read_found(None) {
            Ok(Some(again)) => Ok(again),
            Ok(None) => self.finish_restart().map(Restarted::Step),
            Err(error) => Err(error),
        };
        self.report_restart(restarted)
    }

    /// Reads regions (`None`: all) from the found checkpoint, or from an older one if that is
    /// damaged. `Again` if the older one does not fit, or if only some regions are read, because
    /// others were read from the damaged one.
    pub(crate) fn read_found(&mut self, only: Option<&str>) -> Result<Option<Restarted>> {
        let mut fell_back = false;
        let mut texts = Vec::new();
        self.deal_lists()?;
        loop {
            let fits = self.adopt_memory_files(only);
            let fits = fits.and_then(|()| self.check_regions(only));
            let fits = agree(self.collective.as_mut(), fits);
            let step = self.found("restart").map(|(candidate, _)| candidate.step)?;
            let read = match fits {
                Ok(_) if fell_back && only.is_some() => {
                    self.resume.again.append(&mut texts);
                    return Ok(Some(Restarted::Again(step)));
                }
                Ok(readings) => self.read_together(readings),
                // Breaks if: it is an error of the program all the same; every start would fail in
                // the same way.
                Err(error)
                    if fell_back
                        && error.kind() == ErrorKind::Invalid
                        && !off(Switch::AskAgain) =>
                {
                    self.warnings.push(error.message().to_owned());
                    self.resume.again.append(&mut texts);
                    return Ok(Some(Restarted::Again(step)));
                }
                Err(error) => Err(error),
            };
            let Err(error) = read else {
                return Ok(None);
            };
            if !is_damage(error.kind()) || off(Switch::FallBack) {
                return Err(error);
            }
            let same = self.resume.found.as_ref().map(|(candidate, _)| *candidate);
            if let Some(candidate) = same
                && self.tries_again(step, &error)?
            {
                self.resume.left.insert(0, candidate);
                self.open_next(None)?;
                fell_back |= (self.resume.found.as_ref()).is_some_and(|(one, _)| *one != candidate);
                continue;
            }
            if self.options.strict {
                return Err(self.refuse_strictly(step, error));
            }
            if let Some((candidate, _)) = &self.resume.found {
                self.resume.damaged.push(*candidate);
                // Its next step is to use an older step, which is what happens now.
                let text = format!("step {} skipped: {}", candidate.step, error.what());
                texts.push(text.clone());
                self.resume.skip(text, &error);
            }
            self.open_next(Some(error))?;
            fell_back = true;
        }
    }

    /// The regions hold the found checkpoint: the run continues from it.
    fn finish_restart(&mut self) -> Result<Step> {
        let Some((candidate, mut view)) = self.resume.found.take() else {
            return Err(Error::internal("the restored checkpoint vanished"));
        };
        self.warnings.append(&mut self.resume.again);
        self.warnings.extend(self.emptied());
        self.warnings.extend(view.take_notes());
        let copied = match (&self.link.places.node, view.node_record()) {
            (Some(dir), Some(found))
                if self.link.peers.is_some() && self.link.layout.leads_node(self.rank) =>
            {
                copy_here(dir, &found.record, &found.bytes)
            }
            _ => Ok(()),
        };
        agree(self.collective.as_mut(), copied)?;
        if let Some(found) = view.node_record() {
            // Breaks if: this is an error of the call; all other ranks would wait for this one in
            // the next line.
            if let Err(error) = self.start_mending(&found.record) {
                self.leave_unmended(candidate.step, error);
            }
        }
        if self.link.peers.is_some() {
            let told = describe_sources(
                self.collective.as_mut(),
                &self.link.layout,
                view.other_node(),
            )?;
            self.warnings.extend(told);
        }
        self.resume.touched.clear();
        // Breaks if: it stays; this call would wait until memory of an agent is unmapped.
        drop(view);
        self.decide(Some((candidate.step, candidate.epoch)));
        self.progress.last_step = Some(candidate.step);
        self.trigger.count_from(Some(candidate.step));
        self.continue_paces(candidate.step);
        Ok(candidate.step)
    }

    /// Checks the regions and decides what to read of each; reports everything that does not fit in
    /// one message.
    fn check_regions(&mut self, only: Option<&str>) -> Result<Readings> {
        let regions: Vec<(String, Region)> = (self.memory.regions.iter())
            .filter(|(name, _)| only.is_none_or(|only| only == name.as_str()))
            .map(|(name, region)| (name.clone(), region.clone()))
            .collect();
        let (mut readings, mut wrong, mut alone) = (Vec::new(), Vec::new(), Vec::new());
        let mut overlaps = Vec::new();
        for (name, region) in regions {
            match self.reading_of_one_step(&name, &region) {
                Ok(reading) => {
                    if let Reading::Boxes(_, Some((lower, higher))) = reading {
                        overlaps.push(format!(
                            "array '{name}': parts overlap, such as those of ranks {lower} and {higher}: the copy of the lowest rank was taken"
                        ));
                    }
                    readings.push((name, region, reading));
                }
                Err(Unfit::Alone(kind)) => alone.push((name, kind)),
                Err(Unfit::Wrong(error)) if is_damage(error.kind()) => return Err(error),
                Err(Unfit::Wrong(_)) if off(Switch::RegionFits) => {
                    readings.push((name, region, Reading::Own));
                }
                Err(Unfit::Wrong(error)) => wrong.push(error),
            }
        }
        let (candidate, view) = self.found("restart")?;
        let (step, stored) = (candidate.step, view.region_names());
        if !alone.is_empty() {
            let error = self.of_other_ranks(&alone)?;
            return Err(match wrong.is_empty() {
                true => error,
                false => {
                    let also = whats(&wrong);
                    let next = error.next_step().unwrap_or_default().to_owned();
                    Error::unsupported(format!("{}; {also}", error.what())).next(next)
                }
            });
        }
        if let [error] = &wrong[..]
            && let Some(next) = error.next_step()
        {
            let what = error.what();
            let next = next.to_owned();
            return Err(
                Error::invalid(format!("step {step} does not fit the program: {what}")).next(next),
            );
        }
        if wrong.is_empty() {
            let unused: Vec<String> = stored
                .into_iter()
                .filter(|name| self.memory.regions.get(name).is_err())
                .collect();
            if !unused.is_empty() && only.is_none() && !self.wants_part {
                let text = format!(
                    "step {step}: stored but not protected, left out: {}",
                    unused.join(", ")
                );
                self.warnings.push(text);
            }
            self.warnings.extend(overlaps);
            return Ok(readings);
        }
        Err(Error::invalid(format!(
            "step {step} does not fit the program: {} (the checkpoint has: {})",
            whats(&wrong),
            stored.join(", ")
        ))
        .next("protect the regions as they were stored (orc_stored tells), flag new ones ORC_OPTIONAL, or give another program another job name"))
    }

    /// Reads regions on all ranks; those of a node share what several of them need. Collective.
    fn read_together(&mut self, readings: Readings) -> Result<()> {
        let (readings, optional) = self.optional_last(readings);
        let (link, rank) = (&self.link, self.rank);
        let (pool, gates) = (Arc::clone(&link.pool), Arc::clone(&link.gates));
        let node = link.layout.node_of(rank).index();
        let shared = SharedReads::new(pool, gates, link.shape, node).map(Arc::new);
        if let (Some(shared), Some((_, view))) = (&shared, &mut self.resume.found) {
            view.share(shared);
        }
        self.recall_memory();
        let read = self.read_regions(readings);
        let read = read.and_then(|()| self.prove_regions(&optional));
        let mut read = agree(self.collective.as_mut(), read);
        if read.is_ok() {
            let last = self.read_regions(optional);
            read = agree(self.collective.as_mut(), last);
        }
        if let Some(shared) = shared
            && self.link.layout.leads_node(rank)
        {
            shared.clear();
        }
        read
    }

    fn read_regions(&mut self, readings: Readings) -> Result<()> {
        let Some((candidate, view)) = &mut self.resume.found else {
            return Err(Error::internal("no checkpoint is open"));
        };
        let mut files = Vec::new();
        for (name, region, reading) in readings {
            if !matches!(region.target, Target::File) && matches!(reading, Reading::Nothing) {
                continue;
            }
            if may_keep(&region, &reading) {
                self.resume.touched.insert(name.clone(), *candidate);
            }
            self.environment.failpoints.at("restart.region", &name)?;
            match region.target {
                Target::File => files.push((name, region)),
                _ => read_part(view, (&name, &region), &reading)?,
            }
        }
        restore_files(self.memory.route.as_ref(), &files, view)
    }

    /// Before the first checkpoint, requires that the program has looked for existing ones.
    pub(crate) fn require_restart_decided(&mut self) -> Result<()> {
        match self.resume.state {
            Past::Settled => return Ok(()),
            Past::Decided => return self.settle(),
            Past::Found if !self.options.fresh => {
                let local = Err(Error::invalid(format!(
                    "checkpoint {} was found but not restarted",
                    self.resume
                        .found
                        .as_ref()
                        .map_or(Step(0), |(candidate, _)| candidate.step)
                ))
                .next("call restart, or set start = 'fresh' to begin from nothing"));
                return agree(self.collective.as_mut(), local);
            }
            _ => {}
        }
        let (list, notes) = self.share_candidates()?;
        if let Some(newest) = list.first()
            && !off(Switch::PastKnown)
        {
            return Err(Error::invalid(format!(
                "job '{}' has checkpoints up to step {}",
                self.job.as_str(),
                newest.step
            ))
            .next("call find and restart, or set start = 'fresh' to begin from nothing"));
        }
        self.warnings.extend(notes);
        let told = self.begin_afresh()?;
        let begins = self.nothing_there("no checkpoint", &told);
        self.warnings.extend(told);
        self.tell_run(begins.message());
        self.settle()
    }

    /// In the epoch that follows another one of the same run, continues from `newest`, which was
    /// committed there. Collective.
    pub(crate) fn continue_from(&mut self, newest: Option<(Step, Epoch)>) -> Result<()> {
        if self.resume.state != Past::Settled && self.progress.last_taken.is_none() {
            return Ok(());
        }
        let before = self.resume.from;
        // Breaks if: commits of an epoch before the last one count as commits of the last one.
        let newer = newest.filter(|(step, _)| before.is_none_or(|(older, _)| *step > older));
        self.decide(newer.or(before));
        self.settle()
    }

    pub(crate) fn decide(&mut self, from: Option<(Step, Epoch)>) {
        self.resume.from = from;
        self.resume.state = Past::Decided;
        self.forget_memory();
        self.prepare_pool();
    }

    /// Records what this run resumed from, in every directory.
    fn settle(&mut self) -> Result<()> {
        let from = self.resume.from;
        let mut dirs: Vec<Arc<dyn Dir>> = Vec::new();
        if self.rank == Rank(0) {
            dirs.extend(self.link.places.of_level(Level::Global));
        }
        if self.link.layout.leads_node(self.rank) {
            dirs.extend(self.link.places.of_level(Level::Node));
        }
        let recorded = record_resumed(
            &dirs,
            &self.job,
            self.link.epoch,
            from,
            &self.link.places.trust,
        );
        let recorded = recorded.map_err(|error| {
            let what = "before its first checkpoint a run notes in each directory what it began from";
            error.at(what).next(
                "bring the directory back, and the next checkpoint tries again; or end the job and start it again",
            )
        });
        *self
            .link
            .shared
            .resumed
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner) =
            from.map(|(step, epoch)| (step, epoch.counter));
        let agent = self
            .link
            .threads
            .as_mut()
            .and_then(|threads| threads.agent.as_mut());
        let mut notes = Vec::new();
        let told = match (agent, from) {
            (Some(agent), Some((step, epoch))) => {
                agent.resumed_from((step, epoch.counter), &mut notes)
            }
            _ => Ok(()),
        };
        self.warnings.extend(notes);
        agree_min(self.collective.as_mut(), recorded.and(told), &mut [])?;
        self.resume.state = Past::Settled;
        self.remove_leftovers();
        Ok(())
    }
}

fn encode(list: &[Candidate]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(list.len() * CANDIDATE_BYTES);
    for Candidate { step, epoch } in list {
        bytes.extend_from_slice(&step.0.to_le_bytes());
        bytes.extend_from_slice(&epoch.counter.to_le_bytes());
        bytes.extend_from_slice(&epoch.run.0);
    }
    bytes
}

fn decode(bytes: &[u8]) -> Vec<Candidate> {
    let number = |bytes: &[u8]| bytes.iter().rev().fold(0u64, |n, &b| n << 8 | u64::from(b));
    bytes
        .chunks_exact(CANDIDATE_BYTES)
        .map(|one| {
            let mut run = [0; 16];
            run.copy_from_slice(&one[16..]);
            let epoch = Epoch {
                counter: number(&one[8..16]),
                run: RunId(run),
            };
            Candidate {
                step: Step(number(&one[..8])),
                epoch,
            }
        })
        .collect()
}

fn whats(errors: &[Error]) -> String {
    let each: Vec<String> = errors.iter().map(Error::what).collect();
    each.join("; ")
}

/// Whether an error means that a checkpoint is damaged, not that the call was wrong.
fn is_damage(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::Corrupt | ErrorKind::NotFound | ErrorKind::Unavailable
    )
}
