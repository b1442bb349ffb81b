//! Files of one step are a checkpoint: on one node, on two, with a mount that is killed and a node
//! that is lost.

use crate::cannot_mount;
use crate::programs::{MELT, WATER, gmx};
use crate::rig::{
    FoundThere, IN_MEMORY, MODES, Mode, ON_DISK, Rig, Said, Where, data, mode, wait_until,
};
use orcheck_io::failpoints::Failpoints;
use orcheck_mount::{Pattern, SetOptions};
use orcheck_testing::Scratch;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

pub const PLAIN: Mode = mode(true, false, Where::Nowhere);

/// Sets of files `r.{step}.*`, complete with this many.
pub fn counted(files: u64) -> SetOptions {
    SetOptions {
        job: "melt".to_owned(),
        options: None,
        patterns: vec![Pattern::new("r.{step}.*").unwrap()],
        end: None,
        count: Some(files),
        meeting: None,
        stop: || false,
    }
}

/// A rig whose sets go to a directory beside it.
fn alone(mode: Mode, sets: SetOptions) -> Rig {
    let mut rig = unstarted(mode, sets);
    rig.start(Failpoints::none());
    rig
}

/// The same before it is mounted.
pub fn unstarted(mode: Mode, sets: SetOptions) -> Rig {
    let mut rig = Rig::new(mode);
    let store = rig.scratch.path().join("store");
    fs::create_dir(&store).unwrap();
    rig.sets = Some(SetOptions {
        options: Some(format!("global = '{}'\nkeep = 3", store.display())),
        ..sets
    });
    rig
}

/// Steps that are incomplete, or not durable.
pub fn begun(rig: &Rig) -> usize {
    let dir = rig.backing().join(".orcheck-sets/melt/begun");
    fs::read_dir(dir).map_or(0, Iterator::count)
}

fn written(rig: &Rig, name: &str, seed: u8) -> Vec<u8> {
    let bytes = data(seed, 3_000_001);
    fs::write(rig.point().join(name), &bytes).unwrap();
    bytes
}

/// Whether the set of a step is safe.
pub fn has_step(rig: &Rig, step: u64) -> bool {
    let store = rig.scratch.path().join("store/melt");
    let of_step = format!("s{step:012}-");
    fs::read_dir(store).into_iter().flatten().any(|entry| {
        let name = entry.unwrap().file_name().into_string().unwrap();
        name.starts_with(&of_step) && name.ends_with(".commit")
    })
}

#[test]
fn a_set_is_a_checkpoint_or_is_not_offered() {
    if cannot_mount() {
        return;
    }
    for mode in [PLAIN, MODES[2], ON_DISK, IN_MEMORY] {
        let mut rig = alone(mode, counted(2));
        let one = written(&rig, "r.1.a", 1);
        assert_eq!(begun(&rig), 1);
        let two = written(&rig, "r.1.b", 2);
        wait_until("the set is safe", || begun(&rig) == 0);
        written(&rig, "r.2.a", 3);
        rig.kill();
        // The last set is damaged, and one of its files is lost.
        fs::remove_file(rig.backing().join("r.1.a")).unwrap();
        fs::write(rig.backing().join("r.1.b"), "torn").unwrap();
        let found = rig.start(Failpoints::none());
        assert_eq!(found.restored, ["r.1.a", "r.1.b"], "{mode:?}");
        let aside = ["2", "before-1"].map(|name| format!(".orcheck-sets/melt/aside/{name}"));
        assert_eq!(found.aside, aside, "{mode:?}");
        assert!(fs::read(rig.point().join("r.1.a")).unwrap() == one);
        assert!(fs::read(rig.point().join("r.1.b")).unwrap() == two);
        assert!(!rig.point().join("r.2.a").exists());
        let put = |path: &str| fs::read(rig.backing().join(".orcheck-sets/melt/aside").join(path));
        assert!(put("2/r.2.a").unwrap() == data(3, 3_000_001));
        assert_eq!(put("before-1/r.1.b").unwrap(), b"torn");
        // Step 2 is written again.
        written(&rig, "r.2.a", 4);
        written(&rig, "r.2.b", 5);
        let said = rig.stop();
        assert_eq!(said.sets, [1, 0, 0], "{mode:?}: {}", rig.told());
    }
}

#[test]
fn after_a_good_end_what_was_changed_since_is_left_alone() {
    if cannot_mount() {
        return;
    }
    let mut rig = alone(PLAIN, counted(2));
    written(&rig, "r.1.a", 1);
    written(&rig, "r.1.b", 2);
    assert_eq!(rig.stop().sets, [1, 0, 0]);
    fs::write(rig.backing().join("r.1.a"), "mine").unwrap();
    fs::remove_file(rig.backing().join("r.1.b")).unwrap();
    let found = rig.start(Failpoints::none());
    assert_eq!(found.restored, ["r.1.b"]);
    assert_eq!(found.aside, Vec::<String>::new());
    assert_eq!(fs::read(rig.point().join("r.1.a")).unwrap(), b"mine");
    rig.stop();
}

/// Runs a script in the mount.
fn run(rig: &Rig, script: &str) -> std::process::ExitStatus {
    let mut shell = Command::new("bash");
    shell.args(["-c", script]).current_dir(rig.point());
    shell.status().unwrap()
}

#[test]
fn the_half_of_a_file_that_a_killed_program_wrote_completes_no_set() {
    if cannot_mount() {
        return;
    }
    for mode in [PLAIN, MODES[1], IN_MEMORY] {
        let mut rig = alone(mode, counted(2));
        run(
            &rig,
            "echo whole > r.1.a; exec 3> r.1.b; echo half >&3; kill -9 $$",
        );
        // So does one that gives up.
        run(
            &rig,
            "echo whole > r.2.a; exec 3> r.2.b; echo half >&3; exit 1",
        );
        // One that ends well closes its files, whoever closes them.
        assert!(
            run(
                &rig,
                "echo whole > r.3.a; exec 3> r.3.b; echo all >&3; exit 0"
            )
            .success()
        );
        let said = rig.stop();
        assert_eq!(said.sets, [1, 0, 2], "{mode:?}: {}", rig.told());
        assert!(
            rig.told().contains("step 1 was not complete"),
            "{}",
            rig.told()
        );
        let found = rig.start(Failpoints::none());
        assert_eq!(found.aside.len(), 2, "{mode:?}: {found:?}");
        assert!(!rig.point().join("r.1.a").exists() && !rig.point().join("r.2.b").exists());
        assert!(rig.point().join("r.3.b").exists());
        rig.stop();
    }
}

#[test]
fn what_else_could_pass_for_a_closed_file_does_not() {
    if cannot_mount() {
        return;
    }
    let mut rig = alone(PLAIN, counted(2));
    let half = |step: u64| format!("exec 3> r.{step}.a; echo half >&3; kill -9 $$");
    // Neither does a touch make it whole, nor a cut, nor an end of somebody who only reads.
    for (step, more) in [
        (1, "touch r.1.a"),
        (2, "truncate -s 2 r.2.a"),
        (3, "exec 4<>r.3.a"),
    ] {
        run(&rig, &half(step));
        assert!(run(&rig, &format!("{more}; echo whole > r.{step}.b")).success());
    }
    // Nor a file that somebody writes by another name.
    fs::write(rig.point().join("r.4.a"), "whole").unwrap();
    fs::hard_link(rig.point().join("r.4.a"), rig.point().join("other")).unwrap();
    let mut other = fs::File::options();
    let other = other.append(true).open(rig.point().join("other")).unwrap();
    fs::write(rig.point().join("r.4.b"), "whole").unwrap();
    // Two wrong lists, one read after the other: whatever was complete before has been taken.
    for dir in ["one", "two"] {
        assert!(
            run(
                &rig,
                &format!("mkdir {dir}; echo wrong > {dir}/.orcheck-set")
            )
            .success()
        );
        wait_until("the list is read", || {
            rig.told().contains(&format!("{dir}/.orcheck-set"))
        });
    }
    assert!(!has_step(&rig, 4), "{}", rig.told());
    drop(other);
    wait_until("step 4 is safe", || has_step(&rig, 4));
    // Whole: written again from the beginning; made by a link; by threads that end with their
    // program; by a program whose helper fails.
    run(&rig, &half(5));
    assert!(run(&rig, "echo whole > r.5.a; echo whole > r.5.b").success());
    wait_until("step 5 is safe", || has_step(&rig, 5));
    assert!(
        run(
            &rig,
            "for f in a b; do echo x > tmp; ln tmp r.6.$f; rm tmp; done"
        )
        .success()
    );
    wait_until("step 6 is safe", || has_step(&rig, 6));
    let threads = "import os, threading, time
for _ in range(8): threading.Thread(target=time.sleep, args=(9,), daemon=True).start()
for name in 'ab': os.write(os.open('r.7.' + name, os.O_CREAT | os.O_WRONLY), b'x')
os._exit(0)";
    assert!(run(&rig, &format!("python3 -c \"{threads}\"")).success());
    wait_until("step 7 is safe", || has_step(&rig, 7));
    assert!(
        run(
            &rig,
            "exec 3> r.8.a; sh -c 'exit 1'; exec 3>&-; echo x > r.8.b"
        )
        .success()
    );
    wait_until("step 8 is safe", || has_step(&rig, 8));
    assert_eq!(rig.stop().sets, [5, 2, 3], "{}", rig.told());
}

#[test]
fn files_with_fixed_names_are_of_one_version() {
    if cannot_mount() {
        return;
    }
    let fixed = SetOptions {
        patterns: ["a.cpt", "b.cpt"]
            .map(|name| Pattern::new(name).unwrap())
            .to_vec(),
        ..counted(2)
    };
    let mut rig = alone(PLAIN, fixed);
    for version in 1..=20u8 {
        for name in ["a", "b"] {
            let tmp = rig.point().join("tmp");
            fs::write(&tmp, vec![version; 5 << 20]).unwrap();
            fs::rename(&tmp, rig.point().join(format!("{name}.cpt"))).unwrap();
        }
    }
    // Versions that were written faster than sets are taken are skipped, but not the last one.
    wait_until("a set is safe", || {
        (1..=20).any(|step| has_step(&rig, step))
    });
    // The program dies in the middle of the next version, and the mount ends well.
    run(
        &rig,
        "echo torn > tmp; mv tmp a.cpt; exec 3> b.cpt; echo half >&3; kill -9 $$",
    );
    let said = rig.stop();
    assert!(
        said.sets[0] > 0 && said.sets[2] == 1,
        "{said:?}: {}",
        rig.told()
    );
    let found = rig.start(Failpoints::none());
    assert_eq!(found.restored, ["a.cpt", "b.cpt"]);
    let [a, b] = ["a.cpt", "b.cpt"].map(|name| fs::read(rig.point().join(name)).unwrap());
    assert!(
        a == b && a.len() == 5 << 20,
        "versions {} and {}",
        a[0],
        b[0]
    );
    rig.stop();
}

#[test]
fn what_programs_did_not_write_stays_where_it_is() {
    if cannot_mount() {
        return;
    }
    let mut rig = alone(PLAIN, counted(3));
    fs::create_dir(rig.backing().join("precious")).unwrap();
    fs::write(rig.backing().join("input"), "mine").unwrap();
    run(&rig, "echo x > $'r.1.a\nprecious'; echo y > state");
    run(
        &rig,
        "printf 'step 2\nstate\nprecious\ninput\nnever\n' > .orcheck-set",
    );
    run(
        &rig,
        "mkdir d; printf 'step 3\n../.orcheck-sets/melt\n' > d/.orcheck-set",
    );
    let said = rig.stop();
    assert_eq!(said.sets, [0, 1, 2], "{}", rig.told());
    // Another job, and another mount of the same one.
    let options = orcheck_mount::Options {
        backing: rig.backing().to_owned(),
        mount_point: rig.scratch.path().join("stage"),
        stage: None,
        stage_limit_bytes: None,
        passthrough: true,
        write_back: false,
        read_only: false,
        sets: rig.sets.clone(),
    };
    let found = rig.start(Failpoints::none());
    assert_eq!(found.aside.len(), 2, "{found:?}");
    for path in ["precious", "input"] {
        assert!(rig.point().join(path).exists(), "{path}");
    }
    assert!(!rig.point().join("state").exists());
    run(&rig, "echo z > r.4.a");
    let tell = || std::sync::Arc::new(|_: &str| {});
    let refused = orcheck_mount::mount(&options, tell(), None, Failpoints::none());
    let text = refused.err().unwrap().to_string();
    assert!(text.contains("another mount"), "{text}");
    let mut other = options;
    other.sets.as_mut().unwrap().job = "other".to_owned();
    let mounted = orcheck_mount::mount(&other, tell(), None, Failpoints::none()).unwrap();
    orcheck_io::machine::unmount(&other.mount_point, false).unwrap();
    mounted.end(false, &|| false).unwrap();
    assert!(rig.point().join("r.4.a").exists());
    rig.stop();
}

#[test]
fn a_list_may_name_files_that_have_not_changed_and_come_before_new_ones() {
    if cannot_mount() {
        return;
    }
    let listed = SetOptions {
        patterns: Vec::new(),
        count: None,
        ..counted(1)
    };
    let mut rig = alone(PLAIN, listed);
    fs::write(rig.backing().join("input"), "mine").unwrap();
    run(
        &rig,
        "echo 1 > state; printf 'step 1\nstate\ninput\n' > .orcheck-set",
    );
    wait_until("step 1 is safe", || has_step(&rig, 1));
    let list = r"echo 2 > state; printf 'step 2\n./state\nnew\ninput\n' > .orcheck-set";
    assert!(run(&rig, list).success());
    // It was read when a file of it is marked.
    let mark = rig.backing().join(".orcheck-sets/melt/begun/2.0");
    wait_until("step 2 has begun", || mark.exists());
    assert!(run(&rig, "echo 2 > new").success());
    wait_until("step 2 is safe", || has_step(&rig, 2));
    assert_eq!(rig.stop().sets, [2, 0, 0], "{}", rig.told());
}

#[test]
fn a_mount_that_is_cut_off_takes_no_half_of_a_file() {
    if cannot_mount() {
        return;
    }
    let mut rig = alone(PLAIN, counted(1));
    let mut file = fs::File::create(rig.point().join("r.1.a")).unwrap();
    std::io::Write::write_all(&mut file, b"half").unwrap();
    let forced = Command::new("umount").arg("-f").arg(rig.point()).status();
    assert!(forced.is_ok());
    wait_until("the mount is over", || rig.has_ended());
    drop(file);
    assert_eq!(rig.ended().unwrap().sets, [0, 0, 1], "{}", rig.told());
}

#[test]
fn a_program_that_starts_another_one_while_it_writes_is_answered() {
    if cannot_mount() {
        return;
    }
    let mut rig = alone(PLAIN, counted(1));
    let mut file = fs::File::create(rig.point().join("r.1.a")).unwrap();
    for _ in 0..20 {
        // The new program closes its copy of the descriptor while it is being loaded.
        assert!(Command::new("true").status().unwrap().success());
        std::io::Write::write_all(&mut file, b"more").unwrap();
    }
    drop(file);
    assert_eq!(rig.stop().sets, [1, 0, 0], "{}", rig.told());
}

#[test]
fn the_last_file_or_a_list_completes_a_set() {
    if cannot_mount() {
        return;
    }
    let ended = SetOptions {
        end: Some(Pattern::new("done.{step}").unwrap()),
        count: None,
        ..counted(1)
    };
    let mut rig = alone(PLAIN, ended);
    run(
        &rig,
        "echo 1 > r.7.a; echo 2 > r.7.b; : > done.7; echo 3 > r.8.a",
    );
    assert_eq!(rig.stop().sets, [1, 0, 1], "{}", rig.told());

    let listed = SetOptions {
        patterns: Vec::new(),
        count: None,
        ..counted(1)
    };
    let mut rig = alone(ON_DISK, listed);
    run(
        &rig,
        r"mkdir -p out; echo 1 > out/state; echo 2 > out/grid; echo 3 > other
          printf 'step 5\nstate\ngrid\n' > out/.orcheck-set.new; mv out/.orcheck-set.new out/.orcheck-set",
    );
    wait_until("the set is safe", || has_step(&rig, 5));
    // A file that does not come.
    run(
        &rig,
        "echo 1 > state; printf 'step 6\nstate\nnever\n' > .orcheck-set",
    );
    assert_eq!(rig.stop().sets, [1, 0, 1], "{}", rig.told());
    fs::remove_dir_all(rig.backing().join("out")).unwrap();
    let found = rig.start(Failpoints::none());
    assert_eq!(found.restored, ["out/grid", "out/state"]);
    assert_eq!(fs::read(rig.point().join("out/grid")).unwrap(), b"2\n");
    rig.stop();
}

#[test]
fn files_with_fixed_names_are_a_set_each_time() {
    if cannot_mount() {
        return;
    }
    let fixed = SetOptions {
        patterns: vec![Pattern::new("state.cpt").unwrap()],
        ..counted(1)
    };
    let mut rig = alone(IN_MEMORY, fixed);
    for number in 1..=3 {
        run(&rig, &format!("echo {number} > tmp; mv tmp state.cpt"));
        wait_until("the set is taken", || has_step(&rig, number));
    }
    rig.kill();
    fs::write(rig.backing().join("state.cpt"), "torn").unwrap();
    rig.start(Failpoints::none());
    assert_eq!(fs::read(rig.point().join("state.cpt")).unwrap(), b"3\n");
    run(&rig, "echo 4 > tmp; mv tmp state.cpt");
    assert_eq!(rig.stop().sets, [1, 0, 0], "{}", rig.told());
    assert!(has_step(&rig, 4));
}

#[test]
fn a_set_that_changes_while_it_is_taken_is_lost_or_whole() {
    if cannot_mount() {
        return;
    }
    let mut rig = alone(PLAIN, counted(2));
    const STEPS: u64 = 12;
    let (short, long) = (data(1, 1000), data(2, 24 << 20));
    for step in 1..=STEPS {
        let path = |name: &str| rig.point().join(format!("r.{step}.{name}"));
        fs::write(path("b"), &long).unwrap();
        fs::write(path("a"), &short).unwrap();
        // The set is complete, and somebody writes on.
        let mut file = fs::File::options().write(true).open(path("b")).unwrap();
        std::io::Write::write_all(&mut file, &vec![9; 24 << 20]).unwrap();
        drop(file);
    }
    let said = rig.stop();
    assert_eq!(said.sets[0] + said.sets[1], STEPS, "{}", rig.told());
    let told = rig.told();
    if said.sets[1] > 0 {
        assert!(
            told.contains("opened it for writing while its set was taken"),
            "{told}"
        );
    }
    if said.sets[0] == 0 {
        return;
    }
    // The newest one that was kept has the bytes of one version.
    fs::remove_dir_all(rig.backing()).unwrap();
    fs::create_dir(rig.backing()).unwrap();
    let found = rig.start(Failpoints::none());
    let file = found
        .restored
        .iter()
        .find(|name| name.ends_with(".b"))
        .unwrap();
    let bytes = fs::read(rig.point().join(file)).unwrap();
    assert!(bytes == long || bytes == vec![9; 24 << 20], "{told}");
    rig.stop();
}

const NAMES: [&str; 2] = ["left", "right"];

/// Two virtual nodes: each has a backing directory of its own, and a copy of what the other keeps.
pub struct Two {
    shared: Scratch,
    pub rigs: [Rig; 2],
}

impl Two {
    pub fn new(mode: Mode, sets: &SetOptions) -> Two {
        let shared = Scratch::new("mount-nodes");
        let rigs = [0, 1].map(|node| {
            let mut rig = Rig::new(mode);
            let dir = shared.path().join("disks");
            fs::create_dir_all(&dir).unwrap();
            let name = NAMES[node as usize];
            let (dir, meet) = (dir.display(), shared.path().join("meeting"));
            rig.sets = Some(SetOptions {
                options: Some(format!(
                    "node_dir = '{dir}'\nnode_name = '{name}'\npeers = 1\nkeep = 3"
                )),
                meeting: Some((meet, node, 2)),
                ..sets.clone()
            });
            rig
        });
        let mut two = Two { shared, rigs };
        two.start();
        two
    }

    /// Mounts both; returns the files that each got back.
    fn start(&mut self) -> [Vec<String>; 2] {
        self.start_with([Failpoints::none(), Failpoints::none()])
            .map(|found| found.restored)
    }

    pub fn start_with(&mut self, points: [Failpoints; 2]) -> [FoundThere; 2] {
        for (rig, points) in self.rigs.iter_mut().zip(points) {
            rig.begin(points);
        }
        [0, 1].map(|node: usize| self.rigs[node].started_now())
    }

    pub fn stop(&mut self) -> [Said; 2] {
        self.rigs.iter().for_each(Rig::unmount);
        [0, 1].map(|node: usize| self.rigs[node].ended().unwrap())
    }

    pub fn kill(&mut self) {
        self.rigs.iter_mut().for_each(Rig::kill);
    }

    /// A node with its disk is gone; another one with the same name takes its place.
    fn lose(&mut self, node: usize) {
        let disk = self.shared.path().join("disks/melt").join(NAMES[node]);
        fs::remove_dir_all(disk).unwrap();
        fs::remove_dir_all(self.rigs[node].backing()).unwrap();
        fs::create_dir(self.rigs[node].backing()).unwrap();
    }
}

#[test]
fn a_set_of_two_nodes_survives_the_loss_of_either() {
    if cannot_mount() {
        return;
    }
    for lost in [0, 1] {
        let mut two = Two::new(IN_MEMORY, &counted(3));
        let left = [
            written(&two.rigs[0], "r.1.a", 1),
            written(&two.rigs[0], "r.1.b", 2),
        ];
        let right = written(&two.rigs[1], "r.1.c", 3);
        wait_until("the set is safe", || {
            two.rigs.iter().all(|rig| begun(rig) == 0)
        });
        // Of the next one, a file is missing.
        written(&two.rigs[0], "r.2.a", 4);
        written(&two.rigs[1], "r.2.c", 5);
        two.kill();
        two.lose(lost);
        let restored = two.start();
        let want: [&[&str]; 2] = [&["r.1.a", "r.1.b"], &["r.1.c"]];
        assert_eq!(restored[lost], want[lost]);
        assert_eq!(restored[1 - lost], Vec::<String>::new());
        let read = |node: usize, name: &str| fs::read(two.rigs[node].point().join(name)).unwrap();
        assert!(read(0, "r.1.a") == left[0] && read(0, "r.1.b") == left[1]);
        assert!(read(1, "r.1.c") == right);
        for rig in &two.rigs {
            let of_two = |entry: std::io::Result<fs::DirEntry>| {
                entry
                    .unwrap()
                    .file_name()
                    .to_str()
                    .unwrap()
                    .starts_with("r.2")
            };
            assert!(!fs::read_dir(rig.point()).unwrap().any(of_two));
        }
        written(&two.rigs[0], "r.2.a", 4);
        written(&two.rigs[1], "r.2.b", 4);
        written(&two.rigs[1], "r.2.c", 5);
        let said = two.stop();
        assert_eq!(said.map(|one| one.sets), [[1, 0, 0]; 2]);
    }
}

#[test]
fn a_mount_that_dies_ends_the_sets_of_the_others_and_they_say_so() {
    if cannot_mount() {
        return;
    }
    let mut two = Two::new(PLAIN, &counted(1));
    two.rigs[1].kill();
    let told = || two.rigs[0].told().contains("no further sets will be kept");
    wait_until("the other one has noticed", told);
    // Files are written as before.
    let bytes = written(&two.rigs[0], "r.1.a", 1);
    two.rigs[0].unmount();
    two.rigs[0].ended().unwrap();
    assert!(fs::read(two.rigs[0].backing().join("r.1.a")).unwrap() == bytes);
}

/// The liquid on two ranks, with three restart files every twenty steps, for longer.
fn melt() -> String {
    let often = MELT.replace("restart 10 r.*", "restart 20 r.*.%");
    often.replace("run 400", "run 2000")
}

fn lammps(dir: &Path, script: &Path, more: &[&str]) -> Command {
    let mut run = Command::new("mpirun");
    run.args(["--allow-run-as-root", "--oversubscribe", "-n", "2", "lmp"]);
    run.args(["-log", "none", "-screen", "none", "-in"])
        .arg(script);
    run.args(more).current_dir(dir);
    run
}

/// The newest step with a file of this directory.
fn newest(dir: &Path) -> Option<(u32, Vec<PathBuf>)> {
    let files = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let mut steps: std::collections::BTreeMap<u32, Vec<PathBuf>> = Default::default();
    for path in files {
        let name = path.file_name().unwrap().to_str().unwrap();
        let step = name
            .strip_prefix("r.")
            .and_then(|rest| rest.split('.').next()?.parse().ok());
        if let Some(step) = step {
            steps.entry(step).or_default().push(path);
        }
    }
    steps.pop_last()
}

#[test]
fn lammps_restarts_from_the_other_node_when_its_own_is_lost() {
    if cannot_mount() {
        return;
    }
    if Command::new("lmp").arg("-help").output().is_err() {
        eprintln!("not tried: LAMMPS (lmp) is not here");
        return;
    }
    let mut two = Two::new(IN_MEMORY, &counted(3));
    let script = two.shared.path().join("in");
    let melt = melt();
    fs::write(&script, &melt).unwrap();
    let undisturbed = two.shared.path().join("undisturbed");
    fs::create_dir(&undisturbed).unwrap();
    assert!(
        lammps(&undisturbed, &script, &[])
            .status()
            .unwrap()
            .success()
    );
    let point = two.rigs[0].point();
    let mut running = lammps(&point, &script, &[]).spawn().unwrap();
    let records = two.shared.path().join("disks/melt/left");
    wait_until("a set of step 100 or later is safe", || {
        let names = fs::read_dir(&records).unwrap();
        let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut steps = names.filter_map(|name| {
            let step = name.strip_prefix('s')?.split('-').next()?.parse::<u64>();
            step.ok().filter(|_| name.ends_with(".commit"))
        });
        steps.any(|step| step >= 100)
    });
    running.kill().unwrap();
    running.wait().unwrap();
    two.kill();
    two.lose(0);
    let restored = two.start();
    assert_eq!(restored[0].len(), 3, "{:?}", two.rigs[0].told());
    let (step, files) = newest(&point).unwrap();
    assert!(step >= 100, "{step}");
    assert_eq!(files.len(), 3);
    for file in &files {
        let want = fs::read(undisturbed.join(file.file_name().unwrap())).unwrap();
        assert!(fs::read(file).unwrap() == want, "{}", file.display());
    }
    let continued = two.shared.path().join("in.continued");
    let rest = melt.find("pair_style").unwrap();
    let rest = melt[rest..].replace("run 2000", "run 2000 upto");
    fs::write(&continued, format!("read_restart r.{step}.%\n{rest}")).unwrap();
    assert!(lammps(&point, &continued, &[]).status().unwrap().success());
    let said = two.stop();
    assert!(said[0].sets[0] > 0, "{}", two.rigs[0].told());
    assert_eq!(newest(two.rigs[0].backing()).unwrap().0, 2000);
}

#[test]
fn gromacs_restarts_from_the_other_node_when_its_own_is_lost() {
    if cannot_mount() {
        return;
    }
    if Command::new("gmx").arg("-version").output().is_err() {
        eprintln!("not tried: GROMACS (gmx) is not here");
        return;
    }
    let checkpoint = SetOptions {
        patterns: vec![Pattern::new("md.cpt").unwrap()],
        ..counted(1)
    };
    let mut two = Two::new(PLAIN, &checkpoint);
    let out = two.shared.path().to_owned();
    for (name, text) in WATER {
        fs::write(out.join(name), text).unwrap();
    }
    let undisturbed = out.join("undisturbed");
    fs::create_dir(&undisturbed).unwrap();
    let made = |arguments: &str| assert!(gmx(&out, arguments).status().unwrap().success());
    made("solvate -cs spc216 -box 2 2 2 -o w.gro");
    made("grompp -f w.mdp -c w.gro -p w.top -o w.tpr -maxwarn 5");
    let tpr = out.join("w.tpr");
    let run = format!(
        "mdrun -s {} -nt 1 -reprod -cpt 0.005 -noappend -deffnm md",
        tpr.display()
    );
    assert!(gmx(&undisturbed, &run).status().unwrap().success());
    let point = two.rigs[0].point();
    let mut running = gmx(&point, &run).spawn().unwrap();
    let records = out.join("disks/melt/left");
    wait_until("a second set is safe", || {
        let names = fs::read_dir(&records).unwrap();
        let mut names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.any(|name| name.starts_with("s000000000002-") && name.ends_with(".commit"))
    });
    running.kill().unwrap();
    running.wait().unwrap();
    two.kill();
    two.lose(0);
    assert_eq!(two.start()[0], ["md.cpt"]);
    let again = format!("{run} -cpi md.cpt");
    assert!(gmx(&point, &again).status().unwrap().success());
    two.stop();
    // Each part has a number.
    let last = fs::read_dir(two.rigs[0].backing()).unwrap();
    let last = last.map(|entry| entry.unwrap().path());
    let last = last
        .filter(|path| path.extension().is_some_and(|end| end == "gro"))
        .max();
    let want = fs::read(undisturbed.join("md.part0001.gro")).unwrap();
    assert!(fs::read(last.unwrap()).unwrap() == want);
}
