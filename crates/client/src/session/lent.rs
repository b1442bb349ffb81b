//! Tracks which region is lent for which checkpoint.
//!
//! Not here: lending (`checkpoint/lend.rs`).

use orcheck_format::Step;

/// The checkpoint for which a region is lent.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Lent {
    /// For the next checkpoint.
    Announced,
    /// Being copied by this rank's CP-thread.
    Streamed(Step),
    /// Being written in place in the pool.
    Borrowed(Step),
}
