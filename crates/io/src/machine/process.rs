//! Starts programs that stay, and makes a process independent of its starter.
//!
//! Invariants:
//! 1. A started program is not a child of ours when this returns, so nobody has to wait for its
//!    end: it goes to the background by itself, and its starter ends.
//! 2. It gets none of our standard streams.
//!
//! Not here: which program, and when it is ready.

#![allow(unsafe_code)]

use crate::clock::Deadline;
use crate::descriptor::away_from_streams;
use crate::errno::{backoff, os_error, rustix_error};
use crate::machine::facts::pin_current_thread;
use crate::poll::poll_one;
use orcheck_format::{Error, Result};
use rustix::event::PollFlags;
use rustix::process::{Resource, getrlimit, setrlimit};
use std::ffi::CStr;
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// The name of an agent's process in the list of processes.
pub const AGENT_NAME: &CStr = c"orcheck-agent";
/// How much of a failing program's output is kept.
const SAID_BYTES: u64 = 4096;

/// Runs a program that goes to the background, and waits, at most `timeout`, until it has.
///
/// # Errors
/// NotFound if the program does not exist; Unavailable if it fails, with its output, or does not
/// return.
pub fn start_detached(program: &Path, arguments: &[&str], timeout: Duration) -> Result<()> {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null());
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = away_from_streams(|| command.spawn()).map_err(|error| {
        let what = format_args!("start program {}", program.display());
        match error.raw_os_error() {
            Some(errno @ (libc::ENOENT | libc::EACCES | libc::EMFILE)) => os_error(errno, what),
            _ => Error::unavailable(format!("{what} failed: {error}")),
        }
    })?;
    let deadline = Deadline::after(timeout);
    let mut attempt = 0;
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if !deadline.passed() => {
                backoff(attempt, deadline);
                attempt += 1;
            }
            _ => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(Error::unavailable(format!(
                    "program {} did not go to the background within {} s",
                    program.display(),
                    timeout.as_secs_f64()
                )));
            }
        }
    };
    if status.success() {
        return Ok(());
    }
    let mut said = Vec::new();
    if let Some(stderr) = child.stderr.take() {
        // Whatever can be read of it is enough.
        let _ = stderr.take(SAID_BYTES).read_to_end(&mut said);
    }
    Err(Error::unavailable(format!(
        "program {} failed ({status}): {}",
        program.display(),
        String::from_utf8_lossy(&said).trim()
    )))
}

/// The resources whose limits a process that stays takes over from its starter: as the kernel, and
/// as a user names them.
const LIMITED: [(Resource, &str); 7] = [
    (Resource::Nofile, "open files (ulimit -n)"),
    (Resource::Fsize, "the length of files (ulimit -f)"),
    (Resource::As, "addresses (ulimit -v)"),
    (Resource::Data, "data (ulimit -d)"),
    (Resource::Memlock, "locked memory (ulimit -l)"),
    (
        Resource::Nproc,
        "processes and threads of the user (ulimit -u)",
    ),
    (Resource::Cpu, "processor time (ulimit -t)"),
];

/// Raises the limits of this process as far as its user may. For a program of ours: a library must
/// not do this, because a program that waits with `select` would break.
pub fn raise_limits() {
    for (resource, _) in LIMITED {
        let mut limits = getrlimit(resource);
        limits.current = limits.maximum;
        // If this is refused, whoever needs more of it reports it.
        let _ = setrlimit(resource, limits);
    }
}

/// How many descriptors this process may have, once it has raised its limit.
#[must_use]
pub fn most_descriptors() -> usize {
    let most = getrlimit(Resource::Nofile).maximum;
    most.map_or(usize::MAX, |most| {
        usize::try_from(most).unwrap_or(usize::MAX)
    })
}

/// A limit of another process that is lower than ours, in words; `None` if there is none, or if
/// nothing can be learned of that process.
#[must_use]
pub fn lower_limit(pid: i32) -> Option<String> {
    LIMITED.iter().find_map(|&(resource, name)| {
        let mut theirs = libc::rlimit {
            rlim_cur: 0,
            rlim_max: 0,
        };
        // SAFETY: no new limit is given, and the pointer is to a live variable.
        let asked = unsafe {
            libc::prlimit(
                pid,
                resource as libc::__rlimit_resource_t,
                std::ptr::null(),
                &raw mut theirs,
            )
        };
        let ours = getrlimit(resource).current.unwrap_or(libc::RLIM_INFINITY);
        (asked == 0 && theirs.rlim_cur < ours).then(|| {
            let ours = match ours {
                libc::RLIM_INFINITY => "none".to_owned(),
                limit => limit.to_string(),
            };
            format!("limit of {name}: {}, ours: {ours}", theirs.rlim_cur)
        })
    })
}

/// Closes every descriptor except the standard streams. For the beginning of a program, before it
/// opens anything: descriptors that its starter leaked would otherwise stay open as long as the
/// program runs.
pub fn close_inherited() {
    // SAFETY: closes descriptors that nothing in this process knows, see above.
    let closed = unsafe { libc::syscall(libc::SYS_close_range, 3u32, u32::MAX, 0) };
    if closed == 0 {
        return;
    }
    // Before Linux 5.9.
    let Ok(listed) = std::fs::read_dir("/proc/self/fd") else {
        return;
    };
    let numbers = listed
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    for number in numbers.collect::<Vec<i32>>() {
        if number > 2 {
            // SAFETY: as above; the descriptor of the listing itself is closed already.
            unsafe { libc::close(number) };
        }
    }
}

/// Leaves the starter's terminal, process group and processors: signals and bindings meant for the
/// starter are not for this process.
pub fn leave_starter() {
    // A process that leads its group stays in it.
    let _ = rustix::process::setsid();
    let all: Vec<u32> = (0..1024).collect();
    let _ = rustix::thread::set_name(AGENT_NAME);
    // The kernel keeps those that the cgroup allows.
    let _ = pin_current_thread(&all);
}

/// Discards all further output.
pub fn silence() {
    let mut both = std::fs::OpenOptions::new();
    both.read(true).write(true);
    let Ok(nowhere) = away_from_streams(|| both.open("/dev/null")) else {
        return;
    };
    for stream in 0..=2 {
        // SAFETY: replaces a standard stream by another open file; its number stays what it is.
        unsafe { libc::dup2(nowhere.as_raw_fd(), stream) };
    }
}

/// Starts this program again with these arguments and waits, at most `timeout`, until it prints a
/// line that begins with `ready`. Returns that line.
///
/// # Errors
/// Unavailable, with its output, if it ends before; Unavailable if it prints nothing in time, and
/// it is then ended.
pub fn start_self(arguments: &[String], ready: &str, timeout: Duration) -> Result<String> {
    let failed =
        |error: std::io::Error| Error::unavailable(format!("starting in the background: {error}"));
    let program = std::env::current_exe().map_err(failed)?;
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = away_from_streams(|| command.spawn()).map_err(failed)?;
    let deadline = Deadline::after(timeout);
    let mut line = Vec::new();
    if let Some(mut stdout) = child.stdout.take() {
        let mut piece = [0; 256];
        while !line.contains(&b'\n') && line.len() < SAID_BYTES as usize {
            // Breaks if: it is read without polling; a child that hangs before it listens would be
            // waited for forever.
            if !poll_one(stdout.as_fd(), PollFlags::IN, deadline)
                .map_err(|errno| rustix_error(errno, "wait for a program in the background"))?
            {
                let _ = child.kill();
                let _ = child.wait();
                return Err(Error::unavailable(format!(
                    "starting in the background: nothing was said within {} s",
                    timeout.as_secs_f64()
                )));
            }
            match stdout.read(&mut piece).map_err(failed)? {
                0 => break,
                count => line.extend_from_slice(&piece[..count]),
            }
        }
    }
    if line.starts_with(ready.as_bytes()) {
        let line = line.split(|byte| *byte == b'\n').next();
        return Ok(String::from_utf8_lossy(line.unwrap_or_default()).into_owned());
    }
    let mut said = Vec::new();
    if let Some(stderr) = child.stderr.take() {
        let _ = stderr.take(SAID_BYTES).read_to_end(&mut said);
    }
    let _ = child.wait();
    Err(Error::unavailable(
        String::from_utf8_lossy(&said).trim().to_owned(),
    ))
}
