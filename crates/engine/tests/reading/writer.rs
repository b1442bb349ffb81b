//! Tests that a rank's description of its snapshot is checked before it goes into a manifest.

use orcheck_engine::commit::make_visible;
use orcheck_engine::directory::TargetFailure;
use orcheck_engine::encoding::{Body, EncodePiece, Trust};
use orcheck_engine::flush::{Announced, ContainerWriter, Ledger, Target};
use orcheck_fixtures::reading::{Scratch, Spec, claim, epoch, job, open_places, write};
use orcheck_format::disk::{
    ContainerHeader, Encoding, Extent, Features, FileName, RankRecord, RegionKind, RegionRecord,
    decode_rank_record, encode_rank_record,
};
use orcheck_format::{Detail, Dtype, ErrorKind, Level, NodeId, Rank, Step, TargetId, WriterId};
use orcheck_io::disk::Dir;
use orcheck_io::failpoints::Verdict;
use orcheck_pool::{Pool, PoolShape};
use orcheck_staging::open_dir;
use orcheck_testing::FaultPlan;
use std::sync::Arc;

fn record(physical: u64, len_bytes: u64, container: Option<&str>) -> Vec<u8> {
    record_of(4096, physical, len_bytes, container)
}

fn record_of(
    stream_len_bytes: u64,
    physical: u64,
    len_bytes: u64,
    container: Option<&str>,
) -> Vec<u8> {
    let extent = Extent {
        container: container.map(str::to_owned),
        store: 0,
        physical,
        stored_len_bytes: len_bytes,
        len_bytes,
        encoding: 0,
        crc_stored: 0,
        crc_plain: 0,
    };
    encode_rank_record(&RankRecord {
        rank: Rank(0),
        stream_len_bytes,
        regions: vec![RegionRecord {
            name: "state".into(),
            kind: RegionKind::Bytes,
            dtype: Dtype::Bytes,
            flags: 0,
            len_bytes,
            local: vec![],
            global: vec![],
            offset: vec![],
            boxes: Vec::new(),
            same_as: None,
            extents: vec![extent],
        }],
    })
}

/// The name of the container of an older step.
fn older(step: u64) -> String {
    FileName::Container {
        step: Step(step),
        epoch: 1,
        run: epoch(1).run.short_bytes(),
        node: NodeId(0),
        writer: WriterId(0),
    }
    .to_string()
}

/// A container of this step in which rank 0 has announced 4096 bytes.
fn writer(dir: &Arc<dyn Dir>, step: u64, features: Features, may_shrink: bool) -> ContainerWriter {
    let header = ContainerHeader {
        features,
        job: job(),
        step: Step(step),
        epoch: epoch(1),
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
        stripes: Vec::new(),
        direct: false,
        ranks: 1,
        coming: None,
        settled: Arc::new(|| {}),
    };
    let mut writer = ContainerWriter::create(header, "n0", &target, None)
        .ok()
        .unwrap();
    let announced = Announced {
        stream_len_bytes: 4096,
        cut_bytes: 4096,
        may_shrink,
    };
    writer.begin_rank(Rank(0), announced).unwrap();
    writer
}

// Breaks if: `end_rank` takes the extents of a rank as they are: a manifest would name bytes of
// another rank, or a place in an older container that the writer never looked up.
#[test]
fn an_extent_outside_the_stream_is_refused() {
    let scratch = Scratch::new();
    let dir = open_places(&[scratch.dir("a")]).remove(0);
    let shape = PoolShape {
        chunk_bytes: 4096,
        chunk_count: 1,
        words: 0,
        rings: 0,
        ring_entries: 0,
    };
    let pool = Pool::create(shape).unwrap();
    let chunk = pool.try_take(0).unwrap();
    let older = older(0);
    let outside = Some("outside the stream");
    let cases = [
        (0, 4096, None, None),
        (1, 4096, None, outside),
        (4096, 1, None, outside),
        (u64::MAX, 2, None, outside),
        (0, 4096, Some(older.as_str()), Some("named none")),
    ];
    for (step, (physical, len_bytes, container, wrong)) in (1..).zip(cases) {
        let mut writer = writer(&dir, step, Features::default(), false);
        writer.append(&pool, 0, 4096).unwrap();
        let record = record(physical, len_bytes, container);
        let found = writer.end_rank(record, &[], &mut Ledger::default());
        match (found, wrong) {
            (Ok(()), None) => {}
            (Err(error), Some(wrong)) => {
                assert_eq!(error.kind(), ErrorKind::Corrupt);
                assert!(error.message().contains(wrong), "{error}");
            }
            (found, _) => panic!("{len_bytes} bytes at {physical}: {found:?}"),
        }
        writer.abort();
    }
    pool.give(chunk);
}

// Breaks if: `end_rank` looks a reference up in any container that the writer remembers: the commit
// record would not name it, and prune would take it away.
#[test]
fn a_reference_to_a_checkpoint_that_the_rank_did_not_name_is_refused() {
    let scratch = Scratch::new();
    let dir = open_places(&[scratch.dir("a")]).remove(0);
    let stored = Extent {
        container: None,
        store: 0,
        physical: 8192,
        stored_len_bytes: 4096,
        len_bytes: 4096,
        encoding: 0,
        crc_stored: 0,
        crc_plain: 0,
    };
    for (named, refused) in [([Step(1)], false), ([Step(0)], true)] {
        let mut ledger = Ledger::default();
        for step in [0, 1] {
            ledger.enter(
                (Level::Global, Rank(0), Step(step)),
                &[Step(0)],
                [(0, stored.clone())],
            );
        }
        let mut writer = writer(&dir, 2, Features::references(), true);
        let record = record_of(0, 0, 4096, Some(&older(1)));
        let found = writer.end_rank(record, &named, &mut ledger);
        assert_eq!(found.is_err(), refused, "{found:?}");
        writer.abort();
    }
}

// Breaks if: `make_visible` looks for newer runs only after it wrote the record: what a superseded
// run leaves then lies about for readers to leave out.
#[test]
fn a_superseded_run_leaves_no_commit_record_behind() {
    let scratch = Scratch::new();
    let dirs = [scratch.dir("a")];
    let spec = Spec::new(40, 7);
    let record = write(&dirs, &spec).record;
    let name = FileName::commit(record.step, record.epoch, record.level).to_string();
    std::fs::remove_file(dirs[0].join(&name)).unwrap();
    claim(&dirs[0], epoch(8), None);
    let TargetFailure { error, .. } =
        make_visible(&open_places(&dirs), &record, &Trust::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Fenced);
    assert!(!dirs[0].join(&name).exists(), "{name} was written");
}

fn pool() -> Pool {
    let shape = PoolShape {
        chunk_bytes: 4096,
        chunk_count: 1,
        words: 0,
        rings: 0,
        ring_entries: 0,
    };
    Pool::create(shape).unwrap()
}

fn created(dir: &Arc<dyn Dir>, incompat: u64) -> ContainerWriter {
    created_for(dir, incompat, 1)
}

fn created_for(dir: &Arc<dyn Dir>, incompat: u64, ranks: u64) -> ContainerWriter {
    let header = ContainerHeader {
        features: Features {
            incompat,
            ..Features::default()
        },
        job: job(),
        step: Step(2),
        epoch: epoch(1),
        level: Level::Global,
        node: NodeId(0),
        writer: WriterId(0),
        world_size: 2,
        alignment_bytes: 4096,
        created_unix_ms: 0,
        encryption: None,
    };
    let target = Target {
        dir: dir.clone(),
        server: TargetId(0),
        stripes: Vec::new(),
        direct: false,
        ranks,
        coming: None,
        settled: Arc::new(|| {}),
    };
    ContainerWriter::create(header, "n0", &target, None)
        .ok()
        .unwrap()
}

/// A container into which `rank` has sent a stream of one block.
fn begun(dir: &Arc<dyn Dir>, pool: &Pool, rank: Rank) -> ContainerWriter {
    let mut writer = created(dir, 0);
    let announced = Announced {
        stream_len_bytes: 4096,
        cut_bytes: 4096,
        may_shrink: false,
    };
    writer.begin_rank(rank, announced).unwrap();
    writer.append(pool, 0, 4096).unwrap();
    writer
}

// Breaks if: `append` does not look at what was announced, or `end_rank` does not compare the
// record with the stream.
#[test]
fn a_record_of_another_stream_is_refused() {
    let scratch = Scratch::new();
    let dir = open_places(&[scratch.dir("a")]).remove(0);
    let pool = pool();
    let chunk = pool.try_take(0).unwrap();
    let refused = |rank, more: bool, record: Vec<u8>| {
        let mut writer = begun(&dir, &pool, rank);
        let result = if more {
            writer.append(&pool, 0, 4096)
        } else {
            writer.end_rank(record, &[], &mut Ledger::default())
        };
        writer.abort();
        result.is_err_and(|error| error.kind() == ErrorKind::Corrupt)
    };
    let good = record(0, 4096, None);
    assert!(!refused(Rank(0), false, good.clone()));
    assert!(
        refused(Rank(0), true, good.clone()),
        "more than it announced"
    );
    assert!(refused(Rank(1), false, good.clone()), "of another rank");
    let longer = record_of(8192, 0, 4096, None);
    assert!(refused(Rank(0), false, longer), "of a longer stream");
    let with_more = [&good[..], b"more"].concat();
    assert!(
        refused(Rank(0), false, with_more),
        "with something behind it"
    );
    pool.give(chunk);
}

// Breaks if: `rewrite` leaves an extent that is no piece as the rank wrote it: a place in a stream
// that is stored otherwise.
#[test]
fn an_extent_that_was_never_sent_as_a_piece_is_refused() {
    let scratch = Scratch::new();
    let dir = open_places(&[scratch.dir("a")]).remove(0);
    let pool = pool();
    let chunk = pool.try_take(0).unwrap();
    for (len_bytes, refused) in [(4096, false), (4095, true)] {
        let mut writer = created(&dir, Features::ENCODED);
        let announced = Announced {
            stream_len_bytes: 4096,
            cut_bytes: 4096,
            may_shrink: false,
        };
        writer.begin_rank(Rank(0), announced).unwrap();
        let piece = EncodePiece {
            segment_at_bytes: 0,
            len_bytes,
            region_at_bytes: 0,
            crc_plain: 0,
            element_log2: 0,
            region: [0; 16],
            checked: false,
        };
        let bytes = vec![0; len_bytes as usize];
        let body = Body::Packed(&bytes, Encoding::default());
        assert!(writer.append_piece(&pool, 0, &piece, &body).unwrap());
        writer.end_segment(4096).unwrap();
        let record = record(0, 4096, None);
        let found = writer.end_rank(record, &[], &mut Ledger::default());
        assert_eq!(found.is_err(), refused, "{found:?}");
        writer.abort();
    }
    pool.give(chunk);
}

// Breaks if: space is reserved rank by rank: containers that grow side by side would lie between
// each other on the disk; or if what may follow has to be there.
#[test]
fn space_is_reserved_for_all_ranks_at_once_where_there_is_room() {
    let pool = pool();
    let chunk = pool.try_take(0).unwrap();
    let scratch = Scratch::new();
    let path = scratch.dir("a");
    let mut lens = Vec::new();
    for (full, asked) in [(false, 1), (true, 5)] {
        let plan = FaultPlan::record();
        let plan = match full {
            // Never room for two.
            true => (1..3).fold(plan, |plan, n| {
                plan.at_site("file.allocate", 2 * n - 1, Verdict::Fail(28))
            }),
            false => plan,
        };
        let (plan, failpoints) = plan.failpoints();
        let dir = open_dir(&path, failpoints).unwrap();
        let mut writer = created_for(&dir, 0, 3);
        for rank in 0..3 {
            let announced = Announced {
                stream_len_bytes: 4096,
                cut_bytes: 4096,
                may_shrink: false,
            };
            writer.begin_rank(Rank(rank), announced).unwrap();
            writer.append(&pool, 0, 4096).unwrap();
            let (mut one, _) = decode_rank_record(&record(0, 4096, None)).unwrap();
            one.rank = Rank(rank);
            let framed = encode_rank_record(&one);
            writer
                .end_rank(framed, &[], &mut Ledger::default())
                .unwrap();
        }
        let container = writer.finish().ok().unwrap();
        let seen = plan.seen();
        let allocated = seen.iter().filter(|step| step.site == "file.allocate");
        assert_eq!(allocated.count(), asked, "full: {full}");
        let len = std::fs::metadata(path.join(&container.file)).unwrap().len();
        assert_eq!(len, container.len_bytes);
        lens.push(len);
        std::fs::remove_file(path.join(&container.file)).unwrap();
    }
    assert_eq!(lens[0], lens[1]);
    pool.give(chunk);
}

// Breaks if: `abort` leaves the file: the space would be gone until a later run looks.
#[test]
fn a_container_that_is_given_up_is_removed() {
    let scratch = Scratch::new();
    let dir = open_places(&[scratch.dir("a")]).remove(0);
    let pool = pool();
    let chunk = pool.try_take(0).unwrap();
    let writer = begun(&dir, &pool, Rank(0));
    assert_eq!(dir.list().unwrap().len(), 1);
    writer.abort();
    assert_eq!(dir.list().unwrap().len(), 0);
    pool.give(chunk);
}

// Breaks if: `make_visible` is content with one copy: with that directory the step would be gone.
#[test]
fn a_commit_record_goes_into_every_directory() {
    let scratch = Scratch::new();
    let dirs = [scratch.dir("a"), scratch.dir("b"), scratch.dir("c")];
    let spec = Spec::new(40, 7);
    let record = write(&dirs, &spec).record;
    let paths = dirs.each_ref().map(|dir| dir.join(spec.commit_name()));
    for path in &paths {
        std::fs::remove_file(path).unwrap();
    }
    make_visible(&open_places(&dirs), &record, &Trust::default()).unwrap();
    assert!(paths.iter().all(|path| path.exists()));
}

// Breaks if: every error of a commit leaves it open whether the step may be found, or none does.
#[test]
fn a_commit_that_fails_says_whether_the_step_may_be_found() {
    for (site, nth, may_be_found) in [
        ("file.write", 1, false),
        ("dir.rename", 1, false),
        ("dir.sync", 1, true),
        ("file.write", 2, true),
    ] {
        let scratch = Scratch::new();
        let dirs = [scratch.dir("a"), scratch.dir("b")];
        let spec = Spec::new(40, 7);
        let record = write(&dirs, &spec).record;
        for dir in &dirs {
            std::fs::remove_file(dir.join(spec.commit_name())).unwrap();
        }
        let (_, failpoints) = FaultPlan::new()
            .at_site(site, nth, Verdict::Fail(28))
            .failpoints();
        let places = dirs
            .each_ref()
            .map(|dir| open_dir(dir, failpoints.clone()).unwrap());
        let TargetFailure { error, .. } =
            make_visible(&places, &record, &Trust::default()).unwrap_err();
        let said = error.is(Detail::Undecided);
        assert_eq!(said, may_be_found, "{site} {nth}: {error}");
        let found = dirs.iter().any(|dir| dir.join(spec.commit_name()).exists());
        assert_eq!(found, may_be_found, "{site} {nth}");
    }
}

// Breaks if: `make_visible` does not read the record as readers will: the step would be
// acknowledged and never found.
#[test]
fn a_record_that_readers_would_refuse_is_not_written() {
    let scratch = Scratch::new();
    let dirs = [scratch.dir("a")];
    let spec = Spec::new(40, 7);
    let mut record = write(&dirs, &spec).record;
    std::fs::remove_file(dirs[0].join(spec.commit_name())).unwrap();
    record.world_size += 1;
    let TargetFailure { error, .. } =
        make_visible(&open_places(&dirs), &record, &Trust::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(!dirs[0].join(spec.commit_name()).exists());
}
