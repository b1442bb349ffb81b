//! Implements failpoints: every effect on the outside passes one before it happens.
//!
//! How: code that is about to create, write, sync, rename, send … calls [`Failpoints::at`] with the
//! name of the place in the code (the *site*) and the object (the *target*). In production there is
//! no hook, and the call is one branch. A test installs a [`FailpointHook`]. It can let the effect
//! happen, make it fail with an error number as if the kernel had returned it, shorten a transfer,
//! or kill the process there.
//!
//! Invariants
//! 1. Failpoints are numbered per `Failpoints` value (clones share it), from 1 and without gaps.
//! 2. `at` is called before the effect: stopping at failpoint n means that effects 1 … n−1 happened
//!    and n did not.
//! 3. A retry of an interrupted or short transfer is a new failpoint.
//! 4. `done` is called after an effect on a disk, before its caller continues, so that whatever
//!    follows from the effect is reported later.
//! 5. `has_read` is called before anybody else sees what was read.
//!
//! Faults survived: none by itself; it provokes the others.
//! Not here: ready-made hooks (see `orcheck-testing`).

use crate::errno::os_error;
use orcheck_format::Result;
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// An effect that is about to happen.
#[derive(Debug, Clone, Copy)]
pub struct Failpoint<'a> {
    /// Number of the failpoint, from 1, counted per [`Failpoints`].
    pub number: u64,
    /// The place in the code: `dir.create`, `dir.child`, `dir.share`, `dir.open`, `dir.rename`,
    /// `dir.remove`, `dir.list`, `dir.sync`, `dir.look` and `file.look` (queries for the account of
    /// a disk), `file.direct` (requesting direct I/O; refused means buffered), `file.write`,
    /// `file.read`, `file.allocate`, `file.truncate`, `file.sync`, `file.lock`, `file.close`,
    /// `net.look`, `net.connect`, `net.send`, or a name that the engine gives.
    pub site: &'static str,
    /// The object: a full path, or the peer of a connection.
    pub target: &'a str,
}

/// A hook's decision about an effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The effect happens.
    Go,
    /// The effect does not happen; its caller sees this error number.
    Fail(i32),
    /// A write or read transfers at most this many bytes, and its caller continues as after any
    /// short transfer. 0 is a transfer that returns nothing. Effects that transfer no bytes happen
    /// as usual.
    Short(usize),
    /// A sync is skipped and reported as done, for tests of the tests, which must notice the loss.
    /// Other effects happen as usual.
    Pretend,
    /// The process is killed by SIGKILL before the effect happens.
    Kill,
}

/// An effect on a disk that has just happened. Directories are named by the path by which they were
/// opened; a file has a number, which does not depend on its later names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect<'a> {
    /// A new empty file.
    Created {
        /// Its directory.
        dir: &'a Path,
        /// Its name.
        name: &'a str,
        /// Its number.
        file: u64,
    },
    /// Bytes at an offset, which may make the file longer.
    Wrote {
        /// The file's number.
        file: u64,
        /// Their offset, in bytes.
        at_bytes: u64,
        /// The bytes.
        bytes: &'a [u8],
    },
    /// The file is at least this long now.
    Reserved {
        /// The file's number.
        file: u64,
        /// In bytes.
        len_bytes: u64,
    },
    /// The file is exactly this long now.
    SetLength {
        /// The file's number.
        file: u64,
        /// In bytes.
        len_bytes: u64,
    },
    /// What happened to the file before the sync began is durable.
    Synced {
        /// The file's number.
        file: u64,
    },
    /// A name changed, replacing the file that had the new one.
    Renamed {
        /// The directory.
        dir: &'a Path,
        /// The old name.
        from: &'a str,
        /// The new name.
        to: &'a str,
    },
    /// A file got another name.
    Linked {
        /// The directory.
        dir: &'a Path,
        /// The name it had.
        from: &'a str,
        /// The other name.
        to: &'a str,
    },
    /// The name of a file or of an empty directory was removed.
    Removed {
        /// The directory that held it.
        dir: &'a Path,
        /// The name.
        name: &'a str,
    },
    /// A new empty directory.
    MadeDir {
        /// The directory that holds it.
        dir: &'a Path,
        /// Its name.
        name: &'a str,
    },
    /// What happened to the names of the directory before the sync began is durable.
    SyncedDir {
        /// The directory.
        dir: &'a Path,
    },
}

/// Decides about effects. Called on the thread that is about to act.
pub trait FailpointHook: Send + Sync {
    /// The verdict for one effect; must not block for long and must not pass failpoints itself.
    fn at(&self, step: &Failpoint) -> Verdict;

    /// Learns of an effect on a disk, on the thread that caused it; must not pass failpoints
    /// itself.
    fn done(&self, _effect: &Effect) {}

    /// May change what the disk returned for a read, at this offset of the file at this path.
    fn has_read(&self, _path: &str, _at_bytes: u64, _bytes: &mut [u8]) {}
}

struct Hooked {
    hook: Arc<dyn FailpointHook>,
    taken: AtomicU64,
}

/// The counter of failpoints with its hook; clones share both.
#[derive(Clone, Default)]
pub struct Failpoints(Option<Arc<Hooked>>);

/// What the code at a failpoint has to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The effect happens.
    Go,
    /// It fails with this error number.
    Fail(i32),
    /// It transfers at most this many bytes.
    Short(usize),
    /// It is reported as done and does not happen.
    Pretend,
}

impl Failpoints {
    /// No hook: every effect happens, and nothing is counted.
    #[must_use]
    pub fn none() -> Self {
        Failpoints(None)
    }

    /// Failpoints that consult `hook`.
    #[must_use]
    pub fn with(hook: Arc<dyn FailpointHook>) -> Self {
        Failpoints(Some(Arc::new(Hooked {
            hook,
            taken: AtomicU64::new(0),
        })))
    }

    /// Passes a failpoint. `Ok(None)`: continue. `Ok(Some(n))`: transfer at most `n` bytes, then
    /// continue. An error if the hook makes the effect fail. Does not return if the hook kills the
    /// process.
    pub fn at(&self, site: &'static str, target: &str) -> Result<Option<usize>> {
        match self.outcome(site, target) {
            Outcome::Go | Outcome::Pretend => Ok(None),
            Outcome::Short(count) => Ok(Some(count)),
            Outcome::Fail(errno) => Err(os_error(errno, format_args!("{site} of {target}"))),
        }
    }

    /// Number of failpoints passed so far; 0 without a hook.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.0
            .as_ref()
            .map_or(0, |hooked| hooked.taken.load(Ordering::SeqCst))
    }

    /// Whether there is a hook; otherwise nothing needs a name.
    #[inline]
    pub fn are_taken(&self) -> bool {
        self.0.is_some()
    }

    /// Passes a failpoint; returns what the code there has to do.
    #[inline]
    pub fn outcome(&self, site: &'static str, target: &str) -> Outcome {
        match &self.0 {
            None => Outcome::Go,
            Some(hooked) => hooked.ask(site, target),
        }
    }

    /// Reports an effect to the hook.
    #[inline]
    pub fn done(&self, effect: Effect) {
        if let Some(hooked) = &self.0 {
            hooked.hook.done(&effect);
        }
    }

    /// Shows the hook what was read.
    #[inline]
    pub fn has_read(&self, path: &str, at_bytes: u64, bytes: &mut [u8]) {
        if let Some(hooked) = &self.0 {
            hooked.hook.has_read(path, at_bytes, bytes);
        }
    }

    /// For effects that transfer no bytes: the error number to fail with, if any.
    #[inline]
    pub fn refuse(&self, site: &'static str, target: &str) -> Option<i32> {
        match self.outcome(site, target) {
            Outcome::Fail(errno) => Some(errno),
            Outcome::Go | Outcome::Short(_) | Outcome::Pretend => None,
        }
    }

    /// For syncs: whether to do it, or the error number to fail with.
    #[inline]
    pub fn sync(&self, site: &'static str, target: &str) -> std::result::Result<bool, i32> {
        match self.outcome(site, target) {
            Outcome::Fail(errno) => Err(errno),
            Outcome::Pretend => Ok(false),
            Outcome::Go | Outcome::Short(_) => Ok(true),
        }
    }
}

impl Hooked {
    #[cold]
    fn ask(&self, site: &'static str, target: &str) -> Outcome {
        let number = self.taken.fetch_add(1, Ordering::SeqCst) + 1;
        match self.hook.at(&Failpoint {
            number,
            site,
            target,
        }) {
            Verdict::Go => Outcome::Go,
            Verdict::Fail(errno) => Outcome::Fail(errno),
            Verdict::Short(count) => Outcome::Short(count),
            Verdict::Pretend => Outcome::Pretend,
            Verdict::Kill => kill_self(),
        }
    }
}

fn kill_self() -> ! {
    let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    // SIGKILL cannot be refused; if the kernel delivers it late, no further effect may happen.
    loop {
        std::thread::park();
    }
}

impl fmt::Debug for Failpoints {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            None => f.write_str("Failpoints(none)"),
            Some(_) => write!(f, "Failpoints({} taken)", self.count()),
        }
    }
}
