//! Copies a committed checkpoint to directories of another level, or to other directories of its
//! own level.
//!
//! How: containers are read and verified as in a restart, and written again one by one under the
//! level of the copy (which is in their header, and in what encryption binds them to). Data to
//! which an incremental checkpoint refers is stored in the copy. The commit record names the run
//! that took the checkpoint. The copy is made under a claim of its own, which is newer than all
//! others there and has no resumed record.
//!
//! ```text
//! plan ─ claim ─ look again ─ remove leftovers ─ containers (temporary names)
//!      ─ claim of the run ─ commit record ─ withdraw the claim
//! ```
//!
//! Invariants:
//! 1. The sources are only read.
//! 2. Existing files stay unchanged until the commit record appears. After a crash at any point,
//!    there is either the whole copy or none; the next copy, or the next run's prune, removes the
//!    rest.
//! 3. A checkpoint that a newer run superseded, or the program rejected, is not copied.
//! 4. Nothing is written where a run is alive, or where a checkpoint needs files of the same names.
//! 5. The copy supersedes nothing: its claim has no resumed record, and is removed once the commit
//!    record exists. If the resume rule would attribute the record to a run that went back, the
//!    copy is refused.
//! 6. Every byte is verified by its checksum, and with a key by its tag, immediately before it is
//!    written.
//!
//! Faults survived: those of `reader.rs`; a full disk, a failed fsync, a directory that is moved
//! away (no record appears); another run that takes over meanwhile.
//!
//! Not here: which checkpoint is meant (callers), what is refused (`copying/allowed.rs`), encoding
//! of one container (`copying/again.rs`), replicas on other nodes (the run that resumes makes
//! them).

mod again;
mod allowed;

use crate::commit::{make_copy_visible, record_of_copy};
use crate::directory::choose::{decide, decision};
use crate::directory::epoch::{
    ClaimLock, Claimant, bring_claim, claim, highest_counter, read_claim, remove_unfinished_claims,
};
use crate::directory::{Catalog, Commit};
use crate::encoding::Trust;
use crate::restart::reader::{Reader, homes};
use crate::upkeep::verify::verify_commit_with;
use again::{Rewriting, rewrite_container};
pub(in crate::upkeep) use allowed::lacking;
use orcheck_format::disk::{
    BLOCK_BYTES, CommitRecord, Compression, ContainerRef, Encoding, FileName,
};
use orcheck_format::sabotage::{Switch, off};
use orcheck_format::{
    Decision, Epoch, Error, ErrorKind, JobName, Level, NodeId, Result, RunId, Step, TargetId,
};
use orcheck_io::clock::Clock;
use orcheck_io::disk::Dir;
use orcheck_io::machine::{effective_uid, host_name, process_id};
use orcheck_io::rng::random_bytes;
use orcheck_placement::Placement;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// Level of the compressor if the source does not say.
const COMPRESS_LEVEL: i32 = 1;

/// Maximum number of attempts to claim the destinations that others win.
const CLAIM_ATTEMPTS: u32 = 20;
/// Time between two attempts to claim the destinations.
const CLAIM_AGAIN: Duration = Duration::from_millis(50);

/// A directory to which the checkpoint is copied. It is created when the copy is carried out.
#[derive(Clone)]
pub struct Destination {
    root: Arc<dyn Dir>,
    below: Vec<String>,
    name: String,
}

impl Destination {
    /// The directory `below` an existing root, called `name` in messages and in the commit record.
    #[must_use]
    pub fn new(root: Arc<dyn Dir>, below: Vec<String>, name: String) -> Self {
        Self { root, below, name }
    }

    /// Its name in the commit record.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    fn open(&self, create: bool) -> Result<Arc<dyn Dir>> {
        let mut dir = Arc::clone(&self.root);
        for name in &self.below {
            let child = dir.child(name, create)?;
            if create {
                // The new entry must survive a power cut before anything below it can.
                dir.sync()?;
            }
            dir = child;
        }
        Ok(dir)
    }

    /// `None` if it does not exist yet.
    pub(crate) fn there(&self) -> Result<Option<Arc<dyn Dir>>> {
        match self.open(false) {
            Ok(dir) => Ok(Some(dir)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// What to copy, and where.
pub struct Order<'a> {
    /// The job.
    pub job: &'a JobName,
    /// The contents of the sources.
    pub catalog: &'a Catalog,
    /// The checkpoint, one of `catalog`.
    pub commit: &'a Commit,
    /// Where to look for its containers.
    pub places: Vec<Arc<dyn Dir>>,
    /// Opens encrypted containers, and encrypts the copy if it has a key.
    pub trust: &'a Arc<Trust>,
    /// The level of the copy: `node` or `global`.
    pub level: Level,
    /// At level `global` by server, at level `node` by node of the checkpoint.
    pub destinations: Vec<Destination>,
    /// How to compress pieces; `None`: as before.
    pub compress: Option<(Compression, i32)>,
    /// How long to wait for a run that has just ended to release the destinations.
    pub patience: Duration,
    /// The directories of `catalog` once more, where their contents are listed elsewhere and may
    /// have changed since.
    pub again: Option<&'a Again<'a>>,
}

/// Returns directories with what they hold now.
pub type Again<'a> = dyn Fn() -> Result<Vec<Arc<dyn Dir>>> + 'a;

/// One container of a copy.
#[derive(Debug, Clone)]
pub struct Planned {
    /// Its name, in the sources and in the copy.
    pub file: String,
    /// Number of its destination.
    pub destination: usize,
    /// Bytes of regions in it.
    pub region_bytes: u64,
    /// Approximate size of its file, and an upper bound unless it compresses worse than before.
    pub file_bytes: u64,
    compress: (Compression, i32),
}

/// The plan of a copy.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The containers, as the commit record names them.
    pub containers: Vec<Planned>,
    /// Whether the copy already exists at this level and is whole, as far as names and lengths
    /// tell.
    pub is_there: bool,
    /// Notes for the user.
    pub notes: Vec<String>,
}

/// A copy that was made.
#[derive(Debug)]
pub struct Copied {
    /// The record that names it.
    pub record: CommitRecord,
    /// Whether it existed before.
    pub was_there: bool,
    /// Notes for the user.
    pub notes: Vec<String>,
}

/// Why a copy was not made.
#[derive(Debug)]
pub struct NotCopied {
    /// The error.
    pub error: Error,
    /// Whether this checkpoint is missing or damaged, so that an older one may be whole. Otherwise
    /// an older one would fail in the same way.
    pub is_lost: bool,
}

impl NotCopied {
    /// An error of what holds this checkpoint.
    fn lost(error: Error) -> Self {
        let kinds = [
            ErrorKind::NotFound,
            ErrorKind::Corrupt,
            ErrorKind::Unavailable,
        ];
        Self {
            is_lost: kinds.contains(&error.kind()),
            error,
        }
    }
}

impl From<Error> for NotCopied {
    fn from(error: Error) -> Self {
        Self {
            error,
            is_lost: false,
        }
    }
}

impl From<NotCopied> for Error {
    fn from(not: NotCopied) -> Self {
        not.error
    }
}

/// The result of what may fail because the checkpoint is missing or damaged.
type OfCopy<T> = std::result::Result<T, NotCopied>;

/// Called with the number of region bytes that are done; an error stops the copy.
pub type Tick<'a> = dyn FnMut(u64) -> Result<()> + 'a;

impl Order<'_> {
    /// Plans the copy, and checks that it is possible; changes nothing.
    ///
    /// # Errors
    /// NotFound, naming the nodes whose directories are missing; Fenced if a newer run superseded
    /// the checkpoint; Invalid for a level to which nothing is copied, for a rejected checkpoint,
    /// or if a checkpoint needs files that would be replaced; NoSpace; Unavailable while a run is
    /// alive there; otherwise the error of the sources.
    pub fn plan(&self, clock: &dyn Clock) -> OfCopy<Plan> {
        self.check_destinations()?;
        let there = self.destinations.iter().map(Destination::there);
        let there: Vec<Option<Arc<dyn Dir>>> = there.collect::<Result<_>>()?;
        let dirs: Vec<Arc<dyn Dir>> = there.iter().flatten().cloned().collect();
        let known = self.look(&dirs)?;
        let is_there = known.is_some();
        if !is_there {
            self.wait_for_run(&dirs, clock)?;
        }
        let recorded = known.map_or(0, |known| known.copies.len());
        let mut notes = Vec::new();
        if is_there && recorded < there.len() {
            let all = there.len();
            notes.push(format!(
                "its commit record is in {recorded} of {all} directories that are copied to"
            ));
        }
        let containers = match is_there {
            true => Vec::new(),
            false => self.inspect(&mut notes)?,
        };
        self.check_room(&there, &containers)?;
        Ok(Plan {
            containers,
            is_there,
            notes,
        })
    }

    /// Makes the copy, or completes what an earlier one left. `tick` is called with the number of
    /// region bytes that are done.
    ///
    /// # Errors
    /// As [`Self::plan`], the error of a directory, or that of `tick`. No new commit record then
    /// exists, unless a directory failed while the record was written to several.
    pub fn carry_out(&self, plan: &Plan, clock: &dyn Clock, tick: &mut Tick<'_>) -> OfCopy<Copied> {
        let dirs = self.destinations.iter().map(|one| one.open(true));
        let dirs: Vec<Arc<dyn Dir>> = dirs.collect::<Result<_>>()?;
        if let Some(there) = self.look(&dirs)?
            && there.copies.len() == dirs.len()
        {
            // Nothing is to be written, so a live run is not in the way.
            self.prove(&dirs, &there)?;
            return Ok(Copied {
                record: there.record,
                was_there: true,
                notes: plan.notes.clone(),
            });
        }
        let mut held = self.hold(&dirs, clock)?;
        let counter = held.epoch.counter;
        for dir in &dirs {
            // Best effort: it is in nobody's way, and the next run prunes it.
            let _ = remove_unfinished_claims(dir.as_ref());
        }
        let mut notes = held.notes.clone();
        notes.extend(plan.notes.iter().cloned());
        // From here on nobody else changes anything there.
        let there = self.look(&dirs)?;
        let was_there = there.is_some();
        let copy = match there {
            Some(there) => {
                self.prove(&dirs, &there)?;
                there.record
            }
            None => {
                self.clear(&dirs)?;
                let written = self.write(plan, &dirs, counter, clock, tick, &mut notes);
                written.map_err(|mut not| {
                    // The next copy or prune removes what cannot be removed now.
                    let _ = self.clear(&dirs);
                    not.error = self.unless_removed(not.error);
                    not
                })?
            }
        };
        if let Err(error) = self.look_again(&dirs) {
            if !was_there {
                let _ = self.clear(&dirs);
            }
            return Err(error.into());
        }
        let known = self.bring_claim(&dirs)?;
        self.bring_mark(&dirs, clock)?;
        make_copy_visible(&dirs, &copy, held.epoch, self.trust)?;
        self.read_back(&dirs, &copy)?;
        if !known {
            // The directories must remember the job.
            held.confirm();
        }
        Ok(Copied {
            record: copy,
            was_there,
            notes,
        })
    }

    /// Checks once more that no newer run has superseded the checkpoint: writing takes hours.
    fn look_again(&self, dirs: &[Arc<dyn Dir>]) -> Result<()> {
        // Breaks if: it is left out; the copy would be the newest step of a job that went back.
        if off(Switch::CopyLastLook) {
            return Ok(());
        }
        let sources = match self.again {
            Some(again) => again()?,
            None => self.catalog.places().to_vec(),
        };
        let all = Catalog::scan_trusting(self.job, &[&sources, dirs].concat(), self.trust)?;
        self.require_counting(&all)
    }

    /// Claims the destinations, once no run and no other copy is alive there.
    fn hold(&self, dirs: &[Arc<dyn Dir>], clock: &dyn Clock) -> Result<ClaimLock> {
        let record = &self.commit.record;
        let claimant = Claimant {
            job: self.job.clone(),
            run: RunId(random_bytes()),
            host: host_name(),
            pid: process_id(),
            uid: effective_uid(),
            world_size: record.world_size,
            nodes: record.nodes.clone(),
            trust: Arc::clone(self.trust),
        };
        let next = || {
            let sources = highest_counter(self.catalog.places())?;
            Ok::<_, Error>(sources.max(highest_counter(dirs)?) + 1)
        };
        let mut lost = 0;
        loop {
            // Breaks if: this follows the look at who is alive; of two copies that begin at the
            // same moment, both would hold a claim, and remove each other's files.
            let mut counter = next()?;
            self.wait_for_run(dirs, clock)?;
            if off(Switch::CopyCountsFirst) {
                counter = next()?;
            }
            match claim(dirs, &claimant, counter, clock) {
                // Another one claimed meanwhile: it is waited for as if it had been there.
                Err(error) if error.kind() == ErrorKind::Fenced && lost < CLAIM_ATTEMPTS => {
                    lost += 1;
                    clock.sleep(CLAIM_AGAIN);
                }
                held => return held,
            }
        }
    }

    fn key(&self) -> (Step, Epoch) {
        (self.commit.record.step, self.commit.record.epoch)
    }

    fn is_of_it(&self, name: &FileName) -> bool {
        let (step, epoch) = self.key();
        name.checkpoint() == Some((step, epoch.counter, epoch.run.short_bytes()))
    }

    /// Verifies an existing copy byte for byte.
    fn prove(&self, dirs: &[Arc<dyn Dir>], there: &Commit) -> OfCopy<()> {
        let of = (self.trust, there.proof);
        let verdict = verify_commit_with(dirs, &there.record, of, &mut |_, _| {})?;
        match verdict.findings().find(|finding| finding.fatal) {
            None => Ok(()),
            Some(finding) => Err(NotCopied::lost(again_there(
                Error::new(finding.kind, finding.message.clone()),
                there.record.step,
            ))),
        }
    }

    /// Opens every container, so that missing ones are known before anything is written.
    fn inspect(&self, notes: &mut Vec<String>) -> OfCopy<Vec<Planned>> {
        let record = &self.commit.record;
        let (mut planned, mut missing) = (Vec::new(), BTreeMap::new());
        let mut older: BTreeMap<String, bool> = BTreeMap::new();
        for container in &record.containers {
            let reader = match self.reader(container) {
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    missing.insert(container.node, container);
                    continue;
                }
                opened => opened.map_err(NotCopied::lost)?,
            };
            notes.extend(reader.take_notes());
            let (mut region_bytes, mut stored_bytes, mut records) = (0u64, 0u64, 0u64);
            let mut compression = Compression::None;
            let regions = reader
                .manifest()
                .ranks
                .iter()
                .flat_map(|rank| &rank.regions);
            for region in regions {
                records += 1;
                for extent in &region.extents {
                    region_bytes += extent.len_bytes;
                    stored_bytes += extent.stored_len_bytes;
                    records += 1;
                    let found = Encoding::from_code(extent.encoding)?.compression;
                    if found != Compression::None {
                        compression = found;
                    }
                    let Some(name) = &extent.container else {
                        continue;
                    };
                    let is_there = match older.get(name) {
                        Some(known) => *known,
                        None => {
                            let mut holds = self.places.iter().map(|dir| dir.holds(name));
                            let found = holds.any(|found| found.is_ok_and(|found| found));
                            *older.entry(name.clone()).or_insert(found)
                        }
                    };
                    if !is_there {
                        missing.insert(container.node, container);
                    }
                }
            }
            let compress = self.compress.unwrap_or((compression, COMPRESS_LEVEL));
            let data_bytes = match compress.0 {
                kept if kept != Compression::None && kept == compression => stored_bytes,
                _ => region_bytes,
            };
            // An upper bound for headers, records and padding.
            let blocks = 4 + 4 * reader.manifest().ranks.len() as u64;
            planned.push(Planned {
                file: container.file.clone(),
                destination: 0,
                region_bytes,
                file_bytes: data_bytes + blocks * BLOCK_BYTES as u64 + 2 * records * 128,
                compress,
            });
        }
        if !missing.is_empty() {
            let missing = self.missing(missing.into_values().collect());
            return Err(NotCopied::lost(missing));
        }
        self.place(&mut planned)?;
        Ok(planned)
    }

    /// Opens a copy of a container that is verified and, with a key, believed.
    fn reader(&self, container: &ContainerRef) -> Result<Reader> {
        let proven = (self.trust, self.commit.proof);
        Reader::open_trusting(&self.places, &self.commit.record, container, proven)
    }

    /// The error for missing directories of some nodes, with their names.
    fn missing(&self, missing: Vec<&ContainerRef>) -> Error {
        let record = &self.commit.record;
        let name = |node: NodeId| record.nodes.get(node.index()).map_or("?", String::as_str);
        let listed: Vec<String> = missing
            .iter()
            .map(|container| format!("{} ({})", homes(record, container), ranks_of(container)))
            .collect();
        // A directory that was read is not to be given again.
        let is_given = |name: &str| {
            let mut places = self.places.iter();
            places.any(|dir| dir.path().file_name().is_some_and(|own| own == name))
        };
        let wanted = missing.iter().map(|container| {
            let homes = [container.node].into_iter();
            let homes = homes.chain(container.holders.iter().copied()).map(name);
            homes
                .filter(|home| !is_given(home))
                .collect::<Vec<_>>()
                .join(" or ")
        });
        let wanted: BTreeSet<String> = wanted.filter(|homes| !homes.is_empty()).collect();
        let wanted: Vec<String> = wanted.into_iter().collect();
        let next = match (record.level, wanted.is_empty()) {
            (Level::Global, _) => "give all directories of level global".to_owned(),
            (_, true) => {
                "give another directory that holds a copy, or use an older step".to_owned()
            }
            (_, false) => format!(
                "also give the directory of node {}",
                wanted.join(", and that of node ")
            ),
        };
        let which = match (missing.len(), record.containers.len()) {
            (1, 1) => "its only container is".to_owned(),
            (1, all) => format!("1 of its {all} containers is"),
            (some, all) => format!("{some} of its {all} containers are"),
        };
        Error::not_found(format!(
            "step {} at level {} is not complete here: {which} incomplete or missing: {}",
            record.step,
            record.level,
            listed.join("; ")
        ))
        .next(next)
    }

    /// Distributes the containers over the destinations.
    fn place(&self, planned: &mut [Planned]) -> Result<()> {
        let record = &self.commit.record;
        let lanes = match self.level {
            Level::Node => (0..record.nodes.len() as u32)
                .map(|node| vec![TargetId(node)])
                .collect(),
            _ => {
                let mut sizes = vec![0u64; record.nodes.len()];
                for (container, one) in record.containers.iter().zip(planned.iter()) {
                    sizes[container.node.index()] += one.file_bytes;
                }
                let servers: Vec<String> = self
                    .destinations
                    .iter()
                    .map(|one| one.name.clone())
                    .collect();
                Placement::weighted(&record.nodes, &sizes, &servers, None)?.lanes
            }
        };
        for (container, one) in record.containers.iter().zip(planned) {
            let of_node = &lanes[container.node.index()];
            one.destination = of_node[container.writer.index() % of_node.len()].index();
        }
        Ok(())
    }

    /// Removes what earlier copies, or a run that died during its flush, left of this checkpoint;
    /// only if no record names it.
    fn clear(&self, dirs: &[Arc<dyn Dir>]) -> Result<()> {
        for dir in dirs {
            let mut gone = false;
            for entry in dir.list()? {
                let name = match FileName::parse(&entry.name) {
                    Some(FileName::Temporary(target)) => {
                        // NAME.epoch-N: a container on its way.
                        let target = target
                            .rsplit_once(".epoch-")
                            .map(|(name, _)| name.to_owned());
                        target.and_then(|name| FileName::parse(&name))
                    }
                    name => name,
                };
                let is_left = name.is_some_and(|name| {
                    self.is_of_it(&name)
                        && matches!(
                            name,
                            FileName::Container { .. }
                                | FileName::Stripe { .. }
                                | FileName::Parity { .. }
                        )
                });
                if is_left {
                    match dir.remove(&entry.name) {
                        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
                        _ => gone = true,
                    }
                }
            }
            if gone {
                dir.sync()?;
            }
        }
        Ok(())
    }

    /// Writes all containers; returns the record that names them.
    fn write(
        &self,
        plan: &Plan,
        dirs: &[Arc<dyn Dir>],
        counter: u64,
        clock: &dyn Clock,
        tick: &mut Tick<'_>,
        notes: &mut Vec<String>,
    ) -> OfCopy<CommitRecord> {
        let record = &self.commit.record;
        let inspected;
        // It was whole there when it was planned, and no longer is.
        let planned = match plan.containers.is_empty() {
            false => &plan.containers,
            true => {
                inspected = self.inspect(notes)?;
                &inspected
            }
        };
        let mut again = Rewriting::new(self.trust, self.level, counter, clock.unix_ms())?;
        let (mut containers, mut done) = (Vec::new(), 0u64);
        for (container, one) in record.containers.iter().zip(planned) {
            let reader = self.reader(container).map_err(NotCopied::lost)?;
            let server = match self.level {
                Level::Node => TargetId(0),
                _ => TargetId(one.destination as u32),
            };
            let before = done;
            let mut of_it = |bytes: u64| {
                done = before + bytes;
                tick(done)
            };
            let target = (&dirs[one.destination], server);
            containers.push(rewrite_container(
                &mut again,
                &reader,
                target,
                one.compress,
                &mut of_it,
                notes,
            )?);
        }
        let servers = match self.level {
            Level::Node => vec![self.destinations[0].root.path().display().to_string()],
            _ => self
                .destinations
                .iter()
                .map(|one| one.name.clone())
                .collect(),
        };
        Ok(record_of_copy(record, self.level, servers, containers))
    }

    /// Replaces `error` if the run that took the checkpoint is alive and pruned it during the copy.
    fn unless_removed(&self, error: Error) -> Error {
        let record = &self.commit.record;
        let name = FileName::commit(record.step, record.epoch, record.level).to_string();
        let places = self.catalog.places();
        let mut copies = self.commit.copies.iter();
        let is_gone = |place: &usize| places[*place].holds(&name).is_ok_and(|holds| !holds);
        match error.kind() == ErrorKind::NotFound && copies.all(is_gone) {
            false => error,
            true => Error::unavailable(format!(
                "step {} was removed while it was copied",
                record.step
            ))
            .next(
                "copy again, which takes the newest step; to keep a step, use `orcheck keep STEP`",
            ),
        }
    }

    /// Brings along the claim of the run that took the checkpoint, so that the directories remember
    /// the job by it. Returns whether it is there.
    fn bring_claim(&self, dirs: &[Arc<dyn Dir>]) -> Result<bool> {
        let (_, epoch) = self.key();
        let known = self.catalog.claims().iter().map(|(claim, _)| claim);
        let Some(claim) = known.into_iter().find(|claim| claim.epoch == epoch) else {
            return Ok(dirs.iter().all(|dir| {
                read_claim(dir.as_ref(), epoch.counter, self.trust)
                    .is_ok_and(|claim| claim.epoch == epoch)
            }));
        };
        for dir in dirs {
            bring_claim(dir, claim, self.trust)?;
        }
        Ok(true)
    }

    /// Marks the copy to be kept, if the checkpoint is.
    fn bring_mark(&self, dirs: &[Arc<dyn Dir>], clock: &dyn Clock) -> Result<()> {
        let (step, epoch) = self.key();
        if !self.catalog.is_kept(step, epoch) {
            return Ok(());
        }
        let known = self.catalog.mark(step, epoch).cloned();
        let mark =
            known.unwrap_or_else(|| decision(self.job, (step, epoch), Decision::Kept, "", clock));
        decide(dirs, &mark)
    }

    /// Checks that a reader of these directories alone finds the copy.
    fn read_back(&self, dirs: &[Arc<dyn Dir>], copy: &CommitRecord) -> Result<()> {
        let there = Catalog::scan_trusting(self.job, dirs, self.trust)?;
        if there.commits().iter().any(|commit| commit.record == *copy) {
            return Ok(());
        }
        let name = FileName::commit(copy.step, copy.epoch, copy.level).to_string();
        let why = there
            .why_fenced(copy)
            .unwrap_or("it is not among what can be read there");
        Err(
            Error::fenced(format!("{name} was written, and does not count: {why}"))
                .next("see what `orcheck ls` says of these directories"),
        )
    }
}

/// The ranks of a container, for a message: `rank 3`, `ranks 0-2, 8`.
fn ranks_of(container: &ContainerRef) -> String {
    let ranges = container.ranks.iter().map(|&(first, many)| match many {
        0 | 1 => first.to_string(),
        many => format!("{first}-{}", first.0 + many - 1),
    });
    let listed: Vec<String> = ranges.collect();
    let one = container.ranks.iter().map(|(_, many)| many).sum::<u32>() == 1;
    format!("rank{} {}", if one { "" } else { "s" }, listed.join(", "))
}

/// The error for an existing copy that is not good.
fn again_there(error: Error, step: Step) -> Error {
    error
        .at("the directory that is copied to holds this checkpoint already, and it is not whole")
        .next(format!("give all directories of the copy, or remove it there with `orcheck rm {step}` and copy again"))
}
