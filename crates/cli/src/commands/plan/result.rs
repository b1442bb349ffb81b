//! Reads the key `model` of a result file of `bench-contention`: parameters, and measured bursts.
//!
//! Invariants:
//! 1. Whatever the file holds, an error names the file and the place in it.
//!
//! Not here: the ranges of values (`orcheck_planner::contention`).

use std::path::Path;

use orcheck_format::{Error, Result};
use orcheck_io::user::read_text;
use orcheck_planner::contention::{Calibration, Case, Mode, Parameters, Small};
use serde_json::{Value, json};

/// Largest result file.
const RESULT_LIMIT_BYTES: u64 = 64 << 20;

/// The set-ups of a result file.
pub fn read(path: &Path) -> Result<Vec<Calibration>> {
    let text = read_text(path, RESULT_LIMIT_BYTES)?;
    setups(&text).map_err(|what| {
        Error::invalid(format!("{}: {what}", path.display()))
            .next("docs/contention.md has the form of a result file")
    })
}

fn setups(text: &str) -> std::result::Result<Vec<Calibration>, String> {
    let mut document: Value =
        serde_json::from_str(text).map_err(|error| format!("expected JSON, found {error}"))?;
    if !document.is_object() {
        return Err(format!("expected a JSON object, found {}", kind(&document)));
    }
    match document.get_mut("model").map(Value::take) {
        None => Err("model: expected this key, found none".to_owned()),
        Some(Value::Array(models)) if models.is_empty() => {
            Err("model: expected at least one set-up, found an empty list".to_owned())
        }
        Some(Value::Array(models)) => {
            let numbered = models.into_iter().enumerate();
            let at = |(number, model)| setup(model, &format!("model[{number}]"));
            numbered.map(at).collect()
        }
        Some(model) => Ok(vec![setup(model, "model")?]),
    }
}

fn setup(model: Value, at: &str) -> std::result::Result<Calibration, String> {
    if !model.is_object() {
        return Err(format!("{at}: expected an object, found {}", kind(&model)));
    }
    // Serde reports the expected type, but not where: so each field is tried separately.
    let template = json!(Parameters::default());
    for (table, fields) in template.as_object().into_iter().flatten() {
        // The only table that may be omitted.
        let Some(found) = model.get(table) else {
            match table == "fixed" {
                true => continue,
                false => return Err(format!("{at}.{table}: expected an object, found nothing")),
            }
        };
        for field in names(fields) {
            let place = format!("{at}.{table}.{field}");
            let Some(value) = found.get(field) else {
                return Err(format!("{place}: expected a number, found nothing"));
            };
            let mut tried = template.clone();
            tried[table][field] = value.clone();
            serde_json::from_value::<Parameters>(tried)
                .map_err(|error| format!("{place}: {error}"))?;
        }
    }
    match model.get("cases") {
        Some(Value::Array(cases)) if !cases.is_empty() => {
            for (number, case) in cases.iter().enumerate() {
                check_case(case, &format!("{at}.cases[{number}]"))?;
            }
        }
        found => {
            let found = found.map_or("nothing".to_owned(), kind);
            return Err(format!(
                "{at}.cases: expected a list of at least one burst, found {found}"
            ));
        }
    }
    serde_json::from_value(model).map_err(|error| format!("{at}: {error}"))
}

/// Checks that a case has all fields, of the right types.
fn check_case(case: &Value, at: &str) -> std::result::Result<(), String> {
    if !case.is_object() {
        return Err(format!("{at}: expected an object, found {}", kind(case)));
    }
    let template = json!(Case {
        mode: Mode::Traditional,
        nodes: 1,
        ranks_per_node: 1,
        servers: 1,
        bytes_per_rank: 1,
        cached: false,
        measured_s: 1.0,
        begin_s: Some(1.0),
        small: Some(Small {
            bytes_per_rank: 1,
            measured_s: 1.0,
            begin_s: None,
        }),
    });
    for field in names(&template) {
        let Some(value) = case.get(field) else {
            match field.as_str() {
                "small" | "begin_s" => continue,
                _ => return Err(format!("{at}.{field}: expected a value, found nothing")),
            }
        };
        let mut tried = template.clone();
        tried[field] = value.clone();
        serde_json::from_value::<Case>(tried).map_err(|error| format!("{at}.{field}: {error}"))?;
    }
    Ok(())
}

/// The names of an object's fields.
fn names(object: &Value) -> impl Iterator<Item = &String> {
    object.as_object().into_iter().flat_map(|map| map.keys())
}

fn kind(value: &Value) -> String {
    let what = match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "text",
        Value::Array(list) if list.is_empty() => "an empty list",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    };
    what.to_owned()
}
