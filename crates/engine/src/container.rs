//! Writing one container: sequential, aligned, durable when [`ContainerWriter::finish`] returns.
//!
//! ```text
//! header │ rank header │ stream … │ rank record │ … │ manifest │ trailer (end of last block)
//! ```
//!
//! A striped container (mode `traditional`) keeps only the small blocks in its own file; unit `u`
//! of rank `r`'s stream goes to stripe file `(u + r) mod S`, 64 KiB at a time.
//!
//! Invariants:
//! 1. Every write begins where the last one of its file ended, at a multiple of a block.
//! 2. `finish` = manifest, trailer, truncate, fsync of every file, close, fsync of every
//!    directory, in this order; an error anywhere means the container is lost.
//! 3. A container that is not finished is removed (or, after a crash, collected by prune): no
//!    commit record ever names it.
//!
//! Survives: short writes (in `io`), a full disk (fallocate says so early), failed fsync and
//! close. Not here: making it visible (`commit.rs`).

use orcheck_format::container::{
    BLOCK_BYTES, ContainerHeader, RankHeader, STRIPE_UNIT_BYTES, Trailer, decode_rank_record,
    header_crc,
};
use orcheck_format::error::{Error, ErrorKind, Result};
use orcheck_format::manifest::{MAX_METADATA_BYTES, Manifest};
use orcheck_format::names::FileName;
use orcheck_format::record::{ContainerRef, ranks_to_ranges};
use orcheck_io::dir::{Create, Dir};
use orcheck_io::file::File;
use orcheck_io::pool::Pool;
use std::sync::Arc;

/// Stripe unit of mode `traditional`.
pub const STRIPE_BYTES: u64 = STRIPE_UNIT_BYTES;

/// Where a container goes.
pub struct Target {
    /// Directory of the container's own file.
    pub dir: Arc<dyn Dir>,
    /// Server index of that directory (0 at level `node`).
    pub server: u32,
    /// Server index and directory of each stripe file; empty for a container that is not striped.
    pub stripes: Vec<(u32, Arc<dyn Dir>)>,
    /// Direct I/O where the file system takes it.
    pub direct: bool,
}

struct Store {
    server: u32,
    file: Box<dyn File>,
    dir: Arc<dyn Dir>,
    name: String,
    at: u64,
}

impl Store {
    fn create(server: u32, dir: &Arc<dyn Dir>, name: String, direct: bool) -> Result<Self> {
        let how = if direct {
            Create::Direct
        } else {
            Create::Buffered
        };
        let mut file = dir.create(&name, how)?;
        if file.is_direct() && file.alignment_bytes() > BLOCK_BYTES as u32 {
            // Our blocks are smaller than this device's: through the page cache, then.
            file.close()?;
            dir.remove(&name)?;
            file = dir.create(&name, Create::Buffered)?;
        }
        Ok(Self {
            server,
            file,
            dir: Arc::clone(dir),
            name,
            at: 0,
        })
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
        self.file.truncate(self.at)?;
        self.file.sync()?;
        self.file.close()?;
        self.dir.sync()
    }
}

/// A container being written.
pub struct ContainerWriter {
    header: ContainerHeader,
    header_crc: u64,
    /// Server whose file was used last: the one that failed when something failed.
    used: u32,
    main: Store,
    stripes: Vec<Store>,
    manifest: Manifest,
    stream: Option<Stream>,
}

/// The rank whose stream is being written.
struct Stream {
    rank: u32,
    len_bytes: u64,
    at: u64,
    base: u64,
    /// Physical offset of every stripe unit so far.
    units: Vec<u64>,
}

impl ContainerWriter {
    /// Creates the file(s) and writes the header.
    ///
    /// # Errors
    /// The server that failed and what its directory says.
    pub fn create(
        header: ContainerHeader,
        node_name: &str,
        target: &Target,
    ) -> std::result::Result<Self, (u32, Error)> {
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
        let main = Store::create(target.server, &target.dir, name.clone(), target.direct)
            .map_err(|error| (target.server, error))?;
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
            header_crc: 0,
            used: target.server,
            main,
            stripes: Vec::new(),
            stream: None,
        };
        let begun = this.begin(target, run);
        if let Err(error) = begun {
            let failed = (this.used, error);
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
                .push(Store::create(*server, dir, name.clone(), target.direct)?);
            self.manifest.stores.push(name);
        }
        self.used = self.main.server;
        let block = self.header.encode();
        self.header_crc = header_crc(&block);
        self.main.write(&block)
    }

    /// The server whose file was used last; after an error: the one that failed.
    #[must_use]
    pub fn used_server(&self) -> u32 {
        self.used
    }

    /// Begins the stream of a rank.
    ///
    /// # Errors
    /// NoSpace as early as the file system can tell.
    pub fn begin_rank(&mut self, rank: u32, stream_len_bytes: u64, cut_bytes: u32) -> Result<()> {
        let header = RankHeader {
            rank,
            step: self.header.step,
            epoch: self.header.epoch,
            stream_len_bytes,
            cut_bytes,
        };
        if self.stripes.is_empty() {
            self.main
                .file
                .allocate(self.main.at + 4 * BLOCK_BYTES as u64 + stream_len_bytes)?;
        } else {
            let units = stream_len_bytes
                .div_ceil(STRIPE_BYTES)
                .div_ceil(self.stripes.len() as u64);
            for store in &self.stripes {
                self.used = store.server;
                store.file.allocate(store.at + units * STRIPE_BYTES)?;
            }
        }
        self.used = self.main.server;
        self.main.write(&header.encode())?;
        let base = self.main.at;
        self.stream = Some(Stream {
            rank,
            len_bytes: stream_len_bytes,
            at: 0,
            base,
            units: Vec::new(),
        });
        Ok(())
    }

    /// Writes the next bytes of the stream, straight from the pool.
    ///
    /// # Errors
    /// What the file says; Internal for more bytes than announced.
    pub fn append(&mut self, pool: &Pool, pool_at_bytes: u64, len_bytes: u64) -> Result<()> {
        let Some(stream) = &mut self.stream else {
            return Err(Error::internal("stream bytes outside a rank"));
        };
        if len_bytes > stream.len_bytes - stream.at {
            return Err(Error::corrupt(format!(
                "rank {} sends {} bytes more than the {} it announced",
                stream.rank,
                stream.at + len_bytes - stream.len_bytes,
                stream.len_bytes
            )));
        }
        if self.stripes.is_empty() {
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

    /// Ends a rank with its framed record; its extents become absolute in the manifest.
    ///
    /// # Errors
    /// Corrupt when the record does not fit the stream.
    pub fn end_rank(&mut self, framed: Vec<u8>) -> Result<()> {
        let Some(stream) = self.stream.take() else {
            return Err(Error::internal("a rank record outside a rank"));
        };
        let (mut record, used) = decode_rank_record(&framed)?;
        if used != framed.len() || record.rank != stream.rank || stream.at != stream.len_bytes {
            return Err(Error::corrupt(format!(
                "rank {}: its record (rank {}, {} of {} bytes read) does not fit the stream ({} of {} bytes)",
                stream.rank,
                record.rank,
                used,
                framed.len(),
                stream.at,
                stream.len_bytes
            )));
        }
        let stripes = self.stripes.len() as u64;
        for extent in record
            .regions
            .iter_mut()
            .flat_map(|region| &mut region.extents)
        {
            let end = extent.physical.checked_add(extent.stored_len_bytes);
            if end.is_none_or(|end| end > stream.len_bytes) {
                return Err(Error::corrupt(format!(
                    "rank {}: an extent of {} bytes at {} lies outside the stream of {} bytes",
                    stream.rank, extent.stored_len_bytes, extent.physical, stream.len_bytes
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
        self.used = self.main.server;
        self.main.write_padded(framed)?;
        self.manifest.ranks.push(record);
        Ok(())
    }

    /// Writes manifest and trailer and makes everything durable.
    ///
    /// # Errors
    /// Any, with the server that failed: the container is lost and has been removed where possible.
    pub fn finish(mut self) -> std::result::Result<ContainerRef, (u32, Error)> {
        let reference = match self.seal() {
            Ok(reference) => reference,
            Err(error) => {
                let failed = (self.used, error);
                self.abort();
                return Err(failed);
            }
        };
        let dirs: Vec<(Arc<dyn Dir>, String)> = std::iter::once(&self.main)
            .chain(&self.stripes)
            .map(|store| (Arc::clone(&store.dir), store.name.clone()))
            .collect();
        let durable = self
            .stripes
            .into_iter()
            .chain([self.main])
            .try_for_each(|store| {
                let server = store.server;
                store.make_durable().map_err(|error| (server, error))
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
                "the manifest of {} takes {} bytes, the format allows {MAX_METADATA_BYTES}",
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
        let ranks: Vec<u32> = self
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
        })
    }

    /// Gives the container up and frees its space.
    pub fn abort(self) {
        let dirs: Vec<(Arc<dyn Dir>, String)> = std::iter::once(&self.main)
            .chain(&self.stripes)
            .map(|store| (Arc::clone(&store.dir), store.name.clone()))
            .collect();
        remove_all(&dirs);
    }
}

/// Best effort: what cannot be removed now is collected by prune.
fn remove_all(files: &[(Arc<dyn Dir>, String)]) {
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
