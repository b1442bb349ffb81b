//! Counting again what lies in the directories of those who have a quota: now and then, and soon after something could not
//! be looked at.
//!
//! How: a thread lists one directory after the other while all else continues, and rests after each for four times as long
//! as that took.
//!
//! Invariants:
//! 1. It is done for at most a twentieth of the time: a tenant with many files is counted more rarely than every [`PERIOD`].
//! 2. What was found to be charged wrongly is corrected, and one line of the log.
//!
//! Survives: directories that cannot be listed (what was charged before stands, and it is tried again). Not here: what is
//! charged (`quota.rs`).

use crate::server::quota::Recount;
use crate::server::tenants::Owned;
use crate::server::{LOOK, Shared};
use orcheck_format::Result;
use orcheck_io::machine::thread;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// Time between two countings.
const PERIOD: Duration = Duration::from_secs(3600);
/// The same after something could not be looked at.
const SOON: Duration = Duration::from_secs(10);
/// How much longer than the counting is the time until the next one, at least.
const SHARE: u32 = 19;
/// How much longer than the listing of a directory is the rest after it.
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
            // Said in the log, and tried again.
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

/// Counts again what one has, and says what was wrong.
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
