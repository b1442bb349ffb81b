//! Models how often to take checkpoints, and what they cost, for use by a running job.
//!
//! | file | what |
//! | --- | --- |
//! | `single.rs` | one kind of checkpoint, random failures |
//! | `levels.rs` | several levels, each of which survives more than the one below |
//! | `overhead.rs` | what checkpoints cost a run in which nothing fails |
//!
//! Invariants:
//! 1. No I/O, no clock, no randomness, no dependency except `orcheck-format`, because every program
//!    links it.
//!
//! Not here: simulated lives of jobs, survival, contention (`orcheck-planner`).

mod levels;
mod overhead;
mod single;

pub use levels::{Level, Levels, Pattern, Recommended};
pub use overhead::Overhead;
pub use single::{Single, TIMES_S};

use orcheck_format::{Error, Result};

/// Checks that a number is between two others.
///
/// # Errors
/// Invalid, naming the number, unless it is between them.
pub fn within(what: &str, found: f64, least: f64, most: f64) -> Result<()> {
    if (least..=most).contains(&found) {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "{what}: expected {least} to {most:e}, found {found}"
    )))
}
