//! Supervises one run of a command: starts it in its own process group, watches it, signals it, and
//! clears it away.
//!
//! Invariants: 1 of `run.rs`. Not here: whether there is another run (`series.rs`).

use super::nodes::Nodes;
use super::observer::{HaltAt, Observer};
use crate::args::RunArgs;
use crate::exit;
use crate::output::Failure;
use crate::stop::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use orcheck_engine::directory::halt::EVERY;
use orcheck_format::{Error, Result, printable};
use orcheck_io::clock::{Clock, SystemClock};
use orcheck_io::machine::AGENT_NAME;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, kill_process_group, wait};
use serde_json::json;
use std::cell::RefCell;
use std::ffi::OsStr;
use std::io::IsTerminal;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Environment variable with the number of the run, from 1.
const ATTEMPT_VARIABLE: &str = "ORCHECK_RUN_ATTEMPT";
/// Time between two looks at the command and the signals.
const POLL: Duration = Duration::from_millis(20);
/// Time between two looks at what the program tells.
const HEAR: Duration = Duration::from_secs(1);
/// How long killed processes may take to vanish before they are reported.
const KILL_WAIT: Duration = Duration::from_secs(5);

/// Forwarded signals: the flag that the handler sets, the number, and whether it ends the restarts.
pub static FORWARDED: [(AtomicBool, i32, bool); 4] = [
    (AtomicBool::new(false), SIGTERM, true),
    (AtomicBool::new(false), SIGINT, true),
    (AtomicBool::new(false), SIGHUP, true),
    (AtomicBool::new(false), SIGUSR1, false),
];

/// Starts and watches runs.
pub struct Supervisor<'a> {
    pub args: &'a RunArgs,
    grace: Duration,
    look: Duration,
    pub nodes: RefCell<Nodes>,
    pub clock: SystemClock,
    json: bool,
    pub observer: RefCell<Observer>,
}

impl<'a> Supervisor<'a> {
    /// A supervisor that checks its nodes every `look`, and gives processes that it ends the time
    /// `grace`.
    pub fn new(args: &'a RunArgs, (look, grace): (Duration, Duration), json: bool) -> Result<Self> {
        Ok(Self {
            args,
            grace,
            look,
            nodes: RefCell::new(Nodes::new(&args.nodes)?),
            clock: SystemClock::new(),
            json,
            observer: RefCell::new(Observer::new(&args.place)?),
        })
    }

    pub fn say(&self, event: &str, attempt: u32, text: &str) {
        // Texts of programs are untrusted; they must not control the terminal.
        let text = &text
            .split('\n')
            .map(|line| printable(line.to_owned()))
            .collect::<Vec<_>>()
            .join("\n");
        if self.json {
            let mut line = json!({ "event": event, "attempt": attempt, "message": text });
            line["schema"] = json!(crate::output::SCHEMA);
            eprintln!("{line}");
        } else {
            eprintln!("orcheck run: {text}");
        }
    }

    /// Waits before a restart; false if a signal asked to stop meanwhile.
    pub fn pause(&self, pause: Duration) -> bool {
        let begin = self.clock.now();
        while self.clock.now().saturating_sub(begin) < pause {
            let asked = |(flag, _, ends): &(AtomicBool, i32, bool)| {
                *ends && flag.swap(false, Ordering::Relaxed)
            };
            if FORWARDED.iter().any(asked) {
                return false;
            }
            self.clock.sleep(POLL);
        }
        true
    }

    /// Runs the command once, which is to halt at these times; also returns whether a signal asked
    /// to stop.
    pub fn one_run(
        &self,
        attempt: u32,
        mut times: Vec<HaltAt>,
    ) -> std::result::Result<(ExitStatus, bool), Failure> {
        let mut child = self.start(attempt)?;
        let group = Pid::from_raw(i32::try_from(child.id()).unwrap_or(0))
            .ok_or_else(|| Error::internal(format!("process id {} is out of range", child.id())))?;
        let mut stopping: Option<Duration> = None;
        // A run with fewer nodes than it was started on is ended; that does not stop the job.
        let mut crippled: Option<Duration> = None;
        let mut looked = self.clock.now();
        let mut reminded = self.clock.now();
        let mut heard = self.clock.now();
        let status = loop {
            if let Some(status) = poll_child(&mut child)? {
                break status;
            }
            if !times.is_empty() && self.clock.now().saturating_sub(reminded) >= EVERY {
                reminded = self.clock.now();
                times.retain(|time| !self.observer.borrow().remind(time));
            }
            // Breaks if: it waits for the end; a run that began from nothing, because a name is
            // mistyped, would compute for days first.
            if self.clock.now().saturating_sub(heard) >= HEAR {
                heard = self.clock.now();
                for (event, text) in self.observer.borrow_mut().overhear() {
                    self.say(event, attempt, &text);
                }
            }
            let lost = self
                .nodes
                .borrow_mut()
                .watch(&self.clock, &mut looked, self.look);
            if !lost.is_empty() {
                let text = format!(
                    "lost while the command runs: {}; ending it",
                    lost.join(", ")
                );
                self.say("nodes", attempt, &text);
                crippled.get_or_insert(self.clock.now());
                let _ = kill_process_group(group, Signal::TERM);
            }
            self.pass_signals_on(group, attempt, &mut stopping);
            let over = |since: Duration| self.clock.now().saturating_sub(since) >= self.grace;
            if stopping.is_some_and(over) || crippled.is_some_and(over) {
                let _ = kill_process_group(group, Signal::KILL);
            }
            self.clock.sleep(POLL);
        };
        self.nodes.borrow_mut().stop_asking();
        self.clear(group, attempt);
        // A signal between the last look and the end of the command counts too.
        let late = FORWARDED
            .iter()
            .any(|(flag, _, ends)| flag.swap(false, Ordering::Relaxed) && *ends);
        Ok((status, stopping.is_some() || late))
    }

    /// Forwards the signals since the last look; `stopping`: since when the command is asked to
    /// end.
    fn pass_signals_on(&self, group: Pid, attempt: u32, stopping: &mut Option<Duration>) {
        for (flag, signal, ends) in &FORWARDED {
            if !flag.swap(false, Ordering::Relaxed) {
                continue;
            }
            if *ends && stopping.is_some() {
                // Asked twice: no more patience.
                let _ = kill_process_group(group, Signal::KILL);
                continue;
            }
            // The next look at the command notices a group that has just ended.
            let _ = kill_process_group(group, signal_of(*signal));
            if *ends {
                *stopping = Some(self.clock.now());
                self.say(
                    "stop",
                    attempt,
                    &format!(
                        "signal {signal} passed on; the command has {} s to end{}",
                        self.grace.as_secs_f64(),
                        // Only the program knows whether it takes one.
                        match *signal {
                            SIGTERM => " (with signal = 'TERM' it takes a last checkpoint)",
                            _ => "",
                        }
                    ),
                );
            }
        }
    }

    fn start(&self, attempt: u32) -> std::result::Result<Child, Failure> {
        let (program, rest) = self
            .args
            .command
            .split_first()
            .ok_or_else(|| Error::invalid("no command given"))?;
        let nodes = self.nodes.borrow();
        let mut command = Command::new(program);
        for argument in rest {
            match argument.to_str() {
                Some(text) => command.arg(nodes.fill(text)),
                None => command.arg(argument),
            };
        }
        nodes.tell(&mut command);
        self.observer.borrow().tell(&mut command);
        command
            .env(ATTEMPT_VARIABLE, attempt.to_string())
            .process_group(0);
        if std::io::stdin().is_terminal() {
            // A process group in the background is stopped when it reads from the terminal.
            command.stdin(Stdio::null());
        }
        command
            .spawn()
            .map_err(|error| not_started(program, &error).into())
    }

    /// Ends what a run left behind: its process group and its orphans.
    fn clear(&self, group: Pid, attempt: u32) {
        reap();
        if !left_behind(group) {
            return;
        }
        signal_all(group, Signal::TERM);
        let asked = self.clock.now();
        let mut killed = false;
        while left_behind(group) {
            let waited = self.clock.now().saturating_sub(asked);
            if waited >= self.grace + KILL_WAIT {
                self.say("left", attempt, "processes of the run cannot be killed (waiting for a device?); continuing without them");
                return;
            }
            if waited >= self.grace && !killed {
                killed = true;
                self.say(
                    "kill",
                    attempt,
                    "processes of the run outlived the grace time and were killed",
                );
            }
            if killed {
                signal_all(group, Signal::KILL);
            }
            self.clock.sleep(POLL);
            reap();
        }
    }
}

fn poll_child(child: &mut Child) -> Result<Option<ExitStatus>> {
    child
        .try_wait()
        .map_err(|error| Error::internal(format!("the command cannot be waited for: {error}")))
}

/// Why a command did not start.
pub fn not_started(program: &OsStr, error: &std::io::Error) -> Error {
    let shown = program.to_string_lossy();
    match error.kind() {
        std::io::ErrorKind::NotFound => Error::not_found(format!("command {shown} does not exist"))
            .next("check its name and PATH"),
        _ => Error::unavailable(format!("command {shown} cannot be started: {error}"))
            .next("check its permissions, and that it is a program of this machine"),
    }
}

/// Collects orphans that have ended. Only between runs, when the command itself has been collected.
pub fn reap() {
    while let Ok(Some(_)) = wait(WaitOptions::NOHANG) {}
}

/// Whether the group or an orphan of it still exists. Orphans become children of the subreaper,
/// which is this process.
pub fn left_behind(group: Pid) -> bool {
    rustix::process::test_kill_process_group(group).is_ok() || !orphans().is_empty()
}

pub fn signal_all(group: Pid, signal: Signal) {
    let _ = kill_process_group(group, signal);
    for orphan in orphans() {
        let _ = kill_process(orphan, signal);
    }
}

/// Our children; between runs these are only orphans of the last run.
fn orphans() -> Vec<Pid> {
    let own = rustix::process::getpid().as_raw_nonzero();
    // This program has one thread, so one list holds all children. A kernel without this feature
    // has no such file.
    let listed = orcheck_io::user::read_text(
        std::path::Path::new(&format!("/proc/{own}/task/{own}/children")),
        1 << 20,
    );
    listed
        .unwrap_or_default()
        .split_whitespace()
        .filter(|pid| !is_agent(pid))
        .filter_map(|text| text.parse().ok().and_then(Pid::from_raw))
        .collect()
}

/// Whether it is an agent that a rank of the run started: it finishes what the ranks began, and
/// ends by itself.
fn is_agent(pid: &str) -> bool {
    let path = format!("/proc/{pid}/comm");
    let name = orcheck_io::user::read_text(std::path::Path::new(&path), 64);
    name.is_ok_and(|name| name.trim().as_bytes() == AGENT_NAME.to_bytes())
}

fn signal_of(number: i32) -> Signal {
    match number {
        SIGINT => Signal::INT,
        SIGHUP => Signal::HUP,
        SIGUSR1 => Signal::USR1,
        _ => Signal::TERM,
    }
}

/// The exit code as in a shell: the program's, or 128 plus the number of the signal that killed it.
pub fn code_of(status: ExitStatus) -> u8 {
    let code = status
        .code()
        .or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok())
        .unwrap_or(exit::FAILURE)
}
