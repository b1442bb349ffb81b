//! A staging server: it serves one directory, takes in what the nodes of many jobs write, and gives it back.
//!
//! How: every caller has proven one of the server's keys, and sees the directory of that key alone. What it writes is
//! *pulled*: the server says how much it wants from which node, so that few files at a time reach the disk, in large pieces
//! and in order (`pull.rs`), through memory of its own (`intake.rs`). A container lies on the disk as its writer made it:
//! where the bytes of each rank lie is in its manifest, which can be rebuilt by reading the container.
//!
//! Invariants:
//! 1. What was acknowledged is durable: an answer to `sync` comes after the sync of file or directory.
//! 2. A server keeps nothing that is not in its directory: it can be killed at any time and started again.
//! 3. One server at a time has a directory.
//! 4. Connections, threads and memory are bounded.
//!
//! Survives: callers of every kind (`session.rs`), disks of every kind (the caller gets the error), its own death (what
//! was not acknowledged has no commit record). Not here: what containers and records mean (the engine, at the callers).

mod account;
mod ahead;
mod identity;
mod intake;
mod log;
mod names;
pub mod pull;
mod reconcile;
pub mod room;
mod session;
mod sharing;
mod tenants;

use crate::open_dir;
use ahead::Slots;
pub use identity::expect_identity;
use intake::{Intake, Memory, guard};
use log::Log;
use names::Names;
use orcheck_format::wire::{Message, PIECE_BYTES, Reply, StoreMessage};
use orcheck_format::{Error, Result};
use orcheck_io::clock::Clock;
use orcheck_io::disk::{Create, Device, Dir, File};
use orcheck_io::failpoints::Failpoints;
use orcheck_io::machine::thread;
use orcheck_io::rng::random_bytes;
use orcheck_net::{Address, Conn, Listener};
use pull::{Begins, Grant, Limits, Pull};
use session::{Port, Session, Whose};
use sharing::Sharing;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;
use tenants::{Owned, Served};
pub use tenants::{Reread, Tenant, User};

/// The file by whose lock a server has its directory alone.
const LOCK_FILE: &str = "server.lock";
/// Most connections at a time; each has up to four descriptors.
const SESSIONS_MAX: usize = 4096;
/// Longest message that a caller may send.
const MESSAGE_MAX: u32 = 64 << 10;
/// Threads that write.
const DISK_THREADS: usize = 2;
/// How long the server waits for callers before it looks at other things.
const LOOK: Duration = Duration::from_millis(200);
/// The same while a turn may end although nothing comes.
const LOOK_SOON: Duration = Duration::from_millis(20);

/// How a server is to be.
#[derive(Debug, Clone)]
pub struct Config {
    /// Where it listens.
    pub address: Address,
    /// The directory that it serves.
    pub dir: PathBuf,
    /// Whom it serves.
    pub tenants: Vec<Tenant>,
    /// Pieces of 4 MiB that it holds in memory on their way to the disk.
    pub pieces: u32,
    /// Files that it takes in at the same time.
    pub at_once: usize,
    /// In which order what comes is written.
    pub order: Order,
    /// What ordinary traffic on the same disk keeps of its rate, from 0 (nothing is kept) to less than 1.
    pub ordinary_share: f64,
}

/// In which order what comes to a server is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// Pulled from a few at a time; see the module.
    Pulled,
    /// As it comes, from all at once, each request by itself: what servers of parallel file systems do. For comparison.
    Arrival {
        /// Through the page cache, which the sync at the end empties; otherwise each request goes to the disk.
        cached: bool,
    },
}

/// What all sessions share.
pub(crate) struct Shared {
    instance: AtomicU64,
    pub(crate) order: Order,
    pub(crate) clock: Arc<dyn Clock>,
    pull: Mutex<Pull>,
    ports: Mutex<BTreeMap<u64, Arc<Port>>>,
    intake: OnceLock<Intake>,
    /// Pieces of memory on their way to the disk.
    pieces: usize,
    /// Memory for what is read.
    pub(crate) outgoing: Memory,
    /// Memory for what is read before it is asked for. It may be held for long: nobody waits for it.
    pub(crate) ahead: Memory,
    /// Files that are read ahead at the same time.
    pub(crate) slots: Arc<Slots>,
    /// Bytes that were read for nobody; see [`Stopper::read_beside`].
    beside_bytes: Arc<AtomicU64>,
    sharing: OnceLock<Arc<Sharing>>,
    /// Names that are durable.
    pub(crate) names: Names,
    files: AtomicU64,
    stopping: Arc<AtomicBool>,
    /// Whom the server serves.
    pub(crate) served: Served,
    pub(crate) log: Log,
    refused_callers: AtomicU64,
    /// When bytes of a file were moved last, in ms of the clock.
    moved_ms: AtomicU64,
}

impl Shared {
    /// Bytes of a file are moved for a caller now.
    pub(crate) fn moved(&self) {
        self.moved_ms.store(self.now_ms(), Ordering::Relaxed);
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.clock.now().as_millis()).unwrap_or(u64::MAX)
    }

    /// Lets the order of streams continue, and tells those who may send.
    pub(crate) fn pull(&self, event: impl FnOnce(&mut Pull, Duration) -> Vec<Grant>) {
        let grants = event(&mut guard(&self.pull), self.clock.now());
        if grants.is_empty() {
            return;
        }
        let ports = guard(&self.ports);
        for (id, pieces) in grants {
            if let Some(port) = ports.get(&id) {
                port.grant(pieces);
            }
        }
    }

    /// What becomes of a piece of a stream that is about to come.
    pub(crate) fn begins(&self, id: u64, job: u64) -> Begins {
        let begins = guard(&self.pull).begins(self.clock.now(), id, job);
        // One that waits may get its turn at once.
        if begins == Begins::Waits {
            self.pull(Pull::tick);
        }
        begins
    }

    /// Counts callers that were refused, and tells the operator of the last one.
    pub(crate) fn refused(&self, count: u64, last: &str) {
        if count > 0 {
            self.refused_callers.fetch_add(count, Ordering::Relaxed);
            let line = format!("a caller was refused: {last}");
            self.log.say_rarely("refused", count, &line);
        }
    }

    /// What this start of the server calls itself.
    pub(crate) fn instance(&self) -> u64 {
        self.instance.load(Ordering::Acquire)
    }

    /// Names may be lost: whoever changed any and did not sync them must be told, as if the server were another one.
    pub(crate) fn names_lost(&self) {
        let other = u64::from_le_bytes(random_bytes());
        self.instance.store(other, Ordering::Release);
    }

    pub(crate) fn look<T>(&self, at: impl FnOnce(&Pull) -> T) -> T {
        at(&guard(&self.pull))
    }

    #[allow(
        clippy::unreachable,
        reason = "it is set where the server is made, before anybody can call"
    )]
    pub(crate) fn intake(&self) -> &Intake {
        self.intake
            .get()
            .unwrap_or_else(|| unreachable!("sessions begin after the intake"))
    }

    /// Does something to the disk that is not the writing of a piece.
    pub(crate) fn at_disk<T>(&self, work: impl FnOnce() -> T) -> T {
        match self.sharing.get() {
            Some(sharing) => sharing.other(work),
            None => work(),
        }
    }

    pub(crate) fn next_file(&self) -> u64 {
        self.files.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    pub(crate) fn leave(&self, id: u64) {
        guard(&self.ports).remove(&id);
    }
}

/// A server; see the module.
pub struct Server {
    listener: Listener,
    shared: Arc<Shared>,
    failpoints: Failpoints,
    sessions: Vec<(usize, JoinHandle<()>)>,
    next: u64,
    identity: u64,
    /// Locked as long as the server lives.
    _lock: Box<dyn File>,
}

/// Ends a server from another thread, and sees what it does.
#[derive(Clone)]
pub struct Stopper {
    shared: Arc<Shared>,
}

/// What a server has counted since it began.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Counts {
    /// Callers that did not prove a key of this server, or to be one of its users.
    pub refused_callers: u64,
    /// Those who have a quota.
    pub quotas: Vec<Taken>,
}

/// What one of those whom a server serves has taken of its quota.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Taken {
    /// Whose it is.
    pub name: String,
    /// What may be taken, in bytes.
    pub quota_bytes: u64,
    /// What is taken.
    pub used_bytes: u64,
}

fn taken_by(owned: &Owned) -> Option<Taken> {
    owned.account.most().map(|quota_bytes| Taken {
        name: owned.name.clone(),
        quota_bytes,
        used_bytes: owned.account.used(),
    })
}

/// Pieces that one of this many may have at a time: where there are others, nobody has all.
fn share_of(pieces: usize, served: usize) -> usize {
    if served > 1 {
        pieces.div_ceil(2)
    } else {
        pieces
    }
}

/// How long a server counts as busy after bytes were moved.
const BUSY: Duration = Duration::from_secs(1);

impl Stopper {
    /// Tells how many bytes were read from the disk in all that nobody asked for: they are no ordinary traffic.
    pub fn read_beside(&self, bytes: u64) {
        self.shared.beside_bytes.store(bytes, Ordering::Release);
    }

    /// Whether bytes were moved for callers within the last second, or ordinary traffic has its share: background work waits.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        if self
            .shared
            .sharing
            .get()
            .is_some_and(|sharing| sharing.is_shared())
        {
            return true;
        }
        let moved_ms = self.shared.moved_ms.load(Ordering::Relaxed);
        let since_ms = self.shared.now_ms().saturating_sub(moved_ms);
        moved_ms > 0 && u128::from(since_ms) < BUSY.as_millis()
    }

    /// What was counted so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        Counts {
            refused_callers: self.shared.refused_callers.load(Ordering::Relaxed),
            quotas: self
                .shared
                .served
                .owned()
                .iter()
                .filter_map(taken_by)
                .collect(),
        }
    }

    /// Compares what is charged to those who have a quota with what lies in their directories now, and corrects it.
    ///
    /// # Errors
    /// What the directories say; what was charged before stands.
    pub fn reconcile(&self) -> Result<()> {
        let owned = self.shared.served.owned();
        let mut owned = owned.iter();
        owned.try_for_each(|one| reconcile::recount(&self.shared, one, &mut || true))
    }

    /// From now on these are served, and nobody else; open connections continue until they end. New quotas hold
    /// when it returns, with what was stored before: that is counted, which takes as long as a listing of its directories.
    ///
    /// # Errors
    /// As [`Server::bind`]; nothing has changed then.
    pub fn serve(&self, tenants: &[Tenant], users: &[User]) -> Result<Reread> {
        let shared = &self.shared;
        let reread = shared
            .served
            .serve(tenants, users, shared.clock.unix_ms() / 1000)?;
        let share = share_of(shared.pieces, shared.served.count());
        for memory in [&shared.outgoing, &shared.ahead] {
            memory.set_share(share.div_ceil(2));
        }
        // Breaks if: it is not waited for; who is refused from now on may come in for as long as the listener looks.
        let until = shared.clock.now().saturating_add(10 * LOOK);
        while !shared.served.is_known() && !shared.is_stopping() && shared.clock.now() < until {
            shared.clock.sleep(LOOK_SOON);
        }
        // Breaks if: it is left to the thread that counts now and then; until then a new quota would refuse nothing. Who may come
        // in is settled before: a large directory must not delay that.
        for one in shared.served.owned() {
            if one.account.most().is_some() && !one.account.is_complete() {
                // A directory that cannot be listed is in the log, and is tried again.
                let _ = reconcile::recount(shared, &one, &mut || !shared.is_stopping());
            }
        }
        Ok(reread)
    }

    /// The names of all that were served since the server began.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        let owned = self.shared.served.owned();
        owned.into_iter().map(|one| one.name).collect()
    }

    /// The server ends soon: what it has in memory is written first.
    pub fn stop(&self) {
        self.shared.stopping.store(true, Ordering::Release);
        for port in guard(&self.shared.ports).values() {
            port.wake();
        }
    }
}

impl Server {
    /// Opens the directory and listens.
    ///
    /// # Errors
    /// Invalid for tenants that cannot be told apart; Unavailable when another server has the directory, or the address
    /// is taken; what the directory says.
    pub fn bind(config: &Config, clock: Arc<dyn Clock>, failpoints: Failpoints) -> Result<Self> {
        Self::bind_with_users(config, (&[], false), clock, failpoints)
    }

    /// The same for those with a key and for users known by MUNGE; what travels between these and the server is encrypted
    /// if `encrypt`.
    ///
    /// # Errors
    /// As [`Server::bind`]; Unsupported when there are users and libmunge is not installed.
    pub fn bind_with_users(
        config: &Config,
        (users, encrypt): (&[User], bool),
        clock: Arc<dyn Clock>,
        failpoints: Failpoints,
    ) -> Result<Self> {
        let dir = open_dir(&config.dir, failpoints.clone())?;
        let lock = lock_alone(&*dir)?;
        let wanted = (config.tenants.as_slice(), users, encrypt);
        let served = Served::new(dir, wanted, clock.unix_ms() / 1000)?;
        let identity = served.own(0)?.disk.identity;
        let listener = Listener::bind(&config.address)?;
        let limits = Limits {
            pieces: config.pieces,
            at_once: config.at_once,
            window: 2,
            idle: Duration::from_millis(50),
            stall: Duration::from_secs(1),
            turn_bytes: 256 << 20,
            turn: Duration::from_secs(5),
        };
        let pieces = config.pieces as usize;
        let share = share_of(pieces, served.count());
        let shared = Arc::new(Shared {
            order: config.order,
            served,
            log: Log::new(Arc::clone(&clock)),
            refused_callers: AtomicU64::new(0),
            instance: AtomicU64::new(u64::from_le_bytes(random_bytes())),
            clock,
            pull: Mutex::new(Pull::new(limits)),
            ports: Mutex::default(),
            intake: OnceLock::new(),
            pieces,
            outgoing: Memory::new(pieces.div_ceil(2), share.div_ceil(2), PIECE_BYTES as usize),
            ahead: Memory::new(pieces / 2, share.div_ceil(2), PIECE_BYTES as usize),
            slots: Arc::new(Slots::new(DISK_THREADS)),
            beside_bytes: Arc::default(),
            sharing: OnceLock::new(),
            names: Names::default(),
            files: AtomicU64::new(0),
            stopping: Arc::default(),
            moved_ms: AtomicU64::new(0),
        });
        let sharing = if config.ordinary_share == 0.0 {
            None
        } else {
            let sharing = Arc::new(sharing_of(config, &shared)?);
            let _ = shared.sharing.set(Arc::clone(&sharing));
            Some(sharing)
        };
        let memory = Memory::new(pieces, pieces, PIECE_BYTES as usize);
        let weak = Arc::downgrade(&shared);
        let intake = Intake::start(DISK_THREADS, memory, sharing, move |job| {
            if let Some(shared) = weak.upgrade() {
                shared.moved();
                shared.pull(|pull, now| pull.freed(now, job));
            }
        })?;
        let _ = shared.intake.set(intake);
        Ok(Self {
            listener,
            shared,
            failpoints,
            sessions: Vec::new(),
            next: 0,
            identity,
            _lock: lock,
        })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> Address {
        self.listener.address()
    }

    /// Which disk it has; see [`expect_identity`].
    #[must_use]
    pub fn identity(&self) -> u64 {
        self.identity
    }

    /// Sends what the operator should know to `say`, line by line, once: from the threads of the server, which wait for it.
    pub fn tell_to(&self, say: impl Fn(&str) + Send + Sync + 'static) {
        self.shared.log.send_to(Box::new(say));
    }

    /// What ends it.
    #[must_use]
    pub fn stopper(&self) -> Stopper {
        Stopper {
            shared: Arc::clone(&self.shared),
        }
    }

    /// Serves until it is stopped.
    pub fn run(mut self) {
        let reconciling = reconcile::start(&self.shared);
        while !self.shared.is_stopping() {
            let due = self.shared.look(Pull::due);
            let look = due.map_or(LOOK, |_| LOOK_SOON);
            let known = self.shared.served.admitted();
            let (keys, users) = (&known.keys, known.users.as_ref());
            let came = (self.listener).accept_known(keys, users, &self.failpoints, look);
            match came {
                Ok(Some((which, conn))) => self.begin(which, conn),
                Ok(None) => {}
                // A shortage of descriptors or memory: those who have a connection are served on.
                Err(_) => self.shared.clock.sleep(LOOK),
            }
            let refused = self.listener.take_refusals();
            self.shared.refused(refused.count, &refused.last);
            self.shared.pull(Pull::tick);
        }
        self.stopper().stop();
        for (_, session) in self.sessions.drain(..) {
            // A session that panicked has ended its connection, and nothing else.
            let _ = session.join();
        }
        if let Some(thread) = reconciling {
            // One that panicked has said so.
            let _ = thread.join();
        }
        // Before the lock goes, and another server may come.
        self.shared.intake().stop();
    }

    fn begin(&mut self, which: usize, mut conn: Conn) {
        conn.take_at_most(MESSAGE_MAX);
        self.sessions.retain(|(_, session)| !session.is_finished());
        let own = self
            .sessions
            .iter()
            .filter(|(one, _)| *one == which)
            .count();
        let share = if self.shared.served.count() > 1 {
            SESSIONS_MAX / 4 * 3
        } else {
            SESSIONS_MAX
        };
        if self.sessions.len() >= SESSIONS_MAX || own >= share {
            return refuse(conn, "too many connections at a time");
        }
        self.next += 1;
        let id = self.next;
        let own = match self.shared.served.own(which) {
            Ok(own) => own,
            Err(error) => return refuse(conn, error.message()),
        };
        let whose = Whose {
            root: own.root,
            account: own.account,
            disk: own.disk,
            tenant: which as u64,
        };
        // Where there is no descriptor or thread for it, the caller sees its connection end.
        let Ok((session, port)) = Session::new(id, conn, &self.shared, whose) else {
            return;
        };
        guard(&self.shared.ports).insert(id, port);
        match thread::spawn("orcheck-session", move || session.run()) {
            Ok(thread) => self.sessions.push((which, thread)),
            Err(_) => self.shared.leave(id),
        }
    }
}

/// The first answer of a connection that will have no other.
fn refuse(mut conn: Conn, why: &str) {
    let reply = Reply::Failed(Error::unavailable(why));
    // It ends in any case.
    let _ = conn.send(&Message::Store(StoreMessage::Reply(reply)), Duration::ZERO);
}

fn sharing_of(config: &Config, shared: &Shared) -> Result<Sharing> {
    let share = config.ordinary_share;
    if !(0.0..1.0).contains(&share) || config.order != Order::Pulled {
        return Err(Error::invalid(format!(
            "an ordinary share of {share}: expected at least 0 and less than 1, and a server that pulls"
        )));
    }
    let device = Device::of(&config.dir)?;
    let beside_bytes = Arc::clone(&shared.beside_bytes);
    let ending = Arc::clone(&shared.stopping);
    Sharing::new(
        device,
        share,
        Arc::clone(&shared.clock),
        beside_bytes,
        ending,
    )
    .map_err(|error| error.next("serve without a share for ordinary traffic"))
}

/// Two servers before one directory would each believe that they know what is in it.
fn lock_alone(dir: &dyn Dir) -> Result<Box<dyn File>> {
    let file = match dir.create(LOCK_FILE, Create::Buffered) {
        Err(_) if dir.holds(LOCK_FILE)? => dir.open(LOCK_FILE)?,
        made => made?,
    };
    if file.try_lock()? {
        return Ok(file);
    }
    Err(
        Error::unavailable(format!("another server has {}", dir.path().display()))
            .next("end it, or give this one a directory of its own"),
    )
}
