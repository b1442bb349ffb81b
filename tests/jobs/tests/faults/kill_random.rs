//! SIGKILL from outside, at moments that nobody chose.

use orcheck_io::clock::{Clock, SystemClock};
use orcheck_jobs::life::{Life, NODES, SOLO, STRIPED, Workload};
use orcheck_jobs::support::make_dir;
use orcheck_jobs::trial::{
    Failure, Outcome, Random, Table, Verdict, check_promises, check_records, heal, seed,
    share_among, told, trials,
};
use orcheck_testing::mount::{LoopDevice, MountNamespace, mounting_refused, program_exists};
use orcheck_testing::{Child, Ended, Scratch};
use std::cell::Cell;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

/// Checkpoints of a run that nobody kills.
const CHECKPOINTS: u64 = 6;

/// Where lives are lived.
struct Place {
    name: &'static str,
    parent: PathBuf,
    /// Processes at a time: more than processors where they wait for a disk.
    workers: usize,
}

/// How long a whole life takes here: the shortest of a few, for most kills should find the run
/// alive.
fn span(workload: Workload, place: &Place) -> Duration {
    let clock = SystemClock;
    let one = || {
        let scratch = Scratch::under(&place.parent, "random");
        let begun = clock.now();
        let ended =
            orcheck_jobs::trial::apart(&Life::new(workload, scratch.path(), 1, CHECKPOINTS));
        assert_eq!(ended, Ended::Exited(0), "a life in peace, {}", place.name);
        clock.now() - begun
    };
    (0..3).map(|_| one()).min().unwrap()
}

/// One to three runs that are killed one after the other, and one that must come up.
fn trial(
    workload: &Workload,
    place: &Place,
    span: Duration,
    seed: u64,
    kills: &Cell<u64>,
) -> Result<(), Failure> {
    let mut random = Random::new(seed);
    let scratch = Scratch::under(&place.parent, "random");
    let root = scratch.path();
    let runs = 1 + random.below(3);
    for run in 1..=runs {
        let life = Life::new(*workload, root, run, CHECKPOINTS);
        let child = Child::run(|| {
            life.live(&|_| {});
            0
        });
        let moment = Duration::from_micros(random.below(span.as_micros() as u64 * 11 / 10));
        match child.wait(moment) {
            // Killed by us, at the moment we meant.
            Ended::Hung => kills.set(kills.get() + 1),
            Ended::Exited(0) => {}
            ended => return Err((Verdict::HardFail, format!("run {run} ended with {ended:?}"))),
        }
        check_records(workload, root)?;
        let story = check_promises(workload, root, run + 1)?;
        if !story.run(run).errors.is_empty() {
            return Err((Verdict::HardFail, told(&story)));
        }
    }
    heal(workload, root, runs + 1).map(|_| ())
}

/// Trials in one place until `kills_min` of their runs were killed; how many were.
fn campaign(place: &Place, kills_min: u64, count: usize, seed: u64, table: &mut Table) -> u64 {
    let workloads = [SOLO, NODES, STRIPED];
    let spans = workloads.map(|workload| span(workload, place));
    let (mut begun, mut all_kills) = (0, 0);
    while all_kills < kills_min {
        assert!(
            begun < 10 * count,
            "{}: {all_kills} kills in {begun} trials",
            place.name
        );
        // Normally one round; more when many runs ended before their moment came.
        let count = if begun == 0 { count } else { 20 };
        let outcomes = share_among(place.workers, count, &|n| {
            let (workload, span) = (workloads[n % 3], spans[n % 3]);
            let kills = Cell::new(0);
            let seed = seed + (begun + n) as u64;
            let result = trial(&workload, place, span, seed, &kills);
            // A run that ended before its moment came is no idle trial: kills are counted instead.
            let mut outcome = Outcome::of(true, result.map(|()| Verdict::Pass));
            if outcome.verdict == Verdict::Pass {
                outcome.text = kills.get().to_string();
            }
            outcome
        });
        let kills = outcomes
            .iter()
            .filter_map(|outcome| outcome.text.parse::<u64>().ok());
        all_kills += kills.sum::<u64>();
        let name = |n: usize| format!("seed {}", seed + (begun + n) as u64);
        let names: Vec<String> = (0..outcomes.len()).map(name).collect();
        let row = format!("killed at random, {}", place.name);
        table.add(&row, &names, &outcomes, &[Verdict::Pass]);
        begun += count;
    }
    all_kills
}

/// At least 500 kills on a disk and in memory, of one to three runs in a row.
// Breaks if: the lead commits before every node has voted.
pub fn killed_at_random_moments() {
    let seed = seed();
    println!("  seed {seed} (ORCHECK_SEED)");
    let mut table = Table::default();
    let mut kills = 0;
    for (name, parent, workers) in [
        ("on disk", std::env::temp_dir(), 4),
        ("in memory", PathBuf::from("/dev/shm"), 2),
    ] {
        let place = Place {
            name,
            parent,
            workers,
        };
        kills += campaign(&place, 250, trials(240) / 2, seed, &mut table);
    }
    table.finish(&format!("{kills} kills from outside"));
}

/// Name, how it is made, and the logical block of its device: direct I/O has to fit both.
const FILE_SYSTEMS: [(&str, &[&str], u32); 3] = [
    ("ext4", &["-q"], 512),
    ("xfs", &["-q", "-s", "size=4096"], 4096),
    ("btrfs", &["-q"], 512),
];

/// At least 100 kills on each of ext4, xfs and btrfs, on loop devices over memory, in mounts of
/// this test's own.
// Breaks if: the lead commits before every node has voted.
pub fn killed_on_every_file_system() {
    if let Some(why) = mounting_refused() {
        return println!("  SKIPPED: {why}");
    }
    let seed = seed();
    println!("  seed {seed} (ORCHECK_SEED)");
    let room = MountNamespace::new().unwrap();
    let mut table = Table::default();
    let mut kills = 0;
    for (name, options, block_bytes) in FILE_SYSTEMS {
        let maker = format!("mkfs.{name}");
        if !program_exists(&maker) {
            println!("  {name}: SKIPPED: {maker} is not installed");
            continue;
        }
        let (image, parent) = (room.path().join("image"), room.path().join(name));
        let file = std::fs::File::create(&image).unwrap();
        file.set_len(512 << 20).unwrap();
        let made = Command::new(&maker)
            .args(options)
            .arg(&image)
            .output()
            .unwrap();
        assert!(made.status.success(), "{maker}: {made:?}");
        make_dir(&parent);
        let device = LoopDevice::attach(&image, block_bytes, false).unwrap();
        let mounted = device.mount(&parent, name, "").unwrap();
        let place = Place {
            name,
            parent,
            workers: 2,
        };
        kills += campaign(&place, 100, trials(54), seed, &mut table);
        mounted.unmount().unwrap();
    }
    table.finish(&format!("{kills} kills from outside, by file system"));
}
