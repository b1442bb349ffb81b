//! Writes one container again for another level.
//!
//! How: regions are streamed from the reader, each piece verified, into one chunk of a pool, laid
//! out as a rank lays out its snapshot (`stream.rs`). From there they go into a container writer,
//! as in a flush.
//!
//! Invariants:
//! 1. Memory is one chunk, the reader's memory for a piece, and the metadata of one container.
//! 2. The bytes that the writer receives have the checksum that the reader verified.
//!
//! Not here: which containers, and when they become visible (`copying.rs`).

use crate::capture::{Entry, Kind, Plan, Segment, own_extent};
use crate::encoding::{ContainerKey, Encoder, Recipe, Trust};
use crate::flush::{Announced, ContainerWriter, Ledger, Target};
use crate::restart::reader::{Reader, beside_a_good_copy};
use crate::upkeep::copying::{NotCopied, OfCopy};
use orcheck_format::disk::{
    BLOCK_BYTES, Compression, ContainerHeader, ContainerRef, Extent, Features, RankRecord,
    RegionRecord, encode_rank_record,
};
use orcheck_format::sabotage::{Switch, off};
use orcheck_format::{Crc64, Error, Level, Result, TargetId};
use orcheck_io::disk::Dir;
use orcheck_io::memory::crc_span;
use orcheck_pool::{Chunk, Pool, PoolShape};
use std::sync::Arc;

/// Size of the only chunk, and length of the longest extent: as much as an encoded extent may hold.
const CHUNK_BYTES: u64 = 4 << 20;

/// What all containers of a copy share.
pub(super) struct Rewriting<'a> {
    trust: &'a Trust,
    level: Level,
    /// Epoch of the copy's claim.
    counter: u64,
    unix_ms: u64,
    pool: Pool,
    chunk: Chunk,
}

impl<'a> Rewriting<'a> {
    pub(super) fn new(trust: &'a Trust, level: Level, counter: u64, unix_ms: u64) -> Result<Self> {
        let pool = Pool::create(PoolShape {
            chunk_bytes: CHUNK_BYTES as u32,
            chunk_count: 1,
            words: 0,
            rings: 0,
            ring_entries: 0,
        })?;
        let chunk = pool.try_take(0).ok_or_else(|| {
            Error::no_space(format!(
                "no memory for the {CHUNK_BYTES} bytes that a copy takes"
            ))
            .next("free memory, and copy again")
        })?;
        Ok(Self {
            trust,
            level,
            counter,
            unix_ms,
            pool,
            chunk,
        })
    }
}

/// Called with the number of region bytes of this container that are done.
type Tick<'a> = dyn FnMut(u64) -> Result<()> + 'a;

/// Writes the contents of `reader` to a directory; `notes` receives reports of damage where another
/// copy is good.
pub(super) fn rewrite_container(
    again: &mut Rewriting<'_>,
    reader: &Reader,
    (dir, server): (&Arc<dyn Dir>, TargetId),
    (compression, level): (Compression, i32),
    tick: &mut Tick<'_>,
    notes: &mut Vec<String>,
) -> OfCopy<ContainerRef> {
    let recipe = Recipe {
        compression,
        level,
        secret: again.trust.writing_key().cloned(),
    };
    let manifest = reader.manifest();
    let mut header = ContainerHeader {
        features: Features::default(),
        level: again.level,
        alignment_bytes: BLOCK_BYTES as u32,
        created_unix_ms: again.unix_ms,
        encryption: None,
        ..reader.header().clone()
    };
    let mut key = None;
    if !recipe.is_plain() {
        header.features.incompat |= Features::ENCODED;
    }
    if let Some(secret) = &recipe.secret {
        key = Some(ContainerKey::create(secret, &mut header)?);
    }
    let encoder = match recipe.is_plain() {
        true => None,
        false => Some(Encoder::new(&recipe)?),
    };
    let target = Target {
        dir: Arc::clone(dir),
        server,
        stripes: Vec::new(),
        direct: true,
        ranks: manifest.ranks.len() as u64,
        // Breaks if: it is written under its final name at once; an incomplete file could replace
        // one that a dead run left whole.
        coming: (!off(Switch::CopyTemporary)).then_some(again.counter),
        settled: Arc::new(|| {}),
    };
    let writer = ContainerWriter::create(header, &manifest.node_name, &target, key);
    let mut work = Work {
        pool: &again.pool,
        chunk: &again.chunk,
        writer: writer.map_err(Error::from)?,
        encoder,
        done: 0,
        refused: false,
        tick,
        notes,
    };
    for rank in &manifest.ranks {
        if let Err(error) = work.rank(reader, rank) {
            work.writer.abort();
            return Err(error);
        }
    }
    Ok(work.writer.finish().map_err(Error::from)?)
}

struct Work<'a> {
    pool: &'a Pool,
    chunk: &'a Chunk,
    writer: ContainerWriter,
    encoder: Option<Encoder>,
    /// Bytes of regions so far.
    done: u64,
    /// Whether what was read could not be written, or was not wanted any more.
    refused: bool,
    tick: &'a mut Tick<'a>,
    notes: &'a mut Vec<String>,
}

/// A segment with pieces in the chunk.
struct Filling<'p> {
    segments: std::slice::Iter<'p, Segment>,
    segment: Option<&'p Segment>,
    /// Its complete pieces, with their checksums.
    crcs: Vec<u64>,
    /// Bytes of the next piece.
    part: u64,
    crc: Crc64,
}

impl Work<'_> {
    fn rank(&mut self, reader: &Reader, rank: &RankRecord) -> OfCopy<()> {
        let plan = plan_of(rank);
        self.writer.begin_rank(
            rank.rank,
            Announced {
                stream_len_bytes: plan.stream_len_bytes,
                cut_bytes: CHUNK_BYTES as u32,
                may_shrink: false,
            },
        )?;
        let mut regions: Vec<RegionRecord> = rank
            .regions
            .iter()
            .map(|region| RegionRecord {
                extents: Vec::new(),
                ..region.clone()
            })
            .collect();
        let kinds: Vec<Kind> = regions.iter().map(Kind::of).collect();
        let mut extents: Vec<Vec<Extent>> = vec![Vec::new(); regions.len()];
        let mut filling = Filling {
            segments: plan.segments.iter(),
            segment: None,
            crcs: Vec::new(),
            part: 0,
            crc: Crc64::new(),
        };
        for region in rank
            .regions
            .iter()
            .filter(|region| region.same_as.is_none())
        {
            let mut damaged = Vec::new();
            let streamed = reader.stream_region_of_any_copy(
                rank.rank,
                region,
                &mut |damage| damaged.push(beside_a_good_copy(damage.message())),
                &mut |_, bytes| {
                    let taken = self.take(&mut filling, bytes, &kinds, &mut extents);
                    self.refused |= taken.is_err();
                    taken
                },
            );
            self.notes.append(&mut damaged);
            // Breaks if: an error of the target counts as damage of the source; an older step would
            // be taken.
            streamed.map_err(|error| match self.refused && !off(Switch::CopyErrors) {
                true => error.into(),
                false => NotCopied::lost(error),
            })?;
        }
        if filling.segment.is_some() || filling.segments.next().is_some() {
            return Err(NotCopied::lost(Error::corrupt(format!(
                "rank {}: its regions are shorter than the manifest says",
                rank.rank
            ))));
        }
        for (region, extents) in regions.iter_mut().zip(extents) {
            region.extents = extents;
        }
        let record = RankRecord {
            rank: rank.rank,
            stream_len_bytes: plan.stream_len_bytes,
            regions,
        };
        let framed = encode_rank_record(&record);
        Ok((self.writer).end_rank(framed, &[], &mut Ledger::default())?)
    }

    /// Takes the next bytes of the stream.
    fn take(
        &mut self,
        filling: &mut Filling<'_>,
        mut bytes: &[u8],
        kinds: &[Kind],
        extents: &mut [Vec<Extent>],
    ) -> Result<()> {
        while !bytes.is_empty() {
            let segment = match filling.segment {
                Some(segment) => segment,
                None => {
                    let next = filling.segments.next();
                    let next =
                        next.ok_or_else(|| Error::internal("more bytes than were planned"))?;
                    // Bytes outside all pieces are zero.
                    self.pool.zero(self.chunk, 0, next.len_bytes as u32);
                    filling.segment.insert(next)
                }
            };
            let piece = &segment.pieces[filling.crcs.len()];
            let count = bytes.len().min((piece.len_bytes - filling.part) as usize);
            let (now, rest) = bytes.split_at(count);
            let at = piece.segment_at_bytes + filling.part;
            self.pool.put(self.chunk, at as u32, now);
            filling.crc.update(now);
            filling.part += count as u64;
            self.done += count as u64;
            bytes = rest;
            if filling.part == piece.len_bytes {
                let crc = std::mem::replace(&mut filling.crc, Crc64::new()).value();
                filling.crcs.push(crc);
                filling.part = 0;
            }
            if filling.crcs.len() == segment.pieces.len() {
                self.segment(segment, &filling.crcs, kinds, extents)?;
                filling.crcs.clear();
                filling.segment = None;
                (self.tick)(self.done)?;
            }
        }
        Ok(())
    }

    /// Writes a segment whose pieces are all in the chunk.
    fn segment(
        &mut self,
        segment: &Segment,
        crcs: &[u64],
        kinds: &[Kind],
        extents: &mut [Vec<Extent>],
    ) -> Result<()> {
        let changed = || {
            Error::corrupt("the memory of this machine changed what was read before it was written")
                .next("test the memory of this machine, and copy on another machine")
        };
        for (piece, &crc) in segment.pieces.iter().zip(crcs) {
            let stream_at = segment.stream_at_bytes + piece.segment_at_bytes;
            extents[piece.region].push(own_extent(stream_at, piece.len_bytes, crc));
            let Some(encoder) = &mut self.encoder else {
                let span = self.pool.span(piece.segment_at_bytes, piece.len_bytes)?;
                if crc_span(span) != crc && !off(Switch::PoolChecked) {
                    return Err(changed());
                }
                continue;
            };
            let told = kinds[piece.region].piece(piece, crc, true);
            let body = encoder.encode(self.pool, piece.segment_at_bytes, &told)?;
            if !self.writer.append_piece(self.pool, 0, &told, &body)? {
                return Err(changed());
            }
        }
        match self.encoder {
            Some(_) => self.writer.end_segment(segment.len_bytes),
            None => self.writer.append(self.pool, 0, segment.len_bytes),
        }
    }
}

/// The layout of a rank's regions in a stream.
fn plan_of(rank: &RankRecord) -> Plan {
    let entries = rank.regions.iter().map(|region| Entry::Copied {
        // A region that another rank stores for all is copied with that rank.
        len_bytes: match region.same_as {
            None => region.len_bytes,
            Some(_) => 0,
        },
    });
    let entries: Vec<Entry> = entries.collect();
    Plan::new(&entries, CHUNK_BYTES, CHUNK_BYTES)
}
