//! Descriptors are made by `descriptor.rs` of `io`, above the standard streams.
// It reads the tree.
#![allow(clippy::disallowed_methods, clippy::unwrap_used)]

use std::path::{Path, PathBuf};

/// Calls that make a descriptor.
const CALLS: [&str; 15] = [
    " fs::open(",
    "(fs::open(",
    "fs::openat",
    "memfd_create(",
    "socket_with(",
    "socketpair(",
    "accept_with(",
    "epoll::create(",
    "eventfd(",
    "pipe(",
    "pipe_with(",
    "File::open(",
    "IoUring::new(",
    ".spawn()",
    "from_raw_fd(",
];

/// The lines that make a descriptor and do not say beside it that it is moved.
fn stray(text: &str) -> Vec<usize> {
    let code = text.split("#[cfg(test)]").next().unwrap();
    let lines: Vec<&str> = code.lines().collect();
    let makes = |line: &str| {
        !line.trim_start().starts_with("//") && CALLS.iter().any(|call| line.contains(call))
    };
    let moved =
        |line: &&str| line.contains("away_from_streams(") || line.contains("above_streams(");
    (0..lines.len())
        .filter(|&at| makes(lines[at]))
        .filter(|&at| {
            let near = &lines[at.saturating_sub(1)..lines.len().min(at + 2)];
            !near.iter().any(moved)
        })
        .collect()
}

fn sources(folder: &Path, into: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        // What is tried and closed at once.
        let exempt = ["probe.rs", "descriptor.rs"];
        let name = path.file_name().unwrap().to_str().unwrap();
        if exempt.contains(&name) {
            continue;
        }
        if path.is_dir() {
            sources(&path, into);
        } else if name.ends_with(".rs") {
            into.push(path);
        }
    }
}

// Breaks if: a module of `io`, `pool`, `net` or `staging` opens a file by itself; a program whose
// standard output is closed would print into it.
#[test]
fn no_other_module_makes_descriptors() {
    let mut found = Vec::new();
    let mut files = Vec::new();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    for name in ["io", "pool", "net", "staging"] {
        sources(&root.join("crates").join(name).join("src"), &mut files);
    }
    assert!(files.len() > 50);
    for path in files {
        let text = std::fs::read_to_string(&path).unwrap();
        let lines = stray(&text).into_iter();
        found.extend(lines.map(|at| format!("{}:{}", path.display(), at + 1)));
    }
    assert_eq!(found, Vec::<String>::new());
}

#[test]
fn a_planted_descriptor_is_found() {
    assert_eq!(stray("let a = 1;\nlet d = fs::openat(a, n, f, m);\n"), [1]);
    assert_eq!(stray("let s = net::socket_with(f, t, g, None);"), [0]);
    assert!(stray("// fs::openat(a, n, f, m)\nlet d = descriptor::openat(a, n, f, m);").is_empty());
    assert!(stray("let d = above_streams(fs::openat(a, n, f, m)?);").is_empty());
}
