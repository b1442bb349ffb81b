//! Tests who must own a directory that receives our files, and directories that a group shares.
#![allow(clippy::disallowed_methods, clippy::unwrap_used)] // tests look behind the door

use orcheck_format::ErrorKind;
use orcheck_io::disk::{
    Create, open_local, open_local_shared, read_small, write_private, write_small,
};
use orcheck_io::failpoints::Failpoints;
use orcheck_testing::hardship::become_member;
use orcheck_testing::{Child, Ended, Scratch};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(20);

// Breaks if: `child` does not look at who may write to the directory that it opens for our files.
#[test]
fn a_directory_that_everybody_may_write_to_takes_none_of_our_files() {
    use std::os::unix::fs::PermissionsExt;
    let scratch = Scratch::new("owner");
    let dir = open_local(scratch.path(), Failpoints::none()).unwrap();
    let child = scratch.path().join("job");
    std::fs::create_dir(&child).unwrap();
    std::fs::set_permissions(&child, std::fs::Permissions::from_mode(0o777)).unwrap();
    let error = dir.child("job", true).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.message().contains("everybody may write"), "{error}");
    // What is only read may lie there.
    dir.child("job", false).unwrap();
    std::fs::set_permissions(&child, std::fs::Permissions::from_mode(0o700)).unwrap();
    dir.child("job", true).unwrap();
}

// Breaks if: only everybody is looked at; members of some group could replace checkpoints of one
// who does not know.
#[test]
fn a_directory_that_a_group_may_write_to_takes_none_of_our_files() {
    let scratch = Scratch::new("group");
    let dir = open_local(scratch.path(), Failpoints::none()).unwrap();
    let child = scratch.path().join("job");
    std::fs::create_dir(&child).unwrap();
    for mode in [0o770, 0o2770, 0o720] {
        std::fs::set_permissions(&child, std::fs::Permissions::from_mode(mode)).unwrap();
        let error = dir.child("job", true).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        for part in ["may write to", "chmod g-w", "the option group"] {
            assert!(error.message().contains(part), "{error}");
        }
        // What is only read may lie there.
        dir.child("job", false).unwrap();
    }
    // Reading does no harm.
    std::fs::set_permissions(&child, std::fs::Permissions::from_mode(0o750)).unwrap();
    dir.child("job", true).unwrap();
}

/// A group that this machine does not know.
const GROUP: u32 = 65_500;
/// Two members of it, and somebody else.
const USERS: [u32; 3] = [65_501, 65_502, 65_503];

fn mode_of(path: &Path) -> (u32, u32) {
    let metadata = std::fs::symlink_metadata(path).unwrap();
    (metadata.mode() & 0o7777, metadata.gid())
}

// Breaks if: the umask decides, the group is not set, or what is made by somebody who was not told
// of the group is not shared.
#[test]
fn what_a_group_shares_has_its_modes_and_its_group_whatever_the_umask_is() {
    if orcheck_io::machine::effective_uid() != 0 {
        println!("SKIPPED what_a_group_shares_…: needs root for groups");
        return;
    }
    for umask in [0o000, 0o022, 0o077] {
        let scratch = Scratch::new("group");
        let path = scratch.path();
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o775)).unwrap();
        std::os::unix::fs::chown(path, None, Some(GROUP)).unwrap();
        let as_member = |user: u32, work: &dyn Fn()| {
            let child = Child::run(|| {
                become_member(user, GROUP).unwrap();
                // SAFETY: changes a number of this process.
                #[allow(unsafe_code)]
                let _ = unsafe { libc::umask(umask) };
                work();
                0
            });
            assert_eq!(child.wait(LIMIT), Ended::Exited(0));
        };
        as_member(USERS[0], &|| {
            let root = open_local_shared(path, Some(GROUP), Failpoints::none()).unwrap();
            let job = root.child("job", true).unwrap();
            let node = job.child("n0", true).unwrap();
            for dir in [&job, &node] {
                dir.create("made", Create::Direct).unwrap().sync().unwrap();
                write_small(dir.as_ref(), "record", b"first").unwrap();
                write_private(dir.as_ref(), "keys", b"secret").unwrap();
            }
            // As a command does that knows no options.
            let job = open_local(path, Failpoints::none())
                .unwrap()
                .child("job", false)
                .unwrap();
            write_small(job.as_ref(), "choice", b"kept").unwrap();
            drop(
                job.child("later", true)
                    .unwrap()
                    .create("f", Create::Buffered)
                    .unwrap(),
            );
        });
        for dir in ["job", "job/n0", "job/later"] {
            assert_eq!(mode_of(&path.join(dir)), (0o2770, GROUP), "{dir}");
        }
        for file in [
            "job/made",
            "job/record",
            "job/n0/made",
            "job/choice",
            "job/later/f",
        ] {
            assert_eq!(mode_of(&path.join(file)), (0o660, GROUP), "{file}");
        }
        assert_eq!(mode_of(&path.join("job/keys")).0, 0o600);
        // Another member reads, replaces, removes and locks; the key is none of theirs.
        as_member(USERS[1], &|| {
            let root = open_local_shared(path, Some(GROUP), Failpoints::none()).unwrap();
            let job = root.child("job", true).unwrap();
            assert_eq!(read_small(job.as_ref(), "record", 10).unwrap(), b"first");
            assert!(job.open("record").unwrap().try_lock().unwrap());
            write_small(job.as_ref(), "record", b"second").unwrap();
            job.remove("made").unwrap();
            assert!(read_small(job.as_ref(), "keys", 10).is_err());
        });
        assert_eq!(mode_of(&path.join("job/record")), (0o660, GROUP));
        // Whoever is no member sees nothing, and cannot name the group.
        let other = Child::run(|| {
            become_member(USERS[2], USERS[2]).unwrap();
            let root = open_local_shared(path, Some(GROUP), Failpoints::none()).unwrap();
            i32::from(root.child("job", false).is_ok() || root.child("own", true).is_ok())
        });
        assert_eq!(other.wait(LIMIT), Ended::Exited(0));
    }
}

// Breaks if: a directory of another group, or of one's own that is not shared, takes files of a job
// that is shared.
#[test]
fn a_directory_that_is_not_shared_with_the_group_that_was_named_is_refused() {
    if orcheck_io::machine::effective_uid() != 0 {
        println!("SKIPPED a_directory_that_is_not_shared_…: needs root for groups");
        return;
    }
    let scratch = Scratch::new("group");
    let path = scratch.path();
    let job = path.join("job");
    let root = open_local_shared(path, Some(GROUP), Failpoints::none()).unwrap();
    let set = |mode: u32, user: u32, group: u32| {
        let _ = std::fs::remove_dir_all(&job);
        std::fs::create_dir(&job).unwrap();
        std::fs::write(job.join("there"), "").unwrap();
        std::os::unix::fs::chown(&job, Some(user), Some(group)).unwrap();
        std::fs::set_permissions(&job, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    for (mode, group) in [
        (0o700, 0),
        (0o2770, 0),
        (0o770, GROUP),
        (0o2750, GROUP),
        // Breaks if: only writing counts; everybody could read what the group shares.
        (0o2775, GROUP),
        (0o2771, GROUP),
    ] {
        set(mode, 0, group);
        let error = root.child("job", true).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        for part in [
            "expected one that group 65500 shares",
            &format!("{mode:04o}"),
            "chgrp",
        ] {
            assert!(error.message().contains(part), "{part}: {error}");
        }
    }
    set(0o2777, 0, GROUP);
    assert!(root.child("job", true).is_err());
    set(0o2770, USERS[0], GROUP);
    root.child("job", true).unwrap();
    // In a directory that everybody may write to, and that hands its group down, everybody can make
    // one of the group.
    std::os::unix::fs::chown(path, None, Some(GROUP)).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o3777)).unwrap();
    let error = root.child("job", true).err().unwrap();
    assert!(
        error.message().contains("found one of user 65501"),
        "{error}"
    );
    // Breaks if: the directory is blamed; another one made there would be refused just the same.
    let cause = format!(
        "in {}, where everybody may make directories",
        path.display()
    );
    assert!(error.message().contains(&cause), "{error}");
    assert!(error.message().contains("chmod o-w"), "{error}");
    // What was made and not yet shared when its maker died is shared now.
    std::fs::remove_dir_all(&job).unwrap();
    std::fs::create_dir(&job).unwrap();
    root.child("job", true).unwrap();
    assert_eq!(mode_of(&job), (0o2770, GROUP));
}
