//! Finds the directories of absent nodes: those that have no rank in this run, but a directory of
//! the job beside that of a node which has.
//!
//! A node gets another name when a host is renamed, when a batch system gives a job other virtual
//! nodes, or when a disk is carried to another host. What the job stored under the old names is
//! then in reach, and is read like what other nodes hold.
//!
//! Invariants:
//! 1. Nothing is changed on any disk.
//! 2. At most [`MOST_ABSENT`] directories are read: those with the newest epochs. The others are
//!    named.
//! 3. A directory that may be one and cannot be read is kept with the reason.
//!
//! Not here: claims there (`epoch.rs`), what follows from what they hold (`restart`, crate
//! `client`).

use crate::directory::places::Away;
use orcheck_format::disk::FileName;
use orcheck_format::sabotage::{Switch, off};
use orcheck_format::{Error, ErrorKind, Result, crc64};
use orcheck_io::disk::{Dir, Entry};
use std::sync::Arc;

/// Maximum number of directories of absent nodes that are read.
const MOST_ABSENT: usize = 64;
/// Maximum number of notes on those that cannot be read.
const MOST_NOTES: usize = 8;

/// The directories of absent nodes.
#[derive(Clone, Default)]
pub struct AbsentNodes {
    /// Those that hold files of the job; the ones with the newest epochs first.
    pub dirs: Vec<Arc<dyn Dir>>,
    /// Those that cannot be read, or are too many.
    pub unread: Vec<Away>,
    /// A number that is the same on ranks which see the same files there.
    pub digest: i64,
}

impl AbsentNodes {
    /// Looks below the directory of a job, which has one directory for each node; `present` are the
    /// nodes of this run.
    ///
    /// # Errors
    /// When the job's directory cannot be listed.
    pub(crate) fn find(of_job: &dyn Dir, present: &[String]) -> Result<Self> {
        let mut found = Self::default();
        // Breaks if: they are not looked at; on nodes that all have new names, the job would begin
        // from nothing beside its own checkpoints.
        if off(Switch::AbsentRead) {
            return Ok(found);
        }
        let mut known = Vec::new();
        for entry in of_job.list()? {
            let is_absent = entry.is_dir && !present.contains(&entry.name);
            if !is_absent || !may_be_node(&entry.name) {
                continue;
            }
            let opened = of_job.child(&entry.name, false);
            match opened.and_then(|dir| Ok((dir.list()?, dir))) {
                Ok((entries, dir)) => {
                    if let Some(epoch) = newest_epoch(&entries) {
                        known.push((std::cmp::Reverse(epoch), entry.name, dir, entries));
                    }
                }
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(why) => found.unread.push(Away {
                    root: of_job.path().join(&entry.name).display().to_string(),
                    why,
                }),
            }
        }
        known.sort_by(|a, b| (a.0, &a.1).cmp(&(b.0, &b.1)));
        let too_many = known.split_off(known.len().min(MOST_ABSENT));
        if let Some((_, _, first, _)) = too_many.first() {
            found.unread.push(Away {
                root: first.path().display().to_string(),
                why: not_looked_at(too_many.len()),
            });
        }
        let mut seen = Vec::new();
        for (_, name, dir, entries) in known {
            seen.extend_from_slice(name.as_bytes());
            for entry in entries {
                seen.extend_from_slice(format!("/{}:{}", entry.name, entry.len_bytes).as_bytes());
            }
            found.dirs.push(dir);
        }
        found.digest = crc64(&seen) as i64;
        Ok(found)
    }

    /// Which ones are not read, and why; of many, the first few.
    pub fn notes(&self) -> impl Iterator<Item = String> {
        let more = self.unread.len().saturating_sub(MOST_NOTES);
        let more = (more > 0).then(|| {
            format!("{more} more directories of nodes that are not in this run cannot be read")
        });
        let first = self.unread.iter().take(MOST_NOTES);
        first.map(Away::note).chain(more)
    }

    /// The paths of those that are read.
    #[must_use]
    pub fn paths(&self) -> Vec<String> {
        let paths = self.dirs.iter().map(|dir| dir.path().display().to_string());
        paths.collect()
    }
}

/// Why this many directories are left out.
fn not_looked_at(left_out: usize) -> Error {
    Error::unavailable(format!(
        "of directories of nodes that are not in a run, {MOST_ABSENT} with the newest epochs are read; this is the first of {left_out} others"
    ))
    .next("remove the directories of nodes that the job does not need any more")
}

/// Whether a node can have this name; `lost+found` is none.
fn may_be_node(name: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    !name.starts_with('.') && name.chars().all(allowed)
}

/// The newest epoch in the names of files; `None` if none of them is a checkpoint's or a run's.
fn newest_epoch(entries: &[Entry]) -> Option<u64> {
    let names = entries
        .iter()
        .filter_map(|entry| FileName::parse(&entry.name));
    let epochs = names.filter_map(|name| match name {
        FileName::Claim { epoch } | FileName::Resumed { epoch } => Some(epoch),
        name => name.checkpoint().map(|(_, epoch, _)| epoch),
    });
    epochs.max()
}

#[cfg(test)]
mod tests {
    use super::*;
    use orcheck_io::disk::write_small;
    use orcheck_io::failpoints::Failpoints;
    use orcheck_staging::open_dir;
    use orcheck_testing::Scratch;

    // Breaks if: all are read, or the first by name: a node of an old run would hide a newer one.
    #[test]
    fn of_many_directories_the_newest_are_read_and_the_others_are_one_note() {
        let scratch = Scratch::new("absent");
        let of_job = open_dir(scratch.path(), Failpoints::none()).unwrap();
        for node in 0..MOST_ABSENT as u64 + 3 {
            let dir = of_job.child(&format!("n{node:03}"), true).unwrap();
            let claim = FileName::Claim { epoch: node + 1 };
            write_small(dir.as_ref(), &claim.to_string(), b"").unwrap();
        }
        of_job.child("lost+found", true).unwrap();
        of_job.child("empty", true).unwrap();
        let present = ["n066".to_owned()];
        let found = AbsentNodes::find(of_job.as_ref(), &present).unwrap();
        let read = found.paths();
        assert_eq!(read.len(), MOST_ABSENT);
        assert!(read[0].ends_with("/n065"), "{read:?}");
        assert!(!read.iter().any(|path| path.ends_with("/n001")));
        let notes: Vec<String> = found.notes().collect();
        assert_eq!(notes.len(), 1, "{notes:?}");
        assert!(notes[0].contains("/n001") && notes[0].contains("first of 2"));
        // The same files have the same number, whoever looks.
        let again = AbsentNodes::find(of_job.as_ref(), &present).unwrap();
        assert_eq!(again.digest, found.digest);
        let other = AbsentNodes::find(of_job.as_ref(), &["n065".to_owned()]).unwrap();
        assert_ne!(other.digest, found.digest);
    }
}
