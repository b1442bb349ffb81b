//! A wire between the nodes of a job that is ours: every TCP connection goes through a process that
//! records what callers say, and may say a part of it twice.
//!
//! How: addresses travel through the program's collective as text. [`Tapped`] is a collective in
//! which each of them is replaced by one of the wire's own, of the same length.

use orcheck_client::Collective;
use orcheck_format::{Rank, Result};
use orcheck_testing::Child;
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

/// How every address of a node begins in these tests.
const BEGINNING: &[u8] = b"tcp:127.0.0.1:";
/// What a caller says before its first frame.
const HANDSHAKE_BYTES: usize = 72;
const HEADER_BYTES: usize = 20;
const MAC_BYTES: usize = 16;
/// Most bytes of a caller that are kept.
const KEPT_BYTES: usize = 256 << 10;

/// The wire's process.
pub struct Wire {
    process: Child,
    name: String,
}

impl Wire {
    /// Begins; recordings go to `folder`. With `twice`, the frame of this number, from 0, is sent
    /// twice on each connection.
    pub fn lay(folder: &Path, twice: Option<u64>) -> Self {
        std::fs::create_dir_all(folder).unwrap();
        let random = u64::from_le_bytes(orcheck_io::rng::random_bytes());
        let name = format!("orcheck-test-wire-{random:016x}");
        let at = SocketAddr::from_abstract_name(&name).unwrap();
        let asked = UnixListener::bind_addr(&at).unwrap();
        let process = Child::run(|| {
            serve(&asked, folder, twice);
            0
        });
        Self { process, name }
    }

    /// Its process, whose doors are none of the job.
    pub fn id(&self) -> i32 {
        self.process.id()
    }

    /// A collective whose addresses lead through the wire.
    pub fn tap(&self, inner: Box<dyn Collective>) -> Box<dyn Collective> {
        let at = SocketAddr::from_abstract_name(&self.name).unwrap();
        let wire = UnixStream::connect_addr(&at).unwrap();
        Box::new(Tapped { inner, wire })
    }
}

struct Tapped {
    inner: Box<dyn Collective>,
    wire: UnixStream,
}

impl Tapped {
    fn redirect(&mut self, bytes: &mut [u8]) {
        let mut at = 0;
        while let Some(found) = find(&bytes[at..], BEGINNING) {
            let begin = at + found + BEGINNING.len();
            let digits = bytes[begin..].iter().take_while(|b| b.is_ascii_digit());
            at = begin + digits.count();
            let text = std::str::from_utf8(&bytes[begin..at]).unwrap();
            let port: u16 = text.parse().unwrap();
            self.wire.write_all(&port.to_le_bytes()).unwrap();
            let mut other = [0; 2];
            self.wire.read_exact(&mut other).unwrap();
            let other = u16::from_le_bytes(other).to_string();
            bytes[begin..at].copy_from_slice(other.as_bytes());
        }
    }
}

fn find(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    bytes
        .windows(wanted.len())
        .position(|window| window == wanted)
}

impl Collective for Tapped {
    fn rank(&self) -> Rank {
        self.inner.rank()
    }

    fn size(&self) -> u32 {
        self.inner.size()
    }

    fn bcast(&mut self, buf: &mut [u8], root: u32) -> Result<()> {
        if self.rank().0 == root {
            self.redirect(buf);
        }
        self.inner.bcast(buf, root)
    }

    fn gather(&mut self, mine: &[u8], root: u32) -> Result<Option<Vec<u8>>> {
        let mut mine = mine.to_vec();
        self.redirect(&mut mine);
        self.inner.gather(&mine, root)
    }

    fn allreduce_min(&mut self, values: &mut [i64]) -> Result<()> {
        self.inner.allreduce_min(values)
    }
}

/// Answers which port leads to the one that is asked about.
fn serve(asked: &UnixListener, folder: &Path, twice: Option<u64>) {
    // A port of the wire leads to itself: an address may be told more than once.
    let known: Arc<Mutex<BTreeMap<u16, u16>>> = Arc::default();
    let number = Arc::new(AtomicU32::new(0));
    while let Ok((mut rank, _)) = asked.accept() {
        let (known, number, folder) = (Arc::clone(&known), Arc::clone(&number), folder.to_owned());
        std::thread::spawn(move || {
            let mut port = [0; 2];
            while rank.read_exact(&mut port).is_ok() {
                let to = u16::from_le_bytes(port);
                let mut known = known.lock().unwrap();
                let through = known.get(&to).copied().unwrap_or_else(|| {
                    let door = open_like(to);
                    let through = door.local_addr().unwrap().port();
                    let (number, folder) = (Arc::clone(&number), folder.clone());
                    std::thread::spawn(move || carry(&door, to, &number, &folder, twice));
                    known.extend([(to, through), (through, through)]);
                    through
                });
                rank.write_all(&through.to_le_bytes()).unwrap();
            }
        });
    }
}

/// A door whose port has as many digits.
fn open_like(port: u16) -> TcpListener {
    let digits = |port: u16| port.to_string().len();
    loop {
        let door = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        if digits(door.local_addr().unwrap().port()) == digits(port) {
            return door;
        }
    }
}

fn carry(door: &TcpListener, to: u16, number: &AtomicU32, folder: &Path, twice: Option<u64>) {
    while let Ok((caller, _)) = door.accept() {
        // Who is not there is not reached through us either.
        let Ok(listener) = TcpStream::connect((Ipv4Addr::LOCALHOST, to)) else {
            continue;
        };
        let path = folder.join(number.fetch_add(1, Ordering::SeqCst).to_string());
        let ends = (caller.try_clone().unwrap(), listener.try_clone().unwrap());
        std::thread::spawn(move || say_on(caller, listener, &path, twice));
        std::thread::spawn(move || {
            let (mut to, mut from) = ends;
            let _ = std::io::copy(&mut from, &mut to);
            let _ = to.shutdown(Shutdown::Both);
        });
    }
}

/// Passes on what a caller says.
fn say_on(mut caller: TcpStream, mut listener: TcpStream, path: &PathBuf, mut twice: Option<u64>) {
    let mut said = Vec::new();
    let mut piece = vec![0; 64 << 10];
    while let Ok(count @ 1..) = caller.read(&mut piece) {
        if listener.write_all(&piece[..count]).is_err() {
            break;
        }
        if said.len() < KEPT_BYTES {
            said.extend_from_slice(&piece[..count]);
            let _ = std::fs::write(path, &said);
        }
        // Whole and on its way: now it may be repeated.
        if let Some(frame) = twice.and_then(|nth| frame_of(&said, nth)) {
            twice = None;
            let _ = std::fs::write(path.with_extension("twice"), frame);
            if listener.write_all(frame).is_err() {
                break;
            }
        }
    }
    let _ = listener.shutdown(Shutdown::Both);
}

/// The frame of this number, if it ends what was said so far: a repetition must begin between two
/// frames.
fn frame_of(said: &[u8], nth: u64) -> Option<&[u8]> {
    let mut at = HANDSHAKE_BYTES;
    for number in 0.. {
        let len = said.get(at + 8..at + 12)?;
        let len = u32::from_le_bytes(len.try_into().ok()?) as usize;
        let end = at + HEADER_BYTES + len + MAC_BYTES;
        let frame = said.get(at..end)?;
        if number >= nth {
            return (end == said.len()).then_some(frame);
        }
        at = end;
    }
    None
}
