//! Tests that the committed `include/orcheck.h` is what cbindgen generates from the sources; with
//! `ORCHECK_WRITE_HEADER=1` in the environment, the test rewrites the header instead.

use std::path::Path;

const SOURCES: [&str; 12] = [
    "types",
    "registry",
    "session",
    "fault",
    "regions",
    "list",
    "checkpoint",
    "restart",
    "memory_files",
    "choose",
    "stats",
    "watch",
];

// Breaks if: a public function, type or comment changes without the header being rewritten.
#[test]
fn the_committed_header_is_the_generated_one() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(root.join("cbindgen.toml")).unwrap();
    let mut builder = cbindgen::Builder::new().with_config(config);
    for source in SOURCES {
        builder = builder.with_src(root.join("src").join(source).with_extension("rs"));
    }
    let bindings = builder.generate().unwrap();
    if rewriting() {
        bindings.write_to_file(root.join("include/orcheck.h"));
        return;
    }
    let mut generated = Vec::new();
    bindings.write(&mut generated);
    let generated = String::from_utf8(generated).unwrap();
    let committed = include_str!("../include/orcheck.h");
    let difference = committed
        .lines()
        .zip(generated.lines())
        .position(|(committed, generated)| committed != generated);
    let shorter = committed.lines().count().min(generated.lines().count());
    assert!(
        committed == generated,
        "include/orcheck.h differs from the sources, first in line {}; run \
         ORCHECK_WRITE_HEADER=1 cargo test -p orcheck-capi --test header and commit the result",
        difference.unwrap_or(shorter) + 1,
    );
}

#[expect(
    clippy::disallowed_methods,
    reason = "a switch of this test, not of the library"
)]
fn rewriting() -> bool {
    std::env::var("ORCHECK_WRITE_HEADER").is_ok_and(|value| value == "1")
}
