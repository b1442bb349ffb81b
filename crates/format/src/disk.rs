//! Encodes and decodes the files in the directories of a job.
//!
//! | file | what |
//! | --- | --- |
//! | `container.rs` | the fixed blocks of a container |
//! | `manifest.rs` | what a container holds |
//! | `encoding.rs` | how stored bytes become the bytes of a region |
//! | `names.rs` | every file name |
//! | `envelope.rs` | what surrounds the content of every small file |
//! | `seal.rs` | the MAC of a small file |
//! | `record.rs` | commit records, claims, notes of resumption |
//! | `members.rs` | where later runs reach the nodes of a run |
//! | `parity.rs` | groups of nodes that protect each other by parity |
//! | `choice.rs` | decisions to reject or keep a checkpoint |
//!
//! Not here: reading and writing these files (the engine).

mod choice;
mod container;
mod encoding;
mod envelope;
mod manifest;
mod members;
mod names;
mod parity;
mod record;
mod seal;

pub use choice::{Choice, MAX_WHY_BYTES};
pub use container::{
    BLOCK_BYTES, ContainerHeader, Encryption, Features, FramedRecord, MAX_ALIGNMENT_BYTES,
    RANK_RECORD_PREFIX_BYTES, RankFooterPrefix, RankHeader, STREAM_LEN_UNKNOWN, STRIPE_UNIT_BYTES,
    TRAILER_BYTES, Trailer, decode_rank_record, encode_rank_record, header_crc,
};
pub use encoding::{Compression, Encoding, MAX_ENCODED_BYTES, SEAL_BYTES};
pub use envelope::{KEY_ID_BYTES, MAC_BYTES};
pub(crate) use manifest::check_metadata_len;
pub use manifest::{
    BoxRecord, Extent, FLAG_IN_MEMORY, FLAG_LIST, FLAG_OVERLAP, FLAG_SAME, MAX_DIMS,
    MAX_METADATA_BYTES, MAX_NAME_BYTES, Manifest, RankRecord, RegionKind, RegionRecord, is_name,
};
pub use members::{Member, Members};
pub use names::{FileName, MAX_FILE_NAME_BYTES};
pub use parity::{
    MAX_MEMBERS, MAX_PARITY_CRCS_BYTES, PARITY_END_BYTES, ParityGroup, ParityTrailer, Pick,
};
pub(crate) use record::MAX_CONTAINERS;
pub use record::{
    Claim, CommitRecord, ContainerRef, MAX_NODES, MAX_REFERRED, Resumed, ranks_to_ranges,
};
pub use seal::{Seal, seal, seal_of};
