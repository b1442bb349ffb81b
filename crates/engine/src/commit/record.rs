//! Makes a checkpoint visible by writing its commit record; nothing else does.
//!
//! In **every** directory of the level, a commit record is written under a temporary name, made
//! durable and renamed, and then the directory is made durable. Any valid copy counts for readers.
//! Afterwards the claims are read again. A newer run's claim means that this run is fenced off;
//! readers ignore its record, although it is visible, because the newer run resumed from an earlier
//! step.
//!
//! Invariants:
//! 1. It is called only with records whose containers are all durable (`protocol.rs`, invariant 1).
//! 2. It returns `Ok` only if every directory holds the record and it saw no newer claim after the
//!    last rename.
//! 3. It writes no record into a directory to which the configured path no longer leads: a reader
//!    that opens the path would not find it.
//! 4. If an error does not begin with [`UNDECIDED`](crate::commit::protocol::UNDECIDED), no
//!    directory has the record.
//!
//! Survives: a crash at any point (in each directory the record is whole or absent); a directory
//! that fails (the step is not acknowledged; a copy elsewhere may still make it restartable, which
//! is reported). Such a record is not removed, because the checkpoint is complete and a newer run
//! may have found it. Not here: epochs (`epoch.rs`), retention (`prune.rs`).

use crate::commit::protocol::undecided;
use crate::directory::TargetFailure;
use crate::directory::epoch::check_not_fenced;
use crate::encoding::Trust;
use orcheck_format::disk::{CommitRecord, ContainerRef, FileName};
use orcheck_format::sabotage::{Switch, off};
use orcheck_format::{Epoch, Error, ErrorKind, Level, Result, TargetId};
use orcheck_io::disk::{Dir, write_small};
use std::sync::Arc;

/// Puts the record into every directory, in order. On failure, returns the index in `dirs` of the
/// directory that failed, if one did.
///
/// # Errors
/// Fenced, or the error of a directory.
pub fn make_visible(
    dirs: &[Arc<dyn Dir>],
    record: &CommitRecord,
    trust: &Trust,
) -> std::result::Result<(), TargetFailure> {
    make_visible_under(dirs, record, record.epoch, trust)
}

/// As [`make_visible`], for a copy of another run's checkpoint whose containers were written again
/// under the claim `held`. A claim newer than `held` supersedes the copy.
///
/// # Errors
/// As [`make_visible`].
pub fn make_copy_visible(
    dirs: &[Arc<dyn Dir>],
    record: &CommitRecord,
    held: Epoch,
    trust: &Trust,
) -> Result<()> {
    make_visible_under(dirs, record, held, trust).map_err(Error::from)
}

/// Builds the record of a copy of a checkpoint, whose containers were written again at another
/// level or in other directories.
#[must_use]
pub fn record_of_copy(
    of: &CommitRecord,
    level: Level,
    servers: Vec<String>,
    containers: Vec<ContainerRef>,
) -> CommitRecord {
    CommitRecord {
        level,
        servers,
        placement_generation: 0,
        containers,
        groups: Vec::new(),
        ..of.clone()
    }
}

fn make_visible_under(
    dirs: &[Arc<dyn Dir>],
    record: &CommitRecord,
    held: Epoch,
    trust: &Trust,
) -> std::result::Result<(), TargetFailure> {
    let name = FileName::commit(record.step, record.epoch, record.level).to_string();
    // A superseded run usually stops here, before it leaves a record behind.
    if !off(Switch::EpochBefore) {
        require_no_newer_run(dirs, held, trust)?;
    }
    let mut numbered = (0u32..).zip(dirs);
    numbered.try_for_each(|(number, dir)| {
        dir.check_path()
            .map_err(|error| TargetFailure::of(TargetId(number), error))
    })?;
    let bytes = record.encode();
    // A record that readers would refuse must not be acknowledged.
    if !off(Switch::RecordReadable) {
        CommitRecord::decode(&bytes)?;
    }
    let bytes = trust.seal(bytes)?;
    let most = if off(Switch::EveryDirectory) {
        1
    } else {
        dirs.len()
    };
    let what = format!("commit of step {} at level {}", record.step, record.level);
    let mut begun = 0;
    let written = (0u32..).zip(&dirs[..most]).try_for_each(|(number, dir)| {
        begun = number as usize + 1;
        write_small(dir.as_ref(), &name, &bytes)
            .map_err(|error| TargetFailure::of(TargetId(number), error.at(&what)))
    });
    let written = match written {
        Ok(()) if !off(Switch::EpochAfter) => require_no_newer_run(dirs, held, trust),
        written => written,
    };
    written.map_err(|failure| match is_in_no_directory(&dirs[..begun], &name) {
        true => failure,
        false => TargetFailure {
            error: undecided(failure.error),
            ..failure
        },
    })
}

/// Whether every directory reports that it does not have the file.
fn is_in_no_directory(dirs: &[Arc<dyn Dir>], name: &str) -> bool {
    let is_absent = |dir: &Arc<dyn Dir>| {
        let found = dir.open(name).err();
        found.is_some_and(|error| error.kind() == ErrorKind::NotFound)
    };
    dirs.iter().all(is_absent)
}

/// Looks at one directory after the other, so that an unreadable one is known by its number and
/// gets no more containers.
fn require_no_newer_run(
    dirs: &[Arc<dyn Dir>],
    epoch: Epoch,
    trust: &Trust,
) -> std::result::Result<(), TargetFailure> {
    (0u32..).zip(dirs).try_for_each(|(number, dir)| {
        check_not_fenced(std::slice::from_ref(dir), epoch, trust)
            .map_err(|error| TargetFailure::of(TargetId(number), error))
    })
}

/// As [`make_visible`], for the encoded record that the lead sent to this node; returns the commit.
///
/// # Errors
/// Corrupt for a record that does not belong to this job; otherwise as [`make_visible`].
pub fn make_visible_here(dir: &Arc<dyn Dir>, bytes: &[u8], trust: &Trust) -> Result<CommitRecord> {
    let record = CommitRecord::decode(bytes)?;
    make_visible(std::slice::from_ref(dir), &record, trust).map_err(Error::from)?;
    Ok(record)
}

/// Puts a record that other nodes of this run hold into this node's directory, unchanged, unless it
/// is there already. The checkpoint from which the run resumed then counts here too, and survives
/// as many losses as before.
///
/// # Errors
/// The directory's error.
pub fn copy_here(dir: &Arc<dyn Dir>, record: &CommitRecord, bytes: &[u8]) -> Result<()> {
    let name = FileName::commit(record.step, record.epoch, record.level).to_string();
    // Breaks if: the record is not copied; a node that missed the commit never removes older
    // checkpoints.
    if off(Switch::RecordCopied) || dir.list()?.iter().any(|entry| entry.name == name) {
        return Ok(());
    }
    write_small(dir.as_ref(), &name, bytes)
}
