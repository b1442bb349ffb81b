//! Tests servers and libraries of other versions: recorded conversations of older versions are
//! understood, in both directions, for ever.
//!
//! `conversation-1.txt` is of version 0.1.0, which did not send its version. It never changes: a
//! later form gets its own file.
#![allow(clippy::disallowed_methods, clippy::unwrap_used)] // tests look behind the door

mod recorded;

use orcheck_fixtures::servers::{Running, pattern};
use orcheck_format::ErrorKind;
use orcheck_format::wire::{
    Ask, Disk, FrameHeader, Message, Reply, StoreDir, StoreMessage, Versions, identity_file,
    identity_of,
};
use orcheck_io::disk::{Create, Dir};
use orcheck_io::failpoints::Failpoints;
use orcheck_net::{Address, Conn, Listener};
use orcheck_staging::open_dir;
use orcheck_testing::Scratch;
use recorded::{Frame, LIMIT, Line, Relay};
use std::io::Write;
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;

/// Everything that a process asks a server, each way that it may be answered.
fn life(at: &Address, scratch: &Scratch) {
    let key = scratch.path().join("key");
    let at = at.to_string().replace("tcp:", "orcheck://");
    let path = format!("{at}?key=file:{}", key.display());
    let root = open_dir(Path::new(&path), Failpoints::none()).unwrap();
    let dir: Arc<dyn Dir> = root.child("job", true).unwrap();
    dir.check_path().unwrap();
    let file = dir.create("a", Create::Buffered).unwrap();
    assert!(file.try_lock().unwrap());
    file.write_at(&pattern(3000), 0).unwrap();
    file.write_at(&pattern(500), 3000).unwrap();
    assert_eq!(file.len_bytes().unwrap(), 3500);
    file.allocate(300_000).unwrap();
    file.write_at(&pattern(150_000), 3500).unwrap();
    file.truncate(153_500).unwrap();
    file.sync().unwrap();
    file.close().unwrap();
    assert!(dir.holds("a").unwrap() && !dir.holds("b").unwrap());
    let file = dir.open("a").unwrap();
    file.will_need(0, 100_000);
    let mut bytes = vec![0; 100_000];
    file.read_at(&mut bytes, 3500).unwrap();
    assert!(bytes == pattern(150_000)[..100_000]);
    assert!(file.read_at(&mut bytes, 153_000).is_err());
    drop(file);
    dir.rename("a", "b").unwrap();
    let file = dir.create("c", Create::Buffered).unwrap();
    file.close().unwrap();
    assert!(dir.rename_new("c", "b").is_err());
    dir.rename_new("c", "d").unwrap();
    let names = dir.list().unwrap();
    assert_eq!(names.iter().map(|one| one.len_bytes).sum::<u64>(), 153_500);
    assert!(dir.free_bytes().unwrap() > 0 && !dir.read_only().unwrap());
    dir.sync().unwrap();
    dir.remove("b").unwrap();
    dir.remove("d").unwrap();
    root.remove_child("job").unwrap();
    assert!(root.child("job", false).is_err());
}

const CONVERSATIONS: [&str; 2] = [
    include_str!("conversation-1.txt"),
    include_str!("conversation-2.txt"),
];

/// What is written to the file.
fn content() -> Vec<u8> {
    [pattern(3000), pattern(500), pattern(150_000)].concat()
}

/// A server with the disk of a conversation.
fn server_of(scratch: &Scratch, lines: &[Line]) -> Running {
    let mut disk = Disk::default();
    for line in lines {
        match &line.frame {
            Frame::Message(Message::Store(StoreMessage::Reply(Reply::Greeted(_, Some(told))))) => {
                disk = *told;
            }
            Frame::Message(Message::Store(StoreMessage::Reply(Reply::Names(names)))) => {
                let found = names.iter().find_map(|(name, ..)| identity_of(name));
                disk.identity = found.unwrap_or(disk.identity);
            }
            _ => {}
        }
    }
    let since = disk.since_unix_s;
    let text = since.map_or(String::new(), |since| format!("since {since}\n"));
    let dir = scratch.path().join("one");
    std::fs::create_dir(&dir).unwrap();
    std::fs::write(dir.join(identity_file(disk.identity)), text).unwrap();
    let server = Running::start(scratch, Failpoints::none());
    drop(server.open(scratch)); // it writes the key
    server
}

fn listener() -> Listener {
    Listener::bind(&Address::Tcp(([127, 0, 0, 1], 0).into())).unwrap()
}

// Breaks if: a question of an older library is not understood, or its answer is one that it does
// not.
#[test]
fn what_processes_of_older_versions_say_is_answered_as_it_was() {
    for conversation in CONVERSATIONS {
        let scratch = Scratch::in_memory("versions");
        let lines = recorded::read(conversation);
        let server = server_of(&scratch, &lines);
        recorded::repeat_caller(&lines, &server.at, &content());
    }
}

// Breaks if: an older server is asked something that it does not know, or what it leaves out is
// needed.
#[test]
fn servers_that_answer_as_older_versions_did_are_used() {
    for conversation in CONVERSATIONS {
        let scratch = Scratch::in_memory("versions");
        let lines = recorded::read(conversation);
        drop(server_of(&scratch, &lines)); // the key
        let listener = listener();
        std::thread::scope(|scope| {
            let at = listener.address();
            let scratch = &scratch;
            let caller = scope.spawn(move || life(&at, scratch));
            recorded::repeat_server(&lines, &listener, &content());
            caller.join().unwrap();
        });
    }
}

// Breaks if: a message changes, and the new form is neither recorded nor given a version.
#[test]
fn what_is_said_today_is_the_newest_recorded_conversation() {
    let scratch = Scratch::in_memory("versions");
    let newest = recorded::read(CONVERSATIONS[CONVERSATIONS.len() - 1]);
    let server = server_of(&scratch, &newest);
    let relay = Relay::before(&server.at);
    life(&relay.at, &scratch);
    let found = relay.end();
    // When a server wants bytes is its own business.
    let said = |lines: &[Line]| -> Vec<Line> {
        let wants = |line: &&Line| !recorded::is_want(&line.frame);
        lines.iter().filter(wants).cloned().collect()
    };
    let (expected, found) = (said(&newest), said(&found));
    // Each side by itself: a question may come before or after the answer to the one before.
    for by_caller in [true, false] {
        let side = |lines: &[Line]| -> Vec<Line> {
            let own = lines.iter().filter(|line| line.by_caller == by_caller);
            own.cloned().collect()
        };
        let (expected, found_here) = (side(&expected), side(&found));
        let mut both = expected.iter().zip(&found_here);
        let same = both.all(|(one, other)| {
            one.conn == other.conn && recorded::is_same(&one.frame, &other.frame)
        });
        let same = same && expected.len() == found_here.len();
        assert!(same, "found:\n{}", recorded::write(&found));
    }
    assert_eq!(CONVERSATIONS.len() as u32, Versions::own().newest);
}

fn versions(oldest: u32, newest: u32) -> Versions {
    Versions {
        oldest,
        newest,
        release: "7.8.9".to_owned(),
    }
}

fn say(conn: &mut Conn, message: StoreMessage) {
    conn.send(&Message::Store(message), LIMIT).unwrap();
}

// Breaks if: a server or a library continues with one whose words it does not know, or does not say
// whose release is too old.
#[test]
fn what_is_too_new_or_too_old_is_refused_at_both_ends_with_both_versions() {
    let own = Versions::own().to_string();
    let scratch = Scratch::in_memory("versions");
    let server = Running::start(&scratch, Failpoints::none());
    let url = server.url(&scratch);
    let mut conn = Conn::connect(&server.at, &recorded::KEY, &Failpoints::none(), LIMIT).unwrap();
    say(&mut conn, StoreMessage::Ask(Ask::Greet(versions(7, 9))));
    for _ in 0..2 {
        let Frame::Message(Message::Store(StoreMessage::Reply(Reply::Failed(error)))) =
            recorded::receive(&mut conn)
        else {
            panic!("refused");
        };
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        for says in [
            format!("this server speaks {own}"),
            "the caller speaks versions 7 to 9 of the protocol (Orcheck 7.8.9)".to_owned(),
            "install a newer release of Orcheck where this server runs".to_owned(),
        ] {
            assert!(error.message().contains(&says), "{says}: {error}");
        }
        // Nothing of what it asks for is done.
        let child = StoreDir::default().child("made").unwrap();
        say(&mut conn, StoreMessage::Ask(Ask::Child(child, true)));
    }
    assert!(!scratch.path().join("one/made").exists());
    let lines = server.lines();
    assert!(
        lines[0].contains("a caller was refused: tcp:127.0.0.1:"),
        "{lines:?}"
    );
    assert!(lines[0].contains("Orcheck 7.8.9"), "{lines:?}");
    assert_eq!(server.stopper.counts().refused_callers, 1);
    // And a server of that version, which answers all the same.
    let listener = listener();
    let at = listener.address().to_string().replace("tcp:", "");
    let url = url.replace(&server.at.to_string().replace("tcp:", ""), &at);
    let error = std::thread::scope(|scope| {
        let caller = scope.spawn(|| open_dir(url.as_ref(), Failpoints::none()).err().unwrap());
        let mut conn = listener.accept(&recorded::KEY, &Failpoints::none(), LIMIT);
        let conn = conn.as_mut().unwrap().as_mut().unwrap();
        recorded::receive(conn);
        say(
            conn,
            StoreMessage::Reply(Reply::Greeted(versions(7, 9), None)),
        );
        caller.join().unwrap()
    });
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    for says in [
        at.as_str(),
        &format!("this library speaks {own}"),
        "the server speaks versions 7 to 9 of the protocol (Orcheck 7.8.9)",
        "where this library runs",
    ] {
        assert!(error.to_string().contains(says), "{says}: {error}");
    }
}

// Breaks if: a question that is not known ends the connection, and with it the file that is open on
// it.
#[test]
fn a_question_that_a_server_does_not_know_is_refused_by_name() {
    let scratch = Scratch::in_memory("versions");
    let server = Running::start(&scratch, Failpoints::none());
    let mut conn = Conn::connect(&server.at, &recorded::KEY, &Failpoints::none(), LIMIT).unwrap();
    let root = || StoreDir::default();
    say(
        &mut conn,
        StoreMessage::Ask(Ask::Create(root(), "file".to_owned(), false)),
    );
    recorded::receive(&mut conn);
    // One of a kind that is to come, and one that other parts of Orcheck say.
    let mut conn = send_unknown(conn, 99);
    conn.send(&Message::List, LIMIT).unwrap();
    for says in ["kind 99", "'list'"] {
        match recorded::receive(&mut conn) {
            Frame::Message(Message::Store(StoreMessage::Reply(Reply::Failed(error)))) => {
                assert_eq!(error.kind(), ErrorKind::Unsupported);
                assert!(error.message().contains(says), "{says}: {error}");
            }
            other => panic!("{other:?}"),
        }
    }
    // The file is still open.
    say(&mut conn, StoreMessage::Ask(Ask::Sync));
    let synced = Message::Store(StoreMessage::Reply(Reply::Told(vec![0])));
    assert_eq!(recorded::receive(&mut conn), Frame::Message(synced));
}

/// Sends a message of a kind that nobody knows here: an empty map.
fn send_unknown(conn: Conn, kind: u8) -> Conn {
    let (socket, mut state) = conn.detach();
    let header = FrameHeader {
        kind,
        flags: 0,
        len_bytes: 1,
        seq: state.sent,
    };
    let mut frame = [header.encode().as_slice(), &[0xa0]].concat();
    frame.extend(orcheck_net::frame_proof(state.send_key, &frame).unwrap());
    state.sent += 1;
    let mut stream = TcpStream::from(socket);
    stream.write_all(&frame).unwrap();
    Conn::attach(stream.into(), state, &Failpoints::none()).unwrap()
}

// Breaks if: an answer has to have exactly as many numbers as this library knows.
#[test]
fn answers_with_more_numbers_than_are_known_are_understood() {
    let scratch = Scratch::in_memory("versions");
    let lines = recorded::read(CONVERSATIONS[1]);
    drop(server_of(&scratch, &lines)); // the key
    let more = lines.into_iter().map(|mut line| {
        if let Frame::Message(Message::Store(StoreMessage::Reply(Reply::Told(numbers)))) =
            &mut line.frame
        {
            numbers.extend([7, 8, 9]);
        }
        line
    });
    let (more, listener) = (more.collect::<Vec<_>>(), listener());
    std::thread::scope(|scope| {
        let at = listener.address();
        let scratch = &scratch;
        let caller = scope.spawn(move || life(&at, scratch));
        recorded::repeat_server(&more, &listener, &content());
        caller.join().unwrap();
    });
}
