//! Tests what is not copied, and why.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use orcheck_engine::directory::Catalog;
use orcheck_engine::directory::epoch::{ClaimLock, Claimant, claim as take_claim};
use orcheck_engine::encoding::Trust;
use orcheck_engine::upkeep::copying::{Destination, Order};
use orcheck_format::disk::FileName;
use orcheck_format::{ErrorKind, JobName, Level, NodeId, Result, RunId, Step};
use orcheck_io::clock::{Clock, SystemClock};
use orcheck_io::disk::{Create, Dir, DiskUsage, Entry, File};
use orcheck_io::failpoints::Failpoints;
use orcheck_staging::open_dir;

use crate::{STEP, Site, copy, with_order};
use orcheck_fixtures::reading::{Spec, claim, epoch, flip, job, open_places, write};

/// Asks for a copy to `a`, which must be refused and leave everything as it is.
fn refused(site: &Site, kind: ErrorKind, words: &[&str]) {
    let dir = site.root("a").join("cavity");
    let names = |dir: &Path| {
        let entries =
            std::fs::read_dir(dir).map(|all| all.map(|one| one.unwrap().file_name()).collect());
        let mut names: Vec<_> = entries.unwrap_or_default();
        names.sort();
        names
    };
    let before = names(&dir);
    let error = site
        .copy_to(Level::Global, site.global(&["a"], &Failpoints::none()))
        .unwrap_err();
    assert_eq!(error.kind(), kind, "{error}");
    for word in words {
        assert!(error.message().contains(word), "{word}: {error}");
    }
    assert_eq!(error.message().matches("Next: ").count(), 1, "{error}");
    assert_eq!(names(&dir), before);
}

fn there(site: &Site) -> std::path::PathBuf {
    let dir = site.root("a").join("cavity");
    std::fs::create_dir_all(&dir).unwrap();
    dir
}

// Breaks if: a superseded step is copied: where the note of the newer run is not known it would be
// the newest.
#[test]
fn what_a_newer_run_superseded_is_not_copied() {
    // The note is in the directory that is copied to, which the nodes' directories know nothing of.
    let site = Site::new();
    claim(&there(&site), epoch(2), Some(Some(5)));
    refused(
        &site,
        ErrorKind::Fenced,
        &["step 10 does not count: epoch 2-12121212 resumed from step 5"],
    );
    let site = Site::new();
    claim(&there(&site), epoch(2), Some(None));
    refused(&site, ErrorKind::Fenced, &["started from nothing after it"]);
    // Another run at the same counter.
    let site = Site::new();
    let mut other = epoch(1);
    other.run = RunId([9; 16]);
    claim(&there(&site), other, Some(None));
    refused(
        &site,
        ErrorKind::Fenced,
        &["two runs of job cavity began without seeing each other"],
    );
    // What the newer run resumed from may be copied.
    let site = Site::new();
    claim(&there(&site), epoch(2), Some(Some(STEP)));
    site.copy_to(Level::Global, site.global(&["a"], &Failpoints::none()))
        .unwrap();
}

// Breaks if: only the look before the copy counts; what was written for hours would be the newest
// step of a job that went back meanwhile.
#[test]
fn what_is_superseded_meanwhile_is_not_committed() {
    let is_refused = |site: &Site, done: orcheck_format::Result<()>| {
        let error = done.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Fenced, "{error}");
        let is_left = |name: &str| {
            let name = FileName::parse(name);
            matches!(
                name,
                Some(FileName::Commit { .. } | FileName::Container { .. })
            )
        };
        let left = std::fs::read_dir(there(site)).unwrap().flatten();
        let mut left = left.map(|entry| entry.file_name());
        assert!(!left.any(|name| is_left(name.to_str().unwrap())));
    };
    let back = Some(Some(STEP - 5));
    let site = Site::new();
    let to = || (Level::Global, site.global(&["a"], &Failpoints::none()));
    let done = with_order(&site.sources(), to(), None, Duration::ZERO, |order| {
        let (clock, mut heard) = (SystemClock::new(), 0);
        let plan = order.plan(&clock)?;
        order.carry_out(&plan, &clock, &mut |_| {
            if heard == 0 {
                claim(&site.sources()[0], epoch(2), back);
            }
            heard += 1;
            Ok(())
        })?;
        Ok(())
    });
    is_refused(&site, done);
    // Where lists of what is there were taken before, they are taken again.
    let site = Site::new();
    let to = || (Level::Global, site.global(&["a"], &Failpoints::none()));
    let now = site.root("now");
    claim(&now, epoch(2), back);
    let again = || Ok(open_places(&[site.sources(), vec![now.clone()]].concat()));
    let done = with_order(&site.sources(), to(), None, Duration::ZERO, |order| {
        let clock = SystemClock::new();
        let order = Order {
            job: order.job,
            catalog: order.catalog,
            commit: order.commit,
            places: order.places.clone(),
            trust: order.trust,
            level: order.level,
            destinations: order.destinations.clone(),
            compress: None,
            patience: order.patience,
            again: Some(&again),
        };
        let plan = order.plan(&clock)?;
        order.carry_out(&plan, &clock, &mut |_| Ok(()))?;
        Ok(())
    });
    is_refused(&site, done);
}

// Breaks if: files of the same names are replaced although a newer checkpoint needs them.
#[test]
fn nothing_is_replaced_that_another_checkpoint_refers_to() {
    let site = Site::new();
    let dir = there(&site);
    let mut newer = write(std::slice::from_ref(&dir), &Spec::new(20, 1)).record;
    for container in &mut newer.containers {
        container.refers_to = vec![Step(STEP)];
    }
    let name = Spec::new(20, 1).commit_name();
    std::fs::write(dir.join(&name), newer.encode()).unwrap();
    let words = [
        "step 10 holds data that step 20 refers to",
        "Next: copy to another directory",
    ];
    refused(&site, ErrorKind::Invalid, &words);
    // It may refer to it when nobody can read what it says.
    flip(&dir.join(&name), 60, 1);
    refused(&site, ErrorKind::Corrupt, &["may refer to step 10"]);
}

#[test]
fn directories_of_others_and_of_other_levels_are_refused() {
    let site = Site::new();
    let mut other = Spec::new(3, 1);
    other.job = JobName::new("lulesh").unwrap();
    write(&[there(&site)], &other);
    refused(
        &site,
        ErrorKind::Invalid,
        &["holds files of job lulesh, expected none but of job cavity"],
    );
    // The same step at another level: the files would have the same names.
    let site = Site::new();
    let mut spec = Site::spec();
    spec.level = Level::Process;
    write(&[there(&site)], &spec);
    refused(
        &site,
        ErrorKind::Invalid,
        &["holds step 10 at level process already"],
    );
    // A record of it that cannot be read is not replaced.
    let site = Site::new();
    let dir = there(&site);
    let mut spec = Site::spec();
    spec.level = Level::Global;
    write(std::slice::from_ref(&dir), &spec);
    flip(&dir.join(spec.commit_name()), 60, 1);
    refused(&site, ErrorKind::Corrupt, &["is damaged or not believed"]);
    let site = Site::new();
    for level in [Level::Process, Level::Peers(1)] {
        let error = site
            .copy_to(level, site.global(&["a"], &Failpoints::none()))
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        assert!(
            error.message().contains("only to node or global"),
            "{error}"
        );
    }
    let twice = site.copy_to(Level::Global, site.global(&["a", "a"], &Failpoints::none()));
    assert!(twice.unwrap_err().message().contains("a is given twice"));
}

// Breaks if: the copy begins, and fails in the middle, or nobody knows whose directory to look for.
#[test]
fn missing_directories_of_nodes_are_named() {
    let site = Site::new();
    std::fs::remove_file(&site.written.paths[1]).unwrap();
    let words = [
        "1 of its 2 containers is incomplete or missing: node 1 'node1'",
        "Next: also give the directory of node node1",
    ];
    refused(&site, ErrorKind::NotFound, &words);
    // Of a checkpoint with replicas any of those nodes will do.
    let site = Site::new();
    let mut spec = Site::spec();
    spec.level = Level::Peers(1);
    let mut record = write(&site.sources(), &spec).record;
    for container in &mut record.containers {
        container.holders = vec![NodeId(1 - container.node.0)];
    }
    for dir in site.sources() {
        std::fs::write(dir.join(spec.commit_name()), record.encode()).unwrap();
    }
    std::fs::remove_file(&site.written.paths[1]).unwrap();
    refused(
        &site,
        ErrorKind::NotFound,
        &["Next: also give the directory of node node1 or node0"],
    );
}

/// A run on another host.
fn claimant() -> Claimant {
    Claimant {
        trust: Trust::nobody(),
        job: job(),
        run: epoch(2).run,
        host: "host-b".into(),
        pid: 99,
        uid: 7,
        world_size: 4,
        nodes: vec!["n0".into()],
    }
}

// Breaks if: nobody asks whether a run is alive there; its next commit would be superseded, or its
// prune meet our files.
#[test]
fn a_living_run_keeps_its_directories() {
    let site = Site::new();
    let dir = open_dir(&there(&site), Failpoints::none()).unwrap();
    let held = take_claim(&[dir], &claimant(), 2, &SystemClock::new()).unwrap();
    let words = [
        "job 'cavity' is held by another run",
        "host-b",
        "Next: wait for it or end it, or copy to another directory",
    ];
    refused(&site, ErrorKind::Unavailable, &words);
    drop(held);
    site.copy_to(Level::Global, site.global(&["a"], &Failpoints::none()))
        .unwrap();
}

/// A directory on a disk with this many bytes free.
struct Full(Arc<dyn Dir>, u64);

impl Dir for Full {
    fn path(&self) -> &Path {
        self.0.path()
    }
    fn create(&self, name: &str, how: Create) -> Result<Box<dyn File>> {
        self.0.create(name, how)
    }
    fn open(&self, name: &str) -> Result<Box<dyn File>> {
        self.0.open(name)
    }
    fn rename(&self, from: &str, to: &str) -> Result<()> {
        self.0.rename(from, to)
    }
    fn rename_new(&self, from: &str, to: &str) -> Result<()> {
        self.0.rename_new(from, to)
    }
    fn remove(&self, name: &str) -> Result<()> {
        self.0.remove(name)
    }
    fn list(&self) -> Result<Vec<Entry>> {
        self.0.list()
    }
    fn sync(&self) -> Result<()> {
        self.0.sync()
    }
    fn child(&self, name: &str, create: bool) -> Result<Arc<dyn Dir>> {
        self.0
            .child(name, create)
            .map(|child| Arc::new(Full(child, self.1)) as Arc<dyn Dir>)
    }
    fn remove_child(&self, name: &str) -> Result<()> {
        self.0.remove_child(name)
    }
    fn free_bytes(&self) -> Result<u64> {
        Ok(self.1)
    }
    fn read_only(&self) -> Result<bool> {
        self.0.read_only()
    }
    fn taken_itself(&self) -> Result<DiskUsage> {
        self.0.taken_itself()
    }
}

// Breaks if: that there is no room is found out when the disk is full.
#[test]
fn room_is_looked_for_before_anything_is_written() {
    let site = Site::new();
    let root = open_dir(&site.root("a"), Failpoints::none()).unwrap();
    let root: Arc<dyn Dir> = Arc::new(Full(root, 1 << 20));
    let destination = Destination::new(root, vec!["cavity".into()], "a".into());
    let error = copy(&site.sources(), Level::Global, vec![destination], None).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
    assert!(error.message().contains("1048576 are free"), "{error}");
    assert!(!site.root("a").join("cavity").exists());
}

// Breaks if: each directory is compared with the room of the disk alone: two that share it would
// take it twice.
#[test]
fn room_is_counted_once_for_all_directories_on_one_disk() {
    let site = Site::new();
    // Enough for either container, and not for both.
    let each = site.written.record.containers[0].len_bytes;
    let full = |root: &str, share: u64| -> Arc<dyn Dir> {
        let root = open_dir(&site.root(root), Failpoints::none()).unwrap();
        Arc::new(Full(root, share * each / 2))
    };
    let destinations = |roots: [&str; 2], below: [&[&str]; 2], share: u64| -> Vec<Destination> {
        let two = roots.iter().zip(below);
        two.map(|(root, below)| {
            let name = format!("{root}/{}", below.join("/"));
            let below = below.iter().map(|&name| name.to_owned()).collect();
            Destination::new(full(root, share), below, name)
        })
        .collect()
    };
    let cavity: [&[&str]; 2] = [&["cavity"], &["cavity"]];
    let nodes: [&[&str]; 2] = [&["cavity", "node0"], &["cavity", "node1"]];
    for (level, roots, below) in [
        (Level::Global, ["a", "b"], cavity),
        (Level::Node, ["c", "c"], nodes),
    ] {
        let few = destinations(roots, below, 3);
        let error = copy(&site.sources(), level, few, None).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
        assert!(!site.root(roots[0]).join("cavity").exists());
        copy(&site.sources(), level, destinations(roots, below, 5), None).unwrap();
    }
}

// Breaks if: a checkpoint that counts where the copy goes does not count any more once the copy is
// there.
#[test]
fn a_copy_that_would_supersede_what_is_there_is_refused() {
    // Another run took a later step there, which these nodes know nothing of: they began with
    // epochs of their own.
    let other = |counter: u64, run: u8| {
        let mut spec = Spec::new(12, counter);
        spec.epoch.run = RunId([run; 16]);
        spec
    };
    for (number, spec) in [other(0, 9), other(1, 9)].into_iter().enumerate() {
        let site = Site::new();
        write(&[there(&site)], &spec);
        let words = [
            "step 12 of epoch ",
            "would no longer count",
            "Next: copy to another directory",
        ];
        refused(&site, ErrorKind::Invalid, &words);
        let places = open_places(&[there(&site)]);
        let catalog = Catalog::scan(&job(), &places).unwrap();
        assert_eq!(catalog.commits().len(), 1, "{number}");
    }
    // Earlier steps of earlier runs stay beside it, and so does what is superseded there already.
    let site = Site::new();
    let mut earlier = other(0, 9);
    earlier.step = STEP - 1;
    write(&[there(&site)], &earlier);
    write(&[there(&site)], &other(0, 9));
    claim(&there(&site), epoch(1), Some(Some(STEP - 1)));
    site.copy_to(Level::Global, site.global(&["a"], &Failpoints::none()))
        .unwrap();
    let catalog = Catalog::scan(&job(), &open_places(&[there(&site)])).unwrap();
    let failpoints: Vec<u64> = catalog
        .commits()
        .iter()
        .map(|commit| commit.record.step.0)
        .collect();
    assert_eq!(failpoints, [STEP, STEP - 1]);
}

/// A clock on which a run lets go of its directories while somebody sleeps.
struct Letting {
    clock: SystemClock,
    held: Mutex<Option<ClaimLock>>,
    slept: AtomicU64,
}

impl Clock for Letting {
    fn now(&self) -> Duration {
        self.clock.now()
    }
    fn unix_ms(&self) -> u64 {
        self.clock.unix_ms()
    }
    fn sleep(&self, _: Duration) {
        if self.slept.fetch_add(1, Ordering::SeqCst) == 2 {
            drop(self.held.lock().unwrap().take());
        }
    }
}

// Breaks if: nobody waits for a run that has just ended; a copy at the end of a batch script would
// fail by chance.
#[test]
fn a_run_that_is_just_ending_is_waited_for() {
    let site = Site::new();
    let dir = open_dir(&there(&site), Failpoints::none()).unwrap();
    let held = take_claim(&[dir], &claimant(), 2, &SystemClock::new()).unwrap();
    let clock = Letting {
        clock: SystemClock::new(),
        held: Mutex::new(Some(held)),
        slept: AtomicU64::new(0),
    };
    let order = |dry: bool| {
        let to = (Level::Global, site.global(&["a"], &Failpoints::none()));
        let patience = Duration::from_secs(60);
        with_order(&site.sources(), to, None, patience, |order| {
            let plan = order.plan(&clock)?;
            match dry {
                true => Ok(()),
                false => Ok(order
                    .carry_out(&plan, &clock, &mut |_| Ok(()))
                    .map(|_| ())?),
            }
        })
    };
    order(true).unwrap();
    assert_eq!(clock.slept.load(Ordering::SeqCst), 3);
    order(false).unwrap();
}

// Breaks if: it is reported that the directories of nodes are missing, which are all there.
#[test]
fn a_step_that_its_run_lets_go_of_meanwhile_is_called_that() {
    let site = Site::new();
    let to = (Level::Global, site.global(&["a"], &Failpoints::none()));
    let done = with_order(&site.sources(), to, None, Duration::ZERO, |order| {
        let plan = order.plan(&SystemClock::new())?;
        let mut heard = 0;
        let copied = order.carry_out(&plan, &SystemClock::new(), &mut |_| {
            heard += 1;
            if heard == 1 {
                // As prune does it: the records first.
                for dir in site.sources() {
                    std::fs::remove_file(dir.join(site.spec.commit_name())).unwrap();
                }
                for path in &site.written.paths {
                    std::fs::remove_file(path).unwrap();
                }
            }
            Ok(())
        })?;
        Ok(copied)
    });
    let error = done.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(
        error.message().contains("was removed while it was copied"),
        "{error}"
    );
    assert_eq!(error.message().matches("Next: ").count(), 1, "{error}");
    assert_eq!(std::fs::read_dir(there(&site)).unwrap().count(), 0);
}
