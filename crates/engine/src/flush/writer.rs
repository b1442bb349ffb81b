//! Flush: the CP-thread of one writer takes snapshots from the pool and writes its containers.
//!
//! Snapshots are flushed one after the other in the order in which they begin. In mode
//! `orchestrated` a snapshot is written only while the **gate** of its lane is held, so that a
//! directory sees one sequential stream from a node. Two ways through the levels:
//!
//! * the pool holds everything: level `node` is written and reported first, then level `global`
//!   from the same chunks, which are freed as they are written the last time;
//! * pipelined: every chunk is written to all levels and freed at once.
//!
//! Where containers are encoded (`encoding.rs`), the pieces of each segment come before it; they are made
//! smaller once for all levels that are written together, and encrypted for each.
//!
//! Invariants:
//! 1. A chunk is given back exactly once, also when a container failed: ranks never wait for a
//!    directory that is gone.
//! 2. A gate is held only while a snapshot that has begun is being written, never between two: a
//!    rank that waits for its stage slot cannot be waiting for this gate's holder.
//! 3. The first error of a container is reported, once, and ends that container only; the other
//!    level goes on.
//! 4. `Durable` is reported after fsync of the files and their directories.
//! 5. Bytes that the processor reads on their way, or that are checked by option, are what the rank staged
//!    (`writer/pieces.rs`).
//!
//! Survives: a directory that fails at any write, a full one, a rank that gives up, a gate holder
//! that dies. Not here: who decides that the checkpoint is committed (`protocol.rs`, `commit.rs`).

mod pieces;
mod rings;

use crate::directory::Places;
use crate::encoding::{ContainerKey, EncodePiece, Encoder, Recipe};
use crate::flush::container::{Announced, ContainerWriter, Target};
use crate::flush::ledger::Ledger;
use crate::node::{Descriptor, Index, IndexShape, Mode};
use crate::replicas::Replicas;
use orcheck_format::disk::{BLOCK_BYTES, ContainerHeader, Features, MAX_REFERRED};
use orcheck_format::sabotage::{Switch, off};
use orcheck_format::wire::Message;
use orcheck_format::{Epoch, Error, JobName, Level, Result};
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
/// Longest sleep before the stop flag is looked at.
const SLICE: Duration = Duration::from_millis(200);

/// What a writer needs to know.
pub struct FlushContext {
    /// The node's pool.
    pub pool: Arc<Pool>,
    /// Shape of the index in it.
    pub shape: IndexShape,
    /// Job and epoch that the containers belong to.
    pub job: JobName,
    /// Epoch of this run.
    pub epoch: Epoch,
    /// Ranks in the job.
    pub world_size: u32,
    /// Node index and name.
    pub node: (u32, String),
    /// Writer index on the node.
    pub writer: u32,
    /// The writer's ranks: (position on the node, rank).
    pub ranks: Vec<(u32, u32)>,
    /// How streams travel.
    pub mode: Mode,
    /// The job's directories.
    pub places: Places,
    /// Direct I/O where the file system takes it.
    pub direct: bool,
    /// Snapshots may refer to older containers.
    pub incremental: bool,
    /// How containers are encoded.
    pub recipe: Recipe,
    /// Longest wait for a gate.
    pub gate_timeout: Duration,
    /// Clock for creation times.
    pub clock: Arc<dyn Clock>,
    /// Numbered steps, for tests.
    pub failpoints: Failpoints,
    /// Replicas on other nodes, at level `peers`.
    pub replicas: Option<Arc<Replicas>>,
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
    /// Chunks made ready per rank.
    populated: Vec<u32>,
    /// Per rank: a snapshot whose begin was read but whose turn has not come.
    begun: Vec<Option<Begin>>,
    /// Absent where everything is stored as it is.
    encoder: Option<Encoder>,
    /// Taken off the ring of the rank being flushed before their turn.
    ahead: VecDeque<Descriptor>,
    /// What damage in the pool cost the snapshot being flushed.
    damaged: Option<Damaged>,
    /// Per rank that ended: what was still in its ring.
    left: Vec<VecDeque<Descriptor>>,
    /// Bytes of streams, and bytes in files, of all containers so far.
    written: (u64, u64),
}

/// One container of the step being flushed, or why there is none.
struct Sink {
    level: Level,
    server: Option<u32>,
    /// Nodes that hold replicas.
    holders: Vec<u32>,
    container: Option<ContainerWriter>,
}

/// A snapshot read from the ring whose chunks are kept for the next level.
struct Held {
    local: u32,
    rank: u32,
    announced: Announced,
    segments: Vec<Part>,
    refers_to: Vec<u64>,
    record: Option<Vec<u8>>,
    /// The rank gives the chunks back.
    kept: bool,
}

/// A segment of a snapshot, or several that lie side by side in the pool.
struct Part {
    pool_at_bytes: u64,
    len_bytes: u64,
    /// First and number; none for the program's own memory in the pool.
    chunks: Option<(u32, u32)>,
    /// What it holds; empty where nothing is encoded or checked.
    pieces: Vec<EncodePiece>,
}

/// A piece that is not what was staged, and the levels whose containers were given up for it.
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
        })
    }

    /// Runs until the session ends, or no rank is left. An error is a defect or the loss of the control thread.
    ///
    /// # Errors
    /// Corrupt for a descriptor out of order; Unavailable when reports cannot be sent.
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

    /// The next rank among `waiting` that begins its snapshot of `step`, or says by a later begin
    /// that it gave this one up (`None`); without `step`: the oldest snapshot that has begun. `None`
    /// when the session ends first.
    fn next_begin(
        &mut self,
        waiting: &[usize],
        step: Option<u64>,
    ) -> Result<Option<(usize, Option<Begin>)>> {
        loop {
            let news = self.index().writer_news(self.context.writer);
            // Before its ring is looked at: nothing can come later.
            // Breaks if: it is asked after that; what a rank sent last, before it ended, is then overlooked.
            let is_gone = |which: &usize| self.is_gone(*which);
            let gone: Vec<usize> = waiting.iter().copied().filter(is_gone).collect();
            for &which in waiting {
                self.look_for_begin(which)?;
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
                // All that have begun are past this step; the others may still come.
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

    /// Makes the memory of one more wanted chunk ready while there is nothing to flush; false when
    /// all is ready. What cannot be had now is asked for again, with its error, when it is needed.
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
        let levels = self.context.places.levels();
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
                Some(begin) => self.stream_snapshot(step, which, &begin, &mut sinks, together)?,
                None => self.missing_snapshot(step, which, &mut sinks)?,
            };
            let complete = snapshot.record.is_some();
            if together {
                self.finish_rank(snapshot.local, step);
            } else {
                held.push(snapshot);
            }
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
        self.close_sinks(step, sinks, whole)?;
        if together {
            return Ok(());
        }
        for &level in &levels[1..] {
            let last = Some(&level) == levels.last();
            let mut sinks = vec![self.open_sink(step, level)?];
            for snapshot in &held {
                self.write_held(step, snapshot, &mut sinks, last)?;
            }
            self.close_sinks(step, sinks, whole)?;
        }
        Ok(())
    }

    /// What stands for the snapshot of a rank that never began it: nothing, and the step is lost.
    fn missing_snapshot(&mut self, step: u64, which: usize, sinks: &mut [Sink]) -> Result<Held> {
        let (local, rank) = self.context.ranks[which];
        for sink in sinks.iter_mut() {
            self.lose(step, sink, self.given_up(local, rank, step))?;
        }
        Ok(Held {
            local,
            rank,
            announced: Announced {
                stream_len_bytes: 0,
                cut_bytes: BLOCK_BYTES as u32,
                may_shrink: false,
            },
            segments: Vec::new(),
            refers_to: Vec::new(),
            record: None,
            kept: false,
        })
    }

    fn finish_rank(&self, local: u32, step: u64) {
        self.index()
            .set_done(local, step, thread_cpu_time().as_nanos() as u64);
    }

    /// Where a container of `level` goes now.
    fn target(
        &self,
        step: u64,
        level: Level,
        holders: &mut Vec<u32>,
    ) -> std::result::Result<(Target, Option<u32>), (Option<u32>, Error)> {
        let places = &self.context.places;
        let (direct, ranks) = (self.context.direct, self.context.ranks.len() as u64);
        if level != Level::Global {
            let mut dir = places.node.clone().ok_or_else(|| {
                let error = format!("level {level} has no directory");
                (None, Error::internal(error))
            })?;
            if let (Level::Peers(_), Some(replicas)) = (level, &self.context.replicas) {
                *holders = replicas.holders(step).map_err(|error| (None, error))?;
                dir = replicas.wrap(dir, holders.clone(), self.most_bytes());
            }
            return Ok((
                Target {
                    dir,
                    server: 0,
                    stripes: Vec::new(),
                    direct,
                    ranks,
                    coming: None,
                },
                None,
            ));
        }
        let lane = self.context.writer;
        let index = self.index();
        let server = index.lane_server(lane).ok_or_else(|| {
            let error = Error::unavailable("no placed directory is left")
                .next("mend or replace the directories of `global`");
            (None, error)
        })?;
        let dir = places
            .servers
            .get(server as usize)
            .cloned()
            .flatten()
            .ok_or_else(|| {
                // The lead must learn which one, to place this node elsewhere.
                // Breaks if: the number is believed; a bit that flipped in the pool would end this thread.
                match places.server_roots.get(server as usize) {
                    Some(root) => {
                        let error =
                            format!("directory {} is not there on this node", root.display());
                        (Some(server), Error::unavailable(error))
                    }
                    None => {
                        let most = places.server_roots.len();
                        let error = format!(
                            "lane {lane} leads to directory {server} of {most} in the pool"
                        );
                        (None, Error::corrupt(error))
                    }
                }
            })?;
        let stripes = if self.context.mode == Mode::Traditional {
            let all = (0u32..)
                .zip(&places.servers)
                .filter(|(server, _)| !index.is_inactive(*server));
            all.filter_map(|(server, dir)| Some((server, dir.clone()?)))
                .collect()
        } else {
            Vec::new()
        };
        Ok((
            Target {
                dir,
                server,
                stripes,
                direct,
                ranks,
                coming: None,
            },
            Some(server),
        ))
    }

    /// The most bytes that a container can have, by what its ranks declared.
    fn most_bytes(&self) -> u64 {
        let locals = self.context.ranks.iter().map(|&(local, _)| local);
        let chunks: u64 = locals.map(|local| self.index().chunks_of(local)).sum();
        let chunk_bytes = u64::from(self.context.pool.shape().chunk_bytes);
        (chunks * chunk_bytes)
            .saturating_add(self.context.ranks.len() as u64 * (1 << 16) + (1 << 20))
    }

    fn open_sink(&mut self, step: u64, level: Level) -> Result<Sink> {
        let context = &self.context;
        let (mut server, mut holders) = (None, Vec::new());
        let container = self
            .target(step, level, &mut holders)
            .and_then(|(target, placed)| {
                server = placed;
                let striped = !target.stripes.is_empty();
                let recipe = &context.recipe;
                let mut header = ContainerHeader {
                    features: if striped {
                        Features::striped()
                    } else if context.incremental {
                        Features::references()
                    } else {
                        Features::default()
                    },
                    job: context.job.clone(),
                    step,
                    epoch: context.epoch,
                    level,
                    node: context.node.0,
                    writer: context.writer,
                    world_size: context.world_size,
                    alignment_bytes: BLOCK_BYTES as u32,
                    created_unix_ms: context.clock.unix_ms(),
                    encryption: None,
                };
                let mut key = None;
                if !recipe.is_plain() {
                    header.features.incompat |= Features::ENCODED;
                }
                if let Some(secret) = &recipe.secret {
                    let made = ContainerKey::create(secret, &mut header);
                    key = Some(made.map_err(|error| (None, error))?);
                }
                ContainerWriter::create(header, &context.node.1, &target, key)
                    .map_err(|(failed, error)| (server.map(|_| failed), error))
            });
        match container {
            Ok(container) => Ok(Sink {
                level,
                server,
                holders,
                container: Some(container),
            }),
            Err((failed, error)) => {
                self.report_loss(step, level, failed, error)?;
                Ok(Sink {
                    level,
                    server,
                    holders,
                    container: None,
                })
            }
        }
    }

    fn report_loss(
        &mut self,
        step: u64,
        level: Level,
        server: Option<u32>,
        error: Error,
    ) -> Result<()> {
        let text = format!("node {}: {}", self.context.node.1, error.message());
        (self.report)(Message::NotDurable {
            step,
            level: Some(level),
            server,
            kind: error.kind(),
            text,
        })
    }

    /// Does `work` on a sink's container; the first error loses it.
    fn on_sink(
        &mut self,
        step: u64,
        sink: &mut Sink,
        work: impl FnOnce(&mut ContainerWriter, &FlushContext, &mut Ledger) -> Result<()>,
    ) -> Result<()> {
        let Some(mut container) = sink.container.take() else {
            return Ok(());
        };
        match work(&mut container, &self.context, &mut self.ledger) {
            Ok(()) => {
                sink.container = Some(container);
                Ok(())
            }
            Err(error) => {
                let failed = sink.server.map(|_| container.used_server());
                container.abort();
                self.report_loss(step, sink.level, failed, error)
            }
        }
    }

    /// Gives a sink's container up for a reason that no directory is to blame for.
    fn lose(&mut self, step: u64, sink: &mut Sink, error: Error) -> Result<()> {
        let Some(container) = sink.container.take() else {
            return Ok(());
        };
        container.abort();
        self.report_loss(step, sink.level, None, error)
    }

    /// The gates of all sinks, always in the same order; a gate that does not open loses its sink.
    fn lock_gates(&mut self, step: u64, sinks: &mut [Sink]) -> Result<Vec<Gate>> {
        let mut held = Vec::new();
        if self.context.mode != Mode::Orchestrated {
            return Ok(held);
        }
        for sink in sinks {
            let byte = match sink.level {
                Level::Global => SERVER_GATES + u64::from(sink.server.unwrap_or(0)),
                _ => NODE_DISK_GATE,
            };
            let locked = self.gates.lock(byte, self.context.gate_timeout);
            match locked {
                Ok(gate) => held.push(gate),
                Err(error) => self.lose(step, sink, error)?,
            }
        }
        Ok(held)
    }

    fn stream_snapshot(
        &mut self,
        step: u64,
        which: usize,
        begin: &Begin,
        sinks: &mut [Sink],
        release: bool,
    ) -> Result<Held> {
        let (local, rank) = self.context.ranks[which];
        let gates = self.lock_gates(step, sinks)?;
        self.context.failpoints.at("flush.taken", "")?;
        self.index().set_taken(local, step);
        let mut held = Held {
            local,
            rank,
            announced: begin.announced,
            segments: Vec::new(),
            refers_to: Vec::new(),
            record: None,
            kept: begin.kept,
        };
        for sink in sinks.iter_mut() {
            self.on_sink(step, sink, |container, _, _| {
                container.begin_rank(rank, held.announced)
            })?;
        }
        let mut record = Vec::new();
        let mut pieces = Vec::new();
        loop {
            match self.next(which)? {
                Some(Descriptor::Piece(piece)) => {
                    pieces.push(self.check_piece(rank, piece, &pieces)?)
                }
                Some(Descriptor::Segment {
                    pool_at_bytes,
                    len_bytes,
                    chunk,
                }) => {
                    let mut part = Part {
                        pool_at_bytes,
                        len_bytes,
                        chunks: chunk.map(|chunk| (chunk, 1)),
                        pieces: std::mem::take(&mut pieces),
                    };
                    self.extend_run(which, &mut part)?;
                    self.write_part(step, sinks, &part)?;
                    match release {
                        false => held.segments.push(part),
                        true if begin.kept => {}
                        true => self.give(part.chunks)?,
                    }
                }
                Some(Descriptor::Refers { step: older }) => {
                    if held.refers_to.len() >= MAX_REFERRED && !off(Switch::ReferredBound) {
                        return Err(Error::corrupt(format!(
                            "rank {rank} refers to more than {MAX_REFERRED} older checkpoints"
                        )));
                    }
                    held.refers_to.push(older);
                }
                Some(Descriptor::Record {
                    pool_at_bytes,
                    len_bytes,
                    chunk,
                }) => {
                    record.extend(self.context.pool.read_bytes(pool_at_bytes, len_bytes)?);
                    if !begin.kept {
                        self.give(Some((chunk, 1)))?;
                    }
                }
                Some(Descriptor::Seal) => break,
                Some(Descriptor::Fail) | None => {
                    self.tell_damaged(step, rank, None)?;
                    for sink in sinks.iter_mut() {
                        self.lose(step, sink, self.given_up(local, rank, step))?;
                    }
                    drop(gates);
                    return Ok(held);
                }
                Some(other @ Descriptor::Begin { .. }) => {
                    return Err(Error::corrupt(format!(
                        "rank {rank} sent {other:?} inside a snapshot"
                    )));
                }
            }
        }
        self.tell_damaged(step, rank, Some(&record))?;
        for sink in sinks.iter_mut() {
            let framed = record.clone();
            self.on_sink(step, sink, |container, _, ledger| {
                container.end_rank(framed, &held.refers_to, ledger)
            })?;
        }
        drop(gates);
        held.record = Some(record);
        Ok(held)
    }

    fn write_held(
        &mut self,
        step: u64,
        snapshot: &Held,
        sinks: &mut [Sink],
        release: bool,
    ) -> Result<()> {
        let gates = self.lock_gates(step, sinks)?;
        let Held {
            rank, announced, ..
        } = *snapshot;
        for sink in sinks.iter_mut() {
            self.on_sink(step, sink, |container, _, _| {
                container.begin_rank(rank, announced)
            })?;
        }
        for part in &snapshot.segments {
            self.write_part(step, sinks, part)?;
            if release && !snapshot.kept {
                self.give(part.chunks)?;
            }
        }
        self.tell_damaged(step, rank, snapshot.record.as_deref())?;
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

    /// Why there is no snapshot of a rank, as the others are told.
    fn given_up(&self, local: u32, rank: u32, step: u64) -> Error {
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

    fn close_sinks(&mut self, step: u64, sinks: Vec<Sink>, whole: bool) -> Result<()> {
        for sink in sinks {
            let Some(container) = sink.container else {
                continue;
            };
            if !whole {
                container.abort();
                continue;
            }
            let (flushed_bytes, stored_bytes) = container.written();
            match container.finish() {
                Ok(mut container) => {
                    container.holders = sink.holders;
                    // Before anybody can learn that it is safe.
                    self.written.0 += flushed_bytes;
                    self.written.1 += stored_bytes.max(container.len_bytes);
                    let cpu_ns = thread_cpu_time().as_nanos() as u64;
                    for &(local, _) in &self.context.ranks {
                        self.index()
                            .set_flushed(local, self.written.0, self.written.1, cpu_ns);
                    }
                    self.context.failpoints.at("flush.durable", "")?;
                    (self.report)(Message::Durable {
                        step,
                        level: sink.level,
                        container,
                    })?;
                }
                Err((failed, error)) => {
                    self.report_loss(step, sink.level, sink.server.map(|_| failed), error)?;
                }
            }
        }
        Ok(())
    }
}

/// What a `Begin` said.
struct Begin {
    step: u64,
    announced: Announced,
    pipelined: bool,
    kept: bool,
}
