//! Tests copies of committed checkpoints: their content, refusals, and what a failure or a power
//! cut leaves behind.

// Tests make and damage files themselves, and a failed preparation may panic anywhere.
#![allow(clippy::disallowed_methods, clippy::unwrap_used)]

mod at_once;
mod crash;
mod refused;
mod scavenged;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use orcheck_engine::directory::Catalog;
use orcheck_engine::directory::choose::{decide, decision};
use orcheck_engine::encoding::Trust;
use orcheck_engine::restart::reader::Reader;
use orcheck_engine::upkeep::copying::{Copied, Destination, Order, Plan};
use orcheck_engine::upkeep::verify_commit;
use orcheck_fixtures::reading::{Spec, Written, claim, epoch, job, open_places, payload, write};
use orcheck_format::disk::{CommitRecord, Compression, FileName};
use orcheck_format::{Decision, Level, Rank, Result, Step, TargetId};
use orcheck_io::clock::SystemClock;
use orcheck_io::disk::Dir;
use orcheck_io::failpoints::Failpoints;
use orcheck_staging::open_dir;
use orcheck_testing::Scratch as Memory;

/// A checkpoint of level `node` on two nodes, taken by the first run of the job.
struct Site {
    scratch: Memory,
    written: Written,
    spec: Spec,
}

const STEP: u64 = 10;

/// A directory below, made if needed.
fn made(root: &Path, name: &str) -> PathBuf {
    let path = root.join(name);
    std::fs::create_dir_all(&path).unwrap();
    path
}

impl Site {
    fn new() -> Site {
        // Longer than a chunk of the copy.
        Self::of(5_000_077)
    }

    fn of(notes_bytes: usize) -> Site {
        // In memory: hundreds of copies are made, each with many syncs.
        let scratch = Memory::in_memory("engine-copying");
        let nodes = ["n0", "n1"].map(|node| made(scratch.path(), &format!("local/cavity/{node}")));
        for node in &nodes {
            claim(node, epoch(1), None);
        }
        let spec = Site::spec_of(notes_bytes);
        let written = write(&nodes, &spec);
        Site {
            scratch,
            written,
            spec,
        }
    }

    fn spec() -> Spec {
        Self::spec_of(5_000_077)
    }

    fn spec_of(notes_bytes: usize) -> Spec {
        let mut spec = Spec::new(STEP, 1);
        spec.level = Level::Node;
        let mut same = spec.regions[0].clone();
        same.name = "same".into();
        same.len = 640;
        spec.regions.push(same);
        spec.regions[1].len = notes_bytes;
        spec.regions[1].cut = 1 << 20;
        spec
    }

    fn sources(&self) -> Vec<PathBuf> {
        ["n0", "n1"]
            .map(|node| made(self.scratch.path(), &format!("local/cavity/{node}")))
            .to_vec()
    }

    fn root(&self, name: &str) -> PathBuf {
        made(self.scratch.path(), name)
    }

    /// Directories of level global below these roots.
    fn global(&self, roots: &[&str], failpoints: &Failpoints) -> Vec<Destination> {
        let open = |root: &&str| open_dir(&self.root(root), failpoints.clone()).unwrap();
        let made = roots
            .iter()
            .map(|root| Destination::new(open(root), vec!["cavity".into()], (*root).to_owned()));
        made.collect()
    }

    fn copy_to(&self, level: Level, destinations: Vec<Destination>) -> Result<(Plan, Copied)> {
        copy(&self.sources(), level, destinations, None)
    }
}

/// Hands over an order to copy the newest step in these directories, which waits this long for a
/// run that is alive.
fn with_order<T>(
    sources: &[PathBuf],
    (level, destinations): (Level, Vec<Destination>),
    compress: Option<(Compression, i32)>,
    patience: Duration,
    act: impl FnOnce(&Order<'_>) -> Result<T>,
) -> Result<T> {
    let places = open_places(sources);
    let catalog = Catalog::scan(&job(), &places)?;
    let trust = Trust::nobody();
    act(&Order {
        job: &job(),
        catalog: &catalog,
        commit: &catalog.commits()[0],
        places,
        trust: &trust,
        level,
        destinations,
        compress,
        patience,
        again: None,
    })
}

/// Plans a copy of the newest step in these directories and carries it out.
fn copy(
    sources: &[PathBuf],
    level: Level,
    destinations: Vec<Destination>,
    compress: Option<(Compression, i32)>,
) -> Result<(Plan, Copied)> {
    let to = (level, destinations);
    with_order(sources, to, compress, Duration::ZERO, |order| {
        let clock = SystemClock::new();
        let plan = order.plan(&clock)?;
        let copied = order.carry_out(&plan, &clock, &mut |_| Ok(()))?;
        Ok((plan, copied))
    })
}

/// Names in a directory, without those of the step's containers and record.
fn others(dir: &Path) -> Vec<String> {
    let names = std::fs::read_dir(dir).unwrap();
    let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names
        .filter(|name| !name.starts_with("s000000000010-e000001") || name.ends_with(".tmp"))
        .collect();
    names.sort();
    names
}

/// Every region of every rank is what the rank had.
fn check(places: &[Arc<dyn Dir>], record: &CommitRecord, spec: &Spec) {
    let verdict = verify_commit(places, record, &mut |_, _| {}).unwrap();
    assert!(
        verdict.is_good(),
        "{:?}",
        verdict.findings().collect::<Vec<_>>()
    );
    for container in &record.containers {
        let reader = Reader::open(places, record, container).unwrap();
        assert!(reader.take_notes().is_empty());
        for rank in &reader.manifest().ranks {
            assert_eq!(rank.regions.len(), spec.regions.len());
            for region in &rank.regions {
                let wanted = spec
                    .regions
                    .iter()
                    .find(|one| one.name == region.name)
                    .unwrap();
                let owner = if region.name == "same" {
                    Rank(0)
                } else {
                    rank.rank
                };
                let mut bytes = Vec::new();
                let take = &mut |_, part: &[u8]| {
                    bytes.extend_from_slice(part);
                    Ok(())
                };
                reader.stream_region(rank.rank, region, take).unwrap();
                assert!(bytes == payload(owner, spec.step, &region.name, wanted.len));
            }
        }
    }
}

// Breaks if: ranks or regions get lost or mixed, the copy counts as another run's, or says when it
// was copied instead of when the checkpoint was taken.
#[test]
fn what_nodes_hold_comes_to_any_number_of_directories() {
    for (roots, compress) in [
        (&["a"][..], None),
        (&["a", "b"], None),
        (&["a", "b", "c"], None),
        (&["a", "b"], Some((Compression::Zstd, 1))),
        (&["a", "b"], Some((Compression::Lz4, 1))),
    ] {
        {
            let site = Site::new();
            let before: Vec<Vec<String>> = site.sources().iter().map(|dir| others(dir)).collect();
            let destinations = site.global(roots, &Failpoints::none());
            let (plan, copied) =
                copy(&site.sources(), Level::Global, destinations, compress).unwrap();
            let dirs: Vec<PathBuf> = roots
                .iter()
                .map(|root| site.root(root).join("cavity"))
                .collect();
            let places = open_places(&dirs);
            let catalog = Catalog::scan(&job(), &places).unwrap();
            let record = &catalog.commits()[0].record;
            assert_eq!(*record, copied.record);
            assert_eq!(catalog.commits()[0].copies.len(), roots.len());
            check(&places, record, &site.spec);
            let source = &site.written.record;
            assert_eq!(
                (
                    record.level,
                    record.step,
                    record.epoch,
                    record.created_unix_ms
                ),
                (Level::Global, Step(STEP), epoch(1), source.created_unix_ms)
            );
            assert_eq!(
                (&record.nodes, record.world_size),
                (&source.nodes, source.world_size)
            );
            assert!(plan.containers.len() == 2 && !plan.is_there && !copied.was_there);
            let used: std::collections::BTreeSet<TargetId> = record
                .containers
                .iter()
                .map(|container| container.server)
                .collect();
            assert_eq!(
                used.len(),
                roots.len().min(2),
                "one container a node, dealt out"
            );
            for (container, planned) in record.containers.iter().zip(&plan.containers) {
                assert!(dirs[planned.destination].join(&container.file).exists());
                assert!(container.len_bytes <= planned.file_bytes, "{planned:?}");
            }
            if compress.is_some() {
                let len = |record: &CommitRecord| record.containers[0].len_bytes;
                assert!(len(record) < len(source) / 2);
            }
            for dir in &dirs {
                // The claim of the run that took it, and nothing of the copy's own.
                assert_eq!(others(dir), ["epoch-000001.claim"]);
            }
            let after: Vec<Vec<String>> = site.sources().iter().map(|dir| others(dir)).collect();
            assert_eq!(before, after, "the sources are only read");
        }
    }
}

// Breaks if: at level node the containers of a node do not lie in its own directory, or a node
// lacks the record.
#[test]
fn a_global_checkpoint_seeds_the_directories_of_nodes() {
    let site = Site::new();
    site.copy_to(Level::Global, site.global(&["a", "b"], &Failpoints::none()))
        .unwrap();
    let placed = [site.root("a").join("cavity"), site.root("b").join("cavity")];
    let root = open_dir(&site.root("seeded"), Failpoints::none()).unwrap();
    let nodes = ["node0", "node1"].map(|node| {
        let below = vec!["cavity".to_owned(), node.to_owned()];
        Destination::new(Arc::clone(&root), below, format!("seeded/{node}"))
    });
    copy(&placed, Level::Node, nodes.to_vec(), None).unwrap();
    for (number, node) in ["node0", "node1"].iter().enumerate() {
        let dir = site.root("seeded").join("cavity").join(node);
        let places = open_places(std::slice::from_ref(&dir));
        let catalog = Catalog::scan(&job(), &places).unwrap();
        let record = &catalog.commits()[0].record;
        assert_eq!(record.level, Level::Node);
        for container in &record.containers {
            let own = container.node.index() == number;
            assert_eq!(dir.join(&container.file).exists(), own);
        }
    }
    let all = ["node0", "node1"].map(|node| site.root("seeded").join("cavity").join(node));
    let places = open_places(&all);
    let record = Catalog::scan(&job(), &places).unwrap().commits()[0]
        .record
        .clone();
    check(&places, &record, &site.spec);
}

// Breaks if: a second copy writes again, or a record that reached one of two directories is not
// completed.
#[test]
fn a_copy_that_is_there_is_proven_and_completed() {
    let site = Site::new();
    let again = || site.copy_to(Level::Global, site.global(&["a", "b"], &Failpoints::none()));
    let (_, first) = again().unwrap();
    let files = |root: &str| {
        let mut all = Vec::new();
        for entry in std::fs::read_dir(site.root(root).join("cavity")).unwrap() {
            let entry = entry.unwrap();
            let made = entry.metadata().unwrap().modified().unwrap();
            all.push((entry.file_name().into_string().unwrap(), made));
        }
        all.sort();
        all
    };
    let before = [files("a"), files("b")];
    let (plan, second) = again().unwrap();
    assert!(plan.is_there && second.was_there);
    assert_eq!(first.record, second.record);
    assert_eq!(before, [files("a"), files("b")], "nothing was written");
    // As a kill between the two directories leaves it.
    let mut spec = site.spec.clone();
    spec.level = Level::Global;
    let record = |root: &str| site.root(root).join("cavity").join(spec.commit_name());
    std::fs::remove_file(record("b")).unwrap();
    let (_, third) = again().unwrap();
    assert!(third.was_there);
    assert_eq!(
        std::fs::read(record("a")).unwrap(),
        std::fs::read(record("b")).unwrap()
    );
    // Not what is damaged.
    let name = first
        .record
        .containers
        .iter()
        .find(|one| one.server == TargetId(0))
        .unwrap();
    let path = site.root("a").join("cavity").join(&name.file);
    orcheck_fixtures::reading::flip(&path, 9000, 1);
    let error = again().unwrap_err();
    assert!(error.message().contains("is not whole"), "{error}");
    assert!(
        error
            .message()
            .contains("Next: give all directories of the copy, or remove it there"),
        "{error}"
    );
    std::fs::remove_file(&path).unwrap();
    let error = again().unwrap_err();
    assert!(error.message().contains("is not there"), "{error}");
}

// Breaks if: what a run that died in its flush left there is not replaced, or stands in for what
// was written.
#[test]
fn what_a_dead_run_left_of_the_step_is_replaced() {
    let site = Site::new();
    for root in ["a", "b"] {
        let dir = site.root(root).join("cavity");
        std::fs::create_dir(&dir).unwrap();
        claim(&dir, epoch(1), None);
        for container in &site.written.record.containers {
            std::fs::write(dir.join(&container.file), vec![7; 100_000]).unwrap();
            let coming = format!("{}.epoch-000002.tmp", container.file);
            std::fs::write(dir.join(coming), vec![7; 5000]).unwrap();
        }
        std::fs::write(dir.join("notes.txt"), b"mine").unwrap();
        std::fs::write(
            dir.join("s000000000011-e000001-11111111-n0000-w00.orc"),
            b"other",
        )
        .unwrap();
    }
    site.copy_to(Level::Global, site.global(&["a", "b"], &Failpoints::none()))
        .unwrap();
    let dirs = ["a", "b"].map(|root| site.root(root).join("cavity"));
    let places = open_places(&dirs);
    let record = Catalog::scan(&job(), &places).unwrap().commits()[0]
        .record
        .clone();
    check(&places, &record, &site.spec);
    for (number, dir) in dirs.iter().enumerate() {
        let own = record
            .containers
            .iter()
            .filter(|one| one.server.index() == number);
        let of_step = std::fs::read_dir(dir).unwrap().filter(|entry| {
            let name = entry.as_ref().unwrap().file_name().into_string().unwrap();
            matches!(
                FileName::parse(&name),
                Some(FileName::Container {
                    step: Step(STEP),
                    ..
                })
            )
        });
        assert_eq!(of_step.count(), own.count());
        let other = "s000000000011-e000001-11111111-n0000-w00.orc";
        assert_eq!(others(dir), ["epoch-000001.claim", "notes.txt", other]);
    }
}

// Breaks if: the mark stays behind; the next run's prune would remove what somebody wants to stay.
#[test]
fn what_is_marked_to_be_kept_is_kept_as_a_copy() {
    for readable in [true, false] {
        let site = Site::new();
        let of = (Step(STEP), site.written.record.epoch);
        let mark = decision(&job(), of, Decision::Kept, "why not", &SystemClock::new());
        let name = mark.file_name().to_string();
        let place = open_places(&site.sources()[..1]);
        decide(&place, &mark).unwrap();
        if !readable {
            orcheck_fixtures::reading::flip(&site.sources()[0].join(&name), 20, 1);
        }
        site.copy_to(Level::Global, site.global(&["a", "b"], &Failpoints::none()))
            .unwrap();
        for root in ["a", "b"] {
            let dir = site.root(root).join("cavity");
            let catalog = Catalog::scan(&job(), &open_places(&[dir])).unwrap();
            assert!(catalog.is_kept(of.0, of.1));
            let brought = catalog.mark(of.0, of.1).unwrap();
            assert_eq!(brought.why == "why not", readable);
        }
    }
}
