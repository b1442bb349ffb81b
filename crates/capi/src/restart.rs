//! Implements `orc_find` to `orc_route`, which restart from a checkpoint.
//!
//! What it does: it fills the program's variables and structures with what the session found.
//!
//! Invariants:
//! 1. Output arguments are set to nothing (0, empty) before anything can fail.
//! 2. No more than `struct_size` or `cap` bytes are written.
//!
//! Not here: which step is found, and how its bytes are verified.

use crate::convert::{NAME_LIMIT_BYTES, covers, not_null, text};
use crate::fault::{boundary, boundary_to};
use crate::registry::{self, orc_session};
use crate::types::{orc_array, orc_status};
use orcheck_client::{Restarted, Stored};
use orcheck_format::{Error, Result};
use std::ffi::{c_char, c_int};
use std::os::unix::ffi::OsStrExt;

/// [collective] Finds the newest committed step that all ranks can restore. Reads no region yet.
/// Blocks while directories are listed.
///
/// @param step  gets the step
/// @return ::ORC_NOT_FOUND: there is none at all, this is a fresh start; ::ORC_CORRUPT or
///         ::ORC_UNAVAILABLE: there are some, but none can be restored; ::ORC_INVALID after the
///         first checkpoint of the session
#[unsafe(no_mangle)]
pub unsafe extern "C" fn orc_find(session: *mut orc_session, step: *mut u64) -> orc_status {
    boundary("orc_find", || {
        not_null(step, "step")?;
        // SAFETY: not NULL, and the caller promises room for the number.
        unsafe { step.write(0) };
        let (found, warning) = registry::with_warnings(session, |session| session.find())?;
        // SAFETY: as above.
        unsafe { step.write(found) };
        Ok(warning)
    })
}

/// Tells type, shape and length of one of this rank's regions in the step that orc_find() found, so
/// that memory can be allocated before orc_restart(). Local.
///
/// If another number of ranks wrote the step, local and offset are an even share for this rank: the
/// first dimension of the global array or list, dealt in the order of ranks. The program may
/// protect any other part instead.
///
/// @param array      NULL, or gets dtype, ndim, global, offset and local (stride 0); set
///                   struct_size first. A region from orc_protect() has one dimension: its number
///                   of elements. Of a list, global[0] is the number of all ranks' items and
///                   offset[0] this rank's first one; of boxes, offset and local are the smallest
///                   box around them
/// @param len_bytes  NULL, or gets the length of local
/// @return ::ORC_NOT_FOUND for an unknown name; ::ORC_INVALID before orc_find(); ::ORC_UNSUPPORTED
///         if another number of ranks wrote the step and the region belongs to each rank alone
#[unsafe(no_mangle)]
pub unsafe extern "C" fn orc_stored(
    session: *mut orc_session,
    name: *const c_char,
    array: *mut orc_array,
    len_bytes: *mut usize,
) -> orc_status {
    boundary("orc_stored", || {
        if !array.is_null() {
            // SAFETY: not NULL, and the caller promises a structure that begins with its size.
            covers::<orc_array>(unsafe { (*array).struct_size }, "orc_array")?;
        }
        if !len_bytes.is_null() {
            // SAFETY: not NULL, and the caller promises room for the number.
            unsafe { len_bytes.write(0) };
        }
        // SAFETY: the caller promises a zero-terminated text that stays during the call.
        let name = unsafe { text(name, "name", NAME_LIMIT_BYTES) }?;
        let stored = registry::with(session, |session| session.stored(name))?;
        if !array.is_null() {
            // SAFETY: large enough, as `covers` checked.
            describe(&stored, unsafe { &mut *array })?;
        }
        if !len_bytes.is_null() {
            let len = usize::try_from(stored.len_bytes).map_err(|_| too_large(stored.len_bytes))?;
            // SAFETY: as above.
            unsafe { len_bytes.write(len) };
        }
        Ok(String::new())
    })
}

/// Shape of a stored region; a region without a shape gets one dimension.
fn describe(stored: &Stored, array: &mut orc_array) -> Result<()> {
    let elements = [stored.len_bytes / stored.dtype.size_bytes()];
    let flat = stored.local.is_empty();
    let shape = |given: &[u64], otherwise: &[u64]| -> Result<[i64; 8]> {
        let mut shape = [0; 8];
        let given = if flat || given.is_empty() {
            otherwise
        } else {
            given
        };
        for (to, from) in shape.iter_mut().zip(given) {
            *to = i64::try_from(*from).map_err(|_| too_large(*from))?;
        }
        Ok(shape)
    };
    let ndim = if flat { 1 } else { stored.local.len() };
    if ndim > array.local.len() {
        return Err(Error::unsupported(format!(
            "the stored region has {ndim} dimensions, an orc_array holds 8"
        )));
    }
    let local = if flat {
        &elements[..]
    } else {
        &stored.local[..]
    };
    array.local = shape(local, local)?;
    array.global = shape(&stored.global, local)?;
    array.offset = shape(&stored.offset, &[0; 8])?;
    array.stride = [0; 8];
    array.dtype = stored.dtype as c_int;
    array.ndim = ndim as c_int;
    Ok(())
}

fn too_large(value: u64) -> Error {
    Error::unsupported(format!("{value} does not fit into the structure's field"))
}

/// [collective] Fills all regions from the step that orc_find() found, verifying every byte as it
/// is read. If a rank's part proves to be damaged, all ranks go back to the same older step, and
/// orc_message() says what was skipped and why. Blocks until all ranks have their bytes.
///
/// In the older step a region may have another size. If the protected regions then do not fit, the
/// call returns ::ORC_AGAIN on all ranks: the older step is now the found one, orc_stored() gives
/// its sizes, and the program protects regions of these sizes and calls orc_restart() again. Each
/// ::ORC_AGAIN leaves out a step, so a loop of these calls ends.
///
/// The older step may also lack a region that is ::ORC_OPTIONAL. Such regions are therefore
/// verified on all ranks before one of them is filled, so their stored bytes are read twice. If one
/// was filled from the damaged step all the same (by orc_restart_region(), or because files went
/// bad after they were verified), the call returns ::ORC_AGAIN and orc_message() names it: the
/// program gives it its initial contents, protects it again, and calls orc_restart() again. A
/// program whose sizes never change gets ::ORC_AGAIN in no other case.
///
/// After ::ORC_AGAIN or an error the contents of the regions are undefined.
///
/// @param step  NULL, or gets the step actually restored; with ::ORC_AGAIN, the step that is now
///              found
/// @return ::ORC_AGAIN, see above; ::ORC_INVALID before orc_find(), for a region whose type or
///         shape differs from the stored one, or that is neither stored nor ::ORC_OPTIONAL, for
///         elements that no rank stored or (without ::ORC_OVERLAP) several did, or if the ranks
///         have room for more or fewer items of a list than there are;
///         ::ORC_UNSUPPORTED for regions that need the number of ranks that stored them: all but
///         parts of global arrays, lists and ::ORC_SAME; ::ORC_CORRUPT if no older step is left
#[unsafe(no_mangle)]
pub unsafe extern "C" fn orc_restart(session: *mut orc_session, step: *mut u64) -> orc_status {
    boundary_to("orc_restart", || {
        if !step.is_null() {
            // SAFETY: not NULL, and the caller promises room for the number.
            unsafe { step.write(0) };
        }
        let (restarted, warning) =
            registry::with_warnings(session, |session| session.try_restart())?;
        let (status, restored) = status_of_restart(restarted);
        if !step.is_null() {
            // SAFETY: as above.
            unsafe { step.write(restored) };
        }
        Ok((status, warning))
    })
}

/// The status and the step of a restart.
pub(crate) fn status_of_restart(restarted: Restarted) -> (orc_status, u64) {
    match restarted {
        Restarted::Step(step) => (orc_status::ORC_OK, step.0),
        Restarted::Again(step) => (orc_status::ORC_AGAIN, step.0),
    }
}

/// Gives the path of a file that the program writes itself and that becomes region name of every
/// following checkpoint: it is read in orc_checkpoint(), and written back in orc_restart(). The
/// file lies in a directory of this rank alone, on the node or in memory; see docs/files.md. Local.
///
/// @param name  a relative path of up to 8 names, as in "out/step/part.bin", each 1 to 128 of
///              A-Z a-z 0-9 . _ -, not beginning with a dot; the directories in it are made
/// @param path  gets the path, which is valid until the session ends
/// @param cap   room at path in bytes; ::ORC_INVALID says how much is needed
#[unsafe(no_mangle)]
pub unsafe extern "C" fn orc_route(
    session: *mut orc_session,
    name: *const c_char,
    path: *mut c_char,
    cap: usize,
) -> orc_status {
    // SAFETY: as the caller promises.
    boundary("orc_route", || unsafe {
        route((session, name), 0, (path, cap))
    })
}

/// As orc_route(), with flags.
///
/// @param flags  ::ORC_OPTIONAL, or 0. An optional file may be absent: the checkpoint then has no
///               such region, and orc_restart() from it removes an existing file
#[unsafe(no_mangle)]
pub unsafe extern "C" fn orc_route_file(
    session: *mut orc_session,
    name: *const c_char,
    flags: c_int,
    path: *mut c_char,
    cap: usize,
) -> orc_status {
    boundary("orc_route_file", || {
        let flags = u32::try_from(flags)
            .map_err(|_| Error::invalid(format!("flags are {flags}, allowed is ORC_OPTIONAL")))?;
        // SAFETY: as the caller promises.
        unsafe { route((session, name), flags, (path, cap)) }
    })
}

/// # Safety
/// `name` is NULL or a zero-terminated text that stays during the call, `path` NULL or room for
/// `cap` bytes.
unsafe fn route(
    (session, name): (*mut orc_session, *const c_char),
    flags: u32,
    (path, cap): (*mut c_char, usize),
) -> Result<String> {
    not_null(path, "path")?;
    if cap > 0 {
        // SAFETY: not NULL, and the caller promises room for `cap` bytes.
        unsafe { path.write(0) };
    }
    // SAFETY: the caller promises a zero-terminated text that stays during the call.
    let name = unsafe { text(name, "name", NAME_LIMIT_BYTES) }?;
    let routed = registry::with(session, |session| session.route_file(name, flags))?;
    let bytes = routed.as_os_str().as_bytes();
    if cap < bytes.len() + 1 {
        return Err(Error::invalid(format!(
            "region \"{name}\": the path needs {} bytes, cap is {cap}",
            bytes.len() + 1
        )));
    }
    // SAFETY: room for the path and its zero byte was just checked.
    unsafe {
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), path.cast::<u8>(), bytes.len());
        path.add(bytes.len()).write(0);
    }
    Ok(String::new())
}
