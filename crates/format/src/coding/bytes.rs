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
    let found = &bytes[..8];
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

/// Reads little-endian fields one after the other from a block whose length was checked.
pub(crate) struct Get<'b> {
    pub(crate) bytes: &'b [u8],
    pub(crate) at: usize,
}

impl<'b> Get<'b> {
    pub(crate) fn bytes(&mut self, len: usize) -> &'b [u8] {
        let field = &self.bytes[self.at..self.at + len];
        self.at += len;
        field
    }

    pub(crate) fn array<const N: usize>(&mut self) -> [u8; N] {
        let mut field = [0; N];
        field.copy_from_slice(self.bytes(N));
        field
    }

    pub(crate) fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.array())
    }

    pub(crate) fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.array())
    }

    pub(crate) fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.array())
    }

    pub(crate) fn epoch(&mut self) -> Epoch {
        Epoch {
            counter: self.u64(),
            run: RunId(self.array()),
        }
    }
}
