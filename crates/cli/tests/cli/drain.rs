//! Tests `drain`: agents make what they hold safe, and end.

use crate::program::Running;
use crate::{Answer, answer};
use orcheck_fixtures::reading::Scratch;

/// A job that nobody else on this machine has agents of.
fn job(test: &str) -> String {
    format!("drain-{test}-{}", std::process::id())
}

/// A program with an agent that it starts.
fn program(scratch: &Scratch, job: &str, what: &str) -> Running {
    let root = scratch.dir("pfs").display().to_string();
    let options = format!(
        "global = '{root}'\nagent = 'start'\nagent_program = '{}'\nagent_linger_s = 60\nnode_name = 'here'\n\
         pool = '4 MiB'\nchunk = '64 KiB'\n",
        env!("CARGO_BIN_EXE_orcheck")
    );
    Running::start(what, job, &options)
}

/// One that has taken a checkpoint.
fn taken(scratch: &Scratch, job: &str) -> Running {
    let mut program = program(scratch, job, "deaf");
    program.wait_for("sealed true");
    program
}

fn drain(job: &str, timeout: &str) -> Answer {
    answer(&["drain", "--job", job, "--timeout", timeout])
}

// Breaks if: an agent ends before its session, or lingers although it was told to end.
#[test]
fn an_agent_whose_ranks_are_gone_finishes_and_ends() {
    let scratch = Scratch::new();
    let job = job("gone");
    drop(taken(&scratch, &job));
    let elsewhere = scratch.dir("elsewhere").display().to_string();
    let other = answer(&["drain", "--job", &job, "--dir", &elsewhere]);
    let none = format!("no agents of job {job} are on this machine\n");
    assert_eq!((other.code, other.stdout.as_str()), (0, none.as_str()));
    let done = drain(&job, "20");
    assert_eq!(done.code, 0, "{}{}", done.stdout, done.stderr);
    let expected = format!(
        "node here, epoch 1: sealed up to step 1; all of it safe\njob {job}: 1 agent ended, 0 still there\n"
    );
    assert_eq!(done.stdout, expected);
    // Nothing is left, and draining again is no mistake.
    let again = drain(&job, "20");
    assert_eq!((again.code, again.stdout.as_str()), (0, none.as_str()));
}

// Breaks if: an agent is ended although its ranks live: they would be told that their engine is
// gone.
#[test]
fn an_agent_whose_ranks_live_is_left_alone_and_named() {
    let scratch = Scratch::new();
    let job = job("lives");
    let program = taken(&scratch, &job);
    let late = drain(&job, "0.3");
    assert_eq!(late.code, 12, "{}{}", late.stdout, late.stderr);
    for part in [
        "node here, epoch 1: sealed up to step 1, 1 of 1 ranks live; all of it safe",
        "node here: the agent is still there",
        "0 agents ended, 1 still there",
    ] {
        assert!(late.stdout.contains(part), "{}", late.stdout);
    }
    drop(program);
    assert_eq!(drain(&job, "20").code, 0);
}

// Breaks if: what no directory took is not said; the batch script would continue as if all were
// well.
#[test]
fn what_is_not_safe_is_named() {
    let scratch = Scratch::new();
    let job = job("lost");
    let mut program = program(&scratch, &job, "holds");
    program.wait_for("taken");
    std::fs::remove_dir_all(scratch.path().join("pfs").join(&job)).unwrap();
    program.go_on();
    program.wait_for("sealed false");
    drop(program);
    let done = drain(&job, "20");
    assert_eq!(done.code, 3, "{}{}", done.stdout, done.stderr);
    assert!(
        done.stdout.contains("not safe: step 2 at level global: ")
            && done.stdout.contains("1 agent ended"),
        "{}",
        done.stdout
    );
}
