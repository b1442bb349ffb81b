//! A job is started again on nodes that all have other names, and the directories of the old ones
//! lie beside those of the new ones.

use crate::session::disk;
use crate::session::mistakes::{LONG, refused, says};
use crate::support::{Job, State, warnings};
use crate::{Test, session_tests};
use orcheck_client::{Environment, Options, Session, Solo};
use orcheck_format::{ErrorKind, Level, Result};
use orcheck_io::failpoints::Verdict;
use orcheck_testing::{FaultPlan, Scratch};
use std::path::Path;

/// What is tested here.
pub const TESTS: &[Test] = session_tests![
    a_job_continues_on_nodes_with_other_names,
    a_run_that_ended_before_its_first_checkpoint_hides_nothing,
    a_living_run_on_nodes_with_other_names_refuses_or_is_taken_over,
    a_fresh_start_supersedes_what_nodes_with_other_names_hold,
    a_directory_of_another_node_that_cannot_be_read_is_no_empty_one,
    where_a_job_was_looked_for_is_said_on_every_rank,
    two_runs_that_did_not_see_each_other_are_never_mixed,
];

const OLD: [&str; 3] = ["a", "b", "c"];
const NEW: [&str; 3] = ["x", "y", "z"];

fn job(root: &Path, peers: u8) -> Job {
    let job = Job::new(root, 3, 0, true).placed(&OLD);
    match peers {
        0 => job,
        peers => job.with(&format!("peers = {peers}")),
    }
}

fn level(peers: u8) -> Level {
    match peers {
        0 => Level::Node,
        peers => Level::Peers(peers),
    }
}

/// Restarts from `from` on all ranks, if there is one, and takes a checkpoint of each of these
/// steps; what was said after `find`.
fn continues(job: &Job, from: Option<u64>, steps: &[u64], at: Level) -> Vec<Vec<String>> {
    job.run(|session, rank| {
        let mut session = session.unwrap();
        let said = match from {
            Some(from) => {
                assert_eq!(session.find().unwrap(), from);
                let said = warnings(&mut session);
                let mut state = State::empty(rank, 20);
                state.protect(&mut session).unwrap();
                assert_eq!(session.restart().unwrap(), from);
                assert!(state.is(rank, from, 20), "rank {rank}");
                said
            }
            None => vec![refused(session.find()).message().to_owned()],
        };
        for &step in steps {
            let mut state = State::new(rank, step, 20);
            state.protect(&mut session).unwrap();
            session.checkpoint(step).unwrap();
            session.wait(step, at, LONG).unwrap();
        }
        session.close(LONG).unwrap();
        said
    })
}

// Breaks if: only directories of this run's nodes, and nodes that answer, are read.
fn a_job_continues_on_nodes_with_other_names() {
    for peers in [0, 1] {
        let scratch = Scratch::new("names");
        let (old, at) = (job(scratch.path(), peers), level(peers));
        let new = old.clone().placed(&NEW);
        continues(&old, None, &[1, 2], at);
        let said = continues(&new, Some(2), &[3], at).concat().join("; ");
        for part in ["nodes with other names", "local/job/a", "local/job/c"] {
            assert!(said.contains(part), "'{part}' in {said}");
        }
        // And back: what the new nodes have is newer.
        continues(&old, Some(3), &[4], at);
        if peers == 0 {
            continue;
        }
        // Some names stay, and the ranks change places.
        continues(&old.clone().placed(&["y", "c", "w"]), Some(4), &[5], at);
        // What the old nodes had is not needed any more.
        for gone in ["a", "b", "x", "z"] {
            disk::remove_tree(&scratch.path().join("local/job").join(gone));
        }
        continues(&old.placed(&["y", "c", "w"]), Some(5), &[6], at);
    }
}

// Breaks if: directories beside are read only by the first run on new nodes: the next one would
// begin from nothing.
fn a_run_that_ended_before_its_first_checkpoint_hides_nothing() {
    let scratch = Scratch::new("names-early");
    let old = job(scratch.path(), 1);
    let new = old.clone().placed(&NEW);
    continues(&old, None, &[1], level(1));
    for _ in 0..2 {
        continues(&new, Some(1), &[], level(1));
    }
    continues(&old, Some(1), &[2], level(1));
    continues(&new, Some(2), &[3], level(1));
}

/// A run of one rank on this node, with these options.
fn alone(job: &Job, node: &str, more: &str) -> Result<Session> {
    let text = format!("{}node_name = '{node}'\n{more}", job.options);
    let environment = Environment {
        failpoints: job.failpoints.clone(),
        ..Environment::default()
    };
    Session::open_with(
        "job",
        Box::new(Solo),
        Options::from_text(&text),
        environment,
    )
}

// Breaks if: claims are looked for, or made, in the directories of this run's nodes only: two runs
// would live, and both would commit.
fn a_living_run_on_nodes_with_other_names_refuses_or_is_taken_over() {
    let scratch = Scratch::new("names-alive");
    let job = Job::new(scratch.path(), 1, 0, true);
    let mut old = alone(&job, "a", "").unwrap();
    let mut state = State::new(0, 1, 20);
    state.protect(&mut old).unwrap();
    old.checkpoint(1).unwrap();
    old.wait(1, Level::Node, LONG).unwrap();
    let error = refused(alone(&job, "x", ""));
    says(&error, ErrorKind::Unavailable, &["is held by another run"]);
    let mut new = alone(&job, "x", "take_over = true\n").unwrap();
    assert_eq!(new.epoch().counter, old.epoch().counter + 1);
    assert_eq!(new.find().unwrap(), 1);
    let mut restored = State::empty(0, 20);
    restored.protect(&mut new).unwrap();
    assert_eq!(new.restart().unwrap(), 1);
    // The old run does not know it yet.
    let mut stale = State::new(0, 2, 20);
    stale.protect(&mut old).unwrap();
    old.checkpoint(2).unwrap();
    let error = refused(old.wait(2, Level::Node, LONG));
    says(&error, ErrorKind::Fenced, &["is superseded"]);
    new.close(LONG).unwrap();
    old.abandon();
}

// Breaks if: what a run resumed from is recorded in the directories of its own nodes only: where
// those are gone, what it superseded would come back.
fn a_fresh_start_supersedes_what_nodes_with_other_names_hold() {
    let scratch = Scratch::new("names-fresh");
    let old = job(scratch.path(), 0);
    let fresh = old.clone().placed(&NEW).with("start = 'fresh'");
    continues(&old, None, &[5], level(0));
    continues(&fresh, None, &[1], level(0));
    continues(&old, Some(1), &[], level(0));
    for node in NEW {
        disk::remove_tree(&scratch.path().join("local/job").join(node));
    }
    continues(&old, None, &[], level(0));
}

// Breaks if: it counts as empty: the job would begin from nothing because of a mode.
fn a_directory_of_another_node_that_cannot_be_read_is_no_empty_one() {
    let scratch = Scratch::new("names-unread");
    let job = Job::new(scratch.path(), 1, 0, true);
    alone(&job, "a", "").unwrap().close(LONG).unwrap();
    let (_, denied) = FaultPlan::new()
        .always("dir.open", Verdict::Fail(13))
        .only_where("job/a")
        .failpoints();
    let denied = job.failpoints(denied);
    let mut session = alone(&denied, "x", "").unwrap();
    let said = warnings(&mut session).join("; ");
    assert!(said.contains("local/job/a"), "{said}");
    let error = refused(session.find());
    let parts = ["begin from nothing", "local/job/a", "start = 'fresh'"];
    says(&error, ErrorKind::Unavailable, &parts);
    drop(session);
    let mut session = alone(&denied, "x", "start = 'fresh'\n").unwrap();
    says(&refused(session.find()), ErrorKind::NotFound, &["fresh"]);
}

// Breaks if: the message names only the job; nobody could see that the names of nodes are new.
fn where_a_job_was_looked_for_is_said_on_every_rank() {
    let scratch = Scratch::new("names-looked");
    let job = job(scratch.path(), 1);
    for said in continues(&job, None, &[], level(1)) {
        let said = said.concat();
        for part in [
            "begins from nothing",
            "local (nodes a, b, c)",
            "ORCHECK_NODE",
        ] {
            assert!(said.contains(part), "'{part}' in {said}");
        }
    }
    job.with("start = 'resume'").run(|session, _| {
        let error = refused(session.unwrap().find());
        let parts = ["start = 'resume'", "local (nodes a, b, c)", "ORCHECK_NODE"];
        says(&error, ErrorKind::Invalid, &parts);
    });
}

// Breaks if: a restart takes the run with the higher step, or mixes both; or no choice ends it.
fn two_runs_that_did_not_see_each_other_are_never_mixed() {
    let scratch = Scratch::new("names-rivals");
    let of_job = scratch.path().join("local/job");
    let away = scratch.path().join("away");
    let old = job(scratch.path(), 1);
    let new = old.clone().placed(&NEW);
    continues(&old, None, &[1, 2], level(1));
    disk::rename(&of_job, &away);
    continues(&new, None, &[3], level(1));
    for node in OLD {
        disk::rename(&away.join(node), &of_job.join(node));
    }
    let both = scratch.path().join("both");
    disk::copy_tree(&of_job, &both);
    for job in [&old, &new, &old.clone().placed(&["a", "y", "c"])] {
        job.run(|session, _| {
            let error = refused(session.unwrap().find());
            let parts = [
                "two runs",
                "on a, b, c",
                "on x, y, z",
                "`mv ",
                "start = 'fresh'",
            ];
            says(&error, ErrorKind::Fenced, &parts);
        });
    }
    for (give_up, job, step) in [(NEW, &old, 2), (OLD, &new, 3)] {
        disk::remove_tree(&of_job);
        disk::copy_tree(&both, &of_job);
        for node in give_up {
            disk::remove_tree(&of_job.join(node));
        }
        continues(job, Some(step), &[], level(1));
    }
    disk::remove_tree(&of_job);
    disk::copy_tree(&both, &of_job);
    continues(&old.clone().with("start = 'fresh'"), None, &[7], level(1));
    continues(&old, Some(7), &[8], level(1));
}
