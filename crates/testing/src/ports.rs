//! Addresses that a test needs a second time.
//!
//! How: what is started again at the address of an earlier one has to have its port, and meanwhile
//! the kernel may have given it to a connection of another process, which ends soon. So it is tried
//! again for as long as [`PATIENCE`].
//!
//! Not here: choosing a port (the kernel does, for port 0).

use orcheck_format::Result;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(20);

/// Binds something at the address that others know it by.
///
/// # Panics
/// Where it cannot be bound, or another process keeps the port.
pub fn bound<T>(bind: impl Fn() -> Result<T>) -> T {
    let until = Instant::now() + PATIENCE;
    loop {
        match bind() {
            Ok(bound) => return bound,
            Err(error) if error.message().contains("(EADDRINUSE)") => {
                assert!(Instant::now() < until, "{error}");
                std::thread::yield_now();
            }
            Err(error) => panic!("{error}"),
        }
    }
}
