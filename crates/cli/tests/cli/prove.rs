//! Tests `prove`: it finds what a restart does not restore.

use crate::program::{command_line, tell};
use crate::{Answer, answer, orcheck};
use orcheck_fixtures::reading::Scratch;

/// Small, and with a directory that nobody may use: the program's own stay as they are.
const OPTIONS: &str =
    "global = '/nonexistent/own'\nevery_s = 600\npool = '4 MiB'\nchunk = '64 KiB'\n";

fn prove(scratch: &Scratch, arguments: &[&str], what: &str) -> Answer {
    prove_with(scratch, arguments, what, "")
}

/// The same with options of the program's own as well.
fn prove_with(scratch: &Scratch, arguments: &[&str], what: &str, more: &str) -> Answer {
    let line = command_line();
    let dir = scratch.path().display().to_string();
    let mut all = vec!["prove", "--dir", &dir];
    all.extend(arguments);
    all.push("--");
    all.extend(line.iter().map(String::as_str));
    let mut command = orcheck(&all);
    // Checkpoints that the program disables are what is to be proven all the same.
    let options = format!("{OPTIONS}enabled = false\n{more}");
    tell(&mut command, what, "cavity", &options);
    Answer::of(command.output().unwrap())
}

fn left(scratch: &Scratch) -> usize {
    std::fs::read_dir(scratch.path()).unwrap().count()
}

#[test]
fn a_program_that_protects_all_it_computes_from_is_proven() {
    let scratch = Scratch::new();
    let before = left(&scratch);
    let done = prove(&scratch, &["--every", "5"], "solves");
    assert_eq!(done.code, 0, "{}{}", done.stdout, done.stderr);
    let words = "proven: at step 10, 3 regions";
    assert!(done.stdout.starts_with(words), "{}", done.stdout);
    assert!(
        done.stdout.contains("restarted from step 5"),
        "{}",
        done.stdout
    );
    assert_eq!(left(&scratch), before, "what was made is removed");
}

// Breaks if: the second run begins from nothing, or the checkpoints of one run are compared with
// themselves.
#[test]
fn a_counter_that_nobody_protected_is_found() {
    let scratch = Scratch::new();
    let done = prove(&scratch, &[], "solves-forgetful");
    assert_eq!(done.code, 14, "{}{}", done.stdout, done.stderr);
    // 1 + … + 22 undisturbed; 1 + … + 11 twice when the counter begins again.
    let words = "region v of rank 0 differs in 1 element, first element 17: 253 undisturbed, 132 after the restart";
    assert!(done.stdout.contains(words), "{}", done.stdout);
    assert!(
        done.stdout
            .contains("not proven: 1 of 2 regions differ at step 22"),
        "{}",
        done.stdout
    );
    let document = prove(&scratch, &["--json"], "solves-forgetful").json();
    assert_eq!(document["differences"][0]["region"], "v");
    assert_eq!(
        (&document["from_step"], &document["at_step"]),
        (&11.into(), &22.into())
    );
}

// Breaks if: the checkpoints compared are a multiple of two steps apart; the buffers are then back
// where they were.
#[test]
fn a_program_that_swaps_buffers_and_protects_one_of_them_once_is_found_without_options() {
    let scratch = Scratch::new();
    let done = prove(&scratch, &[], "solves-swapping");
    assert_eq!(done.code, 14, "{}{}", done.stdout, done.stderr);
    let words = "region v of rank 0 differs in 1 element, first element 17: 22 undisturbed, 20 after the restart";
    assert!(done.stdout.contains(words), "{}", done.stdout);
}

// Breaks if: bytes that no field of a structure uses are called a variable that was forgotten.
#[test]
fn a_difference_in_bytes_without_a_type_names_padding_as_a_cause() {
    let scratch = Scratch::new();
    let done = prove(&scratch, &[], "solves-padded");
    assert_eq!(done.code, 14, "{}{}", done.stdout, done.stderr);
    let words = "region cells of rank 0 differs in ";
    assert!(done.stdout.contains(words), "{}", done.stdout);
    let words = "the unused bytes between their fields differ too";
    assert!(done.stdout.contains(words), "{}", done.stdout);
    assert!(
        !prove(&scratch, &[], "solves-forgetful")
            .stdout
            .contains(words)
    );
}

#[test]
fn what_differs_between_undisturbed_runs_can_be_left_out() {
    let scratch = Scratch::new();
    let done = prove(&scratch, &[], "solves-noisy");
    assert_eq!(done.code, 14, "{}{}", done.stdout, done.stderr);
    assert!(
        done.stdout.contains("first element 3: 22.0"),
        "{}",
        done.stdout
    );
    let done = prove(&scratch, &["--tolerance", "1e-3"], "solves-noisy");
    assert_eq!(done.code, 0, "{}{}", done.stdout, done.stderr);
    let words = "2 regions (98.4 KiB) are the same within the tolerance of 0.001 (1 element differs in its bytes) in the undisturbed run";
    assert!(done.stdout.contains(words), "{}", done.stdout);
    let done = prove(&scratch, &["--twice"], "solves-noisy");
    assert_eq!(done.code, 0, "{}{}", done.stdout, done.stderr);
    let words = "left out: 1 of 100 elements of region v of rank 0, which differ between two undisturbed runs";
    assert!(done.stdout.contains(words), "{}", done.stdout);
    let words = "have the same bytes, apart from what is left out, in the undisturbed run";
    assert!(done.stdout.contains(words), "{}", done.stdout);
}

/// Proves the program when a shell starts it, as mpirun would, and says what the shell left.
fn prove_launched(on_term: &str) -> (Answer, bool) {
    let scratch = Scratch::new();
    let made = scratch.path().join("made");
    let script = format!("trap {on_term:?} TERM; : > $MADE; \"$@\" & wait; exec tail -f /dev/null");
    let dir = scratch.path().display().to_string();
    let mut all = vec!["prove", "--dir", &dir, "--", "sh", "-c", &script, "sh"];
    let line = command_line();
    all.extend(line.iter().map(String::as_str));
    let mut command = orcheck(&all);
    command.env("MADE", &made);
    tell(&mut command, "solves", "cavity", OPTIONS);
    let done = Answer::of(command.output().unwrap());
    (done, made.exists())
}

// Breaks if: mpirun is killed as its ranks are; what it and they made in /dev/shm stays until the
// machine is started again.
#[test]
fn what_starts_the_program_is_asked_to_end_and_cleans_up() {
    let (done, stays) = prove_launched("rm $MADE; exit");
    assert_eq!(done.code, 0, "{}{}", done.stdout, done.stderr);
    assert!(!stays, "the launcher was killed before it could remove it");
}

#[test]
fn what_starts_the_program_and_does_not_end_when_asked_is_killed() {
    let (done, stays) = prove_launched("");
    assert_eq!(done.code, 0, "{}{}", done.stdout, done.stderr);
    assert!(stays);
}

#[test]
fn a_command_that_takes_too_few_checkpoints_is_told_what_to_do() {
    let missing = answer(&["prove", "--", "./no-such-command"]);
    assert_eq!(missing.code, 10, "{}", missing.stderr);
    let words = "command ./no-such-command does not exist. Next: check its name and PATH";
    assert!(missing.stderr.contains(words), "{}", missing.stderr);
    let scratch = Scratch::new();
    let done = prove(&scratch, &[], "ends");
    assert_eq!(done.code, 1, "{}{}", done.stdout, done.stderr);
    // Breaks if: a program that works is reported to have failed; the number of steps is what to
    // change.
    let words = "ended without a checkpoint, although one was due every 11 steps. Next: give an --every smaller";
    assert!(done.stderr.contains(words), "{}", done.stderr);
    let late = prove(
        &scratch,
        &["--timeout", "1s", "--every", "1000000000000"],
        "solves",
    );
    assert_eq!(late.code, 12, "{}{}", late.stdout, late.stderr);
    let left_alive = prove(&scratch, &["--tolerance", "2"], "solves");
    assert_eq!(left_alive.code, 2, "{}", left_alive.stderr);
}

// Breaks if: what the program wants for a whole machine is asked of the one node on which it is
// proven.
#[test]
fn a_program_with_replicas_is_proven_on_one_node() {
    let scratch = Scratch::new();
    let node = scratch.dir("node").display().to_string();
    let replicas = format!(
        "node_dir = '{node}'\npeers = 2\nreplicas = 3\nreplica_store = 'memory'\nagent = 'start'\n"
    );
    let done = prove_with(&scratch, &["--every", "5"], "solves", &replicas);
    assert_eq!(done.code, 0, "{}{}", done.stdout, done.stderr);
    assert!(done.stdout.starts_with("proven: "), "{}", done.stdout);
}

// Breaks if: its checkpoints are written for everybody to read, or cannot be compared.
#[test]
fn an_encrypted_job_stays_encrypted_and_is_proven_with_its_key() {
    let scratch = Scratch::new();
    let key = scratch.path().join("key");
    std::fs::write(&key, "ab".repeat(32)).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(&key, mode).unwrap();
    let source = format!("file:{}", key.display());
    let encrypted = format!("encrypt = 'aes-256-gcm'\nencrypt_key = '{source}'\n");
    let given = [
        "--every",
        "5",
        "--timeout",
        "1min",
        "--encrypt-key",
        &source,
    ];
    let with_key = prove_with(
        &scratch,
        &[&given[..], &["--keep"]].concat(),
        "solves",
        &encrypted,
    );
    assert_eq!(with_key.code, 0, "{}{}", with_key.stdout, with_key.stderr);
    assert!(
        with_key.stdout.starts_with("proven: "),
        "{}",
        with_key.stdout
    );
    // Breaks if: the key of the command line is not given to the program.
    let handed = prove_with(&scratch, &given, "solves", "encrypt = 'aes-256-gcm'\n");
    assert_eq!(handed.code, 0, "{}{}", handed.stdout, handed.stderr);
    let kept = with_key.stdout.lines().last().unwrap();
    let kept = kept.strip_prefix("kept: ").unwrap();
    for run in ["undisturbed", "resumed"] {
        let global = format!("{kept}/{run}/global");
        let locked = crate::answer(&["verify", "--json", "--dir", &global]).json();
        assert!(
            locked["checkpoints"][0]["locked_bytes"].as_u64() > Some(0),
            "{locked}"
        );
    }
    // One of another job in the environment does no harm, and without one it is reported what is
    // missing.
    let plain = prove(&scratch, &given, "solves");
    assert_eq!(plain.code, 0, "{}{}", plain.stdout, plain.stderr);
    let without = prove_with(&scratch, &["--every", "5"], "solves", &encrypted);
    assert_eq!(without.code, 2, "{}{}", without.stdout, without.stderr);
    assert!(
        without
            .stderr
            .contains("Next: for an encrypted job give --encrypt-key"),
        "{}",
        without.stderr
    );
}
