//! Incremental capture against a model: whatever is written, lost, pruned or lent, every checkpoint
//! that has a commit record gives the bytes that the program had when it was taken.

use crate::support::{Job, needs_own_disks, tracks_pages};
use crate::{Test, session_tests};
use orcheck_client::Session;
use orcheck_engine::capture::Full;
use orcheck_engine::directory::{Catalog, Places};
use orcheck_engine::restart::{Candidate, RankView};
use orcheck_engine::upkeep::verify_commit;
use orcheck_format::{Dtype, JobName, Level, Rank, Step};
use orcheck_io::failpoints::{Failpoints, Verdict};
use orcheck_io::memory::Span;
use orcheck_io::user::env_var;
use orcheck_testing::{FaultPlan, Pinned, Scratch};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use scenario::*;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

mod scenario;

/// What is tested here.
pub const TESTS: &[Test] = session_tests![
    every_checkpoint_that_stays_has_the_bytes_of_its_step,
    compared_regions_store_the_chunks_that_changed,
    tracked_regions_store_the_pages_that_changed,
    a_checkpoint_that_changed_much_is_followed_by_a_full_one,
    a_region_that_is_mostly_written_is_not_tracked_for_a_while,
    without_tracking_regions_are_compared,
    what_is_wrong_with_a_referred_container_is_named,
    a_write_to_pinned_pages_is_missed_only_where_the_program_promised_none,
    what_a_lost_step_stored_is_stored_again,
    what_a_pinned_checkpoint_refers_to_stays_too,
];

const LONG: Duration = Duration::from_secs(30);
const CPU_WRITES_ONLY: u32 = orcheck_client::CPU_WRITES_ONLY;
const EIO: i32 = 5;
const ENOSPC: i32 = 28;

// Breaks if: `Capture::is_stored` takes `any` for `all`, `Pages::want` ignores homes that are not
// committed, `Ledger::resolve` leaves the offset in an extent out, or `prune` looks at the kept
// checkpoints only.
fn every_checkpoint_that_stays_has_the_bytes_of_its_step() {
    let cases = env_var("ORCHECK_TRIALS")
        .and_then(|text| text.parse().ok())
        .unwrap_or(0);
    let mut runner = TestRunner::new(Config {
        cases: cases.max(12),
        max_shrink_iters: 200,
        failure_persistence: None,
        ..Config::default()
    });
    runner
        .run(&scenario(), |scenario| {
            try_scenario(&scenario);
            Ok(())
        })
        .unwrap();
}

/// One rank, one region of 2 MiB and a small one, all committed before the next begins.
fn captured(
    options: &str,
    flags: u32,
    change: impl Fn(u64, &mut [u8]) + Sync,
) -> Vec<(u64, u64, u64, Option<Full>)> {
    let scratch = Scratch::new("captured");
    let job = Job::new(scratch.path(), 1, 1, false)
        .with("incremental = 'auto'")
        .with(options);
    let all = job.run(|session, _| {
        let mut session = session.unwrap();
        let mut bytes = vec![0u8; 2 << 20];
        fill(&mut bytes, 7);
        let mut small = [0u8; 64];
        session
            .protect("big", Span::from_mut(&mut bytes), Dtype::U8, flags)
            .unwrap();
        session
            .protect("small", Span::from_mut(&mut small), Dtype::U8, 0)
            .unwrap();
        let mut all = Vec::new();
        for step in 1..=6 {
            change(step, &mut bytes);
            small[0] = step as u8;
            session.checkpoint(step).unwrap();
            session.wait(step, Level::Global, LONG).unwrap();
            let captured = session.stats().captured;
            all.push((
                captured.stored_bytes,
                captured.referred_bytes,
                captured.tracked_bytes,
                captured.full,
            ));
        }
        assert_eq!(session.take_warning(), None);
        session.close(LONG).unwrap();
        all
    });
    all.into_iter().flatten().collect()
}

const BIG: u64 = 2 << 20;

fn compared_regions_store_the_chunks_that_changed() {
    let all = captured("incremental_chain = 4", 0, |step, bytes| {
        bytes[5] = step as u8
    });
    assert_eq!(all[0], (BIG + 64, 0, 0, Some(Full::First)));
    for &(stored, referred, _, full) in &all[1..5] {
        assert_eq!((stored + referred, full), (BIG + 64, None));
        assert!(
            stored <= 2 * 65536 + 64,
            "{stored} bytes stored for one that changed"
        );
    }
    assert_eq!(all[5], (BIG + 64, 0, 0, Some(Full::Chain)));
}

fn tracked_regions_store_the_pages_that_changed() {
    if !tracks_pages() {
        return;
    }
    let page = orcheck_pool::page_bytes() as u64;
    let all = captured("", CPU_WRITES_ONLY, |step, bytes| {
        bytes[1_000_000] = step as u8;
        // Written, but with what was there.
        let byte = std::hint::black_box(bytes[1_500_000]);
        bytes[1_500_000] = std::hint::black_box(byte);
    });
    assert_eq!(all[0], (BIG + 64, 0, BIG, Some(Full::First)));
    for &(stored, referred, tracked, full) in &all[1..] {
        assert_eq!((stored + referred, tracked, full), (BIG + 64, BIG, None));
        // Breaks if: a written page counts as changed without a look at its CRC.
        assert!(
            stored <= page + 64,
            "{stored} bytes stored for one page that changed"
        );
    }
}

fn a_checkpoint_that_changed_much_is_followed_by_a_full_one() {
    let all = captured("", 0, |step, bytes| fill(&mut bytes[..3 << 19], step));
    let full: Vec<Option<Full>> = all.iter().map(|&(_, _, _, full)| full).collect();
    let share = Some(Full::Share);
    assert_eq!(full, [Some(Full::First), None, share, None, share, None]);
}

fn a_region_that_is_mostly_written_is_not_tracked_for_a_while() {
    if !tracks_pages() {
        return;
    }
    let scratch = Scratch::new("rest");
    let job =
        Job::new(scratch.path(), 1, 1, false).with("incremental = 'auto'\nincremental_chain = 32");
    job.run(|session, _| {
        let mut session = session.unwrap();
        let mut bytes = vec![0u8; 2 << 20];
        let mut other = vec![1u8; 4 << 20];
        session
            .protect(
                "big",
                Span::from_mut(&mut bytes),
                Dtype::U8,
                CPU_WRITES_ONLY,
            )
            .unwrap();
        session
            .protect("other", Span::from_mut(&mut other), Dtype::U8, 0)
            .unwrap();
        let mut tracked = Vec::new();
        for step in 1..=16 {
            fill(&mut bytes[..1 << 20], step);
            session.checkpoint(step).unwrap();
            session.wait(step, Level::Global, LONG).unwrap();
            tracked.push(session.stats().captured.tracked_bytes > 0);
        }
        let resting = tracked.iter().filter(|tracked| !**tracked).count();
        assert!((7..=9).contains(&resting), "{tracked:?}");
        assert!(tracked[0] && tracked[13], "{tracked:?}");
        let warning = session.take_warning().unwrap();
        assert!(
            warning.contains("'big' is compared for 8 checkpoints"),
            "{warning}"
        );
        session.close(LONG).unwrap();
    });
}

/// The kernel or a policy refuses: compared instead, said once, and the same bytes.
fn without_tracking_regions_are_compared() {
    for (site, nth) in [("track.arm", 1), ("track.scan", 2)] {
        let scratch = Scratch::new("untracked");
        let (_, failpoints) = FaultPlan::new()
            .at_site(site, nth, Verdict::Fail(1))
            .failpoints();
        let job = Job::new(scratch.path(), 1, 1, false)
            .with("incremental = 'auto'")
            .failpoints(failpoints);
        let mut memory = vec![0u8; 2 << 20];
        fill(&mut memory, 3);
        let memory = Mutex::new(memory);
        job.run(|session, _| {
            let mut session = session.unwrap();
            let mut bytes = memory.lock().unwrap();
            session
                .protect(
                    "big",
                    Span::from_mut(&mut bytes),
                    Dtype::U8,
                    CPU_WRITES_ONLY,
                )
                .unwrap();
            for step in 1..=4 {
                bytes[step as usize * 1000] ^= 1;
                session.checkpoint(step).unwrap();
                session.wait(step, Level::Global, LONG).unwrap();
            }
            let captured = session.stats().captured;
            assert!(
                captured.full.is_none() && captured.tracked_bytes == 0,
                "{captured:?}"
            );
            assert!(
                captured.referred_bytes > captured.stored_bytes,
                "{captured:?}"
            );
            let warning = session.take_warning().unwrap();
            assert!(warning.contains("'big'"), "{warning}");
            session.close(LONG).unwrap();
        });
        let expected = memory.into_inner().unwrap();
        let job = Job::new(scratch.path(), 1, 1, false);
        job.run(|session, _| {
            let mut session = session.unwrap();
            let mut bytes = vec![0u8; 2 << 20];
            session
                .protect("big", Span::from_mut(&mut bytes), Dtype::U8, 0)
                .unwrap();
            session.find().unwrap();
            assert_eq!(session.restart().unwrap(), 4);
            assert!(bytes == expected);
            session.close(LONG).unwrap();
        });
    }
}

/// A checkpoint that refers to an older one whose container is gone, damaged, or another run's.
// Breaks if: `check_older` in the reader returns Ok always.
fn what_is_wrong_with_a_referred_container_is_named() {
    let scratch = Scratch::new("referred");
    let elsewhere = Scratch::new("elsewhere");
    for root in [scratch.path(), elsewhere.path()] {
        let job = Job::new(root, 1, 1, false).with("incremental = 'auto'");
        job.run(|session, _| {
            let mut session = session.unwrap();
            let mut bytes = vec![3; 1 << 20];
            session
                .protect("u", Span::from_mut(&mut bytes), Dtype::U8, 0)
                .unwrap();
            for step in [1, 2] {
                bytes[0] = step as u8;
                session.checkpoint(step).unwrap();
                session.wait(step, Level::Global, LONG).unwrap();
            }
            session.close(LONG).unwrap();
        });
    }
    let dir = scratch.path().join("ost0");
    let container = |root: &Path| {
        let dir = root.join("ost0/job");
        let is_first = |name: &String| name.starts_with("s000000000001") && name.ends_with(".orc");
        dir.join(list(&dir).into_iter().find(is_first).unwrap())
    };
    let read = || {
        let places = Places::open(
            &JobName::new("job").unwrap(),
            "n0",
            None,
            std::slice::from_ref(&dir),
            &Failpoints::none(),
            false,
        )
        .unwrap();
        let catalog = Catalog::scan(&JobName::new("job").unwrap(), &places.all()).unwrap();
        let record = &catalog.commits()[0].record;
        assert_eq!((record.step, record.refers_to()), (Step(2), vec![Step(1)]));
        let candidate = Candidate {
            step: Step(2),
            epoch: record.epoch,
        };
        let mut found = vec![0; 1 << 20];
        RankView::open(&places, candidate, Rank(0), 1)
            .and_then(|mut view| view.read("u", Span::from_mut(&mut found)))
    };
    read().unwrap();
    let path = container(scratch.path());
    let whole = read_file(&path);
    let other = read_file(&container(elsewhere.path()));
    let name = path.file_name().unwrap().to_string_lossy().into_owned();

    write_file(&path, &other);
    let error = read().unwrap_err().to_string();
    assert!(
        error.contains("is referred to: expected job job, step 1") && error.contains(&name),
        "{error}"
    );

    let mut damaged = whole.clone();
    let at = damaged.len() / 2;
    damaged[at] ^= 1;
    write_file(&path, &damaged);
    let error = read().unwrap_err().to_string();
    assert!(
        error.contains("damaged data") && error.contains("step 2") && error.contains(&name),
        "{error}"
    );

    remove_file(&path);
    let error = read().unwrap_err().to_string();
    assert!(
        error.contains("in which step 1 stored bytes") && error.contains(&name),
        "{error}"
    );

    write_file(&path, &whole);
    read().unwrap();
}

#[allow(clippy::disallowed_methods)] // tests look behind the door
fn list(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).unwrap();
    entries
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect()
}

#[allow(clippy::disallowed_methods)]
fn read_file(path: &Path) -> Vec<u8> {
    std::fs::read(path).unwrap()
}

#[allow(clippy::disallowed_methods)]
fn write_file(path: &Path, bytes: &[u8]) {
    std::fs::write(path, bytes).unwrap();
}

#[allow(clippy::disallowed_methods)]
fn remove_file(path: &Path) {
    std::fs::remove_file(path).unwrap();
}

/// Pages that were pinned before are written behind the page table: missed where the program
/// promised that this does not happen, found where it did not.
#[allow(clippy::disallowed_methods, clippy::print_stderr)]
fn a_write_to_pinned_pages_is_missed_only_where_the_program_promised_none() {
    for (flags, missed) in [(0, false), (CPU_WRITES_ONLY, true)] {
        let scratch = Scratch::new("dma");
        let path = scratch.path().join("source");
        std::fs::write(&path, vec![0xab; 4096]).unwrap();
        let file = std::fs::File::open(&path).unwrap();
        let mut bytes = vec![1u8; 2 << 20];
        let span = Span::from_mut(&mut bytes);
        let pinned = match Pinned::new(span) {
            Ok(pinned) => pinned,
            Err(error) => return eprintln!("SKIPPED: this system has no io_uring: {error}"),
        };
        let job = Job::new(scratch.path(), 1, 1, false).with("incremental = 'auto'");
        let tracked = job.run(|session, _| {
            let mut session = session.unwrap();
            session.protect("u", span, Dtype::U8, flags).unwrap();
            for step in [1, 2] {
                if step == 2 {
                    pinned.read(&file, 1 << 20, 4096).unwrap();
                }
                session.checkpoint(step).unwrap();
                session.wait(step, Level::Global, LONG).unwrap();
            }
            let captured = session.stats().captured;
            session.close(LONG).unwrap();
            captured.tracked_bytes > 0
        });
        if missed && !tracked[0] {
            return eprintln!("SKIPPED: this system cannot track pages");
        }
        assert_eq!(bytes[1 << 20], 0xab);
        Job::new(scratch.path(), 1, 1, false).run(|session, _| {
            let mut session = session.unwrap();
            let mut found = vec![0u8; 2 << 20];
            session
                .protect("u", Span::from_mut(&mut found), Dtype::U8, flags)
                .unwrap();
            session.find().unwrap();
            assert_eq!(session.restart().unwrap(), 2);
            assert_eq!(found != bytes, missed, "flags {flags}");
            session.close(LONG).unwrap();
        });
    }
}

/// A step lost to a full disk does not make the next one full, so what it stored must be stored
/// again.
// Breaks if: `Pages::want` looks at written pages only, or `Capture::is_stored` does not ask what
// became of the home.
fn what_a_lost_step_stored_is_stored_again() {
    if needs_own_disks() {
        return;
    }
    for flags in [0, CPU_WRITES_ONLY] {
        let scratch = Scratch::new("lost");
        let (plan, failpoints) = FaultPlan::new().failpoints();
        let job = Job::new(scratch.path(), 1, 1, false).with("incremental = 'auto'");
        let mut expected = vec![0u8; 2 << 20];
        fill(&mut expected, 9);
        let memory = Mutex::new(expected.clone());
        job.failpoints(failpoints).run(|session, _| {
            let mut session = session.unwrap();
            let mut bytes = memory.lock().unwrap();
            session
                .protect("u", Span::from_mut(&mut bytes), Dtype::U8, flags)
                .unwrap();
            plan.fail_from_now("file.sync", "s000000000002-", Verdict::Fail(ENOSPC));
            for step in 1..=3 {
                if step == 2 {
                    bytes[1_200_000] ^= 0xff;
                }
                session.checkpoint(step).unwrap();
                let committed = session.wait(step, Level::Global, LONG).is_ok();
                assert_eq!(committed, step != 2);
            }
            let captured = session.stats().captured;
            assert!(captured.full.is_none() && captured.referred_bytes > captured.stored_bytes);
            session.close(LONG).unwrap_or_default();
        });
        expected[1_200_000] ^= 0xff;
        Job::new(scratch.path(), 1, 1, false).run(|session, _| {
            let mut session = session.unwrap();
            let mut found = vec![0u8; 2 << 20];
            session
                .protect("u", Span::from_mut(&mut found), Dtype::U8, flags)
                .unwrap();
            session.find().unwrap();
            assert_eq!(session.restart().unwrap(), 3);
            assert!(found == expected, "flags {flags}");
            session.close(LONG).unwrap();
        });
    }
}

/// Step 3 refers to 2 and 2 to 1, but 3 to nothing of 1: all three stay, and each is whole.
// Breaks if: `Referred::pinned` looks only at what the kept checkpoints refer to themselves.
fn what_a_pinned_checkpoint_refers_to_stays_too() {
    let scratch = Scratch::new("pins");
    let job = Job::new(scratch.path(), 1, 1, false).with("incremental = 'auto'\nkeep = 1");
    job.run(|session, _| {
        let mut session = session.unwrap();
        let (mut a, mut b) = (vec![1u8; 4 << 16], vec![2u8; 4 << 16]);
        for step in 1..=3 {
            match step {
                2 => a.fill(3),
                3 => b.fill(4),
                _ => {}
            }
            for (name, bytes) in [("a", &mut a), ("b", &mut b)] {
                session
                    .protect(name, Span::from_mut(bytes), Dtype::U8, 0)
                    .unwrap();
            }
            session.checkpoint(step).unwrap();
            session.wait(step, Level::Global, LONG).unwrap();
        }
        session.close(LONG).unwrap();
    });
    let dir = scratch.path().join("ost0");
    let name = JobName::new("job").unwrap();
    let places = Places::open(&name, "n0", None, &[dir], &Failpoints::none(), false).unwrap();
    let catalog = Catalog::scan(&name, &places.all()).unwrap();
    let all = catalog.commits().iter().map(|commit| &commit.record);
    let found: Vec<_> = all.clone().map(|r| (r.step, r.refers_to())).collect();
    let chain = [(3, vec![Step(2)]), (2, vec![Step(1)]), (1, vec![])];
    assert_eq!(
        found,
        chain.map(|(step, refers_to)| (Step(step), refers_to))
    );
    for record in all {
        let verdict = verify_commit(&places.all(), record, &mut |_, _| ()).unwrap();
        assert!(verdict.is_good(), "step {}: {verdict:?}", record.step);
    }
}
