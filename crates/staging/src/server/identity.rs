//! Manages the identity of a server's disk: a number that a directory gets from its first server,
//! and the time when it got it.
//!
//! How: a small file, whose name holds the number and whose contents hold the time, lies in the
//! server's directory and in that of each tenant, where callers look for it. A disk that was
//! replaced, emptied or not mounted does not have it.
//!
//! Invariants:
//! 1. A directory keeps its number as long as any of these files is left.
//! 2. The time is that of the tenant's own file: it is new if only that directory was emptied.
//! 3. Nothing is written into a directory that is expected to have another number.
//!
//! Survives: a server that dies while it writes the files (the next one continues); files without a
//! time, as 0.1.0 made them. Not here: how callers use it (`crate::client`, `orcheck_client`).

use crate::open_dir;
use orcheck_format::wire::{Disk, identity_file, identity_of};
use orcheck_format::{Error, Result};
use orcheck_io::disk::{Dir, read_small, write_small};
use orcheck_io::failpoints::Failpoints;
use orcheck_io::rng::random_bytes;
use std::path::Path;
use std::sync::Arc;

/// Precedes the time, in seconds since 1970.
const SINCE: &str = "since ";
/// Size of the longest file.
const MAX_BYTES: u64 = 64;

/// The disk as each tenant sees it; assigns a number if there is none.
pub(crate) fn settle(
    dir: &dyn Dir,
    tenants: &[Arc<dyn Dir>],
    now_unix_s: u64,
) -> Result<Vec<Disk>> {
    let all = || std::iter::once(dir).chain(tenants.iter().map(AsRef::as_ref));
    let mut known = None;
    for dir in all() {
        known = known.or(find(dir)?);
    }
    let identity = known.unwrap_or_else(|| u64::from_le_bytes(random_bytes()));
    let name = identity_file(identity);
    let mut disks = Vec::new();
    for dir in all() {
        for other in numbers(dir)?.into_iter().filter(|&other| other != identity) {
            dir.remove(&identity_file(other))?;
        }
        if find(dir)?.is_none() {
            write_small(dir, &name, format!("{SINCE}{now_unix_s}\n").as_bytes())?;
        }
        disks.push(Disk {
            identity,
            since_unix_s: since(dir, &name),
        });
    }
    // Without the server's own.
    Ok(disks.split_off(1))
}

/// The time in a file, if it has one.
fn since(dir: &dyn Dir, name: &str) -> Option<u64> {
    let bytes = read_small(dir, name, MAX_BYTES).ok()?;
    let text = std::str::from_utf8(&bytes).ok()?;
    text.trim().strip_prefix(SINCE)?.parse().ok()
}

/// Refuses a directory that does not have this number.
///
/// # Errors
/// Unavailable, with what was found; otherwise the error of the directory.
pub fn expect_identity(dir: &Path, expected: u64) -> Result<()> {
    let found = find(&*open_dir(dir, Failpoints::none())?)?;
    if found == Some(expected) {
        return Ok(());
    }
    let found = found.map_or("none".to_owned(), |found| format!("{found:016x}"));
    Err(Error::unavailable(format!(
        "directory {} is not the one that this server had: expected identity {expected:016x}, found {found}",
        dir.display()
    ))
    .next("mount the disk that the server had"))
}

fn find(dir: &dyn Dir) -> Result<Option<u64>> {
    Ok(numbers(dir)?.first().copied())
}

fn numbers(dir: &dyn Dir) -> Result<Vec<u64>> {
    let entries = dir.list()?.into_iter().filter(|entry| !entry.is_dir);
    Ok(entries
        .filter_map(|entry| identity_of(&entry.name))
        .collect())
}
