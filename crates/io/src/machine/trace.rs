//! Runs a command and watches how it and everything it starts write files.
//!
//! How: a seccomp filter makes the kernel stop a traced thread (`ptrace`) at the calls that write,
//! sync or shorten files, and at no others. Where a call wrote is read from `/proc` when it has
//! returned, so descriptors that were duplicated, inherited or passed on need no book-keeping. No
//! privilege is needed; programs with the set-user-ID bit run without it.
//!
//! Invariants:
//! 1. What the command does, its output and its exit status are as without a watcher; only slower.
//! 2. The command never outlives its watcher.
//! 3. Only calls that succeeded are told, and only those on regular files.
//!
//! Survives: threads, forks and executed programs; stops by signals; processes that vanish. Not
//! here: files that are written through a mapping or by io_uring (the second is noted), what the
//! calls mean (the program that asks).
#![allow(unsafe_code)]

use crate::clock::{Clock, SystemClock};
use crate::descriptor;
use crate::errno::{last_errno, os_error, rustix_error};
use crate::machine::kernel_at_least;
use libc::{c_int, c_long, pid_t};
use orcheck_format::{Error, Result};
use std::collections::BTreeMap;
use std::ffi::{CString, OsStr};
use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::ptr::null_mut;
use std::time::Duration;

/// A call that a watched process made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Watched {
    /// Number of the process.
    pub process: u32,
    /// When it began, since the command was started.
    pub at: Duration,
    /// How long it took.
    pub took: Duration,
    /// The file.
    pub path: PathBuf,
    /// What it did.
    pub what: Effect,
}

/// What a call did to a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// Wrote bytes.
    Wrote {
        /// Where they begin.
        offset: u64,
        /// How many.
        len_bytes: u64,
    },
    /// Synced it.
    Synced,
    /// Changed its length.
    Resized {
        /// To this.
        len_bytes: u64,
    },
}

/// How a watched command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WatchedEnd {
    /// Its exit status, or 128 and the number of the signal that ended it.
    pub status: u8,
    /// Some process used io_uring, whose writes are not seen.
    pub uring: bool,
}

const TRACED: &[c_long] = &[
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_pwrite64,
    libc::SYS_pwritev,
    libc::SYS_pwritev2,
    libc::SYS_copy_file_range,
    libc::SYS_sendfile,
    libc::SYS_splice,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_sync_file_range,
    libc::SYS_ftruncate,
    libc::SYS_io_uring_setup,
];

const OPTIONS: c_int = libc::PTRACE_O_TRACESECCOMP
    | libc::PTRACE_O_TRACESYSGOOD
    | libc::PTRACE_O_TRACEFORK
    | libc::PTRACE_O_TRACEVFORK
    | libc::PTRACE_O_TRACECLONE
    | libc::PTRACE_O_TRACEEXEC
    | libc::PTRACE_O_EXITKILL;

#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 0xc000_00b7;

/// Runs a command, tells each call that writes, syncs or shortens a file, and returns when the
/// command and all that it started have ended. Call it on a thread without other children.
///
/// # Errors
/// NotFound or Unavailable if the command cannot be started or watched; Unsupported by the kernel.
pub fn watch_writes(
    command: &[impl AsRef<OsStr>],
    told: &mut dyn FnMut(Watched),
) -> Result<WatchedEnd> {
    // Breaks if: this is not asked; an older kernel does not tell what a call is, and a program
    // would seem to write nothing.
    if !kernel_at_least(5, 3) {
        let text = "watching a command needs Linux 5.3 (PTRACE_GET_SYSCALL_INFO)";
        return Err(Error::unsupported(text).next("watch it on a newer machine"));
    }
    let (root, said) = start(command)?;
    // The command decides what an interrupt of both means.
    let _undisturbed = Undisturbed::new();
    let mut watch = Watch {
        begun: SystemClock.now(),
        pending: BTreeMap::new(),
        processes: BTreeMap::new(),
        uring: false,
    };
    let mut status = None;
    loop {
        let (thread, found) = match wait_any() {
            Ok(next) => next,
            Err(libc::EINTR) => continue,
            // Nobody is left.
            Err(_) => break,
        };
        if libc::WIFEXITED(found) || libc::WIFSIGNALED(found) {
            watch.pending.remove(&thread);
            watch.processes.remove(&thread);
            if thread == root {
                status = Some(match libc::WIFEXITED(found) {
                    true => libc::WEXITSTATUS(found) as u8,
                    false => 128 + libc::WTERMSIG(found) as u8,
                });
            }
        } else if libc::WIFSTOPPED(found) {
            watch.stopped(thread, found, told);
        }
    }
    let mut errno = [0; 4];
    if rustix::io::read(&said, &mut errno).is_ok_and(|count| count == errno.len()) {
        let program = command.first().map(|word| word.as_ref().to_string_lossy());
        let program = program.unwrap_or_default();
        return Err(os_error(
            i32::from_le_bytes(errno),
            format_args!("start program {program}"),
        ));
    }
    let uring = watch.uring;
    match status {
        Some(status) => Ok(WatchedEnd { status, uring }),
        None => Err(Error::internal("the watched command ended unseen")),
    }
}

/// While it lives, this process ignores what a terminal sends to all of its programs.
struct Undisturbed([libc::sighandler_t; 2]);

const INTERRUPTS: [c_int; 2] = [libc::SIGINT, libc::SIGQUIT];

impl Undisturbed {
    fn new() -> Self {
        // SAFETY: no handler runs.
        Self(INTERRUPTS.map(|signal| unsafe { libc::signal(signal, libc::SIG_IGN) }))
    }
}

impl Drop for Undisturbed {
    fn drop(&mut self) {
        for (signal, before) in INTERRUPTS.into_iter().zip(self.0) {
            // SAFETY: what was there before.
            unsafe { libc::signal(signal, before) };
        }
    }
}

/// Calls between their begin and their end, by thread.
struct Watch {
    begun: Duration,
    pending: BTreeMap<pid_t, Pending>,
    /// The process of each thread.
    processes: BTreeMap<pid_t, u32>,
    uring: bool,
}

#[derive(Clone, Copy)]
struct Pending {
    number: c_long,
    arguments: [u64; 6],
    at: Duration,
}

impl Watch {
    fn stopped(&mut self, thread: pid_t, found: c_int, told: &mut dyn FnMut(Watched)) {
        let signal = libc::WSTOPSIG(found);
        let event = found >> 16;
        match event {
            libc::PTRACE_EVENT_SECCOMP => {
                if let Some(Info::Begins(number, arguments)) = info_of(thread) {
                    let at = SystemClock.now();
                    let pending = Pending {
                        number,
                        arguments,
                        at,
                    };
                    self.pending.insert(thread, pending);
                }
                resume(libc::PTRACE_SYSCALL, thread, 0);
            }
            // A stop by a signal: leave it stopped; the kernel reports when it continues.
            libc::PTRACE_EVENT_STOP if signal != libc::SIGTRAP => {
                resume(libc::PTRACE_LISTEN, thread, 0);
            }
            0 if signal == libc::SIGTRAP | 0x80 => {
                if let (Some(pending), Some(Info::Ends(result))) =
                    (self.pending.remove(&thread), info_of(thread))
                {
                    self.ended(thread, pending, result, told);
                }
                resume(libc::PTRACE_CONT, thread, 0);
            }
            0 => resume(libc::PTRACE_CONT, thread, signal),
            _ => resume(libc::PTRACE_CONT, thread, 0),
        }
    }

    fn ended(&mut self, thread: pid_t, call: Pending, result: i64, told: &mut dyn FnMut(Watched)) {
        let took = SystemClock.now().saturating_sub(call.at);
        if call.number == libc::SYS_io_uring_setup {
            self.uring |= result >= 0;
            return;
        }
        let Ok(result) = u64::try_from(result) else {
            return;
        };
        let [first, second, third, fourth, _, sixth] = call.arguments;
        let descriptor = match call.number {
            libc::SYS_copy_file_range | libc::SYS_splice => third,
            _ => first,
        } as c_int;
        let appends = || {
            let flags = info_line(thread, descriptor, "flags:");
            let flags = flags.and_then(|flags| i32::from_str_radix(&flags, 8).ok());
            flags.is_some_and(|flags| flags & libc::O_APPEND != 0)
        };
        let at_end = || {
            let found = fs::metadata(format!("/proc/{thread}/fd/{descriptor}"));
            found.ok()?.len().checked_sub(result)
        };
        let at_position = || position_of(thread, descriptor)?.checked_sub(result);
        let offset = match call.number {
            libc::SYS_fsync | libc::SYS_fdatasync | libc::SYS_sync_file_range => None,
            libc::SYS_ftruncate => None,
            // Linux appends wherever such a call wants to write.
            libc::SYS_pwrite64 | libc::SYS_pwritev | libc::SYS_pwritev2 if appends() => at_end(),
            libc::SYS_pwritev2 if sixth & libc::RWF_APPEND as u64 != 0 => at_end(),
            libc::SYS_pwrite64 | libc::SYS_pwritev => Some(fourth),
            // -1: at the position, as writev().
            libc::SYS_pwritev2 if fourth != u64::MAX => Some(fourth),
            libc::SYS_copy_file_range | libc::SYS_splice if fourth != 0 => {
                word_at(thread, fourth).and_then(|after| after.checked_sub(result))
            }
            _ => at_position(),
        };
        let what = match (call.number, offset) {
            (libc::SYS_fsync | libc::SYS_fdatasync | libc::SYS_sync_file_range, _) => {
                Effect::Synced
            }
            (libc::SYS_ftruncate, _) => Effect::Resized { len_bytes: second },
            (_, Some(offset)) if result > 0 => Effect::Wrote {
                offset,
                len_bytes: result,
            },
            _ => return,
        };
        let Some(path) = regular_file(thread, descriptor) else {
            return;
        };
        let process = *(self.processes.entry(thread)).or_insert_with(|| process_of(thread));
        told(Watched {
            process,
            at: call.at.saturating_sub(self.begun),
            took,
            path,
            what,
        });
    }
}

/// Variables by which launchers tell a process its rank.
const RANK_VARIABLES: [&str; 4] = [
    "OMPI_COMM_WORLD_RANK=",
    "PMIX_RANK=",
    "PMI_RANK=",
    "SLURM_PROCID=",
];

/// The rank of a process, by its environment.
#[must_use]
pub fn rank_of(process: u32) -> Option<u32> {
    let bytes = fs::read(format!("/proc/{process}/environ")).ok()?;
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let value = RANK_VARIABLES.iter().find_map(|name| {
        let mut words = text.split('\0');
        words.find_map(|word| word.strip_prefix(name))
    });
    value?.parse().ok()
}

/// The path of a descriptor of a regular file.
fn regular_file(thread: pid_t, descriptor: c_int) -> Option<PathBuf> {
    let link = format!("/proc/{thread}/fd/{descriptor}");
    let regular = fs::metadata(&link).is_ok_and(|found| found.is_file());
    regular.then(|| fs::read_link(link).ok()).flatten()
}

/// The position of a descriptor.
fn position_of(thread: pid_t, descriptor: c_int) -> Option<u64> {
    info_line(thread, descriptor, "pos:")?.parse().ok()
}

/// What the kernel says of a descriptor.
fn info_line(thread: pid_t, descriptor: c_int, begins: &str) -> Option<String> {
    let text = fs::read_to_string(format!("/proc/{thread}/fdinfo/{descriptor}")).ok()?;
    let mut lines = text.lines();
    let value = lines.find_map(|line| line.strip_prefix(begins))?;
    Some(value.trim().to_owned())
}

/// The process that a thread belongs to.
fn process_of(thread: pid_t) -> u32 {
    let text = fs::read_to_string(format!("/proc/{thread}/status")).unwrap_or_default();
    let mut lines = text.lines();
    let group = lines.find_map(|line| line.strip_prefix("Tgid:"));
    let group = group.and_then(|group| group.trim().parse().ok());
    group.unwrap_or(thread as u32)
}

/// A word in the memory of a stopped thread.
fn word_at(thread: pid_t, address: u64) -> Option<u64> {
    let mut word = 0u64;
    let local = libc::iovec {
        iov_base: (&raw mut word).cast(),
        iov_len: 8,
    };
    let remote = libc::iovec {
        iov_base: std::ptr::without_provenance_mut(address as usize),
        iov_len: 8,
    };
    // SAFETY: eight bytes of our own are written; the other address is the kernel's to check.
    let read =
        unsafe { libc::process_vm_readv(thread, &raw const local, 1, &raw const remote, 1, 0) };
    (read == 8).then_some(word)
}

/// What the kernel says of a stop at a call.
enum Info {
    Begins(c_long, [u64; 6]),
    Ends(i64),
}

fn info_of(thread: pid_t) -> Option<Info> {
    // SAFETY: plain data.
    let mut info: libc::ptrace_syscall_info = unsafe { std::mem::zeroed() };
    let size = size_of::<libc::ptrace_syscall_info>();
    // SAFETY: the kernel writes at most `size` bytes there.
    let got = unsafe { libc::ptrace(libc::PTRACE_GET_SYSCALL_INFO, thread, size, &raw mut info) };
    if got <= 0 {
        return None;
    }
    match info.op {
        libc::PTRACE_SYSCALL_INFO_SECCOMP => {
            // SAFETY: the kind of stop says which member it is.
            let begins = unsafe { info.u.seccomp };
            Some(Info::Begins(begins.nr as c_long, begins.args))
        }
        libc::PTRACE_SYSCALL_INFO_EXIT => {
            // SAFETY: as above.
            Some(Info::Ends(unsafe { info.u.exit.sval }))
        }
        _ => None,
    }
}

/// Lets a thread continue; nothing happens if it has vanished.
fn resume(how: libc::c_uint, thread: pid_t, signal: c_int) {
    // SAFETY: no memory is touched.
    unsafe { libc::ptrace(how, thread, 0, signal as libc::c_long) };
}

/// The next stop or end of what this thread started or watches.
fn wait_any() -> std::result::Result<(pid_t, c_int), c_int> {
    let mut status = 0;
    // SAFETY: the kernel writes the status.
    match unsafe { libc::waitpid(-1, &raw mut status, libc::__WALL | libc::__WNOTHREAD) } {
        -1 => Err(last_errno()),
        thread => Ok((thread, status)),
    }
}

/// Starts the command, stopped and watched, and lets it continue. Returns also what gets the error
/// if it cannot become the command.
fn start(command: &[impl AsRef<OsStr>]) -> Result<(pid_t, OwnedFd)> {
    let words = command
        .iter()
        .map(|word| CString::new(word.as_ref().as_bytes()));
    let words = words.collect::<std::result::Result<Vec<_>, _>>();
    let words = words.map_err(|_| Error::invalid("a word of the command has a zero byte"))?;
    let mut pointers: Vec<_> = words.iter().map(|word| word.as_ptr()).collect();
    pointers.push(std::ptr::null());
    let Some(program) = words.first() else {
        return Err(Error::invalid("the command is empty"));
    };
    let filter = filter();
    let filter = libc::sock_fprog {
        len: filter.len() as u16,
        filter: filter.as_ptr().cast_mut(),
    };
    let (said, says) = descriptor::one_way().map_err(|errno| rustix_error(errno, "make a pipe"))?;
    // SAFETY: the child calls only what may be called between fork and exec, on memory that was
    // prepared before.
    let child = unsafe { libc::fork() };
    match child {
        -1 => Err(os_error(last_errno(), format_args!("start a process"))),
        0 => {
            // SAFETY: as above; the pointers live until the process becomes another program.
            unsafe { become_watched(program, &pointers, &filter, says.as_raw_fd()) }
        }
        child => {
            seize(child)?;
            Ok((child, said))
        }
    }
}

/// # Safety
/// In a child after fork; `pointers` end with NULL.
unsafe fn become_watched(
    program: &CString,
    pointers: &[*const libc::c_char],
    filter: &libc::sock_fprog,
    says: c_int,
) -> ! {
    // SAFETY: as the caller promises.
    unsafe {
        // This program ignores it, and what it starts would take that over.
        libc::signal(libc::SIGPIPE, libc::SIG_DFL);
        // Until it is watched: nobody else would continue it.
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0);
        libc::raise(libc::SIGSTOP);
        libc::prctl(libc::PR_SET_PDEATHSIG, 0, 0, 0, 0);
        let ready = libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, filter) == 0;
        if ready {
            libc::execvp(program.as_ptr(), pointers.as_ptr());
        }
        let errno = last_errno().to_le_bytes();
        libc::write(says, errno.as_ptr().cast(), errno.len());
        libc::_exit(1)
    }
}

fn seize(child: pid_t) -> Result<()> {
    let failed = |what: &str| {
        let error = os_error(last_errno(), format_args!("{what}"));
        // SAFETY: our own child, which has done nothing yet.
        unsafe {
            libc::kill(child, libc::SIGKILL);
            libc::waitpid(child, null_mut(), 0);
        }
        Err(error)
    };
    let mut status = 0;
    // SAFETY: the kernel writes the status.
    if unsafe { libc::waitpid(child, &raw mut status, libc::WUNTRACED) } != child {
        return failed("wait for the command");
    }
    // SAFETY: no memory is touched.
    if unsafe { libc::ptrace(libc::PTRACE_SEIZE, child, 0, OPTIONS as libc::c_long) } != 0 {
        return failed("watch the command (ptrace)");
    }
    // SAFETY: as above.
    unsafe { libc::kill(child, libc::SIGCONT) };
    Ok(())
}

/// Asks the tracer at the traced calls, and lets all others happen.
fn filter() -> Vec<libc::sock_filter> {
    let statement = |code: u32, k: u32| libc::sock_filter {
        code: code as u16,
        jt: 0,
        jf: 0,
        k,
    };
    let load = |offset: u32| statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, offset);
    let ends = |answer: u32| statement(libc::BPF_RET | libc::BPF_K, answer);
    let unless = |value: u32, skip: u8| libc::sock_filter {
        code: (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16,
        jt: 0,
        jf: skip,
        k: value,
    };
    // Calls of another architecture (32 bit) are not seen.
    let mut filter = vec![load(4), unless(ARCHITECTURE, 1), load(0)];
    filter[1].jf = (1 + 2 * TRACED.len()) as u8;
    for number in TRACED {
        filter.push(unless(*number as u32, 1));
        filter.push(ends(libc::SECCOMP_RET_TRACE));
    }
    filter.push(ends(libc::SECCOMP_RET_ALLOW));
    filter
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // tests fail by a panic
mod tests {
    use super::*;
    use orcheck_testing::Scratch;

    fn watched(text: &str) -> (Vec<Watched>, WatchedEnd) {
        let mut found = Vec::new();
        let end = watch_writes(&["sh", "-c", text], &mut |one| found.push(one)).unwrap();
        (found, end)
    }

    // Breaks if: positions are not those of the descriptor, or another process's writes are missed.
    #[test]
    fn writes_are_told_with_their_places() {
        let scratch = Scratch::new("watched");
        let dir = scratch.path().display();
        let (found, end) = watched(&format!(
            "exec 3> {dir}/a; printf 12345 >&3; (printf 678 >&3); printf 9 >> {dir}/a; \
             dd if=/dev/zero of={dir}/b bs=100 count=2 seek=5 conv=fsync 2> /dev/null; \
             printf none | cat > /dev/null; exit 3"
        ));
        assert_eq!(end.status, 3);
        let of = |name: &str| -> Vec<Effect> {
            let ones = found.iter().filter(|one| one.path.ends_with(name));
            ones.map(|one| one.what).collect()
        };
        let wrote = |offset, len_bytes| Effect::Wrote { offset, len_bytes };
        assert_eq!(of("a"), [wrote(0, 5), wrote(5, 3), wrote(8, 1)]);
        let resized = Effect::Resized { len_bytes: 500 };
        assert_eq!(
            of("b"),
            [resized, wrote(500, 100), wrote(600, 100), Effect::Synced]
        );
        assert_eq!(found.len(), 7);
        let processes: std::collections::BTreeSet<u32> =
            found.iter().map(|one| one.process).collect();
        assert!(processes.len() >= 2, "{processes:?}");
        assert!(found.windows(2).all(|two| two[0].at <= two[1].at));
    }

    // Breaks if: a signal is swallowed, or a command that is not there hangs.
    #[test]
    fn a_watched_command_ends_as_without() {
        assert_eq!(watched("kill -TERM $$").1.status, 128 + 15);
        // Breaks if: SIGPIPE stays ignored; the loop never ends.
        let text = "while :; do echo x 2> /dev/null; done | head -1 > /dev/null; exit 4";
        assert_eq!(watched(text).1.status, 4);
        assert_eq!(
            watched("trap 'exit 7' USR1; kill -USR1 $$; sleep 5")
                .1
                .status,
            7
        );
        let missing = watch_writes(&["/nowhere/program"], &mut |_| ()).unwrap_err();
        assert_eq!(missing.kind(), orcheck_format::ErrorKind::NotFound);
        assert!(missing.message().contains("/nowhere/program"));
    }
}
