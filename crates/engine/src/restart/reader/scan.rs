//! Walks through a container from its header, part by part, and rebuilds its manifest.
//!
//! How: at a multiple of the alignment there is a rank header, followed by that rank's stream and
//! its rank record. Each is checked, and the record's length leads to the next part.
//!
//! Invariants:
//! 1. A rebuilt manifest is returned only if its digest is the one in the commit record.
//! 2. The walk only goes forward, and ends at the length that the commit record gives.
//!
//! Faults survived: a lost or damaged trailer or manifest. A damaged rank header or record ends the
//! walk.
//!
//! Not here: striped containers, whose manifest alone knows where pieces lie; reading data.

use orcheck_format::disk::{
    BLOCK_BYTES, CommitRecord, ContainerHeader, ContainerRef, Features, Manifest,
    RANK_RECORD_PREFIX_BYTES, RankFooterPrefix, RankHeader, RankRecord, STREAM_LEN_UNKNOWN,
    decode_rank_record,
};
use orcheck_format::sabotage::{Switch, off};
use orcheck_format::{Error, Rank, Result};
use orcheck_io::disk::File;
use orcheck_io::memory::zeroed;

use super::{as_usize, check_manifest, read_block};

/// Number of bytes searched at once for a rank record.
const SEEN_BYTES: u64 = 1 << 20;

/// One rank's part of a container, as found by walking through the file.
pub(crate) struct ScannedRank {
    /// Where the rank header block begins.
    pub header_at: u64,
    /// Where the stream begins.
    pub stream_at: u64,
    /// Where the rank record begins.
    pub record_at: u64,
    /// Bytes of the framed rank record, without padding.
    pub record_len_bytes: u64,
    /// Where the next part begins.
    pub end: u64,
    /// The record, its extents still relative to the stream.
    pub record: RankRecord,
}

/// `value` rounded up to the alignment; `None` on overflow.
pub(crate) fn padded(value: u64, alignment: u64) -> Option<u64> {
    value.checked_next_multiple_of(alignment)
}

/// Reads the rank record at `at`; also returns its framed length in bytes.
pub(crate) fn record_at(file: &dyn File, at: u64, end: u64) -> Result<(RankRecord, u64)> {
    let place = || format!("{}: rank record at byte {at}", file.name());
    let mut prefix = [0; RANK_RECORD_PREFIX_BYTES];
    file.read_at(&mut prefix, at)?;
    let prefix = RankFooterPrefix::decode(&prefix).map_err(|error| error.at(place()))?;
    let len = RANK_RECORD_PREFIX_BYTES as u64 + u64::from(prefix.len_bytes);
    if at
        .checked_add(len)
        .is_none_or(|record_end| record_end > end)
    {
        return Err(
            Error::corrupt(format!("{len} bytes do not fit before byte {end}")).at(place()),
        );
    }
    let mut bytes = zeroed(as_usize(len)?).map_err(|error| error.at(place()))?;
    file.read_at(&mut bytes, at)?;
    let (record, used) = decode_rank_record(&bytes).map_err(|error| error.at(place()))?;
    Ok((record, used as u64))
}

/// Rebuilds the manifest from the rank headers and rank records; it must have the recorded digest.
pub(super) fn rebuild(
    file: &dyn File,
    header: &ContainerHeader,
    commit: &CommitRecord,
    container: &ContainerRef,
) -> Result<Manifest> {
    if is_striped(header) {
        return Err(Error::corrupt(
            "the manifest of a striped container is not rebuilt",
        ));
    }
    let (parts, stopped) = walk(file, header, container.len_bytes);
    let manifest = manifest_of(parts, header, commit, container);
    let bytes = manifest.encode();
    if Manifest::digest(&bytes) != container.manifest_digest && !off(Switch::DigestRebuilt) {
        return Err(Error::corrupt(format!(
            "the manifest cannot be rebuilt: {} of {} ranks found, and the digest differs ({stopped})",
            manifest.ranks.len(),
            container
                .ranks
                .iter()
                .map(|(_, count)| u64::from(*count))
                .sum::<u64>()
        )));
    }
    check_manifest(&manifest, commit, container, container.len_bytes)?;
    Ok(manifest)
}

/// Whether streams lie in stripe files.
pub(crate) fn is_striped(header: &ContainerHeader) -> bool {
    header.features.incompat & Features::STRIPED != 0
}

/// The manifest that consists of these parts.
pub(crate) fn manifest_of(
    parts: Vec<ScannedRank>,
    header: &ContainerHeader,
    commit: &CommitRecord,
    container: &ContainerRef,
) -> Manifest {
    let mut ranks: Vec<RankRecord> = parts
        .into_iter()
        .map(|part| absolute(part.record, part.stream_at))
        .collect();
    ranks.sort_by_key(|record| record.rank);
    Manifest {
        job: header.job.clone(),
        step: header.step,
        epoch: header.epoch,
        level: header.level,
        node: header.node,
        node_name: commit
            .nodes
            .get(header.node.index())
            .cloned()
            .unwrap_or_default(),
        writer: header.writer,
        world_size: header.world_size,
        stores: vec![container.file.clone()],
        ranks,
    }
}

/// A rank record with the positions of its own extents counted from the start of the file.
fn absolute(mut record: RankRecord, stream_at: u64) -> RankRecord {
    for extent in record
        .regions
        .iter_mut()
        .flat_map(|region| &mut region.extents)
    {
        if extent.container.is_none() && extent.store == 0 {
            extent.physical = extent.physical.saturating_add(stream_at);
        }
    }
    record
}

/// Walks from rank header to rank record up to the end of the parts, and reports why it stopped.
pub(crate) fn walk(
    file: &dyn File,
    header: &ContainerHeader,
    end: u64,
) -> (Vec<ScannedRank>, Error) {
    let alignment = u64::from(header.alignment_bytes);
    let mut parts = Vec::new();
    let mut at = alignment;
    loop {
        match part_at(file, header, alignment, at, end) {
            Ok(part) => {
                at = part.end;
                parts.push(part);
            }
            Err(error) => return (parts, error),
        }
    }
}

/// The part whose rank header is at `at`.
pub(crate) fn part_at(
    file: &dyn File,
    header: &ContainerHeader,
    alignment: u64,
    at: u64,
    end: u64,
) -> Result<ScannedRank> {
    let place = |at: u64| format!("{}: rank header at byte {at}", file.name());
    if at
        .checked_add(BLOCK_BYTES as u64)
        .is_none_or(|block_end| block_end > end)
    {
        return Err(Error::corrupt("the file ends here").at(place(at)));
    }
    let found = RankHeader::decode(&read_block(file, at)?).map_err(|error| error.at(place(at)))?;
    if (found.step, found.epoch) != (header.step, header.epoch) {
        return Err(Error::corrupt(format!(
            "expected step {} of epoch {}, found step {} of epoch {}",
            header.step, header.epoch, found.step, found.epoch
        ))
        .at(place(at)));
    }
    let too_long = || {
        Error::corrupt(format!(
            "a stream of {} bytes does not fit",
            found.stream_len_bytes
        ))
        .at(place(at))
    };
    // The header block is one block, and the alignment is never less than that.
    let stream_at = at.checked_add(alignment).ok_or_else(too_long)?;
    let (record_begin, (record, record_len_bytes)) = if is_striped(header) {
        // The stream is in the stripe files; the record follows immediately.
        (stream_at, record_at(file, stream_at, end)?)
    } else if found.stream_len_bytes == STREAM_LEN_UNKNOWN {
        record_after(file, stream_at, alignment, found.rank, end)?
    } else {
        let stream_end = stream_at.checked_add(found.stream_len_bytes);
        let record_begin = stream_end
            .and_then(|end| padded(end, alignment))
            .ok_or_else(too_long)?;
        (record_begin, record_at(file, record_begin, end)?)
    };
    if record.rank != found.rank
        || (found.stream_len_bytes != STREAM_LEN_UNKNOWN
            && record.stream_len_bytes != found.stream_len_bytes)
    {
        return Err(Error::corrupt(format!(
            "the rank record at byte {record_begin} is of rank {} with {} bytes, expected rank {} with {} bytes",
            record.rank, record.stream_len_bytes, found.rank, found.stream_len_bytes
        ))
        .at(place(at)));
    }
    let part_end = padded(record_begin + record_len_bytes, alignment).ok_or_else(too_long)?;
    Ok(ScannedRank {
        header_at: at,
        stream_at,
        record_at: record_begin,
        record_len_bytes,
        end: part_end,
        record,
    })
}

/// Searches for the rank record behind a stream whose length was not known when its header was
/// written: the first aligned block with a valid record of this rank whose stream length leads
/// exactly there.
fn record_after(
    file: &dyn File,
    stream_at: u64,
    alignment: u64,
    rank: Rank,
    end: u64,
) -> Result<(u64, (RankRecord, u64))> {
    let mut at = stream_at;
    // Search in larger pieces for the beginning of a rank record: a call for every block would take
    // longer.
    let (mut seen, mut seen_at) = (Vec::new(), 0);
    while at
        .checked_add(RANK_RECORD_PREFIX_BYTES as u64)
        .is_some_and(|prefix_end| prefix_end <= end)
    {
        if seen.is_empty() || at + RANK_RECORD_PREFIX_BYTES as u64 > seen_at + seen.len() as u64 {
            seen.resize(as_usize(SEEN_BYTES.min(end - at))?, 0);
            seen_at = at;
            if file.read_at(&mut seen, at).is_err() {
                // Part of it is damaged: continue piece by piece.
                seen.truncate(RANK_RECORD_PREFIX_BYTES);
                file.read_at(&mut seen, at)?;
            }
        }
        let from = as_usize(at - seen_at)?;
        let found = seen.get(from..).unwrap_or_default();
        let may_begin = RankFooterPrefix::decode(found).is_ok();
        if may_begin && let Ok((record, len)) = record_at(file, at, end) {
            let leads_here = stream_at
                .checked_add(record.stream_len_bytes)
                .and_then(|end| padded(end, alignment));
            if record.rank == rank && leads_here == Some(at) {
                return Ok((at, (record, len)));
            }
        }
        at += alignment;
    }
    Err(Error::corrupt(format!(
        "{}: no rank record of rank {rank} after byte {stream_at}",
        file.name()
    )))
}
