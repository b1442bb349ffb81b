//! `orcheck halt`: asks the run of a job to take a checkpoint and end.
//!
//! How: the request is a file beside the run's claim (`orcheck_engine::directory::halt`). Then this waits until the run lets go of
//! its claim. Should a supervisor have started another run meanwhile, that one is asked as well.
//!
//! Invariants:
//! 1. A run that nobody sees alive is asked only with `--force`.
//! 2. A request for later (`--at`, `--after`) is not waited for.
//! 3. The wait ends at `--timeout`; the request stays then, and after Ctrl-C.
//!
//! Not here: what the run does about it, and that it is not started again (`run`).

use std::time::Duration;

use orcheck_engine::directory::halt::{Run, When, later_requests, requests, withdraw};
use orcheck_format::{Epoch, Error, Level};
use orcheck_io::clock::{Clock, LocalTime, SystemClock, moment};
use orcheck_io::machine::{host_name, process_id};
use serde_json::{Value, json};

use crate::args::{HaltArgs, time_or_none};
use crate::exit;
use crate::job::{Job, trust};
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
    let trust = trust(&args.unlock)?;
    let job = Job::open_trusting(&args.place, &trust)?;
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
    let newest = Run::newest(dirs, &trust)?;
    if args.list {
        return Ok(list(&job, newest.as_ref(), &outcome)?);
    }
    let later = match (&args.at, args.after) {
        (Some(text), _) => Some(When::At(time_of(text, SystemClock::new().unix_ms())?)),
        (None, after) => after.map(When::After),
    };
    let Some(mut asked) = newest else {
        return Err(Error::not_found(format!("job {name} was never run here"))
            .next("give a directory that the job was given")
            .into());
    };
    if !asked.lives && !args.force {
        return Err(Error::not_found(format!(
            "no run of job {name} is there: the newest, epoch {}, {}, has ended",
            asked.claim.epoch,
            asked.describe()
        ))
        .next("start the job again to have something to halt; add --force only where this machine does not see locks of others")
        .into());
    }
    let clock = SystemClock::new();
    // Somebody else reads it later: without an age.
    let at = LocalTime::of_unix_ms(clock.unix_ms());
    let at = at.map_or_else(|| "an unknown time".to_owned(), |at| at.to_string());
    let text = format!(
        "asked by process {} on host {} at {at}\n",
        process_id(),
        host_name()
    );
    if let Some(when) = later {
        let earlier = later_requests(dirs)?;
        let warnings = asked.ask_later(when, &text)?;
        let (said, document) = described(when, clock.unix_ms());
        let earlier = (earlier.iter())
            .find(|(epoch, _)| *epoch == asked.claim.epoch.counter)
            .and_then(|(_, earlier)| *earlier)
            .filter(|earlier| *earlier != when)
            .map_or(String::new(), |earlier| {
                format!(", no longer {}", described(earlier, clock.unix_ms()).0)
            });
        let text = format!(
            "asked job {name} (epoch {}, {}) to halt {said}{earlier}\n",
            asked.claim.epoch,
            asked.describe()
        );
        let mut document = json!({ "ended": false, "later": document });
        document["epoch"] = json!(asked.claim.epoch.to_string());
        return Ok(outcome(exit::OK, text, document, warnings));
    }
    let before = newest_commit(&job);
    let mut warnings = asked.ask(&text)?;
    let run = format!("epoch {}, {}", asked.claim.epoch, asked.describe());
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
    while let Some(now) = Run::newest(dirs, &trust)?.filter(|now| now.lives) {
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
    let after = newest_commit(&Job::open_trusting(&args.place, &trust)?);
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
            run.describe(),
            if run.lives { "runs" } else { "has ended" }
        ),
        None => format!("job {name} was never run here\n"),
    };
    let counter = newest.map_or(0, |run| run.claim.epoch.counter);
    let lives = newest.is_some_and(|run| run.lives);
    let asked = |epoch: u64| match (epoch == counter, lives) {
        (true, true) => "asked to halt",
        (true, false) => "this run was asked to halt",
        (false, _) => "an older run was asked to halt",
    };
    for (epoch, said) in &found {
        let whom = asked(*epoch);
        text += &format!("{whom}: {said}\n");
    }
    let later = later_requests(job.catalog.places())?;
    let now = SystemClock::new().unix_ms();
    let mut later_documents = Vec::new();
    for (epoch, when) in &later {
        let whom = asked(*epoch);
        let (said, mut document) = when.map_or_else(
            || ("at a time that cannot be read".to_owned(), json!({})),
            |when| described(when, now),
        );
        document["epoch"] = json!(epoch);
        later_documents.push(document);
        text += &format!("{whom} {said}\n");
    }
    if found.is_empty() && later.is_empty() {
        text += "not asked to halt\n";
    }
    let document = json!({
        "epoch": newest.map(|run| run.claim.epoch.to_string()),
        "runs": newest.map(|run| run.lives),
        "requests": found.iter().map(|(epoch, text)| json!({ "epoch": epoch, "text": text })).collect::<Vec<_>>(),
        "later": later_documents,
    });
    Ok(outcome(exit::OK, text, document, job.notes()))
}

/// When a run is to halt later, for people and for programs.
pub fn described(when: When, now: u64) -> (String, Value) {
    match when {
        When::At(at) => (
            format!("at {}", moment(at, now)),
            json!({ "at_unix_ms": at }),
        ),
        When::After(count) => (
            format!(
                "after {count} further checkpoint{}",
                if count == 1 { "" } else { "s" }
            ),
            json!({ "after": count }),
        ),
    }
}

/// The moment meant by `14:30`, `14:30:00`, `2026-11-24 14:30` or `90min`, in milliseconds since 1970: a time of the day is the next
/// one, a span begins now.
fn time_of(text: &str, now: u64) -> Result<u64, Error> {
    let wrong = || {
        Error::invalid(format!(
            "--at '{text}': expected a local time such as 14:30 or '2026-11-24 14:30', or a span with its unit such as 90min"
        ))
    };
    let span = text.strip_prefix('+').unwrap_or(text);
    if span.ends_with(|c: char| c.is_ascii_alphabetic()) {
        let seconds = time_or_none(span).map_err(|_| wrong())?;
        return Ok(now.saturating_add((seconds * 1000.0) as u64));
    }
    let (date, clock) = match text.trim().split_once([' ', 'T']) {
        Some((date, clock)) => (Some(date), clock),
        None => (None, text.trim()),
    };
    let numbers = |text: &str, between: char| -> Option<Vec<u32>> {
        text.split(between).map(|part| part.parse().ok()).collect()
    };
    let today = LocalTime::of_unix_ms(now).ok_or_else(wrong)?;
    let (hour, minute, second) = match numbers(clock, ':').ok_or_else(wrong)?[..] {
        [hour, minute] => (hour, minute, 0),
        [hour, minute, second] => (hour, minute, second),
        _ => return Err(wrong()),
    };
    let at = LocalTime {
        hour,
        minute,
        second,
        ..today
    };
    let Some(date) = date else {
        let at = at.unix_ms().ok_or_else(wrong)?;
        if at > now {
            return Ok(at);
        }
        // Noon tomorrow is tomorrow, however long today is.
        let noon = LocalTime {
            hour: 12,
            minute: 0,
            second: 0,
            ..today
        };
        let tomorrow = noon.unix_ms().ok_or_else(wrong)? + 86_400_000;
        let tomorrow = LocalTime::of_unix_ms(tomorrow).ok_or_else(wrong)?;
        let at = LocalTime {
            hour,
            minute,
            second,
            ..tomorrow
        };
        return at.unix_ms().ok_or_else(wrong);
    };
    let [year, month, day] = numbers(date, '-').ok_or_else(wrong)?[..] else {
        return Err(wrong());
    };
    let year = i32::try_from(year).map_err(|_| wrong())?;
    let at = LocalTime {
        year,
        month,
        day,
        ..at
    };
    let at = at.unix_ms().ok_or_else(wrong)?;
    if at <= now {
        return Err(
            Error::invalid(format!("--at '{text}' is over: {}", moment(at, now)))
                .next("name a time to come, or leave --at out to halt now"),
        );
    }
    Ok(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    // Breaks if: a time of the day that is over today is taken for today; the run would halt at once.
    #[test]
    fn times_to_halt_at_are_local_and_to_come() {
        let now = 1_795_509_431_000;
        let today = LocalTime::of_unix_ms(now).unwrap();
        let at = |text: &str| time_of(text, now);
        assert_eq!(at("90min").unwrap(), now + 5_400_000);
        assert_eq!(at("+30s").unwrap(), now + 30_000);
        let clock = format!("{:02}:{:02}:{:02}", today.hour, today.minute, today.second);
        let tomorrow = at(&clock).unwrap();
        assert!((now + 80_000_000..now + 93_000_000).contains(&tomorrow));
        let later = LocalTime {
            year: today.year + 1,
            month: 1,
            day: 2,
            hour: 3,
            minute: 4,
            second: 5,
        };
        assert_eq!(at(&later.to_string()).ok(), later.unix_ms());
        assert_eq!(
            at(&later.to_string().replace(' ', "T")).ok(),
            later.unix_ms()
        );
        for wrong in [
            "90",
            "25:00",
            "14",
            "2027-02-30 12:00",
            "2020-01-01 10:00",
            "soon",
            "",
        ] {
            assert!(at(wrong).is_err(), "{wrong}");
        }
    }
}
