//! Tests prune under power loss: no record outlives the files that it names, even if an earlier
//! prune failed halfway.
// It makes directories by itself.
#![allow(clippy::disallowed_methods, clippy::unwrap_used)]

use orcheck_engine::directory::prune::{KeepRule, Referred, prune};
use orcheck_format::disk::{CommitRecord, ContainerRef, FileName};
use orcheck_format::{Epoch, JobName, Level, NodeId, Rank, RunId, Step, TargetId, WriterId};
use orcheck_io::failpoints::{Effect, Failpoint, FailpointHook, Failpoints, Verdict};
use orcheck_staging::open_dir;
use orcheck_testing::power::{Disk, Journal, choice, choices};
use orcheck_testing::{FaultPlan, Scratch};
use std::sync::Arc;

/// Notes what is done, and lets one step fail.
struct Both(Arc<Journal>, FaultPlan);

impl FailpointHook for Both {
    fn at(&self, step: &Failpoint) -> Verdict {
        self.0.at(step);
        self.1.at(step)
    }

    fn done(&self, effect: &Effect) {
        self.0.done(effect);
    }
}

// Breaks if: prune syncs only directories from which it removed a record itself, or none, or
// removes containers first.
#[test]
fn a_record_never_outlives_its_containers() {
    let epoch = Epoch {
        counter: 1,
        run: RunId([7; 16]),
    };
    let record = |step| FileName::commit(step, epoch, Level::Global).to_string();
    let container = |step, node| {
        FileName::Container {
            step,
            epoch: 1,
            run: epoch.run.short_bytes(),
            node,
            writer: WriterId(0),
        }
        .to_string()
    };
    let content = |step| {
        CommitRecord {
            job: JobName::new("job").unwrap(),
            step,
            epoch,
            level: Level::Global,
            world_size: 2,
            nodes: vec!["a".into(), "b".into()],
            placement_generation: 1,
            servers: vec!["/a".into(), "/b".into()],
            containers: (0..2)
                .map(|node| ContainerRef {
                    file: container(step, NodeId(node)),
                    server: TargetId(node),
                    node: NodeId(node),
                    writer: WriterId(0),
                    len_bytes: 20480,
                    manifest_digest: [0; 32],
                    ranks: vec![(Rank(node), 1)],
                    refers_to: vec![],
                    holders: vec![],
                })
                .collect(),
            created_unix_ms: 0,
            groups: vec![],
        }
        .encode()
    };
    // The sync that fails: none, that of the first directory, that of the second.
    for failing in 0..3 {
        let scratch = Scratch::in_memory("prune");
        let paths = ["a", "b"].map(|name| scratch.path().join(name));
        for (node, path) in (0..).zip(&paths) {
            std::fs::create_dir(path).unwrap();
            for step in 1..=3 {
                std::fs::write(path.join(record(Step(step))), content(Step(step))).unwrap();
                std::fs::write(path.join(container(Step(step), NodeId(node))), b"container")
                    .unwrap();
            }
        }
        let journal = Journal::begin(scratch.path(), Box::new(|| 0)).unwrap();
        let plan = match failing {
            0 => FaultPlan::new(),
            nth => FaultPlan::new().at_site("dir.sync", nth, Verdict::Fail(5)),
        };
        let failpoints = Failpoints::with(Arc::new(Both(Arc::clone(&journal), plan)));
        let dirs = paths.map(|path| open_dir(&path, failpoints.clone()).unwrap());
        let rule = KeepRule {
            keep: 1,
            epoch,
            resumed: None,
            committed: (1..=3).map(Step).collect(),
        };
        let mut referred = Referred::default();
        let first = prune(&dirs, Level::Global, &rule, &mut referred);
        assert_eq!(first.is_err(), failing > 0);
        prune(&dirs, Level::Global, &rule, &mut referred).unwrap();
        let log = journal.end().unwrap();
        let mut disk = Disk::new(&log);
        loop {
            let parts = disk.parts(None);
            for number in 0..choices(parts.len()) {
                let image = disk.image(&parts, &choice(&parts, number, 1));
                for (dir, step) in [("a", 1), ("a", 2), ("b", 1), ("b", 2)] {
                    let whole = image
                        .file(&format!("a/{}", container(Step(step), NodeId(0))))
                        .is_some()
                        && image
                            .file(&format!("b/{}", container(Step(step), NodeId(1))))
                            .is_some();
                    assert!(
                        whole
                            || image
                                .file(&format!("{dir}/{}", record(Step(step))))
                                .is_none(),
                        "sync {failing} failed; after effect {}: {:?}",
                        disk.at(),
                        image.files()
                    );
                }
            }
            if !disk.advance() {
                break;
            }
        }
        assert!(!disk.image(&[], &[]).files().is_empty());
    }
}

// Breaks if: a record that cannot be read counts as one that refers to nothing: prune would take
// from under it.
#[test]
fn a_record_that_cannot_be_read_keeps_everything_older() {
    let epoch = Epoch {
        counter: 2,
        run: RunId([7; 16]),
    };
    let scratch = Scratch::in_memory("prune");
    let record = |step| FileName::commit(step, epoch, Level::Global).to_string();
    let content = |step| {
        let file = FileName::Container {
            step,
            epoch: 2,
            run: epoch.run.short_bytes(),
            node: NodeId(0),
            writer: WriterId(0),
        };
        CommitRecord {
            job: JobName::new("job").unwrap(),
            step,
            epoch,
            level: Level::Global,
            world_size: 1,
            nodes: vec!["a".into()],
            placement_generation: 1,
            servers: vec!["/a".into()],
            containers: vec![ContainerRef {
                file: file.to_string(),
                server: TargetId(0),
                node: NodeId(0),
                writer: WriterId(0),
                len_bytes: 20480,
                manifest_digest: [0; 32],
                ranks: vec![(Rank(0), 1)],
                refers_to: vec![],
                holders: vec![],
            }],
            created_unix_ms: 0,
            groups: vec![],
        }
        .encode()
    };
    for step in 1..=5 {
        std::fs::write(scratch.path().join(record(Step(step))), content(Step(step))).unwrap();
    }
    let mut damaged = content(Step(4));
    damaged[50] ^= 1;
    std::fs::write(scratch.path().join(record(Step(4))), damaged).unwrap();
    let dirs = [open_dir(scratch.path(), Failpoints::none()).unwrap()];
    let rule = KeepRule {
        keep: 2,
        epoch,
        resumed: None,
        committed: (1..=5).map(Step).collect(),
    };
    let left = || {
        (1..=5)
            .filter(|&step| scratch.path().join(record(Step(step))).exists())
            .collect::<Vec<u64>>()
    };
    prune(&dirs, Level::Global, &rule, &mut Referred::default()).unwrap();
    assert_eq!(left(), [1, 2, 3, 4, 5]);
    std::fs::write(scratch.path().join(record(Step(4))), content(Step(4))).unwrap();
    prune(&dirs, Level::Global, &rule, &mut Referred::default()).unwrap();
    assert_eq!(left(), [4, 5]);
}

// Breaks if: claims and notes go with the age of their run alone: a checkpoint that stays would be
// without the claim that says whose it is, and without the note that fences older steps.
#[test]
fn claims_stay_while_a_checkpoint_of_their_run_stays() {
    let scratch = Scratch::in_memory("prune");
    let epoch = |counter| Epoch {
        counter,
        run: RunId([7; 16]),
    };
    let resumed_from = FileName::commit(Step(8), epoch(3), Level::Global).to_string();
    let own = FileName::commit(Step(10), epoch(5), Level::Global).to_string();
    let mut files = vec![resumed_from, own];
    for epoch in 1..=5 {
        files.push(FileName::Claim { epoch }.to_string());
        files.push(FileName::Resumed { epoch }.to_string());
    }
    for name in &files {
        std::fs::write(scratch.path().join(name), b"not read here").unwrap();
    }
    let dirs = [open_dir(scratch.path(), Failpoints::none()).unwrap()];
    let rule = KeepRule {
        keep: 2,
        epoch: epoch(5),
        resumed: Some((Step(8), 3)),
        committed: [Step(10)].into(),
    };
    prune(&dirs, Level::Global, &rule, &mut Referred::default()).unwrap();
    let gone = |name: &&String| !scratch.path().join(name).exists();
    let gone: Vec<&str> = files.iter().filter(gone).map(String::as_str).collect();
    let expected = [
        "epoch-000001.claim",
        "epoch-000001.resumed",
        "epoch-000002.claim",
        "epoch-000002.resumed",
    ];
    assert_eq!(gone, expected);
}
