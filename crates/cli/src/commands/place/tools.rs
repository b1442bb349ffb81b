//! Runs the tools of a file system. The only place of this command where a process is started; tests replace it.
//!
//! Invariants:
//! 1. Every call has a deadline, after which the tool and what it started are killed.
//! 2. At most [`OUTPUT_BYTES`] of what a tool prints are kept.
//! 3. No shell: arguments reach the tool as they are.
//!
//! Not here: which tools, and what their output means.

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use orcheck_format::{Error, Result};
use orcheck_io::thread::spawn;
use orcheck_io::{Clock, SystemClock};
use rustix::process::{Pid, Signal, kill_process_group};

/// Longest run of a tool.
const LIMIT: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(2);
/// Most that is kept of what a tool prints: 10,000 servers in lines of 100 bytes.
const OUTPUT_BYTES: u64 = 1 << 20;

/// How a tool ended and what it printed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Said {
    /// Exit status; -1 when a signal ended it.
    pub code: i32,
    /// Standard output.
    pub out: String,
    /// Standard error.
    pub err: String,
}

/// Runs tools.
pub trait Tools {
    /// Runs a program to its end.
    ///
    /// # Errors
    /// NotFound where there is no such program; Unavailable when it does not end in time.
    fn run(&self, line: &[&str]) -> Result<Said>;

    /// The standard output of a program that must succeed.
    ///
    /// # Errors
    /// As [`Tools::run`]; Unavailable when it fails, with what it said.
    fn good(&self, line: &[&str]) -> Result<String> {
        let said = self.run(line)?;
        if said.code == 0 {
            return Ok(said.out);
        }
        Err(failed(line, &said))
    }
}

/// The error of a tool that failed.
pub fn failed(line: &[&str], said: &Said) -> Error {
    let told = if said.err.trim().is_empty() {
        &said.out
    } else {
        &said.err
    };
    let last: Vec<&str> = told
        .lines()
        .filter(|line| !line.trim().is_empty())
        .take(3)
        .collect();
    Error::unavailable(format!(
        "`{}` ended with {}: {}",
        line.join(" "),
        said.code,
        last.join("; ")
    ))
}

/// Real ones, as children of this process.
pub struct Children {
    clock: SystemClock,
}

impl Children {
    /// Ready to run.
    pub fn new() -> Children {
        Children {
            clock: SystemClock::new(),
        }
    }
}

impl Tools for Children {
    fn run(&self, line: &[&str]) -> Result<Said> {
        let (program, arguments) = line
            .split_first()
            .ok_or_else(|| Error::internal("a tool without a name"))?;
        let mut command = Command::new(program);
        command.args(arguments).env("LC_ALL", "C").process_group(0);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => Error::not_found(format!(
                "program {program} is not there"
            ))
            .next("install the client tools of the file system on this machine, or correct PATH"),
            _ => Error::unavailable(format!("program {program} cannot be started: {error}")),
        })?;
        let out = child.stdout.take().map(reader).transpose()?;
        let err = child.stderr.take().map(reader).transpose()?;
        let begun = self.clock.now();
        let status = loop {
            match child.try_wait() {
                Ok(Some(status)) => break Some(status),
                Ok(None) if self.clock.now().saturating_sub(begun) < LIMIT => {
                    self.clock.sleep(POLL)
                }
                _ => break None,
            }
        };
        // What it left behind holds the pipes open.
        if let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
            let _ = kill_process_group(group, Signal::KILL);
        }
        let _ = child.wait();
        let read = |thread: Option<std::thread::JoinHandle<String>>| {
            thread
                .and_then(|thread| thread.join().ok())
                .unwrap_or_default()
        };
        let (out, err) = (read(out), read(err));
        let Some(status) = status else {
            return Err(Error::unavailable(format!(
                "`{}` did not end within {} s and was killed",
                line.join(" "),
                LIMIT.as_secs()
            ))
            .next("see whether the file system answers at all (df, ls)"));
        };
        Ok(Said {
            code: status.code().unwrap_or(-1),
            out,
            err,
        })
    }
}

fn reader(mut pipe: impl Read + Send + 'static) -> Result<std::thread::JoinHandle<String>> {
    spawn("orcheck-tool", move || {
        let mut bytes = Vec::new();
        let _ = pipe.by_ref().take(OUTPUT_BYTES).read_to_end(&mut bytes);
        // The rest is not wanted, but a full pipe would stop the tool.
        let _ = std::io::copy(&mut pipe, &mut std::io::sink());
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use orcheck_format::ErrorKind;

    #[test]
    fn a_tool_says_what_it_has_to_say() {
        let tools = Children::new();
        let said = tools
            .run(&["sh", "-c", "echo a; echo b >&2; exit 3"])
            .unwrap();
        assert_eq!(
            (said.code, said.out.as_str(), said.err.as_str()),
            (3, "a\n", "b\n")
        );
        let error = tools
            .good(&["sh", "-c", "echo no rights >&2; exit 1"])
            .unwrap_err();
        assert!(
            error.message().contains("ended with 1: no rights"),
            "{error}"
        );
        let error = tools.run(&["orcheck-no-such-tool"]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        // More than is kept, and a child that stays: neither stops it.
        let said = tools
            .run(&["sh", "-c", "head -c 3000000 /dev/zero; sleep 100 & exit 0"])
            .unwrap();
        assert_eq!((said.code, said.out.len() as u64), (0, OUTPUT_BYTES));
    }
}
