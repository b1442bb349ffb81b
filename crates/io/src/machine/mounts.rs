//! Unmounts file systems of this process.
//!
//! Not here: mounting them (`orcheck-mount`).

use crate::errno::rustix_error;
use orcheck_format::{Error, Result};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use std::path::Path;
use std::process::Command;

/// Unmounts what is mounted at a path; with `lazily` also if it is in use. `false`: it is in use.
///
/// # Errors
/// Unavailable if it cannot be done otherwise, as without the program fusermount3.
pub fn unmount(at: &Path, lazily: bool) -> Result<bool> {
    let flags = match lazily {
        true => UnmountFlags::DETACH | UnmountFlags::NOFOLLOW,
        false => UnmountFlags::NOFOLLOW,
    };
    match rustix::mount::unmount(at, flags) {
        Ok(()) => Ok(true),
        Err(Errno::BUSY) => Ok(false),
        // Nothing is mounted there any more.
        Err(Errno::INVAL) => Ok(true),
        Err(Errno::PERM) => by_helper(at, lazily),
        Err(errno) => Err(rustix_error(
            errno,
            format_args!("unmounting {}", at.display()),
        )),
    }
}

/// A user without privileges asks a program that has them.
fn by_helper(at: &Path, lazily: bool) -> Result<bool> {
    let mut command = Command::new("fusermount3");
    command
        .arg("-u")
        .args(lazily.then_some("-z"))
        .arg("--")
        .arg(at);
    let ended = command.output().map_err(|error| {
        Error::unavailable(format!("unmounting {}: fusermount3: {error}", at.display()))
    })?;
    let said = String::from_utf8_lossy(&ended.stderr);
    if ended.status.success() || said.contains("not mounted") || said.contains("not found") {
        return Ok(true);
    }
    if said.contains("busy") {
        return Ok(false);
    }
    Err(Error::unavailable(format!(
        "unmounting {}: {}",
        at.display(),
        said.trim()
    )))
}

/// Whether a mount point is left whose process has ended.
#[must_use]
pub fn is_dead_mount(at: &Path) -> bool {
    matches!(rustix::fs::statfs(at), Err(Errno::NOTCONN))
}
