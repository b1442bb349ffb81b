//! Opens and verifies one container, and reads its regions straight into place.
//!
//! How: the reader looks for the container's file by name in every place. Its header, trailer and
//! manifest must agree with the commit record, whose digest identifies the manifest. If trailer or
//! manifest are damaged, the manifest is rebuilt from the rank headers and rank records, and used
//! only if its digest is the recorded one. Data is read in pieces of at most [`PIECE_BYTES`] to
//! where it belongs, and its checksum is computed over what arrived there. Encoded extents are
//! decoded and verified one by one; encrypted ones need [`Reader::open_trusting`].
//!
//! Invariants:
//! 1. A manifest is used only if its digest equals the one in the commit record.
//! 2. `read_region` returns `Ok` only if every byte was read and the checksum of every extent
//!    agrees. After an error the contents of the target are undefined.
//! 3. `stream_region` never passes on a byte whose checksum is not verified.
//! 4. In addition to the target, memory stays below two pieces (four for encoded data) plus the
//!    metadata, whatever the file says.
//! 5. Nothing is ever written.
//!
//! Faults survived: a damaged trailer or manifest, a truncated or overlong tail, a damaged copy of
//! the file in one place while another place has a good one. Anything else that is damaged,
//! swapped, mixed up or written by a newer version is recognised and refused.
//!
//! Not here: continuing in another copy (`reader/copies.rs`), bytes that lie in other containers
//! (`reader/referred.rs`), reading small extents together (`reader/together.rs`), choosing a commit
//! (`catalog` and the restart), checking what no restore needs (`verify`).

#![cfg_attr(
    not(test),
    deny(
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::panic,
        clippy::string_slice,
        clippy::unreachable,
        clippy::unwrap_used
    )
)]

mod copies;
mod held;
mod referred;
mod scan;
mod source;
mod together;

pub(crate) use copies::{Wanted, nowhere};
pub use copies::{beside_a_good_copy, homes};

use orcheck_format::sabotage::{Switch, off};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use orcheck_format::disk::{
    BLOCK_BYTES, CommitRecord, ContainerHeader, ContainerRef, Extent, Manifest, RankRecord,
    RegionRecord, TRAILER_BYTES, Trailer, header_crc,
};
use orcheck_format::{Error, ErrorKind, Rank, Result};
use orcheck_io::disk::{Dir, File};
use orcheck_io::memory::{Span, zeroed};

use crate::directory::OTHER_NODES;
use crate::encoding::{ContainerKey, Proof, Trust, WHO_CAN_WRITE};
use crate::restart::memory::AgentMemory;
use crate::restart::shared::{Order, SharedReads, key};

use orcheck_format::without_next;
use referred::Referred;
use scan::rebuild;
pub(crate) use scan::{is_striped, manifest_of, padded, part_at, walk};
use source::{Buffers, Source, Stored};

/// Maximum number of bytes read at once.
pub const PIECE_BYTES: u64 = 4 << 20;

/// A container whose metadata agrees with its commit record.
pub struct Reader {
    places: Vec<Arc<dyn Dir>>,
    commit: CommitRecord,
    header: ContainerHeader,
    manifest: Manifest,
    file_len_bytes: u64,
    /// The first store: the container itself.
    file: Box<dyn File>,
    /// The other stores.
    stripes: Vec<Box<dyn File>>,
    /// Other containers to which extents refer, opened when first needed.
    referred: Mutex<BTreeMap<String, Referred>>,
    /// Files of the same name in other places, opened when a file proves to be damaged.
    other_copies: Mutex<BTreeMap<String, Vec<Arc<dyn File>>>>,
    /// Containers that store what several ranks hold in common, opened when first needed.
    owners: Mutex<BTreeMap<String, Arc<Reader>>>,
    /// Faults that were found and not yet reported.
    notes: Mutex<Vec<String>>,
    /// `None` if it was opened without checking what is believed, as by somebody without a key.
    belief: Option<Belief>,
    /// The key of this container, if it is encrypted and there is one.
    key: Option<Arc<ContainerKey>>,
    /// The BLAKE3 digest of the manifest.
    digest: [u8; 32],
    /// Where other ranks of the node find what this one has read.
    shared: Option<Arc<SharedReads>>,
    /// What the node's agent has in memory.
    memory: Option<Arc<AgentMemory>>,
}

/// The user's keys, and whether the seal of the commit record was verified.
#[derive(Clone)]
struct Belief {
    trust: Arc<Trust>,
    proof: Proof,
}

/// The container of this commit that holds the rank.
///
/// # Errors
/// `NotFound` if no container of the commit holds it.
pub fn holder_of(commit: &CommitRecord, rank: Rank) -> Result<&ContainerRef> {
    commit
        .containers
        .iter()
        .find(|container| container.holds(rank))
        .ok_or_else(|| {
            Error::not_found(format!(
                "rank {rank} is not in step {} of job {}, whose highest rank is {}",
                commit.step,
                commit.job.as_str(),
                commit.world_size.saturating_sub(1)
            ))
        })
}

impl Reader {
    /// Finds the container in the places and verifies its metadata. Encrypted extents stay
    /// unreadable.
    ///
    /// # Errors
    /// `NotFound` if no place has the file; `Corrupt` if it can neither be verified nor rebuilt;
    /// `Unsupported` if a newer version wrote it; otherwise the error of the disk. For several bad
    /// copies, the most informative error.
    pub fn open(
        places: &[Arc<dyn Dir>],
        commit: &CommitRecord,
        container: &ContainerRef,
    ) -> Result<Reader> {
        Self::open_first(places, commit, container, None)
    }

    /// As [`Reader::open`], but a copy that is not believed is skipped like a damaged one, and
    /// encrypted extents can be read. `proof` is that of the commit record.
    ///
    /// # Errors
    /// As [`Reader::open`]; `Invalid` for an encrypted container without its key.
    pub fn open_trusting(
        places: &[Arc<dyn Dir>],
        commit: &CommitRecord,
        container: &ContainerRef,
        (trust, proof): (&Arc<Trust>, Proof),
    ) -> Result<Reader> {
        let trust = Arc::clone(trust);
        Self::open_first(places, commit, container, Some(Belief { trust, proof }))
    }

    fn open_first(
        places: &[Arc<dyn Dir>],
        commit: &CommitRecord,
        container: &ContainerRef,
        belief: Option<Belief>,
    ) -> Result<Reader> {
        let mut worst: Option<Error> = None;
        for dir in places {
            match Self::open_in(dir.as_ref(), places, (commit, container), belief.as_ref()) {
                Ok(None) => {}
                Ok(Some(reader)) => {
                    if let Some(error) = worst {
                        reader.pass_over(dir.as_ref(), &error);
                    }
                    return Ok(reader);
                }
                Err(error) if off(Switch::OtherPlace) => return Err(error),
                Err(error) if is_more_specific(&error, worst.as_ref()) => worst = Some(error),
                Err(_) => {}
            }
        }
        Err(worst.unwrap_or_else(|| nowhere(places, commit, container)))
    }

    /// Opens the copy of a container in this one directory; stripes and containers to which it
    /// refers may be in any of `places`. `None` if it is not there.
    fn open_in(
        dir: &dyn Dir,
        places: &[Arc<dyn Dir>],
        (commit, container): (&CommitRecord, &ContainerRef),
        belief: Option<&Belief>,
    ) -> Result<Option<Reader>> {
        let file = match dir.open(&container.file) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            opened => opened?,
        };
        let Some(mut reader) = Self::prove(places, commit, container, file)? else {
            return Ok(None);
        };
        if let Some(belief) = belief {
            reader.unlock(belief)?;
        }
        Ok(Some(reader))
    }

    /// Verifies a copy; `None` for the container of another level, which has the same name in that
    /// level's directories.
    fn prove(
        places: &[Arc<dyn Dir>],
        commit: &CommitRecord,
        container: &ContainerRef,
        file: Box<dyn File>,
    ) -> Result<Option<Reader>> {
        let found_len_bytes = file.len_bytes()?;
        let mut notes = Vec::new();
        if found_len_bytes != container.len_bytes {
            notes.push(format!(
                "{}: expected a length of {} bytes, found {found_len_bytes} bytes",
                file.name(),
                container.len_bytes
            ));
        }
        let block =
            read_block(file.as_ref(), 0).map_err(|error| error.next("use an older step"))?;
        let header = decode_header(file.as_ref(), &block)?;
        if header.level != commit.level && !off(Switch::LevelInHeader) {
            return Ok(None);
        }
        check_header(&header, commit, container).map_err(|error| error.at(file.name()))?;

        let stored =
            stored_manifest(file.as_ref(), header_crc(&block), container).and_then(|manifest| {
                check_manifest(&manifest, commit, container, container.len_bytes)?;
                Ok(manifest)
            });
        let manifest = match stored {
            Ok(manifest) => manifest,
            Err(damage) if damage.kind() == ErrorKind::Corrupt && !off(Switch::Rebuild) => {
                let manifest = rebuild(file.as_ref(), &header, commit, container);
                let manifest = manifest.map_err(|failed| {
                    let both = [&damage, &failed].map(|error| without_next(error.message()));
                    Error::new(damage.kind(), both.join("; ")).next("use an older step")
                })?;
                notes.push(format!(
                    "{}; the manifest was rebuilt from the rank records and its digest agrees",
                    damage.what()
                ));
                manifest
            }
            Err(other) => return Err(other),
        };

        let stripes = manifest.stores.iter().skip(1);
        let stripes = stripes
            .map(|stripe| find(places, stripe))
            .collect::<Result<_>>()?;
        Ok(Some(Reader {
            places: places.to_vec(),
            commit: commit.clone(),
            header,
            manifest,
            file_len_bytes: container.len_bytes,
            file,
            stripes,
            referred: Mutex::default(),
            other_copies: Mutex::default(),
            owners: Mutex::default(),
            notes: Mutex::new(notes),
            belief: None,
            key: None,
            digest: container.manifest_digest,
            shared: None,
            memory: None,
        }))
    }

    /// Checks whether this copy is believed, and takes its key.
    fn unlock(&mut self, belief: &Belief) -> Result<()> {
        let key = belief.trust.open(&self.header, belief.proof);
        let key = key.map_err(|error| match (error.kind(), belief.proof) {
            // The record and the container have the same writer and key, so the header is not the
            // one that was written.
            (ErrorKind::Invalid, Proof::Sealed) => Error::corrupt(
                "forged: the container names another key than its commit record was sealed with",
            )
            .next(WHO_CAN_WRITE),
            _ => error,
        });
        let place = || format!("step {}, {}", self.manifest.step, self.own_file().name());
        self.key = key.map_err(|error| error.at(place()))?.map(Arc::new);
        self.belief = Some(belief.clone());
        Ok(())
    }

    /// From now on, extents that other ranks of the node may need are read through `shared`.
    pub(crate) fn share(&mut self, shared: Option<&Arc<SharedReads>>) {
        self.shared = shared.cloned();
    }

    /// Whether data cannot be read without a key.
    pub fn is_locked(&self) -> bool {
        self.header.encryption.is_some() && self.key.is_none()
    }

    fn has_keys(&self) -> bool {
        let belief = self.belief.as_ref();
        belief.is_some_and(|belief| belief.trust.has_key())
    }

    /// Whether extents are encrypted.
    pub fn is_encrypted(&self) -> bool {
        self.header.encryption.is_some()
    }

    /// What the container holds.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Faults found so far that do not harm the data; each is returned once.
    pub fn take_notes(&self) -> Vec<String> {
        let mut notes = self.notes.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *notes)
    }

    /// Notes that the copy in this directory is used, and what was wrong with the worst copy before
    /// it.
    fn pass_over(&self, used: &dyn Dir, error: &Error) {
        let mut notes = self.notes.lock().unwrap_or_else(PoisonError::into_inner);
        notes.push(format!(
            "another copy is used ({}): {}",
            used.path().display(),
            without_next(error.message())
        ));
    }

    /// Number of bytes of the container's stripes, as found.
    pub fn stripe_bytes(&self) -> u64 {
        self.stripes
            .iter()
            .filter_map(|store| store.len_bytes().ok())
            .sum()
    }

    /// The region of a rank in this container.
    pub fn region(&self, rank: Rank, name: &str) -> Option<&RegionRecord> {
        self.rank(rank)?
            .regions
            .iter()
            .find(|region| region.name == name)
    }

    /// Reads a region into place and verifies it. `into` must have exactly the region's length.
    ///
    /// # Errors
    /// `Invalid` for a target of another length; `Corrupt` with file, rank, region and byte ranges
    /// if a checksum disagrees or the file ends early.
    pub fn read_region(&self, rank: Rank, region: &RegionRecord, into: Span) -> Result<()> {
        let mut buffers = Buffers::default();
        self.each_target(rank, region, (into, false), &mut |_, source, target, _| {
            source.read(target, &mut buffers).map(|()| true)
        })
    }

    /// Calls `work` as [`Self::each_source`] does, with each extent of the region and its place in
    /// the target.
    fn each_target(
        &self,
        rank: Rank,
        region: &RegionRecord,
        (into, in_any_order): (Span, bool),
        work: &mut dyn FnMut(&Reader, Source<'_>, Span, bool) -> Result<bool>,
    ) -> Result<()> {
        if into.len_bytes() as u64 != region.len_bytes && !off(Switch::TargetLength) {
            return Err(Error::invalid(format!(
                "region {:?} of rank {rank}: expected a target of {} bytes, found {} bytes",
                region.name,
                region.len_bytes,
                into.len_bytes()
            ))
            .next("ask for the stored size and allocate that"));
        }
        adds_up(rank, region)?;
        let how: (&dyn Fn(_) -> bool, _) = (&|_| true, in_any_order);
        self.each_source(rank, region, how, &mut |reader, source, may_wait| {
            let target = into.sub(as_usize(source.at)?, as_usize(source.extent.len_bytes)?);
            work(reader, source, target, may_wait)
        })
    }

    /// Calls `work` with each extent of the region that holds wanted bytes, in order or, if that is
    /// `in_any_order`, first with those that other ranks of the node have read. If `work` may not
    /// wait for other ranks, it may return `false`, and is called again later.
    fn each_source(
        &self,
        rank: Rank,
        region: &RegionRecord,
        (wanted, in_any_order): (&dyn Fn(Range<u64>) -> bool, bool),
        work: &mut dyn FnMut(&Reader, Source<'_>, bool) -> Result<bool>,
    ) -> Result<()> {
        self.with_owner(rank, region, |reader, rank, region| {
            let (mut at, mut extents) = (0u64, Vec::new());
            for extent in &region.extents {
                let end = at.saturating_add(extent.len_bytes);
                extents.extend(wanted(at..end).then_some((at, extent)));
                at = end;
            }
            let shared = reader.shared.as_deref().filter(|_| in_any_order);
            let key_of = |(at, extent): &(u64, &Extent)| {
                let takes = shared.is_some_and(|shared| shared.takes(extent.len_bytes));
                takes.then(|| key(&reader.digest, rank, &region.name, *at))
            };
            let mut order = Order::new(shared, extents.iter().map(key_of).collect());
            let ends = together::ends(&extents);
            while let Some((next, may_wait)) = order.next() {
                let (Some(&(at, extent)), Some(&end)) = (extents.get(next), ends.get(next)) else {
                    return Err(Error::internal("an extent that nobody asked for"));
                };
                let mut source = reader.source(rank, region, at, extent)?;
                source.run_end = end;
                match work(reader, source, may_wait)? {
                    true => order.taken(),
                    false => order.is_busy(),
                }
            }
            Ok(())
        })
    }

    /// Passes a region to `sink` piece by piece and in order, each with its offset in the region,
    /// and only after the checksum of its extent was verified.
    ///
    /// # Errors
    /// As [`Reader::read_region`]; or the error that `sink` returns.
    pub fn stream_region(
        &self,
        rank: Rank,
        region: &RegionRecord,
        sink: &mut dyn FnMut(u64, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let mut buffers = Buffers::default();
        self.each_source(rank, region, (&|_| true, false), &mut |_, source, _| {
            source.stream(&mut buffers, sink).map(|()| true)
        })
    }

    /// Verifies each wanted extent of the region, and continues after a damaged one. Of an
    /// encrypted extent without its key, only the stored bytes are verified; their number is
    /// returned.
    pub(crate) fn check_region(
        &self,
        (rank, region): (Rank, &RegionRecord),
        wanted: &dyn Fn(&Extent) -> bool,
        damage: &mut dyn FnMut(Error),
        progress: &mut dyn FnMut(u64),
    ) -> u64 {
        let mut buffers = Buffers::default();
        let (mut at, mut locked_bytes) = (0, 0);
        for extent in &region.extents {
            if !wanted(extent) {
                at += extent.len_bytes;
                continue;
            }
            let checked = self.source(rank, region, at, extent).and_then(|source| {
                if source.encrypted && !self.has_keys() {
                    locked_bytes += extent.len_bytes;
                    return source.check_stored(&mut buffers);
                }
                source.stream(&mut buffers, &mut |_, _| Ok(()))
            });
            if let Err(error) = checked {
                damage(error);
            }
            progress(extent.len_bytes);
            at += extent.len_bytes;
        }
        locked_bytes
    }

    fn rank(&self, rank: Rank) -> Option<&RankRecord> {
        let index = self
            .manifest
            .ranks
            .binary_search_by_key(&rank, |record| record.rank)
            .ok()?;
        self.manifest.ranks.get(index)
    }

    /// Where the bytes of an extent are, and how messages describe them.
    fn source<'a>(
        &'a self,
        rank: Rank,
        region: &'a RegionRecord,
        at: u64,
        extent: &'a Extent,
    ) -> Result<Source<'a>> {
        let (file, key) = match &extent.container {
            None => match self.store(extent.store) {
                Some(file) => (Stored::Own(file), self.key.clone()),
                None => {
                    return Err(Error::corrupt(format!(
                        "store {} is not in the manifest",
                        extent.store
                    )));
                }
            },
            Some(name) => {
                let (file, key) = self.referred(name).map_err(|error| {
                    error.at(format!(
                        "step {}, rank {rank}, region {:?}, bytes {at}..{}",
                        self.manifest.step,
                        region.name,
                        at + extent.len_bytes
                    ))
                })?;
                (Stored::Other(file), key)
            }
        };
        let mut source = Source {
            step: self.manifest.step,
            rank,
            region,
            at,
            extent,
            run_end: 0,
            file,
            encrypted: false,
            key: None,
            held: None,
        };
        let encoding = extent
            .check_encoding()
            .map_err(|error| error.at(source.place()))?;
        source.encrypted = encoding.encrypted;
        // Breaks if: it is read all the same; anybody can write it, because it has no tag.
        if self.header.encryption.is_some() && !encoding.encrypted && !off(Switch::PlainExtent) {
            return Err(
                Error::corrupt("an unencrypted extent in an encrypted container")
                    .at(source.place())
                    .next(WHO_CAN_WRITE),
            );
        }
        if encoding.encrypted && key.is_none() && self.has_keys() {
            return Err(
                Error::corrupt("an encrypted extent in an unencrypted container")
                    .at(source.place()),
            );
        }
        source.key = key.filter(|_| encoding.encrypted);
        let readable = source.key.is_some() || !encoding.encrypted;
        source.held = self.held(&source).filter(|_| readable);
        Ok(source)
    }

    pub(crate) fn header(&self) -> &ContainerHeader {
        &self.header
    }

    fn store(&self, index: u16) -> Option<&dyn File> {
        match usize::from(index).checked_sub(1) {
            None => Some(self.own_file()),
            Some(stripe) => self.stripes.get(stripe).map(AsRef::as_ref),
        }
    }

    pub(crate) fn own_file(&self) -> &dyn File {
        self.file.as_ref()
    }

    pub(crate) fn file_len_bytes(&self) -> u64 {
        self.file_len_bytes
    }
}

/// Whether an error says more about why no copy can be used than the known one. A key that the user
/// can give ranks before damage, and damage before an unreadable place.
fn is_more_specific(error: &Error, known: Option<&Error>) -> bool {
    let weight = |error: &Error| match error.kind() {
        ErrorKind::Invalid => 2,
        ErrorKind::Corrupt => 1,
        _ => 0,
    };
    known.is_none_or(|known| weight(error) > weight(known))
}

fn find(places: &[Arc<dyn Dir>], name: &str) -> Result<Box<dyn File>> {
    let mut failed = None;
    for dir in places {
        match dir.open(name) {
            Ok(file) => return Ok(file),
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => {
                failed.get_or_insert(error);
            }
        }
    }
    Err(failed.unwrap_or_else(|| {
        Error::not_found(format!(
            "{name} is in none of these places: {}",
            listed(places)
        ))
        .next("give the directory that holds it, or use an older step")
    }))
}

fn as_usize(value: u64) -> Result<usize> {
    usize::try_from(value)
        .map_err(|_| Error::invalid(format!("{value} bytes are beyond the address space")))
}

/// Requires that the extents of a region are as long as the region.
fn adds_up(rank: Rank, region: &RegionRecord) -> Result<()> {
    let stored = region
        .extents
        .iter()
        .try_fold(0u64, |sum, extent| sum.checked_add(extent.len_bytes));
    let all = region.same_as.is_some() || stored == Some(region.len_bytes);
    if !all && !off(Switch::RegionSum) {
        return Err(Error::corrupt(format!(
            "region {:?} of rank {rank}: its extents do not add up to {} bytes",
            region.name, region.len_bytes
        )));
    }
    Ok(())
}

/// One metadata block at `at`.
pub(crate) fn read_block(file: &dyn File, at: u64) -> Result<[u8; BLOCK_BYTES]> {
    let mut block = [0; BLOCK_BYTES];
    file.read_at(&mut block, at)?;
    Ok(block)
}

/// Fails with `Corrupt`, naming the field, unless the two agree.
fn agree<T: PartialEq + std::fmt::Display>(what: &str, expected: T, found: T) -> Result<()> {
    if expected == found || off(Switch::HeaderFields) {
        return Ok(());
    }
    Err(Error::corrupt(format!(
        "{what}: the commit record says {expected}, found {found}"
    ))
    .next("use an older step"))
}

fn check_header(
    header: &ContainerHeader,
    commit: &CommitRecord,
    container: &ContainerRef,
) -> Result<()> {
    agree(
        "job in the header",
        commit.job.as_str(),
        header.job.as_str(),
    )?;
    agree("step in the header", commit.step, header.step)?;
    agree("epoch in the header", commit.epoch, header.epoch)?;
    agree("node in the header", container.node, header.node)?;
    agree("writer in the header", container.writer, header.writer)?;
    agree(
        "ranks of the job in the header",
        commit.world_size,
        header.world_size,
    )
}

fn check_manifest(
    manifest: &Manifest,
    commit: &CommitRecord,
    container: &ContainerRef,
    file_len_bytes: u64,
) -> Result<()> {
    manifest.validate(file_len_bytes)?;
    agree(
        "job in the manifest",
        commit.job.as_str(),
        manifest.job.as_str(),
    )?;
    agree("step in the manifest", commit.step, manifest.step)?;
    agree("epoch in the manifest", commit.epoch, manifest.epoch)?;
    agree("level in the manifest", commit.level, manifest.level)?;
    agree("node in the manifest", container.node, manifest.node)?;
    agree("writer in the manifest", container.writer, manifest.writer)?;
    agree(
        "ranks of the job in the manifest",
        commit.world_size,
        manifest.world_size,
    )?;
    let regions = manifest.ranks.iter().flat_map(|record| &record.regions);
    for older in regions
        .flat_map(|region| &region.extents)
        .filter_map(|extent| extent.container.as_deref())
    {
        let step = manifest.referred_step(older)?;
        // Breaks if: this is left out; prune would not know that the older one is needed.
        if container.refers_to.binary_search(&step).is_err() && !off(Switch::ReferredNamed) {
            return Err(Error::corrupt(format!(
                "the manifest refers to {older}, the commit record names {:?} as the older steps it may refer to",
                container.refers_to
            )));
        }
    }
    match manifest
        .ranks
        .iter()
        .find(|record| !container.holds(record.rank))
    {
        None => Ok(()),
        Some(record) => Err(Error::corrupt(format!(
            "the manifest holds rank {}, the commit record does not expect it there",
            record.rank
        ))),
    }
}

/// Reads the trailer and the manifest from the file.
fn stored_manifest(file: &dyn File, header_crc: u64, container: &ContainerRef) -> Result<Manifest> {
    let len = container.len_bytes;
    let trailer_at = len
        .checked_sub(TRAILER_BYTES as u64)
        .ok_or_else(|| Error::corrupt(format!("{len} bytes cannot hold a container")))?;
    let mut sector = [0; TRAILER_BYTES];
    file.read_at(&mut sector, trailer_at)?;
    let place = || format!("{}: trailer at bytes {trailer_at}..{len}", file.name());
    let trailer = Trailer::decode(&sector).map_err(|error| error.at(place()))?;
    agree("file length in the trailer", len, trailer.file_len_bytes)
        .map_err(|error| error.at(place()))?;
    if trailer.header_crc != header_crc && !off(Switch::HeaderInTrailer) {
        return Err(Error::corrupt(format!(
            "header and trailer are not of one file: expected CRC-64 {:016x} of the header, found \
             {header_crc:016x}",
            trailer.header_crc
        ))
        .at(place()));
    }
    // Inside the file and bounded; the decoder has checked that.
    let manifest_len = trailer.manifest_len_bytes;
    let mut bytes = zeroed(as_usize(manifest_len)?).map_err(|error| error.at(place()))?;
    file.read_at(&mut bytes, trailer.manifest_at)?;
    let place = || {
        format!(
            "{}: manifest at bytes {}..{}",
            file.name(),
            trailer.manifest_at,
            trailer.manifest_at + manifest_len
        )
    };
    check_digest(&bytes, container).map_err(|error| error.at(place()))?;
    Manifest::decode(&bytes).map_err(|error| error.at(place()))
}

fn check_digest(bytes: &[u8], container: &ContainerRef) -> Result<()> {
    let found = Manifest::digest(bytes);
    if found == container.manifest_digest || off(Switch::Digest) {
        return Ok(());
    }
    // Breaks if: this returns Ok; a manifest of another checkpoint would be believed.
    Err(Error::corrupt(format!(
        "expected BLAKE3 {} (from the commit record), found {}",
        short(&container.manifest_digest),
        short(&found)
    )))
}

fn short(digest: &[u8; 32]) -> String {
    format!("{}…", orcheck_format::hex(&digest[..8]))
}

/// The places, for a person; all replicas on other nodes are one place.
pub(crate) fn listed(places: &[Arc<dyn Dir>]) -> String {
    let (here, others): (Vec<_>, Vec<_>) =
        (places.iter().map(|dir| dir.path())).partition(|path| !path.starts_with(OTHER_NODES));
    let mut text: Vec<String> = here.iter().map(|path| path.display().to_string()).collect();
    text.extend((!others.is_empty()).then(|| "the other nodes".to_owned()));
    text.join(", ")
}

fn decode_header(file: &dyn File, block: &[u8; BLOCK_BYTES]) -> Result<ContainerHeader> {
    ContainerHeader::decode(block)
        .map_err(|error| error.at(format!("{}: header at bytes 0..{BLOCK_BYTES}", file.name())))
}

fn read_header(file: &dyn File) -> Result<ContainerHeader> {
    decode_header(file, &read_block(file, 0)?)
}
