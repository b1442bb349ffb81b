//! Tests level `peers`: containers and their replicas in the directories of several nodes, some of
//! them damaged or missing.

use std::path::PathBuf;

use orcheck_format::disk::CommitRecord;
use orcheck_format::{Level, NodeId, Rank};

use crate::answer;
use orcheck_fixtures::reading::{Scratch, Spec, Written, flip, payload, write};

const NODES: [&str; 3] = ["node0", "node1", "node2"];

/// A job on three nodes below one root, with one replica of each container: that of node n on node
/// n + 1.
struct Nodes {
    scratch: Scratch,
    written: Written,
}

/// A checkpoint of containers of two nodes, each with a replica on the next one.
fn replicated(scratch: &Scratch, step: u64) -> Written {
    let dirs = NODES.map(|node| scratch.dir(&format!("local/cavity/{node}")));
    let mut spec = Spec::new(step, 7);
    spec.level = Level::Peers(1);
    let written = write(&dirs, &spec);
    let mut record = written.record.clone();
    record.nodes = NODES.map(str::to_owned).to_vec();
    for (index, (path, container)) in written.paths.iter().zip(&mut record.containers).enumerate() {
        assert_eq!(path.parent().unwrap(), dirs[index]);
        let other = &dirs[index + 1];
        std::fs::copy(path, other.join(path.file_name().unwrap())).unwrap();
        container.holders = vec![NodeId(index as u32 + 1)];
    }
    for dir in &dirs {
        std::fs::write(dir.join(spec.commit_name()), record.encode()).unwrap();
    }
    assert_eq!(CommitRecord::decode(&record.encode()), Ok(record));
    written
}

impl Nodes {
    fn new() -> Nodes {
        let scratch = Scratch::new();
        let written = replicated(&scratch, 40);
        Nodes { scratch, written }
    }

    fn file(&self, container: usize, node: usize) -> PathBuf {
        let name = self.written.paths[container].file_name().unwrap();
        let dir = self.scratch.path().join("local/cavity").join(NODES[node]);
        dir.join(name)
    }

    /// Damages the data of rank 1, which the first container holds, in the copy of a node.
    fn damage(&self, node: usize) {
        let at = self.written.structure(0, "stream 1").start + 9000;
        flip(&self.file(0, node), at, 3);
    }

    fn ask(&self, arguments: &[&str]) -> crate::Answer {
        let root = self.scratch.path().join("local").display().to_string();
        answer(&[arguments, &["--node-dir", &root]].concat())
    }
}

// Breaks if: the first copy that is found is the only one that is read.
#[test]
fn a_damaged_copy_is_named_and_another_one_is_used() {
    for node in 0..2 {
        let nodes = Nodes::new();
        let good = nodes.ask(&["verify"]);
        assert_eq!(good.code, 0);
        assert!(good.stdout.contains("2 of 2"), "{}", good.stdout);
        nodes.damage(node);
        let verified = nodes.ask(&["verify"]);
        assert_eq!(verified.code, 3, "{}", verified.stdout);
        let bad = nodes.file(0, node).display().to_string();
        for part in [
            "damaged, restorable",
            "no data lost",
            "1 of 2",
            &bad,
            "another copy is good",
        ] {
            assert!(verified.stdout.contains(part), "{}", verified.stdout);
        }
        let out = nodes.scratch.path().join("u.bin");
        let shown = out.display().to_string();
        let restore = ["restore", "--rank", "1", "--region", "u", "--out", &shown];
        let restored = nodes.ask(&restore);
        assert_eq!(restored.code, 0, "{}", restored.stderr);
        assert!(std::fs::read(&out).unwrap() == payload(Rank(1), 40, "u", 24_000));
        // The copy of the first node is read first.
        assert_eq!(restored.stderr.contains("another copy is good"), node == 0);
        let mut command = crate::orcheck(&restore[..6]);
        let root = nodes.scratch.path().join("local").display().to_string();
        let streamed = command.args(["-", "--node-dir", &root]).output().unwrap();
        assert!(streamed.stdout == payload(Rank(1), 40, "u", 24_000));
        let all = nodes.scratch.path().join("all").display().to_string();
        assert_eq!(nodes.ask(&["restore", "--all", "--out", &all]).code, 0);
    }
}

#[test]
fn damage_of_every_copy_is_a_loss() {
    let nodes = Nodes::new();
    nodes.damage(0);
    nodes.damage(1);
    let verified = nodes.ask(&["verify", "--json"]);
    assert_eq!(verified.code, 5, "{}", verified.stdout);
    let container = &verified.json()["checkpoints"][0]["containers"][0];
    assert_eq!(container["copies"], 2);
    assert_eq!(container["good_copies"], 0);
    assert_eq!(container["findings"].as_array().unwrap().len(), 2);
}

// Breaks if: a node's container is looked for in that node's directory alone.
#[test]
fn any_nodes_that_have_all_containers_will_do() {
    let nodes = Nodes::new();
    let root = nodes.scratch.path().join("local/cavity");
    std::fs::remove_dir_all(root.join(NODES[0])).unwrap();
    let listed = nodes.ask(&["ls"]);
    assert!(listed.stdout.contains("restartable"), "{}", listed.stdout);
    assert_eq!(nodes.ask(&["verify"]).code, 0);
    let shown = nodes.ask(&["show"]);
    assert!(shown.stdout.contains("1 of 2"), "{}", shown.stdout);
    let document = nodes.ask(&["show", "--json"]).json();
    assert_eq!(document["containers"][0]["holders"][0], "node1");
    // The other nodes' disks, copied to another place.
    let elsewhere = nodes.scratch.dir("elsewhere/cavity");
    std::fs::rename(root.join(NODES[1]), elsewhere.join(NODES[1])).unwrap();
    let only = nodes.ask(&["ls", "--json"]).json();
    assert_eq!(only["checkpoints"][0]["state"], "unreachable");
    let why = only["checkpoints"][0]["why"].as_str().unwrap();
    assert!(
        why.contains("is not here (node 0 'node0', copies on node1)"),
        "{why}"
    );
    let elsewhere = nodes.scratch.path().join("elsewhere").display().to_string();
    let both = nodes.ask(&["verify", "--node-dir", &elsewhere]);
    assert_eq!(both.code, 0, "{}", both.stdout);
}

#[test]
fn what_is_missing_is_named_with_what_is_here_whole() {
    let nodes = Nodes::new();
    // The older one has a further replica, as one that was rebuilt after a loss.
    let older = replicated(&nodes.scratch, 30);
    let name = older.paths[0].file_name().unwrap();
    let further = nodes.scratch.dir("local/cavity/node2").join(name);
    std::fs::copy(&older.paths[0], further).unwrap();
    for node in [0, 1] {
        std::fs::remove_dir_all(nodes.file(0, node).parent().unwrap()).unwrap();
    }
    let out = nodes.scratch.path().join("u.bin").display().to_string();
    let refused = nodes.ask(&[
        "restore", "40", "--rank", "1", "--region", "u", "--out", &out,
    ]);
    assert_eq!(refused.code, 10, "{}", refused.stderr);
    for part in [
        "(node 0 'node0', copies on node1, ",
        "restore step 30 at level peers(1), which is complete here",
    ] {
        assert!(refused.stderr.contains(part), "{}", refused.stderr);
    }
    // The nodes that have it were not given: nothing is known to be lost.
    assert_eq!(nodes.ask(&["verify", "--all"]).code, 15);
}
