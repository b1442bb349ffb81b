//! Mending: after nodes were lost, what the run resumed from gets as many copies again as it is to have.
//!
//! How: all nodes know who holds what, so each finds out by itself which copies it has to make: of a container that too few
//! nodes hold, the first of them in the order of a draw brings it to new holders. That goes on in the background while
//! the job computes.
//!
//! Invariants:
//! 1. Every missing copy is made by exactly one node.
//! 2. A copy that cannot be made is said; it harms nothing that is there.
//!
//! Not here: how copies travel (`replicas.rs`).

use crate::remote::Holdings;
use crate::replicas::Replicas;
use orcheck_format::error::{Error, Result};
use orcheck_format::names::FileName;
use orcheck_format::record::CommitRecord;
use orcheck_io::dir::Dir;
use std::collections::BTreeSet;
use std::sync::Arc;

/// A container that this node brings to others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Copy {
    /// Its file.
    pub file: String,
    /// To whom.
    pub to: Vec<u32>,
}

/// What came of mending.
#[derive(Debug, Default)]
pub struct Mended {
    /// Copies that were made.
    pub made: u32,
    /// Why others were not.
    pub errors: Vec<Error>,
}

/// The containers that a restart from this record may read: its own, and the older ones that they refer to.
fn needed(record: &CommitRecord) -> BTreeSet<String> {
    let mut files = BTreeSet::new();
    for container in &record.containers {
        let name = FileName::parse(&container.file);
        let older = container.refers_to.iter();
        files.extend(older.filter_map(|&step| Some(name.as_ref()?.at_step(step).to_string())));
        files.insert(container.file.clone());
    }
    files
}

/// The copies that this node has to make.
///
/// # Errors
/// Invalid when there are not enough nodes for as many copies.
pub fn plan(record: &CommitRecord, holdings: &Holdings, replicas: &Replicas) -> Result<Vec<Copy>> {
    let mut copies = Vec::new();
    for file in needed(record) {
        let len = |node: &Vec<(String, u64)>| {
            node.iter()
                .find(|(name, _)| *name == file)
                .map(|(_, len)| *len)
        };
        // One that was cut off is no copy.
        let longest = holdings.iter().filter_map(len).max();
        let held = (0u32..)
            .zip(holdings)
            .filter(|(_, node)| longest.is_some() && len(node) == longest);
        let held: Vec<u32> = held.map(|(node, _)| node).collect();
        let missing = replicas.copies().saturating_sub(held.len() as u32);
        if missing == 0 || held.first() != Some(&replicas.node()) {
            continue;
        }
        let to = replicas.more(record.step, &held, missing)?;
        copies.push(Copy { file, to });
    }
    Ok(copies)
}

/// Makes the copies, as far as it goes.
pub fn mend(copies: &[Copy], dir: &dyn Dir, replicas: &Arc<Replicas>) -> Mended {
    let mut mended = Mended::default();
    for Copy { file, to } in copies {
        match replicas.copy(dir, file, to) {
            Ok(()) => mended.made += to.len() as u32,
            Err(error) => mended.errors.push(error.at(file)),
        }
    }
    mended
}
