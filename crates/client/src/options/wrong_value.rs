//! Explains a value that an option cannot have, in terms of the option and not of a programming
//! language.
//!
//! Not here: ranges, and options that depend on each other (`options.rs`).

use super::LIMITS;
use super::fields::Raw;
use orcheck_format::Error;

/// The error about the option whose value has the wrong form, with what was expected.
pub(super) fn blame(table: &toml::Table, error: &toml::de::Error) -> Error {
    let wrong = table.iter().find_map(|(name, value)| {
        let alone = toml::Table::from_iter([(name.clone(), value.clone())]);
        let error = toml::Value::Table(alone).try_into::<Raw>().err()?;
        Some((name, value, error))
    });
    let Some((name, value, error)) = wrong else {
        return Error::invalid(format!(
            "the options do not fit together: {}",
            error.message()
        ));
    };
    let expected = match name.as_str() {
        "pool" | "chunk" => "expected a size such as '64 MiB', or a number of bytes",
        "encrypt_key" => "expected the source of a key or a list of them",
        "enabled" => "expected true, false or 'auto'",
        "accept" => "expected 'plain' or 'v1', or a list of them",
        "level" => "expected a table for each level, such as [level.node]",
        "global" => "expected a path or a list of paths",
        name if name.ends_with("unix_s") => "expected a time in seconds since 1970",
        name if name.ends_with("_s") => "expected a number of seconds, such as 90 or 0.5",
        name if name.ends_with("_percent") => "expected a number of percent, such as 2.5",
        _ => {
            return Error::invalid(format!(
                "{name} = {value}: {}",
                expectation(name, error.message())
            ));
        }
    };
    Error::invalid(format!("{name} = {value}: {expected}"))
}

/// What an option expects, in words that do not name types of a programming language.
fn expectation(name: &str, said: &str) -> String {
    let expected = said.rsplit_once("expected ").map_or(said, |(_, what)| what);
    let expected = expected.trim();
    match expected {
        "a boolean" => return "expected true or false".to_owned(),
        "u32" | "u64" | "usize" | "i32" | "i64" => {
            // Breaks if: each option is reported to accept 0; the next start would be refused as
            // well.
            let limits = LIMITS.iter().find(|(limited, ..)| *limited == name);
            return match limits {
                Some((_, low, high)) => format!("expected a whole number, {low} to {high}"),
                None => "expected a whole number, 0 or more".to_owned(),
            };
        }
        "f64" => return "expected a number".to_owned(),
        "path string" => return "expected a path".to_owned(),
        "a string" | "string" => return "expected text in quotes".to_owned(),
        _ => {}
    }
    // An enum: "one of `off`, `auto`", "`a` or `b`"; or "string or table" if the value is not text.
    let names = expected.trim_start_matches("one of ").replace('`', "'");
    match names.contains('\'') {
        true => format!("expected {names}"),
        false => "expected one of its words, in quotes".to_owned(),
    }
}
