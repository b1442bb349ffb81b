//! Containers that killed runs left without a commit record.
//!
//! Invariants:
//! 1. While a run of the job is alive none goes: what it is writing has no record yet, and it removes what others left by
//!    itself. Neither does one whose run may be alive: the lock of its claim is held, or not known to be free.
//! 2. None goes while its record may lie in a directory that was not given. Those of level `global` need all directories
//!    that the records here name, of which there must be one; those of a node all directories of the nodes of its run.
//! 3. None goes that another checkpoint refers to, or may refer to because its record cannot be read; none of a checkpoint that is
//!    marked to be kept.
//! 4. Before the first one goes it is durable that there is no record.
//!
//! Not here: what the next run removes by itself (engine, `prune/leftovers.rs`).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use orcheck_engine::catalog::{Catalog, Commit};
use orcheck_engine::epoch::{is_free, is_locked};
use orcheck_engine::halt::Run;
use orcheck_engine::trust::Trust;
use orcheck_format::choice::Decision;
use orcheck_format::sabotage::{Switch, off};
use orcheck_format::{Error, ErrorKind, FileName, Level, Result};
use orcheck_io::Dir;
use serde_json::{Value, json};

use crate::job::PLACED;
use crate::output::{Outcome, count, size};

/// What goes.
pub struct Orphans {
    /// Directory, name and length in bytes.
    files: Vec<(Arc<dyn Dir>, String, u64)>,
    /// The directories of the job, and the newest epoch that was claimed there.
    places: Vec<Arc<dyn Dir>>,
    newest: u64,
}

impl Orphans {
    /// Those of the directories of a job.
    pub fn plan(catalog: &Catalog, kinds: &[String]) -> Result<Self> {
        let mut this = Self {
            files: Vec::new(),
            places: catalog.places().to_vec(),
            newest: 0,
        };
        let Some(newest) = over_since(&this.places)? else {
            return Ok(this);
        };
        this.newest = newest;
        let recorded: BTreeSet<(u64, u64, [u8; 4])> = (catalog.files().iter())
            .filter_map(|(_, _, name)| match name {
                Some(name @ FileName::Commit { .. }) => name.checkpoint(),
                _ => None,
            })
            .collect();
        let needed = needed(catalog);
        let unread = catalog.unread();
        let mut over = BTreeMap::new();
        for (place, entry, name) in catalog.files() {
            let Some(name @ (FileName::Container { .. } | FileName::Stripe { .. })) = name else {
                continue;
            };
            let Some(checkpoint) = name.checkpoint() else {
                continue;
            };
            let epoch = checkpoint.1;
            let is_over = *over.entry(epoch).or_insert_with(|| is_over(catalog, epoch));
            // Breaks if: only its own record counts; newer checkpoints that are whole would lose what they refer to.
            let is_needed = needed.contains(&(checkpoint.0, epoch))
                || (unread.iter()).any(|one| one.step > checkpoint.0 && one.counter >= epoch);
            let orphaned = !recorded.contains(&checkpoint) && epoch <= newest && is_over;
            if orphaned
                && (!is_needed || off(Switch::NeededOrphans))
                && all_given(catalog, kinds, *place, epoch)
            {
                let dir = Arc::clone(&catalog.places()[*place]);
                this.files.push((dir, entry.name.clone(), entry.len_bytes));
            }
        }
        Ok(this)
    }

    /// Removes them.
    pub fn remove(&self) -> Result<()> {
        // Breaks if: it is not asked again; `orcheck copy` may have put good containers in their place.
        if !self.files.is_empty() && over_since(&self.places)? != Some(self.newest) {
            return Err(Error::unavailable(
                "nothing was removed, because a run of the job has begun meanwhile",
            )
            .next("wait until it has ended"));
        }
        if !self.files.is_empty() {
            // Breaks if: a command that removed the record, and was killed before that was durable, is not made good; after a power
            // loss the record would be back without its containers.
            self.places.iter().try_for_each(|dir| dir.sync())?;
        }
        for (dir, name, _) in &self.files {
            match dir.remove(name) {
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    return Err(error.at(format!("removing {name}")));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Adds them to what is told.
    pub fn tell(&self, dry_run: bool, outcome: &mut Outcome) {
        let bytes: u64 = self.files.iter().map(|(_, _, bytes)| bytes).sum();
        if let Value::Object(document) = &mut outcome.document {
            let path = |(dir, name, bytes): &(Arc<dyn Dir>, String, u64)| json!({ "file": dir.path().join(name).display().to_string(), "size_bytes": bytes });
            let files: Vec<Value> = self.files.iter().map(path).collect();
            document.insert("uncommitted".into(), Value::Array(files));
        }
        if self.files.is_empty() {
            return;
        }
        let verb = match dry_run {
            true => "would remove",
            false => "removed",
        };
        let mut text = format!(
            "{verb} {} without a commit record, {}\n",
            count(self.files.len() as u64, "container"),
            size(bytes)
        );
        for (dir, name, bytes) in &self.files {
            text += &format!("  {}, {}\n", dir.path().join(name).display(), size(*bytes));
        }
        // What to do about steps that stay is the last line.
        let at = outcome.text.find("Next: ").unwrap_or(outcome.text.len());
        outcome.text.insert_str(at, &text);
    }
}

/// The checkpoints, as steps and epoch counters, that records refer to or that somebody wants to stay.
fn needed(catalog: &Catalog) -> BTreeSet<(u64, u64)> {
    let records = catalog.commits().iter().chain(catalog.rejected());
    let referred = records.chain(catalog.fenced()).flat_map(|commit| {
        let record = &commit.record;
        let steps = record.refers_to().into_iter();
        steps.map(|step| (step, record.epoch.counter))
    });
    let marked = (catalog.files().iter()).filter_map(|(_, _, name)| match name {
        Some(FileName::Choice {
            step,
            epoch,
            decision: Decision::Kept,
            ..
        }) => Some((*step, *epoch)),
        _ => None,
    });
    referred.chain(marked).collect()
}

/// The newest epoch that was claimed, if its run is not alive.
fn over_since(places: &[Arc<dyn Dir>]) -> Result<Option<u64>> {
    let newest = Run::newest(places, &Trust::default())?.filter(|run| !run.lives);
    Ok(newest.map(|run| run.claim.epoch.counter))
}

/// Whether the run of this epoch is known to have ended.
fn is_over(catalog: &Catalog, epoch: u64) -> bool {
    let places = || catalog.places().iter().map(Arc::as_ref);
    // Breaks if: one free lock is enough; a node's copy of a claim is never locked.
    let lives = places().any(|dir| is_locked(dir, epoch).unwrap_or(true));
    !lives && places().any(|dir| is_free(dir, epoch))
}

/// Whether all directories were given in which the record of a container may lie that is in this place.
fn all_given(catalog: &Catalog, kinds: &[String], place: usize, epoch: u64) -> bool {
    let given = |kind: &str| kinds.iter().filter(|other| *other == kind).count();
    if kinds[place] == PLACED {
        let commits = catalog.commits().iter().chain(catalog.rejected());
        let commits = commits.chain(catalog.fenced());
        let placed = |commit: &&Commit| commit.record.level == Level::Global;
        let servers = commits
            .filter(placed)
            .map(|commit| commit.record.servers.len());
        return servers
            .max()
            .is_some_and(|servers| servers <= given(PLACED));
    }
    let mut claims = catalog.claims().iter();
    claims
        .find(|(claim, _)| claim.epoch.counter == epoch)
        .is_some_and(|(claim, _)| {
            claim
                .nodes
                .iter()
                .all(|node| given(&format!("node {node}")) > 0)
        })
}
