//! Tests `plan survival`, `interval`, `simulate` and `overhead`: tables, documents, and refusals.

use serde_json::Value;

use crate::answer;
use orcheck_fixtures::reading::Scratch;

/// The worked example of the document: 2 checkpoints of 6.25 GB a node.
const OVERHEAD: [&str; 9] = [
    "overhead",
    "--checkpoints",
    "2",
    "--node-gb",
    "6.25",
    "--memory-gb-s",
    "40",
    "--io-gb-s",
    "0.25",
];

fn document(arguments: &[&str]) -> Value {
    let answer = answer(&[&["plan"], arguments, &["--json"]].concat());
    assert_eq!(answer.code, 0, "{}", answer.stderr);
    answer.json()
}

fn text(arguments: &[&str]) -> String {
    let answer = answer(&[&["plan"], arguments].concat());
    assert_eq!(answer.code, 0, "{}", answer.stderr);
    answer.stdout
}

/// Exit code 2, and a message with the flag, what was found and what was expected.
fn refused(arguments: &[&str], parts: &[&str]) {
    let answer = answer(&[&["plan"], arguments].concat());
    assert_eq!(
        answer.code, 2,
        "{arguments:?}: {}{}",
        answer.stdout, answer.stderr
    );
    for part in parts {
        assert!(
            answer.stderr.contains(part),
            "{arguments:?}: {part} is not in {}",
            answer.stderr
        );
    }
}

#[test]
fn table_1_stands_beside_the_exact_numbers() {
    let text = text(&["survival", "--table1"]);
    assert!(text.contains("100 of 108 entries are the same."), "{text}");
    let differing = text
        .lines()
        .map(|line| line.matches(" ! ").count())
        .sum::<usize>();
    assert_eq!(differing, 8, "{text}");
    let row = text
        .lines()
        .rfind(|line| line.trim_start().starts_with("2048 "))
        .unwrap();
    assert!(row.ends_with("113 ! 111"), "{row}");
    let document = document(&["survival", "--table1", "--trials", "2000", "--seed", "7"]);
    let entries = document["entries"].as_array().unwrap();
    assert_eq!(entries.len(), 108);
    assert!(
        entries
            .iter()
            .all(|entry| entry["trials"]["trials"] == 2000)
    );
    assert_eq!(document["agree"], true);
}

// Breaks if: the same seed gives other trials, or one without an exact count is given out for
// exact.
#[test]
fn what_is_exact_and_what_is_from_trials_is_told_apart() {
    let exact = document(&[
        "survival",
        "--nodes",
        "64",
        "--with",
        "peers:1,partner:1,xor:8,rs:6+2",
        "--percent",
        "90,50",
    ]);
    for setup in exact["setups"].as_array().unwrap() {
        assert!(
            setup["allowed"]
                .as_array()
                .unwrap()
                .iter()
                .all(|entry| entry["exact"] == true && entry["trials"].is_null())
        );
    }
    // Groups of neighbours across switches of 3 nodes: nothing but trials.
    let arguments = [
        "survival",
        "--nodes",
        "64",
        "--with",
        "rs:6+2",
        "--together",
        "3",
        "--lost",
        "2",
        "--trials",
        "5000",
    ];
    let (once, again) = (document(&arguments), document(&arguments));
    assert_eq!(once, again);
    let found = &once["setups"][0]["likely"][0];
    assert_eq!(found["probability"], Value::Null);
    let (low, high) = (
        found["trials"]["low"].as_f64().unwrap(),
        found["trials"]["high"].as_f64().unwrap(),
    );
    assert!(0.0 < low && low < high && high < 1.0, "{found}");
    let text = text(&[
        "survival",
        "--nodes",
        "63",
        "--with",
        "rs:5+2",
        "--together",
        "2",
        "--trials",
        "1000",
        "--percent",
        "50",
    ]);
    assert!(text.contains("~ from trials (seed 1)"), "{text}");
}

#[test]
fn an_interval_is_recommended_and_compared() {
    let of = [
        "interval",
        "--checkpoint",
        "5min",
        "--restart",
        "10min",
        "--mtbf",
        "24h",
        "--work",
        "500h",
    ];
    let found = document(&[&of[..], &["--every", "30min"]].concat());
    let rules = found["rules"].as_array().unwrap();
    let names: Vec<&str> = rules
        .iter()
        .map(|rule| rule["rule"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["best", "Daly 2006", "Young 1974", "--every"]);
    let daly_min = rules[1]["interval_s"].as_f64().unwrap() / 60.0;
    assert!((daly_min - 117.0).abs() < 0.5, "{daly_min}");
    assert!(rules[3]["efficiency"].as_f64() < rules[0]["efficiency"].as_f64());
    let text = text(&of);
    assert!(
        text.starts_with("Take a checkpoint after every 1 h 57 min of computing:"),
        "{text}"
    );
    let nodes = document(&[
        "interval",
        "--checkpoint",
        "2min",
        "--node-mtbf",
        "1y",
        "--nodes",
        "64",
    ]);
    assert_eq!(nodes["mtbf_s"], 31_557_600.0 / 64.0);
    assert_eq!(nodes["restart_s"], 120.0);
}

#[test]
fn each_level_gets_an_interval_of_its_own() {
    let of = [
        "interval",
        "--level",
        "node:cost=1s,mtbf=6h,restart=30s",
        "--level",
        "global:cost=2s,after=5min,mtbf=10d,restart=5min",
    ];
    let found = document(&of);
    let levels = found["levels"].as_array().unwrap();
    let interval = |level: usize| levels[level]["interval_s"].as_f64().unwrap();
    assert_eq!(levels[0]["every"], 1);
    assert!(
        levels[1]["every"].as_u64().unwrap() > 1 && interval(1) >= 300.0,
        "{found}"
    );
    assert_eq!(
        (
            levels[0]["restart_s"].as_f64(),
            levels[1]["safe_after_s"].as_f64()
        ),
        (Some(30.0), Some(300.0))
    );
    // Everything on the higher level costs more.
    let one = document(&[
        "interval",
        "--checkpoint",
        "2s",
        "--restart",
        "5min",
        "--mtbf",
        "21000s",
    ]);
    assert!(found["efficiency"].as_f64() > one["efficiency"].as_f64());
    let text = text(&of);
    assert!(
        text.starts_with("Take checkpoints of level node every "),
        "{text}"
    );
    for (wrong, message) in [
        ("node:cost=1s", "mtbf=TIME is missing"),
        ("node:mtbf=1s", "cost=TIME is missing"),
        ("node", "expected NAME:cost=TIME,mtbf=TIME"),
        ("node:cost=-1,mtbf=1h", "cost=-1: expected a time"),
        ("node:cost=1,cost=2", "'cost' is there twice"),
        (
            "node:price=1",
            "'price': expected cost, mtbf, restart or after",
        ),
    ] {
        refused(&["interval", "--level", wrong], &["--level", message]);
    }
    refused(
        &["interval", "--level", "node:cost=2h,mtbf=1h"],
        &["--level", "expected more than the 7200 s"],
    );
}

#[test]
fn runs_are_simulated_and_agree_with_the_formula() {
    let of = [
        "simulate",
        "--level",
        "node:cost=1s,mtbf=20min,restart=30s",
        "--level",
        "global:cost=2s,after=1min,mtbf=5h,restart=5min",
        "--work",
        "20h",
        "--runs",
        "400",
    ];
    let found = document(&of);
    assert_eq!(found, document(&of), "the same seed");
    assert_ne!(
        found["total_s"],
        document(&[&of[..], &["--seed", "2"]].concat())["total_s"]
    );
    let of_key = |key: &str| found[key].as_f64().unwrap();
    assert!(
        (of_key("total_s") / of_key("expected_s") - 1.0).abs() < 0.02,
        "{found}"
    );
    let parts_s =
        of_key("work_s") + of_key("checkpoints_s") + of_key("lost_s") + of_key("restarts_s");
    assert!((of_key("total_s") / parts_s - 1.0).abs() < 1e-9, "{found}");
    assert_eq!(found["given_up"], 0);
    let shown = text(
        &[
            &of[..],
            &[
                "--interval",
                "2min",
                "--pattern",
                "1,10",
                "--weibull",
                "0.8",
            ],
        ]
        .concat(),
    );
    assert!(
        shown.starts_with("20 h 0 min of work take ") && !shown.contains("The formula says"),
        "{shown}"
    );
    assert!(
        shown
            .lines()
            .any(|line| line.split_whitespace().take(2).eq(["global", "10"])),
        "{shown}"
    );
}

// Breaks if: a trace is read past what is wrong in it, or a run that never makes progress passes
// for one that does.
#[test]
fn failures_come_from_a_trace_too() {
    let scratch = Scratch::new();
    let path = scratch.path().join("failures");
    let of = |text: &str| {
        std::fs::write(&path, text).unwrap();
        [
            "simulate",
            "--checkpoint",
            "1min",
            "--mtbf",
            "2h",
            "--work",
            "100h",
            "--runs",
            "50",
            "--trace",
            path.to_str().unwrap(),
        ]
        .map(str::to_owned)
    };
    let arguments = of("# four in 10 h\n1h\n1.5h checkpoints\n\n7h # at noon\n10h\n");
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let found = document(&arguments);
    let failures = found["levels"][0]["failures"].as_f64().unwrap();
    let expected = found["total_s"].as_f64().unwrap() / 9000.0;
    assert!(
        (failures / expected - 1.0).abs() < 0.05,
        "{failures} {expected}"
    );
    assert_eq!(found["expected_s"], Value::Null);
    for (text, parts) in [
        ("", &["--trace", "expected a line for each failure"][..]),
        ("1h\nnoon\n", &["line 2", "'noon': expected a time"]),
        (
            "1h global\n",
            &["line 1", "'global': expected one of the levels checkpoints"],
        ),
        (
            "2h\n1h\n",
            &[
                "line 2",
                "'1h': expected a time above 0, and not before that of the line before",
            ],
        ),
    ] {
        let arguments = of(text);
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        refused(&arguments, parts);
    }
    let hopeless = answer(&[
        "plan",
        "simulate",
        "--checkpoint",
        "5min",
        "--mtbf",
        "6min",
        "--work",
        "1h",
        "--interval",
        "3h",
        "--runs",
        "2",
    ]);
    assert!(
        hopeless.stderr.contains("of 2 runs never got on"),
        "{}",
        hopeless.stderr
    );
    refused(
        &[
            "simulate",
            "--checkpoint",
            "1",
            "--mtbf",
            "1h",
            "--interval",
            "1min",
            "--pattern",
            "2",
        ],
        &["--pattern", "[2]"],
    );
    refused(
        &[
            "simulate",
            "--checkpoint",
            "1",
            "--mtbf",
            "1h",
            "--weibull",
            "0",
        ],
        &["--weibull", "expected a number from 0.1"],
    );
    refused(
        &[
            "simulate",
            "--checkpoint",
            "1",
            "--mtbf",
            "1h",
            "--runs",
            "0",
        ],
        &["--runs"],
    );
}

#[test]
fn the_overhead_of_two_checkpoints_of_6_25_gb() {
    let found = document(&OVERHEAD);
    assert_eq!(found["asynchronous_s"], 2.1875);
    assert_eq!(found["synchronous_s"], 50.0);
    let shown = text(&OVERHEAD);
    assert!(
        shown.contains("2.19 s") && shown.contains("50.00 s"),
        "{shown}"
    );
    let shown = text(&[&OVERHEAD[..], &["--run", "40s"]].concat());
    assert!(shown.contains("At most 1 fit into the run without one waiting for the other: that many are too many for threads."), "{shown}");
}

// Breaks if: nonsense is computed with, or the message does not tell flag, value and range.
#[test]
fn nonsense_is_refused_with_the_flag_and_the_range() {
    let interval = |checkpoint, mtbf| ["interval", "--checkpoint", checkpoint, "--mtbf", mtbf];
    for nonsense in ["NaN", "-3", "0", "inf", "5 parsecs", "", "1e20y"] {
        refused(
            &interval(nonsense, "1h"),
            &[
                "--checkpoint",
                nonsense,
                "expected a time from 1us to 30000y",
            ],
        );
    }
    refused(
        &interval("2h", "1h"),
        &[
            "--mtbf, --checkpoint",
            "3600",
            "expected more than the 7200 s of a checkpoint",
        ],
    );
    refused(
        &["survival", "--nodes", "4", "--with", "random:4"],
        &[
            "--nodes 4 --with random:4",
            "4 replicas: expected at most 3",
        ],
    );
    refused(
        &[
            "interval",
            "--level",
            "a:cost=1s,mtbf=1h",
            "--level",
            "a:cost=2s,mtbf=2h",
        ],
        &["--level: expected a name of its own for each level"],
    );
    refused(
        &[
            "interval",
            "--checkpoint",
            "1s",
            "--mtbf",
            "2s",
            "--restart",
            "1y",
        ],
        &["--mtbf, --checkpoint, --restart", "never makes progress"],
    );
    refused(
        &[
            "interval",
            "--checkpoint",
            "1s",
            "--node-mtbf",
            "1h",
            "--nodes",
            "10000",
        ],
        &["--node-mtbf, --nodes, --checkpoint"],
    );
    refused(
        &["survival", "--nodes", "0"],
        &["'0' for '--nodes", "expected a whole number from 1 to"],
    );
    refused(
        &["survival", "--nodes", "8", "--lost", "9"],
        &["--lost 9", "expected 0 to 8"],
    );
    refused(
        &["survival", "--percent", "101"],
        &["--percent", "101", "expected more than 0 and at most 100"],
    );
    refused(&["survival", "--percent", "NaN"], &["--percent", "NaN"]);
    refused(
        &["survival", "--with", "raid:5"],
        &[
            "--with",
            "raid:5",
            "expected peers:K, random:K, partner:K, xor:G or rs:K+M",
        ],
    );
    refused(&["survival", "--trials", "0"], &["--trials", "0"]);
    let overhead = |flag, value| [&OVERHEAD[..], &[flag, value]].concat();
    refused(
        &overhead("--memory-passes", "-7"),
        &["--memory-passes", "-7", "expected a number from"],
    );
    refused(
        &overhead("--run", "NaN"),
        &["--run", "NaN", "expected a time"],
    );
}

// Breaks if: a number below zero is taken for a flag, and the message tells neither its own flag
// nor what is allowed.
#[test]
fn what_is_below_zero_is_refused_by_every_flag_with_a_number() {
    for (what, flags) in [
        (
            "",
            "nodes ranks-per-node machine-nodes node-gb together work",
        ),
        ("burst", "nodes ranks-per-node servers total-gb"),
        ("survival", "nodes percent lost together trials seed"),
        (
            "interval",
            "checkpoint restart mtbf node-mtbf nodes work every",
        ),
        ("simulate", "interval pattern weibull runs seed"),
        ("overhead", "checkpoints node-gb nodes memory-gb-s run"),
        ("calibrate", "gb rounds"),
    ] {
        for flag in flags.split(' ').map(|flag| format!("--{flag}")) {
            let command: Vec<&str> = (!what.is_empty()).then_some(what).into_iter().collect();
            let answer = answer(&[&["plan"], &command[..], &[&flag, "-4"]].concat());
            let error = &answer.stderr;
            assert_eq!(answer.code, 2, "{what} {flag}: {error}");
            assert!(
                error.contains(&flag) && error.contains("-4"),
                "{what} {flag}: {error}"
            );
            assert!(error.contains("expected "), "{what} {flag}: {error}");
        }
    }
}

// Breaks if: the options are not those of the pattern, a level that a job cannot have is given
// some, or the pattern is priced as if every checkpoint went everywhere.
#[test]
fn a_pattern_has_its_options_and_its_price() {
    let (node, global) = (
        "node:cost=1s,mtbf=6h,restart=30s",
        "global:cost=2s,after=5min,mtbf=10d,restart=5min",
    );
    let asked = ["interval", "--level", node, "--level", global];
    let found = document(&asked);
    let every = &found["levels"][1]["every"];
    assert!(every.as_u64() > Some(1), "{found}");
    let options: toml::Table = found["options"].as_str().unwrap().parse().unwrap();
    for (at, name) in [(0, "node"), (1, "global")] {
        let every_s = options["level"][name]["every_s"].as_float();
        let every_s = every_s.or(options["level"][name]["every_s"]
            .as_integer()
            .map(|s| s as f64));
        let exact_s = found["levels"][at]["interval_s"].as_f64().unwrap();
        let below = 1.0 - every_s.unwrap() / exact_s;
        assert!(
            (0.0..1e-3).contains(&below),
            "{name}: {every_s:?} and {exact_s}"
        );
    }
    let (own, others) = (
        found["efficiency"].as_f64(),
        found["others"].as_array().unwrap(),
    );
    assert_eq!(others.len(), 2);
    assert!(
        others
            .iter()
            .all(|other| other["efficiency"].as_f64() < own),
        "{found}"
    );
    let text = text(&asked);
    assert!(text.contains("[level.global]\n  every_s = "), "{text}");
    assert!(text.contains("every checkpoint to all levels"), "{text}");
    let one = ["interval", "--level", node];
    assert!(!self::text(&one).contains("to all levels"));
    // In steps of the program.
    let mut asked = asked.to_vec();
    asked.extend(["--step", "2s"]);
    let found = document(&asked);
    let options: toml::Table = found["options"].as_str().unwrap().parse().unwrap();
    for (at, name) in [(0, "node"), (1, "global")] {
        let steps = options["level"][name]["every_steps"].as_integer().unwrap();
        let exact_s = found["levels"][at]["interval_s"].as_f64().unwrap();
        assert!((steps as f64 * 2.0 / exact_s - 1.0).abs() < 0.01, "{found}");
    }
}

// Breaks if: a name that Orcheck does not know, or the wrong order, gives numbers and no reason.
#[test]
fn levels_that_no_job_can_have_are_explained() {
    let of = |name: &str| format!("{name}:cost=1s,mtbf=6h");
    for (names, why) in [
        (
            &["disk", "global"][..],
            "Orcheck has no level 'disk': a job",
        ),
        (
            &["nodes", "global"],
            "Orcheck has no level 'nodes'; did you mean node?",
        ),
        (
            &["peers(1)"],
            "Orcheck has no level 'peers(1)'; did you mean peers?",
        ),
        (
            &["node", "peers", "global"],
            "a job has level node or level peers, not both",
        ),
    ] {
        let levels: Vec<String> = names.iter().map(|name| of(name)).collect();
        let each = levels.iter().flat_map(|level| ["--level", level.as_str()]);
        let asked: Vec<&str> = ["interval"].into_iter().chain(each).collect();
        assert!(document(&asked)["options"].is_null());
        let text = text(&asked);
        assert!(text.contains(&format!("no options: {why}")), "{text}");
    }
    for command in ["interval", "simulate"] {
        let (node, global) = (of("node"), of("global"));
        refused(
            &[command, "--level", &global, "--level", &node],
            &[
                "from the weakest to the strongest, found global before node",
                "name node before global",
            ],
        );
    }
}

// Breaks if: a pattern is not offered where it is better, or its options are not accepted.
#[test]
fn a_plan_offers_a_pace_of_its_own_for_each_level() {
    let machine = [
        "--preset",
        "lima",
        "--nodes",
        "500",
        "--node-gb",
        "10",
        "--work",
        "3d",
        "--disk-write-gb-s",
        "0.1",
        "--node-mtbf",
        "2y",
        "--system-mtbf",
        "60d",
    ];
    let found = document(&machine);
    let chosen = &found["recommended"];
    let paced = &chosen["paced"];
    assert!(
        paced["efficiency"].as_f64() > chosen["efficiency"].as_f64(),
        "{chosen}"
    );
    let options: toml::Table = found["options"].as_str().unwrap().parse().unwrap();
    assert_eq!(options["interval"].as_str(), Some("auto"));
    assert!(options["level"]["peers"]["mtbf_s"].as_integer() > Some(0));
    assert!(!options.contains_key("mtbf_s"));
    assert!(text(&machine).contains("With a pace of its own for each level, peers every "));
}
