//! Implements `orc_due` to `orc_wait`: when to take a checkpoint, what is in it, and when it is
//! safe.
//!
//! What it does: passes steps, levels and deadlines to the session.
//!
//! Invariants:
//! 1. `orc_request` takes no lock, allocates nothing and sets no text: it may run in a signal
//!    handler.
//!
//! Not here: triggers, staging, commits.

use crate::convert::{NAME_LIMIT_BYTES, level, not_null, text, timeout};
use crate::fault::boundary;
use crate::registry::{self, orc_session};
use crate::types::orc_status;
use orcheck_client::Membership;
use std::ffi::{c_char, c_int};

/// [collective] Tells whether a checkpoint should be taken after this step, according to the
/// configured triggers (every n steps, every t seconds, signals, end of the job's time, overhead
/// budget) and requests. The answer is the same on all ranks. Most calls exchange no message
/// between ranks. If no trigger is configured, the first call leaves a warning on rank 0.
///
/// @param step  the step just computed; must grow from call to call, not necessarily by one:
///              every_steps fires when a multiple was reached or passed
/// @param due   gets 1 or 0
#[unsafe(no_mangle)]
pub unsafe extern "C" fn orc_due(
    session: *mut orc_session,
    step: u64,
    due: *mut c_int,
) -> orc_status {
    boundary("orc_due", || {
        not_null(due, "due")?;
        // SAFETY: not NULL, and the caller promises room for an int.
        unsafe { due.write(0) };
        let (is_due, warning) = registry::with_warnings(session, |session| session.due(step))?;
        // SAFETY: as above.
        unsafe { due.write(c_int::from(is_due)) };
        Ok(warning)
    })
}

/// Asks for a checkpoint at the next possible orc_due(); with stop_after = 1, orc_should_stop() is
/// true afterwards. One rank suffices. If every_steps is the only trigger, orc_due() sends no
/// message, and the request is noticed with the next checkpoint; with any other trigger (a signal,
/// for example), within a few seconds. Async-signal-safe: two atomic loads and a store, no lock, no
/// text. A session that is NULL or closed is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn orc_request(session: *mut orc_session, stop_after: c_int) {
    registry::request(session, stop_after != 0);
}

/// Tells whether the ranks have agreed, in orc_due(), that the program should end after the
/// checkpoint that is due: 1 or 0. The answer is the same on all ranks between two calls of
/// orc_due(). For a session that is NULL or closed it is 0, with a text in orc_message().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn orc_should_stop(session: *const orc_session) -> c_int {
    let mut stop = false;
    boundary("orc_should_stop", || {
        let answer = registry::with(session, |session| Ok(session.should_stop()))?;
        stop = answer;
        Ok(String::new())
    });
    c_int::from(stop)
}

/// Makes the next orc_checkpoint() take a region by reference instead of copying it. From that call
/// on, the program may read but not write the region, until orc_lent_done() succeeds. Memory from
/// orc_alloc() is best: it is not copied at all. Local; does not block.
///
/// @return ::ORC_NOT_FOUND for an unknown name; ::ORC_UNSUPPORTED for a region that is not
///         contiguous memory, or is ::ORC_SAME; ::ORC_UNAVAILABLE while it is still lent
#[unsafe(no_mangle)]
pub unsafe extern "C" fn orc_lend(session: *mut orc_session, name: *const c_char) -> orc_status {
    boundary("orc_lend", || {
        // SAFETY: the caller promises a zero-terminated text that stays during the call.
        let name = unsafe { text(name, "name", NAME_LIMIT_BYTES) }?;
        registry::with(session, |session| session.lend(name)).map(|()| String::new())
    })
}

/// Waits until a lent region has been read and may be written again. Local.
///
/// @param timeout_s  0 polls
/// @return ::ORC_UNAVAILABLE while it is still lent
#[unsafe(no_mangle)]
pub unsafe extern "C" fn orc_lent_done(
    session: *mut orc_session,
    name: *const c_char,
    timeout_s: f64,
) -> orc_status {
    boundary("orc_lent_done", || {
        // SAFETY: the caller promises a zero-terminated text that stays during the call.
        let name = unsafe { text(name, "name", NAME_LIMIT_BYTES) }?;
        let timeout = timeout(timeout_s)?;
        registry::with(session, |session| session.lent_done(name, timeout)).map(|()| String::new())
    })
}

/// [collective] Takes a checkpoint: copies all regions, with checksums, into the staging pool and
/// returns. It goes to all levels; with a pace for each ([level.NAME] in the options), to those
/// that are due, and at least to the weakest. Flushing and committing continue in the background
/// and need no further call. Blocks for about the time of one memory copy; longer if the previous
/// checkpoint is not yet safe enough (option uncommitted_steps) or is still being flushed, or if
/// the pool is smaller than the snapshots.
///
/// The status is the same on all ranks. An error means that no rank staged the step: the text says
/// so, and the program may take the same step again. If only one rank fails while it stages (in a
/// codec, for example), that is not an error: that rank gets a warning at once, the checkpoint is
/// lost, and every rank is told why.
///
/// @param step  must be larger than that of every earlier checkpoint, including the one restarted
///              from
/// @return ::ORC_INVALID for a step that does not grow, if no region is protected, if size() of a
///         codec fails (the text says what it returned), or if the job has checkpoints that were
///         not restarted from (set start = 'fresh' to begin from nothing); ::ORC_UNAVAILABLE if a
///         flush or directory stalls, the engine of a node has ended, or the overrun policy is
///         "error"; ::ORC_NO_SPACE. ::ORC_FENCED, from every later call: a newer run has taken
///         over. With on_loss = "error", once, the status of a checkpoint that was lost
#[unsafe(no_mangle)]
pub unsafe extern "C" fn orc_checkpoint(session: *mut orc_session, step: u64) -> orc_status {
    boundary("orc_checkpoint", || {
        registry::with_warnings(session, |session| session.checkpoint(step)).map(|((), text)| text)
    })
}

/// [collective] As orc_checkpoint(), for a checkpoint that goes at least to a level: to the weakest
/// configured one that survives as much, to all weaker ones, and to whatever is due
/// ([level.NAME] in the options). Where levels have no paces and nothing is due, it goes no
/// further. If ranks ask for different levels, the strongest counts.
///
/// @param level  an ::orc_level
/// @return as orc_checkpoint(); ::ORC_UNSUPPORTED if no configured level survives as much
#[unsafe(no_mangle)]
pub unsafe extern "C" fn orc_checkpoint_at(
    session: *mut orc_session,
    step: u64,
    level: c_int,
) -> orc_status {
    boundary("orc_checkpoint_at", || {
        let level = self::level(level)?;
        let take = |session: &mut Membership| session.checkpoint_at(step, Some(level));
        registry::with_warnings(session, take).map(|((), text)| text)
    })
}

/// Waits until the checkpoint of a step is committed at a level, or at a configured level that
/// survives more. For a level that the step does not go to, it says so at once. Local: other ranks
/// need not call it. Meanwhile other threads can use the session, and close it.
///
/// @param level      an ::orc_level
/// @param timeout_s  0 polls
/// @return ::ORC_UNAVAILABLE if timeout_s has passed; ::ORC_NOT_FOUND for a step never taken in
///         this session, or one that goes neither to this level nor to a stronger one;
///         ::ORC_UNSUPPORTED if no such level is configured; otherwise why the checkpoint is lost
#[unsafe(no_mangle)]
pub unsafe extern "C" fn orc_wait(
    session: *mut orc_session,
    step: u64,
    level: c_int,
    timeout_s: f64,
) -> orc_status {
    boundary("orc_wait", || {
        let level = self::level(level)?;
        let timeout = timeout(timeout_s)?;
        // Not inside `with`: the session would be locked for the whole wait.
        let waiter = registry::with(session, |session| session.waiter(step, level))?;
        let waited = waiter.map_or(Ok(()), |waiter| waiter.wait(timeout));
        let look = registry::with(session, |session| {
            session.poll_outcomes();
            Ok(())
        });
        waited?;
        // It is safe, even if another thread has closed the session meanwhile.
        let told = look.and_then(|()| registry::with_warnings(session, |_| Ok(())));
        Ok(told.map_or_else(|_| String::new(), |((), text)| text))
    })
}
