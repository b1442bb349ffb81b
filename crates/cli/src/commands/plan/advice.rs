//! Recommends, for `orcheck plan`, which levels of checkpoints a job on a machine takes, and how
//! often.
//!
//! Not here: the source of figures (`figures.rs`), the computation (`orcheck_planner::advice`),
//! pictures (`pictures.rs`).

use orcheck_format::{Error, Result};
use orcheck_interval::Level;
use orcheck_planner::advice::{Choice, Failing, Machine, Rates, Task, Way, best};
use orcheck_planner::survival::{Redundancy, Setup};
use serde_json::{Value, json};

use super::choices::{checkpoints, interval_s, name_of};
use super::figures::{Figures, flag, is_time, presets};
use super::interval::held_steps;
use super::pictures;
use crate::args::AdviceArgs;
use crate::exit;
use crate::output::{
    Failure, Outcome, count, draw_together, percent, plain, right, span, table, table_text,
};

/// Probabilities of survival that are reported, percent.
const PERCENTS: [f64; 3] = [90.0, 99.0, 99.9];

/// A job that takes this many times its work is as good as never done.
const HOPELESS: f64 = 1000.0;

/// Recommends.
pub fn run(args: &AdviceArgs) -> std::result::Result<Outcome, Failure> {
    if args.presets {
        return list();
    }
    let figures = Figures::gather(args)?;
    let (machine, task) = of(&figures);
    let work_s = figures.known("work");
    let choices = machine.choices(&task)?;
    let Some(at) = best(&choices) else {
        return Err(hopeless(&choices).into());
    };
    let mut text = words(&choices, at, work_s);
    let options = options(&choices[at], &machine, &task);
    text += &paced(&choices[at], work_s);
    text += &format!("\nOptions{}:\n{options}\n", beside(&choices[at]));
    text += &ways(&choices, at, work_s);
    let (losses, survival) = survival(&machine, &task)?;
    if let Some(losses) = losses {
        text += &losses;
    }
    text += &shown(&figures);
    let mut warnings = Vec::new();
    if let (Some(memory_gb), node_gb) = (figures.value("memory_gb"), figures.known("node_gb"))
        && 2.0 * node_gb > memory_gb
    {
        warnings.push(format!(
            "{node_gb} GB of state and a copy of it do not fit into {memory_gb} GB of memory: a \
             checkpoint then uses a smaller pool, and the program waits for its flush"
        ));
    }
    let drawn = args.plot.as_deref();
    let mut waste = Vec::new();
    if let Some(path) = drawn {
        let drawn = pictures::advice(path, &choices, at, &machine, &task, work_s)?;
        waste = drawn.waste;
        if drawn.left_out {
            warnings
                .push("runs with too many checkpoints to follow are not in the picture".to_owned());
        }
        warnings.push(format!("picture written: {}", path.display()));
    }
    let documents: Vec<Value> = choices
        .iter()
        .map(|choice| document_of(choice, work_s))
        .collect();
    let waste: Vec<Value> = (waste.iter())
        .map(|(way, of)| json!({ "way": way, "checkpoints": of[0], "done_again": of[1], "restarts": of[2] }))
        .collect();
    let used: serde_json::Map<String, Value> = (figures.of.iter())
        .map(|(name, figure)| {
            (
                name.clone(),
                json!({ "value": figure.value, "origin": figure.origin }),
            )
        })
        .collect();
    Ok(Outcome {
        code: exit::OK,
        text,
        document: json!({
            "recommended": documents[at], "options": options, "choices": documents, "survival": survival, "figures": used,
            "work_s": work_s, "mtbf_s": choices[at].mtbf_s(), "plot": drawn, "drawn_waste": waste,
        }),
        warnings,
    })
}

fn of(figures: &Figures) -> (Machine, Task) {
    let gb = |name: &str| figures.known(name) * 1e9;
    let time = |name: &str| figures.value(name).unwrap_or(f64::INFINITY);
    let share = figures.known("shared_percent") / 100.0;
    let disk = figures.value("disk_write_gb_s").map(|write_gb_s| Rates {
        write_bytes_per_s: write_gb_s * 1e9,
        read_bytes_per_s: gb("disk_read_gb_s"),
    });
    let machine = Machine {
        memory_bytes_per_s: gb("memory_gb_s"),
        copy_bytes_per_s: gb("copy_gb_s"),
        memory_passes: figures.known("memory_passes"),
        disk,
        network_bytes_per_s: gb("network_gb_s"),
        shared: Rates {
            write_bytes_per_s: gb("shared_write_gb_s") * share,
            read_bytes_per_s: gb("shared_read_gb_s") * share,
        },
        failing: Failing {
            process_mtbf_s: time("process_mtbf"),
            node_mtbf_s: time("node_mtbf"),
            together: (
                figures.value("together").map_or(1, |nodes| nodes as u32),
                time("together_mtbf"),
            ),
            system_mtbf_s: time("system_mtbf"),
        },
    };
    let task = Task {
        nodes: figures.known("nodes") as u32,
        node_bytes: gb("node_gb"),
        relaunch_s: figures.known("relaunch"),
        work_s: figures.known("work"),
    };
    (machine, task)
}

/// The error that the job makes no progress in any way.
fn hopeless(choices: &[Choice]) -> Error {
    let last = choices.iter().filter_map(|choice| choice.levels.0.last());
    let least = |of: &dyn Fn(&Level) -> f64| last.clone().map(of).fold(f64::INFINITY, f64::min);
    let (cost_s, restart_s) = (
        least(&|level| level.checkpoint_s),
        least(&|level| level.restart_s),
    );
    let mtbf_s = choices.first().map_or(0.0, Choice::mtbf_s);
    let next = if restart_s > cost_s {
        "start the program sooner (--relaunch), read faster, or take fewer nodes (--nodes)"
    } else {
        "keep less (--node-gb), write faster, or take fewer nodes (--nodes)"
    };
    Error::invalid(format!(
        "the job never makes progress, whichever way checkpoints are kept: something fails every {}, while a checkpoint costs {} at least, and a restart takes {}",
        span(mtbf_s),
        span(cost_s),
        span(restart_s)
    ))
    .at("--node-mtbf, --process-mtbf, --together-mtbf, --system-mtbf")
    .next(next)
}

/// The recommendation in words.
fn words(choices: &[Choice], at: usize, work_s: f64) -> String {
    let choice = &choices[at];
    let interval = span(interval_s(choice));
    let what = match choice.way {
        Way::Program => "Let the program write a checkpoint to the file system itself".to_owned(),
        Way::Global => "Take a checkpoint to the file system (level global)".to_owned(),
        Way::Node => {
            "Take a checkpoint to the nodes (level node) and on to the file system (global)"
                .to_owned()
        }
        Way::Peers { replicas } => format!(
            "Take a checkpoint to the nodes with {} on other nodes (level peers) and on to the file system (global)",
            count(u64::from(replicas), "replica")
        ),
        Way::PeersAlone { replicas } => format!(
            "Take a checkpoint to the nodes with {} on other nodes (level peers)",
            count(u64::from(replicas), "replica")
        ),
    };
    let total_s = work_s / choice.efficiency();
    let advice = if choice.is_without() {
        "Take no checkpoint: for so little work, with so few failures, checkpoints cost more time than they save.".to_owned()
    } else {
        format!("{what}, after every {interval} of computing.")
    };
    let mut text = format!(
        "{advice}\n{} of the time computes what counts; {} of work take {} on average, with a failure every {}.\n",
        percent(choice.efficiency()),
        span(work_s),
        span(total_s),
        span(choice.mtbf_s())
    );
    if choice.from_nothing_mtbf_s.is_finite() && !choice.is_without() {
        text += &format!(
            "A failure that this does not survive starts the work over: every {} on average. Nothing is on the file system at the end; also set `global` for what must outlive the allocation.\n",
            span(choice.from_nothing_mtbf_s)
        );
    }
    let own_s = work_s / choices[0].efficiency();
    match &choices[0].found {
        _ if choice.way == Way::Program || choice.is_without() => {}
        _ if choices[0].is_without() && own_s < HOPELESS * work_s => {
            text += &format!(
                "Where the program writes checkpoints itself it is best off without any: the work then takes {}, {} more.\n",
                span(own_s),
                span(own_s - total_s)
            );
        }
        Ok(own) if own_s < HOPELESS * work_s => {
            text += &format!(
                "Where the program writes checkpoints itself, at the best interval for that ({}), they take {}: {} more.\n",
                span(own.pattern.interval_s),
                span(own_s),
                span(own_s - total_s)
            );
        }
        _ => {
            text += "Where the program writes checkpoints itself, it never makes progress: failures come before it has written one.\n";
        }
    }
    text
}

/// What a pace of its own for each level gives.
fn paced(choice: &Choice, work_s: f64) -> String {
    let Some((_, best)) = choice.paced.as_ref().filter(|_| !choice.is_without()) else {
        return String::new();
    };
    let every = choice.names.iter().zip(&best.pattern.every);
    let every = every.map(|(name, &every)| {
        format!(
            "{name} every {}",
            span(f64::from(every) * best.pattern.interval_s)
        )
    });
    let every: Vec<String> = every.collect();
    format!(
        "With a pace of its own for each level, {}, it is {} of the time, and the work takes {}: {} less.\n",
        every.join(" and "),
        percent(best.efficiency),
        span(work_s / best.efficiency),
        span(work_s / choice.efficiency() - work_s / best.efficiency),
    )
}

/// What else to do with these options.
fn beside(choice: &Choice) -> &'static str {
    match choice.is_without() {
        true => "",
        // Breaks if: it is not reported; the program's own text often has a trigger.
        false => {
            " (remove other triggers, such as `every_s`, from the options that the program sets)"
        }
    }
}

/// Options of Orcheck for it.
fn options(choice: &Choice, machine: &Machine, task: &Task) -> String {
    if choice.is_without() {
        return "  none\n".to_owned();
    }
    let mut lines = Vec::new();
    if !matches!(choice.way, Way::PeersAlone { .. }) {
        lines.push("global = '/on/the/file/system'".to_owned());
    }
    match choice.way {
        // The triggers do not measure other waits, so the interval is given.
        Way::Program => {
            lines.push(format!("every_s = {:.0}", interval_s(choice)));
            lines.push(
                "# and orc_wait(session, step, ORC_GLOBAL, timeout) after each orc_checkpoint"
                    .to_owned(),
            );
        }
        Way::Global => {}
        Way::Node => lines.push("node_dir = '/on/each/node'".to_owned()),
        Way::Peers { replicas } | Way::PeersAlone { replicas } => {
            lines.push("node_dir = '/on/each/node'".to_owned());
            lines.push(format!("peers = {replicas}"));
            let (of_unit, unit_mtbf_s) = machine.failing.together;
            if unit_mtbf_s.is_finite() && of_unit > 1 && task.nodes / of_unit > replicas {
                lines.push("topology = '/file/of/which/nodes/fail/together'".to_owned());
            }
        }
    }
    if choice.way != Way::Program {
        lines.push("interval = 'auto'".to_owned());
    }
    match &choice.paced {
        Some((levels, best)) => {
            lines.extend(held_steps(levels, &best.pattern).map(str::to_owned));
            for (name, level) in choice.names.iter().zip(&levels.0) {
                lines.push(format!("[level.{name}]"));
                lines.push(format!("mtbf_s = {:.0}", level.mtbf_s.clamp(1.0, 1e12)));
            }
        }
        None if choice.way != Way::Program => {
            lines.push(format!("mtbf_s = {:.0}", choice.mtbf_s().max(1.0)));
        }
        None => {}
    }
    lines.iter().map(|line| format!("  {line}\n")).collect()
}

/// All ways, one per row.
fn ways(choices: &[Choice], at: usize, work_s: f64) -> String {
    let mut shown = table(&[
        "levels",
        "every",
        "computes",
        "takes",
        "costs",
        "safe after",
        "a restart",
    ]);
    for (number, choice) in choices.iter().enumerate() {
        let mark = if number == at { " *" } else { "" };
        // Each level in a line of its own, beside its times: a terminal is too narrow for all in
        // one.
        let name = name_of(choice.way) + mark;
        let mut cells = vec![plain(name.replace(", ", ",\n"))];
        let each = |of: &dyn Fn(&Level) -> f64| {
            let times: Vec<String> = choice
                .levels
                .0
                .iter()
                .map(|level| span(of(level)))
                .collect();
            times.join("\n")
        };
        let efficiency = choice.efficiency();
        let every = match choice.is_without() {
            true => "-".to_owned(),
            false => span(interval_s(choice)),
        };
        let total_s = if efficiency > 1.0 / HOPELESS {
            work_s / efficiency
        } else {
            f64::INFINITY
        };
        cells.extend([every, percent(efficiency), span(total_s)].map(right));
        let last = choice
            .levels
            .0
            .last()
            .map_or(0.0, |level| level.checkpoint_s);
        cells.extend([
            right(span(last)),
            right(each(&|level| level.safe_after_s)),
            right(each(&|level| level.restart_s)),
        ]);
        shown.add_row(cells);
    }
    draw_together(&mut shown);
    format!(
        "{}\n* recommended: of those that are as good as the best within 0.01 % of the time, the first with Orcheck. '-': no checkpoint is worth it.\n\
         every: computing between two checkpoints; takes: the work, with all failures; costs: the time that the program waits for a checkpoint.\n",
        table_text(&shown)
    )
}

/// How many nodes may be lost at once, for each possible number of replicas.
fn survival(machine: &Machine, task: &Task) -> Result<(Option<String>, Value)> {
    let mut rows = Vec::new();
    if machine.disk.is_some() {
        for replicas in 1..=orcheck_planner::advice::REPLICAS_MAX {
            let setup = Setup::alone(task.nodes, Redundancy::Peers { replicas });
            if setup.check().is_err() {
                break;
            }
            let mut allowed = Vec::new();
            for percent in PERCENTS {
                allowed.push(setup.allowed(percent / 100.0)?.unwrap_or(replicas));
            }
            rows.push((replicas, allowed));
        }
    }
    let documents: Vec<Value> = rows
        .iter()
        .map(|(replicas, allowed)| json!({ "replicas": replicas, "percent": PERCENTS, "lost": allowed }))
        .collect();
    if rows.is_empty() {
        return Ok((None, json!(documents)));
    }
    let heads = PERCENTS.map(|percent| format!("{percent} %"));
    let mut shown = table(&["replicas", &heads[0], &heads[1], &heads[2]]);
    for (replicas, allowed) in rows {
        let mut cells = vec![right(replicas)];
        cells.extend(allowed.into_iter().map(right));
        shown.add_row(cells);
    }
    let text = format!(
        "\nMost nodes, one by one anywhere, that may be lost at once so that a restart needs no file system:\n{}",
        table_text(&shown)
    );
    Ok((Some(text), json!(documents)))
}

/// The figures, with their origins.
fn shown(figures: &Figures) -> String {
    let mut shown = table(&["figure", "value", "from"]);
    for (name, figure) in &figures.of {
        let value = if is_time(name) {
            span(figure.value)
        } else {
            format!("{}", figure.value)
        };
        shown.add_row(vec![plain(flag(name)), right(value), plain(&figure.origin)]);
    }
    let about = match figures.about.as_str() {
        "" => "Figures".to_owned(),
        about => format!("Figures of {about}"),
    };
    format!("\n{about}:\n{}\n", table_text(&shown))
}

fn document_of(choice: &Choice, work_s: f64) -> Value {
    let levels: Vec<Value> = choice
        .names
        .iter()
        .zip(&choice.levels.0)
        .map(|(name, level)| {
            json!({
                "level": name, "checkpoint_s": level.checkpoint_s, "safe_after_s": level.safe_after_s, "restart_s": level.restart_s,
                "mtbf_s": level.mtbf_s.is_finite().then_some(level.mtbf_s),
            })
        })
        .collect();
    let found = choice.found.as_ref().ok().filter(|_| !choice.is_without());
    json!({
        "way": name_of(choice.way), "levels": levels,
        "interval_s": found.map(|found| found.pattern.interval_s),
        "paced": choice.paced.as_ref().map(|(_, best)| json!({ "interval_s": best.pattern.interval_s, "every": best.pattern.every, "efficiency": best.efficiency })),
        "efficiency": choice.efficiency(),
        "checkpoints_share": found.map(|_| checkpoints(choice)),
        "expected_s": (choice.efficiency() > 0.0).then(|| work_s / choice.efficiency()),
        "anew_mtbf_s": choice.from_nothing_mtbf_s.is_finite().then_some(choice.from_nothing_mtbf_s),
    })
}

/// The known machines.
fn list() -> std::result::Result<Outcome, Failure> {
    let (mut text, mut documents) = (String::new(), Vec::new());
    for (name, figures) in presets()? {
        text += &format!(
            "{name}: {}, {}\n",
            figures.about,
            count(figures.of.len() as u64, "figure")
        );
        let mut of = serde_json::Map::new();
        for (key, figure) in &figures.of {
            let value = if is_time(key) {
                span(figure.value)
            } else {
                figure.value.to_string()
            };
            text += &format!("  {:<20} {value:>12}  {}\n", flag(key), figure.origin);
            of.insert(
                key.clone(),
                json!({ "value": figure.value, "origin": figure.origin }),
            );
        }
        documents.push(json!({ "preset": name, "about": figures.about, "figures": of }));
    }
    text += "\nA missing figure was not found in any publication; look a figure up before you rely \
             on it.\n";
    Ok(Outcome {
        code: exit::OK,
        text,
        document: json!({ "presets": documents }),
        warnings: Vec::new(),
    })
}
