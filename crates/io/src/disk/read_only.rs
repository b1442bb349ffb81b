//! Directories and files that are only read: everything else is refused.
//!
//! Not here: what they are (files of other nodes, files computed from others; the engine).

use crate::disk::{Create, Dir, Entry, File};
use orcheck_format::{Error, Result};
use std::path::Path;
use std::sync::Arc;

/// What a directory must do to be read.
pub trait ReadDir: Send + Sync {
    /// As [`Dir::path`].
    fn path(&self) -> &Path;
    /// As [`Dir::open`].
    ///
    /// # Errors
    /// NotFound, or why it cannot be opened.
    fn open(&self, name: &str) -> Result<Box<dyn File>>;
    /// As [`Dir::list`].
    ///
    /// # Errors
    /// Why it cannot be listed.
    fn list(&self) -> Result<Vec<Entry>>;
}

/// What a file must do to be read.
pub trait ReadFile: Send + Sync {
    /// As [`File::read_at`], within the length of the file.
    ///
    /// # Errors
    /// Why the bytes cannot be read.
    fn read_at(&self, buf: &mut [u8], at: u64) -> Result<()>;
    /// As [`File::len_bytes`].
    fn len_bytes(&self) -> u64;
    /// As [`File::name`].
    fn name(&self) -> String;
    /// As [`File::other_node`].
    fn other_node(&self) -> Option<&str>;
}

/// A directory or file that nothing changes.
pub struct ReadOnly<T>(
    /// What it reads.
    pub T,
);

fn refuse<T>(what: impl std::fmt::Display) -> Result<T> {
    Err(Error::unsupported(format!("{what} is only read")))
}

impl<T: ReadDir> Dir for ReadOnly<T> {
    fn path(&self) -> &Path {
        self.0.path()
    }

    fn open(&self, name: &str) -> Result<Box<dyn File>> {
        self.0.open(name)
    }

    fn list(&self) -> Result<Vec<Entry>> {
        self.0.list()
    }

    fn create(&self, _: &str, _: Create) -> Result<Box<dyn File>> {
        refuse(self.path().display())
    }

    fn rename(&self, _: &str, _: &str) -> Result<()> {
        refuse(self.path().display())
    }

    fn rename_new(&self, _: &str, _: &str) -> Result<()> {
        refuse(self.path().display())
    }

    fn remove(&self, _: &str) -> Result<()> {
        refuse(self.path().display())
    }

    fn sync(&self) -> Result<()> {
        refuse(self.path().display())
    }

    fn child(&self, _: &str, _: bool) -> Result<Arc<dyn Dir>> {
        refuse(self.path().display())
    }

    fn remove_child(&self, _: &str) -> Result<()> {
        refuse(self.path().display())
    }

    fn free_bytes(&self) -> Result<u64> {
        Ok(0)
    }

    fn read_only(&self) -> Result<bool> {
        Ok(true)
    }
}

impl<T: ReadFile> File for ReadOnly<T> {
    fn read_at(&self, buf: &mut [u8], at: u64) -> Result<()> {
        let (len, all) = (buf.len(), self.0.len_bytes());
        if at.saturating_add(len as u64) > all {
            let name = self.0.name();
            return Err(Error::corrupt(format!(
                "{name}: expected {len} bytes from {at} on, found {all} in all"
            )));
        }
        self.0.read_at(buf, at)
    }

    fn len_bytes(&self) -> Result<u64> {
        Ok(self.0.len_bytes())
    }

    fn name(&self) -> String {
        self.0.name()
    }

    fn other_node(&self) -> Option<&str> {
        self.0.other_node()
    }

    fn write_at(&self, _: &[u8], _: u64) -> Result<()> {
        refuse(self.0.name())
    }

    fn allocate(&self, _: u64) -> Result<()> {
        refuse(self.0.name())
    }

    fn truncate(&self, _: u64) -> Result<()> {
        refuse(self.0.name())
    }

    fn sync(&self) -> Result<()> {
        refuse(self.0.name())
    }

    fn is_direct(&self) -> bool {
        false
    }

    fn alignment_bytes(&self) -> u32 {
        4096
    }

    fn try_lock(&self) -> Result<bool> {
        // A claim of another node locks that node's directory, not this one.
        Ok(true)
    }

    fn close(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}
