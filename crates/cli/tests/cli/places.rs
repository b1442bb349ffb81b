//! Tests which directories are searched, and what is reported about unreadable ones.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};

use crate::inspect::Site;
use crate::{Answer, answer, orcheck};
use orcheck_fixtures::reading::{Scratch, Spec, claim, epoch, write};

/// A staging server that is down: nobody listens at this port of the loopback device.
pub const DOWN: &str = "orcheck://127.0.0.1:1?key=env:ORCHECK_TEST_KEY";

pub fn with_key(arguments: &[&str]) -> Answer {
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

// Breaks if: it passes for one that holds directories of nodes; what its tenants have there would
// be called misplaced.
#[test]
fn the_directory_of_a_server_is_named_with_what_to_give_in_its_place() {
    let scratch = Scratch::new();
    write(&[scratch.dir("disk/default/cavity")], &Spec::new(10, 1));
    let root = scratch.dir("disk").display().to_string();
    std::fs::write(format!("{root}/server-0123456789abcdef.id"), b"").unwrap();
    let misplaced = answer(&["ls", "--dir", &root]);
    assert_eq!(misplaced.code, 10, "{}", misplaced.stderr);
    let words = format!("such as {root}/default");
    assert!(misplaced.stderr.contains(&words), "{}", misplaced.stderr);
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

// Breaks if: the exit code is 0; a script would take the job that is left out for one that is not
// there.
#[test]
fn a_job_of_several_that_cannot_be_looked_at_is_named_and_changes_the_exit_code() {
    let scratch = Scratch::new();
    let root = jobs(&scratch);
    claim(&scratch.dir("pfs/cavity"), epoch(1), None);
    let mut twice = epoch(1);
    twice.run = orcheck_format::RunId([9; 16]);
    claim(&scratch.dir("other/cavity"), twice, Some(None));
    let other = scratch.dir("other").display().to_string();
    for command in ["ls", "status"] {
        let told = answer(&[command, "--dir", &root, "--dir", &other]);
        assert_eq!(told.code, 3, "{command}: {}", told.stderr);
        assert!(told.stdout.contains("lulesh"), "{}", told.stdout);
        assert!(
            told.stderr.contains("job cavity: two runs"),
            "{}",
            told.stderr
        );
    }
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
        verified.stdout.contains("not found (not known to be lost)"),
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

// Breaks if: only directories that were given count; what lies in one that was forgotten would be
// called lost.
#[test]
fn a_forgotten_directory_is_asked_for_and_nothing_is_called_lost() {
    let site = Site::new();
    let written = site.write(10, 1);
    let one = ["--dir", &site.a];
    let verified = answer(&[&["verify"][..], &one].concat());
    assert_eq!(verified.code, 15, "{}{}", verified.stdout, verified.stderr);
    for words in [
        "unreachable",
        "not found (not known to be lost)",
        "Next: also give ",
        &site.b,
    ] {
        assert!(
            verified.stdout.contains(words),
            "{words}: {}",
            verified.stdout
        );
    }
    assert!(!verified.stdout.contains("corrupt"), "{}", verified.stdout);
    let listed = answer(&[&["ls", "--json"][..], &one].concat()).json();
    assert_eq!(listed["checkpoints"][0]["state"], "unreachable");
    let why = listed["checkpoints"][0]["why"].as_str().unwrap();
    assert!(
        why.contains(&format!("it was written to {}", site.b)),
        "{why}"
    );

    // Given, and away.
    let away = site.scratch.path().join("away");
    std::fs::rename(&site.b, &away).unwrap();
    let listed = site.ask(&["ls"]);
    assert!(listed.stdout.contains("unreachable"), "{}", listed.stdout);
    let words = format!("Next: bring {} back", site.b);
    assert!(listed.stderr.contains(&words), "{}", listed.stderr);
    assert!(!listed.stderr.contains("create"), "{}", listed.stderr);
    assert_eq!(site.ask(&["verify"]).code, 15);
    std::fs::rename(&away, &site.b).unwrap();
    assert_eq!(site.ask(&["verify"]).code, 0);

    // In none of the two that it was written to: lost.
    std::fs::remove_file(&written.paths[1]).unwrap();
    let lost = site.ask(&["verify"]);
    assert_eq!(lost.code, 10, "{}", lost.stdout);
    assert!(lost.stdout.contains("data lost"), "{}", lost.stdout);
}

// Breaks if: each finding asks for an older step although none is good.
#[test]
fn when_every_checkpoint_is_damaged_no_older_one_is_advised() {
    let site = Site::new();
    for step in [10, 20] {
        let written = site.write(step, 1);
        orcheck_fixtures::reading::flip(&written.paths[0], 3 * 4096 + 5, 1);
    }
    for arguments in [&["verify", "--all"][..], &["verify", "20"]] {
        let verified = site.ask(arguments);
        assert_eq!(verified.code, 5, "{}", verified.stdout);
        assert!(
            !verified.stdout.contains("older step"),
            "{}",
            verified.stdout
        );
        let words = "neither step 20 nor an older one can be restored. Next: give all directories";
        assert!(verified.stdout.contains(words), "{}", verified.stdout);
    }
    site.write(5, 1);
    let verified = site.ask(&["verify", "--all"]);
    assert_eq!(verified.code, 6, "{}", verified.stdout);
    assert!(
        verified.stdout.contains("restart from an older step"),
        "{}",
        verified.stdout
    );
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

/// The command as a user who is not root: as nobody where this is root, from a copy that nobody can
/// reach.
pub fn as_somebody_else(scratch: &Scratch, arguments: &[&str]) -> Answer {
    Answer::of(somebody_else(scratch, arguments).output().unwrap())
}

/// Copies a program in a process of its own: what another thread starts meanwhile would inherit the
/// file that is open for writing, and the copy could not be executed.
fn copy_program(from: &Path, to: &Path) {
    let copied = std::process::Command::new("cp").args([from, to]).status();
    assert!(copied.unwrap().success());
}

fn somebody_else(scratch: &Scratch, arguments: &[&str]) -> std::process::Command {
    let mut command = orcheck(arguments);
    if orcheck_io::machine::effective_uid() == 0 {
        let program = scratch.dir("bin").join("orcheck");
        if !program.exists() {
            copy_program(Path::new(env!("CARGO_BIN_EXE_orcheck")), &program);
            for dir in program.ancestors().skip(1).take(2) {
                std::fs::set_permissions(dir, PermissionsExt::from_mode(0o755)).unwrap();
            }
        }
        command = std::process::Command::new(program);
        command.args(arguments).env_clear().uid(65534).gid(65534);
    }
    command
}

// Breaks if: a missing permission counts as a disk that is mounted read-only, or as one that may be
// there the next time.
#[test]
fn run_says_whose_a_directory_is_and_does_not_try_again() {
    let scratch = Scratch::new();
    let root = jobs(&scratch);
    std::fs::set_permissions(scratch.path(), PermissionsExt::from_mode(0o755)).unwrap();
    // Nobody else may look into it: no run is begun.
    std::fs::set_permissions(&root, PermissionsExt::from_mode(0o000)).unwrap();
    let denied = as_somebody_else(&scratch, &["run", "--dir", &root, "--", "true"]);
    assert_eq!(denied.code, 15, "{}", denied.stderr);
    assert!(
        denied.stderr.contains("Next: run it as the user"),
        "{}",
        denied.stderr
    );
    let examined = as_somebody_else(&scratch, &["doctor", "--json", "--dir", &root]);
    assert!(
        examined.stdout.contains("run it as the user"),
        "{}",
        examined.stdout
    );
    assert!(
        !examined.stdout.contains("create it"),
        "{}",
        examined.stdout
    );

    // Others may look at the list of jobs, but not into the job, and write nothing.
    let mode = if orcheck_io::machine::effective_uid() == 0 {
        0o755
    } else {
        0o555
    };
    std::fs::set_permissions(&root, PermissionsExt::from_mode(mode)).unwrap();
    let job = scratch.path().join("pfs/cavity");
    std::fs::set_permissions(&job, PermissionsExt::from_mode(0o000)).unwrap();
    let line = crate::program::command_line();
    let program = scratch.dir("bin").join("program");
    copy_program(Path::new(&line[0]), &program);
    let program = program.display().to_string();
    let mut all = vec![
        "run",
        "--pause",
        "0",
        "--restarts",
        "9",
        "--dir",
        &root,
        "--",
    ];
    all.push(&program);
    all.extend(line[1..].iter().map(String::as_str));
    let mut command = somebody_else(&scratch, &all);
    let small = "every_s = 1e6\npool = '4 MiB'\nchunk = '64 KiB'\n";
    crate::program::tell(&mut command, "ends", "cavity", small);
    let refused = Answer::of(command.output().unwrap());
    let said = &refused.stderr;
    for words in [
        "(EACCES)",
        "Next: run it as the user who owns the directory",
        "not restarting: the job could not be opened",
    ] {
        assert!(said.contains(words), "{words}: {said}");
    }
    for words in ["mount it", "is new here", "starting run 2", "set a trigger"] {
        assert!(!said.contains(words), "{words}: {said}");
    }
    for (path, mode) in [(job, 0o700), (root.into(), 0o700)] {
        std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    }
}

// Breaks if: a directory of another user counts as one without jobs; its owner would be told that
// the checkpoints are gone.
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
    for arguments in [
        &["ls", &root, "--job", "lulesh"][..],
        &["ls", "--job=lulesh", &root],
    ] {
        let denied = as_somebody_else(&scratch, arguments);
        let said = &denied.stderr;
        assert!(
            said.contains("pfs/lulesh") && !said.contains("pfs/cavity"),
            "{said}"
        );
    }
    for job in ["cavity", "lulesh"] {
        let dir = scratch.dir("pfs").join(job);
        std::fs::set_permissions(dir, PermissionsExt::from_mode(0o700)).unwrap();
    }
}

/// A job beside that of another user, who lets nobody in: both below one directory, and the first
/// whole.
fn beside_another_user(scratch: &Scratch) -> String {
    let root = scratch.dir("shared");
    for step in [10, 20, 30] {
        write(&[scratch.dir("shared/cavity")], &Spec::new(step, 1));
    }
    claim(&scratch.dir("shared/cavity"), epoch(1), None);
    let theirs = scratch.dir("shared/theirjob");
    std::fs::set_permissions(&root, PermissionsExt::from_mode(0o755)).unwrap();
    if orcheck_io::machine::effective_uid() == 0 {
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

// Breaks if: what cannot be read counts for every job: on a shared disk nobody could remove
// anything any more.
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
        // That it is there and may not be read is reported all the same.
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

// Breaks if: a node's directory that may not be read counts for no job; its containers would be
// called lost.
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
        assert_eq!(listed.code, 15, "{}", listed.stderr);
        let listed = listed.json();
        assert_eq!(listed["checkpoints"][0]["state"], "unreachable", "{listed}");
    }
    std::fs::set_permissions(&nodes[1], PermissionsExt::from_mode(0o700)).unwrap();
    assert!(written.paths[1].exists());
}

// Breaks if: a mistyped variable is ignored; the user would be asked for a directory that was
// given.
#[test]
fn the_directories_of_the_environment_and_of_the_configuration_file_are_used() {
    let scratch = Scratch::new();
    let root = jobs(&scratch);
    let ask =
        |name: &str, value: &str| Answer::of(orcheck(&["ls"]).env(name, value).output().unwrap());
    let wrong = ask("ORCHECK_GLOBL", &root);
    assert_eq!(wrong.code, 2, "{}", wrong.stderr);
    assert!(
        wrong.stderr.contains("did you mean ORCHECK_GLOBAL?"),
        "{}",
        wrong.stderr
    );
    let file = scratch.path().join("options.toml");
    std::fs::write(&file, format!("keep = 2\nglobal = ['{root}']\n")).unwrap();
    let text = file.display().to_string();
    for (name, value) in [("ORCHECK_CONFIG", &text), ("ORCHECK_GLOBAL", &root)] {
        let listed = ask(name, value);
        assert_eq!(listed.code, 0, "{}", listed.stderr);
        assert!(listed.stdout.contains("lulesh"), "{}", listed.stdout);
    }
    let missing = ask("ORCHECK_CONFIG", "/nowhere/options.toml");
    assert!(
        missing
            .stderr
            .contains("correct the path in ORCHECK_CONFIG"),
        "{}",
        missing.stderr
    );
}

// Breaks if: a mistyped step is left out; another checkpoint than the one that was meant would be
// shown.
#[test]
fn what_is_neither_a_step_nor_a_directory_is_refused() {
    let scratch = Scratch::new();
    let root = jobs(&scratch);
    for command in ["show", "verify", "ls"] {
        for wrong in ["18446744073709551616", "1e3", "nosuchdir"] {
            let answer = answer(&[command, wrong, "--dir", &root, "--job", "cavity"]);
            assert_eq!(answer.code, 10, "{command} {wrong}: {}", answer.stderr);
            assert!(answer.stderr.contains(wrong), "{}", answer.stderr);
        }
    }
}

// Breaks if: a name goes to the terminal as it is; it could colour, erase or forge what is printed.
#[test]
fn names_that_would_act_on_a_terminal_are_shown_as_escapes() {
    let scratch = Scratch::new();
    let root = jobs(&scratch);
    let evil = "x\u{1b}]0;owned\u{7}\nNext: run evil\u{202e}";
    std::fs::write(scratch.dir("pfs/cavity").join(evil), b"").unwrap();
    for command in ["ls", "show", "verify", "status"] {
        let answer = answer(&[command, "--dir", &root, "--job", "cavity"]);
        let said = format!("{}{}", answer.stdout, answer.stderr);
        let acts = |c: char| (c.is_control() && c != '\n') || c == '\u{202e}';
        assert!(!said.contains(acts), "{command}: {said:?}");
        assert!(!said.contains("\nNext: run evil"), "{command}: {said:?}");
    }
    let missing = answer(&["show", &format!("{root}/{evil}")]);
    assert!(
        missing.stderr.contains("x\\u{1b}]0;owned"),
        "{}",
        missing.stderr
    );
}

// Breaks if: a link is followed; whoever can write in the root would lead `rm` into the directory
// of another job.
#[test]
fn a_link_in_the_place_of_a_job_or_node_is_told_of_and_not_followed() {
    let scratch = Scratch::new();
    let root = jobs(&scratch);
    let mut spec = Spec::new(20, 1);
    spec.level = orcheck_format::Level::Node;
    write(&[scratch.dir("local/cavity/n0")], &spec);
    let link = |from: &str, to: &str| {
        let from = scratch.path().join(from);
        std::os::unix::fs::symlink(scratch.path().join(to), &from).unwrap();
        from.display().to_string()
    };
    let target = scratch.path().join("pfs/cavity").display().to_string();
    // The link is the job's directory, that of a node, or that of the job above its nodes, also on
    // the way to one of them.
    scratch.dir("links");
    let nodes = link("links/nodes", "local/cavity");
    for (path, to) in [
        (link("links/cavity", "pfs/cavity"), "pfs/cavity"),
        (link("links/n0", "local/cavity/n0"), "local/cavity/n0"),
        (format!("{nodes}/n0"), "local/cavity"),
        (nodes, "local/cavity"),
    ] {
        for path in [path.clone(), format!("{path}/"), format!("{path}/.")] {
            for command in [&["ls"][..], &["rm", "10"], &["rm", "20"]] {
                let refused = answer(&[command, &[&path]].concat());
                assert_eq!(refused.code, 2, "{path}: {}", refused.stdout);
                for words in ["is a symbolic link to ", "Next: give ", to] {
                    assert!(refused.stderr.contains(words), "{}", refused.stderr);
                }
            }
        }
    }
    // Below a root that is given as such, also one with many other files, and below one of nodes.
    let links = scratch.dir("links");
    for number in 0..=10_000 {
        std::fs::File::create(links.join(format!("a{number}"))).unwrap();
    }
    let links = links.display().to_string();
    let listed = answer(&["ls", "--dir", &links, "--job", "cavity"]);
    assert_eq!(listed.code, 2, "{}", listed.stderr);
    assert!(
        listed
            .stderr
            .contains(&format!("symbolic link to {target}")),
        "{}",
        listed.stderr
    );
    link("local/cavity/n1", "local/cavity/n0");
    let local = scratch.dir("local").display().to_string();
    for place in [&["--node-dir", &local][..], &[&local]] {
        let document = answer(&[&["ls", "--json"], place].concat()).json();
        assert_eq!(document["places"][1]["state"], "not followed", "{document}");
        let kept = answer(&[&["rm", "20"], place].concat());
        assert!(kept.stderr.contains("symbolic link"), "{}", kept.stderr);
        assert_ne!(kept.code, 0);
    }
    // A root may be one, also one with a link beside its jobs.
    let linked = link("root", "pfs");
    link("pfs/latest", "pfs/cavity");
    for place in [
        &["--dir", &linked][..],
        &[&linked],
        &[&format!("{linked}/")],
    ] {
        for command in [&["verify", "--job", "cavity"][..], &["ls"], &["status"]] {
            let listed = answer(&[command, place].concat());
            assert_eq!(listed.code, 0, "{}", listed.stderr);
            let said = listed.stdout + &listed.stderr;
            assert!(!said.contains("symbolic link"), "{said}");
        }
    }
    assert_eq!(answer(&["verify", "--job", "cavity", &root]).code, 0);
    // The directory in which one stands has a name too.
    let mut here = orcheck(&["ls", "--json", "."]);
    here.current_dir(&target);
    let here = Answer::of(here.output().unwrap());
    assert_eq!(here.json()["job"], "cavity");
}

// Breaks if: only the kind of an error comes back from a server; all would be called unreachable.
#[test]
fn of_a_server_too_denied_wrong_key_absent_and_unreachable_are_told_apart() {
    let scratch = Scratch::new();
    for (name, byte) in [("key", "ab"), ("wrong", "cd")] {
        let path = scratch.path().join(name);
        std::fs::write(&path, byte.repeat(32)).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
        if orcheck_io::machine::effective_uid() == 0 {
            std::os::unix::fs::chown(&path, Some(65534), Some(65534)).unwrap();
        }
    }
    let disk = scratch.dir("disk");
    if orcheck_io::machine::effective_uid() == 0 {
        std::os::unix::fs::chown(&disk, Some(65534), Some(65534)).unwrap();
    }
    let key = |name: &str| format!("file:{}", scratch.path().join(name).display());
    let (disk, own) = (disk.display().to_string(), key("key"));
    let command = somebody_else(
        &scratch,
        &[
            "server",
            "--dir",
            &disk,
            "--listen",
            "127.0.0.1:0",
            "--key",
            &own,
        ],
    );
    let server = crate::server::Server::run(command, Scratch::new());
    let place = |name: &str| format!("{}?key={}", server.at, key(name));
    let site = Site::new();
    site.write(10, 1);
    let state = |place: &str| {
        let arguments = [
            "ls", "--json", "--dir", &site.a, "--dir", &site.b, "--dir", place,
        ];
        let mut command = somebody_else(&scratch, &arguments);
        command.env("ORCHECK_TEST_KEY", "ab".repeat(32));
        let listed = Answer::of(command.output().unwrap());
        let document = listed.json();
        let state = document["places"][2]["state"].as_str().unwrap().to_owned();
        (state, document["notes"].to_string())
    };
    for dir in [&site.a, &site.b] {
        for path in [
            PathBuf::from(dir).parent().unwrap(),
            Path::new(dir),
            &Path::new(dir).join("cavity"),
        ] {
            std::fs::set_permissions(path, PermissionsExt::from_mode(0o755)).unwrap();
        }
        for file in std::fs::read_dir(Path::new(dir).join("cavity")).unwrap() {
            std::fs::set_permissions(file.unwrap().path(), PermissionsExt::from_mode(0o644))
                .unwrap();
        }
    }
    // Whose directory of the job the server's user may not look into.
    let tenant = std::fs::read_dir(&disk)
        .unwrap()
        .map(|entry| entry.unwrap());
    let tenant = tenant.filter(|entry| entry.file_type().unwrap().is_dir());
    let job = tenant
        .map(|entry| entry.path())
        .next()
        .unwrap_or(PathBuf::from(&disk))
        .join("cavity");
    std::fs::create_dir(&job).unwrap();
    assert_eq!(state(&place("key")).0, "read");
    std::fs::set_permissions(&job, PermissionsExt::from_mode(0o000)).unwrap();
    let (denied, said) = state(&place("key"));
    assert_eq!(denied, "permission denied", "{said}");
    assert!(said.contains("ask the operator of "), "{said}");
    let (wrong, said) = state(&place("wrong"));
    assert_eq!(wrong, "wrong key", "{said}");
    assert!(
        said.contains("give the key that this server has for you"),
        "{said}"
    );
    let wrong = place("wrong");
    let examined = as_somebody_else(&scratch, &["doctor", "--dir", &wrong]);
    let next = "give the key that this server has for you";
    assert!(examined.stdout.contains(next), "{}", examined.stdout);
    assert_eq!(state(DOWN).0, "unreachable");
}

// Breaks if: a value that is no text counts as not set; the user would hear that there is no
// directory.
#[test]
fn a_variable_that_is_no_text_is_named() {
    let mut command = orcheck(&["ls"]);
    command.env("ORCHECK_GLOBAL", OsStr::from_bytes(b"/pfs/\xff"));
    let refused = Answer::of(command.output().unwrap());
    assert_eq!(refused.code, 2, "{}{}", refused.stdout, refused.stderr);
    let words = "the environment variable ORCHECK_GLOBAL: expected UTF-8 text, found '/pfs/";
    assert!(refused.stderr.contains(words), "{}", refused.stderr);
}
