//! Tests connections: who gets in, what an attacker on the wire can do, deadlines, descriptors.
#![allow(clippy::disallowed_methods, clippy::unwrap_used)] // tests look behind the door

mod bulk;
mod outbox;
mod proxy;
mod unix;

use orcheck_format::wire::Message;
use orcheck_format::{ErrorKind, Level, NodeId, Rank, Result, Step};
use orcheck_io::failpoints::{Failpoints, Verdict};
use orcheck_io::poll::Poller;
use orcheck_io::rng::random_bytes;
use orcheck_net::{Address, Conn, Key, Listener, Place, Received, Source};
use orcheck_pool::{Pool, PoolShape};
use orcheck_testing::{Child, Ended, FaultPlan};
use proxy::record;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(20);
const SOON: Duration = Duration::from_millis(30);

fn key() -> Key {
    Key::new([7; 32])
}

/// The same key where what travels over TCP is encrypted.
fn hiding() -> Key {
    Key {
        encrypt: true,
        ..key()
    }
}

fn tcp() -> Address {
    Address::Tcp(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))
}

fn unix() -> Address {
    Address::Abstract(format!(
        "orcheck-test-{:032x}",
        u128::from_le_bytes(random_bytes())
    ))
}

fn hello(rank: u32) -> Message {
    Message::Hello {
        rank: Rank(rank),
        node: NodeId(3),
    }
}

fn large(len: usize) -> Message {
    let bytes = (0..len).map(|i| (i * 7 + i / 256) as u8).collect();
    Message::Record {
        step: Step(9),
        level: Level::Global,
        bytes,
    }
}

/// Accepts until an authenticated peer is there.
fn accept(listener: &Listener) -> Conn {
    accept_with(listener, &key())
}

fn accept_with(listener: &Listener, key: &Key) -> Conn {
    let give_up = Instant::now() + LIMIT;
    loop {
        if let Some(conn) = listener.accept(key, &Failpoints::none(), LIMIT).unwrap() {
            return conn;
        }
        assert!(Instant::now() < give_up);
    }
}

fn pair(at: &Address) -> (Conn, Conn) {
    pair_with(at, &key())
}

fn pair_with(at: &Address, key: &Key) -> (Conn, Conn) {
    let listener = Listener::bind(at).unwrap();
    let at = listener.address();
    std::thread::scope(|scope| {
        let caller = scope.spawn(|| Conn::connect(&at, key, &Failpoints::none(), LIMIT).unwrap());
        let accepted = accept_with(&listener, key);
        (caller.join().unwrap(), accepted)
    })
}

#[test]
fn messages_go_both_ways_in_order() {
    for (at, key) in [
        (tcp(), key()),
        (unix(), key()),
        (tcp(), hiding()),
        (unix(), hiding()),
    ] {
        let (mut one, mut two) = pair_with(&at, &key);
        assert!(one.try_receive().unwrap().is_none());
        for rank in 0..50 {
            one.send(&hello(rank), LIMIT).unwrap();
            two.send(&hello(1000 + rank), LIMIT).unwrap();
        }
        for rank in 0..50 {
            assert_eq!(two.receive(LIMIT).unwrap(), hello(rank));
            assert_eq!(one.receive(LIMIT).unwrap(), hello(1000 + rank));
        }
        std::thread::scope(|scope| {
            scope.spawn(|| one.send(&large(10 << 20), LIMIT).unwrap());
            assert_eq!(two.receive(LIMIT).unwrap(), large(10 << 20));
        });
        assert!(!one.is_closed() && !two.is_closed());
        one.send(&hello(1), LIMIT).unwrap();
        assert!(!one.peer().is_empty());
        drop(one);
        // What was sent before the end is still received.
        assert_eq!(two.receive(LIMIT).unwrap(), hello(1));
        assert_eq!(
            two.receive(LIMIT).unwrap_err().kind(),
            ErrorKind::Unavailable
        );
        assert!(two.is_closed());
        assert!(two.send(&hello(1), LIMIT).is_err());
    }
}

// Breaks if: the port is not reused; the kernel keeps it for a minute after the listener's side
// closed a connection, and a server that is started again would not be reached at its address until
// then.
#[test]
fn a_port_whose_listener_closed_connections_is_listened_at_again_at_once() {
    let listener = Listener::bind(&tcp()).unwrap();
    let at = listener.address();
    let (caller, accepted) = std::thread::scope(|scope| {
        let caller =
            scope.spawn(|| Conn::connect(&at, &key(), &Failpoints::none(), LIMIT).unwrap());
        let accepted = accept(&listener);
        (caller.join().unwrap(), accepted)
    });
    drop((listener, accepted));
    let mut caller = caller;
    assert!(caller.receive(LIMIT).is_err());
    drop(caller);
    let until = Instant::now() + LIMIT;
    while let Err(error) = Listener::bind(&at) {
        // For a moment a connection of another process may have it.
        assert!(Instant::now() < until, "{error}");
        std::thread::yield_now();
    }
}

#[test]
fn only_holders_of_the_key_get_in() {
    for at in [tcp(), unix()] {
        let listener = Listener::bind(&at).unwrap();
        let at = listener.address();
        std::thread::scope(|scope| {
            let caller = scope.spawn(|| {
                let error = Conn::connect(&at, &Key::new([8; 32]), &Failpoints::none(), LIMIT)
                    .err()
                    .unwrap();
                assert_eq!(error.kind(), ErrorKind::Unavailable);
                assert!(error.message().contains("key"), "{error}");
            });
            // Breaks if: the caller's or the listener's proof is not compared.
            assert!(
                listener
                    .accept(&key(), &Failpoints::none(), LIMIT)
                    .unwrap()
                    .is_none()
            );
            caller.join().unwrap();
        });
        // A listener that accepts anything does not fool a caller: it cannot make the proof.
        let honest = pair(&unix());
        drop(honest);
    }
    // A false listener that answers with noise.
    let false_one = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let at = Address::Tcp(false_one.local_addr().unwrap());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (mut stream, _) = false_one.accept().unwrap();
            stream.read_exact(&mut [0; 40]).unwrap();
            stream.write_all(&[5; 64]).unwrap();
        });
        assert!(Conn::connect(&at, &key(), &Failpoints::none(), LIMIT).is_err());
    });
}

#[test]
fn strangers_keep_nobody_waiting_and_cause_no_error() {
    let listener = Listener::bind(&tcp()).unwrap();
    let Address::Tcp(raw) = listener.address() else {
        unreachable!()
    };
    let silent: Vec<TcpStream> = (0..100).map(|_| TcpStream::connect(raw).unwrap()).collect();
    let mut slow = TcpStream::connect(raw).unwrap();
    slow.write_all(b"ORC").unwrap();
    let mut rude = TcpStream::connect(raw).unwrap();
    rude.write_all(&[0; 4000]).unwrap();
    let at = listener.address();
    let before = Instant::now();
    std::thread::scope(|scope| {
        let caller =
            scope.spawn(|| Conn::connect(&at, &key(), &Failpoints::none(), LIMIT).unwrap());
        // Breaks if: one handshake is finished before the next connection is looked at.
        let mut conn = accept(&listener);
        let mut caller = caller.join().unwrap();
        caller.send(&hello(1), LIMIT).unwrap();
        assert_eq!(conn.receive(LIMIT).unwrap(), hello(1));
    });
    assert!(before.elapsed() < Duration::from_secs(4));
    drop(silent);
    let before = Instant::now();
    let give_up = before + LIMIT;
    while Instant::now() < give_up {
        let started = Instant::now();
        assert!(
            listener
                .accept(&key(), &Failpoints::none(), SOON)
                .unwrap()
                .is_none()
        );
        if started.elapsed() >= SOON {
            break; // everything of the strangers is dealt with
        }
    }
    assert!(Instant::now() < give_up);
}

// Breaks if: the key is looked up where it was when the listener answered; keys that are taken away
// would end the process.
#[test]
fn who_shakes_hands_while_keys_are_taken_away_is_dropped() {
    let listener = Listener::bind(&tcp()).unwrap();
    let Address::Tcp(raw) = listener.address() else {
        unreachable!()
    };
    let mut caller = TcpStream::connect(raw).unwrap();
    caller
        .write_all(&[b"ORCnet2\n".as_slice(), &[1; 32]].concat())
        .unwrap();
    caller.set_read_timeout(Some(SOON)).unwrap();
    let give_up = Instant::now() + LIMIT;
    while caller.read_exact(&mut [0; 64]).is_err() {
        assert!(Instant::now() < give_up, "no answer");
        let came = listener.accept(&key(), &Failpoints::none(), SOON).unwrap();
        assert!(came.is_none());
    }
    caller.write_all(&[2; 32]).unwrap();
    let came = listener.accept_known(&[], None, &Failpoints::none(), LIMIT);
    assert!(came.unwrap().is_none());
}

/// Passes on what both sides of a handshake say, with something to do before the caller's proof.
fn pass_on(caller: &mut TcpStream, to: SocketAddr, before_proof: impl FnOnce()) -> TcpStream {
    let mut to = TcpStream::connect(to).unwrap();
    let mut bytes = [0; 64];
    caller.read_exact(&mut bytes[..40]).unwrap();
    to.write_all(&bytes[..40]).unwrap();
    to.read_exact(&mut bytes).unwrap();
    caller.write_all(&bytes).unwrap();
    caller.read_exact(&mut bytes[..32]).unwrap();
    before_proof();
    to.write_all(&bytes[..32]).unwrap();
    to
}

// Breaks if: of half-open connections the oldest goes first whoever it is.
#[test]
fn who_is_shaking_hands_is_not_pushed_out() {
    let listener = Listener::bind(&tcp()).unwrap();
    let Address::Tcp(raw) = listener.address() else {
        unreachable!()
    };
    let proxy = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let at = Address::Tcp(proxy.local_addr().unwrap());
    let (came, crowd_came) = std::sync::mpsc::channel();
    let (go, may_go) = std::sync::mpsc::channel::<()>();
    std::thread::scope(|scope| {
        let caller =
            scope.spawn(|| Conn::connect(&at, &key(), &Failpoints::none(), LIMIT).unwrap());
        let between = scope.spawn(move || {
            let (mut caller, _) = proxy.accept().unwrap();
            let mut crowd: Vec<TcpStream> = Vec::new();
            let to = pass_on(&mut caller, raw, || {
                crowd.extend((0..200).map(|_| TcpStream::connect(raw).unwrap()));
                came.send(()).unwrap();
                may_go.recv_timeout(LIMIT).unwrap();
            });
            (caller, to)
        });
        let give_up = Instant::now() + LIMIT;
        let mut all_came = false;
        loop {
            let begun = Instant::now();
            let nobody = listener.accept(&key(), &Failpoints::none(), SOON).unwrap();
            assert!(nobody.is_none() && begun < give_up);
            all_came |= crowd_came.try_recv().is_ok();
            // Quiet: the whole crowd was taken in, and most of it sent away.
            if all_came && begun.elapsed() >= SOON {
                break;
            }
        }
        go.send(()).unwrap();
        accept(&listener);
        drop(caller.join().unwrap());
        drop(between.join().unwrap());
    });
}

// Breaks if: a caller gives up when a listener without room for another one hangs up.
#[test]
fn a_caller_that_was_sent_away_comes_again() {
    let listener = Listener::bind(&tcp()).unwrap();
    let Address::Tcp(raw) = listener.address() else {
        unreachable!()
    };
    let proxy = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let at = Address::Tcp(proxy.local_addr().unwrap());
    std::thread::scope(|scope| {
        let caller =
            scope.spawn(|| Conn::connect(&at, &key(), &Failpoints::none(), LIMIT).unwrap());
        let between = scope.spawn(move || {
            // At once, and in the middle of it.
            drop(proxy.accept().unwrap());
            let (mut other, _) = proxy.accept().unwrap();
            other.read_exact(&mut [0; 20]).unwrap();
            drop(other);
            let (mut caller, _) = proxy.accept().unwrap();
            let to = pass_on(&mut caller, raw, || ());
            (caller, to)
        });
        accept(&listener);
        drop(caller.join().unwrap());
        drop(between.join().unwrap());
    });
    // One who always hangs up is left at the deadline.
    let rude = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let at = Address::Tcp(rude.local_addr().unwrap());
    std::thread::scope(|scope| {
        let (over, is_over) = std::sync::mpsc::channel::<()>();
        scope.spawn(move || {
            while is_over.try_recv().is_err() {
                drop(rude.accept().unwrap());
            }
        });
        let before = Instant::now();
        let came = Conn::connect(&at, &key(), &Failpoints::none(), 4 * SOON);
        let took = before.elapsed();
        over.send(()).unwrap();
        let Address::Tcp(raw) = at else {
            unreachable!()
        };
        drop(TcpStream::connect(raw));
        assert!(took >= 4 * SOON && took < LIMIT / 2);
        assert_eq!(came.err().unwrap().kind(), ErrorKind::Unavailable);
    });
}

#[test]
fn a_recorded_handshake_opens_nothing() {
    let (frames, c2s) = record(&key(), vec![hello(1)], |bytes| bytes);
    assert_eq!(frames, 1);
    let listener = Listener::bind(&tcp()).unwrap();
    let Address::Tcp(raw) = listener.address() else {
        unreachable!()
    };
    let mut stream = TcpStream::connect(raw).unwrap();
    stream.write_all(&c2s).unwrap();
    // Breaks if: the listener's challenge is left out of the caller's proof.
    assert!(
        listener
            .accept(&key(), &Failpoints::none(), LIMIT)
            .unwrap()
            .is_none()
    );
}

/// Sends bytes of a replica.
fn send_piece(conn: &mut Conn, place: Place, bytes: &[u8]) {
    conn.queue_piece(place, bytes.len()).unwrap();
    outbox::push_all(conn, Source::new(place, bytes));
}

/// Takes announced bytes of a replica.
fn take_piece(conn: &mut Conn, into: &mut [u8]) -> Result<Place> {
    let poller = Poller::new()?;
    loop {
        match conn.take_piece(into)? {
            Some(place) => return Ok(place),
            None => drop(poller.wait(&[conn.as_fd()], LIMIT)?),
        }
    }
}

/// Stands for bytes of a file that travel raw. With a slot other than 0, such a message stands for
/// those of a replica.
fn bulk(at_bytes: u64, bytes: Vec<u8>) -> Message {
    Message::Data {
        slot: 0,
        at_bytes,
        bytes,
    }
}

/// Bytes of one frame with this message.
fn frame_len(message: &Message) -> usize {
    match message {
        Message::Data { slot: 0, bytes, .. } => 20 + 8 + bytes.len() + 16,
        Message::Data { bytes, .. } => 20 + 12 + bytes.len() + 16,
        other => 20 + other.encode().len() + 16,
    }
}

// Breaks if: the mark is not compared; a caller would be taken for the one with the first key.
#[test]
fn a_listener_with_many_keys_knows_which_one_a_caller_has() {
    let listener = Listener::bind(&tcp()).unwrap();
    let at = listener.address();
    let keys: Vec<Key> = (1..5).map(|byte| Key::new([byte; 32])).collect();
    for (index, key) in keys.iter().enumerate() {
        std::thread::scope(|scope| {
            let caller =
                scope.spawn(|| Conn::connect(&at, key, &Failpoints::none(), LIMIT).unwrap());
            let give_up = Instant::now() + LIMIT;
            let (which, _conn) = loop {
                let came = listener
                    .accept_one_of(&keys, &Failpoints::none(), LIMIT)
                    .unwrap();
                if let Some(came) = came {
                    break came;
                }
                assert!(Instant::now() < give_up);
            };
            assert_eq!(which, index);
            caller.join().unwrap();
        });
    }
}

#[test]
fn every_flipped_bit_is_noticed() {
    let len = frame_len(&hello(1));
    for at in 0..len {
        let bit = at % 8;
        let flip = |mut bytes: Vec<u8>| {
            bytes[len + at] ^= 1 << bit;
            bytes
        };
        // Breaks if: the MAC leaves out the header (or the payload).
        for key in [key(), hiding()] {
            let (arrived, _) = record(&key, vec![hello(1), hello(2)], flip);
            assert_eq!(arrived, 1, "byte {at}, {}", key.encrypt);
        }
    }
}

#[test]
fn truncated_repeated_lost_and_moved_frames_are_noticed() {
    let len = frame_len(&hello(1));
    let two = || vec![hello(1), hello(2)];
    for key in [key(), hiding()] {
        let key = &key;
        for cut in [0, 1, 19, 20, len - 1, len, len + 1, 2 * len - 1] {
            let (arrived, _) = record(key, two(), |mut bytes| {
                bytes.truncate(cut);
                bytes
            });
            assert_eq!(arrived, cut / len, "cut at {cut}");
        }
        // Breaks if: the number of a frame is not compared with the expected one.
        let repeated = record(key, two(), |bytes| {
            [&bytes[..len], &bytes[..len], &bytes[len..]].concat()
        });
        assert_eq!(repeated.0, 1);
        assert_eq!(record(key, two(), |bytes| bytes[len..].to_vec()).0, 0);
        let moved = record(key, two(), |bytes| [&bytes[len..], &bytes[..len]].concat());
        assert_eq!(moved.0, 0);
        let more = record(key, two(), |bytes| [&bytes[..], &[1; 50]].concat());
        assert_eq!(more.0, 2);
    }
}

// Breaks if: `net_encrypt` changes nothing on the wire, or hides so little that what is sent can be
// found there.
#[test]
fn nobody_on_the_way_reads_what_is_encrypted() {
    let secret = b"only for the two of them";
    let message = || Message::Record {
        step: Step(9),
        level: Level::Global,
        bytes: secret.to_vec(),
    };
    let seen = |key: &Key| {
        let (arrived, bytes) = record(key, vec![message()], |bytes| bytes);
        assert_eq!(arrived, 1);
        bytes.windows(secret.len()).any(|part| part == secret)
    };
    assert!(seen(&key()));
    assert!(!seen(&hiding()));
}

// Breaks if: the form is not part of the proofs, or a caller follows the listener into the other
// one.
#[test]
fn both_sides_encrypt_or_there_is_no_connection() {
    let cases = [
        (
            key(),
            hiding(),
            "this rank encrypts",
            "the other one does not",
        ),
        (
            hiding(),
            key(),
            "the other rank encrypts",
            "this one does not",
        ),
    ];
    for (theirs, ours, here, there) in cases {
        let listener = Listener::bind(&tcp()).unwrap();
        let at = listener.address();
        std::thread::scope(|scope| {
            let caller = scope.spawn(|| Conn::connect(&at, &ours, &Failpoints::none(), LIMIT));
            let accepted = listener
                .accept(&theirs, &Failpoints::none(), LIMIT)
                .unwrap();
            assert!(accepted.is_none(), "the listener lets nobody in");
            let error = caller.join().unwrap().err().unwrap();
            assert_eq!(error.kind(), ErrorKind::Invalid);
            for part in [here, there, "net_encrypt"] {
                assert!(error.to_string().contains(part), "{error}");
            }
        });
    }
}

// Breaks if: a connection forgets its form or its numbers when it changes its process.
#[test]
fn an_encrypted_connection_goes_on_in_another_process() {
    let (mut one, mut two) = pair_with(&tcp(), &hiding());
    for round in 0..3 {
        one.send(&hello(round), LIMIT).unwrap();
        two.send(&hello(10 + round), LIMIT).unwrap();
        assert_eq!(one.receive(LIMIT).unwrap(), hello(10 + round));
        assert_eq!(two.receive(LIMIT).unwrap(), hello(round));
        let (socket, state) = one.detach();
        assert!(state.encrypted);
        one = Conn::attach(socket, state, &Failpoints::none()).unwrap();
    }
    // A descriptor cannot come this way, and nothing that came is lost by asking for one.
    two.send(&hello(7), LIMIT).unwrap();
    assert_eq!(
        one.receive_fd(LIMIT).unwrap_err().kind(),
        ErrorKind::Unsupported
    );
    assert_eq!(one.receive(LIMIT).unwrap(), hello(7));
}

#[test]
fn every_wait_ends_by_its_deadline() {
    for at in [tcp(), unix()] {
        let (mut one, mut two) = pair(&at);
        let before = Instant::now();
        let error = two.receive(SOON).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        // Breaks if: a deadline is not looked at.
        assert!(before.elapsed() >= SOON && before.elapsed() < LIMIT / 2);
        assert!(!two.is_closed());
        one.send(&hello(4), LIMIT).unwrap();
        assert_eq!(two.receive(LIMIT).unwrap(), hello(4));
        // A peer that does not read: the kernel's buffers fill, the send gives up, and says so ever
        // after.
        let before = Instant::now();
        let error = one
            .send(&large(60 << 20), Duration::from_millis(100))
            .unwrap_err();
        assert!(before.elapsed() < LIMIT / 2);
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert_eq!(one.send(&hello(1), LIMIT).unwrap_err(), error);
        assert!(one.is_closed());
    }
    // A listener that nobody serves: the connection is made, the handshake is not.
    let listener = Listener::bind(&tcp()).unwrap();
    let before = Instant::now();
    let error = Conn::connect(&listener.address(), &key(), &Failpoints::none(), SOON)
        .err()
        .unwrap();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(before.elapsed() >= SOON && before.elapsed() < Duration::from_secs(10));
    assert!(
        listener
            .accept(&key(), &Failpoints::none(), Duration::ZERO)
            .unwrap()
            .is_none()
    );
    // Nobody there at all.
    let gone = Listener::bind(&unix()).unwrap().address();
    let error = Conn::connect(&gone, &key(), &Failpoints::none(), LIMIT)
        .err()
        .unwrap();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    let taken = Listener::bind(&unix()).unwrap();
    assert_eq!(
        Listener::bind(&taken.address()).err().unwrap().kind(),
        ErrorKind::Unavailable
    );
}

#[test]
fn messages_beyond_the_limit_are_refused_without_harm() {
    let (mut one, mut two) = pair(&unix());
    let error = one.send(&large((64 << 20) + 1), LIMIT).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    one.send(&hello(5), LIMIT).unwrap();
    assert_eq!(two.receive(LIMIT).unwrap(), hello(5));
}

#[test]
fn faults_on_the_wire_are_errors() {
    let listener = Listener::bind(&unix()).unwrap();
    let at = listener.address();
    let (_, failpoints) = FaultPlan::new()
        .at_site("net.connect", 1, Verdict::Fail(libc::ECONNREFUSED))
        .failpoints();
    assert!(Conn::connect(&at, &key(), &failpoints, LIMIT).is_err());
    let (plan, failpoints) = FaultPlan::new()
        .at_site("net.send", 1, Verdict::Short(5))
        .at_site("net.send", 2, Verdict::Fail(libc::EINTR))
        .at_site("net.send", 4, Verdict::Fail(libc::ECONNRESET))
        .failpoints();
    let (mut one, mut two) = std::thread::scope(|scope| {
        let caller = scope.spawn(|| Conn::connect(&at, &key(), &failpoints, LIMIT).unwrap());
        let accepted = accept(&listener);
        (caller.join().unwrap(), accepted)
    });
    one.send(&hello(1), LIMIT).unwrap();
    assert_eq!(two.receive(LIMIT).unwrap(), hello(1));
    assert_eq!(
        one.send(&hello(2), LIMIT).unwrap_err().kind(),
        ErrorKind::Unavailable
    );
    assert!(one.is_closed());
    assert!(two.receive(LIMIT).is_err());
    assert!(plan.seen().iter().any(|s| s.site == "net.connect"));
}

#[test]
fn a_poller_sees_peers_and_wakers() {
    let poller = Poller::new().unwrap();
    let waker = poller.waker();
    let before = Instant::now();
    assert!(poller.wait(&[], SOON).unwrap().is_empty());
    assert!(before.elapsed() >= SOON);
    // A wake before the wait is not lost, and is used up by it.
    waker.wake();
    waker.wake();
    let before = Instant::now();
    assert!(poller.wait(&[], LIMIT).unwrap().is_empty());
    assert!(before.elapsed() < LIMIT / 2);
    std::thread::scope(|scope| {
        scope.spawn(|| waker.clone().wake());
        assert!(poller.wait(&[], LIMIT).unwrap().is_empty());
    });
    let (mut one, mut two) = pair(&unix());
    let listener = Listener::bind(&unix()).unwrap();
    assert!(
        poller
            .wait(&[listener.as_fd(), two.as_fd()], Duration::ZERO)
            .unwrap()
            .is_empty()
    );
    one.send(&hello(1), LIMIT).unwrap();
    assert_eq!(
        poller
            .wait(&[listener.as_fd(), two.as_fd()], LIMIT)
            .unwrap(),
        [1]
    );
    assert_eq!(two.try_receive().unwrap(), Some(hello(1)));
    // A half-open connection that speaks makes the listener readable again: nobody has to wait in
    // `accept`.
    let at = listener.address();
    std::thread::scope(|scope| {
        let caller =
            scope.spawn(|| Conn::connect(&at, &key(), &Failpoints::none(), LIMIT).unwrap());
        let conn = loop {
            assert_eq!(poller.wait(&[listener.as_fd()], LIMIT).unwrap(), [0]);
            if let Some(conn) = listener
                .accept(&key(), &Failpoints::none(), Duration::ZERO)
                .unwrap()
            {
                break conn;
            }
        };
        drop(caller.join().unwrap());
        assert_eq!(poller.wait(&[conn.as_fd()], LIMIT).unwrap(), [0]);
    });
}
