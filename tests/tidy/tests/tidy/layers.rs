//! The layers of crates: an edge may only point down.

use std::collections::BTreeMap;

/// An edge goes from a higher layer to a lower one, never sideways.
pub const LAYERS: [(&str, u32); 20] = [
    ("orcheck-format", 0),
    ("orcheck-placement", 1),
    ("orcheck-interval", 1),
    ("orcheck-io", 1),
    ("orcheck-planner", 2),
    ("orcheck-pool", 2),
    ("orcheck-net", 2),
    ("orcheck-staging", 3),
    ("orcheck-engine", 4),
    ("orcheck-client", 5),
    ("orcheck-capi", 6),
    ("orcheck-mount", 6),
    ("orcheck-python", 6),
    ("orcheck-cli", 7),
    // Beside the layers: they use what they need, and nothing may use them.
    ("orcheck-testing", BESIDE),
    ("orcheck-fixtures", BESIDE),
    ("orcheck-jobs", BESIDE),
    ("orcheck-dst", BESIDE),
    ("orcheck-tidy", BESIDE),
    ("orcheck-fuzz", BESIDE),
];
pub const BESIDE: u32 = 100;
/// No I/O and no clock: these may use each other and nothing else of ours.
pub const PURE: [&str; 4] = [
    "orcheck-format",
    "orcheck-placement",
    "orcheck-interval",
    "orcheck-planner",
];
/// An edge of the dependency graph: from, to, and whether only tests use it.
pub type Edge<'a> = (&'a str, &'a str, bool);

pub fn wrong_edges(packages: &[&str], edges: &[Edge<'_>]) -> Vec<String> {
    let layers = BTreeMap::from(LAYERS);
    let mut found = vec![];
    for package in packages {
        if !layers.contains_key(package) {
            found.push(format!(
                "package {package} has no layer: add it to LAYERS in tests/tidy/tests/tidy.rs and \
                 to the code map in ARCHITECTURE.md"
            ));
        }
    }
    for &(from, to, only_tests) in edges {
        let (Some(&above), Some(&below)) = (layers.get(from), layers.get(to)) else {
            continue;
        };
        if below == BESIDE && above != BESIDE && !only_tests {
            found.push(format!(
                "{from} depends on {to}: nothing may depend on {to}"
            ));
        } else if above <= below && above != BESIDE && !only_tests {
            found.push(format!(
                "{from} (layer {above}) depends on {to} (layer {below}): an edge may only point \
                 down. Move the shared part to a lower layer, or pass it in as a trait"
            ));
        } else if PURE.contains(&from) && !PURE.contains(&to) && !only_tests {
            found.push(format!(
                "{from} depends on {to}: {from} is pure and may use pure crates only"
            ));
        }
    }
    found
}
