//! Tells the CP-thread, and through it all other ranks, why a rank gave up its snapshot; stores
//! texts in words of the pool.
//!
//! Invariants:
//! 1. A reason is written before the descriptor that gives up the snapshot, and belongs to one
//!    step. It stays until as many newer snapshots have been given up as can be in flight.
//! 2. A text is at most `MAX_TEXT_BYTES` long, whatever the words contain.
//!
//! Survives: a rank that dies (it gives no reason). Not here: who gives up (`stage.rs`), who
//! reports it (`writer.rs`).

use super::{Index, MAX_TEXT_BYTES, TEXT_WORDS};
use orcheck_format::{Error, ErrorKind, Step};
use std::sync::{Mutex, PoisonError};

/// Maximum number of snapshots of one rank that are in flight at once; `held_steps` is at most
/// this.
pub(super) const MOST_HELD: u32 = 16;

/// Step plus one, kind, length of the text, the text.
const ONE: u32 = 3 + TEXT_WORDS;
pub(super) const WORDS: u32 = MOST_HELD * ONE;

/// A rank and its own CP-thread may both give up a snapshot and choose the same place; both are in
/// one process.
static CHOOSING: Mutex<()> = Mutex::new(());

impl Index<'_> {
    /// Publishes why this rank gives up its snapshot of `step`.
    pub(crate) fn set_reason(&self, local: u32, step: Step, error: &Error) {
        let _alone = CHOOSING.lock().unwrap_or_else(PoisonError::into_inner);
        let base = self.place_for_reason(local, step);
        self.set(base, 0);
        let len_bytes = self.set_text(base + 3, error.message());
        self.set(base + 1, error.kind().code() as u64);
        self.set(base + 2, len_bytes);
        self.set(base, step.0 + 1);
    }

    /// Why a rank gave up its snapshot of `step`, if it published a reason.
    #[must_use]
    pub fn reason(&self, local: u32, step: Step) -> Option<Error> {
        let base = self
            .places_of_reasons(local)
            .find(|&base| self.get(base) == step.0 + 1)?;
        let kind = ErrorKind::from_code(self.get(base + 1) as i32).unwrap_or(ErrorKind::Internal);
        Some(Error::new(kind, self.text(base + 3, self.get(base + 2))))
    }

    fn places_of_reasons(&self, local: u32) -> impl Iterator<Item = u32> {
        let first = self.reason_word(local);
        (0..MOST_HELD).map(move |n| first + n * ONE)
    }

    /// The place of the step, if it has one, or else that of the oldest step; an empty place is
    /// older than any.
    fn place_for_reason(&self, local: u32, step: Step) -> u32 {
        let age = |&base: &u32| match self.get(base) {
            of if of == step.0 + 1 => 0,
            of => of + 1,
        };
        let oldest = self.places_of_reasons(local).min_by_key(age);
        oldest.unwrap_or(self.reason_word(local))
    }

    fn reason_word(&self, local: u32) -> u32 {
        self.shape.reason_base() + local * WORDS
    }

    /// Writes a text into the words from `base` on, cut to fit; returns its length in bytes.
    pub(super) fn set_text(&self, base: u32, text: &str) -> u64 {
        let bytes = &text.as_bytes()[..text.len().min(MAX_TEXT_BYTES)];
        for (word, part) in (base..).zip(bytes.chunks(8)) {
            let mut packed = [0u8; 8];
            packed[..part.len()].copy_from_slice(part);
            self.set(word, u64::from_le_bytes(packed));
        }
        bytes.len() as u64
    }

    pub(super) fn text(&self, base: u32, len_bytes: u64) -> String {
        let bytes: Vec<u8> = (base..base + TEXT_WORDS)
            .flat_map(|word| self.get(word).to_le_bytes())
            .take((len_bytes as usize).min(MAX_TEXT_BYTES))
            .collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}
