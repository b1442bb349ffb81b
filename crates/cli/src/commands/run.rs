//! `orcheck run`: starts a command and restarts it after a failure.
//!
//! How: the command gets its own process group, so that a signal reaches all of it. Orcheck is the subreaper of
//! what the command leaves behind: before a restart the group and every orphan of it are asked to end, and
//! killed when the grace time is over, so that two runs never overlap. A new epoch needs nothing from here: a
//! restarted program claims one when it opens its job.
//!
//! Invariants:
//! 1. No process of a run is alive when the next run starts.
//! 2. After SIGTERM, SIGINT or SIGHUP there is no further restart.
//! 3. At most `--restarts` restarts, each with a printed reason; every wait for processes ends at the grace time.
//! 4. A job that was asked to halt since this began is not started again, where its directories can be seen from here.
//! 5. The exit code is that of the last run: its own, or 128 + n when signal n killed it; 13 when a job that was asked to
//!    halt, or to stop by a signal or by `orc_should_stop`, ended well: it is not finished.
//!
//! Faults survived: the command killed anywhere; processes that ignore SIGTERM; a command that fails at the same place
//! again and again, or cannot work at all (no such program, wrong options): it is not restarted for ever, nor at once.
//!
//! Not here: placing processes on nodes; that belongs to mpirun, srun or torchrun in the command; what the
//! program tells of its job, and what lies in its directories (`told.rs`).

mod nodes;
mod told;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::IsTerminal;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use orcheck_engine::directory::halt::EVERY;
use orcheck_format::sabotage::{Switch, off};
use orcheck_format::{Error, Result, printable};
use orcheck_io::clock::{Clock, SystemClock};
use orcheck_io::machine::install_signal;
use rustix::process::{
    Pid, Signal, WaitOptions, kill_process, kill_process_group, set_child_subreaper, wait,
};
use serde_json::{Value, json};

use crate::args::RunArgs;
use crate::exit;
use crate::job::{cannot_open, own_directory_of};
use crate::output::{Failure, Outcome, count};
use crate::stop::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use nodes::Nodes;
use orcheck_io::machine::AGENT_NAME;
use told::{HaltAt, Heard, Seen, Told};

/// Environment variable that tells the command which run it is, from 1.
const ATTEMPT_VARIABLE: &str = "ORCHECK_RUN_ATTEMPT";
/// How often the command and the signals are looked at.
const POLL: Duration = Duration::from_millis(20);
/// How long killed processes may take to vanish before they are reported.
const KILL_WAIT: Duration = Duration::from_secs(5);
/// Longest pause before a restart.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// What shells end with when a command cannot be executed, or is not found.
const NO_COMMAND: [(i32, &str); 2] = [
    (
        126,
        "exit code 126 says that the command cannot be executed",
    ),
    (127, "exit code 127 says that the command was not found"),
];

/// Signals passed on: the flag that the handler sets, the number, and whether it ends the restarts.
static FORWARDED: [(AtomicBool, i32, bool); 4] = [
    (AtomicBool::new(false), SIGTERM, true),
    (AtomicBool::new(false), SIGINT, true),
    (AtomicBool::new(false), SIGHUP, true),
    (AtomicBool::new(false), SIGUSR1, false),
];

/// Runs the command to its end.
pub fn run(args: &RunArgs, json_wanted: bool) -> std::result::Result<Outcome, Failure> {
    let grace = Duration::try_from_secs_f64(args.grace)
        .map_err(|_| Error::invalid(format!("--grace {}: expected seconds from 0", args.grace)))?;
    // A mistyped directory would look like a job that makes no progress.
    for root in args.place.dirs.iter().chain(&args.place.node_dirs) {
        orcheck_staging::open_dir(root, orcheck_io::failpoints::Failpoints::none())
            .map_err(|error| cannot_open(root, error))?;
    }
    for root in &args.place.dirs {
        not_below_a_job(root, args.place.job.as_deref())?;
    }
    for (flag, signal, _) in &FORWARDED {
        install_signal(*signal, flag)?;
    }
    // Without it, orphans of the command escape to the init process; the group is still signalled.
    let _ = set_child_subreaper(Some(rustix::process::getpid()));

    let look = Duration::try_from_secs_f64(args.nodes.look).map_err(|_| {
        Error::invalid(format!(
            "--look {}: expected seconds from 0",
            args.nodes.look
        ))
    })?;
    let first_pause = Duration::try_from_secs_f64(args.pause)
        .map_err(|_| Error::invalid(format!("--pause {}: expected seconds from 0", args.pause)))?;
    let nodes = Nodes::new(&args.nodes)?;
    let wanted = nodes.count();
    let mut used = wanted;
    let supervisor = Supervisor {
        args,
        look,
        nodes: RefCell::new(nodes),
        grace,
        clock: SystemClock::new(),
        json: json_wanted,
        told: RefCell::new(Told::new(&args.place)?),
    };
    let mut known = supervisor.told.borrow().look();
    // What was asked of earlier runs of a job is over.
    let mut begun_after = known
        .as_ref()
        .map(|known| known.epochs.clone())
        .unwrap_or_default();
    let mut idle_runs = 0;
    let mut said_none = false;
    let mut pause = Duration::ZERO;
    let mut runs: Vec<Value> = Vec::new();
    let mut attempt = 1u32;
    let code = loop {
        let begin = supervisor.clock.now();
        let times = known.as_ref().map(Seen::times).unwrap_or_default();
        let (status, stopped) = supervisor.one_run(attempt, times)?;
        let seconds = supervisor.clock.now().saturating_sub(begin).as_secs_f64();
        let heard = supervisor.told.borrow_mut().hear();
        for text in &heard.notes {
            supervisor.say("job", attempt, text);
        }
        // Breaks if: they are left to the program; the README's own reads none of them.
        for text in heard.said() {
            supervisor.say("warning", attempt, &text);
        }
        let now = supervisor.told.borrow().look();
        for (job, first) in &heard.first_epochs {
            begun_after
                .entry(job.clone())
                .or_insert(first.saturating_sub(1));
        }
        // Breaks if: any commit counts; a program that always fails at the same step would be restarted to the last.
        let is_sure = supervisor.told.borrow().is_sure();
        let is_newer =
            (now.as_ref()).map(|now| now.is_newer_than(known.as_ref(), &heard.first_epochs));
        // Without any directory a run that nobody heard of is none that got further: it crashed before it opened its job, or
        // never would have. Directories that cannot be read are another thing.
        let progress = match is_newer {
            _ if heard.without.is_some() => Some(false),
            // It may be another job's.
            Some(true) if now.as_ref().is_some_and(Seen::is_with_others) => None,
            Some(is_newer) if is_sure || is_newer => Some(is_newer),
            _ => (!is_sure).then_some(false),
        };
        // Breaks if: such runs do not count; a mistyped argument of mpirun, or a program that always fails without checkpoints,
        // would be tried again to the last.
        idle_runs = if progress == Some(false) && !off(Switch::NoProgress) {
            idle_runs + 1
        } else {
            0
        };
        let newest = now.as_ref().and_then(Seen::newest_step);
        let nothing = now.as_ref().is_some_and(Seen::is_empty);
        for (job, (why, _)) in &heard.failed {
            let text = format!("run {attempt} of job {job} could not restart: {why}");
            supervisor.say("job", attempt, &text);
        }
        if let (true, Some(job), true, false) =
            (heard.failed.is_empty(), &heard.job, nothing, said_none)
        {
            said_none = true;
            // Breaks if: a trigger is advised all the same; who has a full disk has set one.
            let why = match heard.lost.is_empty() {
                false => "all that it took are lost, as said above",
                true => {
                    "unless it failed before its first one, set a trigger, such as ORCHECK_EVERY_S=600"
                }
            };
            let text = format!(
                "run {attempt} of job {job} ended without a checkpoint: a restart begins from nothing; {why}"
            );
            supervisor.say("no-checkpoint", attempt, &text);
        }
        if let (Some(text), false) = (&heard.without, said_none) {
            said_none = true;
            let text = format!("{text}; a restart begins from nothing");
            supervisor.say("no-checkpoint", attempt, &text);
        }
        // Breaks if: one that was asked of an older run counts: a job that was halted once could never be supervised again.
        let halted = is_halted(now.as_ref(), &begun_after)
            || heard.stopped && now.as_ref().is_some_and(Seen::halts_after);
        let later = now.as_ref().and_then(Seen::halts_later);
        known = now.or(known);
        runs.push(json!({
            "attempt": attempt,
            "exit_code": code_of(status),
            "signal": status.signal(),
            "seconds": seconds,
            "new_commit": progress,
            "newest_step": newest,
        }));

        let ended = format!("run {attempt} {} after {seconds:.1} s", describe(status));
        // Breaks if: a stop counts as the end of the work: what waits for the result would begin.
        let last = if status.success() && (halted || stopped || heard.stopped) {
            let newest = newest.map_or("none".to_owned(), |step| format!("step {step}"));
            let newest = match supervisor.told.borrow().is_sure() {
                true => format!("; newest checkpoint: {newest}"),
                false => String::new(),
            };
            let asked = match (halted, stopped) {
                (true, _) => "halted, as `orcheck halt` asked",
                (_, true) => "stopped, as a signal asked",
                // Its time limit, a signal of its options, a loss, or the program itself.
                _ => "stopped, because orc_should_stop was true",
            };
            let text = format!("{ended}: {asked}{newest}; start it again to continue");
            supervisor.say("halted", attempt, &text);
            break exit::HALTED;
        } else if status.success() {
            break exit::OK;
        } else if halted {
            Some("it was asked to halt".to_string())
        } else if stopped {
            Some("a signal asked to stop".to_string())
        } else if attempt > args.restarts {
            Some(match args.restarts {
                0 => "no restarts allowed (--restarts 0)".into(),
                restarts => format!("{} used up", count(u64::from(restarts), "restart")),
            })
        } else if let Some((_, text)) = NO_COMMAND
            .iter()
            .find(|(code, _)| status.code() == Some(*code))
        {
            Some((*text).to_string())
        } else if let (true, Some(why)) = (heard.refused_for_good, &heard.refused) {
            Some(format!("the job could not be opened: {why}"))
        } else if progress == Some(false) && lacks(&heard) {
            Some("the key or permission that was missing would be missing again".to_string())
        } else if args.no_progress > 0 && idle_runs >= args.no_progress {
            let runs = match args.no_progress {
                1 => "the run".to_string(),
                runs => format!("{runs} runs in a row"),
            };
            Some(match (&heard.refused, is_sure || heard.without.is_some()) {
                (Some(why), _) => format!("{runs} could not open the job: {why}"),
                (None, true) => format!("{runs} made no new checkpoint"),
                (None, false) => format!(
                    "{runs} opened no job that `orcheck run` was told of. Next: see what the command said; where rank 0 runs on another machine, give --dir and --job"
                ),
            })
        } else {
            None
        };
        if let Some(reason) = last {
            supervisor.say(
                "end",
                attempt,
                &format!("{ended}; not restarting: {reason}"),
            );
            break code_of(status);
        }
        let (lost, came) = match supervisor
            .nodes
            .borrow_mut()
            .replace_lost(wanted, &supervisor.clock)
        {
            Ok(change) => change,
            Err(error) => {
                supervisor.say("end", attempt, &format!("{ended}; not restarting: {error}"));
                break code_of(status);
            }
        };
        if !lost.is_empty() {
            supervisor.say("nodes", attempt, &format!("lost: {}", lost.join(", ")));
        }
        let left = supervisor.nodes.borrow().count();
        if !came.is_empty() || left < used {
            let spares = match &came[..] {
                [] => String::new(),
                came => format!(", with {} in their places", came.join(", ")),
            };
            let text = format!(
                "continuing with {} of {wanted}{spares}",
                count(left as u64, "node")
            );
            supervisor.say("nodes", attempt, &text);
        }
        used = left;
        let mut from = newest
            .map(|step| format!("; newest committed step {step}"))
            .unwrap_or_default();
        if let Some(text) = later {
            from += &format!("; {text}");
        }
        // A run that got somewhere is restarted at once; what fails again and again waits longer each time.
        pause = match progress {
            Some(true) => Duration::ZERO,
            _ if pause.is_zero() => first_pause,
            _ => (pause * 2).min(LONGEST_PAUSE),
        };
        let after = match pause.is_zero() {
            true => String::new(),
            false => format!(" in {} s", pause.as_secs_f64()),
        };
        supervisor.say(
            "restart",
            attempt,
            &format!(
                "{ended}{from}; starting run {} of at most {}{after}",
                attempt + 1,
                u64::from(args.restarts) + 1
            ),
        );
        if !supervisor.pause(pause) {
            let text = format!("{ended}; not restarting: a signal asked to stop");
            supervisor.say("end", attempt, &text);
            break code_of(status);
        }
        // Breaks if: this is left out; a time that passes during the pause is in the past for the next run, which ignores it.
        if !pause.is_zero() && is_halted(supervisor.told.borrow().look().as_ref(), &begun_after) {
            let text = format!("{ended}; not restarting: it was asked to halt");
            supervisor.say("end", attempt, &text);
            break code_of(status);
        }
        attempt += 1;
    };
    if json_wanted {
        let mut document = json!({ "event": "summary", "runs": runs });
        crate::output::stamp(&mut document, "run", code);
        eprintln!("{document}");
    }
    // Standard output belongs to the command, so the document for it is empty and never printed.
    Ok(Outcome {
        code,
        text: String::new(),
        document: Value::Null,
        warnings: Vec::new(),
    })
}

/// Refuses the directory of the job itself in place of the one above it, in which the program makes it.
fn not_below_a_job(root: &Path, wanted: Option<&str>) -> Result<()> {
    let own = own_directory_of(root);
    // Breaks if: the command is started; the job would begin from nothing below its checkpoints.
    match own.filter(|job| wanted.is_none_or(|wanted| wanted == job.as_str())) {
        None => Ok(()),
        Some(job) => {
            let above = match root.parent() {
                Some(above) if above.as_os_str().is_empty() => PathBuf::from("."),
                Some(above) if root.file_name().is_some() => above.to_owned(),
                _ => root.join(".."),
            };
            Err(Error::invalid(format!(
                "--dir {} is the directory of job {job} itself: the job would begin from nothing, in {}",
                root.display(),
                root.join(job.as_str()).display(),
                job = job.as_str()
            ))
            .next(format!("give --dir {}", above.display())))
        }
    }
}

/// Whether a run of a job that began after these epochs was asked to halt.
fn is_halted(seen: Option<&Seen>, begun_after: &BTreeMap<String, u64>) -> bool {
    seen.is_some_and(|seen| seen.halted_after(begun_after)) && !off(Switch::HaltedStays)
}

/// Whether the job that was opened last could not be restarted for want of what the next run will not have either.
fn lacks(heard: &Heard) -> bool {
    let failed = heard.job.as_ref().and_then(|job| heard.failed.get(job));
    failed.is_some_and(|(_, for_good)| *for_good)
}

struct Supervisor<'a> {
    args: &'a RunArgs,
    grace: Duration,
    look: Duration,
    nodes: RefCell<Nodes>,
    clock: SystemClock,
    json: bool,
    told: RefCell<Told>,
}

impl Supervisor<'_> {
    fn say(&self, event: &str, attempt: u32, text: &str) {
        // What programs tell is theirs; as any other text of theirs it does not act on the terminal.
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

    /// Waits before a restart; false when a signal asked to stop meanwhile.
    fn pause(&self, pause: Duration) -> bool {
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

    /// Runs the command once, which is to halt at these times; also says whether a signal asked to stop.
    fn one_run(
        &self,
        attempt: u32,
        mut times: Vec<HaltAt>,
    ) -> std::result::Result<(ExitStatus, bool), Failure> {
        let mut child = self.start(attempt)?;
        let group = Pid::from_raw(i32::try_from(child.id()).unwrap_or(0))
            .ok_or_else(|| Error::internal(format!("process id {} is out of range", child.id())))?;
        let mut stopping: Option<Duration> = None;
        // A run on fewer nodes than it was started on is ended, and is no stop of the job.
        let mut crippled: Option<Duration> = None;
        let mut looked = self.clock.now();
        let mut reminded = self.clock.now();
        let status = loop {
            if let Some(status) = poll_child(&mut child)? {
                break status;
            }
            if !times.is_empty() && self.clock.now().saturating_sub(reminded) >= EVERY {
                reminded = self.clock.now();
                times.retain(|time| !self.told.borrow().remind(time));
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
            for (flag, signal, ends) in &FORWARDED {
                if !flag.swap(false, Ordering::Relaxed) {
                    continue;
                }
                if *ends && stopping.is_some() {
                    // Asked twice: no patience left.
                    let _ = kill_process_group(group, Signal::KILL);
                    continue;
                }
                // A group that has just ended is seen by the next look at the command.
                let _ = kill_process_group(group, signal_of(*signal));
                if *ends {
                    stopping = Some(self.clock.now());
                    self.say(
                        "stop",
                        attempt,
                        &format!(
                            "signal {signal} passed on; the command has {} s to end{}",
                            self.grace.as_secs_f64(),
                            // Whether the program takes one is known to the program alone.
                            match *signal {
                                SIGTERM => " (with signal = 'TERM' it takes a last checkpoint)",
                                _ => "",
                            }
                        ),
                    );
                }
            }
            let over = |since: Duration| self.clock.now().saturating_sub(since) >= self.grace;
            if stopping.is_some_and(over) || crippled.is_some_and(over) {
                let _ = kill_process_group(group, Signal::KILL);
            }
            self.clock.sleep(POLL);
        };
        self.nodes.borrow_mut().stop_asking();
        self.clear(group, attempt);
        // A signal that came between the last look and the end of the command counts too.
        let late = FORWARDED
            .iter()
            .any(|(flag, _, ends)| flag.swap(false, Ordering::Relaxed) && *ends);
        Ok((status, stopping.is_some() || late))
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
        self.told.borrow().tell(&mut command);
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
pub(super) fn not_started(program: &OsStr, error: &std::io::Error) -> Error {
    let shown = program.to_string_lossy();
    match error.kind() {
        std::io::ErrorKind::NotFound => Error::not_found(format!("command {shown} does not exist"))
            .next("check its name and PATH"),
        _ => Error::unavailable(format!("command {shown} cannot be started: {error}"))
            .next("check its permissions, and that it is a program of this machine"),
    }
}

/// Collects orphans that ended. Only between runs: the command itself has been collected then.
pub(super) fn reap() {
    while let Ok(Some(_)) = wait(WaitOptions::NOHANG) {}
}

/// Whether the group or an orphan of it still exists. Orphans come to us, the subreaper, as children.
pub(super) fn left_behind(group: Pid) -> bool {
    rustix::process::test_kill_process_group(group).is_ok() || !orphans().is_empty()
}

pub(super) fn signal_all(group: Pid, signal: Signal) {
    let _ = kill_process_group(group, signal);
    for orphan in orphans() {
        let _ = kill_process(orphan, signal);
    }
}

/// Our children; between runs these are orphans of the last run only.
fn orphans() -> Vec<Pid> {
    let own = rustix::process::getpid().as_raw_nonzero();
    // This program has one thread, so one list holds all children. A kernel without it has no such file.
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

/// Whether it is an agent that a rank of the run started: it finishes what the ranks began, and ends by itself.
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

fn code_of(status: ExitStatus) -> u8 {
    let code = status
        .code()
        .or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok())
        .unwrap_or(exit::FAILURE)
}

fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("ended with exit code {code}"),
        (None, Some(signal)) => format!("was killed by signal {signal}"),
        (None, None) => "ended".into(),
    }
}
