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
use orcheck_format::{Crc64, Error, Result};
use orcheck_io::disk::File;
use orcheck_io::machine::thread::spawn;
use orcheck_io::memory::Buffer;
use orcheck_io::poll::Waker;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

/// As much as direct I/O can require.
const ALIGNMENT: usize = 4096;
/// Maximum number of pieces of memory that are kept for the next bytes.
const SPARE_MAX: usize = 8;

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
        let memory = match self.0.pop() {
            Some(memory) => memory,
            None => Buffer::try_zeroed(PIECE_BYTES as usize, ALIGNMENT)?,
        };
        Ok(Piece { memory, len_bytes })
    }

    pub(super) fn give(&mut self, piece: Piece) {
        if self.0.len() < SPARE_MAX {
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
    waiting: Vec<(u64, Piece)>,
}

struct Job {
    place: ConnSlot,
    number: u64,
    file: Box<dyn File>,
    pieces: Vec<(u64, Piece)>,
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
}

impl Writer {
    /// `waker` is used when something was written.
    pub(super) fn new(waker: Waker) -> Self {
        Self {
            waker,
            thread: None,
            done: channel(),
            next_number: 0,
        }
    }

    pub(super) fn begin(&mut self, file: Box<dyn File>, names: (String, String)) -> Incoming {
        self.next_number += 1;
        Incoming {
            file: Some(file),
            names,
            crc: Crc64::new(),
            number: self.next_number,
            waiting: Vec::new(),
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
        one.waiting.push((at, piece));
        self.go_on(place, one)
    }

    /// The next thing that was written; memory that is free again goes to `spare`.
    pub(super) fn written(&mut self, spare: &mut Spare) -> Option<Written> {
        let mut written = self.done.1.try_recv().ok()?;
        for (_, piece) in written.pieces.drain(..) {
            spare.give(piece);
        }
        Some(written)
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
        let Some(one) = one.filter(|one| one.number == written.number) else {
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
        let job = Job {
            place,
            number: one.number,
            file,
            pieces: std::mem::take(&mut one.waiting),
        };
        if self.thread.is_none() {
            let (jobs, to_do) = channel();
            let (done, waker) = (self.done.0.clone(), self.waker.clone());
            let write = move || write_all(&to_do, &done, &waker);
            self.thread = Some((jobs, spawn("orcheck-taker", write)?));
        }
        let sent = self.thread.as_ref().map(|(jobs, _)| jobs.send(job));
        match sent {
            Some(Ok(())) => Ok(()),
            _ => Err(Error::internal("the thread that writes replicas has ended")),
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        if let Some((jobs, thread)) = self.thread.take() {
            drop(jobs);
            let _ = thread.join();
        }
    }
}

fn write_all(jobs: &Receiver<Job>, done: &Sender<Written>, waker: &Waker) {
    while let Ok(job) = jobs.recv() {
        let mut result = Ok(0);
        for (at, piece) in &job.pieces {
            let before = match result {
                Ok(before) => before,
                Err(_) => break,
            };
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
