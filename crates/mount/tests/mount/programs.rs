//! Real programs that know nothing of the mount.

use crate::cannot_mount;
use crate::rig::{MODES, Rig, wait_until};
use std::path::Path;
use std::process::Command;

/// Runs a script in the mount, and fails with what it said.
fn run(rig: &Rig, script: &str) {
    let ended = Command::new("bash")
        .args(["-euo", "pipefail", "-c", script])
        .current_dir(rig.point())
        .env("BACKING", rig.backing())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success(), "{:?}\n{script}\n{said}", rig.mode);
}

/// Makes a tree outside, with links, holes, odd lengths and odd names.
const TREE: &str = r#"
    mkdir -p ../tree/deep/er "../tree/with space"
    head -c 1000003 /dev/urandom > ../tree/odd
    head -c 1 /dev/urandom > ../tree/deep/one
    : > ../tree/empty
    ln ../tree/odd ../tree/deep/hard
    ln -s ../odd ../tree/deep/er/soft
    truncate -s 3M ../tree/hole; printf x | dd of=../tree/hole bs=1 seek=2000000 conv=notrunc status=none
    head -c 40000 /dev/urandom > "../tree/with space/name with ü"
    chmod 444 ../tree/deep/one; chmod 755 ../tree/odd
    # rsync lets times be that differ by less than a second.
    find ../tree -depth -exec touch -h -d '2001-02-03 04:05:06.789' {} +
"#;

#[test]
fn copies_and_archives_are_identical() {
    if cannot_mount() {
        return;
    }
    for mode in MODES {
        let mut rig = Rig::started(mode);
        run(&rig, TREE);
        run(
            &rig,
            r#"
            all() { (cd "$1"; find . -mindepth 1 -printf '%p %m %n %y %T@\n' | sort); }
            same() { diff -r --no-dereference ../tree "$1"; diff <(all ../tree) <(all "$1") >&2; }
            cp -a ../tree copy; same copy
            mkdir out; tar --format=posix -C ../tree -cf - . | tar -C out -xf -; same out
            tar --format=posix -cf all.tar -C ../tree .; tar -df all.tar -C ../tree
            if command -v rsync >/dev/null; then rsync -aH ../tree/ synced/; same synced; rsync -aH --inplace ../tree/ synced/; same synced; fi
            mv copy moved; same moved; rm -r moved out
            "#,
        );
        rig.stop();
        let script = format!(
            "cd {}; diff -r --no-dereference ../tree synced; tar -df all.tar -C ../tree",
            rig.backing().display()
        );
        let ended = Command::new("bash")
            .args(["-ec", &script])
            .output()
            .unwrap();
        assert!(
            ended.status.success(),
            "{}",
            String::from_utf8_lossy(&ended.stderr)
        );
    }
}

#[test]
fn dd_and_appends_and_locks() {
    if cannot_mount() {
        return;
    }
    for mode in MODES {
        let mut rig = Rig::started(mode);
        run(
            &rig,
            r#"
            head -c 3333333 /dev/urandom > ../source
            dd if=../source of=a bs=7777 status=none; cmp ../source a
            dd if=../source of=b bs=100001 conv=fsync status=none; cmp ../source b
            dd if=../source of=b bs=999 seek=1 skip=1 conv=notrunc status=none; cmp ../source b
            dd if=../source of=c bs=64k iflag=fullblock oflag=append conv=notrunc status=none; cmp ../source c
            for k in 1 2 3 4; do (for i in $(seq 50); do flock lock -c "echo $k $i >> log"; done) & done; wait
            [ "$(sort log | uniq | wc -l)" = 200 ]
            printf '#!/bin/sh\necho ran\n' > program; chmod +x program; [ "$(./program)" = ran ]
            "#,
        );
        rig.stop();
        let ended = Command::new("cmp")
            .arg(rig.scratch.path().join("source"))
            .arg(rig.backing().join("b"))
            .status();
        assert!(ended.unwrap().success());
    }
}

#[test]
fn a_database_works_and_stays_whole() {
    if cannot_mount() {
        return;
    }
    if Command::new("sqlite3").arg("--version").output().is_err() {
        eprintln!("not tried: sqlite3 is not here");
        return;
    }
    for mode in MODES {
        let mut rig = Rig::started(mode);
        run(
            &rig,
            r#"
            for journal in delete wal; do
                sqlite3 $journal.db "pragma journal_mode=$journal; create table t(a integer primary key, b blob);" > /dev/null
                for k in 1 2 3; do
                    (for i in $(seq 10); do sqlite3 -cmd '.timeout 20000' $journal.db "insert into t(b) values(randomblob(3000));"; done) &
                done
                wait
                [ "$(sqlite3 $journal.db 'pragma integrity_check; select count(*) from t;' | tr '\n' ' ')" = 'ok 30 ' ]
            done
            "#,
        );
        rig.stop();
        let database = rig.backing().join("delete.db");
        let ended = Command::new("sqlite3")
            .arg(database)
            .arg("pragma integrity_check;")
            .output();
        assert_eq!(String::from_utf8_lossy(&ended.unwrap().stdout), "ok\n");
    }
}

/// A liquid, with a restart file every ten steps.
pub const MELT: &str = "
units lj
atom_style atomic
lattice fcc 0.8442
region box block 0 8 0 8 0 8
create_box 1 box
create_atoms 1 box
mass 1 1.0
velocity all create 3.0 87287 loop geom
pair_style lj/cut 2.5
pair_coeff 1 1 1.0 1.0 2.5
fix 1 all nve
restart 10 r.*
run 400
";
/// The same from a restart file on.
const CONTINUED: &str = "
read_restart ${from}
pair_style lj/cut 2.5
pair_coeff 1 1 1.0 1.0 2.5
fix 1 all nve
run 400 upto
";

/// Runs LAMMPS there, until it ends or `until` says so; then it is killed.
fn melt(dir: &Path, script: &Path, more: &[&str], until: &dyn Fn() -> bool) -> bool {
    let mut run = Command::new("lmp")
        .args(["-log", "none", "-screen", "none", "-in"])
        .arg(script)
        .args(more)
        .current_dir(dir)
        .spawn()
        .unwrap();
    while run.try_wait().unwrap().is_none() {
        if until() {
            let _ = run.kill();
            let _ = run.wait();
            return false;
        }
    }
    run.wait().unwrap().success()
}

/// Restart files by their steps.
fn restarts(dir: &Path) -> std::collections::BTreeMap<u32, std::path::PathBuf> {
    let files = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap());
    let step = |name: &str| name.strip_prefix("r.")?.parse().ok();
    files
        .filter_map(|entry| Some((step(entry.file_name().to_str()?)?, entry.path())))
        .collect()
}

#[test]
fn lammps_and_the_mount_are_killed_and_its_restart_files_are_those_of_an_undisturbed_run() {
    if cannot_mount() {
        return;
    }
    if Command::new("lmp").arg("-help").output().is_err() {
        eprintln!("not tried: LAMMPS (lmp) is not here");
        return;
    }
    for mode in [MODES[0], MODES[3], MODES[4]] {
        let mut rig = Rig::started(mode);
        let out = rig.scratch.path();
        let (script, continued, undisturbed) = (
            out.join("in"),
            out.join("in.continued"),
            out.join("undisturbed"),
        );
        std::fs::write(&script, MELT).unwrap();
        std::fs::write(&continued, CONTINUED).unwrap();
        std::fs::create_dir(&undisturbed).unwrap();
        assert!(melt(&undisturbed, &script, &[], &|| false));
        let point = rig.point();
        assert!(!melt(&point, &script, &[], &|| point
            .join("r.200")
            .exists()));
        rig.kill();
        let found = rig.start(orcheck_io::failpoints::Failpoints::none());
        let there = restarts(&rig.point());
        // The last one was being written.
        let newest = *there.keys().rev().nth(1).unwrap();
        assert!(newest >= 180, "{mode:?}: {found:?}");
        for (step, path) in there.range(..=newest) {
            let want = std::fs::read(undisturbed.join(format!("r.{step}"))).unwrap();
            assert!(
                std::fs::read(path).unwrap() == want,
                "{mode:?}: step {step}"
            );
        }
        let from = format!("r.{newest}");
        assert!(
            melt(&rig.point(), &continued, &["-var", "from", &from], &|| {
                false
            }),
            "{mode:?}"
        );
        rig.stop();
    }
}

/// Water, for `gmx grompp`.
pub const WATER: [(&str, &str); 2] = [
    (
        "w.top",
        "#include \"oplsaa.ff/forcefield.itp\"\n#include \"oplsaa.ff/spc.itp\"\n\
         [ system ]\nwater\n[ molecules ]\nSOL 221\n",
    ),
    (
        "w.mdp",
        "integrator = md\ndt = 0.002\nnsteps = 3000\nnstlog = 500\nnstxout = 0\nnstvout = 0\n\
         nstenergy = 100\ncutoff-scheme = Verlet\ncoulombtype = Reaction-Field\nrcoulomb = 0.9\n\
         rvdw = 0.9\nconstraints = none\ntcoupl = no\ngen_vel = yes\ngen_seed = 1\n",
    ),
];

/// GROMACS in a directory.
pub fn gmx(dir: &Path, arguments: &str) -> Command {
    let mut command = Command::new("gmx");
    command
        .arg("-quiet")
        .args(arguments.split(' '))
        .current_dir(dir);
    command
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null());
    command
}

#[test]
fn gromacs_and_the_mount_are_killed_and_it_ends_as_if_undisturbed() {
    if cannot_mount() {
        return;
    }
    if Command::new("gmx").arg("-version").output().is_err() {
        eprintln!("not tried: GROMACS (gmx) is not here");
        return;
    }
    for mode in [MODES[0], MODES[3], MODES[4], MODES[5]] {
        let mut rig = Rig::started(mode);
        let out = rig.scratch.path().to_owned();
        for (name, text) in WATER {
            std::fs::write(out.join(name), text).unwrap();
        }
        let undisturbed = out.join("undisturbed");
        std::fs::create_dir(&undisturbed).unwrap();
        let made = |arguments: &str| assert!(gmx(&out, arguments).status().unwrap().success());
        made("solvate -cs spc216 -box 2 2 2 -o w.gro");
        made("grompp -f w.mdp -c w.gro -p w.top -o w.tpr -maxwarn 5");
        // A checkpoint every third of a second.
        let run = "mdrun -s ../w.tpr -nt 1 -reprod -cpt 0.005 -deffnm md";
        assert!(gmx(&undisturbed, run).status().unwrap().success());
        let point = rig.point();
        let mut running = gmx(&point, run).spawn().unwrap();
        wait_until("it has taken two checkpoints", || {
            point.join("md_prev.cpt").exists()
        });
        running.kill().unwrap();
        running.wait().unwrap();
        rig.kill();
        rig.start(orcheck_io::failpoints::Failpoints::none());
        let again = format!("{run} -cpi md.cpt");
        assert!(
            gmx(&rig.point(), &again).status().unwrap().success(),
            "{mode:?}"
        );
        rig.stop();
        let [found, want] =
            [rig.backing(), &undisturbed].map(|dir| std::fs::read(dir.join("md.gro")).unwrap());
        assert!(found == want, "{mode:?}");
    }
}
