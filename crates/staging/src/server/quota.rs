//! Accounts for the disk space that the users of one key have taken, and limits it.
//!
//! How: there is one account for each directory of a key. It identifies each file by its inode,
//! independent of its names and of who has it open, and records the space that the disk itself
//! reports, which is looked at after everything that may have changed it. Space about to be taken
//! (incoming bytes, reservations, a name) is charged first, and refused beyond the quota. Changes
//! of names are made one at a time, so that the meaning of a name before and after is known. Now
//! and then, everything in the directory is counted again while other work continues.
//!
//! What is charged:
//! * a file: the largest of its length, its blocks and its reservation, in whole [`BLOCK_BYTES`];
//! * a directory: its blocks;
//! * each name of a file or directory: [`ENTRY_BYTES`].
//!
//! Invariants:
//! 1. The charge is the sum over everything known, each counted once; nothing is subtracted that
//!    was not added.
//! 2. A file without a name is charged until the last connection that has it open closes it.
//! 3. Without a limit, only open files are known: each is looked at once.
//! 4. Counting again does not affect what changed meanwhile, because that was looked at later.
//! 5. Of two looks at one file, the one that began later counts, whichever is recorded first: every
//!    change is followed by a look of its own.
//!
//! Survives: calls that fail halfway (the result is looked at afterwards); changes of the directory
//! by others than the server (found when everything is counted again, and logged). Not here: when
//! to count again (`recount.rs`), other data on the disk (the disk reports that it is full).

use crate::server::locked::guard;
use orcheck_format::sabotage::{Switch, off};
use orcheck_format::wire::{MAX_DEPTH, StoreDir};
use orcheck_format::{Error, ErrorKind, Result};
use orcheck_io::disk::{Create, Dir, DiskUsage, File};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// The charge for each name of a file or directory.
pub(crate) const ENTRY_BYTES: u64 = 4096;
/// Lengths are rounded up to multiples of this.
const BLOCK_BYTES: u64 = 4096;
/// No limit.
const UNLIMITED: u64 = u64::MAX;

type Id = (u64, u64);

/// What is known about one file or directory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Known {
    /// Its length or its blocks, whichever is larger.
    stored: u64,
    reserved: u64,
    names: u64,
    opened: u32,
    /// When the look that found `stored` began, as counted by [`Account::begin_look`].
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
    /// Whether everything is known, or is about to be.
    counting: bool,
    used: u64,
    known: BTreeMap<Id, Known>,
    /// What was looked at since the current recount began.
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

    /// Records what a file stores, according to a look that began then. Others may change its names
    /// meanwhile: this does not record names.
    fn stores(&mut self, taken: &DiskUsage, began: u64) {
        // Breaks if: an older look replaces a newer one; what was written between them would be
        // free until the next look.
        let is_older = |known: &Known| known.looked > began && !off(Switch::QuotaOrder);
        if self.known.get(&taken.id).is_some_and(is_older) {
            return;
        }
        self.put(taken.id, |known| known.stores(taken, began));
        if let Some(changed) = &mut self.changed {
            changed.stored.insert(taken.id);
        }
    }

    /// Records how many names a file has; the caller keeps others from changing them.
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
    /// Held exclusively to change names that are counted, shared to change others.
    names: RwLock<()>,
    state: Mutex<State>,
    /// Whether everything has been counted once.
    complete: AtomicBool,
    /// Whether something could not be looked at.
    doubtful: AtomicBool,
    /// Held during a recount.
    recount: Mutex<()>,
    /// Number of looks at the disk so far.
    looks: AtomicU64,
}

enum Turn<'a> {
    Alone { _turn: RwLockWriteGuard<'a, ()> },
    Together { _turn: RwLockReadGuard<'a, ()> },
}

/// The result of a recount, in bytes.
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

    /// Sets the limit, which applies once everything has been counted.
    pub(crate) fn limit(&self, most: Option<u64>) {
        self.most
            .store(most.unwrap_or(UNLIMITED), Ordering::Release);
    }

    /// The limit in bytes, if there is one.
    pub(crate) fn most(&self) -> Option<u64> {
        Some(self.most.load(Ordering::Acquire)).filter(|&most| most != UNLIMITED)
    }

    /// Whether everything is being counted.
    pub(crate) fn counts(&self) -> bool {
        guard(&self.state).counting
    }

    /// Bytes taken.
    pub(crate) fn used(&self) -> u64 {
        guard(&self.state).used
    }

    /// Bytes still available.
    pub(crate) fn left(&self) -> u64 {
        match self.most().filter(|_| self.is_complete()) {
            Some(most) => most.saturating_sub(self.used()),
            None => UNLIMITED,
        }
    }

    /// Whether everything has been counted, so that a limit applies.
    pub(crate) fn is_complete(&self) -> bool {
        self.complete.load(Ordering::Acquire)
    }

    /// Whether something could not be looked at since the last call.
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

    /// Call this before a look whose result goes to [`State::stores`].
    fn begin_look(&self) -> u64 {
        self.looks.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// The result of a look; if there is none, everything has to be counted again.
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

    /// Does something to these names of a directory; with `room`, one of them may be new.
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
        // Breaks if: others change names meanwhile; a name may then mean something else than what
        // is removed or replaced.
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
        // Even after a failure, because it may have taken effect. Breaks if: it is not looked at;
        // renaming a file onto itself would credit what is still there.
        let look = |name: &&str| match off(Switch::QuotaLook) {
            true => Ok(None),
            false => dir.taken(name),
        };
        let began = self.begin_look();
        let after: Vec<Result<Option<DiskUsage>>> = names.iter().map(look).collect();
        for was in before.iter().flatten() {
            let known = |now: &Result<Option<DiskUsage>>| match now {
                Ok(now) => now.is_some_and(|now| now.id == was.id),
                // It stays charged until everything is counted again.
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
                // The names first: a file that has none and is not open is forgotten.
                state.is_named(now.id, now.names);
                state.stores(&now, began);
            }
        }
        drop((room, turn));
        done
    }

    /// Charges this much for what is about to be made; dropping the result refunds it, once that
    /// has been looked at.
    fn room(&self, bytes: u64) -> Result<Reserved<'_>> {
        let mut state = guard(&self.state);
        if !off(Switch::QuotaEntries) {
            self.check(state.used, bytes)?;
        }
        state.used = state.used.saturating_add(bytes);
        Ok(Reserved(self, bytes))
    }

    /// Creates a file and holds it open.
    pub(crate) fn create(self: &Arc<Self>, dir: &dyn Dir, name: &str, how: Create) -> Result<Held> {
        self.change((dir, &[name]), true, || {
            let file = dir.create(name, how)?;
            self.hold(file, true)
        })
    }

    /// Opens a file and holds it open.
    pub(crate) fn open(self: &Arc<Self>, dir: &dyn Dir, name: &str) -> Result<Held> {
        // No name of it may be removed between opening and holding.
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
        let began = self.begin_look();
        let taken = match file.taken() {
            // The disk does not report it: without a limit, nobody needs to know.
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

    /// Charges for the length that the file is going to have; returns the previous reservation.
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

    /// Counts everything in the directory. `rest` is called between two directories, and returns
    /// whether to continue.
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
        let began = self.begin_look();
        let found = walk(root, rest);
        // No change of a name is in progress now.
        let _alone = self.names.write().unwrap_or_else(PoisonError::into_inner);
        let mut state = guard(&self.state);
        let changed = state.changed.take().unwrap_or_default();
        let found = found.inspect_err(|_| self.doubtful.store(true, Ordering::Release))?;
        let before = state.used;
        // Breaks if: the result is not compared; what others changed would stay charged, or free,
        // forever.
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

/// Everything in a directory at any depth, by inode.
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
            // Breaks if: it stops at the depth that callers cannot exceed; what lies deeper takes
            // disk space all the same.
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
    /// Charges for this length, before the file grows to it. Returns the previous charge.
    pub(crate) fn reserve(&self, len: u64) -> Result<u64> {
        match &self.hold {
            Some(hold) => hold.account.reserve(hold.id, len),
            None => Ok(0),
        }
    }

    /// Looks at the space that it takes now.
    pub(crate) fn look(&self) {
        let Some(hold) = self.hold.as_ref().filter(|hold| hold.account.counts()) else {
            return;
        };
        let began = hold.account.begin_look();
        if let Some(taken) = hold.account.seen(self.file.taken()) {
            guard(&hold.account.state).stores(&taken, began);
        }
    }

    /// Sets the reservation, and looks at the space that it takes.
    pub(crate) fn reserved(&self, len: u64) {
        if let Some(hold) = &self.hold {
            // Breaks if: the charge is reduced before the look; space that it takes would be free
            // for a moment.
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

    // Breaks if: looks count in the order in which they are recorded. A thread that renames a file
    // which another connection writes may look at it before a piece is written, and record that
    // after it.
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
        let (before, after) = (account.begin_look(), account.begin_look());
        let mut state = guard(&account.state);
        state.put((1, 2), |known| known.opened = 1);
        state.stores(&look(3 * BLOCK_BYTES), after);
        state.stores(&look(BLOCK_BYTES), before);
        assert_eq!(state.used, 3 * BLOCK_BYTES);
        drop(state);
        // A smaller value counts if it was seen later.
        let began = account.begin_look();
        guard(&account.state).stores(&look(BLOCK_BYTES), began);
        assert_eq!(account.used(), BLOCK_BYTES);
    }

    // Breaks if: the results of a recount have no time. A thread that looked at a file before may
    // record that afterwards.
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
        let began = account.begin_look();
        let before = dir.taken("file").unwrap().unwrap();
        write(3);
        account.count(&dir, &mut || true).unwrap();
        let used = account.used();
        guard(&account.state).stores(&before, began);
        assert_eq!(account.used(), used);
    }
}
