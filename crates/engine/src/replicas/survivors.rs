//! Reads what is left of a group's containers and parity files, and computes lost blocks from it.
//!
//! How: every parity file ends with a trailer that names the group, the length of each container,
//! and the checksums of all blocks that went into it. One trailer that can be read is enough to
//! know what belongs together. What a row needs is read ahead from all nodes at the same time, and
//! verified block by block. A block that is missing or damaged counts as lost, whichever file it is
//! in; if there are other copies of that file, they are tried first.
//!
//! Invariants:
//! 1. A block that goes into another one was verified by a checksum in a trailer. The only
//!    exception is parity without any copy left anywhere: then nothing else knows the data.
//! 2. A trailer that differs from the commit record counts as damaged; no work and no memory grows
//!    with a length that only a trailer claims.
//! 3. Fewer good blocks than the code needs are an error that names the files; nothing is guessed,
//!    and nothing is filled with zeros.
//!
//! Faults survived: files that are missing, cut, damaged or cannot be read, as many in each
//! codeword as there are parities. Not here: containers and parity files as a whole (`rebuilt.rs`).

use orcheck_format::disk::{CommitRecord, ContainerRef, FileName, PARITY_END_BYTES, ParityTrailer};
use orcheck_format::sabotage::{Switch, off};
use orcheck_format::{Error, NodeId, Result, crc64};
use orcheck_io::disk::{Dir, File};
use orcheck_io::machine::thread::spawn_scoped;
use orcheck_io::memory::zeroed;
use orcheck_placement::parity::Code;
use std::collections::BTreeMap;
use std::sync::Arc;

/// What is left of the files of one writer of a group, for one checkpoint.
pub(crate) struct Survivors {
    /// What all trailers agree on; the checksums are those of one of them.
    pub(crate) of: ParityTrailer,
    code: Code,
    /// By member: copies of its container that are as long as it was.
    containers: Vec<Vec<Box<dyn File>>>,
    /// By member: copies of its parity file.
    parity: Vec<Vec<(Box<dyn File>, ParityTrailer)>>,
    /// The name of any of them.
    name: FileName,
}

/// Which blocks of a member's files: those of its container, by their position in the row, or those
/// of its parity file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Of {
    Container,
    Parity,
}

/// Blocks of one row that were read ahead.
#[derive(Default)]
pub(crate) struct RowRead {
    row: Option<u64>,
    /// By member and position.
    blocks: BTreeMap<(Of, u32, u32), Vec<u8>>,
}

/// Reads the trailer of a parity file.
///
/// # Errors
/// Corrupt if it has none, or that of another file; the error of the file.
pub(crate) fn read_trailer(file: &dyn File, name: &FileName) -> Result<ParityTrailer> {
    let file_bytes = file.len_bytes()?;
    let mut end = [0; PARITY_END_BYTES];
    let Some(end_at) = file_bytes.checked_sub(PARITY_END_BYTES as u64) else {
        return Err(
            Error::corrupt(format!("{file_bytes} bytes are no parity file")).at(file.name()),
        );
    };
    file.read_at(&mut end, end_at)?;
    let (at, len) = ParityTrailer::find(&end, file_bytes).map_err(|error| error.at(file.name()))?;
    let mut bytes = zeroed(len)?;
    file.read_at(&mut bytes, at)?;
    let trailer = ParityTrailer::decode(&bytes, at).map_err(|error| error.at(file.name()))?;
    let node = trailer.group.nodes.get(trailer.member as usize).copied();
    let expected = FileName::Parity {
        step: trailer.step,
        epoch: trailer.epoch.counter,
        run: trailer.epoch.run.short_bytes(),
        node: node.unwrap_or_default(),
        writer: trailer.writer,
    };
    if *name != expected && !off(Switch::ParityName) {
        return Err(Error::corrupt(format!(
            "{}: its trailer is that of {expected}",
            file.name()
        )));
    }
    Ok(trailer)
}

/// Checks that a parity file protects what the commit record of its checkpoint names.
///
/// # Errors
/// Corrupt if it is of another group or of other containers.
pub(crate) fn check_recorded(
    trailer: &ParityTrailer,
    commit: &CommitRecord,
    file: &str,
) -> Result<()> {
    let of_writer = |one: &&ContainerRef| one.writer == trailer.writer;
    let recorded = |node: &NodeId| {
        let mut containers = commit.containers.iter().filter(of_writer);
        containers
            .find(|one| one.node == *node)
            .map_or(0, |one| one.len_bytes)
    };
    let group = trailer
        .group
        .nodes
        .first()
        .and_then(|&node| commit.group_of(node));
    let lens: Vec<u64> = trailer.group.nodes.iter().map(recorded).collect();
    if (group != Some(&trailer.group) || lens != trailer.lens_bytes) && !off(Switch::ParityRecord) {
        return Err(Error::corrupt(format!(
            "{file}: expected parity of containers of {lens:?} bytes in one of the record's groups, found {:?} bytes of nodes {:?}",
            trailer.lens_bytes, trailer.group.nodes
        )));
    }
    Ok(())
}

/// A parity file in a directory, and its trailer, if it is of the checkpoint and writer of `name`.
fn trailer_of(
    dir: &dyn Dir,
    file: &str,
    (name, commit): (&FileName, Option<&CommitRecord>),
) -> Result<Option<(Box<dyn File>, ParityTrailer)>> {
    let parsed = match FileName::parse(file) {
        Some(parsed @ FileName::Parity { node, .. })
            if name.parity_on(node).as_ref() == Some(&parsed) =>
        {
            parsed
        }
        _ => return Ok(None),
    };
    let file = dir.open(file)?;
    let trailer = read_trailer(file.as_ref(), &parsed)?;
    let is_of_it =
        |commit: &&CommitRecord| (commit.step, commit.epoch) == (trailer.step, trailer.epoch);
    if let Some(commit) = commit.filter(is_of_it) {
        check_recorded(&trailer, commit, &file.name())?;
    }
    Ok(Some((file, trailer)))
}

/// Whether two trailers describe the same containers in the same group.
fn agree(a: &ParityTrailer, b: &ParityTrailer) -> bool {
    (&a.group, &a.lens_bytes) == (&b.group, &b.lens_bytes)
}

/// The trailer that most others agree with: one that is wrong does not outvote those that are
/// right.
fn most_common(found: &[(Box<dyn File>, ParityTrailer)], first: &ParityTrailer) -> ParityTrailer {
    let votes = |one: &ParityTrailer| found.iter().filter(|(_, other)| agree(one, other)).count();
    let trailers = found.iter().map(|(_, trailer)| trailer);
    let best = trailers.rev().max_by_key(|one| votes(one));
    best.unwrap_or(first).clone()
}

impl Survivors {
    /// What these directories have of the group to which a container or parity file belongs; `None`
    /// if none of them has parity of it. Of the checkpoint of `commit`, only parity of what that
    /// names counts.
    ///
    /// # Errors
    /// Corrupt if there are parity files of it, and none can be read.
    pub(crate) fn find(
        dirs: &[Arc<dyn Dir>],
        name: &FileName,
        commit: Option<&CommitRecord>,
    ) -> Result<Option<Self>> {
        let (FileName::Container { node: of, .. } | FileName::Parity { node: of, .. }) = name
        else {
            return Ok(None);
        };
        let mut found: Vec<(Box<dyn File>, ParityTrailer)> = Vec::new();
        let mut first_error = None;
        for dir in dirs {
            let entries = match dir.list() {
                Ok(entries) => entries,
                Err(error) => {
                    first_error = first_error.or(Some(error));
                    continue;
                }
            };
            for entry in entries {
                match trailer_of(dir.as_ref(), &entry.name, (name, commit)) {
                    // Breaks if: any group counts; a container would be looked for in the wrong
                    // one.
                    Ok(Some((_, trailer))) if trailer.group.position(*of).is_none() => {}
                    Ok(one) => found.extend(one),
                    Err(error) => first_error = first_error.or(Some(error)),
                }
            }
        }
        let Some((_, first)) = found.first() else {
            return first_error.map_or(Ok(None), Err);
        };
        let of = most_common(&found, first);
        let (group, members) = (of.group.clone(), of.group.members());
        let mut parity: Vec<Vec<_>> = (0..members).map(|_| Vec::new()).collect();
        for (file, trailer) in found {
            if agree(&trailer, &of)
                && let Some(copies) = parity.get_mut(trailer.member as usize)
            {
                copies.push((file, trailer));
            }
        }
        let container = |(&node, &len_bytes): (_, &u64)| -> Vec<Box<dyn File>> {
            let Some(file) = name.container_on(node).filter(|_| len_bytes > 0) else {
                return Vec::new();
            };
            let file = file.to_string();
            let opened = dirs.iter().filter_map(|dir| dir.open(&file).ok());
            opened
                .filter(|file| file.len_bytes().is_ok_and(|len| len == len_bytes))
                .collect()
        };
        Ok(Some(Self {
            containers: group
                .nodes
                .iter()
                .zip(&of.lens_bytes)
                .map(container)
                .collect(),
            code: Code::new(group.data(), group.parity.into())?,
            parity,
            name: name.clone(),
            of,
        }))
    }

    /// Length of a member's container.
    pub(crate) fn len_bytes(&self, member: u32) -> u64 {
        let len = self.of.lens_bytes.get(member as usize);
        len.copied().unwrap_or(0)
    }

    /// Length of the longest container of all.
    fn longest(&self) -> u64 {
        self.of.lens_bytes.iter().copied().max().unwrap_or(0)
    }

    /// Whether there are enough files to compute the container of a member, or, with `parity`, its
    /// parity file.
    ///
    /// # Errors
    /// NotFound, naming the files that are missing.
    pub(crate) fn enough_for(&self, member: u32, parity: bool) -> Result<()> {
        let group = &self.of.group;
        let (members, parities) = (group.members(), u32::from(group.parity));
        let lacks = |other: u32| self.len_bytes(other) > 0 && self.files(other).is_empty();
        let is_short = |codeword: u32| {
            let data = (0..group.data()).map(|data| group.owner(codeword, data));
            let holders = (0..parities).map(|one| group.holder(codeword, one));
            let concerns = match parity {
                true => holders.clone().any(|holder| holder == member),
                false => data.clone().any(|owner| owner == member),
            };
            let lost_data = data.filter(|&one| lacks(one));
            let lost_parity =
                holders.filter(|&one| self.parity_files(one).is_empty() || parity && one == member);
            concerns && lost_data.count() + lost_parity.count() > parities as usize
        };
        if !(0..members).any(is_short) {
            return Ok(());
        }
        let names = (group.nodes.iter().zip(0..)).flat_map(|(&node, other)| {
            let container = (lacks(other))
                .then(|| self.name.container_on(node))
                .flatten();
            let none = self.parity_files(other).is_empty();
            let parity = none.then(|| self.name.parity_on(node)).flatten();
            [container, parity].into_iter().flatten()
        });
        let names: Vec<String> = names.map(|name| name.to_string()).collect();
        Err(Error::not_found(format!(
            "{} of {members} nodes are needed to compute it from parity; missing or unreadable: {}",
            group.data(),
            names.join(", ")
        ))
        .next("bring back the directory of one of these nodes, or use an older step"))
    }

    fn files(&self, member: u32) -> &[Box<dyn File>] {
        self.containers
            .get(member as usize)
            .map_or(&[], Vec::as_slice)
    }

    fn parity_files(&self, member: u32) -> &[(Box<dyn File>, ParityTrailer)] {
        self.parity.get(member as usize).map_or(&[], Vec::as_slice)
    }

    /// Length of data `data` of a row in its container.
    pub(crate) fn data_bytes(&self, member: u32, row: u64, data: u32) -> u64 {
        let unit = u64::from(self.of.group.unit_bytes);
        let at = row * self.of.group.row_bytes() + u64::from(data) * unit;
        self.len_bytes(member).saturating_sub(at).min(unit)
    }

    /// A block of a container that can be read and is what it was; without zeros behind it.
    pub(crate) fn data(
        &self,
        read: &mut RowRead,
        row: u64,
        (codeword, data): (u32, u32),
    ) -> Option<Vec<u8>> {
        let group = &self.of.group;
        let member = group.owner(codeword, data);
        let len = self.data_bytes(member, row, data) as usize;
        if len == 0 {
            return Some(Vec::new());
        }
        let crcs = self.crcs_of_data(row, (codeword, data));
        let good = |block: &Vec<u8>| {
            let crc = crc64(block);
            crcs.contains(&crc) || crcs.is_empty() || off(Switch::ParityData)
        };
        let ahead = read.take(row, (Of::Container, member, data));
        let ahead = ahead.filter(|block| block.len() == len);
        ahead.filter(good).or_else(|| {
            let at = row * group.row_bytes() + u64::from(data) * u64::from(group.unit_bytes);
            let mut copies = self.files(member).iter();
            copies.find_map(|file| part_of(file.as_ref(), at, len as u64).filter(good))
        })
    }

    /// The same, if a trailer says what it was.
    pub(crate) fn known_data(
        &self,
        read: &mut RowRead,
        row: u64,
        which: (u32, u32),
    ) -> Option<Vec<u8>> {
        let known = !self.crcs_of_data(row, which).is_empty();
        known.then(|| self.data(read, row, which)).flatten()
    }

    /// Compares a container with what the parity of it says, block by block.
    ///
    /// # Errors
    /// Corrupt, naming the first bytes that differ.
    pub(crate) fn compare(&self, file: &dyn File, member: u32) -> Result<()> {
        let group = &self.of.group;
        let (len_bytes, found) = (self.len_bytes(member), file.len_bytes()?);
        if found != len_bytes {
            return Err(Error::corrupt(format!(
                "{}: parity protects {len_bytes} bytes of it, and it has {found}",
                file.name()
            )));
        }
        for row in 0..group.rows(len_bytes) {
            for data in 0..group.data() {
                let len = self.data_bytes(member, row, data);
                let at = row * group.row_bytes() + u64::from(data) * u64::from(group.unit_bytes);
                let crcs = self.crcs_of_data(row, (group.codeword_of(member, data), data));
                if len == 0 || crcs.is_empty() {
                    continue;
                }
                let mut block = zeroed(len as usize)?;
                file.read_at(&mut block, at)?;
                if !crcs.contains(&crc64(&block)) {
                    return Err(Error::corrupt(format!(
                        "{}: bytes {at} to {} are not those that parity protects",
                        file.name(),
                        at + len
                    )));
                }
            }
        }
        Ok(())
    }

    /// A parity block that can be read and is what it was.
    fn parity(
        &self,
        read: &mut RowRead,
        row: u64,
        (codeword, parity): (u32, u32),
    ) -> Option<Vec<u8>> {
        let group = &self.of.group;
        let holder = group.holder(codeword, parity);
        let mut ahead = read.take(row, (Of::Parity, holder, parity));
        let mut copies = self.parity_files(holder).iter();
        copies.find_map(|(file, trailer)| {
            let len = group.block_bytes(row, trailer.longest());
            if len == 0 {
                return Some(Vec::new());
            }
            let crc = trailer.crc_of_parity(row, parity);
            let good = |block: &Vec<u8>| crc == Some(crc64(block)) || off(Switch::ParityBlock);
            ahead.take().filter(good).or_else(|| {
                let at = group.block_at(row, 0) + u64::from(parity) * len;
                part_of(file.as_ref(), at, len).filter(good)
            })
        })
    }

    /// One block of a codeword, computed from the others: data first, then parity; with the zeros
    /// that count behind it. Where its own checksum is known, other parity is tried if it differs.
    ///
    /// # Errors
    /// Corrupt if too few are left.
    pub(crate) fn compute(
        &self,
        read: &mut RowRead,
        row: u64,
        (codeword, wanted): (u32, u32),
    ) -> Result<Vec<u8>> {
        let group = &self.of.group;
        let (data, parities) = (group.data(), u32::from(group.parity));
        let len = group.block_bytes(row, self.longest()) as usize;
        let padded = |mut block: Vec<u8>| {
            block.resize(len, 0);
            block
        };
        let known: Vec<Option<Vec<u8>>> = (0..data)
            .map(|one| match one == wanted {
                true => None,
                false => self.data(read, row, (codeword, one)).map(padded),
            })
            .collect();
        let mut failed = None;
        for first in 0..parities {
            let mut blocks = known.clone();
            blocks.resize(group.members() as usize, None);
            for parity in (0..parities).map(|nth| (first + nth) % parities) {
                if blocks.iter().flatten().count() >= data as usize || data + parity == wanted {
                    continue;
                }
                let block = self.parity(read, row, (codeword, parity)).map(padded);
                blocks[(data + parity) as usize] = block;
            }
            let there: Vec<Option<&[u8]>> = blocks.iter().map(Option::as_deref).collect();
            match self.code.recover(&there, wanted as usize) {
                Ok(block) if self.is_it(row, (codeword, wanted), &block) => return Ok(block),
                Ok(_) => {
                    let error = Error::corrupt("what was computed differs from its checksum");
                    failed = failed.or(Some((there_of(&there), error)));
                }
                Err(error) => {
                    failed = failed.or(Some((there_of(&there), error)));
                    break;
                }
            }
        }
        let (there, error) =
            failed.unwrap_or_else(|| (Vec::new(), Error::internal("a codeword without parity")));
        let lost: Vec<String> = (0..group.members())
            .filter(|one| !there.contains(one) && *one != wanted)
            .filter_map(|one| self.name_of(codeword, one))
            .collect();
        Err(error.at(format!(
            "row {row} of the parity group: the blocks of {} are missing or damaged",
            lost.join(", ")
        )))
    }

    /// Whether a data block is the one that a trailer describes, or none describes it.
    fn is_it(&self, row: u64, (codeword, data): (u32, u32), block: &[u8]) -> bool {
        if data >= self.of.group.data() || off(Switch::ParityComputed) {
            return true;
        }
        let len = self.data_bytes(self.of.group.owner(codeword, data), row, data) as usize;
        let crc = block.get(..len).map(crc64);
        let crcs = self.crcs_of_data(row, (codeword, data));
        crcs.is_empty() || crc.is_some_and(|crc| crcs.contains(&crc))
    }

    /// What the trailers say of a data block.
    fn crcs_of_data(&self, row: u64, (codeword, data): (u32, u32)) -> Vec<u64> {
        let group = &self.of.group;
        let parities = 0..u32::from(group.parity);
        let of_parity = |parity| {
            let trailers = self.parity_files(group.holder(codeword, parity)).iter();
            trailers.filter_map(move |(_, trailer)| trailer.crc_of_data(row, parity, data))
        };
        parities.flat_map(of_parity).collect()
    }

    /// The name of the file that has a block of a codeword.
    fn name_of(&self, codeword: u32, block: u32) -> Option<String> {
        let group = &self.of.group;
        let node = |member: u32| group.nodes.get(member as usize).copied();
        let name = match block.checked_sub(group.data()) {
            None => self.name.container_on(node(group.owner(codeword, block))?),
            Some(parity) => self.name.parity_on(node(group.holder(codeword, parity))?),
        };
        Some(name?.to_string())
    }

    /// Reads ahead what the container of `member` needs of a row.
    pub(crate) fn read_for_container(&self, read: &mut RowRead, row: u64, member: u32) {
        let group = &self.of.group;
        let codewords: Vec<u32> = (0..group.data())
            .map(|data| group.codeword_of(member, data))
            .collect();
        let others = (0..group.members()).filter(|&other| other != member);
        let blocks = others.flat_map(|other| (0..group.data()).map(move |data| (other, data)));
        let data =
            blocks.filter(|&(other, data)| codewords.contains(&group.codeword_of(other, data)));
        let data = data.map(|(other, data)| (Of::Container, other, data));
        let parity = codewords
            .iter()
            .map(|&codeword| (Of::Parity, group.holder(codeword, 0), 0));
        self.read_ahead(read, row, data.chain(parity).collect());
    }

    /// Reads ahead what the parity file of `member` needs of a row.
    pub(crate) fn read_for_parity(&self, read: &mut RowRead, row: u64, member: u32) {
        let group = &self.of.group;
        let others = (0..group.members()).filter(|&other| other != member);
        let data = others.flat_map(|other| {
            let picks = group.picks(other, member).into_iter();
            picks.map(move |pick| (Of::Container, other, pick.data))
        });
        self.read_ahead(read, row, data.collect());
    }

    /// Reads these blocks of a row, from all nodes at the same time. What cannot be read now is
    /// tried again when it is needed.
    fn read_ahead(&self, read: &mut RowRead, row: u64, blocks: Vec<(Of, u32, u32)>) {
        if read.row == Some(row) {
            return;
        }
        *read = RowRead {
            row: Some(row),
            blocks: BTreeMap::new(),
        };
        let mut of_file: BTreeMap<(Of, u32), Vec<u32>> = BTreeMap::new();
        for (of, member, position) in blocks {
            of_file.entry((of, member)).or_default().push(position);
        }
        let found = std::thread::scope(|scope| {
            let begun: Vec<_> = (of_file.into_iter())
                .filter_map(|((of, member), positions)| {
                    let work = move || self.blocks_of_file(row, (of, member), &positions);
                    spawn_scoped(scope, "orcheck-parity", work).ok()
                })
                .collect();
            let ended = begun.into_iter().filter_map(|one| one.join().ok());
            ended.flatten().collect::<Vec<_>>()
        });
        read.blocks = found.into_iter().collect();
    }

    /// Blocks of the first copy of a file, as far as they can be read; neighbours are read
    /// together.
    fn blocks_of_file(
        &self,
        row: u64,
        (of, member): (Of, u32),
        positions: &[u32],
    ) -> Vec<((Of, u32, u32), Vec<u8>)> {
        let group = &self.of.group;
        let (file, begin, unit) = match of {
            Of::Container => {
                let file = self.files(member).first();
                let begin = row * group.row_bytes();
                (file, begin, u64::from(group.unit_bytes))
            }
            Of::Parity => {
                let first = self.parity_files(member).first();
                let len = first.map_or(0, |(_, trailer)| group.block_bytes(row, trailer.longest()));
                (first.map(|(file, _)| file), group.block_at(row, 0), len)
            }
        };
        let Some(file) = file else {
            return Vec::new();
        };
        let len_of = |position: u32| match of {
            Of::Container => self.data_bytes(member, row, position),
            Of::Parity => unit,
        };
        let mut found = Vec::new();
        for run in positions.chunk_by(|a, b| a + 1 == *b) {
            let len: u64 = run.iter().map(|&position| len_of(position)).sum();
            let Some(&first) = run.first().filter(|_| len > 0) else {
                continue;
            };
            let Some(bytes) = part_of(file.as_ref(), begin + u64::from(first) * unit, len) else {
                continue;
            };
            let mut rest = &bytes[..];
            for &position in run {
                let (block, later) = rest.split_at(len_of(position) as usize);
                rest = later;
                found.push(((of, member, position), block.to_vec()));
            }
        }
        found
    }
}

/// The positions of the blocks that are there.
fn there_of(blocks: &[Option<&[u8]>]) -> Vec<u32> {
    let numbered = (0..).zip(blocks);
    numbered
        .filter_map(|(at, block)| block.map(|_| at))
        .collect()
}

impl RowRead {
    /// A block that was read ahead.
    fn take(&mut self, row: u64, which: (Of, u32, u32)) -> Option<Vec<u8>> {
        let block = self.blocks.get(&which).filter(|_| self.row == Some(row));
        block.cloned()
    }
}

/// Bytes of a file, unless they cannot be read: they count as lost then.
fn part_of(file: &dyn File, at: u64, len: u64) -> Option<Vec<u8>> {
    let mut bytes = zeroed(usize::try_from(len).ok()?).ok()?;
    file.read_at(&mut bytes, at).ok().map(|()| bytes)
}

/// The trailer of a parity file.
///
/// # Errors
/// NotFound if the file is not there; Corrupt if it is none.
pub(crate) fn parity_trailer(dir: &dyn Dir, name: &str) -> Result<ParityTrailer> {
    let parsed = FileName::parse(name)
        .ok_or_else(|| Error::invalid(format!("{name} is no file of a job")))?;
    read_trailer(dir.open(name)?.as_ref(), &parsed)
}

/// Compares a container in this directory with what parity in these places says of it.
///
/// # Errors
/// Corrupt, naming the first bytes that differ; the error of the file.
pub(crate) fn compare_with_parity(
    dir: &dyn Dir,
    name: &str,
    (places, commit): (&[Arc<dyn Dir>], &CommitRecord),
) -> Result<()> {
    let parsed = FileName::parse(name);
    let Some(parsed @ FileName::Container { node, .. }) = parsed else {
        return Ok(());
    };
    // Without parity there is nothing to compare it with.
    let Ok(Some(left)) = Survivors::find(places, &parsed, Some(commit)) else {
        return Ok(());
    };
    match left.of.group.position(node) {
        Some(member) => left.compare(dir.open(name)?.as_ref(), member),
        None => Ok(()),
    }
}

/// Verifies a parity file: its trailer, which it returns, and every block.
///
/// # Errors
/// NotFound if it is not there; Corrupt, naming the first block that is damaged.
pub fn verify_parity(dir: &dyn Dir, name: &str) -> Result<ParityTrailer> {
    let trailer = parity_trailer(dir, name)?;
    let file = dir.open(name)?;
    let (group, longest) = (&trailer.group, trailer.longest());
    for row in 0..group.rows(longest) {
        let len = group.block_bytes(row, longest);
        for parity in 0..u32::from(group.parity) {
            let at = group.block_at(row, 0) + u64::from(parity) * len;
            let mut block = zeroed(len as usize)?;
            file.read_at(&mut block, at)?;
            let (expected, found) = (trailer.crc_of_parity(row, parity), crc64(&block));
            if expected != Some(found) && !off(Switch::ParityBlock) {
                return Err(Error::corrupt(format!(
                    "{}: bytes {at} to {}: expected CRC-64 {:016x}, found {found:016x}",
                    file.name(),
                    at + len,
                    expected.unwrap_or(0)
                )));
            }
        }
    }
    Ok(trailer)
}
