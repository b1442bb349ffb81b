//! Commit: the only place that makes a checkpoint visible.
//!
//! A commit record is written under a temporary name, made durable, renamed, and its directory is
//! made durable, in **every** directory of the level; any valid copy counts for readers. Then the
//! claims are read again: a newer run's claim means this one is fenced off, and the record, though
//! visible, is ignored by readers because the newer run resumed from an earlier step.
//!
//! Invariants:
//! 1. Called only with records whose containers are all durable (`protocol.rs`, invariant 1).
//! 2. `Ok` is returned only when every directory holds the record and no newer claim was seen
//!    after the last rename.
//! 3. No record is written where the configured path does not lead: whoever opens the path would not find it.
//! 4. An error does not begin with [`UNDECIDED`](crate::commit::protocol::UNDECIDED), or no directory has the record.
//!
//! Survives: a crash between any two steps (the record is whole or absent in each directory), a
//! directory that fails (that step is not acknowledged; a copy elsewhere may make it restartable, and that is reported. It is not
//! removed: a newer run may have found it, and all of the checkpoint is there). Not here: epochs (`epoch.rs`), retention (`prune.rs`).

use crate::commit::protocol::undecided;
use crate::directory::TargetFailure;
use crate::directory::epoch::check_not_fenced;
use crate::encoding::Trust;
use orcheck_format::disk::{CommitRecord, ContainerRef, FileName};
use orcheck_format::sabotage::{Switch, off};
use orcheck_format::{Epoch, Error, ErrorKind, Level, Result, TargetId};
use orcheck_io::disk::{Dir, write_small};
use std::sync::Arc;

/// Puts the record into every directory, in order. On failure: the index of the directory in
/// `dirs` that failed, if one did.
///
/// # Errors
/// Fenced, or what a directory says.
pub fn make_visible(
    dirs: &[Arc<dyn Dir>],
    record: &CommitRecord,
    trust: &Trust,
) -> std::result::Result<(), TargetFailure> {
    make_visible_under(dirs, record, record.epoch, trust)
}

/// As [`make_visible`], for a copy of another run's checkpoint, whose containers were written again under the claim `held`: a
/// claim that is newer than that one supersedes the copy.
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

/// The record of a copy at another level, or in other directories, of a checkpoint whose containers were written again.
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
    // A superseded run stops here in the common case, before it leaves a record behind.
    if !off(Switch::EpochBefore) {
        look_for_newer_runs(dirs, held, trust)?;
    }
    let mut numbered = (0u32..).zip(dirs);
    numbered.try_for_each(|(number, dir)| {
        dir.check_path()
            .map_err(|error| TargetFailure::of(TargetId(number), error))
    })?;
    let bytes = record.encode();
    // What readers would refuse must not be acknowledged.
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
        Ok(()) if !off(Switch::EpochAfter) => look_for_newer_runs(dirs, held, trust),
        written => written,
    };
    written.map_err(|failure| match is_nowhere(&dirs[..begun], &name) {
        true => failure,
        false => TargetFailure {
            error: undecided(failure.error),
            ..failure
        },
    })
}

/// Whether none of these directories has the file, and all of them say so.
fn is_nowhere(dirs: &[Arc<dyn Dir>], name: &str) -> bool {
    let is_absent = |dir: &Arc<dyn Dir>| {
        let found = dir.open(name).err();
        found.is_some_and(|error| error.kind() == ErrorKind::NotFound)
    };
    dirs.iter().all(is_absent)
}

/// One directory after the other, so that one that cannot be read is known by its number and gets
/// no more containers.
fn look_for_newer_runs(
    dirs: &[Arc<dyn Dir>],
    epoch: Epoch,
    trust: &Trust,
) -> std::result::Result<(), TargetFailure> {
    (0u32..).zip(dirs).try_for_each(|(number, dir)| {
        check_not_fenced(std::slice::from_ref(dir), epoch, trust)
            .map_err(|error| TargetFailure::of(TargetId(number), error))
    })
}

/// As [`make_visible`], from the encoded record that the lead sent to this node; gives it back.
///
/// # Errors
/// Corrupt for a record that is not of this job's run; otherwise as [`make_visible`].
pub fn make_visible_here(dir: &Arc<dyn Dir>, bytes: &[u8], trust: &Trust) -> Result<CommitRecord> {
    let record = CommitRecord::decode(bytes)?;
    make_visible(std::slice::from_ref(dir), &record, trust).map_err(Error::from)?;
    Ok(record)
}

/// Puts a record that other nodes of this run hold into this node's directory, as it is, unless it is there: what the run
/// resumed from counts here too, and survives as many losses as before.
///
/// # Errors
/// What the directory says.
pub fn copy_here(dir: &Arc<dyn Dir>, record: &CommitRecord, bytes: &[u8]) -> Result<()> {
    let name = FileName::commit(record.step, record.epoch, record.level).to_string();
    // Breaks if: it is left out; a node that missed the commit never lets go of older checkpoints.
    if off(Switch::RecordCopied) || dir.list()?.iter().any(|entry| entry.name == name) {
        return Ok(());
    }
    write_small(dir.as_ref(), &name, bytes)
}
