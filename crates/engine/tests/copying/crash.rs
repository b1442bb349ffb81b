//! Tests a copy that fails, is killed, or loses power before each of its steps.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use orcheck_engine::directory::Catalog;
use orcheck_format::disk::{FileName, TRAILER_BYTES, Trailer};
use orcheck_format::{Error, ErrorKind, Level, Step};
use orcheck_io::clock::SystemClock;
use orcheck_io::disk::Dir;
use orcheck_io::failpoints::{Failpoint, FailpointHook, Failpoints, Verdict};
use orcheck_staging::open_dir;
use orcheck_testing::power::{Disk, Image, Journal, choice, choices};
use orcheck_testing::{FaultPlan, Scratch as Memory};

use crate::{Destination, STEP, Site, check, copy, others, with_order};
use orcheck_fixtures::reading::{Spec, claim, epoch, job, open_places, write};

/// From this step on nothing happens any more, as after a kill.
struct Killed {
    from: u64,
    seen: AtomicU64,
}

impl FailpointHook for Killed {
    fn at(&self, step: &Failpoint) -> Verdict {
        self.seen.fetch_max(step.number, Ordering::SeqCst);
        match step.number >= self.from {
            true => Verdict::Fail(5),
            false => Verdict::Go,
        }
    }
}

/// What is in both directories: nothing of the step that counts, or all of it.
fn whole_or_none(site: &Site) -> bool {
    let dirs: Vec<_> = ["a", "b"]
        .map(|root| site.root(root).join("cavity"))
        .into_iter()
        .filter(|dir| dir.exists())
        .collect();
    if dirs.is_empty() {
        return false;
    }
    let places = open_places(&dirs);
    let catalog = Catalog::scan(&job(), &places).unwrap();
    // What was there before is there.
    match catalog
        .commits()
        .iter()
        .find(|commit| commit.record.step == Step(STEP))
    {
        Some(commit) => {
            check(&places, &commit.record, &site.spec);
            true
        }
        None => false,
    }
}

/// What is called a container has all that a container has.
fn containers_are_whole(site: &Site, number: u64) {
    for dir in ["a", "b"].map(|root| site.root(root).join("cavity")) {
        for entry in std::fs::read_dir(dir).into_iter().flatten() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|end| end == "orc") {
                let bytes = std::fs::read(&path).unwrap();
                let end = bytes.len().saturating_sub(TRAILER_BYTES);
                let trailer = Trailer::decode(&bytes[end..]);
                let is_whole =
                    trailer.is_ok_and(|trailer| trailer.file_len_bytes == bytes.len() as u64);
                assert!(is_whole, "step {number}: {}", path.display());
            }
        }
    }
}

// Breaks if: a record appears before all containers are whole, an older file is replaced by a part
// of one, or what is left stands in the way of the next copy.
#[test]
fn a_copy_that_was_killed_anywhere_leaves_all_or_nothing() {
    let mut last = u64::MAX;
    // The first two open the roots.
    let (mut number, mut whole, mut none) = (3, 0, 0);
    while number <= last {
        let site = Site::of(77);
        let killed = Arc::new(Killed {
            from: number,
            seen: AtomicU64::new(0),
        });
        let failpoints = Failpoints::with(Arc::clone(&killed) as Arc<dyn FailpointHook>);
        let roots = site.global(&["a", "b"], &failpoints);
        let done = site.copy_to(Level::Global, roots).is_ok();
        if done {
            last = killed.seen.load(Ordering::SeqCst);
        }
        let is_there = whole_or_none(&site);
        assert!(is_there || !done, "step {number}");
        containers_are_whole(&site, number);
        whole += u64::from(is_there);
        none += u64::from(!is_there);
        // The next copy does it, and nothing is left of the one before but its claim.
        site.copy_to(Level::Global, site.global(&["a", "b"], &Failpoints::none()))
            .unwrap_or_else(|error| panic!("step {number}: {error}"));
        assert!(whole_or_none(&site), "step {number}");
        for root in ["a", "b"] {
            let left = others(&site.root(root).join("cavity"));
            let ours =
                |name: &String| !matches!(FileName::parse(name), Some(FileName::Claim { .. }));
            let strange: Vec<&String> = left
                .iter()
                .filter(|name| ours(name) && !name.contains(".claim"))
                .collect();
            assert!(strange.is_empty(), "step {number}: {left:?}");
        }
        number += 1;
        assert!(number < 1000);
    }
    println!(
        "killed before each of {} steps: {none} left nothing, {whole} the whole copy",
        number - 3
    );
    assert!(none > 30 && whole > 2, "{none} {whole}");
}

// Breaks if: who stops it has to clean up.
#[test]
fn a_copy_that_is_stopped_removes_what_it_wrote() {
    for after in [1, 3] {
        let site = Site::of(9_000_000);
        let to = (Level::Global, site.global(&["a", "b"], &Failpoints::none()));
        let (mut heard, mut last) = (0, 0);
        let stopped = with_order(&site.sources(), to, None, Duration::ZERO, |order| {
            let clock = SystemClock::new();
            let plan = order.plan(&clock)?;
            let copied = order.carry_out(&plan, &clock, &mut |done| {
                assert!(done > last);
                (heard, last) = (heard + 1, done);
                match heard {
                    n if n == 4 * after => Err(Error::unavailable("enough")),
                    _ => Ok(()),
                }
            })?;
            Ok(copied)
        });
        assert!(stopped.unwrap_err().message().contains("enough"));
        for root in ["a", "b"] {
            let dir = site.root(root).join("cavity");
            assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 0, "after {heard}");
        }
    }
}

// Breaks if: an error is passed over; a copy would count as made that is not.
#[test]
fn an_error_at_any_step_is_reported_or_does_no_harm() {
    let (recorded, failpoints) = FaultPlan::record().failpoints();
    let site = Site::of(77);
    site.copy_to(Level::Global, site.global(&["a", "b"], &failpoints))
        .unwrap();
    let all = recorded.seen();
    let (mut failed, mut reported) = (0, 0);
    // The first two open the roots.
    for step in &all[2..] {
        let site = Site::of(77);
        let (_, failpoints) = FaultPlan::new()
            .at_step(step.number, Verdict::Fail(5))
            .failpoints();
        let roots = site.global(&["a", "b"], &failpoints);
        failed += 1;
        match site.copy_to(Level::Global, roots) {
            Ok(_) => assert!(whole_or_none(&site), "{step:?}"),
            Err(error) => {
                reported += 1;
                assert_ne!(error.kind(), ErrorKind::Internal, "{step:?}: {error}");
                whole_or_none(&site);
            }
        }
        site.copy_to(Level::Global, site.global(&["a", "b"], &Failpoints::none()))
            .unwrap_or_else(|error| panic!("{step:?}: {error}"));
        assert!(whole_or_none(&site), "{step:?}");
    }
    println!("{failed} steps failed, {reported} were reported");
    assert!(reported > 40, "{reported} of {failed}");
}

// Breaks if: a file, or the directory that names it, is not synced before the record is written.
#[test]
fn power_lost_at_any_moment_leaves_all_or_nothing() {
    // Small, so that every moment can be looked at.
    let small = || {
        let mut spec = Spec::new(STEP, 1);
        spec.level = Level::Node;
        spec.regions[0].len = 800;
        spec
    };
    let sources = orcheck_fixtures::reading::Scratch::new();
    let nodes = ["n0", "n1"].map(|node| sources.dir(node));
    for node in &nodes {
        claim(node, epoch(1), None);
    }
    write(&nodes, &small());
    let memory = Memory::in_memory("engine-copying");
    let told = Arc::new(AtomicU64::new(0));
    let mark = Arc::clone(&told);
    let journal =
        Journal::begin(memory.path(), Box::new(move || mark.load(Ordering::SeqCst))).unwrap();
    let root = open_dir(memory.path(), journal.failpoints()).unwrap();
    let destination = Destination::new(Arc::clone(&root), vec!["cavity".into()], "a".into());
    copy(&nodes, Level::Global, vec![destination], None).unwrap();
    told.store(1, Ordering::SeqCst);
    root.child("after", true).unwrap();
    drop(root);
    let log = journal.end().unwrap();
    let mut disk = Disk::new(&log);
    let (mut images, mut whole) = (0u64, 0u64);
    loop {
        let parts = disk.parts(Some(4096));
        for number in 0..choices(parts.len()) {
            let kept = choice(&parts, number, 7);
            let image: Image = disk.image(&parts, &kept);
            images += 1;
            let is_there = image.dir("cavity").is_some_and(|dir: Arc<dyn Dir>| {
                let places = [dir];
                let catalog = Catalog::scan(&job(), &places).unwrap();
                let Some(commit) = catalog.commits().first() else {
                    return false;
                };
                check(&places, &commit.record, &small());
                true
            });
            whole += u64::from(is_there);
            assert!(
                is_there || log.mark(disk.at()) == 0,
                "it was made, and is gone"
            );
        }
        if !disk.advance() {
            break;
        }
    }
    println!("{images} images, {whole} with the copy");
    assert!(whole > 0 && whole < images);
}
