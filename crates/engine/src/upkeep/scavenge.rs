//! Takes what nodes still hold of an ended run to level `global`.
//!
//! How: the directories that are visible here, and the list of members that a node's directory
//! keeps, say which nodes there are. Those that are not visible are asked through the keepers of
//! their agents, as by a next run. All of it is read as one catalog. The newest committed step that
//! is newer than level `global` and whole is copied there by `copying.rs`, which alone decides what
//! may be copied and when it becomes visible.
//!
//! ```text
//! wait for the last run ─ ask the nodes ─ catalog ─ newest step: plan, copy ─▶ level global
//!                                                   └ not whole: say why, next older
//! ```
//!
//! Invariants:
//! 1. Nothing is taken while a run holds the job in a directory that is visible here.
//! 2. Only committed checkpoints are taken. Containers without a commit record are named, never
//!    put together: no vote says that they belong to one attempt.
//! 3. Every newer step that was not taken is reported, with what is missing or damaged.
//! 4. Nodes of the last run that were neither visible nor answered are reported.
//! 5. A step is at level `global` only with its record in every directory, and with all that it
//!    refers to. One that lacks a record is completed.
//! 6. An older step is taken only for what is missing or damaged of a newer one, never for an error
//!    of the destination.
//! 7. Sources are only read. The claim that the copy holds keeps a second scavenge, and a run that
//!    begins meanwhile, out of the destination.
//!
//! Faults survived: those of `copying.rs`; nodes that are gone, stall or die while they are read;
//! damaged containers (another copy, or the next older step, is taken).
//!
//! Not here: what agents on this machine still flush (`host::agent`; whoever calls this waits for
//! them), what is refused (`copying/allowed.rs`).

use crate::directory::epoch::wait_for_holder;
use crate::directory::{Catalog, Commit, UnreadStep};
use crate::encoding::Trust;
use crate::replicas::{Asking, Rebuilt, node_dir};
use crate::upkeep::copying::{Copied, Destination, NotCopied, Order, Plan, Tick, lacking};
use orcheck_format::disk::{CommitRecord, FileName};
use orcheck_format::sabotage::{Switch, off};
use orcheck_format::{
    Detail, Epoch, Error, ErrorKind, JobName, Level, NodeId, Result, Step, count,
};
use orcheck_io::clock::Clock;
use orcheck_io::disk::Dir;
use orcheck_io::failpoints::Failpoints;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// A directory of the job.
#[derive(Clone)]
pub struct Source {
    /// The directory.
    pub dir: Arc<dyn Dir>,
    /// Its node; `None` at level `global`.
    pub node: Option<String>,
}

/// What to scavenge, where to, and how patiently.
pub struct Scavenge<'a> {
    /// The job.
    pub job: &'a JobName,
    /// Opens encrypted containers, and encrypts the copy if it has a key.
    pub trust: &'a Arc<Trust>,
    /// The directories of level `global`.
    pub destinations: Vec<Destination>,
    /// How long to wait for a run or another scavenge to end.
    pub patience: Duration,
    /// How long to wait until a node says what it holds, and for each piece of it.
    pub answer: (Duration, Duration),
    /// Takes the newest step or none.
    pub strict: bool,
    /// Failpoints of the connections, for tests.
    pub failpoints: Failpoints,
}

/// A node that was asked or looked for in vain.
#[derive(Debug, Clone)]
pub struct Unseen {
    /// Its name.
    pub node: String,
    /// Why.
    pub error: Error,
}

/// What all directories and nodes hold.
pub struct Held {
    /// The contents.
    pub catalog: Catalog,
    /// The nodes that answered for themselves.
    pub asked: Vec<String>,
    /// Nodes of the last run that are neither visible nor answered.
    pub unseen: Vec<Unseen>,
    /// Notes for the user.
    pub notes: Vec<String>,
    /// For each place of the catalog, its node.
    nodes: Vec<Option<String>>,
    /// How many of the places are visible here; the others are those of nodes that answered.
    visible: usize,
    /// For each destination, its place in the catalog, if it exists.
    destined: Vec<Option<usize>>,
}

/// A step that was not taken.
#[derive(Debug, Clone)]
pub struct Left {
    /// The step.
    pub step: Step,
    /// Its level.
    pub level: Level,
    /// What is missing or damaged, or why its commit record cannot be used.
    pub error: Error,
}

/// A step that was taken, or would be.
#[derive(Debug)]
pub struct Taken {
    /// Its record among the sources.
    pub record: CommitRecord,
    /// The plan of the copy.
    pub plan: Plan,
    /// The copy; `None` if it was only planned.
    pub copied: Option<Copied>,
}

/// The outcome.
#[derive(Debug, Default)]
pub struct Outcome {
    /// The newest whole step at level `global` before.
    pub safe: Option<Step>,
    /// What was taken.
    pub taken: Option<Taken>,
    /// Newer steps that were not, newest first.
    pub left: Vec<Left>,
}

impl Left {
    fn of_record(unread: UnreadStep) -> Self {
        Self {
            step: unread.step,
            level: unread.level,
            error: unread.error,
        }
    }
}

impl Taken {
    /// Notes for the user.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        let copied = self.copied.as_ref();
        copied.map_or(&self.plan.notes, |copied| &copied.notes)
    }
}

impl Scavenge<'_> {
    /// Waits until the last run has ended, and finds everything that its nodes hold.
    ///
    /// # Errors
    /// Unavailable, marked as [`Detail::Held`], while a run is alive; otherwise as
    /// [`Catalog::scan_trusting`].
    pub fn find(&self, here: Vec<Source>, clock: &dyn Clock) -> Result<Held> {
        let (mut here, mut destined) = (here, Vec::new());
        // What is there already counts as well.
        for destination in &self.destinations {
            let dir = destination.there()?;
            let known = |dir: &Arc<dyn Dir>| here.iter().any(|one| one.dir.path() == dir.path());
            destined.push(dir.as_ref().map(|dir| dir.path().to_path_buf()));
            let new = dir.filter(|dir| !known(dir));
            here.extend(new.map(|dir| Source { dir, node: None }));
        }
        let dirs: Vec<Arc<dyn Dir>> = here.iter().map(|one| Arc::clone(&one.dir)).collect();
        // Breaks if: it is left out; a step would be taken from under a run that is about to
        // supersede it.
        if !off(Switch::ScavengeWaits) {
            wait_for_holder(&dirs, self.patience, (self.job, self.trust), clock)
                .map_err(held_by)?;
        }
        let mut notes = Vec::new();
        let (found, silent) = self.ask(&here, &mut notes)?;
        let asked = found.iter().filter_map(|one| one.node.clone()).collect();
        let (visible, mut places, mut nodes) = (dirs.len(), dirs, Vec::new());
        nodes.extend(here.into_iter().map(|one| one.node));
        for source in found {
            places.push(source.dir);
            nodes.push(source.node);
        }
        let catalog = Catalog::scan_trusting(self.job, &places, self.trust)?;
        let unseen = unseen(&catalog, &nodes, &silent);
        let number = |path: Option<PathBuf>| {
            let mut places = catalog.places().iter();
            places.position(|dir| path.as_deref() == Some(dir.path()))
        };
        let destined = destined.into_iter().map(number).collect();
        notes.extend(catalog.notes().iter().cloned());
        Ok(Held {
            catalog,
            asked,
            unseen,
            notes,
            nodes,
            visible,
            destined,
        })
    }

    /// What the nodes of the last runs hold, by the lists in these directories, and the errors of
    /// those that do not answer. A node whose directory is visible is asked as well: its agent may
    /// have replicas in memory.
    fn ask(
        &self,
        here: &[Source],
        notes: &mut Vec<String>,
    ) -> Result<(Vec<Source>, BTreeMap<String, Error>)> {
        if off(Switch::ScavengeAsks) {
            return Ok((Vec::new(), BTreeMap::new()));
        }
        let asking = Asking {
            job: self.job,
            trust: self.trust,
            within: self.answer.0,
            failpoints: &self.failpoints,
        };
        let of_nodes = here.iter().filter(|one| one.node.is_some());
        let dirs: Vec<&dyn Dir> = of_nodes.map(|one| one.dir.as_ref()).collect();
        let (answered, silent) = asking.ask(&dirs, notes)?;
        let found = answered.into_iter().map(|(at, files)| Source {
            node: Some(at.name.clone()),
            dir: node_dir(at, files, self.answer.1, &self.failpoints),
        });
        Ok((found.collect(), silent))
    }

    /// Takes the newest step that is newer than level `global` and whole. With `dry_run` nothing is
    /// changed. `tick` is called with the number of region bytes that are done.
    ///
    /// # Errors
    /// As [`Order::plan`] and [`Order::carry_out`], except that a step whose containers are missing
    /// or damaged is left for the next older one, and reported in the outcome.
    pub fn take(
        &self,
        held: &Held,
        dry_run: bool,
        clock: &dyn Clock,
        tick: &mut Tick<'_>,
    ) -> Result<Outcome> {
        let safe = held.newest_global();
        let mut outcome = Outcome {
            safe: safe.map(|(step, _)| step),
            ..Outcome::default()
        };
        let is_tried = |step| (held.newer_than(safe)).any(|commit| commit.record.step == step);
        let unread = (held.catalog).unread_steps(outcome.safe, |one| !is_tried(one.step));
        let mut unread = unread.into_iter().map(Left::of_record).peekable();
        for commit in held.newer_than(safe) {
            let record = &commit.record;
            while let Some(left) = unread.next_if(|left| left.step > record.step) {
                outcome.left.push(left);
            }
            if self.strict && !outcome.left.is_empty() {
                return Ok(outcome);
            }
            let known = |left: &Left| left.step == record.step;
            let one = match self.one(held, commit, dry_run, clock, tick) {
                // Files of this one are in the way of it alone.
                Err(error) if error.kind() == ErrorKind::Invalid && !outcome.left.is_empty() => {
                    Err(error)
                }
                one => one?,
            };
            match one {
                Ok(taken) => {
                    // Another level of the same step.
                    outcome.left.retain(|left| !known(left));
                    outcome.taken = Some(taken);
                    return Ok(outcome);
                }
                Err(error) if outcome.left.iter().any(known) => drop(error),
                Err(error) => outcome.left.push(Left {
                    step: record.step,
                    level: record.level,
                    error,
                }),
            }
            if self.strict {
                return Ok(outcome);
            }
        }
        outcome.left.extend(unread);
        Ok(outcome)
    }

    /// Takes this step. An inner error is one of the sources: an older step may be whole.
    fn one(
        &self,
        held: &Held,
        commit: &Commit,
        dry_run: bool,
        clock: &dyn Clock,
        tick: &mut Tick<'_>,
    ) -> Result<Result<Taken>> {
        let again = || {
            let here = held.here();
            let (found, _) = self.ask(&here, &mut Vec::new())?;
            Ok(here.into_iter().chain(found).map(|one| one.dir).collect())
        };
        let order = Order {
            job: self.job,
            catalog: &held.catalog,
            commit,
            places: held.sources_of(&commit.record),
            trust: self.trust,
            level: Level::Global,
            destinations: self.destinations.clone(),
            compress: None,
            patience: self.patience,
            again: Some(&again),
        };
        let plan = match order.plan(clock) {
            Ok(plan) => plan,
            Err(not) if may_be_older(&not) => return Ok(Err(not.error)),
            Err(not) => return Err(held_by(not.error)),
        };
        let record = commit.record.clone();
        if dry_run {
            let copied = None;
            return Ok(Ok(Taken {
                record,
                plan,
                copied,
            }));
        }
        let mut stops = false;
        let mut told = |done| tick(done).inspect_err(|_| stops = true);
        let copied = order.carry_out(&plan, clock, &mut told);
        match copied {
            Ok(copied) => Ok(Ok(Taken {
                record,
                plan,
                copied: Some(copied),
            })),
            // Whoever stops it wants no older step either.
            Err(not) if !stops && may_be_older(&not) => Ok(Err(not.error)),
            Err(not) => Err(held_by(not.error)),
        }
    }
}

impl Held {
    /// The directories that are visible here.
    fn here(&self) -> Vec<Source> {
        let numbered = self.catalog.places().iter().zip(&self.nodes);
        let source = |(dir, node): (&Arc<dyn Dir>, &Option<String>)| Source {
            dir: Arc::clone(dir),
            node: node.clone(),
        };
        numbered.take(self.visible).map(source).collect()
    }

    /// Where the containers of a record are: in the directories of nodes, with what can be computed
    /// from their parity, or in those of level `global`.
    fn sources_of(&self, record: &CommitRecord) -> Vec<Arc<dyn Dir>> {
        let is_global = record.level == Level::Global;
        let numbered = self.catalog.places().iter().zip(&self.nodes);
        let of_level = numbered.filter(|(_, node)| node.is_none() == is_global);
        let mut dirs: Vec<Arc<dyn Dir>> = of_level.map(|(dir, _)| Arc::clone(dir)).collect();
        if !is_global {
            dirs.extend(Rebuilt::of(&dirs, Some(record)));
        }
        dirs
    }

    /// Whether this is a checkpoint at level `global` that is whole there, as far as names and
    /// lengths tell.
    fn is_whole_there(&self, record: &CommitRecord) -> bool {
        let is_global = |place: usize| self.nodes[place].is_none();
        record.level == Level::Global && lacking(record, &self.catalog, &is_global).is_none()
    }

    /// Whether its record is in every destination, and in every directory of level `global` that
    /// has files of it.
    fn is_recorded(&self, commit: &Commit) -> bool {
        let record = &commit.record;
        let of = (
            record.step,
            record.epoch.counter,
            record.epoch.run.short_bytes(),
        );
        let files = self.catalog.files().iter().filter(|(place, _, name)| {
            let is_data = |name: &&FileName| {
                matches!(name, FileName::Container { .. } | FileName::Stripe { .. })
            };
            let name = name.as_ref().filter(is_data);
            name.and_then(FileName::checkpoint) == Some(of) && self.nodes[*place].is_none()
        });
        let with_files = files.map(|(place, ..)| Some(*place));
        let mut wanted = self.destined.iter().copied().chain(with_files);
        // Breaks if: one record is enough; after a scavenge that was killed between two records,
        // the step would be lost with the directory that has it.
        wanted.all(|place| place.is_some_and(|place| commit.copies.contains(&place)))
            || off(Switch::ScavengeRecorded)
    }

    /// The newest step at level `global` that is whole and recorded there.
    fn newest_global(&self) -> Option<(Step, Epoch)> {
        let mut commits = self.catalog.commits().iter();
        let newest =
            commits.find(|commit| self.is_whole_there(&commit.record) && self.is_recorded(commit));
        newest.map(|commit| (commit.record.step, commit.record.epoch))
    }

    /// Commits of nodes that are newer than this, newest first; and those at level `global` that
    /// are whole, but not recorded everywhere.
    fn newer_than(&self, safe: Option<(Step, Epoch)>) -> impl Iterator<Item = &Commit> {
        let commits = self.catalog.commits().iter();
        commits.filter(move |commit| {
            let record = &commit.record;
            let counts = record.level != Level::Global || self.is_whole_there(record);
            counts && Some((record.step, record.epoch)) > safe
        })
    }

    /// The level of the newest commit of a node: what its nodes may lose.
    #[must_use]
    pub fn losses(&self) -> usize {
        let levels = self
            .catalog
            .commits()
            .iter()
            .map(|commit| commit.record.level);
        match levels.into_iter().find(|level| *level != Level::Global) {
            Some(Level::Peers(losses)) => usize::from(losses),
            _ => 0,
        }
    }

    /// Whether the directory of any node was read.
    #[must_use]
    pub fn has_nodes(&self) -> bool {
        self.nodes.iter().any(Option::is_some)
    }

    /// Steps newer than all that is committed whose containers are on nodes without a commit
    /// record: one line each, newest first.
    #[must_use]
    pub fn undecided(&self) -> Vec<String> {
        let commits = self.catalog.commits().iter().chain(self.catalog.rejected());
        let newest = commits.map(|commit| commit.record.step).max();
        // What a later run has superseded was not to be taken anyway.
        let claims = self.catalog.claims();
        let resumed = claims.iter().rev().find(|(_, resumed)| resumed.is_some());
        let oldest = resumed.map_or(0, |(claim, _)| claim.epoch.counter);
        let files = self.catalog.files().iter();
        let records = files.filter_map(|(_, _, name)| match name {
            Some(name @ FileName::Commit { .. }) => name.checkpoint(),
            _ => None,
        });
        let recorded: BTreeSet<_> = records.collect();
        let mut of: BTreeMap<(Step, u64), BTreeSet<NodeId>> = BTreeMap::new();
        for (_, _, name) in self.catalog.files() {
            // Breaks if: one whose record is damaged counts as never committed.
            if let Some(
                name @ FileName::Container {
                    step, epoch, node, ..
                },
            ) = name
                && Some(*step) > newest
                && *epoch >= oldest
                && !name.checkpoint().is_some_and(|of| recorded.contains(&of))
            {
                of.entry((*step, *epoch)).or_default().insert(*node);
            }
        }
        let line = |((step, epoch), there): ((Step, u64), BTreeSet<NodeId>)| {
            let run = claims
                .iter()
                .find(|(claim, _)| claim.epoch.counter == epoch);
            let names = run.map_or(&[][..], |(claim, _)| &claim.nodes);
            let numbered = (0u32..).map(NodeId).zip(names);
            let missing = numbered.filter(|(node, _)| !there.contains(node));
            let missing: Vec<&str> = missing.map(|(_, name)| name.as_str()).collect();
            let lacks = match missing.is_empty() {
                true => String::new(),
                false => format!(", none of {}", missing.join(", ")),
            };
            format!(
                "step {step} of epoch {epoch} was never committed, so it is not taken ({} hold \
                 containers of it{lacks})",
                count(there.len() as u64, "node")
            )
        };
        of.into_iter().rev().map(line).collect()
    }
}

/// Nodes of the newest run that were neither visible nor answered, and why.
fn unseen(
    catalog: &Catalog,
    seen: &[Option<String>],
    silent: &BTreeMap<String, Error>,
) -> Vec<Unseen> {
    let records = catalog.commits().iter().map(|commit| &commit.record);
    let newest = records.max_by_key(|record| record.epoch);
    let claim = catalog.claims().last().map(|(claim, _)| claim);
    let of_commit = newest.map_or(&[][..], |record| &record.nodes);
    let of_claim = claim.map_or(&[][..], |claim| &claim.nodes);
    let nodes: BTreeSet<&String> = of_commit.iter().chain(of_claim).collect();
    let is_seen = |node: &&String| !seen.iter().flatten().any(|seen| seen == *node);
    let why = |node: &String| Unseen {
        node: node.clone(),
        error: silent.get(node).cloned().unwrap_or_else(|| {
            Error::not_found(format!(
                "the directory of node '{node}' is not here, and no list says where the node is"
            ))
        }),
    };
    nodes.into_iter().filter(is_seen).map(why).collect()
}

/// Whether an older step may be taken all the same.
fn may_be_older(not: &NotCopied) -> bool {
    not.is_lost && !not.error.is(Detail::Held) && !not.error.is(Detail::Undecided)
}

/// The error of a run that is alive, for whoever wants to take its steps.
fn held_by(error: Error) -> Error {
    match error.is(Detail::Held) {
        true => error.next("wait for it or end it; another scavenge ends by itself"),
        false => error,
    }
}
