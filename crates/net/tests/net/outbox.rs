//! Messages that are queued.

use super::{LIMIT, SOON, hello, hiding, key, large, pair, pair_with, tcp, unix};
use orcheck_format::ErrorKind;
use orcheck_format::wire::Message;
use orcheck_io::poll::Poller;
use std::os::fd::AsFd;
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
