//! Documents avoid the words that the glossary lists under "Words we do not use".
//!
//! How: the first column of that table names the words, separated by commas. Code, in fences or
//! between backticks, is not looked at: it may quote a program or a name.
//!
//! Not here: names, messages and comments of the sources; decisions, which stay as they were.
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

/// The unwanted words of a document.
fn found(text: &str, unwanted: &[(String, String)]) -> Vec<String> {
    let prose = prose(text);
    unwanted
        .iter()
        .filter(|(word, _)| prose.contains(&format!(" {word} ")))
        .map(|(word, instead)| format!("\"{word}\": write {instead}"))
        .collect()
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
