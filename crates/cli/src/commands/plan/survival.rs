//! Implements `orcheck plan survival`: how many losses a job survives, and how likely.
//!
//! Invariants:
//! 1. Exact results and trials are distinguished, trials with their interval.
//! 2. The same seed gives the same figures, on any number of processors.
//!
//! Not here: the computations (`orcheck_planner`).

use std::path::Path;

use orcheck_format::{Error, Result};
use orcheck_planner::survival::{
    BLOCK_TRIALS, Found, Redundancy, Setup, TABLE_1, TABLE_1_PERCENT, Trials, agreement,
};
use serde_json::{Value, json};

use super::pictures::by_losses;
use super::threads::spread;
use crate::args::{How, SurvivalArgs};
use crate::exit;
use crate::output::{Failure, Outcome, plain, right, table, table_text};
use crate::picture::draw;

/// Confidence that all comparisons of trials with exact probabilities together give no false alarm.
const FAMILY: f64 = 0.999;
/// Confidence of an interval of trials alone.
const CONFIDENCE: f64 = 0.95;
/// Maximum number of curves in a picture: the number of colours.
const CURVES_MAX: usize = 8;
/// Number of trials if nothing else is possible, unless given.
const TRIALS: u64 = 100_000;

/// Computes what was asked for.
pub fn run(args: &SurvivalArgs) -> std::result::Result<Outcome, Failure> {
    let (text, document) = match (args.table1, args.lost.is_empty()) {
        (true, _) => table_1(args)?,
        (false, true) => allowed(args)?,
        (false, false) => likely(args)?,
    };
    let mut warnings = Vec::new();
    if let Some(path) = &args.plot {
        picture(args, path)?;
        warnings.push(format!("picture written: {}", path.display()));
    }
    Ok(Outcome {
        code: exit::OK,
        text,
        document,
        warnings,
    })
}

/// Survival by losses, for all combinations of the arguments.
fn picture(args: &SurvivalArgs, path: &Path) -> Result<()> {
    let setups: Vec<(String, Setup)> = setups(args)?
        .into_iter()
        .map(|(setup, how, _)| (format!("{}, {} nodes", how.name, setup.nodes), setup))
        .collect();
    if setups.len() > CURVES_MAX {
        return Err(Error::invalid(format!(
            "--plot with {} curves: expected at most {CURVES_MAX}, one for each of --nodes and --with",
            setups.len()
        )));
    }
    let title = format!("Survival of {} lost at once", what_is_lost(args));
    let panel = by_losses(&title, &setups)?.ok_or_else(|| {
        Error::invalid("--plot: expected a layout whose survival is exact").at("--with")
    })?;
    draw(path, &[panel])
}

/// The paper's table, entry by entry.
// tidy: long because it is one report, from the figures to the text and the document
fn table_1(args: &SurvivalArgs) -> Result<(String, Value)> {
    let mut heads = vec!["nodes".to_owned(), "replicas".to_owned()];
    heads.extend(TABLE_1_PERCENT.map(|percent| format!("{percent} %")));
    let heads: Vec<&str> = heads.iter().map(String::as_str).collect();
    let mut shown = table(&heads);
    let (mut entries, mut alike, mut doubted) = (Vec::new(), 0, Vec::new());
    let all = TABLE_1.len() * TABLE_1[0].1.len();
    for (nodes, row) in TABLE_1 {
        let mut cells = Vec::new();
        for (at, expected) in row.into_iter().enumerate() {
            let replicas = 1 + (at / TABLE_1_PERCENT.len()) as u32;
            if at % TABLE_1_PERCENT.len() == 0 {
                cells = vec![right(nodes), right(replicas)];
            }
            let percent = TABLE_1_PERCENT[at % TABLE_1_PERCENT.len()];
            let setup = Setup::alone(nodes, Redundancy::Random { replicas });
            let found = exactly(setup.allowed(percent / 100.0)?)?;
            alike += usize::from(found == expected);
            let mark = if found == expected { "=" } else { "!" };
            cells.push(right(format!("{found} {mark} {expected}")));
            let mut entry = json!({ "nodes": nodes, "replicas": replicas, "percent": percent, "allowed": found, "reported": expected });
            if let Some(trials) = args.trials {
                // Where nothing can be gone yet, trials say nothing: lose one more.
                let lost = found.max(replicas + 1).min(nodes);
                let exact = exactly(setup.exact(lost)?)?;
                let found = try_out(setup, lost, args.seed, trials)?;
                let agrees = agreement(found, exact) >= (1.0 - FAMILY) / all as f64;
                if !agrees {
                    doubted.push(format!(
                        "{nodes} nodes, {replicas} replicas, {lost} lost: exact {exact:.6}, trials {:.6}",
                        found.share()
                    ));
                }
                entry["trials"] = trials_document(found);
                entry["trials"]["lost"] = json!(lost);
                entry["trials"]["exact"] = json!(exact);
                entry["trials"]["agrees"] = json!(agrees);
            }
            entries.push(entry);
            if cells.len() == 2 + TABLE_1_PERCENT.len() {
                shown.add_row(std::mem::take(&mut cells));
            }
        }
    }
    let mut text = format!(
        "Most nodes lost at once that a job survives with 90, 99 and 99.9 %, with 1 to 4 replicas \
         on random nodes:\nexact, then Table 1 of Walters and Chaudhary (HiPC 2007); '!' marks \
         differences.\n\n{}\n{alike} of {all} entries are the same.\n",
        table_text(&shown)
    );
    let mut document = json!({ "entries": entries, "same": alike, "of": all });
    if let Some(trials) = args.trials {
        document["seed"] = json!(args.seed);
        document["agree"] = json!(doubted.is_empty());
        text += &format!(
            "{trials} trials at each of them (seed {}), or with one node more lost than there are replicas, against the exact probability: {}\n",
            args.seed,
            match doubted.is_empty() {
                true => format!(
                    "all agree, with {} % confidence for all together.",
                    FAMILY * 100.0
                ),
                false => format!(
                    "{} of {all} do not agree, at {} % confidence for all together:\n{}",
                    doubted.len(),
                    FAMILY * 100.0,
                    doubted.join("\n")
                ),
            }
        );
    }
    Ok((text, document))
}

fn exactly<T>(found: Option<T>) -> Result<T> {
    found.ok_or_else(|| Error::internal("no exact survival of random replicas"))
}

/// The maximum number of losses that are survived with these probabilities.
fn allowed(args: &SurvivalArgs) -> Result<(String, Value)> {
    let mut heads = vec!["nodes".to_owned(), "with".to_owned()];
    heads.extend(args.percent.iter().map(|percent| format!("{percent} %")));
    let heads: Vec<&str> = heads.iter().map(String::as_str).collect();
    let (mut shown, mut documents, mut guessed) = (table(&heads), Vec::new(), false);
    for (setup, how, at) in setups(args)? {
        let mut cells = vec![right(setup.nodes), plain(&how.name)];
        let mut of = Vec::new();
        for &percent in &args.percent {
            let probability = percent / 100.0;
            let exact = setup.allowed(probability).map_err(|error| error.at(&at))?;
            let lost = match exact {
                Some(lost) => lost,
                None => tried_out(setup, probability, args).map_err(|error| error.at(&at))?,
            };
            guessed |= exact.is_none();
            let tilde = if exact.is_none() { "~" } else { "" };
            cells.push(right(format!("{tilde}{lost}")));
            let mut entry = json!({ "percent": percent, "lost": lost, "exact": exact.is_some(), "probability": setup.exact(lost)? });
            if args.trials.is_some() || exact.is_none() {
                let found = try_out(setup, lost, args.seed, args.trials.unwrap_or(TRIALS))?;
                entry["trials"] = trials_document(found);
            }
            of.push(entry);
        }
        shown.add_row(cells);
        documents.push(json!({ "nodes": setup.nodes, "with": how.name, "allowed": of }));
    }
    let what = what_is_lost(args);
    let mut text = format!(
        "Most {what} lost at once that a job survives with this probability:\n\n{}",
        table_text(&shown)
    );
    if guessed {
        text += &format!(
            "\n~ from trials (seed {}): no exact count for this layout.\n",
            args.seed
        );
    }
    Ok((text, document_of(args, documents)))
}

/// How likely this many losses are survived.
fn likely(args: &SurvivalArgs) -> Result<(String, Value)> {
    let mut shown = table(&[
        "nodes",
        "with",
        "lost",
        "survived",
        "trials",
        "95 % interval of the trials",
    ]);
    let mut documents = Vec::new();
    for (setup, how, at) in setups(args)? {
        let mut of = Vec::new();
        for &lost in &args.lost {
            let at = |error: Error| error.at(format!("{at} --lost {lost}"));
            let exact = setup.exact(lost).map_err(at)?;
            let mut entry = json!({ "lost": lost, "probability": exact });
            let mut cells = vec![right(setup.nodes), plain(&how.name), right(lost)];
            cells.push(right(exact.map_or("-".to_owned(), |p| {
                shown_probability(p, setup.rounding())
            })));
            if args.trials.is_some() || exact.is_none() {
                let found =
                    try_out(setup, lost, args.seed, args.trials.unwrap_or(TRIALS)).map_err(at)?;
                let (low, high) = found.interval(CONFIDENCE);
                cells.push(right(shown_probability(found.share(), 0.0)));
                cells.push(right(format!(
                    "{} to {}",
                    shown_probability(low, 0.0),
                    shown_probability(high, 0.0)
                )));
                entry["trials"] = trials_document(found);
            } else {
                cells.extend([right("-"), right("-")]);
            }
            shown.add_row(cells);
            of.push(entry);
        }
        documents.push(json!({ "nodes": setup.nodes, "with": how.name, "likely": of }));
    }
    let text = format!(
        "How likely a job survives this many {} lost at once:\n\n{}",
        what_is_lost(args),
        table_text(&shown)
    );
    Ok((text, document_of(args, documents)))
}

/// Six digits; if these are all nines, how much is missing, as far as rounding permits.
fn shown_probability(probability: f64, rounding: f64) -> String {
    match 1.0 - probability {
        0.0 => "1".to_owned(),
        gone if gone < 10.0 * rounding => format!("> 1 - {:.0e}", 20.0 * rounding),
        gone if gone < 1e-6 => format!("1 - {gone:.1e}"),
        _ => format!("{probability:.6}"),
    }
}

fn what_is_lost(args: &SurvivalArgs) -> String {
    match args.together {
        1 => "nodes".to_owned(),
        together => format!("units of {together} nodes"),
    }
}

fn document_of(args: &SurvivalArgs, setups: Vec<Value>) -> Value {
    json!({ "together": args.together, "apart": args.apart, "seed": args.seed, "setups": setups })
}

fn trials_document(found: Found) -> Value {
    let (low, high) = found.interval(CONFIDENCE);
    json!({ "trials": found.trials, "survived": found.survived, "low": low, "high": high })
}

/// All combinations of the arguments, each with the flags that it comes from.
fn setups(args: &SurvivalArgs) -> Result<Vec<(Setup, &How, String)>> {
    let mut setups = Vec::new();
    for &nodes in &args.nodes {
        for how in &args.with {
            let setup = Setup {
                nodes,
                together: args.together,
                apart: args.apart,
                redundancy: how.redundancy,
            };
            let mut at = format!("--nodes {nodes} --with {}", how.name);
            if args.together != 1 {
                at += &format!(" --together {}", args.together);
            }
            if args.apart {
                at += " --apart";
            }
            setup.check().map_err(|error| error.at(&at))?;
            setups.push((setup, how, at));
        }
    }
    Ok(setups)
}

/// The maximum number of losses that this share of trials survives.
fn tried_out(setup: Setup, probability: f64, args: &SurvivalArgs) -> Result<u32> {
    let (mut enough, mut too_many) = (0, setup.units() + 1);
    while too_many - enough > 1 {
        let lost = enough + (too_many - enough) / 2;
        let found = try_out(setup, lost, args.seed, args.trials.unwrap_or(TRIALS))?;
        match found.share() >= probability {
            true => enough = lost,
            false => too_many = lost,
        }
    }
    Ok(enough)
}

/// This many trials, on all processors.
fn try_out(setup: Setup, lost: u32, seed: u64, trials: u64) -> Result<Found> {
    let run = Trials::new(setup, lost, seed)?;
    let of_block = u64::from(BLOCK_TRIALS);
    let found = spread(trials.div_ceil(of_block), |block| {
        let left = trials - block * of_block;
        run.block(block, left.min(of_block) as u32)
    })?;
    Ok(found.into_iter().fold(Found::default(), Found::and))
}
