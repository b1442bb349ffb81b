//! What users of SCR and FTI see happen to their checkpoints, as one table: four ranks on four virtual nodes take steps 1
//! and 2, something happens, and a restart gives a step, a fresh start or an error, with the words that the user reads.
//!
//! How: every run is a process of its own, so that it can be killed; its ranks are threads. The restart writes down what
//! each rank got and was told.

use crate::support::{Job, State, make_dir};
use crate::trial::PATIENCE;
use orcheck_client::Session;
use orcheck_format::error::{ErrorKind, Result};
use orcheck_format::ids::Level;
use orcheck_io::steps::Verdict as Do;
use orcheck_io::testing::{Child, Ended, FaultPlan, Scratch};
use std::path::{Path, PathBuf};
use std::time::Duration;

const NODES: [&str; 4] = ["a", "b", "c", "d"];
const LONG: Duration = Duration::from_secs(30);
/// Size of the payload of a rank, in KiB and a bit.
const SCALE: usize = 20;

/// Where checkpoints go: directories of level `global`, and what a node's directory survives.
#[derive(Clone, Copy)]
struct Levels {
    dirs: u32,
    node: bool,
    losses: u8,
}

const NODE: Levels = Levels {
    dirs: 0,
    node: true,
    losses: 0,
};
const GLOBAL: Levels = Levels {
    dirs: 2,
    node: false,
    losses: 0,
};
const BOTH: Levels = Levels { dirs: 1, ..NODE };
const PEERS1: Levels = Levels { losses: 1, ..NODE };
const PEERS2: Levels = Levels { losses: 2, ..NODE };
const PEERS1_GLOBAL: Levels = Levels { losses: 1, ..BOTH };

/// What a restart gives.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Gives {
    Step(u64),
    /// One of these on all ranks: the kill comes as the second is committed.
    StepOrNext(u64),
    Fresh,
    Refused(ErrorKind),
}

struct Scenario {
    name: &'static str,
    levels: Levels,
    happens: fn(&Scene),
    /// Where the restart finds the directories, below those of the first run.
    root: &'static str,
    /// The nodes of the ranks at the restart.
    home: [&'static str; 4],
    /// Options of the restart beside those of the job.
    options: &'static str,
    gives: Gives,
    /// Each is in what some rank is told; without any, nobody is told anything.
    told: &'static [&'static str],
    /// Whether somebody is told something depends on the nodes that were drawn for the copies.
    either: bool,
}

/// The directories of one scenario.
struct Scene<'a> {
    root: &'a Path,
    levels: Levels,
}

impl Scene<'_> {
    fn job(&self) -> Job {
        let job = Job::new(self.root, 4, self.levels.dirs, self.levels.node).placed(&NODES);
        match self.levels.losses {
            0 => job,
            losses => job.with(&format!("peers = {losses}")),
        }
    }

    fn node_dir(&self, node: &str) -> PathBuf {
        self.root.join("local/job").join(node)
    }

    /// The node's directory is gone.
    fn erase(&self, node: &str) {
        std::fs::remove_dir_all(self.node_dir(node)).unwrap();
    }

    /// All files below the root whose path has all of these parts.
    fn files(&self, parts: &[&str]) -> Vec<PathBuf> {
        let found = self.files_if_there(parts);
        assert!(!found.is_empty(), "no file is called {parts:?}");
        found
    }

    fn files_if_there(&self, parts: &[&str]) -> Vec<PathBuf> {
        let mut found = Vec::new();
        let mut dirs = vec![self.root.to_owned()];
        while let Some(dir) = dirs.pop() {
            for entry in std::fs::read_dir(&dir).unwrap() {
                let path = entry.unwrap().path();
                let text = path.strip_prefix(self.root).unwrap().display().to_string();
                if path.is_dir() {
                    dirs.push(path);
                } else if parts.iter().all(|part| text.contains(part)) {
                    found.push(path);
                }
            }
        }
        found
    }

    /// One bit of their data is flipped.
    fn corrupt(&self, parts: &[&str]) {
        for path in self.files(parts) {
            let mut bytes = std::fs::read(&path).unwrap();
            bytes[9000] ^= 4;
            std::fs::write(&path, bytes).unwrap();
        }
    }

    /// Half of each is left.
    fn truncate(&self, parts: &[&str]) {
        for path in self.files(parts) {
            let file = std::fs::File::options().write(true).open(&path).unwrap();
            file.set_len(file.metadata().unwrap().len() / 2).unwrap();
        }
    }

    /// The directories of the job are elsewhere from now on.
    fn move_to(&self, place: &str) {
        let place = self.root.join(place);
        make_dir(&place);
        for name in ["ost0", "ost1", "local"] {
            let from = self.root.join(name);
            if from.exists() {
                std::fs::rename(from, place.join(name)).unwrap();
            }
        }
    }

    /// All files of a directory are in the one above it, which is what a careless copy makes of them.
    fn flatten(&self, dir: &str) {
        let dir = self.root.join(dir);
        for entry in std::fs::read_dir(&dir).unwrap() {
            let entry = entry.unwrap();
            let above = dir.parent().unwrap().join(entry.file_name());
            std::fs::rename(entry.path(), above).unwrap();
        }
        std::fs::remove_dir(dir).unwrap();
    }

    fn rename(&self, from: &str, to: &str) {
        std::fs::rename(self.root.join(from), self.root.join(to)).unwrap();
    }

    /// A node's directory is gone, and those of all nodes that hold copies of its part of step 2.
    fn erase_with_partners(&self, node: &str, part: &str) {
        for copy in self.files(&["s000000000002-", part, ".orc"]) {
            let dir = copy.parent().unwrap();
            if dir.starts_with(self.root.join("local")) && dir.exists() {
                std::fs::remove_dir_all(dir).unwrap();
            }
        }
        assert!(
            !self.node_dir(node).exists(),
            "{part} is not of node {node}"
        );
    }

    fn remove(&self, parts: &[&str]) {
        assert!(
            self.remove_if_there(parts) > 0,
            "no file is called {parts:?}"
        );
    }

    fn remove_if_there(&self, parts: &[&str]) -> usize {
        let files = self.files_if_there(parts);
        for path in &files {
            std::fs::remove_file(path).unwrap();
        }
        files.len()
    }

    /// The run that takes steps 1 and 2.
    fn takes_two(&self) {
        let job = self.job();
        let ended = Child::run(|| {
            job.run(|session, rank| takes(session.unwrap(), rank, &[1, 2]));
            0
        });
        assert_eq!(ended.wait(PATIENCE), Ended::Exited(0), "the first run");
    }

    /// Three runs in turn are killed while they read.
    fn restart_is_killed(&self) {
        for nth in [1, 3, 4] {
            self.killed("restart.region", "", nth);
        }
    }

    /// A run that resumes and takes step 3 is killed before the nth effect of a site on such a target.
    fn killed(&self, site: &str, target: &str, nth: u64) {
        let plan = FaultPlan::new()
            .at_site(site, nth, Do::Kill)
            .only_where(target);
        let (_, steps) = plan.steps();
        let job = self.job().steps(steps);
        let ended = Child::run(|| {
            job.run(|session, rank| {
                let mut session = session.unwrap();
                let mut state = State::empty(rank, SCALE);
                session.find().unwrap();
                state.protect(&mut session).unwrap();
                session.restart().unwrap();
                takes(session, rank, &[3]);
            });
            0
        });
        let ended = ended.wait(PATIENCE);
        assert_eq!(ended, Ended::Signaled(9), "{site} of {target}, {nth}");
    }
}

/// Takes checkpoints and ends; what is not safe is a failed test.
fn takes(mut session: Session, rank: u32, steps: &[u64]) {
    for &step in steps {
        let mut state = State::new(rank, step, SCALE);
        state.protect(&mut session).unwrap();
        session.checkpoint(step).unwrap();
        session.wait(step, Level::Node, LONG).unwrap();
    }
    session.close(LONG).unwrap();
}

/// What one rank gets at a restart, and what it is told, a line each.
fn comes_back(session: Result<Session>, rank: u32) -> (Result<Option<u64>>, Vec<String>) {
    let mut session = match session {
        Ok(session) => session,
        Err(error) => return (Err(error), Vec::new()),
    };
    let mut state = State::empty(rank, SCALE);
    let found = match session.find() {
        Ok(_) => (state.protect(&mut session))
            .and_then(|()| session.restart())
            .map(Some),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    };
    if let Ok(Some(step)) = found {
        assert!(state.is(rank, step, SCALE), "rank {rank}: wrong bytes");
    }
    let told = std::iter::from_fn(|| session.take_warning()).collect();
    // All ranks are here and have listened: who leaves first is no news to the others.
    if found.is_ok() {
        session.close(LONG).unwrap();
    }
    (found, told)
}

/// Runs one scenario; what went otherwise than the table says.
fn play(scenario: &Scenario) -> std::result::Result<(), String> {
    let scratch = Scratch::in_memory("scenario");
    let scene = Scene {
        root: scratch.path(),
        levels: scenario.levels,
    };
    scene.takes_two();
    (scenario.happens)(&scene);
    // A directory that is gone with its disk is there again, and empty.
    make_dir(&scratch.path().join("local"));
    let root = scratch.path().join(scenario.root);
    let scene = Scene {
        root: &root,
        ..scene
    };
    let job = scene.job().placed(&scenario.home).with(scenario.options);
    let report = scratch.path().join("report");
    let ended = Child::run(|| {
        let ranks = job.run(comes_back);
        let gives = ranks.iter().map(|(found, _)| match found {
            Ok(Some(step)) => Gives::Step(*step),
            Ok(None) => Gives::Fresh,
            Err(error) => Gives::Refused(error.kind()),
        });
        let mut lines: Vec<String> = gives.map(|gives| format!("{gives:?}")).collect();
        for (found, told) in ranks {
            lines.extend(found.err().map(|error| error.to_string()));
            lines.extend(told);
        }
        std::fs::write(&report, lines.join("\n")).unwrap();
        0
    });
    let ended = ended.wait(PATIENCE);
    if ended != Ended::Exited(0) {
        return Err(format!("the restart ended with {ended:?}"));
    }
    let report = std::fs::read_to_string(&report).unwrap();
    let expected = match scenario.gives {
        Gives::StepOrNext(step) => vec![Gives::Step(step), Gives::Step(step + 1)],
        gives => vec![gives],
    };
    let on_all_ranks = |gives: &Gives| {
        let expected = format!("{gives:?}");
        report.lines().take(4).all(|line| line == expected)
    };
    if !expected.iter().any(on_all_ranks) {
        return Err(format!(
            "expected {:?} on every rank, found {report}",
            scenario.gives
        ));
    }
    for part in scenario.told {
        if !report.contains(part) {
            return Err(format!("nobody is told '{part}', but {report}"));
        }
    }
    // Nothing is said four times: what concerns the job is said by one rank.
    // A run that was killed in a flush may leave containers of a step that it never committed, and that is told.
    let unfinished = |line: &&str| line.contains("and no commit record: its run ended");
    let lines = report.lines().filter(|line| !unfinished(line)).count();
    if scenario.told.is_empty() && !scenario.either && lines > 4 {
        return Err(format!("nothing happened, and the user is told {report}"));
    }
    Ok(())
}

/// A scenario in which nothing happens, from which the others differ.
const CALM: Scenario = Scenario {
    name: "nothing happens",
    levels: PEERS1_GLOBAL,
    happens: |_| {},
    root: "",
    home: NODES,
    options: "",
    gives: Gives::Step(2),
    told: &[],
    either: false,
};

const SCENARIOS: &[Scenario] = &[
    CALM,
    // ---- erased --------------------------------------------------------------------------------
    Scenario {
        name: "a node is erased, and nothing else has its part",
        levels: NODE,
        happens: |scene| scene.erase("b"),
        gives: Gives::Refused(ErrorKind::Corrupt),
        told: &[
            "local/job/b holds nothing of the run",
            "step 2 skipped",
            "step 1 skipped",
        ],
        ..CALM
    },
    Scenario {
        name: "a node is erased, and the file system has its part",
        levels: BOTH,
        happens: |scene| scene.erase("b"),
        told: &["level node: ", "local/job/b holds nothing of the run"],
        ..CALM
    },
    Scenario {
        name: "a node is erased, and its partner has its part",
        levels: PEERS1,
        happens: |scene| scene.erase("b"),
        told: &["read from other nodes"],
        ..CALM
    },
    Scenario {
        name: "one of two directories of the file system is erased",
        levels: GLOBAL,
        happens: |scene| {
            std::fs::remove_dir_all(scene.root.join("ost1/job")).unwrap();
        },
        gives: Gives::Refused(ErrorKind::Corrupt),
        told: &["ost1", "step 2 skipped"],
        ..CALM
    },
    // ---- damaged -------------------------------------------------------------------------------
    Scenario {
        name: "the newest is corrupt",
        levels: NODE,
        happens: |scene| scene.corrupt(&["s000000000002-", "-n0002-"]),
        gives: Gives::Step(1),
        told: &["step 2 skipped", "-n0002-"],
        ..CALM
    },
    Scenario {
        name: "the newest is corrupt, and only the newest will do",
        levels: NODE,
        happens: |scene| scene.corrupt(&["s000000000002-", "-n0002-"]),
        options: "strict = true",
        gives: Gives::Refused(ErrorKind::Corrupt),
        told: &["step 2"],
        ..CALM
    },
    Scenario {
        name: "the newest is corrupt at one of two levels",
        levels: BOTH,
        happens: |scene| scene.corrupt(&["local", "s000000000002-", "-n0002-"]),
        told: &["another copy is used"],
        ..CALM
    },
    Scenario {
        name: "the newest is corrupt on its own node",
        levels: PEERS1,
        happens: |scene| scene.corrupt(&["job/c/", "s000000000002-", "-n0002-"]),
        told: &["another copy is used"],
        ..CALM
    },
    Scenario {
        name: "the newest is truncated",
        levels: GLOBAL,
        happens: |scene| scene.truncate(&["s000000000002-", "-n0003-", ".orc"]),
        gives: Gives::Step(1),
        told: &["step 2 skipped", "-n0003-"],
        ..CALM
    },
    Scenario {
        name: "the newest is truncated on its own node",
        levels: PEERS1,
        happens: |scene| scene.truncate(&["job/d/", "s000000000002-", "-n0003-"]),
        told: &["another copy is used"],
        ..CALM
    },
    Scenario {
        name: "both are corrupt",
        levels: NODE,
        happens: |scene| scene.corrupt(&["-n0002-"]),
        gives: Gives::Refused(ErrorKind::Corrupt),
        told: &["step 2", "step 1", "-n0002-"],
        ..CALM
    },
    // ---- the partner too -----------------------------------------------------------------------
    Scenario {
        name: "the newest is corrupt on its own node and with its partner",
        levels: PEERS1,
        happens: |scene| scene.corrupt(&["s000000000002-", "-n0002-", ".orc"]),
        gives: Gives::Step(1),
        told: &["step 2 skipped", "-n0002-"],
        ..CALM
    },
    Scenario {
        name: "the newest is corrupt on its own node and erased with its partner",
        levels: PEERS1,
        happens: |scene| {
            scene.corrupt(&["job/c/", "s000000000002-", "-n0002-"]);
            for node in ["a", "b", "d"] {
                let part = format!("job/{node}/s000000000002-");
                let copies = scene.files(&[&part]);
                let of_c = |path: &&PathBuf| path.display().to_string().contains("-n0002-");
                for copy in copies.iter().filter(of_c) {
                    std::fs::remove_file(copy).unwrap();
                }
            }
        },
        gives: Gives::Step(1),
        told: &["step 2 skipped", "-n0002-"],
        ..CALM
    },
    Scenario {
        name: "a node is erased, and its part of the newest is corrupt with its partner",
        levels: PEERS1,
        happens: |scene| {
            scene.erase("c");
            scene.corrupt(&["s000000000002-", "-n0002-", ".orc"]);
        },
        gives: Gives::Step(1),
        told: &["step 2 skipped", "-n0002-"],
        ..CALM
    },
    Scenario {
        name: "no copy of one part is left",
        levels: PEERS1,
        happens: |scene| scene.remove(&["-n0002-", ".orc"]),
        gives: Gives::Refused(ErrorKind::Corrupt),
        told: &["-n0002-", "step 2", "step 1"],
        ..CALM
    },
    // ---- two of four nodes ---------------------------------------------------------------------
    Scenario {
        name: "two of four nodes are lost, two may be",
        levels: PEERS2,
        happens: |scene| {
            scene.erase("a");
            scene.erase("c");
        },
        home: ["b", "b", "d", "d"],
        // Two replicas need three nodes: the run that is left with two asks for what they cannot give.
        gives: Gives::Refused(ErrorKind::Invalid),
        told: &["2 replicas", "2 nodes"],
        ..CALM
    },
    Scenario {
        name: "two of four nodes are lost and replaced, two may be",
        levels: PEERS2,
        happens: |scene| {
            scene.erase("a");
            scene.erase("c");
        },
        told: &["read from other nodes"],
        ..CALM
    },
    Scenario {
        name: "two of four nodes are lost, and the file system has their parts",
        levels: PEERS1_GLOBAL,
        happens: |scene| {
            scene.erase("a");
            scene.erase("c");
        },
        either: true,
        ..CALM
    },
    Scenario {
        name: "a node and its partner are lost, one may be",
        levels: PEERS1,
        happens: |scene| {
            scene.erase_with_partners("a", "-n0000-");
            // Another node may have been drawn for step 1.
            scene.remove_if_there(&["s000000000001-", "-n0000-", ".orc"]);
        },
        gives: Gives::Refused(ErrorKind::Corrupt),
        told: &["step 2", "-n0000-"],
        ..CALM
    },
    Scenario {
        name: "a node and its partner are lost, and the file system has their parts",
        levels: PEERS1_GLOBAL,
        happens: |scene| scene.erase_with_partners("a", "-n0000-"),
        told: &["level peers(1): ", "-n0000-"],
        ..CALM
    },
    Scenario {
        name: "three of four nodes are lost, one may be",
        levels: PEERS1,
        happens: |scene| {
            for node in ["a", "b", "c"] {
                scene.erase(node);
            }
            // Node d may happen to have been drawn for all of them: its copies of node a's part go too.
            for entry in std::fs::read_dir(scene.node_dir("d")).unwrap() {
                let path = entry.unwrap().path();
                if path.display().to_string().contains("-n0000-") {
                    std::fs::remove_file(path).unwrap();
                }
            }
        },
        gives: Gives::Refused(ErrorKind::Corrupt),
        told: &["step 2", "-n0000-"],
        ..CALM
    },
    // ---- other nodes ---------------------------------------------------------------------------
    Scenario {
        name: "a spare node takes the place of a lost one",
        levels: PEERS1,
        happens: |scene| scene.erase("a"),
        home: ["x", "b", "c", "d"],
        told: &["read from other nodes"],
        ..CALM
    },
    Scenario {
        name: "two spare nodes take the places of two lost ones",
        levels: PEERS2,
        happens: |scene| {
            scene.erase("a");
            scene.erase("c");
        },
        home: ["x", "b", "y", "d"],
        told: &["read from other nodes"],
        ..CALM
    },
    Scenario {
        name: "a spare node takes the place of a lost one, and nothing else has its part",
        levels: NODE,
        happens: |scene| scene.erase("a"),
        home: ["x", "b", "c", "d"],
        gives: Gives::Refused(ErrorKind::Corrupt),
        told: &[
            "node b holds a checkpoint of step 2 at level node, which it wrote together with node a, which is not here",
            "start the job on the nodes that wrote it",
        ],
        ..CALM
    },
    Scenario {
        name: "the job continues on the nodes that are left",
        levels: PEERS1,
        happens: |scene| scene.erase("a"),
        home: ["b", "b", "c", "d"],
        // Where node b has the copy of node a's part, there is nothing to be told.
        either: true,
        ..CALM
    },
    Scenario {
        name: "all ranks are on other nodes, and the file system has everything",
        levels: BOTH,
        home: ["w", "x", "y", "z"],
        told: &["local/job/w holds nothing of the run"],
        ..CALM
    },
    // ---- killed --------------------------------------------------------------------------------
    Scenario {
        name: "killed while a container is written to a node",
        levels: NODE,
        happens: |scene| scene.killed("file.write", "s000000000003-", 2),
        ..CALM
    },
    Scenario {
        name: "killed before a node's container is durable",
        levels: NODE,
        happens: |scene| scene.killed("file.sync", "s000000000003-", 3),
        ..CALM
    },
    Scenario {
        name: "killed while a replica is sent",
        levels: PEERS1,
        happens: |scene| scene.killed("replicas.send", "", 3),
        ..CALM
    },
    Scenario {
        name: "killed while a container is written to the file system",
        levels: GLOBAL,
        happens: |scene| scene.killed("file.write", "s000000000003-", 2),
        ..CALM
    },
    Scenario {
        name: "killed before the record is visible",
        levels: GLOBAL,
        happens: |scene| scene.killed("dir.rename", "s000000000003-", 1),
        ..CALM
    },
    Scenario {
        name: "killed as the record of the nodes becomes visible on the first of them",
        levels: NODE,
        happens: |scene| scene.killed("dir.rename", "-node.commit", 1),
        gives: Gives::StepOrNext(2),
        either: true,
        ..CALM
    },
    Scenario {
        name: "killed as the record of the replicas becomes visible on the first of the nodes",
        levels: PEERS1,
        happens: |scene| scene.killed("dir.rename", "-peers1.commit", 1),
        gives: Gives::StepOrNext(2),
        either: true,
        ..CALM
    },
    Scenario {
        name: "the restart is killed three times",
        levels: GLOBAL,
        happens: |scene| scene.restart_is_killed(),
        ..CALM
    },
    Scenario {
        name: "the restart from the nodes is killed three times",
        levels: NODE,
        happens: |scene| scene.restart_is_killed(),
        ..CALM
    },
    Scenario {
        name: "the restart from a partner is killed three times",
        levels: PEERS1,
        happens: |scene| {
            scene.erase("b");
            scene.restart_is_killed();
        },
        told: &["read from other nodes"],
        ..CALM
    },
    // ---- other names and places ----------------------------------------------------------------
    Scenario {
        name: "the directories are moved, and the job with them",
        levels: GLOBAL,
        happens: |scene| scene.move_to("moved"),
        root: "moved",
        ..CALM
    },
    Scenario {
        name: "the directories of the nodes are moved too",
        levels: PEERS1_GLOBAL,
        happens: |scene| scene.move_to("moved"),
        root: "moved",
        ..CALM
    },
    Scenario {
        name: "one of two directories is moved, and the job with the other one",
        levels: GLOBAL,
        happens: |scene| {
            scene.move_to("moved");
            scene.rename("moved/ost1", "ost1");
        },
        root: "moved",
        gives: Gives::Refused(ErrorKind::Corrupt),
        told: &["moved/ost1/job holds nothing of earlier runs of job 'job', but"],
        ..CALM
    },
    Scenario {
        name: "the directory of the job has another name",
        levels: GLOBAL,
        happens: |scene| {
            scene.rename("ost0/job", "ost0/jobs");
            scene.rename("ost1/job", "ost1/jobs");
        },
        gives: Gives::Fresh,
        told: &[
            "ost0/jobs holds checkpoints of job 'jobs' up to step 2: the name 'job' may be mistyped",
        ],
        ..CALM
    },
    Scenario {
        name: "the files of the job lie one directory too high",
        levels: GLOBAL,
        happens: |scene| {
            scene.flatten("ost0/job");
            scene.flatten("ost1/job");
        },
        gives: Gives::Fresh,
        told: &["ost0 itself holds checkpoint files of job 'job' (such as "],
        ..CALM
    },
    Scenario {
        name: "the files of all nodes lie in one directory",
        levels: NODE,
        happens: |scene| {
            for node in NODES {
                scene.flatten(&format!("local/job/{node}"));
            }
        },
        gives: Gives::Fresh,
        told: &["local/job itself holds checkpoint files of this job (such as "],
        ..CALM
    },
    Scenario {
        name: "the directory of one node has another name",
        levels: NODE,
        happens: |scene| scene.rename("local/job/b", "local/job/x"),
        gives: Gives::Refused(ErrorKind::Corrupt),
        told: &["local/job/b holds nothing of the run"],
        ..CALM
    },
    Scenario {
        name: "a node has another name, and its directory with it",
        levels: NODE,
        happens: |scene| scene.rename("local/job/b", "local/job/x"),
        home: ["a", "x", "c", "d"],
        ..CALM
    },
    Scenario {
        name: "all nodes have other names, and their directories have not",
        levels: NODE,
        home: ["w", "x", "y", "z"],
        gives: Gives::Fresh,
        told: &[
            "written on node 'a', which no rank of this run is on",
            "set ORCHECK_NODE=a",
        ],
        ..CALM
    },
    Scenario {
        name: "the newest record is removed",
        levels: GLOBAL,
        happens: |scene| scene.remove(&["s000000000002-", ".commit"]),
        gives: Gives::Step(1),
        told: &["step 2 of epoch 1 has", "and no commit record"],
        ..CALM
    },
];

/// Every row of the table.
// Breaks if: a fallback is silent, a copy is not used, or an error does not name what is missing.
pub fn what_happens_to_users_of_scr_and_fti() {
    let mut failed = Vec::new();
    for scenario in SCENARIOS {
        match play(scenario) {
            Ok(()) => println!("  ok      {}", scenario.name),
            Err(text) => {
                println!("  FAILED  {}: {text}", scenario.name);
                failed.push(scenario.name);
            }
        }
    }
    assert!(failed.is_empty(), "{failed:?}");
}
