//! Reads for the caller of a session: what is requested, and what is likely to be.
//!
//! How: a caller that reads pieces of one length, each beginning where the last one ended, is
//! likely to continue. What was read ahead for a caller that then requests something else, or
//! nothing, is dropped.
//!
//! Not here: the reading itself (`ahead.rs`).

use super::{Opened, PIECE_MOST, READ_QUIET, SIGN_OF_LIFE, Session};
use crate::server::ahead::{Ahead, PIECES};
use crate::server::intake::beginning;
use crate::server::quota::Held;
use orcheck_format::sabotage::{Switch, off};
use orcheck_format::wire::{PIECE_BYTES, Reply};
use orcheck_format::{Error, Result};
use orcheck_io::memory::Buffer;
use std::sync::Arc;
use std::time::Duration;

/// Callers that read less than this at a time get no read-ahead: it would cost as much as the
/// reading.
const AHEAD_LEAST: usize = 64 << 10;
/// How long data that was read ahead is kept for a caller that requests nothing.
const KEPT: Duration = Duration::from_secs(3);

/// A file that is being read.
pub(super) struct Reading {
    pub(super) file: Arc<Held>,
    len_bytes: u64,
    /// Where the last read ended, and its length.
    end: u64,
    len: usize,
    /// How many reads of that length began where the last one ended.
    followed: usize,
    ahead: Option<Ahead>,
}

impl Reading {
    pub(super) fn new(file: Arc<Held>, len_bytes: u64) -> Self {
        Self {
            file,
            len_bytes,
            end: u64::MAX,
            len: 0,
            followed: 0,
            ahead: None,
        }
    }

    /// Announces that this range is read soon, unless it is already being read.
    pub(super) fn will_need(&self, at: u64, len: u64) {
        if self.ahead.is_none() {
            self.file.will_need(at, len);
        }
    }
}

/// The source of memory that was read into.
enum Pool {
    Outgoing,
    Ahead,
}

impl Session {
    pub(super) fn read(&mut self, at: u64, len: u64) -> Result<()> {
        let Opened::Read(mut reading) = std::mem::replace(&mut self.opened, Opened::None) else {
            return Err(Error::invalid(
                "no file is open for reading on this connection",
            ));
        };
        let sent = self.read_from(&mut reading, at, len);
        self.opened = Opened::Read(reading);
        sent
    }

    fn read_from(&mut self, reading: &mut Reading, at: u64, len: u64) -> Result<()> {
        let len = usize::try_from(len.min(PIECE_BYTES + 1)).unwrap_or(usize::MAX);
        if len as u64 > PIECE_BYTES {
            return Err(Error::invalid(format!(
                "a read of more than {PIECE_BYTES} bytes"
            )));
        }
        self.shared.moved();
        let end = at.saturating_add(len as u64);
        // Breaks if: different lengths count; the planned piece would not be the requested one.
        let follows = reading.end == at && reading.len == len;
        (reading.end, reading.len) = (end, len);
        reading.followed = if follows { reading.followed + 1 } else { 0 };
        let (pool, mut piece, read) = match self.read_before(reading, at, len)? {
            Some((piece, read)) => (Pool::Ahead, piece, read),
            None => {
                let mut piece = self.room_to_read()?;
                let into = beginning(&mut piece, len);
                let read = into.and_then(|into| reading.file.read_at(into, at));
                (Pool::Outgoing, piece, read)
            }
        };
        if follows && len >= AHEAD_LEAST {
            self.plan_ahead(reading, len);
        }
        let sent = match read.and_then(|()| beginning(&mut piece, len)) {
            Ok(bytes) => self.conn.send_bulk(at, &[bytes], PIECE_MOST).map(|()| None),
            Err(error) => Ok(Some(error)),
        };
        self.give_back(&pool, piece);
        match sent {
            Ok(None) => Ok(()),
            Ok(Some(error)) => Err(error),
            // The connection is dead: the next step reports it.
            Err(_) => Ok(()),
        }
    }

    /// Takes memory to read into.
    fn room_to_read(&mut self) -> Result<Buffer> {
        let tenant = self.whose.tenant;
        let mut last = (self.shared.outgoing.returned(), self.shared.clock.now());
        loop {
            if let Some(piece) = self.shared.outgoing.take(tenant, self.job, SIGN_OF_LIFE) {
                return Ok(piece);
            }
            let (returned, now) = (self.shared.outgoing.returned(), self.shared.clock.now());
            // Breaks if: a fixed time has to do; where many callers restart at once, some would
            // take a server that is merely busy for one that has lost their files.
            if returned != last.0 && !off(Switch::ReadsWait) {
                last = (returned, now);
            }
            if now.saturating_sub(last.1) > READ_QUIET {
                return Err(Error::unavailable(format!(
                    "no memory to read into became free for {} s",
                    READ_QUIET.as_secs()
                ))
                .next("look for a disk that hangs, or give the server more --memory-mib"));
            }
            self.reply(Reply::Busy)?;
        }
    }

    /// The requested piece, if it was read ahead.
    fn read_before(
        &mut self,
        reading: &mut Reading,
        at: u64,
        len: usize,
    ) -> Result<Option<(Buffer, Result<()>)>> {
        let Some(ahead) = &mut reading.ahead else {
            return Ok(None);
        };
        if !ahead.is_next(at, len) {
            self.let_go(reading);
            return Ok(None);
        }
        loop {
            match ahead.next(SIGN_OF_LIFE) {
                Some(read) => return read.map(Some),
                None => self.reply(Reply::Busy)?,
            }
        }
    }

    /// Plans the next pieces, as far as there is memory.
    fn plan_ahead(&self, reading: &mut Reading, len: usize) {
        let (end, len_bytes) = (reading.end, reading.len_bytes);
        if reading.ahead.is_none() {
            // What is read once should not displace anything in the page cache. If this is refused,
            // it is read through the cache.
            if let Some(file) = Arc::get_mut(&mut reading.file) {
                file.bypass_cache();
            }
            // If there is no thread for it, the caller waits for each piece.
            reading.ahead = Ahead::start(&reading.file, &self.shared.slots).ok();
        }
        let Some(ahead) = &mut reading.ahead else {
            return;
        };
        let mut next = ahead.end().unwrap_or(end);
        // No further than it has read: if the caller stops, at most as much was read for nothing as
        // was of use.
        while ahead.count() < PIECES.min(reading.followed) && next < len_bytes {
            let tenant = self.whose.tenant;
            let Some(memory) = self.shared.ahead.take(tenant, self.job, Duration::ZERO) else {
                return;
            };
            let piece = (len as u64).min(len_bytes - next);
            ahead.plan(next, piece as usize, memory);
            next += piece;
        }
    }

    fn give_back(&self, pool: &Pool, piece: Buffer) {
        let pool = match pool {
            Pool::Outgoing => &self.shared.outgoing,
            Pool::Ahead => &self.shared.ahead,
        };
        pool.give(self.whose.tenant, self.job, piece);
    }

    /// Drops what was read ahead for a caller that requests nothing any more: others may need the
    /// memory.
    pub(super) fn release_idle(&mut self) {
        let idle = self.shared.clock.now().saturating_sub(self.asked) > KEPT;
        if !idle || !matches!(&self.opened, Opened::Read(reading) if reading.ahead.is_some()) {
            return;
        }
        if let Opened::Read(mut reading) = std::mem::replace(&mut self.opened, Opened::None) {
            self.let_go(&mut reading);
            self.opened = Opened::Read(reading);
        }
    }

    /// Drops what is read ahead; a caller that waits for something else is told that the server is
    /// alive.
    pub(super) fn let_go(&mut self, reading: &mut Reading) {
        let Some(ahead) = &mut reading.ahead else {
            return;
        };
        while ahead.end().is_some() {
            match ahead.next(SIGN_OF_LIFE) {
                Some(Ok((piece, _))) => self.give_back(&Pool::Ahead, piece),
                Some(Err(_)) => {}
                // A caller that is gone need not be told.
                None => drop(self.reply(Reply::Busy)),
            }
        }
    }
}
