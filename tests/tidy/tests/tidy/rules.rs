//! Rules about one file: its length, its names, marks, sleeps, `unsafe`, who writes commit records;
//! links in documents.

use crate::tree::{File, TEXT_EXTENSIONS, code_of, has_word};
use std::path::Path;

/// Lines that a source file has at most; beyond it the file must say why, see [`long_file`].
pub const LINES_MAX: usize = 800;
pub const LINES_HARD_MAX: usize = 1500;
/// Lines that a function has at most, or it says why it has more, see [`long_function`].
pub const FUNCTION_LINES_MAX: usize = 70;
/// Columns of a comment; rustfmt keeps code within the same.
pub const COLUMNS_MAX: usize = 100;
/// Written by a program, read by compilers: their length is not ours to choose.
pub const GENERATED: [&str; 1] = ["crates/capi/include/orcheck.h"];

/// Crates whose job needs `unsafe`: the kernel, SIMD, foreign callers.
pub const UNSAFE_CRATES: [&str; 6] = [
    "crates/io/",
    "crates/pool/",
    "crates/net/",
    "crates/capi/",
    "crates/testing/",
    "python/",
];
/// The one file that makes a checkpoint visible.
pub const COMMIT_FILE: &str = "crates/engine/src/commit/record.rs";
/// The pure state machine that decides that a checkpoint may become visible.
pub const PROTOCOL_FILE: &str = "crates/engine/src/commit/protocol/lead.rs";

pub fn long_file(file: &File) -> Vec<String> {
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

/// Functions of crates, as rustfmt lays them out: from the line with `fn` to the brace, or the
/// semicolon, at the same depth. Tests are exempt: they are stories, read from top to bottom.
pub fn long_function(file: &File) -> Vec<String> {
    if !file.in_crate_src() {
        return vec![];
    }
    let reason = format!("// {}: long because", "tidy");
    let lines: Vec<&str> = file.text.lines().collect();
    let mut found = vec![];
    for (at, line) in lines.iter().enumerate() {
        let code = line.trim_start();
        let depth = &line[..line.len() - code.len()];
        let is_qualifier = |word: &str| {
            word.starts_with("pub")
                || ["const", "async", "unsafe", "extern", "\"C\""].contains(&word)
        };
        let before = code.split_once("fn ").map(|(before, _)| before);
        if !before.is_some_and(|before| before.split_whitespace().all(is_qualifier)) {
            continue;
        }
        // Beyond its first line only its signature and its end are at the depth of a function. A
        // function without a body, or on one line, ends where it begins.
        let ends = |line: &&str| {
            let rest = line.strip_prefix(depth).unwrap_or_default();
            !rest.starts_with(' ') && (rest.ends_with(';') || rest.ends_with('}'))
        };
        let len = lines[at..].iter().position(ends).map_or(1, |end| end + 1);
        // Attributes, documentation and the reason stand right above.
        let above = || lines[..at].iter().rev().map(|line| line.trim_start());
        let mut above = above().take_while(|line| line.starts_with("//") || line.starts_with('#'));
        let is_exempt = above.any(|line| line.starts_with(&reason) || line == "#[test]");
        if len > FUNCTION_LINES_MAX && !is_exempt {
            found.push(file.at(
                at,
                format!(
                    "a function of {len} lines, expected at most {FUNCTION_LINES_MAX}. Give its \
                     parts names; if that would hurt, say \"{reason} ...\" right above it"
                ),
            ));
        }
    }
    found
}

/// Comments are as wide as code: at most 100 columns. Rows of tables cannot be wrapped.
pub fn wide_comment(file: &File) -> Vec<String> {
    if file.extension() != "rs" {
        return vec![];
    }
    let mut found = vec![];
    for (at, line) in file.text.lines().enumerate() {
        let comment = line.trim_start();
        let is_table = comment.contains(" | ");
        let width = line.chars().count();
        if comment.starts_with("//") && width > COLUMNS_MAX && !is_table {
            found.push(file.at(
                at,
                format!("a comment of {width} columns, expected at most {COLUMNS_MAX}. Wrap it"),
            ));
        }
    }
    found
}

pub fn banned_name(file: &File) -> Vec<String> {
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

pub fn banned_mark(file: &File) -> Vec<String> {
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

pub fn sleeping_test(file: &File) -> Vec<String> {
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

pub fn feature_flag(file: &File) -> Vec<String> {
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

pub fn undocumented_module(file: &File) -> Vec<String> {
    if !file.in_crate_src() || file.text.starts_with("//!") {
        return vec![];
    }
    vec![file.at(
        0,
        "begin with `//!`: what it does, how, its invariants, which faults it survives, what is \
         not here",
    )]
}

pub fn misplaced_unsafe(file: &File) -> Vec<String> {
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
pub fn stray_commit(file: &File) -> Vec<String> {
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

pub fn dead_link(file: &File, exists: &dyn Fn(&Path) -> bool) -> Vec<String> {
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
