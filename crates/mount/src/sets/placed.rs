//! Watches the files of sets in their places, and forgets the mark of a step once they are durable.
//!
//! How: every node tells the others which steps have files that are not durable there. All of them
//! decide from the same reports, and forget a step together.
//!
//! Invariants:
//! 1. A step is forgotten only when its files, and their names, are durable on all nodes.
//! 2. A step that lost bytes anywhere is not forgotten; on that node, its mark says so.
//!
//! Faults survived: failed syncs of files and directories, which are reported.
//!
//! Not here: when files become durable (`lane.rs`); what a mark means after a crash (`back.rs`).

use crate::lane::Lane;
use crate::node::Durability;
use crate::sets::decide::Report;
use crate::sets::gathered::Inode;
use crate::sets::marks::Marks;
use crate::tree::Tree;
use orcheck_format::sabotage::{Switch, off};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Steps with marks whose sets were taken, or refused.
#[derive(Default)]
pub struct Placed(BTreeMap<u64, Files>);

/// The files of a step.
struct Files {
    /// Those that are not known to be durable.
    waiting: Vec<Inode>,
    directories: BTreeSet<PathBuf>,
    /// One of them cannot become durable.
    lost: bool,
}

impl Placed {
    /// Watches the files of one more step.
    pub fn add(&mut self, step: u64, files: Vec<(PathBuf, Inode)>) {
        let above = |(path, _): &(PathBuf, Inode)| path.parent().map(Path::to_owned);
        let directories = files.iter().filter_map(above).collect();
        let waiting = files.into_iter().map(|(_, inode)| inode).collect();
        let lost = false;
        let files = Files {
            waiting,
            directories,
            lost,
        };
        self.0.insert(step, files);
    }

    /// Looks at the files; returns the steps that cannot be forgotten yet. `awaited`: those that
    /// are neither safe nor lost.
    pub fn undurable(&mut self, tree: &Tree, marks: &Marks, awaited: &BTreeSet<u64>) -> Vec<u64> {
        for (step, files) in &mut self.0 {
            let mut lost = false;
            files.waiting.retain(|inode| match tree.durability(*inode) {
                Durability::Durable => false,
                Durability::Later => !off(Switch::SetDurable),
                Durability::Lost => {
                    lost = true;
                    false
                }
            });
            if lost && !files.lost {
                // If this fails, the next mount may believe a sync.
                files.lost = marks.lost(*step).is_ok();
            }
        }
        let open = |(step, files): &(&u64, &Files)| {
            files.lost || !files.waiting.is_empty() || awaited.contains(*step)
        };
        let open = self.0.iter().filter(open);
        open.map(|(step, _)| *step).collect()
    }

    /// Forgets the steps that no node reports.
    pub fn forget(&mut self, reports: &[Report], marks: &Marks, lane: &Lane) {
        let open: BTreeSet<&u64> = reports.iter().flat_map(|one| &one.undurable).collect();
        let durable = self.0.extract_if(.., |step, _| !open.contains(step));
        for (step, files) in durable {
            // Breaks if: nobody is told, or the mark goes; the kernel tells of a failed sync once.
            if let Err(errno) = marks.sync_directories(&files.directories) {
                let _ = marks.lost(step);
                lane.lose(&format!(
                    "the names of the files of step {step} may not be durable ({errno})"
                ));
            } else {
                // The next mount forgets one that stays.
                let _ = marks.forget_step(step);
            }
        }
    }
}
