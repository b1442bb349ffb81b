//! Jobs that continue from a copy of a checkpoint at another level.
//!
//! Not here: failures while it is copied, and what is refused (crate `engine`, tests `copying`).

use crate::session::disk;
use crate::session::mistakes::LONG;
use crate::support::{Job, State, make_dir};
use crate::{Test, session_tests};
use orcheck_engine::directory::{Catalog, Commit};
use orcheck_engine::encoding::{Accept, Trust};
use orcheck_engine::restart::reader::Reader;
use orcheck_engine::upkeep::copying::{Copied, Destination, Order};
use orcheck_engine::upkeep::verify_commit_with;
use orcheck_format::disk::{Compression, Encoding};
use orcheck_format::{JobName, Level, Result};
use orcheck_io::clock::SystemClock;
use orcheck_io::disk::Dir;
use orcheck_io::failpoints::Failpoints;
use orcheck_io::memory::Span;
use orcheck_io::user::Secret;
use orcheck_staging::open_dir;
use orcheck_testing::Scratch;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// What is tested here.
pub const TESTS: &[Test] = session_tests![
    a_job_continues_from_a_copy_of_what_its_nodes_held,
    a_job_with_both_levels_continues_and_outlives_the_loss_of_its_nodes,
    a_job_that_went_back_is_copied_beside_what_it_superseded,
    replicas_alone_suffice,
    an_incremental_checkpoint_is_whole_in_the_copy,
    an_encrypted_checkpoint_is_encrypted_again_under_the_first_key,
    routed_files_several_writers_and_stripes_are_copied,
    a_copy_and_a_run_in_the_same_directories_wait_for_each_other,
    nodes_are_seeded_from_the_file_system,
];

fn open(paths: &[PathBuf]) -> Vec<Arc<dyn Dir>> {
    let dirs = paths
        .iter()
        .map(|path| open_dir(path, Failpoints::none()).unwrap());
    dirs.collect()
}

/// Copies the newest step in `sources` to directories of level global below `root`.
fn copy(root: &Path, sources: &[PathBuf], names: &[&str], trust: &Arc<Trust>) -> Result<Copied> {
    let below = |_: &str| vec!["job".to_owned()];
    copy_to(Level::Global, &below, root, sources, names, trust)
}

/// The same to any level; what is below the directory of each name is told by `below`.
fn copy_to(
    level: Level,
    below: &dyn Fn(&str) -> Vec<String>,
    root: &Path,
    sources: &[PathBuf],
    names: &[&str],
    trust: &Arc<Trust>,
) -> Result<Copied> {
    let name = JobName::new("job").unwrap();
    let places = open(sources);
    let catalog = Catalog::scan_trusting(&name, &places, trust)?;
    let destinations = names.iter().map(|name| {
        let path = root.join(name);
        make_dir(&path);
        let shown = path.display().to_string();
        let dir = open_dir(&path, Failpoints::none()).unwrap();
        Destination::new(dir, below(name), shown)
    });
    let order = Order {
        job: &name,
        catalog: &catalog,
        commit: &catalog.commits()[0],
        places,
        trust,
        level,
        destinations: destinations.collect(),
        compress: None,
        patience: Duration::ZERO,
        again: None,
    };
    let clock = SystemClock::new();
    let plan = order.plan(&clock)?;
    Ok(order.carry_out(&plan, &clock, &mut |_| Ok(()))?)
}

/// Directories of nodes, as a site collects them.
fn nodes(root: &Path, names: &[&str]) -> Vec<PathBuf> {
    names
        .iter()
        .map(|name| root.join("local/job").join(name))
        .collect()
}

/// The same ranks with these directories of level global alone.
fn on_global(root: &Path, ranks: u32, names: &[&str]) -> Job {
    let dirs: Vec<String> = names
        .iter()
        .map(|name| format!("'{}'", root.join(name).display()))
        .collect();
    Job::new(root, ranks, 0, false).with(&format!("global = [{}]", dirs.join(", ")))
}

/// Takes these steps; `level` is waited for.
fn takes(job: &Job, steps: &[u64], level: Level) {
    job.run(|session, rank| {
        let mut session = session.unwrap();
        if session.find().is_ok() {
            let mut state = State::empty(rank, 20);
            state.protect(&mut session).unwrap();
            session.restart().unwrap();
        }
        for &step in steps {
            let mut state = State::new(rank, step, 20);
            state.protect(&mut session).unwrap();
            session.checkpoint(step).unwrap();
            session.wait(step, level, LONG).unwrap();
        }
        session.close(LONG).unwrap();
    });
}

/// A new run finds `step`, the same bit for bit on all ranks, and takes another one.
fn continues(job: &Job, step: u64) {
    job.run(|session, rank| {
        let mut session = session.unwrap();
        assert_eq!(session.find().unwrap(), step);
        let mut state = State::empty(rank, 20);
        state.protect(&mut session).unwrap();
        assert_eq!(session.restart().unwrap(), step);
        assert!(state.is(rank, step, 20), "rank {rank}");
        let mut state = State::new(rank, step + 1, 20);
        state.protect(&mut session).unwrap();
        session.checkpoint(step + 1).unwrap();
        session.wait(step + 1, Level::Global, LONG).unwrap();
        session.close(LONG).unwrap();
    });
}

fn nobody() -> Arc<Trust> {
    Trust::nobody()
}

/// The only commit in directories of level global below `root`.
fn the_commit(root: &Path, names: &[&str], trust: &Trust) -> (Vec<Arc<dyn Dir>>, Commit) {
    let dirs: Vec<PathBuf> = names
        .iter()
        .map(|name| root.join(name).join("job"))
        .collect();
    let places = open(&dirs);
    let name = JobName::new("job").unwrap();
    let catalog = Catalog::scan_trusting(&name, &places, trust).unwrap();
    assert_eq!(catalog.commits().len(), 1);
    let commit = catalog.commits()[0].clone();
    (places, commit)
}

// Breaks if: the copy is not found, is another step, or does not fit; or the run after it treats it
// as a stranger's.
fn a_job_continues_from_a_copy_of_what_its_nodes_held() {
    for names in [&["pfs"][..], &["pfs", "pfs1", "pfs2"]] {
        let scratch = Scratch::new("copy");
        let root = scratch.path();
        let on_nodes = Job::new(root, 4, 0, true).nodes(2);
        takes(&on_nodes, &[1, 2], Level::Node);
        // Collected on one machine, in any place.
        let moved = root.join("collected");
        make_dir(&moved);
        disk::rename(&root.join("local/job/n1"), &moved.join("from-n1"));
        let sources = [root.join("local/job/n0"), moved.join("from-n1")];
        let copied = copy(root, &sources, names, &nobody()).unwrap();
        assert_eq!((copied.record.step.0, copied.record.epoch.counter), (2, 1));
        let placed = on_global(root, 4, names);
        continues(&placed, 2);
        continues(&placed, 3);
        // On other nodes, and with another number of directories: any that has all of it.
        continues(&placed.clone().nodes(4), 4);
        // The run counts on from the one that took it, and lets go of the copy in its turn.
        let dir = root.join(names[0]).join("job");
        assert!(disk::names(&dir).contains(&"epoch-000004.resumed".to_owned()));
        let left = disk::names(&dir)
            .into_iter()
            .filter(|name| name.starts_with("s000000000002"));
        assert_eq!(left.count(), 0);
    }
}

// Breaks if: with the copy beside it, a run takes its level node for lost, or is led astray when a
// node is lost afterwards.
fn a_job_with_both_levels_continues_and_outlives_the_loss_of_its_nodes() {
    let scratch = Scratch::new("copy-both");
    let root = scratch.path();
    takes(&Job::new(root, 4, 0, true).nodes(2), &[1, 2], Level::Node);
    copy(root, &nodes(root, &["n0", "n1"]), &["pfs"], &nobody()).unwrap();
    let pfs = format!("global = '{}'", root.join("pfs").display());
    let both = Job::new(root, 4, 0, true).nodes(2).with(&pfs);
    // A disk is replaced: what was only on the nodes is whole in the copy.
    disk::remove_tree(&root.join("local/job/n1"));
    continues(&both, 2);
    for node in ["n0", "n1"] {
        disk::remove_tree(&root.join("local/job").join(node));
    }
    continues(&both, 3);
    continues(&on_global(root, 4, &["pfs"]), 4);
}

// Breaks if: a copy of what its job has gone back behind stands in the way of the next copy, or is
// what a job continues from.
fn a_job_that_went_back_is_copied_beside_what_it_superseded() {
    let scratch = Scratch::new("copy-back");
    let root = scratch.path();
    let on_nodes = Job::new(root, 2, 0, true).nodes(2);
    let sources = nodes(root, &["n0", "n1"]);
    takes(&on_nodes, &[1, 2, 3], Level::Node);
    let copied = copy(root, &sources, &["pfs"], &nobody()).unwrap();
    assert_eq!((copied.record.step.0, copied.record.epoch.counter), (3, 1));
    // The nodes lose the newest step; what the next run takes is another step 3.
    for source in &sources {
        for name in disk::names(source) {
            if name.starts_with("s000000000003") {
                disk::remove_file(&source.join(name));
            }
        }
    }
    takes(&on_nodes, &[3], Level::Node);
    let copied = copy(root, &sources, &["pfs"], &nobody()).unwrap();
    assert_eq!((copied.record.step.0, copied.record.epoch.counter), (3, 2));
    let (_, counts) = the_commit(root, &["pfs"], &nobody());
    assert_eq!(counts.record.epoch.counter, 2);
    continues(&on_global(root, 2, &["pfs"]), 3);
    continues(&on_global(root, 2, &["pfs"]), 4);
}

// Breaks if: replicas do not stand in for nodes whose directories are gone.
fn replicas_alone_suffice() {
    let scratch = Scratch::new("copy-peers");
    let root = scratch.path();
    let names = ["a", "b", "c", "d"];
    let job = Job::new(root, 4, 0, true).placed(&names).with("peers = 2");
    takes(&job, &[1, 2], Level::Peers(2));
    for lost in ["b", "d"] {
        disk::remove_tree(&root.join("local/job").join(lost));
    }
    let copied = copy(root, &nodes(root, &["a", "c"]), &["pfs"], &nobody()).unwrap();
    assert!(
        copied
            .record
            .containers
            .iter()
            .all(|container| container.holders.is_empty())
    );
    assert_eq!(
        copied.record.containers.len(),
        4,
        "one for each node that wrote one"
    );
    continues(&on_global(root, 4, &["pfs"]), 2);
}

// Breaks if: what did not change since stays in older containers, which are not copied.
fn an_incremental_checkpoint_is_whole_in_the_copy() {
    let scratch = Scratch::new("copy-incremental");
    let root = scratch.path();
    const LEN: usize = 1 << 20;
    let bytes = |rank: u32, step: u64| {
        let mut bytes = vec![rank as u8 + 1; LEN];
        for changed in 0..step as usize {
            bytes[changed * 70_000..][..100].fill(changed as u8 + 100);
        }
        bytes
    };
    let job = Job::new(root, 2, 0, true)
        .nodes(2)
        .with("incremental = 'auto'");
    job.run(|session, rank| {
        let mut session = session.unwrap();
        session.find().unwrap_err();
        let mut u = bytes(rank, 0);
        session
            .protect("u", Span::from_mut(&mut u), orcheck_format::Dtype::U8, 0)
            .unwrap();
        for step in 1..=4 {
            u.copy_from_slice(&bytes(rank, step));
            session.checkpoint(step).unwrap();
            session.wait(step, Level::Node, LONG).unwrap();
        }
        session.close(LONG).unwrap();
    });
    let sources = nodes(root, &["n0", "n1"]);
    let name = JobName::new("job").unwrap();
    let catalog = Catalog::scan(&name, &open(&sources)).unwrap();
    let source = &catalog.commits()[0].record;
    assert!(!source.refers_to().is_empty(), "the test wants a chain");
    let copied = copy(root, &sources, &["pfs"], &nobody()).unwrap();
    assert!(copied.record.refers_to().is_empty());
    let containers = disk::names(&root.join("pfs/job")).into_iter();
    assert_eq!(containers.filter(|name| name.ends_with(".orc")).count(), 2);
    let placed = on_global(root, 2, &["pfs"])
        .nodes(2)
        .with("incremental = 'auto'");
    placed.run(|session, rank| {
        let mut session = session.unwrap();
        assert_eq!(session.find().unwrap(), 4);
        let mut u = vec![0u8; LEN];
        session
            .protect("u", Span::from_mut(&mut u), orcheck_format::Dtype::U8, 0)
            .unwrap();
        assert_eq!(session.restart().unwrap(), 4);
        assert!(u == bytes(rank, 4));
        session.checkpoint(5).unwrap();
        session.wait(5, Level::Global, LONG).unwrap();
        session.close(LONG).unwrap();
    });
    // Without an older container the step cannot be copied, and it is reported whose is missing.
    let older = disk::names(&sources[1])
        .into_iter()
        .find(|name| name.starts_with("s000000000001") && name.ends_with(".orc"));
    disk::remove_file(&sources[1].join(older.unwrap()));
    let error = copy(root, &sources, &["other"], &nobody()).unwrap_err();
    assert!(error.message().contains("node 1 'n1'"), "{error}");
    assert!(error.message().contains("incomplete or missing"), "{error}");
}

const OLD: [u8; 32] = [3; 32];
const NEW: [u8; 32] = [5; 32];

fn key_file(root: &Path, name: &str, key: [u8; 32]) -> String {
    let path = root.join(name);
    disk::write(&path, orcheck_format::hex(&key).as_bytes());
    disk::set_private(&path);
    format!("'file:{}'", path.display())
}

fn trust(keys: &[[u8; 32]]) -> Arc<Trust> {
    let keys: Vec<Arc<Secret>> = keys.iter().map(|key| Arc::new(Secret::new(*key))).collect();
    Trust::new(&keys, true, Accept::default()).unwrap()
}

// Breaks if: the copy is plain, keeps the old key, or what it is encrypted under is bound to the
// level it came from.
fn an_encrypted_checkpoint_is_encrypted_again_under_the_first_key() {
    for (more, compression) in [
        ("", Compression::None),
        ("compress = 'zstd'\n", Compression::Zstd),
        ("compress = 'lz4'\n", Compression::Lz4),
    ] {
        let scratch = Scratch::new("copy-encrypted");
        let root = scratch.path();
        let (old, new) = (key_file(root, "old", OLD), key_file(root, "new", NEW));
        let encrypted = format!("encrypt = 'aes-256-gcm'\n{more}");
        let with = |job: Job, keys: &str| job.with(&format!("{encrypted}encrypt_key = {keys}"));
        takes(
            &with(Job::new(root, 4, 0, true).nodes(2), &old),
            &[1, 2],
            Level::Node,
        );
        let sources = nodes(root, &["n0", "n1"]);
        let refused = copy(root, &sources, &["none"], &nobody()).unwrap_err();
        assert!(refused.message().contains("no key was given"), "{refused}");
        assert!(!root.join("none/job").exists());
        let both = trust(&[NEW, OLD]);
        copy(root, &sources, &["pfs"], &both).unwrap();
        let alone = trust(&[NEW]);
        let (places, commit) = the_commit(root, &["pfs"], &alone);
        let proof = (&alone, commit.proof);
        let verdict = verify_commit_with(&places, &commit.record, proof, &mut |_, _| {}).unwrap();
        assert!(verdict.is_good() && verdict.locked_bytes() == 0);
        let mut found = Vec::new();
        for container in &commit.record.containers {
            let reader = Reader::open(&places, &commit.record, container).unwrap();
            let ranks = reader.manifest().ranks.iter();
            let extents = ranks
                .flat_map(|rank| &rank.regions)
                .flat_map(|region| &region.extents);
            for extent in extents {
                found.push(Encoding::from_code(extent.encoding).unwrap());
                assert_eq!(extent.crc_plain, 0, "it would tell of what is encrypted");
            }
        }
        assert!(found.iter().all(|encoding| encoding.encrypted));
        assert!(
            found
                .iter()
                .any(|encoding| encoding.compression == compression)
        );
        // The key it was taken with is needed no more.
        continues(&with(on_global(root, 4, &["pfs"]).nodes(2), &new), 2);
        let refused = with(on_global(root, 4, &["pfs"]).nodes(2), &old);
        refused.run(|session, _| assert!(session.unwrap().find().is_err()));
    }
}

// Breaks if: files of the program, what ranks hold alike, several writers of a node, or stripes are
// not copied as they are.
fn routed_files_several_writers_and_stripes_are_copied() {
    for (dirs, more) in [
        (0, "scheme = 'core'"),
        (0, "lanes_per_node = 2"),
        (2, "mode = 'traditional'"),
    ] {
        let scratch = Scratch::new("copy-forms");
        let root = scratch.path();
        let from_nodes = dirs == 0;
        let level = if from_nodes {
            Level::Node
        } else {
            Level::Global
        };
        let job = Job::new(root, 4, dirs, from_nodes).nodes(2).with(more);
        let same: u32 = orcheck_client::SAME;
        let content = |rank: u32| vec![rank as u8 + 7; 70_000 + rank as usize];
        job.run(|session, rank| {
            let mut session = session.unwrap();
            session.find().unwrap_err();
            let (mut state, mut alike) = (State::new(rank, 1, 90), vec![9u8; 3000]);
            state.protect(&mut session).unwrap();
            session
                .protect(
                    "alike",
                    Span::from_mut(&mut alike),
                    orcheck_format::Dtype::U8,
                    same,
                )
                .unwrap();
            let path = session.route("mesh.h5").unwrap();
            disk::write(&path, &content(rank));
            session.checkpoint(1).unwrap();
            session.wait(1, level, LONG).unwrap();
            session.close(LONG).unwrap();
        });
        let sources = match from_nodes {
            true => nodes(root, &["n0", "n1"]),
            false => vec![root.join("ost0/job"), root.join("ost1/job")],
        };
        copy(root, &sources, &["x", "y", "z"], &nobody()).unwrap();
        on_global(root, 4, &["x", "y", "z"])
            .nodes(2)
            .run(|session, rank| {
                let mut session = session.unwrap();
                assert_eq!(session.find().unwrap(), 1);
                let (mut state, mut alike) = (State::empty(rank, 90), vec![0u8; 3000]);
                state.protect(&mut session).unwrap();
                session
                    .protect(
                        "alike",
                        Span::from_mut(&mut alike),
                        orcheck_format::Dtype::U8,
                        same,
                    )
                    .unwrap();
                let path = session.route("mesh.h5").unwrap();
                assert_eq!(session.restart().unwrap(), 1);
                assert!(state.is(rank, 1, 90) && alike == vec![9u8; 3000], "{more}");
                assert!(disk::read(&path) == content(rank), "{more}");
                session.close(LONG).unwrap();
            });
    }
}

// Breaks if: a run that is alive is fenced by the copy's claim, or a run that begins meanwhile
// meets half a copy.
fn a_copy_and_a_run_in_the_same_directories_wait_for_each_other() {
    let scratch = Scratch::new("copy-held");
    let root = scratch.path();
    takes(&Job::new(root, 2, 0, true).nodes(2), &[1, 2], Level::Node);
    make_dir(&root.join("pfs"));
    let sources = nodes(root, &["n0", "n1"]);
    let placed = on_global(root, 1, &["pfs"]).with("start = 'fresh'");
    placed.run(|session, rank| {
        let mut session = session.unwrap();
        session.find().unwrap_err();
        let error = copy(root, &sources, &["pfs"], &nobody()).unwrap_err();
        assert!(
            error.message().contains("is held by another run"),
            "{error}"
        );
        let mut state = State::new(rank, 1, 20);
        state.protect(&mut session).unwrap();
        session.checkpoint(1).unwrap();
        session.wait(1, Level::Global, LONG).unwrap();
        session.close(LONG).unwrap();
    });
    // That run began from nothing after the one that took it: what the nodes hold is over.
    let error = copy(root, &sources, &["pfs"], &nobody()).unwrap_err();
    assert_eq!(error.kind(), orcheck_format::ErrorKind::Fenced, "{error}");
}

// Breaks if: a node does not find its part below its own name, or the seeded level is not the
// job's.
fn nodes_are_seeded_from_the_file_system() {
    let scratch = Scratch::new("copy-seed");
    let root = scratch.path();
    let placed = on_global(root, 4, &["pfs"]).nodes(2);
    make_dir(&root.join("pfs"));
    takes(&placed, &[1, 2], Level::Global);
    let nodes_of = |at: &str| vec!["job".to_owned(), format!("n{}", at.len() - "local".len())];
    // One root for both nodes: its name is written in two ways.
    make_dir(&root.join("local"));
    let sources = [root.join("pfs/job")];
    let names = ["local", "local/"];
    copy_to(Level::Node, &nodes_of, root, &sources, &names, &nobody()).unwrap();
    let on_nodes = Job::new(root, 4, 0, true).nodes(2);
    on_nodes.run(|session, rank| {
        let mut session = session.unwrap();
        assert_eq!(session.find().unwrap(), 2);
        State::restores(&mut session, rank, 2, 20);
        session.close(LONG).unwrap();
    });
}
