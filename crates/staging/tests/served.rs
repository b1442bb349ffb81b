//! Tests a server as its callers see it: directories and files that behave like local ones, and the
//! differences.
#![allow(clippy::disallowed_methods, clippy::unwrap_used)] // tests look behind the door

use orcheck_format::wire::{Ask, Message, Reply, StoreDir, StoreMessage};
use orcheck_format::{ErrorKind, Step};
use orcheck_io::clock::SystemClock;
use orcheck_io::disk::{Create, Dir, read_small, write_small};
use orcheck_io::failpoints::{Failpoint, FailpointHook, Failpoints, Verdict};
use orcheck_net::{Address, Conn, Key, Received};
use orcheck_staging::open_dir;
use orcheck_staging::server::{Config, Order, Server, Stopper, Tenant};
use orcheck_testing::ports::bound;
use orcheck_testing::{FaultPlan, Scratch, Seen};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Barrier, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(20);
const PIECE: usize = 4 << 20;

/// A server of two tenants in a directory of its own.
struct Running {
    at: Address,
    stopper: Stopper,
    thread: Option<JoinHandle<()>>,
}

fn tenant(name: &str, byte: u8) -> Tenant {
    Tenant {
        name: name.to_owned(),
        key: Key::new([byte; 32]),
        quota_bytes: None,
    }
}

fn config(dir: &Path, at: Option<&Address>) -> Config {
    Config {
        address: at
            .cloned()
            .unwrap_or(Address::Tcp(([127, 0, 0, 1], 0).into())),
        dir: dir.to_path_buf(),
        tenants: vec![tenant("one", 1), tenant("two", 2)],
        pieces: 4,
        at_once: 2,
        order: Order::Pulled,
        ordinary_share: 0.0,
    }
}

impl Running {
    fn start(dir: &Path, failpoints: Failpoints, at: Option<&Address>) -> Self {
        let config = config(dir, at);
        Self::of(bound(|| {
            Server::bind(&config, Arc::new(SystemClock), failpoints.clone())
        }))
    }

    fn of(server: Server) -> Self {
        let (at, stopper) = (server.address(), server.stopper());
        let thread = Some(std::thread::spawn(|| server.run()));
        Self {
            at,
            stopper,
            thread,
        }
    }

    /// What belongs to a tenant, as a caller opens it.
    fn open(&self, scratch: &Scratch, byte: u8) -> Arc<dyn Dir> {
        let path = self.url(scratch, byte);
        open_dir(&path, Failpoints::none()).unwrap()
    }

    fn url(&self, scratch: &Scratch, byte: u8) -> PathBuf {
        let key = scratch.path().join(format!("key{byte}"));
        std::fs::write(&key, [byte; 32]).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(&key, mode).unwrap();
        let at = self.at.to_string().replace("tcp:", "");
        PathBuf::from(format!("orcheck://{at}?key=file:{}", key.display()))
    }

    fn conn(&self) -> Conn {
        Conn::connect(&self.at, &Key::new([1; 32]), &Failpoints::none(), LIMIT).unwrap()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stopper.stop();
        let ended = self.thread.take().map(JoinHandle::join);
        if !std::thread::panicking() {
            ended.unwrap().unwrap();
        }
    }
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 31 + i / 255) as u8).collect()
}

/// Writes a file past the page cache and has it synced.
fn write_whole(dir: &dyn Dir, name: &str, bytes: &[u8]) {
    let file = dir.create(name, Create::Direct).unwrap();
    file.write_at(bytes, 0).unwrap();
    file.sync().unwrap();
}

fn ask(conn: &mut Conn, ask: Ask) -> Reply {
    let message = Message::Store(StoreMessage::Ask(ask));
    conn.send(&message, LIMIT).unwrap();
    match conn.receive_any(LIMIT).unwrap() {
        Received::Message(Message::Store(StoreMessage::Reply(reply))) => reply,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_file_lives_its_life_on_a_server() {
    let scratch = Scratch::new("served");
    let server = Running::start(scratch.path(), Failpoints::none(), None);
    let root = server.open(&scratch, 1);
    assert!(root.child("job", false).is_err());
    let dir = root.child("job", true).unwrap();
    let on_disk = scratch.path().join("one/job");
    assert!(on_disk.is_dir());
    for how in [Create::Buffered, Create::Direct] {
        let name = format!("{how:?}");
        let file = dir.create(&name, how).unwrap();
        let block = file.alignment_bytes() as usize;
        let bytes = pattern(3 * PIECE + 17 * block);
        file.allocate(bytes.len() as u64 + 8192).unwrap();
        // In pieces of many lengths, and not in order.
        let cuts = [0, block, PIECE - block, 2 * PIECE + 5 * block, bytes.len()];
        for at in [2, 0, 3, 1] {
            let part = cuts[at]..cuts[at + 1];
            file.write_at(&bytes[part.clone()], part.start as u64)
                .unwrap();
        }
        file.truncate(bytes.len() as u64).unwrap();
        file.sync().unwrap();
        assert_eq!(file.len_bytes().unwrap(), bytes.len() as u64);
        file.close().unwrap();
        assert_eq!(std::fs::read(on_disk.join(&name)).unwrap(), bytes);
        let again = dir.create(&name, how).err().unwrap();
        assert_eq!(again.kind(), ErrorKind::Invalid, "{again}");

        let file = dir.open(&name).unwrap();
        file.will_need(0, bytes.len() as u64);
        let mut read = vec![0; bytes.len() - 3];
        file.read_at(&mut read, 1).unwrap();
        assert_eq!(read, bytes[1..bytes.len() - 2]);
        let short = file.read_at(&mut read, 100).err().unwrap();
        assert_eq!(short.kind(), ErrorKind::Corrupt, "{short}");
        let short = dir
            .open(&name)
            .unwrap()
            .read_at(&mut [0; 5], bytes.len() as u64 - 4);
        assert_eq!(short.err().unwrap().kind(), ErrorKind::Corrupt);
    }
    write_small(&*dir, "small", b"text").unwrap();
    assert_eq!(read_small(&*dir, "small", 10).unwrap(), b"text");
    dir.rename("small", "other").unwrap();
    assert!(dir.holds("other").unwrap() && !dir.holds("small").unwrap());
    assert!(dir.rename_new("other", "Direct").is_err());
    dir.remove("other").unwrap();
    dir.sync().unwrap();
    let names: Vec<String> = dir
        .list()
        .unwrap()
        .into_iter()
        .map(|one| one.name)
        .collect();
    assert_eq!(names, ["Buffered", "Direct"]);
    assert!(dir.free_bytes().unwrap() > 0 && !dir.read_only().unwrap());
    let missing = dir.open("nothing").err().unwrap();
    assert_eq!(missing.kind(), ErrorKind::NotFound);
    assert!(
        missing
            .message()
            .starts_with(&server.at.to_string().replace("tcp:", "orcheck://"))
    );
    assert!(root.remove_child("job").is_err());
}

// Breaks if: the tenant's directory is not the one of its key, or a name leads out of it.
#[test]
fn a_key_opens_its_own_directory_and_no_other() {
    let scratch = Scratch::new("tenants");
    let server = Running::start(scratch.path(), Failpoints::none(), None);
    let (one, two) = (server.open(&scratch, 1), server.open(&scratch, 2));
    write_small(&*one, "mine", b"one").unwrap();
    write_small(&*two, "mine", b"two").unwrap();
    assert_eq!(read_small(&*one, "mine", 10).unwrap(), b"one");
    assert_eq!(
        std::fs::read(scratch.path().join("two/mine")).unwrap(),
        b"two"
    );
    for name in ["..", "../two", "two/mine", "/"] {
        assert_eq!(
            one.child(name, false).err().unwrap().kind(),
            ErrorKind::Invalid
        );
        assert_eq!(one.open(name).err().unwrap().kind(), ErrorKind::Invalid);
    }
    std::os::unix::fs::symlink(scratch.path().join("two"), scratch.path().join("one/way")).unwrap();
    assert!(one.child("way", false).is_err());
    let stranger = open_dir(&server.url(&scratch, 3), Failpoints::none())
        .err()
        .unwrap();
    assert!(stranger.message().contains("key"), "{stranger}");
}

#[test]
fn a_lock_opens_with_its_connection() {
    let scratch = Scratch::new("locks");
    let server = Running::start(scratch.path(), Failpoints::none(), None);
    let dir = server.open(&scratch, 1);
    write_small(&*dir, "claim", b"").unwrap();
    let first = dir.open("claim").unwrap();
    assert!(first.try_lock().unwrap() && first.try_lock().unwrap());
    let second = dir.open("claim").unwrap();
    assert!(!second.try_lock().unwrap());
    drop(first);
    assert!(second.try_lock().unwrap());
    let given = second.give_lock().unwrap();
    let third = dir.open("claim").unwrap();
    assert!(!third.try_lock().unwrap());
    // It crosses to another process as a descriptor.
    let holder = orcheck_io::disk::Lock::attach(given.detach().unwrap());
    assert!(!third.try_lock().unwrap());
    drop(holder);
    let late = std::time::Instant::now() + LIMIT;
    while !third.try_lock().unwrap() {
        assert!(std::time::Instant::now() < late);
        std::thread::yield_now();
    }
}

/// A disk whose writes of one file wait until they are let go.
#[derive(Default)]
struct SlowDisk {
    /// Whether a write has come, and whether writes may continue.
    state: Mutex<(bool, bool)>,
    changed: Condvar,
}

impl SlowDisk {
    fn wait_for(&self, so: impl Fn(&(bool, bool)) -> bool) {
        let state = self.state.lock().unwrap();
        let not_yet = |state: &mut (bool, bool)| !so(state);
        let waited = self.changed.wait_timeout_while(state, LIMIT, not_yet);
        assert!(!waited.unwrap().1.timed_out());
    }

    fn let_go(&self) {
        self.state.lock().unwrap().1 = true;
        self.changed.notify_all();
    }
}

impl FailpointHook for SlowDisk {
    fn at(&self, step: &Failpoint) -> Verdict {
        if step.site == "file.write" && step.target.ends_with("container") {
            self.state.lock().unwrap().0 = true;
            self.changed.notify_all();
            self.wait_for(|(_, may)| *may);
        }
        Verdict::Go
    }
}

// Breaks if: `sync` does not wait for what is in memory.
#[test]
fn nothing_is_durable_before_it_is_written() {
    let scratch = Scratch::new("slow");
    let disk = Arc::new(SlowDisk::default());
    let failpoints = Failpoints::with(Arc::clone(&disk) as Arc<dyn FailpointHook>);
    let server = Running::start(scratch.path(), failpoints, None);
    let dir = server.open(&scratch, 1);
    let file = dir.create("container", Create::Direct).unwrap();
    let bytes = pattern(2 * PIECE);
    file.write_at(&bytes, 0).unwrap();
    disk.wait_for(|(came, _)| *came);
    std::thread::scope(|scope| {
        let (tell, told) = std::sync::mpsc::channel();
        let file = &file;
        scope.spawn(move || tell.send(file.sync()).unwrap());
        // For long enough that the server says that it lives.
        let early = told.recv_timeout(Duration::from_millis(1500));
        disk.let_go();
        assert!(early.is_err(), "{early:?}");
        told.recv_timeout(LIMIT).unwrap().unwrap();
    });
    assert!(std::fs::read(scratch.path().join("one/container")).unwrap() == bytes);
}

// Breaks if: `sync` forgets the error of a write.
#[test]
fn a_full_disk_is_told_before_anything_counts_as_durable() {
    let scratch = Scratch::new("full");
    let plan = FaultPlan::new().at_site("file.write", 3, Verdict::Fail(28));
    let server = Running::start(
        scratch.path(),
        plan.only_where("container").failpoints().1,
        None,
    );
    let dir = server.open(&scratch, 1);
    let file = dir.create("container", Create::Direct).unwrap();
    let bytes = pattern(6 * PIECE);
    let written = file.write_at(&bytes, 0).and_then(|()| file.sync());
    let error = written.err().unwrap();
    assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
    assert!(file.sync().is_err() && file.write_at(&bytes[..4096], 0).is_err());
    // Others continue.
    write_small(&*dir, "small", b"text").unwrap();
}

// Breaks if: bytes beyond the first ones are taken in although they were not wanted.
#[test]
fn what_was_not_wanted_is_not_taken_in() {
    let scratch = Scratch::new("wanted");
    let server = Running::start(scratch.path(), Failpoints::none(), None);
    let mut conn = server.conn();
    let create = Ask::Create(StoreDir::default(), "file".to_owned(), false);
    assert!(matches!(ask(&mut conn, create), Reply::Told(_)));
    conn.send_bulk(0, &[&[1; 60_000]], LIMIT).unwrap();
    assert!(matches!(ask(&mut conn, Ask::Sync), Reply::Told(told) if told == [60_000]));
    // It may be refused while it is sent, or afterwards.
    let _ = conn.send_bulk(60_000, &[&[2; 60_000]], LIMIT);
    let _ = conn.send(&Message::Store(StoreMessage::Ask(Ask::Sync)), LIMIT);
    assert!(conn.receive_any(LIMIT).is_err());
    let on_disk = std::fs::read(scratch.path().join("one/file")).unwrap();
    assert_eq!(on_disk, [1; 60_000]);
    // Bytes for no file, too, and pieces without any.
    let mut conn = server.conn();
    let _ = conn.send_bulk(0, &[&[1; 10]], LIMIT);
    assert!(conn.receive_any(LIMIT).is_err());
    let mut conn = server.conn();
    let create = Ask::Create(StoreDir::default(), "empty".to_owned(), false);
    assert!(matches!(ask(&mut conn, create), Reply::Told(_)));
    let _ = conn.send_bulk(0, &[&[]], LIMIT);
    assert!(conn.receive_any(LIMIT).is_err());
    // And a message that is longer than any question.
    let mut conn = server.conn();
    let long = Message::Record {
        step: Step(1),
        level: orcheck_format::Level::Global,
        bytes: vec![0; 1 << 20],
    };
    let _ = conn.send(&long, LIMIT);
    assert!(conn.receive_any(LIMIT).is_err());
}

// Breaks if: the starts of a server are not told apart.
#[test]
fn what_a_server_did_before_it_was_started_anew_does_not_count_as_durable() {
    let scratch = Scratch::new("again");
    let server = Running::start(scratch.path(), Failpoints::none(), None);
    let dir = server.open(&scratch, 1).child("job", true).unwrap();
    let file = dir.create("a", Create::Buffered).unwrap();
    file.write_at(b"text", 0).unwrap();
    let at = server.at.clone();
    drop(server);
    let again = Running::start(scratch.path(), Failpoints::none(), Some(&at));
    // The file's bytes may be lost, and so may its name.
    assert_eq!(file.sync().err().unwrap().kind(), ErrorKind::Unavailable);
    assert!(file.sync().is_err());
    let error = dir.sync().err().unwrap();
    assert!(error.message().contains("started again"), "{error}");
    // The caller knows now; what it does from here on counts.
    write_small(&*dir, "b", b"text").unwrap();
    dir.sync().unwrap();
    drop(again);
    assert_eq!(dir.list().err().unwrap().kind(), ErrorKind::Unavailable);
}

// Breaks if: a directory whose sync failed tells only the one who asked; the others' names may be
// lost with it.
#[test]
fn all_who_changed_names_are_told_when_a_disk_loses_names() {
    let scratch = Scratch::new("names");
    // The first is that of the disk's identity.
    let plan = FaultPlan::new().at_site("dir.sync", 2, Verdict::Fail(5));
    let server = Running::start(scratch.path(), plan.only_where("/one").failpoints().1, None);
    let first = server.open(&scratch, 1);
    let second = server.open(&scratch, 1);
    let create = |dir: &Arc<dyn Dir>, name: &str| {
        let file = dir.create(name, Create::Buffered).unwrap();
        file.sync().unwrap();
        file.close().unwrap();
    };
    create(&first, "a");
    create(&second, "b");
    assert!(first.sync().unwrap_err().message().contains("EIO"));
    assert!(second.sync().unwrap_err().message().contains("lost names"));
    // Who has been told continues; so does another thread, for what it did itself.
    create(&first, "c");
    let other = Arc::clone(&first);
    std::thread::spawn(move || create(&other, "d"))
        .join()
        .unwrap();
    assert!(first.sync().is_err());
    first.sync().unwrap();
    create(&second, "e");
    second.sync().unwrap();
    let names: Vec<String> = first
        .list()
        .unwrap()
        .into_iter()
        .map(|one| one.name)
        .filter(|name| !name.ends_with(".id"))
        .collect();
    assert_eq!(names, ["a", "b", "c", "d", "e"]);
}

// Breaks if: what is written, or what is reserved, is not counted; or what was there before the
// server began.
#[test]
fn nobody_gets_beyond_its_quota() {
    const NAMES: u64 = 100_000;
    let scratch = Scratch::new("quota");
    let about = |left: u64, expected: u64| (expected..=expected + NAMES).contains(&left);
    let open = |quota| {
        let mut config = config(scratch.path(), None);
        // What names and directories take is beside the point here.
        config.tenants[0].quota_bytes = Some(quota + NAMES);
        let server = Server::bind(&config, Arc::new(SystemClock), Failpoints::none()).unwrap();
        Running::of(server)
    };
    let server = open(10 << 20);
    let dir = server.open(&scratch, 1).child("job", true).unwrap();
    assert!(about(dir.free_bytes().unwrap(), 10 << 20));
    let bytes = pattern(6 << 20);
    let file = dir.create("first", Create::Direct).unwrap();
    file.write_at(&bytes, 0).unwrap();
    file.sync().unwrap();
    file.close().unwrap();
    // Neither reserved nor written, and nobody else is touched.
    let file = dir.create("second", Create::Direct).unwrap();
    let refused = file.allocate(6 << 20).err().unwrap();
    assert_eq!(refused.kind(), ErrorKind::NoSpace, "{refused}");
    assert!(refused.message().contains("beyond the quota"), "{refused}");
    let written = file.write_at(&bytes, 0).and_then(|()| file.sync());
    assert_eq!(written.err().unwrap().kind(), ErrorKind::NoSpace);
    drop(file);
    write_small(&*server.open(&scratch, 2), "small", &bytes).unwrap();
    dir.remove("second").unwrap();
    dir.rename("first", "renamed").unwrap();
    drop(server);
    let server = open(10 << 20);
    let dir = server.open(&scratch, 1).child("job", false).unwrap();
    let file = dir.create("third", Create::Direct).unwrap();
    assert!(file.allocate(5 << 20).is_err());
    file.allocate(4 << 20).unwrap();
    file.truncate(1 << 20).unwrap();
    file.close().unwrap();
    assert!(about(dir.free_bytes().unwrap(), 3 << 20));
    write_small(&*dir, "third", &bytes[..2 << 20]).unwrap();
    assert!(about(dir.free_bytes().unwrap(), 2 << 20));
    dir.remove("renamed").unwrap();
    assert!(about(dir.free_bytes().unwrap(), 8 << 20));
}

#[test]
fn two_servers_do_not_share_a_directory() {
    let scratch = Scratch::new("alone");
    let server = Running::start(scratch.path(), Failpoints::none(), None);
    let bind = |config| Server::bind(&config, Arc::new(SystemClock), Failpoints::none());
    let refused = bind(config(scratch.path(), None)).err().unwrap();
    assert!(refused.message().contains("another server"), "{refused}");
    drop(server);
    for tenants in [
        vec![],
        vec![tenant("", 1)],
        vec![tenant("..", 1)],
        vec![tenant("a/b", 1)],
        vec![tenant("server.lock", 1)],
        vec![tenant("one", 1), tenant("one", 2)],
        vec![tenant("one", 1), tenant("two", 1)],
    ] {
        let config = Config {
            tenants,
            ..config(scratch.path(), None)
        };
        assert_eq!(bind(config).err().unwrap().kind(), ErrorKind::Invalid);
    }
    assert!(bind(config(scratch.path(), None)).is_ok());
}

// Breaks if: a session waits for its disk, or for its caller, while it holds what others need.
#[test]
fn callers_that_stop_in_the_middle_keep_nobody_waiting() {
    let scratch = Scratch::new("stopped");
    let server = Running::start(scratch.path(), Failpoints::none(), None);
    // More of them than the server has memory for: each is granted pieces and sends none.
    let mut stopped = Vec::new();
    for index in 0..8 {
        let mut conn = server.conn();
        let create = Ask::Create(StoreDir::default(), format!("stopped{index}"), false);
        assert!(matches!(ask(&mut conn, create), Reply::Told(_)));
        let offer = Message::Store(StoreMessage::Ask(Ask::Offer(64 << 20)));
        conn.send(&offer, LIMIT).unwrap();
        stopped.push(conn);
    }
    let dir = server.open(&scratch, 2);
    let bytes = pattern(8 * PIECE);
    write_whole(&*dir, "container", &bytes);
    assert!(std::fs::read(scratch.path().join("two/container")).unwrap() == bytes);
}

// Breaks if: what was read ahead is taken for another piece, or its memory is not given back.
#[test]
fn readers_get_their_bytes_however_they_go_on() {
    let scratch = Scratch::new("ahead");
    let server = Running::start(scratch.path(), Failpoints::none(), None);
    let dir = server.open(&scratch, 1);
    let bytes = pattern(5 * PIECE + 12_345);
    std::fs::write(scratch.path().join("one/file"), &bytes).unwrap();
    const KIB: usize = 1 << 10;
    // (offset, length) of reads, and how often each continues where it ended.
    let ways: [&[(usize, usize, usize)]; 6] = [
        &[(0, PIECE, 6)],
        &[(4096, 64 * KIB, 400)],
        &[(1, PIECE - 1, 6)],
        &[(0, PIECE, 3), (PIECE, PIECE, 3), (7, 3 * PIECE, 2)],
        &[(0, 100 * KIB, 4), (400 * KIB, 2 * PIECE, 3), (0, 4096, 2)],
        &[(0, PIECE, 2), (2 * PIECE, PIECE + 4096, 2), (0, PIECE, 2)],
    ];
    let read = |way: &[(usize, usize, usize)]| {
        let file = dir.open("file").unwrap();
        for &(begin, len, times) in way {
            for at in (begin..bytes.len()).step_by(len).take(times) {
                let len = len.min(bytes.len() - at);
                let mut into = vec![0; len];
                file.read_at(&mut into, at as u64).unwrap();
                assert!(into == bytes[at..at + len], "{len} bytes at {at}");
            }
        }
        // Beyond the end there is nothing, and the connection is as it was.
        let beyond = file.read_at(&mut [0; 10], bytes.len() as u64 - 9);
        assert_eq!(beyond.err().unwrap().kind(), ErrorKind::Corrupt);
        assert_eq!(file.len_bytes().unwrap(), bytes.len() as u64);
    };
    // More often, and more at a time, than the server has memory for.
    for _ in 0..3 {
        std::thread::scope(|scope| {
            for way in ways {
                scope.spawn(move || read(way));
            }
        });
    }
}

/// How often a server passes a step while something is done with it.
fn counted(
    site: &'static str,
    config: &Config,
    scratch: &Scratch,
    work: impl Fn(&dyn Dir),
) -> usize {
    let (plan, failpoints) = FaultPlan::record().failpoints();
    let server = Server::bind(config, Arc::new(SystemClock), failpoints).unwrap();
    let server = Running::of(server);
    work(&*server.open(scratch, 1));
    drop(server);
    let seen = plan.seen();
    // Those of the server's own files are not counted.
    let own = |step: &&Seen| step.site == site && step.target.contains("one/file");
    seen.iter().filter(own).count()
}

// Breaks if: pieces are read ahead that nobody asks for.
#[test]
fn who_reads_in_lengths_that_differ_has_nothing_read_for_nothing() {
    let scratch = Scratch::new("ahead-lengths");
    std::fs::create_dir_all(scratch.path().join("one")).unwrap();
    std::fs::write(scratch.path().join("one/file"), pattern(5 * PIECE)).unwrap();
    let reads = counted(
        "file.read",
        &config(scratch.path(), None),
        &scratch,
        |dir| {
            let file = dir.open("file").unwrap();
            let mut at = 0;
            for kib in 1_u64..40 {
                file.read_at(&mut vec![0; (kib << 16) as usize / 4], at)
                    .unwrap();
                at += (kib << 16) / 4;
            }
        },
    );
    assert_eq!(reads, 39);
}

// Breaks if: small writes travel alone, or what waits for the next one is forgotten.
#[test]
fn small_writes_travel_with_what_follows_them() {
    for (order, most) in [(Order::Pulled, 7), (Order::Arrival { cached: false }, 40)] {
        let scratch = Scratch::new("gathered");
        let config = Config {
            order,
            ..config(scratch.path(), None)
        };
        let bytes = pattern(4 * PIECE + 8192);
        let writes = counted("file.write", &config, &scratch, |dir| {
            let file = dir.create("file", Create::Direct).unwrap();
            let mut at = 0;
            // Headers, pieces, records; the last one lies elsewhere.
            let lens = [4096, 8192, PIECE, 4096, PIECE - 4096, 500 << 10, PIECE / 2];
            for len in lens.into_iter().chain([4096; 30]) {
                file.write_at(&bytes[at..at + len], at as u64).unwrap();
                at += len;
            }
            file.write_at(&bytes[bytes.len() - 4096..], (bytes.len() - 4096) as u64)
                .unwrap();
            file.sync().unwrap();
            let found = std::fs::read(scratch.path().join("one/file")).unwrap();
            assert!(found[..at] == bytes[..at] && found.ends_with(&bytes[bytes.len() - 4096..]));
            // What was not synced is there once it is closed.
            file.write_at(&bytes[..4096], at as u64).unwrap();
            assert_eq!(file.len_bytes().unwrap(), bytes.len() as u64);
            file.write_at(&bytes[..4096], at as u64 + 4096).unwrap();
            file.close().unwrap();
            let found = std::fs::read(scratch.path().join("one/file")).unwrap();
            assert!(found[at..at + 8192] == *[&bytes[..4096], &bytes[..4096]].concat());
        });
        println!("{order:?}: {writes} writes");
        assert!(
            writes <= most && (most < 40 || writes == 40),
            "{order:?}: {writes} writes"
        );
    }
}

#[test]
fn a_read_that_fails_is_told_to_who_asked_for_it() {
    let scratch = Scratch::new("ahead-fails");
    let bytes = pattern(8 * PIECE);
    for failing in [1, 2, 3, 5, 8] {
        let plan = FaultPlan::new().at_site("file.read", failing, Verdict::Fail(5));
        let failpoints = plan.only_where("one/file").failpoints().1;
        let server = Running::start(scratch.path(), failpoints, None);
        std::fs::write(scratch.path().join("one/file"), &bytes).unwrap();
        let dir = server.open(&scratch, 1);
        let file = dir.open("file").unwrap();
        let mut failed = 0;
        for (index, part) in bytes.chunks(PIECE).enumerate() {
            let mut into = vec![0; PIECE];
            match file.read_at(&mut into, (index * PIECE) as u64) {
                Ok(()) => assert!(into == part),
                Err(error) => {
                    failed += 1;
                    assert!(error.message().contains("read 4194304 bytes"), "{error}");
                    file.read_at(&mut into, (index * PIECE) as u64).unwrap();
                    assert!(into == part);
                }
            }
        }
        assert_eq!(failed, 1, "read {failing}");
    }
}

#[test]
fn what_is_written_as_it_comes_is_whole_too() {
    for cached in [false, true] {
        let scratch = Scratch::new("arrival");
        let config = Config {
            order: Order::Arrival { cached },
            ..config(scratch.path(), None)
        };
        let server = Server::bind(&config, Arc::new(SystemClock), Failpoints::none()).unwrap();
        let server = Running::of(server);
        let dir = server.open(&scratch, 1);
        let bytes = pattern(3 * PIECE + 65_536);
        std::thread::scope(|scope| {
            for name in ["a", "b", "c"] {
                let (dir, bytes) = (&dir, &bytes);
                scope.spawn(move || {
                    let file = dir.create(name, Create::Direct).unwrap();
                    assert!(!cached || !file.is_direct());
                    file.allocate(bytes.len() as u64).unwrap();
                    // Stripes, then larger ones.
                    let (stripes, pieces) = bytes.split_at(PIECE);
                    for (index, part) in stripes.chunks(65_536).enumerate() {
                        file.write_at(part, index as u64 * 65_536).unwrap();
                    }
                    file.write_at(pieces, PIECE as u64).unwrap();
                    file.sync().unwrap();
                    file.close().unwrap();
                });
            }
        });
        for name in ["a", "b", "c"] {
            let found = std::fs::read(scratch.path().join("one").join(name)).unwrap();
            assert!(found == bytes, "{name}");
        }
    }
    let scratch = Scratch::new("arrival-full");
    let plan = FaultPlan::new().at_site("file.write", 3, Verdict::Fail(28));
    let config = Config {
        order: Order::Arrival { cached: false },
        ..config(scratch.path(), None)
    };
    let failpoints = plan.only_where("container").failpoints().1;
    let server = Running::of(Server::bind(&config, Arc::new(SystemClock), failpoints).unwrap());
    let file = server.open(&scratch, 1);
    let file = file.create("container", Create::Direct).unwrap();
    let bytes = pattern(6 * PIECE);
    let written = file.write_at(&bytes, 0).and_then(|()| file.sync());
    assert_eq!(written.err().unwrap().kind(), ErrorKind::NoSpace);
}

// Breaks if: a question that was not sent counts as failed, or is asked again for ever.
#[test]
fn a_question_that_could_not_be_sent_is_asked_over_another_connection() {
    let scratch = Scratch::new("again");
    let server = Running::start(scratch.path(), Failpoints::none(), None);
    let url = server.url(&scratch, 1);
    for (times, goes_well) in [(1, true), (2, true), (3, false)] {
        let plan = (1..=times).fold(FaultPlan::new(), |plan, nth| {
            plan.at_site("net.send", nth, Verdict::Fail(32))
                .only_where("holds")
        });
        let dir = open_dir(&url, plan.failpoints().1).unwrap();
        let held = dir.holds("nothing");
        assert_eq!(held.is_ok(), goes_well, "{times} times: {held:?}");
        // Afterwards it is as it was.
        assert!(!dir.holds("nothing").unwrap());
    }
}

// Breaks if: who waits for the sync of another is told that names are durable, although the disk
// lost them: it says so once.
#[test]
fn names_that_a_disk_lost_are_lost_for_all_who_sync_at_once() {
    for _ in 0..12 {
        let scratch = Scratch::in_memory("names-lost");
        // The first is that of the disk's identity.
        let plan = FaultPlan::new().at_site("dir.sync", 2, Verdict::Fail(5));
        let failpoints = plan.only_where("one").failpoints().1;
        let server = Running::start(scratch.path(), failpoints, None);
        let dirs = [server.open(&scratch, 1), server.open(&scratch, 1)];
        let both = Barrier::new(2);
        let synced = std::thread::scope(|scope| {
            let one = |dir: &Arc<dyn Dir>, name: &str| {
                let made = dir.create(name, Create::Buffered);
                made.unwrap().close().unwrap();
                both.wait();
                dir.sync()
            };
            let [first, second] = &dirs;
            let other = scope.spawn(move || one(second, "second"));
            [one(first, "first"), other.join().unwrap()]
        });
        assert!(synced.iter().all(Result::is_err), "{synced:?}");
    }
}

// Breaks if: a share that cannot be kept is promised.
#[test]
fn a_share_for_others_is_kept_or_refused() {
    let bind = |scratch: &Scratch, share, order| {
        let config = Config {
            ordinary_share: share,
            order,
            ..config(scratch.path(), None)
        };
        Server::bind(&config, Arc::new(SystemClock), Failpoints::none())
    };
    let memory = Scratch::in_memory("share");
    let nowhere = bind(&memory, 0.9, Order::Pulled).err().unwrap();
    assert_eq!(nowhere.kind(), ErrorKind::Unsupported, "{nowhere}");
    for (share, order) in [
        (1.0, Order::Pulled),
        (-0.1, Order::Pulled),
        (f64::NAN, Order::Pulled),
        (0.9, Order::Arrival { cached: false }),
    ] {
        let refused = bind(&memory, share, order).err().unwrap();
        assert_eq!(refused.kind(), ErrorKind::Invalid, "{refused}");
    }
    let scratch = Scratch::new("share");
    let server = match bind(&scratch, 0.9, Order::Pulled) {
        Ok(server) => Running::of(server),
        Err(error) if error.kind() == ErrorKind::Unsupported => {
            println!("SKIPPED: a share on a disk ({error})");
            return;
        }
        Err(error) => panic!("{error}"),
    };
    let dir = server.open(&scratch, 1);
    let bytes = pattern(10 * PIECE);
    write_whole(&*dir, "container", &bytes);
    assert!(std::fs::read(scratch.path().join("one/container")).unwrap() == bytes);
}
