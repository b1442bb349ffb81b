//! Tests the interface to the disk: what every directory and file must do, on a disk and in memory,
//! with and without faults.
#![allow(clippy::disallowed_methods, clippy::unwrap_used)] // tests look behind the door

use orcheck_format::ErrorKind;
use orcheck_io::disk::{Create, Dir, File, open_local, read_small, write_small};
use orcheck_io::failpoints::{Failpoints, Verdict};
use orcheck_testing::{Child, Ended, FaultPlan, Scratch};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(20);

/// Runs a test on a disk and in memory.
fn everywhere(test: impl Fn(&Path, Arc<dyn Dir>)) {
    for scratch in [Scratch::new("disk"), Scratch::in_memory("disk")] {
        test(
            scratch.path(),
            open_local(scratch.path(), Failpoints::none()).unwrap(),
        );
    }
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 31 + i / 255) as u8).collect()
}

#[test]
fn names_are_single_components() {
    everywhere(|_, dir| {
        let long = "x".repeat(256);
        for name in ["", ".", "..", "a/b", "/a", "a\0b", long.as_str()] {
            // Breaks if: `check_name` lets one of these pass.
            let kinds = [
                dir.create(name, Create::Buffered).err(),
                dir.open(name).err(),
                dir.remove(name).err(),
                dir.rename(name, "good").err(),
                dir.rename("good", name).err(),
                dir.child(name, true).err(),
                dir.remove_child(name).err(),
            ];
            for error in kinds {
                assert_eq!(error.unwrap().kind(), ErrorKind::Invalid, "{name:?}");
            }
        }
        assert!(dir.list().unwrap().is_empty());
    });
}

#[test]
fn a_file_lives_its_life() {
    everywhere(|path, dir| {
        let bytes = pattern(10_000);
        let file = dir.create("a", Create::Buffered).unwrap();
        assert!(!file.is_direct());
        assert_eq!(file.name(), path.join("a").display().to_string());
        file.allocate(16_384).unwrap();
        assert_eq!(file.len_bytes().unwrap(), 16_384);
        file.write_at(&bytes, 100).unwrap();
        file.write_at(&[], 5).unwrap();
        file.truncate(10_100).unwrap();
        file.sync().unwrap();
        file.sync().unwrap();
        assert_eq!(file.len_bytes().unwrap(), 10_100);
        let mut back = vec![1; 10_100];
        file.read_at(&mut back, 0).unwrap();
        assert!(back[..100].iter().all(|b| *b == 0) && back[100..] == bytes[..]);
        file.close().unwrap();
        assert_eq!(
            std::fs::metadata(path.join("a"))
                .unwrap()
                .permissions()
                .mode()
                & 0o777,
            0o600
        );

        assert_eq!(
            dir.create("a", Create::Buffered).err().unwrap().kind(),
            ErrorKind::Invalid
        );
        dir.rename("a", "b").unwrap();
        dir.sync().unwrap();
        assert_eq!(dir.open("a").err().unwrap().kind(), ErrorKind::NotFound);
        let file = dir.open("b").unwrap();
        let mut part = [0; 7];
        file.read_at(&mut part, 100).unwrap();
        assert_eq!(part, bytes[..7]);
        let error = file.read_at(&mut [0; 200], 10_000).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(
            error
                .message()
                .contains("expected 200 bytes at offset 10000, found 100"),
            "{error}"
        );
        assert!(file.write_at(b"x", 0).is_err());
        assert!(file.write_at(b"x", u64::MAX).is_err());
        drop(file);

        let child = dir.child("sub", true).unwrap();
        assert_eq!(
            std::fs::metadata(path.join("sub")).unwrap().mode() & 0o777,
            0o700
        );
        dir.child("sub", true).unwrap();
        child.create("inner", Create::Buffered).unwrap();
        assert!(dir.remove_child("sub").is_err());
        child.remove("inner").unwrap();
        let entries = dir.list().unwrap();
        let shown: Vec<_> = entries
            .iter()
            .map(|e| (e.name.as_str(), e.is_dir))
            .collect();
        assert_eq!(shown, [("b", false), ("sub", true)]);
        assert_eq!(entries[0].len_bytes, 10_100);
        dir.remove_child("sub").unwrap();
        assert_eq!(
            dir.child("sub", false).err().unwrap().kind(),
            ErrorKind::NotFound
        );
        dir.remove("b").unwrap();
        assert_eq!(dir.remove("b").unwrap_err().kind(), ErrorKind::NotFound);
        assert!(dir.free_bytes().unwrap() > 0);
        assert!(!dir.read_only().unwrap());
    });
}

#[test]
fn direct_files_take_any_memory_but_whole_blocks() {
    everywhere(|path, dir| {
        let file = dir.create("d", Create::Direct).unwrap();
        let block = file.alignment_bytes() as usize;
        assert!(block >= 4096 && block.is_power_of_two());
        let len = 3 * (1 << 20) + block;
        let bytes = pattern(len + 64);
        for shift in [0, 1, 8, 64] {
            file.write_at(&bytes[shift..shift + len], 0).unwrap();
            file.truncate(len as u64).unwrap();
            file.sync().unwrap();
            // Breaks if: the bounce buffer is written at a wrong offset or length.
            assert!(
                std::fs::read(path.join("d")).unwrap() == bytes[shift..shift + len],
                "+{shift}"
            );
        }
        for (at, len) in [
            (1, 100),
            (block - 1, 2),
            (0, len),
            (block, block),
            (len as u64 as usize - 1, 1),
        ] {
            let mut back = vec![0; len];
            file.read_at(&mut back, at as u64).unwrap();
            assert!(back == bytes[64 + at..64 + at + len], "{at}+{len}");
        }
        assert_eq!(
            file.read_at(&mut [0; 2], len as u64 - 1)
                .unwrap_err()
                .kind(),
            ErrorKind::Corrupt
        );
        if file.is_direct() {
            for (at, len) in [(1u64, block), (0, block - 1), (0, 1)] {
                let error = file.write_at(&bytes[..len], at).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Invalid);
            }
        }
    });
}

#[test]
fn a_file_system_without_direct_writing_is_used_buffered() {
    let scratch = Scratch::new("buffered");
    let (_, failpoints) = FaultPlan::new()
        .always("file.direct", Verdict::Fail(libc::EINVAL))
        .failpoints();
    let dir = open_local(scratch.path(), failpoints).unwrap();
    let file = dir.create("d", Create::Direct).unwrap();
    assert!(!file.is_direct());
    file.write_at(b"odd length", 3).unwrap();
    assert_eq!(file.len_bytes().unwrap(), 13);
}

#[test]
fn only_regular_files_are_opened_and_no_link_is_followed() {
    everywhere(|path, dir| {
        std::fs::write(path.join("real"), b"secret").unwrap();
        std::fs::create_dir(path.join("realdir")).unwrap();
        symlink("real", path.join("link")).unwrap();
        symlink("realdir", path.join("linkdir")).unwrap();
        symlink("nowhere", path.join("dangling")).unwrap();
        let fifo = std::ffi::CString::new(path.join("fifo").display().to_string()).unwrap();
        // SAFETY: a valid path.
        #[allow(unsafe_code)]
        let made = unsafe { libc::mkfifo(fifo.as_ptr(), 0o600) };
        assert_eq!(made, 0);
        // Breaks if: NOFOLLOW, NONBLOCK (then this hangs) or the check for a regular file is left
        // out.
        let socket = UnixListener::bind(path.join("socket"));
        let kinds = [
            ("link", "a symbolic link"),
            ("fifo", "a FIFO"),
            ("realdir", "a directory"),
            ("dangling", "a symbolic link"),
            ("socket", "a socket"),
        ];
        for (name, found) in &kinds[..if socket.is_ok() { 5 } else { 4 }] {
            let error = dir.open(name).err().unwrap();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{name}");
            let text = format!("expected a regular file, found {found}");
            assert!(error.message().contains(&text), "{error}");
        }
        assert!(dir.child("linkdir", false).is_err());
        assert!(dir.child("linkdir", true).is_err());
        assert!(dir.child("real", true).is_err());
        assert!(dir.create("dangling", Create::Buffered).is_err());
        assert!(!path.join("nowhere").exists());
        let listed = dir.list().unwrap();
        assert!(listed.iter().all(|e| e.is_dir == (e.name == "realdir")));
        // Removing a link removes the link.
        dir.remove("link").unwrap();
        assert!(path.join("real").exists());
    });
    let missing = open_local(Path::new("/nonexistent/orcheck"), Failpoints::none())
        .err()
        .unwrap();
    assert_eq!(missing.kind(), ErrorKind::NotFound);
    assert!(open_local(Path::new("/proc/version"), Failpoints::none()).is_err());
}

#[test]
fn small_files_appear_whole() {
    everywhere(|path, dir| {
        write_small(&*dir, "r", b"one").unwrap();
        std::fs::write(path.join("r.tmp"), b"left over").unwrap();
        write_small(&*dir, "r", b"second").unwrap();
        assert_eq!(read_small(&*dir, "r", 6).unwrap(), b"second");
        assert_eq!(
            read_small(&*dir, "r", 5).unwrap_err().kind(),
            ErrorKind::Corrupt
        );
        assert_eq!(dir.list().unwrap().len(), 1);
        write_small(&*dir, "empty", b"").unwrap();
        assert_eq!(read_small(&*dir, "empty", 0).unwrap(), b"");
    });
}

/// The sites that writing a small file over an old one passes, in this order.
const SMALL_SITES: [&str; 7] = [
    "dir.remove",
    "dir.create",
    "file.write",
    "file.sync",
    "file.close",
    "dir.rename",
    "dir.sync",
];

#[test]
fn a_small_file_is_old_or_new_whatever_step_fails() {
    for number in 1..=SMALL_SITES.len() as u64 {
        for errno in [libc::EIO, libc::ENOSPC] {
            let scratch = Scratch::in_memory("small");
            let plain = open_local(scratch.path(), Failpoints::none()).unwrap();
            write_small(&*plain, "r", b"old").unwrap();
            let (plan, failpoints) = FaultPlan::new()
                .at_step(number + 1, Verdict::Fail(errno))
                .failpoints();
            let dir = open_local(scratch.path(), failpoints).unwrap();
            let error = write_small(&*dir, "r", b"new!").unwrap_err();
            let seen = plan.seen();
            let site = SMALL_SITES[number as usize - 1];
            assert_eq!(seen[number as usize].site, site);
            let kind = if errno == libc::EIO {
                ErrorKind::Unavailable
            } else {
                ErrorKind::NoSpace
            };
            assert_eq!(error.kind(), kind, "{site}");
            assert!(error.message().contains("/r"), "{error}");
            let expected: &[u8] = if site == "dir.sync" { b"new!" } else { b"old" };
            assert_eq!(read_small(&*plain, "r", 10).unwrap(), expected, "{site}");
            assert_eq!(
                plain.list().unwrap().len(),
                1,
                "leftover after a failed {site}"
            );
        }
    }
}

#[test]
fn a_small_file_is_old_or_new_wherever_the_writer_is_killed() {
    for number in 1..=SMALL_SITES.len() as u64 {
        let scratch = Scratch::in_memory("killed");
        let plain = open_local(scratch.path(), Failpoints::none()).unwrap();
        write_small(&*plain, "r", b"old").unwrap();
        let child = Child::run(|| {
            let (_, failpoints) = FaultPlan::new()
                .at_step(number + 1, Verdict::Kill)
                .failpoints();
            let dir = open_local(scratch.path(), failpoints).unwrap();
            write_small(&*dir, "r", b"new!").map_or(1, |()| 0)
        });
        assert_eq!(
            child.wait(LIMIT),
            Ended::Signaled(libc::SIGKILL),
            "step {number}"
        );
        let renamed = SMALL_SITES[number as usize - 1] == "dir.sync";
        let expected: &[u8] = if renamed { b"new!" } else { b"old" };
        // Breaks if: `write_small` writes in place.
        assert_eq!(read_small(&*plain, "r", 10).unwrap(), expected);
        write_small(&*plain, "r", b"next").unwrap();
        assert_eq!(plain.list().unwrap().len(), 1);
    }
}

#[test]
fn a_failed_sync_poisons_the_file() {
    let scratch = Scratch::new("poison");
    let (plan, failpoints) = FaultPlan::new()
        .at_site("file.sync", 1, Verdict::Fail(libc::EIO))
        .failpoints();
    let dir = open_local(scratch.path(), failpoints).unwrap();
    let file = dir.create("p", Create::Buffered).unwrap();
    file.write_at(b"data", 0).unwrap();
    assert_eq!(file.sync().unwrap_err().kind(), ErrorKind::Unavailable);
    let syncs = plan.seen().len();
    // Breaks if: `lost` is not set, or not looked at.
    for result in [
        file.sync(),
        file.write_at(b"x", 0),
        file.read_at(&mut [0; 1], 0),
        file.allocate(1),
        file.truncate(1),
        file.len_bytes().map(drop),
        file.try_lock().map(drop),
    ] {
        assert!(result.unwrap_err().message().contains("lost"));
    }
    assert_eq!(
        plan.seen().len(),
        syncs,
        "a poisoned file is not touched again"
    );
    assert!(file.close().is_err());
}

#[test]
fn short_and_interrupted_transfers_go_on() {
    for how in [Create::Buffered, Create::Direct] {
        for verdict in [1, 5000, 8192]
            .map(Verdict::Short)
            .into_iter()
            .chain([Verdict::Fail(libc::EINTR)])
        {
            let scratch = Scratch::new("short");
            let (plan, failpoints) = FaultPlan::new()
                .at_site("file.write", 1, verdict)
                .at_site("file.write", 3, verdict)
                .at_site("file.read", 1, verdict)
                .at_site("file.read", 2, verdict)
                .failpoints();
            let dir = open_local(scratch.path(), failpoints).unwrap();
            let file = dir.create("s", how).unwrap();
            let bytes = pattern(32_768);
            file.write_at(&bytes, 0).unwrap();
            let mut back = vec![0; bytes.len()];
            file.read_at(&mut back, 0).unwrap();
            assert!(back == bytes, "{how:?} {verdict:?}");
            let writes = plan
                .seen()
                .iter()
                .filter(|s| s.site == "file.write")
                .count();
            assert!(writes > 1, "{verdict:?}");
        }
    }
}

#[test]
fn a_transfer_of_nothing_is_an_error_and_never_a_loop() {
    let scratch = Scratch::new("zero");
    let (_, failpoints) = FaultPlan::new()
        .always("file.write", Verdict::Short(0))
        .always("file.read", Verdict::Short(0))
        .failpoints();
    let dir = open_local(scratch.path(), failpoints).unwrap();
    let file = dir.create("z", Create::Buffered).unwrap();
    // Breaks if: a write of 0 bytes only continues the loop (then this hangs).
    assert_eq!(
        file.write_at(b"abc", 0).unwrap_err().kind(),
        ErrorKind::Unavailable
    );
    assert_eq!(
        file.read_at(&mut [0; 3], 0).unwrap_err().kind(),
        ErrorKind::Corrupt
    );
    let (_, failpoints) = FaultPlan::new()
        .always("file.write", Verdict::Fail(libc::EINTR))
        .failpoints();
    let dir = open_local(scratch.path(), failpoints).unwrap();
    let file = dir.create("interrupted", Create::Buffered).unwrap();
    assert!(
        file.write_at(b"abc", 0).is_err(),
        "interruptions are bounded"
    );
}

#[test]
fn faults_carry_kind_place_and_reason() {
    let scratch = Scratch::in_memory("kinds");
    let errno_of = [
        ("dir.create", libc::EROFS, ErrorKind::Unavailable),
        ("dir.open", libc::EMFILE, ErrorKind::Unavailable),
        ("dir.rename", libc::EACCES, ErrorKind::Unavailable),
        ("dir.remove", libc::ESTALE, ErrorKind::Unavailable),
        ("dir.list", libc::EIO, ErrorKind::Unavailable),
        ("dir.sync", libc::EDQUOT, ErrorKind::NoSpace),
        ("dir.child", libc::ENOSPC, ErrorKind::NoSpace),
        ("file.allocate", libc::ENOSPC, ErrorKind::NoSpace),
        ("file.truncate", libc::EINVAL, ErrorKind::Invalid),
        ("file.read", libc::EIO, ErrorKind::Unavailable),
        ("file.lock", libc::ENOLCK, ErrorKind::Unavailable),
        ("file.write", libc::EBADF, ErrorKind::Internal),
    ];
    for (site, errno, kind) in errno_of {
        let (plan, failpoints) = FaultPlan::new().failpoints();
        let dir = open_local(scratch.path(), failpoints).unwrap();
        let name = format!("f-{site}");
        std::fs::write(scratch.path().join(&name), b"0123").unwrap();
        let file = dir.open(&name).unwrap();
        plan.fail_from_now(site, "", Verdict::Fail(errno));
        let error = match site {
            "dir.create" => dir.create("new", Create::Buffered).err(),
            "dir.open" => dir.open(&name).err(),
            "dir.rename" => dir.rename(&name, "new").err(),
            "dir.remove" => dir.remove(&name).err(),
            "dir.list" => dir.list().err(),
            "dir.sync" => dir.sync().err(),
            "dir.child" => dir.child("new", true).err(),
            "file.allocate" => file.allocate(10).err(),
            "file.truncate" => file.truncate(10).err(),
            "file.read" => file.read_at(&mut [0; 2], 1).err(),
            "file.lock" => file.try_lock().err(),
            _ => file.write_at(b"xy", 3).err(),
        };
        let error = error.unwrap();
        assert_eq!(error.kind(), kind, "{site}: {error}");
        assert!(
            error
                .message()
                .contains(&scratch.path().display().to_string()),
            "{error}"
        );
        plan.heal();
        assert!(dir.open(&name).is_ok());
    }
    let (_, failpoints) = FaultPlan::new()
        .always("file.write", Verdict::Fail(libc::ENOSPC))
        .failpoints();
    let dir = open_local(scratch.path(), failpoints).unwrap();
    let error = dir
        .create("w", Create::Buffered)
        .unwrap()
        .write_at(&[0; 10], 8192)
        .unwrap_err();
    let full = scratch.path().join("w");
    assert_eq!(
        error.message(),
        format!(
            "write 10 bytes at offset 8192 of {} failed: No space left on device (ENOSPC)",
            full.display()
        )
    );
}

#[test]
fn a_lock_excludes_and_ends_with_its_holder() {
    everywhere(|path, dir| {
        dir.create("l", Create::Buffered).unwrap();
        let one = dir.open("l").unwrap();
        let two = dir.open("l").unwrap();
        assert!(one.try_lock().unwrap());
        assert!(one.try_lock().unwrap());
        assert!(!two.try_lock().unwrap());
        // Closing another descriptor of the file keeps the lock, as it would not with a classic
        // POSIX lock.
        drop(std::fs::File::open(path.join("l")).unwrap());
        // Breaks if: F_SETLK is used instead of F_OFD_SETLK.
        let child = Child::run(|| {
            let dir = open_local(path, Failpoints::none()).unwrap();
            i32::from(dir.open("l").unwrap().try_lock().unwrap())
        });
        assert_eq!(child.wait(LIMIT), Ended::Exited(0));
        drop(one);
        assert!(two.try_lock().unwrap());
        drop(two);

        // A holder that is killed leaves no lock.
        let (read, write) = rustix::pipe::pipe().unwrap();
        let holder = Child::run(|| {
            let dir = open_local(path, Failpoints::none()).unwrap();
            let file = dir.open("l").unwrap();
            let byte = [u8::from(file.try_lock().unwrap())];
            let _ = rustix::io::write(&write, &byte);
            loop {
                std::thread::park();
            }
        });
        let mut held = [0; 1];
        assert_eq!(rustix::io::read(&read, &mut held).unwrap(), 1);
        assert_eq!(held, [1]);
        let other = dir.open("l").unwrap();
        assert!(!other.try_lock().unwrap());
        holder.kill();
        assert_eq!(holder.wait(LIMIT), Ended::Signaled(libc::SIGKILL));
        assert!(other.try_lock().unwrap());
    });
}

#[test]
fn steps_are_numbered_recorded_and_selected() {
    let scratch = Scratch::in_memory("steps");
    let (plan, failpoints) = FaultPlan::new()
        .at_site("dir.create", 2, Verdict::Fail(libc::EIO))
        .only_where("chosen")
        .failpoints();
    let dir = open_local(scratch.path(), failpoints.clone()).unwrap();
    for name in ["a", "b", "chosen-1", "c"] {
        dir.create(name, Create::Buffered).unwrap();
    }
    assert!(dir.create("chosen-2", Create::Buffered).is_err());
    dir.create("chosen-3", Create::Buffered).unwrap();
    let seen = plan.seen();
    assert_eq!(
        seen.iter().map(|s| s.number).collect::<Vec<_>>(),
        (1..=7).collect::<Vec<_>>()
    );
    assert_eq!(seen[0].site, "dir.open");
    assert!(seen[5].target.ends_with("chosen-2"));
    assert_eq!(failpoints.count(), 7);
    assert_eq!(failpoints.at("engine.own", "x").unwrap(), None);
    assert_eq!(Failpoints::none().count(), 0);
    plan.fail_from_now("engine.own", "", Verdict::Short(3));
    assert_eq!(failpoints.at("engine.own", "x").unwrap(), Some(3));
    plan.heal();
    plan.fail_from_now("", "", Verdict::Fail(libc::EIO));
    assert_eq!(
        failpoints.at("engine.own", "x").unwrap_err().kind(),
        ErrorKind::Unavailable
    );
}

#[test]
fn an_unwritable_directory_says_so() {
    let scratch = Scratch::new("unwritable");
    let inner = scratch.path().join("ro");
    std::fs::create_dir(&inner).unwrap();
    std::fs::set_permissions(&inner, std::fs::Permissions::from_mode(0o500)).unwrap();
    let dir = open_local(&inner, Failpoints::none()).unwrap();
    let root = orcheck_io::machine::effective_uid() == 0;
    assert_eq!(dir.read_only().unwrap(), !root);
    let proc = open_local(Path::new("/proc/self/fd"), Failpoints::none()).unwrap();
    assert!(proc.create("x", Create::Buffered).is_err());
}

#[test]
fn listing_of_a_missing_directory_handle_survives_its_removal() {
    let scratch = Scratch::new("gone");
    let dir = open_local(scratch.path(), Failpoints::none()).unwrap();
    let child = dir.child("c", true).unwrap();
    dir.remove_child("c").unwrap();
    // The handle outlives the name: nothing can be created, and nothing elsewhere is touched.
    assert!(child.create("x", Create::Buffered).is_err());
    assert!(child.list().map_or(true, |entries| entries.is_empty()));
}

/// The trait can be implemented by others, such as a simulated disk.
#[test]
fn the_traits_are_objects() {
    fn take(_: &dyn Dir, _: Option<Box<dyn File>>) {}
    let scratch = Scratch::in_memory("objects");
    take(
        &*open_local(scratch.path(), Failpoints::none()).unwrap(),
        None,
    );
}

// Breaks if: what the closing of a file reveals is not handed on.
#[test]
fn a_failed_close_is_an_error() {
    let scratch = Scratch::new("close");
    let (_, failpoints) = FaultPlan::new()
        .at_site("file.close", 1, Verdict::Fail(libc::EIO))
        .failpoints();
    let dir = open_local(scratch.path(), failpoints).unwrap();
    let file = dir.create("f", Create::Buffered).unwrap();
    file.write_at(b"data", 0).unwrap();
    assert_eq!(file.close().unwrap_err().kind(), ErrorKind::Unavailable);
}

// Breaks if: `rename_new` renames as `rename` does.
#[test]
fn a_file_renamed_to_a_new_name_is_never_over_another() {
    let scratch = Scratch::new("new-name");
    let dir = open_local(scratch.path(), Failpoints::none()).unwrap();
    std::fs::write(scratch.path().join("mine"), b"mine").unwrap();
    std::fs::write(scratch.path().join("theirs"), b"theirs").unwrap();
    assert_eq!(
        dir.rename_new("mine", "theirs").unwrap_err().kind(),
        ErrorKind::Invalid
    );
    let found = std::fs::read(scratch.path().join("theirs")).unwrap();
    assert_eq!(found, b"theirs");
    dir.rename_new("mine", "free").unwrap();
}

// Breaks if: what is removed and still open counts as having a name, or a length that was only set
// as blocks.
#[test]
fn what_is_taken_of_a_disk_is_looked_at() {
    everywhere(|path, dir| {
        assert_eq!(dir.taken("file").unwrap(), None);
        let file = dir.create("file", Create::Buffered).unwrap();
        file.write_at(&pattern(5000), 0).unwrap();
        file.truncate(1 << 20).unwrap();
        file.sync().unwrap();
        let taken = file.taken().unwrap();
        assert_eq!(dir.taken("file").unwrap(), Some(taken));
        assert_eq!(
            (taken.names, taken.len_bytes, taken.is_dir),
            (1, 1 << 20, false)
        );
        assert!((5000..100_000).contains(&taken.disk_bytes), "{taken:?}");
        std::fs::hard_link(path.join("file"), path.join("link")).unwrap();
        assert_eq!(file.taken().unwrap().names, 2);
        dir.remove("file").unwrap();
        dir.remove("link").unwrap();
        assert_eq!(
            file.taken().unwrap(),
            orcheck_io::disk::DiskUsage { names: 0, ..taken }
        );
        let child = dir.child("child", true).unwrap();
        let taken = child.taken_itself().unwrap();
        assert_eq!(dir.taken("child").unwrap(), Some(taken));
        assert_eq!((taken.names, taken.len_bytes, taken.is_dir), (1, 0, true));
        dir.remove_child("child").unwrap();
        assert_eq!(child.taken_itself().unwrap().names, 0);
    });
}
