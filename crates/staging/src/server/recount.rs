//! Counts again what tenants with a quota have in their directories: now and then, and soon after
//! something could not be looked at.
//!
//! How: a thread lists one directory after the other while everything else continues. After each it
//! rests for four times as long as the listing took.
//!
//! Invariants:
//! 1. It takes at most a twentieth of the time: a tenant with many files is counted less often than
//!    every [`PERIOD`].
//! 2. A wrong charge is corrected, with one line in the log.
//!
//! Survives: directories that cannot be listed (the charges stand, and it is tried again). Not
//! here: what is charged (`quota.rs`).

use crate::server::quota::Recount;
use crate::server::tenants::Owned;
use crate::server::{LOOK, Shared};
use orcheck_format::Result;
use orcheck_io::machine::thread;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// Time between two recounts.
const PERIOD: Duration = Duration::from_secs(3600);
/// The same after something could not be looked at.
const SOON: Duration = Duration::from_secs(10);
/// The time until the next recount is at least this many times that of the last one.
const SHARE: u32 = 19;
/// The rest after listing a directory is this many times as long as the listing.
const REST: u32 = 4;

/// Starts the thread, which ends with the server.
pub(crate) fn start(shared: &Arc<Shared>) -> Option<JoinHandle<()>> {
    let own = Arc::clone(shared);
    let started = thread::spawn("orcheck-quota", move || run(&own));
    let failed = |error: &_| {
        let line = format!("what quotas are charged is not compared with the disk: {error}");
        shared.log.say(&line);
    };
    started.inspect_err(failed).ok()
}

fn run(shared: &Shared) {
    let clock = &*shared.clock;
    let mut last = (clock.now(), Duration::ZERO);
    while !shared.is_stopping() {
        clock.sleep(LOOK);
        let owned = shared.served.owned();
        let counted = || owned.iter().filter(|one| one.account.most().is_some());
        let since = clock.now().saturating_sub(last.0);
        let doubtful = || counted().any(|one| one.account.take_doubt());
        let due = |period: Duration| since >= period.max(last.1 * SHARE);
        if !(due(PERIOD) || due(SOON) && doubtful()) {
            continue;
        }
        let begin = clock.now();
        for one in counted() {
            let mut rested = clock.now();
            let mut rest = || {
                let took = clock.now().saturating_sub(rested);
                pause(shared, took * REST);
                rested = clock.now();
                !shared.is_stopping()
            };
            // The log has reported it, and it is tried again.
            let _ = recount(shared, one, &mut rest);
        }
        last = (clock.now(), clock.now().saturating_sub(begin));
    }
}

/// Sleeps, but not past the end of the server.
fn pause(shared: &Shared, time: Duration) {
    let until = shared.clock.now().saturating_add(time);
    while !shared.is_stopping() && shared.clock.now() < until {
        let left = until.saturating_sub(shared.clock.now());
        shared.clock.sleep(left.min(LOOK));
    }
}

/// Counts again what a tenant has, and reports a wrong charge.
pub(crate) fn recount(shared: &Shared, one: &Owned, rest: &mut dyn FnMut() -> bool) -> Result<()> {
    if one.account.most().is_none() {
        return Ok(());
    }
    let name = &one.name;
    match one.account.count(&one.root, rest) {
        Ok(Recount { before, now }) if before != now => shared.log.say(&format!(
            "the quota of '{name}' is corrected: {before} bytes were charged, {now} are taken"
        )),
        Ok(_) => {}
        Err(_) if shared.is_stopping() => {}
        Err(error) => {
            shared.log.say_rarely(
                "recount",
                1,
                &format!("what '{name}' has taken could not be counted again, and stands as it was: {error}"),
            );
            return Err(error);
        }
    }
    Ok(())
}
