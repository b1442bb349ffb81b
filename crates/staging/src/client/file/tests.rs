//! What a caller does while a server has no turn for it.

use super::super::place::{Proof, ServedPlace};
use super::*;
use orcheck_format::wire::{Message, StoreMessage, Versions};
use orcheck_io::failpoints::Failpoints;
use orcheck_net::{Address, Conn, Key, Listener, Received};
use rustix::net::sockopt;
use std::os::fd::AsFd;
use std::sync::OnceLock;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(20);
/// The time between two signs of life.
const PAUSE: Duration = Duration::from_millis(100);
const LEN: usize = 2 << 20;

/// Gives this many signs of life before it wants something, and takes one piece.
fn serve(listener: &Listener, signs: u32) {
    let (key, none) = (Key::new([1; 32]), Failpoints::none());
    let mut conn = listener.accept(&key, &none, LIMIT).unwrap().unwrap();
    // Nobody speaks: a receive from it passes the time.
    let (_nobody, time) = std::sync::mpsc::channel::<()>();
    let say =
        |conn: &mut Conn, reply| conn.send(&Message::Store(StoreMessage::Reply(reply)), LIMIT);
    // Until the caller is gone.
    while let Ok(received) = conn.receive_any(LIMIT) {
        match received {
            Received::Message(Message::Store(StoreMessage::Ask(Ask::Greet(_)))) => {
                say(&mut conn, Reply::Greeted(Versions::own(), None)).unwrap();
            }
            Received::Message(Message::Store(StoreMessage::Ask(Ask::Offer(_)))) => {
                for _ in 0..signs {
                    let _ = time.recv_timeout(PAUSE);
                    if say(&mut conn, Reply::Busy).is_err() {
                        return;
                    }
                }
                let _ = say(&mut conn, Reply::Want(1));
            }
            Received::Message(Message::Store(StoreMessage::Ask(_))) => {
                say(&mut conn, Reply::Told(Vec::new())).unwrap();
            }
            Received::Bytes(len) => {
                let mut bytes = vec![0; len];
                conn.receive_bulk(&mut bytes, LIMIT, LIMIT).unwrap();
            }
            other => panic!("{other:?}"),
        }
    }
}

/// How long the kernel waits on a connection whose peer takes nothing.
fn limit_ms(line: &Line) -> u32 {
    sockopt::tcp_user_timeout(line.conn.as_fd()).unwrap()
}

/// Writes to a server that wants something only after this many signs of life. Also returns the
/// kernel's limit before.
fn write_after(signs: u32) -> (Result<Option<Reply>>, Held, Server, u32) {
    let listener = Listener::bind(&Address::Tcp(([127, 0, 0, 1], 0).into())).unwrap();
    let Address::Tcp(at) = listener.address() else {
        panic!("no address")
    };
    let server = Server {
        place: ServedPlace {
            shown: at.to_string(),
            addresses: vec![at],
            proof: Proof::Key(Key::new([1; 32])),
            identity: None,
        },
        failpoints: Failpoints::none(),
        idle: Mutex::default(),
        unsynced: Mutex::default(),
        disk: OnceLock::new(),
        identity: OnceLock::new(),
    };
    std::thread::spawn(move || serve(&listener, signs));
    let mut line = server.connect().unwrap();
    line.ask(Ask::Length).unwrap();
    let before = limit_ms(&line);
    let mut held = Held {
        line,
        rest: Vec::new(),
        rest_at: 0,
        gathers: false,
    };
    let written = held.write(&[7; LEN], 0);
    (written, held, server, before)
}

// Breaks if: a turn is waited for as long as for an answer.
#[test]
fn a_turn_that_comes_late_is_waited_for() {
    let late = BUSY_TIMEOUT + Duration::from_secs(1);
    let signs = late.as_millis() / PAUSE.as_millis();
    write_after(signs as u32).0.unwrap();
    // But not without end.
    let error = write_after(u32::MAX).0.unwrap_err();
    assert!(error.message().contains("no turn to send came"), "{error}");
}

// Breaks if: the kernel ends a connection whose bytes wait for the next turn, or keeps a lock for
// as long.
#[test]
fn a_connection_that_waits_for_a_turn_outlasts_what_the_kernel_grants_others() {
    let (written, held, server, before) = write_after(0);
    written.unwrap();
    assert_eq!(
        u128::from(limit_ms(&held.line)),
        TURN_TIMEOUT.as_millis(),
        "of a file"
    );
    server.give(held.line);
    assert_eq!(limit_ms(&server.line().unwrap()), before);
}
