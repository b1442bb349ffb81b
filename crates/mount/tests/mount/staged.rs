//! What a stage keeps, and when it lets go: room, other nodes, kills, names that go.

use crate::cannot_mount;
use crate::rig::{IN_MEMORY, MIB, MODES, ON_DISK, Rig, data, fresh, small, wait_until};
use orcheck_io::failpoints::{Failpoints, Verdict};
use orcheck_testing::FaultPlan;
use orcheck_testing::mount::{Mount, detach, mount_over};
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

#[test]
fn what_does_not_fit_stays_in_the_stage_until_there_is_room() {
    if cannot_mount() {
        return;
    }
    for mode in [IN_MEMORY, ON_DISK] {
        let mut rig = small(mode, 6 << 20);
        for name in ["a", "b", "c"] {
            fs::write(rig.point().join(name), data(name.as_bytes()[0], 4 * MIB)).unwrap();
        }
        // Breaks if: a program that asks is not told.
        let file = File::options()
            .write(true)
            .open(rig.point().join("c"))
            .unwrap();
        let refused = file.sync_all().unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::ENOSPC), "{mode:?}");
        drop(file);
        for name in ["a", "b", "c"] {
            let found = fs::read(rig.point().join(name)).unwrap();
            let want = data(name.as_bytes()[0], 4 * MIB);
            assert!(found == want, "{mode:?} {name}: {} bytes", found.len());
        }
        let said = rig.stop();
        assert_eq!(said.left, 2, "{mode:?} {}", rig.told());
        assert!(rig.told().contains("stays in the stage"), "{}", rig.told());
        mount_over(rig.backing(), Mount::Resized(40 << 20)).unwrap();
        let found = rig.start(Failpoints::none());
        assert_eq!(found.closed.len(), 2, "{found:?}");
        for name in ["a", "b", "c"] {
            assert!(
                fs::read(rig.backing().join(name)).unwrap() == data(name.as_bytes()[0], 4 * MIB)
            );
        }
        rig.stop();
        assert_eq!(rig.staged(), 0);
        detach(rig.backing()).unwrap();
    }
}

/// What a file system takes for names, and for the last page of each file.
const SLACK: u64 = 128 << 10;

#[test]
fn a_full_stage_makes_room_or_is_passed_by() {
    if cannot_mount() {
        return;
    }
    for mode in [IN_MEMORY, ON_DISK, MODES[5]] {
        let mut rig = Rig::new(mode);
        let (limit, stage) = (MIB as u64, rig.stage().unwrap());
        mount_over(&stage, Mount::Small(64 << 20)).unwrap();
        rig.limit = Some(limit);
        rig.start(Failpoints::none());
        let point = rig.point();
        std::thread::scope(|scope| {
            let mut writers = Vec::new();
            for writer in 0..6u8 {
                let point = &point;
                writers.push(scope.spawn(move || {
                    for turn in 0..4u8 {
                        let path = point.join(format!("{writer}-{turn}"));
                        fs::write(path, data(writer, 700_000 * (1 + usize::from(turn)))).unwrap();
                    }
                }));
            }
            while !writers.iter().all(|writer| writer.is_finished()) {
                let space = rustix::fs::statvfs(&stage).unwrap();
                let used = (space.f_blocks - space.f_bfree) * space.f_frsize;
                assert!(used <= limit + SLACK, "{mode:?}: {used} bytes");
            }
        });
        rig.stop();
        for (writer, turn) in (0..6u8).flat_map(|writer| (0..4u8).map(move |turn| (writer, turn))) {
            let found = fs::read(rig.backing().join(format!("{writer}-{turn}"))).unwrap();
            assert!(
                found == data(writer, 700_000 * (1 + usize::from(turn))),
                "{mode:?}"
            );
        }
        assert_eq!(rig.staged(), 0);
        detach(&stage).unwrap();
    }
}

#[test]
fn what_is_written_while_a_file_is_flushed_counts() {
    if cannot_mount() {
        return;
    }
    for mode in [IN_MEMORY, ON_DISK, MODES[5]] {
        let mut rig = Rig::started(mode);
        for round in 0..12u8 {
            let name = format!("{round}");
            let path = rig.point().join(&name);
            let mut want = data(round, 9 * MIB + usize::from(round));
            // Closing it begins to flush it.
            fs::write(&path, &want).unwrap();
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let file = File::open(&path).unwrap();
                    file.sync_all().unwrap();
                });
                for turn in 0..40 {
                    let file = File::options().write(true).open(&path).unwrap();
                    let at = (turn * 7_919 * 31 + usize::from(round)) % (9 * MIB - 5_000);
                    let piece = data(100 + turn as u8, 5_000);
                    file.write_all_at(&piece, at as u64).unwrap();
                    want[at..at + 5_000].copy_from_slice(&piece);
                }
            });
            assert!(fs::read(&path).unwrap() == want, "{mode:?} round {round}");
            if round % 2 == 0 {
                File::options()
                    .write(true)
                    .open(&path)
                    .unwrap()
                    .sync_all()
                    .unwrap();
                assert!(
                    fs::read(rig.backing().join(&name)).unwrap() == want,
                    "{mode:?} round {round}"
                );
            }
            fs::write(rig.scratch.path().join(&name), &want).unwrap();
        }
        rig.stop();
        for round in 0..12 {
            let [found, want] = [rig.backing(), rig.scratch.path()]
                .map(|dir| fs::read(dir.join(format!("{round}"))).unwrap());
            assert!(found == want, "{mode:?} round {round}, unmounted");
        }
    }
}

#[test]
fn a_stage_is_used_by_one_mount_at_a_time() {
    if cannot_mount() {
        return;
    }
    let mut rig = Rig::started(IN_MEMORY);
    let options = orcheck_mount::Options {
        backing: rig.backing().to_owned(),
        mount_point: rig.scratch.path().join("stage"),
        stage: rig.stage(),
        stage_limit_bytes: None,
        passthrough: false,
        write_back: false,
        read_only: false,
        sets: None,
    };
    let refused = orcheck_mount::mount(
        &options,
        std::sync::Arc::new(|_| {}),
        None,
        Failpoints::none(),
    );
    let text = refused.err().unwrap().to_string();
    assert!(
        text.contains("another mount of this directory uses it"),
        "{text}"
    );
    rig.stop();
}

#[test]
fn staged_bytes_get_into_no_other_file() {
    if cannot_mount() {
        return;
    }
    for mode in [IN_MEMORY, ON_DISK] {
        for case in ["replaced", "written again", "another start"] {
            let mut rig = Rig::new(mode);
            let (_plan, points) = FaultPlan::new()
                .always("inode.sync", Verdict::Fail(libc::EIO))
                .failpoints();
            rig.start(points);
            fs::write(rig.point().join("a"), "staged").unwrap();
            wait_until("it waits in the stage", || {
                rig.told().contains("stays in the stage")
            });
            rig.kill();
            let backing = rig.backing().join("a");
            if case == "written again" {
                // By a program that ran without the mount: the same file.
                fs::write(&backing, "later").unwrap();
            } else if case == "replaced" {
                // Its inode number may be that of the file before.
                fs::remove_file(&backing).unwrap();
                fs::write(&backing, "later").unwrap();
            } else {
                // A power cut has left nothing of the attempts to flush it.
                fs::write(&backing, "").unwrap();
                let stage = fs::read_dir(rig.stage().unwrap())
                    .unwrap()
                    .next()
                    .unwrap()
                    .unwrap()
                    .path();
                for entry in fs::read_dir(&stage).unwrap() {
                    let name = entry.unwrap().file_name().into_string().unwrap();
                    if let Some((_, rest)) = name.split_once('-') {
                        fs::rename(stage.join(&name), stage.join(format!("00000000-{rest}")))
                            .unwrap();
                    }
                }
            }
            let found = rig.start(Failpoints::none());
            assert_eq!(
                (found.closed.len() + found.open.len(), found.left.len()),
                (0, 1),
                "{case}: {found:?}"
            );
            rig.stop();
            let there = if case == "another start" { "" } else { "later" };
            assert_eq!(
                fs::read_to_string(&backing).unwrap(),
                there,
                "{mode:?} {case}"
            );
            assert_eq!(rig.staged(), 1);
        }
    }
}

#[test]
fn files_shared_between_nodes_are_written_to_their_place() {
    if cannot_mount() {
        return;
    }
    for mode in [IN_MEMORY, ON_DISK, MODES[5]] {
        let mut rig = Rig::started(mode);
        // As MPI-IO opens a file of all ranks.
        let here = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(rig.point().join("shared"))
            .unwrap();
        let there = File::options()
            .write(true)
            .open(rig.backing().join("shared"))
            .unwrap();
        here.write_all_at(b"here", 3).unwrap();
        there.write_all_at(b"there", 7).unwrap();
        here.write_all_at(b"too", 0).unwrap();
        assert_eq!(
            fs::read(rig.backing().join("shared")).unwrap(),
            b"toohere\x74here",
            "{mode:?}"
        );
        drop((here, there));
        rig.stop();
        assert_eq!(
            fs::read(rig.backing().join("shared")).unwrap(),
            b"toohere\x74here"
        );
    }
}

#[test]
fn what_another_node_wrote_into_a_staged_file_stays() {
    if cannot_mount() {
        return;
    }
    for mode in [IN_MEMORY, ON_DISK] {
        let mut rig = Rig::started(mode);
        let file = fresh().open(rig.point().join("a")).unwrap();
        file.write_all_at(b"here", 0).unwrap();
        let other = File::options()
            .write(true)
            .open(rig.backing().join("a"))
            .unwrap();
        other.write_all_at(b"elsewhere", 0).unwrap();
        assert_eq!(
            file.sync_all().unwrap_err().raw_os_error(),
            Some(libc::EBUSY)
        );
        assert_eq!(fs::read(rig.backing().join("a")).unwrap(), b"elsewhere");
        drop(file);
        let said = rig.stop();
        assert_eq!((said.left, rig.staged()), (1, 1));
        assert!(
            rig.told().contains("somebody else has written"),
            "{}",
            rig.told()
        );
        // A file that was created and closed may be everybody's.
        fs::remove_file(rig.backing().join("a")).unwrap();
        rig.start(Failpoints::none());
        drop(fresh().open(rig.point().join("b")).unwrap());
        fs::write(rig.backing().join("b"), "elsewhere").unwrap();
        let mut here = File::options()
            .append(true)
            .open(rig.point().join("b"))
            .unwrap();
        here.write_all(b", here").unwrap();
        here.sync_all().unwrap();
        drop(here);
        rig.stop();
        assert_eq!(
            fs::read(rig.backing().join("b")).unwrap(),
            b"elsewhere, here"
        );
    }
}

#[test]
fn a_copy_of_a_read_only_file_is_flushed() {
    if cannot_mount() {
        return;
    }
    for mode in MODES {
        let mut rig = Rig::new(mode);
        let (_plan, points) = FaultPlan::new()
            .always("inode.sync", Verdict::Fail(libc::EIO))
            .failpoints();
        rig.start(points);
        let file = fresh().mode(0o444).open(rig.point().join("a")).unwrap();
        file.write_all_at(b"fixed", 0).unwrap();
        drop(file);
        assert_eq!(mode_of(&rig.point().join("a")), 0o444);
        rig.kill();
        rig.start(Failpoints::none());
        rig.stop();
        if !mode.write_back {
            assert_eq!(
                fs::read(rig.backing().join("a")).unwrap(),
                b"fixed",
                "{mode:?}"
            );
        }
        assert_eq!(mode_of(&rig.backing().join("a")), 0o444);
    }
}

fn mode_of(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

#[test]
fn a_removed_file_leaves_nothing() {
    if cannot_mount() {
        return;
    }
    for mode in [IN_MEMORY, ON_DISK] {
        let mut rig = Rig::started(mode);
        let path = rig.point().join("a");
        let mut file = fresh().open(&path).unwrap();
        file.write_all(b"temporary").unwrap();
        fs::remove_file(&path).unwrap();
        // It can still be used.
        file.write_all(b" data").unwrap();
        file.sync_all().unwrap();
        let mut all = String::new();
        file.seek(SeekFrom::Start(0)).unwrap();
        file.read_to_string(&mut all).unwrap();
        assert_eq!(all, "temporary data");
        drop(file);
        wait_until("the stage is empty", || rig.staged() == 0);
        assert_eq!(fs::read_dir(rig.backing()).unwrap().count(), 0);
        rig.stop();
    }
}

#[test]
fn what_is_written_to_a_mapping_after_the_close_is_flushed() {
    if cannot_mount() {
        return;
    }
    for mode in MODES {
        let mut rig = Rig::started(mode);
        let file = fresh().open(rig.point().join("a")).unwrap();
        file.set_len(3 * MIB as u64).unwrap();
        let mut mapping = orcheck_testing::calls::Mapping::of(&file).unwrap();
        drop(file);
        File::open(rig.point()).unwrap().sync_all().unwrap();
        mapping.bytes().copy_from_slice(&data(6, 3 * MIB));
        drop(mapping);
        rig.stop();
        assert!(
            fs::read(rig.backing().join("a")).unwrap() == data(6, 3 * MIB),
            "{mode:?}"
        );
    }
}

#[test]
fn a_file_that_is_cut_and_written_again_is_flushed_again() {
    if cannot_mount() {
        return;
    }
    for mode in MODES {
        let mut rig = Rig::started(mode);
        let path = rig.point().join("a");
        let want = data(8, 9 * MIB);
        let file = fresh().open(&path).unwrap();
        file.write_all_at(&want, 0).unwrap();
        file.sync_all().unwrap();
        file.set_len(4 * MIB as u64).unwrap();
        file.sync_all().unwrap();
        file.write_all_at(&want[4 * MIB..], 4 * MIB as u64).unwrap();
        file.sync_all().unwrap();
        assert!(
            fs::read(rig.backing().join("a")).unwrap() == want,
            "{mode:?}"
        );
        // The same bytes, while the lane may be flushing those before.
        for _ in 0..6 {
            fs::write(&path, &want).unwrap();
        }
        File::options()
            .write(true)
            .open(&path)
            .unwrap()
            .sync_all()
            .unwrap();
        assert!(
            fs::read(rig.backing().join("a")).unwrap() == want,
            "{mode:?}"
        );
        drop(file);
        rig.stop();
    }
}

#[test]
fn many_who_wait_for_one_file_and_for_others_all_get_on() {
    if cannot_mount() {
        return;
    }
    let mut rig = Rig::started(IN_MEMORY);
    let point = rig.point();
    std::thread::scope(|scope| {
        for writer in 0..4u8 {
            let point = &point;
            scope.spawn(move || {
                for turn in 0..6 {
                    let temporary = point.join(format!("{writer}.tmp"));
                    fs::write(&temporary, data(turn, 13 * MIB)).unwrap();
                    fs::rename(&temporary, point.join(format!("{}", writer % 2))).unwrap();
                    File::open(point.join(format!("{}", writer % 2)))
                        .unwrap()
                        .sync_all()
                        .unwrap();
                }
            });
        }
    });
    rig.stop();
}

#[test]
fn killed_while_it_recovers_it_recovers_again() {
    if cannot_mount() {
        return;
    }
    for mode in [IN_MEMORY, ON_DISK] {
        let mut step = 1;
        loop {
            let mut rig = Rig::new(mode);
            let (_plan, points) = FaultPlan::new()
                .always("inode.sync", Verdict::Fail(libc::EIO))
                .failpoints();
            rig.start(points);
            fs::write(rig.point().join("a"), data(4, 5 * MIB)).unwrap();
            wait_until("it waits in the stage", || rig.told().contains("stays in"));
            rig.kill();
            let (_plan, points) = FaultPlan::new().at_step(step, Verdict::Kill).failpoints();
            rig.start(points);
            if !rig.has_ended() {
                assert!(step > 5, "the plan did not see its steps");
                break;
            }
            rig.kill();
            let found = rig.start(Failpoints::none());
            assert_eq!(found.left, Vec::<String>::new(), "{mode:?} step {step}");
            rig.stop();
            assert!(fs::read(rig.backing().join("a")).unwrap() == data(4, 5 * MIB));
            assert_eq!(rig.staged(), 0, "{mode:?} step {step}");
            step += 1;
        }
    }
}
