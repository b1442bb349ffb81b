//! The thread that makes the lost copies again of the checkpoint that a run resumed from.
//!
//! How: one container after the other, as `engine::mend` planned; what is left is known at any time.
//!
//! Invariants:
//! 1. What could not be made is noted, and stays in the list of what is left.
//!
//! Not here: which copies these are, and how they travel (`engine::mend`, `engine::replicas`).

use orcheck_engine::control::ControlShared;
use orcheck_engine::host::join;
use orcheck_engine::mend::{self, Copy};
use orcheck_engine::replicas::Replicas;
use orcheck_format::error::{Error, Result};
use orcheck_io::clock::Clock;
use orcheck_io::dir::Dir;
use orcheck_io::thread::spawn;
use std::collections::BTreeMap;
use std::slice;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Of each container with copies that are missing: why, if it was tried.
type Left = Arc<Mutex<BTreeMap<String, Option<String>>>>;

/// A thread that makes copies. It ends early when the session's flush is told to stop.
pub(crate) struct Mender {
    thread: JoinHandle<Result<()>>,
    step: u64,
    left: Left,
}

impl Mender {
    /// Begins to make these copies of a step; `dirs` are this node's and those of others.
    pub(crate) fn start(
        step: u64,
        copies: Vec<Copy>,
        dirs: (Arc<dyn Dir>, Vec<Arc<dyn Dir>>),
        replicas: Arc<Replicas>,
        shared: Arc<ControlShared>,
    ) -> Result<Self> {
        let left = copies.iter().map(|copy| (copy.file.clone(), None));
        let left: Left = Arc::new(Mutex::new(left.collect()));
        let open = Arc::clone(&left);
        let thread = spawn("orcheck-mend", move || {
            let (dir, others) = dirs;
            let mut made = 0;
            for copy in &copies {
                let mended = mend::mend(slice::from_ref(copy), dir.as_ref(), &others, &replicas);
                made += mended.made;
                let mut open = open.lock().unwrap_or_else(PoisonError::into_inner);
                if mended.errors.is_empty() {
                    open.remove(&copy.file);
                }
                for error in mended.errors {
                    open.insert(copy.file.clone(), Some(error.message().to_owned()));
                    shared.note(format!(
                        "a copy of step {step} could not be made again: {error}"
                    ));
                }
            }
            if made > 0 {
                shared.note(format!(
                    "{made} copies of step {step} were made again after the loss of nodes"
                ));
            }
            Ok(())
        })?;
        Ok(Mender { thread, step, left })
    }

    /// The step whose copies it makes.
    pub(crate) fn step(&self) -> u64 {
        self.step
    }

    /// Waits until all are made, or `needless`, at most until this time of the clock.
    ///
    /// # Errors
    /// Unavailable: it names what was not made, and why.
    pub(crate) fn wait(
        &self,
        clock: &dyn Clock,
        until: Duration,
        needless: impl Fn() -> bool,
    ) -> Result<()> {
        loop {
            let ended = self.thread.is_finished();
            let left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
            if left.is_empty() || needless() {
                return Ok(());
            }
            if ended || clock.now() >= until {
                let each = left.iter().map(|(file, why)| {
                    why.clone()
                        .unwrap_or_else(|| format!("{file}: there was no time for it"))
                });
                let all: Vec<String> = each.collect();
                return Err(Error::unavailable(format!(
                    "the copies of checkpoint {} on other nodes were not all made again: {}",
                    self.step,
                    all.join("; ")
                ))
                .next("keep these nodes and restart: a restart makes the missing copies again"));
            }
            drop(left);
            clock.sleep(Duration::from_millis(1));
        }
    }

    /// Waits for its end, after it was told to end, at most `timeout`.
    pub(crate) fn join(self, clock: &dyn Clock, timeout: Duration) {
        // What it did not get to is made again after the next restart.
        let _ = join(self.thread, clock, timeout);
    }
}
