//! Runs a command again and again, and decides after each run whether there is another.
//!
//! Invariants: 2 to 5 of `run.rs`. Not here: one run (`supervisor.rs`), what its program reported
//! (`observer.rs`).

use super::observer::{JobState, RunReport};
use super::supervisor::{Supervisor, code_of};
use crate::exit;
use crate::output::{Failure, count};
use orcheck_format::Step;
use orcheck_format::sabotage::{Switch, off};
use orcheck_io::clock::Clock;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

/// Longest pause before a restart.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// Exit codes of shells for a command that cannot be executed, or is not found.
const NO_COMMAND: [(i32, &str); 2] = [
    (
        126,
        "exit code 126 says that the command cannot be executed",
    ),
    (127, "exit code 127 says that the command was not found"),
];

/// The runs so far.
pub struct Series<'a> {
    supervisor: Supervisor<'a>,
    /// Nodes at the beginning, and in the last run.
    wanted: usize,
    used: usize,
    known: Option<JobState>,
    /// Requests to runs of these epochs and earlier ones are over.
    begun_after: BTreeMap<String, u64>,
    /// Number of runs in a row that made no new checkpoint.
    idle_runs: u32,
    /// Whether it was reported that a restart begins from nothing.
    said_none: bool,
    first_pause: Duration,
    pause: Duration,
    runs: Vec<Value>,
    attempt: u32,
}

/// A run that ended.
struct Run {
    status: ExitStatus,
    /// How it ended, for the user.
    ended: String,
    /// A signal asked to stop.
    stopped: bool,
    /// The job was asked to halt.
    halted: bool,
    report: RunReport,
    /// Whether it made a checkpoint; `None` if nobody can tell.
    progress: Option<bool>,
    /// Whether every checkpoint is visible in the job's directories or in the program's reports.
    is_sure: bool,
    newest: Option<Step>,
    /// When the job is to halt.
    halts_later: Option<String>,
}

impl<'a> Series<'a> {
    pub fn new(supervisor: Supervisor<'a>, first_pause: Duration) -> Self {
        let wanted = supervisor.nodes.borrow().count();
        let known = supervisor.observer.borrow().look();
        let begun_after = known.as_ref().map(|known| known.epochs.clone());
        Self {
            supervisor,
            wanted,
            used: wanted,
            known,
            begun_after: begun_after.unwrap_or_default(),
            idle_runs: 0,
            said_none: false,
            first_pause,
            pause: Duration::ZERO,
            runs: Vec::new(),
            attempt: 1,
        }
    }

    /// Runs the command until the last run; returns the exit code, and all runs.
    pub fn run(mut self) -> Result<(u8, Vec<Value>), Failure> {
        let code = loop {
            let run = self.next()?;
            if let Some(code) = self.verdict(&run) {
                break code;
            }
            if !self.can_restart(&run) {
                break code_of(run.status);
            }
            self.attempt += 1;
        };
        Ok((code, self.runs))
    }

    fn say(&self, event: &str, text: &str) {
        self.supervisor.say(event, self.attempt, text);
    }

    fn next(&mut self) -> Result<Run, Failure> {
        let begin = self.supervisor.clock.now();
        let times = self.known.as_ref().map(JobState::times).unwrap_or_default();
        let (status, stopped) = self.supervisor.one_run(self.attempt, times)?;
        let end = self.supervisor.clock.now();
        let seconds = end.saturating_sub(begin).as_secs_f64();
        let report = self.supervisor.observer.borrow_mut().hear();
        for text in &report.notes {
            self.say("job", text);
        }
        // Breaks if: they are left to the program; the README's own program reads none of them.
        for text in report.said() {
            self.say("warning", &text);
        }
        let now = self.supervisor.observer.borrow().look();
        for (job, first) in &report.first_epochs {
            let before = first.saturating_sub(1);
            self.begun_after.entry(job.clone()).or_insert(before);
        }
        let is_sure = self.supervisor.observer.borrow().is_sure();
        let progress = self.progress(&report, now.as_ref(), is_sure);
        // Breaks if: such runs do not count; a mistyped argument of mpirun, or a program that
        // always fails without checkpoints, would be tried to the last.
        self.idle_runs = match progress == Some(false) && !off(Switch::NoProgress) {
            true => self.idle_runs + 1,
            false => 0,
        };
        self.explain(&report, now.as_ref());
        let newest = now.as_ref().and_then(JobState::newest_step);
        // Breaks if: a request to an older run counts: a job that was halted once could never be
        // supervised again.
        let halted = is_halted(now.as_ref(), &self.begun_after)
            || report.is_stopped() && now.as_ref().is_some_and(JobState::halts_after);
        let halts_later = now.as_ref().and_then(JobState::halts_later);
        self.known = now.or(self.known.take());
        self.runs.push(json!({
            "attempt": self.attempt,
            "exit_code": code_of(status),
            "signal": status.signal(),
            "seconds": seconds,
            "new_commit": progress,
            "newest_step": newest.map(u64::from),
        }));
        Ok(Run {
            ended: format!(
                "run {} {} after {seconds:.1} s",
                self.attempt,
                describe(status)
            ),
            status,
            stopped,
            halted,
            report,
            progress,
            is_sure,
            newest,
            halts_later,
        })
    }

    fn progress(&self, report: &RunReport, now: Option<&JobState>, is_sure: bool) -> Option<bool> {
        // Breaks if: any commit counts; a program that always fails at the same step would be
        // restarted to the last.
        let is_newer = now.map(|now| now.is_newer_than(self.known.as_ref(), &report.first_epochs));
        // Without any directory, a run that reported nothing made no progress: it crashed before it
        // opened its job, or never would have opened it. This is different from directories that
        // cannot be read.
        match is_newer {
            _ if report.without.is_some() => Some(false),
            // It may belong to another job.
            Some(true) if now.is_some_and(JobState::is_with_others) => None,
            Some(is_newer) if is_sure || is_newer => Some(is_newer),
            _ => (!is_sure).then_some(false),
        }
    }

    /// Reports why a restart failed, or begins from nothing.
    fn explain(&mut self, report: &RunReport, now: Option<&JobState>) {
        let attempt = self.attempt;
        for (job, (why, _)) in &report.failed {
            let text = format!("run {attempt} of job {job} could not restart: {why}");
            self.say("job", &text);
        }
        let nothing = now.is_some_and(JobState::is_empty);
        if let (true, Some(job), true, false) = (
            report.failed.is_empty(),
            &report.job,
            nothing,
            self.said_none,
        ) {
            self.said_none = true;
            // Breaks if: a trigger is advised all the same; a user with a full disk, or whose
            // program fails early, has set one.
            let why = match report.is_triggered {
                _ if report.last_lost.is_some() => "all that it took are lost, as said above",
                Some(true) => {
                    "it has a trigger, but ended before its first checkpoint was complete"
                }
                _ => {
                    "unless the program failed before its first checkpoint, or takes them without \
                     asking orc_due, set a trigger, such as ORCHECK_EVERY_S=600"
                }
            };
            let text = format!(
                "run {attempt} of job {job} ended without a checkpoint: a restart begins from nothing; {why}"
            );
            self.say("no-checkpoint", &text);
        }
        if let (Some(text), false) = (&report.without, self.said_none) {
            self.said_none = true;
            let text = format!("{text}; a restart begins from nothing");
            self.say("no-checkpoint", &text);
        }
    }

    /// The exit code, if this run was the last one.
    fn verdict(&self, run: &Run) -> Option<u8> {
        let (status, ended) = (run.status, &run.ended);
        // Breaks if: a stop counts as the end of the work; whatever waits for the result would
        // begin.
        if status.success() && (run.halted || run.stopped || run.report.is_stopped()) {
            let newest = run
                .newest
                .map_or("none".to_owned(), |step| format!("step {step}"));
            let newest = match run.is_sure {
                true => format!("; newest checkpoint: {newest}"),
                false => String::new(),
            };
            let asked = match (run.halted, run.stopped) {
                (true, _) => "halted, as `orcheck halt` asked",
                (_, true) => "stopped, as a signal asked",
                // Its time limit, a signal of its options, a loss, or the program itself.
                _ => "stopped, because orc_should_stop was true",
            };
            let text = format!("{ended}: {asked}{newest}; start it again to continue");
            self.say("halted", &text);
            return Some(exit::HALTED);
        }
        if status.success() {
            return Some(exit::OK);
        }
        let reason = self.why_not_restarted(run)?;
        self.say("end", &format!("{ended}; not restarting: {reason}"));
        Some(code_of(status))
    }

    /// Why a failed run is not followed by another one.
    fn why_not_restarted(&self, run: &Run) -> Option<String> {
        let args = self.supervisor.args;
        let (status, report) = (run.status, &run.report);
        let no_command = NO_COMMAND
            .iter()
            .find(|(code, _)| status.code() == Some(*code));
        if run.halted {
            Some("it was asked to halt".to_string())
        } else if run.stopped {
            Some("a signal asked to stop".to_string())
        } else if self.attempt > args.restarts {
            Some(match args.restarts {
                0 => "no restarts allowed (--restarts 0)".into(),
                restarts => format!("{} used up", count(u64::from(restarts), "restart")),
            })
        } else if let Some((_, text)) = no_command {
            Some((*text).to_string())
        } else if let (true, Some(why)) = (report.refused_for_good, &report.refused) {
            Some(format!("the job could not be opened: {why}"))
        } else if run.progress == Some(false) && lacks(report) {
            Some("the key or permission that was missing would be missing again".to_string())
        } else if args.no_progress > 0 && self.idle_runs >= args.no_progress {
            let runs = match args.no_progress {
                1 => "the run".to_string(),
                runs => format!("{runs} runs in a row"),
            };
            Some(
                match (&report.refused, run.is_sure || report.without.is_some()) {
                    (Some(why), _) => format!("{runs} could not open the job: {why}"),
                    (None, true) => format!("{runs} made no new checkpoint"),
                    (None, false) => format!(
                        "{runs} opened no job that `orcheck run` knows of. Next: read the output \
                         of the command; where rank 0 runs on another machine, give --dir and --job"
                    ),
                },
            )
        } else {
            None
        }
    }

    /// Replaces lost nodes and waits; returns whether the command may be started again.
    fn can_restart(&mut self, run: &Run) -> bool {
        let ended = &run.ended;
        if let Err(error) = self.replace_nodes() {
            self.say("end", &format!("{ended}; not restarting: {error}"));
            return false;
        }
        let mut from = match run.newest {
            Some(step) => format!("; newest committed step {step}"),
            None => String::new(),
        };
        if let Some(text) = &run.halts_later {
            from += &format!("; {text}");
        }
        // A run that made progress is restarted at once; repeated failures wait longer each time.
        self.pause = match run.progress {
            Some(true) => Duration::ZERO,
            _ if self.pause.is_zero() => self.first_pause,
            _ => (self.pause * 2).min(LONGEST_PAUSE),
        };
        let after = match self.pause.is_zero() {
            true => String::new(),
            false => format!(" in {} s", self.pause.as_secs_f64()),
        };
        let text = format!(
            "{ended}{from}; starting run {} of at most {}{after}",
            self.attempt + 1,
            u64::from(self.supervisor.args.restarts) + 1
        );
        self.say("restart", &text);
        if !self.supervisor.pause(self.pause) {
            let text = format!("{ended}; not restarting: a signal asked to stop");
            self.say("end", &text);
            return false;
        }
        // Breaks if: this is left out; a time that passes during the pause is in the past for the
        // next run, which ignores it.
        let now = || self.supervisor.observer.borrow().look();
        if !self.pause.is_zero() && is_halted(now().as_ref(), &self.begun_after) {
            let text = format!("{ended}; not restarting: it was asked to halt");
            self.say("end", &text);
            return false;
        }
        true
    }

    /// Replaces lost nodes by spares.
    fn replace_nodes(&mut self) -> orcheck_format::Result<()> {
        let wanted = self.wanted;
        let nodes = &self.supervisor.nodes;
        let changed = nodes
            .borrow_mut()
            .replace_lost(wanted, &self.supervisor.clock);
        let (lost, came) = changed?;
        let left = nodes.borrow().count();
        if !lost.is_empty() {
            self.say("nodes", &format!("lost: {}", lost.join(", ")));
        }
        if !came.is_empty() || left < self.used {
            let spares = match &came[..] {
                [] => String::new(),
                came => format!(", with {} in their places", came.join(", ")),
            };
            let text = format!(
                "continuing with {} of {wanted}{spares}",
                count(left as u64, "node")
            );
            self.say("nodes", &text);
        }
        self.used = left;
        Ok(())
    }
}

/// Whether a run of a job that began after these epochs was asked to halt.
fn is_halted(seen: Option<&JobState>, begun_after: &BTreeMap<String, u64>) -> bool {
    seen.is_some_and(|seen| seen.halted_after(begun_after)) && !off(Switch::HaltedStays)
}

/// Whether the job that was opened last could not be restarted for a reason that the next run will
/// share.
fn lacks(report: &RunReport) -> bool {
    let failed = report.job.as_ref().and_then(|job| report.failed.get(job));
    failed.is_some_and(|(_, for_good)| *for_good)
}

fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("ended with exit code {code}"),
        (None, Some(signal)) => format!("was killed by signal {signal}"),
        (None, None) => "ended".into(),
    }
}
