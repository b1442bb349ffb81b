//! Finds the commit records in a job's directories that do not count because they are unreadable,
//! damaged or not believed.
//!
//! Invariants:
//! 1. A copy is not among them if another copy of the same record counts.
//! 2. There is one for each file, in the order of the catalog's files.
//! 3. Each has its own reason, independent of how many there are and of the copies in other places.
//!
//! Not here: which of the reasons are reported (`catalog.rs`).

use super::Catalog;
use orcheck_format::disk::FileName;
use orcheck_format::{Error, Level, Step};
use std::collections::{BTreeMap, BTreeSet};

/// A commit record file that does not count; the fields come from its name.
#[derive(Debug)]
pub struct Unread {
    /// The checkpoint's step.
    pub step: Step,
    /// Counter of the epoch that wrote it.
    pub counter: u64,
    /// First four bytes of the run id that wrote it.
    pub run: [u8; 4],
    /// Whether a record of the checkpoint at another level counts.
    pub elsewhere: bool,
    /// Index of the place.
    pub place: usize,
    /// Name of the file.
    pub file: String,
    /// Why it does not count, without its path.
    pub why: Error,
}

impl Unread {
    /// Step, epoch counter and beginning of the run id, as [`FileName::checkpoint`].
    #[must_use]
    pub fn checkpoint(&self) -> (Step, u64, [u8; 4]) {
        (self.step, self.counter, self.run)
    }
}

/// Finds the unread records of a catalog, given these reasons.
pub(super) fn find(
    catalog: &Catalog,
    mut reasons: BTreeMap<(usize, String), Error>,
) -> Vec<Unread> {
    let all = catalog.commits().iter().chain(catalog.rejected());
    let records = all.chain(catalog.fenced()).map(|commit| &commit.record);
    let mut whole: BTreeSet<(Step, u64, [u8; 4])> = BTreeSet::new();
    let mut known: BTreeSet<(Step, u64, [u8; 4], Level)> = BTreeSet::new();
    for record in records {
        let (step, counter, run) = (
            record.step,
            record.epoch.counter,
            record.epoch.run.short_bytes(),
        );
        whole.insert((step, counter, run));
        known.insert((step, counter, run, record.level));
    }
    let files = catalog.files().iter();
    let unread = files.filter_map(|(place, entry, name)| match *name {
        Some(FileName::Commit {
            step,
            epoch,
            run,
            level,
        }) if !known.contains(&(step, epoch, run, level)) => {
            let why = reasons.remove(&(*place, entry.name.clone()));
            Some(Unread {
                step,
                counter: epoch,
                run,
                elsewhere: whole.contains(&(step, epoch, run)),
                place: *place,
                file: entry.name.clone(),
                why: why.unwrap_or_else(|| Error::corrupt("the record does not count")),
            })
        }
        _ => None,
    });
    unread.collect()
}
