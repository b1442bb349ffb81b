//! Reads what the user supplies from outside, and writes what the user requests: environment
//! variables, configuration files, and files given by name.
//!
//! Invariants
//! 1. No variable is ever set.
//! 2. A written file is there whole or not at all, and readable according to the user's umask.
//! 3. A file is read up to the caller's limit and no further; it must be a regular file of UTF-8
//!    text.
//!
//! Faults survived: a socket, FIFO or device in place of a file, a file of any size. Not here: the
//! meaning of the text.

use crate::descriptor;
use crate::disk::kind_name;
use crate::errno::{retry, rustix_error};
use orcheck_format::{Error, Result};
use rustix::fs::{self, FileType, Mode, OFlags, Stat};
use std::env::VarError;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// The value of an environment variable; `None` if it is not set or not UTF-8.
#[must_use]
pub fn env_var(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// The value of an environment variable; `None` if it is not set.
///
/// # Errors
/// Invalid if it is not UTF-8.
pub fn env_text(name: &str) -> Result<Option<String>> {
    match std::env::var(name) {
        Ok(value) => Ok(Some(value)),
        Err(VarError::NotPresent) => Ok(None),
        // Breaks if: it counts as not set; a job would be told that it has no directory.
        Err(VarError::NotUnicode(value)) => Err(Error::invalid(format!(
            "the environment variable {name}: expected UTF-8 text, found '{}'",
            value.display()
        ))
        .next(format!(
            "correct {name}; a directory whose name is not UTF-8 needs another one"
        ))),
    }
}

/// The names of the non-empty variables with this prefix, in order.
#[must_use]
pub fn env_names(prefix: &str) -> Vec<String> {
    let all = std::env::vars_os().filter(|(_, value)| !value.is_empty());
    let names = all.filter_map(|(name, _)| name.into_string().ok());
    let mut names: Vec<String> = names.filter(|name| name.starts_with(prefix)).collect();
    names.sort();
    names
}

/// The directory that relative paths start from; the root if it is no longer known.
#[must_use]
pub fn working_dir() -> PathBuf {
    std::env::current_dir().unwrap_or_else(|_| PathBuf::from("/"))
}

/// Where temporary files go: the variable TMPDIR, or /tmp.
#[must_use]
pub fn temp_dir() -> PathBuf {
    std::env::temp_dir()
}

/// The directory for files in memory, which a reboot clears.
#[must_use]
pub fn memory_dir() -> PathBuf {
    PathBuf::from("/dev/shm")
}

/// Opens a regular file that the user named, without blocking on anything else that may be there.
pub fn open_regular(path: &Path) -> Result<(OwnedFd, Stat)> {
    let shown = path.display();
    let what = |errno| rustix_error(errno, format_args!("read {shown}"));
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
    let is_regular = |stat: &Stat| match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => Ok(()),
        other => Err(Error::invalid(format!(
            "{shown}: expected a regular file, found {}",
            kind_name(other)
        ))),
    };
    let handle = match retry(|| descriptor::open(path, flags, Mode::empty())) {
        Ok(handle) => handle,
        // A socket cannot be opened, and a device may have no driver.
        Err(errno) => {
            fs::stat(path).map_or(Ok(()), |stat| is_regular(&stat))?;
            return Err(what(errno));
        }
    };
    let stat = fs::fstat(&handle).map_err(what)?;
    is_regular(&stat)?;
    Ok((handle, stat))
}

/// The text of a file that the user named, at most `limit_bytes` long.
pub fn read_text(path: &Path, limit_bytes: u64) -> Result<String> {
    let shown = path.display();
    let (handle, _) = open_regular(path)?;
    let mut bytes = Vec::new();
    std::fs::File::from(handle)
        .take(limit_bytes.saturating_add(1))
        .read_to_end(&mut bytes)
        .map_err(|error| {
            crate::errno::os_error(
                error.raw_os_error().unwrap_or(0),
                format_args!("read {shown}"),
            )
        })?;
    if bytes.len() as u64 > limit_bytes {
        return Err(Error::invalid(format!(
            "{shown}: expected at most {limit_bytes} bytes, found more"
        )));
    }
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        Error::invalid(format!(
            "{shown}: expected UTF-8 text, found something else at byte {at}"
        ))
    })
}

/// Writes a file that the user named, or replaces it, by way of `PATH.tmp`.
///
/// # Errors
/// The error of the file system, with the path.
pub fn write_file(path: &Path, bytes: &[u8]) -> Result<()> {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".tmp");
    let temporary = Path::new(&temporary);
    let written = std::fs::File::create(temporary).and_then(|mut file| {
        file.write_all(bytes)?;
        file.sync_all()?;
        std::fs::rename(temporary, path)
    });
    written.map_err(|error| {
        // Best effort: the error that counts is the first one.
        let _ = std::fs::remove_file(temporary);
        crate::errno::os_error(
            error.raw_os_error().unwrap_or(0),
            format_args!("write {}", path.display()),
        )
    })
}
