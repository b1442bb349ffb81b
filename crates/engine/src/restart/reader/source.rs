//! Reads one extent from its file to its destination.
//!
//! Invariants: those of `reader.rs`. Unencoded data is read in pieces straight into place. Encoded
//! data is read whole (its length is bounded), decoded and verified, and only then passed on.
//!
//! Not here: finding files and keys (`reader.rs`), decoding (`encoding.rs`).

use std::sync::Arc;

use orcheck_format::disk::{Extent, RegionRecord};
use orcheck_format::sabotage::{Switch, off};
use orcheck_format::{Error, ErrorKind, Rank, Result, Step, crc64, crc64_combine};
use orcheck_io::disk::{File, read_span};
use orcheck_io::memory::{Span, crc_span, fill_span};

use super::together::Windows;
use super::{PIECE_BYTES, as_usize};
use crate::encoding::{ContainerKey, Decoder, check_stored};
use crate::restart::shared::Blocks;

/// How far ahead of the piece being checked the kernel is asked to read.
const AHEAD_BYTES: u64 = 3 * PIECE_BYTES;

/// A file of this container, or of one to which it refers.
#[derive(Clone)]
pub(super) enum Stored<'a> {
    Own(&'a dyn File),
    Other(Arc<dyn File>),
}

/// An extent to read from a file.
#[derive(Clone)]
pub(super) struct Source<'a> {
    pub(super) step: Step,
    pub(super) rank: Rank,
    pub(super) region: &'a RegionRecord,
    /// Offset of the extent in the region, in bytes.
    pub(super) at: u64,
    pub(super) extent: &'a Extent,
    /// Where in the file the extents end that are best read together with this one, if it has any.
    pub(super) run_end: u64,
    pub(super) file: Stored<'a>,
    pub(super) encrypted: bool,
    pub(super) key: Option<Arc<ContainerKey>>,
}

/// Memory that is reused from extent to extent.
#[derive(Default)]
pub(super) struct Buffers {
    pub(super) piece: Vec<u8>,
    pub(super) decoder: Decoder,
    windows: Windows,
}

impl Source<'_> {
    pub(super) fn file(&self) -> &dyn File {
        match &self.file {
            Stored::Own(file) => *file,
            Stored::Other(file) => file.as_ref(),
        }
    }

    pub(super) fn place(&self) -> String {
        format!(
            "step {}, rank {}, region {:?}, bytes {}..{} (file {}, bytes {}..{})",
            self.step,
            self.rank,
            self.region.name,
            self.at,
            self.at + self.extent.len_bytes,
            self.file().name(),
            self.extent.physical,
            self.extent.physical + self.extent.stored_len_bytes
        )
    }

    fn pieces(&self) -> impl Iterator<Item = (u64, u64)> + use<> {
        let len = self.extent.len_bytes;
        (0..len)
            .step_by(PIECE_BYTES as usize)
            .map(move |at| (at, PIECE_BYTES.min(len - at)))
    }

    /// Reads one piece into `into` and returns its checksum.
    fn piece(&self, at: u64, into: Span, windows: &mut Windows) -> Result<u64> {
        self.fill(at, into, windows)?;
        Ok(crc_span(into))
    }

    fn fill(&self, at: u64, into: Span, windows: &mut Windows) -> Result<()> {
        let (place, len) = (self.extent.physical + at, into.len_bytes() as u64);
        match windows.read(self.file(), place, len, self.run_end) {
            Some(found) => fill_span(into, found),
            None => read_span(self.file(), into, place).map_err(|error| error.at(self.place()))?,
        }
        Ok(())
    }

    fn compare(&self, found: u64) -> Result<()> {
        if found == self.extent.crc_plain || off(Switch::CrcExtent) {
            return Ok(());
        }
        // Breaks if: this returns Ok; every damaged byte would reach the program.
        Err(Error::corrupt(format!(
            "damaged data: expected CRC-64 {:016x}, found {found:016x}",
            self.extent.crc_plain
        ))
        .at(self.place())
        .next("restart from an older step, and have the storage checked"))
    }

    /// Reads the stored bytes of an encoded extent.
    fn fetch(&self, decoder: &mut Decoder, windows: &mut Windows) -> Result<()> {
        let room = decoder.room(self.extent);
        let (place, len) = (self.extent.physical, room.len() as u64);
        match windows.read(self.file(), place, len, self.run_end) {
            Some(found) => room.copy_from_slice(found),
            None => (self.file().read_at(room, place)).map_err(|error| error.at(self.place()))?,
        }
        Ok(())
    }

    pub(super) fn check_stored(&self, buffers: &mut Buffers) -> Result<()> {
        let Buffers {
            decoder, windows, ..
        } = buffers;
        self.fetch(decoder, windows)?;
        check_stored(self.extent, decoder.room(self.extent)).map_err(|error| self.damaged(error))
    }

    /// Decodes and verifies the plain bytes of an encoded extent.
    fn decode<'d>(&self, decoder: &'d mut Decoder, windows: &mut Windows) -> Result<&'d [u8]> {
        self.fetch(decoder, windows)?;
        let (region, key) = (self.region.identity(), self.key.as_deref());
        decoder
            .decode(self.extent, self.rank, region, self.at, key)
            .map_err(|error| self.damaged(error))
    }

    fn damaged(&self, error: Error) -> Error {
        let error = error.at(self.place());
        if error.kind() == ErrorKind::Corrupt {
            return error.next("restart from an older step, and have the storage checked");
        }
        error
    }

    pub(super) fn read(&self, into: Span, buffers: &mut Buffers) -> Result<()> {
        let Buffers {
            decoder, windows, ..
        } = buffers;
        if self.extent.encoding != 0 {
            fill_span(into, self.decode(decoder, windows)?);
            return Ok(());
        }
        self.read_plain(into, windows, &mut crc_span)
    }

    /// As [`Self::read`]; also notes the checksum of each block of what was verified.
    pub(super) fn read_in_blocks(
        &self,
        into: Span,
        buffers: &mut Buffers,
        blocks: &mut Blocks,
    ) -> Result<()> {
        let Buffers {
            decoder, windows, ..
        } = buffers;
        blocks.clear();
        if self.extent.encoding != 0 {
            let plain = self.decode(decoder, windows)?;
            // Breaks if: the checksums are computed over `into`; others may write there meanwhile.
            blocks.append_own(plain);
            fill_span(into, plain);
            return Ok(());
        }
        self.read_plain(into, windows, &mut |bytes| blocks.append(bytes))
    }

    fn read_plain(
        &self,
        into: Span,
        windows: &mut Windows,
        crc_of: &mut dyn FnMut(Span) -> u64,
    ) -> Result<()> {
        let mut crc = Crc::default();
        for (at, len) in self.pieces() {
            // The next pieces are read while this one is checked; those of the next extent mostly
            // lie right behind.
            let next = self.extent.physical + at + len;
            self.file().will_need(next, AHEAD_BYTES);
            let into = into.sub(as_usize(at)?, as_usize(len)?);
            self.fill(at, into, windows)?;
            crc.append(crc_of(into), len);
        }
        self.compare(crc.value())
    }

    /// Streams an extent to the sink. An extent of one piece is read once. A longer one is read
    /// twice: first to verify it and note the checksum of each piece, then to pass on the pieces,
    /// each compared with its checksum.
    pub(super) fn stream(
        &self,
        buffers: &mut Buffers,
        sink: &mut dyn FnMut(u64, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let Buffers {
            piece,
            decoder,
            windows,
        } = buffers;
        if self.extent.encoding != 0 {
            return sink(self.at, self.decode(decoder, windows)?);
        }
        piece.resize(as_usize(self.extent.len_bytes.min(PIECE_BYTES))?, 0);
        let mut crc = Crc::default();
        let mut proven = Vec::new();
        for (at, len) in self.pieces() {
            let found = self.piece(at, Span::from_mut(beginning(piece, len)?), windows)?;
            crc.append(found, len);
            proven.push(found);
        }
        self.compare(crc.value())?;
        if let [_] = proven[..] {
            return sink(self.at, piece);
        }
        for ((at, len), expected) in self.pieces().zip(proven) {
            let part = beginning(piece, len)?;
            let found = self.piece(at, Span::from_mut(part), windows)?;
            if found != expected && !off(Switch::ProvenTwice) {
                return Err(Error::corrupt(format!(
                    "the file changed while it was read: expected CRC-64 {expected:016x}, found {found:016x}"
                ))
                .at(self.place())
                .next("read it while nobody writes to it"));
            }
            sink(self.at + at, part)?;
        }
        Ok(())
    }
}

fn beginning(memory: &mut [u8], len: u64) -> Result<&mut [u8]> {
    let most = memory.len();
    memory
        .get_mut(..as_usize(len)?)
        .ok_or_else(|| Error::internal(format!("a piece of {len} bytes in memory of {most}")))
}

/// The checksum of consecutive pieces.
#[derive(Default)]
struct Crc(Option<u64>);

impl Crc {
    fn append(&mut self, crc: u64, len_bytes: u64) {
        self.0 = Some(match self.0 {
            None => crc,
            Some(before) => crc64_combine(before, crc, len_bytes),
        });
    }

    fn value(&self) -> u64 {
        self.0.unwrap_or_else(|| crc64(&[]))
    }
}
