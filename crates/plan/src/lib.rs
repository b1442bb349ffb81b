//! Planning: decisions that need arithmetic and nothing else.
//!
//! What it does: says which node writes to which I/O server ([`Placement`]), how likely a job outlives the loss of nodes
//! ([`survival`]), how long a burst of checkpoints takes ([`contention`]), what checkpoints cost ([`overhead`]), how often
//! to take them ([`interval`], [`levels`]), and which levels a job is best served with ([`advice`]).
//! How: pure functions from names, sizes and counts to a plan; the same input gives the same
//! plan on every rank, so a plan needs no agreement, only the agreed input.
//!
//! Invariants:
//! 1. No I/O, no clock, no randomness but what a seed gives: a plan can be computed again anywhere.
//! 2. A plan that cannot be met is an error, never a quietly weaker plan.
//!
//! Faults survived: the loss of I/O servers down to the last one, see [`Placement::without`].
//! Not here: finding out that a server is full or lost (io, engine), recording the plan in the
//! commit record (engine).

pub mod advice;
pub mod contention;
pub mod interval;
pub mod levels;
pub mod life;
pub mod overhead;
mod placement;
pub mod survival;

pub use placement::{DEFAULT_LANES_MAX, LANES_MAX, Placement, Server};

use orcheck_format::{Error, Result};

/// # Errors
/// Invalid, naming the number, unless it is between these.
fn within(what: &str, found: f64, least: f64, most: f64) -> Result<()> {
    if (least..=most).contains(&found) {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "{what}: expected {least} to {most:e}, found {found}"
    )))
}
