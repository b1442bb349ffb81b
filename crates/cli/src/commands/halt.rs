//! Implements `orcheck halt`, which asks the run of a job to take a checkpoint and end.
//!
//! How: the request is a file beside the run's claim (`orcheck_engine::directory::halt`). The
//! command then waits until the run releases its claim. If a supervisor has started another run
//! meanwhile, that run is asked as well.
//!
//! Invariants:
//! 1. A run that does not seem to be alive is asked only with `--force`.
//! 2. The command does not wait for a request for later (`--at`, `--after`).
//! 3. The wait ends at `--timeout`; the request then stays, also after Ctrl-C.
//!
//! Not here: how the run reacts, and why it is not started again (`run`).

use std::time::Duration;

use orcheck_engine::directory::halt::{NewestRun, When, later_requests, requests, withdraw};
use orcheck_engine::encoding::Trust;
use orcheck_format::{Epoch, Error, Level, Step};
use orcheck_io::clock::{Clock, LocalTime, SystemClock, moment};
use orcheck_io::machine::{host_name, process_id};
use serde_json::{Value, json};

use crate::args::{HaltArgs, time_or_none};
use crate::exit;
use crate::job::{Job, trust};
use crate::output::{Failure, Outcome};

/// Longest possible wait, in seconds: no clock can count further.
const LONGEST_S: f64 = 1e9;
/// Time between two looks at the run.
const POLL: Duration = Duration::from_millis(200);

/// Sends a request, shows requests, or withdraws one.
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
    if args.remove {
        return Ok(remove(&job)?);
    }
    let newest = NewestRun::newest(dirs, &trust)?;
    if args.list {
        return Ok(list(&job, newest.as_ref())?);
    }
    let clock = SystemClock::new();
    let later = match (&args.at, args.after) {
        (Some(text), _) => Some(When::At(time_of(text, clock.unix_ms())?)),
        (None, after) => after.map(When::After),
    };
    let asked = newest.ok_or_else(|| {
        Error::not_found(format!("job {name} was never run here"))
            .next("give a directory that the job was given")
    })?;
    if !asked.lives && !args.force {
        return Err(Error::not_found(format!(
            "job {name} is not running: its newest run, epoch {}, {}, has ended",
            asked.claim.epoch,
            asked.describe()
        ))
        .next(
            "start the job again to have something to halt; add --force only where this machine \
             does not see the locks of other machines",
        )
        .into());
    }
    // Somebody else reads it later, so it has no age.
    let at = LocalTime::of_unix_ms(clock.unix_ms());
    let at = at.map_or_else(|| "an unknown time".to_owned(), |at| at.to_string());
    let text = format!(
        "asked by process {} on host {} at {at}\n",
        process_id(),
        host_name()
    );
    if let Some(when) = later {
        return Ok(ask_later(&job, &asked, when, &text)?);
    }
    let before = newest_commit(&job);
    let warnings = asked.ask(&text)?;
    let run = format!("epoch {}, {}", asked.claim.epoch, asked.describe());
    if args.no_wait || !asked.lives {
        let text = format!("asked job {name} ({run}) to halt after its next checkpoint\n");
        let document = json!({ "epoch": asked.claim.epoch.to_string(), "ended": false });
        return Ok(outcome(&job, exit::OK, text, document, warnings));
    }
    if talk {
        eprintln!(
            "orcheck halt: asked job {name} ({run}); waiting until it has taken a checkpoint and ended, at most {} s",
            timeout.as_secs_f64()
        );
    }
    let wait = Wait { text, timeout };
    let (asked, warnings) = wait.until_ended(&job, &trust, asked, warnings)?;
    let after = newest_commit(&Job::open_trusting(&args.place, &trust)?);
    Ok(halted(&job, &asked, (before, after), warnings))
}

fn outcome(
    job: &Job,
    code: u8,
    text: String,
    mut document: Value,
    warnings: Vec<String>,
) -> Outcome {
    document["job"] = json!(job.name.as_str());
    document["notes"] = json!(warnings);
    Outcome {
        code,
        text,
        document,
        warnings,
    }
}

fn remove(job: &Job) -> Result<Outcome, Error> {
    let gone = withdraw(job.catalog.places())?;
    let name = job.name.as_str();
    let text = match &gone[..] {
        [] => format!("nothing is asked of job {name}\n"),
        _ => format!("job {name} is not asked to halt any more\n"),
    };
    let document = json!({ "withdrawn": gone });
    Ok(outcome(job, exit::OK, text, document, job.notes()))
}

fn ask_later(job: &Job, asked: &NewestRun, when: When, text: &str) -> Result<Outcome, Error> {
    let earlier = later_requests(job.catalog.places())?;
    let warnings = asked.ask_later(when, text)?;
    let now = SystemClock::new().unix_ms();
    let (said, document) = described(when, now);
    let earlier = (earlier.iter())
        .find(|(epoch, _)| *epoch == asked.claim.epoch.counter)
        .and_then(|(_, earlier)| *earlier)
        .filter(|earlier| *earlier != when)
        .map_or(String::new(), |earlier| {
            format!(", no longer {}", described(earlier, now).0)
        });
    let text = format!(
        "asked job {} (epoch {}, {}) to halt {said}{earlier}\n",
        job.name.as_str(),
        asked.claim.epoch,
        asked.describe()
    );
    let mut document = json!({ "ended": false, "later": document });
    document["epoch"] = json!(asked.claim.epoch.to_string());
    Ok(outcome(job, exit::OK, text, document, warnings))
}

/// A wait for a run that was asked to halt with this text.
struct Wait {
    text: String,
    timeout: Duration,
}

impl Wait {
    /// Also asks runs that replace it. Returns the last run that was asked, and all warnings.
    fn until_ended(
        &self,
        job: &Job,
        trust: &Trust,
        mut asked: NewestRun,
        mut warnings: Vec<String>,
    ) -> Result<(NewestRun, Vec<String>), Failure> {
        let clock = SystemClock::new();
        let until = clock.now() + self.timeout;
        let newest = || NewestRun::newest(job.catalog.places(), trust);
        while let Some(now) = newest()?.filter(|now| now.lives) {
            if now.claim.epoch != asked.claim.epoch {
                warnings.extend(now.ask(&self.text)?);
                asked = now;
            }
            if clock.now() >= until {
                return Err(Failure::with(
                    exit::TIMEOUT,
                    Error::unavailable(format!(
                        "job {} still runs {} s after it was asked to halt; the request stays",
                        job.name.as_str(),
                        self.timeout.as_secs_f64()
                    ))
                    .next(
                        "wait on, or take it back with --remove; a program learns of it in orc_due \
                         and orc_checkpoint, with every_steps alone only at the next checkpoint",
                    ),
                ));
            }
            clock.sleep(POLL);
        }
        Ok((asked, warnings))
    }
}

/// A job's newest checkpoint.
type Newest = Option<(Step, Epoch, Level)>;

fn halted(
    job: &Job,
    asked: &NewestRun,
    (before, after): (Newest, Newest),
    warnings: Vec<String>,
) -> Outcome {
    let name = job.name.as_str();
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
        "newest_step": after.map(|(step, ..)| step.0),
    });
    outcome(job, code, text, document, warnings)
}

fn newest_commit(job: &Job) -> Newest {
    let commits = job.catalog.commits().iter();
    let keys = commits.map(|commit| (commit.record.step, commit.record.epoch, commit.record.level));
    keys.max()
}

/// The requests to the job, and whether it runs.
fn list(job: &Job, newest: Option<&NewestRun>) -> Result<Outcome, Error> {
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
    Ok(outcome(job, exit::OK, text, document, job.notes()))
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

/// The moment meant by `14:30`, `14:30:00`, `2026-11-24 14:30` or `90min`, in milliseconds since
/// 1970: a time of day is the next one, a span begins now.
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
        let tomorrow = day_after(today).ok_or_else(wrong)?;
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

fn day_after(today: LocalTime) -> Option<LocalTime> {
    // Noon tomorrow is tomorrow, however long today is.
    let noon = LocalTime {
        hour: 12,
        minute: 0,
        second: 0,
        ..today
    };
    LocalTime::of_unix_ms(noon.unix_ms()? + 86_400_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    // Breaks if: a time of day that has passed today counts as today; the run would halt at once.
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
