//! Makes what programs have written durable, one file after the other.
//!
//! How: a closed file waits in a queue, and one thread takes the files in order: many files that
//! are written at once reach a disk as few long runs. Staged files that somebody waits for
//! (`fsync`, a rename over another file, a full stage) go first: the thread yields to them between
//! two pieces.
//!
//! Invariants:
//! 1. One staged file at a time is flushed.
//! 2. A failure is reported: to the next caller that concerns the file, and to whoever runs the
//!    mount. A staged file stays staged and is tried again; bytes of an unstaged one that a failed
//!    sync has dropped are a loss.
//! 3. No thread waits for the lane while holding a node's state.
//! 4. A file that nobody writes and that is not durable is in the queue, being worked on, or waits
//!    to be tried again.
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
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Between two attempts to flush what could not be.
const AGAIN: Duration = Duration::from_secs(5);
/// Attempts to flush a file that is being written, before it is locked.
const UNLOCKED_ATTEMPTS: u32 = 2;

/// Tells whoever runs the mount.
pub type Tell = Arc<dyn Fn(&str) + Send + Sync>;

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
    /// The file with which the thread of the lane is not done, although it lets somebody go first.
    paused: Option<u64>,
    ended: bool,
    counts: Counts,
}

impl Waiting {
    fn is_working(&self) -> bool {
        self.busy || self.paused.is_some() || !self.queue.is_empty()
    }
}

/// What a mount has done.
#[derive(Default, Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    /// Files that became durable after they were closed.
    pub durable_files: u64,
    /// Files that lost bytes, and directories that may have lost names.
    pub lost_files: u64,
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

    /// Whether a file that has a name lost bytes.
    pub fn has_lost(&self) -> bool {
        let nodes = self.tree.all();
        let mut lost = nodes.iter().filter(|node| node.look().is_lost());
        lost.any(|node| node.has_name() != Ok(false))
    }

    /// What was done.
    pub fn counts(&self) -> Counts {
        self.state().counts
    }

    /// Makes one node durable; `true`: it is to be tried again later.
    fn process(&self, node: &Arc<Node>) -> bool {
        let staged = node.look().stage.is_some();
        let done = if staged {
            self.flush(node, false, &|| self.give_way(node.number))
        } else {
            self.sync(node)
        };
        // What has no name is not made durable; its last close drops it.
        let named = node.has_name() != Ok(false);
        let mut state = node.change();
        let (mut later, mut news) = (false, false);
        if let Err(errno) = done {
            later = state.stage.is_some();
            news = state.fail(errno, !staged);
        }
        // Breaks if: this is not asked; what was written and closed during the sync would wait for
        // a turn that never comes.
        let again = !later && named && state.writers == 0 && state.is_unsafe();
        state.queued = later || again;
        drop(state);
        match done {
            Ok(()) if !again => self.state().counts.durable_files += 1,
            Err(errno) if news => self.tell_failure(node, errno, staged),
            _ => {}
        }
        if again {
            self.state().queue.push_back(Arc::clone(node));
        }
        self.tree.settle(node);
        later
    }

    fn tell_failure(&self, node: &Node, errno: Errno, staged: bool) {
        let path = node.path();
        let path = path.display();
        if staged && errno == Errno::BUSY {
            return (self.tell)(&format!(
                "{path}: somebody else has written the file in the backing directory; what was \
                 written here stays in the stage"
            ));
        }
        if staged {
            return (self.tell)(&format!(
                "{path}: could not be flushed ({errno}); it stays in the stage and is tried again"
            ));
        }
        self.lose(&format!(
            "{path}: may not be durable ({errno}); write it again"
        ));
    }

    /// Reports that something did not become durable.
    pub fn lose(&self, what: &str) {
        self.state().counts.lost_files += 1;
        (self.tell)(what);
    }

    /// Between two pieces of a file in the queue: yields to files that somebody is waiting for.
    fn give_way(&self, number: u64) {
        let mut state = self.state();
        if state.urgent.is_empty() || state.urgent.contains(&number) {
            return;
        }
        (state.busy, state.paused) = (false, Some(number));
        self.changed.notify_all();
        while state.busy || !state.urgent.is_empty() && !state.urgent.contains(&number) {
            state = self.wait(state, AGAIN);
        }
        (state.busy, state.paused) = (true, None);
    }

    /// Does something as soon as the lane is free, before what waits in the queue.
    fn urgently<T>(&self, number: u64, act: impl FnOnce() -> T) -> T {
        let mut state = self.state();
        state.urgent.push(number);
        self.changed.notify_all();
        // Breaks if: a file that the lane is not done with is begun again; each would wait for the
        // other.
        while state.busy || state.paused == Some(number) {
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

    /// Flushes a staged file now.
    pub fn flush_now(&self, node: &Arc<Node>) -> Kernel<()> {
        let done = self.urgently(node.number, || self.flush(node, true, &|| {}));
        self.tree.settle(node);
        done
    }

    /// Flushes a staged file. Where `certain`, it is unstaged afterwards, whoever writes meanwhile.
    fn flush(&self, node: &Node, certain: bool, pause: &dyn Fn()) -> Kernel<()> {
        let Some(stage) = &self.stage else {
            return Ok(());
        };
        for attempt in 1.. {
            let Some(staged) = node.look().stage.clone() else {
                return Ok(());
            };
            if !certain && !node.has_name()? {
                let mut state = node.change();
                if state.opens == 0 {
                    state.unstage(stage, &staged);
                }
                return Ok(());
            }
            if certain && attempt > UNLOCKED_ATTEMPTS {
                let mut state = node.change();
                // Not the one from before it was locked: that may have ended meanwhile.
                if let Some(staged) = state.stage.clone() {
                    stage.flush(&staged, &|| {})?;
                    state.unstage(stage, &staged);
                }
                return Ok(());
            }
            let version = node.version();
            stage.flush(&staged, pause)?;
            let mut state = node.change();
            // Breaks if: this is not compared; what was written behind the copy would be lost.
            if node.version() == version || off(Switch::StagedComplete) {
                state.unstage(stage, &staged);
                return Ok(());
            }
            if !certain {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Syncs a file whose bytes are in the backing file already.
    fn sync(&self, node: &Node) -> Kernel<()> {
        let Some(handle) = node.look().unsynced.clone() else {
            return Ok(());
        };
        let done = match node.has_name() {
            Ok(false) => Ok(()),
            _ => handle.contents.sync(false),
        };
        let mut state = node.change();
        let same = state
            .unsynced
            .as_ref()
            .is_some_and(|other| Arc::ptr_eq(other, &handle));
        if same && state.writers == 0 {
            state.unsynced = None;
        }
        done
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
}
