//! Writes and reads fixed fields: numbers and marks at known places of a block.
//!
//! Not here: which fields a block has (`disk`, `wire`).

use crate::error::{Error, Result};
use crate::ids::{Epoch, RunId};
use crate::sabotage::{Switch, off};

/// The first `len` bytes; Corrupt if there are fewer.
pub(crate) fn exactly<'b>(what: &str, bytes: &'b [u8], len: usize) -> Result<&'b [u8]> {
    bytes.get(..len).ok_or_else(|| {
        Error::corrupt(format!(
            "{what}: expected {len} bytes, found {}",
            bytes.len()
        ))
    })
}

pub(crate) fn check_magic(what: &str, bytes: &[u8], magic: &[u8; 8]) -> Result<()> {
    let found = exactly(what, bytes, magic.len())?;
    if found == magic || off(Switch::Mark) {
        return Ok(());
    }
    Err(Error::corrupt(format!(
        "{what}, byte 0: expected the mark \"{}\", found \"{}\"",
        magic.escape_ascii(),
        found.escape_ascii()
    )))
}

pub(crate) fn check_crc(what: &str, at: usize, expected: u64, found: u64) -> Result<()> {
    if expected == found {
        return Ok(());
    }
    Err(Error::corrupt(format!(
        "{what}: the CRC at byte {at} does not match: expected 0x{expected:016x}, found \
         0x{found:016x}"
    )))
}

/// Writes little-endian fields one after the other into a block known to be long enough.
pub(crate) struct Put<'b> {
    bytes: &'b mut [u8],
    at: usize,
}

impl<'b> Put<'b> {
    pub(crate) fn new(bytes: &'b mut [u8]) -> Self {
        Put { bytes, at: 0 }
    }

    #[allow(
        clippy::indexing_slicing,
        reason = "only this crate's own values are written, and every block has room for its fields; only a job's name varies in \
                  length, up to MAX_JOB_NAME_BYTES"
    )]
    pub(crate) fn bytes(mut self, field: &[u8]) -> Self {
        self.bytes[self.at..self.at + field.len()].copy_from_slice(field);
        self.at += field.len();
        self
    }

    pub(crate) fn u16(self, value: u16) -> Self {
        self.bytes(&value.to_le_bytes())
    }

    pub(crate) fn u32(self, value: u32) -> Self {
        self.bytes(&value.to_le_bytes())
    }

    pub(crate) fn u64(self, value: u64) -> Self {
        self.bytes(&value.to_le_bytes())
    }

    pub(crate) fn epoch(self, epoch: &Epoch) -> Self {
        self.u64(epoch.counter).bytes(&epoch.run.0)
    }
}

/// Reads little-endian fields one after the other from a block; each fails with Corrupt behind the
/// end of it.
pub(crate) struct Get<'b> {
    pub(crate) bytes: &'b [u8],
    pub(crate) at: usize,
}

impl<'b> Get<'b> {
    pub(crate) fn bytes(&mut self, len: usize) -> Result<&'b [u8]> {
        let left = self.bytes.get(self.at..).unwrap_or_default();
        let field = left.get(..len).ok_or_else(|| {
            Error::corrupt(format!(
                "byte {}: expected {len} bytes, found {}",
                self.at,
                left.len()
            ))
        })?;
        self.at += len;
        Ok(field)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut field = [0; N];
        field.copy_from_slice(self.bytes(N)?);
        Ok(field)
    }

    pub(crate) fn u16(&mut self) -> Result<u16> {
        self.array().map(u16::from_le_bytes)
    }

    pub(crate) fn u32(&mut self) -> Result<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64> {
        self.array().map(u64::from_le_bytes)
    }

    pub(crate) fn epoch(&mut self) -> Result<Epoch> {
        Ok(Epoch {
            counter: self.u64()?,
            run: RunId(self.array()?),
        })
    }
}
