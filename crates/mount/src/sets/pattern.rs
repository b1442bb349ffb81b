//! Finds the step in the path of a file.
//!
//! Not here: what is done with files of a step (`gathered.rs`).

use orcheck_format::{Error, Result};
use std::path::Path;

/// What stands for the number of a step.
const STEP: &str = "{step}";
/// The longest number.
const MOST_DIGITS: usize = 18;

/// A pattern for paths below the mount point: `*` stands for any characters but `/`, `{step}` for
/// the digits of a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern {
    parts: Vec<Part>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Text(Vec<u8>),
    Any,
    Step,
}

impl Pattern {
    /// Reads a pattern.
    ///
    /// # Errors
    /// Invalid for a path that no file below the mount point has, or with two steps.
    pub fn new(text: &str) -> Result<Pattern> {
        let refused = |why: &str| Err(Error::invalid(format!("pattern '{text}': {why}")));
        let plain = |name: &str| !matches!(name, "" | "." | "..");
        if !text.split('/').all(plain) {
            return refused("expected a path below the mount point, as in 'restart.{step}.*'");
        }
        if text.replace(STEP, "").contains(['{', '}']) {
            return refused("only {step} may stand in braces");
        }
        let mut parts = Vec::new();
        for (at, side) in text.split(STEP).enumerate() {
            if at > 0 {
                parts.push(Part::Step);
            }
            for (at, piece) in side.split('*').enumerate() {
                if at > 0 {
                    parts.push(Part::Any);
                }
                if !piece.is_empty() {
                    parts.push(Part::Text(piece.as_bytes().to_vec()));
                }
            }
        }
        if parts.iter().filter(|part| **part == Part::Step).count() > 1 {
            return refused("only one {step} is allowed");
        }
        Ok(Pattern { parts })
    }

    /// Whether the files have the numbers of their steps in their names.
    #[must_use]
    pub fn has_step(&self) -> bool {
        self.parts.contains(&Part::Step)
    }

    /// Whether a path matches; if so, the step in it.
    #[must_use]
    pub fn find(&self, path: &Path) -> Option<Option<u64>> {
        use std::os::unix::ffi::OsStrExt;
        matched(&self.parts, path.as_os_str().as_bytes())
    }
}

fn matched(parts: &[Part], text: &[u8]) -> Option<Option<u64>> {
    let Some((part, rest)) = parts.split_first() else {
        return text.is_empty().then_some(None);
    };
    match part {
        Part::Text(expected) => matched(rest, text.strip_prefix(expected.as_slice())?),
        Part::Any => {
            let most = text.iter().position(|byte| *byte == b'/');
            let most = most.unwrap_or(text.len());
            (0..=most).find_map(|len| matched(rest, text.get(len..)?))
        }
        Part::Step => {
            let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
            let (number, after) = text.split_at_checked(digits)?;
            let number = std::str::from_utf8(number).ok()?;
            if number.len() > MOST_DIGITS {
                return None;
            }
            let step = number.parse().ok()?;
            matched(rest, after).map(|_| Some(step))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(pattern: &str, path: &str) -> Option<Option<u64>> {
        Pattern::new(pattern).unwrap().find(Path::new(path))
    }

    #[test]
    fn the_step_of_a_path_is_found() {
        assert_eq!(found("restart.{step}.*", "restart.100.7"), Some(Some(100)));
        assert_eq!(found("restart.{step}.*", "restart.100"), None);
        assert_eq!(found("restart.{step}.*", "restart.x.7"), None);
        assert_eq!(found("out/{step}", "out/007"), Some(Some(7)));
        assert_eq!(found("*{step}", "melt12"), Some(Some(12)));
        assert_eq!(found("*.{step}", "a.b.12"), Some(Some(12)));
        assert_eq!(found("{step}*", "12abc"), Some(Some(12)));
        assert_eq!(found("{step}", "9999999999999999999"), None);
    }

    #[test]
    fn a_star_stays_within_a_name() {
        assert_eq!(found("a*", "a/b"), None);
        assert_eq!(found("*/b", "a/b"), Some(None));
        assert_eq!(found("state.cpt", "state.cpt"), Some(None));
        assert_eq!(found("state.cpt", "state.cpt2"), None);
    }

    #[test]
    fn what_no_file_matches_is_refused() {
        for text in ["", "/a", "a//b", "../a", "a/.", "{step}.{step}", "{steps}"] {
            assert!(Pattern::new(text).is_err(), "{text}");
        }
    }
}
