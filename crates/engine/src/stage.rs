//! Stage: one rank's snapshot goes into the pool, copied and checksummed in one pass.
//!
//! The program waits for the foreground segments only; lent regions follow on the rank's own
//! CP-thread ([`Staging`] moves there). Every segment is handed to the flushing CP-thread as soon
//! as it is complete, so the device is busy from the first chunk.
//!
//! When the pool does not hold the snapshots of all ranks, a rank first takes the node's **stage
//! slot** and gives it back once its own flush has its turn at the lane: the two interleaved locks
//! of Algorithm 1 (checkpointing orchestration), so at most two snapshots are in memory and a pool
//! of a few chunks suffices.
//!
//! Invariants:
//! 1. `Begin` is always followed by `Seal` or `Fail`: the CP-thread never waits for ever.
//! 2. The CRC in the record is that of the program's memory at the moment it was read.
//! 3. Chunks are taken in stream order, so a pool of any size makes progress.
//!
//! Survives: a full pool (waits, with a deadline), a codec that fails (`Fail`, the step is lost,
//! the error returned). Not here: what follows in the CP-thread (`flush.rs`).

use crate::index::{Descriptor, Index, IndexShape};
use crate::patience::Patience;
use crate::stream::{Piece, Plan, Segment};
use orcheck_format::container::encode_rank_record;
use orcheck_format::crc::crc64;
use orcheck_format::error::{Error, Result};
use orcheck_format::manifest::{Extent, RankRecord, RegionRecord};
use orcheck_io::gate::Gate;
use orcheck_io::memory::{Span, crc_span};
use orcheck_io::pool::{Chunk, Pool};
use orcheck_io::steps::Steps;
use orcheck_io::thread::spawn_scoped;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Reads `dst.len()` bytes of a region from offset `at_bytes` on.
pub type ReadFn = Box<dyn FnMut(u64, &mut [u8]) -> Result<()> + Send>;

/// Where the bytes of a region come from.
pub enum Source {
    /// The program's memory.
    Memory(Span),
    /// Something that is read piece by piece on the staging thread: codec, file, strided array.
    Read(ReadFn),
    /// Nothing: another rank stores it.
    Elsewhere,
}

/// What a rank needs to stage: its place in the node.
#[derive(Clone)]
pub struct StageContext {
    /// The node's pool.
    pub pool: Arc<Pool>,
    /// Shape of the index in it.
    pub shape: IndexShape,
    /// Position among the ranks of the node.
    pub local: u32,
    /// The rank.
    pub rank: u32,
    /// The writer that flushes it.
    pub writer: u32,
    /// Longest wait for a chunk or the CP-thread without any progress.
    pub timeout: Duration,
    /// How it waits.
    pub patience: Patience,
    /// Numbered steps, for tests.
    pub steps: Steps,
}

impl StageContext {
    /// The node's snapshot index.
    #[must_use]
    pub fn index(&self) -> Index<'_> {
        Index::new(&self.pool, self.shape)
    }

    fn take(&self, near: u32) -> Result<Chunk> {
        self.patience
            .wait(self.timeout, |slice| self.pool.take(near, slice))
    }

    fn push(&self, descriptor: Descriptor) -> Result<()> {
        self.patience.wait(self.timeout, |slice| {
            self.index()
                .push(self.local, self.writer, descriptor, slice)
        })
    }
}

/// One snapshot on its way into the pool.
pub struct Staging {
    context: StageContext,
    step: u64,
    plan: Plan,
    regions: Vec<RegionRecord>,
    sources: Vec<Source>,
    slot: Option<Gate>,
    done: usize,
    cut_bytes: u32,
    pipelined: bool,
    open: bool,
}

impl Staging {
    /// A snapshot of `regions` (extents still empty) read from `sources`, laid out by `plan`.
    /// `pipelined`: the pool does not hold all snapshots; the rank then holds `slot`, the node's
    /// stage slot, unless it was refused and only says so.
    #[must_use]
    pub fn new(
        context: StageContext,
        step: u64,
        plan: Plan,
        parts: (Vec<RegionRecord>, Vec<Source>),
        (slot, pipelined): (Option<Gate>, bool),
        cut_bytes: u32,
    ) -> Self {
        let (regions, sources) = parts;
        Self {
            context,
            step,
            plan,
            regions,
            sources,
            slot,
            done: 0,
            cut_bytes,
            pipelined,
            open: false,
        }
    }

    /// Announces the snapshot to the CP-thread.
    ///
    /// # Errors
    /// Unavailable when the CP-thread takes nothing.
    pub fn begin(&mut self) -> Result<()> {
        // Announced even if the step fails: the CP-thread then learns at once that nothing comes.
        let allowed = self.context.steps.at("stage.begin", "");
        self.push(Descriptor::Begin {
            step: self.step,
            stream_len_bytes: self.plan.stream_len_bytes,
            cut_bytes: self.cut_bytes,
            pipelined: self.pipelined,
        })?;
        self.open = true;
        allowed.map(|_| ())
    }

    /// Stages the segments that the program waits for, with `threads` threads.
    ///
    /// # Errors
    /// What a source or the pool says; the snapshot is then given up (`Fail`).
    pub fn foreground(&mut self, threads: usize) -> Result<()> {
        let until = self.plan.foreground;
        self.stage_until(until, threads)
    }

    /// Whether segments are left for the CP-thread of this rank.
    #[must_use]
    pub fn has_background(&self) -> bool {
        self.done < self.plan.segments.len()
    }

    /// Stages what is left, writes the rank record and seals the snapshot.
    ///
    /// # Errors
    /// As [`Self::foreground`].
    pub fn finish(mut self) -> Result<()> {
        self.stage_until(self.plan.segments.len(), 1)?;
        let record = RankRecord {
            rank: self.context.rank,
            stream_len_bytes: self.plan.stream_len_bytes,
            regions: std::mem::take(&mut self.regions),
        };
        let framed = encode_rank_record(&record);
        let pool = Arc::clone(&self.context.pool);
        let chunk_bytes = pool.shape().chunk_bytes as usize;
        for part in framed.chunks(chunk_bytes) {
            let chunk = self.context.take(self.near())?;
            pool.put(&chunk, 0, part);
            let index = chunk.into_index();
            self.push(Descriptor::Record {
                pool_at_bytes: u64::from(index) * chunk_bytes as u64,
                len_bytes: part.len() as u64,
                chunk: index,
            })?;
        }
        self.context.steps.at("stage.seal", "")?;
        self.push(Descriptor::Seal)?;
        self.open = false;
        if self.slot.is_some() {
            let StageContext {
                ref patience,
                local,
                rank,
                timeout,
                ..
            } = self.context;
            let (index, step) = (self.context.index(), self.step);
            patience.wait(timeout, |slice| {
                if index.wait_taken(local, step, slice) {
                    return Ok(());
                }
                Err(Error::unavailable(format!(
                    "rank {rank}: the flush of step {step} did not get its turn within {:.0} s",
                    timeout.as_secs_f64()
                )))
            })?;
        }
        Ok(())
    }

    fn push(&self, descriptor: Descriptor) -> Result<()> {
        self.context.push(descriptor)
    }

    fn near(&self) -> u32 {
        let chunk_count = self.context.pool.shape().chunk_count;
        self.context
            .index()
            .first_chunk(self.context.local, chunk_count)
    }

    fn stage_until(&mut self, until: usize, threads: usize) -> Result<()> {
        let memory_only = self
            .sources
            .iter()
            .all(|source| !matches!(source, Source::Read(_)));
        if threads > 1 && memory_only && until > self.done + 1 {
            return self.stage_parallel(until, threads);
        }
        while self.done < until {
            let segment = self.plan.segments[self.done].clone();
            let crcs = self.stage_one(&segment)?;
            self.note(&segment, &crcs);
            self.done += 1;
        }
        Ok(())
    }

    fn note(&mut self, segment: &Segment, crcs: &[u64]) {
        for (piece, &crc) in segment.pieces.iter().zip(crcs) {
            self.regions[piece.region].extents.push(Extent {
                container: None,
                store: 0,
                physical: segment.stream_at_bytes + piece.segment_at_bytes,
                stored_len_bytes: piece.len_bytes,
                len_bytes: piece.len_bytes,
                encoding: 0,
                crc_stored: crc,
                crc_plain: crc,
            });
        }
    }

    fn stage_one(&mut self, segment: &Segment) -> Result<Vec<u64>> {
        let pool = Arc::clone(&self.context.pool);
        if let Some(at) = segment.borrowed_at_bytes {
            let crc = crc_span(pool.span(at, segment.len_bytes)?);
            self.push(Descriptor::Segment {
                pool_at_bytes: at,
                len_bytes: segment.len_bytes,
                chunk: None,
            })?;
            return Ok(vec![crc]);
        }
        let chunk = self.context.take(self.near())?;
        // Breaks if: the chunk is given back on errors only; a codec that panics would take it along.
        let mut filling = Filling {
            pool: &pool,
            index: Some(chunk.index()),
        };
        let mut crcs = Vec::with_capacity(segment.pieces.len());
        let mut end = 0;
        for piece in &segment.pieces {
            pool.zero(&chunk, end, piece.segment_at_bytes as u32 - end);
            end = (piece.segment_at_bytes + piece.len_bytes) as u32;
            let crc = match &mut self.sources[piece.region] {
                Source::Memory(span) => {
                    let from = span.sub(piece.region_at_bytes as usize, piece.len_bytes as usize);
                    pool.stage(&chunk, piece.segment_at_bytes as u32, from)
                }
                Source::Read(read) => {
                    let mut bytes = vec![0; piece.len_bytes as usize];
                    read(piece.region_at_bytes, &mut bytes).map_err(|error| {
                        error.at(format!("region '{}'", self.regions[piece.region].name))
                    })?;
                    pool.put(&chunk, piece.segment_at_bytes as u32, &bytes);
                    crc64(&bytes)
                }
                Source::Elsewhere => {
                    return Err(Error::internal("a region stored elsewhere has no pieces"));
                }
            };
            crcs.push(crc);
        }
        pool.zero(&chunk, end, segment.len_bytes as u32 - end);
        filling.index = None;
        hand_over(&self.context, segment, chunk.into_index())?;
        Ok(crcs)
    }

    /// Copies with several threads; chunks are taken and handed over in stream order.
    fn stage_parallel(&mut self, until: usize, threads: usize) -> Result<()> {
        let from = self.done;
        let spans: Vec<Option<Span>> = self
            .sources
            .iter()
            .map(|source| match source {
                Source::Memory(span) => Some(*span),
                _ => None,
            })
            .collect();
        let finished = {
            let copy = Copying {
                context: &self.context,
                plan: &self.plan,
                near: self.near(),
            };
            let shared = Shared {
                next: Mutex::new(from),
                failed: AtomicBool::new(false),
                order: Mutex::new(Order {
                    next: from,
                    ready: BTreeMap::new(),
                    finished: Vec::new(),
                }),
            };
            let work = || copy.segments(&shared, until, &spans);
            let result = std::thread::scope(|scope| {
                let helpers: Vec<_> = (1..threads.min(until - from))
                    // Fewer threads than asked for are slower, not wrong: this one goes on alone if it must.
                    .map_while(|_| spawn_scoped(scope, "orcheck-copy", work).ok())
                    .collect();
                let mut result = work();
                for helper in helpers {
                    let helped = helper
                        .join()
                        .unwrap_or_else(|_| Err(Error::internal("a copy thread panicked")));
                    result = result.and(helped);
                }
                result
            });
            let order = shared
                .order
                .into_inner()
                .unwrap_or_else(std::sync::PoisonError::into_inner);
            for (_, (chunk, _)) in order.ready {
                if let Ok(chunk) = Chunk::from_index(&self.context.pool, chunk) {
                    self.context.pool.give(chunk);
                }
            }
            result?;
            order.finished
        };
        for crcs in finished {
            let segment = self.plan.segments[self.done].clone();
            self.note(&segment, &crcs);
            self.done += 1;
        }
        Ok(())
    }
}

/// A chunk being filled: given back when that ends early, by an error or by a panic of the program's code.
struct Filling<'a> {
    pool: &'a Pool,
    index: Option<u32>,
}

impl Drop for Filling<'_> {
    fn drop(&mut self) {
        if let Some(index) = self.index {
            give_back(self.pool, index);
        }
    }
}

fn give_back(pool: &Pool, index: u32) {
    if let Ok(chunk) = Chunk::from_index(pool, index) {
        pool.give(chunk);
    }
}

fn hand_over(context: &StageContext, segment: &Segment, chunk: u32) -> Result<()> {
    let descriptor = Descriptor::Segment {
        pool_at_bytes: u64::from(chunk) * u64::from(context.pool.shape().chunk_bytes),
        len_bytes: segment.len_bytes,
        chunk: Some(chunk),
    };
    context
        .push(descriptor)
        .inspect_err(|_| give_back(&context.pool, chunk))
}

/// What the copying threads of one snapshot share.
struct Copying<'a> {
    context: &'a StageContext,
    plan: &'a Plan,
    near: u32,
}

impl Copying<'_> {
    fn segments(&self, shared: &Shared, until: usize, spans: &[Option<Span>]) -> Result<()> {
        let pool = &self.context.pool;
        loop {
            let (number, chunk) = {
                // The number and the chunk are taken together: a later segment never holds the
                // chunk that an earlier one waits for.
                let mut next = shared
                    .next
                    .lock()
                    .unwrap_or_else(std::sync::PoisonError::into_inner);
                if *next >= until || shared.failed.load(Ordering::Acquire) {
                    return Ok(());
                }
                let chunk = self.context.take(self.near).inspect_err(|_| {
                    shared.failed.store(true, Ordering::Release);
                })?;
                *next += 1;
                (*next - 1, chunk)
            };
            let segment = &self.plan.segments[number];
            let mut end = 0;
            let mut crcs = Vec::with_capacity(segment.pieces.len());
            for piece in &segment.pieces {
                let Piece {
                    region,
                    region_at_bytes,
                    segment_at_bytes,
                    len_bytes,
                } = *piece;
                pool.zero(&chunk, end, segment_at_bytes as u32 - end);
                end = (segment_at_bytes + len_bytes) as u32;
                let Some(span) = spans[region] else {
                    shared.failed.store(true, Ordering::Release);
                    pool.give(chunk);
                    return Err(Error::internal("a region stored elsewhere has no pieces"));
                };
                let from = span.sub(region_at_bytes as usize, len_bytes as usize);
                crcs.push(pool.stage(&chunk, segment_at_bytes as u32, from));
            }
            pool.zero(&chunk, end, segment.len_bytes as u32 - end);
            let mut order = shared
                .order
                .lock()
                .unwrap_or_else(std::sync::PoisonError::into_inner);
            order.ready.insert(number, (chunk.into_index(), crcs));
            loop {
                let next = order.next;
                let Some((chunk, crcs)) = order.ready.remove(&next) else {
                    break;
                };
                hand_over(self.context, &self.plan.segments[next], chunk).inspect_err(|_| {
                    shared.failed.store(true, Ordering::Release);
                })?;
                order.finished.push(crcs);
                order.next += 1;
            }
        }
    }
}

struct Shared {
    next: Mutex<usize>,
    failed: AtomicBool,
    order: Mutex<Order>,
}

struct Order {
    next: usize,
    ready: BTreeMap<usize, (u32, Vec<u64>)>,
    finished: Vec<Vec<u64>>,
}

impl Drop for Staging {
    fn drop(&mut self) {
        if self.open {
            // The CP-thread must learn that no seal will come. If even that cannot be said, it
            // takes nothing any more and the step is lost with it.
            let _ = self.push(Descriptor::Fail);
        }
    }
}
