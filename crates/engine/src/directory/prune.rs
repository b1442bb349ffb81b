//! Prunes older checkpoints by the keep rule, in an order that no crash can turn into a loss.
//!
//! Prune works on names only and removes only files whose names Orcheck gives: foreign files stay.
//! It prunes each level by itself, so that a level that keeps failing cannot fill the directories
//! of the other. It removes the commit records from all directories of the level, fsyncs these and
//! all other directories of the level, and then removes the containers.
//!
//! Invariants:
//! 1. Nothing is removed from a level before this run has committed `keep` newer checkpoints at
//!    that level. The checkpoint that it resumed from counts if the level has it.
//! 2. A checkpoint that is still being written, or newer than the newest kept one, stays.
//! 3. After a crash at any point, no record names a container that prune removed before the record.
//! 4. A checkpoint that a person marked to be kept stays. A rejected one does not count for `keep`.
//! 5. Everything that a remaining record refers to stays, with its own record, and so on
//!    transitively. An unreadable record may refer to anything older, so all older checkpoints
//!    stay.
//!
//! With the first commit of this run, prune also removes containers without a record (from crashed
//! or failed steps), superseded checkpoints, temporary and routed files of killed runs, and claims
//! of epochs that nothing refers to any more.
//! Not here: when to prune (`control.rs`); what is removed before a run has committed anything
//! (`prune/leftovers.rs`, `prune/lost.rs`).

pub mod leftovers;
pub(crate) mod lost;

use crate::directory::catalog::RECORD_LIMIT_BYTES;
use crate::directory::epoch::claim_of_temporary;
use crate::directory::routed::collect_of_job;
use orcheck_format::disk::{CommitRecord, FileName};
use orcheck_format::sabotage::{Switch, off};
use orcheck_format::{Decision, Epoch, ErrorKind, Level, Result, Step};
use orcheck_io::disk::{Dir, read_small};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// What to keep.
#[derive(Debug, Clone)]
pub struct KeepRule {
    /// Number of checkpoints to keep.
    pub keep: usize,
    /// This run's epoch.
    pub epoch: Epoch,
    /// The checkpoint this run resumed from (step, epoch counter).
    pub resumed: Option<(Step, u64)>,
    /// Steps that this run has committed at the level in question.
    pub committed: BTreeSet<Step>,
}

impl KeepRule {
    /// The kept (step, epoch counter), newest first; empty while nothing may be removed. Only
    /// checkpoints that are `there`, with a record of this level, count.
    #[must_use]
    pub fn kept(&self, there: impl Fn(Step, u64) -> bool) -> Vec<(Step, u64)> {
        let own = self
            .committed
            .iter()
            .rev()
            .map(|&step| (step, self.epoch.counter));
        let kept: Vec<(Step, u64)> = own
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

    /// Whether a checkpoint of an older run lies beyond the step that this run resumed from, so
    /// that readers ignore it.
    fn is_superseded(&self, step: Step, epoch: u64) -> bool {
        epoch < self.epoch.counter && self.resumed.is_none_or(|(resumed, _)| step > resumed)
    }

    /// Whether nobody is writing this checkpoint any more: its run is over, or has given it up.
    fn is_abandoned(&self, step: Step, epoch: u64) -> bool {
        let newest = self.committed.last().copied().unwrap_or(Step(0));
        epoch < self.epoch.counter || epoch == self.epoch.counter && step < newest
    }

    /// Whether the files of (step, epoch counter) may be removed.
    fn may_go(&self, kept: &[(Step, u64)], step: Step, epoch: u64) -> bool {
        let newest = kept.iter().map(|&(step, _)| step).max().unwrap_or(Step(0));
        (off(Switch::Kept) || !kept.contains(&(step, epoch)))
            && (epoch <= self.epoch.counter || off(Switch::NewerRun))
            && (step < newest || epoch < self.epoch.counter || off(Switch::BeingWritten))
    }
}

/// The references of the checkpoints of one level, as far as their records were read; they never
/// change.
#[derive(Debug, Default)]
pub struct Referred {
    /// Steps of the same epoch, by (step, epoch counter).
    known: BTreeMap<(Step, u64), Vec<Step>>,
}

/// Checkpoints that stay because others refer to them.
#[derive(Debug, Default)]
struct Pinned {
    checkpoints: BTreeSet<(Step, u64)>,
    /// (step, epoch counter) of unreadable records.
    unread: Vec<(Step, u64)>,
}

impl Pinned {
    fn holds(&self, step: Step, epoch: u64) -> bool {
        let referred = self.checkpoints.contains(&(step, epoch)) && !off(Switch::Pins);
        let perhaps = self.unread.iter().any(|&(s, e)| step < s && epoch <= e);
        referred || perhaps && !off(Switch::PinsUnread)
    }
}

impl Referred {
    /// Remembers the references of a record of this run, so that it need not be read back.
    pub fn learn(&mut self, record: &CommitRecord) {
        let checkpoint = (record.step, record.epoch.counter);
        self.known.insert(checkpoint, record.refers_to());
    }

    /// Everything that the remaining records refer to.
    fn pinned(
        &mut self,
        listed: &[Listed],
        recorded: &BTreeSet<(Step, u64)>,
        stays: impl Fn(Step, u64) -> bool,
    ) -> Pinned {
        self.known
            .retain(|checkpoint, _| recorded.contains(checkpoint));
        let mut pinned = Pinned::default();
        let mut open: Vec<(Step, u64)> = recorded
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
                        // Breaks if: it counts as referring to nothing; prune would remove what it
                        // refers to.
                        pinned.unread.push((step, epoch));
                        continue;
                    }
                },
            };
            self.known.insert((step, epoch), referred.clone());
            for older in referred {
                // Breaks if: only checkpoints kept by the rule are considered; a pinned one would
                // lose what it refers to.
                let new = pinned.checkpoints.insert((older, epoch));
                if new && recorded.contains(&(older, epoch)) && !off(Switch::PinsOfPinned) {
                    open.push((older, epoch));
                }
            }
        }
        pinned
    }
}

/// The steps to which a checkpoint refers, according to the first readable copy of its record.
fn read_referred(listed: &[Listed], step: Step, epoch: u64) -> Option<Vec<Step>> {
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

/// The listing of one directory of a level.
struct Listed<'d> {
    dir: &'d dyn Dir,
    names: Vec<(String, bool)>,
}

/// Removes from the directories of one level what the rule allows; returns how many files it
/// removed.
///
/// # Errors
/// The error of a directory. What was removed stays removed; the rest is tried again next time.
pub fn prune(
    dirs: &[Arc<dyn Dir>],
    level: Level,
    rule: &KeepRule,
    referred: &mut Referred,
) -> Result<usize> {
    let listed = list(dirs)?;
    if rule.committed.is_empty() {
        // This run has nothing yet that could replace anything.
        return Ok(0);
    }
    let records = records(&listed, level);
    let recorded = |step, epoch| records.contains(&(step, epoch));
    let rejected = chosen(&listed, Decision::Rejected);
    let by_hand = chosen(&listed, Decision::Kept);
    // Breaks if: rejected checkpoints count; the good ones before them would be removed.
    let counts = |step, epoch| {
        recorded(step, epoch) && (!rejected.contains(&(step, epoch)) || off(Switch::RejectedCounts))
    };
    let kept = rule.kept(counts);
    // Before enough checkpoints are kept, only those that no restart can use may be removed.
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
    // The resumed records of later runs say whether a checkpoint kept by hand is superseded.
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
    // Breaks if: this ends the loop; irremovable files of a program would keep every old
    // checkpoint.
    routed.map(|()| gone)
}

/// Whether to remove a small file of the job, or a file that is not Orcheck's; `None` for files
/// that belong to a checkpoint and are removed with it.
fn outlived(name: &str, epoch_now: u64, oldest_epoch: u64) -> Option<bool> {
    Some(match FileName::parse(name) {
        Some(
            FileName::Claim { epoch }
            | FileName::Resumed { epoch }
            | FileName::Members { epoch }
            | FileName::Choice { epoch, .. },
        ) => epoch < oldest_epoch || off(Switch::ClaimsStay),
        // It asks an older run, and nobody reads it any more.
        Some(FileName::Halt { epoch }) => epoch < epoch_now,
        // Breaks if: the previous run's request is removed; the supervisor of this run passes on
        // its time.
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

/// Removes the records of pruned checkpoints, everywhere and durably, because no record may name a
/// container that was removed before it. Returns how many there were, and the names of the
/// containers that may now be removed.
fn remove_records<'l>(
    listed: &'l [Listed],
    goes: &dyn Fn(Step, u64) -> bool,
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
                    FileName::Container { step, epoch, .. }
                    | FileName::Stripe { step, epoch, .. }
                    | FileName::Parity { step, epoch, .. },
                ) if goes(step, epoch) => {
                    going.insert(name);
                }
                _ => {}
            }
        }
    }
    if (gone > 0 || !going.is_empty()) && !off(Switch::FsyncPrune) {
        // Sync every directory, also those that had no record now: an earlier prune may have
        // removed one there and failed, or died, before that was durable. Breaks if: only
        // directories are synced from which a record was removed just now.
        listed.iter().try_for_each(|listed| listed.dir.sync())?;
    }
    Ok((gone, going))
}

/// Removes containers before the records that name them, which must not happen; see
/// [`Switch::RecordsFirst`].
fn remove_containers(listed: &[Listed], goes: &dyn Fn(Step, u64) -> bool) -> Result<()> {
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

/// The checkpoints that have a commit record of this level in any directory.
fn records(listed: &[Listed], level: Level) -> BTreeSet<(Step, u64)> {
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

/// The checkpoints with this decision; the file name alone counts.
fn chosen(listed: &[Listed], wanted: Decision) -> BTreeSet<(Step, u64)> {
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

/// Separates the name of a container from the counter of the epoch in which it is on its way to
/// another node.
const COMING: &str = ".epoch-";

/// The temporary name of a replica that is on its way here in the run of this epoch; the container
/// may be of any run.
#[must_use]
pub fn coming_name(container: &str, epoch: u64) -> String {
    format!("{container}{COMING}{epoch:06}.tmp")
}

/// Whether a temporary file belongs to a run that is over. Claims are written under their name and
/// the run's id. This run's claim has long been in place, so a temporary one with the same counter
/// is a dead run's.
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
            | FileName::Parity { epoch, .. }
            | FileName::Claim { epoch }
            | FileName::Resumed { epoch }
            | FileName::Members { epoch }
            | FileName::Halt { epoch }
            | FileName::HaltAt { epoch },
        ) => epoch < counter,
        _ => false,
    }
}

/// Removes a file; success if somebody else has removed it.
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
            resumed: resumed.map(|(step, epoch)| (Step(step), epoch)),
            committed: committed.iter().copied().map(Step).collect(),
        }
    }

    #[test]
    fn nothing_goes_before_enough_newer_ones_are_committed() {
        let kept = |rule: KeepRule| rule.kept(|_, _| true);
        assert!(kept(rule(2, None, &[])).is_empty());
        assert!(kept(rule(2, None, &[10])).is_empty());
        assert!(kept(rule(2, Some((8, 4)), &[])).is_empty());
        assert!(kept(rule(1, Some((8, 4)), &[])).is_empty());
        assert_eq!(
            kept(rule(2, Some((8, 4)), &[10])),
            vec![(Step(10), 5), (Step(8), 4)]
        );
        assert_eq!(
            kept(rule(2, Some((8, 4)), &[10, 12])),
            vec![(Step(12), 5), (Step(10), 5)]
        );
        assert_eq!(kept(rule(1, None, &[10])), vec![(Step(10), 5)]);
        // Resumed from the other level: this level has no record of it, so it does not count here.
        assert!(
            rule(2, Some((8, 4)), &[10])
                .kept(|step, _| step != Step(8))
                .is_empty()
        );
    }

    #[test]
    fn what_is_newer_or_being_written_stays() {
        let rule = rule(2, Some((8, 4)), &[10]);
        let kept = rule.kept(|_, _| true);
        assert!(!rule.may_go(&kept, Step(10), 5) && !rule.may_go(&kept, Step(8), 4));
        assert!(!rule.may_go(&kept, Step(11), 5), "being written");
        assert!(!rule.may_go(&kept, Step(11), 6), "of a newer run");
        let earlier = "of a newer run that resumed from step 8";
        assert!(!rule.may_go(&kept, Step(9), 6), "{earlier}");
        assert!(rule.may_go(&kept, Step(9), 5), "failed step of this run");
        assert!(
            rule.may_go(&kept, Step(9), 4),
            "fenced step of the last run"
        );
        assert!(rule.may_go(&kept, Step(7), 4), "older than the kept ones");
    }

    // Breaks if: any temporary file is removed; a live run would lose the record that it is about
    // to rename.
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
            // A container of an older run that this run copies to more nodes.
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
