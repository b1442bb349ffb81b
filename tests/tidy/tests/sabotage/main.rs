//! Every switch of `crates/format/src/sabotage.rs` takes a protection away somewhere, and
//! `docs/protections.md` lists the switches and the tests of every promise of `docs/semantics.md`.
//!
//! How: the page is computed from the promises of the document, the switches, and `proofs.rs`. With
//! `ORCHECK_WRITE_TABLES=1` in the environment it is rewritten instead of compared.
//!
//! Not here: whether a test notices that a protection is missing (`tools/sabotage.py`).
// It reads the tree and writes a file of the documentation.
#![allow(clippy::disallowed_methods, clippy::unwrap_used)]

mod proofs;

use orcheck_format::sabotage::{Switch, off};
use proofs::PROOFS;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::{Path, PathBuf};

const HEAD: &str = "\
# Protections

Which tests check each [promise](semantics.md), and which test fails when a protection is taken
away.

This page is generated from [sabotage.rs](../crates/format/src/sabotage.rs) and
[proofs.rs](../tests/tidy/tests/sabotage/proofs.rs). To write it again:

```sh
ORCHECK_WRITE_TABLES=1 cargo test -p orcheck-tidy --test sabotage
```

A test is named by its package (without `orcheck-`), its target, and a filter:
`jobs faults: errors` is `cargo test -p orcheck-jobs --test faults errors`. The target `lib` or
`bin` means the unit tests.
";

const SWITCHES: &str = "
## What each promise stands on

`make sabotage` takes every one of these protections away, one at a time, in a build made for that,
and requires that a test fails. To try one: `tools/sabotage.py crc-block`.
";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The sources below a folder: path, text.
fn sources(folder: &Path, into: &mut Vec<(PathBuf, String)>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path: PathBuf = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, into);
        } else if path.extension().is_some_and(|end| end == "rs") {
            let text = std::fs::read_to_string(&path).unwrap();
            into.push((path, text));
        }
    }
}

/// The folders of all packages, by name.
fn packages() -> BTreeMap<String, PathBuf> {
    let entries = ["crates", "tests"]
        .into_iter()
        .flat_map(|group| std::fs::read_dir(root().join(group)).unwrap());
    entries
        .map(|entry| entry.unwrap().path())
        .filter_map(|folder| {
            let manifest = std::fs::read_to_string(folder.join("Cargo.toml")).ok()?;
            let rest = manifest.split_once("\nname = \"")?.1;
            Some((rest.split_once('"')?.0.to_owned(), folder))
        })
        .collect()
}

/// The promises of `docs/semantics.md` in its order: short name, and the first cell after it.
fn promises(text: &str) -> Vec<(String, String)> {
    let is_name = |cell: &str| {
        let (letter, digits) = cell.split_at(cell.len().min(1));
        "RVLWFMNPACESHT".contains(letter)
            && !digits.is_empty()
            && digits.bytes().all(|byte| byte.is_ascii_digit())
    };
    text.lines()
        .filter_map(|line| {
            let mut cells = line.strip_prefix("| ")?.split(" | ");
            let name = cells.next().filter(|name| is_name(name))?;
            let text = cells.next()?.trim_end_matches(" |");
            Some((name.to_owned(), text.to_owned()))
        })
        .collect()
}

/// A list of tests without the remarks in parentheses.
fn without_remarks(tests: &str) -> String {
    let mut parts = tests.split('(');
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |kept, part| {
        kept + part.split_once(')').map_or("", |(_, rest)| rest)
    })
}

/// What is wrong with one entry of a row, if anything.
fn wrong_entry(entry: &str, packages: &BTreeMap<String, PathBuf>) -> Option<String> {
    if !entry.starts_with("orcheck-") {
        let is_there = entry.starts_with("make ") || root().join(entry).is_file();
        return (!is_there).then(|| format!("{entry} does not exist"));
    }
    let (target, filters) = entry.split_once(':').unwrap_or((entry, ""));
    let (package, target) = target.trim().split_once(' ')?;
    let Some(folder) = packages.get(package) else {
        return Some(format!("there is no package {package}"));
    };
    let tests = folder.join("tests");
    let is_unit = ["lib", "bin"].contains(&target);
    let is_there = is_unit
        || tests.join(format!("{target}.rs")).is_file()
        || tests.join(target).join("main.rs").is_file();
    if !is_there {
        return Some(format!("{package} has no test target {target}"));
    }
    let mut files = Vec::new();
    for part in ["src", "tests"].map(|part| folder.join(part)) {
        if part.is_dir() {
            sources(&part, &mut files);
        }
    }
    let filters = filters.split(',').map(str::trim).filter(|f| !f.is_empty());
    let mut missing = filters.filter(|filter| {
        !files.iter().any(|(path, text)| {
            path.file_stem().unwrap() == *filter || text.contains(&format!("fn {filter}"))
        })
    });
    missing
        .next()
        .map(|filter| format!("{package} {target} has no module or test {filter}"))
}

/// `orcheck-engine reading stream; …` as cells of the page show it.
fn shown_switch_tests(tests: &str) -> String {
    let shown = tests.split(';').map(|test| {
        let test = test.trim().trim_start_matches("orcheck-");
        let (target, filter) = test.rsplit_once(' ').unwrap();
        match target.contains(' ') {
            true => format!("`{target}: {filter}`"),
            false => format!("`{test}`"),
        }
    });
    shown.collect::<Vec<_>>().join(", ")
}

fn page(promises: &[(String, String)]) -> String {
    let mut text = String::from(HEAD);
    let out = &mut text;
    writeln!(out, "\n## Tests of each promise\n").unwrap();
    writeln!(out, "| | promise | tests |\n| --- | --- | --- |").unwrap();
    for (name, promise) in promises {
        let (_, tests) = PROOFS.iter().find(|(of, _)| of == name).unwrap();
        let tests = tests.replace("orcheck-", "");
        writeln!(out, "| {name} | {promise} | {tests} |").unwrap();
    }
    out.push_str(SWITCHES);
    for (name, promise) in promises {
        switches_of(name, &format!("{name}: {promise}"), out);
        if name == "R3" {
            switches_of("Epochs", "R3, epochs: one run commits", out);
        }
    }
    text
}

fn switches_of(promise: &str, title: &str, out: &mut String) {
    let switches = Switch::ALL
        .iter()
        .filter(|(switch, ..)| switch.promise() == promise);
    let mut switches = switches.peekable();
    if switches.peek().is_none() {
        return;
    }
    writeln!(
        out,
        "\n### {title}\n\n| switch | what is then missing | noticed by |\n| --- | --- | --- |"
    )
    .unwrap();
    for (_, name, gone, tests) in switches {
        let tests = shown_switch_tests(tests);
        writeln!(out, "| `{name}` | {gone} | {tests} |").unwrap();
    }
}

// Breaks if: a protection is rewritten and its question gets lost, or a switch is added that
// nobody asks for.
#[test]
fn every_switch_is_asked_for() {
    let mut code = Vec::new();
    for entry in std::fs::read_dir(root().join("crates")).unwrap() {
        sources(&entry.unwrap().path().join("src"), &mut code);
    }
    let mut names = BTreeSet::new();
    for (switch, name, gone, tests) in Switch::ALL {
        assert!(names.insert(name), "two switches are called {name}");
        assert!(
            !gone.is_empty()
                && tests
                    .split(';')
                    .all(|test| test.split_whitespace().count() >= 2)
        );
        let question = format!("off(Switch::{switch:?})");
        assert!(
            code.iter().any(|(_, text)| text.contains(&question)),
            "nobody asks {question}: ask where the protection is"
        );
        // Breaks if: a build without the cfg can take protections away.
        assert!(cfg!(orcheck_sabotage) || !off(*switch));
    }
}

// Breaks if: tools/sabotage.py skips a switch, because its name has a character that its pattern
// does not have.
#[test]
fn every_switch_has_a_name_that_the_tool_reads() {
    for (_, name, ..) in Switch::ALL {
        let is_read = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
        assert!(name.bytes().all(is_read), "{name}: use a-z, 0-9 and -");
    }
}

// Breaks if: a promise is added without its tests, a switch serves no promise of the document, or a
// test is renamed and the page still names the old one.
#[test]
fn the_page_of_protections_names_every_promise_switch_and_test() {
    let promises = promises(&std::fs::read_to_string(root().join("docs/semantics.md")).unwrap());
    let named: Vec<&str> = promises.iter().map(|(name, _)| name.as_str()).collect();
    let proven: Vec<&str> = PROOFS.iter().map(|(name, _)| *name).collect();
    assert_eq!(
        named, proven,
        "docs/semantics.md and proofs.rs have different promises, or another order"
    );
    let packages = packages();
    let wrong: Vec<String> = PROOFS
        .iter()
        .flat_map(|(name, tests)| {
            let tests = without_remarks(tests);
            let found = tests
                .split(';')
                .filter_map(|entry| wrong_entry(entry.trim(), &packages))
                .map(|what| format!("{name}: {what}"));
            found.collect::<Vec<_>>()
        })
        .collect();
    assert!(wrong.is_empty(), "correct proofs.rs:\n{}", wrong.join("\n"));

    let computed = page(&promises);
    for (_, name, ..) in Switch::ALL {
        assert!(
            computed.contains(&format!("| `{name}` |")),
            "`{name}` serves no promise of docs/semantics.md"
        );
    }
    let path = root().join("docs/protections.md");
    if std::env::var("ORCHECK_WRITE_TABLES").is_ok_and(|value| value == "1") {
        std::fs::write(&path, computed).unwrap();
        return;
    }
    assert!(
        std::fs::read_to_string(&path).is_ok_and(|committed| committed == computed),
        "docs/protections.md is out of date: run ORCHECK_WRITE_TABLES=1 cargo test -p orcheck-tidy \
         --test sabotage"
    );
}
