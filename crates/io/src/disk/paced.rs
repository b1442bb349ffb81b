//! Reads directories in the background, no faster than a stated rate, and more slowly while others
//! are at work.
//!
//! How: everything that reads for one purpose shares a [`Pace`]; [`paced`] applies it to a
//! directory. Reads are cut into pieces, and each piece waits until it is due. They bypass the page
//! cache if the file system supports that, because the disk itself is to be read, and others keep
//! their cached data.
//!
//! Invariants
//! 1. With one pace, at most `rate × time` bytes and one piece are read in any span of time.
//! 2. While others are at work, at most one piece is read in each second.
//! 3. When the pace is stopped, a wait ends within 200 ms, and every later read is an error.
//! 4. A file whose name is gone is not read any further (NotFound), so that its space is free
//!    within one piece.
//! 5. Nothing is written or changed.
//!
//! Faults survived: files that vanish while they are read. Not here: what is read, and why
//! (`orcheck_engine::upkeep::scrub`).

use crate::clock::Clock;
use crate::disk::dir::{Create, Dir, Entry};
use crate::disk::file::File;
use orcheck_format::sabotage::{Switch, off};
use orcheck_format::{Error, Result};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Maximum number of bytes read at once.
pub const PIECE_BYTES: usize = 1 << 20;
/// Longest time for which a piece yields to others.
const YIELD_MAX: Duration = Duration::from_secs(1);
/// Longest sleep between two looks at the stop flag.
const LOOK: Duration = Duration::from_millis(200);
/// The same while others are at work.
const LOOK_SOON: Duration = Duration::from_millis(50);

/// The rate of reading; see the module.
pub struct Pace {
    rate_bytes_per_s: u64,
    clock: Arc<dyn Clock>,
    others: Box<dyn Fn(u64) -> bool + Send + Sync>,
    stopped: AtomicBool,
    read_bytes: AtomicU64,
    /// When the next piece is due.
    due: Mutex<Duration>,
}

impl Pace {
    /// At most this many bytes per second (at least one). `others` receives how many have been
    /// read, or are about to be, and returns whether somebody else is at work now.
    pub fn new(
        rate_bytes_per_s: u64,
        clock: Arc<dyn Clock>,
        others: impl Fn(u64) -> bool + Send + Sync + 'static,
    ) -> Arc<Self> {
        Arc::new(Self {
            rate_bytes_per_s: rate_bytes_per_s.max(1),
            clock,
            others: Box::new(others),
            stopped: AtomicBool::new(false),
            read_bytes: AtomicU64::new(0),
            due: Mutex::default(),
        })
    }

    /// Stops reading.
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
    }

    /// Whether reading was stopped.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    /// Bytes read so far.
    #[must_use]
    pub fn read_bytes(&self) -> u64 {
        self.read_bytes.load(Ordering::Relaxed)
    }

    /// Sleeps this long, or until it is stopped; returns whether it was not stopped.
    pub fn pause(&self, time: Duration) -> bool {
        let end = self.clock.now().saturating_add(time);
        while !self.is_stopped() {
            let left = end.saturating_sub(self.clock.now());
            if left.is_zero() {
                return true;
            }
            self.clock.sleep(left.min(LOOK));
        }
        false
    }

    /// Waits until this many bytes may be read.
    fn take(&self, len_bytes: usize) -> Result<()> {
        let begin = self.clock.now();
        while (self.others)(self.read_bytes())
            && !self.is_stopped()
            && self.clock.now().saturating_sub(begin) < YIELD_MAX
        {
            self.clock.sleep(LOOK_SOON);
        }
        let time = Duration::from_secs_f64(len_bytes as f64 / self.rate_bytes_per_s as f64);
        let wait = {
            let mut due = self.due.lock().unwrap_or_else(PoisonError::into_inner);
            let now = self.clock.now();
            let from = now.max(*due);
            *due = from.saturating_add(time);
            from.saturating_sub(now)
        };
        // Breaks if: it does not wait; the disk would be busy with nothing but this.
        if !off(Switch::ScrubRate) {
            self.pause(wait);
        }
        if self.is_stopped() {
            return Err(Error::unavailable("reading in the background was stopped"));
        }
        self.read_bytes
            .fetch_add(len_bytes as u64, Ordering::Relaxed);
        (self.others)(self.read_bytes());
        Ok(())
    }
}

/// The same directory, read at this pace.
#[must_use]
pub fn paced(dir: Arc<dyn Dir>, pace: &Arc<Pace>) -> Arc<dyn Dir> {
    let pace = Arc::clone(pace);
    Arc::new(PacedDir { dir, pace })
}

struct PacedDir {
    dir: Arc<dyn Dir>,
    pace: Arc<Pace>,
}

fn only_read<T>(what: impl std::fmt::Display) -> Result<T> {
    Err(Error::invalid(format!(
        "{what}: opened for reading in the background only"
    )))
}

impl Dir for PacedDir {
    fn path(&self) -> &Path {
        self.dir.path()
    }

    fn create(&self, name: &str, _: Create) -> Result<Box<dyn File>> {
        only_read(self.path().join(name).display())
    }

    fn holds(&self, name: &str) -> Result<bool> {
        self.dir.holds(name)
    }

    fn open(&self, name: &str) -> Result<Box<dyn File>> {
        let mut file = self.dir.open(name)?;
        // Cached data says nothing about the disk; if there is no way to bypass the cache, it has
        // to do.
        file.bypass_cache();
        Ok(Box::new(PacedFile {
            file,
            dir: Arc::clone(&self.dir),
            name: name.to_owned(),
            pace: Arc::clone(&self.pace),
        }))
    }

    fn rename(&self, from: &str, _: &str) -> Result<()> {
        only_read(self.path().join(from).display())
    }

    fn rename_new(&self, from: &str, _: &str) -> Result<()> {
        only_read(self.path().join(from).display())
    }

    fn remove(&self, name: &str) -> Result<()> {
        only_read(self.path().join(name).display())
    }

    fn list(&self) -> Result<Vec<Entry>> {
        self.dir.list()
    }

    fn sync(&self) -> Result<()> {
        only_read(self.path().display())
    }

    fn child(&self, name: &str, _: bool) -> Result<Arc<dyn Dir>> {
        Ok(paced(self.dir.child(name, false)?, &self.pace))
    }

    fn remove_child(&self, name: &str) -> Result<()> {
        only_read(self.path().join(name).display())
    }

    fn free_bytes(&self) -> Result<u64> {
        self.dir.free_bytes()
    }

    fn read_only(&self) -> Result<bool> {
        Ok(true)
    }

    fn check_path(&self) -> Result<()> {
        self.dir.check_path()
    }
}

struct PacedFile {
    file: Box<dyn File>,
    dir: Arc<dyn Dir>,
    name: String,
    pace: Arc<Pace>,
}

impl File for PacedFile {
    fn write_at(&self, _: &[u8], _: u64) -> Result<()> {
        only_read(self.name())
    }

    fn read_at(&self, buf: &mut [u8], at: u64) -> Result<()> {
        let mut offset = at;
        for piece in buf.chunks_mut(PIECE_BYTES) {
            self.pace.take(piece.len())?;
            if !self.dir.holds(&self.name)? {
                return Err(Error::not_found(format!(
                    "{} was removed while it was read",
                    self.name()
                )));
            }
            self.file.read_at(piece, offset)?;
            offset += piece.len() as u64;
        }
        Ok(())
    }

    fn allocate(&self, _: u64) -> Result<()> {
        only_read(self.name())
    }

    fn truncate(&self, _: u64) -> Result<()> {
        only_read(self.name())
    }

    fn sync(&self) -> Result<()> {
        only_read(self.name())
    }

    fn len_bytes(&self) -> Result<u64> {
        self.file.len_bytes()
    }

    fn is_direct(&self) -> bool {
        false
    }

    fn alignment_bytes(&self) -> u32 {
        self.file.alignment_bytes()
    }

    fn try_lock(&self) -> Result<bool> {
        only_read(self.name())
    }

    fn close(self: Box<Self>) -> Result<()> {
        self.file.close()
    }

    fn name(&self) -> String {
        self.file.name()
    }
}
