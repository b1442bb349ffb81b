//! How much of the disk those who share a key have taken, and how much they may.
//!
//! How: one account for each directory of a key. In it each file is known by what it is, its inode, whatever its name and
//! those who have it open, with what it takes as the disk itself says: looked at after everything that may have changed it.
//! What is about to be taken (bytes that came, space to reserve, a name) is charged first, and refused beyond the quota.
//! Changes of names are done one at a time, so that what a name meant before and means afterwards is known. Now and then
//! all that lies in the directory is counted again, beside what is being done.
//!
//! What is charged:
//! * a file: the longest of its length, the blocks that it has and what was reserved for it, in whole [`BLOCK_BYTES`];
//! * a directory: its blocks;
//! * each name of either: [`ENTRY_BYTES`].
//!
//! Invariants:
//! 1. What is charged is the sum over all that is known, each once; nothing is subtracted that was not added.
//! 2. A file without a name is charged until the last connection that has it open has closed it.
//! 3. Where there is no limit, only open files are known: each is looked at once.
//! 4. Counting again changes nothing about what changed meanwhile: that was looked at later.
//! 5. Of two looks at one file, the one that began later counts, whichever is noted first: every change is followed by a look of
//!    its own.
//!
//! Survives: calls that fail half-way (what is there is looked at afterwards), whoever changes the directory beside the
//! server (found when it is counted again, and logged). Not here: when it is counted again (`recount.rs`), what else
//! fills the disk (it says so itself).

use crate::server::locked::guard;
use orcheck_format::sabotage::{Switch, off};
use orcheck_format::wire::{MAX_DEPTH, StoreDir};
use orcheck_format::{Error, ErrorKind, Result};
use orcheck_io::disk::{Create, Dir, DiskUsage, File};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// What each name of a file or directory is charged, whatever it is the name of.
pub(crate) const ENTRY_BYTES: u64 = 4096;
/// Lengths are charged in whole ones of these.
const BLOCK_BYTES: u64 = 4096;
/// No limit.
const UNLIMITED: u64 = u64::MAX;

type Id = (u64, u64);

/// What is known of one file or directory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Known {
    /// Its length or its blocks, whichever is more.
    stored: u64,
    reserved: u64,
    names: u64,
    opened: u32,
    /// When the look began that told what it stores, as [`Account::look_begins`] counts.
    looked: u64,
}

impl Known {
    fn bytes(&self) -> u64 {
        let content = self.stored.max(self.reserved);
        let content = content.div_ceil(BLOCK_BYTES).saturating_mul(BLOCK_BYTES);
        let entries = if off(Switch::QuotaEntries) {
            0
        } else {
            self.names.saturating_mul(ENTRY_BYTES)
        };
        content.saturating_add(entries)
    }

    fn stores(&mut self, taken: &DiskUsage, began: u64) {
        self.stored = taken.len_bytes.max(taken.disk_bytes);
        self.looked = began;
    }
}

#[derive(Default)]
struct State {
    /// Whether all that there is is known, or is about to be.
    counting: bool,
    used: u64,
    known: BTreeMap<Id, Known>,
    /// What was looked at since it was begun to count all again.
    changed: Option<Changed>,
}

#[derive(Default)]
struct Changed {
    names: BTreeSet<Id>,
    stored: BTreeSet<Id>,
}

impl State {
    fn put(&mut self, id: Id, change: impl FnOnce(&mut Known)) {
        let before = self.known.get(&id).copied().unwrap_or_default();
        let mut now = before;
        change(&mut now);
        // Breaks if: open files are forgotten with their names; their space is still taken.
        let open = now.opened > 0 && !off(Switch::QuotaOpen);
        let kept = open || (now.names > 0 && self.counting);
        let (less, more) = (before.bytes(), if kept { now.bytes() } else { 0 });
        if kept {
            self.known.insert(id, now);
        } else {
            self.known.remove(&id);
        }
        self.used = self.used.saturating_sub(less).saturating_add(more);
    }

    /// Notes what something stores, by a look that began then. That is looked at while others may change its names: of these it
    /// says nothing.
    fn stores(&mut self, taken: &DiskUsage, began: u64) {
        // Breaks if: an older look replaces a newer one; what was written between them is free until the next look.
        let is_older = |known: &Known| known.looked > began && !off(Switch::QuotaOrder);
        if self.known.get(&taken.id).is_some_and(is_older) {
            return;
        }
        self.put(taken.id, |known| known.stores(taken, began));
        if let Some(changed) = &mut self.changed {
            changed.stored.insert(taken.id);
        }
    }

    /// Notes how many names something has; by whoever keeps others from changing them.
    fn is_named(&mut self, id: Id, names: u64) {
        self.put(id, |known| known.names = names);
        if let Some(changed) = &mut self.changed {
            changed.names.insert(id);
        }
    }
}

/// See the module.
pub(crate) struct Account {
    most: AtomicU64,
    /// Held alone by whoever changes names that are counted, together by whoever changes others.
    names: RwLock<()>,
    state: Mutex<State>,
    /// Whether all that there is has been counted once.
    complete: AtomicBool,
    /// Whether something could not be looked at.
    doubtful: AtomicBool,
    /// Held by whoever counts all again.
    recount: Mutex<()>,
    /// Looks at the disk that began so far.
    looks: AtomicU64,
}

enum Turn<'a> {
    Alone { _turn: RwLockWriteGuard<'a, ()> },
    Together { _turn: RwLockReadGuard<'a, ()> },
}

/// How counting all again came out, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Recount {
    pub(crate) before: u64,
    pub(crate) now: u64,
}

impl Account {
    /// An account without a limit.
    pub(crate) fn unlimited() -> Arc<Self> {
        Arc::new(Self {
            most: AtomicU64::new(UNLIMITED),
            names: RwLock::default(),
            state: Mutex::default(),
            complete: AtomicBool::new(false),
            doubtful: AtomicBool::new(false),
            recount: Mutex::default(),
            looks: AtomicU64::new(0),
        })
    }

    /// From now on this much may be taken; the limit holds once all that is there has been counted.
    pub(crate) fn limit(&self, most: Option<u64>) {
        self.most
            .store(most.unwrap_or(UNLIMITED), Ordering::Release);
    }

    /// Most bytes that may be taken, if there is a limit.
    pub(crate) fn most(&self) -> Option<u64> {
        Some(self.most.load(Ordering::Acquire)).filter(|&most| most != UNLIMITED)
    }

    /// Whether all that there is is counted.
    pub(crate) fn counts(&self) -> bool {
        guard(&self.state).counting
    }

    /// Bytes that are taken.
    pub(crate) fn used(&self) -> u64 {
        guard(&self.state).used
    }

    /// Bytes that may still be taken.
    pub(crate) fn left(&self) -> u64 {
        match self.most().filter(|_| self.is_complete()) {
            Some(most) => most.saturating_sub(self.used()),
            None => UNLIMITED,
        }
    }

    /// Whether all that there is has been counted, so that a limit holds.
    pub(crate) fn is_complete(&self) -> bool {
        self.complete.load(Ordering::Acquire)
    }

    /// Whether something could not be looked at since this was asked last.
    pub(crate) fn take_doubt(&self) -> bool {
        self.doubtful.swap(false, Ordering::AcqRel)
    }

    fn check(&self, used: u64, more: u64) -> Result<()> {
        let most = self.most.load(Ordering::Acquire);
        let fits = used.checked_add(more).is_some_and(|sum| sum <= most);
        if more == 0 || fits || !self.is_complete() || off(Switch::Quota) {
            return Ok(());
        }
        Err(Error::no_space(format!(
            "{more} bytes more are beyond the quota: {used} of {most} bytes are taken"
        ))
        .next("remove older checkpoints (option keep), or ask for a larger quota"))
    }

    /// Call before a look whose result goes to [`State::stores`].
    fn look_begins(&self) -> u64 {
        self.looks.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// What was looked at, if it could be; otherwise all is to be counted again.
    fn seen<T>(&self, taken: Result<T>) -> Option<T> {
        taken
            .inspect_err(|_| self.doubtful.store(true, Ordering::Release))
            .ok()
    }

    // ---- names ---------------------------------------------------------------------------------

    fn turn(&self) -> Turn<'_> {
        let together = self.names.read().unwrap_or_else(PoisonError::into_inner);
        if !self.counts() {
            return Turn::Together { _turn: together };
        }
        drop(together);
        let alone = self.names.write().unwrap_or_else(PoisonError::into_inner);
        Turn::Alone { _turn: alone }
    }

    /// Does something to these names of a directory, one of which may be new if `room` is asked for it.
    fn change<T>(
        &self,
        (dir, names): (&dyn Dir, &[&str]),
        room: bool,
        work: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let turn = self.turn();
        if matches!(turn, Turn::Together { .. }) {
            return work();
        }
        // Breaks if: others change names meanwhile; what a name meant before is not what is then removed or replaced.
        let turn = Some(turn).filter(|_| !off(Switch::QuotaTurn));
        let before: Vec<Option<DiskUsage>> = names
            .iter()
            .map(|name| dir.taken(name))
            .collect::<Result<_>>()?;
        let room = if room && before.contains(&None) {
            Some(self.room(ENTRY_BYTES)?)
        } else {
            None
        };
        let done = work();
        // Whether it failed or not: it may have happened all the same. Breaks if: it is not looked at; who renames a file
        // onto itself would be given back what is still there.
        let look = |name: &&str| match off(Switch::QuotaLook) {
            true => Ok(None),
            false => dir.taken(name),
        };
        let began = self.look_begins();
        let after: Vec<Result<Option<DiskUsage>>> = names.iter().map(look).collect();
        for was in before.iter().flatten() {
            let known = |now: &Result<Option<DiskUsage>>| match now {
                Ok(now) => now.is_some_and(|now| now.id == was.id),
                // It stays charged until all is counted again.
                Err(_) => true,
            };
            if !after.iter().any(known) {
                let before = before.iter().flatten();
                let lost = before.filter(|one| one.id == was.id).count() as u64;
                let names = was.names.saturating_sub(lost);
                guard(&self.state).is_named(was.id, names);
            }
        }
        let itself = dir.taken_itself().map(Some);
        for now in after.into_iter().chain([itself]) {
            if let Some(now) = self.seen(now).flatten() {
                let mut state = guard(&self.state);
                // The names first: what has none and is not open is forgotten.
                state.is_named(now.id, now.names);
                state.stores(&now, began);
            }
        }
        drop((room, turn));
        done
    }

    /// Takes so much for what is about to be made, and gives it back when that is looked at.
    fn room(&self, bytes: u64) -> Result<Reserved<'_>> {
        let mut state = guard(&self.state);
        if !off(Switch::QuotaEntries) {
            self.check(state.used, bytes)?;
        }
        state.used = state.used.saturating_add(bytes);
        Ok(Reserved(self, bytes))
    }

    /// Creates a file, which is held open.
    pub(crate) fn create(self: &Arc<Self>, dir: &dyn Dir, name: &str, how: Create) -> Result<Held> {
        self.change((dir, &[name]), true, || {
            let file = dir.create(name, how)?;
            self.hold(file, true)
        })
    }

    /// Opens a file, which is held open.
    pub(crate) fn open(self: &Arc<Self>, dir: &dyn Dir, name: &str) -> Result<Held> {
        // No name of it may go between the opening and the holding.
        let _turn = self.turn();
        let file = dir.open(name)?;
        self.hold(file, false)
    }

    /// Renames, replacing the second name.
    pub(crate) fn rename(&self, dir: &dyn Dir, from: &str, to: &str) -> Result<()> {
        self.change((dir, &[from, to]), false, || dir.rename(from, to))
    }

    /// Renames, never replacing.
    pub(crate) fn rename_new(&self, dir: &dyn Dir, from: &str, to: &str) -> Result<()> {
        self.change((dir, &[from, to]), false, || dir.rename_new(from, to))
    }

    /// Removes a file.
    pub(crate) fn remove(&self, dir: &dyn Dir, name: &str) -> Result<()> {
        self.change((dir, &[name]), false, || dir.remove(name))
    }

    /// Removes an empty directory.
    pub(crate) fn remove_child(&self, dir: &dyn Dir, name: &str) -> Result<()> {
        self.change((dir, &[name]), false, || dir.remove_child(name))
    }

    /// Opens a directory below another one, and makes the last of its names if `create`.
    pub(crate) fn child(
        &self,
        root: &Arc<dyn Dir>,
        path: &StoreDir,
        create: bool,
    ) -> Result<Arc<dyn Dir>> {
        let mut at = Arc::clone(root);
        let mut names = path.names().peekable();
        while let Some(name) = names.next() {
            let above = Arc::clone(&at);
            at = if create && names.peek().is_none() {
                self.change((&*above, &[name]), true, || above.child(name, true))?
            } else {
                above.child(name, false)?
            };
        }
        Ok(at)
    }

    // ---- open files ----------------------------------------------------------------------------

    fn hold(self: &Arc<Self>, file: Box<dyn File>, written: bool) -> Result<Held> {
        let began = self.look_begins();
        let taken = match file.taken() {
            // A disk that does not say it: without a limit nobody needs to know.
            Err(error) if error.kind() == ErrorKind::Unsupported && !self.counts() => {
                return Ok(Held { file, hold: None });
            }
            taken => taken?,
        };
        let mut state = guard(&self.state);
        state.put(taken.id, |known| known.opened += 1);
        state.is_named(taken.id, taken.names);
        state.stores(&taken, began);
        drop(state);
        let hold = Hold {
            account: Arc::clone(self),
            id: taken.id,
            written,
        };
        Ok(Held {
            file,
            hold: Some(hold),
        })
    }

    /// The file is going to have this length; what was reserved before.
    fn reserve(&self, id: Id, len: u64) -> Result<u64> {
        let mut state = guard(&self.state);
        let before = state.known.get(&id).copied().unwrap_or_default();
        let now = Known {
            reserved: before.reserved.max(len),
            ..before
        };
        let more = now.bytes().saturating_sub(before.bytes());
        self.check(state.used, more)?;
        state.put(id, |known| known.reserved = now.reserved);
        Ok(before.reserved)
    }

    // ---- all again -----------------------------------------------------------------------------

    /// Counts all that lies in the directory. `rest` is called between two directories, and says whether to continue.
    pub(crate) fn count(
        &self,
        root: &Arc<dyn Dir>,
        rest: &mut dyn FnMut() -> bool,
    ) -> Result<Recount> {
        let _one = guard(&self.recount);
        {
            let _alone = self.names.write().unwrap_or_else(PoisonError::into_inner);
            let mut state = guard(&self.state);
            state.counting = true;
            state.changed = Some(Changed::default());
        }
        let began = self.look_begins();
        let found = walk(root, rest);
        // Nothing is in the middle of being done to a name now.
        let _alone = self.names.write().unwrap_or_else(PoisonError::into_inner);
        let mut state = guard(&self.state);
        let changed = state.changed.take().unwrap_or_default();
        let found = found.inspect_err(|_| self.doubtful.store(true, Ordering::Release))?;
        let before = state.used;
        // Breaks if: what is there is not compared; what was done beside the server stays charged, or free, for ever.
        if !off(Switch::QuotaRecount) {
            let gone = state.known.iter().filter(|(id, known)| {
                known.names > 0 && !found.contains_key(id) && !changed.names.contains(id)
            });
            let gone: Vec<Id> = gone.map(|(id, _)| *id).collect();
            for id in gone {
                state.put(id, |known| known.names = 0);
            }
            for (id, taken) in &found {
                // Breaks if: what changed meanwhile counts as it was found before.
                let (named, stored) = (changed.names.contains(id), changed.stored.contains(id));
                let is_known = state.known.contains_key(id);
                if (named || stored) && !is_known {
                    continue; // removed since it was found
                }
                state.put(*id, |known| {
                    if !named {
                        known.names = taken.names;
                    }
                    if !stored {
                        known.stores(taken, began);
                    }
                });
            }
        }
        let first = !self.complete.swap(true, Ordering::AcqRel);
        Ok(Recount {
            before: if first { state.used } else { before },
            now: state.used,
        })
    }
}

/// All that lies in a directory, however deep, by what it is.
fn walk(root: &Arc<dyn Dir>, rest: &mut dyn FnMut() -> bool) -> Result<BTreeMap<Id, DiskUsage>> {
    let itself = root.taken_itself()?;
    let mut found = BTreeMap::from([(itself.id, itself)]);
    let mut next = vec![(Arc::clone(root), None::<String>, 0)];
    while let Some((above, name, depth)) = next.pop() {
        let dir = match name.map(|name| above.child(&name, false)) {
            None => above,
            Some(Ok(dir)) => dir,
            // Removed since it was listed.
            Some(Err(error)) if error.kind() == ErrorKind::NotFound => continue,
            Some(Err(error)) => return Err(error),
        };
        for entry in dir.list()? {
            let Some(taken) = dir.taken(&entry.name)? else {
                continue;
            };
            found.insert(taken.id, taken);
            // Breaks if: it ends where callers may not go any deeper; what lies there takes the disk all the same.
            if taken.is_dir && (depth < MAX_DEPTH || !off(Switch::QuotaDeep)) {
                next.push((Arc::clone(&dir), Some(entry.name), depth + 1));
            }
        }
        if !rest() {
            return Err(Error::unavailable("the server is about to end"));
        }
    }
    Ok(found)
}

struct Reserved<'a>(&'a Account, u64);

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        let mut state = guard(&self.0.state);
        state.used = state.used.saturating_sub(self.1);
    }
}

/// An open file, and its place in the account. The file is closed first.
pub(crate) struct Held {
    file: Box<dyn File>,
    hold: Option<Hold>,
}

struct Hold {
    account: Arc<Account>,
    id: Id,
    written: bool,
}

impl Held {
    /// Charges for this length; to be called before it comes to that. Tells what was charged for before.
    pub(crate) fn reserve(&self, len: u64) -> Result<u64> {
        match &self.hold {
            Some(hold) => hold.account.reserve(hold.id, len),
            None => Ok(0),
        }
    }

    /// Looks at what it takes now.
    pub(crate) fn look(&self) {
        let Some(hold) = self.hold.as_ref().filter(|hold| hold.account.counts()) else {
            return;
        };
        let began = hold.account.look_begins();
        if let Some(taken) = hold.account.seen(self.file.taken()) {
            guard(&hold.account.state).stores(&taken, began);
        }
    }

    /// From now on so much is reserved; looks at what it takes.
    pub(crate) fn reserved(&self, len: u64) {
        if let Some(hold) = &self.hold {
            // Breaks if: it is charged less before it is looked at; what it takes now would be free for a moment.
            self.look();
            guard(&hold.account.state).put(hold.id, |known| known.reserved = len);
        }
    }
}

impl Deref for Held {
    type Target = dyn File;

    fn deref(&self) -> &Self::Target {
        &*self.file
    }
}

impl DerefMut for Held {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut *self.file
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.hold.as_ref().is_some_and(|hold| hold.written) {
            self.reserved(0);
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let mut state = guard(&self.account.state);
        state.put(self.id, |known| {
            known.opened = known.opened.saturating_sub(1)
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::open_dir;
    use orcheck_io::failpoints::Failpoints;
    use orcheck_testing::Scratch;

    // Breaks if: they count in the order in which they are noted. Whoever renames a file that another connection writes looks at it
    // before a piece is written, and may note that after it.
    #[test]
    fn of_two_looks_at_a_file_the_one_that_began_later_counts() {
        let account = Account::unlimited();
        let look = |bytes: u64| DiskUsage {
            id: (1, 2),
            len_bytes: bytes,
            disk_bytes: bytes,
            names: 1,
            is_dir: false,
        };
        let (before, after) = (account.look_begins(), account.look_begins());
        let mut state = guard(&account.state);
        state.put((1, 2), |known| known.opened = 1);
        state.stores(&look(3 * BLOCK_BYTES), after);
        state.stores(&look(BLOCK_BYTES), before);
        assert_eq!(state.used, 3 * BLOCK_BYTES);
        drop(state);
        // Less is less, where it was seen later.
        let began = account.look_begins();
        guard(&account.state).stores(&look(BLOCK_BYTES), began);
        assert_eq!(account.used(), BLOCK_BYTES);
    }

    // Breaks if: what was found when all was counted again has no time. Whoever had looked at a file before may note that afterwards.
    #[test]
    fn a_look_from_before_all_was_counted_again_does_not_count() {
        let scratch = Scratch::in_memory("account-counted");
        let dir = open_dir(scratch.path(), Failpoints::none()).unwrap();
        let account = Account::unlimited();
        let file = dir.create("file", Create::Buffered).unwrap();
        let write = |blocks: usize| {
            let bytes = vec![1; blocks * BLOCK_BYTES as usize];
            file.write_at(&bytes, 0).unwrap();
        };
        write(1);
        let began = account.look_begins();
        let before = dir.taken("file").unwrap().unwrap();
        write(3);
        account.count(&dir, &mut || true).unwrap();
        let used = account.used();
        guard(&account.state).stores(&before, began);
        assert_eq!(account.used(), used);
    }
}
