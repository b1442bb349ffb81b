//! `orcheck halt`: asks the run of a job to take a checkpoint and end.
//!
//! How: the request is a file beside the run's claim (`orcheck_engine::halt`). Then this waits until the run lets go of
//! its claim. Should a supervisor have started another run meanwhile, that one is asked as well.
//!
//! Invariants:
//! 1. A run that nobody sees alive is asked only with `--force`.
//! 2. The wait ends at `--timeout`; the request stays then, and after Ctrl-C.
//!
//! Not here: what the run does about it, and that it is not started again (`run`).

use std::time::Duration;

use orcheck_engine::epoch::describe;
use orcheck_engine::halt::{Run, requests, withdraw};
use orcheck_format::{Epoch, Error, Level};
use orcheck_io::net::{host_name, process_id};
use orcheck_io::{Clock, SystemClock};
use serde_json::{Value, json};

use crate::args::HaltArgs;
use crate::exit;
use crate::job::Job;
use crate::output::{Failure, Outcome};

/// Longest wait there is, in seconds: beyond it no clock can count.
const LONGEST_S: f64 = 1e9;
/// How often the run is looked at.
const POLL: Duration = Duration::from_millis(200);

/// Asks, shows what is asked, or takes it back.
pub fn run(args: &HaltArgs, talk: bool) -> Result<Outcome, Failure> {
    let timeout = Duration::try_from_secs_f64(args.timeout.min(LONGEST_S)).map_err(|_| {
        Error::invalid(format!(
            "--timeout {}: expected seconds from 0",
            args.timeout
        ))
    })?;
    let job = Job::open(&args.place)?;
    let dirs = job.catalog.places();
    let name = job.name.as_str();
    let outcome = |code, text: String, mut document: Value, warnings| {
        document["job"] = json!(name);
        document["notes"] = json!(warnings);
        Outcome {
            code,
            text,
            document,
            warnings,
        }
    };
    if args.remove {
        let gone = withdraw(dirs)?;
        let text = match &gone[..] {
            [] => format!("nothing is asked of job {name}\n"),
            _ => format!("job {name} is not asked to halt any more\n"),
        };
        return Ok(outcome(
            exit::OK,
            text,
            json!({ "withdrawn": gone }),
            job.notes(),
        ));
    }
    let newest = Run::newest(dirs)?;
    if args.list {
        return Ok(list(&job, newest.as_ref(), &outcome)?);
    }
    let Some(mut asked) = newest else {
        return Err(Error::not_found(format!("job {name} was never run here"))
            .next("give a directory that the job was given")
            .into());
    };
    if !asked.lives && !args.force {
        return Err(Error::not_found(format!(
            "no run of job {name} is there: the newest, epoch {}, {}, has ended",
            asked.claim.epoch,
            describe(&asked.claim)
        ))
        .next("where other machines do not see locks of this file system, add --force")
        .into());
    }
    let clock = SystemClock::new();
    let text = format!(
        "asked by process {} on host {} at unix time {}\n",
        process_id(),
        host_name(),
        clock.unix_ms() / 1000
    );
    let before = newest_commit(&job);
    let mut warnings = asked.ask(&text)?;
    let run = format!("epoch {}, {}", asked.claim.epoch, describe(&asked.claim));
    if args.no_wait || !asked.lives {
        let text = format!("asked job {name} ({run}) to halt after its next checkpoint\n");
        let document = json!({ "epoch": asked.claim.epoch.to_string(), "ended": false });
        return Ok(outcome(exit::OK, text, document, warnings));
    }
    if talk {
        eprintln!(
            "orcheck halt: asked job {name} ({run}); waiting until it has taken a checkpoint and ended, at most {} s",
            timeout.as_secs_f64()
        );
    }
    let until = clock.now() + timeout;
    while let Some(now) = Run::newest(dirs)?.filter(|now| now.lives) {
        if now.claim.epoch != asked.claim.epoch {
            warnings.extend(now.ask(&text)?);
            asked = now;
        }
        if clock.now() >= until {
            return Err(Failure::with(
                exit::TIMEOUT,
                Error::unavailable(format!(
                    "job {name} still runs {} s after it was asked to halt; the request stays",
                    timeout.as_secs_f64()
                ))
                .next("wait on, or take it back with --remove; a program hears it in orc_due and orc_checkpoint, with every_steps alone only at the next checkpoint"),
            ));
        }
        clock.sleep(POLL);
    }
    let after = newest_commit(&Job::open(&args.place)?);
    let taken = after > before;
    let (text, code) = match &after {
        Some((step, _, level)) if taken => {
            let text =
                format!("halted: job {name}, newest checkpoint: step {step} at level {level}\n");
            (text, exit::OK)
        }
        after => {
            let newest = after.map_or("there is none".to_owned(), |(step, _, level)| {
                format!("the newest is step {step} at level {level}")
            });
            let text = format!("job {name} ended, without a new checkpoint: {newest}\n");
            (text, exit::PARTIAL)
        }
    };
    let document = json!({
        "epoch": asked.claim.epoch.to_string(),
        "ended": true,
        "new_checkpoint": taken,
        "newest_step": after.map(|(step, ..)| step),
    });
    Ok(outcome(code, text, document, warnings))
}

fn newest_commit(job: &Job) -> Option<(u64, Epoch, Level)> {
    let commits = job.catalog.commits().iter();
    let keys = commits.map(|commit| (commit.record.step, commit.record.epoch, commit.record.level));
    keys.max()
}

/// What is asked of the job, and whether it runs.
fn list(
    job: &Job,
    newest: Option<&Run>,
    outcome: &dyn Fn(u8, String, Value, Vec<String>) -> Outcome,
) -> Result<Outcome, Error> {
    let name = job.name.as_str();
    let found = requests(job.catalog.places())?;
    let mut text = match newest {
        Some(run) => format!(
            "job {name}: epoch {}, {}, {}\n",
            run.claim.epoch,
            describe(&run.claim),
            if run.lives { "runs" } else { "has ended" }
        ),
        None => format!("job {name} was never run here\n"),
    };
    let counter = newest.map_or(0, |run| run.claim.epoch.counter);
    for (epoch, said) in &found {
        let whom = match *epoch == counter {
            true => "asked to halt",
            false => "an older run was asked to halt",
        };
        text += &format!("{whom}: {said}\n");
    }
    if found.is_empty() {
        text += "not asked to halt\n";
    }
    let document = json!({
        "epoch": newest.map(|run| run.claim.epoch.to_string()),
        "runs": newest.map(|run| run.lives),
        "requests": found.iter().map(|(epoch, text)| json!({ "epoch": epoch, "text": text })).collect::<Vec<_>>(),
    });
    Ok(outcome(exit::OK, text, document, job.notes()))
}
