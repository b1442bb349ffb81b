//! Settles which run an epoch counter belongs to, and describes two runs that wrote under one.
//!
//! Two runs take the same counter if neither sees the directories of the other: for example when a
//! job is started on new nodes while those that it ran on are out of reach, and begins from
//! nothing. When all directories are there again, each run has checkpoints of its own, and nothing
//! tells which of them continue the job.
//!
//! Invariants:
//! 1. A claim of a run that wrote nothing restricts nobody.
//! 2. Two runs that wrote under one counter are told apart, until a later run began from nothing,
//!    which supersedes both.
//!
//! Not here: reading the claims (`catalog.rs`).

use super::Scan;
use crate::directory::OTHER_NODES;
use crate::directory::epoch::describe;
use orcheck_format::disk::Claim;
use orcheck_format::{Epoch, Error, JobName, RunId};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::Path;

/// Two runs that wrote under one epoch counter.
pub(super) struct Rivals {
    /// The first such counter.
    pub(super) since: u64,
    /// The newest runs of both, each with the directories that have its claim.
    runs: Vec<(Claim, Vec<String>)>,
}

impl Scan<'_> {
    /// Determines the claim of each epoch counter, and whether two runs wrote under one.
    pub(super) fn settle_claims(&mut self) -> (BTreeMap<u64, Claim>, Option<Rivals>) {
        let mut claims = BTreeMap::new();
        let mut rivals: Option<Rivals> = None;
        for (counter, mut found) in std::mem::take(&mut self.claims) {
            // A run that failed to start may have left its claim; only runs that got further count.
            found.sort_by_key(|(claim, _)| self.wrote(claim.epoch));
            let writers = found.iter().filter(|(claim, _)| self.wrote(claim.epoch));
            if writers.clone().count() > 1 {
                let since = rivals.map_or(counter, |rivals| rivals.since);
                let runs = writers.cloned().collect();
                rivals = Some(Rivals { since, runs });
            }
            if let Some((claim, _)) = found.pop() {
                claims.insert(counter, claim);
            }
        }
        // A run that began from nothing has superseded both.
        let mut later = self.resumed.iter().rev();
        let mut settled = |rivals: &Rivals| {
            let newest = rivals
                .runs
                .iter()
                .map(|(claim, _)| claim.epoch.counter)
                .max();
            later.any(|(counter, resumed)| Some(*counter) > newest && resumed.step.is_none())
        };
        let rivals = match &rivals {
            Some(known) if settled(known) => None,
            _ => rivals,
        };
        if let Some(rivals) = &rivals {
            // Breaks if: the claims stay; one run would hide the other from a listing.
            claims.retain(|counter, _| *counter < rivals.since);
        }
        (claims, rivals)
    }

    /// Whether anything of this run is known but its claim.
    fn wrote(&self, epoch: Epoch) -> bool {
        let is_it = |counter: u64, run: RunId| (counter, run) == (epoch.counter, epoch.run);
        let resumed = self.resumed.get(&epoch.counter);
        resumed.is_some_and(|resumed| is_it(resumed.epoch.counter, resumed.epoch.run))
            || (self.commits.keys()).any(|(_, of, _)| is_it(of.counter, of.run))
    }
}

impl Rivals {
    /// The error of whoever needs to know which of them counts.
    pub(super) fn error(&self, job: &JobName) -> Error {
        let runs: Vec<String> = self.runs.iter().map(described).collect();
        let keep = |(at, (claim, _)): (usize, &(Claim, _))| {
            let others = self
                .runs
                .iter()
                .enumerate()
                .filter(|(other, _)| *other != at);
            let away: Vec<String> = others.map(|(_, run)| places_of(run)).collect();
            format!("to continue run {}, {}", claim.epoch, away.join(" and "))
        };
        let choices: Vec<String> = self.runs.iter().enumerate().map(keep).collect();
        Error::fenced(format!(
            "two runs of job {} began without seeing each other, and both have checkpoints under epoch {}: {}",
            job.as_str(),
            self.since,
            runs.join(" and ")
        ))
        .next(format!(
            "decide which one continues the job: {}; start = 'fresh' gives up both",
            choices.join("; ")
        ))
    }
}

fn described((claim, _): &(Claim, Vec<String>)) -> String {
    format!(
        "run {} on {} ({})",
        claim.epoch,
        claim.nodes.join(", "),
        describe(claim)
    )
}

/// How to put away what a run has.
fn places_of((claim, dirs): &(Claim, Vec<String>)) -> String {
    let here = dirs.iter().filter(|dir| !dir.starts_with(OTHER_NODES));
    let here: Vec<&str> = here.map(String::as_str).collect();
    // What a member of this run has is not among the directories of the one that looks.
    let is_there = |node: &&String| {
        let mut dirs = here.iter();
        dirs.any(|dir| Path::new(dir).file_name() == Some(OsStr::new(node)))
    };
    let there = claim.nodes.iter().filter(|node| !is_there(node));
    let there: Vec<&str> = there.map(String::as_str).collect();
    let mv = (!here.is_empty()).then(|| {
        format!(
            "`mv {} DIR`, where DIR is outside of the job's directories",
            here.join(" ")
        )
    });
    let others = (!there.is_empty())
        .then(|| format!("move away the job's directories on {}", there.join(", ")));
    let both: Vec<String> = mv.into_iter().chain(others).collect();
    both.join(", and ")
}
