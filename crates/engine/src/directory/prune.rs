//! Prune: older checkpoints go, by the keep rule, in an order that no crash can turn into a loss.
//!
//! Works on names only and removes only files whose name Orcheck could have given: foreign files
//! stay. Each level is pruned by itself, so that one that fails again and again cannot fill the
//! directories of the other: the commit records of what goes in all its directories, fsync of
//! these and of all others of the level, then the containers.
//!
//! Invariants:
//! 1. Nothing goes from a level before `keep` newer checkpoints are committed at that level by this
//!    run (the one it resumed from counts where that level has it).
//! 2. A checkpoint that is still being written, or newer than the newest kept one, stays.
//! 3. After a crash anywhere, a record never names a container that prune removed before it.
//! 4. What a person marked to be kept stays. What was rejected does not count for `keep`.
//! 5. What a record that stays refers to stays as well, its own record included, and so on. A record
//!    that cannot be read may refer to anything older, so all of that stays.
//!
//! With the first commit of this run also go: containers without record (crashed or failed steps),
//! what this run superseded, temporary files and routed files of killed runs; and claims of epochs
//! that nothing refers to any more.
//! Not here: when to prune (`control.rs`); what goes before a run has committed anything (`prune/leftovers.rs`).

pub mod leftovers;

use crate::directory::catalog::RECORD_LIMIT_BYTES;
use crate::directory::epoch::claim_of_temporary;
use crate::directory::routed::collect_of_job;
use orcheck_format::disk::{CommitRecord, FileName};
use orcheck_format::sabotage::{Switch, off};
use orcheck_format::{Decision, Epoch, ErrorKind, Level, Result};
use orcheck_io::disk::{Dir, read_small};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// What is to be kept.
#[derive(Debug, Clone)]
pub struct KeepRule {
    /// Checkpoints to keep.
    pub keep: usize,
    /// This run's epoch.
    pub epoch: Epoch,
    /// The checkpoint this run resumed from (step, epoch counter).
    pub resumed: Option<(u64, u64)>,
    /// Steps committed by this run at the level in question.
    pub committed: BTreeSet<u64>,
}

impl KeepRule {
    /// The kept (step, epoch counter), newest first; empty while nothing may go. Only checkpoints
    /// that are `there`, with a record of this level, count.
    #[must_use]
    pub fn kept(&self, there: impl Fn(u64, u64) -> bool) -> Vec<(u64, u64)> {
        let own = self
            .committed
            .iter()
            .rev()
            .map(|&step| (step, self.epoch.counter));
        let kept: Vec<(u64, u64)> = own
            .chain(self.resumed)
            .filter(|&(step, epoch)| there(step, epoch))
            .take(self.keep.max(1))
            .collect();
        let enough = kept.len() >= self.keep.max(1) || off(Switch::KeepRule);
        if !enough || self.committed.is_empty() {
            Vec::new()
        } else {
            kept
        }
    }

    /// Whether a checkpoint of an older run lies beyond the step this run resumed from: readers
    /// ignore it.
    fn is_superseded(&self, step: u64, epoch: u64) -> bool {
        epoch < self.epoch.counter && self.resumed.is_none_or(|(resumed, _)| step > resumed)
    }

    /// Whether nobody writes this checkpoint any more: its run is over, or gave it up.
    fn is_abandoned(&self, step: u64, epoch: u64) -> bool {
        let newest = self.committed.last().copied().unwrap_or(0);
        epoch < self.epoch.counter || epoch == self.epoch.counter && step < newest
    }

    /// Whether the files of (step, epoch counter) may go.
    fn may_go(&self, kept: &[(u64, u64)], step: u64, epoch: u64) -> bool {
        let newest = kept.iter().map(|&(step, _)| step).max().unwrap_or(0);
        (off(Switch::Kept) || !kept.contains(&(step, epoch)))
            && (epoch <= self.epoch.counter || off(Switch::NewerRun))
            && (step < newest || epoch < self.epoch.counter || off(Switch::BeingWritten))
    }
}

/// What the checkpoints of one level refer to, as far as their records were read: they never change.
#[derive(Debug, Default)]
pub struct Referred {
    /// Steps of the same epoch, by (step, epoch counter).
    known: BTreeMap<(u64, u64), Vec<u64>>,
}

/// Checkpoints that stay because others refer to them.
#[derive(Debug, Default)]
struct Pinned {
    checkpoints: BTreeSet<(u64, u64)>,
    /// (step, epoch counter) of records that cannot be read.
    unread: Vec<(u64, u64)>,
}

impl Pinned {
    fn holds(&self, step: u64, epoch: u64) -> bool {
        let referred = self.checkpoints.contains(&(step, epoch)) && !off(Switch::Pins);
        let perhaps = self.unread.iter().any(|&(s, e)| step < s && epoch <= e);
        referred || perhaps && !off(Switch::PinsUnread)
    }
}

impl Referred {
    /// Remembers what a record of this run says, so that it need not be read back.
    pub fn learn(&mut self, record: &CommitRecord) {
        let checkpoint = (record.step, record.epoch.counter);
        self.known.insert(checkpoint, record.refers_to());
    }

    /// Everything that the records that stay refer to.
    fn pinned(
        &mut self,
        listed: &[Listed],
        recorded: &BTreeSet<(u64, u64)>,
        stays: impl Fn(u64, u64) -> bool,
    ) -> Pinned {
        self.known
            .retain(|checkpoint, _| recorded.contains(checkpoint));
        let mut pinned = Pinned::default();
        let mut open: Vec<(u64, u64)> = recorded
            .iter()
            .copied()
            .filter(|&(step, epoch)| stays(step, epoch))
            .collect();
        while let Some((step, epoch)) = open.pop() {
            let referred = match self.known.get(&(step, epoch)) {
                Some(referred) => referred.clone(),
                None => match read_referred(listed, step, epoch) {
                    Some(referred) => referred,
                    None => {
                        // Breaks if: it counts as referring to nothing; prune would then take from under it.
                        pinned.unread.push((step, epoch));
                        continue;
                    }
                },
            };
            self.known.insert((step, epoch), referred.clone());
            for older in referred {
                // Breaks if: only what is kept by the rule is looked at; a pinned one would lose what it needs.
                let new = pinned.checkpoints.insert((older, epoch));
                if new && recorded.contains(&(older, epoch)) && !off(Switch::PinsOfPinned) {
                    open.push((older, epoch));
                }
            }
        }
        pinned
    }
}

/// The steps that a checkpoint refers to, from the first copy of its record that can be read.
fn read_referred(listed: &[Listed], step: u64, epoch: u64) -> Option<Vec<u64>> {
    listed.iter().find_map(|Listed { dir, names }| {
        let (name, _) = names.iter().find(|(name, _)| {
            matches!(FileName::parse(name), Some(FileName::Commit { step: s, epoch: e, .. })
                if (s, e) == (step, epoch))
        })?;
        let bytes = read_small(*dir, name, RECORD_LIMIT_BYTES).ok()?;
        let record = CommitRecord::decode(&bytes).ok()?;
        (record.step == step && record.epoch.counter == epoch).then(|| record.refers_to())
    })
}

/// What is in one directory of a level.
struct Listed<'d> {
    dir: &'d dyn Dir,
    names: Vec<(String, bool)>,
}

/// Removes from the directories of one level what the rule lets go; returns how many files went.
///
/// # Errors
/// What a directory says; whatever went before stays gone, the rest is tried again next time.
pub fn prune(
    dirs: &[Arc<dyn Dir>],
    level: Level,
    rule: &KeepRule,
    referred: &mut Referred,
) -> Result<usize> {
    let listed = list(dirs)?;
    if rule.committed.is_empty() {
        // Nothing of this run can take anything's place yet.
        return Ok(0);
    }
    let records = records(&listed, level);
    let recorded = |step, epoch| records.contains(&(step, epoch));
    let rejected = chosen(&listed, Decision::Rejected);
    let by_hand = chosen(&listed, Decision::Kept);
    // Breaks if: what was rejected counts; the good ones before it would go.
    let counts = |step, epoch| {
        recorded(step, epoch) && (!rejected.contains(&(step, epoch)) || off(Switch::RejectedCounts))
    };
    let kept = rule.kept(counts);
    // Before enough are kept only what no restart can use may go.
    let ruled_out = |step, epoch| {
        if by_hand.contains(&(step, epoch)) && !off(Switch::KeptByHand) {
            false
        } else if kept.is_empty() {
            rule.is_superseded(step, epoch)
                || !recorded(step, epoch) && rule.is_abandoned(step, epoch)
        } else {
            rule.may_go(&kept, step, epoch)
        }
    };
    let pinned = referred.pinned(&listed, &records, |step, epoch| !ruled_out(step, epoch));
    let checkpoint_goes = |step, epoch| ruled_out(step, epoch) && !pinned.holds(step, epoch);
    let (mut gone, going) = remove_records(&listed, &checkpoint_goes)?;
    // The notes of later runs say whether what stays by hand is superseded.
    let staying = by_hand
        .iter()
        .filter(|&&(step, epoch)| recorded(step, epoch));
    let staying = staying.filter(|_| !kept.is_empty());
    let oldest_epoch = kept.iter().chain(staying).map(|&(_, epoch)| epoch);
    let oldest_epoch = oldest_epoch.min().unwrap_or(0);
    let mut routed = Ok(());
    for Listed { dir, names } in &listed {
        for (name, is_dir) in names {
            if *is_dir {
                routed = routed.and(collect_of_job(*dir, name, rule.epoch.counter));
                continue;
            }
            let goes = match outlived(name, rule.epoch.counter, oldest_epoch) {
                Some(outlived) => outlived,
                None => going.contains(name),
            };
            if goes {
                remove(*dir, name)?;
                gone += 1;
            }
        }
    }
    // Breaks if: this ends the loop; files of a program that cannot be removed would keep every old checkpoint.
    routed.map(|()| gone)
}

/// Whether a small file of the job, or a file that is not Orcheck's, goes; `None` for what belongs to a
/// checkpoint and goes with that.
fn outlived(name: &str, epoch_now: u64, oldest_epoch: u64) -> Option<bool> {
    Some(match FileName::parse(name) {
        Some(
            FileName::Claim { epoch }
            | FileName::Resumed { epoch }
            | FileName::Members { epoch }
            | FileName::Choice { epoch, .. },
        ) => epoch < oldest_epoch || off(Switch::ClaimsStay),
        // For an older run: nobody looks at it any more.
        Some(FileName::Halt { epoch }) => epoch < epoch_now,
        // Breaks if: that of the run before goes; who supervises this one reminds it of the time.
        Some(FileName::HaltAt { epoch }) => epoch < epoch_now.saturating_sub(1),
        None if off(Switch::ForeignFiles) => true,
        Some(FileName::Temporary(target)) => match FileName::parse(&target) {
            // A person may be deciding about an older run's checkpoint now.
            Some(FileName::Choice { epoch, .. }) => epoch < oldest_epoch,
            _ => is_of_dead_run(&target, epoch_now),
        },
        _ => return None,
    })
}

fn list(dirs: &[Arc<dyn Dir>]) -> Result<Vec<Listed<'_>>> {
    let list_one = |dir| -> Result<Listed<'_>> {
        let dir: &dyn Dir = Arc::as_ref(dir);
        let entries = dir.list()?.into_iter();
        let names = entries.map(|entry| (entry.name, entry.is_dir)).collect();
        Ok(Listed { dir, names })
    };
    dirs.iter().map(list_one).collect()
}

/// Removes the records of what goes, everywhere and durably: no record may name a container that went before it. How many
/// there were, and the names of the containers that may go now.
fn remove_records<'l>(
    listed: &'l [Listed],
    goes: &dyn Fn(u64, u64) -> bool,
) -> Result<(usize, BTreeSet<&'l String>)> {
    let (mut gone, mut going) = (0, BTreeSet::new());
    if off(Switch::RecordsFirst) {
        remove_containers(listed, goes)?;
    }
    for Listed { dir, names } in listed {
        for (name, _) in names.iter().filter(|(_, is_dir)| !is_dir) {
            match FileName::parse(name) {
                Some(FileName::Commit { step, epoch, .. }) if goes(step, epoch) => {
                    remove(*dir, name)?;
                    gone += 1;
                }
                Some(
                    FileName::Container { step, epoch, .. } | FileName::Stripe { step, epoch, .. },
                ) if goes(step, epoch) => {
                    going.insert(name);
                }
                _ => {}
            }
        }
    }
    if (gone > 0 || !going.is_empty()) && !off(Switch::FsyncPrune) {
        // Every directory, also one that had no record now: an earlier prune may have removed it and then failed, or
        // died, before that was durable. Breaks if: only directories are synced in which a record went just now.
        listed.iter().try_for_each(|listed| listed.dir.sync())?;
    }
    Ok((gone, going))
}

/// Containers before the records that name them: what must not happen, see [`Switch::RecordsFirst`].
fn remove_containers(listed: &[Listed], goes: &dyn Fn(u64, u64) -> bool) -> Result<()> {
    for Listed { dir, names } in listed {
        for (name, _) in names {
            if let Some(FileName::Container { step, epoch, .. }) = FileName::parse(name)
                && goes(step, epoch)
            {
                remove(*dir, name)?;
            }
        }
    }
    Ok(())
}

/// The checkpoints that any directory holds a commit record of at this level.
fn records(listed: &[Listed], level: Level) -> BTreeSet<(u64, u64)> {
    let names = listed.iter().flat_map(|listed| &listed.names);
    names
        .filter_map(|(name, _)| match FileName::parse(name) {
            Some(FileName::Commit {
                step,
                epoch,
                level: l,
                ..
            }) if l == level => Some((step, epoch)),
            _ => None,
        })
        .collect()
}

/// The checkpoints about which this was decided; the file's name alone counts.
fn chosen(listed: &[Listed], wanted: Decision) -> BTreeSet<(u64, u64)> {
    let names = listed.iter().flat_map(|listed| &listed.names);
    names
        .filter_map(|(name, _)| match FileName::parse(name) {
            Some(FileName::Choice {
                step,
                epoch,
                decision,
                ..
            }) if decision == wanted => Some((step, epoch)),
            _ => None,
        })
        .collect()
}

/// Between the name of a container and the counter of the epoch in which it is on its way to another node.
const COMING: &str = ".epoch-";

/// What a replica is called that is on its way to here in the run of this epoch; of whichever run the container is.
#[must_use]
pub fn coming_name(container: &str, epoch: u64) -> String {
    format!("{container}{COMING}{epoch:06}.tmp")
}

/// Whether a temporary file belongs to a run that is over. Claims are written under their name and
/// the run's id: this run's own is in place since long, so one of the same counter is a dead one's.
fn is_of_dead_run(target: &str, counter: u64) -> bool {
    if off(Switch::LivingTemporary) {
        return true;
    }
    if let Some(epoch) = claim_of_temporary(target) {
        return epoch <= counter;
    }
    if let Some((_, epoch)) = target.rsplit_once(COMING) {
        return epoch.parse().is_ok_and(|epoch: u64| epoch < counter);
    }
    match FileName::parse(target) {
        Some(
            FileName::Commit { epoch, .. }
            | FileName::Container { epoch, .. }
            | FileName::Stripe { epoch, .. }
            | FileName::Claim { epoch }
            | FileName::Resumed { epoch }
            | FileName::Members { epoch }
            | FileName::Halt { epoch }
            | FileName::HaltAt { epoch },
        ) => epoch < counter,
        _ => false,
    }
}

/// A file that somebody else removed is gone as well.
fn remove(dir: &dyn Dir, name: &str) -> Result<()> {
    match dir.remove(name) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use orcheck_format::RunId;

    fn rule(keep: usize, resumed: Option<(u64, u64)>, committed: &[u64]) -> KeepRule {
        KeepRule {
            keep,
            epoch: Epoch {
                counter: 5,
                run: RunId([7; 16]),
            },
            resumed,
            committed: committed.iter().copied().collect(),
        }
    }

    #[test]
    fn nothing_goes_before_enough_newer_ones_are_committed() {
        let kept = |rule: KeepRule| rule.kept(|_, _| true);
        assert!(kept(rule(2, None, &[])).is_empty());
        assert!(kept(rule(2, None, &[10])).is_empty());
        assert!(kept(rule(2, Some((8, 4)), &[])).is_empty());
        assert!(kept(rule(1, Some((8, 4)), &[])).is_empty());
        assert_eq!(kept(rule(2, Some((8, 4)), &[10])), vec![(10, 5), (8, 4)]);
        assert_eq!(
            kept(rule(2, Some((8, 4)), &[10, 12])),
            vec![(12, 5), (10, 5)]
        );
        assert_eq!(kept(rule(1, None, &[10])), vec![(10, 5)]);
        // Resumed from the other level: this one has no record of it, so it counts for nothing here.
        assert!(
            rule(2, Some((8, 4)), &[10])
                .kept(|step, _| step != 8)
                .is_empty()
        );
    }

    #[test]
    fn what_is_newer_or_being_written_stays() {
        let rule = rule(2, Some((8, 4)), &[10]);
        let kept = rule.kept(|_, _| true);
        assert!(!rule.may_go(&kept, 10, 5) && !rule.may_go(&kept, 8, 4));
        assert!(!rule.may_go(&kept, 11, 5), "being written");
        assert!(!rule.may_go(&kept, 11, 6), "of a newer run");
        let earlier = "of a newer run that resumed from step 8";
        assert!(!rule.may_go(&kept, 9, 6), "{earlier}");
        assert!(rule.may_go(&kept, 9, 5), "failed step of this run");
        assert!(rule.may_go(&kept, 9, 4), "fenced step of the last run");
        assert!(rule.may_go(&kept, 7, 4), "older than the kept ones");
    }

    // Breaks if: any temporary file goes; a run that is alive would lose the record it is about to rename.
    #[test]
    fn temporary_files_of_a_living_run_stay() {
        for (target, dead) in [
            ("s000000000010-e000004-07070707-global.commit", true),
            ("s000000000010-e000005-07070707-global.commit", false),
            ("s000000000010-e000006-07070707-global.commit", false),
            ("epoch-000004.resumed", true),
            ("epoch-000005.resumed", false),
            ("epoch-000005.claim-07070707", true),
            ("epoch-000006.claim-07070707", false),
            ("epoch-000005.claim-notes", false),
            ("notes.txt", false),
            // A container of an older run that this one brings to more nodes.
            (
                "s000000000010-e000002-07070707-n0001-w00.orc.epoch-000005",
                false,
            ),
            (
                "s000000000010-e000002-07070707-n0001-w00.orc.epoch-000004",
                true,
            ),
        ] {
            assert_eq!(is_of_dead_run(target, 5), dead, "{target}");
        }
    }
}
