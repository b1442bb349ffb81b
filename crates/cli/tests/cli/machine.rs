//! Tests `doctor`, `completions` and `man`.

use crate::answer;
use orcheck_fixtures::reading::Scratch;

#[test]
fn doctor_examines_directories_and_leaves_nothing() {
    let scratch = Scratch::new();
    let dir = scratch.dir("a");
    let shown = dir.display().to_string();
    let document = answer(&["doctor", "--json", "--dir", &shown]);
    let items = document.json()["items"].as_array().unwrap().clone();
    let of = |group: &str, item: &str| {
        items
            .iter()
            .find(|one| one["group"] == group && one["item"] == item)
            .unwrap_or_else(|| panic!("{group} {item} is missing in {items:?}"))
            .clone()
    };
    for (group, item) in [
        ("kernel", "version"),
        ("kernel", "userfaultfd"),
        ("kernel", "PAGEMAP_SCAN"),
        ("kernel", "MADV_POPULATE_WRITE"),
        ("kernel", "openat2"),
        ("kernel", "io_uring"),
        ("processors", "usable"),
        ("processors", "SMT siblings"),
        ("memory", "usable"),
        ("memory", "/dev/shm"),
        ("memory", "huge pages"),
        ("limits", "open files"),
        ("limits", "locked memory"),
        (&shown, "file system"),
        (&shown, "O_DIRECT"),
        (&shown, "fsync"),
    ] {
        let one = of(group, item);
        let verdict = one["verdict"].as_str().unwrap();
        assert!(["ok", "note", "problem"].contains(&verdict));
        assert!(!one["found"].as_str().unwrap().is_empty());
        assert_eq!(verdict == "ok", one["advice"].is_null(), "{one}");
    }
    assert_eq!(of(&shown, "rename and directory fsync")["verdict"], "ok");
    assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 0);
    // A directory that is not there is a problem, with exit code 1.
    let missing = answer(&["doctor", "--json", "--dir", "/nonexistent"]);
    assert_eq!(missing.code, 1);
    assert!(missing.json()["problems"].as_u64().unwrap() >= 1);
    let text = answer(&["doctor"]);
    assert!(
        text.stdout.contains("notes,") || text.stdout.contains("note,"),
        "{}",
        text.stdout
    );
}

#[test]
fn completions_for_each_shell() {
    for shell in ["bash", "zsh", "fish"] {
        let script = answer(&["completions", shell]);
        assert_eq!(script.code, 0);
        assert!(
            script.stdout.contains("orcheck") && script.stdout.contains("verify"),
            "{shell}"
        );
    }
    assert_eq!(
        answer(&["completions", "bash", "--json"]).json()["shell"],
        "bash"
    );
    assert_eq!(answer(&["completions", "csh"]).code, 2);
}

#[test]
fn manual_pages() {
    let scratch = Scratch::new();
    let dir = scratch.path().join("man");
    let shown = dir.display().to_string();
    assert_eq!(answer(&["man", &shown]).code, 0);
    for page in [
        "orcheck.1",
        "orcheck-ls.1",
        "orcheck-show.1",
        "orcheck-verify.1",
        "orcheck-restore.1",
        "orcheck-run.1",
        "orcheck-doctor.1",
        "orcheck-plan.1",
        "orcheck-plan-burst.1",
        "orcheck-plan-survival.1",
    ] {
        let text = std::fs::read_to_string(dir.join(page)).unwrap();
        assert!(
            text.contains(".TH") && text.contains("EXIT STATUS"),
            "{page}"
        );
    }
    // Breaks if: what separates the command from our options is left out; pasted, it would be an
    // error.
    let run = std::fs::read_to_string(dir.join("orcheck-run.1")).unwrap();
    assert!(run.contains(r"\-\- <\fICOMMAND"), "{run}");
    assert_eq!(answer(&["man", &shown]).code, 2, "pages are not replaced");
    assert_eq!(answer(&["man", &shown, "--force"]).code, 0);
}
