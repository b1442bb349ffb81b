//! `prove`: what a restart does not bring back.

use crate::fixture::Scratch;
use crate::program::{command_line, tell};
use crate::{Answer, orcheck};

/// Small, and with a directory that nobody may use: the program's own stay as they are.
const OPTIONS: &str =
    "global = '/nonexistent/own'\nevery_s = 600\npool = '4 MiB'\nchunk = '64 KiB'\n";

fn prove(scratch: &Scratch, arguments: &[&str], what: &str) -> Answer {
    let line = command_line();
    let dir = scratch.path().display().to_string();
    let mut all = vec!["prove", "--dir", &dir];
    all.extend(arguments);
    all.push("--");
    all.extend(line.iter().map(String::as_str));
    let mut command = orcheck(&all);
    // Checkpoints that the program disables are what is to be proven all the same.
    tell(
        &mut command,
        what,
        "cavity",
        &format!("{OPTIONS}enabled = false\n"),
    );
    Answer::of(command.output().unwrap())
}

fn left(scratch: &Scratch) -> usize {
    std::fs::read_dir(scratch.path()).unwrap().count()
}

#[test]
fn a_program_that_protects_all_it_computes_from_is_proven() {
    let scratch = Scratch::new();
    let before = left(&scratch);
    let done = prove(&scratch, &["--every", "5"], "solves");
    assert_eq!(done.code, 0, "{}{}", done.stdout, done.stderr);
    let words = "proven: at step 10 3 regions";
    assert!(done.stdout.starts_with(words), "{}", done.stdout);
    assert!(
        done.stdout.contains("restarted from step 5"),
        "{}",
        done.stdout
    );
    assert_eq!(left(&scratch), before, "what was made is removed");
}

// Breaks if: the second run begins from nothing, or the checkpoints of one run are compared with themselves.
#[test]
fn a_counter_that_nobody_protected_is_found() {
    let scratch = Scratch::new();
    let done = prove(&scratch, &[], "solves-forgetful");
    assert_eq!(done.code, 14, "{}{}", done.stdout, done.stderr);
    // 1 + … + 20 undisturbed; 1 + … + 10 twice when the counter begins again.
    let words = "region v of rank 0 differs in 1 element, first element 17: 210 undisturbed, 110 after the restart";
    assert!(done.stdout.contains(words), "{}", done.stdout);
    assert!(
        done.stdout
            .contains("not proven: 1 of 2 regions differ at step 20"),
        "{}",
        done.stdout
    );
    let document = prove(&scratch, &["--json"], "solves-forgetful").json();
    assert_eq!(document["differences"][0]["region"], "v");
    assert_eq!(
        (&document["from_step"], &document["at_step"]),
        (&10.into(), &20.into())
    );
}

#[test]
fn what_differs_between_undisturbed_runs_can_be_left_out() {
    let scratch = Scratch::new();
    let done = prove(&scratch, &[], "solves-noisy");
    assert_eq!(done.code, 14, "{}{}", done.stdout, done.stderr);
    assert!(
        done.stdout.contains("first element 3: 20.0"),
        "{}",
        done.stdout
    );
    let done = prove(&scratch, &["--tolerance", "1e-3"], "solves-noisy");
    assert_eq!(done.code, 0, "{}{}", done.stdout, done.stderr);
    let done = prove(&scratch, &["--twice"], "solves-noisy");
    assert_eq!(done.code, 0, "{}{}", done.stdout, done.stderr);
    let words = "left out: 1 of 100 elements of region v of rank 0, which differ between two undisturbed runs";
    assert!(done.stdout.contains(words), "{}", done.stdout);
}

#[test]
fn a_command_that_takes_too_few_checkpoints_is_told_what_to_do() {
    let scratch = Scratch::new();
    let done = prove(&scratch, &[], "ends");
    assert_eq!(done.code, 1, "{}{}", done.stdout, done.stderr);
    let words =
        "the undisturbed run ended (exit status: 0) without the checkpoints that are needed";
    assert!(done.stderr.contains(words), "{}", done.stderr);
    let late = prove(
        &scratch,
        &["--timeout", "1", "--every", "1000000000000"],
        "solves",
    );
    assert_eq!(late.code, 12, "{}{}", late.stdout, late.stderr);
    let left_alive = prove(&scratch, &["--tolerance", "2"], "solves");
    assert_eq!(left_alive.code, 2, "{}", left_alive.stderr);
}
