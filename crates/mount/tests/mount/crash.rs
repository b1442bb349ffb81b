//! The process of the mount is killed: at each step of what it does, and at random moments.
//!
//! What a program was told holds: synced bytes are in the backing directory at once; closed ones
//! after the next mount at the latest; a name that led to durable bytes leads to those or to the
//! whole new ones at any time.

use crate::rig::{Mode, Rig, Where, mode, wait_until};
use crate::{cannot_mount, number};
use orcheck_io::failpoints::{Failpoints, Verdict};
use orcheck_testing::FaultPlan;
use orcheck_testing::calls::close;
use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{Rng, SeedableRng};
use std::fs::{self, File};
use std::io::{Result, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const STAGED: [Mode; 3] = [
    mode(true, false, Where::OnDisk),
    mode(false, false, Where::InMemory),
    mode(false, true, Where::InMemory),
];
const UNSTAGED: [Mode; 2] = [
    mode(true, false, Where::Nowhere),
    mode(false, false, Where::Nowhere),
];

/// Bytes that say which file and which generation they are of.
fn bytes(name: &str, generation: u64, len: usize) -> Vec<u8> {
    let line = format!("{name} {generation:09}\n");
    let mut all = line.repeat(len / line.len() + 1).into_bytes();
    all.truncate(len);
    all
}

/// What a program was told before the mount died.
#[derive(Default, Debug)]
struct Told {
    written: bool,
    synced: bool,
    closed: bool,
    saved: bool,
    renamed: bool,
}

/// Two pieces.
const LONG: usize = (4 << 20) + 5_000;

fn old() -> Vec<u8> {
    bytes("old", 1, 70_000)
}

fn new() -> Vec<u8> {
    bytes("new", 2, LONG)
}

/// A program that writes, syncs, closes, and replaces a file.
fn program(point: &Path, told: &mut Told) -> Result<()> {
    let create = |name: &str| {
        File::options()
            .write(true)
            .create_new(true)
            .open(point.join(name))
    };
    let open = create("open")?;
    open.write_all_at(&bytes("open", 3, 10_000), 0)?;
    told.written = true;
    let synced = create("synced")?;
    synced.write_all_at(&bytes("synced", 4, LONG), 0)?;
    synced.sync_all()?;
    told.synced = true;
    let mut closed = create("closed.tmp")?;
    closed.write_all(&bytes("closed", 5, 100_000))?;
    close(closed)?;
    told.closed = true;
    fs::rename(point.join("closed.tmp"), point.join("closed"))?;
    told.renamed = true;
    let mut save = create("save.tmp")?;
    save.write_all(&new())?;
    close(save)?;
    fs::rename(point.join("save.tmp"), point.join("saved"))?;
    told.saved = true;
    // Until everything that was closed is durable.
    File::open(point)?.sync_all()?;
    drop(open);
    Ok(())
}

fn read(path: &Path) -> Option<Vec<u8>> {
    fs::read(path).ok()
}

/// One run that is killed at a step. `true`: it was.
fn killed_at(mode: Mode, step: u64) -> bool {
    let mut rig = Rig::new(mode);
    fs::write(rig.backing().join("saved"), old()).unwrap();
    let (_plan, points) = FaultPlan::new().at_step(step, Verdict::Kill).failpoints();
    rig.start(points);
    if rig.has_ended() {
        // Before anything was mounted.
        return true;
    }
    let mut told = Told::default();
    let done = program(&rig.point(), &mut told);
    if done.is_err() {
        rig.kill();
    } else if rig.stop_unless_killed().is_some() {
        assert_eq!(read(&rig.backing().join("saved")), Some(new()));
        return false;
    }
    let at = format!("{mode:?} killed at step {step}: {told:?}");
    let there = |name: &str| read(&rig.backing().join(name));
    let saved = there("saved").unwrap();
    assert!(saved == new() || !told.saved && saved == old(), "{at}");
    if told.synced {
        assert!(there("synced").unwrap() == bytes("synced", 4, LONG), "{at}");
    }
    let found = rig.start(Failpoints::none());
    assert_eq!(found.left, Vec::<String>::new(), "{at}");
    rig.stop();
    assert_eq!(rig.staged(), 0, "{at}");
    let there = |name: &str| read(&rig.backing().join(name));
    let closed = there("closed").or_else(|| there("closed.tmp"));
    if told.closed {
        assert!(closed.unwrap() == bytes("closed", 5, 100_000), "{at}");
    }
    if told.renamed {
        assert!(there("closed").is_some(), "{at}");
    }
    if told.synced {
        assert!(there("synced").unwrap() == bytes("synced", 4, LONG), "{at}");
    }
    if told.written && !mode.write_back {
        assert!(there("open").unwrap() == bytes("open", 3, 10_000), "{at}");
        // Syncing the root flushes it.
        if mode.stage != Where::Nowhere && done.is_err() && !told.saved {
            assert!(found.open.contains(&"open".to_owned()), "{at}: {found:?}");
        }
    }
    true
}

fn kill_at_each_step(mode: Mode) {
    if cannot_mount() {
        return;
    }
    let mut step = 1;
    while killed_at(mode, step) {
        step += 1;
    }
    assert!(step > 5, "{mode:?}: the plan did not see its steps");
}

#[test]
fn killed_at_any_step_with_a_stage_on_a_disk_nothing_is_lost_that_was_promised() {
    kill_at_each_step(STAGED[0]);
}

#[test]
fn killed_at_any_step_with_a_stage_in_memory_nothing_is_lost_that_was_promised() {
    kill_at_each_step(STAGED[1]);
}

#[test]
fn killed_at_any_step_with_write_back_nothing_is_lost_that_was_promised() {
    kill_at_each_step(STAGED[2]);
}

#[test]
fn killed_at_any_step_without_a_stage_nothing_is_lost_that_was_promised() {
    for mode in UNSTAGED {
        kill_at_each_step(mode);
    }
}

/// A program that replaces its file again and again, and remembers what it was told.
fn saver(
    point: &Path,
    name: &str,
    told: &mut (u64, u64),
    (saves, over): (&AtomicU64, &AtomicBool),
) {
    let mut random = SplitMix64::seed_from_u64(name.len() as u64);
    while !over.load(Ordering::Relaxed) {
        let generation = told.0 + 1;
        let len = 1 + (random.next_u64() % 300_000) as usize;
        let save = || -> Result<()> {
            let temporary = point.join(format!("{name}.tmp"));
            let mut file = File::options()
                .write(true)
                .create(true)
                .truncate(true)
                .open(&temporary)?;
            file.write_all(&whole(name, generation, len))?;
            close(file)?;
            fs::rename(&temporary, point.join(name))
        };
        // Breaks if: it counts only when it is done; the kill may come after the rename.
        told.1 = generation;
        if save().is_err() {
            return;
        }
        told.0 = generation;
        saves.fetch_add(1, Ordering::Relaxed);
    }
}

/// Bytes that say how many they are.
fn whole(name: &str, generation: u64, len: usize) -> Vec<u8> {
    let mut all = format!("{len:09} {generation:09}\n").into_bytes();
    all.extend(bytes(name, generation, len));
    all
}

/// The generation of a whole file.
fn generation_of(name: &str, all: &[u8]) -> u64 {
    let head = std::str::from_utf8(&all[..20]).unwrap();
    let len: usize = head[..9].parse().unwrap();
    let generation = head[10..19].parse().unwrap();
    assert!(all == whole(name, generation, len), "{name}: a mixture");
    generation
}

#[test]
fn killed_at_random_moments_a_saved_file_is_always_whole() {
    if cannot_mount() {
        return;
    }
    let mut random = SplitMix64::seed_from_u64(number("ORCHECK_SEED", 0x6b69_6c6c));
    for mode in STAGED.into_iter().chain(UNSTAGED) {
        let mut rig = Rig::new(mode);
        let names = ["a", "bb", "ccc"];
        let mut told = [(0, 0); 3];
        for round in 0..6 * number("ORCHECK_TRIALS", 1) {
            rig.start(Failpoints::none());
            let point = rig.point();
            let (saves, over) = (AtomicU64::new(0), AtomicBool::new(false));
            std::thread::scope(|scope| {
                for (name, told) in names.iter().zip(&mut told) {
                    let (point, shared) = (&point, (&saves, &over));
                    scope.spawn(move || saver(point, name, told, shared));
                }
                let many = random.next_u64() % 40;
                wait_until("some files are saved", || {
                    saves.load(Ordering::Relaxed) >= many
                });
                rig.kill_only();
                over.store(true, Ordering::Relaxed);
            });
            for (name, (least, most)) in names.iter().zip(&mut told) {
                if *most <= 2 {
                    // The first one replaced nothing, and nobody waited for it.
                    continue;
                }
                let at = format!("{mode:?} round {round}, {name}");
                let found = read(&rig.backing().join(name));
                let found = found.map_or(0, |all| generation_of(name, &all));
                assert!(
                    (*least..=*most).contains(&found),
                    "{at}: {found} of {least}..{most}"
                );
            }
            rig.start(Failpoints::none());
            rig.stop();
            for (name, (least, most)) in names.iter().zip(&mut told) {
                let found = read(&rig.backing().join(name));
                let found = found.map_or(0, |all| generation_of(name, &all));
                assert!(
                    (*least..=*most).contains(&found),
                    "{mode:?} {round} {name}: {found} of {least}..{most}"
                );
                (*least, *most) = (found, found);
            }
        }
    }
}
