//! A stray write or a flipped bit in the pool, after the program's memory was copied there and
//! before it is flushed.
//!
//! How: the flush waits until the rank has handed all of its snapshot over; then a bit of it is
//! flipped through another descriptor of the pool's memory, as any process of the user could.

use crate::session::mistakes::{LONG, refused, says};
use crate::support::{Job, State, make_dir, served, tracks_pages};
use crate::{Test, session_tests};
use orcheck_client::{CPU_WRITES_ONLY, Session};
use orcheck_format::{Dtype, ErrorKind, Level};
use orcheck_io::failpoints::{Failpoint, FailpointHook, Failpoints, Verdict};
use orcheck_io::memory::Span;
use orcheck_testing::Scratch;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};

/// What is tested here.
pub const TESTS: &[Test] = session_tests![
    a_stray_write_into_the_pool_loses_the_step,
    a_stray_write_is_found_wherever_bytes_are_read_anyway,
    a_stray_write_is_found_before_other_nodes_get_it,
    a_stray_write_into_copied_pages_loses_the_step,
];

/// Flips the lowest bit of what lies `at` bytes behind `needle`, in whichever pool of this process
/// holds it.
#[allow(clippy::disallowed_methods)]
pub fn flip_in_pool(needle: &[u8], at: u64) -> bool {
    for entry in std::fs::read_dir("/proc/self/fd").unwrap().flatten() {
        let Ok(target) = std::fs::read_link(entry.path()) else {
            continue;
        };
        if !target.to_string_lossy().contains("memfd:orcheck") {
            continue;
        }
        let mut options = std::fs::OpenOptions::new();
        let Ok(file) = options.read(true).write(true).open(entry.path()) else {
            continue;
        };
        let Ok(len) = file.metadata().map(|metadata| metadata.len()) else {
            continue;
        };
        let mut block = vec![0; needle.len()];
        for place in (0..len).step_by(4096) {
            if file.read_exact_at(&mut block, place).is_ok() && block == needle {
                let mut byte = [0];
                file.read_exact_at(&mut byte, place + at).unwrap();
                file.write_all_at(&[byte[0] ^ 1], place + at).unwrap();
                return true;
            }
        }
    }
    false
}

/// Holds the flush of one checkpoint until the snapshots of all ranks are whole in the pool, and
/// then flips a bit.
#[derive(Default)]
struct Stray {
    state: Mutex<Armed>,
    changed: Condvar,
    flipped: AtomicU64,
}

#[derive(Default)]
struct Armed {
    /// What is looked for, and the offset of the bit; nothing: every step goes.
    bit: Option<(Vec<u8>, u64)>,
    /// Ranks that have not sealed their snapshots.
    unsealed: u32,
}

impl FailpointHook for Stray {
    fn at(&self, step: &Failpoint) -> Verdict {
        let mut state = self.state.lock().unwrap();
        match step.site {
            "stage.seal" => {
                state.unsealed = state.unsealed.saturating_sub(1);
                self.changed.notify_all();
            }
            "flush.taken" => {
                let wait = |state: &mut Armed| state.bit.is_some() && state.unsealed > 0;
                let waited = self.changed.wait_timeout_while(state, LONG, wait);
                let (mut state, late) = waited.unwrap();
                assert!(!late.timed_out(), "not all snapshots were sealed");
                if let Some((needle, at)) = state.bit.take() {
                    let flipped = flip_in_pool(&needle, at);
                    self.flipped.fetch_add(u64::from(flipped), Ordering::SeqCst);
                }
            }
            _ => {}
        }
        Verdict::Go
    }
}

impl Stray {
    /// From the next snapshots of this many ranks on.
    fn arm(&self, ranks: u32, needle: &[u8], at: u64) {
        *self.state.lock().unwrap() = Armed {
            bit: Some((needle.to_vec(), at)),
            unsealed: ranks,
        };
    }
}

const SCALE: usize = 300;

fn take(session: &mut Session, state: &mut State, step: u64) {
    state.protect(session).unwrap();
    session.checkpoint(step).unwrap();
}

/// The flip in step `STRUCK` loses it at these levels, with the region's name; the others are safe.
fn is_lost(job: Job, levels: &[Level], region: &str, at: u64) {
    let stray = Arc::new(Stray::default());
    let job = job.failpoints(Failpoints::with(
        Arc::clone(&stray) as Arc<dyn FailpointHook>
    ));
    // No other test has these bytes.
    static STEPS: AtomicU64 = AtomicU64::new(770_000);
    let ranks = job.ranks;
    let struck = STEPS.fetch_add(10, Ordering::SeqCst);
    job.run(|session, rank| {
        let mut session = session.unwrap();
        let mut state = State::new(rank, struck - 1, SCALE);
        take(&mut session, &mut state, struck - 1);
        for &level in levels {
            session.wait(struck - 1, level, LONG).unwrap();
        }
        state = State::new(rank, struck, SCALE);
        if rank == 0 {
            let bytes = if region == "u" { &state.u } else { &state.v };
            stray.arm(ranks, &bytes[..64], at);
        }
        take(&mut session, &mut state, struck);
        for &level in levels {
            let error = refused(session.wait(struck, level, LONG));
            let region = format!("region '{region}'");
            let expected = ["the pool does not hold what rank 0 staged", &region];
            says(&error, ErrorKind::Corrupt, &expected);
        }
        state = State::new(rank, struck + 1, SCALE);
        take(&mut session, &mut state, struck + 1);
        for &level in levels {
            session.wait(struck + 1, level, LONG).unwrap();
        }
        session.close(LONG).unwrap();
    });
    assert_eq!(
        stray.flipped.load(Ordering::SeqCst),
        1,
        "no bit was flipped"
    );
    let job = job.failpoints(Failpoints::none());
    job.run(|session, rank| {
        let mut session = session.unwrap();
        assert_eq!(session.find().unwrap(), struck + 1);
        let mut state = State::empty(rank, SCALE);
        state.protect(&mut session).unwrap();
        assert_eq!(session.restart().unwrap(), struck + 1);
        assert!(state.is(rank, struck + 1, SCALE), "rank {rank}");
        session.close(LONG).unwrap();
    });
}

const CHECKED: &str = "check_pool = true";

// Breaks if: `is_changed` says no, or a run of chunks is written whose pieces nobody looked at.
fn a_stray_write_into_the_pool_loses_the_step() {
    let scratch = Scratch::new("stray");
    let both = [Level::Node, Level::Global];
    let job = Job::new(scratch.path(), 1, 1, true).with(CHECKED);
    is_lost(job, &both, "u", 70_000);
    // Both levels at once, from a pool that does not hold two snapshots.
    let scratch = Scratch::new("stray-small");
    let job = Job::new(scratch.path(), 2, 1, false).with(CHECKED);
    is_lost(job, &[Level::Global], "v", 5_000);
    let scratch = Scratch::new("stray-striped");
    let job = Job::new(scratch.path(), 2, 3, false).with(CHECKED);
    is_lost(
        job.with("mode = 'traditional'"),
        &[Level::Global],
        "u",
        290_000,
    );
}

// Breaks if: what is compressed or encrypted is not the copy whose checksum was compared.
fn a_stray_write_is_found_wherever_bytes_are_read_anyway() {
    for (number, line) in [
        "compress = 'zstd'",
        "compress = 'lz4'",
        "encrypt = 'aes-256-gcm'",
        "compress = 'zstd'\nencrypt = 'aes-256-gcm'",
    ]
    .into_iter()
    .enumerate()
    {
        let scratch = Scratch::new("stray-read");
        let key = scratch.path().join("key");
        write_key(&key);
        let job = Job::new(scratch.path(), 1, 1, false)
            .with(line)
            .with(&format!("encrypt_key = 'file:{}'", key.display()));
        let at = [70_000, 3, 199_000, 65_600][number];
        is_lost(job, &[Level::Global], "u", at);
    }
    if served() {
        let scratch = Scratch::new("stray-served");
        let job = Job::new(scratch.path(), 1, 1, false);
        is_lost(job, &[Level::Global], "u", 70_000);
    }
}

// Breaks if: the bytes that go to other nodes are not compared with what was staged.
fn a_stray_write_is_found_before_other_nodes_get_it() {
    let scratch = Scratch::new("stray-peers");
    let job = Job::new(scratch.path(), 3, 0, true)
        .nodes(3)
        .with("peers = 1");
    is_lost(job, &[Level::Peers(1)], "u", 70_000);
}

// Breaks if: pages of a tracked region are handed over without their checksums.
fn a_stray_write_into_copied_pages_loses_the_step() {
    if !tracks_pages() {
        return;
    }
    let scratch = Scratch::new("stray-pages");
    let stray = Arc::new(Stray::default());
    let job = Job::new(scratch.path(), 1, 1, false)
        .with(CHECKED)
        .with("incremental = 'auto'")
        .failpoints(Failpoints::with(
            Arc::clone(&stray) as Arc<dyn FailpointHook>
        ));
    job.run(|session, _| {
        let mut session = session.unwrap();
        let mut field = vec![3u8; 2 << 20];
        let span = Span::from_mut(&mut field);
        session
            .protect("field", span, Dtype::U8, CPU_WRITES_ONLY)
            .unwrap();
        let mut step = |field: &mut Vec<u8>, step: u64| {
            // Pages that lie side by side, and one that does not.
            for at in [0, 100_000, 104_096, 300_000] {
                field[at..at + 64].fill(0xa0 + step as u8);
            }
            if step == 3 {
                stray.arm(1, &page_with(field, 104_096), 2_000);
            }
            session.checkpoint(step).unwrap();
            session.wait(step, Level::Global, LONG)
        };
        step(&mut field, 1).unwrap();
        step(&mut field, 2).unwrap();
        let error = refused(step(&mut field, 3));
        let expected = [
            "the pool does not hold what rank 0 staged",
            "region 'field'",
        ];
        says(&error, ErrorKind::Corrupt, &expected);
        step(&mut field, 4).unwrap();
        session.close(LONG).unwrap();
    });
    assert_eq!(
        stray.flipped.load(Ordering::SeqCst),
        1,
        "no bit was flipped"
    );
}

/// The beginning of the page in which a byte of this memory lies.
fn page_with(field: &[u8], at: usize) -> Vec<u8> {
    let begin = at - (field.as_ptr() as usize + at) % 4096;
    field[begin..begin + 4096].to_vec()
}

#[allow(clippy::disallowed_methods)]
fn write_key(path: &Path) {
    make_dir(path.parent().unwrap());
    std::fs::write(path, [5; 32]).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).unwrap();
}
