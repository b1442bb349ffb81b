//! Implements `orc_open_v`, `orc_close` and `orc_abandon`, which begin and end a session.
//!
//! What it does: it checks what the program opens with and puts the session into the table; it
//! takes the session out again and releases the collective's context.
//!
//! Invariants:
//! 1. After a failed open, `*session` is NULL and the context still belongs to the caller.
//! 2. After a successful open, the context is released exactly once, at close or abandon, whatever
//!    close returns.
//!
//! Not here: opening and draining themselves (`orcheck-client`).

use crate::collective::ProgramCollective;
use crate::convert::{NAME_LIMIT_BYTES, OPTIONS_LIMIT_BYTES, not_null, text, timeout};
use crate::fault::boundary;
use crate::registry::{self, Release, orc_session};
use crate::types::{ORC_API, orc_collective, orc_status};
use orcheck_client::{Collective, Environment, Membership, Options, Solo};
use orcheck_format::{Error, joined};
use std::ffi::{c_char, c_int};
use std::ptr::null_mut;

/// [collective] Opens a session of a job; use the macro orc_open(), which fills in api.
///
/// Exchanges addresses and a key through the collective, sets up the node's staging pool and starts
/// the session's background thread(s). Blocks until all ranks have opened.
///
/// @param api         ::ORC_API
/// @param session     gets the session, or NULL on failure
/// @param job         name of the series of checkpoints: 1 to 64 of A-Z a-z 0-9 . _ -, the first a
///                    letter or digit. The same name finds the checkpoints again. NULL or empty:
///                    the name in the environment variable ORCHECK_JOB, which `orcheck run --job`
///                    sets
/// @param collective  the ranks that take part; NULL for a program of one rank
/// @param options     TOML text such as "global = [\"/scratch/me\"]", or NULL. Environment
///                    variables ORCHECK_... and the files that they name are read too. With
///                    "enabled = 'auto'" the session runs without checkpoints if none of these
///                    names a directory
/// @return ::ORC_INVALID for a wrong argument or option, ::ORC_UNSUPPORTED for an api this library
///         does not have, ::ORC_UNAVAILABLE, ::ORC_NO_SPACE (memory or directory), ::ORC_FENCED
#[unsafe(no_mangle)]
pub unsafe extern "C" fn orc_open_v(
    api: c_int,
    session: *mut *mut orc_session,
    job: *const c_char,
    collective: *const orc_collective,
    options: *const c_char,
) -> orc_status {
    boundary("orc_open", || {
        not_null(session, "session")?;
        // SAFETY: not NULL, and the caller promises room for a pointer.
        unsafe { session.write(null_mut()) };
        if api != ORC_API {
            return Err(Error::unsupported(format!(
                "the program was built for interface {api}, this library has {ORC_API}"
            ))
            .next("rebuild the program with the orcheck.h that belongs to this library"));
        }
        // SAFETY: NULL or a structure that the caller keeps during the call.
        let given = unsafe { collective.as_ref() };
        let (ranks, release): (Box<dyn Collective>, _) = match given {
            None => (Box::new(Solo), None),
            Some(given) => {
                let ranks = ProgramCollective::new(given)?;
                let release = Release::new(given, ranks.apart());
                (Box::new(ranks), release)
            }
        };
        // An error on one rank only is an error on all: the others would wait for it in the next
        // call.
        let place = registry::reserve();
        let told = || {
            let job = if job.is_null() {
                ""
            } else {
                // SAFETY: the caller promises zero-terminated texts that stay during the call.
                unsafe { text(job, "job", NAME_LIMIT_BYTES) }?
            };
            let options = if options.is_null() {
                None
            } else {
                // SAFETY: as above.
                Some(unsafe { text(options, "options", OPTIONS_LIMIT_BYTES) }?)
            };
            Ok((job, Options::load(options)?))
        };
        let (place, told) = match (place, told()) {
            (Ok(place), told) => (Some(place), told),
            (Err(full), _) => (None, Err(full)),
        };
        let (job, options) = match told {
            Ok((job, options)) => (job, Ok(options)),
            Err(error) => ("", Err(error)),
        };
        let opened = Membership::open_with(job, ranks, options, Environment::default())?;
        let Some(place) = place else {
            return Err(Error::internal("a session without a place was opened"));
        };
        let handle = place.fill(opened, release);
        // SAFETY: as above.
        unsafe { session.write(handle) };
        registry::with_warnings(handle, |_| Ok(())).map(|((), text)| text)
    })
}

/// [collective] Closes a session: waits up to timeout_s until the newest checkpoint of each level
/// is committed there, then stops the background thread(s) and releases everything. After the
/// timeout, threads get about two more seconds; one that hangs in a directory or a server is left
/// behind.
///
/// The session is gone afterwards, whatever is returned, and so is memory from orc_alloc().
/// Afterwards orc_message() has all warnings not read before, also after ::ORC_OK: among them every
/// loss of an older checkpoint that no earlier call reported.
///
/// @return The same on all ranks. ::ORC_UNAVAILABLE if the deadline has passed, or why the newest
///         checkpoint of a level is lost: orc_message() names what is not safe, and where. With
///         on_loss = "error", also why an older one is lost, unless an orc_checkpoint() has
///         returned that. With close = "copies", also which lost copies were not rebuilt.
///         ::ORC_INVALID for a wrong timeout_s; the session then stays open
#[unsafe(no_mangle)]
pub unsafe extern "C" fn orc_close(session: *mut orc_session, timeout_s: f64) -> orc_status {
    boundary("orc_close", || {
        let timeout = timeout(timeout_s)?;
        let (session, release, mut told) = registry::remove(session)?;
        let (result, last) = session.close_telling(timeout);
        told.extend(last);
        if let Some(release) = release {
            release.run(true);
        }
        // There is no later call in which a program could read them.
        // Breaks if: warnings of this call are dropped; nobody would learn of a loss that is first
        // seen here.
        result.map(|()| joined(&told)).map_err(|error| {
            told.push(error.message().to_owned());
            Error::of_lines(error.kind(), &told)
        })
    })
}

/// Abandons a session at once, on error paths: waits for nothing and needs no other rank.
/// Checkpoints already committed stay; the others are lost. NULL is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn orc_abandon(session: *mut orc_session) {
    boundary("orc_abandon", || {
        if session.is_null() {
            return Ok(String::new());
        }
        let (session, release, _) = registry::remove(session)?;
        session.abandon();
        if let Some(release) = release {
            release.run(false);
        }
        Ok(String::new())
    });
}
