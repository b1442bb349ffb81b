//! Finds the checkpoints that a rank can resume from, and reads the rank's bytes, verified.
//!
//! The lead lists candidates, and every rank checks whether it can open its own part of one; the
//! client lets the ranks agree and then reads. A rank prefers the copy of level `node`. Bytes that
//! are damaged there are read from level `global` instead, with a note.
//!
//! Invariants:
//! 1. A region is delivered only after the CRC of every extent was verified, against the manifest
//!    whose digest the commit record holds.
//! 2. A candidate is one (step, epoch); containers of two checkpoints are never mixed.
//!
//! Survives: damaged, missing or foreign files in any copy (another copy is used, or an error names
//! the files). Not here: agreement among ranks (crate `client`), epochs (`epoch.rs`).

use crate::directory::epoch::read_claim;
use crate::directory::{Catalog, Commit, Places, RECORD_LIMIT_BYTES, Unread};
use crate::encoding::{Proof, other_key};
use crate::replicas::OTHER_NODES;
use crate::restart::reader::{Reader, holder_of, listed};
use orcheck_format::disk::{CommitRecord, FileName, RegionRecord};
use orcheck_format::sabotage::{Switch, off};
use orcheck_format::{
    Detail, Epoch, Error, ErrorKind, JobName, Level, Rank, Result, Step, count, without_next,
};
use orcheck_io::disk::{Dir, read_small};
use orcheck_io::memory::Span;
use std::collections::BTreeSet;
use std::sync::Arc;

/// A checkpoint that may be restartable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Candidate {
    /// Its step.
    pub step: Step,
    /// The run that wrote it.
    pub epoch: Epoch,
}

/// What the directories offer to resume from.
#[derive(Debug, Default)]
pub struct Offer {
    /// Newest first.
    pub candidates: Vec<Candidate>,
    /// What the scan skipped, for the user.
    pub notes: Vec<String>,
    /// Containers newer than all candidates, without a commit record; for the user.
    pub uncommitted: Option<String>,
    /// Checkpoints that would count if the program had not rejected them.
    pub rejected: Vec<Candidate>,
    /// The error if a checkpoint newer than all candidates has a commit record, but no copy can
    /// be read.
    pub hidden: Option<Error>,
}

/// Finds the candidates, newest first, and what the scan skipped.
///
/// # Errors
/// The error of [`Catalog::scan`]; its first problem if no candidate is left.
pub fn candidates(job: &JobName, places: &Places) -> Result<Offer> {
    let catalog = Catalog::scan_trusting(job, &places.all(), &places.trust)?;
    let mut candidates: Vec<Candidate> = Vec::new();
    for candidate in catalog.commits().iter().map(candidate_of) {
        if !candidates.contains(&candidate) {
            candidates.push(candidate);
        }
    }
    // If there is no checkpoint at all, this is a fresh start; unreadable checkpoints must never
    // look like one.
    if candidates.is_empty()
        && let Some(problem) = catalog.problems().first()
        && !off(Switch::NeverAfresh)
    {
        if let Some(refused) = catalog.refused() {
            let place = format!("job '{}' has no authentic checkpoint", job.as_str());
            return Err(refused.clone().at(place));
        }
        return Err(Error::new(
            problem.kind(),
            format!(
                "job '{}' may have checkpoints, but none can be read: {}",
                job.as_str(),
                catalog
                    .notes()
                    .iter()
                    .map(|note| without_next(note))
                    .collect::<Vec<_>>()
                    .join("; ")
            ),
        )
        .next("run `orcheck verify`; set start = 'fresh' to begin from nothing"));
    }
    Ok(Offer {
        hidden: of_another_key(&catalog).or_else(|| hidden(&catalog)),
        rejected: catalog.rejected().iter().map(candidate_of).collect(),
        candidates,
        notes: catalog.notes().to_vec(),
        uncommitted: uncommitted(&catalog),
    })
}

fn candidate_of(commit: &Commit) -> Candidate {
    Candidate {
        step: commit.record.step,
        epoch: commit.record.epoch,
    }
}

/// What one node's own directory holds.
#[derive(Debug, Default)]
pub struct NodeView {
    /// Newest checkpoint of level `node` that counts, according to this directory.
    pub newest: Option<Candidate>,
    /// The nodes that wrote it.
    pub nodes: Vec<String>,
    /// Epoch counters in which this directory took part.
    pub claims: Vec<u64>,
    /// Checkpoints that a later run superseded.
    pub fenced: Vec<Candidate>,
    /// Checkpoints that the program rejected.
    pub rejected: Vec<Candidate>,
}

/// Reads the directory of level `node`; empty if there is none.
///
/// # Errors
/// The error of [`Catalog::scan`].
pub fn node_view(job: &JobName, places: &Places) -> Result<NodeView> {
    let dirs = places.to_read(Level::Node);
    if dirs.is_empty() {
        return Ok(NodeView::default());
    }
    let catalog = Catalog::scan_trusting(job, &dirs, &places.trust)?;
    Ok(NodeView {
        newest: catalog.commits().first().map(candidate_of),
        nodes: catalog
            .commits()
            .first()
            .map_or_else(Vec::new, |newest| newest.record.nodes.clone()),
        claims: catalog
            .claims()
            .iter()
            .map(|(claim, _)| claim.epoch.counter)
            .collect(),
        fenced: catalog.fenced().iter().map(candidate_of).collect(),
        rejected: catalog.rejected().iter().map(candidate_of).collect(),
    })
}

/// Describes the newest step that has containers but no commit record, if it is newer than all
/// commits and no later run has passed it: a run ended before the commit, or somebody removed the
/// record.
fn uncommitted(catalog: &Catalog) -> Option<String> {
    let known = (catalog.commits().iter()).chain(catalog.rejected());
    let newest = known.map(|commit| commit.record.step).max();
    let resumed = catalog.claims().iter();
    let passed = resumed.filter_map(|(_, resumed)| Some(resumed.as_ref()?.epoch.counter));
    let passed = passed.max().unwrap_or(0);
    let with_record = |step: Step, epoch: u64, run: [u8; 4]| {
        let mut names = catalog
            .files()
            .iter()
            .filter_map(|(_, _, name)| name.as_ref());
        names.any(|name| {
            matches!(name, FileName::Commit { .. }) && name.checkpoint() == Some((step, epoch, run))
        })
    };
    let containers = catalog
        .files()
        .iter()
        .filter_map(|(place, _, name)| match name {
            Some(FileName::Container {
                step, epoch, run, ..
            }) => Some((*step, *epoch, *run, *place)),
            _ => None,
        });
    let containers: Vec<_> = containers
        .filter(|(step, epoch, ..)| Some(*step) > newest && *epoch >= passed)
        .collect();
    let (step, epoch, run, place) = containers.iter().copied().max()?;
    if with_record(step, epoch, run) || off(Switch::UncommittedSaid) {
        return None;
    }
    let files = containers
        .iter()
        .filter(|(s, e, r, _)| (*s, *e, *r) == (step, epoch, run))
        .count() as u64;
    let which = if files == 1 { "" } else { "the last of them " };
    Some(format!(
        "step {step} of epoch {epoch} has {}, {}, and no commit record: its run ended before it was committed, or the record was removed",
        count(files, "container"),
        match catalog.places()[place].path() {
            path if path.starts_with(OTHER_NODES) => format!("{which}on another node"),
            path => format!("{which}in {}", path.display()),
        }
    ))
}

/// Invalid if a checkpoint newer than all believed ones was sealed with a key that was not given.
/// An older checkpoint in its place would lose what was computed since, because of a forgotten key.
fn of_another_key(catalog: &Catalog) -> Option<Error> {
    let newest = catalog.commits().first().map(|commit| commit.record.step);
    let step = catalog.other_key().filter(|&step| Some(step) > newest)?;
    let told = other_key(&format!("step {step} was sealed with another key"));
    (!off(Switch::OtherKeyNewer)).then_some(told)
}

/// The newest checkpoint with commit records but no readable one, if it is newer than all readable
/// ones.
fn hidden(catalog: &Catalog) -> Option<Error> {
    let newest = catalog.commits().first().map(|commit| commit.record.step);
    let unread = catalog.unread().iter();
    let newer = unread.filter(|one| !one.elsewhere && Some(one.step) > newest);
    let newer: Vec<&Unread> = newer.collect();
    let newest = newer.iter().map(|one| (one.step, &one.file)).max()?;
    let copies = || newer.iter().filter(|one| (one.step, &one.file) == newest);
    // A newer version wrote one of its records: damage to others is no reason to supersede it.
    let kind = match copies().any(|one| one.why.kind() == ErrorKind::Unsupported) {
        true => ErrorKind::Unsupported,
        false => ErrorKind::Corrupt,
    };
    let step = newest.0;
    let why: Vec<String> = copies()
        .map(|one| format!("{}: {}", one.path(catalog), one.why.what()))
        .collect();
    Some(
        Error::new(
            kind,
            format!(
                "no commit record of step {step} can be read: {}",
                why.join("; ")
            ),
        )
        .next("check the storage; without strict, an older step is used"),
    )
}

/// One rank's part of a candidate, open at every level where that is possible.
pub struct RankView {
    rank: Rank,
    copies: Vec<Copy>,
    notes: Vec<String>,
}

struct Copy {
    level: Level,
    own: Reader,
    found: FoundRecord,
}

/// A commit record, as found.
pub struct FoundRecord {
    /// Its contents.
    pub record: CommitRecord,
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// Whether its seal was verified.
    pub proof: Proof,
}

impl RankView {
    /// Opens rank `rank`'s part of a candidate. A copy that is damaged or not believed is skipped.
    ///
    /// # Errors
    /// NotFound if it was never completely committed: this node's directories belonged to that run
    /// and hold no record of it. Unsupported for another number of ranks; Invalid if a key is
    /// missing; otherwise the reason why no level has it.
    pub fn open(
        places: &Places,
        candidate: Candidate,
        rank: Rank,
        world_size: u32,
    ) -> Result<Self> {
        let mut copies = Vec::new();
        let mut errors: Vec<Error> = Vec::new();
        let mut notes = Vec::new();
        // The number of levels whose directories belonged to that run and hold no record of the
        // step.
        let mut never = 0;
        let levels = levels_of(places, candidate)?;
        for &level in &levels {
            match open_copy(places, (candidate, level), rank, world_size, &mut notes) {
                Ok(Some(copy)) => copies.push(copy),
                Ok(None) => {
                    let known = was_there(places, candidate, level);
                    never += usize::from(known);
                    let what = if known {
                        "no record that it was committed there"
                    } else {
                        "nothing of the run that took it"
                    };
                    let home = home_of(places, level);
                    errors.push(Error::not_found(format!(
                        "level {level}: {home} holds {what}"
                    )));
                }
                Err(error) if error.kind() == ErrorKind::Unsupported => return Err(error),
                Err(error) => errors.push(error.at(format!("level {level}"))),
            }
        }
        if copies.is_empty() {
            let text: Vec<String> = errors.iter().map(Error::what).collect();
            // This is not damage: with the key it can be read.
            if let Some(error) = errors.iter().find(|e| e.kind() == ErrorKind::Invalid) {
                return Err(error.clone());
            }
            let kind = match errors.last().map_or(ErrorKind::NotFound, Error::kind) {
                // Breaks if: a step that was never completely committed counts as damage; a job
                // that was killed during its first commit could not start again without help.
                _ if never == levels.len() => ErrorKind::NotFound,
                ErrorKind::NotFound => ErrorKind::Corrupt,
                kind => kind,
            };
            let error = Error::new(kind, text.join("; "));
            if errors.iter().any(|e| e.is(Detail::Unauthenticated)) {
                return Err(error.with(Detail::Unauthenticated));
            }
            let not_given = errors.iter().find(|e| e.is(Detail::NotGiven));
            return Err(match not_given.and_then(Error::next_step) {
                Some(next) => error.with(Detail::NotGiven).next(next),
                None => error,
            });
        }
        // Another copy is used, so their next steps no longer apply.
        notes.extend(errors.iter().map(Error::what));
        Ok(Self {
            rank,
            copies,
            notes,
        })
    }

    /// What was skipped or repaired so far; each note is returned once.
    pub fn take_notes(&mut self) -> Vec<String> {
        let mut notes = std::mem::take(&mut self.notes);
        for copy in &self.copies {
            notes.extend(copy.own.take_notes());
        }
        notes
    }

    /// The commit record at the level of the node's own directory, if the rank's part is there.
    #[must_use]
    pub fn node_record(&self) -> Option<&FoundRecord> {
        let of_node = |copy: &&Copy| copy.level != Level::Global;
        Some(&self.copies.iter().find(of_node)?.found)
    }

    /// The node from which this rank's part is read, if it is another one.
    #[must_use]
    pub fn other_node(&self) -> Option<&str> {
        self.copies[0].own.own_file().other_node()
    }

    /// Names of the regions this rank stored.
    #[must_use]
    pub fn region_names(&self) -> Vec<String> {
        let manifest = self.copies[0].own.manifest();
        let record = manifest
            .ranks
            .iter()
            .find(|record| record.rank == self.rank);
        record.map_or_else(Vec::new, |record| {
            record
                .regions
                .iter()
                .map(|region| region.name.clone())
                .collect()
        })
    }

    /// A region as it was stored.
    #[must_use]
    pub fn region(&self, name: &str) -> Option<&RegionRecord> {
        self.copies[0].own.region(self.rank, name)
    }

    /// Reads a region into place, verified. Damaged bytes are read from another copy at the same
    /// level, or else from the next level.
    ///
    /// # Errors
    /// The last level's error, naming file and byte range.
    pub fn read(&mut self, name: &str, into: Span) -> Result<()> {
        self.any_level(name, &mut |reader, rank, region, damage| {
            reader.read_region_of_any_copy(rank, region, into, damage)
        })
    }

    /// Passes a region to `sink` piece by piece, each verified first. If no copy at a level is
    /// good, the next level starts again from offset 0.
    ///
    /// # Errors
    /// As [`Self::read`]; or the error that `sink` returns.
    pub fn stream(
        &mut self,
        name: &str,
        sink: &mut dyn FnMut(u64, &[u8]) -> Result<()>,
    ) -> Result<()> {
        self.any_level(name, &mut |reader, rank, region, damage| {
            reader.stream_region_of_any_copy(rank, region, damage, sink)
        })
    }

    fn any_level(&mut self, name: &str, work: &mut Work<'_>) -> Result<()> {
        let mut last = Error::not_found(format!("region '{name}' is in no copy"));
        let mut notes = Vec::new();
        for copy in &self.copies {
            let region = copy.own.region(self.rank, name).ok_or_else(|| {
                Error::not_found(format!(
                    "region '{name}' of rank {} is not stored",
                    self.rank
                ))
            });
            let note = |error: &Error| {
                let error = error.clone().at(format!("level {}", copy.level));
                format!("another copy is used: {}", error.what())
            };
            // One finding suffices as a hint to check the storage; a file may have thousands.
            let mut damaged = None;
            let mut damage = |error: &Error| {
                damaged.get_or_insert_with(|| note(error));
            };
            let done = region.and_then(|region| work(&copy.own, self.rank, region, &mut damage));
            notes.extend(damaged);
            match done {
                Ok(()) => {
                    self.notes.extend(notes);
                    return Ok(());
                }
                Err(error) if off(Switch::OtherCopy) => return Err(error),
                Err(error) => {
                    notes.push(note(&error));
                    last = error.at(format!("level {}", copy.level));
                }
            }
        }
        Err(last)
    }
}

/// Reads a region of a rank, and reports what was damaged in one copy if another one was good.
type Work<'w> = dyn FnMut(&Reader, Rank, &RegionRecord, &mut dyn FnMut(&Error)) -> Result<()> + 'w;

/// The levels at which a candidate may be found, weakest first: the configured ones, except that
/// the node's own directory and the other nodes may hold it at the level configured in its run.
fn levels_of(places: &Places, candidate: Candidate) -> Result<Vec<Level>> {
    let mut levels: BTreeSet<Level> = BTreeSet::new();
    for dir in places.to_read(places.node_level()) {
        for entry in dir.list()? {
            if let Some(FileName::Commit {
                step,
                epoch,
                run,
                level,
            }) = FileName::parse(&entry.name)
                && (step, epoch) == (candidate.step, candidate.epoch.counter)
                && run == candidate.epoch.run.short_bytes()
            {
                levels.insert(level);
            }
        }
    }
    let configured = places.levels();
    let global = configured.contains(&Level::Global);
    levels.retain(|level| *level != Level::Global);
    if levels.is_empty() {
        return Ok(configured);
    }
    Ok(levels
        .into_iter()
        .chain(global.then_some(Level::Global))
        .collect())
}

/// Where a rank looks for its part at a level before it asks other nodes.
fn home_of(places: &Places, level: Level) -> String {
    let own = places.node.as_ref().filter(|_| level != Level::Global);
    own.map_or_else(
        || listed(&places.to_read(level)),
        |dir| dir.path().display().to_string(),
    )
}

/// Whether every directory of a level that this run uses also belonged to the candidate's run: it
/// then holds that run's claim, which is older than any record.
fn was_there(places: &Places, candidate: Candidate, level: Level) -> bool {
    let dirs = places.to_read(level);
    let all = level != Level::Global || dirs.len() == places.server_roots.len();
    let counter = candidate.epoch.counter;
    let claimed = |dir: &Arc<dyn Dir>| {
        read_claim(dir.as_ref(), counter, &places.trust)
            .is_ok_and(|claim| claim.epoch == candidate.epoch)
    };
    all && dirs.iter().all(claimed)
}

/// Opens this rank's copy at one level; `None` if no directory of the level holds a commit record.
fn open_copy(
    places: &Places,
    (candidate, level): (Candidate, Level),
    rank: Rank,
    world_size: u32,
    notes: &mut Vec<String>,
) -> Result<Option<Copy>> {
    let dirs = places.to_read(level);
    let Some(found) = read_record(places, &dirs, (candidate, level), notes)? else {
        return Ok(None);
    };
    let record = &found.record;
    if record.world_size != world_size && !off(Switch::RankCount) {
        return Err(Error::unsupported(format!(
            "step {} was written by {}, this run has {world_size}",
            candidate.step,
            count(record.world_size.into(), "rank")
        ))
        .next(format!(
            "restart with {}",
            count(record.world_size.into(), "rank")
        )));
    }
    let holder = holder_of(record, rank)?;
    let own = Reader::open_trusting(&dirs, record, holder, (&places.trust, found.proof))?;
    Ok(Some(Copy { level, own, found }))
}

/// The first believed record of a candidate in these directories; with a key, a verified record
/// ranks before one that is merely accepted.
fn read_record(
    places: &Places,
    dirs: &[Arc<dyn Dir>],
    (candidate, level): (Candidate, Level),
    notes: &mut Vec<String>,
) -> Result<Option<FoundRecord>> {
    let name = FileName::commit(candidate.step, candidate.epoch, level).to_string();
    let mut damage = Vec::new();
    let mut accepted: Option<FoundRecord> = None;
    for dir in dirs {
        let bytes = read_small(dir.as_ref(), &name, RECORD_LIMIT_BYTES);
        match bytes.and_then(|bytes| believe(places, bytes, (candidate, level))) {
            Ok(found) => {
                let proven = found.proof == Proof::Sealed || !places.trust.has_key();
                if proven || accepted.is_none() {
                    accepted = Some(found);
                }
                if proven {
                    break;
                }
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => damage.push(error.at(format!("{}/{name}", dir.path().display()))),
        }
    }
    if accepted.is_none() && !damage.is_empty() {
        return Err(damage.swap_remove(0));
    }
    let another = damage.iter().map(|error| {
        let what = error.what();
        format!("another copy of a commit record is used: {what}")
    });
    notes.extend(another);
    Ok(accepted)
}

fn believe(places: &Places, bytes: Vec<u8>, of: (Candidate, Level)) -> Result<FoundRecord> {
    let proof = places.trust.check(&bytes)?;
    let record = CommitRecord::decode(&bytes)?;
    let (step, epoch) = (record.step, record.epoch);
    // Breaks if: the job is not compared; a record that another job sealed with the same key would
    // pass for this job's.
    let other_job = record.job != places.job && !off(Switch::RecordOfJob);
    if other_job || (Candidate { step, epoch }, record.level) != of {
        return Err(Error::corrupt(format!(
            "the record says step {step} of epoch {epoch} of job '{}' at level {}",
            record.job.as_str(),
            record.level
        )));
    }
    Ok(FoundRecord {
        record,
        bytes,
        proof,
    })
}
