//! Tests `plan burst`: the table, the document, parameters, and result files.

use std::path::Path;

use serde_json::{Value, json};

use crate::answer;
use orcheck_fixtures::reading::Scratch;

#[test]
fn a_burst_is_computed_in_every_mode_with_and_without_page_caches() {
    let arguments = [
        "plan",
        "burst",
        "--nodes",
        "8",
        "--ranks-per-node",
        "4",
        "--total-gb",
        "1",
    ];
    let text = answer(&arguments);
    assert_eq!(text.code, 0, "{}", text.stderr);
    let rows = text.stdout.lines().take_while(|line| !line.is_empty());
    assert_eq!(rows.count(), 7, "{}", text.stdout);
    let document = answer(&[&arguments[..], &["--json"]].concat()).json();
    assert_eq!(document["command"], "plan burst");
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
        "burst",
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
        ("disk.rate_bytes_per_s=0", "1 byte a second or more"),
        ("disk.rate_bytes_per_s=inf", "disk.rate_bytes_per_s=inf: "),
        ("disk.seek_max_s=NaN", "disk.seek_max_s=NaN: "),
        ("disk.seek_min_s=-1", "0 or more"),
        ("server.window=1e12", "server.window=1e12: "),
        ("server.request_bytes=100", "a sector"),
        ("fixed.vertical_s=1e300", "fixed.vertical_s"),
        ("disk.rate_bytes_per_s=fast", "expected a number"),
        ("server.at_once=1.5", "whole number"),
        ("server.at_once=-1", "0 or more"),
        ("server.at_once", "NAME=VALUE"),
    ] {
        let refused = answer(&["plan", "burst", "--set", set]);
        assert_eq!(refused.code, 2, "{set}");
        assert!(refused.stderr.contains(says), "{set}: {}", refused.stderr);
    }
    // Breaks if: a burst that would take days is begun.
    for (option, value, says) in [
        ("--nodes", "0", "expected a whole number from 1 to"),
        ("--ranks-per-node", "0", "expected a whole number from 1 to"),
        ("--servers", "0", "expected a whole number from 1 to"),
        ("--mode", "diagonal", "orchestrated"),
        ("--total-gb", "1e6", "client.request_bytes"),
        ("--total-gb", "1e10", "bytes of a burst"),
        ("--nodes", "200000", "share of the nodes"),
    ] {
        let refused = answer(&["plan", "burst", option, value]);
        assert_eq!(refused.code, 2, "{option} {value}: {}", refused.stdout);
        assert!(
            refused.stderr.contains(says),
            "{option} {value}: {}",
            refused.stderr
        );
    }
}

#[test]
fn a_result_file_is_compared_case_by_case() {
    let scratch = Scratch::new();
    let path = scratch.path().join("contention.json");
    let shown = path.display().to_string();
    let predicted = answer(&["plan", "burst", "--json", "--total-gb", "1"]).json();
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
        let found = answer(&["plan", "burst", "--json", "--from", &shown]).json();
        let setup = &found["setups"][0];
        assert_eq!(setup["name"], "as computed");
        let deviation = setup["cases"][0]["deviation"].as_f64().unwrap();
        assert!((deviation + 0.2).abs() < 1e-9, "{deviation}");
        assert_eq!(setup["largest_deviation"], setup["cases"][0]["deviation"]);
        let text = answer(&["plan", "burst", "--from", &shown]);
        assert!(
            text.stdout.contains("largest deviation: -20.0 %"),
            "{}",
            text.stdout
        );
    }
    let missing = answer(&["plan", "burst", "--from", "/nonexistent/file.json"]);
    assert_eq!(missing.code, 10);
}

#[test]
fn what_is_wrong_with_a_result_file_is_named() {
    let scratch = Scratch::new();
    let path = scratch.path().join("contention.json");
    let shown = path.display().to_string();
    let good = model();
    // Breaks if: something is filled in, or the place of what is wrong is not told.
    for (at, value, says) in [
        ("/server/window", "", "model.server.window: "),
        ("/server", "", "model.server: "),
        (
            "/disk/rate_bytes_per_s",
            "\"fast\"",
            "model.disk.rate_bytes_per_s: ",
        ),
        (
            "/disk/rate_bytes_per_s",
            "0",
            "disk.rate_bytes_per_s: expected 1 byte",
        ),
        ("/client/in_flight", "1.5", "model.client.in_flight: "),
        (
            "/client/in_flight",
            "1099511627776",
            "model.client.in_flight: ",
        ),
        ("/network", "[]", "model.network"),
        ("/network/speed", "1", "speed"),
        (
            "/fixed",
            r#"{"vertical_s": 1}"#,
            "model.fixed.orchestrated_s: ",
        ),
        ("/cases", "", "model.cases: "),
        (
            "/cases",
            "[]",
            "model.cases: expected a list of at least one burst",
        ),
        ("/cases/0", "7", "model.cases[0]: expected an object"),
        ("/cases/0/nodes", "", "model.cases[0].nodes: "),
        ("/cases/0/nodes", "\"many\"", "model.cases[0].nodes: "),
        ("/cases/0/nodes", "0", "cases[0]: nodes of a burst"),
        ("/cases/0/mode", "\"diagonal\"", "model.cases[0].mode: "),
        ("/cases/0/measured_s", "-1", "cases[0]: measured_s: "),
        (
            "/cases/0/small",
            r#"{"measured_s": 1}"#,
            "model.cases[0].small: ",
        ),
        (
            "/cases/0/small",
            r#"{"measured_s": 1, "bytes_per_rank": 1073741824}"#,
            "cases[0]: small.bytes_per_rank: ",
        ),
    ] {
        // None: it is missing.
        let value: Option<Value> = serde_json::from_str(value).ok();
        let mut model = good.clone();
        let (parent, name) = at.rsplit_once('/').unwrap();
        match (model.pointer_mut(parent).unwrap(), value) {
            (Value::Object(table), Some(value)) => drop(table.insert(name.to_owned(), value)),
            (Value::Object(table), None) => drop(table.remove(name)),
            (list, value) => list[0] = value.unwrap(),
        }
        refused(&path, &json!({ "model": model }), &[&shown, says]);
    }
    for (document, says) in [
        (json!(7), "a JSON object, found a number"),
        (json!([good]), "a JSON object, found a list"),
        (json!({}), "model: "),
        (json!({ "model": [] }), "model: expected at least one"),
        (json!({ "model": {} }), "model.client: "),
        (
            json!({ "model": 7 }),
            "model: expected an object, found a number",
        ),
        (
            json!({ "model": null }),
            "model: expected an object, found null",
        ),
        (json!({ "model": [good, "x"] }), "model[1]: "),
    ] {
        refused(&path, &document, &[&shown, says]);
    }
    std::fs::write(&path, "{").unwrap();
    let found = answer(&["plan", "burst", "--from", &shown]);
    assert!(
        found.code == 2 && found.stderr.contains("JSON"),
        "{}",
        found.stderr
    );
}

fn refused(path: &Path, document: &Value, says: &[&str]) {
    std::fs::write(path, document.to_string()).unwrap();
    let found = answer(&["plan", "burst", "--from", path.to_str().unwrap()]);
    assert_eq!(found.code, 2, "{document}: {}", found.stderr);
    for says in says {
        assert!(found.stderr.contains(says), "{says}: {}", found.stderr);
    }
}

/// A set-up with one small case.
fn model() -> Value {
    let predicted = answer(&[
        "plan",
        "burst",
        "--json",
        "--nodes",
        "4",
        "--total-gb",
        "0.1",
        "--mode",
        "vertical",
    ])
    .json();
    let burst = &predicted["bursts"][0];
    let mut model = predicted["parameters"].clone();
    model["cases"] = json!([{
        "mode": "vertical", "nodes": 4, "ranks_per_node": 8, "servers": 4, "bytes_per_rank": burst["bytes_per_rank"],
        "cached": false, "measured_s": burst["time_s"],
    }]);
    model
}

// Breaks if: what the bytes of the small burst take is counted twice, or `--set` does not have the
// last word.
#[test]
fn what_is_fixed_is_taken_from_a_burst_of_small_images() {
    let scratch = Scratch::new();
    let path = scratch.path().join("contention.json");
    let shown = path.display().to_string();
    let mut model = model();
    let compared = |model: &Value, more: &[&str]| {
        std::fs::write(&path, json!({ "model": model }).to_string()).unwrap();
        let asked = ["plan", "burst", "--json", "--from", &shown];
        let found = answer(&[&asked[..], more].concat());
        assert_eq!(found.code, 0, "{}", found.stderr);
        found.json()["setups"][0]["cases"][0].clone()
    };
    let number = |case: &Value, name: &str| case[name].as_f64().unwrap();
    let plain = compared(&model, &[]);
    assert_eq!(number(&plain, "fixed_s"), 0.0);
    // What its bytes take, computed as a case of its own.
    let mut tiny = model.clone();
    tiny["cases"][0]["bytes_per_rank"] = json!(4096);
    let bytes_s = number(&compared(&tiny, &[]), "time_s");
    model["cases"][0]["small"] = json!({ "bytes_per_rank": 4096, "measured_s": bytes_s + 2.5 });
    let with = compared(&model, &[]);
    assert!((number(&with, "fixed_s") - 2.5).abs() < 1e-9, "{with}");
    let more = number(&with, "time_s") - number(&plain, "time_s");
    assert!((more - 2.5).abs() < 1e-9, "{more}");
    let set = compared(&model, &["--set", "fixed.vertical_s=1"]);
    assert_eq!(number(&set, "fixed_s"), 1.0);
    let text = answer(&["plan", "burst", "--from", &shown]).stdout;
    assert!(text.contains("2.50 s"), "{text}");
    // Less than its bytes take by the model: nothing is fixed.
    model["cases"][0]["small"]["measured_s"] = json!(bytes_s / 2.0);
    assert_eq!(number(&compared(&model, &[]), "fixed_s"), 0.0);
}
