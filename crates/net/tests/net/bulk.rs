//! Tests bytes in bulk: authenticated like messages, and in order with them.

use super::proxy::{record, record_through};
use super::{LIMIT, bulk, frame_len, hello, hiding, key, pair, pair_with, tcp, unix};
use orcheck_format::ErrorKind;
use orcheck_format::wire::Message;
use orcheck_net::{Place, Received, Source};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

// Breaks if: a part of the frame is left out of its proof, or bytes are handed out before it held.
#[test]
fn every_flipped_bit_of_bytes_in_bulk_is_noticed() {
    flip_every_byte(0);
}

// Breaks if: the slot of a replica is left out of the proof.
#[test]
fn every_flipped_bit_of_a_piece_is_noticed() {
    flip_every_byte(9);
}

/// Of bytes of a server's file (slot 0), or of a replica.
fn flip_every_byte(slot: u32) {
    let one = || Message::Data {
        slot,
        at_bytes: 1 << 40,
        bytes: (0..300u32).map(|i| i as u8).collect(),
    };
    let len = frame_len(&one());
    for at in 0..len {
        let flip = |mut bytes: Vec<u8>| {
            bytes[len + at] ^= 1 << (at % 8);
            bytes
        };
        for key in [key(), hiding()] {
            let (arrived, _) = record(&key, vec![one(), one(), hello(1)], flip);
            assert_eq!(arrived, 1, "byte {at}, {}", key.encrypt);
        }
    }
    for cut in [1, 19, 20, 27, 28, 29, len - 16, len - 1, len, len + 20] {
        for key in [key(), hiding()] {
            let (arrived, _) = record(&key, vec![one(), one()], |mut bytes| {
                bytes.truncate(cut);
                bytes
            });
            assert_eq!(arrived, cut / len, "cut at {cut}");
        }
    }
}

#[test]
fn bytes_in_bulk_and_messages_keep_their_order() {
    for key in [key(), hiding()] {
        let many = |len: usize| bulk(len as u64, (0..len).map(|i| (i * 7) as u8).collect());
        let sent = vec![
            many(0),
            hello(1),
            many(1),
            many(5 << 20),
            hello(2),
            many(70_000),
        ];
        let (arrived, _) = record(&key, sent.clone(), |bytes| bytes);
        assert_eq!(arrived, sent.len());
    }
    // On a Unix socket, too, and never more than was announced.
    let (mut one, mut two) = pair(&unix());
    one.send_bulk(7, &[b"te", b"xt"], LIMIT).unwrap();
    assert!(matches!(two.receive_any(LIMIT), Ok(Received::Bytes(4))));
    assert!(two.receive_bulk(&mut [0; 5], LIMIT, LIMIT).is_err());
    let mut text = [0; 4];
    assert_eq!(two.receive_bulk(&mut text, LIMIT, LIMIT).unwrap(), 7);
    assert_eq!(&text, b"text");
    assert!(two.receive_bulk(&mut text, LIMIT, LIMIT).is_err());
    // Who expects none takes none.
    one.send_bulk(7, &[b"te", b"xt"], LIMIT).unwrap();
    assert_eq!(
        two.receive(LIMIT).unwrap_err().kind(),
        ErrorKind::Unsupported
    );
}

// Breaks if: bytes have to come whole within the time that they may stay away; callers that share a
// slow link would be given up, each with a part of them on its way.
#[test]
fn bytes_that_come_slowly_are_waited_for() {
    let pass = |frames: Vec<u8>, to: &mut TcpStream| {
        to.set_read_timeout(Some(Duration::from_millis(50)))
            .unwrap();
        for part in frames.chunks(frames.len() / 30 + 1) {
            // Nothing is answered: this passes the time.
            let _ = to.read(&mut [0]);
            if to.write_all(part).is_err() {
                return;
            }
        }
    };
    let sent = || vec![bulk(0, vec![7; 100_000])];
    let (short, long) = (Duration::from_secs(1), LIMIT);
    let (arrived, _) = record_through(&key(), sent(), pass, (short, long));
    assert_eq!(arrived, 1);
    // But not without end.
    let (arrived, _) = record_through(&key(), sent(), pass, (long, short));
    assert_eq!(arrived, 0);
}

// Breaks if: only room counts; a server whose turns take long would lose every caller that is in
// the middle of a piece.
#[test]
fn a_peer_that_reads_nothing_is_waited_for_while_it_says_something() {
    let long = vec![7; 16 << 20];
    let quiet = Duration::from_millis(200);
    for at in [tcp(), unix()] {
        let (mut one, mut two) = pair(&at);
        one.wait_while_alive(quiet);
        std::thread::scope(|scope| {
            let sends = scope.spawn(|| one.send_bulk(0, &[&long], LIMIT));
            let (nobody, says) = std::sync::mpsc::channel::<()>();
            for rank in 0..10 {
                two.send(&hello(rank), LIMIT).unwrap();
                // Passes the time.
                says.recv_timeout(quiet / 2).unwrap_err();
            }
            drop(nobody);
            let mut bytes = vec![0; long.len()];
            assert!(matches!(two.receive_any(LIMIT), Ok(Received::Bytes(_))));
            two.receive_bulk(&mut bytes, LIMIT, LIMIT).unwrap();
            sends.join().unwrap().unwrap();
            assert_eq!(bytes, long);
        });
        // What it said meanwhile is not lost.
        for rank in 0..10 {
            assert_eq!(one.receive(LIMIT).unwrap(), hello(rank));
        }
        // One that says nothing is not waited for.
        let error = one.send_bulk(0, &[&long], LIMIT).unwrap_err();
        assert!(error.message().contains("were not taken"), "{error}");
    }
}

// Breaks if: the kind of a frame is not looked at; a replica's bytes would pass for a file's, with
// another place.
#[test]
fn one_kind_of_bytes_is_not_taken_for_the_other() {
    for (at, key) in [(tcp(), key()), (unix(), key()), (tcp(), hiding())] {
        let (mut one, mut two) = pair_with(&at, &key);
        one.send_bulk(7, &[b"text"], LIMIT).unwrap();
        assert!(matches!(two.receive_any(LIMIT), Ok(Received::Bytes(4))));
        let mut bytes = [0; 4];
        let error = loop {
            match two.take_piece(&mut bytes) {
                Ok(place) => assert_eq!(place, None, "taken as a replica's"),
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(
            error.message().contains("kind 254: expected 253"),
            "{error}"
        );
        let (mut one, mut two) = pair_with(&at, &key);
        let place = Place {
            slot: 3,
            at_bytes: 0,
        };
        one.queue_piece(place, 4).unwrap();
        let source = Source::new(place, b"text");
        assert!(one.push_from(Some(source), LIMIT).unwrap());
        assert!(matches!(two.receive_any(LIMIT), Ok(Received::Bytes(4))));
        let error = two.receive_bulk(&mut bytes, LIMIT, LIMIT).unwrap_err();
        assert!(
            error.message().contains("kind 253: expected 254"),
            "{error}"
        );
    }
}
