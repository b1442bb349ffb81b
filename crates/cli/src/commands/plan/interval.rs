//! Implements `orcheck plan interval`: how often to take checkpoints.
//!
//! Not here: the rules (`orcheck_interval::single`).

use std::collections::BTreeSet;

use orcheck_format::{Error, Result};
use orcheck_interval::{Level, Levels, Pattern, Recommended, Single};
use serde_json::{Value, json};

use super::pictures::{Efficiency, by_interval};
use crate::args::{IntervalArgs, JobArgs};
use crate::exit;
use crate::output::{Failure, Outcome, percent, plain, right, span, table, table_text};
use crate::picture::draw;

/// The levels for which there are options, from the weakest to the strongest.
const LEVELS: [&str; 3] = ["node", "peers", "global"];

/// A name, levels, and how often each is used.
type Named = (String, Levels, Pattern);

/// Computes the intervals.
pub fn run(args: &IntervalArgs) -> std::result::Result<Outcome, Failure> {
    let (text, document, curve) = match args.job.checkpoint {
        Some(checkpoint_s) => single(args, checkpoint_s)?,
        None => several(args)?,
    };
    let mut warnings = Vec::new();
    if let Some(path) = &args.plot {
        let title = "How often: time that computes what counts";
        let (name, levels, pattern) = curve;
        let best_s = pattern.interval_s;
        let of = move |interval_s| {
            let every = pattern.every.clone();
            levels.efficiency(&Pattern { interval_s, every }).ok()
        };
        let of = Box::new(of);
        draw(
            path,
            &[by_interval(title, &[Efficiency { name, best_s, of }])],
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

/// Mean time between failures of the whole job, seconds.
pub fn mtbf_s(job: &JobArgs) -> Result<f64> {
    match (job.mtbf, job.node_mtbf, job.nodes) {
        (Some(mtbf_s), ..) => Ok(mtbf_s),
        (None, Some(node_s), Some(nodes)) => Ok(node_s / f64::from(nodes)),
        _ => Err(Error::invalid(
            "no time between failures: expected --mtbf, or --node-mtbf and --nodes",
        )),
    }
}

/// Checkpoints of one kind.
fn single(args: &IntervalArgs, checkpoint_s: f64) -> Result<(String, Value, Named)> {
    let single = Single {
        checkpoint_s,
        restart_s: args.job.restart.unwrap_or(checkpoint_s),
        mtbf_s: mtbf_s(&args.job)?,
    };
    let mtbf_s = single.mtbf_s;
    let given = if args.job.mtbf.is_some() {
        "--mtbf, --checkpoint"
    } else {
        "--node-mtbf, --nodes, --checkpoint"
    };
    single.check().map_err(|error| error.at(given))?;
    let best_s = single.best_s();
    if !single.expected_s(args.job.work, best_s).is_finite() {
        let error = Error::invalid(
            "restarts take so long beside the time between failures that the job never makes progress",
        );
        return Err(error.at(format!("{given}, --restart")));
    }
    let rules = [
        ("best", best_s),
        ("Daly 2006", single.daly_s()),
        ("Young 1974", single.young_s()),
    ];
    let others = args.every.iter().map(|&interval_s| ("--every", interval_s));
    let mut shown = table(&[
        "rule",
        "interval",
        "computes",
        "checkpoints",
        "the work takes",
        "failures",
    ]);
    let mut documents = Vec::new();
    for (name, interval_s) in rules.into_iter().chain(others) {
        let (efficiency, expected_s) = (
            single.efficiency(interval_s),
            single.expected_s(args.job.work, interval_s),
        );
        shown.add_row(vec![
            plain(name),
            right(span(interval_s)),
            right(percent(efficiency)),
            right(percent(efficiency * checkpoint_s / interval_s)),
            right(span(expected_s)),
            right(format!("{:.1}", expected_s / mtbf_s)),
        ]);
        documents.push(json!({ "rule": name, "interval_s": interval_s, "efficiency": efficiency, "expected_s": expected_s, "failures": expected_s / mtbf_s }));
    }
    let text = recommendation(args, &single, &table_text(&shown));
    let document = json!({
        "mtbf_s": mtbf_s, "checkpoint_s": single.checkpoint_s, "restart_s": single.restart_s, "work_s": args.job.work,
        "interval_s": best_s, "efficiency": single.efficiency(best_s), "rules": documents,
    });
    let levels = Levels(vec![Level {
        checkpoint_s,
        safe_after_s: 0.0,
        restart_s: single.restart_s,
        mtbf_s,
    }]);
    let pattern = Pattern {
        interval_s: best_s,
        every: vec![1],
    };
    Ok((text, document, ("checkpoints".to_owned(), levels, pattern)))
}

/// What to do, and its result.
fn recommendation(args: &IntervalArgs, single: &Single, rules: &str) -> String {
    let best_s = single.best_s();
    let efficiency = single.efficiency(best_s);
    let text = format!(
        "Take a checkpoint after every {} of computing: {} of the time computes what counts, and {} of work take {} on average.\n\n\
         A failure every {}, a checkpoint costs {}, a restart {}.\n\n{}",
        span(best_s),
        percent(efficiency),
        span(args.job.work),
        span(single.expected_s(args.job.work, best_s)),
        span(single.mtbf_s),
        span(single.checkpoint_s),
        span(single.restart_s),
        rules
    );
    if best_s < args.job.work {
        return text;
    }
    // Begun again with each failure, like one segment that ends with the work.
    let whole = Single {
        checkpoint_s: 0.0,
        ..*single
    };
    let without_s = whole.expected_s(args.job.work, args.job.work);
    format!(
        "The work is shorter than the interval: without a checkpoint it takes {} on average. For more of it:\n{text}",
        span(without_s)
    )
}

/// # Errors
/// Invalid if two levels have the same name, or those of Orcheck come in another order.
pub fn check_names(job: &JobArgs) -> Result<()> {
    let names: BTreeSet<&str> = job.levels.iter().map(|named| named.name.as_str()).collect();
    if names.len() != job.levels.len() {
        return Err(Error::invalid(
            "--level: expected a name of its own for each level",
        ));
    }
    let known = job.levels.iter().map(|named| named.name.as_str());
    let known: Vec<&str> = known.filter(|name| LEVELS.contains(name)).collect();
    let place = |name: &str| LEVELS.iter().position(|known| *known == name);
    match known
        .windows(2)
        .find(|pair| place(pair[0]) > place(pair[1]))
    {
        Some(pair) => Err(Error::invalid(format!(
            "--level: levels go from the weakest to the strongest, found {} before {}",
            pair[0], pair[1]
        ))
        .next(format!("name {} before {}", pair[1], pair[0]))),
        None => Ok(()),
    }
}

/// Checkpoints of several levels.
fn several(args: &IntervalArgs) -> Result<(String, Value, Named)> {
    check_names(&args.job)?;
    let levels = Levels(args.job.levels.iter().map(|named| named.level).collect());
    let at = |error: Error| error.at("--level");
    let best = levels.recommend().map_err(at)?;
    let interval_s = best.pattern.interval_s;
    let mut shown = table(&[
        "level",
        "every",
        "of computing",
        "costs",
        "reached after",
        "a failure every",
        "a restart",
    ]);
    let (mut words, mut documents) = (Vec::new(), Vec::new());
    for (named, &every) in args.job.levels.iter().zip(&best.pattern.every) {
        let (name, level) = (&named.name, named.level);
        let apart_s = f64::from(every) * interval_s;
        shown.add_row(vec![
            plain(name),
            right(every),
            right(span(apart_s)),
            right(span(level.checkpoint_s)),
            right(span(level.safe_after_s)),
            right(span(level.mtbf_s)),
            right(span(level.restart_s)),
        ]);
        words.push(format!("{name} every {}", span(apart_s)));
        documents.push(json!({
            "level": name, "every": every, "interval_s": apart_s, "checkpoint_s": level.checkpoint_s, "safe_after_s": level.safe_after_s,
            "mtbf_s": level.mtbf_s, "restart_s": level.restart_s,
        }));
    }
    let expected_s = args.job.work / best.efficiency;
    let others = others(args, &levels);
    let options = options(args, &levels, &best.pattern);
    let text = format!(
        "Take checkpoints of level {} of computing: {} of the time computes what counts, and {} of work take {} on average.\n\n{}\n{}{}",
        words.join(", "),
        percent(best.efficiency),
        span(args.job.work),
        span(expected_s),
        table_text(&shown),
        beside(args, &best, &others),
        match &options {
            Ok(options) => format!("\nOptions:\n{options}"),
            Err(why) => format!("\nno options: {why}\n"),
        },
    );
    let others: Vec<Value> = others.iter().map(Other::document).collect();
    let document = json!({
        "interval_s": interval_s, "efficiency": best.efficiency, "work_s": args.job.work, "expected_s": expected_s, "levels": documents,
        "others": others, "options": options.ok(),
    });
    let names: Vec<&str> = args
        .job
        .levels
        .iter()
        .map(|named| named.name.as_str())
        .collect();
    Ok((text, document, (names.join(", "), levels, best.pattern)))
}

/// Another way to use these levels, for comparison.
struct Other {
    name: String,
    /// The best interval, and the fraction of the time that is left; `None` if the job makes no
    /// progress.
    best: Option<Recommended>,
    work_s: f64,
}

impl Other {
    fn document(&self) -> Value {
        let best = self.best.as_ref();
        json!({
            "way": self.name,
            "interval_s": best.map(|best| best.pattern.interval_s),
            "efficiency": best.map(|best| best.efficiency),
            "expected_s": best.map(|best| self.work_s / best.efficiency),
        })
    }
}

/// Of several levels: everything to all of them each time, and the strongest one alone.
fn others(args: &IntervalArgs, levels: &Levels) -> Vec<Other> {
    let work_s = args.job.work;
    let ([_, .., strongest], Some(named)) = (&levels.0[..], args.job.levels.last()) else {
        return Vec::new();
    };
    // All failures need it then. What it costs beside the weaker levels is not given.
    let rate: f64 = levels.0.iter().map(|level| 1.0 / level.mtbf_s).sum();
    let alone = Levels(vec![Level {
        mtbf_s: 1.0 / rate,
        ..*strongest
    }]);
    vec![
        Other {
            name: "every checkpoint to all levels".to_owned(),
            best: levels.recommend_together().ok(),
            work_s,
        },
        Other {
            name: format!("level {} alone, at the same cost", named.name),
            best: alone.recommend().ok(),
            work_s,
        },
    ]
}

/// The price of the pattern beside the others.
fn beside(args: &IntervalArgs, best: &Recommended, others: &[Other]) -> String {
    if others.is_empty() {
        return String::new();
    }
    let work_s = args.job.work;
    let mut shown = table(&["way", "every", "computes", "the work takes", "more"]);
    let total_s = work_s / best.efficiency;
    let mut row = |name: &str, best: Option<&Recommended>| {
        let Some(best) = best else {
            let never = "-".to_owned();
            let cells = [never.clone(), never.clone(), "never ends".to_owned(), never];
            let cells = cells.map(right);
            shown.add_row([plain(name)].into_iter().chain(cells).collect::<Vec<_>>());
            return;
        };
        let takes_s = work_s / best.efficiency;
        shown.add_row(vec![
            plain(name),
            right(span(best.pattern.interval_s)),
            right(percent(best.efficiency)),
            right(span(takes_s)),
            right(match takes_s > total_s {
                true => span(takes_s - total_s),
                false => "-".to_owned(),
            }),
        ]);
    };
    row("each level at its own pace", Some(best));
    for other in others {
        row(&other.name, other.best.as_ref());
    }
    table_text(&shown)
}

/// The options of Orcheck for a pattern, to paste; an error if the levels are not Orcheck's.
fn options(
    args: &IntervalArgs,
    levels: &Levels,
    pattern: &Pattern,
) -> std::result::Result<String, String> {
    let job = &args.job;
    let names: Vec<&str> = job.levels.iter().map(|named| named.name.as_str()).collect();
    if !matches!(
        names[..],
        ["node" | "peers", "global"] | ["node" | "peers" | "global"]
    ) {
        return Err(why_not(&names));
    }
    let mut text =
        held_steps(levels, pattern).map_or_else(String::new, |line| format!("  {line}\n"));
    for (named, &every) in job.levels.iter().zip(&pattern.every) {
        text += &match args.step {
            Some(step_s) => {
                let steps = (pattern.interval_s / step_s).round().max(1.0) as u64;
                let every_steps = steps.saturating_mul(u64::from(every));
                format!("  [level.{}]\n  every_steps = {every_steps}\n", named.name)
            }
            None => pace(&named.name, f64::from(every) * pattern.interval_s),
        };
    }
    Ok(text)
}

/// Why there are no options for levels of these names.
fn why_not(names: &[&str]) -> String {
    let unknown = names.iter().find(|name| !LEVELS.contains(name));
    // A level has one name in three letters: `nodes`, `peers(1)` and `Global` are meant so.
    let start = |name: &str| name.to_lowercase().chars().take(3).collect::<String>();
    let near = unknown.and_then(|name| LEVELS.iter().find(|known| start(known) == start(name)));
    match (unknown, near) {
        (Some(name), Some(near)) => {
            format!("Orcheck has no level '{name}'; did you mean {near}?")
        }
        (Some(name), None) => {
            format!("Orcheck has no level '{name}': a job has level node or peers, and global")
        }
        (None, _) => "a job has level node or level peers, not both".to_owned(),
    }
}

/// The option with which a checkpoint can be taken while another one is on its way to the strongest
/// level, if a pattern needs that.
pub fn held_steps(levels: &Levels, pattern: &Pattern) -> Option<&'static str> {
    let slow = |level: &Level| level.safe_after_s > pattern.interval_s;
    levels
        .0
        .last()
        .is_some_and(slow)
        .then_some("held_steps = 2")
}

/// The table of one level. The time is rounded down: a stronger level is due just before the weaker
/// one would be, and both go together.
fn pace(level: &str, every_s: f64) -> String {
    let digits = (3 - every_s.log10().floor() as i32).clamp(0, 6);
    let scale = 10f64.powi(digits);
    let every_s = (every_s * scale).floor() / scale;
    format!("  [level.{level}]\n  every_s = {every_s}\n")
}
