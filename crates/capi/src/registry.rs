//! Keeps the table of live sessions, which maps handles to sessions.
//!
//! What it does: it gives each session a handle, which is a number in the form of a pointer: a tag
//! that no real address has, a generation that is never reused, and a slot. A handle is compared,
//! never dereferenced, so that a stale or forged one is an error and not a crash.
//!
//! How: it uses a fixed array of slots. A slot's `handle` and `request` are atomics, and are all
//! that [`request`] touches. Its session is behind two locks: a short one around the pointer to it,
//! and one that is held for the length of a call.
//!
//! Invariants:
//! 1. No handle is given out twice in one process.
//! 2. `request` in a slot is set before the `handle` that leads to it and outlives it, and points
//!    to memory that lives forever; [`request`] takes no lock and allocates nothing.
//! 3. A closed session's handle finds nothing from the moment when the closing call begins to take
//!    the session out; calls that were waiting for it get the same error.
//! 4. At most [`SLOTS`] sessions are open at once.
//! 5. In a forked child, a session of the parent is refused before any of its locks is touched (the
//!    thread that holds one does not exist there), and is never dropped.
//!
//! Faults survived: closing in one thread while others wait for the session; a panic inside a call
//! (the session can only be abandoned afterwards).
//!
//! Not here: what a session does.

use crate::fault::{Shown, show};
use crate::types::orc_collective;
use orcheck_client::{Membership, Request};
use orcheck_format::sabotage::{Switch, off};
use orcheck_format::{Error, Result, joined};
use orcheck_io::machine::fork::{Owner, OwnerCell};
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

/// One program's membership in a job, from orc_open() to orc_close(). Opaque: only its address is
/// used.
pub struct orc_session {
    _opaque: [u8; 0],
}

/// Maximum number of sessions that can be open at once in one process.
pub(crate) const SLOTS: usize = 1 << SLOT_BITS;
const SLOT_BITS: u32 = 6;
/// Handles are multiples of 16, like addresses of allocated memory.
const SLOT_SHIFT: u32 = 4;
const GENERATION_SHIFT: u32 = SLOT_SHIFT + SLOT_BITS;
/// Upper 16 bits that no address of user memory has.
const TAG: u64 = 0x0c5e << 48;

/// What a handle stands for.
pub(crate) struct Live {
    session: Option<Membership>,
    release: Option<Release>,
    /// Warnings that the program may not have read, and what says whether it has.
    unread: Vec<String>,
    shown: Option<Shown>,
    /// How many were left out.
    left_out: u64,
}

/// Warnings that are kept until the program reads them.
const UNREAD_MOST: usize = 64;

impl Live {
    fn new(session: Option<Membership>, release: Option<Release>) -> Arc<Mutex<Live>> {
        Arc::new(Mutex::new(Live {
            session,
            release,
            unread: Vec::new(),
            shown: None,
            left_out: 0,
        }))
    }

    /// The warnings that the program has not read, oldest first.
    fn unread(&mut self) -> Vec<String> {
        // Breaks if: they go with the call that first had them; a program that reads the text of
        // another call would never learn of a lost checkpoint.
        let is_read = (self.shown.take()).is_some_and(|shown| shown.load(Ordering::Relaxed));
        if is_read || off(Switch::UnreadKept) {
            self.unread.clear();
            self.left_out = 0;
        }
        if let Some(session) = &mut self.session {
            (self.unread).extend(std::iter::from_fn(|| session.take_warning()));
        }
        let more = self.unread.len().saturating_sub(UNREAD_MOST);
        self.unread.drain(..more);
        self.left_out += more as u64;
        let mut lines = self.unread.clone();
        if self.left_out > 0 {
            let text = format!("{} earlier warnings were not read", self.left_out);
            lines.insert(0, text);
        }
        lines
    }
}

/// How to release the context of a collective.
pub(crate) struct Release {
    call: unsafe extern "C" fn(*mut c_void, c_int),
    ctx: *mut c_void,
    /// Set when a function of the collective has failed: the ranks are not together any more.
    apart: Arc<AtomicBool>,
}

// SAFETY: the pointer is only handed back to the program that gave it, once; that program allows
// the thread that closes the session to be another one than the one that opened it.
unsafe impl Send for Release {}

impl Release {
    pub(crate) fn new(collective: &orc_collective, apart: Arc<AtomicBool>) -> Option<Release> {
        collective.release.map(|call| Release {
            call,
            ctx: collective.ctx,
            apart,
        })
    }

    /// Releases the context.
    pub(crate) fn run(self, together: bool) {
        let orderly = together && !self.apart.load(Ordering::Relaxed);
        // SAFETY: the program gave this function together with this context, for one call.
        crate::fault::callback(|| unsafe { (self.call)(self.ctx, c_int::from(orderly)) });
    }
}

struct Slot {
    handle: AtomicU64,
    request: AtomicPtr<Request>,
    owner: OwnerCell,
    live: Mutex<Option<Arc<Mutex<Live>>>>,
}

impl Slot {
    const fn new() -> Slot {
        Slot {
            handle: AtomicU64::new(0),
            request: AtomicPtr::new(null_mut()),
            owner: OwnerCell::new(),
            live: Mutex::new(None),
        }
    }
}

static TABLE: [Slot; SLOTS] = [const { Slot::new() }; SLOTS];
static GENERATION: AtomicU64 = AtomicU64::new(0);

/// A slot reserved for a session that is being opened; free again when this is dropped.
pub(crate) struct Reservation {
    index: usize,
    filled: bool,
}

/// Reserves a slot before any other rank is asked: all ranks must learn of a full table on one
/// rank.
pub(crate) fn reserve() -> Result<Reservation> {
    for (index, slot) in TABLE.iter().enumerate() {
        // Does not wait: in a forked child, nobody releases it.
        let mut live = match slot.live.try_lock() {
            Ok(live) => live,
            Err(TryLockError::Poisoned(live)) => live.into_inner(),
            Err(TryLockError::WouldBlock) => continue,
        };
        if live.is_some() {
            continue;
        }
        *live = Some(Live::new(None, None));
        let filled = false;
        return Ok(Reservation { index, filled });
    }
    Err(Error::unavailable(format!(
        "{SLOTS} sessions are open in this process already, the most there can be"
    ))
    .next("close one first"))
}

impl Reservation {
    /// Puts the session into its slot.
    pub(crate) fn fill(
        mut self,
        session: Membership,
        release: Option<Release>,
    ) -> *mut orc_session {
        self.filled = true;
        let slot = &TABLE[self.index];
        slot.owner.set(Owner::this_process());
        let generation = GENERATION.fetch_add(1, Ordering::Relaxed) + 1;
        let handle = TAG | generation << GENERATION_SHIFT | (self.index as u64) << SLOT_SHIFT;
        slot.request.store(
            std::ptr::from_ref(session.requester()).cast_mut(),
            Ordering::SeqCst,
        );
        *lock(&slot.live) = Some(Live::new(Some(session), release));
        slot.handle.store(handle, Ordering::SeqCst);
        std::ptr::without_provenance_mut(handle as usize)
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if !self.filled {
            lock(&TABLE[self.index].live).take();
        }
    }
}

/// Runs `body` on the session of a handle, exclusively.
pub(crate) fn with<T>(
    handle: *const orc_session,
    body: impl FnOnce(&mut Membership) -> Result<T>,
) -> Result<T> {
    let live = find(handle)?;
    let mut live = live.lock().map_err(|_| broken())?;
    let session = live.session.as_mut().ok_or_else(closed)?;
    body(session)
}

/// As [`with`], for the calls after which a program reads the text: also returns the session's
/// warnings that it has not read, one per line, with one next step in all. The other calls leave
/// them.
pub(crate) fn with_warnings<T>(
    handle: *const orc_session,
    body: impl FnOnce(&mut Membership) -> Result<T>,
) -> Result<(T, String)> {
    let live = find(handle)?;
    let mut live = live.lock().map_err(|_| broken())?;
    let session = live.session.as_mut().ok_or_else(closed)?;
    let value = body(session)?;
    let unread = live.unread();
    if !unread.is_empty() {
        live.shown = Some(show());
    }
    Ok((value, joined(&unread)))
}

/// What leaves the table with a session: also the warnings that the program has not read.
pub(crate) type Removed = (Membership, Option<Release>, Vec<String>);

/// Takes a session out of the table for good, even if a call has panicked in it.
pub(crate) fn remove(handle: *const orc_session) -> Result<Removed> {
    let live = find(handle)?;
    // Waits for a call in another thread to end.
    let mut live = lock(&live);
    let session = live.session.take().ok_or_else(closed)?;
    let unread = live.unread();
    let slot = &TABLE[slot_index(handle)];
    slot.handle.store(0, Ordering::SeqCst);
    lock(&slot.live).take();
    Ok((session, live.release.take(), unread))
}

/// Requests a checkpoint, also from a signal handler: atomics only. Unknown handles are ignored.
pub(crate) fn request(handle: *const orc_session, stop_after: bool) {
    let slot = &TABLE[slot_index(handle)];
    // Read before the handle is compared: if the handle is equal afterwards, this belongs to the
    // same or an older session, and both live forever.
    let request = slot.request.load(Ordering::SeqCst);
    if slot.handle.load(Ordering::SeqCst) == handle.addr() as u64
        && slot.owner.get().is_this_process()
        && !request.is_null()
    {
        // SAFETY: non-NULL values in `request` come from `&'static Request`.
        unsafe { &*request }.request(stop_after);
    }
}

fn find(handle: *const orc_session) -> Result<Arc<Mutex<Live>>> {
    if handle.is_null() {
        return Err(Error::invalid("the session is NULL").next("open one with orc_open"));
    }
    let slot = &TABLE[slot_index(handle)];
    if slot.handle.load(Ordering::SeqCst) != handle.addr() as u64 {
        return Err(closed());
    }
    let owner = slot.owner.get();
    if !owner.is_this_process() {
        return Err(inherited(owner));
    }
    let live = lock(&slot.live);
    if slot.handle.load(Ordering::SeqCst) != handle.addr() as u64 {
        return Err(closed());
    }
    live.clone().ok_or_else(closed)
}

fn slot_index(handle: *const orc_session) -> usize {
    (handle.addr() >> SLOT_SHIFT) % SLOTS
}

fn closed() -> Error {
    Error::invalid("this is not an open session: closed, abandoned or never opened")
        .next("use the session that orc_open gave, until orc_close")
}

fn inherited(owner: Owner) -> Error {
    Error::invalid(format!(
        "this process was forked from process {}, which opened the session and still has it",
        owner.pid()
    ))
    .next("use the session only in the process that opened it")
}

fn broken() -> Error {
    Error::internal("an earlier call on this session ended in a defect of Orcheck")
        .next("orc_abandon it; committed checkpoints are safe")
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What these locks protect is consistent at every point where a panic could leave them.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
// The test moves directories.
#[allow(clippy::disallowed_methods)]
mod tests {
    use super::*;
    use crate::fault::{boundary, orc_message};
    use crate::types::orc_status;
    use orcheck_client::Solo;
    use orcheck_format::{Dtype, Level};
    use orcheck_io::memory::Span;
    use std::ffi::CStr;
    use std::time::Duration;

    const LOST: usize = 2;

    /// A session that has lost checkpoints and said nothing yet.
    fn losing(root: &std::path::Path) -> Membership {
        std::fs::create_dir_all(root).unwrap();
        let options = format!(
            "global = '{}'\nevery_s = 1e6\npool = '4 MiB'\nchunk = '64 KiB'\n",
            root.display()
        );
        let mut session = Membership::open("told", Box::new(Solo), Some(&options)).unwrap();
        let mut state = vec![7u8; 1000];
        (session.protect("u", Span::from_mut(&mut state), Dtype::U8, 0)).unwrap();
        session.find().unwrap_err();
        std::fs::rename(root.join("told"), root.join("moved")).unwrap();
        std::fs::create_dir(root.join("told")).unwrap();
        for step in 1..=LOST as u64 {
            session.checkpoint(step).unwrap();
            let waiter = session.waiter(step, Level::Global).unwrap().unwrap();
            waiter.wait(Duration::from_secs(30)).unwrap_err();
        }
        session.due(3).unwrap();
        session
    }

    fn root(name: &str) -> std::path::PathBuf {
        std::env::temp_dir().join(format!("orcheck-capi-{name}-{}", std::process::id()))
    }

    // Breaks if: the warnings are simply concatenated; `orc_message` would ask for several things.
    #[test]
    fn several_losses_in_one_message_have_one_next_step() {
        let root = root("told");
        let live = Live::new(Some(losing(&root)), None);
        let text = joined(&lock(&live).unread());
        assert!(
            text.lines().filter(|line| line.contains("is lost")).count() >= LOST,
            "{text}"
        );
        assert_eq!(text.matches("Next: ").count(), 1, "{text}");
        drop(live);
        std::fs::remove_dir_all(&root).unwrap();
    }

    // Breaks if: a warning goes with the call that had it first, whether or not anybody read the
    // text of that call; or it comes again although it was read.
    #[test]
    fn a_warning_stays_until_it_is_read() {
        let root = root("unread");
        let handle = reserve().unwrap().fill(losing(&root), None);
        let call = || {
            let told = || with_warnings(handle, |_| Ok(())).map(|((), text)| text);
            assert_eq!(boundary("orc_due", told), orc_status::ORC_OK);
        };
        let message = || {
            // SAFETY: orc_message never returns NULL and the text is valid until the next call.
            unsafe { CStr::from_ptr(orc_message()) }
                .to_str()
                .unwrap()
                .to_owned()
        };
        call();
        boundary("orc_protect", || Ok(String::new()));
        call();
        let text = message();
        assert_eq!(text.matches("is lost").count(), LOST, "{text}");
        call();
        assert_eq!(message(), "");
        let (session, _, unread) = remove(handle).unwrap();
        assert_eq!(unread, Vec::<String>::new());
        drop(session);
        std::fs::remove_dir_all(&root).unwrap();
    }

    // Breaks if: a handle is mistaken for an address and read. (Generations: tests/c/misuse.c.)
    #[test]
    fn forged_handles_find_nothing() {
        for address in [0, 1, 8, 16, 0x7fff_dead_bee0, usize::MAX, TAG as usize] {
            let handle = std::ptr::without_provenance_mut::<orc_session>(address);
            assert!(with(handle, |_| Ok(())).is_err(), "{address:#x}");
            assert!(remove(handle).is_err());
            request(handle, true);
        }
    }
}
