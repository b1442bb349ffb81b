//! Tests servers and libraries of several versions: which of them understand each other, and that
//! unknown content is skipped.

use crate::samples::store_messages;
use orcheck_format::wire::{Message, StoreMessage, Versions};

fn versions(oldest: u32, newest: u32) -> Versions {
    Versions {
        oldest,
        newest,
        release: format!("0.{newest}.0"),
    }
}

// Breaks if: a range counts by one of its ends only.
#[test]
fn the_newest_version_that_both_speak_is_spoken() {
    for (ours, theirs, spoken) in [
        ((1, 2), (1, 2), Some(2)),
        ((1, 2), (1, 1), Some(1)),
        ((1, 2), (2, 3), Some(2)),
        ((2, 3), (1, 2), Some(2)),
        ((1, 5), (2, 3), Some(3)),
        ((2, 3), (1, 1), None),
        ((1, 1), (2, 3), None),
        ((1, 2), (7, 9), None),
    ] {
        let (ours, theirs) = (versions(ours.0, ours.1), versions(theirs.0, theirs.1));
        let agreed = ours.agree(&theirs, "this server", "the caller");
        assert_eq!(agreed.clone().ok(), spoken, "{ours} {theirs}");
        let Err(error) = agreed else { continue };
        let older = if ours.newest < theirs.newest {
            "this server"
        } else {
            "the caller"
        };
        for says in [
            format!("this server speaks {ours}"),
            format!("the caller speaks {theirs}"),
            format!("install a newer release of Orcheck where {older} runs"),
        ] {
            assert!(error.to_string().contains(&says), "{says}: {error}");
        }
    }
    // What this release speaks includes what does not say its version.
    let own = Versions::own();
    assert!(own.agree(&Versions::unsaid(), "a", "b").is_ok() && own.newest == 2);
}

/// The head of a CBOR map or array with one pair or item more: they are short here.
fn longer(head: u8) -> u8 {
    assert!(head & 0x1f < 23, "{head:#x}");
    head + 1
}

// Breaks if: a key that is not known is refused; nothing could be added to a message without a new
// version.
#[test]
fn fields_that_are_not_known_are_passed_over() {
    // A number, a text, bytes, an array with a map in it, and null, under the largest key with two
    // digits.
    let values: [&[u8]; 5] = [
        &[0x07],
        &[0x62, b'h', b'i'],
        &[0x42, 1, 2],
        &[0x82, 0x01, 0xa1, 0x01, 0x02],
        &[0xf6],
    ];
    for message in store_messages() {
        let message = Message::Store(message);
        let bytes = message.encode();
        assert_eq!(bytes[0] & 0xe0, 0xa0, "a map");
        for value in values {
            let mut more = bytes.clone();
            more[0] = longer(more[0]);
            more.extend_from_slice(&[0x18, 99]);
            more.extend_from_slice(value);
            let read = Message::decode(message.kind(), &more).unwrap();
            assert_eq!(read, message, "{value:02x?}");
        }
    }
}

// Breaks if: an answer has to have exactly as many numbers, or an entry as many items, as are
// known.
#[test]
fn numbers_and_items_that_are_not_known_are_passed_over() {
    // {1: [["a", 5, 0, "new", [1]]]}
    let entries = [
        0xa1, 0x01, 0x81, 0x85, 0x61, b'a', 0x05, 0x00, 0x63, b'n', b'e', b'w', 0x81, 0x01,
    ];
    let Message::Store(StoreMessage::Reply(reply)) = Message::decode(91, &entries).unwrap() else {
        panic!("a reply");
    };
    let expected = orcheck_format::wire::Reply::Names(vec![("a".to_owned(), 5, false)]);
    assert_eq!(reply, expected);
    // With too few it is no entry.
    assert!(Message::decode(91, &[0xa1, 0x01, 0x81, 0x82, 0x61, b'a', 0x05]).is_err());
    // {1: [0, 1, … 39]}
    let mut many = vec![0xa1, 0x01, 0x98, 40];
    for number in 0..40 {
        many.extend(if number < 24 {
            vec![number]
        } else {
            vec![0x18, number]
        });
    }
    assert!(Message::decode(90, &many).is_ok());
}
