//! Tests the repair of a checkpoint that lies in two directories, as replicas do: what is damaged
//! or missing in one is rebuilt from the other, and nothing is ever worse than before.

use orcheck_engine::directory::prune::{KeepRule, Referred, prune};
use orcheck_engine::upkeep::{Repair, repair, verify_commit};
use orcheck_fixtures::reading::{Scratch, Spec, Written, flip, open_places, write};
use orcheck_format::disk::CommitRecord;
use orcheck_format::{Epoch, ErrorKind, RunId, Step};
use orcheck_io::disk::Dir;
use orcheck_io::failpoints::{Failpoint, FailpointHook, Failpoints, Verdict};
use orcheck_staging::open_dir;
use orcheck_testing::FaultPlan;
use orcheck_testing::misread::{How, misreading};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A checkpoint whose containers are all in both directories; the first one of `a` is damaged.
struct Damaged {
    _scratch: Scratch,
    dirs: [PathBuf; 2],
    written: Written,
    name: String,
    good: Vec<u8>,
    bad: Vec<u8>,
}

fn damaged() -> Damaged {
    let scratch = Scratch::new();
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
    let name = written.record.containers[0].file.clone();
    let good = std::fs::read(dirs[0].join(&name)).unwrap();
    flip(&dirs[0].join(&name), at, 3);
    let bad = std::fs::read(dirs[0].join(&name)).unwrap();
    Damaged {
        _scratch: scratch,
        dirs,
        written,
        name,
        good,
        bad,
    }
}

impl Damaged {
    fn repair(&self, places: &[Arc<dyn Dir>]) -> Repair {
        repair(places, &self.written.record).unwrap()
    }

    fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.dirs[0]).unwrap();
        let mut names: Vec<String> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    fn is_whole(&self) {
        let verdict = verify_commit(
            &open_places(&self.dirs),
            &self.written.record,
            &mut |_, _| {},
        );
        assert!(verdict.unwrap().is_good());
        assert!(std::fs::read(self.dirs[0].join(&self.name)).unwrap() == self.good);
    }
}

fn dir(path: &Path, failpoints: Failpoints) -> Arc<dyn Dir> {
    open_dir(path, failpoints).unwrap()
}

// Breaks if: a good copy is not used, or something is left beside it.
#[test]
fn repair_takes_a_good_copy() {
    let damaged = damaged();
    let before = damaged.names();
    let done = damaged.repair(&open_places(&damaged.dirs));
    assert_eq!((done.done.len(), done.left.len()), (1, 0), "{done:?}");
    assert!(done.done[0].path.ends_with(&damaged.name));
    damaged.is_whole();
    assert_eq!(damaged.names(), before);
    // Nothing to do.
    let again = damaged.repair(&open_places(&damaged.dirs));
    assert!(again.done.is_empty() && again.left.is_empty(), "{again:?}");
}

// Breaks if: a file without a good copy is replaced by something.
#[test]
fn repair_leaves_what_it_cannot_repair() {
    let damaged = damaged();
    flip(&damaged.dirs[1].join(&damaged.name), 9000, 1);
    let other = std::fs::read(damaged.dirs[1].join(&damaged.name)).unwrap();
    let done = damaged.repair(&open_places(&damaged.dirs));
    assert!(done.done.is_empty());
    assert_eq!(done.left.len(), 2, "{done:?}");
    assert!(
        done.left
            .iter()
            .all(|error| error.kind() == ErrorKind::Corrupt)
    );
    assert!(std::fs::read(damaged.dirs[0].join(&damaged.name)).unwrap() == damaged.bad);
    assert!(std::fs::read(damaged.dirs[1].join(&damaged.name)).unwrap() == other);
}

// Breaks if: a checkpoint that was pruned meanwhile gets files again.
#[test]
fn repair_of_a_removed_checkpoint_is_refused() {
    let damaged = damaged();
    let names = damaged.names().into_iter();
    let record = names.into_iter().find(|name| name.ends_with(".commit"));
    let record = record.unwrap();
    for dir in &damaged.dirs {
        std::fs::remove_file(dir.join(&record)).unwrap();
    }
    let error = repair(&open_places(&damaged.dirs), &damaged.written.record).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Fenced, "{error}");
    assert!(damaged.names().iter().all(|name| !name.ends_with(".tmp")));
}

// Breaks if: a directory that missed the commit keeps all others from being repaired.
#[test]
fn repair_continues_where_one_directory_lacks_the_record() {
    let damaged = damaged();
    let names = damaged.names().into_iter();
    for record in names.filter(|name| name.ends_with(".commit")) {
        std::fs::remove_file(damaged.dirs[0].join(record)).unwrap();
    }
    let done = damaged.repair(&open_places(&damaged.dirs));
    assert_eq!((done.done.len(), done.left.len()), (1, 0), "{done:?}");
    damaged.is_whole();
}

/// Lets nothing happen from one call on, as a kill does.
struct Killed {
    from: u64,
    last: AtomicU64,
}

impl FailpointHook for Killed {
    fn at(&self, step: &Failpoint<'_>) -> Verdict {
        self.last.store(step.number, Ordering::Relaxed);
        match step.number >= self.from {
            true => Verdict::Fail(5),
            false => Verdict::Go,
        }
    }
}

impl Damaged {
    /// Whether the file is there under its own name, as it was or as it is to be.
    fn has_its_file(&self, when: &str) {
        let found = std::fs::read(self.dirs[0].join(&self.name));
        let found = found.unwrap_or_else(|error| panic!("{when}: {error}: {:?}", self.names()));
        assert!(found == self.bad || found == self.good, "{when}");
    }

    /// Removes what a run after this one removes.
    fn prune(&self) {
        let record = &self.written.record;
        let epoch = Epoch {
            counter: record.epoch.counter + 1,
            run: RunId([9; 16]),
        };
        let rule = KeepRule {
            keep: 1,
            epoch,
            resumed: Some((record.step, record.epoch.counter)),
            committed: BTreeSet::from([Step(record.step.0 + 1)]),
        };
        let (dirs, referred) = (open_places(&self.dirs), &mut Referred::default());
        prune(&dirs, record.level, &rule, referred).unwrap();
        let left = self.names();
        assert!(left.iter().all(|name| !name.ends_with(".tmp")), "{left:?}");
    }
}

// Breaks if: the file is anywhere under another name only: the step would be lost with a kill,
// since what parity or another copy still has of it may not be all; or what is left keeps the next
// repair from succeeding.
#[test]
fn repair_may_fail_or_be_killed_at_any_call() {
    // Opening the directory is not part of it.
    let (opening, failpoints) = FaultPlan::record().failpoints();
    let scratch = Scratch::new();
    let _ = dir(scratch.path(), failpoints);
    let first = opening.seen().len() as u64 + 1;
    for kill in [false, true] {
        let mut step = first;
        loop {
            let damaged = damaged();
            let (plan, failing) = FaultPlan::new()
                .at_step(step, Verdict::Fail(5))
                .failpoints();
            let killed = Arc::new(Killed {
                from: step,
                last: AtomicU64::new(0),
            });
            let killing = Failpoints::with(Arc::clone(&killed) as Arc<dyn FailpointHook>);
            let places = [
                dir(&damaged.dirs[0], if kill { killing } else { failing }),
                dir(&damaged.dirs[1], Failpoints::none()),
            ];
            let result = repair(&places, &damaged.written.record);
            let last = plan.seen().len() as u64;
            if step > last.max(killed.last.load(Ordering::Relaxed)) {
                assert!(result.unwrap().left.is_empty());
                break;
            }
            damaged.has_its_file(&format!("step {step}, kill {kill}"));
            // Every second one is followed by a run.
            if step.is_multiple_of(2) {
                damaged.prune();
                damaged.has_its_file(&format!("step {step}, kill {kill}, pruned"));
            }
            damaged.repair(&open_places(&damaged.dirs));
            damaged.is_whole();
            let left = damaged.names();
            assert!(
                left.iter().all(|name| !name.ends_with(".tmp")),
                "step {step}: {left:?}"
            );
            step += 1;
        }
        assert!(step > first + 10, "only {step} steps");
    }
}

/// Lets another repair begin and end before a rename of the first one.
struct Meanwhile {
    dirs: [PathBuf; 2],
    record: CommitRecord,
    done: AtomicU64,
}

impl FailpointHook for Meanwhile {
    fn at(&self, step: &Failpoint<'_>) -> Verdict {
        if step.site == "dir.rename" && self.done.fetch_add(1, Ordering::Relaxed) == 0 {
            let other = repair(&open_places(&self.dirs), &self.record).unwrap();
            assert!(other.left.is_empty(), "{other:?}");
        }
        Verdict::Go
    }
}

// Breaks if: two repairs at the same time disturb each other, or the one that comes late reports a
// good file as not repaired.
#[test]
fn repair_at_the_same_time_as_another_one() {
    let damaged = damaged();
    let meanwhile = Arc::new(Meanwhile {
        dirs: damaged.dirs.clone(),
        record: damaged.written.record.clone(),
        done: AtomicU64::new(0),
    });
    let before = damaged.names();
    let failpoints = Failpoints::with(Arc::clone(&meanwhile) as Arc<dyn FailpointHook>);
    let places = [
        dir(&damaged.dirs[0], failpoints),
        dir(&damaged.dirs[1], Failpoints::none()),
    ];
    let done = damaged.repair(&places);
    assert!(meanwhile.done.load(Ordering::Relaxed) > 0, "no rename");
    assert_eq!((done.done.len(), done.left.len()), (1, 0), "{done:?}");
    assert_eq!(done.done[0].from, None, "{done:?}");
    damaged.is_whole();
    assert_eq!(damaged.names(), before);
}

// Breaks if: what is written is not verified before it takes the file's place: a source that is
// read wrong once would replace a file that parity could still repair.
#[test]
fn repair_survives_any_misread_of_its_source() {
    // A read of a whole file cannot be of another place.
    for how in [How::Moved(4096), How::Zeros] {
        let mut strike = 1;
        loop {
            let damaged = damaged();
            let source = dir(&damaged.dirs[1], Failpoints::none());
            let (source, reads) = misreading(source, how.clone(), strike);
            let places = [dir(&damaged.dirs[0], Failpoints::none()), source];
            let _ = damaged.repair(&places);
            damaged.has_its_file(&format!("read {strike} goes wrong"));
            if strike > reads() {
                break;
            }
            strike += 1;
        }
        assert!(strike > 5, "only {strike} reads");
    }
}
