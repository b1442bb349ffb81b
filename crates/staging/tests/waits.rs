//! Tests for how long a server, and those who call it, wait for each other.
#![allow(clippy::disallowed_methods, clippy::unwrap_used)] // tests look behind the door

use orcheck_format::wire::{Ask, Message, Reply, StoreDir, StoreMessage};
use orcheck_io::clock::{Clock, SystemClock};
use orcheck_io::failpoints::{Failpoint, FailpointHook, Failpoints, Verdict};
use orcheck_net::{Conn, Key, Received};
use orcheck_staging::server::{Config, Order, Server, Stopper, Tenant};
use orcheck_testing::Scratch;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(20);
const PIECE: usize = 4 << 20;
/// Those that the server has memory for.
const PIECES: u32 = 4;

/// A clock that can be put forward.
#[derive(Default)]
struct Ahead(AtomicU64);

impl Ahead {
    fn put_forward(&self, seconds: u64) {
        self.0.fetch_add(seconds, Ordering::AcqRel);
    }
}

impl Clock for Ahead {
    fn now(&self) -> Duration {
        SystemClock.now() + Duration::from_secs(self.0.load(Ordering::Acquire))
    }

    fn unix_ms(&self) -> u64 {
        SystemClock.unix_ms()
    }

    fn sleep(&self, time: Duration) {
        std::thread::park_timeout(time);
    }
}

/// Holds a step where the path contains a text, until it is released.
#[derive(Default)]
struct Hold {
    /// Whether one came, and whether it may go.
    state: Mutex<(bool, bool)>,
    changed: Condvar,
}

impl Hold {
    fn wait_until_held(&self) {
        let state = self.state.lock().unwrap();
        let waited = self.changed.wait_timeout_while(state, LIMIT, |one| !one.0);
        assert!(!waited.unwrap().1.timed_out(), "nothing was held");
    }

    fn release(&self) {
        self.state.lock().unwrap().1 = true;
        self.changed.notify_all();
    }
}

impl FailpointHook for Hold {
    fn at(&self, step: &Failpoint) -> Verdict {
        let is_it = ["file.read", "file.write"].contains(&step.site);
        if is_it && step.target.contains("held") {
            let mut state = self.state.lock().unwrap();
            state.0 = true;
            self.changed.notify_all();
            let _ = self.changed.wait_timeout_while(state, LIMIT, |one| !one.1);
        }
        Verdict::Go
    }
}

/// A server with a turn for one file at a time.
struct Running {
    server: Option<JoinHandle<()>>,
    stopper: Stopper,
    at: orcheck_net::Address,
    clock: Arc<Ahead>,
    hold: Arc<Hold>,
}

impl Running {
    fn start(dir: &Path) -> Self {
        Self::start_for(dir, 2)
    }

    fn start_for(dir: &Path, tenants: u8) -> Self {
        let (clock, hold) = (Arc::new(Ahead::default()), Arc::new(Hold::default()));
        let tenant = |number: u8| Tenant {
            name: format!("t{number}"),
            key: Key::new([number; 32]),
            quota_bytes: None,
        };
        let config = Config {
            address: orcheck_net::Address::Tcp(([127, 0, 0, 1], 0).into()),
            dir: dir.to_path_buf(),
            tenants: (1..=tenants).map(tenant).collect(),
            pieces: PIECES,
            at_once: 1,
            order: Order::Pulled,
            ordinary_share: 0.0,
        };
        let failpoints = Failpoints::with(Arc::clone(&hold) as Arc<dyn FailpointHook>);
        let of = Arc::clone(&clock) as Arc<dyn Clock>;
        let server = Server::bind(&config, of, failpoints).unwrap();
        let (at, stopper) = (server.address(), server.stopper());
        Self {
            server: Some(std::thread::spawn(|| server.run())),
            stopper,
            at,
            clock,
            hold,
        }
    }

    fn caller(&self, tenant: u8) -> Conn {
        let key = Key::new([tenant; 32]);
        Conn::connect_to_server(&self.at, &key, &Failpoints::none(), LIMIT).unwrap()
    }

    /// A caller with a file.
    fn opened(&self, tenant: u8, name: &str) -> Conn {
        let mut conn = self.caller(tenant);
        send(&mut conn, Ask::Open(StoreDir::default(), name.to_owned()));
        assert!(matches!(reply(&mut conn), Reply::Told(_)), "{name}");
        conn
    }

    fn created(&self, tenant: u8, name: &str) -> Conn {
        let mut conn = self.caller(tenant);
        send(
            &mut conn,
            Ask::Create(StoreDir::default(), name.to_owned(), false),
        );
        assert!(matches!(reply(&mut conn), Reply::Told(_)), "{name}");
        conn
    }

    /// Ends it; how long that took.
    fn stop(&mut self) -> Duration {
        let begin = SystemClock.now();
        self.hold.release();
        self.stopper.stop();
        if let Some(server) = self.server.take() {
            server.join().unwrap();
        }
        SystemClock.now() - begin
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.hold.release();
        self.stopper.stop();
    }
}

fn send(conn: &mut Conn, ask: Ask) {
    let message = Message::Store(StoreMessage::Ask(ask));
    conn.send(&message, LIMIT).unwrap();
}

fn reply(conn: &mut Conn) -> Reply {
    match conn.receive_any(LIMIT).unwrap() {
        Received::Message(Message::Store(StoreMessage::Reply(reply))) => reply,
        other => panic!("{other:?}"),
    }
}

/// Whether a sign of life is the answer to a read; the bytes are taken otherwise.
fn is_busy(conn: &mut Conn) -> bool {
    let Received::Bytes(len) = conn.receive_any(LIMIT).unwrap() else {
        return true;
    };
    conn.receive_bulk(&mut vec![0; len], LIMIT, LIMIT).unwrap();
    false
}

/// The bytes of a read, after signs of life.
fn bytes(conn: &mut Conn) -> usize {
    loop {
        match conn.receive_any(LIMIT).unwrap() {
            Received::Bytes(len) => {
                let mut into = vec![0; len];
                conn.receive_bulk(&mut into, LIMIT, LIMIT).unwrap();
                return len;
            }
            Received::Message(Message::Store(StoreMessage::Reply(Reply::Busy))) => {}
            other => panic!("{other:?}"),
        }
    }
}

// Breaks if: a server whose disk hangs tells callers that it is alive; they would wait for a turn
// as long as it does.
#[test]
fn a_server_whose_disk_hangs_says_nothing_to_those_who_wait_for_their_turn() {
    let scratch = Scratch::new("hangs");
    let mut server = Running::start(scratch.path());
    let mut first = server.created(1, "held");
    send(&mut first, Ask::Offer(64 << 20));
    // Its pieces take all of the memory.
    let mut sent = 0;
    while sent < PIECES {
        let Reply::Want(wanted) = reply(&mut first) else {
            continue;
        };
        for _ in 0..wanted {
            let at = u64::from(sent) * PIECE as u64;
            first.send_bulk(at, &[&vec![7; PIECE]], LIMIT).unwrap();
            sent += 1;
        }
    }
    server.hold.wait_until_held();
    let mut second = server.created(2, "other");
    send(&mut second, Ask::Offer(64 << 20));
    // While the disk merely takes long.
    server.clock.put_forward(60);
    let mut said = reply(&mut second);
    // On a machine under load it may have come before the first one had all of the memory.
    while matches!(said, Reply::Want(_)) {
        said = reply(&mut second);
    }
    assert_eq!(said, Reply::Busy);
    server.clock.put_forward(600);
    let silence = Duration::from_millis(2500);
    // One may have been on its way.
    let _ = second.receive_any(silence);
    let error = second.receive_any(silence).unwrap_err();
    assert!(error.message().contains("no answer within"), "{error}");
    server.stop();
}

// Breaks if: those who read at the same time have a fixed time to get memory; a busy server would
// pass for one that lost their files.
#[test]
fn readers_wait_for_each_other_as_long_as_memory_is_returned() {
    let scratch = Scratch::new("readers");
    let mut server = Running::start(scratch.path());
    for name in ["t1/held", "t1/file", "t2/file"] {
        std::fs::write(scratch.path().join(name), vec![7; PIECE]).unwrap();
    }
    let (mut holds, mut waits) = (server.opened(1, "held"), server.opened(1, "file"));
    let mut other = server.opened(2, "file");
    send(&mut holds, Ask::Read(0, PIECE as u64));
    server.hold.wait_until_held();
    // The tenant has its share of the memory.
    send(&mut waits, Ask::Read(0, PIECE as u64));
    for _ in 0..3 {
        assert_eq!(reply(&mut waits), Reply::Busy);
        send(&mut other, Ask::Read(0, PIECE as u64));
        assert_eq!(bytes(&mut other), PIECE);
        for _ in 0..2 {
            assert_eq!(reply(&mut waits), Reply::Busy);
        }
        server.clock.put_forward(60);
    }
    server.hold.release();
    assert_eq!(bytes(&mut holds), PIECE);
    assert_eq!(bytes(&mut waits), PIECE);
    server.stop();
}

// Breaks if: readers of one job have all of the memory of a server; another job would wait until
// they are given up, one after the other.
#[test]
fn readers_of_a_job_that_stop_keep_no_other_job_from_reading() {
    let scratch = Scratch::new("stop");
    let mut server = Running::start_for(scratch.path(), 1);
    let jobs = ["one", "two"].map(|job| StoreDir::default().child(job).unwrap());
    for job in ["one", "two"] {
        let dir = scratch.path().join("t1").join(job);
        std::fs::create_dir(&dir).unwrap();
        std::fs::write(dir.join("file"), vec![7; PIECE]).unwrap();
    }
    let open = |job: &StoreDir| {
        let mut conn = server.caller(1);
        send(&mut conn, Ask::Open(job.clone(), "file".to_owned()));
        assert!(matches!(reply(&mut conn), Reply::Told(_)));
        conn
    };
    let mut stopped: Vec<Conn> = (0..PIECES).map(|_| open(&jobs[0])).collect();
    for conn in &mut stopped {
        // More than the kernel keeps for a connection.
        for _ in 0..16 {
            send(conn, Ask::Read(0, PIECE as u64));
        }
    }
    // Until they have what they get.
    let mut waits = open(&jobs[0]);
    loop {
        send(&mut waits, Ask::Read(0, PIECE as u64));
        if is_busy(&mut waits) && is_busy(&mut waits) {
            break;
        }
    }
    let mut other = open(&jobs[1]);
    send(&mut other, Ask::Read(0, PIECE as u64));
    assert!(!is_busy(&mut other));
    server.stop();
}

// Breaks if: a server that is told to end waits for a caller that takes nothing.
#[test]
fn a_server_ends_in_the_middle_of_what_a_caller_does_not_take() {
    let scratch = Scratch::new("ends");
    let mut server = Running::start(scratch.path());
    std::fs::write(scratch.path().join("t1/file"), vec![7; PIECE]).unwrap();
    let mut conn = server.opened(1, "file");
    // More than the kernel keeps for a connection.
    for _ in 0..16 {
        send(&mut conn, Ask::Read(0, PIECE as u64));
    }
    let mut waits = server.opened(1, "file");
    // Until the first one has all memory of the tenant, and keeps it.
    loop {
        send(&mut waits, Ask::Read(0, PIECE as u64));
        if is_busy(&mut waits) && is_busy(&mut waits) {
            break;
        }
    }
    let took = server.stop();
    assert!(took < Duration::from_secs(10), "{took:?}");
}
