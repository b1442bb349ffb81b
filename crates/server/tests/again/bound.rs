//! A server at the address of an earlier one.

use orcheck_format::Result;
use orcheck_server::Server;
use std::time::{Duration, Instant};

/// Binds a server. One that is started again has to have the port that its callers know; meanwhile the kernel may have given
/// it to a connection of another process, which ends soon.
pub fn bound(bind: impl Fn() -> Result<Server>) -> Server {
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        match bind() {
            Err(error) if error.message().contains("already in use") => {
                assert!(Instant::now() < until, "{error}");
                std::thread::yield_now();
            }
            server => return server.unwrap(),
        }
    }
}
