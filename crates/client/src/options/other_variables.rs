//! Checks environment variables that begin like options but are not options.
//!
//! Invariant: every variable `ORCHECK_…` in the environment is an option, is listed in [`OTHERS`],
//! begins with one of [`FAMILIES`], or is named by an option as the source of a key. Any other is a
//! mistyped option, and an error.
//!
//! Not here: the options and the names of their variables (`fields.rs`, `options.rs`).

use super::fields::NAMES;
use super::levels::{OF_LEVELS, nearest_of_all};
use orcheck_format::sabotage::{Switch, off};
use orcheck_format::{Error, Result};

/// Prefix of the variable of every option.
pub(super) const PREFIX: &str = "ORCHECK_";

/// Variables that are not options, and what they are for; docs/options.md has the same list.
pub const OTHERS: [(&str, &str); 16] = [
    ("ORCHECK_CONFIG", "a file of options"),
    ("ORCHECK_NODE", "the option `node_name`"),
    ("ORCHECK_NODES", "what `orcheck run` tells of nodes"),
    ("ORCHECK_JOB", "the job of a program that names none"),
    ("ORCHECK_SERVER_KEY", "where the key of staging servers is"),
    ("ORCHECK_MUNGE_SOCKET", "where MUNGE listens"),
    (
        "ORCHECK_COPY_KERNEL",
        "how bytes are copied, for comparisons",
    ),
    ("ORCHECK_PREFIX", "where `make install` puts files"),
    ("ORCHECK_FORTRAN", "whether CMake builds the module"),
    ("ORCHECK_TRIALS", "tests: how many trials"),
    ("ORCHECK_SEED", "tests: which trials"),
    ("ORCHECK_SOAK", "tests: share of the full number"),
    ("ORCHECK_FAULTS", "tests: which faults"),
    ("ORCHECK_FUZZ_S", "tests: how long to fuzz"),
    ("ORCHECK_SABOTAGE", "tests: which protection is off"),
    ("ORCHECK_SABOTAGE_JOBS", "tests: how many at once"),
];

/// Prefixes of further such variables.
pub const FAMILIES: [&str; 3] = ["ORCHECK_RUN_", "ORCHECK_TEST_", "ORCHECK_WRITE_"];

/// The variable of an option.
pub(super) fn variable_of(name: &str) -> String {
    match name {
        "node_name" => "ORCHECK_NODE".to_owned(),
        _ => format!("{PREFIX}{}", name.to_uppercase().replace('.', "_")),
    }
}

/// Refuses variables that look like options but are not. `places`: texts that may name variables as
/// sources of keys.
///
/// # Errors
/// Invalid, with the nearest option.
pub(super) fn check(variables: &[String], places: &[String]) -> Result<()> {
    for variable in variables {
        let Some(rest) = variable.strip_prefix(PREFIX) else {
            continue;
        };
        let options = NAMES.iter().chain(&OF_LEVELS);
        let known = options
            .into_iter()
            .any(|name| variable_of(name) == *variable)
            || OTHERS.iter().any(|(other, _)| other == variable)
            || FAMILIES.iter().any(|family| variable.starts_with(family))
            || places.iter().any(|text| names(text, variable));
        // Breaks if: it is ignored; a job with ORCHECK_EVERY_STEP=2 would never take a checkpoint.
        if known || off(Switch::UnknownVariable) {
            continue;
        }
        let error = Error::invalid(format!(
            "the environment variable {variable} is not an option"
        ));
        return Err(match nearest_of_all(&rest.to_lowercase()) {
            Some(near) => error.next(format!("did you mean {}?", variable_of(near))),
            None => error.next("unset it, or look up its name in docs/options.md"),
        });
    }
    Ok(())
}

/// Options that name the directories for checkpoints.
const DIRECTORIES: [&str; 2] = ["global", "node_dir"];

/// Refuses an empty variable if directories decide whether there are checkpoints; `empty`: the
/// options whose variables are empty.
///
/// # Errors
/// Invalid, with the variable.
pub(super) fn check_empty(table: &toml::Table, empty: &[&str]) -> Result<()> {
    let auto = table.get("enabled").and_then(toml::Value::as_str) == Some("auto");
    let directory = empty.iter().find(|name| DIRECTORIES.contains(*name));
    match directory.filter(|_| auto) {
        // Breaks if: it counts as not set; a job with ORCHECK_GLOBAL=$SCRATCH and no SCRATCH would
        // run without checkpoints.
        Some(name) => {
            let variable = variable_of(name);
            Err(Error::invalid(format!(
                "the environment variable {variable} is empty, and with enabled = \"auto\" the run would have no checkpoints there"
            ))
            .next(format!(
                "set {variable} to a directory, or unset it if you want none"
            )))
        }
        None => Ok(()),
    }
}

/// Adds to an error about an option's value the variable that it came from; `set`: the options that
/// the environment set.
// Breaks if: it is left out; a user who looks for the value in the program does not find it.
pub(super) fn name_in(error: Error, set: &[&str]) -> Error {
    let of = |name: &&&str| error.message().starts_with(&format!("{name} = "));
    match set.iter().find(of) {
        Some(name) => error.at(format!("the environment variable {}", variable_of(name))),
        None => error,
    }
}

/// Whether a text such as `env:NAME` or `…?key=env:NAME` names this variable.
fn names(text: &str, variable: &str) -> bool {
    let mut parts = text.split("env:").skip(1);
    parts.any(|part| {
        let end = part
            .find(|c: char| !(c.is_ascii_alphanumeric() || c == '_'))
            .unwrap_or(part.len());
        &part[..end] == variable
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(variable: &str) -> Option<String> {
        let error = check(&[variable.to_owned()], &[]).err()?;
        Some(error.message().to_owned())
    }

    #[test]
    fn a_variable_that_is_no_option_names_the_nearest() {
        let text = refused("ORCHECK_EVERY_STEP").unwrap();
        assert!(text.contains("did you mean ORCHECK_EVERY_STEPS?"), "{text}");
        let text = refused("ORCHECK_LEVEL_NODE_EVERY").unwrap();
        assert!(
            text.contains("did you mean ORCHECK_LEVEL_NODE_EVERY_S?"),
            "{text}"
        );
        let text = refused("ORCHECK_NODE_NAME").unwrap();
        assert!(text.contains("did you mean ORCHECK_NODE?"), "{text}");
        assert!(refused("ORCHECK_COMPLETELY_ELSE").is_some());
        for good in [
            "ORCHECK_EVERY_STEPS",
            "ORCHECK_LEVEL_GLOBAL_EVERY_S",
            "ORCHECK_RUN_ATTEMPT",
            "PATH",
            "ORCHECKED",
        ] {
            assert_eq!(refused(good), None, "{good}");
        }
        for (other, _) in OTHERS {
            assert_eq!(refused(other), None, "{other}");
        }
    }

    #[test]
    fn a_wrong_value_from_the_environment_names_its_variable() {
        for (text, set, named) in [
            ("every_s = 'abc'", &["keep", "every_s"][..], true),
            ("keep = 0", &["keep"], true),
            ("keep = 0", &["every_s"], false),
        ] {
            let wrong = super::super::Options::from_text(&format!("global = '/a'\n{text}"));
            let name = text.split(' ').next().unwrap();
            let error = name_in(wrong.unwrap_err(), set);
            let begins = format!("the environment variable {}: {name} = ", variable_of(name));
            assert_eq!(error.message().starts_with(&begins), named, "{error}");
        }
    }

    #[test]
    fn a_variable_that_holds_a_key_may_have_any_name() {
        let variable = ["ORCHECK_MY_KEY".to_owned()];
        for good in ["env:ORCHECK_MY_KEY", "orcheck://h:1?key=env:ORCHECK_MY_KEY"] {
            assert_eq!(check(&variable, &[good.to_owned()]), Ok(()), "{good}");
        }
        let other = ["env:ORCHECK_MY_KEYS".to_owned()];
        assert!(check(&variable, &other).is_err());
    }

    #[test]
    fn the_documents_name_every_variable_that_is_no_option() {
        let document = include_str!("../../../../docs/options.md");
        for (other, _) in OTHERS {
            assert!(document.contains(&format!("`{other}`")), "{other}");
        }
        for family in FAMILIES {
            assert!(document.contains(&format!("`{family}…`")), "{family}");
        }
    }
}
