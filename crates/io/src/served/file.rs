//! One file on a server.
//!
//! Invariants
//! 1. At most what the server wants is on the way, beyond the first bytes of a file.
//! 2. After a failed sync, or on a lost connection, every call is an error.
//! 3. A file that was only read gives its connection back when it is dropped; one that was written, when it is closed.
//! 4. Answers come in the order of the questions: what was asked for ahead is taken, or let go, before anything else.
//!
//! How a reader gets on: who reads one piece after the other is likely to go on so, in pieces as long; the next ones are
//! asked for before the caller has looked at this one, and come straight into its memory if it does want them.
//!
//! Not here: directories (`served.rs`).

use super::{Line, SEND_TIMEOUT, Server, guard};
use crate::file::{File, Lock, check_aligned, check_range};
use orcheck_format::sabotage::{Switch, off};
use orcheck_format::store::PIECE_BYTES;
use orcheck_format::{Ask, Error, Reply, Result};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// Reads that are asked for before the first of them is answered, at most: one comes, one is read, one is looked at.
const AHEAD: usize = 3;

/// The connection of an open file, and what was asked for on it.
struct Held {
    line: Line,
    /// Pieces (offset, length) that were asked for, with the oldest first, and are not answered yet.
    asked: VecDeque<(u64, u64)>,
    /// Where the last read ended, and how many before it began where another ended.
    end: u64,
    followed: usize,
}

impl Held {
    fn ask_for(&mut self, at: u64, len: u64) -> Result<()> {
        self.line.send(Ask::Read(at, len))?;
        self.asked.push_back((at, len));
        Ok(())
    }

    /// Takes what was asked for and is not wanted.
    fn let_go(&mut self) -> Result<()> {
        let mut unwanted = Vec::new();
        while self.asked.pop_front().is_some() {
            match self.line.answer()? {
                Err(coming) if coming as u64 <= PIECE_BYTES => {
                    unwanted.resize(coming, 0);
                    self.line
                        .conn
                        .receive_bulk(&mut unwanted, super::ANSWER_TIMEOUT)?;
                }
                Ok(Reply::Failed(..)) => {}
                other => return Err(self.line.strange(&other)),
            }
        }
        Ok(())
    }

    /// Takes the piece that was asked for first.
    fn take(&mut self, into: &mut [u8], at: u64) -> Result<Option<Error>> {
        self.asked.pop_front();
        match self.line.answer()? {
            Err(coming) if coming == into.len() => {
                match self.line.conn.receive_bulk(into, super::ANSWER_TIMEOUT)? {
                    from if from == at => Ok(None),
                    from => Err(self.line.strange(&from)),
                }
            }
            Ok(Reply::Failed(kind, text)) => Ok(Some(Error::new(kind, text))),
            other => Err(self.line.strange(&other)),
        }
    }
}

pub(super) struct ServedFile {
    server: Arc<Server>,
    held: Mutex<Option<Held>>,
    path: String,
    /// Its length when it was opened: nothing is asked for ahead beyond it.
    len: u64,
    /// Whether it is past the page cache there, and its alignment; `None` for one that is read.
    written: Option<(bool, u64)>,
    lost: AtomicBool,
    locked: AtomicBool,
}

impl ServedFile {
    pub(super) fn new(
        server: &Arc<Server>,
        line: Line,
        path: String,
        len: u64,
        written: Option<(bool, u64)>,
    ) -> Self {
        let held = Held {
            line,
            asked: VecDeque::new(),
            end: u64::MAX,
            followed: 0,
        };
        Self {
            server: Arc::clone(server),
            held: Mutex::new(Some(held)),
            path,
            len,
            written,
            lost: AtomicBool::new(false),
            locked: AtomicBool::new(false),
        }
    }

    /// Does something with the connection, which is gone for good when that fails.
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

    /// Asks about the open file. What the server refuses leaves the connection as it is.
    fn ask(&self, what: &str, ask: Ask) -> Result<Vec<u64>> {
        let asked = self.with(what, |held| {
            held.let_go()?;
            held.line.ask(ask)
        });
        match asked? {
            Reply::Told(numbers) => Ok(numbers),
            Reply::Failed(kind, text) => {
                Err(Error::new(kind, text).at(format!("{what} {}", self.path)))
            }
            other => Err(self.server.unexpected(&other)),
        }
    }

    fn send_pieces(&self, line: &mut Line, buf: &[u8], at: u64) -> Result<Option<Reply>> {
        let mut left = buf.len() as u64;
        let mut at = at;
        for piece in buf.chunks(PIECE_BYTES as usize) {
            let len = piece.len() as u64;
            if len <= line.first_bytes {
                line.first_bytes -= len;
            } else {
                // Breaks if: it is sent without being wanted; a server that has no room would take it in all the same.
                if line.wanted == 0 && !off(Switch::StoreCredit) {
                    line.send(Ask::Offer(left))?;
                    line.wait_wanted()?;
                    if line.wanted == 0 {
                        return line.ask(Ask::Sync).map(Some);
                    }
                }
                line.wanted = line.wanted.saturating_sub(1);
            }
            line.conn.send_bulk(at, piece, SEND_TIMEOUT)?;
            at += len;
            left -= len;
        }
        Ok(None)
    }

    fn read_pieces(&self, held: &mut Held, buf: &mut [u8], at: u64) -> Result<Option<Error>> {
        if buf.is_empty() {
            return Ok(None);
        }
        let end = at + buf.len() as u64;
        // No further ahead than it has come: who stops has not asked for more in vain than for good.
        held.followed = if held.end == at { held.followed + 1 } else { 0 };
        let piece = PIECE_BYTES.min(buf.len() as u64);
        // This read, and where that is how it has been going on, the next ones.
        let last = self.len.max(end);
        let wanted = (at..end).step_by(PIECE_BYTES as usize);
        let wanted = wanted.map(|at| (at, PIECE_BYTES.min(end - at)));
        let ahead = (end..last).step_by(piece as usize);
        let ahead = ahead.take(AHEAD.min(held.followed));
        let ahead = ahead.map(|at| (at, piece.min(last - at)));
        let plan: Vec<(u64, u64)> = wanted.chain(ahead).collect();
        if !held.asked.iter().eq(plan.iter().take(held.asked.len())) {
            held.let_go()?;
        }
        let mut plan = plan[held.asked.len().min(plan.len())..].iter();
        for (index, part) in buf.chunks_mut(PIECE_BYTES as usize).enumerate() {
            while held.asked.len() < AHEAD
                && let Some(&(at, len)) = plan.next()
            {
                held.ask_for(at, len)?;
            }
            let from = at + index as u64 * PIECE_BYTES;
            if let Some(error) = held.take(part, from)? {
                held.let_go()?;
                return Ok(Some(error));
            }
        }
        held.end = end;
        Ok(None)
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
        match self.with("write", |held| self.send_pieces(&mut held.line, buf, at))? {
            None => Ok(()),
            Some(Reply::Failed(kind, text)) => {
                self.lost.store(true, Ordering::Release);
                Err(Error::new(kind, text).at(format!("write {}", self.path)))
            }
            Some(other) => Err(self.server.unexpected(&other)),
        }
    }

    fn read_at(&self, buf: &mut [u8], at: u64) -> Result<()> {
        check_range("read", buf.len(), at, &self.path)?;
        match self.with("read", |held| self.read_pieces(held, buf, at))? {
            None => Ok(()),
            Some(error) => Err(error.at(format!("read {}", self.path))),
        }
    }

    fn will_need(&self, at: u64, len: u64) {
        // A hint: what goes wrong shows when it is read.
        let _ = self.with("read", |held| {
            // Who reads on has the server read ahead anyway.
            if held.asked.is_empty() {
                held.line.send(Ask::Need(at, len))?;
            }
            Ok(())
        });
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
        let locked = self.ask("lock", Ask::Lock)? == [1];
        self.locked.fetch_or(locked, Ordering::AcqRel);
        Ok(locked)
    }

    fn give_lock(&self) -> Option<Lock> {
        if !self.locked.swap(false, Ordering::AcqRel) {
            return None;
        }
        let held = guard(&self.held).take()?;
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
        // What was written and not closed ends with its connection.
        let left = self.written.is_some() && !self.locked.load(Ordering::Acquire);
        if left || guard(&self.held).is_none() {
            return;
        }
        // Who drops a lock may take it again at once: it has to be open by then. And a file that stays open keeps its
        // space when it is removed.
        if self.ask("close", Ask::Close).is_ok()
            && let Some(held) = guard(&self.held).take()
        {
            self.server.give(held.line);
        }
    }
}
