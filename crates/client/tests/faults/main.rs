//! Whole jobs under faults: killed, damaged, out of space, without a directory, superseded.
//!
//! This program is its own test harness: faults are tried in forked children, and a fork is only sound in a process
//! with one thread. Every test runs in a child of its own; names given on the command line choose tests.
// It makes and damages files by itself, and prints its own verdicts.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::print_stdout,
    clippy::type_complexity
)]

mod alone;
mod damage;
mod directory;
mod errors;
mod hardship;
mod hooks;
mod kernels;
mod kill_random;

mod kill_steps;
mod ledger;
mod life;
mod outside;
mod payload;
mod processes;
mod reads;
mod rivals;
mod signals;
#[allow(dead_code)]
#[path = "../session/support.rs"]
mod support;
mod trial;
mod zombie;

use orcheck_io::clock::{Clock, SystemClock};
use orcheck_io::testing::{Child, Ended};
use std::process::ExitCode;
use std::time::Duration;

macro_rules! tests {
    ($($module:ident::$name:ident,)*) => {
        &[$((concat!(stringify!($module), "::", stringify!($name)), $module::$name as fn())),*]
    };
}

const TESTS: &[(&str, fn())] = tests![
    alone::the_program_never_calls_in_again,
    alone::a_rank_that_fails_in_the_middle_of_staging,
    alone::nothing_is_left_behind,
    alone::a_failed_start_leaves_no_claim,
    damage::damaged_structures,
    damage::an_old_timeline_stays_fenced_without_its_resumed_record,
    directory::gone_at_every_step,
    directory::really_gone,
    errors::one_error_at_every_call,
    kernels::every_newer_call_is_missing,
    kernels::killed_on_linux_4_18,
    kill_random::killed_at_random_moments,
    kill_steps::killed_before_every_step,
    hardship::copied_only_by_half,
    hardship::interrupted_in_every_call,
    hardship::limits_of_the_process,
    hardship::small_and_simple_file_systems,
    outside::any_system_call_fails,
    processes::one_rank_is_killed_at_each_of_its_steps,
    reads::one_error_at_every_call_of_a_restart,
    reads::one_error_at_every_call_of_verify,
    rivals::clocks_that_lie,
    rivals::several_restarts_at_once,
    signals::one_rank_stands_still_for_a_while,
    signals::told_to_end_with_a_grace_time,
    zombie::superseded_at_every_step,
];

/// Longest time of one test; a campaign takes hours.
fn limit() -> Duration {
    let hours = if trial::trials(0) > 0 { 48 } else { 1 };
    Duration::from_secs(hours * 3600)
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let exact = arguments.iter().any(|argument| argument == "--exact");
    let wanted: Vec<&String> = arguments
        .iter()
        .filter(|argument| !argument.starts_with('-'))
        .collect();
    let chosen = |name: &str| {
        wanted.is_empty()
            || wanted.iter().any(|part| {
                if exact {
                    name == part.as_str()
                } else {
                    name.contains(part.as_str())
                }
            })
    };
    if arguments.iter().any(|argument| argument == "--list") {
        TESTS
            .iter()
            .filter(|(name, _)| chosen(name))
            .for_each(|(name, _)| println!("{name}: test"));
        return ExitCode::SUCCESS;
    }
    let clock = SystemClock;
    let all = clock.now();
    let seed = trial::seed();
    let (mut passed, mut failed) = (0, 0);
    println!(
        "\nrunning {} tests",
        TESTS.iter().filter(|(name, _)| chosen(name)).count()
    );
    for (name, test) in TESTS.iter().filter(|(name, _)| chosen(name)) {
        let begun = clock.now();
        let ended = Child::run(|| {
            test();
            0
        })
        .wait(limit());
        let word = if ended == Ended::Exited(0) {
            "ok".to_owned()
        } else {
            format!("FAILED ({ended:?})")
        };
        println!(
            "test {name} ... {word} ({:.1} s)",
            (clock.now() - begun).as_secs_f64()
        );
        if ended != Ended::Exited(0) {
            let trials = match trial::trials(0) {
                0 => String::new(),
                count => format!(" ORCHECK_TRIALS={count}"),
            };
            println!(
                "  again: ORCHECK_SEED={seed}{trials} cargo test -p orcheck-client --locked --test faults -- --exact {name}"
            );
        }
        *(if ended == Ended::Exited(0) {
            &mut passed
        } else {
            &mut failed
        }) += 1;
    }
    let word = if failed == 0 { "ok" } else { "FAILED" };
    println!(
        "\ntest result: {word}. {passed} passed; {failed} failed; 0 ignored; 0 measured; {} filtered out; finished in {:.2}s\n",
        TESTS.len() - passed - failed,
        (clock.now() - all).as_secs_f64()
    );
    if failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
