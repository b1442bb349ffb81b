//! Computes CRC-64/NVME, the checksum of chunks, blocks and records.
//!
//! How: `crc-fast` picks the fastest instructions of the processor at run time. Two CRCs are
//! combined by a multiplication of polynomials: appending n bytes multiplies a CRC by x to the
//! power of 8 n, modulo the polynomial of the code, and that power is a product of a few known
//! ones.
//!
//! Invariants:
//! 1. The value is the CRC-64/NVME of the catalogue (check value of "123456789":
//!    0xae8b14860a799888), on every machine.
//! 2. `crc64_combine(crc64(a), crc64(b), b.len())` is `crc64(a ++ b)`.
//!
//! 3. A [`CrcShift`] computes what `crc64_combine` computes, for one fixed length.
//!
//! Not here: protection against forgery; BLAKE3 digests identify manifests for that.

use crc_fast::CrcAlgorithm::Crc64Nvme;

/// The CRC-64/NVME of some bytes.
pub fn crc64(bytes: &[u8]) -> u64 {
    crc_fast::checksum(Crc64Nvme, bytes)
}

/// The polynomial of CRC-64/NVME; as in all words here, the highest bit stands for x to the power
/// of 0.
const POLYNOMIAL: u64 = 0x9a6c_9329_ac4b_c9b5;

/// At k: x to the power of 8 times 2 to the power of k.
#[allow(clippy::indexing_slicing, reason = "computed by the compiler")]
const POWERS: [u64; 64] = {
    let mut powers = [1 << 55; 64];
    let mut k = 1;
    while k < 64 {
        powers[k] = multiply(powers[k - 1], powers[k - 1]);
        k += 1;
    }
    powers
};

/// The product of two polynomials, modulo that of the code.
const fn multiply(mut a: u64, mut b: u64) -> u64 {
    let mut product = 0;
    while a != 0 {
        // Without branches: the bits are as good as random.
        product ^= b & (a >> 63).wrapping_neg();
        b = (b >> 1) ^ (POLYNOMIAL & (b & 1).wrapping_neg());
        a <<= 1;
    }
    product
}

/// The CRC of `a ++ b` from the CRC of each and the length of `b` in bytes. Takes some hundred
/// nanoseconds, whatever the length.
pub fn crc64_combine(a: u64, b: u64, len_b_bytes: u64) -> u64 {
    let mut shifted = a;
    for (k, power) in POWERS.iter().enumerate() {
        if len_b_bytes >> k & 1 == 1 {
            shifted = multiply(*power, shifted);
        }
    }
    shifted ^ b
}

/// [`crc64_combine`] for a fixed length of `b`: eight table look-ups, a few nanoseconds.
///
/// A CRC is linear: appending this many bytes maps each bit of the previous CRC to a fixed word.
/// The table holds the precomputed sums of these words for every value of one byte.
pub struct CrcShift {
    tables: Box<[[u64; 256]; 8]>,
}

impl CrcShift {
    /// The map for pieces of `len_bytes`.
    pub fn by(len_bytes: u64) -> Self {
        let mut tables = Box::new([[0; 256]; 8]);
        for (byte, table) in tables.iter_mut().enumerate() {
            for bit in 0..8 {
                let word = crc64_combine(1 << (byte * 8 + bit), 0, len_bytes);
                // What the bits below this one sum to, once more with this bit.
                let (below, with) = table.split_at_mut(1 << bit);
                for (sum, without) in with.iter_mut().zip(below) {
                    *sum = *without ^ word;
                }
            }
        }
        CrcShift { tables }
    }

    /// The CRC of `a ++ b` from the CRC of each.
    #[must_use]
    #[allow(clippy::indexing_slicing, reason = "a byte is an index of 256 words")]
    pub fn append(&self, a: u64, b: u64) -> u64 {
        let bytes = a.to_le_bytes();
        let mut sum = b;
        for (table, byte) in self.tables.iter().zip(bytes) {
            sum ^= table[usize::from(byte)];
        }
        sum
    }
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

    // Breaks if: a table is built for another bit order or another length.
    #[test]
    fn a_shift_is_a_combination_of_its_length() {
        let bytes: Vec<u8> = (0..70_000u32).map(|i| (i * 31 + i / 97) as u8).collect();
        for len in [1, 8, 4096, 65_536] {
            let shift = CrcShift::by(len as u64);
            for cut in [0, 1, 13, 4096, 70_000 - len] {
                let (a, b) = (&bytes[..cut], &bytes[cut..][..len.min(bytes.len() - cut)]);
                if b.len() == len {
                    assert_eq!(shift.append(crc64(a), crc64(b)), crc64(&bytes[..cut + len]));
                }
            }
        }
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

    // Breaks if: a power of x is wrong that no test is long enough to need.
    #[test]
    fn combination_agrees_with_the_library() {
        let mut random = 7u64;
        let mut next = || {
            random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            random ^ random >> 29
        };
        for k in 0..64 {
            for len in [1 << k, next() >> k] {
                let (a, b) = (next(), next());
                assert_eq!(
                    crc64_combine(a, b, len),
                    crc_fast::checksum_combine(Crc64Nvme, a, b, len),
                    "{len} bytes"
                );
            }
        }
    }
}
