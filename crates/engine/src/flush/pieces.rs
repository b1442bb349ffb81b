//! Segments on their way into the containers of a step: as they are, or encoded piece by piece.
//!
//! Invariants:
//! 1. A piece is made smaller once, whatever the number of containers.
//! 2. What a rank says of a piece is checked before it is used.
//!
//! Not here: the order of snapshots and giving chunks back (`flush.rs`).

use super::{Flusher, Part, Sink};
use crate::encoding::{EncodePiece, Encoder};
use crate::index::Descriptor;
use orcheck_format::encoding::MAX_ENCODED_BYTES;
use orcheck_format::error::{Error, Result};
use orcheck_format::sabotage::{Switch, off};
use std::sync::Arc;

impl Flusher {
    /// A piece as this version's ranks send them: in order, inside a chunk, and not too many.
    pub(super) fn check_piece(
        &self,
        rank: u32,
        piece: EncodePiece,
        before: &[EncodePiece],
    ) -> Result<EncodePiece> {
        let end =
            |piece: &EncodePiece| u64::from(piece.segment_at_bytes) + u64::from(piece.len_bytes);
        let from = before.last().map_or(0, end);
        let sound = u64::from(piece.segment_at_bytes) >= from
            && (1..=MAX_ENCODED_BYTES).contains(&u64::from(piece.len_bytes))
            && end(&piece) <= u64::from(self.context.pool.shape().chunk_bytes);
        if (sound || off(Switch::PieceInSegment)) && self.encoder.is_some() {
            return Ok(piece);
        }
        Err(Error::corrupt(format!(
            "rank {rank} sent {piece:?}, which cannot follow byte {from} of its segment"
        )))
    }

    /// Adds the segments that follow side by side and are there already, up to the end of a run of chunks: one long
    /// write takes less of the processor than several.
    pub(super) fn extend_run(&mut self, which: usize, part: &mut Part) -> Result<()> {
        let run = self.context.pool.run_chunks();
        let chunk_bytes = u64::from(self.context.pool.shape().chunk_bytes);
        let Some((first, mut count)) = part.chunks else {
            return Ok(());
        };
        loop {
            // What comes from shared memory is not believed: it must not overflow here either.
            let next = u64::from(first) + u64::from(count);
            if self.encoder.is_some() || next.is_multiple_of(u64::from(run)) {
                break;
            }
            match self.pop(which)? {
                Some(Descriptor::Segment {
                    pool_at_bytes,
                    len_bytes,
                    chunk: Some(chunk),
                }) if u64::from(chunk) == next
                    && pool_at_bytes == next * chunk_bytes
                    && part.pool_at_bytes.checked_add(part.len_bytes) == Some(pool_at_bytes)
                    && len_bytes <= chunk_bytes =>
                {
                    part.len_bytes += len_bytes;
                    count += 1;
                }
                other => {
                    self.ahead = other;
                    break;
                }
            }
        }
        part.chunks = Some((first, count));
        Ok(())
    }

    /// Writes one segment to all sinks.
    pub(super) fn write_part(&mut self, step: u64, sinks: &mut [Sink], part: &Part) -> Result<()> {
        let Part {
            pool_at_bytes,
            len_bytes,
            ..
        } = *part;
        let Some(mut encoder) = self.encoder.take() else {
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
        step: u64,
        sinks: &mut [Sink],
        part: &Part,
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
                    for sink in sinks.iter_mut() {
                        self.on_sink(step, sink, |container, _, _| {
                            container.append_piece(&pool, part.pool_at_bytes, piece, &body)
                        })?;
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
}
