//! Implements `orc_watch`, which reports the outcomes of checkpoints to a function of the program,
//! and `orc_safe_step`, which queries them.
//!
//! What it does: it passes the session's events to the program's function as C structures.
//!
//! Invariants:
//! 1. The function runs on the thread that called the session, and an orc_ call from inside it is
//!    refused.
//! 2. The event and its text belong to the library and last as long as the call.
//!
//! Not here: what is reported, and when (`orcheck-client`).

use crate::convert::{level, level_code, not_null};
use crate::fault::{boundary, callback, status_of};
use crate::registry::{self, orc_session};
use crate::types::{orc_event, orc_event_kind, orc_on_event, orc_status};
use orcheck_client::{Event, EventKind, Watcher};
use std::ffi::{CString, c_int, c_void};

/// The context of the program's function.
struct Context(*mut c_void);

// SAFETY: the pointer is only handed back to the program, on the thread that calls the session;
// which thread that is is the program's choice.
unsafe impl Send for Context {}

impl Context {
    fn pointer(&self) -> *mut c_void {
        self.0
    }
}

fn watcher(call: unsafe extern "C" fn(*mut c_void, *const orc_event), ctx: *mut c_void) -> Watcher {
    let ctx = Context(ctx);
    Box::new(move |event: &Event| {
        let error = event.error.as_ref();
        let text = error.map_or("", |error| error.message());
        let text = CString::new(text.replace('\0', "\u{fffd}")).unwrap_or_default();
        let told = orc_event {
            struct_size: size_of::<orc_event>(),
            kind: match event.kind {
                EventKind::Safe => orc_event_kind::ORC_EVENT_SAFE as c_int,
                EventKind::Lost => orc_event_kind::ORC_EVENT_LOST as c_int,
            },
            step: event.step.0,
            level: level_code(event.level),
            status: error.map_or(orc_status::ORC_OK, |error| status_of(error.kind())) as c_int,
            text: text.as_ptr(),
        };
        // SAFETY: the program gave this function together with this context; the event stays during
        // the call.
        callback(|| unsafe { call(ctx.pointer(), &raw const told) });
    })
}

/// Registers a function that is called whenever a step of this session becomes safe at a level, or
/// is lost there: inside orc_due(), orc_checkpoint(), orc_wait() and orc_close(), on the calling
/// thread. Each step is reported once per level, on every rank. The exception: after an agent has
/// ended, a step that was reported lost may be reported again, because another agent flushes it
/// from memory. A loss whose text says "not known to be safe" was decided while the commit record
/// was being written: a restart may still find that step. Level process has no events: the outcome
/// of a snapshot there is reported at the other levels. The function may call no orc_ function
/// except orc_request() and orc_message(). Local.
///
/// @param on_event  replaces an earlier function; NULL: no function is called from now on
/// @param ctx       passed to it
#[unsafe(no_mangle)]
pub unsafe extern "C" fn orc_watch(
    session: *mut orc_session,
    on_event: orc_on_event,
    ctx: *mut c_void,
) -> orc_status {
    boundary("orc_watch", || {
        registry::with(session, |session| {
            session.watch(on_event.map(|call| watcher(call, ctx)));
            Ok(String::new())
        })
    })
}

/// Gives the newest step of this session that is safe at a level, or at a configured level that
/// survives more, without waiting. Local.
///
/// @param level  an ::orc_level
/// @param step   gets the step
/// @return ::ORC_NOT_FOUND: none is yet; ::ORC_UNSUPPORTED if no such level is configured
#[unsafe(no_mangle)]
pub unsafe extern "C" fn orc_safe_step(
    session: *mut orc_session,
    level: c_int,
    step: *mut u64,
) -> orc_status {
    boundary("orc_safe_step", || {
        not_null(step, "step")?;
        // SAFETY: not NULL, and the caller promises room for the number.
        unsafe { step.write(0) };
        let level = self::level(level)?;
        let safe = registry::with(session, |session| session.safe_step(level))?;
        // SAFETY: as above.
        unsafe { step.write(safe) };
        Ok(String::new())
    })
}
