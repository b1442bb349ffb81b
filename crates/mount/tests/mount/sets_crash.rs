//! The process of a mount is killed at each step of what it does for sets, and marks survive a
//! power cut only in part.
//!
//! What holds after the next mount: a step has all files of its set or none; a set that was safe is
//! there; what a program had closed is in its place or was moved aside.

use crate::rig::{IN_MEMORY, Mode, Rig, data, wait_until};
use crate::sets::{PLAIN, Two, begun, counted, has_step, unstarted};
use crate::{cannot_mount, number};
use orcheck_io::failpoints::{Failpoints, Verdict};
use orcheck_testing::FaultPlan;
use orcheck_testing::calls::close;
use orcheck_testing::mount::{Mount, mount_over};
use std::fs::{self, File};
use std::io::{Result, Write};
use std::path::Path;
use std::process::Command;

const LEN: usize = 200_001;
const STEPS: [u64; 2] = [1, 2];
const PARTS: [&str; 2] = ["a", "b"];

/// What programs were told, and which sets were safe, before the mount died.
#[derive(Debug, Default)]
struct Before {
    closed: Vec<(u64, &'static str)>,
    safe: Vec<u64>,
}

fn bytes(step: u64, part: &str) -> Vec<u8> {
    data(step as u8 * 16 + part.as_bytes()[0], LEN)
}

/// Writes both sets, each when the last one is safe.
fn program(rig: &Rig, before: &mut Before) -> Result<()> {
    for step in STEPS {
        for part in PARTS {
            let path = rig.point().join(format!("r.{step}.{part}"));
            // One as it is, the other by way of a name of its own.
            let first = match part {
                "a" => path.clone(),
                _ => rig.point().join("new"),
            };
            let mut file = File::create(&first)?;
            file.write_all(&bytes(step, part))?;
            close(file)?;
            if (step, part) == (2, "b") {
                fs::hard_link(&first, &path)?;
                fs::remove_file(&first)?;
            } else {
                fs::rename(&first, &path)?;
            }
            before.closed.push((step, part));
        }
        wait_until("the set is safe", || has_step(rig, step) || rig.has_ended());
        before.safe.extend(has_step(rig, step).then_some(step));
    }
    Ok(())
}

fn read(path: &Path) -> Option<Vec<u8>> {
    fs::read(path).ok()
}

/// Whether a file was moved aside.
fn is_aside(rig: &Rig, name: &str, want: &[u8]) -> bool {
    let aside = fs::read_dir(rig.backing().join(".orcheck-sets/melt/aside"));
    let mut dirs = aside.into_iter().flatten().map(|dir| dir.unwrap().path());
    dirs.any(|dir| read(&dir.join(name)).is_some_and(|found| found == want))
}

/// Looks at the mount that follows.
fn check(rig: &Rig, before: &Before, at: &str) {
    for step in STEPS {
        let there = PARTS.map(|part| {
            let found = read(&rig.point().join(format!("r.{step}.{part}")));
            found.is_some_and(|found| {
                assert!(found == bytes(step, part), "{at}: r.{step}.{part} is wrong");
                true
            })
        });
        assert_eq!(there[0], there[1], "{at}: half of step {step}");
        assert!(there[0] || !before.safe.contains(&step), "{at}: {step}");
    }
    for (step, part) in &before.closed {
        let (name, want) = (format!("r.{step}.{part}"), bytes(*step, part));
        let there = rig.point().join(&name).exists();
        assert!(there || is_aside(rig, &name, &want), "{at}: {name}");
    }
}

/// One run that is killed at a step of the mount. `true`: it was.
fn killed_at(mode: Mode, number: u64) -> bool {
    let mut rig = unstarted(mode, counted(2));
    let plan = FaultPlan::new().at_step(number, Verdict::Kill);
    rig.start(plan.failpoints().1);
    let mut before = Before::default();
    let started = !rig.has_ended();
    let done = started && program(&rig, &mut before).is_ok();
    if !done {
        rig.kill();
    } else if rig.stop_unless_killed().is_some() {
        return false;
    }
    let at = format!("{mode:?} killed at step {number}: {before:?}");
    rig.start(Failpoints::none());
    check(&rig, &before, &at);
    let said = rig.stop();
    assert_eq!(said.sets, [0; 3], "{at}: {}", rig.told());
    // The end of that mount was a good one: nothing is left to be done.
    let found = rig.start(Failpoints::none());
    assert!(
        found.restored.is_empty() && found.aside.is_empty(),
        "{at}: {found:?}"
    );
    check(&rig, &before, &at);
    rig.stop();
    true
}

#[test]
fn a_mount_that_is_killed_at_any_step_leaves_no_half_of_a_set() {
    if cannot_mount() {
        return;
    }
    // The modes share the steps; a longer run tries all of them in both.
    let stride = if number("ORCHECK_TRIALS", 1) > 1 {
        1
    } else {
        2
    };
    for (first, mode) in [(1, PLAIN), (2, IN_MEMORY)] {
        let mut step = first;
        // A run may happen to have a step less than others.
        while killed_at(mode, step) || killed_at(mode, step + stride) {
            step += stride;
        }
        assert!(step > 20, "{mode:?}: the plan did not see its steps");
    }
}

/// Makes the directories of a rig what they were.
fn copy(from: &Path, to: &Path) {
    for name in ["backing", "store"] {
        let _ = fs::remove_dir_all(to.join(name));
        let mut copy = Command::new("cp");
        copy.arg("-a").arg(from.join(name)).arg(to);
        assert!(copy.status().unwrap().success());
    }
}

#[test]
fn a_mount_that_is_killed_while_it_restores_is_followed_by_one_that_does() {
    if cannot_mount() {
        return;
    }
    let mut rig = unstarted(PLAIN, counted(2));
    rig.start(Failpoints::none());
    let mut before = Before::default();
    program(&rig, &mut before).unwrap();
    fs::write(rig.point().join("r.3.a"), "half of a step").unwrap();
    rig.kill();
    // One file of the newest set is lost, and the other one damaged.
    fs::remove_file(rig.backing().join("r.2.a")).unwrap();
    fs::write(rig.backing().join("r.2.b"), "torn").unwrap();
    let kept = orcheck_testing::Scratch::new("killed");
    copy(rig.scratch.path(), kept.path());
    let mut number = 1;
    loop {
        let plan = FaultPlan::new().at_step(number, Verdict::Kill);
        rig.start(plan.failpoints().1);
        if !rig.has_ended() {
            break;
        }
        rig.kill();
        let found = rig.start(Failpoints::none());
        let at = format!("killed at step {number}: {found:?}");
        check(&rig, &before, &at);
        assert!(!rig.point().join("r.3.a").exists(), "{at}");
        assert!(is_aside(&rig, "r.3.a", b"half of a step"), "{at}");
        assert!(is_aside(&rig, "r.2.b", b"torn"), "{at}");
        let home = rig.backing().join(".orcheck-sets/melt");
        let mut names = fs::read_dir(home).unwrap().map(|entry| entry.unwrap());
        let left = names.find(|entry| entry.file_name().to_str().unwrap().starts_with("incoming"));
        assert!(left.is_none(), "{at}: {left:?}");
        rig.stop();
        copy(kept.path(), rig.scratch.path());
        number += 1;
    }
    // It may be killed now, at that step.
    rig.stop_unless_killed();
    assert!(number > 20, "the plan did not see its steps: {number}");
}

#[test]
fn what_a_power_cut_leaves_of_a_mark_is_enough() {
    if cannot_mount() {
        return;
    }
    for left in ["r.2.a\0", "r.2.b\0r.2", "r.2.a\0\0\0\0\0\0\0"] {
        let mut rig = unstarted(PLAIN, counted(3));
        rig.start(Failpoints::none());
        for part in PARTS {
            fs::write(rig.point().join(format!("r.2.{part}")), bytes(2, part)).unwrap();
        }
        fs::write(rig.point().join("r.2"), "mine").unwrap();
        rig.kill();
        let mark = rig.backing().join(".orcheck-sets/melt/begun/2.0");
        assert_eq!(fs::read(&mark).unwrap(), b"r.2.a\0r.2.b\0");
        fs::write(&mark, left).unwrap();
        // The machine has started again.
        let running = rig.backing().join(".orcheck-sets/melt/running.0");
        fs::write(running, "another start").unwrap();
        let found = rig.start(Failpoints::none());
        assert_eq!(found.aside, [".orcheck-sets/melt/aside/2"], "{left:?}");
        for part in PARTS {
            let name = format!("r.2.{part}");
            assert!(!rig.point().join(&name).exists(), "{left:?}");
            assert!(is_aside(&rig, &name, &bytes(2, part)), "{left:?}");
        }
        assert!(rig.point().join("r.2").exists(), "{left:?}");
        rig.stop();
    }
}

/// The names of the marks.
fn marks(rig: &Rig) -> Vec<String> {
    let names = fs::read_dir(rig.backing().join(".orcheck-sets/melt/begun")).unwrap();
    let mut names: Vec<_> = names
        .map(|name| name.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// The machine has lost power since: a file is torn.
fn lose_power(rig: &Rig, torn: &str) {
    fs::write(rig.backing().join(torn), "torn").unwrap();
    let running = rig.backing().join(".orcheck-sets/melt/running.0");
    fs::write(running, "another start").unwrap();
}

#[test]
fn what_a_power_cut_tears_of_a_set_that_was_decided_is_moved_aside() {
    if cannot_mount() {
        return;
    }
    for (killed_first, told) in [(false, false), (true, false), (false, true)] {
        let mut rig = unstarted(PLAIN, counted(2));
        // One file does not become durable: as the mount syncs it, or as its program does.
        let plan = FaultPlan::new().at_site("inode.sync", 1, Verdict::Fail(libc::EIO));
        rig.start(plan.only_where("r.1.a").failpoints().1);
        if told {
            let file = File::create(rig.point().join("r.1.a")).unwrap();
            assert!(file.sync_all().is_err());
            drop(file);
            let other = rig.backing().join("other");
            fs::write(&other, "good").unwrap();
            let from = rig.point().join("r.1.a");
            assert!(fs::rename(from, rig.point().join("other")).is_err());
            // What has the bytes now may not be cut off, or it would count as new.
            let mut file = File::options()
                .append(true)
                .open(rig.point().join("r.1.a"))
                .unwrap();
            file.write_all(&bytes(1, "a")).unwrap();
            drop(file);
            fs::write(rig.point().join("r.1.b"), bytes(1, "b")).unwrap();
            wait_until("the set is safe", || has_step(&rig, 1));
            for part in PARTS {
                fs::write(rig.point().join(format!("r.2.{part}")), bytes(2, part)).unwrap();
            }
        } else {
            program(&rig, &mut Before::default()).unwrap();
        }
        wait_until("both are decided", || marks(&rig) == ["1.0.lost"]);
        rig.kill();
        if killed_first {
            // The next mount has no reason to believe that the bytes are durable.
            assert!(rig.start(Failpoints::none()).aside.is_empty());
            assert_eq!(marks(&rig), ["1.0.lost"]);
            for part in PARTS {
                let found = read(&rig.point().join(format!("r.1.{part}")));
                assert!(found == Some(bytes(1, part)));
            }
            rig.kill();
        }
        lose_power(&rig, "r.1.a");
        let found = rig.start(Failpoints::none());
        assert_eq!(found.aside, [".orcheck-sets/melt/aside/1"]);
        assert!(marks(&rig).is_empty());
        assert!(
            PARTS
                .iter()
                .all(|part| !rig.point().join(format!("r.1.{part}")).exists())
        );
        assert!(read(&rig.point().join("r.2.b")) == Some(bytes(2, "b")));
        rig.stop();
    }
}

#[test]
fn what_a_power_cut_of_one_node_tears_is_moved_aside_on_all() {
    if cannot_mount() {
        return;
    }
    let mut two = Two::new(PLAIN, &counted(2));
    two.stop();
    let plan = FaultPlan::new().at_site("inode.sync", 1, Verdict::Fail(libc::EIO));
    two.start_with([Failpoints::none(), plan.only_where("r.1.b").failpoints().1]);
    let marked = |two: &Two, names: [&str; 2]| {
        two.rigs.iter().zip(names).all(|(rig, name)| {
            let begun = rig.backing().join(".orcheck-sets/melt/begun");
            begun.join(name).exists() && fs::read_dir(begun).unwrap().count() == 1
        })
    };
    for step in [1, 2] {
        for (rig, part) in two.rigs.iter().zip(PARTS) {
            fs::write(
                rig.point().join(format!("r.{step}.{part}")),
                bytes(step, part),
            )
            .unwrap();
        }
    }
    // The first node's file is durable, the second's cannot become so; step 2 is over.
    wait_until("only the first step is left", || {
        marked(&two, ["1.0.whole", "1.1.lost"])
    });
    two.kill();
    let running = two.rigs[1].backing().join(".orcheck-sets/melt/running.1");
    fs::write(running, "another start").unwrap();
    let found = two.start_with([Failpoints::none(), Failpoints::none()]);
    for (found, rig) in found.iter().zip(&two.rigs) {
        assert_eq!(found.aside, [".orcheck-sets/melt/aside/1"]);
        assert_eq!(begun(rig), 0);
    }
    assert!(two.rigs[0].backing().join("r.2.a").exists());
    two.stop();
}

#[test]
fn a_power_cut_tears_nothing_of_a_set_that_waits_to_become_durable() {
    if cannot_mount() {
        return;
    }
    let mut rig = unstarted(IN_MEMORY, counted(2));
    mount_over(rig.backing(), Mount::Small(2 << 20)).unwrap();
    rig.start(Failpoints::none());
    let files = PARTS.map(|part| File::create(rig.point().join(format!("r.1.{part}"))).unwrap());
    let filler = rig.backing().join("filler");
    assert!(fs::write(&filler, vec![1; 4 << 20]).is_err(), "it is full");
    for (mut file, part) in files.into_iter().zip(PARTS) {
        file.write_all(&bytes(1, part)).unwrap();
        close(file).unwrap();
    }
    wait_until("the flush has failed", || {
        rig.told().contains("could not be flushed")
    });
    wait_until("the set is safe", || has_step(&rig, 1));
    wait_until("it is decided", || marks(&rig) == ["1.0.whole"]);
    fs::remove_file(filler).unwrap();
    wait_until("all is durable", || marks(&rig).is_empty());
    assert_eq!(rig.stop().sets, [1, 0, 0]);
}

#[test]
fn a_mark_is_durable_before_the_first_file_of_a_directory_has_bytes() {
    if cannot_mount() {
        return;
    }
    let mut rig = unstarted(PLAIN, counted(3));
    let plan = FaultPlan::new().at_site("inode.sync", 1, Verdict::Fail(libc::EIO));
    rig.start(plan.only_where("2.0").failpoints().1);
    let file = File::create(rig.point().join("r.2.a")).unwrap();
    let told = rig.told();
    assert!(told.contains("step 2 cannot be marked as begun"), "{told}");
    drop(file);
    rig.stop();
}
