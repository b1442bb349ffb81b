//! Stages a rank's snapshot: copies it into the pool and computes its checksums in one pass.
//!
//! The program waits only for the foreground segments. The rank's own CP-thread stages the lent
//! regions afterwards ([`Staging`] moves there). Each segment is handed to the flushing CP-thread
//! as soon as it is complete, so that the device is busy from the first chunk.
//!
//! If the pool cannot hold the snapshots of all ranks, a rank first takes the node's **stage slot**
//! and returns it when the flush of its snapshot has its turn at the lane. These are the two
//! interleaved locks of Algorithm 1 (checkpointing orchestration): at most two snapshots are in
//! memory, and a pool of a few chunks suffices.
//!
//! In an incremental capture (`baseline.rs`), a segment whose bytes are already stored is not
//! handed over: its chunk is returned, and its pieces become references. Of a tracked region
//! (`pages.rs`), only the written pages are copied; they are packed into chunks of their own. The
//! length of the stream is therefore known only at the end, and `Begin` announces its maximum.
//!
//! What a snapshot is made of (`stage/parts.rs`) is handed back: the next one of the same regions
//! neither lays them out nor encodes its record again.
//!
//! Invariants:
//! 1. `Begin` is always followed by `Seal` or `Fail`, so the CP-thread never waits forever.
//! 2. A CRC in the record is that of the program's memory at the moment it was read.
//! 3. Chunks are taken in stream order, so a pool of any size makes progress.
//! 4. Segments are handed over in stream order, and an extent's offset is that of its segment in
//!    the stream.
//!
//! Survives: a full pool (waits, with a deadline); a codec that fails (sends `Fail`; the step is
//! lost and the error returned). Not here: what the CP-thread does next (`flush.rs`).

mod context;
mod parts;
mod told;

pub use context::StageContext;
pub use parts::{EXTENT_BYTES, Parts, ReadFn, Source};

use crate::capture::baseline::Capture;
use crate::capture::pages::{Copied, Wanted};
use crate::capture::stream::{Piece, Plan};
use crate::node::Descriptor;
use orcheck_format::disk::{BLOCK_BYTES, Extent, FramedRecord, RegionRecord};
use orcheck_format::sabotage::{Switch, off};
use orcheck_format::{Error, Result, Step, crc64};
use orcheck_io::machine::thread::spawn_scoped;
use orcheck_io::memory::{Span, crc_span};
use orcheck_pool::{Chunk, Gate, Pool, page_bytes};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
pub(crate) use told::Kind;
use told::{push_pages, push_pieces};

/// A snapshot on its way into the pool.
pub struct Staging {
    context: StageContext,
    step: Step,
    plan: Plan,
    regions: Vec<RegionRecord>,
    sources: Vec<Source>,
    slot: Option<Gate>,
    done: usize,
    /// Offset of the next segment in the stream.
    stream_at_bytes: u64,
    cut_bytes: u32,
    pipelined: bool,
    open: bool,
    capture: Option<Capture>,
    most_extents: usize,
    /// The kind of each region, for the CP-thread; empty unless it encodes or checks.
    kinds: Vec<Kind>,
    /// CRCs of the pieces so far, in stream order, unless the capture is incremental.
    crcs: Vec<u64>,
    /// The record of the last snapshot, if it was of the same parts.
    framed: Option<FramedRecord>,
    /// Length of all regions.
    len_bytes: u64,
    /// Maximum length of the record without extents.
    described_bytes: u64,
}

/// The content of at most one chunk.
enum Job {
    /// A segment of the plan, by number.
    Segment(usize),
    /// Pages (first, count) of a tracked region.
    Pages(usize, Vec<(usize, usize)>),
}

/// The result of a job.
enum Filled {
    /// The CRCs of a segment's pieces, and whether the segment is already stored.
    Segment(Vec<u64>, bool),
    /// The copied pages, in their order in the chunk, and how many bytes of the chunk they fill.
    Pages(Vec<Copied>, u64),
}

impl Filled {
    /// Bytes to hand over; 0 if all of them can be referred to.
    fn len_bytes(&self, segment: impl FnOnce() -> u64) -> u64 {
        match self {
            Filled::Segment(_, true) => 0,
            Filled::Segment(_, false) => segment(),
            Filled::Pages(_, len_bytes) => *len_bytes,
        }
    }
}

impl Staging {
    /// Prepares a snapshot of `parts`. `pipelined`: the pool cannot hold all snapshots; the rank
    /// then holds `slot`, the node's stage slot, unless it gave up waiting and only reports that.
    /// `incremental`: the baseline, and the maximum number of extents per tracked region.
    #[must_use]
    pub fn new(
        context: StageContext,
        step: Step,
        parts: Parts,
        (slot, pipelined): (Option<Gate>, bool),
        cut_bytes: u32,
        incremental: Option<(Capture, usize)>,
    ) -> Self {
        let mut context = context;
        context.quiet &= !pipelined && slot.is_none();
        let (capture, most_extents) = incremental.unzip();
        let kinds = match parts.kinds {
            Some(kinds) => kinds,
            None if context.encoded || context.checked => {
                parts.regions.iter().map(Kind::of).collect()
            }
            None => Vec::new(),
        };
        let framed = parts.framed.filter(|_| capture.is_none());
        Self {
            kinds,
            framed,
            len_bytes: parts.len_bytes,
            described_bytes: parts.described_bytes,
            context,
            step,
            plan: parts.plan,
            regions: parts.regions,
            sources: parts.sources,
            slot,
            done: 0,
            stream_at_bytes: 0,
            cut_bytes,
            pipelined,
            open: false,
            capture,
            most_extents: most_extents.unwrap_or(0),
            crcs: parts.crcs,
        }
    }

    /// The maximum length of the stream, in bytes.
    fn most_bytes(&self) -> u64 {
        let tracked = self.sources.iter().filter_map(|source| match source {
            // Whole pages, and one more block for the partial page at each end.
            Source::Tracked(span) => Some(span.len_bytes().next_multiple_of(BLOCK_BYTES) as u64),
            _ => None,
        });
        let ends = tracked.clone().count() as u64 * 2 * page_bytes() as u64;
        self.plan.stream_len_bytes + tracked.sum::<u64>() + ends
    }

    /// Announces the snapshot to the CP-thread.
    ///
    /// # Errors
    /// Unavailable if the CP-thread accepts nothing.
    pub fn begin(&mut self) -> Result<()> {
        let begun = self.announce();
        begun.inspect_err(|error| self.record_reason(error))
    }

    fn announce(&mut self) -> Result<()> {
        // Announced even if the step fails, so that the CP-thread learns at once that nothing will
        // follow.
        let allowed = self.context.failpoints.at("stage.begin", "");
        self.push(Descriptor::Begin {
            step: self.step,
            stream_len_bytes: self.most_bytes(),
            cut_bytes: self.cut_bytes,
            pipelined: self.pipelined,
            may_shrink: self.capture.is_some(),
            kept: self.context.kept.is_some(),
            goes: self.context.goes,
        })?;
        self.open = true;
        allowed.map(|_| ())
    }

    /// Announces the snapshot, unless that has been done, and reports that it will not follow and
    /// why.
    ///
    /// # Errors
    /// As [`Self::begin`].
    pub fn give_up(mut self, why: &Error) -> Result<()> {
        self.record_reason(why);
        if self.open { Ok(()) } else { self.begin() }
    }

    /// Publishes the cause before the `Fail` that follows, so that the other ranks report it.
    fn record_reason(&self, error: &Error) {
        let StageContext { local, .. } = self.context;
        self.context.index().set_reason(local, self.step, error);
    }

    /// From now on the CP-thread is woken: the rest is staged after this rank has returned.
    pub fn continue_in_background(&mut self) {
        self.context.quiet = false;
    }

    /// Stages the segments that the program waits for, using `threads` threads.
    ///
    /// # Errors
    /// The error of a source or of the pool; the snapshot is then given up (`Fail`).
    pub fn foreground(&mut self, threads: usize) -> Result<()> {
        let staged = self.stage_foreground(threads);
        staged.inspect_err(|error| self.record_reason(error))
    }

    fn stage_foreground(&mut self, threads: usize) -> Result<()> {
        let segments = self.done..self.plan.foreground;
        self.done = self.plan.foreground;
        let mut jobs: Vec<Job> = segments.map(Job::Segment).collect();
        let wanted = self.want_pages(&mut jobs);
        let mut copied: Vec<Vec<Copied>> = wanted.iter().map(|_| Vec::new()).collect();
        for (region, pages) in self.run(&jobs, threads)? {
            if let Some(at) = wanted.iter().position(|(other, _)| *other == region) {
                copied[at].extend(pages);
            }
        }
        for ((region, wanted), copied) in wanted.iter().zip(copied) {
            if let Some(capture) = &mut self.capture {
                let cut_bytes = u64::from(self.cut_bytes);
                self.regions[*region].extents =
                    capture.enter_pages(*region, wanted, &copied, cut_bytes);
            }
        }
        Ok(())
    }

    /// Finds the written pages of the tracked regions, and cuts what must be copied into jobs.
    fn want_pages(&mut self, jobs: &mut Vec<Job>) -> Vec<(usize, Wanted)> {
        let mut all = Vec::new();
        let Some(capture) = &mut self.capture else {
            return all;
        };
        let per_chunk = self.context.pool.shape().chunk_bytes as usize / page_bytes();
        for (region, source) in self.sources.iter().enumerate() {
            if !matches!(source, Source::Tracked(_)) {
                continue;
            }
            let Some(wanted) = capture.want(region, self.most_extents) else {
                continue;
            };
            let (mut runs, mut room) = (Vec::new(), per_chunk);
            for &(mut first, mut count) in &wanted.runs {
                while count > 0 {
                    let take = count.min(room);
                    runs.push((first, take));
                    (first, count, room) = (first + take, count - take, room - take);
                    if room == 0 {
                        jobs.push(Job::Pages(region, std::mem::take(&mut runs)));
                        room = per_chunk;
                    }
                }
            }
            if !runs.is_empty() {
                jobs.push(Job::Pages(region, runs));
            }
            all.push((region, wanted));
        }
        all
    }

    /// Whether the program waits for any segment or page. If not, the snapshot need not begin until
    /// this rank's CP-thread receives it.
    #[must_use]
    pub fn has_foreground(&self) -> bool {
        let tracked = |source: &Source| matches!(source, Source::Tracked(_));
        self.plan.foreground > 0 || self.sources.iter().any(tracked)
    }

    /// Whether any segments are left to this rank's CP-thread, without the program waiting for
    /// them.
    #[must_use]
    pub fn has_background(&self) -> bool {
        self.plan.foreground < self.plan.segments.len()
    }

    /// Stages the rest, writes the rank record and seals the snapshot; begins it first if nobody
    /// has. A rank with a stage slot then waits for its turn at the lane. The returned error says
    /// why that turn did not come; nothing is lost by it. The parts are for the next snapshot, if
    /// it is of the same.
    ///
    /// # Errors
    /// As [`Self::foreground`].
    pub fn finish(mut self) -> Result<(Option<Error>, Parts)> {
        let staged = self.stage_rest();
        let framed = staged.inspect_err(|error| self.record_reason(error))?;
        let late = self.wait_for_turn().err();
        let mut crcs = std::mem::take(&mut self.crcs);
        crcs.clear();
        let parts = Parts {
            plan: std::mem::take(&mut self.plan),
            regions: std::mem::take(&mut self.regions),
            sources: std::mem::take(&mut self.sources),
            kinds: Some(std::mem::take(&mut self.kinds)),
            framed: Some(framed),
            crcs,
            len_bytes: self.len_bytes,
            described_bytes: self.described_bytes,
        };
        Ok((late, parts))
    }

    fn stage_rest(&mut self) -> Result<FramedRecord> {
        if !self.open {
            self.begin()?;
        }
        if self.has_background() {
            let left: Vec<Job> = (self.done..self.plan.segments.len())
                .map(Job::Segment)
                .collect();
            self.done = self.plan.segments.len();
            self.run(&left, 1)?;
        }
        let refers_to = self.capture.as_ref().map(Capture::refers_to);
        for step in refers_to.unwrap_or_default() {
            self.push(Descriptor::Refers { step })?;
        }
        let framed = self.record();
        let pool = Arc::clone(&self.context.pool);
        let chunk_bytes = pool.shape().chunk_bytes as usize;
        for part in framed.bytes().chunks(chunk_bytes) {
            let chunk = self.context.take(self.near())?;
            pool.put(&chunk, 0, part);
            let index = chunk.into_index();
            self.push(Descriptor::Record {
                pool_at_bytes: u64::from(index) * chunk_bytes as u64,
                len_bytes: part.len() as u64,
                chunk: index,
            })?;
        }
        self.context.failpoints.at("stage.seal", "")?;
        // Before the seal: a thread that waited for this step takes the next one at once. If
        // sealing fails after all, that is a lost home.
        if let Some(capture) = self.capture.take() {
            capture.finish();
        }
        self.push(Descriptor::Seal)?;
        self.open = false;
        self.context.sealed.iter().for_each(|tell| tell(self.step));
        Ok(framed)
    }

    /// Keeps the stage slot until the flush of this snapshot has its turn.
    fn wait_for_turn(&self) -> Result<()> {
        if self.slot.is_none() {
            return Ok(());
        }
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
        })
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

    /// Does the jobs in order; returns the copied pages with their regions.
    fn run(&mut self, jobs: &[Job], threads: usize) -> Result<Vec<(usize, Vec<Copied>)>> {
        let memory_only = self
            .sources
            .iter()
            .all(|source| !matches!(source, Source::Read(_)));
        let mut pages = Vec::new();
        if threads > 1 && memory_only && jobs.len() > 1 {
            for (job, (filled, at)) in jobs.iter().zip(self.fill_parallel(jobs, threads)?) {
                pages.extend(self.enter(job, filled, at));
            }
            return Ok(pages);
        }
        for job in jobs {
            let (filled, at) = self.fill_one(job)?;
            pages.extend(self.enter(job, filled, at));
        }
        Ok(pages)
    }

    /// Enters the extents of a segment at offset `stream_at_bytes` of the stream; returns the
    /// copied pages.
    fn enter(
        &mut self,
        job: &Job,
        filled: Filled,
        stream_at_bytes: u64,
    ) -> Option<(usize, Vec<Copied>)> {
        match (job, filled) {
            (Job::Segment(number), Filled::Segment(crcs, stored)) => {
                let Some(capture) = &mut self.capture else {
                    self.crcs.extend(crcs);
                    return None;
                };
                let segment = &self.plan.segments[*number];
                for (piece, crc) in segment.pieces.iter().zip(crcs) {
                    let at = stream_at_bytes + piece.segment_at_bytes;
                    let extent = capture.enter(piece, crc, (!stored).then_some(at));
                    self.regions[piece.region].extents.push(extent);
                }
                None
            }
            (Job::Pages(region, _), Filled::Pages(mut copied, _)) => {
                for copy in &mut copied {
                    copy.stream_at_bytes = copy.stream_at_bytes.map(|at| at + stream_at_bytes);
                }
                Some((*region, copied))
            }
            _ => None,
        }
    }

    fn fill_one(&mut self, job: &Job) -> Result<(Filled, u64)> {
        let at = self.stream_at_bytes;
        if let Job::Segment(number) = job
            && let Some(pool_at_bytes) = self.plan.segments[*number].borrowed_at_bytes
        {
            let segment = &self.plan.segments[*number];
            let len_bytes = segment.len_bytes;
            let crcs = vec![crc_span(self.context.pool.span(pool_at_bytes, len_bytes)?)];
            let stored = (self.capture.as_ref()).is_some_and(|c| c.is_stored(segment, &crcs));
            if !stored {
                push_pieces(&self.context, segment, &crcs, &self.kinds)?;
                self.push(Descriptor::Segment {
                    pool_at_bytes,
                    len_bytes,
                    chunk: None,
                })?;
                self.stream_at_bytes += len_bytes;
            }
            return Ok((Filled::Segment(crcs, stored), at));
        }
        let pool = Arc::clone(&self.context.pool);
        let chunk = self.context.take(self.near())?;
        // Breaks if: the chunk is returned only on errors; a codec that panics would leak it.
        let mut filling = Filling {
            pool: &pool,
            index: Some(chunk.index()),
        };
        let (sources, regions) = (&mut self.sources, &self.regions);
        let mut read = |piece: &Piece, chunk: &Chunk| match &mut sources[piece.region] {
            Source::Memory(span) => {
                let from = span.sub(piece.region_at_bytes as usize, piece.len_bytes as usize);
                Ok(pool.stage(chunk, piece.segment_at_bytes as u32, from))
            }
            Source::Read(read) => {
                let mut bytes = vec![0; piece.len_bytes as usize];
                read(piece.region_at_bytes, &mut bytes).map_err(|error| {
                    error.at(format!("region '{}'", regions[piece.region].name))
                })?;
                pool.put(chunk, piece.segment_at_bytes as u32, &bytes);
                Ok(crc64(&bytes))
            }
            Source::Tracked(_) | Source::Elsewhere => Err(no_pieces()),
        };
        let copy = Copying {
            context: &self.context,
            plan: &self.plan,
            capture: self.capture.as_ref(),
            near: 0,
            kinds: &self.kinds,
        };
        let filled = copy.fill(job, &chunk, &mut read)?;
        filling.index = None;
        self.stream_at_bytes += copy.hand_over(job, &filled, chunk.into_index())?;
        Ok((filled, at))
    }

    /// Fills chunks on several threads, which take them and hand them over in stream order.
    fn fill_parallel(&mut self, jobs: &[Job], threads: usize) -> Result<Vec<(Filled, u64)>> {
        let spans: Vec<Option<Span>> = self
            .sources
            .iter()
            .map(|source| match source {
                Source::Memory(span) => Some(*span),
                _ => None,
            })
            .collect();
        let copy = Copying {
            context: &self.context,
            plan: &self.plan,
            capture: self.capture.as_ref(),
            near: self.near(),
            kinds: &self.kinds,
        };
        let shared = Shared {
            next: Mutex::new(0),
            failed: AtomicBool::new(false),
            order: Mutex::new(Order {
                ready: BTreeMap::new(),
                finished: Vec::new(),
                stream_at_bytes: self.stream_at_bytes,
            }),
        };
        let work = || copy.jobs(&shared, jobs, &spans);
        let pool = &self.context.pool;
        let result = std::thread::scope(|scope| {
            let help = |which| {
                spawn_scoped(scope, "orcheck-copy", move || {
                    pool.spread_helper(which);
                    work()
                })
            };
            let helpers: Vec<_> = (1..threads.min(jobs.len()))
                // Fewer threads than requested are slower, not wrong: this thread continues alone
                // if it must.
                .map_while(|which| help(which).ok())
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
            give_back(&self.context.pool, chunk);
        }
        result?;
        self.stream_at_bytes = order.stream_at_bytes;
        Ok(order.finished)
    }
}

/// The extent of bytes that this stream itself holds, unencoded.
pub(crate) fn own_extent(stream_at_bytes: u64, len_bytes: u64, crc: u64) -> Extent {
    Extent {
        container: None,
        store: 0,
        physical: stream_at_bytes,
        stored_len_bytes: len_bytes,
        len_bytes,
        encoding: 0,
        crc_stored: crc,
        crc_plain: crc,
    }
}

fn no_pieces() -> Error {
    Error::internal("a region stored elsewhere has no pieces")
}

/// A chunk that is being filled; returned to the pool if filling ends early, whether by an error or
/// by a panic of the program's code.
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

/// The state shared by the threads that copy a snapshot.
struct Copying<'a> {
    context: &'a StageContext,
    plan: &'a Plan,
    capture: Option<&'a Capture>,
    near: u32,
    kinds: &'a [Kind],
}

impl Copying<'_> {
    /// Fills a chunk; `read` copies one piece into it and returns the CRC.
    fn fill(
        &self,
        job: &Job,
        chunk: &Chunk,
        read: &mut dyn FnMut(&Piece, &Chunk) -> Result<u64>,
    ) -> Result<Filled> {
        let pool = &self.context.pool;
        match job {
            Job::Segment(number) => {
                let segment = &self.plan.segments[*number];
                let mut crcs = Vec::with_capacity(segment.pieces.len());
                let mut end = 0;
                for piece in &segment.pieces {
                    pool.zero(chunk, end, piece.segment_at_bytes as u32 - end);
                    end = (piece.segment_at_bytes + piece.len_bytes) as u32;
                    crcs.push(read(piece, chunk)?);
                }
                pool.zero(chunk, end, segment.len_bytes as u32 - end);
                let stored = self.capture.is_some_and(|c| c.is_stored(segment, &crcs));
                Ok(Filled::Segment(crcs, stored))
            }
            Job::Pages(region, runs) => {
                let capture = self.capture;
                let Some((capture, pages)) = capture.and_then(|c| Some((c, c.pages(*region)?)))
                else {
                    return Err(Error::internal("pages of a region that is not tracked"));
                };
                let mut copied = Vec::new();
                let mut at = 0;
                let mut fill = pool.fill(chunk);
                for page in runs.iter().flat_map(|&(first, count)| first..first + count) {
                    let memory = pages.memory(page);
                    let crc = fill.stage(at, memory);
                    let stored = capture.is_page_stored(pages, page, crc);
                    copied.push(Copied {
                        page,
                        crc,
                        stream_at_bytes: (!stored).then_some(u64::from(at)),
                    });
                    // The next page replaces one that need not be stored.
                    if stored {
                        fill = pool.fill(chunk);
                    } else {
                        let end = at + memory.len_bytes() as u32;
                        at = end.next_multiple_of(BLOCK_BYTES as u32);
                        pool.zero(chunk, end, at - end);
                    }
                }
                Ok(Filled::Pages(copied, u64::from(at)))
            }
        }
    }

    /// Hands a chunk over, or returns it to the pool if nothing in it need be stored; returns by
    /// how many bytes the stream grew.
    fn hand_over(&self, job: &Job, filled: &Filled, chunk: u32) -> Result<u64> {
        let pool = &self.context.pool;
        let len_bytes = filled.len_bytes(|| match job {
            Job::Segment(number) => self.plan.segments[*number].len_bytes,
            Job::Pages(..) => 0,
        });
        if len_bytes == 0 {
            give_back(pool, chunk);
            return Ok(0);
        }
        let descriptor = Descriptor::Segment {
            pool_at_bytes: u64::from(chunk) * u64::from(pool.shape().chunk_bytes),
            len_bytes,
            chunk: Some(chunk),
        };
        let told = match (job, filled) {
            (Job::Segment(number), Filled::Segment(crcs, _)) => {
                push_pieces(self.context, &self.plan.segments[*number], crcs, self.kinds)
            }
            // Regions whose pieces are encoded are not tracked.
            _ if self.context.encoded => Err(Error::internal("pages cannot be encoded")),
            (Job::Pages(region, _), Filled::Pages(copied, _)) => {
                match self.capture.and_then(|capture| capture.pages(*region)) {
                    Some(pages) => push_pages(self.context, pages, copied, self.kinds.get(*region)),
                    None => Ok(()),
                }
            }
            _ => Ok(()),
        };
        told.and_then(|()| self.context.push(descriptor))
            .inspect_err(|_| give_back(pool, chunk))?;
        Ok(len_bytes)
    }

    fn jobs(&self, shared: &Shared, jobs: &[Job], spans: &[Option<Span>]) -> Result<()> {
        let pool = &self.context.pool;
        let failed = |_: &Error| shared.failed.store(true, Ordering::Release);
        loop {
            let (number, chunk) = {
                // The number and the chunk are taken together: a later segment never holds the
                // chunk that an earlier one waits for.
                let mut next = shared
                    .next
                    .lock()
                    .unwrap_or_else(std::sync::PoisonError::into_inner);
                if *next >= jobs.len() || shared.failed.load(Ordering::Acquire) {
                    return Ok(());
                }
                let chunk = self.context.take(self.near).inspect_err(failed)?;
                *next += 1;
                (*next - 1, chunk)
            };
            let mut read = |piece: &Piece, chunk: &Chunk| {
                let span = spans[piece.region].ok_or_else(no_pieces)?;
                let from = span.sub(piece.region_at_bytes as usize, piece.len_bytes as usize);
                Ok(pool.stage(chunk, piece.segment_at_bytes as u32, from))
            };
            let filled = match self.fill(&jobs[number], &chunk, &mut read) {
                Ok(filled) => filled,
                Err(error) => {
                    failed(&error);
                    pool.give(chunk);
                    return Err(error);
                }
            };
            let mut order = shared
                .order
                .lock()
                .unwrap_or_else(std::sync::PoisonError::into_inner);
            order.ready.insert(number, (chunk.into_index(), filled));
            loop {
                let next = order.finished.len();
                let Some((chunk, filled)) = order.ready.remove(&next) else {
                    break;
                };
                let at = order.stream_at_bytes;
                order.stream_at_bytes += self
                    .hand_over(&jobs[next], &filled, chunk)
                    .inspect_err(failed)?;
                order.finished.push((filled, at));
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
    ready: BTreeMap<usize, (u32, Filled)>,
    /// In the order of the jobs, with their offsets in the stream.
    finished: Vec<(Filled, u64)>,
    stream_at_bytes: u64,
}

impl Drop for Staging {
    fn drop(&mut self) {
        if self.open && !off(Switch::BeginThenFail) {
            // The CP-thread must learn that no seal will follow. If even this message fails, the
            // CP-thread accepts nothing any more, and the step is lost anyway.
            let _ = self.context.failpoints.at("stage.fail", "");
            let _ = self.push(Descriptor::Fail);
        }
    }
}
