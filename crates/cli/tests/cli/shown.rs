//! Tests the output for people: local times with their age, and tables that fit a terminal of 80
//! columns.

use crate::advice::LIMA;
use std::process::Command;

use crate::program::Running;
use crate::{Answer, answer, orcheck};
use orcheck_fixtures::reading::{Scratch, Spec, claim, epoch, write};

/// The time of all that is made here, in a zone that is no machine's: 2023-11-14 22:13:20 UTC.
const ZONE: &str = "XYZ-03:30";
const MINUTE: &str = "2023-11-15 01:43";

fn in_zone(arguments: &[&str]) -> Answer {
    Answer::of(orcheck(arguments).env("TZ", ZONE).output().unwrap())
}

/// Two jobs; one has checkpoints of several sorts.
fn jobs(scratch: &Scratch) -> String {
    let dir = scratch.dir("pfs/cavity");
    claim(&dir, epoch(1), None);
    for step in [10, 1_200_000] {
        write(std::slice::from_ref(&dir), &Spec::new(step, 1));
    }
    let mut peers = Spec::new(1_200_000, 1);
    peers.job = orcheck_format::JobName::new("turbulence-2048").unwrap();
    let other = scratch.dir("pfs/turbulence-2048");
    let written = write(&[other], &peers);
    std::fs::remove_file(&written.paths[0]).unwrap();
    scratch.dir("pfs").display().to_string()
}

// Breaks if: a time is shown in UTC, as a number, or without its age.
#[test]
fn times_are_local_and_have_their_age() {
    let scratch = Scratch::new();
    let root = jobs(&scratch);
    let both = format!("{MINUTE}:20, ");
    for (arguments, has) in [
        (&["ls", "--dir", &root, "--job", "cavity"][..], MINUTE),
        (&["ls", "--dir", &root], MINUTE),
        (&["show", "--dir", &root, "--job", "cavity"], &both),
        (&["status", "--dir", &root], &both),
        (
            &["halt", "--list", "--dir", &root, "--job", "cavity"],
            &both,
        ),
    ] {
        let said = in_zone(arguments).stdout;
        assert!(said.contains(has), "{arguments:?}: {said}");
        // Hundreds of days ago.
        let line = said.lines().find(|line| line.contains(has)).unwrap();
        let rest = &line[line.find(has).unwrap() + has.len()..];
        let age: String = rest
            .trim_start()
            .chars()
            .take_while(char::is_ascii_digit)
            .collect();
        let unit = &rest.trim_start()[age.len()..];
        assert!(age.parse::<u64>().is_ok_and(|days| days > 365), "{line}");
        assert!(unit.starts_with(" d"), "{line}");
        assert!(!said.contains("170000000"), "{said}");
    }
}

// Breaks if: a job that ended without a checkpoint looks as one that has just begun.
#[test]
fn a_job_that_ended_without_a_checkpoint_is_told_how_to_get_some() {
    let scratch = Scratch::new();
    claim(&scratch.dir("a/cavity"), epoch(1), None);
    let root = scratch.dir("a").display().to_string();
    let listed = in_zone(&["ls", "--dir", &root]);
    assert_eq!(listed.code, 0, "{}", listed.stderr);
    for words in [
        "job cavity: no checkpoints. Its last run began on host host-a at 2023-11-15 01:43:20, ",
        "and ended without one. Next: ",
        "every_s = 600",
        "ORCHECK_EVERY_S=600",
    ] {
        assert!(listed.stdout.contains(words), "{words}: {}", listed.stdout);
    }
    // One that took some needs no trigger: they are lost, or were removed.
    // Breaks if: whatever is not here was never taken.
    claim(&scratch.dir("c/cavity"), epoch(1), Some(None));
    let took = scratch.dir("c").display().to_string();
    let listed = answer(&["ls", "--dir", &took]);
    let words = "and took at least one; it was lost, or removed. Next: see what";
    assert!(listed.stdout.contains(words), "{}", listed.stdout);
    assert!(!listed.stdout.contains("every_s"), "{}", listed.stdout);
    // One that runs has time to take some.
    let dir = scratch.dir("b").display().to_string();
    let options = format!("global = '{dir}'\nevery_s = 1e6\npool = '4 MiB'\nchunk = '64 KiB'\n");
    let mut job = Running::start("tells", "living", &options);
    job.wait_for("ready 0");
    let listed = answer(&["ls", "--dir", &dir]);
    let words = "job living: no checkpoints yet; it runs on host ";
    assert!(listed.stdout.starts_with(words), "{}", listed.stdout);
    assert!(!listed.stdout.contains("every_s"), "{}", listed.stdout);
}

/// What the command says to a terminal of 80 columns, without colours.
fn on_a_terminal(arguments: &[&str]) -> String {
    let program = env!("CARGO_BIN_EXE_orcheck");
    let quoted: Vec<String> = (arguments.iter())
        .map(|argument| format!("'{argument}'"))
        .collect();
    let line = format!(
        "stty cols 80 rows 50; exec '{program}' {}",
        quoted.join(" ")
    );
    let mut command = Command::new("script");
    command.args(["-qec", &line, "/dev/null"]);
    let done = Answer::of(
        command
            .env("NO_COLOR", "1")
            .env("TZ", ZONE)
            .output()
            .unwrap(),
    );
    let (mut text, mut in_escape) = (String::new(), false);
    for c in done.stdout.replace('\r', "").chars() {
        match (in_escape, c) {
            (false, '\u{1b}') => in_escape = true,
            (true, c) => in_escape = !c.is_ascii_alphabetic(),
            (false, c) => text.push(c),
        }
    }
    text
}

// Breaks if: a table is wider than a terminal of 80 columns: its cells would be broken into several
// lines.
#[test]
fn tables_fit_a_terminal_of_80_columns() {
    let scratch = Scratch::new();
    let root = jobs(&scratch);
    let peers = scratch.dir("local/cavity/n0");
    let mut spec = Spec::new(1_200_000, 3);
    spec.level = orcheck_format::Level::Node;
    write(&[peers], &spec);
    let node = scratch.dir("local").display().to_string();
    let lima = [&["plan"], &LIMA[..]].concat();
    let cavity = ["--dir", &root, "--node-dir", &node, "--job", "cavity"];
    for (arguments, head) in [
        ([&["ls"][..], &cavity].concat(), "step"),
        (vec!["ls", "--dir", &root], "job"),
        ([&["verify", "--all"][..], &cavity].concat(), "step"),
        (lima, "levels"),
        (vec!["plan", "survival", "--table1"], "nodes"),
        (vec!["plan", "burst"], "mode"),
        (
            vec![
                "plan",
                "survival",
                "--nodes",
                "500,1000",
                "--with",
                "random:1,random:2",
            ],
            "nodes",
        ),
        (
            vec![
                "plan", "survival", "--nodes", "500", "--with", "random:1", "--lost", "3",
            ],
            "nodes",
        ),
    ] {
        let piped = in_zone(&arguments).stdout;
        let shown = on_a_terminal(&arguments);
        let table = |text: &str| -> Vec<String> {
            let lines = text.lines().map(str::trim);
            let lines = lines.skip_while(|line| !line.starts_with(head));
            let lines = lines.take_while(|line| !line.is_empty());
            // How far apart the columns are does not matter here.
            lines
                .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
                .collect()
        };
        let (piped, rows) = (table(&piped), table(&shown));
        assert!(rows.len() > 1, "{arguments:?}: {shown}");
        assert_eq!(rows, piped, "{arguments:?}: {shown}");
        let lines = shown.lines().map(str::trim_end);
        let mut lines = lines.skip_while(|line| !line.trim().starts_with(head));
        let wide = lines.find(|line| line.chars().count() > 80 && rows.len() > 1);
        let is_row =
            |wide: &str| rows.contains(&wide.split_whitespace().collect::<Vec<_>>().join(" "));
        assert!(!wide.is_some_and(is_row), "{wide:?}");
    }
}

// Breaks if: the advice is a column, which is too narrow for a command that is to be copied; or it
// says the same as the message.
#[test]
fn the_advice_of_doctor_stands_in_lines_of_its_own() {
    let shown = on_a_terminal(&["doctor", "--dir", "/nonexistent"]);
    let mut advice = shown.lines().map(str::trim_end);
    assert!(advice.any(|line| line == "What to do:"), "{shown}");
    let line = "/nonexistent: placed directory: create it or correct the path";
    assert!(advice.any(|found| found == line), "{shown}");
    assert!(!shown.contains("Next:"), "{shown}");
    assert!(shown.contains(" MADV_POPULATE_WRITE "), "{shown}");
}

// Breaks if: directories in which there is no job are passed over without a word.
#[test]
fn status_says_that_no_job_is_there() {
    let scratch = Scratch::new();
    let root = scratch.dir("empty").display().to_string();
    let told = answer(&["status", "--dir", &root]);
    assert_eq!(told.code, 0, "{}", told.stderr);
    assert!(
        told.stderr.contains("no job is in the directories given"),
        "{}",
        told.stderr
    );
}

// Breaks if: the last of several steps counts, and the others are passed over.
#[test]
fn several_steps_are_refused_where_one_is_meant() {
    let scratch = Scratch::new();
    let root = jobs(&scratch);
    let cavity = ["--dir", &root, "--job", "cavity", "3", "4"];
    for command in [
        &["show"][..],
        &["verify"],
        &["restore", "--all", "--out", "/nonexistent/out"],
    ] {
        let refused = answer(&[command, &cavity].concat());
        assert_eq!(refused.code, 2, "{}", refused.stderr);
        let words = "steps 3 and 4 are given, expected one";
        assert!(refused.stderr.contains(words), "{}", refused.stderr);
    }
}

// Breaks if: a negative number is taken for an option, and the advice is of no use.
#[test]
fn negative_numbers_are_refused_as_values() {
    for (arguments, words) in [
        (
            &["run", "--restarts", "-1"][..],
            "invalid value '-1' for '--restarts <N>'",
        ),
        (
            &["run", "--pause", "-1"],
            "invalid value '-1' for '--pause <TIME>'",
        ),
        (
            &["prove", "--tolerance", "-1"],
            "--tolerance -1: expected a share",
        ),
    ] {
        let refused = answer(&[arguments, &["--", "true"]].concat());
        assert_eq!(refused.code, 2, "{}", refused.stderr);
        assert!(refused.stderr.contains(words), "{}", refused.stderr);
    }
}

// Breaks if: the figures of an agent are columns of one table, which then is wider than the
// terminal.
#[test]
fn the_agents_of_status_fit_a_terminal() {
    let scratch = Scratch::new();
    let root = scratch.dir("pfs").display().to_string();
    let options = format!(
        "global = '{root}'\nevery_s = 1e6\npool = '4 MiB'\nchunk = '64 KiB'\nagent = 'join'\n"
    );
    let job = format!("fits-{}", std::process::id());
    let mut agent = orcheck(&[
        "agent",
        "--job",
        &job,
        "--dir",
        &root,
        "--linger",
        "60",
        "--node",
        "node-of-shown",
    ]);
    agent.stdout(std::process::Stdio::piped());
    let mut agent = agent.spawn().unwrap();
    let mut said = std::io::BufReader::new(agent.stdout.take().unwrap());
    std::io::BufRead::read_line(&mut said, &mut String::new()).unwrap();
    let mut running = Running::start(
        "holds",
        &job,
        &format!("{options}node_name = 'node-of-shown'\n"),
    );
    running.wait_for("taken 1");
    let shown = on_a_terminal(&["status", "--job", &job]);
    let of_agent: Vec<&str> = shown.lines().filter(|line| line.contains(&job)).collect();
    let end = |agent: &mut std::process::Child| {
        let _ = agent.kill();
        let _ = agent.wait();
    };
    end(&mut agent);
    assert_eq!(of_agent.len(), 2, "{shown}");
    assert!(of_agent[0].contains("1 of 1 live"), "{shown}");
    assert!(of_agent[1].contains("a pool of at most 4.0 MiB"), "{shown}");
    assert!(
        shown
            .lines()
            .all(|line| line.trim_end().chars().count() <= 80),
        "{shown}"
    );
}
