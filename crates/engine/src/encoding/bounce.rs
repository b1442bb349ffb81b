//! Buffers encoded pieces of any length in aligned memory, for sequential writes of whole blocks.
//!
//! Invariants:
//! 1. Pushed bytes come out once and in order, in writes that are multiples of a block.
//! 2. It never holds more than [`WRITE_FROM_BYTES`] and one piece.

use orcheck_format::Result;
use orcheck_format::disk::{BLOCK_BYTES, MAX_ENCODED_BYTES, SEAL_BYTES};
use orcheck_io::memory::Buffer;

/// A write is due when this much has gathered.
pub const WRITE_FROM_BYTES: usize = 4 << 20;
const CAPACITY_BYTES: usize =
    WRITE_FROM_BYTES + MAX_ENCODED_BYTES as usize + SEAL_BYTES as usize + BLOCK_BYTES;

/// See the module.
pub(crate) struct Bounce {
    buffer: Buffer,
    filled: usize,
}

impl Bounce {
    pub(crate) fn new() -> Self {
        Bounce {
            buffer: Buffer::zeroed(CAPACITY_BYTES.next_multiple_of(BLOCK_BYTES), BLOCK_BYTES),
            filled: 0,
        }
    }

    /// Number of waiting bytes.
    pub(crate) fn len_bytes(&self) -> u64 {
        self.filled as u64
    }

    /// The next `len` bytes, at most one encoded piece, for the caller to fill.
    pub(crate) fn next(&mut self, len: usize) -> &mut [u8] {
        let from = self.filled;
        self.filled += len;
        &mut self.buffer[from..from + len]
    }

    /// Adds zeros up to the next block.
    pub(crate) fn pad(&mut self) {
        let to = self.filled.next_multiple_of(BLOCK_BYTES);
        self.buffer[self.filled..to].fill(0);
        self.filled = to;
    }

    /// Hands the whole blocks to `write` if a write is due, or if `all` is set.
    pub(crate) fn drain(
        &mut self,
        all: bool,
        write: impl FnOnce(&[u8]) -> Result<()>,
    ) -> Result<()> {
        let whole = self.filled / BLOCK_BYTES * BLOCK_BYTES;
        if whole == 0 || (!all && self.filled < WRITE_FROM_BYTES) {
            return Ok(());
        }
        write(&self.buffer[..whole])?;
        self.buffer.copy_within(whole..self.filled, 0);
        self.filled -= whole;
        Ok(())
    }
}
