//! What is lent for which checkpoint.
//!
//! Not here: lending (`checkpoint/lend.rs`).

/// What was lent for which checkpoint.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Lent {
    /// For the next checkpoint.
    Announced,
    /// Being copied by this rank's CP-thread.
    Streamed(u64),
    /// Being written from where it lies in the pool.
    Borrowed(u64),
}
