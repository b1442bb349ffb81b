//! Tests `run`: what it passes to the program, what the program reports back, and when a restart is
//! pointless.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;

use crate::program::{Running, command_line, tell};
use crate::{Answer, answer, orcheck};
use orcheck_fixtures::reading::{Scratch, Spec, write};

/// A supervised program, and what both said.
pub fn supervised(arguments: &[&str], what: &str, job: &str, options: &str) -> Answer {
    let line = command_line();
    let mut all = vec!["run", "--pause", "0.01"];
    all.extend(arguments);
    all.push("--");
    all.extend(line.iter().map(String::as_str));
    let mut command = orcheck(&all);
    tell(&mut command, what, job, options);
    Answer::of(command.output().unwrap())
}

fn options(root: &str) -> String {
    format!("global = '{root}'\nevery_s = 1e6\npool = '4 MiB'\nchunk = '64 KiB'\n")
}

// Breaks if: the directories or the name stay with `orcheck run`; the program would write
// elsewhere, or not at all.
#[test]
fn a_program_gets_directories_and_name_from_run() {
    let scratch = Scratch::new();
    let (a, b) = (scratch.dir("a"), scratch.dir("b"));
    let (a, b) = (a.display().to_string(), b.display().to_string());
    let node = scratch.dir("node").display().to_string();
    let shown = "echo $ORCHECK_GLOBAL $ORCHECK_NODE_DIR $ORCHECK_JOB";
    let place = ["--dir", &a, "--dir", &b, "--node-dir", &node, "--job", "j"];
    let told = answer(&[&["run"], &place[..], &["--", "sh", "-c", shown]].concat());
    assert_eq!(
        told.stdout,
        format!("{a},{b} {node} j\n"),
        "{}",
        told.stderr
    );
    // One that has neither of its own works with what it was given.
    let small = "every_s = 1e6\npool = '4 MiB'\nchunk = '64 KiB'\n";
    let done = supervised(&["--dir", &a, "--job", "given"], "holds", "", small);
    assert_eq!(done.code, 0, "{}{}", done.stdout, done.stderr);
    assert!(std::path::Path::new(&a).join("given").is_dir());
    // Breaks if: the name that was given wins over the program's own.
    let done = supervised(&["--dir", &a, "--job", "given"], "holds", "own", small);
    assert_eq!(done.code, 0, "{}", done.stderr);
    assert!(std::path::Path::new(&a).join("own").is_dir());
    let words = "the program calls its job own, not given: its own name counts";
    assert!(done.stderr.contains(words), "{}", done.stderr);
    let nameless = supervised(&["--dir", &a], "ends", "", small);
    let words = "the job has no name. Next: pass one to orc_open";
    assert!(nameless.stderr.contains(words), "{}", nameless.stderr);
}

#[test]
fn run_learns_the_job_and_its_directories_from_the_program() {
    let scratch = Scratch::new();
    let root = scratch.dir("pfs").display().to_string();
    // Without a checkpoint there is nothing to continue from: it is reported, and the second run is
    // the last.
    let failed = supervised(&["--restarts", "9"], "fails", "cavity", &options(&root));
    assert_eq!(failed.code, 101);
    for words in [
        "run 1 of job cavity ended without a checkpoint",
        "it has a trigger, but ended before its first checkpoint was complete",
        "not restarting: 2 runs in a row made no new checkpoint",
    ] {
        assert!(failed.stderr.contains(words), "{words}: {}", failed.stderr);
    }
    let said = failed.stderr.matches("ended without a checkpoint").count();
    assert_eq!(said, 1, "{}", failed.stderr);
    let none = options(&root).replace("every_s = 1e6\n", "");
    let failed = supervised(&["--restarts", "9"], "fails", "cavity", &none);
    let words = "set a trigger, such as ORCHECK_EVERY_S=600";
    assert!(failed.stderr.contains(words), "{}", failed.stderr);

    // A job that is asked to halt is not taken for one that has finished.
    let line = command_line();
    let line: Vec<&str> = line.iter().map(String::as_str).collect();
    let mut command = orcheck(&[&["run", "--"], &line[..]].concat());
    tell(&mut command, "computes", "cavity", &options(&root));
    let mut job = Running::of(command);
    job.wait_for("ready 0");
    assert_eq!(answer(&["halt", "--dir", &root]).code, 0);
    let step = job.wait_for("stopped")["stopped ".len()..].to_owned();
    let (code, said) = job.end();
    assert_eq!(code, Some(13), "{said}");
    let words = format!("newest checkpoint: step {step}");
    assert!(said.contains(&words), "{said}");
    // That request is over for the next run, although nobody looked before it.
    let next = supervised(&["--restarts", "9"], "fails", "cavity", &options(&root));
    assert!(next.stderr.contains("2 runs in a row"), "{}", next.stderr);
    assert!(
        !next.stderr.contains("without a checkpoint"),
        "{}",
        next.stderr
    );
}

// Breaks if: only what `orcheck halt` and signals to `orcheck run` ask for counts; what waits for
// the result would begin.
#[test]
fn a_job_that_was_told_to_stop_is_not_finished() {
    let scratch = Scratch::new();
    let root = scratch.dir("pfs").display().to_string();
    let over = format!("{}end_time_unix_s = 1.0\n", options(&root));
    let stopped = supervised(&["--restarts", "9"], "computes", "cavity", &over);
    assert_eq!(stopped.code, 13, "{}", stopped.stderr);
    let words = "stopped, because orc_should_stop was true; newest checkpoint: step 1; start it again to continue";
    assert!(stopped.stderr.contains(words), "{}", stopped.stderr);

    let usr1 = format!("{}signal = 'USR1'\nsignal_stop = true\n", options(&root));
    let line = command_line();
    let line: Vec<&str> = line.iter().map(String::as_str).collect();
    let mut command = orcheck(&[&["run", "--"], &line[..]].concat());
    tell(&mut command, "computes", "cavity", &usr1);
    let mut job = Running::of(command);
    job.wait_for("ready 1");
    job.signal("USR1");
    job.wait_for("stopped");
    let (code, said) = job.end();
    assert_eq!(code, Some(13), "{said}");
    // It ends by itself, and was told nothing.
    let ended = supervised(&[], "ends", "cavity", &options(&root));
    assert_eq!(ended.code, 0, "{}", ended.stderr);
}

// Breaks if: they wait for the end; who mistyped a name would learn of it when the run is over.
#[test]
fn warnings_are_told_while_the_program_runs() {
    let scratch = Scratch::new();
    let root = scratch.dir("pfs").display().to_string();
    let line = command_line();
    let line: Vec<&str> = line.iter().map(String::as_str).collect();
    let mut command = orcheck(&[&["run", "--restarts", "0", "--"], &line[..]].concat());
    tell(&mut command, "holds", "cavity", &options(&root));
    let mut job = Running::of(command);
    job.wait_for("taken");
    let told = job.error_line();
    assert!(told.contains("job 'cavity' begins from nothing"), "{told}");
    job.go_on();
    job.wait_for("sealed true");
    job.go_on();
    let (code, said) = job.end();
    assert_eq!(code, Some(0), "{said}");
    // Once is enough.
    assert!(!said.contains("begins from nothing"), "{said}");
}

// Breaks if: the library's warnings are left to the program; who reads none would never hear of
// lost checkpoints, of a damaged one that was skipped, or of what it lacks to restart.
#[test]
fn what_the_library_warns_of_is_said_for_the_program() {
    let scratch = Scratch::new();
    let root = scratch.dir("pfs").display().to_string();
    let line = command_line().join(" ");
    // What does not fit on the disk: here no file may have more than 8 MiB.
    let script = format!("trap '' XFSZ; ulimit -f 16384; exec {line}");
    let all = ["run", "--restarts", "0", "--", "sh", "-c", &script];
    let mut command = orcheck(&all);
    tell(&mut command, "loses", "cavity", &options(&root));
    let lost = Answer::of(command.output().unwrap()).stderr;
    for words in [
        "3 checkpoints of this run lost, the last: checkpoint 3 is lost at level global: ",
        "(EFBIG)",
        "Next: raise the limit",
        "ended without a checkpoint: a restart begins from nothing; all that it took are lost",
    ] {
        assert!(lost.contains(words), "{words}: {lost}");
    }
    assert!(!lost.contains("trigger"), "{lost}");

    let resumes = format!("{}start = 'resume'\n", options(&root));
    let refused = supervised(&["--restarts", "0"], "fails", "cavity", &resumes).stderr;
    let words = "run 1 of job cavity could not restart: start = 'resume', but job 'cavity' has no checkpoint";
    assert!(refused.contains(words), "{refused}");
    assert!(!refused.contains("trigger"), "{refused}");

    let mut job = Running::start("holds", "cavity", &options(&root));
    job.wait_for("taken");
    job.go_on();
    job.wait_for("sealed");
    drop(job);
    let files = std::fs::read_dir(format!("{root}/cavity")).unwrap();
    let newest = files.map(|entry| entry.unwrap().path());
    let newest = newest.filter(|path| path.extension().is_some_and(|end| end == "orc"));
    orcheck_fixtures::reading::flip(&newest.max().unwrap(), 3 * 4096 + 5, 1);
    let skipped = supervised(&["--restarts", "0"], "fails", "cavity", &options(&root)).stderr;
    let said = skipped.matches("orcheck run: step 2 skipped: ").count();
    assert_eq!(said, 1, "{skipped}");
}

// Breaks if: they are left out without a word; the list would look complete.
#[test]
fn messages_beyond_the_first_are_counted() {
    let script = r#"for i in $(seq 30); do
        printf '\n[[note]]\njob = "j"\nrefused = ""\ntold = "did %s"\n' $i
        printf '\n[[note]]\njob = "j"\nrefused = ""\nis_last = %s\nwarning = "saw %s"\n' $1 $i
    done >> "$ORCHECK_RUN_REPORT""#;
    for (is_last, more) in [("false", false), ("true", true)] {
        let told = answer(&["run", "--", "sh", "-c", script, "sh", is_last]).stderr;
        let lines = |what: &str| told.lines().filter(|line| line.contains(what)).count();
        let beyond = |words: &str| {
            let line = told.lines().find(|line| line.ends_with(words)).unwrap();
            let number = line.split("not shown: ").nth(1).unwrap();
            number.split(' ').next().unwrap().parse::<usize>().unwrap()
        };
        let did = beyond(" further messages about what the library did");
        assert_eq!(lines(": did ") + did, 30, "{told}");
        let saw = beyond(" further warnings");
        assert_eq!(lines(": saw ") + saw, 30, "{told}");
        let words = "there may be further messages, which the library did not pass on";
        assert_eq!(told.contains(words), more, "{told}");
    }
}

// Breaks if: the program tells nothing of a job without checkpoints; a run that lost everything
// would look as any other.
#[test]
fn a_job_without_checkpoints_is_told_and_not_restarted_for_ever() {
    let scratch = Scratch::new();
    let dir = scratch.dir("pfs").display().to_string();
    let none = "every_s = 1e6\nenabled = 'auto'\n";
    let done = supervised(&[], "without checkpoints ends", "cavity", none);
    assert_eq!(done.code, 0, "{}", done.stderr);
    let words = "job cavity runs without checkpoints: enabled = 'auto', and no directory is configured; a restart begins from nothing";
    assert!(done.stderr.contains(words), "{}", done.stderr);
    let off = "every_s = 1e6\nenabled = false\n";
    let what = "without checkpoints fails";
    let failed = supervised(&["--dir", &dir, "--restarts", "9"], what, "cavity", off);
    assert_eq!(failed.code, 101, "{}", failed.stderr);
    for words in [
        "job cavity runs without checkpoints: enabled = false",
        "not restarting: 2 runs in a row made no new checkpoint",
    ] {
        assert!(failed.stderr.contains(words), "{words}: {}", failed.stderr);
    }
    // A directory from the command line is a directory.
    let auto = format!("{none}pool = '4 MiB'\nchunk = '64 KiB'\n");
    let done = supervised(&["--dir", &dir], "holds", "cavity", &auto);
    assert_eq!(done.code, 0, "{}", done.stderr);
    assert!(std::path::Path::new(&dir).join("cavity").is_dir());
}

#[test]
fn restarts_end_after_so_many_runs_with_no_newer_step() {
    let scratch = Scratch::new();
    let root = scratch.dir("a").display().to_string();
    write(&[scratch.dir("a/cavity")], &Spec::new(10, 1));
    let runs = |limit: &str| {
        let place = ["--dir", &root, "--job", "cavity", "--restarts", "4"];
        let how = ["--no-progress", limit, "--pause", "0"];
        let command = ["--", "sh", "-c", "echo x; exit 1"];
        answer(&[&["run"], &place[..], &how, &command].concat())
    };
    let three = runs("3");
    assert_eq!(three.stdout, "x\nx\nx\n", "{}", three.stderr);
    let words = "3 runs in a row made no new checkpoint";
    assert!(three.stderr.contains(words), "{}", three.stderr);
    let one = runs("1");
    assert_eq!(one.stdout, "x\n", "{}", one.stderr);
    assert_eq!(runs("0").stdout, "x\nx\nx\nx\nx\n");
}

// Breaks if: what cannot work is tried again; a mistyped command or option would burn the whole
// allocation.
#[test]
fn what_cannot_work_is_not_tried_again() {
    for (script, code, words) in [
        ("exec /nonexistent/solver", 127, "the command was not found"),
        ("exec /dev/null", 126, "the command cannot be executed"),
    ] {
        let done = answer(&["run", "--", "sh", "-c", script]);
        assert_eq!(done.code, code, "{}", done.stderr);
        assert!(done.stderr.contains(words), "{}", done.stderr);
        assert!(!done.stderr.contains("starting run 2"), "{}", done.stderr);
    }
    let scratch = Scratch::new();
    let root = scratch.dir("pfs").display().to_string();
    let mistyped = format!("{}every_step = 3\n", options(&root));
    let done = supervised(&[], "ends", "cavity", &mistyped);
    let words = "not restarting: the job could not be opened: ";
    assert!(done.stderr.contains(words), "{}", done.stderr);
    assert!(done.stderr.contains("did you mean"), "{}", done.stderr);
    let site = crate::inspect::Site::new();
    crate::encrypted::write(&site);
    let other = site.scratch.dir("keys").join("other");
    std::fs::write(&other, "77".repeat(32)).unwrap();
    std::fs::set_permissions(&other, PermissionsExt::from_mode(0o600)).unwrap();
    let with_other = format!("encrypt_key = 'file:{}'\n", other.display());
    for key in ["", &with_other] {
        let without = options(&site.a) + key;
        let done = supervised(&[], "fails", "cavity", &without);
        let words = "not restarting: the key or permission that was missing would be missing again";
        assert!(done.stderr.contains(words), "{key}: {}", done.stderr);
        assert!(!done.stderr.contains("starting run 2"), "{}", done.stderr);
    }
}

#[test]
fn each_restart_without_progress_waits_longer_and_a_signal_ends_the_wait() {
    let often = ["--restarts", "2", "--no-progress", "0"];
    let how = ["--pause", "0.01", "--", "false"];
    let done = answer(&[&["run"], &often[..], &how].concat());
    for words in [
        "run 2 of at most 3 in 0.01 s",
        "run 3 of at most 3 in 0.02 s",
    ] {
        assert!(done.stderr.contains(words), "{}", done.stderr);
    }
    let mut child = orcheck(&["run", "--pause", "600", "--", "false"])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    said.read_line(&mut line).unwrap();
    assert!(line.contains("in 600 s"), "{line}");
    let process = child.id().to_string();
    let kill = std::process::Command::new("kill").arg(&process).status();
    assert!(kill.unwrap().success());
    assert_eq!(child.wait().unwrap().code(), Some(1));
    line.clear();
    said.read_to_string(&mut line).unwrap();
    // Breaks if: nobody waits; the signal would then end a second run.
    let words = "run 1 ended with exit code 1";
    assert!(line.contains(words), "{line}");
    assert!(line.contains("a signal asked to stop"), "{line}");
}

// Breaks if: a run counts only when its job is known; a program that crashes before it opens one,
// or a mistyped argument of mpirun, would be tried again to the last restart.
#[test]
fn runs_that_open_no_job_are_runs_without_progress() {
    let done = answer(&[
        "run",
        "--restarts",
        "9",
        "--pause",
        "0",
        "--",
        "sh",
        "-c",
        "echo x; exit 3",
    ]);
    assert_eq!(
        (done.code, done.stdout.as_str()),
        (3, "x\nx\n"),
        "{}",
        done.stderr
    );
    let words = "not restarting: 2 runs in a row opened no job that `orcheck run` knows of. Next: read the output of the command";
    assert!(done.stderr.contains(words), "{}", done.stderr);
    // Breaks if: the reason that the program had is called unheard of.
    let done = supervised(&["--restarts", "9"], "ends", "a", &options("/nowhere/a"));
    let words = "2 runs in a row could not open the job: ";
    assert!(
        done.stderr.contains(words) && done.stderr.contains("/nowhere/a"),
        "{}",
        done.stderr
    );
    // Breaks if: jobs of others in the directory hide that the command opens none.
    let scratch = Scratch::new();
    let root = scratch.dir("several").display().to_string();
    for job in ["one", "two"] {
        write(&[scratch.dir(&format!("several/{job}"))], &Spec::new(10, 1));
    }
    let how = ["--restarts", "9", "--pause", "0", "--dir", &root];
    let done = answer(&[&["run"], &how[..], &["--", "sh", "-c", "echo x; exit 3"]].concat());
    assert_eq!(done.stdout, "x\nx\n", "{}", done.stderr);
    assert!(
        done.stderr
            .contains("2 runs in a row made no new checkpoint"),
        "{}",
        done.stderr
    );
    // A program that gets further in directories of the environment does count.
    let scratch = Scratch::new();
    let root = scratch.dir("a").display().to_string();
    write(&[scratch.dir("a/cavity")], &Spec::new(10, 1));
    for step in [20, 30] {
        write(&[scratch.dir(&format!("{step}"))], &Spec::new(step, 1));
    }
    let (script, how) = (
        format!(
            "echo x; cp {0}/$((ORCHECK_RUN_ATTEMPT * 10 + 10))/* {root}/cavity/; exit 3",
            scratch.path().display()
        ),
        ["--restarts", "9", "--no-progress", "1", "--pause", "0"],
    );
    let mut command = orcheck(&[&["run"], &how[..], &["--", "sh", "-c", &script]].concat());
    let done = Answer::of(command.env("ORCHECK_GLOBAL", &root).output().unwrap());
    assert_eq!(done.stdout, "x\nx\nx\n", "{}", done.stderr);
}

// Breaks if: the directory of a job is taken for the one above it; the job would begin from nothing
// below its checkpoints.
#[test]
fn the_directory_of_the_job_itself_is_refused_before_the_command_starts() {
    let scratch = Scratch::new();
    write(&[scratch.dir("ck/cavity")], &Spec::new(10, 1));
    let above = scratch.path().join("ck").display().to_string();
    let own = format!("{above}/cavity");
    for job in [&[][..], &["--job", "cavity"]] {
        let place = ["run", "--dir", own.as_str()];
        let refused = answer(&[&place[..], job, &["--", "echo", "started"]].concat());
        assert_eq!(refused.code, 2, "{}", refused.stderr);
        let words = format!("--dir {own} is the directory of job cavity itself");
        assert!(refused.stderr.contains(&words), "{}", refused.stderr);
        let next = format!("Next: give --dir {above}\n");
        assert!(refused.stderr.contains(&next), "{}", refused.stderr);
        assert_eq!(refused.stdout, "");
    }
    let started = answer(&["run", "--dir", &above, "--", "echo", "started"]);
    assert_eq!(started.stdout, "started\n", "{}", started.stderr);
}

// Breaks if: one job's failure counts for another that was opened after it; a run that got on would
// not be started again.
#[test]
fn a_missing_key_of_one_job_ends_no_restarts_of_another() {
    let scratch = Scratch::new();
    let root = scratch.dir("pfs").display().to_string();
    let failed = "[[note]]\njob = 'locked'\nrefused = ''\nfailed = 'no key'\nfor_good = true\n";
    let opened = |job: &str| format!("[[note]]\njob = '{job}'\nepoch = 1\nglobal = ['{root}']\n");
    let run = |notes: &str| {
        let script = format!("cat >> $ORCHECK_RUN_REPORT <<'END'\n{notes}END\nexit 1");
        answer(&["run", "--pause", "0.01", "--", "sh", "-c", &script]).stderr
    };
    let said = run(&(opened("locked") + failed));
    assert!(
        said.contains("not restarting: the key or permission"),
        "{said}"
    );
    let others = [
        opened("locked") + failed + &opened("main"),
        // Opened again, with the key.
        opened("locked") + failed + &opened("locked"),
    ];
    for notes in &others {
        let said = run(notes);
        assert!(said.contains("starting run 2"), "{said}");
        assert!(!said.contains("job main could not restart"), "{said}");
    }
}
