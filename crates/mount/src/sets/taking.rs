//! Gives the files of a set to a checkpoint, each as a region with the file's path as its name.
//!
//! Invariants:
//! 1. The bytes are those of a file that nobody wrote meanwhile; else the checkpoint fails.
//!
//! Not here: putting files back (`back.rs`).

use crate::node::Node;
use crate::sets::gathered::{Inode, Shared};
use crate::tree::{Tree, attributes};
use orcheck_client::Codec;
use orcheck_format::sabotage::{Switch, off};
use orcheck_format::{Error, Result};
use orcheck_io::disk::{Contents, Kernel};
use orcheck_io::errno::rustix_error;
use orcheck_io::failpoints::Failpoints;
use rustix::fs::{FileType, OFlags};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The region that describes the files; no path below the mount point has its name.
pub const RECORD: &str = "/orcheck-set";

/// What a set is, in the region [`RECORD`] of each node, as JSON.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Its files on this node.
    pub files: Vec<Entry>,
}

/// A file of a set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Path below the backing directory.
    pub path: String,
    /// Length in bytes.
    pub len_bytes: u64,
    /// Permissions.
    pub mode: u32,
    /// When its contents last changed: seconds since 1970, and nanoseconds.
    pub changed: (i64, u64),
}

/// A file that is being taken.
pub struct Taking {
    path: PathBuf,
    inode: orcheck_io::disk::Inode,
    key: Inode,
    node: Option<Arc<Node>>,
    len_bytes: u64,
    /// The version of the backing file, if that has the bytes.
    version: Option<(i64, i64, u64)>,
    contents: Option<Contents>,
    gathered: Shared,
}

/// Opens a file that will be taken, and describes it. `None`: the path leads to another file than
/// expected.
pub fn open(
    (path, expected): (&Path, Inode),
    tree: &Tree,
    gathered: &Shared,
) -> Result<Option<(Entry, Taking)>> {
    let failed = |errno| rustix_error(errno, path.display());
    let name = path.to_str().ok_or_else(|| {
        Error::invalid(format!(
            "{}: the name of a file in a set has to be UTF-8",
            path.display()
        ))
    })?;
    let inode = gathered.marks().find(path).map_err(failed)?;
    let stat = inode.stat().map_err(failed)?;
    if !FileType::from_raw_mode(stat.st_mode).is_file() {
        let text = format!("{}: expected a regular file", path.display());
        return Err(Error::invalid(text));
    }
    let key = (stat.st_dev, stat.st_ino);
    if key != expected {
        return Ok(None);
    }
    let node = tree.known(&inode);
    let mut entry = Entry {
        path: name.to_owned(),
        len_bytes: stat.st_size as u64,
        mode: stat.st_mode & 0o7777,
        changed: (stat.st_mtime, stat.st_mtime_nsec),
    };
    let staged = node
        .as_ref()
        .is_some_and(|node| node.look().stage.is_some());
    if let Some(node) = &node {
        let now = attributes(node).map_err(failed)?;
        entry.len_bytes = now.size;
        let since = now.mtime.duration_since(std::time::UNIX_EPOCH);
        let since = since.unwrap_or_default();
        entry.changed = (since.as_secs() as i64, u64::from(since.subsec_nanos()));
    }
    let taking = Taking {
        path: path.to_owned(),
        inode,
        key,
        node,
        len_bytes: entry.len_bytes,
        version: (!staged).then(|| version(&stat)),
        contents: None,
        gathered: Arc::clone(gathered),
    };
    Ok(Some((entry, taking)))
}

/// Length, and when the contents last changed. Not the time of status, which a rename changes too.
fn version(stat: &rustix::fs::Stat) -> (i64, i64, u64) {
    (stat.st_size, stat.st_mtime, stat.st_mtime_nsec)
}

impl Taking {
    /// Whether somebody has written the file since, here or on another node.
    fn is_spoiled(&self) -> bool {
        let now = self.inode.stat().map(|stat| version(&stat));
        self.gathered.is_spoiled(self.key) || self.version.is_some_and(|before| now != Ok(before))
    }

    fn read(&mut self, at: u64, into: &mut [u8]) -> Kernel<usize> {
        if let Some(node) = &self.node {
            let state = node.look();
            if let Some(staged) = &state.stage {
                return staged.contents.read(into, at);
            }
        }
        if self.contents.is_none() {
            let fd = self.inode.open(OFlags::RDONLY)?;
            self.contents = Some(Contents::new(fd, &Failpoints::none(), "set"));
        }
        match &self.contents {
            Some(contents) => contents.read(into, at),
            None => Ok(0),
        }
    }
}

/// Reads a whole file of at most `most` bytes, as programs see it.
pub fn read_whole(path: &Path, tree: &Tree, gathered: &Shared, most: u64) -> Result<Vec<u8>> {
    let failed = |errno| rustix_error(errno, path.display());
    let stat = gathered.marks().find(path).and_then(|found| found.stat());
    let stat = stat.map_err(failed)?;
    let opened = open((path, (stat.st_dev, stat.st_ino)), tree, gathered)?;
    let (entry, mut file) = opened.ok_or_else(|| failed(rustix::io::Errno::STALE))?;
    if entry.len_bytes > most {
        let text = format!("{} bytes: at most {most} are read", entry.len_bytes);
        return Err(Error::invalid(text));
    }
    let mut bytes = vec![0; usize::try_from(entry.len_bytes).unwrap_or(0)];
    let count = file.read(0, &mut bytes).map_err(failed)?;
    bytes.truncate(count);
    Ok(bytes)
}

impl Codec for Taking {
    fn size(&mut self) -> Result<u64> {
        Ok(self.len_bytes)
    }

    fn pack(&mut self, at: u64, dst: &mut [u8]) -> Result<()> {
        let shown = self.path.display().to_string();
        let read = self.read(at, dst);
        let count = read.map_err(|errno| rustix_error(errno, &shown))?;
        let last = at + dst.len() as u64 == self.len_bytes;
        // Breaks if: nobody asks; the set would have bytes of two versions of the file.
        let spoiled = last && self.is_spoiled() && !off(Switch::SetSpoiled);
        if count < dst.len() || spoiled {
            return Err(Error::invalid(format!(
                "{shown}: a program opened it for writing while its set was taken"
            ))
            .next("write each version to a new name and rename it, or write less often"));
        }
        if last {
            self.contents = None;
        }
        Ok(())
    }

    fn unpack(&mut self, _at: u64, _src: &[u8]) -> Result<()> {
        Err(Error::internal("a file of a set is not read back here"))
    }
}

/// Bytes of a region that are in memory.
pub struct Bytes(pub Arc<Mutex<Vec<u8>>>);

impl Bytes {
    /// Those of a record.
    pub fn of(record: &Record) -> Result<Bytes> {
        let bytes = serde_json::to_vec(record)
            .map_err(|error| Error::internal(format!("the record of a set: {error}")))?;
        Ok(Bytes(Arc::new(Mutex::new(bytes))))
    }

    fn bytes(&self) -> MutexGuard<'_, Vec<u8>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Codec for Bytes {
    fn size(&mut self) -> Result<u64> {
        Ok(self.bytes().len() as u64)
    }

    fn pack(&mut self, at: u64, dst: &mut [u8]) -> Result<()> {
        let bytes = self.bytes();
        let from = usize::try_from(at).unwrap_or(usize::MAX);
        let part = bytes.get(from..).and_then(|rest| rest.get(..dst.len()));
        dst.copy_from_slice(part.ok_or_else(|| Error::internal("beyond the record of a set"))?);
        Ok(())
    }

    fn unpack(&mut self, at: u64, src: &[u8]) -> Result<()> {
        let mut bytes = self.bytes();
        let from = usize::try_from(at).unwrap_or(usize::MAX);
        let part = bytes
            .get_mut(from..)
            .and_then(|rest| rest.get_mut(..src.len()));
        part.ok_or_else(|| Error::corrupt("beyond the record of a set"))?
            .copy_from_slice(src);
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods)]
mod tests {
    use super::*;
    use crate::sets::decide::Key;
    use crate::sets::gathered::Gathered;
    use crate::sets::marks::Marks;
    use crate::sets::pattern::Pattern;
    use crate::tree::ROOT;
    use orcheck_testing::Scratch;
    use std::ffi::OsStr;

    #[test]
    fn a_file_that_changes_while_it_is_taken_ends_the_checkpoint() {
        let scratch = Scratch::new("taking");
        let points = Failpoints::none();
        let path = Path::new("r.1.a");
        std::fs::write(scratch.path().join(path), [7; 1000]).unwrap();
        let tree =
            Tree::new(orcheck_io::disk::Inode::root(scratch.path(), points.clone()).unwrap())
                .unwrap();
        let root = tree.node(ROOT).unwrap();
        let node = tree.look_up(&root, OsStr::new("r.1.a")).unwrap();
        let marks = Marks::open(scratch.path(), "j", (0, 1), "now", &points)
            .unwrap()
            .unwrap();
        let patterns = vec![Pattern::new("r.{step}.a").unwrap()];
        let (marks, tell) = (Arc::new(marks), Arc::new(|_: &str| {}));
        let gathered = Arc::new(Gathered::new((patterns, None), None, marks, tell));
        let set = Key::Step(1);
        gathered.opens(&node);
        gathered.opened(&node, true);
        assert_eq!(gathered.begin_to_take(set), None, "somebody writes it");
        gathered.closed(&node, true);
        for spoil in [false, true] {
            let paths = gathered.begin_to_take(set).unwrap();
            assert_eq!(paths, [(path.to_owned(), node.key)]);
            let (entry, mut file) = open((path, node.key), &tree, &gathered).unwrap().unwrap();
            assert_eq!((entry.len_bytes, file.size().unwrap()), (1000, 1000));
            let mut bytes = [0; 500];
            file.pack(0, &mut bytes).unwrap();
            if spoil {
                gathered.opens(&node);
                gathered.opened(&node, false);
                gathered.closed(&node, true);
            }
            let ended = file.pack(500, &mut bytes);
            assert_eq!(ended.is_err(), spoil, "{ended:?}");
            assert_eq!(bytes, [7; 500]);
            gathered.stop_taking(set);
        }
    }
}
