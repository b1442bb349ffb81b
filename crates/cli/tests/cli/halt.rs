//! Tests `halt`, and how `run` reacts to it.

use crate::program::{Running, command_line, tell};
use crate::{Answer, answer, orcheck};
use orcheck_fixtures::reading::{Scratch, Spec, claim, epoch, write};
use std::time::{Duration, Instant};

/// Options of a program whose checkpoints are due when somebody asks for them.
fn options(root: &str) -> String {
    format!("global = '{root}'\nevery_s = 1e6\npool = '4 MiB'\nchunk = '64 KiB'\n")
}

fn supervised(root: &str, what: &str) -> Running {
    supervised_with(root, what, &options(root))
}

fn supervised_with(root: &str, what: &str, options: &str) -> Running {
    let line = command_line();
    let mut arguments = vec!["run", "--max-restarts", "5", "--dir", root, "--job"];
    arguments.extend(["cavity", "--"]);
    arguments.extend(line.iter().map(String::as_str));
    let mut command = orcheck(&arguments);
    tell(&mut command, what, "cavity", options);
    Running::of(command)
}

#[test]
fn a_running_job_takes_a_checkpoint_ends_and_goes_on_later() {
    let scratch = Scratch::new();
    let root = scratch.dir("pfs").display().to_string();
    let mut job = supervised(&root, "computes");
    job.wait_for("ready 0");
    let halted = answer(&["halt", "--dir", &root]);
    assert_eq!(halted.code, 0, "{}{}", halted.stdout, halted.stderr);
    assert!(
        halted
            .stdout
            .starts_with("halted: job cavity, newest checkpoint: step "),
        "{}",
        halted.stdout
    );
    assert!(
        halted.stderr.contains("asked job cavity (epoch 1-"),
        "{}",
        halted.stderr
    );
    let step = job.wait_for("stopped")["stopped ".len()..].to_owned();
    let (code, said) = job.end();
    assert_eq!(code, Some(13), "{said}");
    let words = format!("halted, as `orcheck halt` asked; newest checkpoint: step {step}");
    assert!(said.contains(&words), "{said}");

    let listed = answer(&["halt", "--list", "--dir", &root]).stdout;
    assert!(
        listed.contains("has ended") && listed.contains("asked to halt: asked by process"),
        "{listed}"
    );
    let again = answer(&["halt", "--dir", &root]);
    assert_eq!(again.code, 10, "{}", again.stderr);
    assert!(
        again.stderr.contains("job cavity is not running"),
        "{}",
        again.stderr
    );
    // Breaks if: what was asked of that run is asked of the next one.
    let mut next = supervised(&root, "ends");
    next.wait_for(&format!("ready {step}"));
    let (code, said) = next.end();
    assert_eq!((code, said.as_str()), (Some(0), ""));
}

// Breaks if: the program is killed before its last checkpoint, or runs on until the grace time is
// over.
#[test]
fn sigterm_gives_a_running_job_its_last_checkpoint_and_it_goes_on_later() {
    let scratch = Scratch::new();
    let root = scratch.dir("pfs").display().to_string();
    let options = format!("{}signal = 'TERM'\n", options(&root));
    let mut job = supervised_with(&root, "computes", &options);
    job.wait_for("ready 0");
    job.signal("TERM");
    let step = job.wait_for("stopped")["stopped ".len()..].to_owned();
    let (code, said) = job.end();
    assert_eq!(code, Some(13), "{said}");
    for words in [
        "signal 15 passed on; the command has 30 s to end (with signal = 'TERM' it takes a last checkpoint)",
        &format!(
            "stopped, as a signal asked; newest checkpoint: step {step}; start it again to continue"
        ),
    ] {
        assert!(said.contains(words), "{words}: {said}");
    }
    let mut next = supervised(&root, "ends");
    next.wait_for(&format!("ready {step}"));
    assert_eq!(next.end().0, Some(0));
}

#[test]
fn a_run_that_does_not_hear_is_said_and_the_request_can_be_taken_back() {
    let scratch = Scratch::new();
    let root = scratch.dir("pfs").display().to_string();
    let mut job = Running::start("deaf", "cavity", &options(&root));
    job.wait_for("sealed");
    let late = answer(&["halt", "--timeout", "0.3", "--dir", &root]);
    assert_eq!(late.code, 12, "{}", late.stdout);
    assert!(
        late.stderr
            .contains("still runs 0.3 s after it was asked to halt; the request stays"),
        "{}",
        late.stderr
    );
    let listed = answer(&["--json", "halt", "--list", "--dir", &root]).json();
    assert_eq!(listed["runs"], true);
    assert_eq!(listed["requests"][0]["epoch"], 1);
    let removed = answer(&["halt", "--remove", "--dir", &root]);
    assert_eq!(removed.stdout, "job cavity is not asked to halt any more\n");
    let listed = answer(&["halt", "--list", "--dir", &root]).stdout;
    assert!(listed.contains(", runs\nnot asked to halt"), "{listed}");
    // One that dies has ended too, and it is reported that it took no checkpoint.
    let mut halting = Running::of(orcheck(&["halt", "--dir", &root]));
    let list = ["--json", "halt", "--list", "--dir", root.as_str()];
    while answer(&list).json()["requests"][0].is_null() {
        std::thread::yield_now();
    }
    drop(job);
    let text = halting.wait_for("job cavity ended, without a new checkpoint: the newest is step 1");
    assert!(text.ends_with("at level global"), "{text}");
    assert_eq!(halting.end().0, Some(3));
}

// Breaks if: a request for later ends the run at once, or is not listed with its time.
#[test]
fn a_request_for_later_is_written_listed_and_taken_back() {
    let scratch = Scratch::new();
    let root = scratch.dir("pfs").display().to_string();
    claim(&scratch.dir("pfs/cavity"), epoch(3), None);
    let halt = |more: &[&str]| answer(&[&["halt", "--dir", &root][..], more].concat());
    let asked = halt(&["--force", "--at", "2h"]);
    assert_eq!(asked.code, 0, "{}", asked.stderr);
    assert!(asked.stdout.contains(") to halt at 2"), "{}", asked.stdout);
    assert!(!asked.stdout.contains("unix"), "{}", asked.stdout);
    let listed = halt(&["--list"]).stdout;
    assert!(
        listed.contains("asked to halt at 2") && listed.contains(", in 1"),
        "{listed}"
    );
    let asked = halt(&["--force", "--after", "3"]);
    assert!(
        asked
            .stdout
            .contains("to halt after 3 further checkpoints, no longer at 2"),
        "{}",
        asked.stdout
    );
    let document = answer(&["--json", "halt", "--list", "--dir", &root]).json();
    assert_eq!(document["later"][0]["after"], 3);
    assert_eq!(document["requests"].as_array().unwrap().len(), 0);
    assert_eq!(halt(&["--remove"]).code, 0);
    assert!(halt(&["--list"]).stdout.contains("not asked to halt"));
    for wrong in [
        &["--at", "90"][..],
        &["--after", "0"],
        &["--at", "2020-01-01 10:00"],
    ] {
        assert_eq!(halt(&[&["--force"], wrong].concat()).code, 2, "{wrong:?}");
    }
}

// Breaks if: the run does not see the request, or a supervisor starts the job again or gives
// another reason, having counted the checkpoints that are there: those that were there before, or
// less those that were pruned.
#[test]
fn a_running_job_halts_after_so_many_checkpoints() {
    for count in ["2", "5"] {
        let scratch = Scratch::new();
        let root = scratch.dir("pfs").display().to_string();
        let mut job = at_every_step(&root);
        job.wait_for("ready 0");
        let asked = answer(&["halt", "--dir", &root, "--after", count]);
        assert_eq!(asked.code, 0, "{}", asked.stderr);
        job.wait_for("stopped");
        let (code, said) = job.end();
        assert_eq!(code, Some(13), "{said}");
        assert!(said.contains("halted, as `orcheck halt` asked"), "{said}");
    }
}

// Breaks if: the run takes a request for a later time as one for now, or does not look at its clock
// again.
#[test]
fn a_running_job_halts_at_the_time_that_was_named() {
    let scratch = Scratch::new();
    let root = scratch.dir("pfs").display().to_string();
    let mut job = at_every_step(&root);
    job.wait_for("ready 0");
    let asked_at = Instant::now();
    let asked = answer(&["halt", "--dir", &root, "--at", "3s"]);
    assert_eq!(asked.code, 0, "{}", asked.stderr);
    job.wait_for("stopped");
    // The time is named in whole seconds.
    assert!(asked_at.elapsed() >= Duration::from_secs(2));
    let (code, said) = job.end();
    assert_eq!(code, Some(13), "{said}");
}

/// A supervised job that takes a checkpoint at every step.
fn at_every_step(root: &str) -> Running {
    let options = format!("{}every_steps = 1\n", options(root));
    supervised_with(root, "computes", &options)
}

/// The job is asked to halt later on, and its first run is then killed.
fn killed_after_a_request(mut job: Running, root: &str, how: [&str; 2]) -> Running {
    job.wait_for("ready 0");
    let asked = answer(&[&["halt", "--dir", root], &how[..]].concat());
    assert_eq!(asked.code, 0, "{}", asked.stderr);
    job.kill_command();
    job.wait_for("ready");
    job
}

// Breaks if: the request goes with the run that was killed; the job would be in the way at the time
// that was named.
#[test]
fn a_job_that_is_started_again_halts_at_the_time_that_was_named() {
    let scratch = Scratch::new();
    let root = scratch.dir("pfs").display().to_string();
    let mut job = killed_after_a_request(at_every_step(&root), &root, ["--at", "5s"]);
    job.wait_for("stopped");
    let (code, said) = job.end();
    assert_eq!(code, Some(13), "{said}");
    for words in ["; it is to halt at ", "halted, as `orcheck halt` asked"] {
        assert!(said.contains(words), "{words}: {said}");
    }
}

// Breaks if: a run that begins after the time takes it for over, and nobody reminds it.
#[test]
fn a_time_that_passes_while_a_job_is_started_again_still_applies() {
    let scratch = Scratch::new();
    let root = scratch.dir("pfs").display().to_string();
    let script = "if [ $ORCHECK_RUN_ATTEMPT = 2 ]; then end=$(($(date +%s) + 4)); \
         until [ $(date +%s) -ge $end ]; do :; done; fi; exec \"$@\"";
    let line = command_line();
    let mut all = vec!["run", "--dir", &root, "--job", "cavity", "--"];
    all.extend(["sh", "-c", script, "sh"]);
    all.extend(line.iter().map(String::as_str));
    let mut command = orcheck(&all);
    let options = format!("{}every_steps = 1\n", options(&root));
    tell(&mut command, "computes", "cavity", &options);
    let mut job = killed_after_a_request(Running::of(command), &root, ["--at", "3s"]);
    job.wait_for("stopped");
    let (code, said) = job.end();
    assert_eq!(code, Some(13), "{said}");
    assert!(said.contains("; it is to halt at "), "{said}");
}

// Breaks if: nothing is reported of it; who asked would wait for an end that never comes.
#[test]
fn a_request_that_does_not_outlive_its_run_is_told() {
    let scratch = Scratch::new();
    let root = scratch.dir("pfs").display().to_string();
    let mut job = killed_after_a_request(at_every_step(&root), &root, ["--after", "1000000"]);
    let asked = answer(&["halt", "--dir", &root, "--no-wait"]);
    assert_eq!(asked.code, 0, "{}", asked.stderr);
    job.wait_for("stopped");
    let (code, said) = job.end();
    assert_eq!(code, Some(13), "{said}");
    let words = "; the request to halt after 1000000 further checkpoints applied to that run only; repeat it for the next one; starting run 2";
    assert!(said.contains(words), "{said}");
}

/// A job whose run of epoch 2 is asked to halt while it runs, and fails.
fn fails_after_a_request(scratch: &Scratch, root: &str) -> Answer {
    claim(&scratch.dir("prepared"), epoch(2), None);
    let script = format!(
        "echo x; cp {}/* {root}/cavity; $0 halt --no-wait --force --dir {root} >&2; exit 7",
        scratch.dir("prepared").display()
    );
    let program = env!("CARGO_BIN_EXE_orcheck");
    let arguments = [
        "run", "--dir", root, "--job", "cavity", "--", "sh", "-c", &script, program,
    ];
    answer(&arguments)
}

// Breaks if: the supervisor does not look for the request; what the operator stopped would come
// back by itself.
#[test]
fn a_halted_job_is_not_started_again_but_a_later_one_is() {
    let scratch = Scratch::new();
    let root = scratch.dir("pfs").display().to_string();
    let dir = scratch.dir("pfs/cavity");
    claim(&dir, epoch(1), None);
    write(&[dir], &Spec::new(10, 1));
    let done = fails_after_a_request(&scratch, &root);
    assert_eq!(
        (done.code, done.stdout.as_str()),
        (7, "x\n"),
        "{}",
        done.stderr
    );
    assert!(
        done.stderr.contains("asked job cavity (epoch 2-")
            && done.stderr.contains("not restarting: it was asked to halt"),
        "{}",
        done.stderr
    );
    // The request is there still, and is none for what begins now.
    let common = ["run", "--restarts", "1", "--dir", &root, "--job", "cavity"];
    let again = answer(&[&common[..], &["--", "sh", "-c", "echo y; exit 1"]].concat());
    assert_eq!((again.code, again.stdout.as_str()), (1, "y\ny\n"));
}
