//! Runs threads of our own inside the program's process.
//!
//! Invariants:
//! 1. They run with every signal blocked: the program's handlers run on the program's threads.
//! 2. They have a name, so that `top -H` shows whose they are.
//!
//! Not here: what they do; where they may run (`machine::pin_current_thread`).

#![allow(unsafe_code)]

use orcheck_format::sabotage::{Switch, off};
use orcheck_format::{Error, Result};
use std::cell::Cell;
use std::ffi::c_int;
use std::marker::PhantomData;
use std::ops::Range;
use std::thread::{JoinHandle, Scope, ScopedJoinHandle};

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
}

/// The value of `PTHREAD_CANCEL_DISABLE` in glibc and musl.
const CANCEL_DISABLE: c_int = 1;

/// While this exists, `pthread_cancel` does not end the calling thread, which would leave locks
/// held and files half written. The request stays, and takes effect at the program's own next
/// cancellation point.
#[derive(Debug)]
pub struct Uncancelled {
    before: c_int,
    /// The state belongs to the thread.
    _here: PhantomData<*const ()>,
}

impl Uncancelled {
    /// Takes effect immediately.
    #[must_use]
    pub fn now() -> Uncancelled {
        let mut before = 0;
        // Breaks if: this is not done; a cancelled thread would end inside a call, with its locks
        // held, or end the program.
        let state = if off(Switch::Uncancelled) {
            0
        } else {
            CANCEL_DISABLE
        };
        // SAFETY: the old state can be written during the call; an unchanged 0 restores what
        // threads begin with.
        unsafe { pthread_setcancelstate(state, &raw mut before) };
        Uncancelled {
            before,
            _here: PhantomData,
        }
    }
}

impl Drop for Uncancelled {
    fn drop(&mut self) {
        let mut old = 0;
        // SAFETY: as above; the state is one that this function gave.
        unsafe { pthread_setcancelstate(self.before, &raw mut old) };
    }
}

/// The addresses of the calling thread's stack, without its guard; `None` if the system does not
/// report them. For the first thread of a process, they extend to the limit that `ulimit -s` gave
/// at the first call.
#[must_use]
pub fn stack_of_thread() -> Option<Range<usize>> {
    thread_local! {
        // Queried once: for the first thread of a process this reads /proc/self/maps.
        static STACK: Cell<Option<(usize, usize)>> = const { Cell::new(None) };
    }
    let known = STACK.try_with(Cell::get).ok()?;
    let (low, high) = known.unwrap_or_else(|| {
        let asked = ask_for_stack().unwrap_or((0, 0));
        let _ = STACK.try_with(|stack| stack.set(Some(asked)));
        asked
    });
    (low < high).then_some(low..high)
}

/// Bytes of stack that the calling thread has left; `None` if unknown, such as on a stack that the
/// program switched to by itself (fibers, signal stacks).
#[must_use]
#[inline(never)]
pub fn stack_left() -> Option<usize> {
    let here = 0u8;
    let here = (&raw const here).addr();
    let stack = stack_of_thread()?;
    stack.contains(&here).then(|| here - stack.start)
}

fn ask_for_stack() -> Option<(usize, usize)> {
    let mut low: *mut libc::c_void = std::ptr::null_mut();
    let (mut len_bytes, mut guard_bytes) = (0, 0);
    // SAFETY: the attributes are filled by the first call before the others read them, and
    // destroyed once.
    unsafe {
        let mut attributes: libc::pthread_attr_t = std::mem::zeroed();
        if libc::pthread_getattr_np(libc::pthread_self(), &raw mut attributes) != 0 {
            return None;
        }
        let known =
            libc::pthread_attr_getstack(&raw const attributes, &raw mut low, &raw mut len_bytes)
                == 0
                && libc::pthread_attr_getguardsize(&raw const attributes, &raw mut guard_bytes)
                    == 0;
        libc::pthread_attr_destroy(&raw mut attributes);
        if !known {
            return None;
        }
    }
    // Before glibc 2.27, the guard counts as stack.
    Some((low.addr() + guard_bytes, low.addr() + len_bytes))
}

/// Keeps the calling thread from preempting another thread just because it was woken: it waits for
/// a free processor, or for its fair share. For bulk work that nobody waits for. If the system
/// refuses, nothing changes.
pub fn never_preempt() {
    // SAFETY: the structure is plain data, valid for the duration of the call; 0 is the calling
    // thread.
    unsafe {
        let parameter: libc::sched_param = std::mem::zeroed();
        libc::sched_setscheduler(0, libc::SCHED_BATCH, &parameter);
    }
}

/// Starts a named thread with all signals blocked.
///
/// # Errors
/// Unavailable if the system grants no thread.
pub fn spawn<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>> {
    with_signals_blocked(|| {
        std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(work)
    })
    .map_err(|error| refused(name, &error))
}

/// The same for a thread that ends before the scope does. The standard library's own function
/// panics if there is no thread.
///
/// # Errors
/// Unavailable if the system grants no thread.
pub fn spawn_scoped<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    name: &str,
    work: impl FnOnce() -> T + Send + 'scope,
) -> Result<ScopedJoinHandle<'scope, T>> {
    with_signals_blocked(|| {
        std::thread::Builder::new()
            .name(name.to_owned())
            .spawn_scoped(scope, work)
    })
    .map_err(|error| refused(name, &error))
}

fn refused(name: &str, error: &std::io::Error) -> Error {
    Error::unavailable(format!("thread '{name}' could not be started: {error}"))
        .next("raise the limit of processes (ulimit -u) or of memory (ulimit -v)")
}

/// A thread inherits the signal mask with which it is started.
fn with_signals_blocked<T>(start: impl FnOnce() -> T) -> T {
    let old = block_signals();
    let started = start();
    restore_signals(&old);
    started
}

fn block_signals() -> libc::sigset_t {
    // SAFETY: both sets are plain data, valid for the duration of the calls.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        let mut old: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut old);
        old
    }
}

fn restore_signals(old: &libc::sigset_t) {
    // SAFETY: `old` was filled by pthread_sigmask on this thread.
    unsafe {
        libc::pthread_sigmask(libc::SIG_SETMASK, old, std::ptr::null_mut());
    }
}

/// From now on this thread creates files with exactly the permissions that it asks for; other
/// threads, and programs that they start, keep the process's file mode mask.
///
/// # Errors
/// Unavailable if the kernel does not allow it.
pub fn without_mode_mask() -> Result<()> {
    thread_local! {
        static DONE: Cell<bool> = const { Cell::new(false) };
    }
    if DONE.get() {
        return Ok(());
    }
    // SAFETY: the thread gets a copy of its working directory and mask, which are no memory.
    if unsafe { libc::unshare(libc::CLONE_FS) } != 0 {
        let errno = crate::errno::last_errno();
        return Err(crate::errno::os_error(
            errno,
            "a file mode mask of the thread's own",
        ));
    }
    rustix::process::umask(rustix::fs::Mode::empty());
    DONE.set(true);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bulk_work_says_so_to_the_scheduler() {
        // SAFETY: asks for the policy of the calling thread.
        let policy = || unsafe { libc::sched_getscheduler(0) };
        let before = policy();
        let bulk = spawn("bulk", move || {
            never_preempt();
            policy()
        });
        // Breaks if: the policy is set for the whole process, or not at all.
        assert_eq!(
            bulk.map(|thread| thread.join().ok()).ok(),
            Some(Some(libc::SCHED_BATCH))
        );
        assert_eq!(policy(), before);
    }
}
