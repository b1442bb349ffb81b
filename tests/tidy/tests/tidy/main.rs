//! The rules of the source tree that no compiler checks. Each message says what to do.
//!
//! Breaks if: a rule loses its effect; `every_rule_finds_a_planted_violation` then fails.
// The tree itself is what this test reads; nothing here ends up in a program.
#![allow(clippy::disallowed_methods)]

mod addresses;
mod layers;
mod rooms;
mod rules;
mod tree;

use cargo_metadata::{DependencyKind, MetadataCommand};
use layers::{Edge, wrong_edges};
use rules::*;
use std::path::Path;
use tree::{File, root, tree};

fn expect_none(violations: Vec<String>) {
    assert!(
        violations.is_empty(),
        "{} violation(s):\n{}",
        violations.len(),
        violations.join("\n")
    );
}

// ---- the tree ----

#[test]
fn files_keep_the_rules() {
    let mut found = vec![];
    for file in &tree() {
        for rule in RULES {
            found.extend(rule(file));
        }
    }
    expect_none(found);
}

#[test]
fn links_in_documents_lead_somewhere() {
    let root = root();
    let exists = |path: &Path| root.join(path).exists();
    expect_none(tree().iter().flat_map(|f| dead_link(f, &exists)).collect());
}

#[test]
fn dependencies_point_down() {
    // no_deps: the declared edges are enough, and no registry has to be asked.
    let metadata = MetadataCommand::new()
        .manifest_path(root().join("Cargo.toml"))
        .no_deps()
        .exec()
        .expect("cargo metadata");
    let names: Vec<&str> = metadata.packages.iter().map(|p| p.name.as_str()).collect();
    assert!(
        names.len() >= 2,
        "cargo metadata shows no workspace: {names:?}"
    );
    let edges: Vec<Edge<'_>> = metadata
        .packages
        .iter()
        .flat_map(|p| p.dependencies.iter().map(move |d| (p, d)))
        .filter(|(_, d)| names.contains(&d.name.as_str()))
        .map(|(p, d)| {
            (
                p.name.as_str(),
                d.name.as_str(),
                d.kind == DependencyKind::Development,
            )
        })
        .collect();
    expect_none(wrong_edges(&names, &edges));
}

#[test]
fn rooms_import_in_one_direction() {
    let all = rooms::arrows(&tree());
    assert!(all.len() > 5, "rooms of few crates were found: {all:?}");
    let mut found = vec![];
    for (home, arrows) in &all {
        found.extend(rooms::circles(home, arrows));
    }
    expect_none(found);
}

#[test]
fn a_planted_circle_of_rooms_is_found() {
    let file = |path: &str, text: &str| File::new(path, text);
    let files = [
        file("crates/a/src/x.rs", "use crate::y::Y;"),
        file("crates/a/src/y/deep.rs", "fn f() { crate::z::g() }"),
        file("crates/a/src/z.rs", "use crate::x::{A, B};"),
        file("crates/a/src/lone.rs", "use crate::x::A; // crate::lone"),
        file("crates/b/src/x.rs", "use crate::y::Y;"),
        file(
            "crates/b/src/y.rs",
            "//! Not [`crate::x`].\n#[cfg(test)]\nmod tests {\nuse crate::x::A;\n}",
        ),
    ];
    let all = rooms::arrows(&files);
    assert_eq!(rooms::circles("crates/a", &all["crates/a"]).len(), 3);
    assert!(rooms::circles("crates/b", &all["crates/b"]).is_empty());
}

#[test]
fn comments_name_what_exists() {
    let tree = tree();
    let addresses = addresses::Addresses::of(&tree);
    expect_none(tree.iter().flat_map(|file| addresses.dead(file)).collect());
}

type Rule = fn(&File) -> Vec<String>;
const RULES: [Rule; 10] = [
    long_file,
    long_function,
    wide_comment,
    banned_name,
    banned_mark,
    sleeping_test,
    feature_flag,
    undocumented_module,
    misplaced_unsafe,
    stray_commit,
];

// ---- the rules themselves ----

#[test]
fn every_rule_finds_a_planted_violation() {
    let doc = |code: &str| format!("//! Doc.\n{code}\n");
    let planted: Vec<(Rule, File)> = vec![
        (long_file, File::new("a.c", "x\n".repeat(801))),
        (
            long_file,
            File::new("tools/measure", format!("#!/bin/sh\n{}", "x\n".repeat(800))),
        ),
        (
            long_file,
            File::new(
                "a.c",
                format!("// {}: long because\n{}", "tidy", "x\n".repeat(1500)),
            ),
        ),
        (
            long_function,
            File::new(
                "crates/a/src/b.rs",
                format!(
                    "    /// Doc.\n    pub(crate) fn f(\n{}    }}\n",
                    "x\n".repeat(70)
                ),
            ),
        ),
        (
            wide_comment,
            File::new("a.rs", format!("    // {}", "x ".repeat(50))),
        ),
        (banned_name, File::new("crates/io/src/utils.rs", "")),
        (banned_name, File::new("crates/io/src/file/mod.rs", "")),
        (banned_name, File::new("crates/io/tests/common/disk.rs", "")),
        (banned_mark, File::new("a.rs", concat!("to", "do!()"))),
        (
            banned_mark,
            File::new("a.rs", concat!("un", "implemented!()")),
        ),
        (banned_mark, File::new("a.rs", concat!("#[ig", "nore]"))),
        (banned_mark, File::new("a.md", concat!("FIX", "ME"))),
        (banned_mark, File::new("a.md", concat!("// XX", "X later"))),
        (banned_mark, File::new("a.sh", concat!("cd /wo", "rk/main"))),
        (
            sleeping_test,
            File::new("tests/a.rs", "std::thread::sleep(second)"),
        ),
        (sleeping_test, File::new("tests/a.c", "usleep(100);")),
        (sleeping_test, File::new("tests/a.sh", "  sleep 1")),
        (
            feature_flag,
            File::new("crates/io/Cargo.toml", "[features]\nfast = []"),
        ),
        (
            feature_flag,
            File::new("a.rs", concat!("#[cfg(fea", "ture = \"fast\")]")),
        ),
        (
            undocumented_module,
            File::new("crates/io/src/a.rs", "use std::fs;"),
        ),
        (
            undocumented_module,
            File::new("crates/io/src/deep/a.rs", "use std::fs;\n//! Late."),
        ),
        (
            misplaced_unsafe,
            File::new("crates/plan/src/a.rs", doc("unsafe { f() }")),
        ),
        (
            misplaced_unsafe,
            File::new("crates/plan/src/a.rs", doc("let s = r#\"\"#; unsafe {}")),
        ),
        (
            misplaced_unsafe,
            File::new("crates/io/src/a.rs", doc("let x = unsafe { f() };")),
        ),
        (
            misplaced_unsafe,
            File::new("crates/io/src/a.rs", doc("unsafe impl Send for X {}")),
        ),
        (
            stray_commit,
            File::new("crates/cli/src/a.rs", doc("commit::make_visible(dir)")),
        ),
        (
            stray_commit,
            File::new("crates/engine/src/a.rs", doc("fn make_visible() {}")),
        ),
        (
            stray_commit,
            File::new(
                "crates/engine/src/a.rs",
                doc("write_small(dir, name, bytes)"),
            ),
        ),
        (
            stray_commit,
            File::new(
                "crates/engine/src/a.rs",
                doc("let r = CommitRecord { job };"),
            ),
        ),
        (
            stray_commit,
            File::new(
                "crates/cli/src/a.rs",
                doc("let n = FileName::Commit { step };\nwrite_small(d, n)"),
            ),
        ),
    ];
    for (i, (rule, file)) in planted.iter().enumerate() {
        assert!(
            !rule(file).is_empty(),
            "planted violation {i} in {} not found",
            file.path
        );
    }
    let dead = File::new("docs/a.md", "see [b](b.md#part), ![c](https://c.org/d.png)");
    assert_eq!(dead_link(&dead, &|_| false).len(), 1);
    for edge in [
        ("orcheck-format", "orcheck-io", false),
        ("orcheck-placement", "orcheck-io", false),
        ("orcheck-planner", "orcheck-io", false),
        ("orcheck-cli", "orcheck-dst", false),
    ] {
        assert_eq!(wrong_edges(&[], &[edge]).len(), 1, "{edge:?}");
    }
    assert_eq!(wrong_edges(&["orcheck-new"], &[]).len(), 1);
}

#[test]
fn what_only_looks_like_a_violation_passes() {
    let fine: Vec<(Rule, File)> = vec![
        (long_file, File::new("a.c", "x\n".repeat(800))),
        (long_file, File::new("data.csv", "x\n".repeat(9000))),
        (
            long_file,
            File::new(
                "a.c",
                format!("// {}: long because\n{}", "tidy", "x\n".repeat(900)),
            ),
        ),
        (
            long_function,
            File::new(
                "crates/a/src/b.rs",
                format!(
                    "// {}: long because\n#[inline]\nfn f() {{\n{}}}\n#[test]\nfn g() {{\n{}}}\n",
                    "tidy",
                    "x\n".repeat(80),
                    "x\n".repeat(80)
                ),
            ),
        ),
        (
            long_function,
            File::new(
                "crates/a/src/b.rs",
                // Neither a declaration nor a function on one line takes in what follows it.
                format!(
                    "fn d(\n    x: u8,\n) -> u8;\nfn e() {{}}\nfn f() {{\n{}}}\n",
                    "    x\n".repeat(68)
                ),
            ),
        ),
        (
            wide_comment,
            File::new("a.rs", format!("//! | a | {} |", "x ".repeat(50))),
        ),
        (banned_name, File::new("crates/io/src/model.rs", "")),
        (
            banned_mark,
            File::new("a.sh", concat!("mktemp -d t.XX", "XXXX")),
        ),
        (
            sleeping_test,
            File::new("crates/io/src/clock.rs", "std::thread::sleep(d)"),
        ),
        (
            sleeping_test,
            File::new("tests/a.rs", "fn sleep(&self, d: Duration) {}"),
        ),
        (sleeping_test, File::new("tests/a.rs", "// no sleep() here")),
        (
            feature_flag,
            File::new("Cargo.toml", "clap = { features = [\"derive\"] }"),
        ),
        (
            undocumented_module,
            File::new("crates/io/tests/a.rs", "use std::fs;"),
        ),
        (
            misplaced_unsafe,
            File::new("crates/plan/src/a.rs", "#![forbid(unsafe_code)]"),
        ),
        (
            misplaced_unsafe,
            File::new("crates/plan/src/a.rs", "// unsafe\nf(\"unsafe {\", '\"');"),
        ),
        (
            misplaced_unsafe,
            File::new(
                "crates/io/src/a.rs",
                "// SAFETY: f asks for nothing.\nunsafe { f() }",
            ),
        ),
        (stray_commit, File::new(COMMIT_FILE, "fn make_visible() {}")),
        (
            stray_commit,
            File::new(PROTOCOL_FILE, "CommitRecord { job }"),
        ),
        (
            stray_commit,
            File::new(
                "crates/engine/src/commit/control.rs",
                "commit::make_visible(dirs)",
            ),
        ),
        (
            stray_commit,
            File::new(
                "crates/engine/src/a.rs",
                "fn read() -> CommitRecord { decode() }",
            ),
        ),
        (
            stray_commit,
            File::new(
                "crates/engine/src/directory/prune.rs",
                "dir.remove(FileName::Commit { step })",
            ),
        ),
    ];
    for (i, (rule, file)) in fine.iter().enumerate() {
        assert_eq!(rule(file), Vec::<String>::new(), "case {i}");
    }
    assert_eq!(
        wrong_edges(
            &["orcheck-io"],
            &[
                ("orcheck-io", "orcheck-format", false),
                ("orcheck-dst", "orcheck-engine", true),
                ("orcheck-placement", "orcheck-io", true),
            ]
        ),
        Vec::<String>::new()
    );
}

/// Breaks if: a module of the fault suite is in no stage of `tools/soak.sh`.
#[test]
fn every_fault_is_tried_many_times_in_a_soak() {
    let read = |path: &str| std::fs::read_to_string(root().join(path)).unwrap();
    let soak = read("tools/soak.sh");
    let suite = read("tests/jobs/tests/faults/main.rs");
    let tests = suite.split("tests![").nth(1).unwrap();
    let tests = tests.split("];").next().unwrap();
    let modules: Vec<&str> = tests
        .lines()
        .filter_map(|line| line.trim().split_once("::"))
        .map(|(module, _)| module)
        .collect();
    assert!(modules.len() > 20);
    for module in modules {
        assert!(
            soak.contains(&format!(" {module}::")),
            "{module}:: is in no stage of tools/soak.sh"
        );
    }
}
