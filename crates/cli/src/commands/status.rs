//! Implements `orcheck status`, which shows this user's agents on this machine, and the jobs in the
//! given directories, with or without agents.
//!
//! Invariants:
//! 1. An agent that does not answer in time is shown as silent, never left out.
//! 2. Data that may be in an unreadable directory is not reported as absent.
//!
//! Not here: agents of other nodes; run the command there.

use std::collections::BTreeMap;
use std::time::Duration;

use orcheck_engine::directory::Commit;
use orcheck_engine::directory::halt::NewestRun;
use orcheck_engine::encoding::Trust;
use orcheck_engine::host::agent::{AgentStatus, list, status};
use orcheck_format::disk::Claim;
use orcheck_format::{Error, ErrorKind, JobName, Level, Step};
use orcheck_io::clock::{Clock, SystemClock};
use orcheck_io::failpoints::Failpoints;
use orcheck_io::machine::{arguments_of, is_stopped};
use orcheck_net::{Address, Holder, holder};
use serde_json::{Value, json};

use crate::args::StatusArgs;
use crate::commands::verify::is_newest;
use crate::exit;
use crate::job::{Hidden, Search};
use crate::job::{Job, roots, trust};
use crate::output::{
    Failure, Outcome, count, draw_together, moment, plain, right, size, span, table, table_text,
};

/// Longest wait for an agent.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);

/// Asks all of them.
pub fn run(args: &StatusArgs) -> Result<Outcome, Failure> {
    let mut agents = Vec::new();
    let (jobs, mut warnings, mut code) = jobs(args)?;
    // Breaks if: it is 0; a script would mistake a server that is down for a job without
    // checkpoints.
    if jobs.iter().any(|job| !job.is_known()) {
        code = exit::UNREACHABLE;
    }
    warnings.extend(jobs.iter().filter_map(Running::note));
    let seen = list(&SystemClock::new())?;
    warnings.extend(seen.strangers());
    let mut silent = false;
    for at in seen.own {
        match status(&at, ANSWER_LIMIT) {
            Ok(told) => agents.extend(of_job(&at, told, &|job| wanted(args, &jobs, job))),
            Err(error) => {
                let unheard = unheard(&at, &error, &|job| wanted(args, &jobs, job));
                silent |= unheard.is_some();
                warnings.extend(unheard);
            }
        }
    }
    let now = SystemClock::new().unix_ms();
    let texts = jobs
        .iter()
        .map(|job| job.text(now, ranks_ended(&agents, &job.job)));
    let mut text: String = texts.collect();
    if !text.is_empty() {
        text.push('\n');
    }
    text += &match agents.is_empty() {
        true => {
            let what = match (&args.place.job, jobs.is_empty()) {
                (Some(job), _) => format!(" of job {job}"),
                (None, false) => " of these jobs".to_owned(),
                (None, true) => " of this user".to_owned(),
            };
            match silent {
                true => format!("no agent{what} answers\n"),
                false => format!("no agents{what} are on this machine\n"),
            }
        }
        false => agents_text(&agents),
    };
    let jobs: Vec<Value> = jobs.iter().map(Running::document).collect();
    Ok(Outcome {
        code,
        text,
        document: json!({ "agents": agents, "jobs": jobs, "notes": warnings }),
        warnings,
    })
}

/// A job in the directories.
struct Running {
    job: String,
    /// Its newest run and whether it is alive; `None` if there never was one.
    run: Option<(Claim, bool)>,
    /// Why nothing is known about its runs.
    unread: Option<Error>,
    /// Step, level and time of the newest checkpoint that is complete here.
    newest: Option<(Step, Level, u64)>,
    /// The same at level `global`, if that is another one.
    newest_global: Option<(Step, u64)>,
    /// A checkpoint that is newer, or may be, and cannot be read.
    out_of_reach: Option<OutOfReach>,
    /// The newest step, newer than that, whose commit record is damaged or of a newer version.
    unreadable: Option<Step>,
}

/// A checkpoint that may be complete where nobody can look.
enum OutOfReach {
    /// The one of this step.
    Step(Step),
    /// The one of this step, which was sealed with a key that was not given.
    Sealed(Step),
    /// Any: there are no records, and this directory cannot be read.
    Any(String),
}

impl Running {
    fn of(job: Job, trust: &Trust) -> Result<Self, Failure> {
        // Parity alone is not needed while all containers are here.
        let is_wanted =
            |job: &Job, commit: &Commit| is_newest(job, commit) && job.missing(commit).is_some();
        let job = &job.with_agents(trust, &is_wanted)?;
        let (run, unread) = match NewestRun::newest(job.catalog.places(), trust) {
            Ok(run) => (run, None),
            // Breaks if: the job is left out; a job whose files cannot be locked has checkpoints
            // all the same.
            Err(error) if error.kind() == ErrorKind::Unavailable => {
                (None, Some(job.unread_file(error).error))
            }
            Err(error) => return Err(error.into()),
        };
        let commits = job.catalog.commits();
        let newest = commits.iter().find(|commit| job.missing(commit).is_none());
        let newest = newest.map(|commit| &commit.record);
        let mut global = commits
            .iter()
            .filter(|commit| commit.record.level == Level::Global && job.missing(commit).is_none());
        let global = global.next().map(|commit| &commit.record);
        let global = global.filter(|global| newest.is_some_and(|newest| newest.step > global.step));
        let is_newer = |step: Step| newest.is_none_or(|newest| step > newest.step);
        let commits = commits.iter().filter(|commit| job.is_out_of_reach(commit));
        let newer = (commits.map(|commit| commit.record.step))
            .chain(job.unread_record(is_newer).map(|(step, _)| step))
            .filter(|&step| is_newer(step))
            .max();
        // Breaks if: it is left out; with a wrong key, a job with checkpoints would look like one
        // without.
        let sealed = job.catalog.other_key().filter(|&step| is_newer(step));
        let out_of_reach = match (newer, job.out_of_sight()) {
            _ if sealed > newer => sealed.map(OutOfReach::Sealed),
            (Some(step), _) => Some(OutOfReach::Step(step)),
            (None, Some(hidden)) if newest.is_none() => Some(OutOfReach::Any(hidden.path.clone())),
            (None, _) => None,
        };
        // Breaks if: it is left out; a job whose only record is damaged would look like one without
        // checkpoints.
        let unreadable = (job.catalog.unread().iter())
            .filter(|one| !one.elsewhere && is_newer(one.step))
            .filter(|one| one.why.kind() != ErrorKind::Unavailable)
            .map(|one| one.step)
            .filter(|&step| Some(step) > newer.max(sealed));
        Ok(Running {
            unreadable: unreadable.max(),
            job: job.name.as_str().to_owned(),
            run: run.map(|run| (run.claim, run.lives)),
            unread,
            newest: newest.map(|record| (record.step, record.level, record.created_unix_ms)),
            newest_global: global.map(|record| (record.step, record.created_unix_ms)),
            out_of_reach,
        })
    }

    /// The report; `ranks_ended`: agents here say that no rank of theirs is alive.
    fn text(&self, now: u64, ranks_ended: bool) -> String {
        let run = match &self.run {
            Some((_, true)) if ranks_ended => {
                "its ranks on this machine have ended; an agent of it is still there".to_owned()
            }
            None if self.out_of_reach.is_some() || self.unread.is_some() => {
                "whether it runs is not known".to_owned()
            }
            None => "it was never run here".to_owned(),
            Some((claim, true)) => format!(
                "it runs on host {}, since {}",
                claim.host,
                moment(claim.since_unix_ms, now)
            ),
            Some((claim, false)) => format!(
                "its last run ended; it began {}",
                moment(claim.since_unix_ms, now)
            ),
        };
        let newest = match (&self.newest, &self.out_of_reach) {
            (None, None) => "none".to_owned(),
            (None, Some(OutOfReach::Step(step))) => {
                format!("not known, because step {step} is unreachable")
            }
            (None, Some(OutOfReach::Sealed(step))) => {
                format!("not known, because step {step} was sealed with another key: give that key")
            }
            (None, Some(OutOfReach::Any(path))) => {
                format!("not known, because {path} cannot be read")
            }
            (Some((step, level, at)), out_of_reach) => {
                let mut text = format!("{step} at level {level}, taken {}", moment(*at, now));
                if let Some((older, at)) = self.newest_global {
                    text += &format!(
                        "\n  the newest at level global is {older}, taken {}",
                        moment(at, now)
                    );
                }
                if *level != Level::Global {
                    text += &format!(
                        "\n  step {step} is only on nodes; `orcheck copy --to global --global DIR`, with the directories that were given here, brings it to a file system"
                    );
                }
                if let Some(OutOfReach::Step(newer)) = out_of_reach {
                    text += &format!("\n  step {newer} is newer, and unreachable");
                }
                if let Some(OutOfReach::Sealed(newer)) = out_of_reach {
                    text += &format!(
                        "\n  step {newer} is newer, and was sealed with another key: give that key"
                    );
                }
                text
            }
        };
        let mut text = format!("job {}: {run}\n  newest safe step: {newest}\n", self.job);
        if let Some(step) = self.unreadable {
            text +=
                &format!("  the commit record of step {step} cannot be used; see `orcheck ls`\n");
        }
        text
    }

    /// Whether its report does not depend on anything unreadable.
    fn is_known(&self) -> bool {
        self.unread.is_none() && (self.newest.is_some() || self.out_of_reach.is_none())
    }

    fn note(&self) -> Option<String> {
        let unread = self.unread.as_ref()?;
        Some(format!("job {}: {unread}", self.job))
    }

    fn document(&self) -> Value {
        let run = self.run.as_ref();
        json!({
            "job": self.job,
            "runs": run.map(|(_, lives)| lives),
            "epoch": run.map(|(claim, _)| claim.epoch.to_string()),
            "host": run.map(|(claim, _)| &claim.host),
            "since_unix_ms": run.map(|(claim, _)| claim.since_unix_ms),
            "newest_restartable_step": self.newest.map(|(step, ..)| step.0),
            "level": self.newest.map(|(_, level, _)| level.to_string()),
            "created_unix_ms": self.newest.map(|(.., at)| at),
            "newest_global_step": self.newest_global.map(|(step, _)| step.0),
            "is_known": self.is_known(),
            "unreadable_step": self.unreadable.map(u64::from),
            "unreachable_step": match self.out_of_reach {
                Some(OutOfReach::Step(step) | OutOfReach::Sealed(step)) => Some(step.0),
                _ => None,
            },
        })
    }
}

/// The jobs in the given directories, or in those of the environment; without any: none.
///
/// With notes, and the exit code if it is already known.
fn jobs(args: &StatusArgs) -> Result<(Vec<Running>, Vec<String>, u8), Failure> {
    let mut place = args.place.clone();
    place.anywhere.extend(args.at.iter().cloned());
    let (placed, per_node) = roots(&place.dirs, &place.node_dirs)?;
    if placed.is_empty() && per_node.is_empty() && place.anywhere.is_empty() {
        return Ok((Vec::new(), Vec::new(), exit::OK));
    }
    let given = !(place.dirs.is_empty() && place.node_dirs.is_empty() && place.anywhere.is_empty());
    let trust = trust(&args.unlock)?;
    let mut search = match Search::of(&place, &trust) {
        // Directories of the environment may be missing: the agents are what was asked for.
        Err(failure) if !given => {
            return Ok((Vec::new(), vec![failure.error.to_string()], exit::OK));
        }
        search => search?,
    };
    let hidden = search.hidden().iter();
    let mut notes: Vec<String> = hidden.map(Hidden::note).collect();
    let mut jobs = Vec::new();
    let mut code = exit::OK;
    let only = |name: &JobName| place.job.as_deref().is_none_or(|job| job == name.as_str());
    let names: Vec<JobName> = search.names().into_iter().filter(only).collect();
    if let (Some(job), true, true) = (&place.job, names.is_empty(), given)
        && !search.hidden().iter().any(Hidden::may_hold)
    {
        // Breaks if: the result is that there is nothing; a mistyped name would look like a job
        // that is gone.
        let job = search.job(Some(job), &trust)?;
        return Ok((vec![Running::of(job, &trust)?], notes, code));
    }
    if names.is_empty() && given {
        let is_hidden = search.hidden().iter().any(Hidden::may_hold);
        // Breaks if: it reports that there is none; there is another user's job.
        if is_hidden {
            code = exit::UNREACHABLE;
        }
        notes.push(match is_hidden {
            true => "no job is in the directories that can be read".to_owned(),
            false => "no job is in the directories given".to_owned(),
        });
    }
    for name in names {
        let found = search.take(&name, &trust);
        match found.and_then(|job| Running::of(job, &trust)) {
            Ok(running) => jobs.push(running),
            Err(failure) => {
                code = code.max(failure.of_one());
                notes.push(format!("job {}: {}", name.as_str(), failure.error));
            }
        }
    }
    Ok((jobs, notes, code))
}

/// The agents: the newest step of each session at each level, and further facts below the table.
fn agents_text(agents: &[Value]) -> String {
    let mut shown = table(&[
        "job", "node", "process", "epoch", "ranks", "sealed", "at node", "global",
    ]);
    let mut more = String::new();
    let field = |of: &Value, name: &str| match &of[name] {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    for agent in agents {
        let (job, node) = (field(agent, "job"), field(agent, "node"));
        if let Some(bytes) = agent["kept_bytes"].as_u64().filter(|bytes| *bytes > 0) {
            more += &format!(
                "{job} on {node}: {} of memory kept for the next run to restart from\n",
                size(bytes)
            );
        }
        let sessions = agent["sessions"].as_array().cloned().unwrap_or_default();
        for session in sessions
            .iter()
            .chain(sessions.is_empty().then_some(&Value::Null))
        {
            let ranks = match session {
                Value::Null => "no session".to_owned(),
                session => format!(
                    "{} of {} live",
                    field(session, "ranks_alive"),
                    field(session, "ranks")
                ),
            };
            shown.add_row(vec![
                plain(&job),
                plain(&node),
                right(field(agent, "pid")),
                right(field(session, "epoch")),
                plain(ranks),
                right(field(session, "committed_process")),
                right(field(session, "committed_node")),
                right(field(session, "committed_global")),
            ]);
            let known = [
                session["pool_bytes"]
                    .as_u64()
                    .map(|bytes| format!("a pool of at most {}", size(bytes))),
                pattern(session).or_else(|| interval(session)),
                replicas(session),
            ];
            let known: Vec<String> = known.into_iter().flatten().collect();
            if !known.is_empty() {
                more += &format!("{job} on {node}: {}\n", known.join("; "));
            }
        }
    }
    draw_together(&mut shown);
    table_text(&shown) + &more
}

/// The interval that follows from the measurements, with these.
fn interval(session: &Value) -> Option<String> {
    let seconds = |name: &str| session[name].as_f64().map(|us| span(us / 1e6));
    let (kept, cost) = seconds("interval_us").zip(seconds("checkpoint_us"))?;
    Some(format!("a checkpoint every {kept} ({cost} each)"))
}

/// How often checkpoints go to each level, where levels have paces of their own.
fn pattern(session: &Value) -> Option<String> {
    let pace = |name: &str| session[name].as_str();
    let level = session["node_level"].as_str().unwrap_or("node");
    let paces = [(level, pace("pace_node")), ("global", pace("pace_global"))];
    let said = paces
        .into_iter()
        .filter_map(|(level, pace)| Some((level, pace?)));
    let said: Vec<String> = said
        .map(|(level, pace)| format!("{level} every {pace}"))
        .collect();
    (!said.is_empty()).then(|| format!("checkpoints at {}", said.join(", at ")))
}

/// Whether agents of this job answered, and all of them that no rank of their newest run is alive.
fn ranks_ended(agents: &[Value], job: &str) -> bool {
    let of_job: Vec<&Value> = agents.iter().filter(|one| one["job"] == job).collect();
    let ended = |agent: &&Value| {
        let last = agent["sessions"].as_array().and_then(|all| all.last());
        last.is_some_and(|last| last["ranks_alive"] == 0)
    };
    !of_job.is_empty() && of_job.iter().all(ended)
}

/// What a node holds for others, and its limit.
fn replicas(session: &Value) -> Option<String> {
    let number = |name: &str| session[name].as_u64();
    let (held, bytes) = number("replicas").zip(number("replica_bytes"))?;
    let budget = number("replica_budget_bytes");
    let budget = budget.map_or(String::new(), |budget| format!(" of {}", size(budget)));
    Some(format!(
        "{} of other nodes, {}{budget}",
        count(held, "replica"),
        size(bytes)
    ))
}

/// The warning that an agent did not answer, if its job is asked for or not known.
fn unheard(at: &Address, error: &Error, wanted: &dyn Fn(&str) -> bool) -> Option<String> {
    let Some(silent) = SilentAgent::at(at) else {
        return Some(format!(
            "the agent at {at} does not answer; it may be ending: {}",
            error.message()
        ));
    };
    let SilentAgent { job, node, pid } = silent;
    let next = match is_stopped(pid) {
        true => format!(
            " is stopped and does not answer. Next: let it continue with `kill -CONT {pid}`"
        ),
        false => " does not answer".to_owned(),
    };
    wanted(&job).then(|| format!("the agent of job {job} on node {node}, process {pid},{next}"))
}

/// An agent that does not answer, by how it was started.
pub(super) struct SilentAgent {
    pub job: String,
    pub node: String,
    pub pid: i32,
}

impl SilentAgent {
    /// Stands for the name of a node that is not known.
    pub const UNKNOWN: &str = "?";

    /// The one at this address, if it is still there.
    pub fn at(at: &Address) -> Option<SilentAgent> {
        let Ok(Holder::Own(peer)) = holder(at, &Failpoints::none()) else {
            return None;
        };
        let words = arguments_of(peer.pid);
        let after = |name: &str| {
            let mut pairs = words.windows(2).filter(|pair| pair[0] == name);
            let joined = words
                .iter()
                .find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
            pairs.next().map(|pair| pair[1].as_str()).or(joined)
        };
        Some(SilentAgent {
            job: after("--job")?.to_owned(),
            node: after("--node").unwrap_or(Self::UNKNOWN).to_owned(),
            pid: peer.pid,
        })
    }
}

/// Whether a job is asked for: the named one, one in the given directories, or any.
fn wanted(args: &StatusArgs, jobs: &[Running], job: &str) -> bool {
    let place = &args.place;
    match &place.job {
        Some(name) => name == job,
        None if place.dirs.is_empty() && place.node_dirs.is_empty() && args.at.is_empty() => true,
        None => jobs.iter().any(|running| running.job == job),
    }
}

/// An agent's report, if it is about a job that is asked for.
fn of_job(at: &Address, told: AgentStatus, wanted: &dyn Fn(&str) -> bool) -> Option<Value> {
    let mut told = told.into_iter();
    let own = told.next()?;
    if !wanted(own.get("job").map_or("", String::as_str)) {
        return None;
    }
    let sessions: Vec<Value> = told.map(typed).collect();
    let kept = own
        .get("kept_bytes")
        .and_then(|bytes| bytes.parse::<u64>().ok());
    let mut agent = json!(own);
    agent["kept_bytes"] = json!(kept);
    agent["address"] = json!(at.to_string());
    agent["pid"] = json!(pid_of(at));
    agent["sessions"] = json!(sessions);
    Some(agent)
}

/// The process that listens there; `None` if it is in another PID namespace, or has just ended.
fn pid_of(at: &Address) -> Option<i32> {
    match holder(at, &Failpoints::none()) {
        Ok(Holder::Own(peer)) if peer.pid > 0 => Some(peer.pid),
        _ => None,
    }
}

/// An agent's report about a session, as a document.
pub fn typed(session: BTreeMap<String, String>) -> Value {
    let typed = |(name, value): (String, String)| {
        let value = match (value.as_str(), value.parse::<u64>()) {
            ("none", _) => Value::Null,
            (_, Ok(number)) => json!(number),
            _ => json!(value),
        };
        (name, value)
    };
    Value::Object(session.into_iter().map(typed).collect())
}
