//! The harness of tests that fork: each test runs in a child of its own, so that it begins with one thread. The child
//! dies with the harness, whoever ends it.

use orcheck_io::clock::{Clock, SystemClock};
use orcheck_io::testing::mount::die_with_parent;
use orcheck_io::testing::{Child, Ended};
use std::process::ExitCode;
use std::time::Duration;

/// A test by its name; it says whether it ran, or had to be skipped.
pub type Test = (&'static str, fn() -> bool);

/// What a test's process ends with that had to be skipped.
const SKIPPED: i32 = 77;

/// The list of tests that always run, from their functions.
#[allow(unused_macros)]
macro_rules! tests {
    ($($module:ident::$name:ident,)*) => {
        &[$((concat!(stringify!($module), "::", stringify!($name)), || {
            $module::$name();
            true
        })),*]
    };
}

/// Longest time of one test; a campaign takes hours.
fn limit() -> Duration {
    let hours = if crate::trial::trials(0) > 0 { 48 } else { 1 };
    Duration::from_secs(hours * 3600)
}

/// Runs the tests that the command line chooses, each in a child; `program` is how cargo names the program.
pub fn run(program: &str, all_tests: &[Test]) -> ExitCode {
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
        all_tests
            .iter()
            .filter(|(name, _)| chosen(name))
            .for_each(|(name, _)| println!("{name}: test"));
        return ExitCode::SUCCESS;
    }
    let clock = SystemClock;
    let all = clock.now();
    let seed = crate::trial::seed();
    let (mut passed, mut failed) = (0, 0);
    println!(
        "\nrunning {} tests",
        all_tests.iter().filter(|(name, _)| chosen(name)).count()
    );
    for (name, test) in all_tests.iter().filter(|(name, _)| chosen(name)) {
        let begun = clock.now();
        let ended = Child::run(|| {
            die_with_parent();
            if test() { 0 } else { SKIPPED }
        })
        .wait(limit());
        let word = match ended {
            Ended::Exited(0) => "ok".to_owned(),
            Ended::Exited(SKIPPED) => "SKIPPED, see above".to_owned(),
            _ => format!("FAILED ({ended:?})"),
        };
        println!(
            "test {name} ... {word} ({:.1} s)",
            (clock.now() - begun).as_secs_f64()
        );
        match ended {
            Ended::Exited(0) => passed += 1,
            Ended::Exited(SKIPPED) => continue,
            _ => failed += 1,
        }
        if ended != Ended::Exited(0) {
            let trials = match crate::trial::trials(0) {
                0 => String::new(),
                count => format!(" ORCHECK_TRIALS={count}"),
            };
            println!(
                "  again: ORCHECK_SEED={seed}{trials} cargo test {program} --locked -- --exact {name}"
            );
        }
    }
    let word = if failed == 0 { "ok" } else { "FAILED" };
    println!(
        "\ntest result: {word}. {passed} passed; {failed} failed; 0 ignored; 0 measured; {} filtered out; finished in {:.2}s\n",
        all_tests.len() - passed - failed,
        (clock.now() - all).as_secs_f64()
    );
    if failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
