//! The harness of tests that fork: each test runs in a child of its own, so that it begins with one
//! thread; two at a time, and what each prints stands together. The children die with the harness,
//! whoever ends it.

use orcheck_io::clock::{Clock, SystemClock};
use orcheck_testing::mount::die_with_parent;
use orcheck_testing::{Child, Ended};
use std::fs::File;
use std::io::{Read as _, Seek as _};
use std::process::ExitCode;
use std::time::Duration;

/// A test by its name; it says whether it ran, or had to be skipped.
pub type Test = (&'static str, fn() -> bool);

/// What a test's process ends with that had to be skipped.
const SKIPPED: i32 = 77;

/// The list of tests that always run, from their functions.
#[macro_export]
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

/// Tests that run at once. Most of their time they wait: for deadlines, and for processes of their
/// own.
const AT_ONCE: usize = 2;

/// Longest time between two looks at how long they run.
const LOOK: Duration = Duration::from_secs(10);

/// A test that runs this long is named; then again whenever its time has doubled.
const LONG: Duration = Duration::from_secs(60);

/// A test that runs, and what it prints.
struct Running {
    name: &'static str,
    child: Child,
    output: File,
    begun: Duration,
    /// How long it has to run until it is named.
    named_after: Duration,
}

impl Running {
    fn begin(name: &'static str, test: fn() -> bool, begun: Duration) -> Self {
        let (child, output) = Child::run_captured(|| {
            die_with_parent();
            if test() { 0 } else { SKIPPED }
        });
        Self {
            name,
            child,
            output,
            begun,
            named_after: LONG,
        }
    }

    /// The line that names it, when it is due: what it prints itself is not shown before its end.
    fn still(&mut self, now: Duration) -> Option<String> {
        let after = now - self.begun;
        if after < self.named_after {
            return None;
        }
        while self.named_after <= after {
            self.named_after *= 2;
        }
        Some(format!(
            "still running: {} after {} s",
            self.name,
            after.as_secs()
        ))
    }

    /// How it ended, after what it printed.
    fn end(mut self, seed: u64, program: &str, clock: &SystemClock) -> Ended {
        let name = self.name;
        let ended = self.child.wait(Duration::ZERO);
        let mut printed = Vec::new();
        self.output.rewind().unwrap();
        self.output.read_to_end(&mut printed).unwrap();
        print!("{}", String::from_utf8_lossy(&printed));
        let word = match ended {
            Ended::Exited(0) => "ok".to_owned(),
            Ended::Exited(SKIPPED) => "SKIPPED, see above".to_owned(),
            _ => format!("FAILED ({ended:?})"),
        };
        let seconds = (clock.now() - self.begun).as_secs_f64();
        println!("test {name} ... {word} ({seconds:.1} s)");
        if !matches!(ended, Ended::Exited(0 | SKIPPED)) {
            let trials = match crate::trial::trials(0) {
                0 => String::new(),
                count => format!(" ORCHECK_TRIALS={count}"),
            };
            println!(
                "  again: ORCHECK_SEED={seed}{trials} cargo test {program} --locked -- --exact {name}"
            );
        }
        ended
    }
}

/// Runs the tests that the command line chooses, each in a child; `program` is how cargo names the
/// program.
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
    let mut waiting: Vec<&Test> = all_tests.iter().filter(|(name, _)| chosen(name)).collect();
    println!("\nrunning {} tests", waiting.len());
    waiting.reverse();
    let mut running: Vec<Running> = Vec::new();
    loop {
        while running.len() < AT_ONCE
            && let Some(&(name, test)) = waiting.pop()
        {
            running.push(Running::begin(name, test, clock.now()));
        }
        if running.is_empty() {
            break;
        }
        let over = |one: &Running| one.child.has_ended() || clock.now() - one.begun > limit();
        let Some(at) = running.iter().position(over) else {
            Child::wait_for_any(running.iter().map(|one| &one.child), LOOK);
            let named = running.iter_mut().filter_map(|one| one.still(clock.now()));
            named.for_each(|line| println!("{line}"));
            continue;
        };
        let ended = running.remove(at).end(seed, program, &clock);
        match ended {
            Ended::Exited(0) => passed += 1,
            Ended::Exited(SKIPPED) => {}
            _ => failed += 1,
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

/// What a hanging test shows of itself while it hangs.
pub fn a_test_that_hangs_is_named_while_it_runs() {
    let mut test = Running::begin("some::test", || true, Duration::from_secs(100));
    let mut at = |now| test.still(Duration::from_secs(now));
    let line = |after| Some(format!("still running: some::test after {after} s"));
    assert_eq!(at(159), None);
    assert_eq!(at(160), line(60));
    assert_eq!(at(219), None);
    assert_eq!(at(220), line(120));
    assert_eq!(at(900), line(800));
    assert_eq!(at(1059), None);
    assert_eq!(at(1060), line(960));
}
