//! Accesses the files and directories of a tree by what they are, for a file system that is stacked
//! on it: an [`Inode`] stays the same file under whatever name it gets, also without one.
//!
//! How: an inode is a descriptor that allows no access to contents (`O_PATH`). Whoever wants that
//! opens it through `/proc/self/fd`, with the permissions of this process. A child is found by one
//! name beneath its parent, and no symbolic link is followed. Errors are those of the kernel, as
//! they go back to a kernel.
//!
//! Invariants:
//! 1. While an [`Inode`] lives, the kernel gives its number to no other file.
//! 2. Every change passes a failpoint, whose target is the name that it concerns, or `#number`.
//!
//! Faults survived: interrupted calls; names that are replaced while they are looked up.
//!
//! Not here: reports of effects to a model of power cuts ([`Failpoints::done`]), as for our own
//! files; what a stacked file system is (`orcheck-mount`); files of Orcheck's own (`dir.rs`,
//! `file.rs`).

use crate::descriptor;
use crate::errno::retry;
use crate::failpoints::{Failpoints, Outcome};
use rustix::fs::{
    self, AtFlags, Dir, FallocateFlags, FileType, Gid, Mode, OFlags, RenameFlags, SeekFrom, Stat,
    StatVfs, StatxFlags, Timestamps, Uid, XattrFlags,
};
use rustix::io::Errno;
use std::ffi::{CString, OsStr};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;

/// What the kernel returned.
pub type Kernel<T> = std::result::Result<T, Errno>;

/// The flags of an open file that say how it may be accessed.
const ACCESS: OFlags = OFlags::RDONLY
    .union(OFlags::WRONLY)
    .union(OFlags::RDWR)
    .union(OFlags::APPEND)
    .union(OFlags::TRUNC)
    .union(OFlags::CREATE)
    .union(OFlags::EXCL);

/// A file, a directory or whatever else has a name.
pub struct Inode {
    fd: OwnedFd,
    points: Failpoints,
    target: String,
}

impl Inode {
    /// The directory at a path, as the root of a tree.
    pub fn root(path: &Path, points: Failpoints) -> Kernel<Inode> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = descriptor::open(path, flags, Mode::empty())?;
        Inode::new(fd, points)
    }

    fn new(fd: OwnedFd, points: Failpoints) -> Kernel<Inode> {
        let target = format!("#{}", fs::fstat(&fd)?.st_ino);
        Ok(Inode { fd, points, target })
    }

    /// Passes a failpoint.
    fn at(&self, site: &'static str, target: &str) -> Kernel<()> {
        at(&self.points, site, target).map(|_| ())
    }

    fn proc(&self) -> String {
        format!("/proc/self/fd/{}", self.fd.as_raw_fd())
    }

    /// What has this name in the directory.
    pub fn child(&self, name: &OsStr) -> Kernel<Inode> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = retry(|| descriptor::openat(&self.fd, name, flags, Mode::empty()))?;
        Inode::new(fd, self.points.clone())
    }

    /// Its attributes.
    pub fn stat(&self) -> Kernel<Stat> {
        fs::fstat(&self.fd)
    }

    /// When it was made, in nanoseconds since 1970; 0 where the file system does not say. Together
    /// with its number it is a name that no later file gets.
    pub fn born_ns(&self) -> Kernel<u64> {
        let found = fs::statx(&self.fd, "", AtFlags::EMPTY_PATH, StatxFlags::BTIME)?;
        if found.stx_mask & StatxFlags::BTIME.bits() == 0 {
            return Ok(0);
        }
        let seconds = u64::try_from(found.stx_btime.tv_sec).unwrap_or(0);
        Ok(seconds.wrapping_mul(1_000_000_000) + u64::from(found.stx_btime.tv_nsec))
    }

    /// Opens its contents with these flags; what concerns names and creation is left out of them.
    pub fn open(&self, flags: OFlags) -> Kernel<OwnedFd> {
        let flags = flags.difference(OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW);
        if flags.contains(OFlags::TRUNC) {
            self.at("inode.truncate", &self.target)?;
        }
        let flags = flags | OFlags::CLOEXEC | OFlags::NOCTTY;
        retry(|| descriptor::open(self.proc().as_str(), flags, Mode::empty()))
    }

    /// Creates a regular file, if need be, and opens it. Of the flags, only those of access and
    /// creation count.
    pub fn create(&self, name: &OsStr, flags: OFlags, mode: u32) -> Kernel<OwnedFd> {
        self.at("inode.create", &text(name))?;
        let flags = flags.intersection(ACCESS) | OFlags::CREATE | OFlags::NOFOLLOW;
        let flags = flags | OFlags::CLOEXEC | OFlags::NOCTTY;
        retry(|| descriptor::openat(&self.fd, name, flags, Mode::from_raw_mode(mode)))
    }

    /// Makes a directory.
    pub fn make_dir(&self, name: &OsStr, mode: u32) -> Kernel<()> {
        self.at("inode.mkdir", &text(name))?;
        fs::mkdirat(&self.fd, name, Mode::from_raw_mode(mode))
    }

    /// Makes a file, a pipe, a socket or a device.
    pub fn make_node(&self, name: &OsStr, mode: u32, device: u64) -> Kernel<()> {
        self.at("inode.mknod", &text(name))?;
        let kind = FileType::from_raw_mode(mode);
        fs::mknodat(&self.fd, name, kind, Mode::from_raw_mode(mode), device)
    }

    /// Makes a symbolic link.
    pub fn make_link(&self, name: &OsStr, to: &Path) -> Kernel<()> {
        self.at("inode.symlink", &text(name))?;
        fs::symlinkat(to, &self.fd, name)
    }

    /// Gives it another name, in `dir`.
    pub fn link(&self, dir: &Inode, name: &OsStr) -> Kernel<()> {
        self.at("inode.link", &text(name))?;
        // The first takes a privilege where it is not a file that this process opened.
        match fs::linkat(&self.fd, "", &dir.fd, name, AtFlags::EMPTY_PATH) {
            Err(Errno::NOENT | Errno::PERM) => fs::linkat(
                fs::CWD,
                self.proc().as_str(),
                &dir.fd,
                name,
                AtFlags::SYMLINK_FOLLOW,
            ),
            other => other,
        }
    }

    /// Removes a name from the directory.
    pub fn remove(&self, name: &OsStr, directory: bool) -> Kernel<()> {
        self.at("inode.remove", &text(name))?;
        let flags = match directory {
            true => AtFlags::REMOVEDIR,
            false => AtFlags::empty(),
        };
        fs::unlinkat(&self.fd, name, flags)
    }

    /// Moves `name` of this directory to `new` of another one.
    pub fn rename(&self, name: &OsStr, dir: &Inode, new: &OsStr, flags: u32) -> Kernel<()> {
        self.at("inode.rename", &text(new))?;
        let flags = RenameFlags::from_bits(flags).ok_or(Errno::INVAL)?;
        fs::renameat_with(&self.fd, name, &dir.fd, new, flags)
    }

    /// What a symbolic link says.
    pub fn read_link(&self) -> Kernel<CString> {
        fs::readlinkat(&self.fd, "", Vec::new())
    }

    /// Sets permissions.
    pub fn set_mode(&self, mode: u32) -> Kernel<()> {
        self.at("inode.chmod", &self.target)?;
        fs::chmod(self.proc().as_str(), Mode::from_raw_mode(mode))
    }

    /// Sets the owner and the group.
    pub fn set_owner(&self, owner: Option<u32>, group: Option<u32>) -> Kernel<()> {
        self.at("inode.chown", &self.target)?;
        let (owner, group) = (owner.map(Uid::from_raw), group.map(Gid::from_raw));
        fs::chownat(&self.fd, "", owner, group, AtFlags::EMPTY_PATH)
    }

    /// Sets the times of the last access and of the last change of contents.
    pub fn set_times(&self, times: &Timestamps) -> Kernel<()> {
        self.at("inode.utime", &self.target)?;
        match fs::utimensat(&self.fd, "", times, AtFlags::EMPTY_PATH) {
            // Linux before 5.8; it cannot be done for a symbolic link there.
            Err(Errno::INVAL) => {
                fs::utimensat(fs::CWD, self.proc().as_str(), times, AtFlags::empty())
            }
            other => other,
        }
    }

    /// Its file system's totals.
    pub fn space(&self) -> Kernel<StatVfs> {
        fs::fstatvfs(&self.fd)
    }

    /// An extended attribute.
    pub fn attribute(&self, name: &OsStr) -> Kernel<Vec<u8>> {
        let path = self.proc();
        let mut value = vec![0; fs::getxattr_query(path.as_str(), name)?];
        let len = fs::getxattr(path.as_str(), name, value.as_mut_slice())?;
        value.truncate(len);
        Ok(value)
    }

    /// The names of its extended attributes, each followed by a zero byte.
    pub fn attributes(&self) -> Kernel<Vec<u8>> {
        let path = self.proc();
        let mut names = vec![0; fs::listxattr_query(path.as_str())?];
        let len = fs::listxattr(path.as_str(), names.as_mut_slice())?;
        names.truncate(len);
        Ok(names)
    }

    /// Sets an extended attribute; `flags` are those of setxattr.
    pub fn set_attribute(&self, name: &OsStr, value: &[u8], flags: u32) -> Kernel<()> {
        self.at("inode.setxattr", &self.target)?;
        let flags = XattrFlags::from_bits(flags).ok_or(Errno::INVAL)?;
        fs::setxattr(self.proc().as_str(), name, value, flags)
    }

    /// Removes an extended attribute.
    pub fn remove_attribute(&self, name: &OsStr) -> Kernel<()> {
        self.at("inode.removexattr", &self.target)?;
        fs::removexattr(self.proc().as_str(), name)
    }

    /// Opens a directory to list it.
    pub fn list(&self) -> Kernel<Dir> {
        Dir::new(self.open(OFlags::RDONLY | OFlags::DIRECTORY)?)
    }

    /// Makes the names in a directory durable.
    pub fn sync_names(&self) -> Kernel<()> {
        self.at("inode.syncdir", &self.target)?;
        retry(|| fs::fsync(self.open(OFlags::RDONLY | OFlags::DIRECTORY)?))
    }

    /// Makes everything durable that is in the file system of a directory.
    pub fn sync_file_system(&self) -> Kernel<()> {
        self.at("inode.syncfs", &self.target)?;
        retry(|| fs::syncfs(self.open(OFlags::RDONLY | OFlags::DIRECTORY)?))
    }
}

fn text(name: &OsStr) -> String {
    name.to_string_lossy().into_owned()
}

fn at(points: &Failpoints, site: &'static str, target: &str) -> Kernel<Option<usize>> {
    match points.outcome(site, target) {
        Outcome::Go | Outcome::Pretend => Ok(None),
        Outcome::Short(count) => Ok(Some(count)),
        Outcome::Fail(errno) => Err(Errno::from_raw_os_error(errno)),
    }
}

/// The contents of an inode, open.
pub struct Contents {
    fd: OwnedFd,
    points: Failpoints,
    target: String,
}

impl Contents {
    /// Of a file that [`Inode::open`] or [`Inode::create`] opened; `target` is its name for
    /// failpoints.
    #[must_use]
    pub fn new(fd: OwnedFd, points: &Failpoints, target: &str) -> Contents {
        Contents {
            fd,
            points: points.clone(),
            target: target.to_owned(),
        }
    }

    /// The descriptor, to be handed to the kernel.
    #[must_use]
    pub fn descriptor(&self) -> &OwnedFd {
        &self.fd
    }

    /// Its attributes.
    pub fn stat(&self) -> Kernel<Stat> {
        fs::fstat(&self.fd)
    }

    /// Reads up to `into.len()` bytes at an offset; fewer only at the end of the file.
    pub fn read(&self, into: &mut [u8], offset: u64) -> Kernel<usize> {
        let mut done = 0;
        while done < into.len() {
            let at = offset + done as u64;
            match retry(|| rustix::io::pread(&self.fd, &mut into[done..], at))? {
                0 => break,
                count => done += count,
            }
        }
        Ok(done)
    }

    /// Writes at an offset and returns how much, which is less only before an error.
    pub fn write(&self, bytes: &[u8], offset: u64) -> Kernel<usize> {
        let mut done = 0;
        while done < bytes.len() {
            let limit = match at(&self.points, "inode.write", &self.target) {
                Ok(limit) => limit.unwrap_or(usize::MAX).max(1),
                Err(errno) => return if done == 0 { Err(errno) } else { Ok(done) },
            };
            let end = bytes.len().min(done.saturating_add(limit));
            match retry(|| rustix::io::pwrite(&self.fd, &bytes[done..end], offset + done as u64)) {
                Ok(0) => return Err(Errno::IO),
                Ok(count) => done += count,
                Err(_) if done > 0 => return Ok(done),
                Err(errno) => return Err(errno),
            }
        }
        Ok(done)
    }

    /// Writes all of it.
    pub fn write_all(&self, mut bytes: &[u8], mut offset: u64) -> Kernel<()> {
        while !bytes.is_empty() {
            let count = self.write(bytes, offset)?;
            bytes = &bytes[count..];
            offset += count as u64;
        }
        Ok(())
    }

    /// Lets the disk begin with what was written there, without waiting for it. Nothing depends on
    /// it.
    #[allow(unsafe_code)]
    pub fn begin_writing(&self, offset: u64, len: u64) {
        let (fd, flags) = (self.fd.as_raw_fd(), libc::SYNC_FILE_RANGE_WRITE);
        if let (Ok(offset), Ok(len)) = (i64::try_from(offset), i64::try_from(len)) {
            // SAFETY: takes numbers only.
            unsafe { libc::sync_file_range(fd, offset, len, flags) };
        }
    }

    /// Sets the length.
    pub fn set_len(&self, len: u64) -> Kernel<()> {
        at(&self.points, "inode.truncate", &self.target)?;
        retry(|| fs::ftruncate(&self.fd, len))
    }

    /// Reserves, frees, moves or zeroes space; `mode` is that of fallocate.
    pub fn allocate(&self, mode: u32, offset: u64, len: u64) -> Kernel<()> {
        at(&self.points, "inode.allocate", &self.target)?;
        let mode = FallocateFlags::from_bits(mode).ok_or(Errno::OPNOTSUPP)?;
        retry(|| fs::fallocate(&self.fd, mode, offset, len))
    }

    /// Makes the contents durable, and with `all` the attributes too.
    pub fn sync(&self, all: bool) -> Kernel<()> {
        match self.points.outcome("inode.sync", &self.target) {
            Outcome::Pretend => return Ok(()),
            Outcome::Fail(errno) => return Err(Errno::from_raw_os_error(errno)),
            Outcome::Go | Outcome::Short(_) => {}
        }
        match all {
            true => retry(|| fs::fsync(&self.fd)),
            false => retry(|| fs::fdatasync(&self.fd)),
        }
    }

    /// Where the next data, or the next hole, is at or after an offset. ENXIO: there is none.
    pub fn seek(&self, offset: u64, hole: bool) -> Kernel<u64> {
        let from = match hole {
            true => SeekFrom::Hole(offset),
            false => SeekFrom::Data(offset),
        };
        fs::seek(&self.fd, from)
    }

    /// Copies within the kernel; returns how much.
    pub fn copy_to(&self, from: u64, to: &Contents, at_offset: u64, len: usize) -> Kernel<usize> {
        at(&to.points, "inode.write", &to.target)?;
        let (mut from, mut into) = (from, at_offset);
        retry(|| {
            fs::copy_file_range(
                self.fd.as_fd(),
                Some(&mut from),
                to.fd.as_fd(),
                Some(&mut into),
                len,
            )
        })
    }

    /// Sets the times of the last access and of the last change.
    pub fn set_times(&self, times: &Timestamps) -> Kernel<()> {
        at(&self.points, "inode.utime", &self.target)?;
        fs::futimens(&self.fd, times)
    }
}
