//! One connection: what it asks is done, in order; what it sends is taken in when its turn comes.
//!
//! How: a thread waits for the connection and for its turn (`Port`). At most one file is open. What takes long is done
//! beside it, while the caller is told every second that the server lives.
//!
//! Invariants:
//! 1. Nothing is reached but what lies below the caller's own directory.
//! 2. An answer that something is durable comes after the sync of it, and of everything that came before.
//! 3. Bytes that were not wanted, beyond the first of a file, end the connection.
//!
//! Survives: callers that vanish, stall or do not keep to what was agreed: their connection ends, and with it their file
//! and its lock. Not here: who has a turn (`pull.rs`), writing (`intake.rs`).

use crate::Shared;
use crate::intake::{Incoming, Piece, small_piece};
use orcheck_format::sabotage::{Switch, off};
use orcheck_format::store::{FIRST_BYTES, PIECE_BYTES};
use orcheck_format::{Ask, Error, Message, Reply, Result, StoreDir, StoreMessage};
use orcheck_io::conn::Received;
use orcheck_io::{Conn, Create, Dir, File, Poller, Waker, thread};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

/// Longest wait for bytes that have begun to come, and for room to send an answer.
const FRAME_TIMEOUT: Duration = Duration::from_secs(60);
/// How often a caller who waits is told that the server lives.
const SIGN_OF_LIFE: Duration = Duration::from_secs(1);

/// How a session is told that it may take more.
pub(crate) struct Port {
    wanted: AtomicU32,
    waker: Waker,
}

impl Port {
    pub(crate) fn grant(&self, pieces: u32) {
        self.wanted.fetch_add(pieces, Ordering::AcqRel);
        self.waker.wake();
    }

    pub(crate) fn wake(&self) {
        self.waker.wake();
    }
}

/// The file of a connection.
enum Opened {
    None,
    Read(Box<dyn File>),
    Written {
        incoming: Arc<Incoming>,
        /// Bytes that may come without being wanted.
        first_bytes: u64,
        came_bytes: u64,
    },
}

pub(crate) struct Session {
    id: u64,
    conn: Conn,
    shared: Arc<Shared>,
    /// What belongs to the caller, and which job of it: for fairness.
    root: Arc<dyn Dir>,
    job: u64,
    opened: Opened,
    poller: Poller,
    port: Arc<Port>,
}

impl Session {
    pub(crate) fn new(
        id: u64,
        conn: Conn,
        shared: &Arc<Shared>,
        root: Arc<dyn Dir>,
        job: u64,
    ) -> Result<(Self, Arc<Port>)> {
        let poller = Poller::new()?;
        let port = Arc::new(Port {
            wanted: AtomicU32::new(0),
            waker: poller.waker(),
        });
        let session = Self {
            id,
            conn,
            shared: Arc::clone(shared),
            root,
            job,
            opened: Opened::None,
            poller,
            port: Arc::clone(&port),
        };
        Ok((session, port))
    }

    /// Serves the connection until it ends.
    pub(crate) fn run(mut self) {
        while !self.shared.is_stopping() && self.step().is_ok() {}
        self.opened = Opened::None;
        self.shared.pull(|pull, now| pull.ended(now, self.id));
        self.shared.leave(self.id);
    }

    fn step(&mut self) -> Result<()> {
        let wanted = self.port.wanted.swap(0, Ordering::AcqRel);
        if wanted > 0 {
            self.reply(Reply::Want(wanted))?;
        }
        match self.conn.try_receive_any()? {
            Some(Received::Bytes(len)) => self.take_in(len),
            Some(Received::Message(Message::Store(StoreMessage::Ask(ask)))) => self.answer(ask),
            Some(Received::Message(other)) => {
                let error = Error::corrupt(format!("expected a request, found {other:?}"));
                Err(self.conn.give_up(error))
            }
            None => self.wait(),
        }
    }

    fn wait(&mut self) -> Result<()> {
        let woken = self.poller.wait(&[self.conn.as_fd()], SIGN_OF_LIFE)?;
        if woken.is_empty() && self.shared.look(|pull| pull.waits(self.id)) {
            self.reply(Reply::Busy)?;
        }
        Ok(())
    }

    fn reply(&mut self, reply: Reply) -> Result<()> {
        let message = Message::Store(StoreMessage::Reply(reply));
        self.conn.send(&message, FRAME_TIMEOUT)
    }

    // ---- bytes that come -----------------------------------------------------------------------

    fn take_in(&mut self, len: usize) -> Result<()> {
        let Opened::Written {
            incoming,
            first_bytes,
            came_bytes,
        } = &mut self.opened
        else {
            let error = Error::invalid("bytes came, and no file is being written");
            return Err(self.conn.give_up(error));
        };
        let incoming = Arc::clone(incoming);
        *came_bytes += len as u64;
        let pooled = len as u64 > *first_bytes;
        let mut memory = if pooled {
            let may = len as u64 <= PIECE_BYTES
                && (self.shared.begins(self.id) || off(Switch::StoreCredit));
            if !may {
                let error = Error::invalid(format!("{len} bytes came that were not wanted"));
                return Err(self.conn.give_up(error));
            }
            let memory = self.shared.intake().take(FRAME_TIMEOUT);
            memory.ok_or_else(|| {
                self.shared.pull(|pull, now| pull.freed(now));
                let error = "no memory was free within a minute: the disk does not take what comes";
                self.conn.give_up(Error::unavailable(error))
            })?
        } else {
            *first_bytes -= len as u64;
            small_piece(len)
        };
        match self.conn.receive_bulk(&mut memory[..len], FRAME_TIMEOUT) {
            Ok(at) => {
                self.shared.intake().write(Piece {
                    file: incoming,
                    memory,
                    len,
                    at,
                    pooled,
                });
                if pooled {
                    self.shared
                        .pull(|pull, now| pull.arrived(now, self.id, len as u64));
                }
                Ok(())
            }
            Err(error) => {
                if pooled {
                    self.shared.intake().give(memory);
                }
                Err(error)
            }
        }
    }

    // ---- what is asked -------------------------------------------------------------------------

    fn answer(&mut self, ask: Ask) -> Result<()> {
        let reply = match ask {
            Ask::Offer(bytes) => return self.offered(bytes),
            Ask::Need(at, len) => {
                if let Opened::Read(file) = &self.opened {
                    file.will_need(at, len);
                }
                return Ok(());
            }
            Ask::Read(at, len) => match self.read(at, len) {
                Ok(()) => return Ok(()),
                Err(error) => Err(error),
            },
            Ask::List(dir) => self.dir(&dir).and_then(|dir| dir.list()).map(|entries| {
                let entries = entries.into_iter();
                Reply::Names(
                    entries
                        .map(|one| (one.name, one.len_bytes, one.is_dir))
                        .collect(),
                )
            }),
            Ask::Begin => Ok(Reply::Told(vec![self.shared.instance])),
            other => self.about_names(other).map(Reply::Told),
        };
        match reply {
            Ok(reply) => self.reply(reply),
            Err(error) => self.reply(Reply::Failed(error.kind(), error.message().to_owned())),
        }
    }

    fn offered(&mut self, bytes: u64) -> Result<()> {
        match &self.opened {
            Opened::Written { incoming, .. } if !incoming.has_failed() => {
                let job = self.job;
                self.shared
                    .pull(|pull, now| pull.offer(now, self.id, job, bytes));
                Ok(())
            }
            // There is something to tell first.
            _ => self.reply(Reply::Want(0)),
        }
    }

    /// The directory below what belongs to the caller.
    fn dir(&self, path: &StoreDir) -> Result<Arc<dyn Dir>> {
        let mut dir = Arc::clone(&self.root);
        for name in path.names() {
            dir = dir.child(name, false)?;
        }
        Ok(dir)
    }

    /// Does what takes long beside this thread, and says meanwhile that the server lives.
    fn patiently<T: Send>(&mut self, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        let conn = &mut self.conn;
        std::thread::scope(|scope| {
            let (tell, told) = mpsc::channel();
            let worker = thread::spawn_scoped(scope, "orcheck-sync", move || {
                // Nobody listens when the session is over.
                let _ = tell.send(work());
            })?;
            loop {
                match told.recv_timeout(SIGN_OF_LIFE) {
                    Ok(result) => return result,
                    Err(mpsc::RecvTimeoutError::Timeout) => {
                        let busy = Message::Store(StoreMessage::Reply(Reply::Busy));
                        conn.send(&busy, FRAME_TIMEOUT)?;
                    }
                    Err(mpsc::RecvTimeoutError::Disconnected) => break,
                }
            }
            // The scope waits for it.
            drop(worker);
            Err(Error::internal("what was asked panicked in the server"))
        })
    }

    fn about_names(&mut self, ask: Ask) -> Result<Vec<u64>> {
        let flag = |yes: bool| vec![u64::from(yes)];
        match ask {
            Ask::Holds(dir, name) => self.dir(&dir)?.holds(&name).map(flag),
            Ask::Open(dir, name) => {
                self.close_quietly();
                let file = self.dir(&dir)?.open(&name)?;
                let len = file.len_bytes()?;
                self.opened = Opened::Read(file);
                Ok(vec![len])
            }
            Ask::Create(dir, name, direct) => {
                self.close_quietly();
                let how = if direct {
                    Create::Direct
                } else {
                    Create::Buffered
                };
                let file = self.dir(&dir)?.create(&name, how)?;
                let told = vec![u64::from(file.is_direct()), file.alignment_bytes().into()];
                self.opened = Opened::Written {
                    incoming: Incoming::new(self.shared.next_file(), file),
                    first_bytes: FIRST_BYTES,
                    came_bytes: 0,
                };
                Ok(told)
            }
            Ask::Rename(dir, from, to) => self.dir(&dir)?.rename(&from, &to).map(|()| vec![]),
            Ask::RenameNew(dir, from, to) => {
                self.dir(&dir)?.rename_new(&from, &to).map(|()| vec![])
            }
            Ask::Remove(dir, name) => self.dir(&dir)?.remove(&name).map(|()| vec![]),
            Ask::SyncNames(dir) => {
                let dir = self.dir(&dir)?;
                self.patiently(|| dir.sync()).map(|()| vec![])
            }
            Ask::Child(dir, create) => {
                let mut at = Arc::clone(&self.root);
                let names: Vec<&str> = dir.names().collect();
                for (index, name) in names.iter().enumerate() {
                    at = at.child(name, create && index + 1 == names.len())?;
                }
                Ok(vec![])
            }
            Ask::RemoveChild(dir, name) => self.dir(&dir)?.remove_child(&name).map(|()| vec![]),
            Ask::Facts(dir) => {
                let dir = self.dir(&dir)?;
                Ok(vec![dir.free_bytes()?, u64::from(dir.read_only()?)])
            }
            about_file => self.about_file(about_file),
        }
    }

    fn about_file(&mut self, ask: Ask) -> Result<Vec<u64>> {
        match std::mem::replace(&mut self.opened, Opened::None) {
            Opened::None => Err(Error::invalid("no file is open on this connection")),
            Opened::Read(file) => {
                let told = match ask {
                    Ask::Length => file.len_bytes().map(|len| vec![len]),
                    Ask::Lock => file.try_lock().map(|locked| vec![u64::from(locked)]),
                    Ask::Sync => file.sync().map(|()| vec![]),
                    Ask::Close => return file.close().map(|()| vec![]),
                    other => Err(Error::invalid(format!("{other:?} of a file that is read"))),
                };
                self.opened = Opened::Read(file);
                told
            }
            Opened::Written {
                incoming,
                first_bytes,
                came_bytes,
            } => {
                let told = self.about_written(&incoming, &ask, came_bytes);
                if ask == Ask::Close {
                    drop(incoming);
                    return told;
                }
                self.opened = Opened::Written {
                    incoming,
                    first_bytes,
                    came_bytes,
                };
                told
            }
        }
    }

    fn about_written(
        &mut self,
        incoming: &Arc<Incoming>,
        ask: &Ask,
        came_bytes: u64,
    ) -> Result<Vec<u64>> {
        if matches!(ask, Ask::Truncate(_) | Ask::Sync | Ask::Close) {
            self.shared.pull(|pull, now| pull.pauses(now, self.id));
        }
        let file = &incoming.file;
        let told = self.patiently(|| {
            incoming.settle()?;
            match *ask {
                Ask::Allocate(len) => file.allocate(len).map(|()| vec![]),
                Ask::Truncate(len) => file.truncate(len).map(|()| vec![]),
                Ask::Sync => file.sync().map(|()| vec![came_bytes]),
                Ask::Length => file.len_bytes().map(|len| vec![len]),
                Ask::Lock => file.try_lock().map(|locked| vec![u64::from(locked)]),
                Ask::Close => Ok(vec![]),
                _ => Err(Error::invalid(format!("{ask:?} of a file that is written"))),
            }
        })?;
        if let Ask::Allocate(len) = *ask {
            // It is going to be so long: the first pieces are wanted before they are offered.
            let job = self.job;
            self.shared
                .pull(|pull, now| pull.offer(now, self.id, job, len));
        }
        Ok(told)
    }

    fn close_quietly(&mut self) {
        if let Opened::Written { incoming, .. } = std::mem::replace(&mut self.opened, Opened::None)
        {
            self.shared.pull(|pull, now| pull.pauses(now, self.id));
            // Nobody asked whether it went well.
            let _ = incoming.settle();
        }
    }

    fn read(&mut self, at: u64, len: u64) -> Result<()> {
        let Opened::Read(file) = &self.opened else {
            return Err(Error::invalid(
                "no file is open for reading on this connection",
            ));
        };
        let len = usize::try_from(len.min(PIECE_BYTES + 1)).unwrap_or(usize::MAX);
        if len as u64 > PIECE_BYTES {
            return Err(Error::invalid(format!(
                "a read of more than {PIECE_BYTES} bytes"
            )));
        }
        let Some(mut piece) = self.shared.outgoing.take(FRAME_TIMEOUT) else {
            return Err(Error::unavailable(
                "no memory to read into was free within a minute",
            ));
        };
        let sent = match file.read_at(&mut piece[..len], at) {
            Ok(()) => self
                .conn
                .send_bulk(at, &piece[..len], FRAME_TIMEOUT)
                .map(|()| None),
            Err(error) => Ok(Some(error)),
        };
        self.shared.outgoing.give(piece);
        match sent {
            Ok(None) => Ok(()),
            Ok(Some(error)) => Err(error),
            // The connection is dead: the next step says so.
            Err(_) => Ok(()),
        }
    }
}
