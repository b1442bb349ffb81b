//! Encodes and checks the manifest of a container: its ranks, regions and extents.
//!
//! How: deterministic CBOR (see `docs/format.cddl`). The BLAKE3 digest of its bytes identifies a
//! manifest. The commit record holds that digest, so a manifest that was swapped or rebuilt wrongly
//! is detected.
//!
//! Invariants:
//! 1. The extents of a region cover it in order and without gaps.
//! 2. Ranks are unique and ascending; region names are unique within a rank.
//! 3. A manifest that passed [`Manifest::validate`] points only inside its files.
//!
//! Not here: reading the bytes that an extent points to, and checking their CRCs.

use crate::coding::{Reader, Writer};
use crate::disk::names::{FileName, MAX_FILE_NAME_BYTES};
use crate::error::{Error, Result};
use crate::ids::{Dtype, Epoch, JobName, Level};
use crate::numbers::{NodeId, Rank, Step, WriterId};
use crate::sabotage::{Switch, off};
use std::collections::BTreeMap;

/// Longest name of a region or a node, in bytes: fits a file name wherever one is made from it.
pub const MAX_NAME_BYTES: usize = 255;
/// Most dimensions of an array: more than MPI subarrays and NumPy users need.
pub const MAX_DIMS: usize = 8;
/// Most regions of one rank: a descriptor table of this many stays below 100 MiB.
pub(crate) const MAX_REGIONS_PER_RANK: usize = 1 << 20;
/// Most ranks in one container: far above the cores of any node.
pub(crate) const MAX_RANKS_PER_CONTAINER: usize = 1 << 16;
/// Largest encoded manifest, rank record or small record, in bytes: a reader must hold it in memory
/// as a whole. Enough for more than a million extents.
pub const MAX_METADATA_BYTES: usize = 64 << 20;
/// Most files of one container, itself included: the range of [`Extent::store`].
pub(crate) const MAX_STORES: usize = 1 << 16;
/// Most boxes of a region: each takes at least 5 bytes of the metadata.
const MAX_BOXES: usize = MAX_METADATA_BYTES / 5;
/// Smallest encoded extent; [`MAX_METADATA_BYTES`] cannot hold more extents than this allows.
const MAX_EXTENTS: usize = MAX_METADATA_BYTES / 15;

/// Bit of [`RegionRecord::flags`]: the same bytes on all ranks.
pub const FLAG_SAME: u32 = 2;
/// Bit of [`RegionRecord::flags`]: the first dimension counts this rank's items of a list that is
/// the items of all ranks, one rank after the other.
pub const FLAG_LIST: u32 = 8;
/// Bit of [`RegionRecord::flags`]: parts of the global array may overlap; the lowest rank's counts.
pub const FLAG_OVERLAP: u32 = 16;
/// Bit of [`RegionRecord::flags`]: a memory file (`orc_fopen`): a restart holds it ready without
/// being told its name.
pub const FLAG_IN_MEMORY: u32 = 32;

type RegionsByName<'a> = BTreeMap<&'a str, &'a RegionRecord>;

/// What one container holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Manifest {
    /// The job.
    pub job: JobName,
    /// The checkpoint's step.
    pub step: Step,
    /// The epoch that wrote it.
    pub epoch: Epoch,
    /// The level for which it was written.
    pub level: Level,
    /// Index of the node.
    pub node: NodeId,
    /// The node's name.
    pub node_name: String,
    /// Index of the writer within the node.
    pub writer: WriterId,
    /// Ranks in the whole job.
    pub world_size: u32,
    /// File names (not paths) of this container: first the container itself, then its stripes.
    pub stores: Vec<String>,
    /// The ranks, ascending; extents are absolute positions in the stores.
    pub ranks: Vec<RankRecord>,
}

/// What is stored for one rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RankRecord {
    /// The rank.
    pub rank: Rank,
    /// Bytes of the rank's stream, without padding.
    pub stream_len_bytes: u64,
    /// The regions, in the order in which the program declared them.
    pub regions: Vec<RegionRecord>,
}

/// What a region is to the program.
#[repr(u8)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RegionKind {
    /// Untyped bytes.
    Bytes = 0,
    /// Typed elements, perhaps a slice of a global array.
    Array = 1,
    /// The stream of one of the program's codecs.
    Codec = 2,
    /// A file that the program wrote itself.
    File = 3,
    /// Several boxes of a global array, one after the other. Unknown to version 0.1.0, which
    /// therefore refuses the container.
    Boxes = 4,
}

impl RegionKind {
    /// The stored number.
    pub fn code(self) -> u8 {
        self as u8
    }

    /// The kind with this number.
    pub fn from_code(code: u8) -> Option<Self> {
        [
            RegionKind::Bytes,
            RegionKind::Array,
            RegionKind::Codec,
            RegionKind::File,
            RegionKind::Boxes,
        ]
        .into_iter()
        .find(|kind| kind.code() == code)
    }
}

/// One region of a rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegionRecord {
    /// The name: 1 to [`MAX_NAME_BYTES`] bytes of UTF-8 without control characters.
    pub name: String,
    /// What the region is to the program.
    pub kind: RegionKind,
    /// The type of its elements.
    pub dtype: Dtype,
    /// Flags of the program's declaration, stored unchanged, such as [`FLAG_LIST`].
    pub flags: u32,
    /// Its size.
    pub len_bytes: u64,
    /// Elements this rank holds, per dimension; empty if not an array with a shape.
    pub local: Vec<u64>,
    /// Elements of the global array, per dimension; empty if there is none.
    pub global: Vec<u64>,
    /// First element of this rank's part in the global array, per dimension; empty if none.
    pub offset: Vec<u64>,
    /// The boxes, in the order in which they are stored; empty unless the kind is
    /// [`RegionKind::Boxes`], which has no `local` and no `offset`.
    pub boxes: Vec<BoxRecord>,
    /// The rank that stores the bytes, if this one holds the same bytes.
    pub same_as: Option<Rank>,
    /// The stored pieces, in order; empty if `same_as` is given.
    pub extents: Vec<Extent>,
}

/// A box of a global array; both vectors have an entry per dimension.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BoxRecord {
    /// Its first element.
    pub offset: Vec<u64>,
    /// Its elements.
    pub local: Vec<u64>,
}

/// One stored piece of a region.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Extent {
    /// Another container's file name, if the bytes lie there; `None` is this container.
    pub container: Option<String>,
    /// Index into the `stores` of the container that holds the bytes.
    pub store: u16,
    /// Byte offset: in the store's file, or within the rank's stream in a rank record.
    pub physical: u64,
    /// Bytes as stored.
    pub stored_len_bytes: u64,
    /// Bytes of the region.
    pub len_bytes: u64,
    /// How stored bytes become the region's bytes: the code of an
    /// [`Encoding`](crate::disk::encoding::Encoding); 0 means stored as is.
    pub encoding: u16,
    /// CRC-64/NVME of the stored bytes.
    pub crc_stored: u64,
    /// CRC-64/NVME of the region's bytes; 0 where they are encrypted.
    pub crc_plain: u64,
}

impl Manifest {
    /// The only encoding of this manifest.
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::new();
        w.map(10);
        w.uint(1u8).text(self.job.as_str());
        w.uint(2u8).uint(self.step);
        w.uint(3u8).epoch(&self.epoch);
        w.uint(4u8).uint(self.level.code());
        w.uint(5u8).uint(self.node);
        w.uint(6u8).text(&self.node_name);
        w.uint(7u8).uint(self.writer);
        w.uint(8u8).uint(self.world_size);
        w.uint(9u8).texts(&self.stores);
        w.uint(10u8).array(self.ranks.len());
        for rank in &self.ranks {
            rank.write(&mut w, &mut |_| {});
        }
        w.finish()
    }

    /// Reads a manifest. Fails with Corrupt or Unsupported; sums and positions are checked by
    /// [`Manifest::validate`].
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        check_metadata_len("manifest", bytes)?;
        let r = &mut Reader::new("manifest", bytes);
        let (mut job, mut step, mut epoch, mut level, mut node) = (None, None, None, None, None);
        let (mut node_name, mut writer, mut world_size) = (None, None, None);
        let (mut stores, mut ranks) = (None, None);
        r.map(|r, key| {
            match key {
                1 => job = Some(r.job()?),
                2 => step = Some(r.uint()?),
                3 => epoch = Some(r.epoch()?),
                4 => level = Some(r.level()?),
                5 => node = Some(r.uint()?),
                6 => node_name = Some(r.name(MAX_NAME_BYTES)?),
                7 => writer = Some(r.uint()?),
                8 => world_size = Some(r.uint()?),
                9 => stores = Some(r.items(MAX_STORES, |r| r.name(MAX_FILE_NAME_BYTES))?),
                10 => ranks = Some(r.items(MAX_RANKS_PER_CONTAINER, RankRecord::read)?),
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        r.end()?;
        Ok(Manifest {
            job: r.need(job, "job (key 1)")?,
            step: r.need(step, "step (key 2)")?,
            epoch: r.need(epoch, "epoch (key 3)")?,
            level: r.need(level, "level (key 4)")?,
            node: r.need(node, "node (key 5)")?,
            node_name: r.need(node_name, "node name (key 6)")?,
            writer: r.need(writer, "writer (key 7)")?,
            world_size: r.need(world_size, "world size (key 8)")?,
            stores: r.need(stores, "stores (key 9)")?,
            ranks: r.need(ranks, "ranks (key 10)")?,
        })
    }

    /// Checks the manifest against itself and against the length of the container's own file, in
    /// bytes. Stripes and other containers are checked when they are opened.
    pub fn validate(&self, file_len_bytes: u64) -> Result<()> {
        if off(Switch::ManifestBounds) {
            return Ok(());
        }
        let place = format!(
            "manifest of step {}, node {}, writer {}",
            self.step, self.node, self.writer
        );
        self.check(file_len_bytes).map_err(|error| error.at(place))
    }

    fn check(&self, file_len_bytes: u64) -> Result<()> {
        if self.stores.is_empty() || self.stores.len() > MAX_STORES {
            return Err(Error::corrupt(format!(
                "expected 1 to {MAX_STORES} stores, found {}",
                self.stores.len()
            )));
        }
        for (index, store) in self.stores.iter().enumerate() {
            self.check_store_name(index, store)?;
        }
        let mut last: Option<Rank> = None;
        let mut held = BTreeMap::new();
        for rank in &self.ranks {
            if last.is_some_and(|last| rank.rank <= last) {
                return Err(Error::corrupt(format!(
                    "rank {} is repeated or out of order",
                    rank.rank
                )));
            }
            last = Some(rank.rank);
            if rank.rank >= Rank(self.world_size) {
                return Err(Error::corrupt(format!(
                    "rank {} is outside a job of {} ranks",
                    rank.rank, self.world_size
                )));
            }
            let regions = rank
                .check()
                .map_err(|error| error.at(format!("rank {}", rank.rank)))?;
            for region in &rank.regions {
                for (index, extent) in region.extents.iter().enumerate() {
                    self.check_place(extent, file_len_bytes).map_err(|error| {
                        error.at(format!(
                            "rank {}, region {:?}, extent {index}",
                            rank.rank, region.name
                        ))
                    })?;
                }
            }
            held.insert(rank.rank, regions);
        }
        self.check_references(&held)
    }

    /// Checks regions that are `same_as` those of another rank of this container: that rank must
    /// store a region of the same name and length itself. Ranks of other containers are checked at
    /// restart.
    fn check_references(&self, held: &BTreeMap<Rank, RegionsByName<'_>>) -> Result<()> {
        for rank in &self.ranks {
            for region in &rank.regions {
                let Some(target) = region.same_as else {
                    continue;
                };
                let Some(regions) = held.get(&target) else {
                    continue;
                };
                let fits = regions.get(region.name.as_str()).is_some_and(|found| {
                    found.same_as.is_none() && found.len_bytes == region.len_bytes
                });
                if !fits {
                    return Err(Error::corrupt(format!(
                        "rank {}, region {:?}: rank {target} does not store its {} bytes",
                        rank.rank, region.name, region.len_bytes
                    )));
                }
            }
        }
        Ok(())
    }

    fn check_store_name(&self, index: usize, name: &str) -> Result<()> {
        let run = self.epoch.run.short_bytes();
        let (step, epoch, node, writer) = (self.step, self.epoch.counter, self.node, self.writer);
        let expected = match index {
            0 => FileName::Container {
                step,
                epoch,
                run,
                node,
                writer,
            },
            _ => FileName::Stripe {
                step,
                epoch,
                run,
                node,
                writer,
                stripe: index as u32,
            },
        };
        if FileName::parse(name).as_ref() == Some(&expected) {
            Ok(())
        } else {
            Err(Error::corrupt(format!(
                "store {index}: expected {expected}, found {name:?}"
            )))
        }
    }

    fn check_place(&self, extent: &Extent, file_len_bytes: u64) -> Result<()> {
        let end = extent.end()?;
        if let Some(name) = &extent.container {
            return self.referred_step(name).map(|_| ());
        }
        if usize::from(extent.store) >= self.stores.len() {
            return Err(Error::corrupt(format!(
                "store {} does not exist, found {} stores",
                extent.store,
                self.stores.len()
            )));
        }
        if extent.store == 0 && end > file_len_bytes {
            return Err(Error::corrupt(format!(
                "bytes {}..{end} lie outside the file of {file_len_bytes} bytes",
                extent.physical
            )));
        }
        Ok(())
    }

    /// The step of an older container that extents of this one may lie in. That container must be
    /// of the same run and the same writer. Fails with Corrupt for any other name.
    pub fn referred_step(&self, name: &str) -> Result<Step> {
        let own = FileName::Container {
            step: self.step,
            epoch: self.epoch.counter,
            run: self.epoch.run.short_bytes(),
            node: self.node,
            writer: self.writer,
        };
        match own.of_older_step(name) {
            Some(step) => Ok(step),
            None => Err(Error::corrupt(format!(
                "{name:?} is not the name of an older container of this run and writer"
            ))),
        }
    }

    /// The BLAKE3 digest that identifies an encoded manifest.
    pub fn digest(bytes: &[u8]) -> [u8; 32] {
        *blake3::hash(bytes).as_bytes()
    }
}

impl RankRecord {
    /// Writes it; `end_of_extent` gets where each extent ends.
    pub(crate) fn write(&self, w: &mut Writer, end_of_extent: &mut impl FnMut(usize)) {
        w.map(3);
        w.uint(1u8).uint(self.rank);
        w.uint(2u8).uint(self.stream_len_bytes);
        w.uint(3u8).array(self.regions.len());
        for region in &self.regions {
            region.write(w, end_of_extent);
        }
    }

    pub(crate) fn read(r: &mut Reader<'_>) -> Result<Self> {
        let (mut rank, mut stream_len_bytes, mut regions) = (None, None, None);
        r.map(|r, key| {
            match key {
                1 => rank = Some(r.uint()?),
                2 => stream_len_bytes = Some(r.u64()?),
                3 => regions = Some(r.items(MAX_REGIONS_PER_RANK, RegionRecord::read)?),
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        Ok(RankRecord {
            rank: r.need(rank, "rank (key 1)")?,
            stream_len_bytes: r.need(stream_len_bytes, "stream length (key 2)")?,
            regions: r.need(regions, "regions (key 3)")?,
        })
    }

    /// Checks everything that needs no file: names, shapes, sums.
    fn check(&self) -> Result<RegionsByName<'_>> {
        if self.regions.len() > MAX_REGIONS_PER_RANK {
            return Err(Error::corrupt(format!(
                "expected at most {MAX_REGIONS_PER_RANK} regions, found {}",
                self.regions.len()
            )));
        }
        let mut names = BTreeMap::new();
        for region in &self.regions {
            region
                .check()
                .map_err(|error| error.at(format!("region {:?}", region.name)))?;
            if names.insert(region.name.as_str(), region).is_some() {
                return Err(Error::corrupt(format!(
                    "region {:?} is there twice",
                    region.name
                )));
            }
        }
        Ok(names)
    }
}

impl RegionRecord {
    /// Whether it is this rank's items of a list.
    pub fn is_list(&self) -> bool {
        self.kind == RegionKind::Array
            && self.flags & FLAG_LIST != 0
            && self.global.is_empty()
            && !self.local.is_empty()
    }

    /// Whether it is a part of a global array, or of a list.
    pub fn is_part(&self) -> bool {
        match self.kind {
            RegionKind::Array => !self.global.is_empty() || self.is_list(),
            RegionKind::Boxes => true,
            _ => false,
        }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut w = Writer::new();
        self.write(&mut w, &mut |_| {});
        w.finish()
    }

    /// Maximum length of the region's part of a record, without its extents.
    pub fn most_described_bytes(&self) -> u64 {
        const NUMBER_BYTES: usize = 9;
        // Keys, heads of arrays, and the numbers that every region has.
        const FIXED_BYTES: usize = 96;
        let dims = self.local.len() + self.global.len() + self.offset.len();
        // Two arrays in an array, each with a number per dimension.
        let of_box = self.boxes.first().map_or(0, |one| {
            3 + NUMBER_BYTES * (one.offset.len() + one.local.len())
        });
        (FIXED_BYTES + self.name.len() + NUMBER_BYTES * dims + self.boxes.len() * of_box) as u64
    }

    fn write(&self, w: &mut Writer, end_of_extent: &mut impl FnMut(usize)) {
        let boxes = self.kind == RegionKind::Boxes;
        w.map(9 + u64::from(self.same_as.is_some()) + u64::from(boxes));
        w.uint(1u8).text(&self.name);
        w.uint(2u8).uint(self.kind.code());
        w.uint(3u8).uint(self.dtype.code());
        w.uint(4u8).uint(self.flags);
        w.uint(5u8).uint(self.len_bytes);
        w.uint(6u8).uints(&self.local);
        w.uint(7u8).uints(&self.global);
        w.uint(8u8).uints(&self.offset);
        if let Some(rank) = self.same_as {
            w.uint(9u8).uint(rank);
        }
        w.uint(10u8).array(self.extents.len());
        for extent in &self.extents {
            extent.write(w);
            end_of_extent(w.len_bytes());
        }
        if boxes {
            w.uint(11u8).array(self.boxes.len());
            for one in &self.boxes {
                w.array(2).uints(&one.offset).uints(&one.local);
            }
        }
    }

    fn read(r: &mut Reader<'_>) -> Result<Self> {
        let (mut name, mut kind, mut dtype, mut flags, mut len) = (None, None, None, None, None);
        let (mut local, mut global, mut offset) = (None, None, None);
        let (mut same_as, mut extents, mut boxes) = (None, None, None);
        r.map(|r, key| {
            match key {
                1 => name = Some(r.name(MAX_NAME_BYTES)?),
                2 => {
                    let code: u8 = r.uint()?;
                    kind = Some(RegionKind::from_code(code).ok_or_else(|| {
                        r.unsupported(format_args!("region kind {code} is unknown"))
                    })?);
                }
                3 => {
                    let code: u8 = r.uint()?;
                    dtype = Some(Dtype::from_code(code).ok_or_else(|| {
                        r.unsupported(format_args!("element type {code} is unknown"))
                    })?);
                }
                4 => flags = Some(r.uint()?),
                5 => len = Some(r.u64()?),
                6 => local = Some(r.items(MAX_DIMS, Reader::u64)?),
                7 => global = Some(r.items(MAX_DIMS, Reader::u64)?),
                8 => offset = Some(r.items(MAX_DIMS, Reader::u64)?),
                9 => same_as = Some(r.uint()?),
                10 => extents = Some(r.items(MAX_EXTENTS, Extent::read)?),
                11 => boxes = Some(r.items(MAX_BOXES, BoxRecord::read)?),
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        if boxes.is_some() != (kind == Some(RegionKind::Boxes)) {
            return Err(r.corrupt(format_args!(
                "expected boxes (key 11) exactly where the kind is 4"
            )));
        }
        Ok(RegionRecord {
            name: r.need(name, "region name (key 1)")?,
            kind: r.need(kind, "region kind (key 2)")?,
            dtype: r.need(dtype, "element type (key 3)")?,
            flags: r.need(flags, "region flags (key 4)")?,
            len_bytes: r.need(len, "region length (key 5)")?,
            local: r.need(local, "local shape (key 6)")?,
            global: r.need(global, "global shape (key 7)")?,
            offset: r.need(offset, "offset (key 8)")?,
            boxes: boxes.unwrap_or_default(),
            same_as,
            extents: r.need(extents, "extents (key 10)")?,
        })
    }

    fn check(&self) -> Result<()> {
        if !is_name(&self.name) {
            return Err(Error::corrupt(format!(
                "expected a name of 1 to {MAX_NAME_BYTES} bytes without control characters"
            )));
        }
        self.check_shape()?;
        if let Some(rank) = self.same_as {
            if !self.extents.is_empty() {
                return Err(Error::corrupt(format!(
                    "is marked as stored by rank {rank}, yet has {} extents of its own",
                    self.extents.len()
                )));
            }
            return Ok(());
        }
        let mut sum = 0u64;
        for extent in &self.extents {
            extent.end()?;
            extent.check_encoding()?;
            sum = sum
                .checked_add(extent.len_bytes)
                .ok_or_else(|| Error::corrupt("the lengths of the extents overflow 64 bits"))?;
        }
        if sum != self.len_bytes {
            return Err(Error::corrupt(format!(
                "expected extents of {} bytes in all, found {sum}",
                self.len_bytes
            )));
        }
        Ok(())
    }

    fn check_boxes(&self) -> Result<()> {
        let wrong = |what: String| Err(Error::corrupt(what));
        let dims = self.global.len();
        if dims == 0 || dims > MAX_DIMS || !self.local.is_empty() || !self.offset.is_empty() {
            return wrong(format!("boxes of a global array of {dims} dimensions"));
        }
        let mut bytes = 0u64;
        for (number, one) in self.boxes.iter().enumerate() {
            if one.offset.len() != dims || one.local.len() != dims {
                return wrong(format!("box {number} does not have {dims} dimensions"));
            }
            for ((local, global), offset) in one.local.iter().zip(&self.global).zip(&one.offset) {
                if offset.checked_add(*local).is_none_or(|end| end > *global) {
                    return wrong(format!(
                        "box {number}: elements {offset}..{offset}+{local} lie outside a global dimension of {global}"
                    ));
                }
            }
            let size_bytes = self.dtype.size_bytes();
            let len = one
                .local
                .iter()
                .try_fold(size_bytes, |product, len| product.checked_mul(*len));
            match len.and_then(|len| bytes.checked_add(len)) {
                Some(sum) => bytes = sum,
                None => return wrong(format!("box {number} has more than 2^64 bytes")),
            }
        }
        match bytes == self.len_bytes {
            true => Ok(()),
            false => wrong(format!(
                "boxes of {bytes} bytes do not have {}",
                self.len_bytes
            )),
        }
    }

    fn check_shape(&self) -> Result<()> {
        if self.kind == RegionKind::Boxes {
            return self.check_boxes();
        }
        let dims = self.local.len();
        let fits = |other: &Vec<u64>| other.is_empty() || other.len() == dims;
        let array = self.kind == RegionKind::Array;
        if dims > MAX_DIMS
            || !fits(&self.global)
            || self.global.len() != self.offset.len()
            || (!array && dims > 0)
        {
            return Err(Error::corrupt(format!(
                "the shape does not fit: {dims} local, {} global, {} offset dimensions",
                self.global.len(),
                self.offset.len()
            )));
        }
        if dims > 0 {
            let bytes = self
                .local
                .iter()
                .try_fold(self.dtype.size_bytes(), |product, len| {
                    product.checked_mul(*len)
                });
            if bytes != Some(self.len_bytes) {
                return Err(Error::corrupt(format!(
                    "a shape of {:?} elements of {} does not have {} bytes",
                    self.local, self.dtype, self.len_bytes
                )));
            }
        } else if array && !self.len_bytes.is_multiple_of(self.dtype.size_bytes()) {
            return Err(Error::corrupt(format!(
                "{} bytes are not a whole number of elements of {}",
                self.len_bytes, self.dtype
            )));
        }
        for ((local, global), offset) in self.local.iter().zip(&self.global).zip(&self.offset) {
            if offset.checked_add(*local).is_none_or(|end| end > *global) {
                return Err(Error::corrupt(format!(
                    "elements {offset}..{offset}+{local} lie outside a global dimension of {global}"
                )));
            }
        }
        Ok(())
    }
}

impl BoxRecord {
    fn read(r: &mut Reader<'_>) -> Result<Self> {
        let mut both = r.items(2, |r| r.items(MAX_DIMS, Reader::u64))?;
        match (both.pop(), both.pop()) {
            (Some(local), Some(offset)) => Ok(Self { offset, local }),
            _ => Err(r.corrupt(format_args!("expected a box as its offset and its shape"))),
        }
    }
}

impl Extent {
    fn write(&self, w: &mut Writer) {
        w.map(7 + u64::from(self.container.is_some()));
        if let Some(container) = &self.container {
            w.uint(1u8).text(container);
        }
        w.uint(2u8).uint(self.store);
        w.uint(3u8).uint(self.physical);
        w.uint(4u8).uint(self.stored_len_bytes);
        w.uint(5u8).uint(self.len_bytes);
        w.uint(6u8).uint(self.encoding);
        w.uint(7u8).uint(self.crc_stored);
        w.uint(8u8).uint(self.crc_plain);
    }

    fn read(r: &mut Reader<'_>) -> Result<Self> {
        let mut container = None;
        let (mut store, mut encoding) = (None, None);
        let mut numbers = [None; 5];
        r.map(|r, key| {
            match key {
                1 => container = Some(r.name(MAX_FILE_NAME_BYTES)?),
                2 => store = Some(r.uint()?),
                3 => numbers[0] = Some(r.u64()?),
                4 => numbers[1] = Some(r.u64()?),
                5 => numbers[2] = Some(r.u64()?),
                6 => encoding = Some(r.uint()?),
                7 => numbers[3] = Some(r.u64()?),
                8 => numbers[4] = Some(r.u64()?),
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        Ok(Extent {
            container,
            store: r.need(store, "store (key 2)")?,
            physical: r.need(numbers[0], "physical offset (key 3)")?,
            stored_len_bytes: r.need(numbers[1], "stored length (key 4)")?,
            len_bytes: r.need(numbers[2], "length (key 5)")?,
            encoding: r.need(encoding, "encoding (key 6)")?,
            crc_stored: r.need(numbers[3], "CRC of the stored bytes (key 7)")?,
            crc_plain: r.need(numbers[4], "CRC of the plain bytes (key 8)")?,
        })
    }

    /// The first byte after the stored bytes.
    fn end(&self) -> Result<u64> {
        self.physical
            .checked_add(self.stored_len_bytes)
            .ok_or_else(|| {
                Error::corrupt(format!(
                    "offset {} plus {} bytes overflows 64 bits",
                    self.physical, self.stored_len_bytes
                ))
            })
    }
}

/// Whether a text may be the name of a region or node.
pub fn is_name(text: &str) -> bool {
    !text.is_empty() && text.len() <= MAX_NAME_BYTES && !text.chars().any(char::is_control)
}

pub(crate) fn check_metadata_len(what: &str, bytes: &[u8]) -> Result<()> {
    if bytes.len() > MAX_METADATA_BYTES {
        return Err(Error::corrupt(format!(
            "{what}: expected at most {MAX_METADATA_BYTES} bytes, found {}",
            bytes.len()
        )));
    }
    Ok(())
}
