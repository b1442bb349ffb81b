//! Writes the pieces of one replica after the other on a thread, while the next ones arrive.
//!
//! How: whoever receives a piece gives its memory to the file ([`Incoming`]); a file that is not
//! being written goes to the thread with everything that waits for it, and comes back with the
//! result. Memory is aligned as direct I/O needs it, is used again for the next pieces, and is
//! released when no replica is on its way.
//!
//! Invariants
//! 1. Pieces of a file are written in the order in which they came, and a file is in one place:
//!    here, or with the thread.
//! 2. No more memory is in use than the owners were given credit for, and a piece for each
//!    connection.
//! 3. After an error, nothing more of that file is written.
//!
//! Survives: disks that are slow or fail. Not here: what is taken in (`protect.rs`), connections
//! (`keeper.rs`).

use crate::replicas::protect::{ConnSlot, PIECE_BYTES};
use orcheck_format::sabotage::{Switch, off};
use orcheck_format::{Crc64, Error, Result};
use orcheck_io::disk::File;
use orcheck_io::machine::thread::spawn;
use orcheck_io::memory::Buffer;
use orcheck_io::poll::Waker;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

/// As much as direct I/O can require.
const ALIGNMENT: usize = 4096;
/// Maximum number of pieces of memory that are kept for the next bytes.
const SPARE_MAX: usize = 8;
/// Maximum number of pieces of a file that are written before other files have their turn.
const PIECES_AT_ONCE: usize = 2;

/// Memory with bytes that arrived, or that will.
pub(super) struct Piece {
    memory: Buffer,
    len_bytes: usize,
}

impl Piece {
    pub(super) fn bytes(&self) -> &[u8] {
        self.memory.get(..self.len_bytes).unwrap_or_default()
    }

    pub(super) fn room(&mut self) -> &mut [u8] {
        self.memory.get_mut(..self.len_bytes).unwrap_or_default()
    }
}

/// Memory that is used again.
#[derive(Default)]
pub(super) struct Spare(Vec<Buffer>);

impl Spare {
    /// Memory for this many bytes.
    ///
    /// # Errors
    /// Invalid if no owner sends this many at once; NoSpace if there is no memory.
    pub(super) fn take(&mut self, len_bytes: usize) -> Result<Piece> {
        if len_bytes as u64 > PIECE_BYTES {
            return Err(Error::invalid(format!(
                "{len_bytes} bytes of a replica come at once: expected at most {PIECE_BYTES}"
            )));
        }
        // Breaks if: each has the largest size; many small ranks would take a hundred times the
        // memory of their bytes.
        let size = match len_bytes as u64 == PIECE_BYTES {
            true => len_bytes,
            false => len_bytes.max(1).next_multiple_of(ALIGNMENT),
        };
        let used = self.0.pop_if(|_| len_bytes as u64 == PIECE_BYTES);
        let memory = used.map_or_else(|| Buffer::try_zeroed(size, ALIGNMENT), Ok)?;
        Ok(Piece { memory, len_bytes })
    }

    pub(super) fn give(&mut self, piece: Piece) {
        if piece.memory.len() as u64 == PIECE_BYTES && self.0.len() < SPARE_MAX {
            self.0.push(piece.memory);
        }
    }

    pub(super) fn release(&mut self) {
        self.0.clear();
    }
}

/// A replica that is on its way.
pub(super) struct Incoming {
    /// None while the thread has it.
    pub(super) file: Option<Box<dyn File>>,
    /// Its name until it is whole, and its final name.
    pub(super) names: (String, String),
    pub(super) crc: Crc64,
    /// Distinguishes it from others that had the same place.
    number: u64,
    waiting: VecDeque<(u64, Piece)>,
    given_up: GivesUp,
}

/// Says, when dropped, that nothing more of a replica need be written.
#[derive(Default)]
struct GivesUp(Arc<AtomicBool>);

impl Drop for GivesUp {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

struct Job {
    place: ConnSlot,
    number: u64,
    file: Box<dyn File>,
    pieces: Vec<(u64, Piece)>,
    given_up: Arc<AtomicBool>,
}

/// What the thread did.
pub(super) struct Written {
    pub(super) place: ConnSlot,
    /// The number of bytes, or why they were not written.
    pub(super) result: Result<u64>,
    number: u64,
    file: Box<dyn File>,
    pieces: Vec<(u64, Piece)>,
}

/// The thread, which is started with the first piece.
pub(super) struct Writer {
    waker: Waker,
    thread: Option<(Sender<Job>, JoinHandle<()>)>,
    done: (Sender<Written>, Receiver<Written>),
    next_number: u64,
    ends: GivesUp,
}

impl Writer {
    /// `waker` is used when something was written.
    pub(super) fn new(waker: Waker) -> Self {
        Self {
            waker,
            thread: None,
            done: channel(),
            next_number: 0,
            ends: GivesUp::default(),
        }
    }

    pub(super) fn begin(&mut self, file: Box<dyn File>, names: (String, String)) -> Incoming {
        self.next_number += 1;
        Incoming {
            file: Some(file),
            names,
            crc: Crc64::new(),
            number: self.next_number,
            waiting: VecDeque::new(),
            given_up: GivesUp::default(),
        }
    }

    /// Takes a piece of a file.
    ///
    /// # Errors
    /// Unavailable if the system grants no thread.
    pub(super) fn write(
        &mut self,
        place: ConnSlot,
        one: &mut Incoming,
        at: u64,
        piece: Piece,
    ) -> Result<()> {
        one.crc.update(piece.bytes());
        one.waiting.push_back((at, piece));
        self.go_on(place, one)
    }

    /// The next thing that was written; memory that is free again goes to `spare`.
    ///
    /// # Errors
    /// Internal if the thread has ended, with the files that it had.
    pub(super) fn written(&mut self, spare: &mut Spare) -> Result<Option<Written>> {
        let Ok(mut written) = self.done.1.try_recv() else {
            return match &self.thread {
                Some((_, thread)) if thread.is_finished() => Err(ended()),
                _ => Ok(None),
            };
        };
        for (_, piece) in written.pieces.drain(..) {
            spare.give(piece);
        }
        Ok(Some(written))
    }

    /// Gives a file back to its replica, if that is still on its way, and writes what waits.
    /// `None`: it was given up meanwhile.
    ///
    /// # Errors
    /// That of the writing.
    pub(super) fn return_to(
        &mut self,
        one: Option<&mut Incoming>,
        written: Written,
    ) -> Result<Option<u64>> {
        let is_of = |one: &&mut Incoming| one.number == written.number || off(Switch::SlotAgain);
        let Some(one) = one.filter(is_of) else {
            return Ok(None);
        };
        one.file = Some(written.file);
        let bytes = written.result?;
        self.go_on(written.place, one)?;
        Ok(Some(bytes))
    }

    fn go_on(&mut self, place: ConnSlot, one: &mut Incoming) -> Result<()> {
        if one.waiting.is_empty() {
            return Ok(());
        }
        let Some(file) = one.file.take() else {
            return Ok(());
        };
        // Breaks if: it takes all that waits; other files would wait for the whole backlog of this
        // one, and their owners would see no progress.
        let count = one.waiting.len().min(PIECES_AT_ONCE);
        let job = Job {
            place,
            number: one.number,
            file,
            pieces: one.waiting.drain(..count).collect(),
            given_up: Arc::clone(&one.given_up.0),
        };
        if self.thread.is_none() {
            let (jobs, to_do) = channel();
            let (done, waker) = (self.done.0.clone(), self.waker.clone());
            let ends = Arc::clone(&self.ends.0);
            let write = move || write_all(&to_do, &done, &ends, &waker);
            self.thread = Some((jobs, spawn("orcheck-taker", write)?));
        }
        let sent = self.thread.as_ref().map(|(jobs, _)| jobs.send(job));
        match sent {
            Some(Ok(())) => Ok(()),
            _ => Err(ended()),
        }
    }
}

fn ended() -> Error {
    Error::internal("the thread that writes replicas has ended")
}

impl Drop for Writer {
    fn drop(&mut self) {
        if let Some((jobs, thread)) = self.thread.take() {
            // What waits belongs to replicas that nobody finishes any more.
            self.ends.0.store(true, Ordering::Release);
            drop(jobs);
            let _ = thread.join();
        }
    }
}

fn write_all(jobs: &Receiver<Job>, done: &Sender<Written>, ends: &AtomicBool, waker: &Waker) {
    while let Ok(job) = jobs.recv() {
        let mut result = Ok(0);
        for (at, piece) in &job.pieces {
            let before = match result {
                Ok(before) => before,
                Err(_) => break,
            };
            if ends.load(Ordering::Acquire) || job.given_up.load(Ordering::Acquire) {
                result = Err(Error::unavailable("the replica was given up"));
                break;
            }
            let bytes = piece.bytes();
            let written = job.file.write_at(bytes, *at);
            result = written.map(|()| before + bytes.len() as u64);
        }
        let written = Written {
            place: job.place,
            result,
            number: job.number,
            file: job.file,
            pieces: job.pieces,
        };
        if done.send(written).is_err() {
            return;
        }
        waker.wake();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Breaks if: a short piece takes the memory of the longest, or is kept for others.
    #[test]
    fn a_short_piece_takes_little_memory() {
        let mut spare = Spare::default();
        for len_bytes in [1, 4096, 5000] {
            let piece = spare.take(len_bytes).unwrap();
            assert_eq!(piece.memory.len(), len_bytes.next_multiple_of(ALIGNMENT));
            assert_eq!(piece.bytes().len(), len_bytes);
            spare.give(piece);
        }
        assert!(spare.0.is_empty());
        let whole = spare.take(PIECE_BYTES as usize).unwrap();
        spare.give(whole);
        assert_eq!(spare.take(4096).unwrap().memory.len(), 4096);
        assert_eq!(spare.0.len(), 1);
    }
}
