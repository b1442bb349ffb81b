//! Opens a candidate for one rank, and reads regions of it: what the rank itself stored, or, for
//! another number of ranks or another decomposition, its part of what all ranks stored.
//!
//! A rank prefers the copy of the node's level. Bytes that are damaged there are read from level
//! `global` instead, with a note.
//!
//! Invariants:
//! 1. A region is delivered only after the CRC of every extent was verified, against the manifest
//!    whose digest the commit record holds.
//! 2. A view is of one (step, epoch); containers of two checkpoints are never mixed.
//! 3. A rank gets the data of the same-numbered rank only if the number of ranks is unchanged.
//!
//! Survives: damaged, missing or foreign files in any copy (another copy is used, or an error names
//! the files). Not here: which candidates there are (`candidates.rs`), parts of several ranks
//! (`all_ranks.rs`).

use crate::directory::epoch::read_claim;
use crate::directory::{Places, RECORD_LIMIT_BYTES};
use crate::encoding::Proof;
use crate::restart::Candidate;
use crate::restart::all_ranks::{AllRanks, Destination, Elastic, Opener};
use crate::restart::boxes::ArrayBox;
use crate::restart::memory::AgentMemory;
use crate::restart::reader::{Reader, holder_of, listed};
use crate::restart::shared::SharedReads;
use orcheck_format::disk::{CommitRecord, ContainerRef, FileName, RegionRecord};
use orcheck_format::sabotage::{Switch, off};
use orcheck_format::{Detail, Error, ErrorKind, Level, Rank, Result, count};
use orcheck_io::disk::{Dir, read_small};
use orcheck_io::memory::Span;
use std::collections::BTreeSet;
use std::sync::Arc;

/// One rank's view of a candidate, open at every level where that is possible.
pub struct RankView {
    rank: Rank,
    copies: Vec<Copy>,
    notes: Vec<String>,
}

struct Copy {
    level: Level,
    found: FoundRecord,
    /// The container with what this rank stored; `None` if another number of ranks wrote it.
    own: Option<Reader>,
    /// What all ranks stored, opened when first needed; or why that is not possible.
    all: Option<std::result::Result<AllRanks<'static>, Error>>,
    /// Opens a container.
    open: Arc<Opener<'static>>,
    /// Where other ranks of the node find what this one has read.
    shared: Option<Arc<SharedReads>>,
    /// What the node's agent has in memory.
    memory: Option<Arc<AgentMemory>>,
}

impl Copy {
    fn all_ranks(&mut self) -> Result<&mut AllRanks<'static>> {
        let all = match self.all.take() {
            Some(all) => all,
            None => {
                let mut found = AllRanks::find(&self.found.record, Arc::clone(&self.open));
                if let (Ok(all), Some(shared)) = (&mut found, &self.shared) {
                    all.share(shared);
                }
                if let (Ok(all), Some(memory)) = (&mut found, &self.memory) {
                    all.recall(memory);
                }
                found.map_err(|unread| unread.error)
            }
        };
        self.all.insert(all).as_mut().map_err(|error| error.clone())
    }

    /// Whether it merely lacks what other nodes have: a node's own directory holds no more.
    fn is_of_one_node(&self, error: &Error) -> bool {
        self.level != Level::Global && error.kind() == ErrorKind::NotFound
    }

    /// Whether it has what this rank needs (without a part of its own, everything), and is of as
    /// many ranks as another copy.
    fn is_complete(&mut self, other: Option<&Self>) -> Result<()> {
        let world_size = |copy: &Self| copy.found.record.world_size;
        if other.is_some_and(|other| world_size(other) != world_size(self)) {
            return Err(Error::corrupt(
                "the record names another number of ranks than that of another level",
            ));
        }
        if self.own.is_some() {
            return Ok(());
        }
        let ranks = count(self.found.record.world_size.into(), "rank");
        let opened = self.all_ranks().map(|_| ());
        opened.map_err(|error| match self.is_of_one_node(&error) {
            true => other_nodes_needed(self.level, &ranks, &error),
            false => error,
        })
    }

    fn region(&self, rank: Rank, name: &str) -> Option<&RegionRecord> {
        self.own.as_ref()?.region(rank, name)
    }
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
    /// Opens rank `rank`'s part of a candidate, or everything if a run of another number of ranks
    /// wrote it. A copy that is damaged or not believed is skipped.
    ///
    /// # Errors
    /// NotFound if it was never completely committed: this node's directories belonged to that run
    /// and hold no record of it. Invalid if a key is missing; otherwise the reason why no level has
    /// it.
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
        // Levels to which the step may not have gone, or that hold only what this node's ranks
        // stored, where all is needed: nothing to tell while there is another copy.
        let mut unseen = Vec::new();
        let levels = levels_of(places, candidate)?;
        for &level in &levels {
            match open_copy(places, (candidate, level), rank, world_size, &mut notes) {
                Ok(Some(mut copy)) => match copy.is_complete(copies.first()) {
                    Ok(()) => copies.push(copy),
                    Err(error) if level != Level::Global && error.is(Detail::NotGiven) => {
                        unseen.push(error.at(format!("level {level}")))
                    }
                    Err(error) => errors.push(error.at(format!("level {level}"))),
                },
                Ok(None) => {
                    let known = was_there(places, candidate, level);
                    never += usize::from(known);
                    let what = if known {
                        "no record that it was committed there"
                    } else {
                        "nothing of the run that took it"
                    };
                    let home = home_of(places, level);
                    let error = Error::not_found(format!("level {level}: {home} holds {what}"));
                    // Not every step goes to every level.
                    match known {
                        true => unseen.push(error),
                        false => errors.push(error),
                    }
                }
                // A newer version wrote it: damage to others is no reason to use an older step.
                Err(error) if error.kind() == ErrorKind::Unsupported => return Err(error),
                Err(error) => errors.push(error.at(format!("level {level}"))),
            }
        }
        if copies.is_empty() {
            errors.append(&mut unseen);
            return Err(none_open(&errors, never == levels.len()));
        }
        // Another copy is used, so their next steps no longer apply.
        notes.extend(errors.iter().map(Error::what));
        Ok(Self {
            rank,
            copies,
            notes,
        })
    }

    /// From now on, extents that several ranks of the node need are read once.
    pub fn share(&mut self, shared: &Arc<SharedReads>) {
        for copy in &mut self.copies {
            copy.shared = Some(Arc::clone(shared));
            if let Some(own) = &mut copy.own {
                own.share(Some(shared));
            }
            if let Some(Ok(all)) = &mut copy.all {
                all.share(shared);
            }
        }
    }

    /// From now on, extents are taken from the memory of the node's agent if they are there.
    pub fn recall(&mut self, memory: &Arc<AgentMemory>) {
        for copy in &mut self.copies {
            copy.memory = Some(Arc::clone(memory));
            if let Some(own) = &mut copy.own {
                own.recall(Some(memory));
            }
            if let Some(Ok(all)) = &mut copy.all {
                all.recall(memory);
            }
        }
    }

    /// What was skipped or repaired so far; each note is returned once.
    pub fn take_notes(&mut self) -> Vec<String> {
        let mut notes = std::mem::take(&mut self.notes);
        for copy in &mut self.copies {
            notes.extend(copy.own.iter().flat_map(Reader::take_notes));
            notes.extend(copy.all.iter_mut().flatten().flat_map(AllRanks::take_notes));
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
        self.copies[0].own.as_ref()?.own_file().other_node()
    }

    /// The number of ranks that wrote it.
    #[must_use]
    pub fn written_by(&self) -> u32 {
        self.copies[0].found.record.world_size
    }

    /// The regions that this rank stored; empty if another number of ranks did.
    #[must_use]
    pub fn regions(&self) -> &[RegionRecord] {
        let own = self.copies[0].own.as_ref();
        let mut ranks = own.into_iter().flat_map(|own| &own.manifest().ranks);
        let record = ranks.find(|record| record.rank == self.rank);
        record.map_or(&[][..], |record| &record.regions)
    }

    /// Names of the regions this rank stored; of all ranks, if there were more or fewer of them.
    #[must_use]
    pub fn region_names(&self) -> Vec<String> {
        let copy = &self.copies[0];
        if copy.own.is_some() {
            return self
                .regions()
                .iter()
                .map(|region| region.name.clone())
                .collect();
        }
        let all = copy.all.iter().flatten();
        all.flat_map(|all| all.names().map(str::to_owned)).collect()
    }

    /// A region as this rank stored it; `None` if it did not, or another number of ranks did.
    #[must_use]
    pub fn region(&self, name: &str) -> Option<&RegionRecord> {
        self.copies[0].region(self.rank, name)
    }

    /// What other ranks can read of a region, once everything is open: after
    /// [`Self::open_all`], or if another number of ranks wrote it. `None` if no rank stored it.
    ///
    /// # Errors
    /// As [`AllRanks::elastic`].
    #[must_use]
    pub fn elastic(&self, name: &str) -> Option<Result<Elastic>> {
        let mut opened = self.copies.iter().filter_map(|copy| copy.all.as_ref());
        opened.find_map(|all| all.as_ref().ok())?.elastic(name)
    }

    /// Opens what all ranks stored, at the first level where that is possible.
    ///
    /// # Errors
    /// The last level's error.
    pub fn open_all(&mut self) -> Result<()> {
        self.of_all_ranks(&mut |_, _| Ok(()))
    }

    /// Reads boxes of a global array or list, verified, as [`Self::read`] does.
    ///
    /// # Errors
    /// As [`Self::read`], and those of [`GlobalArray::plan`](super::GlobalArray::plan).
    pub fn read_boxes(
        &mut self,
        name: &str,
        windows: &[ArrayBox],
        target: &mut dyn Destination,
    ) -> Result<()> {
        self.of_all_ranks(&mut |all, damage| {
            let array = all.array(name)?;
            let plan = array.plan(windows)?;
            let read = all.read(&array, &plan, target, damage);
            read.map_err(|unread| unread.error)
        })
    }

    /// Reads a region that is the same on all ranks, as [`Self::read`] does.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn read_same(&mut self, name: &str, into: Span) -> Result<()> {
        self.same(name, Some(into))
    }

    /// Verifies a region as [`Self::read_same`] does, and keeps nothing of it.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn prove_same(&mut self, name: &str) -> Result<()> {
        self.same(name, None)
    }

    fn same(&mut self, name: &str, into: Option<Span>) -> Result<()> {
        // Ranks that share what they read begin at the same place.
        let shared = self.copies.iter().find_map(|copy| copy.shared.as_ref());
        let first = shared.map_or(self.rank.0 as usize, |shared| shared.node());
        self.of_all_ranks(&mut |all, damage| {
            let read = all.read_same(name, first, into, damage);
            read.map_err(|unread| unread.error)
        })
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

    /// Verifies a region as [`Self::read`] does, and keeps nothing of it.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn prove(&mut self, name: &str) -> Result<()> {
        self.any_level(name, &mut |reader, rank, region, damage| {
            reader.prove_region_of_any_copy(rank, region, damage)
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
        let rank = self.rank;
        self.first_good(&mut |copy, damage| {
            let own = copy.own.as_ref();
            let stored = own.and_then(|own| Some((own, own.region(rank, name)?)));
            Some(match stored {
                Some((own, region)) => work(own, rank, region, damage),
                None => Err(Error::not_found(format!(
                    "region '{name}' of rank {rank} is not stored"
                ))),
            })
        })
    }

    fn of_all_ranks(
        &mut self,
        work: &mut dyn FnMut(&mut AllRanks<'static>, Damage<'_>) -> Result<()>,
    ) -> Result<()> {
        let mut unseen = None;
        let done = self.first_good(&mut |copy, damage| {
            let level = copy.level;
            if let Err(error) = copy.all_ranks().map(|_| ())
                && copy.is_of_one_node(&error)
            {
                let ranks = count(copy.found.record.world_size.into(), "rank");
                let needed = other_nodes_needed(level, &ranks, &error);
                unseen = Some(needed.at(format!("level {level}")));
                return None;
            }
            Some(copy.all_ranks().and_then(|all| work(all, damage)))
        });
        // What is missing is no start from nothing.
        done.map_err(|error| match (error.kind(), unseen) {
            (ErrorKind::Internal, Some(unseen)) => unseen,
            (ErrorKind::NotFound, _) => Error::corrupt(error.message()),
            _ => error,
        })
    }

    /// Does `work` with the copy of one level after the other until one is good; says what was
    /// damaged before that. `None` passes over a copy in silence.
    fn first_good(
        &mut self,
        work: &mut dyn FnMut(&mut Copy, Damage<'_>) -> Option<Result<()>>,
    ) -> Result<()> {
        let mut last = Error::internal("no level is open");
        let mut notes = Vec::new();
        for copy in &mut self.copies {
            let level = copy.level;
            let note = |error: &Error| {
                let error = error.clone().at(format!("level {level}"));
                format!("another copy is used: {}", error.what())
            };
            // One finding suffices as a hint to check the storage; a file may have thousands.
            let mut damaged = None;
            let mut damage = |error: &Error| {
                damaged.get_or_insert_with(|| note(error));
            };
            let done = work(copy, &mut damage);
            notes.extend(damaged);
            let Some(done) = done else {
                continue;
            };
            match done {
                Ok(()) => {
                    // What is verified before it is read is found damaged twice.
                    notes.retain(|note| !self.notes.contains(note));
                    self.notes.extend(notes);
                    return Ok(());
                }
                Err(error) if off(Switch::OtherCopy) => return Err(error),
                Err(error) => {
                    notes.push(note(&error));
                    last = error.at(format!("level {level}"));
                }
            }
        }
        Err(last)
    }
}

/// The error that a node's own directory lacks other nodes' parts, which nobody can see here.
fn other_nodes_needed(level: Level, ranks: &str, error: &Error) -> Error {
    let avoids = match level {
        Level::Node => "; with the option peers, nodes read each other's",
        _ => "",
    };
    Error::unavailable(format!(
        "{ranks} wrote it, in other parts, so the parts of all nodes are needed: {}",
        error.what()
    ))
    .with(Detail::NotGiven)
    .next(format!(
        "restart with {ranks} in the same parts; if `orcheck show` says that any number of ranks can restart, copy the step to where all nodes see it (`orcheck copy --to global`){avoids}"
    ))
}

/// Why no level has the candidate; `never`: no directory of its run holds a record of it.
fn none_open(errors: &[Error], never: bool) -> Error {
    // This is not damage: with the key it can be read.
    if let Some(error) = errors.iter().find(|e| e.kind() == ErrorKind::Invalid) {
        return error.clone();
    }
    let kind = match errors.last().map_or(ErrorKind::NotFound, Error::kind) {
        // Breaks if: a step that was never completely committed counts as damage; a job that was
        // killed during its first commit could not start again without help.
        _ if never => ErrorKind::NotFound,
        ErrorKind::NotFound => ErrorKind::Corrupt,
        kind => kind,
    };
    let text: Vec<String> = errors.iter().map(Error::what).collect();
    let error = Error::new(kind, text.join("; "));
    if errors.iter().any(|e| e.is(Detail::Unauthenticated)) {
        return error.with(Detail::Unauthenticated);
    }
    let not_given = errors.iter().find(|e| e.is(Detail::NotGiven));
    match not_given.and_then(Error::next_step) {
        Some(next) => error.with(Detail::NotGiven).next(next),
        None => error,
    }
}

/// Reads a region of a rank, and reports what was damaged in one copy if another one was good.
type Work<'w> = dyn FnMut(&Reader, Rank, &RegionRecord, Damage<'_>) -> Result<()> + 'w;

/// Is called with what was damaged in one copy where another one was good.
type Damage<'d> = &'d mut dyn FnMut(&Error);

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
    let record = Arc::new(found.record.clone());
    let (trust, proof) = (Arc::clone(&places.trust), found.proof);
    let of_record = Arc::clone(&record);
    let open = move |container: &ContainerRef| {
        Reader::open_trusting(&dirs, &of_record, container, (&trust, proof))
    };
    let mut copy = Copy {
        level,
        found,
        own: None,
        all: None,
        open: Arc::new(open),
        shared: None,
        memory: None,
    };
    // Breaks if: a rank takes what the rank of its number stored; the others' would be lost.
    if record.world_size == world_size || off(Switch::RankCount) {
        let own = (copy.open)(holder_of(&record, rank)?)?;
        if own.manifest().ranks.iter().all(|held| held.rank != rank) {
            let file = own.own_file().name();
            return Err(Error::corrupt(format!("it does not hold rank {rank}")).at(file));
        }
        copy.own = Some(own);
    }
    Ok(Some(copy))
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
