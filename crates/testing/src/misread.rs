//! A disk that reads wrong: one read of a file gives other bytes than those asked for, and calls it
//! a success.
//!
//! How: [`misreading`] puts a [`Dir`] around another one. It counts the reads of all files opened
//! through it; the chosen one gives what [`How`] says, all others what is there. [`Misreader`] is a
//! hook for numbered steps that does the same to the files of a whole job, whoever opens them. The
//! bytes are never made up: they are bytes that some disk could give by mistake.
//!
//! Not here: errors and short reads (numbered steps give them), damage that stays (tests write it).

use orcheck_format::Result;
use orcheck_io::disk::{Create, Dir, Entry, File};
use orcheck_io::failpoints::{Failpoint, FailpointHook, Failpoints, Verdict};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What a misread gives.
#[derive(Clone)]
pub enum How {
    /// The bytes so much further on in the same file (before, if it ends there): another block.
    Moved(u64),
    /// The bytes at the same place of the file of the same name in another directory: an older
    /// version of it.
    Stale(Arc<dyn Dir>),
    /// The bytes at the same place of another file of the directory.
    OtherFile(String),
    /// Zeros: a block that was never written.
    Zeros,
}

struct Fault {
    how: How,
    strike: u64,
    reads: AtomicU64,
}

/// `dir`, of whose files read number `strike`, from 1, goes wrong; and how many reads there were.
pub fn misreading(dir: Arc<dyn Dir>, how: How, strike: u64) -> (Arc<dyn Dir>, impl Fn() -> u64) {
    let fault = Arc::new(Fault {
        how,
        strike,
        reads: AtomicU64::new(0),
    });
    let counted = Arc::clone(&fault);
    let reads = move || counted.reads.load(Ordering::SeqCst);
    (Arc::new(Misreading { dir, fault }), reads)
}

/// Gives other bytes for a read: path, offset and length to what the disk gives by mistake; what is
/// shorter ends in zeros, `None` for what it cannot get wrong.
pub type Instead = Box<dyn Fn(&Path, u64, usize) -> Option<Vec<u8>> + Send + Sync>;

/// A hook with which one read of a job goes wrong.
pub struct Misreader {
    instead: Instead,
    strike: u64,
    reads: AtomicU64,
    struck: AtomicU64,
}

impl Misreader {
    /// Of the reads that can go wrong, number `strike` does, from 1.
    #[must_use]
    pub fn new(strike: u64, instead: Instead) -> Arc<Self> {
        Arc::new(Self {
            instead,
            strike,
            reads: AtomicU64::new(0),
            struck: AtomicU64::new(0),
        })
    }

    /// The steps that follow this hook.
    #[must_use]
    pub fn failpoints(self: &Arc<Self>) -> Failpoints {
        Failpoints::with(Arc::clone(self) as Arc<dyn FailpointHook>)
    }

    /// Reads that could have gone wrong so far.
    #[must_use]
    pub fn reads(&self) -> u64 {
        self.reads.load(Ordering::SeqCst)
    }

    /// Whether one went wrong and gave other bytes.
    #[must_use]
    pub fn has_struck(&self) -> bool {
        self.struck.load(Ordering::SeqCst) > 0
    }
}

impl FailpointHook for Misreader {
    fn at(&self, _step: &Failpoint) -> Verdict {
        Verdict::Go
    }

    fn has_read(&self, path: &str, at_bytes: u64, bytes: &mut [u8]) {
        let Some(mut other) = (self.instead)(Path::new(path), at_bytes, bytes.len()) else {
            return;
        };
        if self.reads.fetch_add(1, Ordering::SeqCst) + 1 != self.strike {
            return;
        }
        other.resize(bytes.len(), 0);
        if other != bytes {
            bytes.copy_from_slice(&other);
            self.struck.fetch_add(1, Ordering::SeqCst);
        }
    }
}

struct Misreading {
    dir: Arc<dyn Dir>,
    fault: Arc<Fault>,
}

impl Dir for Misreading {
    fn path(&self) -> &Path {
        self.dir.path()
    }

    fn create(&self, name: &str, how: Create) -> Result<Box<dyn File>> {
        self.dir.create(name, how)
    }

    fn open(&self, name: &str) -> Result<Box<dyn File>> {
        Ok(Box::new(MisreadFile {
            file: self.dir.open(name)?,
            name: name.to_owned(),
            dir: Arc::clone(&self.dir),
            fault: Arc::clone(&self.fault),
        }))
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        self.dir.rename(from, to)
    }

    fn rename_new(&self, from: &str, to: &str) -> Result<()> {
        self.dir.rename_new(from, to)
    }

    fn remove(&self, name: &str) -> Result<()> {
        self.dir.remove(name)
    }

    fn list(&self) -> Result<Vec<Entry>> {
        self.dir.list()
    }

    fn sync(&self) -> Result<()> {
        self.dir.sync()
    }

    fn child(&self, name: &str, create: bool) -> Result<Arc<dyn Dir>> {
        self.dir.child(name, create)
    }

    fn remove_child(&self, name: &str) -> Result<()> {
        self.dir.remove_child(name)
    }

    fn free_bytes(&self) -> Result<u64> {
        self.dir.free_bytes()
    }

    fn read_only(&self) -> Result<bool> {
        self.dir.read_only()
    }
}

struct MisreadFile {
    file: Box<dyn File>,
    name: String,
    dir: Arc<dyn Dir>,
    fault: Arc<Fault>,
}

impl MisreadFile {
    /// As much of another file as lies where the read was asked for; what it does not have is zero.
    fn from_other(other: &dyn File, buf: &mut [u8], at: u64) -> Result<()> {
        buf.fill(0);
        let there = other.len_bytes()?.saturating_sub(at);
        let len = usize::try_from(there).unwrap_or(usize::MAX).min(buf.len());
        other.read_at(&mut buf[..len], at)
    }
}

impl File for MisreadFile {
    fn write_at(&self, buf: &[u8], at: u64) -> Result<()> {
        self.file.write_at(buf, at)
    }

    fn read_at(&self, buf: &mut [u8], at: u64) -> Result<()> {
        // What cannot be read is an error here too.
        self.file.read_at(buf, at)?;
        if self.fault.reads.fetch_add(1, Ordering::SeqCst) + 1 != self.fault.strike {
            return Ok(());
        }
        match &self.fault.how {
            How::Moved(by) => {
                let end = at + buf.len() as u64 + by;
                let there = if end <= self.file.len_bytes()? {
                    at + by
                } else {
                    at.saturating_sub(*by)
                };
                self.file.read_at(buf, there)
            }
            How::Stale(older) => match older.open(&self.name) {
                Ok(older) => Self::from_other(older.as_ref(), buf, at),
                Err(_) => Ok(()),
            },
            How::OtherFile(name) => Self::from_other(self.dir.open(name)?.as_ref(), buf, at),
            How::Zeros => {
                buf.fill(0);
                Ok(())
            }
        }
    }

    fn allocate(&self, len: u64) -> Result<()> {
        self.file.allocate(len)
    }

    fn truncate(&self, len: u64) -> Result<()> {
        self.file.truncate(len)
    }

    fn sync(&self) -> Result<()> {
        self.file.sync()
    }

    fn len_bytes(&self) -> Result<u64> {
        self.file.len_bytes()
    }

    fn is_direct(&self) -> bool {
        self.file.is_direct()
    }

    fn alignment_bytes(&self) -> u32 {
        self.file.alignment_bytes()
    }

    fn try_lock(&self) -> Result<bool> {
        self.file.try_lock()
    }

    fn close(self: Box<Self>) -> Result<()> {
        self.file.close()
    }

    fn name(&self) -> String {
        self.file.name()
    }
}
