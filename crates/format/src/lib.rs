//! Defines every byte that leaves a process: the layout of files, records and frames.
//!
//! What it does: turns values into bytes and bytes into checked values. `docs/format.md` is the
//! normative text; this crate implements it in Rust.
//!
//! How: fixed little-endian blocks for what a reader needs first ([`disk`], the frame header of
//! [`wire`]), deterministic CBOR with integer keys for content of variable shape (manifests,
//! records, messages), CRC-64/NVME ([`crc64`]) around everything that no digest covers.
//!
//! Invariants:
//! 1. Pure: no I/O, no clock, no randomness; the same value always gives the same bytes.
//! 2. A decoder never panics and never allocates more than a small multiple of its input.
//! 3. A decoder either returns the encoded value or an error that says where decoding stopped.
//! 4. An unknown incompatible feature is refused by number; compatible ones are ignored.
//!
//! Faults survived: torn, truncated, flipped and foreign bytes are recognised, never interpreted.
//!
//! Not here: who writes when (`orcheck-engine`), how bytes reach a disk or a socket (`orcheck-io`).

#![cfg_attr(
    not(test),
    deny(
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::panic,
        clippy::string_slice,
        clippy::unreachable,
        clippy::unwrap_used
    )
)]

mod coding;
pub mod disk;
mod error;
mod ids;
mod numbers;
pub mod sabotage;
pub mod wire;

pub use crate::coding::{Crc64, CrcShift, crc64, crc64_combine};
pub use error::{Detail, Error, ErrorKind, Result, count, joined, printable, without_next};
pub use ids::{Decision, Dtype, Epoch, JobName, Level, MAX_JOB_NAME_BYTES, RunId, hex, parse_hex};
pub use numbers::{NodeId, Rank, Step, TargetId, WriterId};
