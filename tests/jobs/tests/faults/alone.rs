//! The program does not come back, panics, or ends: what the engine does by itself and what it
//! leaves behind.

use crate::hooks::{Key, Named};
use orcheck_client::{Codec, Environment, Options, Session};
use orcheck_format::{Error, Result};
use orcheck_jobs::life::{PAIR, SOLO, STRIPED, View, Workload, names};
use orcheck_jobs::payload::{Origin, Payload};
use orcheck_jobs::support::{Job, Threads};

use orcheck_io::clock::{Clock, SystemClock};
use orcheck_io::failpoints::{Failpoint, Failpoints, Verdict};
use orcheck_testing::Scratch;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Barrier;
use std::time::Duration;

const LONG: Duration = Duration::from_secs(30);

fn origin(step: u64) -> Origin {
    Origin { run: 1, step }
}

/// Looks again and again until `there` is; false after a long time.
fn until(there: &dyn Fn() -> bool) -> bool {
    let clock = SystemClock;
    let end = clock.now() + LONG;
    while clock.now() < end {
        if there() {
            return true;
        }
        std::thread::yield_now();
    }
    false
}

/// After `checkpoint` the program computes and never calls Orcheck again; the checkpoint becomes
/// committed all the same, at all levels, and what is too old goes.
// Breaks if: a snapshot is sealed by a later call instead of by `checkpoint` and the threads of the
// engine.
pub fn the_program_never_calls_in_again() {
    for workload in [SOLO, PAIR, Workload { keep: 2, ..STRIPED }] {
        let workload = Workload {
            routed: false,
            ..workload
        };
        let scratch = Scratch::in_memory("silent");
        let staged = Barrier::new(workload.ranks as usize + 1);
        let seen = Barrier::new(workload.ranks as usize + 1);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                workload
                    .job(scratch.path(), Failpoints::none())
                    .run(|session, rank| {
                        let mut session = session.unwrap();
                        let _ = session.find();
                        for step in 1..=3 {
                            let mut state = Payload::new(rank, origin(step), workload.scale);
                            state.protect(&mut session, false).unwrap();
                            session.checkpoint(step).unwrap();
                            state.scribble(false);
                        }
                        staged.wait();
                        seen.wait();
                        session.abandon();
                    });
            });
            staged.wait();
            let mut missing = Vec::new();
            for level in workload.levels() {
                let there =
                    || workload.readable(scratch.path(), View::Only(level)) == Ok(Some(origin(3)));
                if !until(&there) {
                    missing.push(format!("step 3 never came at level {level}"));
                }
            }
            let oldest_is_gone = || {
                let dirs = workload.job_dirs(scratch.path());
                let old = |name: &String| name.starts_with("s000000000001-");
                dirs.iter().all(|dir| !names(dir).iter().any(old))
            };
            if missing.is_empty() && !until(&oldest_is_gone) {
                missing.push("step 1 was not pruned".to_owned());
            }
            // The ranks are let go whatever was found.
            seen.wait();
            assert!(missing.is_empty(), "{}: {missing:?}", workload.name);
        });
    }
}

/// A codec that ends as told at a chosen call.
struct Bad {
    left: u32,
    panics: bool,
}

impl Codec for Bad {
    fn size(&mut self) -> Result<u64> {
        Ok(90_000)
    }

    fn pack(&mut self, _: u64, dst: &mut [u8]) -> Result<()> {
        dst.fill(7);
        if self.left > 0 {
            self.left -= 1;
            return Ok(());
        }
        if self.panics {
            // As a panic, without the message on the terminal.
            std::panic::resume_unwind(Box::new("the codec panics, as the test wants it"));
        }
        Err(Error::invalid("the codec refuses, as the test wants it"))
    }

    fn unpack(&mut self, _: u64, _: &[u8]) -> Result<()> {
        Ok(())
    }
}

/// A rank whose staging fails or panics loses the step for all, and it is reported; the next step
/// works, again and again in a pool of four chunks, so nothing of the pool was lost.
// Breaks if: `Staging::drop` does not send `Fail`, or a chunk is lost with the panic.
pub fn a_rank_that_fails_in_the_middle_of_staging() {
    for (small, panics) in [(true, false), (true, true), (false, true)] {
        let workload = Workload {
            options: if small { "pool = '256 KiB'" } else { "" },
            overlapped: false,
            lent: false,
            ..PAIR
        };
        let scratch = Scratch::in_memory("panics");
        workload
            .job(scratch.path(), Failpoints::none())
            .run(|session, rank| {
                let mut session = session.unwrap();
                let _ = session.find();
                for step in 1..=12 {
                    let bad = step % 2 == 0;
                    let mut state = Payload::new(rank, origin(step), workload.scale);
                    state.protect(&mut session, false).unwrap();
                    if bad && rank == 1 {
                        // After the other regions by name, and in its second piece.
                        session
                            .protect_codec(
                                "zz",
                                Box::new(Bad {
                                    left: u32::from(step % 4 == 0),
                                    panics,
                                }),
                                0,
                            )
                            .unwrap();
                    }
                    let staged = catch_unwind(AssertUnwindSafe(|| session.checkpoint(step)));
                    if bad && rank == 1 {
                        assert_eq!(staged.is_err(), panics);
                        session.unprotect("zz").unwrap();
                    } else {
                        staged.unwrap().unwrap();
                    }
                    for level in workload.levels() {
                        let safe = session.wait(step, level, LONG);
                        if bad {
                            let error = safe.unwrap_err();
                            assert!(
                                error.message().contains("gave its snapshot"),
                                "step {step} at {level}: {error}"
                            );
                        } else {
                            safe.unwrap();
                        }
                    }
                }
                // The last step was given up, and close says so.
                assert!(session.close(LONG).is_err());
            });
        assert_eq!(
            workload.readable(scratch.path(), View::All),
            Ok(Some(origin(11)))
        );
    }
}

/// What this process has open, by kind, its threads, and its part of the table of Unix sockets.
fn belongings() -> BTreeMap<String, usize> {
    let mut found = BTreeMap::new();
    for name in names(Path::new("/proc/self/fd")) {
        if let Ok(target) = std::fs::read_link(Path::new("/proc/self/fd").join(name)) {
            let target = target.display().to_string();
            // The directory being read here has a descriptor of its own.
            if target.starts_with("/proc/") {
                continue;
            }
            let kind = target.split(':').next().unwrap_or_default();
            let kind = if kind.starts_with("/memfd") {
                "memfd".to_owned()
            } else {
                kind.to_owned()
            };
            *found.entry(kind).or_default() += 1;
        }
    }
    found.insert(
        "threads".to_owned(),
        names(Path::new("/proc/self/task")).len(),
    );
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    found.insert(
        "mappings of memory files".to_owned(),
        maps.lines().filter(|line| line.contains("memfd")).count(),
    );
    found
}

fn sockets() -> Vec<String> {
    let mine = std::fs::read_to_string("/proc/net/unix").unwrap();
    mine.lines()
        .filter(|line| line.contains("@orcheck-"))
        .filter_map(|line| line.split('@').nth(1))
        .map(str::to_owned)
        .collect()
}

/// How a session ends.
#[derive(Clone, Copy, PartialEq)]
enum End {
    Close,
    Abandon,
    Drop,
    FailedOpen,
}

fn one_session(workload: &Workload, root: &Path, end: End, runs: &std::sync::Mutex<Vec<String>>) {
    let job: Job = workload.job(root, Failpoints::none());
    if end == End::FailedOpen {
        // A file stands in place of the job in every root, so that no directory knows the job.
        for dir in workload.job_dirs(root) {
            let _ = std::fs::remove_dir_all(&dir);
            let _ = std::fs::write(&dir, "in the way");
        }
    }
    job.run(|session, rank| {
        let mut session: Session = match session {
            Ok(session) => session,
            Err(_) if end == End::FailedOpen => return,
            Err(error) => panic!("{error}"),
        };
        runs.lock().unwrap().push(session.epoch().run.to_string());
        let mut state = Payload::blank(rank, workload.scale);
        let mut last = 0;
        if session.find().is_ok() {
            state.protect(&mut session, workload.routed).unwrap();
            last = session.restart().unwrap();
        }
        state = Payload::new(rank, origin(last + 1), workload.scale);
        state.protect(&mut session, workload.routed).unwrap();
        state.write_route(rank, origin(last + 1));
        session.checkpoint(last + 1).unwrap();
        match end {
            End::Close | End::FailedOpen => session.close(LONG).unwrap(),
            End::Abandon => session.abandon(),
            End::Drop => drop(session),
        }
    });
}

/// Nothing is left behind in the process, the table of sockets and the directories.
// Breaks if: `end` leaves the routed directory.
pub fn nothing_is_left_behind() {
    for workload in [SOLO, PAIR, STRIPED] {
        for end in [End::Close, End::Abandon, End::Drop, End::FailedOpen] {
            let scratch = Scratch::in_memory("clean");
            let runs = std::sync::Mutex::new(Vec::new());
            // Once before, for what a process sets up once and keeps.
            one_session(&workload, scratch.path(), End::Close, &runs);
            // A thread that was joined may be in the table for a moment longer.
            assert!(until(&|| belongings()["threads"] == 1), "threads stay");
            let before = belongings();
            for _ in 0..3 {
                one_session(&workload, scratch.path(), end, &runs);
            }
            // A thread that was joined may be in the table for a moment longer.
            assert!(
                until(&|| belongings() == before),
                "{}: before {before:?}, after {:?}",
                workload.name,
                belongings()
            );
            let runs = runs.lock().unwrap();
            let left: Vec<String> = sockets()
                .into_iter()
                .filter(|name| runs.iter().any(|run| name.contains(run)))
                .collect();
            assert!(left.is_empty(), "{}: sockets {left:?}", workload.name);
            for dir in workload.job_dirs(scratch.path()) {
                let odd: Vec<String> = names(&dir)
                    .into_iter()
                    .filter(|name| name.ends_with(".tmp") || name.starts_with("route-"))
                    .collect();
                assert!(odd.is_empty(), "{}: {odd:?}", workload.name);
            }
        }
    }
}

/// A session that could not open leaves no claim either: here the second node cannot claim after
/// the first one did.
// Breaks if: a claim of a start that failed is not withdrawn.
pub fn a_failed_start_leaves_no_claim() {
    let workload = PAIR;
    let scratch = Scratch::in_memory("start");
    let job = workload.job(scratch.path(), Failpoints::none());
    let worlds = Threads::world(2);
    std::thread::scope(|scope| {
        for (rank, collective) in worlds.into_iter().enumerate() {
            let text = format!("{}node_name = 'n{rank}'\n", job.options);
            let refuse = |found: &Key, _: &Failpoint| {
                let claim =
                    found.site == "dir.create" && found.target.starts_with("/local/job/n1/epoch-");
                if claim {
                    Verdict::Fail(13)
                } else {
                    Verdict::Go
                }
            };
            let hook = Named::new(scratch.path(), Box::new(refuse));
            hook.arm();
            let environment = Environment {
                failpoints: hook.failpoints(),
                ..Environment::default()
            };
            scope.spawn(move || {
                let options = Options::from_text(&text);
                let opened = Session::open_with("job", Box::new(collective), options, environment);
                let error = opened.err().unwrap();
                assert!(error.message().contains("EACCES"), "{error}");
            });
        }
    });
    for dir in workload.job_dirs(scratch.path()) {
        assert_eq!(names(&dir), Vec::<String>::new(), "{}", dir.display());
    }
}
