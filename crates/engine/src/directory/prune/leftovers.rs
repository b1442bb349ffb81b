//! Removes what earlier runs left, before a run writes its first container.
//!
//! A killed run leaves a container without a record, or one checkpoint too many. If the disk, or a
//! quota, has room for exactly `keep` + 1 checkpoints, the next run could then neither write nor
//! commit anything, and would never prune.
//!
//! How: the session calls this once, after every directory holds the durable record of where the
//! run resumed from and before any rank hands over a snapshot. Until then, the program may still
//! choose another step.
//!
//! Invariants:
//! 1. The checkpoint that the run resumed from stays, with all that it refers to. So do the newest
//!    older ones that can be restarted from, `keep` in all. If there are fewer, or if one of them
//!    is not recorded in every directory, no record is removed.
//! 2. A container without a record is removed only if the resumed record excludes its step from
//!    every restart, or if all directories that could hold the record are listed and the lock of
//!    its run's claim is free.
//! 3. Nothing is removed that is marked to be kept, or whose run holds the lock of its claim.
//! 4. Records are removed before their containers, as in `prune.rs`.
//!
//! Not here: claims, resumed records and files of the program, which are removed after the first
//! commit.

use super::{COMING, KeepRule, Listed, Referred, chosen, is_of_dead_run, list, records, remove};
use crate::directory::catalog::Catalog;
use crate::directory::epoch::{is_free, is_locked};
use crate::encoding::Trust;
use orcheck_format::disk::FileName;
use orcheck_format::sabotage::{Switch, off};
use orcheck_format::{Decision, JobName, Level, Result, Step};
use orcheck_io::disk::Dir;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// What earlier runs left in the directories of one level.
pub struct Leftovers<'a> {
    /// The job.
    pub job: &'a JobName,
    /// Which records are believed.
    pub trust: &'a Trust,
    /// The directories.
    pub dirs: &'a [Arc<dyn Dir>],
    /// Their level.
    pub level: Level,
    /// Whether a record of this level can be in no other directory.
    pub complete: bool,
    /// What to keep, for a run that has committed nothing.
    pub rule: &'a KeepRule,
}

impl Leftovers<'_> {
    /// Removes the leftovers; returns how many files it removed.
    ///
    /// # Errors
    /// The error of a directory. What was removed stays removed; the rest is removed after the
    /// first commit.
    pub fn remove(&self) -> Result<usize> {
        if off(Switch::LeftoversFirst) {
            return Ok(0);
        }
        let listed = list(self.dirs)?;
        let recorded = recorded(&listed);
        let by_hand = chosen(&listed, Decision::Kept);
        let owners = self.owners(&listed);
        let (kept, complete) = self.kept(&listed, &recorded)?;
        let ruled_out = |step, epoch| {
            // A counter without an entry belongs to this run or a newer one.
            let Some(owner) = owners.get(&epoch) else {
                return false;
            };
            if by_hand.contains(&(step, epoch)) || *owner == Owner::Lives {
                false
            } else if recorded.contains(&(step, epoch)) {
                !kept.is_empty() && self.rule.may_go(&kept, step, epoch)
            } else {
                self.rule.is_superseded(step, epoch) || complete && *owner == Owner::Dead
            }
        };
        let stays = |step, epoch| !ruled_out(step, epoch);
        let pinned = Referred::default().pinned(&listed, &recorded, stays);
        let goes = |step, epoch| ruled_out(step, epoch) && !pinned.holds(step, epoch);
        let (mut gone, going) = super::remove_records(&listed, &goes)?;
        for Listed { dir, names } in &listed {
            for (name, _) in names.iter().filter(|(_, is_dir)| !is_dir) {
                let goes = match FileName::parse(name) {
                    Some(FileName::Temporary(target)) => {
                        let epoch = epoch_of_container(&target);
                        let owner = epoch.and_then(|epoch| owners.get(&epoch));
                        owner.is_some_and(|owner| *owner != Owner::Lives)
                            && is_of_dead_run(&target, self.rule.epoch.counter)
                    }
                    _ => going.contains(name),
                };
                if goes {
                    remove(*dir, name)?;
                    gone += 1;
                }
            }
        }
        Ok(gone)
    }

    /// The checkpoints that stay, newest first; empty if no record may be removed. Also whether all
    /// records are in sight.
    fn kept(
        &self,
        listed: &[Listed],
        recorded: &BTreeSet<(Step, u64)>,
    ) -> Result<(Vec<(Step, u64)>, bool)> {
        let catalog = Catalog::scan_trusting(self.job, self.dirs, self.trust)?;
        let all = || catalog.commits().iter().chain(catalog.fenced());
        let more_servers = all().any(|commit| commit.record.servers.len() > self.dirs.len());
        let complete = self.complete && !more_servers && catalog.problems().is_empty();
        // Another start of the job may resume from a record that is unreadable or not believed
        // here.
        let doubt = !catalog.problems().is_empty()
            || catalog.refused().is_some()
            || catalog.other_key().is_some()
            || records(listed, self.level).len() < recorded.len();
        let Some(resumed) = self.rule.resumed.filter(|_| !doubt) else {
            return Ok((Vec::new(), complete));
        };
        let of = |commit: &crate::directory::catalog::Commit| {
            (commit.record.step, commit.record.epoch.counter)
        };
        let commits = catalog.commits().iter();
        let commits = commits
            .filter(|commit| commit.record.level == self.level)
            .map(of);
        let wanted = self.rule.keep.max(1);
        let kept: Vec<(Step, u64)> = commits
            .filter(|&(step, _)| step <= resumed.0)
            .take(wanted)
            .collect();
        // Breaks if: one directory is enough; a crash before the next commit would leave no step
        // recorded in all of them.
        let everywhere = |key: &(Step, u64)| listed.iter().all(|one| recorded_in(one, *key));
        let enough =
            kept.len() == wanted && kept.first() == Some(&resumed) && kept.iter().all(everywhere);
        Ok((if enough { kept } else { Vec::new() }, complete))
    }

    /// What is known of the run of each older epoch to which a container here belongs.
    fn owners(&self, listed: &[Listed]) -> BTreeMap<u64, Owner> {
        let names = listed.iter().flat_map(|listed| &listed.names);
        let epochs: BTreeSet<u64> = names
            .filter_map(|(name, _)| match FileName::parse(name) {
                Some(FileName::Temporary(target)) => epoch_of_container(&target),
                Some(name) => name.checkpoint().map(|(_, epoch, _)| epoch),
                None => None,
            })
            .filter(|&epoch| epoch < self.rule.epoch.counter)
            .collect();
        let owner = |epoch| (epoch, self.owner(epoch));
        epochs.into_iter().map(owner).collect()
    }

    fn owner(&self, epoch: u64) -> Owner {
        // Breaks if: the lock is not tried; a run that was taken over would lose what it is
        // writing.
        let locked = |dir: &Arc<dyn Dir>| is_locked(dir.as_ref(), epoch).unwrap_or(true);
        if self.dirs.iter().any(locked) && !off(Switch::LeftoversOfDead) {
            return Owner::Lives;
        }
        match self.dirs.iter().any(|dir| is_free(dir.as_ref(), epoch)) {
            true => Owner::Dead,
            false => Owner::Unknown,
        }
    }
}

/// The run to which a file belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Owner {
    /// It holds the lock of its claim.
    Lives,
    /// Its claim is here, and nobody holds the lock.
    Dead,
    /// There is no claim, or there are no locks.
    Unknown,
}

/// The checkpoints that have a commit record in any directory, at whichever level: the directory
/// of a node may have served another level in an earlier run.
fn recorded(listed: &[Listed]) -> BTreeSet<(Step, u64)> {
    let names = listed.iter().flat_map(|listed| &listed.names);
    names
        .filter_map(|(name, _)| match FileName::parse(name) {
            Some(FileName::Commit { step, epoch, .. }) => Some((step, epoch)),
            _ => None,
        })
        .collect()
}

/// Whether this directory holds a commit record of a checkpoint.
fn recorded_in(listed: &Listed, key: (Step, u64)) -> bool {
    let mut names = listed.names.iter();
    names.any(|(name, _)| match FileName::parse(name) {
        Some(FileName::Commit { step, epoch, .. }) => (step, epoch) == key,
        _ => false,
    })
}

/// The epoch in which the container of this temporary file was written, or sent here.
fn epoch_of_container(target: &str) -> Option<u64> {
    if let Some((_, epoch)) = target.rsplit_once(COMING) {
        return epoch.parse().ok();
    }
    match FileName::parse(target) {
        Some(
            FileName::Container { epoch, .. }
            | FileName::Stripe { epoch, .. }
            | FileName::Parity { epoch, .. },
        ) => Some(epoch),
        _ => None,
    }
}
