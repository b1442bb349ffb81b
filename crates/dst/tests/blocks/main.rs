//! Power cuts below a real file system: the job runs on ext4, xfs or btrfs on a loop device on a disk of our own that
//! writes down every request; then the images that the disk may be left with are mounted, which lets the file
//! system's own recovery run, and the job must come up from each.
//!
//! This program is its own test harness, as that of the client's fault tests is, and uses its trials, lives and
//! payload. It needs root, loop devices and FUSE, and says SKIPPED where it has none. Every test runs in a child with
//! a mount table of its own, so that nothing is left behind even when it is killed.
// It makes files by itself, and prints its own verdicts.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::print_stdout,
    dead_code
)]

mod cut;
mod disk;
#[path = "../../../client/tests/faults/ledger.rs"]
mod ledger;
#[path = "../../../client/tests/faults/life.rs"]
mod life;
#[path = "../../../client/tests/faults/payload.rs"]
mod payload;
mod record;
#[path = "../../../client/tests/faults/records.rs"]
mod records;
#[path = "../../../client/tests/session/support.rs"]
mod support;
#[path = "../../../client/tests/faults/trial.rs"]
mod trial;

use orcheck_io::clock::{Clock, SystemClock};
use orcheck_io::testing::{Child, Ended, mount};
use std::process::ExitCode;
use std::time::Duration;

struct Test {
    name: &'static str,
    /// Says whether it ran, or had to be skipped.
    run: fn() -> bool,
}

const TESTS: [Test; 5] = [
    Test {
        name: "ext4_after_a_power_cut",
        run: || cut::comes_back(cut::EXT4, 240),
    },
    Test {
        name: "xfs_after_a_power_cut",
        run: || cut::comes_back(cut::XFS, 240),
    },
    Test {
        name: "btrfs_after_a_power_cut",
        run: || cut::comes_back(cut::BTRFS, 24),
    },
    Test {
        name: "ext4_without_a_sync",
        run: || cut::left_out_syncs_are_noticed(cut::EXT4),
    },
    Test {
        name: "xfs_without_a_sync",
        run: || cut::left_out_syncs_are_noticed(cut::XFS),
    },
];

/// What a test's process ends with that could not do its work.
const SKIPPED: i32 = 77;

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
    let fits = |name: &str, part: &str| {
        if exact {
            name == part
        } else {
            name.contains(part)
        }
    };
    let chosen: Vec<_> = TESTS
        .iter()
        .filter(|test| wanted.is_empty() || wanted.iter().any(|part| fits(test.name, part)))
        .collect();
    if arguments.iter().any(|argument| argument == "--list") {
        chosen
            .iter()
            .for_each(|test| println!("{}: test", test.name));
        return ExitCode::SUCCESS;
    }
    let clock = SystemClock;
    let all = clock.now();
    let (mut passed, mut failed) = (0, 0);
    println!("\nrunning {} tests", chosen.len());
    let refused = mount::mounting_refused();
    for Test { name, run } in chosen {
        if let Some(why) = &refused {
            println!("test {name} ... SKIPPED: {why}");
            continue;
        }
        let begun = clock.now();
        let ended = Child::run(|| {
            mount::die_with_parent();
            if run() { 0 } else { SKIPPED }
        })
        .wait(limit());
        let seconds = (clock.now() - begun).as_secs_f64();
        let word = match ended {
            Ended::Exited(0) => {
                passed += 1;
                "ok".to_owned()
            }
            Ended::Exited(SKIPPED) => "SKIPPED, see above".to_owned(),
            _ => {
                failed += 1;
                format!("FAILED ({ended:?})")
            }
        };
        println!("test {name} ... {word} ({seconds:.1} s)");
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
