//! Whole jobs under faults: killed, damaged, out of space, without a directory, superseded.
//!
//! This program is its own test harness: faults are tried in forked children, and a fork is only
//! sound in a process with one thread. Every test runs in a child of its own; names given on the
//! command line choose tests.
// It makes and damages files by itself, and prints its own verdicts.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::print_stdout,
    clippy::type_complexity
)]

mod agents;
mod alone;
mod bound;
mod damage;
mod directory;
mod errors;
mod flips;
mod hardship;
mod hooks;
mod kernels;
mod kill_random;
mod kill_steps;
mod leftover;
mod losses;
mod namespace;
mod outside;
mod paced;
mod partition;
mod processes;
mod reads;
mod reported;
mod rivals;
mod scenarios;
mod servers;
mod signals;
mod strangers;
mod survival;
mod tap;
mod zombie;

use orcheck_jobs::tests;
use std::process::ExitCode;

const TESTS: &[orcheck_jobs::harness::Test] = tests![
    agents::ranks_and_agents_are_killed_at_each_of_their_steps,
    agents::all_ranks_are_killed_at_random_moments,
    agents::one_agent_stands_still_for_a_while,
    alone::the_program_never_calls_in_again,
    alone::a_rank_that_fails_in_the_middle_of_staging,
    alone::nothing_is_left_behind,
    alone::a_failed_start_leaves_no_claim,
    bound::no_more_than_the_last_two_intervals_are_lost,
    damage::damaged_structures,
    damage::something_else_in_place_of_a_file,
    damage::an_old_timeline_stays_fenced_without_its_resumed_record,
    directory::gone_at_every_step,
    directory::really_gone,
    errors::one_error_at_every_call,
    flips::a_bit_flips_in_the_pool,
    kernels::every_newer_call_is_missing,
    kernels::killed_on_linux_4_18,
    kill_random::killed_at_random_moments,
    kill_random::killed_on_every_file_system,
    kill_steps::killed_before_every_step,
    hardship::copied_only_by_half,
    hardship::interrupted_in_every_call,
    hardship::limits_of_the_process,
    hardship::small_and_simple_file_systems,
    outside::any_system_call_fails,
    leftover::nothing_is_left_after_the_agents_time,
    losses::nodes_are_lost_at_any_step,
    namespace::names_change_beneath_open_directories,
    paced::every_level_holds_what_it_acknowledged,
    partition::one_node_is_cut_off_in_the_middle_of_a_replication,
    processes::one_rank_is_killed_at_each_of_its_steps,
    reads::one_error_at_every_call_of_a_restart,
    reads::one_error_at_every_call_of_verify,
    reported::every_loss_is_told_and_nothing_else,
    rivals::clocks_that_lie,
    rivals::several_restarts_at_once,
    scenarios::what_happens_to_users_of_scr_and_fti,
    servers::a_server_is_killed_at_each_of_its_steps,
    servers::the_disk_of_a_server_fails_at_each_call,
    servers::a_server_is_killed_at_random_moments,
    servers::a_server_comes_back_with_an_empty_disk,
    servers::a_server_with_a_slow_disk_loses_nothing,
    signals::one_rank_stands_still_for_a_while,
    signals::told_to_end_with_a_grace_time,
    strangers::strangers_at_every_door,
    strangers::frames_that_are_repeated_on_their_way,
    strangers::names_of_agents_that_another_user_holds,
    survival::as_often_as_the_formula_says,
    zombie::superseded_at_every_step,
];

fn main() -> ExitCode {
    orcheck_jobs::harness::run("-p orcheck-jobs --test faults", TESTS)
}
