//! Writes segments into the containers of a step, either as they are or encoded piece by piece.
//!
//! Invariants:
//! 1. A piece is compressed once, whatever the number of containers.
//! 2. A rank's description of a piece is checked before it is used.
//! 3. A piece whose bytes are not what the rank staged goes into no container: every container that
//!    would receive it is given up.
//!
//! Not here: the order of snapshots, and returning chunks (`writer.rs`).

use super::sinks::Sink;
use super::{Damaged, Flusher, SegmentSpan};
use crate::encoding::{Body, EncodePiece, Encoder};
use crate::node::Descriptor;
use orcheck_format::disk::{MAX_ENCODED_BYTES, decode_rank_record};
use orcheck_format::sabotage::{Switch, off};
use orcheck_format::{Error, Rank, Result, Step};
use orcheck_io::memory::crc_span;
use orcheck_pool::Pool;
use std::sync::Arc;

impl Flusher {
    /// Checks that a piece is as this version's ranks send them: in order, inside a chunk, and not
    /// too many.
    pub(super) fn check_piece(
        &self,
        rank: Rank,
        piece: EncodePiece,
        before: &[EncodePiece],
    ) -> Result<EncodePiece> {
        let end =
            |piece: &EncodePiece| u64::from(piece.segment_at_bytes) + u64::from(piece.len_bytes);
        let from = before.last().map_or(0, end);
        let sound = u64::from(piece.segment_at_bytes) >= from
            && piece.len_bytes >= 1
            && (u64::from(piece.len_bytes) <= MAX_ENCODED_BYTES || self.encoder.is_none())
            && end(&piece) <= u64::from(self.context.pool.shape().chunk_bytes);
        let expected = self.encoder.is_some() || piece.checked;
        if (sound || off(Switch::PieceInSegment)) && expected {
            return Ok(piece);
        }
        Err(Error::corrupt(format!(
            "rank {rank} sent {piece:?}, which cannot follow byte {from} of its segment"
        )))
    }

    /// Adds adjacent segments that are already in the ring, up to the end of a run of chunks: one
    /// long write takes less processor time than several.
    pub(super) fn extend_run(&mut self, which: usize, part: &mut SegmentSpan) -> Result<()> {
        let rank = self.context.ranks[which].1;
        let mut pieces: Vec<EncodePiece> = Vec::new();
        let run = self.context.pool.run_chunks();
        let chunk_bytes = u64::from(self.context.pool.shape().chunk_bytes);
        let Some((first, mut count)) = part.chunks else {
            return Ok(());
        };
        loop {
            // Shared memory is not trusted: the sum must not overflow here either.
            let next = u64::from(first) + u64::from(count);
            if self.encoder.is_some() || next.is_multiple_of(u64::from(run)) {
                break;
            }
            match self.pop(which)? {
                Some(Descriptor::Piece(piece)) => {
                    let piece = self.check_piece(rank, piece, &pieces)?;
                    pieces.push(piece);
                }
                Some(Descriptor::Segment {
                    pool_at_bytes,
                    len_bytes,
                    chunk: Some(chunk),
                }) if u64::from(chunk) == next
                    && pool_at_bytes == next * chunk_bytes
                    && part.pool_at_bytes.checked_add(part.len_bytes) == Some(pool_at_bytes)
                    && len_bytes <= chunk_bytes =>
                {
                    // A run is at most a few chunks long, so its offsets fit.
                    let moved = pieces.drain(..).map(|piece| EncodePiece {
                        segment_at_bytes: piece.segment_at_bytes + part.len_bytes as u32,
                        ..piece
                    });
                    part.pieces.extend(moved);
                    part.len_bytes += len_bytes;
                    count += 1;
                }
                other => {
                    self.ahead.extend(pieces.into_iter().map(Descriptor::Piece));
                    self.ahead.extend(other);
                    break;
                }
            }
        }
        part.chunks = Some((first, count));
        Ok(())
    }

    /// Writes one segment to all sinks.
    pub(super) fn write_part(
        &mut self,
        step: Step,
        sinks: &mut [Sink],
        part: &SegmentSpan,
    ) -> Result<()> {
        let SegmentSpan {
            pool_at_bytes,
            len_bytes,
            ..
        } = *part;
        let Some(mut encoder) = self.encoder.take() else {
            if let Some(piece) = self.find_changed(part, sinks)? {
                self.give_up_damaged(sinks, piece);
            }
            for sink in sinks.iter_mut() {
                self.on_sink(step, sink, |container, context, _| {
                    container.append(&context.pool, pool_at_bytes, len_bytes)
                })?;
            }
            return Ok(());
        };
        let written = self.write_pieces(step, sinks, part, &mut encoder);
        self.encoder = Some(encoder);
        written?;
        for sink in sinks.iter_mut() {
            self.on_sink(step, sink, |container, _, _| {
                container.end_segment(len_bytes)
            })?;
        }
        Ok(())
    }

    fn write_pieces(
        &mut self,
        step: Step,
        sinks: &mut [Sink],
        part: &SegmentSpan,
        encoder: &mut Encoder,
    ) -> Result<()> {
        let pool = Arc::clone(&self.context.pool);
        for piece in &part.pieces {
            if sinks.iter().all(|sink| sink.container.is_none()) {
                return Ok(());
            }
            let at = part.pool_at_bytes + u64::from(piece.segment_at_bytes);
            match encoder.encode(&pool, at, piece) {
                Ok(body) => {
                    let stored = matches!(body, Body::Plain);
                    let mut sound = !(stored && piece.checked && is_changed(&pool, at, piece)?);
                    for sink in sinks.iter_mut() {
                        if !sound {
                            break;
                        }
                        self.on_sink(step, sink, |container, _, _| {
                            let at = part.pool_at_bytes;
                            sound &= container.append_piece(&pool, at, piece, &body)?;
                            Ok(())
                        })?;
                    }
                    if !sound {
                        self.give_up_damaged(sinks, *piece);
                    }
                }
                Err(error) => {
                    for sink in sinks.iter_mut() {
                        self.lose(step, sink, error.clone())?;
                    }
                }
            }
        }
        Ok(())
    }

    /// The first piece that is not what was staged, if pieces are checked and any container would
    /// receive it.
    fn find_changed(&self, part: &SegmentSpan, sinks: &[Sink]) -> Result<Option<EncodePiece>> {
        if sinks.iter().all(|sink| sink.container.is_none()) {
            return Ok(None);
        }
        let pool = &self.context.pool;
        // Between pieces there are zeros, which belong to nobody. In memory of the program there is
        // whatever the program put there.
        let zeros = |from: u64, to: u64| -> Result<bool> {
            let padding = pool.read_bytes(part.pool_at_bytes + from, to.saturating_sub(from))?;
            Ok(part.chunks.is_none() || padding.iter().all(|byte| *byte == 0))
        };
        let mut end = 0;
        for piece in &part.pieces {
            let from = u64::from(piece.segment_at_bytes);
            if is_changed(pool, part.pool_at_bytes + from, piece)? || !zeros(end, from)? {
                return Ok(Some(*piece));
            }
            end = from + u64::from(piece.len_bytes);
        }
        let last = part.pieces.last();
        match last {
            Some(last) if !zeros(end, part.len_bytes)? => Ok(Some(*last)),
            _ => Ok(None),
        }
    }

    /// Gives up all containers that would receive this piece. The cause is reported once the rank's
    /// record names its regions.
    fn give_up_damaged(&mut self, sinks: &mut [Sink], piece: EncodePiece) {
        let damaged = self.damaged.get_or_insert(Damaged {
            piece,
            levels: Vec::new(),
        });
        for sink in sinks {
            if let Some(container) = sink.container.take() {
                container.abort();
                damaged.levels.push(sink.level);
            }
        }
    }

    /// Reports the levels that damage in the pool cost this snapshot, naming the region from the
    /// rank's record.
    pub(super) fn report_damaged(
        &mut self,
        step: Step,
        rank: Rank,
        record: Option<&[u8]>,
    ) -> Result<()> {
        let Some(Damaged { piece, levels }) = self.damaged.take() else {
            return Ok(());
        };
        let record = record.and_then(|framed| decode_rank_record(framed).ok());
        let region = record.and_then(|(record, _)| {
            let mut regions = record.regions.into_iter();
            regions.find(|region| region.identity() == piece.region)
        });
        let from = piece.region_at_bytes;
        let error = Error::corrupt(format!(
            "the pool does not hold what rank {rank} staged: expected bytes {from} to {} of {} with checksum {:016x}, \
             found others",
            from + u64::from(piece.len_bytes),
            region.map_or_else(
                || "a region".to_owned(),
                |region| format!("region '{}'", region.name)
            ),
            piece.crc_plain,
        ))
        .next("look for stray writes in the program, and test the memory of this node");
        for level in levels {
            self.report_loss(step, level, error.clone().into())?;
        }
        Ok(())
    }
}

/// Whether the pool holds other bytes than the rank staged.
// Breaks if: this returns false; a bit that flipped after staging would be committed.
fn is_changed(pool: &Pool, at_bytes: u64, piece: &EncodePiece) -> Result<bool> {
    let span = pool.span(at_bytes, u64::from(piece.len_bytes))?;
    Ok(crc_span(span) != piece.crc_plain && !off(Switch::PoolChecked))
}
