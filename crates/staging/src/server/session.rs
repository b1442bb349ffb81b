//! Serves one connection: carries out its requests in order, and takes in its data when its turn
//! comes.
//!
//! How: a thread waits for the connection and for its turn (`Port`). At most one file is open. Long
//! work, unless it is a read or write of a single block, is done by another thread, while the
//! caller is told every second that the server is alive.
//!
//! Invariants:
//! 1. Nothing is reachable outside the caller's own directory.
//! 2. An answer that something is durable follows the sync of it and of everything that came
//!    before.
//! 3. Bytes that were not wanted, beyond the first of a file, end the connection.
//!
//! Survives: callers that vanish, stall or violate the protocol: their connection ends, and with it
//! their file and its lock. Not here: who has a turn (`pull.rs`), writing (`intake.rs`), reading
//! (`session/reading.rs`).

mod reading;

use crate::server::intake::{Incoming, Piece, beginning, small_piece};
use crate::server::pull::{Begins, Pull};
use crate::server::quota::Account;
use crate::server::{Order, Shared};
use orcheck_format::sabotage::{Switch, off};
use orcheck_format::wire::{
    Ask, Disk, FIRST_BYTES, Message, PIECE_BYTES, Reply, StoreDir, StoreMessage, Versions,
};
use orcheck_format::{Error, ErrorKind, Result};
use orcheck_io::disk::{Create, Dir};
use orcheck_io::machine::thread;
use orcheck_io::memory::Buffer;
use orcheck_io::poll::{Poller, Waker};
use orcheck_net::{Conn, Received};
use reading::Reading;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

/// Longest wait for more of a piece that has begun to arrive, because it occupies memory.
const PIECE_QUIET: Duration = Duration::from_secs(10);
/// Longest wait for all of it, and for a caller to take one.
const PIECE_MOST: Duration = Duration::from_secs(60);
/// Longest wait for room to send, and for memory that was promised.
const FRAME_TIMEOUT: Duration = Duration::from_secs(30);
/// Longest wait for memory to read into while nobody returns any: a caller that takes what it asked
/// for slowly has it for `PIECE_MOST`.
const READ_QUIET: Duration = Duration::from_secs(90);
/// A connection without a file and without requests ends after this time; callers do not keep
/// theirs that long.
const IDLE_TIME: Duration = Duration::from_secs(20);
/// Number of small pieces of a file that may wait for the disk.
const SMALL_MAX: usize = 16;
/// Number of pieces wanted from a caller that need not wait for a turn.
const WITHOUT_BOUND: u32 = 1 << 24;
/// How often a waiting caller is told that the server is alive.
const SIGN_OF_LIFE: Duration = Duration::from_secs(1);

/// How a session learns that it may take more.
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
    Read(Reading),
    Written {
        incoming: Arc<Incoming>,
        /// Bytes that may come without being wanted.
        first_bytes: u64,
        came_bytes: u64,
    },
}

/// What belongs to a caller.
pub(crate) struct Tenancy {
    pub(crate) root: Arc<dyn Dir>,
    pub(crate) account: Arc<Account>,
    /// The number of the tenant.
    pub(crate) tenant: u64,
    /// The disk that holds all of this.
    pub(crate) disk: Disk,
}

pub(crate) struct Session {
    id: u64,
    conn: Conn,
    shared: Arc<Shared>,
    whose: Tenancy,
    /// The files of one job share turns, and memory to read into.
    job: u64,
    opened: Opened,
    /// Memory for what is written as it arrives.
    own: Option<Buffer>,
    /// Time of the last request.
    asked: Duration,
    /// The version that both sides speak, or why there is none; unknown before the first request.
    spoken: Option<Result<u32>>,
    poller: Poller,
    port: Arc<Port>,
}

impl Session {
    pub(crate) fn new(
        id: u64,
        mut conn: Conn,
        shared: &Arc<Shared>,
        whose: Tenancy,
    ) -> Result<(Self, Arc<Port>)> {
        let poller = Poller::new()?;
        conn.wait_while_alive(FRAME_TIMEOUT);
        // Breaks if: a server that is told to end waits for callers in the middle of a block, and
        // reports that its disk hangs. Nothing of theirs was acknowledged.
        if !off(Switch::EndAtOnce) {
            conn.end_with(&shared.stopping);
        }
        let port = Arc::new(Port {
            wanted: AtomicU32::new(0),
            waker: poller.waker(),
        });
        let session = Self {
            id,
            conn,
            shared: Arc::clone(shared),
            job: whose.tenant,
            whose,
            opened: Opened::None,
            own: None,
            asked: shared.clock.now(),
            spoken: None,
            poller,
            port: Arc::clone(&port),
        };
        Ok((session, port))
    }

    /// Serves the connection until it ends.
    pub(crate) fn run(mut self) {
        while !self.shared.is_stopping() && self.step().is_ok() {}
        self.close_quietly();
        self.shared.pull(|pull, now| pull.ended(now, self.id));
        self.shared.leave(self.id);
    }

    fn step(&mut self) -> Result<()> {
        let wanted = self.port.wanted.swap(0, Ordering::AcqRel);
        if wanted > 0 {
            self.reply(Reply::Want(wanted))?;
        }
        let received = match self.conn.try_receive_any() {
            // Breaks if: it ends the connection; a newer caller could not find out what this server
            // does not know.
            Err(error) if error.kind() == ErrorKind::Unsupported => {
                let error = Error::unsupported(format!(
                    "{} (this server is of Orcheck {})",
                    error.what(),
                    Versions::own().release
                ));
                return self.refuse(&error);
            }
            received => received?,
        };
        match received {
            Some(Received::Bytes(len)) => self.take_in(len),
            Some(Received::Message(Message::Store(StoreMessage::Ask(ask)))) => self.answer(ask),
            Some(Received::Message(other)) => {
                let name = Message::name_of(other.kind());
                self.refuse(&Error::unsupported(format!(
                    "expected a question to a server, found '{name}'"
                )))
            }
            None => self.wait(),
        }
    }

    fn wait(&mut self) -> Result<()> {
        let woken = self.poller.wait(&[self.conn.as_fd()], SIGN_OF_LIFE)?;
        if !woken.is_empty() {
            return Ok(());
        }
        // This also ends turns that are over while the listener is busy with others.
        self.shared.pull(Pull::tick);
        self.release_idle();
        if self.shared.look(|pull| pull.waits(self.id)) {
            return self.sign_of_life();
        }
        let idle = self.shared.clock.now().saturating_sub(self.asked) > IDLE_TIME;
        match &self.opened {
            Opened::None if idle => Err(Error::unavailable("no request arrived for a while")),
            _ => Ok(()),
        }
    }

    fn reply(&mut self, reply: Reply) -> Result<()> {
        let message = Message::Store(StoreMessage::Reply(reply));
        self.conn.send(&message, FRAME_TIMEOUT)
    }

    /// Tells a caller that waits for its turn that the server is alive.
    fn sign_of_life(&mut self) -> Result<()> {
        // Breaks if: callers hear of a server whose disk hangs that it is alive; they wait for
        // their turn as long as it does.
        if self.shared.hangs() && !off(Switch::HungDisk) {
            return Ok(());
        }
        self.reply(Reply::Busy)
    }

    fn refuse(&mut self, error: &Error) -> Result<()> {
        self.reply(Reply::Failed(error.clone()))
    }

    // ---- bytes that come -----------------------------------------------------------------------

    fn take_in(&mut self, len: usize) -> Result<()> {
        let Opened::Written {
            incoming,
            first_bytes,
            ..
        } = &mut self.opened
        else {
            let error = Error::invalid("bytes came, and no file is being written");
            return Err(self.conn.give_up(error));
        };
        let incoming = Arc::clone(incoming);
        self.shared.moved();
        if self.shared.order != Order::Pulled {
            return self.write_at_once(&incoming, len);
        }
        let job = self.job;
        let pooled = (len as u64 > *first_bytes).then_some(job);
        let from_first = match pooled {
            Some(_) => 0,
            None => len as u64,
        };
        if pooled.is_none() && len == 0 {
            let error = Error::invalid("a piece without bytes came");
            return Err(self.conn.give_up(error));
        }
        *first_bytes -= from_first;
        let mut memory = match pooled {
            Some(job) => match self.pooled_memory(job, len)? {
                Some(memory) => memory,
                None => return self.wait_for_turn(),
            },
            None => self.small_memory(&incoming, len),
        };
        if let Opened::Written { came_bytes, .. } = &mut self.opened {
            *came_bytes += len as u64;
        }
        let into = beginning(&mut memory, len);
        let received = into.and_then(|into| self.conn.receive_bulk(into, PIECE_QUIET, PIECE_MOST));
        let kept = received.map(|at| {
            let end = at.saturating_add(len as u64);
            let charged = incoming.file.reserve(end);
            // The connection stays as it was: a caller that asks about the file learns the error.
            charged
                .map_err(|error| incoming.fail(error))
                .ok()
                .map(|_| at)
        });
        match kept {
            Ok(Some(at)) => self.shared.intake().write(Piece {
                file: incoming,
                memory,
                len,
                at,
                pooled,
            }),
            _ => {
                if let Some(job) = pooled {
                    self.shared.intake().give(job, memory);
                }
            }
        }
        if pooled.is_some() {
            self.shared.pull(|pull, now| pull.arrived(now, self.id));
        }
        kept.map(drop)
    }

    /// Memory for bytes that may come without being wanted, once few of them wait for the disk.
    fn small_memory(&mut self, incoming: &Incoming, len: usize) -> Buffer {
        if incoming.pending() > SMALL_MAX {
            // A caller that asks learns the error.
            let _ = self.beside(|| incoming.wait_for(SMALL_MAX));
        }
        small_piece(len)
    }

    /// Memory for a granted piece; `None`: it waits for the stream's next turn.
    fn pooled_memory(&mut self, job: u64, len: usize) -> Result<Option<Buffer>> {
        let begins = match len as u64 <= PIECE_BYTES {
            true => self.shared.begins(self.id, job),
            false => Begins::Unwanted,
        };
        match begins {
            Begins::Now => {}
            Begins::Unwanted if off(Switch::StoreCredit) => {}
            Begins::Waits => return Ok(None),
            Begins::Unwanted => {
                let error = Error::invalid(format!("{len} bytes came that were not wanted"));
                return Err(self.conn.give_up(error));
            }
        }
        let memory = self.shared.intake().take(job, FRAME_TIMEOUT);
        let memory = memory.ok_or_else(|| {
            self.shared.pull(|pull, now| pull.freed(now, job));
            let error = "no memory was free for too long: the disk does not take what comes";
            self.conn.give_up(Error::unavailable(error))
        })?;
        Ok(Some(memory))
    }

    /// The thread that received the bytes writes them, before anything else of this connection.
    fn write_at_once(&mut self, incoming: &Incoming, len: usize) -> Result<()> {
        if len == 0 || len as u64 > PIECE_BYTES {
            let error = Error::invalid(format!("a piece of {len} bytes came"));
            return Err(self.conn.give_up(error));
        }
        let begin = self.shared.clock.now();
        let own = self.own.take().filter(|own| own.len() >= len);
        let mut memory = own.unwrap_or_else(|| small_piece(len));
        let into = beginning(&mut memory, len);
        let received = into.and_then(|into| self.conn.receive_bulk(into, PIECE_QUIET, PIECE_MOST));
        if let (Ok(at), Opened::Written { came_bytes, .. }) = (&received, &mut self.opened) {
            *came_bytes += len as u64;
            let charged = incoming.file.reserve(at.saturating_add(len as u64));
            // The connection stays as it was: a caller that asks about the file learns the error.
            let _ = charged
                .and_then(|_| match incoming.has_failed() {
                    true => Ok(()),
                    false => incoming.file.write_at(beginning(&mut memory, len)?, *at),
                })
                .inspect_err(|error| incoming.fail(error.clone()));
            incoming.file.look();
        }
        self.own = Some(memory);
        received?;
        // The caller may be waiting for an answer that has to wait for this.
        match self.shared.clock.now().saturating_sub(begin) >= SIGN_OF_LIFE {
            true => self.reply(Reply::Busy),
            false => Ok(()),
        }
    }

    /// A piece is there that was granted in an earlier turn: it stays unread until the next one.
    fn wait_for_turn(&mut self) -> Result<()> {
        let begin = self.shared.clock.now();
        self.poller.wait(&[], SIGN_OF_LIFE)?;
        match self.shared.clock.now().saturating_sub(begin) >= SIGN_OF_LIFE {
            true => self.sign_of_life(),
            false => Ok(()),
        }
    }

    // ---- what is asked -------------------------------------------------------------------------

    fn answer(&mut self, ask: Ask) -> Result<()> {
        self.asked = self.shared.clock.now();
        let greeting = match &ask {
            Ask::Greet(versions) => Some(versions.clone()),
            _ => None,
        };
        if self.spoken.is_none() || greeting.is_some() {
            self.speak(greeting.as_ref().unwrap_or(&Versions::unsaid()));
        }
        let reply = match (ask, self.spoken.clone()) {
            // A request that is not answered need not be refused either.
            (Ask::Offer(_) | Ask::Need(..), Some(Err(_))) => return Ok(()),
            // Breaks if: it is served all the same; each side would misread the other's messages.
            (_, Some(Err(error))) if !off(Switch::StoreVersion) => return self.refuse(&error),
            (ask, _) => self.answer_to(ask)?,
        };
        match reply {
            Some(Ok(reply)) => self.reply(reply),
            Some(Err(error)) => self.refuse(&error),
            None => Ok(()),
        }
    }

    /// Agrees on a version with a caller that speaks these.
    fn speak(&mut self, theirs: &Versions) {
        let spoken = Versions::own().agree(theirs, "this server", "the caller");
        if let Err(error) = &spoken {
            let line = format!("{}: {}", self.conn.peer(), error.what());
            self.shared.refused(1, &line);
        }
        self.spoken = Some(spoken);
    }

    /// Carries out a request; `None` for one that is not answered, or that answers by itself.
    fn answer_to(&mut self, ask: Ask) -> Result<Option<Result<Reply>>> {
        let reply = match ask {
            Ask::Greet(_) => Ok(Reply::Greeted(Versions::own(), Some(self.whose.disk))),
            Ask::Offer(bytes) => return self.offered(bytes).map(|()| None),
            Ask::Need(at, len) => {
                if let Opened::Read(reading) = &self.opened {
                    reading.will_need(at, len);
                }
                return Ok(None);
            }
            Ask::Read(at, len) => match self.read(at, len) {
                Ok(()) => return Ok(None),
                Err(error) => Err(error),
            },
            Ask::List(dir) => self.dir(&dir).and_then(|dir| {
                let entries = self.patiently(|| dir.list())?.into_iter();
                let entries = entries.map(|one| (one.name, one.len_bytes, one.is_dir));
                Ok(Reply::Names(entries.collect()))
            }),
            Ask::Holds(..) | Ask::Open(..) | Ask::Create(..) => self.look_up(ask).map(Reply::Told),
            Ask::Rename(..) | Ask::RenameNew(..) | Ask::Remove(..) | Ask::RemoveChild(..) => {
                self.change(ask).map(Reply::Told)
            }
            Ask::SyncNames(..) | Ask::Child(..) | Ask::Facts(..) => {
                self.about_dir(ask).map(Reply::Told)
            }
            about_file => self.about_file(about_file).map(Reply::Told),
        };
        Ok(Some(reply))
    }

    fn offered(&mut self, bytes: u64) -> Result<()> {
        match &self.opened {
            Opened::Written { incoming, .. } if !incoming.has_failed() => self.offer(bytes),
            // There is an error to report first.
            _ => self.reply(Reply::Want(0)),
        }
    }

    /// Takes the offer of this many more bytes of a file.
    fn offer(&mut self, bytes: u64) -> Result<()> {
        if self.shared.order != Order::Pulled {
            return self.reply(Reply::Want(WITHOUT_BOUND));
        }
        let job = self.job;
        self.shared
            .pull(|pull, now| pull.offer(now, self.id, job, bytes));
        Ok(())
    }

    /// The directory at a path below the caller's own.
    fn dir(&self, path: &StoreDir) -> Result<Arc<dyn Dir>> {
        let mut dir = Arc::clone(&self.whose.root);
        for name in path.names() {
            dir = dir.child(name, false)?;
        }
        Ok(dir)
    }

    /// Does something to the disk, however long it takes.
    fn patiently<T: Send>(&mut self, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        let shared = Arc::clone(&self.shared);
        self.beside(move || shared.at_disk(work))
    }

    /// Does long work in another thread, and meanwhile tells the caller that the server is alive.
    fn beside<T: Send>(&mut self, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        let conn = &mut self.conn;
        std::thread::scope(|scope| {
            let (tell, told) = mpsc::channel();
            let worker = thread::spawn_scoped(scope, "orcheck-sync", move || {
                // Nobody receives this if the session is over.
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
            Err(Error::internal("the request panicked in the server"))
        })
    }

    /// Carries out requests that look for files, or open them.
    fn look_up(&mut self, ask: Ask) -> Result<Vec<u64>> {
        match ask {
            Ask::Open(dir, name) => {
                self.close_quietly();
                self.job = job_of(self.whose.tenant, &dir);
                let dir = self.dir(&dir)?;
                let account = Arc::clone(&self.whose.account);
                let file = self.patiently(|| account.open(&*dir, &name))?;
                let len = file.len_bytes()?;
                self.opened = Opened::Read(Reading::new(file.into(), len));
                Ok(vec![len])
            }
            Ask::Create(dir, name, direct) => {
                self.close_quietly();
                self.job = job_of(self.whose.tenant, &dir);
                let place = (self.whose.tenant, dir);
                let dir = self.dir(&place.1)?;
                let cached = self.shared.order == Order::Arrival { cached: true };
                let how = if direct && !cached {
                    Create::Direct
                } else {
                    Create::Buffered
                };
                let instance = self.shared.instance();
                let account = Arc::clone(&self.whose.account);
                let file = self.patiently(|| account.create(&*dir, &name, how));
                self.shared.names.changed(&place);
                let file = file?;
                let is_direct = u64::from(file.is_direct());
                let gathers = u64::from(self.shared.order == Order::Pulled);
                let told = vec![is_direct, file.alignment_bytes().into(), instance, gathers];
                self.opened = Opened::Written {
                    incoming: Incoming::new(self.shared.next_file(), file),
                    first_bytes: FIRST_BYTES,
                    came_bytes: 0,
                };
                Ok(told)
            }
            Ask::Holds(dir, name) => Ok(vec![u64::from(self.dir(&dir)?.holds(&name)?)]),
            other => Err(Error::internal(format!("{other:?} looks for no file"))),
        }
    }

    /// Carries out requests that change names; returns the identity of this instance.
    fn change(&mut self, ask: Ask) -> Result<Vec<u64>> {
        // Read this first: the changed name, too, may be among those that are lost meanwhile.
        let instance = self.shared.instance();
        let (Ask::Rename(dir, ..)
        | Ask::RenameNew(dir, ..)
        | Ask::Remove(dir, _)
        | Ask::RemoveChild(dir, _)) = &ask
        else {
            return Err(Error::internal(format!("{ask:?} changes no name")));
        };
        let place = (self.whose.tenant, dir.clone());
        let dir = self.dir(&place.1)?;
        let changed = self.change_in(&*dir, ask);
        // Even after a failure, because it may have taken effect.
        self.shared.names.changed(&place);
        changed.map(|()| vec![instance])
    }

    fn change_in(&mut self, dir: &dyn Dir, ask: Ask) -> Result<()> {
        let account = Arc::clone(&self.whose.account);
        self.patiently(|| match &ask {
            Ask::Rename(_, from, to) => account.rename(dir, from, to),
            Ask::RenameNew(_, from, to) => account.rename_new(dir, from, to),
            Ask::Remove(_, name) => account.remove(dir, name),
            Ask::RemoveChild(_, name) => account.remove_child(dir, name),
            other => Err(Error::internal(format!("{other:?} changes no name"))),
        })
    }

    fn about_dir(&mut self, ask: Ask) -> Result<Vec<u64>> {
        match ask {
            Ask::SyncNames(dir) => {
                let place = (self.whose.tenant, dir);
                let dir = self.dir(&place.1)?;
                let shared = Arc::clone(&self.shared);
                let sync = || {
                    let synced = shared.at_disk(|| dir.sync());
                    // Breaks if: only this caller learns of it, or waiting callers sync first; the
                    // disk reports its loss once.
                    synced.inspect_err(|_| shared.names_lost())
                };
                // Others may be doing it: that is not a disturbance by the server.
                self.beside(|| {
                    shared.names.sync(&place, sync)?;
                    // A disk that was moved away or unmounted is not where the next server looks.
                    dir.check_path()
                })?;
                // Read this last: names that were lost meanwhile may be among those of this caller.
                Ok(vec![self.shared.instance()])
            }
            Ask::Child(dir, create) => {
                let (root, account) = (&self.whose.root, &self.whose.account);
                let (root, account) = (Arc::clone(root), Arc::clone(account));
                let above = dir.parent().filter(|_| create);
                let made = self.patiently(|| account.child(&root, &dir, create).map(|_| vec![]));
                if let Some(above) = above {
                    self.shared.names.changed(&(self.whose.tenant, above));
                }
                made
            }
            Ask::Facts(dir) => {
                let dir = self.dir(&dir)?;
                let free = dir.free_bytes()?.min(self.whose.account.left());
                Ok(vec![free, u64::from(dir.read_only()?)])
            }
            other => Err(Error::internal(format!("{other:?} is about no directory"))),
        }
    }

    fn about_file(&mut self, ask: Ask) -> Result<Vec<u64>> {
        match std::mem::replace(&mut self.opened, Opened::None) {
            Opened::None => Err(Error::invalid("no file is open on this connection")),
            Opened::Read(mut reading) => {
                let file = &reading.file;
                let told = match ask {
                    Ask::Length => file.len_bytes().map(|len| vec![len]),
                    Ask::Lock => file.try_lock().map(|locked| vec![u64::from(locked)]),
                    Ask::Sync => self.patiently(|| file.sync()).map(|()| vec![]),
                    Ask::Close => {
                        self.let_go(&mut reading);
                        return Ok(vec![]);
                    }
                    other => Err(Error::invalid(format!("{other:?} of a file that is read"))),
                };
                self.opened = Opened::Read(reading);
                told
            }
            Opened::Written {
                incoming,
                first_bytes,
                came_bytes,
            } => {
                let told = self.about_charged(&incoming, &ask, came_bytes);
                if ask == Ask::Close {
                    self.own = None;
                    incoming.file.reserved(0);
                    // The thread that wrote it last may hold it for a moment longer; its lock is
                    // released now.
                    drop(incoming.file.give_lock());
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

    /// Carries out a request about a file that is written; its space is charged before it is taken.
    fn about_charged(
        &mut self,
        incoming: &Arc<Incoming>,
        ask: &Ask,
        came_bytes: u64,
    ) -> Result<Vec<u64>> {
        let (Ask::Allocate(len) | Ask::Truncate(len)) = *ask else {
            return self.about_written(incoming, ask, came_bytes);
        };
        // Breaks if: a length that is merely set costs nothing.
        let before = if matches!(ask, Ask::Truncate(_)) && off(Switch::QuotaLength) {
            0
        } else {
            incoming.file.reserve(len)?
        };
        let told = self.about_written(incoming, ask, came_bytes);
        match (&told, ask) {
            (Ok(_), Ask::Truncate(_)) => incoming.file.reserved(len),
            (Ok(_), _) => incoming.file.look(),
            (Err(_), _) => incoming.file.reserved(before),
        }
        told
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
        if let Ask::Allocate(len) = *ask {
            incoming.check()?;
            // Earlier bytes are written meanwhile: this concerns later ones.
            self.patiently(|| file.allocate(len))?;
            // The first pieces are wanted before they are offered.
            self.offer(len.saturating_sub(came_bytes))?;
            return Ok(vec![]);
        }
        self.beside(|| incoming.settle())?;
        match *ask {
            Ask::Truncate(len) => self.patiently(|| file.truncate(len)).map(|()| vec![]),
            Ask::Sync => self.patiently(|| file.sync()).map(|()| vec![came_bytes]),
            Ask::Length => file.len_bytes().map(|len| vec![len]),
            Ask::Lock => file.try_lock().map(|locked| vec![u64::from(locked)]),
            Ask::Close => Ok(vec![]),
            _ => Err(Error::invalid(format!("{ask:?} of a file that is written"))),
        }
    }

    fn close_quietly(&mut self) {
        self.own = None;
        let opened = std::mem::replace(&mut self.opened, Opened::None);
        if let Opened::Read(mut reading) = opened {
            self.let_go(&mut reading);
        } else if let Opened::Written { incoming, .. } = opened {
            self.shared.pull(|pull, now| pull.pauses(now, self.id));
            // Nobody asked for the result.
            let _ = incoming.settle();
        }
    }
}

/// What shares turns and memory: the files of one job of one tenant.
fn job_of(tenant: u64, dir: &StoreDir) -> u64 {
    let mut hasher = DefaultHasher::new();
    (tenant, dir.names().next()).hash(&mut hasher);
    hasher.finish()
}
