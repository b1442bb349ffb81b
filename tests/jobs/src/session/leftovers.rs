//! What killed runs left, on a disk that has room for one checkpoint more than are to be kept.

use crate::session::disk::{self, Mounted, containers, names, skip};
use crate::session::hooks::{Hold, Meeting};
use crate::session::mistakes::{LONG, refused};
use crate::support::{Job, State, needs_own_disks};
use crate::{Test, session_tests};
use orcheck_client::Session;
use orcheck_format::{ErrorKind, Level};
use orcheck_testing::Scratch;
use std::path::Path;

/// What is tested here.
pub const TESTS: &[Test] = session_tests![
    a_disk_that_is_found_full_of_leftovers_takes_checkpoints_again,
    a_checkpoint_waits_for_the_room_that_prune_makes,
    whole_parts_of_lost_steps_make_room,
    older_checkpoints_go_from_a_full_directory,
];

const SCALE: usize = 300;

fn save(session: &mut Session, rank: u32, step: u64) {
    let mut state = State::new(rank, step, SCALE);
    state.protect(session).unwrap();
    session.checkpoint(step).unwrap();
    session.wait(step, Level::Global, LONG).unwrap();
}

// Breaks if: prune waits for a commit; there would never be one.
fn a_disk_that_is_found_full_of_leftovers_takes_checkpoints_again() {
    if needs_own_disks() {
        return;
    }
    let scratch = Scratch::new("leftovers");
    let root = scratch.path().join("ost0");
    let Some(_mounted) = Mounted::new(&root, "size=4m,mode=700") else {
        return skip(
            "a_disk_that_is_found_full",
            "mounting a file system of 4 MiB needs the superuser",
        );
    };
    let job = |keep: &str| Job::new(scratch.path(), 2, 1, false).with(keep);
    // A run is killed while it writes a container; another one after a commit, before it removes
    // what that replaces.
    for (first, keep, is_orphan) in [(10, "keep = 2", true), (30, "keep = 3", false)] {
        job(keep).run(|session, rank| {
            let mut session = session.unwrap();
            if let Ok(step) = session.find() {
                State::restores(&mut session, rank, step, SCALE);
            }
            for step in first..first + 3 {
                save(&mut session, rank, step);
            }
            session.close(LONG).unwrap();
        });
        let newest = first + 2;
        let len = match is_orphan {
            true => leave_an_orphan(&root.join("job"), newest),
            false => SCALE * 1000,
        };
        assert_eq!(containers(&root).len(), 3);
        let ballast = disk::fill(&root, len / 2);
        job("keep = 2").run(|session, rank| {
            let mut session = session.unwrap();
            assert_eq!(session.find().unwrap(), newest);
            // The program may still choose another step.
            assert_eq!(containers(&root).len(), 3);
            State::restores(&mut session, rank, newest, SCALE);
            for step in newest + 5..newest + 8 {
                save(&mut session, rank, step);
            }
            session.close(LONG).unwrap();
        });
        disk::remove_file(&ballast);
        assert_eq!(containers(&root).len(), 2);
    }
}

// Breaks if: the writer takes the first answer of a disk without room for the last one.
fn a_checkpoint_waits_for_the_room_that_prune_makes() {
    if needs_own_disks() {
        return;
    }
    let scratch = Scratch::new("prune-room");
    let root = scratch.path().join("ost0");
    let Some(_mounted) = Mounted::new(&root, "size=4m,mode=700") else {
        return skip(
            "a_checkpoint_waits_for_the_room",
            "mounting a file system of 4 MiB needs the superuser",
        );
    };
    let job = Job::new(scratch.path(), 2, 1, false).with("keep = 2");
    job.run(|session, rank| {
        let mut session = session.unwrap();
        (1..=2).for_each(|step| save(&mut session, rank, step));
        session.close(LONG).unwrap();
    });
    let taken_bytes = disk::tree_bytes(&root.join("job")) as usize;
    disk::fill(&root, taken_bytes / 2 * 3 / 2);
    let hold = Hold::at("control.published", " 3 global committed");
    let both = Meeting::of(2);
    let job = job.failpoints(hold.failpoints());
    job.run(|session, rank| {
        let mut session = session.unwrap();
        assert_eq!(session.find().unwrap(), 2);
        State::restores(&mut session, rank, 2, SCALE);
        save(&mut session, rank, 3);
        // Nothing goes before the hold is released.
        hold.wait_until_held();
        let [tried, given_up] = ["file.allocate", "dir.remove"].map(|site| hold.seen(site));
        both.wait();
        let mut state = State::new(rank, 4, SCALE);
        state.protect(&mut session).unwrap();
        session.checkpoint(4).unwrap();
        hold.sees("file.allocate", tried + 2);
        assert!(!hold.sees("dir.remove", given_up + 1), "no room for 4");
        both.wait();
        hold.release();
        session.wait(4, Level::Global, LONG).unwrap();
        save(&mut session, rank, 5);
        session.close(LONG).unwrap();
    });
    assert_eq!(containers(&root).len(), 2);
}

// Breaks if: whole parts of a step that another node has lost stay until the next commit; if they
// fill the disk, there never is one.
fn whole_parts_of_lost_steps_make_room() {
    if needs_own_disks() {
        return;
    }
    // Two nodes, each with copies on the other one or without, on a disk on which the first step
    // does not fit, and later ones fit beside nothing of it.
    for (level, dir, options, size) in [
        (Level::Global, "ost0", "keep = 1", "size=4m,mode=700"),
        (
            Level::Peers(1),
            "local",
            "keep = 1\npeers = 1",
            "size=8m,mode=700",
        ),
    ] {
        let scratch = Scratch::new("lost-parts");
        let Some(_mounted) = Mounted::new(&scratch.path().join(dir), size) else {
            let why = "mounting a file system of 4 MiB needs the superuser";
            return skip("whole_parts_of_lost_steps_make_room", why);
        };
        let is_global = level == Level::Global;
        let job = Job::new(scratch.path(), 2, u32::from(is_global), !is_global);
        let told = job.placed(&["a", "b"]).with(options).run(|session, rank| {
            let mut session = session.unwrap();
            let mut take = |step, scale| {
                let mut state = State::new(rank, step, scale);
                state.protect(&mut session).unwrap();
                session.checkpoint(step).unwrap();
                session.wait(step, level, LONG)
            };
            take(1, [2200, 1500][rank as usize]).unwrap_err();
            // On a disk that nodes share, and at a holder of replicas, one may write before another
            // one has removed its part.
            let last = if is_global { 4 } else { 3 };
            let safe = (2..=last).find(|&step| take(step, 900).is_ok());
            session.close(LONG).unwrap();
            safe
        });
        assert!(told.iter().all(Option::is_some), "{level}: {told:?}");
    }
}

// Breaks if: a directory that became full keeps what it has; each later run would lose its first
// checkpoint to it, and one that takes only one would make no progress.
fn older_checkpoints_go_from_a_full_directory() {
    if needs_own_disks() {
        return;
    }
    let scratch = Scratch::new("full-directory");
    let small = scratch.path().join("ost1");
    let Some(_mounted) = Mounted::new(&small, "size=4m,mode=700") else {
        return skip(
            "older_checkpoints_go_from_a_full_directory",
            "mounting a file system of 4 MiB needs the superuser",
        );
    };
    let large = 1500;
    let job = || {
        let job = Job::new(scratch.path(), 2, 2, false);
        job.placed(&["a", "b"]).with("keep = 1")
    };
    let both = Meeting::of(2);
    job().run(|session, rank| {
        let mut session = session.unwrap();
        let mut take = |step| {
            let mut state = State::new(rank, step, large);
            state.protect(&mut session).unwrap();
            session.checkpoint(step).unwrap();
            session.wait(step, Level::Global, LONG)
        };
        take(1).unwrap();
        both.wait();
        if rank == 0 {
            disk::fill(&small, 500_000);
        }
        both.wait();
        take(2).unwrap_err();
        take(3).unwrap();
        session.close(LONG).unwrap();
    });
    assert_eq!(containers(&small), []);
    // Breaks if: nothing there says that there are checkpoints; where the other one is not mounted,
    // the job would begin from nothing.
    let (other, away) = (scratch.path().join("ost0"), scratch.path().join("away"));
    disk::rename(&other, &away);
    assert!(disk::try_make_dir(&other));
    job().run(|session, _| {
        let error = refused(session.unwrap().find());
        assert_ne!(error.kind(), ErrorKind::NotFound, "{error}");
    });
    disk::remove_tree(&other);
    disk::rename(&away, &other);
    job().run(|session, rank| {
        let mut session = session.unwrap();
        assert_eq!(session.find().unwrap(), 3);
        State::restores(&mut session, rank, 3, large);
        let mut state = State::new(rank, 4, large);
        state.protect(&mut session).unwrap();
        session.checkpoint(4).unwrap();
        session.wait(4, Level::Global, LONG).unwrap();
        session.close(LONG).unwrap();
    });
}

/// A container like that of this step, of a later one, without a record; its length.
fn leave_an_orphan(dir: &Path, step: u64) -> usize {
    let name = |step: u64| format!("s{step:012}-");
    let container = |file: &String| file.starts_with(&name(step)) && file.ends_with(".orc");
    let found = names(dir).into_iter().find(container).unwrap();
    let bytes = disk::read(&dir.join(&found));
    disk::write(
        &dir.join(found.replace(&name(step), &name(step + 1))),
        &bytes,
    );
    bytes.len()
}
