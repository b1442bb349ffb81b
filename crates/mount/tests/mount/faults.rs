//! Full, read-only and failing disks, full stages, many files, and several mounts.

use crate::cannot_mount;
use crate::rig::{
    IN_MEMORY, MIB, MODES, ON_DISK, Rig, Where, data, fresh, mode, small, wait_until,
};
use orcheck_io::failpoints::{Failpoints, Verdict};
use orcheck_testing::FaultPlan;
use orcheck_testing::mount::{Mount, detach, mount_over};
use std::fs::{self, File};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

#[test]
fn without_a_stage_a_full_disk_is_told_at_the_write() {
    if cannot_mount() {
        return;
    }
    for by_kernel in [true, false] {
        let mut rig = small(mode(by_kernel, false, Where::Nowhere), 2 << 20);
        let mut file = fresh().open(rig.point().join("big")).unwrap();
        let refused = file.write_all(&data(1, 4 * MIB)).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::StorageFull);
        drop(file);
        rig.stop();
        detach(rig.backing()).unwrap();
    }
}

#[test]
fn a_read_only_directory_refuses_changes_and_can_be_read() {
    if cannot_mount() {
        return;
    }
    for mode in [IN_MEMORY, ON_DISK, MODES[0]] {
        let mut rig = Rig::new(mode);
        fs::write(rig.backing().join("there"), "x").unwrap();
        mount_over(rig.backing(), Mount::ReadOnly).unwrap();
        rig.start(Failpoints::none());
        let point = rig.point();
        assert_eq!(fs::read(point.join("there")).unwrap(), b"x");
        let refused = |done: std::io::Result<()>| {
            assert_eq!(done.unwrap_err().raw_os_error(), Some(libc::EROFS));
        };
        refused(fresh().open(point.join("new")).map(drop));
        refused(fs::write(point.join("there"), "y"));
        refused(fs::rename(point.join("there"), point.join("other")));
        refused(fs::create_dir(point.join("dir")));
        rig.stop();
        detach(rig.backing()).unwrap();
    }
}

#[test]
fn a_failed_sync_is_told_and_the_bytes_are_written_again() {
    if cannot_mount() {
        return;
    }
    for mode in [IN_MEMORY, ON_DISK] {
        let mut rig = Rig::new(mode);
        let (_plan, points) = FaultPlan::new()
            .at_site("inode.sync", 1, Verdict::Fail(libc::EIO))
            .failpoints();
        rig.start(points);
        let file = fresh().open(rig.point().join("a")).unwrap();
        file.write_all_at(&data(3, 6 * MIB), 0).unwrap();
        assert_eq!(file.sync_all().unwrap_err().raw_os_error(), Some(libc::EIO));
        file.sync_all().unwrap();
        assert!(fs::read(rig.backing().join("a")).unwrap() == data(3, 6 * MIB));
        drop(file);
        rig.stop();
    }
}

#[test]
fn a_loss_in_the_background_is_told_at_the_next_call() {
    if cannot_mount() {
        return;
    }
    for by_kernel in [true, false] {
        let mut rig = Rig::new(mode(by_kernel, false, Where::Nowhere));
        let (_plan, points) = FaultPlan::new()
            .at_site("inode.sync", 1, Verdict::Fail(libc::EIO))
            .failpoints();
        rig.start(points);
        fs::write(rig.point().join("a"), "lost").unwrap();
        wait_until("the failure is told", || {
            rig.told().contains("a: may not be durable")
        });
        let file = File::open(rig.point().join("a")).unwrap();
        assert_eq!(file.sync_all().unwrap_err().raw_os_error(), Some(libc::EIO));
        drop(file);
        assert_eq!(rig.stop().lost, 1);
    }
}

#[test]
fn many_files_and_many_open_files() {
    if cannot_mount() {
        return;
    }
    for mode in [ON_DISK, MODES[0]] {
        let mut rig = Rig::started(mode);
        let point = rig.point();
        let open: Vec<File> = (0..1_000)
            .map(|number| {
                let file = fresh().open(point.join(format!("open{number}"))).unwrap();
                file.write_all_at(&data(number as u8, 100), 0).unwrap();
                file
            })
            .collect();
        for dir in 0..10 {
            fs::create_dir(point.join(format!("{dir}"))).unwrap();
            for number in 0..200 {
                let path = point.join(format!("{dir}/{number}"));
                fs::write(path, data(number as u8, number)).unwrap();
            }
        }
        for dir in 0..10 {
            assert_eq!(
                fs::read_dir(point.join(format!("{dir}"))).unwrap().count(),
                200
            );
        }
        drop(open);
        rig.stop();
        for number in 0..1_000 {
            let found = fs::read(rig.backing().join(format!("open{number}"))).unwrap();
            assert_eq!(found, data(number as u8, 100));
        }
        for number in 0..200 {
            assert_eq!(
                fs::read(rig.backing().join(format!("7/{number}"))).unwrap(),
                data(number as u8, number)
            );
        }
    }
}

#[test]
fn a_reader_sees_the_same_while_a_file_is_flushed() {
    if cannot_mount() {
        return;
    }
    for mode in MODES {
        let mut rig = Rig::started(mode);
        let path = rig.point().join("a");
        let want = data(9, 12 * MIB + 77);
        fs::write(&path, &want).unwrap();
        std::thread::scope(|scope| {
            let syncing = scope.spawn(|| {
                let file = File::options().write(true).open(&path).unwrap();
                for _ in 0..3 {
                    file.sync_all().unwrap();
                }
            });
            let mut file = File::open(&path).unwrap();
            while !syncing.is_finished() {
                let mut all = Vec::new();
                file.seek(SeekFrom::Start(0)).unwrap();
                file.read_to_end(&mut all).unwrap();
                assert!(all == want, "{mode:?}");
            }
            assert!(fs::read(&path).unwrap() == want, "{mode:?}");
        });
        rig.stop();
        assert!(fs::read(rig.backing().join("a")).unwrap() == want);
    }
}

#[test]
fn holes_stay_holes() {
    if cannot_mount() {
        return;
    }
    for mode in MODES {
        let mut rig = Rig::new(mode);
        // It stays in the stage, although nothing like that would fit.
        rig.limit = Some(200 << 30);
        rig.start(Failpoints::none());
        let file = fresh().open(rig.point().join("sparse")).unwrap();
        file.set_len(100 << 30).unwrap();
        file.write_all_at(&data(5, MIB), (60 << 30) + 4_096)
            .unwrap();
        file.sync_all().unwrap();
        drop(file);
        rig.stop();
        let file = File::open(rig.backing().join("sparse")).unwrap();
        let stat = file.metadata().unwrap();
        assert_eq!(stat.len(), 100 << 30);
        assert!(
            stat.blocks() * 512 < 3 << 20,
            "{mode:?}: {} blocks",
            stat.blocks()
        );
        let mut found = vec![0; MIB];
        file.read_exact_at(&mut found, (60 << 30) + 4_096).unwrap();
        assert!(found == data(5, MIB));
    }
}

#[test]
fn two_mounts_of_one_directory_see_each_other() {
    if cannot_mount() {
        return;
    }
    let mut rig = Rig::started(MODES[0]);
    let (first, second) = (rig.point().join("a"), rig.backing().join("a"));
    fs::write(&first, "one").unwrap();
    assert_eq!(fs::read(&second).unwrap(), b"one");
    // As another node does.
    let mut other = File::options().append(true).open(&second).unwrap();
    other.write_all(b" two").unwrap();
    assert_eq!(fs::read(&first).unwrap(), b"one two");
    let mut shared = File::options().write(true).open(&first).unwrap();
    shared.write_all(b"ONE").unwrap();
    assert_eq!(fs::read(&second).unwrap(), b"ONE two");
    drop((other, shared));
    rig.stop();
}

#[test]
fn two_mounts_append_to_one_file() {
    if cannot_mount() {
        return;
    }
    for mode in [MODES[0], MODES[1]] {
        let mut rig = Rig::started(mode);
        let open = |dir: &Path| {
            File::options()
                .append(true)
                .create(true)
                .open(dir.join("log"))
                .unwrap()
        };
        let (mut here, mut there) = (open(&rig.point()), open(rig.backing()));
        for _ in 0..100 {
            here.write_all(b"here ").unwrap();
            there.write_all(b"there").unwrap();
        }
        drop((here, there));
        rig.stop();
        let log = fs::read_to_string(rig.backing().join("log")).unwrap();
        assert_eq!(log, "here there".repeat(100), "{mode:?}");
    }
}

#[test]
fn syncing_the_root_makes_all_durable_that_was_written() {
    if cannot_mount() {
        return;
    }
    for mode in [IN_MEMORY, ON_DISK] {
        let mut rig = Rig::started(mode);
        for number in 0..8u8 {
            fs::write(rig.point().join(format!("{number}")), data(number, 5 * MIB)).unwrap();
        }
        File::open(rig.point()).unwrap().sync_all().unwrap();
        assert_eq!(rig.staged(), 0);
        for number in 0..8u8 {
            let found = fs::read(rig.backing().join(format!("{number}"))).unwrap();
            assert!(found == data(number, 5 * MIB));
        }
        rig.stop();
    }
}

#[test]
fn the_kernel_moves_bytes_where_it_may() {
    if cannot_mount() {
        return;
    }
    let expected = u64::from(orcheck_io::machine::kernel_at_least(6, 9));
    for (mode, expected) in [(MODES[0], expected), (MODES[1], 0), (ON_DISK, 0)] {
        let mut rig = Rig::started(mode);
        fs::write(rig.point().join("a"), "by whom").unwrap();
        assert_eq!(rig.stop().passed_through, expected, "{mode:?}");
    }
}

#[test]
fn what_was_lost_replaces_nothing() {
    if cannot_mount() {
        return;
    }
    let mut rig = Rig::new(MODES[0]);
    let (_plan, points) = FaultPlan::new()
        .at_site("inode.sync", 1, Verdict::Fail(libc::EIO))
        .failpoints();
    fs::write(rig.backing().join("saved"), "good").unwrap();
    rig.start(points);
    let [temporary, saved] = ["tmp", "saved"].map(|name| rig.point().join(name));
    fs::write(&temporary, "lost").unwrap();
    wait_until("the failure is reported", || rig.told().contains("tmp"));
    let refused = fs::rename(&temporary, &saved).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EIO));
    assert_eq!(fs::read(rig.backing().join("saved")).unwrap(), b"good");
    // Written again, it may.
    fs::write(&temporary, "better").unwrap();
    fs::rename(&temporary, &saved).unwrap();
    assert_eq!(fs::read(rig.backing().join("saved")).unwrap(), b"better");
    rig.stop();
}

#[test]
fn what_is_written_during_a_sync_is_synced_too() {
    if cannot_mount() {
        return;
    }
    for mode in [MODES[0], MODES[1]] {
        let mut rig = Rig::started(mode);
        let path = rig.point().join("log");
        for turn in 0..200 {
            let mut log = File::options()
                .append(true)
                .create(true)
                .open(&path)
                .unwrap();
            writeln!(log, "{turn:09}").unwrap();
        }
        let said = rig.stop();
        assert_eq!((said.lost, said.left), (0, 0));
        assert_eq!(fs::read(rig.backing().join("log")).unwrap().len(), 2_000);
    }
}

#[test]
fn names_are_durable_when_the_mount_has_ended_or_it_is_reported() {
    if cannot_mount() {
        return;
    }
    let mut rig = Rig::new(MODES[1]);
    let (_plan, points) = FaultPlan::new()
        .always("inode.syncdir", Verdict::Fail(libc::EIO))
        .failpoints();
    rig.start(points);
    fs::create_dir(rig.point().join("dir")).unwrap();
    fs::write(rig.point().join("dir/a"), "a").unwrap();
    let told = File::open(rig.point()).unwrap().sync_all().unwrap_err();
    assert_eq!(told.raw_os_error(), Some(libc::EIO));
    assert_eq!(rig.stop().lost, 2);
    assert!(
        rig.told().contains("dir: names in this directory"),
        "{}",
        rig.told()
    );
}
