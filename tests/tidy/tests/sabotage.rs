//! Every switch of `crates/format/src/sabotage.rs` takes a protection away somewhere, and the promises say which.
// It reads the tree.
#![allow(clippy::disallowed_methods, clippy::unwrap_used)]

use orcheck_format::sabotage::{Switch, off};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn sources(folder: &Path, into: &mut Vec<String>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path: PathBuf = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, into);
        } else if path.extension().is_some_and(|end| end == "rs") {
            into.push(std::fs::read_to_string(&path).unwrap());
        }
    }
}

// Breaks if: a protection is rewritten and its question gets lost, or a switch is added that nobody asks for or
// that the promises do not name.
#[test]
fn every_switch_is_asked_for_and_named_beside_its_promise() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut code = Vec::new();
    for entry in std::fs::read_dir(root.join("crates")).unwrap() {
        sources(&entry.unwrap().path().join("src"), &mut code);
    }
    let promises = std::fs::read_to_string(root.join("docs/semantics.md")).unwrap();
    let mut names = BTreeSet::new();
    for (switch, name, gone, tests) in Switch::ALL {
        assert!(names.insert(name), "two switches are called {name}");
        assert!(
            !gone.is_empty()
                && tests
                    .split(';')
                    .all(|test| test.split_whitespace().count() >= 2)
        );
        let question = format!("off(Switch::{switch:?})");
        assert!(
            code.iter().any(|text| text.contains(&question)),
            "nobody asks {question}: ask where the protection is"
        );
        assert!(
            promises.contains(&format!("`{name}`")),
            "docs/semantics.md does not say which promise `{name}` serves"
        );
        // Breaks if: a build without the cfg can take protections away.
        assert!(cfg!(orcheck_sabotage) || !off(*switch));
    }
}
