//! Replicas on other nodes: nodes are lost with their directories, and the job continues elsewhere.
//! Each program runs it twice: the second time all that travels over TCP is encrypted.

use crate::session::disk;
use crate::session::elastic::protect_blocks;
use crate::session::mistakes::{LONG, says};
use crate::support::{Job, State, make_dir};
use crate::{Test, encrypted, session_tests};
use orcheck_format::disk::{CommitRecord, FileName};
use orcheck_format::{ErrorKind, Level, Result};
use orcheck_io::clock::{Clock, SystemClock};
use orcheck_io::failpoints::{Failpoint, FailpointHook, Failpoints, Verdict};
use orcheck_testing::Scratch;
use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// What is tested here.
pub const TESTS: &[Test] = session_tests![
    every_container_is_where_the_record_says,
    many_boxes_have_replicas,
    any_two_nodes_may_be_lost,
    spare_nodes_take_the_places_of_lost_ones,
    a_damaged_copy_is_replaced_by_another_one_and_said,
    more_losses_than_promised_are_told_with_what_is_missing,
    a_node_that_missed_the_commit_learns_of_it,
    copies_that_were_lost_are_made_anew,
    a_session_that_closes_waits_for_copies_when_told_to,
    a_copy_for_which_no_node_is_left_is_reported_and_keeps_no_rank_waiting,
    too_few_nodes_are_an_error,
    files_of_a_shared_job_are_the_groups_on_every_node_except_keys,
];

const NODES: [&str; 5] = ["a", "b", "c", "d", "e"];

fn job(root: &Path, peers: u32) -> Job {
    let job = Job::new(root, 5, 0, true)
        .placed(&NODES)
        .with(&format!("peers = {peers}"));
    if encrypted() {
        job.with("net = 'tcp'\nnet_encrypt = 'aes-256-gcm'")
    } else {
        job
    }
}

/// Takes checkpoints of these steps.
fn takes(job: &Job, steps: &[u64], peers: u8) {
    job.run(|session, rank| {
        let mut session = session.unwrap();
        let mut state = State::empty(rank, 20);
        if session.find().is_ok() {
            state.protect(&mut session).unwrap();
            session.restart().unwrap();
        }
        for &step in steps {
            state = State::new(rank, step, 20);
            state.protect(&mut session).unwrap();
            session.checkpoint(step).unwrap();
            session.wait(step, Level::Peers(peers), LONG).unwrap();
        }
        session.close(LONG).unwrap();
    });
}

/// A new run restores `step` on all ranks; what it was told meanwhile.
fn restores(job: &Job, step: u64) -> Vec<String> {
    let told = job.run(|session, rank| {
        let mut session = session.unwrap();
        session.find().unwrap();
        let mut state = State::empty(rank, 20);
        state.protect(&mut session).unwrap();
        assert_eq!(session.restart().unwrap(), step);
        assert!(state.is(rank, step, 20), "rank {rank}");
        let warnings = crate::support::warnings(&mut session);
        session.close(LONG).unwrap();
        warnings
    });
    told.concat()
}

fn dir(root: &Path, node: &str) -> std::path::PathBuf {
    root.join("local/job").join(node)
}

fn containers(root: &Path, node: &str) -> BTreeSet<String> {
    let names = disk::names(&dir(root, node)).into_iter();
    names
        .filter(|name| matches!(FileName::parse(name), Some(FileName::Container { .. })))
        .collect()
}

// Breaks if: a container is not sent to all its holders, or the record does not name them.
fn every_container_is_where_the_record_says() {
    let scratch = Scratch::new("peers");
    takes(&job(scratch.path(), 2), &[1, 2], 2);
    for node in NODES {
        let names = disk::names(&dir(scratch.path(), node));
        let records: Vec<&String> = names
            .iter()
            .filter(|name| name.ends_with("-peers2.commit"))
            .collect();
        assert_eq!(records.len(), 2, "{node}: {names:?}");
        for name in records {
            let bytes = disk::read(&dir(scratch.path(), node).join(name));
            let record = CommitRecord::decode(&bytes).unwrap();
            for container in &record.containers {
                assert_eq!(container.holders.len(), 2);
                let owner = &record.nodes[container.node.index()];
                let original = disk::read(&dir(scratch.path(), owner).join(&container.file));
                assert_eq!(original.len() as u64, container.len_bytes);
                for &holder in &container.holders {
                    let holder = &record.nodes[holder.index()];
                    let replica = disk::read(&dir(scratch.path(), holder).join(&container.file));
                    assert!(replica == original, "{} on {holder}", container.file);
                }
            }
        }
    }
    let all: usize = NODES
        .iter()
        .map(|node| containers(scratch.path(), node).len())
        .sum();
    assert_eq!(
        all,
        2 * 5 * 3,
        "two steps of five containers, three times each"
    );
}

// Breaks if: what a record says of boxes is not counted; holders would set too little aside, and
// every checkpoint would be lost.
fn many_boxes_have_replicas() {
    let scratch = Scratch::new("many");
    job(scratch.path(), 1).run(|session, rank| {
        let mut session = session.unwrap();
        let place = (u64::from(rank), 5);
        let _fields = protect_blocks(&mut session, place, (50_000, 1));
        session.checkpoint(1).unwrap();
        session.wait(1, Level::Peers(1), LONG).unwrap();
        session.close(LONG).unwrap();
    });
}

// Breaks if: a restart reads its own directory only.
fn any_two_nodes_may_be_lost() {
    let scratch = Scratch::new("lost");
    let kept = scratch.path().join("kept");
    takes(&job(scratch.path(), 2), &[1, 2], 2);
    disk::copy_tree(&scratch.path().join("local"), &kept);
    for a in 0..NODES.len() {
        for b in 0..=a {
            disk::remove_tree(&scratch.path().join("local"));
            disk::copy_tree(&kept, &scratch.path().join("local"));
            for lost in BTreeSet::from([a, b]) {
                disk::remove_tree(&dir(scratch.path(), NODES[lost]));
            }
            // The same ranks on the nodes that are left.
            let left: Vec<&str> = (0..NODES.len())
                .filter(|&n| n != a && n != b)
                .map(|n| NODES[n])
                .collect();
            let placed: Vec<&'static str> = (0..5).map(|rank| left[rank % left.len()]).collect();
            let job = job(scratch.path(), 1).placed(&placed);
            let mut warnings = restores(&job, 2);
            // Copies may have been rebuilt meanwhile, which is reported too.
            // And this run, which asks for one loss only, does not know that two were provided for.
            warnings.retain(|text| !text.contains("rebuilt") && !text.contains("may exist"));
            // By chance the copies lie where the ranks are now: then there is nothing to be told.
            let Some(told) = warnings.first() else {
                continue;
            };
            assert_eq!(warnings.len(), 1, "without {a} and {b}: {warnings:?}");
            // Rank r took its checkpoint on node r: where it is not on that node now, it read from
            // one that has a copy.
            let sources: Vec<&str> = told
                .strip_prefix("read from other nodes: ")
                .unwrap()
                .split(", ")
                .collect();
            let moved = (0..5).filter(|&rank| placed[rank] != NODES[rank]).count();
            assert!(sources.len() <= moved, "{told}");
            for source in sources {
                assert!(
                    left.iter()
                        .any(|node| source.ends_with(&format!(" from {node}"))),
                    "{told}"
                );
            }
        }
    }
}

// Breaks if: the nodes of a new run do not tell each other what they hold.
fn spare_nodes_take_the_places_of_lost_ones() {
    let scratch = Scratch::new("spare");
    takes(&job(scratch.path(), 1), &[1], 1);
    disk::remove_tree(&dir(scratch.path(), "a"));
    let job = job(scratch.path(), 1).placed(&["x", "b", "c", "d", "e"]);
    restores(&job, 1);
    // The new run has replicas of its own.
    takes(&job, &[2, 3], 1);
    disk::remove_tree(&dir(scratch.path(), "x"));
    restores(&job.placed(&["b", "b", "c", "d", "e"]), 3);
}

// Breaks if: only the first copy of a container is tried.
fn a_damaged_copy_is_replaced_by_another_one_and_said() {
    let scratch = Scratch::new("damaged");
    takes(&job(scratch.path(), 1), &[1], 1);
    let own = containers(scratch.path(), "c")
        .into_iter()
        .find(|name| name.contains("-n0002-"))
        .unwrap();
    disk::flip(&dir(scratch.path(), "c").join(&own), 9000);
    let warnings = restores(&job(scratch.path(), 1), 1);
    assert!(
        warnings
            .iter()
            .any(|text| text.contains("another copy is used")),
        "{warnings:?}"
    );
}

// Breaks if: a step that is gone in part is restored from what is left, or the missing part is not
// reported.
fn more_losses_than_promised_are_told_with_what_is_missing() {
    let scratch = Scratch::new("too-many");
    takes(&job(scratch.path(), 1), &[1], 1);
    for node in &NODES[..4] {
        disk::remove_tree(&dir(scratch.path(), node));
    }
    let job = job(scratch.path(), 0).placed(&["e"; 5]);
    job.run(|session, _| {
        let mut session = session.unwrap();
        let error = session.find().unwrap_err();
        says(&error, ErrorKind::Corrupt, &["step 1"]);
    });
}

// Breaks if: a node without the record of what was resumed from keeps all that is older.
fn a_node_that_missed_the_commit_learns_of_it() {
    let scratch = Scratch::new("missed");
    takes(&job(scratch.path(), 1), &[1, 2], 1);
    let record = |node| {
        let names = disk::names(&dir(scratch.path(), node));
        names
            .into_iter()
            .find(|name| name.contains("00002-") && name.ends_with(".commit"))
    };
    let name = record("b").unwrap();
    disk::remove_file(&dir(scratch.path(), "b").join(&name));
    restores(&job(scratch.path(), 1), 2);
    assert_eq!(record("b"), Some(name));
    // Two newer ones, and nothing older is left anywhere.
    takes(&job(scratch.path(), 1), &[3, 4], 1);
    for node in NODES {
        let names = disk::names(&dir(scratch.path(), node)).into_iter();
        let steps = names.filter_map(|name| match FileName::parse(&name)? {
            FileName::Container { step, .. } | FileName::Commit { step, .. } => Some(step.0),
            _ => None,
        });
        let steps: BTreeSet<u64> = steps.collect();
        assert_eq!(steps, BTreeSet::from([3, 4]), "{node}");
    }
}

// Breaks if: what was resumed from keeps the copies that the lost node left: the next loss would be
// the end.
fn copies_that_were_lost_are_made_anew() {
    let scratch = Scratch::new("mended");
    takes(&job(scratch.path(), 1), &[1], 1);
    let mut left: Vec<&'static str> = NODES.to_vec();
    // One after the other, with a restart between them, until two are left.
    for _ in 0..3 {
        let lost = left.remove(0);
        disk::remove_tree(&dir(scratch.path(), lost));
        let placed: Vec<&'static str> = (0..5).map(|rank| left[rank % left.len()]).collect();
        let job = job(scratch.path(), 1).placed(&placed);
        let copies = |n: u32| {
            let name = format!("-n{n:04}-");
            let there = |node: &&&str| {
                containers(scratch.path(), node)
                    .iter()
                    .any(|file| file.contains(&name))
            };
            left.iter().filter(there).count()
        };
        let missing: usize = (0..5).map(|n| 2 - copies(n).min(2)).sum();
        let made = AtomicUsize::new(0);
        let told = job.run(|session, rank| {
            let mut session = session.unwrap();
            session.find().unwrap();
            let mut state = State::empty(rank, 20);
            state.protect(&mut session).unwrap();
            assert_eq!(session.restart().unwrap(), 1);
            assert!(state.is(rank, 1, 20), "rank {rank} without {lost}");
            // In the background: it is reported when it is done. A file that is there may still be
            // on its way.
            let until = SystemClock.now() + LONG;
            while made.load(Ordering::SeqCst) < missing {
                assert!(SystemClock.now() < until, "after the loss of {lost}");
                let told = session.take_warning().unwrap_or_default();
                let begin = ": files of step 1 rebuilt after the loss of nodes: ";
                if let Some((_, count)) = told.split_once(begin) {
                    made.fetch_add(count.parse().unwrap(), Ordering::SeqCst);
                }
                std::thread::yield_now();
            }
            session.close(LONG).unwrap();
        });
        assert_eq!(told.len(), 5);
        assert!((0..5).all(|n| copies(n) >= 2), "after the loss of {lost}");
    }
}

/// A network on which each replica takes some time.
struct Slow;

impl FailpointHook for Slow {
    fn at(&self, step: &Failpoint) -> Verdict {
        if step.site == "replicas.send" {
            std::thread::park_timeout(Duration::from_millis(30));
        }
        Verdict::Go
    }
}

/// A job on the nodes that are left, which is not to end before all copies are rebuilt.
fn on(root: &Path, left: &[&'static str]) -> Job {
    let placed: Vec<&'static str> = (0..5).map(|rank| left[rank % left.len()]).collect();
    job(root, 1).placed(&placed).with("close = 'copies'")
}

/// The same, of a job that lost a node after step 1.
pub fn after_a_loss(root: &Path) -> Job {
    takes(&job(root, 1), &[1], 1);
    disk::remove_tree(&dir(root, "a"));
    on(root, &NODES[1..])
}

/// Resumes from step 1 on the nodes that are left and closes at once.
fn closes_at_once(root: &Path, left: &[&'static str], limit: Duration) -> Vec<Result<()>> {
    let job = on(root, left).failpoints(Failpoints::with(Arc::new(Slow)));
    job.run(|session, rank| {
        let mut session = session.unwrap();
        session.find().unwrap();
        let mut state = State::empty(rank, 20);
        state.protect(&mut session).unwrap();
        assert_eq!(session.restart().unwrap(), 1);
        assert!(state.is(rank, 1, 20), "rank {rank}");
        session.close(limit)
    })
}

// Breaks if: `close_telling` does not wait for the mender (`copied`): what it had not made is gone
// with the next node.
fn a_session_that_closes_waits_for_copies_when_told_to() {
    let scratch = Scratch::new("copies");
    after_a_loss(scratch.path());
    // No time for it: what is missing is named, on all ranks.
    for closed in closes_at_once(scratch.path(), &NODES[1..], Duration::ZERO) {
        let words = ["copies of checkpoint 1", ".orc", "restart"];
        says(&closed.unwrap_err(), ErrorKind::Unavailable, &words);
    }
    // One node after the other, as long as two are left.
    for lost in 0..3 {
        if lost > 0 {
            disk::remove_tree(&dir(scratch.path(), NODES[lost]));
        }
        for closed in closes_at_once(scratch.path(), &NODES[lost + 1..], LONG) {
            closed.unwrap();
        }
    }
}

/// A job of six nodes that has a checkpoint of step 1 and is to have two copies of each part
/// elsewhere, for which one part has no node.
pub fn without_a_node(root: &Path) -> Job {
    const SIX: [&str; 6] = ["a", "b", "c", "d", "e", "f"];
    let six = |peers| {
        let mut job = job(root, peers).placed(&SIX);
        job.ranks = 6;
        job
    };
    takes(&six(1), &[1], 1);
    let has_copy = |node: &&str| {
        let files = containers(root, node);
        files.iter().any(|file| file.contains("-n0000-"))
    };
    let other = *SIX[1..].iter().find(|node| has_copy(node)).unwrap();
    // Every other node fails together with the owner or with the only other copy; yet each node
    // could have two holders.
    let mut topology = format!("a = ['a1', 'a2']\n{other} = ['o1', 'o2']\n");
    let others = SIX[1..].iter().filter(|&&node| node != other);
    for (node, domain) in others.zip(["a1", "a2", "o1", "o2"]) {
        topology += &format!("{node} = '{domain}'\n");
    }
    let path = root.join("topology");
    disk::write(&path, topology.as_bytes());
    six(2).with(&format!("topology = '{}'", path.display()))
}

// Breaks if: a copy for which there is no node is an error of the rank that plans it: all others
// wait for it inside `restart`. Or `close = 'copies'` waits only for copies that can be made: the
// one without a node would be missed by nobody.
fn a_copy_for_which_no_node_is_left_is_reported_and_keeps_no_rank_waiting() {
    let scratch = Scratch::new("no-node-left");
    let job = without_a_node(scratch.path());
    let told = restores(&job, 1);
    let text = "a file of step 1 could not be rebuilt: ";
    let text = told.iter().find(|told| told.starts_with(text));
    let text = text.unwrap_or_else(|| panic!("{told:?}"));
    assert!(text.contains("-n0000-"), "{text}");
    assert_eq!(text.matches("Next: ").count(), 1, "{text}");
    // Who asked for all copies gets an error that names that one, on all ranks; a newer checkpoint
    // has all of its own.
    for newer in [false, true] {
        let closed = job.clone().with("close = 'copies'").run(|session, rank| {
            let mut session = session.unwrap();
            session.find().unwrap();
            State::restores(&mut session, rank, 1, 20);
            if newer {
                let mut state = State::new(rank, 2, 20);
                state.protect(&mut session).unwrap();
                session.checkpoint(2).unwrap();
            }
            session.close(LONG)
        });
        for closed in closed {
            if newer {
                closed.unwrap();
                continue;
            }
            let error = closed.unwrap_err();
            let words = ["copies of checkpoint 1", "-n0000-", "topology file"];
            says(&error, ErrorKind::Unavailable, &words);
            assert!(!error.message().contains("a restart makes"), "{error}");
        }
    }
}

// Breaks if: a level that cannot be had is quietly left out.
fn too_few_nodes_are_an_error() {
    let scratch = Scratch::new("few");
    make_dir(&scratch.path().join("local"));
    let job = job(scratch.path(), 2).placed(&["a", "a", "b", "b", "b"]);
    job.run(|session, _| {
        let error = session.err().unwrap();
        says(&error, ErrorKind::Invalid, &["2 replicas", "2 nodes"]);
    });
}

// Breaks if: agents, or nodes that hold replicas, make files of their own mode; another member
// could not read or remove them.
fn files_of_a_shared_job_are_the_groups_on_every_node_except_keys() {
    const GROUP: u32 = 65_500;
    if orcheck_io::machine::effective_uid() != 0 {
        eprintln!("SKIPPED: needs root for groups");
        return;
    }
    let scratch = Scratch::new("group");
    let job = job(scratch.path(), 1).with(&format!("group = '{GROUP}'"));
    takes(&job, &[1, 2], 1);
    restores(&job, 2);
    takes(&job, &[3, 4], 1);
    let (mut all, mut left) = (0, vec![scratch.path().join("local/job")]);
    while let Some(path) = left.pop() {
        let found = path.symlink_metadata().unwrap();
        let keys = path.extension().is_some_and(|end| end == "members");
        let wanted = match (found.is_dir(), keys) {
            (true, _) => 0o2770,
            (_, true) => 0o600,
            _ => 0o660,
        };
        let mode = (found.mode() & 0o7777, found.gid());
        assert_eq!(mode, (wanted, GROUP), "{}", path.display());
        if found.is_dir() {
            let below = path.read_dir().unwrap();
            left.extend(below.map(|entry| entry.unwrap().path()));
        }
        all += 1;
    }
    assert!(all > 5 * 5, "{all} files and directories");
}
