//! Which disk a server stands before: a number that a directory gets when a server first does.
//!
//! How: an empty file whose name holds the number, in the server's directory and in that of each tenant, where callers
//! look for it. A disk that was replaced, emptied or not mounted does not have it.
//!
//! Invariants:
//! 1. A directory keeps its number as long as any of these files is left.
//! 2. Nothing is written into a directory that is expected to have another number.
//!
//! Survives: a server that dies while it writes them (the next one goes on). Not here: what callers make of it
//! (`orcheck_io::served`).

use orcheck_format::store::{identity_file, identity_of};
use orcheck_format::{Error, Result};
use orcheck_io::{Create, Dir, Steps, open_dir, random_bytes};
use std::path::Path;
use std::sync::Arc;

/// The number of a directory and of its tenants', which is given now if there is none.
pub(crate) fn settle(dir: &dyn Dir, tenants: &[Arc<dyn Dir>]) -> Result<u64> {
    let all = || std::iter::once(dir).chain(tenants.iter().map(AsRef::as_ref));
    let mut known = None;
    for dir in all() {
        known = known.or(find(dir)?);
    }
    let number = known.unwrap_or_else(|| u64::from_le_bytes(random_bytes()));
    let name = identity_file(number);
    for dir in all() {
        for other in numbers(dir)?.into_iter().filter(|&other| other != number) {
            dir.remove(&identity_file(other))?;
        }
        if find(dir)?.is_none() {
            dir.create(&name, Create::Buffered)?.close()?;
        }
    }
    // Those of the tenants are made again from this one.
    if known.is_none() {
        dir.sync()?;
    }
    Ok(number)
}

/// Refuses a directory that does not have this number.
///
/// # Errors
/// Unavailable, with what was found; what the directory says.
pub fn expect_identity(dir: &Path, expected: u64) -> Result<()> {
    let found = find(&*open_dir(dir, Steps::none())?)?;
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
