//! Files: what a checkpoint stores of them, when they may be written again, and restarts.

use crate::session::hooks::Hold;
use crate::session::mistakes::{LONG, refused, says};
use crate::support::Job;
use crate::{Test, session_tests};
use orcheck_client::{FileMode, Session};
use orcheck_format::{Dtype, ErrorKind, Level};
use orcheck_io::memory::Span;
use orcheck_testing::Scratch;

/// What is tested here.
pub const TESTS: &[Test] = session_tests![
    memory_files_come_back_as_they_were_closed,
    memory_files_are_written_read_and_appended_to,
    a_memory_file_is_written_again_while_its_checkpoint_is_being_flushed,
    memory_files_survive_a_kill_at_any_write,
    memory_files_come_back_whatever_the_options,
    memory_files_take_turns_in_a_small_pool,
    an_open_memory_file_refuses_the_checkpoint_on_all_ranks,
    a_memory_file_that_could_not_be_written_completely_refuses_checkpoints,
    a_name_is_of_a_memory_file_or_of_another_region,
    memory_files_and_routed_files_are_the_same_in_a_checkpoint,
    memory_files_belong_to_their_ranks,
];

fn mode(text: &str) -> FileMode {
    FileMode::parse(text).unwrap()
}

fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let word = |i: u64| (i.wrapping_mul(seed * 2 + 1) >> 3) as u8 ^ seed as u8;
    (0..len as u64).map(word).collect()
}

/// Writes a whole memory file in pieces of many sizes.
fn put(session: &mut Session, name: &str, bytes: &[u8]) {
    session.open_file(name, mode("w")).unwrap();
    let (mut at, mut size) = (0, 1);
    while at < bytes.len() {
        let end = bytes.len().min(at + size);
        let next = session.write_file(name, at as u64, &bytes[at..end]);
        assert_eq!(next.unwrap(), end as u64);
        (at, size) = (end, size * 3 % 70_001);
    }
    session.close_file(name).unwrap();
}

fn get(session: &mut Session, name: &str) -> Vec<u8> {
    session.open_file(name, mode("r")).unwrap();
    let mut bytes = vec![0; session.file_len(name).unwrap() as usize + 5];
    let count = session.read_file(name, 0, &mut bytes).unwrap();
    bytes.truncate(count);
    session.close_file(name).unwrap();
    bytes
}

// Breaks if: a memory file is stored as it was at another time, or the memory files of another step
// stay.
fn memory_files_come_back_as_they_were_closed() {
    let scratch = Scratch::new("memory-files");
    let job = Job::new(scratch.path(), 2, 1, true);
    let content = |rank: u32, step: u64| pattern(u64::from(rank) * 10 + step, 300_000 + 7);
    job.run(|session, rank| {
        let mut session = session.unwrap();
        put(&mut session, "history", b"once");
        put(&mut session, "empty", b"");
        for step in 1..=4 {
            put(&mut session, "out/state.bin", &content(rank, step));
            session.checkpoint(step).unwrap();
        }
        session.wait(4, Level::Global, LONG).unwrap();
        // Written after the checkpoint: not part of it.
        put(&mut session, "out/state.bin", b"later");
        put(&mut session, "later", b"later");
        session.close(LONG).unwrap();
    });
    job.run(|session, rank| {
        let mut session = session.unwrap();
        put(&mut session, "before", b"of this run alone");
        assert_eq!(session.find().unwrap(), 4);
        let len_bytes = session.stored("out/state.bin").unwrap().len_bytes;
        assert_eq!(len_bytes, 300_007);
        assert_eq!(session.restart().unwrap(), 4);
        assert_eq!(get(&mut session, "out/state.bin"), content(rank, 4));
        assert_eq!(get(&mut session, "history"), b"once");
        assert_eq!(get(&mut session, "empty"), b"");
        for name in ["before", "later"] {
            says(
                &refused(session.open_file(name, mode("r"))),
                ErrorKind::NotFound,
                &[
                    "no memory file",
                    name,
                    "there are: empty, history, out/state.bin",
                ],
            );
        }
        // They are part of the next checkpoint, as they are.
        session.checkpoint(5).unwrap();
        session.close(LONG).unwrap();
    });
    job.run(|session, rank| {
        let mut session = session.unwrap();
        session.find().unwrap();
        assert_eq!(session.restart().unwrap(), 5);
        assert_eq!(get(&mut session, "out/state.bin"), content(rank, 4));
        session.close(LONG).unwrap();
    });
}

// Breaks if: a mode does not do what `fopen()` does with it.
fn memory_files_are_written_read_and_appended_to() {
    let scratch = Scratch::new("memory-files-modes");
    Job::new(scratch.path(), 1, 1, true).run(|session, _| {
        let mut session = session.unwrap();
        put(&mut session, "log", b"one ");
        session.checkpoint(1).unwrap();
        session.open_file("log", mode("a")).unwrap();
        assert_eq!(session.write_file("log", 0, b"two").unwrap(), 7);
        says(
            &refused(session.open_file("log", mode("r"))),
            ErrorKind::Unavailable,
            &["memory file 'log' is open already", "close it"],
        );
        session.close_file("log").unwrap();
        assert_eq!(get(&mut session, "log"), b"one two");
        session.open_file("log", mode("r+")).unwrap();
        session.write_file("log", 4, b"T").unwrap();
        // A gap reads as zeros, whatever the memory held.
        session.write_file("log", 10, b"!").unwrap();
        session.close_file("log").unwrap();
        assert_eq!(get(&mut session, "log"), b"one Two\0\0\0!");
        session.open_file("log", mode("r")).unwrap();
        says(
            &refused(session.write_file("log", 0, b"x")),
            ErrorKind::Invalid,
            &["not open for writing"],
        );
        session.close_file("log").unwrap();
        assert_eq!(
            refused(session.close_file("log")).kind(),
            ErrorKind::Invalid
        );
        session.open_file("log", mode("w+")).unwrap();
        assert_eq!(session.file_len("log").unwrap(), 0);
        session.close_file("log").unwrap();
        for wrong in ["", "x", "rw", "w?"] {
            assert_eq!(refused(FileMode::parse(wrong)).kind(), ErrorKind::Invalid);
        }
        for wrong in ["/abs", "a/../b", ".hidden", ""] {
            let error = refused(session.open_file(wrong, mode("w")));
            assert_eq!(error.kind(), ErrorKind::Invalid, "{wrong}");
        }
        session.close(LONG).unwrap();
    });
}

// Breaks if: the memory of a memory file is written over while a checkpoint reads it.
fn a_memory_file_is_written_again_while_its_checkpoint_is_being_flushed() {
    let scratch = Scratch::new("memory-files-again");
    let hold = Hold::at("file.write", ".orc");
    let job = Job::new(scratch.path(), 1, 1, true).with("held_steps = 2");
    let content = |step: u64| pattern(step, 500_000 + step as usize);
    job.clone().failpoints(hold.failpoints()).run(|session, _| {
        let mut session = session.unwrap();
        put(&mut session, "state", &content(1));
        session.checkpoint(1).unwrap();
        let stats = session.stats();
        assert_eq!(stats.staged_bytes, 500_001);
        hold.wait_until_held();
        says(
            &refused(session.unprotect("state")),
            ErrorKind::Unavailable,
            &["memory file 'state' is still being written to disk"],
        );
        // Other memory: the next checkpoint takes this, and the first one is as it was.
        session.open_file("state", mode("a")).unwrap();
        session.write_file("state", 0, b"tail").unwrap();
        session.close_file("state").unwrap();
        let whole = get(&mut session, "state");
        assert_eq!(whole, [content(1), b"tail".to_vec()].concat());
        put(&mut session, "state", &content(2));
        hold.release();
        session.wait(1, Level::Global, LONG).unwrap();
        session.close(LONG).unwrap();
    });
    job.run(|session, _| {
        let mut session = session.unwrap();
        session.find().unwrap();
        session.restart().unwrap();
        assert_eq!(get(&mut session, "state"), content(1));
        // Both pieces of memory in turn, many times.
        for step in 2..20 {
            put(&mut session, "state", &content(step));
            session.checkpoint(step).unwrap();
        }
        session.wait(19, Level::Global, LONG).unwrap();
        session.unprotect("state").unwrap();
        assert!(session.open_file("state", mode("r")).is_err());
        session.close(LONG).unwrap();
    });
    job.run(|session, _| {
        let mut session = session.unwrap();
        session.find().unwrap();
        session.restart().unwrap();
        assert_eq!(get(&mut session, "state"), content(19));
        session.close(LONG).unwrap();
    });
}

// Breaks if: what is written for the next checkpoint harms the last one.
fn memory_files_survive_a_kill_at_any_write() {
    let scratch = Scratch::new("memory-files-kill");
    let job = Job::new(scratch.path(), 1, 1, true);
    let content = |step: u64| pattern(step, 200_000);
    for step in 1..6 {
        job.run(|session, _| {
            let mut session = session.unwrap();
            if step > 1 {
                assert_eq!(session.find().unwrap(), step - 1);
                session.restart().unwrap();
                assert_eq!(get(&mut session, "state"), content(step - 1));
            }
            put(&mut session, "state", &content(step));
            session.checkpoint(step).unwrap();
            session.wait(step, Level::Global, LONG).unwrap();
            // The end comes while the next one is being written.
            session.open_file("state", mode("w")).unwrap();
            let part = &content(step + 1)[..40_000 * step as usize];
            session.write_file("state", 0, part).unwrap();
            session.abandon();
        });
    }
}

// Breaks if: an option of capture or flush does not know memory that is borrowed.
fn memory_files_come_back_whatever_the_options() {
    for options in [
        "mode = 'traditional'",
        "incremental = 'auto'",
        "compress = 'lz4'",
        "check_pool = true",
        "scheme = 'core'",
    ] {
        let scratch = Scratch::new("memory-files-options");
        let job = Job::new(scratch.path(), 2, 1, true).with(options);
        let content = |rank: u32, step: u64| pattern(u64::from(rank) * 10 + step, 150_000);
        job.run(|session, rank| {
            let mut session = session.unwrap();
            put(&mut session, "unchanged", &content(rank, 99));
            for step in 1..=4 {
                put(&mut session, "state", &content(rank, step));
                session.checkpoint(step).unwrap();
            }
            session.wait(4, Level::Global, LONG).unwrap();
            session.close(LONG).unwrap();
        });
        job.run(|session, rank| {
            let mut session = session.unwrap();
            session.find().unwrap();
            assert_eq!(session.restart().unwrap(), 4, "{options}");
            assert_eq!(get(&mut session, "state"), content(rank, 4), "{options}");
            assert_eq!(
                get(&mut session, "unchanged"),
                content(rank, 99),
                "{options}"
            );
            session.close(LONG).unwrap();
        });
    }
}

// Breaks if: a memory file keeps what it grew by in advance, or does not wait for the flush that
// frees its room.
fn memory_files_take_turns_in_a_small_pool() {
    let scratch = Scratch::new("memory-files-small");
    let job = Job::new(scratch.path(), 1, 1, false);
    let content = |step: u64| pattern(step, 3_000_000);
    job.run(|session, _| {
        let mut session = session.unwrap();
        for step in 1..=10 {
            put(&mut session, "state", &content(step));
            session.checkpoint(step).unwrap();
        }
        session.close(LONG).unwrap();
    });
    job.run(|session, _| {
        let mut session = session.unwrap();
        session.find().unwrap();
        session.restart().unwrap();
        assert_eq!(get(&mut session, "state"), content(10));
        session.close(LONG).unwrap();
    });
}

// Breaks if: a memory file is stored while it is open.
fn an_open_memory_file_refuses_the_checkpoint_on_all_ranks() {
    let scratch = Scratch::new("memory-files-open");
    let job = Job::new(scratch.path(), 2, 1, true);
    job.run(|session, rank| {
        let mut session = session.unwrap();
        put(&mut session, "state", b"whole");
        if rank == 1 {
            session.open_file("state", mode("w")).unwrap();
            session.write_file("state", 0, b"ha").unwrap();
        }
        says(
            &refused(session.checkpoint(1)),
            ErrorKind::Invalid,
            &[
                "memory file 'state' is open",
                "close it (fclose) before the checkpoint",
            ],
        );
        if rank == 1 {
            session.write_file("state", 2, b"lf").unwrap();
            session.close_file("state").unwrap();
        }
        session.checkpoint(1).unwrap();
        session.wait(1, Level::Global, LONG).unwrap();
        session.open_file("state", mode("w")).unwrap();
        let (closed, warnings) = session.close_telling(LONG);
        closed.unwrap();
        let said = warnings
            .iter()
            .any(|text| text.contains("memory file 'state' was open at the end"));
        assert!(said, "{warnings:?}");
    });
    job.run(|session, rank| {
        let mut session = session.unwrap();
        session.find().unwrap();
        session.restart().unwrap();
        let expected: &[u8] = if rank == 1 { b"half" } else { b"whole" };
        assert_eq!(get(&mut session, "state"), expected);
        session.close(LONG).unwrap();
    });
}

// Breaks if: what a full pool left of a memory file is stored.
fn a_memory_file_that_could_not_be_written_completely_refuses_checkpoints() {
    let scratch = Scratch::new("memory-files-full");
    let job = Job::new(scratch.path(), 1, 1, true);
    job.run(|session, _| {
        let mut session = session.unwrap();
        put(&mut session, "state", b"before");
        session.checkpoint(1).unwrap();
        session.open_file("state", mode("w")).unwrap();
        session.write_file("state", 0, b"beg").unwrap();
        says(
            &refused(session.write_file("state", 3, &vec![1; 9 << 20])),
            ErrorKind::NoSpace,
            &[
                "memory file 'state'",
                "the pool of 128 chunks",
                "raise `pool`",
            ],
        );
        let error = refused(session.write_file("state", u64::MAX - 1, b"far away"));
        assert_eq!(error.kind(), ErrorKind::NoSpace);
        session.close_file("state").unwrap();
        says(
            &refused(session.checkpoint(2)),
            ErrorKind::NoSpace,
            &["memory file 'state' was not written completely"],
        );
        put(&mut session, "state", b"again");
        session.checkpoint(2).unwrap();
        session.wait(2, Level::Global, LONG).unwrap();
        session.close(LONG).unwrap();
    });
    job.run(|session, _| {
        let mut session = session.unwrap();
        session.find().unwrap();
        session.restart().unwrap();
        assert_eq!(get(&mut session, "state"), b"again");
        session.close(LONG).unwrap();
    });
}

// Breaks if: a memory file and another region can have the same name.
fn a_name_is_of_a_memory_file_or_of_another_region() {
    let scratch = Scratch::new("memory-files-names");
    Job::new(scratch.path(), 1, 1, true).run(|session, _| {
        let mut session = session.unwrap();
        let mut bytes = [0; 8];
        let span = Span::from_mut(&mut bytes);
        put(&mut session, "file", b"one");
        says(
            &refused(session.protect("file", span, Dtype::U8, 0)),
            ErrorKind::Invalid,
            &["'file' is a memory file"],
        );
        let error = refused(session.lend("file"));
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        session.protect("region", span, Dtype::U8, 0).unwrap();
        says(
            &refused(session.open_file("region", mode("w"))),
            ErrorKind::Invalid,
            &["'region' is a region"],
        );
        session.unprotect("file").unwrap();
        session.protect("file", span, Dtype::U8, 0).unwrap();
        session.close(LONG).unwrap();
    });
}

// Breaks if: a program that writes a file one day and a memory file the next cannot restart.
fn memory_files_and_routed_files_are_the_same_in_a_checkpoint() {
    let scratch = Scratch::new("memory-files-routed");
    let job = Job::new(scratch.path(), 1, 1, true);
    let content = pattern(3, 40_000);
    job.run(|session, _| {
        let mut session = session.unwrap();
        put(&mut session, "state", &content);
        session.checkpoint(1).unwrap();
        session.close(LONG).unwrap();
    });
    job.run(|session, _| {
        let mut session = session.unwrap();
        session.find().unwrap();
        let path = session.route("state").unwrap();
        session.restart().unwrap();
        assert_eq!(crate::session::disk::read(&path), content);
        session.close(LONG).unwrap();
    });
}

// Breaks if: a run with other ranks begins without what the memory files held.
fn memory_files_belong_to_their_ranks() {
    let scratch = Scratch::new("memory-files-ranks");
    let job = |ranks| Job::new(scratch.path(), ranks, 1, false);
    job(2).run(|session, _| {
        let mut session = session.unwrap();
        put(&mut session, "state", b"mine");
        session.checkpoint(1).unwrap();
        session.close(LONG).unwrap();
    });
    job(3).run(|session, _| {
        let mut session = session.unwrap();
        session.find().unwrap();
        says(
            &refused(session.restart()),
            ErrorKind::Unsupported,
            &["written by 2 ranks", "state (files of each rank)"],
        );
    });
}
