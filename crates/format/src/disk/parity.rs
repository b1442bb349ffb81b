//! Describes parity: which nodes form a group, where each block of a container is protected, and
//! what ends a parity file.
//!
//! How: the containers of one writer of each node of a group are cut into blocks of `unit_bytes`.
//! Of G nodes with m parities, k = G − m blocks of a container make a **row**. Each row has G
//! **codewords**; codeword t has one block of each of k members, and m parity blocks on the others:
//!
//! ```text
//! parity j of codeword t lies on member t + j            (all members modulo G)
//! data i of codeword t is block row·k + i of the container of member t + m + i
//! ```
//!
//! So every member holds the same share of parity, and none of its own container. A parity file has
//! the blocks of its member, row by row, and for each row those with j = 0 … m − 1. A container
//! counts as if zeros followed it. The last row of a file is as long as the longest container of
//! the other members needs, rounded up to 4 KiB; behind it, its parity is zero.
//!
//! Invariants:
//! 1. A trailer that decodes fits its group, its lengths and the length of its file exactly.
//! 2. The members of a group are different nodes; at least one more than parities.
//!
//! Faults survived: a torn, cut or flipped trailer is Corrupt. Not here: the arithmetic of the code
//! (`orcheck-placement`), reading and writing parity files (the engine).

use crate::coding::{Reader, Writer};
use crate::disk::container::BLOCK_BYTES;
use crate::disk::envelope::{KIND_PARITY, unwrap, wrap};
use crate::disk::manifest::MAX_METADATA_BYTES;
use crate::disk::names::FileName;
use crate::error::{Error, Result};
use crate::ids::{Epoch, JobName};
use crate::numbers::{NodeId, Step, WriterId};
use std::collections::BTreeSet;

/// Most members of a group: GF(2^8) has no more different shards.
pub const MAX_MEMBERS: usize = 255;
/// Largest block.
const MAX_UNIT_BYTES: u32 = 64 << 20;
/// Most bytes of checksums in a trailer: its envelope has little more.
pub const MAX_PARITY_CRCS_BYTES: u64 = (MAX_METADATA_BYTES - (64 << 10)) as u64;
/// What follows the trailer: where it begins.
const END_MAGIC: [u8; 8] = *b"ORCKpar\n";
/// Length of that end.
pub const PARITY_END_BYTES: usize = 16;

/// Nodes that protect each other by parity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParityGroup {
    /// Its members, by position.
    pub nodes: Vec<NodeId>,
    /// Parity blocks of each codeword: the number of members that may be lost.
    pub parity: u8,
    /// Length of a block, in bytes.
    pub unit_bytes: u32,
}

/// A block of a member's container that goes into a parity block of another member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pick {
    /// Position of the block in its row, and of the data in its codeword.
    pub data: u32,
    /// Which parity of the codeword the other member holds.
    pub parity: u32,
}

impl ParityGroup {
    /// Number of members.
    #[must_use]
    pub fn members(&self) -> u32 {
        self.nodes.len() as u32
    }

    /// Number of blocks of a container in a row, and of data in a codeword.
    #[must_use]
    pub fn data(&self) -> u32 {
        self.members().saturating_sub(u32::from(self.parity))
    }

    /// The position of a node.
    #[must_use]
    pub fn position(&self, node: NodeId) -> Option<u32> {
        let at = self.nodes.iter().position(|&member| member == node);
        at.map(|at| at as u32)
    }

    /// Bytes of a container in a row.
    #[must_use]
    pub fn row_bytes(&self) -> u64 {
        u64::from(self.data()) * u64::from(self.unit_bytes)
    }

    /// Number of rows, if the longest container has `longest` bytes.
    #[must_use]
    pub fn rows(&self, longest: u64) -> u64 {
        longest.div_ceil(self.row_bytes().max(1))
    }

    /// Length of the parity blocks of a row.
    #[must_use]
    pub fn block_bytes(&self, row: u64, longest: u64) -> u64 {
        let left = longest.saturating_sub(row.saturating_mul(self.row_bytes()));
        let unit = u64::from(self.unit_bytes);
        left.min(unit).next_multiple_of(BLOCK_BYTES as u64)
    }

    /// Length of all parity blocks of a file.
    #[must_use]
    pub fn blocks_bytes(&self, longest: u64) -> u64 {
        let Some(last) = self.rows(longest).checked_sub(1) else {
            return 0;
        };
        self.block_at(last, 0)
            .saturating_add(u64::from(self.parity) * self.block_bytes(last, longest))
    }

    /// Number of checksums in a trailer; `None` if that is no number.
    #[must_use]
    pub fn crcs(&self, longest: u64) -> Option<u64> {
        let blocks = self.rows(longest).checked_mul(self.parity.into())?;
        blocks.checked_mul(u64::from(self.data()) + 1)
    }

    /// Where a parity block begins in its file, unless it is in the last row and `parity` is not 0.
    #[must_use]
    pub fn block_at(&self, row: u64, parity: u32) -> u64 {
        let blocks = row.saturating_mul(u64::from(self.parity)) + u64::from(parity);
        blocks.saturating_mul(u64::from(self.unit_bytes))
    }

    /// The codeword whose data `data` is a block of this member.
    #[must_use]
    pub fn codeword_of(&self, member: u32, data: u32) -> u32 {
        let members = self.members();
        (member + 2 * members - u32::from(self.parity) - data % members) % members
    }

    /// The member that has data `data` of a codeword.
    #[must_use]
    pub fn owner(&self, codeword: u32, data: u32) -> u32 {
        (codeword + u32::from(self.parity) + data) % self.members()
    }

    /// The member that holds parity `parity` of a codeword.
    #[must_use]
    pub fn holder(&self, codeword: u32, parity: u32) -> u32 {
        (codeword + parity) % self.members()
    }

    /// The blocks of each row that `member` sends to `holder`, ascending.
    #[must_use]
    pub fn picks(&self, member: u32, holder: u32) -> Vec<Pick> {
        let blocks = (0..self.data())
            .flat_map(|data| (0..u32::from(self.parity)).map(move |parity| Pick { data, parity }));
        let goes = |pick: &Pick| {
            let codeword = self.codeword_of(member, pick.data);
            member != holder && self.holder(codeword, pick.parity) == holder
        };
        blocks.filter(goes).collect()
    }

    /// Checks a group that was read, in a job of this many nodes if known.
    pub(crate) fn check(&self, nodes: Option<usize>) -> Result<()> {
        let different: BTreeSet<NodeId> = self.nodes.iter().copied().collect();
        let there = |node: &NodeId| nodes.is_none_or(|nodes| node.index() < nodes);
        let whole = self.unit_bytes.is_multiple_of(BLOCK_BYTES as u32);
        if self.parity == 0
            || self.nodes.len() <= usize::from(self.parity)
            || self.nodes.len() > MAX_MEMBERS
            || different.len() != self.nodes.len()
            || !self.nodes.iter().all(there)
            || !whole
            || !(BLOCK_BYTES as u32..=MAX_UNIT_BYTES).contains(&self.unit_bytes)
        {
            return Err(Error::corrupt(format!(
                "expected a group of different nodes, more than parities, with blocks of whole 4 KiB, found nodes {:?}, {} parities and blocks of {} bytes",
                self.nodes, self.parity, self.unit_bytes
            )));
        }
        Ok(())
    }

    pub(crate) fn write(&self, w: &mut Writer) {
        w.array(3).uint(self.parity).uint(self.unit_bytes);
        w.array(self.nodes.len());
        for node in &self.nodes {
            w.uint(*node);
        }
    }

    pub(crate) fn read(r: &mut Reader<'_>) -> Result<Self> {
        r.tuple(3)?;
        Ok(Self {
            parity: r.uint()?,
            unit_bytes: r.uint()?,
            nodes: r.items(MAX_MEMBERS, Reader::uint)?,
        })
    }
}

/// What ends a parity file: what its blocks protect, and their checksums.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParityTrailer {
    /// The job.
    pub job: JobName,
    /// The checkpoint's step.
    pub step: Step,
    /// The epoch that took it.
    pub epoch: Epoch,
    /// The writer whose containers are protected.
    pub writer: WriterId,
    /// The group.
    pub group: ParityGroup,
    /// Position of the member whose file this is.
    pub member: u32,
    /// Length of each member's container; 0 where there is none.
    pub lens_bytes: Vec<u64>,
    /// CRC-64/NVME: for each parity block of the file, its own, and those of the data blocks that
    /// it protects, as long as they are in their containers.
    pub crcs: Vec<u64>,
}

impl ParityTrailer {
    /// Length of the longest container of another member.
    #[must_use]
    pub fn longest(&self) -> u64 {
        let lens = (0..).zip(&self.lens_bytes);
        let others = lens.filter(|(member, _)| *member != self.member);
        others.map(|(_, len)| *len).max().unwrap_or(0)
    }

    /// The CRC of a parity block.
    #[must_use]
    pub fn crc_of_parity(&self, row: u64, parity: u32) -> Option<u64> {
        self.crc_at(row, parity, 0)
    }

    /// The CRC of a data block that goes into a parity block.
    #[must_use]
    pub fn crc_of_data(&self, row: u64, parity: u32, data: u32) -> Option<u64> {
        self.crc_at(row, parity, u64::from(data) + 1)
    }

    fn crc_at(&self, row: u64, parity: u32, nth: u64) -> Option<u64> {
        let block = row.checked_mul(u64::from(self.group.parity))? + u64::from(parity);
        let at = block.checked_mul(u64::from(self.group.data()) + 1)? + nth;
        self.crcs.get(usize::try_from(at).ok()?).copied()
    }

    /// Number of checksums that a file has.
    fn crcs_expected(&self) -> Option<u64> {
        self.group.crcs(self.longest())
    }

    /// The bytes that follow the blocks.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::new();
        w.map(8);
        w.uint(1u8).text(self.job.as_str());
        w.uint(2u8).uint(self.step);
        w.uint(3u8).epoch(&self.epoch);
        w.uint(4u8).uint(self.writer);
        w.uint(5u8);
        self.group.write(&mut w);
        w.uint(6u8).uint(self.member);
        w.uint(7u8).uints(&self.lens_bytes);
        let crcs: Vec<u8> = (self.crcs.iter())
            .flat_map(|crc| crc.to_le_bytes())
            .collect();
        w.uint(8u8).bytes(&crcs);
        let mut bytes = wrap(KIND_PARITY, 0, &w.finish());
        let len_bytes = bytes.len() as u64;
        bytes.extend_from_slice(&END_MAGIC);
        bytes.extend_from_slice(&len_bytes.to_le_bytes());
        bytes
    }

    /// The position of the member whose file has this name.
    #[must_use]
    pub fn member_named(&self, name: &str) -> Option<u32> {
        match FileName::parse(name)? {
            FileName::Parity { node, .. } => self.group.position(node),
            _ => None,
        }
    }

    /// Length of the whole file.
    #[must_use]
    pub fn file_bytes(&self) -> u64 {
        self.group.blocks_bytes(self.longest()) + self.encode().len() as u64
    }

    /// The trailer of another member's file with the same containers, without its checksums.
    ///
    /// # Errors
    /// Corrupt if no parity file can protect containers of these lengths.
    // Breaks if: the number is not bounded; memory would grow with a length that was forged.
    pub fn of_member(&self, member: u32) -> Result<Self> {
        let mut other = self.clone();
        other.member = member;
        let crcs = other.crcs_expected();
        let Some(crcs) = crcs.filter(|crcs| *crcs <= MAX_PARITY_CRCS_BYTES / 8) else {
            return Err(Error::corrupt(format!(
                "no parity file can protect containers of {:?} bytes",
                self.lens_bytes
            )));
        };
        other.crcs = vec![0; crcs as usize];
        Ok(other)
    }

    /// Where the trailer begins in a file of `file_bytes`, and how long it is without its end,
    /// according to the last [`PARITY_END_BYTES`] bytes of the file.
    ///
    /// # Errors
    /// Corrupt.
    pub fn find(end: &[u8; PARITY_END_BYTES], file_bytes: u64) -> Result<(u64, usize)> {
        let (magic, len) = end.split_at(END_MAGIC.len());
        let len = len
            .iter()
            .rev()
            .fold(0u64, |n, &byte| n << 8 | u64::from(byte));
        let before = file_bytes.checked_sub(PARITY_END_BYTES as u64);
        let at = before.and_then(|before| before.checked_sub(len));
        match at {
            Some(at) if magic == END_MAGIC && len <= 2 * MAX_METADATA_BYTES as u64 => {
                Ok((at, len as usize))
            }
            _ => Err(Error::corrupt(format!(
                "parity file of {file_bytes} bytes: its last 16 bytes are not the end of one"
            ))),
        }
    }

    /// Reads a trailer that begins at `at` of its file.
    ///
    /// # Errors
    /// Corrupt or Unsupported.
    pub fn decode(bytes: &[u8], at: u64) -> Result<Self> {
        let what = "parity trailer";
        let r = &mut Reader::new(what, unwrap(what, KIND_PARITY, bytes)?.0);
        let (mut job, mut step, mut epoch, mut writer) = (None, None, None, None);
        let (mut group, mut member, mut lens, mut crcs) = (None, None, None, None);
        r.map(|r, key| {
            match key {
                1 => job = Some(r.job()?),
                2 => step = Some(r.uint()?),
                3 => epoch = Some(r.epoch()?),
                4 => writer = Some(r.uint()?),
                5 => group = Some(ParityGroup::read(r)?),
                6 => member = Some(r.uint::<u32>()?),
                7 => lens = Some(r.items(MAX_MEMBERS, Reader::u64)?),
                8 => crcs = words(r.bytes(MAX_METADATA_BYTES)?),
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        r.end()?;
        let found = Self {
            job: r.need(job, "job (key 1)")?,
            step: r.need(step, "step (key 2)")?,
            epoch: r.need(epoch, "epoch (key 3)")?,
            writer: r.need(writer, "writer (key 4)")?,
            group: r.need(group, "group (key 5)")?,
            member: r.need(member, "member (key 6)")?,
            lens_bytes: r.need(lens, "lengths (key 7)")?,
            crcs: r.need(crcs, "checksums (key 8)")?,
        };
        found.group.check(None).map_err(|error| error.at(what))?;
        let blocks_bytes = found.group.blocks_bytes(found.longest());
        if found.member >= found.group.members()
            || found.lens_bytes.len() != found.group.nodes.len()
            || found.crcs_expected() != Some(found.crcs.len() as u64)
            || blocks_bytes != at
        {
            return Err(Error::corrupt(format!(
                "{what} at byte {at}: expected it after {blocks_bytes} bytes of blocks, of a member of {}, with a length of each and checksums of all blocks",
                found.group.members()
            )));
        }
        Ok(found)
    }
}

/// Whole words only: the rest would be a second encoding.
fn words(bytes: &[u8]) -> Option<Vec<u64>> {
    let word = |bytes: &[u8]| bytes.iter().rev().fold(0u64, |n, &b| n << 8 | u64::from(b));
    let whole = bytes.len().is_multiple_of(8);
    whole.then(|| bytes.chunks(8).map(word).collect())
}
