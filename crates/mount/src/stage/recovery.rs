//! Flushes what an earlier mount has left in the stage.
//!
//! Not here: what the entries of a stage are (`stage.rs`).

use super::{OTHERS, PIECE_BYTES, Stage, flush, name};
use orcheck_format::sabotage::{Switch, off};
use orcheck_io::disk::{Contents, Inode, Kernel};
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// What the last mount left.
#[derive(Default, Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// Files that were closed, and are in the backing directory now.
    pub closed: Vec<PathBuf>,
    /// Files that were open: what had been written is in the backing directory now.
    pub open: Vec<PathBuf>,
    /// Files of the stage that were not flushed, and why.
    pub left: Vec<(PathBuf, String)>,
}

/// Which file of the backing directory was staged.
#[derive(Clone, Copy)]
struct Key {
    device: u64,
    inode: u64,
    born_ns: u64,
}

impl Stage {
    /// Flushes what an earlier mount left here.
    pub fn recover(&self, root: &Inode) -> Kernel<Found> {
        let mut found = Found::default();
        let names = self.names()?;
        for file in &names {
            let Some((stem, closed)) = stem_of(file) else {
                continue;
            };
            let path = self.link_of(stem);
            match self.recover_one(root, stem, file, path.as_deref()) {
                Ok(path) if closed => found.closed.push(path),
                Ok(path) => found.open.push(path),
                Err(why) => {
                    let why = format!("{}: {why}", path.unwrap_or_default().display());
                    found.left.push((self.path.join(file), why));
                }
            }
        }
        self.sweep(&names);
        Ok(found)
    }

    /// Removes entries without bytes, as a mount leaves that is killed between two steps.
    fn sweep(&self, names: &[std::ffi::OsString]) {
        for file in names {
            let text = file.to_str().and_then(|text| text.rsplit_once('.'));
            if let Some((stem, "path" | "new" | "begun")) = text
                && !["open", "closed"]
                    .iter()
                    .any(|ending| names.contains(&name(stem, ending)))
            {
                let _ = self.dir.remove(file, false);
            }
        }
    }

    fn link_of(&self, stem: &str) -> Option<PathBuf> {
        let link = self.dir.child(&name(stem, "path")).ok()?.read_link().ok()?;
        Some(PathBuf::from(OsStr::from_bytes(link.to_bytes())))
    }

    fn recover_one(
        &self,
        root: &Inode,
        stem: &str,
        file: &OsStr,
        path: Option<&Path>,
    ) -> Result<PathBuf, String> {
        let parts: Vec<&str> = stem.split('-').collect();
        let [start, device, inode, born, _] = parts[..] else {
            return Err("its name is not one that Orcheck gave".to_owned());
        };
        // Breaks if: it is not looked at; what a power cut has left of a file would replace it.
        if start != self.start && !off(Switch::StagedThisStart) {
            return Err("staged before this machine was started: bytes may be missing".to_owned());
        }
        let number = |text| u64::from_str_radix(text, 16).map_err(|_| "a wrong name".to_owned());
        let key = Key {
            device: number(device)?,
            inode: number(inode)?,
            born_ns: number(born)?,
        };
        let at_path = path.and_then(|path| {
            descend(root, path)
                .filter(|found| self.is(found, key))
                .zip(Some(path.to_owned()))
        });
        // Without a birth another file may have the number; then only the path tells.
        let by_number = || {
            self.find(root, key, Path::new(""))
                .filter(|_| key.born_ns != 0)
        };
        let (node, path) = at_path
            .or_else(by_number)
            .ok_or("its file is not there any more")?;
        let staged = self.dir.child(file).map_err(|errno| errno.to_string())?;
        self.flush_left(&staged, &node, &path, stem)?;
        self.remove(stem);
        Ok(path)
    }

    fn flush_left(
        &self,
        staged: &Inode,
        node: &Inode,
        path: &Path,
        stem: &str,
    ) -> Result<(), String> {
        let said = |errno: Errno| errno.to_string();
        let mode = staged.stat().map_err(said)?.st_mode;
        if !rustix::fs::FileType::from_raw_mode(mode).is_file() || mode & OTHERS != 0 {
            return Err("it is not a file that Orcheck made".to_owned());
        }
        let from = staged
            .open(OFlags::RDONLY | OFlags::NONBLOCK)
            .map_err(said)?;
        let from = Contents::new(from, &self.points, "staged");
        let begun = self.dir.child(&name(stem, "begun")).is_ok();
        let backing = open_anyway(node).map_err(said)?;
        let target = path.to_string_lossy();
        let to = Contents::new(backing, &self.points, &target);
        // Breaks if: this is not asked; a program that ran without the mount would lose what it
        // wrote since.
        if !has_only(&from, &to, begun).map_err(said)? && !off(Switch::StagedFile) {
            return Err("its file has other bytes by now".to_owned());
        }
        flush(&from, &to, &|| {}).map_err(said)
    }

    /// Whether it is the file that was staged.
    fn is(&self, inode: &Inode, key: Key) -> bool {
        let Ok(stat) = inode.stat() else {
            return false;
        };
        // Breaks if: a path or a number alone is believed; the bytes would get into a file that was
        // made there later.
        (self.device_of(stat.st_dev), stat.st_ino) == (key.device, key.inode)
            && inode.born_ns() == Ok(key.born_ns)
            || off(Switch::StagedFile)
    }

    /// Looks for a file below a directory.
    fn find(&self, dir: &Inode, key: Key, above: &Path) -> Option<(Inode, PathBuf)> {
        for entry in dir.list().ok()?.flatten() {
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if name == "." || name == ".." {
                continue;
            }
            let Ok(child) = dir.child(name) else { continue };
            if self.is(&child, key) {
                return Some((child, above.join(name)));
            }
            let below = child.stat().is_ok_and(|stat| {
                let is_dir = rustix::fs::FileType::from_raw_mode(stat.st_mode).is_dir();
                is_dir && self.device_of(stat.st_dev) == key.device
            });
            if below && let Some(found) = self.find(&child, key, &above.join(name)) {
                return Some(found);
            }
        }
        None
    }
}

/// Whether a backing file has nothing but staged bytes, or none: what a flush leaves that was cut
/// short, if it had begun.
fn has_only(from: &Contents, to: &Contents, begun: bool) -> Kernel<bool> {
    let len = to.stat()?.st_size as u64;
    if len == 0 || !begun {
        return Ok(len == 0);
    }
    let mut pieces = [vec![0; PIECE_BYTES], vec![0; PIECE_BYTES]];
    let mut at = 0;
    while at < len {
        let [staged, there] = &mut pieces;
        let count = to.read(there, at)?;
        staged.fill(0);
        from.read(staged, at)?;
        let differs = |(one, other): (&u8, &u8)| one != other && *other != 0;
        if count == 0 || staged[..count].iter().zip(&there[..count]).any(differs) {
            return Ok(false);
        }
        at += count as u64;
    }
    Ok(true)
}

/// The stem of a file of bytes, and whether it was closed.
fn stem_of(file: &OsStr) -> Option<(&str, bool)> {
    let text = file.to_str()?;
    let open = text.strip_suffix(".open").map(|stem| (stem, false));
    open.or_else(|| text.strip_suffix(".closed").map(|stem| (stem, true)))
}

/// What is at a path below a directory, without following links.
fn descend(root: &Inode, path: &Path) -> Option<Inode> {
    let mut names = path.iter();
    let first = root.child(names.next()?).ok()?;
    names.try_fold(first, |dir, name| dir.child(name).ok())
}

/// Opens a file that its owner may not be allowed to read or write, as copies of such files are.
fn open_anyway(node: &Inode) -> Kernel<OwnedFd> {
    match node.open(OFlags::RDWR) {
        Err(Errno::ACCESS) => {
            let mode = node.stat()?.st_mode & 0o7777;
            node.set_mode(mode | 0o600)?;
            let opened = node.open(OFlags::RDWR);
            node.set_mode(mode)?;
            opened
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stem_says_whether_its_file_was_closed() {
        assert_eq!(stem_of(OsStr::new("a-1.open")), Some(("a-1", false)));
        assert_eq!(stem_of(OsStr::new("a-1.closed")), Some(("a-1", true)));
        assert_eq!(stem_of(OsStr::new("a-1.path")), None);
        assert_eq!(stem_of(OsStr::new("lock")), None);
    }
}
