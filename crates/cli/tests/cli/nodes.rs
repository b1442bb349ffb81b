//! Tests `run` with nodes: which nodes are lost, and which the next run gets.

use crate::{Answer, orcheck};
use orcheck_fixtures::reading::Scratch;

/// A job that is there as long as the files of its nodes are; `script` is one run of it.
fn run(scratch: &Scratch, nodes: &str, more: &[&str], script: &str) -> Answer {
    let dir = scratch.path().display().to_string();
    for node in nodes.split(',').chain(["s0", "s1"]) {
        std::fs::write(scratch.path().join(node), "").unwrap();
    }
    let alive = format!("test -e {dir}/{{node}}");
    let mut command = orcheck(&["run", "--grace", "5", "--nodes", nodes, "--alive", &alive]);
    command
        .args(more)
        .args(["--", "sh", "-c", script, "job", "{nodes}", "{count}"]);
    command.current_dir(scratch.path());
    Answer::of(command.output().unwrap())
}

#[test]
fn a_lost_node_is_left_out_of_the_next_run() {
    let scratch = Scratch::new();
    let script = "echo $ORCHECK_RUN_ATTEMPT: $1 $2 $ORCHECK_NODES; \
        test $ORCHECK_RUN_ATTEMPT = 2 || { rm b; exit 1; }";
    let done = run(&scratch, "a,b,c", &[], script);
    assert_eq!(
        done.stdout, "1: a,b,c 3 a,b,c\n2: a,c 2 a,c\n",
        "{}",
        done.stderr
    );
    assert_eq!(done.code, 0);
    assert!(done.stderr.contains("lost: b"), "{}", done.stderr);
    assert!(
        done.stderr.contains("continuing with 2 nodes of 3"),
        "{}",
        done.stderr
    );
}

#[test]
fn spare_nodes_take_the_places_of_lost_ones_if_they_are_there() {
    let scratch = Scratch::new();
    let script = "echo $1; test $ORCHECK_RUN_ATTEMPT = 2 || { rm a c s0; exit 1; }";
    let done = run(&scratch, "a,b,c", &["--spares", "s0,s1"], script);
    assert_eq!(done.stdout, "a,b,c\nb,s1\n", "{}", done.stderr);
    assert!(
        done.stderr.contains("with s1 in their places"),
        "{}",
        done.stderr
    );
}

// Breaks if: nodes are only asked after the command ended: a run that hangs because a node is lost
// would hang for ever.
#[test]
fn a_run_that_lost_a_node_is_ended() {
    let scratch = Scratch::new();
    // It waits for somebody who never comes.
    let script = "echo $1; test $ORCHECK_RUN_ATTEMPT = 2 || { rm b; mkfifo never; cat never; }";
    let done = run(&scratch, "a,b", &["--look", "0.05"], script);
    assert_eq!(done.stdout, "a,b\na\n", "{}", done.stderr);
    assert_eq!(done.code, 0);
    assert!(
        done.stderr
            .contains("lost while the command runs: b; ending it"),
        "{}",
        done.stderr
    );
}

// Breaks if: a question without an answer is waited for; a node that hangs would hold the job up
// for ever.
#[test]
fn a_node_that_does_not_answer_is_lost() {
    let scratch = Scratch::new();
    let fifo = scratch.path().join("never");
    let script = "echo $1; test $ORCHECK_RUN_ATTEMPT = 2 || { mkfifo never; exit 1; }";
    let alive = format!(
        "test {{node}} = a || test ! -e {0} || cat {0}",
        fifo.display()
    );
    let mut command = orcheck(&["run", "--nodes", "a,b", "--alive", &alive]);
    command.args(["--", "sh", "-c", script, "job", "{nodes}"]);
    let done = Answer::of(command.current_dir(scratch.path()).output().unwrap());
    assert_eq!(done.stdout, "a,b\na\n", "{}", done.stderr);
}

#[test]
fn with_too_few_nodes_there_is_no_further_run() {
    let scratch = Scratch::new();
    let done = run(&scratch, "a,b", &["--min-nodes", "2"], "rm a; exit 7");
    assert_eq!(done.code, 7);
    assert!(
        done.stderr
            .contains("1 of 2 nodes are left, fewer than --min-nodes 2"),
        "{}",
        done.stderr
    );
}

#[test]
fn virtual_nodes_are_told_to_the_library() {
    let scratch = Scratch::new();
    let done = run(&scratch, "a,b", &["--virtual"], "echo $ORCHECK_NODE");
    assert_eq!(done.stdout, "a,b\n");
}

#[test]
fn lists_that_make_no_sense_are_refused() {
    for (arguments, words) in [
        (vec!["--nodes", "a,b,a"], "node 'a' is named twice"),
        (
            vec!["--nodes", "a", "--spares", "b"],
            "--spares without --alive",
        ),
        (vec!["--spares", "b"], "go with --nodes"),
    ] {
        let mut command = orcheck(&["run"]);
        command.args(arguments).args(["--", "true"]);
        let done = Answer::of(command.output().unwrap());
        assert_eq!(done.code, 2);
        assert!(done.stderr.contains(words), "{}", done.stderr);
    }
}
