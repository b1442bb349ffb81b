//! Tracks which names of a directory are durable, so that one sync serves all callers whose changes
//! preceded it.
//!
//! Why: a journaling file system writes its whole journal for each sync of a directory, at another
//! place of the disk. All nodes of a job create a file in one directory and sync it at the end; the
//! first of these syncs makes all the names durable.
//!
//! Invariants:
//! 1. A sync is skipped only if one that began after the last change of a name there has succeeded.
//! 2. Unknown names count as changed. The known directories are bounded by [`KNOWN_MAX`].
//!
//! Survives: syncs that fail: the next caller syncs again. The sync itself records first that names
//! may be lost. Not here: changes by others than callers of this server; they sync their own.

use crate::server::locked::guard;
use orcheck_format::Result;
use orcheck_format::sabotage::{Switch, off};
use orcheck_format::wire::StoreDir;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// Maximum number of known directories.
const KNOWN_MAX: usize = 4096;

/// A directory of a tenant.
type Place = (u64, StoreDir);

struct Known {
    /// Number of changes of names so far, including one that nobody has seen.
    changes: AtomicU64,
    /// How many of them are durable; locked during a sync.
    durable: Mutex<u64>,
}

/// See the module.
#[derive(Default)]
pub(crate) struct Names {
    known: Mutex<BTreeMap<Place, Arc<Known>>>,
}

impl Names {
    fn known(&self, place: &Place) -> Arc<Known> {
        let mut all = guard(&self.known);
        if all.len() >= KNOWN_MAX && !all.contains_key(place) {
            all.clear();
        }
        let known = all.entry(place.clone()).or_insert_with(|| {
            Arc::new(Known {
                changes: AtomicU64::new(1),
                durable: Mutex::new(0),
            })
        });
        Arc::clone(known)
    }

    /// Notes that a name has changed, or may have. Call this afterwards, and before the caller is
    /// answered.
    pub(crate) fn changed(&self, place: &Place) {
        // Breaks if: it is not counted; a sync of it would be skipped.
        if !off(Switch::NamesCounted) {
            self.known(place).changes.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Makes everything durable that has changed so far, calling `sync` if necessary; others who
    /// want the same wait until `sync` is over.
    pub(crate) fn sync(&self, place: &Place, sync: impl FnOnce() -> Result<()>) -> Result<()> {
        let known = self.known(place);
        let own = known.changes.load(Ordering::Acquire);
        let mut durable = guard(&known.durable);
        if *durable >= own {
            return Ok(());
        }
        let all = known.changes.load(Ordering::Acquire);
        sync()?;
        *durable = all;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use orcheck_format::Error;
    use std::cell::Cell;

    #[test]
    fn a_directory_is_synced_when_something_changed_and_not_otherwise() {
        let names = Names::default();
        let syncs = Cell::new(0);
        let place = |tenant: u64| (tenant, StoreDir::default());
        let sync = |tenant| {
            let before = syncs.get();
            let count = || {
                syncs.set(before + 1);
                Ok(())
            };
            names.sync(&place(tenant), count).unwrap();
            syncs.get() > before
        };
        // Nobody knows what happened before.
        assert!(sync(1) && !sync(1) && sync(2));
        names.changed(&place(1));
        assert!(!sync(2) && sync(1) && !sync(1));
        // A failed one does not count.
        names.changed(&place(1));
        let failed = names.sync(&place(1), || Err(Error::unavailable("no")));
        assert!(failed.is_err() && sync(1) && !sync(1));
        // A name that changes during a sync is not known to be durable.
        names.changed(&place(1));
        let during = || {
            names.changed(&place(1));
            Ok(())
        };
        names.sync(&place(1), during).unwrap();
        assert!(sync(1) && !sync(1));
    }

    #[test]
    fn what_is_known_is_bounded() {
        let names = Names::default();
        for tenant in 0..2 * KNOWN_MAX as u64 {
            names.changed(&(tenant, StoreDir::default()));
        }
        assert!(guard(&names.known).len() <= KNOWN_MAX);
    }
}
