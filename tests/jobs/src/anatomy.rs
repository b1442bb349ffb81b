//! Where the structures of a container lie in its file.

use orcheck_format::disk::{
    BLOCK_BYTES, Extent, Manifest, RankHeader, RankRecord, STREAM_LEN_UNKNOWN, TRAILER_BYTES,
    Trailer, decode_rank_record,
};
use std::ops::Range;

/// The ranges of one container's structures.
pub struct Anatomy {
    pub header: Range<usize>,
    /// Rank, with its header, stream and record.
    pub ranks: Vec<(u32, Range<usize>, Range<usize>, Range<usize>)>,
    pub manifest: Range<usize>,
    pub trailer: Range<usize>,
    /// Stored bytes of regions: (rank, store, range in that store's file).
    pub extents: Vec<(u32, usize, Range<usize>)>,
}

/// The extents that a whole container's manifest lists.
pub fn extents(bytes: &[u8]) -> Vec<Extent> {
    let found = Trailer::decode(&bytes[bytes.len() - TRAILER_BYTES..]).unwrap();
    let at = found.manifest_at as usize;
    let manifest = &bytes[at..at + found.manifest_len_bytes as usize];
    let ranks = Manifest::decode(manifest).unwrap().ranks;
    let regions = ranks.into_iter().flat_map(|rank| rank.regions);
    regions.flat_map(|region| region.extents).collect()
}

/// Takes a whole container to pieces.
pub fn anatomy(bytes: &[u8]) -> Anatomy {
    let trailer = bytes.len() - TRAILER_BYTES..bytes.len();
    let found = Trailer::decode(&bytes[trailer.clone()]).unwrap();
    let at = found.manifest_at as usize;
    let manifest = at..at + found.manifest_len_bytes as usize;
    let decoded = Manifest::decode(&bytes[manifest.clone()]).unwrap();
    let striped = decoded.stores.len() > 1;
    let mut ranks = Vec::new();
    let mut at = BLOCK_BYTES;
    while at < manifest.start {
        let header = RankHeader::decode(&bytes[at..at + BLOCK_BYTES]).unwrap();
        let stream = at + BLOCK_BYTES;
        let known = |rank: &RankRecord| (rank.rank == header.rank).then_some(rank.stream_len_bytes);
        let stream_len_bytes = match header.stream_len_bytes {
            _ if striped => 0,
            STREAM_LEN_UNKNOWN => decoded.ranks.iter().find_map(known).unwrap(),
            known => known,
        };
        let record = stream + (stream_len_bytes as usize).next_multiple_of(BLOCK_BYTES);
        let (_, used) = decode_rank_record(&bytes[record..]).unwrap();
        ranks.push((
            header.rank.0,
            at..at + BLOCK_BYTES,
            stream..record,
            record..record + used,
        ));
        at = (record + used).next_multiple_of(BLOCK_BYTES);
    }
    let mut extents = Vec::new();
    for rank in &decoded.ranks {
        for extent in rank.regions.iter().flat_map(|region| &region.extents) {
            let from = extent.physical as usize;
            extents.push((
                rank.rank.0,
                usize::from(extent.store),
                from..from + extent.stored_len_bytes as usize,
            ));
        }
    }
    Anatomy {
        header: 0..BLOCK_BYTES,
        ranks,
        manifest,
        trailer,
        extents,
    }
}
