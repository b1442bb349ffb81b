//! What tests do to directories behind the library's back, and file systems of a chosen size.
#![allow(clippy::disallowed_methods)]

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Says, past the capture of test output, that a test could not do its work here.
pub fn skip(test: &str, why: &str) {
    let _ = writeln!(std::io::stderr(), "SKIPPED {test}: {why}");
}

pub fn is_superuser() -> bool {
    orcheck_io::machine::effective_uid() == 0
}

/// A file system in memory, unmounted when dropped.
pub struct Mounted(PathBuf);

impl Mounted {
    /// Mounts one at `path`, which is made; `None` where that is not allowed.
    pub fn new(path: &Path, options: &str) -> Option<Self> {
        crate::support::make_dir(path);
        let done = Command::new("mount")
            .args(["-t", "tmpfs", "-o", options, "orcheck-test"])
            .arg(path)
            .output()
            .is_ok_and(|output| output.status.success());
        done.then(|| Self(path.to_owned()))
    }

    pub fn make_read_only(&self) {
        let done = Command::new("mount")
            .args(["-o", "remount,ro"])
            .arg(&self.0)
            .status()
            .unwrap();
        assert!(done.success());
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// Sorted names in a directory; none if it is not there.
pub fn names(dir: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(dir) else {
        return Vec::new();
    };
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// Containers in the job's directory below `root`, as (step, node).
pub fn containers(root: &Path) -> Vec<(u64, u32)> {
    use orcheck_format::disk::FileName;
    names(&root.join("job"))
        .iter()
        .filter_map(|name| match FileName::parse(name) {
            Some(FileName::Container { step, node, .. }) => Some((step.0, node.0)),
            _ => None,
        })
        .collect()
}

pub fn read(path: &Path) -> Vec<u8> {
    std::fs::read(path).unwrap()
}

pub fn write(path: &Path, bytes: &[u8]) {
    std::fs::write(path, bytes).unwrap();
}

/// Gives a file this length, with a hole where it had less.
pub fn set_len(path: &Path, len_bytes: u64) {
    let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
    file.set_len(len_bytes).unwrap();
}

pub fn link(to: &Path, at: &Path) {
    std::os::unix::fs::symlink(to, at).unwrap();
}

/// Length of all files below a directory.
pub fn tree_bytes(dir: &Path) -> u64 {
    let entries = std::fs::read_dir(dir).unwrap();
    let bytes = entries.map(|entry| {
        let (entry, path) = entry
            .map(|entry| (entry.metadata().unwrap(), entry.path()))
            .unwrap();
        if entry.is_dir() {
            tree_bytes(&path)
        } else {
            entry.len()
        }
    });
    bytes.sum()
}

/// Fills the file system of a directory but for this many bytes, with a file that is returned.
pub fn fill(dir: &Path, but_bytes: usize) -> PathBuf {
    let path = dir.join("ballast");
    let mut file = std::fs::File::create(&path).unwrap();
    while file.write_all(&[1; 4096]).is_ok() {}
    let len = file.metadata().unwrap().len();
    file.set_len(len - but_bytes as u64).unwrap();
    path
}

pub fn remove_tree(path: &Path) {
    std::fs::remove_dir_all(path).unwrap();
}

pub fn remove_file(path: &Path) {
    std::fs::remove_file(path).unwrap();
}

pub fn rename(from: &Path, to: &Path) {
    std::fs::rename(from, to).unwrap();
}

/// For its owner alone, as keys must be.
pub fn set_private(path: &Path) {
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(path, mode).unwrap();
}

/// Takes away, or gives back, the right to write in a directory.
pub fn set_writable(path: &Path, writable: bool) {
    use std::os::unix::fs::PermissionsExt;
    let mode = if writable { 0o700 } else { 0o500 };
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

// ---- what a test environment may refuse ------------------------------------------------------

pub fn try_make_dir(path: &Path) -> bool {
    std::fs::create_dir(path).is_ok()
}

pub fn try_write(path: &Path, text: &str) -> bool {
    // Not `write`, which creates: files of the kernel are there or not.
    let file = std::fs::OpenOptions::new().write(true).open(path);
    file.is_ok_and(|mut file| file.write_all(text.as_bytes()).is_ok())
}

pub fn try_remove_dir(path: &Path) -> bool {
    std::fs::remove_dir(path).is_ok()
}

pub fn copy_tree(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_tree(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// Flips one bit of a file.
pub fn flip(path: &Path, at: usize) {
    let mut bytes = read(path);
    bytes[at] ^= 1;
    write(path, &bytes);
}

/// Memory that a memory file takes, in bytes.
pub fn taken_bytes(file: &std::os::fd::OwnedFd) -> u64 {
    let file = std::fs::File::from(file.try_clone().unwrap());
    std::os::unix::fs::MetadataExt::blocks(&file.metadata().unwrap()) * 512
}
