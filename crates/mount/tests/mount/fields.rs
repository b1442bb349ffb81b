//! Ranks that write one file together: MPI-IO, parallel HDF5, parallel NetCDF; by one mount, and
//! by a mount and another node.

use crate::cannot_mount;
use crate::rig::{IN_MEMORY, MODES, ON_DISK, Rig};
use orcheck_testing::Scratch;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const KINDS: [&str; 3] = ["mpi-io", "hdf5", "netcdf"];

/// The program, or nothing where the libraries are not here.
fn program(dir: &Path) -> Option<PathBuf> {
    let found = Command::new("pkg-config")
        .args(["--exists", "netcdf-mpi", "hdf5-openmpi"])
        .status();
    if !found.is_ok_and(|found| found.success()) {
        eprintln!("not tried: parallel HDF5 and NetCDF are not here");
        return None;
    }
    let program = dir.join("fields");
    let script = "mpicc -O1 -Wall -Werror -o \"$2\" \"$1\" \
                  $(pkg-config --cflags --libs netcdf-mpi hdf5-openmpi) \
                  -I$(pkg-config --variable=libdir netcdf-mpi)/netcdf/mpi/include";
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/mount/fields.c");
    let mut compiled = Command::new("bash");
    compiled
        .args(["-c", script, "bash"])
        .arg(source)
        .arg(&program);
    assert!(compiled.status().unwrap().success());
    Some(program)
}

/// Three ranks, each in one of the directories in turn.
fn run(program: &Path, what: &str, kind: &str, dirs: &[&Path]) {
    let mut ranks = Command::new("mpirun");
    ranks.args(["--allow-run-as-root", "--oversubscribe"]);
    for rank in 0..3 {
        if rank > 0 {
            ranks.arg(":");
        }
        ranks
            .args(["-n", "1", "--wdir"])
            .arg(dirs[rank % dirs.len()]);
        ranks
            .arg(program)
            .args([what, kind])
            .arg(format!("field.{kind}"));
    }
    let ended = ranks.output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success(), "{what} {kind}: {said}");
}

#[test]
fn ranks_write_one_file_together() {
    if cannot_mount() {
        return;
    }
    let scratch = Scratch::new("fields");
    let Some(program) = program(scratch.path()) else {
        return;
    };
    for mode in [MODES[0], MODES[1], ON_DISK, IN_MEMORY] {
        let mut rig = Rig::started(mode);
        let (point, backing) = (rig.point(), rig.backing().to_owned());
        for kind in KINDS {
            run(&program, "write", kind, &[&point]);
            run(&program, "read", kind, &[&point]);
        }
        // Ranks on two nodes: one of them writes as another mount does.
        for kind in KINDS {
            fs::remove_file(point.join(format!("field.{kind}"))).unwrap();
            run(&program, "write", kind, &[&point, &backing]);
        }
        rig.stop();
        for kind in KINDS {
            run(&program, "read", kind, &[&backing]);
        }
    }
}
