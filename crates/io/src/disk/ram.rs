//! Keeps files in this process's memory; they are anonymous and end with it.
//!
//! How: each is a memfd, so that the same code handles them like files on a disk. Only the names
//! are kept here.
//!
//! Invariants:
//! 1. A name has one file; creating it again is refused.
//! 2. A removed file's memory is free once the last descriptor of it is closed.
//!
//! Survives nothing: when the process ends, the files are gone. Not here: how much may be kept.

use crate::descriptor;
use crate::disk::dir::{Entry, check_name};
use crate::disk::file::{File, OsFile};
use crate::errno::{os_error, rustix_error};
use crate::failpoints::Failpoints;
use orcheck_format::{Error, Result};
use rustix::fs::{self, MemfdFlags};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Named files in memory.
#[derive(Default)]
pub struct Ram {
    files: Mutex<BTreeMap<String, OwnedFd>>,
    failpoints: Failpoints,
}

impl Ram {
    /// Without files.
    #[must_use]
    pub fn new(failpoints: Failpoints) -> Self {
        Self {
            files: Mutex::default(),
            failpoints,
        }
    }

    fn files(&self) -> MutexGuard<'_, BTreeMap<String, OwnedFd>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn opened(&self, name: &str, handle: OwnedFd, new: bool) -> Box<dyn File> {
        Box::new(OsFile::new(
            handle,
            shown(name),
            self.failpoints.clone(),
            false,
            new,
        ))
    }

    /// Creates a file that must not exist yet.
    ///
    /// # Errors
    /// Invalid for a name that is taken or not plain; NoSpace or Unavailable if the kernel refuses.
    pub fn create(&self, name: &str) -> Result<Box<dyn File>> {
        check_name(name)?;
        let what = |errno| rustix_error(errno, format_args!("create {}", shown(name)));
        if let Some(errno) = self.failpoints.refuse("ram.create", name) {
            return Err(os_error(errno, format_args!("create {}", shown(name))));
        }
        let mut files = self.files();
        if files.contains_key(name) {
            return Err(what(Errno::EXIST));
        }
        let handle =
            descriptor::memory_file("orcheck-replica", MemfdFlags::CLOEXEC).map_err(what)?;
        let kept = handle.try_clone().map_err(|_| what(Errno::MFILE))?;
        files.insert(name.to_owned(), kept);
        Ok(self.opened(name, handle, true))
    }

    /// Opens a file.
    ///
    /// # Errors
    /// NotFound; Unavailable for lack of descriptors.
    pub fn open(&self, name: &str) -> Result<Box<dyn File>> {
        let files = self.files();
        let Some(handle) = files.get(name) else {
            return Err(Error::not_found(format!("{} is not there", shown(name))));
        };
        let handle = handle.try_clone();
        let handle =
            handle.map_err(|_| rustix_error(Errno::MFILE, format_args!("open {}", shown(name))))?;
        Ok(self.opened(name, handle, false))
    }

    /// Renames a file, if it is there, replacing `to`.
    pub fn rename(&self, from: &str, to: &str) {
        let mut files = self.files();
        if let Some(handle) = files.remove(from) {
            files.insert(to.to_owned(), handle);
        }
    }

    /// Removes a file; returns whether it existed.
    pub fn remove(&self, name: &str) -> bool {
        self.files().remove(name).is_some()
    }

    /// All files, sorted by name.
    ///
    /// # Errors
    /// The kernel's error about one of them.
    pub fn list(&self) -> Result<Vec<Entry>> {
        let entry = |(name, handle): (&String, &OwnedFd)| {
            let stat = fs::fstat(handle)
                .map_err(|errno| rustix_error(errno, format_args!("look at {}", shown(name))))?;
            Ok(Entry {
                name: name.clone(),
                len_bytes: u64::try_from(stat.st_size).unwrap_or(0),
                is_dir: false,
            })
        };
        self.files().iter().map(entry).collect()
    }

    /// Bytes that all of them take.
    ///
    /// # Errors
    /// As [`Self::list`].
    pub fn used_bytes(&self) -> Result<u64> {
        Ok(self.list()?.iter().map(|entry| entry.len_bytes).sum())
    }
}

fn shown(name: &str) -> String {
    format!("{name} in memory")
}

#[cfg(test)]
mod tests {
    use super::*;
    use orcheck_format::ErrorKind;

    #[test]
    fn a_file_in_memory_is_written_read_and_removed() {
        let ram = Ram::default();
        let file = ram.create("a").unwrap();
        assert_eq!(ram.create("a").err().unwrap().kind(), ErrorKind::Invalid);
        assert_eq!(ram.create("../a").err().unwrap().kind(), ErrorKind::Invalid);
        file.allocate(8192).unwrap();
        file.write_at(&[7; 5000], 0).unwrap();
        file.truncate(5000).unwrap();
        file.sync().unwrap();
        file.close().unwrap();
        assert_eq!(ram.used_bytes().unwrap(), 5000);
        let file = ram.open("a").unwrap();
        // Breaks if: a descriptor with a position of its own were needed; two readers would disturb
        // each other.
        let other = ram.open("a").unwrap();
        let (mut bytes, mut ends) = ([0; 5000], [0; 2]);
        file.read_at(&mut bytes, 0).unwrap();
        other.read_at(&mut ends, 4998).unwrap();
        assert!(bytes == [7; 5000] && ends == [7; 2]);
        assert!(file.read_at(&mut ends, 4999).is_err());
        ram.rename("a", "b");
        ram.rename("none", "b");
        assert_eq!(ram.open("a").err().unwrap().kind(), ErrorKind::NotFound);
        ram.rename("b", "a");
        assert!(ram.remove("a") && !ram.remove("a"));
        assert_eq!(ram.open("a").err().unwrap().kind(), ErrorKind::NotFound);
        // An open file stays readable.
        other.read_at(&mut ends, 0).unwrap();
        assert_eq!(ram.list().unwrap(), []);
    }
}
