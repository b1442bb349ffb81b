//! Keeps the bytes of new files in a directory of fast storage until they are in the backing
//! directory.
//!
//! How: a *stage* of a mount is a directory of its own below the one that the user gave. A staged
//! file has two entries there, under one stem: its bytes (`STEM.open` while a program may write it,
//! `STEM.closed` later) and `STEM.path`, a symbolic link that says which file of the backing
//! directory it is. The stem names the machine's start, and the device, the inode number and the
//! birth of that file. So whatever ends the mount, the next one finds what was not flushed, and
//! flushes it.
//!
//! Invariants:
//! 1. Bytes leave the stage only after the backing file has them all and a sync of it succeeded, or
//!    when that file has no name left.
//! 2. A stem whose inode number belongs to another file now is never flushed.
//! 3. Bytes that were staged before the machine went down are not flushed by themselves: the
//!    stage may have lost some of them.
//! 4. One mount at a time uses a stage (a lock).
//!
//! Faults survived: the death of the mount at any step; a backing directory that is full, or away:
//! what is staged stays.
//!
//! Not here: when bytes are flushed (`lane.rs`), and which files are staged (`stacked/open.rs`).

use orcheck_format::sabotage::{Switch, off};
use orcheck_format::{Error, Result, crc64};
use orcheck_io::disk::{Contents, Inode, Kernel, ofd_lock};
use orcheck_io::errno::rustix_error;
use orcheck_io::failpoints::Failpoints;
use orcheck_io::user::read_text;
use rustix::fs::{OFlags, Timespec, Timestamps};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// Bytes that are flushed in one go.
pub const PIECE_BYTES: usize = 4 << 20;
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// The stage of a mount.
pub struct Stage {
    dir: Inode,
    path: PathBuf,
    above: Inode,
    name: OsString,
    _lock: OwnedFd,
    points: Failpoints,
    /// The first digits of the number of the machine's start.
    start: String,
    next: AtomicU64,
    limit_bytes: u64,
    used_bytes: AtomicU64,
    /// Whether it lies in memory.
    pub in_memory: bool,
}

/// The bytes of a staged file.
pub struct Staged {
    /// The file in the stage.
    pub contents: Contents,
    /// The file in the backing directory, open for writing.
    pub backing: Contents,
    stem: String,
    /// What it was charged for.
    charged_bytes: AtomicU64,
    /// What the backing file has of each piece.
    pieces: Mutex<Vec<Piece>>,
    /// Whether it may have changed since it was flushed.
    pub changed: AtomicBool,
}

/// What the backing file has of a piece.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Piece {
    /// Nothing.
    Nothing,
    /// Nobody knows: a sync failed, which may have dropped it.
    Unknown,
    /// Bytes with this checksum.
    Sum(u64),
}

/// What the last mount left.
#[derive(Default, Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// Files that were closed, and are in the backing directory now.
    pub closed: Vec<PathBuf>,
    /// Files that were open: what had been written is in the backing directory now.
    pub open: Vec<PathBuf>,
    /// What could not be flushed, and why: files of the stage.
    pub left: Vec<(PathBuf, String)>,
}

impl Stage {
    /// The stage for a backing directory below `place`, which is made if need be.
    ///
    /// # Errors
    /// Unavailable if another mount uses it.
    pub fn open(
        place: &Path,
        root: &Inode,
        limit: Option<u64>,
        points: &Failpoints,
    ) -> Result<Self> {
        let failed = |errno: Errno, what: &Path| rustix_error(errno, what.display());
        let stat = root.stat().map_err(|errno| failed(errno, place))?;
        let user = orcheck_io::machine::effective_uid();
        let name = format!("orcheck-mount-{user}-{:x}-{:x}", stat.st_dev, stat.st_ino);
        let path = place.join(&name);
        let above = Inode::root(place, points.clone()).map_err(|errno| failed(errno, place))?;
        match above.make_dir(OsStr::new(&name), 0o700) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(failed(errno, &path)),
        }
        let dir = Inode::root(&path, points.clone()).map_err(|errno| failed(errno, &path))?;
        let owner = dir.stat().map_err(|errno| failed(errno, &path))?.st_uid;
        if owner != user {
            return Err(Error::invalid(format!(
                "{}: expected a directory of user {user}, found one of user {owner}",
                path.display()
            )));
        }
        let lock = dir
            .create(OsStr::new("lock"), OFlags::RDWR, 0o600)
            .map_err(|errno| failed(errno, &path))?;
        if !off(Switch::StageOnce)
            && !ofd_lock(&lock, 0)
                .map_err(|errno| failed(Errno::from_raw_os_error(errno), &path))?
        {
            return Err(Error::unavailable(format!(
                "{}: another mount of this directory uses it",
                path.display()
            ))
            .next("use that mount, or give another --stage"));
        }
        let in_memory = orcheck_io::machine::file_system_kind(&path)? == "tmpfs";
        let space = dir.space().map_err(|errno| failed(errno, &path))?;
        Ok(Stage {
            limit_bytes: limit.unwrap_or(space.f_bavail.saturating_mul(space.f_frsize) / 2),
            start: read_text(Path::new(BOOT_ID), 64)?.chars().take(8).collect(),
            next: AtomicU64::new(0),
            used_bytes: AtomicU64::new(0),
            points: points.clone(),
            above,
            name: name.into(),
            _lock: lock,
            dir,
            path,
            in_memory,
        })
    }

    /// Removes the directory, if nothing is left in it; at the end of the mount.
    pub fn close(&self) {
        let empty = |dir: &Inode| -> Kernel<bool> {
            let mut others = 0;
            for entry in dir.list()? {
                let entry = entry?;
                others += u32::from(!matches!(
                    entry.file_name().to_bytes(),
                    b"." | b".." | b"lock"
                ));
            }
            Ok(others == 0)
        };
        if empty(&self.dir) == Ok(true) {
            // Another mount may have begun to use it already; then it is not empty.
            let _ = self.dir.remove(OsStr::new("lock"), false);
            let _ = self.above.remove(&self.name, true);
        }
    }

    /// Its directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether another file may be staged.
    pub fn has_room(&self) -> bool {
        self.used_bytes.load(Ordering::SeqCst) < self.limit_bytes
    }

    /// Stages a file that has no bytes yet and is at this path; `backing` is the file, open for
    /// writing.
    pub fn begin(&self, inode: &Inode, path: &Path, backing: OwnedFd) -> Kernel<Staged> {
        let stat = inode.stat()?;
        let (device, ino, born) = (stat.st_dev, stat.st_ino, inode.born_ns()?);
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
            pieces: Mutex::default(),
            changed: true.into(),
        })
    }

    /// Charges a staged file for this length. `false`: there is no room, and it is not charged.
    pub fn charge(&self, staged: &Staged, len: u64) -> bool {
        let before = staged.charged_bytes.load(Ordering::SeqCst);
        if len <= before {
            return true;
        }
        let more = len - before;
        if self.used_bytes.fetch_add(more, Ordering::SeqCst) + more > self.limit_bytes {
            self.used_bytes.fetch_sub(more, Ordering::SeqCst);
            return false;
        }
        staged.charged_bytes.fetch_add(more, Ordering::SeqCst);
        true
    }

    /// Charges a staged file for what it has, whether or not there is room.
    pub fn charge_present(&self, staged: &Staged) {
        let len = staged.contents.stat().map_or(0, |stat| stat.st_size as u64);
        let before = staged.charged_bytes.swap(len, Ordering::SeqCst);
        self.used_bytes.fetch_add(len, Ordering::SeqCst);
        self.used_bytes.fetch_sub(before, Ordering::SeqCst);
    }

    /// The program has closed it; or, with `false`, opened it again.
    pub fn mark_closed(&self, staged: &Staged, closed: bool) -> Kernel<()> {
        let (from, to) = if closed {
            ("open", "closed")
        } else {
            ("closed", "open")
        };
        match self.dir.rename(
            &name(&staged.stem, from),
            &self.dir,
            &name(&staged.stem, to),
            0,
        ) {
            // It is so already.
            Err(Errno::NOENT) => Ok(()),
            other => other,
        }
    }

    /// Its file has another name now.
    pub fn note_path(&self, staged: &Staged, path: &Path) -> Kernel<()> {
        let (temporary, link) = (name(&staged.stem, "new"), name(&staged.stem, "path"));
        let _ = self.dir.remove(&temporary, false);
        self.dir.make_link(&temporary, path)?;
        self.dir.rename(&temporary, &self.dir, &link, 0)
    }

    /// Removes what was flushed, or belongs to a file that has no name left.
    pub fn end(&self, staged: &Staged) {
        let charged = staged.charged_bytes.swap(0, Ordering::SeqCst);
        self.used_bytes.fetch_sub(charged, Ordering::SeqCst);
        self.remove(&staged.stem);
    }

    fn remove(&self, stem: &str) {
        // What stays here is found by the next mount, and flushed again.
        for ending in ["open", "closed", "path", "new"] {
            let _ = self.dir.remove(&name(stem, ending), false);
        }
    }

    /// Flushes what an earlier mount left here.
    pub fn recover(&self, root: &Inode) -> Kernel<Found> {
        let mut found = Found::default();
        let mut names = Vec::new();
        for entry in self.dir.list()? {
            names.push(OsStr::from_bytes(entry?.file_name().to_bytes()).to_owned());
        }
        names.sort();
        for file in &names {
            let Some((stem, closed)) = stem_of(file) else {
                continue;
            };
            let path = self.link_of(stem);
            match self.recover_one(root, stem, file, path.as_deref()) {
                Ok(path) if closed => found.closed.push(path),
                Ok(path) => found.open.push(path),
                Err(why) => {
                    let named = path.unwrap_or_default();
                    let why = format!("{}: {why}", named.display());
                    found.left.push((self.path.join(file), why));
                }
            }
        }
        Ok(found)
    }

    fn link_of(&self, stem: &str) -> Option<PathBuf> {
        let link = self.dir.child(&name(stem, "path")).ok()?.read_link().ok()?;
        Some(PathBuf::from(OsStr::from_bytes(link.to_bytes())))
    }

    fn recover_one(
        &self,
        root: &Inode,
        stem: &str,
        file: &OsStr,
        path: Option<&Path>,
    ) -> std::result::Result<PathBuf, String> {
        let parts: Vec<&str> = stem.split('-').collect();
        let [start, device, inode, born, _] = parts[..] else {
            return Err("its name is not one that Orcheck gave".to_owned());
        };
        // Breaks if: it is not looked at; what a power cut has left of a file would replace it.
        if start != self.start && !off(Switch::StagedThisStart) {
            return Err("staged before this machine was started: bytes may be missing".to_owned());
        }
        let number = |text| u64::from_str_radix(text, 16).map_err(|_| "a wrong name".to_owned());
        let key = (number(device)?, number(inode)?, number(born)?);
        let at_path = path.and_then(|path| descend(root, path).filter(|found| is(found, key)));
        let (node, path) = match (at_path, path) {
            (Some(node), Some(path)) => (node, path.to_owned()),
            _ => find(root, key, Path::new("")).ok_or("its file is not there any more")?,
        };
        let flushed = || -> Kernel<()> {
            let staged = self.dir.child(file)?.open(OFlags::RDONLY)?;
            let staged = Contents::new(staged, &self.points, "staged");
            let fd = open_anyway(&node)?;
            let backing = Contents::new(fd, &self.points, &path.to_string_lossy());
            // What an attempt before has left there counts for nothing.
            backing.set_len(0)?;
            flush(&staged, &backing, &mut Vec::new(), &|| {})
        };
        flushed().map_err(|errno| errno.to_string())?;
        self.remove(stem);
        Ok(path)
    }
}

impl Staged {
    /// Flushes its bytes and makes them durable there. `pause` is called between pieces.
    pub fn flush(&self, pause: &dyn Fn()) -> Kernel<()> {
        let mut pieces = self.pieces.lock().unwrap_or_else(PoisonError::into_inner);
        let done = flush(&self.contents, &self.backing, &mut pieces, pause);
        if done.is_err() {
            // All of it is written again.
            let unknown = if off(Switch::StagedAgain) {
                None
            } else {
                Some(Piece::Unknown)
            };
            pieces
                .iter_mut()
                .for_each(|piece| *piece = unknown.unwrap_or(*piece));
        }
        done
    }
}

fn name(stem: &str, ending: &str) -> OsString {
    OsString::from(format!("{stem}.{ending}"))
}

/// The stem of a file of bytes, and whether it was closed.
fn stem_of(file: &OsStr) -> Option<(&str, bool)> {
    let text = file.to_str()?;
    let open = text.strip_suffix(".open").map(|stem| (stem, false));
    open.or_else(|| text.strip_suffix(".closed").map(|stem| (stem, true)))
}

/// Whether it is the file with this device, number and birth.
fn is(inode: &Inode, key: (u64, u64, u64)) -> bool {
    let Ok(stat) = inode.stat() else {
        return false;
    };
    // Breaks if: a path or a number alone is believed; the bytes would get into a file that was
    // made there later.
    (stat.st_dev, stat.st_ino) == (key.0, key.1) && inode.born_ns() == Ok(key.2)
        || off(Switch::StagedFile)
}

/// What is at a path below a directory, without following links.
fn descend(root: &Inode, path: &Path) -> Option<Inode> {
    let mut names = path.iter();
    let first = root.child(names.next()?).ok()?;
    names.try_fold(first, |dir, name| dir.child(name).ok())
}

/// Looks for an inode below a directory.
fn find(dir: &Inode, key: (u64, u64, u64), above: &Path) -> Option<(Inode, PathBuf)> {
    for entry in dir.list().ok()?.flatten() {
        let name = OsStr::from_bytes(entry.file_name().to_bytes());
        if name == "." || name == ".." {
            continue;
        }
        let Ok(child) = dir.child(name) else { continue };
        if is(&child, key) {
            return Some((child, above.join(name)));
        }
        let below = child.stat().is_ok_and(|stat| {
            stat.st_dev == key.0 && rustix::fs::FileType::from_raw_mode(stat.st_mode).is_dir()
        });
        if below && let Some(found) = find(&child, key, &above.join(name)) {
            return Some(found);
        }
    }
    None
}

/// Opens a file for writing that may be read-only for its owner, as copies of such files are.
fn open_anyway(node: &Inode) -> Kernel<OwnedFd> {
    match node.open(OFlags::WRONLY) {
        Err(Errno::ACCESS) => {
            let mode = node.stat()?.st_mode & 0o7777;
            node.set_mode(mode | 0o200)?;
            let opened = node.open(OFlags::WRONLY);
            node.set_mode(mode)?;
            opened
        }
        other => other,
    }
}

/// Makes `to` what `from` is, and durable. `pieces` are checksums of what `to` has already: only
/// what differs is written, and holes stay holes where nothing was before.
fn flush(from: &Contents, to: &Contents, pieces: &mut Vec<Piece>, pause: &dyn Fn()) -> Kernel<()> {
    let stat = from.stat()?;
    let len = stat.st_size as u64;
    let mut buffer = vec![0; PIECE_BYTES.min(len as usize)];
    let mut at = 0;
    while at < len {
        let index = (at / PIECE_BYTES as u64) as usize;
        if pieces
            .get(index)
            .is_none_or(|piece| *piece == Piece::Nothing)
        {
            // Nothing was flushed from here on: holes can be passed over.
            match from.seek(at, false) {
                Ok(data) if data >= at + PIECE_BYTES as u64 => {
                    at = data - data % PIECE_BYTES as u64;
                    continue;
                }
                Err(Errno::NXIO) if index >= pieces.len() => break,
                _ => {}
            }
        }
        let end = len.min(at + PIECE_BYTES as u64);
        let piece = &mut buffer[..(end - at) as usize];
        let count = from.read(piece, at)?;
        let checksum = crc64(&piece[..count]);
        if pieces.len() <= index {
            pieces.resize(index + 1, Piece::Nothing);
        }
        match pieces[index] {
            Piece::Sum(there) if there == checksum => {}
            Piece::Sum(_) | Piece::Unknown => to.write_all(&piece[..count], at)?,
            Piece::Nothing => write_data(from, to, &piece[..count], at)?,
        }
        pieces[index] = Piece::Sum(checksum);
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
            // A file system that does not say.
            Err(_) => next,
        };
        let hole = from.seek(data, true).map_or(end, |hole| hole.min(end));
        to.write_all(&piece[(data - at) as usize..(hole - at) as usize], data)?;
        next = hole;
    }
    Ok(())
}

fn times(stat: &rustix::fs::Stat) -> Timestamps {
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

    /// The backing file of a plan whose first sync fails, and the plan.
    fn staged(scratch: &Scratch) -> (Staged, std::sync::Arc<FaultPlan>) {
        let plan = FaultPlan::new().at_site("inode.sync", 1, Verdict::Fail(libc::EIO));
        let (plan, points) = plan.failpoints();
        let root = Inode::root(scratch.path(), points.clone()).unwrap();
        let open = |name: &str| {
            let made = root.create(OsStr::new(name), OFlags::RDWR | OFlags::EXCL, 0o600);
            Contents::new(made.unwrap(), &points, name)
        };
        let staged = Staged {
            contents: open("staged"),
            backing: open("backing"),
            stem: String::new(),
            charged_bytes: AtomicU64::new(0),
            pieces: Mutex::default(),
            changed: true.into(),
        };
        (staged, plan)
    }

    fn written(plan: &FaultPlan) -> usize {
        let of_backing =
            |seen: &&orcheck_testing::Seen| seen.site == "inode.write" && seen.target == "backing";
        plan.seen().iter().filter(of_backing).count()
    }

    #[test]
    fn after_a_failed_sync_all_is_written_again() {
        let scratch = Scratch::new("again");
        let (staged, plan) = staged(&scratch);
        let bytes = vec![7; PIECE_BYTES + 10];
        staged.contents.write_all(&bytes, 0).unwrap();
        assert_eq!(staged.flush(&|| {}), Err(Errno::IO));
        assert_eq!(written(&plan), 2);
        staged.flush(&|| {}).unwrap();
        assert_eq!(written(&plan), 4);
        // What the backing file has is not written again.
        staged.contents.write_all(b"x", PIECE_BYTES as u64).unwrap();
        staged.flush(&|| {}).unwrap();
        assert_eq!(written(&plan), 5);
    }

    #[test]
    fn a_stem_says_whether_its_file_was_closed() {
        assert_eq!(stem_of(OsStr::new("a-1.open")), Some(("a-1", false)));
        assert_eq!(stem_of(OsStr::new("a-1.closed")), Some(("a-1", true)));
        assert_eq!(stem_of(OsStr::new("a-1.path")), None);
        assert_eq!(stem_of(OsStr::new("lock")), None);
    }
}
