//! Writes received pieces from memory to the disk, each once.
//!
//! How: a few threads write. Each continues with the file that was written last as long as that
//! file's next piece is there, but only up to a limit, so that the disk rarely has to seek. A file
//! knows how many of its pieces are not written yet and its first error; whoever wants it durable
//! waits for the pieces first.
//!
//! If others are to keep a share of the disk, the threads write one at a time while there are any,
//! and pause (`sharing.rs`).
//!
//! Invariants:
//! 1. Memory is bounded: the memory for a piece is taken before its bytes arrive and returned when
//!    they are written.
//! 2. When [`Incoming::settle`] returns, no byte that arrived before is still in memory; it reports
//!    the first error.
//! 3. After an error, nothing more of that file is written.
//!
//! Survives: a full, slow or broken disk (an error of the file). Not here: who may send
//! (`pull.rs`), sockets (`session.rs`).

use crate::server::locked::guard;
use crate::server::quota::Held;
use crate::server::sharing::Sharing;
use orcheck_format::sabotage::{Switch, off};
use orcheck_format::wire::PIECE_BYTES;
use orcheck_format::{Error, Result};
use orcheck_io::clock::Clock;
use orcheck_io::machine::thread;
use orcheck_io::memory::Buffer;
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Alignment of every piece of memory, as much as direct I/O can require.
const ALIGNMENT: usize = 4096;
/// Number of bytes of one file that are written before another file has its turn.
const RUN_BYTES: u64 = 128 << 20;

/// A bounded number of pieces of memory; no tenant has more than a share, and no job more than a
/// share of its own.
pub(crate) struct Memory {
    most: usize,
    share: AtomicUsize,
    job_share: usize,
    state: Mutex<Pieces>,
    given: Condvar,
}

#[derive(Default)]
struct Pieces {
    free: Vec<Buffer>,
    made: usize,
    /// The number of pieces that each tenant and each job has.
    taken: BTreeMap<Whose, usize>,
    /// How often a piece was returned.
    returned: u64,
}

/// Who has memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Whose {
    Tenant(u64),
    Job(u64),
}

impl Memory {
    /// `shares`: of a tenant, and of a job.
    pub(crate) fn new(most: usize, shares: (usize, usize)) -> Self {
        Self {
            most,
            share: AtomicUsize::new(shares.0.max(1)),
            job_share: shares.1.max(1),
            state: Mutex::default(),
            given: Condvar::new(),
        }
    }

    /// A piece for a job of a tenant, or `None` if there is none within the time.
    pub(crate) fn take(&self, tenant: u64, job: u64, patience: Duration) -> Option<Buffer> {
        let state = guard(&self.state);
        let none = |state: &mut Pieces| {
            let has = |whose| state.taken.get(&whose).copied().unwrap_or(0);
            // Breaks if: only tenants have a share; readers of one job that stop would keep all
            // memory from the others.
            has(Whose::Tenant(tenant)) >= self.share.load(Ordering::Relaxed)
                || has(Whose::Job(job)) >= self.job_share && !off(Switch::JobShare)
                || (state.free.is_empty() && state.made >= self.most)
        };
        let (mut state, waited) = self
            .given
            .wait_timeout_while(state, patience, none)
            .unwrap_or_else(PoisonError::into_inner);
        if waited.timed_out() {
            return None;
        }
        for whose in [Whose::Tenant(tenant), Whose::Job(job)] {
            *state.taken.entry(whose).or_default() += 1;
        }
        if let Some(piece) = state.free.pop() {
            return Some(piece);
        }
        state.made += 1;
        Some(Buffer::zeroed(PIECE_BYTES as usize, ALIGNMENT))
    }

    /// Sets the maximum number of pieces that a tenant may have at a time.
    pub(crate) fn set_share(&self, share: usize) {
        self.share.store(share.max(1), Ordering::Relaxed);
    }

    /// How often a piece was returned so far.
    pub(crate) fn returned(&self) -> u64 {
        guard(&self.state).returned
    }

    pub(crate) fn give(&self, tenant: u64, job: u64, piece: Buffer) {
        let mut state = guard(&self.state);
        state.free.push(piece);
        state.returned += 1;
        for whose in [Whose::Tenant(tenant), Whose::Job(job)] {
            if let Some(has) = state.taken.get_mut(&whose) {
                *has -= 1;
                if *has == 0 {
                    state.taken.remove(&whose);
                }
            }
        }
        drop(state);
        // All of them, because a single one may already have its share.
        self.given.notify_all();
    }
}

/// Memory for bytes that were not wanted, as much as they need.
pub(crate) fn small_piece(len: usize) -> Buffer {
    Buffer::zeroed(len.next_multiple_of(ALIGNMENT), ALIGNMENT)
}

/// The part of its memory that a piece takes.
pub(crate) fn beginning(memory: &mut [u8], len: usize) -> Result<&mut [u8]> {
    let most = memory.len();
    memory
        .get_mut(..len)
        .ok_or_else(|| Error::internal(format!("a piece of {len} bytes in memory of {most}")))
}

/// A file that is being written.
pub(crate) struct Incoming {
    pub(crate) number: u64,
    pub(crate) file: Held,
    state: Mutex<Pending>,
    written: Condvar,
}

#[derive(Default)]
struct Pending {
    pieces: usize,
    failed: Option<Error>,
}

impl Incoming {
    pub(crate) fn new(number: u64, file: Held) -> Arc<Self> {
        Arc::new(Self {
            number,
            file,
            state: Mutex::default(),
            written: Condvar::new(),
        })
    }

    /// Waits until everything that arrived is written.
    pub(crate) fn settle(&self) -> Result<()> {
        // Breaks if: this does not wait; what is still in memory would be reported durable.
        let most = if off(Switch::StoreSettled) {
            usize::MAX
        } else {
            0
        };
        self.wait_for(most)
    }

    /// The number of its pieces that are not written yet.
    pub(crate) fn pending(&self) -> usize {
        guard(&self.state).pieces
    }

    /// Waits until at most this many of its pieces are not written yet; returns its first error.
    pub(crate) fn wait_for(&self, most: usize) -> Result<()> {
        let state = guard(&self.state);
        let waits = |state: &mut Pending| state.pieces > most;
        let state = self
            .written
            .wait_while(state, waits)
            .unwrap_or_else(PoisonError::into_inner);
        state.failed.clone().map_or(Ok(()), Err)
    }

    /// Sets the error of the file: nothing more of it is written.
    pub(crate) fn fail(&self, error: Error) {
        guard(&self.state).failed.get_or_insert(error);
    }

    /// Returns the file's first error.
    pub(crate) fn check(&self) -> Result<()> {
        guard(&self.state).failed.clone().map_or(Ok(()), Err)
    }

    pub(crate) fn has_failed(&self) -> bool {
        guard(&self.state).failed.is_some()
    }

    fn done(&self, result: Result<()>) {
        let mut state = guard(&self.state);
        state.pieces -= 1;
        if let Err(error) = result {
            state.failed.get_or_insert(error);
        }
        drop(state);
        self.written.notify_all();
    }
}

/// Bytes in memory with their offset in a file.
pub(crate) struct Piece {
    pub(crate) file: Arc<Incoming>,
    pub(crate) memory: Buffer,
    pub(crate) len: usize,
    pub(crate) at: u64,
    /// The job for which the memory was taken from the bounded pool, if it was.
    pub(crate) pooled: Option<u64>,
}

#[derive(Default)]
struct Queue {
    pieces: VecDeque<Piece>,
    /// Number of the file that was written last, where it ended, and how many of its bytes were
    /// written in a row.
    last: Option<(u64, u64, u64)>,
    stopping: bool,
}

impl Queue {
    /// The piece to write next.
    fn pop(&mut self) -> Option<Piece> {
        let goes_on = self.last.filter(|(_, _, run)| *run < RUN_BYTES);
        let next = goes_on.and_then(|(number, end, _)| {
            let follows = |piece: &Piece| piece.file.number == number && piece.at == end;
            self.pieces.iter().position(follows)
        });
        let piece = self.pieces.remove(next.unwrap_or(0))?;
        let run = match self.last {
            Some((_, _, run)) if next.is_some() => run,
            _ => 0,
        };
        let len = piece.len as u64;
        self.last = Some((piece.file.number, piece.at + len, run + len));
        Some(piece)
    }
}

struct Shared {
    queue: Mutex<Queue>,
    came: Condvar,
    memory: Memory,
    sharing: Option<Arc<Sharing>>,
    clock: Arc<dyn Clock>,
    /// When each thread began the write that it is doing.
    begun: Mutex<BTreeMap<usize, Duration>>,
    freed: Box<dyn Fn(u64) + Send + Sync>,
}

/// Writes pieces; see the module.
pub(crate) struct Intake {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Intake {
    /// Starts the threads; `freed` is called when a piece of the pool is free again, with the job
    /// that had it.
    pub(crate) fn start(
        threads: usize,
        memory: Memory,
        sharing: Option<Arc<Sharing>>,
        clock: &Arc<dyn Clock>,
        freed: impl Fn(u64) + Send + Sync + 'static,
    ) -> Result<Self> {
        let shared = Arc::new(Shared {
            queue: Mutex::default(),
            came: Condvar::new(),
            memory,
            sharing,
            clock: Arc::clone(clock),
            begun: Mutex::default(),
            freed: Box::new(freed),
        });
        let intake = Self {
            shared,
            threads: Mutex::default(),
        };
        for number in 0..threads {
            let shared = Arc::clone(&intake.shared);
            let thread = thread::spawn("orcheck-disk", move || shared.write_pieces(number))?;
            guard(&intake.threads).push(thread);
        }
        Ok(intake)
    }

    /// A piece of the pool, or `None` if there is none within the time.
    pub(crate) fn take(&self, job: u64, patience: Duration) -> Option<Buffer> {
        self.shared.memory.take(0, job, patience)
    }

    /// Returns a piece that holds nothing.
    pub(crate) fn give(&self, job: u64, piece: Buffer) {
        self.shared.give(job, piece);
    }

    /// How long the oldest write has taken that has not ended.
    pub(crate) fn longest(&self) -> Duration {
        let oldest = guard(&self.shared.begun).values().min().copied();
        let now = self.shared.clock.now();
        oldest.map_or(Duration::ZERO, |begun| now.saturating_sub(begun))
    }

    /// Queues a piece for writing.
    pub(crate) fn write(&self, piece: Piece) {
        guard(&piece.file.state).pieces += 1;
        guard(&self.shared.queue).pieces.push_back(piece);
        self.shared.came.notify_one();
    }
}

impl Intake {
    /// Writes what is left, and ends the threads.
    pub(crate) fn stop(&self) {
        guard(&self.shared.queue).stopping = true;
        self.shared.came.notify_all();
        for thread in guard(&self.threads).drain(..) {
            // A thread that panicked has reported it.
            let _ = thread.join();
        }
    }
}

impl Drop for Intake {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Shared {
    fn give(&self, job: u64, piece: Buffer) {
        self.memory.give(0, job, piece);
        (self.freed)(job);
    }

    fn write_pieces(&self, number: usize) {
        loop {
            let queue = guard(&self.queue);
            let nothing = |queue: &mut Queue| queue.pieces.is_empty() && !queue.stopping;
            let mut queue = self
                .came
                .wait_while(queue, nothing)
                .unwrap_or_else(PoisonError::into_inner);
            let Some(mut piece) = queue.pop() else {
                return; // stopping, and nothing is left
            };
            drop(queue);
            guard(&self.begun).insert(number, self.clock.now());
            let mut write = || {
                let bytes = beginning(&mut piece.memory, piece.len);
                let written = bytes.and_then(|bytes| piece.file.file.write_at(bytes, piece.at));
                piece.file.file.look();
                written
            };
            let (result, after) = match &self.sharing {
                _ if piece.file.has_failed() => (Ok(()), None),
                None => (write(), None),
                Some(sharing) => sharing.write(piece.len, write),
            };
            guard(&self.begun).remove(&number);
            // The memory first: whoever waits for the file may be about to end the server.
            let (file, pooled) = (piece.file, piece.pooled);
            if let Some(job) = pooled {
                self.give(job, piece.memory);
            }
            file.done(result);
            if let Some(after) = after {
                after.wait();
            }
        }
    }
}
