//! Lost power and damaged disks, tried on images in memory: whole jobs are recorded once, and what
//! their disks may hold afterwards is looked at tens of thousands of times.
//!
//! A harness of its own, as `faults`, with which it shares the jobs and the verdicts.
// It makes and damages files by itself, and prints its own verdicts.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::print_stdout,
    clippy::type_complexity
)]

mod cuts;
mod damage;
mod look;

use orcheck_jobs::tests;
use std::process::ExitCode;

const TESTS: &[orcheck_jobs::harness::Test] = tests![
    cuts::power_lost_at_every_step,
    damage::every_bit_of_metadata,
    damage::seeded_damage_to_data,
];

fn main() -> ExitCode {
    orcheck_jobs::harness::run("-p orcheck-jobs --test power", TESTS)
}
