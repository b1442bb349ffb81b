//! Wraps and unwraps a small file: mark, kind, version, length, features, CBOR, an optional seal,
//! CRC.
//!
//! Not here: the meaning of the CBOR (`record.rs`, `members.rs`, `choice.rs`), how a seal is made
//! (`seal.rs`).

use crate::coding::{Get, Put, check_crc, check_magic, crc64, exactly};
use crate::disk::container::Features;
use crate::disk::manifest::MAX_METADATA_BYTES;
use crate::error::{Error, Result};
use crate::sabotage::{Switch, off};

/// Length of the MAC.
pub const MAC_BYTES: usize = 32;
/// Length of a key's identifier.
pub const KEY_ID_BYTES: usize = 16;
/// Incompatible feature of small records: the record has a seal.
pub(crate) const SEALED: u64 = 2;
pub(crate) const SEAL_BYTES: usize = KEY_ID_BYTES + MAC_BYTES;
/// Bytes of an envelope around its CBOR: 40 before and 8 after.
pub(crate) const ENVELOPE_BYTES: usize = ENVELOPE_HEAD_BYTES + 8;

pub(crate) const ENVELOPE_HEAD_BYTES: usize = 40;
pub(crate) const ENVELOPE_MAGIC: [u8; 8] = *b"ORCKdoc\n";
pub(crate) const ENVELOPE_VERSION: u16 = 1;
/// Incompatible feature of small records: a commit record refers to older checkpoints. A version
/// that does not know this feature must neither restart from the checkpoint nor delete older ones.
pub(crate) const REFERS: u64 = 1;
/// Incompatible feature of small records: a commit record names groups that protect its containers
/// by parity. A version that does not know it would take lost containers for lost checkpoints.
pub(crate) const PARITY: u64 = 4;
pub(crate) const KIND_COMMIT: u16 = 1;
pub(crate) const KIND_CLAIM: u16 = 2;
pub(crate) const KIND_RESUMED: u16 = 3;
pub(crate) const KIND_MEMBERS: u16 = 4;
pub(crate) const KIND_CHOICE: u16 = 5;
pub(crate) const KIND_PARITY: u16 = 6;

pub(crate) fn wrap(kind: u16, incompat: u64, cbor: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; ENVELOPE_HEAD_BYTES];
    Put::new(&mut bytes)
        .bytes(&ENVELOPE_MAGIC)
        .u16(kind)
        .u16(ENVELOPE_VERSION)
        .u32(cbor.len() as u32)
        .u64(0)
        .u64(0)
        .u64(incompat);
    bytes.extend_from_slice(cbor);
    let crc = crc64(&bytes);
    bytes.extend_from_slice(&crc.to_le_bytes());
    bytes
}

/// The body, and the incompatible features, all known.
pub(crate) fn unwrap<'b>(what: &str, kind: u16, bytes: &'b [u8]) -> Result<(&'b [u8], u64)> {
    let head = exactly(what, bytes, ENVELOPE_HEAD_BYTES)?;
    check_magic(what, head, &ENVELOPE_MAGIC)?;
    let mut get = Get { bytes: head, at: 8 };
    let (found_kind, version, len_bytes) = (get.u16()?, get.u16()?, get.u32()? as usize);
    let features = Features {
        compat: get.u64()?,
        ro_compat: get.u64()?,
        incompat: get.u64()?,
    };
    let seal_bytes = if features.incompat & SEALED == 0 {
        0
    } else {
        SEAL_BYTES
    };
    let expected_bytes = ENVELOPE_BYTES + len_bytes + seal_bytes;
    if len_bytes > MAX_METADATA_BYTES
        || (bytes.len() != expected_bytes
            && !(off(Switch::EnvelopeLength) && bytes.len() > expected_bytes))
    {
        return Err(Error::corrupt(format!(
            "{what}: expected a file of {expected_bytes} bytes (at most {} of them CBOR), found {}",
            MAX_METADATA_BYTES,
            bytes.len()
        )));
    }
    let crc_at = ENVELOPE_HEAD_BYTES + len_bytes + seal_bytes;
    let stored = Get { bytes, at: crc_at }.u64()?;
    if !off(Switch::CrcEnvelope) {
        check_crc(what, crc_at, stored, crc64(exactly(what, bytes, crc_at)?))?;
    }
    // Only now are these fields known to be as written.
    if found_kind != kind && !off(Switch::RecordKind) {
        return Err(Error::corrupt(format!(
            "{what}, byte 8: expected a record of kind {kind}, found {found_kind}"
        )));
    }
    if version != ENVELOPE_VERSION && !off(Switch::RecordVersion) {
        return Err(Error::unsupported(format!(
            "{what}, byte 10: expected version {ENVELOPE_VERSION}, found {version}"
        ))
        .next("read it with the version that wrote it, or a newer one"));
    }
    let known = SEALED
        | if kind == KIND_COMMIT {
            REFERS | PARITY
        } else {
            0
        };
    features
        .check_known(known)
        .map_err(|error| error.at(what))?;
    let mut body = Get {
        bytes,
        at: ENVELOPE_HEAD_BYTES,
    };
    Ok((body.bytes(len_bytes)?, features.incompat))
}
