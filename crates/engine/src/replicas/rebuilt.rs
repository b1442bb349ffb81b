//! Presents, as a read-only directory, the containers and parity files that a group can still
//! compute: a restart reads a lost container from it like a copy, and a rebuild copies from it.
//!
//! How: a container is computed row by row, as it is read (`survivors.rs`). A parity file is
//! computed as it was made, from the containers (`parity_file.rs`), and is read from its beginning.
//! Whoever reads a container verifies it like any other, against the manifest that the commit
//! record names.
//!
//! Invariants:
//! 1. A file opens only if there is enough of its group; otherwise the error names what is missing.
//! 2. No more than one row of the group is in memory.
//!
//! Survives: what `survivors.rs` survives, also if it happens while a file is read. Not here: who
//! asks for which file (`restart`, `mend.rs`, `upkeep`).

use crate::replicas::parity_file::{ParityFile, Protected};
use crate::replicas::part::Picks;
use crate::replicas::survivors::{RowRead, Survivors};
use orcheck_format::disk::{CommitRecord, FileName};
use orcheck_format::{Crc64, Error, NodeId, Result};
use orcheck_io::disk::{Dir, Entry, File, ReadDir, ReadFile, ReadOnly};
use orcheck_placement::parity::Code;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// What stands for a node in reports of where bytes came from.
const PARITY: &str = "parity";

/// The directory; see the module.
pub struct Rebuilt {
    dirs: Vec<Arc<dyn Dir>>,
    path: PathBuf,
    /// The checkpoint, if it is one.
    commit: Option<CommitRecord>,
}

impl Rebuilt {
    /// Why a container cannot be computed in these places, if parity of it is there.
    pub(crate) fn why_not(places: &[Arc<dyn Dir>], name: &str) -> Option<Error> {
        let dir = places.iter().find(|dir| dir.path() == Path::new(PARITY))?;
        dir.open(name).err()
    }

    /// What can be computed from the files of these directories; `None` if none of them has parity.
    /// Of the checkpoint of `commit`, only parity of what that names counts.
    #[must_use]
    pub fn of(dirs: &[Arc<dyn Dir>], commit: Option<&CommitRecord>) -> Option<Arc<dyn Dir>> {
        let is_parity =
            |entry: &Entry| matches!(FileName::parse(&entry.name), Some(FileName::Parity { .. }));
        let has_parity = |dir: &&Arc<dyn Dir>| {
            let listed = dir.list();
            listed.is_ok_and(|entries| entries.iter().any(is_parity))
        };
        dirs.iter().any(|dir| has_parity(&dir)).then(|| {
            Arc::new(ReadOnly(Self {
                dirs: dirs.to_vec(),
                path: PathBuf::from(PARITY),
                commit: commit.cloned(),
            })) as Arc<dyn Dir>
        })
    }
}

impl ReadDir for Rebuilt {
    fn path(&self) -> &Path {
        &self.path
    }

    fn open(&self, name: &str) -> Result<Box<dyn File>> {
        let none = || Error::not_found(format!("there is no parity for {name}"));
        let parsed = FileName::parse(name).ok_or_else(none)?;
        let (node, parity) = match parsed {
            FileName::Container { node, .. } => (node, false),
            FileName::Parity { node, .. } => (node, true),
            _ => return Err(none()),
        };
        let left = Survivors::find(&self.dirs, &parsed, self.commit.as_ref())?.ok_or_else(none)?;
        let member = left.of.group.position(node).ok_or_else(none)?;
        if !parity && left.len_bytes(member) == 0 {
            return Err(none());
        }
        left.enough_for(member, parity)
            .map_err(|error| error.at(name))?;
        let name = name.to_owned();
        Ok(match parity {
            false => Box::new(ReadOnly(RebuiltContainer {
                left,
                member,
                name,
                read: Mutex::default(),
            })),
            true => Box::new(ReadOnly(RebuiltParity::new(left, (node, member), name)?)),
        })
    }

    fn list(&self) -> Result<Vec<Entry>> {
        // It has nothing that is not computed from other directories.
        Ok(Vec::new())
    }
}

/// A container that is computed as it is read.
struct RebuiltContainer {
    left: Survivors,
    member: u32,
    name: String,
    read: Mutex<Computed>,
}

/// What was read for the last row, and the last block that was computed: its number, and its bytes.
#[derive(Default)]
struct Computed {
    read: RowRead,
    block: Option<(u64, Vec<u8>)>,
}

impl ReadFile for RebuiltContainer {
    fn read_at(&self, mut buf: &mut [u8], mut at: u64) -> Result<()> {
        let group = &self.left.of.group;
        let unit = u64::from(group.unit_bytes);
        let mut state = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        let Computed { read, block: last } = &mut *state;
        while !buf.is_empty() {
            let nth = at / unit;
            let known = last.take().filter(|(known, _)| *known == nth);
            let block = match known {
                Some((_, block)) => block,
                None => {
                    let (row, data) =
                        (nth / u64::from(group.data()), nth % u64::from(group.data()));
                    let codeword = group.codeword_of(self.member, data as u32);
                    self.left.read_for_container(read, row, self.member);
                    let which = (codeword, data as u32);
                    // Its own file may be damaged elsewhere.
                    match self.left.known_data(read, row, which) {
                        Some(block) => block,
                        None => (self.left.compute(read, row, which))
                            .map_err(|error| error.at(self.name()))?,
                    }
                }
            };
            let from = (at % unit) as usize;
            let there = block.get(from..).unwrap_or_default();
            let count = there.len().min(buf.len());
            if count == 0 {
                return Err(Error::corrupt(format!(
                    "{}: a block is too short",
                    self.name()
                )));
            }
            let (now, later) = buf.split_at_mut(count);
            now.copy_from_slice(&there[..count]);
            buf = later;
            at += count as u64;
            *last = Some((nth, block));
        }
        Ok(())
    }

    fn len_bytes(&self) -> u64 {
        self.left.len_bytes(self.member)
    }

    fn name(&self) -> String {
        format!("{PARITY}/{}", self.name)
    }

    fn other_node(&self) -> Option<&str> {
        Some(PARITY)
    }
}

/// A parity file that is computed from its beginning on.
struct RebuiltParity {
    left: Survivors,
    name: String,
    len_bytes: u64,
    making: Mutex<Making>,
}

struct Making {
    file: ParityFile,
    read: RowRead,
    row: u64,
    sent: Vec<(u64, Crc64)>,
    /// Bytes that are computed and not read yet, from `at` on.
    at: u64,
    bytes: Vec<u8>,
    ended: bool,
}

impl RebuiltParity {
    fn new(left: Survivors, (_, member): (NodeId, u32), name: String) -> Result<Self> {
        let of = &left.of;
        let protected = Protected {
            job: of.job.clone(),
            step: of.step,
            epoch: of.epoch,
            writer: of.writer,
        };
        let group = Arc::new(of.group.clone());
        let code = Arc::new(Code::new(group.data(), group.parity.into())?);
        let sends = |other| left.len_bytes(other) > 0;
        let file = ParityFile::new(protected, (&group, member), &code, sends);
        let len_bytes = of.of_member(member)?.file_bytes();
        let making = Making {
            file,
            read: RowRead::default(),
            row: 0,
            sent: vec![(0, Crc64::new()); group.nodes.len()],
            at: 0,
            bytes: Vec::new(),
            ended: false,
        };
        Ok(Self {
            left,
            name,
            len_bytes,
            making: Mutex::new(making),
        })
    }

    /// Computes the next row, or the trailer.
    fn make_more(&self, making: &mut Making) -> Result<()> {
        let group = &self.left.of.group;
        let member = self.left.of.member_named(&self.name);
        let row = making.row;
        member.inspect(|&member| self.left.read_for_parity(&mut making.read, row, member));
        for other in 0..group.members() {
            let len_bytes = self.left.len_bytes(other);
            let Some(holder) = member.filter(|_| len_bytes > 0) else {
                continue;
            };
            let picks = Picks::of(group, other, holder);
            let (sent, crc) = &mut making.sent[other as usize];
            for pick in group.picks(other, holder) {
                let len = self.left.data_bytes(other, making.row, pick.data) as usize;
                if len == 0 {
                    continue;
                }
                let at = (group.codeword_of(other, pick.data), pick.data);
                let block = match self.left.data(&mut making.read, making.row, at) {
                    Some(block) => block,
                    None => self.left.compute(&mut making.read, making.row, at)?,
                };
                let block = block.get(..len).unwrap_or_default();
                crc.update(block);
                making.file.take(other, *sent, block)?;
                *sent += len as u64;
            }
            if making.row + 1 == group.rows(len_bytes) {
                debug_assert_eq!(*sent, picks.bytes_of(len_bytes));
                making.file.end(other, len_bytes, crc.value())?;
            }
        }
        making.row += 1;
        making.at += making.bytes.len() as u64;
        making.bytes.clear();
        while let Some((_, bytes)) = making.file.next_row()? {
            making.bytes.extend_from_slice(&bytes);
        }
        if making.file.is_whole() {
            making.bytes.extend_from_slice(&making.file.trailer().1);
            making.ended = true;
        }
        Ok(())
    }
}

impl ReadFile for RebuiltParity {
    fn read_at(&self, mut buf: &mut [u8], mut at: u64) -> Result<()> {
        let mut making = self.making.lock().unwrap_or_else(PoisonError::into_inner);
        while !buf.is_empty() {
            let from = at.checked_sub(making.at).map(|from| from as usize);
            let Some(from) = from else {
                return Err(Error::unsupported(format!(
                    "{} is read from its beginning to its end, and byte {at} has passed",
                    self.name()
                )));
            };
            let there = making.bytes.get(from..).unwrap_or_default();
            let count = there.len().min(buf.len());
            let (now, later) = buf.split_at_mut(count);
            now.copy_from_slice(&there[..count]);
            buf = later;
            at += count as u64;
            if count == 0 {
                if making.ended {
                    return Err(Error::corrupt(format!("{} ends at byte {at}", self.name())));
                }
                let made = self.make_more(&mut making);
                made.map_err(|error| error.at(self.name()))?;
            }
        }
        Ok(())
    }

    fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    fn name(&self) -> String {
        format!("{PARITY}/{}", self.name)
    }

    fn other_node(&self) -> Option<&str> {
        Some(PARITY)
    }
}
