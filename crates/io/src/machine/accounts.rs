//! Looks up names of users and groups in the system's databases: files, LDAP, or whatever
//! `/etc/nsswitch.conf` names.
//!
//! How: the C library makes the query (`getgrnam_r`, `getpwuid_r`, `getgrgid_r`). Names that only
//! make a message clearer are queried by a separate thread, for which a message waits at most
//! [`PATIENCE`].
//!
//! Invariants
//! 1. A message never waits longer: an unavailable directory service costs it the name, once.
//! 2. While one such query has no answer, no other one is made.
//!
//! Faults survived: unknown names, entries with thousands of members, a service that does not
//! answer.
//!
//! Not here: the consequences of a group or user ([`crate::disk`], `orcheck-net`).

use crate::errno::os_error;
use crate::machine::thread;
use orcheck_format::{Error, Result};
use std::ffi::{CStr, CString, c_char};
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Duration;

/// Length of the longest entry of a database, in bytes: thousands of members.
const ENTRY_LIMIT_BYTES: usize = 4 << 20;
/// How long a message waits for a name.
const PATIENCE: Duration = Duration::from_secs(1);

/// Queries an entry of a database, by name or by number.
#[allow(unsafe_code)]
fn ask<E, T>(
    ask: impl Fn(*mut E, &mut [c_char], *mut *mut E) -> i32,
    take: impl Fn(&E) -> T,
) -> std::result::Result<Option<T>, i32> {
    let mut len = 4096;
    loop {
        let mut entry = MaybeUninit::<E>::uninit();
        let mut found = std::ptr::null_mut();
        let mut texts = vec![0; len];
        match ask(entry.as_mut_ptr(), &mut texts, &raw mut found) {
            0 if found.is_null() => return Ok(None),
            // SAFETY: not NULL, so it points to `entry`, which was filled; its texts are in
            // `texts`.
            0 => return Ok(Some(take(unsafe { &*found }))),
            libc::ERANGE if len < ENTRY_LIMIT_BYTES => len *= 4,
            libc::EINTR => {}
            // What systems return for a name that does not exist.
            libc::ENOENT | libc::ESRCH | libc::EBADF | libc::EPERM => return Ok(None),
            errno => return Err(errno),
        }
    }
}

/// The number of a group, given by name or number. Waits as long as the database takes: for calls
/// that begin something.
///
/// # Errors
/// Invalid if there is no such group; otherwise the error of the database.
#[allow(unsafe_code)]
pub fn group_id(name: &str) -> Result<u32> {
    let text = CString::new(name)
        .map_err(|_| Error::invalid(format!("group {name:?}: a name has no NUL byte")))?;
    let found = ask(
        // SAFETY: every pointer is to live memory of the length that is given with it.
        |entry, texts, found| unsafe {
            libc::getgrnam_r(text.as_ptr(), entry, texts.as_mut_ptr(), texts.len(), found)
        },
        |entry: &libc::group| entry.gr_gid,
    );
    let found = found.map_err(|errno| os_error(errno, format_args!("look for group {name:?}")))?;
    found.or_else(|| name.parse().ok()).ok_or_else(|| {
        Error::invalid(format!("there is no group {name:?} on this machine"))
            .next("name a group of yours, as `id -Gn` lists them")
    })
}

/// The name of a group in messages.
pub(crate) fn shown_group(group: u32) -> String {
    match in_time(move || group_name(group)) {
        Some(name) => format!("group {name} (gid {group})"),
        None => format!("group {group}"),
    }
}

/// The name of a user in messages.
pub fn shown_user(user: u32) -> String {
    match in_time(move || user_name(user)) {
        Some(name) => format!("user {name} (uid {user})"),
        None => format!("user {user}"),
    }
}

#[allow(unsafe_code)]
fn group_name(group: u32) -> Option<String> {
    let found = ask(
        // SAFETY: every pointer is to live memory of the length that is given with it.
        |entry, texts, found| unsafe {
            libc::getgrgid_r(group, entry, texts.as_mut_ptr(), texts.len(), found)
        },
        // SAFETY: the entry's name is a text that ends in a zero byte, and lives.
        |entry: &libc::group| unsafe { text(entry.gr_name) },
    );
    found.ok().flatten()
}

#[allow(unsafe_code)]
fn user_name(user: u32) -> Option<String> {
    let found = ask(
        // SAFETY: every pointer is to live memory of the length that is given with it.
        |entry, texts, found| unsafe {
            libc::getpwuid_r(user, entry, texts.as_mut_ptr(), texts.len(), found)
        },
        // SAFETY: the entry's name is a text that ends in a zero byte, and lives.
        |entry: &libc::passwd| unsafe { text(entry.pw_name) },
    );
    found.ok().flatten()
}

/// # Safety
/// It is a text that ends in a zero byte, and lives.
#[allow(unsafe_code)]
unsafe fn text(name: *const c_char) -> String {
    // SAFETY: the caller says so.
    let name = unsafe { CStr::from_ptr(name) };
    name.to_string_lossy().into_owned()
}

/// The answer of this query, if it comes in time.
fn in_time<T: Send + 'static>(ask: impl FnOnce() -> Option<T> + Send + 'static) -> Option<T> {
    static WAITING: AtomicBool = AtomicBool::new(false);
    if WAITING.swap(true, Ordering::AcqRel) {
        return None;
    }
    let (tell, told) = mpsc::sync_channel(1);
    let asked = thread::spawn("orcheck-names", move || {
        let found = ask();
        WAITING.store(false, Ordering::Release);
        let _ = tell.send(found);
    });
    if asked.is_err() {
        WAITING.store(false, Ordering::Release);
        return None;
    }
    // Breaks if: the wait has no end; a directory service that is down would stop whoever reports
    // an error.
    told.recv_timeout(PATIENCE).ok().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn a_group_has_a_name_or_a_number() {
        assert_eq!(group_id("root").ok(), Some(0));
        assert_eq!(group_id("4294967").ok(), Some(4_294_967));
        assert_eq!(group_name(0).as_deref(), Some("root"));
        assert_eq!(user_name(0).as_deref(), Some("root"));
        assert_eq!((group_name(4_294_967), user_name(4_294_967)), (None, None));
        for wrong in ["", "no such group", "a\0b", "-1"] {
            let error = group_id(wrong).err();
            assert!(error.is_some_and(|error| error.kind() == orcheck_format::ErrorKind::Invalid));
        }
    }

    #[test]
    fn a_name_that_does_not_come_is_not_waited_for() {
        let (release, held) = mpsc::channel::<()>();
        let begun = Instant::now();
        let found = in_time(move || {
            let _ = held.recv();
            Some(())
        });
        assert_eq!(found, None);
        let waited = begun.elapsed();
        assert!((PATIENCE..30 * PATIENCE).contains(&waited), "{waited:?}");
        // The next message does not wait at all.
        assert_eq!(shown_user(0), "user 0");
        assert!(begun.elapsed() < waited + PATIENCE);
        release.send(()).unwrap();
        while in_time(|| Some(())).is_none() {
            std::thread::yield_now();
        }
        assert_eq!(shown_user(0), "user root (uid 0)");
        assert_eq!(shown_group(0), "group root (gid 0)");
    }
}
