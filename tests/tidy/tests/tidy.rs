//! The rules of the source tree that no compiler checks. Each message says what to do.
//!
//! Breaks if: a rule loses its effect; `every_rule_finds_a_planted_violation` then fails.
// The tree itself is what this test reads; nothing here ends up in a program.
#![allow(clippy::disallowed_methods)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use cargo_metadata::{DependencyKind, MetadataCommand};

const SOURCE_EXTENSIONS: [&str; 8] = ["rs", "c", "h", "hpp", "f90", "py", "sh", "cpp"];
const TEXT_EXTENSIONS: [&str; 6] = ["toml", "md", "yml", "in", "cff", "svg"];

/// Lines that a source file has at most; beyond it the file must say why, see [`long_file`].
const LINES_MAX: usize = 800;
const LINES_HARD_MAX: usize = 1500;
/// Written by a program, read by compilers: their length is not ours to choose.
const GENERATED: [&str; 1] = ["crates/capi/include/orcheck.h"];

/// An edge goes from a higher layer to a lower one, never sideways.
const LAYERS: [(&str, u32); 20] = [
    ("orcheck-format", 0),
    ("orcheck-placement", 1),
    ("orcheck-interval", 1),
    ("orcheck-io", 1),
    ("orcheck-planner", 2),
    ("orcheck-pool", 2),
    ("orcheck-net", 2),
    ("orcheck-staging", 3),
    ("orcheck-engine", 4),
    ("orcheck-client", 5),
    ("orcheck-capi", 6),
    ("orcheck-mount", 6),
    ("orcheck-python", 6),
    ("orcheck-cli", 7),
    // Beside the layers: they use what they need, and nothing may use them.
    ("orcheck-testing", BESIDE),
    ("orcheck-fixtures", BESIDE),
    ("orcheck-jobs", BESIDE),
    ("orcheck-dst", BESIDE),
    ("orcheck-tidy", BESIDE),
    ("orcheck-fuzz", BESIDE),
];
const BESIDE: u32 = 100;
/// No I/O and no clock: these may use each other and nothing else of ours.
const PURE: [&str; 4] = [
    "orcheck-format",
    "orcheck-placement",
    "orcheck-interval",
    "orcheck-planner",
];
/// Crates whose job needs `unsafe`: the kernel, SIMD, foreign callers.
const UNSAFE_CRATES: [&str; 6] = [
    "crates/io/",
    "crates/pool/",
    "crates/net/",
    "crates/capi/",
    "crates/testing/",
    "python/",
];
/// The one file that makes a checkpoint visible.
const COMMIT_FILE: &str = "crates/engine/src/commit/record.rs";
/// The pure state machine that decides that a checkpoint may become visible.
const PROTOCOL_FILE: &str = "crates/engine/src/commit/protocol.rs";

struct File {
    /// Relative to the repository, with `/`.
    path: String,
    text: String,
}

impl File {
    fn new(path: &str, text: impl Into<String>) -> Self {
        Self {
            path: path.into(),
            text: text.into(),
        }
    }

    fn extension(&self) -> &str {
        Path::new(&self.path)
            .extension()
            .and_then(|e| e.to_str())
            .unwrap_or_default()
    }

    fn is_source(&self) -> bool {
        // A script without an extension is a source too, such as the programs under bench/.
        SOURCE_EXTENSIONS.contains(&self.extension()) || self.text.starts_with("#!/")
    }

    fn in_crate_src(&self) -> bool {
        let mut parts = self.path.split('/');
        parts.next() == Some("crates") && parts.nth(1) == Some("src") && self.extension() == "rs"
    }

    fn is_test(&self) -> bool {
        self.path.split('/').any(|part| part == "tests")
    }

    fn at(&self, line: usize, what: impl std::fmt::Display) -> String {
        format!("{}:{}: {what}", self.path, line + 1)
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .canonicalize()
        .expect("the crate lies two levels below the repository's root")
}

/// Every text file that is in the repository or would be added to it.
fn tree() -> Vec<File> {
    let root = root();
    // safe.directory: the checkout may belong to another user than the one who runs the tests.
    let listed = Command::new("git")
        .arg("-c")
        .arg(format!("safe.directory={}", root.display()))
        .args(["ls-files", "-z", "-co", "--exclude-standard"])
        .current_dir(&root)
        .output()
        .expect("git must be installed: the tidy test asks it which files belong to the tree");
    assert!(
        listed.status.success(),
        "git ls-files failed, run the tests in a git checkout: {}",
        String::from_utf8_lossy(&listed.stderr)
    );
    let names = String::from_utf8(listed.stdout).expect("file names must be UTF-8");
    let files: Vec<File> = names
        .split_terminator('\0')
        .filter_map(|name| {
            // Deleted but not yet staged, binary, or a directory of another repository: not ours.
            let text = std::fs::read_to_string(root.join(name)).ok()?;
            Some(File::new(name, text))
        })
        .collect();
    assert!(
        files.iter().any(|f| f.path == "Cargo.toml"),
        "git lists no Cargo.toml in {}",
        root.display()
    );
    files
}

fn expect_none(violations: Vec<String>) {
    assert!(
        violations.is_empty(),
        "{} violation(s):\n{}",
        violations.len(),
        violations.join("\n")
    );
}

/// The text with comments and literals blanked out, lines kept. Enough of Rust's grammar to
/// tell code from prose; a mistake shows up as a failing rule, never as a wrong program.
fn code_of(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let mut code = String::with_capacity(text.len());
    let mut at = 0;
    let blank = |code: &mut String, c: char| code.push(if c == '\n' { '\n' } else { ' ' });
    while at < chars.len() {
        let rest = &chars[at..];
        let end = match rest {
            ['/', '/', ..] => find(rest, 2, |r| r[0] == '\n'),
            ['/', '*', ..] => find(rest, 2, |r| r.starts_with(&['*', '/'])) + 2,
            ['r', '"' | '#', ..] if at == 0 || !is_word(chars[at - 1]) => {
                let hashes = rest[1..].iter().take_while(|c| **c == '#').count();
                if rest.get(1 + hashes) == Some(&'"') {
                    let close = |r: &[char]| {
                        r[0] == '"' && r[1..].iter().take_while(|c| **c == '#').count() >= hashes
                    };
                    find(rest, 2 + hashes, close) + 1 + hashes
                } else {
                    0
                }
            }
            ['"', ..] => {
                let mut end = 1;
                while end < rest.len() && rest[end] != '"' {
                    end += if rest[end] == '\\' { 2 } else { 1 };
                }
                end + 1
            }
            ['\'', '\\', ..] => find(rest, 3, |r| r[0] == '\'') + 1,
            ['\'', _, '\'', ..] => 3,
            _ => 0,
        };
        if end == 0 {
            code.push(chars[at]);
            at += 1;
        } else {
            let end = (at + end).min(chars.len());
            chars[at..end].iter().for_each(|c| blank(&mut code, *c));
            at = end;
        }
    }
    code
}

fn find(rest: &[char], from: usize, wanted: impl Fn(&[char]) -> bool) -> usize {
    (from..rest.len())
        .find(|i| wanted(&rest[*i..]))
        .unwrap_or(rest.len())
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Whether `word` stands in `line` with no letter, digit or underscore beside it.
fn has_word(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(at, _)| {
        !line[..at].chars().next_back().is_some_and(is_word)
            && !line[at + word.len()..].chars().next().is_some_and(is_word)
    })
}

// ---- the rules ----

fn long_file(file: &File) -> Vec<String> {
    let lines = file.text.lines().count();
    let reason = format!("{}: long because", "tidy");
    let has_reason = file.text.lines().take(40).any(|l| l.contains(&reason));
    if !file.is_source() || GENERATED.contains(&file.path.as_str()) || lines <= LINES_MAX {
        return vec![];
    }
    if lines <= LINES_HARD_MAX && has_reason {
        return vec![];
    }
    vec![format!(
        "{}: {lines} lines, expected at most {LINES_MAX}. Split it along what it does; if that \
         would hurt, say \"{reason} ...\" in its first 40 lines (then {LINES_HARD_MAX} hold)",
        file.path
    )]
}

fn banned_name(file: &File) -> Vec<String> {
    let banned = [
        "util", "utils", "common", "helper", "helpers", "manager", "misc",
    ];
    let mut parts = file.path.split('/');
    let stem = |part: &str| part.split('.').next().unwrap_or_default().to_lowercase();
    if parts.any(|part| banned.contains(&stem(part).as_str())) || file.path.ends_with("/mod.rs") {
        return vec![format!(
            "{}: name the file after what it holds; a module `x` is x.rs beside the folder x/",
            file.path
        )];
    }
    vec![]
}

fn banned_mark(file: &File) -> Vec<String> {
    if !file.is_source() && !TEXT_EXTENSIONS.contains(&file.extension()) {
        return vec![];
    }
    // Put together here, so that this file does not find itself.
    let tokens = [
        (concat!("to", "do!("), "write it or leave it out"),
        (
            concat!("un", "implemented!("),
            "return an Unsupported error instead",
        ),
        (
            concat!("#[ig", "nore"),
            "a test runs or does not exist; long ones go to `make soak`",
        ),
        (
            concat!("FIX", "ME"),
            "fix it, or open an issue and leave the mark out",
        ),
        (
            concat!("/wo", "rk/"),
            "no path of one author's machine in the tree",
        ),
        (
            concat!("/ro", "ot/"),
            "no path of one author's machine in the tree",
        ),
        (
            concat!("/tmp/tar", "get-"),
            "no path of one author's machine in the tree",
        ),
    ];
    let three = concat!("XX", "X");
    let mut found = vec![];
    for (number, line) in file.text.lines().enumerate() {
        for (token, advice) in tokens {
            if line.contains(token) {
                found.push(file.at(number, format!("`{token}`: {advice}")));
            }
        }
        if has_word(line, three) {
            found.push(file.at(number, format!("`{three}`: say what is meant, or fix it")));
        }
    }
    found
}

fn sleeping_test(file: &File) -> Vec<String> {
    if !file.is_test() || !file.is_source() || file.path.ends_with("tests/tidy.rs") {
        return vec![];
    }
    let is_shell = file.extension() == "sh" || file.text.starts_with("#!");
    let code = if file.extension() == "rs" {
        code_of(&file.text)
    } else {
        file.text.clone()
    };
    let sleeps = |line: &str| {
        if is_shell {
            line.trim_start().starts_with("sleep ") || line.contains("; sleep ")
        } else {
            line.contains("sleep(") && !line.contains("fn sleep(")
        }
    };
    code.lines()
        .enumerate()
        .filter(|(_, line)| sleeps(line))
        .map(|(number, _)| {
            file.at(
                number,
                "a sleep: wait for the event itself (a pipe, a file lock, a barrier, a condition)",
            )
        })
        .collect()
}

fn feature_flag(file: &File) -> Vec<String> {
    let advice = "no feature flags: one build, tested as it is shipped; decide at run time";
    let wanted = |line: &str| match file.extension() {
        "toml" if file.path.ends_with("Cargo.toml") => line.trim() == "[features]",
        "rs" => line.contains(concat!("cfg(fea", "ture")),
        _ => false,
    };
    file.text
        .lines()
        .enumerate()
        .filter(|(_, line)| wanted(line))
        .map(|(number, _)| file.at(number, advice))
        .collect()
}

fn undocumented_module(file: &File) -> Vec<String> {
    if !file.in_crate_src() || file.text.starts_with("//!") {
        return vec![];
    }
    vec![file.at(
        0,
        "begin with `//!`: what it does, how, its invariants, which faults it survives, what is \
         not here",
    )]
}

fn misplaced_unsafe(file: &File) -> Vec<String> {
    if file.extension() != "rs" {
        return vec![];
    }
    let code = code_of(&file.text);
    let lines: Vec<&str> = file.text.lines().collect();
    let allowed = UNSAFE_CRATES.iter().any(|c| file.path.starts_with(c));
    let mut found = vec![];
    for (number, line) in code.lines().enumerate() {
        if !has_word(line, "unsafe") {
            continue;
        }
        if !allowed {
            found.push(file.at(
                number,
                "`unsafe` outside io, pool, net, capi, testing and python: call a safe function of \
                 orcheck-io, or add one there",
            ));
            continue;
        }
        let needs_reason = ["unsafe {", "unsafe impl"].iter().any(|t| line.contains(t));
        let near = &lines[number.saturating_sub(12)..=number];
        if needs_reason && !near.iter().any(|l| l.contains("SAFETY:")) {
            found.push(file.at(
                number,
                "say in a `// SAFETY:` comment right above why this is sound",
            ));
        }
    }
    found
}

/// A checkpoint becomes visible by a commit record under its final name. The pure protocol may fill
/// a record in; whoever else could do that, or write under that name, could do it without the rules
/// of [`COMMIT_FILE`].
fn stray_commit(file: &File) -> Vec<String> {
    if !file.in_crate_src() || file.path == COMMIT_FILE || file.path.starts_with("crates/format/") {
        return vec![];
    }
    let code = code_of(&file.text);
    // Unit tests at the end of a file may build records to read them.
    let code = code.split("#[cfg(test)]").next().unwrap_or_default();
    let lines: Vec<&str> = code.lines().collect();
    let mut found = vec![];
    for (number, line) in lines.iter().enumerate() {
        let driven = file.path.starts_with("crates/engine/") && !line.contains("fn make_visible");
        if has_word(line, "make_visible") && !driven {
            found.push(file.at(
                number,
                format!("leave it to the engine and its {COMMIT_FILE}"),
            ));
        }
        let builds = line.contains("CommitRecord {") && !line.contains("->");
        if builds && file.path != PROTOCOL_FILE {
            found.push(file.at(
                number,
                format!("only {COMMIT_FILE} and {PROTOCOL_FILE} fill in a commit record"),
            ));
        }
        if line.contains("FileName::Commit {") {
            let near = &lines[number.saturating_sub(3)..lines.len().min(number + 8)];
            let writes = ["write_small(", ".rename(", ".create("];
            if near.iter().any(|l| writes.iter().any(|w| l.contains(w))) {
                found.push(file.at(
                    number,
                    format!("only {COMMIT_FILE} writes under a commit record's name"),
                ));
            }
        }
        if line.contains("write_small(") && file.path.starts_with("crates/engine/") {
            let small_files = ["choose.rs", "epoch.rs", "halt.rs"]
                .map(|name| format!("crates/engine/src/directory/{name}"));
            if !small_files.contains(&file.path) {
                found.push(file.at(
                    number,
                    "small files of a job are written by commit/record.rs, and choose.rs, epoch.rs and halt.rs in directory/ only",
                ));
            }
        }
    }
    found
}

fn dead_link(file: &File, exists: &dyn Fn(&Path) -> bool) -> Vec<String> {
    if file.extension() != "md" {
        return vec![];
    }
    let folder = Path::new(&file.path).parent().unwrap_or(Path::new(""));
    let mut found = vec![];
    let mut in_fence = false;
    for (number, line) in file.text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            in_fence = !in_fence;
        }
        if in_fence {
            continue;
        }
        let inline = line.split("](").skip(1).filter_map(|s| s.split(')').next());
        let html = ["src=\"", "href=\""]
            .into_iter()
            .flat_map(|a| line.split(a).skip(1).filter_map(|s| s.split('"').next()));
        for target in inline.chain(html) {
            let target = target.split([' ', '#']).next().unwrap_or_default();
            let elsewhere = ["http://", "https://", "mailto:"];
            if target.is_empty() || elsewhere.iter().any(|e| target.starts_with(e)) {
                continue;
            }
            if !exists(&folder.join(target)) {
                found.push(file.at(
                    number,
                    format!("links to {target}, which does not exist: correct or remove the link"),
                ));
            }
        }
    }
    found
}

/// An edge of the dependency graph: from, to, and whether only tests use it.
type Edge<'a> = (&'a str, &'a str, bool);

fn wrong_edges(packages: &[&str], edges: &[Edge<'_>]) -> Vec<String> {
    let layers = BTreeMap::from(LAYERS);
    let mut found = vec![];
    for package in packages {
        if !layers.contains_key(package) {
            found.push(format!(
                "package {package} has no layer: add it to LAYERS in tests/tidy/tests/tidy.rs and \
                 to the code map in ARCHITECTURE.md"
            ));
        }
    }
    for &(from, to, only_tests) in edges {
        let (Some(&above), Some(&below)) = (layers.get(from), layers.get(to)) else {
            continue;
        };
        if below == BESIDE && above != BESIDE && !only_tests {
            found.push(format!(
                "{from} depends on {to}: nothing may depend on {to}"
            ));
        } else if above <= below && above != BESIDE && !only_tests {
            found.push(format!(
                "{from} (layer {above}) depends on {to} (layer {below}): an edge may only point \
                 down. Move the shared part to a lower layer, or pass it in as a trait"
            ));
        } else if PURE.contains(&from) && !PURE.contains(&to) && !only_tests {
            found.push(format!(
                "{from} depends on {to}: {from} is pure and may use pure crates only"
            ));
        }
    }
    found
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

type Rule = fn(&File) -> Vec<String>;
const RULES: [Rule; 8] = [
    long_file,
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
            File::new("bench/stall", format!("#!/bin/sh\n{}", "x\n".repeat(800))),
        ),
        (
            long_file,
            File::new(
                "a.c",
                format!("// {}: long because\n{}", "tidy", "x\n".repeat(1500)),
            ),
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
