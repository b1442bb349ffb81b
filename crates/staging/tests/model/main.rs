//! Tests a server's operations against a reference file system: several connections, in any order,
//! with and without a failing disk. After each operation, names, lengths and contents are as in the
//! reference, and so is the charge. The charge is never less than the blocks in use, including
//! those of files that no longer have a name.
//!
//! `ORCHECK_TRIALS` raises the number of sequences, `ORCHECK_SEED` chooses them. A failure prints
//! the sequence.
#![allow(clippy::disallowed_methods, clippy::unwrap_used)] // tests look behind the door
#![allow(clippy::print_stdout)] // how to do it again

mod reference;

use orcheck_fixtures::servers::{LIMIT, Running};
use orcheck_format::{ErrorKind, Result};
use orcheck_io::disk::{Create, Dir, File};
use orcheck_io::failpoints::{Failpoint, FailpointHook, Failpoints, Verdict};
use orcheck_io::rng::random_bytes;
use orcheck_testing::Scratch;
use reference::{Expect, Kind, Reference, is_identity, join};
use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Small enough to be reached again and again.
const QUOTA: u64 = 600_000;
/// Operations of a sequence.
const LENGTH: usize = 80;
/// Files that are open at a time.
const OPEN: usize = 6;
const DIRS: [&str; 7] = ["", "", "", "d0", "d0", "d1", "d0/d1"];
const NAMES: [&str; 7] = ["f0", "f1", "f2", "f3", "f4", "d0", "d1"];

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    fn one<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

fn trials(quick: u64) -> u64 {
    number("ORCHECK_TRIALS").map_or(quick, |asked| asked.max(quick))
}

fn seed() -> u64 {
    number("ORCHECK_SEED").unwrap_or_else(|| u64::from(u32::from_le_bytes(random_bytes())))
}

#[derive(Debug, Clone, Copy)]
enum Op {
    Create(&'static str, &'static str),
    Open(&'static str, &'static str),
    Write(usize, u64, usize),
    Allocate(usize, u64),
    Truncate(usize, u64),
    Sync(usize),
    Read(usize, u64, usize),
    Close(usize),
    /// The connection ends, and with it the file.
    Vanish(usize),
    Rename(&'static str, &'static str, &'static str),
    RenameNew(&'static str, &'static str, &'static str),
    Remove(&'static str, &'static str),
    MakeDir(&'static str, &'static str),
    RemoveDir(&'static str, &'static str),
    Holds(&'static str, &'static str),
    List(&'static str),
}

impl Op {
    fn random(random: &mut Random) -> Self {
        let (dir, name) = (random.one(&DIRS), random.one(&NAMES));
        let to = random.one(&NAMES);
        let slot = random.below(OPEN as u64) as usize;
        match random.below(32) {
            0..=4 => Op::Create(dir, name),
            5..=6 => Op::Open(dir, name),
            7..=11 => Op::Write(
                slot,
                random.below(150_000),
                1 + random.below(40_000) as usize,
            ),
            12 => Op::Allocate(slot, 1 + random.below(300_000)),
            13..=14 => Op::Truncate(slot, random.below(300_000)),
            15 => Op::Sync(slot),
            16..=17 => Op::Read(
                slot,
                random.below(150_000),
                1 + random.below(40_000) as usize,
            ),
            18..=19 => Op::Close(slot),
            20 => Op::Vanish(slot),
            21..=23 => Op::Rename(dir, name, to),
            24 => Op::RenameNew(dir, name, to),
            25..=26 => Op::Remove(dir, name),
            27..=28 => Op::MakeDir(dir, name),
            29 => Op::RemoveDir(dir, name),
            30 => Op::Holds(dir, name),
            _ => Op::List(dir),
        }
    }
}

/// A disk that fails now and then, or keeps some waiting while others pass, where it is asked to.
struct Failing {
    on: AtomicBool,
    slow: AtomicBool,
    random: Mutex<Random>,
}

impl FailpointHook for Failing {
    fn at(&self, step: &Failpoint) -> Verdict {
        let of_disk = step.site.starts_with("file.") || step.site.starts_with("dir.");
        if of_disk && self.slow.load(Ordering::Relaxed) {
            let us = self.random.lock().unwrap().below(4) * 200;
            std::thread::park_timeout(Duration::from_micros(us));
        }
        if !of_disk || !self.on.load(Ordering::Relaxed) {
            return Verdict::Go;
        }
        let mut random = self.random.lock().unwrap();
        match random.below(40) {
            0 => Verdict::Fail(random.one(&[5, 28, 122])),
            1 => Verdict::Short(random.below(5000) as usize),
            _ => Verdict::Go,
        }
    }
}

struct Slot {
    file: Box<dyn File>,
    id: u64,
    written: bool,
}

struct World {
    server: Running,
    roots: Vec<Arc<dyn Dir>>,
    /// What belongs to the caller, on the disk.
    disk: PathBuf,
    failing: Arc<Failing>,
    slots: Vec<Option<Slot>>,
    model: Reference,
    trace: Vec<(Op, String)>,
    /// In memory a file takes as many blocks as it is long, and a directory none; elsewhere it
    /// depends on the file system.
    exact: bool,
}

fn bytes_of(random: &mut Random, len: usize) -> Vec<u8> {
    let first = random.next();
    (0..len as u64)
        .map(|at| (first.wrapping_add(at * 7)) as u8)
        .collect()
}

/// Bytes of the blocks that files below a directory take, also of those that only this process, the
/// server, has open.
fn really_taken(disk: &Path) -> u64 {
    let mut nameless = BTreeMap::new();
    for entry in std::fs::read_dir("/proc/self/fd").unwrap().flatten() {
        let Ok(at) = std::fs::read_link(entry.path()) else {
            continue;
        };
        let at = at.to_string_lossy().into_owned();
        if at.starts_with(&*disk.to_string_lossy())
            && at.ends_with(" (deleted)")
            && let Ok(about) = std::fs::metadata(entry.path())
            && about.nlink() == 0
        {
            nameless.insert(about.ino(), about.blocks() * 512);
        }
    }
    below(disk) + nameless.values().sum::<u64>()
}

fn below(dir: &Path) -> u64 {
    let entries = std::fs::read_dir(dir).unwrap().flatten();
    let of = |entry: std::fs::DirEntry| match entry.metadata() {
        Ok(about) if about.is_dir() => below(&entry.path()),
        about => about.map_or(0, |about| about.blocks() * 512),
    };
    entries.map(of).sum()
}

impl World {
    fn new(scratch: &Scratch, seed: u64) -> Self {
        let exact = scratch.path().starts_with("/dev/shm");
        let failing = Arc::new(Failing {
            on: AtomicBool::new(false),
            slow: AtomicBool::new(false),
            random: Mutex::new(Random(seed)),
        });
        let failpoints = Failpoints::with(Arc::clone(&failing) as Arc<dyn FailpointHook>);
        let server = Running::with_quota(scratch, failpoints, QUOTA);
        Self {
            roots: (0..3).map(|_| server.open(scratch)).collect(),
            disk: scratch.path().join("one").canonicalize().unwrap(),
            server,
            failing,
            slots: Vec::new(),
            model: Reference {
                quota: QUOTA,
                ..Reference::default()
            },
            trace: Vec::new(),
            exact,
        }
    }

    fn used(&self) -> u64 {
        self.server.stopper.counts().quotas[0].used_bytes
    }

    /// Everything is closed and removed; what is charged then is what was charged in the beginning.
    fn clear(&mut self) {
        self.failing.on.store(false, Ordering::Relaxed);
        self.slots.clear();
        for entry in std::fs::read_dir(&self.disk).unwrap().flatten() {
            let path = entry.path();
            if path.is_dir() {
                std::fs::remove_dir_all(path).unwrap();
            } else if !is_identity(&entry.file_name().to_string_lossy()) {
                std::fs::remove_file(path).unwrap();
            }
        }
        self.model.names.clear();
        self.model.files.clear();
        self.trace.clear();
        self.server.stopper.reconcile().unwrap();
        self.wait_charged("cleared");
    }

    /// What is charged comes to be what the reference says: connections that ended are noticed
    /// soon.
    fn wait_charged(&self, when: &str) {
        let until = Instant::now() + LIMIT / 4;
        let differs = |used: u64| match self.exact {
            true => used != self.model.used(),
            false => used < self.model.used().max(really_taken(&self.disk)),
        };
        while differs(self.used()) {
            if Instant::now() > until {
                self.fail(&format!(
                    "{when}: expected {} bytes to be charged, found {}",
                    self.model.used(),
                    self.used()
                ));
            }
            std::thread::yield_now();
        }
    }

    fn fail(&self, why: &str) -> ! {
        let lines = self
            .trace
            .iter()
            .map(|(op, how)| format!("  {op:?}: {how}\n"));
        panic!("{why}\n{}", lines.collect::<String>());
    }

    fn dir(&self, who: usize, path: &str) -> Result<Arc<dyn Dir>> {
        let mut at = Arc::clone(&self.roots[who]);
        for name in path.split('/').filter(|name| !name.is_empty()) {
            at = at.child(name, false)?;
        }
        Ok(at)
    }

    fn body(&mut self, slot: usize) -> &mut reference::Body {
        let id = self.slots[slot].as_ref().unwrap().id;
        self.model.files.get_mut(&id).unwrap()
    }

    fn release(&mut self, slot: usize) {
        if let Some(slot) = self.slots[slot].take() {
            let (id, written) = (slot.id, slot.written);
            drop(slot);
            self.model.close(id, written);
        }
    }

    fn hold(&mut self, file: Box<dyn File>, path: &str, written: bool) {
        let id = std::fs::metadata(self.disk.join(path)).unwrap().ino();
        self.model.files.entry(id).or_default().opened += 1;
        self.model.names.insert(path.to_owned(), Kind::File(id));
        let slot = Slot { file, id, written };
        self.slots.push(Some(slot));
    }

    /// Does one operation; whether the disk, or the server, refused it.
    fn step(&mut self, op: Op, random: &mut Random, fails: bool) {
        let who = random.below(self.roots.len() as u64) as usize;
        self.slots.retain(Option::is_some);
        let (expect, done) = match op {
            Op::Create(dir, name) if self.slots.len() < OPEN => {
                let expect = self.model.new_name(dir, name);
                let made = self
                    .dir(who, dir)
                    .and_then(|dir| dir.create(name, Create::Buffered));
                let made = made.map(|file| self.hold(file, &join(dir, name), true));
                (expect, made)
            }
            Op::Open(dir, name) if self.slots.len() < OPEN => {
                let path = join(dir, name);
                let there = matches!(self.model.names.get(&path), Some(Kind::File(_)));
                let expect = if there { Expect::Ok } else { Expect::Refused };
                let opened = self.dir(who, dir).and_then(|dir| dir.open(name));
                (expect, opened.map(|file| self.hold(file, &path, false)))
            }
            Op::Create(..) | Op::Open(..) => return,
            Op::Write(slot, at, len) => {
                if !self.is_written(slot) {
                    return;
                }
                let bytes = bytes_of(random, len);
                let end = at + len as u64;
                let expect = self.model.grown(self.slots[slot].as_ref().unwrap().id, end);
                let file = &self.slots[slot].as_ref().unwrap().file;
                // The server says what became of it when it is asked something.
                let done = file
                    .write_at(&bytes, at)
                    .and_then(|()| file.len_bytes())
                    .map(drop);
                if done.is_ok() {
                    let body = self.body(slot);
                    let longest = body.bytes.len().max(end as usize);
                    body.bytes.resize(longest, 0);
                    body.bytes[at as usize..end as usize].copy_from_slice(&bytes);
                    body.reserved = body.reserved.max(end);
                } else if !fails {
                    // What was refused once is refused from then on.
                    let synced = self.slots[slot].as_ref().unwrap().file.sync();
                    assert!(synced.is_err());
                    self.release(slot);
                }
                (expect, done)
            }
            Op::Allocate(slot, len) => {
                if !self.is_written(slot) {
                    return;
                }
                let expect = self.model.grown(self.slots[slot].as_ref().unwrap().id, len);
                let done = self.slots[slot].as_ref().unwrap().file.allocate(len);
                if done.is_ok() {
                    let body = self.body(slot);
                    let longest = body.bytes.len().max(len as usize);
                    body.bytes.resize(longest, 0);
                    body.reserved = body.reserved.max(len);
                }
                (expect, done)
            }
            Op::Truncate(slot, len) => {
                if !self.is_written(slot) {
                    return;
                }
                let expect = self.model.grown(self.slots[slot].as_ref().unwrap().id, len);
                let done = self.slots[slot].as_ref().unwrap().file.truncate(len);
                if done.is_ok() {
                    let body = self.body(slot);
                    body.bytes.resize(len as usize, 0);
                    body.reserved = len;
                }
                (expect, done)
            }
            Op::Sync(slot) => match self.slots.get(slot) {
                Some(Some(slot)) => (Expect::Ok, slot.file.sync()),
                _ => return,
            },
            Op::Read(slot, at, len) => {
                let Some(Some(one)) = self
                    .slots
                    .get(slot)
                    .filter(|slot| slot.as_ref().is_some_and(|slot| !slot.written))
                else {
                    return;
                };
                let expected = &self.model.files[&one.id].bytes;
                let inside = at as usize + len <= expected.len();
                let mut found = vec![0; len];
                let done = one.file.read_at(&mut found, at);
                if done.is_ok() && found != expected[at as usize..at as usize + len] {
                    self.fail(&format!("{op:?}: other bytes"));
                }
                let long = one.file.len_bytes();
                if long
                    .as_ref()
                    .is_ok_and(|long| *long != expected.len() as u64)
                {
                    self.fail(&format!(
                        "{op:?}: expected {} bytes, found {long:?}",
                        expected.len()
                    ));
                }
                (if inside { Expect::Ok } else { Expect::Refused }, done)
            }
            Op::Close(slot) => {
                let Some(one) = self.slots.get_mut(slot).and_then(Option::take) else {
                    return;
                };
                let done = one.file.close();
                self.model.close(one.id, one.written);
                (Expect::Ok, done)
            }
            Op::Vanish(slot) => {
                if slot < self.slots.len() {
                    self.release(slot);
                }
                (Expect::Ok, Ok(()))
            }
            Op::Rename(dir, from, to) => {
                let done = self.dir(who, dir).and_then(|dir| dir.rename(from, to));
                (
                    self.if_done(&done, fails, |model| model.rename(dir, (from, to), true)),
                    done,
                )
            }
            Op::RenameNew(dir, from, to) => {
                let done = self.dir(who, dir).and_then(|dir| dir.rename_new(from, to));
                (
                    self.if_done(&done, fails, |model| model.rename(dir, (from, to), false)),
                    done,
                )
            }
            Op::Remove(dir, name) => {
                let done = self.dir(who, dir).and_then(|dir| dir.remove(name));
                (
                    self.if_done(&done, fails, |model| model.remove(dir, name, false)),
                    done,
                )
            }
            Op::RemoveDir(dir, name) => {
                let done = self.dir(who, dir).and_then(|dir| dir.remove_child(name));
                (
                    self.if_done(&done, fails, |model| model.remove(dir, name, true)),
                    done,
                )
            }
            Op::MakeDir(dir, name) => {
                let done = self
                    .dir(who, dir)
                    .and_then(|dir| dir.child(name, true))
                    .map(drop);
                (
                    self.if_done(&done, fails, |model| model.make_dir(dir, name)),
                    done,
                )
            }
            Op::Holds(dir, name) => {
                let there = self.model.names.contains_key(&join(dir, name));
                let holds = self.dir(who, dir).and_then(|dir| dir.holds(name));
                if holds.as_ref().is_ok_and(|holds| *holds != there) {
                    self.fail(&format!("{op:?}: expected {there}"));
                }
                let expect = match self.model.has_dir(dir) {
                    true => Expect::Ok,
                    false => Expect::Refused,
                };
                (expect, holds.map(drop))
            }
            Op::List(dir) => {
                let listed = self.dir(who, dir).and_then(|dir| dir.list());
                let found = listed.as_ref().map(|found| {
                    let found = found.iter().filter(|one| !is_identity(&one.name));
                    let found = found.map(|one| (one.name.clone(), one.is_dir, one.len_bytes));
                    found.map(|(name, dir, len)| (name, dir, if dir { 0 } else { len }))
                });
                let expected = self
                    .model
                    .list(dir)
                    .into_iter()
                    .map(|(name, kind)| match kind {
                        Kind::Dir => (name, true, 0),
                        Kind::File(id) => (name, false, self.model.files[&id].bytes.len() as u64),
                    });
                if let Ok(found) = found {
                    let (found, expected): (Vec<_>, Vec<_>) = (found.collect(), expected.collect());
                    if found != expected {
                        self.fail(&format!("{op:?}: expected {expected:?}, found {found:?}"));
                    }
                }
                let expect = match self.model.has_dir(dir) {
                    true => Expect::Ok,
                    false => Expect::Refused,
                };
                (expect, listed.map(drop))
            }
        };
        let how = done
            .as_ref()
            .map_or_else(ToString::to_string, |()| "done".to_owned());
        self.trace.push((op, how));
        self.judge(op, expect, &done, fails);
    }

    fn is_written(&self, slot: usize) -> bool {
        matches!(self.slots.get(slot), Some(Some(slot)) if slot.written)
    }

    /// Does it to the reference: with a disk that fails only when it was done.
    fn if_done(
        &mut self,
        done: &Result<()>,
        fails: bool,
        work: impl FnOnce(&mut Reference) -> Expect,
    ) -> Expect {
        match done {
            Err(_) if fails => Expect::Refused,
            _ => work(&mut self.model),
        }
    }

    fn judge(&mut self, op: Op, expect: Expect, done: &Result<()>, fails: bool) {
        // In this order: what is still being closed gives back meanwhile, and takes nothing.
        let used = self.used();
        let really = really_taken(&self.disk);
        if used < really {
            self.fail(&format!(
                "{op:?}: {really} bytes are taken, {used} are charged"
            ));
        }
        if fails {
            // Nobody knows how much of it happened: what is there counts.
            if done.is_err() {
                if let Op::Write(slot, ..)
                | Op::Allocate(slot, _)
                | Op::Truncate(slot, _)
                | Op::Sync(slot) = op
                {
                    self.release(slot);
                }
                self.settle();
                self.model.adopt(&self.disk);
            } else if expect == Expect::Refused {
                self.fail(&format!("{op:?} was done, and makes no sense"));
            }
            return;
        }
        let found = match done {
            Ok(()) => Expect::Ok,
            Err(error) if error.kind() == ErrorKind::NoSpace => Expect::Quota,
            Err(_) => Expect::Refused,
        };
        if found != expect {
            self.fail(&format!("{op:?}: expected {expect:?}, found {found:?}"));
        }
        self.wait_charged(&format!("{op:?}"));
    }

    /// What a connection that ended was still doing is over when another one asks about the same
    /// disk, and the server has nothing in memory: as many descriptors as files that are open.
    fn settle(&self) {
        let open = || {
            let all = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
            let links = all.filter_map(|entry| std::fs::read_link(entry.path()).ok());
            let own = self.disk.to_string_lossy().into_owned();
            let files = links.filter(|at| at.to_string_lossy().starts_with(&own));
            // Directories are held for a moment only, but for the one that belongs to the caller.
            files.filter(|at| !at.is_dir()).count()
        };
        let expected = self.slots.iter().flatten().count();
        let until = Instant::now() + LIMIT / 4;
        while open() != expected && Instant::now() < until {
            std::thread::yield_now();
        }
    }

    /// Contents are what they are to be.
    fn compare(&self) {
        for (path, kind) in &self.model.names {
            if let Kind::File(id) = kind
                && std::fs::read(self.disk.join(path)).unwrap() != self.model.files[id].bytes
            {
                self.fail(&format!("{path}: other bytes on the disk"));
            }
        }
    }
}

fn sequences(scratch: &Scratch, quick: u64, fails: bool) {
    let (seed, count) = (seed(), trials(quick));
    let mut world = World::new(scratch, seed);
    for trial in 0..count {
        let mut random = Random(seed.wrapping_add(trial));
        world.failing.on.store(fails, Ordering::Relaxed);
        world
            .trace
            .push((Op::List(""), format!("seed {seed}, sequence {trial}")));
        let dirs = [
            Op::MakeDir("", "d0"),
            Op::MakeDir("", "d1"),
            Op::MakeDir("d0", "d1"),
        ];
        for n in 0..LENGTH {
            let op = dirs.get(n).copied();
            let op = op.unwrap_or_else(|| Op::random(&mut random));
            world.step(op, &mut random, fails);
        }
        world.failing.on.store(false, Ordering::Relaxed);
        if !fails {
            world.compare();
        }
        // Everything is closed, but not removed: what is left is charged, and nothing else.
        for slot in 0..world.slots.len() {
            world.release(slot);
        }
        if fails {
            world.settle();
            world.model.adopt(&world.disk);
            world.server.stopper.reconcile().unwrap();
        }
        world.wait_charged("closed");
        world.clear();
    }
    println!("  {count} sequences of {LENGTH} operations, seed {seed} (ORCHECK_SEED)");
}

// Breaks if: what one connection does to a file is not charged to what the file is, by whatever
// name.
#[test]
fn a_server_does_what_the_reference_does_and_charges_what_is_stored() {
    sequences(&Scratch::in_memory("model"), 25, false);
}

// Breaks if: what failed is charged as if it had not happened, or as if it had.
#[test]
fn a_server_whose_disk_fails_charges_no_less_than_what_is_stored() {
    sequences(&Scratch::in_memory("model-fails"), 25, true);
}

// Breaks if: blocks that a file system takes beside a file's length, or for directories, are not
// looked at.
#[test]
fn on_the_disk_of_these_tests_no_less_is_charged_than_what_is_stored() {
    sequences(&Scratch::new("model"), 8, true);
}

// Breaks if: two connections that do something to the same names at once are both charged, or given
// back, for one.
#[test]
fn what_connections_do_at_once_is_charged_as_what_is_left() {
    let (seed, count) = (seed(), trials(12));
    let scratch = Scratch::in_memory("model-at-once");
    let mut world = World::new(&scratch, seed);
    for trial in 0..count {
        world.failing.slow.store(true, Ordering::Relaxed);
        std::thread::scope(|scope| {
            for (own, root) in world.roots.iter().enumerate() {
                let mut random = Random(seed ^ (trial << 8) ^ own as u64);
                scope.spawn(move || {
                    let mut files: Vec<Box<dyn File>> = Vec::new();
                    for _ in 0..LENGTH {
                        one_of_many(root, &mut files, &mut random);
                    }
                });
            }
        });
        world.failing.slow.store(false, Ordering::Relaxed);
        world.settle();
        world.model.adopt(&world.disk);
        world
            .trace
            .push((Op::List(""), format!("seed {seed}, trial {trial}")));
        world.wait_charged("at once");
        world.clear();
    }
    println!("  {count} trials of 3 x {LENGTH} operations, seed {seed} (ORCHECK_SEED)");
}

/// Does something that may be refused: others do something to the same names meanwhile.
fn one_of_many(root: &Arc<dyn Dir>, files: &mut Vec<Box<dyn File>>, random: &mut Random) {
    let at = |dir: &str| {
        let names = dir.split('/').filter(|name| !name.is_empty());
        names
            .into_iter()
            .try_fold(Arc::clone(root), |at, name| at.child(name, false))
    };
    match Op::random(random) {
        Op::Create(dir, name) if files.len() < 2 => {
            files.extend(at(dir).and_then(|dir| dir.create(name, Create::Buffered)));
        }
        Op::Open(dir, name) if files.len() < 2 => {
            files.extend(at(dir).and_then(|dir| dir.open(name)))
        }
        Op::Create(..) | Op::Open(..) | Op::Read(..) | Op::Holds(..) => {}
        Op::Write(_, at, len) => {
            let bytes = bytes_of(random, len);
            if let Some(file) = files.first() {
                let _ = file.write_at(&bytes, at).and_then(|()| file.sync());
            }
        }
        Op::Allocate(_, len) => drop(files.first().map(|file| file.allocate(len))),
        Op::Truncate(_, len) => drop(files.first().map(|file| file.truncate(len))),
        Op::Sync(_) => drop(files.first().map(|file| file.sync())),
        Op::Close(_) => drop(files.pop().map(File::close)),
        Op::Vanish(_) => files.truncate(1),
        Op::Rename(dir, from, to) => drop(at(dir).and_then(|dir| dir.rename(from, to))),
        Op::RenameNew(dir, from, to) => drop(at(dir).and_then(|dir| dir.rename_new(from, to))),
        Op::Remove(dir, name) => drop(at(dir).and_then(|dir| dir.remove(name))),
        Op::MakeDir(dir, name) => drop(at(dir).and_then(|dir| dir.child(name, true))),
        Op::RemoveDir(dir, name) => drop(at(dir).and_then(|dir| dir.remove_child(name))),
        Op::List(dir) => drop(at(dir).and_then(|dir| dir.list())),
    }
}
