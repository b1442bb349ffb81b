//! Hard times: limits of the process, file systems that are full, simple or read-only, signals in
//! every call, directories that were copied by half. The program is never ended by us: it gets an
//! error, or a slower way is taken.

use crate::kill_steps::after_a_good_run;
use crate::reads::verified;
use orcheck_client::Solo;
use orcheck_format::disk::FileName;
use orcheck_format::{Level, Step};
use orcheck_io::failpoints::Failpoints;
use orcheck_jobs::ledger::Story;
use orcheck_jobs::life::{Life, NODES, PAIR, SOLO, STRIPED, Workload, copy_tree, names};
use orcheck_jobs::trial::{
    Failure, Outcome, PATIENCE, Random, Table, Verdict, check_records, heal, seed, share, told,
    trials,
};
use orcheck_testing::hardship::{
    Resource, interrupt_every, keep_spare_heap, keep_spare_stack, limit,
};
use orcheck_testing::kernel::{Kernel, When};
use orcheck_testing::mount::{Mount, detach, mount_over, own_mounts};
use orcheck_testing::{Child, Ended, Scratch};
use std::path::Path;
use std::sync::OnceLock;
use std::time::Duration;

const CHECKPOINTS: u64 = 4;
/// Longest life of a run to which something was refused: far below its deadlines, none of which may
/// be waited for.
pub const SOON: Duration = Duration::from_secs(25);
/// Where hard times begin that do not begin at once: steps 1 and 2 are taken in peace.
const FIRST: u64 = 3;

/// One rank without a routed file, which the test itself could not write when it is out of
/// descriptors.
pub const PLAIN: Workload = Workload {
    name: "1 rank, global, nothing routed",
    routed: false,
    ..SOLO
};

/// The same with a region that a background thread stages, and with several copy threads.
const BUSY: Workload = Workload {
    name: "1 rank, lent, 3 copy threads",
    options: "copy_threads = 3\npool = '2 MiB'",
    scale: 400,
    lent: true,
    ..PLAIN
};

/// What is hard.
#[derive(Debug, Clone, Copy)]
enum Hardship {
    /// The limit, counted from what is in use then.
    Limit(Resource, u64),
    /// No thread is granted any more.
    NoThreads,
}

impl Hardship {
    fn begin(self) {
        match self {
            Hardship::Limit(Resource::Addresses, more) => {
                let text = std::fs::read_to_string("/proc/self/statm").unwrap();
                let pages: u64 = text.split(' ').next().unwrap().parse().unwrap();
                limit(Resource::Addresses, pages * 4096 + more).unwrap();
            }
            Hardship::Limit(Resource::Descriptors, more) => {
                // So that exactly this many are free.
                let open = names(Path::new("/proc/self/fd"));
                let open: Vec<u64> = open.iter().filter_map(|name| name.parse().ok()).collect();
                let free = (0..).filter(|number| !open.contains(number));
                let first_beyond = free.take(more as usize + 1).last();
                limit(Resource::Descriptors, first_beyond.unwrap()).unwrap();
            }
            Hardship::Limit(resource, value) => limit(resource, value).unwrap(),
            Hardship::NoThreads => {
                let thread = libc::CLONE_THREAD as u32;
                Kernel::new()
                    .without(libc::SYS_clone3, When::Always, libc::ENOSYS)
                    .without(libc::SYS_clone, When::Bits(0, thread), libc::EAGAIN)
                    .apply()
                    .unwrap();
            }
        }
    }
}

/// A run under a hardship, from its start or from step [`FIRST`], and one in peace.
fn limited(workload: &Workload, hardship: Hardship, at_once: bool) -> Outcome {
    let scratch = Scratch::in_memory("limits");
    let root = scratch.path();
    let life = Life::new(*workload, root, 1, CHECKPOINTS);
    let ended = Child::run(|| {
        keep_spare_heap(24 << 20);
        keep_spare_stack();
        let life = life.open_ledger();
        if at_once {
            hardship.begin();
        }
        life.live_one(Box::new(Solo), &|number| {
            if !at_once && number == FIRST {
                hardship.begin();
            }
        });
        0
    })
    .wait(SOON);
    let story = Story::read(root);
    let safe_before = if at_once { 0 } else { FIRST - 1 };
    let result = judge(workload, root, 1, ended, &story, safe_before)
        .and_then(|verdict| heal(workload, root, 2).map(|_| verdict));
    Outcome::of(true, result)
}

/// Ended by itself, in time, with a report of each step that is not safe, and with all that was
/// safe before.
pub fn judge(
    workload: &Workload,
    root: &Path,
    run: u64,
    ended: Ended,
    story: &Story,
    safe_before: u64,
) -> Result<Verdict, Failure> {
    let fail = |verdict, text: String| Err((verdict, format!("{text}; {}", told(story))));
    match ended {
        Ended::Exited(0) => {}
        Ended::Hung => return fail(Verdict::Hang, String::new()),
        ended => {
            return fail(
                Verdict::HardFail,
                format!("the program ended with {ended:?}"),
            );
        }
    }
    let mine = story.run(run);
    if let Some(late) = mine.errors.iter().find(|e| e.contains("is not yet safe")) {
        return fail(Verdict::Hang, late.clone());
    }
    // A limit is nobody's bug.
    if let Some(bug) = mine.errors.iter().find(|error| {
        let mut words = error.split(": ").next().unwrap_or_default().split(' ');
        words.next_back() == Some("internal")
    }) {
        return fail(Verdict::HardFail, format!("called internal: {bug}"));
    }
    let level = *workload.levels().last().unwrap_or(&Level::Global);
    let safe = |step: u64| mine.acked.contains(&(step, level));
    if let Some(step) = (1..=safe_before).find(|&step| !safe(step)) {
        return fail(Verdict::LostWork, format!("step {step} was taken in peace"));
    }
    let lost = mine.begun.iter().find(|&&step| !safe(step));
    if mine.errors.is_empty() && (lost.is_some() || !mine.closed) {
        return fail(
            Verdict::HardFail,
            "steps were lost without a word".to_owned(),
        );
    }
    check_records(workload, root)?;
    Ok(if mine.errors.is_empty() {
        Verdict::Pass
    } else {
        Verdict::ClearFail
    })
}

/// Too few addresses, too short files, too few descriptors, no thread: from the start, and in the
/// middle.
// Breaks if: a thread that is not granted is a panic (`std::thread::Scope::spawn`), `check_length`
// is not asked before a write (SIGXFSZ ends the program), or one part of `connect` waits for
// another that is out of descriptors.
pub fn limits_of_the_process() {
    let mut table = Table::default();
    let campaign = trials(0) > 0;
    let mut list: Vec<(Workload, &str, Hardship, bool)> = Vec::new();
    let part = |values: Vec<u64>| {
        // Every third in the quick check, other ones each time.
        let (from, every) = if campaign {
            (0, 1)
        } else {
            (seed() as usize % 3, 3)
        };
        values
            .into_iter()
            .skip(from)
            .step_by(every)
            .collect::<Vec<u64>>()
    };
    for at_once in [true, false] {
        let kib = [
            0, 64, 512, 1200, 2100, 2600, 4200, 6000, 9000, 10400, 11000, 14000, 16000, 20000,
            40000, 200_000,
        ];
        for workload in [PLAIN, BUSY] {
            for more in part(kib.map(|kib| kib << 10).to_vec()) {
                let hardship = Hardship::Limit(Resource::Addresses, more);
                list.push((workload, "addresses", hardship, at_once));
            }
            list.push((workload, "threads", Hardship::NoThreads, at_once));
        }
        for more in part((0..33).collect()) {
            let hardship = Hardship::Limit(Resource::Descriptors, more);
            list.push((PLAIN, "descriptors", hardship, at_once));
        }
        let kib = [4, 20, 64, 90, 100, 110, 128, 200, 1024, 8192, 8300, 65536];
        for len in part(kib.map(|kib| kib << 10).to_vec()) {
            let hardship = Hardship::Limit(Resource::FileLength, len);
            list.push((PLAIN, "length of files", hardship, at_once));
        }
    }
    let outcomes = share(list.len(), &|n| limited(&list[n].0, list[n].2, list[n].3));
    for row in ["addresses", "threads", "descriptors", "length of files"] {
        let of: Vec<usize> = (0..list.len()).filter(|&n| list[n].1 == row).collect();
        let outcomes: Vec<Outcome> = of.iter().map(|&n| outcomes[n].clone()).collect();
        let names: Vec<String> = of
            .iter()
            .map(|&n| {
                format!(
                    "{}: {:?}, at once: {}",
                    list[n].0.name, list[n].2, list[n].3
                )
            })
            .collect();
        table.add(row, &names, &outcomes, &[Verdict::Pass, Verdict::ClearFail]);
    }
    table.finish("limits of the process");
}

/// Whether this process may mount; says once why not.
fn may_mount() -> bool {
    static MAY: OnceLock<bool> = OnceLock::new();
    *MAY.get_or_init(|| own_mounts().is_ok())
}

/// A run whose directory is this mount, and one after `then`.
fn mounted(workload: &Workload, how: Mount, then: Option<Mount>) -> Result<Verdict, Failure> {
    let scratch = Scratch::in_memory("mounted");
    let root = scratch.path();
    if !may_mount() {
        return Err((Verdict::HardFail, "may not mount".to_owned()));
    }
    let dir = root.join("ost0");
    std::fs::create_dir(&dir).unwrap();
    mount_over(&dir, how).map_err(|error| (Verdict::HardFail, format!("{how:?}: {error}")))?;
    let result = lives_there(workload, root, &dir, how, then);
    detach(&dir).unwrap();
    result
}

fn lives_there(
    workload: &Workload,
    root: &Path,
    dir: &Path,
    how: Mount,
    then: Option<Mount>,
) -> Result<Verdict, Failure> {
    let life = Life::new(*workload, root, 1, CHECKPOINTS);
    let ended = orcheck_jobs::trial::apart(&life);
    let story = Story::read(root);
    let verdict = judge(workload, root, 1, ended, &story, 0)?;
    let mine = story.run(1);
    if verdict == Verdict::ClearFail {
        let full = |error: &String| error.contains("no_space") || error.contains("ENOSPC");
        if !matches!(how, Mount::Small(_)) || !mine.errors.iter().any(full) {
            return Err((Verdict::HardFail, told(&story)));
        }
        // What a lost step took is free again: the next one may need it.
        let there = names(&dir.join("job"));
        let recorded = |step: Step| {
            there.iter().any(|name| {
                matches!(FileName::parse(name), Some(FileName::Commit { step: s, .. }) if s == step)
            })
        };
        let left = there.iter().find(|name| {
            matches!(FileName::parse(name), Some(FileName::Container { step, .. }) if !recorded(step))
        });
        if let Some(left) = left {
            return Err((Verdict::Leak, format!("{left} is left; {}", told(&story))));
        }
    }
    if let Some(then) = then {
        mount_over(dir, then).map_err(|error| (Verdict::HardFail, format!("{then:?}: {error}")))?;
    }
    heal(workload, root, 2).map(|_| verdict)
}

/// Full disks of every size, and one without direct I/O, without reserving space.
// Breaks if: the container of a step that did not fit is not removed, or a file system that cannot
// reserve space is an error.
pub fn small_and_simple_file_systems() {
    if Child::run(|| i32::from(own_mounts().is_err())).wait(PATIENCE) != Ended::Exited(0) {
        println!("  SKIPPED: small and simple file systems (needs root to mount)");
        return;
    }
    let mut table = Table::default();
    let every = if trials(0) > 0 { 8 } else { 40 };
    let sizes: Vec<u64> = (24..560).step_by(every).map(|kib| kib << 10).collect();
    let outcomes = share(sizes.len(), &|n| {
        let roomy = Some(Mount::Resized(64 << 20));
        Outcome::of(true, mounted(&PLAIN, Mount::Small(sizes[n]), roomy))
    });
    let names: Vec<String> = sizes.iter().map(|size| format!("{size} bytes")).collect();
    table.add(
        "full",
        &names,
        &outcomes,
        &[Verdict::Pass, Verdict::ClearFail],
    );
    let workloads = [SOLO, PLAIN];
    let outcomes = share(workloads.len(), &|n| {
        Outcome::of(true, mounted(&workloads[n], Mount::Simple, None))
    });
    let names = workloads.map(|workload| workload.name.to_owned());
    table.add("simple", &names, &outcomes, &[Verdict::Pass]);
    let outcomes = share(1, &|_| Outcome::of(true, full_shared_memory()));
    table.add(
        "/dev/shm is full",
        &["64 KiB".to_owned()],
        &outcomes,
        &[Verdict::Pass],
    );
    let outcomes = share(1, &|_| Outcome::of(true, read_only()));
    table.add(
        "read-only",
        &["bind mount".to_owned()],
        &outcomes,
        &[Verdict::ClearFail],
    );
    table.finish("small and simple file systems");
}

/// The pool does not live in /dev/shm, so nothing changes when that is full.
fn full_shared_memory() -> Result<Verdict, Failure> {
    let scratch = Scratch::new("shm");
    let root = scratch.path();
    let life = Life::new(PAIR, root, 1, CHECKPOINTS);
    let ended = Child::run(|| {
        own_mounts().unwrap();
        mount_over(Path::new("/dev/shm"), Mount::Small(64 << 10)).unwrap();
        life.live(&|_| {});
        0
    })
    .wait(PATIENCE);
    let verdict = judge(&PAIR, root, 1, ended, &Story::read(root), CHECKPOINTS)?;
    heal(&PAIR, root, 2).map(|_| verdict)
}

/// A job that may only be read: a run is refused by name, its checkpoints can be read all the same.
fn read_only() -> Result<Verdict, Failure> {
    let scratch = Scratch::in_memory("readonly");
    let root = scratch.path();
    after_a_good_run(SOLO, root);
    let dir = root.join("ost0");
    let mounted = may_mount() && mount_over(&dir, Mount::ReadOnly).is_ok();
    let ended = orcheck_jobs::trial::apart(&Life::new(SOLO, root, 2, 1));
    let readable = verified(root, &Failpoints::none());
    if mounted {
        detach(&dir).unwrap();
    }
    let story = Story::read(root);
    let errors = story.run(2).errors;
    let said = errors.len() == 1
        && errors[0].starts_with("open ")
        && (errors[0].contains("EROFS") || errors[0].contains("read-only"));
    if !mounted || ended != Ended::Exited(0) || !said {
        return Err((Verdict::HardFail, format!("{ended:?}, {}", told(&story))));
    }
    if !readable.as_ref().is_ok_and(|&count| count == SOLO.keep) {
        return Err((Verdict::LostWork, format!("{readable:?}")));
    }
    heal(&SOLO, root, 3).map(|_| Verdict::ClearFail)
}

/// A signal without SA_RESTART comes into every call of the program's threads.
// Breaks if: a call to the kernel that can be interrupted is not repeated.
pub fn interrupted_in_every_call() {
    let mut table = Table::default();
    for workload in [SOLO, PAIR, NODES, STRIPED] {
        let count = trials(2).min(2000);
        let outcomes = share(count, &|n| {
            let scratch = Scratch::in_memory("interrupted");
            let root = scratch.path();
            let pause = 60 + 40 * (n as u32 % 8);
            let lives = || -> Result<Verdict, Failure> {
                for run in [1, 2] {
                    let life = Life::new(workload, root, run, CHECKPOINTS);
                    let ended = Child::run(|| {
                        interrupt_every(pause).unwrap();
                        life.live(&|_| {});
                        0
                    })
                    .wait(PATIENCE);
                    let story = Story::read(root);
                    let mine = story.run(run);
                    if ended != Ended::Exited(0) || !mine.errors.is_empty() || !mine.closed {
                        return Err((Verdict::HardFail, format!("{ended:?}; {}", told(&story))));
                    }
                }
                heal(&workload, root, 3).map(|_| Verdict::Pass)
            };
            Outcome::of(true, lives())
        });
        let names: Vec<String> = (0..count).map(|n| format!("trial {n}")).collect();
        table.add(workload.name, &names, &outcomes, &[Verdict::Pass]);
    }
    table.finish("interrupted in every call");
}

/// A copy of the job's directories in which files are missing or end early.
fn copied_by_half(workload: &Workload, base: &Path, seed: u64) -> Outcome {
    let mut random = Random::new(seed);
    let scratch = Scratch::in_memory("half");
    let root = scratch.path();
    copy_tree(base, root);
    // Newest step with a record: without one, a container may be what a run that died has left.
    let mut recorded = None;
    let mut harmed = 0;
    for dir in workload.job_dirs(root) {
        let mut here = names(&dir);
        here.sort();
        for name in here {
            let path = dir.join(&name);
            let len = std::fs::metadata(&path).unwrap().len();
            match random.below(6) {
                0 => {
                    std::fs::remove_file(&path).unwrap();
                    harmed += 1;
                    continue;
                }
                1 if len > 0 => {
                    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
                    file.set_len(random.below(len)).unwrap();
                    harmed += 1;
                }
                _ => {}
            }
            if let Some(FileName::Commit { step, .. }) = FileName::parse(&name) {
                recorded = recorded.max(Some(step));
            }
        }
    }
    let ended = orcheck_jobs::trial::apart(&Life::new(*workload, root, 2, 1));
    let story = Story::read(root);
    let mine = story.run(2);
    let fail = |verdict, text: &str| Err((verdict, format!("{text}; {}", told(&story))));
    let result = match (ended, mine.resumed) {
        (Ended::Hung, _) => fail(Verdict::Hang, ""),
        (Ended::Exited(0), _) if !mine.wrong.is_empty() => fail(Verdict::SilentWrong, ""),
        (Ended::Exited(0), Some(Some(from))) if Some(from.step) == recorded.map(u64::from) => {
            Ok(Verdict::Pass)
        }
        (Ended::Exited(0), Some(Some(_))) if !mine.warnings.is_empty() => Ok(Verdict::FellBack),
        (Ended::Exited(0), Some(Some(_))) => fail(Verdict::HardFail, "older without a word"),
        (Ended::Exited(0), Some(None)) if recorded.is_none() => Ok(Verdict::Pass),
        (Ended::Exited(0), Some(None)) => fail(Verdict::LostWork, "taken for an empty job"),
        (Ended::Exited(0), None) if !mine.errors.is_empty() => Ok(Verdict::ClearFail),
        _ => fail(Verdict::HardFail, &format!("{ended:?}")),
    };
    Outcome::of(harmed > 0, result)
}

/// Jobs that were copied only by half: what is whole is used, what is not is named.
// Breaks if: a commit record whose containers are missing counts as no checkpoint.
pub fn copied_only_by_half() {
    let mut table = Table::default();
    let seed = seed();
    println!("  seed {seed} (ORCHECK_SEED)");
    for workload in [SOLO, PAIR, STRIPED] {
        let base = Scratch::in_memory("base");
        after_a_good_run(workload, base.path());
        let count = trials(40);
        let outcomes = share(count, &|n| {
            copied_by_half(&workload, base.path(), seed.wrapping_add(n as u64))
        });
        let names: Vec<String> = (0..count)
            .map(|n| format!("seed {}", seed.wrapping_add(n as u64)))
            .collect();
        table.add(
            workload.name,
            &names,
            &outcomes,
            &[Verdict::Pass, Verdict::ClearFail, Verdict::FellBack],
        );
    }
    table.finish("copied only by half");
}
