//! Records conversations between a process and a server on the wire, writes them down, and reads
//! them again.
//!
//! A line is the number of the connection, the sender (`>` the process, `<` the server), the
//! message's name, its kind, and its payload in hexadecimal digits; for bytes in bulk, the offset,
//! their number, and their CRC-64.

use orcheck_format::crc64;
use orcheck_format::wire::{Ask, FIRST_BYTES, Message, Reply, StoreMessage};
use orcheck_io::failpoints::Failpoints;
use orcheck_io::poll::Poller;
use orcheck_net::{Address, Conn, Key, Listener, Received};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

pub const LIMIT: Duration = Duration::from_secs(20);
pub const KEY: Key = Key::new([1; 32]);

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Frame {
    Message(Message),
    Bulk { at: u64, len: usize, crc: u64 },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    pub conn: usize,
    pub by_caller: bool,
    pub frame: Frame,
}

/// That a server lives says nothing else.
pub fn is_busy(message: &Message) -> bool {
    matches!(message, Message::Store(StoreMessage::Reply(Reply::Busy)))
}

pub fn write(lines: &[Line]) -> String {
    let mut text = String::new();
    for line in lines {
        let who = if line.by_caller { '>' } else { '<' };
        write!(text, "{}{who} ", line.conn).unwrap();
        match &line.frame {
            Frame::Bulk { at, len, crc } => writeln!(text, "bulk {at} {len} {crc:016x}"),
            Frame::Message(message) => {
                let (kind, bytes) = (message.kind(), message.encode());
                let name = Message::name_of(kind).replace(' ', "-");
                let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
                writeln!(text, "{name} {kind} {digits}")
            }
        }
        .unwrap();
    }
    text
}

pub fn read(text: &str) -> Vec<Line> {
    text.lines().map(read_line).collect()
}

fn read_line(text: &str) -> Line {
    let words: Vec<&str> = text.split(' ').collect();
    let (conn, who) = words[0].split_at(words[0].len() - 1);
    let frame = if words[1] == "bulk" {
        Frame::Bulk {
            at: words[2].parse().unwrap(),
            len: words[3].parse().unwrap(),
            crc: u64::from_str_radix(words[4], 16).unwrap(),
        }
    } else {
        let digits = words.get(3).copied().unwrap_or("");
        let byte = |at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap();
        let bytes: Vec<u8> = (0..digits.len()).step_by(2).map(byte).collect();
        let message = Message::decode(words[2].parse().unwrap(), &bytes).unwrap();
        // Breaks if: what was said then is not said in the same bytes now.
        assert_eq!(message.encode(), bytes, "{text}");
        Frame::Message(message)
    };
    Line {
        conn: conn.parse().unwrap(),
        by_caller: who == ">",
        frame,
    }
}

/// The next frame that says something.
pub fn receive(conn: &mut Conn) -> Frame {
    loop {
        match conn.receive_any(LIMIT).unwrap() {
            Received::Bytes(len) => {
                let mut bytes = vec![0; len];
                let at = conn.receive_bulk(&mut bytes, LIMIT, LIMIT).unwrap();
                let crc = crc64(&bytes);
                return Frame::Bulk { at, len, crc };
            }
            Received::Message(message) if is_busy(&message) => {}
            Received::Message(message) => return Frame::Message(message),
        }
    }
}

/// Stands between a process and a server, and writes down what they say.
pub struct Relay {
    pub at: Address,
    lines: Arc<Mutex<Vec<Line>>>,
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Relay {
    pub fn before(server: &Address) -> Self {
        let listener = Listener::bind(&Address::Tcp(([127, 0, 0, 1], 0).into())).unwrap();
        let (lines, over) = (Arc::default(), Arc::new(AtomicBool::new(false)));
        let (into, ends, server) = (Arc::clone(&lines), Arc::clone(&over), server.clone());
        let at = listener.address();
        let thread = std::thread::spawn(move || {
            let mut count = 0;
            std::thread::scope(|scope| {
                while !ends.load(Ordering::Acquire) {
                    let came =
                        listener.accept(&KEY, &Failpoints::none(), Duration::from_millis(20));
                    if let Some(caller) = came.unwrap() {
                        let there =
                            Conn::connect(&server, &KEY, &Failpoints::none(), LIMIT).unwrap();
                        let (into, ends) = (&into, &ends);
                        scope.spawn(move || pass(count, caller, there, into, ends));
                        count += 1;
                    }
                }
            });
        });
        Self {
            at,
            lines,
            over,
            thread: Some(thread),
        }
    }

    /// Ends it; what was said.
    pub fn end(mut self) -> Vec<Line> {
        self.over.store(true, Ordering::Release);
        self.thread.take().unwrap().join().unwrap();
        std::mem::take(&mut self.lines.lock().unwrap())
    }
}

fn pass(
    number: usize,
    mut caller: Conn,
    mut there: Conn,
    lines: &Mutex<Vec<Line>>,
    over: &AtomicBool,
) {
    let poller = Poller::new().unwrap();
    while !over.load(Ordering::Acquire) {
        for by_caller in [true, false] {
            let (from, to) = match by_caller {
                true => (&mut caller, &mut there),
                false => (&mut there, &mut caller),
            };
            loop {
                let Ok(received) = from.try_receive_any() else {
                    return; // one of them has hung up, and with this the other one learns of it
                };
                let Some(received) = received else { break };
                let note = |frame| {
                    let line = Line {
                        conn: number,
                        by_caller,
                        frame,
                    };
                    lines.lock().unwrap().push(line);
                };
                match received {
                    Received::Bytes(len) => {
                        let mut bytes = vec![0; len];
                        let at = from.receive_bulk(&mut bytes, LIMIT, LIMIT).unwrap();
                        note(Frame::Bulk {
                            at,
                            len,
                            crc: crc64(&bytes),
                        });
                        to.send_bulk(at, &[&bytes], LIMIT).unwrap();
                    }
                    Received::Message(message) => {
                        if !is_busy(&message) {
                            note(Frame::Message(message.clone()));
                        }
                        to.send(&message, LIMIT).unwrap();
                    }
                }
            }
        }
        let both = [caller.as_fd(), there.as_fd()];
        poller.wait(&both, Duration::from_millis(20)).unwrap();
    }
}

/// What varies from one conversation to the next: what a server calls itself and how much is free,
/// which are large numbers; the release, and the words of errors.
pub fn is_same(expected: &Frame, found: &Frame) -> bool {
    let (Frame::Message(expected), Frame::Message(found)) = (expected, found) else {
        return expected == found;
    };
    let (Message::Store(expected), Message::Store(found)) = (expected, found) else {
        return false;
    };
    let large = |one: u64| one > 1_000_000;
    match (expected, found) {
        (StoreMessage::Ask(Ask::Greet(one)), StoreMessage::Ask(Ask::Greet(other))) => {
            (one.oldest, one.newest) == (other.oldest, other.newest)
        }
        (StoreMessage::Reply(one), StoreMessage::Reply(other)) => match (one, other) {
            (Reply::Greeted(one, disk), Reply::Greeted(other, other_disk)) => {
                (one.oldest, one.newest, disk) == (other.oldest, other.newest, other_disk)
            }
            (Reply::Told(one), Reply::Told(other)) => {
                let mut both = one.iter().zip(other);
                let alike = both.all(|(one, other)| one == other || large(*one) && large(*other));
                alike && one.len() == other.len()
            }
            (Reply::Failed(one), Reply::Failed(other)) => one.kind() == other.kind(),
            (one, other) => one == other,
        },
        (one, other) => one == other,
    }
}

pub fn is_want(frame: &Frame) -> bool {
    matches!(
        frame,
        Frame::Message(Message::Store(StoreMessage::Reply(Reply::Want(_))))
    )
}

fn bytes_of(content: &[u8], frame: &Frame) -> Option<(u64, Vec<u8>)> {
    let Frame::Bulk { at, len, crc } = frame else {
        return None;
    };
    let bytes = content[*at as usize..][..*len].to_vec();
    assert_eq!(crc64(&bytes), *crc);
    Some((*at, bytes))
}

fn send(conn: &mut Conn, frame: &Frame, content: &[u8]) {
    match (frame, bytes_of(content, frame)) {
        (Frame::Message(message), _) => conn.send(message, LIMIT).unwrap(),
        (_, Some((at, bytes))) => conn.send_bulk(at, &[&bytes], LIMIT).unwrap(),
        (Frame::Bulk { .. }, None) => unreachable!(),
    }
}

/// Says to a server what a process said, and compares what it answers. When it wants bytes is its
/// own business: they are sent when it does.
pub fn repeat_caller(lines: &[Line], server: &Address, content: &[u8]) {
    let mut conns: BTreeMap<usize, (Conn, u64, u32)> = BTreeMap::new();
    for line in lines {
        let (conn, sent, wanted) = conns.entry(line.conn).or_insert_with(|| {
            let conn = Conn::connect(server, &KEY, &Failpoints::none(), LIMIT).unwrap();
            (conn, 0, 0)
        });
        if is_want(&line.frame) {
            continue;
        }
        let mut next = |conn: &mut Conn| {
            let frame = receive(conn);
            *wanted += u32::from(is_want(&frame));
            frame
        };
        if line.by_caller {
            if let Frame::Bulk { len, .. } = line.frame {
                *sent += len as u64;
                while *sent > FIRST_BYTES && *wanted == 0 {
                    let frame = receive(conn);
                    assert!(is_want(&frame), "{frame:?}");
                    *wanted += 1;
                }
            }
            send(conn, &line.frame, content);
            continue;
        }
        let found = loop {
            let frame = next(conn);
            if !is_want(&frame) {
                break frame;
            }
        };
        let expected = &line.frame;
        assert!(
            is_same(expected, &found),
            "expected {expected:?}, found {found:?}"
        );
    }
}

/// Answers a process as a server did, and compares what it is asked. One that was not greeted then
/// takes a greeting for the question that it looks like.
pub fn repeat_server(lines: &[Line], listener: &Listener, content: &[u8]) {
    let greets = |frame: &Frame| {
        matches!(
            frame,
            Frame::Message(Message::Store(StoreMessage::Ask(Ask::Greet(_))))
        )
    };
    let greeted = lines.iter().any(|line| greets(&line.frame));
    let mut conns: BTreeMap<usize, Conn> = BTreeMap::new();
    for line in lines {
        let conn = conns.entry(line.conn).or_insert_with(|| {
            loop {
                if let Some(conn) = listener.accept(&KEY, &Failpoints::none(), LIMIT).unwrap() {
                    break conn;
                }
            }
        });
        if !line.by_caller {
            send(conn, &line.frame, content);
            continue;
        }
        let mut found = receive(conn);
        if greets(&found) && !greeted {
            let told = Message::Store(StoreMessage::Reply(Reply::Told(Vec::new())));
            conn.send(&told, LIMIT).unwrap();
            found = receive(conn);
        }
        let expected = &line.frame;
        assert!(
            is_same(expected, &found),
            "expected {expected:?}, found {found:?}"
        );
    }
}
