//! Plans offline: decisions about whole machines that need arithmetic and time.
//!
//! What it does: it computes how likely a job survives the loss of nodes ([`survival`]), how long a
//! burst of checkpoints takes ([`contention`]), how long a run with failures takes ([`life`]), and
//! which levels serve a job best ([`advice`]).
//!
//! Invariants:
//! 1. No I/O, no clock, no randomness except from a seed: a plan can be computed again anywhere.
//!
//! Not here: what a running job computes: its interval (`orcheck-interval`), its placement
//! (`orcheck-placement`).

pub mod advice;
pub mod contention;
pub mod life;
pub mod survival;
