//! Tests what commands say of two runs that began on other nodes, and did not see each other.

use orcheck_fixtures::reading::{Scratch, Spec, claim, epoch, write};
use orcheck_format::{Epoch, Level, RunId};

use crate::answer;

/// Two runs, each on a node of its own, under one epoch.
fn two_runs() -> (Scratch, String) {
    let scratch = Scratch::new();
    let other = Epoch {
        counter: 1,
        run: RunId([0xab; 16]),
    };
    for (node, step, epoch) in [("node0", 10, epoch(1)), ("x0", 12, other)] {
        let dir = scratch.dir(&format!("local/cavity/{node}"));
        let mut spec = Spec::new(step, 1);
        (spec.level, spec.epoch) = (Level::Node, epoch);
        write(std::slice::from_ref(&dir), &spec);
        claim(&dir, epoch, Some(None));
    }
    let root = scratch.dir("local").display().to_string();
    (scratch, root)
}

// Breaks if: the listing refuses as a restart does: nobody would see what there is to choose from.
#[test]
fn ls_lists_both_runs_and_says_how_to_choose() {
    let (scratch, root) = two_runs();
    let listed = answer(&["ls", "--json", "--node-dir", &root]);
    assert_eq!(listed.code, 7, "{}", listed.stderr);
    let document = listed.json();
    let rows = document["checkpoints"].as_array().unwrap();
    let steps: Vec<_> = rows.iter().map(|row| row["step"].as_u64()).collect();
    assert_eq!(steps, [Some(12), Some(10)]);
    for row in rows {
        assert_eq!(row["state"], "undecided", "{row}");
        let why = row["why"].as_str().unwrap();
        for part in ["host-a", "local/cavity/node0", "local/cavity/x0", "`mv "] {
            assert!(why.contains(part), "'{part}' in {why}");
        }
    }
    assert!(document["newest_restartable_step"].is_null());
    let text = answer(&["ls", "--node-dir", &root]);
    assert!(text.stdout.contains("undecided"), "{}", text.stdout);
    // A command that would choose does not.
    for command in [&["verify"][..], &["show"], &["prune", "--keep", "1"]] {
        let refused = answer(&[command, &["--node-dir", &root]].concat());
        assert_eq!(refused.code, 7, "{command:?}: {}", refused.stderr);
        assert!(refused.stderr.contains("two runs"), "{}", refused.stderr);
    }
    // One is moved away, as the message says.
    let of_job = scratch.path().join("local/cavity");
    std::fs::rename(of_job.join("x0"), scratch.path().join("x0")).unwrap();
    let listed = answer(&["ls", "--json", "--node-dir", &root]).json();
    assert_eq!(listed["newest_restartable_step"], 10);
}
