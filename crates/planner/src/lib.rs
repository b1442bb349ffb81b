//! Planning, offline: decisions about whole machines that need arithmetic and time.
//!
//! What it does: says how likely a job outlives the loss of nodes ([`survival`]), how long a burst of checkpoints takes
//! ([`contention`]), what a run with failures takes ([`life`]), and which levels a job is best served with ([`advice`]).
//!
//! Invariants:
//! 1. No I/O, no clock, no randomness but what a seed gives: a plan can be computed again anywhere.
//!
//! Not here: what a running job computes: its interval (`orcheck-interval`), its placement (`orcheck-placement`).

pub mod advice;
pub mod contention;
pub mod life;
pub mod survival;
