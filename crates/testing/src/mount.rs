//! Real file systems for tests: loop devices, mounts, and a mount table of one's own.
//!
//! How: a test process first gets a [`MountNamespace`], with mounts of its own, then attaches image
//! files to loop devices and mounts what is on them. All of it needs root; [`mounting_refused`]
//! says why it cannot be had.
//!
//! Invariants
//! 1. Nothing is seen outside the process and its children, and nothing outlives them: the kernel
//!    takes the mounts with the last process of the table, and a loop device with its last user,
//!    also after SIGKILL.
//! 2. Every wait for a busy file system has a bound, after which it is detached.
//!
//! Faults survived: a panic or a kill of the test at any moment.
//!
//! Not here: making file systems (the programs `mkfs.*` do), and what is tried on them.

use super::Scratch;
use orcheck_io::clock::Deadline;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::ffi::CString;
use std::io::{Error, Result};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Longest wait for a file system that is still in use.
const BUSY: Duration = Duration::from_secs(20);
/// Attempts to get a loop device before somebody else does.
const ATTEMPTS: u32 = 100;

/// Why this process cannot mount anything; `None` when it can. Looks, and changes nothing.
#[must_use]
pub fn mounting_refused() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("mounting a file system takes root".to_owned());
    }
    for path in ["/dev/loop-control", "/dev/fuse"] {
        if let Err(errno) = rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()) {
            return Some(format!("{path}: {errno}"));
        }
    }
    None
}

/// Whether a program is in one of the directories where administration programs are.
#[must_use]
pub fn program_exists(name: &str) -> bool {
    ["/usr/sbin", "/sbin", "/usr/bin", "/bin", "/usr/local/sbin"]
        .iter()
        .any(|dir| Path::new(dir).join(name).exists())
}

/// Makes this process die with the one that forked it.
pub fn die_with_parent() {
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
}

/// From now on mounts of this process are its own; they vanish with it. Needs root.
///
/// # Errors
/// What the kernel says.
pub fn own_mounts() -> Result<()> {
    // SAFETY: takes an integer only.
    if unsafe { libc::unshare(libc::CLONE_NEWNS) } != 0 {
        return Err(Error::last_os_error());
    }
    // Makes later mounts invisible outside.
    mount_call("", Path::new("/"), "", libc::MS_REC | libc::MS_PRIVATE, "")
}

/// What is mounted over a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mount {
    /// Memory of at most this many bytes.
    Small(u64),
    /// The same mount with another size.
    Resized(u64),
    /// A file system without direct I/O and without reserving space.
    Simple,
    /// What is there, but nobody may write.
    ReadOnly,
}

/// Mounts over an existing directory, until [`detach`]; after [`own_mounts`].
///
/// # Errors
/// What the kernel says.
pub fn mount_over(at: &Path, how: Mount) -> Result<()> {
    let place = at.display().to_string();
    let (bind, remount) = (libc::MS_BIND, libc::MS_REMOUNT);
    match how {
        Mount::Small(len) => mount_call("tmpfs", at, "tmpfs", 0, &format!("size={len}")),
        Mount::Resized(len) => mount_call("tmpfs", at, "tmpfs", remount, &format!("size={len}")),
        Mount::Simple => mount_call("ramfs", at, "ramfs", 0, ""),
        Mount::ReadOnly => mount_call(&place, at, "", bind, "")
            .and_then(|()| mount_call(&place, at, "", bind | remount | libc::MS_RDONLY, "")),
    }
}

/// Mounts a directory over `at`, as itself, until [`detach`]; after [`own_mounts`].
///
/// # Errors
/// What the kernel says.
pub fn mount_bound(dir: &Path, at: &Path) -> Result<()> {
    mount_call(&dir.display().to_string(), at, "", libc::MS_BIND, "")
}

/// Mounts over `at` what shows the files of `dir` under another device number, as a second mount of
/// a network file system does; `beside` takes what that needs. Until [`detach`]; after
/// [`own_mounts`].
///
/// # Errors
/// What the kernel says.
pub fn mount_again(dir: &Path, at: &Path, beside: &Path) -> Result<()> {
    let [lower, work] = ["lower", "work"].map(|name| beside.join(name));
    for made in [&lower, &work] {
        std::fs::create_dir_all(made)?;
    }
    let options = format!(
        "lowerdir={},upperdir={},workdir={}",
        lower.display(),
        dir.display(),
        work.display()
    );
    mount_call("overlay", at, "overlay", 0, &options)
}

/// A directory in memory that only this process and its children see, in a mount table of their
/// own.
#[derive(Debug)]
pub struct MountNamespace {
    memory: Option<Mounted>,
    scratch: Scratch,
}

impl MountNamespace {
    /// Makes one; a process needs no second.
    ///
    /// # Errors
    /// What the kernel says; it takes root.
    pub fn new() -> Result<Self> {
        own_mounts()?;
        sweep();
        let scratch = Scratch::new(ROOM);
        let memory = Some(Mounted::in_memory(scratch.path())?);
        Ok(Self { memory, scratch })
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.scratch.path()
    }
}

impl Drop for MountNamespace {
    fn drop(&mut self) {
        self.memory.take();
    }
}

const ROOM: &str = "room";

/// Of a room whose process was killed nothing is left but the empty directory below it.
fn sweep() {
    let Ok(entries) = std::fs::read_dir(std::env::temp_dir()) else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let owner = name
            .strip_prefix("orcheck-")
            .and_then(|rest| rest.strip_prefix(ROOM))
            .and_then(|rest| rest.split('-').nth(1)?.parse::<u32>().ok());
        if owner.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
            // Refused when there is anything in it.
            let _ = std::fs::remove_dir(entry.path());
        }
    }
}

/// A file as a block device. It is given back when nobody has it open any more.
#[derive(Debug)]
pub struct LoopDevice {
    /// Keeps the device; opened for reading only, as a mounted device may refuse other writers.
    handle: OwnedFd,
    path: PathBuf,
}

/// As in `linux/loop.h`.
#[repr(C)]
struct LoopConfig {
    fd: u32,
    block_bytes: u32,
    device: [u64; 5],
    number: u32,
    encrypt: [u32; 2],
    flags: u32,
    names: [u8; 160],
    init: [u64; 2],
    reserved: [u64; 8],
}

const LOOP_CONFIGURE: u64 = 0x4C0A;
const LOOP_CTL_GET_FREE: u64 = 0x4C82;
const AUTOCLEAR: u32 = 4;
const DIRECT_IO: u32 = 16;

impl LoopDevice {
    /// Attaches `file` with logical blocks of `block_bytes`; with `direct` the kernel reads and
    /// writes it past the page cache.
    ///
    /// # Errors
    /// What the kernel says, or that other programs took every free device.
    pub fn attach(file: &Path, block_bytes: u32, direct: bool) -> Result<Self> {
        let direct_flag = if direct {
            OFlags::DIRECT
        } else {
            OFlags::empty()
        };
        let backing = rustix::fs::open(
            file,
            OFlags::RDWR | OFlags::CLOEXEC | direct_flag,
            Mode::empty(),
        )?;
        let control = rustix::fs::open(
            "/dev/loop-control",
            OFlags::RDWR | OFlags::CLOEXEC,
            Mode::empty(),
        )?;
        let config = LoopConfig {
            fd: backing.as_raw_fd().cast_unsigned(),
            block_bytes,
            device: [0; 5],
            number: 0,
            encrypt: [0; 2],
            flags: AUTOCLEAR | if direct { DIRECT_IO } else { 0 },
            names: [0; 160],
            init: [0; 2],
            reserved: [0; 8],
        };
        for _ in 0..ATTEMPTS {
            // SAFETY: this request takes no argument.
            let number = unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE) };
            if number < 0 {
                return Err(Error::last_os_error());
            }
            let path = PathBuf::from(format!("/dev/loop{number}"));
            let writer = rustix::fs::open(&path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
            // SAFETY: `config` has the layout that the kernel reads, and lives through the call.
            let done =
                unsafe { libc::ioctl(writer.as_raw_fd(), LOOP_CONFIGURE, &raw const config) };
            if done == 0 {
                let handle =
                    rustix::fs::open(&path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
                return Ok(Self { handle, path });
            }
            let error = Error::last_os_error();
            if error.raw_os_error() != Some(libc::EBUSY) {
                return Err(error);
            }
        }
        Err(Error::other("other programs took every free loop device"))
    }

    /// The device.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Mounts what is on it at `target`; `options` as mount(8) takes them for this file system.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn mount(self, target: &Path, kind: &str, options: &str) -> Result<Mounted> {
        mount_call(&self.path.display().to_string(), target, kind, 0, options)?;
        Ok(Mounted {
            target: target.to_owned(),
            _device: Some(self.handle),
        })
    }
}

/// A mounted file system; unmounted when dropped.
#[derive(Debug)]
pub struct Mounted {
    target: PathBuf,
    /// Closed after the unmounting.
    _device: Option<OwnedFd>,
}

impl Mounted {
    /// An empty file system in memory at `target`.
    fn in_memory(target: &Path) -> Result<Self> {
        mount_call("tmpfs", target, "tmpfs", 0, "mode=700")?;
        Ok(Self {
            target: target.to_owned(),
            _device: None,
        })
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.target
    }

    /// Unmounts it, which writes back what is cached.
    ///
    /// # Errors
    /// What the kernel says; busy for longer than 20 s is an error, and it is detached then.
    pub fn unmount(mut self) -> Result<()> {
        let target = std::mem::take(&mut self.target);
        unmount(&target)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if !self.target.as_os_str().is_empty() {
            let _ = unmount(&self.target);
        }
    }
}

/// Takes a mount out of the table, at once, however busy it is.
///
/// # Errors
/// What the kernel says.
pub fn detach(target: &Path) -> Result<()> {
    let name = c_string(&target.display().to_string())?;
    // SAFETY: the name is a live C string.
    match unsafe { libc::umount2(name.as_ptr(), libc::MNT_DETACH) } {
        0 => Ok(()),
        _ => Err(Error::last_os_error()),
    }
}

fn unmount(target: &Path) -> Result<()> {
    let name = c_string(&target.display().to_string())?;
    let deadline = Deadline::after(BUSY);
    let mut attempt = 0;
    loop {
        // SAFETY: the name is a live C string.
        if unsafe { libc::umount2(name.as_ptr(), 0) } == 0 {
            return Ok(());
        }
        let error = Error::last_os_error();
        // What a killed process held is let go a moment after its end.
        if error.raw_os_error() != Some(libc::EBUSY) || deadline.passed() {
            let _ = detach(target);
            return Err(error);
        }
        orcheck_io::errno::backoff(attempt, deadline);
        attempt += 1;
    }
}

fn mount_call(
    source: &str,
    target: &Path,
    kind: &str,
    flags: libc::c_ulong,
    options: &str,
) -> Result<()> {
    let target = c_string(&target.display().to_string())?;
    let (source, kind, options) = (c_string(source)?, c_string(kind)?, c_string(options)?);
    // SAFETY: all four are live C strings.
    let done = unsafe {
        libc::mount(
            source.as_ptr(),
            target.as_ptr(),
            kind.as_ptr(),
            flags,
            options.as_ptr().cast(),
        )
    };
    if done == 0 {
        Ok(())
    } else {
        Err(Error::last_os_error())
    }
}

fn c_string(text: &str) -> Result<CString> {
    CString::new(text).map_err(|_| Errno::INVAL.into())
}
