//! Keeps the bytes of new files in a directory of fast storage until they are in the backing
//! directory.
//!
//! How: a *stage* of a mount is a directory of its own below the one that the user gave. A staged
//! file has entries there under one stem: its bytes (`STEM.open` while a program may write it,
//! `STEM.closed` later), `STEM.path`, a symbolic link that says where the file was last seen, and
//! `STEM.begun` once its flush has begun. The stem contains the boot ID, and the device, the inode
//! number and the birth of the file in the backing directory. So however a mount ends, the next one
//! finds what was not flushed, and flushes it.
//!
//! Invariants:
//! 1. Bytes leave the stage only after the backing file has them all and a sync of it succeeded, or
//!    when that file has no name left, or no bytes.
//! 2. No file is changed but the one that was staged, and not that one either if it got bytes by
//!    another way.
//! 3. Bytes that were staged before the machine went down are not flushed: the stage may have lost
//!    some of them.
//! 4. One mount at a time uses a stage (a lock).
//!
//! Faults survived: the death of the mount at any step, also while it recovers; a backing directory
//! that is full or does not answer: what is staged stays.
//!
//! Not here: when files are flushed (`lane.rs`), which are staged (`stacked/open.rs`).

mod recovery;

use crate::Options;
use orcheck_format::sabotage::{Switch, off};
use orcheck_format::{Error, Result, crc64};
use orcheck_io::disk::{Contents, Inode, Kernel, ofd_lock};
use orcheck_io::errno::rustix_error;
use orcheck_io::failpoints::Failpoints;
use orcheck_io::user::read_text;
use rustix::fs::{OFlags, Stat, Timespec, Timestamps};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

pub use recovery::Found;

/// Bytes that are flushed in one go.
const PIECE_BYTES: usize = 4 << 20;
/// Has another text after each start of the machine.
pub const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
/// The permissions of others on a directory.
const OTHERS: u32 = 0o077;

/// The stage of a mount.
pub struct Stage {
    dir: Inode,
    above: Inode,
    name: OsString,
    path: PathBuf,
    _lock: OwnedFd,
    points: Failpoints,
    /// The first digits of the boot ID.
    start: String,
    /// The device of the backing directory.
    device: u64,
    next: AtomicU64,
    limit_bytes: u64,
    used_bytes: Mutex<u64>,
}

/// The bytes of a staged file.
pub struct Staged {
    /// The file in the stage.
    pub contents: Contents,
    /// The file in the backing directory, open for writing.
    backing: Contents,
    stem: String,
    /// What it was charged for.
    charged_bytes: AtomicU64,
    /// Whether its flush has begun.
    begun: AtomicBool,
}

impl Stage {
    /// The stage of a mount, below `place`; `root` is the backing directory.
    ///
    /// # Errors
    /// Unavailable if another mount uses it; Invalid if it could be anybody's.
    pub fn open(
        place: &Path,
        options: &Options,
        root: &Inode,
        points: &Failpoints,
    ) -> Result<Self> {
        let user = orcheck_io::machine::effective_uid();
        let key = crc64(options.backing.as_os_str().as_bytes());
        let name = OsString::from(format!("orcheck-mount-{user}-{key:016x}"));
        let path = place.join(&name);
        let failed = |errno: Errno| rustix_error(errno, path.display());
        let above = Inode::root(place, points.clone()).map_err(failed)?;
        match above.make_dir(&name, 0o700) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(failed(errno)),
        }
        let dir = above.child(&name).map_err(failed)?;
        let stat = dir.stat().map_err(failed)?;
        let is_dir = rustix::fs::FileType::from_raw_mode(stat.st_mode).is_dir();
        if !is_dir || stat.st_uid != user || stat.st_mode & OTHERS != 0 {
            return Err(Error::invalid(format!(
                "{}: expected a directory that only user {user} can use",
                path.display()
            ))
            .next("remove it, or give another --stage"));
        }
        let lock = lock(&dir).map_err(failed)?.ok_or_else(|| {
            Error::unavailable(format!(
                "{}: another mount of this directory uses it",
                path.display()
            ))
            .next("use that mount, or give another --stage")
        })?;
        let space = dir.space().map_err(failed)?;
        Ok(Stage {
            limit_bytes: options
                .stage_limit_bytes
                .unwrap_or(space.f_bavail.saturating_mul(space.f_frsize) / 2),
            start: read_text(Path::new(BOOT_ID), 64)?.chars().take(8).collect(),
            device: root.stat().map_err(failed)?.st_dev,
            next: AtomicU64::new(0),
            used_bytes: Mutex::new(0),
            points: points.clone(),
            _lock: lock,
            above,
            name,
            dir,
            path,
        })
    }

    /// Removes the directory, if nothing is left in it; at the end of the mount.
    pub fn close(&self) {
        if self
            .names()
            .is_ok_and(|names| names.iter().all(|name| name == "lock"))
        {
            // Another mount may have begun to use it already; then it is not empty.
            let _ = self.dir.remove(OsStr::new("lock"), false);
            let _ = self.above.remove(&self.name, true);
        }
    }

    /// Its directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn names(&self) -> Kernel<Vec<OsString>> {
        let mut names = Vec::new();
        for entry in self.dir.list()? {
            let entry = entry?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if name != "." && name != ".." {
                names.push(name.to_owned());
            }
        }
        names.sort();
        Ok(names)
    }

    fn used(&self) -> std::sync::MutexGuard<'_, u64> {
        self.used_bytes
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether another file may be staged.
    pub fn has_room(&self) -> bool {
        *self.used() < self.limit_bytes
    }

    /// The device as a stem has it: the number that a mount gets may differ from day to day.
    fn device_of(&self, device: u64) -> u64 {
        if device == self.device { 0 } else { device }
    }

    /// Stages a file that has no bytes yet and is at this path; `backing` is the file, open for
    /// writing.
    pub fn begin(&self, inode: &Inode, path: &Path, backing: OwnedFd) -> Kernel<Staged> {
        let stat = inode.stat()?;
        let (ino, born) = (stat.st_ino, inode.born_ns()?);
        let device = self.device_of(stat.st_dev);
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let stem = format!("{}-{device:x}-{ino:x}-{born:x}-{number}", self.start);
        self.dir.make_link(&name(&stem, "path"), path)?;
        let flags = OFlags::RDWR | OFlags::EXCL;
        let made = self.dir.create(&name(&stem, "open"), flags, 0o600);
        let fd = made.inspect_err(|_| {
            let _ = self.dir.remove(&name(&stem, "path"), false);
        })?;
        let target = path.to_string_lossy();
        Ok(Staged {
            contents: Contents::new(fd, &self.points, "staged"),
            backing: Contents::new(backing, &self.points, &target),
            stem,
            charged_bytes: AtomicU64::new(0),
            begun: AtomicBool::new(false),
        })
    }

    /// Charges a staged file for this length. `false`: there is no room, and it is not charged.
    pub fn charge(&self, staged: &Staged, len: u64) -> bool {
        let mut used = self.used();
        let before = staged.charged_bytes.load(Ordering::SeqCst);
        let more = len.saturating_sub(before);
        if more > 0 && used.saturating_add(more) > self.limit_bytes {
            return false;
        }
        *used += more;
        staged.charged_bytes.store(before + more, Ordering::SeqCst);
        true
    }

    /// The program has closed it; or, with `false`, opened it again.
    pub fn mark_closed(&self, staged: &Staged, closed: bool) {
        let (from, to) = if closed {
            ("open", "closed")
        } else {
            ("closed", "open")
        };
        // What it is called only decides how the next mount reports it.
        let _ = self.dir.rename(
            &name(&staged.stem, from),
            &self.dir,
            &name(&staged.stem, to),
            0,
        );
    }

    /// Its file has another path now.
    pub fn note_path(&self, staged: &Staged, path: &Path) -> Kernel<()> {
        let (temporary, link) = (name(&staged.stem, "new"), name(&staged.stem, "path"));
        let _ = self.dir.remove(&temporary, false);
        self.dir.make_link(&temporary, path)?;
        self.dir.rename(&temporary, &self.dir, &link, 0)
    }

    /// The program wants a file without bytes.
    pub fn empty(&self, staged: &Staged) -> Kernel<()> {
        staged.contents.set_len(0)?;
        if staged.begun.load(Ordering::SeqCst) {
            staged.backing.set_len(0)?;
        }
        Ok(())
    }

    /// Writes a staged file's bytes to its place and makes them durable there. `pause` is called
    /// between pieces.
    pub fn flush(&self, staged: &Staged, pause: &dyn Fn()) -> Kernel<()> {
        // Breaks if: this is not asked; what another node has written there meanwhile would be cut
        // off and overwritten.
        if !staged.has_begun() && staged.backing.stat()?.st_size != 0 && !off(Switch::StagedFile) {
            return Err(Errno::BUSY);
        }
        if !staged.begun.swap(true, Ordering::SeqCst) {
            let mark = name(&staged.stem, "begun");
            let marked = self.dir.create(&mark, OFlags::WRONLY, 0o600);
            marked.inspect_err(|_| staged.begun.store(false, Ordering::SeqCst))?;
        }
        flush(&staged.contents, &staged.backing, pause)
    }

    /// Removes what was flushed, or belongs to a file that has no name left.
    pub fn end(&self, staged: &Staged) {
        if self.remove(&staged.stem) {
            // Its memory is free from now on, and not once the last descriptor of it has gone.
            let _ = staged.contents.set_len(0);
        }
        let charged = staged.charged_bytes.swap(0, Ordering::SeqCst);
        let mut used = self.used();
        *used = used.saturating_sub(charged);
    }

    /// Removes the entries of a stem; `true`: the bytes have no name any more.
    fn remove(&self, stem: &str) -> bool {
        let remove = |ending| self.dir.remove(&name(stem, ending), false);
        // What stays here is found by the next mount, and flushed again: the bytes go first.
        let gone =
            ["open", "closed"].map(|ending| matches!(remove(ending), Ok(()) | Err(Errno::NOENT)));
        for ending in ["path", "new", "begun"] {
            let _ = remove(ending);
        }
        gone == [true, true]
    }
}

impl Staged {
    /// Whether its flush has begun, so that the backing file may have bytes.
    pub fn has_begun(&self) -> bool {
        self.begun.load(Ordering::SeqCst)
    }
}

fn name(stem: &str, ending: &str) -> OsString {
    OsString::from(format!("{stem}.{ending}"))
}

/// The lock of a stage; `None` if another mount has it.
fn lock(dir: &Inode) -> Kernel<Option<OwnedFd>> {
    // The mount that had it may have removed it in between.
    for _ in 0..100 {
        let lock = dir.create(OsStr::new("lock"), OFlags::RDWR, 0o600)?;
        let free = ofd_lock(&lock, 0).map_err(Errno::from_raw_os_error)?;
        if !free && !off(Switch::StageOnce) {
            return Ok(None);
        }
        if rustix::fs::fstat(&lock)?.st_nlink > 0 {
            return Ok(Some(lock));
        }
    }
    Err(Errno::BUSY)
}

/// Makes `to` what `from` is, and durable. What `to` has already is written again: nobody knows
/// what a failed sync has dropped. Holes stay holes where `to` had nothing.
fn flush(from: &Contents, to: &Contents, pause: &dyn Fn()) -> Kernel<()> {
    let stat = from.stat()?;
    let (len, present) = (stat.st_size as u64, to.stat()?.st_size as u64);
    let mut buffer = vec![0; PIECE_BYTES.min(len as usize)];
    let mut at = 0;
    while at < len {
        if at >= present {
            match from.seek(at, false) {
                Ok(data) => at = at.max(data - data % PIECE_BYTES as u64),
                Err(Errno::NXIO) => break,
                // A file system that does not say.
                Err(_) => {}
            }
        }
        let end = len.min(at + PIECE_BYTES as u64);
        let piece = &mut buffer[..(end - at) as usize];
        let count = from.read(piece, at)?;
        if at < present && !off(Switch::StagedAgain) {
            to.write_all(&piece[..count], at)?;
        } else {
            write_data(from, to, &piece[..count], at)?;
        }
        to.begin_writing(at, end - at);
        at = end;
        pause();
    }
    to.set_len(len)?;
    to.set_times(&times(&stat))?;
    if off(Switch::StagedSynced) {
        return Ok(());
    }
    to.sync(true)
}

/// Writes what is data of one piece.
fn write_data(from: &Contents, to: &Contents, piece: &[u8], at: u64) -> Kernel<()> {
    let end = at + piece.len() as u64;
    let mut next = at;
    while next < end {
        let data = match from.seek(next, false) {
            Ok(data) if data < end => data,
            Ok(_) | Err(Errno::NXIO) => break,
            Err(_) => next,
        };
        let hole = from.seek(data, true).map_or(end, |hole| hole.min(end));
        to.write_all(&piece[(data - at) as usize..(hole - at) as usize], data)?;
        next = hole;
    }
    Ok(())
}

fn times(stat: &Stat) -> Timestamps {
    Timestamps {
        last_access: Timespec {
            tv_sec: stat.st_atime,
            tv_nsec: stat.st_atime_nsec as i64,
        },
        last_modification: Timespec {
            tv_sec: stat.st_mtime,
            tv_nsec: stat.st_mtime_nsec as i64,
        },
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::disallowed_methods)]
    use super::*;
    use orcheck_io::failpoints::Verdict;
    use orcheck_testing::{FaultPlan, Scratch};

    #[test]
    fn after_a_failed_sync_all_is_written_again() {
        let scratch = Scratch::new("again");
        let plan = FaultPlan::new().at_site("inode.sync", 1, Verdict::Fail(libc::EIO));
        let (plan, points) = plan.failpoints();
        let root = Inode::root(scratch.path(), points.clone()).unwrap();
        let open = |name: &str| {
            let made = root.create(OsStr::new(name), OFlags::RDWR | OFlags::EXCL, 0o600);
            Contents::new(made.unwrap(), &points, name)
        };
        let written = || {
            let seen = plan.seen();
            let of =
                |seen: &&orcheck_testing::Seen| seen.site == "inode.write" && seen.target == "to";
            seen.iter().filter(of).count()
        };
        let (from, to) = (open("from"), open("to"));
        from.write_all(&vec![7; PIECE_BYTES + 10], 0).unwrap();
        assert_eq!(flush(&from, &to, &|| {}), Err(Errno::IO));
        assert_eq!(written(), 2);
        flush(&from, &to, &|| {}).unwrap();
        assert_eq!(written(), 4);
        // A hole in place of what is there.
        from.set_len(0).unwrap();
        from.set_len(100).unwrap();
        flush(&from, &to, &|| {}).unwrap();
        assert_eq!(std::fs::read(scratch.path().join("to")).unwrap(), [0; 100]);
    }
}
