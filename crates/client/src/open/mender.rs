//! Runs the thread that makes lost copies of the checkpoint again that a run resumed from.
//!
//! How: it makes one container after the other, as planned by `engine::replicas`; what is left is
//! known at any time.
//!
//! Invariants:
//! 1. A copy that could not be made is noted, and stays in the list of what is left; so does one
//!    for which there is no node.
//!
//! Not here: which copies are made, and how they travel (`engine::replicas`).

use orcheck_engine::commit::ControlShared;
use orcheck_engine::host::join;
use orcheck_engine::replicas::Replicas;
use orcheck_engine::replicas::mend::{self, Copy};
use orcheck_format::{Error, Result, Step};
use orcheck_io::clock::Clock;
use orcheck_io::disk::Dir;
use orcheck_io::machine::thread::spawn;
use std::collections::BTreeMap;
use std::slice;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// For each container with missing copies: why, if every attempt was made.
type Left = Arc<Mutex<BTreeMap<String, Option<Error>>>>;

/// A thread that makes copies. It ends early if the session's flush is told to stop.
pub(crate) struct Mender {
    /// `None` if no copy can be made.
    thread: Option<JoinHandle<Result<()>>>,
    step: Step,
    /// Why no copy is made at all.
    none: Option<Error>,
    /// Whether an agent has ended meanwhile, and its engine with it.
    interrupted: bool,
    left: Left,
}

impl Mender {
    /// Copies of a step that cannot be made: which, and why.
    pub(crate) fn unable(step: Step, why: impl IntoIterator<Item = (String, Error)>) -> Self {
        let left = why.into_iter().map(|(of, why)| (of, Some(why)));
        Mender {
            thread: None,
            step,
            none: None,
            interrupted: false,
            left: Arc::new(Mutex::new(left.collect())),
        }
    }

    /// Copies of a step that are not made and are not known individually.
    pub(crate) fn none(step: Step, why: Error) -> Self {
        Mender {
            none: Some(why),
            ..Self::unable(step, [])
        }
    }

    /// Starts to make these copies of the step too, until told to `stop`; `dirs` are those of this
    /// node and of others.
    pub(crate) fn start(
        mut self,
        copies: Vec<Copy>,
        dirs: (Arc<dyn Dir>, Vec<Arc<dyn Dir>>),
        replicas: Arc<Replicas>,
        (shared, stop): (Arc<ControlShared>, Arc<AtomicBool>),
    ) -> Result<Self> {
        let step = self.step;
        let open = Arc::clone(&self.left);
        let begun = copies.iter().map(|copy| (copy.file.clone(), None));
        (open.lock().unwrap_or_else(PoisonError::into_inner)).extend(begun);
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
                    // Breaks if: it counts as a failure; other nodes have ended the job already.
                    let node = replicas.node_name();
                    shared.note(match shared.closing.load(Ordering::Acquire) {
                        true => format!("node {node}: the job ended before all files of step {step} were rebuilt. Next: start it again, which rebuilds them, or set close = 'copies'"),
                        false => format!(
                            "node {node}: a file of step {step} could not be rebuilt: {error}"
                        ),
                    });
                    // Breaks if: an attempt that a stop interrupts counts as complete; the end of a
                    // session that continues would be blamed.
                    let tried = Some(error).filter(|_| !stop.load(Ordering::Acquire));
                    open.insert(copy.file.clone(), tried);
                }
            }
            if made > 0 {
                shared.note(format!(
                    "node {}: files of step {step} rebuilt after the loss of nodes: {made}",
                    replicas.node_name()
                ));
            }
            Ok(())
        })?;
        self.thread = Some(thread);
        Ok(self)
    }

    /// The step whose copies it makes.
    pub(crate) fn step(&self) -> Step {
        self.step
    }

    /// Marks that the agent whose engine makes them has ended and another one takes over: what is
    /// not made yet waits for a restart.
    pub(crate) fn interrupted(self) -> Self {
        Mender {
            interrupted: true,
            ..self
        }
    }

    /// Waits until all are made or `needless` holds, at most until this time of the clock.
    ///
    /// # Errors
    /// Unavailable, naming what was not made and why.
    pub(crate) fn wait(
        &self,
        clock: &dyn Clock,
        until: Duration,
        needless: impl Fn() -> bool,
    ) -> Result<()> {
        loop {
            let ended = self.thread.as_ref().is_none_or(JoinHandle::is_finished);
            let left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
            if self.none.is_none() && left.is_empty() || needless() {
                return Ok(());
            }
            if ended || clock.now() >= until {
                let each = left.iter().map(|(file, why)| match why {
                    Some(why) => why.what(),
                    None if self.interrupted => {
                        format!("{file}: an agent of the job ended before it was made")
                    }
                    None => format!("{file}: there was no time for it"),
                });
                let none = self.none.iter().map(Error::what);
                let all: Vec<String> = none.chain(each).collect();
                let error = Error::unavailable(format!(
                    "the copies of checkpoint {} on other nodes were not all rebuilt: {}",
                    self.step,
                    all.join("; ")
                ));
                // If one error names another next step, a restart with the same nodes would lack
                // the same copies.
                let mut whys = self.none.iter().chain(left.values().flatten());
                let next = whys.find_map(Error::next_step);
                return Err(error.next(next.unwrap_or(
                    "keep these nodes and restart: a restart makes the missing copies again",
                )));
            }
            drop(left);
            clock.sleep(Duration::from_millis(1));
        }
    }

    /// Waits at most `timeout` for its end, after it was told to end.
    pub(crate) fn join(self, clock: &dyn Clock, timeout: Duration) {
        // What it did not finish is rebuilt after the next restart.
        if let Some(thread) = self.thread {
            let _ = join(thread, clock, timeout);
        }
    }
}
