//! Tests a job that a group of users shares: two members and a stranger, each with their own
//! processes.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use crate::program::{self, Running};
use crate::{Answer, orcheck};
use orcheck_fixtures::reading::Scratch;

/// A group that this machine does not know.
const GROUP: u32 = 65_500;
const ANN: (u32, u32) = (65_501, GROUP);
const BOB: (u32, u32) = (65_502, GROUP);
const EVE: (u32, u32) = (65_503, 65_503);

/// The same command of another user.
fn of((user, group): (u32, u32), mut command: Command) -> Command {
    command.uid(user).gid(group).current_dir("/");
    command
}

/// Whether others than root can run what this test is made of.
#[allow(clippy::print_stdout)] // what is not tried is reported
fn can_be_tried() -> bool {
    let root = orcheck_io::machine::effective_uid() == 0;
    let runs = root && of(EVE, orcheck(&["--version"])).output().is_ok();
    if !runs {
        println!("SKIPPED: needs root, and a target directory that every user can reach");
    }
    runs
}

fn program(options: &str, user: (u32, u32)) -> Running {
    let line = program::command_line();
    let mut command = Command::new(&line[0]);
    command.args(&line[1..]);
    program::tell(&mut command, "holds", "shared", options);
    Running::of(of(user, command))
}

/// Two more checkpoints by this user; from where the run resumed.
fn takes(options: &str, user: (u32, u32)) -> String {
    let mut running = program(options, user);
    let resumed = running.wait_for("ready");
    running.wait_for("taken");
    running.go_on();
    assert_eq!(running.wait_for("sealed"), "sealed true");
    resumed
}

fn answer(user: (u32, u32), arguments: &[&str]) -> Answer {
    Answer::of(of(user, orcheck(arguments)).output().unwrap())
}

/// Every file and directory below is the group's, and no one else's.
fn check_modes(dir: &Path) {
    for entry in std::fs::read_dir(dir).unwrap().flatten() {
        let (path, metadata) = (entry.path(), entry.metadata().unwrap());
        let wanted = if metadata.is_dir() { 0o2770 } else { 0o660 };
        let found = (metadata.mode() & 0o7777, metadata.gid());
        assert_eq!(found, (wanted, GROUP), "{}", path.display());
        if metadata.is_dir() {
            check_modes(&path);
        }
    }
}

// Breaks if: what one member wrote, another one cannot read, resume from, decide about and prune.
#[test]
fn members_of_a_group_share_a_job_and_nobody_else_reads_it() {
    if !can_be_tried() {
        return;
    }
    let scratch = Scratch::new();
    let root = scratch.dir("pfs");
    std::os::unix::fs::chown(&root, None, Some(GROUP)).unwrap();
    std::fs::set_permissions(&root, std::fs::Permissions::from_mode(0o775)).unwrap();
    let dir = root.display().to_string();
    let alone = format!("global = '{dir}'\npool = '4 MiB'\nchunk = '64 KiB'\n");
    let shared = format!("{alone}group = '{GROUP}'\n");
    assert_eq!(takes(&shared, ANN), "ready 0");
    check_modes(&root);
    for command in [&["ls"][..], &["verify", "--all"], &["doctor"]] {
        let arguments = [command, &["--dir", &dir]].concat();
        let done = answer(BOB, &arguments);
        assert_eq!(done.code, 0, "{command:?}: {}{}", done.stdout, done.stderr);
        if command[0] != "doctor" {
            let denied = answer(EVE, &arguments);
            assert_ne!(denied.code, 0, "{command:?}: {}", denied.stdout);
            let said = denied.stderr.to_lowercase();
            assert!(said.contains("permission denied"), "{command:?}: {said}");
        }
    }
    let kept = answer(BOB, &["keep", "1", "--job", "shared", "--dir", &dir]);
    assert_eq!(kept.code, 0, "{}", kept.stderr);
    assert_eq!(takes(&shared, BOB), "ready 2");
    assert_eq!(takes(&shared, ANN), "ready 4");
    check_modes(&root);
    let listed = answer(ANN, &["ls", "--job", "shared", "--dir", &dir, "--json"]).json();
    let steps = listed["checkpoints"].as_array().unwrap().iter();
    let steps: Vec<u64> = steps.map(|one| one["step"].as_u64().unwrap()).collect();
    // The one that was kept by hand stays; what Bob's run took, Ann's pruned.
    assert!(steps.contains(&1) && steps.contains(&6), "{steps:?}");
    assert!(!steps.contains(&3), "{steps:?}");
    // What is copied and placed for the group; what is restored is its owner's.
    let placed = scratch.dir("placed");
    std::os::unix::fs::chown(&placed, None, Some(GROUP)).unwrap();
    std::fs::set_permissions(&placed, std::fs::Permissions::from_mode(0o775)).unwrap();
    let to = placed.display().to_string();
    let copy = ["copy", "--to", "global", "--global", &to, "--dir", &dir];
    let unnamed = answer(ANN, &copy);
    assert_eq!(unnamed.code, 0, "{}", unnamed.stderr);
    let refused = answer(ANN, &[&copy[..], &["--group", &GROUP.to_string()]].concat());
    assert!(
        refused.stderr.contains("expected one that group"),
        "{}",
        refused.stderr
    );
    std::fs::remove_dir_all(placed.join("shared")).unwrap();
    for user in [BOB, ANN] {
        let mut command = of(user, orcheck(&copy));
        let done = Answer::of(
            command
                .env("ORCHECK_GROUP", GROUP.to_string())
                .output()
                .unwrap(),
        );
        assert_eq!(done.code, 0, "{}", done.stderr);
    }
    check_modes(&placed);
    let driver = crate::place::example(&scratch).display().to_string();
    std::fs::write(placed.join("servers.txt"), "io1 up 900 1000\n").unwrap();
    let (driver, group) = (["--driver", &driver], ["--group", &GROUP.to_string()]);
    let done = answer(ANN, &[&["place", &to], &driver[..], &group].concat());
    assert_eq!(done.code, 0, "{}", done.stderr);
    let made = std::fs::metadata(placed.join("io1")).unwrap();
    assert_eq!((made.mode() & 0o7777, made.gid()), (0o2770, GROUP));
    let out = root.join("shared").display().to_string() + "/u.bin";
    let restore = [
        "restore", "--dir", &dir, "--region", "u", "--rank", "0", "--out", &out,
    ];
    let restored = answer(BOB, &restore);
    assert_eq!(restored.code, 0, "{}", restored.stderr);
    assert_eq!(std::fs::metadata(&out).unwrap().mode() & 0o7777, 0o600);
    // A member who does not name the group, and somebody who is in none.
    for (options, user, says) in [
        (&alone, ANN, "set the option group"),
        (
            &shared,
            EVE,
            "Permission denied (EACCES). Next: run it as the user",
        ),
    ] {
        let (code, said) = program(options, user).end();
        assert_ne!(code, Some(0));
        assert!(said.contains(says), "{says}: {said}");
    }
}
