//! Implements the snapshot index, through which ranks, CP-threads and the control thread of a node
//! communicate in the shared pool.
//!
//! It consists of shared words (each a 64-bit atomic) and one ring of descriptors per rank:
//!
//! ```text
//! word  0            news: incremented when the board or a committed step changes (waited on)
//!       1, 2         newest step committed at level node / global, plus one
//!       3            the engine of this node is gone
//!       4            placement generation
//!       5 … 12       server of lane 0 … 7, plus one
//!       13           chunks that ranks of this node have taken with `alloc`
//!       14           returns from checkpoint calls, total of all ranks of the node
//!       15           number of notes for the user so far, of an engine in another process
//!       16 … 31      one bit per placed directory: out of use
//!       32           newest step committed at level process, plus one
//!       33           the run is asked to take a checkpoint and end
//!       34, 35, 36   in microseconds: the interval of measured triggers, the cost of a
//!                    checkpoint, and the time until it is safe; 0: none
//!       37           the control thread removes what a commit has replaced
//!       38 … 41      pace of the node's own level and of level global: microseconds, steps
//!       42 …         the last 64 checkpoints: step plus one, and the levels that it goes to
//!       170          number of extents that were given a place to be shared
//!       171 …        per place: key of the extent (two words), whether it is there, its CRC, and
//!                    the place's chunk plus one
//!       331 …        per writer: news (incremented when one of its rings gets an entry)
//!       …            per rank:   done, taken, popped, declared[2], …, slow, then for each of the
//!                    last 32 steps its number plus one and the bytes declared for it
//!       …            the board: the last 64 steps, then for each its state and error per level,
//!                    and the text of the error
//!       …            per rank:   the reasons for the last 16 snapshots that it gave up
//! ```
//!
//! What a checkpoint reads lies together, and texts apart: after a pause of the program, the first
//! access to a page costs a microsecond or more.
//!
//! Invariants:
//! 1. A word has one writer, those of a shared extent whoever holds its gate: a rank writes its own
//!    block, the lowest rank the intervals and the
//!    levels of checkpoints, a CP-thread `done/taken/popped` of its ranks, the control thread the
//!    rest. Anybody may increment the news words, and count chunks of `alloc` and returns.
//! 2. A descriptor is read from the ring once, then bounds-checked by the pool before use.
//! 3. A board entry's text is written before its state, and its step is checked after reading.
//!
//! Survives: a rank that dies (its entries simply stop). Not here: the memory itself
//! (`pool::pool`).

mod ahead;
mod reasons;
mod returns;
mod shared;
#[cfg(test)]
mod tests;

pub use crate::node::descriptor::Descriptor;
use crate::node::goes::Goes;
use crate::node::halt::HaltRequest;
use crate::node::layout::Node;
use orcheck_format::sabotage::{Switch, off};
use orcheck_format::{Error, ErrorKind, Level, Result, Step, TargetId, WriterId};
use orcheck_pool::Pool;
pub(crate) use shared::{SHARED_BLOCKS, SHARED_EXTENTS, SharedExtent};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Release, SeqCst};
use std::sync::atomic::fence;
use std::time::Duration;

const NEWS: u32 = 0;
const COMMITTED: u32 = 1;
const GONE: u32 = 3;
const GENERATION: u32 = 4;
const LANES: u32 = 5;
/// Maximum number of lanes of a node.
pub const MAX_LANES: u32 = 8;
const ALLOCATED: u32 = 13;
const RETURNS: u32 = 14;
const NOTES: u32 = 15;
const INACTIVE: u32 = 16;
/// Number of placed directories that the index can mark as out of use; directories beyond it stay
/// in use.
const MAX_INACTIVE: u32 = 1024;
const COMMITTED_PROCESS: u32 = INACTIVE + MAX_INACTIVE / 64;
const HALT: u32 = COMMITTED_PROCESS + 1;
const INTERVAL: u32 = HALT + 1;
const PRUNING: u32 = INTERVAL + 3;
const PACES: u32 = PRUNING + 1;
const GOING: u32 = PACES + 4;
const SHARED: u32 = GOING + 2 * BOARD_STEPS;
const WRITERS: u32 = SHARED + shared::WORDS;
const BOARD_STEPS: u32 = 64;
const TEXT_WORDS: u32 = 64;
/// State per level, text length per level, text per level.
const BOARD_WORDS: u32 = LEVELS * (2 + TEXT_WORDS);
const LEVELS: u32 = 3;
/// Longest time between two looks while something is being removed, and how many there are at most.
const PRUNE_SLICE: Duration = Duration::from_millis(200);
const PRUNE_SLICES: u32 = 50;
/// Length of the longest error text that reaches the other ranks of a node, in bytes.
const MAX_TEXT_BYTES: usize = TEXT_WORDS as usize * 8;

/// The outcome of one step at one level, as far as this node knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing known yet.
    Pending,
    /// Committed.
    Committed,
    /// It will never be committed.
    Lost(Error),
}

/// Shape of the index, and the pool words and rings it needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IndexShape {
    /// Ranks of the node.
    pub ranks: u32,
    /// Writers of the node.
    pub writers: u32,
}

impl IndexShape {
    /// The shape for this node.
    #[must_use]
    pub fn of(node: &Node) -> Self {
        Self {
            ranks: node.ranks.len() as u32,
            writers: node.writers.len() as u32,
        }
    }

    /// Shared words the pool must have.
    #[must_use]
    pub fn words(self) -> u32 {
        self.reason_base() + self.ranks * reasons::WORDS
    }

    fn rank_base(self) -> u32 {
        WRITERS + self.writers
    }

    fn board_base(self) -> u32 {
        self.rank_base() + self.ranks * RANK_WORDS
    }

    fn reason_base(self) -> u32 {
        self.board_base() + BOARD_STEPS * (1 + BOARD_WORDS)
    }
}

/// The index of one node's pool.
pub struct Index<'p> {
    pool: &'p Pool,
    shape: IndexShape,
}

const DONE: u32 = 0;
const TAKEN: u32 = 1;
const POPPED: u32 = 2;
const DECLARED: u32 = 3;
const FLUSH_CPU_NS: u32 = 5;
const WANTED: u32 = 6;
const RANK_GONE: u32 = 7;
const FLUSHED_BYTES: u32 = 8;
const STORED_BYTES: u32 = 9;
const ROUTED_BYTES: u32 = 10;
const SLOW: u32 = 11;
const DECLARED_BYTES: u32 = 12;
/// More than may be in the pool at once.
const DECLARED_STEPS: u32 = 32;
const RANK_WORDS: u32 = DECLARED_BYTES + 2 * DECLARED_STEPS;

/// Lock byte that the control thread of a node holds while it is alive.
pub const ENGINE_ALIVE: u64 = 8;
/// Lock byte that an agent holds while one of its session threads may touch the pool.
pub const POOL_IN_USE: u64 = 9;
/// Lock byte that each rank shares as long as it may write into a pool whose engine is in an agent.
pub const POOL_OF_RANK: u64 = 10;

impl<'p> Index<'p> {
    /// The index inside `pool`.
    #[must_use]
    pub fn new(pool: &'p Pool, shape: IndexShape) -> Self {
        Self { pool, shape }
    }

    fn rank_word(&self, local: u32, word: u32) -> u32 {
        self.shape.rank_base() + local * RANK_WORDS + word
    }

    fn get(&self, word: u32) -> u64 {
        self.pool.word(word).load(Acquire)
    }

    fn set(&self, word: u32, value: u64) {
        self.pool.word(word).store(value, Release);
    }

    fn bump(&self, word: u32) {
        self.pool.word(word).fetch_add(1, AcqRel);
        self.pool.wake(word);
    }

    // ---- rank to CP-thread -------------------------------------------------------------------

    /// Declares how many chunks this rank's next snapshot takes. `turn` alternates between
    /// checkpoints, so that a fast rank cannot overwrite what a slow one still has to read.
    pub fn declare_chunks(&self, local: u32, turn: u64, chunks: u64) {
        self.set(self.rank_word(local, DECLARED + (turn % 2) as u32), chunks);
    }

    /// Adds the size of the files that this rank's program writes itself, and returns the total of
    /// all ranks of the node. If several ranks add at the same time, the last one sees the full
    /// total.
    pub fn add_routed(&self, local: u32, bytes: u64) -> u64 {
        self.set(self.rank_word(local, ROUTED_BYTES), bytes);
        fence(SeqCst);
        let of_rank = |local| self.get(self.rank_word(local, ROUTED_BYTES));
        (0..self.shape.ranks)
            .map(of_rank)
            .fold(0, u64::saturating_add)
    }

    /// Declares how many bytes of a container this rank's snapshot of `step` takes at most; `turn`
    /// counts checkpoints.
    pub fn declare_bytes(&self, local: u32, (turn, step): (u64, Step), bytes: u64) {
        let place = DECLARED_BYTES + 2 * (turn % u64::from(DECLARED_STEPS)) as u32;
        let word = self.rank_word(local, place);
        self.set(word, 0);
        self.set(word + 1, bytes);
        self.set(word, step.0 + 1);
    }

    /// What a rank declared for `step`; 0 if it has declared nothing.
    #[must_use]
    pub fn declared_bytes(&self, local: u32, step: Step) -> u64 {
        let first = self.rank_word(local, DECLARED_BYTES);
        let mut words = (first..first + 2 * DECLARED_STEPS).step_by(2);
        // Breaks if: that of a later step is taken; a state that shrinks would not fit.
        let found = words.find(|&word| self.get(word) == step.0 + 1);
        found.map_or(0, |word| self.get(word + 1))
    }

    /// The number of chunks that all ranks of the node declared for this turn.
    #[must_use]
    pub fn declared_chunks(&self, turn: u64) -> u64 {
        (0..self.shape.ranks)
            .map(|local| self.get(self.rank_word(local, DECLARED + (turn % 2) as u32)))
            .fold(0, u64::saturating_add)
    }

    /// Declares how many chunks this rank will stage into, so that the CP-thread can prepare their
    /// memory before the first checkpoint.
    pub fn want_chunks(&self, local: u32, writer: WriterId, chunks: u64) {
        self.set(self.rank_word(local, WANTED), chunks);
        self.nudge(writer);
    }

    /// The number of chunks that a rank declared it will stage into.
    #[must_use]
    pub(crate) fn wanted_chunks(&self, local: u32) -> u64 {
        self.get(self.rank_word(local, WANTED))
    }

    /// The chunk, in a pool of `chunk_count` chunks, at which a rank begins to search: its own
    /// part, whose pages it has already mapped.
    #[must_use]
    pub fn first_chunk(&self, local: u32, chunk_count: u32) -> u32 {
        (u64::from(chunk_count) * u64::from(local) / u64::from(self.shape.ranks.max(1))) as u32
    }

    /// Hands a descriptor to the CP-thread of `writer`; waits while the ring is full.
    ///
    /// # Errors
    /// Unavailable if the CP-thread takes nothing before `timeout`.
    pub fn push(
        &self,
        local: u32,
        writer: WriterId,
        descriptor: Descriptor,
        timeout: Duration,
    ) -> Result<()> {
        self.push_quietly(local, writer, descriptor, timeout)?;
        self.bump(WRITERS + writer.0);
        Ok(())
    }

    /// As [`Self::push`], but leaves it to a later push to wake the CP-thread.
    ///
    /// # Errors
    /// As [`Self::push`].
    pub fn push_quietly(
        &self,
        local: u32,
        writer: WriterId,
        descriptor: Descriptor,
        timeout: Duration,
    ) -> Result<()> {
        let words = descriptor.encode();
        loop {
            let popped = self.get(self.rank_word(local, POPPED));
            if self.pool.ring(local).push(&words) {
                return Ok(());
            }
            // Breaks if: it is not woken; it may sleep over a ring that was filled quietly.
            self.bump(WRITERS + writer.0);
            if !self
                .pool
                .wait_while(self.rank_word(local, POPPED), popped, timeout)
            {
                return Err(Error::unavailable(format!(
                    "the CP-thread took no snapshot descriptor for {:.1} s",
                    timeout.as_secs_f64()
                ))
                .next("look for a stopped process or a stalled directory on this node"));
            }
        }
    }

    /// Takes a rank's next descriptor, if there is one.
    ///
    /// # Errors
    /// Corrupt for an entry that no rank of this version writes.
    pub fn pop(&self, local: u32) -> Result<Option<Descriptor>> {
        let Some(words) = self.pool.ring(local).pop() else {
            return Ok(None);
        };
        self.bump(self.rank_word(local, POPPED));
        Descriptor::decode(words).map(Some).ok_or_else(|| {
            Error::corrupt(format!(
                "the snapshot index of local rank {local} holds an unknown descriptor {words:?}"
            ))
        })
    }

    /// Value to pass to [`Self::wait_for_entries`] once the rings were found empty.
    #[must_use]
    pub fn writer_news(&self, writer: WriterId) -> u64 {
        self.get(WRITERS + writer.0)
    }

    /// Sleeps until an entry arrives or `timeout` passes.
    pub fn wait_for_entries(&self, writer: WriterId, news: u64, timeout: Duration) {
        // Woken or not, the caller looks again.
        let _ = self.pool.wait_while(WRITERS + writer.0, news, timeout);
    }

    /// Wakes a writer without an entry, so that it sees a stop flag.
    pub fn nudge(&self, writer: WriterId) {
        self.bump(WRITERS + writer.0);
    }

    // ---- CP-thread to rank -------------------------------------------------------------------

    /// The snapshot of `step` has its turn at the lane (Algorithm 1: the flush lock is held).
    pub fn set_taken(&self, local: u32, step: Step) {
        self.set(self.rank_word(local, TAKEN), step.0 + 1);
        self.pool.wake(self.rank_word(local, TAKEN));
    }

    /// All chunks of the snapshot of `step` are free again.
    pub fn set_done(&self, local: u32, step: Step, cpu_ns: u64) {
        self.set(self.rank_word(local, FLUSH_CPU_NS), cpu_ns);
        let (done, slow) = (self.rank_word(local, DONE), self.rank_word(local, SLOW));
        if self.get(slow) == step.0 + 1 {
            self.set(done, self.get(done).max(step.0 + 1));
            self.set(slow, 0);
        } else {
            self.set(done, step.0 + 1);
        }
        self.pool.wake(done);
    }

    /// The snapshot of `step` stays in the pool while later ones may leave it. Called before they
    /// do, and after all earlier ones have left.
    pub(crate) fn set_slow(&self, local: u32, step: Step) {
        self.set(self.rank_word(local, SLOW), step.0 + 1);
        self.set(self.rank_word(local, DONE), step.0);
    }

    /// Processor time of the CP-thread that flushed this rank, since the session opened.
    #[must_use]
    pub fn flush_cpu_ns(&self, local: u32) -> u64 {
        self.get(self.rank_word(local, FLUSH_CPU_NS))
    }

    /// Publishes what the CP-thread of this rank wrote since the session opened: bytes of streams,
    /// and the bytes that they take in files; every level counts.
    pub(crate) fn set_flushed(
        &self,
        local: u32,
        flushed_bytes: u64,
        stored_bytes: u64,
        cpu_ns: u64,
    ) {
        self.set(self.rank_word(local, FLUSHED_BYTES), flushed_bytes);
        self.set(self.rank_word(local, STORED_BYTES), stored_bytes);
        self.set(self.rank_word(local, FLUSH_CPU_NS), cpu_ns);
    }

    /// What [`Self::set_flushed`] published: bytes of streams, bytes in files.
    #[must_use]
    pub fn flushed_bytes(&self, local: u32) -> (u64, u64) {
        (
            self.get(self.rank_word(local, FLUSHED_BYTES)),
            self.get(self.rank_word(local, STORED_BYTES)),
        )
    }

    /// Whether the rank's snapshot of `step` has left the pool.
    #[must_use]
    pub fn is_done(&self, local: u32, step: Step) -> bool {
        // Breaks if: a later snapshot that has left speaks for this one; the program would write to
        // memory that is still being read.
        let slow = || self.get(self.rank_word(local, SLOW)) == step.0 + 1;
        self.get(self.rank_word(local, DONE)) > step.0 && (!slow() || off(Switch::SlowHeld))
    }

    /// Waits for [`Self::is_done`]; false at the deadline.
    pub fn wait_done(&self, local: u32, step: Step, timeout: Duration) -> bool {
        let word = self.rank_word(local, DONE);
        self.wait_word(word, timeout, &|| self.is_done(local, step))
    }

    /// Waits until the snapshot of `step` has its turn at the lane; false at the deadline.
    pub(crate) fn wait_taken(&self, local: u32, step: Step, timeout: Duration) -> bool {
        let word = self.rank_word(local, TAKEN);
        self.wait_word(word, timeout, &|| self.get(word) > step.0)
    }

    /// Waits in slices, so that the death of the engine's host ends the wait.
    fn wait_word(&self, word: u32, timeout: Duration, so: &dyn Fn() -> bool) -> bool {
        let mut left = timeout;
        loop {
            let value = self.get(word);
            if so() {
                return true;
            }
            if left.is_zero() || self.is_gone() {
                return false;
            }
            let slice = left.min(Duration::from_millis(100));
            let _ = self.pool.wait_while(word, value, slice);
            left = left.saturating_sub(slice);
        }
    }

    /// Resets the index for another engine; the outcomes of past steps stay. Call this only while
    /// no engine uses the index.
    pub fn renew(&self, last_step: Option<Step>) {
        for word in [NOTES].into_iter().chain(INACTIVE..COMMITTED_PROCESS) {
            self.set(word, 0);
        }
        for local in 0..self.shape.ranks {
            self.set(self.rank_word(local, RANK_GONE), 0);
            self.set_left(local, last_step.map_or(Step(0), |step| Step(step.0 + 1)));
        }
        self.forget_shared();
        self.set(GONE, 0);
        self.bump(NEWS);
    }

    /// Marks every snapshot of this rank before `step` as having left the pool, and no later one.
    /// Call this only while no engine uses the index.
    pub fn set_left(&self, local: u32, step: Step) {
        self.set(self.rank_word(local, SLOW), 0);
        for word in [TAKEN, DONE] {
            self.set(self.rank_word(local, word), step.0);
        }
    }

    /// Forgets that `step` was lost at `level`, because it is being made safe again.
    pub fn forget_loss(&self, step: Step, level: Level) {
        if let Some(place) = self.board_place(step)
            && matches!(self.outcome(step, level), Outcome::Lost(_))
        {
            self.set(self.board_word(place) + level_slot(level), 0);
        }
    }

    // ---- control thread to all ---------------------------------------------------------------

    /// Publishes the number of notes for the user so far.
    pub(crate) fn set_notes(&self, count: u64) {
        self.set(NOTES, count);
    }

    /// The number of notes for the user so far.
    #[must_use]
    pub fn notes(&self) -> u64 {
        self.get(NOTES)
    }

    /// Publishes whether the run is asked to take a checkpoint and end, and when.
    pub(crate) fn set_halt(&self, asked: HaltRequest) {
        self.set(HALT, asked.word());
    }

    /// Whether the run is asked to take a checkpoint and end, and when.
    #[must_use]
    pub fn halt(&self) -> HaltRequest {
        HaltRequest::of_word(self.get(HALT))
    }

    /// Publishes, in seconds: the interval that measured triggers keep, the cost of a checkpoint to
    /// the program, and how long it then takes until the checkpoint is safe. Called by the lowest
    /// rank of the node.
    pub fn set_interval(&self, seconds: [f64; 3]) {
        for (word, seconds) in (INTERVAL..).zip(seconds) {
            self.set(word, (seconds * 1e6).ceil() as u64);
        }
    }

    /// What [`Self::set_interval`] published, in microseconds; 0: nothing yet.
    #[must_use]
    pub fn interval_us(&self) -> [u64; 3] {
        [0, 1, 2].map(|number| self.get(INTERVAL + number))
    }

    /// Publishes the pace of the node's own level and of level global: seconds and steps between
    /// two checkpoints there; 0: none. Called by the lowest rank of the node.
    pub fn set_paces(&self, paces: [(f64, u64); 2]) {
        for (word, (seconds, steps)) in (PACES..).step_by(2).zip(paces) {
            self.set(word, (seconds * 1e6).ceil() as u64);
            self.set(word + 1, steps);
        }
    }

    /// What [`Self::set_paces`] published, in microseconds and steps.
    #[must_use]
    pub fn paces_us(&self) -> [(u64, u64); 2] {
        [PACES, PACES + 2].map(|word| (self.get(word), self.get(word + 1)))
    }

    /// Notes which levels a checkpoint goes to; `turn` counts checkpoints. Called by the lowest
    /// rank of the node, before it stages.
    pub fn note_going(&self, turn: u64, step: Step, goes: Goes) {
        let base = GOING + 2 * (turn % u64::from(BOARD_STEPS)) as u32;
        self.set(base, 0);
        self.set(base + 1, goes.bits());
        self.set(base, step.0 + 1);
    }

    /// The levels that a checkpoint goes to; all of them if that is not known any more.
    #[must_use]
    pub(crate) fn going(&self, step: Step) -> Goes {
        let places = (GOING..SHARED).step_by(2);
        let found = (places.into_iter()).find(|&base| self.get(base) == step.0 + 1);
        let goes = found.and_then(|base| Goes::from_bits(self.get(base + 1)));
        goes.unwrap_or(Goes::EVERYWHERE)
    }

    /// Marks that the process of a rank has ended; its CP-thread gets nothing more from it.
    pub fn set_rank_gone(&self, local: u32) {
        self.set(self.rank_word(local, RANK_GONE), 1);
        for writer in 0..self.shape.writers {
            self.nudge(WriterId(writer));
        }
    }

    /// Whether the process of a rank has ended.
    #[must_use]
    pub(crate) fn is_rank_gone(&self, local: u32) -> bool {
        self.get(self.rank_word(local, RANK_GONE)) != 0
    }

    /// Marks that the engine of this node has ended; nothing more will be committed.
    pub(crate) fn set_gone(&self) {
        self.set(GONE, 1);
        self.bump(NEWS);
    }

    /// Whether the engine of this node has ended.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.get(GONE) != 0
    }

    /// Publishes where the lanes of this node lead.
    pub(crate) fn set_lanes(&self, generation: u64, servers: &[TargetId]) {
        for lane in 0..MAX_LANES {
            let server = servers.get(lane as usize).map_or(0, |&s| u64::from(s) + 1);
            self.set(LANES + lane, server);
        }
        self.set(GENERATION, generation);
    }

    /// The control thread removes, or has removed, what a commit has replaced. Set before the
    /// commit is published: a writer that finds no room for the next step can then wait.
    pub(crate) fn set_pruning(&self, pruning: bool) {
        self.set(PRUNING, u64::from(pruning));
        self.pool.wake(PRUNING);
    }

    /// Waits until nothing is being removed, for a bounded time.
    pub(crate) fn wait_for_prune(&self) {
        for _ in 0..PRUNE_SLICES {
            if self.get(PRUNING) == 0 || self.is_gone() || off(Switch::RoomOfPrune) {
                return;
            }
            let _ = self.pool.wait_while(PRUNING, 1, PRUNE_SLICE);
        }
    }

    /// Marks that a placed directory takes no more containers of this run.
    pub(crate) fn set_inactive(&self, server: TargetId) {
        if server.0 < MAX_INACTIVE {
            let word = self.pool.word(INACTIVE + server.0 / 64);
            word.fetch_or(1 << (server.0 % 64), AcqRel);
        }
    }

    /// Whether a placed directory is out of use.
    #[must_use]
    pub(crate) fn is_inactive(&self, server: TargetId) -> bool {
        server.0 < MAX_INACTIVE && self.get(INACTIVE + server.0 / 64) & 1 << (server.0 % 64) != 0
    }

    /// Counts `chunks` as permanently taken by a rank, unless the total would exceed `limit`.
    #[must_use]
    pub fn reserve(&self, chunks: u32, limit: u32) -> bool {
        // In one step: a count that goes up and back again would refuse what fits beside it.
        let word = self.pool.word(ALLOCATED);
        let mut taken = word.load(Acquire);
        loop {
            let total = taken.saturating_add(u64::from(chunks));
            if total > u64::from(limit) && !off(Switch::RoomForSnapshots) {
                return false;
            }
            match word.compare_exchange(taken, total, AcqRel, Acquire) {
                Ok(_) => return true,
                Err(now) => taken = now,
            }
        }
    }

    /// Undoes a [`Self::reserve`].
    pub fn unreserve(&self, chunks: u32) {
        self.pool
            .word(ALLOCATED)
            .fetch_sub(u64::from(chunks), AcqRel);
    }

    /// Server of lane `lane` (modulo the number of lanes).
    #[must_use]
    pub(crate) fn lane_server(&self, lane: u32) -> Option<TargetId> {
        let servers: Vec<u64> = (0..MAX_LANES)
            .map(|l| self.get(LANES + l))
            .take_while(|&s| s != 0)
            .collect();
        let server = *servers.get(lane as usize % servers.len().max(1))?;
        Some(TargetId(server as u32 - 1))
    }

    /// Placement generation of the lanes.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.get(GENERATION)
    }

    /// The step, plus one, of a place on the board.
    fn board_step(&self, place: u32) -> u64 {
        self.get(self.shape.board_base() + place)
    }

    fn set_board_step(&self, place: u32, step: u64) {
        self.set(self.shape.board_base() + place, step);
    }

    /// First word of a place on the board, without its step.
    fn board_word(&self, place: u32) -> u32 {
        self.shape.board_base() + BOARD_STEPS + place * BOARD_WORDS
    }

    /// The place that holds `step`. It is searched for, not computed: steps that are all multiples
    /// of the board's length would otherwise push each other out.
    fn board_place(&self, step: Step) -> Option<u32> {
        (0..BOARD_STEPS).find(|&place| self.board_step(place) == step.0 + 1)
    }

    /// The place for `step`: its own, or that of the oldest step; `None` if all are newer.
    fn board_place_for(&self, step: Step) -> Option<u32> {
        if let Some(place) = self.board_place(step) {
            return Some(place);
        }
        let place = (0..BOARD_STEPS)
            .min_by_key(|&place| self.board_step(place))
            .filter(|&place| self.board_step(place) <= step.0)?;
        self.set_board_step(place, 0);
        for slot in 0..LEVELS {
            self.set(self.board_word(place) + slot, 0);
        }
        self.set_board_step(place, step.0 + 1);
        Some(place)
    }

    /// The newest known step that goes to this level.
    #[must_use]
    pub fn newest_step(&self, level: Level) -> Option<Step> {
        let steps =
            (0..BOARD_STEPS).filter_map(|place| self.board_step(place).checked_sub(1).map(Step));
        steps.filter(|&step| self.going(step).includes(level)).max()
    }

    /// Publishes the outcome of `step` at `level`.
    pub fn publish(&self, step: Step, level: Level, outcome: &Outcome) {
        if *outcome == Outcome::Committed {
            let committed = committed_word(level);
            self.set(committed, self.get(committed).max(step.0 + 1));
        }
        if let Some(place) = self.board_place_for(step) {
            self.publish_at(self.board_word(place), level, outcome);
        }
        self.bump(NEWS);
    }

    fn publish_at(&self, base: u32, level: Level, outcome: &Outcome) {
        let slot = level_slot(level);
        let at = base + slot;
        match outcome {
            Outcome::Pending => {}
            Outcome::Committed => self.set(at, 1),
            // The first loss stays: it is the cause, and later ones are its consequences.
            Outcome::Lost(error) if self.get(at) == 0 => {
                let len_bytes = self.set_text(text_base(base, slot), error.message());
                self.set(base + LEVELS + slot, len_bytes);
                self.set(at, 2 + (u64::from(code_of_loss(error)) << 8));
            }
            Outcome::Lost(_) => {}
        }
    }

    /// The outcome of `step` at `level`.
    #[must_use]
    pub fn outcome(&self, step: Step, level: Level) -> Outcome {
        let Some(place) = self.board_place(step) else {
            return Outcome::Pending;
        };
        let (base, slot) = (self.board_word(place), level_slot(level));
        let state = self.get(base + slot);
        let outcome = match state & 0xff {
            1 => Outcome::Committed,
            2 => {
                let len_bytes = self.get(base + LEVELS + slot);
                let text = self.text(text_base(base, slot), len_bytes);
                Outcome::Lost(Error::from_code((state >> 8) as u32, text))
            }
            _ => Outcome::Pending,
        };
        if self.board_step(place) == step.0 + 1 {
            outcome
        } else {
            Outcome::Pending
        }
    }

    /// Newest step committed at `level` in this session.
    #[must_use]
    pub fn committed_step(&self, level: Level) -> Option<Step> {
        (self.get(committed_word(level)).checked_sub(1)).map(Step)
    }

    /// Value for [`Self::wait_news`].
    #[must_use]
    pub fn news(&self) -> u64 {
        self.get(NEWS)
    }

    /// Sleeps until something is published or `timeout` passes.
    pub fn wait_news(&self, news: u64, timeout: Duration) {
        let _ = self.pool.wait_while(NEWS, news, timeout);
    }
}

/// The code of the error with which a call reports a loss. Whatever the cause, it does not say that
/// the call or its step is wrong.
fn code_of_loss(cause: &Error) -> u32 {
    match cause.kind() {
        ErrorKind::Invalid | ErrorKind::NotFound => cause.code_as(ErrorKind::Unavailable),
        _ => cause.code(),
    }
}

/// First word of the text of a level at a place of the board.
fn text_base(base: u32, slot: u32) -> u32 {
    base + 2 * LEVELS + slot * TEXT_WORDS
}

/// A job has one of the levels `node` and `peers`, so they share a slot.
fn level_slot(level: Level) -> u32 {
    match level {
        Level::Node | Level::Peers(_) => 0,
        Level::Global => 1,
        Level::Process => 2,
    }
}

fn committed_word(level: Level) -> u32 {
    [COMMITTED, COMMITTED + 1, COMMITTED_PROCESS][level_slot(level) as usize]
}
