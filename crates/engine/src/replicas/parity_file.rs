//! Computes one parity file from the blocks of a group's containers, as they arrive.
//!
//! How: every member's blocks come as a stream (`part.rs`); that of the member itself is empty, and
//! tells its length. A row is kept in memory until all
//! members have sent theirs of it, or have ended. Then it leaves, in order, and its memory with it.
//! What ends the file are the checksums of its blocks and of all data that went into them.
//!
//! Invariants:
//! 1. Rows leave in order, each once, and only when nothing can be added to it.
//! 2. No more than [`ROWS_MAX`] rows are in memory; a member that is further ahead is refused.
//! 3. A member that ends has sent exactly what its length implies, with the checksum that it names.
//!
//! Pure. Not here: who sends (`gather.rs`), where a file is computed from files (`rebuilt.rs`).

use crate::replicas::part::Picks;
use orcheck_format::disk::{FileName, ParityGroup, ParityTrailer};
use orcheck_format::sabotage::{Switch, off};
use orcheck_format::{Crc64, Epoch, Error, JobName, Result, Step, WriterId, crc64};
use orcheck_io::memory::zeroed;
use orcheck_placement::parity::Code;
use std::collections::VecDeque;
use std::sync::Arc;

/// Maximum number of rows in memory: how far the members of a group may be apart.
pub(crate) const ROWS_MAX: u64 = 32;

/// The checkpoint whose containers a parity file protects.
#[derive(Debug, Clone)]
pub(crate) struct Protected {
    pub(crate) job: JobName,
    pub(crate) step: Step,
    pub(crate) epoch: Epoch,
    pub(crate) writer: WriterId,
}

/// A parity file in the making; see the module.
pub(crate) struct ParityFile {
    of: Protected,
    group: Arc<ParityGroup>,
    /// The member whose file it is.
    member: u32,
    code: Arc<Code>,
    /// By member; `None` for those that send nothing.
    streams: Vec<Option<Stream>>,
    /// Rows from `first` on.
    rows: VecDeque<Row>,
    first: u64,
    crcs: Vec<u64>,
}

struct Stream {
    picks: Picks,
    received_bytes: u64,
    crc: Crc64,
    /// What its member may send, if the node granted space for so much.
    granted_bytes: Option<u64>,
    ended_bytes: Option<u64>,
}

struct Row {
    /// By parity.
    blocks: Vec<Vec<u8>>,
    /// By parity and data.
    crcs: Vec<Crc64>,
}

impl ParityFile {
    /// The file of `member`, for containers of those members for which `sends` holds.
    pub(crate) fn new(
        of: Protected,
        (group, member): (&Arc<ParityGroup>, u32),
        code: &Arc<Code>,
        sends: impl Fn(u32) -> bool,
    ) -> Self {
        let stream = |other: u32| {
            sends(other).then(|| Stream {
                picks: Picks::of(group, other, member),
                received_bytes: 0,
                crc: Crc64::new(),
                granted_bytes: None,
                ended_bytes: None,
            })
        };
        Self {
            of,
            streams: (0..group.members()).map(stream).collect(),
            group: Arc::clone(group),
            member,
            code: Arc::clone(code),
            rows: VecDeque::new(),
            first: 0,
            crcs: Vec::new(),
        }
    }

    /// Lets a member send a container of at most `len_bytes`; returns how many bytes it may send
    /// ahead of all others.
    pub(crate) fn grant(&mut self, member: u32, len_bytes: u64) -> u64 {
        let Some(Some(stream)) = self.streams.get_mut(member as usize) else {
            return 0;
        };
        stream.granted_bytes = Some(stream.picks.bytes_of(len_bytes));
        ROWS_MAX * stream.picks.row_bytes()
    }

    /// Takes the next bytes of a member's stream, from `at` of it on.
    ///
    /// # Errors
    /// Corrupt if they are not the next ones, or too far ahead.
    pub(crate) fn take(&mut self, member: u32, at: u64, bytes: &[u8]) -> Result<()> {
        let (parities, unit) = (u32::from(self.group.parity), self.group.unit_bytes as usize);
        let data = self.group.data();
        let Some(Some(stream)) = self.streams.get_mut(member as usize) else {
            return Err(Error::corrupt(format!(
                "member {member} sends nothing here"
            )));
        };
        let ahead = (self.first + ROWS_MAX).saturating_mul(stream.picks.row_bytes());
        let granted = stream.granted_bytes.filter(|_| !off(Switch::ParityRoom));
        // Breaks if: it may send more than was set aside; a full budget would be exceeded.
        let most = ahead.min(granted.unwrap_or(u64::MAX));
        let end = at.saturating_add(bytes.len() as u64);
        if at != stream.received_bytes || end > most || stream.ended_bytes.is_some() {
            return Err(Error::corrupt(format!(
                "{} bytes at {at} were sent, with {} received of {most} allowed",
                bytes.len(),
                stream.received_bytes
            )));
        }
        let mut rest = bytes;
        while let Some(place) = stream.picks.at(stream.received_bytes)
            && !rest.is_empty()
        {
            let byte = place.byte as usize;
            let (now, later) = rest.split_at(rest.len().min(unit - byte));
            let nth = (place.row - self.first) as usize;
            while self.rows.len() <= nth {
                let blocks = (0..parities).map(|_| zeroed(unit));
                self.rows.push_back(Row {
                    blocks: blocks.collect::<Result<_>>()?,
                    crcs: vec![Crc64::new(); (parities * data) as usize],
                });
            }
            let (row, pick) = (&mut self.rows[nth], place.pick);
            let block = &mut row.blocks[pick.parity as usize];
            self.code.fold((pick.data, pick.parity), now, byte, block);
            row.crcs[(pick.parity * data + pick.data) as usize].update(now);
            stream.crc.update(now);
            stream.received_bytes += now.len() as u64;
            rest = later;
        }
        Ok(())
    }

    /// The container of a member has `len_bytes`, and this is the CRC of all that was sent of it.
    ///
    /// # Errors
    /// Corrupt if that is not what was received.
    pub(crate) fn end(&mut self, member: u32, len_bytes: u64, crc: u64) -> Result<()> {
        let Some(Some(stream)) = self.streams.get_mut(member as usize) else {
            return Err(Error::corrupt(format!(
                "member {member} sends nothing here"
            )));
        };
        let (expected, found) = (stream.picks.bytes_of(len_bytes), stream.received_bytes);
        if stream.ended_bytes.is_some() || expected != found {
            return Err(Error::corrupt(format!(
                "a container of {len_bytes} bytes ends after {expected} bytes of its blocks, once; {found} were received"
            )));
        }
        let received = stream.crc.value();
        if received != crc && !off(Switch::ParityReceived) {
            return Err(Error::corrupt(format!(
                "expected CRC-64 {crc:016x} over {found} bytes of blocks, received {received:016x}"
            )));
        }
        stream.ended_bytes = Some(len_bytes);
        Ok(())
    }

    /// Whether all members have ended.
    pub(crate) fn is_whole(&self) -> bool {
        let mut streams = self.streams.iter().flatten();
        streams.all(|stream| stream.ended_bytes.is_some())
    }

    /// Whether a member has something to say here: bytes, or the length of its container.
    pub(crate) fn expects(&self, member: u32) -> bool {
        matches!(self.streams.get(member as usize), Some(Some(_)))
    }

    /// The longest container whose blocks come here, once all of them have ended.
    fn longest(&self) -> Option<u64> {
        let others = (0..)
            .zip(&self.streams)
            .filter(|(member, _)| *member != self.member);
        let ended = others.filter_map(|(_, stream)| Some(stream.as_ref()?.ended_bytes));
        let all: Option<Vec<u64>> = ended.collect();
        Some(all?.into_iter().max().unwrap_or(0))
    }

    fn lens_bytes(&self) -> Vec<u64> {
        let len = |stream: &Option<Stream>| stream.as_ref().and_then(|one| one.ended_bytes);
        self.streams
            .iter()
            .map(|one| len(one).unwrap_or(0))
            .collect()
    }

    /// The next row to which nothing can be added: where it lies in the file, and its bytes.
    pub(crate) fn next_row(&mut self) -> Result<Option<(u64, Vec<u8>)>> {
        let row = self.first;
        let passed = |stream: &Stream| {
            let passed = stream.received_bytes >= (row + 1) * stream.picks.row_bytes();
            passed || stream.ended_bytes.is_some()
        };
        if !self.streams.iter().flatten().all(passed) {
            return Ok(None);
        }
        let unit = u64::from(self.group.unit_bytes);
        let mut block_bytes = unit;
        if let Some(longest) = self.longest() {
            if row >= self.group.rows(longest) {
                return Ok(None);
            }
            block_bytes = self.group.block_bytes(row, longest);
        }
        self.first += 1;
        let (parities, data) = (self.group.parity as usize, self.group.data() as usize);
        let mut bytes = Vec::with_capacity(parities * block_bytes as usize);
        let Some(Row { mut blocks, crcs }) = self.rows.pop_front() else {
            // No block of this row came here: zeros protect nothing, and are nothing.
            for _ in 0..parities {
                let block = zeroed(block_bytes as usize)?;
                self.crcs.push(crc64(&block));
                self.crcs.extend(std::iter::repeat_n(crc64(&[]), data));
                bytes.extend_from_slice(&block);
            }
            return Ok(Some((self.group.block_at(row, 0), bytes)));
        };
        for (parity, block) in blocks.iter_mut().enumerate() {
            block.truncate(block_bytes as usize);
            self.crcs.push(crc64(block));
            let of_data = &crcs[parity * data..(parity + 1) * data];
            self.crcs.extend(of_data.iter().map(Crc64::value));
            bytes.extend_from_slice(block);
        }
        Ok(Some((self.group.block_at(row, 0), bytes)))
    }

    /// Bytes by which a member's credit grows when a row has left.
    pub(crate) fn credit_of_row(&self, member: u32) -> u64 {
        let stream = self.streams.get(member as usize).and_then(Option::as_ref);
        stream.map_or(0, |stream| stream.picks.row_bytes())
    }

    /// What ends the file, after the last row: where, and the bytes.
    pub(crate) fn trailer(&self) -> (u64, Vec<u8>) {
        let Protected {
            job,
            step,
            epoch,
            writer,
        } = self.of.clone();
        let trailer = ParityTrailer {
            job,
            step,
            epoch,
            writer,
            group: ParityGroup::clone(&self.group),
            member: self.member,
            lens_bytes: self.lens_bytes(),
            crcs: self.crcs.clone(),
        };
        let at = self.group.blocks_bytes(trailer.longest());
        (at, trailer.encode())
    }

    /// Bytes of the whole file if the longest container has `longest` bytes.
    pub(crate) fn file_bytes(group: &ParityGroup, longest: u64) -> u64 {
        let crcs = group.crcs(longest).unwrap_or(u64::MAX);
        let around = 4096 + 16 * u64::from(group.members());
        (group.blocks_bytes(longest)).saturating_add(crcs.saturating_mul(8).saturating_add(around))
    }
}

/// The checkpoint that a parity file or container of this name belongs to, in a run with this whole
/// epoch.
pub(crate) fn protected_by(job: &JobName, epoch: Epoch, name: &FileName) -> Option<Protected> {
    match *name {
        FileName::Parity { step, writer, .. } | FileName::Container { step, writer, .. } => {
            Some(Protected {
                job: job.clone(),
                step,
                epoch,
                writer,
            })
        }
        _ => None,
    }
}
