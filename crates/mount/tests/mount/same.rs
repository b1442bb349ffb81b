//! A mount answers as the file system beneath it does: random calls on both, with the same results.
//!
//! How: each call is made in the mount and in a plain directory of the same file system. What it
//! returns, or the number of its error, has to be the same, and so have contents and attributes
//! afterwards; in the end also those of the backing directory.

use crate::rig::{MODES, Mode, Rig};
use crate::{cannot_mount, number};
use orcheck_testing::calls::{mapped, truncate};
use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{Rng, SeedableRng};
use rustix::fs::{
    AtFlags, FallocateFlags, Mode as Bits, OFlags, RenameFlags, SeekFrom, Timespec, Timestamps,
    XattrFlags,
};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// Calls in each mode.
const CALLS: u32 = 17_000;
/// Longest file that is written.
const LONGEST: u64 = 300_000;
/// Open files at a time.
const OPEN: usize = 6;

type Got = Result<Vec<u8>, Errno>;

struct Both {
    roots: [PathBuf; 2],
    open: Vec<([OwnedFd; 2], String)>,
    random: SplitMix64,
    log: Vec<String>,
}

impl Both {
    fn below(&mut self, limit: u64) -> u64 {
        self.random.next_u64() % limit
    }

    fn name(&mut self) -> String {
        let dir = ["", "", "d/", "d/e/", "f/"][self.below(5) as usize];
        format!(
            "{dir}{}",
            ["a", "b", "c", "d", "f", "l"][self.below(6) as usize]
        )
    }

    /// Makes a call in both places, and compares.
    fn call(&mut self, what: String, mut act: impl FnMut(usize, &Path) -> Got) {
        self.log.push(what);
        let results = [0, 1].map(|which| act(which, &self.roots[which].clone()));
        self.compare(&results[0], &results[1]);
    }

    fn compare(&self, mount: &Got, plain: &Got) {
        if mount != plain {
            let last = self
                .log
                .iter()
                .rev()
                .take(25)
                .rev()
                .cloned()
                .collect::<Vec<_>>();
            let short = |got: &Got| match got {
                Ok(bytes) => format!("{} bytes {:?}", bytes.len(), &bytes[..bytes.len().min(64)]),
                Err(errno) => format!("{errno:?}"),
            };
            panic!(
                "{} …\n{}\nmount: {}\nplain: {}",
                self.log[0],
                last.join("\n"),
                short(mount),
                short(plain)
            );
        }
    }

    fn open(&mut self) {
        if self.open.len() >= OPEN {
            self.close();
        }
        let name = self.name();
        let access = [OFlags::RDONLY, OFlags::WRONLY, OFlags::RDWR, OFlags::RDWR];
        let mut flags = access[self.below(4) as usize];
        for (flag, chance) in [
            (OFlags::CREATE, 2),
            (OFlags::EXCL, 4),
            (OFlags::TRUNC, 3),
            (OFlags::APPEND, 5),
        ] {
            if self.below(chance) == 0 {
                flags |= flag;
            }
        }
        if flags.contains(OFlags::RDONLY) && !flags.intersects(OFlags::WRONLY | OFlags::RDWR) {
            flags.remove(OFlags::TRUNC);
        }
        if !flags.contains(OFlags::CREATE) {
            // Without it its meaning is not defined.
            flags.remove(OFlags::EXCL);
        }
        self.log.push(format!("open {name} {flags:?}"));
        let one = |root: &PathBuf| {
            let mode = Bits::from_raw_mode(0o644);
            rustix::fs::open(root.join(&name), flags | OFlags::CLOEXEC, mode)
        };
        match self.roots.each_ref().map(one) {
            [Ok(mount), Ok(plain)] => self.open.push(([mount, plain], name)),
            [mount, plain] => {
                let code = |got: Result<OwnedFd, Errno>| got.map(|_| Vec::new());
                self.compare(&code(mount), &code(plain));
            }
        }
    }

    fn close(&mut self) {
        if self.open.is_empty() {
            return;
        }
        let which = self.below(self.open.len() as u64) as usize;
        let (fds, name) = self.open.swap_remove(which);
        self.log.push(format!("close {name}"));
        drop(fds);
    }

    /// A call on an open file.
    fn on_open(&mut self) {
        if self.open.is_empty() {
            return self.open();
        }
        let which = self.below(self.open.len() as u64) as usize;
        let (fds, name) = self.open.swap_remove(which);
        let (kind, at) = (self.below(16), self.below(LONGEST));
        let len = match self.below(3) {
            0 => self.below(300),
            1 => self.below(9_000),
            _ => self.below(100_000),
        };
        let fill = self.random.next_u64() as u8;
        let what = format!("{kind} at {at} len {len} of {name}");
        self.call(what, |which, _| {
            on_descriptor(kind, &fds[which], at, len, fill)
        });
        self.open.push((fds, name));
    }

    fn on_name(&mut self) {
        let (name, other) = (self.name(), self.name());
        let (kind, number) = (self.below(19), self.below(LONGEST));
        let what = format!("name {kind} {name} {other} {number}");
        self.call(what, |_, root| on_name(kind, root, &name, &other, number));
    }

    fn step(&mut self) {
        match self.below(10) {
            0 | 1 => self.open(),
            2 => self.close(),
            3..=6 => self.on_open(),
            _ => self.on_name(),
        }
    }
}

fn on_descriptor(kind: u64, fd: &OwnedFd, at: u64, len: u64, fill: u8) -> Got {
    let none = |()| Vec::new();
    let number = |number: u64| number.to_le_bytes().to_vec();
    match kind {
        0..=4 => {
            let bytes: Vec<u8> = (0..len)
                .map(|byte| fill.wrapping_add((byte / 7) as u8))
                .collect();
            rustix::io::pwrite(fd, &bytes, at).map(|count| number(count as u64))
        }
        5..=8 => {
            let mut bytes = vec![0; len as usize];
            let count = rustix::io::pread(fd, &mut bytes, at)?;
            bytes.truncate(count);
            Ok(bytes)
        }
        9 => rustix::fs::ftruncate(fd, at).map(none),
        10 => rustix::fs::fsync(fd).map(none),
        11 => rustix::fs::fallocate(fd, FallocateFlags::empty(), at, len).map(none),
        12 => {
            let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            rustix::fs::fallocate(fd, mode, at, len).map(none)
        }
        // The end of a directory is what its file system likes.
        13 if rustix::fs::fstat(fd)?.st_mode & 0o170_000 != 0o100_000 => Ok(Vec::new()),
        13 => rustix::fs::seek(fd, SeekFrom::End(0)).map(number),
        14 => {
            let at = rustix::fs::seek(fd, SeekFrom::Start(at))?;
            let bytes = vec![fill; (len % 5_000) as usize];
            let count = rustix::io::write(fd, &bytes)?;
            Ok(number(at + count as u64))
        }
        _ => mapped(fd),
    }
}

fn on_name(kind: u64, root: &Path, name: &str, other: &str, number: u64) -> Got {
    let none = |()| Vec::new();
    let (path, second) = (root.join(name), root.join(other));
    match kind {
        0 | 1 => rustix::fs::rename(&path, &second).map(none),
        2 => {
            let flags = RenameFlags::NOREPLACE;
            rustix::fs::renameat_with(rustix::fs::CWD, &path, rustix::fs::CWD, &second, flags)
                .map(none)
        }
        3 => {
            let flags = RenameFlags::EXCHANGE;
            rustix::fs::renameat_with(rustix::fs::CWD, &path, rustix::fs::CWD, &second, flags)
                .map(none)
        }
        4 => rustix::fs::link(&path, &second).map(none),
        5 | 6 => rustix::fs::unlink(&path).map(none),
        7 | 8 => rustix::fs::mkdir(&path, Bits::from_raw_mode(0o755)).map(none),
        9 => rustix::fs::rmdir(&path).map(none),
        10 => rustix::fs::symlink(other, &path).map(none),
        11 => rustix::fs::readlink(&path, Vec::new()).map(|link| link.to_bytes().to_vec()),
        12 => {
            let fd = rustix::fs::open(&path, OFlags::WRONLY | OFlags::CLOEXEC, Bits::empty())?;
            rustix::fs::ftruncate(fd, number).map(none)
        }
        13 => {
            let mode = Bits::from_raw_mode(0o600 | (number as u32 & 0o77));
            rustix::fs::chmod(&path, mode).map(none)
        }
        14 => {
            let at = Timespec {
                tv_sec: number as i64,
                tv_nsec: 5,
            };
            let times = Timestamps {
                last_access: at,
                last_modification: at,
            };
            rustix::fs::utimensat(rustix::fs::CWD, &path, &times, AtFlags::SYMLINK_NOFOLLOW)?;
            let stat = rustix::fs::lstat(&path)?;
            Ok(format!("{} {}", stat.st_mtime, stat.st_mtime_nsec).into_bytes())
        }
        15 => {
            let value = number.to_le_bytes();
            rustix::fs::setxattr(&path, "user.test", &value, XattrFlags::empty())?;
            let mut got = [0; 64];
            let count = rustix::fs::getxattr(&path, "user.test", &mut got[..])?;
            Ok(got[..count].to_vec())
        }
        16 => truncate(&path, number).map(none),
        17 => listed(&path),
        _ => stat(&path),
    }
}

fn listed(path: &Path) -> Got {
    let fd = rustix::fs::open(
        path,
        OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Bits::empty(),
    )?;
    let mut names = Vec::new();
    for entry in rustix::fs::Dir::new(fd)? {
        let entry = entry?;
        names.push(format!("{:?} {:?}", entry.file_name(), entry.file_type()));
    }
    names.sort();
    Ok(names.join("\n").into_bytes())
}

fn stat(path: &Path) -> Got {
    let stat = rustix::fs::lstat(path)?;
    let directory = stat.st_mode & 0o170_000 == 0o040_000;
    let len = if directory { 0 } else { stat.st_size };
    Ok(format!(
        "{:o} {} {len} {} {}",
        stat.st_mode, stat.st_nlink, stat.st_uid, stat.st_gid
    )
    .into_bytes())
}

/// All that is below a directory: attributes and contents.
fn whole(root: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut dirs = vec![PathBuf::new()];
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(root.join(&dir)).unwrap() {
            let entry = entry.unwrap();
            let path = dir.join(entry.file_name());
            let kind = entry.file_type().unwrap();
            let mut bytes = stat(&entry.path()).unwrap();
            if kind.is_file() {
                bytes.extend(std::fs::read(entry.path()).unwrap());
            } else if kind.is_dir() {
                dirs.push(path.clone());
            }
            found.insert(path, bytes);
        }
    }
    found
}

fn compare(mode: Mode, seed: u64, calls: u32) {
    let mut rig = Rig::new(mode);
    // Small: files are unstaged now and then for want of room.
    rig.limit = Some(2 << 20);
    rig.start(orcheck_io::failpoints::Failpoints::none());
    let plain = rig.scratch.path().join("plain");
    std::fs::create_dir(&plain).unwrap();
    let mut both = Both {
        roots: [rig.point(), plain.clone()],
        open: Vec::new(),
        random: SplitMix64::seed_from_u64(seed),
        log: vec![format!("{mode:?} seed {seed}")],
    };
    for call in 0..calls {
        both.step();
        if call % 2_000 == 0 {
            assert_eq!(
                whole(&both.roots[0]),
                whole(&plain),
                "{mode:?} {seed} after {call}"
            );
        }
    }
    let Both { open, .. } = both;
    drop(open);
    assert_eq!(whole(&rig.point()), whole(&plain), "{mode:?} {seed}");
    let said = rig.stop();
    assert_eq!((said.lost, said.left), (0, 0), "{}", rig.told());
    assert_eq!(
        whole(rig.backing()),
        whole(&plain),
        "{mode:?} {seed}, unmounted"
    );
    assert_eq!(rig.staged(), 0);
}

#[test]
fn random_calls_do_the_same_as_without_the_mount() {
    if cannot_mount() {
        return;
    }
    let first = number("ORCHECK_SEED", 1);
    for trial in 0..number("ORCHECK_TRIALS", 1) {
        for (seed, mode) in (first + trial * 100..).zip(MODES) {
            compare(mode, seed, CALLS);
        }
    }
}
