//! Tests which numbers descriptors get, and what a forked child keeps of them.
//!
//! Each test starts this program again, as a process that may be killed or closes its standard
//! streams.
// Tests look behind the door, and these are programs too.
#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    clippy::exit,
    clippy::print_stdout,
    unsafe_code
)]

use orcheck_io::disk::{Create, Dir, open_local};
use orcheck_io::failpoints::Failpoints;
use orcheck_io::poll::Poller;
use orcheck_io::user::Mailbox;
use orcheck_net::{Address, Conn, Key, Listener};
use orcheck_pool::{Gates, Pool, PoolShape};
use orcheck_testing::Scratch;
use std::io::{BufRead, BufReader, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(20);
const ROLE: &str = "ORC_TEST_DESCRIPTORS";
const SHAPE: PoolShape = PoolShape {
    chunk_bytes: 8192,
    chunk_count: 4,
    words: 8,
    rings: 2,
    ring_entries: 5,
};

/// The directory of the process that a test started; `None` in the test itself.
fn role() -> Option<PathBuf> {
    std::env::var_os(ROLE).map(PathBuf::from)
}

fn again(test: &str, at: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture"]);
    command
        .env(ROLE, at)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    command
}

fn wait(child: &mut Child) -> ExitStatus {
    let until = Instant::now() + LIMIT;
    loop {
        match child.try_wait().unwrap() {
            Some(status) => return status,
            None if Instant::now() > until => {
                child.kill().unwrap();
                panic!("the process did not end");
            }
            None => std::thread::yield_now(),
        }
    }
}

fn unix(name: &str) -> Address {
    Address::Abstract(format!("orcheck-descriptors-{name}"))
}

fn pair(at: &Address) -> (Listener, Conn, Conn) {
    let listener = Listener::bind(at).unwrap();
    let (at, key) = (listener.address(), Key::new([7; 32]));
    let (called, accepted) = std::thread::scope(|scope| {
        let caller = scope.spawn(|| Conn::connect(&at, &key, &Failpoints::none(), LIMIT).unwrap());
        let until = Instant::now() + LIMIT;
        let accepted = loop {
            if let Some(conn) = listener.accept(&key, &Failpoints::none(), LIMIT).unwrap() {
                break conn;
            }
            assert!(Instant::now() < until);
        };
        (caller.join().unwrap(), accepted)
    });
    (listener, called, accepted)
}

/// Makes one descriptor of each kind with the standard streams closed, and writes down which of
/// them is open then.
fn without_streams(at: &Path) {
    let mut wrong = Vec::new();
    let mut kept: Vec<Box<dyn std::any::Any>> = Vec::new();
    for stream in 0..3 {
        // SAFETY: nothing in this process uses its standard streams from here on.
        drop(unsafe { OwnedFd::from_raw_fd(stream) });
    }
    let mut look = |what: &str| {
        for stream in 0..3 {
            // SAFETY: only asked about; the answer is what is looked for.
            let fd = unsafe { BorrowedFd::borrow_raw(stream) };
            if rustix::io::fcntl_getfd(fd).is_ok() {
                wrong.push(format!("{what} took {stream}"));
                // SAFETY: its owner is not used any more: the test has failed.
                drop(unsafe { OwnedFd::from_raw_fd(stream) });
            }
        }
    };
    let pool = Pool::create(SHAPE).unwrap();
    look("the pool");
    let gates = Gates::open(&pool).unwrap();
    look("the pool's gates");
    kept.push(Box::new(gates.lock(1, LIMIT).unwrap()));
    look("a gate");
    let dir = open_local(at, Failpoints::none()).unwrap();
    look("a directory");
    let beneath: Arc<dyn Dir> = dir.child("beneath", true).unwrap();
    look("a directory beneath");
    let file = dir.create("file", Create::Buffered).unwrap();
    look("a new file");
    assert!(file.try_lock().unwrap());
    look("a lock");
    kept.push(Box::new(dir.open("file").unwrap()));
    look("a file");
    kept.push(Box::new(Poller::new().unwrap()));
    look("a poller");
    kept.push(Box::new(Mailbox::create("orcheck-descriptors").unwrap()));
    look("a mailbox");
    for at in [
        unix(&format!("closed-{}", std::process::id())),
        "tcp:127.0.0.1:0".parse().unwrap(),
    ] {
        let (listener, mut called, mut accepted) = pair(&at);
        look("a connection");
        if matches!(at, Address::Abstract(_)) {
            called.send_fd(pool.fd(), LIMIT).unwrap();
            kept.push(Box::new(accepted.receive_fd(LIMIT).unwrap()));
            look("a descriptor that was sent");
        }
        kept.push(Box::new((listener, called, accepted)));
    }
    kept.push(Box::new((beneath, file, gates)));
    std::fs::write(at.join("wrong"), wrong.join(", ")).unwrap();
}

// Breaks if: `descriptor::above_streams` leaves a descriptor where the kernel put it.
#[test]
fn no_descriptor_is_a_standard_stream() {
    if let Some(at) = role() {
        without_streams(&at);
        std::process::exit(0);
    }
    let scratch = Scratch::new("descriptors-closed");
    let mut child = again("no_descriptor_is_a_standard_stream", scratch.path())
        .spawn()
        .unwrap();
    assert!(wait(&mut child).success());
    let wrong = std::fs::read_to_string(scratch.path().join("wrong")).unwrap();
    assert_eq!(wrong, "");
}

/// Holds a lock, a name and a connection, forks a child that stays until its input ends, says so,
/// and waits to be killed.
fn holder(at: &Path) {
    let name = at.file_name().unwrap().to_str().unwrap();
    let dir = open_local(at, Failpoints::none()).unwrap();
    let claim = dir.create("claim", Create::Buffered).unwrap();
    assert!(claim.try_lock().unwrap());
    let door = Listener::bind(&unix(name)).unwrap();
    let key = Key::new([7; 32]);
    let lead = unix(&format!("{name}-lead"));
    let conn = Conn::connect(&lead, &key, &Failpoints::none(), LIMIT).unwrap();
    let (mut lives, begun) = UnixStream::pair().unwrap();
    // SAFETY: the child only writes, reads and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let mut byte = 0u8;
        // SAFETY: one byte from and into its own variable, then it ends without running
        // destructors.
        unsafe {
            libc::write(begun.as_raw_fd(), (&raw const byte).cast(), 1);
            libc::read(0, (&raw mut byte).cast(), 1);
            libc::_exit(0);
        }
    }
    // Breaks if: it stays open here; a child that failed to start would be waited for until the end
    // of the test.
    drop(begun);
    // Until then it may not have let go of anything: what it lets go of, it does before its `fork`
    // returns.
    lives.read_exact(&mut [0]).unwrap();
    println!("\nforked {child}");
    std::thread::park_timeout(LIMIT);
    drop((claim, door, conn));
}

// Breaks if: the child keeps its copies of the descriptors; what tells that the parent lives then
// lasts until it ends.
#[test]
fn a_forked_child_keeps_no_sign_of_life_of_its_parent() {
    if let Some(at) = role() {
        return holder(&at);
    }
    let scratch = Scratch::new("descriptors-forked");
    let name = scratch.path().file_name().unwrap().to_str().unwrap();
    let lead = Listener::bind(&unix(&format!("{name}-lead"))).unwrap();
    let test = "a_forked_child_keeps_no_sign_of_life_of_its_parent";
    let mut parent = again(test, scratch.path()).spawn().unwrap();
    let until = Instant::now() + LIMIT;
    let mut conn = loop {
        let key = Key::new([7; 32]);
        if let Some(conn) = lead.accept(&key, &Failpoints::none(), LIMIT).unwrap() {
            break conn;
        }
        assert!(Instant::now() < until);
    };
    let mut said = BufReader::new(parent.stdout.take().unwrap());
    let mut line = String::new();
    while !line.starts_with("forked") {
        line.clear();
        assert!(said.read_line(&mut line).unwrap() > 0, "it did not fork");
    }
    let child: i32 = line["forked ".len()..].trim().parse().unwrap();
    let input = parent.stdin.take().unwrap();
    parent.kill().unwrap();
    wait(&mut parent);
    let alive = || Path::new(&format!("/proc/{child}/fd/0")).is_symlink();
    assert!(alive());
    let dir = open_local(scratch.path(), Failpoints::none()).unwrap();
    let claim = dir.open("claim").unwrap();
    let locked = claim.try_lock().unwrap();
    let named = Listener::bind(&unix(name)).is_ok();
    let hung_up = conn.receive(Duration::from_secs(2)).unwrap_err();
    assert!(alive());
    // The child reads the end of its input, and ends.
    drop(input);
    let mut rest = Vec::new();
    said.read_to_end(&mut rest).unwrap();
    assert!(locked, "the claim is still held");
    assert!(named, "the name is still held");
    assert!(
        hung_up.message().contains("closed the connection"),
        "{hung_up}"
    );
    let _ = conn.as_fd();
}
