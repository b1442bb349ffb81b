//! Tests a container in several directories, as replicas of level `peers` are: the reader uses
//! whichever copy is good.

use orcheck_engine::restart::reader::{Reader, holder_of};
use orcheck_engine::upkeep::verify_commit;
use orcheck_format::Rank;

use orcheck_fixtures::reading::{Scratch, Spec, Written, flip, open_places, payload, write};

/// A checkpoint whose containers are all in both directories, and where rank 1's bytes are in the
/// file.
fn twice(scratch: &Scratch) -> (Written, [std::path::PathBuf; 2], usize) {
    let dirs = [scratch.dir("a"), scratch.dir("b")];
    let written = write(&dirs, &Spec::new(40, 7));
    for path in &written.paths {
        let name = path.file_name().unwrap();
        for dir in &dirs {
            if dir.join(name) != *path {
                std::fs::copy(path, dir.join(name)).unwrap();
            }
        }
    }
    let at = written.structure(0, "stream 1").start + 9000;
    (written, dirs, at)
}

// Breaks if: the first copy is the only one whose data is read; or what another copy replaced is
// given twice.
#[test]
fn damaged_data_is_read_from_another_copy_once() {
    let scratch = Scratch::new();
    let (written, dirs, at) = twice(&scratch);
    let name = written.paths[0].file_name().unwrap();
    flip(&dirs[0].join(name), at, 3);
    let places = open_places(&dirs);
    let record = &written.record;
    let reader = Reader::open(&places, record, holder_of(record, Rank(1)).unwrap()).unwrap();
    let region = reader.region(Rank(1), "u").unwrap();
    let (mut got, mut said) = (Vec::new(), Vec::new());
    reader
        .stream_region_of_any_copy(
            Rank(1),
            region,
            &mut |damage| said.push(damage.to_string()),
            &mut |offset, bytes| {
                assert_eq!(offset, got.len() as u64, "in order, and once");
                got.extend_from_slice(bytes);
                Ok(())
            },
        )
        .unwrap();
    assert!(got == payload(Rank(1), 40, "u", got.len()));
    assert_eq!(said.len(), 1);
    assert!(said[0].contains("bytes 8192..16384"), "{said:?}");

    // Both damaged in one place: nothing of it is handed on.
    flip(&dirs[1].join(name), at, 5);
    let mut end = 0;
    let error =
        reader.stream_region_of_any_copy(Rank(1), region, &mut |_| (), &mut |offset, bytes| {
            end = offset + bytes.len() as u64;
            Ok(())
        });
    assert!(error.unwrap_err().to_string().contains("damaged data"));
    assert_eq!(end, 8192);
}

// Breaks if: only the first copy is read, or one bad copy counts as a loss although another one is
// good.
#[test]
fn every_copy_is_verified_and_one_good_one_is_enough() {
    for damaged in 0..2 {
        let scratch = Scratch::new();
        let (written, dirs, at) = twice(&scratch);
        let name = written.paths[0].file_name().unwrap();
        let places = open_places(&dirs);
        let verify = || verify_commit(&places, &written.record, &mut |_, _| {}).unwrap();
        let verdict = verify();
        assert!(verdict.is_good());
        assert!(verdict.containers.iter().all(|one| one.copies == 2));

        flip(&dirs[damaged].join(name), at, 3);
        let verdict = verify();
        assert!(!verdict.is_good() && verdict.is_restorable());
        let findings: Vec<_> = verdict.findings().collect();
        assert_eq!(findings.len(), 1, "{findings:?}");
        assert!(findings[0].message.contains("another copy is good"));
        let bad = dirs[damaged].join(name).display().to_string();
        assert!(findings[0].message.contains(&bad));
        assert_ne!(verdict.containers[0].path, Some(bad));

        // Another region of the other copy: each has what the other one lacks.
        let other = written.structure(0, "stream 0").start + 100;
        flip(&dirs[1 - damaged].join(name), other, 3);
        assert!(verify().is_restorable());
        // The same place in both.
        flip(&dirs[1 - damaged].join(name), at, 4);
        let verdict = verify();
        assert!(!verdict.is_restorable());
        let fatal = verdict.findings().filter(|finding| finding.fatal);
        assert!(
            fatal
                .into_iter()
                .all(|finding| finding.rank == Some(Rank(1)))
        );

        // One copy gone altogether: what is left is what counts.
        std::fs::remove_file(dirs[1 - damaged].join(name)).unwrap();
        assert_eq!(verify().containers[0].copies, 1);
    }
}
