//! Documents, comments and messages avoid the words that the glossary lists under "Words we do not
//! use".
//!
//! How: the first column of that table names the words, separated by commas. Of documents, code in
//! fences or between backticks is not looked at: it may quote a program or a name. Of sources,
//! every line is: a name that is one of these words is not wanted either. A word behind "one",
//! "each", "any" and the like is another one: "one of which".
//!
//! Not here: decisions, which stay as they were; the change log of released versions.
// It reads the tree.
#![allow(clippy::disallowed_methods, clippy::unwrap_used)]

use std::path::{Path, PathBuf};

const SECTION: &str = "## Words we do not use";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The words that the glossary lists, with what to write instead.
fn unwanted(glossary: &str) -> Vec<(String, String)> {
    let (_, section) = glossary.split_once(SECTION).unwrap();
    section
        .lines()
        .filter_map(|line| {
            line.strip_prefix("| ")?
                .strip_suffix(" |")?
                .split_once(" | ")
        })
        .filter(|(words, _)| !["not", "---"].contains(words))
        .flat_map(|(words, instead)| {
            words
                .split(", ")
                .map(|word| (word.to_lowercase(), instead.to_owned()))
        })
        .collect()
}

/// The prose of a document, in lower case: its words, between single blanks.
fn prose(text: &str) -> String {
    let outside = text.split("```").step_by(2).collect::<Vec<_>>().join(" ");
    let plain = outside
        .split('`')
        .step_by(2)
        .collect::<Vec<_>>()
        .join(" code ");
    let spaced = plain.replace(|c: char| !c.is_alphanumeric() && !"/-_".contains(c), " ");
    let words: Vec<String> = spaced.split_whitespace().map(str::to_lowercase).collect();
    format!(" {} ", words.join(" "))
}

/// Words before "of which" that make it plain English.
const PARTS: [&str; 11] = [
    "one", "each", "any", "all", "none", "some", "both", "most", "half", "many", "first",
];

/// The unwanted words of a document, or of a line of a source.
fn found(text: &str, unwanted: &[(String, String)]) -> Vec<String> {
    let mut prose = prose(text);
    for part in PARTS {
        for of in ["of which", "of whom"] {
            prose = prose.replace(&format!(" {part} {of} "), " ");
        }
    }
    unwanted
        .iter()
        .filter(|(word, _)| prose.contains(&format!(" {word} ")))
        .map(|(word, instead)| format!("\"{word}\": write {instead}"))
        .collect()
}

/// What OrangeFS prints.
const QUOTED: &str = "I/O server statistics";

/// Sources, with their lines: those of this test name the words.
fn sources() -> Vec<PathBuf> {
    let mut open: Vec<PathBuf> = [
        "crates", "tests", "testbed", "bench", "tools", "examples", "fuzz",
    ]
    .map(|folder| root().join(folder))
    .into();
    let mut found = vec![];
    while let Some(folder) = open.pop() {
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                let built = ["target", "build", "results", "corpus"];
                if !built.iter().any(|name| path.ends_with(name)) {
                    open.push(path);
                }
            } else if !path.ends_with("words.rs") {
                let known = ["rs", "c", "h", "hpp", "f90", "py", "sh", "cpp"];
                let end = path.extension().and_then(|end| end.to_str());
                if end.is_none_or(|end| known.contains(&end)) {
                    found.push(path);
                }
            }
        }
    }
    found
}

// Breaks if: a comment or a message takes up a word again that the glossary has dropped.
#[test]
fn sources_avoid_the_words_that_the_glossary_dropped() {
    let glossary = std::fs::read_to_string(root().join("docs/glossary.md")).unwrap();
    let unwanted = unwanted(&glossary);
    let sources = sources();
    assert!(sources.len() > 400, "found only {} sources", sources.len());
    let mut wrong = vec![];
    for path in sources {
        // A file that is not text has no words.
        let Ok(text) = std::fs::read_to_string(&path) else {
            continue;
        };
        for (number, line) in text.lines().enumerate() {
            let line = line.replace(QUOTED, "").to_lowercase().replace('`', " ");
            // Cheap first: most lines have none of the words, wherever they lie.
            if !unwanted.iter().any(|(word, _)| line.contains(word)) {
                continue;
            }
            let at = format!("{}:{}", path.display(), number + 1);
            let found = found(&line, &unwanted).into_iter();
            wrong.extend(found.map(|what| format!("{at}: {what}")));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn documents() -> Vec<PathBuf> {
    let folders = ["", "docs", "examples"].map(|folder| root().join(folder));
    folders
        .iter()
        .flat_map(|folder| std::fs::read_dir(folder).unwrap())
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|end| end == "md"))
        .filter(|path| !path.ends_with("glossary.md") && !path.ends_with("ARCHITECTURE.md"))
        .collect()
}

// Breaks if: a document takes up a word again that the glossary has dropped.
#[test]
fn documents_avoid_the_words_that_the_glossary_dropped() {
    let glossary = std::fs::read_to_string(root().join("docs/glossary.md")).unwrap();
    let unwanted = unwanted(&glossary);
    let wrong: Vec<String> = documents()
        .iter()
        .flat_map(|path| {
            let text = std::fs::read_to_string(path).unwrap();
            let found = found(&text, &unwanted);
            found
                .into_iter()
                .map(|what| format!("{}: {what}", path.display()))
                .collect::<Vec<_>>()
        })
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

// Breaks if: the table of the glossary is no longer read, or code counts as prose.
#[test]
fn a_planted_word_is_found_and_code_is_not_looked_at() {
    let glossary =
        "a\n## Words we do not use\n| not | but |\n| --- | --- |\n| goes on, anew | b |\n";
    let unwanted = unwanted(glossary);
    assert_eq!(unwanted.len(), 2);
    assert_eq!(found("It Goes\n  on.", &unwanted).len(), 1);
    assert_eq!(
        found("`store-anew`\n```\nanew\n```\ncargoes on", &unwanted).len(),
        0
    );
}
