//! Finds the checkpoints that a run can resume from.
//!
//! The lead lists candidates, and every rank checks whether it can open what it needs of one; the
//! client lets the ranks agree.
//!
//! Invariants:
//! 1. Checkpoints that cannot be read never look like none.
//!
//! Survives: damaged records and foreign files. Not here: opening and reading a candidate
//! (`view.rs`), agreement among ranks (crate `client`), epochs (`epoch.rs`).

use crate::directory::{Catalog, Commit, OTHER_NODES, Places, Unread};
use crate::encoding::{Trust, other_key};
use orcheck_format::disk::FileName;
use orcheck_format::sabotage::{Switch, off};
use orcheck_format::{Epoch, Error, ErrorKind, JobName, Result, Step, count, without_next};
use orcheck_io::disk::Dir;
use std::sync::Arc;

/// A checkpoint that may be restartable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Candidate {
    /// Its step.
    pub step: Step,
    /// The run that wrote it.
    pub epoch: Epoch,
}

/// What the directories offer to resume from.
#[derive(Debug, Default)]
pub struct Offer {
    /// Newest first.
    pub candidates: Vec<Candidate>,
    /// What the scan skipped, for the user.
    pub notes: Vec<String>,
    /// Containers newer than all candidates, without a commit record; for the user.
    pub uncommitted: Option<String>,
    /// Checkpoints that would count if the program had not rejected them.
    pub rejected: Vec<Candidate>,
    /// The error if a checkpoint newer than all candidates has a commit record, but no copy can
    /// be read.
    pub hidden: Option<Error>,
    /// Whether everything could be read that may count.
    pub whole: bool,
}

/// Finds the candidates, newest first, and what the scan skipped.
///
/// # Errors
/// The error of [`Catalog::scan`]; its first problem if no candidate is left.
pub fn candidates(job: &JobName, places: &Places) -> Result<Offer> {
    let catalog = Catalog::scan_trusting(job, &places.all(), &places.trust)?;
    let mut candidates: Vec<Candidate> = Vec::new();
    for candidate in catalog.commits().iter().map(candidate_of) {
        if !candidates.contains(&candidate) {
            candidates.push(candidate);
        }
    }
    // If there is no checkpoint at all, this is a fresh start; unreadable checkpoints must never
    // look like one.
    if candidates.is_empty()
        && let Some(problem) = catalog.problems().first()
        && !off(Switch::NeverAfresh)
    {
        if let Some(refused) = catalog.refused() {
            let place = format!("job '{}' has no authentic checkpoint", job.as_str());
            return Err(refused.clone().at(place));
        }
        return Err(Error::new(
            problem.kind(),
            format!(
                "job '{}' may have checkpoints, but none can be read: {}",
                job.as_str(),
                catalog
                    .notes()
                    .iter()
                    .map(|note| without_next(note))
                    .collect::<Vec<_>>()
                    .join("; ")
            ),
        )
        .next("run `orcheck verify`; set start = 'fresh' to begin from nothing"));
    }
    Ok(Offer {
        hidden: of_another_key(&catalog).or_else(|| hidden(&catalog)),
        rejected: catalog.rejected().iter().map(candidate_of).collect(),
        candidates,
        notes: catalog.notes().to_vec(),
        uncommitted: uncommitted(&catalog),
        whole: catalog.problems().is_empty(),
    })
}

fn candidate_of(commit: &Commit) -> Candidate {
    Candidate {
        step: commit.record.step,
        epoch: commit.record.epoch,
    }
}

/// What the directories of level `node` hold that one node reads: its own, and with replicas those
/// of others.
#[derive(Debug, Default)]
pub struct NodeView {
    /// Newest checkpoint of level `node` that counts, according to them.
    pub newest: Option<Candidate>,
    /// The nodes that wrote it.
    pub nodes: Vec<String>,
    /// Epoch counters in which they took part.
    pub claims: Vec<u64>,
    /// Checkpoints that a later run superseded.
    pub fenced: Vec<Candidate>,
    /// Checkpoints that the program rejected.
    pub rejected: Vec<Candidate>,
}

/// Reads directories of level `node`; empty if there are none.
///
/// # Errors
/// The error of [`Catalog::scan`].
pub fn node_view(job: &JobName, dirs: &[Arc<dyn Dir>], trust: &Trust) -> Result<NodeView> {
    if dirs.is_empty() {
        return Ok(NodeView::default());
    }
    let catalog = Catalog::scan_trusting(job, dirs, trust)?;
    Ok(NodeView {
        newest: catalog.commits().first().map(candidate_of),
        nodes: catalog
            .commits()
            .first()
            .map_or_else(Vec::new, |newest| newest.record.nodes.clone()),
        claims: catalog
            .claims()
            .iter()
            .map(|(claim, _)| claim.epoch.counter)
            .collect(),
        fenced: catalog.fenced().iter().map(candidate_of).collect(),
        rejected: catalog.rejected().iter().map(candidate_of).collect(),
    })
}

/// Describes the newest step that has containers but no commit record, if it is newer than all
/// commits and no later run has passed it: a run ended before the commit, or somebody removed the
/// record.
fn uncommitted(catalog: &Catalog) -> Option<String> {
    let known = (catalog.commits().iter()).chain(catalog.rejected());
    let newest = known.map(|commit| commit.record.step).max();
    let resumed = catalog.claims().iter();
    let passed = resumed.filter_map(|(_, resumed)| Some(resumed.as_ref()?.epoch.counter));
    let passed = passed.max().unwrap_or(0);
    let with_record = |step: Step, epoch: u64, run: [u8; 4]| {
        let mut names = catalog
            .files()
            .iter()
            .filter_map(|(_, _, name)| name.as_ref());
        names.any(|name| {
            matches!(name, FileName::Commit { .. }) && name.checkpoint() == Some((step, epoch, run))
        })
    };
    let containers = catalog
        .files()
        .iter()
        .filter_map(|(place, _, name)| match name {
            Some(FileName::Container {
                step, epoch, run, ..
            }) => Some((*step, *epoch, *run, *place)),
            _ => None,
        });
    let containers: Vec<_> = containers
        .filter(|(step, epoch, ..)| Some(*step) > newest && *epoch >= passed)
        .collect();
    let (step, epoch, run, place) = containers.iter().copied().max()?;
    if with_record(step, epoch, run) || off(Switch::UncommittedSaid) {
        return None;
    }
    let files = containers
        .iter()
        .filter(|(s, e, r, _)| (*s, *e, *r) == (step, epoch, run))
        .count() as u64;
    let which = if files == 1 { "" } else { "the last of them " };
    Some(format!(
        "step {step} of epoch {epoch} has {}, {}, and no commit record: its run ended before it was committed, or the record was removed",
        count(files, "container"),
        match catalog.places()[place].path() {
            path if path.starts_with(OTHER_NODES) => format!("{which}on another node"),
            path => format!("{which}in {}", path.display()),
        }
    ))
}

/// Invalid if a checkpoint newer than all believed ones was sealed with a key that was not given.
/// An older checkpoint in its place would lose what was computed since, because of a forgotten key.
fn of_another_key(catalog: &Catalog) -> Option<Error> {
    let newest = catalog.commits().first().map(|commit| commit.record.step);
    let step = catalog.other_key().filter(|&step| Some(step) > newest)?;
    let told = other_key(&format!("step {step} was sealed with another key"));
    (!off(Switch::OtherKeyNewer)).then_some(told)
}

/// The newest checkpoint with commit records but no readable one, if it is newer than all readable
/// ones.
fn hidden(catalog: &Catalog) -> Option<Error> {
    let newest = catalog.commits().first().map(|commit| commit.record.step);
    let unread = catalog.unread().iter();
    let newer = unread.filter(|one| !one.elsewhere && Some(one.step) > newest);
    let newer: Vec<&Unread> = newer.collect();
    let newest = newer.iter().map(|one| (one.step, &one.file)).max()?;
    let copies = || newer.iter().filter(|one| (one.step, &one.file) == newest);
    // A newer version wrote one of its records: damage to others is no reason to supersede it.
    let kind = match copies().any(|one| one.why.kind() == ErrorKind::Unsupported) {
        true => ErrorKind::Unsupported,
        false => ErrorKind::Corrupt,
    };
    let step = newest.0;
    let why: Vec<String> = copies()
        .map(|one| format!("{}: {}", one.path(catalog), one.why.what()))
        .collect();
    Some(
        Error::new(
            kind,
            format!(
                "no commit record of step {step} can be read: {}",
                why.join("; ")
            ),
        )
        .next("check the storage; without strict, an older step is used"),
    )
}
