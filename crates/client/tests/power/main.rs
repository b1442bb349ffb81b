//! Lost power and damaged disks, tried on images in memory: whole jobs are recorded once, and what their disks may
//! hold afterwards is looked at tens of thousands of times.
//!
//! A harness of its own, as `faults`, with which it shares the jobs and the verdicts.
// It makes and damages files by itself, and prints its own verdicts.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::print_stdout,
    clippy::type_complexity
)]

#[path = "../faults/anatomy.rs"]
mod anatomy;
mod cuts;
mod damage;
#[macro_use]
#[path = "../faults/harness.rs"]
mod harness;
#[allow(dead_code)]
#[path = "../faults/ledger.rs"]
mod ledger;
#[allow(dead_code)]
#[path = "../faults/life.rs"]
mod life;
mod look;
#[allow(dead_code)]
#[path = "../faults/payload.rs"]
mod payload;
#[path = "../faults/records.rs"]
mod records;
#[allow(dead_code)]
#[path = "../session/support.rs"]
mod support;
#[allow(dead_code)]
#[path = "../faults/trial.rs"]
mod trial;

use std::process::ExitCode;

const TESTS: &[harness::Test] = tests![
    cuts::power_lost_at_every_step,
    damage::every_bit_of_metadata,
    damage::seeded_damage_to_data,
];

fn main() -> ExitCode {
    harness::run("-p orcheck-client --test power", TESTS)
}
