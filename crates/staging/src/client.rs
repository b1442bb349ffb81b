//! Presents directories and files on a staging server through the same traits as those of this
//! machine.
//!
//! How: requests about names share a few connections that are kept for them ([`Line`]); an open
//! file has a connection of its own. Bytes are sent when the server wants them, straight from the
//! caller's memory, and are read straight into it. The server's errors are returned unchanged, with
//! its name. [`place`] knows where a server is and which key it needs.
//!
//! Invariants
//! 1. `sync` of a file covers every byte that was sent since it was created: all went over one
//!    connection, and a lost connection is an error of the file, never replaced.
//! 2. `sync` of a directory is an error if this thread has changed a name there since its last
//!    sync, and the server was restarted, or lost names of its own, in the meantime: the change may
//!    be lost. Each thread is told about its own names.
//! 3. Every wait ends: for a connection after 10 s; for anything else once the server has given no
//!    sign of life for 60 s; for an answer after 10 min in any case, and for a turn to send after a
//!    day.
//! 4. A lock is a connection: it is released when the connection ends at either side.
//! 5. A connection that was not used for 5 s is not used again, because the server ends it soon
//!    after.
//! 6. A connection begins with the versions that this library speaks; an answer to anything else
//!    counts only if both sides have a version in common. A server that does not answer with its
//!    versions speaks version 1.
//! 7. A server that has another disk than when it was opened is noticed before anything there
//!    counts (`check_path`), unless its version does not report its disk.
//!
//! Faults survived: a server that vanishes, is restarted, stalls or gives unexpected answers (an
//! error names it). Not here: what the server does (`server`), which frames travel
//! ([`orcheck_net::Conn`]).

mod file;
mod place;

pub use place::{is_served, shown, with_key};

use file::ServedFile;
use orcheck_format::sabotage::{Switch, off};
use orcheck_format::wire::{
    Ask, Disk, Message, Reply, StoreDir, StoreMessage, Versions, identity_file, identity_of,
};
use orcheck_format::{Error, Result};
use orcheck_io::clock::Deadline;
use orcheck_io::disk::{Create, Dir, Entry, File, check_name};
use orcheck_io::failpoints::Failpoints;
use orcheck_net::{Address, Conn, Received};
use place::ServedPlace;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::ThreadId;
use std::time::Duration;

/// Longest wait for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of times that a connection which accepts no request is replaced.
const RECONNECTS_MAX: u32 = 2;
/// Longest wait for a sign of life: that the server takes, sends or says something. One that writes
/// what comes as it comes says nothing while its disk is busy with others.
const SILENCE: Duration = Duration::from_secs(if cfg!(test) { 10 } else { 60 });
/// Longest wait for one answer of a server that gives signs of life: one whose disk hangs gives
/// them forever.
const BUSY_TIMEOUT: Duration = Duration::from_secs(if cfg!(test) { 2 } else { 600 });
/// Longest wait for a turn to send. Others may have theirs for hours, which is no fault; a server
/// whose disk hangs gives no signs of life to those who wait.
const TURN_TIMEOUT: Duration = Duration::from_secs(if cfg!(test) { 6 } else { 24 * 3600 });
/// Maximum number of connections that are kept without a file.
const IDLE_MAX: usize = 4;
/// How long they are kept.
const IDLE_TIME: Duration = Duration::from_secs(5);

/// Opens everything that belongs to a key on a server.
pub(crate) fn open(path: &Path, failpoints: &Failpoints) -> Result<Arc<dyn Dir>> {
    let place = ServedPlace::parse(path)?;
    let server = Arc::new(Server {
        place,
        failpoints: failpoints.clone(),
        idle: Mutex::default(),
        unsynced: Mutex::default(),
        disk: OnceLock::new(),
        identity: OnceLock::new(),
    });
    let [] = server.told(Ask::Child(StoreDir::default(), false))?;
    let identity = match server.disk.get().copied().flatten() {
        Some(disk) => Some(disk.identity),
        // Version 1 reports it as the name of a file.
        None => {
            let names = server.names(&StoreDir::default())?;
            names.iter().find_map(|(name, ..)| identity_of(name))
        }
    };
    if let Some(expected) = server.place.identity
        && identity != Some(expected)
        && !off(Switch::ServerIdentity)
    {
        let found = identity.map_or("none".to_owned(), |found| format!("{found:016x}"));
        return Err(server.named(
            Error::unavailable(format!(
                "this server has another disk than the address says: expected identity {expected:016x}, \
                 found {found}"
            ))
            .next("mount the disk that the server had, or correct id= in the address"),
        ));
    }
    let _ = server.identity.set(identity);
    Ok(Arc::new(ServedDir {
        path: PathBuf::from(&server.place.shown),
        dir: StoreDir::default(),
        server,
    }))
}

/// A server, as this process knows it.
struct Server {
    place: ServedPlace,
    failpoints: Failpoints,
    idle: Mutex<Vec<Line>>,
    /// Directories in which a thread has changed names and not synced them, with the instance that
    /// the server reported then.
    unsynced: Mutex<BTreeMap<StoreDir, Vec<(ThreadId, u64)>>>,
    /// The disk that it had when it was opened, if it reports one.
    disk: OnceLock<Option<Disk>>,
    /// The number of the disk, even if only a file reports it.
    identity: OnceLock<Option<u64>>,
}

/// A connection to a server.
struct Line {
    conn: Conn,
    used: Deadline,
    /// Bytes that may be sent without being wanted, and the number of wanted pieces.
    first_bytes: u64,
    wanted: u32,
    /// Whether the kernel keeps it for as long as a turn may take.
    outlasts: bool,
    /// The disk of the server, once it has answered the greeting; `Some(None)` if it does not
    /// report one.
    greeted: Option<Option<Disk>>,
}

fn guard<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Line {
    fn send(&mut self, ask: Ask) -> Result<()> {
        let message = Message::Store(StoreMessage::Ask(ask));
        self.conn.send(&message, BUSY_TIMEOUT)
    }

    /// Bytes that may have to wait for a turn are about to be sent.
    fn outlast_turns(&mut self) {
        // Breaks if: the kernel may end the connection sooner; what waits for its turn at the
        // server is unread for as long as others have theirs.
        if !self.outlasts && !off(Switch::OutlastTurns) {
            self.conn.outlast_silence(Some(TURN_TIMEOUT));
            self.outlasts = true;
        }
    }

    /// All was sent. A connection that is a lock has to end soon after its server.
    fn outlast_no_more(&mut self) {
        if std::mem::take(&mut self.outlasts) {
            self.conn.outlast_silence(None);
        }
    }

    /// The next answer, or the number of bytes that come instead.
    fn answer(&mut self, end: Deadline) -> Result<std::result::Result<Reply, usize>> {
        loop {
            match self.conn.receive_any(SILENCE)? {
                Received::Bytes(len) => return Ok(Err(len)),
                // The first answer is to the greeting, which was sent before the first request.
                Received::Message(Message::Store(StoreMessage::Reply(reply)))
                    if self.greeted.is_none() && reply != Reply::Busy =>
                {
                    self.greeted(reply)?;
                }
                Received::Message(Message::Store(StoreMessage::Reply(reply))) => match reply {
                    Reply::Busy => self.bear(end)?,
                    Reply::Want(pieces) => {
                        self.wanted = self.wanted.saturating_add(pieces);
                        if pieces == 0 {
                            // The server reports an error to whoever asks.
                            return Ok(Ok(Reply::Want(0)));
                        }
                        self.bear(end)?;
                    }
                    other => return Ok(Ok(other)),
                },
                Received::Message(other) => return Err(self.strange(&other)),
            }
        }
    }

    /// Continues to wait for a busy server, until the deadline.
    fn bear(&mut self, end: Deadline) -> Result<()> {
        // Breaks if: signs of life are enough; a server whose disk hangs gives them forever.
        match end.passed() {
            false => Ok(()),
            true => Err(self.conn.give_up(
                Error::unavailable(format!(
                    "the server has been busy with one request for {} s",
                    BUSY_TIMEOUT.as_secs()
                ))
                .next("look for a disk that hangs"),
            )),
        }
    }

    /// Takes the answer to the greeting.
    fn greeted(&mut self, reply: Reply) -> Result<()> {
        let (theirs, disk) = match reply {
            Reply::Greeted(versions, disk) => (versions, disk),
            // It took the greeting for a question about the caller's directory.
            Reply::Told(_) => (Versions::unsaid(), None),
            Reply::Failed(error) => return Err(self.conn.give_up(error)),
            other => return Err(self.strange(&other)),
        };
        let agreed = Versions::own().agree(&theirs, "this library", "the server");
        if let Err(error) = agreed
            && !off(Switch::StoreVersion)
        {
            return Err(self.conn.give_up(error));
        }
        self.greeted = Some(disk);
        Ok(())
    }

    /// Waits until the server wants something.
    fn wait_wanted(&mut self) -> Result<()> {
        // Breaks if: it is the same as for an answer; where many nodes share a slow server, those
        // whose turns come last would lose each checkpoint.
        let end = Deadline::after(if off(Switch::TurnTimeout) {
            BUSY_TIMEOUT
        } else {
            TURN_TIMEOUT
        });
        while self.wanted == 0 {
            match self.conn.receive_any(SILENCE)? {
                Received::Message(Message::Store(StoreMessage::Reply(reply))) => match reply {
                    Reply::Busy if !end.passed() => {}
                    Reply::Busy => {
                        let error = Error::unavailable(format!(
                            "no turn to send came for {} h, although the server is alive",
                            TURN_TIMEOUT.as_secs() / 3600
                        ));
                        let next = "give the server fewer jobs, or its disk or network more speed";
                        return Err(self.conn.give_up(error.next(next)));
                    }
                    Reply::Want(0) => return Ok(()),
                    Reply::Want(pieces) => self.wanted = pieces,
                    other => return Err(self.strange(&other)),
                },
                other => return Err(self.strange(&other)),
            }
        }
        Ok(())
    }

    /// Sends a request and waits for the answer; a failure is an answer too.
    fn ask(&mut self, ask: Ask) -> Result<Reply> {
        self.send(ask)?;
        self.reply()
    }

    fn reply(&mut self) -> Result<Reply> {
        let end = Deadline::after(BUSY_TIMEOUT);
        loop {
            match self.answer(end)? {
                // It was sent before the request arrived; the answer follows.
                Ok(Reply::Want(_)) => self.bear(end)?,
                Ok(reply) => return Ok(reply),
                Err(len) => return Err(self.strange(&len)),
            }
        }
    }

    fn strange(&mut self, found: &dyn std::fmt::Debug) -> Error {
        self.conn.give_up(Error::corrupt(format!(
            "expected the answer to the request, found {found:?}"
        )))
    }
}

impl Server {
    fn connect(&self) -> Result<Line> {
        let mut errors = Vec::new();
        for &address in &self.place.addresses {
            let at = Address::Tcp(address);
            match self.place.connect(&at, &self.failpoints, CONNECT_TIMEOUT) {
                Ok(mut conn) => {
                    conn.wait_while_alive(SILENCE);
                    let mut line = Line {
                        conn,
                        used: Deadline::after(IDLE_TIME),
                        first_bytes: 0,
                        wanted: 0,
                        outlasts: false,
                        greeted: None,
                    };
                    // A connection that fails here fails again at the first request, which reports
                    // it.
                    let _ = line.send(Ask::Greet(Versions::own()));
                    return Ok(line);
                }
                Err(error) => errors.push(error),
            }
        }
        let first = errors.into_iter().next();
        Err(first.unwrap_or_else(|| Error::internal("a server without an address")))
    }

    /// A free connection, or a new one.
    fn line(&self) -> Result<Line> {
        loop {
            let Some(mut line) = guard(&self.idle).pop() else {
                return self.connect().map_err(|error| self.named(error));
            };
            if !line.used.passed() && !line.conn.is_closed() {
                return Ok(line);
            }
        }
    }

    fn give(&self, mut line: Line) {
        line.used = Deadline::after(IDLE_TIME);
        line.outlast_no_more();
        let mut idle = guard(&self.idle);
        idle.retain(|one| !one.used.passed());
        if idle.len() < IDLE_MAX {
            idle.push(line);
        }
    }

    fn named(&self, error: Error) -> Error {
        error.at(&self.place.shown)
    }

    /// Sends a request over any connection without a file. A connection that accepts no request any
    /// more (a server under load may have ended it) is replaced: a request that was not sent
    /// completely was not carried out.
    fn asked(&self, ask: Ask) -> Result<(Line, Reply)> {
        let mut line = self.line()?;
        let mut sent = line.send(ask.clone());
        for _ in 0..RECONNECTS_MAX {
            if sent.is_ok() {
                break;
            }
            line = self.connect().map_err(|error| self.named(error))?;
            sent = line.send(ask.clone());
        }
        let reply = sent.and_then(|()| line.reply());
        if let Some(disk) = line.greeted {
            let _ = self.disk.set(disk);
        }
        Ok((line, reply.map_err(|error| self.named(error))?))
    }

    /// The same; puts the connection back.
    fn ask(&self, ask: Ask) -> Result<Reply> {
        let (line, reply) = self.asked(ask)?;
        self.give(line);
        match reply {
            Reply::Failed(error) => Err(self.named(error)),
            other => Ok(other),
        }
    }

    /// The same for a request that is answered by this many numbers.
    fn told<const N: usize>(&self, ask: Ask) -> Result<[u64; N]> {
        match self.ask(ask)? {
            Reply::Told(numbers) => self.numbers(numbers),
            other => Err(self.unexpected(&other)),
        }
    }

    /// The contents of a directory: name, length, whether it is a directory.
    fn names(&self, dir: &StoreDir) -> Result<Vec<(String, u64, bool)>> {
        match self.ask(Ask::List(dir.clone()))? {
            Reply::Names(names) => Ok(names),
            other => Err(self.unexpected(&other)),
        }
    }

    /// The first numbers of an answer; what a newer server adds is ignored.
    fn numbers<const N: usize>(&self, numbers: Vec<u64>) -> Result<[u64; N]> {
        let first = numbers.first_chunk();
        first
            .copied()
            .ok_or_else(|| self.unexpected(&Reply::Told(numbers.clone())))
    }

    fn unexpected(&self, reply: &Reply) -> Error {
        self.named(Error::corrupt(format!(
            "an answer to another question: {reply:?}"
        )))
    }

    /// Notes that this thread changed names in a directory, and the instance that the server
    /// reported.
    fn changed(&self, dir: &StoreDir, instance: u64) {
        let mut unsynced = guard(&self.unsynced);
        let changes = unsynced.entry(dir.clone()).or_default();
        let change = (std::thread::current().id(), instance);
        if !changes.contains(&change) {
            changes.push(change);
        }
    }

    /// Forgets this thread's changes; returns whether the server instance that reports now made all
    /// of them.
    fn synced(&self, dir: &StoreDir, instance: u64) -> bool {
        let mut unsynced = guard(&self.unsynced);
        let Some(changes) = unsynced.get_mut(dir) else {
            return true;
        };
        let own = std::thread::current().id();
        let same = changes
            .iter()
            .all(|(thread, at)| *thread != own || *at == instance);
        changes.retain(|(thread, _)| *thread != own);
        if changes.is_empty() {
            unsynced.remove(dir);
        }
        same
    }
}

struct ServedDir {
    server: Arc<Server>,
    dir: StoreDir,
    path: PathBuf,
}

impl ServedDir {
    fn full(&self, name: &str) -> String {
        self.path.join(name).display().to_string()
    }

    fn check(&self, name: &str) -> Result<String> {
        check_name(name).map_err(|error| error.at(self.path.display()))?;
        Ok(name.to_owned())
    }

    /// Changes names.
    fn change(&self, ask: Ask) -> Result<()> {
        let [instance] = self.server.told(ask)?;
        self.server.changed(&self.dir, instance);
        Ok(())
    }

    /// A connection with an open file; also returns what the server reported about it.
    fn begin_file(&self, ask: Ask) -> Result<(Line, Vec<u64>)> {
        let (line, reply) = self.server.asked(ask)?;
        let named = |error| self.server.named(error);
        match reply {
            Reply::Told(numbers) => Ok((line, numbers)),
            Reply::Failed(error) => {
                self.server.give(line);
                Err(named(error))
            }
            other => Err(self.server.unexpected(&other)),
        }
    }
}

impl Dir for ServedDir {
    fn path(&self) -> &Path {
        &self.path
    }

    fn create(&self, name: &str, how: Create) -> Result<Box<dyn File>> {
        let direct = how == Create::Direct;
        let ask = Ask::Create(self.dir.clone(), self.check(name)?, direct);
        let (mut line, told) = self.begin_file(ask)?;
        let [is_direct, alignment_bytes, instance, gathers] = self.server.numbers(told)?;
        self.server.changed(&self.dir, instance);
        line.first_bytes = orcheck_format::wire::FIRST_BYTES;
        let written = Some((is_direct == 1, alignment_bytes));
        Ok(Box::new(ServedFile::new(
            &self.server,
            line,
            self.full(name),
            written,
            gathers == 1,
        )))
    }

    fn holds(&self, name: &str) -> Result<bool> {
        let ask = Ask::Holds(self.dir.clone(), self.check(name)?);
        self.server.told(ask).map(|told| told == [1])
    }

    fn open(&self, name: &str) -> Result<Box<dyn File>> {
        let ask = Ask::Open(self.dir.clone(), self.check(name)?);
        let (line, told) = self.begin_file(ask)?;
        let [_len] = self.server.numbers(told)?;
        Ok(Box::new(ServedFile::new(
            &self.server,
            line,
            self.full(name),
            None,
            false,
        )))
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        let (from, to) = (self.check(from)?, self.check(to)?);
        self.change(Ask::Rename(self.dir.clone(), from, to))
    }

    fn rename_new(&self, from: &str, to: &str) -> Result<()> {
        let (from, to) = (self.check(from)?, self.check(to)?);
        self.change(Ask::RenameNew(self.dir.clone(), from, to))
    }

    fn remove(&self, name: &str) -> Result<()> {
        self.change(Ask::Remove(self.dir.clone(), self.check(name)?))
    }

    fn list(&self) -> Result<Vec<Entry>> {
        let names = self.server.names(&self.dir)?.into_iter();
        let entry = |(name, len_bytes, is_dir)| Entry {
            name,
            len_bytes,
            is_dir,
        };
        Ok(names.map(entry).collect())
    }

    fn sync(&self) -> Result<()> {
        // If this fails, the changes stay noted: another instance of the server may answer next
        // time.
        let [instance] = self.server.told(Ask::SyncNames(self.dir.clone()))?;
        // Breaks if: the instance is not compared; names that an earlier instance changed may be
        // lost with it.
        if !self.server.synced(&self.dir, instance) && !off(Switch::StoreAnew) {
            return Err(self.server.named(Error::unavailable(format!(
                "sync directory {}: since names in it were changed the server was started again, or its disk lost \
                 names, and they may be gone",
                self.path.display()
            ))));
        }
        Ok(())
    }

    fn child(&self, name: &str, create: bool) -> Result<Arc<dyn Dir>> {
        let dir = self.dir.child(&self.check(name)?)?;
        let [] = self.server.told(Ask::Child(dir.clone(), create))?;
        Ok(Arc::new(ServedDir {
            server: Arc::clone(&self.server),
            dir,
            path: self.path.join(name),
        }))
    }

    fn remove_child(&self, name: &str) -> Result<()> {
        self.change(Ask::RemoveChild(self.dir.clone(), self.check(name)?))
    }

    fn free_bytes(&self) -> Result<u64> {
        let [free, _] = self.server.told(Ask::Facts(self.dir.clone()))?;
        Ok(free)
    }

    fn read_only(&self) -> Result<bool> {
        let [_, read_only] = self.server.told(Ask::Facts(self.dir.clone()))?;
        Ok(read_only != 0)
    }

    fn since_unix_s(&self) -> Option<u64> {
        self.server.disk.get().copied().flatten()?.since_unix_s
    }

    fn check_path(&self) -> Result<()> {
        let Some(number) = self.server.identity.get().copied().flatten() else {
            return Ok(());
        };
        // Breaks if: this is not asked; a checkpoint would be split between two disks, and reported
        // safe.
        let ask = Ask::Holds(StoreDir::default(), identity_file(number));
        if self.server.told(ask)? == [1] || off(Switch::ServerIdentity) {
            return Ok(());
        }
        Err(self.server.named(
            Error::unavailable(format!(
                "directory {}: the server has another disk than when this run began: expected identity \
                 {number:016x}, found none of it",
                self.path.display()
            ))
            .next("mount the disk that the server had, or start the run again"),
        ))
    }
}
