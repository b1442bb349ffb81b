//! Removes what earlier runs left over, before the first container of this run is written; see
//! `prune/leftovers.rs` of the engine.
//!
//! Not here: what counts as left over.

use crate::session::Session;
use orcheck_engine::directory::prune::KeepRule;
use orcheck_engine::directory::prune::leftovers::Leftovers;
use orcheck_format::{Level, Rank};
use std::collections::BTreeSet;

impl Session {
    /// Removes it, once the record of what the run resumed from is durable in all directories. The
    /// agreement on the first checkpoint, which follows, keeps every rank from handing over a
    /// snapshot before everything is removed.
    pub(super) fn remove_leftovers(&mut self) {
        let mut levels = Vec::new();
        if self.rank == Rank(0) {
            levels.push(Level::Global);
        }
        if self.link.layout.leads_node(self.rank) {
            levels.push(self.link.places.node_level());
        }
        let from = self.resume.from;
        let rule = KeepRule {
            keep: self.options.keep,
            epoch: self.link.epoch,
            resumed: from.map(|(step, epoch)| (step, epoch.counter)),
            committed: BTreeSet::new(),
        };
        for level in levels {
            let dirs = self.link.places.of_level(level);
            if dirs.is_empty() {
                continue;
            }
            let left = Leftovers {
                job: &self.job,
                trust: &self.link.places.trust,
                dirs: &dirs,
                level,
                // A node sees only its own records.
                complete: level == Level::Global
                    && dirs.len() == self.link.places.server_roots.len(),
                rule: &rule,
            };
            if let Err(error) = left.remove() {
                // Keeping too much loses nothing; the first commit tries again.
                self.warnings.push(format!("prune: {error}"));
            }
        }
    }
}
