//! Writes and reads small files as a whole: never half of one, and durable once they are visible.
//!
//! Survives: a crash at any point of a write leaves the old file or the new one, and perhaps a
//! temporary file that the next attempt removes. Not here: what the files mean (`orcheck-format`).

use crate::disk::dir::{Create, Dir};
use crate::disk::file::File;
use crate::memory::zeroed;
use orcheck_format::sabotage::{Switch, off};
use orcheck_format::{Error, ErrorKind, Result};

/// Writes a whole small file under `name`: temporary name, sync, rename, sync of the directory. The
/// temporary file (`<name>.tmp`) of an earlier attempt is removed first, and removed again if this
/// attempt fails. If the last directory sync fails, the new file may be visible without being
/// durable, as the error says.
pub fn write_small(dir: &dyn Dir, name: &str, bytes: &[u8]) -> Result<()> {
    write_as(dir, name, bytes, Create::Buffered)
}

/// The same for a file that only its owner may read.
pub fn write_private(dir: &dyn Dir, name: &str, bytes: &[u8]) -> Result<()> {
    write_as(dir, name, bytes, Create::Private)
}

fn write_as(dir: &dyn Dir, name: &str, bytes: &[u8], how: Create) -> Result<()> {
    let temporary = format!("{name}.tmp");
    let first = if off(Switch::TemporaryName) {
        name
    } else {
        temporary.as_str()
    };
    match dir.remove(&temporary) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let fill = |file: Box<dyn File>| -> Result<()> {
        file.write_at(bytes, 0)?;
        if !off(Switch::FsyncSmall) {
            file.sync()?;
        }
        file.close()
    };
    let renamed = dir
        .create(first, how)
        .and_then(fill)
        .and_then(|()| dir.rename(first, name));
    if let Err(error) = renamed {
        // Best effort: the error that counts is the one above, and the next attempt removes a
        // leftover.
        let _ = dir.remove(&temporary);
        return Err(error);
    }
    if off(Switch::FsyncSmallDirectory) {
        return Ok(());
    }
    dir.sync().map_err(|error| {
        error.at(format_args!(
            "{} is in place but may not be durable",
            dir.path().join(name).display()
        ))
    })
}

/// Reads a whole file of at most `limit_bytes`; a longer one is `Corrupt`.
pub fn read_small(dir: &dyn Dir, name: &str, limit_bytes: u64) -> Result<Vec<u8>> {
    let file = dir.open(name)?;
    let len = file.len_bytes()?;
    if len > limit_bytes && !off(Switch::SmallBound) {
        return Err(Error::corrupt(format!(
            "{}: expected at most {limit_bytes} bytes, found {len}",
            file.name()
        )));
    }
    let len =
        usize::try_from(len).map_err(|_| Error::internal("length beyond the address space"))?;
    let mut bytes = zeroed(len)?;
    file.read_at(&mut bytes, 0)?;
    Ok(bytes)
}
