//! Describes to the CP-thread the pieces of each segment, if it encodes or checks them.
//!
//! Invariant: the descriptions of pieces precede their segment, in the order in which the pieces
//! lie in it. Together the pieces hold every byte of the segment except padding. Not here: segments
//! (`stage.rs`), what the CP-thread does with pieces (`writer/pieces.rs`).

use crate::capture::pages::{Copied, Pages};
use crate::capture::stage::context::StageContext;
use crate::capture::stream::{Piece, Segment};
use crate::encoding::EncodePiece;
use crate::node::Descriptor;
use orcheck_format::disk::RegionRecord;
use orcheck_format::{Dtype, Result, crc64_combine};

/// What the CP-thread must know about a region in order to encode or check it.
#[derive(Clone, Copy)]
pub(crate) struct Kind {
    identity: [u8; 16],
    element_log2: u8,
}

impl Kind {
    pub(crate) fn of(record: &RegionRecord) -> Self {
        // Complex numbers are shuffled by their components.
        let element_bytes = match record.dtype {
            Dtype::C64 => 4,
            Dtype::C128 => 8,
            other => other.size_bytes(),
        };
        Kind {
            identity: record.identity(),
            element_log2: element_bytes.trailing_zeros() as u8,
        }
    }

    /// A piece of a region of this kind, with the CRC of its bytes.
    pub(crate) fn piece(self, piece: &Piece, crc_plain: u64, checked: bool) -> EncodePiece {
        EncodePiece {
            segment_at_bytes: piece.segment_at_bytes as u32,
            len_bytes: piece.len_bytes as u32,
            region_at_bytes: piece.region_at_bytes,
            crc_plain,
            element_log2: self.element_log2,
            region: self.identity,
            checked,
        }
    }
}

/// Describes the pieces of the next segment, if the CP-thread encodes or checks.
pub(super) fn push_pieces(
    context: &StageContext,
    segment: &Segment,
    crcs: &[u64],
    kinds: &[Kind],
) -> Result<()> {
    if kinds.is_empty() {
        return Ok(());
    }
    for (piece, &crc_plain) in segment.pieces.iter().zip(crcs) {
        let told = kinds[piece.region].piece(piece, crc_plain, context.checked);
        context.push(Descriptor::Piece(told))?;
    }
    Ok(())
}

/// Describes copied pages, if the CP-thread checks: one piece for each run of pages without
/// padding.
pub(super) fn push_pages(
    context: &StageContext,
    pages: &Pages,
    copied: &[Copied],
    kind: Option<&Kind>,
) -> Result<()> {
    let Some(kind) = kind else {
        return Ok(());
    };
    let mut run: Option<EncodePiece> = None;
    for copy in copied {
        let Some(at) = copy.stream_at_bytes else {
            continue;
        };
        let (begin, len) = pages.part(copy.page);
        let page = EncodePiece {
            segment_at_bytes: at as u32,
            len_bytes: len as u32,
            region_at_bytes: begin as u64,
            crc_plain: copy.crc,
            element_log2: kind.element_log2,
            region: kind.identity,
            checked: context.checked,
        };
        run = Some(match run.take() {
            Some(run) if run.segment_at_bytes + run.len_bytes == page.segment_at_bytes => {
                EncodePiece {
                    len_bytes: run.len_bytes + page.len_bytes,
                    crc_plain: crc64_combine(run.crc_plain, page.crc_plain, len as u64),
                    ..run
                }
            }
            Some(ended) => {
                context.push(Descriptor::Piece(ended))?;
                page
            }
            None => page,
        });
    }
    run.map_or(Ok(()), |run| context.push(Descriptor::Piece(run)))
}
