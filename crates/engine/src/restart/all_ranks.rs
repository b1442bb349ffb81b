//! Reads what all ranks stored, for a program whose ranks hold other parts of it.
//!
//! How: every container's manifest says what its ranks stored. A box of a global array is read by
//! visiting the parts that it touches, and of these only the extents that hold some of its
//! elements; every extent is verified whole before a byte of it is used.
//!
//! Invariants:
//! 1. A box is filled only with elements that some rank stored and that were verified.
//! 2. An element comes from the lowest rank that has it; what other ranks stored of it is not read.
//! 3. In addition to the target, memory holds one extent, a description of every region of every
//!    rank, and the manifests of the containers that are open, of at most [`MOST_OPEN`] files.
//! 4. Every rank of the checkpoint is in a container, or nothing is read.
//!
//! Survives: damage that another copy in the same places does not have. Not here: which checkpoint
//! and which level (`view.rs`), who has which elements (`array.rs`).

use super::array::{ArrayPart, GlobalArray, ReadPlan, StoredPart, Taken};
use super::boxes::Run;
use super::memory::AgentMemory;
use super::reader::{Reader, Wanted};
use super::shared::SharedReads;
use orcheck_format::disk::{CommitRecord, ContainerRef, FLAG_SAME, RegionRecord};
use orcheck_format::sabotage::{Switch, off};
use orcheck_format::{Error, ErrorKind, Rank, Result, Step};
use orcheck_io::memory::Span;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

#[cfg(test)]
mod tests;

/// Maximum number of files of containers that are open at the same time; one container is open
/// whatever it has.
const MOST_OPEN: usize = 16;

/// Opens a container of the checkpoint.
pub type Opener<'o> = dyn Fn(&ContainerRef) -> Result<Reader> + Send + Sync + 'o;

/// An error, and the file of the container that could not be read.
#[derive(Debug)]
pub struct Unread {
    /// The container's file name; `None` if the error is about the region as a whole.
    pub file: Option<String>,
    /// What went wrong.
    pub error: Error,
}

impl From<Error> for Unread {
    fn from(error: Error) -> Self {
        Self { file: None, error }
    }
}

/// Where the elements of boxes go: one box after the other, each packed in C order.
pub trait Destination {
    /// Memory in which these packed bytes lie one after the other, if they do. They may be written
    /// there before they are verified.
    fn memory(&mut self, bytes: Range<u64>) -> Option<Span>;
    /// Takes verified bytes from `at` of the packed bytes on: in any order, and some perhaps twice.
    ///
    /// # Errors
    /// Ends the reading.
    fn put(&mut self, at: u64, bytes: &[u8]) -> Result<()>;
}

/// What can be read of a region by ranks that are not those that stored it.
#[derive(Debug)]
pub enum Elastic {
    /// Any box of a global array or list.
    Array(GlobalArray),
    /// All of it, which is the same on every rank.
    Same(RegionRecord),
    /// Nothing: it belongs to each rank alone, such as this one.
    Alone(RegionRecord),
}

/// The regions of all ranks of a checkpoint, at one level.
pub struct AllRanks<'o> {
    step: Step,
    containers: Vec<ContainerRef>,
    open: Arc<Opener<'o>>,
    readers: BTreeMap<usize, Reader>,
    /// Containers whose files are not on another node.
    near: BTreeSet<usize>,
    /// What was skipped or repaired, by containers that are closed again.
    notes: Vec<String>,
    /// Where other ranks of the node find what this one has read.
    shared: Option<Arc<SharedReads>>,
    /// What the node's agent has in memory.
    memory: Option<Arc<AgentMemory>>,
    /// By name, then by rank.
    regions: BTreeMap<String, Vec<Held>>,
}

/// A region of one rank; without its extents.
struct Held {
    rank: Rank,
    container: usize,
    record: RegionRecord,
}

impl<'o> AllRanks<'o> {
    /// Opens all containers of a checkpoint, one after the other.
    ///
    /// # Errors
    /// The error of a container; Corrupt if one of the ranks is in none.
    pub fn find(record: &CommitRecord, open: Arc<Opener<'o>>) -> std::result::Result<Self, Unread> {
        let mut this = Self {
            step: record.step,
            containers: record.containers.clone(),
            open,
            readers: BTreeMap::new(),
            near: BTreeSet::new(),
            notes: Vec::new(),
            shared: None,
            memory: None,
            regions: BTreeMap::new(),
        };
        let (mut ranks, mut found) = (BTreeSet::new(), Vec::new());
        for container in 0..this.containers.len() {
            let reader = this.reader(container)?;
            let is_near = reader.own_file().other_node().is_none();
            for rank in &reader.manifest().ranks {
                ranks.insert(rank.rank);
                found.extend(rank.regions.iter().map(|region| Held {
                    rank: rank.rank,
                    container,
                    record: without_extents(region),
                }));
            }
            this.near.extend(is_near.then_some(container));
        }
        // Breaks if: it is not asked; the items of a list that the rank had would be left out.
        let missing = (0..record.world_size)
            .map(Rank)
            .find(|rank| !ranks.contains(rank));
        if let Some(missing) = missing
            && !off(Switch::AllRanksThere)
        {
            let why = format!("no container of step {} holds rank {missing}", this.step);
            return Err(Error::corrupt(why).next("use an older step").into());
        }
        found.sort_by_key(|held| held.rank);
        for held in found {
            let name = held.record.name.clone();
            this.regions.entry(name).or_default().push(held);
        }
        Ok(this)
    }

    /// From now on, extents that other ranks of the node may need are read through `shared`.
    pub(super) fn share(&mut self, shared: &Arc<SharedReads>) {
        for reader in self.readers.values_mut() {
            reader.share(Some(shared));
        }
        self.shared = Some(Arc::clone(shared));
    }

    /// From now on, extents are taken from this memory if they are there.
    pub(super) fn recall(&mut self, memory: &Arc<AgentMemory>) {
        for reader in self.readers.values_mut() {
            reader.recall(Some(memory));
        }
        self.memory = Some(Arc::clone(memory));
    }

    /// Names of the regions that some rank stored.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.regions.keys().map(String::as_str)
    }

    /// The global array or list of this name.
    ///
    /// # Errors
    /// NotFound, listing the arrays that there are; Invalid if it is no part of a global array on
    /// some rank, or if ranks declared different arrays; Corrupt if parts contradict their shapes.
    pub fn array(&self, name: &str) -> Result<GlobalArray> {
        let Some(held) = self.regions.get(name) else {
            return Err(self.no_array(name));
        };
        // All ranks have the same elements.
        let len = if is_same(held) { 1 } else { held.len() };
        let parts: Vec<StoredPart<'_>> = (stored_first(held).take(len))
            .map(|held| StoredPart {
                rank: held.rank,
                container: held.container,
                region: &held.record,
            })
            .collect();
        GlobalArray::of(self.step, name, &parts)
    }

    /// What of a region can be read by other ranks; `None` if no rank stored it.
    ///
    /// # Errors
    /// As [`Self::array`].
    pub fn elastic(&self, name: &str) -> Option<Result<Elastic>> {
        let held = self.regions.get(name)?;
        if let Some(stored) = stored_first(held).next()
            && is_same(held)
        {
            return Some(Ok(Elastic::Same(stored.record.clone())));
        }
        if held.iter().any(|held| held.record.is_part()) {
            return Some(self.array(name).map(Elastic::Array));
        }
        let first = held.first()?;
        Some(Ok(Elastic::Alone(first.record.clone())))
    }

    fn no_array(&self, name: &str) -> Error {
        let arrays = self.regions.iter();
        let there: Vec<&str> = arrays
            .filter(|(_, held)| held.iter().any(|held| held.record.is_part()))
            .map(|(name, _)| name.as_str())
            .collect();
        Error::not_found(match &there[..] {
            [] => format!(
                "step {} has no global array; '{name}' was asked for",
                self.step
            ),
            there => format!(
                "step {} has no global array '{name}'; it has: {}",
                self.step,
                there.join(", ")
            ),
        })
        .next("see with `orcheck show` what the checkpoint holds")
    }

    /// What was skipped or repaired so far; each note is returned once.
    pub fn take_notes(&mut self) -> Vec<String> {
        let mut notes = std::mem::take(&mut self.notes);
        notes.extend(self.readers.values().flat_map(Reader::take_notes));
        notes
    }

    fn reader(&mut self, container: usize) -> std::result::Result<&Reader, Unread> {
        if !self.readers.contains_key(&container) {
            let files = |readers: &BTreeMap<usize, Reader>| -> usize {
                readers
                    .values()
                    .map(|reader| reader.manifest().stores.len())
                    .sum()
            };
            while files(&self.readers) >= MOST_OPEN {
                self.close_one();
            }
            let found = self.containers.get(container);
            let found = found
                .ok_or_else(|| Error::internal(format!("there is no container {container}")))?;
            let file = found.file.clone();
            let mut opened = (self.open)(found);
            // It may be the limit of open files that is in the way.
            if opened
                .as_ref()
                .is_err_and(|e| e.kind() == ErrorKind::Unavailable)
            {
                let found = found.clone();
                while !self.readers.is_empty() {
                    self.close_one();
                }
                opened = (self.open)(&found);
            }
            let mut opened = opened.map_err(|error| Unread {
                file: Some(file),
                error,
            })?;
            opened.share(self.shared.as_ref());
            opened.recall(self.memory.as_ref());
            self.readers.insert(container, opened);
        }
        let opened = self.readers.get(&container);
        opened.ok_or_else(|| Error::internal("the container that was opened is gone").into())
    }

    fn close_one(&mut self) {
        if let Some((_, closed)) = self.readers.pop_first() {
            self.notes.extend(closed.take_notes());
        }
    }

    /// Reads what a plan of the array takes into `target`; `damage` is called with what was bad
    /// where another copy was good. After an error, what the target holds is undefined.
    ///
    /// # Errors
    /// The error of a container or of the target.
    pub fn read(
        &mut self,
        array: &GlobalArray,
        plan: &ReadPlan,
        target: &mut dyn Destination,
        damage: &mut dyn FnMut(&Error),
    ) -> std::result::Result<(), Unread> {
        let mut parts = RankPieces::new(array, plan, target);
        while let Some((part, mut pieces)) = parts.next()? {
            let reader = self.reader(part.container)?;
            let region = reader.region(part.rank, array.name());
            let read = region
                .ok_or_else(|| {
                    let rank = part.rank;
                    Error::corrupt(format!("rank {rank} has no region '{}' now", array.name()))
                })
                .and_then(|region| {
                    reader.take_from_any_copy((part.rank, region), &mut pieces, damage)
                });
            read.map_err(|error| Unread {
                file: Some(reader.own_file().name().to_owned()),
                error,
            })?;
        }
        Ok(())
    }

    /// Reads a region that is the same on all ranks, from the first container at or behind position
    /// `first` that stores it and can be read: ranks that begin at different ones share the work.
    /// `None`: it is only verified.
    ///
    /// # Errors
    /// The last container's error.
    pub fn read_same(
        &mut self,
        name: &str,
        first: usize,
        into: Option<Span>,
        damage: &mut dyn FnMut(&Error),
    ) -> std::result::Result<(), Unread> {
        let held = self.regions.get(name).into_iter().flatten();
        let mut stored: Vec<(Rank, usize)> = held
            .filter(|held| held.record.same_as.is_none())
            .map(|held| (held.rank, held.container))
            .collect();
        let len = stored.len().max(1);
        stored.rotate_left(first % len);
        // Those of this node first: other nodes' files come over a network.
        stored.sort_by_key(|(_, container)| !self.near.contains(container));
        let mut last = Unread::from(Error::not_found(format!("no rank stored region '{name}'")));
        let mut bad: Vec<Error> = Vec::new();
        for (rank, container) in stored {
            let read = self.reader(container).and_then(|reader| {
                let region = reader.region(rank, name).ok_or_else(|| {
                    Error::corrupt(format!("rank {rank} has no region '{name}' now"))
                });
                let read = region.and_then(|region| match into {
                    Some(into) => reader.read_region_of_any_copy(rank, region, into, damage),
                    None => reader.prove_region_of_any_copy(rank, region, damage),
                });
                read.map_err(|error| Unread {
                    file: Some(reader.own_file().name().to_owned()),
                    error,
                })
            });
            match read {
                Ok(()) => {
                    bad.iter().for_each(damage);
                    return Ok(());
                }
                Err(unread) => {
                    bad.push(unread.error.clone());
                    last = unread;
                }
            }
        }
        Err(last)
    }
}

/// Whether all ranks hold the same bytes.
fn is_same(held: &[Held]) -> bool {
    held.iter().all(|held| held.record.flags & FLAG_SAME != 0)
}

/// Those that store the bytes, followed by those that only hold the same.
fn stored_first(held: &[Held]) -> impl Iterator<Item = &Held> {
    let stored = |held: &&Held| held.record.same_as.is_none();
    held.iter()
        .filter(stored)
        .chain(held.iter().filter(move |held| !stored(held)))
}

fn without_extents(region: &RegionRecord) -> RegionRecord {
    RegionRecord {
        name: region.name.clone(),
        local: region.local.clone(),
        global: region.global.clone(),
        offset: region.offset.clone(),
        boxes: region.boxes.clone(),
        extents: Vec::new(),
        ..*region
    }
}

/// What each rank stored of what a plan takes, rank by rank.
struct RankPieces<'t> {
    array: &'t GlobalArray,
    /// What is left of the plan.
    taken: &'t [Taken],
    target: &'t mut dyn Destination,
}

impl<'t> RankPieces<'t> {
    fn new(array: &'t GlobalArray, plan: &'t ReadPlan, target: &'t mut dyn Destination) -> Self {
        Self {
            array,
            taken: &plan.taken,
            target,
        }
    }

    /// A part of the next rank, and what is taken from all its parts.
    fn next(&mut self) -> Result<Option<(&'t ArrayPart, Pieces<'_>)>> {
        let Some(first) = self.taken.first() else {
            return Ok(None);
        };
        let parts = self.array.parts();
        let part = parts.get(first.part);
        let part = part.ok_or_else(|| Error::internal("a plan of another array"))?;
        let is_of_rank = |taken: &Taken| {
            parts
                .get(taken.part)
                .is_some_and(|other| other.rank == part.rank)
        };
        let len = self.taken.partition_point(is_of_rank);
        let (taken, left) = self.taken.split_at(len);
        self.taken = left;
        Ok(Some((
            part,
            Pieces {
                parts,
                taken,
                size_bytes: self.array.dtype().size_bytes(),
                target: &mut *self.target,
            },
        )))
    }
}

/// What is taken from the parts of one rank, and where it goes.
struct Pieces<'t> {
    parts: &'t [ArrayPart],
    /// By part.
    taken: &'t [Taken],
    size_bytes: u64,
    target: &'t mut dyn Destination,
}

/// The runs in these bytes of the rank's region, cut to them, in bytes.
fn within<'t>(
    (parts, taken): (&'t [ArrayPart], &'t [Taken]),
    size_bytes: u64,
    bytes: Range<u64>,
) -> impl Iterator<Item = Run> + 't {
    let Range { start, end } = bytes;
    let place = move |taken: &Taken| {
        let part = parts.get(taken.part);
        part.map_or((0, 0), |part| {
            let len_bytes = part.elements.elements() * size_bytes;
            (part.first_byte, part.first_byte + len_bytes)
        })
    };
    let first = taken.partition_point(|taken| place(taken).1 <= start);
    let here = taken.iter().skip(first);
    let here = here.take_while(move |taken| place(taken).0 < end);
    here.flat_map(move |taken| {
        let (base, _) = place(taken);
        let after = taken.runs.after(start.saturating_sub(base) / size_bytes);
        after
            .map(move |run| Run {
                from: base + run.from * size_bytes,
                to: taken.to_byte + run.to * size_bytes,
                len: run.len * size_bytes,
            })
            .take_while(move |run| run.from < end)
            .map(move |run| {
                let first = run.from.max(start);
                Run {
                    from: first,
                    to: run.to + (first - run.from),
                    len: (run.from + run.len).min(end) - first,
                }
            })
    })
}

impl Wanted for Pieces<'_> {
    fn wants(&self, bytes: Range<u64>) -> bool {
        within((self.parts, self.taken), self.size_bytes, bytes)
            .next()
            .is_some()
    }

    fn memory(&mut self, bytes: Range<u64>) -> Option<Span> {
        let mut runs = within((self.parts, self.taken), self.size_bytes, bytes.clone());
        let run = runs.next()?;
        // Breaks if: only one is looked at; boxes that are wanted may have elements in common, and
        // the second one would stay empty.
        if runs.next().is_some() && !off(Switch::WantedTwice) {
            return None;
        }
        let whole = (run.from, run.len) == (bytes.start, bytes.end - bytes.start);
        drop(runs);
        let memory = whole.then(|| self.target.memory(run.to..run.to + run.len));
        memory.flatten()
    }

    fn put(&mut self, at: u64, bytes: &[u8]) -> Result<()> {
        let end = at + bytes.len() as u64;
        for run in within((self.parts, self.taken), self.size_bytes, at..end) {
            let first = (run.from - at) as usize;
            let found = bytes.get(first..first + run.len as usize);
            let found = found.ok_or_else(|| Error::internal("a run outside its extent"))?;
            self.target.put(run.to, found)?;
        }
        Ok(())
    }

    fn in_any_order(&self) -> bool {
        true
    }

    fn runs(&self, bytes: Range<u64>) -> Vec<Range<u64>> {
        let start = bytes.start;
        within((self.parts, self.taken), self.size_bytes, bytes)
            .map(|run| run.from - start..run.from - start + run.len)
            .collect()
    }
}
