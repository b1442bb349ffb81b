//! Tests what a disk may hold when the power fails while a container, a claim or a deletion is in
//! progress: every image that the model of `orcheck_testing::power::outage` allows.
// It makes directories by itself.
#![allow(clippy::disallowed_methods, clippy::unwrap_used)]

use orcheck_engine::directory::epoch::{Claimant, claim};
use orcheck_engine::directory::prune::{KeepRule, Referred, prune};
use orcheck_engine::encoding::Trust;
use orcheck_engine::flush::{Announced, ContainerWriter, Ledger, Target};
use orcheck_format::disk::{
    Claim, CommitRecord, ContainerHeader, ContainerRef, Features, FileName,
};
use orcheck_format::{Epoch, JobName, Level, NodeId, Rank, RunId, Step, TargetId, WriterId};
use orcheck_io::clock::SystemClock;
use orcheck_io::disk::Dir;
use orcheck_io::failpoints::Failpoints;
use orcheck_pool::{Pool, PoolShape};
use orcheck_staging::open_dir;
use orcheck_testing::Scratch;
use orcheck_testing::power::{Disk, Image, Journal, Log, choice, choices};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const EPOCH: Epoch = Epoch {
    counter: 1,
    run: RunId([5; 16]),
};

/// What `work` does in `<root>/d`, prepared by `prepare`; `work` may say how far it is.
fn record(prepare: impl FnOnce(&Path), work: impl FnOnce(&Arc<dyn Dir>, &AtomicU64)) -> Log {
    let scratch = Scratch::in_memory("engine-outage");
    let path = scratch.path().join("d");
    std::fs::create_dir(&path).unwrap();
    prepare(&path);
    let told = Arc::new(AtomicU64::new(0));
    let mark = Arc::clone(&told);
    let mark = Box::new(move || mark.load(Ordering::SeqCst));
    let journal = Journal::begin(scratch.path(), mark).unwrap();
    let dir = open_dir(&path, journal.failpoints()).unwrap();
    work(&dir, &told);
    drop(dir);
    journal.end().unwrap()
}

/// Calls `look` with every image of every moment and what had been told until then.
fn each_image(log: &Log, mut look: impl FnMut(u64, &Image)) -> u64 {
    let mut disk = Disk::new(log);
    let mut images = 0;
    loop {
        let parts = disk.parts(Some(4096));
        for number in 0..choices(parts.len()) {
            let kept = choice(&parts, number, 7);
            look(log.mark(disk.at()), &disk.image(&parts, &kept));
            images += 1;
        }
        if !disk.advance() {
            return images;
        }
    }
}

fn pool() -> Pool {
    let shape = PoolShape {
        chunk_bytes: 8192,
        chunk_count: 1,
        words: 0,
        rings: 0,
        ring_entries: 0,
    };
    Pool::create(shape).unwrap()
}

fn writer(dir: &Arc<dyn Dir>, stripes: Vec<(TargetId, Arc<dyn Dir>)>) -> ContainerWriter {
    let features = if stripes.is_empty() {
        Features::default()
    } else {
        Features::striped()
    };
    let header = ContainerHeader {
        features,
        job: JobName::new("job").unwrap(),
        step: Step(1),
        epoch: EPOCH,
        level: Level::Global,
        node: NodeId(0),
        writer: WriterId(0),
        world_size: 1,
        alignment_bytes: 4096,
        created_unix_ms: 0,
        encryption: None,
    };
    let target = Target {
        dir: Arc::clone(dir),
        server: TargetId(0),
        stripes,
        direct: false,
        ranks: 1,
        coming: None,
        settled: Arc::new(|| {}),
    };
    ContainerWriter::create(header, "n0", &target, None)
        .ok()
        .unwrap()
}

/// A rank whose stream is the pool's only chunk.
fn write_rank(writer: &mut ContainerWriter, pool: &Pool) {
    writer
        .begin_rank(
            Rank(0),
            Announced {
                stream_len_bytes: 8192,
                cut_bytes: 8192,
                may_shrink: false,
            },
        )
        .unwrap();
    writer.append(pool, 0, 8192).unwrap();
    let record = orcheck_format::disk::RankRecord {
        rank: Rank(0),
        stream_len_bytes: 8192,
        regions: vec![],
    };
    let framed = orcheck_format::disk::encode_rank_record(&record);
    writer
        .end_rank(framed, &[], &mut Ledger::default())
        .unwrap();
}

// Breaks if: `make_durable` leaves out the fsync of the file, or that of its directory.
#[test]
fn a_container_is_whole_when_it_was_reported_durable() {
    let mut whole = None;
    let log = record(
        |_| (),
        |dir, told| {
            let pool = pool();
            let chunk = pool.try_take(0).unwrap();
            pool.put(&chunk, 0, &[7; 8192]);
            let mut writer = writer(dir, Vec::new());
            write_rank(&mut writer, &pool);
            let reference = writer.finish().ok().unwrap();
            let bytes = std::fs::read(dir.path().join(&reference.file)).unwrap();
            assert_eq!(
                bytes.len() as u64,
                reference.len_bytes,
                "it ends with its trailer"
            );
            whole = Some((format!("d/{}", reference.file), bytes));
            told.store(1, Ordering::SeqCst);
            // Something must follow for the moment after the report to be looked at.
            dir.child("after", true).unwrap();
            pool.give(chunk);
        },
    );
    let (path, bytes) = whole.unwrap();
    let images = each_image(&log, |told, image| {
        let there = image.file(&path).is_some_and(|file| file.bytes() == bytes);
        assert!(told == 0 || there, "reported durable, and gone or torn");
    });
    println!("{images} images");
}

// Breaks if: `make_durable` does not truncate: a stripe file keeps the room that was allocated for
// whole units.
#[test]
fn a_stripe_file_keeps_no_surplus() {
    let scratch = Scratch::in_memory("engine-stripe");
    let dir = open_dir(scratch.path(), Failpoints::none()).unwrap();
    let pool = pool();
    let chunk = pool.try_take(0).unwrap();
    let stripes = vec![(TargetId(0), Arc::clone(&dir))];
    let mut writer = writer(&dir, stripes);
    write_rank(&mut writer, &pool);
    let reference = writer.finish().ok().unwrap();
    let stripe = reference.file.replace(".orc", ".stripe01");
    let len_bytes = std::fs::metadata(scratch.path().join(stripe))
        .unwrap()
        .len();
    assert_eq!(len_bytes, 8192);
    pool.give(chunk);
}

// Breaks if: `claim_one` does not sync the claim, or not before it renames it, or not the
// directory.
#[test]
fn a_claim_is_whole_or_absent_and_stays() {
    let log = record(
        |_| (),
        |dir, told| {
            let claimant = Claimant {
                trust: Trust::nobody(),
                job: JobName::new("job").unwrap(),
                run: EPOCH.run,
                host: "host".into(),
                pid: 1,
                uid: 2,
                world_size: 1,
                nodes: vec!["n0".into()],
            };
            let dirs = [Arc::clone(dir)];
            let mut held = claim(&dirs, &claimant, 1, &SystemClock::new()).unwrap();
            held.confirm();
            told.store(1, Ordering::SeqCst);
            dir.child("after", true).unwrap();
        },
    );
    let path = format!("d/{}", FileName::Claim { epoch: 1 });
    each_image(&log, |told, image| match image.file(&path) {
        Some(file) => assert_eq!(Claim::decode(&file.bytes()).unwrap().epoch, EPOCH),
        None => assert_eq!(told, 0, "claimed, and gone"),
    });
}

fn container(step: u64) -> String {
    let name = FileName::Container {
        step: Step(step),
        epoch: 1,
        run: EPOCH.run.short_bytes(),
        node: NodeId(0),
        writer: WriterId(0),
    };
    name.to_string()
}

fn record_of(step: u64) -> CommitRecord {
    CommitRecord {
        job: JobName::new("job").unwrap(),
        step: Step(step),
        epoch: EPOCH,
        level: Level::Global,
        world_size: 1,
        nodes: vec!["n0".into()],
        placement_generation: 1,
        servers: vec!["/pfs".into()],
        containers: vec![ContainerRef {
            file: container(step),
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
}

// Breaks if: `prune` removes containers before records, or does not sync the directory between
// them.
#[test]
fn no_record_ever_names_a_container_that_was_deleted() {
    let steps = [1, 2, 3, 4];
    let commit =
        |step| orcheck_format::disk::FileName::commit(step, EPOCH, Level::Global).to_string();
    let log = record(
        |path| {
            for step in steps {
                std::fs::write(path.join(commit(Step(step))), record_of(step).encode()).unwrap();
                std::fs::write(path.join(container(step)), b"container").unwrap();
            }
        },
        |dir, _| {
            let rule = KeepRule {
                keep: 2,
                epoch: EPOCH,
                resumed: None,
                committed: steps.into_iter().map(Step).collect(),
            };
            let dirs = std::slice::from_ref(dir);
            let mut referred = Referred::default();
            let gone = prune(dirs, Level::Global, &rule, &mut referred).unwrap();
            assert_eq!(gone, 4);
        },
    );
    let images = each_image(&log, |_, image| {
        for step in steps {
            let there = |name: String| image.file(&format!("d/{name}")).is_some();
            assert!(
                there(container(step)) || !there(commit(Step(step))),
                "step {step} has a record and no container"
            );
            assert!(
                step < 3 || there(commit(Step(step))),
                "step {step} was to be kept"
            );
        }
    });
    assert!(images > 4, "{images} images");
}

// Breaks if: `child` does not sync the directory in which it made another one.
#[test]
fn a_directory_that_was_made_stays() {
    let log = record(
        |_| (),
        |dir, told| {
            dir.child("job", true).unwrap();
            told.store(1, Ordering::SeqCst);
            dir.child("after", true).unwrap();
        },
    );
    each_image(&log, |told, image| {
        assert!(told == 0 || image.dir("d/job").is_some(), "made, and gone");
    });
}
