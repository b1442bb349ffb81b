//! Rejects, keeps or removes a checkpoint on a person's or the program's decision.
//!
//! How: a decision is a small file beside the commit records, named after the checkpoint
//! (`format::disk`). Readers leave out rejected checkpoints (`catalog.rs`). Prune does not count
//! them, and it keeps those that are marked (`prune.rs`). A removal is first planned, so that the
//! plan can be shown, and then carried out.
//!
//! Invariants:
//! 1. A decision is durable in every directory for which it was made before the call returns.
//! 2. A checkpoint is not removed if another one refers to it, or may refer to it because its
//!    record is unreadable; if it is marked to be kept; or if the run that wrote it is alive,
//!    because its next checkpoint may refer to it.
//! 3. A checkpoint whose commit records are all damaged can be removed by its step; one that is
//!    merely not believed cannot.
//! 4. Commit records are removed first, durably and everywhere; a crash never leaves a record
//!    without its containers.
//!
//! Not here: which step is meant (callers), agreement among ranks (crate `client`).

use crate::directory::catalog::{Catalog, Commit, RECORD_LIMIT_BYTES, Unread};
use crate::directory::halt::NewestRun;
use crate::encoding::Trust;
use orcheck_format::disk::{Choice, CommitRecord, FileName, MAX_WHY_BYTES};
use orcheck_format::sabotage::{Switch, off};
use orcheck_format::{Decision, Epoch, Error, ErrorKind, JobName, Level, Result, RunId, Step};
use orcheck_io::clock::Clock;
use orcheck_io::disk::{Dir, read_small, write_small};
use orcheck_io::errno::is_denied;
use orcheck_io::machine::{effective_uid, host_name};
use std::collections::BTreeSet;
use std::sync::Arc;

/// A decision of this process's user, dated now.
#[must_use]
pub fn decision(
    job: &JobName,
    (step, epoch): (Step, Epoch),
    decision: Decision,
    why: &str,
    clock: &dyn Clock,
) -> Choice {
    let mut text: String = why.trim().replace(char::is_control, " ");
    while text.len() > MAX_WHY_BYTES {
        text.pop();
    }
    Choice {
        job: job.clone(),
        step,
        epoch,
        decision,
        host: host_name(),
        uid: effective_uid(),
        since_unix_ms: clock.unix_ms(),
        why: text,
    }
}

/// Puts a decision into each of these directories. An existing decision stays unchanged.
///
/// # Errors
/// The error of the first directory that does not accept it; the others may have it.
pub fn decide(dirs: &[Arc<dyn Dir>], choice: &Choice) -> Result<()> {
    let name = choice.file_name().to_string();
    let bytes = choice.encode();
    for dir in dirs {
        if !dir.holds(&name)? {
            let place = || {
                format!(
                    "marking step {} {} in {}",
                    choice.step,
                    choice.decision,
                    dir.path().display()
                )
            };
            write_small(dir.as_ref(), &name, &bytes).map_err(|error| error.at(place()))?;
        }
    }
    Ok(())
}

/// Takes a decision back; returns in how many directories it was found.
///
/// # Errors
/// The error of a directory.
pub fn take_back(dirs: &[Arc<dyn Dir>], choice: &FileName) -> Result<usize> {
    let name = choice.to_string();
    let mut gone = 0;
    for dir in dirs {
        match dir.remove(&name) {
            Ok(()) => gone += 1,
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        }
        dir.sync()?;
    }
    Ok(gone)
}

/// The checkpoint that a person means by its step: one that can be restarted from, or else the
/// newest of that step.
///
/// # Errors
/// NotFound, listing the steps that exist; Unavailable if its commit record cannot be read.
pub fn checkpoint_of(catalog: &Catalog, step: Step) -> Result<&CommitRecord> {
    let of_step = |commit: &&Commit| commit.record.step == step;
    if let Some(commit) = all_commits(catalog).find(of_step) {
        return Ok(&commit.record);
    }
    // Breaks if: it is reported as absent; a user would look for it elsewhere instead of giving the
    // key.
    // Breaks if: a damaged copy is considered first; a copy that another user can read is whole.
    let of_step = catalog.unread().iter().filter(|one| one.step == step);
    if let Some(unread) = of_step.max_by_key(|one| one.why.kind() == ErrorKind::Unavailable) {
        let kind = match unread.why.kind() {
            ErrorKind::Unavailable => ErrorKind::Unavailable,
            _ => ErrorKind::NotFound,
        };
        let why = format!("{}: {}", unread.path(catalog), unread.why.what());
        let there = listed(all_commits(catalog).map(|commit| commit.record.step));
        let said = format!("step {step} does not count: {why}; there are: {there}");
        let said = Error::new(kind, said);
        return Err(unread.advise(catalog, said));
    }
    Err(Error::not_found(format!(
        "there is no checkpoint of step {step}; there are: {}",
        listed(all_commits(catalog).map(|commit| commit.record.step))
    )))
}

/// A list of steps for a message, newest first and each once.
#[must_use]
pub fn listed(steps: impl Iterator<Item = Step>) -> String {
    let steps: BTreeSet<Step> = steps.collect();
    if steps.is_empty() {
        return "none".to_owned();
    }
    let steps: Vec<String> = steps.iter().rev().map(ToString::to_string).collect();
    steps.join(", ")
}

fn all_commits(catalog: &Catalog) -> impl Iterator<Item = &Commit> {
    let commits = catalog.commits().iter().chain(catalog.rejected());
    commits.chain(catalog.fenced())
}

/// The plan for removing one checkpoint.
pub struct Removal {
    /// Its step.
    pub step: Step,
    /// The run that wrote it.
    pub epoch: Epoch,
    /// Levels at which it has a record.
    pub levels: Vec<Level>,
    /// Files to remove, and their total size.
    pub files: usize,
    /// See `files`.
    pub bytes: u64,
    dirs: Vec<Arc<dyn Dir>>,
    records: Vec<(usize, String)>,
    containers: Vec<(usize, String)>,
    choices: Vec<(usize, String)>,
}

impl Removal {
    /// Plans the removal of the checkpoint of `step` (of this epoch counter, if one is given).
    ///
    /// # Errors
    /// NotFound; Invalid if something refers to it, if it is kept, or if the run that wrote it is
    /// alive; Corrupt if a newer record cannot be used.
    pub fn plan(catalog: &Catalog, step: Step, epoch: Option<u64>) -> Result<Self> {
        Self::plan_after(catalog, step, epoch, &BTreeSet::new())
    }

    /// The same, assuming that the checkpoints (step, epoch) in `gone` are removed first: their
    /// references do not count.
    ///
    /// # Errors
    /// As [`Self::plan`].
    pub fn plan_after(
        catalog: &Catalog,
        step: Step,
        epoch: Option<u64>,
        gone: &BTreeSet<(Step, Epoch)>,
    ) -> Result<Self> {
        let of = |commit: &&Commit| {
            commit.record.step == step && epoch.is_none_or(|e| commit.record.epoch.counter == e)
        };
        let epoch = match all_commits(catalog).find(of) {
            Some(commit) => commit.record.epoch,
            None => match damaged(catalog, step, epoch) {
                Some(epoch) => epoch,
                None => checkpoint_of(catalog, step)?.epoch,
            },
        };
        if !off(Switch::RemovedUnreferred) {
            check_unneeded(catalog, step, epoch, gone)?;
        }
        let mut levels = BTreeSet::new();
        let (mut records, mut containers, mut choices) = (Vec::new(), Vec::new(), Vec::new());
        let (mut files, mut bytes) = (0, 0);
        for (place, entry, name) in catalog.files() {
            let Some((s, e, run)) = name.as_ref().and_then(FileName::checkpoint) else {
                continue;
            };
            if (s, e, run) != (step, epoch.counter, epoch.run.short_bytes()) {
                continue;
            }
            let list = match name {
                Some(FileName::Commit { level, .. }) => {
                    levels.insert(*level);
                    &mut records
                }
                Some(FileName::Choice { .. }) => &mut choices,
                _ => &mut containers,
            };
            list.push((*place, entry.name.clone()));
            files += 1;
            bytes += entry.len_bytes;
        }
        Ok(Self {
            step,
            epoch,
            levels: levels.into_iter().collect(),
            files,
            bytes,
            dirs: catalog.places().to_vec(),
            records,
            containers,
            choices,
        })
    }

    /// Carries out the plan. After an error or a crash, the rest can be removed by planning again,
    /// or it is pruned.
    ///
    /// # Errors
    /// The error of a directory.
    pub fn carry_out(&self) -> Result<()> {
        for files in [&self.records, &self.containers, &self.choices] {
            let mut touched = BTreeSet::new();
            for (place, name) in files {
                let dir = &self.dirs[*place];
                match dir.remove(name) {
                    Err(error) if error.kind() != ErrorKind::NotFound => {
                        return Err(error.at(format!("removing step {}", self.step)));
                    }
                    _ => touched.insert(*place),
                };
            }
            // Breaks if: containers are removed before the records are durably gone.
            touched
                .into_iter()
                .try_for_each(|place| self.dirs[place].sync())?;
        }
        Ok(())
    }
}

/// Refuses to remove a checkpoint that is kept or in use.
fn check_unneeded(
    catalog: &Catalog,
    step: Step,
    epoch: Epoch,
    gone: &BTreeSet<(Step, Epoch)>,
) -> Result<()> {
    if catalog.is_kept(step, epoch) {
        return Err(
            Error::invalid(format!("step {step} is marked to be kept")).next(format!(
                "take the mark back with `orcheck keep {step} --undo`, then remove it"
            )),
        );
    }
    check_unreferred(catalog, step, epoch, gone)?;
    let newest = NewestRun::newest(catalog.places(), &Trust::default())?;
    if newest.is_some_and(|run| run.lives && run.claim.epoch.counter == epoch.counter) {
        return Err(Error::invalid(format!(
            "the run that wrote step {step} is alive, and its next checkpoint may refer to it"
        ))
        .next("wait for the run to end"));
    }
    Ok(())
}

/// Refuses to remove a checkpoint to which another one refers, or may refer because its record
/// cannot be read.
pub(crate) fn check_unreferred(
    catalog: &Catalog,
    step: Step,
    epoch: Epoch,
    gone: &BTreeSet<(Step, Epoch)>,
) -> Result<()> {
    let refers = |commit: &&Commit| {
        commit.record.epoch == epoch
            && commit.record.refers_to().contains(&step)
            && !gone.contains(&(commit.record.step, epoch))
    };
    // Superseded checkpoints do not count: no restart reads them.
    let counted = || catalog.commits().iter().chain(catalog.rejected());
    let of = |commits: &mut dyn Iterator<Item = &Commit>| -> BTreeSet<Step> {
        commits.map(|commit| commit.record.step).collect()
    };
    let needed = of(&mut counted().filter(refers));
    if !needed.is_empty() {
        // The checkpoints that refer to these must go too.
        let mut all = needed.clone();
        loop {
            let more = of(&mut counted().filter(|commit| {
                let record = &commit.record;
                let is_gone = gone.contains(&(record.step, epoch));
                let refers = record.refers_to().iter().any(|step| all.contains(step));
                record.epoch == epoch && refers && !is_gone
            }));
            let known = all.len();
            all.extend(more);
            if all.len() == known {
                break;
            }
        }
        let (who, also) = (named(&needed), named(&all));
        let refer = match needed.len() {
            1 => "refers",
            _ => "refer",
        };
        return Err(
            Error::invalid(format!("step {step} holds data that {who} {refer} to"))
                .next(format!("remove {also} too, or leave step {step}")),
        );
    }
    let is_gone = |unread: &Unread| {
        let of = |(step, epoch): &(Step, Epoch)| (*step, epoch.counter, epoch.run.short_bytes());
        gone.iter().any(|one| of(one) == unread.checkpoint())
    };
    let unread = (catalog.unread().iter())
        .find(|unread| unread.step > step && unread.counter == epoch.counter && !is_gone(unread));
    match unread {
        None => Ok(()),
        Some(unread) => Err(unread.advise(
            catalog,
            Error::corrupt(format!(
                "{} cannot be used and may refer to step {step}",
                unread.path(catalog)
            )),
        )),
    }
}

/// Steps in the words of a sentence: `step 3`, `steps 3, 4 and 5`.
fn named(steps: &BTreeSet<Step>) -> String {
    let mut steps: Vec<String> = steps.iter().map(ToString::to_string).collect();
    let last = steps.pop().unwrap_or_default();
    match steps.is_empty() {
        true => format!("step {last}"),
        false => format!("steps {} and {last}", steps.join(", ")),
    }
}

impl Unread {
    /// The path of the file.
    #[must_use]
    pub fn path(&self, catalog: &Catalog) -> String {
        let dir = catalog.places()[self.place].path();
        dir.join(&self.file).display().to_string()
    }

    /// Ok for a whole record that is not believed; otherwise what is wrong with it.
    fn read(&self, catalog: &Catalog) -> Result<()> {
        let dir = &catalog.places()[self.place];
        let bytes = read_small(dir.as_ref(), &self.file, RECORD_LIMIT_BYTES)?;
        CommitRecord::decode(&bytes).map(|_| ())
    }

    /// Whether its bytes are not a record: no run can restore such a checkpoint.
    fn is_damaged(&self, catalog: &Catalog) -> bool {
        matches!(self.read(catalog), Err(error) if error.kind() == ErrorKind::Corrupt)
    }

    /// Adds to the error the next step for this record.
    fn advise(&self, catalog: &Catalog, error: Error) -> Error {
        let step = self.step;
        let said = self.why.next_step();
        match self.read(catalog) {
            Err(why) if why.kind() == ErrorKind::Corrupt => error.next(format!(
                "give a directory of the job that holds a good copy of this record; if there is none, step {step} cannot \
                 be restored: remove it first with `orcheck rm {step}`"
            )),
            Err(why) => match why.next_step() {
                Some(next) => error.next(next),
                None if why.kind() == ErrorKind::Unsupported => {
                    error.next("use a newer version of Orcheck")
                }
                None if is_denied(&why) => {
                    error.next("run it as the user who owns the directory, or as root")
                }
                None => error.next("bring back the disk or server that holds it"),
            },
            // Whole, but not believed.
            Ok(()) => error.next(said.unwrap_or("give the key that it was sealed with: --encrypt-key")),
        }
    }
}

/// The checkpoint of this step whose commit records are all damaged.
fn damaged(catalog: &Catalog, step: Step, counter: Option<u64>) -> Option<Epoch> {
    let of_step = (catalog.unread().iter())
        .filter(|one| one.step == step && counter.is_none_or(|counter| one.counter == counter));
    let found = of_step.max_by_key(|one| one.counter)?;
    let unread = catalog.unread().iter();
    let mut copies = unread.filter(|one| one.checkpoint() == found.checkpoint());
    // Breaks if: a whole record is removed too; its checkpoint could be restored with its key, or
    // by a newer version.
    if !copies.all(|one| one.is_damaged(catalog)) {
        return None;
    }
    // The file name holds only the beginning of the run id.
    let of_run =
        |epoch: &Epoch| (epoch.counter, epoch.run.short_bytes()) == (found.counter, found.run);
    let commits = all_commits(catalog).map(|commit| commit.record.epoch);
    let claims = catalog.claims().iter().map(|(claim, _)| claim.epoch);
    let known = commits.chain(claims).find(of_run);
    Some(known.unwrap_or_else(|| {
        let mut run = RunId([0; 16]);
        run.0[..found.run.len()].copy_from_slice(&found.run);
        Epoch {
            counter: found.counter,
            run,
        }
    }))
}
