//! Tests `agent`, started as a batch script and as a rank start it.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use orcheck_engine::host::agent::{KEY, address};
use orcheck_format::JobName;
use orcheck_format::wire::{AgentMessage, Message};
use orcheck_io::failpoints::Failpoints;
use orcheck_net::{Address, Conn};
use orcheck_testing::hosts::own_network;
use orcheck_testing::squatter::{Squat, Squatter};

use crate::program::Running;
use crate::{Answer, orcheck};
use orcheck_fixtures::reading::Scratch;

/// Longest wait for something that must happen soon.
const SOON: Duration = Duration::from_secs(20);

fn agent(scratch: &Scratch, node: &str, more: &[&str]) -> Command {
    let dir = scratch.path().display().to_string();
    let mut command = orcheck(&["agent", "--job", "cavity", "--node", node, "--dir", &dir]);
    command.args(more);
    command
}

/// Starts one and waits until it can be reached.
fn started(scratch: &Scratch, node: &str, linger: &str) -> Child {
    let mut child = agent(scratch, node, &["--linger", linger])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap())
        .read_line(&mut line)
        .unwrap();
    assert_eq!(line, format!("agent of job cavity on node {node}: ready\n"));
    child
}

/// Agents whose command line names this directory: number and command line.
fn processes(scratch: &Scratch) -> Vec<(u32, String)> {
    agents_with(&scratch.path().display().to_string())
}

/// Agents with this argument: number and command line.
fn agents_with(argument: &str) -> Vec<(u32, String)> {
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    let numbers = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let lines = numbers.filter_map(|pid: u32| {
        let line = std::fs::read_to_string(format!("/proc/{pid}/cmdline"));
        Some((pid, line.ok()?))
    });
    lines
        .filter(|(_, line)| line.contains(&format!("{argument}\0")) && line.contains("agent"))
        .collect()
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < SOON, "{what}");
        std::thread::yield_now();
    }
}

#[test]
fn one_that_nobody_needs_ends_after_its_time() {
    let scratch = Scratch::new();
    let child = started(&scratch, "n0", "0.3");
    let done = Answer::of(child.wait_with_output().unwrap());
    assert_eq!((done.code, done.stderr.as_str()), (0, ""));
    assert_eq!(std::fs::read_dir(scratch.path()).unwrap().count(), 0);
}

#[test]
fn there_is_one_for_a_job_and_node() {
    let scratch = Scratch::new();
    let several = Answer::of(agent(&scratch, "n0,n1", &[]).output().unwrap());
    assert_eq!(several.code, 2, "{}", several.stderr);
    assert!(several.stderr.contains("an agent serves one"));
    let mut first = started(&scratch, "n0", "60");
    let second = Answer::of(agent(&scratch, "n0", &[]).output().unwrap());
    assert_eq!(second.code, 1);
    assert!(
        second.stderr.contains("agent of job 'cavity' on node 'n0'")
            && second.stderr.contains("use the running agent"),
        "{}",
        second.stderr
    );
    // Neither another node nor another directory of a job of this name is in its way.
    let mut other = started(&scratch, "n1", "60");
    let elsewhere = Scratch::new();
    let mut apart = started(&elsewhere, "n0", "60");
    for child in [&mut first, &mut other, &mut apart] {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    // A killed one leaves its place.
    let mut again = started(&scratch, "n0", "60");
    again.kill().unwrap();
    again.wait().unwrap();
}

#[test]
fn sigterm_ends_it() {
    let scratch = Scratch::new();
    let child = started(&scratch, "n0", "60");
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    let done = Answer::of(child.wait_with_output().unwrap());
    assert_eq!(done.code, 143);
}

// Breaks if: the agent keeps a descriptor of its starter: `mpirun app | cat` would not end before
// the agent does.
#[test]
fn in_the_background_it_holds_nothing_of_its_starter() {
    let scratch = Scratch::new();
    let detach = agent(&scratch, "n0", &["--detach", "--linger", "3"]);
    // Descriptor 3 is one that the starter forgot to keep to itself.
    let mut shell = Command::new("sh");
    // And it is bound to one processor, as ranks are.
    shell.args(["-c", "taskset -pc 0 $$ >&2; exec 3>&1; exec \"$0\" \"$@\""]);
    shell.arg(detach.get_program()).args(detach.get_args());
    let begin = Instant::now();
    let done = Answer::of(shell.output().unwrap());
    assert_eq!(
        (done.code, done.stdout.as_str()),
        (0, "agent of job cavity on node n0: ready\n")
    );
    assert!(
        begin.elapsed() < Duration::from_secs(3),
        "it kept a descriptor"
    );
    let there = processes(&scratch);
    assert!(
        there.iter().any(|(_, line)| line.contains("--detached")),
        "{there:?}"
    );
    // Breaks if: it stays bound; the engine of a node would share one processor with the rank that
    // started it.
    let allowed = |status: &str| -> String {
        let lines = status
            .lines()
            .find(|line| line.starts_with("Cpus_allowed_list"));
        lines.unwrap_or_default().to_owned()
    };
    let own = std::fs::read_to_string("/proc/self/status").unwrap();
    let theirs = std::fs::read_to_string(format!("/proc/{}/status", there[0].0)).unwrap();
    assert_eq!(allowed(&theirs), allowed(&own));
    until("it does not end", || processes(&scratch).is_empty());
}

#[test]
fn a_start_in_the_background_that_fails_says_why() {
    let scratch = Scratch::new();
    let mut first = started(&scratch, "n0", "60");
    let second = Answer::of(agent(&scratch, "n0", &["--detach"]).output().unwrap());
    assert_eq!(second.code, 1);
    assert!(
        second.stderr.contains("use the running agent"),
        "{}",
        second.stderr
    );
    first.kill().unwrap();
    first.wait().unwrap();
}

#[test]
fn status_shows_it() {
    let scratch = Scratch::new();
    let mut child = started(&scratch, "here", "60");
    let job = ["status", "--job", "cavity"];
    let done = crate::answer(&job);
    // Other tests have agents on this machine too, and kill them.
    let ends = |line: &str| line.contains("does not answer; it may be ending");
    assert!(done.stderr.lines().all(ends), "{}", done.stderr);
    assert_eq!(done.code, 0);
    assert!(
        done.stdout.contains("here") && done.stdout.contains("no session"),
        "{}",
        done.stdout
    );
    let mut with_json = vec!["--json"];
    with_json.extend(job);
    let document = crate::answer(&with_json).json();
    let agents = document["agents"].as_array().unwrap();
    assert!(
        agents
            .iter()
            .any(|agent| agent["node"] == "here" && agent["job"] == "cavity"),
        "{document}"
    );
    let nobody = crate::answer(&["status", "--job", "nobody"]).stdout;
    let none = [
        "no agents of job nobody are on this machine\n",
        // One of another test is ending just now.
        "no agent of job nobody answers\n",
    ];
    assert!(none.contains(&nobody.as_str()), "{nobody}");
    child.kill().unwrap();
    child.wait().unwrap();
}

// Breaks if: the paces of levels stay with the ranks, or a step that goes to one level counts as
// not safe at the other.
#[test]
fn status_shows_the_pattern_in_force() {
    let scratch = Scratch::new();
    let job = format!("paced-{}", std::process::id());
    let options = format!(
        "global = '{}'\nnode_dir = '{}'\nagent = 'start'\nagent_program = '{}'\nnode_name = 'here'\npool = '4 MiB'\nchunk = '64 KiB'\n\
         [level.node]\nevery_s = 0.01\n[level.global]\nevery_s = 3600\n",
        scratch.dir("pfs").display(),
        scratch.dir("local").display(),
        env!("CARGO_BIN_EXE_orcheck")
    );
    let mut program = Running::start("computes", &job, &options);
    program.wait_for("ready");
    let ask = ["--json", "status", "--job", &job];
    until("the weaker level has steps", || {
        let session = crate::answer(&ask).json()["agents"][0]["sessions"][0].clone();
        assert_eq!(
            session["committed_global"],
            serde_json::Value::Null,
            "{session}"
        );
        session["committed_node"].as_u64() > Some(2) && session["pace_node"] == "0.01 s"
    });
    let shown = crate::answer(&ask[1..]).stdout;
    let pattern = "checkpoints at node every 0.01 s, at global every 3600 s";
    assert!(shown.contains(pattern), "{shown}");
    drop(program);
    let code = crate::answer(&["drain", "--job", &job, "--timeout", "20"]).code;
    assert_eq!(code, 0);
}

// Breaks if: the interval that follows from what was measured stays with the ranks.
#[test]
fn status_shows_the_interval_that_a_job_keeps() {
    let scratch = Scratch::new();
    let job = format!("keeps-{}", std::process::id());
    let options = format!(
        "global = '{}'\nagent = 'start'\nagent_program = '{}'\nnode_name = 'here'\npool = '4 MiB'\nchunk = '64 KiB'\n\
         interval = 'auto'\nnode_mtbf_s = 3600\n",
        scratch.dir("pfs").display(),
        env!("CARGO_BIN_EXE_orcheck")
    );
    let mut program = Running::start("computes", &job, &options);
    program.wait_for("ready");
    let ask = ["--json", "status", "--job", &job];
    until("an interval is kept", || {
        let session = crate::answer(&ask).json()["agents"][0]["sessions"][0].clone();
        let microseconds = |name: &str| session[name].as_u64();
        match (microseconds("interval_us"), microseconds("checkpoint_us")) {
            (Some(interval), Some(cost)) => {
                // Young's rule, nearly, unless a flush takes as long.
                let young = (2.0 * cost as f64 * 3.6e9).sqrt();
                let flush = microseconds("safe_after_us").unwrap_or(0) as f64;
                assert!((interval as f64) < young.max(flush) * 1.01, "{session}");
                true
            }
            _ => false,
        }
    });
    let shown = crate::answer(&ask[1..]).stdout;
    assert!(shown.contains("a checkpoint every "), "{shown}");
    drop(program);
    assert_eq!(
        crate::answer(&["drain", "--job", &job, "--timeout", "20"]).code,
        0
    );
}

// Breaks if: the next checkpoint waits for one that nobody flushes any more.
#[test]
fn an_interval_goes_on_when_the_agent_is_killed_in_a_flush() {
    let scratch = Scratch::new();
    let job = format!("killed-{}", std::process::id());
    let options = format!(
        "global = '{}'\nagent = 'start'\nagent_program = '{}'\nnode_name = 'here'\npool = '4 MiB'\nchunk = '64 KiB'\n\
         interval = 'auto'\nmtbf_s = 1\n",
        scratch.dir("pfs").display(),
        env!("CARGO_BIN_EXE_orcheck")
    );
    let mut program = Running::start("tells", &job, &options);
    program.wait_for("ready");
    let (number, _) = agents_with(&job)[0];
    let agent = rustix::process::Pid::from_raw(number as i32).unwrap();
    let send = |signal| rustix::process::kill_process(agent, signal).unwrap();
    // It stages without the agent, which then never writes.
    send(rustix::process::Signal::STOP);
    program.go_on();
    program.wait_for("taken");
    send(rustix::process::Signal::KILL);
    program.wait_for("taken");
    drop(program);
    assert_eq!(
        crate::answer(&["drain", "--job", &job, "--timeout", "20"]).code,
        0
    );
}

fn starting(root: &Path, timeout_s: f64) -> String {
    format!(
        "global = '{}'\nagent = 'start'\nagent_program = '{}'\nnode_name = 'here'\npool = '4 MiB'\nchunk = '64 KiB'\n\
         timeout_s = {timeout_s}\n",
        root.display(),
        env!("CARGO_BIN_EXE_orcheck")
    )
}

/// Starts an agent that may open few files; its process.
fn limited_agent(job: &str, dir: &str) -> u32 {
    let begun = orcheck(&["agent", "--detach", "--job", job, "--node", "here"]);
    let mut shell = Command::new("sh");
    shell.args(["-c", "ulimit -n 200 && exec \"$0\" \"$@\""]);
    shell.arg(begun.get_program()).args(begun.get_args());
    let said = Answer::of(shell.args(["--dir", dir]).output().unwrap());
    assert_eq!(said.code, 0, "{}", said.stderr);
    agents_with(job)[0].0
}

// Breaks if: an agent that somebody else starts is replaced, or its limits are not reported; the
// run would lose checkpoints to a limit that nobody looks for there.
#[test]
fn lower_limits_of_an_agent_that_is_joined_are_told() {
    let scratch = Scratch::new();
    let root = scratch.dir("pfs");
    let job = format!("joined-{}", std::process::id());
    let limited = limited_agent(&job, &root.display().to_string());
    let joins = starting(&root, 20.0).replace("'start'", "'join'");
    let ended = crate::told::supervised(&["--restarts", "0"], "ends", &job, &joins);
    let words = format!(
        "the agent of this node, process {limited}, has a limit of open files (ulimit -n): 200"
    );
    assert!(ended.stderr.contains(&words), "{words}: {}", ended.stderr);
}

// Breaks if: an agent keeps the limits of whoever started it; runs without limits would lose
// checkpoints to them.
#[test]
fn an_agent_with_lower_limits_is_replaced() {
    let scratch = Scratch::new();
    let root = scratch.dir("pfs");
    let job = format!("limited-{}", std::process::id());
    let dir = root.display().to_string();
    let limited = limited_agent(&job, &dir);
    let began = Instant::now();
    let mut program = Running::start("computes", &job, &starting(&root, 20.0));
    program.wait_for("ready");
    // Breaks if: the agent and the run wait for each other until one gives up.
    assert!(began.elapsed() < Duration::from_secs(8));
    let others = || -> Vec<_> {
        let all = agents_with(&job).into_iter();
        all.filter(|one| one.0 != limited).collect()
    };
    let there = others();
    assert_eq!(there.len(), 1, "{:?}", agents_with(&job));
    drop(program);
    // Breaks if: one with the same limits is replaced, with all that it keeps.
    let mut again = Running::start("computes", &job, &starting(&root, 20.0));
    again.wait_for("ready");
    assert_eq!(others(), there);
    drop(again);
    let drained = crate::answer(&["drain", "--job", &job, "--timeout", "20"]);
    assert_eq!(drained.code, 0, "{}", drained.stderr);
}

// Breaks if: an agent that does not answer is waited for longer than the job's own limit, or
// another one is advised.
#[test]
fn an_agent_that_is_stopped_is_named() {
    let scratch = Scratch::new();
    let root = scratch.dir("pfs");
    let job = format!("stopped-{}", std::process::id());
    let dir = root.display().to_string();
    let begin = [
        "agent", "--detach", "--job", &job, "--node", "here", "--dir", &dir,
    ];
    assert_eq!(crate::answer(&begin).code, 0);
    let (number, _) = agents_with(&job)[0];
    let agent = rustix::process::Pid::from_raw(number as i32).unwrap();
    rustix::process::kill_process(agent, rustix::process::Signal::STOP).unwrap();
    let began = Instant::now();
    let (_, said) = Running::start("computes", &job, &starting(&root, 1.0)).end();
    let took = began.elapsed();
    rustix::process::kill_process(agent, rustix::process::Signal::KILL).unwrap();
    assert!(took < Duration::from_secs(8), "{took:?}: {said}");
    for part in [
        format!("process {number}, is stopped and has not answered for 1 s"),
        format!("kill -CONT {number}"),
    ] {
        assert!(said.contains(&part), "{part}: {said}");
    }
}

// Breaks if: runs that fail to hand anything over renew its time.
#[test]
fn callers_that_hand_nothing_over_do_not_keep_it() {
    let scratch = Scratch::new();
    let mut child = started(&scratch, "n0", "0.5");
    let at = address(&JobName::new("cavity").unwrap(), "n0", scratch.path());
    until("it ends", || {
        if let Ok(mut conn) = Conn::connect(&at, &KEY, &Failpoints::none(), SOON) {
            let begins = AgentMessage::Adopt { job: vec![1] };
            let _ = conn.send(&Message::Agent(begins), SOON);
        }
        child.try_wait().unwrap().is_some()
    });
}

/// Another user holds the first name of the agent of job `job` on node `here`.
fn squatted(job: &str, root: &Path, squat: Squat) -> Squatter {
    let name = JobName::new(job).unwrap();
    let Address::Abstract(first) = address(&name, "here", root) else {
        unreachable!()
    };
    let decoy = format!("{first}-00112233445566778899aabbccddeeff");
    let names = [first, decoy].map(|name| (name.into_bytes(), squat));
    Squatter::hold(65534, &names)
}

// Breaks if: whoever takes the agent's name first keeps the job from running, or is not named.
#[test]
fn another_user_who_holds_the_name_of_an_agent_stops_no_job() {
    if orcheck_io::machine::effective_uid() != 0 {
        println!("SKIPPED another_user_who_holds_the_name_of_an_agent_stops_no_job: needs root");
        return;
    }
    // Agents of other tests on this machine have their names to themselves.
    own_network().unwrap();
    for (at, squat) in [Squat::Listens, Squat::Idle, Squat::Full]
        .into_iter()
        .enumerate()
    {
        let scratch = Scratch::new();
        let root = scratch.dir("pfs");
        let job = format!("squatted-{at}-{}", std::process::id());
        let squatter = squatted(&job, &root, squat);
        let root = root.display().to_string();
        let options = format!(
            "global = '{root}'\nagent = 'start'\nagent_program = '{}'\nagent_linger_s = 60\nnode_name = 'here'\n\
             pool = '4 MiB'\nchunk = '64 KiB'\n",
            env!("CARGO_BIN_EXE_orcheck")
        );
        let mut program = Running::start("deaf", &job, &options);
        program.wait_for("sealed true");
        let own = Answer::of(
            orcheck(&["status", "--job", &job, "--json"])
                .output()
                .unwrap(),
        );
        let agents = &own.json()["agents"];
        assert_eq!(agents.as_array().map(Vec::len), Some(1), "{}", own.stdout);
        let who = match squat {
            Squat::Listens => format!(
                "is held by process {} of user nobody (uid 65534); more names of agents held by others: 1",
                std::process::id()
            ),
            Squat::Idle => String::new(),
            Squat::Full => "is held by somebody who takes no calls; more names".to_owned(),
        };
        assert!(own.stdout.contains(&who), "{}", own.stdout);
        // There is one agent, also where the name is free again.
        for squatter in [Some(squatter), None] {
            drop(squatter);
            let second = orcheck(&["agent", "--job", &job, "--node", "here", "--dir", &root]);
            let second = Answer::of({ second }.output().unwrap());
            assert_eq!(second.code, 1, "{}", second.stdout);
            assert!(
                second.stderr.contains("is there already"),
                "{}",
                second.stderr
            );
        }
        drop(program);
        let done = Answer::of(
            orcheck(&["drain", "--job", &job, "--dir", &root, "--timeout", "20"])
                .output()
                .unwrap(),
        );
        assert_eq!(done.code, 0, "{}{}", done.stdout, done.stderr);
        assert!(
            done.stdout.contains("1 agent ended, 0 still there"),
            "{}",
            done.stdout
        );
    }
}

// Breaks if: the message of a job that finds no agent hides who holds its name.
#[test]
fn a_job_without_its_agent_names_who_holds_the_name() {
    if orcheck_io::machine::effective_uid() != 0 {
        println!("SKIPPED a_job_without_its_agent_names_who_holds_the_name: needs root");
        return;
    }
    own_network().unwrap();
    let scratch = Scratch::new();
    let root = scratch.dir("pfs");
    let job = format!("unnamed-{}", std::process::id());
    let _squatter = squatted(&job, &root, Squat::Listens);
    let options = format!(
        "global = '{}'\nagent = 'start'\nagent_program = '/no/such/program'\nnode_name = 'here'\n",
        root.display()
    );
    let (_, said) = Running::start("deaf", &job, &options).end();
    let who = format!("process {} of user nobody (uid 65534)", std::process::id());
    for part in ["/no/such/program", who.as_str(), "agent_program"] {
        assert!(said.contains(part), "{part}: {said}");
    }
}
