//! Messages that are queued.

use super::{LIMIT, SOON, hello, hiding, key, large, pair, pair_with, tcp, unix};
use orcheck_format::ErrorKind;
use orcheck_format::wire::Message;
use orcheck_io::poll::Poller;
use orcheck_net::{Conn, Place, Received, Source};
use std::os::fd::AsFd;
use std::sync::Mutex;
use std::time::{Duration, Instant};

#[test]
fn queued_messages_leave_in_order_and_nobody_waits() {
    let piece = |number: u32| Message::Data {
        slot: number,
        at_bytes: 0,
        bytes: vec![number as u8; 1 << 20],
    };
    for (at, key) in [(tcp(), key()), (unix(), hiding()), (tcp(), hiding())] {
        let (mut one, mut two) = pair_with(&at, &key);
        (0..40).for_each(|number| one.queue(piece(number)).unwrap());
        // Breaks if: it waits for a peer that takes nothing.
        assert!(!one.push(LIMIT).unwrap());
        assert!((30 << 20..41 << 20).contains(&one.queued_bytes()));
        let odd = |message: &Message| matches!(message, Message::Data { slot, .. } if slot % 2 > 0);
        one.withdraw(0, odd);
        assert!(one.queued_bytes() < 25 << 20);
        one.queue(hello(7)).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let poller = Poller::new().unwrap();
                while !one.push(LIMIT).unwrap() {
                    poller.wait_for(&[(one.as_fd(), true)], LIMIT).unwrap();
                }
                assert_eq!(one.queued_bytes(), 0);
                one.send(&hello(8), LIMIT).unwrap();
            });
            // Those that were withdrawn in time are missing, and no other.
            let mut next = 0;
            loop {
                match two.receive(LIMIT).unwrap() {
                    Message::Data { slot, bytes, .. } => {
                        assert!(slot == next || slot == next + 1 && slot % 2 == 0);
                        assert!(bytes == vec![slot as u8; 1 << 20]);
                        next = slot + 1;
                    }
                    message => break assert_eq!(message, hello(7)),
                }
            }
            assert!(next >= 39);
            assert_eq!(two.receive(LIMIT).unwrap(), hello(8));
        });
    }
}

#[test]
fn a_peer_that_takes_nothing_ends_the_queue() {
    let (mut one, _two) = pair(&tcp());
    one.queue(large(60 << 20)).unwrap();
    let before = Instant::now();
    let poller = Poller::new().unwrap();
    let error = loop {
        match one.push(SOON) {
            Ok(sent) => assert!(!sent),
            Err(error) => break error,
        }
        poller.wait(&[], Duration::from_millis(1)).unwrap();
        // Breaks if: nobody looks at the deadline.
        assert!(before.elapsed() < LIMIT / 2);
    };
    assert!(before.elapsed() >= SOON);
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert_eq!(one.queue(hello(1)).unwrap_err(), error);
    // Breaks if: another frame is sent into the middle of a queued one.
    let (mut one, _two) = pair(&tcp());
    one.queue(large(60 << 20)).unwrap();
    assert!(!one.push(LIMIT).unwrap());
    assert_eq!(
        one.send(&hello(1), LIMIT).unwrap_err().kind(),
        ErrorKind::Internal
    );
}

/// Pushes until everything has left.
pub(super) fn push_all(conn: &mut Conn, source: Source<'_>) {
    let poller = Poller::new().unwrap();
    while !conn.push_from(Some(source), LIMIT).unwrap() {
        let writable = conn.can_push(Some(source));
        poller.wait_for(&[(conn.as_fd(), writable)], LIMIT).unwrap();
    }
}

fn take_piece(conn: &mut Conn) -> (Place, Vec<u8>) {
    let Received::Bytes(len) = conn.receive_any(LIMIT).unwrap() else {
        panic!("expected a piece")
    };
    let mut bytes = vec![0; len];
    let place = super::take_piece(conn, &mut bytes).unwrap();
    (place, bytes)
}

// Breaks if: a piece leaves before a message that was queued before it, with another's bytes, or
// with the bytes of the wrong step; or a part of it that leaves is not told, or told twice.
#[test]
fn pieces_are_sent_from_where_they_are() {
    let bytes: Vec<u8> = (0..3_000_000u32).map(|i| (i * 7 + i / 251) as u8).collect();
    for (at, key) in [(tcp(), key()), (unix(), hiding()), (tcp(), hiding())] {
        let (mut one, mut two) = pair_with(&at, &key);
        let place = |at_bytes| Place { slot: 9, at_bytes };
        let left = Mutex::new(Vec::new());
        let leaves = |at: u64, part: &[u8]| {
            let mut left = left.lock().unwrap();
            assert_eq!(at, (1 << 40) + left.len() as u64);
            left.extend_from_slice(part);
        };
        let source = Source {
            place: place(1 << 40),
            bytes: &bytes,
            leaves: Some(&leaves),
        };
        one.queue(hello(1)).unwrap();
        for (from, len) in [(0, 2_000_001), (2_000_001, 999_999), (3_000_000, 0)] {
            one.queue_piece(place((1 << 40) + from), len).unwrap();
        }
        one.queue(hello(2)).unwrap();
        assert_eq!(one.borrowed_bytes(), bytes.len());
        // Nothing leaves without its bytes, nor with those of another replica.
        let other = Source::new(
            Place {
                slot: 8,
                at_bytes: 1 << 40,
            },
            &bytes,
        );
        assert!(!one.push(LIMIT).unwrap() && !one.push_from(Some(other), LIMIT).unwrap());
        assert!(!one.can_push(Some(other)) && one.can_push(Some(source)));
        assert_eq!(one.borrowed_bytes(), bytes.len());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                push_all(&mut one, source);
                assert_eq!((one.borrowed_bytes(), one.queued_bytes()), (0, 0));
            });
            assert_eq!(two.receive(LIMIT).unwrap(), hello(1));
            let first = take_piece(&mut two);
            assert!(first == (place(1 << 40), bytes[..2_000_001].to_vec()));
            let second = take_piece(&mut two);
            assert!(second == (place((1 << 40) + 2_000_001), bytes[2_000_001..].to_vec()));
            assert_eq!(take_piece(&mut two).1.len(), 0);
            assert_eq!(two.receive(LIMIT).unwrap(), hello(2));
        });
        assert!(*left.lock().unwrap() == bytes);
    }
}

// Breaks if: what is withdrawn is still sent, or a frame that was begun is withdrawn.
#[test]
fn pieces_that_were_not_begun_can_be_withdrawn() {
    let bytes = vec![3; 8 << 20];
    let (mut one, mut two) = pair(&tcp());
    let place = |slot| Place { slot, at_bytes: 0 };
    let source = |slot| Source::new(place(slot), &bytes);
    for _ in 0..4 {
        one.queue_piece(place(1), bytes.len()).unwrap();
    }
    one.queue_piece(place(2), 10).unwrap();
    assert!(!one.push_from(Some(source(1)), LIMIT).unwrap());
    one.withdraw(1, |_| true);
    assert!((1..9 << 20).contains(&one.borrowed_bytes()));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let poller = Poller::new().unwrap();
            while one.can_push(Some(source(1))) {
                one.push_from(Some(source(1)), LIMIT).unwrap();
                poller.wait_for(&[(one.as_fd(), true)], LIMIT).unwrap();
            }
            push_all(&mut one, source(2));
        });
        let mut slots = Vec::new();
        while slots.last() != Some(&2) {
            let (place, taken) = take_piece(&mut two);
            assert!(taken.iter().all(|&byte| byte == 3));
            slots.push(place.slot);
        }
        assert!(slots.len() < 5, "{slots:?}");
    });
}
