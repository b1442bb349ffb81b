//! Defines the contents of the pictures of `orcheck plan`.
//!
//! Not here: how it is drawn (`picture.rs`).

use std::path::Path;

use orcheck_format::{Error, Result};
use orcheck_interval::Level;
use orcheck_planner::advice::{Choice, Machine, REPLICAS_MAX, Task, Way};
use orcheck_planner::life::{Failures, Job, Life};
use orcheck_planner::survival::{Redundancy, Setup};

use super::choices::{checkpoints, name_of};
use super::threads::spread;
use crate::output::{count, span};
use crate::picture::{Axis, Bars, Curve, Lines, Panel, draw};

/// How far below the lowest of the best efficiencies the axis reaches.
const SHOWN_BELOW: f64 = 0.1;
/// Points of a curve.
const POINTS: u32 = 120;
/// Number of runs over which the causes of waste are averaged, and the maximum number of segments
/// in all of them.
const RUNS: u64 = 200;
const SEGMENTS_MAX: f64 = 4e6;
/// Number of failures that a timeline shows; more cannot be distinguished.
const FAILURES_SHOWN: usize = 60;

/// What was drawn of a recommendation.
pub struct Drawn {
    /// Whether a run could not be simulated.
    pub left_out: bool,
    /// The bars: ways, and shares of all the time by cause.
    pub waste: Vec<(String, Vec<f64>)>,
}

/// The panels of a recommendation: efficiency by interval, waste by cause, survival by losses, one
/// run.
pub fn advice(
    path: &Path,
    choices: &[Choice],
    at: usize,
    machine: &Machine,
    task: &Task,
    work_s: f64,
) -> Result<Drawn> {
    let mut efficiencies = Vec::new();
    let (mut rows, mut left_out) = (Vec::new(), false);
    for (number, choice) in choices.iter().enumerate() {
        let found = choice.found.as_ref().ok().filter(|_| !choice.is_without());
        let Some(found) = found else {
            continue;
        };
        let name = name_of(choice.way);
        if is_drawn(choices, number, at) {
            efficiencies.push(Efficiency {
                name: name.clone(),
                best_s: found.pattern.interval_s,
                of: Box::new(|interval_s| choice.efficiency_at(interval_s)),
            });
        }
        match job(choice, work_s) {
            Some(job) => rows.push((name, of_table(choice, &waste(&job)?))),
            None => left_out = true,
        }
    }
    let mut panels = Vec::new();
    if !efficiencies.is_empty() {
        let title = "How often: time that computes what counts";
        panels.push(by_interval(title, &efficiencies));
    }
    if !rows.is_empty() {
        panels.push(causes("Where the other time goes", rows.clone()));
    }
    if machine.disk.is_some() {
        let setups = (1..=REPLICAS_MAX).map(|replicas| {
            let setup = Setup::alone(task.nodes, Redundancy::Peers { replicas });
            (count(u64::from(replicas), "replica"), setup)
        });
        let setups: Vec<(String, Setup)> =
            setups.filter(|(_, setup)| setup.check().is_ok()).collect();
        let title = "Nodes lost at once, without need of the file system";
        panels.extend(by_losses(title, &setups)?);
    }
    if let Some(job) = job(&choices[at], work_s).filter(|_| !choices[at].is_without()) {
        let life = job.live(1, 0)?;
        let title = format!("A run of {}, drawn by chance", name_of(choices[at].way));
        let mut names = choices[at].names.clone();
        names.resize(job.levels.0.len(), "the beginning");
        panels.push(timeline(&title, work_s, &life, &names));
    }
    if panels.is_empty() {
        return Err(Error::invalid(
            "--plot: expected work that checkpoints are worth taking for, found nothing to draw",
        ));
    }
    draw(path, &panels)?;
    Ok(Drawn {
        left_out,
        waste: rows,
    })
}

/// Whether there is a curve for it: among those with replicas, the recommended one and the best one
/// that also uses the file system.
fn is_drawn(choices: &[Choice], number: usize, at: usize) -> bool {
    let better = |other: &Choice| other.efficiency() > choices[number].efficiency();
    match choices[number].way {
        Way::PeersAlone { .. } => number == at,
        Way::Peers { .. } if number != at => !choices
            .iter()
            .any(|other| matches!(other.way, Way::Peers { .. }) && better(other)),
        _ => true,
    }
}

/// A job with these checkpoints; `None` if it makes no progress, or cannot be simulated.
fn job(choice: &Choice, work_s: f64) -> Option<Job> {
    let found = choice.found.as_ref().ok()?;
    let (mut levels, mut pattern) = (choice.levels.clone(), found.pattern.clone());
    if choice.from_nothing_mtbf_s.is_finite() {
        // One more level, whose only checkpoint is the beginning.
        let below = levels.0.last().copied()?;
        levels.0.push(Level {
            mtbf_s: choice.from_nothing_mtbf_s,
            ..below
        });
        pattern.every.push((work_s / pattern.interval_s) as u32 + 2);
    }
    let failures = Failures::Exponential;
    let job = Job {
        work_s,
        levels,
        pattern,
        failures,
    };
    job.check().is_ok().then_some(job)
}

/// Shares of all the time, averaged over some runs: checkpoints, repeated work, restarts.
fn waste(job: &Job) -> Result<Vec<f64>> {
    let segments = (job.work_s / job.pattern.interval_s).max(1.0);
    let runs = (SEGMENTS_MAX / segments).clamp(1.0, RUNS as f64) as u64;
    let lives = spread(runs, |number| {
        job.live(1, number).map(|life| Life {
            events: Vec::new(),
            ..life
        })
    })?;
    let lives = lives.into_iter().collect::<Result<Vec<Life>>>()?;
    Ok(shares(&lives))
}

/// The waste of a way as in the table, from the formulas, divided by causes. Only the division of
/// the time that is neither work nor checkpoints comes from runs. A few hundred runs may meet a
/// rare failure too often or never.
fn of_table(choice: &Choice, shares: &[f64]) -> Vec<f64> {
    // Breaks if: the sum comes from the runs too; bars would be longer than the table says.
    let waste = 1.0 - choice.efficiency();
    let checkpoints = checkpoints(choice).min(waste);
    let (lost, restarts) = (shares[1], shares[2]);
    let of_lost = match lost + restarts {
        0.0 => 1.0,
        both => lost / both,
    };
    let rest = waste - checkpoints;
    vec![checkpoints, rest * of_lost, rest * (1.0 - of_lost)]
}

/// Shares of all the time of these runs: checkpoints, repeated work, restarts.
pub fn shares(lives: &[Life]) -> Vec<f64> {
    let sum = |of: &dyn Fn(&Life) -> f64| lives.iter().map(of).sum::<f64>();
    let total_s = sum(&|life| life.total_s);
    [
        sum(&|life| life.checkpoints_s),
        sum(&|life| life.lost_s),
        sum(&|life| life.restarts_s),
    ]
    .map(|time_s| time_s / total_s)
    .to_vec()
}

/// Bars of waste by cause.
pub fn causes(title: &str, rows: Vec<(String, Vec<f64>)>) -> Panel {
    Panel::Bars(Bars {
        title: title.to_owned(),
        x_label: "of all the time",
        parts: vec!["checkpoints", "done again", "restarts"],
        rows,
    })
}

/// The efficiency of checkpoints of one kind, by their interval.
pub struct Efficiency<'a> {
    pub name: String,
    /// The best interval, seconds.
    pub best_s: f64,
    /// The fraction of the time that is useful computing; `None` for an impossible interval.
    pub of: Box<dyn Fn(f64) -> Option<f64> + 'a>,
}

/// Efficiency by interval, around the best one of each; the best ones as points.
pub fn by_interval(title: &str, of: &[Efficiency<'_>]) -> Panel {
    let all_s = || of.iter().map(|one| one.best_s);
    let low = (all_s().fold(f64::INFINITY, f64::min) / 8.0).ln();
    let high = (all_s().fold(0.0, f64::max) * 8.0).ln();
    let best = |one: &Efficiency<'_>| Some((one.best_s, (one.of)(one.best_s)?));
    let best: Vec<(f64, f64)> = of.iter().filter_map(best).collect();
    // Values far below all of them are left out: beside those, all others would look alike.
    let least = best.iter().map(|&(_, efficiency)| efficiency);
    let floor = (least.fold(1.0, f64::min) - SHOWN_BELOW).max(0.0);
    let mut curves = Vec::new();
    for one in of {
        let shares = (0..=POINTS).map(|n| f64::from(n) / f64::from(POINTS));
        let intervals = shares.map(|share| (low + (high - low) * share).exp());
        let points = intervals.filter_map(|s| Some((s, (one.of)(s)?)));
        curves.push(Curve {
            name: one.name.clone(),
            points: points.filter(|&(_, found)| found >= floor).collect(),
            dots: false,
        });
    }
    curves.push(Curve {
        name: "best".to_owned(),
        points: best,
        dots: true,
    });
    Panel::Lines(Lines {
        title: title.to_owned(),
        x: (Axis::Times, "computing between two checkpoints"),
        y: (Axis::PartOfShare, "computes what counts"),
        curves,
    })
}

/// Survival by losses, until it is unlikely; `None` if only trials can tell.
///
/// # Errors
/// As [`Setup::exact`].
pub fn by_losses(title: &str, setups: &[(String, Setup)]) -> Result<Option<Panel>> {
    let mut most = 1;
    for (_, setup) in setups {
        most = most.max(setup.allowed(0.02)?.unwrap_or(0).min(setup.units()));
    }
    let step = most.div_ceil(POINTS).max(1);
    let mut curves = Vec::new();
    for (name, setup) in setups {
        let mut points = Vec::new();
        for lost in (0..=most.min(setup.units())).step_by(step as usize) {
            points.extend(
                setup
                    .exact(lost)?
                    .map(|survived| (f64::from(lost), survived)),
            );
        }
        if !points.is_empty() {
            curves.push(Curve {
                name: name.clone(),
                points,
                dots: false,
            });
        }
    }
    Ok((!curves.is_empty()).then(|| {
        Panel::Lines(Lines {
            title: title.to_owned(),
            x: (Axis::Count, "lost at once"),
            y: (Axis::Share, "survived"),
            curves,
        })
    }))
}

/// The progress of a run over time: it falls back with each failure, and stands still during a
/// restart.
pub fn timeline(title: &str, work_s: f64, life: &Life, names: &[impl AsRef<str>]) -> Panel {
    let shown = &life.events[..life.events.len().min(FAILURES_SHOWN)];
    let (mut done, mut struck) = (vec![(0.0, 0.0)], vec![Vec::new(); names.len()]);
    for event in shown {
        done.push((event.at_s, event.reached_s / work_s));
        struck[event.level].push((event.at_s, event.reached_s / work_s));
        done.push((event.at_s, event.back_to_s / work_s));
        done.push((event.again_s, event.back_to_s / work_s));
    }
    if shown.len() == life.events.len() {
        done.push((life.total_s, 1.0));
    }
    let mut curves = vec![Curve {
        name: "computed".to_owned(),
        points: done,
        dots: false,
    }];
    for (name, points) in names.iter().zip(struck) {
        let name = format!("failure that needs {}", name.as_ref());
        curves.push(Curve {
            name,
            points,
            dots: true,
        });
    }
    let first = if shown.len() < life.events.len() {
        format!(" (its first {} failures)", shown.len())
    } else {
        format!(" ({})", span(life.total_s))
    };
    Panel::Lines(Lines {
        title: format!("{title}{first}"),
        x: (Axis::Time, "time"),
        y: (Axis::Share, "of the work"),
        curves,
    })
}
