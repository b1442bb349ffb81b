//! Tests what `scavenge` calls safe, what it waits for, and what it says of the steps that it
//! leaves.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use orcheck_fixtures::reading::{Spec, epoch, flip, write};
use orcheck_format::Step;
use orcheck_format::disk::FileName;

use crate::scavenge::{NODES, Site, collected, words};
use crate::{Answer, answer};

fn text(path: &Path) -> String {
    path.display().to_string()
}

fn records(dir: &Path, step: u64) -> Vec<PathBuf> {
    let of_step = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_str().unwrap();
        matches!(FileName::parse(name), Some(FileName::Commit { step: of, .. }) if of.0 == step)
    };
    let entries = std::fs::read_dir(dir).unwrap().flatten();
    entries.map(|entry| entry.path()).filter(of_step).collect()
}

// Breaks if: a step counts at level global although one of two directories has no record of it.
#[test]
fn a_half_recorded_step_is_completed() {
    let (scratch, _) = collected(&[5, 10]);
    let local = text(&scratch.dir("local"));
    let roots = ["pfs-a", "pfs-b"].map(|name| scratch.dir(name));
    let both = format!("{},{}", text(&roots[0]), text(&roots[1]));
    let scavenge = |more: &[&str]| {
        let common = ["scavenge", "--node-dir", &local, "--global", &both];
        answer(&[&common[..], more].concat())
    };
    words(&scavenge(&[]), 0, &["took step 10"]);
    words(
        &scavenge(&[]),
        0,
        &["nothing to take; the newest step at level global is 10"],
    );
    for (gone, there) in [(0, 1), (1, 0)] {
        let dirs = [&roots[gone], &roots[there]].map(|root| root.join("cavity"));
        let lost = records(&dirs[0], 10);
        assert_eq!(lost.len(), 1);
        std::fs::remove_file(&lost[0]).unwrap();
        let half = "its commit record is in 1 of 2 directories";
        words(
            &scavenge(&["--dry-run"]),
            0,
            &["step 10", "not verified", half],
        );
        assert!(!lost[0].exists());
        words(
            &scavenge(&[]),
            0,
            &["step 10", "at level global already, and good", half],
        );
        let name = lost[0].file_name().unwrap();
        let [one, other] = dirs.map(|dir| std::fs::read(dir.join(name)).unwrap());
        assert!(one == other);
    }
    // Also where no node has it any more.
    std::fs::remove_file(&records(&roots[1].join("cavity"), 10)[0]).unwrap();
    for node in ["node0", "node1"] {
        let node = Path::new(&local).join("cavity").join(node);
        std::fs::remove_file(&records(&node, 10)[0]).unwrap();
    }
    words(
        &scavenge(&[]),
        0,
        &["step 10", "at level global already, and good"],
    );
    assert_eq!(records(&roots[1].join("cavity"), 10).len(), 1);
}

// Breaks if: a step at level global counts as safe although what it refers to is gone.
#[test]
fn a_step_whose_older_data_is_gone_is_not_called_safe() {
    let (scratch, _) = collected(&[5, 10]);
    let dir = scratch.dir("pfs/cavity");
    let older = write(std::slice::from_ref(&dir), &Spec::new(5, 1));
    let mut newer = write(std::slice::from_ref(&dir), &Spec::new(10, 1)).record;
    for container in &mut newer.containers {
        container.refers_to = vec![Step(5)];
    }
    let name = Spec::new(10, 1).commit_name();
    std::fs::write(dir.join(&name), newer.encode()).unwrap();
    assert_eq!(newer.epoch, epoch(1));
    let (local, pfs) = (text(&scratch.dir("local")), text(&scratch.dir("pfs")));
    let scavenge = || answer(&["scavenge", "--node-dir", &local, "--global", &pfs]);
    words(
        &scavenge(),
        0,
        &["nothing to take; the newest step at level global is 10"],
    );
    std::fs::remove_file(&older.paths[1]).unwrap();
    let lost = older.paths[1].file_name().unwrap().to_str().unwrap();
    let lost = format!("container {lost} is not there");
    words(&scavenge(), 10, &["nothing was taken: ", "step 10", &lost]);
    let planned = answer(&[
        "scavenge",
        "--dry-run",
        "--node-dir",
        &local,
        "--global",
        &pfs,
    ]);
    words(&planned, 10, &["nothing was taken: ", &lost]);
}

/// Damages all copies of one container of this step in these directories: that of the first node.
fn damage(dirs: &[PathBuf], step: u64) {
    let of_step = |name: &str| {
        matches!(FileName::parse(name), Some(FileName::Container { step: of, node, .. })
            if of.0 == step && node.0 == 0)
    };
    let mut found = 0;
    for dir in dirs {
        for entry in std::fs::read_dir(dir).unwrap().flatten() {
            if of_step(entry.file_name().to_str().unwrap()) {
                let at = entry.metadata().unwrap().len() as usize / 2;
                flip(&entry.path(), at, 3);
                found += 1;
            }
        }
    }
    assert!(found > 0);
}

// Breaks if: for damage an older step is taken at once, although a node that is not there yet may
// hold a good copy.
#[test]
fn a_damaged_step_waits_for_nodes_that_may_replace_it() {
    let site = Site::new("damaged");
    site.kill_after("step 1 step 2");
    // The agents have finished then.
    words(&site.scavenge(&["--dry-run"]), 0, &["would take step 2"]);
    site.signal(&NODES, "-KILL");
    site.lose("d");
    let dirs = ["a", "b", "c"].map(|node| site.node(node));
    damage(&dirs, 2);
    let [_, b, c] = dirs.map(|dir| text(&dir));
    let begin = Instant::now();
    let taken = site.scavenge(&[&b, &c, "--timeout", "3", "--json"]);
    assert!(
        begin.elapsed() >= Duration::from_secs(3),
        "{:?}",
        begin.elapsed()
    );
    words(&taken, 3, &["node d was not read"]);
    let document = taken.json();
    assert_eq!(
        (&document["step"], &document["left"][0]["step"]),
        (&1.into(), &2.into())
    );
    // What is left stays so, however often somebody asks.
    let again = site.scavenge(&[&b, &c, "--timeout", "0"]);
    let said = "nothing to take: step 1 is at level global; step 2 is newer and damaged";
    words(&again, 3, &[said, "node d was not read"]);
}

// Breaks if: after a partial success no step is called safe, or the advice is of no use.
#[test]
fn what_is_left_is_said_again_in_the_same_way() {
    let (scratch, written) = collected(&[5, 10]);
    flip(&written[1].paths[0], 8192 + 100, 3);
    let (local, pfs) = (text(&scratch.dir("local")), text(&scratch.dir("pfs")));
    let common = ["scavenge", "--node-dir", &local, "--global", &pfs];
    let scavenge = |more: &[&str]| answer(&[&common[..], more].concat());
    let strict = scavenge(&["--strict"]);
    let next = "Next: give directories that hold other copies, with --node-dir";
    words(&strict, 5, &["nothing was taken: ", next]);
    words(
        &scavenge(&[]),
        3,
        &[
            "took step 5",
            "step 10 at level node is newer, and was left",
        ],
    );
    let said = "nothing to take: step 5 is at level global; step 10 is newer and damaged";
    for _ in 0..2 {
        let again: Answer = scavenge(&[]);
        words(&again, 3, &[said]);
        assert!(
            !again.stderr.contains("restart from an older"),
            "{}",
            again.stderr
        );
    }
    words(&scavenge(&["--strict"]), 5, &["nothing was taken: "]);
}

// Breaks if: a node whose directory was given is asked for again.
#[test]
fn a_directory_that_was_given_is_not_asked_for() {
    let (scratch, written) = collected(&[10]);
    std::fs::remove_file(&written[0].paths[1]).unwrap();
    let (local, pfs) = (text(&scratch.dir("local")), text(&scratch.dir("pfs")));
    let none = answer(&["scavenge", "--node-dir", &local, "--global", &pfs]);
    words(
        &none,
        10,
        &[
            "nothing was taken: ",
            "Next: give another directory that holds a copy",
        ],
    );
}

// Breaks if: an error of where the copy goes is taken for one of the nodes, and every older step
// is tried for it.
#[test]
fn a_refused_destination_is_named_as_such() {
    let (scratch, _) = collected(&[5, 10]);
    let (local, pfs) = (text(&scratch.dir("local")), scratch.dir("pfs"));
    // A file is where the directory of the job is to be made.
    std::fs::write(pfs.join("cavity"), "not ours").unwrap();
    let refused = answer(&["scavenge", "--node-dir", &local, "--global", &text(&pfs)]);
    assert!(refused.stderr.contains("pfs/cavity"), "{}", refused.stderr);
    assert!(
        !refused.stderr.contains("nothing was taken"),
        "{}",
        refused.stderr
    );
    assert!(
        !refused.stderr.contains("directory of node"),
        "{}",
        refused.stderr
    );
}

// Breaks if: a directory that was renamed is taken for that of a node which took no part.
#[test]
fn a_renamed_directory_is_recognised_by_what_it_holds() {
    let (scratch, _) = collected(&[5, 10]);
    let cavity = scratch.dir("local/cavity");
    std::fs::rename(cavity.join("node1"), scratch.path().join("foo")).unwrap();
    let (one, foo) = (
        text(&cavity.join("node0")),
        text(&scratch.path().join("foo")),
    );
    let pfs = text(&scratch.dir("pfs"));
    let scavenge = || answer(&["scavenge", &one, &foo, "--global", &pfs]);
    for said in [
        "took step 10",
        "nothing to take; the newest step at level global is 10",
    ] {
        let done = scavenge();
        words(&done, 0, &[said]);
        assert!(!done.stderr.contains("was not read"), "{}", done.stderr);
    }
    // Without records nothing says whose it is.
    let alone = answer(&["verify", &foo]);
    words(
        &alone,
        15,
        &["Next: also give the directory of node node0, or bring it back"],
    );
}

// Breaks if: nodes whose agents need one that is stopped wait for it as long as for a slow one; the
// start would fail after `timeout_s` only, ten minutes.
#[test]
fn an_agent_that_is_stopped_in_a_run_of_several_nodes_is_named_soon() {
    let site = Site::new("stopped-lead");
    let mut ranks = site.run("step 1 stop");
    ranks.wait_for("waits");
    site.signal(&["a"], "-STOP");
    drop(ranks);
    let began = std::time::Instant::now();
    let (_, said) = site.run("stop").end();
    assert!(
        began.elapsed().as_secs() < 25,
        "{:?}: {said}",
        began.elapsed()
    );
    assert!(
        said.contains("is stopped and has not answered for 10 s"),
        "{said}"
    );
    site.signal(&["a", "b", "c", "d"], "-KILL");
}

// Breaks if: a run that was refused, and left its claims where disks are not mounted, turns a
// checkpoint that is unreachable into one that is lost.
#[test]
fn what_nodes_had_is_unreachable_though_a_later_run_claimed_their_places() {
    let site = Site::new("unmounted");
    site.kill_after("step 1");
    words(&site.scavenge(&["--dry-run"]), 0, &["would take step 1"]);
    site.signal(&["a", "b", "c", "d"], "-KILL");
    let claim = site.node("a").join("epoch-000001.claim");
    for node in ["b", "c", "d"] {
        std::fs::rename(site.node(node), site.path(&format!("{node}-away"))).unwrap();
    }
    let ask =
        |what: &str| site.answer(&[what, "--job", &site.job, "--node-dir", &site.path("local")]);
    let unreachable = |when: &str| {
        for (what, said) in [
            ("ls", "unreachable"),
            ("status", "step 1 is unreachable"),
            ("verify", "unreachable"),
        ] {
            let told = ask(what);
            let text = format!("{}{}", told.stdout, told.stderr);
            assert!(
                text.contains(said) && !text.contains("data lost"),
                "{when}, {what}: {text}"
            );
            assert_ne!(told.code, 10, "{when}, {what}: {text}");
        }
        let scavenged = site.scavenge(&["--dry-run", "--timeout", "0.2"]);
        assert_eq!(
            scavenged.code, 15,
            "{when}: {}{}",
            scavenged.stdout, scavenged.stderr
        );
    };
    unreachable("before");
    for node in ["b", "c", "d"] {
        std::fs::create_dir(site.node(node)).unwrap();
        std::fs::copy(&claim, site.node(node).join("epoch-000002.claim")).unwrap();
    }
    unreachable("claimed");
    for node in ["b", "c", "d"] {
        std::fs::remove_dir_all(site.node(node)).unwrap();
        std::fs::rename(site.path(&format!("{node}-away")), site.node(node)).unwrap();
    }
    words(&ask("verify"), 0, &["2 of 2"]);
}

// Breaks if: parity that agents have in memory is called missing, or what it gives is called lost.
#[test]
fn what_is_in_the_memory_of_agents_is_not_called_lost() {
    let site = Site::new("memory-parity");
    let site =
        site.with("protect = 'xor=4'\nreplica_store = 'memory'\nreplica_budget = '64 MiB'\n");
    let mut ranks = site.run("step 1 step 2 stop");
    ranks.wait_for("waits");
    let local = site.path("local");
    let ask = |what: &str| site.answer(&[what, "--job", &site.job, "--node-dir", &local]);
    words(&ask("verify"), 0, &["good", "1 + parity"]);
    // Breaks if: a directory of nodes that is given as one of level global is called empty.
    let misplaced = answer(&["ls", "--dir", &local]);
    words(
        &misplaced,
        10,
        &["holds directories of nodes: give it with --node-dir"],
    );
    words(&ask("status"), 0, &["newest safe step: 2"]);
    drop(ranks);
    // The agents have finished then.
    words(&site.scavenge(&["--dry-run"]), 0, &["would take step 2"]);
    for entry in std::fs::read_dir(site.node("b")).unwrap().flatten() {
        if entry.path().extension().is_some_and(|end| end == "orc") {
            std::fs::remove_file(entry.path()).unwrap();
        }
    }
    let verified = ask("verify");
    assert!(
        !verified.stdout.contains("(data lost)"),
        "{}",
        verified.stdout
    );
    words(&verified, 3, &["damaged, restorable"]);
    words(&ask("status"), 0, &["newest safe step: 2"]);
    // One that does not answer is named: a replica may be in its memory.
    site.signal(&["c"], "-STOP");
    let verified = ask("verify");
    let said = "no agent of c answered";
    assert!(verified.stderr.contains(said), "{}", verified.stderr);
    site.signal(&["c"], "-CONT");
    words(&site.scavenge(&[]), 0, &["took step 2"]);
    site.holds(2);
}

// Breaks if: an agent that was stopped is not counted, or the advice is to halt a run that is over.
#[test]
fn a_stopped_agent_is_named_with_its_process() {
    let site = Site::new("stopped");
    site.kill_after("step 1");
    // The agents have finished then.
    words(&site.scavenge(&["--dry-run"]), 0, &["would take step 1"]);
    let local = site.path("local");
    let of_b: Vec<String> = site
        .agents()
        .into_iter()
        .filter(|(node, _)| node == "b")
        .map(|(_, pid)| pid)
        .collect();
    let [pid] = &of_b[..] else { panic!("{of_b:?}") };
    site.signal(&["b"], "-STOP");
    let status = site.answer(&["status", "--job", &site.job, "--node-dir", &local]);
    assert!(
        !status.stdout.contains("it runs on host"),
        "{}",
        status.stdout
    );
    let b = text(&site.node("b"));
    let late = site.scavenge(&[&b, "--timeout", "0.2"]);
    words(
        &late,
        7,
        &[
            "the agent of node b has not finished",
            &format!("continue process {pid} on host "),
        ],
    );
    assert!(!late.stderr.contains("orcheck halt"), "{}", late.stderr);
    let drained = site.answer(&["drain", "--job", &site.job, "--timeout", "20"]);
    let silent = format!("node b: the agent (process {pid}) does not answer, and is still there");
    words(&drained, 12, &["3 agents ended, 1 still there", &silent]);
}

// Breaks if: a repair of a running job is an error without a code, or the advice for a lost node
// leads in a circle.
#[test]
fn a_repair_says_how_the_directory_of_a_lost_node_is_made_again() {
    let site = Site::new("repair").with("protect = 'xor=4'");
    let mut ranks = site.run("step 1 stop");
    ranks.wait_for("waits");
    let local = site.path("local");
    let repair = || {
        site.answer(&[
            "verify",
            "--repair",
            "--job",
            &site.job,
            "--node-dir",
            &local,
        ])
    };
    words(
        &repair(),
        7,
        &["is running", "Next: wait until it has ended"],
    );
    drop(ranks);
    // The agents have finished then.
    words(&site.scavenge(&["--dry-run"]), 0, &["would take step 1"]);
    site.signal(&NODES, "-KILL");
    site.lose("b");
    let advice = format!("create {} empty and repeat", site.node("b").display());
    words(&repair(), 3, &["not repaired: ", &advice]);
    std::fs::create_dir(site.node("b")).unwrap();
    words(&repair(), 0, &["repaired ", "from parity"]);
    words(
        &site.answer(&["verify", "--job", &site.job, "--node-dir", &local]),
        0,
        &["good"],
    );
}

// Breaks if: it counts as a full success although nodes that were not read may hold a newer step.
#[test]
fn with_more_nodes_unread_than_its_level_may_lose_it_is_no_full_success() {
    let site = Site::new("unread");
    site.kill_after("step 1 step 2");
    // The agents have finished then.
    words(&site.scavenge(&["--dry-run"]), 0, &["would take step 2"]);
    let held = |node: &str| -> Vec<String> {
        let entries = std::fs::read_dir(site.node(node)).unwrap().flatten();
        let names = entries.map(|entry| entry.file_name().into_string().unwrap());
        let of_step = |name: &String| matches!(FileName::parse(name), Some(FileName::Container { step, .. }) if step.0 == 2);
        names.filter(of_step).collect()
    };
    // Two nodes that hold all of it.
    let whole = |other: &&str| {
        let mut all = [held("a"), held(other)].concat();
        all.sort();
        all.dedup();
        all.len() == NODES.len()
    };
    let other = ["b", "c", "d"].into_iter().find(whole).unwrap();
    for node in NODES.iter().filter(|node| !["a", other].contains(node)) {
        site.lose(node);
    }
    words(
        &site.scavenge(&[]),
        3,
        &["took step 2", "was not read: nothing answers there"],
    );
    site.holds(2);
}
