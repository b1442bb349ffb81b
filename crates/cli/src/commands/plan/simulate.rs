//! Implements `orcheck plan simulate`: how long a job takes with failures, run by run.
//!
//! Not here: the runs (`orcheck_planner::life`).

use std::path::Path;

use orcheck_format::{Error, Result};
use orcheck_interval::{Level, Levels, Pattern};
use orcheck_io::user::read_text;
use orcheck_planner::life::{Failures, Job, Life};
use serde_json::{Value, json};

use super::interval::{check_names, mtbf_s};
use super::pictures::{causes, shares, timeline};
use super::threads::spread;
use crate::args::{SimulateArgs, time_or_none};
use crate::exit;
use crate::output::{Failure, Outcome, count, percent, plain, right, span, table, table_text};
use crate::picture::draw;

/// Largest trace.
const TRACE_LIMIT_BYTES: u64 = 64 << 20;
/// Half-width of the 95 % interval of the mean in standard deviations, and the minimum number of
/// runs for which it is valid.
const SIGMAS: f64 = 1.96;
const RUNS_LEAST: usize = 30;

/// Simulates runs.
pub fn run(args: &SimulateArgs) -> std::result::Result<Outcome, Failure> {
    let (names, job) = job_of(args)?;
    let given = match (args.interval, args.pattern.is_empty()) {
        (_, false) => "--pattern",
        (Some(_), true) => "--interval",
        (None, true) => "--level, --checkpoint, --mtbf",
    };
    job.check().map_err(|error| error.at(given))?;
    let lives = spread(args.runs, |number| {
        job.live(args.seed, number).map(|life| Life {
            events: Vec::new(),
            ..life
        })
    })?;
    let lives = lives.into_iter().collect::<Result<Vec<Life>>>()?;
    let given_up = lives.iter().filter(|life| !life.done).count();
    let mut warnings = Vec::new();
    if given_up > 0 {
        warnings.push(format!(
            "{given_up} of {} runs never got on, and were given up after 10,000 times the work or a million failures: no mean tells anything",
            args.runs
        ));
    }
    let (text, mut document) = summary(args, &names, &job, &lives);
    document["given_up"] = json!(given_up);
    if let Some(path) = &args.plot {
        let first = job.live(args.seed, 0)?;
        let rows = vec![("all runs".to_owned(), shares(&lives))];
        let causes = causes("Where the time goes, apart from computing", rows);
        draw(
            path,
            &[
                timeline("The first run", job.work_s, &first, &names),
                causes,
            ],
        )?;
        warnings.push(format!("picture written: {}", path.display()));
    }
    Ok(Outcome {
        code: exit::OK,
        text,
        document,
        warnings,
    })
}

/// The names of the levels, and the job.
fn job_of(args: &SimulateArgs) -> Result<(Vec<String>, Job)> {
    check_names(&args.job)?;
    let (mut names, mut levels): (Vec<String>, Vec<Level>) = args
        .job
        .levels
        .iter()
        .map(|named| (named.name.clone(), named.level))
        .unzip();
    if let Some(checkpoint_s) = args.job.checkpoint {
        names.push("checkpoints".to_owned());
        levels.push(Level {
            checkpoint_s,
            safe_after_s: 0.0,
            restart_s: args.job.restart.unwrap_or(checkpoint_s),
            mtbf_s: mtbf_s(&args.job)?,
        });
    }
    let levels = Levels(levels);
    let pattern = match args.interval {
        Some(interval_s) if !args.pattern.is_empty() => Pattern {
            interval_s,
            every: args.pattern.clone(),
        },
        Some(interval_s) if levels.0.len() == 1 => Pattern {
            interval_s,
            every: vec![1],
        },
        given => {
            let recommended = levels.recommend();
            let pattern = recommended
                .map_err(|error| error.at("--level, --checkpoint, --mtbf"))?
                .pattern;
            Pattern {
                interval_s: given.unwrap_or(pattern.interval_s),
                ..pattern
            }
        }
    };
    let failures = match (&args.trace, args.weibull) {
        (Some(path), _) => Failures::Trace(trace(path, &names)?),
        (None, Some(shape)) => Failures::Weibull { shape },
        (None, None) => Failures::Exponential,
    };
    let job = Job {
        work_s: args.job.work,
        levels,
        pattern,
        failures,
    };
    Ok((names, job))
}

/// A line for each failure: its time, and the level that it needs.
fn trace(path: &Path, names: &[String]) -> Result<Vec<(f64, usize)>> {
    let text = read_text(path, TRACE_LIMIT_BYTES)?;
    let mut failures = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default().trim();
        if line.is_empty() {
            continue;
        }
        let wrong = |what: String| {
            Error::invalid(what).at(format!("{}, line {}", path.display(), number + 1))
        };
        let (time, name) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        let at_s = time_or_none(time).map_err(|what| wrong(format!("'{time}': {what}")))?;
        let level = match name.trim() {
            "" if names.len() == 1 => 0,
            name => names
                .iter()
                .position(|other| other == name)
                .ok_or_else(|| {
                    wrong(format!(
                        "'{name}': expected one of the levels {}",
                        names.join(", ")
                    ))
                })?,
        };
        let before_s = failures
            .last()
            .map_or(0.0, |&(at_s, _): &(f64, usize)| at_s);
        if at_s <= 0.0 || at_s < before_s {
            return Err(wrong(format!(
                "'{time}': expected a time above 0, and not before that of the line before"
            )));
        }
        failures.push((at_s, level));
    }
    if failures.is_empty() {
        return Err(Error::invalid(
            "expected a line for each failure, such as 36.5h global, found none",
        )
        .at(format!("--trace {}", path.display())));
    }
    Ok(failures)
}

// tidy: long because it is one report, from the figures to the text and the document
fn summary(args: &SimulateArgs, names: &[String], job: &Job, lives: &[Life]) -> (String, Value) {
    let runs = lives.len() as f64;
    let mean = |of: &dyn Fn(&Life) -> f64| lives.iter().map(of).sum::<f64>() / runs;
    let total_s = mean(&|life| life.total_s);
    let spread_s =
        (mean(&|life| (life.total_s - total_s).powi(2)) / (runs - 1.0).max(1.0)).sqrt() * SIGMAS;
    let mut sorted: Vec<f64> = lives.iter().map(|life| life.total_s).collect();
    sorted.sort_by(f64::total_cmp);
    let quantile = |share: f64| sorted[((sorted.len() - 1) as f64 * share).round() as usize];
    let (tenth_s, nine_tenths_s) = (quantile(0.1), quantile(0.9));
    let causes = [
        ("computing", job.work_s),
        ("checkpoints", mean(&|life| life.checkpoints_s)),
        ("done again", mean(&|life| life.lost_s)),
        ("restarts", mean(&|life| life.restarts_s)),
    ];
    // There is a formula only for random failures.
    let formula = matches!(job.failures, Failures::Exponential)
        .then(|| job.levels.efficiency(&job.pattern).ok());
    let expected_s = formula.flatten().map(|efficiency| job.work_s / efficiency);
    let mut shown = table(&["time for", "on average", "of all"]);
    for (cause, time_s) in causes {
        shown.add_row(vec![
            plain(cause),
            right(span(time_s)),
            right(percent(time_s / total_s)),
        ]);
    }
    let mut failed = table(&["level", "every", "of computing", "failures on average"]);
    let mut levels = Vec::new();
    for (number, (name, every)) in names.iter().zip(&job.pattern.every).enumerate() {
        let apart_s = f64::from(*every) * job.pattern.interval_s;
        let failures = mean(&|life| life.failures[number] as f64);
        failed.add_row(vec![
            plain(name),
            right(every),
            right(span(apart_s)),
            right(format!("{failures:.2}")),
        ]);
        levels.push(
            json!({ "level": name, "every": every, "interval_s": apart_s, "failures": failures }),
        );
    }
    let formula_text =
        expected_s.map_or_else(String::new, |s| format!(" The formula says {}.", span(s)));
    // With few runs, the distribution of the mean is not close to normal.
    let interval = (lives.len() >= RUNS_LEAST)
        .then(|| ((total_s - spread_s).max(job.work_s), total_s + spread_s));
    let interval_text = interval.map_or_else(String::new, |(low_s, high_s)| {
        format!(
            " (95 % interval of the mean: {} to {})",
            span(low_s),
            span(high_s)
        )
    });
    let text = format!(
        "{} of work take {} on average over {}{interval_text}; a tenth takes less than {}, a tenth more than {}.{formula_text}\n\n{}\n{}",
        span(job.work_s),
        span(total_s),
        count(lives.len() as u64, "run"),
        span(tenth_s),
        span(nine_tenths_s),
        table_text(&shown),
        table_text(&failed)
    );
    let document = json!({
        "runs": lives.len(), "seed": args.seed, "work_s": job.work_s, "interval_s": job.pattern.interval_s,
        "total_s": total_s, "low_s": interval.map(|(low_s, _)| low_s), "high_s": interval.map(|(_, high_s)| high_s), "tenth_s": tenth_s, "nine_tenths_s": nine_tenths_s,
        "expected_s": expected_s, "checkpoints_s": causes[1].1, "lost_s": causes[2].1, "restarts_s": causes[3].1,
        "levels": levels,
    });
    (text, document)
}
