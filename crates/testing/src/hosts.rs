//! Hosts of their own in one machine: a process with its own network and its own name.
//!
//! Invariants
//! 1. Everything here changes the calling thread for good, and what it starts: call it in a forked
//!    child, or on a thread of its own.
//! 2. Nothing has a name outside: networks and their links vanish with the last process in them.
//! 3. What the machine does not allow is an error, for the test to say so and skip.
//!
//! Not here: how links are joined and cut (the program `ip`, called by tests).
#![allow(unsafe_code)]

use std::io::{Error, Result};

/// Why this process cannot make hosts; `None` when it can. Looks, and changes nothing.
#[must_use]
pub fn hosts_refused() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("networks of one's own take root".to_owned());
    }
    (!super::mount::program_exists("ip")).then(|| "there is no program ip (iproute2)".to_owned())
}

/// From now on this thread has a network of its own, without any link.
///
/// # Errors
/// What the kernel says.
pub fn own_network() -> Result<()> {
    // SAFETY: takes an integer only.
    match unsafe { libc::unshare(libc::CLONE_NEWNET) } {
        0 => Ok(()),
        _ => Err(Error::last_os_error()),
    }
}

/// From now on this process is on a host of this name.
///
/// # Errors
/// What the kernel says.
pub fn own_host(name: &str) -> Result<()> {
    // SAFETY: takes an integer only.
    if unsafe { libc::unshare(libc::CLONE_NEWUTS) } != 0 {
        return Err(Error::last_os_error());
    }
    // SAFETY: reads as many bytes as it is told, all of them of `name`.
    match unsafe { libc::sethostname(name.as_ptr().cast(), name.len()) } {
        0 => Ok(()),
        _ => Err(Error::last_os_error()),
    }
}
