//! Reads ahead, so that a caller that reads one piece after the other finds the next ones in
//! memory.
//!
//! How: a thread beside the session reads pieces in the order in which they were planned, bypassing
//! the page cache, into memory of the server, while the session sends those that are ready. Only a
//! few files are read at the same time, each for a run of pieces, so that the disk rarely has to
//! seek.
//!
//! Invariants:
//! 1. Memory is bounded: the memory for a piece is taken before it is planned.
//! 2. Pieces come in the order of the plan, each with its memory, wanted or not.
//! 3. The thread ends with the [`Ahead`] that started it.
//!
//! Survives: reads that fail (reported to the caller that requests that very piece). Not here: who
//! is likely to continue (`session/reading.rs`).

use crate::server::intake::beginning;
use crate::server::locked::guard;
use crate::server::quota::Held;
use orcheck_format::{Error, Result};
use orcheck_io::disk::File;
use orcheck_io::machine::thread;
use orcheck_io::memory::Buffer;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

/// Maximum number of pieces that are read ahead for one caller.
pub(crate) const PIECES: usize = 4;

/// Limits how many files are read at the same time.
pub(crate) struct Slots {
    free: Mutex<usize>,
    given: Condvar,
}

impl Slots {
    pub(crate) fn new(count: usize) -> Self {
        Self {
            free: Mutex::new(count),
            given: Condvar::new(),
        }
    }

    fn take(&self) -> Slot<'_> {
        let none = |free: &mut usize| *free == 0;
        let free = self.given.wait_while(guard(&self.free), none);
        *free.unwrap_or_else(PoisonError::into_inner) -= 1;
        Slot(self)
    }
}

struct Slot<'a>(&'a Slots);

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        *guard(&self.0.free) += 1;
        self.0.given.notify_one();
    }
}

/// A piece to read, and the memory for it.
struct Plan {
    at: u64,
    len: usize,
    memory: Buffer,
}

type Read = (Buffer, Result<()>);

/// What is read ahead of one file; see the module.
pub(crate) struct Ahead {
    plans: Option<mpsc::Sender<Plan>>,
    read: mpsc::Receiver<Read>,
    planned: VecDeque<(u64, usize)>,
    thread: Option<JoinHandle<()>>,
}

impl Ahead {
    /// Starts to read what is planned from a file.
    pub(crate) fn start(file: &Arc<Held>, slots: &Arc<Slots>) -> Result<Self> {
        let (file, slots) = (Arc::clone(file), Arc::clone(slots));
        let (plans, to_read) = mpsc::channel();
        let (tell, read) = mpsc::channel();
        let thread = thread::spawn("orcheck-ahead", move || {
            read_planned(&**file, &slots, &to_read, &tell);
        })?;
        Ok(Self {
            plans: Some(plans),
            read,
            planned: VecDeque::new(),
            thread: Some(thread),
        })
    }

    /// Where the plan ends, if there is one.
    pub(crate) fn end(&self) -> Option<u64> {
        self.planned.back().map(|(at, len)| at + *len as u64)
    }

    /// Number of planned pieces.
    pub(crate) fn count(&self) -> usize {
        self.planned.len()
    }

    /// Whether a piece is the next one.
    pub(crate) fn is_next(&self, at: u64, len: usize) -> bool {
        self.planned.front() == Some(&(at, len))
    }

    /// Plans a piece: reads it into `memory` when everything planned before is read.
    pub(crate) fn plan(&mut self, at: u64, len: usize, memory: Buffer) {
        self.planned.push_back((at, len));
        if let Some(plans) = &self.plans {
            // A thread that is gone is noticed when its pieces are waited for.
            let _ = plans.send(Plan { at, len, memory });
        }
    }

    /// The next piece, if it arrives within the time.
    pub(crate) fn next(&mut self, patience: Duration) -> Option<Result<Read>> {
        match self.read.recv_timeout(patience) {
            Ok(read) => {
                self.planned.pop_front();
                Some(Ok(read))
            }
            Err(mpsc::RecvTimeoutError::Timeout) => None,
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                self.planned.clear();
                Some(Err(Error::internal("the thread that reads ahead is gone")))
            }
        }
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        self.plans = None;
        if let Some(thread) = self.thread.take() {
            // Its file must be closed when the session says so.
            let _ = thread.join();
        }
    }
}

fn read_planned(
    file: &dyn File,
    slots: &Slots,
    plans: &mpsc::Receiver<Plan>,
    tell: &mpsc::Sender<Read>,
) {
    while let Ok(first) = plans.recv() {
        let _slot = slots.take();
        let mut next = Some(first);
        let mut run = 0;
        while let Some(mut plan) = next {
            let into = beginning(&mut plan.memory, plan.len);
            let read = into.and_then(|into| file.read_at(into, plan.at));
            if tell.send((plan.memory, read)).is_err() {
                return;
            }
            run += 1;
            // The rest of the plan waits for its next run.
            next = if run < PIECES {
                plans.try_recv().ok()
            } else {
                None
            };
        }
    }
}
