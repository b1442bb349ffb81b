//! Tests what a reader returns, byte for byte, and what it reports when it cannot.

use std::sync::Mutex;

use orcheck_engine::restart::reader::{Reader, holder_of};
use orcheck_engine::upkeep::verify_commit;
use orcheck_format::disk::Features;
use orcheck_format::{ErrorKind, Level, Rank};
use orcheck_io::memory::Span;

use orcheck_fixtures::reading::{
    RegionSpec, Scratch, Spec, Written, flip, open_places, payload, write,
};

/// Reads every region of every rank in both ways and compares with what was stored.
fn check_all(scratch: &Scratch, dirs: &[&str], spec: &Spec, written: &Written) {
    let places = open_places(&dirs.iter().map(|dir| scratch.dir(dir)).collect::<Vec<_>>());
    for &rank in spec.nodes.iter().flatten() {
        let holder = holder_of(&written.record, Rank(rank)).unwrap();
        let reader = Reader::open(&places, &written.record, holder).unwrap();
        for region in &spec.regions {
            let record = reader.region(Rank(rank), &region.name).unwrap();
            let owner = record.same_as.unwrap_or(Rank(rank));
            let expected = payload(owner, spec.step, &region.name, region.len);
            let mut found = vec![0xee; region.len];
            reader
                .read_region(Rank(rank), record, Span::from_mut(&mut found))
                .unwrap();
            assert!(found == expected, "rank {rank} region {}", region.name);
            let mut streamed = Vec::new();
            reader
                .stream_region(Rank(rank), record, &mut |at, bytes| {
                    assert_eq!(at as usize, streamed.len());
                    streamed.extend_from_slice(bytes);
                    Ok(())
                })
                .unwrap();
            assert!(
                streamed == expected,
                "rank {rank} region {} streamed",
                region.name
            );
        }
        assert!(reader.region(Rank(rank), "absent").is_none());
    }
    let reached = Mutex::new((0, 0));
    let verdict = verify_commit(&places, &written.record, &mut |done, total| {
        *reached.lock().unwrap() = (done, total)
    })
    .unwrap();
    assert!(
        verdict.is_good(),
        "{:?}",
        verdict.findings().collect::<Vec<_>>()
    );
    let (done, total) = *reached.lock().unwrap();
    assert_eq!(done, total);
    assert!(
        total
            >= written
                .record
                .containers
                .iter()
                .map(|container| container.len_bytes)
                .sum()
    );
}

#[test]
fn every_region_comes_back() {
    let scratch = Scratch::new();
    let spec = Spec::new(40, 7);
    let written = write(&[scratch.dir("a"), scratch.dir("b")], &spec);
    check_all(&scratch, &["a", "b"], &spec, &written);
    // In any order of places.
    check_all(&scratch, &["b", "a"], &spec, &written);
}

#[test]
fn extents_longer_than_a_piece_shared_regions_and_wide_alignment() {
    let scratch = Scratch::new();
    let mut spec = Spec::new(41, 7);
    spec.alignment = 65536;
    spec.regions.push(RegionSpec {
        name: "big".into(),
        len: (9 << 20) + 5,
        cut: 9 << 20,
    });
    spec.regions.push(RegionSpec {
        name: "same".into(),
        len: 10_000,
        cut: 4096,
    });
    let written = write(&[scratch.dir("a"), scratch.dir("b")], &spec);
    check_all(&scratch, &["a", "b"], &spec, &written);
}

#[test]
fn striped_containers() {
    let scratch = Scratch::new();
    let mut spec = Spec::new(42, 7);
    spec.stripes = 3;
    spec.incompat = Features::STRIPED;
    spec.regions.push(RegionSpec {
        name: "wide".into(),
        len: 300_000,
        cut: 8192,
    });
    // Regions begin in the middle of a unit, so cut where no extent crosses one.
    for region in &mut spec.regions {
        region.len = region.len.next_multiple_of(8192);
    }
    let written = write(&[scratch.dir("a"), scratch.dir("b")], &spec);
    check_all(&scratch, &["a", "b"], &spec, &written);
    // A lost stripe is named.
    let gone = written.record.containers[0]
        .file
        .replace(".orc", ".stripe02");
    std::fs::remove_file(scratch.dir("b").join(&gone)).unwrap();
    let places = open_places(&[scratch.dir("a"), scratch.dir("b")]);
    let error = Reader::open(&places, &written.record, &written.record.containers[0])
        .err()
        .unwrap();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.message().contains(&gone), "{error}");
}

#[test]
fn a_rank_header_written_before_the_length_was_known() {
    let scratch = Scratch::new();
    let mut spec = Spec::new(43, 7);
    spec.unknown_len = true;
    let written = write(&[scratch.dir("a")], &spec);
    check_all(&scratch, &["a"], &spec, &written);
    // The scan finds the record behind such a stream.
    flip(&written.paths[0], written.structure(0, "manifest").start, 0);
    let places = open_places(&[scratch.dir("a")]);
    let reader = Reader::open(&places, &written.record, &written.record.containers[0]).unwrap();
    let notes = reader.take_notes();
    assert_eq!(notes.len(), 1, "{notes:?}");
}

#[test]
fn a_target_of_another_size_is_refused() {
    let scratch = Scratch::new();
    let spec = Spec::new(40, 7);
    let written = write(&[scratch.dir("a")], &spec);
    let places = open_places(&[scratch.dir("a")]);
    let reader = Reader::open(&places, &written.record, &written.record.containers[0]).unwrap();
    let region = reader.region(Rank(0), "u").unwrap();
    for len in [0, 23_999, 24_001] {
        let error = reader
            .read_region(Rank(0), region, Span::from_mut(&mut vec![0; len]))
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(
            error.message().contains("expected a target of 24000 bytes"),
            "{error}"
        );
    }
    // Breaks if: the sum of the extents is not compared; a forged record would reach beyond the
    // target.
    let mut forged = region.clone();
    forged.len_bytes = 100;
    let error = reader
        .read_region(Rank(0), &forged, Span::from_mut(&mut [0; 100]))
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
}

// Breaks if: the second reading of a long extent is not compared with what was proven by the first.
#[test]
fn a_file_that_changes_while_it_is_read_is_noticed() {
    let scratch = Scratch::new();
    let mut spec = Spec::new(41, 7);
    spec.regions.push(RegionSpec {
        name: "big".into(),
        len: (9 << 20) + 5,
        cut: 9 << 20,
    });
    let written = write(&[scratch.dir("a")], &spec);
    let places = open_places(&[scratch.dir("a")]);
    let reader = Reader::open(&places, &written.record, &written.record.containers[0]).unwrap();
    let region = reader.region(Rank(0), "big").unwrap();
    let second_piece = region.extents[0].physical as usize + (4 << 20);
    let mut handed_on = 0;
    let error = reader.stream_region(Rank(0), region, &mut |at, bytes| {
        if at == 0 {
            flip(&written.paths[0], second_piece + 10, 3);
        }
        handed_on += bytes.len();
        Ok(())
    });
    let error = error.unwrap_err();
    assert!(
        error.message().contains("changed while it was read"),
        "{error}"
    );
    assert_eq!(handed_on, 4 << 20);
}

#[test]
fn a_missing_container_names_where_it_was_looked_for() {
    let scratch = Scratch::new();
    let spec = Spec::new(40, 7);
    let written = write(&[scratch.dir("a"), scratch.dir("b")], &spec);
    std::fs::remove_file(&written.paths[1]).unwrap();
    let places = open_places(&[scratch.dir("a"), scratch.dir("b")]);
    let container = &written.record.containers[1];
    let error = Reader::open(&places, &written.record, container)
        .err()
        .unwrap();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    for part in [container.file.as_str(), "/a", "/b", "Next:"] {
        assert!(error.message().contains(part), "{part} is not in: {error}");
    }
    assert_eq!(
        holder_of(&written.record, Rank(4)).unwrap_err().kind(),
        ErrorKind::NotFound
    );
    let verdict = verify_commit(&places, &written.record, &mut |_, _| {}).unwrap();
    assert!(!verdict.is_restorable());
    assert_eq!(verdict.containers[1].path, None);
}

#[test]
fn a_good_copy_is_used_where_another_is_damaged() {
    let scratch = Scratch::new();
    let spec = Spec::new(40, 7);
    let written = write(&[scratch.dir("a"), scratch.dir("b")], &spec);
    let name = &written.record.containers[0].file;
    std::fs::copy(&written.paths[0], scratch.dir("b").join(name)).unwrap();
    flip(&written.paths[0], 3, 0);
    let places = open_places(&[scratch.dir("a"), scratch.dir("b")]);
    let reader = Reader::open(&places, &written.record, &written.record.containers[0]).unwrap();
    let notes = reader.take_notes();
    let used = notes.iter().any(|n| n.contains("another copy is used"));
    assert!(used, "{notes:?}");
}

#[test]
fn swapped_containers_are_refused() {
    // Breaks if: `check_header` is dropped; rank 0 would then get the bytes of another rank.
    let scratch = Scratch::new();
    let spec = Spec::new(40, 7);
    let written = write(&[scratch.dir("a")], &spec);
    let kept = std::fs::read(&written.paths[0]).unwrap();
    std::fs::rename(&written.paths[1], &written.paths[0]).unwrap();
    std::fs::write(&written.paths[1], kept).unwrap();
    let places = open_places(&[scratch.dir("a")]);
    for container in &written.record.containers {
        let error = Reader::open(&places, &written.record, container)
            .err()
            .unwrap();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(error.message().contains("node in the header"), "{error}");
    }
}

#[test]
fn a_container_of_the_same_shape_from_another_step_is_refused() {
    let scratch = Scratch::new();
    let older = write(&[scratch.dir("a")], &Spec::new(39, 7));
    let newer = write(&[scratch.dir("a")], &Spec::new(40, 7));
    std::fs::copy(&older.paths[0], &newer.paths[0]).unwrap();
    let places = open_places(&[scratch.dir("a")]);
    let error = Reader::open(&places, &newer.record, &newer.record.containers[0])
        .err()
        .unwrap();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.message().contains("says 40, found 39"), "{error}");
}

#[test]
fn an_unknown_feature_is_unsupported_not_corrupt() {
    let scratch = Scratch::new();
    let mut spec = Spec::new(40, 7);
    spec.incompat = 1 << 40;
    let written = write(&[scratch.dir("a")], &spec);
    let places = open_places(&[scratch.dir("a")]);
    let error = Reader::open(&places, &written.record, &written.record.containers[0])
        .err()
        .unwrap();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.message().contains("bit 40"), "{error}");
}

#[test]
fn containers_of_two_levels_have_one_name() {
    // Breaks if: the level in the header is not looked at; the other level's container would count
    // as damage.
    let scratch = Scratch::new();
    let global = Spec::new(40, 7);
    let mut node = Spec::new(40, 7);
    node.level = Level::Node;
    node.alignment = 8192;
    let dirs = [scratch.dir("a"), scratch.dir("n")];
    let (placed, local) = (write(&dirs[..1], &global), write(&dirs[1..], &node));
    for places in [
        open_places(&dirs),
        open_places(&[dirs[1].clone(), dirs[0].clone()]),
    ] {
        for written in [&placed, &local] {
            let verdict = verify_commit(&places, &written.record, &mut |_, _| {}).unwrap();
            assert!(
                verdict.is_good(),
                "{:?}",
                verdict.findings().collect::<Vec<_>>()
            );
        }
    }
    std::fs::remove_file(&local.paths[0]).unwrap();
    let places = open_places(&dirs);
    let error = Reader::open(&places, &local.record, &local.record.containers[0])
        .err()
        .unwrap();
    assert_eq!(error.kind(), ErrorKind::NotFound);
}
