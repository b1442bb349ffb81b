//! Holds what a snapshot is made of, and what the next one of the same regions takes over.
//!
//! How: where the state of a program does not move, one snapshot is laid out like the one before:
//! the same pieces in the same chunks, the same record with other checksums. `Staging` hands its
//! parts back, and with them the next snapshot neither lays out nor encodes anything again.
//!
//! Invariants:
//! 1. Only parts that read flat memory are the same each time ([`Parts::is_same_again`]). Whoever
//!    keeps them must drop them when a region is declared, withdrawn or lent.
//! 2. A record that was taken over is the one that would have been encoded (debug builds compare
//!    them).
//!
//! Not here: copying (`stage.rs`), the layout (`stream.rs`).

use crate::capture::stage::told::Kind;
use crate::capture::stage::{Staging, own_extent};
use crate::capture::stream::Plan;
use orcheck_format::Result;
use orcheck_format::disk::{FramedRecord, RankRecord, RegionRecord};
use orcheck_io::memory::{Span, fetch_code_ahead};

/// Maximum length of an extent in a record: eight keys, the name of another container, and numbers
/// of up to nine bytes.
pub const EXTENT_BYTES: u64 = 136;
/// Maximum length of a record apart from its regions: frame, rank, length of the stream.
const RECORD_BYTES: u64 = 256;

/// Reads `dst.len()` bytes of a region, starting at offset `at_bytes`.
pub type ReadFn = Box<dyn FnMut(u64, &mut [u8]) -> Result<()> + Send>;

/// Where the bytes of a region come from.
pub enum Source {
    /// The program's memory.
    Memory(Span),
    /// The program's memory; only its written pages are read.
    Tracked(Span),
    /// A source read piece by piece on the staging thread: a codec, a file or a strided array.
    Read(ReadFn),
    /// Nothing: another rank stores this region.
    Elsewhere,
}

/// What a snapshot is made of.
pub struct Parts {
    pub(super) plan: Plan,
    pub(super) regions: Vec<RegionRecord>,
    pub(super) sources: Vec<Source>,
    /// The kind of each region, once it was needed; see `Staging`.
    pub(super) kinds: Option<Vec<Kind>>,
    /// The record of the last snapshot of these parts.
    pub(super) framed: Option<FramedRecord>,
    /// Empty; only its memory is of use.
    pub(super) crcs: Vec<u64>,
    /// Length of all regions.
    pub(super) len_bytes: u64,
    /// Maximum length of the record without extents.
    pub(super) described_bytes: u64,
}

impl Parts {
    /// For `regions` (extents still empty) that are read from `sources` and laid out by `plan`.
    #[must_use]
    pub fn new(plan: Plan, regions: Vec<RegionRecord>, sources: Vec<Source>) -> Self {
        let described = regions.iter().map(RegionRecord::most_described_bytes);
        Self {
            described_bytes: RECORD_BYTES + described.sum::<u64>(),
            len_bytes: regions.iter().map(|region| region.len_bytes).sum(),
            plan,
            regions,
            sources,
            kinds: None,
            framed: None,
            crcs: Vec::new(),
        }
    }

    /// The layout.
    #[must_use]
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The regions.
    #[must_use]
    pub fn regions(&self) -> &[RegionRecord] {
        &self.regions
    }

    /// Where their bytes come from.
    #[must_use]
    pub fn sources(&self) -> &[Source] {
        &self.sources
    }

    /// Length of all regions, whoever stores them.
    #[must_use]
    pub fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// Length of the record with this many extents, at most.
    #[must_use]
    pub fn most_record_bytes(&self, extents: u64) -> u64 {
        self.described_bytes + extents * EXTENT_BYTES
    }

    /// Whether the next snapshot is made of the same, if the program declares and lends nothing
    /// meanwhile: all of it is flat memory that is copied as a whole while the program waits.
    #[must_use]
    pub fn is_same_again(&self) -> bool {
        let flat = |source: &Source| matches!(source, Source::Memory(_) | Source::Elsewhere);
        self.sources.iter().all(flat) && self.plan.foreground == self.plan.segments.len()
    }
}

impl Staging {
    /// Has the processor fetch the code of staging.
    pub fn fetch_ahead() {
        fetch_code_ahead(Self::new as *const (), 2, 7);
    }

    /// The framed rank record: the last one with other checksums, or a new one.
    pub(super) fn record(&mut self) -> FramedRecord {
        let known = self.framed.take();
        let renewed = known.and_then(|mut framed| framed.renew(&self.crcs).then_some(framed));
        let renewed = match renewed {
            Some(framed) if !cfg!(debug_assertions) => return framed,
            renewed => renewed,
        };
        if self.capture.is_none() {
            self.enter_all();
        }
        let record = RankRecord {
            rank: self.context.rank,
            stream_len_bytes: self.stream_at_bytes,
            regions: std::mem::take(&mut self.regions),
        };
        let framed = FramedRecord::new(&record);
        self.regions = record.regions;
        debug_assert!(renewed.is_none_or(|renewed| renewed.bytes() == framed.bytes()));
        framed
    }

    /// Enters the extents of all pieces, none of which is stored already.
    fn enter_all(&mut self) {
        self.regions
            .iter_mut()
            .for_each(|region| region.extents.clear());
        let segments = self.plan.segments.iter();
        let pieces = segments.flat_map(|segment| {
            (segment.pieces.iter()).map(|piece| (segment.stream_at_bytes, piece))
        });
        for ((stream_at_bytes, piece), &crc) in pieces.zip(&self.crcs) {
            let at = stream_at_bytes + piece.segment_at_bytes;
            let extent = own_extent(at, piece.len_bytes, crc);
            self.regions[piece.region].extents.push(extent);
        }
    }
}
