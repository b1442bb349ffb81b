//! Holds warnings until the program takes them.
//!
//! Invariant: at most [`MOST`] wait. Beyond that the oldest are dropped and counted, and the count
//! is reported first.
//!
//! Not here: who warns; the figures and events about losses (`outcomes.rs`).

use orcheck_format::{Error, printable, without_next};
use std::collections::VecDeque;

/// Maximum number of waiting warnings: a program that never takes one does not fill its memory with
/// them.
const MOST: usize = 256;

/// Warnings, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Warnings {
    waiting: VecDeque<Waiting>,
    dropped: u64,
}

#[derive(Debug)]
struct Waiting {
    text: String,
    /// Whether [`Warnings::news`] has yet to return it.
    is_news: bool,
}

impl Warnings {
    pub(crate) fn push(&mut self, text: String) {
        self.add(text, true);
    }

    /// Adds one that is no news to whom [`Self::news`] goes.
    pub(crate) fn push_known(&mut self, text: String) {
        self.add(text, false);
    }

    fn add(&mut self, text: String, is_news: bool) {
        // Breaks if: nothing is dropped; each skipped checkpoint is a warning.
        if self.waiting.len() == MOST {
            self.waiting.pop_front();
            self.dropped += 1;
        }
        let text = printable(text);
        self.waiting.push_back(Waiting { text, is_news });
    }

    pub(crate) fn append(&mut self, texts: &mut Vec<String>) {
        self.extend(texts.drain(..));
    }

    /// The waiting warnings that were added since the last call, but for known ones.
    pub(crate) fn news(&mut self) -> impl Iterator<Item = &String> {
        let news = self.waiting.iter_mut();
        let news = news.filter_map(|one| std::mem::take(&mut one.is_news).then_some(&one.text));
        // All of them are taken, even if the caller stops early.
        news.collect::<Vec<_>>().into_iter()
    }

    /// Drops the warnings that this error contains; the same call returns it.
    pub(crate) fn drop_reported(&mut self, error: &Error) {
        self.waiting.retain(|one| !says(error, &one.text));
    }

    /// Takes the oldest; before it, the number of dropped ones.
    pub(crate) fn take(&mut self) -> Option<String> {
        match std::mem::take(&mut self.dropped) {
            0 => self.waiting.pop_front().map(|one| one.text),
            dropped => Some(format!(
                "{dropped} earlier warnings were dropped, because nobody had taken them. Next: take warnings after each call"
            )),
        }
    }
}

/// Whether an error contains a warning.
pub(crate) fn says(error: &Error, warning: &str) -> bool {
    error.message().contains(&without_next(warning))
}

impl Extend<String> for Warnings {
    fn extend<T: IntoIterator<Item = String>>(&mut self, texts: T) {
        texts.into_iter().for_each(|text| self.push(text));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_warnings_are_kept_and_the_dropped_ones_counted() {
        let mut warnings = Warnings::default();
        warnings.extend((0..MOST as u64 + 3).map(|n| n.to_string()));
        let text = warnings.take().unwrap();
        assert!(
            text.starts_with("3 earlier warnings were dropped"),
            "{text}"
        );
        let rest: Vec<String> = std::iter::from_fn(|| warnings.take()).collect();
        assert_eq!(rest.len(), MOST);
        assert_eq!((rest[0].as_str(), rest[MOST - 1].as_str()), ("3", "258"));
        warnings.push("later".to_owned());
        warnings.push_known("known".to_owned());
        assert!(warnings.news().eq(["later"]));
        warnings.extend(["lost. Next: a", "kept", "lost. Next: b"].map(str::to_owned));
        warnings.drop_reported(&Error::no_space("one of 2: lost. Next: c"));
        assert!(warnings.news().eq(["kept"]));
        assert_eq!(warnings.take().as_deref(), Some("later"));
        assert_eq!(warnings.take().as_deref(), Some("known"));
        assert_eq!(warnings.take().as_deref(), Some("kept"));
        assert_eq!(warnings.take(), None);
    }
}
