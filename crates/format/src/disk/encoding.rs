//! Defines how the stored bytes of an extent become the region's bytes: the meaning of
//! [`Extent::encoding`].
//!
//! ```text
//! plain ─ shuffle by element size ─ compress ─ CRC appended, AES-256-GCM ─ stored
//! bits      4–6                       0–3        8
//! ```
//!
//! Invariants:
//! 1. Code 0 is "stored as is"; an unknown bit or compression is Unsupported, never guessed.
//! 2. An encoded extent holds at most [`MAX_ENCODED_BYTES`] of a region, so decoding it takes a
//!    bounded amount of memory whatever its bytes are.
//! 3. Compressed bytes are fewer than plain ones: a piece that does not shrink is stored as is.
//! 4. No checksum of an encrypted extent's plain bytes is readable: the checksum is encrypted too.
//!
//! Not here: shuffling, compressing and encrypting (`orcheck-engine`).

use crate::disk::manifest::{Extent, RegionRecord};
use crate::error::{Error, Result};
use crate::sabotage::{Switch, off};

/// Most bytes of a region in one extent that is not stored as is.
pub const MAX_ENCODED_BYTES: u64 = 4 << 20;
/// What encryption adds to an extent: the CRC of the plain bytes (8) and the tag (16).
pub const SEAL_BYTES: u64 = 24;

const ENCRYPTED: u16 = 1 << 8;

/// How an extent is compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Compression {
    /// It is not.
    #[default]
    None,
    /// One zstd frame.
    Zstd,
    /// One LZ4 block, without a frame.
    Lz4,
}

/// The meaning of [`Extent::encoding`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Encoding {
    /// How it is compressed.
    pub compression: Compression,
    /// Base-2 logarithm of the element size, in bytes, used to shuffle the bytes before
    /// compression: 0 (not shuffled) to 4.
    pub shuffle_log2: u8,
    /// Encrypted with AES-256-GCM under the container's key.
    pub encrypted: bool,
}

impl Encoding {
    /// The stored number.
    #[must_use]
    pub fn code(self) -> u16 {
        let compression = match self.compression {
            Compression::None => 0,
            Compression::Zstd => 1,
            Compression::Lz4 => 2,
        };
        compression | u16::from(self.shuffle_log2) << 4 | if self.encrypted { ENCRYPTED } else { 0 }
    }

    /// The encoding with this number.
    ///
    /// # Errors
    /// Unsupported for anything that this version does not write.
    pub fn from_code(code: u16) -> Result<Self> {
        let unknown = || {
            Error::unsupported(format!("encoding 0x{code:04x} is unknown to this version"))
                .next("read the checkpoint with the version that wrote it, or a newer one")
        };
        let compression = match code & 0xf {
            0 => Compression::None,
            1 => Compression::Zstd,
            2 => Compression::Lz4,
            _ => return Err(unknown()),
        };
        let shuffle_log2 = (code >> 4 & 7) as u8;
        let idle = compression == Compression::None && shuffle_log2 != 0;
        if code & !(0xf | 7 << 4 | ENCRYPTED) != 0 || shuffle_log2 > 4 || idle {
            return Err(unknown());
        }
        Ok(Encoding {
            compression,
            shuffle_log2,
            encrypted: code & ENCRYPTED != 0,
        })
    }

    /// Whether the stored bytes are the region's bytes.
    #[must_use]
    pub fn is_plain(self) -> bool {
        self.code() == 0
    }
}

impl Extent {
    /// Checks lengths and CRCs against the encoding.
    ///
    /// # Errors
    /// Unsupported for an unknown encoding; Corrupt where the fields contradict each other.
    pub fn check_encoding(&self) -> Result<Encoding> {
        let encoding = Encoding::from_code(self.encoding)?;
        let corrupt = |text: String| Err(Error::corrupt(text));
        if encoding.is_plain() {
            if self.len_bytes != self.stored_len_bytes || self.crc_plain != self.crc_stored {
                return corrupt(
                    "an extent stored as it is differs from itself in length or CRC".to_owned(),
                );
            }
            return Ok(encoding);
        }
        let possible = (1..=MAX_ENCODED_BYTES).contains(&self.len_bytes);
        if !possible && !off(Switch::EncodedLength) {
            return corrupt(format!(
                "an encoded extent: expected 1 to {MAX_ENCODED_BYTES} bytes of the region, found {}",
                self.len_bytes
            ));
        }
        let added = if encoding.encrypted { SEAL_BYTES } else { 0 };
        let payload = self.stored_len_bytes.checked_sub(added);
        let fits = payload.is_some_and(|payload| match encoding.compression {
            Compression::None => payload == self.len_bytes,
            _ => 0 < payload && payload < self.len_bytes,
        });
        if !fits && !off(Switch::StoredLength) {
            return corrupt(format!(
                "an extent of {} bytes with encoding 0x{:04x} cannot be stored in {} bytes",
                self.len_bytes, self.encoding, self.stored_len_bytes
            ));
        }
        if encoding.encrypted && self.crc_plain != 0 {
            return corrupt("an encrypted extent shows a CRC of its plain bytes".to_owned());
        }
        Ok(encoding)
    }
}

impl RegionRecord {
    /// 16 bytes that identify the declaration of the region: name, kind, type, flags, length and
    /// shape. Encryption binds every extent to them.
    #[must_use]
    pub fn identity(&self) -> [u8; 16] {
        let declaration = RegionRecord {
            name: self.name.clone(),
            kind: self.kind,
            dtype: self.dtype,
            flags: self.flags,
            len_bytes: self.len_bytes,
            local: self.local.clone(),
            global: self.global.clone(),
            offset: self.offset.clone(),
            boxes: self.boxes.clone(),
            same_as: None,
            extents: Vec::new(),
        };
        let mut identity = [0; 16];
        identity.copy_from_slice(&blake3::hash(&declaration.encode()).as_bytes()[..16]);
        identity
    }
}
