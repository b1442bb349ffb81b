//! Seals small records with a keyed MAC after the CBOR.
//!
//! ```text
//! 40 bytes head, incompat bit 1 set │ CBOR │ 16 bytes: which key │ 32 bytes: MAC │ 8 bytes: CRC
//! └────────────────── what the MAC covers ─────────────────────┘
//! ```
//!
//! Invariants:
//! 1. The MAC covers the head, so neither the kind of a record nor its features can be changed.
//! 2. The CRC covers the seal too, so damage and forgery can be distinguished without the key.
//! 3. A decoder reads a sealed record like any other; verifying the seal is a separate step.
//!
//! Not here: keys and MACs (`engine::encoding`).

use crate::coding::{Get, check_crc, check_magic, crc64, exactly};
use crate::disk::envelope::{
    ENVELOPE_BYTES, ENVELOPE_HEAD_BYTES, ENVELOPE_MAGIC, KEY_ID_BYTES, MAC_BYTES, SEAL_BYTES,
    SEALED,
};
use crate::error::{Error, Result};

/// Where the incompatible features are in the head.
const INCOMPAT_AT: usize = 32;

/// A sealed record, split into its parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seal<'b> {
    /// What the MAC covers.
    pub covered: &'b [u8],
    /// Identifies the key that made the MAC.
    pub key_id: [u8; KEY_ID_BYTES],
    /// The MAC.
    pub mac: [u8; MAC_BYTES],
}

/// Seals an encoded record that has no seal yet; `mac` computes the MAC of the bytes it gets.
///
/// # Errors
/// Internal if the bytes are not a record, or the record is sealed already.
pub fn seal(
    record: &[u8],
    key_id: [u8; KEY_ID_BYTES],
    mac: impl FnOnce(&[u8]) -> [u8; MAC_BYTES],
) -> Result<Vec<u8>> {
    let refused = || Error::internal("only a record without a seal can be sealed");
    let (body, _crc) = record.split_last_chunk::<8>().ok_or_else(refused)?;
    let (head, cbor) = (body.split_first_chunk::<ENVELOPE_HEAD_BYTES>()).ok_or_else(refused)?;
    let features = incompat(head)?;
    if features & SEALED != 0 {
        return Err(refused());
    }
    let mut bytes = [
        &head[..INCOMPAT_AT],
        &(features | SEALED).to_le_bytes(),
        cbor,
    ]
    .concat();
    bytes.extend_from_slice(&key_id);
    let mac = mac(&bytes);
    bytes.extend_from_slice(&mac);
    let crc = crc64(&bytes);
    bytes.extend_from_slice(&crc.to_le_bytes());
    Ok(bytes)
}

/// The seal of a record; `None` if it has none.
///
/// # Errors
/// Corrupt if the bytes are damaged or not a record.
pub fn seal_of(record: &[u8]) -> Result<Option<Seal<'_>>> {
    let what = "record";
    let head = exactly(what, record, ENVELOPE_BYTES)?;
    check_magic(what, head, &ENVELOPE_MAGIC)?;
    let crc_at = record.len() - 8;
    let stored = Get {
        bytes: record,
        at: crc_at,
    }
    .u64()?;
    check_crc(what, crc_at, stored, crc64(exactly(what, record, crc_at)?))?;
    if incompat(record)? & SEALED == 0 {
        return Ok(None);
    }
    let seal_at = crc_at.checked_sub(SEAL_BYTES);
    let Some(at) = seal_at.filter(|at| *at >= ENVELOPE_HEAD_BYTES) else {
        return Err(Error::corrupt(format!(
            "{what}: {} bytes cannot hold a seal",
            record.len()
        )));
    };
    let mut get = Get { bytes: record, at };
    Ok(Some(Seal {
        covered: exactly(what, record, at + KEY_ID_BYTES)?,
        key_id: get.array()?,
        mac: get.array()?,
    }))
}

fn incompat(record: &[u8]) -> Result<u64> {
    Get {
        bytes: record,
        at: INCOMPAT_AT,
    }
    .u64()
}
