//! For the tests of all crates: faults at chosen steps, scratch directories, forked children, real
//! mounts.
//!
//! How: a [`FaultPlan`] is a hook for [`Failpoints`] that records every step and applies its rules.
//! A test first runs its workload with an empty plan to learn the steps, then once per step with a
//! fault there.
//!
//! Invariants
//! 1. A rule applies once unless it says always; the first rule that matches a step decides.
//! 2. Every step is recorded, also the one that fails or kills.
//! 3. A scratch directory is removed with its owner; a child is killed and collected with its
//!    owner.
//!
//! Beneath: a journal of what was done to a disk ([`power`]), what of it a power cut may leave
//! (`power/outage.rs`), disks in memory ([`power::Image`]), kernels that refuse system calls
//! ([`kernel`]), limits and interrupts ([`hardship`]), real file systems ([`mount`]) and hosts
//! ([`hosts`]) that go with the test, other users who are in the way ([`squatter`]), what is no
//! file in place of one ([`impostor`]).
//!
//! Not here: simulated networks.
// Tests reach the outside in ways that the crates they test may not.
#![allow(clippy::disallowed_methods)]
#![allow(unsafe_code)]

pub mod calls;
mod counting;
pub mod hardship;
pub mod hosts;
pub mod impostor;
pub mod kernel;
pub mod misread;
pub mod mount;
mod pinned;
pub mod ports;
pub mod power;
pub mod squatter;

pub use pinned::Pinned;

pub use counting::Counting;

use orcheck_io::clock::Deadline;
use orcheck_io::failpoints::{Failpoint, FailpointHook, Failpoints, Verdict};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Pages that the calling thread had to have mapped since it began.
#[must_use]
pub fn page_faults() -> u64 {
    // SAFETY: plain data, filled by the kernel; asking for the calling thread cannot fail.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage);
        usage
    };
    (usage.ru_minflt + usage.ru_majflt) as u64
}

/// A step that was taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// Its number, from 1.
    pub number: u64,
    /// Its site.
    pub site: &'static str,
    /// Its target.
    pub target: String,
}

#[derive(Debug, Clone)]
enum When {
    Number(u64),
    /// The nth match of this site (from 1); 0 means every one. An empty site is any site.
    Site {
        site: String,
        nth: u64,
    },
}

#[derive(Debug, Clone)]
struct Rule {
    when: When,
    target_part: String,
    verdict: Verdict,
    matches: u64,
}

#[derive(Debug, Default)]
struct State {
    rules: Vec<Rule>,
    seen: Vec<Seen>,
}

/// Records steps and makes chosen ones fail. Built by chaining:
/// `FaultPlan::new().at_site("file.sync", 2, Verdict::Fail(5)).only_where("job").steps()`.
#[derive(Debug, Default)]
pub struct FaultPlan {
    state: Mutex<State>,
}

impl FaultPlan {
    /// A plan without faults: it records.
    #[must_use]
    pub fn new() -> Self {
        FaultPlan::default()
    }

    /// The same under the name that says what an empty plan is for.
    #[must_use]
    pub fn record() -> Self {
        FaultPlan::default()
    }

    /// The fault happens at the step with this number (from 1).
    #[must_use]
    pub fn at_step(self, number: u64, verdict: Verdict) -> Self {
        self.add(When::Number(number), verdict);
        self
    }

    /// The fault happens at the nth step (from 1) of this site; an empty site stands for every
    /// site.
    #[must_use]
    pub fn at_site(self, site: &str, nth: u64, verdict: Verdict) -> Self {
        self.add(
            When::Site {
                site: site.to_owned(),
                nth: nth.max(1),
            },
            verdict,
        );
        self
    }

    /// The fault happens at every step of this site; an empty site stands for every site.
    #[must_use]
    pub fn always(self, site: &str, verdict: Verdict) -> Self {
        self.add(
            When::Site {
                site: site.to_owned(),
                nth: 0,
            },
            verdict,
        );
        self
    }

    /// The last fault only counts steps whose target contains this text.
    #[must_use]
    pub fn only_where(self, target_part: &str) -> Self {
        if let Some(rule) = self.state().rules.last_mut() {
            target_part.clone_into(&mut rule.target_part);
        }
        self
    }

    /// The plan, shared, and the steps that follow it.
    #[must_use]
    pub fn failpoints(self) -> (Arc<FaultPlan>, Failpoints) {
        let plan = Arc::new(self);
        let failpoints = Failpoints::with(Arc::clone(&plan) as Arc<dyn FailpointHook>);
        (plan, failpoints)
    }

    /// Adds a fault while the plan is in use: at every step of `site` from now on whose target
    /// contains `target_part` (both may be empty).
    pub fn fail_from_now(&self, site: &str, target_part: &str, verdict: Verdict) {
        self.state().rules.push(Rule {
            when: When::Site {
                site: site.to_owned(),
                nth: 0,
            },
            target_part: target_part.to_owned(),
            verdict,
            matches: 0,
        });
    }

    /// Ends all faults; recording continues.
    pub fn heal(&self) {
        self.state().rules.clear();
    }

    /// Every step so far.
    #[must_use]
    pub fn seen(&self) -> Vec<Seen> {
        self.state().seen.clone()
    }

    fn add(&self, when: When, verdict: Verdict) {
        self.state().rules.push(Rule {
            when,
            target_part: String::new(),
            verdict,
            matches: 0,
        });
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl FailpointHook for FaultPlan {
    fn at(&self, step: &Failpoint) -> Verdict {
        let mut state = self.state();
        state.seen.push(Seen {
            number: step.number,
            site: step.site,
            target: step.target.to_owned(),
        });
        let mut decided = Verdict::Go;
        for rule in &mut state.rules {
            if !step.target.contains(&rule.target_part) {
                continue;
            }
            let hit = match &rule.when {
                When::Number(number) => *number == step.number,
                When::Site { site, nth } => {
                    if !site.is_empty() && site != step.site {
                        continue;
                    }
                    rule.matches += 1;
                    *nth == 0 || *nth == rule.matches
                }
            };
            if hit && decided == Verdict::Go {
                decided = rule.verdict;
            }
        }
        decided
    }
}

/// A directory of its own for a test, removed with everything in it when dropped.
#[derive(Debug)]
pub struct Scratch {
    path: PathBuf,
}

impl Scratch {
    /// In the system's directory for temporary files.
    #[must_use]
    pub fn new(name: &str) -> Scratch {
        Scratch::under(&std::env::temp_dir(), name)
    }

    /// In memory (/dev/shm), for tests that make thousands of files.
    #[must_use]
    pub fn in_memory(name: &str) -> Scratch {
        Scratch::under(Path::new("/dev/shm"), name)
    }

    /// Under a given directory.
    ///
    /// # Panics
    /// When the directory cannot be made.
    #[must_use]
    pub fn under(parent: &Path, name: &str) -> Scratch {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let random = u32::from_le_bytes(orcheck_io::rng::random_bytes());
        let path = parent.join(format!(
            "orcheck-{name}-{}-{number}-{random:08x}",
            std::process::id()
        ));
        if let Err(error) = std::fs::create_dir(&path) {
            panic!("create scratch directory {}: {error}", path.display());
        }
        Scratch { path }
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

/// How a child ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// It returned this code (101 after a panic).
    Exited(i32),
    /// This signal killed it.
    Signaled(i32),
    /// It did not end in time and was killed.
    Hung,
}

/// A forked child that runs a closure. Only the calling thread exists in it, so the closure must
/// not rely on other threads or on locks that they might hold.
#[derive(Debug)]
pub struct Child {
    pid: Option<rustix::process::Pid>,
}

impl Child {
    /// Forks; the child runs `work` and exits with its result, never returning to the caller's
    /// code.
    ///
    /// # Panics
    /// When the process cannot be forked.
    pub fn run(work: impl FnOnce() -> i32) -> Child {
        // SAFETY: the C library makes its allocator usable in the child; the child runs the test's
        // closure and leaves by _exit, so that no destructor or exit handler of the parent runs
        // twice.
        match unsafe { libc::fork() } {
            0 => {
                let code =
                    std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).unwrap_or(101);
                // SAFETY: ends the process at once.
                unsafe { libc::_exit(code) }
            }
            pid => match rustix::process::Pid::from_raw(pid).filter(|_| pid > 0) {
                Some(pid) => Child { pid: Some(pid) },
                None => panic!("fork failed: {}", std::io::Error::last_os_error()),
            },
        }
    }

    /// As [`Child::run`]; the file receives what it prints.
    ///
    /// # Panics
    /// When there is no memory for the file, or the process cannot be forked.
    pub fn run_captured(work: impl FnOnce() -> i32) -> (Child, std::fs::File) {
        use std::os::fd::AsRawFd as _;
        let flags = rustix::fs::MemfdFlags::CLOEXEC;
        let output = rustix::fs::memfd_create("output", flags).expect("memory for the output");
        let output = std::fs::File::from(output);
        let target = output.as_raw_fd();
        let child = Self::run(|| {
            for stream in [libc::STDOUT_FILENO, libc::STDERR_FILENO] {
                // SAFETY: takes integers only; the child has one thread, and nobody else uses its
                // standard streams.
                unsafe { libc::dup2(target, stream) };
            }
            work()
        });
        (child, output)
    }

    /// Its process number; 0 once it was waited for.
    #[must_use]
    pub fn id(&self) -> i32 {
        self.pid.map_or(0, |pid| pid.as_raw_nonzero().get())
    }

    /// Sends SIGKILL; [`Child::wait`] then says how it ended.
    pub fn kill(&self) {
        if let Some(pid) = self.pid {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
    }

    /// Whether it has ended; [`Child::wait`] then says how.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        use rustix::process::{WaitId, WaitIdOptions, waitid};
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        self.pid
            .is_none_or(|pid| !matches!(waitid(WaitId::Pid(pid), options), Ok(None)))
    }

    /// Waits until one of several has ended, or until the timeout.
    ///
    /// # Panics
    /// Where the kernel has no descriptors of processes (before Linux 5.3).
    pub fn wait_for_any<'a>(children: impl IntoIterator<Item = &'a Self>, timeout: Duration) {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let open = |pid| rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty());
        let pids = children.into_iter().filter_map(|child| child.pid);
        let ends: Vec<_> = pids.map(|pid| open(pid).expect("a descriptor")).collect();
        let mut watched: Vec<_> = ends
            .iter()
            .map(|fd| PollFd::new(fd, PollFlags::IN))
            .collect();
        let timeout = Timespec::try_from(timeout).expect("a time that the kernel can count");
        // An interrupted wait is a short one: whoever asks looks again.
        let _ = poll(&mut watched, Some(&timeout));
    }

    /// Sends any signal.
    pub fn signal(&self, signal: i32) {
        if let Some(pid) = self.pid {
            // SAFETY: takes integers only; the child is ours and not collected yet, so its number
            // is its own.
            unsafe { libc::kill(pid.as_raw_nonzero().get(), signal) };
        }
    }

    /// Waits for its end, at most `timeout`, after which it is killed and counts as hung.
    pub fn wait(mut self, timeout: Duration) -> Ended {
        use rustix::process::{WaitOptions, waitpid};
        let Some(pid) = self.pid.take() else {
            return Ended::Hung;
        };
        let deadline = Deadline::after(timeout);
        let mut attempt = 0;
        let status = loop {
            match waitpid(Some(pid), WaitOptions::NOHANG) {
                Ok(Some((_, status))) => break status,
                Ok(None) if !deadline.passed() => {
                    orcheck_io::errno::backoff(attempt, deadline);
                    attempt += 1;
                }
                Ok(None) => {
                    let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
                    let _ = waitpid(Some(pid), WaitOptions::empty());
                    return Ended::Hung;
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(_) => return Ended::Hung,
            }
        };
        match (status.exit_status(), status.terminating_signal()) {
            (Some(code), _) => Ended::Exited(code),
            (None, Some(signal)) => Ended::Signaled(signal),
            (None, None) => Ended::Hung,
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if let Some(pid) = self.pid {
            self.kill();
            let _ = rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::empty());
        }
    }
}
