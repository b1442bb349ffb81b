//! Examines one directory with one small file.
//!
//! Invariants: the file is created exclusively, its name ends in `.tmp`, and it is removed on every
//! path.

use std::path::Path;

use orcheck_format::{ErrorKind, Result, hex};
use orcheck_io::clock::{Clock, SystemClock};
use orcheck_io::disk::{Create, Dir};
use orcheck_io::errno::is_denied;
use orcheck_io::failpoints::Failpoints;
use orcheck_io::memory::Buffer;
use orcheck_io::rng::random_bytes;
use orcheck_staging::client::is_served;
use orcheck_staging::open_dir;

use super::{Mark, Report};
use crate::output::size;

/// Size of the file, in bytes.
const FILE_BYTES: usize = 1 << 20;
/// A sync that takes longer deserves a note, in milliseconds.
const SLOW_SYNC_MS: u128 = 1000;
/// Free space, in bytes, below which a note is due.
const LITTLE_SPACE_BYTES: u64 = 1 << 30;

/// Adds the items of one directory.
pub(super) fn examine(report: &mut Report, path: &Path, role: &str) {
    let mut group = path.display().to_string();
    let dir = match open_dir(path, Failpoints::none()) {
        Ok(dir) => dir,
        Err(error) => {
            // Breaks if: it is ignored; a user who gave a wrong key would look for a server that is
            // down.
            let said = error.next_step().filter(|_| is_served(path));
            let next = said.unwrap_or(match error.kind() {
                ErrorKind::NotFound => "create it or correct the path",
                _ if is_denied(&error) => {
                    "run it as the user who owns it, or let its owner permit you to use it"
                }
                _ => "bring back its server or disk, or correct the path",
            });
            return report.add(&group, role, Mark::Problem, error.what(), next);
        }
    };
    if is_served(path) {
        // Without the source of the key.
        group = dir.path().display().to_string();
    }
    kind(report, &group, path, role);
    space(report, &group, dir.as_ref());
    if is_writable(report, &group, dir.as_ref()) {
        small_file(report, &group, dir.as_ref());
    }
}

fn kind(report: &mut Report, group: &str, path: &Path, role: &str) {
    let kind = match is_served(path) {
        true => "staging server".to_owned(),
        false => {
            orcheck_io::machine::file_system_kind(path).unwrap_or_else(|error| error.to_string())
        }
    };
    let advice = match (role, kind.as_str()) {
        ("placed directory", "tmpfs" | "ramfs") => {
            "in memory: nothing survives a reboot; use it for tests only"
        }
        ("node directory", "nfs" | "lustre") => "a node directory should be on a disk of the node",
        _ => return report.ok(group, "file system", kind),
    };
    report.add(group, "file system", Mark::Note, kind, advice);
}

fn space(report: &mut Report, group: &str, dir: &dyn Dir) {
    let name = "free space";
    match dir.free_bytes() {
        Ok(free) => {
            let mark = match free < LITTLE_SPACE_BYTES {
                true => Mark::Note,
                false => Mark::Ok,
            };
            let advice = "make room: two checkpoints must fit, and a third while it is written";
            report.add(group, name, mark, size(free), advice);
        }
        Err(error) => report.add(group, name, Mark::Note, error, "check the file system"),
    }
}

fn is_writable(report: &mut Report, group: &str, dir: &dyn Dir) -> bool {
    let name = "writable";
    match dir.read_only() {
        Ok(false) => true,
        Ok(true) => {
            let (found, next) = match dir.permits_writing() {
                Ok(()) => ("read-only", "mount it for writing"),
                Err(_) => (
                    "no permission to write",
                    "run it as the user who owns it, or let its owner permit you to write",
                ),
            };
            report.add(group, name, Mark::Problem, found, next);
            false
        }
        Err(error) => {
            report.add(group, name, Mark::Note, error, "check the file system");
            true
        }
    }
}

fn small_file(report: &mut Report, group: &str, dir: &dyn Dir) {
    let name = format!("orcheck-doctor-{}.tmp", hex(&random_bytes::<8>()));
    let renamed = format!("orcheck-doctor-{}.tmp", hex(&random_bytes::<8>()));
    if let Err(error) = with_file(report, group, dir, &name, &renamed) {
        let next = "Orcheck cannot store checkpoints here";
        report.add(group, "write and sync", Mark::Problem, error, next);
    }
    // Whichever name the file has by now.
    let left = [dir.remove(&name), dir.remove(&renamed)];
    let is_it = |name_there: &String| *name_there == name || *name_there == renamed;
    if left.iter().all(|removed| removed.is_err())
        && dir
            .list()
            .is_ok_and(|entries| entries.iter().any(|entry| is_it(&entry.name)))
    {
        report.add(
            group,
            "removal",
            Mark::Problem,
            "the test file cannot be removed",
            "checkpoints are never removed here; check permissions",
        );
    }
}

fn with_file(
    report: &mut Report,
    group: &str,
    dir: &dyn Dir,
    name: &str,
    renamed: &str,
) -> Result<()> {
    let clock = SystemClock::new();
    let file = dir.create(name, Create::Direct)?;
    file.allocate(FILE_BYTES as u64)?;
    let buffer = Buffer::zeroed(FILE_BYTES, file.alignment_bytes() as usize);
    file.write_at(buffer.part(0, FILE_BYTES)?, 0)?;
    if file.is_direct() {
        report.ok(
            group,
            "O_DIRECT",
            format!("works, alignment {} bytes", file.alignment_bytes()),
        );
    } else {
        report.add(
            group,
            "O_DIRECT",
            Mark::Note,
            "refused by this file system",
            "flushes go through the page cache, which takes memory and processor time",
        );
    }
    report.ok(group, "fallocate and write", size(FILE_BYTES as u64));
    let begin = clock.now();
    file.sync()?;
    let took = clock.now().saturating_sub(begin).as_millis();
    let mark = if took > SLOW_SYNC_MS {
        Mark::Note
    } else {
        Mark::Ok
    };
    report.add(
        group,
        "fsync",
        mark,
        format!("{took} ms"),
        "every commit waits for a few of these; a faster disk makes commits faster",
    );
    match file.try_lock() {
        Ok(true) => report.ok(group, "file locks", "work"),
        Ok(false) => report.add(
            group,
            "file locks",
            Mark::Note,
            "held by another process",
            "unexpected for a new file; check the file system",
        ),
        Err(error) => report.add(
            group,
            "file locks",
            Mark::Note,
            error,
            "mount with locking, e.g. -o flock on Lustre",
        ),
    }
    file.close()?;
    dir.rename(name, renamed)?;
    dir.sync()?;
    report.ok(group, "rename and directory fsync", "work");
    Ok(())
}
