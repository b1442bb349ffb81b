//! Locks files with open-file-description locks, which belong to a description and not to a
//! process.
//!
//! How: plain POSIX locks vanish when any descriptor of the file is closed in the same process. An
//! open-file-description lock stays until its description is closed everywhere, or unlocked.
//!
//! Not here: when a lock is taken (`file.rs`, the pool's gates).

use crate::descriptor::{self, Living};
use crate::errno::{last_errno, retry};
use orcheck_format::sabotage::{Switch, off};
use rustix::fs::{Mode, OFlags};
use std::os::fd::{AsRawFd, OwnedFd};

/// A file's lock: a second open file description of it that carries the lock, or the connection to
/// the server that does. Dropping this releases it.
pub struct Lock(Option<Living>);

impl Lock {
    /// The description, which keeps the lock as long as anybody has it.
    #[must_use]
    pub fn detach(mut self) -> Option<OwnedFd> {
        self.0.take().map(Living::give)
    }

    /// Holds a lock that another process gave away.
    #[must_use]
    pub fn attach(holder: OwnedFd) -> Lock {
        Lock(Some(Living::new(holder)))
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Closing is not enough: a child that was forked meanwhile shares the description.
        if let Some(holder) = &self.0 {
            let _ = ofd_unlock_all(holder);
            // The lock of a file on a server is a connection.
            let _ = rustix::net::shutdown(holder, rustix::net::Shutdown::Both);
        }
    }
}

/// A new open file description of the same file, for reading and writing.
pub fn reopen(handle: &OwnedFd) -> rustix::io::Result<OwnedFd> {
    let path = format!("/proc/self/fd/{}", handle.as_raw_fd());
    retry(|| {
        descriptor::open(
            path.as_str(),
            OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOCTTY,
            Mode::empty(),
        )
    })
}

/// Takes the write lock on one byte for this open file description. `Ok(false)`: held elsewhere.
pub fn ofd_lock(handle: &impl AsRawFd, byte: u64) -> std::result::Result<bool, i32> {
    match i64::try_from(byte) {
        Ok(start) => ofd_set(handle, libc::F_WRLCK, start, 1),
        Err(_) => Err(libc::EINVAL),
    }
}

/// Takes the read lock on one byte for this open file description, or turns its write lock into
/// one. `Ok(false)`: another one has the write lock.
pub fn ofd_share(handle: &impl AsRawFd, byte: u64) -> std::result::Result<bool, i32> {
    match i64::try_from(byte) {
        Ok(start) => ofd_set(handle, libc::F_RDLCK, start, 1),
        Err(_) => Err(libc::EINVAL),
    }
}

/// Whether another open file description has a lock there; one system call, and no lock is taken.
#[allow(unsafe_code)]
pub fn ofd_is_locked(handle: &impl AsRawFd, byte: u64) -> std::result::Result<bool, i32> {
    // SAFETY: an all-zero `flock` is a valid value of that plain structure.
    let mut asked: libc::flock = unsafe { std::mem::zeroed() };
    asked.l_type = libc::F_WRLCK as i16;
    asked.l_whence = libc::SEEK_SET as i16;
    asked.l_start = i64::try_from(byte).map_err(|_| libc::EINVAL)?;
    asked.l_len = 1;
    // SAFETY: the descriptor is open for the duration of the call and `asked` is a live `flock`.
    match unsafe { libc::fcntl(handle.as_raw_fd(), libc::F_OFD_GETLK, &raw mut asked) } {
        0 => Ok(i32::from(asked.l_type) != libc::F_UNLCK),
        _ => Err(last_errno()),
    }
}

/// Releases every lock of this open file description.
pub fn ofd_unlock_all(handle: &impl AsRawFd) -> std::result::Result<bool, i32> {
    ofd_set(handle, libc::F_UNLCK, 0, 0)
}

#[allow(unsafe_code)]
fn ofd_set(
    handle: &impl AsRawFd,
    kind: i32,
    start: i64,
    len: i64,
) -> std::result::Result<bool, i32> {
    // SAFETY: an all-zero `flock` is a valid value of that plain structure.
    let mut wanted: libc::flock = unsafe { std::mem::zeroed() };
    wanted.l_type = kind as i16;
    wanted.l_whence = libc::SEEK_SET as i16;
    wanted.l_start = start;
    wanted.l_len = len;
    loop {
        // SAFETY: the descriptor is open for the duration of the call and `wanted` is a live
        // `flock`.
        let done = unsafe { libc::fcntl(handle.as_raw_fd(), libc::F_OFD_SETLK, &raw mut wanted) };
        if done == 0 || off(Switch::LockExcludes) {
            return Ok(true);
        }
        match last_errno() {
            libc::EINTR => {}
            libc::EAGAIN | libc::EACCES => return Ok(false),
            errno => return Err(errno),
        }
    }
}
