//! Tests `run`: restarts, signals, and what it leaves behind.

use std::io::{BufRead, BufReader, Read};
use std::process::Stdio;

use crate::{Answer, answer, orcheck};
use orcheck_fixtures::reading::{Scratch, Spec, write};

fn lines(text: &str) -> Vec<serde_json::Value> {
    text.lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect()
}

#[test]
fn success_needs_one_run() {
    let done = answer(&["run", "--", "sh", "-c", "echo attempt $ORCHECK_RUN_ATTEMPT"]);
    assert_eq!(
        (done.code, done.stdout.as_str(), done.stderr.as_str()),
        (0, "attempt 1\n", "")
    );
}

#[test]
fn a_failure_is_restarted_until_it_succeeds() {
    let script = "echo attempt $ORCHECK_RUN_ATTEMPT; test $ORCHECK_RUN_ATTEMPT -ge 3";
    let done = answer(&[
        "run",
        "--restarts",
        "5",
        "--no-progress",
        "0",
        "--json",
        "--",
        "sh",
        "-c",
        script,
    ]);
    assert_eq!(done.code, 0);
    assert_eq!(done.stdout, "attempt 1\nattempt 2\nattempt 3\n");
    let events = lines(&done.stderr);
    assert_eq!(
        events
            .iter()
            .filter(|event| event["event"] == "restart")
            .count(),
        2,
        "{}",
        done.stderr
    );
    let summary = events.last().unwrap();
    assert_eq!(
        (
            summary["event"].as_str(),
            summary["schema"].as_u64(),
            summary["exit_code"].as_u64()
        ),
        (Some("summary"), Some(1), Some(0))
    );
    assert_eq!(summary["runs"].as_array().unwrap().len(), 3);
}

#[test]
fn restarts_are_bounded_and_the_last_code_is_ours() {
    let done = answer(&[
        "run",
        "--restarts",
        "2",
        "--no-progress",
        "0",
        "--",
        "sh",
        "-c",
        "echo x; exit $((40 + ORCHECK_RUN_ATTEMPT))",
    ]);
    assert_eq!((done.code, done.stdout.as_str()), (43, "x\nx\nx\n"));
    assert!(
        done.stderr.contains("ended with exit code 41")
            && done.stderr.contains("starting run 2 of at most 3"),
        "{}",
        done.stderr
    );
    assert!(
        done.stderr.contains("2 restarts used up"),
        "{}",
        done.stderr
    );
    assert_eq!(answer(&["run", "--restarts", "0", "--", "false"]).code, 1);
    // Killed by a signal: 128 + 9.
    let killed = answer(&["run", "--restarts", "0", "--", "sh", "-c", "kill -KILL $$"]);
    assert_eq!(killed.code, 137);
    assert!(
        killed.stderr.contains("killed by signal 9"),
        "{}",
        killed.stderr
    );
    let missing = answer(&["run", "--", "/nonexistent/program"]);
    assert_eq!(missing.code, 10);
    assert_eq!(answer(&["run", "--grace", "-1", "--", "true"]).code, 2);
}

#[test]
fn two_runs_without_a_new_checkpoint_end_it() {
    let scratch = Scratch::new();
    let root = scratch.dir("a").display().to_string();
    write(&[scratch.dir("a/cavity")], &Spec::new(10, 1));
    let common = [
        "run",
        "--restarts",
        "9",
        "--dir",
        &root,
        "--job",
        "cavity",
        "--json",
        "--",
    ];
    let idle = answer(&[&common[..], &["sh", "-c", "echo x; exit 1"]].concat());
    assert_eq!((idle.code, idle.stdout.as_str()), (1, "x\nx\n"));
    assert!(
        idle.stderr.contains("made no new checkpoint"),
        "{}",
        idle.stderr
    );
    // A run that commits something new starts the count again.
    write(&[scratch.dir("prepared")], &Spec::new(20, 2));
    let prepared = scratch.dir("prepared").display().to_string();
    let script =
        format!("echo x; test $ORCHECK_RUN_ATTEMPT = 2 && cp {prepared}/* {root}/cavity/; exit 1");
    let moving = answer(&[&common[..], &["sh", "-c", &script]].concat());
    assert_eq!((moving.code, moving.stdout.as_str()), (1, "x\nx\nx\nx\n"));
    assert_eq!(
        lines(&moving.stderr).last().unwrap()["runs"][1]["new_commit"],
        true
    );
    let mistyped = answer(&["run", "--dir", "/nonexistent", "--", "true"]);
    assert_eq!(mistyped.code, 10);
    // No directory of the job yet: the first run makes it.
    let fresh = answer(&[
        "run",
        "--restarts",
        "0",
        "--dir",
        &root,
        "--job",
        "later",
        "--",
        "true",
    ]);
    assert_eq!(fresh.code, 0);
}

#[test]
fn signals_are_passed_on_and_end_the_restarts() {
    for (name, number, code) in [("TERM", 15, 143), ("INT", 2, 130)] {
        // A shell without job control ignores SIGINT for what it starts in the background, so it
        // waits itself.
        let script = format!("trap 'exit {code}' {name}; echo ready; read -r never");
        let mut child = orcheck(&["run", "--restarts", "5", "--", "sh", "-c", &script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let _open = child.stdin.take();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        out.read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        send(child.id(), number);
        let status = child.wait().unwrap();
        let mut said = String::new();
        child
            .stderr
            .take()
            .unwrap()
            .read_to_string(&mut said)
            .unwrap();
        assert_eq!(status.code(), Some(code), "{said}");
        assert!(said.contains("a signal asked to stop"), "{said}");
        assert!(!said.contains("starting run 2"), "{said}");
    }
}

#[test]
fn sigusr1_is_passed_on_and_changes_nothing_else() {
    let script = "exec 2>/dev/null; trap 'echo asked; exit 0' USR1; echo ready; read -r never";
    let mut child = orcheck(&["run", "--", "sh", "-c", script])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let _open = child.stdin.take();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    send(child.id(), 10);
    let mut rest = String::new();
    out.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "asked\n");
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn what_ignores_the_request_is_killed_after_the_grace_time() {
    let script = "trap '' TERM; echo ready; read -r never";
    let mut child = orcheck(&["run", "--grace", "0.2", "--", "sh", "-c", script])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let _open = child.stdin.take();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    send(child.id(), 15);
    assert_eq!(child.wait().unwrap().code(), Some(137));
}

#[test]
fn nothing_of_a_failed_run_is_alive_in_the_next() {
    // Breaks if: `clear` is dropped; the orphan of the first run would live on beside the second.
    // The second orphan left its process group, as the ranks that mpirun starts do.
    let scratch = Scratch::new();
    let pids = scratch.path().join("pids").display().to_string();
    let script = format!(
        "if [ $ORCHECK_RUN_ATTEMPT = 1 ]; then \
           mkfifo {pids}.told; \
           tail -f /dev/null >/dev/null 2>&1 & echo $! > {pids}; \
           setsid sh -c 'echo $$ >> {pids}; echo > {pids}.told; exec tail -f /dev/null' >/dev/null 2>&1 & \
           read -r line < {pids}.told; exit 1; \
         fi; \
         for pid in $(cat {pids}); do kill -0 $pid 2>/dev/null && echo alive; done; exit 0"
    );
    let output = orcheck(&["run", "--grace", "5", "--", "sh", "-c", &script])
        .output()
        .unwrap();
    let done = Answer::of(output);
    assert_eq!(
        (done.code, done.stdout.as_str()),
        (0, ""),
        "{}",
        done.stderr
    );
    assert_eq!(std::fs::read_to_string(&pids).unwrap().lines().count(), 2);
}

fn send(process: u32, signal: i32) {
    let sent = std::process::Command::new("kill")
        .args([format!("-{signal}"), process.to_string()])
        .status()
        .unwrap();
    assert!(sent.success());
}
