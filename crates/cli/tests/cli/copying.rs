//! Tests `copy`: it brings what nodes still hold to the file system, and a job continues from it.

use std::path::Path;
use std::process::Stdio;
use std::time::Instant;

use orcheck_format::Level;

use crate::encrypted::{KEY, source};
use crate::inspect::Site;
use crate::program::Running;
use crate::server::Server;
use crate::{Answer, answer, orcheck};
use orcheck_fixtures::reading::{Scratch, Spec, Written, claim, epoch, write};

/// A job with two nodes that hold step 10, and in part step 20.
struct Held {
    scratch: Scratch,
    newest: Written,
}

impl Held {
    fn new(steps: &[u64]) -> Held {
        let scratch = Scratch::new();
        let nodes = ["n0", "n1"].map(|node| scratch.dir(&format!("local/cavity/{node}")));
        for node in &nodes {
            claim(node, epoch(1), None);
        }
        let mut newest = None;
        for &step in steps {
            let mut spec = Spec::new(step, 1);
            spec.level = Level::Node;
            newest = Some(write(&nodes, &spec));
        }
        Held {
            scratch,
            newest: newest.unwrap(),
        }
    }

    fn root(&self, name: &str) -> String {
        self.scratch.dir(name).display().to_string()
    }

    fn copy(&self, more: &[&str]) -> Answer {
        let (local, a, b) = (self.root("local"), self.root("a"), self.root("b"));
        let to = format!("{a},{b}");
        let common = [
            "copy",
            "--to",
            "global",
            "--node-dir",
            &local,
            "--global",
            &to,
        ];
        answer(&[&common, more].concat())
    }

    fn is_empty(&self) -> bool {
        !Path::new(&self.root("a")).join("cavity").exists()
    }
}

#[test]
fn what_nodes_hold_is_brought_to_the_file_system() {
    let held = Held::new(&[5, 10]);
    let dry = held.copy(&["--dry-run"]);
    assert_eq!(dry.code, 0, "{}", dry.stderr);
    let words = "would copy step 10 of job cavity (level node, epoch 1-11111111) to level global: ";
    assert!(dry.stdout.starts_with(words), "{}", dry.stdout);
    assert!(held.is_empty(), "a dry run changes nothing");
    let done = held.copy(&["--json"]);
    assert_eq!(done.code, 0, "{}", done.stderr);
    let document = done.json();
    assert_eq!(
        (&document["step"], &document["was_there"]),
        (&10.into(), &false.into())
    );
    assert_eq!(document["from_level"], "node");
    assert_eq!(document["containers"].as_array().unwrap().len(), 2);
    let both = ["--dir", &held.root("a"), "--dir", &held.root("b")];
    let verified = answer(&[&["verify", "--json"][..], &both].concat());
    assert_eq!(verified.code, 0, "{}", verified.stdout);
    assert_eq!(verified.json()["checkpoints"][0]["level"], "global");
    // Again: it is there. An older one too, by its step, and without the flag.
    let again = held.copy(&[]);
    assert!(
        again.stdout.contains("is at level global in "),
        "{}",
        again.stdout
    );
    assert!(
        again.stdout.ends_with(" already, and good\n"),
        "{}",
        again.stdout
    );
    for step in [
        &["--step", "5"][..],
        &["5"],
        &["5", "--step", "5", "--compress", "zstd"],
    ] {
        let older = held.copy(step);
        assert_eq!(older.code, 0, "{}", older.stderr);
        assert!(
            older.stdout.contains("step 5 of job cavity"),
            "{}",
            older.stdout
        );
    }
    assert_eq!(held.copy(&["5", "--step", "6"]).code, 2);
    let listed = answer(&[&["ls", "--json"][..], &both].concat()).json();
    assert_eq!(listed["checkpoints"].as_array().unwrap().len(), 2);
    // And back: the directories of nodes are seeded from it.
    let seeded = held.root("seeded");
    let back = ["copy", "--to", "node", "--node-root", &seeded];
    let back = answer(&[&back[..], &both].concat());
    assert_eq!(back.code, 0, "{}", back.stderr);
    assert_eq!(answer(&["verify", "--node-dir", &seeded]).code, 0);
    assert!(Path::new(&seeded).join("cavity/node1").is_dir());
}

// Breaks if: only directories under their own names are taken, or only the environment's.
#[test]
fn directories_may_have_been_collected_anywhere() {
    let held = Held::new(&[10]);
    let collected = held.scratch.dir("collected");
    for node in ["n0", "n1"] {
        let from = held.scratch.path().join("local/cavity").join(node);
        std::fs::rename(from, collected.join(format!("of-{node}"))).unwrap();
    }
    let (first, second) = (collected.join("of-n0"), collected.join("of-n1"));
    let (first, second) = (first.display().to_string(), second.display().to_string());
    let alone = answer(&[
        "copy",
        "--to",
        "global",
        "--global",
        &held.root("a"),
        &first,
    ]);
    assert_eq!(alone.code, 10, "{}{}", alone.stdout, alone.stderr);
    for words in [
        "node 1 'node1'",
        "Next: also give the directory of node node1",
    ] {
        assert!(alone.stderr.contains(words), "{words}: {}", alone.stderr);
    }
    let mut command = orcheck(&["copy", "--to", "global", &first, &second]);
    let done = command
        .env("ORCHECK_GLOBAL", held.root("a"))
        .output()
        .unwrap();
    assert_eq!(done.status.code(), Some(0), "{}", Answer::of(done).stderr);
    assert_eq!(answer(&["verify", "--dir", &held.root("a")]).code, 0);
}

// Breaks if: an older step is copied in the place of the newest without a word.
#[test]
fn a_newest_step_that_is_not_whole_is_named_and_the_older_one_offered() {
    let held = Held::new(&[5, 10]);
    std::fs::remove_file(&held.newest.paths[1]).unwrap();
    let refused = held.copy(&[]);
    assert_eq!(refused.code, 10, "{}", refused.stderr);
    let words = "Next: also give the directory of node node1, or copy step 5, which is complete here, with --step 5";
    assert!(refused.stderr.contains(words), "{}", refused.stderr);
    assert_eq!(refused.stderr.matches("Next: ").count(), 1);
    assert!(held.is_empty());
    assert_eq!(held.copy(&["--step", "5"]).code, 0);
    // What cannot be read is not called missing.
    let down = "orcheck://127.0.0.1:1?key=env:ORCHECK_TEST_KEY";
    let (local, other) = (held.root("local"), held.root("other"));
    let mut command = orcheck(&[
        "copy",
        "--to",
        "global",
        "--node-dir",
        &local,
        "--dir",
        down,
        "--global",
        &other,
    ]);
    command.env("ORCHECK_TEST_KEY", "ab".repeat(32));
    let hidden = Answer::of(command.output().unwrap());
    assert_eq!(hidden.code, 15, "{}", hidden.stderr);
}

#[test]
fn what_makes_no_sense_is_refused() {
    let held = Held::new(&[10]);
    let (local, a) = (held.root("local"), held.root("a"));
    let from = ["--node-dir", &local];
    let ask = |more: &[&str]| answer(&[&["copy"], &from[..], more].concat());
    for (arguments, words) in [
        (&["--to", "global"][..], "no directory is given to copy to"),
        (
            &["--to", "peers(1)", "--global", &a],
            "expected global or node; a run with peers makes the replicas",
        ),
        (
            &["--to", "peers", "--global", &a],
            "expected global or node; a run with peers makes the replicas",
        ),
        // Breaks if: the last one counts; a step is copied that somebody took for a list.
        (
            &["--to", "global", "--global", &a, "9", "10"],
            "steps 9 and 10 are given, expected one",
        ),
        (
            &["--to", "node", "--global", &a],
            "--to node goes with --node-root",
        ),
        (
            &["--to", "global", "--node-root", &a],
            "--to global goes with --global",
        ),
        (
            &["--to", "node", "--node-root", &a, "--step", "99"],
            "has not committed step 99",
        ),
        (
            &["--to", "global", "--global", &format!("{a},{a}")],
            "is given twice",
        ),
    ] {
        let done = ask(arguments);
        let code = if words.contains("99") { 10 } else { 2 };
        assert_eq!(done.code, code, "{arguments:?}: {}", done.stderr);
        assert!(done.stderr.contains(words), "{words}: {}", done.stderr);
    }
    assert!(held.is_empty());
    assert_eq!(held.copy(&[]).code, 0);
    let inside = held.scratch.path().join("a/cavity").display().to_string();
    let done = ask(&["--to", "global", "--global", &inside]);
    assert_eq!(done.code, 2, "{}", done.stderr);
    assert!(
        done.stderr
            .contains("is the directory of a job. Next: give the directory above it"),
        "{}",
        done.stderr
    );
    // Superseded by a run that began from nothing there.
    let held = Held::new(&[10]);
    claim(&held.scratch.dir("b/cavity"), epoch(2), Some(None));
    let fenced = held.copy(&[]);
    assert_eq!(fenced.code, 7, "{}", fenced.stderr);
    assert!(
        fenced.stderr.contains("started from nothing after it"),
        "{}",
        fenced.stderr
    );
}

// Breaks if: the job does not find the copy, or a run that is alive is met.
#[test]
fn a_job_whose_nodes_are_gone_continues_from_the_copy() {
    let scratch = Scratch::new();
    let (local, pfs) = (scratch.dir("local"), scratch.dir("pfs"));
    let (local, pfs) = (local.display().to_string(), pfs.display().to_string());
    let options =
        |place: &str| format!("{place}\nevery_s = 1e6\npool = '4 MiB'\nchunk = '64 KiB'\n");
    let on_node = options(&format!("node_dir = '{local}'\nglobal = '{pfs}'"));
    let only_node = options(&format!("node_dir = '{local}'"));
    let mut job = Running::start("computes", "cavity", &only_node);
    job.wait_for("ready 0");
    assert_eq!(answer(&["halt", "--node-dir", &local]).code, 0);
    let step = job.wait_for("stopped")["stopped ".len()..].to_owned();
    assert_eq!(job.end().0, Some(0));
    let status = answer(&["status", "--node-dir", &local]).stdout;
    let words = format!("newest safe step: {step} at level node, taken ");
    assert!(status.contains(&words), "{status}");
    assert!(
        status.contains("`orcheck copy --to global --global DIR`, with the directories"),
        "{status}"
    );
    let copy = [
        "copy",
        "--to",
        "global",
        "--node-dir",
        &local,
        "--global",
        &pfs,
    ];
    assert_eq!(answer(&copy).code, 0);
    std::fs::remove_dir_all(&local).unwrap();
    std::fs::create_dir(&local).unwrap();
    let mut job = Running::start("computes", "cavity", &on_node);
    job.wait_for(&format!("ready {step}"));
    let busy = answer(&["copy", "--to", "global", "--dir", &pfs, "--global", &pfs]);
    assert_eq!(
        busy.code, 0,
        "it is there, and nothing is to be written: {}",
        busy.stderr
    );
    let busy = answer(&["copy", "--to", "node", "--dir", &pfs, "--node-root", &local]);
    assert!([0, 7].contains(&busy.code), "{}", busy.stderr);
}

// Breaks if: a run that is alive in the directories that are copied to is fenced or joined.
#[test]
fn a_living_run_is_not_met() {
    let held = Held::new(&[10]);
    let root = held.root("a");
    let options = format!(
        "global = '{root}'\nevery_s = 1e6\npool = '4 MiB'\nchunk = '64 KiB'\nstart = 'fresh'\n"
    );
    let mut job = Running::start("tells", "cavity", &options);
    job.wait_for("ready 0");
    let refused = held.copy(&[]);
    assert_eq!(refused.code, 7, "{}", refused.stderr);
}

// Breaks if: the copy is not encrypted, or under a key that is going out of use.
#[test]
fn an_encrypted_checkpoint_is_copied_under_the_first_key() {
    let site = Site::new();
    crate::encrypted::write(&site);
    let (old, new) = (
        source(&site, "old", KEY),
        source(&site, "new", &"5a".repeat(32)),
    );
    let to = site.scratch.dir("to").display().to_string();
    let copy =
        |key: &[&str]| site.ask(&[&["copy", "--to", "global", "--global", &to], key].concat());
    let without = copy(&[]);
    assert_eq!(without.code, 2, "{}", without.stderr);
    assert!(
        without.stderr.contains("--encrypt-key"),
        "{}",
        without.stderr
    );
    let wrong = copy(&["--encrypt-key", &new]);
    assert_eq!(wrong.code, 2, "{}", wrong.stderr);
    let both = format!("{new},{old}");
    let done = copy(&["--encrypt-key", &both]);
    assert_eq!(done.code, 0, "{}", done.stderr);
    let verify = |key: &str| answer(&["verify", "--json", "--dir", &to, "--encrypt-key", key]);
    let verified = verify(&new);
    assert_eq!(verified.code, 0, "{}{}", verified.stdout, verified.stderr);
    assert_eq!(verified.json()["checkpoints"][0]["authenticated"], true);
    assert_ne!(verify(&old).code, 0);
    let locked = answer(&["verify", "--json", "--dir", &to]).json();
    assert_eq!(locked["checkpoints"][0]["locked_bytes"], 160_000);
}

// Breaks if: a server cannot be copied to, or from.
#[test]
fn servers_are_copied_to_and_from() {
    let held = Held::new(&[10]);
    let server = Server::start(&[]);
    let (place, local, back) = (server.place("key"), held.root("local"), held.root("back"));
    let there = answer(&[
        "copy",
        "--to",
        "global",
        "--node-dir",
        &local,
        "--global",
        &place,
    ]);
    assert_eq!(there.code, 0, "{}", there.stderr);
    assert!(!there.stdout.contains("key="), "{}", there.stdout);
    assert_eq!(answer(&["verify", "--dir", &place]).code, 0);
    let back_again = answer(&["copy", "--to", "global", "--dir", &place, "--global", &back]);
    assert_eq!(back_again.code, 0, "{}", back_again.stderr);
    assert_eq!(answer(&["verify", "--dir", &back]).code, 0);
}

// Breaks if: damage is found and an older good step is not named, or half a copy stays.
#[test]
fn damage_ends_the_copy_and_names_a_good_older_step() {
    let held = Held::new(&[5, 10]);
    let stream = held.newest.structure(1, "stream 3").start + 7;
    orcheck_fixtures::reading::flip(&held.newest.paths[1], stream, 2);
    let damaged = held.copy(&[]);
    assert_eq!(damaged.code, 6, "{}", damaged.stderr);
    assert!(
        damaged.stderr.contains("damaged data"),
        "{}",
        damaged.stderr
    );
    let words = "Next: copy step 5, which is good, with --step 5";
    assert!(damaged.stderr.contains(words), "{}", damaged.stderr);
    for root in ["a", "b"] {
        let left = std::fs::read_dir(held.scratch.path().join(root).join("cavity")).unwrap();
        assert_eq!(left.count(), 0);
    }
    assert_eq!(held.copy(&["--step", "5"]).code, 0);
}

// Breaks if: whatever a kill leaves counts as a copy, or keeps the next one from being made.
// `ORCHECK_TRIALS` raises the number.
#[test]
fn a_copy_that_is_killed_leaves_all_or_nothing() {
    let trials = orcheck_io::user::env_var("ORCHECK_TRIALS").and_then(|text| text.parse().ok());
    let trials: u32 = trials.unwrap_or(5);
    let scratch = Scratch::new();
    let nodes = ["n0", "n1"].map(|node| scratch.dir(&format!("local/cavity/{node}")));
    let mut spec = Spec::new(10, 1);
    spec.level = Level::Node;
    spec.regions[1].len = 3_000_000;
    write(&nodes, &spec);
    let local = scratch.dir("local").display().to_string();
    let copy = |to: &str| {
        orcheck(&[
            "copy",
            "--to",
            "global",
            "--node-dir",
            &local,
            "--global",
            to,
        ])
    };
    let begin = Instant::now();
    let first = scratch.dir("first").display().to_string();
    assert_eq!(copy(&first).status().unwrap().code(), Some(0));
    let long = begin.elapsed();
    let (mut whole, mut none) = (0, 0);
    for trial in 0..trials {
        let to = scratch.dir("to").display().to_string();
        let mut child = copy(&to)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // Evenly over the time that it takes.
        let until = Instant::now() + long * (22 * trial + 11) / (20 * trials);
        while Instant::now() < until {
            std::thread::yield_now();
        }
        child.kill().unwrap();
        child.wait().unwrap();
        let listed = answer(&["ls", "--json", "--job", "cavity", "--dir", &to]);
        let is_there = listed.code == 0 && listed.json()["newest_restartable_step"] == 10;
        if is_there {
            whole += 1;
            assert_eq!(answer(&["verify", "--dir", &to]).code, 0);
        } else {
            none += 1;
        }
        let again = Answer::of(copy(&to).output().unwrap());
        assert_eq!(again.code, 0, "{}", again.stderr);
        assert_eq!(answer(&["verify", "--dir", &to]).code, 0);
        let entries = std::fs::read_dir(Path::new(&to).join("cavity")).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let left: Vec<String> = names
            .filter(|name| name.ends_with(".tmp") && !name.contains(".claim-"))
            .collect();
        assert!(left.is_empty(), "{left:?}");
        std::fs::remove_dir_all(&to).unwrap();
    }
    println!("{trials} kills: {none} left nothing, {whole} the whole copy");
}

// Breaks if: they pile up, or one goes whose run is about to give it its name.
#[test]
fn a_claim_that_a_killed_copy_left_goes_with_the_next_copy() {
    let held = Held::new(&[10]);
    let dir = held.scratch.dir("a/cavity");
    let left = |run: &str, bytes: &[u8]| {
        let path = dir.join(format!("epoch-000002.claim-{run}.tmp"));
        std::fs::write(&path, bytes).unwrap();
        path
    };
    let stale = left("07070707", b"of a process that is gone");
    let living = left("08080808", b"of a run that is starting");
    let begun = left("09090909", b"");
    let opened =
        orcheck_staging::open_dir(&dir, orcheck_io::failpoints::Failpoints::none()).unwrap();
    let name = living.file_name().unwrap().to_str().unwrap();
    let locked = opened.open(name).unwrap();
    assert!(locked.try_lock().unwrap());
    let copied = held.copy(&[]);
    assert_eq!(copied.code, 0, "{}", copied.stderr);
    assert!(!stale.exists());
    assert!(living.exists() && begun.exists());
}
