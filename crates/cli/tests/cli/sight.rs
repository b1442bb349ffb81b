//! Tests that what cannot be read, or may lie where nobody can look, is not called lost, absent or
//! damaged.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use orcheck_format::disk::FileName;

use crate::inspect::Site;
use crate::places::{DOWN, as_somebody_else, with_key};
use crate::{Answer, answer};
use orcheck_fixtures::reading::{Scratch, Spec, Written, claim, epoch, flip, write};

/// Step 10, whose second container was on a server that is down; a rank in it.
fn with_a_part_out_of_sight(site: &Site) -> (Written, String) {
    let written = site.write(10, 1);
    std::fs::remove_file(&written.paths[1]).unwrap();
    let rank = written.record.containers[1].ranks[0].0.to_string();
    (written, rank)
}

fn ask(site: &Site, arguments: &[&str]) -> Answer {
    let common = ["--dir", &site.a, "--dir", &site.b, "--dir", DOWN];
    with_key(&[arguments, &common].concat())
}

fn allow(path: &Path, mode: u32) {
    std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
}

// Breaks if: it counts as absent or damaged; the user restarts from an older step although a server
// has to be started.
#[test]
fn restore_names_the_server_that_is_down() {
    let site = Site::new();
    let (_, rank) = with_a_part_out_of_sight(&site);
    let out = site.scratch.dir("out");
    let (one, all) = (out.join("u.bin"), out.join("all"));
    let (one, all) = (one.display().to_string(), all.display().to_string());
    let refused = ask(
        &site,
        &["restore", "--rank", &rank, "--region", "u", "--out", &one],
    );
    assert_eq!(refused.code, 15, "{}", refused.stderr);
    for words in ["127.0.0.1:1", "Next: bring back the server"] {
        assert!(refused.stderr.contains(words), "{}", refused.stderr);
    }
    assert!(!refused.stderr.contains("older step"), "{}", refused.stderr);
    let part = ask(&site, &["restore", "--all", "--out", &all]);
    assert_eq!(part.code, 15, "{}{}", part.stdout, part.stderr);
    let words = "Next: bring back the server";
    assert!(part.stdout.contains(words), "{}", part.stdout);
    // Of a rank that is here the server does not matter.
    let here = ask(
        &site,
        &["restore", "--rank", "0", "--region", "u", "--out", &one],
    );
    assert_eq!(here.code, 0, "{}", here.stderr);
}

#[test]
fn show_calls_a_container_unreachable_that_may_be_on_a_server_that_is_down() {
    let site = Site::new();
    with_a_part_out_of_sight(&site);
    let shown = ask(&site, &["show"]);
    assert_eq!(shown.code, 15, "{}{}", shown.stdout, shown.stderr);
    assert!(shown.stdout.contains("unreachable"), "{}", shown.stdout);
    assert!(!shown.stdout.contains("unreadable"), "{}", shown.stdout);
    // Where all can be read it is damage.
    let lost = site.ask(&["show"]);
    assert_eq!(lost.code, 3, "{}{}", lost.stdout, lost.stderr);
}

/// A job of one directory that everybody may look into, and that directory.
fn open_to_all(scratch: &Scratch) -> (Written, String) {
    let dir = scratch.dir("pfs/cavity");
    let written = write(std::slice::from_ref(&dir), &Spec::new(10, 1));
    allow(scratch.path(), 0o755);
    (written, dir.display().to_string())
}

// Breaks if: it is a failure without a code of its own and without advice.
#[test]
fn a_container_of_another_user_is_called_that() {
    let scratch = Scratch::new();
    let (written, dir) = open_to_all(&scratch);
    allow(&written.paths[0], 0o000);
    let rank = written.record.containers[0].ranks[0].0.to_string();
    let to = scratch.dir("to").display().to_string();
    for arguments in [
        &["restore", "--rank", &rank, "--region", "u", "--out", "-"][..],
        &["show"],
        &["verify"],
        &["copy", "--to", "global", "--global", &to],
    ] {
        let refused = as_somebody_else(&scratch, &[arguments, &[&dir]].concat());
        let said = format!("{}{}", refused.stdout, refused.stderr);
        assert_eq!(refused.code, 15, "{arguments:?}: {said}");
        assert!(said.contains("(EACCES)"), "{arguments:?}: {said}");
        let advised = said.contains("Next: run it as the user") || arguments[0] == "verify";
        assert!(advised, "{arguments:?}: {said}");
    }
    allow(&written.paths[0], 0o600);
}

// Breaks if: an older step is called the newest, or what nobody may read is called damaged.
#[test]
fn a_newer_commit_record_of_another_user_is_not_passed_over() {
    let scratch = Scratch::new();
    let (_, dir) = open_to_all(&scratch);
    write(&[scratch.dir("pfs/cavity")], &Spec::new(20, 1));
    let record = Path::new(&dir).join(Spec::new(20, 1).commit_name());
    allow(&record, 0o000);
    let listed = as_somebody_else(&scratch, &["ls", "--json", &dir]);
    assert_eq!(listed.code, 0, "{}", listed.stderr);
    let newest = &listed.json()["checkpoints"][0];
    assert_eq!(newest["step"], 20);
    assert_eq!(newest["state"], "unreachable");
    assert!(newest["why"].as_str().unwrap().contains("(EACCES)"));
    let verified = as_somebody_else(&scratch, &["verify", &dir]);
    assert_eq!(verified.code, 15, "{}{}", verified.stdout, verified.stderr);
    for words in ["step 20 is newer: ", "Next: run it as the user"] {
        assert!(verified.stdout.contains(words), "{}", verified.stdout);
    }
    let status = as_somebody_else(&scratch, &["status", &dir]);
    let words = "step 20 is newer, and unreachable";
    assert!(status.stdout.contains(words), "{}", status.stdout);
    for command in ["verify", "show"] {
        let asked = as_somebody_else(&scratch, &[command, "20", &dir]);
        assert_eq!(asked.code, 15, "{command}: {}", asked.stderr);
        assert!(asked.stderr.contains("(EACCES)"), "{}", asked.stderr);
    }
    // Asked for by its number, the older one is what it is.
    let older = as_somebody_else(&scratch, &["verify", "10", &dir]);
    assert_eq!(older.code, 0, "{}{}", older.stdout, older.stderr);
    allow(&record, 0o600);
}

// Breaks if: it is 0; a script would take what is on a server that is down for a job that can be
// restarted.
#[test]
fn ls_ends_with_15_when_every_step_is_unreachable() {
    let site = Site::new();
    with_a_part_out_of_sight(&site);
    let listed = ask(&site, &["ls"]);
    assert_eq!(listed.code, 15, "{}{}", listed.stdout, listed.stderr);
    site.write(5, 1);
    assert_eq!(ask(&site, &["ls"]).code, 0);
}

// Breaks if: what cannot be known is stated; a batch script would begin again from nothing.
#[test]
fn status_says_what_it_cannot_know() {
    let site = Site::new();
    with_a_part_out_of_sight(&site);
    let status = ask(&site, &["status"]);
    assert_eq!(status.code, 15, "{}{}", status.stdout, status.stderr);
    let words = "newest safe step: not known, because step 10 is unreachable";
    assert!(status.stdout.contains(words), "{}", status.stdout);
    let document = ask(&site, &["status", "--json"]).json();
    assert_eq!(document["jobs"][0]["is_known"], false);
    assert_eq!(document["jobs"][0]["unreachable_step"], 10);
    site.write(5, 1);
    let status = ask(&site, &["status"]);
    assert_eq!(status.code, 0, "{}{}", status.stdout, status.stderr);
    for words in ["newest safe step: 5", "step 10 is newer, and unreachable"] {
        assert!(status.stdout.contains(words), "{}", status.stdout);
    }
}

#[test]
fn status_does_not_deny_the_job_of_another_user() {
    let scratch = Scratch::new();
    open_to_all(&scratch);
    let root = scratch.dir("pfs");
    allow(&root.join("cavity"), 0o000);
    let root = root.display().to_string();
    for arguments in [&["status", &root][..], &["status", "--dir", &root]] {
        let status = as_somebody_else(&scratch, arguments);
        assert_eq!(status.code, 15, "{}{}", status.stdout, status.stderr);
        let said = &status.stderr;
        assert!(said.contains("Next: run it as the user"), "{said}");
        assert!(!said.contains("in the directories given"), "{said}");
    }
    allow(&scratch.dir("pfs").join("cavity"), 0o700);
    let empty = scratch.dir("empty").display().to_string();
    let none = answer(&["status", &empty]);
    assert!(none.stderr.contains("no job is in the directories given"));
}

// Breaks if: an older step is advised although none can be restored.
#[test]
fn restore_advises_no_older_step_where_none_is_good() {
    let site = Site::new();
    let written = site.write(10, 1);
    let at = written.structure(0, "stream 0").start + 9000;
    flip(&written.paths[0], at, 3);
    let restore = ["restore", "--rank", "0", "--region", "u", "--out", "-"];
    let refused = site.ask(&restore);
    assert_eq!(refused.code, 5, "{}", refused.stderr);
    assert!(!refused.stderr.contains("older step"), "{}", refused.stderr);
    let words = "Next: give all directories of the job";
    assert!(refused.stderr.contains(words), "{}", refused.stderr);
    let out = site.scratch.dir("out").join("all").display().to_string();
    let part = site.ask(&["restore", "--all", "--out", &out]);
    assert_eq!(part.code, 3, "{}", part.stderr);
    let said = part.stdout + &part.stderr;
    let words = "Next: see with `orcheck verify --all` whether an older step is good";
    assert!(said.contains(words), "{said}");
    assert_eq!(said.matches("Next: ").count(), 1, "{said}");
}

// Breaks if: it is reported not to be there, or to be damaged.
#[test]
fn a_step_whose_record_nobody_may_read_is_not_said_to_be_absent() {
    let scratch = Scratch::new();
    let (_, dir) = open_to_all(&scratch);
    let record = Path::new(&dir).join(Spec::new(10, 1).commit_name());
    allow(&record, 0o000);
    for command in ["rm", "keep"] {
        let refused = as_somebody_else(&scratch, &[command, "10", &dir, "--job", "cavity"]);
        assert_eq!(refused.code, 15, "{}", refused.stderr);
        for words in ["(EACCES)", "Next: run it as the user"] {
            assert!(refused.stderr.contains(words), "{}", refused.stderr);
        }
    }
    allow(&record, 0o600);
}

// Breaks if: the whole job is left out; its checkpoints can be read, only its claim cannot be
// locked.
#[test]
fn status_of_a_job_whose_claim_is_another_users_shows_its_newest_step() {
    let scratch = Scratch::new();
    let (_, dir) = open_to_all(&scratch);
    claim(Path::new(&dir), epoch(1), None);
    let file = Path::new(&dir).join(FileName::Claim { epoch: 1 }.to_string());
    allow(&file, 0o444);
    let status = as_somebody_else(&scratch, &["status", &dir]);
    assert_eq!(status.code, 15, "{}{}", status.stdout, status.stderr);
    for words in ["whether it runs is not known", "newest safe step: 10 "] {
        assert!(status.stdout.contains(words), "{}", status.stdout);
    }
    let words = "Next: run it as the user";
    assert!(status.stderr.contains(words), "{}", status.stderr);
    allow(&file, 0o600);
}

// Breaks if: of many files only those have a reason that are told one by one; the oldest and the
// newest would be called absent.
#[test]
fn each_of_many_records_of_another_user_is_unreachable() {
    let scratch = Scratch::new();
    let (_, dir) = open_to_all(&scratch);
    let steps: Vec<u64> = (1..=12).map(|step| step * 10).collect();
    for &step in &steps {
        write(&[scratch.dir("pfs/cavity")], &Spec::new(step, 1));
        let record = Path::new(&dir).join(Spec::new(step, 1).commit_name());
        allow(&record, 0o000);
    }
    let listed = as_somebody_else(&scratch, &["ls", "--json", &dir, "--job", "cavity"]);
    let listed = listed.json();
    let rows = listed["checkpoints"].as_array().unwrap();
    assert_eq!(rows.len(), steps.len());
    for row in rows {
        assert_eq!(row["state"], "unreachable", "{row}");
    }
    for command in ["show", "verify", "rm", "keep"] {
        for step in ["10", "20", "120"] {
            let asked = as_somebody_else(&scratch, &[command, step, &dir, "--job", "cavity"]);
            assert_eq!(asked.code, 15, "{command} {step}: {}", asked.stderr);
            assert!(asked.stderr.contains("(EACCES)"), "{}", asked.stderr);
            assert!(!asked.stderr.contains("skipped"), "{}", asked.stderr);
        }
    }
}

// Breaks if: the reason of one copy is that of all; what is whole, and another user's, would be
// called damaged.
#[test]
fn copies_of_a_record_have_each_their_own_reason() {
    let scratch = Scratch::new();
    let dirs = ["a/cavity", "b/cavity"].map(|name| scratch.dir(name));
    for step in [20, 30] {
        write(&dirs, &Spec::new(step, 1));
    }
    allow(scratch.path(), 0o755);
    let [damaged, closed] = dirs.map(|dir| dir.join(Spec::new(30, 1).commit_name()));
    flip(&damaged, 70, 1);
    allow(&closed, 0o000);
    let roots = ["a", "b"].map(|root| scratch.dir(root).display().to_string());
    for [first, second] in [[0, 1], [1, 0]] {
        let place = ["--dir", &roots[first], "--dir", &roots[second]];
        for arguments in [&["show", "30"][..], &["verify"], &["rm", "30"]] {
            let asked = as_somebody_else(&scratch, &[arguments, &place].concat());
            let said = asked.stdout + &asked.stderr;
            assert_eq!(asked.code, 15, "{arguments:?} {place:?}: {said}");
            let path = closed.display().to_string();
            assert!(said.contains(&path), "{arguments:?} {place:?}: {said}");
        }
    }
}

// Breaks if: it is a failure of no sort; a script would not know that nothing is lost.
#[test]
fn rm_of_a_job_whose_claim_is_another_users_says_what_to_do() {
    let scratch = Scratch::new();
    let (_, dir) = open_to_all(&scratch);
    claim(Path::new(&dir), epoch(1), None);
    let name = FileName::Claim { epoch: 1 }.to_string();
    allow(&Path::new(&dir).join(name), 0o444);
    let record = Path::new(&dir).join(Spec::new(10, 1).commit_name());
    allow(&record, 0o444);
    let asked = as_somebody_else(&scratch, &["rm", "10", "--dry-run", &dir]);
    assert_eq!(asked.code, 15, "{}{}", asked.stdout, asked.stderr);
    for words in ["(EACCES)", "Next: run it as the user"] {
        assert!(asked.stderr.contains(words), "{}", asked.stderr);
    }
}

// Breaks if: only records of other users are looked for; a step would be said not to be there whose
// record is.
#[test]
fn a_step_with_a_damaged_record_is_called_damaged_by_its_number() {
    let site = Site::new();
    for step in [10, 20] {
        site.write(step, 1);
    }
    for dir in site.dirs() {
        flip(&dir.join(Spec::new(20, 1).commit_name()), 70, 1);
    }
    let status = site.ask(&["status"]).stdout;
    let words = "newest safe step: 10";
    assert!(status.contains(words), "{status}");
    let words = "the commit record of step 20 cannot be used; see `orcheck ls`";
    assert!(status.contains(words), "{status}");
    for command in ["show", "verify", "restore"] {
        let out = site.scratch.dir("out").join(command).display().to_string();
        let more: &[&str] = match command {
            "restore" => &["--all", "--out", &out],
            _ => &[],
        };
        let asked = site.ask(&[&[command, "20"], more].concat());
        assert_ne!(asked.code, 0, "{command}");
        for words in ["step 20 does not count", "the CRC", "Next: "] {
            assert!(asked.stderr.contains(words), "{command}: {}", asked.stderr);
        }
    }
}

// Breaks if: the name is not asked; a watcher would be told of another job, or that there is none.
#[test]
fn status_of_one_job_is_of_that_job() {
    let scratch = Scratch::new();
    let root = scratch.dir("pfs").display().to_string();
    for job in ["one", "two"] {
        write(&[scratch.dir(&format!("pfs/{job}"))], &Spec::new(10, 1));
    }
    let names = |arguments: &[&str]| -> Vec<String> {
        let told = answer(&[&["status", "--json"], arguments].concat()).json();
        let jobs = told["jobs"].as_array().unwrap().iter();
        jobs.map(|job| job["job"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(names(&["--dir", &root]), ["one", "two"]);
    assert_eq!(names(&["--dir", &root, "--job", "two"]), ["two"]);
    let mistyped = answer(&["status", "--dir", &root, "--job", "tow"]);
    assert_eq!(mistyped.code, 10, "{}{}", mistyped.stdout, mistyped.stderr);
    assert!(
        mistyped.stderr.contains("job tow has no directory"),
        "{}",
        mistyped.stderr
    );
}

// Breaks if: a directory is the one it was because it bears its name; where a disk is not mounted
// good checkpoints would be called lost as soon as a run, refused or not, had claimed the mount
// point.
#[test]
fn what_was_on_a_disk_that_is_not_mounted_is_not_called_lost() {
    let scratch = Scratch::new();
    let roots = ["a", "b"].map(|root| scratch.dir(root));
    let dirs = ["a/cavity", "b/cavity"].map(|name| scratch.dir(name));
    let mut record = write(&dirs, &Spec::new(10, 1)).record;
    record.servers = roots
        .iter()
        .map(|root| root.display().to_string())
        .collect();
    for dir in &dirs {
        std::fs::write(dir.join(Spec::new(10, 1).commit_name()), record.encode()).unwrap();
        claim(dir, epoch(1), None);
    }
    let [a, b] = roots.map(|root| root.display().to_string());
    let ask = |what: &str| answer(&[what, "--dir", &a, "--dir", &b]);
    assert_eq!(ask("verify").code, 0);
    std::fs::remove_dir_all(&dirs[0]).unwrap();
    std::fs::create_dir(&dirs[0]).unwrap();
    claim(&dirs[0], epoch(2), None);
    for what in ["ls", "verify", "status"] {
        let asked = ask(what);
        let said = asked.stdout + &asked.stderr;
        assert_eq!(asked.code, 15, "{what}: {said}");
        assert!(!said.contains("data lost"), "{what}: {said}");
    }
    assert!(ask("ls").stdout.contains("is it mounted?"));
}
