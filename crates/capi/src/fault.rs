//! Turns Rust results, panics and texts into C statuses at the boundary.
//!
//! What it does: `boundary` runs the body of an `extern "C"` function, catches its panics, and
//! stores the text for `orc_message`. It refuses calls from inside one of the program's callbacks,
//! which would wait for the session that is waiting for the callback.
//!
//! Invariants:
//! 1. A panic becomes `ORC_INTERNAL` with its text and place; nothing is printed.
//! 2. The text belongs to the thread and stays valid until the thread's next `orc_` call.
//! 3. After `ORC_OK` the text is the newest warning or empty, never an older error.
//! 4. `pthread_cancel` takes effect after a call, never inside it.
//! 5. A call in a signal handler that interrupted another call of the same thread is refused before
//!    it allocates or locks anything.
//! 6. A call that may not fit into the rest of the thread's stack is refused before it begins, if
//!    that rest is known.
//!
//! Faults survived: panics in the code below, use from destructors of other thread-local values.
//!
//! Not here: the kinds of errors (`orcheck_format::ErrorKind`).

use crate::types::orc_status;
use orcheck_format::sabotage::{Switch, off};
use orcheck_format::{Error, ErrorKind, Result};
use orcheck_io::machine::thread::{Uncancelled, stack_left};
use std::cell::{Cell, RefCell};
use std::ffi::{CStr, CString, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Once};

thread_local! {
    static MESSAGE: RefCell<CString> = RefCell::new(CString::default());
    static IN_CALLBACK: Cell<bool> = const { Cell::new(false) };
    static IN_BOUNDARY: Cell<bool> = const { Cell::new(false) };
    /// What `orc_message` returns instead of MESSAGE.
    static CONSTANT: Cell<Option<&'static CStr>> = const { Cell::new(None) };
    /// What notes that the warnings in MESSAGE, if it has any, are read.
    static SHOWN: RefCell<Option<Shown>> = const { RefCell::new(None) };
    /// The same for the call that has not returned yet.
    static SHOWS: RefCell<Option<Shown>> = const { RefCell::new(None) };
    static PANIC_PLACE: Cell<Option<String>> = const { Cell::new(None) };
}

/// Whether warnings in a message have been read with `orc_message`.
pub(crate) type Shown = Arc<AtomicBool>;

/// Says that this call returns warnings.
pub(crate) fn show() -> Shown {
    let shown = Shown::default();
    let _ = SHOWS.try_with(|place| place.replace(Some(Arc::clone(&shown))));
    shown
}

/// Stack that a call needs, in bytes: nearly twice the maximum ever measured (tests/stack.rs).
/// Callbacks of the program need more.
const STACK_BYTES: usize = if cfg!(debug_assertions) {
    256 << 10
} else {
    96 << 10
};

/// Threads of the library carry this prefix in their names.
const THREAD_PREFIX: &str = "orc";

/// Runs the body of one C function, which returns a warning or "". `call` names the function in the
/// text of an error.
pub(crate) fn boundary(call: &'static str, body: impl FnOnce() -> Result<String>) -> orc_status {
    boundary_to(call, || body().map(|warning| (orc_status::ORC_OK, warning)))
}

/// As [`boundary`], for a body that may return another status than `ORC_OK` without an error.
pub(crate) fn boundary_to(
    call: &'static str,
    body: impl FnOnce() -> Result<(orc_status, String)>,
) -> orc_status {
    if interrupts_itself() {
        let _ = CONSTANT.try_with(|text| text.set(Some(INTERRUPTS)));
        return orc_status::ORC_INVALID;
    }
    let _uncancelled = Uncancelled::now();
    let small = stack_left().filter(|left| *left < STACK_BYTES);
    // Breaks if: this is not checked; the call ends the program with SIGSEGV.
    if let Some(left) = small
        && !off(Switch::SmallStack)
    {
        return refuse_stack(call, left);
    }
    behind(call, body)
}

/// A constant, because the interrupted call may be in the middle of an allocation.
const INTERRUPTS: &CStr = c"called while another orc_ call of this thread has not returned, from a signal handler for \
instance: it would wait for itself. Next: in a signal handler call orc_request() only, and end with _exit()";

/// Whether a call of this thread has not returned, and is not waiting for one of the program's
/// callbacks.
fn interrupts_itself() -> bool {
    let inside = IN_BOUNDARY.try_with(Cell::get).unwrap_or(false);
    let called_back = IN_CALLBACK.try_with(Cell::get).unwrap_or(false);
    // Breaks if: this is not checked; exit() in a signal handler hangs if orc_close() is called at
    // exit.
    inside && !called_back && !off(Switch::OwnCall)
}

/// The message of a call on a thread with a small stack, made in a few KiB.
#[cold]
#[inline(never)]
fn refuse_stack(call: &'static str, left: usize) -> orc_status {
    set_message(format!(
        "{call}: {left} bytes of this thread's stack are left, a call needs {STACK_BYTES}. Next: call it on a thread with a \
         larger stack (pthread_attr_setstacksize, OMP_STACKSIZE, ulimit -s)"
    ));
    orc_status::ORC_INVALID
}

/// The rest of a call, once there is known to be enough stack. A separate function, whose frame
/// holds what the body needs.
#[inline(never)]
fn behind(call: &'static str, body: impl FnOnce() -> Result<(orc_status, String)>) -> orc_status {
    quiet_panics();
    let refused = IN_CALLBACK.try_with(Cell::get).unwrap_or(false);
    let outcome = if refused {
        Err(Error::invalid(
            "called from inside a callback of a collective or codec, which would wait for itself",
        )
        .next("call it after the callback has returned"))
    } else {
        let before = IN_BOUNDARY.try_with(|flag| flag.replace(true));
        let caught = catch_unwind(AssertUnwindSafe(body));
        let _ = IN_BOUNDARY.try_with(|flag| flag.set(before.unwrap_or(false)));
        caught.unwrap_or_else(|panic| Err(panic_error(panic.as_ref())))
    };
    let shows = SHOWS.try_with(RefCell::take).ok().flatten();
    match outcome {
        Ok((status, warning)) => {
            set_message(warning);
            let _ = SHOWN.try_with(|shown| shown.replace(shows));
            status
        }
        Err(error) => refuse(error.at(call)),
    }
}

/// Stores the text and returns the status of an error.
pub(crate) fn refuse(error: Error) -> orc_status {
    set_message(error.message().to_owned());
    status_of(error.kind())
}

/// Runs one of the program's callbacks, so that `orc_` calls from inside it are detected.
pub(crate) fn callback<T>(call: impl FnOnce() -> T) -> T {
    let before = IN_CALLBACK.with(|flag| flag.replace(true));
    let value = call();
    IN_CALLBACK.with(|flag| flag.set(before));
    value
}

fn set_message(text: String) {
    let _ = CONSTANT.try_with(|constant| constant.set(None));
    let _ = SHOWN.try_with(RefCell::take);
    // A zero byte in a text (from a file name, for example) is replaced, so that the text is shown
    // to its end.
    let text = CString::new(text.replace('\0', "\u{fffd}")).unwrap_or_default();
    let _ = MESSAGE.try_with(|message| message.replace(text));
}

fn panic_error(panic: &(dyn std::any::Any + Send)) -> Error {
    let what = panic
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "panic without a text".to_owned());
    let place = PANIC_PLACE
        .try_with(Cell::take)
        .ok()
        .flatten()
        .unwrap_or_else(|| "unknown place".to_owned());
    Error::internal(format!("defect in Orcheck at {place}: {what}"))
        .next("report this text; orc_abandon the session, it is not to be used any more")
}

/// Panics behind the boundary are reported through `orc_message`, not on the standard error.
fn quiet_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let previous = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let ours = IN_BOUNDARY.try_with(Cell::get).unwrap_or(false);
            let name_is_ours = std::thread::current()
                .name()
                .is_some_and(|name| name.starts_with(THREAD_PREFIX));
            if ours {
                let place = info.location().map(ToString::to_string);
                let _ = PANIC_PLACE.try_with(|cell| cell.set(place));
            } else if !name_is_ours {
                previous(info);
            }
        }));
    });
}

pub(crate) fn status_of(kind: ErrorKind) -> orc_status {
    match kind {
        ErrorKind::Invalid => orc_status::ORC_INVALID,
        ErrorKind::NotFound => orc_status::ORC_NOT_FOUND,
        ErrorKind::Unavailable => orc_status::ORC_UNAVAILABLE,
        ErrorKind::NoSpace => orc_status::ORC_NO_SPACE,
        ErrorKind::Corrupt => orc_status::ORC_CORRUPT,
        ErrorKind::Fenced => orc_status::ORC_FENCED,
        ErrorKind::Unsupported => orc_status::ORC_UNSUPPORTED,
        ErrorKind::Internal => orc_status::ORC_INTERNAL,
    }
}

fn kind_of(status: c_int) -> Option<ErrorKind> {
    ErrorKind::from_code(status)
}

/// The text of this thread's last `orc_` call: what failed, where, what was expected and found, and
/// what to do next. After ::ORC_OK (or ::ORC_AGAIN) from orc_open(), orc_find(), orc_find_step(),
/// orc_restart(), orc_restart_region(), orc_due(), orc_checkpoint(), orc_wait() or orc_close():
/// warnings that no call of this function has returned yet, one per line (an older step was
/// restored, a checkpoint is lost), or "". Never NULL. Belongs to the library and is valid until
/// the thread's next orc_ call; copy it to keep it.
#[unsafe(no_mangle)]
pub extern "C" fn orc_message() -> *const c_char {
    if let Some(text) = CONSTANT.try_with(Cell::get).ok().flatten() {
        return text.as_ptr();
    }
    let _ = SHOWN.try_with(|shown| {
        if let Some(shown) = &*shown.borrow() {
            shown.store(true, Ordering::Relaxed);
        }
    });
    MESSAGE
        .try_with(|message| message.borrow().as_ptr())
        .unwrap_or(c"".as_ptr())
}

/// For code on top of this interface (orcheck_mpi.h, orcheck_fortran.c, bindings of other
/// languages) that refuses a call itself: makes text the thread's message and returns status. A
/// status that is not an error is returned as ::ORC_INTERNAL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn orc_refuse(status: c_int, text: *const c_char) -> orc_status {
    let text = if text.is_null() {
        String::new()
    } else {
        // SAFETY: not NULL, and the caller promises a zero-terminated text.
        unsafe { CStr::from_ptr(text) }
            .to_string_lossy()
            .into_owned()
    };
    refuse(Error::new(
        kind_of(status).unwrap_or(ErrorKind::Internal),
        text,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message() -> String {
        // SAFETY: orc_message never returns NULL and the text is valid until the next call.
        unsafe { CStr::from_ptr(orc_message()) }
            .to_str()
            .unwrap()
            .to_owned()
    }

    // Breaks if: `catch_unwind` is removed from `boundary`.
    #[test]
    fn a_panic_becomes_internal_with_its_place() {
        let status = boundary("orc_test", || panic!("seven {}", 7));
        assert_eq!(status, orc_status::ORC_INTERNAL);
        let text = message();
        assert!(
            text.starts_with("orc_test: defect in Orcheck at "),
            "{text}"
        );
        assert!(text.contains("fault.rs:"), "{text}");
        assert!(text.contains("seven 7"), "{text}");
    }

    // Breaks if: `boundary` does not check IN_CALLBACK.
    #[test]
    fn a_call_from_inside_a_callback_is_refused() {
        let status = callback(|| boundary("orc_test", || Ok(String::new())));
        assert_eq!(status, orc_status::ORC_INVALID);
        assert!(message().contains("inside a callback"));
        assert_eq!(
            boundary("orc_test", || Ok(String::new())),
            orc_status::ORC_OK
        );
    }

    // Breaks if: `boundary` does not check IN_BOUNDARY.
    #[test]
    fn a_call_inside_a_call_is_refused_before_it_waits_for_itself() {
        let mut inner = None;
        let outer = boundary("orc_outer", || {
            inner = Some((boundary("orc_inner", || Ok(String::new())), message()));
            Ok("outer".to_owned())
        });
        let (status, text) = inner.unwrap();
        assert_eq!(status, orc_status::ORC_INVALID);
        assert!(text.contains("would wait for itself"), "{text}");
        assert_eq!((outer, message()), (orc_status::ORC_OK, "outer".to_owned()));
    }

    #[test]
    fn success_clears_the_text_or_leaves_the_warning() {
        assert_eq!(
            boundary("orc_test", || Err(Error::fenced("old\0new"))),
            orc_status::ORC_FENCED
        );
        assert_eq!(message(), "orc_test: old\\u{0}new");
        boundary("orc_test", || Ok("care\0ful".to_owned()));
        assert_eq!(message(), "care\u{fffd}ful");
        boundary("orc_test", || Ok(String::new()));
        assert_eq!(message(), "");
    }

    #[test]
    fn a_refusal_by_a_binding_keeps_its_text() {
        // SAFETY: both texts are zero-terminated or NULL.
        let status = unsafe { orc_refuse(1, c"no".as_ptr()) };
        assert_eq!(status, orc_status::ORC_INVALID);
        assert_eq!(message(), "no");
        // SAFETY: as above.
        let status = unsafe { orc_refuse(0, std::ptr::null()) };
        assert_eq!(status, orc_status::ORC_INTERNAL);
    }
}
