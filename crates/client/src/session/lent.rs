//! Tracks which region is lent for which checkpoint.
//!
//! Not here: lending (`checkpoint/lend.rs`).

/// The checkpoint for which a region is lent.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Lent {
    /// For the next checkpoint.
    Announced,
    /// Being copied by this rank's CP-thread.
    Streamed(u64),
    /// Being written in place in the pool.
    Borrowed(u64),
}
