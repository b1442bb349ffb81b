//! Tests checkpoints that were rejected, kept or removed by hand.

use orcheck_engine::directory::choose::{Removal, checkpoint_of, decide, decision, take_back};
use orcheck_engine::directory::prune::{KeepRule, Referred, prune};
use orcheck_engine::directory::{Catalog, Places};
use orcheck_engine::restart::candidates;
use orcheck_fixtures::reading::{Scratch, Spec, claim, epoch, job, open_places, write};
use orcheck_format::disk::{Choice, CommitRecord, ContainerRef, FileName};
use orcheck_format::{Decision, ErrorKind, Level, NodeId, Rank, Step, TargetId, WriterId};
use orcheck_io::clock::SystemClock;
use orcheck_io::disk::Dir;
use orcheck_io::failpoints::{Failpoints, Verdict};
use orcheck_staging::open_dir;
use orcheck_testing::FaultPlan;
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

fn choice(step: u64, counter: u64, what: Decision, why: &str) -> Choice {
    decision(
        &job(),
        (Step(step), epoch(counter)),
        what,
        why,
        &SystemClock,
    )
}

/// Two places with checkpoints of one run.
fn with_steps(scratch: &Scratch, steps: &[u64]) -> (Vec<PathBuf>, Vec<Arc<dyn Dir>>) {
    let paths = vec![scratch.dir("a"), scratch.dir("b")];
    for path in &paths {
        claim(path, epoch(1), Some(None));
    }
    for &step in steps {
        write(&paths, &Spec::new(step, 1));
    }
    let dirs = open_places(&paths);
    (paths, dirs)
}

fn steps(catalog: &Catalog) -> Vec<u64> {
    let commits = catalog.commits().iter();
    commits.map(|commit| commit.record.step.0).collect()
}

fn names(path: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(path).unwrap();
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

fn refer(paths: &[PathBuf], from: u64, to: u64) {
    for path in paths {
        let path = path.join(Spec::new(from, 1).commit_name());
        let mut record = CommitRecord::decode(&std::fs::read(&path).unwrap()).unwrap();
        record.containers[0].refers_to = vec![Step(to)];
        std::fs::write(&path, record.encode()).unwrap();
    }
}

// Breaks if: one place's decision is not everybody's, or a damaged file says nothing.
#[test]
fn a_rejected_checkpoint_is_not_offered() {
    let scratch = Scratch::new();
    let (paths, dirs) = with_steps(&scratch, &[10, 20, 30]);
    let rejected = choice(30, 1, Decision::Rejected, "the energy\ngrows");
    decide(&dirs[1..], &rejected).unwrap();
    let catalog = Catalog::scan(&job(), &dirs).unwrap();
    assert_eq!(steps(&catalog), [20, 10]);
    assert_eq!(catalog.rejected()[0].record.step, Step(30));
    assert_eq!(catalog.rejection(Step(30), epoch(1)), Some(&rejected));
    let notes = catalog.notes().join("\n");
    assert!(
        notes.contains("step 30") && notes.contains("the energy"),
        "{notes}"
    );
    assert!(catalog.problems().is_empty(), "{notes}");

    let name = paths[1].join(rejected.file_name().to_string());
    std::fs::write(&name, b"damaged").unwrap();
    let catalog = Catalog::scan(&job(), &dirs).unwrap();
    assert_eq!(steps(&catalog), [20, 10]);
    assert_eq!(catalog.problems()[0].kind(), ErrorKind::Corrupt);

    // One of another job that got in here says nothing.
    let other = Choice {
        job: orcheck_format::JobName::new("other").unwrap(),
        ..choice(20, 1, Decision::Rejected, "")
    };
    decide(&dirs[..1], &other).unwrap();
    assert_eq!(steps(&Catalog::scan(&job(), &dirs).unwrap()), [20, 10]);

    let gone = take_back(&dirs, &rejected.file_name()).unwrap();
    assert_eq!(gone, 1);
    assert_eq!(steps(&Catalog::scan(&job(), &dirs).unwrap()), [30, 20, 10]);
}

#[test]
fn what_was_rejected_is_told_from_nothing() {
    let scratch = Scratch::new();
    let root = scratch.dir("root");
    let path = scratch.dir("root/cavity");
    claim(&path, epoch(1), Some(None));
    write(std::slice::from_ref(&path), &Spec::new(10, 1));
    let dirs = open_places(&[path]);
    decide(&dirs, &choice(10, 1, Decision::Rejected, "")).unwrap();
    let places = Places::open(&job(), "a", None, &[root], &Failpoints::none(), false).unwrap();
    let offer = candidates(&job(), &places).unwrap();
    assert_eq!((offer.candidates.len(), offer.rejected.len()), (0, 1));
    assert!(offer.hidden.is_none());
}

fn rule(committed: &[u64]) -> KeepRule {
    KeepRule {
        keep: 2,
        epoch: epoch(1),
        resumed: None,
        committed: committed.iter().copied().map(Step).collect(),
    }
}

// Breaks if: rejected ones count; two of them in a row would let every good checkpoint go.
#[test]
fn rejected_checkpoints_do_not_count_for_keep() {
    let scratch = Scratch::new();
    let (_, dirs) = with_steps(&scratch, &[10, 20, 30, 40]);
    for step in [30, 40] {
        decide(&dirs, &choice(step, 1, Decision::Rejected, "")).unwrap();
    }
    prune(
        &dirs,
        Level::Global,
        &rule(&[10, 20, 30, 40]),
        &mut Referred::default(),
    )
    .unwrap();
    let catalog = Catalog::scan(&job(), &dirs).unwrap();
    assert_eq!(steps(&catalog), [20, 10]);
    assert_eq!(catalog.rejected().len(), 2);
}

// Breaks if: prune looks at the keep rule alone, or lets go what the kept checkpoint refers to.
#[test]
fn what_is_marked_to_be_kept_stays() {
    let scratch = Scratch::new();
    let (paths, dirs) = with_steps(&scratch, &[10, 20, 30, 40, 50]);
    refer(&paths, 20, 10);
    decide(&dirs, &choice(20, 1, Decision::Kept, "")).unwrap();
    prune(
        &dirs,
        Level::Global,
        &rule(&[10, 20, 30, 40, 50]),
        &mut Referred::default(),
    )
    .unwrap();
    let catalog = Catalog::scan(&job(), &dirs).unwrap();
    assert_eq!(steps(&catalog), [50, 40, 20, 10]);
    assert!(catalog.is_kept(Step(20), epoch(1)) && !catalog.is_kept(Step(10), epoch(1)));
    assert_eq!(
        take_back(&dirs, &choice(20, 1, Decision::Kept, "").file_name()).unwrap(),
        2
    );
    prune(
        &dirs,
        Level::Global,
        &rule(&[10, 20, 30, 40, 50]),
        &mut Referred::default(),
    )
    .unwrap();
    assert_eq!(steps(&Catalog::scan(&job(), &dirs).unwrap()), [50, 40]);
}

// Breaks if: the claims of later runs go while a superseded checkpoint stays by hand: it would come
// back.
#[test]
fn a_superseded_checkpoint_that_is_kept_stays_superseded() {
    let scratch = Scratch::new();
    let (paths, dirs) = with_steps(&scratch, &[10, 20]);
    for (counter, resumed) in [(2, 10), (3, 10), (4, 30)] {
        for path in &paths {
            claim(path, epoch(counter), Some(Some(resumed)));
        }
    }
    for step in [30, 40] {
        write(&paths, &Spec::new(step, 4));
    }
    decide(&dirs, &choice(20, 1, Decision::Kept, "")).unwrap();
    let rule = KeepRule {
        epoch: epoch(4),
        ..rule(&[30, 40])
    };
    prune(&dirs, Level::Global, &rule, &mut Referred::default()).unwrap();
    let catalog = Catalog::scan(&job(), &dirs).unwrap();
    assert_eq!(steps(&catalog), [40, 30]);
    assert_eq!(catalog.fenced()[0].record.step, Step(20));
    let resumed = FileName::Resumed { epoch: 2 }.to_string();
    assert!(names(&paths[0]).contains(&resumed));
}

// Breaks if: only the newest is named, or one that refers by another; whoever removes what is named
// is refused again.
#[test]
fn all_that_have_to_go_too_are_named() {
    let scratch = Scratch::new();
    let (paths, dirs) = with_steps(&scratch, &[10, 20, 30, 40]);
    refer(&paths, 20, 10);
    refer(&paths, 30, 10);
    refer(&paths, 40, 30);
    let catalog = Catalog::scan(&job(), &dirs).unwrap();
    let error = Removal::plan(&catalog, Step(10), None).err().unwrap();
    assert_eq!(
        error.message(),
        "step 10 holds data that steps 20 and 30 refer to. Next: remove steps 20, 30 and 40 too, or leave step 10"
    );
    let gone = [(Step(40), epoch(1)), (Step(30), epoch(1))].into();
    let error = Removal::plan_after(&catalog, Step(10), None, &gone)
        .err()
        .unwrap();
    assert!(error.message().contains("remove step 20 too"), "{error}");
}

// Breaks if: containers of a checkpoint that another one needs are removed.
#[test]
fn what_others_refer_to_is_not_removed_by_hand() {
    let scratch = Scratch::new();
    let (paths, dirs) = with_steps(&scratch, &[10, 20, 30]);
    refer(&paths, 30, 10);
    let refused = |step: u64| {
        let catalog = Catalog::scan(&job(), &dirs).unwrap();
        Removal::plan(&catalog, Step(step), None).err().unwrap()
    };
    let error = refused(10);
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.message().contains("remove step 30 too"), "{error}");
    assert_eq!(refused(11).kind(), ErrorKind::NotFound);

    decide(&dirs, &choice(20, 1, Decision::Kept, "")).unwrap();
    assert!(refused(20).message().contains("marked to be kept"));

    // A record that cannot be read may refer to anything older.
    let name = paths[0].join(Spec::new(30, 1).commit_name());
    let good = std::fs::read(&name).unwrap();
    for path in &paths {
        std::fs::write(path.join(Spec::new(30, 1).commit_name()), b"damaged").unwrap();
    }
    assert_eq!(refused(10).kind(), ErrorKind::Corrupt);
    for path in &paths {
        std::fs::write(path.join(Spec::new(30, 1).commit_name()), &good).unwrap();
    }

    let catalog = Catalog::scan(&job(), &dirs).unwrap();
    let removal = Removal::plan(&catalog, Step(30), None).unwrap();
    assert_eq!(removal.levels, [Level::Global]);
    assert!(removal.files >= 3 && removal.bytes > 0);
    let before = names(&paths[0]);
    // A plan removes nothing.
    assert_eq!(names(&paths[0]), before);
    removal.carry_out().unwrap();
    let catalog = Catalog::scan(&job(), &dirs).unwrap();
    assert_eq!(steps(&catalog), [20, 10]);
    let of_30 = |name: &String| name.starts_with("s000000000030");
    assert!(
        !paths
            .iter()
            .flat_map(|path| names(path))
            .any(|name| of_30(&name))
    );
    assert_eq!(checkpoint_of(&catalog, Step(10)).unwrap().step, Step(10));
    Removal::plan(&catalog, Step(10), None)
        .unwrap()
        .carry_out()
        .unwrap();
}

// Breaks if: containers go before the records, or the records' directory is not synced between the
// two.
#[test]
fn a_removal_that_fails_anywhere_leaves_no_record_without_its_containers() {
    let mut failed = 0;
    for nth in 1..=16 {
        let scratch = Scratch::new();
        let (paths, _) = with_steps(&scratch, &[10, 20]);
        let (_, failpoints) = FaultPlan::new()
            .at_site("", nth, Verdict::Fail(5))
            .only_where("s000000000020")
            .failpoints();
        let dirs: Vec<Arc<dyn Dir>> = (paths.iter())
            .map(|path| open_dir(path, failpoints.clone()).unwrap())
            .collect();
        let removed = Catalog::scan(&job(), &dirs)
            .and_then(|catalog| Removal::plan(&catalog, Step(20), None))
            .and_then(|removal| removal.carry_out());
        let has = |ending: &str| {
            let mut all = paths.iter().flat_map(|path| names(path));
            all.any(|name| name.starts_with("s000000000020") && name.ends_with(ending))
        };
        if has(".commit") {
            let containers = paths.iter().map(|path| names(path));
            let whole = containers
                .flatten()
                .filter(|name| name.starts_with("s000000000020"));
            assert_eq!(
                whole.filter(|name| name.ends_with(".orc")).count(),
                2,
                "step {nth}"
            );
        }
        if removed.is_ok() {
            assert!(!has(""), "step {nth}");
            continue;
        }
        failed += 1;
        // The rest goes with the next try, or is what a run that was killed leaves, which is
        // pruned.
        let catalog = Catalog::scan(&job(), &open_places(&paths)).unwrap();
        if let Ok(removal) = Removal::plan(&catalog, Step(20), None) {
            removal.carry_out().unwrap();
            assert!(!has(""), "step {nth}");
        }
    }
    assert!(failed >= 4, "{failed} steps failed");
}

/// A checkpoint of one rank as prune sees it: a record, and a container of no bytes.
fn put(path: &Path, step: u64, refers_to: Vec<u64>) {
    let (run, node, writer) = (epoch(1).run.short_bytes(), 0, 0);
    let name = FileName::Container {
        step: Step(step),
        epoch: 1,
        run,
        node: NodeId(node),
        writer: WriterId(writer),
    };
    let record = CommitRecord {
        job: job(),
        step: Step(step),
        epoch: epoch(1),
        level: Level::Global,
        world_size: 1,
        nodes: vec!["a".into()],
        placement_generation: 1,
        servers: vec!["/a".into()],
        containers: vec![ContainerRef {
            file: name.to_string(),
            server: TargetId(0),
            node: NodeId(node),
            writer: WriterId(writer),
            len_bytes: 0,
            manifest_digest: [0; 32],
            ranks: vec![(Rank(0), 1)],
            refers_to: refers_to.into_iter().map(Step).collect(),
            holders: vec![],
        }],
        created_unix_ms: 0,
        groups: vec![],
    };
    std::fs::write(path.join(name.to_string()), b"").unwrap();
    let name = FileName::commit(Step(step), epoch(1), Level::Global).to_string();
    std::fs::write(path.join(name), record.encode()).unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    // Breaks if: a choice is looked at in one of the two places (what counts, what stays) alone.
    #[test]
    fn choices_and_the_keep_rule_go_together(
        referred in proptest::collection::vec(proptest::option::of(1u64..5), 2..12),
        choices in proptest::collection::vec((1u64..12, any::<bool>()), 0..6),
        keep in 1usize..4,
    ) {
        let scratch = Scratch::new();
        let path = scratch.dir("a");
        claim(&path, epoch(1), Some(None));
        let steps: Vec<u64> = (1..=referred.len() as u64).collect();
        let refers = |step: u64| -> Vec<u64> {
            let back = referred[step as usize - 1];
            back.filter(|back| *back < step).map(|back| step - back).into_iter().collect()
        };
        for &step in &steps {
            put(&path, step, refers(step));
        }
        let dirs = open_places(std::slice::from_ref(&path));
        let of = |wanted: Decision| -> BTreeSet<u64> {
            let wanted = choices.iter().filter(|(_, kept)| *kept == (wanted == Decision::Kept));
            wanted.map(|(step, _)| *step).filter(|step| steps.contains(step)).collect()
        };
        let (rejected, by_hand) = (of(Decision::Rejected), of(Decision::Kept));
        for (steps, what) in [(&rejected, Decision::Rejected), (&by_hand, Decision::Kept)] {
            for &step in steps {
                decide(&dirs, &choice(step, 1, what, "")).unwrap();
            }
        }
        let rule = KeepRule { keep, ..rule(&steps) };
        prune(&dirs, Level::Global, &rule, &mut Referred::default()).unwrap();

        // The model: what the rule keeps, what is kept by hand, and all that these refer to.
        let good = steps.iter().rev().filter(|step| !rejected.contains(step));
        let good: Vec<u64> = good.copied().take(keep).collect();
        let mut stays: BTreeSet<u64> = match good.len() == keep {
            true => good.iter().chain(&by_hand).copied().collect(),
            false => steps.iter().copied().collect(),
        };
        // What is newer than the newest good one may still be needed by whoever wrote it.
        stays.extend(steps.iter().filter(|step| Some(*step) > good.first()));
        let mut open: Vec<u64> = stays.iter().copied().collect();
        while let Some(step) = open.pop() {
            open.extend(refers(step).into_iter().filter(|older| stays.insert(*older)));
        }
        let there = names(&path).into_iter().filter_map(|name| match FileName::parse(&name)? {
            FileName::Container { step, .. } => Some(step.0),
            _ => None,
        });
        prop_assert_eq!(there.collect::<BTreeSet<u64>>(), stays);
    }
}
