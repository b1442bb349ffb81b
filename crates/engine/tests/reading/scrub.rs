//! Tests scrubbing: damage is found and reported once, and never reported where there is none.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use orcheck_engine::upkeep::scrub::{Damage, Scrub};
use orcheck_format::disk::seal;
use orcheck_format::{ErrorKind, Level};
use orcheck_io::clock::Clock;
use orcheck_io::disk::Pace;
use orcheck_io::failpoints::{Failpoints, Verdict};
use orcheck_staging::open_dir;
use orcheck_testing::FaultPlan;

use orcheck_fixtures::reading::{Scratch, Spec, Written, write};

const DAY: Duration = Duration::from_secs(86_400);

/// A clock that only sleeping moves.
#[derive(Default)]
struct Hand(Mutex<Duration>);

impl Hand {
    fn forward(&self, time: Duration) {
        *self.0.lock().unwrap() += time;
    }
}

impl Clock for Hand {
    fn now(&self) -> Duration {
        *self.0.lock().unwrap()
    }

    fn unix_ms(&self) -> u64 {
        0
    }

    fn sleep(&self, time: Duration) {
        self.forward(time);
    }
}

struct Bench {
    scratch: Scratch,
    clock: Arc<Hand>,
    pace: Arc<Pace>,
    scrub: Scrub,
}

impl Bench {
    /// A scrub of tenant "default"; `at_piece` is called before each piece that is read, with its
    /// number.
    fn new(at_piece: impl Fn(u64) + Send + Sync + 'static) -> Bench {
        Bench::on(Failpoints::none(), at_piece)
    }

    fn on(failpoints: Failpoints, at_piece: impl Fn(u64) + Send + Sync + 'static) -> Bench {
        let scratch = Scratch::new();
        let clock = Arc::new(Hand::default());
        let pieces = AtomicU64::new(0);
        let others = move |_: u64| {
            at_piece(pieces.fetch_add(1, Ordering::Relaxed));
            false
        };
        let pace = Pace::new(1 << 20, clock.clone(), others);
        let root = open_dir(&scratch.dir("disk"), failpoints).unwrap();
        let tenants = vec![("default".to_owned(), root)];
        let scrub = Scrub::new(tenants, &pace, clock.clone(), DAY);
        Bench {
            scratch,
            clock,
            pace,
            scrub,
        }
    }

    fn pass(&mut self) -> Vec<Damage> {
        let mut found = Vec::new();
        self.scrub.pass(&mut |damage| found.push(damage.clone()));
        found
    }
}

fn flip(path: &PathBuf, at: usize) {
    let mut bytes = std::fs::read(path).unwrap();
    bytes[at] ^= 0x10;
    std::fs::write(path, bytes).unwrap();
}

fn write_into(bench: &Bench, spec: &Spec) -> Written {
    write(&[bench.scratch.dir("disk/cavity")], spec)
}

#[test]
fn damage_is_told_of_once_and_found_anew_when_it_is_due_again() {
    let mut bench = Bench::new(|_| {});
    let first = write_into(&bench, &Spec::new(3, 1));
    let second = write_into(&bench, &Spec::new(4, 1));
    assert_eq!(bench.pass(), []);
    assert_eq!(bench.scrub.progress().counts().containers, 4);
    let read = bench.scrub.progress().counts().read_bytes;
    let len = |written: &Written| -> u64 {
        let containers = written.record.containers.iter();
        containers.map(|one| one.len_bytes).sum()
    };
    assert!(read >= (len(&first) + len(&second)) * 9 / 10, "{read}");
    // The bit flips after it was read.
    let stream = first.structure(0, "stream 1");
    flip(&first.paths[0], stream.start + 5);
    assert_eq!(bench.pass(), []);
    // Breaks if: what was read is not remembered; a disk would be read all the time.
    let again = bench.scrub.progress().counts();
    assert_eq!(again.containers, 4);
    assert!(again.read_bytes - read < len(&first), "{again:?}");
    bench.clock.forward(DAY);
    let found = bench.pass();
    let [damage] = &found[..] else {
        panic!("{found:?}")
    };
    assert_eq!((damage.kind, damage.fatal), (ErrorKind::Corrupt, true));
    let text = damage.to_string();
    let path = first.paths[0].display().to_string();
    let says = [
        "tenant default, job cavity, step 3",
        "node 0 (node0)",
        path.as_str(),
        "rank 1, region \"u\", bytes 0..8192",
        "expected CRC-64",
        "found",
        "`orcheck verify --job cavity 3`",
    ];
    for says in says {
        assert!(text.contains(says), "{says}: {text}");
    }
    // Breaks if: it is forgotten what was told; a log would be full of one bad sector.
    for _ in 0..3 {
        bench.clock.forward(DAY);
        assert_eq!(bench.pass(), []);
    }
    let counts = bench.scrub.progress().counts();
    assert_eq!((counts.damaged, counts.containers), (1, 20));
    // One that was pruned and written again is another one.
    std::fs::remove_file(&first.paths[0]).unwrap();
    bench.clock.forward(DAY);
    assert_eq!(bench.pass(), []);
    write_into(&bench, &Spec::new(3, 1));
    bench.clock.forward(DAY);
    assert_eq!(bench.pass(), []);
}

#[test]
fn every_structure_and_every_record_is_looked_at() {
    let mut bench = Bench::new(|_| {});
    let written = write_into(&bench, &Spec::new(3, 1));
    assert_eq!(bench.pass(), []);
    for (name, range) in &written.structures[0] {
        flip(&written.paths[0], range.start + 1);
        bench.clock.forward(DAY);
        // Once damaged it is not told of again before it was whole.
        assert_eq!(bench.pass().len(), 1, "{name}");
        flip(&written.paths[0], range.start + 1);
        bench.clock.forward(DAY);
        assert_eq!(bench.pass(), [], "{name}");
    }
    let record = bench
        .scratch
        .dir("disk/cavity")
        .join(Spec::new(3, 1).commit_name());
    flip(&record, 40);
    let found = bench.pass();
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(
        (found[0].kind, found[0].container.as_ref()),
        (ErrorKind::Corrupt, None)
    );
    assert_eq!(bench.pass(), []);
}

#[test]
fn what_is_not_whole_on_this_server_by_design_is_no_damage() {
    let mut bench = Bench::new(|_| {});
    let here = bench.scratch.dir("disk/cavity");
    let elsewhere = bench.scratch.dir("other/cavity");
    // Node 1 lies on the other server.
    write(&[here.clone(), elsewhere.clone()], &Spec::new(3, 1));
    // Stripes lie on both.
    let striped = Spec {
        stripes: 2,
        ..Spec::new(4, 1)
    };
    write(&[here, elsewhere], &striped);
    // Levels have containers of the same names, in directories of their own.
    let node = Spec {
        level: Level::Process,
        ..Spec::new(3, 1)
    };
    write(&[bench.scratch.dir("disk/cavity/node0")], &node);
    // A container that nobody committed.
    let given_up = write_into(&bench, &Spec::new(5, 1));
    flip(&given_up.paths[0], 9000);
    let record = Spec::new(5, 1).commit_name();
    std::fs::remove_file(bench.scratch.dir("disk/cavity").join(record)).unwrap();
    assert_eq!(bench.pass(), []);
    // Node 0 here and both nodes of the other level.
    assert_eq!(bench.scrub.progress().counts().containers, 3);
}

#[test]
fn what_is_removed_while_it_is_read_is_no_damage() {
    for container_goes in [false, true] {
        let scratch_of: Arc<Mutex<Option<Written>>> = Arc::default();
        let record: Arc<Mutex<PathBuf>> = Arc::default();
        let (of_piece, of_record) = (scratch_of.clone(), record.clone());
        let mut bench = Bench::new(move |piece| {
            // Behind the records that the catalog reads, in the midst of the first container.
            if piece < 8 {
                return;
            }
            let Some(written) = of_piece.lock().unwrap().take() else {
                return;
            };
            std::fs::remove_file(&*of_record.lock().unwrap()).unwrap();
            for path in &written.paths {
                if container_goes {
                    std::fs::remove_file(path).unwrap();
                    continue;
                }
                // In place, so that whoever reads it meets it.
                let len = std::fs::metadata(path).unwrap().len() as usize;
                std::fs::write(path, vec![0x55; len]).unwrap();
            }
        });
        let spec = Spec::new(3, 1);
        let written = write_into(&bench, &spec);
        *record.lock().unwrap() = bench.scratch.dir("disk/cavity").join(spec.commit_name());
        *scratch_of.lock().unwrap() = Some(written);
        // Breaks if: it is not looked whether the checkpoint is still there; pruning would be
        // called damage.
        assert_eq!(bench.pass(), [], "container goes: {container_goes}");
        assert!(scratch_of.lock().unwrap().is_none(), "nothing was removed");
        assert_eq!(bench.scrub.progress().counts().containers, 0);
        assert_eq!(bench.pass(), []);
    }
}

#[test]
fn a_pass_that_is_stopped_ends_and_tells_nothing() {
    let stop: Arc<Mutex<Option<Arc<Pace>>>> = Arc::default();
    let of_piece = stop.clone();
    let mut bench = Bench::new(move |piece| {
        if piece == 8
            && let Some(pace) = &*of_piece.lock().unwrap()
        {
            pace.stop();
        }
    });
    *stop.lock().unwrap() = Some(bench.pace.clone());
    let written = write_into(&bench, &Spec::new(3, 1));
    flip(&written.paths[0], 9000);
    assert_eq!(bench.pass(), []);
    assert_eq!(bench.scrub.progress().counts().passes, 0);
}

// Breaks if: a disk that does not give what it has is silence, told of again and again, or not
// asked again.
#[test]
fn what_the_disk_does_not_give_is_told_once_and_asked_for_again() {
    let (plan, failpoints) = FaultPlan::new().failpoints();
    let mut bench = Bench::on(failpoints, |_| {});
    let written = write_into(&bench, &Spec::new(3, 1));
    let container = written.paths[0].display().to_string();
    for (site, target, of_container) in [
        ("file.read", container.as_str(), true),
        ("dir.list", "disk/cavity", false),
        ("dir.list", "disk", false),
    ] {
        plan.fail_from_now(site, target, Verdict::Fail(5));
        let found = bench.pass();
        let kinds: Vec<_> = found.iter().map(|one| one.kind).collect();
        assert_eq!(
            kinds,
            [ErrorKind::Unavailable],
            "{site} {target}: {found:?}"
        );
        assert_eq!(found[0].container.is_some(), of_container);
        let text = found[0].to_string();
        assert!(text.contains("the disk does not deliver it now"), "{text}");
        assert_eq!(bench.pass(), [], "{site} {target}");
        plan.heal();
        // Not due, and read all the same where nothing was read before.
        let before = bench.scrub.progress().counts().containers;
        assert_eq!(bench.pass(), [], "{site} {target}");
        let after = bench.scrub.progress().counts().containers;
        assert_eq!(after - before, u64::from(of_container), "{site} {target}");
    }
    // What could not be looked at is not forgotten: whole containers are not read again, damage is
    // not told again.
    assert_eq!(bench.scrub.progress().counts().damaged, 3);
}

// Breaks if: what a server cannot authenticate is counted like everything else.
#[test]
fn a_server_says_of_how_much_it_does_not_know_who_wrote_it() {
    let mut bench = Bench::new(|_| {});
    write_into(&bench, &Spec::new(3, 1));
    let sealed = write_into(&bench, &Spec::new(4, 1));
    let name = bench
        .scratch
        .dir("disk/cavity")
        .join(Spec::new(4, 1).commit_name());
    let record = seal(&sealed.record.encode(), [1; 16], |_| [2; 32]).unwrap();
    std::fs::write(name, record).unwrap();
    assert_eq!(bench.pass(), []);
    let counts = bench.scrub.progress().counts();
    assert_eq!((counts.containers, counts.unproven), (4, 2));
    let text = counts.to_string();
    assert!(
        text.contains("2 containers were encrypted and are not authenticated"),
        "{text}"
    );
}
