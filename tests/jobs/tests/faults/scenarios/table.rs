//! The rows.

use super::scene::{BOTH, GLOBAL, NODE, PEERS1, PEERS1_GLOBAL, PEERS2, Then};
use super::{Gives, NODES, Scenario};
use orcheck_format::ErrorKind;
use std::path::PathBuf;

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

pub(super) const SCENARIOS: &[Scenario] = &[
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
        // Two replicas need three nodes: the run that is left with two asks for what they cannot
        // give.
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
            // Node d may happen to have been drawn for all of them: its copies of node a's part go
            // too.
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
    // ---- an agent or a server is killed --------------------------------------------------------
    Scenario {
        name: "an agent is killed in a flush, and the job ends with it",
        levels: NODE,
        happens: |scene| scene.agent_is_killed("b", Then::Ends),
        told: &[
            "checkpoint 3 is not safe at level node: node b is gone",
            "the checkpoint engine of this node ended",
        ],
        ..CALM
    },
    Scenario {
        name: "an agent is killed in a flush, and the job continues with another one",
        levels: NODE,
        happens: |scene| scene.agent_is_killed("b", Then::Continues),
        gives: Gives::Step(3),
        told: &[
            "checkpoint 3 is not safe at level node: node b is gone",
            "an agent of the job ended; it continues as epoch 3 with other agents",
            "flushed again from memory: 3; lost: none",
        ],
        ..CALM
    },
    Scenario {
        name: "an agent is killed in a flush with replicas, and the job continues with another one",
        levels: PEERS1,
        happens: |scene| scene.agent_is_killed("b", Then::Continues),
        gives: Gives::Step(3),
        told: &[
            "checkpoint 3 is not safe at level peers(1)",
            "flushed again from memory: 3; lost: none",
        ],
        ..CALM
    },
    Scenario {
        name: "a staging server is killed in a flush and started again",
        levels: GLOBAL,
        happens: |scene| scene.server_is_killed(),
        gives: Gives::StepOrNext(4),
        told: &[
            "checkpoint 3 is lost at level global",
            "takes no more containers of this run",
            "check whether that directory or node is reachable; the next checkpoint tries again",
        ],
        ..CALM
    },
    Scenario {
        name: "a staging server is killed in a flush, and the nodes have the checkpoint",
        levels: BOTH,
        happens: |scene| scene.server_is_killed(),
        gives: Gives::StepOrNext(4),
        told: &["checkpoint 3 is lost at level global", "orcheck://"],
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
        gives: Gives::Refused(ErrorKind::Invalid),
        told: &[
            "taken on node 'a', which no rank of this run is on",
            "ORCHECK_NODE",
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
