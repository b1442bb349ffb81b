//! Implements copy kernels that compute a checksum on the way: every byte is loaded once, stored
//! past the cache to the destination, and folded into the CRC by carry-less multiplication.
//!
//! How: a CRC is a remainder modulo a polynomial P. A piece of the message that precedes another by
//! D bits can be replaced by its equivalent there, namely itself times x^D modulo P, which two
//! carry-less multiplications compute for 128 bits at a time. Each kernel keeps one stride of the
//! message as its state and folds it into the next stride. At the end it folds the whole state into
//! its last 128 bits, which, read as a message of their own, have the remainder of the whole. The
//! ordinary CRC of those 16 bytes finishes the work, so no reduction constants are needed here. The
//! method is that of Gopal et al., "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ".
//!
//! | kernel | loads and stores | folds by | stride |
//! | --- | --- | --- | --- |
//! | [`x86::avx512`] | 64 bytes, streamed | VPCLMULQDQ, 4 × 128 bits at once | 256 |
//! | [`x86::avx2_wide`] | 32 bytes, streamed | VPCLMULQDQ, 2 × 128 bits at once | 256 |
//! | [`x86::avx2`] | 32 bytes, streamed | PCLMULQDQ | 128 |
//! | [`x86::sse`] | 16 bytes, streamed | PCLMULQDQ | 128 |
//! | `arm::neon` | 2 × 16 bytes, stored as a non-temporal pair | PMULL | 128 |
//!
//! A stride is at least two cache lines. Each kernel has at least eight chains of multiplications,
//! or as many as fill its registers, so that it waits for memory and not for a multiplication.
//!
//! Invariants
//! 1. The kernels read and write exactly `strides` × their stride; the destination is aligned to 64
//!    bytes.
//! 2. The input register is the inverted CRC of everything before. The output stands for everything
//!    up to there: its plain CRC is the CRC of the whole.
//! 3. Only [`order_stores`] orders the stores: it must precede the ordinary store that tells others
//!    about the data. It waits for memory, so one call may follow many short copies.
//!
//! Not here: heads, tails and the choice of the kernel (see [`crate::copy`]).
#![allow(unsafe_code)]
#![cfg_attr(
    not(any(target_arch = "x86_64", target_arch = "aarch64")),
    allow(dead_code)
)]

#[cfg(target_arch = "aarch64")]
pub(crate) mod arm;
#[cfg(target_arch = "x86_64")]
pub(crate) mod x86;

/// The polynomial of CRC-64/NVME, bits reversed.
const POLYNOMIAL: u64 = 0x9a6c_9329_ac4b_c9b5;

/// x^n modulo the polynomial, bits reversed.
const fn power(n: u32) -> u64 {
    let mut value = 1u64 << 63;
    let mut i = 0;
    while i < n {
        value = (value >> 1) ^ if value & 1 == 1 { POLYNOMIAL } else { 0 };
        i += 1;
    }
    value
}

/// The factors that carry 128 bits forward over `bits`: (for the earlier half, for the later half).
/// Products of reversed values come out one bit low, hence the −1.
const fn factors(bits: u32) -> (u64, u64) {
    (power(bits + 63), power(bits - 1))
}

/// The output of a kernel: bytes whose plain CRC is that of everything up to there.
pub(crate) type Folded = [u8; 16];

/// Orders everything that the kernels have stored before every later store of this thread.
pub(crate) fn order_stores() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 processor has SSE.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
    #[cfg(target_arch = "aarch64")]
    std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
}

/// A kernel: copies `strides` × its stride from the second to the first address and folds them,
/// starting from the register, which is the last argument.
///
/// # Safety
/// The processor supports the kernel; both addresses are valid for that length and do not overlap;
/// the first is a multiple of 64; `strides` ≥ 1.
pub(crate) type CopyFold = unsafe fn(*mut u8, *const u8, usize, u64) -> Folded;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn powers_reduce_like_the_crc() {
        // x^64 modulo P is P without its leading term.
        assert_eq!(power(64), POLYNOMIAL);
        assert_eq!(power(63), 1);
        assert_eq!(factors(128), (power(191), power(127)));
    }
}
