//! Writes the files of a set, which `orcheck mount` has kept as a checkpoint, with their paths,
//! permissions and times.
//!
//! Invariants:
//! 1. The directory `--out` is there with all files of the set, or it is not there: they are
//!    written to a new directory beside it, which gets its name when they are complete and durable.
//! 2. No file lies outside of it, whatever the checkpoint says.
//! 3. Only its owner can read it: the files may have been encrypted in the checkpoint.
//!
//! Faults survived: those of `restore.rs`. After a kill, the directory beside stays; the next
//! restore to that name refuses, and names it.
//!
//! Not here: which files are a set, and putting the newest one in place (crate `mount`).

use std::collections::{BTreeSet, HashMap};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use orcheck_engine::encoding::Trust;
use orcheck_engine::restart::reader::{Reader, beside_a_good_copy};
use orcheck_format::disk::RegionRecord;
use orcheck_format::{Crc64, Error, Rank, Result};
use orcheck_io::disk::{Contents, Inode, Kernel};
use orcheck_io::errno::rustix_error;
use orcheck_io::failpoints::Failpoints;
use orcheck_mount::{SET_RECORD, SetFile, SetRecord, parent_of};
use rustix::fs::{OFlags, RenameFlags, Timespec, Timestamps};
use rustix::io::Errno;
use serde_json::{Value, json};

use super::{Unwritten, check_stop, stream};
use crate::args::RestoreArgs;
use crate::exit;
use crate::job::Job;
use crate::output::{Failure, Outcome, count, progress_bar, size};

/// The longest description of the files of one node.
const MOST_RECORD_BYTES: u64 = 256 << 20;

/// Restores the files of a set.
pub fn restore(
    args: &RestoreArgs,
    job: &Job,
    trust: &Arc<Trust>,
    json_wanted: bool,
) -> std::result::Result<Outcome, Failure> {
    let commit = job.pick(&args.which)?;
    let record = &commit.record;
    let places = job.places_to_read(commit);
    let mut out = Out::make(&args.out)?;
    let bar = progress_bar(!json_wanted);
    bar.set_length(record.containers.iter().map(|one| one.len_bytes).sum());
    let mut written = Written {
        notes: job.notes(),
        ..Written::default()
    };
    let mut paths = BTreeSet::new();
    for container in &record.containers {
        let unread = |error| job.unread(commit, &container.file, error);
        let proven = (trust, commit.proof);
        let reader = Reader::open_trusting(&places, record, container, proven).map_err(unread)?;
        written.notes.extend(reader.take_notes());
        for rank in &reader.manifest().ranks {
            let files = files_of(&reader, rank.rank, &mut written.notes);
            let files = files.map_err(|unwritten| unwritten.told(unread))?;
            check(&files, &mut paths).map_err(unread)?;
            let regions: HashMap<_, _> = rank.regions.iter().map(|one| (&one.name, one)).collect();
            for file in files {
                let region = regions.get(&file.path).copied();
                let progress = &mut |bytes| bar.inc(bytes);
                let done = written.file(&out.dir, (&reader, rank.rank, region), &file, progress);
                done.map_err(|unwritten| unwritten.told(unread))?;
            }
        }
    }
    bar.finish_and_clear();
    out.finish(&paths)?;
    let text = format!(
        "restored {} of the set of step {}: {} to {}\n",
        count(written.files.len() as u64, "file"),
        record.step,
        size(written.len_bytes),
        args.out.display()
    );
    Ok(Outcome {
        code: exit::OK,
        text,
        document: json!({
            "job": record.job.as_str(),
            "step": record.step.0,
            "out": args.out.display().to_string(),
            "files": written.files,
            "notes": written.notes,
        }),
        warnings: written.notes,
    })
}

/// The files of a set on one node.
fn files_of(
    reader: &Reader,
    rank: Rank,
    notes: &mut Vec<String>,
) -> std::result::Result<Vec<SetFile>, Unwritten> {
    let region = reader.region(rank, SET_RECORD).ok_or_else(|| {
        Unwritten::NotTaken(
            Error::invalid(format!(
                "rank {rank} has stored regions, and not files of a set"
            ))
            .next("restore them with --all"),
        )
    })?;
    if region.len_bytes > MOST_RECORD_BYTES {
        let size = size(region.len_bytes);
        return Err(Unwritten::NotRead(Error::corrupt(format!(
            "the description of the files takes {size}"
        ))));
    }
    let mut bytes = Vec::new();
    let mut damaged = |damage: &Error| notes.push(beside_a_good_copy(damage.message()));
    stream(reader, rank, region, &mut damaged, &mut |_, part| {
        bytes.extend_from_slice(part);
        Ok(())
    })?;
    let record: SetRecord = serde_json::from_slice(&bytes).map_err(|error| {
        let text = format!("the description of the files of rank {rank}: {error}");
        Unwritten::NotRead(Error::corrupt(text))
    })?;
    Ok(record.files)
}

/// Refuses paths that no set has: outside of its directory, of two files, or of a file that another
/// one has for its directory.
fn check(files: &[SetFile], paths: &mut BTreeSet<PathBuf>) -> Result<()> {
    for file in files {
        let path = Path::new(&file.path);
        let plain = |part: Component| matches!(part, Component::Normal(_));
        let mut above = path.ancestors().skip(1);
        let below = paths.range(path.to_owned()..).next();
        // Breaks if: the names are not looked at; `..` leads out of the directory.
        let fits = file.changed.1 < 1_000_000_000
            && path.components().all(plain)
            && path.file_name().is_some()
            && !path.as_os_str().as_bytes().ends_with(b"/")
            && !above.any(|dir| paths.contains(dir))
            && !below.is_some_and(|other| other.starts_with(path));
        if !fits {
            let text = format!("{:?}: no set has a file of this path or time", file.path);
            return Err(Error::corrupt(text));
        }
        paths.insert(path.to_owned());
    }
    Ok(())
}

/// What was written so far.
#[derive(Default)]
struct Written {
    files: Vec<Value>,
    len_bytes: u64,
    notes: Vec<String>,
}

impl Written {
    fn file(
        &mut self,
        out: &Inode,
        (reader, rank, region): (&Reader, Rank, Option<&RegionRecord>),
        file: &SetFile,
        progress: &mut dyn FnMut(u64),
    ) -> std::result::Result<(), Unwritten> {
        let region = region.filter(|region| region.len_bytes == file.len_bytes);
        let region = region.ok_or_else(|| {
            let (path, len) = (&file.path, file.len_bytes);
            let text = format!("rank {rank} has no {len} bytes of {path}");
            Unwritten::NotRead(Error::corrupt(text))
        })?;
        let mut damaged = |damage: &Error| self.notes.push(beside_a_good_copy(damage.message()));
        let crc = write(out, (reader, rank, region), file, progress, &mut damaged)?;
        self.len_bytes += region.len_bytes;
        self.files.push(json!({
            "path": file.path,
            "rank": rank.0,
            "len_bytes": region.len_bytes,
            "mode": format!("{:o}", file.mode & PERMISSIONS),
            "crc64_nvme": format!("{crc:016x}"),
        }));
        Ok(())
    }
}

/// What is restored of a file's mode. Set-user-ID and set-group-ID bits are dropped; the owner can
/// set them again.
const PERMISSIONS: u32 = 0o777;

/// Writes a file, and returns the checksum of its bytes.
fn write(
    out: &Inode,
    (reader, rank, region): (&Reader, Rank, &RegionRecord),
    file: &SetFile,
    progress: &mut dyn FnMut(u64),
    damage: &mut dyn FnMut(&Error),
) -> std::result::Result<u64, Unwritten> {
    let path = Path::new(&file.path);
    let failed = |errno| rustix_error(errno, path.display());
    let begun = parent_of(out, path, true).and_then(|(dir, name)| {
        let flags = OFlags::RDWR | OFlags::EXCL;
        let fd = dir.create(name, flags, 0o600)?;
        Ok((
            Contents::new(fd, &Failpoints::none(), &file.path),
            dir,
            name,
        ))
    });
    let (contents, dir, name) = begun.map_err(|errno| Unwritten::NotTaken(failed(errno)))?;
    let mut crc = Crc64::new();
    stream(reader, rank, region, damage, &mut |at, bytes| {
        check_stop()?;
        crc.update(bytes);
        contents.write_all(bytes, at).map_err(failed)?;
        progress(bytes.len() as u64);
        Ok(())
    })?;
    let time = Timespec {
        tv_sec: file.changed.0,
        tv_nsec: file.changed.1 as _,
    };
    let times = Timestamps {
        last_access: time,
        last_modification: time,
    };
    let finished = contents
        .set_times(&times)
        .and_then(|()| dir.child(name)?.set_mode(file.mode & PERMISSIONS))
        .and_then(|()| contents.sync(true));
    finished.map_err(|errno| Unwritten::NotTaken(failed(errno)))?;
    Ok(crc.value())
}

/// The directory `--out`, which is being made.
struct Out {
    above: Inode,
    /// Its name while it is not complete.
    temporary: OsString,
    name: OsString,
    shown: String,
    dir: Inode,
    finished: bool,
}

impl Out {
    fn make(path: &Path) -> Result<Out> {
        let shown = path.display().to_string();
        let name = path.file_name().filter(|name| *name != "-");
        let name = name.ok_or_else(|| {
            Error::invalid(format!(
                "--out {shown}: expected the name of a new directory"
            ))
        })?;
        let above = match path.parent() {
            Some(above) if above != Path::new("") => above,
            _ => Path::new("."),
        };
        let failed = |errno| rustix_error(errno, &shown);
        let opened = Inode::root(above, Failpoints::none());
        let above = opened.map_err(|errno| rustix_error(errno, above.display()))?;
        let mut temporary = name.to_owned();
        temporary.push(".orcheck.tmp");
        match above.child(name) {
            Err(Errno::NOENT) => {}
            Ok(_) => return Err(Self::exists(&shown)),
            Err(errno) => return Err(failed(errno)),
        }
        let made = above.make_dir(&temporary, 0o700);
        made.map_err(|errno| match errno {
            Errno::EXIST => {
                let next = "another restore writes it, or was killed; then remove it, or give \
                            another --out";
                Error::invalid(format!("{shown}.orcheck.tmp exists")).next(next)
            }
            errno => failed(errno),
        })?;
        let dir = above.child(&temporary).map_err(failed)?;
        let name = name.to_owned();
        Ok(Out {
            above,
            temporary,
            name,
            shown,
            dir,
            finished: false,
        })
    }

    /// Gives it its name, after all names in it are durable.
    fn finish(&mut self, paths: &BTreeSet<PathBuf>) -> Result<()> {
        let directories = paths.iter().filter_map(|path| path.parent());
        let directories: BTreeSet<&Path> = directories.flat_map(Path::ancestors).collect();
        let mut below = directories.iter().filter(|dir| **dir != Path::new(""));
        let synced = below.try_for_each(|dir| {
            let (above, name) = parent_of(&self.dir, dir, false)?;
            above.child(name)?.sync_names()
        });
        let synced = synced.and_then(|()| self.dir.sync_names());
        synced.map_err(|errno| rustix_error(errno, &self.shown))?;
        self.check_ours()?;
        // The kernel refuses to replace what somebody has made meanwhile.
        let flags = RenameFlags::NOREPLACE.bits();
        let above = &self.above;
        let finished = above
            .rename(&self.temporary, above, &self.name, flags)
            .and_then(|()| above.sync_names());
        self.finished = finished.is_ok();
        finished.map_err(|errno| match errno {
            Errno::EXIST => Self::exists(&self.shown),
            errno => rustix_error(errno, &self.shown),
        })
    }

    fn exists(shown: &str) -> Error {
        Error::invalid(format!("{shown} exists")).next("give the name of a new directory")
    }

    /// Whether the directory beside is still the one that was made.
    fn check_ours(&self) -> Result<()> {
        let of = |inode: &Inode| inode.stat().map(|stat| (stat.st_dev, stat.st_ino));
        let there = self
            .above
            .child(&self.temporary)
            .and_then(|there| of(&there));
        // Breaks if: this is not asked; another restore's half would get the name.
        match there.is_ok() && there == of(&self.dir) {
            true => Ok(()),
            false => Err(Error::invalid(format!(
                "{}.orcheck.tmp was removed or replaced while it was written",
                self.shown
            ))
            .next("restore again, when no other restore writes it")),
        }
    }
}

impl Drop for Out {
    fn drop(&mut self) {
        if !self.finished && self.check_ours().is_ok() {
            // The error that ends the restore says more than one of removing it.
            let _ = remove(&self.above, &self.temporary);
        }
    }
}

/// Removes what this restore has made; symbolic links are not followed.
fn remove(above: &Inode, name: &OsStr) -> Kernel<()> {
    match above.remove(name, false) {
        Err(Errno::ISDIR) => {}
        other => return other,
    }
    let dir = above.child(name)?;
    for entry in dir.list()? {
        let entry = entry?;
        let inner = OsStr::from_bytes(entry.file_name().to_bytes());
        if inner != "." && inner != ".." {
            remove(&dir, inner)?;
        }
    }
    above.remove(name, true)
}

#[cfg(test)]
// A test makes what is in the way.
#[allow(clippy::disallowed_methods)]
mod tests {
    use super::*;

    #[test]
    fn paths_that_no_set_has_are_refused() {
        let checked = |paths: &[&str]| {
            let file = |path: &&str| SetFile {
                path: (*path).to_owned(),
                len_bytes: 0,
                mode: 0o600,
                changed: (0, 0),
            };
            let files: Vec<SetFile> = paths.iter().map(file).collect();
            check(&files, &mut BTreeSet::new())
        };
        assert!(checked(&["a", "b/c", "b/d", "b-d", "e f/.g"]).is_ok());
        for wrong in [
            &["../x"][..],
            &["/x"],
            &["a/../../x"],
            &["."],
            &[""],
            &["a/"],
            &["a", "a"],
            &["a", "a/b"],
            &["a/b", "a"],
            &["a/b", "a-c", "a"],
        ] {
            let refused = checked(wrong).unwrap_err();
            assert_eq!(
                refused.kind(),
                orcheck_format::ErrorKind::Corrupt,
                "{wrong:?}"
            );
        }
    }

    #[test]
    fn only_the_directory_that_was_made_gets_the_name_or_is_removed() {
        let scratch = orcheck_testing::Scratch::new("restore-files");
        let [path, beside] = ["set", "set.orcheck.tmp"].map(|name| scratch.path().join(name));
        let mut out = Out::make(&path).unwrap();
        assert!(Out::make(&path).is_err(), "another restore");
        // Somebody has removed it, and another restore has begun.
        std::fs::remove_dir(&beside).unwrap();
        std::fs::create_dir(&beside).unwrap();
        std::fs::write(beside.join("half"), "").unwrap();
        let refused = out.finish(&BTreeSet::new()).unwrap_err();
        assert!(refused.message().contains("replaced"), "{refused}");
        drop(out);
        assert!(beside.join("half").exists() && !path.exists());
        std::fs::remove_dir_all(&beside).unwrap();
        // Somebody has made the directory itself.
        let mut out = Out::make(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        let refused = out.finish(&BTreeSet::new()).unwrap_err();
        assert!(refused.message().contains("exists"), "{refused}");
        drop(out);
        assert!(path.exists() && !beside.exists());
    }
}
