//! Files of the program: where they lie, what of them is stored, what a restart makes of them.

use crate::session::disk;
use crate::session::hooks::Meeting;
use crate::session::mistakes::{LONG, refused, says};
use crate::support::{Job, make_dir, needs_own_disks, wait_for_both_levels};
use crate::{Test, session_tests};
use orcheck_client::{OPTIONAL, SAME, Session, Which};
use orcheck_format::{ErrorKind, Level, Step};
use orcheck_io::failpoints::{Failpoint, FailpointHook, Failpoints, Verdict};
use orcheck_io::machine::effective_uid;
use orcheck_testing::Scratch;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// What is tested here.
pub const TESTS: &[Test] = session_tests![
    a_routed_file_is_part_of_the_checkpoint_and_gone_after_close,
    bytes_of_routed_files_reach_the_shared_file_system_once,
    paths_of_routed_files_have_their_directories,
    no_link_in_the_path_of_a_routed_file_is_followed,
    an_optional_file_is_there_after_a_restart_if_it_was_at_the_checkpoint,
    routed_files_have_a_budget,
    a_routed_file_with_holes_counts_at_a_checkpoint_as_at_a_restart,
    a_rank_looks_at_its_own_files_and_seldom_at_those_of_all,
    routed_files_in_memory_of_a_killed_program_go_with_the_next_start,
    routed_files_of_a_run_that_was_killed_are_collected_by_the_next,
    routed_files_come_back_on_other_nodes,
];

fn pattern(seed: u64, len: usize) -> Vec<u8> {
    (0..len as u64)
        .map(|i| (i.wrapping_mul(seed * 2 + 1) >> 3) as u8 ^ seed as u8)
        .collect()
}

fn checkpoint(session: &mut Session, step: u64) {
    session.checkpoint(step).unwrap();
    session.wait(step, Level::Global, LONG).unwrap();
}

/// A directory that only jobs of one test route files to.
fn place(root: &Path) -> (PathBuf, String) {
    let dir = root.join("scratch");
    make_dir(&dir);
    let option = format!("route_dir = '{}'", dir.display());
    (dir, option)
}

// Breaks if: `end` leaves the routed directory, or `restart` does not write routed files.
fn a_routed_file_is_part_of_the_checkpoint_and_gone_after_close() {
    for with_node_dir in [true, false] {
        let scratch = Scratch::new("route");
        let job = Job::new(scratch.path(), 2, 1, with_node_dir);
        let content =
            |rank: u32, step: u64| pattern(u64::from(rank) * 10 + step, 9000 * step as usize + 5);
        job.run(|session, rank| {
            let mut session = session.unwrap();
            let path = session.route("mesh.h5").unwrap();
            // With a directory of the node there, without one in memory.
            assert_eq!(path.starts_with(scratch.path()), with_node_dir);
            let error = refused(session.checkpoint(1));
            says(
                &error,
                ErrorKind::NotFound,
                &[
                    "region 'mesh.h5'",
                    "No such file",
                    "write the routed file before the checkpoint, or route it with ORC_OPTIONAL",
                ],
            );
            for step in [1, 2] {
                disk::write(&path, &content(rank, step));
                session.checkpoint(step).unwrap();
            }
            session.wait(2, Level::Global, LONG).unwrap();
            // Written after the checkpoint: not part of it.
            disk::write(&path, b"later");
            session.close(LONG).unwrap();
            assert!(!path.exists() && !path.parent().unwrap().exists());
        });
        job.run(|session, rank| {
            let mut session = session.unwrap();
            assert_eq!(session.find().unwrap(), 2);
            let path = session.route("mesh.h5").unwrap();
            assert_eq!(session.restart().unwrap(), 2);
            assert_eq!(disk::read(&path), content(rank, 2));
            session.close(LONG).unwrap();
            assert!(!path.exists());
        });
    }
}

// Breaks if: without `node_dir` files lie in a directory of level `global`; each byte would reach
// it twice.
fn bytes_of_routed_files_reach_the_shared_file_system_once() {
    let scratch = Scratch::new("route-once");
    let job = Job::new(scratch.path(), 2, 1, false);
    const LEN: usize = 700_000;
    job.run(|session, rank| {
        let mut session = session.unwrap();
        let path = session.route("plots/u.bin").unwrap();
        disk::write(&path, &pattern(u64::from(rank), LEN));
        checkpoint(&mut session, 1);
        if rank == 0 {
            // While the program's own files are still there.
            let all = disk::tree_bytes(&scratch.path().join("ost0"));
            let (once, more) = (2 * LEN as u64, 100_000);
            assert!((once..once + more).contains(&all), "{all} bytes");
        }
        let routed_bytes = session.stats().routed_bytes;
        assert!(routed_bytes >= LEN as u64, "{routed_bytes}");
        session.close(LONG).unwrap();
        assert!(!path.exists());
    });
}

// Breaks if: a restart does not make the directories of a path, or `unprotect` leaves empty ones,
// or takes those of another.
fn paths_of_routed_files_have_their_directories() {
    let scratch = Scratch::new("route-deep");
    let job = Job::new(scratch.path(), 1, 1, true);
    let names = ["out/step/part.bin", "out/step/index", "out/log", "top"];
    let content = |name: &str| pattern(name.len() as u64, 5000);
    job.run(|session, _| {
        let mut session = session.unwrap();
        for name in names {
            let path = session.route(name).unwrap();
            assert!(path.ends_with(name));
            disk::write(&path, &content(name));
        }
        let says_why = |name: &str, session: &mut Session, why: &str| {
            says(
                &refused(session.route(name)),
                ErrorKind::Invalid,
                &[name, why],
            );
        };
        says_why("out", &mut session, "is a file too");
        says_why("top/of/it", &mut session, "'top' is a file too");
        for name in [
            "/top",
            "out/",
            "out//log",
            "out/../top",
            "out/.hid",
            "a/b/c/d/e/f/g/h/i",
        ] {
            says_why(name, &mut session, "a relative path of 1 to 8 names");
        }
        for name in names {
            session.route(name).unwrap();
        }
        checkpoint(&mut session, 1);
        session.close(LONG).unwrap();
    });
    job.run(|session, _| {
        let mut session = session.unwrap();
        session.find().unwrap();
        let paths = names.map(|name| session.route(name).unwrap());
        let out = paths[2].parent().unwrap();
        // The program tidied up in between: a restart makes them again.
        disk::remove_tree(out);
        session.restart().unwrap();
        for (name, path) in names.iter().zip(&paths) {
            assert_eq!(disk::read(path), content(name), "{name}");
        }
        // What is routed no more is the program's own file; its directories go when they are empty.
        disk::remove_file(&paths[0]);
        session.unprotect(names[0]).unwrap();
        assert!(paths[1].exists());
        disk::remove_file(&paths[1]);
        session.unprotect(names[1]).unwrap();
        assert!(!out.join("step").exists() && paths[2].exists());
        session.close(LONG).unwrap();
    });
}

// Breaks if: a link in place of a directory is followed; a restart would write, or a checkpoint
// read, somewhere else.
fn no_link_in_the_path_of_a_routed_file_is_followed() {
    let scratch = Scratch::new("route-link");
    let job = Job::new(scratch.path(), 1, 1, true);
    let outside = scratch.path().join("outside");
    make_dir(&outside);
    disk::write(&outside.join("file"), b"somebody's");
    let put_link = |path: &Path| {
        let dir = path.parent().unwrap();
        disk::remove_tree(dir);
        disk::link(&outside, dir);
    };
    job.run(|session, _| {
        let mut session = session.unwrap();
        let path = session.route("out/file").unwrap();
        disk::write(&path, b"mine");
        checkpoint(&mut session, 1);
        put_link(&path);
        let error = refused(session.checkpoint(2));
        assert!(error.message().contains("out"), "{}", error.message());
        session.close(LONG).unwrap();
    });
    job.run(|session, _| {
        let mut session = session.unwrap();
        session.find().unwrap();
        put_link(&session.route("out/file").unwrap());
        says(
            &refused(session.restart()),
            ErrorKind::Invalid,
            &["routed file", "out"],
        );
        session.close(LONG).unwrap();
    });
    assert_eq!(disk::read(&outside.join("file")), b"somebody's");
}

// Breaks if: a restart leaves a file that was absent at the checkpoint, or an empty file counts as
// an absent one.
fn an_optional_file_is_there_after_a_restart_if_it_was_at_the_checkpoint() {
    let scratch = Scratch::new("route-optional");
    let job = Job::new(scratch.path(), 2, 1, false).with("keep = 4");
    let route = |session: &mut Session| session.route_file("out/errors", OPTIONAL).unwrap();
    // Steps 1 to 3: absent, written on rank 1 alone, empty.
    job.run(|session, rank| {
        let mut session = session.unwrap();
        says(
            &refused(session.route_file("x", SAME)),
            ErrorKind::Invalid,
            &["routed file 'x'", "OPTIONAL"],
        );
        let path = route(&mut session);
        let mut state = pattern(1, 1000);
        let span = orcheck_io::memory::Span::from_mut(&mut state);
        session
            .protect("u", span, orcheck_format::Dtype::U8, 0)
            .unwrap();
        checkpoint(&mut session, 1);
        if rank == 1 {
            disk::write(&path, b"text");
        }
        checkpoint(&mut session, 2);
        disk::write(&path, b"");
        checkpoint(&mut session, 3);
        session.close(LONG).unwrap();
    });
    for step in [3, 1, 2] {
        job.run(|session, rank| {
            let mut session = session.unwrap();
            assert_eq!(session.find_step(Which::Exactly(Step(step))).unwrap(), step);
            let path = route(&mut session);
            // Left there by the program itself.
            disk::write(&path, b"newer than the checkpoint");
            let mut state = pattern(2, 1000);
            let span = orcheck_io::memory::Span::from_mut(&mut state);
            session
                .protect("u", span, orcheck_format::Dtype::U8, 0)
                .unwrap();
            assert_eq!(session.restart().unwrap(), step);
            assert_eq!(state, pattern(1, 1000));
            let expected: Option<&[u8]> = match (step, rank) {
                (3, _) => Some(b""),
                (2, 1) => Some(b"text"),
                _ => None,
            };
            let found = path.exists().then(|| disk::read(&path));
            assert_eq!(found.as_deref(), expected, "step {step}, rank {rank}");
            // A later file finds its directory.
            disk::write(&path, b"again");
            session.abandon();
        });
    }
}

// Breaks if: files in memory are not counted, those of other ranks are not, or a restart makes more
// than the budget allows.
fn routed_files_have_a_budget() {
    let scratch = Scratch::new("route-budget");
    let (dir, option) = place(scratch.path());
    let job = Job::new(scratch.path(), 2, 1, false).with(&option);
    let limited = |budget: &str| {
        let job = Job::new(scratch.path(), 2, 1, false).with(&option);
        job.with(&format!("route_budget = '{budget}'"))
    };
    // Another job's, and of a job whose name ends alike: not counted.
    let uid = effective_uid();
    for other in ["a-job", "other"] {
        let name = format!("orcheck-route-u{uid}-00000000000000aa-r0-{other}");
        make_dir(&dir.join(&name));
        disk::write(&dir.join(name).join("big"), &[1; 1 << 20]);
    }
    // Nor another user's, under a name of this job.
    if uid == 0 {
        let strange = dir.join(format!("orcheck-route-u{uid}-00000000000000bb-r0-job"));
        make_dir(&strange);
        disk::write(&strange.join("big"), &[1; 1 << 20]);
        std::os::unix::fs::chown(&strange, Some(12_346), None).unwrap();
    }
    job.run(|session, rank| {
        let mut session = session.unwrap();
        let path = session.route("out/u").unwrap();
        assert!(path.starts_with(&dir));
        disk::write(&path, &pattern(u64::from(rank), 300_000));
        checkpoint(&mut session, 1);
        assert_eq!(
            session.stats().routed_bytes,
            0,
            "nobody counts without a budget"
        );
        session.close(LONG).unwrap();
    });
    let of_both = Mutex::new(());
    limited("500 KiB").run(|session, _| {
        let mut session = session.unwrap();
        assert_eq!(session.find().unwrap(), 1);
        session.route("out/u").unwrap();
        // Both find room, or one of them does not: the restart is one of all ranks.
        let error = refused(session.restart());
        let _one = of_both.lock().unwrap();
        if error.kind() != ErrorKind::NoSpace {
            assert!(error.message().contains("rank"), "{}", error.message());
        } else {
            says(
                &error,
                ErrorKind::NoSpace,
                &["routed file", "'job'", "may take 512000", "route_dir"],
            );
        }
        session.abandon();
    });
    limited("700 KiB").run(|session, rank| {
        let mut session = session.unwrap();
        assert_eq!(session.find().unwrap(), 1);
        let path = session.route("out/u").unwrap();
        assert_eq!(session.restart().unwrap(), 1);
        assert_eq!(disk::read(&path), pattern(u64::from(rank), 300_000));
        if rank == 0 {
            disk::write(&path, &[7; 600_000]);
        }
        let error = refused(session.checkpoint(2));
        assert_eq!(error.kind(), ErrorKind::NoSpace, "{}", error.message());
        disk::write(&path, &[7; 1000]);
        checkpoint(&mut session, 2);
        session.close(LONG).unwrap();
    });
}

// Breaks if: the blocks of a file count at a checkpoint and its length at a restart; it would be
// safe, and never restored.
fn a_routed_file_with_holes_counts_at_a_checkpoint_as_at_a_restart() {
    let scratch = Scratch::new("route-holes");
    let (_, option) = place(scratch.path());
    let job = Job::new(scratch.path(), 1, 1, false).with(&option);
    job.with("route_budget = '8 MiB'").run(|session, _| {
        let mut session = session.unwrap();
        let path = session.route("u").unwrap();
        disk::write(&path, b"abc");
        disk::set_len(&path, 100 << 20);
        let error = refused(session.checkpoint(1));
        says(
            &error,
            ErrorKind::NoSpace,
            &["take 104857600 bytes", "may take 8388608"],
        );
        disk::set_len(&path, 1 << 20);
        checkpoint(&mut session, 1);
        session.close(LONG).unwrap();
    });
}

/// Counts how often somebody looks at a file.
#[derive(Default)]
struct Looks(AtomicU64);

impl FailpointHook for Looks {
    fn at(&self, step: &Failpoint) -> Verdict {
        if step.site == "dir.look" && step.target.contains("orcheck-route-") {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
        Verdict::Go
    }
}

// Breaks if: every rank lists the files of all ranks, or a restart does so for every file.
fn a_rank_looks_at_its_own_files_and_seldom_at_those_of_all() {
    const RANKS: u32 = 4;
    const FILES: u64 = 10;
    let scratch = Scratch::new("route-looks");
    let (_, option) = place(scratch.path());
    let looks = Arc::new(Looks::default());
    let job = Job::new(scratch.path(), RANKS, 1, false)
        .with(&option)
        .with("route_budget = '1 GiB'")
        .failpoints(Failpoints::with(
            Arc::clone(&looks) as Arc<dyn FailpointHook>
        ));
    let barrier = Meeting::of(RANKS);
    // Each file and the lock of the directory.
    let own = u64::from(RANKS) * (FILES + 1);
    // How many looks a call of all ranks takes.
    let count = |call: &mut dyn FnMut()| {
        barrier.wait();
        let before = looks.0.load(Ordering::Relaxed);
        barrier.wait();
        call();
        barrier.wait();
        let after = looks.0.load(Ordering::Relaxed);
        barrier.wait();
        after - before
    };
    let run = |restarts: bool| {
        job.run(|session, rank| {
            let mut session = session.unwrap();
            let paths: Vec<PathBuf> = (0..FILES)
                .map(|file| session.route(&format!("f{file}")).unwrap())
                .collect();
            if restarts {
                session.find().unwrap();
                let looked = count(&mut || {
                    session.restart().unwrap();
                });
                assert!(looked <= 2 * u64::from(RANKS) * own, "a restart: {looked}");
                return session.close(LONG).unwrap();
            }
            for path in paths {
                disk::write(&path, &pattern(u64::from(rank), 5000));
            }
            let first = count(&mut || checkpoint(&mut session, 1));
            assert_eq!(first, u64::from(RANKS) * own + own, "all, and each its own");
            for step in 2..=4 {
                let later = count(&mut || checkpoint(&mut session, step));
                assert_eq!(later, own, "step {step}");
            }
            assert_eq!(session.stats().routed_bytes % 4096, 0);
            assert!(session.stats().routed_bytes >= u64::from(RANKS) * FILES * 5000);
            session.close(LONG).unwrap();
        });
    };
    run(false);
    run(true);
}

// Breaks if: nobody collects in a place of many jobs; memory would fill up with what killed
// programs left.
fn routed_files_in_memory_of_a_killed_program_go_with_the_next_start() {
    let scratch = Scratch::new("route-left");
    let (dir, option) = place(scratch.path());
    let job = Job::new(scratch.path(), 1, 1, false).with(&option);
    let uid = effective_uid();
    let left = dir.join(format!("orcheck-route-u{uid}-00000000000000aa-r7-other"));
    make_dir(&left.join("deep/er"));
    disk::write(&left.join("deep/er/file"), b"left by a kill");
    disk::write(&dir.join("somebody's"), b"stays");
    job.run(|session, _| {
        let mut session = session.unwrap();
        let path = session.route("file").unwrap();
        disk::write(&path, b"mine");
        assert!(!left.exists());
        // A second run on this host does not take it for one that was left.
        let other = scratch.path().join("other");
        make_dir(&other);
        Job::new(&other, 1, 1, false)
            .with(&option)
            .run(|session, _| {
                let mut session = session.unwrap();
                session.route("file").unwrap();
                session.close(LONG).unwrap();
            });
        checkpoint(&mut session, 1);
        session.close(LONG).unwrap();
    });
    assert_eq!(disk::names(&dir), ["somebody's"]);
}

// Breaks if: prune leaves routed directories of older runs, or removes those of this one.
fn routed_files_of_a_run_that_was_killed_are_collected_by_the_next() {
    if needs_own_disks() {
        return;
    }
    let scratch = Scratch::new("leftroute");
    let job = Job::new(scratch.path(), 1, 1, true).with("keep = 1");
    let name = "route-e000001-0a1b2c3d-r0";
    let left = scratch.path().join("local/job/n0").join(name);
    // Where versions before this one had them.
    let older = scratch.path().join("ost0/job").join(name);
    for left in [&left, &older] {
        make_dir(&left.join("deep"));
        disk::write(&left.join("mesh.h5"), b"left by a kill");
        disk::write(&left.join("deep/er"), b"left by a kill");
    }
    for _ in 0..2 {
        job.run(|session, _| {
            let mut session = session.unwrap();
            let found = session.find();
            let path = session.route("mesh.h5").unwrap();
            let step = match found {
                Ok(_) => session.restart().unwrap() + 1,
                Err(_) => 1,
            };
            disk::write(&path, b"mine");
            session.checkpoint(step).unwrap();
            wait_for_both_levels(&mut session, step);
            assert!(path.exists(), "its own are there until it closes");
            session.close(LONG).unwrap();
        });
    }
    assert!(!left.exists() && !older.exists());
}

// Breaks if: a file belongs to the node that wrote it.
fn routed_files_come_back_on_other_nodes() {
    let scratch = Scratch::new("route-moved");
    let job = |nodes: &[&'static str]| Job::new(scratch.path(), 4, 2, false).placed(nodes);
    let content = |rank: u32| pattern(u64::from(rank) + 3, 40_000 + rank as usize);
    job(&["a", "a", "b", "b"]).run(|session, rank| {
        let mut session = session.unwrap();
        let path = session.route("out/part.bin").unwrap();
        disk::write(&path, &content(rank));
        checkpoint(&mut session, 1);
        session.close(LONG).unwrap();
    });
    for nodes in [["c", "d", "e", "f"], ["b", "b", "b", "a"]] {
        job(&nodes).run(|session, rank| {
            let mut session = session.unwrap();
            assert_eq!(session.find().unwrap(), 1);
            let path = session.route("out/part.bin").unwrap();
            session.restart().unwrap();
            assert_eq!(disk::read(&path), content(rank));
            session.close(LONG).unwrap();
        });
    }
}
