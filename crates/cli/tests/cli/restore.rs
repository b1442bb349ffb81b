//! `restore`.

use orcheck_format::Rank;
use std::path::Path;

use crate::inspect::Site;
use orcheck_fixtures::reading::{ArraySpec, RegionSpec, Spec, flip, payload, write};

fn files(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn one_region() {
    let site = Site::new();
    site.write(40, 7);
    let out = site.scratch.dir("out").join("u.bin");
    let shown = out.display().to_string();
    let arguments = [
        "restore", "40", "--rank", "2", "--region", "u", "--out", &shown,
    ];
    let restored = site.ask(&arguments);
    assert_eq!(restored.code, 0, "{}", restored.stderr);
    assert!(std::fs::read(&out).unwrap() == payload(Rank(2), 40, "u", 24_000));
    // Breaks if: the look at the directory and the reservation of the name are both dropped.
    std::fs::write(&out, b"mine").unwrap();
    let refused = site.ask(&arguments);
    assert_eq!(refused.code, 2);
    assert!(
        refused.stderr.contains("exists") && refused.stderr.contains("--force"),
        "{}",
        refused.stderr
    );
    assert_eq!(std::fs::read(&out).unwrap(), b"mine");
    let forced = site.ask(&[&arguments[..], &["--force", "--json"]].concat());
    assert_eq!(forced.code, 0);
    let crc = format!(
        "{:016x}",
        orcheck_format::crc64(&payload(Rank(2), 40, "u", 24_000))
    );
    assert_eq!(forced.json()["crc64_nvme"], crc);
    assert_eq!(
        files(&site.scratch.dir("out")),
        ["u.bin"],
        "nothing else is left behind"
    );
}

#[test]
fn regions_are_not_the_files_of_a_set() {
    let site = Site::new();
    site.write(40, 7);
    let out = site.scratch.dir("out").join("set");
    let shown = out.display().to_string();
    let refused = site.ask(&["restore", "40", "--files", "--out", &shown]);
    assert_eq!(refused.code, 2, "{}", refused.stderr);
    let said = &refused.stderr;
    assert!(said.contains("restore them with --all"), "{said}");
    assert_eq!(files(&site.scratch.dir("out")), Vec::<String>::new());
}

// Breaks if: a device, a socket or a link is replaced by the file; root would lose /dev/null.
#[test]
fn what_is_no_file_is_not_replaced() {
    let site = Site::new();
    site.write(40, 7);
    let out = site.scratch.dir("out").join("socket");
    let _socket = std::os::unix::net::UnixListener::bind(&out).unwrap();
    let shown = out.display().to_string();
    let refused = site.ask(&[
        "restore", "40", "--rank", "2", "--region", "u", "--out", &shown, "--force",
    ]);
    assert_eq!(refused.code, 2, "{}", refused.stderr);
    let said = &refused.stderr;
    assert!(said.contains("expected a regular file, found"), "{said}");
    assert!(std::os::unix::net::UnixStream::connect(&out).is_ok());
    assert_eq!(files(&site.scratch.dir("out")), ["socket"]);
}

#[test]
fn to_standard_output() {
    let site = Site::new();
    site.write(40, 7);
    let mut command = crate::orcheck(&[
        "restore", "--rank", "0", "--region", "u", "--out", "-", "--dir", &site.a, "--dir", &site.b,
    ]);
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert!(output.stdout == payload(Rank(0), 40, "u", 24_000));
    assert_eq!(
        site.ask(&[
            "restore", "--rank", "0", "--region", "u", "--out", "-", "--json"
        ])
        .code,
        2
    );
}

#[test]
fn everything_with_an_index() {
    let site = Site::new();
    let mut spec = Spec::new(40, 7);
    spec.regions.push(RegionSpec {
        name: "fluid/../density".into(),
        len: 100,
        cut: 64,
    });
    spec.regions.push(RegionSpec {
        name: "same".into(),
        len: 640,
        cut: 8192,
    });
    write(&site.dirs(), &spec);
    let out = site.scratch.path().join("out");
    let shown = out.display().to_string();
    let restored = site.ask(&["restore", "40", "--all", "--out", &shown]);
    assert_eq!(restored.code, 0, "{}", restored.stderr);
    assert_eq!(
        files(&out),
        [
            "index.json",
            "rank-000000",
            "rank-000001",
            "rank-000002",
            "rank-000003"
        ]
    );
    let index: serde_json::Value =
        serde_json::from_slice(&std::fs::read(out.join("index.json")).unwrap()).unwrap();
    assert_eq!(
        (index["schema"].as_u64(), index["complete"].as_bool()),
        (Some(1), Some(true))
    );
    let regions = index["regions"].as_array().unwrap();
    assert_eq!(regions.len(), 4 * 5);
    for region in regions {
        let rank = region["rank"].as_u64().unwrap() as u32;
        let name = region["name"].as_str().unwrap();
        let owner = if name == "same" { 0 } else { rank };
        let bytes = std::fs::read(out.join(region["file"].as_str().unwrap())).unwrap();
        assert!(
            bytes == payload(Rank(owner), 40, name, bytes.len()),
            "rank {rank} region {name}"
        );
        assert_eq!(bytes.len() as u64, region["len_bytes"].as_u64().unwrap());
    }
    assert!(out.join("rank-000000/fluid%2F..%2Fdensity.bin").exists());
    // A directory that holds something is left alone.
    assert_eq!(
        site.ask(&["restore", "40", "--all", "--out", &shown]).code,
        2
    );
    assert_eq!(
        site.ask(&["restore", "40", "--all", "--out", &shown, "--force"])
            .code,
        0
    );
    // One rank only.
    let one = site.scratch.path().join("one").display().to_string();
    assert_eq!(
        site.ask(&["restore", "--all", "--rank", "3", "--out", &one])
            .code,
        0
    );
    assert_eq!(files(Path::new(&one)), ["index.json", "rank-000003"]);
}

#[test]
fn damage() {
    let site = Site::new();
    let written = site.write(40, 7);
    let at = written.structure(0, "stream 1").start + 9000;
    flip(&written.paths[0], at, 3);
    let out = site.scratch.dir("out");
    let file = out.join("u.bin").display().to_string();
    let arguments = [
        "restore", "40", "--rank", "1", "--region", "u", "--out", &file,
    ];
    let corrupt = site.ask(&arguments);
    assert_eq!(corrupt.code, 5);
    assert!(
        corrupt.stderr.contains("bytes 8192..16384"),
        "{}",
        corrupt.stderr
    );
    // Breaks if: a file is written under its final name before it is proven.
    assert!(files(&out).is_empty(), "{:?}", files(&out));
    // Into standard output: only what was proven before the damage.
    let mut command = crate::orcheck(&[
        "restore", "--rank", "1", "--region", "u", "--out", "-", "--dir", &site.a, "--dir", &site.b,
    ]);
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(5));
    assert!(output.stdout == payload(Rank(1), 40, "u", 8192));
    // Other regions and ranks are restored; the index tells what is missing.
    let all = site.scratch.path().join("all");
    let partial = site.ask(&[
        "restore",
        "40",
        "--all",
        "--json",
        "--out",
        &all.display().to_string(),
    ]);
    assert_eq!(partial.code, 3);
    let document = partial.json();
    assert_eq!(document["complete"], false);
    let broken: Vec<_> = document["regions"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|region| !region["error"].is_null())
        .collect();
    assert_eq!(broken.len(), 1);
    assert_eq!(
        (broken[0]["rank"].as_u64(), broken[0]["name"].as_str()),
        (Some(1), Some("u"))
    );
    assert!(!all.join("rank-000001/u.bin").exists() && all.join("rank-000001/notes.bin").exists());
    // With a good older step the code says so.
    site.write(30, 7);
    let older = site.ask(&arguments);
    assert_eq!(older.code, 6);
    assert!(
        older.stderr.contains("restore step 30 at level global"),
        "{}",
        older.stderr
    );
}

#[test]
fn what_is_not_there() {
    let site = Site::new();
    orcheck_fixtures::reading::claim(&site.dirs()[0], orcheck_fixtures::reading::epoch(1), None);
    let out = site.scratch.path().join("x").display().to_string();
    assert_eq!(
        site.ask(&["restore", "--rank", "0", "--region", "u", "--out", &out])
            .code,
        4
    );
    site.write(40, 7);
    assert_eq!(
        site.ask(&["restore", "--rank", "9", "--region", "u", "--out", &out])
            .code,
        10
    );
    let region = site.ask(&["restore", "--rank", "0", "--region", "v", "--out", &out]);
    assert_eq!(region.code, 10);
    assert!(
        region.stderr.contains("it has: u, notes, empty"),
        "{}",
        region.stderr
    );
    assert_eq!(site.ask(&["restore", "--rank", "0", "--out", &out]).code, 2);
    let nowhere = site.scratch.path().join("missing/x").display().to_string();
    assert_eq!(
        site.ask(&["restore", "--rank", "0", "--region", "u", "--out", &nowhere])
            .code,
        10
    );
}

/// A 6 x 5 array in four parts, of ranks on two nodes.
fn field() -> ArraySpec {
    ArraySpec {
        name: "field".into(),
        global: vec![6, 5],
        parts: vec![
            (vec![0, 0], vec![4, 2]),
            (vec![0, 2], vec![4, 3]),
            (vec![4, 0], vec![2, 2]),
            (vec![4, 2], vec![2, 3]),
        ],
        cut: 24,
    }
}

/// Which element each one is, and its rank, of a file in NumPy's format.
fn elements(npy: &[u8], shape: &str) -> Vec<(u64, u64)> {
    let header = format!("{{'descr': '<u8', 'fortran_order': False, 'shape': {shape}, }}");
    assert_eq!(&npy[..8], b"\x93NUMPY\x01\x00");
    assert_eq!(String::from_utf8_lossy(&npy[10..128]).trim_end(), header);
    let numbers = npy[128..].chunks_exact(8);
    numbers
        .map(|bytes| u64::from_le_bytes(bytes.try_into().unwrap()))
        .map(|number| (number & 0xff_ffff_ffff, number >> 40))
        .collect()
}

// Breaks if: the parts are put elsewhere; a slice is another one than in NumPy.
#[test]
fn a_global_array_as_numpy_reads_it() {
    let site = Site::new();
    let mut spec = Spec::new(40, 7);
    spec.arrays = vec![field()];
    write(&site.dirs(), &spec);
    let out = site.scratch.dir("out").join("field.npy");
    let shown = out.display().to_string();
    let ask = |more: &[&str]| {
        site.ask(&[&["restore", "--array", "field", "--out", &shown][..], more].concat())
    };
    let rank = |row: u64, column: u64| u64::from(row >= 4) * 2 + u64::from(column >= 2);

    let restored = ask(&[]);
    assert_eq!(restored.code, 0, "{}", restored.stderr);
    assert!(
        restored
            .stdout
            .contains("restored array \"field\", step 40: 6x5 of u64"),
        "{}",
        restored.stdout
    );
    let all = (0..30).map(|n| (n, rank(n / 5, n % 5))).collect::<Vec<_>>();
    assert_eq!(elements(&std::fs::read(&out).unwrap(), "(6, 5,)"), all);

    let sliced = ask(&["--slice", "3:,-2", "--force", "--json"]);
    assert_eq!(sliced.code, 0, "{}", sliced.stderr);
    let column = (3..6)
        .map(|row| (row * 5 + 3, rank(row, 3)))
        .collect::<Vec<_>>();
    assert_eq!(elements(&std::fs::read(&out).unwrap(), "(3,)"), column);
    let document = sliced.json();
    assert_eq!(document["offset"], serde_json::json!([3, 3]));
    assert_eq!(document["shape"], serde_json::json!([3]));
    assert_eq!(document["global"], serde_json::json!([6, 5]));

    let mut command = crate::orcheck(&[
        "restore", "--array", "field", "--slice", "5,4", "--out", "-", "--dir", &site.a, "--dir",
        &site.b,
    ]);
    let output = command.output().unwrap();
    assert_eq!(elements(&output.stdout, "()"), [(29, 3)]);
}

#[test]
fn a_slice_is_one_of_an_array() {
    let site = Site::new();
    site.write(40, 7);
    let restore = |more: &[&str]| site.ask(&[&["restore", "--out", "-"][..], more].concat());
    let refused = restore(&["--rank", "0", "--region", "u", "--slice", "0:2"]);
    assert_eq!(refused.code, 2, "it is not ignored");
    let refused = restore(&["--array", "u", "--slice", "-3:"]);
    let said = "it is no part of a global array";
    assert!(refused.stderr.contains(said), "{}", refused.stderr);
}

#[test]
fn an_array_that_cannot_be_whole_leaves_no_file() {
    let site = Site::new();
    let mut spec = Spec::new(40, 7);
    spec.arrays = vec![field()];
    let written = write(&site.dirs(), &spec);
    let out = site.scratch.dir("out").join("field.npy");
    let shown = out.display().to_string();
    let ask = |array: &str, more: &[&str]| {
        site.ask(&[&["restore", "--array", array, "--out", &shown][..], more].concat())
    };
    for (array, slice, code, said) in [
        (
            "field",
            "9",
            2,
            "dimension 0: there is no index 9 in length 6",
        ),
        (
            "field",
            "0,0,0",
            2,
            "one dimension too many, the array has 2",
        ),
        ("u", ":", 2, "belongs to this rank alone"),
        (
            "other",
            ":",
            10,
            "has no global array 'other'; it has: field",
        ),
    ] {
        let refused = ask(array, &["--slice", slice]);
        assert_eq!(refused.code, code, "{}", refused.stderr);
        assert!(refused.stderr.contains(said), "{}", refused.stderr);
    }
    // The last bytes of rank 3 are those of its part of the array.
    flip(
        &written.paths[1],
        written.structure(1, "stream 3").end - 5,
        1,
    );
    assert_eq!(ask("field", &["--slice", ":4"]).code, 0);
    std::fs::remove_file(&out).unwrap();
    let damaged = ask("field", &[]);
    assert_eq!(damaged.code, 5, "{}", damaged.stderr);
    assert!(files(&site.scratch.dir("out")).is_empty());
}
