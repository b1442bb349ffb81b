//! Implements `orcheck ls`, which lists the checkpoints of a job.
//!
//! A checkpoint is `restartable` if its commit record counts and its containers are here with the
//! recorded lengths, `fenced` if a newer run has superseded it, and otherwise `incomplete`: without
//! a commit record, or with containers that are not in these places. A checkpoint that is not here
//! is `unreachable` while a directory cannot be read, or if it was written to a directory that was
//! not given. It is `unreadable` if no commit record can be read and is believed. A checkpoint that
//! the program found wrong is `rejected`. While two runs have checkpoints under one epoch, those of
//! both are `undecided`.
//!
//! The exit code is 15 if no checkpoint is restartable and one is unreachable, because nothing is
//! known about it. It is 7 if one is undecided.
//!
//! Not here: whether the bytes are right (`orcheck verify`).

mod jobs;

use std::collections::{BTreeMap, BTreeSet};

use orcheck_engine::directory::halt::NewestRun;
use orcheck_engine::directory::{Commit, Unread};
use orcheck_engine::encoding::{Proof, Trust};
use orcheck_format::disk::FileName;
use orcheck_format::{Detail, ErrorKind, Step};
use orcheck_io::clock::{Clock, SystemClock};
use serde_json::{Value, json};

use crate::args::LsArgs;
use crate::exit;
use crate::job::Search;
use crate::job::{Job, trust};
use crate::output::{
    Failure, Outcome, Tone, age, cell, count, draw_together, minute, moment, plain, right, size,
    table, table_text,
};

struct Row {
    step: Step,
    epoch: String,
    counter: u64,
    level: Option<String>,
    state: &'static str,
    why: Option<String>,
    world_size: Option<u32>,
    nodes: Option<usize>,
    containers: usize,
    size_bytes: u64,
    created_unix_ms: Option<u64>,
    copies: usize,
    authenticated: bool,
}

/// Lists the checkpoints.
pub fn run(args: &LsArgs) -> Result<Outcome, Failure> {
    let trust = trust(&args.unlock)?;
    let mut place = args.place.clone();
    place.anywhere.extend(args.at.iter().cloned());
    let mut search = Search::of(&place, &trust)?.listing();
    let names = search.names();
    if place.job.is_none() && names.len() > 1 {
        return jobs::list(&mut search, &names, &trust);
    }
    // It belongs to another job, which was not asked for: it is reported, and does not count.
    let beside: Vec<String> = match place.job {
        Some(_) => Vec::new(),
        None => (search.hidden().iter())
            .map(|hidden| hidden.note())
            .collect(),
    };
    let job = search.job(place.job.as_deref(), &trust)?;
    let rows = rows(&job);
    let now = SystemClock::new().unix_ms();
    let summary = jobs::Summary::of(&job, &rows);
    let mut notes = job.notes();
    let more: Vec<String> = (beside.into_iter())
        .filter(|note| !notes.contains(note))
        .collect();
    notes.extend(more);
    let text = match rows.is_empty() {
        true => without_any(&job, &trust, now)?,
        false => text(&job, &rows, now),
    };
    let document = json!({
        "job": job.name.as_str(),
        "jobs": [summary.document(now)],
        "places": places(&job),
        "newest_restartable_step": summary.newest.as_ref().map(|(step, _)| step.0),
        "checkpoints": rows.iter().map(|row| row.document(now)).collect::<Vec<Value>>(),
        "notes": notes,
    });
    let nothing_known = rows.is_empty() && job.out_of_sight().is_some();
    Ok(Outcome {
        code: match job.catalog.undecided(&job.name) {
            // Breaks if: it is 0; a script would take what it lists for all that there is to know.
            Some((_, error)) => Failure::from(error).code,
            None if summary.is_unreachable() || nothing_known => exit::UNREACHABLE,
            None => exit::OK,
        },
        text,
        document,
        warnings: notes,
    })
}

/// For a job without a checkpoint: whether its run is alive, and what to do if it ended without
/// one.
fn without_any(job: &Job, trust: &Trust, now: u64) -> Result<String, Failure> {
    let name = job.name.as_str();
    let Some(run) = NewestRun::newest(job.catalog.places(), trust)? else {
        return Ok(format!("job {name}: no checkpoints, and no run\n"));
    };
    let since = moment(run.claim.since_unix_ms, now);
    let host = &run.claim.host;
    Ok(match run.lives {
        true => {
            format!("job {name}: no checkpoints yet; it runs on host {host}, since {since}\n")
        }
        false => format!(
            "job {name}: no checkpoints. Its last run began on host {host} at {since}, and {}\n",
            how_it_ended(job, run.claim.epoch.counter)
        ),
    })
}

/// What became of the checkpoints of a run that has none here; before its first one, it recorded
/// what it resumed from.
fn how_it_ended(job: &Job, counter: u64) -> String {
    let mut claims = job.catalog.claims().iter();
    let noted = claims.any(|(claim, resumed)| claim.epoch.counter == counter && resumed.is_some());
    // Breaks if: a user whose checkpoints were lost or removed is advised to take some.
    match noted {
        true => format!("took at least one; it was lost, or removed. Next: {SEE_WHAT_IT_SAID}"),
        false => format!("ended without one. Next: {ADD_A_TRIGGER}"),
    }
}

/// What to do about a job whose checkpoints are lost.
const SEE_WHAT_IT_SAID: &str = "see what the run, or `orcheck run`, said of lost checkpoints; `orcheck doctor` shows the free space";

/// What to do about a job whose runs end without a checkpoint.
pub const ADD_A_TRIGGER: &str = "unless it failed before its first checkpoint, add the line `every_s = 600` to its options, or set ORCHECK_EVERY_S=600";

/// The directories that were read, and those that could not be.
fn places(job: &Job) -> Vec<Value> {
    let read = (0..job.catalog.places().len()).map(
        |place| json!({ "path": job.place_path(place), "kind": job.place_kinds[place], "state": "read" }),
    );
    let hidden = job.hidden().iter();
    let hidden =
        hidden.map(|hidden| json!({ "path": hidden.path, "kind": null, "state": hidden.state() }));
    read.chain(hidden).collect()
}

/// All checkpoints of a job, newest first.
fn rows(job: &Job) -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    for commit in job.catalog.commits() {
        let missing = job.missing(commit);
        let state = if job.is_out_of_reach(commit) {
            "unreachable"
        } else if missing.is_some() {
            "incomplete"
        } else {
            "restartable"
        };
        let of = (commit.record.step, commit.record.epoch);
        let kept = || match job.catalog.mark(of.0, of.1).map(|choice| &choice.why) {
            Some(why) if !why.is_empty() => format!("kept, as `orcheck keep` asked: {why}"),
            _ => "kept, as `orcheck keep` asked".to_owned(),
        };
        let why = missing
            .or_else(|| unproven(commit))
            .or_else(|| job.catalog.is_kept(of.0, of.1).then(kept))
            .or_else(|| needed_by(job, commit));
        rows.push(committed(job, commit, state, why));
    }
    for commit in job.catalog.rejected() {
        let record = &commit.record;
        let said = job.catalog.rejection(record.step, record.epoch);
        let why = said.map_or_else(String::new, |choice| match choice.why.is_empty() {
            true => format!(" by user {} on host {}", choice.uid, choice.host),
            false => format!(
                " by user {} on host {}: {}",
                choice.uid, choice.host, choice.why
            ),
        });
        rows.push(committed(
            job,
            commit,
            "rejected",
            Some(format!("found wrong{why}")),
        ));
    }
    for commit in job.catalog.fenced() {
        let why = job.catalog.why_fenced(&commit.record);
        let why = why.map_or_else(String::new, |why| format!(": {why}"));
        let why = format!("superseded by a newer run{why}");
        rows.push(committed(job, commit, "fenced", Some(why)));
    }
    leave_undecided(job, &mut rows);
    rows.extend(uncommitted(job));
    rows.sort_by_key(|row| std::cmp::Reverse((row.step, row.counter)));
    rows
}

/// Marks what nobody can restart from before it is decided which of two runs continues the job.
fn leave_undecided(job: &Job, rows: &mut [Row]) {
    let Some((since, error)) = job.catalog.undecided(&job.name) else {
        return;
    };
    for row in rows.iter_mut().filter(|row| row.counter >= since) {
        row.state = "undecided";
        row.why = Some(error.message().to_owned());
    }
}

fn committed(job: &Job, commit: &Commit, state: &'static str, why: Option<String>) -> Row {
    let record = &commit.record;
    let stripes: u64 = stripe_files(
        job,
        record
            .containers
            .iter()
            .map(|container| container.file.as_str())
            .collect(),
    );
    Row {
        step: record.step,
        epoch: record.epoch.to_string(),
        counter: record.epoch.counter,
        level: Some(record.level.to_string()),
        state,
        why,
        world_size: Some(record.world_size),
        nodes: Some(record.nodes.len()),
        containers: record.containers.len(),
        size_bytes: record
            .containers
            .iter()
            .map(|container| container.len_bytes)
            .sum::<u64>()
            + stripes,
        created_unix_ms: Some(record.created_unix_ms),
        copies: commit.copies.len(),
        authenticated: commit.proof == Proof::Sealed,
    }
}

const NOT_AUTHENTICATED: &str = "not authenticated: no key given";

/// The note on a checkpoint whose seal nobody checked.
fn unproven(commit: &Commit) -> Option<String> {
    (commit.proof == Proof::Unchecked).then(|| NOT_AUTHENTICATED.to_owned())
}

/// The newest checkpoint that refers to this one, which is therefore kept longer than the keep rule
/// says.
fn needed_by(job: &Job, commit: &Commit) -> Option<String> {
    let needs = |other: &&Commit| {
        let (own, other) = (&commit.record, &other.record);
        (own.epoch, own.level) == (other.epoch, other.level)
            && other.refers_to().contains(&own.step)
    };
    let newest = job.catalog.commits().iter().find(needs)?;
    Some(format!(
        "kept because step {} refers to it",
        newest.record.step
    ))
}

/// Bytes of the stripe files that belong to these containers.
fn stripe_files(job: &Job, containers: BTreeSet<&str>) -> u64 {
    let mut seen = BTreeSet::new();
    let mut bytes = 0;
    for (_, entry, name) in job.catalog.files() {
        if let Some(FileName::Stripe {
            step,
            epoch,
            run,
            node,
            writer,
            ..
        }) = name
        {
            let (step, epoch, run, node, writer) = (*step, *epoch, *run, *node, *writer);
            let container = FileName::Container {
                step,
                epoch,
                run,
                node,
                writer,
            }
            .to_string();
            if containers.contains(container.as_str()) && seen.insert(&entry.name) {
                bytes += entry.len_bytes;
            }
        }
    }
    bytes
}

/// The state of a checkpoint whose commit record does not count, and why.
fn state_of_unread(unread: &Unread) -> (&'static str, String) {
    let why = &unread.why;
    match why.kind() {
        _ if why.is(Detail::OtherKey) => (
            "unreadable",
            "sealed with another key: give the key of the run that wrote it".to_owned(),
        ),
        // Breaks if: it is called unreadable, like a damaged one; a user who may read it finds it
        // whole.
        ErrorKind::Unavailable => (
            "unreachable",
            format!("the commit record cannot be read: {}", why.what()),
        ),
        _ => (
            "unreadable",
            format!("the commit record cannot be used: {}", why.what()),
        ),
    }
}

/// A checkpoint: step, epoch counter, and the beginning of its run id.
type Checkpoint = (Step, u64, [u8; 4]);

/// The checkpoint and the container to which a file with data of a container belongs.
fn container_of(name: &FileName) -> Option<(Checkpoint, String)> {
    let (FileName::Container {
        step,
        epoch,
        run,
        node,
        writer,
    }
    | FileName::Stripe {
        step,
        epoch,
        run,
        node,
        writer,
        ..
    }) = *name
    else {
        return None;
    };
    let container = FileName::Container {
        step,
        epoch,
        run,
        node,
        writer,
    };
    Some(((step, epoch, run), container.to_string()))
}

/// Checkpoints that have containers but no commit record.
fn uncommitted(job: &Job) -> Vec<Row> {
    let commits = job.catalog.commits().iter();
    let commits = commits.chain(job.catalog.fenced());
    let commits = commits.chain(job.catalog.rejected());
    let known: BTreeSet<&str> = commits
        .flat_map(|commit| {
            commit
                .record
                .containers
                .iter()
                .map(|container| container.file.as_str())
        })
        .collect();
    // Of several copies, one counts that may be whole.
    let mut unread: Vec<&Unread> = job.catalog.unread().iter().collect();
    unread.sort_by_key(|one| one.why.kind() == ErrorKind::Unavailable);
    let unread: BTreeMap<_, _> = unread.iter().map(|one| (one.checkpoint(), one)).collect();
    let mut rows: BTreeMap<Checkpoint, Row> = BTreeMap::new();
    for (_, entry, name) in job.catalog.files() {
        let Some(((step, epoch, run), container)) = name.as_ref().and_then(container_of) else {
            continue;
        };
        let is_stripe = container != entry.name;
        if known.contains(container.as_str()) {
            continue;
        }
        let (state, why) = match unread.get(&(step, epoch, run)) {
            // Breaks if: it counts as none; a forgotten key would look like a run that died.
            Some(one) => state_of_unread(one),
            None => (
                "incomplete",
                "no commit record: still being written, or its writer died".to_owned(),
            ),
        };
        let row = rows.entry((step, epoch, run)).or_insert_with(|| Row {
            step,
            epoch: format!("{epoch}-{}", orcheck_format::hex(&run)),
            counter: epoch,
            level: None,
            state,
            why: Some(why),
            world_size: None,
            nodes: None,
            containers: 0,
            size_bytes: 0,
            created_unix_ms: None,
            copies: 0,
            authenticated: false,
        });
        row.containers += usize::from(!is_stripe);
        row.size_bytes += entry.len_bytes;
    }
    rows.into_values().collect()
}

impl Row {
    fn age_ms(&self, now: u64) -> Option<u64> {
        self.created_unix_ms
            .map(|created| now.saturating_sub(created))
    }

    fn document(&self, now: u64) -> Value {
        json!({
            "step": self.step.0,
            "epoch": self.epoch,
            "level": self.level,
            "state": self.state,
            "why": self.why,
            "world_size": self.world_size,
            "nodes": self.nodes,
            "containers": self.containers,
            "size_bytes": self.size_bytes,
            "created_unix_ms": self.created_unix_ms,
            "age_ms": self.age_ms(now),
            "record_copies": self.copies,
            "authenticated": self.authenticated,
        })
    }
}

fn text(job: &Job, rows: &[Row], now: u64) -> String {
    let mut table = table(&[
        "step", "epoch", "level", "ranks", "size", "taken", "age", "state",
    ]);
    // The run's id is needed only if two runs have the same counter.
    let epochs: BTreeSet<&str> = rows.iter().map(|row| row.epoch.as_str()).collect();
    let counters: BTreeSet<u64> = rows.iter().map(|row| row.counter).collect();
    let is_clear = epochs.len() == counters.len();
    for row in rows {
        let epoch = match is_clear {
            true => row.counter.to_string(),
            false => row.epoch.clone(),
        };
        let tone = match row.state {
            "restartable" => Tone::Good,
            "fenced" | "rejected" | "unreachable" | "unreadable" | "undecided" => Tone::Note,
            _ => Tone::Bad,
        };
        let dash = || "-".to_string();
        table.add_row([
            right(row.step),
            right(epoch),
            plain(row.level.clone().unwrap_or_else(dash)),
            right(row.world_size.map_or_else(dash, |ranks| ranks.to_string())),
            right(size(row.size_bytes)),
            plain(row.created_unix_ms.map_or_else(dash, minute)),
            right(row.age_ms(now).map_or_else(dash, age)),
            cell(row.state, tone),
        ]);
    }
    draw_together(&mut table);
    format!(
        "job {}: {} in {}\n{}{}",
        job.name.as_str(),
        count(rows.len() as u64, "checkpoint"),
        count(job.catalog.places().len() as u64, "place"),
        table_text(&table),
        reasons(rows)
    )
}

/// Why checkpoints are in their states: below the table, which then fits a terminal. A reason that
/// concerns many is given once.
fn reasons(rows: &[Row]) -> String {
    let mut said: Vec<(&str, Vec<String>)> = Vec::new();
    for row in rows {
        let Some(why) = row.why.as_deref() else {
            continue;
        };
        let step = row.step.to_string();
        match said.iter_mut().find(|(text, _)| *text == why) {
            Some((_, steps)) if steps.contains(&step) => {}
            Some((_, steps)) => steps.push(step),
            None => said.push((why, vec![step])),
        }
    }
    let lines = said.iter().map(|(why, steps)| match &steps[..] {
        [step] => format!("step {step}: {why}\n"),
        steps => format!("steps {}: {why}\n", steps.join(", ")),
    });
    lines.collect()
}
