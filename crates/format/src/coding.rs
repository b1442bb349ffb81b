//! Turns values into bytes and back.
//!
//! | file | what |
//! | --- | --- |
//! | `cbor.rs` | deterministic CBOR |
//! | `bytes.rs` | fixed fields of blocks |
//! | `crc.rs` | CRC-64/NVME |
//!
//! Not here: which values there are.

mod bytes;
mod cbor;
mod crc;

pub(crate) use bytes::{Get, Put, check_crc, check_magic, exactly};
pub(crate) use cbor::{Reader, Writer, flag};
pub use crc::{Crc64, CrcShift, crc64, crc64_combine};
