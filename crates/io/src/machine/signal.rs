//! Notices a signal without taking it away from the program.
//!
//! How: our handler sets a flag and then calls the previous handler, if the program had one.
//!
//! Invariants
//! 1. The handler only does atomic stores and loads and calls the earlier handler: it is
//!    async-signal-safe if that one is.
//! 2. The earlier handler is remembered before ours is installed, so that no signal in between is
//!    lost.
//! 3. Nothing is installed unless requested; signals that report a fault of the program itself are
//!    refused.
//!
//! Not here: the effect of a set flag. A default action of the signal (such as ending the process)
//! no longer happens once it is watched, which is the purpose of watching it.
#![allow(unsafe_code)]

use crate::errno::{last_errno, os_error};
use orcheck_format::{Error, Result};
use std::mem::MaybeUninit;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

const SIGNALS: usize = 65;

static FLAGS: [AtomicPtr<AtomicBool>; SIGNALS] = [const { AtomicPtr::new(null_mut()) }; SIGNALS];
/// The earlier handlers' addresses; 0 and 1 are the default and "ignore".
static EARLIER: [AtomicUsize; SIGNALS] = [const { AtomicUsize::new(libc::SIG_DFL) }; SIGNALS];
/// Whether the earlier handler takes three arguments.
static EARLIER_TAKES_INFO: [AtomicBool; SIGNALS] = [const { AtomicBool::new(false) }; SIGNALS];
static INSTALL: Mutex<()> = Mutex::new(());

/// Sets `flag` whenever the process receives `signal`, then runs the handler that was installed
/// before. A repeated call with the same flag changes nothing; another flag for the same signal is
/// refused.
pub fn install_signal(signal: i32, flag: &'static AtomicBool) -> Result<()> {
    let index = usize::try_from(signal)
        .ok()
        .filter(|at| (1..SIGNALS).contains(at));
    let refused = [
        libc::SIGKILL,
        libc::SIGSTOP,
        libc::SIGSEGV,
        libc::SIGBUS,
        libc::SIGFPE,
        libc::SIGILL,
        libc::SIGABRT,
        libc::SIGTRAP,
        libc::SIGSYS,
    ];
    let Some(index) = index.filter(|_| !refused.contains(&signal)) else {
        return Err(Error::invalid(format!("signal {signal} cannot be watched"))
            .next("choose a signal such as SIGUSR1 or SIGTERM"));
    };
    let _one_at_a_time = INSTALL.lock().unwrap_or_else(PoisonError::into_inner);
    let pointer = std::ptr::from_ref(flag).cast_mut();
    let present = FLAGS[index].load(Ordering::SeqCst);
    if present == pointer {
        return Ok(());
    }
    if !present.is_null() {
        return Err(Error::invalid(format!(
            "signal {signal} is watched already"
        )));
    }
    let what = || os_error(last_errno(), format_args!("watch signal {signal}"));
    let mut earlier = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: asks for the present action only; `earlier` is a valid place for it.
    if unsafe { libc::sigaction(signal, std::ptr::null(), earlier.as_mut_ptr()) } != 0 {
        return Err(what());
    }
    // SAFETY: filled by the successful call above (and a plain structure in any case).
    let earlier = unsafe { earlier.assume_init() };
    EARLIER[index].store(earlier.sa_sigaction, Ordering::SeqCst);
    EARLIER_TAKES_INFO[index].store(earlier.sa_flags & libc::SA_SIGINFO != 0, Ordering::SeqCst);
    FLAGS[index].store(pointer, Ordering::SeqCst);
    // SAFETY: an all-zero `sigaction` is a valid start; the handler has the signature that
    // SA_SIGINFO announces. The earlier mask is kept because the earlier handler relies on it.
    let installed = unsafe {
        let mut ours: libc::sigaction = std::mem::zeroed();
        ours.sa_sigaction =
            handle as extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) as usize;
        ours.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART | (earlier.sa_flags & libc::SA_ONSTACK);
        ours.sa_mask = earlier.sa_mask;
        libc::sigaction(signal, &raw const ours, null_mut())
    };
    if installed != 0 {
        let error = what();
        FLAGS[index].store(null_mut(), Ordering::SeqCst);
        return Err(error);
    }
    Ok(())
}

extern "C" fn handle(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let Some(index) = usize::try_from(signal).ok().filter(|at| *at < SIGNALS) else {
        return;
    };
    let flag = FLAGS[index].load(Ordering::SeqCst);
    if !flag.is_null() {
        // SAFETY: only ever set from a `&'static AtomicBool`.
        unsafe { &*flag }.store(true, Ordering::SeqCst);
    }
    let earlier = EARLIER[index].load(Ordering::SeqCst);
    if earlier == libc::SIG_DFL || earlier == libc::SIG_IGN {
        return;
    }
    // SAFETY: the address is the handler that the kernel held for this signal, called with the
    // arguments that its flags announced.
    unsafe {
        if EARLIER_TAKES_INFO[index].load(Ordering::SeqCst) {
            let call: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) =
                std::mem::transmute(earlier);
            call(signal, info, context);
        } else {
            let call: extern "C" fn(i32) = std::mem::transmute(earlier);
            call(signal);
        }
    }
}
