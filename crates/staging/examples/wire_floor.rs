//! What a connection and two disks can do at best: bytes in memory are written to a file here while
//! they travel over one connection and are written to a file there, past the page cache, and both
//! files are made durable. Nothing else: no protocol, no credit, no checksum, no staging pool. One
//! thread writes each file: with two, 256 MiB took as long on a virtual disk (0.27 to 0.33 s with
//! either).
//!
//! usage: wire_floor take mac|plain ADDRESS DIR MIB
//!        wire_floor send mac|plain ADDRESS DIR|- MIB ROUNDS
//!
//! `mac`: every frame is authenticated as those of replicas and servers are; `plain`: TCP alone.
//! `-`: the sender writes no file, as the client of a server. `send` prints one line of JSON for
//! each round: seconds, and the processor time of the whole machine meanwhile. The taker takes
//! what one sender brings.
// It measures, prints, and uses files, sockets and threads of its own.
#![allow(clippy::disallowed_methods, clippy::print_stdout, clippy::unwrap_used)]

use orcheck_format::wire::Message;
use orcheck_io::failpoints::Failpoints;
use orcheck_io::memory::Buffer;
use orcheck_net::{Address, Conn, Key, Listener, Received};
use std::fs::{File, OpenOptions, remove_file};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(60);
const PIECE_BYTES: usize = 4 << 20;
/// What one write of the pool takes.
const RUN_BYTES: usize = 16 << 20;
/// Pieces that arrive or are written at the same time.
const PIECES: usize = 8;
const KEY: Key = Key::new([7; 32]);

enum Link {
    Mac(Box<Conn>),
    Plain(TcpStream),
}

impl Link {
    fn send(&mut self, at: usize, bytes: &[u8]) {
        match self {
            Link::Mac(conn) => conn.send_bulk(at as u64, &[bytes], LIMIT).unwrap(),
            Link::Plain(stream) => stream.write_all(bytes).unwrap(),
        }
    }

    /// The next bytes, or `None` when the sender is gone.
    fn take(&mut self, into: &mut [u8]) -> Option<()> {
        match self {
            Link::Mac(conn) => match conn.receive_any(LIMIT) {
                Ok(Received::Bytes(len)) if len == into.len() => {
                    conn.receive_bulk(into, LIMIT, LIMIT).ok().map(drop)
                }
                _ => None,
            },
            Link::Plain(stream) => stream.read_exact(into).ok(),
        }
    }

    fn answer(&mut self) {
        match self {
            Link::Mac(conn) => conn.send(&Message::Held { slot: 0 }, LIMIT).unwrap(),
            Link::Plain(stream) => stream.write_all(b"k").unwrap(),
        }
    }

    fn wait(&mut self) {
        match self {
            Link::Mac(conn) => drop(conn.receive(LIMIT).unwrap()),
            Link::Plain(stream) => stream.read_exact(&mut [0]).unwrap(),
        }
    }
}

fn create(path: &PathBuf, len: usize) -> File {
    let _ = remove_file(path);
    let flags = rustix::fs::OFlags::DIRECT.bits() as i32;
    let mut options = OpenOptions::new();
    let file = options
        .write(true)
        .create_new(true)
        .custom_flags(flags)
        .open(path)
        .unwrap();
    rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, len as u64).unwrap();
    file
}

/// Seconds that processors were busy since the machine began.
fn busy_s() -> f64 {
    let text = std::fs::read_to_string("/proc/stat").unwrap();
    let fields = text.lines().next().unwrap().split_whitespace().skip(1);
    let ticks: Vec<f64> = fields.map(|field| field.parse().unwrap()).collect();
    // All but idle and waiting; guests are counted as user time already.
    (ticks[..8].iter().sum::<f64>() - ticks[3] - ticks[4]) / 100.0
}

/// Takes what one sender brings, round by round.
fn take(mut link: Link, path: &PathBuf, mib: usize) {
    let len = mib << 20;
    let mut free: Vec<Buffer> = (0..PIECES)
        .map(|_| Buffer::zeroed(PIECE_BYTES, 4096))
        .collect();
    loop {
        let file = create(path, len);
        let ((full, to_write), (done, returned)) = (channel::<(usize, Buffer)>(), channel());
        let whole = std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                for (at, piece) in to_write {
                    file.write_all_at(&piece, at as u64).unwrap();
                    done.send(piece).unwrap();
                }
                file.sync_data().unwrap();
            });
            for at in (0..len).step_by(PIECE_BYTES) {
                let mut piece = free.pop().unwrap_or_else(|| returned.recv().unwrap());
                if link.take(&mut piece).is_none() {
                    drop(full);
                    return false;
                }
                full.send((at, piece)).unwrap();
            }
            drop(full);
            writer.join().unwrap();
            true
        });
        free.extend(returned.try_iter());
        if !whole {
            let _ = remove_file(path);
            return;
        }
        link.answer();
    }
}

fn send(link: &mut Link, path: Option<&PathBuf>, bytes: &[u8]) -> (f64, f64) {
    let file = path.map(|path| create(path, bytes.len()));
    let (before_s, begun) = (busy_s(), Instant::now());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let Some(file) = &file else { return };
            for (number, run) in bytes.chunks(RUN_BYTES).enumerate() {
                file.write_all_at(run, (number * RUN_BYTES) as u64).unwrap();
            }
            file.sync_data().unwrap();
        });
        for (number, piece) in bytes.chunks(PIECE_BYTES).enumerate() {
            link.send(number * PIECE_BYTES, piece);
        }
        link.wait();
    });
    (begun.elapsed().as_secs_f64(), busy_s() - before_s)
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        ["take", how, at, dir, mib] => {
            let at: SocketAddr = at.parse().unwrap();
            let path = PathBuf::from(dir).join("taken");
            let mib = mib.parse().unwrap();
            let link = match how {
                "mac" => {
                    let listener = Listener::bind(&Address::Tcp(at)).unwrap();
                    println!("ready");
                    let accept = || listener.accept(&KEY, &Failpoints::none(), LIMIT).unwrap();
                    Link::Mac(Box::new(
                        std::iter::repeat_with(accept).flatten().next().unwrap(),
                    ))
                }
                _ => {
                    let listener = TcpListener::bind(at).unwrap();
                    println!("ready");
                    Link::Plain(listener.accept().unwrap().0)
                }
            };
            take(link, &path, mib);
        }
        ["send", how, at, dir, mib, rounds] => {
            let at: SocketAddr = at.parse().unwrap();
            let mut link = match how {
                "mac" => {
                    let at = Address::Tcp(at);
                    Link::Mac(Box::new(
                        Conn::connect(&at, &KEY, &Failpoints::none(), LIMIT).unwrap(),
                    ))
                }
                _ => Link::Plain(TcpStream::connect(at).unwrap()),
            };
            let path = (dir != "-").then(|| PathBuf::from(dir).join("sent"));
            let len = mib.parse::<usize>().unwrap() << 20;
            let mut bytes = Buffer::zeroed(len, 4096);
            let mut word = 1u64;
            for eight in bytes.chunks_exact_mut(8) {
                word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                eight.copy_from_slice(&word.to_le_bytes());
            }
            let rounds: usize = rounds.parse().unwrap();
            // The first one warms everything up.
            let found: Vec<_> = (0..=rounds)
                .map(|_| send(&mut link, path.as_ref(), &bytes))
                .collect();
            let found: Vec<String> = found[1..]
                .iter()
                .map(|(s, cpu_s)| {
                    format!("{{\"s\": {s:.9}, \"cpu_s\": {cpu_s:.3}, \"bytes\": {len}}}")
                })
                .collect();
            println!("[{}]", found.join(", "));
            path.inspect(|path| drop(remove_file(path)));
        }
        _ => {
            println!("usage: wire_floor take mac|plain ADDRESS DIR MIB");
            println!("       wire_floor send mac|plain ADDRESS DIR|- MIB ROUNDS");
            std::process::exit(2);
        }
    }
}
