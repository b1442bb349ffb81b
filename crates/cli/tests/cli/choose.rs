//! Tests `rm`, `keep` and `prune`.

use orcheck_format::Step;
use std::path::PathBuf;

use crate::answer;
use orcheck_fixtures::reading::{Scratch, Spec, claim, epoch, write};

struct Job {
    scratch: Scratch,
    root: String,
}

impl Job {
    fn new(steps: &[u64]) -> Job {
        let scratch = Scratch::new();
        let root = scratch.dir("pfs").display().to_string();
        let job = Job { scratch, root };
        claim(&job.dir(), epoch(1), None);
        for &step in steps {
            write(&[job.dir()], &Spec::new(step, 1));
        }
        job
    }

    fn dir(&self) -> PathBuf {
        self.scratch.dir("pfs/cavity")
    }

    fn ask(&self, arguments: &[&str]) -> crate::Answer {
        answer(&[arguments, &["--dir", &self.root]].concat())
    }

    /// The steps that are listed, newest first.
    fn steps(&self) -> Vec<u64> {
        let listed = self.ask(&["ls", "--json"]).json();
        let rows = listed["checkpoints"].as_array().unwrap();
        rows.iter()
            .map(|row| row["step"].as_u64().unwrap())
            .collect()
    }

    /// All files, sorted.
    fn files(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.dir()).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = names.collect();
        names.sort();
        names
    }
}

// Breaks if: a dry run removes, or the other one leaves a file of the step behind.
#[test]
fn a_step_is_removed_whole_and_a_dry_run_removes_nothing() {
    let job = Job::new(&[10, 20, 30]);
    let before = job.files();
    let dry = job.ask(&["rm", "20", "--dry-run"]);
    assert_eq!(dry.code, 0, "{}", dry.stderr);
    assert!(
        dry.stdout
            .starts_with("job cavity: would remove 1 checkpoint, "),
        "{}",
        dry.stdout
    );
    assert_eq!(job.files(), before);
    let removed = job.ask(&["--json", "rm", "20"]).json();
    assert_eq!(removed["removed"][0]["step"], 20);
    assert_eq!(removed["removed"][0]["files"], 3);
    assert_eq!(removed["removed"][0]["levels"][0], "global");
    assert_eq!(job.steps(), [30, 10]);
    assert!(
        job.files()
            .iter()
            .all(|name| !name.contains("s000000000020"))
    );
    let again = job.ask(&["rm", "20"]);
    assert_eq!(again.code, 10, "{}", again.stderr);
    assert!(
        again.stderr.contains("there are: 30, 10"),
        "{}",
        again.stderr
    );
    assert_eq!(job.ask(&["rm"]).code, 2);
    assert_eq!(job.ask(&["rm", &job.root]).code, 2);
}

// Breaks if: a step of several is removed before it is known that the others can be.
#[test]
fn nothing_is_removed_when_one_of_the_steps_cannot_be() {
    let job = Job::new(&[10, 20]);
    assert_eq!(job.ask(&["rm", "20", "40"]).code, 10);
    assert_eq!(job.steps(), [20, 10]);
    std::fs::write(job.scratch.path().join("file"), b"").unwrap();
    let server = "orcheck://127.0.0.1:1?key=env:ORCHECK_TEST_KEY";
    let mut command = crate::orcheck(&["rm", "20", "--dir", &job.root, "--dir", server]);
    command.env("ORCHECK_TEST_KEY", "ab".repeat(32));
    let refused = crate::Answer::of(command.output().unwrap());
    assert_eq!(refused.code, 15, "{}", refused.stderr);
    assert!(
        refused.stderr.contains("nothing was removed"),
        "{}",
        refused.stderr
    );
    assert_eq!(job.steps(), [20, 10]);
}

// Breaks if: a mark is not looked at, or counts as one of the newest.
#[test]
fn a_step_that_is_kept_outlives_rm_and_prune() {
    let job = Job::new(&[10, 20, 30, 40]);
    let kept = job.ask(&["keep", "10", "40", "--why", "for the paper"]);
    assert_eq!(kept.code, 0, "{}", kept.stderr);
    assert!(
        job.ask(&["keep", "10"])
            .stdout
            .contains("is marked already")
    );
    let refused = job.ask(&["rm", "10"]);
    assert_eq!(refused.code, 2, "{}", refused.stderr);
    assert!(
        refused.stderr.contains("marked to be kept"),
        "{}",
        refused.stderr
    );
    let listed = job.ask(&["ls"]).stdout;
    assert!(
        listed.contains("steps 40, 10: kept, as `orcheck keep` asked: for the paper"),
        "{listed}"
    );
    let dry = job
        .ask(&["prune", "--keep", "1", "--dry-run", "--json"])
        .json();
    assert_eq!(dry["removed"][0]["step"], 20);
    assert_eq!(job.steps(), [40, 30, 20, 10]);
    assert_eq!(job.ask(&["prune", "--keep", "1"]).code, 0);
    assert_eq!(job.steps(), [40, 30, 10]);
    assert_eq!(job.ask(&["keep", "--undo", "10", "40"]).code, 0);
    assert_eq!(job.ask(&["prune", "--keep", "1", &job.root]).code, 0);
    assert_eq!(job.steps(), [40]);
    assert_eq!(job.ask(&["prune", "--keep", "0"]).code, 2);
}

// Breaks if: a step counts although its containers are gone; the last whole one would be pruned.
#[test]
fn what_is_not_whole_takes_no_place_among_those_that_stay() {
    let job = Job::new(&[10, 20]);
    let broken = write(&[job.dir()], &Spec::new(30, 1));
    std::fs::remove_file(&broken.paths[0]).unwrap();
    assert_eq!(job.ask(&["prune", "--keep", "1"]).code, 0);
    assert_eq!(job.steps(), [30, 20]);
    assert_eq!(job.ask(&["prune", "--keep", "5"]).code, 0);
    assert_eq!(job.steps(), [30, 20]);
}

// Breaks if: a step goes that a newer one refers to, or the newer one is not named.
#[test]
fn a_step_that_another_one_refers_to_is_refused_with_its_name() {
    let job = Job::new(&[10]);
    let mut newer = write(&[job.dir()], &Spec::new(20, 1)).record;
    for container in &mut newer.containers {
        container.refers_to = vec![Step(10)];
    }
    let name = Spec::new(20, 1).commit_name();
    std::fs::write(job.dir().join(name), newer.encode()).unwrap();
    let before = job.files();
    for dry_run in [&["--dry-run"][..], &[]] {
        let refused = job.ask(&[&["rm", "10"], dry_run].concat());
        assert_eq!(refused.code, 2, "{}", refused.stderr);
        let words =
            "step 10 holds data that step 20 refers to. Next: remove step 20 too, or leave step 10";
        assert!(refused.stderr.contains(words), "{}", refused.stderr);
    }
    assert_eq!(job.files(), before);
    // Both together may go, and pruning keeps what is needed.
    assert_eq!(job.ask(&["prune", "--keep", "1"]).code, 0);
    assert_eq!(job.steps(), [20, 10]);
    assert_eq!(job.ask(&["rm", "10", "20"]).code, 0);
    assert!(job.steps().is_empty());
}

/// Steps 5 and 10, and step 20 whose commit record is damaged.
fn with_a_damaged_record() -> Job {
    let job = Job::new(&[5, 10, 20]);
    let record = Spec::new(20, 1).commit_name();
    orcheck_fixtures::reading::flip(&job.dir().join(record), 70, 1);
    job
}

// Breaks if: the advice leads nowhere: `rm` does not know a step whose record it cannot read.
#[test]
fn a_step_with_a_damaged_record_is_removed_as_the_refusal_advises() {
    let job = with_a_damaged_record();
    let refused = job.ask(&["rm", "10"]);
    assert_eq!(refused.code, 5, "{}", refused.stderr);
    for words in [
        "may refer to step 10",
        "remove it first with `orcheck rm 20`",
    ] {
        assert!(refused.stderr.contains(words), "{}", refused.stderr);
    }
    let both = job.ask(&["rm", "10", "20", "--dry-run"]);
    assert_eq!(both.code, 0, "{}", both.stderr);
    let removed = job.ask(&["rm", "20", "--json"]);
    assert_eq!(removed.code, 0, "{}", removed.stderr);
    assert_eq!(removed.json()["removed"][0]["files"], 3);
    assert_eq!(removed.json()["removed"][0]["epoch"], "1-11111111");
    assert_eq!(job.ask(&["rm", "10"]).code, 0);
    assert_eq!(job.steps(), [5]);
    assert!((job.files().iter()).all(|name| !name.contains("s000000000020")));
}

// Breaks if: a directory that was away while the newest steps were written loses its last record;
// a start with it alone would begin from nothing.
#[test]
fn prune_leaves_a_record_in_a_directory_that_missed_the_newest_steps() {
    let job = Job::new(&[30]);
    let missed = job.scratch.dir("missed/cavity");
    write(&[job.dir(), missed.clone()], &Spec::new(10, 1));
    claim(&missed, epoch(1), None);
    let pruned = job.ask(&[
        "prune",
        "--keep",
        "1",
        "--dir",
        missed.parent().unwrap().to_str().unwrap(),
    ]);
    assert_eq!(pruned.code, 0, "{}", pruned.stderr);
    let names = |dir: &PathBuf| -> Vec<String> {
        let entries = std::fs::read_dir(dir).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name.ends_with(".commit")).collect()
    };
    assert_eq!(names(&missed), names(&job.dir()));
    assert!(names(&missed)[0].contains("s000000000030"));
}

// Breaks if: what stays is a matter of text; a script would take a full disk for a pruned one.
#[test]
fn prune_ends_with_3_when_a_step_that_would_go_has_to_stay() {
    let job = with_a_damaged_record();
    for dry_run in [&["--dry-run"][..], &[]] {
        let pruned = job.ask(&[&["prune", "--keep", "1"], dry_run].concat());
        assert_eq!(pruned.code, 3, "{}{}", pruned.stdout, pruned.stderr);
        for words in ["step 5 stays: ", "may refer to step 5", "`orcheck rm 20`"] {
            assert!(pruned.stdout.contains(words), "{}", pruned.stdout);
        }
        assert_eq!(pruned.stdout.matches("Next: ").count(), 1);
    }
    let document = job.ask(&["prune", "--keep", "1", "--json"]).json();
    assert_eq!(document["stay"][0]["step"], 5);
    assert_eq!(job.ask(&["rm", "20"]).code, 0);
    assert_eq!(job.ask(&["prune", "--keep", "1"]).code, 0);
    assert_eq!(job.steps(), [10]);
}

// Breaks if: nobody says what to do about it; the step stays for ever.
#[test]
fn of_two_runs_that_wrote_a_step_under_one_counter_prune_removes_one_after_the_other() {
    let job = Job::new(&[1, 2]);
    let mut other = Spec::new(1, 1);
    other.epoch.run = orcheck_format::RunId([9; 16]);
    write(&[job.dir()], &other);
    let first = job.ask(&["prune", "--keep", "1"]);
    assert_eq!(first.code, 3, "{}", first.stdout);
    for words in [
        "step 1 stays: epoch 1-",
        "Next: run the same command again\n",
    ] {
        assert!(first.stdout.contains(words), "{}", first.stdout);
    }
    let second = job.ask(&["prune", "--keep", "1"]);
    assert_eq!(second.code, 0, "{}", second.stdout);
    assert_eq!(job.steps(), [2]);
    // Where the other one stays, its files are named.
    let job = Job::new(&[1]);
    write(&[job.dir()], &other);
    let kept = job.ask(&["prune", "--keep", "1"]);
    assert_eq!(kept.code, 3, "{}", kept.stdout);
    let next = kept.stdout.split("begin with ").nth(1).unwrap().trim_end();
    assert!(
        job.files().iter().any(|name| name.starts_with(next)),
        "{}",
        kept.stdout
    );
}

// Breaks if: nothing is reported of them, and nobody knows what fills the disk; or if they go, and
// a run was writing them.
#[test]
fn prune_lists_containers_without_a_record_and_leaves_them_alone() {
    let job = Job::new(&[10, 20, 30]);
    std::fs::remove_file(job.dir().join(Spec::new(30, 1).commit_name())).unwrap();
    claim(&job.dir(), epoch(1), None);
    let before = job.files();
    for dry_run in [&["--dry-run"][..], &[]] {
        let told = job.ask(&[&["prune", "--keep", "2"], dry_run].concat());
        assert_eq!(told.code, 0, "{}", told.stderr);
        let said = "left alone: 2 containers without a commit record, ";
        assert!(told.stdout.contains(said), "{}", told.stdout);
        assert!(told.stdout.contains("s000000000030-"), "{}", told.stdout);
    }
    let document = job.ask(&["prune", "--keep", "2", "--json"]).json();
    assert_eq!(document["uncommitted"].as_array().unwrap().len(), 2);
    assert!(document["uncommitted"][0]["size_bytes"].as_u64() > Some(0));
    assert_eq!(job.files(), before);
}

// Breaks if: only a container's own record counts; a user would remove what checkpoints that are
// whole, or meant to stay, need.
#[test]
fn what_another_checkpoint_or_a_mark_needs_is_not_called_left_over() {
    let without_record = |job: &Job, step: u64| {
        std::fs::remove_file(job.dir().join(Spec::new(step, 1).commit_name())).unwrap();
    };
    let told = |job: &Job| {
        let told = job.ask(&["prune", "--keep", "3", "--json"]).json();
        told["uncommitted"].as_array().unwrap().len()
    };
    // Step 20 refers to step 10.
    let job = Job::new(&[10]);
    let mut newer = write(&[job.dir()], &Spec::new(20, 1)).record;
    for container in &mut newer.containers {
        container.refers_to = vec![Step(10)];
    }
    let record = job.dir().join(Spec::new(20, 1).commit_name());
    std::fs::write(&record, newer.encode()).unwrap();
    without_record(&job, 10);
    assert_eq!(told(&job), 0);
    // Perhaps it does: its record is damaged.
    write(&[job.dir()], &Spec::new(5, 1));
    orcheck_fixtures::reading::flip(&record, 70, 1);
    assert_eq!(told(&job), 0);
    without_record(&job, 20);
    assert_eq!(told(&job), 4);

    let job = Job::new(&[10, 20]);
    assert_eq!(job.ask(&["keep", "10"]).code, 0);
    without_record(&job, 10);
    assert_eq!(told(&job), 0);
}
