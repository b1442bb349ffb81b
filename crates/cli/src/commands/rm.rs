//! Implements `orcheck rm`, which removes checkpoints by hand.
//!
//! How: the engine plans the removals (`choose.rs`), newest step first; they are carried out only
//! if every requested step can be removed.
//!
//! Invariants:
//! 1. With `--dry-run` nothing is changed.
//! 2. Nothing is removed while a directory that may hold a part of it is unreadable.
//!
//! Not here: which files belong to a checkpoint, and what is refused (engine).

use std::collections::BTreeSet;

use orcheck_engine::directory::choose::Removal;
use orcheck_format::{Epoch, Error, Level, Step};
use serde_json::{Value, json};

use crate::args::{RmArgs, Target};
use crate::exit;
use crate::job::not_read;
use crate::job::{Job, trust};
use crate::output::{Failure, Outcome, count, plain, right, size, table, table_text};

/// Removes them.
pub fn run(args: &RmArgs) -> Result<Outcome, Failure> {
    let mut place = args.place.clone();
    let mut steps = BTreeSet::new();
    for target in &args.targets {
        match target {
            Target::Step(step) => {
                steps.insert(*step);
            }
            Target::Dir(dir) => place.anywhere.push(dir.clone()),
        }
    }
    if steps.is_empty() {
        return Err(Error::invalid("no step given")
            .next("name the steps to remove; `orcheck ls` lists them")
            .into());
    }
    let job = Job::open_trusting(&place, &*trust(&args.unlock)?)?;
    all_in_sight(&job)?;
    let (mut removals, mut gone) = (Vec::new(), BTreeSet::new());
    for &step in steps.iter().rev() {
        let removal = Removal::plan_after(&job.catalog, step, None, &gone).map_err(|error| {
            let error = error.at(format!("job {}", job.name.as_str()));
            match error.next_step() {
                Some(_) => not_read(error),
                None => job.unread_file(error),
            }
        })?;
        gone.insert((removal.step, removal.epoch));
        removals.push(removal);
    }
    carry_out(&job, &removals, args.dry_run, Vec::new())
}

/// Refuses while a directory is unreadable: a part of a checkpoint would stay there.
pub fn all_in_sight(job: &Job) -> Result<(), Failure> {
    match job.out_of_sight() {
        None => Ok(()),
        Some(hidden) => {
            let error = Error::unavailable(format!(
                "nothing was removed, because a part of it may be in {}: {}",
                hidden.path,
                hidden.error.what()
            ));
            Err(Failure::with(exit::UNREACHABLE, hidden.advise(error)))
        }
    }
}

/// Removes what was planned, in this order, and reports what was removed; `stay` is what stays,
/// with the reasons.
pub fn carry_out(
    job: &Job,
    removals: &[Removal],
    dry_run: bool,
    stay: Vec<(Step, Epoch, Error)>,
) -> Result<Outcome, Failure> {
    if !dry_run {
        for removal in removals {
            removal.carry_out()?;
        }
    }
    let bytes: u64 = removals.iter().map(|removal| removal.bytes).sum();
    let mut shown = table(&["step", "epoch", "levels", "files", "size"]);
    for removal in removals {
        shown.add_row([
            right(removal.step),
            plain(removal.epoch),
            plain(levels(&removal.levels).join(", ")),
            right(removal.files),
            right(size(removal.bytes)),
        ]);
    }
    let verb = match dry_run {
        true => "would remove",
        false => "removed",
    };
    let mut text = format!(
        "job {}: {verb} {}, {}\n",
        job.name.as_str(),
        count(removals.len() as u64, "checkpoint"),
        size(bytes)
    );
    if !removals.is_empty() {
        text += &table_text(&shown);
    }
    for (step, _, why) in &stay {
        text += &format!("step {step} stays: {}\n", why.what());
    }
    if let Some(next) = stay.iter().find_map(|(_, _, why)| why.next_step()) {
        text += &format!("Next: {next}\n");
    }
    let document = json!({
        "job": job.name.as_str(),
        "dry_run": dry_run,
        "size_bytes": bytes,
        "removed": removals.iter().map(document_of).collect::<Vec<Value>>(),
        "stay": stay.iter().map(|(step, epoch, why)| json!({
            "step": step.0,
            "epoch": epoch.to_string(),
            "why": why.what(),
            "next": why.next_step(),
        })).collect::<Vec<Value>>(),
        "notes": job.notes(),
    });
    // Breaks if: it is 0; a script would take a full disk for a pruned one.
    let code = match stay.is_empty() {
        true => exit::OK,
        false => exit::PARTIAL,
    };
    Ok(Outcome {
        code,
        text,
        document,
        warnings: job.notes(),
    })
}

fn document_of(removal: &Removal) -> Value {
    json!({
        "step": removal.step.0,
        "epoch": removal.epoch.to_string(),
        "levels": levels(&removal.levels),
        "files": removal.files,
        "size_bytes": removal.bytes,
    })
}

fn levels(levels: &[Level]) -> Vec<String> {
    levels.iter().map(ToString::to_string).collect()
}
