//! What another node holds of the job, as a directory that can be read.
//!
//! How: every file is fetched piece by piece from the node's keeper (`keeper.rs`); the next piece is asked for while the
//! last is being used, so that a long read keeps the link busy. What comes is not believed: whoever reads proves it by
//! checksums, as from any directory.
//!
//! Invariants:
//! 1. Nothing is ever written or removed.
//! 2. Every wait has a deadline; after an error on the connection everything fails with it.
//!
//! Survives: a node that vanishes, stalls or sends other bytes than were asked for (an error names it). Not here: which
//! node is asked for what (`restore.rs`).

use orcheck_format::error::{Error, Result};
use orcheck_format::wire::Message;
use orcheck_io::conn::Conn;
use orcheck_io::dir::{Create, Dir, Entry};
use orcheck_io::file::File;
use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Bytes asked for at once.
const PIECE_BYTES: u64 = 4 << 20;
/// Pieces that are on the way.
const AHEAD: usize = 3;

/// The files of a node; see the module.
pub struct RemoteDir {
    path: PathBuf,
    link: Arc<Link>,
    files: Vec<Entry>,
}

struct Link {
    conn: Mutex<Asked>,
    node: String,
    timeout: Duration,
}

/// A connection, and the pieces that are on their way, in order.
struct Asked {
    conn: Conn,
    next_slot: u32,
    pieces: VecDeque<Piece>,
}

struct Piece {
    slot: u32,
    file: String,
    at_bytes: u64,
    len_bytes: u64,
}

impl RemoteDir {
    /// Asks the keeper at the other end of `conn`, which has been told who asks, what it holds.
    ///
    /// # Errors
    /// What the node says, or that it says nothing within `timeout`.
    pub fn open(node: &str, mut conn: Conn, timeout: Duration) -> Result<Arc<Self>> {
        let asked = conn
            .send(&Message::Look, timeout)
            .and_then(|()| conn.receive(timeout));
        let files = match asked.map_err(|error| error.at(format!("node '{node}'")))? {
            Message::Holding { files } => files,
            Message::Lost { kind, text, .. } => {
                return Err(Error::new(kind, text).at(format!("node '{node}'")));
            }
            other => return Err(strange(node, &other)),
        };
        let entry = |(name, len_bytes)| Entry {
            name,
            len_bytes,
            is_dir: false,
        };
        let conn = Mutex::new(Asked {
            conn,
            next_slot: 0,
            pieces: VecDeque::new(),
        });
        Ok(Arc::new(Self {
            path: PathBuf::from(format!("node {node}")),
            files: files.into_iter().map(entry).collect(),
            link: Arc::new(Link {
                conn,
                node: node.to_owned(),
                timeout,
            }),
        }))
    }

    fn refuse<T>(&self) -> Result<T> {
        Err(Error::unsupported(format!(
            "{}: the files of another node are only read",
            self.path.display()
        )))
    }
}

impl Dir for RemoteDir {
    fn path(&self) -> &Path {
        &self.path
    }

    fn open(&self, name: &str) -> Result<Box<dyn File>> {
        let Some(entry) = self.files.iter().find(|entry| entry.name == name) else {
            return Err(Error::not_found(format!(
                "{} does not hold {name}",
                self.path.display()
            )));
        };
        Ok(Box::new(RemoteFile {
            link: Arc::clone(&self.link),
            name: name.to_owned(),
            len_bytes: entry.len_bytes,
        }))
    }

    fn list(&self) -> Result<Vec<Entry>> {
        Ok(self.files.clone())
    }

    fn create(&self, _: &str, _: Create) -> Result<Box<dyn File>> {
        self.refuse()
    }

    fn rename(&self, _: &str, _: &str) -> Result<()> {
        self.refuse()
    }

    fn rename_new(&self, _: &str, _: &str) -> Result<()> {
        self.refuse()
    }

    fn remove(&self, _: &str) -> Result<()> {
        self.refuse()
    }

    fn sync(&self) -> Result<()> {
        self.refuse()
    }

    fn child(&self, _: &str, _: bool) -> Result<Arc<dyn Dir>> {
        self.refuse()
    }

    fn remove_child(&self, _: &str) -> Result<()> {
        self.refuse()
    }

    fn free_bytes(&self) -> Result<u64> {
        Ok(0)
    }

    fn read_only(&self) -> Result<bool> {
        Ok(true)
    }
}

struct RemoteFile {
    link: Arc<Link>,
    name: String,
    len_bytes: u64,
}

impl Link {
    fn asked(&self) -> MutexGuard<'_, Asked> {
        self.conn.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Asked {
    fn ask(&mut self, link: &Link, file: &str, at_bytes: u64, len_bytes: u64) -> Result<()> {
        let slot = self.next_slot;
        self.next_slot = slot.wrapping_add(1);
        let fetch = Message::Fetch {
            slot,
            file: file.to_owned(),
            at_bytes,
            len_bytes,
        };
        self.conn.send(&fetch, link.timeout)?;
        self.pieces.push_back(Piece {
            slot,
            file: file.to_owned(),
            at_bytes,
            len_bytes,
        });
        Ok(())
    }

    /// The oldest piece that is on its way.
    fn take(&mut self, link: &Link) -> Result<(Piece, Result<Vec<u8>>)> {
        let Some(piece) = self.pieces.pop_front() else {
            return Err(Error::internal("nothing is on its way"));
        };
        match self.conn.receive(link.timeout)? {
            Message::Data {
                slot,
                at_bytes,
                bytes,
            } if (slot, at_bytes) == (piece.slot, piece.at_bytes)
                && bytes.len() as u64 == piece.len_bytes =>
            {
                Ok((piece, Ok(bytes)))
            }
            Message::Lost { slot, kind, text } if slot == piece.slot => {
                Ok((piece, Err(Error::new(kind, text))))
            }
            other => Err(strange(&link.node, &other)),
        }
    }
}

/// What a keeper of this version does not say here.
fn strange(node: &str, message: &Message) -> Error {
    Error::corrupt(format!(
        "node '{node}' answered with a message of kind {} that was not asked for",
        message.kind()
    ))
}

impl RemoteFile {
    fn piece_at(&self, at: u64) -> u64 {
        PIECE_BYTES.min(self.len_bytes - at)
    }

    /// Reads up to the end of one piece, which is on its way or is asked for; how much.
    fn read_some(&self, buf: &mut [u8], at: u64) -> Result<usize> {
        let link = &self.link;
        let mut asked = link.asked();
        let begins = |piece: &Piece| piece.file == self.name && piece.at_bytes == at;
        // What was asked for ahead and is not wanted now is taken off the line.
        while asked.pieces.front().is_some_and(|piece| !begins(piece)) {
            drop(asked.take(link)?);
        }
        let in_order = buf.len() as u64 >= self.piece_at(at);
        let first = if in_order {
            self.piece_at(at)
        } else {
            buf.len() as u64
        };
        if asked.pieces.is_empty() {
            asked.ask(link, &self.name, at, first)?;
        }
        // Long reads go on: small ones are metadata, whose next one is elsewhere.
        while in_order && asked.pieces.len() < AHEAD {
            let Some(last) = asked.pieces.back() else {
                break;
            };
            let next = last.at_bytes + last.len_bytes;
            if next >= self.len_bytes || last.len_bytes < PIECE_BYTES {
                break;
            }
            let len = self.piece_at(next);
            asked.ask(link, &self.name, next, len)?;
        }
        let (_, bytes) = asked.take(link)?;
        let bytes = bytes?;
        let count = bytes.len().min(buf.len());
        buf[..count].copy_from_slice(&bytes[..count]);
        Ok(count)
    }
}

impl File for RemoteFile {
    fn read_at(&self, mut buf: &mut [u8], mut at: u64) -> Result<()> {
        let end = at.saturating_add(buf.len() as u64);
        if end > self.len_bytes {
            return Err(Error::corrupt(format!(
                "{}: expected {} bytes from {at} on, found {} in all",
                self.name(),
                buf.len(),
                self.len_bytes
            )));
        }
        while !buf.is_empty() {
            let count = self
                .read_some(buf, at)
                .map_err(|error| error.at(self.name()))?;
            if count == 0 {
                return Err(Error::corrupt(format!("{}: no bytes came", self.name())));
            }
            buf = &mut buf[count..];
            at += count as u64;
        }
        Ok(())
    }

    fn write_at(&self, _: &[u8], _: u64) -> Result<()> {
        self.refuse()
    }

    fn allocate(&self, _: u64) -> Result<()> {
        self.refuse()
    }

    fn truncate(&self, _: u64) -> Result<()> {
        self.refuse()
    }

    fn sync(&self) -> Result<()> {
        self.refuse()
    }

    fn len_bytes(&self) -> Result<u64> {
        Ok(self.len_bytes)
    }

    fn is_direct(&self) -> bool {
        false
    }

    fn alignment_bytes(&self) -> u32 {
        4096
    }

    fn try_lock(&self) -> Result<bool> {
        // A claim of another node locks that node's directory, not this one.
        Ok(true)
    }

    fn close(self: Box<Self>) -> Result<()> {
        Ok(())
    }

    fn name(&self) -> String {
        format!("node {}/{}", self.link.node, self.name)
    }
}

impl RemoteFile {
    fn refuse(&self) -> Result<()> {
        Err(Error::unsupported(format!("{} is only read", self.name())))
    }
}
