//! A proxy between caller and listener, which changes or delays what the caller sends.

use super::{LIMIT, SOON, accept_with, send_piece, take_piece, tcp};
use orcheck_format::wire::Message;
use orcheck_io::failpoints::Failpoints;
use orcheck_net::{Address, Conn, Key, Listener, Place, Received};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::Duration;

/// Sends messages through a proxy that changes what the caller sent after the handshake. Returns
/// how many messages arrived before the error that ends every such connection, and all that the
/// caller had sent.
pub fn record(
    key: &Key,
    messages: Vec<Message>,
    change: impl Fn(Vec<u8>) -> Vec<u8> + Send + Sync,
) -> (usize, Vec<u8>) {
    let pass = |frames, to: &mut TcpStream| {
        let _ = to.write_all(&change(frames));
    };
    record_through(key, messages, pass, (LIMIT, LIMIT))
}

/// The same through one that passes on as it likes; bytes in bulk may stay away for the first time,
/// and take the second.
pub fn record_through(
    key: &Key,
    messages: Vec<Message>,
    pass: impl Fn(Vec<u8>, &mut TcpStream) + Send + Sync,
    (quiet, most): (Duration, Duration),
) -> (usize, Vec<u8>) {
    let listener = Listener::bind(&tcp()).unwrap();
    let Address::Tcp(raw) = listener.address() else {
        unreachable!()
    };
    let proxy = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let at = Address::Tcp(proxy.local_addr().unwrap());
    std::thread::scope(|scope| {
        let messages = &messages;
        scope.spawn(move || {
            let mut caller = Conn::connect(&at, key, &Failpoints::none(), LIMIT).unwrap();
            for message in messages {
                match message {
                    Message::Data {
                        slot: 0,
                        at_bytes,
                        bytes,
                    } => caller.send_bulk(*at_bytes, &[bytes], LIMIT).unwrap(),
                    &Message::Data {
                        slot,
                        at_bytes,
                        ref bytes,
                    } => send_piece(&mut caller, Place { slot, at_bytes }, bytes),
                    other => caller.send(other, LIMIT).unwrap(),
                }
            }
        });
        let between = scope.spawn(move || {
            let (mut caller, _) = proxy.accept().unwrap();
            let mut to = TcpStream::connect(raw).unwrap();
            let mut all = vec![0; 40 + 32];
            let mut answer = [0; 64];
            caller.read_exact(&mut all[..40]).unwrap();
            to.write_all(&all[..40]).unwrap();
            to.read_exact(&mut answer).unwrap();
            caller.write_all(&answer).unwrap();
            caller.read_exact(&mut all[40..]).unwrap();
            to.write_all(&all[40..]).unwrap();
            let mut frames = Vec::new();
            caller.read_to_end(&mut frames).unwrap();
            all.extend_from_slice(&frames);
            pass(frames, &mut to);
            all
        });
        let mut conn = accept_with(&listener, key);
        let mut arrived = 0;
        let error = loop {
            let received = match conn.receive_any(LIMIT) {
                Ok(Received::Bytes(len)) => {
                    let mut bytes = vec![0; len];
                    let place = match messages.get(arrived) {
                        Some(Message::Data { slot: 1.., .. }) => take_piece(&mut conn, &mut bytes),
                        _ => (conn.receive_bulk(&mut bytes, quiet, most))
                            .map(|at_bytes| Place { slot: 0, at_bytes }),
                    };
                    place.map(|Place { slot, at_bytes }| Message::Data {
                        slot,
                        at_bytes,
                        bytes,
                    })
                }
                Ok(Received::Message(message)) => Ok(message),
                Err(error) => Err(error),
            };
            match received {
                Ok(message) => {
                    assert_eq!(
                        message, messages[arrived],
                        "an altered message was accepted"
                    );
                    arrived += 1;
                }
                Err(error) => break error,
            }
        };
        assert!(conn.is_closed(), "alive after {error}");
        assert_eq!(conn.receive(SOON).unwrap_err(), error);
        (arrived, between.join().unwrap())
    })
}
