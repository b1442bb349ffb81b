//! Implements `orc_find_step`, `orc_reject` and `orc_restart_region`, for another checkpoint than
//! the newest, and for one region alone.
//!
//! Invariants: those of `restart.rs`.
//!
//! Not here: which checkpoint that is (`orcheck-client`), restarting from it (`restart.rs`).

use crate::convert::{NAME_LIMIT_BYTES, not_null, text};
use crate::fault::{boundary, boundary_to};
use crate::registry::{self, orc_session};
use crate::restart::status_of_restart;
use crate::types::{orc_status, orc_which};
use orcheck_client::Which;
use orcheck_format::{Error, Result, Step};
use std::ffi::{c_char, c_int};

fn which(how: c_int, step: u64) -> Result<Which> {
    match how {
        how if how == orc_which::ORC_EXACTLY as c_int => Ok(Which::Exactly(Step(step))),
        how if how == orc_which::ORC_OLDER_THAN as c_int => Ok(Which::OlderThan(Step(step))),
        _ => Err(Error::invalid(format!(
            "how = {how}: expected ORC_EXACTLY or ORC_OLDER_THAN"
        ))),
    }
}

/// [collective] Like orc_find(), but finds the checkpoint of a given step, or the newest one older
/// than a given step. orc_stored() and orc_restart() then refer to that one. All ranks pass the
/// same how and step. As after every restart, the first checkpoint supersedes newer steps of
/// earlier runs.
///
/// A step requested with ::ORC_EXACTLY is never replaced by another one: if it is damaged,
/// orc_restart() returns ::ORC_CORRUPT, and the program may look for another step.
///
/// @param how    ::ORC_EXACTLY or ::ORC_OLDER_THAN
/// @param step   the step to find, or to stay below
/// @param found  gets the step found
/// @return ::ORC_NOT_FOUND: there is none; orc_message() lists the existing steps. Unlike after
///         orc_find(), this is not a fresh start: orc_checkpoint() is refused while the job has
///         checkpoints. Otherwise as orc_find()
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

/// [collective] Rejects the checkpoint of a step that the program found to be wrong: it is never
/// offered again to any run of this job, and it does not count towards the option keep. The
/// rejection is durable in every directory when the call returns. All ranks pass the same step.
///
/// After rejecting the step that it found or restarted from, the program calls orc_find() again.
/// Later steps that were computed from a rejected step are not rejected with it.
///
/// @param step  one found, restarted from or taken in this session, or any that the job has
/// @return ::ORC_NOT_FOUND: the job has no such checkpoint; orc_message() lists the existing steps
#[unsafe(no_mangle)]
pub unsafe extern "C" fn orc_reject(session: *mut orc_session, step: u64) -> orc_status {
    boundary("orc_reject", || {
        registry::with(session, |session| session.reject(step)).map(|()| String::new())
    })
}

/// [collective] Fills one region from the step that orc_find() found: for example, a table of sizes
/// before the memory of the others is allocated. orc_restart() must still be called; it fills this
/// region again, too. All ranks pass the same name.
///
/// @return ::ORC_AGAIN: the step is damaged, and an older one is now the found one. What was read
///         before belongs to another step: start over with orc_stored(). ::ORC_NOT_FOUND: no region
///         of that name is protected, or stored. Otherwise as orc_restart()
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
