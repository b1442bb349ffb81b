//! Tests `place` with the driver that docs/placement.md shows, as a site would write one.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::answer;
use orcheck_fixtures::reading::Scratch;

/// The example of the documentation, as a program.
pub fn example(scratch: &Scratch) -> PathBuf {
    let doc = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/placement.md");
    let text = std::fs::read_to_string(doc).unwrap();
    let begin = text.find("#!/bin/sh").unwrap();
    let end = begin + text[begin..].find("```").unwrap();
    let path = scratch.path().join("driver");
    std::fs::write(&path, &text[begin..end]).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path
}

fn place(driver: &Path, dir: &Path, more: &[&str]) -> crate::Answer {
    let (driver, dir) = (driver.to_str().unwrap(), dir.to_str().unwrap());
    let asked = ["--json", "place", dir, "--driver", driver];
    answer(&[&asked[..], more].concat())
}

#[test]
fn a_sites_own_driver_places() {
    let scratch = Scratch::new();
    let driver = example(&scratch);
    let dir = scratch.dir("pfs");
    let table = "io1 up 900 1000\nio2 up 10 1000\nio3 drained\nio10 up 950 1000\n";
    std::fs::write(dir.join("servers.txt"), table).unwrap();
    let found = place(&driver, &dir, &[]);
    assert_eq!(found.code, 0, "{}", found.stderr);
    let document = found.json();
    let paths = ["io1", "io10"].map(|name| dir.join(name).display().to_string());
    assert_eq!(document["global"], serde_json::json!(paths));
    assert!(
        document["servers"][1]["left_out"]
            .as_str()
            .unwrap()
            .starts_with("full")
    );
    assert_eq!(document["servers"][2]["left_out"], "drained");
    // The same again, and a file with the option.
    let file = scratch.path().join("options.toml");
    let again = place(&driver, &dir, &["--write", file.to_str().unwrap()]);
    assert_eq!(again.json()["global"], document["global"]);
    let line = format!("global = ['{}', '{}']", paths[0], paths[1]);
    assert!(
        std::fs::read_to_string(&file)
            .unwrap()
            .ends_with(&format!("{line}\n"))
    );
    let text = answer(&[
        "place",
        dir.to_str().unwrap(),
        "--driver",
        driver.to_str().unwrap(),
    ]);
    assert!(
        text.stdout.ends_with(&format!("{line}\n")),
        "{}",
        text.stdout
    );
    assert!(
        text.stderr.contains("io3 is left out: drained"),
        "{}",
        text.stderr
    );
}

#[test]
fn a_driver_that_does_not_pin_is_found_out() {
    let scratch = Scratch::new();
    let driver = example(&scratch);
    let dir = scratch.dir("pfs");
    std::fs::write(dir.join("servers.txt"), "io1 up\n").unwrap();
    let text = std::fs::read_to_string(&driver).unwrap();
    // Breaks if: `where` is not asked, or its answer not compared.
    std::fs::write(&driver, text.replace("echo \"$3\" >", "echo io2 >")).unwrap();
    let found = place(&driver, &dir, &[]);
    assert_eq!(found.code, 1, "{}", found.stdout);
    assert!(found.stderr.contains("lies on io2"), "{}", found.stderr);
    std::fs::write(&driver, text.replace("cat \"$d/", "exit 3; cat \"$d/")).unwrap();
    let found = place(&driver, &dir, &[]);
    assert_eq!(found.code, 0, "{}", found.stderr);
    assert_eq!(found.json()["servers"][0]["verified"], false);
    std::fs::write(&driver, "#!/bin/sh\necho no rights >&2; exit 1\n").unwrap();
    let found = place(&driver, &dir, &[]);
    assert!(found.stderr.contains("no rights"), "{}", found.stderr);
    // A directory that is on no parallel file system.
    let plain = answer(&["place", dir.to_str().unwrap()]);
    assert_eq!(plain.code, 8, "{}", plain.stderr);
    assert!(plain.stderr.contains("--driver"), "{}", plain.stderr);
}
