//! Writes encoded containers, which pack pieces of any length one behind the other.
//!
//! Pieces go through one aligned buffer and are written in large aligned writes. Unencoded pieces
//! that lie on block boundaries in the pool are written from there. The offset of a piece is known
//! only here, so the rank record, which the rank wrote without knowing it, is rewritten at the end
//! of its stream.
//!
//! Invariants:
//! 1. A piece begins where the last one ended, or at the next block; the bytes in between are zero.
//! 2. Every extent of the rank record is exactly one piece that was written; anything else is
//!    Corrupt.
//!
//! Not here: compression, and what encryption binds pieces to (`encoding.rs`).

use super::{ContainerWriter, Store};
use crate::encoding::{Body, Bounce, ContainerKey, EncodePiece};
use orcheck_format::disk::{BLOCK_BYTES, Encoding, Extent, RankRecord, SEAL_BYTES};
use orcheck_format::sabotage::{Switch, off};
use orcheck_format::{Error, Result, crc64};
use orcheck_io::memory::copy_into;
use orcheck_pool::Pool;
use std::collections::BTreeMap;

/// A stored piece of at least this length is written straight from the pool.
const DIRECT_FROM_BYTES: u64 = 64 << 10;
/// The final size is unknown, so as much space is reserved ahead as is already used, and at least
/// this much.
const BESIDES_LEAST_BYTES: u64 = 1 << 20;

/// What a container writer also needs if it encodes.
pub(super) struct Encoded {
    bounce: Bounce,
    key: Option<ContainerKey>,
    /// The pieces of the rank whose stream is being written, by their offset in the rank's own
    /// stream.
    pieces: BTreeMap<u64, Extent>,
}

impl Encoded {
    pub(super) fn new(key: Option<ContainerKey>) -> Self {
        Encoded {
            bounce: Bounce::new(),
            key,
            pieces: BTreeMap::new(),
        }
    }

    fn write(&mut self, main: &mut Store, all: bool) -> Result<()> {
        self.bounce.drain(all, |blocks| {
            reserve(main, blocks.len() as u64)?;
            main.write(blocks)
        })
    }

    /// Ends the stream: writes the waiting bytes, padded with zeros.
    pub(super) fn close(&mut self, main: &mut Store) -> Result<()> {
        self.bounce.pad();
        self.write(main, true)
    }

    /// Puts the places of the pieces into the record; offsets count from the start of the stream.
    pub(super) fn rewrite(&mut self, record: &mut RankRecord) -> Result<()> {
        let pieces = std::mem::take(&mut self.pieces);
        let own = record
            .regions
            .iter_mut()
            .flat_map(|region| &mut region.extents)
            .filter(|extent| extent.container.is_none());
        for extent in own {
            let stored = pieces.get(&extent.physical).filter(|stored| {
                (stored.len_bytes, stored.crc_plain) == (extent.len_bytes, extent.crc_plain)
            });
            let Some(stored) = stored else {
                if off(Switch::PieceSent) {
                    continue;
                }
                return Err(Error::corrupt(format!(
                    "rank {}: an extent of {} bytes at {} of its stream is not a piece that it \
                     sent",
                    record.rank, extent.len_bytes, extent.physical
                )));
            };
            *extent = stored.clone();
            if Encoding::from_code(extent.encoding)?.encrypted && !off(Switch::HiddenCrc) {
                extent.crc_plain = 0;
            }
        }
        Ok(())
    }
}

/// Reserves space ahead of a write.
fn reserve(main: &mut Store, more: u64) -> Result<()> {
    main.reserve(more, (main.at + more).max(BESIDES_LEAST_BYTES))
}

/// Writes whole blocks from the pool to the end of the file; returns how many bytes.
fn write_blocks(
    main: &mut Store,
    pool: &Pool,
    pool_at_bytes: u64,
    (at, len_bytes): (u64, u64),
) -> Result<u64> {
    reserve(main, len_bytes)?;
    pool.write_to(main.file.as_ref(), pool_at_bytes, len_bytes, at)?;
    main.at += len_bytes;
    Ok(len_bytes)
}

impl ContainerWriter {
    /// Writes the next piece of the segment at `segment_at_bytes` in the pool. Returns `false` if
    /// the piece is not what was staged; the container must then be given up.
    ///
    /// # Errors
    /// The error of the file; Corrupt for a piece outside the announced stream.
    // tidy: long because the order of its steps is what keeps a changed piece out of the file
    pub fn append_piece(
        &mut self,
        pool: &Pool,
        segment_at_bytes: u64,
        piece: &EncodePiece,
        body: &Body<'_>,
    ) -> Result<bool> {
        let (Some(stream), Some(encoded)) = (&mut self.stream, &mut self.encoded) else {
            return Err(Error::internal("an encoded piece outside a rank"));
        };
        let len_bytes = u64::from(piece.len_bytes);
        let in_segment = u64::from(piece.segment_at_bytes);
        let stream_at = stream.at + in_segment;
        stream.require_announced(stream_at + len_bytes)?;
        let pool_at_bytes = segment_at_bytes + in_segment;
        let mut encoding = match body {
            Body::Plain => Encoding::default(),
            Body::Packed(_, encoding) => *encoding,
            Body::Changed => return Ok(false),
        };
        encoding.encrypted = encoded.key.is_some();
        let blocks = len_bytes / BLOCK_BYTES as u64 * BLOCK_BYTES as u64;
        let direct = encoding.is_plain()
            && len_bytes >= DIRECT_FROM_BYTES
            && pool_at_bytes.is_multiple_of(BLOCK_BYTES as u64);
        if direct {
            encoded.close(&mut self.main)?;
        }
        let at = self.main.at + encoded.bounce.len_bytes();
        let from_pool = match direct {
            true => write_blocks(&mut self.main, pool, pool_at_bytes, (at, blocks))?,
            false => 0,
        };
        let payload_len = match body {
            Body::Plain => len_bytes - from_pool,
            Body::Packed(bytes, _) => bytes.len() as u64,
            Body::Changed => 0,
        };
        let added = if encoding.encrypted { SEAL_BYTES } else { 0 };
        let room = encoded.bounce.next((payload_len + added) as usize);
        let payload = &mut room[..payload_len as usize];
        match body {
            Body::Plain => copy_into(pool.span(pool_at_bytes + from_pool, payload_len)?, payload),
            Body::Packed(bytes, _) => payload.copy_from_slice(bytes),
            Body::Changed => {}
        }
        // The whole piece was read; this copy is what is encrypted and stored.
        let is_copy = matches!(body, Body::Plain) && !direct;
        if is_copy && crc64(payload) != piece.crc_plain && !off(Switch::PoolChecked) {
            return Ok(false);
        }
        if let Some(key) = &encoded.key {
            let binding = piece.binding(stream.rank, encoding);
            key.seal(at, &binding, piece.crc_plain, room)?;
        }
        let is_plain = encoding.is_plain();
        let extent = Extent {
            container: None,
            store: 0,
            physical: at - stream.base,
            stored_len_bytes: from_pool + payload_len + added,
            len_bytes,
            encoding: encoding.code(),
            crc_stored: if is_plain {
                piece.crc_plain
            } else {
                crc64(room)
            },
            crc_plain: piece.crc_plain,
        };
        encoded.pieces.insert(stream_at, extent);
        encoded.write(&mut self.main, false).map(|()| true)
    }

    /// Ends the segment whose pieces were appended.
    ///
    /// # Errors
    /// Corrupt for more bytes than announced.
    pub fn end_segment(&mut self, len_bytes: u64) -> Result<()> {
        let Some(stream) = &mut self.stream else {
            return Err(Error::internal("a segment outside a rank"));
        };
        if len_bytes > stream.announced.stream_len_bytes - stream.at {
            return Err(Error::corrupt(format!(
                "rank {} sends more than the {} bytes it announced",
                stream.rank, stream.announced.stream_len_bytes
            )));
        }
        stream.at += len_bytes;
        Ok(())
    }
}
