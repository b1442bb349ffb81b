//! Encodes pieces of regions: compresses and encrypts them on their way from the pool to a
//! container, and turns them back.
//!
//! ```text
//! pool ─ one copy ─ sample: worth it? ─ shuffle ─ zstd | LZ4 ─ bounce buffer ─ AES-256-GCM ─ file
//! ```
//!
//! The CP-thread encodes piece by piece; the program's threads never do. A piece is stored as it is
//! if it, or a sample of it, does not shrink by 5 %. The next pieces of its region are then not
//! even sampled: 1, 2, 4 … up to 64 of them.
//!
//! Invariants:
//! 1. Memory is bounded: an [`Encoder`] holds three pieces of at most 4 MiB and the compressor's
//!    state, a [`Decoder`] two pieces, and a container being written one bounce buffer of 8 MiB.
//!    What is remembered about regions is bounded too.
//! 2. [`Decoder::decode`] returns bytes only if every checksum and tag agrees, and exactly as many
//!    as the extent says.
//! 3. The encoded bytes are the staged bytes: what is read from the pool has the checksum that the
//!    rank computed.
//!
//! Faults survived: a change of any stored byte, tag, salt or key check; extents exchanged within
//! or between containers; a wrong or missing key. Not here: what the bits mean
//! (`format::disk`), keys (`key.rs`), order and alignment of writes
//! (`container.rs`).

use crate::encoding::key::{Binding, ContainerKey, no_key};
use crate::encoding::shuffle::{shuffle, unshuffle};
use crate::encoding::trust::{Accept, Trust};
use orcheck_format::disk::{Compression, Encoding, Extent, MAX_ENCODED_BYTES};
use orcheck_format::sabotage::{Switch, off};
use orcheck_format::{Error, Rank, Result, crc64};
use orcheck_io::memory::copy_into;
use orcheck_io::user::Secret;
use orcheck_pool::Pool;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Bytes of a sample: enough to judge compression, few compared with a piece.
const SAMPLE_BYTES: usize = 64 << 10;
const SAMPLE_PARTS: usize = 4;
/// Shorter pieces are stored as they are.
const LEAST_BYTES: u64 = 128;
/// Maximum number of pieces of a region that are skipped after one that did not shrink.
const MAX_PASSED: u32 = 64;
/// Maximum number of regions remembered as not shrinking.
const MAX_REMEMBERED: usize = 4096;

/// How a session's containers are encoded.
#[derive(Clone, Default)]
pub struct Recipe {
    /// How pieces are compressed.
    pub compression: Compression,
    /// The compressor's level, if it has levels.
    pub level: i32,
    /// The user's key, if containers are encrypted.
    pub secret: Option<Arc<Secret>>,
}

impl Recipe {
    /// What a process believes that only writes: records are sealed with the recipe's key.
    ///
    /// # Errors
    /// Internal if the cipher library refuses.
    pub fn trust(&self) -> Result<Arc<Trust>> {
        let secrets: Vec<Arc<Secret>> = self.secret.iter().cloned().collect();
        Trust::new(&secrets, self.secret.is_some(), Accept::default())
    }

    /// Whether everything is stored as it is.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        self.compression == Compression::None && self.secret.is_none()
    }
}

/// A piece of a region inside a segment, as the rank describes it to its CP-thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EncodePiece {
    /// Where it begins in the segment.
    pub segment_at_bytes: u32,
    /// Its length.
    pub len_bytes: u32,
    /// Where it begins in the region.
    pub region_at_bytes: u64,
    /// CRC-64/NVME of its bytes, taken while they were staged.
    pub crc_plain: u64,
    /// Base-2 logarithm of the size of the region's elements.
    pub element_log2: u8,
    /// Identifies the region; see `RegionRecord::identity`.
    pub region: [u8; 16],
    /// Before it is written unencoded, the pool is read again and compared with `crc_plain`.
    pub checked: bool,
}

impl EncodePiece {
    /// The data to which an encrypted piece is bound.
    pub(crate) fn binding(&self, rank: Rank, encoding: Encoding) -> Binding {
        Binding {
            rank,
            region: self.region,
            region_at_bytes: self.region_at_bytes,
            len_bytes: u64::from(self.len_bytes),
            encoding: encoding.code(),
        }
    }
}

/// A piece ready to be stored.
pub enum Body<'a> {
    /// As it lies in the pool.
    Plain,
    /// Smaller.
    Packed(&'a [u8], Encoding),
    /// Not at all: the pool holds other bytes than the rank staged.
    Changed,
}

/// A region that did not shrink.
#[derive(Default)]
struct Stubborn {
    /// Pieces to skip before the next attempt.
    pass: u32,
    /// Pieces that were skipped after the last failure.
    last: u32,
}

/// Compresses pieces; one per CP-thread.
pub struct Encoder {
    compression: Compression,
    zstd: Option<zstd::bulk::Compressor<'static>>,
    plain: Vec<u8>,
    shuffled: Vec<u8>,
    packed: Vec<u8>,
    stubborn: BTreeMap<[u8; 16], Stubborn>,
}

impl Encoder {
    /// An encoder for a recipe.
    ///
    /// # Errors
    /// Internal if the compressor cannot be created.
    pub fn new(recipe: &Recipe) -> Result<Self> {
        let zstd = (recipe.compression == Compression::Zstd)
            .then(|| zstd::bulk::Compressor::new(recipe.level))
            .transpose()
            .map_err(|error| Error::internal(format!("zstd: {error}")))?;
        Ok(Self {
            compression: recipe.compression,
            zstd,
            plain: Vec::new(),
            shuffled: Vec::new(),
            packed: Vec::new(),
            stubborn: BTreeMap::new(),
        })
    }

    /// Compresses the piece at `pool_at_bytes` in the pool, if that is worth it.
    ///
    /// # Errors
    /// Invalid for a place outside the pool; Internal if the compressor fails.
    pub fn encode(
        &mut self,
        pool: &Pool,
        pool_at_bytes: u64,
        piece: &EncodePiece,
    ) -> Result<Body<'_>> {
        let len = piece.len_bytes as usize;
        if self.compression == Compression::None
            || u64::from(piece.len_bytes) < LEAST_BYTES
            || u64::from(piece.len_bytes) > MAX_ENCODED_BYTES
            || self.passes_over(&piece.region)
        {
            return Ok(Body::Plain);
        }
        grow(&mut self.plain, len);
        // Copy once into private memory, so that the compressed bytes are those that were read.
        copy_into(
            pool.span(pool_at_bytes, u64::from(piece.len_bytes))?,
            &mut self.plain[..len],
        );
        if crc64(&self.plain[..len]) != piece.crc_plain && !off(Switch::PoolChecked) {
            return Ok(Body::Changed);
        }
        let plain = std::mem::take(&mut self.plain);
        let packed = self.pack(&plain[..len], piece.element_log2.min(4));
        self.plain = plain;
        match packed? {
            Some((packed_len, encoding)) => {
                self.stubborn.remove(&piece.region);
                Ok(Body::Packed(&self.packed[..packed_len], encoding))
            }
            None => {
                self.remember(piece.region);
                Ok(Body::Plain)
            }
        }
    }

    fn passes_over(&mut self, region: &[u8; 16]) -> bool {
        match self.stubborn.get_mut(region) {
            Some(known) if known.pass > 0 => {
                known.pass -= 1;
                true
            }
            _ => false,
        }
    }

    fn remember(&mut self, region: [u8; 16]) {
        if self.stubborn.len() >= MAX_REMEMBERED && !self.stubborn.contains_key(&region) {
            self.stubborn.clear();
        }
        let known = self.stubborn.entry(region).or_default();
        known.last = (known.last * 2).clamp(1, MAX_PASSED);
        known.pass = known.last;
    }

    /// The length in `packed` and the encoding; `None` if it is not worth it.
    fn pack(&mut self, plain: &[u8], log2: u8) -> Result<Option<(usize, Encoding)>> {
        if plain.len() > 2 * SAMPLE_BYTES {
            let mut sample = Vec::with_capacity(SAMPLE_BYTES);
            let part = SAMPLE_BYTES / SAMPLE_PARTS;
            let apart = (plain.len() - part) / (SAMPLE_PARTS - 1) / 16 * 16;
            for number in 0..SAMPLE_PARTS {
                sample.extend_from_slice(&plain[number * apart..][..part]);
            }
            if !worth_it(self.squeeze(&sample, log2)?, sample.len()) {
                return Ok(None);
            }
        }
        let packed_len = self.squeeze(plain, log2)?;
        let encoding = Encoding {
            compression: self.compression,
            shuffle_log2: log2,
            encrypted: false,
        };
        Ok(worth_it(packed_len, plain.len()).then_some((packed_len, encoding)))
    }

    fn squeeze(&mut self, plain: &[u8], log2: u8) -> Result<usize> {
        let source = if log2 == 0 {
            plain
        } else {
            grow(&mut self.shuffled, plain.len());
            shuffle(plain, &mut self.shuffled[..plain.len()], log2);
            &self.shuffled[..plain.len()]
        };
        let failed = |what: &str, error: &dyn std::fmt::Display| {
            Error::internal(format!("{what} failed on {} bytes: {error}", plain.len()))
        };
        match &mut self.zstd {
            Some(zstd) => {
                grow(
                    &mut self.packed,
                    zstd::zstd_safe::compress_bound(plain.len()),
                );
                zstd.compress_to_buffer(source, &mut self.packed[..])
                    .map_err(|error| failed("zstd", &error))
            }
            None => {
                grow(
                    &mut self.packed,
                    lz4_flex::block::get_maximum_output_size(plain.len()),
                );
                lz4_flex::block::compress_into(source, &mut self.packed)
                    .map_err(|error| failed("LZ4", &error))
            }
        }
    }
}

/// Whether it saves 5 %.
fn worth_it(packed_len: usize, plain_len: usize) -> bool {
    packed_len <= plain_len / 20 * 19 && packed_len < plain_len
}

fn grow(buffer: &mut Vec<u8>, len: usize) {
    if buffer.len() < len {
        buffer.resize(len, 0);
    }
}

/// Decodes stored bytes; reused from piece to piece.
#[derive(Default)]
pub struct Decoder {
    /// Stored bytes, read by the caller.
    pub(crate) stored: Vec<u8>,
    unpacked: Vec<u8>,
    plain: Vec<u8>,
    zstd: Option<zstd::bulk::Decompressor<'static>>,
}

impl Decoder {
    /// Room for the stored bytes of an extent whose encoding was checked.
    pub fn room(&mut self, extent: &Extent) -> &mut [u8] {
        let len = extent.stored_len_bytes as usize;
        grow(&mut self.stored, len);
        &mut self.stored[..len]
    }

    /// Decodes and verifies the extent whose stored bytes were read into [`Decoder::room`]; returns
    /// its plain bytes.
    ///
    /// # Errors
    /// Corrupt, naming the check that failed; Invalid if a key is needed and there is none.
    pub fn decode(
        &mut self,
        extent: &Extent,
        rank: Rank,
        region: [u8; 16],
        region_at_bytes: u64,
        key: Option<&ContainerKey>,
    ) -> Result<&[u8]> {
        let encoding = extent.check_encoding()?;
        let len = extent.len_bytes as usize;
        let stored = &mut self.stored[..extent.stored_len_bytes as usize];
        check_stored(extent, stored)?;
        let binding = Binding {
            rank,
            region,
            region_at_bytes,
            len_bytes: extent.len_bytes,
            encoding: extent.encoding,
        };
        let (payload, crc_plain) = if encoding.encrypted {
            let key = key.ok_or_else(no_key)?;
            key.unseal(extent.physical, &binding, stored)?
        } else {
            (&*stored, extent.crc_plain)
        };
        let squeezed = |what: &str| {
            Error::corrupt(format!("{what}: the stored bytes do not give {len} bytes"))
        };
        let unpacked = match encoding.compression {
            Compression::None => payload,
            Compression::Zstd => {
                grow(&mut self.unpacked, len);
                let zstd = match &mut self.zstd {
                    Some(zstd) => zstd,
                    none => none.insert(
                        zstd::bulk::Decompressor::new()
                            .map_err(|error| Error::internal(format!("zstd: {error}")))?,
                    ),
                };
                let to = &mut self.unpacked[..len];
                match zstd.decompress_to_buffer(payload, to) {
                    Ok(found) if found == len => &self.unpacked[..len],
                    _ => return Err(squeezed("zstd")),
                }
            }
            Compression::Lz4 => {
                grow(&mut self.unpacked, len);
                match lz4_flex::block::decompress_into(payload, &mut self.unpacked[..len]) {
                    Ok(found) if found == len => &self.unpacked[..len],
                    _ => return Err(squeezed("LZ4")),
                }
            }
        };
        let plain = if encoding.shuffle_log2 == 0 {
            unpacked
        } else {
            grow(&mut self.plain, len);
            unshuffle(unpacked, &mut self.plain[..len], encoding.shuffle_log2);
            &self.plain[..len]
        };
        let found = crc64(plain);
        // Breaks if: only stored bytes are compared; an error in decoding would reach the program.
        if found != crc_plain && !off(Switch::CrcDecoded) {
            return Err(Error::corrupt(format!(
                "damaged data after decoding: expected CRC-64 {crc_plain:016x}, found {found:016x}"
            )));
        }
        Ok(plain)
    }
}

/// Compares stored bytes with their CRC, which needs no key.
pub(crate) fn check_stored(extent: &Extent, stored: &[u8]) -> Result<()> {
    let found = crc64(stored);
    if found == extent.crc_stored || off(Switch::CrcStored) {
        return Ok(());
    }
    Err(Error::corrupt(format!(
        "damaged data: expected CRC-64 {:016x}, found {found:016x}",
        extent.crc_stored
    )))
}

#[cfg(test)]
mod tests;
