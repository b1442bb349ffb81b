//! Runs numbered pieces of work on all processors.
//!
//! Invariants:
//! 1. The results are in the order of the pieces, whichever thread computed them: sums of them are
//!    the same on any machine.
//!
//! Not here: the contents of the pieces.

use std::sync::atomic::{AtomicU64, Ordering};

use orcheck_format::{Error, Result};
use orcheck_io::machine::cpuset;
use orcheck_io::machine::thread::spawn_scoped;

/// Does pieces 0 to `count` − 1.
pub fn spread<T: Send>(count: u64, piece: impl Fn(u64) -> T + Sync) -> Result<Vec<T>> {
    let next = AtomicU64::new(0);
    let work = || {
        let mut done = Vec::new();
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= count {
                return done;
            }
            done.push((number, piece(number)));
        }
    };
    let helpers = (cpuset().len() as u64).min(count).saturating_sub(1);
    let mut all = std::thread::scope(|scope| {
        // Fewer threads than requested are slower, and nothing else.
        let started = (0..helpers).map_while(|_| spawn_scoped(scope, "orcheck-plan", work).ok());
        let threads: Vec<_> = started.collect();
        let mut all = work();
        for thread in threads {
            let part = thread.join();
            all.extend(part.map_err(|_| Error::internal("a thread of the computation ended"))?);
        }
        Ok::<_, Error>(all)
    })?;
    all.sort_by_key(|&(number, _)| number);
    Ok(all.into_iter().map(|(_, result)| result).collect())
}
