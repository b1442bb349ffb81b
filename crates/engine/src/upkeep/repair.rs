//! Repairs a committed checkpoint where it lies: damaged or missing containers and parity files are
//! rebuilt from good copies or from parity.
//!
//! ```text
//! source verified ─▶ NAME.repair-RANDOM.epoch-N.tmp, fsync ─▶ verified ─▶ renamed to NAME, fsync
//! ```
//!
//! Invariants:
//! 1. What takes a file's place was verified before it was written, and again as it was written.
//!    Nothing is guessed, and nothing is filled with zeros.
//! 2. A damaged file keeps its name until one rename puts the good one in its place: at every
//!    moment the checkpoint is at least as restorable as before.
//! 3. What is renamed is what this repair wrote and verified: no other one writes under its name.
//! 4. Containers of other checkpoints are not touched.
//!
//! Survives: a kill at any time; what is left then is removed by the next repair or the next run's
//! prune, and the repair can begin again. Another repair at the same time. Not here: whether a run
//! is alive (the command), repair during a restart (`replicas/mend.rs`).

use crate::directory::prune::coming_name;
use crate::replicas::{Rebuilt, compare_with_parity};
use crate::upkeep::verify::{check_parity, parity_files, verify_here};
use orcheck_format::disk::{CommitRecord, ContainerRef, FileName};
use orcheck_format::sabotage::{Switch, off};
use orcheck_format::{Crc64, Error, ErrorKind, NodeId, Result};
use orcheck_io::disk::{Create, Dir, Entry, File, ReadDir, ReadOnly};
use orcheck_io::memory::zeroed;
use orcheck_io::rng::random_bytes;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

/// Bytes that are copied at once.
const PIECE_BYTES: u64 = 4 << 20;

/// A file that was rebuilt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Repaired {
    /// Its full path.
    pub path: String,
    /// From what: a directory, or `parity`; `None` if another repair made it meanwhile.
    pub from: Option<String>,
}

/// What a repair did.
#[derive(Debug, Default)]
pub struct Repair {
    /// Files that are good again.
    pub done: Vec<Repaired>,
    /// Why others are not.
    pub left: Vec<Error>,
}

/// What a directory has of a file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Good,
    Damaged,
    Missing,
}

/// Repairs what these directories have of a checkpoint. A missing file is rebuilt in the
/// directory of its node, if that is one of them.
///
/// # Errors
/// Never for what cannot be repaired, which is part of the result; NotFound if the checkpoint was
/// removed meanwhile.
pub fn repair(places: &[Arc<dyn Dir>], commit: &CommitRecord) -> Result<Repair> {
    let mut repair = Repair::default();
    let computed = (!commit.groups.is_empty())
        .then(|| Rebuilt::of(places, Some(commit)))
        .flatten();
    let all: Vec<Arc<dyn Dir>> = places.iter().chain(&computed).cloned().collect();
    let (mut bad, mut whole) = (BTreeSet::new(), BTreeSet::new());
    for container in &commit.containers {
        let before = repair.left.len();
        let check = |dir: &Arc<dyn Dir>| match verify_here(dir.as_ref(), &all, commit, container) {
            None => State::Missing,
            // Also what no restore needs: the next one that is damaged there may need it.
            Some(found) if !found.findings.is_empty() => State::Damaged,
            Some(_) => match compare_with_parity(dir.as_ref(), &container.file, (&all, commit)) {
                Ok(()) => State::Good,
                Err(_) => State::Damaged,
            },
        };
        let file = Wanted {
            name: &container.file,
            homes: homes_of(commit, container),
            check: &check,
        };
        whole.extend(file.mend(places, computed.as_ref(), commit, &mut repair)?);
        if repair.left.len() > before {
            bad.insert(container.node);
        }
    }
    for name in parity_files(commit) {
        let check = |dir: &Arc<dyn Dir>| match check_parity(dir.as_ref(), &name, commit) {
            Ok(()) => State::Good,
            Err(error) if error.kind() == ErrorKind::NotFound => State::Missing,
            Err(_) => State::Damaged,
        };
        // Breaks if: it is made from a container that is damaged itself: nothing would tell.
        if let Some(bad) = of_bad_container(commit, &name, &bad)
            && !places.iter().any(|dir| check(dir) == State::Good)
        {
            repair.left.push(bad);
            continue;
        }
        let home = match FileName::parse(&name) {
            Some(FileName::Parity { node, .. }) => vec![node],
            _ => Vec::new(),
        };
        let file = Wanted {
            name: &name,
            homes: home,
            check: &check,
        };
        whole.extend(file.mend(places, computed.as_ref(), commit, &mut repair)?);
    }
    remove_leftovers(places, &whole);
    Ok(repair)
}

/// Separates the name of a file from the random part of the name under which its repair is written.
const REPAIR: &str = ".repair-";

/// Removes what killed repairs left of files that are whole.
fn remove_leftovers(places: &[Arc<dyn Dir>], whole: &BTreeSet<(usize, String)>) {
    for (at, dir) in places.iter().enumerate() {
        // Breaks if: it goes before the file is whole; another repair may be writing it.
        let is_left = |entry: &Entry| {
            let of = entry.name.strip_suffix(".tmp");
            let of = of.and_then(|name| name.split_once(REPAIR));
            of.is_some_and(|(file, _)| whole.contains(&(at, file.to_owned())))
        };
        let entries = dir.list().unwrap_or_default();
        for entry in entries.iter().filter(|entry| is_left(entry)) {
            // Best effort: what stays is removed by the next run's prune.
            let _ = dir.remove(&entry.name);
        }
    }
}

/// Why a parity file cannot be made: a container of its group is damaged and was not repaired.
fn of_bad_container(commit: &CommitRecord, name: &str, bad: &BTreeSet<NodeId>) -> Option<Error> {
    let Some(FileName::Parity { node, .. }) = FileName::parse(name) else {
        return None;
    };
    let group = commit.group_of(node)?;
    let bad = group
        .nodes
        .iter()
        .find(|&other| *other != node && bad.contains(other))?;
    Some(Error::corrupt(format!(
        "{name} is damaged or missing, and cannot be rebuilt: the container of node {bad} in its group is not whole"
    )))
}

/// The nodes that are to have a container.
fn homes_of(commit: &CommitRecord, container: &ContainerRef) -> Vec<NodeId> {
    let nodes = [container.node]
        .into_iter()
        .chain(container.holders.iter().copied());
    match commit.level {
        orcheck_format::Level::Global => Vec::new(),
        _ => nodes.collect(),
    }
}

/// A file that a checkpoint needs.
struct Wanted<'a> {
    name: &'a str,
    /// Nodes that are to have it.
    homes: Vec<NodeId>,
    check: &'a dyn Fn(&Arc<dyn Dir>) -> State,
}

impl Wanted<'_> {
    /// Makes it again wherever it is damaged, and where its nodes lack it; returns where it is
    /// whole then.
    fn mend(
        &self,
        places: &[Arc<dyn Dir>],
        computed: Option<&Arc<dyn Dir>>,
        commit: &CommitRecord,
        repair: &mut Repair,
    ) -> Result<BTreeSet<(usize, String)>> {
        let states: Vec<State> = places.iter().map(self.check).collect();
        let is_home = |dir: &Arc<dyn Dir>| {
            let name = dir.path().file_name().map(|name| name.to_string_lossy());
            let mut homes = self.homes.iter();
            homes.any(|home| commit.nodes.get(home.index()).map(String::as_str) == name.as_deref())
        };
        let nowhere = states.iter().all(|state| *state == State::Missing);
        let at_home = |at: usize| (at, self.name.to_owned());
        let good = (0..places.len()).filter(|&at| states[at] == State::Good);
        let mut whole: BTreeSet<_> = good.map(at_home).collect();
        let due: Vec<usize> = (0..places.len())
            .filter(|&at| match states[at] {
                State::Good => false,
                State::Damaged => true,
                State::Missing => is_home(&places[at]),
            })
            .collect();
        if due.is_empty() && nowhere {
            repair.left.push(self.homeless(places, commit));
        }
        if due.is_empty() {
            return Ok(whole);
        }
        let source = match whole.first() {
            Some(&(at, _)) => Some(&places[at]),
            // The check of a parity file reads it in any order, which a computed one does not
            // allow: its blocks are verified as they are computed.
            None => computed.filter(|dir| {
                let is_container = self.name.ends_with(".orc");
                !is_container || (self.check)(dir) == State::Good
            }),
        };
        for at in due {
            let dir = &places[at];
            let path = dir.path().join(self.name).display().to_string();
            let made = match source {
                Some(source) => self.replace(source.as_ref(), (dir, places), commit),
                None => Err(Error::corrupt("no good copy and too little parity is here")
                    .next("give all directories of the job, or use an older step")),
            };
            match made {
                Ok(from) => {
                    whole.insert(at_home(at));
                    repair.done.push(Repaired { path, from });
                }
                Err(error) if error.kind() == ErrorKind::Fenced => return Err(error),
                Err(error) => repair.left.push(error.at(path)),
            }
        }
        Ok(whole)
    }

    /// Refuses if the checkpoint was removed.
    fn still_there(places: &[Arc<dyn Dir>], commit: &CommitRecord) -> Result<()> {
        let record = FileName::commit(commit.step, commit.epoch, commit.level).to_string();
        // One directory may lack it: its node missed the commit.
        if places.iter().any(|dir| dir.holds(&record).unwrap_or(true)) {
            return Ok(());
        }
        Err(Error::fenced(format!(
            "step {} was removed while it was repaired",
            commit.step
        )))
    }

    fn homeless(&self, places: &[Arc<dyn Dir>], commit: &CommitRecord) -> Error {
        let home = self
            .homes
            .first()
            .and_then(|home| commit.nodes.get(home.index()));
        let Some(home) = home else {
            return Error::not_found(format!("{} is missing", self.name))
                .next("give the directory that holds it, or use an older step");
        };
        // Beside those of the other nodes.
        let beside = places.first().and_then(|dir| dir.path().parent());
        let path = beside.map_or_else(|| home.into(), |root| root.join(home));
        Error::not_found(format!(
            "{} is missing, and the directory of its node {home} is none of these",
            self.name
        ))
        .next(format!(
            "give it or, if it is lost, create {} empty and repeat, or restart the job, which makes the file again",
            path.display()
        ))
    }

    /// Makes the file in `dir` from that in `from`; returns from what it was made.
    fn replace(
        &self,
        from: &dyn Dir,
        (dir, places): (&Arc<dyn Dir>, &[Arc<dyn Dir>]),
        commit: &CommitRecord,
    ) -> Result<Option<String>> {
        // Breaks if: two repairs write under one name; one would rename what the other has only
        // half written.
        let random = match off(Switch::RepairApart) {
            true => 0,
            false => u32::from_le_bytes(random_bytes()),
        };
        let new = format!("{}{REPAIR}{random:08x}", self.name);
        let new = coming_name(&new, commit.epoch.counter);
        let placed = copy(from, self.name, dir.as_ref(), &new)
            .and_then(|()| self.verify_new(dir, &new))
            .and_then(|()| Self::still_there(places, commit))
            .and_then(|()| match off(Switch::RepairInPlace) {
                true => dir.remove(self.name),
                false => Ok(()),
            })
            .and_then(|()| dir.rename(&new, self.name));
        match placed {
            Ok(()) => {
                dir.sync()?;
                Ok(Some(from.path().display().to_string()))
            }
            Err(error) => {
                let _ = dir.remove(&new);
                // Another repair may have made it, and removed what this one wrote.
                let is_fenced = error.kind() == ErrorKind::Fenced;
                if is_fenced || (self.check)(dir) != State::Good {
                    return Err(error);
                }
                dir.sync()?;
                Ok(None)
            }
        }
    }

    /// Verifies what was written under another name as if it had its own.
    fn verify_new(&self, dir: &Arc<dyn Dir>, new: &str) -> Result<()> {
        let written: Arc<dyn Dir> = Arc::new(ReadOnly(Written {
            dir: Arc::clone(dir),
            name: self.name.to_owned(),
            new: new.to_owned(),
        }));
        match (self.check)(&written) {
            State::Good => Ok(()),
            _ if off(Switch::RepairVerified) => Ok(()),
            _ => Err(Error::corrupt(
                "what was to take its place is damaged too; the file is as it was",
            )
            .next("have the storage checked")),
        }
    }
}

/// A directory in which a file is already replaced by what was written for it.
struct Written {
    dir: Arc<dyn Dir>,
    name: String,
    new: String,
}

impl ReadDir for Written {
    fn path(&self) -> &Path {
        self.dir.path()
    }

    fn open(&self, name: &str) -> Result<Box<dyn File>> {
        let is_new = name == self.name;
        self.dir.open(if is_new { &self.new } else { name })
    }

    fn list(&self) -> Result<Vec<Entry>> {
        self.dir.list()
    }
}

/// Writes a durable copy of a file under another name, and compares what was written.
fn copy(from: &dyn Dir, name: &str, dir: &dyn Dir, new: &str) -> Result<()> {
    let source = from.open(name)?;
    let len_bytes = source.len_bytes()?;
    let target = dir.create(new, Create::Buffered)?;
    let read = each_piece(source.as_ref(), len_bytes, &mut |bytes, at| {
        target.write_at(bytes, at)
    })?;
    target.sync()?;
    target.close()?;
    let written = dir.open(new)?;
    let found = each_piece(written.as_ref(), len_bytes, &mut |_, _| Ok(()))?;
    if found != read {
        return Err(Error::corrupt(format!(
            "expected CRC-64 {read:016x} over {len_bytes} bytes of {}, found {found:016x}",
            written.name()
        )));
    }
    Ok(())
}

/// Reads a file piece by piece; returns its checksum.
fn each_piece(
    file: &dyn File,
    len_bytes: u64,
    take: &mut dyn FnMut(&[u8], u64) -> Result<()>,
) -> Result<u64> {
    let (mut at, mut crc) = (0, Crc64::new());
    while at < len_bytes {
        let mut bytes = zeroed((len_bytes - at).min(PIECE_BYTES) as usize)?;
        file.read_at(&mut bytes, at)?;
        crc.update(&bytes);
        take(&bytes, at)?;
        at += bytes.len() as u64;
    }
    Ok(crc.value())
}
