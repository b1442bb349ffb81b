//! Implements a staging server: it serves one directory, takes in what the nodes of many jobs
//! write, and gives it back.
//!
//! How: every caller has proven one of the server's keys, and sees only the directory of that key.
//! Its writes are *pulled*: the server decides how much it wants from which node, so that only a
//! few files at a time reach the disk, in large pieces and in order (`pull.rs`), through memory of
//! the server (`intake.rs`). A container lies on the disk as its writer made it: its manifest,
//! which can be rebuilt by reading the container, says where the bytes of each rank are.
//!
//! | file | what |
//! | --- | --- |
//! | `session.rs` | one connection; `session/reading.rs`: its reads |
//! | `pull.rs` | who may send when, and how many pieces each connection may have in flight; pure |
//! | `intake.rs` | the server's memory for pieces as a whole, and the threads that write them |
//! | `ahead.rs` | reads ahead for one caller |
//! | `sharing.rs`, `pauses.rs` | leave ordinary traffic its share of the disk |
//! | `tenants.rs` | the users of one server: keys, directories, quotas |
//! | `quota.rs`, `recount.rs` | what each tenant stores, and counting it again |
//! | `names.rs` | which names are durable, so that one sync serves many callers |
//! | `identity.rs` | which disk this is |
//! | `log.rs` | what the operator reads |
//! | `locked.rs` | a lock that a panicking thread cannot keep |
//! | here | listening, limits (`Limits`), starting and ending |
//!
//! Invariants:
//! 1. Acknowledged data is durable: the answer to `sync` follows the sync of the file or directory.
//! 2. A server keeps no state outside its directory: it can be killed at any time and restarted.
//! 3. A directory has one server at a time.
//! 4. Connections, threads and memory are bounded.
//!
//! Survives: any behaviour of callers (`session.rs`) and disks (the caller gets the error), and its
//! own death (whatever was not acknowledged has no commit record). Not here: the meaning of
//! containers and records (the engine, at the callers).

mod ahead;
mod identity;
mod intake;
mod locked;
mod log;
mod names;
pub mod pauses;
pub mod pull;
mod quota;
mod recount;
mod session;
mod sharing;
mod tenants;

use crate::open_dir;
use ahead::Slots;
pub use identity::expect_identity;
use intake::{Intake, Memory};
use locked::guard;
use log::Log;
use names::Names;
use orcheck_format::wire::{Message, Reply, StoreMessage};
use orcheck_format::{Error, Result};
use orcheck_io::clock::Clock;
use orcheck_io::disk::{Create, Device, Dir, File};
use orcheck_io::failpoints::Failpoints;
use orcheck_io::machine::thread;
use orcheck_io::rng::random_bytes;
use orcheck_net::{Address, Conn, Listener};
use pull::{Begins, Grant, Limits, Pull};
use session::{Port, Session, Tenancy};
use sharing::Sharing;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;
use tenants::{Owned, Served};
pub use tenants::{Reread, Tenant, User};

/// The file whose lock gives a server its directory exclusively.
const LOCK_FILE: &str = "server.lock";
/// Maximum number of simultaneous connections; each has up to four descriptors.
const SESSIONS_MAX: usize = 4096;
/// Length of the longest message that a caller may send.
const MESSAGE_MAX: u32 = 64 << 10;
/// Number of threads that write.
const DISK_THREADS: usize = 2;
/// A write that takes longer hangs.
const HANGS: Duration = Duration::from_secs(600);
/// How long the server waits for callers before it does other things.
const LOOK: Duration = Duration::from_millis(200);
/// The same while a turn may end although nothing arrives.
const LOOK_SOON: Duration = Duration::from_millis(20);

/// The configuration of a server.
#[derive(Debug, Clone)]
pub struct Config {
    /// Where it listens.
    pub address: Address,
    /// The directory that it serves.
    pub dir: PathBuf,
    /// Who is served.
    pub tenants: Vec<Tenant>,
    /// Number of 4 MiB pieces that it holds in memory on their way to the disk.
    pub pieces: u32,
    /// Number of files that it takes in at the same time.
    pub at_once: usize,
    /// The order in which incoming data is written.
    pub order: Order,
    /// The share of its rate that ordinary traffic on the same disk keeps, from 0 (nothing is kept)
    /// to less than 1.
    pub ordinary_share: f64,
}

/// The order in which incoming data is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// Pulled from a few files at a time; see the module.
    Pulled,
    /// As it arrives, from all at once, each request by itself, as servers of parallel file systems
    /// do. For comparison.
    Arrival {
        /// Whether to write through the page cache, which the sync at the end empties; otherwise
        /// each request goes to the disk.
        cached: bool,
    },
}

/// State shared by all sessions.
pub(crate) struct Shared {
    instance: AtomicU64,
    pub(crate) order: Order,
    pub(crate) clock: Arc<dyn Clock>,
    pull: Mutex<Pull>,
    ports: Mutex<BTreeMap<u64, Arc<Port>>>,
    intake: OnceLock<Intake>,
    /// Number of pieces of memory on their way to the disk.
    pieces: usize,
    /// Memory for reads.
    pub(crate) outgoing: Memory,
    /// Memory for reading ahead. It may be occupied for long: nobody waits for it.
    pub(crate) ahead: Memory,
    /// Limits the number of files that are read ahead at the same time.
    pub(crate) slots: Arc<Slots>,
    /// Bytes that no caller requested; see [`Stopper::set_background_reads`].
    beside_bytes: Arc<AtomicU64>,
    sharing: OnceLock<Arc<Sharing>>,
    /// Which names are durable.
    pub(crate) names: Names,
    files: AtomicU64,
    pub(crate) stopping: Arc<AtomicBool>,
    /// Who is served.
    pub(crate) served: Served,
    pub(crate) log: Log,
    refused_callers: AtomicU64,
    /// When bytes of a file were last moved, in ms of the clock.
    moved_ms: AtomicU64,
}

impl Shared {
    /// Notes that bytes of a file are being moved for a caller.
    pub(crate) fn moved(&self) {
        self.moved_ms.store(self.now_ms(), Ordering::Relaxed);
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.clock.now().as_millis()).unwrap_or(u64::MAX)
    }

    /// Advances the order of streams, and tells those who may send.
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

    /// Decides about a piece of a stream that is about to arrive.
    pub(crate) fn begins(&self, id: u64, job: u64) -> Begins {
        let begins = guard(&self.pull).begins(self.clock.now(), id, job);
        // A waiting stream may get its turn at once.
        if begins == Begins::Waits {
            self.pull(Pull::tick);
        }
        begins
    }

    /// Counts refused callers, and reports the last one to the operator.
    pub(crate) fn refused(&self, count: u64, last: &str) {
        if count > 0 {
            self.refused_callers.fetch_add(count, Ordering::Relaxed);
            let line = format!("a caller was refused: {last}");
            self.log.say_rarely("refused", count, &line);
        }
    }

    /// The identity of this instance of the server.
    pub(crate) fn instance(&self) -> u64 {
        self.instance.load(Ordering::Acquire)
    }

    /// Notes that names may be lost: every caller that changed any and did not sync them must learn
    /// it, as if this were another instance.
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

    /// Does something to the disk other than writing a piece.
    pub(crate) fn at_disk<T>(&self, work: impl FnOnce() -> T) -> T {
        match self.sharing.get() {
            Some(sharing) => sharing.other(work),
            None => work(),
        }
    }

    /// Whether a write to the disk does not end.
    pub(crate) fn hangs(&self) -> bool {
        let hangs = self.intake().longest() > HANGS;
        if hangs {
            let s = HANGS.as_secs();
            let line = format!("its disk has not taken a block for {s} s: callers give up");
            self.log.say_rarely("hangs", 1, &line);
        }
        hangs
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
    /// Locked as long as the server is alive.
    _lock: Box<dyn File>,
}

/// Ends a server from another thread, and observes it.
#[derive(Clone)]
pub struct Stopper {
    shared: Arc<Shared>,
}

/// What a server has counted since it began.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Counts {
    /// Callers that proved neither a key of this server nor to be one of its users.
    pub refused_callers: u64,
    /// Those that have a quota.
    pub quotas: Vec<QuotaUse>,
}

/// How much of its quota a tenant has used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuotaUse {
    /// The name of the tenant.
    pub name: String,
    /// The quota, in bytes.
    pub quota_bytes: u64,
    /// The bytes used.
    pub used_bytes: u64,
}

fn taken_by(owned: &Owned) -> Option<QuotaUse> {
    owned.account.most().map(|quota_bytes| QuotaUse {
        name: owned.name.clone(),
        quota_bytes,
        used_bytes: owned.account.used(),
    })
}

/// The number of pieces that one of this many tenants may have at a time: if there are others,
/// nobody has all.
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
    /// Reports the total number of bytes that were read from the disk without a request: they are
    /// not ordinary traffic.
    pub fn set_background_reads(&self, bytes: u64) {
        self.shared.beside_bytes.store(bytes, Ordering::Release);
    }

    /// Whether background work should wait, because bytes were moved for callers within the last
    /// second, or because ordinary traffic uses its share.
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

    /// The counts so far.
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

    /// Compares what tenants with a quota are charged with what is in their directories now, and
    /// corrects it.
    ///
    /// # Errors
    /// The error of a directory; the charges then stand.
    pub fn reconcile(&self) -> Result<()> {
        let owned = self.shared.served.owned();
        let mut owned = owned.iter();
        owned.try_for_each(|one| recount::recount(&self.shared, one, &mut || true))
    }

    /// From now on, serves these and nobody else; open connections continue until they end. New
    /// quotas hold when this returns, and cover what is already stored, which is counted in about
    /// the time of listing its directories.
    ///
    /// # Errors
    /// As [`Server::bind`]; nothing has then changed.
    pub fn serve(&self, tenants: &[Tenant], users: &[User]) -> Result<Reread> {
        let shared = &self.shared;
        let reread = shared
            .served
            .serve(tenants, users, shared.clock.unix_ms() / 1000)?;
        let share = share_of(shared.pieces, shared.served.count());
        for memory in [&shared.outgoing, &shared.ahead] {
            memory.set_share(share.div_ceil(2));
        }
        // Breaks if: this does not wait; a newly refused caller could get in until the listener
        // looks again.
        let until = shared.clock.now().saturating_add(10 * LOOK);
        while !shared.served.is_known() && !shared.is_stopping() && shared.clock.now() < until {
            shared.clock.sleep(LOOK_SOON);
        }
        // Breaks if: this is left to the thread that counts now and then; until then a new quota
        // would refuse nothing. Admission is settled first, because a large directory must not
        // delay it.
        for one in shared.served.owned() {
            if one.account.most().is_some() && !one.account.is_complete() {
                // A directory that cannot be listed is reported in the log, and tried again.
                let _ = recount::recount(shared, &one, &mut || !shared.is_stopping());
            }
        }
        Ok(reread)
    }

    /// The names of all tenants since the server began.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        let owned = self.shared.served.owned();
        owned.into_iter().map(|one| one.name).collect()
    }

    /// Ends the server soon, after it has written what it has in memory.
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
    /// Invalid for tenants that cannot be distinguished; Unavailable if another server has the
    /// directory, or the address is taken; otherwise the error of the directory.
    pub fn bind(config: &Config, clock: Arc<dyn Clock>, failpoints: Failpoints) -> Result<Self> {
        Self::bind_with_users(config, (&[], false), clock, failpoints)
    }

    /// The same for tenants with a key and for users known by MUNGE; traffic between these users
    /// and the server is encrypted if `encrypt` is set.
    ///
    /// # Errors
    /// As [`Server::bind`]; Unsupported if there are users and libmunge is not installed.
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
        let pieces = config.pieces as usize;
        let share = share_of(pieces, served.count());
        let shared = Arc::new(Shared {
            order: config.order,
            served,
            log: Log::new(Arc::clone(&clock)),
            refused_callers: AtomicU64::new(0),
            instance: AtomicU64::new(u64::from_le_bytes(random_bytes())),
            clock,
            pull: Mutex::new(Pull::new(limits_of(config))),
            ports: Mutex::default(),
            intake: OnceLock::new(),
            pieces,
            outgoing: Memory::new(pieces.div_ceil(2), (share.div_ceil(2), pieces.div_ceil(4))),
            ahead: Memory::new(pieces / 2, (share.div_ceil(2), pieces)),
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
        let memory = Memory::new(pieces, (pieces, pieces));
        let weak = Arc::downgrade(&shared);
        let intake = Intake::start(DISK_THREADS, memory, sharing, &shared.clock, move |job| {
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

    /// The identity of its disk; see [`expect_identity`].
    #[must_use]
    pub fn identity(&self) -> u64 {
        self.identity
    }

    /// Sends each line for the operator to `say`, once. Threads of the server call it and wait for
    /// it.
    pub fn report_to(&self, say: impl Fn(&str) + Send + Sync + 'static) {
        self.shared.log.send_to(Box::new(say));
    }

    /// A handle that ends it.
    #[must_use]
    pub fn stopper(&self) -> Stopper {
        Stopper {
            shared: Arc::clone(&self.shared),
        }
    }

    /// Serves until it is stopped.
    pub fn run(mut self) {
        let reconciling = recount::start(&self.shared);
        while !self.shared.is_stopping() {
            let due = self.shared.look(Pull::due);
            let look = due.map_or(LOOK, |_| LOOK_SOON);
            let known = self.shared.served.admitted();
            let (keys, users) = (&known.keys, known.users.as_ref());
            let came = (self.listener).accept_known(keys, users, &self.failpoints, look);
            match came {
                Ok(Some((which, conn))) => self.begin(which, conn),
                Ok(None) => {}
                // A shortage of descriptors or memory: existing connections are still served.
                Err(_) => self.shared.clock.sleep(LOOK),
            }
            let refused = self.listener.take_refusals();
            self.shared.refused(refused.count, &refused.last);
            self.shared.pull(Pull::tick);
        }
        self.stopper().stop();
        for (_, session) in self.sessions.drain(..) {
            // A session that panicked has ended only its own connection.
            let _ = session.join();
        }
        if let Some(thread) = reconciling {
            // A thread that panicked has reported it.
            let _ = thread.join();
        }
        // Before the lock is released and another server may start.
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
        let whose = Tenancy {
            root: own.root,
            account: own.account,
            disk: own.disk,
            tenant: which as u64,
        };
        // If there is no descriptor or thread for it, the caller sees its connection end.
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

/// Sends the first and only answer of a connection.
fn refuse(mut conn: Conn, why: &str) {
    let reply = Reply::Failed(Error::unavailable(why));
    // The connection ends in any case.
    let _ = conn.send(&Message::Store(StoreMessage::Reply(reply)), Duration::ZERO);
}

/// The bounds of turns.
fn limits_of(config: &Config) -> Limits {
    Limits {
        pieces: config.pieces,
        at_once: config.at_once,
        window: 2,
        idle: Duration::from_millis(50),
        stall: Duration::from_secs(1),
        turn_bytes: 256 << 20,
        turn: Duration::from_secs(5),
    }
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

/// Locks the directory: two servers with one directory would each believe to know its contents.
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
