//! Runs the tools of a file system. This is the only place of this command that starts a process;
//! tests replace it.
//!
//! Invariants:
//! 1. Every call has a deadline, after which the tool and everything it started are killed. A
//!    process that does not die of that, or has made itself independent, is left behind after a
//!    moment.
//! 2. At most [`OUTPUT_BYTES`] of a tool's output are kept.
//! 3. No shell is involved: arguments reach the tool unchanged.
//!
//! Not here: which tools, and the meaning of their output.

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use orcheck_format::{Error, Result};
use orcheck_io::clock::{Clock, SystemClock};
use orcheck_io::machine::thread::spawn;
use rustix::process::{Pid, Signal, kill_process_group};

/// Longest run of a tool.
const LIMIT: Duration = Duration::from_secs(60);
/// Longest wait for a killed tool, and for the rest of its output.
const MOMENT: Duration = Duration::from_secs(2);
const POLL: Duration = Duration::from_millis(2);
/// How much of a tool's output is kept: 10,000 servers in lines of 100 bytes.
const OUTPUT_BYTES: u64 = 1 << 20;

/// How a tool ended, and its output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Said {
    /// Exit status; -1 if a signal ended it.
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
    /// NotFound if there is no such program; Unavailable if it does not end in time.
    fn run(&self, line: &[&str]) -> Result<Said>;

    /// The standard output of a program that must succeed.
    ///
    /// # Errors
    /// As [`Tools::run`]; Unavailable if it fails, with its output.
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

/// Real tools, as children of this process.
pub struct Children {
    clock: SystemClock,
    limit: Duration,
}

impl Children {
    /// Ready to run.
    pub fn new() -> Children {
        Children {
            clock: SystemClock::new(),
            limit: LIMIT,
        }
    }

    /// How a child ended, if it does within the time.
    fn end_of(&self, child: &mut Child, limit: Duration) -> Option<ExitStatus> {
        let begun = self.clock.now();
        loop {
            match child.try_wait() {
                Ok(Some(status)) => return Some(status),
                Ok(None) if self.clock.now().saturating_sub(begun) < limit => {
                    self.clock.sleep(POLL);
                }
                _ => return None,
            }
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
        let status = self.end_of(&mut child, self.limit);
        // Processes that it left behind hold the pipes open.
        if let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
            let _ = kill_process_group(group, Signal::KILL);
        }
        if status.is_none() {
            // In the middle of a call that hangs it does not die; the wait ends here.
            let _ = self.end_of(&mut child, MOMENT);
        }
        let read = |text: Option<mpsc::Receiver<String>>| {
            text.and_then(|text| text.recv_timeout(MOMENT).ok())
        };
        let (out, err) = (read(out), read(err).unwrap_or_default());
        let Some(status) = status else {
            return Err(Error::unavailable(format!(
                "`{}` did not end within {} s and was killed",
                line.join(" "),
                self.limit.as_secs()
            ))
            .next("check whether the file system answers at all (df, ls)"));
        };
        let Some(out) = out else {
            return Err(Error::unavailable(format!(
                "`{}` ended, and a process that it left behind still holds its output",
                line.join(" ")
            ))
            .next("let the program close its output before it leaves others behind"));
        };
        Ok(Said {
            code: status.code().unwrap_or(-1),
            out,
            err,
        })
    }
}

/// The data from a pipe, once it is closed.
fn reader(mut pipe: impl Read + Send + 'static) -> Result<mpsc::Receiver<String>> {
    let (tell, text) = mpsc::channel();
    spawn("orcheck-tool", move || {
        let mut bytes = Vec::new();
        let _ = pipe.by_ref().take(OUTPUT_BYTES).read_to_end(&mut bytes);
        // The rest is not needed, but a full pipe would stop the tool.
        let _ = std::io::copy(&mut pipe, &mut std::io::sink());
        // Nobody may be waiting any more.
        let _ = tell.send(String::from_utf8_lossy(&bytes).into_owned());
    })?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use orcheck_format::ErrorKind;
    use orcheck_testing::Scratch;

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
        // More output than is kept, and a child that stays: neither stops it.
        let said = tools
            .run(&["sh", "-c", "head -c 3000000 /dev/zero; sleep 20 & exit 0"])
            .unwrap();
        assert_eq!((said.code, said.out.len() as u64), (0, OUTPUT_BYTES));
    }

    // Breaks if: it waits for what a tool started or left behind.
    #[test]
    fn a_tool_that_hangs_is_not_waited_for() {
        let tools = Children {
            limit: Duration::from_secs(1),
            ..Children::new()
        };
        let scratch = Scratch::new("place-hangs");
        let fifo = scratch.path().join("gone");
        let fifo = fifo.display();
        // It ends once the process that it leaves behind is in a session of its own, which no kill
        // reaches.
        let leaves = format!(
            "mkfifo {fifo}; setsid sh -c 'echo >{fifo}; exec sleep 20' 2>&- & read x <{fifo}; exit 0"
        );
        let begun = tools.clock.now();
        for (hangs, says) in [
            ("exec sleep 20", "did not end"),
            ("setsid sleep 20 >&- & exec sleep 20", "did not end"),
            (leaves.as_str(), "did not end|still holds its output"),
        ] {
            let error = tools.run(&["sh", "-c", hangs]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{hangs}: {error}");
            let said = says.split('|').any(|says| error.message().contains(says));
            assert!(said, "{hangs}: {error}");
        }
        let took = tools.clock.now().saturating_sub(begun);
        assert!(took < Duration::from_secs(18), "{took:?}");
    }
}
