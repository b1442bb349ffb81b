//! Tests commands on encrypted checkpoints: with the right key, with a wrong key, without a key.

use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;

use orcheck_engine::encoding::{Accept, ContainerKey, EncodePiece, Encoder, Recipe, Trust};
use orcheck_engine::flush::{Announced, ContainerWriter, Ledger, Target};
use orcheck_format::disk::{
    BLOCK_BYTES, CommitRecord, Compression, ContainerHeader, Extent, Features, RankRecord,
    RegionKind, RegionRecord, encode_rank_record,
};
use orcheck_format::{Dtype, Error, Level, NodeId, Rank, Step, TargetId, WriterId, crc64};
use orcheck_io::failpoints::Failpoints;
use orcheck_io::user::Secret;
use orcheck_pool::{Pool, PoolShape};
use orcheck_staging::open_dir;

use crate::answer;
use crate::inspect::Site;
use orcheck_fixtures::reading::{Spec, epoch, flip};

pub const KEY: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";

/// What the only region holds.
fn field() -> Vec<u8> {
    (0..20_000u32)
        .flat_map(|i| f64::from(i).sqrt().to_le_bytes())
        .collect()
}

/// A job of one rank in one placed directory, compressed and encrypted; and the path of its
/// container.
pub fn write(site: &Site) -> std::path::PathBuf {
    let [dir, _] = site.dirs();
    std::fs::create_dir_all(&dir).unwrap();
    let secret = Arc::new(Secret::new(std::array::from_fn(|i| i as u8)));
    let mut header = ContainerHeader {
        features: Features {
            incompat: Features::ENCODED | Features::ENCRYPTED,
            ..Features::default()
        },
        job: orcheck_format::JobName::new("cavity").unwrap(),
        step: Step(5),
        epoch: epoch(1),
        level: Level::Global,
        node: NodeId(0),
        writer: WriterId(0),
        world_size: 1,
        alignment_bytes: BLOCK_BYTES as u32,
        created_unix_ms: 1,
        encryption: None,
    };
    let key = ContainerKey::create(&secret, &mut header).unwrap();
    let target = Target {
        dir: open_dir(&dir, Failpoints::none()).unwrap(),
        server: TargetId(0),
        stripes: Vec::new(),
        direct: false,
        ranks: 1,
        coming: None,
        settled: Arc::new(|| {}),
    };
    let pool = Pool::create(PoolShape {
        chunk_bytes: 1 << 18,
        chunk_count: 1,
        words: 0,
        rings: 0,
        ring_entries: 0,
    })
    .unwrap();
    let bytes = field();
    let chunk = pool.try_take(0).unwrap();
    pool.put(&chunk, 0, &bytes);
    let mut region = RegionRecord {
        name: "field".into(),
        kind: RegionKind::Array,
        dtype: Dtype::F64,
        flags: 0,
        len_bytes: bytes.len() as u64,
        local: vec![20_000],
        global: vec![],
        offset: vec![],
        boxes: Vec::new(),
        same_as: None,
        extents: vec![],
    };
    let piece = EncodePiece {
        segment_at_bytes: 0,
        len_bytes: bytes.len() as u32,
        region_at_bytes: 0,
        crc_plain: crc64(&bytes),
        element_log2: 3,
        region: region.identity(),
        checked: false,
    };
    region.extents.push(Extent {
        container: None,
        store: 0,
        physical: 0,
        stored_len_bytes: bytes.len() as u64,
        len_bytes: bytes.len() as u64,
        encoding: 0,
        crc_stored: piece.crc_plain,
        crc_plain: piece.crc_plain,
    });
    let stream_len_bytes = bytes.len().next_multiple_of(BLOCK_BYTES) as u64;
    let mut writer = ContainerWriter::create(header, "n0", &target, Some(key))
        .map_err(Error::from)
        .unwrap();
    let announced = Announced {
        stream_len_bytes,
        cut_bytes: 1 << 18,
        may_shrink: false,
    };
    writer.begin_rank(Rank(0), announced).unwrap();
    let recipe = Recipe {
        compression: Compression::Zstd,
        level: 1,
        secret: Some(Arc::clone(&secret)),
    };
    let written = secret;
    let mut encoder = Encoder::new(&recipe).unwrap();
    let body = encoder.encode(&pool, 0, &piece).unwrap();
    assert!(writer.append_piece(&pool, 0, &piece, &body).unwrap());
    writer.end_segment(stream_len_bytes).unwrap();
    let record = RankRecord {
        rank: Rank(0),
        stream_len_bytes,
        regions: vec![region],
    };
    let framed = encode_rank_record(&record);
    writer
        .end_rank(framed, &[], &mut Ledger::default())
        .unwrap();
    let container = writer.finish().map_err(Error::from).unwrap();
    pool.give(chunk);
    let path = dir.join(&container.file);
    let record = CommitRecord {
        job: orcheck_format::JobName::new("cavity").unwrap(),
        step: Step(5),
        epoch: epoch(1),
        level: Level::Global,
        world_size: 1,
        nodes: vec!["n0".into()],
        placement_generation: 1,
        servers: vec![site.a.clone()],
        containers: vec![container],
        created_unix_ms: 2,
        groups: vec![],
    };
    let name = orcheck_format::disk::FileName::commit(Step(5), epoch(1), Level::Global).to_string();
    let trust = Trust::new(&[written], true, Accept::default()).unwrap();
    std::fs::write(dir.join(name), trust.seal(record.encode()).unwrap()).unwrap();
    path
}

/// The text of `--encrypt-key` for a file that holds this key.
pub fn source(site: &Site, name: &str, text: &str) -> String {
    let path = site.scratch.dir("keys").join(name);
    std::fs::write(&path, text).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    format!("file:{}", path.display())
}

// Breaks if: a command continues without the key it needs, or with a wrong one, or shows it.
#[test]
fn the_key_opens_it_and_nothing_else_does() {
    let site = Site::new();
    let path = write(&site);
    let right = source(&site, "right", KEY);
    let wrong = source(&site, "wrong", &KEY.replace('f', "0"));
    let out = site.scratch.dir("out").join("field.bin");
    let out = out.to_str().unwrap();
    let restore = [
        "restore", "5", "--rank", "0", "--region", "field", "--out", out,
    ];

    let mut said = String::new();
    for (key, part) in [
        (None, "no key was given"),
        (Some(&wrong), "sealed with another key"),
    ] {
        let mut arguments = restore.to_vec();
        arguments.extend(key.iter().flat_map(|key| ["--encrypt-key", key.as_str()]));
        let answer = site.ask(&arguments);
        assert_eq!(answer.code, 2, "{}", answer.stderr);
        assert!(answer.stderr.contains(part), "{}", answer.stderr);
        assert!(answer.stderr.contains("--encrypt-key"), "{}", answer.stderr);
        assert!(!std::path::Path::new(out).exists());
        said += &answer.stderr;
    }
    let answer = site.ask(&[&restore[..], &["--encrypt-key", &right]].concat());
    assert_eq!(answer.code, 0, "{}", answer.stderr);
    assert!(std::fs::read(out).unwrap() == field());
    said += &answer.stdout;

    // Without the key storage can be checked, and it is reported that this is all.
    let answer = site.ask(&["verify", "5", "--json"]);
    assert_eq!(answer.code, 0, "{}", answer.stderr);
    assert_eq!(answer.json()["checkpoints"][0]["locked_bytes"], 160_000);
    let notes = answer.json()["notes"].to_string();
    assert!(notes.contains("no key was given"), "{notes}");
    said += &answer.stdout;
    let answer = site.ask(&["verify", "5", "--json", "--encrypt-key", &right]);
    assert_eq!(answer.json()["checkpoints"][0]["locked_bytes"], 0);
    assert_eq!(answer.code, 0, "{}", answer.stderr);
    let answer = site.ask(&["verify", "5", "--encrypt-key", &wrong]);
    assert_eq!(answer.code, 2, "{}", answer.stderr);
    said += &answer.stderr;

    // Names and lengths need no key.
    let answer = site.ask(&["show", "5", "--json"]);
    let document = answer.json();
    assert_eq!(document["containers"][0]["encrypted"], true);
    let region = &document["ranks"][0]["regions"][0];
    assert_eq!(region["name"], "field");
    assert!(region["stored_bytes"].as_u64() < region["len_bytes"].as_u64());
    let answer = site.ask(&["show", "5", "--encrypt-key", &right]);
    assert!(answer.stdout.contains("readable"), "{}", answer.stdout);
    said += &answer.stdout;
    assert!(site.ask(&["show", "5"]).stdout.contains("encrypted"));

    // The key itself instead of its source: refused without being repeated.
    let answer = site.ask(&["show", "5", "--encrypt-key", KEY]);
    assert_eq!(answer.code, 2, "{}", answer.stderr);
    said += &answer.stderr;
    assert!(!said.contains(&KEY[..16]), "{said}");

    // A key that others can read is none.
    let open = site.scratch.dir("keys").join("right");
    std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o644)).unwrap();
    let answer = site.ask(&["verify", "5", "--encrypt-key", &right]);
    assert!(answer.stderr.contains("mode 0644"), "{}", answer.stderr);
    assert_eq!(answer.code, 2);
    std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o400)).unwrap();

    // Breaks if: damage to stored bytes is not looked for without a key.
    flip(&path, 8192 + 100, 3);
    for arguments in [
        vec!["verify", "5"],
        vec!["verify", "5", "--encrypt-key", &right],
    ] {
        let answer = site.ask(&arguments);
        assert_eq!(answer.code, 5, "{}", answer.stdout);
    }
}

// Breaks if: a command with a key takes what is plain for the job's, or calls something good that
// nobody authenticated.
#[test]
fn what_is_not_authenticated_is_never_called_good() {
    let site = Site::new();
    write(&site);
    let (right, wrong) = (
        source(&site, "right", KEY),
        source(&site, "wrong", &KEY.replace('f', "0")),
    );
    for arguments in [vec!["ls"], vec!["verify", "5"]] {
        let answer = site.ask(&arguments);
        let said = answer.stdout;
        assert!(said.contains("not authenticated"), "{said}");
        assert!(!said.contains("good"), "{said}");
        // Several keys, one of which is the right one.
        let keys = format!("{wrong},{right}");
        let answer = site.ask(&[&arguments[..], &["--encrypt-key", &keys]].concat());
        assert_eq!(answer.code, 0, "{}", answer.stderr);
        assert!(!answer.stdout.contains("not authenticated"));
    }
    assert_eq!(
        site.ask(&["ls", "--json"]).json()["checkpoints"][0]["authenticated"],
        false
    );
    let answer = site.ask(&["ls", "--json", "--encrypt-key", &right]);
    assert_eq!(answer.json()["checkpoints"][0]["authenticated"], true);

    // Somebody puts a plain checkpoint beside it, newer than all.
    site.write(9, 1);
    let answer = site.ask(&["verify", "--json", "--encrypt-key", &right]);
    assert_eq!(answer.json()["checkpoints"][0]["step"], 5);
    let notes = answer.json()["notes"].to_string();
    assert!(notes.contains("not authenticated"), "{notes}");
    let only = Site::new();
    only.write(9, 1);
    let asked = ["verify", "9", "--encrypt-key", &right];
    let answer = only.ask(&asked);
    assert_eq!(answer.code, 5, "{}", answer.stderr);
    assert!(
        answer.stderr.contains("--accept plain,v1"),
        "{}",
        answer.stderr
    );
    assert_eq!(
        only.ask(&[&asked[..], &["--accept", "v1"]].concat()).code,
        5
    );
    let answer = only.ask(&[&asked[..], &["--accept", "plain,v1"]].concat());
    assert_eq!(answer.code, 0, "{}", answer.stderr);
    assert_eq!(only.ask(&["verify", "9"]).code, 0);
    assert_eq!(only.ask(&["verify", "9", "--accept", "all"]).code, 2);
}

// Breaks if: a record that another key sealed counts as none: a forgotten key would look like a run
// that died, and prune would say that it had done its work.
#[test]
fn with_another_key_checkpoints_are_called_sealed_and_prune_refuses() {
    let site = Site::new();
    let path = write(&site);
    let wrong = source(&site, "wrong", &KEY.replace('f', "0"));
    let ask = |arguments: &[&str]| site.ask(&[arguments, &["--encrypt-key", &wrong]].concat());
    let listed = ask(&["ls", "--json"]).json();
    assert_eq!(listed["checkpoints"][0]["state"], "unreadable", "{listed}");
    let why = listed["checkpoints"][0]["why"].as_str().unwrap();
    assert!(why.starts_with("sealed with another key"), "{why}");
    // Breaks if: status does not say it; it would be "none".
    let status = ask(&["status"]);
    assert_eq!(status.code, 15, "{}{}", status.stdout, status.stderr);
    let words = "newest safe step: not known, because step 5 was sealed with another key";
    assert!(status.stdout.contains(words), "{}", status.stdout);
    for more in [&[][..], &["--dry-run"]] {
        let refused = ask(&[&["prune", "--keep", "1"][..], more].concat());
        assert_eq!(refused.code, 2, "{}{}", refused.stdout, refused.stderr);
        for words in ["step 5 was sealed with another key", "Next: add the key"] {
            assert!(refused.stderr.contains(words), "{}", refused.stderr);
        }
    }
    assert!(path.exists());
    // A damaged record is no missing one either.
    let plain = Site::new();
    plain.write(9, 1);
    for dir in plain.dirs() {
        orcheck_fixtures::reading::flip(
            &dir.join(orcheck_fixtures::reading::Spec::new(9, 1).commit_name()),
            70,
            1,
        );
    }
    let listed = plain.ask(&["ls", "--json"]).json();
    assert_eq!(listed["checkpoints"][0]["state"], "unreadable", "{listed}");
}

// Breaks if: what nobody proved counts: a forged newer step would take the place of a genuine one,
// or hide it.
#[test]
fn forged_newer_records_push_no_genuine_step_out() {
    let site = Site::new();
    let path = write(&site);
    let [dir, _] = site.dirs();
    // Newer in the same run, and of a later run that claims to have begun before it.
    for (step, counter) in [(9, 1), (4, 2)] {
        orcheck_fixtures::reading::write(
            std::slice::from_ref(&dir),
            &orcheck_fixtures::reading::Spec::new(step, counter),
        );
    }
    for arguments in [
        &["prune", "--keep", "1"][..],
        &["prune", "--keep", "1", "--dry-run"],
    ] {
        let refused = site.ask(arguments);
        assert_eq!(refused.code, 2, "{}{}", refused.stdout, refused.stderr);
        assert!(
            refused.stderr.contains("job cavity is encrypted"),
            "{}",
            refused.stderr
        );
        assert!(
            refused.stderr.contains("Next: give --encrypt-key"),
            "{}",
            refused.stderr
        );
    }
    let key = source(&site, "right", KEY);
    let ask = |arguments: &[&str]| site.ask(&[arguments, &["--encrypt-key", &key]].concat());
    let pruned = ask(&["prune", "--keep", "1", "--json"]);
    assert_eq!(pruned.code, 0, "{}", pruned.stderr);
    assert_eq!(pruned.json()["removed"].as_array().unwrap().len(), 0);
    assert!(path.exists());
    let status = ask(&["status", "--json"]).json();
    assert_eq!(status["jobs"][0]["newest_restartable_step"], 5);
    for what in ["rm", "keep"] {
        let unknown = ask(&[what, "9"]);
        assert_eq!(unknown.code, 10, "{what}: {}", unknown.stderr);
        assert!(
            unknown.stderr.contains("there are: 5"),
            "{what}: {}",
            unknown.stderr
        );
    }
    assert_eq!(ask(&["halt", "--list"]).code, 0);
    assert_eq!(ask(&["keep", "5"]).code, 0);
    let listed = ask(&["ls", "--json"]).json();
    assert_eq!(listed["newest_restartable_step"], 5);
}

/// A claim of another job, as whoever can write to a directory may put it there.
fn invented_claim(dir: &std::path::Path) {
    let claim = orcheck_format::disk::Claim {
        job: orcheck_format::JobName::new("invented").unwrap(),
        epoch: epoch(1),
        host: "host-a".into(),
        pid: 1,
        uid: 1,
        since_unix_ms: 1,
        world_size: 1,
        nodes: vec!["n0".into()],
    };
    std::fs::create_dir_all(dir).unwrap();
    std::fs::write(dir.join("epoch-000001.claim"), claim.encode()).unwrap();
}

// Breaks if: a claim is taken at its word; whoever can write to a directory would choose the job
// that commands work on, or keep a checkpoint from being copied there.
#[test]
fn what_the_key_does_not_prove_names_no_job() {
    let site = Site::new();
    write(&site);
    let [dir, _] = site.dirs();
    invented_claim(&dir);
    let dir = dir.display().to_string();
    let without = answer(&["ls", &dir]);
    let said = without.stdout + &without.stderr;
    assert!(said.contains("job invented"), "{said}");
    let key = source(&site, "right", KEY);
    let with = answer(&["ls", "--json", &dir, "--encrypt-key", &key]);
    assert_eq!(with.code, 0, "{}", with.stderr);
    assert_eq!(with.json()["job"], "cavity");
    let to = site.scratch.dir("to");
    invented_claim(&to.join("cavity"));
    let to = to.display().to_string();
    let copy = ["copy", "--to", "global", "--global", &to];
    let copied = site.ask(&[&copy[..], &["--encrypt-key", &key]].concat());
    assert_eq!(copied.code, 0, "{}", copied.stderr);
}

// Breaks if: what another key sealed counts as not believed; the copy would be made among the
// checkpoints of another job.
#[test]
fn nothing_is_copied_beside_what_another_key_sealed() {
    let site = Site::new();
    write(&site);
    let to = site.scratch.dir("to");
    let claim = to.join("cavity/epoch-000001.claim");
    invented_claim(claim.parent().unwrap());
    let other = Trust::new(&[Arc::new(Secret::new([7; 32]))], true, Accept::default()).unwrap();
    let sealed = other.seal(std::fs::read(&claim).unwrap()).unwrap();
    std::fs::write(&claim, sealed).unwrap();
    let (to, key) = (to.display().to_string(), source(&site, "right", KEY));
    let copy = ["copy", "--to", "global", "--global", &to];
    let refused = site.ask(&[&copy[..], &["--encrypt-key", &key]].concat());
    assert_eq!(refused.code, 2, "{}", refused.stdout);
    let path = claim.display().to_string();
    for words in [
        &path,
        "sealed with another key",
        "Next: copy to another directory",
    ] {
        assert!(
            refused.stderr.contains(words),
            "{words}: {}",
            refused.stderr
        );
    }
}

// Breaks if: a list of jobs is silent about it; whoever looks at all jobs takes what nobody proved
// for safe, or what the key does not prove for gone.
#[test]
fn a_list_of_jobs_says_which_are_not_authenticated_and_why_one_has_none() {
    let site = Site::new();
    write(&site);
    let mut plain = Spec::new(7, 1);
    plain.job = orcheck_format::JobName::new("lulesh").unwrap();
    let dir = std::path::Path::new(&site.a).join("lulesh");
    std::fs::create_dir_all(&dir).unwrap();
    orcheck_fixtures::reading::write(&[dir], &plain);
    let key = source(&site, "right", KEY);
    let without = answer(&["ls", "--dir", &site.a]);
    let words = "job cavity: step 5: not authenticated: no key given";
    assert!(without.stdout.contains(words), "{}", without.stdout);
    assert!(
        !without.stdout.contains("job lulesh:"),
        "{}",
        without.stdout
    );
    let with = ["--dir", &site.a, "--encrypt-key", &key];
    let listed = answer(&[&["ls"], &with[..]].concat());
    let words = "job lulesh: step 7: the commit record cannot be used: ";
    assert!(listed.stdout.contains(words), "{}", listed.stdout);
    assert!(!listed.stdout.contains("no key given"), "{}", listed.stdout);
    let jobs = answer(&[&["ls", "--json"], &with[..]].concat()).json();
    assert_eq!(jobs["jobs"][0]["authenticated"], true, "{jobs}");
    assert_eq!(jobs["jobs"][1]["authenticated"], false, "{jobs}");
    assert!(jobs["jobs"][1]["why"].is_string(), "{jobs}");

    // Breaks if: it is reported not to be there.
    for command in ["rm", "keep"] {
        let step = [command, "7", "--job", "lulesh"];
        let refused = answer(&[&step[..], &with].concat());
        assert_eq!(refused.code, 10, "{}", refused.stderr);
        for words in ["step 7 does not count", "not authenticated", "Next: "] {
            assert!(refused.stderr.contains(words), "{}", refused.stderr);
        }
        assert!(
            !refused.stderr.contains("there is no"),
            "{}",
            refused.stderr
        );
        let gone = [command, "8", "--job", "lulesh"];
        let absent = answer(&[&gone[..], &with].concat());
        let words = "there is no checkpoint of step 8";
        assert!(absent.stderr.contains(words), "{}", absent.stderr);
    }
}
