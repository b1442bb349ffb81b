//! Every byte that leaves a process: the layout of files, records and frames.
//!
//! What it does: turns values into bytes and bytes into checked values. `docs/format.md` is the
//! normative text; this crate is its implementation in Rust.
//!
//! How: fixed little-endian blocks for what is read first ([`container`], the frame header of
//! [`wire`]), deterministic CBOR with integer keys for what has a variable shape ([`manifest`],
//! [`record`], messages), CRC-64/NVME ([`crc`]) around everything that is not covered by a digest.
//!
//! Invariants:
//! 1. Pure: no I/O, no clock, no randomness; the same value always gives the same bytes.
//! 2. A decoder never panics and never allocates more than a small multiple of its input.
//! 3. A decoder either returns what was encoded or an error that says where it stopped.
//! 4. An unknown incompatible feature is refused by number; compatible ones are ignored.
//!
//! Faults survived: torn, truncated, flipped and foreign bytes are recognised, never interpreted.
//!
//! Not here: who writes when (`orcheck-engine`), how bytes reach a disk or a socket (`orcheck-io`).

pub mod agent;
mod bytes;
mod cbor;
pub mod envelope;
mod fields;
pub mod choice;
pub mod container;
pub mod crc;
pub mod encoding;
pub mod error;
pub mod ids;
pub mod manifest;
pub mod members;
pub mod names;
pub mod record;
pub mod sabotage;
pub mod seal;
pub mod store;
pub mod wire;

pub use agent::{Adoption, AgentMessage, ConnState};
pub use choice::Choice;
pub use ids::Decision;
pub use container::{
    BLOCK_BYTES, ContainerHeader, Encryption, Features, RANK_RECORD_PREFIX_BYTES, RankFooterPrefix,
    RankHeader, TRAILER_BYTES, Trailer, decode_rank_record, encode_rank_record,
};
pub use crc::{Crc64, CrcShift, crc64, crc64_combine};
pub use encoding::{Compression, Encoding};
pub use error::{Error, ErrorKind, Result};
pub use ids::{Dtype, Epoch, JobName, Level, RunId};
pub use manifest::{Extent, Manifest, RankRecord, RegionKind, RegionRecord};
pub use members::{Member, Members};
pub use names::FileName;
pub use record::{Claim, CommitRecord, ContainerRef, Resumed, ranks_to_ranges};
pub use store::{Ask, Reply, StoreDir, StoreMessage, Versions};
pub use wire::{FrameHeader, Message};
