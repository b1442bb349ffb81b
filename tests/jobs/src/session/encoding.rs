//! Compressed and encrypted checkpoints: the same bytes come back by every way, or a clear error.

use crate::support::{Job, Threads, make_dir, served, wait_for_both_levels};
use crate::{Test, session_tests};
use orcheck_client::{Codec, Collective, Environment, Options, Session};
use orcheck_engine::directory::{Catalog, Places};
use orcheck_engine::encoding::{Accept, Proof, Trust};
use orcheck_engine::restart::reader::Reader;
use orcheck_engine::upkeep::{verify_commit, verify_commit_with};
use orcheck_format::disk::{Compression, Encoding};
use orcheck_format::{Dtype, ErrorKind, JobName, Level, Result};
use orcheck_io::failpoints::Failpoints;
use orcheck_io::memory::Span;
use orcheck_io::user::SecretSource;
use orcheck_testing::Scratch;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// What is tested here.
pub const TESTS: &[Test] = session_tests![
    every_encoding_brings_every_region_back_at_every_level,
    a_large_chunk_is_cut_into_pieces_that_can_be_decoded,
    borrowed_memory_is_encoded_too,
    unchanged_encoded_pieces_are_referred_to,
    without_the_right_key_nothing_is_restored_and_nothing_is_lost,
    ranks_with_different_keys_do_not_begin,
    options_that_contradict_each_other_are_refused,
    the_key_is_nowhere,
    a_key_is_changed_by_naming_the_new_one_before_the_old_one,
    a_job_that_begins_to_encrypt_refuses_its_plain_checkpoints_unless_told_to_accept_them,
];

const LONG: Duration = Duration::from_secs(30);
const KEY: &str = "603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4";
const OTHER: &str = "0000000000000000000000000000000000000000000000000000000000000001";

#[allow(clippy::disallowed_methods)]
fn key_file(root: &Path, name: &str, text: &str) -> PathBuf {
    make_dir(root);
    let path = root.join(name);
    std::fs::write(&path, text).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    path
}

fn trust(path: &Path) -> Arc<Trust> {
    let secret = SecretSource::File(path.to_owned()).read().unwrap();
    Trust::new(&[Arc::new(secret)], false, Accept::default()).unwrap()
}

/// Smooth numbers: they shrink.
fn field(rank: u32, step: u64, len: usize) -> Vec<u8> {
    (0..len)
        .flat_map(|i| {
            let x = i as f64 * 1e-3 + f64::from(rank);
            (x.sin() * (step as f64 + 1.0)).to_le_bytes()
        })
        .collect()
}

/// Bytes that do not shrink.
fn noise(rank: u32, step: u64, len: usize) -> Vec<u8> {
    let mut state = step.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ u64::from(rank) << 40 | 1;
    (0..len)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 32) as u8
        })
        .collect()
}

struct Text(Arc<Mutex<Vec<u8>>>);

impl Codec for Text {
    fn size(&mut self) -> Result<u64> {
        Ok(self.0.lock().unwrap().len() as u64)
    }

    fn pack(&mut self, at: u64, dst: &mut [u8]) -> Result<()> {
        dst.copy_from_slice(&self.0.lock().unwrap()[at as usize..][..dst.len()]);
        Ok(())
    }

    fn unpack(&mut self, at: u64, src: &[u8]) -> Result<()> {
        let mut text = self.0.lock().unwrap();
        let len = text.len().max(at as usize + src.len());
        text.resize(len, 0);
        text[at as usize..][..src.len()].copy_from_slice(src);
        Ok(())
    }
}

/// What a rank of these tests holds.
struct All {
    field: Vec<u8>,
    noise: Vec<u8>,
    lent: Vec<u8>,
    small: Vec<u8>,
    text: Arc<Mutex<Vec<u8>>>,
}

impl All {
    fn new(rank: u32, step: u64) -> Self {
        let text = format!("rank {rank}, step {step}; ").repeat(4000);
        All {
            field: field(rank, step, 40_000),
            noise: noise(rank, step, 150_001),
            lent: field(rank + 100, step, 30_000),
            small: vec![step as u8; 24],
            text: Arc::new(Mutex::new(text.into_bytes())),
        }
    }

    fn blank(rank: u32) -> Self {
        let mut all = All::new(rank, 0);
        for bytes in [
            &mut all.field,
            &mut all.noise,
            &mut all.lent,
            &mut all.small,
        ] {
            bytes.fill(0xee);
        }
        all.text.lock().unwrap().clear();
        all
    }

    fn protect(&mut self, session: &mut Session) -> Result<()> {
        session.protect("field", Span::from_mut(&mut self.field), Dtype::F64, 0)?;
        session.protect("noise", Span::from_mut(&mut self.noise), Dtype::U8, 0)?;
        session.protect("lent", Span::from_mut(&mut self.lent), Dtype::F32, 0)?;
        session.protect("small", Span::from_mut(&mut self.small), Dtype::U64, 0)?;
        session.protect_codec("text", Box::new(Text(Arc::clone(&self.text))), 0)
    }

    fn is(&self, rank: u32, step: u64) -> bool {
        let expected = All::new(rank, step);
        self.field == expected.field
            && self.noise == expected.noise
            && self.lent == expected.lent
            && self.small == expected.small
            && *self.text.lock().unwrap() == *expected.text.lock().unwrap()
    }
}

fn save(job: &Job, steps: std::ops::RangeInclusive<u64>, level: Level) -> Vec<(u64, u64)> {
    job.run(|session, rank| {
        let mut session = session.unwrap();
        for step in steps.clone() {
            let mut all = All::new(rank, step);
            all.protect(&mut session).unwrap();
            session.lend("lent").unwrap();
            session.checkpoint(step).unwrap();
            session.lent_done("lent", LONG).unwrap();
            session.wait(step, level, LONG).unwrap();
        }
        let stats = session.stats();
        session.close(LONG).unwrap();
        (stats.flushed_bytes, stats.file_bytes)
    })
}

fn resume(job: &Job, step: u64) {
    job.run(|session, rank| {
        let mut session = session.unwrap();
        assert_eq!(session.find().unwrap(), step);
        let mut all = All::blank(rank);
        all.protect(&mut session).unwrap();
        assert_eq!(session.restart().unwrap(), step);
        assert!(all.is(rank, step));
        assert_eq!(session.take_warning(), None);
        session.close(LONG).unwrap();
    });
}

fn encodings_of(root: &Path, job: &Job, trust: &Arc<Trust>) -> Vec<Encoding> {
    let mut found = Vec::new();
    for place in places(root, job) {
        let name = JobName::new("job").unwrap();
        let catalog = Catalog::scan_trusting(&name, &place, trust).unwrap();
        for commit in catalog.commits() {
            let proven = (trust, commit.proof);
            let verdict = verify_commit_with(&place, &commit.record, proven, &mut |_, _| {});
            let verdict = verdict.unwrap();
            assert!(verdict.is_good(), "{:?}", verdict.findings().next());
            assert_eq!(verdict.locked_bytes(), 0);
            for container in &commit.record.containers {
                let reader = Reader::open(&place, &commit.record, container).unwrap();
                let extents = (reader.manifest().ranks.iter())
                    .flat_map(|rank| &rank.regions)
                    .flat_map(|region| &region.extents);
                found.extend(extents.map(|extent| extent.check_encoding().unwrap()));
            }
        }
    }
    found
}

/// The directories of each level.
fn places(root: &Path, job: &Job) -> Vec<Vec<Arc<dyn orcheck_io::disk::Dir>>> {
    let options = Options::from_text(&job.options).unwrap();
    let name = JobName::new("job").unwrap();
    let node_dir = options.node_dir.clone();
    assert!(served() || options.global.iter().all(|dir| dir.starts_with(root)));
    let places = Places::open(
        &name,
        "n0",
        node_dir.as_ref(),
        &options.global,
        &Failpoints::none(),
        false,
    );
    let places = places.unwrap();
    (places.levels().into_iter())
        .map(|level| places.to_read(level))
        .collect()
}

// Breaks if: pieces are laid out wrongly behind each other, or a level is encrypted with another
// level's key.
fn every_encoding_brings_every_region_back_at_every_level() {
    for (number, (lines, compression, encrypted)) in [
        ("compress = 'zstd'", Compression::Zstd, false),
        ("compress = 'lz4'", Compression::Lz4, false),
        ("encrypt = 'aes-256-gcm'", Compression::None, true),
        (
            "compress = 'zstd'\ncompress_level = 3\nencrypt = 'aes-256-gcm'",
            Compression::Zstd,
            true,
        ),
        (
            "compress = 'lz4'\nencrypt = 'aes-256-gcm'",
            Compression::Lz4,
            true,
        ),
    ]
    .into_iter()
    .enumerate()
    {
        // A pool that holds everything, and one that holds a sixth of it; with and without two
        // levels.
        for (pool, node_level) in [("8 MiB", true), ("256 KiB", number % 2 == 0)] {
            let scratch = Scratch::in_memory("encoding");
            let root = scratch.path();
            let key = key_file(root, "key", KEY);
            let job = Job::new(root, 2, 1, node_level)
                .pool(pool)
                .with(lines)
                .with(&format!("encrypt_key = 'file:{}'", key.display()));
            let level = if number % 2 == 0 {
                Level::Global
            } else {
                Level::Node
            };
            let figures = save(&job, 1..=2, level);
            if compression != Compression::None {
                let (flushed, stored) = figures[0];
                assert!(
                    flushed > 0 && stored < flushed * 9 / 10,
                    "{stored} of {flushed}"
                );
            }
            let found = encodings_of(root, &job, &trust(&key));
            assert!(found.iter().all(|encoding| encoding.encrypted == encrypted));
            // Noise is stored as it is, fields are not.
            assert!(
                found
                    .iter()
                    .any(|encoding| encoding.compression == Compression::None)
            );
            let packed = found
                .iter()
                .any(|e| e.compression == compression && e.shuffle_log2 == 3);
            assert!(packed || compression == Compression::None);
            resume(&job, 2);
        }
    }
}

/// Chunks that are longer than an encoded extent may be, and no multiple of one.
fn a_large_chunk_is_cut_into_pieces_that_can_be_decoded() {
    let scratch = Scratch::in_memory("encoding");
    let mut job = Job::new(scratch.path(), 1, 1, false).with("compress = 'zstd'");
    job.options = job
        .options
        .replace("'64 KiB'", "'5 MiB'")
        .replace("'8 MiB'", "'20 MiB'");
    let state = |step| field(0, step, 1_700_000);
    job.run(|session, _| {
        let mut session = session.unwrap();
        let mut large = state(1);
        session
            .protect("large", Span::from_mut(&mut large), Dtype::F64, 0)
            .unwrap();
        session.checkpoint(1).unwrap();
        session.wait(1, Level::Global, LONG).unwrap();
        session.close(LONG).unwrap();
    });
    job.run(|session, _| {
        let mut session = session.unwrap();
        session.find().unwrap();
        let mut large = vec![0; state(1).len()];
        session
            .protect("large", Span::from_mut(&mut large), Dtype::F64, 0)
            .unwrap();
        assert_eq!(session.restart().unwrap(), 1);
        assert!(large == state(1));
        session.close(LONG).unwrap();
    });
    encodings_of(scratch.path(), &job, &Trust::nobody());
}

/// A region lent from the pool is encoded from where it lies.
fn borrowed_memory_is_encoded_too() {
    let scratch = Scratch::in_memory("encoding");
    let key = key_file(scratch.path(), "key", KEY);
    let job = Job::new(scratch.path(), 1, 1, true)
        .with("compress = 'lz4'\nencrypt = 'aes-256-gcm'")
        .with(&format!("encrypt_key = 'file:{}'", key.display()));
    let bytes = field(3, 9, 20_001);
    job.run(|session, _| {
        let mut session = session.unwrap();
        let span = session
            .alloc(bytes.len() as u64)
            .unwrap()
            .sub(0, bytes.len());
        orcheck_io::memory::fill_span(span, &bytes);
        session.protect("b", span, Dtype::F64, 0).unwrap();
        session.lend("b").unwrap();
        session.checkpoint(1).unwrap();
        session.wait(1, Level::Global, LONG).unwrap();
        session.lent_done("b", LONG).unwrap();
        session.close(LONG).unwrap();
    });
    job.run(|session, _| {
        let mut session = session.unwrap();
        session.find().unwrap();
        let mut back = vec![0; bytes.len()];
        session
            .protect("b", Span::from_mut(&mut back), Dtype::F64, 0)
            .unwrap();
        session.restart().unwrap();
        assert!(back == bytes);
        session.close(LONG).unwrap();
    });
}

/// Encoded extents are referred to as wholes, and decrypted with the key of the container they lie
/// in.
// Breaks if: `Reader::key_of` takes the own container's key, `end_rank` enters places after
// encoding under their new offsets in the ledger, or a region that was declared otherwise counts as
// the same.
fn unchanged_encoded_pieces_are_referred_to() {
    for lines in [
        "compress = 'zstd'",
        "encrypt = 'aes-256-gcm'",
        "compress = 'lz4'\nencrypt = 'aes-256-gcm'",
    ] {
        let scratch = Scratch::in_memory("encoding");
        let root = scratch.path();
        let key = key_file(root, "key", KEY);
        let job = Job::new(root, 2, 1, true)
            .with(lines)
            .with("incremental = 'auto'\nkeep = 4")
            .with(&format!("encrypt_key = 'file:{}'", key.display()));
        let still = |rank| (field(rank + 7, 1, 30_000), noise(rank + 7, 1, 100_000));
        let referred = job.run(|session, rank| {
            let mut session = session.unwrap();
            let (mut smooth, mut rough) = still(rank);
            // The fourth is full, because most of the third was stored.
            for step in 1..=5 {
                let mut changing = field(rank, step, 9_000);
                // From step 3 on the same bytes are declared as something else.
                let dtype = if step < 3 { Dtype::F64 } else { Dtype::I64 };
                session
                    .protect("smooth", Span::from_mut(&mut smooth), dtype, 0)
                    .unwrap();
                session
                    .protect("rough", Span::from_mut(&mut rough), Dtype::U8, 4)
                    .unwrap();
                session
                    .protect("changing", Span::from_mut(&mut changing), Dtype::F64, 0)
                    .unwrap();
                session.checkpoint(step).unwrap();
                wait_for_both_levels(&mut session, step);
            }
            let referred = session.stats().captured.referred_bytes;
            session.close(LONG).unwrap();
            referred
        });
        assert!(
            referred.iter().all(|&bytes| bytes >= 250_000),
            "{referred:?}"
        );
        encodings_of(root, &job, &trust(&key));
        job.run(|session, rank| {
            let mut session = session.unwrap();
            assert_eq!(session.find().unwrap(), 5);
            let (smooth, rough) = still(rank);
            let mut back = (vec![0; smooth.len()], vec![0; rough.len()], vec![0; 72_000]);
            session
                .protect("smooth", Span::from_mut(&mut back.0), Dtype::I64, 0)
                .unwrap();
            session
                .protect("rough", Span::from_mut(&mut back.1), Dtype::U8, 4)
                .unwrap();
            session
                .protect("changing", Span::from_mut(&mut back.2), Dtype::F64, 0)
                .unwrap();
            assert_eq!(session.restart().unwrap(), 5);
            assert!(back == (smooth, rough, field(rank, 5, 9_000)));
            session.close(LONG).unwrap();
        });
    }
}

// Breaks if: a missing or wrong key counts as damage; the job would then fall back, or begin from
// nothing.
fn without_the_right_key_nothing_is_restored_and_nothing_is_lost() {
    let scratch = Scratch::in_memory("encoding");
    let root = scratch.path();
    let (key, other) = (key_file(root, "key", KEY), key_file(root, "other", OTHER));
    let plain = Job::new(root, 2, 1, true);
    let with = |path: &Path| {
        let line = format!(
            "encrypt = 'aes-256-gcm'\nencrypt_key = 'file:{}'",
            path.display()
        );
        plain.clone().with(&line)
    };
    save(&with(&key), 1..=1, Level::Global);
    for (job, part) in [
        (plain.clone(), "encrypted and no key was given"),
        (with(&other), "sealed with another key"),
    ] {
        for error in job.run(|session, _| session.unwrap().find().unwrap_err()) {
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(error.message().contains(part), "{error}");
            assert!(error.message().contains("encrypt_key"), "{error}");
            assert!(!error.message().contains(&KEY[..16]), "{error}");
        }
    }
    // The key alone is enough to read; what is written then is not encrypted.
    let reading = plain.with(&format!("encrypt_key = 'file:{}'", key.display()));
    resume(&reading, 1);

    // Storage can be checked without a key.
    for place in places(root, &reading) {
        let name = JobName::new("job").unwrap();
        let catalog = Catalog::scan(&name, &place).unwrap();
        assert_eq!(catalog.commits()[0].proof, Proof::Unchecked);
        let record = &catalog.commits()[0].record;
        let verdict = verify_commit(&place, record, &mut |_, _| {}).unwrap();
        assert!(verdict.is_good());
        assert_eq!(verdict.locked_bytes(), verdict.checked_bytes());
        let error = Catalog::scan_trusting(&name, &place, &trust(&other));
        let error = error.unwrap().refused().cloned().map_or(Ok(()), Err);
        assert_eq!(error.unwrap_err().kind(), ErrorKind::Invalid);
    }
}

// Breaks if: the ranks do not compare their keys.
fn ranks_with_different_keys_do_not_begin() {
    let scratch = Scratch::in_memory("encoding");
    let root = scratch.path();
    let keys = [
        key_file(root, "0", KEY),
        key_file(root, "1", OTHER),
        key_file(root, "2", KEY),
    ];
    let job = Job::new(root, 2, 1, false).with("encrypt = 'aes-256-gcm'");
    let open = |rank: u32, key: &Path, collective| {
        let line = format!("encrypt_key = 'file:{}'\nnode_name = 'n0'", key.display());
        let options = Options::from_text(&job.clone().with(&line).options);
        assert_eq!(rank, Collective::rank(&collective).0);
        Session::open_with("job", Box::new(collective), options, Environment::default())
    };
    let opened = |second: &Path| -> Vec<Result<()>> {
        let worlds = Threads::world(2);
        std::thread::scope(|scope| {
            let handles: Vec<_> = (0u32..)
                .zip(worlds.into_iter().zip([keys[0].as_path(), second]))
                .map(|(rank, (collective, key))| {
                    let open = &open;
                    scope.spawn(move || open(rank, key, collective)?.close(LONG))
                })
                .collect();
            (handles.into_iter())
                .map(|handle| handle.join().unwrap())
                .collect()
        })
    };
    for opened in opened(&keys[1]) {
        let error = opened.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.message().contains("different keys"), "{error}");
    }
    // Other places are no other key.
    for opened in opened(&keys[2]) {
        opened.unwrap();
    }
}

fn options_that_contradict_each_other_are_refused() {
    for (text, part) in [
        ("encrypt = 'aes-256-gcm'", "set encrypt_key to file:PATH"),
        ("encrypt = 'rot13'", "encrypt = \"rot13\""),
        ("compress = 'zip'", "compress = \"zip\""),
        ("compress_level = 0", "compress_level = 0"),
        (
            "compress = 'zstd'\nmode = 'traditional'",
            "stores everything as it is",
        ),
        (
            "encrypt_key = '603deb1015ca71be2b73aef0857d7781'",
            "never the key itself",
        ),
    ] {
        let error = Options::from_text(&format!("global = '/g'\n{text}")).unwrap_err();
        assert!(error.message().contains(part), "{text}: {error}");
        assert!(!error.message().contains("603deb"), "{error}");
    }
}

/// The key is in no file that a session writes, no message, and not in what options print.
// Breaks if: the key itself is kept in the options, or written beside what it encrypts.
fn the_key_is_nowhere() {
    let scratch = Scratch::in_memory("encoding");
    let root = scratch.path();
    let key = key_file(&root.join("keys"), "key", KEY);
    let job = Job::new(root, 2, 1, true)
        .with("compress = 'zstd'\nencrypt = 'aes-256-gcm'")
        .with(&format!("encrypt_key = 'file:{}'", key.display()));
    save(&job, 1..=2, Level::Global);
    let secret = SecretSource::File(key.clone()).read().unwrap();
    let raw = secret.bytes().to_vec();
    let options = Options::from_text(&job.options).unwrap();
    let mut haystacks = vec![
        format!("{options:?}").into_bytes(),
        format!("{secret:?}").into_bytes(),
    ];
    read_all(&root.join("ost0"), &mut haystacks);
    read_all(&root.join("local"), &mut haystacks);
    assert!(haystacks.len() > 8);
    let field = All::new(0, 1).field;
    // The key, as it is and as it was written, and what it hides.
    for needle in [&raw[..16], &KEY.as_bytes()[..16], &field[8..40]] {
        for bytes in &haystacks {
            assert!(!bytes.windows(needle.len()).any(|part| part == needle));
        }
    }
}

#[allow(clippy::disallowed_methods)]
fn read_all(dir: &Path, into: &mut Vec<Vec<u8>>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            read_all(&path, into);
        } else {
            into.push(std::fs::read(&path).unwrap());
        }
    }
}

/// Restarts from this step and continues to the next one; why it does not, where it does not.
fn go_on(job: &Job, from: u64) -> Result<()> {
    let results = job.run(|session, rank| {
        let mut session = session?;
        let found = session.find()?;
        assert_eq!(found, from);
        let mut all = All::blank(rank);
        all.protect(&mut session)?;
        assert_eq!(session.restart()?, from);
        assert!(all.is(rank, from));
        all = All::new(rank, from + 1);
        all.protect(&mut session)?;
        session.checkpoint(from + 1)?;
        session.wait(from + 1, Level::Global, LONG)?;
        session.close(LONG)
    });
    results.into_iter().collect()
}

// Breaks if: only the first key reads, all keys write, or a checkpoint under a key that is not
// given is passed over for an older one.
fn a_key_is_changed_by_naming_the_new_one_before_the_old_one() {
    let scratch = Scratch::in_memory("encoding");
    let root = scratch.path();
    let (old, new) = (key_file(root, "old", KEY), key_file(root, "new", OTHER));
    let (old, new) = (old.display(), new.display());
    let job = Job::new(root, 2, 1, true).with("encrypt = 'aes-256-gcm'\nkeep = 2");
    let with = |keys: &str| job.clone().with(&format!("encrypt_key = {keys}"));
    save(&with(&format!("'file:{old}'")), 1..=1, Level::Global);
    go_on(&with(&format!("['file:{new}', 'file:{old}']")), 1).unwrap();
    // Step 2 was written with the new key; the old one alone would go back to step 1.
    let error = go_on(&with(&format!("'file:{old}'")), 1).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    assert!(error.message().contains("step 2"), "{error}");
    assert!(error.message().contains("another key"), "{error}");
    go_on(&with(&format!("'file:{new}'")), 2).unwrap();
    go_on(&with(&format!("'file:{new}'")), 3).unwrap();
}

// Breaks if: what is not encrypted is restarted from although `encrypt` is set, or refused although
// it is accepted.
fn a_job_that_begins_to_encrypt_refuses_its_plain_checkpoints_unless_told_to_accept_them() {
    let scratch = Scratch::in_memory("encoding");
    let root = scratch.path();
    let key = key_file(root, "key", KEY);
    let plain = Job::new(root, 2, 1, true).with("keep = 2");
    save(&plain, 1..=2, Level::Global);
    let line = format!(
        "encrypt = 'aes-256-gcm'\nencrypt_key = 'file:{}'",
        key.display()
    );
    let job = plain.clone().with(&line);
    for refusing in [job.clone(), job.clone().with("accept = 'v1'")] {
        let error = go_on(&refusing, 2).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        assert!(error.message().contains("not authenticated"), "{error}");
        assert!(error.message().contains("accept"), "{error}");
    }
    go_on(&job.clone().with("accept = ['plain', 'v1']"), 2).unwrap();
    go_on(&job, 3).unwrap();
    go_on(&job, 4).unwrap();
    let error = job.clone().with("accept = 'all'").options;
    let error = Options::from_text(&error).unwrap_err();
    assert!(error.message().contains("'plain' or 'v1'"), "{error}");
}
