//! Implements a small file in which processes leave notes for the process that started them.
//!
//! How: the reader creates the file and passes its path down in the environment; the others append
//! to it.
//!
//! Invariants
//! 1. A note is added only to an existing regular file of this user; none is ever created.
//! 2. One note is one write, so that notes of several processes do not mix.
//! 3. Reading is bounded. The file is removed with the mailbox.
//!
//! Faults survived: a path of another machine, a link or another user's file in its place (the note
//! is lost, and nothing is written). Not here: the contents of notes.

use crate::descriptor;
use crate::errno::{os_error, retry, rustix_error};
use crate::rng::random_bytes;
use orcheck_format::{Error, Result};
use rustix::fs::{self, FileType, Mode, OFlags};
use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

/// Maximum number of bytes of notes that are read at once.
const LIMIT_BYTES: u64 = 64 << 20;

/// The reading end.
pub struct Mailbox {
    path: PathBuf,
    file: File,
}

impl Mailbox {
    /// Creates an empty one among the temporary files, readable for this user only.
    ///
    /// # Errors
    /// The error of the file system.
    pub fn create(name: &str) -> Result<Self> {
        let unique = u64::from_le_bytes(random_bytes());
        let path = std::env::temp_dir().join(format!("{name}-{unique:016x}"));
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let handle = retry(|| descriptor::open(&path, flags, Mode::RUSR | Mode::WUSR))
            .map_err(|errno| rustix_error(errno, format_args!("create {}", path.display())))?;
        Ok(Self {
            path,
            file: handle.into(),
        })
    }

    /// Its path, for the writers.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The notes that were added since the last call.
    ///
    /// # Errors
    /// The error of the file system.
    pub fn take(&mut self) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let read = (&mut self.file).take(LIMIT_BYTES).read_to_end(&mut bytes);
        read.map_err(|error| {
            let errno = error.raw_os_error().unwrap_or(0);
            os_error(errno, format_args!("read {}", self.path.display()))
        })?;
        Ok(bytes)
    }
}

impl Drop for Mailbox {
    fn drop(&mut self) {
        // Best effort: at worst a small temporary file stays.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Adds a note to the mailbox at `path`.
///
/// # Errors
/// The error of the file system; Invalid if something else is there.
pub fn drop_note(path: &Path, note: &str) -> Result<()> {
    let what = |errno| rustix_error(errno, format_args!("write {}", path.display()));
    let flags =
        OFlags::WRONLY | OFlags::APPEND | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let handle = retry(|| descriptor::open(path, flags, Mode::empty())).map_err(what)?;
    let stat = fs::fstat(&handle).map_err(what)?;
    let regular = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    if !regular || stat.st_uid != crate::machine::effective_uid() {
        return Err(Error::invalid(format!(
            "{}: expected a regular file of this user",
            path.display()
        )));
    }
    File::from(handle)
        .write_all(note.as_bytes())
        .map_err(|error| {
            let errno = error.raw_os_error().unwrap_or(0);
            os_error(errno, format_args!("write {}", path.display()))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_arrive_in_order_and_the_file_goes() {
        let mut mailbox = Mailbox::create("orcheck-mailbox-test").unwrap();
        let path = mailbox.path().to_owned();
        drop_note(&path, "a\n").unwrap();
        drop_note(&path, "b\n").unwrap();
        assert_eq!(mailbox.take().unwrap(), b"a\nb\n");
        drop_note(&path, "c\n").unwrap();
        assert_eq!(mailbox.take().unwrap(), b"c\n");
        drop(mailbox);
        // Breaks if: a note creates its file; every program would leave one behind.
        assert!(drop_note(&path, "d\n").is_err());
        assert!(!path.exists());
    }

    #[test]
    fn nothing_is_written_through_a_link() {
        // Breaks if: links are followed; anybody who may write where the notes are could redirect
        // them.
        let mut mailbox = Mailbox::create("orcheck-mailbox-link").unwrap();
        let link = mailbox.path().with_extension("link");
        std::os::unix::fs::symlink(mailbox.path(), &link).unwrap();
        assert!(drop_note(&link, "a\n").is_err());
        std::fs::remove_file(&link).unwrap();
        assert_eq!(mailbox.take().unwrap(), b"");
    }
}
