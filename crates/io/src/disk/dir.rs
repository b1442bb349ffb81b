//! Accesses directories, the first half of all disk access.
//!
//! How: a [`Dir`] holds an open directory handle. Everything beneath it is reached by one name
//! component relative to that handle, so that renaming or swapping a parent directory cannot lead
//! elsewhere. A simulated disk can implement the trait.
//!
//! Invariants
//! 1. A name is one component: no `/`, no NUL, not empty, not `.` or `..`, at most 255 bytes.
//! 2. No symbolic link is followed beneath the directory that [`open_local`] was given (that path
//!    itself belongs to the user and may contain links). Only regular files are opened as files.
//! 3. A new file is created exclusively, with mode 0600. A new child directory has mode 0700, and
//!    the parent is synced before `child` returns it. Beneath a directory that a group shares, the
//!    modes are 0660 and 2770, whatever the umask is (`dir/shared.rs`).
//! 4. Every effect passes [`Failpoints`] first.
//! 5. A handle outlives its path: [`Dir::check_path`] tells whether the configured path still leads
//!    to the directory that the handle writes to. It is called before anything is reported durable.
//!
//! Faults survived: a socket, FIFO, device, directory or link in place of a file (Corrupt, and
//! never a blocking open); entries that vanish while the directory is listed.
//!
//! Not here: reading and writing (see [`crate::disk::file`]).

mod shared;

use crate::descriptor;
use crate::disk::file::{File, OsFile};
use crate::disk::usage::DiskUsage;
use crate::errno::{errno_name, os_error, retry, rustix_error};
use crate::failpoints::{Effect, Failpoints};
use crate::rng::random_bytes;
use orcheck_format::sabotage::{Switch, off};
use orcheck_format::{Detail, Error, ErrorKind, Result};
use rustix::fs::{self, AtFlags, FileType, Mode, OFlags, RenameFlags};
use rustix::io::Errno;
use std::ffi::OsString;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// How a new file is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Create {
    /// Through the page cache.
    Buffered,
    /// Bypassing the page cache if the file system supports it; otherwise buffered, see
    /// [`File::is_direct`].
    Direct,
    /// Through the page cache, and readable only for its owner, even if a group shares the
    /// directory.
    Private,
}

/// One name in a directory.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Entry {
    /// The name; names that are not UTF-8 are never Orcheck's and are left out of a listing.
    pub name: String,
    /// Length in bytes; for a symbolic link, that of the link itself.
    pub len_bytes: u64,
    /// Whether it is a directory.
    pub is_dir: bool,
}

/// An open directory. Names are single components; paths in messages are full.
pub trait Dir: Send + Sync {
    /// The path by which it was opened, for messages and reports.
    fn path(&self) -> &Path;
    /// Creates a file that must not exist yet, mode 0600, for reading and writing.
    fn create(&self, name: &str, how: Create) -> Result<Box<dyn File>>;
    /// Whether there is an entry of this name, whether or not it is readable.
    fn holds(&self, name: &str) -> Result<bool> {
        match self.open(name) {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }
    /// Opens an existing regular file for reading.
    fn open(&self, name: &str) -> Result<Box<dyn File>>;
    /// Renames a file in this directory, replacing `to`. Durable after [`Dir::sync`].
    fn rename(&self, from: &str, to: &str) -> Result<()>;
    /// Renames, but never replaces an existing name: Invalid if `to` exists.
    fn rename_new(&self, from: &str, to: &str) -> Result<()>;
    /// Removes a file.
    fn remove(&self, name: &str) -> Result<()>;
    /// All entries, sorted by name.
    fn list(&self) -> Result<Vec<Entry>>;
    /// Makes creations, renames and removals durable.
    fn sync(&self) -> Result<()>;
    /// Opens the directory `name`; with `create`, creates it first (0700, durable) if it does not
    /// exist.
    fn child(&self, name: &str, create: bool) -> Result<Arc<dyn Dir>>;
    /// The target of a symbolic link of this name; `None` for anything else, for a link that leads
    /// to a file, and on a server.
    fn link(&self, _name: &str) -> Result<Option<PathBuf>> {
        Ok(None)
    }
    /// Removes an empty child directory.
    fn remove_child(&self, name: &str) -> Result<()>;
    /// Bytes that this user can still write in the file system.
    fn free_bytes(&self) -> Result<u64>;
    /// Whether the file system is mounted read-only or this user may not write in the directory.
    fn read_only(&self) -> Result<bool>;
    /// Ok if this user may write in it, according to its mode.
    ///
    /// # Errors
    /// Unavailable, with what to do, if the user may not.
    fn permits_writing(&self) -> Result<()> {
        Ok(())
    }
    /// The disk space of this entry; `None` if it does not exist.
    ///
    /// # Errors
    /// Unsupported if the disk does not belong to this machine.
    fn taken(&self, name: &str) -> Result<Option<DiskUsage>> {
        Err(no_account(&self.path().join(name)))
    }
    /// The same for the directory itself.
    ///
    /// # Errors
    /// As [`Dir::taken`].
    fn taken_itself(&self) -> Result<DiskUsage> {
        Err(no_account(self.path()))
    }
    /// Since when its disk has been in use, in seconds since 1970, if the disk reports it, as a
    /// server's does.
    fn since_unix_s(&self) -> Option<u64> {
        None
    }
    /// Ok while the configured path leads to this directory, so that whoever opens the path finds
    /// what is written here. Unavailable once the directory was moved away, replaced or unmounted.
    fn check_path(&self) -> Result<()> {
        Ok(())
    }
}

fn no_account(path: &Path) -> Error {
    Error::unsupported(format!(
        "{}: its disk usage is not known here",
        path.display()
    ))
}

/// Opens an existing directory.
pub fn open_local(path: &Path, failpoints: Failpoints) -> Result<Arc<dyn Dir>> {
    open_local_shared(path, None, failpoints)
}

/// The same; directories that are made beneath it are shared with the members of `group`.
pub fn open_local_shared(
    path: &Path,
    group: Option<u32>,
    failpoints: Failpoints,
) -> Result<Arc<dyn Dir>> {
    open_with(path, group, failpoints, OFlags::empty())
}

/// Opens an existing directory whose path does not end in a symbolic link.
///
/// # Errors
/// Invalid, marked as [`Detail::Link`], for a link, naming its target; otherwise the error of the
/// path.
pub fn open_local_unlinked(path: &Path, failpoints: Failpoints) -> Result<Arc<dyn Dir>> {
    // Breaks if: the slash stays; the kernel follows a link that a slash ends.
    let plain: PathBuf = path.components().collect();
    open_with(&plain, None, failpoints, OFlags::NOFOLLOW).map_err(|error| {
        match retry(|| fs::readlinkat(fs::CWD, &plain, Vec::new())) {
            Ok(target) => linked(&plain, &target_of(target)),
            Err(_) => error,
        }
    })
}

/// The error that a directory is not opened because its path is a link.
#[must_use]
pub fn linked(path: &Path, target: &Path) -> Error {
    let target = path.parent().unwrap_or(path).join(target);
    Error::invalid(format!(
        "{} is a symbolic link to {}; links in place of a job's or node's directory are not followed",
        path.display(),
        target.display()
    ))
    .with(Detail::Link)
    .next(format!("give {} itself", target.display()))
}

fn target_of(target: std::ffi::CString) -> PathBuf {
    PathBuf::from(OsString::from_vec(target.into_bytes()))
}

fn open_with(
    path: &Path,
    group: Option<u32>,
    failpoints: Failpoints,
    more: OFlags,
) -> Result<Arc<dyn Dir>> {
    let shown = path.display().to_string();
    let what = || format!("open directory {shown}");
    if let Some(errno) = failpoints.refuse("dir.open", &shown) {
        return Err(os_error(errno, what()));
    }
    let handle =
        retry(|| descriptor::open(path, DIRECTORY | more, Mode::empty())).map_err(|errno| {
            match errno {
                Errno::NOTDIR => rustix_error(errno, what())
                    .next("name a directory, or remove the file in its place"),
                Errno::NOENT => {
                    rustix_error(errno, what()).next("create the directory or correct the path")
                }
                _ => rustix_error(errno, what()),
            }
        })?;
    // Breaks if: the path stays relative; a program that changes its working directory would lose
    // every step.
    let anchor = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
    let files = shared::group_of(&handle, &shown)?;
    Ok(Arc::new(OsDir {
        handle,
        group,
        files,
        path: path.to_path_buf(),
        anchor,
        last: AtFlags::empty(),
        failpoints,
    }))
}

const DIRECTORY: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::CLOEXEC)
    .union(OFlags::NOCTTY);

/// Refuses everything except one plain name component.
pub fn check_name(name: &str) -> Result<()> {
    if off(Switch::PlainName) {
        return Ok(());
    }
    let wrong = if name.is_empty() {
        "it is empty"
    } else if name == "." || name == ".." {
        "it leads out of the directory"
    } else if name.contains('/') {
        "it contains '/'"
    } else if name.contains('\0') {
        "it contains a NUL byte"
    } else if name.len() > 255 {
        "it is longer than 255 bytes"
    } else {
        return Ok(());
    };
    Err(Error::invalid(format!(
        "file name {name:?} refused: {wrong}, expected one plain name"
    )))
}

struct OsDir {
    handle: OwnedFd,
    /// The group that shares new directories beneath it.
    group: Option<u32>,
    /// The group that shares new files in it, according to its mode.
    files: Option<u32>,
    path: PathBuf,
    /// The path as seen from any working directory, and whether its last name may be a link, as in
    /// the user's own path.
    anchor: PathBuf,
    last: AtFlags,
    failpoints: Failpoints,
}

impl OsDir {
    /// Whether a file created through the handle appears at the path: the same file system, mounted
    /// again or through another client, has a different device number.
    fn seen_through_path(&self) -> Result<bool> {
        let name = format!("path-{:016x}.tmp", u64::from_le_bytes(random_bytes()));
        let file = self.create(&name, Create::Buffered)?;
        let seen =
            retry(|| fs::statat(fs::CWD, self.anchor.join(&name), AtFlags::SYMLINK_NOFOLLOW));
        drop(file);
        self.remove(&name)?;
        Ok(seen.is_ok())
    }

    fn full(&self, name: &str) -> String {
        self.path.join(name).display().to_string()
    }

    /// Checks the name, passes the failpoint, and returns the full path for messages.
    fn begin(&self, site: &'static str, verb: &str, name: &str) -> Result<String> {
        check_name(name).map_err(|error| error.at(self.path.display()))?;
        let full = self.full(name);
        match self.failpoints.refuse(site, &full) {
            Some(errno) => Err(os_error(errno, format_args!("{verb} {full}"))),
            None => Ok(full),
        }
    }

    /// Gives a newly created file or directory to a group.
    fn share(&self, (handle, full): (&OwnedFd, &str), group: u32, mode: Mode) -> Result<()> {
        if let Some(errno) = self.failpoints.refuse("dir.share", full) {
            return Err(os_error(errno, format_args!("share {full}")));
        }
        shared::share(handle, full, group, mode)
    }

    fn begin_here(&self, site: &'static str, verb: &str) -> Result<String> {
        let full = self.path.display().to_string();
        match self.failpoints.refuse(site, &full) {
            Some(errno) => Err(os_error(errno, format_args!("{verb} {full}"))),
            None => Ok(full),
        }
    }
}

impl Dir for OsDir {
    fn path(&self) -> &Path {
        &self.path
    }

    fn create(&self, name: &str, how: Create) -> Result<Box<dyn File>> {
        let full = self.begin("dir.create", "create", name)?;
        let exclusive = if off(Switch::Exclusive) {
            OFlags::empty()
        } else {
            OFlags::EXCL
        };
        let flags = OFlags::RDWR
            | OFlags::CREATE
            | exclusive
            | OFlags::NOFOLLOW
            | OFlags::CLOEXEC
            | OFlags::NOCTTY;
        let handle =
            retry(|| descriptor::openat(&self.handle, name, flags, Mode::RUSR | Mode::WUSR))
                .map_err(|errno| rustix_error(errno, format_args!("create {full}")))?;
        if let Some(group) = self.files.filter(|_| how != Create::Private)
            && let Err(error) = self.share((&handle, &full), group, shared::FILE)
        {
            // Best effort: the error that counts is the one above.
            let _ = fs::unlinkat(&self.handle, name, AtFlags::empty());
            return Err(error);
        }
        // Request direct I/O on the open file, not at its creation: a file system that refuses
        // would leave an empty file behind.
        let direct = how == Create::Direct
            && self.failpoints.refuse("file.direct", &full).is_none()
            && fs::fcntl_getfl(&handle)
                .and_then(|flags| fs::fcntl_setfl(&handle, flags | OFlags::DIRECT))
                .is_ok();
        let file = OsFile::new(handle, full, self.failpoints.clone(), direct, true);
        self.failpoints.done(Effect::Created {
            dir: &self.path,
            name,
            file: file.number(),
        });
        Ok(Box::new(file))
    }

    fn holds(&self, name: &str) -> Result<bool> {
        let full = self.begin("dir.open", "look for", name)?;
        match retry(|| fs::statat(&self.handle, name, AtFlags::SYMLINK_NOFOLLOW)) {
            Ok(_) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(errno) => Err(rustix_error(errno, format_args!("look for {full}"))),
        }
    }

    fn taken(&self, name: &str) -> Result<Option<DiskUsage>> {
        let full = self.begin("dir.look", "look at", name)?;
        match retry(|| fs::statat(&self.handle, name, AtFlags::SYMLINK_NOFOLLOW)) {
            Ok(stat) => Ok(Some(DiskUsage::of(&stat))),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(rustix_error(errno, format_args!("look at {full}"))),
        }
    }

    fn taken_itself(&self) -> Result<DiskUsage> {
        let full = self.begin_here("dir.look", "look at")?;
        let stat = fs::fstat(&self.handle);
        stat.map(|stat| DiskUsage::of(&stat))
            .map_err(|errno| rustix_error(errno, format_args!("look at {full}")))
    }

    fn open(&self, name: &str) -> Result<Box<dyn File>> {
        let full = self.begin("dir.open", "open", name)?;
        // NONBLOCK, so that a FIFO in place of the file cannot block before it is recognised.
        let no_link = if off(Switch::NoLink) {
            OFlags::empty()
        } else {
            OFlags::NOFOLLOW
        };
        let flags = OFlags::RDONLY | no_link | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
        let handle = match retry(|| descriptor::openat(&self.handle, name, flags, Mode::empty())) {
            Ok(handle) => handle,
            // A socket cannot be opened, a link is not followed, and a device may have no driver.
            Err(errno) => {
                let there = fs::statat(&self.handle, name, AtFlags::SYMLINK_NOFOLLOW);
                there.map_or(Ok(()), |stat| check_regular(&stat, &full))?;
                return Err(rustix_error(errno, format_args!("open {full}")));
            }
        };
        let stat = fs::fstat(&handle)
            .map_err(|errno| rustix_error(errno, format_args!("look at {full}")))?;
        check_regular(&stat, &full)?;
        Ok(Box::new(OsFile::new(
            handle,
            full,
            self.failpoints.clone(),
            false,
            false,
        )))
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        check_name(to).map_err(|error| error.at(self.path.display()))?;
        let full = self.begin("dir.rename", &format!("rename to {to:?}:"), from)?;
        retry(|| fs::renameat(&self.handle, from, &self.handle, to))
            .map_err(|errno| rustix_error(errno, format_args!("rename {full} to {to}")))?;
        let dir = &self.path;
        self.failpoints.done(Effect::Renamed { dir, from, to });
        Ok(())
    }

    fn rename_new(&self, from: &str, to: &str) -> Result<()> {
        check_name(to).map_err(|error| error.at(self.path.display()))?;
        let full = self.begin("dir.rename", &format!("rename to new {to:?}:"), from)?;
        let what = |errno| rustix_error(errno, format_args!("rename {full} to new {to}"));
        let flags = if off(Switch::ClaimOnce) {
            RenameFlags::empty()
        } else {
            RenameFlags::NOREPLACE
        };
        let dir = &self.path;
        match retry(|| fs::renameat_with(&self.handle, from, &self.handle, to, flags)) {
            // Some network file systems do not support this rename; a hard link never replaces a
            // file either.
            Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
                let none = AtFlags::empty();
                retry(|| fs::linkat(&self.handle, from, &self.handle, to, none)).map_err(what)?;
                self.failpoints.done(Effect::Linked { dir, from, to });
                retry(|| fs::unlinkat(&self.handle, from, none)).map_err(what)?;
                self.failpoints.done(Effect::Removed { dir, name: from });
            }
            renamed => {
                renamed.map_err(what)?;
                self.failpoints.done(Effect::Renamed { dir, from, to });
            }
        }
        Ok(())
    }

    fn remove(&self, name: &str) -> Result<()> {
        let full = self.begin("dir.remove", "remove", name)?;
        retry(|| fs::unlinkat(&self.handle, name, AtFlags::empty()))
            .map_err(|errno| rustix_error(errno, format_args!("remove {full}")))?;
        let dir = &self.path;
        self.failpoints.done(Effect::Removed { dir, name });
        Ok(())
    }

    fn list(&self) -> Result<Vec<Entry>> {
        let full = self.begin_here("dir.list", "list")?;
        let what = |errno| rustix_error(errno, format_args!("list {full}"));
        // A separate handle, so that two listings do not share one read position.
        let handle = retry(|| descriptor::openat(&self.handle, ".", DIRECTORY, Mode::empty()))
            .map_err(what)?;
        let mut entries = Vec::new();
        for found in fs::Dir::new(handle).map_err(what)? {
            let found = found.map_err(what)?;
            let Ok(name) = found.file_name().to_str() else {
                continue;
            };
            if name == "." || name == ".." {
                continue;
            }
            let stat = match fs::statat(&self.handle, name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) => stat,
                Err(Errno::NOENT) => continue, // removed since it was listed
                Err(errno) => return Err(what(errno)),
            };
            entries.push(Entry {
                name: name.to_owned(),
                len_bytes: u64::try_from(stat.st_size).unwrap_or(0),
                is_dir: FileType::from_raw_mode(stat.st_mode) == FileType::Directory,
            });
        }
        entries.sort();
        Ok(entries)
    }

    fn sync(&self) -> Result<()> {
        let full = self.path.display().to_string();
        // Never repeated after a failure: an error means that the names may be lost.
        let done = match self.failpoints.sync("dir.sync", &full) {
            Err(errno) => Err(Errno::from_raw_os_error(errno)),
            Ok(false) => return Ok(()),
            Ok(true) => fs::fsync(&self.handle),
        };
        done.map_err(|errno| rustix_error(errno, format_args!("sync directory {full}")))?;
        self.failpoints.done(Effect::SyncedDir { dir: &self.path });
        Ok(())
    }

    fn child(&self, name: &str, create: bool) -> Result<Arc<dyn Dir>> {
        if create {
            let full = self.begin("dir.child", "create directory", name)?;
            match retry(|| fs::mkdirat(&self.handle, name, Mode::RWXU)) {
                Ok(()) => {
                    let dir = &self.path;
                    self.failpoints.done(Effect::MadeDir { dir, name });
                    if !off(Switch::FsyncMade) {
                        self.sync()?;
                    }
                }
                Err(Errno::EXIST) => {}
                Err(errno) => {
                    return Err(rustix_error(errno, format_args!("create directory {full}")));
                }
            }
        }
        let full = self.begin("dir.open", "open directory", name)?;
        let handle = retry(|| {
            descriptor::openat(
                &self.handle,
                name,
                DIRECTORY | OFlags::NOFOLLOW,
                Mode::empty(),
            )
        })
        .map_err(|errno| {
            let error = rustix_error(errno, format_args!("open directory {full}"));
            match errno {
                Errno::NOTDIR | Errno::LOOP => error.next(format!(
                    "move what is in place of the directory {full} away"
                )),
                _ => error,
            }
        })?;
        if let Some(group) = self.group.filter(|_| create)
            && shared::is_as_made(&handle, &full, group)?
            && is_empty(&handle, &full)?
        {
            self.share((&handle, &full), group, shared::DIRECTORY)?;
        }
        if create {
            shared::check_owner((&handle, &self.handle), &full, self.group)?;
        }
        let files = shared::group_of(&handle, &full)?;
        Ok(Arc::new(OsDir {
            handle,
            // Everything made beneath a shared directory is shared.
            group: self.group.or(files),
            files,
            path: self.path.join(name),
            anchor: self.anchor.join(name),
            last: AtFlags::SYMLINK_NOFOLLOW,
            failpoints: self.failpoints.clone(),
        }))
    }

    fn link(&self, name: &str) -> Result<Option<PathBuf>> {
        let full = self.begin("dir.look", "look at", name)?;
        let target = match retry(|| fs::readlinkat(&self.handle, name, Vec::new())) {
            Ok(target) => target_of(target),
            Err(Errno::INVAL | Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(rustix_error(errno, format_args!("look at {full}"))),
        };
        let stat = retry(|| fs::statat(&self.handle, name, AtFlags::empty()));
        let is_other =
            stat.is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) != FileType::Directory);
        Ok((!is_other).then_some(target))
    }

    fn remove_child(&self, name: &str) -> Result<()> {
        let full = self.begin("dir.remove", "remove directory", name)?;
        retry(|| fs::unlinkat(&self.handle, name, AtFlags::REMOVEDIR))
            .map_err(|errno| rustix_error(errno, format_args!("remove directory {full}")))?;
        let dir = &self.path;
        self.failpoints.done(Effect::Removed { dir, name });
        Ok(())
    }

    fn free_bytes(&self) -> Result<u64> {
        let stat = retry(|| fs::fstatvfs(&self.handle)).map_err(|errno| {
            rustix_error(
                errno,
                format_args!("ask for the free space of {}", self.path.display()),
            )
        })?;
        Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
    }

    fn read_only(&self) -> Result<bool> {
        let what = |errno| rustix_error(errno, format_args!("look at {}", self.path.display()));
        let stat = retry(|| fs::fstatvfs(self.handle.as_fd())).map_err(what)?;
        if stat.f_flag.contains(fs::StatVfsMountFlags::RDONLY) {
            return Ok(true);
        }
        let wanted = fs::Access::WRITE_OK | fs::Access::EXEC_OK;
        match fs::accessat(&self.handle, ".", wanted, AtFlags::empty()) {
            Ok(()) => Ok(false),
            Err(Errno::ACCESS | Errno::ROFS | Errno::PERM) => Ok(true),
            Err(errno) => Err(what(errno)),
        }
    }

    fn permits_writing(&self) -> Result<()> {
        let wanted = fs::Access::WRITE_OK | fs::Access::EXEC_OK;
        match fs::accessat(&self.handle, ".", wanted, AtFlags::empty()) {
            Err(errno @ (Errno::ACCESS | Errno::PERM)) => Err(rustix_error(
                errno,
                format_args!("write in directory {}", self.path.display()),
            )
            .next("run it as the user who owns the directory, or configure another directory")),
            _ => Ok(()),
        }
    }

    fn check_path(&self) -> Result<()> {
        let full = self.begin_here("dir.path", "look at")?;
        let own = retry(|| fs::fstat(&self.handle))
            .map_err(|errno| rustix_error(errno, format_args!("look at {full}")))?;
        let found = match retry(|| fs::statat(fs::CWD, &self.anchor, self.last)) {
            Ok(there) if (there.st_dev, there.st_ino) == (own.st_dev, own.st_ino) => return Ok(()),
            // Breaks if: only device numbers count; a file system that was mounted again would be
            // given up.
            Ok(there)
                if FileType::from_raw_mode(there.st_mode) == FileType::Directory
                    && self.seen_through_path()? =>
            {
                return Ok(());
            }
            Ok(_) => "another directory".to_owned(),
            Err(Errno::NOENT | Errno::NOTDIR) => "nothing".to_owned(),
            Err(errno) => format!(
                "what cannot be looked at ({})",
                errno_name(errno.raw_os_error())
            ),
        };
        if off(Switch::PathIsHandle) {
            return Ok(());
        }
        Err(Error::unavailable(format!(
            "directory {full} was moved away, replaced or unmounted: expected at this path the directory that this run \
             writes to, found {found}"
        ))
        .next("move it back or mount it again at this path"))
    }
}

fn is_empty(handle: &OwnedFd, full: &str) -> Result<bool> {
    let what = |errno| rustix_error(errno, format_args!("list {full}"));
    let again =
        retry(|| descriptor::openat(handle, ".", DIRECTORY, Mode::empty())).map_err(what)?;
    for found in fs::Dir::new(again).map_err(what)? {
        let found = found.map_err(what)?;
        if !matches!(found.file_name().to_bytes(), b"." | b"..") {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Corrupt for anything but a regular file: the file that belongs there is lost.
// Breaks if: it is Invalid, as for a wrong call; a restart would end with it instead of using
// another copy or an older step.
fn check_regular(stat: &fs::Stat, full: &str) -> Result<()> {
    let kind = FileType::from_raw_mode(stat.st_mode);
    if kind == FileType::RegularFile || off(Switch::RegularFile) {
        return Ok(());
    }
    Err(Error::corrupt(format!(
        "{full} refused: expected a regular file, found {}",
        kind_name(kind)
    ))
    .next("remove it, and find out who put it there"))
}

/// The name, in messages, of a file that is not a regular file.
pub fn kind_name(kind: FileType) -> &'static str {
    match kind {
        FileType::Directory => "a directory",
        FileType::Symlink => "a symbolic link",
        FileType::Fifo => "a FIFO",
        FileType::Socket => "a socket",
        FileType::CharacterDevice | FileType::BlockDevice => "a device",
        _ => "something else",
    }
}
