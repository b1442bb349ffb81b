//! Encodes what an agent says about memory that it keeps: what lies where.
//!
//! How: a snapshot is named by the digests of the manifests that describe it, one for each level at
//! which its container is durable. A commit record names the same digest, so that a reader knows
//! whether a snapshot is that of the checkpoint which it reads.
//!
//! Invariants:
//! 1. Both sides run the same version; another one is refused by name.
//! 2. The pieces of a snapshot ascend by region and offset, so that a reader can look them up.
//!    There is no snapshot without pieces, or that no manifest describes.
//! 3. Nothing here is believed about the bytes: whoever takes some compares their checksum.
//!
//! Faults survived: arbitrary bytes give Corrupt or Unsupported.
//!
//! Not here: the memory (crate `pool`), who keeps it and for how long (`engine::host`).

use crate::coding::{Reader, Writer};
use crate::error::Result;
use crate::numbers::Rank;
use crate::sabotage::{Switch, off};

const MAX_NAME_BYTES: usize = 255;
/// Maximum number of snapshots, of digests of one, and of pieces of one.
const MAX_SNAPSHOTS: usize = 1 << 16;
const MAX_DIGESTS: usize = 8;
const MAX_PIECES: usize = 1 << 20;

/// Identifies a region: `RegionRecord::identity`.
pub type RegionIdentity = [u8; 16];

/// A piece of a region in kept memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeptPiece {
    /// The region.
    pub region: RegionIdentity,
    /// Where the piece begins in the region.
    pub region_at_bytes: u64,
    /// Its length.
    pub len_bytes: u64,
    /// CRC-64/NVME of its bytes.
    pub crc_plain: u64,
    /// Where it lies in the memory, from the start of its first chunk.
    pub pool_at_bytes: u64,
}

/// One rank's snapshot in kept memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptSnapshot {
    /// Whose it is.
    pub rank: Rank,
    /// The digests of the manifests that describe it.
    pub digests: Vec<[u8; 32]>,
    /// Its pieces, ascending by region and offset.
    pub pieces: Vec<KeptPiece>,
}

impl KeptSnapshot {
    /// The piece that begins there, if it is as long as this.
    #[must_use]
    pub fn piece(&self, region: &RegionIdentity, at: u64, len_bytes: u64) -> Option<&KeptPiece> {
        let wanted = (region, at);
        let key = |piece: &KeptPiece| (piece.region, piece.region_at_bytes);
        let found = (self.pieces).binary_search_by(|piece| {
            let (region, at) = key(piece);
            (&region, at).cmp(&wanted)
        });
        let piece = self.pieces.get(found.ok()?)?;
        (piece.len_bytes == len_bytes).then_some(piece)
    }
}

/// What lies in kept memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptMap {
    /// Version of the agent.
    pub version: String,
    /// The snapshots.
    pub snapshots: Vec<KeptSnapshot>,
}

impl KeptMap {
    /// Maximum length of an encoded map, in bytes.
    pub const MAX_BYTES: usize = 32 << 20;

    /// The bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::new();
        w.map(2);
        w.uint(1u8).text(&self.version);
        w.uint(2u8).array(self.snapshots.len());
        for snapshot in &self.snapshots {
            w.array(3).uint(snapshot.rank);
            w.array(snapshot.digests.len());
            for digest in &snapshot.digests {
                w.bytes(digest);
            }
            w.array(snapshot.pieces.len());
            for piece in &snapshot.pieces {
                w.array(5).bytes(&piece.region).uint(piece.region_at_bytes);
                w.uint(piece.len_bytes).uint(piece.crc_plain);
                w.uint(piece.pool_at_bytes);
            }
        }
        w.finish()
    }

    /// Reads what [`Self::encode`] wrote.
    ///
    /// # Errors
    /// Corrupt; Unsupported for another version than `version`.
    pub fn decode(bytes: &[u8], version: &str) -> Result<Self> {
        let r = &mut Reader::new("map of kept memory", bytes);
        let (mut said, mut snapshots) = (None, None);
        r.map(|r, key| {
            match key {
                1 => {
                    let text = r.text(MAX_NAME_BYTES)?;
                    if text != version {
                        let text = format!("expected version {version}, found {text}");
                        return Err(r.unsupported(text));
                    }
                    said = Some(text.to_owned());
                }
                2 => snapshots = Some(r.items(MAX_SNAPSHOTS, read_snapshot)?),
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        r.end()?;
        Ok(Self {
            version: r.need(said, "version (key 1)")?,
            snapshots: r.need(snapshots, "snapshots (key 2)")?,
        })
    }
}

fn read_snapshot(r: &mut Reader<'_>) -> Result<KeptSnapshot> {
    r.tuple(3)?;
    let snapshot = KeptSnapshot {
        rank: r.uint()?,
        digests: r.items(MAX_DIGESTS, Reader::exact)?,
        pieces: r.items(MAX_PIECES, read_piece)?,
    };
    let key = |piece: &KeptPiece| (piece.region, piece.region_at_bytes);
    let next = snapshot.pieces.iter().skip(1);
    let mut pairs = snapshot.pieces.iter().zip(next);
    // Breaks if: any order is accepted; a piece that is there would not be found.
    if !pairs.all(|(one, next)| key(one) < key(next)) && !off(Switch::KeptAscends) {
        return Err(r.corrupt(format_args!(
            "the pieces of rank {} do not ascend",
            snapshot.rank
        )));
    }
    if snapshot.pieces.is_empty() || snapshot.digests.is_empty() {
        return Err(r.corrupt(format_args!(
            "a snapshot of rank {} has no pieces or no digests",
            snapshot.rank
        )));
    }
    Ok(snapshot)
}

fn read_piece(r: &mut Reader<'_>) -> Result<KeptPiece> {
    r.tuple(5)?;
    Ok(KeptPiece {
        region: r.exact()?,
        region_at_bytes: r.u64()?,
        len_bytes: r.u64()?,
        crc_plain: r.u64()?,
        pool_at_bytes: r.u64()?,
    })
}
