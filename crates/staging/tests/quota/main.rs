//! Tests quotas: the charge equals what is stored, however it was stored and whatever happens at
//! the same time.
#![allow(clippy::disallowed_methods, clippy::unwrap_used)] // tests look behind the door

use orcheck_fixtures::servers::{ENTRY, MIB, QUOTA, Running, pattern, tenant, wait_until};
use orcheck_format::ErrorKind;
use orcheck_io::clock::{Clock, SystemClock};
use orcheck_io::disk::{Create, Dir, write_small};
use orcheck_io::failpoints::{Effect, Failpoint, FailpointHook, Failpoints, Verdict};
use orcheck_net::Key;
use orcheck_staging::open_dir;
use orcheck_staging::server::Tenant;
use orcheck_testing::{FaultPlan, Scratch};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

/// What is still free of the quota.
fn left(dir: &Arc<dyn Dir>) -> u64 {
    dir.free_bytes().unwrap()
}

fn write_new(dir: &Arc<dyn Dir>, name: &str, len: u64) {
    let file = dir.create(name, Create::Buffered).unwrap();
    file.write_at(&pattern(len as usize), 0).unwrap();
    file.sync().unwrap();
    file.close().unwrap();
}

fn is_refused(result: orcheck_format::Result<()>) -> bool {
    let error = result.err();
    error.is_some_and(|error| {
        assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
        assert!(error.message().contains("beyond the quota"), "{error}");
        true
    })
}

// Breaks if: a rename gives back what had the new name, whatever it was: 105 MiB fitted under a
// quota of 10 MiB.
#[test]
fn renaming_a_file_onto_itself_gives_nothing_back() {
    let scratch = Scratch::in_memory("quota-self");
    let server = Running::start(&scratch, Failpoints::none());
    let dir = server.open(&scratch);
    write_new(&dir, "file", 6 * MIB);
    let before = left(&dir);
    for _ in 0..20 {
        dir.rename("file", "file").unwrap();
    }
    assert_eq!(left(&dir), before);
    let second = dir.create("second", Create::Buffered).unwrap();
    assert!(is_refused(second.allocate(6 * MIB)));
}

// Breaks if: a length that was only set costs nothing, and gives back when it is removed.
#[test]
fn a_file_that_was_truncated_to_a_larger_length_is_charged_for_it() {
    let scratch = Scratch::in_memory("quota-up");
    let server = Running::start(&scratch, Failpoints::none());
    let dir = server.open(&scratch);
    write_new(&dir, "first", 6 * MIB);
    let before = left(&dir);
    let file = dir.create("second", Create::Buffered).unwrap();
    assert!(is_refused(file.truncate(6 * MIB)));
    file.truncate(2 * MIB).unwrap();
    assert_eq!(left(&dir), before - ENTRY - 2 * MIB);
    file.close().unwrap();
    assert_eq!(left(&dir), before - ENTRY - 2 * MIB);
    dir.remove("second").unwrap();
    assert_eq!(left(&dir), before);
}

// Breaks if: what one connection knows of a file is not what another one gives back.
#[test]
fn what_is_removed_while_another_connection_writes_it_is_charged_until_it_closes() {
    let scratch = Scratch::in_memory("quota-written");
    let server = Running::start(&scratch, Failpoints::none());
    let dir = server.open(&scratch);
    let before = left(&dir);
    let file = dir.create("file", Create::Buffered).unwrap();
    file.write_at(&pattern(6 * MIB as usize), 0).unwrap();
    file.sync().unwrap();
    dir.remove("file").unwrap();
    assert_eq!(left(&dir), before - 6 * MIB, "it is still there");
    let second = dir.create("second", Create::Buffered).unwrap();
    assert!(is_refused(second.allocate(6 * MIB)));
    drop(second);
    // It may grow, within the quota.
    file.write_at(&pattern(MIB as usize), 6 * MIB).unwrap();
    file.sync().unwrap();
    assert_eq!(left(&dir), before - ENTRY - 7 * MIB);
    assert!(is_refused(file.allocate(12 * MIB)));
    file.close().unwrap();
    dir.remove("second").unwrap();
    wait_until(|| left(&dir) == before);
}

// Breaks if: who only reads does not count.
#[test]
fn what_is_removed_while_another_connection_reads_it_is_charged_until_it_closes() {
    let scratch = Scratch::in_memory("quota-read");
    let server = Running::start(&scratch, Failpoints::none());
    let dir = server.open(&scratch);
    let before = left(&dir);
    write_new(&dir, "file", 6 * MIB);
    let readers = [dir.open("file").unwrap(), dir.open("file").unwrap()];
    dir.remove("file").unwrap();
    write_new(&dir, "file", MIB);
    for reader in readers {
        assert_eq!(left(&dir), before - ENTRY - 7 * MIB);
        reader.close().unwrap();
    }
    wait_until(|| left(&dir) == before - ENTRY - MIB);
}

// Breaks if: two who rename at once are both given back what only one of them replaced.
#[test]
fn racing_renames_of_two_connections_are_charged_for_what_is_left() {
    let scratch = Scratch::in_memory("quota-race");
    let server = Running::start(&scratch, Failpoints::none());
    let dirs = [server.open(&scratch), server.open(&scratch)];
    let before = left(&dirs[0]);
    let both = Barrier::new(2);
    for round in 0..40 {
        std::thread::scope(|scope| {
            for (own, dir) in dirs.iter().enumerate() {
                let both = &both;
                scope.spawn(move || {
                    let name = format!("own{own}");
                    write_new(dir, &name, 100_000 * (1 + own as u64));
                    both.wait();
                    // Onto the same name; then both remove it, and one of them does.
                    dir.rename(&name, "same").unwrap();
                    let _ = dir.rename("same", &format!("{round}"));
                    both.wait();
                    let _ = dir.remove("same");
                    let _ = dir.remove(&format!("{round}"));
                });
            }
        });
        assert!(
            dirs[0]
                .list()
                .unwrap()
                .iter()
                .all(|entry| entry.is_dir || entry.name.ends_with(".id"))
        );
        assert_eq!(left(&dirs[1]), before, "round {round}");
    }
}

/// Removals wait a moment for a rename, which comes before them if it can.
#[derive(Default)]
struct RemoveLater {
    renamed: AtomicBool,
}

impl FailpointHook for RemoveLater {
    fn at(&self, step: &Failpoint) -> Verdict {
        let until = Instant::now() + Duration::from_millis(500);
        while step.site == "dir.remove"
            && !self.renamed.load(Ordering::Acquire)
            && Instant::now() < until
        {
            std::thread::yield_now();
        }
        Verdict::Go
    }

    fn done(&self, effect: &Effect) {
        if matches!(effect, Effect::Renamed { .. }) {
            self.renamed.store(true, Ordering::Release);
        }
    }
}

// Breaks if: names change between the look at what is removed and the removal.
#[test]
fn what_is_removed_while_another_one_replaces_it_is_what_is_given_back() {
    let scratch = Scratch::in_memory("quota-turn");
    let hook = Arc::new(RemoveLater::default());
    let server = Running::start(&scratch, Failpoints::with(hook));
    let (one, two) = (server.open(&scratch), server.open(&scratch));
    let before = left(&one);
    write_new(&one, "same", MIB);
    write_new(&one, "other", 3 * MIB);
    std::thread::scope(|scope| {
        scope.spawn(|| one.remove("same").unwrap());
        scope.spawn(|| two.rename("other", "same").unwrap());
    });
    // Whichever came first.
    let there = two.holds("same").unwrap();
    let expected = if there { ENTRY + 3 * MIB } else { 0 };
    assert_eq!(left(&two), before - expected);
}

// Breaks if: what was replaced stays charged, or is given back by the length of what replaced it.
#[test]
fn what_a_rename_replaced_is_given_back_once() {
    let scratch = Scratch::in_memory("quota-over");
    let server = Running::start(&scratch, Failpoints::none());
    let dir = server.open(&scratch);
    let before = left(&dir);
    write_new(&dir, "large", 5 * MIB);
    write_new(&dir, "small", MIB);
    dir.rename("small", "large").unwrap();
    assert_eq!(left(&dir), before - ENTRY - MIB);
    assert!(dir.rename("nothing", "large").is_err());
    write_new(&dir, "other", MIB);
    assert!(dir.rename_new("other", "large").is_err());
    assert_eq!(left(&dir), before - 2 * (ENTRY + MIB));
}

// Breaks if: only bytes of files count; names take the disk's blocks and inodes, and cost nothing.
#[test]
fn empty_files_and_directories_are_charged() {
    let scratch = Scratch::in_memory("quota-entries");
    let server = Running::start(&scratch, Failpoints::none());
    let dir = server.open(&scratch);
    let most = QUOTA / ENTRY;
    let mut made = 0;
    while made <= most {
        let name = format!("{made}");
        let refused = match made % 2 {
            0 => dir
                .create(&name, Create::Buffered)
                .and_then(|file| file.close()),
            _ => dir.child(&name, true).map(drop),
        };
        if is_refused(refused) {
            break;
        }
        made += 1;
    }
    assert!(made < most, "{made} names were made");
    assert_eq!(left(&dir), 0);
    // What is removed makes room for as much.
    dir.remove("0").unwrap();
    assert_eq!(left(&dir), ENTRY);
    dir.remove_child("1").unwrap();
    // One that is there already costs nothing.
    dir.child("3", true).unwrap();
    assert_eq!(left(&dir), 2 * ENTRY);
}

// Breaks if: what a directory has in it is not looked for below a certain depth.
#[test]
fn what_lies_deep_below_is_charged_when_the_server_begins() {
    let scratch = Scratch::in_memory("quota-deep");
    let deep = scratch.path().join("one/1/2/3/4/5/6");
    std::fs::create_dir_all(&deep).unwrap();
    std::fs::write(deep.join("file"), pattern(6 * MIB as usize)).unwrap();
    let server = Running::start(&scratch, Failpoints::none());
    let dir = server.open(&scratch);
    assert!(left(&dir) < QUOTA - 6 * MIB);
    let file = dir.create("file", Create::Buffered).unwrap();
    assert!(is_refused(file.allocate(4 * MIB)));
}

// Breaks if: what was reserved is charged once it is written only, or stays charged when it is
// given up.
#[test]
fn reserved_space_is_charged_until_it_is_given_up() {
    let scratch = Scratch::in_memory("quota-reserved");
    let server = Running::start(&scratch, Failpoints::none());
    let dir = server.open(&scratch);
    let before = left(&dir);
    let file = dir.create("file", Create::Buffered).unwrap();
    file.allocate(8 * MIB).unwrap();
    assert_eq!(left(&dir), before - ENTRY - 8 * MIB);
    file.write_at(&[1; 5000], 0).unwrap();
    file.truncate(5000).unwrap();
    assert_eq!(left(&dir), before - ENTRY - 8192);
    file.close().unwrap();
    assert_eq!(left(&dir), before - ENTRY - 8192);
    // And given up by a connection that ends.
    let file = dir.create("other", Create::Buffered).unwrap();
    file.allocate(5 * MIB).unwrap();
    drop(file);
    dir.remove("other").unwrap();
    wait_until(|| left(&dir) == before - ENTRY - 8192);
    write_small(&*dir, "small", b"text").unwrap();
}

// Breaks if: the directory is not looked at again, or what happens meanwhile counts twice.
#[test]
fn what_was_done_beside_the_server_is_found_when_all_is_counted_again() {
    let scratch = Scratch::in_memory("quota-beside");
    let server = Running::start(&scratch, Failpoints::none());
    let dir = server.open(&scratch);
    let before = left(&dir);
    write_new(&dir, "file", 6 * MIB);
    write_new(&dir, "stays", MIB);
    let open = dir.create("open", Create::Buffered).unwrap();
    open.allocate(MIB).unwrap();
    let own = scratch.path().join("one");
    std::fs::remove_file(own.join("file")).unwrap();
    std::fs::create_dir(own.join("made")).unwrap();
    std::fs::write(own.join("made/file"), pattern(10_000)).unwrap();
    assert_eq!(left(&dir), before - 3 * ENTRY - 8 * MIB);
    server.stopper.reconcile().unwrap();
    let expected = before - 4 * ENTRY - 2 * MIB - 3 * 4096;
    assert_eq!(left(&dir), expected);
    let lines = server.lines();
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(
        lines[0].contains("the quota of 'one' is corrected"),
        "{lines:?}"
    );
    // Nothing is wrong any more, and nothing is reported.
    server.stopper.reconcile().unwrap();
    assert_eq!((left(&dir), server.lines().len()), (expected, 1));
    assert_eq!(
        server.stopper.counts().quotas[0].used_bytes,
        QUOTA - expected
    );
}

// Breaks if: what could not be looked at stays as it was until the next hour.
#[test]
fn what_cannot_be_looked_at_stays_charged_and_is_counted_again() {
    let scratch = Scratch::in_memory("quota-look");
    let (plan, failpoints) = FaultPlan::new().failpoints();
    let server = Running::start(&scratch, failpoints);
    let dir = server.open(&scratch);
    let before = left(&dir);
    write_new(&dir, "file", MIB);
    let file = dir.create("other", Create::Buffered).unwrap();
    plan.fail_from_now("file.look", "other", Verdict::Fail(5));
    file.write_at(&pattern(10_000), 0).unwrap();
    file.sync().unwrap();
    // As much as was reserved for it.
    assert_eq!(left(&dir), before - 2 * ENTRY - MIB - 3 * 4096);
    plan.heal();
    file.close().unwrap();
    plan.fail_from_now("dir.look", "file", Verdict::Fail(5));
    assert!(
        dir.remove("file").is_err(),
        "nobody knows what it gives back"
    );
    assert!(server.stopper.reconcile().is_err());
    plan.heal();
    dir.remove("file").unwrap();
    server.stopper.reconcile().unwrap();
    assert_eq!(left(&dir), before - ENTRY - 3 * 4096);
    assert!(server.lines()[0].contains("could not be counted again"));
}

/// A clock that can be put forward.
#[derive(Default)]
struct Ahead(AtomicU64);

impl Clock for Ahead {
    fn now(&self) -> Duration {
        SystemClock.now() + Duration::from_secs(self.0.load(Ordering::Acquire))
    }

    fn unix_ms(&self) -> u64 {
        SystemClock.unix_ms()
    }

    fn sleep(&self, time: Duration) {
        std::thread::park_timeout(time);
    }
}

// Breaks if: nobody counts again unless somebody asks.
#[test]
fn all_is_counted_again_every_hour_and_soon_where_something_could_not_be_looked_at() {
    let scratch = Scratch::in_memory("quota-hour");
    let (plan, failpoints) = FaultPlan::new().failpoints();
    let clock = Arc::new(Ahead::default());
    let server = Running::with_clock(
        &scratch,
        failpoints,
        Some(QUOTA),
        Arc::clone(&clock) as Arc<dyn Clock>,
    );
    let dir = server.open(&scratch);
    let before = left(&dir);
    let used = || server.stopper.counts().quotas[0].used_bytes;
    let pass_by = |seconds| clock.0.fetch_add(seconds, Ordering::AcqRel);
    write_new(&dir, "first", MIB);
    write_new(&dir, "second", MIB);
    std::fs::remove_file(scratch.path().join("one/first")).unwrap();
    pass_by(3600);
    wait_until(|| used() == QUOTA - before + ENTRY + MIB);
    // A rename that nobody could look at afterwards.
    plan.fail_from_now("dir.look", "third", Verdict::Fail(5));
    assert!(dir.create("third", Create::Buffered).is_err());
    plan.heal();
    std::fs::remove_file(scratch.path().join("one/second")).unwrap();
    let file = dir.create("fourth", Create::Buffered).unwrap();
    plan.fail_from_now("file.look", "fourth", Verdict::Fail(5));
    file.write_at(&pattern(4096), 0).unwrap();
    file.sync().unwrap();
    plan.heal();
    assert_eq!(used(), QUOTA - before + 2 * ENTRY + MIB + 4096);
    pass_by(10);
    wait_until(|| used() == QUOTA - before + ENTRY + 4096);
}

/// A clock by which the thread that counts now and then sleeps for the whole test.
struct QuotaSleeps(AtomicBool);

impl Clock for QuotaSleeps {
    fn now(&self) -> Duration {
        SystemClock.now()
    }

    fn unix_ms(&self) -> u64 {
        SystemClock.unix_ms()
    }

    fn sleep(&self, time: Duration) {
        std::thread::park_timeout(time);
        while self.0.load(Ordering::Acquire)
            && std::thread::current().name() == Some("orcheck-quota")
        {
            std::thread::park_timeout(Duration::from_millis(1));
        }
    }
}

/// Wakes it, so that the server can end, also when the test fails.
struct Awake<'a>(&'a QuotaSleeps);

impl Drop for Awake<'_> {
    fn drop(&mut self) {
        self.0.0.store(false, Ordering::Release);
    }
}

// Breaks if: what was stored, or was open, before there was a quota is free for ever; or the quota
// ends what is open.
#[test]
fn a_quota_that_comes_while_the_server_runs_counts_what_was_stored_before() {
    let scratch = Scratch::in_memory("quota-later");
    let clock = Arc::new(QuotaSleeps(AtomicBool::new(true)));
    let server = Running::with_clock(
        &scratch,
        Failpoints::none(),
        None,
        Arc::clone(&clock) as Arc<dyn Clock>,
    );
    let _awake = Awake(&clock);
    let dir = server.open(&scratch);
    write_new(&dir, "stays", MIB);
    write_new(&dir, "goes", MIB);
    let removed = dir.create("removed", Create::Buffered).unwrap();
    removed.write_at(&pattern(2 * MIB as usize), 0).unwrap();
    removed.sync().unwrap();
    dir.remove("removed").unwrap();
    let open = dir.create("open", Create::Buffered).unwrap();
    open.allocate(3 * MIB).unwrap();
    assert!(left(&dir) > QUOTA && server.stopper.counts().quotas.is_empty());
    let reread = server.stopper.serve(&[tenant(Some(QUOTA))], &[]).unwrap();
    assert_eq!(reread.quotas, [("one".to_owned(), Some(QUOTA))]);
    assert!(reread.new.is_empty() && reread.gone.is_empty() && reread.other_keys.is_empty());
    let own = 2 * ENTRY + 4096;
    // At once: nobody may write freely until a thread gets round to counting.
    assert_eq!(left(&dir), QUOTA - own - 3 * ENTRY - 7 * MIB);
    assert!(is_refused(open.allocate(9 * MIB)));
    // Both are as they were, and give back what they took.
    removed.close().unwrap();
    open.truncate(100).unwrap();
    open.close().unwrap();
    dir.remove("goes").unwrap();
    wait_until(|| left(&dir) == QUOTA - own - 2 * ENTRY - MIB - 4096);
    // Without it again, all that the disk has is free.
    server.stopper.serve(&[tenant(None)], &[]).unwrap();
    assert!(left(&dir) > QUOTA);
}

fn other() -> Tenant {
    Tenant {
        name: "two".to_owned(),
        key: Key::new([2; 32]),
        quota_bytes: None,
    }
}

// Breaks if: who is not served any more has no quota any more, while its connections still write.
#[test]
fn who_is_served_no_more_keeps_its_quota_until_its_connections_end() {
    let scratch = Scratch::in_memory("quota-gone");
    let server = Running::start(&scratch, Failpoints::none());
    let dir = server.open(&scratch);
    let file = dir.create("file", Create::Buffered).unwrap();
    let reread = server.stopper.serve(&[other()], &[]).unwrap();
    assert_eq!(
        (&*reread.new, &*reread.gone),
        (&["two".to_owned()][..], &["one".to_owned()][..])
    );
    assert_eq!(reread.quotas, []);
    file.allocate(6 * MIB).unwrap();
    assert!(is_refused(file.allocate(QUOTA)));
    file.write_at(&[1; 5000], 0).unwrap();
    file.truncate(5000).unwrap();
    file.close().unwrap();
    assert!(open_dir(server.url(&scratch).as_ref(), Failpoints::none()).is_err());
    // And has the one that it gets when it comes back.
    server
        .stopper
        .serve(&[other(), tenant(Some(QUOTA / 2))], &[])
        .unwrap();
    assert_eq!(
        left(&server.open(&scratch)),
        QUOTA / 2 - 3 * ENTRY - 4096 - 8192
    );
}

/// The directory of 'two' is not made until it may be.
#[derive(Default)]
struct Hangs {
    is_there: AtomicBool,
    may: AtomicBool,
}

impl FailpointHook for Hangs {
    fn at(&self, step: &Failpoint) -> Verdict {
        if step.site == "dir.child" && step.target.ends_with("two") {
            self.is_there.store(true, Ordering::Release);
            wait_until(|| self.may.load(Ordering::Acquire));
        }
        Verdict::Go
    }
}

// Breaks if: callers have to wait for whoever changes whom the server serves, while a disk hangs.
#[test]
fn callers_do_not_wait_for_a_disk_that_hangs_while_keys_are_reread() {
    let scratch = Scratch::in_memory("quota-hangs");
    let hook = Arc::new(Hangs::default());
    let server = Running::start(
        &scratch,
        Failpoints::with(Arc::clone(&hook) as Arc<dyn FailpointHook>),
    );
    let stopper = server.stopper.clone();
    let reread = std::thread::spawn(move || stopper.serve(&[tenant(Some(QUOTA)), other()], &[]));
    wait_until(|| hook.is_there.load(Ordering::Acquire));
    let dir = server.open(&scratch);
    write_new(&dir, "file", MIB);
    assert_eq!(server.stopper.counts().quotas.len(), 1);
    assert!(!reread.is_finished());
    hook.may.store(true, Ordering::Release);
    assert_eq!(reread.join().unwrap().unwrap().new, ["two"]);
}
