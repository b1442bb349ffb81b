//! Implements `orcheck copy`, which copies a checkpoint to another level, such as from the nodes to
//! the file system.
//!
//! How: the sources are found as in `verify`; the engine does the rest (`copying.rs`).
//!
//! Invariants:
//! 1. With `--dry-run` nothing is changed.
//! 2. Without `--step`, the newest committed step is copied. If it is not complete here, or its
//!    record cannot be used, no older step replaces it: an error names it.
//!
//! Not here: what a copy is, and what is refused (engine).

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use orcheck_engine::directory::Commit;
use orcheck_engine::encoding::Trust;
use orcheck_engine::upkeep::copying::{Copied, Destination, Order, Plan};
use orcheck_format::disk::{CommitRecord, Compression};
use orcheck_format::{Detail, Error, ErrorKind, JobName, Level};
use orcheck_io::clock::SystemClock;
use orcheck_io::disk::Dir;
use orcheck_io::failpoints::Failpoints;
use orcheck_io::user::env_var;
use orcheck_staging::client::shown;
use orcheck_staging::open_shared;
use serde_json::{Value, json};

use crate::args::{CopyArgs, CopyCompress, Target, Which};
use crate::commands::verify;
use crate::job::holds_files;
use crate::job::{Job, group, trust};
use crate::output::{Failure, Outcome, count, plain, progress_bar, right, size, table, table_text};
use crate::{exit, stop};

/// Level of the compressor if compression is requested.
const COMPRESS_LEVEL: i32 = 1;
/// How long to wait for a run that has just ended to release the destination directories.
const PATIENCE: Duration = Duration::from_secs(5);

/// Copies one checkpoint.
pub fn run(args: &CopyArgs, show_progress: bool) -> Result<Outcome, Failure> {
    stop::install()?;
    let which = which(args)?;
    let trust = trust(&args.unlock)?;
    let roots = roots(args)?;
    let job = Job::open_trusting(&which.place(&args.place), &trust)?;
    let commit = pick(&job, &which)?;
    refuse_older(&job, commit, &which, &trust, show_progress)?;
    let record = &commit.record;
    let order = Order {
        job: &job.name,
        catalog: &job.catalog,
        commit,
        places: job.places_to_read(commit),
        trust: &trust,
        level: args.to,
        destinations: destinations(args, &roots, record)?,
        compress: args.compress.map(|how| match how {
            CopyCompress::None => (Compression::None, COMPRESS_LEVEL),
            CopyCompress::Zstd => (Compression::Zstd, COMPRESS_LEVEL),
            CopyCompress::Lz4 => (Compression::Lz4, COMPRESS_LEVEL),
        }),
        patience: PATIENCE,
        again: None,
    };
    let failed = |error: Error| explain((&job, commit, &which), &trust, show_progress, error);
    let clock = SystemClock::new();
    let plan = order.plan(&clock).map_err(|not| failed(not.error))?;
    let mut notes = job.notes();
    if args.dry_run {
        notes.extend(plan.notes.iter().cloned());
        return Ok(outcome(&order, &plan, None, notes));
    }
    let bar = progress_bar(show_progress);
    bar.set_length(plan.containers.iter().map(|one| one.region_bytes).sum());
    let copied = order.carry_out(&plan, &clock, &mut |done| {
        bar.set_position(done);
        match stop::requested() {
            None => Ok(()),
            Some(_) => Err(Error::unavailable(
                "stopped by a signal; what was written of the copy was removed",
            )),
        }
    });
    bar.finish_and_clear();
    let copied = copied.map_err(|not| match stop::requested() {
        Some(code) => Failure::with(code, not.error),
        None => failed(not.error),
    })?;
    notes.extend(copied.notes.iter().cloned());
    Ok(outcome(&order, &plan, Some(&copied), notes))
}

/// The step to copy.
fn which(args: &CopyArgs) -> Result<Which, Failure> {
    let mut targets = args.which.targets.clone();
    match (args.step, args.which.step()) {
        (Some(step), Some(other)) if step != other => {
            let error = Error::invalid(format!(
                "--step {step} and step {other} contradict each other"
            ));
            return Err(error.next("leave out one of the two").into());
        }
        (step, _) => targets.extend(step.map(Target::Step)),
    }
    Ok(Which {
        targets,
        level: args.which.level,
    })
}

/// The destination roots.
fn roots(args: &CopyArgs) -> Result<Vec<PathBuf>, Failure> {
    let (given, other, flag, variable) = match args.to {
        Level::Node => (
            args.node_root.iter().cloned().collect(),
            !args.global.is_empty(),
            "--node-root",
            "ORCHECK_NODE_DIR",
        ),
        _ => (
            args.global.clone(),
            args.node_root.is_some(),
            "--global",
            "ORCHECK_GLOBAL",
        ),
    };
    if other {
        let error = Error::invalid(format!("--to {} goes with {flag}", args.to));
        return Err(error.next(format!("give {flag} ROOT")).into());
    }
    let listed = env_var(variable).filter(|_| given.is_empty());
    let listed = listed.unwrap_or_default();
    let listed = listed
        .split(',')
        .map(str::trim)
        .filter(|root| !root.is_empty());
    let roots: Vec<PathBuf> = listed.map(PathBuf::from).chain(given).collect();
    match &roots[..] {
        [] => Err(Error::invalid("no directory is given to copy to")
            .next(format!("give {flag} ROOT, or set {variable}"))
            .into()),
        [_, _, ..] if args.to == Level::Node => {
            Err(Error::invalid(format!("{flag}: expected one directory"))
                .next(format!("give {flag} once"))
                .into())
        }
        _ => Ok(roots),
    }
}

/// Where containers go: a directory for each root or, at level `node`, one for each node below the
/// single root.
fn destinations(
    args: &CopyArgs,
    roots: &[PathBuf],
    record: &CommitRecord,
) -> Result<Vec<Destination>, Failure> {
    let job = record.job.as_str();
    if args.to != Level::Node {
        return global_destinations(&record.job, args.group.as_deref(), roots);
    }
    let group = group(args.group.as_deref())?;
    let mut all = Vec::new();
    for root in roots {
        let dir = open_root(root, group)?;
        all.extend(record.nodes.iter().map(|node| {
            let below = vec![job.to_owned(), node.clone()];
            let name = root.join(job).join(node).display().to_string();
            Destination::new(dir.clone(), below, name)
        }));
    }
    Ok(all)
}

/// The directories of a job at level `global` below these roots.
pub(super) fn global_destinations(
    job: &JobName,
    shared_with: Option<&str>,
    roots: &[PathBuf],
) -> Result<Vec<Destination>, Failure> {
    let group = group(shared_with)?;
    let destination = |root: &PathBuf| {
        let below = vec![job.as_str().to_owned()];
        Ok(Destination::new(
            open_root(root, group)?,
            below,
            name_of(root),
        ))
    };
    roots.iter().map(destination).collect()
}

/// A root that is copied to.
fn open_root(root: &Path, group: Option<u32>) -> Result<Arc<dyn Dir>, Failure> {
    let dir = open_shared(root, group, Failpoints::none())?;
    if holds_files(&dir.list()?) {
        return Err(
            Error::invalid(format!("{} is the directory of a job", name_of(root)))
                .next("give the directory above it: the files go to ROOT/JOB")
                .into(),
        );
    }
    Ok(dir)
}

fn name_of(root: &Path) -> String {
    shown(&root.to_string_lossy()).to_owned()
}

/// The newest commit, or that of the step; among its levels, one that is complete here.
fn pick<'a>(job: &'a Job, which: &Which) -> Result<&'a Commit, Failure> {
    let newest = job.pick(which)?;
    let step = newest.record.step;
    if let (None, Some(other)) = (
        which.step(),
        job.catalog.other_key().filter(|&other| other > step),
    ) {
        let error = Error::invalid(format!(
            "step {other} is newer, and was sealed with another key"
        ));
        return Err(error
            .next(format!(
                "add its key to --encrypt-key, or copy step {step} with --step {step}"
            ))
            .into());
    }
    let of_step = |commit: &&Commit| {
        (commit.record.step, commit.record.epoch) == (step, newest.record.epoch)
            && which.level.is_none_or(|level| commit.record.level == level)
    };
    let mut levels = job.catalog.commits().iter().filter(of_step);
    Ok(levels
        .find(|commit| job.missing(commit).is_none())
        .unwrap_or(newest))
}

/// Refuses to copy the newest step whose record can be read in the place of a newer one.
fn refuse_older(
    job: &Job,
    commit: &Commit,
    which: &Which,
    trust: &Arc<Trust>,
    show_progress: bool,
) -> Result<(), Failure> {
    let of_level = |level: Level| which.level.is_none_or(|wanted| wanted == level);
    let Some(newest) = job.passed_over(commit, which) else {
        return Ok(());
    };
    match newest.error.kind() {
        ErrorKind::Unavailable => Err(Failure::with(exit::UNREACHABLE, newest.error)),
        ErrorKind::Corrupt => {
            let is_of_level = |commit: &Commit| of_level(commit.record.level);
            let older = verify::newest_good(job, is_of_level, trust, show_progress)?;
            Err(match older {
                Some(older) => copies_instead(newest.error, older),
                None => newest.error.into(),
            })
        }
        _ => Err(newest.error.into()),
    }
}

/// The failure of damage that an older step does not have.
fn copies_instead(error: Error, older: &CommitRecord) -> Failure {
    let step = older.step;
    let error = error.next(format!(
        "copy step {step}, which is good, with --step {step}"
    ));
    Failure::with(exit::CORRUPT_OLDER_GOOD, error)
}

/// The failure in the terms of this command's user.
fn explain(
    (job, commit, which): (&Job, &Commit, &Which),
    trust: &Arc<Trust>,
    show_progress: bool,
    error: Error,
) -> Failure {
    if error.is(Detail::Held) {
        return Failure::with(exit::HELD, error);
    }
    if error.kind() == ErrorKind::Corrupt && which.step().is_none() {
        let older = verify::older_good(job, commit, trust, show_progress);
        if let Ok(Some(older)) = older {
            return copies_instead(error, older);
        }
    }
    if error.kind() != ErrorKind::NotFound {
        return job.unread_file(error);
    }
    if let Some(hidden) = job.out_of_sight() {
        let error = Error::unavailable(format!("{}; {}", error.what(), hidden.error.what()));
        return Failure::with(exit::UNREACHABLE, hidden.advise(error));
    }
    match job.older_whole(commit) {
        Some(older) if which.step().is_none() && older.step < commit.record.step => {
            let said = error.next_step();
            let first = said.map_or_else(String::new, |next| format!("{next}, or "));
            let step = older.step;
            error
                .next(format!(
                    "{first}copy step {step}, which is complete here, with --step {step}"
                ))
                .into()
        }
        _ => error.into(),
    }
}

fn outcome(order: &Order<'_>, plan: &Plan, copied: Option<&Copied>, notes: Vec<String>) -> Outcome {
    let record = &order.commit.record;
    let places: Vec<&str> = order.destinations.iter().map(Destination::name).collect();
    let was_there = plan.is_there || copied.is_some_and(|copied| copied.was_there);
    let bytes: u64 = plan.containers.iter().map(|one| one.region_bytes).sum();
    let of = format!("step {} of job {}", record.step, order.job.as_str());
    let from = format!("level {}, epoch {}", record.level, record.epoch);
    let what = format!(
        "{of} ({from}) to level {}: {} in {}",
        order.level,
        size(bytes),
        count(record.containers.len() as u64, "container")
    );
    let all = places.join(", ");
    let mut text = match (was_there, copied) {
        (true, Some(_)) => format!(
            "{of} is at level {} in {all} already, and good\n",
            order.level
        ),
        (true, None) => format!("{of} is at level {} in {all} already\n", order.level),
        (false, Some(_)) => format!("copied {what}\n"),
        (false, None) => format!("would copy {what}; not verified\n"),
    };
    let (containers, listed) = listed(plan, copied, &places);
    text += &listed;
    let document = json!({
        "job": order.job.as_str(),
        "step": record.step.0,
        "epoch": record.epoch.to_string(),
        "from_level": record.level.to_string(),
        "to_level": order.level.to_string(),
        "directories": places,
        "dry_run": copied.is_none(),
        "was_there": was_there,
        "region_bytes": bytes,
        "containers": Value::Array(containers),
        "notes": notes,
    });
    Outcome {
        code: exit::OK,
        text,
        document,
        warnings: notes,
    }
}

/// The containers of a copy, for programs and as a table.
pub(super) fn listed(
    plan: &Plan,
    copied: Option<&Copied>,
    places: &[&str],
) -> (Vec<Value>, String) {
    let of_size = if copied.is_some() { "size" } else { "at most" };
    let mut shown = table(&["container", "directory", of_size]);
    let mut containers = Vec::new();
    for (number, one) in plan.containers.iter().enumerate() {
        // Its actual size, if it is known.
        let made = copied.map(|copied| copied.record.containers[number].len_bytes);
        let file_bytes = made.unwrap_or(one.file_bytes);
        let directory = places[one.destination];
        shown.add_row([plain(&one.file), plain(directory), right(size(file_bytes))]);
        containers.push(json!({
            "file": one.file,
            "directory": directory,
            "region_bytes": one.region_bytes,
            "len_bytes": file_bytes,
        }));
    }
    let text = match containers.is_empty() {
        true => String::new(),
        false => table_text(&shown),
    };
    (containers, text)
}
