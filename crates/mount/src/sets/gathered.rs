//! Knows which files programs have written through this mount, and the steps they belong to.
//!
//! How: the calls that open, close, rename and remove files report here what they did. A file is
//! known by its inode, and has a path. It belongs to the set that its path, or a list
//! (`.orcheck-set`), names. A written file without a set is remembered: a list may name it later.
//!
//! Invariants:
//! 1. A file that a program may write is in no complete set. Neither is one whose last program did
//!    not close it, or ended badly, until it is written again from the beginning.
//! 2. Before a file of a step can have bytes, the marks say that the step has begun.
//! 3. A file that is opened for writing while a set with it is taken spoils that set.
//! 4. Files with fixed names are a set only if all of them were written since the last one, and
//!    none of them twice.
//! 5. Nothing here waits for anything while the state is locked.
//!
//! Not here: which sets are complete (`decide.rs`), taking them (`taking.rs`).

use crate::lane::Tell;
use crate::node::Node;
use crate::sets::decide::{Counted, Key, List, Report};
use crate::sets::marks::{HOME, Marks};
use crate::sets::pattern::Pattern;
use orcheck_format::count;
use orcheck_io::clock::{Clock, SystemClock};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The name of a file that lists the files of a step.
pub const LIST: &str = ".orcheck-set";
/// Most files without a set that are remembered.
const MOST_OTHERS: usize = 100_000;
/// Least time between two looks at what was written.
const LEAST: Duration = Duration::from_millis(5);

/// Device and inode number.
pub type Inode = (u64, u64);

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
    files: HashMap<Inode, File>,
    paths: BTreeMap<PathBuf, Inode>,
    /// Paths that lists name, with their steps.
    listed: HashMap<PathBuf, u64>,
    /// Lists that were closed and not read yet.
    lists: Vec<PathBuf>,
    /// Sets whose last file was closed.
    ended: BTreeSet<Key>,
    /// Those that the last report had.
    told_ended: BTreeSet<Key>,
    /// Paths that are in the mark of their step.
    marked: HashSet<PathBuf>,
    /// The last step that was taken.
    last: Option<u64>,
    /// A set is being taken; what was opened for writing meanwhile.
    opened: Option<HashSet<Inode>>,
    /// A file of that set, which has fixed names, was written again or is gone meanwhile.
    disturbed: bool,
    /// Something has changed since the last report.
    dirty: bool,
    /// What is to be told once the state is not locked.
    news: Vec<String>,
    told_others: bool,
    /// Older steps whose files are written again, as was told.
    told_old: HashSet<u64>,
    /// How many of them are not kept.
    told_older: u64,
    /// The mount is over.
    ending: bool,
    /// Nobody waits for the other nodes any more.
    cut: bool,
    /// Sets are not taken any more.
    over: bool,
}

struct File {
    path: PathBuf,
    set: Option<Key>,
    /// Handles by which programs may write it.
    writers: u32,
    /// It was written since the last set with it was taken.
    fresh: bool,
    /// Its last program was killed, has failed, or did not close it.
    broken_off: bool,
    /// It is of the set that is being taken.
    taking: bool,
}

impl File {
    fn is_whole(&self) -> bool {
        self.writers == 0 && !self.broken_off
    }
}

impl State {
    /// Forgets the file of a path.
    fn take_out(&mut self, path: &Path) -> Option<(Inode, File)> {
        let inode = self.paths.remove(path)?;
        let file = self.files.remove(&inode)?;
        self.disturbed |= file.taking;
        if file.set == Some(Key::Next) && file.fresh {
            self.new_round(&file.path);
        }
        Some((inode, file))
    }

    /// A file with a fixed name was written again, or is gone, before its set was taken: the others
    /// are of another version.
    fn new_round(&mut self, path: &Path) {
        let of_next = self.files.values_mut();
        of_next
            .filter(|file| file.set == Some(Key::Next))
            .for_each(|file| file.fresh = false);
        if self.ended.remove(&Key::Next) {
            let path = path.display();
            self.news
                .push(format!("{path} has changed before its set was taken"));
        }
    }

    /// The known paths that are this one or below it.
    fn below(&self, path: &Path) -> Vec<PathBuf> {
        let from = self.paths.range(path.to_owned()..);
        let within = from.take_while(|(other, _)| other.starts_with(path));
        within.map(|(other, _)| other.clone()).collect()
    }

    fn insert(&mut self, inode: Inode, file: File) {
        self.paths.insert(file.path.clone(), inode);
        self.files.insert(inode, file);
    }
}

impl Gathered {
    /// Nothing is known yet; `last` is the newest step that is safe.
    pub fn new(
        (patterns, end): (Vec<Pattern>, Option<Pattern>),
        last: Option<u64>,
        marks: Arc<Marks>,
        tell: Tell,
    ) -> Gathered {
        Gathered {
            patterns,
            end,
            marks,
            tell,
            state: Mutex::new(State {
                last,
                ..State::default()
            }),
            changed: Condvar::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the state; afterwards, what is new is told, and the thread that takes sets looks.
    fn change<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.state();
        let done = act(&mut state);
        state.dirty = true;
        let news = std::mem::take(&mut state.news);
        drop(state);
        news.iter().for_each(|text| self.tell(text));
        self.changed.notify_all();
        done
    }

    /// The marks in the backing directory.
    pub fn marks(&self) -> &Marks {
        &self.marks
    }

    fn named(&self, path: &Path) -> Option<Key> {
        let mut patterns = self.patterns.iter().chain(&self.end);
        let found = patterns.find_map(|pattern| pattern.find(path))?;
        Some(found.map_or(Key::Next, Key::Step))
    }

    /// The set of a path; none for a step that is over.
    fn set_of(&self, state: &State, path: &Path) -> Option<Key> {
        let listed = state.listed.get(path).map(|step| Key::Step(*step));
        let set = listed.or_else(|| self.named(path))?;
        let over = matches!((set, state.last), (Key::Step(step), Some(last)) if step <= last);
        (!over).then_some(set)
    }

    /// A file will be created at this path, or get it.
    pub fn will_have(&self, path: &Path) {
        if path.starts_with(HOME) {
            return;
        }
        let state = self.state();
        let Some(Key::Step(step)) = self.set_of(&state, path) else {
            return;
        };
        if state.over || state.marked.contains(path) {
            return;
        }
        drop(state);
        let by_name = self.named(path) == Some(Key::Step(step));
        // Breaks if: it counts as marked before it is; another thread would not wait for that.
        if self.mark(step, [path].into_iter(), by_name) {
            self.state().marked.insert(path.to_owned());
        }
    }

    /// `true`: they are marked.
    fn mark<'a>(&self, step: u64, paths: impl Iterator<Item = &'a Path>, by_name: bool) -> bool {
        let marked = self.marks.begin(step, paths, by_name);
        if let Err(errno) = marked {
            self.tell(&format!(
                "step {step} cannot be marked as begun ({errno}): after a crash, its files are not \
                 moved aside if its set is incomplete"
            ));
        }
        marked.is_ok()
    }

    /// A program is about to open the file for writing.
    pub fn opens(&self, node: &Node) {
        let path = node.path();
        if path.starts_with(HOME) || self.state().over {
            return;
        }
        self.will_have(&path);
        let renamed = self.has_other_path(node, &path);
        self.change(|state| {
            if let Some(opened) = &mut state.opened {
                opened.insert(node.key);
            }
            self.known(state, (node.key, path), renamed);
            if let Some(file) = state.files.get_mut(&node.key) {
                file.writers += 1;
            }
        });
    }

    /// It has. `new`: the content begins from nothing.
    pub fn opened(&self, node: &Node, new: bool) {
        self.change(|state| {
            let Some(file) = state.files.get_mut(&node.key) else {
                return;
            };
            file.broken_off &= !new;
            state.disturbed |= std::mem::take(&mut file.taking);
            let was_fresh = std::mem::take(&mut file.fresh);
            let (path, set) = (file.path.clone(), file.set);
            if was_fresh && set == Some(Key::Next) {
                state.new_round(&path);
            }
            self.tell_old(state, &path);
            if let Some(at) = state.lists.iter().position(|list| *list == path) {
                state.lists.swap_remove(at);
                let path = path.display();
                let text = format!("{path} was written again before it was read: no set for it");
                state.news.push(text);
            }
        });
    }

    /// It could not: nothing has changed.
    pub fn not_opened(&self, node: &Node) {
        self.change(|state| {
            if let Some(file) = state.files.get_mut(&node.key) {
                file.writers = file.writers.saturating_sub(1);
            }
        });
    }

    /// Whether a file that nobody writes is known by a path that leads to it no more.
    fn has_other_path(&self, node: &Node, path: &Path) -> bool {
        let known = {
            let state = self.state();
            let file = state.files.get(&node.key);
            file.filter(|file| file.writers == 0 && file.path != path)
                .map(|file| file.path.clone())
        };
        known.is_some_and(|known| !self.leads_to(&known, node.key))
    }

    /// Sees to it that a file is known by its path.
    fn known(&self, state: &mut State, (inode, path): (Inode, PathBuf), renamed: bool) {
        if let Some(file) = state.files.get(&inode) {
            if !renamed {
                return;
            }
            let old = file.path.clone();
            state.take_out(&old);
        }
        // Another file, which somebody has replaced without us.
        state.take_out(&path);
        let file = File {
            set: self.set_of(state, &path),
            fresh: false,
            ..whole(&path)
        };
        state.insert(inode, file);
        self.bound_others(state);
    }

    /// Whether a path still leads to this file, which may have other names.
    fn leads_to(&self, path: &Path, inode: Inode) -> bool {
        let stat = self.marks.find(path).and_then(|found| found.stat());
        stat.is_ok_and(|stat| (stat.st_dev, stat.st_ino) == inode)
    }

    fn tell_old(&self, state: &mut State, path: &Path) {
        if let (Some(Key::Step(step)), Some(last)) = (self.named(path), state.last)
            && step <= last
            && state.told_old.insert(step)
        {
            state.news.push(match step == last {
                true => format!(
                    "files of step {step} are written again: its set has what they were before"
                ),
                false => format!(
                    "files of step {step} are written, but the last set was of step {last}: what \
                     is written now is not kept, because steps have to grow. Next: continue from \
                     an older step as docs/mount.md says"
                ),
            });
            state.told_older += u64::from(step < last);
        }
    }

    fn bound_others(&self, state: &mut State) {
        if state.files.len() <= MOST_OTHERS {
            return;
        }
        let kept = |file: &File| file.set.is_some() || file.writers > 0;
        let gone = state.files.extract_if(|_, file| !kept(file));
        let paths: Vec<PathBuf> = gone.map(|(_, file)| file.path).collect();
        for path in &paths {
            state.paths.remove(path);
        }
        if !std::mem::replace(&mut state.told_others, true) {
            let files = count(paths.len() as u64, "file");
            let text = format!("a list can no longer name {files} that were written before it");
            state.news.push(text);
        }
    }

    /// A handle is closed by which a program could write. `well`: by the program itself, or by one
    /// that ended well.
    pub fn closed(&self, node: &Node, well: bool) {
        self.change(|state| {
            let Some(file) = state.files.get_mut(&node.key) else {
                return;
            };
            file.writers = file.writers.saturating_sub(1);
            file.broken_off |= !well || state.ending;
            if file.is_whole() {
                file.fresh = true;
                let path = file.path.clone();
                self.completed(state, &path);
            }
        });
    }

    /// A whole file has this path.
    fn completed(&self, state: &mut State, path: &Path) {
        if path.file_name() == Some(OsStr::new(LIST)) {
            state.lists.push(path.to_owned());
        }
        let ends = self
            .end
            .as_ref()
            .is_some_and(|end| end.find(path).is_some());
        if let Some(set) = self.set_of(state, path).filter(|_| ends) {
            state.ended.insert(set);
        }
    }

    /// A file, if it is one, or a directory will have another name.
    pub fn will_be_renamed(&self, from: &Path, to: &Path, is_file: bool) {
        let below = self.state().below(from);
        let targets = below.iter().map(|path| moved_to(path, from, to));
        let file = is_file.then(|| to.to_owned());
        targets.chain(file).for_each(|path| self.will_have(&path));
    }

    /// A file, if it is one, or a directory has another name.
    pub fn renamed(&self, from: &Path, to: &Path, moved: Option<(&Node, bool)>) {
        let inode = moved.map(|(node, _)| node.key);
        let is_file = moved.is_some_and(|(_, is_file)| is_file);
        // What was written below a directory since then.
        self.will_be_renamed(from, to, is_file);
        // In one go: a file that is closed meanwhile must be found.
        self.change(|state| {
            if state.paths.get(to).copied() != inode || inode.is_none() {
                state.take_out(to);
            }
            let below = state.below(from);
            if let Some(inode) = inode.filter(|_| is_file && below.is_empty())
                && !state.paths.contains_key(to)
                && self.set_of(state, to).is_some()
            {
                // It was written before, or without us.
                self.put(state, inode, whole(to));
            }
            for path in below {
                if let Some((inode, mut file)) = state.take_out(&path) {
                    file.path = moved_to(&path, from, to);
                    self.put(state, inode, file);
                }
            }
        });
    }

    /// A file has the path that it says.
    fn put(&self, state: &mut State, inode: Inode, mut file: File) {
        let path = file.path.clone();
        if path.starts_with(HOME) {
            return;
        }
        file.set = self.set_of(state, &path);
        let done = file.is_whole() && file.fresh;
        state.take_out(&path);
        state.insert(inode, file);
        if done {
            self.completed(state, &path);
        }
    }

    /// A file has one more name.
    pub fn linked(&self, node: &Node, path: &Path) {
        self.will_have(path);
        self.change(|state| {
            if self.set_of(state, path).is_none() {
                return;
            }
            let mut file = match state.files.get(&node.key).map(|file| file.path.clone()) {
                Some(other) => match state.take_out(&other) {
                    Some((_, file)) => file,
                    None => whole(path),
                },
                None => whole(path),
            };
            file.path = path.to_owned();
            self.put(state, node.key, file);
        });
    }

    /// A name is gone.
    pub fn removed(&self, path: &Path) {
        self.change(|state| state.take_out(path));
    }

    /// Lists that were closed since the last call.
    pub fn take_lists(&self) -> Vec<PathBuf> {
        std::mem::take(&mut self.state().lists)
    }

    /// Whether the file of a path was closed, and nobody writes it.
    pub fn is_whole(&self, path: &Path) -> bool {
        let state = self.state();
        let file = state
            .paths
            .get(path)
            .and_then(|inode| state.files.get(inode));
        file.is_some_and(File::is_whole)
    }

    /// What the nodes tell each other; with the lists that were read.
    pub fn report(&self, lists: Vec<List>, undurable: Vec<u64>) -> Report {
        let mut state = self.state();
        state.dirty = false;
        let mut counted: BTreeMap<Key, Counted> = BTreeMap::new();
        for file in state.files.values() {
            if let Some(set) = file.set {
                let one = counted.entry(set).or_default();
                let (whole, listed) = (file.is_whole(), state.listed.contains_key(&file.path));
                one.open += u64::from(!whole);
                one.closed += u64::from(whole);
                one.fresh += u64::from(whole && file.fresh);
                one.listed += u64::from(whole && listed);
            }
        }
        for set in &state.ended {
            counted.entry(*set).or_default().ended = true;
        }
        state.told_ended = state.ended.clone();
        Report {
            sets: counted.into_iter().collect(),
            lists,
            undurable,
            ending: state.ending,
        }
    }

    /// The files that a list names are of its step. `own`: it was written here, and so were files
    /// that were there before this mount.
    pub fn adopt(&self, list: &List, own: bool) {
        let written = {
            let state = self.state();
            let names = list.files.iter().map(PathBuf::from);
            let over = state.last.is_some_and(|last| list.step <= last);
            names
                .filter(|path| !over && state.paths.contains_key(path))
                .collect::<Vec<_>>()
        };
        // Files that nobody wrote here are not moved aside.
        self.mark(list.step, written.iter().map(PathBuf::as_path), false);
        let there = |path: &String| {
            let stat = self
                .marks
                .find(Path::new(path))
                .and_then(|found| found.stat())
                .ok()?;
            let is_file = rustix::fs::FileType::from_raw_mode(stat.st_mode).is_file();
            is_file.then(|| (path.clone(), (stat.st_dev, stat.st_ino)))
        };
        let there = list.files.iter().filter(|_| own).filter_map(there);
        let there: HashMap<String, Inode> = there.collect();
        self.change(|state| {
            for path in &list.files {
                let inode = there.get(path).copied();
                let path = PathBuf::from(path);
                state.listed.insert(path.clone(), list.step);
                let set = self.set_of(state, &path);
                if let Some(inode) = inode.filter(|inode| !state.files.contains_key(inode))
                    && !state.paths.contains_key(&path)
                {
                    state.insert(inode, whole(&path));
                }
                let inode = state.paths.get(&path).copied();
                if let Some(file) = inode.and_then(|inode| state.files.get_mut(&inode)) {
                    (file.set, file.fresh) = (set, file.is_whole());
                }
            }
        });
    }

    /// The number of files that lists name for a step.
    pub fn listed(&self) -> BTreeMap<u64, u64> {
        let mut steps = BTreeMap::new();
        for step in self.state().listed.values() {
            *steps.entry(*step).or_insert(0) += 1;
        }
        steps
    }

    /// The files of a set, which is being taken from now on; `None`: a program has begun to write
    /// one of them.
    pub fn begin_to_take(&self, set: Key) -> Option<Vec<(PathBuf, Inode)>> {
        let mut state = self.state();
        state.opened = Some(HashSet::new());
        state.disturbed = false;
        // What the others decided from may be over by now.
        let mut whole = state.ended.remove(&set) || !state.told_ended.contains(&set);
        let of_set = state
            .files
            .iter_mut()
            .filter(|(_, file)| file.set == Some(set));
        let mut paths = Vec::new();
        for (inode, file) in of_set {
            // Breaks if: what is not whole is left out; the set would be taken without it.
            whole &= file.is_whole();
            file.taking = file.fresh || self.end.is_some();
            // Of those with fixed names, others are of an older version.
            if file.taking || set != Key::Next {
                paths.push((file.path.clone(), *inode));
            }
            file.fresh = false;
        }
        paths.sort();
        whole.then_some(paths)
    }

    /// The files of a set on this node, whole or not.
    pub fn files_of(&self, set: Key) -> Vec<(PathBuf, Inode)> {
        let state = self.state();
        let of_set = state.files.iter().filter(|(_, file)| file.set == Some(set));
        of_set
            .map(|(inode, file)| (file.path.clone(), *inode))
            .collect()
    }

    /// Whether somebody opened this file for writing since then.
    pub fn is_spoiled(&self, inode: Inode) -> bool {
        let state = self.state();
        state
            .opened
            .as_ref()
            .is_some_and(|opened| opened.contains(&inode))
    }

    /// The set is not taken now: it is as before.
    pub fn stop_taking(&self, set: Key) {
        self.change(|state| {
            state.opened = None;
            // Breaks if: this is not asked; the others would be of an older version.
            let gone = set == Key::Next && state.disturbed;
            let mut paths = Vec::new();
            for file in state
                .files
                .values_mut()
                .filter(|file| file.set == Some(set))
            {
                if std::mem::take(&mut file.taking) && file.is_whole() && !gone {
                    file.fresh = true;
                    paths.push(file.path.clone());
                }
            }
            paths.iter().for_each(|path| self.completed(state, path));
        });
    }

    /// The set was taken as this step, or will not be. Sets of older steps cannot be taken any
    /// more; returns how many.
    pub fn end_taking(&self, set: Key, taken: Option<u64>) -> u64 {
        self.change(|state| {
            state.opened = None;
            state
                .files
                .values_mut()
                .for_each(|file| file.taking = false);
            let last = taken.or(match set {
                Key::Step(step) => Some(step),
                Key::Next => None,
            });
            state.last = state.last.max(last);
            let mut left = BTreeSet::new();
            for file in state.files.values_mut() {
                if let Some(Key::Step(step)) = file.set
                    && state.last.is_some_and(|last| step <= last)
                {
                    file.set = None;
                    left.insert(step);
                }
            }
            let last = state.last;
            left.extend(state.listed.values().filter(|step| Some(**step) <= last));
            state.listed.retain(|_, step| Some(*step) > last);
            left.retain(|step| set != Key::Step(*step));
            state.ended.retain(|key| {
                matches!(key, Key::Step(step) if Some(*step) > last) || *key == Key::Next
            });
            state.marked.retain(
                |path| matches!(self.named(path), Some(Key::Step(step)) if Some(step) > last),
            );
            for step in &left {
                state.news.push(format!(
                    "the set of step {step} was not complete when a newer one was: it is not kept"
                ));
            }
            left.len() as u64
        })
    }

    /// Waits until something has changed, at most for a while.
    pub fn wait(&self, most: Duration) {
        // Of many files that are closed one after the other, not each needs a look.
        SystemClock.sleep(LEAST);
        let state = self.state();
        if !state.dirty {
            let woken = self.changed.wait_timeout(state, most);
            drop(woken);
        }
    }

    /// The mount is over: what is complete is taken, and nothing else comes. What is still open was
    /// not closed by a program.
    pub fn end(&self) {
        self.change(|state| {
            state.ending = true;
            let open = state.files.values_mut().filter(|file| file.writers > 0);
            open.for_each(|file| file.broken_off = true);
        });
    }

    /// Nobody waits for the other nodes any more.
    pub fn cut(&self) {
        self.change(|state| state.cut = true);
    }

    /// Whether [`Self::cut`] was called.
    pub fn is_cut(&self) -> bool {
        self.state().cut
    }

    /// Sets are not taken any more.
    pub fn give_up(&self) {
        self.change(|state| state.over = true);
    }

    /// Whether all files that are of sets by their names were closed well, and were taken.
    pub fn is_clean(&self) -> bool {
        let state = self.state();
        let of_sets = state.files.values().filter(|file| {
            file.set.is_some() || self.named(&file.path).is_some() && !file.is_whole()
        });
        let mut of_sets = of_sets.filter(|file| !file.is_whole() || file.fresh);
        of_sets.next().is_none()
    }

    /// Names the sets that are not complete at the end; returns how many, with those of older steps
    /// that were written.
    pub fn tell_incomplete(&self) -> u64 {
        let report = self.report(Vec::new(), Vec::new());
        let listed = self.listed();
        let mut sets: BTreeMap<Key, Counted> = report.sets.into_iter().collect();
        for step in listed.keys() {
            sets.entry(Key::Step(*step)).or_default();
        }
        // Files with fixed names may just not have been written again.
        sets.retain(|set, one| *set != Key::Next || one.open > 0 || one.fresh > 0);
        for (set, one) in &sets {
            let files = count(one.closed, "complete file");
            let of = match set {
                Key::Step(step) => format!("the set of step {step}"),
                Key::Next => "the last set".to_owned(),
            };
            self.tell(&format!(
                "{of} is not complete ({files} on this node): it is not kept, and the next mount \
                 moves its files aside"
            ));
        }
        sets.len() as u64 + self.state().told_older
    }

    /// Tells whoever runs the mount.
    pub fn tell(&self, text: &str) {
        (self.tell)(text);
    }
}

/// Where a path is after its directory, or itself, was renamed.
fn moved_to(path: &Path, from: &Path, to: &Path) -> PathBuf {
    match path.strip_prefix(from) {
        Ok(below) if below != Path::new("") => to.join(below),
        _ => to.to_owned(),
    }
}

/// A file that was written before it got this path.
fn whole(path: &Path) -> File {
    File {
        path: path.to_owned(),
        set: None,
        writers: 0,
        fresh: true,
        broken_off: false,
        taking: false,
    }
}

/// Shared by the calls and the thread that takes sets.
pub type Shared = Arc<Gathered>;

#[cfg(test)]
#[allow(clippy::disallowed_methods)]
mod tests;
