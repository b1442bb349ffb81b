//! Writes one container: sequentially, aligned, and durable when [`ContainerWriter::finish`]
//! returns.
//!
//! ```text
//! header │ rank header │ stream … │ rank record │ … │ manifest │ trailer (end of last block)
//! ```
//!
//! A striped container (mode `traditional`) keeps only the small blocks in its own file. Unit `u`
//! of rank `r`'s stream goes to stripe file `(u + r) mod S`, 64 KiB at a time.
//!
//! In an incremental capture the stream holds only what this step stores, its length is known only
//! at its end, and other extents lie in older containers of the same writer (`ledger.rs`). In an
//! encoded container, pieces have other lengths than in the pool: see `container/encoded.rs`.
//!
//! Invariants:
//! 1. Every write begins where the last write to its file ended, at a multiple of a block.
//! 2. `finish` = manifest, trailer, truncate, fsync of every file, close, fsync of every directory,
//!    in this order. After an error anywhere the container is lost. It is also lost if the
//!    configured path no longer leads to its directory.
//! 3. An unfinished container is removed (or, after a crash, collected by prune): no commit record
//!    ever names it. A container that may replace an older file does so only when it is whole.
//!
//! Survives: short writes (in `io`), a full disk (fallocate reports it early), a failed fsync or
//! close. Not here: making it visible (`commit.rs`).

mod encoded;

use crate::directory::prune::coming_name;
use crate::directory::{TargetFailure, create_fitting};
use crate::encoding::ContainerKey;
use crate::flush::ledger::Ledger;
use encoded::Encoded;
use orcheck_format::disk::{
    BLOCK_BYTES, ContainerHeader, ContainerRef, Extent, Features, FileName, MAX_METADATA_BYTES,
    Manifest, RankHeader, RankRecord, STREAM_LEN_UNKNOWN, STRIPE_UNIT_BYTES, Trailer,
    decode_rank_record, encode_rank_record, header_crc, ranks_to_ranges,
};
use orcheck_format::sabotage::{Switch, off};
use orcheck_format::{Error, ErrorKind, Rank, Result, Step, TargetId};
use orcheck_io::disk::{Create, Dir, File};
use orcheck_pool::Pool;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Stripe unit of mode `traditional`.
pub const STRIPE_BYTES: u64 = STRIPE_UNIT_BYTES;

/// A stream of unknown length gets space in steps of this size, and no more is reserved for what is
/// likely to follow. Containers that grow side by side then lie in long runs and not between each
/// other. (Reserving in memory costs time, and a small container must not fill a small quota.)
const ROOM_BYTES: u64 = 64 << 20;

/// Where a container goes.
pub struct Target {
    /// Directory of the container's own file.
    pub dir: Arc<dyn Dir>,
    /// Server index of that directory (0 at level `node`).
    pub server: TargetId,
    /// Server index and directory of each stripe file; empty if the container is not striped.
    pub stripes: Vec<(TargetId, Arc<dyn Dir>)>,
    /// Whether to use direct I/O if the file system supports it.
    pub direct: bool,
    /// The number of ranks that it will hold.
    pub ranks: u64,
    /// The files appear under their final names only when they are whole; until then they have
    /// temporary names of the epoch with this counter. Used for a directory that may hold older
    /// files of the same names.
    pub coming: Option<u64>,
    /// Waits for whoever is removing files there; a reservation that finds no room calls it and
    /// tries once more.
    pub settled: Settled,
}

/// Waits, for a bounded time, until nobody is removing files.
pub type Settled = Arc<dyn Fn() + Send + Sync>;

struct Store {
    server: TargetId,
    file: Box<dyn File>,
    dir: Arc<dyn Dir>,
    name: String,
    /// Its name until it is whole.
    coming: Option<String>,
    at: u64,
    /// The offset up to which space is reserved.
    reserved: u64,
    settled: Settled,
}

impl Store {
    fn create(server: TargetId, dir: &Arc<dyn Dir>, name: String, target: &Target) -> Result<Self> {
        let coming = target.coming.map(|epoch| coming_name(&name, epoch));
        let first = coming.as_ref().unwrap_or(&name);
        let how = if target.direct {
            Create::Direct
        } else {
            Create::Buffered
        };
        Ok(Self {
            server,
            file: create_fitting(dir.as_ref(), first, how)?,
            dir: Arc::clone(dir),
            name,
            coming,
            at: 0,
            reserved: 0,
            settled: Arc::clone(&target.settled),
        })
    }

    /// Reserves space for this many more bytes, and for `likely` bytes that may follow if there is
    /// room.
    fn reserve(&mut self, more: u64, likely: u64) -> Result<()> {
        let end = self.at + more;
        if end <= self.reserved {
            return Ok(());
        }
        let with = end + likely.min(ROOM_BYTES);
        self.reserved = match self.file.allocate(with) {
            Err(error) if error.kind() == ErrorKind::NoSpace => {
                self.reserve_exactly(end)?;
                end
            }
            reserved => reserved.map(|()| with)?,
        };
        Ok(())
    }

    fn reserve_exactly(&self, end: u64) -> Result<()> {
        match self.file.allocate(end) {
            // Breaks if: this is the end; on a disk with room for one checkpoint more than are
            // kept, a checkpoint right after a commit meets what that commit has replaced.
            Err(error) if error.kind() == ErrorKind::NoSpace => {
                (self.settled)();
                self.file.allocate(end)
            }
            reserved => reserved,
        }
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.file.write_at(bytes, self.at)?;
        self.at += bytes.len() as u64;
        Ok(())
    }

    fn write_padded(&mut self, mut bytes: Vec<u8>) -> Result<()> {
        bytes.resize(bytes.len().next_multiple_of(BLOCK_BYTES), 0);
        self.write(&bytes)
    }

    fn make_durable(self) -> Result<()> {
        // Only where there is a surplus: a file system whose server was lost may keep a truncation
        // waiting for minutes (MooseFS: as long as the chunk is locked for a writer), but reports
        // the loss at once to a sync.
        if !off(Switch::TruncateSurplus) && self.file.len_bytes()? != self.at {
            self.file.truncate(self.at)?;
        }
        if !off(Switch::FsyncContainer) {
            self.file.sync()?;
        }
        self.file.close()?;
        if let Some(coming) = &self.coming {
            self.dir.rename(coming, &self.name)?;
        }
        if !off(Switch::FsyncContainerDirectory) {
            self.dir.sync()?;
        }
        self.dir.check_path()
    }

    /// All names that it may have.
    fn names(&self) -> impl Iterator<Item = (Arc<dyn Dir>, String)> + '_ {
        let names = self.coming.iter().chain([&self.name]);
        names.map(|name| (Arc::clone(&self.dir), name.clone()))
    }
}

/// A container being written.
pub struct ContainerWriter {
    header: ContainerHeader,
    header_crc: u64,
    /// Server whose file was used last: if something failed, the one that failed.
    used: TargetId,
    main: Store,
    stripes: Vec<Store>,
    manifest: Manifest,
    ranks: u64,
    /// Older steps that the ranks refer to.
    refers_to: BTreeSet<Step>,
    stream: Option<Stream>,
    encoded: Option<Encoded>,
    /// Bytes of all streams so far, as the ranks handed them over.
    flushed_bytes: u64,
}

/// What a rank announces about its stream.
#[derive(Debug, Clone, Copy)]
pub struct Announced {
    /// Its length, or its maximum length.
    pub stream_len_bytes: u64,
    /// Longest extent.
    pub cut_bytes: u32,
    /// It may turn out shorter.
    pub may_shrink: bool,
}

/// The rank whose stream is being written.
struct Stream {
    rank: Rank,
    announced: Announced,
    at: u64,
    base: u64,
    /// Physical offset of every stripe unit so far.
    units: Vec<u64>,
}

impl Stream {
    /// # Errors
    /// Corrupt: the rank sends more than it announced.
    fn require_announced(&self, end_bytes: u64) -> Result<()> {
        if end_bytes > self.announced.stream_len_bytes {
            return Err(Error::corrupt(format!(
                "rank {} sends a piece behind the {} bytes it announced",
                self.rank, self.announced.stream_len_bytes
            )));
        }
        Ok(())
    }
}

impl ContainerWriter {
    /// Creates the files and writes the header, whose features say whether pieces are encoded;
    /// `key` encrypts them.
    ///
    /// # Errors
    /// The server that failed, and its directory's error.
    pub fn create(
        header: ContainerHeader,
        node_name: &str,
        target: &Target,
        key: Option<ContainerKey>,
    ) -> std::result::Result<Self, TargetFailure> {
        let encoded =
            (header.features.incompat & Features::ENCODED != 0).then(|| Encoded::new(key));
        let (step, epoch, node, writer) = (header.step, header.epoch, header.node, header.writer);
        let run = epoch.run.short_bytes();
        let name = FileName::Container {
            step,
            epoch: epoch.counter,
            run,
            node,
            writer,
        }
        .to_string();
        let main = Store::create(target.server, &target.dir, name.clone(), target)
            .map_err(|error| TargetFailure::of(target.server, error))?;
        let mut this = Self {
            manifest: Manifest {
                job: header.job.clone(),
                step,
                epoch,
                level: header.level,
                node,
                node_name: node_name.to_owned(),
                writer,
                world_size: header.world_size,
                stores: vec![name],
                ranks: Vec::new(),
            },
            header,
            ranks: target.ranks,
            header_crc: 0,
            used: target.server,
            main,
            stripes: Vec::new(),
            refers_to: BTreeSet::new(),
            stream: None,
            encoded,
            flushed_bytes: 0,
        };
        let begun = this.begin(target, run);
        if let Err(error) = begun {
            let failed = TargetFailure::of(this.used, error);
            this.abort();
            return Err(failed);
        }
        Ok(this)
    }

    fn begin(&mut self, target: &Target, run: [u8; 4]) -> Result<()> {
        let ContainerHeader {
            step,
            epoch,
            node,
            writer,
            ..
        } = self.header;
        for (number, (server, dir)) in target.stripes.iter().enumerate() {
            self.used = *server;
            let name = FileName::Stripe {
                step,
                epoch: epoch.counter,
                run,
                node,
                writer,
                stripe: number as u32 + 1,
            }
            .to_string();
            self.stripes
                .push(Store::create(*server, dir, name.clone(), target)?);
            self.manifest.stores.push(name);
        }
        self.used = self.main.server;
        let block = self.header.encode();
        self.header_crc = header_crc(&block);
        self.main.write(&block)
    }

    /// The server whose file was used last; after an error, the one that failed.
    #[must_use]
    pub(crate) fn used_server(&self) -> TargetId {
        self.used
    }

    /// Begins the stream of a rank.
    ///
    /// # Errors
    /// NoSpace as early as the file system can report it.
    pub fn begin_rank(&mut self, rank: Rank, announced: Announced) -> Result<()> {
        let Announced {
            stream_len_bytes,
            cut_bytes,
            may_shrink,
        } = announced;
        let header = RankHeader {
            rank,
            step: self.header.step,
            epoch: self.header.epoch,
            stream_len_bytes: if may_shrink || self.encoded.is_some() {
                STREAM_LEN_UNKNOWN
            } else {
                stream_len_bytes
            },
            cut_bytes,
        };
        // A disk without room for the whole state may still have room for what this step stores.
        let now_bytes = if may_shrink {
            stream_len_bytes.min(ROOM_BYTES)
        } else {
            stream_len_bytes
        };
        // The other ranks' streams are probably as long.
        let others = self
            .ranks
            .saturating_sub(self.manifest.ranks.len() as u64 + 1);
        if self.encoded.is_some() {
            // Space is reserved as needed.
        } else if self.stripes.is_empty() {
            let now_bytes = 4 * BLOCK_BYTES as u64 + now_bytes;
            self.main
                .reserve(now_bytes, others.saturating_mul(now_bytes))?;
        } else {
            let units = stream_len_bytes
                .div_ceil(STRIPE_BYTES)
                .div_ceil(self.stripes.len() as u64);
            let now_bytes = units * STRIPE_BYTES;
            for store in &mut self.stripes {
                self.used = store.server;
                store.reserve(now_bytes, others.saturating_mul(now_bytes))?;
            }
        }
        self.used = self.main.server;
        self.main.write(&header.encode())?;
        let base = self.main.at;
        self.stream = Some(Stream {
            rank,
            announced,
            at: 0,
            base,
            units: Vec::new(),
        });
        Ok(())
    }

    /// Writes the next bytes of the stream, straight from the pool.
    ///
    /// # Errors
    /// The error of the file; Internal for more bytes than announced.
    pub fn append(&mut self, pool: &Pool, pool_at_bytes: u64, len_bytes: u64) -> Result<()> {
        let Some(stream) = &mut self.stream else {
            return Err(Error::internal("stream bytes outside a rank"));
        };
        let most_bytes = stream.announced.stream_len_bytes;
        if len_bytes > most_bytes - stream.at && !off(Switch::Announced) {
            return Err(Error::corrupt(format!(
                "rank {} sends {} bytes more than the {most_bytes} it announced",
                stream.rank,
                stream.at + len_bytes - most_bytes,
            )));
        }
        if self.stripes.is_empty() {
            let left_bytes = most_bytes - stream.at - len_bytes;
            self.main.reserve(len_bytes, left_bytes)?;
            pool.write_to(
                self.main.file.as_ref(),
                pool_at_bytes,
                len_bytes,
                self.main.at,
            )?;
            self.main.at += len_bytes;
            stream.at += len_bytes;
            return Ok(());
        }
        let mut done = 0;
        while done < len_bytes {
            let unit = stream.at / STRIPE_BYTES;
            let take = (len_bytes - done).min(STRIPE_BYTES - stream.at % STRIPE_BYTES);
            let stripe = ((unit + u64::from(stream.rank)) % self.stripes.len() as u64) as usize;
            let store = &mut self.stripes[stripe];
            self.used = store.server;
            if stream.at.is_multiple_of(STRIPE_BYTES) {
                stream.units.push(store.at);
            }
            pool.write_to(store.file.as_ref(), pool_at_bytes + done, take, store.at)?;
            store.at += take;
            stream.at += take;
            done += take;
        }
        Ok(())
    }

    /// Its stripe files, each with the server that has it.
    pub(crate) fn stripe_files(&self) -> Vec<(TargetId, String)> {
        let stripes = self.stripes.iter();
        stripes
            .map(|store| (store.server, store.name.clone()))
            .collect()
    }

    /// Bytes of streams received, and the bytes that they and everything else take in files.
    #[must_use]
    pub fn written(&self) -> (u64, u64) {
        let stripes: u64 = self.stripes.iter().map(|store| store.at).sum();
        (self.flushed_bytes, self.main.at + stripes)
    }

    /// Ends a rank with its framed record, whose extents become absolute in the manifest. Extents
    /// in containers of the steps that it `refers_to` are looked up in the ledger; its own are
    /// entered there.
    ///
    /// # Errors
    /// Corrupt if the record does not fit the stream; otherwise the error of the ledger.
    pub fn end_rank(
        &mut self,
        mut framed: Vec<u8>,
        refers_to: &[Step],
        ledger: &mut Ledger,
    ) -> Result<()> {
        let Some(stream) = self.stream.take() else {
            return Err(Error::internal("a rank record outside a rank"));
        };
        let level = self.header.level;
        let mut sent = SentRecord::read(&framed, &stream, refers_to)?;
        if !refers_to.is_empty() {
            let manifest = &self.manifest;
            let step_of = |name: &str| {
                let step = manifest.referred_step(name).ok()?;
                (refers_to.contains(&step) || off(Switch::ReferenceStep)).then_some(step)
            };
            ledger.resolve(level, &mut sent.0, step_of)?;
            self.refers_to.extend(refers_to);
        }
        self.flushed_bytes += stream.at;
        // Encoded extents lie elsewhere in the container than in the rank's stream.
        let sent_at: Vec<u64> = sent.own().map(|extent| extent.physical).collect();
        let mut stored_len_bytes = stream.at;
        if let Some(encoded) = &mut self.encoded {
            self.used = self.main.server;
            encoded.close(&mut self.main)?;
            encoded.rewrite(&mut sent.0)?;
            stored_len_bytes = self.main.at - stream.base;
            sent.0.stream_len_bytes = stored_len_bytes;
        }
        if !refers_to.is_empty() || self.encoded.is_some() {
            // On disk, the record must be readable without the ledger and say where its bytes are.
            framed = encode_rank_record(&sent.0);
        }
        let stripes = self.stripes.len() as u64;
        let PlacedRecord(record) = sent.place(&stream, stored_len_bytes, stripes)?;
        self.used = self.main.server;
        self.main.write_padded(framed)?;
        if stream.announced.may_shrink {
            let own = own_extents(&record).cloned();
            let mut stored: Vec<(u64, Extent)> = match stripes {
                0 => sent_at.into_iter().zip(own).collect(),
                _ => Vec::new(),
            };
            // In stream order, which is not the order of the regions.
            stored.sort_by_key(|(stream_at, _)| *stream_at);
            ledger.enter((level, record.rank, self.header.step), refers_to, stored);
        }
        self.manifest.ranks.push(record);
        Ok(())
    }

    /// Writes manifest and trailer and makes everything durable.
    ///
    /// # Errors
    /// Any, with the server that failed: the container is lost, and removed where possible.
    pub fn finish(mut self) -> std::result::Result<ContainerRef, TargetFailure> {
        let reference = match self.seal() {
            Ok(reference) => reference,
            Err(error) => {
                let failed = TargetFailure::of(self.used, error);
                self.abort();
                return Err(failed);
            }
        };
        let dirs: Vec<(Arc<dyn Dir>, String)> = std::iter::once(&self.main)
            .chain(&self.stripes)
            .flat_map(Store::names)
            .collect();
        let durable = self
            .stripes
            .into_iter()
            .chain([self.main])
            .try_for_each(|store| {
                let server = store.server;
                store
                    .make_durable()
                    .map_err(|error| TargetFailure::of(server, error))
            });
        if let Err(failed) = durable {
            remove_all(&dirs);
            return Err(failed);
        }
        Ok(reference)
    }

    fn seal(&mut self) -> Result<ContainerRef> {
        // Ranks come in the order in which they were flushed; the manifest is in rank order.
        self.manifest.ranks.sort_by_key(|record| record.rank);
        let bytes = self.manifest.encode();
        if bytes.len() > MAX_METADATA_BYTES {
            return Err(Error::unsupported(format!(
                "the manifest of {} takes {} bytes; the format allows {MAX_METADATA_BYTES}",
                self.main.name,
                bytes.len()
            ))
            .next("protect fewer or larger regions, or use more nodes"));
        }
        let digest = Manifest::digest(&bytes);
        let manifest_at = self.main.at;
        let manifest_len_bytes = bytes.len() as u64;
        self.main.write_padded(bytes)?;
        let len_bytes = self.main.at + BLOCK_BYTES as u64;
        let trailer = Trailer {
            manifest_at,
            manifest_len_bytes,
            manifest_digest: digest,
            file_len_bytes: len_bytes,
            header_crc: self.header_crc,
        }
        .encode();
        let mut block = vec![0; BLOCK_BYTES];
        block[BLOCK_BYTES - trailer.len()..].copy_from_slice(&trailer);
        self.main.write(&block)?;
        let ranks: Vec<Rank> = self
            .manifest
            .ranks
            .iter()
            .map(|record| record.rank)
            .collect();
        Ok(ContainerRef {
            file: self.main.name.clone(),
            server: self.main.server,
            node: self.header.node,
            writer: self.header.writer,
            len_bytes,
            manifest_digest: digest,
            ranks: ranks_to_ranges(&ranks),
            refers_to: self.refers_to.iter().copied().collect(),
            holders: Vec::new(),
        })
    }

    /// Gives up the container and frees its space.
    pub fn abort(self) {
        let dirs: Vec<(Arc<dyn Dir>, String)> = std::iter::once(&self.main)
            .chain(&self.stripes)
            .flat_map(Store::names)
            .collect();
        remove_all(&dirs);
    }
}

/// Best effort: prune collects what cannot be removed now.
fn remove_all(files: &[(Arc<dyn Dir>, String)]) {
    if off(Switch::GivenUpGoes) {
        return;
    }
    for (dir, name) in files {
        let removed = dir.remove(name);
        debug_assert!(
            removed.is_ok()
                || removed
                    .as_ref()
                    .is_err_and(|e| e.kind() != ErrorKind::Invalid)
        );
    }
}

/// A rank's record as the rank sent it: its own extents are offsets in the rank's stream,
/// references are places in the streams of older steps.
struct SentRecord(RankRecord);

/// The same record as it is in the manifest: its extents are places in files. Only
/// [`SentRecord::place`] makes one.
struct PlacedRecord(RankRecord);

/// The extents that a rank stored in this container.
fn own_extents(record: &RankRecord) -> impl Iterator<Item = &Extent> {
    let extents = record.regions.iter().flat_map(|region| &region.extents);
    extents.filter(|extent| extent.container.is_none())
}

impl SentRecord {
    /// # Errors
    /// Corrupt if the record does not fit the stream, or refers to steps that were not named.
    fn read(framed: &[u8], stream: &Stream, refers_to: &[Step]) -> Result<Self> {
        let (record, used) = decode_rank_record(framed)?;
        let announced = stream.announced;
        let fits = used == framed.len()
            && record.rank == stream.rank
            && record.stream_len_bytes == stream.at
            && (stream.at == announced.stream_len_bytes || announced.may_shrink);
        if !fits && !off(Switch::RecordOfStream) {
            return Err(Error::corrupt(format!(
                "rank {}: its record (rank {}, {} of {} bytes read, a stream of {} bytes) does not fit the stream ({} of {} bytes)",
                stream.rank,
                record.rank,
                used,
                framed.len(),
                record.stream_len_bytes,
                stream.at,
                announced.stream_len_bytes,
            )));
        }
        let mut extents = record.regions.iter().flat_map(|region| &region.extents);
        let refers = extents.any(|extent| extent.container.is_some());
        // Breaks if: this is left out; a reference would go into the manifest as the rank wrote it,
        // pointing to no place in any file, and prune would not know of it.
        if refers && refers_to.is_empty() && !off(Switch::ReferencesNamed) {
            return Err(Error::corrupt(format!(
                "rank {} refers to older containers and named none",
                stream.rank
            )));
        }
        Ok(Self(record))
    }

    fn own(&self) -> impl Iterator<Item = &Extent> {
        own_extents(&self.0)
    }

    /// Gives each of the rank's own extents its place in a file: in the container or, with
    /// `stripes`, in a stripe file.
    ///
    /// # Errors
    /// Corrupt for an extent outside the `stored_len_bytes` of the stream.
    fn place(self, stream: &Stream, stored_len_bytes: u64, stripes: u64) -> Result<PlacedRecord> {
        let Self(mut record) = self;
        let extents = (record.regions.iter_mut()).flat_map(|region| &mut region.extents);
        for extent in extents.filter(|extent| extent.container.is_none()) {
            let end = extent.physical.checked_add(extent.stored_len_bytes);
            let outside = end.is_none_or(|end| end > stored_len_bytes);
            if outside && !off(Switch::ExtentInStream) {
                return Err(Error::corrupt(format!(
                    "rank {}: an extent of {} bytes at {} lies outside the stream of {stored_len_bytes} bytes",
                    stream.rank, extent.stored_len_bytes, extent.physical
                )));
            }
            if stripes == 0 {
                extent.physical += stream.base;
            } else {
                let unit = extent.physical / STRIPE_BYTES;
                extent.store = (1 + (unit + u64::from(stream.rank)) % stripes) as u16;
                extent.physical = stream.units[unit as usize] + extent.physical % STRIPE_BYTES;
            }
        }
        Ok(PlacedRecord(record))
    }
}
