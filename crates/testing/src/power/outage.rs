//! What a disk may hold after a power cut: a pure model.
//!
//! How: a [`Disk`] walks along a [`Log`]. After any effect it knows what must have survived and
//! what is pending, cut into [`Part`]s; any subset of them may have survived. [`choice`] numbers
//! the subsets that are worth trying.
//!
//! Assumed, because POSIX and every journaling file system promise it
//! 1. A file that was synced keeps the bytes and the length that it had when the sync began; a
//!    directory that was synced keeps its names. Nothing that was durable is lost by the cut.
//! 2. A rename happens as a whole or not at all, and so do a creation and a removal.
//! 3. 512 bytes that begin at a multiple of 512 are written as a whole or not at all.
//!
//! Not assumed
//! 1. That unsynced bytes survive in the order of writing, or that a write survives as a whole:
//!    each sector, or each page of 4 KiB, survives or not by itself. What did not survive reads as
//!    what was there before, or as zeros.
//! 2. That the length goes with the bytes: a file may have its right length and hold zeros, or have
//!    lost its end.
//! 3. That syncing a file makes its name durable, or that syncing a directory makes its files
//!    durable.
//! 4. That directories keep the order of operations, in one of them or between several: any subset
//!    of the pending ones may have survived. (A prefix is what ext4 and xfs give; it is among the
//!    subsets.)
//! 5. That direct I/O is durable when it returns.
//!
//! Not here: damage to what was durable, and disks that report a sync and did not do it.

use super::image::{Content, Image, Node, Tree};
use super::journal::{Inode, Log, Names, Op};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Up to this many parts all subsets are tried: 2^12 images.
const ALL_UP_TO: usize = 12;
/// Seeded subsets where not all are tried.
const SEEDED: u64 = 1000;

/// The disk of a program at one moment.
pub struct Disk<'l> {
    log: &'l Log,
    at: usize,
    files: Vec<Pending<Arc<Content>>>,
    dirs: Vec<Pending<Names>>,
}

/// What survives for sure, and the entries of the log that may or may not.
struct Pending<T> {
    durable: T,
    entries: Vec<usize>,
}

/// A piece of what is pending that survives or not by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// Number of the effect in the log.
    pub entry: usize,
    /// What of it.
    pub what: What,
    /// The directory (even) or file (odd) that it belongs to.
    owner: usize,
}

/// What a [`Part`] is a piece of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum What {
    /// A change of names.
    Name,
    /// A change of a file's length.
    Length,
    /// Bytes of a write, as a range of what was written.
    Bytes {
        /// First byte.
        from: usize,
        /// Byte after the last.
        to: usize,
    },
}

impl<'l> Disk<'l> {
    /// The disk before the first effect.
    #[must_use]
    pub fn new(log: &'l Log) -> Self {
        let empty = Content::new(Vec::new());
        let mut files: Vec<_> = log.files.iter().cloned().map(Pending::new).collect();
        files.resize_with(log.all_files, || Pending::new(Arc::clone(&empty)));
        let mut dirs: Vec<_> = log.dirs.iter().cloned().map(Pending::new).collect();
        dirs.resize_with(log.all_dirs, || Pending::new(Names::new()));
        let at = 0;
        Disk {
            log,
            at,
            files,
            dirs,
        }
    }

    /// How many effects have happened.
    #[must_use]
    pub fn at(&self) -> usize {
        self.at
    }

    /// Continues to after the next effect; false at the end.
    pub fn advance(&mut self) -> bool {
        let Some(noted) = self.log.noted.get(self.at) else {
            return false;
        };
        match &noted.op {
            Op::Link { dir, .. } | Op::Unlink { dir, .. } | Op::Rename { dir, .. } => {
                self.dirs[*dir].entries.push(self.at);
            }
            Op::Write { file, .. } | Op::Length { file, .. } => {
                self.files[*file].entries.push(self.at);
            }
            Op::SyncFile { file, covers } => {
                let pending = &mut self.files[*file];
                let covered = pending.covered(*covers);
                if !covered.is_empty() {
                    let parts = parts_of(self.log, &covered, 0, None);
                    let parts = parts.iter().collect::<Vec<_>>();
                    pending.durable = survivor(self.log, &pending.durable, &parts);
                }
            }
            Op::SyncDir { dir, covers } => {
                let pending = &mut self.dirs[*dir];
                for entry in pending.covered(*covers) {
                    rename(&mut pending.durable, &self.log.noted[entry].op);
                }
            }
        }
        self.at += 1;
        true
    }

    /// What is pending, in the order in which it happened; writes cut at multiples of `grain_bytes`
    /// of their file.
    #[must_use]
    pub fn parts(&self, grain_bytes: Option<u64>) -> Vec<Part> {
        let mut parts = Vec::new();
        for (number, pending) in self.dirs.iter().enumerate() {
            parts.extend(parts_of(self.log, &pending.entries, 2 * number, None));
        }
        for (number, pending) in self.files.iter().enumerate() {
            let owner = 2 * number + 1;
            parts.extend(parts_of(self.log, &pending.entries, owner, grain_bytes));
        }
        parts.sort_by_key(|part| part.entry);
        parts
    }

    /// The image in which of `parts` those survived that are `kept`.
    #[must_use]
    pub fn image(&self, parts: &[Part], kept: &[bool]) -> Image {
        let mut by_owner: BTreeMap<usize, Vec<&Part>> = BTreeMap::new();
        for (part, _) in parts.iter().zip(kept).filter(|(_, kept)| **kept) {
            by_owner.entry(part.owner).or_default().push(part);
        }
        let tree = Arc::new(self.tree(0, &by_owner));
        Image { tree }
    }

    fn tree(&self, dir: usize, survived: &BTreeMap<usize, Vec<&Part>>) -> Tree {
        let mut names = self.dirs[dir].durable.clone();
        for part in survived.get(&(2 * dir)).into_iter().flatten() {
            rename(&mut names, &self.log.noted[part.entry].op);
        }
        let node = |inode| match inode {
            Inode::Dir(child) => Node::Dir(Arc::new(self.tree(child, survived))),
            Inode::File(file) => {
                let durable = &self.files[file].durable;
                Node::File(match survived.get(&(2 * file + 1)) {
                    Some(parts) => survivor(self.log, durable, parts),
                    None => Arc::clone(durable),
                })
            }
        };
        names
            .into_iter()
            .map(|(name, inode)| (name, node(inode)))
            .collect()
    }
}

impl<T> Pending<T> {
    fn new(durable: T) -> Self {
        let entries = Vec::new();
        Pending { durable, entries }
    }

    /// Takes out the entries before `covers`.
    fn covered(&mut self, covers: usize) -> Vec<usize> {
        let after = self.entries.partition_point(|&entry| entry < covers);
        self.entries.drain(..after).collect()
    }
}

fn parts_of(log: &Log, entries: &[usize], owner: usize, grain_bytes: Option<u64>) -> Vec<Part> {
    let mut parts = Vec::new();
    for &entry in entries {
        let mut part = |what| parts.push(Part { entry, what, owner });
        match &log.noted[entry].op {
            Op::Link { .. } | Op::Unlink { .. } | Op::Rename { .. } => part(What::Name),
            Op::Length { .. } => part(What::Length),
            Op::Write {
                at_bytes,
                bytes,
                longer,
                ..
            } => {
                if longer.is_some() {
                    part(What::Length);
                }
                let mut from = 0;
                while from < bytes.len() {
                    let to = match grain_bytes {
                        None => bytes.len(),
                        Some(grain) => {
                            let at = at_bytes + from as u64;
                            let next = (at / grain + 1) * grain;
                            bytes.len().min((next - at_bytes) as usize)
                        }
                    };
                    part(What::Bytes { from, to });
                    from = to;
                }
            }
            Op::SyncFile { .. } | Op::SyncDir { .. } => {}
        }
    }
    parts
}

/// The content of a file with these parts that survived, and what is durable.
fn survivor(log: &Log, durable: &Arc<Content>, parts: &[&Part]) -> Arc<Content> {
    // Bytes beyond the length wait there: a later length may bring them to light.
    let (mut bytes, mut len) = (durable.head.clone(), durable.len);
    for part in parts {
        match (&log.noted[part.entry].op, part.what) {
            (
                Op::Write {
                    at_bytes,
                    bytes: written,
                    ..
                },
                What::Bytes { from, to },
            ) => {
                let at = *at_bytes as usize;
                if bytes.len() < at + to {
                    bytes.resize(at + to, 0);
                }
                bytes[at + from..at + to].copy_from_slice(&written[from..to]);
            }
            (
                Op::Write {
                    longer: Some(end), ..
                },
                What::Length,
            ) => len = len.max(*end as usize),
            (
                Op::Length {
                    len_bytes, cuts, ..
                },
                _,
            ) => {
                let to = *len_bytes as usize;
                if *cuts {
                    bytes.truncate(to);
                    len = to;
                } else {
                    len = len.max(to);
                }
            }
            _ => {}
        }
    }
    Content::of_len(bytes, len)
}

/// Applies one change of names.
fn rename(names: &mut Names, op: &Op) {
    match op {
        Op::Link { name, inode, .. } => {
            names.insert(name.clone(), *inode);
        }
        Op::Unlink { name, .. } => {
            names.remove(name);
        }
        Op::Rename {
            from, to, inode, ..
        } => {
            if names.get(from) == Some(inode) {
                names.remove(from);
            }
            names.insert(to.clone(), *inode);
        }
        _ => {}
    }
}

/// How many subsets of this many parts are worth trying: all up to 4,096; beyond that every prefix,
/// every one and every two dropped, and 1,000 seeded ones.
#[must_use]
pub fn choices(parts: usize) -> u64 {
    let n = parts as u64;
    if parts <= ALL_UP_TO {
        1 << n
    } else {
        (n + 1) + n + n * (n - 1) / 2 + SEEDED
    }
}

/// Subset number `number` of them, `number` below [`choices`]; `seed` matters for the seeded ones.
#[must_use]
pub fn choice(parts: &[Part], number: u64, seed: u64) -> Vec<bool> {
    let n = parts.len() as u64;
    let keep = |test: &dyn Fn(u64) -> bool| (0..n).map(test).collect();
    if parts.len() <= ALL_UP_TO {
        return keep(&|part| number >> part & 1 == 1);
    }
    let mut number = number;
    if number <= n {
        return keep(&|part| part < number);
    }
    number -= n + 1;
    if number < n {
        return keep(&|part| part != number);
    }
    number -= n;
    if number < n * (n - 1) / 2 {
        // Row by row of the triangle.
        let mut first = 0;
        while number >= n - 1 - first {
            number -= n - 1 - first;
            first += 1;
        }
        let second = first + 1 + number;
        return keep(&|part| part != first && part != second);
    }
    number -= n * (n - 1) / 2;
    seeded(parts, mix(seed ^ mix(number)))
}

/// A subset with the look of a real crash: scattered; a prefix of each directory and file; names
/// and lengths without all bytes; bytes without all names.
fn seeded(parts: &[Part], seed: u64) -> Vec<bool> {
    let share = [32, 128, 224][(seed >> 8) as usize % 3];
    let coin = |salt: u64| mix(seed ^ mix(salt)) % 256 < share;
    let mut seen: BTreeMap<usize, u64> = BTreeMap::new();
    let mut total: BTreeMap<usize, u64> = BTreeMap::new();
    for part in parts {
        *total.entry(part.owner).or_default() += 1;
    }
    parts
        .iter()
        .enumerate()
        .map(|(number, part)| {
            let before = seen.entry(part.owner).or_default();
            *before += 1;
            let is_bytes = matches!(part.what, What::Bytes { .. });
            match seed % 4 {
                0 => coin(number as u64),
                1 => *before <= mix(seed ^ mix(!(part.owner as u64))) % (total[&part.owner] + 1),
                2 => !is_bytes || coin(number as u64),
                _ => is_bytes || coin(number as u64),
            }
        })
        .collect()
}

/// Spreads a number over all bits (splitmix64).
fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
