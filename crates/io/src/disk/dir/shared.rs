//! Checks who owns a directory before it receives our files, and manages directories that a group
//! of users shares.
//!
//! How: without a group, a directory must be ours and writable for nobody else. With a group, it
//! must belong to that group, pass its group on to new entries (set-group-ID), be writable for the
//! group, and give others no access: mode 2770. Files in such a directory get mode 0660 and its
//! group, whatever the umask is. See ADR 37.
//!
//! Invariants
//! 1. No directory receives our files if anybody may write to it who was not named.
//! 2. A directory is shared only if that was requested when it was made; a file only in a shared
//!    directory.
//! 3. A directory that is ours and empty is set up again: its maker may have died in between, or be
//!    about to set it up.
//!
//! Not here: what members of the group can do to each other (SECURITY.md).

use crate::errno::rustix_error;
use crate::machine::shown_group;
use orcheck_format::sabotage::{Switch, off};
use orcheck_format::{Error, Result};
use rustix::fs::{self, Gid, Mode, Stat};
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::path::Path;

/// Files that a group shares.
pub(super) const FILE: Mode = Mode::from_raw_mode(0o660);
/// Directories that a group shares.
pub(super) const DIRECTORY: Mode = Mode::from_raw_mode(0o2770);
fn stat(handle: &OwnedFd, full: &str) -> Result<Stat> {
    fs::fstat(handle).map_err(|errno| rustix_error(errno, format_args!("look at directory {full}")))
}

fn is_shared(stat: &Stat) -> bool {
    let mode = Mode::from_raw_mode(stat.st_mode);
    mode.contains(Mode::SGID | Mode::RWXG) && !mode.intersects(Mode::RWXO)
}

/// The group that shares this directory, if one does.
pub(super) fn group_of(handle: &OwnedFd, full: &str) -> Result<Option<u32>> {
    let stat = stat(handle, full)?;
    Ok(is_shared(&stat).then_some(stat.st_gid))
}

/// Gives a file or directory to a group, with this mode.
pub(super) fn share(handle: &OwnedFd, full: &str, group: u32, mode: Mode) -> Result<()> {
    let before = stat(handle, full)?;
    if before.st_gid != group {
        fs::fchown(handle, None, Some(Gid::from_raw(group))).map_err(|errno| {
            let error = rustix_error(errno, format_args!("give {full} to {}", shown_group(group)));
            match errno {
                Errno::PERM => {
                    error.next("set `group` to a group of yours, as `id -Gn` lists them")
                }
                _ => error,
            }
        })?;
    }
    // After the group: no other group may read it meanwhile. A change of the group may remove bits
    // of the mode.
    if before.st_gid != group || Mode::from_raw_mode(before.st_mode) != mode {
        fs::fchmod(handle, mode)
            .map_err(|errno| rustix_error(errno, format_args!("set the mode of {full}")))?;
    }
    Ok(())
}

/// Whether a directory is still as it was made: ours, and not yet shared.
pub(super) fn is_as_made(handle: &OwnedFd, full: &str, group: u32) -> Result<bool> {
    let stat = stat(handle, full)?;
    let ours = rustix::process::geteuid().as_raw();
    Ok(stat.st_uid == ours && (stat.st_gid != group || !is_shared(&stat)))
}

/// Checks that a directory for our files is not another user's trap: under a root that everybody
/// may write to, somebody else could have made it first and could then replace its contents.
pub(super) fn check_owner(
    (handle, parent): (&OwnedFd, &OwnedFd),
    full: &str,
    group: Option<u32>,
) -> Result<()> {
    let stat = stat(handle, full)?;
    let ours = rustix::process::geteuid().as_raw();
    let mode = Mode::from_raw_mode(stat.st_mode);
    let everybody = mode.contains(Mode::WOTH);
    // Its maker was a member of the group, or could not have written to its parent. Breaks if: the
    // parent does not count; in one that passes its group on, everybody can make directories of the
    // group.
    let of_group = group == Some(stat.st_gid) && is_shared(&stat);
    let of_member = of_group && {
        let parent = fs::fstat(parent)
            .map_err(|errno| rustix_error(errno, format_args!("look above {full}")))?;
        !Mode::from_raw_mode(parent.st_mode).contains(Mode::WOTH)
    };
    let mine = stat.st_uid == ours || stat.st_uid == 0 || of_member;
    if of_group && !mine && !off(Switch::Owner) {
        let above = Path::new(full).parent().unwrap_or(Path::new(".")).display();
        return Err(Error::unavailable(format!(
            "directory {full} refused: expected one of user {ours}, found one of user {} in {above}, where everybody may make directories: nothing shows that a member of {} made it",
            stat.st_uid,
            shown_group(stat.st_gid)
        ))
        .next(format!(
            "run `chmod o-w {above}`, or keep the job where only the group may make directories"
        )));
    }
    if (!mine || everybody) && !off(Switch::Owner) {
        return Err(Error::unavailable(format!(
            "directory {full} refused: expected one of user {ours} that only they may write to, found one of user {}{}",
            stat.st_uid,
            if everybody { " that everybody may write to" } else { "" }
        ))
        .next("remove it, or configure a directory that is yours"));
    }
    if off(Switch::GroupShared) {
        return Ok(());
    }
    match group {
        None if mode.contains(Mode::WGRP) => Err(Error::unavailable(format!(
            "directory {full} refused: expected one that only user {ours} may write to, found one that {} may write to",
            shown_group(stat.st_gid)
        ))
        .next(format!(
            "run `chmod g-w {full}`, or set the option group to share the job with that group"
        ))),
        Some(group) if group != stat.st_gid || !is_shared(&stat) => Err(Error::unavailable(format!(
            "directory {full} refused: expected one that {} shares (mode 2770), found one of {} with mode {:04o}",
            shown_group(group),
            shown_group(stat.st_gid),
            stat.st_mode & 0o7777
        ))
        .next("have its owner give it to the group (chgrp -R, chmod -R g+rwX,o=, chmod g+s for directories), or use another directory")),
        _ => Ok(()),
    }
}
