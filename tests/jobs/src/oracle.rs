//! The oracle: what was reported of checkpoints, held against what was decided and against what is
//! restartable.
//!
//! How: each rank writes down when a call begins and returns and what its watcher is told
//! meanwhile; hooks write down what the node's control thread has published. The order of the lines
//! in the ledger is the order in which it happened.
//!
//! * **Missing**: a loss was published on a rank's node before one of its calls began, and that
//!   call did not tell it; or a rank ended its session and was never told what became of a step.
//! * **Invented**: something is restartable at a level that was told to be lost there for good; two
//!   ranks were told opposite things; or something that was told to be safe, and is not old enough
//!   to be pruned, is not restartable.
//!
//! A rank whose `checkpoint` gave an error has been told by it: where ranks died, others may have
//! staged that step.
//!
//! Not restartable are also steps that were pruned, and those that a newer run superseded. A loss
//! that is "not known to be safe" may be found or not: its commit record was being written. Nothing
//! else is excused.

use crate::ledger::{Moment, Story, Told};
use crate::life::{View, Workload};
use crate::payload::Origin;
use orcheck_engine::commit::UNDECIDED;
use orcheck_format::Level;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// How the text begins of a loss whose record may be there.
const OPEN: &str = "not known to be safe";
/// More states than any job keeps.
const ALL: usize = 64;

/// What was looked at, over one trial or many.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    /// Losses at a level, as ranks were told of them.
    pub told: u64,
    /// Of these: not known to be safe.
    pub open: u64,
    /// Calls that began when a loss was published that the rank had not been told of.
    pub in_time: u64,
    /// Steps that became safe at a level, as ranks were told.
    pub safe: u64,
}

impl std::ops::AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.told += other.told;
        self.open += other.open;
        self.in_time += other.in_time;
        self.safe += other.safe;
    }
}

impl std::fmt::Display for Counts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            told,
            open,
            in_time,
            safe,
        } = self;
        write!(f, "{told} {open} {in_time} {safe}")
    }
}

impl Counts {
    /// The inverse of `Display`. (`power` counts nothing.)
    pub fn parse(text: &str) -> Self {
        let mut words = text.split(' ').map(|word| word.parse().unwrap_or(0));
        let mut next = || words.next().unwrap_or(0);
        Self {
            told: next(),
            open: next(),
            in_time: next(),
            safe: next(),
        }
    }
}

type Key = (u64, Level);

/// What one rank of one run was told.
#[derive(Default)]
struct Rank {
    /// The last word about each step and level; lost: with this text.
    told: BTreeMap<Key, Option<String>>,
    /// What the call that it is in has to tell.
    due: BTreeSet<Key>,
    /// Steps that an error refused to this rank.
    refused: BTreeSet<u64>,
}

/// Looks at all runs; what is wrong, or what was looked at.
pub fn judge(workload: &Workload, root: &Path, story: &Story) -> Result<Counts, String> {
    let mut counts = Counts::default();
    let mut ranks: BTreeMap<(u64, u32), Rank> = BTreeMap::new();
    let mut lost: BTreeMap<(String, u64), BTreeSet<Key>> = BTreeMap::new();
    let mut staged: BTreeMap<u64, BTreeSet<u64>> = BTreeMap::new();
    for (run, moment) in &story.moments {
        match moment {
            Moment::Staged(step) => {
                staged.entry(*run).or_default().insert(*step);
            }
            Moment::Decided(node, epoch, step, level) => {
                let lost = lost.entry((node.clone(), *epoch)).or_default();
                lost.insert((*step, *level));
            }
            Moment::Call(number, epoch, node) => {
                let rank = ranks.entry((*run, *number)).or_default();
                let published = lost.get(&(node.clone(), *epoch)).into_iter().flatten();
                let news = published
                    .filter(|key| !rank.told.contains_key(key) && !rank.refused.contains(&key.0));
                rank.due = news.copied().collect();
                counts.in_time += rank.due.len() as u64;
            }
            Moment::Told(number, step, level, text) => {
                let rank = ranks.entry((*run, *number)).or_default();
                rank.due.remove(&(*step, *level));
                rank.told.insert((*step, *level), text.clone());
            }
            Moment::Refused(number, step) => {
                let rank = ranks.entry((*run, *number)).or_default();
                rank.refused.insert(*step);
            }
            Moment::Done(number) => {
                let rank = ranks.entry((*run, *number)).or_default();
                if let Some((step, level)) = rank.due.first() {
                    return Err(format!(
                        "MISSING: run {run}, rank {number}: step {step} was published as lost at level {level} before a call, which did not tell it"
                    ));
                }
            }
            Moment::Left(number, levels) => {
                let rank = ranks.entry((*run, *number)).or_default();
                let steps = staged.get(run).into_iter().flatten();
                let all = steps.flat_map(|step| levels.iter().map(move |level| (*step, *level)));
                let told = |key: &Key| rank.told.contains_key(key) || rank.refused.contains(&key.0);
                if let Some((step, level)) = all.filter(|key| !told(key)).min() {
                    return Err(format!(
                        "MISSING: run {run}, rank {number}: closed, and never told what became of step {step} at level {level}"
                    ));
                }
            }
        }
    }
    invented(workload, root, &ranks, &mut counts)?;
    Ok(counts)
}

/// What the last run was told to be safe, and what is not old enough to be pruned, is restartable
/// at that level. Only for trials that take nothing away.
pub fn kept(workload: &Workload, root: &Path, story: &Story) -> Result<(), String> {
    let begun = |(_, told): &(&u64, &Told)| !told.begun.is_empty();
    let Some((&run, told)) = story.runs.iter().rev().find(begun) else {
        return Ok(());
    };
    let mut gone = BTreeSet::new();
    for (_, moment) in story.moments.iter().filter(|(of, _)| *of == run) {
        match moment {
            Moment::Told(_, step, level, Some(text)) if !text.contains(OPEN) => {
                gone.insert((*step, *level));
            }
            Moment::Told(_, step, level, None) => {
                gone.remove(&(*step, *level));
            }
            _ => {}
        }
    }
    for level in workload.levels() {
        let newer = |step: u64| {
            let newer = told.begun.range(step + 1..);
            newer
                .filter(|newer| !gone.contains(&(**newer, level)))
                .count()
        };
        let wanted: Vec<u64> = (told.safe.iter())
            .filter(|(step, at)| *at == level && newer(*step) < workload.keep)
            .map(|(step, _)| *step)
            .collect();
        if wanted.is_empty() {
            continue;
        }
        let found = workload.states(root, View::Only(level), ALL)?;
        for step in wanted {
            if !found.contains(&Origin { run, step }) {
                return Err(format!(
                    "INVENTED: run {run}: step {step} was told to be safe at level {level}; restartable is {found:?}"
                ));
            }
        }
    }
    Ok(())
}

fn invented(
    workload: &Workload,
    root: &Path,
    ranks: &BTreeMap<(u64, u32), Rank>,
    counts: &mut Counts,
) -> Result<(), String> {
    let (mut safe, mut gone) = (BTreeMap::new(), BTreeMap::new());
    for ((run, number), rank) in ranks {
        for (&(step, level), text) in &rank.told {
            let key = (*run, step, level);
            match text {
                None => {
                    counts.safe += 1;
                    safe.insert(key, *number);
                }
                Some(text) => {
                    counts.told += 1;
                    let open = text.contains(OPEN);
                    counts.open += u64::from(open);
                    if open != text.contains(UNDECIDED) {
                        return Err(format!("INVENTED: it contradicts itself: {text}"));
                    }
                    if !open {
                        gone.insert(key, (*number, text.clone()));
                    }
                }
            }
        }
    }
    let both = |key| Some((key, gone.get(key)?, safe.get(key)?));
    if let Some(((run, step, level), (lost, text), safe)) = gone.keys().find_map(both) {
        return Err(format!(
            "INVENTED: run {run}, step {step}, level {level}: safe for rank {safe}, lost for rank {lost}: {text}"
        ));
    }
    let levels: BTreeSet<Level> = gone.keys().map(|(_, _, level)| *level).collect();
    for level in levels {
        for found in workload.states(root, View::Only(level), ALL)? {
            if let Some((rank, text)) = gone.get(&(found.run, found.step, level)) {
                return Err(format!(
                    "INVENTED: rank {rank} was told that it is lost, and {found:?} is restartable at level {level}: {text}"
                ));
            }
        }
    }
    Ok(())
}
