//! Real programs that know nothing of the mount.

use crate::cannot_mount;
use crate::rig::{MODES, Rig};
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
