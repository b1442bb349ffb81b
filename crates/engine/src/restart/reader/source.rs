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
use orcheck_io::disk::{File, read_cached_span, read_span};
use orcheck_io::memory::{Span, crc_span, fill_span};

use super::together::Windows;
use super::{PIECE_BYTES, as_usize};
use crate::encoding::{ContainerKey, Decoder, check_stored};
use crate::restart::memory::Held;
use crate::restart::shared::Blocks;

/// Read at once where the page cache has it, and verified before it leaves the processor's cache.
const CACHED_BYTES: u64 = 256 << 10;

/// Read at once where the page cache of this machine does not have it. The kernel reads ahead by
/// itself, into large pages: asking it to (`will_need`) took half as long again, because it then
/// takes small ones (Linux 6.18, ext4).
const UNCACHED_BYTES: u64 = 1 << 20;

/// How far ahead of a piece another node is asked to read.
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
    /// The same bytes in the memory of an agent.
    pub(super) held: Option<Held>,
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

    /// Whether the bytes were copied from the memory of an agent, and are right.
    fn is_held(&self, into: Span) -> bool {
        self.held.as_ref().is_some_and(|held| held.copy_to(into))
    }

    pub(super) fn read(&self, into: Span, buffers: &mut Buffers) -> Result<()> {
        if self.is_held(into) {
            return Ok(());
        }
        if self.extent.encoding != 0 {
            fill_span(
                into,
                self.decode(&mut buffers.decoder, &mut buffers.windows)?,
            );
            return Ok(());
        }
        self.read_plain(into, buffers, 1, &mut crc_span)
    }

    /// As [`Self::read`]; also notes the checksum of each block of what was verified.
    pub(super) fn read_in_blocks(
        &self,
        into: Span,
        buffers: &mut Buffers,
        blocks: &mut Blocks,
    ) -> Result<()> {
        blocks.clear();
        if self.extent.encoding != 0 {
            let plain = self.decode(&mut buffers.decoder, &mut buffers.windows)?;
            // Breaks if: the checksums are computed over `into`; others may write there meanwhile.
            blocks.append_own(plain);
            fill_span(into, plain);
            return Ok(());
        }
        self.read_plain(into, buffers, blocks.block_bytes(), &mut |bytes| {
            blocks.append(bytes)
        })
    }

    /// Reads the bytes in parts that, but for the last one, are multiples of `unit_bytes`.
    fn read_plain(
        &self,
        into: Span,
        buffers: &mut Buffers,
        unit_bytes: usize,
        crc_of: &mut dyn FnMut(Span) -> u64,
    ) -> Result<()> {
        let (file, len, mut at) = (self.file(), self.extent.len_bytes, 0);
        let windows = &mut buffers.windows;
        if let Some(found) = windows.read(file, self.extent.physical, len, self.run_end) {
            fill_span(into, found);
            return self.compare(crc_of(into));
        }
        let mut crc = Crc::default();
        while at < len {
            let rest = into.sub(as_usize(at)?, as_usize(len - at)?);
            let found = read_part(file, rest, self.extent.physical + at, unit_bytes);
            let found = found.map_err(|error| error.at(self.place()))?;
            crc.append(crc_of(rest.sub(0, found)), found as u64);
            at += found as u64;
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
        // A longer one is read from the file: memory is bounded.
        if self.held.is_some() && self.extent.len_bytes <= PIECE_BYTES {
            buffers.piece.resize(as_usize(self.extent.len_bytes)?, 0);
            if self.is_held(Span::from_mut(&mut buffers.piece)) {
                return sink(self.at, &buffers.piece);
            }
        }
        let Buffers {
            piece,
            decoder,
            windows,
            ..
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

/// Reads the first of the bytes at `at` into the beginning of `into`, as many as are best verified
/// before more are read: a multiple of `unit_bytes`, or all. Returns how many.
fn read_part(file: &dyn File, into: Span, at: u64, unit_bytes: usize) -> Result<usize> {
    let first = |most: u64| {
        let most = (most as usize / unit_bytes * unit_bytes).max(unit_bytes);
        into.sub(0, most.min(into.len_bytes()))
    };
    let cached = first(CACHED_BYTES);
    let (part, there) = match read_cached_span(file, cached, at)? {
        Some(found) if found == cached.len_bytes() => return Ok(found),
        Some(found) => (first(UNCACHED_BYTES), found),
        None => {
            let piece = first(PIECE_BYTES);
            // The next pieces are read while this one is verified; those of the next extent mostly
            // lie right behind.
            file.will_need(at + piece.len_bytes() as u64, AHEAD_BYTES);
            (piece, 0)
        }
    };
    let rest = part.sub(there, part.len_bytes() - there);
    read_span(file, rest, at + there as u64)?;
    Ok(part.len_bytes())
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
