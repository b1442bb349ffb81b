//! Puts the files of the newest set back, when a mount begins.
//!
//! How: every file of the set is compared with what the checkpoint has. One that is missing is
//! restored. One that differs is restored only if the last mount did not end well, and what was
//! there is moved aside. Files of steps that never became complete are moved aside, too.
//!
//! Invariants:
//! 1. After a crash, a step has all files of its set or none.
//! 2. Nothing is overwritten: what was there is moved.
//! 3. A restored file has its name only when its bytes are durable.
//!
//! Faults survived: the death of the mount at any step; a power cut.
//!
//! Not here: which checkpoint is the newest (crate `client`).

use crate::sets::marks::{Kind, Left, Marks};
use crate::sets::pattern::Pattern;
use crate::sets::taking::{Bytes, Entry, RECORD, Record};
use orcheck_client::{Codec, Membership, Restarted};
use orcheck_format::sabotage::{Switch, off};
use orcheck_format::{Error, ErrorKind, Result};
use orcheck_io::disk::{Contents, Kernel};
use orcheck_io::errno::rustix_error;
use orcheck_io::failpoints::Failpoints;
use rustix::fs::{FileType, OFlags, Timespec, Timestamps};
use rustix::io::Errno;
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bytes that are compared or copied in one go.
const PIECE_BYTES: usize = 1 << 20;

/// What was put back.
#[derive(Default, Debug, Clone, PartialEq, Eq)]
pub struct Back {
    /// The newest set.
    pub step: Option<u64>,
    /// Its files that were restored.
    pub restored: Vec<PathBuf>,
    /// Directories with files that were moved aside, and why.
    pub aside: Vec<(PathBuf, String)>,
}

/// Tells the other nodes steps, and returns those of all.
type Exchange<'a> = &'a dyn Fn(&Vec<u64>) -> Result<Vec<Vec<u64>>>;

/// Finds the newest set and puts its files back. Collective.
///
/// # Errors
/// Those of the session, and of the backing directory.
pub fn bring_back(
    session: &mut Membership,
    marks: &Arc<Marks>,
    patterns: &[&Pattern],
    exchange: Exchange,
) -> Result<Back> {
    let failed = |errno| rustix_error(errno, marks.shown());
    marks.drop_incoming().map_err(failed)?;
    let mut back = Back::default();
    let (mut of_set, mut files) = (HashSet::new(), Vec::new());
    back.step = match session.find() {
        Ok(_) => Some(restart(session, marks, (&mut of_set, &mut files))?),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => return Err(error),
    };
    let left = marks.left().map_err(failed)?;
    let moved = left.iter().filter(|left| moves(marks, left, back.step));
    // Breaks if: each node decides alone; one could keep its part of a step that another has not.
    let moved = exchange(&moved.map(|left| left.step).collect())?;
    let moved = moved.into_iter().flatten().collect();
    aside(marks, patterns, (left, &moved, &of_set), &mut back).map_err(failed)?;
    let mut replaced = None;
    for (path, file) in &files {
        let placed = file.finish(&mut replaced, back.step);
        if placed.map_err(|errno| rustix_error(errno, path))? {
            back.restored.push(PathBuf::from(path));
        }
    }
    if let Some((_, path)) = replaced {
        let why = "files that differ from those of the set".to_owned();
        back.aside.push((path, why));
    }
    Ok(back)
}

/// A file that may have to be restored, with its path.
type File = (String, Restoring);

/// Reads the set; returns the step that was really restored. `of_set` gets the paths of all its
/// files, `files` those that may have to be restored.
fn restart(
    session: &mut Membership,
    marks: &Arc<Marks>,
    (of_set, files): (&mut HashSet<PathBuf>, &mut Vec<File>),
) -> Result<u64> {
    loop {
        unprotect(session, files)?;
        of_set.clear();
        files.clear();
        let len_bytes = session.stored(RECORD)?.len_bytes;
        let len = usize::try_from(len_bytes).unwrap_or(usize::MAX);
        let bytes = Arc::new(Mutex::new(vec![0; len]));
        session.protect_codec(RECORD, Box::new(Bytes(Arc::clone(&bytes))), 0)?;
        if let Restarted::Again(_) = session.restart_region(RECORD)? {
            continue;
        }
        let record: Record = {
            let bytes = bytes.lock().unwrap_or_else(PoisonError::into_inner);
            serde_json::from_slice(&bytes)
                .map_err(|error| Error::corrupt(format!("the record of a set: {error}")))?
        };
        for (number, entry) in record.files.into_iter().enumerate() {
            let path = entry.path.clone();
            of_set.insert(PathBuf::from(&path));
            if let Some(file) = Restoring::new(marks, number, entry)? {
                session.protect_codec(&path, Box::new(file.clone()), 0)?;
                files.push((path, file));
            }
        }
        if let Restarted::Step(step) = session.try_restart()? {
            unprotect(session, files)?;
            return Ok(step.0);
        }
    }
}

fn unprotect(session: &mut Membership, files: &[File]) -> Result<()> {
    files
        .iter()
        .try_for_each(|(path, _)| session.unprotect(path))
}

/// Whether the files of a step have to be moved aside.
fn moves(marks: &Marks, left: &Left, newest: Option<u64>) -> bool {
    // Breaks if: only what began counts; a power cut tears files of sets that were lost, too.
    let torn = marks.power_cut && !off(Switch::SetDurable);
    // Breaks if: they stay; a program would restart from half of a step.
    (left.kind == Kind::Begun || torn) && Some(left.step) != newest && !off(Switch::SetAside)
}

/// Moves the files of steps aside, and forgets what is durable then.
fn aside(
    marks: &Marks,
    patterns: &[&Pattern],
    (left, moved, of_set): (Vec<Left>, &HashSet<u64>, &HashSet<PathBuf>),
    back: &mut Back,
) -> Kernel<()> {
    for left in left {
        let paths = marks.paths(&left)?;
        if moved.contains(&left.step) && Some(left.step) != back.step {
            aside_of_step(marks, (patterns, of_set), (&left, paths), back)?;
        } else if left.kind == Kind::Lost && !marks.power_cut {
            // Breaks if: they are synced and forgotten; the kernel has dropped what it could not
            // write, and says so only once.
            if paths.iter().any(|path| marks.may_exist(path)) {
                continue;
            }
        } else if paths.iter().any(|path| marks.sync_file(path).is_err()) {
            marks.keep_as_lost(&left)?;
            continue;
        }
        marks.forget(&left)?;
    }
    Ok(())
}

/// Moves the files of one step aside.
fn aside_of_step(
    marks: &Marks,
    (patterns, of_set): (&[&Pattern], &HashSet<PathBuf>),
    (left, mut paths): (&Left, Vec<PathBuf>),
    back: &mut Back,
) -> Kernel<()> {
    let step = left.step;
    if marks.power_cut && !off(Switch::SetBeside) {
        paths.extend(of_step(marks, patterns, (step, &paths))?);
    }
    let (mut place, mut moved) = (None, false);
    for path in paths.iter().filter(|path| !of_set.contains(*path)) {
        let is_file = marks.find(path).is_ok_and(|found| {
            let stat = found.stat();
            stat.is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode).is_file())
        });
        if !is_file {
            continue;
        }
        if place.is_none() {
            place = Some(marks.aside(&step.to_string())?);
        }
        if let Some((dir, _)) = &place {
            moved |= marks.move_to(dir, path)?;
        }
    }
    if let Some((_, path)) = place.filter(|_| moved) {
        let why = match left.kind {
            Kind::Begun => format!("files of step {step}, whose set was not complete"),
            _ => format!("files of step {step}: some were not durable before the power cut"),
        };
        back.aside.push((path, why));
    }
    Ok(())
}

/// What lies beside files of a step, and has the step in its name: a power cut may have left as
/// little of a mark as one path per directory.
fn of_step(
    marks: &Marks,
    patterns: &[&Pattern],
    (step, paths): (u64, &[PathBuf]),
) -> Kernel<Vec<PathBuf>> {
    let (mut directories, mut found) = (HashSet::new(), Vec::new());
    for path in paths {
        if directories.insert(path.parent()) {
            found.extend(marks.beside(path)?);
        }
    }
    let steps = |path: &PathBuf| patterns.iter().find_map(|pattern| pattern.find(path));
    found.retain(|path| steps(path) == Some(Some(step)));
    Ok(found)
}

/// A file that is being compared, and restored if it has to be.
#[derive(Clone)]
struct Restoring(Arc<Mutex<Work>>);

struct Work {
    marks: Arc<Marks>,
    number: usize,
    entry: Entry,
    /// Whether there is a file.
    exists: bool,
    /// That file, while it is compared; it is open only as long as its bytes come.
    existing: Option<Contents>,
    /// What will be there, likewise.
    incoming: Option<Contents>,
    /// What will be there is complete and durable.
    restored: bool,
}

impl Restoring {
    /// `None`: the file stays as it is.
    fn new(marks: &Arc<Marks>, number: usize, entry: Entry) -> Result<Option<Restoring>> {
        let exists = match marks.find(Path::new(&entry.path)) {
            Ok(_) => true,
            Err(Errno::NOENT | Errno::NOTDIR) => false,
            Err(errno) => return Err(rustix_error(errno, &entry.path)),
        };
        if exists && !marks.crashed {
            return Ok(None);
        }
        Ok(Some(Restoring(Arc::new(Mutex::new(Work {
            marks: Arc::clone(marks),
            number,
            entry,
            exists,
            existing: None,
            incoming: None,
            restored: false,
        })))))
    }

    fn work(&self) -> MutexGuard<'_, Work> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives the file its name. `true`: it was restored.
    fn finish(
        &self,
        replaced: &mut Option<(orcheck_io::disk::Inode, PathBuf)>,
        step: Option<u64>,
    ) -> Kernel<bool> {
        let mut work = self.work();
        if work.entry.len_bytes == 0 {
            work.take(0, &[])?;
        }
        if !work.restored {
            return Ok(false);
        }
        let path = Path::new(&work.entry.path);
        if replaced.is_none() && work.exists {
            let what = format!("before-{}", step.unwrap_or(0));
            *replaced = Some(work.marks.aside(&what)?);
        }
        if let Some((dir, _)) = replaced {
            work.marks.move_to(dir, path)?;
        }
        work.marks
            .place_incoming(work.number, work.entry.mode, path)?;
        Ok(true)
    }
}

/// The regular file of a path; anything else there is not the file of the set.
fn existing(marks: &Marks, path: &Path) -> Kernel<Option<Contents>> {
    let inode = match marks.find(path) {
        Err(Errno::NOENT | Errno::NOTDIR) => return Ok(None),
        other => other?,
    };
    if !FileType::from_raw_mode(inode.stat()?.st_mode).is_file() {
        return Ok(None);
    }
    let fd = inode.open(OFlags::RDONLY | OFlags::NONBLOCK)?;
    Ok(Some(Contents::new(fd, &Failpoints::none(), "existing")))
}

impl Work {
    /// Whether the existing file has these bytes there, and the right length.
    fn has(&self, at: u64, bytes: &[u8]) -> Kernel<bool> {
        let Some(existing) = &self.existing else {
            return Ok(false);
        };
        if existing.stat()?.st_size as u64 != self.entry.len_bytes {
            return Ok(false);
        }
        let mut there = vec![0; bytes.len()];
        Ok(existing.read(&mut there, at)? == bytes.len() && there == bytes)
    }

    fn take(&mut self, at: u64, bytes: &[u8]) -> Kernel<()> {
        if at == 0 {
            // The bytes may come again from another copy.
            (self.incoming, self.restored) = (None, false);
            self.existing = match self.exists {
                true => existing(&self.marks, Path::new(&self.entry.path))?,
                false => None,
            };
        }
        if self.incoming.is_none() && !self.has(at, bytes)? {
            self.incoming = Some(self.begin(at)?);
        }
        if let Some(incoming) = &self.incoming {
            incoming.write_all(bytes, at)?;
        }
        if at + bytes.len() as u64 == self.entry.len_bytes {
            self.existing = None;
            if let Some(incoming) = self.incoming.take() {
                self.make_durable(&incoming)?;
                self.restored = true;
            }
        }
        Ok(())
    }

    fn make_durable(&self, incoming: &Contents) -> Kernel<()> {
        let (seconds, nanoseconds) = self.entry.changed;
        let time = Timespec {
            tv_sec: seconds,
            tv_nsec: nanoseconds as _,
        };
        incoming.set_times(&Timestamps {
            last_access: time,
            last_modification: time,
        })?;
        incoming.sync(true)
    }

    /// A new file with what was compared so far.
    fn begin(&self, until: u64) -> Kernel<Contents> {
        let incoming = self.marks.incoming(self.number)?;
        let mut piece = vec![0; PIECE_BYTES];
        let mut at = 0;
        while let Some(existing) = &self.existing
            && at < until
        {
            let len = PIECE_BYTES.min(usize::try_from(until - at).unwrap_or(usize::MAX));
            let into = piece.get_mut(..len).unwrap_or_default();
            let count = existing.read(into, at)?;
            if count == 0 {
                return Err(Errno::STALE);
            }
            incoming.write_all(into.get(..count).unwrap_or_default(), at)?;
            at += count as u64;
        }
        Ok(incoming)
    }
}

impl Codec for Restoring {
    fn size(&mut self) -> Result<u64> {
        Ok(self.work().entry.len_bytes)
    }

    fn pack(&mut self, _at: u64, _dst: &mut [u8]) -> Result<()> {
        Err(Error::internal("a file that is restored is not taken"))
    }

    fn unpack(&mut self, at: u64, src: &[u8]) -> Result<()> {
        let mut work = self.work();
        let done = work.take(at, src);
        done.map_err(|errno| rustix_error(errno, &work.entry.path))
    }
}
