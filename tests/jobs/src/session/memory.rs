//! The pool's budget: too small, too large for the machine, too large for the control group.

use crate::session::disk::{self, skip};
use crate::session::mistakes::{LONG, refused, says};
use crate::support::{Job, State};
use crate::{Test, session_tests};
use orcheck_client::{Environment, Options, Session, Solo};
use orcheck_format::{Dtype, ErrorKind, Level};
use orcheck_io::clock::{Clock, SystemClock};
use orcheck_io::memory::Span;
use orcheck_io::user::env_var;
use orcheck_testing::{Scratch, page_faults};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

/// What is tested here.
pub const TESTS: &[Test] = session_tests![
    a_pool_that_cannot_work_is_refused_with_the_size_that_can,
    only_the_first_checkpoint_touches_memory_for_the_first_time,
    memory_that_cannot_be_had_as_asked_is_had_otherwise,
    all_memory_is_free_again_after_every_checkpoint,
    a_pool_has_the_memory_that_its_snapshots_need,
    a_pool_beyond_the_control_groups_limit_is_refused_by_its_name,
];

fn a_pool_that_cannot_work_is_refused_with_the_size_that_can() {
    let scratch = Scratch::new("pools");
    let job = Job::new(scratch.path(), 2, 1, false);
    job.clone().pool("192 KiB").run(|session, _| {
        says(
            &refused(session),
            ErrorKind::Invalid,
            &[
                "a pool of 196608 bytes holds 3 chunks of 65536 bytes; it needs at least 4",
                "set `pool` to 262144 bytes or more, or lower `chunk`",
            ],
        );
    });
    job.clone().pool("900 TiB").run(|session, _| {
        says(
            &refused(session),
            ErrorKind::NoSpace,
            &[
                "a pool of 989560464998400 bytes does not fit",
                "lower `pool`, or raise the limit named here",
                "a pool smaller than the snapshots works",
            ],
        );
    });
    job.clone().pool("many").run(|session, _| {
        says(
            &refused(session),
            ErrorKind::Invalid,
            &["pool = 'many' is not a size", "write 64 MiB"],
        );
    });
    assert_eq!(
        disk::names(&scratch.path().join("ost0/job")),
        Vec::<String>::new(),
        "no claim is left"
    );
}

// Breaks if: chunks that never had memory are taken before those that have, or memory is prepared
// for more than what is protected.
fn a_pool_has_the_memory_that_its_snapshots_need() {
    const CHUNK: u64 = 64 << 10;
    let scratch = Scratch::new("pool-memory");
    // A pool that is much larger than what is protected, as by default.
    let job = Job::new(scratch.path(), 1, 1, false).pool("64 MiB");
    job.run(|session, _| {
        let mut session = session.unwrap();
        let mut bytes = vec![7; 1 << 20];
        let mut step = 0;
        // What is protected grows, and then shrinks.
        for (part, most) in [(1 << 18, 1 << 18), (1 << 20, 1 << 20), (1 << 16, 1 << 20)] {
            let span = Span::from_mut(&mut bytes[..part]);
            session.protect("a", span, Dtype::U8, 0).unwrap();
            for _ in 0..5 {
                step += 1;
                session.checkpoint(step).unwrap();
                session.wait(step, Level::Global, LONG).unwrap();
            }
            let memory = session.stats().pool_memory_bytes;
            // Held once: the state, its record, and one chunk that is prepared.
            let most = most as u64 + 2 * CHUNK;
            assert!(
                memory > 0 && memory <= most,
                "{memory} bytes of at most {most}"
            );
        }
        session.close(LONG).unwrap();
    });
}

// Breaks if: chunks are handed out in turn instead of the lowest first, or their memory is given
// back to the kernel: every checkpoint would then touch memory for the first time.
fn only_the_first_checkpoint_touches_memory_for_the_first_time() {
    const SCALE: usize = 1500; // about 2 MB a rank
    let scratch = Scratch::new("faults");
    Job::new(scratch.path(), 2, 1, false)
        .pool("64 MiB")
        .run(|session, rank| {
            let mut session = session.unwrap();
            let mut state = State::new(rank, 1, SCALE);
            state.protect(&mut session).unwrap();
            let mut faults = Vec::new();
            for step in 1..=12 {
                let before = page_faults();
                session.checkpoint(step).unwrap();
                faults.push(page_faults() - before);
                session
                    .wait(step, orcheck_format::Level::Global, LONG)
                    .unwrap();
            }
            let pages = ((state.u.len() + state.v.len()) / 4096) as u64;
            // Some are those of the heap and of the stacks of threads that begin late.
            let later: u64 = faults[1..].iter().sum();
            assert!(
                later < pages / 2,
                "faults {faults:?}, {pages} pages a checkpoint"
            );
            session.close(LONG).unwrap();
        });
}

// Breaks if: an option about memory keeps a job from running where the machine cannot grant it.
fn memory_that_cannot_be_had_as_asked_is_had_otherwise() {
    for options in [
        "huge_pages = 'transparent'",
        "huge_pages = 'reserved'",
        "numa = 'off'",
        "numa = 'auto'\nhuge_pages = 'transparent'\ncopy_threads = 3",
    ] {
        let scratch = Scratch::new("pages");
        let job = Job::new(scratch.path(), 2, 1, false).with(options);
        job.run(|session, rank| {
            let mut session = session.unwrap();
            let warned = crate::support::warnings(&mut session);
            // Chunks of 64 KiB do not consist of pages from the reserve; the first rank says so.
            let expected = usize::from(rank == 0 && options.contains("reserved"));
            assert_eq!(warned.len(), expected, "{warned:?}");
            assert!(
                warned.iter().all(|text| text.contains("HugePages_Free")),
                "{warned:?}"
            );
            let mut state = State::new(rank, 1, 300);
            state.protect(&mut session).unwrap();
            session.checkpoint(1).unwrap();
            session.close(LONG).unwrap();
        });
        job.run(|session, rank| {
            let mut session = session.unwrap();
            let mut state = State::empty(rank, 300);
            state.protect(&mut session).unwrap();
            assert_eq!(session.find().unwrap(), 1);
            assert_eq!(session.restart().unwrap(), 1);
            assert!(state.is(rank, 1, 300), "{options}");
            session.close(LONG).unwrap();
        });
    }
}

// Breaks if: the flush keeps the chunk of a rank record.
fn all_memory_is_free_again_after_every_checkpoint() {
    for options in [
        "",
        "mode = 'traditional'",
        "marshal = 'paper'",
        "scheme = 'core'",
    ] {
        let scratch = Scratch::new("memory");
        let is_free = AtomicBool::new(false);
        Job::new(scratch.path(), 2, 2, true)
            .with(options)
            .with("copy_threads = 2")
            .run(|session, rank| {
                let mut session = session.unwrap();
                for step in 1..4 {
                    let mut state = State::new(rank, step, 500);
                    state.protect(&mut session).unwrap();
                    session.checkpoint(step).unwrap();
                    session
                        .wait(step, orcheck_format::Level::Global, LONG)
                        .unwrap();
                }
                // Nothing but what the two ranks take now is in use. With an agent each rank gives
                // its chunks back in one of its next calls, once it hears that they are safe.
                let late = SystemClock.now() + LONG;
                while rank == 0 && !is_free.load(Ordering::Relaxed) {
                    match session.alloc(126 * 65536) {
                        Ok(pool) => {
                            session.free(pool.address()).unwrap();
                            is_free.store(true, Ordering::Relaxed);
                        }
                        Err(error) if SystemClock.now() > late => panic!("{error}"),
                        Err(_) => std::thread::yield_now(),
                    }
                }
                while !is_free.load(Ordering::Relaxed) && SystemClock.now() < late {
                    session
                        .wait(3, orcheck_format::Level::Global, LONG)
                        .unwrap();
                }
                session.close(LONG).unwrap();
            });
    }
}

/// A control group below this process's own with a memory limit, removed when dropped.
struct Group(PathBuf);

impl Group {
    /// Version 1 or 2, whichever has the memory controller and lets itself be written.
    fn with_limit(limit_bytes: u64) -> Option<Self> {
        let own = String::from_utf8(disk::read(Path::new("/proc/self/cgroup"))).ok()?;
        for line in own.lines() {
            let mut fields = line.splitn(3, ':');
            let (_, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
            let (mount, limit) = match controllers {
                "" => ("/sys/fs/cgroup", "memory.max"),
                other if other.split(',').any(|one| one == "memory") => {
                    ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")
                }
                _ => continue,
            };
            for parent in [format!("{mount}{path}"), mount.to_owned()] {
                let dir = Path::new(&parent).join(format!("orcheck-test-{}", std::process::id()));
                let group = Self(dir);
                if disk::try_make_dir(&group.0)
                    && disk::try_write(&group.0.join(limit), &limit_bytes.to_string())
                {
                    return Some(group);
                }
            }
        }
        None
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        disk::try_remove_dir(&self.0);
    }
}

/// Where the process that joins the group finds its name.
const GROUP_VARIABLE: &str = "ORCHECK_TEST_GROUP";

// Breaks if: `usable_bytes` looks at the machine's memory only.
fn a_pool_beyond_the_control_groups_limit_is_refused_by_its_name() {
    let name = "a_pool_beyond_the_control_groups_limit_is_refused_by_its_name";
    if let Some(group) = env_var(GROUP_VARIABLE) {
        return open_in_group(Path::new(&group));
    }
    let Some(group) = Group::with_limit(256 << 20) else {
        return skip(name, "needs a writable memory control group");
    };
    // A process of its own: the group's limit is for whole processes.
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &format!("memory::{name}"), "--nocapture"])
        .env(GROUP_VARIABLE, &group.0)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}");
    if said.contains(NOT_JOINED) {
        return skip(name, NOT_JOINED);
    }
    let name = group.0.display().to_string();
    for part in [
        "no_space",
        "a pool of 1073741824 bytes does not fit",
        &name,
        "limit 268435456",
        "lower `pool`",
    ] {
        assert!(said.contains(part), "'{part}' is missing in: {said}");
    }
}

const NOT_JOINED: &str = "the group takes no process";

/// What the process in the group does: prints the kind and the text of the error.
fn open_in_group(group: &Path) {
    if !disk::try_write(&group.join("cgroup.procs"), &std::process::id().to_string()) {
        return say(NOT_JOINED);
    }
    let scratch = Scratch::new("cgroup");
    let job = Job::new(scratch.path(), 1, 1, false)
        .pool("1 GiB")
        .with("node_name = 'n0'");
    let options = Options::from_text(&job.options);
    let error = refused(Session::open_with(
        "job",
        Box::new(Solo),
        options,
        Environment::default(),
    ));
    say(&format!("{}: {error}", error.kind().name()));
}

/// To the process that started this one.
fn say(text: &str) {
    let line = format!("{text}\n");
    std::io::stdout().write_all(line.as_bytes()).unwrap();
}
