//! Kernels that refuse: system calls that are missing, forbidden, or fail at the moment a test
//! chooses.
//!
//! How: a [`Kernel`] is a list of refusals, turned into a seccomp filter. [`Kernel::apply`] puts it
//! over this process and everything it starts, for ever: call it in a forked child.
//! [`Kernel::watch`] makes the kernel ask the parent about each of these calls instead, and the
//! parent lets it happen, answers in its place, or kills the child there.
//!
//! Invariants
//! 1. What is not listed happens as ever.
//! 2. A filter is never put over the process that runs the tests.
//! 3. A watched child whose watcher is gone gets ENOSYS from each watched call; it never waits for
//!    ever.
//!
//! Not here: faults at the numbered steps (`lib.rs`), which know what a call is for.
#![allow(unsafe_code)]

use super::{Child, Ended};
use orcheck_io::clock::Deadline;
use orcheck_io::errno::last_errno;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

/// When a call is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// Whatever its arguments are.
    Always,
    /// The argument with this index (from 0) has at least one of these bits.
    Bits(u8, u32),
    /// The low half of this argument is this value.
    Is(u8, u32),
    /// The low half of this argument is at least this value.
    AtLeast(u8, u32),
    /// The low half of this argument is another value.
    IsNot(u8, u32),
}

#[derive(Debug, Clone, Copy)]
struct Rule {
    first: u32,
    last: u32,
    when: When,
    errno: i32,
}

/// What a kernel refuses.
#[derive(Debug, Clone, Default)]
pub struct Kernel {
    rules: Vec<Rule>,
}

#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 0xc000_00b7;
/// The last system call of Linux 4.18 (rseq), from its tables of calls.
#[cfg(target_arch = "x86_64")]
const LAST_OF_4_18: u32 = 334;
#[cfg(target_arch = "aarch64")]
const LAST_OF_4_18: u32 = 293;

/// The ioctl that finds written pages (Linux 6.7).
const PAGEMAP_SCAN: u32 = 0xc060_6610;
/// The first advice to madvise that Linux 4.18 does not know (MADV_COLD; POPULATE_WRITE is newer
/// still).
const FIRST_NEWER_ADVICE: u32 = 20;
/// Flags of memfd_create that Linux 4.18 does not know: MFD_NOEXEC_SEAL, MFD_EXEC.
const NEWER_MEMFD_FLAGS: u32 = 0x18;
/// UFFD_USER_MODE_ONLY (Linux 5.11).
const USER_MODE_ONLY: u32 = 1;

const ALLOW: u32 = 0x7fff_0000;
const ANSWER_ERRNO: u32 = 0x0005_0000;
const ASK_THE_WATCHER: u32 = 0x7fc0_0000;

impl Kernel {
    /// One that refuses nothing yet.
    #[must_use]
    pub fn new() -> Kernel {
        Kernel::default()
    }

    /// Refuses one call (`libc::SYS_…`) with this error number.
    #[must_use]
    pub fn without(self, call: libc::c_long, when: When, errno: i32) -> Kernel {
        let number = u32::try_from(call).unwrap_or(u32::MAX);
        self.rule(number, number, when, errno)
    }

    fn rule(mut self, first: u32, last: u32, when: When, errno: i32) -> Kernel {
        self.rules.push(Rule {
            first,
            last,
            when,
            errno,
        });
        self
    }

    /// Linux 4.18, the oldest that Orcheck runs on: every call that came later is missing, and so
    /// are the later requests and flags of the calls that were there.
    #[must_use]
    pub fn linux_4_18() -> Kernel {
        Kernel::new()
            .rule(LAST_OF_4_18 + 1, u32::MAX, When::Always, libc::ENOSYS)
            .without(
                libc::SYS_madvise,
                When::AtLeast(2, FIRST_NEWER_ADVICE),
                libc::EINVAL,
            )
            .without(
                libc::SYS_memfd_create,
                When::Bits(1, NEWER_MEMFD_FLAGS),
                libc::EINVAL,
            )
            .without(
                libc::SYS_userfaultfd,
                When::Bits(0, USER_MODE_ONLY),
                libc::EINVAL,
            )
            .without(libc::SYS_ioctl, When::Is(1, PAGEMAP_SCAN), libc::ENOTTY)
    }

    /// Puts the filter over this process with all its threads and over everything that it starts.
    ///
    /// # Errors
    /// The error number, where the kernel has no such filters or does not grant them.
    pub fn apply(&self) -> Result<(), i32> {
        const ALL_THREADS: libc::c_ulong = 1;
        self.install(ALL_THREADS, |rule| {
            ANSWER_ERRNO | u32::try_from(rule.errno).unwrap_or(0)
        })
        .map(drop)
    }

    fn install(
        &self,
        flags: libc::c_ulong,
        answer: impl Fn(&Rule) -> u32,
    ) -> Result<libc::c_long, i32> {
        const SET_MODE_FILTER: libc::c_ulong = 1;
        let mut program = self.program(answer);
        let filter = libc::sock_fprog {
            len: u16::try_from(program.len()).map_err(|_| libc::E2BIG)?,
            filter: program.as_mut_ptr(),
        };
        // SAFETY: takes integers only.
        if unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) } != 0 {
            return Err(last_errno());
        }
        // SAFETY: the kernel copies the program, which lives until after the call.
        let done =
            unsafe { libc::syscall(libc::SYS_seccomp, SET_MODE_FILTER, flags, &raw const filter) };
        if done < 0 {
            Err(last_errno())
        } else {
            Ok(done)
        }
    }

    /// The filter: for each rule, skip it unless number and argument match, else answer.
    fn program(&self, answer: impl Fn(&Rule) -> u32) -> Vec<libc::sock_filter> {
        const LOAD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
        const JUMP: u32 = libc::BPF_JMP | libc::BPF_K;
        const RETURN: u32 = libc::BPF_RET | libc::BPF_K;
        // Places in struct seccomp_data.
        const NUMBER: u32 = 0;
        const MACHINE: u32 = 4;
        const ARGUMENTS: u32 = 16;
        let line = |code: u32, jt: u8, jf: u8, k: u32| libc::sock_filter {
            code: code as u16,
            jt,
            jf,
            k,
        };
        let mut lines = vec![
            line(LOAD, 0, 0, MACHINE),
            line(JUMP | libc::BPF_JEQ, 1, 0, ARCHITECTURE),
            line(RETURN, 0, 0, ALLOW),
        ];
        for rule in &self.rules {
            // Lines from the argument's test to the answer, which a number out of range skips.
            let rest = if rule.when == When::Always { 1 } else { 3 };
            lines.push(line(LOAD, 0, 0, NUMBER));
            lines.push(line(JUMP | libc::BPF_JGE, 0, rest + 1, rule.first));
            lines.push(line(JUMP | libc::BPF_JGT, rest, 0, rule.last));
            let argument = |index: u8| line(LOAD, 0, 0, ARGUMENTS + 8 * u32::from(index));
            let test = match rule.when {
                When::Always => None,
                When::Bits(index, bits) => Some((index, line(JUMP | libc::BPF_JSET, 0, 1, bits))),
                When::Is(index, value) => Some((index, line(JUMP | libc::BPF_JEQ, 0, 1, value))),
                When::AtLeast(index, value) => {
                    Some((index, line(JUMP | libc::BPF_JGE, 0, 1, value)))
                }
                When::IsNot(index, value) => Some((index, line(JUMP | libc::BPF_JEQ, 1, 0, value))),
            };
            if let Some((index, test)) = test {
                lines.extend([argument(index), test]);
            }
            lines.push(line(RETURN, 0, 0, answer(rule)));
        }
        lines.push(line(RETURN, 0, 0, ALLOW));
        lines
    }
}

/// A call that a watched child is about to make.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Asked {
    /// Its number (`libc::SYS_…`).
    pub call: libc::c_long,
    /// Its arguments.
    pub arguments: [u64; 6],
}

/// What becomes of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// It happens.
    Go,
    /// It does not happen; its caller sees this error number.
    Fail(i32),
    /// It does not happen; its caller sees this result.
    Return(i64),
    /// The process is killed before it.
    Kill,
}

/// struct seccomp_notif.
#[repr(C)]
#[derive(Default)]
struct Question {
    id: u64,
    pid: u32,
    flags: u32,
    call: i32,
    machine: u32,
    at: u64,
    arguments: [u64; 6],
}

/// struct seccomp_notif_resp.
#[repr(C)]
struct Reply {
    id: u64,
    value: i64,
    error: i32,
    flags: u32,
}

const RECEIVE: libc::c_ulong = 0xc050_2100;
const SEND: libc::c_ulong = 0xc018_2101;

/// A number that parent and child share.
struct Shared(*mut AtomicI32);

impl Shared {
    fn new() -> Shared {
        // SAFETY: a fresh mapping, zeroed, aligned to a page and shared with children forked later.
        let at = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                4096,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        assert!(at != libc::MAP_FAILED, "no memory for one page");
        Shared(at.cast())
    }

    fn cell(&self) -> &AtomicI32 {
        // SAFETY: mapped until drop, and only accessed atomically.
        unsafe { &*self.0 }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `new`; no reference outlives `self`.
        unsafe { libc::munmap(self.0.cast(), 4096) };
    }
}

impl Kernel {
    /// Runs `work` in a forked child and asks `decide` about each listed call of it, until it ends,
    /// at most `timeout`. `None` where the kernel cannot do that (before Linux 5.6, or forbidden).
    pub fn watch(
        &self,
        work: impl FnOnce() -> i32,
        decide: &mut dyn FnMut(&Asked) -> Answer,
        timeout: Duration,
    ) -> Option<Ended> {
        const NEW_LISTENER: libc::c_ulong = 8;
        // 0: not yet; the descriptor plus one; or minus the error number.
        let shared = Shared::new();
        let child = Child::run(|| {
            let listener = self.install(NEW_LISTENER, |_| ASK_THE_WATCHER);
            let told = match listener {
                Ok(number) => i32::try_from(number).unwrap_or(i32::MAX - 1) + 1,
                Err(errno) => -errno.max(1),
            };
            shared.cell().store(told, Ordering::SeqCst);
            if told < 0 { 0 } else { work() }
        });
        let deadline = Deadline::after(timeout);
        let mut attempt = 0;
        let told = loop {
            let told = shared.cell().load(Ordering::SeqCst);
            if told != 0 || deadline.passed() {
                break told;
            }
            orcheck_io::errno::backoff(attempt, deadline);
            attempt += 1;
        };
        let listener = (told > 0)
            .then(|| take_descriptor(&child, told - 1))
            .flatten()?;
        serve(&listener, &child, decide, deadline);
        // From now on nobody answers: what is still asked for fails at once.
        drop(listener);
        Some(child.wait(deadline.left()))
    }
}

fn take_descriptor(child: &Child, number: i32) -> Option<OwnedFd> {
    let pid = rustix::process::Pid::from_raw(child.id())?;
    let handle = pidfd_open(pid, PidfdFlags::empty()).ok()?;
    pidfd_getfd(&handle, number, PidfdGetfdFlags::empty()).ok()
}

/// Answers until the child is gone or the time is over.
fn serve(
    listener: &OwnedFd,
    child: &Child,
    decide: &mut dyn FnMut(&Asked) -> Answer,
    deadline: Deadline,
) {
    const GO: u32 = 1;
    while !deadline.passed() {
        let slice = Timespec {
            tv_sec: 0,
            tv_nsec: 20_000_000,
        };
        let mut entries = [PollFd::new(listener, PollFlags::IN)];
        let ready = poll(&mut entries, Some(&slice)).unwrap_or(0);
        let found = entries[0].revents();
        if found.contains(PollFlags::HUP) && !found.contains(PollFlags::IN) {
            return;
        }
        if ready == 0 || !found.contains(PollFlags::IN) {
            // Kernels before 5.9 do not tell of the end.
            if child.has_ended() {
                return;
            }
            continue;
        }
        let mut question = Question::default();
        // SAFETY: the kernel fills exactly the structure of that size, which was zeroed as it
        // demands.
        let received =
            unsafe { libc::ioctl(listener.as_raw_fd(), RECEIVE as _, &raw mut question) };
        if received != 0 {
            continue; // the caller was killed meanwhile
        }
        let asked = Asked {
            call: question.call.into(),
            arguments: question.arguments,
        };
        let (value, error, flags) = match decide(&asked) {
            Answer::Go => (0, 0, GO),
            Answer::Fail(errno) => (0, -errno, 0),
            Answer::Return(value) => (value, 0, 0),
            Answer::Kill => {
                child.kill();
                return;
            }
        };
        let reply = Reply {
            id: question.id,
            value,
            error,
            flags,
        };
        // SAFETY: the kernel reads exactly the structure of that size. It fails only when the
        // caller is gone.
        unsafe { libc::ioctl(listener.as_raw_fd(), SEND as _, &raw const reply) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether a file can be cut to this length, as an error number.
    fn truncate(len: i64) -> i32 {
        // SAFETY: descriptor -1 is never open; the call takes integers only.
        let done = unsafe { libc::ftruncate(-1, len) };
        if done == 0 { 0 } else { last_errno() }
    }

    fn in_child(kernel: &Kernel, work: impl FnOnce() -> i32) -> Ended {
        Child::run(|| match kernel.apply() {
            Ok(()) => work(),
            Err(errno) => 200 + errno,
        })
        .wait(Duration::from_secs(20))
    }

    // Breaks if: a jump of the program is one line too short or too long.
    #[test]
    fn each_condition_refuses_what_it_says_and_nothing_else() {
        let call = libc::SYS_ftruncate;
        let cases: [(When, &[i64], &[i64]); 5] = [
            (When::Always, &[0, 7], &[]),
            (When::Bits(1, 6), &[2, 4, 7], &[0, 1, 8]),
            (When::Is(1, 7), &[7], &[6, 8]),
            (When::AtLeast(1, 7), &[7, 100], &[0, 6]),
            (When::IsNot(1, 7), &[0, 8], &[7]),
        ];
        for (when, refused, allowed) in cases {
            // Surrounded by others, so that jumps over them are seen.
            let kernel = Kernel::new()
                .without(libc::SYS_mlockall, When::Is(0, 5), libc::EDOM)
                .without(call, when, libc::EXDEV)
                .without(libc::SYS_mlockall, When::Always, libc::EDOM);
            let ended = in_child(&kernel, || {
                let wrong = refused.iter().any(|&len| truncate(len) != libc::EXDEV)
                    || allowed.iter().any(|&len| truncate(len) == libc::EXDEV);
                i32::from(wrong)
            });
            assert_eq!(ended, Ended::Exited(0), "{when:?}");
        }
    }

    // Breaks if: a request or flag that came after 4.18 is left out of `linux_4_18`.
    #[test]
    fn linux_4_18_has_no_later_call() {
        let ended = in_child(&Kernel::linux_4_18(), || {
            let refused = orcheck_io::machine::kernel_features()
                .into_iter()
                .filter(|probe| !probe.available)
                .map(|probe| probe.name);
            let expected = [
                "userfaultfd",
                "PAGEMAP_SCAN",
                "MADV_POPULATE_WRITE",
                "openat2",
                "close_range",
                "io_uring",
            ];
            i32::from(refused.ne(expected))
        });
        assert_eq!(ended, Ended::Exited(0));
    }

    #[test]
    fn a_watched_child_gets_the_answers() {
        let kernel = Kernel::new().without(libc::SYS_ftruncate, When::Always, 0);
        let mut asked = Vec::new();
        let ended = kernel.watch(
            || {
                let found = [truncate(1), truncate(2), truncate(3)];
                i32::from(found != [libc::EBADF, libc::ESTALE, 0])
            },
            &mut |call| {
                asked.push(call.arguments[1]);
                match call.arguments[1] {
                    2 => Answer::Fail(libc::ESTALE),
                    3 => Answer::Return(0),
                    _ => Answer::Go,
                }
            },
            Duration::from_secs(20),
        );
        if ended.is_none() {
            println!(
                "SKIPPED: this kernel lets no process watch another's system calls (it needs Linux 5.6)"
            );
            return;
        }
        assert_eq!((ended, asked), (Some(Ended::Exited(0)), vec![1, 2, 3]));
        let ended = kernel.watch(
            || truncate(1),
            &mut |_| Answer::Kill,
            Duration::from_secs(20),
        );
        assert_eq!(ended, Some(Ended::Signaled(9)));
    }
}
