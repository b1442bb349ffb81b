//! Commit records that are in the directories of a job and do not count: they cannot be read, are damaged, or not believed.
//!
//! Invariants:
//! 1. A copy beside another one that counts is none of them.
//! 2. There is one for each file, in the order of the catalog's files.
//! 3. Each has its own reason, however many there are and whatever their copies in other places are like.
//!
//! Not here: which of the reasons are told (`catalog.rs`).

use super::Catalog;
use orcheck_format::disk::FileName;
use orcheck_format::{Error, Level};
use std::collections::{BTreeMap, BTreeSet};

/// The file of a commit record that does not count, as its name has it.
#[derive(Debug)]
pub struct Unread {
    /// The checkpoint's step.
    pub step: u64,
    /// Counter of the epoch that wrote it.
    pub counter: u64,
    /// First four bytes of the run id that wrote it.
    pub run: [u8; 4],
    /// Whether the checkpoint has a record at another level that counts.
    pub elsewhere: bool,
    /// Index of the place.
    pub place: usize,
    /// Its name.
    pub file: String,
    /// Why it does not count, without its path.
    pub why: Error,
}

impl Unread {
    /// Step, epoch counter and beginning of the run id, as [`FileName::checkpoint`].
    #[must_use]
    pub fn checkpoint(&self) -> (u64, u64, [u8; 4]) {
        (self.step, self.counter, self.run)
    }
}

/// Those of a catalog, for these reasons.
pub(super) fn find(
    catalog: &Catalog,
    mut reasons: BTreeMap<(usize, String), Error>,
) -> Vec<Unread> {
    let all = catalog.commits().iter().chain(catalog.rejected());
    let records = all.chain(catalog.fenced()).map(|commit| &commit.record);
    let mut whole: BTreeSet<(u64, u64, [u8; 4])> = BTreeSet::new();
    let mut known: BTreeSet<(u64, u64, [u8; 4], Level)> = BTreeSet::new();
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
