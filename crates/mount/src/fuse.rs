//! Answers the kernel's requests.
//!
//! How: each request is one call of [`Stacked`]; several threads answer at once. What is not
//! supported is refused with the number that POSIX has for it: locks across nodes are not (the
//! kernel keeps those of this machine), nor are access control lists and `ioctl`.
//!
//! Invariants:
//! 1. Each request is answered once.
//! 2. What the kernel was given (a node, an open file) and does not learn of is taken back.
//!
//! Not here: what the calls do (`stacked.rs`).

use crate::node::{Handle, Node, Way};
use crate::stacked::{Change, How, Opened, Stacked};
use crate::tree::{ROOT, attributes, kind};
use fuser::{
    BsdFileFlags, CopyFileRangeFlags, Errno, FileAttr, FileHandle, Filesystem, FopenFlags,
    Generation, INodeNo, InitFlags, KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr,
    ReplyCreate, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyLseek, ReplyOpen,
    ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use orcheck_io::disk::Kernel;
use orcheck_io::machine::thread::without_mode_mask;
use rustix::fs::{OFlags, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT};
use std::cell::RefCell;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// How long the kernel believes what it was told. Changes that others make in the backing directory
/// are seen after that.
const BELIEVED: Duration = Duration::from_secs(1);
/// The longest piece of one request.
const REQUEST_BYTES: u32 = 1 << 20;
/// Requests that the kernel may have under way at once for what nobody waits for.
const BACKGROUND: u16 = 64;
/// Attributes with a meaning for permissions that the kernel would not heed here.
const LISTS: &[u8] = b"system.posix_acl_";

thread_local! {
    /// What is read, on its way to the kernel: at most one request's.
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// The answers of a mount.
pub struct Answers {
    stacked: Arc<Stacked>,
    how: How,
}

impl Answers {
    /// Answers for these files.
    pub fn new(stacked: Arc<Stacked>, how: How) -> Self {
        Answers { stacked, how }
    }

    fn found(&self, node: Kernel<Arc<Node>>) -> Kernel<FileAttr> {
        let node = node?;
        attributes(&node).inspect_err(|_| self.stacked.tree.forget(node.number, 1))
    }

    fn handle(&self, number: FileHandle) -> Kernel<Arc<Handle>> {
        self.stacked.handle(number.0)
    }

    fn flags(opened: &Opened) -> FopenFlags {
        match opened.direct {
            true => FopenFlags::FOPEN_DIRECT_IO,
            false => FopenFlags::empty(),
        }
    }
}

fn number(errno: rustix::io::Errno) -> Errno {
    Errno::from_i32(errno.raw_os_error())
}

fn open_flags(flags: i32) -> OFlags {
    OFlags::from_bits_retain(flags as u32)
}

fn empty(reply: ReplyEmpty, done: Kernel<()>) {
    match done {
        Ok(()) => reply.ok(),
        Err(errno) => reply.error(number(errno)),
    }
}

fn entry(reply: ReplyEntry, found: Kernel<FileAttr>) {
    match found {
        Ok(found) => reply.entry(&BELIEVED, &found, Generation(0)),
        Err(errno) => reply.error(number(errno)),
    }
}

fn attr(reply: ReplyAttr, found: Kernel<FileAttr>) {
    match found {
        Ok(found) => reply.attr(&BELIEVED, &found),
        Err(errno) => reply.error(number(errno)),
    }
}

fn value(reply: ReplyXattr, size: u32, found: Kernel<Vec<u8>>) {
    match found {
        Ok(found) if size == 0 => reply.size(found.len() as u32),
        Ok(found) if found.len() <= size as usize => reply.data(&found),
        Ok(_) => reply.error(Errno::ERANGE),
        Err(errno) => reply.error(number(errno)),
    }
}

fn timespec(time: Option<TimeOrNow>) -> Timespec {
    let special = |tv_nsec| Timespec { tv_sec: 0, tv_nsec };
    let at = match time {
        None => return special(UTIME_OMIT),
        Some(TimeOrNow::Now) => return special(UTIME_NOW),
        Some(TimeOrNow::SpecificTime(at)) => at,
    };
    match at.duration_since(UNIX_EPOCH) {
        Ok(after) => Timespec {
            tv_sec: after.as_secs() as i64,
            tv_nsec: i64::from(after.subsec_nanos()),
        },
        Err(before) => {
            let before = before.duration();
            let part = i64::from(before.subsec_nanos());
            let borrow = i64::from(part > 0);
            Timespec {
                tv_sec: -(before.as_secs() as i64) - borrow,
                tv_nsec: borrow * 1_000_000_000 - part,
            }
        }
    }
}

/// The kernel has applied the mask of the program already.
fn unmasked() -> Kernel<()> {
    without_mode_mask().map_err(|_| rustix::io::Errno::NOMEM)
}

fn refused(name: &OsStr) -> Kernel<()> {
    match name.as_bytes().starts_with(LISTS) {
        true => Err(rustix::io::Errno::OPNOTSUPP),
        false => Ok(()),
    }
}

impl Filesystem for Answers {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        // What a kernel does not have is left out; the defaults of its time hold.
        let _ = config.set_max_write(REQUEST_BYTES);
        let _ = config.set_max_readahead(REQUEST_BYTES);
        let _ = config.set_max_background(BACKGROUND);
        let wanted = [
            InitFlags::FUSE_ATOMIC_O_TRUNC,
            InitFlags::FUSE_PARALLEL_DIROPS,
            InitFlags::FUSE_HANDLE_KILLPRIV_V2,
            InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP,
            InitFlags::FUSE_AUTO_INVAL_DATA,
        ];
        for flag in wanted {
            let _ = config.add_capabilities(flag);
        }
        if self.how.write_back
            && config
                .add_capabilities(InitFlags::FUSE_WRITEBACK_CACHE)
                .is_err()
        {
            return Err(std::io::Error::from_raw_os_error(
                rustix::io::Errno::OPNOTSUPP.raw_os_error(),
            ));
        }
        if self.how.passthrough && config.add_capabilities(InitFlags::FUSE_PASSTHROUGH).is_ok() {
            let _ = config.set_max_stack_depth(2);
        }
        Ok(())
    }

    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let parent = self.stacked.tree.node(parent.0);
        let node = parent.and_then(|parent| self.stacked.tree.look_up(&parent, name));
        entry(reply, self.found(node));
    }

    fn forget(&self, _request: &Request, ino: INodeNo, times: u64) {
        self.stacked.tree.forget(ino.0, times);
    }

    fn getattr(&self, _request: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        attr(
            reply,
            self.stacked
                .tree
                .node(ino.0)
                .and_then(|node| attributes(&node)),
        );
    }

    fn setattr(
        &self,
        request: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        owner: Option<u32>,
        group: Option<u32>,
        len: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        handle: Option<FileHandle>,
        _created: Option<SystemTime>,
        _changed: Option<SystemTime>,
        _backup: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let times = (atime.is_some() || mtime.is_some()).then(|| Timestamps {
            last_access: timespec(atime),
            last_modification: timespec(mtime),
        });
        let change = Change {
            mode,
            owner,
            group,
            len,
            times,
            process: request.pid(),
        };
        let done = || -> Kernel<FileAttr> {
            let handle = handle.map(|handle| self.handle(handle)).transpose()?;
            let node = self.stacked.tree.node(ino.0)?;
            if (len.is_some() || owner.is_some() || group.is_some())
                && mode.is_none()
                && request.uid() != 0
            {
                self.stacked.drop_set_id(&node)?;
            }
            self.stacked.change(ino.0, handle.as_deref(), &change)?;
            attributes(&node)
        };
        attr(reply, done());
    }

    fn readlink(&self, _request: &Request, ino: INodeNo, reply: ReplyData) {
        match self
            .stacked
            .tree
            .node(ino.0)
            .and_then(|node| node.inode.read_link())
        {
            Ok(link) => reply.data(link.to_bytes()),
            Err(errno) => reply.error(number(errno)),
        }
    }

    fn mknod(
        &self,
        _request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        device: u32,
        reply: ReplyEntry,
    ) {
        let made = unmasked().and_then(|()| {
            self.stacked
                .make_node(parent.0, name, mode, u64::from(device))
        });
        entry(reply, self.found(made));
    }

    fn mkdir(
        &self,
        _request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        reply: ReplyEntry,
    ) {
        let made = unmasked().and_then(|()| self.stacked.make_dir(parent.0, name, mode));
        entry(reply, self.found(made));
    }

    fn unlink(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        empty(reply, self.stacked.remove(parent.0, name, false));
    }

    fn rmdir(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        empty(reply, self.stacked.remove(parent.0, name, true));
    }

    fn symlink(
        &self,
        _request: &Request,
        parent: INodeNo,
        name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        entry(
            reply,
            self.found(self.stacked.make_link(parent.0, name, target)),
        );
    }

    fn rename(
        &self,
        _request: &Request,
        parent: INodeNo,
        name: &OsStr,
        to: INodeNo,
        new: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let done = self
            .stacked
            .rename((parent.0, name), (to.0, new), flags.bits());
        empty(reply, done);
    }

    fn link(
        &self,
        _request: &Request,
        ino: INodeNo,
        parent: INodeNo,
        name: &OsStr,
        reply: ReplyEntry,
    ) {
        entry(reply, self.found(self.stacked.link(ino.0, parent.0, name)));
    }

    fn open(&self, request: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let flags = open_flags(flags.0);
        let register = |fd: std::os::fd::BorrowedFd| reply.open_backing(fd);
        let opened = || -> Kernel<Opened> {
            if flags.contains(OFlags::TRUNC) && request.uid() != 0 {
                self.stacked.drop_set_id(&*self.stacked.tree.node(ino.0)?)?;
            }
            self.stacked.open(ino.0, flags, &register)
        };
        match opened() {
            Ok(opened) => match &opened.way {
                Way::Kernel(id) => {
                    reply.opened_passthrough(FileHandle(opened.handle), FopenFlags::empty(), id);
                }
                Way::Process => reply.opened(FileHandle(opened.handle), Self::flags(&opened)),
            },
            Err(errno) => reply.error(number(errno)),
        }
    }

    fn create(
        &self,
        _request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let register = |fd: std::os::fd::BorrowedFd| reply.open_backing(fd);
        let made = || -> Kernel<(Opened, FileAttr)> {
            unmasked()?;
            let flags = open_flags(flags);
            let opened = self
                .stacked
                .create(parent.0, name, flags, mode, &register)?;
            match attributes(&opened.node) {
                Ok(attributes) => Ok((opened, attributes)),
                Err(errno) => {
                    self.stacked.close(opened.handle);
                    self.stacked.tree.forget(opened.node.number, 1);
                    Err(errno)
                }
            }
        };
        match made() {
            Ok((opened, found)) => {
                let handle = FileHandle(opened.handle);
                match &opened.way {
                    Way::Kernel(id) => reply.created_passthrough(
                        &BELIEVED,
                        &found,
                        Generation(0),
                        handle,
                        FopenFlags::empty(),
                        id,
                    ),
                    Way::Process => {
                        let flags = Self::flags(&opened);
                        reply.created(&BELIEVED, &found, Generation(0), handle, flags);
                    }
                }
            }
            Err(errno) => reply.error(number(errno)),
        }
    }

    fn read(
        &self,
        _request: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        BUFFER.with_borrow_mut(|buffer| {
            let size = size as usize;
            if buffer.len() < size {
                buffer.resize(size, 0);
            }
            let read = self.handle(handle);
            match read.and_then(|handle| self.stacked.read(&handle, offset, &mut buffer[..size])) {
                Ok(count) => reply.data(&buffer[..count]),
                Err(errno) => reply.error(number(errno)),
            }
        });
    }

    fn write(
        &self,
        request: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        bytes: &[u8],
        write_flags: WriteFlags,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let written = self.handle(handle).and_then(|handle| {
            if write_flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID) {
                self.stacked.drop_set_id(&handle.node)?;
            }
            self.stacked.write(&handle, offset, bytes, request.pid())
        });
        match written {
            Ok(count) => reply.written(count as u32),
            Err(errno) => reply.error(number(errno)),
        }
    }

    fn flush(
        &self,
        request: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        _owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        let by = request.pid();
        empty(
            reply,
            self.handle(handle)
                .and_then(|handle| self.stacked.report_at_close(&handle, by)),
        );
    }

    fn release(
        &self,
        _request: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        self.stacked.close(handle.0);
        reply.ok();
    }

    fn fsync(
        &self,
        request: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        _data: bool,
        reply: ReplyEmpty,
    ) {
        let synced = self.handle(handle);
        empty(
            reply,
            synced.and_then(|handle| self.stacked.sync(&handle, request.pid())),
        );
    }

    fn opendir(&self, _request: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        match self.stacked.open_dir(ino.0) {
            Ok(handle) => reply.opened(FileHandle(handle), FopenFlags::empty()),
            Err(errno) => reply.error(number(errno)),
        }
    }

    fn readdir(
        &self,
        _request: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let listed = self.stacked.directory(handle.0).and_then(|directory| {
            let mut directory = directory.lock().unwrap_or_else(PoisonError::into_inner);
            directory.read(offset, &mut |entry| {
                let found = kind(entry.kind);
                reply.add(INodeNo(entry.number), entry.next, found, entry.name)
            })
        });
        match listed {
            Ok(()) => reply.ok(),
            Err(errno) => reply.error(number(errno)),
        }
    }

    fn releasedir(
        &self,
        _request: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        _flags: OpenFlags,
        reply: ReplyEmpty,
    ) {
        self.stacked.close_dir(handle.0);
        reply.ok();
    }

    fn fsyncdir(
        &self,
        _request: &Request,
        ino: INodeNo,
        _handle: FileHandle,
        _data: bool,
        reply: ReplyEmpty,
    ) {
        let all = match ino.0 {
            ROOT => self.stacked.make_all_durable(),
            _ => Ok(()),
        };
        empty(reply, all.and(self.stacked.sync_dir(ino.0)));
    }

    fn statfs(&self, _request: &Request, ino: INodeNo, reply: ReplyStatfs) {
        match self
            .stacked
            .tree
            .node(ino.0)
            .and_then(|node| node.inode.space())
        {
            Ok(space) => reply.statfs(
                space.f_blocks,
                space.f_bfree,
                space.f_bavail,
                space.f_files,
                space.f_ffree,
                space.f_bsize as u32,
                space.f_namemax as u32,
                space.f_frsize as u32,
            ),
            Err(errno) => reply.error(number(errno)),
        }
    }

    fn setxattr(
        &self,
        _request: &Request,
        ino: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        let set = || -> Kernel<()> {
            refused(name)?;
            let node = self.stacked.tree.node(ino.0)?;
            node.inode.set_attribute(name, value, flags as u32)
        };
        empty(reply, set());
    }

    fn getxattr(
        &self,
        _request: &Request,
        ino: INodeNo,
        name: &OsStr,
        size: u32,
        reply: ReplyXattr,
    ) {
        let found = || -> Kernel<Vec<u8>> {
            refused(name)?;
            self.stacked.tree.node(ino.0)?.inode.attribute(name)
        };
        value(reply, size, found());
    }

    fn listxattr(&self, _request: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        let found = || -> Kernel<Vec<u8>> {
            let names = self.stacked.tree.node(ino.0)?.inode.attributes()?;
            let kept = names.split_inclusive(|byte| *byte == 0);
            Ok(kept
                .filter(|name| !name.starts_with(LISTS))
                .flatten()
                .copied()
                .collect())
        };
        value(reply, size, found());
    }

    fn removexattr(&self, _request: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let removed = || -> Kernel<()> {
            refused(name)?;
            self.stacked.tree.node(ino.0)?.inode.remove_attribute(name)
        };
        empty(reply, removed());
    }

    fn fallocate(
        &self,
        _request: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let done = self.handle(handle);
        let done =
            done.and_then(|handle| self.stacked.allocate(&handle, mode as u32, offset, length));
        empty(reply, done);
    }

    fn lseek(
        &self,
        _request: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        /// SEEK_HOLE; the kernel asks for nothing but that and SEEK_DATA.
        const HOLE: i32 = 4;
        if self.how.write_back {
            // What the kernel keeps back would seem to be a hole; it finds an answer of its own.
            return reply.error(Errno::ENOSYS);
        }
        let found = self.handle(handle);
        match found.and_then(|handle| handle.with(|file| file.seek(offset as u64, whence == HOLE)))
        {
            Ok(at) => reply.offset(at as i64),
            Err(errno) => reply.error(number(errno)),
        }
    }

    fn copy_file_range(
        &self,
        _request: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        _to: INodeNo,
        to_handle: FileHandle,
        to_offset: u64,
        len: u64,
        _flags: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        let done = || -> Kernel<usize> {
            let (from, to) = (self.handle(handle)?, self.handle(to_handle)?);
            self.stacked.copy((&from, offset), (&to, to_offset), len)
        };
        match done() {
            Ok(count) => reply.written(count as u32),
            Err(errno) => reply.error(number(errno)),
        }
    }
}
