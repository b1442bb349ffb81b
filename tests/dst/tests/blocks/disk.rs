//! A disk of our own: a FUSE file system with one file, under a loop device.
//!
//! How: a forked child serves the file and gives every request, in the order in which it takes
//! them, to a [`Medium`]: one that records them, one that is slow, … The kernel believes that it
//! talks to a disk: a flush of the loop device is an fsync of the file, and a write with FUA is a
//! write followed by one, as loop devices have no FUA of their own.
//!
//! Invariants
//! 1. One request at a time, by one thread: what the medium saw before a flush was handed in before
//!    that flush.
//! 2. The server dies with its owner; the kernel then ends every request with an error.
//!
//! Not here: what is done with the requests.

use fuser::{
    Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, INodeNo, KernelConfig,
    LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyWrite,
    Request, Session, WriteFlags,
};
use orcheck_testing::Child;
use orcheck_testing::mount::{LoopDevice, detach, die_with_parent};
use std::ffi::OsStr;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, SystemTime};

/// What the disk is made of. An error becomes an I/O error of the device.
pub trait Medium: Send + 'static {
    /// Its size; a multiple of 4 KiB.
    fn len_bytes(&self) -> u64;
    /// Fills `bytes` from `at`.
    fn read(&mut self, at: u64, bytes: &mut [u8]) -> std::io::Result<()>;
    /// Takes `bytes` at `at`; volatile until the next flush.
    fn write(&mut self, at: u64, bytes: &[u8]) -> std::io::Result<()>;
    /// Makes a range zero; volatile as a write is.
    fn zero(&mut self, at: u64, len_bytes: u64) -> std::io::Result<()>;
    /// Makes everything written durable.
    fn flush(&mut self) -> std::io::Result<()>;
}

/// Name of the one file.
const NAME: &str = "disk";
const FILE: INodeNo = INodeNo(2);
/// Attributes never change.
const FOREVER: Duration = Duration::from_secs(1 << 20);

struct OneFile<M> {
    medium: Mutex<M>,
    len_bytes: u64,
}

impl<M> OneFile<M> {
    fn attributes(&self, ino: INodeNo) -> FileAttr {
        let dir = ino == INodeNo::ROOT;
        FileAttr {
            ino,
            size: if dir { 0 } else { self.len_bytes },
            blocks: if dir { 0 } else { self.len_bytes / 512 },
            atime: SystemTime::UNIX_EPOCH,
            mtime: SystemTime::UNIX_EPOCH,
            ctime: SystemTime::UNIX_EPOCH,
            crtime: SystemTime::UNIX_EPOCH,
            kind: if dir {
                FileType::Directory
            } else {
                FileType::RegularFile
            },
            perm: if dir { 0o700 } else { 0o600 },
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        }
    }
}

fn answer(done: std::io::Result<()>, reply: ReplyEmpty) {
    match done {
        Ok(()) => reply.ok(),
        Err(_) => reply.error(Errno::EIO),
    }
}

impl<M: Medium> Filesystem for OneFile<M> {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        // Refused only when it is more than the kernel takes, which then sends less.
        let _ = config.set_max_write(1 << 20);
        Ok(())
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        if parent == INodeNo::ROOT && name == NAME {
            reply.entry(&FOREVER, &self.attributes(FILE), fuser::Generation(0));
        } else {
            reply.error(Errno::ENOENT);
        }
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&FOREVER, &self.attributes(ino));
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        // Past the page cache: every request of the device is one here, in its size.
        reply.opened(FileHandle(0), FopenFlags::FOPEN_DIRECT_IO);
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let len = u64::from(size).min(self.len_bytes.saturating_sub(offset));
        let mut bytes = vec![0; len as usize];
        match self.medium.lock().unwrap().read(offset, &mut bytes) {
            Ok(()) => reply.data(&bytes),
            Err(_) => reply.error(Errno::EIO),
        }
    }

    fn write(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        if offset + data.len() as u64 > self.len_bytes {
            return reply.error(Errno::ENOSPC);
        }
        match self.medium.lock().unwrap().write(offset, data) {
            Ok(()) => reply.written(data.len() as u32),
            Err(_) => reply.error(Errno::EIO),
        }
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        answer(self.medium.lock().unwrap().flush(), reply);
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        // A close of the file, not a flush of the disk.
        reply.ok();
    }

    fn fallocate(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        length: u64,
        _: i32,
        reply: ReplyEmpty,
    ) {
        // Discards and zeroings: the loop device asks for nothing else.
        let length = length.min(self.len_bytes.saturating_sub(offset));
        answer(self.medium.lock().unwrap().zero(offset, length), reply);
    }
}

/// A disk that is being served. Dropped in the order of its fields: unmounting is the caller's
/// business and comes before, see [`Disk::attach`].
pub struct Disk {
    server: Child,
    dir: PathBuf,
}

impl Disk {
    /// Serves `medium` below `dir`, which must exist, be empty and lie in a mount table of our own.
    pub fn serve(medium: impl Medium, dir: &Path) -> Self {
        let (mut ready, mut tell) = std::io::pipe().unwrap();
        let target = dir.to_owned();
        let server = Child::run(move || {
            die_with_parent();
            let one_file = OneFile {
                len_bytes: medium.len_bytes(),
                medium: Mutex::new(medium),
            };
            let session = Session::new(one_file, &target, &Config::default()).unwrap();
            tell.write_all(b"!").unwrap();
            drop(tell);
            session.run().map_or(1, |()| 0)
        });
        let mut byte = [0];
        // Ends at once when the server dies: the child had the only other end, and ours is gone
        // with the closure.
        ready
            .read_exact(&mut byte)
            .expect("the FUSE server of the disk did not come up");
        Self {
            server,
            dir: dir.to_owned(),
        }
    }

    /// The disk as a block device. It and every mount of it must be gone before the disk is
    /// dropped.
    pub fn attach(&self) -> std::io::Result<LoopDevice> {
        LoopDevice::attach(&self.dir.join(NAME), 512, true)
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        self.server.kill();
        // Nobody answers any more; detaching needs nobody.
        let _ = detach(&self.dir);
    }
}
