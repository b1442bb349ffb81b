//! Reports containers without a commit record, which a run is writing or a killed run left.
//!
//! They are reported and never removed from here: it cannot be known from outside whether their run
//! has ended, and whether their record is in a directory that was not given. The next run of the
//! job removes what killed runs left before it writes its first container.
//!
//! Invariants:
//! 1. A container is not reported if another checkpoint refers to it, or may refer to it because
//!    its record cannot be read, or if its checkpoint is marked to be kept.
//!
//! Not here: the removal (engine, `prune/leftovers.rs`).

use std::collections::BTreeSet;

use orcheck_engine::directory::Catalog;
use orcheck_format::disk::FileName;
use orcheck_format::sabotage::{Switch, off};
use orcheck_format::{Decision, Step};
use serde_json::{Value, json};

use crate::output::{Outcome, count, size};

/// Adds them to the report.
pub fn tell(catalog: &Catalog, outcome: &mut Outcome) {
    let files = find(catalog);
    if let Value::Object(document) = &mut outcome.document {
        let file = |(path, bytes): &(String, u64)| json!({ "file": path, "size_bytes": bytes });
        let listed: Vec<Value> = files.iter().map(file).collect();
        document.insert("uncommitted".into(), Value::Array(listed));
    }
    if files.is_empty() {
        return;
    }
    let mut text = format!(
        "left alone: {} without a commit record, {}; the next run of the job removes what killed runs left\n",
        count(files.len() as u64, "container"),
        size(files.iter().map(|(_, bytes)| bytes).sum())
    );
    for (path, bytes) in &files {
        text += &format!("  {path}, {}\n", size(*bytes));
    }
    // The advice about steps that stay must remain the last line.
    let at = outcome.text.find("Next: ").unwrap_or(outcome.text.len());
    outcome.text.insert_str(at, &text);
}

/// Path and length in bytes of each.
fn find(catalog: &Catalog) -> Vec<(String, u64)> {
    let recorded: BTreeSet<(Step, u64, [u8; 4])> = (catalog.files().iter())
        .filter_map(|(_, _, name)| match name {
            Some(name @ FileName::Commit { .. }) => name.checkpoint(),
            _ => None,
        })
        .collect();
    let needed = needed(catalog);
    let unread = catalog.unread();
    let mut found = Vec::new();
    for (place, entry, name) in catalog.files() {
        let Some(
            name @ (FileName::Container { .. } | FileName::Stripe { .. } | FileName::Parity { .. }),
        ) = name
        else {
            continue;
        };
        let Some(checkpoint @ (step, epoch, _)) = name.checkpoint() else {
            continue;
        };
        // Breaks if: only its own record counts; a user would remove data to which whole
        // checkpoints refer.
        let is_needed = needed.contains(&(step, epoch))
            || (unread.iter()).any(|one| one.step > step && one.counter >= epoch);
        if !recorded.contains(&checkpoint) && (!is_needed || off(Switch::NeededOrphans)) {
            let path = catalog.places()[*place].path().join(&entry.name);
            found.push((path.display().to_string(), entry.len_bytes));
        }
    }
    found
}

/// The checkpoints, as steps and epoch counters, to which records refer, or which are marked to be
/// kept.
fn needed(catalog: &Catalog) -> BTreeSet<(Step, u64)> {
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
