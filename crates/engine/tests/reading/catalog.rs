//! Tests which commits count, which do not, and what is reported about the rest.

use std::sync::Arc;

use orcheck_engine::directory::Catalog;
use orcheck_engine::encoding::{Accept, Trust};
use orcheck_format::disk::{FileName, Resumed};
use orcheck_format::{Epoch, ErrorKind, JobName, Level, RunId};
use orcheck_io::user::Secret;

use orcheck_fixtures::reading::{Scratch, Spec, claim, epoch, flip, job, open_places, write};

fn steps(catalog: &Catalog) -> Vec<(u64, u64)> {
    catalog
        .commits()
        .iter()
        .map(|commit| (commit.record.step.0, commit.record.epoch.counter))
        .collect()
}

fn scan(scratch: &Scratch, dirs: &[&str]) -> orcheck_format::Result<Catalog> {
    Catalog::scan(
        &job(),
        &open_places(&dirs.iter().map(|dir| scratch.dir(dir)).collect::<Vec<_>>()),
    )
}

#[test]
fn newest_first_and_copies_merged() {
    let scratch = Scratch::new();
    let dirs = [scratch.dir("a"), scratch.dir("b")];
    for (step, counter) in [(9, 1), (12, 2), (10, 1), (11, 2)] {
        write(&dirs, &Spec::new(step, counter));
    }
    let mut node = Spec::new(12, 2);
    node.level = Level::Node;
    write(&dirs[..1], &node);
    let catalog = scan(&scratch, &["a", "b"]).unwrap();
    assert_eq!(
        steps(&catalog),
        [(12, 2), (12, 2), (11, 2), (10, 1), (9, 1)]
    );
    let copies: Vec<&[usize]> = catalog
        .commits()
        .iter()
        .map(|commit| &commit.copies[..])
        .collect();
    assert_eq!(copies, [&[0, 1][..], &[0], &[0, 1], &[0, 1], &[0, 1]]);
    assert_eq!(catalog.commits()[0].record.level, Level::Global);
    assert_eq!(catalog.commits()[1].record.level, Level::Node);
    assert!(catalog.notes().is_empty(), "{:?}", catalog.notes());
    assert!(catalog.files().iter().all(|(_, _, name)| name.is_some()));
}

#[test]
fn an_empty_directory_is_an_empty_catalog() {
    let scratch = Scratch::new();
    let catalog = scan(&scratch, &["a"]).unwrap();
    assert!(
        catalog.commits().is_empty() && catalog.notes().is_empty() && catalog.claims().is_empty()
    );
    assert_eq!(
        Catalog::scan(&job(), &[]).err().unwrap().kind(),
        ErrorKind::Invalid
    );
}

#[test]
fn the_resume_rule() {
    // Breaks if: `fenced_by` compares with `>=` or ignores a fresh start; a zombie's step would
    // come back.
    let scratch = Scratch::new();
    let dirs = [scratch.dir("a")];
    for step in [10, 20, 30] {
        write(&dirs, &Spec::new(step, 1));
    }
    // Epoch 2 has claimed but not said from where: nothing is restricted.
    claim(&dirs[0], epoch(1), Some(None));
    claim(&dirs[0], epoch(2), None);
    assert_eq!(
        steps(&scan(&scratch, &["a"]).unwrap()),
        [(30, 1), (20, 1), (10, 1)]
    );
    // Its own commits say from where, even if nothing else does.
    for step in [25, 26] {
        write(&dirs, &Spec::new(step, 2));
    }
    assert_eq!(
        steps(&scan(&scratch, &["a"]).unwrap()),
        [(26, 2), (25, 2), (20, 1), (10, 1)]
    );
    // Epoch 2 resumed from step 20: step 30 of epoch 1 is a zombie's.
    claim(&dirs[0], epoch(2), Some(Some(20)));
    let catalog = scan(&scratch, &["a"]).unwrap();
    assert_eq!(steps(&catalog), [(26, 2), (25, 2), (20, 1), (10, 1)]);
    assert_eq!(catalog.fenced().len(), 1);
    assert!(
        catalog
            .notes()
            .iter()
            .any(|note| note.contains("step 30") && note.contains("resumed from step 20")),
        "{:?}",
        catalog.notes()
    );
    // Epoch 3 fell back to step 10.
    claim(&dirs[0], epoch(3), Some(Some(10)));
    assert_eq!(steps(&scan(&scratch, &["a"]).unwrap()), [(10, 1)]);
    // Epoch 4 started from nothing.
    claim(&dirs[0], epoch(4), Some(None));
    let catalog = scan(&scratch, &["a"]).unwrap();
    assert!(catalog.commits().is_empty());
    assert_eq!(catalog.fenced().len(), 5);
    assert_eq!(catalog.claims().len(), 4);
    assert_eq!(catalog.claims()[3].1.as_ref().unwrap().step, None);
}

#[test]
fn a_resumed_record_fences_even_where_its_claim_is_lost() {
    let scratch = Scratch::new();
    let dirs = [scratch.dir("a"), scratch.dir("b")];
    write(&dirs, &Spec::new(10, 1));
    claim(&dirs[1], epoch(2), Some(Some(5)));
    std::fs::remove_file(dirs[1].join(FileName::Claim { epoch: 2 }.to_string())).unwrap();
    assert!(scan(&scratch, &["a", "b"]).unwrap().commits().is_empty());
    // Where copies differ, the one that fences more counts.
    claim(&dirs[0], epoch(2), Some(Some(10)));
    for places in [["a", "b"], ["b", "a"]] {
        assert!(scan(&scratch, &places).unwrap().commits().is_empty());
    }
}

#[test]
fn two_runs_at_one_counter_are_refused_and_named() {
    let scratch = Scratch::new();
    let dirs = [scratch.dir("a"), scratch.dir("b")];
    write(&dirs, &Spec::new(10, 1));
    let other = Epoch {
        counter: 2,
        run: RunId([0xab; 16]),
    };
    claim(&dirs[0], epoch(2), None);
    claim(&dirs[1], other, None);
    // Two starts that got no further than their claims harm nobody.
    assert_eq!(scan(&scratch, &["a", "b"]).unwrap().commits().len(), 1);
    write(&dirs, &Spec::new(11, 2));
    let mut spec = Spec::new(12, 2);
    spec.epoch = other;
    write(&dirs, &spec);
    let error = scan(&scratch, &["a", "b"]).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Fenced);
    for part in [
        epoch(2).to_string(),
        other.to_string(),
        "host-a".into(),
        "4711".into(),
        "Next:".into(),
    ] {
        assert!(error.message().contains(&part), "{part} is not in: {error}");
    }
    // A later run that began from nothing has seen and superseded both.
    claim(&dirs[0], epoch(3), Some(None));
    let catalog = scan(&scratch, &["a", "b"]).unwrap();
    assert!(catalog.commits().is_empty());
    std::fs::remove_file(dirs[0].join(FileName::Resumed { epoch: 3 }.to_string())).unwrap();
    assert!(scan(&scratch, &["a", "b"]).is_err());
    std::fs::remove_file(dirs[0].join(FileName::Claim { epoch: 3 }.to_string())).unwrap();
    // The same claim in both places is one claim.
    claim(&dirs[1], epoch(2), None);
    assert_eq!(scan(&scratch, &["a", "b"]).unwrap().claims().len(), 1);
}

#[test]
fn a_commit_of_another_run_at_a_claimed_counter_does_not_count() {
    let scratch = Scratch::new();
    let dirs = [scratch.dir("a")];
    let mut spec = Spec::new(10, 2);
    spec.epoch = Epoch {
        counter: 2,
        run: RunId([0xab; 16]),
    };
    write(&dirs, &spec);
    claim(&dirs[0], epoch(2), None);
    let catalog = scan(&scratch, &["a"]).unwrap();
    assert!(catalog.commits().is_empty());
    assert_eq!(catalog.fenced().len(), 1);
}

#[test]
fn a_damaged_commit_record_is_noted_and_its_copy_counts() {
    let scratch = Scratch::new();
    let dirs = [scratch.dir("a"), scratch.dir("b")];
    let spec = Spec::new(10, 1);
    let written = write(&dirs, &spec);
    let len = written.record.encode().len();
    // Breaks if: the record's CRC is not compared.
    for at in (0..len).step_by(7) {
        let path = dirs[0].join(spec.commit_name());
        flip(&path, at, 4);
        let catalog = scan(&scratch, &["a", "b"]).unwrap();
        assert_eq!(catalog.commits().len(), 1, "byte {at}");
        assert_eq!(catalog.commits()[0].copies, [1], "byte {at}");
        let note = &catalog.notes()[0];
        assert!(
            note.contains(&spec.commit_name())
                && note.contains("expected")
                && note.contains("found"),
            "{note}"
        );
        assert_eq!(catalog.problems().len(), 1);
        flip(&path, at, 4);
    }
    for dir in &dirs {
        flip(&dir.join(spec.commit_name()), 60, 4);
    }
    let catalog = scan(&scratch, &["a", "b"]).unwrap();
    assert!(catalog.commits().is_empty());
    assert_eq!(catalog.notes().len(), 2);
}

#[test]
fn torn_claims_restrict_nothing_and_torn_resumed_records_are_told() {
    let scratch = Scratch::new();
    let dirs = [scratch.dir("a")];
    write(&dirs, &Spec::new(10, 1));
    claim(&dirs[0], epoch(2), Some(Some(5)));
    let resumed = dirs[0].join(FileName::Resumed { epoch: 2 }.to_string());
    let claimed = dirs[0].join(FileName::Claim { epoch: 2 }.to_string());
    flip(&resumed, 50, 1);
    flip(&claimed, 50, 1);
    let catalog = scan(&scratch, &["a"]).unwrap();
    assert_eq!(steps(&catalog), [(10, 1)]);
    assert!(catalog.claims().is_empty());
    assert_eq!(catalog.notes().len(), 2);
    assert_eq!(catalog.problems().len(), 1);
    assert_eq!(catalog.problems()[0].kind(), ErrorKind::Corrupt);
    // A run that died while it claimed leaves an empty file.
    std::fs::write(&claimed, b"").unwrap();
    assert_eq!(scan(&scratch, &["a"]).unwrap().problems().len(), 1);
}

#[test]
fn renamed_foreign_and_stranger_files_are_left_alone_and_told() {
    let scratch = Scratch::new();
    let dirs = [scratch.dir("a")];
    let spec = Spec::new(10, 1);
    write(&dirs, &spec);
    let record = std::fs::read(dirs[0].join(spec.commit_name())).unwrap();
    std::fs::write(dirs[0].join(Spec::new(11, 1).commit_name()), &record).unwrap();
    std::fs::write(dirs[0].join("zz-notes.txt"), b"mine").unwrap();
    std::fs::write(dirs[0].join("README"), b"mine").unwrap();
    std::fs::write(dirs[0].join(format!("{}.tmp", spec.commit_name())), b"half").unwrap();
    std::fs::create_dir(dirs[0].join("sub")).unwrap();
    let catalog = scan(&scratch, &["a"]).unwrap();
    assert_eq!(steps(&catalog), [(10, 1)]);
    let notes = catalog.notes().join("\n");
    assert!(
        notes.contains("the file name and the record disagree"),
        "{notes}"
    );
    assert!(
        notes.contains("2 files") && notes.contains("first: README"),
        "{notes}"
    );
    assert_eq!(catalog.notes().len(), 2, "{notes}");
    // Records of another job are not ours either.
    let other = Catalog::scan(&JobName::new("other").unwrap(), &open_places(&dirs)).unwrap();
    assert!(other.commits().is_empty());
    assert!(
        other
            .notes()
            .iter()
            .any(|note| note.contains("belongs to another job")),
        "{:?}",
        other.notes()
    );
}

#[test]
fn an_unreadable_place_is_a_note_unless_it_is_the_only_one() {
    let scratch = Scratch::new();
    let dirs = [scratch.dir("a"), scratch.dir("b")];
    write(&dirs, &Spec::new(10, 1));
    let mut places = open_places(&dirs);
    let failing = std::sync::Arc::new(FailList);
    let steps_failing =
        orcheck_staging::open_dir(&dirs[1], orcheck_io::failpoints::Failpoints::with(failing))
            .unwrap();
    places[1] = steps_failing;
    let catalog = Catalog::scan(&job(), &places).unwrap();
    assert_eq!(catalog.commits()[0].copies, [0]);
    assert!(
        catalog.notes()[0].contains("/b cannot be listed"),
        "{:?}",
        catalog.notes()
    );
    assert_eq!(
        Catalog::scan(&job(), &places[1..]).err().unwrap().kind(),
        ErrorKind::Unavailable
    );
}

/// A disk that does not list its directories.
struct FailList;

impl orcheck_io::failpoints::FailpointHook for FailList {
    fn at(&self, step: &orcheck_io::failpoints::Failpoint<'_>) -> orcheck_io::failpoints::Verdict {
        const EIO: i32 = 5;
        if step.site == "dir.list" {
            orcheck_io::failpoints::Verdict::Fail(EIO)
        } else {
            orcheck_io::failpoints::Verdict::Go
        }
    }
}

// Breaks if: each damaged file is a note of its own; a directory full of them would fill the memory
// and the screen.
#[test]
fn thousands_of_damaged_records_are_a_few_warnings_and_cost_nothing_else() {
    const DAMAGED: u64 = 50_000;
    let scratch = Scratch::new();
    let dir = scratch.dir("a");
    claim(&dir, epoch(1), None);
    let spec = Spec::new(DAMAGED + 1, 1);
    write(std::slice::from_ref(&dir), &spec);
    for step in 1..=DAMAGED {
        let name = Spec::new(step, 1).commit_name();
        std::fs::write(dir.join(name), b"no record").unwrap();
    }
    let catalog = scan(&scratch, &["a"]).unwrap();
    assert_eq!(catalog.commits().len(), 1, "what is whole counts");
    let notes = catalog.notes();
    assert!(notes.len() < 12, "{} notes: {:?}", notes.len(), notes[0]);
    let more = format!("skipped {} more such files (commit records)", DAMAGED - 8);
    assert!(notes[0].contains(&more), "{}", notes[0]);
    // The newest are told by name.
    let newest = Spec::new(DAMAGED, 1).commit_name();
    assert!(notes.iter().any(|note| note.contains(&newest)), "{notes:?}");
    assert_eq!(catalog.problems().len(), notes.len());
}

// Breaks if: each is a note of its own, as for other files that cannot be read.
#[test]
fn thousands_of_notes_of_resumption_that_do_not_count_are_a_few_warnings() {
    const FORGED: u64 = 20_000;
    let scratch = Scratch::new();
    let dir = scratch.dir("a");
    for counter in 1..=FORGED {
        let resumed = Resumed {
            job: job(),
            epoch: Epoch {
                counter,
                run: RunId([7; 16]),
            },
            step: None,
            from: None,
        };
        let name = FileName::Resumed { epoch: counter }.to_string();
        std::fs::write(dir.join(name), resumed.encode()).unwrap();
    }
    let keys = [Arc::new(Secret::new([7; 32]))];
    let trust = Trust::new(&keys, true, Accept::default()).unwrap();
    let places = open_places(std::slice::from_ref(&dir));
    let catalog = Catalog::scan_trusting(&job(), &places, &trust).unwrap();
    let notes = catalog.notes();
    assert!(notes.len() < 12, "{} notes: {:?}", notes.len(), notes[0]);
    let more = format!(
        "skipped {} more such files (notes of resumption)",
        FORGED - 8
    );
    assert!(notes[0].contains(&more), "{}", notes[0]);
    let newest = format!("the note of resumption of epoch {FORGED} does not count");
    assert!(
        notes.iter().any(|note| note.starts_with(&newest)),
        "{notes:?}"
    );
    assert!(catalog.problems().is_empty(), "no fault of a disk");
}
