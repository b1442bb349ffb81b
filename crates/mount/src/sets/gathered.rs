//! Knows which files programs have written through this mount, and the steps that they are of.
//!
//! How: the calls that open, close, rename and remove files report here what they did. A file is
//! known by its path. It belongs to the set that its path names, or that a list
//! (`.orcheck-set`) names; a written file that belongs to none is remembered, because a list may
//! name it later.
//!
//! Invariants:
//! 1. A file that a program may write is in no complete set.
//! 2. Before a file of a step can have bytes, the marks say that the step has begun.
//! 3. A file that is opened for writing while a set with it is taken spoils that set.
//!
//! Not here: which sets are complete (`decide.rs`), taking them (`taking.rs`).

use crate::lane::Tell;
use crate::node::Node;
use crate::sets::decide::{Counted, Key, List, Report};
use crate::sets::marks::{HOME, Marks};
use crate::sets::pattern::Pattern;
use orcheck_format::count;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The name of a file that lists the files of a step.
pub const LIST: &str = ".orcheck-set";
/// Most files without a set that are remembered.
const MOST_OTHERS: usize = 100_000;

/// What is known of the sets on this node.
pub struct Gathered {
    patterns: Vec<Pattern>,
    /// The file whose closing completes a set.
    end: Option<Pattern>,
    marks: Arc<Marks>,
    tell: Tell,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    files: BTreeMap<PathBuf, File>,
    /// Files without a set among them.
    others: usize,
    /// Lists that were closed and not read yet.
    lists: Vec<PathBuf>,
    /// Sets whose last file was closed.
    ended: BTreeSet<Key>,
    /// A set is being taken.
    taking: bool,
    /// What was opened for writing meanwhile, by device and inode number.
    opened: HashSet<(u64, u64)>,
    /// The mount is over.
    ending: bool,
    /// Nobody waits for the other nodes any more.
    cut: bool,
}

struct File {
    set: Option<Key>,
    is: Is,
}

/// The state of a file.
#[derive(Clone, Copy)]
struct Is {
    /// A program may write it.
    open: bool,
    /// It was written since the last set with it was taken.
    fresh: bool,
    /// A program that wrote it was killed, or has failed.
    broken_off: bool,
}

impl Is {
    const OPEN: Is = Is {
        open: true,
        fresh: false,
        broken_off: false,
    };

    fn whole(self) -> bool {
        !self.open && !self.broken_off
    }

    fn written(broken_off: bool) -> Is {
        Is {
            open: false,
            fresh: true,
            broken_off,
        }
    }
}

impl Gathered {
    /// Nothing is known yet.
    pub fn new(
        patterns: Vec<Pattern>,
        end: Option<Pattern>,
        marks: Arc<Marks>,
        tell: Tell,
    ) -> Gathered {
        Gathered {
            patterns,
            end,
            marks,
            tell,
            state: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The marks in the backing directory.
    pub fn marks(&self) -> &Marks {
        &self.marks
    }

    /// The set of a path.
    fn set_of(&self, path: &Path) -> Option<Key> {
        let mut patterns = self.patterns.iter().chain(&self.end);
        let found = patterns.find_map(|pattern| pattern.find(path))?;
        Some(found.map_or(Key::Next, Key::Step))
    }

    /// A program may write the file from now on.
    pub fn opened(&self, node: &Node) {
        let path = node.path();
        if path.starts_with(HOME) {
            return;
        }
        let mut state = self.state();
        if state.taking {
            state.opened.insert(node.key);
        }
        self.put(&mut state, path, Is::OPEN);
    }

    /// A program was killed, or has failed, before it closed the file.
    pub fn broken_off(&self, node: &Node) {
        if let Some(file) = self.state().files.get_mut(&node.path()) {
            file.is.broken_off = true;
        }
    }

    /// Nobody writes the file any more.
    pub fn closed(&self, node: &Node) {
        let path = node.path();
        let mut state = self.state();
        // What is open at the end was not closed by a program.
        if path.starts_with(HOME) || state.ending {
            return;
        }
        let broken_off = state
            .files
            .get(&path)
            .is_some_and(|file| file.is.broken_off);
        self.put(&mut state, path, Is::written(broken_off));
        self.changed.notify_all();
    }

    fn put(&self, state: &mut State, path: PathBuf, is: Is) {
        let set = self.set_of(&path);
        if let Some(Key::Step(step)) = set
            && state.files.get(&path).is_none_or(|file| file.set != set)
        {
            self.mark(step, [path.as_path()].into_iter());
        }
        let whole = is.whole();
        if whole && path.file_name() == Some(OsStr::new(LIST)) {
            state.lists.push(path.clone());
        }
        if whole
            && let (Some(set), Some(end)) = (set, &self.end)
            && end.find(&path).is_some()
        {
            state.ended.insert(set);
        }
        let before = state.files.insert(path, File { set, is });
        let was_other = before.is_some_and(|file| file.set.is_none());
        state.others = state.others + usize::from(set.is_none()) - usize::from(was_other);
        if state.others > MOST_OTHERS {
            state
                .files
                .retain(|_, file| file.set.is_some() || file.is.open);
            state.others = state.files.values().filter(|one| one.set.is_none()).count();
        }
    }

    fn mark<'a>(&self, step: u64, paths: impl Iterator<Item = &'a Path>) {
        if let Err(errno) = self.marks.begin(step, paths) {
            self.tell(&format!(
                "step {step} cannot be marked as begun ({errno}): after a crash, an incomplete set \
                 of it is not moved aside"
            ));
        }
    }

    /// A file or a directory has another name. `is_file`: it is a regular file.
    pub fn renamed(&self, from: &Path, to: &Path, is_file: bool) {
        let mut state = self.state();
        self.take_out(&mut state, to);
        let moved = self.take_out(&mut state, from);
        if moved.is_empty() && is_file && !to.starts_with(HOME) && self.set_of(to).is_some() {
            self.put(&mut state, to.to_owned(), Is::written(false));
        }
        for (path, file) in moved {
            let path = match path.strip_prefix(from) {
                Ok(below) if below != Path::new("") => to.join(below),
                _ => to.to_owned(),
            };
            if !path.starts_with(HOME) {
                self.put(&mut state, path, file.is);
            }
        }
        self.changed.notify_all();
    }

    /// Two names have changed places.
    pub fn exchanged(&self, one: &Path, other: &Path) {
        let mut state = self.state();
        let pairs = [(self.take_out(&mut state, one), (one, other))];
        let back = (self.take_out(&mut state, other), (other, one));
        for (moved, (from, to)) in pairs.into_iter().chain([back]) {
            for (path, file) in moved {
                let below = path.strip_prefix(from).unwrap_or(Path::new(""));
                let path = if below == Path::new("") {
                    to.to_owned()
                } else {
                    to.join(below)
                };
                self.put(&mut state, path, file.is);
            }
        }
        self.changed.notify_all();
    }

    /// A name is gone.
    pub fn removed(&self, path: &Path) {
        self.take_out(&mut self.state(), path);
    }

    /// Forgets a path, and all below it.
    fn take_out(&self, state: &mut State, path: &Path) -> Vec<(PathBuf, File)> {
        let within = state.files.range(path.to_owned()..);
        let within = within.take_while(|(other, _)| other.starts_with(path));
        let paths: Vec<PathBuf> = within.map(|(other, _)| other.clone()).collect();
        let mut taken = Vec::new();
        for path in paths {
            if let Some(file) = state.files.remove(&path) {
                state.others -= usize::from(file.set.is_none());
                taken.push((path, file));
            }
        }
        taken
    }

    /// Lists that were closed since the last call.
    pub fn take_lists(&self) -> Vec<PathBuf> {
        std::mem::take(&mut self.state().lists)
    }

    /// What the nodes tell each other; with the lists that were read.
    pub fn report(&self, lists: Vec<List>) -> Report {
        let state = self.state();
        let mut counted: BTreeMap<Key, Counted> = BTreeMap::new();
        for file in state.files.values() {
            if let Some(set) = file.set {
                let one = counted.entry(set).or_default();
                let whole = file.is.whole();
                one.open += u64::from(!whole);
                one.closed += u64::from(whole);
                one.fresh += u64::from(whole && file.is.fresh);
            }
        }
        for set in &state.ended {
            counted.entry(*set).or_default().ended = true;
        }
        Report {
            sets: counted.into_iter().collect(),
            lists,
            ending: state.ending,
        }
    }

    /// The files that a list names are of its step.
    pub fn adopt(&self, list: &List) {
        let mut state = self.state();
        let names = list.files.iter().map(Path::new);
        self.mark(list.step, names.clone());
        for name in names {
            if let Some(file) = state.files.get_mut(name) {
                let was_other = file.set.is_none();
                file.set = Some(Key::Step(list.step));
                file.is.fresh = !file.is.open;
                state.others -= usize::from(was_other);
            }
        }
    }

    /// The files of a set, which is being taken from now on; `None`: a program has begun to write
    /// one of them.
    pub fn begin_to_take(&self, set: Key) -> Option<Vec<PathBuf>> {
        let mut state = self.state();
        state.opened.clear();
        state.taking = true;
        let of_set = state.files.iter().filter(|(_, file)| file.set == Some(set));
        // Breaks if: what is not whole is left out; the set would be taken without it.
        let path = |(path, file): (&PathBuf, &File)| file.is.whole().then(|| path.clone());
        of_set.map(path).collect()
    }

    /// Whether somebody opened this file for writing since then.
    pub fn is_spoiled(&self, inode: (u64, u64)) -> bool {
        self.state().opened.contains(&inode)
    }

    /// The set is not taken now.
    pub fn stop_taking(&self) {
        self.state().taking = false;
    }

    /// The set was taken, or will not be.
    pub fn end_taking(&self, set: Key) {
        self.stop_taking();
        let mut state = self.state();
        state.ended.remove(&set);
        if set == Key::Next {
            let of_set = state
                .files
                .values_mut()
                .filter(|file| file.set == Some(set));
            of_set.for_each(|file| file.is.fresh = false);
        } else {
            state
                .files
                .retain(|_, file| file.set != Some(set) || file.is.open);
        }
    }

    /// Waits until something has changed, at most for a while.
    pub fn wait(&self, most: Duration) {
        let state = self.state();
        if state.lists.is_empty() && !state.ending {
            let woken = self.changed.wait_timeout(state, most);
            drop(woken);
        }
    }

    /// The mount is over: what is complete is taken, and nothing else comes. What is still open was
    /// not closed by a program.
    pub fn end(&self) {
        let mut state = self.state();
        state.ending = true;
        let open = state.files.values_mut().filter(|file| file.is.open);
        open.for_each(|file| file.is.broken_off = true);
        drop(state);
        self.changed.notify_all();
    }

    /// Nobody waits for the other nodes any more.
    pub fn cut(&self) {
        self.state().cut = true;
        self.changed.notify_all();
    }

    /// Whether [`Self::cut`] was called.
    pub fn is_cut(&self) -> bool {
        self.state().cut
    }

    /// Names the sets that are not complete at the end; returns how many.
    pub fn tell_incomplete(&self) -> u64 {
        let report = self.report(Vec::new());
        let steps = report.sets.iter().filter_map(|(set, counted)| match set {
            Key::Step(step) => Some((*step, counted.closed)),
            Key::Next => None,
        });
        let mut incomplete = 0;
        for (step, closed) in steps {
            incomplete += 1;
            let files = count(closed, "file");
            (self.tell)(&format!(
                "the set of step {step} is not complete ({files} of this node): it is not kept, \
                 and the next mount moves its files aside"
            ));
        }
        incomplete
    }

    /// Tells whoever runs the mount.
    pub fn tell(&self, text: &str) {
        (self.tell)(text);
    }
}

/// Shared by the calls and the thread that takes sets.
pub type Shared = Arc<Gathered>;
