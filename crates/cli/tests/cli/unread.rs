//! Tests what commands do when the commit record of the newest step is damaged: no older step
//! passes for the newest.

use std::path::{Path, PathBuf};

use orcheck_format::disk::FileName;

use crate::answer;
use crate::scavenge::{collected, words};
use orcheck_fixtures::reading::{claim, epoch, flip};

/// The commit records of a step in a node's directory.
fn records(dir: &Path, step: u64) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).unwrap().flatten();
    let is_record = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap();
        matches!(FileName::parse(name), Some(FileName::Commit { step: of, .. }) if of.0 == step)
    };
    entries
        .map(|entry| entry.path())
        .filter(is_record)
        .collect()
}

// Breaks if: a step whose record is there and damaged counts as never committed, and an older one
// is taken as the newest.
#[test]
fn a_newer_step_whose_record_is_damaged_is_named() {
    let (scratch, _) = collected(&[5, 10]);
    let (local, pfs) = (scratch.dir("local"), scratch.dir("pfs"));
    let damaged = |node: &str| {
        let found = records(&local.join("cavity").join(node), 10);
        flip(&found[0], 60, 1);
        found[0].display().to_string()
    };
    let paths = ["node0", "node1"].map(damaged);
    let (local, pfs) = (local.display().to_string(), pfs.display().to_string());
    let common = ["scavenge", "--node-dir", &local, "--global", &pfs];
    let scavenge = |more: &[&str]| answer(&[&common[..], more].concat());
    let named = [
        "no commit record of step 10 can be read",
        &paths[0],
        &paths[1],
    ];
    for more in [&["--strict", "--dry-run"][..], &["--strict"]] {
        let refused = scavenge(more);
        words(&refused, 5, &named);
        words(&refused, 5, &["nothing was taken"]);
        assert_eq!(std::fs::read_dir(&pfs).unwrap().count(), 0);
    }
    let would = scavenge(&["--dry-run"]);
    words(&would, 3, &named);
    words(&would, 3, &["would take step 5"]);
    let taken = scavenge(&["--json"]);
    words(&taken, 3, &named);
    assert!(
        !taken.stderr.contains("never committed"),
        "{}",
        taken.stderr
    );
    assert_eq!(taken.json()["left"][0]["step"], 10);
    words(&scavenge(&[]), 3, &["nothing to take: step 5"]);
    // A copy of the record that can be read suffices.
    let (scratch, _) = collected(&[5, 10]);
    let (local, pfs) = (scratch.dir("local"), scratch.dir("pfs"));
    flip(&records(&local.join("cavity/node0"), 10)[0], 60, 1);
    let (local, pfs) = (local.display().to_string(), pfs.display().to_string());
    let taken = answer(&["scavenge", "--node-dir", &local, "--global", &pfs]);
    words(&taken, 0, &["took step 10"]);
    // A later run that resumed from an older step has superseded it.
    let (scratch, _) = collected(&[5, 10]);
    let (local, pfs) = (scratch.dir("local"), scratch.dir("pfs"));
    for node in ["node0", "node1"] {
        let node = local.join("cavity").join(node);
        flip(&records(&node, 10)[0], 60, 1);
        claim(&node, epoch(2), Some(Some(5)));
    }
    let (local, pfs) = (local.display().to_string(), pfs.display().to_string());
    let taken = answer(&["scavenge", "--node-dir", &local, "--global", &pfs]);
    words(&taken, 0, &["took step 5"]);
}

// Breaks if: an older step is copied, as the newest, because the record of the newest is damaged.
#[test]
fn a_newer_step_whose_record_is_damaged_is_not_replaced_in_silence() {
    let (scratch, _) = collected(&[5, 10]);
    let (local, pfs) = (scratch.dir("local"), scratch.dir("pfs"));
    for node in ["node0", "node1"] {
        flip(&records(&local.join("cavity").join(node), 10)[0], 60, 1);
    }
    let (local, to) = (local.display().to_string(), pfs.display().to_string());
    let common = [
        "copy",
        "--to",
        "global",
        "--node-dir",
        &local,
        "--global",
        &to,
    ];
    let copy = |more: &[&str]| answer(&[&common[..], more].concat());
    for more in [&["--dry-run"][..], &[]] {
        let refused = copy(more);
        words(
            &refused,
            6,
            &[
                "no commit record of step 10 can be read",
                "Next: copy step 5, which is good, with --step 5",
            ],
        );
        assert_eq!(std::fs::read_dir(&pfs).unwrap().count(), 0);
    }
    words(&copy(&["--step", "5"]), 0, &["copied step 5"]);
}

// Breaks if: an older step is verified, restored or shown as the newest.
#[test]
fn a_newer_step_whose_record_is_damaged_is_named_by_whoever_reads() {
    let (scratch, _) = collected(&[5, 10]);
    let local = scratch.dir("local");
    for node in ["node0", "node1"] {
        flip(&records(&local.join("cavity").join(node), 10)[0], 60, 1);
    }
    let (local, out) = (
        local.display().to_string(),
        scratch.dir("out").join("all").display().to_string(),
    );
    let from = ["--node-dir", local.as_str()];
    let why = "no commit record of step 10 can be read";
    let verified = answer(&[&["verify"][..], &from].concat());
    words(&verified, 6, &["step 10 is newer: ", why, "good"]);
    let verified = answer(&[&["verify", "--json"][..], &from].concat());
    assert_eq!(verified.json()["newer_unread_step"], 10);
    let restore = ["restore", "--all", "--out", &out];
    let refused = answer(&[&restore[..], &from].concat());
    words(
        &refused,
        6,
        &[why, "Next: restore step 5 at level node, which is good"],
    );
    assert!(!Path::new(&out).exists());
    let shown = answer(&[&["show"][..], &from].concat());
    words(&shown, 0, &["step 10 is newer: ", why]);
    // Asked for by its number, the older one is what it is.
    words(
        &answer(&[&["verify", "5"][..], &from].concat()),
        3,
        &["good"],
    );
    let restore = ["restore", "5", "--all", "--out", &out];
    words(&answer(&[&restore[..], &from].concat()), 0, &[]);
}
