//! Runs the CP-thread of one writer, which takes snapshots from the pool and writes its containers.
//!
//! Snapshots are flushed one after the other, in the order in which they begin. In mode
//! `orchestrated` a snapshot is written only while the **gate** of its lane is held, so that a
//! directory receives one sequential stream from a node. A snapshot names the levels that it goes
//! to (`node/goes.rs`); the others get no container and no report. There are two ways through the
//! levels:
//!
//! * the pool holds everything: level `node` is written and reported first, then level `global`
//!   from the same chunks, which are freed after their last write. Meanwhile later snapshots that
//!   go to level `node` alone are written between two parts;
//! * pipelined: every chunk is written to all levels and then freed at once.
//!
//! If containers are encoded (`encoding.rs`), the descriptions of a segment's pieces precede it.
//! Pieces are compressed once for all levels that are written together, and encrypted for each.
//!
//! Invariants:
//! 1. A chunk is returned exactly once, also if a container failed: ranks never wait for a
//!    directory that is gone.
//! 2. A gate is held only while a snapshot that has begun is being written, never between two. A
//!    rank that waits for its stage slot can therefore not be waiting for the holder of this gate.
//! 3. The first error of a container is reported once and ends only that container; the other level
//!    continues.
//! 4. `Durable` is reported only after the files and their directories are fsynced.
//! 5. Bytes that the processor reads on the way, or that an option has checked, are those that the
//!    rank staged (`writer/pieces.rs`).
//!
//! Survives: a directory that fails at any write, a full directory, a rank that gives up, a gate
//! holder that dies. Not here: who decides that the checkpoint is committed (`protocol.rs`,
//! `commit.rs`).

mod pieces;
mod rings;
mod sinks;

use self::sinks::Sink;
use crate::directory::Places;
use crate::directory::prune::lost::NotDecided;
use crate::encoding::{EncodePiece, Encoder, Recipe};
use crate::flush::container::Announced;
use crate::flush::ledger::Ledger;
use crate::flush::remembered::Remembered;
use crate::node::{Descriptor, Goes, Index, IndexShape, Mode};
use crate::replicas::Replicas;
use orcheck_format::disk::{BLOCK_BYTES, MAX_REFERRED};
use orcheck_format::sabotage::{Switch, off};
use orcheck_format::wire::Message;
use orcheck_format::{
    Epoch, Error, JobName, Level, NodeId, Rank, Result, Step, TargetId, WriterId,
};
use orcheck_io::clock::Clock;
use orcheck_io::failpoints::Failpoints;
use orcheck_io::machine::thread_cpu_time;
use orcheck_pool::{Chunk, Gate, Gates, Pool};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Lock byte of the node's stage slot.
pub const STAGE_SLOT: u64 = 0;
const NODE_DISK_GATE: u64 = 1;
const SERVER_GATES: u64 = 16;
/// Longest sleep between two looks at the stop flag.
const SLICE: Duration = Duration::from_millis(200);

/// What a writer needs to know.
pub struct FlushContext {
    /// The node's pool.
    pub pool: Arc<Pool>,
    /// Shape of the index in it.
    pub shape: IndexShape,
    /// Job to which the containers belong.
    pub job: JobName,
    /// Epoch of this run.
    pub epoch: Epoch,
    /// Number of ranks in the job.
    pub world_size: u32,
    /// Node number and name.
    pub node: (NodeId, String),
    /// Number of the writer on its node.
    pub writer: WriterId,
    /// The writer's ranks: (position on the node, rank).
    pub ranks: Vec<(u32, Rank)>,
    /// How streams travel.
    pub mode: Mode,
    /// The job's directories.
    pub places: Places,
    /// Whether to use direct I/O if the file system supports it.
    pub direct: bool,
    /// Whether snapshots may refer to older containers.
    pub incremental: bool,
    /// How containers are encoded.
    pub recipe: Recipe,
    /// Longest wait for a gate.
    pub gate_timeout: Duration,
    /// Clock for creation times.
    pub clock: Arc<dyn Clock>,
    /// Failpoints, for tests.
    pub failpoints: Failpoints,
    /// Replicas on other nodes, at level `peers`.
    pub replicas: Option<Arc<Replicas>>,
    /// Where to enter what lies in the pool, if it is kept when the ranks are gone.
    pub remembered: Option<Arc<Remembered>>,
    /// Set when the session ends.
    pub stop: Arc<AtomicBool>,
}

/// Sends a message to the node's control thread.
pub type Report = Box<dyn FnMut(Message) -> Result<()> + Send>;

/// A CP-thread's state.
pub struct Flusher {
    context: FlushContext,
    gates: Gates,
    report: Report,
    ledger: Ledger,
    /// Number of prepared chunks of each rank.
    populated: Vec<u32>,
    /// Per rank: a snapshot whose `Begin` was read but whose turn has not come.
    begun: Vec<Option<Begin>>,
    /// Absent if nothing is encoded.
    encoder: Option<Encoder>,
    /// Descriptors taken early from the ring of the rank being flushed.
    ahead: VecDeque<Descriptor>,
    /// Damage in the pool that affects the snapshot being flushed.
    damaged: Option<Damaged>,
    /// For each rank that has ended, what was left in its ring.
    left: Vec<VecDeque<Descriptor>>,
    /// Bytes of streams and bytes in files, over all containers so far.
    written: (u64, u64),
    /// Whole containers whose step is not decided, by level and server.
    not_decided: NotDecided<Option<(Level, TargetId)>>,
}

/// A snapshot read from the ring whose chunks are kept for the next level.
struct Snapshot {
    local: u32,
    rank: Rank,
    announced: Announced,
    segments: Vec<SegmentSpan>,
    /// Where the parts of its stream lie in the pool and how long they are, if that is remembered.
    spans: Vec<(u64, u64)>,
    refers_to: Vec<Step>,
    record: Option<Vec<u8>>,
    /// The rank itself returns the chunks to the pool.
    kept: bool,
}

impl Snapshot {
    /// # Errors
    /// Corrupt for more older checkpoints than a snapshot can refer to.
    fn refer_to(&mut self, older: Step) -> Result<()> {
        if self.refers_to.len() >= MAX_REFERRED && !off(Switch::ReferredBound) {
            return Err(Error::corrupt(format!(
                "rank {} refers to more than {MAX_REFERRED} older checkpoints",
                self.rank
            )));
        }
        self.refers_to.push(older);
        Ok(())
    }
}

/// A segment of a snapshot, or several that are adjacent in the pool.
struct SegmentSpan {
    pool_at_bytes: u64,
    len_bytes: u64,
    /// The first chunk and their number; `None` for the program's own memory in the pool.
    chunks: Option<(u32, u32)>,
    /// Its pieces; empty if nothing is encoded or checked.
    pieces: Vec<EncodePiece>,
}

/// A piece that is not what was staged, and the levels whose containers were given up because of
/// it.
struct Damaged {
    piece: EncodePiece,
    levels: Vec<Level>,
}

impl Flusher {
    /// Prepares the CP-thread of one writer.
    ///
    /// # Errors
    /// When the lock file of the gates cannot be opened.
    pub fn new(context: FlushContext, report: Report) -> Result<Self> {
        let gates = Gates::open(&context.pool)?;
        let populated = vec![0; context.ranks.len()];
        let begun = context.ranks.iter().map(|_| None).collect();
        let left = context.ranks.iter().map(|_| VecDeque::new()).collect();
        let recipe = &context.recipe;
        let encoder = (!recipe.is_plain())
            .then(|| Encoder::new(recipe))
            .transpose()?;
        Ok(Self {
            context,
            gates,
            report,
            ledger: Ledger::default(),
            populated,
            begun,
            encoder,
            ahead: VecDeque::new(),
            damaged: None,
            left,
            written: (0, 0),
            not_decided: NotDecided::default(),
        })
    }

    /// Runs until the session ends or no rank is left. An error is a defect, or the loss of the
    /// control thread.
    ///
    /// # Errors
    /// Corrupt for a descriptor out of order; Unavailable if reports cannot be sent.
    pub fn run(&mut self) -> Result<()> {
        loop {
            let all: Vec<usize> = (0..self.context.ranks.len()).collect();
            match self.next_begin(&all, None)? {
                Some((first, Some(begin))) => self.flush_step(first, begin)?,
                Some((_, None)) => {}
                None => return Ok(()),
            }
        }
    }

    fn index(&self) -> Index<'_> {
        Index::new(&self.context.pool, self.context.shape)
    }

    fn stopping(&self) -> bool {
        self.context.stop.load(Ordering::Acquire)
    }

    /// The next rank among `waiting` that begins its snapshot of `step`, or that shows by a later
    /// `Begin` that it gave this one up (`None`). Without `step`: the oldest snapshot that has
    /// begun. `None` if the session ends first.
    fn next_begin(
        &mut self,
        waiting: &[usize],
        step: Option<Step>,
    ) -> Result<Option<(usize, Option<Begin>)>> {
        loop {
            let news = self.index().writer_news(self.context.writer);
            // Before looking at the ring: nothing can arrive after it.
            // Breaks if: this is checked after the ring; the last descriptors of a rank that ended
            // would be overlooked.
            let is_gone = |which: &usize| self.is_gone(*which);
            let gone: Vec<usize> = waiting.iter().copied().filter(is_gone).collect();
            for &which in waiting {
                self.find_begin(which)?;
            }
            let begun = |which: &usize| self.begun[*which].as_ref().map(|begin| begin.step);
            let ready = waiting
                .iter()
                .copied()
                .filter(|which| begun(which).is_some());
            if let Some(which) = ready.min_by_key(begun) {
                let later = step.is_some_and(|step| begun(&which) > Some(step));
                if !later {
                    return Ok(self.begun[which].take().map(|begin| (which, Some(begin))));
                }
                // All snapshots that have begun are of later steps; the other ranks may still begin
                // this one.
                return Ok(Some((which, None)));
            }
            if step.is_some()
                && let Some(&which) = gone.first()
            {
                return Ok(Some((which, None)));
            }
            if self.stopping() || gone.len() == waiting.len() {
                return Ok(None);
            }
            if !self.populate_a_chunk() {
                self.index()
                    .wait_for_entries(self.context.writer, news, SLICE);
            }
        }
    }

    /// Prepares the memory of one more wanted chunk while there is nothing to flush; false if all
    /// are ready. Memory that is unavailable now is requested again when it is needed, and then
    /// reports its error.
    fn populate_a_chunk(&mut self) -> bool {
        let pool = Arc::clone(&self.context.pool);
        let chunk_count = pool.shape().chunk_count;
        for which in 0..self.context.ranks.len() {
            let (local, _) = self.context.ranks[which];
            let index = self.index();
            let wanted = index.wanted_chunks(local).min(u64::from(chunk_count)) as u32;
            let ready = self.populated[which];
            if ready < wanted {
                let chunk = (index.first_chunk(local, chunk_count) + ready) % chunk_count;
                self.populated[which] = match pool.populate(chunk, 1) {
                    Ok(()) => ready + 1,
                    Err(_) => chunk_count,
                };
                return true;
            }
        }
        false
    }

    fn flush_step(&mut self, first: usize, begin: Begin) -> Result<()> {
        let step = begin.step;
        let goes = begin.goes;
        let levels = goes.of(self.context.places.levels());
        let together = begin.pipelined || levels.len() < 2;
        let first_pass: &[Level] = if together { &levels } else { &levels[..1] };
        let mut sinks: Vec<Sink> = Vec::new();
        for &level in first_pass {
            sinks.push(self.open_sink(step, level)?);
        }
        let mut waiting: Vec<usize> = (0..self.context.ranks.len()).collect();
        let mut next = Some((first, Some(begin)));
        let mut held = Vec::new();
        while let Some((which, begin)) = next {
            waiting.retain(|&other| other != which);
            let snapshot = match begin {
                // The ranks agreed on the levels; one that names others is not of this checkpoint.
                Some(begin) if begin.goes != goes => {
                    return Err(Error::corrupt(format!(
                        "local rank {which} sent step {step} to other levels than the ranks before it"
                    )));
                }
                Some(begin) => self.stream_snapshot(step, which, &begin, &mut sinks, together)?,
                None => self.missing_snapshot(step, which, &mut sinks)?,
            };
            let complete = snapshot.record.is_some();
            if together {
                self.finish_rank(snapshot.local, step);
            }
            held.push(snapshot);
            if !complete && self.stopping() {
                break;
            }
            next = if waiting.is_empty() {
                None
            } else {
                self.next_begin(&waiting, Some(step))?
            };
        }
        let whole = waiting.is_empty();
        self.close_sinks(step, sinks, whole, &held)?;
        if together {
            return Ok(());
        }
        for &level in &levels[1..] {
            let last = Some(&level) == levels.last();
            for snapshot in &held {
                self.index().set_slow(snapshot.local, step);
            }
            let mut sinks = vec![self.open_sink(step, level)?];
            for snapshot in &held {
                self.write_held(step, snapshot, &mut sinks, last)?;
            }
            self.close_sinks(step, sinks, whole, &held)?;
        }
        Ok(())
    }

    /// Stands in for the snapshot of a rank that never began it: the step is lost.
    fn missing_snapshot(
        &mut self,
        step: Step,
        which: usize,
        sinks: &mut [Sink],
    ) -> Result<Snapshot> {
        let (local, rank) = self.context.ranks[which];
        for sink in sinks.iter_mut() {
            self.lose(step, sink, self.given_up(local, rank, step))?;
        }
        Ok(Snapshot {
            local,
            rank,
            announced: Announced {
                stream_len_bytes: 0,
                cut_bytes: BLOCK_BYTES as u32,
                may_shrink: false,
            },
            segments: Vec::new(),
            spans: Vec::new(),
            refers_to: Vec::new(),
            record: None,
            kept: false,
        })
    }

    fn finish_rank(&self, local: u32, step: Step) {
        self.index()
            .set_done(local, step, thread_cpu_time().as_nanos() as u64);
    }

    fn stream_snapshot(
        &mut self,
        step: Step,
        which: usize,
        begin: &Begin,
        sinks: &mut [Sink],
        release: bool,
    ) -> Result<Snapshot> {
        let (local, rank) = self.context.ranks[which];
        let gates = self.lock_gates(step, sinks)?;
        self.context.failpoints.at("flush.taken", "")?;
        self.index().set_taken(local, step);
        let mut held = Snapshot {
            local,
            rank,
            announced: begin.announced,
            segments: Vec::new(),
            spans: Vec::new(),
            refers_to: Vec::new(),
            record: None,
            kept: begin.kept,
        };
        for sink in sinks.iter_mut() {
            self.on_sink(step, sink, |container, _, _| {
                container.begin_rank(rank, held.announced)
            })?;
        }
        let Some(record) = self.take_stream(step, which, sinks, release, &mut held)? else {
            self.report_damaged(step, rank, None)?;
            for sink in sinks.iter_mut() {
                self.lose(step, sink, self.given_up(local, rank, step))?;
            }
            drop(gates);
            return Ok(held);
        };
        self.report_damaged(step, rank, Some(&record))?;
        for sink in sinks.iter_mut() {
            let framed = record.clone();
            self.on_sink(step, sink, |container, _, ledger| {
                container.end_rank(framed, &held.refers_to, ledger)
            })?;
        }
        drop(gates);
        held.record = Some(record);
        if begin.pipelined {
            // Its chunks have been used again since.
            held.spans.clear();
        }
        Ok(held)
    }

    /// Writes what a rank hands over until it seals its snapshot. Returns its record, or `None` if
    /// the snapshot was given up.
    fn take_stream(
        &mut self,
        step: Step,
        which: usize,
        sinks: &mut [Sink],
        release: bool,
        held: &mut Snapshot,
    ) -> Result<Option<Vec<u8>>> {
        let mut record = Vec::new();
        let mut pieces = Vec::new();
        loop {
            match self.next(which)? {
                Some(Descriptor::Piece(piece)) => {
                    pieces.push(self.check_piece(held.rank, piece, &pieces)?)
                }
                Some(Descriptor::Segment {
                    pool_at_bytes,
                    len_bytes,
                    chunk,
                }) => {
                    let part = SegmentSpan {
                        pool_at_bytes,
                        len_bytes,
                        chunks: chunk.map(|chunk| (chunk, 1)),
                        pieces: std::mem::take(&mut pieces),
                    };
                    let part = self.write_segment(step, which, sinks, part)?;
                    if self.context.remembered.is_some() {
                        held.spans.push((part.pool_at_bytes, part.len_bytes));
                    }
                    match release {
                        false => held.segments.push(part),
                        true if held.kept => {}
                        true => self.give(part.chunks)?,
                    }
                }
                Some(Descriptor::Refers { step: older }) => held.refer_to(older)?,
                Some(Descriptor::Record {
                    pool_at_bytes,
                    len_bytes,
                    chunk,
                }) => {
                    record.extend(self.context.pool.read_bytes(pool_at_bytes, len_bytes)?);
                    if !held.kept {
                        self.give(Some((chunk, 1)))?;
                    }
                }
                Some(Descriptor::Seal) => return Ok(Some(record)),
                Some(Descriptor::Fail) | None => return Ok(None),
                Some(other @ Descriptor::Begin { .. }) => {
                    return Err(Error::corrupt(format!(
                        "rank {} sent {other:?} inside a snapshot",
                        held.rank
                    )));
                }
            }
        }
    }

    /// Writes a segment, and those that follow it in the pool.
    fn write_segment(
        &mut self,
        step: Step,
        which: usize,
        sinks: &mut [Sink],
        mut part: SegmentSpan,
    ) -> Result<SegmentSpan> {
        self.extend_run(which, &mut part)?;
        self.write_part(step, sinks, &part)?;
        Ok(part)
    }

    fn write_held(
        &mut self,
        step: Step,
        snapshot: &Snapshot,
        sinks: &mut [Sink],
        release: bool,
    ) -> Result<()> {
        let mut gates = self.lock_gates(step, sinks)?;
        let Snapshot {
            rank, announced, ..
        } = *snapshot;
        for sink in sinks.iter_mut() {
            self.on_sink(step, sink, |container, _, _| {
                container.begin_rank(rank, announced)
            })?;
        }
        for part in &snapshot.segments {
            gates = self.let_weaker_pass(step, sinks, gates)?;
            self.write_part(step, sinks, part)?;
            if release && !snapshot.kept {
                self.give(part.chunks)?;
            }
        }
        self.report_damaged(step, rank, snapshot.record.as_deref())?;
        for sink in sinks.iter_mut() {
            match snapshot.record.clone() {
                Some(framed) => self.on_sink(step, sink, |container, _, ledger| {
                    container.end_rank(framed, &snapshot.refers_to, ledger)
                })?,
                None => {
                    let error = self.given_up(snapshot.local, rank, step);
                    self.lose(step, sink, error)?;
                }
            }
        }
        drop(gates);
        if release {
            self.finish_rank(snapshot.local, step);
        }
        Ok(())
    }

    /// Before the next part of a snapshot goes to a slow level: flushes a later checkpoint first
    /// that has begun and goes to weaker levels alone. Returns the gates, which were open
    /// meanwhile.
    fn let_weaker_pass(
        &mut self,
        step: Step,
        sinks: &mut [Sink],
        gates: Vec<Gate>,
    ) -> Result<Vec<Gate>> {
        let Some(level) = sinks.iter().map(|sink| sink.level).min() else {
            return Ok(gates);
        };
        let Some((first, begin)) = self.find_weaker(level)? else {
            return Ok(gates);
        };
        // Breaks if: they stay locked; another writer may hold the gate of the node's disk and wait
        // for one of these.
        drop(gates);
        // It is reported with this snapshot's record.
        let damaged = self.damaged.take();
        self.flush_step(first, begin)?;
        self.damaged = damaged;
        self.lock_gates(step, sinks)
    }

    /// The oldest snapshot that has begun, if it goes to levels below this one alone, and the pool
    /// holds all of its checkpoint: its ranks then need nothing that is still to be written.
    fn find_weaker(&mut self, level: Level) -> Result<Option<(usize, Begin)>> {
        let all = 0..self.context.ranks.len();
        for which in all.clone() {
            self.find_begin(which)?;
        }
        let begun = |which: &usize| self.begun[*which].as_ref().map(|begin| begin.step);
        let oldest = all.filter(|which| begun(which).is_some()).min_by_key(begun);
        let Some(which) = oldest else { return Ok(None) };
        let levels = self.context.places.levels();
        let begin = self.begun[which].take_if(|begin| {
            let weaker = |other: &Level| *other < level;
            !begin.pipelined && begin.goes.of(levels).iter().all(weaker)
        });
        Ok(begin.map(|begin| (which, begin)))
    }

    /// Why a rank has no snapshot, for the other ranks.
    fn given_up(&self, local: u32, rank: Rank, step: Step) -> Error {
        let what = format!("rank {rank} gave its snapshot of step {step} up");
        match self.index().reason(local, step) {
            Some(reason) if reason.what() == reason.message() => reason.at(what).next(format!(
                "mend what rank {rank} met; the next checkpoint tries again"
            )),
            Some(reason) => reason.at(what),
            None => Error::unavailable(what).next(format!(
                "find out how rank {rank} ended; the next checkpoint tries again"
            )),
        }
    }

    fn give(&self, chunks: Option<(u32, u32)>) -> Result<()> {
        let (first, count) = chunks.unwrap_or_default();
        for n in 0..count {
            let chunk = Chunk::from_index(&self.context.pool, first.wrapping_add(n))?;
            self.context.pool.give(chunk);
        }
        Ok(())
    }
}

/// The contents of a `Begin`.
struct Begin {
    step: Step,
    announced: Announced,
    pipelined: bool,
    kept: bool,
    goes: Goes,
}
