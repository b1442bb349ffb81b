//! Makes what programs have written durable, one file after the other.
//!
//! How: a closed file waits in a queue, and one thread takes them in order: many files that are
//! written at once reach a disk as few long runs. Whoever waits for a file (`fsync`, a rename over
//! another file, a full stage) goes first: the thread pauses between two pieces.
//!
//! Invariants:
//! 1. One file at a time is flushed or synced by the lane.
//! 2. A failure is told: to the next caller that concerns the file, and to whoever runs the mount.
//!    A staged file stays staged and is tried again; bytes of an unstaged one that a failed sync
//!    has dropped are a loss.
//! 3. Nobody waits for the lane while he holds the state of a node.
//!
//! Faults survived: full and failing disks.
//!
//! Not here: how a staged file is flushed (`stage.rs`).

use crate::node::Node;
use crate::stage::Stage;
use crate::tree::Tree;
use orcheck_format::sabotage::{Switch, off};
use orcheck_io::clock::Deadline;
use orcheck_io::disk::Kernel;
use rustix::io::Errno;
use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Between two attempts to flush what could not be.
const AGAIN: Duration = Duration::from_secs(5);

/// Tells whoever runs the mount.
pub type Tell = Box<dyn Fn(&str) + Send + Sync>;

/// The queue of what is not durable yet, and who works on it.
pub struct Lane {
    stage: Option<Arc<Stage>>,
    tree: Arc<Tree>,
    tell: Tell,
    state: Mutex<Waiting>,
    changed: Condvar,
}

#[derive(Default)]
struct Waiting {
    queue: VecDeque<Arc<Node>>,
    /// What failed and is tried again.
    stuck: Vec<Arc<Node>>,
    /// Numbers of the nodes for which somebody waits.
    urgent: Vec<u64>,
    busy: bool,
    /// The thread of the lane has let somebody go first, and is not done with its file.
    paused: bool,
    ended: bool,
    counts: Counts,
}

impl Waiting {
    fn is_working(&self) -> bool {
        self.busy || self.paused || !self.queue.is_empty()
    }
}

/// What a mount has done.
#[derive(Default, Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    /// Files that became durable after they were closed, or when somebody waited for it.
    pub durable_files: u64,
    /// Failures to make a file durable.
    pub failures: u64,
    /// Files that the stage still has.
    pub left_files: u64,
}

impl Lane {
    /// A lane for the nodes of a tree.
    pub fn new(tree: Arc<Tree>, stage: Option<Arc<Stage>>, tell: Tell) -> Lane {
        Lane {
            stage,
            tree,
            tell,
            state: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, Waiting> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, Waiting>, most: Duration) -> MutexGuard<'a, Waiting> {
        let woken = self.changed.wait_timeout(state, most);
        woken.unwrap_or_else(PoisonError::into_inner).0
    }

    /// A file that was closed: it becomes durable in its turn.
    pub fn add(&self, node: &Arc<Node>) {
        let mut known = node.change();
        if !std::mem::replace(&mut known.queued, true) {
            drop(known);
            self.state().queue.push_back(Arc::clone(node));
            self.changed.notify_all();
        }
    }

    /// Works until [`Lane::end`]; then on what is left, once.
    pub fn run(&self) {
        let mut again = Deadline::after(AGAIN);
        loop {
            let mut state = self.state();
            if again.passed() || state.ended {
                let stuck = std::mem::take(&mut state.stuck);
                state.queue.extend(stuck);
                again = Deadline::after(AGAIN);
            }
            if state.busy || !state.urgent.is_empty() {
                drop(self.wait(state, AGAIN));
                continue;
            }
            let Some(node) = state.queue.pop_front() else {
                if state.ended {
                    return;
                }
                drop(self.wait(state, AGAIN));
                continue;
            };
            state.busy = true;
            let last = state.ended;
            drop(state);
            let failed = self.process(&node);
            let mut state = self.state();
            state.busy = false;
            if failed && !last {
                state.stuck.push(node);
            } else if failed {
                state.counts.left_files += 1;
            }
            drop(state);
            self.changed.notify_all();
        }
    }

    /// Lets [`Lane::run`] end once nothing waits any more.
    pub fn end(&self) {
        self.state().ended = true;
        self.changed.notify_all();
    }

    /// What was done.
    pub fn counts(&self) -> Counts {
        self.state().counts
    }

    /// Makes one node durable; `true`: it is to be tried again.
    fn process(&self, node: &Arc<Node>) -> bool {
        let staged = node.look().stage.is_some();
        let result = if staged {
            self.flush(node, false, &|| self.give_way(node.number))
        } else {
            sync_unstaged(node)
        };
        let mut state = node.change();
        let again = match result {
            Ok(()) if state.stage.is_some() && state.opens == 0 => {
                // It was written again meanwhile, and closed.
                drop(state);
                self.state().queue.push_back(Arc::clone(node));
                return false;
            }
            Ok(()) => false,
            Err(errno) => {
                state.failed = Some(errno).filter(|_| !off(Switch::MountFailureTold));
                if state.stage.is_none() {
                    state.unsafe_since = None;
                }
                state.stage.is_some()
            }
        };
        state.queued = again;
        drop(state);
        match result {
            Ok(()) => self.state().counts.durable_files += 1,
            Err(errno) => self.tell_failure(node, errno, staged),
        }
        self.tree.settle(node);
        again
    }

    fn tell_failure(&self, node: &Node, errno: Errno, staged: bool) {
        self.state().counts.failures += 1;
        let path = node.path();
        let path = path.display();
        match staged {
            true => (self.tell)(&format!(
                "{path}: could not be flushed ({errno}); it stays in the stage and is tried \
                 again"
            )),
            false => (self.tell)(&format!(
                "{path}: may not be durable ({errno}); write it again"
            )),
        }
    }

    /// Between two pieces of a file in the queue: lets those go first for whom somebody waits.
    fn give_way(&self, number: u64) {
        let mut state = self.state();
        if state.urgent.is_empty() || state.urgent.contains(&number) {
            return;
        }
        (state.busy, state.paused) = (false, true);
        self.changed.notify_all();
        while state.busy || !state.urgent.is_empty() && !state.urgent.contains(&number) {
            state = self.wait(state, AGAIN);
        }
        (state.busy, state.paused) = (true, false);
    }

    /// Does something as soon as the lane is free, before what waits in the queue.
    fn urgently<T>(&self, number: u64, act: impl FnOnce() -> T) -> T {
        let mut state = self.state();
        state.urgent.push(number);
        while state.busy {
            state = self.wait(state, AGAIN);
        }
        state.busy = true;
        drop(state);
        let done = act();
        let mut state = self.state();
        state.busy = false;
        if let Some(at) = state.urgent.iter().position(|other| *other == number) {
            state.urgent.swap_remove(at);
        }
        drop(state);
        self.changed.notify_all();
        done
    }

    /// Flushes a staged file now, and makes it durable.
    pub fn flush_now(&self, node: &Arc<Node>) -> Kernel<()> {
        let done = self.urgently(node.number, || self.flush(node, true, &|| {}));
        if done.is_ok() {
            node.change().failed = None;
        }
        self.tree.settle(node);
        done
    }

    /// Flushes a staged file. With `hold` nobody writes to it meanwhile, where that can be
    /// prevented, and it is unstaged for certain.
    fn flush(&self, node: &Node, hold: bool, pause: &dyn Fn()) -> Kernel<()> {
        let Some(stage) = &self.stage else {
            return Ok(());
        };
        if !node.has_name() {
            let mut state = node.change();
            if state.opens == 0
                && let Some(staged) = state.stage.take()
            {
                stage.end(&staged);
                state.unsafe_since = None;
            }
            return Ok(());
        }
        if hold && !node.look().by_kernel() {
            let mut state = node.change();
            if let Some(staged) = state.stage.clone() {
                staged.flush(&|| {})?;
                state.unstage(stage, &staged);
            }
            return Ok(());
        }
        let Some(staged) = node.look().stage.clone() else {
            return Ok(());
        };
        let version = node.version();
        staged.flush(pause)?;
        let mut state = node.change();
        let writing = state.by_kernel() && state.writers > 0;
        // Breaks if: this is not compared; what was written behind the copy would be lost.
        if writing || node.version() != version && !off(Switch::StagedComplete) {
            return Ok(());
        }
        // Breaks if: this is noted before it is so; whoever closes the file meanwhile would end the
        // stage.
        staged.changed.store(false, Ordering::SeqCst);
        if !state.by_kernel() || state.opens == 0 {
            state.unstage(stage, &staged);
        }
        Ok(())
    }

    /// Waits for a while for room in the stage. `false`: nothing that could make room is under way.
    pub fn wait_for_room(&self) -> bool {
        let state = self.state();
        let under_way = state.is_working();
        if under_way {
            drop(self.wait(state, Duration::from_millis(100)));
        }
        under_way
    }

    /// Waits until all that is closed is durable.
    pub fn wait_for_all(&self) -> Kernel<()> {
        let mut state = self.state();
        while state.is_working() {
            state = self.wait(state, AGAIN);
        }
        if state.stuck.is_empty() {
            Ok(())
        } else {
            Err(Errno::IO)
        }
    }
}

/// Syncs a file whose bytes are in the backing file already.
fn sync_unstaged(node: &Node) -> Kernel<()> {
    let Some(handle) = node.look().unsafe_since.clone() else {
        return Ok(());
    };
    if node.has_name() {
        handle.contents.sync(false)?;
    }
    let mut state = node.change();
    let same = state
        .unsafe_since
        .as_ref()
        .is_some_and(|other| Arc::ptr_eq(other, &handle));
    if same && state.writers == 0 {
        state.unsafe_since = None;
    }
    Ok(())
}
