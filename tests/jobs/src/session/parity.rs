//! Parity on other nodes: nodes are lost with their directories, files are damaged, and the job
//! continues from what is left. Each program runs it twice: the second time all that travels over
//! TCP is encrypted.

use crate::session::disk;
use crate::session::mistakes::{LONG, says};
use crate::support::{Job, State, warnings};
use crate::{Test, encrypted, session_tests};
use orcheck_engine::upkeep::{repair, verify_commit};
use orcheck_format::disk::{CommitRecord, ParityTrailer};
use orcheck_format::{ErrorKind, Level};
use orcheck_io::disk::Dir;
use orcheck_io::failpoints::Failpoints;
use orcheck_staging::open_dir;
use orcheck_testing::Scratch;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What is tested here.
pub const TESTS: &[Test] = session_tests![
    every_node_holds_its_share_of_parity,
    any_node_of_a_group_may_be_lost,
    what_a_lost_node_had_is_made_again,
    damaged_files_count_as_lost_where_they_are_damaged,
    losses_beyond_the_promise_are_told_with_what_is_missing,
    damaged_and_missing_files_are_repaired_where_they_were,
    forged_lengths_of_parity_count_as_damage,
    nodes_with_several_ranks_and_older_containers_are_protected_too,
    the_nodes_that_are_left_form_a_smaller_group,
    parity_needs_one_writer_on_each_node_and_enough_nodes,
];

const NODES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];

fn job(root: &Path, protect: &str) -> Job {
    let job = Job::new(root, 6, 0, true)
        .placed(&NODES)
        .with(&format!("protect = '{protect}'"));
    if encrypted() {
        job.with("net = 'tcp'\nnet_encrypt = 'aes-256-gcm'")
    } else {
        job
    }
}

/// The size of a rank's state; containers of different nodes have different lengths.
fn scale(rank: u32) -> usize {
    60 + 25 * rank as usize
}

/// Takes checkpoints of these steps.
fn takes(job: &Job, steps: &[u64], peers: u8) {
    job.run(|session, rank| {
        let mut session = session.unwrap();
        let mut state = State::empty(rank, scale(rank));
        if session.find().is_ok() {
            state.protect(&mut session).unwrap();
            session.restart().unwrap();
        }
        for &step in steps {
            state = State::new(rank, step, scale(rank));
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
        assert_eq!(session.find().unwrap(), step);
        let mut state = State::empty(rank, scale(rank));
        state.protect(&mut session).unwrap();
        assert_eq!(session.restart().unwrap(), step);
        assert!(state.is(rank, step, scale(rank)), "rank {rank}");
        let mut told = Vec::new();
        while let Some(text) = session.take_warning() {
            told.push(text);
        }
        session.close(LONG).unwrap();
        told
    });
    told.concat()
}

fn dir(root: &Path, node: &str) -> PathBuf {
    root.join("local").join("job").join(node)
}

fn parity(root: &Path, node: &str) -> Vec<String> {
    let names = disk::names(&dir(root, node)).into_iter();
    names.filter(|name| name.ends_with(".parity")).collect()
}

// Breaks if: a step commits before every parity file of it is there.
fn every_node_holds_its_share_of_parity() {
    let scratch = Scratch::new("parity");
    takes(&job(scratch.path(), "rs=4+2"), &[1, 2], 2);
    for node in NODES {
        let names = disk::names(&dir(scratch.path(), node));
        assert_eq!(parity(scratch.path(), node).len(), 2, "{node}: {names:?}");
        let records = names.iter().filter(|name| name.ends_with("-peers2.commit"));
        let records: Vec<&String> = records.collect();
        assert_eq!(records.len(), 2, "{node}: {names:?}");
        for name in records {
            let record = CommitRecord::decode(&disk::read(&dir(scratch.path(), node).join(name)));
            let record = record.unwrap();
            assert_eq!(record.groups.len(), 1);
            assert_eq!((record.groups[0].parity, record.groups[0].data()), (2, 4));
            assert!(record.containers.iter().all(|one| one.holders.is_empty()));
        }
    }
}

// Breaks if: a restart does not compute what a lost node had.
fn any_node_of_a_group_may_be_lost() {
    for (protect, losses) in [("xor=3", 1), ("rs=4+2", 2)] {
        let scratch = Scratch::new("parity-lost");
        let kept = scratch.path().join("kept");
        takes(&job(scratch.path(), protect), &[1, 2], losses);
        disk::copy_tree(&scratch.path().join("local"), &kept);
        for (a, first) in NODES.iter().enumerate() {
            for (b, second) in NODES.iter().enumerate().take(a + 1) {
                if losses == 1 && a != b {
                    continue;
                }
                disk::remove_tree(&scratch.path().join("local"));
                disk::copy_tree(&kept, &scratch.path().join("local"));
                disk::remove_tree(&dir(scratch.path(), first));
                if a != b {
                    disk::remove_tree(&dir(scratch.path(), second));
                }
                // The same ranks on the nodes that are left.
                let left = NODES
                    .iter()
                    .filter(|node| *node != first && *node != second);
                let left: Vec<&'static str> = left.copied().collect();
                let placed: Vec<&'static str> =
                    (0..6).map(|rank| left[rank % left.len()]).collect();
                let job = job(scratch.path(), "xor=3").placed(&placed);
                let told = restores(&job, 2);
                assert!(
                    told.iter().any(|text| text.contains("from parity")),
                    "{told:?}"
                );
            }
        }
    }
}

/// The files of a node, without records.
fn files(root: &Path, node: &str) -> Vec<String> {
    let names = disk::names(&dir(root, node)).into_iter();
    names
        .filter(|name| name.ends_with(".parity") || name.ends_with(".orc"))
        .collect()
}

// Breaks if: what a lost node had is not rebuilt: the next loss would be the end.
fn what_a_lost_node_had_is_made_again() {
    let scratch = Scratch::new("parity-mended");
    takes(&job(scratch.path(), "xor=3"), &[1], 1);
    let mut placed = NODES;
    // One after the other, each replaced by another node, until none of the first is left.
    for (lost, spare) in ["u", "v", "w", "x", "y", "z"].into_iter().enumerate() {
        let before = files(scratch.path(), placed[lost]);
        let kept: Vec<Vec<u8>> = (before.iter())
            .map(|name| disk::read(&dir(scratch.path(), placed[lost]).join(name)))
            .collect();
        assert_eq!(before.len(), 2, "{before:?}");
        disk::remove_tree(&dir(scratch.path(), placed[lost]));
        placed[lost] = spare;
        let again = job(scratch.path(), "xor=3").placed(&placed);
        restores(&again.with("close = 'copies'"), 1);
        assert_eq!(files(scratch.path(), spare), before);
        for (name, kept) in before.iter().zip(kept) {
            let made = disk::read(&dir(scratch.path(), spare).join(name));
            assert!(made == kept, "{name} on {spare}");
        }
    }
}

// Breaks if: a damaged block is taken for good, or one damaged block for a lost file.
fn damaged_files_count_as_lost_where_they_are_damaged() {
    let scratch = Scratch::new("parity-damaged");
    takes(&job(scratch.path(), "rs=4+2"), &[1], 2);
    disk::remove_tree(&dir(scratch.path(), "a"));
    // Beside one lost node, the parity file of another one cannot be read.
    let damaged = files(scratch.path(), "c");
    let damaged = damaged
        .iter()
        .find(|name| name.ends_with(".parity"))
        .unwrap();
    let len = disk::read(&dir(scratch.path(), "c").join(damaged)).len();
    disk::flip(&dir(scratch.path(), "c").join(damaged), len - 40);
    let own = files(scratch.path(), "c");
    let own = own.iter().find(|name| name.ends_with(".orc")).unwrap();
    restores(
        &job(scratch.path(), "rs=4+2").placed(&["x", "b", "c", "d", "e", "f"]),
        1,
    );
    disk::remove_tree(&dir(scratch.path(), "x"));
    disk::flip(&dir(scratch.path(), "c").join(own), 9000);
    restores(
        &job(scratch.path(), "rs=4+2").placed(&["y", "b", "c", "d", "e", "f"]),
        1,
    );
}

// Breaks if: a step that is gone in part is restored from what is left, or what is missing is not
// named.
fn losses_beyond_the_promise_are_told_with_what_is_missing() {
    let scratch = Scratch::new("parity-beyond");
    takes(&job(scratch.path(), "rs=4+2"), &[1], 2);
    for node in ["a", "c", "f"] {
        disk::remove_tree(&dir(scratch.path(), node));
    }
    let job = job(scratch.path(), "rs=4+2").placed(&["x", "b", "y", "d", "e", "z"]);
    job.run(|session, _| {
        let mut session = session.unwrap();
        let error = session.find().unwrap_err();
        let parts = ["step 1", "4 of 6 nodes are needed", "-n0005-w00.parity"];
        says(&error, ErrorKind::Corrupt, &parts);
    });
}

/// The newest record, and what all nodes have.
fn record_and_dirs(root: &Path) -> (CommitRecord, Vec<Arc<dyn Dir>>) {
    let names = disk::names(&dir(root, "b"));
    let name = names
        .iter()
        .rfind(|name| name.ends_with(".commit"))
        .unwrap();
    let record = CommitRecord::decode(&disk::read(&dir(root, "b").join(name))).unwrap();
    let open = |node: &&str| open_dir(&dir(root, node), Failpoints::none()).unwrap();
    (record, NODES.iter().map(open).collect())
}

// Breaks if: what parity can still give is not written, or is not what it was.
fn damaged_and_missing_files_are_repaired_where_they_were() {
    let scratch = Scratch::new("parity-repair");
    takes(&job(scratch.path(), "rs=4+2"), &[1], 2);
    let (record, dirs) = record_and_dirs(scratch.path());
    let all = |node: &str| -> Vec<(String, Vec<u8>)> {
        let names = files(scratch.path(), node).into_iter();
        names
            .map(|name| {
                let bytes = disk::read(&dir(scratch.path(), node).join(&name));
                (name, bytes)
            })
            .collect()
    };
    let before: Vec<_> = NODES.map(all).to_vec();
    // Sound parity of another group than the record names protects nothing.
    let mut other = record.clone();
    other.groups[0].unit_bytes *= 2;
    let verdict = verify_commit(&dirs, &other, &mut |_, _| {}).unwrap();
    assert_eq!(verdict.parity.len(), NODES.len(), "{:?}", verdict.parity);
    // Two nodes have lost or damaged files, as many as there are parities.
    for (missing, damaged) in [("a", "c"), ("d", "f"), ("f", "a")] {
        for name in files(scratch.path(), missing) {
            disk::remove_file(&dir(scratch.path(), missing).join(name));
        }
        for name in files(scratch.path(), damaged) {
            disk::flip(&dir(scratch.path(), damaged).join(name), 5000);
        }
        let verify = || verify_commit(&dirs, &record, &mut |_, _| {}).unwrap();
        let verdict = verify();
        assert!(verdict.is_restorable(), "{verdict:?}");
        assert!(!verdict.is_good());
        let done = repair(&dirs, &record).unwrap();
        assert!(done.left.is_empty(), "{done:?}");
        assert_eq!(done.done.len(), 4, "{done:?}");
        assert!(
            done.done
                .iter()
                .all(|one| one.from.as_deref() == Some("parity"))
        );
        assert!(verify().is_good());
        let after: Vec<_> = NODES.map(all).to_vec();
        assert!(after == before, "without {missing}, damaged {damaged}");
    }
    // A third one is too much, and nothing is written.
    for node in ["a", "b", "c"] {
        for name in files(scratch.path(), node) {
            disk::remove_file(&dir(scratch.path(), node).join(name));
        }
    }
    let broken: Vec<_> = NODES.map(all).to_vec();
    let done = repair(&dirs, &record).unwrap();
    assert!(done.done.is_empty() && done.left.len() == 6, "{done:?}");
    assert!(NODES.map(all).to_vec() == broken);
}

// Breaks if: the length that a trailer claims is believed: good containers would be called damaged,
// and reading them would never end.
fn forged_lengths_of_parity_count_as_damage() {
    let scratch = Scratch::new("parity-forged");
    takes(&job(scratch.path(), "rs=4+2"), &[1], 2);
    let (record, dirs) = record_and_dirs(scratch.path());
    // The only parity file that is left says that its own container is long.
    for node in NODES {
        let is_parity = |name: &String| name.ends_with(".parity");
        for name in files(scratch.path(), node).into_iter().filter(is_parity) {
            let path = dir(scratch.path(), node).join(&name);
            let mut bytes = disk::read(&path);
            disk::remove_file(&path);
            if node != "c" {
                continue;
            }
            let end = bytes.last_chunk().unwrap();
            let (at, len) = ParityTrailer::find(end, bytes.len() as u64).unwrap();
            let at_end = &bytes[at as usize..][..len];
            let mut trailer = ParityTrailer::decode(at_end, at).unwrap();
            trailer.lens_bytes[trailer.member as usize] = 1 << 60;
            bytes.truncate(at as usize);
            bytes.extend_from_slice(&trailer.encode());
            disk::write(&path, &bytes);
        }
    }
    let verdict = verify_commit(&dirs, &record, &mut |_, _| {}).unwrap();
    let mut containers = verdict.containers.iter();
    assert!(
        containers.all(|one| one.findings.is_empty()),
        "{:?}",
        verdict.containers
    );
    assert_eq!(verdict.parity.len(), NODES.len(), "{:?}", verdict.parity);
    let is_forged = |message: &str| message.contains("expected parity of containers of");
    let mut found = verdict.parity.iter();
    assert!(found.any(|one| is_forged(&one.message)), "{verdict:?}");
    let done = repair(&dirs, &record).unwrap();
    assert!(done.done.is_empty(), "{done:?}");
    assert_eq!(done.left.len(), NODES.len(), "{done:?}");
}

// Breaks if: ranks are mixed up, or what newer checkpoints refer to has no parity any more.
fn nodes_with_several_ranks_and_older_containers_are_protected_too() {
    let placed = ["a", "a", "a", "b", "b", "c", "c", "c", "d"];
    for (name, options) in [
        ("several ranks", ""),
        (
            "incremental",
            "incremental = 'auto'\nincremental_chain = 3\nkeep = 1",
        ),
        (
            "encrypted, small pool",
            "compress = 'zstd'\npool = '256 KiB'\noverrun = 'wait'",
        ),
    ] {
        let scratch = Scratch::new("parity-writers");
        let kept = scratch.path().join("kept");
        let job = |placed: &[&'static str]| {
            let mut job = Job::new(scratch.path(), 9, 0, true).placed(placed);
            if options.contains("pool") {
                job = job.pool("256 KiB");
            }
            job.with("protect = 'xor=4'")
                .with(&options.replace("pool = '256 KiB'\n", ""))
        };
        job(&placed).run(|session, rank| {
            let mut session = session.unwrap();
            for step in 1..=5 {
                // Half of them do not change any more.
                let of_step = if rank % 2 == 0 { 1 } else { step };
                let mut state = State::new(rank, of_step, scale(rank));
                state.protect(&mut session).unwrap();
                session.checkpoint(step).unwrap();
                session.wait(step, Level::Peers(1), LONG).unwrap();
            }
            session.close(LONG).unwrap();
        });
        disk::copy_tree(&scratch.path().join("local"), &kept);
        for lost in ["a", "b", "c", "d"] {
            disk::remove_tree(&scratch.path().join("local"));
            disk::copy_tree(&kept, &scratch.path().join("local"));
            disk::remove_tree(&dir(scratch.path(), lost));
            let placed = placed.map(|node| if node == lost { "x" } else { node });
            let told = job(&placed).with("close = 'copies'").run(|session, rank| {
                let mut session = session.unwrap();
                assert_eq!(session.find().unwrap(), 5, "{name}, without {lost}");
                let mut state = State::empty(rank, scale(rank));
                state.protect(&mut session).unwrap();
                session.restart().unwrap();
                let of_step = if rank % 2 == 0 { 1 } else { 5 };
                assert!(
                    state.is(rank, of_step, scale(rank)),
                    "{name}: rank {rank} without {lost}"
                );
                session.close(LONG).unwrap();
            });
            assert_eq!(told.len(), 9);
            let before = disk::names(&kept.join("job").join(lost));
            let again = disk::names(&dir(scratch.path(), "x"));
            for file in before.iter().filter(|file| file.ends_with(".orc")) {
                // What is pruned while copies are made is not rebuilt.
                let made = again.contains(file);
                let needed = file.starts_with("s000000000005");
                assert!(made || !needed, "{name}: {file} is not in {again:?}");
            }
        }
    }
}

// Breaks if: a job without spare nodes cannot continue after a loss, or is protected less then.
fn the_nodes_that_are_left_form_a_smaller_group() {
    let scratch = Scratch::new("parity-left");
    let job = |placed: &[&'static str; 6]| {
        let job = Job::new(scratch.path(), 6, 0, true).placed(placed);
        job.with("protect = 'xor=4'").with("close = 'copies'")
    };
    for (step, placed, lost) in [
        (1, ["a", "a", "b", "b", "c", "d"], "d"),
        (2, ["a", "a", "b", "b", "c", "c"], "c"),
        (3, ["a", "a", "b", "b", "x", "x"], "b"),
    ] {
        let told = job(&placed).run(|session, rank| {
            let mut session = session.unwrap();
            let mut state = State::empty(rank, scale(rank));
            if step > 1 {
                assert_eq!(session.find().unwrap(), step - 1);
                state.protect(&mut session).unwrap();
                session.restart().unwrap();
                assert!(state.is(rank, step - 1, scale(rank)), "rank {rank}");
            }
            let told = warnings(&mut session);
            let mut state = State::new(rank, step, scale(rank));
            state.protect(&mut session).unwrap();
            session.checkpoint(step).unwrap();
            session.wait(step, Level::Peers(1), LONG).unwrap();
            session.close(LONG).unwrap();
            told
        });
        let said = told.concat().join("; ");
        assert_eq!(said.contains("has 3 nodes: they form one group"), step > 1);
        disk::remove_tree(&dir(scratch.path(), lost));
    }
}

// Breaks if: what could wait for itself, or cannot keep its promise, begins.
fn parity_needs_one_writer_on_each_node_and_enough_nodes() {
    let placed = ["a", "a", "b", "b", "c", "c"];
    for (options, what) in [
        (
            "protect = 'xor=3'\nmode = 'vertical'",
            "needs one writer on each node",
        ),
        (
            "protect = 'rs=2+3'",
            "needs 4 nodes or more, and the job has 3 nodes",
        ),
    ] {
        let scratch = Scratch::new("parity-writers");
        let job = Job::new(scratch.path(), 6, 0, true).placed(&placed);
        job.with(options).run(|session, _| {
            says(&session.err().unwrap(), ErrorKind::Invalid, &[what]);
        });
    }
}
