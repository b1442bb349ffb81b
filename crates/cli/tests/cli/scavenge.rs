//! Tests `scavenge` with real processes: ranks that are killed, and agents that outlive them.
//!
//! The ranks of a job are threads of one program, which is this test program started again: four
//! ranks on four nodes. Their agents are processes of `orcheck agent`. The command is given the
//! directory of one node alone, as if the others were elsewhere.

use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use orcheck_client::{Environment, Options, Session, Which};
use orcheck_engine::directory::epoch::{Claimant, claim as take_claim};
use orcheck_engine::encoding::Trust;
use orcheck_format::disk::FileName;
use orcheck_format::{Dtype, JobName, Level, RunId, Step};
use orcheck_io::clock::SystemClock;
use orcheck_io::failpoints::Failpoints;
use orcheck_io::memory::Span;
use orcheck_jobs::support::Threads;
use orcheck_staging::open_dir;
use orcheck_testing::Scratch;

use crate::encrypted::KEY;
use crate::program::{Running, say};
use crate::{Answer, answer, orcheck};
use orcheck_fixtures::reading::{Scratch as Files, Spec, Written, claim, epoch, flip, write};

const WHAT: &str = "ORCHECK_TEST_RANKS";
const ROOT: &str = "ORCHECK_TEST_ROOT";
const JOB: &str = "ORCHECK_TEST_RANKS_JOB";
const MORE: &str = "ORCHECK_TEST_RANKS_OPTIONS";
pub(crate) const NODES: [&str; 4] = ["a", "b", "c", "d"];
const LONG: Duration = Duration::from_secs(60);
const BYTES: usize = 300_000;

/// What a rank holds in a step: every 8 bytes say rank, step and offset.
fn payload(rank: u32, step: u64) -> Vec<u8> {
    let word = |at: usize| (u64::from(rank) << 56 | step << 32 | at as u64).to_le_bytes();
    (0..BYTES / 8).flat_map(word).collect()
}

/// The ranks. In a run of the tests nobody tells them anything. `what` is a list of words:
/// `step N` takes it and waits until it is safe on the nodes, `global N` until it is safe at that
/// level, `stage N` does not wait; `from N` restarts from that step, `stop` waits for input.
#[test]
fn ranks() {
    let Ok(what) = std::env::var(WHAT) else {
        return;
    };
    let root = PathBuf::from(std::env::var(ROOT).unwrap());
    let (job, more) = (std::env::var(JOB).unwrap(), std::env::var(MORE).unwrap());
    let (what, root, job, more) = (&what, &root, &job, &more);
    // Nobody says what not all have done.
    let all = &std::sync::Barrier::new(4);
    std::thread::scope(|scope| {
        for (rank, world) in (0u32..).zip(Threads::world(4)) {
            scope.spawn(move || rank_of(rank, world, (what, all), (root, job, more)));
        }
    });
}

fn rank_of(
    rank: u32,
    world: Threads,
    (what, all): (&str, &std::sync::Barrier),
    (root, job, more): (&Path, &str, &str),
) {
    let node = NODES[rank as usize];
    let options = format!(
        "node_dir = '{}'\nnode_name = '{node}'\npeers = 1\nchunk = '64 KiB'\npool = '4 MiB'\nagent = 'start'\n\
         agent_program = '{}'\nagent_linger_s = 60\ntake_over_wait_s = 0.0\n{more}",
        root.join("local").display(),
        env!("CARGO_BIN_EXE_orcheck"),
    );
    let options = Options::from_text(&options);
    let world = Box::new(world);
    let mut session = Session::open_with(job, world, options, Environment::default()).unwrap();
    let mut bytes = vec![0; BYTES / 8 * 8];
    session
        .protect("u", Span::from_mut(&mut bytes), Dtype::U8, 0)
        .unwrap();
    let said = |text: String| {
        all.wait();
        if rank == 0 {
            say(&text);
        }
    };
    if rank == 0 {
        while let Some(warning) = session.take_warning() {
            say(&format!("warns: {warning}"));
        }
    }
    let mut words = what.split_whitespace();
    if words.clone().next() != Some("from") {
        match session.find() {
            Ok(_) => said(format!("began {}", session.restart().unwrap())),
            Err(_) => said("began 0".to_owned()),
        }
    }
    while let Some(word) = words.next() {
        let mut number = || words.next().unwrap().parse::<u64>().unwrap();
        match word {
            "from" => {
                session.find_step(Which::Exactly(Step(number()))).unwrap();
                said(format!("began {}", session.restart().unwrap()));
            }
            "global" | "step" | "stage" => {
                let step = number();
                bytes.copy_from_slice(&payload(rank, step));
                session.checkpoint(step).unwrap();
                let level = match word {
                    "global" => Some(Level::Global),
                    "step" => Some(Level::Peers(1)),
                    _ => None,
                };
                if let Some(level) = level {
                    session.wait(step, level, LONG).unwrap();
                }
                said(format!("taken {step}"));
            }
            _ => {
                said("waits".to_owned());
                // The end of its input is the end of the test that started it.
                let _ = std::io::stdin().read(&mut [0]);
            }
        }
    }
}

/// A job of a test, with its directories and agents.
pub(crate) struct Site {
    scratch: Scratch,
    pub(crate) job: String,
    options: String,
    /// Source of the key, for the commands.
    key: String,
}

impl Site {
    pub(crate) fn new(test: &str) -> Self {
        let scratch = Scratch::new(test);
        for name in ["local", "pfs"] {
            std::fs::create_dir(scratch.path().join(name)).unwrap();
        }
        Site {
            job: format!("scavenge-{test}-{}", std::process::id()),
            options: String::new(),
            key: String::new(),
            scratch,
        }
    }

    pub(crate) fn with(mut self, options: &str) -> Self {
        self.options = options.to_owned();
        self
    }

    /// The directory of a node.
    pub(crate) fn node(&self, node: &str) -> PathBuf {
        self.scratch.path().join("local").join(&self.job).join(node)
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.scratch.path().join(name).display().to_string()
    }

    pub(crate) fn run(&self, what: &str) -> Running {
        let own = std::env::current_exe().unwrap();
        let mut command = Command::new(own);
        command.args(["--exact", "scavenge::ranks", "--nocapture"]);
        command.env(WHAT, what).env(ROOT, self.scratch.path());
        command.env(JOB, &self.job).env(MORE, &self.options);
        Running::of(command)
    }

    /// Runs the ranks until they wait, and kills all of them at once.
    pub(crate) fn kill_after(&self, what: &str) {
        let mut ranks = self.run(&format!("{what} stop"));
        ranks.wait_for("waits");
        drop(ranks);
    }

    /// The command, from the node `a`, where no other node's directory is visible.
    fn command(&self, more: &[&str]) -> Command {
        let (node, pfs) = (self.node("a").display().to_string(), self.path("pfs"));
        let mut command = orcheck(&[&["scavenge", &node, "--global", &pfs][..], more].concat());
        command.env("ORCHECK_ENCRYPT_KEY", &self.key);
        command
    }

    pub(crate) fn answer(&self, arguments: &[&str]) -> Answer {
        let mut command = orcheck(arguments);
        command.env("ORCHECK_ENCRYPT_KEY", &self.key);
        Answer::of(command.output().unwrap())
    }

    pub(crate) fn scavenge(&self, more: &[&str]) -> Answer {
        Answer::of(self.command(more).output().unwrap())
    }

    fn start(&self, more: &[&str]) -> Child {
        let mut command = self.command(more);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().unwrap()
    }

    /// The processes of the agents, with their nodes.
    pub(crate) fn agents(&self) -> Vec<(String, String)> {
        let all = std::fs::read_dir("/proc").unwrap().flatten();
        let lines = all.filter_map(|entry| {
            let pid = entry.file_name().to_str()?.to_owned();
            pid.parse::<u32>().ok()?;
            let line = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
            let line = String::from_utf8_lossy(&line).into_owned();
            let words: Vec<&str> = line.split('\0').collect();
            let at = words.iter().position(|word| *word == "--node")?;
            let own = words.contains(&"--detached") && words.contains(&self.job.as_str());
            own.then(|| (words[at + 1].to_owned(), pid))
        });
        lines.collect()
    }

    pub(crate) fn signal(&self, nodes: &[&str], signal: &str) {
        for (_, pid) in self
            .agents()
            .iter()
            .filter(|(node, _)| nodes.contains(&&**node))
        {
            let _ = Command::new("kill").args([signal, pid]).status();
        }
    }

    /// A node goes, with its agent and its disk.
    pub(crate) fn lose(&self, node: &str) {
        self.signal(&[node], "-KILL");
        let _ = std::fs::remove_dir_all(self.node(node));
    }

    /// Containers of a step in the directory of a node.
    fn containers(&self, node: &str, step: u64) -> usize {
        let Ok(entries) = std::fs::read_dir(self.node(node)) else {
            return 0;
        };
        let of_step = |name: &str| matches!(FileName::parse(name), Some(FileName::Container { step: of, .. }) if of.0 == step);
        let names = entries.flatten().map(|entry| entry.file_name());
        names
            .filter(|name| name.to_str().is_some_and(of_step))
            .count()
    }

    /// Nothing is at level global, not even in part.
    fn is_untouched(&self) -> bool {
        let dir = self.scratch.path().join("pfs").join(&self.job);
        std::fs::read_dir(dir).is_ok_and(|entries| entries.count() == 0)
            || !self.scratch.path().join("pfs").join(&self.job).exists()
    }

    /// Every rank's bytes at level global alone are those of the step, and the step is the newest.
    pub(crate) fn holds(&self, step: u64) {
        for node in NODES {
            self.lose(node);
        }
        let pfs = self.path("pfs");
        let verified = self.answer(&["verify", "--job", &self.job, "--dir", &pfs]);
        assert_eq!(verified.code, 0, "{}{}", verified.stdout, verified.stderr);
        for rank in 0..4 {
            let out = self.path("restored");
            let rank_ = rank.to_string();
            let common = ["restore", "--job", &self.job, "--dir", &pfs, "--force"];
            let more = ["--rank", &rank_, "--region", "u", "--out", &out];
            let restored = self.answer(&[&common[..], &more].concat());
            assert_eq!(restored.code, 0, "{}", restored.stderr);
            let bytes = std::fs::read(&out).unwrap();
            assert!(bytes == payload(rank, step), "rank {rank} of step {step}");
        }
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        self.signal(&NODES, "-KILL");
    }
}

pub(crate) fn words(answer: &Answer, code: i32, words: &[&str]) {
    let said = format!("{}{}", answer.stdout, answer.stderr);
    assert_eq!(answer.code, code, "{said}");
    for word in words {
        assert!(said.contains(word), "{word}: {said}");
    }
}

// Breaks if: nodes are not asked, or what they answer is not believed.
#[test]
fn what_killed_ranks_left_with_their_agents_is_taken() {
    let site = Site::new("killed");
    site.kill_after("step 1 step 2 step 3");
    words(
        &site.scavenge(&["--dry-run"]),
        0,
        &["would take step 3", "(level peers(1), epoch 1-"],
    );
    assert!(site.is_untouched());
    let taken = site.scavenge(&["--json"]);
    words(&taken, 0, &[]);
    let document = taken.json();
    assert_eq!(
        (
            &document["step"],
            &document["was_there"],
            &document["safe_step"]
        ),
        (&3.into(), &false.into(), &serde_json::Value::Null)
    );
    assert_eq!(document["asked"], serde_json::json!(NODES));
    assert_eq!(document["containers"].as_array().unwrap().len(), 4);
    words(
        &site.scavenge(&[]),
        0,
        &["nothing to take; the newest step at level global is 3"],
    );
    site.holds(3);
}

// Breaks if: replicas do not stand for the containers of a lost node, or a part is taken.
#[test]
fn lost_nodes_are_replaced_by_replicas_or_named() {
    let site = Site::new("lost");
    site.kill_after("step 1 step 2");
    site.lose("d");
    words(
        &site.scavenge(&[]),
        0,
        &["took step 2", "node d was not read"],
    );
    site.holds(2);
    let site = Site::new("lost-more");
    site.kill_after("step 1 step 2");
    for node in ["d", "c", "b"] {
        site.lose(node);
    }
    let whole = [1, 2].map(|step| site.containers("a", step) == 4);
    let taken = site.scavenge(&["--json", "--timeout", "0.2"]);
    if whole == [false, false] {
        words(
            &taken,
            15,
            &[
                "nothing was taken: step 2 at level peers(1) is not complete here",
                "(rank ",
            ],
        );
        assert!(site.is_untouched());
    } else {
        assert!(taken.code == 0 || taken.code == 3, "{}", taken.stdout);
    }
}

// Breaks if: what parity gives is not read; or what is beyond it is filled in.
#[test]
fn lost_nodes_are_computed_from_parity_or_named() {
    let site = Site::new("lost-parity").with("protect = 'xor=4'");
    site.kill_after("step 1 step 2 stop");
    site.lose("b");
    let found = site.scavenge(&[]);
    words(&found, 0, &["step 2"]);
    site.holds(2);

    let site = Site::new("lost-parity-more").with("protect = 'xor=4'");
    site.kill_after("step 1 step 2 stop");
    site.lose("b");
    site.lose("d");
    let found = site.scavenge(&["--timeout", "1"]);
    words(&found, 15, &["b"]);
    assert!(site.is_untouched());
}

// Breaks if: without agents, other nodes are out of reach; or what serves in their place takes the
// place of somebody who serves.
#[test]
fn nodes_without_agents_are_served_by_a_process_each() {
    let site = Site::new("served");
    site.kill_after("step 2");
    let serve = |node: &str, more: &[&str]| {
        let dir = site.node(node).display().to_string();
        orcheck(&[&["scavenge", "--serve", &dir][..], more].concat())
    };
    let taken = Answer::of(serve("b", &[]).output().unwrap());
    words(
        &taken,
        1,
        &["in the place of the keeper of node 'b'", "Next: leave it"],
    );
    site.signal(&NODES, "-KILL");
    if site.containers("a", 2) < 4 {
        // Until its deadline it waits for nodes that may still come.
        let begin = Instant::now();
        words(
            &site.scavenge(&["--timeout", "2"]),
            15,
            &["step 2 at level peers(1) is not complete here"],
        );
        assert!(begin.elapsed() >= Duration::from_secs(2));
    }
    let waits = site.start(&["--timeout", "60"]);
    let mut served: Vec<Running> = ["b", "c"]
        .iter()
        .map(|node| Running::of(serve(node, &["--timeout", "60"])))
        .collect();
    for one in &mut served {
        one.wait_for(&format!("job {}: gives out what is on", site.job));
    }
    let taken = Answer::of(waits.wait_with_output().unwrap());
    // Where `a` and one of the two have everything, it does not wait for the other one. Then two
    // nodes were not read, one more than the level may lose, and the code says so.
    let unread = taken.stderr.matches(" was not read").count();
    let code = if unread > 1 { 3 } else { 0 };
    words(&taken, code, &["took step 2", "node d was not read"]);
    served[0].signal("TERM");
    assert_eq!(served.remove(0).end().0, Some(143));
    let over = Answer::of(serve("b", &["--timeout", "0.1"]).output().unwrap());
    words(&over, 0, &["ready"]);
    site.holds(2);
}

// Breaks if: replicas in the memory of agents are not asked for, or end without a word.
#[test]
fn replicas_in_memory_are_scavenged() {
    let site = Site::new("memory").with("replica_store = 'memory'\nreplica_budget = '64 MiB'\n");
    site.kill_after("step 1");
    site.lose("c");
    assert_eq!(site.containers("a", 1), 1, "only its own is on the disk");
    words(&site.scavenge(&["--timeout", "10"]), 0, &["took step 1"]);
    let drained = site.answer(&["drain", "--job", &site.job, "--timeout", "20"]);
    words(
        &drained,
        0,
        &["of replicas of other nodes, which were in its memory, are gone"],
    );
    site.holds(1);
}

// Breaks if: an agent with lower limits than the next run's ends, although it may have the only
// copy of what other nodes lost.
#[test]
fn an_agent_with_lower_limits_is_kept_for_its_replicas() {
    let site = Site::new("kept").with("replica_store = 'memory'\nreplica_budget = '64 MiB'\n");
    site.kill_after("step 1");
    let of_a = |site: &Site| site.agents().into_iter().find(|(node, _)| node == "a");
    let (_, pid) = of_a(&site).unwrap();
    let mut lowered = Command::new("prlimit");
    lowered.args(["--nofile=200:200", "--pid", &pid]);
    assert!(lowered.status().unwrap().success());
    let mut ranks = site.run("step 2 stop");
    let said = ranks.wait_for("warns: the agent of this node");
    let limit = format!("process {pid}, has a limit of open files (ulimit -n): 200");
    let kept = "it is used anyway, because it may hold replicas";
    assert!(said.contains(&limit) && said.contains(kept), "{said}");
    ranks.wait_for("waits");
    assert_eq!(of_a(&site).map(|one| one.1), Some(pid));
    drop(ranks);
    site.lose("c");
    words(&site.scavenge(&["--timeout", "10"]), 0, &["took step 2"]);
    site.holds(2);
}

// Breaks if: what level global has is not looked at, or an older attempt there is in the way.
#[test]
fn what_level_global_lost_is_taken_to_it_afterwards() {
    let site = Site::new("global");
    let options = format!("global = '{}'\n", site.path("pfs"));
    let site = site.with(&options);
    let mut ranks = site.run("global 1 stop step 2 stop");
    ranks.wait_for("waits");
    let (there, away) = (site.path("pfs"), site.path("away"));
    std::fs::rename(&there, &away).unwrap();
    for _ in 0..4 {
        ranks.go_on();
    }
    ranks.wait_for("waits");
    drop(ranks);
    std::fs::rename(&away, &there).unwrap();
    let taken = site.scavenge(&["--json"]);
    words(&taken, 0, &["could not save step 2 at level global"]);
    let document = taken.json();
    assert_eq!(
        (&document["step"], &document["safe_step"]),
        (&2.into(), &1.into())
    );
    site.holds(2);
}

// Breaks if: the key does not open what nodes hold, or what is taken is no longer encrypted.
#[test]
fn encrypted_steps_are_taken_with_their_key_alone() {
    let mut site = Site::new("encrypted");
    let key = site.scratch.path().join("key");
    std::fs::write(&key, KEY).unwrap();
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o600)).unwrap();
    let source = format!("file:{}", key.display());
    site.options = format!(
        "encrypt = 'aes-256-gcm'\nencrypt_key = '{source}'\ncompress = 'zstd'\nnet = 'tcp'\nnet_encrypt = 'aes-256-gcm'\n"
    );
    site.kill_after("step 1 step 2");
    site.lose("b");
    words(&site.scavenge(&[]), 2, &["Next: "]);
    site.key = source;
    words(&site.scavenge(&[]), 0, &["took step 2"]);
    let listed = site.answer(&["ls", "--json", "--dir", &site.path("pfs")]);
    assert_eq!(listed.json()["checkpoints"][0]["authenticated"], true);
    site.holds(2);
}

// Breaks if: a step is taken whose flush is not over, or the agent's work is not waited for.
#[test]
fn what_agents_still_flush_is_waited_for() {
    let site = Site::new("flush");
    let mut ranks = site.run("step 1 stop stage 2 stop");
    ranks.wait_for("waits");
    site.signal(&NODES, "-STOP");
    for _ in 0..4 {
        ranks.go_on();
    }
    ranks.wait_for("taken 2");
    drop(ranks);
    let late = site.scavenge(&["--timeout", "0.2"]);
    words(&late, 7, &["Next: "]);
    assert!(site.is_untouched());
    let waits = site.start(&["--timeout", "60"]);
    site.signal(&NODES, "-CONT");
    let taken = Answer::of(waits.wait_with_output().unwrap());
    words(&taken, 0, &["took step 2"]);
    site.holds(2);
}

/// Two nodes without peers, all of whose directories are visible.
pub(crate) fn collected(steps: &[u64]) -> (Files, Vec<Written>) {
    let scratch = Files::new();
    let nodes = ["node0", "node1"].map(|node| scratch.dir(&format!("local/cavity/{node}")));
    for node in &nodes {
        claim(node, epoch(1), None);
    }
    let of_step = |&step: &u64| {
        let mut spec = Spec::new(step, 1);
        spec.level = Level::Node;
        write(&nodes, &spec)
    };
    let written = steps.iter().map(of_step).collect();
    (scratch, written)
}

// Breaks if: an older step is taken without a word, or what is missing is not named.
#[test]
fn a_newer_step_that_is_not_whole_is_named() {
    let (scratch, written) = collected(&[5, 10]);
    let (local, pfs) = (scratch.dir("local"), scratch.dir("pfs"));
    let (local, pfs) = (local.display().to_string(), pfs.display().to_string());
    let common = ["scavenge", "--node-dir", &local, "--global", &pfs];
    let scavenge = |more: &[&str]| answer(&[&common[..], more].concat());
    let missing = "step 10 at level node is not complete here: 1 of its 2 containers is incomplete or missing: node 1 'node1' (rank";
    std::fs::remove_file(&written[1].paths[1]).unwrap();
    words(
        &scavenge(&["--strict"]),
        10,
        &["nothing was taken", missing],
    );
    words(
        &scavenge(&["--dry-run"]),
        3,
        &["would take step 5", missing],
    );
    assert_eq!(std::fs::read_dir(&pfs).unwrap().count(), 0);
    let taken = scavenge(&["--json"]);
    words(&taken, 3, &[]);
    assert_eq!(taken.json()["left"][0]["step"], 10);
    words(&answer(&["verify", "--dir", &pfs]), 0, &["5"]);
    // What remains newer is named again, and is no success.
    words(&scavenge(&[]), 3, &["nothing to take: step 5", missing]);
    // Containers without a commit record are named, and never put together.
    let (scratch, _) = collected(&[5, 10]);
    let (local, pfs) = (scratch.dir("local"), scratch.dir("pfs"));
    for node in ["node0", "node1"] {
        let entries = std::fs::read_dir(local.join("cavity").join(node)).unwrap();
        let is_record = |name: &str| matches!(FileName::parse(name), Some(FileName::Commit { step, .. }) if step.0 == 10);
        for entry in entries.flatten() {
            if entry.file_name().to_str().is_some_and(is_record) {
                std::fs::remove_file(entry.path()).unwrap();
            }
        }
    }
    let (local, pfs) = (local.display().to_string(), pfs.display().to_string());
    let taken = answer(&["scavenge", "--node-dir", &local, "--global", &pfs]);
    let named = "step 10 of epoch 1 was never committed, so it is not taken (2 nodes hold containers of it)";
    words(&taken, 0, &["took step 5", named]);
    // Damage that only reading finds.
    let (scratch, written) = collected(&[5, 10]);
    flip(&written[1].paths[0], 8192 + 100, 3);
    let (local, pfs) = (scratch.dir("local"), scratch.dir("pfs"));
    let (local, pfs) = (local.display().to_string(), pfs.display().to_string());
    let taken = answer(&["scavenge", "--node-dir", &local, "--global", &pfs]);
    words(
        &taken,
        3,
        &[
            "took step 5",
            "step 10 at level node is newer, and was left",
        ],
    );
    words(&answer(&["verify", "--dir", &pfs]), 0, &["5"]);
}

// Breaks if: where no node was read, there is nothing to take all the same.
#[test]
fn nodes_that_nobody_looked_at_are_not_empty() {
    let (scratch, _) = collected(&[5]);
    let (local, pfs) = (scratch.dir("local"), scratch.dir("pfs"));
    let (local, pfs) = (local.display().to_string(), pfs.display().to_string());
    words(
        &answer(&["scavenge", "--node-dir", &local, "--global", &pfs]),
        0,
        &["took step 5"],
    );
    let none = answer(&["scavenge", "--dir", &pfs]);
    words(
        &none,
        10,
        &[
            "no directory of a node of job cavity is here",
            "Next: run it on a node",
        ],
    );
    std::fs::remove_dir_all(scratch.path().join("local/cavity/node1")).unwrap();
    let part = answer(&["scavenge", "--node-dir", &local, "--global", &pfs]);
    words(&part, 15, &["node1", "is not known"]);
    words(
        &answer(&["scavenge", "--node-dir", &local]),
        2,
        &["Next: give --global ROOT"],
    );
}

// Breaks if: two write at once, or the second damages what the first wrote.
#[test]
fn two_at_once_leave_one_good_copy() {
    let site = Site::new("two");
    site.kill_after("step 1 step 2");
    // The agents have finished then.
    words(&site.scavenge(&["--dry-run"]), 0, &["would take step 2"]);
    // One that holds its claim keeps the other waiting, until its deadline.
    let pfs = site.scratch.path().join("pfs").join(&site.job);
    std::fs::create_dir(&pfs).unwrap();
    let dir = open_dir(&pfs, Failpoints::none()).unwrap();
    let other = Claimant {
        job: JobName::new(&site.job).unwrap(),
        run: RunId([9; 16]),
        host: "elsewhere".into(),
        pid: 7,
        uid: 0,
        world_size: 4,
        nodes: NODES.map(str::to_owned).to_vec(),
        trust: Trust::nobody(),
    };
    let held = take_claim(&[dir], &other, 2, &SystemClock::new()).unwrap();
    let late = site.scavenge(&["--timeout", "0.2"]);
    words(
        &late,
        7,
        &[
            "held by another run: process 7",
            "another scavenge ends by itself",
        ],
    );
    drop(held);
    assert!(site.is_untouched());
    let both = [site.start(&[]), site.start(&[])];
    let both = both.map(|child| Answer::of(child.wait_with_output().unwrap()));
    let took = |answer: &Answer| answer.stdout.starts_with("took step 2");
    for answer in &both {
        words(answer, 0, &[]);
    }
    assert!(
        both.iter().any(took),
        "{}{}",
        both[0].stdout,
        both[1].stdout
    );
    site.holds(2);
}

// Breaks if: a part counts, or what a killed one left is in the way of the next one.
#[test]
fn one_that_is_killed_leaves_all_or_nothing() {
    let site = Site::new("cut");
    site.kill_after("step 1 step 2");
    let pfs = site.path("pfs");
    let written = || {
        let entries = std::fs::read_dir(site.scratch.path().join("pfs").join(&site.job));
        let names = entries.into_iter().flatten().flatten();
        names
            .filter(|entry| entry.file_name().to_string_lossy().contains(".orc"))
            .count()
    };
    for files in 1..=4 {
        let mut child = site.start(&[]);
        while written() < files && child.try_wait().unwrap().is_none() {
            std::thread::yield_now();
        }
        child.kill().unwrap();
        child.wait().unwrap();
        let found = answer(&["verify", "--job", &site.job, "--dir", &pfs]);
        // Where it was faster than this test, it must be whole.
        if found.code == 0 {
            break;
        }
        words(&found, 4, &["no committed checkpoint"]);
    }
    words(&site.scavenge(&[]), 0, &["step"]);
    site.holds(2);
}

// Breaks if: a step is taken from under a run that is alive.
#[test]
fn scavenge_waits_for_a_run() {
    let site = Site::new("alive");
    site.kill_after("step 1 step 2");
    let mut next = site.run("step 3 stop");
    next.wait_for("waits");
    let refused = site.scavenge(&["--timeout", "0.2"]);
    words(&refused, 7, &["Next: "]);
    assert!(site.is_untouched());
    drop(next);
    words(&site.scavenge(&[]), 0, &["took step 3"]);
    site.holds(3);
    // One that began, and died before it took anything, is not in the way.
    let site = Site::new("began");
    site.kill_after("step 1 step 2");
    site.kill_after("");
    words(&site.scavenge(&[]), 0, &["took step 2"]);
    site.holds(2);
}

// Breaks if: a step that a newer run went back from is newest because it is the highest.
#[test]
fn what_a_newer_run_superseded_is_not_taken() {
    let site = Site::new("superseded");
    site.kill_after("step 1 step 2 step 5");
    let (node, kept) = (site.node("c"), site.scratch.path().join("kept"));
    // Its agent may still be removing files.
    let copy = |from: &Path, to: &Path| {
        for entry in std::fs::read_dir(from).unwrap().flatten() {
            let to = to.join(entry.file_name());
            if !to.exists() {
                let _ = std::fs::copy(entry.path(), to);
            }
        }
    };
    std::fs::create_dir(&kept).unwrap();
    copy(&node, &kept);
    site.kill_after("from 2 step 3");
    // The agents have finished then, and prune no more.
    words(&site.scavenge(&["--dry-run"]), 0, &["would take step 3"]);
    // What was pruned from a node comes back, as from a snapshot of its disk.
    copy(&kept, &node);
    words(
        &site.scavenge(&["--json"]),
        0,
        &["\"step\": 3", "step 5 of epoch 1", "does not count"],
    );
    site.holds(3);
}
