//! Implements `orcheck prune`, which removes all but the newest checkpoints of a job.
//!
//! How: at each level, the newest N checkpoints that are complete here stay, with all that they
//! refer to, directly or not. The others are planned newest first, each assuming that the previous
//! ones are removed.
//!
//! Invariants:
//! 1. With `--dry-run` nothing is changed.
//! 2. Nothing is removed from a level that has fewer than N complete checkpoints.
//! 3. A marked checkpoint stays, and does not count.
//! 4. With the key, only what it verifies counts. Without it, nothing of an encrypted job is
//!    removed, and nothing while a checkpoint is sealed with a key that was not given.
//! 5. A step that should be removed but has to stay is named, with the reason, and the exit code is
//!    3.
//! 6. A directory of level `global` that had a record has one afterwards: it may have missed the
//!    newest checkpoints, and must not pass for one in which the job never committed anything.
//! 7. Containers without a commit record stay, and are reported: see `orphans.rs`.
//!
//! Not here: what the program prunes by itself (engine).

use std::collections::{BTreeMap, BTreeSet};

use orcheck_engine::commit::copy_here;
use orcheck_engine::directory::Commit;
use orcheck_engine::directory::RECORD_LIMIT_BYTES;
use orcheck_engine::directory::choose::Removal;
use orcheck_engine::encoding::{Proof, Trust, other_key};
use orcheck_format::disk::FileName;
use orcheck_format::sabotage::{Switch, off};
use orcheck_format::{Epoch, Error, Level, Step};
use orcheck_io::disk::read_small;

mod orphans;

use super::rm::{all_in_sight, carry_out};
use crate::args::PruneArgs;
use crate::job::{Job, trust};
use crate::output::{Failure, Outcome};

/// Prunes.
pub fn run(args: &PruneArgs) -> Result<Outcome, Failure> {
    let mut place = args.place.clone();
    place.anywhere.extend(args.at.iter().cloned());
    let trust = trust(&args.unlock)?;
    let job = Job::open_trusting(&place, &trust)?;
    all_in_sight(&job)?;
    proven(&job, &trust)?;
    let (stays, too_few) = wanted(&job, args.keep as usize);
    let of = |commit: &Commit| (commit.record.step, commit.record.epoch);
    let commits = job.catalog.commits().iter();
    let others = job.catalog.rejected().iter().chain(job.catalog.fenced());
    let mut going: BTreeSet<(Step, Epoch)> = commits.chain(others).map(of).collect();
    going.retain(|checkpoint| !stays.contains(checkpoint));
    let (mut removals, mut gone, mut refused) = (Vec::new(), BTreeSet::new(), Vec::new());
    for &(step, epoch) in going.iter().rev() {
        match Removal::plan_after(&job.catalog, step, Some(epoch.counter), &gone) {
            // Two runs with one counter: the plan is for the other run's checkpoint.
            Ok(removal) if removal.epoch != epoch => {
                let why = Error::invalid(format!(
                    "epoch {} wrote it too, under the same counter as epoch {epoch}, and only one of the two is removed at a time",
                    removal.epoch
                ));
                // Breaks if: repeating is always advised; if the other one stays, that would never
                // end.
                let next = match going.contains(&(step, removal.epoch)) {
                    true => "run the same command again".to_owned(),
                    false => format!(
                        "to remove it, delete the files whose names begin with \
                         s{step:012}-e{:06}-{}-",
                        epoch.counter,
                        epoch.run.short()
                    ),
                };
                refused.push((step, epoch, why.next(next)));
            }
            Ok(removal) => {
                gone.insert((step, epoch));
                removals.push(removal);
            }
            Err(error) => refused.push((step, epoch, error)),
        }
    }
    if !args.dry_run && !removals.is_empty() {
        leave_record(&job, &stays)?;
    }
    let mut outcome = carry_out(&job, &removals, args.dry_run, refused)?;
    orphans::tell(&job.catalog, &mut outcome);
    outcome.warnings.extend(too_few);
    Ok(outcome)
}

/// Writes the newest record that stays at level `global` into the directories that have none of
/// those that stay.
fn leave_record(job: &Job, stays: &BTreeSet<(Step, Epoch)>) -> Result<(), Failure> {
    let of = |commit: &Commit| (commit.record.step, commit.record.epoch);
    let staying =
        |commit: &&Commit| commit.record.level == Level::Global && stays.contains(&of(commit));
    let staying: Vec<&Commit> = job.catalog.commits().iter().filter(staying).collect();
    let newest = staying.iter().max_by_key(|commit| of(commit));
    let Some((newest, from)) = newest.and_then(|one| Some((one, one.copies.first()?))) else {
        return Ok(());
    };
    let places = job.catalog.places();
    let name = FileName::commit(newest.record.step, newest.record.epoch, Level::Global).to_string();
    let bytes = read_small(places[*from].as_ref(), &name, RECORD_LIMIT_BYTES)?;
    for (at, (place, kind)) in places.iter().zip(&job.place_kinds).enumerate() {
        let lacks = !staying.iter().any(|commit| commit.copies.contains(&at));
        // Breaks if: one that missed the newest checkpoints loses all others; a start with it alone
        // would begin from nothing.
        if kind == "global" && lacks && !off(Switch::PruneLeavesRecord) {
            copy_here(place, &newest.record, &bytes)?;
        }
    }
    Ok(())
}

/// Refuses if records are sealed and there is no key: it is not known which of them are genuine.
fn proven(job: &Job, trust: &Trust) -> Result<(), Failure> {
    // Breaks if: records sealed with another key are ignored; nothing would be removed, or the
    // wrong checkpoints, and nobody would be told.
    if let Some(step) = job
        .catalog
        .other_key()
        .filter(|_| !off(Switch::PruneProven))
    {
        let what = format!(
            "nothing was removed from job {}: step {step} was sealed with another key",
            job.name.as_str()
        );
        return Err(other_key(&what).into());
    }
    let commits = job.catalog.commits().iter();
    let mut all = commits
        .chain(job.catalog.fenced())
        .chain(job.catalog.rejected());
    // Breaks if: forged records count; genuine checkpoints would be removed in their favour.
    if trust.has_key()
        || !all.any(|commit| commit.proof == Proof::Unchecked)
        || off(Switch::PruneProven)
    {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "job {} is encrypted; without its key, genuine and forged checkpoints cannot be told \
         apart: nothing was removed",
        job.name.as_str()
    ))
    .next("give --encrypt-key, or name the steps to remove: `orcheck rm STEP`")
    .into())
}

/// The checkpoints that stay, and where that is all of a level, although it has more than `keep`,
/// why.
fn wanted(job: &Job, keep: usize) -> (BTreeSet<(Step, Epoch)>, Vec<String>) {
    let mut levels: BTreeMap<Level, Vec<&Commit>> = BTreeMap::new();
    for commit in job.catalog.commits() {
        levels.entry(commit.record.level).or_default().push(commit);
    }
    let (mut stays, mut too_few) = (BTreeSet::new(), Vec::new());
    for (level, commits) in &levels {
        let marked =
            |commit: &&&Commit| job.catalog.is_kept(commit.record.step, commit.record.epoch);
        let whole = |commit: &&&Commit| job.missing(commit).is_none();
        let counted: Vec<&&Commit> = commits
            .iter()
            .filter(|commit| whole(commit) && !marked(commit))
            .take(keep)
            .collect();
        if counted.len() < keep && commits.len() > keep {
            too_few.push(format!(
                "all {} checkpoints of level {level} stay, because fewer than {keep} that are not marked are complete here: {}. Next: give all directories of the job",
                commits.len(),
                counted.len()
            ));
        }
        let oldest = match counted.last() {
            Some(oldest) if counted.len() == keep => (oldest.record.step, oldest.record.epoch),
            _ => (
                Step(0),
                commits
                    .iter()
                    .map(|commit| commit.record.epoch)
                    .min()
                    .unwrap_or_else(|| commits[0].record.epoch),
            ),
        };
        // Also checkpoints that are incomplete here and lie between those that count: they may be
        // complete elsewhere.
        let newer = |commit: &&&Commit| (commit.record.step, commit.record.epoch) >= oldest;
        for commit in commits
            .iter()
            .filter(|commit| newer(commit) || marked(commit))
        {
            let record = &commit.record;
            stays.insert((record.step, record.epoch));
            // Breaks if: checkpoints that are referred to are removed; the remaining steps could
            // not be read any more.
            stays.extend(
                record
                    .refers_to()
                    .iter()
                    .map(|&older| (older, record.epoch)),
            );
        }
    }
    (stays, too_few)
}
