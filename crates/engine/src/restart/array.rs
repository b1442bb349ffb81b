//! Puts a global array together from the parts that the ranks stored.
//!
//! How: every container's manifest says which boxes of the array it holds. A window of the array is
//! read by visiting the parts that it touches, and of these only the extents that hold some of its
//! elements; every extent is verified whole before a byte of it is used.
//!
//! Invariants:
//! 1. A window is returned only if every element of it was stored by some rank and verified.
//! 2. Where parts overlap, the copy of the lowest rank counts, and the overlap is reported.
//! 3. Memory holds the window, at most 28 bytes per element of it, one extent and the list of
//!    parts; at most [`MOST_OPEN`] containers are open.
//!
//! Survives: damage that another copy does not have. Not here: which checkpoint (`restore.rs`),
//! files and names (the commands).

use super::boxes::ArrayBox;
use super::reader::Reader;
use orcheck_format::disk::{CommitRecord, ContainerRef, RegionKind, RegionRecord};
use orcheck_format::{Dtype, Error, Rank, Result, count};
use std::collections::{BTreeMap, BTreeSet};

/// Maximum number of containers that are open at the same time.
const MOST_OPEN: usize = 64;

/// Opens a container of the checkpoint.
pub type Opener<'o> = dyn Fn(&ContainerRef) -> Result<Reader> + 'o;

/// An error, and the file of the container that could not be read.
#[derive(Debug)]
pub struct Unread {
    /// The container's file name; `None` if the error is about the array as a whole.
    pub file: Option<String>,
    /// What went wrong.
    pub error: Error,
}

/// The part of the array that one rank stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArrayPart {
    /// The rank.
    pub rank: Rank,
    /// Its elements.
    pub elements: ArrayBox,
    /// Position of its container in the commit record.
    container: usize,
}

/// A box of the array, as read.
#[derive(Debug)]
pub struct ArrayWindow {
    /// Its elements, in C order.
    pub bytes: Vec<u8>,
    /// Two ranks whose parts overlap in it, the lower one first.
    pub overlap: Option<(Rank, Rank)>,
}

/// An array that the ranks stored in parts.
pub struct GlobalArray<'c> {
    record: &'c CommitRecord,
    open: Box<Opener<'c>>,
    readers: BTreeMap<usize, Reader>,
    name: String,
    dtype: Dtype,
    shape: Vec<u64>,
    /// By rank.
    parts: Vec<ArrayPart>,
}

impl<'c> GlobalArray<'c> {
    /// Finds the parts of the array `name` in all containers of a checkpoint.
    ///
    /// # Errors
    /// NotFound, listing the arrays that there are; Invalid if the region is no part of a global
    /// array, or if ranks declared different arrays; the error of a container.
    pub fn find(
        record: &'c CommitRecord,
        name: &str,
        open: Box<Opener<'c>>,
    ) -> std::result::Result<Self, Unread> {
        let mut this = Self {
            record,
            open,
            readers: BTreeMap::new(),
            name: name.to_owned(),
            dtype: Dtype::Bytes,
            shape: Vec::new(),
            parts: Vec::new(),
        };
        let mut others = BTreeSet::new();
        let mut alone = None;
        for container in 0..record.containers.len() {
            let (mut found, mut first_alone) = (Vec::new(), None);
            let reader = this.reader(container)?;
            for rank in &reader.manifest().ranks {
                for region in &rank.regions {
                    let global = region.kind == RegionKind::Array && !region.global.is_empty();
                    match (region.name == name, global) {
                        (true, true) => found.push((rank.rank, region.clone())),
                        (true, false) => first_alone = first_alone.or(Some(rank.rank)),
                        (false, true) => {
                            others.insert(region.name.clone());
                        }
                        (false, false) => {}
                    }
                }
            }
            alone = alone.or(first_alone);
            for (rank, region) in found {
                let added = this.add(rank, &region, container);
                added.map_err(|error| Unread { file: None, error })?;
            }
        }
        let refused = match (alone, this.parts.is_empty()) {
            (Some(rank), _) => Err(this.no_part(rank)),
            (None, true) => Err(this.not_there(&others)),
            (None, false) => Ok(()),
        };
        refused.map_err(|error| Unread { file: None, error })?;
        this.parts.sort_by_key(|part| part.rank);
        Ok(this)
    }

    fn add(&mut self, rank: Rank, region: &RegionRecord, container: usize) -> Result<()> {
        if let Some(first) = self.parts.first()
            && (self.dtype, &self.shape) != (region.dtype, &region.global)
        {
            return Err(Error::invalid(format!(
                "array '{}' is {} of {} on rank {}, and {} of {} on rank {rank}",
                self.name,
                shown(&self.shape),
                self.dtype.name(),
                first.rank,
                shown(&region.global),
                region.dtype.name()
            ))
            .next("restore the parts one by one, with --rank and --region"));
        }
        self.dtype = region.dtype;
        self.shape.clone_from(&region.global);
        let elements = ArrayBox::new(&region.offset, &region.local)
            .map_err(|error| error.at(format!("array '{}', rank {rank}", self.name)))?;
        // Breaks if: the box is believed; what is missing of the bytes would be zeros.
        let len_bytes = elements.elements().checked_mul(self.dtype.size_bytes());
        let stored = region.extents.iter().map(|extent| extent.len_bytes);
        let stored = stored.fold(0, u64::saturating_add);
        let whole = region.same_as.is_some() || stored == region.len_bytes;
        if len_bytes != Some(region.len_bytes) || !whole {
            return Err(Error::corrupt(format!(
                "array '{}', rank {rank}: a part of shape {} has {} bytes and stores {stored}",
                self.name,
                shown(&region.local),
                region.len_bytes
            ))
            .next("use an older step"));
        }
        // The rank that stores them has the same elements.
        if region.same_as.is_none() {
            self.parts.push(ArrayPart {
                rank,
                elements,
                container,
            });
        }
        Ok(())
    }

    fn no_part(&self, rank: Rank) -> Error {
        Error::invalid(format!(
            "region '{}' of rank {rank} belongs to this rank alone: it is no part of a global array",
            self.name
        ))
        .next("restore it with --rank and --region, or declare global shapes in orc_protect_array")
    }

    fn not_there(&self, others: &BTreeSet<String>) -> Error {
        let there: Vec<&str> = others.iter().map(String::as_str).collect();
        Error::not_found(match &there[..] {
            [] => format!(
                "step {} has no global array; '{}' was asked for",
                self.record.step, self.name
            ),
            there => format!(
                "step {} has no global array '{}'; it has: {}",
                self.record.step,
                self.name,
                there.join(", ")
            ),
        })
        .next("see with `orcheck show` what the checkpoint holds")
    }

    /// The type of its elements.
    #[must_use]
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Its shape, in C order.
    #[must_use]
    pub fn shape(&self) -> &[u64] {
        &self.shape
    }

    /// The parts, by rank.
    #[must_use]
    pub fn parts(&self) -> &[ArrayPart] {
        &self.parts
    }

    fn reader(&mut self, container: usize) -> std::result::Result<&Reader, Unread> {
        if !self.readers.contains_key(&container) {
            if self.readers.len() >= MOST_OPEN {
                self.readers.clear();
            }
            let found = self.record.containers.get(container);
            let found = found.ok_or_else(|| Unread {
                file: None,
                error: Error::internal(format!("there is no container {container}")),
            })?;
            let opened = (self.open)(found).map_err(|error| Unread {
                file: Some(found.file.clone()),
                error,
            })?;
            self.readers.insert(container, opened);
        }
        self.readers.get(&container).ok_or_else(|| Unread {
            file: None,
            error: Error::internal("the container that was opened is gone"),
        })
    }

    /// Reads a window of the array, packed in C order; `damage` is called with what was bad where
    /// another copy was good.
    ///
    /// # Errors
    /// NotFound, naming an element, if no rank stored it; else the error of a container.
    pub fn read(
        &mut self,
        window: &ArrayBox,
        damage: &mut dyn FnMut(&Error),
    ) -> std::result::Result<ArrayWindow, Unread> {
        let size_bytes = self.dtype.size_bytes() as usize;
        let elements = window.elements() as usize;
        let mut bytes = vec![0; elements * size_bytes];
        // The rank whose copy of the element this is, plus one.
        let mut owners = vec![0; elements];
        let mut overlap = None;
        let touched = |part: &&ArrayPart| part.elements.intersection(window).is_some();
        // The lowest rank comes last, so its copy counts.
        let parts: Vec<ArrayPart> = self.parts.iter().rev().filter(touched).cloned().collect();
        for part in &parts {
            part.elements.for_runs(window, &mut |run| {
                for owner in &mut owners[run.to as usize..(run.to + run.len) as usize] {
                    if *owner != 0 {
                        overlap = Some((part.rank, Rank(*owner - 1)));
                    }
                    *owner = part.rank.0 + 1;
                }
            });
        }
        if let Some(missing) = owners.iter().position(|owner| *owner == 0) {
            return Err(Unread {
                file: None,
                error: self.nobody_stored(window, missing as u64),
            });
        }
        let name = self.name.clone();
        for part in &parts {
            let reader = self.reader(part.container)?;
            let file = || Some(reader.own_file().name().to_owned());
            let region = reader.region(part.rank, &name).ok_or_else(|| Unread {
                file: file(),
                error: Error::corrupt(format!("rank {} has no region '{name}' now", part.rank)),
            })?;
            let pieces = Pieces::of(part, window, size_bytes as u64);
            let read = reader.stream_parts_of_any_copy(
                (part.rank, region),
                &|extent| pieces.any_in(&extent),
                damage,
                &mut |at, found| {
                    pieces.copy(at, found, &mut bytes);
                    Ok(())
                },
            );
            read.map_err(|error| Unread {
                file: file(),
                error,
            })?;
        }
        Ok(ArrayWindow { bytes, overlap })
    }

    fn nobody_stored(&self, window: &ArrayBox, element: u64) -> Error {
        let at: Vec<String> = (window.coordinates(element).iter())
            .map(u64::to_string)
            .collect();
        Error::not_found(format!(
            "no rank stored element [{}] of array '{}', which has shape {}: step {} holds {} of it",
            at.join(", "),
            self.name,
            shown(&self.shape),
            self.record.step,
            count(self.parts.len() as u64, "part")
        ))
        .next("choose what was stored with --slice; `orcheck show` lists the parts")
    }
}

fn shown(shape: &[u64]) -> String {
    let lengths: Vec<String> = shape.iter().map(u64::to_string).collect();
    lengths.join(" x ")
}

/// What a part and a window have in common, in bytes: (first in the part, first in the window,
/// length), ascending in the part.
struct Pieces(Vec<(u64, u64, u64)>);

impl Pieces {
    fn of(part: &ArrayPart, window: &ArrayBox, size_bytes: u64) -> Self {
        let mut pieces = Vec::new();
        part.elements.for_runs(window, &mut |run| {
            pieces.push((
                run.from * size_bytes,
                run.to * size_bytes,
                run.len * size_bytes,
            ));
        });
        Self(pieces)
    }

    /// Those that reach beyond this byte of the part, and the others before them.
    fn after(&self, at_bytes: u64) -> impl Iterator<Item = &(u64, u64, u64)> {
        let first = self
            .0
            .partition_point(|(from, _, len)| from + len <= at_bytes);
        self.0.iter().skip(first)
    }

    fn any_in(&self, bytes: &std::ops::Range<u64>) -> bool {
        self.after(bytes.start)
            .next()
            .is_some_and(|(from, ..)| *from < bytes.end)
    }

    /// Copies from bytes `at_bytes ..` of the part what the window has of them.
    fn copy(&self, at_bytes: u64, found: &[u8], window: &mut [u8]) {
        let end = at_bytes + found.len() as u64;
        for &(from, to, len) in self.after(at_bytes) {
            if from >= end {
                return;
            }
            let (first, last) = (from.max(at_bytes), (from + len).min(end));
            let source = &found[(first - at_bytes) as usize..(last - at_bytes) as usize];
            let to = (to + (first - from)) as usize;
            window[to..to + source.len()].copy_from_slice(source);
        }
    }
}
