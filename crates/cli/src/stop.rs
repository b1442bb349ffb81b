//! Signals that ask this process to stop, as flags that a loop looks at.
//!
//! How: the handlers set a flag and nothing else, so a command that is writing a file ends at its next piece
//! and removes what is unfinished.
//!
//! Not here: forwarding signals to a program; that is the command `run`.

use std::sync::atomic::{AtomicBool, Ordering};

use orcheck_format::Result;

use crate::exit;

/// Signal numbers of Linux on every architecture that Orcheck runs on.
pub const SIGHUP: i32 = 1;
/// Interrupt from the keyboard.
pub const SIGINT: i32 = 2;
/// "Checkpoint soon" in many batch systems.
pub const SIGUSR1: i32 = 10;
/// Asks to end.
pub const SIGTERM: i32 = 15;

static INTERRUPTED: AtomicBool = AtomicBool::new(false);
static TERMINATED: AtomicBool = AtomicBool::new(false);

/// From now on SIGINT and SIGTERM only set a flag.
pub fn install() -> Result<()> {
    orcheck_io::install_signal(SIGINT, &INTERRUPTED)?;
    orcheck_io::install_signal(SIGTERM, &TERMINATED)
}

/// The exit code of the signal that arrived, if one did.
pub fn requested() -> Option<u8> {
    if INTERRUPTED.load(Ordering::Relaxed) {
        Some(exit::INTERRUPTED)
    } else if TERMINATED.load(Ordering::Relaxed) {
        Some(exit::TERMINATED)
    } else {
        None
    }
}
