//! Asks the nodes of a job for files that no directory here has: replicas and parity may be in the
//! memory of their agents.
//!
//! Invariants:
//! 1. Nobody is asked for a checkpoint whose files are all here.
//! 2. What a node's directory shows here is not read from its agent again.
//! 3. The wait ends at a stated time; a note names the nodes that do not answer.
//!
//! Not here: how nodes are found and asked (`replicas/members.rs` of the engine).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use orcheck_engine::directory::{Catalog, Commit};
use orcheck_engine::encoding::Trust;
use orcheck_engine::replicas::{Asking, node_dir};
use orcheck_engine::upkeep::parity_files;
use orcheck_format::Level;
use orcheck_format::sabotage::{Switch, off};
use orcheck_io::disk::Dir;
use orcheck_io::failpoints::Failpoints;

use crate::job::{Job, JobDir, PLACED};
use crate::output::Failure;

/// Longest wait until a node says what it holds.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);
/// Longest wait for a piece of a file of another node.
const PIECE_LIMIT: Duration = Duration::from_secs(60);

impl Job {
    /// The job with what its nodes say they hold, if a file of one of these commits is in no
    /// directory here.
    pub fn with_agents(
        self,
        trust: &Trust,
        is_wanted: &dyn Fn(&Job, &Commit) -> bool,
    ) -> Result<Job, Failure> {
        let mut commits = self.catalog.commits().iter();
        let asks = commits.any(|commit| is_wanted(&self, commit) && self.lacks(commit));
        // Breaks if: nobody is asked; good data in the memory of agents would be called lost.
        if !asks || off(Switch::AgentsAsked) {
            return Ok(self);
        }
        let failpoints = Failpoints::none();
        let asking = Asking {
            job: &self.name,
            trust,
            within: ANSWER_LIMIT,
            failpoints: &failpoints,
        };
        let places = self.catalog.places().iter().zip(&self.place_kinds);
        let of_nodes = places.filter(|(_, kind)| *kind != PLACED);
        let dirs: Vec<&dyn Dir> = of_nodes.map(|(dir, _)| dir.as_ref()).collect();
        let mut notes = Vec::new();
        let (answered, silent) = asking.ask(&dirs, &mut notes)?;
        if !silent.is_empty() {
            let silent: Vec<String> = silent.into_keys().collect();
            notes.push(format!(
                "files are missing here, and no agent of {} answered: what it had in memory is not known",
                silent.join(", ")
            ));
        }
        let mut found = self.job_dirs();
        for (at, mut files) in answered {
            let kind = format!("node {}", at.name);
            let here = self.names_in(&kind);
            files.retain(|(name, _)| !here.contains(name.as_str()));
            if !files.is_empty() {
                found.push(JobDir {
                    job: self.name.clone(),
                    dir: node_dir(at, files, PIECE_LIMIT, &failpoints),
                    kind,
                });
            }
        }
        let mut job = Job::of(self.name, found, self.hidden, |name, places| {
            Catalog::scan_trusting(name, places, trust)
        })?;
        job.asked = notes;
        Ok(job)
    }

    /// Whether a file of this commit is in no directory here, and may be in the memory of an agent.
    fn lacks(&self, commit: &Commit) -> bool {
        let record = &commit.record;
        let containers = record.containers.iter().map(|one| one.file.clone());
        let mut files = containers.chain(parity_files(record));
        matches!(record.level, Level::Peers(_))
            && files.any(|file| self.find_file(commit, &file).is_none())
    }

    fn job_dirs(&self) -> Vec<JobDir> {
        let places = self.catalog.places().iter().zip(&self.place_kinds);
        let dir = |(dir, kind): (&Arc<dyn Dir>, &String)| JobDir {
            job: self.name.clone(),
            dir: Arc::clone(dir),
            kind: kind.clone(),
        };
        places.map(dir).collect()
    }

    /// The names of files in places of this kind.
    fn names_in(&self, kind: &str) -> BTreeSet<&str> {
        let files = self.catalog.files().iter();
        let of_kind = files.filter(|(place, ..)| self.place_kinds[*place] == kind);
        of_kind.map(|(_, entry, _)| entry.name.as_str()).collect()
    }
}
