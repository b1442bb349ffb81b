//! `orcheck mount`: with a command and without, its exit codes, its messages, and what it shows of
//! programs that write.

use crate::{answer, orcheck};
use orcheck_io::clock::Deadline;
use orcheck_io::errno::backoff;
use orcheck_testing::Scratch;
use orcheck_testing::mount::mounting_refused;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

#[allow(clippy::print_stdout)]
/// A backing directory, a mount point and a stage; `None` where nothing can be mounted.
fn places() -> Option<(Scratch, [PathBuf; 3])> {
    if let Some(why) = mounting_refused() {
        println!("not tried: {why}");
        return None;
    }
    let scratch = Scratch::new("cli-mount");
    let paths = ["backing", "point", "stage"].map(|name| scratch.path().join(name));
    for path in &paths {
        std::fs::create_dir(path).unwrap();
    }
    Some((scratch, paths))
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn a_command_runs_with_the_mount_and_its_exit_code_is_passed_on() {
    let Some((_scratch, [backing, point, stage])) = places() else {
        return;
    };
    for options in [vec![], vec!["--stage", text(&stage)]] {
        let script = format!("echo new > {}/file; umask; exit 7", point.display());
        let mut arguments = vec!["mount"];
        arguments.extend(options);
        arguments.extend([text(&backing), text(&point), "--", "sh", "-c", &script]);
        let ended = answer(&arguments);
        assert_eq!(ended.code, 7, "{}", ended.stderr);
        assert_eq!(ended.stderr, "");
        assert_eq!(std::fs::read(backing.join("file")).unwrap(), b"new\n");
        assert_eq!(std::fs::read_dir(&point).unwrap().count(), 0);
        assert_eq!(
            std::fs::read_dir(&stage).unwrap().count(),
            0,
            "the stage is left"
        );
        std::fs::remove_file(backing.join("file")).unwrap();
    }
}

#[test]
fn what_cannot_be_mounted_is_refused_with_the_next_step() {
    let Some((scratch, [backing, point, stage])) = places() else {
        return;
    };
    let refused = |arguments: &[&str], code: i32, says: &str| {
        let mut all = vec!["mount"];
        all.extend(arguments);
        all.extend(["--", "true"]);
        let ended = answer(&all);
        assert_eq!(ended.code, code, "{}", ended.stderr);
        assert!(ended.stderr.contains(says), "{}", ended.stderr);
    };
    let nowhere = scratch.path().join("nowhere");
    refused(&[text(&nowhere), text(&point)], 10, "nowhere");
    refused(&[text(&backing), text(&nowhere)], 10, "nowhere");
    refused(&[text(&backing), text(scratch.path())], 2, "is below");
    let below = backing.join("below");
    std::fs::create_dir(&below).unwrap();
    refused(&[text(&backing), text(&below)], 2, "is below");
    refused(
        &["--stage", text(&below), text(&backing), text(&point)],
        2,
        "is below",
    );
    let file = scratch.path().join("file");
    std::fs::write(&file, "").unwrap();
    refused(&[text(&backing), text(&file)], 2, "is not a directory");
    let full = scratch.path().join("full");
    std::fs::create_dir_all(full.join("inside")).unwrap();
    refused(&[text(&backing), text(&full)], 2, "is not empty");
    let trace = point.join("trace");
    let arguments = ["--profile", text(&trace), text(&backing), text(&point)];
    refused(&arguments, 2, "--profile");
    refused(
        &["--stage", text(&point), text(&backing), text(&point)],
        2,
        "--stage",
    );
    assert_eq!(std::fs::read_dir(&point).unwrap().count(), 0);
    assert_eq!(std::fs::read_dir(&stage).unwrap().count(), 0);
    refused(
        &["--stage", text(&nowhere), text(&backing), text(&point)],
        10,
        "nowhere",
    );
}

#[test]
fn a_directory_reached_by_a_link_is_mounted_and_a_mount_point_in_use_is_refused() {
    let Some((scratch, [backing, point, _])) = places() else {
        return;
    };
    let link = scratch.path().join("link");
    std::os::unix::fs::symlink(&point, &link).unwrap();
    let script = format!(
        "echo first > {0}/file; {1} mount {2} {0} -- true; code=$?; cat {0}/file; exit $code",
        link.display(),
        env!("CARGO_BIN_EXE_orcheck"),
        scratch.path().join("stage").display()
    );
    let ended = answer(&[
        "mount",
        text(&backing),
        text(&link),
        "--",
        "sh",
        "-c",
        &script,
    ]);
    assert_eq!(
        (ended.code, ended.stdout.as_str()),
        (2, "first\n"),
        "{}",
        ended.stderr
    );
    assert!(ended.stderr.contains("is mounted at"), "{}", ended.stderr);
}

#[test]
fn what_is_unmounted_while_the_command_runs_is_reported() {
    let Some((_scratch, [backing, point, _])) = places() else {
        return;
    };
    let script = format!("umount {}", point.display());
    let ended = answer(&[
        "mount",
        text(&backing),
        text(&point),
        "--",
        "sh",
        "-c",
        &script,
    ]);
    assert_eq!(ended.code, 3, "{}", ended.stderr);
    assert!(
        ended.stderr.contains("was unmounted while"),
        "{}",
        ended.stderr
    );
}

#[test]
fn a_known_pattern_is_profiled_exactly() {
    let Some((scratch, [backing, point, _])) = places() else {
        return;
    };
    let script = format!(
        "dd if=/dev/zero of={0}/a bs=1000 count=100 conv=fsync status=none; \
         dd if=/dev/zero of={0}/b bs=70000 count=3 status=none",
        point.display()
    );
    let trace = scratch.path().join("trace");
    let ended = answer(&[
        "mount",
        "--profile",
        text(&trace),
        text(&backing),
        text(&point),
        "--",
        "sh",
        "-c",
        &script,
    ]);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    assert!(ended.stderr.contains("103 writes"), "{}", ended.stderr);
    let kept = std::fs::read_to_string(&trace).unwrap();
    let lens = |file: &str| -> Vec<String> {
        let words = kept.lines().map(|line| line.split(' ').collect::<Vec<_>>());
        words
            .filter(|words| words[0] == "write" && words[4] == file)
            .map(|words| format!("{} {}", words[5], words[6]))
            .collect()
    };
    let expected = |count: u32, len: u32| -> Vec<String> {
        (0..count)
            .map(|one| format!("{} {len}", one * len))
            .collect()
    };
    assert_eq!(lens("0"), expected(100, 1_000));
    assert_eq!(lens("1"), expected(3, 70_000));
    assert_eq!(
        kept.lines().filter(|line| line.starts_with("sync")).count(),
        1
    );
}

#[test]
fn a_signal_ends_a_mount_once_nobody_uses_it() {
    let Some((_scratch, [backing, point, _])) = places() else {
        return;
    };
    let mut mount = orcheck(&["mount", text(&backing), text(&point)])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let deadline = Deadline::after(Duration::from_secs(30));
    let wait_until = |done: &dyn Fn() -> bool| {
        let mut attempt = 0;
        while !done() {
            assert!(!deadline.passed(), "waited in vain");
            backoff(attempt, deadline);
            attempt += 1;
        }
    };
    let is_mounted = || {
        Command::new("mountpoint")
            .arg("-q")
            .arg(&point)
            .status()
            .unwrap()
            .success()
    };
    wait_until(&is_mounted);
    let file = std::fs::File::create(point.join("open")).unwrap();
    let pid = rustix::process::Pid::from_child(&mount);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert!(is_mounted());
    assert!(mount.try_wait().unwrap().is_none());
    drop(file);
    wait_until(&|| !is_mounted());
    let ended = mount.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(143));
    assert!(backing.join("open").exists());
}

#[test]
fn sets_are_checkpoints_that_other_commands_know() {
    let Some((scratch, [backing, point, _])) = places() else {
        return;
    };
    let store = scratch.path().join("store");
    std::fs::create_dir(&store).unwrap();
    let options = format!("global = '{}'", store.display());
    let mount = |more: &[&str], script: &str| {
        let script = format!("cd {}; {script}", point.display());
        let mut arguments = vec!["mount", "--job", "melt", "--options", &options];
        arguments.extend(more);
        arguments.extend([text(&backing), text(&point), "--", "sh", "-c", &script]);
        answer(&arguments)
    };
    let counted = ["--set", "r.{step}.*", "--set-count", "2"];
    let ended = mount(
        &counted,
        "echo one > r.7.a; echo two > r.7.b; echo 3 > r.8.a",
    );
    assert_eq!(ended.code, 3, "{}", ended.stderr);
    let told = "orcheck: mount: the set of step 8 is not complete (1 complete file on this node): it is not \
                kept, and the next mount moves its files aside";
    assert!(ended.stderr.contains(told), "{}", ended.stderr);
    assert!(
        ended.stderr.contains("1 set was incomplete"),
        "{}",
        ended.stderr
    );
    let listed = answer(&["ls", text(&store)]);
    assert!(
        listed.stdout.contains("melt") && listed.stdout.contains(" 7 "),
        "{}",
        listed.stdout
    );
    let shown = answer(&["show", "7", text(&store)]);
    assert!(shown.stdout.contains("r.7.a"), "{}", shown.stdout);
    assert_eq!(answer(&["verify", text(&store)]).code, 0);
    std::fs::remove_file(backing.join("r.7.b")).unwrap();
    let ended = mount(&counted, "ls; cat r.7.b");
    assert_eq!(ended.stdout, "r.7.a\nr.7.b\ntwo\n");
    assert!(
        ended.stderr.contains("restored files of step 7: r.7.b"),
        "{}",
        ended.stderr
    );
    let moved = "moved files of step 8, whose set was not complete, to .orcheck-sets/melt/aside/8";
    assert!(ended.stderr.contains(moved), "{}", ended.stderr);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
}

#[test]
fn the_files_of_any_set_are_restored_elsewhere_all_of_them_or_none() {
    let Some((scratch, [backing, point, _])) = places() else {
        return;
    };
    let store = scratch.path().join("store");
    std::fs::create_dir(&store).unwrap();
    let options = format!("global = '{}'", store.display());
    let mount = |script: &str| {
        let mut arguments = vec!["mount", "--job", "melt", "--options", &options];
        arguments.extend(["--set", "out/r.{step}.*", "--set-count", "2"]);
        arguments.extend([text(&backing), text(&point), "--", "sh", "-c", script]);
        answer(&arguments)
    };
    for step in 1..=2 {
        let script = format!(
            "mkdir -p {at}/out; cd {at}/out; echo {step}a > r.{step}.a; chmod 750 r.{step}.a
             touch -d '2020-01-02 03:04:05 UTC' r.{step}.a; : > r.{step}.b",
            at = point.display()
        );
        let ended = mount(&script);
        assert_eq!(ended.code, 0, "{}", ended.stderr);
        assert_eq!(ended.stderr, "orcheck: mount: 1 set became safe\n");
    }
    // Written again, the newest one is what it was; an older one is not kept, and the code says so.
    for (step, code, said) in [(2, 0, "are written again"), (1, 3, "is not kept")] {
        let ended = mount(&format!("echo more >> {}/out/r.{step}.b", point.display()));
        assert_eq!(ended.code, code, "{}", ended.stderr);
        assert!(ended.stderr.contains(said), "{}", ended.stderr);
    }
    let out = scratch.path().join("restored");
    let restore = |more: &[&str]| {
        let arguments = ["restore", "1", text(&store), "--files", "--out", text(&out)];
        answer(&[&arguments[..], more].concat())
    };
    let ended = restore(&["--json"]);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    let one = &ended.json()["files"][0];
    assert_eq!(
        (&one["path"], &one["mode"]),
        (&"out/r.1.a".into(), &"750".into())
    );
    let a = out.join("out/r.1.a");
    assert_eq!(std::fs::read(&a).unwrap(), b"1a\n");
    let found = a.metadata().unwrap();
    assert_eq!(found.mode() & 0o7777, 0o750);
    assert_eq!(found.mtime(), 1_577_934_245);
    assert_eq!(std::fs::read(out.join("out/r.1.b")).unwrap(), b"");
    assert_eq!(out.metadata().unwrap().mode() & 0o777, 0o700);
    let refused = |says: &str| {
        let refused = restore(&[]);
        assert_eq!(refused.code, 2, "{}", refused.stderr);
        assert!(refused.stderr.contains(says), "{}", refused.stderr);
    };
    refused("restored exists");
    std::fs::remove_dir_all(&out).unwrap();
    let another = scratch.path().join("restored.orcheck.tmp");
    std::fs::create_dir(&another).unwrap();
    std::fs::write(another.join("mine"), "mine").unwrap();
    refused("another restore writes it");
    std::fs::remove_dir_all(&another).unwrap();

    // One damaged byte: nothing is there, and nothing is left.
    for file in std::fs::read_dir(store.join("melt")).unwrap() {
        let path = file.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if name.starts_with("s000000000001-") && name.ends_with(".orc") {
            let mut bytes = std::fs::read(&path).unwrap();
            let at = bytes.windows(3).position(|three| three == b"1a\n").unwrap();
            bytes[at] ^= 1;
            std::fs::write(&path, bytes).unwrap();
        }
    }
    let damaged = restore(&[]);
    assert_eq!(damaged.code, 5, "{}", damaged.stderr);
    let names = std::fs::read_dir(scratch.path()).unwrap();
    let left = names.filter(|name| {
        let name = name.as_ref().unwrap().file_name();
        name.to_str().unwrap().starts_with("restored")
    });
    assert_eq!(left.count(), 0);
}

#[test]
fn what_cannot_be_a_set_is_refused() {
    let Some((_scratch, [backing, point, _])) = places() else {
        return;
    };
    let refused = |more: &[&str], expected: &str| {
        let mut arguments = vec!["mount"];
        arguments.extend(more);
        arguments.extend([text(&backing), text(&point), "--", "true"]);
        let ended = answer(&arguments);
        assert_eq!(ended.code, 2, "{more:?}: {}", ended.stderr);
        assert!(
            ended.stderr.contains(expected),
            "{more:?}: {}",
            ended.stderr
        );
    };
    refused(&["--set", "a"], "--job");
    refused(&["--job", "melt"], "node_dir");
    refused(
        &[
            "--job",
            "melt",
            "--options",
            "global = '/tmp'",
            "--set",
            "a",
        ],
        "--set-count",
    );
    let job = ["--job", "melt", "--options", "global = '/tmp'"];
    refused(
        &[&job[..], &["--set", "../a", "--set-count", "1"]].concat(),
        "below the mount point",
    );
    refused(
        &[&job[..], &["--set", "{step}", "--set-end", "done"]].concat(),
        "{step}",
    );
    refused(&[&job[..], &["--nodes", "2"]].concat(), "--node");
    refused(&[&job[..], &["--node", "1"]].concat(), "give --nodes");
    refused(
        &[&job[..], &["--nodes", "2", "--node", "2"]].concat(),
        "counted from 0",
    );
}
