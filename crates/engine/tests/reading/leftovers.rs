//! Tests which files of earlier runs a run removes before it writes its first container.

use orcheck_engine::directory::choose::{decide, decision};
use orcheck_engine::directory::prune::KeepRule;
use orcheck_engine::directory::prune::leftovers::Leftovers;
use orcheck_engine::encoding::Trust;
use orcheck_fixtures::reading::{Scratch, Spec, claim, epoch, job, open_places, write};
use orcheck_format::disk::{Claim, CommitRecord, FileName};
use orcheck_format::{Decision, Level, Step};
use orcheck_io::clock::SystemClock;
use orcheck_io::failpoints::Failpoints;
use orcheck_staging::open_dir;
use std::collections::BTreeSet;
use std::path::PathBuf;

/// Two directories in which run 1 committed `steps`, and left a container of each of `orphans`.
fn left(scratch: &Scratch, steps: &[u64], orphans: &[u64]) -> Vec<PathBuf> {
    let paths = vec![scratch.dir("a"), scratch.dir("b")];
    for path in &paths {
        claim(path, epoch(1), Some(None));
    }
    for &step in steps.iter().chain(orphans) {
        write(&paths, &Spec::new(step, 1));
    }
    for (path, &step) in paths
        .iter()
        .flat_map(|path| orphans.iter().map(move |step| (path, step)))
    {
        std::fs::remove_file(path.join(Spec::new(step, 1).commit_name())).unwrap();
    }
    paths
}

/// Run 2 begins: it keeps 2, and resumed from this step of run 1.
fn begin(paths: &[PathBuf], resumed: Option<u64>, complete: bool) {
    for path in paths {
        claim(path, epoch(2), Some(resumed));
    }
    let rule = KeepRule {
        keep: 2,
        epoch: epoch(2),
        resumed: resumed.map(|step| (Step(step), 1)),
        committed: BTreeSet::new(),
    };
    let leftovers = Leftovers {
        job: &job(),
        trust: &Trust::default(),
        dirs: &open_places(paths),
        level: Level::Global,
        complete,
        rule: &rule,
    };
    leftovers.remove().unwrap();
}

/// Steps that have a record, and steps that have a container.
fn there(paths: &[PathBuf]) -> (Vec<u64>, Vec<u64>) {
    let (mut records, mut containers) = (BTreeSet::new(), BTreeSet::new());
    for entry in paths
        .iter()
        .flat_map(|path| std::fs::read_dir(path).unwrap())
    {
        let name = entry.unwrap().file_name().into_string().unwrap();
        match FileName::parse(&name) {
            Some(FileName::Commit { step, .. }) => records.insert(step.0),
            Some(FileName::Container { step, .. }) => containers.insert(step.0),
            _ => continue,
        };
    }
    let list = |steps: BTreeSet<u64>| steps.into_iter().collect();
    (list(records), list(containers))
}

// Breaks if: a record in one directory is enough for what stays. A run that was killed while it
// committed step 30 leaves such; a crash before the next commit would then leave no step that is
// recorded in all directories.
#[test]
fn where_what_stays_is_not_recorded_in_every_directory_no_record_goes() {
    let scratch = Scratch::new();
    let paths = left(&scratch, &[10, 20, 30], &[]);
    std::fs::remove_file(paths[1].join(Spec::new(30, 1).commit_name())).unwrap();
    begin(&paths, Some(30), true);
    assert_eq!(there(&paths).0, [10, 20, 30]);
}

// Breaks if: what the run restarts from counts as left over, or a newer one counts as one of those
// to keep.
#[test]
fn what_is_restarted_from_stays_with_the_ones_before_it() {
    for (resumed, records, containers) in [
        (Some(30), vec![20, 30], vec![20, 30]),
        (Some(20), vec![10, 20], vec![10, 20]),
        // Fewer than are to be kept: no record goes.
        (Some(10), vec![10, 20, 30], vec![10, 20, 30]),
        (None, vec![10, 20, 30], vec![10, 20, 30]),
    ] {
        let scratch = Scratch::new();
        let paths = left(&scratch, &[10, 20, 30], &[40, 50]);
        begin(&paths, resumed, true);
        assert_eq!(there(&paths), (records, containers), "from {resumed:?}");
    }
}

// Breaks if: only what is older counts as needed; the run could not restart from the step again.
#[test]
fn what_the_step_refers_to_and_what_is_kept_by_hand_is_not_left_over() {
    let scratch = Scratch::new();
    let paths = left(&scratch, &[5, 10, 15, 20, 30], &[]);
    for path in &paths {
        let path = path.join(Spec::new(30, 1).commit_name());
        let mut record = CommitRecord::decode(&std::fs::read(&path).unwrap()).unwrap();
        record.containers[0].refers_to = vec![Step(10)];
        std::fs::write(&path, record.encode()).unwrap();
    }
    let kept = decision(
        &job(),
        (Step(5), epoch(1)),
        Decision::Kept,
        "",
        &SystemClock,
    );
    decide(&open_places(&paths), &kept).unwrap();
    begin(&paths, Some(30), true);
    let stay = vec![5, 10, 20, 30];
    assert_eq!(there(&paths), (stay.clone(), stay));
}

// Breaks if: a record that is missing here is taken for one that is nowhere; another node may hold
// it.
#[test]
fn a_container_that_others_may_have_a_record_of_is_not_left_over() {
    for complete in [false, true] {
        let scratch = Scratch::new();
        let paths = left(&scratch, &[10, 30], &[20, 40]);
        begin(&paths, Some(30), complete);
        let containers = match complete {
            true => vec![10, 30],
            false => vec![10, 20, 30],
        };
        assert_eq!(there(&paths).1, containers, "complete: {complete}");
    }
}

// Breaks if: a checkpoint that cannot be read counts as none, and those before it go.
#[test]
fn beside_a_damaged_record_no_record_goes() {
    let scratch = Scratch::new();
    let paths = left(&scratch, &[10, 20, 30], &[40]);
    for path in &paths {
        let path = path.join(Spec::new(20, 1).commit_name());
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[50] ^= 1;
        std::fs::write(&path, bytes).unwrap();
    }
    begin(&paths, Some(30), true);
    assert_eq!(there(&paths), (vec![10, 20, 30], vec![10, 20, 30]));
}

// Breaks if: the lock is not asked; a run that was taken over would lose what it is writing.
#[test]
fn nothing_of_a_run_that_still_lives_is_left_over() {
    let scratch = Scratch::new();
    let paths = left(&scratch, &[10, 20, 30], &[40]);
    let dir = open_dir(&paths[1], Failpoints::none()).unwrap();
    let held = dir.open(&FileName::Claim { epoch: 1 }.to_string()).unwrap();
    assert!(held.try_lock().unwrap());
    begin(&paths, Some(30), true);
    assert_eq!(there(&paths), (vec![10, 20, 30], vec![10, 20, 30, 40]));
    drop(held);
    begin(&paths, Some(30), true);
    assert_eq!(there(&paths), (vec![20, 30], vec![20, 30]));
    let claim = std::fs::read(paths[0].join(FileName::Claim { epoch: 2 }.to_string())).unwrap();
    assert!(Claim::decode(&claim).is_ok());
}
