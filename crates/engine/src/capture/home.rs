//! Where the bytes of a snapshot were stored, and what became of the step that stored them.
//!
//! Not here: when a later snapshot refers to a home (`baseline.rs`, `pages.rs`).

use orcheck_format::Step;

/// Where bytes were stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Home {
    /// The step whose snapshot stored them.
    pub step: Step,
    /// Offset in its stream.
    pub stream_at_bytes: u64,
}

/// The outcome of a step, over all levels that the snapshot in question goes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// Committed at every level.
    Committed,
    /// Not yet decided at every level.
    Pending,
    /// Lost at one level or more, or never there.
    Lost,
}
