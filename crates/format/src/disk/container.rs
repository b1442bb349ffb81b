//! Encodes the fixed blocks of a container: header, rank header, rank record, trailer.
//!
//! ```text
//! [header block]
//! [rank header block | stream, padded | rank record, padded]   for each rank, in any order
//! [manifest, padded]
//! [zeros up to the alignment, the trailer in the last 512 bytes]
//! ```
//!
//! How: everything is little endian; each block ends with the CRC-64/NVME of the bytes before it. A
//! reader starts at the trailer. A scan without a trailer starts at the header and walks from rank
//! header to rank record. `docs/format.md` has the byte tables.
//!
//! Invariants:
//! 1. The first eight bytes, the feature words and the position of the CRC in the header block
//!    never change, so a reader can refuse a file of any future version and
//!    name the reason.
//! 2. The trailer lies inside one 512-byte sector: it is written whole or not at all.
//! 3. Reserved bytes are written as zero and not interpreted.
//!
//! Faults survived: truncation (the trailer is missing or names another length), the trailer of
//! another file (a trailer holds the CRC of its header), flipped bits anywhere.
//!
//! Not here: order and alignment of the writes; reading streams.

use crate::coding::{Crc64, Get, Put, Reader, Writer, check_crc, check_magic, crc64, exactly};
use crate::disk::manifest::{MAX_METADATA_BYTES, RankRecord};
use crate::error::{Error, Result};
use crate::ids::{Epoch, JobName, Level, MAX_JOB_NAME_BYTES};
use crate::numbers::{NodeId, Rank, Step, WriterId};
use crate::sabotage::{Switch, off};

/// Size of the header and rank header blocks, and the smallest alignment of everything else.
pub const BLOCK_BYTES: usize = 4096;
/// Size of the trailer: one sector, which devices write whole.
pub const TRAILER_BYTES: usize = 512;
/// Size of the prefix before the CBOR of a rank record.
pub const RANK_RECORD_PREFIX_BYTES: usize = 24;
/// Largest alignment a header may name, in bytes: the largest logical block in use is far smaller.
pub const MAX_ALIGNMENT_BYTES: u32 = 1 << 20;
/// Size of one unit of a striped container: file systems and disks treat this much as one piece.
pub const STRIPE_UNIT_BYTES: u64 = 64 << 10;
/// [`RankHeader::stream_len_bytes`] of a stream whose length is not known yet.
pub const STREAM_LEN_UNKNOWN: u64 = u64::MAX;

/// Where [`Encryption`] is in the header block: after the longest job name.
const ENCRYPTION_AT: usize = 96 + MAX_JOB_NAME_BYTES;

/// The head of an unsigned number of eight bytes.
const LONG_NUMBER: u8 = 0x1b;

const HEADER_MAGIC: [u8; 8] = *b"ORCKv1\r\n";
const RANK_MAGIC: [u8; 8] = *b"ORCKrnk\n";
const RECORD_MAGIC: [u8; 8] = *b"ORCKrec\n";
const TRAILER_MAGIC: [u8; 8] = *b"ORCKend\n";

/// What a reader or writer must know to handle a file; one bit per feature.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Features {
    /// May be ignored by readers and writers.
    pub compat: u64,
    /// May be ignored by readers; a writer that does not know a bit leaves the file alone.
    pub ro_compat: u64,
    /// Must be known by every reader and writer.
    pub incompat: u64,
}

impl Features {
    /// Incompatible bit 0: the container has stripes; see `docs/format.md`.
    pub const STRIPED: u64 = 1;

    /// Incompatible bit 1: extents may lie in older containers; see `docs/format.md`.
    pub const REFERENCES: u64 = 2;
    /// Incompatible bit 2: extents may be encoded; see [`crate::disk::encoding`].
    pub const ENCODED: u64 = 1 << 2;
    /// Incompatible bit 3: extents are encrypted, and the header identifies the key.
    pub const ENCRYPTED: u64 = 1 << 3;

    /// Incompatible bit 4: the header has a MAC, and so does every record that names the container.
    pub const SEALED: u64 = 1 << 4;

    /// Incompatible bits that this version knows.
    pub const KNOWN_INCOMPAT: u64 =
        Self::STRIPED | Self::REFERENCES | Self::ENCODED | Self::ENCRYPTED | Self::SEALED;

    /// The features of a striped container.
    pub const fn striped() -> Self {
        Features {
            compat: 0,
            ro_compat: 0,
            incompat: Self::STRIPED,
        }
    }

    /// The features of a container whose extents may lie in older containers.
    pub const fn references() -> Self {
        Features {
            compat: 0,
            ro_compat: 0,
            incompat: Self::REFERENCES,
        }
    }

    /// Fails with Unsupported if an incompatible bit is unknown, naming the lowest one.
    pub fn check_readable(&self) -> Result<()> {
        self.check_known(Self::KNOWN_INCOMPAT)
    }

    pub(crate) fn check_known(&self, known: u64) -> Result<()> {
        let unknown = self.incompat & !known;
        if unknown == 0 || off(Switch::UnknownFeature) {
            return Ok(());
        }
        Err(Error::unsupported(format!(
            "incompatible feature bit {} is unknown to this version (expected only bits of \
             0x{known:x}, found 0x{:x})",
            unknown.trailing_zeros(),
            self.incompat
        ))
        .next("read it with the version that wrote it, or a newer one"))
    }
}

/// The first block of a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerHeader {
    /// What a reader must know.
    pub features: Features,
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
    /// Index of the writer within the node.
    pub writer: WriterId,
    /// Ranks in the whole job.
    pub world_size: u32,
    /// Everything after this block starts at a multiple of this: a power of two, at least
    /// [`BLOCK_BYTES`].
    pub alignment_bytes: u32,
    /// When it was created, in milliseconds since 1970.
    pub created_unix_ms: u64,
    /// With [`Features::ENCRYPTED`]: identifies the key.
    pub encryption: Option<Encryption>,
}

/// What a header says about the key of its container. Neither part helps to find the key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Encryption {
    /// Random; the container's key is derived from it and the user's key.
    pub salt: [u8; 32],
    /// Derived from the same two; a reader recognises a wrong key by it.
    pub key_check: [u8; 16],
    /// With [`Features::SEALED`]: MAC of [`ContainerHeader::covered`].
    pub mac: Option<[u8; 32]>,
}

impl Encryption {
    fn read(get: &mut Get<'_>, sealed: bool) -> Result<Self> {
        let (salt, key_check) = (get.array()?, get.array()?);
        let mac = sealed.then(|| get.array()).transpose()?;
        Ok(Encryption {
            salt,
            key_check,
            mac,
        })
    }
}

/// What the MAC of a header covers.
const COVERED_BYTES: usize = ENCRYPTION_AT + 48;

impl ContainerHeader {
    /// The block.
    pub fn encode(&self) -> [u8; BLOCK_BYTES] {
        let mut block = [0; BLOCK_BYTES];
        let job = self.job.as_str().as_bytes();
        Put::new(&mut block)
            .bytes(&HEADER_MAGIC)
            .u64(self.features.compat)
            .u64(self.features.ro_compat)
            .u64(self.features.incompat)
            .u64(self.step.0)
            .epoch(&self.epoch)
            .u64(self.created_unix_ms)
            .u16(self.level.code())
            .u16(job.len() as u16)
            .u32(self.node.0)
            .u32(self.writer.0)
            .u32(self.world_size)
            .u32(self.alignment_bytes)
            .u32(0)
            .bytes(job);
        if let Some(Encryption {
            salt,
            key_check,
            mac,
        }) = &self.encryption
        {
            block[ENCRYPTION_AT..ENCRYPTION_AT + 32].copy_from_slice(salt);
            block[ENCRYPTION_AT + 32..COVERED_BYTES].copy_from_slice(key_check);
            if let Some(mac) = mac {
                block[COVERED_BYTES..COVERED_BYTES + 32].copy_from_slice(mac);
            }
        }
        seal(&mut block);
        block
    }

    /// What the MAC of a sealed header covers: every field before it.
    pub fn covered(&self) -> [u8; COVERED_BYTES] {
        let mut covered = [0; COVERED_BYTES];
        covered.copy_from_slice(&self.encode()[..COVERED_BYTES]);
        covered
    }

    /// Reads the first [`BLOCK_BYTES`] of `bytes`. Fails with Corrupt, or Unsupported for an
    /// unknown incompatible feature.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let what = "container header";
        let mut get = unseal::<BLOCK_BYTES>(what, bytes, &HEADER_MAGIC)?;
        let features = Features {
            compat: get.u64()?,
            ro_compat: get.u64()?,
            incompat: get.u64()?,
        };
        features.check_readable().map_err(|error| error.at(what))?;
        let step = Step(get.u64()?);
        let epoch = get.epoch()?;
        let created_unix_ms = get.u64()?;
        let level_code = get.u16()?;
        let level = Level::from_code(level_code).ok_or_else(|| {
            Error::unsupported(format!(
                "{what}, byte 72: level 0x{level_code:04x} is unknown"
            ))
        })?;
        let job_len_bytes = usize::from(get.u16()?);
        let (node, writer, world_size) = (get.u32()?, get.u32()?, get.u32()?);
        let alignment_bytes = get.u32()?;
        get.u32()?;
        if !alignment_bytes.is_power_of_two()
            || (alignment_bytes as usize) < BLOCK_BYTES
            || alignment_bytes > MAX_ALIGNMENT_BYTES
        {
            return Err(Error::corrupt(format!(
                "{what}, byte 88: expected an alignment that is a power of two from {BLOCK_BYTES} \
                 to {MAX_ALIGNMENT_BYTES} bytes, found {alignment_bytes}"
            )));
        }
        if job_len_bytes > MAX_JOB_NAME_BYTES {
            return Err(Error::corrupt(format!(
                "{what}, byte 74: expected a job name of at most {MAX_JOB_NAME_BYTES} bytes, \
                 found {job_len_bytes}"
            )));
        }
        let job = std::str::from_utf8(get.bytes(job_len_bytes)?)
            .map_err(|error| Error::corrupt(error.to_string()))
            .and_then(JobName::new)
            .map_err(|error| Error::corrupt(format!("{what}, byte 96: {error}")))?;
        get.at = ENCRYPTION_AT;
        let has = |feature| features.incompat & feature != 0;
        if has(Features::SEALED) && !has(Features::ENCRYPTED) {
            return Err(Error::corrupt(format!(
                "{what}, byte 24: a seal without encryption"
            )));
        }
        let encryption = match has(Features::ENCRYPTED) {
            true => Some(Encryption::read(&mut get, has(Features::SEALED))?),
            false => None,
        };
        Ok(ContainerHeader {
            features,
            job,
            step,
            epoch,
            level,
            node: NodeId(node),
            writer: WriterId(writer),
            world_size,
            alignment_bytes,
            created_unix_ms,
            encryption,
        })
    }
}

/// The CRC at the end of a header block; [`Trailer::header_crc`] repeats it.
pub fn header_crc(block: &[u8; BLOCK_BYTES]) -> u64 {
    let mut crc = [0; 8];
    crc.copy_from_slice(&block[BLOCK_BYTES - 8..]);
    u64::from_le_bytes(crc)
}

/// The block before a rank's stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RankHeader {
    /// The rank.
    pub rank: Rank,
    /// The checkpoint's step.
    pub step: Step,
    /// The epoch that wrote it.
    pub epoch: Epoch,
    /// Bytes of the stream without padding; [`STREAM_LEN_UNKNOWN`] if not known when written.
    pub stream_len_bytes: u64,
    /// The stream is cut into extents of at most this many bytes.
    pub cut_bytes: u32,
}

impl RankHeader {
    /// The block.
    pub fn encode(&self) -> [u8; BLOCK_BYTES] {
        let mut block = [0; BLOCK_BYTES];
        Put::new(&mut block)
            .bytes(&RANK_MAGIC)
            .u32(self.rank.0)
            .u32(self.cut_bytes)
            .u64(self.step.0)
            .epoch(&self.epoch)
            .u64(self.stream_len_bytes);
        seal(&mut block);
        block
    }

    /// Reads the first [`BLOCK_BYTES`] of `bytes`. Fails with Corrupt.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let mut get = unseal::<BLOCK_BYTES>("rank header", bytes, &RANK_MAGIC)?;
        let (rank, cut_bytes) = (get.u32()?, get.u32()?);
        Ok(RankHeader {
            rank: Rank(rank),
            step: Step(get.u64()?),
            epoch: get.epoch()?,
            stream_len_bytes: get.u64()?,
            cut_bytes,
        })
    }
}

/// The prefix before the CBOR of a rank record: enough to know how many bytes to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RankFooterPrefix {
    /// Bytes of CBOR after the prefix.
    pub len_bytes: u32,
    /// CRC-64/NVME of the first 16 bytes of the prefix and of the CBOR.
    pub crc: u64,
}

impl RankFooterPrefix {
    /// Reads the first [`RANK_RECORD_PREFIX_BYTES`] of `bytes`. Fails with Corrupt.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let what = "rank record";
        let bytes = exactly(what, bytes, RANK_RECORD_PREFIX_BYTES)?;
        check_magic(what, bytes, &RECORD_MAGIC)?;
        let mut get = Get { bytes, at: 8 };
        let len_bytes = get.u32()?;
        get.u32()?;
        let crc = get.u64()?;
        if len_bytes as usize > MAX_METADATA_BYTES && !off(Switch::RecordBound) {
            return Err(Error::corrupt(format!(
                "{what}, byte 8: expected at most {MAX_METADATA_BYTES} bytes, found {len_bytes}"
            )));
        }
        Ok(RankFooterPrefix { len_bytes, crc })
    }
}

/// A framed rank record: prefix, then CBOR; not padded.
pub fn encode_rank_record(record: &RankRecord) -> Vec<u8> {
    framed(record, &mut |_| {})
}

fn framed(record: &RankRecord, end_of_extent: &mut impl FnMut(usize)) -> Vec<u8> {
    let extents: usize = record.regions.iter().map(|r| r.extents.len()).sum();
    let about = RANK_RECORD_PREFIX_BYTES + record.regions.len() * 64 + extents * 48 + 32;
    let mut bytes = Vec::with_capacity(about);
    bytes.resize(RANK_RECORD_PREFIX_BYTES, 0);
    let mut w = Writer::behind(bytes);
    record.write(&mut w, end_of_extent);
    let mut bytes = w.finish();
    seal_record(&mut bytes);
    bytes
}

/// Fills in the prefix of a framed rank record.
fn seal_record(bytes: &mut [u8]) {
    let Some((prefix, cbor)) = bytes.split_at_mut_checked(RANK_RECORD_PREFIX_BYTES) else {
        return;
    };
    let mut head = [0; 16];
    Put::new(&mut head)
        .bytes(&RECORD_MAGIC)
        .u32(cbor.len() as u32)
        .u32(0);
    let mut crc = Crc64::new();
    crc.update(&head);
    crc.update(cbor);
    Put::new(prefix).bytes(&head).u64(crc.value());
}

/// A framed rank record whose checksums alone are different at the next checkpoint.
#[derive(Debug, Clone, Default)]
pub struct FramedRecord {
    bytes: Vec<u8>,
    /// Where the extents end, in their order; an extent ends with its two checksums.
    ends: Vec<usize>,
}

/// A key below 24 and the head of a number of eight bytes.
const CRC_HEAD_BYTES: usize = 2;
const CRC_BYTES: usize = 8;

impl FramedRecord {
    /// The record as it is.
    pub fn new(record: &RankRecord) -> Self {
        let mut ends = Vec::new();
        let bytes = framed(record, &mut |end| ends.push(end));
        FramedRecord { bytes, ends }
    }

    /// The bytes, as [`encode_rank_record`] returns them.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Sets both checksums of each extent. Returns false, and leaves the record useless, if their
    /// number is another one, or if the encoding of one of them has another length.
    #[must_use]
    pub fn renew(&mut self, crcs: &[u64]) -> bool {
        if crcs.len() != self.ends.len() {
            return false;
        }
        for (&end, &crc) in self.ends.iter().zip(crcs) {
            let both = 2 * (CRC_HEAD_BYTES + CRC_BYTES);
            let place = end
                .checked_sub(both)
                .and_then(|at| self.bytes.get_mut(at..end));
            let Some(place) = place else {
                return false;
            };
            let (stored, plain) = place.split_at_mut(both / 2);
            for (key, place) in [(7, stored), (8, plain)] {
                let Some((head, number)) = place.split_at_mut_checked(CRC_HEAD_BYTES) else {
                    return false;
                };
                // Breaks if: a short number takes the place of a long one; readers refuse it.
                if *head != [key, LONG_NUMBER] || crc <= u64::from(u32::MAX) {
                    return false;
                }
                number.copy_from_slice(&crc.to_be_bytes());
            }
        }
        seal_record(&mut self.bytes);
        true
    }
}

/// Reads a framed rank record from the start of `bytes`. Also returns how many bytes it took. Fails
/// with Corrupt or Unsupported.
pub fn decode_rank_record(bytes: &[u8]) -> Result<(RankRecord, usize)> {
    let what = "rank record";
    let prefix = RankFooterPrefix::decode(bytes)?;
    let used = RANK_RECORD_PREFIX_BYTES + prefix.len_bytes as usize;
    let mut get = Get {
        bytes: exactly(what, bytes, used)?,
        at: RANK_RECORD_PREFIX_BYTES,
    };
    let cbor = get.bytes(prefix.len_bytes as usize)?;
    let mut crc = Crc64::new();
    crc.update(exactly(what, bytes, 16)?);
    crc.update(cbor);
    if !off(Switch::CrcRankRecord) {
        check_crc(what, 16, prefix.crc, crc.value())?;
    }
    let mut r = Reader::new(what, cbor);
    let record = RankRecord::read(&mut r)?;
    r.end()?;
    Ok((record, used))
}

/// The last sector of a container: locates the manifest and proves that nothing is missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Trailer {
    /// Byte offset of the manifest.
    pub manifest_at: u64,
    /// Bytes of the manifest without padding.
    pub manifest_len_bytes: u64,
    /// BLAKE3 digest of the manifest.
    pub manifest_digest: [u8; 32],
    /// Bytes of the whole file.
    pub file_len_bytes: u64,
    /// The CRC at the end of the header block of this file.
    pub header_crc: u64,
}

impl Trailer {
    /// The sector; it goes into the last 512 bytes of the file.
    pub fn encode(&self) -> [u8; TRAILER_BYTES] {
        let mut sector = [0; TRAILER_BYTES];
        Put::new(&mut sector)
            .bytes(&TRAILER_MAGIC)
            .u64(self.manifest_at)
            .u64(self.manifest_len_bytes)
            .bytes(&self.manifest_digest)
            .u64(self.file_len_bytes)
            .u64(self.header_crc);
        seal(&mut sector);
        sector
    }

    /// Reads the first [`TRAILER_BYTES`] of `bytes`. Fails with Corrupt.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let what = "trailer";
        let mut get = unseal::<TRAILER_BYTES>(what, bytes, &TRAILER_MAGIC)?;
        let (manifest_at, manifest_len_bytes) = (get.u64()?, get.u64()?);
        let manifest_digest = get.array()?;
        let (file_len_bytes, header_crc) = (get.u64()?, get.u64()?);
        let end = manifest_at.checked_add(manifest_len_bytes);
        let room = file_len_bytes.saturating_sub(TRAILER_BYTES as u64);
        let too_long = manifest_len_bytes > MAX_METADATA_BYTES as u64;
        if (too_long || end.is_none_or(|end| end > room)) && !off(Switch::TrailerBounds) {
            return Err(Error::corrupt(format!(
                "{what}, byte 8: a manifest of {manifest_len_bytes} bytes at offset {manifest_at} \
                 does not fit a file of {file_len_bytes} bytes (at most {MAX_METADATA_BYTES})"
            )));
        }
        Ok(Trailer {
            manifest_at,
            manifest_len_bytes,
            manifest_digest,
            file_len_bytes,
            header_crc,
        })
    }
}

/// Writes the CRC of everything before it into the last eight bytes.
pub(crate) fn seal(block: &mut [u8]) {
    let (body, crc) = block.split_at_mut(block.len() - 8);
    crc.copy_from_slice(&crc64(body).to_le_bytes());
}

/// Checks length, magic and CRC; the returned reader is positioned after the magic.
fn unseal<'b, const N: usize>(what: &str, bytes: &'b [u8], magic: &[u8; 8]) -> Result<Get<'b>> {
    let bytes = exactly(what, bytes, N)?;
    check_magic(what, bytes, magic)?;
    let (at, body) = (N - 8, exactly(what, bytes, N - 8)?);
    let expected = Get { bytes, at }.u64()?;
    if !off(Switch::CrcBlock) {
        check_crc(what, at, expected, crc64(body))?;
    }
    Ok(Get { bytes, at: 8 })
}
