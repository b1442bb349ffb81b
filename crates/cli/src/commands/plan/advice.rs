//! `orcheck plan`: which levels of checkpoints a job on a machine takes, and how often.
//!
//! Not here: where figures come from (`figures.rs`), what follows from them (`orcheck_plan::advice`), pictures (`pictures.rs`).

use orcheck_format::{Error, Result};
use orcheck_plan::advice::{Choice, Failing, Machine, Rates, Scheme, Task, best};
use orcheck_plan::survival::{Redundancy, Setup};
use serde_json::{Value, json};

use super::figures::{Figures, flag, presets};
use super::pictures;
use crate::args::AdviceArgs;
use crate::exit;
use crate::output::{Failure, Outcome, count, percent, plain, right, span, table, table_text};

/// Probabilities of survival that are told, percent.
const PERCENTS: [f64; 3] = [90.0, 99.0, 99.9];

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
        let error = Error::invalid(
            "failures come so often that the job never gets on, whichever way checkpoints are kept",
        );
        return Err(error
            .next("take fewer nodes, or less time to start the program")
            .into());
    };
    let mut text = words(&choices, at, work_s);
    let options = options(&choices[at], &machine, &task);
    text += &format!("\nOptions:\n{options}\n");
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
            "{node_gb} GB of state and a copy of it do not fit into {memory_gb} GB of memory: a checkpoint then goes through a smaller pool, and the program waits for its flush"
        ));
    }
    let drawn = args.plot.as_deref();
    if let Some(path) = drawn {
        pictures::advice(path, &choices, at, &machine, &task, work_s)?;
        warnings.push(format!("picture written: {}", path.display()));
    }
    let documents: Vec<Value> = choices
        .iter()
        .map(|choice| document_of(choice, work_s))
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
            "work_s": work_s, "mtbf_s": choices[at].mtbf_s(), "plot": drawn,
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

/// What a scheme is called.
pub fn name_of(scheme: Scheme) -> String {
    match scheme {
        Scheme::Program => "program, global".to_owned(),
        Scheme::Global => "global".to_owned(),
        Scheme::Node => "node, global".to_owned(),
        Scheme::Peers { replicas } => format!("peers({replicas}), global"),
        Scheme::PeersAlone { replicas } => format!("peers({replicas})"),
    }
}

/// `1 copy`, `2 copies`.
pub fn copies(replicas: u32) -> String {
    match replicas {
        1 => "1 copy".to_owned(),
        replicas => format!("{replicas} copies"),
    }
}

/// The recommendation.
fn words(choices: &[Choice], at: usize, work_s: f64) -> String {
    let choice = &choices[at];
    let Ok(found) = &choice.found else {
        return String::new();
    };
    let interval = span(found.pattern.interval_s);
    let what = match choice.scheme {
        Scheme::Program => {
            "Let the program write a checkpoint to the file system itself".to_owned()
        }
        Scheme::Global => "Take a checkpoint to the file system (level global)".to_owned(),
        Scheme::Node => {
            "Take a checkpoint to the nodes (level node) and on to the file system (global)"
                .to_owned()
        }
        Scheme::Peers { replicas } => format!(
            "Take a checkpoint to the nodes with {} on other nodes (level peers) and on to the file system (global)",
            copies(replicas)
        ),
        Scheme::PeersAlone { replicas } => format!(
            "Take a checkpoint to the nodes with {} on other nodes (level peers)",
            copies(replicas)
        ),
    };
    let total_s = work_s / choice.efficiency();
    let advice = if found.pattern.interval_s < work_s {
        format!("{what}, after every {interval} of computing.")
    } else {
        format!(
            "Take no checkpoint during the work: failures that one survives come so seldom that it is worth it after every {interval} only."
        )
    };
    let mut text = format!(
        "{advice}\n{} of the time computes what counts; {} of work take {} in the mean, with a failure every {}.\n",
        percent(choice.efficiency()),
        span(work_s),
        span(total_s),
        span(choice.mtbf_s())
    );
    if choice.anew_mtbf_s.is_finite() {
        text += &format!(
            "What that does not survive begins the work anew: every {} in the mean.\n",
            span(choice.anew_mtbf_s)
        );
    }
    match &choices[0].found {
        _ if choice.scheme == Scheme::Program => {}
        Ok(own) => {
            let own_s = work_s / choices[0].efficiency();
            text += &format!(
                "Where the program writes checkpoints itself, at the best interval for that ({}), they take {}: {} more.\n",
                span(own.pattern.interval_s),
                span(own_s),
                span(own_s - total_s)
            );
        }
        Err(_) => {
            text += "Where the program writes checkpoints itself, it never gets on: failures come before it has written one.\n";
        }
    }
    text
}

/// Options of Orcheck for it.
fn options(choice: &Choice, machine: &Machine, task: &Task) -> String {
    let mut lines = Vec::new();
    if !matches!(choice.scheme, Scheme::PeersAlone { .. }) {
        lines.push("global = '/on/the/file/system'".to_owned());
    }
    match choice.scheme {
        Scheme::Program => {
            // Its copy in memory is what makes Orcheck cheap, and here it is not worth it.
            lines.push(
                "# and orc_wait(session, step, ORC_GLOBAL, timeout) after each orc_checkpoint"
                    .to_owned(),
            );
        }
        Scheme::Global => {}
        Scheme::Node => lines.push("node_dir = '/on/each/node'".to_owned()),
        Scheme::Peers { replicas } | Scheme::PeersAlone { replicas } => {
            lines.push("node_dir = '/on/each/node'".to_owned());
            lines.push(format!("peers = {replicas}"));
            let (of_unit, unit_mtbf_s) = machine.failing.together;
            if unit_mtbf_s.is_finite() && of_unit > 1 && task.nodes > of_unit {
                lines.push("topology = '/file/of/which/nodes/fail/together'".to_owned());
            }
        }
    }
    lines.push("interval = 'auto'".to_owned());
    lines.push(format!("mtbf_s = {:.0}", choice.mtbf_s().max(1.0)));
    lines.iter().map(|line| format!("  {line}\n")).collect()
}

/// All ways, one a row.
fn ways(choices: &[Choice], at: usize, work_s: f64) -> String {
    let mut shown = table(&[
        "levels",
        "every",
        "computes",
        "the work takes",
        "a checkpoint costs",
        "safe after",
        "a restart",
    ]);
    for (number, choice) in choices.iter().enumerate() {
        let mark = if number == at { " *" } else { "" };
        let mut cells = vec![plain(name_of(choice.scheme) + mark)];
        let each = |of: &dyn Fn(&orcheck_plan::levels::Level) -> f64| {
            let times: Vec<String> = choice
                .levels
                .0
                .iter()
                .map(|level| span(of(level)))
                .collect();
            times.join(", ")
        };
        match &choice.found {
            Ok(found) => {
                cells.extend([
                    right(span(found.pattern.interval_s)),
                    right(percent(choice.efficiency())),
                    right(span(work_s / choice.efficiency())),
                ]);
            }
            Err(_) => cells.extend(["-", "never", "never"].map(right)),
        }
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
    format!(
        "{}\n* recommended: of those that are as good as the best within 0.01 %, the one with the fewest parts.\n",
        table_text(&shown)
    )
}

/// The share of the time that goes into checkpoints that count.
fn checkpoints(choice: &Choice) -> f64 {
    let last = choice
        .levels
        .0
        .last()
        .map_or(0.0, |level| level.checkpoint_s);
    let found = choice.found.as_ref();
    found.map_or(0.0, |found| {
        found.efficiency * last / found.pattern.interval_s
    })
}

/// How many nodes may be lost at once, with as many replicas as there may be.
fn survival(machine: &Machine, task: &Task) -> Result<(Option<String>, Value)> {
    let mut rows = Vec::new();
    if machine.disk.is_some() {
        for replicas in 1..=orcheck_plan::advice::REPLICAS_MAX {
            let setup = Setup::alone(task.nodes, Redundancy::Random { replicas });
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
    let mut shown = table(&["copies", &heads[0], &heads[1], &heads[2]]);
    for (replicas, allowed) in rows {
        let mut cells = vec![right(replicas)];
        cells.extend(allowed.into_iter().map(right));
        shown.add_row(cells);
    }
    let text = format!(
        "\nMost nodes that may be lost at once, so that a restart needs no file system:\n{}",
        table_text(&shown)
    );
    Ok((Some(text), json!(documents)))
}

/// The figures, with their origins.
fn shown(figures: &Figures) -> String {
    let mut shown = table(&["figure", "value", "from"]);
    for (name, figure) in &figures.of {
        let value = if name.ends_with("mtbf") || name == "work" || name == "relaunch" {
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
    let found = choice.found.as_ref().ok();
    json!({
        "scheme": name_of(choice.scheme), "levels": levels,
        "interval_s": found.map(|found| found.pattern.interval_s),
        "efficiency": choice.efficiency(),
        "checkpoints_share": found.map(|_| checkpoints(choice)),
        "expected_s": found.map(|_| work_s / choice.efficiency()),
        "anew_mtbf_s": choice.anew_mtbf_s.is_finite().then_some(choice.anew_mtbf_s),
    })
}

/// The machines that are known.
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
            let value = if key.ends_with("mtbf") {
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
    text += "\nWhat is not there is not published as far as was found; look a figure up before you rely on it.\n";
    Ok(Outcome {
        code: exit::OK,
        text,
        document: json!({ "presets": documents }),
        warnings: Vec::new(),
    })
}
