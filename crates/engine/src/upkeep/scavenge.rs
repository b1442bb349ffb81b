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
//! 5. Sources are only read. The claim that the copy holds keeps a second scavenge, and a run that
//!    begins meanwhile, out of the destination.
//!
//! Faults survived: those of `copying.rs`; nodes that are gone, stall or die while they are read;
//! damaged containers (another copy, or the next older step, is taken).
//!
//! Not here: what agents on this machine still flush (`host::agent`; whoever calls this waits for
//! them), what is refused (`copying/allowed.rs`).

use crate::directory::epoch::{highest_counter, wait_for_holder};
use crate::directory::{Catalog, Commit};
use crate::encoding::Trust;
use crate::replicas::{NodeAt, Rebuilt, keeper_of, list_all, merge, node_dir, remembered};
use crate::upkeep::copying::{Copied, Destination, Order, Plan, Tick};
use orcheck_format::disk::{CommitRecord, FileName, Member};
use orcheck_format::sabotage::{Switch, off};
use orcheck_format::{
    Detail, Epoch, Error, ErrorKind, JobName, Level, NodeId, Rank, Result, Step, count,
};
use orcheck_io::clock::Clock;
use orcheck_io::disk::Dir;
use orcheck_io::failpoints::Failpoints;
use std::collections::{BTreeMap, BTreeSet};
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
}

/// A step that was not taken.
#[derive(Debug, Clone)]
pub struct Left {
    /// The step.
    pub step: Step,
    /// Its level.
    pub level: Level,
    /// What is missing or damaged.
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
        let mut here = here;
        // What is there already counts as well.
        for destination in &self.destinations {
            let dir = destination.there()?;
            let known = |dir: &Arc<dyn Dir>| here.iter().any(|one| one.dir.path() == dir.path());
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
        let members = self.members(&here, &mut notes)?;
        let (found, silent) = self.ask(&members)?;
        let asked = found.iter().filter_map(|one| one.node.clone()).collect();
        let (mut places, mut nodes) = (dirs, Vec::new());
        nodes.extend(here.into_iter().map(|one| one.node));
        for source in found {
            places.push(source.dir);
            nodes.push(source.node);
        }
        let catalog = Catalog::scan_trusting(self.job, &places, self.trust)?;
        let unseen = unseen(&catalog, &nodes, &silent);
        notes.extend(catalog.notes().iter().cloned());
        Ok(Held {
            catalog,
            asked,
            unseen,
            notes,
            nodes,
        })
    }

    /// The nodes of the last runs, by the lists in these directories.
    fn members(&self, here: &[Source], notes: &mut Vec<String>) -> Result<Vec<Member>> {
        let mut known = BTreeMap::new();
        for source in here.iter().filter(|one| one.node.is_some()) {
            let dir = source.dir.as_ref();
            let next = highest_counter(std::slice::from_ref(&source.dir))? + 1;
            let listed = remembered(dir, (self.job, next), self.trust, notes)?;
            merge(&mut known, listed);
        }
        Ok(known.into_values().collect())
    }

    /// What these nodes hold, and the errors of those that do not answer. A node whose directory is
    /// visible is asked as well: its agent may have replicas in memory.
    fn ask(&self, members: &[Member]) -> Result<(Vec<Source>, BTreeMap<String, Error>)> {
        let (mut found, mut silent) = (Vec::new(), BTreeMap::new());
        let mut at: Vec<NodeAt> = Vec::new();
        for member in members {
            match keeper_of(member) {
                Ok(node) => at.push(node),
                Err(error) => drop(silent.insert(member.name.clone(), error)),
            }
        }
        let nodes: Vec<&NodeAt> = at.iter().collect();
        let own = (Rank(0), NodeId(0));
        let answers = match off(Switch::ScavengeAsks) {
            true => Vec::new(),
            false => list_all(&nodes, own, &self.failpoints, self.answer.0)?,
        };
        for (node, answer) in nodes.into_iter().zip(answers) {
            match answer {
                Ok(files) => found.push(Source {
                    node: Some(node.name.clone()),
                    dir: node_dir(node.clone(), files, self.answer.1, &self.failpoints),
                }),
                Err(error) => drop(silent.insert(node.name.clone(), error)),
            }
        }
        Ok((found, silent))
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
        for commit in held.newer_than(safe) {
            let record = &commit.record;
            let known = |left: &Left| left.step == record.step;
            match self.one(held, commit, dry_run, clock, tick)? {
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
        let order = Order {
            job: self.job,
            catalog: &held.catalog,
            commit,
            places: held.of_nodes(),
            trust: self.trust,
            level: Level::Global,
            destinations: self.destinations.clone(),
            compress: None,
            patience: self.patience,
        };
        let plan = match order.plan(clock) {
            Ok(plan) => plan,
            Err(error) if is_of_sources(&error) => return Ok(Err(error)),
            Err(error) => return Err(held_by(error)),
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
            Err(error) if !stops && is_of_sources(&error) => Ok(Err(error)),
            Err(error) => Err(held_by(error)),
        }
    }
}

impl Held {
    /// The directories of nodes, and what can be computed from their parity.
    fn of_nodes(&self) -> Vec<Arc<dyn Dir>> {
        let numbered = self.catalog.places().iter().zip(&self.nodes);
        let of_nodes = numbered.filter(|(_, node)| node.is_some());
        let mut dirs: Vec<Arc<dyn Dir>> = of_nodes.map(|(dir, _)| Arc::clone(dir)).collect();
        dirs.extend(Rebuilt::of(&dirs));
        dirs
    }

    /// The newest step at level `global` that is whole there, as far as names and lengths tell.
    fn newest_global(&self) -> Option<(Step, Epoch)> {
        let there = |record: &CommitRecord| {
            record.containers.iter().all(|container| {
                let mut files = self.catalog.files().iter();
                files.any(|(place, entry, _)| {
                    self.nodes[*place].is_none()
                        && (&entry.name, entry.len_bytes) == (&container.file, container.len_bytes)
                })
            })
        };
        let mut commits = self.catalog.commits().iter().map(|commit| &commit.record);
        let newest = commits.find(|record| record.level == Level::Global && there(record));
        newest.map(|record| (record.step, record.epoch))
    }

    /// Commits of nodes that are newer than this, newest first.
    fn newer_than(&self, safe: Option<(Step, Epoch)>) -> impl Iterator<Item = &Commit> {
        let commits = self.catalog.commits().iter();
        commits.filter(move |commit| {
            let record = &commit.record;
            record.level != Level::Global && Some((record.step, record.epoch)) > safe
        })
    }

    /// The level of the newest commit of a node: what its nodes may lose.
    #[must_use]
    pub fn losses(&self) -> usize {
        let newest = self.newer_than(None).next();
        newest.map_or(0, |commit| match commit.record.level {
            Level::Peers(losses) => usize::from(losses),
            _ => 0,
        })
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
        let mut of: BTreeMap<(Step, u64), BTreeSet<NodeId>> = BTreeMap::new();
        for (_, _, name) in self.catalog.files() {
            if let Some(FileName::Container {
                step, epoch, node, ..
            }) = name
                && Some(*step) > newest
                && *epoch >= oldest
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
                "step {step} of epoch {epoch} was never committed, and is not taken: there are \
                 containers of {}{lacks}",
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

/// Whether an older step may be whole all the same.
fn is_of_sources(error: &Error) -> bool {
    let is_lost = matches!(
        error.kind(),
        ErrorKind::NotFound | ErrorKind::Corrupt | ErrorKind::Unavailable
    );
    is_lost && !error.is(Detail::Held) && !error.is(Detail::Undecided)
}

/// The error of a run that is alive, for whoever wants to take its steps.
fn held_by(error: Error) -> Error {
    match error.is(Detail::Held) {
        true => error.next("wait for it or end it; another scavenge ends by itself"),
        false => error,
    }
}
