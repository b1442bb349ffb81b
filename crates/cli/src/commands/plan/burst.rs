//! Implements `orcheck plan burst`: how long a burst of checkpoints takes, compared with
//! measurements.
//!
//! Invariants:
//! 1. A parameter comes from the file, or else from the defaults; `--set` overrides it. The JSON
//!    document has all of them.
//!
//! Not here: the model (`orcheck_planner::contention`), result files (`result.rs`).

use std::path::Path;

use orcheck_format::{Error, Result};
use orcheck_planner::contention::{
    Burst, Mode, Outcome as Simulated, Parameters, closed_form, simulate,
};
use serde_json::{Value, json};

use super::result::read;
use crate::args::BurstArgs;
use crate::exit;
use crate::output::{Failure, Outcome, draw_together, plain, right, table, table_text};

/// Simulates bursts.
pub fn run(args: &BurstArgs) -> std::result::Result<Outcome, Failure> {
    let (text, document) = match &args.from {
        Some(path) => compare(path, &args.set)?,
        None => forecast(args)?,
    };
    Ok(Outcome {
        code: exit::OK,
        text,
        document,
        warnings: Vec::new(),
    })
}

/// The modes of one burst, without and with page caches.
fn forecast(args: &BurstArgs) -> Result<(String, Value)> {
    let parameters = changed(&Parameters::default(), &args.set)?;
    let ranks = f64::from(args.nodes) * f64::from(args.ranks_per_node);
    let bytes_per_rank = args.total_gb * 1e9 / ranks;
    if !(1.0..1e18).contains(&bytes_per_rank) {
        return Err(Error::invalid(format!(
            "--total-gb {}: expected at least a byte for each of {ranks} ranks, and less than 10^9 GB each",
            args.total_gb
        )));
    }
    let modes = match args.modes.is_empty() {
        true => Mode::ALL.to_vec(),
        false => args.modes.clone(),
    };
    let heads = [
        "mode", "servers", "time", "MB/s", "streams", "requests", "moves", "busy", "formula",
    ];
    let mut rows = Vec::new();
    let mut documents = Vec::new();
    for cached in [false, true] {
        for &mode in &modes {
            let burst = Burst {
                mode,
                nodes: args.nodes,
                ranks_per_node: args.ranks_per_node,
                servers: args.servers,
                bytes_per_rank: bytes_per_rank as u64,
                cached,
            };
            let outcome = simulate(&parameters, &burst)?;
            let formula = closed_form(&parameters, &burst)?;
            rows.push(vec![
                plain(mode.name()),
                plain(through(cached)),
                right(format!("{:.1} s", outcome.time_s)),
                right(format!(
                    "{:.1}",
                    burst.rate_bytes_per_s(outcome.time_s) / 1e6
                )),
                right(outcome.streams_per_server),
                right(outcome.disk_requests),
                right(outcome.positionings),
                right(format!("{:.0} %", outcome.disk_busy * 100.0)),
                right(formula.map_or("-".to_owned(), |formula_s| format!("{formula_s:.1} s"))),
            ]);
            documents.push(document_of(&burst, &outcome, formula));
        }
    }
    // Most bursts have no formula.
    let columns = match documents.iter().all(|of| of["formula_s"].is_null()) {
        true => heads.len() - 1,
        false => heads.len(),
    };
    let mut shown = table(&heads[..columns]);
    for mut row in rows {
        row.truncate(columns);
        shown.add_row(row);
    }
    draw_together(&mut shown);
    let text = format!(
        "{}\nstreams: at once to a server; requests: to its disk; moves: of the disk's head; busy: time that the disk works\n",
        table_text(&shown)
    );
    let document = json!({ "parameters": parameters, "bursts": documents });
    Ok((text, document))
}

/// The measurements, and the model's results for them.
fn compare(path: &Path, set: &[String]) -> Result<(String, Value)> {
    let mut text = String::new();
    let mut setups = Vec::new();
    for calibration in read(path)? {
        let setup = match calibration.name.as_str() {
            "" => path.display().to_string(),
            name => format!("{}: '{name}'", path.display()),
        };
        let of_setup = |error: Error| error.at(&setup);
        let parameters = changed(&calibration.parameters(), set).map_err(of_setup)?;
        let mut shown = table(&[
            "mode",
            "servers",
            "nodes x ranks",
            "on",
            "size",
            "measured",
            "model",
            "of it fixed",
            "deviation",
        ]);
        let mut cases = Vec::new();
        let mut worst: f64 = 0.0;
        for (number, case) in calibration.cases.iter().enumerate() {
            let at = |error: Error| error.at(format!("{setup}, cases[{number}]"));
            case.check().map_err(at)?;
            let burst = case.burst();
            let parameters = case.parameters(&parameters).map_err(at)?;
            let parameters = changed(&parameters, set).map_err(at)?;
            let outcome = simulate(&parameters, &burst).map_err(at)?;
            let fixed_s = parameters.fixed.of(burst.mode);
            let deviation = outcome.time_s / case.measured_s - 1.0;
            if deviation.abs() > worst.abs() {
                worst = deviation;
            }
            shown.add_row(vec![
                plain(burst.mode.name()),
                plain(through(burst.cached)),
                right(format!("{} x {}", burst.nodes, burst.ranks_per_node)),
                right(burst.servers),
                right(format!("{:.3} GB", burst.total_bytes() as f64 / 1e9)),
                right(format!("{:.2} s", case.measured_s)),
                right(format!("{:.2} s", outcome.time_s)),
                right(format!("{fixed_s:.2} s")),
                right(format!("{:+.1} %", deviation * 100.0)),
            ]);
            let mut document = document_of(&burst, &outcome, None);
            document["fixed_s"] = json!(fixed_s);
            document["measured_s"] = json!(case.measured_s);
            document["deviation"] = json!(deviation);
            cases.push(document);
        }
        if !calibration.name.is_empty() {
            text += &format!("{}:\n", calibration.name);
        }
        draw_together(&mut shown);
        text += &table_text(&shown);
        text += &format!("largest deviation: {:+.1} %\n", worst * 100.0);
        setups.push(json!({
            "name": calibration.name, "parameters": parameters, "cases": cases, "largest_deviation": worst,
        }));
    }
    Ok((text, json!({ "setups": setups })))
}

/// The parameters with those of `--set`.
fn changed(parameters: &Parameters, set: &[String]) -> Result<Parameters> {
    let mut parameters = parameters.clone();
    let mut document = json!(parameters);
    for text in set {
        let refused = |why: String| Error::invalid(format!("--set {text}: {why}"));
        let (name, value) = text
            .split_once('=')
            .ok_or_else(|| refused("expected NAME=VALUE".to_owned()))?;
        let number: f64 = value
            .parse()
            .map_err(|_| refused(format!("expected a number, found '{value}'")))?;
        if !number.is_finite() || number < 0.0 {
            return Err(refused(format!(
                "expected a number of 0 or more, found '{value}'"
            )));
        }
        let field = name
            .split_once('.')
            .and_then(|(table, field)| document.get_mut(table)?.get_mut(field));
        let Some(field) = field else {
            let known = names(&json!(Parameters::default())).join(", ");
            return Err(refused(format!("expected one of {known}")));
        };
        // Sizes and counts are whole numbers, however they are written.
        *field = match field.is_u64() {
            true if number.fract() == 0.0 && number <= 1e18 => json!(number as u64),
            true => {
                return Err(refused(format!("expected a whole number, found '{value}'")));
            }
            false => json!(number),
        };
        // One at a time, because serde does not say which one does not fit.
        parameters =
            serde_json::from_value(document.clone()).map_err(|error| refused(error.to_string()))?;
    }
    parameters.check()?;
    Ok(parameters)
}

/// All parameters, as `--set` knows them.
fn names(parameters: &Value) -> Vec<String> {
    let tables = parameters.as_object().into_iter().flatten();
    let fields = tables.flat_map(|(table, fields)| {
        let fields = fields.as_object().into_iter().flatten();
        fields.map(move |(field, _)| format!("{table}.{field}"))
    });
    fields.collect()
}

fn document_of(burst: &Burst, outcome: &Simulated, formula_s: Option<f64>) -> Value {
    json!({
        "mode": burst.mode,
        "nodes": burst.nodes,
        "ranks_per_node": burst.ranks_per_node,
        "servers": burst.servers,
        "bytes_per_rank": burst.bytes_per_rank,
        "cached": burst.cached,
        "time_s": outcome.time_s,
        "rate_bytes_per_s": burst.rate_bytes_per_s(outcome.time_s),
        "streams_per_server": outcome.streams_per_server,
        "disk_requests": outcome.disk_requests,
        "head_moves": outcome.positionings,
        "disk_busy": outcome.disk_busy,
        "formula_s": formula_s,
    })
}

fn through(cached: bool) -> &'static str {
    match cached {
        true => "page cache",
        false => "write-through",
    }
}
