//! Implements one file on a server.
//!
//! How: sequential writes travel in pieces of [`PIECE_BYTES`], however small the writes are,
//! because each piece costs the server a turn, memory and a write of its own. The rest of a write,
//! less than a piece, is copied and precedes the next one.
//!
//! Invariants
//! 1. No more than the server wants is in flight, except for the first bytes of a file.
//! 2. After a failed sync, or on a lost connection, every call is an error.
//! 3. A file that was only read returns its connection when it is dropped, one that was written
//!    when it is closed.
//! 4. No request about a file is sent before everything written to it is sent. Only the reservation
//!    of space may come first, because it is about later writes.
//! 5. Between two calls no answer is in flight: a caller that pauses occupies nothing of the
//!    server's.
//!
//! Not here: directories (`served.rs`), reading ahead (the server does it).

use super::{BUSY_TIMEOUT, Line, SILENCE, Server, TURN_TIMEOUT, guard};
use orcheck_format::sabotage::{Switch, off};
use orcheck_format::wire::{Ask, PIECE_BYTES, Reply};
use orcheck_format::{Error, Result};
use orcheck_io::clock::Deadline;
use orcheck_io::disk::{File, Lock, check_aligned, check_range};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// Maximum number of pieces of one read that are requested before the first of them is answered.
const AHEAD: usize = 2;

/// The connection of an open file, and what waits to be sent on it.
struct Held {
    line: Line,
    /// Bytes that were written but not sent; fewer than a piece.
    rest: Vec<u8>,
    /// Their offset.
    rest_at: u64,
    /// Whether writes are combined; otherwise each is sent as it is.
    gathers: bool,
}

impl Held {
    /// Takes a write; returns a refusal by the server, which a sync would otherwise return.
    fn write(&mut self, mut buf: &[u8], at: u64) -> Result<Option<Reply>> {
        if self.rest_at + self.rest.len() as u64 != at {
            if let Some(refused) = self.send_rest()? {
                return Ok(Some(refused));
            }
            self.rest_at = at;
        }
        while !buf.is_empty() {
            let room = PIECE_BYTES as usize - self.rest.len();
            if self.gathers && buf.len() < room {
                self.rest.extend_from_slice(buf);
                break;
            }
            let now;
            (now, buf) = buf.split_at(room.min(buf.len()));
            if let Some(refused) = self.send(now, buf.len())? {
                return Ok(Some(refused));
            }
        }
        Ok(None)
    }

    /// Sends the waiting bytes.
    fn send_rest(&mut self) -> Result<Option<Reply>> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        self.send(&[], 0)
    }

    /// Sends the waiting bytes and `now`, together at most a piece, once the server wants them;
    /// `more` bytes are about to follow.
    fn send(&mut self, now: &[u8], more: usize) -> Result<Option<Reply>> {
        let (line, rest) = (&mut self.line, &mut self.rest);
        let len = (rest.len() + now.len()) as u64;
        let mut timeout = BUSY_TIMEOUT;
        if len <= line.first_bytes {
            line.first_bytes -= len;
        } else {
            // What was wanted in one turn may wait for the next one.
            timeout = TURN_TIMEOUT;
            line.outlast_turns();
            // Breaks if: it is sent without being wanted; a server without room would take it in
            // all the same.
            if line.wanted == 0 && !off(Switch::StoreCredit) {
                line.send(Ask::Offer(len + more as u64))?;
                line.wait_wanted()?;
                if line.wanted == 0 {
                    return line.ask(Ask::Sync).map(Some);
                }
            }
            line.wanted = line.wanted.saturating_sub(1);
        }
        line.conn.send_bulk(self.rest_at, &[rest, now], timeout)?;
        rest.clear();
        self.rest_at += len;
        Ok(None)
    }

    /// Reads; returns the server's refusal, if any.
    fn read(&mut self, buf: &mut [u8], at: u64) -> Result<Option<Error>> {
        let end = at + buf.len() as u64;
        let mut to_ask = (at..end).step_by(PIECE_BYTES as usize);
        let mut asked: VecDeque<u64> = VecDeque::new();
        let mut failed = None;
        for part in buf.chunks_mut(PIECE_BYTES as usize) {
            while asked.len() < AHEAD
                && failed.is_none()
                && let Some(at) = to_ask.next()
            {
                self.line.send(Ask::Read(at, PIECE_BYTES.min(end - at)))?;
                asked.push_back(at);
            }
            // After an error, requests that follow it are answered too.
            let Some(at) = asked.pop_front() else { break };
            if let Some(error) = self.take(part, at)? {
                failed.get_or_insert(error);
            }
        }
        Ok(failed)
    }

    /// Takes the answer to a read.
    fn take(&mut self, into: &mut [u8], at: u64) -> Result<Option<Error>> {
        match self.line.answer(Deadline::after(BUSY_TIMEOUT))? {
            Err(coming) if coming == into.len() => {
                let conn = &mut self.line.conn;
                match conn.receive_bulk(into, SILENCE, BUSY_TIMEOUT)? {
                    from if from == at => Ok(None),
                    from => Err(self.line.strange(&from)),
                }
            }
            Ok(Reply::Failed(error)) => Ok(Some(error)),
            other => Err(self.line.strange(&other)),
        }
    }
}

pub(super) struct ServedFile {
    server: Arc<Server>,
    held: Mutex<Option<Held>>,
    path: String,
    /// Whether it bypasses the page cache there, and its alignment; `None` for a file that is read.
    written: Option<(bool, u64)>,
    lost: AtomicBool,
    locked: AtomicBool,
}

impl ServedFile {
    pub(super) fn new(
        server: &Arc<Server>,
        line: Line,
        path: String,
        written: Option<(bool, u64)>,
        gathers: bool,
    ) -> Self {
        let held = Held {
            line,
            rest: Vec::new(),
            rest_at: 0,
            gathers,
        };
        Self {
            server: Arc::clone(server),
            held: Mutex::new(Some(held)),
            path,
            written,
            lost: AtomicBool::new(false),
            locked: AtomicBool::new(false),
        }
    }

    /// Uses the connection, which is permanently lost if that fails.
    fn with<T>(&self, what: &str, work: impl FnOnce(&mut Held) -> Result<T>) -> Result<T> {
        if self.lost.load(Ordering::Acquire) {
            return Err(Error::unavailable(format!(
                "{}: a sync of this file failed before, so what was written to it is lost",
                self.path
            ))
            .next("write the data to a new file; check the server and its disk"));
        }
        let mut place = guard(&self.held);
        let Some(held) = place.as_mut() else {
            return Err(Error::unavailable(format!(
                "{what} {}: the connection to the server was lost before",
                self.path
            )));
        };
        work(held).map_err(|error| {
            *place = None;
            error.at(format!("{what} {}", self.path))
        })
    }

    /// Sends a request about the open file. A refusal by the server leaves the connection usable.
    fn ask(&self, what: &str, ask: Ask) -> Result<Vec<u64>> {
        let asked = self.with(what, |held| {
            // Space is reserved for later writes, so this need not wait for earlier ones.
            let refused = match ask {
                Ask::Allocate(_) => None,
                // Breaks if: it is left behind; a sync would cover bytes that never arrived.
                Ask::Sync if off(Switch::StoreRest) => None,
                _ => held.send_rest()?,
            };
            refused.map_or_else(|| held.line.ask(ask), Ok)
        });
        match asked? {
            Reply::Told(numbers) => Ok(numbers),
            Reply::Failed(error) => Err(error.at(format!("{what} {}", self.path))),
            other => Err(self.server.unexpected(&other)),
        }
    }
}

impl File for ServedFile {
    fn write_at(&self, buf: &[u8], at: u64) -> Result<()> {
        check_range("write", buf.len(), at, &self.path)?;
        let block = self
            .written
            .filter(|(direct, _)| *direct)
            .map_or(1, |(_, block)| block);
        check_aligned(buf.len(), at, block, &self.path)?;
        match self.with("write", |held| held.write(buf, at))? {
            None => Ok(()),
            Some(Reply::Failed(error)) => {
                self.lost.store(true, Ordering::Release);
                Err(error.at(format!("write {}", self.path)))
            }
            Some(other) => Err(self.server.unexpected(&other)),
        }
    }

    fn read_at(&self, buf: &mut [u8], at: u64) -> Result<()> {
        check_range("read", buf.len(), at, &self.path)?;
        match self.with("read", |held| held.read(buf, at))? {
            None => Ok(()),
            Some(error) => Err(error.at(format!("read {}", self.path))),
        }
    }

    fn will_need(&self, at: u64, len: u64) {
        // This is a hint; errors show up when the bytes are read.
        let _ = self.with("read", |held| held.line.send(Ask::Need(at, len)));
    }

    fn allocate(&self, len: u64) -> Result<()> {
        self.ask("allocate", Ask::Allocate(len)).map(drop)
    }

    fn truncate(&self, len: u64) -> Result<()> {
        self.ask("truncate", Ask::Truncate(len)).map(drop)
    }

    fn sync(&self) -> Result<()> {
        let synced = self.ask("sync", Ask::Sync);
        if synced.is_err() {
            self.lost.store(true, Ordering::Release);
        }
        synced.map(drop)
    }

    fn len_bytes(&self) -> Result<u64> {
        let told = self.ask("ask for the length of", Ask::Length)?;
        told.first()
            .copied()
            .ok_or_else(|| self.server.unexpected(&Reply::Told(told)))
    }

    fn is_direct(&self) -> bool {
        self.written.is_some_and(|(direct, _)| direct)
    }

    fn alignment_bytes(&self) -> u32 {
        let block = self.written.map_or(0, |(_, block)| block);
        u32::try_from(block).unwrap_or(4096).max(4096)
    }

    fn try_lock(&self) -> Result<bool> {
        let locked = self.ask("lock", Ask::Lock)?.first() == Some(&1);
        self.locked.fetch_or(locked, Ordering::AcqRel);
        Ok(locked)
    }

    fn give_lock(&self) -> Option<Lock> {
        if !self.locked.swap(false, Ordering::AcqRel) {
            return None;
        }
        let mut held = guard(&self.held).take()?;
        held.line.outlast_no_more();
        Some(Lock::attach(held.line.conn.detach().0))
    }

    fn close(self: Box<Self>) -> Result<()> {
        self.ask("close", Ask::Close)?;
        self.locked.store(false, Ordering::Release);
        if let Some(held) = guard(&self.held).take() {
            self.server.give(held.line);
        }
        Ok(())
    }

    fn name(&self) -> String {
        self.path.clone()
    }
}

impl Drop for ServedFile {
    fn drop(&mut self) {
        // A file that was written and not closed ends with its connection.
        let left = self.written.is_some() && !self.locked.load(Ordering::Acquire);
        if left || guard(&self.held).is_none() {
            return;
        }
        // A caller that drops a lock may take it again at once, so it must be released by then.
        // Also, a file that stays open keeps its space when it is removed.
        if self.ask("close", Ask::Close).is_ok()
            && let Some(held) = guard(&self.held).take()
        {
            self.server.give(held.line);
        }
    }
}

#[cfg(test)]
mod tests;
