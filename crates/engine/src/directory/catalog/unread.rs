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
use orcheck_format::sabotage::{Switch, off};
use orcheck_format::{Detail, Error, ErrorKind, Level, Step};
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
    /// The level of the record.
    pub level: Level,
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

/// A step that was committed at a level, and whose commit record cannot be used there.
#[derive(Debug, Clone)]
pub struct UnreadStep {
    /// The step.
    pub step: Step,
    /// The level.
    pub level: Level,
    /// The files, and what is wrong with each.
    pub error: Error,
}

impl Catalog {
    /// The steps newer than this one with commit records that cannot be used, as far as these are
    /// `wanted`, newest first; without those that a later run has superseded. Whoever takes an
    /// older step has passed over them.
    #[must_use]
    pub fn unread_steps(
        &self,
        newer_than: Option<Step>,
        wanted: impl Fn(&Unread) -> bool,
    ) -> Vec<UnreadStep> {
        // Breaks if: none counts; damage to the record of the newest step would make an older one
        // pass for it.
        if off(Switch::UnreadNewer) {
            return Vec::new();
        }
        let counts = |one: &&Unread| {
            // That of another job is left alone.
            let is_ours = one.why.kind() != ErrorKind::Invalid || one.why.is(Detail::OtherKey);
            Some(one.step) > newer_than && is_ours && wanted(one) && !self.has_superseded(one)
        };
        let mut found: BTreeMap<(Step, Level, u64), Vec<&Unread>> = BTreeMap::new();
        for one in self.unread().iter().filter(counts) {
            let key = (one.step, one.level, one.counter);
            found.entry(key).or_default().push(one);
        }
        let told = |((step, level, _), copies): (_, Vec<&Unread>)| UnreadStep {
            step,
            level,
            error: self.why_unread(&copies),
        };
        found.into_iter().rev().map(told).collect()
    }

    /// Whether a later run resumed from an older step, or committed one that is not newer.
    fn has_superseded(&self, one: &Unread) -> bool {
        let resumed = (self.claims().iter()).filter_map(|(_, resumed)| resumed.as_ref());
        let mut later = resumed.filter(|resumed| resumed.epoch.counter > one.counter);
        let records = self.commits().iter().chain(self.rejected());
        let mut records = records.map(|commit| &commit.record);
        later.any(|resumed| resumed.step.is_none_or(|step| step < one.step))
            || records.any(|of| of.epoch.counter > one.counter && of.step <= one.step)
    }

    /// The error that no copy of a record, which are all of it, can be used.
    fn why_unread(&self, copies: &[&Unread]) -> Error {
        let has = |kind| copies.iter().any(|one| one.why.kind() == kind);
        // One that may be read later, or elsewhere, is not called damaged.
        let kinds = [
            ErrorKind::Unsupported,
            ErrorKind::Unavailable,
            ErrorKind::Invalid,
        ];
        let kind = kinds.into_iter().find(|&kind| has(kind));
        let kind = kind.unwrap_or(ErrorKind::Corrupt);
        let why: Vec<String> = copies
            .iter()
            .map(|one| format!("{}: {}", one.path(self), one.why.what()))
            .collect();
        let step = copies.first().map_or(Step(0), |one| one.step);
        let why = why.join("; ");
        let error = Error::new(
            kind,
            format!("no commit record of step {step} can be read: {why}"),
        );
        let first = copies.iter().find(|one| one.why.kind() == kind);
        match first.and_then(|one| one.why.next_step()) {
            Some(next) if kind != ErrorKind::Corrupt => error.next(next),
            _ => error.next("give directories that hold other copies of it"),
        }
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
                level,
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
