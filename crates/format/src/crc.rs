//! CRC-64/NVME: the checksum of chunks, blocks and records.
//!
//! How: `crc-fast` picks the fastest instructions of the processor at run time.
//!
//! Invariants:
//! 1. The value is the CRC-64/NVME of the catalogue (check value of "123456789":
//!    0xae8b14860a799888), on every machine.
//! 2. `crc64_combine(crc64(a), crc64(b), b.len())` is `crc64(a ++ b)`.
//!
//! Not here: a defence against forgery; manifests are identified by BLAKE3 digests for that.

use crc_fast::CrcAlgorithm::Crc64Nvme;

/// The CRC-64/NVME of some bytes.
pub fn crc64(bytes: &[u8]) -> u64 {
    crc_fast::checksum(Crc64Nvme, bytes)
}

/// The CRC of `a ++ b` from the CRC of each and the length of `b` in bytes.
pub fn crc64_combine(a: u64, b: u64, len_b_bytes: u64) -> u64 {
    crc_fast::checksum_combine(Crc64Nvme, a, b, len_b_bytes)
}

/// A CRC-64/NVME over bytes that arrive piece by piece.
#[derive(Debug, Clone)]
pub struct Crc64(crc_fast::Digest);

impl Crc64 {
    /// The CRC of nothing yet.
    pub fn new() -> Self {
        Crc64(crc_fast::Digest::new(Crc64Nvme))
    }

    /// Appends bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The CRC of everything appended so far.
    pub fn value(&self) -> u64 {
        self.0.finalize()
    }
}

impl Default for Crc64 {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn catalogue_check_value() {
        assert_eq!(crc64(b"123456789"), 0xae8b_1486_0a79_9888);
        assert_eq!(crc64(b""), 0);
    }

    #[test]
    fn pieces_and_combination_agree() {
        let bytes: Vec<u8> = (0..5000u32).map(|i| (i * 7 + i / 251) as u8).collect();
        for cut in [0, 1, 7, 64, 511, 512, 4096, 4999, 5000] {
            let (a, b) = bytes.split_at(cut);
            let mut crc = Crc64::new();
            crc.update(a);
            crc.update(b);
            assert_eq!(crc.value(), crc64(&bytes));
            assert_eq!(
                crc64_combine(crc64(a), crc64(b), b.len() as u64),
                crc64(&bytes)
            );
        }
    }
}
