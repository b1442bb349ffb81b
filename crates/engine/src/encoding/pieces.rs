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
//! 2. A container's key is derived from the user's key and a fresh random salt. No (key, nonce)
//!    pair is used twice, because a container is written strictly forward and the nonce is the
//!    offset of the extent.
//! 3. [`Decoder::decode`] returns bytes only if every checksum and tag agrees, and exactly as many
//!    as the extent says.
//! 4. No message contains a byte of a key; keys are overwritten when dropped.
//! 5. The encoded bytes are the staged bytes: what is read from the pool has the checksum that the
//!    rank computed.
//!
//! Faults survived: a change of any stored byte, tag, salt or key check; extents exchanged within
//! or between containers; a wrong or missing key. Not here: what the bits mean
//! (`format::encoding`), where keys come from (`io::secret`), order and alignment of writes
//! (`container.rs`).

use crate::encoding::shuffle::{shuffle, unshuffle};

use orcheck_format::disk::{
    Compression, ContainerHeader, Encoding, Encryption, Extent, Features, MAX_ENCODED_BYTES,
};
use orcheck_format::sabotage::{Switch, off};
use orcheck_format::{Detail, Error, Rank, Result, crc64};
use orcheck_io::memory::copy_into;
use orcheck_io::rng::random_bytes;
use orcheck_io::user::{Secret, Wiped, equal};
use orcheck_pool::Pool;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use ring::{hkdf, hmac};
use std::collections::BTreeMap;
use std::sync::Arc;

use crate::encoding::trust::{Accept, Trust, WHO_CAN_WRITE, other_key};
use zeroize::Zeroizing;

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

/// Identifies the bytes of an extent, to which encryption binds it.
#[derive(Debug, Clone, Copy)]
pub struct Binding {
    /// The rank.
    pub rank: Rank,
    /// The region's identity. A later checkpoint that refers to the extent must declare the same
    /// region.
    pub region: [u8; 16],
    /// Where the piece begins in the region.
    pub region_at_bytes: u64,
    /// Its length.
    pub len_bytes: u64,
    /// Code of the encoding.
    pub encoding: u16,
}

impl Binding {
    fn bytes(&self) -> Vec<u8> {
        let mut bytes = b"orcheck v1 extent".to_vec();
        if off(Switch::BoundExtent) {
            return bytes;
        }
        bytes.extend_from_slice(&self.rank.0.to_le_bytes());
        bytes.extend_from_slice(&self.region);
        bytes.extend_from_slice(&self.region_at_bytes.to_le_bytes());
        bytes.extend_from_slice(&self.len_bytes.to_le_bytes());
        bytes.extend_from_slice(&self.encoding.to_le_bytes());
        bytes
    }
}

/// The key of one container.
pub struct ContainerKey(Wiped<LessSafeKey>);

impl ContainerKey {
    /// Makes the key of a new container, describes it for readers in the header, and seals the
    /// header.
    ///
    /// # Errors
    /// Internal if the cipher library refuses.
    pub fn create(secret: &Secret, header: &mut ContainerHeader) -> Result<Self> {
        let salt: [u8; 32] = if off(Switch::Salt) {
            [0; 32]
        } else {
            random_bytes()
        };
        let derived = derive(secret, &salt, header, Form::Sealed)?;
        header.features.incompat |= Features::ENCRYPTED | Features::SEALED;
        let mut encryption = Encryption {
            salt,
            key_check: derived.key_check,
            mac: Some([0; 32]),
        };
        header.encryption = Some(encryption);
        let mut mac = [0; 32];
        mac.copy_from_slice(hmac::sign(derived.header.get(), &header.covered()).as_ref());
        encryption.mac = Some(mac);
        header.encryption = Some(encryption);
        Ok(derived.key)
    }

    /// The key of an existing container.
    ///
    /// # Errors
    /// Invalid if the container was written with another key; Corrupt if its header was forged.
    pub fn open(secret: &Secret, header: &ContainerHeader) -> Result<Self> {
        let Some(encryption) = header.encryption else {
            return Err(Error::internal(
                "a container that is not encrypted has no key",
            ));
        };
        let form = match encryption.mac {
            Some(_) => Form::Sealed,
            None => Form::V1,
        };
        let derived = derive(secret, &encryption.salt, header, form)?;
        // Breaks if: the check is left out; a wrong key would look like damage.
        if !equal(&derived.key_check, &encryption.key_check) && !off(Switch::KeyCheck) {
            return Err(other_key("the container was encrypted with another key"));
        }
        // Breaks if: a mismatch is ignored; a changed header would be believed.
        if let Some(mac) = encryption.mac
            && hmac::verify(derived.header.get(), &header.covered(), &mac).is_err()
            && !off(Switch::HeaderMac)
        {
            return Err(Error::corrupt(
                "forged: the header of the container was changed after it was written",
            )
            .next(WHO_CAN_WRITE));
        }
        Ok(derived.key)
    }

    /// Encrypts in place; `room` has the payload followed by [`orcheck_format::disk::SEAL_BYTES`].
    /// `at` is the offset in the container: nothing else may ever be encrypted for that offset.
    ///
    /// # Errors
    /// Internal if the cipher library refuses.
    ///
    /// # Panics
    /// If `room` is shorter than that.
    pub fn seal(&self, at: u64, binding: &Binding, crc_plain: u64, room: &mut [u8]) -> Result<()> {
        let (text, tag_at) = room.split_at_mut(room.len() - 16);
        let crc_at = text.len() - 8;
        text[crc_at..].copy_from_slice(&crc_plain.to_le_bytes());
        let tag = self
            .0
            .get()
            .seal_in_place_separate_tag(nonce(at), Aad::from(binding.bytes()), text)
            .map_err(|_| Error::internal("AES-256-GCM refused to encrypt"))?;
        tag_at.copy_from_slice(tag.as_ref());
        Ok(())
    }

    /// Decrypts in place; returns the payload and the CRC of the plain bytes.
    fn unseal<'a>(
        &self,
        at: u64,
        binding: &Binding,
        stored: &'a mut [u8],
    ) -> Result<(&'a [u8], u64)> {
        let key = self.0.get();
        let text = if off(Switch::Tag) {
            without_tag(key, at, stored)
        } else {
            key.open_in_place(nonce(at), Aad::from(binding.bytes()), stored)
                .map_err(|_| {
                    // Breaks if: a mismatch is ignored; deliberately changed bytes would reach the
                    // program.
                    Error::corrupt(
                        "the bytes were not written here under this key: changed, moved or exchanged",
                    )
                })?
        };
        let (payload, crc) = text
            .split_last_chunk::<8>()
            .ok_or_else(|| Error::corrupt("too short to be encrypted"))?;
        Ok((payload, u64::from_le_bytes(*crc)))
    }
}

/// Decrypts without verifying the tag, which must not happen; see [`Switch::Tag`]. In counter mode,
/// encrypting twice decrypts.
fn without_tag<'a>(key: &LessSafeKey, at: u64, stored: &'a mut [u8]) -> &'a mut [u8] {
    let end = stored.len().saturating_sub(AES_256_GCM.tag_len());
    let text = &mut stored[..end];
    let _ = key.seal_in_place_separate_tag(nonce(at), Aad::empty(), text);
    text
}

fn nonce(at: u64) -> Nonce {
    let mut bytes = [0; 12];
    if !off(Switch::Nonce) {
        bytes[4..].copy_from_slice(&at.to_le_bytes());
    }
    Nonce::assume_unique_for_key(bytes)
}

struct Len(usize);

impl hkdf::KeyType for Len {
    fn len(&self) -> usize {
        self.0
    }
}

/// The form in which a container is encrypted.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    /// That of 0.1.0: the header has no MAC.
    V1,
    Sealed,
}

/// Keys derived from the user's key and the salt of a container.
struct Derived {
    key_check: [u8; 16],
    key: ContainerKey,
    /// For the MAC of the header.
    header: Wiped<hmac::Key>,
}

fn derive(
    secret: &Secret,
    salt: &[u8; 32],
    header: &ContainerHeader,
    form: Form,
) -> Result<Derived> {
    let refused = |_| Error::internal("the cipher library refused to derive a key");
    let job = header.job.as_str().as_bytes();
    let mut container = vec![job.len() as u8];
    container.extend_from_slice(job);
    container.extend_from_slice(&header.step.0.to_le_bytes());
    container.extend_from_slice(&header.epoch.counter.to_le_bytes());
    container.extend_from_slice(&header.epoch.run.0);
    container.extend_from_slice(&header.level.code().to_le_bytes());
    container.extend_from_slice(&header.node.0.to_le_bytes());
    container.extend_from_slice(&header.writer.0.to_le_bytes());
    if off(Switch::BoundContainer) {
        container.clear();
    }
    let extracted = hkdf::Salt::new(hkdf::HKDF_SHA256, salt).extract(secret.bytes());
    let expand = |info: [&[u8]; 2], out: &mut [u8]| {
        extracted
            .expand(&info, Len(out.len()))
            .and_then(|okm| okm.fill(out))
            .map_err(refused)
    };
    let mut key_check = [0; 16];
    match form {
        Form::V1 => expand([b"orcheck v1 key check", &container], &mut key_check)?,
        // From the key alone: a changed header must not look like a wrong key.
        Form::Sealed => expand([b"orcheck v2 key check", &[]], &mut key_check)?,
    }
    let label: &[u8] = match form {
        Form::V1 => b"orcheck v1 container key",
        Form::Sealed => b"orcheck v2 container key",
    };
    let mut key = Zeroizing::new([0; 32]);
    expand([label, &container], key.as_mut())?;
    let unbound = UnboundKey::new(&AES_256_GCM, key.as_ref()).map_err(refused)?;
    let mut header = Zeroizing::new([0; 32]);
    expand([b"orcheck v2 header", &[]], header.as_mut())?;
    Ok(Derived {
        key_check,
        key: ContainerKey(Wiped::new(LessSafeKey::new(unbound))),
        header: Wiped::new(hmac::Key::new(hmac::HMAC_SHA256, header.as_ref())),
    })
}

/// 63 bits by which ranks find out whether they have the same key; they reveal nothing about it.
///
/// # Errors
/// Internal if the cipher library refuses.
pub fn fingerprint(secret: &Secret, salt: &[u8]) -> Result<i64> {
    let refused = |_| Error::internal("the cipher library refused to derive a key");
    let mut bytes = [0; 8];
    hkdf::Salt::new(hkdf::HKDF_SHA256, salt)
        .extract(secret.bytes())
        .expand(&[b"orcheck v1 same key"], Len(8))
        .and_then(|okm| okm.fill(&mut bytes))
        .map_err(refused)?;
    Ok(i64::from_le_bytes(bytes) & i64::MAX)
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

pub(crate) fn no_key() -> Error {
    Error::invalid("the checkpoint is encrypted and no key was given")
        .with(Detail::OtherKey)
        .next(
            "set encrypt_key (ORCHECK_ENCRYPT_KEY, or --encrypt-key) to the source of the key that \
             it was written with",
        )
}

#[cfg(test)]
mod tests;
