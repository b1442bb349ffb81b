//! `orc_find_step`, `orc_reject`, `orc_restart_region`: another checkpoint than the newest, and one region alone.
//!
//! Invariants: those of `restart.rs`.
//!
//! Not here: which checkpoint that is (`orcheck-client`), the way back from it (`restart.rs`).

use crate::convert::{NAME_LIMIT_BYTES, not_null, text};
use crate::fault::{boundary, boundary_to};
use crate::registry::{self, orc_session};
use crate::restart::status_of_restart;
use crate::types::{orc_status, orc_which};
use orcheck_client::Which;
use orcheck_format::{Error, Result};
use std::ffi::{c_char, c_int};

fn which(how: c_int, step: u64) -> Result<Which> {
    match how {
        how if how == orc_which::ORC_EXACTLY as c_int => Ok(Which::Exactly(step)),
        how if how == orc_which::ORC_OLDER_THAN as c_int => Ok(Which::OlderThan(step)),
        _ => Err(Error::invalid(format!(
            "how = {how}: expected ORC_EXACTLY or ORC_OLDER_THAN"
        ))),
    }
}

/// [collective] As orc_find(), but finds the checkpoint of a certain step, or the newest one that is
/// older than a certain step. orc_stored() and orc_restart() then are about that one. The same how and
/// step on all ranks. With the first checkpoint after the restart, newer steps of earlier runs are
/// superseded, as always.
///
/// A step that was asked for exactly is never replaced by another one: if it is damaged, orc_restart()
/// returns ::ORC_CORRUPT, and the program may look for another one.
///
/// @param how    ::ORC_EXACTLY or ::ORC_OLDER_THAN
/// @param step   the step meant
/// @param found  gets the step found
/// @return ::ORC_NOT_FOUND: there is none; orc_message() lists what there is. Unlike after orc_find()
///         this is no fresh start: orc_checkpoint() is refused while the job has checkpoints. Otherwise
///         as orc_find()
#[unsafe(no_mangle)]
pub unsafe extern "C" fn orc_find_step(
    session: *mut orc_session,
    how: c_int,
    step: u64,
    found: *mut u64,
) -> orc_status {
    boundary("orc_find_step", || {
        not_null(found, "found")?;
        // SAFETY: not NULL, and the caller promises room for the number.
        unsafe { found.write(0) };
        let which = which(how, step)?;
        let (step, warning) = registry::with_warnings(session, |session| session.find_step(which))?;
        // SAFETY: as above.
        unsafe { found.write(step) };
        Ok(warning)
    })
}

/// [collective] Says that the program found the checkpoint of a step wrong: it is never offered again, to
/// no run of this job, and does not count for the option keep. Written down durably in every directory
/// before it returns. The same step on all ranks.
///
/// After rejecting the step that it found, or restarted from, the program calls orc_find() again. Later
/// steps that were computed from a rejected one are not rejected with it.
///
/// @param step  one found, restarted from or taken in this session, or any that the job has
/// @return ::ORC_NOT_FOUND: the job has no such checkpoint; orc_message() lists what there is
#[unsafe(no_mangle)]
pub unsafe extern "C" fn orc_reject(session: *mut orc_session, step: u64) -> orc_status {
    boundary("orc_reject", || {
        registry::with(session, |session| session.reject(step)).map(|()| String::new())
    })
}

/// [collective] Fills one region from the step that orc_find() found: a table of sizes, say, before the
/// memory of the others is allocated. orc_restart() is still to be called; it fills this one again, too.
/// The same name on all ranks.
///
/// @return ::ORC_AGAIN: the step is damaged, and an older one is the found one now. What was read before
///         is of another step: begin again with orc_stored(). ::ORC_NOT_FOUND: no region of that name is
///         protected, or stored. Otherwise as orc_restart()
#[unsafe(no_mangle)]
pub unsafe extern "C" fn orc_restart_region(
    session: *mut orc_session,
    name: *const c_char,
) -> orc_status {
    boundary_to("orc_restart_region", || {
        // SAFETY: the caller promises a zero-terminated text that stays during the call.
        let name = unsafe { text(name, "name", NAME_LIMIT_BYTES) }?;
        let (restarted, warning) =
            registry::with_warnings(session, |session| session.restart_region(name))?;
        Ok((status_of_restart(restarted).0, warning))
    })
}
