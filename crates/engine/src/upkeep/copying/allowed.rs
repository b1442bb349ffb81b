//! Checks whether a copy may be made, before anything is written.
//!
//! How: sources and destinations are read as one catalog, and the destinations also as one of their
//! own.
//!
//! Invariants:
//! 1. Nothing is changed here.
//! 2. Every checkpoint that counts in the destinations before the copy counts after it.
//!
//! Not here: what is missing or damaged in the sources (`copying.rs`).

use super::{NotCopied, OfCopy, Order, Planned, again_there};
use crate::directory::choose::check_unreferred;
use crate::directory::epoch::wait_for_holder;
use crate::directory::{Catalog, Commit, job_named_by};
use crate::replicas::mend::needed;
use orcheck_format::disk::{CommitRecord, FileName};
use orcheck_format::sabotage::{Switch, off};
use orcheck_format::{Error, ErrorKind, Level, Result};
use orcheck_io::clock::Clock;
use orcheck_io::disk::Dir;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// What one disk receives.
struct Share<'a> {
    names: Vec<&'a str>,
    needed_bytes: u64,
    free_bytes: u64,
}

impl Order<'_> {
    pub(super) fn check_destinations(&self) -> Result<()> {
        let wanted = match self.level {
            Level::Global => 1..=usize::MAX,
            Level::Node => self.commit.record.nodes.len()..=self.commit.record.nodes.len(),
            level => {
                return Err(Error::invalid(format!(
                    "nothing is copied to level {level}, only to node or global"
                ))
                .next(
                    "copy to node or global; a run with peers makes the replicas when it resumes",
                ));
            }
        };
        if !wanted.contains(&self.destinations.len()) {
            return Err(Error::internal(format!(
                "{} destinations for level {}",
                self.destinations.len(),
                self.level
            )));
        }
        let mut names = BTreeSet::new();
        match self
            .destinations
            .iter()
            .find(|one| !names.insert(&one.name))
        {
            None => Ok(()),
            Some(twice) => Err(Error::invalid(format!("{} is given twice", twice.name))
                .next("give every directory once")),
        }
    }

    /// Checks, by what sources and destinations hold together, whether the copy may be made;
    /// returns an existing copy.
    pub(super) fn look(&self, dirs: &[Arc<dyn Dir>]) -> OfCopy<Option<Commit>> {
        let sources = self.catalog.places();
        let all = Catalog::scan_trusting(self.job, &[sources, dirs].concat(), self.trust)?;
        self.require_counting(&all)?;
        if dirs.is_empty() {
            return Ok(None);
        }
        let (step, epoch) = self.key();
        let there = Catalog::scan_trusting(self.job, dirs, self.trust)?;
        self.check_job(dirs)?;
        self.require_no_other_level(&there, dirs)?;
        let recorded = there.files().iter().find(|(_, _, name)| {
            name.as_ref()
                .is_some_and(|name| self.is_of_it(name) && matches!(name, FileName::Commit { .. }))
        });
        let Some((number, entry, _)) = recorded else {
            // Breaks if: such files are replaced; a newer checkpoint there that refers to them
            // would be lost.
            if !off(Switch::CopyUnreferred) {
                check_unreferred(&there, step, epoch, &BTreeSet::new()).map_err(|error| {
                    error
                        .at("in the directory that is copied to")
                        .next("copy to another directory")
                })?;
            }
            self.check_supersedes(&there)?;
            return Ok(None);
        };
        let commits = there.commits().iter();
        let commits = commits.chain(there.fenced()).chain(there.rejected());
        let mut commits = commits.filter(|commit| {
            (commit.record.step, commit.record.epoch, commit.record.level)
                == (step, epoch, self.level)
        });
        let Some(found) = commits.next() else {
            let error = Error::corrupt(format!(
                "{} is there, and is damaged or not believed",
                dirs[*number].path().join(&entry.name).display()
            ));
            return Err(NotCopied::lost(error.next(
                "see what `orcheck verify` says of that directory, or copy to another one",
            )));
        };
        require_containers(found, &there).map_err(NotCopied::lost)?;
        Ok(Some(found.clone()))
    }

    /// # Errors
    /// Fenced or Invalid: the checkpoint is superseded or rejected, and so would be its copy.
    pub(super) fn require_counting(&self, all: &Catalog) -> Result<()> {
        let (step, epoch) = self.key();
        let same = |commit: &&Commit| {
            (commit.record.step, commit.record.epoch) == (step, epoch)
                && commit.record.level == self.commit.record.level
        };
        if let Some(fenced) = all.fenced().iter().find(same)
            // Breaks if: it is copied all the same; where the resumed record is not known, the
            // superseded step would be the newest.
            && !off(Switch::CopySuperseded)
        {
            let why = all.why_fenced(&fenced.record);
            let why = why.unwrap_or("a newer run superseded it");
            let next = "copy a step that `orcheck ls` with all these directories calls restartable";
            return Err(Error::fenced(format!("step {step} does not count: {why}")).next(next));
        }
        if all.rejected().iter().any(|commit| same(&commit)) {
            return Err(
                Error::invalid(format!("step {step} was rejected by the program"))
                    .next("copy another step"),
            );
        }
        Ok(())
    }

    /// # Errors
    /// Invalid: a directory holds the step at another level, in files of the same names.
    fn require_no_other_level(&self, there: &Catalog, dirs: &[Arc<dyn Dir>]) -> Result<()> {
        for (number, entry, name) in there.files() {
            let Some(FileName::Commit { level, .. }) = name else {
                continue;
            };
            if name.as_ref().is_some_and(|name| self.is_of_it(name)) && *level != self.level {
                return Err(Error::invalid(format!(
                    "the directory holds step {} at level {level} already, with files of the same names: {}",
                    self.key().0,
                    dirs[*number].path().join(&entry.name).display()
                ))
                .next("copy to another directory"));
            }
        }
        Ok(())
    }

    /// Refuses directories in which the copy would make another checkpoint stop counting: the
    /// resume rule takes a later run's copy for that of a run that went back, and a counter belongs
    /// to one run. Checkpoints that a resumed record among the sources says were superseded do not
    /// matter.
    fn check_supersedes(&self, there: &Catalog) -> Result<()> {
        let (step, epoch) = self.key();
        // Breaks if: commits of later runs count as such a record; the copy would always excuse
        // itself.
        let notes = || {
            self.catalog
                .claims()
                .iter()
                .filter_map(|(_, note)| note.as_ref())
        };
        let superseded = there.commits().iter().find(|commit| {
            let (its, of) = (commit.record.step, commit.record.epoch);
            let by_it = of.counter < epoch.counter && its >= step
                || of.counter == epoch.counter && of.run != epoch.run;
            let went_back = notes().any(|later| {
                later.epoch.counter > of.counter && later.step.is_none_or(|from| from < its)
            });
            by_it && !went_back
        });
        // Breaks if: this is ignored; the next run would go back to the copy, and prune what is
        // newer.
        match superseded.filter(|_| !off(Switch::CopySupersedes)) {
            None => Ok(()),
            Some(commit) => Err(Error::invalid(format!(
                "step {} of epoch {} counts in the directory that is copied to, and would no \
                 longer count beside step {step} of epoch {epoch}",
                commit.record.step, commit.record.epoch
            ))
            .next(format!(
                "copy to another directory, or remove that one with `orcheck rm {}` first",
                commit.record.step
            ))),
        }
    }

    /// Waits until no run is alive in the destinations.
    pub(super) fn wait_for_run(&self, dirs: &[Arc<dyn Dir>], clock: &dyn Clock) -> Result<()> {
        wait_for_holder(dirs, self.patience, (self.job, self.trust), clock).map_err(|error| {
            match error.kind() {
                // A copy has nothing to take over.
                ErrorKind::Unavailable => {
                    error.next("wait for it or end it, or copy to another directory")
                }
                _ => error,
            }
        })
    }

    /// Refuses destinations without enough space; those on one disk share its space.
    pub(super) fn check_room(
        &self,
        there: &[Option<Arc<dyn Dir>>],
        containers: &[Planned],
    ) -> Result<()> {
        let mut disks: BTreeMap<(bool, u64), Share> = BTreeMap::new();
        for (number, destination) in self.destinations.iter().enumerate() {
            let dir = there[number].as_ref().unwrap_or(&destination.root);
            let disk = match dir.taken_itself() {
                Ok(taken) => (true, taken.id.0),
                // Only a server knows the space on its disk; the nodes' directories have one root.
                Err(_) if self.level == Level::Node => (false, 0),
                Err(_) => (false, number as u64),
            };
            let of_it = containers.iter().filter(|one| one.destination == number);
            let free_bytes = dir.free_bytes()?;
            let share = disks.entry(disk).or_insert(Share {
                names: Vec::new(),
                needed_bytes: 0,
                free_bytes,
            });
            share.names.push(&destination.name);
            share.needed_bytes += of_it.map(|one| one.file_bytes).sum::<u64>();
            share.free_bytes = share.free_bytes.min(free_bytes);
        }
        let full = disks
            .values()
            .find(|share| share.needed_bytes > share.free_bytes);
        // Breaks if: this is left out; the copy would fail when the disk is full, after hours.
        match full.filter(|_| !off(Switch::CopyRoom)) {
            None => Ok(()),
            Some(share) => Err(Error::no_space(format!(
                "{}: the copy takes {} bytes there, and {} are free",
                share.names.join(", "),
                share.needed_bytes,
                share.free_bytes
            ))
            .next("free space there, or give more directories")),
        }
    }

    /// Refuses directories that hold files of another job, or of a job that the given keys cannot
    /// identify.
    fn check_job(&self, dirs: &[Arc<dyn Dir>]) -> Result<()> {
        for dir in dirs {
            for entry in dir.list()? {
                // The catalog deals with files that are unreadable or not believed.
                let named = job_named_by(dir.as_ref(), &entry.name, self.trust);
                // Breaks if: a record of another key counts as not believed; the copy would go to
                // another job's directory.
                let named = named.map_err(|error| {
                    error.at(dir.path().join(&entry.name).display()).next(
                        "copy to another directory, or give the key of the run that wrote it with --encrypt-key, after the first",
                    )
                })?;
                let Some(job) = named else { continue };
                if job != *self.job {
                    return Err(Error::invalid(format!(
                        "{} holds files of job {}, expected none but of job {}",
                        dir.path().display(),
                        job.as_str(),
                        self.job.as_str()
                    ))
                    .next("copy to another directory"));
                }
            }
        }
        Ok(())
    }
}

/// # Errors
/// NotFound: the record of a copy exists, but not one of its containers, or of those that it refers
/// to.
fn require_containers(found: &Commit, there: &Catalog) -> Result<()> {
    let step = found.record.step;
    let Some(file) = lacking(&found.record, there, &|_| true) else {
        return Ok(());
    };
    let error = Error::not_found(format!("container {file} is not there"));
    Err(again_there(error.at(format!("step {step}")), step))
}

/// The first container that a restart from this record may read and that none of these places of
/// the catalog has, as far as names and lengths tell.
pub(in crate::upkeep) fn lacking(
    record: &CommitRecord,
    catalog: &Catalog,
    counts: &dyn Fn(usize) -> bool,
) -> Option<String> {
    let files = catalog.files().iter().filter(|(place, ..)| counts(*place));
    let there: BTreeSet<(&str, u64)> = files
        .map(|(_, entry, _)| (entry.name.as_str(), entry.len_bytes))
        .collect();
    let own = |file: &str| record.containers.iter().find(|own| own.file == file);
    let is_there = |file: &str| match own(file) {
        Some(own) => there.contains(&(file, own.len_bytes)),
        // Breaks if: it is not looked for; a step would be called whole whose unchanged data is
        // gone.
        None if off(Switch::CopyRefers) => true,
        None => there
            .range((file, 0)..)
            .next()
            .is_some_and(|(name, _)| *name == file),
    };
    needed(record).into_iter().find(|file| !is_there(file))
}
