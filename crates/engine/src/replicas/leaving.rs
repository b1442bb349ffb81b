//! Lends the bytes of a container to connections, and computes its checksum as they leave.
//!
//! How: a connection reads the bytes in parts that stay in the cache, for its own proof; the
//! checksum is computed of the same part right before. With several holders, the fastest counts.
//!
//! Invariant: every byte that has left is in the checksum exactly once.
//!
//! Not here: what is sent to whom (`owner.rs`); parts for parity, which are copied and have
//! checksums of their own.

use orcheck_format::Crc64;
use orcheck_net::{Leaves, Place, Source};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// How much of a container has left for the fastest holder, and its checksum.
#[derive(Default)]
pub(super) struct Left {
    bytes: u64,
    crc: Crc64,
}

impl Left {
    /// Adds what is new of these bytes at `at_bytes`. Each holder gets all bytes in order, so that
    /// there are no gaps.
    pub(super) fn add(&mut self, at_bytes: u64, bytes: &[u8]) {
        debug_assert!(at_bytes <= self.bytes, "{at_bytes} after {}", self.bytes);
        let known = self.bytes.checked_sub(at_bytes);
        let known = known.and_then(|known| usize::try_from(known).ok());
        let new = known.and_then(|known| bytes.get(known..));
        if let Some(new) = new {
            self.crc.update(new);
            self.bytes += new.len() as u64;
        }
    }

    /// The checksum of what has left.
    pub(super) fn crc(&self) -> u64 {
        self.crc.value()
    }
}

pub(super) fn locked(left: &Mutex<Left>) -> MutexGuard<'_, Left> {
    left.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Bytes of the container that are in memory, and their offset in it.
pub(super) type Window<'a> = Option<(u64, &'a [u8])>;

/// The bytes of this container, for a connection; `leaves` learns what is sent of them.
pub(super) fn source<'a>(
    slot: u32,
    window: Window<'a>,
    leaves: &'a Leaves<'a>,
) -> Option<Source<'a>> {
    let of = |(at_bytes, bytes)| Source {
        place: Place { slot, at_bytes },
        bytes,
        leaves: Some(leaves),
    };
    window.map(of)
}

/// The bytes of these ranges of the container, if all are in memory.
pub(super) fn cut(window: Window<'_>, ranges: &[(u64, u64)], len: u64) -> Option<Vec<u8>> {
    let (start, there) = window?;
    let mut bytes = Vec::with_capacity(usize::try_from(len).ok()?);
    for &(at, len) in ranges {
        let from = usize::try_from(at.checked_sub(start)?).ok()?;
        bytes.extend_from_slice(there.get(from..from.checked_add(usize::try_from(len).ok()?)?)?);
    }
    Some(bytes)
}
