//! Defines regions, the named parts of a rank's state, and how they enter and leave a snapshot.
//!
//! Invariants:
//! 1. A name is unique in a session; protecting it again replaces address, size and shape.
//! 2. A record describes the region as it is at the checkpoint, not as it was at `protect`.
//!
//! Not here: copying (`engine::capture`), reading back (`engine::restart`).

use crate::regions::array::ArrayLayout;
use crate::regions::boxes::Boxes;
use crate::regions::lists::MOST_LISTS;
use orcheck_engine::capture::Source;
use orcheck_engine::restart::{ArrayBox, GlobalArray};
use orcheck_format::disk::{
    BoxRecord, FLAG_IN_MEMORY, FLAG_LIST, FLAG_OVERLAP, FLAG_SAME, MAX_NAME_BYTES, RegionKind,
    RegionRecord,
};
use orcheck_format::{Dtype, Error, ErrorKind, Rank, Result};
use orcheck_io::disk::File;
use orcheck_io::memory::{Span, crc_span};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// Where the routed files of a rank are (`route.rs`).
pub(crate) trait RoutedFiles {
    /// Opens a file to read.
    ///
    /// # Errors
    /// NotFound; otherwise an error that says what is in its place.
    fn open(&self, name: &str) -> Result<Box<dyn File>>;
}

/// The region may be absent from a checkpoint at restart.
pub const OPTIONAL: u32 = 1;
/// The same on all ranks: stored once per node.
pub const SAME: u32 = FLAG_SAME;
/// Written only by this process's processors, so that page tracking is allowed.
pub const CPU_WRITES_ONLY: u32 = 4;
/// Parts of a global array may overlap: at a restart with another decomposition, the lowest rank's
/// copy of an element counts.
pub const OVERLAP: u32 = FLAG_OVERLAP;
/// Items of a list: a restart redistributes those of all ranks.
pub(crate) const LIST: u32 = FLAG_LIST;
const KNOWN_FLAGS: u32 = OPTIONAL | SAME | CPU_WRITES_ONLY | OVERLAP | LIST | FLAG_IN_MEMORY;

/// Anything that is not flat memory: containers, GPU copies, compressed state.
pub trait Codec: Send {
    /// Current length of the packed bytes.
    ///
    /// # Errors
    /// Ends the checkpoint.
    fn size(&mut self) -> Result<u64>;
    /// Copies packed bytes from offset `at` on; called in ascending order.
    ///
    /// # Errors
    /// Ends the checkpoint.
    fn pack(&mut self, at: u64, dst: &mut [u8]) -> Result<()>;
    /// Takes packed bytes back, in ascending order. `at == 0` may come again if a copy proved to be
    /// damaged and another one is read.
    ///
    /// # Errors
    /// Ends the restart.
    fn unpack(&mut self, at: u64, src: &[u8]) -> Result<()>;
}

/// A region, as a checkpoint holds it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    /// Length in bytes.
    pub len_bytes: u64,
    /// Element type.
    pub dtype: Dtype,
    /// Local shape; one dimension (the element count) for a plain region.
    pub local: Vec<u64>,
    /// Global shape, if it is part of a global array or list.
    pub global: Vec<u64>,
    /// Offset in the global array.
    pub offset: Vec<u64>,
}

impl Stored {
    /// The region that a stored record describes.
    #[must_use]
    pub fn of(record: &RegionRecord) -> Self {
        let elements = record.len_bytes / record.dtype.size_bytes();
        let (offset, local) = match record.kind {
            RegionKind::Boxes => around(record),
            _ if record.local.is_empty() => (record.offset.clone(), vec![elements]),
            _ => (record.offset.clone(), record.local.clone()),
        };
        Self {
            len_bytes: record.len_bytes,
            dtype: record.dtype,
            local,
            global: record.global.clone(),
            offset,
        }
    }

    /// An even share of a global array or list, for `rank` of `ranks`: the first dimension is dealt
    /// in the order of ranks, and the first ranks have one more if it does not come out even.
    ///
    /// # Errors
    /// Unsupported if it has more than 2^64 bytes.
    pub fn share(array: &GlobalArray, rank: Rank, ranks: u32) -> Result<Self> {
        let global = array.shape().to_vec();
        let (mut local, mut offset) = (global.clone(), vec![0; global.len()]);
        if let (Some(local), Some(offset)) = (local.first_mut(), offset.first_mut()) {
            let (rank, ranks) = (u64::from(rank.0), u64::from(ranks.max(1)));
            let (each, more) = (*local / ranks, *local % ranks);
            *offset = rank * each + rank.min(more);
            *local = each + u64::from(rank < more);
        }
        let size_bytes = array.dtype().size_bytes();
        let mut lens = local.iter();
        let len_bytes = lens.try_fold(size_bytes, |product, len| product.checked_mul(*len));
        let len_bytes = len_bytes.ok_or_else(|| {
            let (name, global) = (array.name(), array.shape());
            Error::unsupported(format!(
                "a share of '{name}', of shape {global:?}, exceeds memory"
            ))
        })?;
        Ok(Self {
            len_bytes,
            dtype: array.dtype(),
            local,
            global,
            offset,
        })
    }
}

/// Offset and shape of the smallest box around all boxes of a region.
fn around(record: &RegionRecord) -> (Vec<u64>, Vec<u64>) {
    let filled = || record.boxes.iter().filter(|one| !one.local.contains(&0));
    let dims = 0..record.global.len();
    let first = |dim: usize| filled().map(|one| one.offset[dim]).min().unwrap_or(0);
    let end = |dim: usize| filled().map(|one| one.offset[dim] + one.local[dim]).max();
    let offset: Vec<u64> = dims.clone().map(first).collect();
    let local = dims.map(|dim| end(dim).unwrap_or(0) - offset[dim]);
    let local = local.collect();
    (offset, local)
}

/// Where a region's bytes are.
#[derive(Clone)]
pub enum Target {
    /// Flat memory.
    Memory(Span),
    /// An array with gaps between its elements.
    Strided(Span, ArrayLayout),
    /// Several boxes of a global array.
    Boxes(Boxes),
    /// Packed by the program.
    Codec(Arc<Mutex<Box<dyn Codec>>>),
    /// A file that the program writes, with the region's name.
    File,
}

/// One protected region.
#[derive(Clone)]
pub struct Region {
    /// How it is stored.
    pub kind: RegionKind,
    /// Element type.
    pub dtype: Dtype,
    /// `OPTIONAL`, `SAME`, `CPU_WRITES_ONLY`, `OVERLAP`; `LIST` if it holds items of a list.
    pub flags: u32,
    /// Where its bytes are.
    pub target: Target,
    /// Local shape, global shape and offset of an array; of boxes, the global shape.
    pub shape: (Vec<u64>, Vec<u64>, Vec<u64>),
}

/// All regions of a session, by name.
#[derive(Default)]
pub struct Regions {
    map: BTreeMap<String, Region>,
    /// How often regions were added, replaced or removed.
    changes: u64,
    /// Number of those that [`Self::same_crc`] covers.
    compared: usize,
}

impl Regions {
    /// Adds a region, or replaces the one of this name.
    ///
    /// # Errors
    /// Invalid name or flags (`SAME` needs contiguous memory).
    pub fn put(&mut self, name: &str, region: Region) -> Result<()> {
        check_name(name)?;
        if region.flags & SAME != 0 && !matches!(region.target, Target::Memory(_)) {
            return Err(Error::invalid(format!(
                "region '{name}': SAME needs contiguous memory"
            )));
        }
        let lists = self
            .map
            .iter()
            .filter(|(other, held)| held.is_list() && *other != name);
        if region.is_list() && lists.count() >= MOST_LISTS {
            return Err(Error::invalid(format!(
                "region '{name}': {MOST_LISTS} lists are protected, and no more are possible"
            ))
            .next("let items have several elements (item_shape)"));
        }
        if region.flags & OVERLAP != 0 && region.shape.1.is_empty() {
            return Err(Error::invalid(format!(
                "region '{name}': OVERLAP is for parts of a global array"
            )));
        }
        if region.is_list() && region.flags & SAME != 0 {
            return Err(Error::invalid(format!(
                "region '{name}': a list cannot be SAME, its items are those of all ranks together"
            ))
            .next("protect it as an array with ORC_SAME, if all ranks hold all items"));
        }
        if region.flags & !KNOWN_FLAGS != 0 {
            return Err(Error::invalid(format!(
                "region '{name}': unknown flags {:#x}",
                region.flags & !KNOWN_FLAGS
            )));
        }
        self.changes += 1;
        self.compared += usize::from(region.is_compared());
        let before = self.map.insert(name.to_owned(), region);
        self.compared -= usize::from(before.is_some_and(|region| region.is_compared()));
        Ok(())
    }

    /// Changes whenever a region is added, replaced or removed.
    #[must_use]
    pub(crate) fn changes(&self) -> u64 {
        self.changes
    }

    /// Forgets a region.
    ///
    /// # Errors
    /// NotFound for a name that is not protected.
    pub fn remove(&mut self, name: &str) -> Result<()> {
        let removed = self.map.remove(name).ok_or_else(|| self.unknown(name))?;
        self.changes += 1;
        self.compared -= usize::from(removed.is_compared());
        Ok(())
    }

    /// A region by name.
    ///
    /// # Errors
    /// NotFound, listing the existing names.
    pub fn get(&self, name: &str) -> Result<&Region> {
        self.map.get(name).ok_or_else(|| self.unknown(name))
    }

    /// All regions, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&String, &Region)> {
        self.map.iter()
    }

    /// Names of routed files, and of memory files.
    pub(crate) fn files(&self) -> impl Iterator<Item = &str> {
        let files = (self.map.iter()).filter(|(_, region)| region.kind == RegionKind::File);
        files.map(|(name, _)| name.as_str())
    }

    /// Whether there are any.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    /// The name of a region that overlaps this memory.
    pub(crate) fn inside(&self, memory: Span) -> Option<&String> {
        let end = |span: Span| span.address() + span.len_bytes();
        let overlap = |span: &Span| {
            let span = *span;
            span.len_bytes() > 0
                && memory.len_bytes() > 0
                && span.address() < end(memory)
                && memory.address() < end(span)
        };
        let inside = self.map.iter().find(|(_, region)| match &region.target {
            Target::Memory(span) | Target::Strided(span, _) => overlap(span),
            Target::Boxes(boxes) => boxes.spans().any(|span| overlap(&span)),
            Target::Codec(_) | Target::File => false,
        });
        inside.map(|(name, _)| name)
    }

    /// Total length of the protected flat memory for which `counts` is true.
    #[must_use]
    pub fn memory_bytes(&self, counts: impl Fn(Span) -> bool) -> u64 {
        let spans = self.map.values().filter_map(|region| match &region.target {
            Target::Memory(span) if counts(*span) => Some(span.len_bytes() as u64),
            _ => None,
        });
        spans.sum()
    }

    /// CRC over all `SAME` regions, and over the names, types and item shapes of lists, for
    /// comparison between ranks; 0 if there are none.
    #[must_use]
    pub fn same_crc(&self) -> u64 {
        if self.compared == 0 {
            return 0;
        }
        let mut crc = orcheck_format::Crc64::new();
        let mut any = false;
        for (name, region) in self
            .map
            .iter()
            .filter(|(_, region)| region.flags & SAME != 0)
        {
            if let Target::Memory(span) = region.target {
                any = true;
                crc.update(name.as_bytes());
                crc.update(&crc_span(span).to_le_bytes());
            }
        }
        // Breaks if: lists are left out; items of a rank that forgot one would be lost silently.
        for (name, region) in self.map.iter().filter(|(_, region)| region.is_list()) {
            any = true;
            crc.update(name.as_bytes());
            crc.update(&[region.dtype.code()]);
            for len in region.shape.0.iter().skip(1) {
                crc.update(&len.to_le_bytes());
            }
        }
        if any { crc.value() } else { 0 }
    }

    fn unknown(&self, name: &str) -> Error {
        let names: Vec<&str> = self.map.keys().map(String::as_str).take(20).collect();
        Error::not_found(format!(
            "no region '{name}' is protected; there are: {}",
            names.join(", ")
        ))
    }
}

/// Names become part of messages and of other programs' files, so they have no control characters.
fn check_name(name: &str) -> Result<()> {
    if name.is_empty() || name.len() > MAX_NAME_BYTES || name.chars().any(char::is_control) {
        return Err(Error::invalid(format!(
            "region name '{}': allowed are 1 to {MAX_NAME_BYTES} bytes without control characters",
            name.escape_debug()
        )));
    }
    Ok(())
}

impl Region {
    fn new(kind: RegionKind, dtype: Dtype, flags: u32, target: Target) -> Self {
        Self {
            kind,
            dtype,
            flags,
            target,
            shape: (Vec::new(), Vec::new(), Vec::new()),
        }
    }

    /// Flat memory; `name` is for messages, as below.
    ///
    /// # Errors
    /// Invalid if the length is not a whole number of elements.
    pub(crate) fn flat(name: &str, span: Span, dtype: Dtype, flags: u32) -> Result<Self> {
        let len_bytes = span.len_bytes() as u64;
        if !len_bytes.is_multiple_of(dtype.size_bytes()) {
            return Err(Error::invalid(format!(
                "region '{name}': {len_bytes} bytes are not a whole number of {} elements of {} \
                 bytes",
                dtype.name(),
                dtype.size_bytes()
            )));
        }
        Ok(Self::new(
            RegionKind::Bytes,
            dtype,
            flags,
            Target::Memory(span),
        ))
    }

    /// An array; `span` covers it from its first to its last element.
    ///
    /// # Errors
    /// Invalid if the shapes do not match.
    pub(crate) fn array(name: &str, span: Span, layout: ArrayLayout, flags: u32) -> Result<Self> {
        layout
            .validate()
            .map_err(|error| error.at(format!("region '{name}'")))?;
        let extent_bytes = layout.extent_bytes()?;
        if span.len_bytes() as u64 != extent_bytes {
            return Err(Error::invalid(format!(
                "region '{name}': the array spans {extent_bytes} bytes, the memory {}",
                span.len_bytes()
            )));
        }
        let dtype = layout.dtype;
        let shape = (
            layout.local.clone(),
            layout.global.clone(),
            layout.offset.clone(),
        );
        let target = if layout.is_contiguous() {
            Target::Memory(span)
        } else {
            Target::Strided(span, layout)
        };
        Ok(Self {
            shape,
            ..Self::new(RegionKind::Array, dtype, flags, target)
        })
    }

    /// Items of a list, whose number comes first in `shape`.
    ///
    /// # Errors
    /// As [`Self::array`].
    pub(crate) fn list(
        name: &str,
        span: Span,
        (dtype, shape): (Dtype, &[u64]),
        flags: u32,
    ) -> Result<Self> {
        let layout = ArrayLayout {
            dtype,
            global: Vec::new(),
            offset: Vec::new(),
            local: shape.to_vec(),
            stride: Vec::new(),
        };
        Self::array(name, span, layout, flags | LIST)
    }

    /// Boxes of a global array, each with the memory from its first to its last element.
    ///
    /// # Errors
    /// Invalid if there is none, or if they are not of one global array.
    pub(crate) fn boxes(name: &str, boxes: Vec<(Span, ArrayLayout)>, flags: u32) -> Result<Self> {
        let place = |error: Error| error.at(format!("region '{name}'"));
        let boxes = Boxes::new(boxes).map_err(place)?;
        let (dtype, global) = (boxes.dtype(), boxes.global().to_vec());
        Ok(Self {
            shape: (Vec::new(), global, Vec::new()),
            ..Self::new(RegionKind::Boxes, dtype, flags, Target::Boxes(boxes))
        })
    }

    /// State that the program packs and unpacks.
    pub(crate) fn packed(codec: Box<dyn Codec>, flags: u32) -> Self {
        let target = Target::Codec(Arc::new(Mutex::new(codec)));
        Self::new(RegionKind::Codec, Dtype::Bytes, flags, target)
    }

    /// A file that the program writes.
    pub(crate) fn file(flags: u32) -> Self {
        Self::new(RegionKind::File, Dtype::Bytes, flags, Target::File)
    }

    /// What a memory file holds (`memory_files.rs`).
    pub(crate) fn memory_file(contents: Span) -> Self {
        let target = Target::Memory(contents);
        Self::new(RegionKind::File, Dtype::Bytes, FLAG_IN_MEMORY, target)
    }

    /// Whether it is what a memory file holds.
    pub(crate) fn is_memory_file(&self) -> bool {
        self.flags & FLAG_IN_MEMORY != 0
    }

    /// Whether ranks compare something of it before a checkpoint.
    fn is_compared(&self) -> bool {
        self.flags & SAME != 0 || self.is_list()
    }

    /// Whether it holds items of a list.
    pub(crate) fn is_list(&self) -> bool {
        self.flags & LIST != 0
    }

    /// Checks that it can be lent.
    ///
    /// # Errors
    /// Unsupported for anything but flat memory of one rank.
    pub(crate) fn check_lendable(&self, name: &str) -> Result<()> {
        if matches!(self.target, Target::Memory(_)) && self.flags & (SAME | FLAG_IN_MEMORY) == 0 {
            return Ok(());
        }
        Err(Error::unsupported(format!(
            "region '{name}': only contiguous memory of one rank can be lent"
        ))
        .next("leave it to be copied, or drop the flag SAME"))
    }

    /// The record (without extents) and the source of this region for a checkpoint. `stored_by` is
    /// the rank that stores a `SAME` region; `route` is where routed files are. `None`: an optional
    /// file that is absent.
    ///
    /// # Errors
    /// The error of the codec or the file.
    pub(crate) fn prepare(
        &self,
        name: &str,
        stored_by: Option<Rank>,
        route: Option<&dyn RoutedFiles>,
    ) -> Result<Option<(RegionRecord, Source)>> {
        let (len_bytes, mut source) = match &self.target {
            Target::Memory(span) => (span.len_bytes() as u64, Source::Memory(*span)),
            Target::Strided(span, layout) => {
                let (span, layout) = (*span, layout.clone());
                let len_bytes = layout.packed_bytes()?;
                let read = move |at: u64, dst: &mut [u8]| {
                    layout.gather(span, at, dst);
                    Ok(())
                };
                (len_bytes, Source::Read(Box::new(read)))
            }
            Target::Boxes(boxes) => {
                let boxes = boxes.clone();
                let len_bytes = boxes.len_bytes();
                let read = move |at: u64, dst: &mut [u8]| {
                    boxes.gather(at, dst);
                    Ok(())
                };
                (len_bytes, Source::Read(Box::new(read)))
            }
            Target::Codec(codec) => {
                let codec = Arc::clone(codec);
                let len_bytes = lock(&codec)
                    .size()
                    .map_err(|e| e.at(format!("region '{name}'")))?;
                let read = move |at: u64, dst: &mut [u8]| lock(&codec).pack(at, dst);
                (len_bytes, Source::Read(Box::new(read)))
            }
            Target::File => {
                let Some(file) = self.routed_file(name, route)? else {
                    return Ok(None);
                };
                let len_bytes = file.len_bytes()?;
                let read = move |at: u64, dst: &mut [u8]| file.read_at(dst, at);
                (len_bytes, Source::Read(Box::new(read)))
            }
        };
        if stored_by.is_some() {
            source = Source::Elsewhere;
        }
        let (local, global, offset) = self.shape.clone();
        let record = RegionRecord {
            name: name.to_owned(),
            kind: self.kind,
            dtype: self.dtype,
            flags: self.flags,
            len_bytes,
            local,
            global,
            offset,
            boxes: self.box_records(),
            same_as: stored_by,
            extents: Vec::new(),
        };
        Ok(Some((record, source)))
    }

    /// The file with the region's name; `None` if it may be absent, and is.
    fn routed_file(
        &self,
        name: &str,
        route: Option<&dyn RoutedFiles>,
    ) -> Result<Option<Box<dyn File>>> {
        let route = route.ok_or_else(|| Error::internal("a routed file without a directory"))?;
        match route.open(name) {
            Err(error) if error.kind() == ErrorKind::NotFound && self.flags & OPTIONAL != 0 => {
                Ok(None)
            }
            Ok(file) => Ok(Some(file)),
            Err(error) => Err(error.at(format!("region '{name}'")).next(
                "write the routed file before the checkpoint, or route it with ORC_OPTIONAL",
            )),
        }
    }

    fn box_records(&self) -> Vec<BoxRecord> {
        match &self.target {
            Target::Boxes(boxes) => boxes.records(),
            _ => Vec::new(),
        }
    }

    /// Whether it can hold elements that another rank stored.
    pub(crate) fn may_move(&self) -> bool {
        self.is_list() || !self.shape.1.is_empty()
    }

    /// Whether it holds other items of the same list than this rank stored.
    pub(crate) fn is_other_deal(&self, stored: &RegionRecord, before: u64, now: u64) -> bool {
        let (local, ..) = &self.shape;
        stored.is_list()
            && stored.dtype == self.dtype
            && stored.local.get(1..) == local.get(1..)
            && (before, stored.local.first()) != (now, local.first())
    }

    /// Whether it holds other elements of the same global array than a stored part.
    pub(crate) fn is_other_part(&self, stored: &RegionRecord) -> bool {
        let (local, global, offset) = &self.shape;
        let parts = [RegionKind::Array, RegionKind::Boxes];
        !global.is_empty()
            && parts.contains(&stored.kind)
            && stored.dtype == self.dtype
            && &stored.global == global
            && ((&stored.local, &stored.offset) != (local, offset)
                || stored.boxes != self.box_records())
    }

    /// The boxes of the global array that it holds, packed one after the other; a list's begin at
    /// item `first`.
    ///
    /// # Errors
    /// Invalid for a box that cannot exist.
    pub(crate) fn windows(&self, first: u64) -> Result<Vec<ArrayBox>> {
        let (local, _, offset) = &self.shape;
        if let Target::Boxes(boxes) = &self.target {
            let each = boxes.records();
            return each
                .iter()
                .map(|one| ArrayBox::new(&one.offset, &one.local))
                .collect();
        }
        let mut offset = offset.clone();
        if self.is_list() {
            offset = vec![0; local.len()];
            offset[0] = first;
        }
        Ok(vec![ArrayBox::new(&offset, local)?])
    }

    /// Checks that a stored region can be read into this one.
    ///
    /// # Errors
    /// Invalid, naming the difference: stored and now.
    pub fn check_fits(&self, name: &str, stored: &RegionRecord) -> Result<()> {
        let mismatch = |what: &str, stored: String, now: String| {
            Err(Error::invalid(format!(
                "region '{name}': {what} is {stored} in the checkpoint, {now} in the program"
            )))
        };
        let one_has_a_shape = self.differs_by_shape_alone(stored);
        if stored.kind != self.kind && !one_has_a_shape {
            return mismatch(
                "the kind",
                kind_name(stored.kind).to_owned(),
                kind_name(self.kind).to_owned(),
            );
        }
        if stored.dtype != self.dtype {
            return mismatch(
                "the type",
                stored.dtype.name().to_owned(),
                self.dtype.name().to_owned(),
            );
        }
        let (local, global, offset) = &self.shape;
        let same = &stored.local == local
            && &stored.global == global
            && &stored.offset == offset
            && stored.boxes == self.box_records();
        if !same && !one_has_a_shape {
            return mismatch(
                "the shape",
                shown(&stored.local, &stored.global, &stored.offset),
                shown(local, global, offset),
            );
        }
        let now_bytes = match &self.target {
            Target::Memory(span) => Some(span.len_bytes() as u64),
            Target::Strided(_, layout) => Some(layout.packed_bytes()?),
            Target::Boxes(boxes) => Some(boxes.len_bytes()),
            Target::Codec(_) | Target::File => None,
        };
        if let Some(now_bytes) = now_bytes
            && stored.len_bytes != now_bytes
        {
            return mismatch(
                "the size",
                format!("{} bytes", stored.len_bytes),
                format!("{now_bytes} bytes"),
            );
        }
        Ok(())
    }

    /// Checks that a box of a global array or list that was stored can be read into this region.
    ///
    /// # Errors
    /// Invalid, naming the difference: stored and now.
    pub(crate) fn check_fits_array(&self, name: &str, stored: &GlobalArray) -> Result<()> {
        let told = |is_list: bool, shape: &[u64], dtype: Dtype| {
            let dtype = dtype.name();
            match (is_list, shape.get(1..).unwrap_or_default()) {
                (true, []) => format!("a list of {dtype}"),
                (true, item) => format!("a list of items of {item:?} {dtype}"),
                (false, _) => format!("a part of {shape:?} of {dtype}"),
            }
        };
        let (local, global, _) = &self.shape;
        let now = if self.is_list() { local } else { global };
        let part = self.is_list() || !global.is_empty();
        let same = match self.is_list() && stored.is_list() {
            true => local.get(1..) == stored.shape().get(1..),
            false => !self.is_list() && global == stored.shape(),
        };
        if part && same && self.dtype == stored.dtype() {
            return Ok(());
        }
        let now = match part {
            true => told(self.is_list(), now, self.dtype),
            false => format!("{} of this rank alone", self.dtype.name()),
        };
        Err(Error::invalid(format!(
            "region '{name}' is {} in the checkpoint, {now} in the program",
            told(stored.is_list(), stored.shape(), stored.dtype())
        )))
    }

    /// Whether an array of one rank alone is stored without its shape, or the other way round: the
    /// same bytes in the same order. Fortran's arrays had no shape in version 0.1.0.
    fn differs_by_shape_alone(&self, stored: &RegionRecord) -> bool {
        let kinds = [stored.kind, self.kind];
        let one_each = kinds.contains(&RegionKind::Bytes) && kinds.contains(&RegionKind::Array);
        // Breaks if: parts of global arrays count too; data stored with a different decomposition
        // would pass.
        one_each && stored.global.is_empty() && self.shape.1.is_empty()
    }

    /// Takes back bytes from `at` on of a region that is not flat memory.
    ///
    /// # Errors
    /// The error of the codec or the file.
    pub fn take_back(
        &self,
        at: u64,
        bytes: &[u8],
        file: Option<&dyn orcheck_io::disk::File>,
    ) -> Result<()> {
        match &self.target {
            Target::Codec(codec) => lock(codec).unpack(at, bytes),
            Target::Strided(span, layout) => {
                layout.scatter(*span, at, bytes);
                Ok(())
            }
            Target::Boxes(boxes) => {
                boxes.scatter(at, bytes);
                Ok(())
            }
            Target::File => match file {
                Some(file) => file.write_at(bytes, at),
                None => Err(Error::internal("a routed file that is not open")),
            },
            Target::Memory(_) => Err(Error::internal("flat memory is read in place")),
        }
    }
}

fn kind_name(kind: RegionKind) -> &'static str {
    match kind {
        RegionKind::Bytes => "bytes",
        RegionKind::Array => "array",
        RegionKind::Codec => "codec",
        RegionKind::File => "file",
        RegionKind::Boxes => "boxes",
    }
}

fn lock(codec: &Mutex<Box<dyn Codec>>) -> std::sync::MutexGuard<'_, Box<dyn Codec>> {
    codec
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// A shape for people; for a part of a larger array, with its offset.
fn shown(local: &[u64], global: &[u64], offset: &[u64]) -> String {
    match (local, global) {
        ([], _) => "bytes without a shape".to_owned(),
        (_, []) => format!("{local:?}"),
        _ => format!("{local:?}, a part of {global:?} from {offset:?}"),
    }
}
