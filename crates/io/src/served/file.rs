//! One file on a server.
//!
//! Invariants
//! 1. At most what the server wants is on the way, beyond the first bytes of a file.
//! 2. After a failed sync, or on a lost connection, every call is an error.
//! 3. A file that was only read gives its connection back when it is dropped; one that was written, when it is closed.
//!
//! Not here: directories (`served.rs`).

use super::{Line, SEND_TIMEOUT, Server, guard};
use crate::file::{File, Lock};
use orcheck_format::sabotage::{Switch, off};
use orcheck_format::store::PIECE_BYTES;
use orcheck_format::{Ask, Error, Reply, Result};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// Reads that are asked for before the first of them is answered.
const AHEAD: usize = 2;

pub(super) struct ServedFile {
    server: Arc<Server>,
    line: Mutex<Option<Line>>,
    path: String,
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
        written: Option<(bool, u64)>,
    ) -> Self {
        Self {
            server: Arc::clone(server),
            line: Mutex::new(Some(line)),
            path,
            written,
            lost: AtomicBool::new(false),
            locked: AtomicBool::new(false),
        }
    }

    /// Does something with the connection, which is gone for good when that fails.
    fn with<T>(&self, what: &str, work: impl FnOnce(&mut Line) -> Result<T>) -> Result<T> {
        if self.lost.load(Ordering::Acquire) {
            return Err(Error::unavailable(format!(
                "{}: a sync of this file failed before, so what was written to it is lost",
                self.path
            ))
            .next("write the data to a new file; check the server and its disk"));
        }
        let mut held = guard(&self.line);
        let Some(line) = held.as_mut() else {
            return Err(Error::unavailable(format!(
                "{what} {}: the connection to the server was lost before",
                self.path
            )));
        };
        work(line).map_err(|error| {
            *held = None;
            error.at(format!("{what} {}", self.path))
        })
    }

    /// Asks about the open file. What the server refuses leaves the connection as it is.
    fn ask(&self, what: &str, ask: Ask) -> Result<Vec<u64>> {
        match self.with(what, |line| line.ask(ask))? {
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

    fn read_pieces(&self, line: &mut Line, buf: &mut [u8], at: u64) -> Result<Option<Error>> {
        let pieces = buf.len().div_ceil(PIECE_BYTES as usize);
        let len_of = |index: usize| {
            let begin = index as u64 * PIECE_BYTES;
            (begin, PIECE_BYTES.min(buf.len() as u64 - begin))
        };
        let lens: Vec<(u64, u64)> = (0..pieces).map(len_of).collect();
        let mut asked = 0;
        for (index, &(begin, len)) in lens.iter().enumerate() {
            while asked < pieces.min(index + AHEAD) {
                let (begin, len) = lens[asked];
                line.send(Ask::Read(at + begin, len))?;
                asked += 1;
            }
            match line.answer()? {
                Err(coming) if coming as u64 == len => {
                    let begin = begin as usize;
                    let into = &mut buf[begin..begin + coming];
                    let from = line.conn.receive_bulk(into, super::ANSWER_TIMEOUT)?;
                    if from != at + begin as u64 {
                        return Err(line.strange(&from));
                    }
                }
                Ok(Reply::Failed(kind, text)) => {
                    // What was asked for behind it is answered too, and nobody wants it.
                    for _ in index + 1..asked {
                        match line.answer()? {
                            Err(coming) if coming as u64 <= PIECE_BYTES => {
                                let mut unwanted = vec![0; coming];
                                line.conn
                                    .receive_bulk(&mut unwanted, super::ANSWER_TIMEOUT)?;
                            }
                            Ok(Reply::Failed(..)) => {}
                            other => return Err(line.strange(&other)),
                        }
                    }
                    return Ok(Some(Error::new(kind, text)));
                }
                other => return Err(line.strange(&other)),
            }
        }
        Ok(None)
    }
}

impl File for ServedFile {
    fn write_at(&self, buf: &[u8], at: u64) -> Result<()> {
        if at
            .checked_add(buf.len() as u64)
            .is_none_or(|end| end > i64::MAX as u64)
        {
            return Err(Error::invalid(format!(
                "write {} bytes at offset {at} of {}: beyond any file",
                buf.len(),
                self.path
            )));
        }
        let block = self
            .written
            .filter(|(direct, _)| *direct)
            .map_or(1, |(_, block)| block);
        if !at.is_multiple_of(block) || !(buf.len() as u64).is_multiple_of(block) {
            return Err(Error::invalid(format!(
                "write {} bytes at offset {at} of {}: expected multiples of {block} bytes, as the file is \
                 written past the page cache",
                buf.len(),
                self.path
            )));
        }
        match self.with("write", |line| self.send_pieces(line, buf, at))? {
            None => Ok(()),
            Some(Reply::Failed(kind, text)) => {
                self.lost.store(true, Ordering::Release);
                Err(Error::new(kind, text).at(format!("write {}", self.path)))
            }
            Some(other) => Err(self.server.unexpected(&other)),
        }
    }

    fn read_at(&self, buf: &mut [u8], at: u64) -> Result<()> {
        match self.with("read", |line| self.read_pieces(line, buf, at))? {
            None => Ok(()),
            Some(error) => Err(error.at(format!("read {}", self.path))),
        }
    }

    fn will_need(&self, at: u64, len: u64) {
        // A hint: what goes wrong shows when it is read.
        let _ = self.with("read", |line| line.send(Ask::Need(at, len)));
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
        let line = guard(&self.line).take()?;
        Some(Lock::attach(line.conn.detach().0))
    }

    fn close(self: Box<Self>) -> Result<()> {
        self.ask("close", Ask::Close)?;
        self.locked.store(false, Ordering::Release);
        if let Some(line) = guard(&self.line).take() {
            self.server.give(line);
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
        if left || guard(&self.line).is_none() {
            return;
        }
        // Who drops a lock may take it again at once: it has to be open by then. And a file that stays open keeps its
        // space when it is removed.
        if self.ask("close", Ask::Close).is_ok()
            && let Some(line) = guard(&self.line).take()
        {
            self.server.give(line);
        }
    }
}
