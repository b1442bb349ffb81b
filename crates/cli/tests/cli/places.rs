//! Which directories are looked into, and what is said of those that cannot be read.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;

use crate::fixture::{Scratch, Spec, claim, epoch, write};
use crate::inspect::Site;
use crate::{Answer, answer, orcheck};

/// A staging server that is down: nobody listens at this port of the loopback device.
const DOWN: &str = "orcheck://127.0.0.1:1?key=env:ORCHECK_TEST_KEY";

fn with_key(arguments: &[&str]) -> Answer {
    let mut command = orcheck(arguments);
    command.env("ORCHECK_TEST_KEY", "ab".repeat(32));
    Answer::of(command.output().unwrap())
}

fn jobs(scratch: &Scratch) -> String {
    write(&[scratch.dir("pfs/cavity")], &Spec::new(10, 1));
    let mut other = Spec::new(7, 1);
    other.job = orcheck_format::JobName::new("lulesh").unwrap();
    write(&[scratch.dir("pfs/lulesh")], &other);
    scratch.dir("pfs").display().to_string()
}

#[test]
fn ls_without_a_job_lists_all_jobs() {
    let scratch = Scratch::new();
    let root = jobs(&scratch);
    let text = answer(&["ls", "--dir", &root]).stdout;
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 3, "{text}");
    for (line, parts) in [
        (lines[0], ["newest safe", "size"]),
        (lines[1], ["cavity", "10"]),
        (lines[2], ["lulesh", "7"]),
    ] {
        assert!(parts.iter().all(|part| line.contains(part)), "{text}");
    }
    let document = answer(&["ls", "--json", "--dir", &root]).json();
    assert_eq!(document["jobs"][1]["job"], "lulesh");
    assert_eq!(document["jobs"][1]["newest_restartable_step"], 7);
    assert!(document["jobs"][1]["size_bytes"].as_u64().unwrap() > 0);
    assert!(document["jobs"][1]["age_ms"].is_u64());
}

// Breaks if: the name of the directory counts for more than what the records in it say.
#[test]
fn a_directory_is_given_without_a_flag_also_one_that_was_moved() {
    let scratch = Scratch::new();
    let root = jobs(&scratch);
    let moved = scratch.dir("backup").join("cavity-of-monday");
    std::fs::rename(scratch.dir("pfs/cavity"), &moved).unwrap();
    let moved = moved.display().to_string();
    let listed = answer(&["ls", "--json", &moved]);
    assert_eq!(listed.code, 0, "{}", listed.stderr);
    assert_eq!(listed.json()["job"], "cavity");
    assert_eq!(listed.json()["newest_restartable_step"], 10);
    for arguments in [
        &["verify", &moved][..],
        &["verify", "10", &moved],
        &["show", &moved],
        &["verify", &root],
        &["verify", "--all", &format!("{root}/lulesh")],
    ] {
        let done = answer(arguments);
        assert_eq!(done.code, 0, "{arguments:?}: {}", done.stderr);
    }
    let wrong = answer(&["verify", "--all", "10", &moved]);
    assert_eq!(wrong.code, 2, "{}", wrong.stderr);
}

#[test]
fn a_directory_above_those_of_nodes_is_known_by_their_records() {
    let scratch = Scratch::new();
    let mut spec = Spec::new(10, 1);
    spec.level = orcheck_format::Level::Node;
    write(&[scratch.dir("local/cavity/n0")], &spec);
    for below in ["local", "local/cavity", "local/cavity/n0"] {
        let dir = scratch.dir(below).display().to_string();
        let document = answer(&["ls", "--json", &dir]).json();
        assert_eq!(document["places"][0]["kind"], "node n0", "{below}");
        assert_eq!(document["newest_restartable_step"], 10, "{below}");
    }
}

// Breaks if: what is on a server that is down counts as damaged, or as lost.
#[test]
fn with_a_server_down_nothing_is_called_corrupt() {
    let site = Site::new();
    let written = site.write(10, 1);
    let common = ["--dir", &site.a, "--dir", &site.b, "--dir", DOWN];
    // What is here is whole: the server that is down does not matter.
    assert_eq!(with_key(&[&["verify"][..], &common].concat()).code, 0);
    std::fs::remove_file(&written.paths[1]).unwrap();
    let verified = with_key(&[&["verify"][..], &common].concat());
    assert_eq!(verified.code, 15, "{}{}", verified.stdout, verified.stderr);
    assert!(
        verified.stdout.contains("unreachable"),
        "{}",
        verified.stdout
    );
    assert!(
        verified.stdout.contains("not known to be lost"),
        "{}",
        verified.stdout
    );
    assert!(!verified.stdout.contains("corrupt"), "{}", verified.stdout);
    let document = with_key(&[&["ls", "--json"][..], &common].concat()).json();
    assert_eq!(document["checkpoints"][0]["state"], "unreachable");
    assert_eq!(document["places"][2]["state"], "unreachable");
    let alone = with_key(&["ls", "--dir", DOWN]);
    assert_eq!(alone.code, 15, "{}", alone.stderr);
    // All directories that there are can be read: then it is lost.
    assert_ne!(site.ask(&["verify"]).code, 15);
    // Absent is another thing.
    let absent = answer(&["ls", "/nowhere-at-all"]);
    assert_eq!(absent.code, 10, "{}", absent.stderr);
    assert!(!absent.stderr.contains("permission"), "{}", absent.stderr);
}

// Breaks if: only agents are looked for; a job that runs without any would not be there.
#[test]
fn status_shows_jobs_without_agents() {
    let scratch = Scratch::new();
    let root = jobs(&scratch);
    claim(&scratch.dir("pfs/cavity"), epoch(1), None);
    let text = answer(&["status", &root]).stdout;
    assert!(text.contains("newest safe step"), "{text}");
    let line = |job: &str| {
        text.lines()
            .find(|line| line.starts_with(&format!("job {job}:")))
            .unwrap()
    };
    assert!(line("cavity").contains("ended"), "{text}");
    assert!(line("lulesh").contains("never"), "{text}");
    let document = answer(&["status", "--json", "--dir", &root]).json();
    assert_eq!(document["jobs"][0]["newest_restartable_step"], 10);
    assert_eq!(document["jobs"][0]["runs"], false);
    assert_eq!(document["jobs"][1]["runs"], serde_json::Value::Null);
}

/// The command as a user who is not root: as nobody where this is root, from a copy that nobody can reach.
fn as_somebody_else(scratch: &Scratch, arguments: &[&str]) -> Answer {
    let mut command = orcheck(arguments);
    if orcheck_io::effective_uid() == 0 {
        let program = scratch.dir("bin").join("orcheck");
        if !program.exists() {
            std::fs::copy(env!("CARGO_BIN_EXE_orcheck"), &program).unwrap();
            for dir in program.ancestors().skip(1).take(2) {
                std::fs::set_permissions(dir, PermissionsExt::from_mode(0o755)).unwrap();
            }
        }
        command = std::process::Command::new(program);
        command.args(arguments).env_clear().uid(65534).gid(65534);
    }
    Answer::of(command.output().unwrap())
}

// Breaks if: a directory of another user counts as one without jobs; its owner would be told that the checkpoints are gone.
#[test]
fn a_directory_of_another_user_is_called_that() {
    let scratch = Scratch::new();
    let root = jobs(&scratch);
    std::fs::set_permissions(&root, PermissionsExt::from_mode(0o755)).unwrap();
    for job in ["cavity", "lulesh"] {
        let dir = scratch.dir("pfs").join(job);
        std::fs::set_permissions(dir, PermissionsExt::from_mode(0o000)).unwrap();
    }
    let job = format!("{root}/cavity");
    for arguments in [
        &["ls", "--dir", &root][..],
        &["ls", &root],
        &["ls", &job],
        &["ls", "--dir", &root, "--job", "cavity"],
        &["verify", "--dir", &root, "--job", "cavity"],
    ] {
        let denied = as_somebody_else(&scratch, arguments);
        assert_eq!(
            denied.code, 15,
            "{arguments:?}: {}{}",
            denied.stdout, denied.stderr
        );
        assert!(
            denied.stderr.contains("Permission denied") && denied.stderr.contains(&job),
            "{arguments:?}: {}",
            denied.stderr
        );
        assert_eq!(
            denied.stderr.matches("Next: ").count(),
            1,
            "{}",
            denied.stderr
        );
    }
    for job in ["cavity", "lulesh"] {
        let dir = scratch.dir("pfs").join(job);
        std::fs::set_permissions(dir, PermissionsExt::from_mode(0o700)).unwrap();
    }
}

/// A job beside that of another user, who lets nobody in: both below one directory, and the first whole.
fn beside_another_user(scratch: &Scratch) -> String {
    let root = scratch.dir("shared");
    for step in [10, 20, 30] {
        write(&[scratch.dir("shared/cavity")], &Spec::new(step, 1));
    }
    claim(&scratch.dir("shared/cavity"), epoch(1), None);
    let theirs = scratch.dir("shared/theirjob");
    std::fs::set_permissions(&root, PermissionsExt::from_mode(0o755)).unwrap();
    if orcheck_io::effective_uid() == 0 {
        let own = root.join("cavity");
        let files = std::fs::read_dir(&own).unwrap();
        for path in files.map(|entry| entry.unwrap().path()).chain([own]) {
            std::os::unix::fs::chown(path, Some(65534), Some(65534)).unwrap();
        }
        std::fs::set_permissions(&theirs, PermissionsExt::from_mode(0o700)).unwrap();
    } else {
        std::fs::set_permissions(&theirs, PermissionsExt::from_mode(0o000)).unwrap();
    }
    root.display().to_string()
}

// Breaks if: what cannot be read counts for every job: on a shared disk nobody could remove anything any more.
#[test]
fn the_directory_of_another_users_job_does_not_count_for_mine() {
    for with_flag in [true, false] {
        let scratch = Scratch::new();
        let root = beside_another_user(&scratch);
        let ask = |arguments: &[&str]| {
            let place: &[&str] = if with_flag {
                &["--dir", &root]
            } else {
                &[&root]
            };
            as_somebody_else(&scratch, &[arguments, place].concat())
        };
        let listed = ask(&["ls"]);
        assert_eq!(listed.code, 0, "{}", listed.stderr);
        // That it is there and may not be read is said all the same.
        assert!(listed.stderr.contains("theirjob"), "{}", listed.stderr);
        for arguments in [
            &["rm", "10"][..],
            &["prune", "--keep", "1"],
            &["verify", "--all"],
        ] {
            let done = ask(arguments);
            assert_eq!(done.code, 0, "{arguments:?}: {}", done.stderr);
        }
        // A container that is gone is lost: nobody else's directory may hold it.
        let left = scratch.dir("shared/cavity");
        for entry in std::fs::read_dir(left).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|end| end == "orc") {
                std::fs::remove_file(path).unwrap();
            }
        }
        let listed = ask(&["ls", "--json"]).json();
        assert_eq!(listed["checkpoints"][0]["state"], "incomplete");
        assert_eq!(ask(&["verify"]).code, 10);
        // Where nothing tells whose it is, it counts.
        std::fs::remove_dir_all(scratch.path().join("shared/cavity")).unwrap();
        assert_eq!(ask(&["ls"]).code, 15);
        assert_eq!(
            ask(&["ls", "--job", "cavity"]).code,
            if with_flag { 10 } else { 15 }
        );
    }
}

// Breaks if: a node's directory that may not be read counts for no job; its containers would be called lost.
#[test]
fn a_hidden_directory_beside_those_of_nodes_is_one_of_a_node() {
    let scratch = Scratch::new();
    let mut spec = Spec::new(10, 1);
    spec.level = orcheck_format::Level::Node;
    let nodes = [
        scratch.dir("local/cavity/n0"),
        scratch.dir("local/cavity/n1"),
    ];
    let written = write(&nodes, &spec);
    std::fs::set_permissions(&nodes[1], PermissionsExt::from_mode(0o000)).unwrap();
    std::fs::set_permissions(scratch.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let root = scratch.dir("local").display().to_string();
    for arguments in [["--node-dir", &root], ["--job=cavity", &root]] {
        let listed = as_somebody_else(&scratch, &[&["ls", "--json"], &arguments[..]].concat());
        assert_eq!(listed.code, 0, "{}", listed.stderr);
        let listed = listed.json();
        assert_eq!(listed["checkpoints"][0]["state"], "unreachable", "{listed}");
    }
    std::fs::set_permissions(&nodes[1], PermissionsExt::from_mode(0o700)).unwrap();
    assert!(written.paths[1].exists());
}
