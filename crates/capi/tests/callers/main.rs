//! Tests programs that fork and cancel threads while they use the C interface: whole jobs, with the
//! verdicts of the fault suite.
//!
//! It has its own harness, like `faults` of the client, and shares states, ledgers, verdicts and
//! the final run with it.
// It looks at files by itself, prints its own verdicts, and calls what C programs call.
#![allow(
    unsafe_code,
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::print_stdout,
    clippy::type_complexity
)]

mod cancelled;
mod forked;
mod program;

use orcheck_jobs::{harness, tests};
use std::process::ExitCode;

const TESTS: &[harness::Test] = tests![
    cancelled::a_thread_is_cancelled_at_random_moments,
    forked::children_at_random_moments,
    forked::children_that_outlive_a_killed_program,
    harness::a_test_that_hangs_is_named_while_it_runs,
];

fn main() -> ExitCode {
    harness::run("-p orcheck-capi --test callers", TESTS)
}
