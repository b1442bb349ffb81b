//! Tests `ls`, `show` and `verify`.

use std::path::PathBuf;

use orcheck_format::Level;

use crate::answer;
use orcheck_fixtures::reading::{RegionSpec, Scratch, Spec, Written, claim, epoch, flip, write};

/// A job in two placed directories; gives back their roots.
pub struct Site {
    pub scratch: Scratch,
    pub a: String,
    pub b: String,
}

impl Site {
    pub fn new() -> Site {
        let scratch = Scratch::new();
        let (a, b) = (scratch.dir("a"), scratch.dir("b"));
        Site {
            a: a.display().to_string(),
            b: b.display().to_string(),
            scratch,
        }
    }

    pub fn dirs(&self) -> [PathBuf; 2] {
        [self.scratch.dir("a/cavity"), self.scratch.dir("b/cavity")]
    }

    pub fn write(&self, step: u64, counter: u64) -> Written {
        write(&self.dirs(), &Spec::new(step, counter))
    }

    /// Runs a command with both directories given.
    pub fn ask(&self, arguments: &[&str]) -> crate::Answer {
        answer(&[arguments, &["--dir", &self.a, "--dir", &self.b]].concat())
    }
}

#[test]
fn ls_tells_states_and_reasons() {
    let site = Site::new();
    for (step, counter) in [(10, 1), (20, 1), (30, 1), (25, 2)] {
        site.write(step, counter);
    }
    claim(&site.dirs()[0], epoch(2), Some(Some(20)));
    // A step whose writer died before the commit, and one whose container is gone.
    let dying = site.write(27, 2);
    for dir in site.dirs() {
        std::fs::remove_file(dir.join(Spec::new(27, 2).commit_name())).unwrap();
    }
    let cut = site.write(26, 2);
    std::fs::remove_file(&cut.paths[1]).unwrap();
    assert!(dying.paths[0].exists());

    let document = site.ask(&["ls", "--json"]);
    assert_eq!(document.code, 0);
    let document = document.json();
    assert_eq!(document["command"], "ls");
    assert_eq!(document["job"], "cavity");
    assert_eq!(document["newest_restartable_step"], 25);
    let rows: Vec<(u64, &str)> = document["checkpoints"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| {
            (
                row["step"].as_u64().unwrap(),
                row["state"].as_str().unwrap(),
            )
        })
        .collect();
    assert_eq!(
        rows,
        [
            (30, "fenced"),
            (27, "incomplete"),
            (26, "incomplete"),
            (25, "restartable"),
            (20, "restartable"),
            (10, "restartable")
        ]
    );
    let row = &document["checkpoints"][3];
    assert_eq!(row["level"], "global");
    assert_eq!(row["world_size"], 4);
    assert_eq!(row["record_copies"], 2);
    assert!(row["size_bytes"].as_u64().unwrap() > 96_000);
    assert!(row["age_ms"].as_u64().unwrap() > 0);
    assert!(
        document["checkpoints"][2]["why"]
            .as_str()
            .unwrap()
            .contains("is not here")
    );

    let text = site.ask(&["ls"]);
    assert_eq!(text.code, 0);
    for part in [
        "job cavity: 6 checkpoints in 2 places",
        "restartable",
        "fenced",
        "no commit record",
    ] {
        assert!(
            text.stdout.contains(part),
            "{part} is not in: {}",
            text.stdout
        );
    }
    assert!(!text.stdout.contains('\u{1b}'), "no colours into a pipe");
    assert!(
        text.stderr.contains("resumed from step 20"),
        "{}",
        text.stderr
    );
}

#[test]
fn node_directories_and_the_environment() {
    let scratch = Scratch::new();
    let nodes = [
        scratch.dir("local/cavity/node0"),
        scratch.dir("local/cavity/node1"),
    ];
    let mut spec = Spec::new(5, 1);
    spec.level = Level::Node;
    write(&nodes, &spec);
    let root = scratch.dir("local").display().to_string();
    let document = answer(&["ls", "--json", "--node-dir", &root]).json();
    assert_eq!(document["places"][1]["kind"], "node node1");
    assert_eq!(document["checkpoints"][0]["state"], "restartable");
    assert_eq!(document["checkpoints"][0]["level"], "node");

    let output = crate::orcheck(&["ls", "--json"])
        .env("ORCHECK_NODE_DIR", &root)
        .output()
        .unwrap();
    assert_eq!(
        crate::Answer::of(output).json()["newest_restartable_step"],
        5
    );

    let placed = scratch.dir("placed");
    write(&[scratch.dir("placed/cavity")], &Spec::new(6, 1));
    let output = crate::orcheck(&["ls", "--json"])
        .env("ORCHECK_GLOBAL", format!(" {} ,", placed.display()))
        .output()
        .unwrap();
    assert_eq!(
        crate::Answer::of(output).json()["newest_restartable_step"],
        6
    );
}

#[test]
fn wrong_places_and_jobs() {
    let site = Site::new();
    assert_eq!(answer(&["ls"]).code, 2, "no directory");
    assert_eq!(answer(&["ls", "--dir", "/nonexistent"]).code, 10);
    let none = site.ask(&["ls"]);
    assert_eq!(none.code, 10);
    assert!(
        none.stderr.contains("no job found below"),
        "{}",
        none.stderr
    );
    site.write(1, 1);
    assert_eq!(site.ask(&["ls", "--job", "other"]).code, 10);
    assert_eq!(site.ask(&["ls", "--job", "../cavity"]).code, 2);
    // One directory of several may be missing; that is told.
    let partly = answer(&["ls", "--json", "--dir", &site.a, "--dir", "/nonexistent"]);
    assert_eq!(partly.code, 15, "its only step may be there");
    assert!(
        partly.json()["notes"][0]
            .as_str()
            .unwrap()
            .contains("/nonexistent")
    );
    // Two jobs: one must be chosen, unless all are listed.
    let mut other = site.dirs()[0].clone();
    other.set_file_name("second");
    std::fs::create_dir(&other).unwrap();
    std::fs::write(other.join("epoch-000001.claim"), b"").unwrap();
    let two = site.ask(&["verify"]);
    assert_eq!(two.code, 2);
    assert!(two.stderr.contains("cavity, second"), "{}", two.stderr);
    assert_eq!(site.ask(&["ls", "--job", "cavity"]).code, 0);
    // Errors are JSON too.
    let failed = site.ask(&["verify", "--json"]).json();
    assert_eq!(failed["error"]["kind"], "invalid");
}

#[test]
fn usage() {
    assert_eq!(answer(&[]).code, 2);
    assert_eq!(answer(&["frobnicate"]).code, 2);
    assert_eq!(answer(&["ls", "--nonsense"]).code, 2);
    assert_eq!(answer(&["show", "--dir", "/tmp", "not-a-number"]).code, 10);
    let help = answer(&["--help"]);
    assert_eq!(help.code, 0);
    for part in [
        "Exit codes:",
        "corrupt, but an older checkpoint is good",
        "143",
    ] {
        assert!(
            help.stdout.contains(part),
            "{part} is not in: {}",
            help.stdout
        );
    }
    assert_eq!(answer(&["--version"]).code, 0);
}

#[test]
fn show_tells_containers_ranks_and_regions() {
    let site = Site::new();
    let mut spec = Spec::new(40, 7);
    spec.regions.push(RegionSpec {
        name: "same".into(),
        len: 640,
        cut: 8192,
    });
    write(&site.dirs(), &spec);
    let document = site.ask(&["show", "40", "--json"]).json();
    assert_eq!(document["step"], 40);
    assert_eq!(document["containers"].as_array().unwrap().len(), 2);
    let ranks = document["ranks"].as_array().unwrap();
    assert_eq!(ranks.len(), 4);
    let u = &ranks[0]["regions"][0];
    assert_eq!(
        (
            u["name"].as_str(),
            u["kind"].as_str(),
            u["len_bytes"].as_u64()
        ),
        (Some("u"), Some("array"), Some(24_000))
    );
    assert_eq!(u["local"][0], 3000);
    assert_eq!(ranks[1]["regions"][3]["same_as"], 0);
    let alone = document["of_each_rank"].as_array().unwrap();
    assert!(alone.contains(&"u".into()) && !alone.contains(&"same".into()));
    let one = site.ask(&["show", "--rank", "2", "--json"]).json();
    assert_eq!(one["ranks"].as_array().unwrap().len(), 1);
    assert_eq!(one["ranks"][0]["rank"], 2);
    let text = site.ask(&["show"]);
    for part in [
        "step 40",
        "4 ranks on 2 nodes",
        "readable",
        "restart: on 4 ranks only, because these regions belong to their ranks: ",
        "stored by rank 0",
        "3000",
    ] {
        assert!(
            text.stdout.contains(part),
            "{part} is not in: {}",
            text.stdout
        );
    }
    assert_eq!(site.ask(&["show", "--rank", "4"]).code, 10);
    let absent = site.ask(&["show", "41"]);
    assert_eq!(absent.code, 10);
    assert!(
        absent.stderr.contains("committed: 40 (global)"),
        "{}",
        absent.stderr
    );
    assert_eq!(site.ask(&["show", "40", "--level", "node"]).code, 10);
}

#[test]
fn show_of_a_damaged_container_is_partial() {
    let site = Site::new();
    let written = site.write(40, 7);
    flip(&written.paths[1], 9, 1);
    let document = site.ask(&["show", "--json"]);
    assert_eq!(document.code, 3);
    let document = document.json();
    assert!(
        document["containers"][1]["error"]
            .as_str()
            .unwrap()
            .contains("header")
    );
    assert_eq!(document["ranks"].as_array().unwrap().len(), 2);
}

#[test]
fn verify_good() {
    let site = Site::new();
    site.write(40, 7);
    let document = site.ask(&["verify", "--json"]);
    assert_eq!(document.code, 0, "{}", document.stdout);
    let document = document.json();
    assert_eq!(document["checkpoints"][0]["good"], true);
    assert_eq!(
        document["checkpoints"][0]["checked_bytes"],
        4 * (24_000 + 77)
    );
    let text = site.ask(&["verify", "40"]);
    assert!(text.stdout.contains("good"), "{}", text.stdout);
    assert!(
        text.stderr.is_empty(),
        "no progress bar into a pipe: {}",
        text.stderr
    );
}

#[test]
fn verify_exit_codes() {
    let site = Site::new();
    let newest = site.write(40, 7);
    let stream = newest.structure(0, "stream 1").start + 5;
    flip(&newest.paths[0], stream, 0);
    // Nothing older: corrupt.
    let only = site.ask(&["verify", "--json"]);
    assert_eq!(only.code, 5);
    let finding = &only.json()["checkpoints"][0]["containers"][0]["findings"][0];
    assert_eq!(
        (
            finding["kind"].as_str(),
            finding["rank"].as_u64(),
            finding["fatal"].as_bool()
        ),
        (Some("corrupt"), Some(1), Some(true))
    );
    // An older good one: 6, and it is named.
    site.write(30, 7);
    let older = site.ask(&["verify", "--json"]);
    assert_eq!(older.code, 6);
    assert_eq!(older.json()["older_good_step"], 30);
    assert_eq!(site.ask(&["verify", "--all"]).code, 6);
    assert_eq!(site.ask(&["verify", "30"]).code, 0);
    // The newest mended, the older one damaged: partial.
    flip(&newest.paths[0], stream, 0);
    assert_eq!(site.ask(&["verify", "--all"]).code, 0);
    let old = site.write(30, 7);
    flip(&old.paths[0], old.structure(0, "stream 1").start + 5, 0);
    assert_eq!(site.ask(&["verify", "--all"]).code, 3);
    assert_eq!(site.ask(&["verify"]).code, 0);
    // Damage that loses no data: partial.
    flip(
        &newest.paths[1],
        newest.structure(1, "trailer").start + 20,
        0,
    );
    assert_eq!(site.ask(&["verify"]).code, 3);
    // A container gone altogether: not found, or 6 as there is no good older one: both are damaged,
    // so not found.
    std::fs::remove_file(&newest.paths[1]).unwrap();
    assert_eq!(site.ask(&["verify"]).code, 10);
}

#[test]
fn verify_a_damaged_commit_record() {
    let site = Site::new();
    site.write(40, 7);
    let name = Spec::new(40, 7).commit_name();
    flip(&site.dirs()[0].join(&name), 70, 1);
    assert_eq!(site.ask(&["verify"]).code, 3, "the other copy counts");
    flip(&site.dirs()[1].join(&name), 70, 1);
    let gone = site.ask(&["verify"]);
    assert_eq!(gone.code, 5);
    assert!(gone.stderr.contains(&name), "{}", gone.stderr);
}

#[test]
fn nothing_held_and_newer_versions() {
    let site = Site::new();
    claim(&site.dirs()[0], epoch(1), None);
    assert_eq!(site.ask(&["verify"]).code, 4);
    assert_eq!(site.ask(&["ls"]).code, 0);
    // Superseded by a newer run.
    site.write(30, 1);
    claim(&site.dirs()[0], epoch(2), Some(Some(20)));
    assert_eq!(site.ask(&["verify", "30"]).code, 7);
    // Two runs at one counter.
    claim(
        &site.dirs()[1],
        orcheck_format::Epoch {
            counter: 2,
            run: orcheck_format::RunId([9; 16]),
        },
        None,
    );
    // Both got as far as a checkpoint.
    let mut spec = Spec::new(50, 2);
    write(&site.dirs(), &spec);
    spec = Spec::new(51, 2);
    spec.epoch.run = orcheck_format::RunId([9; 16]);
    write(&site.dirs(), &spec);
    assert_eq!(site.ask(&["ls"]).code, 7);

    let newer = Site::new();
    let mut spec = Spec::new(40, 7);
    spec.incompat = 1 << 50;
    write(&newer.dirs(), &spec);
    let answer = newer.ask(&["verify"]);
    assert_eq!(answer.code, 8);
    assert!(answer.stdout.contains("bit 50"), "{}", answer.stdout);
}

#[test]
fn levels_are_kept_apart() {
    let scratch = Scratch::new();
    let placed = [scratch.dir("a/cavity")];
    let local = [scratch.dir("n/cavity/node0")];
    write(&placed, &Spec::new(40, 7));
    let mut spec = Spec::new(40, 7);
    spec.level = Level::Node;
    let node = write(&local, &spec);
    let (a, n) = (
        scratch.dir("a").display().to_string(),
        scratch.dir("n").display().to_string(),
    );
    let ask = |arguments: &[&str]| answer(&[arguments, &["--dir", &a, "--node-dir", &n]].concat());
    assert_eq!(ask(&["verify", "--all"]).code, 0);
    assert_eq!(
        ask(&["show", "40", "--level", "node", "--json"]).json()["containers"][0]["place"],
        local[0].display().to_string()
    );
    // Breaks if: places of the other level are looked at; this loss would be hidden.
    std::fs::remove_file(&node.paths[0]).unwrap();
    let states = ask(&["ls", "--json"]).json();
    assert_eq!(states["checkpoints"][0]["state"], "restartable");
    assert_eq!(states["checkpoints"][1]["state"], "incomplete");
    assert_eq!(states["checkpoints"][1]["level"], "node");
    let verified = ask(&["verify", "40", "--level", "node", "--json"]);
    assert_eq!(verified.code, 6);
    assert_eq!(verified.json()["older_good_level"], "global");
}
