//! Implements `orcheck scavenge`, which takes the newest step that only nodes hold to level
//! `global` after a run has died.
//!
//! How: agents on this machine finish what the ranks left behind (`scavenge/agents.rs`); the
//! directories are found as in `verify`; the engine asks the other nodes, chooses and copies
//! (`scavenge.rs` there).
//!
//! Invariants:
//! 1. Nothing is taken while a rank of the job is alive on this machine.
//! 2. "Nothing to take" is only said if no more nodes are out of sight than the level may lose.
//! 3. Everything newer that is not taken is named. With `--dry-run` nothing is changed.
//!
//! Not here: what is copied and refused (engine), agents of other machines (their nodes are asked).

mod agents;
mod serve;

use std::path::PathBuf;
use std::time::Duration;

use orcheck_engine::upkeep::copying::Destination;
use orcheck_engine::upkeep::scavenge::{self, Held, Left, Scavenge, Source, Taken, Unseen};
use orcheck_format::sabotage::{Switch, off};
use orcheck_format::{Detail, Error, ErrorKind, Level};
use orcheck_io::clock::{Clock, SystemClock};
use orcheck_io::failpoints::Failpoints;
use serde_json::{Value, json};

use crate::args::ScavengeArgs;
use crate::commands::copy::{global_destinations, listed};
use crate::job::{Job, PLACED, roots, trust};
use crate::output::{Failure, Outcome, count, progress_bar, size};
use crate::{exit, stop};
use agents::Agents;

/// Longest possible wait, in seconds: no clock can count further.
const LONGEST_S: f64 = 1e9;
/// Longest wait until an agent, or another node, begins to answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);
/// The same, if the whole wait is over.
const LEAST_ANSWER: Duration = Duration::from_secs(1);
/// Time between two looks at signals while it waits.
const SLICE: Duration = Duration::from_millis(500);
/// Longest wait for a piece of a container of another node.
const PIECE_LIMIT: Duration = Duration::from_secs(60);

/// Takes what there is.
pub fn run(args: &ScavengeArgs, show_progress: bool) -> Result<Outcome, Failure> {
    stop::install()?;
    let timeout = Duration::try_from_secs_f64(args.timeout.min(LONGEST_S)).map_err(|_| {
        Error::invalid(format!(
            "--timeout {}: expected seconds from 0",
            args.timeout
        ))
    })?;
    let clock = SystemClock::new();
    let until = clock.now() + timeout;
    let trust = trust(&args.unlock)?;
    let mut place = args.place.clone();
    place.anywhere.extend(args.at.iter().cloned());
    if args.serve {
        let job = Job::open_trusting(&place, &trust)?;
        return serve::run(&job, &trust, (timeout, show_progress), &clock);
    }
    let to = destination_roots(args)?;
    let job = Job::open_trusting(&place, &trust)?;
    let agents = Agents::wait(&job, &place, &to, until, &clock)?;
    let mut order = Scavenge {
        job: &job.name,
        trust: &trust,
        destinations: global_destinations(&job.name, args.group.as_deref(), &to)?,
        patience: SLICE,
        answer: (timeout.clamp(LEAST_ANSWER, ANSWER_LIMIT), PIECE_LIMIT),
        strict: args.strict,
        failpoints: Failpoints::none(),
    };
    let shows = (args.dry_run, show_progress);
    let done = take(&mut order, &job, (until, &clock), shows);
    let (held, outcome) = done?;
    Report {
        job: &job,
        held: &held,
        agents: &agents,
        destinations: &order.destinations,
        strict: args.strict,
    }
    .of(outcome)
}

/// Takes what there is, once it is there or `until` has passed; returns what it was found in.
fn take(
    order: &mut Scavenge<'_>,
    job: &Job,
    (until, clock): (Duration, &SystemClock),
    (dry_run, show_progress): (bool, bool),
) -> Result<(Held, scavenge::Outcome), Failure> {
    let bar = progress_bar(show_progress);
    let strict = order.strict;
    let (mut takes_older, mut damaged_without) = (false, None);
    let done = loop {
        let is_late = clock.now() >= until;
        takes_older |= is_late;
        order.strict = strict || !takes_older;
        let held = order.find(sources(job), clock);
        // The same nodes hold the same damage: it is not read again.
        let is_same = |held: &Held| damaged_without == Some(names(&held.unseen));
        if takes_older || !held.as_ref().is_ok_and(is_same) {
            let found = held.and_then(|held| {
                let tick = &mut |done| {
                    bar.set_position(done);
                    continues("what was written of the copy was removed")
                };
                let outcome = order.take(&held, dry_run, clock, tick)?;
                Ok((held, outcome))
            });
            match &found {
                // What it holds is looked at again: the other one may be a scavenge.
                Err(error) if error.is(Detail::Held) && !is_late => {}
                Ok((_, outcome)) if outcome.left.is_empty() => break found,
                // Breaks if: an older step is taken at once; the newest may be whole as soon as all
                // nodes serve.
                Ok((held, outcome)) if !takes_older && may_come(held, outcome) => {
                    let is_damaged = kind_of_newest(outcome) == Some(ErrorKind::Corrupt);
                    damaged_without = is_damaged.then(|| names(&held.unseen));
                }
                Ok(_) if !takes_older => {
                    takes_older = true;
                    continue;
                }
                _ => break found,
            }
        }
        continues("nothing was written").map_err(|error| explain(job, error))?;
        clock.sleep(SLICE.min(until.saturating_sub(clock.now())));
    };
    bar.finish_and_clear();
    order.strict = strict;
    done.map_err(|error| explain(job, error))
}

fn names(unseen: &[Unseen]) -> Vec<String> {
    unseen.iter().map(|one| one.node.clone()).collect()
}

fn kind_of_newest(outcome: &scavenge::Outcome) -> Option<ErrorKind> {
    outcome.left.first().map(|left| left.error.kind())
}

/// Whether what is missing or damaged of the newest step may be whole on a node that does not serve
/// yet.
fn may_come(held: &Held, outcome: &scavenge::Outcome) -> bool {
    let may_replace = match kind_of_newest(outcome) {
        Some(ErrorKind::NotFound | ErrorKind::Unavailable) => !off(Switch::ScavengePatience),
        // Breaks if: it is left out; an older step would be taken for damage in one copy.
        Some(ErrorKind::Corrupt) => !off(Switch::ScavengeDamaged),
        _ => false,
    };
    may_replace && !held.unseen.is_empty()
}

/// # Errors
/// Unavailable once a signal asked this process to stop.
fn continues(or_else: &str) -> orcheck_format::Result<()> {
    match stop::requested() {
        None => Ok(()),
        Some(_) => Err(Error::unavailable(format!(
            "stopped by a signal; {or_else}"
        ))),
    }
}

/// The roots of level global to write to.
fn destination_roots(args: &ScavengeArgs) -> Result<Vec<PathBuf>, Failure> {
    let given = [&args.global, &args.place.dirs];
    let given = given.into_iter().find(|roots| !roots.is_empty());
    let found = match given {
        Some(given) => given.clone(),
        None => roots(&[], &[])?.0,
    };
    match found.is_empty() {
        false => Ok(found),
        true => Err(Error::invalid("no directory of level global is given")
            .next("give --global ROOT, or set ORCHECK_GLOBAL")
            .into()),
    }
}

/// The directories that are visible here.
fn sources(job: &Job) -> Vec<Source> {
    let places = job.catalog.places().iter().zip(&job.place_kinds);
    let source = |(dir, kind): (&_, &String)| Source {
        dir: std::sync::Arc::clone(dir),
        node: (kind != PLACED).then(|| kind.trim_start_matches("node ").to_owned()),
    };
    places.map(source).collect()
}

fn explain(job: &Job, error: Error) -> Failure {
    match (stop::requested(), error.is(Detail::Held)) {
        (Some(code), _) => Failure::with(code, error),
        (_, true) => Failure::with(exit::HELD, error),
        _ => job.unread_file(error),
    }
}

/// What the outcome is told from.
struct Report<'a> {
    job: &'a Job,
    held: &'a Held,
    agents: &'a Agents,
    destinations: &'a [Destination],
    strict: bool,
}

impl Report<'_> {
    fn of(&self, outcome: scavenge::Outcome) -> Result<Outcome, Failure> {
        let mut notes = self.held.notes.clone();
        notes.extend(self.agents.notes.iter().cloned());
        notes.extend(self.agents.not_safe.iter().cloned());
        notes.extend(self.held.undecided());
        let unseen = self.held.unseen.iter();
        notes.extend(unseen.map(|one| format!("node {} was not read: {}", one.node, one.error)));
        let left = &outcome.left;
        match &outcome.taken {
            Some(taken) => notes.extend(taken.notes().iter().cloned()),
            None => self.refuse(&outcome)?,
        }
        notes.extend(left.iter().map(describe));
        let safe = outcome.safe.map(|step| step.0);
        // Breaks if: nodes that were not read are left out; they may hold something newer.
        let may_be_more = self.held.unseen.len() > self.held.losses() && !off(Switch::ScavengeMore);
        let code = match left.is_empty() && !may_be_more {
            true => exit::OK,
            false => exit::PARTIAL,
        };
        let (text, mut document) = match &outcome.taken {
            None => (self.nothing(safe, left), json!({ "step": Value::Null })),
            Some(taken) => self.taken(taken),
        };
        let listed: Vec<Value> = left
            .iter()
            .map(|left| {
                json!({ "step": left.step.0, "level": left.level.to_string(), "error": left.error.message() })
            })
            .collect();
        let unseen: Vec<Value> = (self.held.unseen.iter())
            .map(|one| json!({ "node": one.node, "error": one.error.message() }))
            .collect();
        let more = json!({
            "job": self.job.name.as_str(),
            "safe_step": safe,
            "left": listed,
            "asked": self.held.asked,
            "unseen": unseen,
            "notes": notes,
        });
        if let (Value::Object(document), Value::Object(more)) = (&mut document, more) {
            document.extend(more);
        }
        Ok(Outcome {
            code,
            text,
            document,
            warnings: notes,
        })
    }

    /// Refuses to say that all is well if nothing was taken and something newer is, or may be,
    /// elsewhere.
    fn refuse(&self, outcome: &scavenge::Outcome) -> Result<(), Failure> {
        let job = self.job.name.as_str();
        let unseen = names(&self.held.unseen);
        self.refuse_what_may_come(outcome)?;
        if !self.held.has_nodes() {
            return Err(Error::not_found(format!(
                "no directory of a node of job {job} is here, and none says where the nodes are"
            ))
            .next("run it on a node of the job, or give its directories with --node-dir")
            .into());
        }
        // Breaks if: it is left out; a job whose newest step is elsewhere would be called safe.
        if unseen.len() > self.held.losses() && !off(Switch::ScavengeUnseen) {
            let error = Error::unavailable(format!(
                "job {job}: nothing newer is on the nodes that were read; what {} may hold is not known",
                unseen.join(", ")
            ));
            return Err(Failure::with(
                exit::UNREACHABLE,
                error.next("bring these nodes back, or run it on one of them"),
            ));
        }
        if outcome.safe.is_none() {
            return self.job.pick(&crate::args::Which::newest()).map(|_| ());
        }
        Ok(())
    }

    /// Refuses to leave it at that if steps were left and none is safe, or more may be had.
    fn refuse_what_may_come(&self, outcome: &scavenge::Outcome) -> Result<(), Failure> {
        let Some(newest) = outcome.left.first() else {
            return Ok(());
        };
        let (kind, unseen) = (newest.error.kind(), names(&self.held.unseen));
        let code = match (kind, unseen.is_empty()) {
            (ErrorKind::NotFound, false) | (ErrorKind::Unavailable, _) => exit::UNREACHABLE,
            // All of them were tried, and what is safe is the newest that can be had.
            _ if outcome.safe.is_some() && !self.strict => return Ok(()),
            (kind, _) => exit::of(kind),
        };
        let all: Vec<String> = outcome.left.iter().map(|left| left.error.what()).collect();
        let what = format!("nothing was taken: {}", all.join("; "));
        let error = Error::new(kind, what);
        let error = match newest.error.next_step() {
            Some(next) if kind != ErrorKind::Corrupt => error.next(next),
            // What a restart would be told to do is no help here.
            _ if unseen.is_empty() => {
                error.next("give directories that hold other copies, with --node-dir")
            }
            _ => error.next(format!(
                "bring back {}, or give the directories with --node-dir",
                unseen.join(", ")
            )),
        };
        Err(Failure::with(code, error))
    }

    fn nothing(&self, safe: Option<u64>, left: &[Left]) -> String {
        let job = self.job.name.as_str();
        let Some(newest) = left.first() else {
            let step = safe.map_or_else(|| "none".to_owned(), |step| step.to_string());
            return format!(
                "job {job}: nothing to take; the newest step at level global is {step}\n"
            );
        };
        let is_at = safe.map_or_else(
            || "no step is at level global".to_owned(),
            |step| format!("step {step} is at level global"),
        );
        let state = match newest.error.kind() {
            ErrorKind::Corrupt => "damaged",
            _ => "not complete here",
        };
        format!(
            "job {job}: nothing to take: {is_at}; step {} is newer and {state}\n",
            newest.step
        )
    }

    fn taken(&self, taken: &Taken) -> (String, Value) {
        let (record, plan) = (&taken.record, &taken.plan);
        let places: Vec<&str> = self.destinations.iter().map(Destination::name).collect();
        let copied = taken.copied.as_ref();
        let was_there = plan.is_there || copied.is_some_and(|copied| copied.was_there);
        let bytes: u64 = plan.containers.iter().map(|one| one.region_bytes).sum();
        let most: u64 = plan.containers.iter().map(|one| one.file_bytes).sum();
        let many = count(record.containers.len() as u64, "container");
        let of = format!(
            "step {} of job {} (level {}, epoch {})",
            record.step,
            self.job.name.as_str(),
            record.level,
            record.epoch
        );
        let to = Level::Global;
        let mut text = match (was_there, copied) {
            (true, Some(_)) => format!("{of} is at level {to} already, and good\n"),
            (true, None) => format!("{of} is at level {to} already; not verified\n"),
            (false, Some(_)) => format!("took {of} to level {to}: {} in {many}\n", size(bytes)),
            (false, None) => format!(
                "would take {of} to level {to}: at most {} in {many}; not verified\n",
                size(most)
            ),
        };
        let (containers, listed) = listed(plan, copied, &places);
        text += &listed;
        let document = json!({
            "step": record.step.0,
            "epoch": record.epoch.to_string(),
            "from_level": record.level.to_string(),
            "to_level": Level::Global.to_string(),
            "directories": places,
            "dry_run": copied.is_none(),
            "was_there": was_there,
            "region_bytes": bytes,
            "containers": containers,
        });
        (text, document)
    }
}

fn describe(left: &Left) -> String {
    format!(
        "step {} at level {} is newer, and was left: {}",
        left.step,
        left.level,
        left.error.what()
    )
}
