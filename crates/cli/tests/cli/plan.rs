//! `plan contention`: the table, the document, parameters, and result files.

use serde_json::{Value, json};

use crate::answer;
use crate::fixture::Scratch;

#[test]
fn a_burst_is_computed_in_every_mode_with_and_without_page_caches() {
    let arguments = [
        "plan",
        "contention",
        "--nodes",
        "8",
        "--ranks-per-node",
        "4",
        "--total-gb",
        "1",
    ];
    let text = answer(&arguments);
    assert_eq!(text.code, 0, "{}", text.stderr);
    assert_eq!(text.stdout.lines().count(), 7, "{}", text.stdout);
    let document = answer(&[&arguments[..], &["--json"]].concat()).json();
    assert_eq!(document["command"], "plan contention");
    assert_eq!(document["parameters"]["disk"]["rate_bytes_per_s"], 55e6);
    let bursts = document["bursts"].as_array().unwrap();
    let time = |mode: &str, cached: bool| {
        let of = |burst: &&Value| burst["mode"] == mode && burst["cached"] == cached;
        bursts.iter().find(of).unwrap()["time_s"].as_f64().unwrap()
    };
    assert!(time("traditional", false) > time("vertical", false));
    assert!(time("vertical", false) > time("orchestrated", false));
    assert!(time("traditional", true) < time("traditional", false));
    assert_eq!(bursts[0]["streams_per_server"], 32);
}

#[test]
fn parameters_can_be_set_and_unknown_ones_are_named() {
    let fast = answer(&[
        "plan",
        "contention",
        "--json",
        "--total-gb",
        "0.5",
        "--mode",
        "orchestrated",
        "--set",
        "disk.rate_bytes_per_s=500e6",
        "--set",
        "server.at_once=2",
        "--set",
        "client.request_bytes=1e5",
    ])
    .json();
    assert_eq!(fast["parameters"]["disk"]["rate_bytes_per_s"], 500e6);
    assert_eq!(fast["parameters"]["client"]["request_bytes"], 100_000);
    assert_eq!(fast["bursts"].as_array().unwrap().len(), 2);
    assert_eq!(fast["bursts"][0]["streams_per_server"], 2);
    for (set, says) in [
        ("disk.rate=1", "disk.rate_bytes_per_s"),
        ("disk.rate_bytes_per_s=0", "a rate above 0"),
        ("disk.rate_bytes_per_s=fast", "expected a number"),
        ("server.at_once=1.5", "whole number"),
        ("server.at_once=-1", "whole number"),
        ("server.at_once", "NAME=VALUE"),
    ] {
        let refused = answer(&["plan", "contention", "--set", set]);
        assert_eq!(refused.code, 2, "{set}");
        assert!(refused.stderr.contains(says), "{set}: {}", refused.stderr);
    }
}

#[test]
fn a_result_file_is_compared_case_by_case() {
    let scratch = Scratch::new();
    let path = scratch.path().join("contention.json");
    let shown = path.display().to_string();
    let predicted = answer(&["plan", "contention", "--json", "--total-gb", "1"]).json();
    let burst = &predicted["bursts"][0];
    let mut model = predicted["parameters"].clone();
    model["name"] = json!("as computed");
    model["cases"] = json!([{
        "mode": "traditional", "nodes": 32, "ranks_per_node": 8, "servers": 4, "bytes_per_rank": burst["bytes_per_rank"],
        "cached": false, "measured_s": burst["time_s"].as_f64().unwrap() * 1.25, "note": "of somebody else",
    }]);
    let write = |document: &Value| std::fs::write(&path, document.to_string()).unwrap();
    for form in [json!(model), json!([model, model])] {
        write(&json!({ "commit": "x", "model": form }));
        let found = answer(&["plan", "contention", "--json", "--from", &shown]).json();
        let setup = &found["setups"][0];
        assert_eq!(setup["name"], "as computed");
        let deviation = setup["cases"][0]["deviation"].as_f64().unwrap();
        assert!((deviation + 0.2).abs() < 1e-9, "{deviation}");
        assert_eq!(setup["largest_deviation"], setup["cases"][0]["deviation"]);
        let text = answer(&["plan", "contention", "--from", &shown]);
        assert!(
            text.stdout.contains("largest deviation: -20.0 %"),
            "{}",
            text.stdout
        );
    }
    // Nothing is filled in.
    let mut lacking = model.clone();
    lacking["server"].as_object_mut().unwrap().remove("window");
    for (document, says) in [
        (json!({ "model": lacking }), "window"),
        (json!({}), "'model'"),
    ] {
        write(&document);
        let refused = answer(&["plan", "contention", "--from", &shown]);
        assert_eq!(refused.code, 2);
        assert!(refused.stderr.contains(says), "{}", refused.stderr);
    }
    let missing = answer(&["plan", "contention", "--from", "/nonexistent/file.json"]);
    assert_eq!(missing.code, 10);
}
