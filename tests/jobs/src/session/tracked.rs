//! Memory whose written pages alone are read, at its edges; and what follows a loss.

use crate::support::{Job, needs_own_disks, tracks_pages};
use crate::{Test, session_tests};
use orcheck_client::CPU_WRITES_ONLY;
use orcheck_engine::capture::{Captured, Full};
use orcheck_format::{Dtype, Level};
use orcheck_io::failpoints::Verdict;
use orcheck_io::memory::{Span, fill_span};
use orcheck_pool::page_bytes;
use orcheck_testing::{FaultPlan, Scratch};
use std::path::Path;
use std::time::Duration;

/// What is tested here.
pub const TESTS: &[Test] = session_tests![
    a_region_that_is_elsewhere_is_tracked_anew,
    the_parts_of_pages_at_both_ends_are_read_every_time,
    after_a_loss_everything_is_stored_again,
];

const LONG: Duration = Duration::from_secs(30);
const EIO: i32 = 5;

/// One checkpoint per entry: of the memory, after these bytes of it were set to 7.
fn save(root: &Path, states: &[(Span, &[usize])]) -> Vec<Captured> {
    let job = Job::new(root, 1, 1, false).with("incremental = 'auto'");
    let mut all = job.run(|session, _| {
        let mut session = session.unwrap();
        let mut all = Vec::new();
        for (step, (span, changed)) in (1..).zip(states) {
            for &at in *changed {
                fill_span(span.sub(at, 1), &[7]);
            }
            session
                .protect("u", *span, Dtype::U8, CPU_WRITES_ONLY)
                .unwrap();
            session.checkpoint(step).unwrap();
            session.wait(step, Level::Global, LONG).unwrap();
            all.push(session.stats().captured);
        }
        session.close(LONG).unwrap();
        all
    });
    all.remove(0)
}

fn restored(root: &Path, step: u64, len_bytes: usize) -> Vec<u8> {
    let mut found = vec![0xee; len_bytes];
    let span = Span::from_mut(&mut found);
    Job::new(root, 1, 1, false).run(|session, _| {
        let mut session = session.unwrap();
        session
            .protect("u", span, Dtype::U8, CPU_WRITES_ONLY)
            .unwrap();
        assert_eq!(session.find().unwrap(), step);
        assert_eq!(session.restart().unwrap(), step);
        session.close(LONG).unwrap();
    });
    found
}

// Breaks if: `Baseline::track` keeps its tracker when the region is elsewhere: the old memory would
// be stored again.
fn a_region_that_is_elsewhere_is_tracked_anew() {
    if !tracks_pages() {
        return;
    }
    let scratch = Scratch::in_memory("tracked");
    let (mut here, mut there) = (vec![1u8; 2 << 20], vec![2u8; 2 << 20]);
    let spans = [Span::from_mut(&mut here), Span::from_mut(&mut there)];
    let all = save(scratch.path(), &[(spans[0], &[]), (spans[1], &[])]);
    assert!(all.iter().all(|captured| captured.tracked_bytes > 0));
    assert!(restored(scratch.path(), 2, there.len()) == there);
}

// Breaks if: `Pages::want` adds only what the kernel names, which knows whole pages only.
fn the_parts_of_pages_at_both_ends_are_read_every_time() {
    if !tracks_pages() {
        return;
    }
    let scratch = Scratch::in_memory("tracked");
    let mut memory = vec![3u8; (2 << 20) + 3 * page_bytes()];
    let from = memory.as_ptr().align_offset(page_bytes()) + 100;
    let part = &mut memory[from..from + (2 << 20) + 500];
    let (span, last) = (Span::from_mut(part), part.len() - 1);
    let all = save(
        scratch.path(),
        &[(span, &[]), (span, &[0]), (span, &[last])],
    );
    assert!(all[2].tracked_bytes > 0 && all[2].full.is_none());
    assert!(all[2].stored_bytes < 3 * page_bytes() as u64, "{all:?}");
    assert!((part[0], part[last]) == (7, 7));
    assert!(restored(scratch.path(), 3, part.len()) == *part);
}

/// What was lost may be the directory with everything in it.
// Breaks if: `Baseline::begin` does not ask what became of the steps before.
fn after_a_loss_everything_is_stored_again() {
    if needs_own_disks() {
        return;
    }
    let scratch = Scratch::in_memory("loss");
    let (plan, failpoints) = FaultPlan::new().failpoints();
    let job = Job::new(scratch.path(), 1, 1, false).with("incremental = 'auto'");
    let mut bytes = vec![4u8; 1 << 20];
    let span = Span::from_mut(&mut bytes);
    let full = job.failpoints(failpoints).run(|session, _| {
        let mut session = session.unwrap();
        session.protect("u", span, Dtype::U8, 0).unwrap();
        plan.fail_from_now("file.sync", "s000000000003-", Verdict::Fail(EIO));
        let mut full = Vec::new();
        for step in 1..=5 {
            session.checkpoint(step).unwrap();
            let committed = session.wait(step, Level::Global, LONG).is_ok();
            assert_eq!(committed, step != 3);
            let captured = session.stats().captured;
            full.push(captured.full);
            assert_eq!(captured.referred_bytes == 0, captured.full.is_some());
        }
        session.close(LONG).unwrap_or_default();
        full
    });
    let expected = [Some(Full::First), None, None, Some(Full::Loss), None];
    assert_eq!(full[0], expected);
    assert!(restored(scratch.path(), 5, bytes.len()) == bytes);
}
