//! Tests what a directory reports when its configured path leads elsewhere: moved, replaced,
//! unmounted, mounted over.
#![allow(clippy::disallowed_methods, clippy::print_stdout, clippy::unwrap_used)] // tests look behind the door

use orcheck_format::ErrorKind;
use orcheck_io::disk::{Create, Dir, open_local};
use orcheck_io::failpoints::Failpoints;
use orcheck_testing::Scratch;
use orcheck_testing::mount::{Mount, detach, mount_again, mount_bound, mount_over, own_mounts};
use std::fs::{create_dir, create_dir_all, remove_dir, rename};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;

/// The directory of a job below a root, as a run opens it.
fn job_dir(root: &Path) -> Arc<dyn Dir> {
    let dir = open_local(root, Failpoints::none())
        .unwrap()
        .child("job", true);
    let dir = dir.unwrap();
    dir.create("claim", Create::Buffered).unwrap();
    dir.check_path().unwrap();
    dir
}

fn refused(dir: &dyn Dir, found: &str) {
    let error = dir.check_path().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    let path = dir.path().display().to_string();
    for says in [
        path.as_str(),
        "moved away, replaced or unmounted",
        found,
        "move it back or mount it again",
    ] {
        assert!(error.to_string().contains(says), "{says:?}: {error}");
    }
}

/// Nothing of the look itself is left.
fn nothing_left(dir: &dyn Dir) {
    let names: Vec<String> = dir.list().unwrap().into_iter().map(|e| e.name).collect();
    assert_eq!(names, ["claim"]);
}

// Breaks if: only the open handle is asked; or a copy with the same names counts as the directory.
#[test]
fn a_directory_that_was_moved_away_is_not_where_its_path_leads() {
    for scratch in [Scratch::new("moved"), Scratch::in_memory("moved")] {
        let (root, away) = (scratch.path().join("root"), scratch.path().join("away"));
        create_dir(&root).unwrap();
        let dir = job_dir(&root);
        rename(&root, &away).unwrap();
        refused(dir.as_ref(), "found nothing");
        create_dir(&root).unwrap();
        refused(dir.as_ref(), "found nothing");
        // As a restart would make it, with a claim of the same name.
        create_dir(root.join("job")).unwrap();
        std::fs::write(root.join("job/claim"), "").unwrap();
        refused(dir.as_ref(), "found another directory");
        std::fs::remove_dir_all(&root).unwrap();
        // A link instead of the root is the user's business and leads to the same files.
        symlink(&away, &root).unwrap();
        dir.check_path().unwrap();
        std::fs::remove_file(&root).unwrap();
        rename(&away, &root).unwrap();
        dir.check_path().unwrap();
        // Beneath the root no link is followed, so a run would not find it.
        rename(root.join("job"), root.join("job2")).unwrap();
        symlink("job2", root.join("job")).unwrap();
        refused(dir.as_ref(), "found another directory");
        nothing_left(dir.as_ref());
    }
}

#[test]
fn a_removed_directory_is_not_where_its_path_leads() {
    let scratch = Scratch::new("removed");
    let dir = job_dir(scratch.path());
    dir.remove("claim").unwrap();
    remove_dir(scratch.path().join("job")).unwrap();
    refused(dir.as_ref(), "found nothing");
    create_dir(scratch.path().join("job")).unwrap();
    let error = dir.check_path().unwrap_err();
    assert!(error.message().contains("job"), "{error}");
}

// Breaks if: the path is looked up as it was written; this process then has another working
// directory.
#[test]
fn a_relative_path_is_remembered_from_where_it_was_opened() {
    let scratch = Scratch::new("relative");
    create_dir_all(scratch.path().join("a/b")).unwrap();
    let here = std::env::current_dir().unwrap();
    // A way up to the root and down again.
    let up: std::path::PathBuf = here.iter().skip(1).map(|_| "..").collect();
    let relative = up.join(scratch.path().strip_prefix("/").unwrap());
    let dir = open_local(&relative.join("a"), Failpoints::none()).unwrap();
    // Another thread's file system context stays as it is.
    std::thread::scope(|scope| {
        let elsewhere = || {
            own_mounts().ok()?;
            std::env::set_current_dir(scratch.path().join("a/b")).unwrap();
            Some(dir.check_path())
        };
        match scope.spawn(elsewhere).join().unwrap() {
            Some(checked) => checked.unwrap(),
            None => println!("SKIPPED a working directory of a thread's own: needs root"),
        }
    });
    dir.check_path().unwrap();
}

/// Runs with mounts of its own, in a thread that ends with them.
fn with_own_mounts(test: impl FnOnce(&Path) + Send) {
    let scratch = Scratch::in_memory("mounts");
    std::thread::scope(|scope| {
        let tried = scope.spawn(|| own_mounts().map(|()| test(scratch.path())));
        if let Err(error) = tried.join().unwrap() {
            println!("SKIPPED a mount namespace of its own (needs root): {error}");
        }
    });
}

// Breaks if: the device number alone counts, or is not looked at.
#[test]
fn unmounted_and_mounted_over() {
    with_own_mounts(|at| {
        let root = at.join("root");
        create_dir(&root).unwrap();
        mount_over(&root, Mount::Small(1 << 20)).unwrap();
        let dir = job_dir(&root);
        // Another file system at the same path, empty and with a job in it.
        mount_over(&root, Mount::Small(1 << 20)).unwrap();
        refused(dir.as_ref(), "found nothing");
        drop(job_dir(&root));
        refused(dir.as_ref(), "found another directory");
        detach(&root).unwrap();
        dir.check_path().unwrap();
        nothing_left(dir.as_ref());
        // The same directory bound over itself is the same one.
        mount_bound(&root, &root).unwrap();
        dir.check_path().unwrap();
        detach(&root).unwrap();
        // Lazily unmounted: the handle still writes, to what nobody finds any more.
        detach(&root).unwrap();
        refused(dir.as_ref(), "found nothing");
        nothing_left(dir.as_ref());
    });
}

// Breaks if: the look for a file that is made through the handle is left out; a file system that
// was mounted again would be lost for the rest of the run.
#[test]
fn the_same_file_system_mounted_again_is_the_same() {
    with_own_mounts(|at| {
        let [real, root, beside] = ["real", "root", "beside"].map(|name| {
            create_dir(at.join(name)).unwrap();
            at.join(name)
        });
        mount_bound(&real, &root).unwrap();
        let dir = job_dir(&root);
        detach(&root).unwrap();
        refused(dir.as_ref(), "found nothing");
        if let Err(error) = mount_again(&real, &root, &beside) {
            return println!("SKIPPED the same files under another device number: {error}");
        }
        dir.check_path().unwrap();
        detach(&root).unwrap();
        nothing_left(dir.as_ref());
    });
}

#[test]
fn a_file_system_that_is_read_only_now_refuses_the_write() {
    with_own_mounts(|at| {
        let root = at.join("root");
        create_dir(&root).unwrap();
        let dir = job_dir(&root);
        mount_over(&root, Mount::ReadOnly).unwrap();
        // Where it leads to is right, and the handle is of before: what is written there is found.
        dir.check_path().unwrap();
        dir.create("more", Create::Buffered).unwrap();
        assert!(root.join("job/more").exists());
    });
}
